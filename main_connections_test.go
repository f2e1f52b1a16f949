package main

// Connections in fake time, and what peers may do with them.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
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
	go func() { _ = s.serve(l) }()
	return s, l
}

// recordClient is a TLS client that makes its records itself, with AES-128 and SHA-256.
type recordClient struct {
	*tls.Conn // for reading
	raw       net.Conn
	secret    []byte // of the records that it sends
	sent      uint64 // records with this secret
}

// secretLog takes the client's secret from the key log of a TLS connection.
type secretLog struct{ secret []byte }

func (l *secretLog) Write(line []byte) (int, error) {
	words := strings.Fields(string(line))
	if words[0] == "CLIENT_TRAFFIC_SECRET_0" {
		l.secret, _ = hex.DecodeString(words[2])
	}
	return len(line), nil
}

func shakeHands(t testing.TB, raw net.Conn, protocol string) *recordClient {
	t.Helper()
	log := &secretLog{}
	conn := tls.Client(raw, &tls.Config{ //nolint:gosec // whose certificate it is does not matter
		InsecureSkipVerify: true, KeyLogWriter: log, NextProtos: []string{protocol},
	})
	must(t, conn.Handshake())
	state := conn.ConnectionState()
	if state.CipherSuite != tls.TLS_AES_128_GCM_SHA256 || state.NegotiatedProtocol != protocol {
		suite := tls.CipherSuiteName(state.CipherSuite)
		t.Fatalf("the connection uses %s and %q", suite, state.NegotiatedProtocol)
	}
	return &recordClient{Conn: conn, raw: raw, secret: log.secret}
}

// derive is HKDF-Expand-Label of RFC 8446, section 7.1, without a context.
func (c *recordClient) derive(label string, length int) []byte {
	label = "tls13 " + label
	info := "\x00" + string([]byte{byte(length), byte(len(label))}) + label + "\x00"
	key, err := hkdf.Expand(sha256.New, c.secret, info, length)
	if err != nil {
		panic(err)
	}
	return key
}

// sendRecord sends a record; its types are 22 for a handshake and 23 for data.
func (c *recordClient) sendRecord(t testing.TB, contentType byte, content string) {
	t.Helper()
	block, err := aes.NewCipher(c.derive("key", 16))
	must(t, err)
	aead, err := cipher.NewGCM(block)
	must(t, err)
	nonce := c.derive("iv", 12)
	count := binary.BigEndian.AppendUint64(make([]byte, 4), c.sent)
	subtle.XORBytes(nonce, nonce, count)
	c.sent++
	plain := append([]byte(content), contentType)
	header := binary.BigEndian.AppendUint16([]byte{23, 3, 3}, uint16(len(plain)+aead.Overhead()))
	_, err = c.raw.Write(append(header, aead.Seal(nil, nonce, plain, header)...))
	must(t, err)
}

// send sends data.
func (c *recordClient) send(t testing.TB, content string) {
	t.Helper()
	c.sendRecord(t, 23, content)
}

// askForKeys sends a KeyUpdate that asks for one in return (RFC 8446, section 4.6.3).
func (c *recordClient) askForKeys(t testing.TB) {
	t.Helper()
	c.sendRecord(t, 22, "\x18\x00\x00\x01\x01")
	c.secret, c.sent = c.derive("traffic upd", 32), 0
}

// getOnce sends a request and reads its response.
func (c *recordClient) getOnce(t testing.TB) {
	t.Helper()
	c.send(t, getRequest)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(t, err)
	response.Body.Close()
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

// TestPeersThatReadNothingAreCutOff, also where net/http has set no deadline for what is sent.
func TestPeersThatReadNothingAreCutOff(t *testing.T) {
	pair := testPair(t)
	const soon = idleTimeout + 10*time.Second
	for name, c := range map[string]struct {
		protocol string
		send     func(t testing.TB, c *recordClient)
		atMost   time.Duration
	}{
		"before a request": {"http/1.1", func(t testing.TB, c *recordClient) {
			c.askForKeys(t)
		}, soon},
		"after a response": {"http/1.1", func(t testing.TB, c *recordClient) {
			c.getOnce(t)
			time.Sleep(time.Minute)
			c.askForKeys(t)
		}, soon},
		"with HTTP/2, new keys": {"h2", func(t testing.TB, c *recordClient) {
			c.send(t, http2Begin)
			must(t, c.SetReadDeadline(time.Now().Add(time.Second)))
			_, _ = io.Copy(io.Discard, c) // the settings of the service
			c.askForKeys(t)
		}, soon},
		"with HTTP/2, responses": {"h2", func(t testing.TB, c *recordClient) {
			c.send(t, http2Begin)
			c.send(t, http2Request)
		}, 17 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, l := startFront(t, pair, http.NotFound)
				peer := shakeHands(t, l.pipe(), c.protocol)
				defer peer.raw.Close()
				ends := time.Now().Add(c.atMost)
				c.send(t, peer)
				time.Sleep(time.Until(ends))
				synctest.Wait()
				if s.open.Load() > 0 {
					t.Errorf("after %v it is still open", c.atMost)
				}
				peer.raw.Close()
				must(t, s.stop(t.Context(), l))
			})
		})
	}
}

// TestTheLogOfConnectionsIsBounded: what net/http logs quotes strangers.
func TestTheLogOfConnectionsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newServer(newLogger(&log, "json", slog.LevelInfo), nil, nil)
		logged := func(lines ...string) (messages []string) {
			log.Reset()
			for _, line := range lines {
				s.ErrorLog.Print(line)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			for line := range strings.Lines(log.String()) {
				_, message, _ := strings.Cut(line, `"level":"WARN","msg":"`)
				messages = append(messages, message)
			}
			return messages
		}

		const short = "http: TLS handshake error from 192.0.2.1:1: EOF"
		if got := logged(short); len(got) != 1 || got[0] != short+"\"}\n" {
			t.Errorf("a short line becomes %q", got)
		}
		long := strings.Repeat("x", 1000)
		key := "pet_live_" + strings.Repeat("a", 38)
		password := "https://user:" + long + "@host" + strings.Repeat("ä", 1<<16)
		for _, line := range logged(long+key+long, password) {
			if len(line) > 1100 || !utf8.ValidString(line) || !strings.Contains(line, "…") {
				t.Errorf("a long line has %d bytes: %s", len(line), line)
			}
			if strings.Contains(line, "aaa") || strings.Contains(line, "user") {
				t.Errorf("a secret is logged: %s", line)
			}
		}
		got := logged(slices.Repeat([]string{"hello"}, 300)...)
		if len(got) != 10 {
			t.Errorf("of 300 lines at once the log gets %q", got)
		}
		got = logged("hello")
		if len(got) != 1 {
			t.Errorf("a second later a line becomes %q", got)
		}
	})
}
