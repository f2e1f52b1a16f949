package main

// petstore as tests run it: within their own process, as a process of its own, or in fake time,
// with pipes in the place of connections.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// longWait bounds every wait for another goroutine or process. No test that passes comes near it.
const longWait = 30 * time.Second

// asPetstore in the environment makes the test binary behave as petstore.
const asPetstore = "TEST_AS_PETSTORE"

// ownID as LISTEN_PID stands for the process id of the program, which its parent cannot know.
const ownID = "self"

func init() {
	if os.Getenv(asPetstore) == "" {
		return
	}
	if os.Getenv("LISTEN_PID") == ownID {
		_ = os.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid()))
	}
	main()
	os.Exit(0)
}

// serverLine is a line of the log.
type serverLine struct {
	Level, Msg, Address, Debug, Error, Request string
	Requests, Key                              int
}

// serverLog takes a JSON log, and hands its lines out as they come.
type serverLog struct {
	logBuffer
	gate  sync.Mutex // while it is locked, no line is taken
	lines chan serverLine
}

func newServerLog() *serverLog {
	return &serverLog{lines: make(chan serverLine, 10000)}
}

func (l *serverLog) Write(p []byte) (int, error) {
	l.gate.Lock()
	defer l.gate.Unlock()
	_, _ = l.logBuffer.Write(p)
	var line serverLine
	if err := json.Unmarshal(p, &line); err != nil {
		line = serverLine{Level: "ERROR", Msg: "no JSON: " + string(p)}
	}
	l.lines <- line
	return len(p), nil
}

// testServer is a service that startServer has started.
type testServer struct {
	t       testing.TB
	log     *serverLog
	stdout  bytes.Buffer // to be read once it is ready
	address string       // ends in /v1
	debug   string       // the debug address, if there is one
	key     string       // that it printed, if it did
	cancel  context.CancelFunc
	ended   chan error
}

// environOf is an environment as a process has it.
func environOf(variables map[string]string) (environ []string) {
	for name, value := range variables {
		environ = append(environ, name+"="+value)
	}
	return environ
}

// await reads the log up to a message.
func (s *testServer) await(message string) serverLine {
	s.t.Helper()
	deadline := time.After(longWait)
	for {
		select {
		case line := <-s.log.lines:
			if line.Msg == message {
				return line
			}
		case err := <-s.ended:
			s.t.Fatalf("the server ended without saying %q: %v\n%s", message, err,
				brief(s.log.String()))
		case <-deadline:
			s.t.Fatalf("the server does not say %q\n%s", message, brief(s.log.String()))
		}
	}
}

// stop ends the server as a signal does, and checks that it went well.
func (s *testServer) stop() {
	s.t.Helper()
	s.cancel()
	select {
	case err := <-s.ended: // nil, too, when it was stopped before
		if err != nil {
			s.t.Errorf("the server ended with %v", err)
		}
	case <-time.After(longWait):
		s.t.Error("the server does not stop")
	}
	unexpected := regexp.MustCompile(`.*"level":"(ERROR|WARN)".*`)
	if lines := unexpected.FindAllString(s.log.String(), -1); lines != nil {
		s.t.Errorf("unexpected in the log, the first of %d: %s", len(lines), brief(lines[0]))
	}
}

// testClient keeps no connection open that a stopping server would wait for.
var testClient = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: longWait},
	Timeout:   longWait,
}

func (s *testServer) list(key string) (*http.Response, string) {
	s.t.Helper()
	return send(s.t, "GET", s.address+"/pets", key, "")
}

func (s *testServer) post(body string) (*http.Response, string) {
	s.t.Helper()
	return send(s.t, "POST", s.address+"/pets", s.key, body)
}

// program is this test binary as petstore.
func program(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), longWait)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(),
		asPetstore+"=1",
		"PETSTORE_ADDR=127.0.0.1:0",
	)
	return cmd
}

// wantExit runs a program to its end, and checks its exit status and, by a regular expression, what
// it says on stderr.
func wantExit(t testing.TB, cmd *exec.Cmd, status int, stderr string) {
	t.Helper()
	var said strings.Builder
	cmd.Stderr = &said
	err := cmd.Run()
	got := cmd.ProcessState.ExitCode()
	if got != status || !regexp.MustCompile(stderr).MatchString(said.String()) {
		t.Errorf("%v: status %d, %v, stderr %q; want %d and %s",
			cmd.Args[1:], got, err, &said, status, stderr)
	}
}

// testProcess is a server in a process of its own.
type testProcess struct {
	*exec.Cmd
	t                   testing.TB
	address, debug, key string
	log                 *bufio.Scanner
}

// startProcess starts a server with a key on a new database, which is its last argument.
func startProcess(t testing.TB, flags ...string) *testProcess {
	t.Helper()
	keys := newKeys(t)
	key := keys.mint("create")
	p := &testProcess{
		t:   t,
		Cmd: program(t, append(flags, "-db", keys.db)...),
		key: key,
	}
	p.start()
	return p
}

// start returns when the server is ready.
func (p *testProcess) start() {
	p.t.Helper()
	stderr, err := p.StderrPipe()
	must(p.t, err)
	must(p.t, p.Start())
	p.t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	p.log = bufio.NewScanner(stderr)
	ready := p.await("ready")
	p.address, p.debug = ready.Address, ready.Debug
}

// await reads the log up to a message.
func (p *testProcess) await(message string) (line serverLine) {
	p.t.Helper()
	for p.log.Scan() {
		if err := json.Unmarshal(p.log.Bytes(), &line); err != nil || line.Level == "ERROR" {
			p.t.Errorf("the log says %s", p.log.Bytes())
		}
		if line.Msg == message {
			return line
		}
	}
	p.t.Fatalf("the server does not say %q", message)
	return line
}

// pipeListener is a listener in fake time: a connection for each call of pipe.
type pipeListener struct {
	arriving chan net.Conn
	closing  context.Context
	close    context.CancelFunc
}

func listenInFakeTime(t testing.TB) *pipeListener {
	l := &pipeListener{arriving: make(chan net.Conn)}
	l.closing, l.close = context.WithCancel(t.Context())
	return l
}

func (l *pipeListener) Addr() net.Addr {
	return &net.TCPAddr{}
}

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.arriving:
		return conn, nil
	case <-l.closing.Done():
		return nil, net.ErrClosed
	}
}

// serverEnd is the server's end of a connection.
type serverEnd struct{ net.Conn }

func (serverEnd) CloseWrite() error { return nil }

// pipe connects, and returns the client's end.
func (l *pipeListener) pipe() net.Conn {
	ours, theirs := net.Pipe()
	l.arriving <- serverEnd{theirs}
	return ours
}

// pipeClient is a client's end of a connection, which reads all responses.
type pipeClient struct {
	net.Conn
	responses chan *http.Response
	closed    chan bool // by the server
}

func (l *pipeListener) dial() *pipeClient {
	c := &pipeClient{
		Conn:      l.pipe(),
		responses: make(chan *http.Response, 10),
		closed:    make(chan bool),
	}
	go func() {
		defer close(c.closed)
		reader := bufio.NewReader(c.Conn)
		for {
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			c.responses <- response
		}
	}()
	return c
}

func (c *pipeClient) send(path string) {
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
}

// open reports whether the server has not closed the connection by now.
func (c *pipeClient) open() bool {
	synctest.Wait()
	select {
	case <-c.closed:
		return false
	default:
		return true
	}
}

// startFront starts a server on pipes.
func startFront(t testing.TB, pair *tlsPair, handler http.HandlerFunc) (*server, *pipeListener) {
	t.Helper()
	l := listenInFakeTime(t)
	s := newServer(testLog, pair, handler)
	go s.serve(l)
	return s, l
}

// tlsClient is a client that trusts every certificate.
func tlsClient(raw net.Conn, protocol string) *tls.Conn {
	return tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true,
		NextProtos:         []string{protocol},
	})
}
