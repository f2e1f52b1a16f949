// Petstore is a pet store over HTTP with JSON bodies, in one binary. It keeps its data in an
// embedded SQLite database or in a cluster of rqlite. Without a command it serves; petstore help
// lists the verbs.
//
// The exit status is 0 after a stop that was asked for, 2 for a mistake on the command line or in
// the environment, and 1 when something failed; both say why in one line on stderr. After SIGINT,
// SIGTERM or SIGHUP the service finishes its running requests, for at most 10 seconds; a command
// that they stop exits with 1 and leaves nothing half done.
//
// The service lists pets (GET /v1/pets), adds one (POST /v1/pets) and, until 5 December 2030,
// fetches one (GET /v1/pets/{petId}). Every request carries an API key as a bearer token; every key
// has a plan with a limit for the minute and one for the day; every response says where the key
// stands.
//
// A request comes in through the server that main.go sets up, and meets the routes in handlers.go.
// auth.go finds its key, limits.go takes one request from the key's buckets, or refuses, model.go
// reads its body, and store.go makes one transaction of what many requests write, in its engine:
// sqlite.go or rqlite.go. An error goes back the same way and becomes a response in one place. The
// command line is in commands.go and flags.go, what is counted in metrics.go; docs/design.md tells
// more.
//
// What got its 201 is on disk, or on the disks of a majority, with its Idempotency-Key, and so is a
// ban before the first refusal that mentions it. A kill forgets less than a second of counting,
// strikes, and limits of addresses.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	stdlog "log"
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
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup(1) makes it
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
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
func run(
	ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer,
) error {
	variables := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		variables[name] = value
	}
	err := runCommand(ctx, args, &process{variables, stdin, stdout, stderr}, serve)
	if readerLeft(err) {
		return nil // it has all that it wants of a list
	}
	return err
}

// serve runs the server until ctx ends. One that cannot have its address makes no database.
func serve(ctx context.Context, c *invocation) (err error) {
	log := c.log
	pair, err := openTLSPair(c.tlsCert, c.tlsKey)
	if err != nil {
		return fmt.Errorf("cannot use -tls-cert and -tls-key: %w", err)
	}
	var running atomic.Pointer[service]
	debugURL, stopDebug, err := serveDebug(c.debugAddr, c.debugAllowRemote, &running, log)
	if err != nil {
		return err
	}
	defer stopDebug()
	listener, err := listen(c.addr, c.environ)
	if err != nil {
		return err
	}
	defer listener.Close()
	// The start waits for another program's lock, or for a leader.
	starting, cancel := context.WithTimeout(ctx, commandWait)
	defer cancel()
	store, err := openStore(starting, c.db, forService, log)
	if err != nil {
		stopped := errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))
		if stopped {
			return nil // as was asked for, while it waited for a lock
		}
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	store.remember(c.cache)
	service := newService(store, c.settings, log)
	server := newServer(log, pair, service)
	url := localURL(listener, c.addr, pair != nil)
	if err := printFirstKey(ctx, store, c.staging, url, c.stdout, log); err != nil {
		return err
	}
	stopBackground := runBackground(service, pair)
	running.Store(service)
	announce(c, store.engine, listener, url, debugURL)
	return serveUntil(ctx, server, service, listener, stopBackground)
}

// announce says where the service is.
func announce(c *invocation, e engine, listener net.Listener, url, debugURL string) {
	database := databaseName(c.db)
	engine, node := e.describe()
	c.log.Info("ready", "address", url+"/v1", "page", url+"/",
		"listening", listener.Addr().String(), "db", database, "engine", engine, "node", node,
		"environment", strings.ToLower(c.environment()), "debug", debugURL, "version", version())
	if isTerminal(c.stderr) {
		_, _ = fmt.Fprintf(c.stderr, `
  API       %s/v1
  page      %[1]s/
  database  %s
  stop      with Ctrl-C

`, url, database)
	}
}

// serveUntil serves until ctx ends, or until the server cannot, and ends within 10 seconds and a
// last writing of usage.
func serveUntil(ctx context.Context, server *server, service *service, listener net.Listener,
	stopBackground func(context.Context) error) error {
	server.start(listener)
	var failed error
	select {
	case <-server.ended:
		failed = server.failure
	case <-ctx.Done():
	}
	service.stopping.Store(true)
	service.log.Info("stopping", "requests", service.inFlight.Load())
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := server.stop(stopping); err != nil { // requests are running still
		service.log.Warn("requests were cut off", "error", err)
		go func() { _ = server.Close() }() // it may have to wait, as Shutdown does
	}
	return errors.Join(failed, stopBackground(stopping))
}

// tlsPair is the certificate of -tls-cert and -tls-key. It may be renewed while the service runs.
type tlsPair struct {
	certFile, keyFile string
	certificate       atomic.Pointer[tls.Certificate] // as the files had it when they were good
}

// openTLSPair reads a pair for the first time; without a file there is none.
func openTLSPair(certFile, keyFile string) (*tlsPair, error) {
	if certFile == "" {
		return nil, nil
	}
	pair := &tlsPair{certFile: certFile, keyFile: keyFile}
	_, err := pair.renew()
	return pair, err
}

// renew reads the files. New connections get what they hold now; if that cannot be used, they go on
// getting what they got.
func (p *tlsPair) renew() (renewed bool, err error) {
	text, err := os.ReadFile(p.certFile)
	if err != nil {
		return false, err
	}
	key, err := os.ReadFile(p.keyFile)
	if err != nil {
		return false, err
	}
	certificate, err := tls.X509KeyPair(text, key)
	if err != nil {
		return false, err
	}
	// X509KeyPair looks at the first certificate of a chain and passes over one that is cut off.
	if _, err := x509.ParseCertificates(bytes.Join(certificate.Certificate, nil)); err != nil {
		return false, err
	}
	if bytes.Count(text, []byte("-----BEGIN CERTIFICATE-----")) != len(certificate.Certificate) {
		return false, fmt.Errorf("%s ends within a certificate", p.certFile)
	}
	before := p.certificate.Swap(&certificate)
	if before == nil {
		return true, nil
	}
	return !slices.EqualFunc(before.Certificate, certificate.Certificate, bytes.Equal), nil
}

// listen takes the socket that the parent hands over as systemd does (sd_listen_fds(3)), or makes
// one. In the parent's, connections wait while one process ends and the next begins.
func listen(addr string, environ map[string]string) (net.Listener, error) {
	if environ["LISTEN_PID"] != strconv.Itoa(os.Getpid()) {
		// There is no socket from a parent, or it is for another process.
		return net.Listen("tcp", addr) //nolint:noctx // it waits for nothing
	}
	if environ["LISTEN_FDS"] != "1" {
		// In a second socket, connections would wait for ever.
		return nil, usageErrorf(
			"LISTEN_FDS must be 1: the service takes one socket from its parent")
	}
	socket := os.NewFile(3, "socket")
	defer socket.Close()
	listener, err := net.FileListener(socket)
	if _, ok := listener.(*net.TCPListener); !ok {
		problem := usageErrorf("the socket from the parent, file 3, is no TCP listener")
		return nil, errors.Join(problem, err)
	}
	return listener, nil
}

// server is an http.Server that can be stopped within a time, whatever its peers do.
type server struct {
	http.Server
	listener net.Listener
	ended    chan struct{} // closed when no connection is accepted any more
	failure  error         // why, unless that was asked for; to be read once ended is closed
	open     atomic.Int64  // connections
	unused   sync.Map      // the net.Conns among them that no request has come on yet
}

// halfCloser is what net/http needs of a connection: a response is read to its end only after a
// CloseWrite.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// maxWrite is how long a write may take that net/http has set no deadline for.
const maxWrite = 30 * time.Second

// boundedConn gives each write a deadline, also those for which net/http sets none: TLS responds
// within Read to a peer that asks it to update its keys, and may find one there that reads nothing.
type boundedConn struct {
	halfCloser
	bounded atomic.Bool // net/http has set a deadline for writes
}

// SetWriteDeadline implements net.Conn. To remove the deadline is to set the longest, since such a
// response may be under way.
func (c *boundedConn) SetWriteDeadline(t time.Time) error {
	c.bounded.Store(!t.IsZero())
	if t.IsZero() {
		t = time.Now().Add(maxWrite)
	}
	return c.halfCloser.SetWriteDeadline(t)
}

// Write implements net.Conn.
func (c *boundedConn) Write(p []byte) (int, error) {
	if c.bounded.Load() {
		return c.halfCloser.Write(p)
	}
	if err := c.halfCloser.SetWriteDeadline(time.Now().Add(maxWrite)); err != nil {
		return 0, err
	}
	n, err := c.halfCloser.Write(p)
	if err != nil {
		_ = c.Close() // TLS would read on, and go on waiting for that
	}
	return n, err
}

// boundedListener accepts such connections.
type boundedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &boundedConn{halfCloser: conn.(halfCloser)}, nil // TCP has it
}

// newServer sets the time a request may take: 5 s for its head, 15 s to its end, 30 s to the end of
// the response, and 2 minutes until the next one. A peer that reads nothing for 10 s of what HTTP/2
// sends loses its connection.
func newServer(log *slog.Logger, pair *tlsPair, handler http.Handler) *server {
	connectionErrors := &errorLog{boundedLog{
		log: log, about: "errors of connections", most: 10, period: time.Second,
	}}
	s := &server{Server: http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		// And frames of as much, which HTTP/2 keeps for each connection; by default 1 MiB.
		MaxHeaderBytes: 16 << 10,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize: 16 << 10,
			WriteByteTimeout: 10 * time.Second,
		},
		ErrorLog: stdlog.New(connectionErrors, "", 0),
		Handler:  handler,
		// OPTIONS * is a path like any other.
		DisableGeneralOptionsHandler: true,
	}}
	s.ConnState = s.note
	if pair != nil {
		s.TLSConfig = &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return pair.certificate.Load(), nil
			},
		}
	}
	return s
}

// errorLog takes the lines of net/http's own log. They quote strangers.
type errorLog struct{ boundedLog }

// maxErrorLine is how many bytes such a line may have.
const maxErrorLine = 1 << 10

// Write implements io.Writer; each call is a line.
func (l *errorLog) Write(p []byte) (int, error) {
	line := redact(strings.TrimSpace(string(p)))
	// It is cut only now, since a part of a secret does not look like one.
	if len(line) > maxErrorLine {
		line = strings.ToValidUTF8(line[:maxErrorLine-len("…")], "") + "…"
	}
	l.warn(line)
	return len(p), nil
}

// note keeps what stop needs to know of connections.
func (s *server) note(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.open.Add(1)
		s.unused.Store(conn, nil)
	case http.StateClosed:
		s.open.Add(-1)
		s.unused.Delete(conn)
	default:
		s.unused.Delete(conn)
	}
}

// start serves until the server is stopped, or until it cannot.
func (s *server) start(listener net.Listener) {
	s.listener = boundedListener{listener}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		if s.TLSConfig != nil {
			s.failure = s.ServeTLS(s.listener, "", "")
		} else {
			s.failure = s.Serve(s.listener)
		}
	}()
}

// stop ends the server, and waits for requests that are running until ctx ends. Shutdown drops
// those whose head it reads later. So before it, for a moment, connections are accepted as always,
// and then those that were accepted are read; all responses say by now that the connection ends.
func (s *server) stop(ctx context.Context) error {
	s.pause(100 * time.Millisecond)
	_ = s.listener.Close() // an error means that it could not accept any more
	<-s.ended
	s.pause(250 * time.Millisecond)
	for conn := range s.unused.Range { // Shutdown would wait for them, for 5 s
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn() // whose Close waits for nobody
		}
		_ = conn.(net.Conn).Close()
	}
	waiting, stopped := context.WithCancel(ctx)
	go func() {
		defer stopped()
		// It does not heed ctx while it closes a TLS connection, which may wait for its peer.
		_ = s.Shutdown(ctx)
	}()
	<-waiting.Done()
	return ctx.Err()
}

// pause waits for a while, or until no connection is open. It counts rounds, not time: a process
// that got no processor meanwhile has not read what has come.
func (s *server) pause(d time.Duration) {
	const round = 5 * time.Millisecond
	for range d / round {
		if s.open.Load() == 0 {
			return
		}
		time.Sleep(round)
	}
}

// localURL is where a client on this machine reaches a server: by the host of its address, which a
// certificate may name, and the port that it has got.
func localURL(l net.Listener, addr string, secure bool) string {
	host, _, _ := net.SplitHostPort(addr)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if host == "" || net.ParseIP(host).IsUnspecified() {
		host = "localhost"
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// printFirstKey makes the first key of a new database. A stop that comes meanwhile waits.
func printFirstKey(
	ctx context.Context, s *store, test bool, url string, stdout io.Writer, log *slog.Logger,
) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandWait)
	defer cancel()
	own, other, err := hasKeys(ctx, s, test)
	if err != nil || own {
		return err
	}
	if other {
		hint := "petstore key create"
		if test {
			hint += " -test"
		}
		log.Warn("no key in this database opens this environment; make one with "+hint,
			"test", test)
		return nil
	}
	first := &apiKey{Name: "first key", Plan: "free", Test: test, CreatedAt: instantOf(time.Now())}
	text := strings.ReplaceAll(webFile("first-key.txt"), "$URL", url)
	id, err := issue(stdout, text, test, func(token secret) (int64, error) {
		return insertKey(ctx, s, first, token, true)
	})
	if err != nil {
		return err
	}
	if id == 0 {
		log.Error("another program has made a key meanwhile", "error", errNotStored)
		return nil
	}
	log.Info("key created", "id", id, "name", first.Name, "plan", first.Plan)
	return nil
}

// runBackground starts what runs beside the requests: four times a second a look for what other
// programs have written, every half second the writing of usage, every 3 seconds the report for the
// operator's page, if one is open, every 30 seconds a look for a renewed TLS pair, if there is one,
// and every minute the removal of old Idempotency-Keys. The function it returns stops all that and
// writes the usage a last time, which it tries until its ctx ends.
func runBackground(s *service, pair *tlsPair) (stop func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	every := func(d time.Duration, what string, do func() error) {
		wg.Go(func() { repeat(ctx, d, what, do, s.log) })
	}
	flush := func(ctx context.Context) error {
		return calmly(func() error {
			return errors.Join(s.limits.flush(ctx, time.Now()), s.keys.flush(ctx))
		})
	}
	every(250*time.Millisecond, "look for changes of keys", func() error {
		return s.store.refresh(context.Background())
	})
	every(500*time.Millisecond, "write usage", func() error {
		return flush(context.Background())
	})
	every(3*time.Second, "read the report on the keys", func() error {
		return s.updateReport(ctx, time.Now())
	})
	every(time.Minute, "remove idempotency records", func() error {
		return s.store.purge(ctx, time.Now())
	})
	if pair != nil {
		renew := func() error {
			renewed, err := pair.renew()
			if renewed {
				s.log.Info("TLS certificate renewed", "file", pair.certFile)
			}
			return err
		}
		// The stop does not wait for this: a file may hang, and the usage must be written all the
		// same.
		go repeat(ctx, 30*time.Second, "use the files of -tls-cert and -tls-key", renew, s.log)
	}
	return func(last context.Context) error {
		cancel()
		wg.Wait()
		err := flush(context.WithoutCancel(last)) // once also if requests have taken all the time
		for ; err != nil && last.Err() == nil; err = flush(last) {
			time.Sleep(100 * time.Millisecond)
		}
		return err
	}
}

// repeat does something at every tick until ctx ends. What goes on failing is logged once.
func repeat(ctx context.Context, d time.Duration, what string, do func() error, log *slog.Logger) {
	failing := false
	for tick := time.Tick(d); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		if ctx.Err() != nil { // a tick that came while it worked may be chosen
			return
		}
		err := calmly(do)
		if err != nil && !failing {
			log.Error("cannot "+what, "error", err)
		}
		if err == nil && failing {
			log.Info("can " + what + " again")
		}
		failing = err != nil
	}
}

// serveDebug serves the debug address, if there is one, until stop is called.
func serveDebug(
	addr string, anyHost bool, running *atomic.Pointer[service], log *slog.Logger,
) (url string, stop func(), err error) {
	if addr == "" {
		return "", func() {}, nil
	}
	listener, err := net.Listen("tcp", addr) //nolint:noctx // it waits for nothing
	if err != nil {
		return "", nil, err
	}
	host, _, _ := net.SplitHostPort(addr)
	server := newServer(log, nil, debugRoutes(running, host, anyHost))
	server.WriteTimeout = 0 // a profile takes as long as it is asked to
	go func() {
		err := server.Serve(boundedListener{listener})
		if !errors.Is(err, http.ErrServerClosed) {
			log.Error("the debug address fails", "error", err)
		}
	}()
	return localURL(listener, addr, false), func() { _ = server.Close() }, nil
}
