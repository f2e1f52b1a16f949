// Petstore is a pet store over HTTP with JSON bodies, in one binary. It keeps its data in an embedded SQLite database
// or in a cluster of rqlite. Without a command it serves; petstore help lists the verbs.
//
// The exit status is 0 after a stop that was asked for, 2 for a mistake on the command line or in the environment,
// and 1 when something failed; both say why in one line on stderr. After SIGINT or SIGTERM the service finishes its
// running requests, for at most 10 seconds; a command that they stop exits with 1 and leaves nothing half done.
//
// The service lists pets (GET /v1/pets), adds one (POST /v1/pets) and, until 5 December 2030, fetches one (GET
// /v1/pets/{petId}). Every request carries an API key as a bearer token; every key has a plan with a limit for
// the minute and one for the day; every response says where the key stands.
//
// A request comes in through the server that main.go sets up, and meets the routes in handlers.go.
// auth.go finds its key, limits.go takes one request from the key's buckets, or refuses, model.go
// reads its body, and store.go makes one transaction of what many requests write, in its engine:
// sqlite.go or rqlite.go. An error goes back the same way and becomes a response in one place. The
// command line is in commands.go and flags.go, what is counted in metrics.go; docs/design.md tells more.
//
// What got its 201 is on disk, or on the disks of a majority, with its Idempotency-Key, and so is a ban before the
// first refusal that mentions it. A kill forgets less than a second of counting, strikes, and limits of addresses.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
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
	// A moment after the first signal the default action is back: a second one ends the
	// process. It is a moment because timeout(1) sends its signal twice in a row.
	context.AfterFunc(ctx, func() { time.AfterFunc(100*time.Millisecond, stop) })
	signal.Ignore(syscall.SIGPIPE) // a stdout that nobody reads is an error like any other
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	if errors.Is(err, errExportCut) {
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "petstore:", redact(strings.ReplaceAll(err.Error(), "\n", "; ")))
	if _, isUsage := errors.AsType[*usageError](err); isUsage {
		os.Exit(2)
	}
	os.Exit(1)
}

// run is the program: it does what args say until it is done or, serving, until
// ctx ends. A *usageError is a mistake of the person who called it.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) error {
	err := runCommand(ctx, args, &process{environ, stdin, stdout, stderr}, serve)
	if readerLeft(err) {
		return nil // it has all that it wants of a list
	}
	return err
}

// serve runs the server until ctx ends. One that cannot have its address makes no database.
func serve(ctx context.Context, c *invocation) (err error) {
	log := c.log
	var running atomic.Pointer[service]
	debugURL, stopDebug, err := serveDebug(ctx, c.debugAddr, c.debugAllowRemote, &running, log)
	if err != nil {
		return err
	}
	defer stopDebug()
	listener, err := listen(c.addr, c.environ)
	if err != nil {
		return err
	}
	defer listener.Close()
	starting, cancel := context.WithTimeout(ctx, commandWait) // for another program's lock, or a leader
	defer cancel()
	store, err := openStore(starting, c.db, forService, log)
	if errors.Is(err, context.Canceled) || err != nil && errors.Is(err, context.Cause(ctx)) {
		return nil // a stop that was asked for, while it waited for a lock
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	store.remember(c.cache)
	service := newService(store, c.settings, log)
	server := newServer(log, c.tls, service)
	address := serviceURL(listener, c.addr, server.TLSConfig != nil)
	if err := printFirstKey(ctx, store, c.staging, address, c.stdout, log); err != nil {
		return err
	}
	if err := errors.Join(service.limits.flush(context.WithoutCancel(ctx), time.Now()), // which a restore sees, or
		updateSchema(ctx, store.engine, true)); err != nil { // this sees that one has begun
		return err
	}
	stopBackground := runBackground(service, server)
	running.Store(service)
	page, database := strings.TrimSuffix(address, "v1"), databaseName(c.db)
	engine, node := store.engine.describe()
	log.Info("ready", "address", address, "page", page, "listening", listener.Addr().String(), "db", database,
		"engine", engine, "node", node, "environment", strings.ToLower(c.environment()),
		"debug", debugURL, "version", version())
	if isTerminal(c.stderr) {
		_, _ = fmt.Fprintf(c.stderr, "\n  API       %s\n  page      %s\n  database  %s\n  stop      with Ctrl-C\n\n",
			address, page, database)
	}
	failed := server.serveUntil(ctx, listener)
	service.stopping.Store(true)
	log.Info("stopping", "requests", service.inFlight.Load())
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := server.drain(drain); err != nil { // requests are running still
		log.Warn("requests were cut off", "error", err)
		failed = errors.Join(failed, server.Close())
	}
	return errors.Join(failed, stopBackground(drain))
}

// listen takes the socket that the parent hands over as systemd does (sd_listen_fds(3)), or makes one. In the
// parent's, connections wait while one process ends and the next begins.
func listen(addr string, environ []string) (net.Listener, error) {
	if !slices.Contains(environ, "LISTEN_PID="+strconv.Itoa(os.Getpid())) { // there is none, or not for this process
		return net.Listen("tcp", addr) //nolint:noctx // serveUntil heeds a stop that comes now
	}
	if !slices.Contains(environ, "LISTEN_FDS=1") { // in a second one, connections would wait for ever
		return nil, usageErrorf("LISTEN_FDS must be 1: the service takes one socket from its parent")
	}
	socket := os.NewFile(3, "socket")
	defer socket.Close()
	listener, err := net.FileListener(socket)
	if _, ok := listener.(*net.TCPListener); !ok {
		return nil, errors.Join(usageErrorf("the socket from the parent, file 3, is no TCP listener"), err)
	}
	return listener, nil
}

// server is an http.Server that knows its connections.
type server struct {
	http.Server
	connections sync.Map     // from *connection to the net.Conn that net/http sees, which may have TLS around it
	swept       atomic.Int64 // when the last sweep was; times are nanoseconds since the process began
}

// connection notes its deadlines. net/http moves seven for each request, and timers for them take a twentieth of its
// time. So a sweep, four times a second, looks for those that have passed. Nobody calls SetDeadline.
type connection struct {
	halfCloser
	server     *server
	quietSince atomic.Int64 // 0 while a request is running

	mu          sync.Mutex // guards what follows
	read, write deadline
}

// halfCloser is what net/http needs of a connection: a response is read to its end only after a CloseWrite.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// deadline is one for reading or writing.
type deadline struct {
	at     time.Time // zero for none
	passed bool      // and the connection knows it
}

// look tells the connection that the deadline has passed, or that there is another one.
func (d *deadline) look(now time.Duration, tell func(time.Time) error) error {
	passed := !d.at.IsZero() && d.at.Sub(processStart) <= now
	if passed == d.passed {
		return nil
	}
	if d.passed = passed; passed {
		return tell(time.Unix(1, 0))
	}
	return tell(time.Time{})
}

// SetReadDeadline implements net.Conn.
func (c *connection) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read.at = t
	return c.read.look(time.Duration(c.server.swept.Load()), c.halfCloser.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (c *connection) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write.at = t
	return c.write.look(time.Duration(c.server.swept.Load()), c.halfCloser.SetWriteDeadline)
}

// sweep lets deadlines take effect that have passed. An error means that a connection is closed.
func (s *server) sweep() {
	now := time.Since(processStart)
	s.swept.Store(int64(now))
	for c := range s.connections.Range {
		c := c.(*connection)
		c.mu.Lock()
		_ = errors.Join(c.read.look(now, c.halfCloser.SetReadDeadline), c.write.look(now, c.halfCloser.SetWriteDeadline))
		c.mu.Unlock()
	}
}

// sweptListener makes connections of those that it accepts.
type sweptListener struct {
	net.Listener
	server *server
}

// Accept implements net.Listener.
func (l sweptListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{halfCloser: conn.(halfCloser), server: l.server}, nil // TCP has it
}

// newServer sets the time a request may take: 5 s for its head, 15 s to its
// end, 30 s to the end of the response, and 2 minutes until the next one.
func newServer(log *slog.Logger, config *tls.Config, handler http.Handler) *server {
	s := &server{Server: http.Server{
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10, // and frames of as much, which HTTP/2 keeps for each connection; by default 1 MiB
		HTTP2:          &http.HTTP2Config{MaxReadFrameSize: 16 << 10},
		TLSConfig:      config, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		Handler: handler, DisableGeneralOptionsHandler: true, // OPTIONS * is a path like any other
	}}
	s.ConnState = s.note
	s.sweep()
	return s
}

// note keeps what drain needs to know of a connection.
func (s *server) note(conn net.Conn, state http.ConnState) {
	inner := conn
	if secure, ok := conn.(*tls.Conn); ok {
		inner = secure.NetConn()
	}
	c, ok := inner.(*connection)
	switch {
	case !ok: // the debug address's, which nobody drains
	case state == http.StateActive:
		c.quietSince.Store(0)
	case state == http.StateNew:
		s.connections.Store(c, conn)
		fallthrough
	case state == http.StateIdle:
		c.quietSince.Store(int64(time.Since(processStart)))
	default:
		s.connections.Delete(c)
	}
}

// drain waits until ctx ends for all connections to end, and closes those that have been quiet for half a second: a
// request may be on its way. Shutdown would drop requests that arrive now, even once it has read their heads.
func (s *server) drain(ctx context.Context) error {
	for tick := time.Tick(5 * time.Millisecond); ctx.Err() == nil; <-tick {
		s.sweep()
		drained, quiet := true, s.swept.Load()-int64(500*time.Millisecond)
		for c, conn := range s.connections.Range {
			if since := c.(*connection).quietSince.Load(); since != 0 && since <= quiet {
				_ = conn.(net.Conn).Close()
			}
			drained = false
		}
		if drained {
			return nil
		}
	}
	return ctx.Err()
}

// serviceURL is where a client on this machine reaches the service: by the host
// of -addr, which a certificate may name, and the port that it has got.
func serviceURL(l net.Listener, addr string, secure bool) string {
	host, _, _ := net.SplitHostPort(addr)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return map[bool]string{false: "http://", true: "https://"}[secure] + net.JoinHostPort(host, port) + "/v1"
}

// printFirstKey makes the first key of a new database. A stop that comes meanwhile waits.
func printFirstKey(ctx context.Context, s *store, test bool, address string, stdout io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandWait)
	defer cancel()
	own, other, err := hasKeys(ctx, s, test)
	if other && !own {
		hint := map[bool]string{false: "petstore key create", true: "petstore key create -test"}[test]
		log.Warn("no key in this database opens this environment; make one with "+hint, "test", test)
	}
	if err != nil || own || other {
		return err
	}
	first := &apiKey{Name: "first key", Plan: "free", Test: test, CreatedAt: instantOf(time.Now())}
	text := strings.ReplaceAll(webFile("first-key.txt"), "$URL", address)
	id, err := issue(stdout, text, test, func(token secret) (int64, error) {
		return insertKey(ctx, s, first, token, true)
	})
	if err == nil && id == 0 {
		log.Error("another program has made a key meanwhile", "error", errNotStored)
	} else if err == nil {
		log.Info("key created", "id", id, "name", first.Name, "plan", first.Plan)
	}
	return err
}

// serveUntil serves until ctx ends, or until it cannot. No connection is accepted after that.
func (s *server) serveUntil(ctx context.Context, listener net.Listener) (err error) {
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	if s.TLSConfig != nil {
		err = s.ServeTLS(sweptListener{listener, s}, "", "")
	} else {
		err = s.Serve(sweptListener{listener, s})
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// runBackground starts what runs beside the requests: four times a second a look for deadlines that have passed, and
// for what other programs have written, every half second the writing of usage, every 3 seconds the report for the
// operator's page, if one is open, and every minute the removal of old Idempotency-Keys. The function it returns stops
// all that and writes the usage a last time, which it tries until its ctx ends.
func runBackground(s *service, server *server) (stop func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	every := func(d time.Duration, what string, do func() error) {
		wg.Go(func() {
			failing := false // what goes on failing is logged once
			for tick := time.Tick(d); ; {
				select {
				case <-ctx.Done():
					return
				case <-tick:
				}
				err := calmly(do)
				if err != nil && !failing {
					s.log.Error("cannot "+what, "error", err)
				} else if err == nil && failing {
					s.log.Info("can " + what + " again")
				}
				failing = err != nil
			}
		})
	}
	flush := func(ctx context.Context) error {
		return calmly(func() error { return errors.Join(s.limits.flush(ctx, time.Now()), s.keys.flush(ctx)) })
	}
	every(250*time.Millisecond, "", func() error { server.sweep(); return nil })
	every(250*time.Millisecond, "look for changes of keys", func() error { return s.store.refresh(context.Background()) })
	every(500*time.Millisecond, "write usage", func() error { return flush(context.Background()) })
	every(3*time.Second, "read the report on the keys", func() error { return s.updateReport(ctx, time.Now()) })
	every(time.Minute, "remove idempotency records", func() error { return s.store.purge(ctx, time.Now()) })
	return func(last context.Context) error {
		cancel()
		wg.Wait()
		err := flush(context.WithoutCancel(last)) // once also if requests have taken all the time
		for ; err != nil && last.Err() == nil; err = flush(last) {
			time.Sleep(100 * time.Millisecond)
		}
		if err == nil {
			err = s.limits.leave(context.WithoutCancel(last))
		}
		return err
	}
}

// serveDebug serves the debug address, if there is one, until stop is called.
func serveDebug(
	ctx context.Context, addr string, anyHost bool, running *atomic.Pointer[service], log *slog.Logger,
) (url string, stop func(), err error) {
	if addr == "" {
		return "", func() {}, nil
	}
	listener, err := net.Listen("tcp", addr) //nolint:noctx // serveUntil heeds a stop that comes now
	if err != nil {
		return "", nil, err
	}
	host, _, _ := net.SplitHostPort(addr)
	server := newServer(log, nil, debugRoutes(ctx, running, host, anyHost))
	server.WriteTimeout = 0 // a profile takes as long as it is asked to
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the debug address fails", "error", err)
		}
	}()
	return strings.TrimSuffix(serviceURL(listener, addr, false), "/v1"), func() { _ = server.Close() }, nil
}
