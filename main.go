// Petstore is a pet store over HTTP with JSON bodies, in one binary with an
// embedded SQLite database.
//
//	petstore [flags]                serve; makes the database and a first key
//	petstore key VERB [flags] [ID]  create, list, show, set, rotate, revoke, unban
//	petstore backup [-db FILE] FILE copy the database while it is in use
//	petstore help                   every flag
//	petstore version
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
// record with it. Usage, windows and bans are written behind every 750 ms
// and at a graceful stop, so that a kill forgets less than a second of
// counting. Strikes and the limits of addresses without a key are not stored.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
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
	fmt.Fprintln(os.Stderr, "petstore:", strings.ReplaceAll(err.Error(), "\n", "; "))
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
	command := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	if slices.ContainsFunc(args, func(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }) {
		command = "help"
	}
	switch command {
	case "":
		return serve(ctx, args, env)
	case "key":
		return runKey(args, env)
	case "backup":
		return runBackup(args, env)
	case "help":
		_, err := io.WriteString(stdout, help())
		return err
	case "version":
		_, err := fmt.Fprintln(stdout, version())
		return err
	}
	return usageErrorf("no command %q; see petstore help", command)
}

const defaultDB = "petstore.db"

// config is what the flags of the server say.
type config struct {
	addr, db            string
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
		_, port, err := net.SplitHostPort(s)
		if err == nil && port == "" {
			err = errors.New("missing port in address")
		} else if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		c.addr = s
		return err
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
	fs.Func("cors-origin", "`ORIGIN` whose pages may call the service, such as https://example.com, or *;\nrepeat it for more, or separate them by commas", func(s string) error {
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
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "least `LEVEL` that is logged: debug (a line for every request), info,\nwarn or error (info)")
	return fs
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
	if err := fs.Parse(args); err != nil {
		return usageErrorf("%v; see petstore help", err)
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

// help is the text of petstore help.
func help() string {
	var b strings.Builder
	b.WriteString("petstore [flags]                 serve\n")
	for _, c := range keyCommands {
		fmt.Fprintf(&b, "petstore key %-6s              %s\n    [-db FILE] %s\n", c.verb, c.does, c.synopsis)
	}
	b.WriteString("petstore backup [-db FILE] FILE  copy the database while it is in use\n" +
		"petstore version\npetstore help\n\nFlags of the server. Each can be set in the environment too: -base-url is\nPETSTORE_BASE_URL. The flag wins.\n\n")
	serverFlags(&config{}).VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(&b, "  -%s %s\n        %s\n", f.Name, value, strings.ReplaceAll(usage, "\n", "\n        "))
	})
	return b.String()
}

// version names the build, as far as the toolchain recorded it.
func version() string {
	text := "petstore (unknown build)"
	if info, ok := debug.ReadBuildInfo(); ok {
		text = "petstore " + info.Main.Version + " " + info.GoVersion
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				text += " " + setting.Value
			}
		}
	}
	return text
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
	fs := serverFlags(&cfg)
	if err := parse(fs, args, env.getenv); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return usageErrorf("unexpected argument %q; see petstore help", fs.Arg(0))
	}
	if (cfg.tlsCert == "") != (cfg.tlsKey == "") {
		return usageErrorf("-tls-cert and -tls-key go together")
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
	store, err := openDatabase(cfg.db, forTheService)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	service := newService(store, cfg, log)
	server.Handler = service
	// The first key is made when the address is ours: it is printed only once.
	listener, err := net.Listen("tcp", cfg.addr)
	if err != nil {
		return err
	}
	address := serviceURL(listener, server.TLSConfig != nil)
	if err := printFirstKey(store, cfg.staging, address, env.stdout, log); err != nil {
		return errors.Join(err, listener.Close())
	}
	log.Info("ready", "address", address, "listening", listener.Addr().String(), "db", cfg.db, "staging", cfg.staging, "version", version())
	stopBackground := service.background()
	err = serveUntil(ctx, server, listener, log)
	return errors.Join(err, stopBackground())
}

// newServer sets the time a request may take: 5 s for its head, 15 s to its
// end, 30 s to the end of the answer, and 2 minutes until the next one.
func newServer(log *slog.Logger) *http.Server {
	return &http.Server{
		ReadHeaderTimeout:            5 * time.Second,
		ReadTimeout:                  15 * time.Second,
		WriteTimeout:                 30 * time.Second,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               16 << 10,
		DisableGeneralOptionsHandler: true, // OPTIONS * is a path like any other
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
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
	made, err := s.insertFirstKey(&apiKey{Name: "first key", Plan: "free", test: test, CreatedAt: at(time.Now())}, token)
	if err != nil || !made {
		return err
	}
	log.Info("key created", "name", "first key", "plan", "free")
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
// for other processes' commits, every 750 ms the writing of usage, and every
// minute the removal of old idempotency records. The function it returns stops
// all that and writes the usage a last time.
func (s *service) background() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	every := func(d time.Duration, what string, do func() error) {
		wg.Go(func() {
			ticker := time.NewTicker(d)
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				if err := do(); err != nil {
					s.log.Error(what, "error", err)
				}
			}
		})
	}
	every(250*time.Millisecond, "cannot look for changes of keys", func() error {
		_, err := s.store.commit()
		return err
	})
	every(750*time.Millisecond, "cannot write usage", s.limits.flush)
	every(time.Minute, "cannot remove idempotency records", func() error { return s.store.purge(time.Now()) })
	return func() error {
		cancel()
		wg.Wait()
		return s.limits.flush()
	}
}
