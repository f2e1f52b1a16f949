// Petstore is a pet store over HTTP with JSON bodies, in one binary with an
// embedded SQLite database.
//
//	petstore [flags]                serve; makes the database and a first key
//	petstore key VERB [flags] [ID]  create, list, show, set, rotate, revoke, unban
//	petstore backup [-db FILE] FILE copy the database while it is in use
//	petstore help                   every flag
//	petstore version
//
// Each flag can be set in the environment too: -base-url is PETSTORE_BASE_URL,
// and the flag wins. The exit status is 0 after a stop that was asked for, 2 for a
// mistake on the command line or in the environment, and 1 when something failed;
// both say why in one line on stderr. SIGINT and SIGTERM stop the service when
// the requests that it has are answered, or after 10 seconds.
//
// The service lists animals (GET /v1/pets), adds one (POST /v1/pets) and, until
// 5 December 2030, fetches one (GET /v1/pets/{petId}). Every request carries an
// API key as a bearer token; every key has a plan with a limit for the minute and
// one for the day; every answer says where the key stands.
//
// # A request's way through the files
//
// A request comes in through the server that main.go sets up, and meets the
// routes in handlers.go. Before any operation runs, auth.go finds its key and
// limits.go takes one request from both of the key's buckets, or refuses. The
// operation, again in handlers.go, reads its input with model.go, makes one call
// to store.go and writes the answer. An error travels back the same way and
// becomes an answer in one place.
//
// # What survives
//
// An animal is on disk, synced, before its 201 is sent, and an idempotency
// record with it. Usage, windows and bans are written behind every half second
// and at a graceful stop, so that a kill forgets less than a second of
// counting. Strikes and the limits of addresses without a key are not stored.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the default action is back: a second one ends the process.
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "petstore:", redact(strings.ReplaceAll(err.Error(), "\n", "; ")))
	var usage *usageError
	if errors.As(err, &usage) {
		os.Exit(2)
	}
	os.Exit(1)
}

// usageError is a mistake on the command line or in the environment.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// environment is what a command may use of the process it runs in.
type environment struct {
	getenv         func(string) string
	stdout, stderr io.Writer
}

// run is the program: it does what args say until it is done or, serving, until
// ctx ends. A *usageError is a mistake of the person who called it.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	env := environment{getenv, stdout, stderr}
	err := flag.ErrHelp
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		err = serve(ctx, args, env)
	} else {
		switch command, args := args[0], args[1:]; command {
		case "key":
			err = runKey(args, env)
		case "backup":
			err = runBackup(args, env)
		case "version":
			_, err = fmt.Fprintln(stdout, version())
		case "help":
		default:
			err = usageErrorf("no command %q%s; see petstore help", command, didYouMean("", command, []string{"key", "backup", "help", "version"}))
		}
	}
	if errors.Is(err, flag.ErrHelp) { // -h and --help give it too
		_, err = io.WriteString(stdout, help())
	}
	return err
}

// didYouMean suggests the word that was most likely meant, with the prefix
// before it, or nothing if none of the words is like it.
func didYouMean(prefix, typed string, words []string) string {
	best, least := "", min(3, len(typed)) // two slips, and not every letter
	for _, word := range words {
		if d := distance(typed, word); d < least {
			best, least = word, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + prefix + best + "?"
}

// distance is how many letters must be inserted, removed or replaced to make b
// of a (Levenshtein's distance).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of the part of a so far to the beginnings of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

const defaultDB = "petstore.db"

// config is what the flags of the server say.
type config struct {
	addr, db            string
	debugAddr           string
	debugAllowRemote    bool
	baseURL, stagingURL string
	staging             bool
	banFor              time.Duration
	clientIPHeader      string
	corsOrigins         []string
	tlsCert, tlsKey     string
	logFormat           string
	logLevel            slog.Level
}

// newFlags is a flag set that leaves the talking to run.
func newFlags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// serverFlags declares the flags of the server; their texts are the manual.
func serverFlags(c *config) *flag.FlagSet {
	fs := newFlags("petstore")
	c.addr, c.logFormat = "localhost:8080", "auto"
	fs.Func("addr", "`HOST:PORT` to listen on; port 0 takes a free one (localhost:8080)", func(s string) error {
		c.addr = s
		return checkAddr(s)
	})
	fs.StringVar(&c.db, "db", defaultDB, "database `FILE`, made if there is none (petstore.db)")
	fs.Func("base-url", "public `URL` of the service, ending in /v1, for Location and Link; without\nit they are paths, which is right behind any proxy", func(s string) error {
		c.baseURL = s
		return checkBaseURL(s)
	})
	fs.Func("staging-url", "public `URL` of the staging environment, ending in /v1, for /openapi.json", func(s string) error {
		c.stagingURL = s
		return checkBaseURL(s)
	})
	fs.BoolVar(&c.staging, "staging", false, "be a staging instance: issue and take only pet_test_ keys")
	c.banFor = 10 * time.Minute
	fs.Func("ban-for", "how long a key is banned for insisting after 429, a `DURATION`; 0 turns\nbans off (10m)", func(s string) (err error) {
		if c.banFor, err = time.ParseDuration(s); err == nil && c.banFor != 0 && c.banFor < time.Second {
			err = errors.New("it must be 0 or at least 1s")
		}
		return err
	})
	fs.Func("client-ip-header", "the `HEADER` in which your proxy names the caller, such as\nX-Forwarded-For; only its rightmost entry counts", func(s string) error {
		if c.clientIPHeader = s; !regexp.MustCompile(`^[A-Za-z0-9-]+$`).MatchString(s) {
			return errors.New("it must be the name of a header")
		}
		return nil
	})
	fs.Func("cors-origin", "`ORIGIN` whose pages may call the service, such as https://example.com, or\n*; repeat it for more, or separate them by commas", func(s string) error {
		for origin := range strings.SplitSeq(s, ",") {
			if err := checkOrigin(origin); err != nil {
				return err
			}
			c.corsOrigins = append(c.corsOrigins, origin)
		}
		return nil
	})
	fs.StringVar(&c.tlsCert, "tls-cert", "", "certificate `FILE` (PEM); with -tls-key it turns TLS and HTTP/2 on")
	fs.StringVar(&c.tlsKey, "tls-key", "", "private key `FILE` (PEM)")
	fs.Func("log", "`FORMAT` of the log on stderr: text, json, or auto, which is text on a\nterminal and json elsewhere (auto)", func(s string) error {
		if c.logFormat = s; s != "text" && s != "json" && s != "auto" {
			return errors.New("it must be text, json or auto")
		}
		return nil
	})
	fs.Func("log-level", "least `LEVEL` that is logged: debug (a line for every request), info,\nwarn or error (info)", func(s string) error {
		if c.logLevel.UnmarshalText([]byte(s)) != nil {
			return errors.New("it must be debug, info, warn or error")
		}
		return nil
	})
	fs.Func("debug-addr", "`HOST:PORT` for /metrics, /healthz, /readyz and /debug/pprof/, which ask\nfor no key; off without it", func(s string) error {
		c.debugAddr = s
		return checkAddr(s)
	})
	fs.BoolVar(&c.debugAllowRemote, "debug-allow-remote", false, "let -debug-addr be reached from other machines")
	return fs
}

// checkAddr takes a host, which may be empty, and a port.
func checkAddr(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil && port == "" {
		return errors.New("missing port in address")
	}
	if err == nil {
		_, err = net.LookupPort("tcp", port) //nolint:noctx // from a file at the most
	}
	return err
}

// isLoopback reports whether only this machine reaches an address.
func isLoopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// checkBaseURL takes an absolute http or https URL whose path ends in /v1, and
// which needs no escaping, since it is written into headers.
func checkBaseURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.String() != s || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" || !strings.HasSuffix(s, "/v1") {
		return errors.New("it must be an http or https URL ending in /v1")
	}
	return nil
}

// checkOrigin takes * or a serialized origin: scheme, host and perhaps port.
func checkOrigin(s string) error {
	u, err := url.Parse(s)
	if s != "*" && (err != nil || u.Scheme == "" || u.Host == "" || s != strings.ToLower(u.Scheme+"://"+u.Host)) {
		return errors.New("an origin is * or like https://example.com")
	}
	return nil
}

// parse reads the flags from args and, those that are not given there, from the
// environment: -base-url is PETSTORE_BASE_URL. Empty variables do not count.
func parse(fs *flag.FlagSet, args []string, getenv func(string) string) error {
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return usageErrorf("%v%s; see petstore help", err, suggestFlag(fs, args))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var err error
	fs.VisitAll(func(f *flag.Flag) {
		name := "PETSTORE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value := getenv(name); value != "" && !given[f.Name] && err == nil {
			if setErr := fs.Set(f.Name, value); setErr != nil {
				err = usageErrorf("invalid value %q for %s: %v", value, name, setErr)
			}
		}
	})
	return err
}

// suggestFlag names the flag that the first unknown one may have meant.
func suggestFlag(fs *flag.FlagSet, args []string) string {
	var names []string
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if strings.HasPrefix(arg, "-") && fs.Lookup(name) == nil {
			return didYouMean("-", name, names)
		}
	}
	return ""
}

// help is the text of petstore help.
func help() string {
	var b strings.Builder
	b.WriteString("petstore [flags]                 serve\n")
	for _, c := range keyCommands {
		fmt.Fprintf(&b, "petstore key %-6s              %s\n    [-db FILE] %s\n", c.verb, c.does, strings.Replace(c.synopsis, "[-test] ", "[-test]\n    ", 1))
	}
	b.WriteString("petstore backup [-db FILE] FILE  copy the database while it is in use\n" +
		"petstore version\npetstore help\n\nFlags of the server. Each can be set in the environment too: -base-url is\nPETSTORE_BASE_URL. The flag wins.\n\n")
	serverFlags(&config{}).VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(&b, "  %s\n        %s\n", strings.TrimSpace("-"+f.Name+" "+value), strings.ReplaceAll(usage, "\n", "\n        "))
	})
	return b.String()
}

// version names the build, as far as the toolchain recorded it.
func version() string {
	release, revision := build()
	return strings.TrimSpace("petstore " + release + " " + runtime.Version() + " " + revision)
}

// build is the version and the commit that the toolchain recorded.
func build() (release, revision string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown build)", ""
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			revision = setting.Value
		}
	}
	return info.Main.Version, revision
}

// newLogger writes to stderr; format is text, json or auto.
func newLogger(stderr io.Writer, format string, level slog.Level) *slog.Logger {
	if format == "auto" {
		format = "json"
		if f, ok := stderr.(*os.File); ok {
			if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
				format = "text"
			}
		}
	}
	stderr = redactor{stderr}
	options := &slog.HandlerOptions{Level: level}
	if format == "text" {
		return slog.New(slog.NewTextHandler(stderr, options))
	}
	return slog.New(slog.NewJSONHandler(stderr, options))
}

func runBackup(args []string, env environment) error {
	fs := newFlags("petstore backup")
	db := fs.String("db", defaultDB, "")
	if err := parse(fs, args, env.getenv); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return usageErrorf("usage: petstore backup [-db FILE] FILE")
	}
	s, err := openDatabase(*db, forCommand)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.backup(fs.Arg(0)); err != nil {
		return fmt.Errorf("cannot back up %s to %s: %w", *db, fs.Arg(0), err)
	}
	return nil
}

// serve runs the server until ctx ends.
func serve(ctx context.Context, args []string, env environment) (err error) {
	var cfg config
	if err := cfg.parse(args, env.getenv); err != nil {
		return err
	}
	log := newLogger(env.stderr, cfg.logFormat, cfg.logLevel)
	server := newServer(log)
	if cfg.tlsCert != "" {
		cert, err := tls.LoadX509KeyPair(cfg.tlsCert, cfg.tlsKey)
		if err != nil {
			return fmt.Errorf("cannot use -tls-cert and -tls-key: %w", err)
		}
		server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	var running atomic.Pointer[service]
	debugURL, stopDebug, err := serveDebug(ctx, cfg.debugAddr, &running, log)
	if err != nil {
		return err
	}
	defer stopDebug()
	store, err := openDatabase(cfg.db, forTheService)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	service := newService(store, cfg, log)
	server.Handler = service
	// The first key is made when the address is ours: it is printed only once.
	listener, err := net.Listen("tcp", cfg.addr) //nolint:noctx // serveUntil heeds a stop that comes now
	if err != nil {
		return err
	}
	address := serviceURL(listener, server.TLSConfig != nil)
	if err := printFirstKey(store, cfg.staging, address, env.stdout, log); err != nil {
		return errors.Join(err, listener.Close())
	}
	stopBackground := service.background()
	running.Store(service)
	log.Info("ready", "address", address, "page", strings.TrimSuffix(address, "v1"), "listening", listener.Addr().String(),
		"db", cfg.db, "environment", cfg.environment(), "debug", debugURL, "version", version())
	err = serveUntil(ctx, server, listener, log)
	return errors.Join(err, stopBackground())
}

// parse reads the command line of the server.
func (c *config) parse(args []string, getenv func(string) string) error {
	fs := serverFlags(c)
	if err := parse(fs, args, getenv); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return usageErrorf("unexpected argument %q; see petstore help", fs.Arg(0))
	case (c.tlsCert == "") != (c.tlsKey == ""):
		return usageErrorf("-tls-cert and -tls-key go together")
	case c.debugAddr != "" && !isLoopback(c.debugAddr) && !c.debugAllowRemote:
		return usageErrorf("-debug-addr %s can be reached from other machines, without a key; say localhost, or add -debug-allow-remote", c.debugAddr)
	}
	return nil
}

// environment is what the specification calls where a service runs.
func (c *config) environment() string {
	if c.staging {
		return "staging"
	}
	return "production"
}

// newServer sets the time a request may take: 5 s for its head, 15 s to its
// end, 30 s to the end of the answer, and 2 minutes until the next one.
func newServer(log *slog.Logger) *http.Server {
	frames := &http.HTTP2Config{MaxReadFrameSize: 16 << 10} // kept for each connection; by default 1 MiB
	server := &http.Server{
		ReadHeaderTimeout:            5 * time.Second,
		ReadTimeout:                  15 * time.Second,
		WriteTimeout:                 30 * time.Second,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               16 << 10,
		HTTP2:                        frames,
		DisableGeneralOptionsHandler: true, // OPTIONS * is a path like any other
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	closeSilent(server)
	return server
}

// closeSilent lets a shutdown close connections that have sent nothing yet, such
// as the pools of clients hold. Shutdown itself waits 5 seconds for each.
func closeSilent(server *http.Server) {
	var silent sync.Map // of net.Conn
	var stopping atomic.Bool
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state != http.StateNew {
			silent.Delete(conn)
			return
		}
		silent.Store(conn, nil)
		if stopping.Load() { // accepted just before, and too late for what follows
			_ = conn.Close()
		}
	}
	server.RegisterOnShutdown(func() {
		stopping.Store(true)
		silent.Range(func(conn, _ any) bool {
			_ = conn.(net.Conn).Close()
			return true
		})
	})
}

// serviceURL is where a client on this machine reaches the service.
func serviceURL(l net.Listener, secure bool) string {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(l.Addr().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/v1"
}

// printFirstKey makes the first key of a new database and shows it, once.
func printFirstKey(s *store, test bool, address string, stdout io.Writer, log *slog.Logger) error {
	token := newSecret(test)
	id, err := s.insertFirstKey(&apiKey{Name: "first key", Plan: "free", test: test, CreatedAt: at(time.Now())}, token)
	if err != nil {
		return err
	}
	if id == 0 {
		usable, err := s.hasKey(test)
		if err == nil && !usable {
			log.Warn("no key in this database opens this environment; make one with petstore key create", "test", test)
		}
		return err
	}
	log.Info("key created", "id", id, "name", "first key", "plan", "free")
	_, err = fmt.Fprintf(stdout, "This database had no API key. Here is one, on the Free plan; it is not shown again:\n\n"+
		"    %s\n\nTry it:\n\n    curl -i -H \"Authorization: Bearer %[1]s\" %s/pets\n\n", string(token), address)
	return err
}

// serveUntil serves until ctx ends, then lets running requests finish for up
// to 10 seconds.
func serveUntil(ctx context.Context, server *http.Server, listener net.Listener, log *slog.Logger) error {
	failed := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			failed <- server.ServeTLS(listener, "", "")
			return
		}
		failed <- server.Serve(listener)
	}()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Info("stopping")
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		log.Warn("requests were cut off", "error", err)
		return server.Close()
	}
	return nil
}

// background starts what runs beside the requests: four times a second a look
// for other processes' commits, every half second the writing of usage, and every
// minute the removal of old idempotency records. The function it returns stops
// all that and writes the usage a last time.
func (s *service) background() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	every := func(d time.Duration, what string, do func() error) {
		wg.Go(func() {
			ticker := time.NewTicker(d)
			defer ticker.Stop()
			failing := false // what goes on failing is logged once
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				err := do()
				if err != nil && !failing {
					s.log.Error("cannot "+what, "error", err)
				} else if err == nil && failing {
					s.log.Info("can " + what + " again")
				}
				failing = err != nil
			}
		})
	}
	every(250*time.Millisecond, "look for changes of keys", func() error {
		_, err := s.store.commit()
		return err
	})
	every(500*time.Millisecond, "write usage", s.limits.flush)
	every(time.Minute, "remove idempotency records", func() error { return s.store.purge(time.Now()) })
	return func() error {
		cancel()
		wg.Wait()
		return s.limits.flush()
	}
}

// serveDebug serves the debug address, if there is one, until stop is called.
func serveDebug(ctx context.Context, addr string, running *atomic.Pointer[service], log *slog.Logger) (url string, stop func(), err error) {
	if addr == "" {
		return "", func() {}, nil
	}
	listener, err := net.Listen("tcp", addr) //nolint:noctx // serveUntil heeds a stop that comes now
	if err != nil {
		return "", nil, err
	}
	server := newServer(log)
	server.WriteTimeout = 0 // a profile takes as long as it is asked to
	server.Handler = debugRoutes(ctx, running)
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the debug address fails", "error", err)
		}
	}()
	return strings.TrimSuffix(serviceURL(listener, false), "/v1"), func() { _ = server.Close() }, nil
}

// debugRoutes are what the debug address answers. The service is ready from
// when it runs until ctx ends, as long as its store can read and write.
func debugRoutes(ctx context.Context, running *atomic.Pointer[service]) http.Handler {
	mux := http.NewServeMux()
	unavailable := func(w http.ResponseWriter, reason string) { http.Error(w, reason, http.StatusServiceUnavailable) }
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := running.Load()
		if s == nil {
			unavailable(w, "starting")
		} else if ctx.Err() != nil {
			unavailable(w, "stopping")
		} else if err := s.store.probe(); err != nil {
			unavailable(w, err.Error())
		} else {
			_, _ = io.WriteString(w, "ok\n")
		}
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		s := running.Load()
		if s == nil {
			unavailable(w, "starting")
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(s.metrics())
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// exposition is a page of metrics in Prometheus' text format, version 0.0.4.
type exposition struct{ bytes.Buffer }

// sample is one number: labels, and before them the suffix of its name, if
// its kind has any.
type sample struct {
	labels string
	value  float64
}

// add appends a metric. Its kind is counter, gauge or histogram.
func (e *exposition) add(name, kind, help string, samples ...sample) {
	fmt.Fprintf(&e.Buffer, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	for _, s := range samples {
		fmt.Fprintf(&e.Buffer, "%s%s %s\n", name, s.labels, strconv.FormatFloat(s.value, 'g', -1, 64))
	}
}

// number appends a metric that is one number without labels.
func (e *exposition) number(name, kind, help string, value float64) {
	e.add(name, kind, help, sample{"", value})
}

// samples are the histogram's, with the label in front of each bound. One unit
// of the metric is so many of the histogram's.
func (h *histogram) samples(label string, unit float64) []sample {
	var samples []sample
	total := 0.0
	for i, bound := range h.bounds {
		total += float64(h.counts[i].Load())
		le := strconv.FormatFloat(float64(bound)/unit, 'g', -1, 64)
		samples = append(samples, sample{fmt.Sprintf("_bucket{%sle=%q}", label, le), total})
	}
	total += float64(h.counts[len(h.bounds)].Load())
	labels := ""
	if label != "" {
		labels = "{" + strings.TrimSuffix(label, ",") + "}"
	}
	return append(samples, sample{fmt.Sprintf("_bucket{%sle=\"+Inf\"}", label), total},
		sample{"_sum" + labels, float64(h.sum.Load()) / unit}, sample{"_count" + labels, total})
}

// metrics is what GET /metrics answers.
func (s *service) metrics() []byte {
	var e exposition
	release, revision := build()
	e.add("petstore_build_info", "gauge", "The build that is running.",
		sample{fmt.Sprintf("{version=%q,revision=%q,goversion=%q}", release, revision, runtime.Version()), 1})
	var answers, durations, failures []sample
	for _, op := range s.operations {
		for status := range op.answers {
			if n := op.answers[status].Load(); n > 0 {
				answers = append(answers, sample{fmt.Sprintf("{operation=%q,status=\"%d\"}", op.name, status), float64(n)})
			}
		}
		durations = append(durations, op.durations.samples(fmt.Sprintf("operation=%q,", op.name), 1e9)...)
	}
	for _, code := range slices.Sorted(maps.Keys(s.errors)) {
		failures = append(failures, sample{fmt.Sprintf("{code=%q}", code), float64(s.errors[code].Load())})
	}
	e.add("petstore_requests_total", "counter", "Requests answered, by operation and status.", answers...)
	e.add("petstore_request_duration_seconds", "histogram", "From a request's head until its answer was written.", durations...)
	e.add("petstore_errors_total", "counter", "Answers that were errors, refusals among them, by code.", failures...)
	e.number("petstore_bans_total", "counter", "Bans of keys that began.", float64(s.bans.Load()))

	usages, addresses := s.limits.remembered()
	e.number("petstore_known_keys", "gauge", "Keys remembered.", float64(s.keys.remembered()))
	e.number("petstore_known_usages", "gauge", "Usages of keys remembered.", float64(usages))
	e.number("petstore_known_addresses", "gauge", "Addresses remembered of callers without a key.", float64(addresses))
	var reads []sample
	for _, cache := range []struct {
		name string
		*cacheCounts
	}{{"keys", &s.keys.reads}, {"pages", &s.store.pageReads}, {"pets", &s.store.petReads}} {
		reads = append(reads, sample{fmt.Sprintf(`{cache=%q,result="hit"}`, cache.name), float64(cache.hits.Load())},
			sample{fmt.Sprintf(`{cache=%q,result="miss"}`, cache.name), float64(cache.misses.Load())})
	}
	e.add("petstore_cache_reads_total", "counter", "Reads of what may be remembered, by whether it was.", reads...)
	e.add("petstore_commit_requests", "histogram", "Writers whose statements shared a commit, requests above all.", s.store.commitSizes.samples("", 1)...)
	e.add("petstore_commit_duration_seconds", "histogram", "From the begin of a commit that succeeded to its sync.", s.store.commitTimes.samples("", 1e9)...)
	e.number("petstore_commit_failures_total", "counter", "Commits that failed.", float64(s.store.commitsFailed.Load()))
	e.number("petstore_commit_queue_length", "gauge", "Requests that wait for the next commit.", float64(s.store.queued()))
	e.process()
	return e.Bytes()
}

var processStart = time.Now()

// process appends what Prometheus' own clients tell of every Go program; what
// comes from /proc is left out where there is none.
func (e *exposition) process() {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	e.number("go_goroutines", "gauge", "Goroutines.", float64(runtime.NumGoroutine()))
	e.number("go_memstats_heap_alloc_bytes", "gauge", "Bytes of the Go heap in use.", float64(memory.HeapAlloc))
	e.number("go_memstats_sys_bytes", "gauge", "Bytes that Go has from the system; SQLite's are not among them.", float64(memory.Sys))
	e.number("go_memstats_alloc_bytes_total", "counter", "Bytes allocated on the Go heap.", float64(memory.TotalAlloc))
	e.number("go_gc_cycles_total", "counter", "Garbage collections.", float64(memory.NumGC))
	e.number("process_start_time_seconds", "gauge", "Start of the process, in Unix time.", float64(processStart.UnixMilli())/1000)
	if stat, err := os.ReadFile("/proc/self/stat"); err == nil {
		// The name, in brackets, may hold spaces; 11 fields behind it are the ticks
		// of 10 ms in user mode, and then those in the kernel (proc_pid_stat(5)).
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		user, _ := strconv.ParseFloat(fields[11], 64)
		kernel, _ := strconv.ParseFloat(fields[12], 64)
		e.number("process_cpu_seconds_total", "counter", "CPU time spent.", (user+kernel)/100)
		pages, _ := strconv.ParseFloat(fields[21], 64)
		e.number("process_resident_memory_bytes", "gauge", "Resident memory.", pages*float64(os.Getpagesize()))
	}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		e.number("process_open_fds", "gauge", "Open files.", float64(len(files)))
	}
}
