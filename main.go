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
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
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
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
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

// run is the program: it does what args say until it is done or, serving, until
// ctx ends. A *usageError is a mistake of the person who called it.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	p := &process{environ, stdout, stderr}
	command := runCommand
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		command = serve
	}
	err := command(ctx, args, p)
	if errors.Is(err, flag.ErrHelp) { // -h and --help give it too
		_, err = io.WriteString(stdout, help())
	}
	return err
}

// serve runs the server until ctx ends.
func serve(ctx context.Context, args []string, p *process) (err error) {
	var cfg config
	if err := cfg.parse(args, p.environ); err != nil {
		return err
	}
	log := newLogger(p.stderr, cfg.logFormat, cfg.logLevel)
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
	starting := context.WithoutCancel(ctx) // serveUntil heeds a stop that comes now
	store, err := openStore(starting, cfg.db, forService)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	service := newService(store, cfg.settings, log)
	server.Handler = service
	// The first key is made when the address is ours: it is printed only once.
	listener, err := net.Listen("tcp", cfg.addr) //nolint:noctx // serveUntil heeds a stop that comes now
	if err != nil {
		return err
	}
	address := serviceURL(listener, server.TLSConfig != nil)
	if err := printFirstKey(starting, store, cfg.staging, address, p.stdout, log); err != nil {
		return errors.Join(err, listener.Close())
	}
	stopBackground := runBackground(service)
	running.Store(service)
	log.Info("ready", "address", address, "page", strings.TrimSuffix(address, "v1"), "listening", listener.Addr().String(),
		"db", cfg.db, "environment", cfg.environment(), "debug", debugURL, "version", version())
	err = serveUntil(ctx, server, listener, log)
	return errors.Join(err, stopBackground())
}

// environment is what the specification calls the place where a service runs.
func (c *config) environment() string {
	if c.staging {
		return "staging"
	}
	return "production"
}

// newServer sets the time a request may take: 5 s for its head, 15 s to its
// end, 30 s to the end of the response, and 2 minutes until the next one.
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
func printFirstKey(ctx context.Context, s *store, test bool, address string, stdout io.Writer, log *slog.Logger) error {
	token := newSecret(test)
	first := &apiKey{Name: "first key", Plan: "free", test: test, CreatedAt: instantOf(time.Now())}
	id, err := insertFirstKey(ctx, s, first, token)
	if err != nil {
		return err
	}
	if id == 0 {
		usable, err := hasKey(ctx, s, test)
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

// runBackground starts what runs beside the requests: four times a second a look
// for what other programs have written, every half second the writing of usage,
// and every minute the removal of old Idempotency-Keys. The function it returns
// stops all that and writes the usage a last time.
func runBackground(s *service) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	every := func(d time.Duration, what string, do func(context.Context) error) {
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
				err := do(context.Background())
				if err != nil && !failing {
					s.log.Error("cannot "+what, "error", err)
				} else if err == nil && failing {
					s.log.Info("can " + what + " again")
				}
				failing = err != nil
			}
		})
	}
	flush := func(ctx context.Context) error { return errors.Join(s.limits.flush(ctx), s.keys.flush(ctx)) }
	every(250*time.Millisecond, "look for changes of keys", s.store.refresh)
	every(500*time.Millisecond, "write usage", flush)
	every(time.Minute, "remove idempotency records", func(context.Context) error { return s.store.purge(ctx, time.Now()) })
	return func() error {
		cancel()
		wg.Wait()
		return flush(context.Background())
	}
}

// serveDebug serves the debug address, if there is one, until stop is called.
func serveDebug(ctx context.Context, addr string, running *atomic.Pointer[service], log *slog.Logger) (
	url string, stop func(), err error) {
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
