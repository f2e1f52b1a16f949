package main

// Connections in fake time, and what peers may do with them.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

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
	c := &pipeClient{l.pipe(), make(chan *http.Response, 10), make(chan bool)}
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
	s := newServer(slog.New(slog.DiscardHandler), pair, handler)
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

// Requests on the wire. The first two of HTTP/2 begin a connection without settings, and ask for /
// on the first stream.
const (
	http2Begin   = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	http2Request = "\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x84\x87\x41\x01x"
	getRequest   = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	postHead     = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
)

func TestSlowClientsAreCutOff(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }
	for name, c := range map[string]struct {
		sent  string
		reads bool // what is sent back
		after time.Duration
	}{
		"in the middle of a head":         {getRequest[:20], true, 5 * time.Second},
		"in the middle of a body":         {postHead + "abc", true, 15 * time.Second},
		"that does not read the response": {getRequest, false, 30 * time.Second},
		"after a response":                {getRequest, true, 2 * time.Minute},
		"in the middle of a second head":  {getRequest + getRequest[:20], true, 5 * time.Second},
		"in the middle of a second body":  {postHead + "abcd" + postHead, true, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, l := startFront(t, nil, echo)
				began := time.Now()
				conn := l.pipe()
				if c.reads {
					go func() { _, _ = io.WriteString(conn, c.sent) }()
					_, _ = io.Copy(io.Discard, conn)
				} else {
					// Of what follows the request, the server reads one byte meanwhile.
					for _, sent := range []string{c.sent, "x", "y"} {
						_, _ = io.WriteString(conn, sent)
					}
				}
				if took := time.Since(began); took != c.after {
					t.Errorf("the connection ends after %v, want %v", took, c.after)
				}
				must(t, s.stop(t.Context(), l))
			})
		})
	}
}

func TestHeadsAreBounded(t *testing.T) {
	if got := newServer(testLog, nil, nil).MaxHeaderBytes; got != 16<<10 { // as the README says
		t.Errorf("a head may have %d bytes", got)
	}
}

// TestPeersThatReadNothingAreCutOff, also with HTTP/2, where one connection takes many requests.
func TestPeersThatReadNothingAreCutOff(t *testing.T) {
	pair := testPair(t)
	synctest.Test(t, func(t *testing.T) {
		s, l := startFront(t, pair, http.NotFound)
		raw := l.pipe()
		peer := tlsClient(raw, "h2")
		_, _ = io.WriteString(peer, http2Begin)
		_, _ = io.WriteString(peer, http2Request)
		time.Sleep(17 * time.Second)
		if raw.SetDeadline(time.Now()) == nil { // it is an error once the server has closed
			t.Error("the connection is still open")
		}
		must(t, s.stop(t.Context(), l))
	})
}

// TestTheLogOfConnectionsIsBounded: what net/http logs quotes strangers.
func TestTheLogOfConnectionsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newServer(newLogger(&log, "json", slog.LevelInfo), nil, nil)
		long := strings.Repeat("x", 980)
		key := "pet_live_" + strings.Repeat("a", 38)
		for range 300 {
			s.ErrorLog.Print(long + key + long)
		}
		lines := strings.Count(log.String(), "\n")
		if lines != 1 || log.Len() > 1100 || strings.Contains(log.String(), "aaa") {
			t.Errorf("300 lines at once become %s", &log)
		}
		time.Sleep(100 * time.Millisecond)
		s.ErrorLog.Print("hello")
		if !strings.Contains(log.String(), `"level":"WARN","msg":"hello`) {
			t.Errorf("a moment later a line becomes %s", &log)
		}
	})
}

// TestAConnectionIsUnusedUntilARequestOrItsEnd: probes of balancers and scans of ports end many
// connections without a request, and those must not stay in memory.
func TestAConnectionIsUnusedUntilARequestOrItsEnd(t *testing.T) {
	for _, next := range []http.ConnState{http.StateActive, http.StateClosed} {
		s := &server{}
		conn, _ := net.Pipe()
		s.note(conn, http.StateNew)
		if _, unused := s.unused.Load(conn); !unused {
			t.Error("a new connection does not count as unused")
		}
		s.note(conn, next)
		if _, unused := s.unused.Load(conn); unused {
			t.Errorf("a connection that is %v counts as unused", next)
		}
	}
}
