package e2e

// HTTP/2, which comes with TLS: clients that abuse what it adds, and what a
// connection makes the service hold.

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// identity is a certificate for this machine that has signed itself, and what
// trusts it.
type identity struct {
	cert, key []byte // PEM
	roots     *x509.CertPool
}

// testIdentity is that of the servers of httptest.
var testIdentity = sync.OnceValue(func() identity {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pair := s.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return identity{
		cert:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		key:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		roots: roots,
	}
})

// writeCertificate writes the certificate and its key into one file.
func writeCertificate(t *testing.T) (file string) {
	t.Helper()
	id := testIdentity()
	file = filepath.Join(t.TempDir(), "certificate.pem")
	noError(t, os.WriteFile(file, slices.Concat(id.cert, id.key), 0o600))
	return file
}

// maxStreams is how many requests the service takes on a connection, and maxHandled how many of
// them it handles at once.
const (
	maxStreams = 100
	maxHandled = 10
)

// transport makes connections that trust the test's certificate, and speaks
// HTTP/2 over TLS.
func transport() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: testIdentity().roots},
		ForceAttemptHTTP2: true}
}

// startTLS runs the program with TLS, and so with HTTP/2.
func startTLS(t *testing.T, flags ...string) *server {
	t.Helper()
	certificate := writeCertificate(t)
	return start(t, append(flags, "-tls-cert", certificate, "-tls-key", certificate)...)
}

// frames writes HTTP/2 frames, many to a write, over a connection of its own.
type frames struct {
	*http2.Framer
	buffer *bufio.Writer
	conn   *tls.Conn
	header bytes.Buffer
	hpack  *hpack.Encoder
	server *server
}

// openHTTP2 connects and sends the preface with the settings.
func (s *server) openHTTP2(settings ...http2.Setting) (*frames, error) {
	raw, err := s.dial()
	if err != nil {
		return nil, err
	}
	conn, err := tlsOver(raw, "h2")
	if err != nil {
		return nil, err
	}
	return s.beginHTTP2(conn, settings...)
}

// beginHTTP2 sends the preface with the settings.
func (s *server) beginHTTP2(conn *tls.Conn, settings ...http2.Setting) (*frames, error) {
	f := &frames{conn: conn, buffer: bufio.NewWriterSize(conn, 16<<10), server: s}
	f.Framer = http2.NewFramer(f.buffer, conn)
	f.hpack = hpack.NewEncoder(&f.header)
	_, err := io.WriteString(f.buffer, http2.ClientPreface)
	return f, errors.Join(err, f.WriteSettings(settings...), f.buffer.Flush())
}

// list asks for a page on a stream, with more headers.
func (f *frames) list(stream uint32, end bool, more ...hpack.HeaderField) error {
	return f.head(stream, end, append([]hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "petstore"}, {Name: ":path", Value: "/v1/pets?limit=100"},
		{Name: "authorization", Value: f.server.bearer()},
	}, more...)...)
}

// lastPing is the ping that tells that all before it was taken.
var lastPing = [8]byte{'l', 'a', 's', 't'}

// toLastPing reads until the service has answered the last ping, or tells why
// it has ended the connection instead.
func (f *frames) toLastPing() error {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *http2.PingFrame:
			if frame.IsAck() && frame.Data == lastPing {
				return nil
			}
		case *http2.GoAwayFrame:
			return http2.ConnectionError(frame.ErrCode)
		}
	}
}

// abuse is an attack with frames.
type abuse struct {
	what     string
	settings []http2.Setting
	mute     bool // does not read what the service sends
	ended    bool // the service must end the connection
	times    int
	attack   func(f *frames, i uint32) error
}

var abuses = []abuse{
	{what: "streams that are reset at once", times: 20_000,
		attack: func(f *frames, i uint32) error {
			return errors.Join(f.list(2*i+1, true),
				f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		}},
	{what: "more streams than are allowed", times: 20_000, attack: func(f *frames, i uint32) error {
		return f.list(2*i+1, false)
	}},
	{what: "answers that are not taken",
		settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, times: 250,
		attack: func(f *frames, i uint32) error { return f.list(2*i+1, true) }},
	{what: "headers that do not end", ended: true, times: 100_000,
		attack: func(f *frames, i uint32) error {
			if i == 0 {
				return f.halfAHead()
			}
			f.header.Reset()
			_ = f.hpack.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("a", 1000)})
			return f.WriteContinuation(3, false, f.header.Bytes())
		}},
	{what: "headers that unfold to 32 MB", times: 100, attack: func(f *frames, i uint32) error {
		// from the second time on a byte or two
		large := hpack.HeaderField{Name: "x", Value: strings.Repeat("a", 4000)}
		return f.list(2*i+1, true, slices.Repeat([]hpack.HeaderField{large}, 8<<10)...)
	}},
	{what: "pings whose answers are not read", mute: true, ended: true, times: 1_000_000,
		attack: func(f *frames, i uint32) error {
			return f.WritePing(false, [8]byte{})
		}},
	{what: "settings whose acknowledgements are not read", mute: true, times: 100_000,
		attack: func(f *frames, i uint32) error {
			return f.WriteSettings()
		}},
	{what: "empty pieces of a body", times: 100_000, attack: func(f *frames, i uint32) error {
		if i == 0 {
			return f.list(1, false)
		}
		return f.WriteData(1, false, nil)
	}},
	{what: "windows that grow by a byte", times: 100_000, attack: func(f *frames, i uint32) error {
		return f.WriteWindowUpdate(0, 1)
	}},
}

// run is the attack, until the service has taken all of it or ended the connection.
func (a abuse) run(t *testing.T, s *server) {
	f, err := s.openHTTP2(a.settings...)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.conn.Close()
	end := make(chan error, 1)
	read := func() { end <- f.toLastPing() }
	if !a.mute {
		go read()
	}
	sent := 0
	for ; err == nil && sent < a.times; sent++ {
		err = a.attack(f, uint32(sent))
	}
	err = errors.Join(err, f.WritePing(false, lastPing), f.buffer.Flush())
	if a.mute {
		go read()
	}
	err = errors.Join(err, <-end)
	t.Logf("%d of %d were sent; the end: %v", sent, a.times, err)
	if errors.Is(err, os.ErrDeadlineExceeded) || a.ended && err == nil {
		t.Errorf("the service should take it or end the connection (and must end it: %v)", a.ended)
	}
}

// TestAbusedHTTP2HurtsNobody has connections do what the protocol allows and no client
// does. The service may end them; it must not grow or slow down.
func TestAbusedHTTP2HurtsNobody(t *testing.T) {
	s := startTLS(t, debugFlags...)
	leavesNothing(t, s, func() {
		for _, a := range abuses {
			t.Run(a.what, func(t *testing.T) {
				for range soak(1) {
					unnoticed(t, normal(t, s, 20), beside(t, s, func() { a.run(t, s) }))
				}
			})
		}
	})
}

// setting is one of the service's settings, which come first.
func (f *frames) setting(id http2.SettingID) (uint32, error) {
	frame, err := f.ReadFrame()
	if err != nil {
		return 0, err
	}
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok {
		return 0, fmt.Errorf("the first frame is %v", frame)
	}
	value, ok := settings.Value(id)
	if !ok {
		return 0, fmt.Errorf("the service does not set %v", id)
	}
	return value, nil
}

// untilReset reads until so many streams have been reset.
func (f *frames) untilReset(streams int) error {
	for streams > 0 {
		frame, err := f.read()
		if err != nil {
			return fmt.Errorf("%d are still open: %w", streams, err)
		}
		if _, ok := frame.(*http2.RSTStreamFrame); ok {
			streams--
		}
	}
	return nil
}

// hoarders is how many connections hold what they can at once. Each may make the service hold 5 MiB
// with HTTP/2, and 2 MiB without.
const hoarders = 60

// hoard makes the service hold as much as it can over one connection, without a key.
type hoard struct {
	what string
	most int64 // MiB for a connection
	hold func(s *server) (net.Conn, error)
}

// shortFields are as many headers as the service takes: with HTTP/2, each counts 32 bytes more.
var shortFields = func() (fields []hpack.HeaderField) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	for i := range 470 {
		name := string([]byte{letters[i/len(letters)], letters[i%len(letters)]})
		fields = append(fields, hpack.HeaderField{Name: name})
	}
	return fields
}()

var (
	longPath = "/v1/pets/" + strings.Repeat("%41", 5400) // its decoded form is held beside it
	largest  = hpack.HeaderField{Name: "content-length", Value: "1048576"}

	announced = hpack.HeaderField{Name: "trailer", Value: "x"}
)

var hoards = []hoard{
	{"responses that have no window", 5, func(s *server) (net.Conn, error) {
		return s.hoardStreams("/v1/pets", true)
	}},
	{"many headers and trailers, and bodies that nobody wants", 5,
		func(s *server) (net.Conn, error) {
			fields := append(slices.Clone(shortFields), largest, announced)
			return s.hoardStreams("/v1/pets", false, fields...)
		}},
	{"long paths, and bodies that nobody wants", 5, func(s *server) (net.Conn, error) {
		return s.hoardStreams(longPath, false, largest)
	}},
	{"large responses and pings, of which none is read", 5, (*server).hoardPings},
	{"a head of HTTP/1.1 that does not end", 2, func(s *server) (net.Conn, error) {
		raw, err := s.dial()
		if err != nil {
			return nil, err
		}
		conn, err := tlsOver(raw, "http/1.1")
		if err != nil {
			return nil, err
		}
		var head strings.Builder
		for i := range 3600 {
			fmt.Fprintf(&head, "%03x:\n", i)
		}
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n"+head.String())
		return conn, err
	}},
}

// hoardStreams asks on all streams for what it gives no window, and answers pings. Unless the heads
// are the end, ten requests have bodies, as long as the service allows, and trailers, and the
// others are just small enough to wait. (The service ends connections that go on with larger ones.)
func (s *server) hoardStreams(
	path string, end bool, more ...hpack.HeaderField,
) (net.Conn, error) {
	f, err := s.openHTTP2(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	if err != nil {
		return nil, err
	}
	streams, err := f.setting(http2.SettingMaxConcurrentStreams)
	if err != nil {
		return nil, err
	}
	window, err := f.window()
	for i := range streams {
		if i >= maxHandled && !end {
			small := hpack.HeaderField{Name: "content-length", Value: "4096"}
			fields := append(slices.Clone(shortFields[:50]), small)
			err = errors.Join(err, f.ask(2*i+1, "/v1/pets/"+strings.Repeat("%41", 50), false,
				fields...))
			continue
		}
		err = errors.Join(err, f.ask(2*i+1, path, end, more...))
		if end {
			continue
		}
		for part := range slices.Chunk(make([]byte, window/maxHandled), 16<<10) {
			err = errors.Join(err, f.WriteData(2*i+1, false, part))
		}
		err = errors.Join(err, f.head(2*i+1, true, shortFields...)) // trailers
	}
	err = errors.Join(err, f.buffer.Flush())
	go func() { _ = f.untilReset(math.MaxInt) }()
	return f.conn, err
}

// window is how much the service takes of bodies before a handler reads them.
func (f *frames) window() (uint32, error) {
	window := uint32(65_535) // RFC 9113 section 6.9.2
	if err := errors.Join(f.WritePing(false, lastPing), f.buffer.Flush()); err != nil {
		return 0, err
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return 0, err
		}
		switch frame := frame.(type) {
		case *http2.WindowUpdateFrame:
			window += frame.Increment
		case *http2.PingFrame:
			return window, nil
		}
	}
}

// hoardPings fills the connection with responses that it does not read, and then has
// the service queue nearly as many responses to pings as net/http allows, 10,000.
func (s *server) hoardPings() (net.Conn, error) {
	f, err := s.openHTTP2()
	if err != nil {
		return nil, err
	}
	err = f.WriteWindowUpdate(0, 1<<30)
	for i := range uint32(240) {
		stream := 2*i + 1
		err = errors.Join(err, f.ask(stream, "/openapi.json", true), f.WriteWindowUpdate(stream,
			1<<30))
		if i%maxHandled == 0 { // the connection would end if more were open
			err = errors.Join(err, f.buffer.Flush())
			time.Sleep(20 * time.Millisecond)
		}
	}
	for range 9000 {
		err = errors.Join(err, f.WritePing(false, [8]byte{}))
	}
	return f.conn, errors.Join(err, f.buffer.Flush())
}

// ask sends the head of a request without a key.
func (f *frames) ask(stream uint32, path string, end bool, more ...hpack.HeaderField) error {
	method := "POST"
	if end {
		method = "GET"
	}
	return f.head(stream, end, append([]hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "petstore"}, {Name: ":path", Value: path},
	}, more...)...)
}

// head sends these headers, or trailers.
func (f *frames) head(stream uint32, end bool, fields ...hpack.HeaderField) error {
	f.header.Reset()
	for _, field := range fields {
		if err := f.hpack.WriteField(field); err != nil {
			return err
		}
	}
	return f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: f.header.Bytes(), EndStream: end, EndHeaders: true,
	})
}

// read is the next frame but for pings, which it answers as a client that lives does.
func (f *frames) read() (http2.Frame, error) {
	for {
		frame, err := f.ReadFrame()
		ping, ok := frame.(*http2.PingFrame)
		if err != nil || !ok || ping.IsAck() {
			return frame, err
		}
		if err := errors.Join(f.WritePing(true, ping.Data), f.buffer.Flush()); err != nil {
			return nil, err
		}
	}
}

// tlsOver settles on a protocol over a connection.
func tlsOver(raw net.Conn, protocol string) (*tls.Conn, error) {
	conn := tls.Client(raw, &tls.Config{
		RootCAs: testIdentity().roots, ServerName: "127.0.0.1", NextProtos: []string{protocol},
	})
	return conn, conn.Handshake()
}

// TestNoConnectionHoldsMoreThanItMay has peers without a key hold what they can, and a key's
// requests get their responses meanwhile.
func TestNoConnectionHoldsMoreThanItMay(t *testing.T) {
	for _, h := range hoards {
		t.Run(h.what, func(t *testing.T) {
			s := startTLS(t)
			normal(t, s, 20)
			h.open(t, s, hoarders/3)
			before := s.memory("VmRSS")
			h.open(t, s, hoarders-hoarders/3)
			took := normal(t, s, 5).quantile(0.5)
			after, peak := s.memory("VmRSS"), s.memory("VmHWM")
			each := (after - before) / (hoarders - hoarders/3)
			t.Logf("%d KiB a connection, at most %d KiB in all; a request takes %v", each, peak,
				took)
			if each > h.most<<10 || peak > hoarders*h.most<<10 || took > time.Second {
				t.Errorf("%d connections are too much", hoarders)
			}
			if held := s.files(); held < hoarders {
				t.Errorf("the service has %d files open; %d connections should be held", held,
					hoarders)
			}
		})
	}
}

// open opens so many connections, ten at a time, and lets the service take what they send.
func (h hoard) open(t *testing.T, s *server, connections int) {
	t.Helper()
	free := make(chan struct{}, 10)
	var opening sync.WaitGroup
	for range connections {
		free <- struct{}{}
		opening.Go(func() {
			defer func() { <-free }()
			conn, err := h.hold(s)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { conn.Close() })
		})
	}
	opening.Wait()
	time.Sleep(time.Second)
}
