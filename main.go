// Petstore is a pet store over HTTP with JSON bodies, in one binary. It keeps its data in an
// embedded SQLite database or in a cluster of rqlite. Without a command it serves; petstore help
// lists the commands.
//
// The service lists pets (GET /v1/pets), adds one (POST /v1/pets) and, until 5 December 2030,
// fetches one (GET /v1/pets/{petId}). Every request under /v1 carries an API key as a bearer token.
// Every key has a plan with a limit for the minute and one for the day, and every response there
// says what is left of them.
//
// Six files are the service, in the order in which a newcomer reads them:
//
//	main.go      the process, and the life of the server from start to stop
//	handlers.go  the routes, the operations, and the one place that writes errors
//	auth.go      the form of a key, and how the key of a request is found
//	limits.go    what one caller may do: plans, windows, bans, addresses, the limit headers
//	store.go     pets and Idempotency-Keys, and the commit that many requests share
//	model.go     pets and errors, and their strict translation from and to JSON
//
// Each file beside it is one thing that can be read alone:
//
//	memory.go         what is remembered of the database, and for how long that counts
//	schema.go         migrations, and the marks and the identity of a database
//	keys.go           the stored keys, by their digests
//	usage.go          usage that services share: charged, stored, and reported
//	metrics.go        counters and histograms, and their text format
//	operator.go       the debug address: metrics, their history, and the report on keys
//	sqlite.go         an engine: one database file
//	rqlite.go         the other engine: a cluster of several machines, over HTTP
//	flags.go          every flag, with its default, its environment variable, and its checks
//	commands.go       the table of commands, their help, how one is run, and the log
//	commands_keys.go  what the commands about keys do
//	commands_pets.go  what the commands about pets do, import and export among them
//	backup.go         backup and restore
//	files.go          how files are found, made and published; what stands beside a database
//	disk_unix.go      what only an operating system can tell of a disk
//	disk_other.go     other systems, whose disks stay unknown
//
// A request comes in through the server that main.go sets up, and meets the routes in handlers.go.
// auth.go finds its key. usage.go lets limits.go take one request from the key's windows, or refuse
// it. model.go reads the body. store.go writes what many requests want in one transaction of its
// engine. An error goes back the same way and becomes a response in one place. docs/design.md tells
// more.
//
// A pet that got its 201 is on disk, or on the disks of a majority, together with its
// Idempotency-Key. A ban is there before the first refusal that mentions it. A kill loses all
// strikes and the limits of addresses. Of the usage of keys it loses what the last flush that has
// ended did not store yet: at most the last second, unless a flush takes longer than that.
//
// The exit status is 0 when a command is done, or when the service was asked to stop. It is 2 for a
// mistake on the command line or in the environment, and 1 when something failed. One line on
// stderr says why, unless the reader of stdout has left. After SIGINT, SIGTERM or SIGHUP the
// service finishes its running requests, for at most 10 seconds. A command that they stop exits
// with 1 and leaves nothing half done.
package main

import (
	"context"
	"crypto/tls"
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
	if !signal.Ignored(syscall.SIGHUP) { // nohup(1) has it ignored
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, restoreDefaults := signal.NotifyContext(context.Background(), signals...)
	// A second signal ends the process, as by default. One within 0.1 s of the first does not
	// count: timeout(1) sends its signal twice in a row.
	soonAfter(ctx, restoreDefaults)
	signal.Ignore(syscall.SIGPIPE) // a stdout that nobody reads is an error like any other
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	if readerLeft(err) { // nobody reads stdout any more, so no message is needed
		os.Exit(1)
	}
	message := redactAsOneField(strings.ReplaceAll(err.Error(), "\n", "; "))
	// Fprintln blocks while nobody reads stderr. After a signal, also an earlier one, it has 0.1 s.
	soonAfter(ctx, func() { os.Exit(1) })
	fmt.Fprintln(os.Stderr, "petstore:", message)
	if _, isUsage := errors.AsType[*usageError](err); isUsage {
		os.Exit(2)
	}
	os.Exit(1)
}

// soonAfter calls do 0.1 s after ctx has ended, or from now if it has ended already.
func soonAfter(ctx context.Context, do func()) {
	context.AfterFunc(ctx, func() { time.AfterFunc(100*time.Millisecond, do) })
}

// run is the program. It does what args say. The end of ctx stops the service, and any command,
// also one that waits for somebody to read stdout. A *usageError is a mistake of the person who
// called it.
func run(
	ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer,
) error {
	variables := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		variables[name] = value
	}
	// stderr can be written to for a moment after the end of ctx, so that a command that was
	// stopped can say so.
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	soonAfter(ctx, cancel)
	p := &process{
		environ: variables,
		stdin:   stdin,
		stdout:  stoppable(ctx, stdout),
		stderr:  stoppable(late, stderr),
	}
	// Without a command, runCommand calls what follows.
	return runCommand(ctx, args, p, func(ctx context.Context, cmd *invocation) error {
		if cmd.logFormat == "auto" && isTerminal(stderr) {
			cmd.logFormat = "text" // newLogger would see the queue, which is no terminal
		}
		// The service logs by a queue. Only queue.run writes to stderr, for which it may wait long:
		// lines of the queue and, by direct, how many were dropped. It is given stderr and not
		// p.stderr, which takes nothing any more soon after the stop.
		queue := newLogQueue(stderr)
		direct := newLogger(stderr, cmd.logFormat, cmd.logLevel)
		go queue.run(direct)
		defer queue.close()
		cmd.log = newLogger(queue, cmd.logFormat, cmd.logLevel)
		cmd.warnOfUnknownVariables()
		return serve(ctx, cmd, queue)
	})
}

// serve runs the service until ctx ends.
func serve(ctx context.Context, cmd *invocation, queue *logQueue) (err error) {
	// The certificate and the addresses come first: if they cannot be used, no database is made.
	pair, err := readPair(cmd, time.Now())
	if err != nil {
		return err
	}
	listener, debugListener, err := listenForBoth(ctx, cmd)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer listener.Close()
	if debugListener != nil {
		defer debugListener.Close()
	}

	// Each wait of openStore for another program's lock, or for a cluster's leader, ends after
	// commandWait. ctx gets no deadline: that would also end an upgrade of the schema, which takes
	// long in a large database.
	store, err := openStore(ctx, cmd.db, openToServe, cmd.log)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	// From here on, a stop waits until serve returns, which has to take back a first key that it
	// cannot show. Before, runUntilStopped (commands.go) waits for half a second.
	close(cmd.started)
	url := localURL(listener, cmd.addr, pair != nil)
	store.documents.max = cmd.cache // bytes of pages and pets that are remembered
	if err := printFirstKey(ctx, cmd, store, url); err != nil {
		return err // after a stop, too: it tells what became of a key that was not shown
	}
	if ctx.Err() != nil {
		return nil
	}

	api := newService(store, cmd.settings, cmd.log)
	networkDisk := warnOfNetworkDisk(cmd)
	var page *operator // nil without -debug-addr
	debugURL := ""
	if debugListener != nil {
		page = newPage(api, pair, networkDisk, queue)
		debug := newServer(cmd.log, nil, page.routes(cmd.debugAllowRemote))
		defer debug.Close()
		go debug.serve(debugListener)
		debugURL = localURL(debugListener, cmd.debugAddr, false)
	}
	stopBackground := runBackground(api, page, pair)
	cmd.log.Info("ready",
		"address", url+"/v1",
		"listening", listener.Addr().String(),
		"db", databaseName(cmd.db),
		"environment", strings.ToLower(cmd.environment()),
		"debug", debugURL,
		"version", version())
	front := newServer(cmd.log, pair, api)
	front.IdleTimeout = cmd.idleTimeout
	return serveUntil(ctx, front, api, listener, stopBackground)
}

// unlessStopped returns an error of a start, or nil once ctx has ended: to stop a service that
// starts is no failure.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // as the function's name says
	}
	return err
}

// newPage is the operator's page of a service; pair is nil without TLS.
func newPage(api *service, pair *tlsPair, networkDisk string, queue *logQueue) *operator {
	page := newOperator(api)
	page.droppedLines = &queue.dropped
	page.networkDisk = networkDisk
	if pair != nil {
		page.certificate = &pair.certificate
		page.certificateUnusable = &pair.unusable
	}
	return page
}

// warnOfNetworkDisk warns of a database on a file system that may not pass locks on, and names it.
func warnOfNetworkDisk(cmd *invocation) (name string) {
	name = networkDisk(cmd.db) // "" for a cluster: its addresses are no path
	if name != "" {
		cmd.log.Warn("the database is on a file system that may not pass locks on to other "+
			"machines: keep it on a local disk, or let no other machine serve it",
			"fileSystem", name)
	}
	return name
}

// serveUntil serves until ctx ends, or until the server cannot. Then it lets requests finish, for
// at most 10 seconds, and stops the background. A request that lasts longer ends with the process;
// the store refuses it once it is closed. What fails is told in the order in which it failed.
func serveUntil(ctx context.Context, front *server, api *service, listener net.Listener,
	stopBackground func() error) error {
	go front.serve(listener)
	var failure error
	select {
	case <-front.ended:
		failure = front.failure
	case <-ctx.Done():
	}
	// From here on, response.WriteHeader tells the clients that their connections end.
	api.stopping.Store(true)
	api.log.Info("stopping")
	untilCut, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := front.stop(untilCut, listener); err != nil {
		api.log.Warn("requests are cut off", "error", err)
	}
	return errors.Join(failure, stopBackground())
}

// tlsPair is the certificate of -tls-cert and -tls-key. It may be renewed while the service runs.
type tlsPair struct {
	certFile, keyFile string
	certificate       atomic.Pointer[tls.Certificate] // for new connections
	unusable          atomic.Bool                     // the last renew could not use the files
}

// readPair reads -tls-cert and -tls-key; without them there is no pair. A certificate that has
// ended is served all the same: clients that do not check it can go on.
func readPair(cmd *invocation, now time.Time) (*tlsPair, error) {
	if cmd.tlsCert == "" {
		return nil, nil
	}
	pair := &tlsPair{certFile: cmd.tlsCert, keyFile: cmd.tlsKey}
	if err := pair.renew(); err != nil {
		return nil, fmt.Errorf("cannot use -tls-cert and -tls-key: %w", err)
	}
	if end := pair.certificate.Load().Leaf.NotAfter; end.Before(now) {
		cmd.log.Warn("the certificate of -tls-cert has ended: clients that check it refuse it; "+
			"renew it", "ended", end.UTC())
	}
	return pair, nil
}

// renew reads the files. From then on, new connections get the certificate in the files. If it
// cannot be used, new connections get the certificate from before.
func (p *tlsPair) renew() error {
	certificate, err := p.read()
	p.unusable.Store(err != nil)
	if err == nil {
		p.certificate.Store(&certificate)
	}
	return err
}

func (p *tlsPair) read() (tls.Certificate, error) {
	for _, file := range []string{p.certFile, p.keyFile} {
		if err := refuseIrregular(file); err != nil {
			return tls.Certificate{}, err
		}
	}
	return tls.LoadX509KeyPair(p.certFile, p.keyFile)
}

// listenForBoth listens on -addr and, if it is given, on -debug-addr. The name of a host may take
// long to be found; ctx ends that.
func listenForBoth(ctx context.Context, cmd *invocation) (front, debug net.Listener, err error) {
	front, err = listen(ctx, cmd.addr, cmd.environ)
	if err != nil || cmd.debugAddr == "" {
		return front, nil, err
	}
	debug, err = new(net.ListenConfig).Listen(ctx, "tcp", cmd.debugAddr)
	if err != nil {
		_ = front.Close()
		return nil, nil, fmt.Errorf("cannot listen on -debug-addr %s: %w", cmd.debugAddr, err)
	}
	return front, debug, nil
}

// listen takes the socket that the parent hands over as systemd does (sd_listen_fds(3)), or makes
// one. In the parent's socket, connections wait while one process ends and the next begins.
func listen(ctx context.Context, addr string, environ map[string]string) (net.Listener, error) {
	if environ["LISTEN_PID"] != strconv.Itoa(os.Getpid()) {
		// There is no socket from a parent, or it is for another process.
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("cannot listen on -addr %s: %w", addr, err)
		}
		return listener, nil
	}
	if environ["LISTEN_FDS"] != "1" {
		// In a second socket, connections would wait for ever.
		return nil, usageErrorf(
			"LISTEN_FDS must be 1: the service takes one socket from its parent")
	}
	socket := os.NewFile(3, "socket")
	defer socket.Close()
	listener, _ := net.FileListener(socket) // nil after an error
	if _, isTCP := listener.(*net.TCPListener); !isTCP {
		return nil, usageErrorf("the socket from the parent, file 3, is not a TCP listener")
	}
	return listener, nil
}

// server is an http.Server that can be stopped within a time, whatever its peers do.
type server struct {
	http.Server
	ended   chan struct{} // closed when no connection is accepted any more
	failure error         // what Serve has returned, once ended is closed; never nil
	open    sync.Map      // the net.Conns
	unused  sync.Map      // those on which no head of a request has arrived whole yet
	// endContexts ends the parent of the contexts of all handshakes and requests: see stop.
	// Operations finish all the same, since they do not give theirs to the store.
	endContexts func()
}

// newServer sets the time a request may take: 5 s for its head, 15 s to its end, 30 s to the end of
// the response, and 2 minutes until the next request (the function serve sets -idle-timeout in its
// place for the API). With HTTP/2, a head has no time of its own: a connection ends when its peer
// completes no frame, or reads nothing, for too long. What a connection may hold in memory is
// bounded too. docs/operating.md has tables of both. No http.TimeoutHandler is used, since its
// response has another shape.
func newServer(log *slog.Logger, pair *tlsPair, handler http.Handler) *server {
	s := &server{ended: make(chan struct{}), Server: http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		HTTP2: &http.HTTP2Config{
			// RFC 9113 section 6.5.2 recommends no fewer. takeTurns bounds what they hold.
			MaxConcurrentStreams: 100,
			// Each connection has buffers of these sizes. By default they would be 1 MiB.
			MaxReadFrameSize:              16 << 10,
			MaxReceiveBufferPerConnection: 64 << 10,
			// After 5 s without a whole frame a peer gets a ping, and has 5 s to answer. One that
			// has stopped in the middle of a frame, such as a head, cannot answer.
			SendPingTimeout:  5 * time.Second,
			PingTimeout:      5 * time.Second,
			WriteByteTimeout: 10 * time.Second,
		},
		ErrorLog: stdlog.New(&boundedLog{log: log}, "", 0),
		Handler:  handler,
		// The handler responds to OPTIONS * as to any other path.
		DisableGeneralOptionsHandler: true,
	}}
	s.ConnState = s.note
	var base context.Context
	base, s.endContexts = context.WithCancel(context.Background())
	s.BaseContext = func(net.Listener) context.Context { return base }
	if pair != nil { // with TLS comes HTTP/2
		s.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, placesOfConnection{}, make(chan struct{}, maxHandled))
		}
		s.Handler = takeTurns(handler)
		s.TLSConfig = &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return pair.certificate.Load(), nil
			},
		}
	}
	return s
}

// maxHandled is how many requests of a connection with HTTP/2 are handled at once. Each holds up to
// 90 KiB while its peer lets the response wait.
const maxHandled = 10

// placesOfConnection is the key of a channel that holds an element for each request in its handler.
type placesOfConnection struct{}

// takeTurns bounds what the requests of a connection with HTTP/2 hold in memory. At most maxHandled
// of them have a place, which the handler needs. A small request may wait for a place, and frees it
// after the handler. A large one never waits: without a place, its stream is reset. After the
// handler, net/http holds the head and the body until its peer has taken the response. For a small
// request that is little. A large one keeps its place until then, by the Flush below.
func takeTurns(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor < 2 {
			handler.ServeHTTP(w, r)
			return
		}
		places := r.Context().Value(placesOfConnection{}).(chan struct{})
		small := isSmall(r) // asked now: response.WriteHeader in handlers.go makes r.Header nil
		if !takePlace(r.Context(), places, small) {
			// No place is left for a large request. Or a small one has waited for one until its
			// client gave it up, or until the third step of a stop: see stop.
			panic(http.ErrAbortHandler) // resets the stream
		}
		defer func() { <-places }() // after the Flush
		if r.ContentLength != 0 {
			endBound := boundBodyInStop(w, r)
			defer endBound()
		}
		handler.ServeHTTP(w, r)
		if !small {
			// Flush waits until the peer has taken the response. An error means that it has gone.
			_ = http.NewResponseController(w).Flush()
		}
	})
}

// takePlace takes a place for a request. If there is none, a small request waits for one until its
// client gives it up, or the service stops. No other may wait: it would hold memory, and nobody has
// looked at its key yet.
func takePlace(ctx context.Context, places chan struct{}, mayWait bool) (taken bool) {
	select {
	case places <- struct{}{}:
		return true
	default:
	}
	if !mayWait {
		return false
	}
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// isSmall reports whether a request has at most 2 KiB of head, counted about as in RFC 9113 section
// 6.5.2, at most 4 KiB of body, and no trailers.
func isSmall(r *http.Request) bool {
	const perField = 32
	head := len(r.Method) + len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			head += len(name) + len(value) + perField
		}
	}
	knownBody := r.ContentLength >= 0 && r.ContentLength <= 4<<10
	return head <= 2<<10 && knownBody && len(r.Trailer) == 0
}

// note keeps what stop needs to know of connections.
func (s *server) note(conn net.Conn, state http.ConnState) {
	if state == http.StateNew {
		s.open.Store(conn, nil)
		s.unused.Store(conn, nil)
		return
	}
	s.unused.Delete(conn)
	if state == http.StateClosed {
		s.open.Delete(conn)
	}
}

// serve serves until the listener is closed, or until it cannot go on.
func (s *server) serve(listener net.Listener) {
	defer close(s.ended)
	if s.TLSConfig == nil {
		s.failure = s.Serve(listener)
	} else {
		s.failure = s.ServeTLS(listener, "", "")
	}
}

// stop ends the server, in three steps. For 0.1 s it goes on as before, so that clients that are
// about to connect are still served, but each response says that its connection ends: see
// serveUntil. Then no connection is accepted, and for 0.25 s requests that are on their way are
// read. (Shutdown or SetKeepAlivesEnabled(false) would close their connections at once.) Then
// requests may finish until ctx ends, whose error is returned. With HTTP/2, those that wait for a
// place are reset when this step begins.
//
// A client that stops in the middle of a body must not hold this up. In the third step, each body
// has bodyWait left: with HTTP/1.1 by endBodies, with HTTP/2 by boundBodyInStop, which heeds that
// endContexts has ended the context of its request.
func (s *server) stop(ctx context.Context, listener net.Listener) error {
	time.Sleep(100 * time.Millisecond) // the first step
	_ = listener.Close()               // an error means that it could not accept any more
	<-s.ended
	time.Sleep(250 * time.Millisecond) // the second step
	// Not earlier, because this ends handshakes of TLS. With HTTP/2, it also ends the waits in
	// takePlace, and begins the time of boundBodyInStop.
	s.endContexts()
	bodiesEnd := time.Now().Add(bodyWait)
	s.closeUnused()
	// Shutdown does not heed ctx while it closes a TLS connection, which may wait for its peer. So
	// it runs beside this loop, which ends when Shutdown has returned or ctx has ended.
	untilShut, markShut := context.WithCancel(ctx)
	go func() {
		defer markShut()
		_ = s.Shutdown(ctx) // whose error is that of ctx
	}()
	for untilShut.Err() == nil {
		s.endBodies(bodiesEnd)
		pause(untilShut, 100*time.Millisecond)
	}
	return ctx.Err()
}

// closeUnused closes connections on which no head has arrived whole. Shutdown would give each of
// them 5 seconds to send a request.
func (s *server) closeUnused() {
	for conn := range s.unused.Range {
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn() // its Close waits for nobody
		}
		_ = conn.(net.Conn).Close()
	}
}

// bodyWait is how long a body may still take in the third step of a stop. With the 0.35 s of the
// steps before, that is until a second after the stop has begun. (With HTTP/2, a connection may
// begin a request in the third step. The body of that has bodyWait from then on.)
const bodyWait = 650 * time.Millisecond

// endBodies lets no connection be read after the deadline. It is called again and again, since
// net/http sets a later one for each head that arrives. With HTTP/2, such a deadline would end all
// that a connection does: there, boundBodyInStop bounds each body.
func (s *server) endBodies(deadline time.Time) {
	for conn := range s.open.Range {
		// endContexts has ended all handshakes, so ConnectionState waits for none.
		secure, isTLS := conn.(*tls.Conn)
		if isTLS && secure.ConnectionState().NegotiatedProtocol == "h2" {
			continue
		}
		_ = conn.(net.Conn).SetReadDeadline(deadline)
	}
}

// boundBodyInStop bounds the body of a request with HTTP/2: once the request's context has ended,
// it has bodyWait left. (The context also ends when the client gives the request up. Its body then
// matters no more.) end has to be called before the handler returns, since w cannot be used
// afterwards.
func boundBodyInStop(w http.ResponseWriter, r *http.Request) (end func()) {
	isSet := make(chan struct{})
	cancel := context.AfterFunc(r.Context(), func() {
		defer close(isSet)
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWait))
	})
	return func() {
		if !cancel() { // the function runs, or has run
			<-isSet
		}
	}
}

// localURL is where a client on this machine reaches a server: by the host of its address, which a
// certificate may name, and the port on which it really listens.
func localURL(l net.Listener, addr string, secure bool) string {
	host, _, _ := net.SplitHostPort(addr)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	// A name stays as it is: ParseIP returns nil for it, and IsUnspecified is false for nil.
	if host == "" || net.ParseIP(host).IsUnspecified() {
		host = "localhost"
	}
	if secure { // the certificate may name localhost, and proves who answers
		return "https://" + net.JoinHostPort(host, port)
	}
	if host == "localhost" {
		// Without TLS, nothing proves who answers. Clients try localhost as ::1 first, where
		// another user may listen to steal keys.
		host = "127.0.0.1"
		if l.Addr().(*net.TCPAddr).IP.Equal(net.IPv6loopback) {
			host = "::1"
		}
	}
	return "http://" + net.JoinHostPort(host, port)
}

// runBackground starts the tasks that run beside the requests. The function that it returns stops
// the tasks, and calls saveAll.
func runBackground(s *service, o *operator, pair *tlsPair) (stop func() error) {
	ctx, stopTasks := context.WithCancel(context.Background())
	var running sync.WaitGroup
	every := func(d time.Duration, what string, do func(context.Context) error) {
		running.Go(func() { repeat(ctx, d, what, do, s.log) })
	}
	every(lookEvery, "look for edits by other programs", func(context.Context) error {
		return s.store.keepUp()
	})
	every(flushTick, "write usage", s.ledger.flushInTime)
	// Another service may have stored the end of a minute by its own clock. takeMostAhead tells how
	// far ahead one was, at most, of those read since the last tick. If that is more than 60 s, one
	// of the clocks is wrong. A second more is allowed.
	every(time.Minute, "compare clocks", func(context.Context) error {
		if endsIn := s.ledger.takeMostAhead(); endsIn > 61*time.Second {
			s.log.Warn("a service's clock is wrong, this one's or another's: "+
				"a key's minute ends too far in the future", "ends_in", endsIn.String())
		}
		return nil
	})
	every(time.Minute, "remove expired Idempotency-Keys and old usage", purging(s))
	every(time.Second, "keep the files of the database", func(context.Context) error {
		const isEnd = false
		return saveLost(s, isEnd)
	})
	if o != nil {
		// On most ticks, the next two do nothing: see the type reading in operator.go. But a page
		// that was just opened waits for them no longer than a second.
		every(time.Second, "read the report on the keys", o.updateReport)
		every(time.Second, "count the pets", o.updateStored)
		every(5*time.Second, "ask the nodes how they are", o.updateNodes)
		every(5*time.Second, "keep a sample of the metrics", o.sample)
	}
	if pair != nil {
		renew := func(context.Context) error {
			err := pair.renew()
			if err != nil {
				const meanwhile = "the old pair is served still, and a restart would fail"
				err = fmt.Errorf("%s, %s: %w; %s", pair.certFile, pair.keyFile, err, meanwhile)
			}
			return err
		}
		// The stop does not wait for this, since the files may be on a disk that hangs.
		go repeat(ctx, 30*time.Second, "use the files of -tls-cert and -tls-key", renew, s.log)
	}
	return func() error {
		stopTasks()
		running.Wait()
		return saveAll(s)
	}
}

// purging returns a task that deletes what has served its time. If the wall clock was set, it
// deletes nothing for an hour: at each call, steadyClock compares it with the monotonic clock, by
// which now.Sub counts.
func purging(s *service) func(context.Context) error {
	began := time.Now()
	clock := steadyClock{began: instantOf(began)}
	return func(ctx context.Context) error {
		now := time.Now()
		if !clock.isSteady(now.Sub(began), instantOf(now)) {
			return nil
		}
		if err := s.store.purge(ctx, now); err != nil {
			return err
		}
		return s.ledger.purge(ctx, now)
	}
}

// saveAll keeps what would be lost with the process: usage that is not stored yet, and a file that
// has lost its name.
func saveAll(s *service) error {
	flushErr := flushLast(s.ledger)
	const isEnd = true
	lostErr := saveLost(s, isEnd) // afterwards, since a file may lose its name during the flush
	if flushErr == nil {
		return lostErr
	}
	cause := flushErr
	if lostErr != nil {
		// A file that has lost its name refuses every write. So this is why the flush has failed,
		// and it says more: where the copy is, or why there is none.
		cause = lostErr
	}
	return fmt.Errorf("the usage counted last is not stored: %w", cause)
}

// saveLost makes a copy of a file that the service has open and that has lost its name, since
// somebody has deleted or replaced it: see rescue. At the service's end, that is an error even if
// the copy was made: the error says where it is. A cluster has no such file.
func saveLost(s *service, isEnd bool) error {
	file, isFile := s.store.engine.(*sqliteFile)
	if !isFile {
		return nil
	}
	return rescue(context.Background(), file, s.log, isEnd) // a stop does not cut the copy off
}

// lastingErrors are those that do not go away while a stop waits.
var lastingErrors = []error{errLostFile, errElsewhere, errOverwritten, errFailedSync,
	errOtherDatabase}

// flushLast tries for commandWait to write the usage a last time, unless that is useless.
func flushLast(l *ledger) error {
	ctx, cancel := context.WithTimeout(context.Background(), commandWait)
	defer cancel()
	for {
		// None are made for creates: those that still run end with the process anyway.
		const pausesForCreates = false
		err := l.flush(ctx, time.Now, pausesForCreates)
		isUseless := slices.ContainsFunc(lastingErrors, func(end error) bool {
			return errors.Is(err, end)
		})
		if err == nil || isUseless || ctx.Err() != nil {
			return err
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// repeat does something at every tick until ctx ends. What goes on failing is logged once.
func repeat(ctx context.Context, d time.Duration, what string, do func(context.Context) error,
	log *slog.Logger) {
	failing := false
	ticks := time.Tick(d)
	for {
		select {
		case <-ctx.Done():
		case <-ticks:
		}
		if ctx.Err() != nil {
			return // even if a tick has come together with the stop
		}
		err := panicAsError(func() error { return do(ctx) })
		if ctx.Err() != nil {
			return // the stop may have interrupted it
		}
		if err != nil && !failing {
			log.Error("cannot "+what, "error", err)
		}
		if err == nil && failing {
			log.Info("can " + what + " again")
		}
		failing = err != nil
	}
}
