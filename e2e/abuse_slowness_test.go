package e2e

// Clients that hold on to connections, slowly or idly, and what every attack is
// measured with: normal requests beside it, which must not notice, and what it
// leaves behind in the service, which must be nothing.

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	bigendian "encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// footprint is what the service holds of its machine.
type footprint struct {
	goroutines, files int
	heap, resident    int64 // KiB
}

func (f footprint) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %d KiB of heap, %d KiB resident", f.goroutines, f.files, f.heap, f.resident)
}

// footprint counts. Garbage is collected first, and again for what is pooled, so
// that the heap is what is in use.
func (s *server) footprint() footprint {
	s.t.Helper()
	for range 2 {
		response, err := http.Get(s.debug + "/debug/pprof/heap?gc=1")
		if err != nil {
			s.t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return footprint{
		goroutines: int(s.metric("go_goroutines")),
		files:      s.files(),
		heap:       int64(s.metric("go_memstats_heap_alloc_bytes")) / 1024,
		resident:   s.memory("VmRSS"),
	}
}

// atRest is the least of several footprints, since connections that are still
// being closed only add to it.
func (s *server) atRest() footprint {
	s.t.Helper()
	least := s.footprint()
	for range 9 {
		time.Sleep(20 * time.Millisecond)
		f := s.footprint()
		least.goroutines, least.files = min(least.goroutines, f.goroutines), min(least.files, f.files)
	}
	return least
}

// files is how many files and connections the service has open, as the kernel counts.
func (s *server) files() int {
	s.t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(files)
}

// memory is a figure from the kernel's account of the service, in KiB: VmRSS is
// what it takes, VmHWM the most that it ever took since forgetPeak.
func (s *server) memory(name string) (kib int64) {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), name+":")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		s.t.Fatal(err)
	}
	return kib
}

// forgetPeak makes VmHWM begin anew (proc(5), clear_refs).
func (s *server) forgetPeak() {
	s.t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0); err != nil {
		s.t.Fatal(err)
	}
}

// What an attack may cost, in KiB: of the heap, afterwards, what the service
// remembers on purpose of tens of thousands of addresses; of resident memory, at
// the worst moment, 64 KiB for each of a thousand connections. Go gives that
// back to the system only over minutes, so that it may still be there in the end.
const (
	heapLeft     = 8 << 10
	residentPeak = 64 << 10
)

// leavesNothing runs an attack, which must stay within its memory, and waits for
// the service to hold again what it held before: not one goroutine or file more.
func leavesNothing(t *testing.T, s *server, attack func()) {
	t.Helper()
	normal(t, s, 64) // opens what the service keeps open: its connections to the database, for one
	before := s.atRest()
	s.forgetPeak()
	attack()
	if peak := s.memory("VmHWM"); peak > before.resident+residentPeak {
		t.Errorf("at the worst moment the service took %d KiB; before the attack it took %d KiB", peak, before.resident)
	}
	var after footprint
	eventually(t, 2*delay, func() error {
		after = s.footprint()
		if after.goroutines > before.goroutines || after.files > before.files || after.heap > before.heap+heapLeft {
			return fmt.Errorf("the service holds %v; before the attack it held %v", after, before)
		}
		return nil
	})
	t.Logf("held before: %v", before)
	t.Logf("held after:  %v; %d KiB resident at the worst", after, s.memory("VmHWM"))
}

// eventually waits until check returns no error.
func eventually(t *testing.T, patience time.Duration, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v still: %v", patience, err)
		}
	}
}

// durations are how long requests took, in ascending order.
type durations []time.Duration

func (d durations) quantile(q float64) time.Duration { return d[int(q*float64(len(d)-1))] }

func (d durations) String() string {
	return fmt.Sprintf("median %v, p99 %v", d.quantile(0.5).Round(time.Microsecond), d.quantile(0.99).Round(time.Microsecond))
}

// normal makes n requests of each kind that a client makes: a list, a create,
// and a list over a new connection. All must succeed.
func normal(t *testing.T, s *server, n int) durations {
	t.Helper()
	kept := &http.Client{Transport: transport(), Timeout: 30 * time.Second}
	defer kept.CloseIdleConnections()
	fresh := &http.Client{Transport: transport(), Timeout: 30 * time.Second}
	fresh.Transport.(*http.Transport).DisableKeepAlives = true
	var took durations
	ask := func(client *http.Client, method, body string) {
		began := time.Now()
		got, err := s.send(t.Context(), client, method, "/pets", body)
		took = append(took, time.Since(began))
		if err != nil || got.status != http.StatusOK && got.status != http.StatusCreated {
			t.Fatalf("a normal %s: %v, %v", method, got, err)
		}
	}
	for range n {
		ask(kept, "GET", "")
		ask(kept, "POST", rex)
		ask(fresh, "GET", "")
	}
	slices.Sort(took)
	return took
}

// unnoticed holds normal requests during an attack against those before it. The
// bounds are far above what a busy machine and its disk add, and far below the 5
// seconds and more that a request would wait for anything that an attacker holds.
func unnoticed(t *testing.T, before, during durations) {
	t.Helper()
	t.Logf("normal requests before: %v; during: %v", before, during)
	for q, more := range map[float64]time.Duration{0.5: 100 * time.Millisecond, 0.99: time.Second} {
		if bound := 10*before.quantile(q) + more; during.quantile(q) > bound {
			t.Errorf("quantile %v of normal requests went from %v to %v", q, before.quantile(q), during.quantile(q))
		}
	}
}

// delay is how much later than it promises the service may do something on a
// busy machine.
const delay = 10 * time.Second

// slowness is a way to keep the service waiting.
type slowness struct {
	name   string
	sent   string        // at once, and an endless rest byte by byte; or the answer is taken so
	reads  bool          // which of the two
	within time.Duration // in which the service ends it, as the README says
	answer string        // what comes until then begins so
}

// slowClients is how many there are of each kind at once.
const slowClients = 200

// TestSlowClientsHoldUpNobody has 200 clients at once send their headers, 200
// their bodies, and 200 take their answers, byte by byte. Normal requests must
// not wait for them, and the service must end them when it says.
func TestSlowClientsHoldUpNobody(t *testing.T) {
	s := start(t, debugFlags...)
	for i := range 100 { // a page of 80 KB
		made, err := s.send(t.Context(), http.DefaultClient, "POST", "/pets", animalJSON(fmt.Sprintf("%03d%s", i, strings.Repeat("🐕", 197))))
		if err != nil || made.status != http.StatusCreated {
			t.Fatalf("%v, %v", made, err)
		}
	}
	page := "GET /v1/pets?limit=100 HTTP/1.1\r\n" + authority + "\r\n"
	kinds := []slowness{
		{"headers", "GET /v1/pets HTTP/1.1\r\n" + authority + "X-Slow: ", false, 5 * time.Second, ""},
		{"bodies", add("Content-Length: 1000\r\n", `{"name":"`), false, 15 * time.Second, "HTTP/1.1 400 Bad Request\r\n"},
		{"readers", strings.Repeat(page, 200), true, 30 * time.Second, "HTTP/1.1 200 OK\r\n"},
	}
	leavesNothing(t, s, func() {
		for left := soak(t, 1); left > 0; left-- {
			before, began := normal(t, s, 200), time.Now()
			var slow sync.WaitGroup
			defer slow.Wait()
			for _, kind := range kinds {
				for range slowClients {
					slow.Go(func() { kind.run(t, s) })
				}
			}
			eventually(t, delay, func() error {
				if held := s.files(); held < 3*slowClients {
					return fmt.Errorf("the service has %d files open, and %d slow clients at once should be held", held, 3*slowClients)
				}
				return nil
			})
			unnoticed(t, before, normal(t, s, 200))
			if held, took := s.files(), time.Since(began); held < 2*slowClients && took < 15*time.Second {
				t.Errorf("after %v the service has %d files open; %d clients should still be held", took, held, 2*slowClients)
			}
			if left == 1 {
				t.Parallel() // from here on the test only waits
			}
			slow.Wait()
		}
	})
}

// run is one slow client.
func (k slowness) run(t *testing.T, s *server) {
	conn, err := s.dial()
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	_ = conn.SetReadBuffer(4 << 10)
	answer := make([]byte, 0, 1<<10)
	began := time.Now()
	_, err = io.WriteString(conn, strings.ReplaceAll(k.sent, anyKey, s.key))
	for ; err == nil; time.Sleep(500 * time.Millisecond) {
		// A write notices the end even while there is something left to read.
		if _, err = io.WriteString(conn, "a"); err == nil && k.reads {
			var n int
			n, err = conn.Read(answer[len(answer) : len(answer)+1])
			answer = answer[:len(answer)+n]
		}
	}
	if !k.reads {
		answer, err = io.ReadAll(conn)
	}
	if took := time.Since(began); took < k.within-time.Second || took > k.within+delay || !strings.HasPrefix(string(answer), k.answer) {
		t.Errorf("slow %s end after %v with %.40q, %v; they should after %v, with %q", k.name, took, answer, err, k.within, k.answer)
	}
}

// TestIdleConnectionsCostLittle keeps a thousand connections open that do
// nothing after their first request.
func TestIdleConnectionsCostLittle(t *testing.T) {
	s := start(t, debugFlags...)
	const n = 1000
	leavesNothing(t, s, func() {
		for range soak(t, 1) {
			before := normal(t, s, 100)
			idle := s.idle(n)
			unnoticed(t, before, normal(t, s, 100))
			for _, conn := range idle { // they are still served
				s.askOver(conn)
				conn.Close()
			}
		}
	})
	idle := s.idle(n)
	s.stop()
	for _, conn := range idle {
		if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
			t.Fatalf("at the stop an idle connection got %q, %v", rest, err)
		}
		conn.Close()
	}
}

// idle opens connections that have made one request.
func (s *server) idle(n int) (conns []net.Conn) {
	s.t.Helper()
	for range n {
		conn, err := s.dial()
		if err != nil {
			s.t.Fatal(err)
		}
		s.askOver(conn)
		conns = append(conns, conn)
	}
	return conns
}

// askOver makes a normal request over a connection.
func (s *server) askOver(conn net.Conn) {
	s.t.Helper()
	if _, err := io.WriteString(conn, strings.ReplaceAll(get, anyKey, s.key)); err != nil {
		s.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
		s.t.Fatalf("status %d, %v", response.StatusCode, err)
	}
}

// beside makes normal requests for as long as an attack lasts.
func beside(t *testing.T, s *server, attack func()) (during durations) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		attack()
	}()
	defer func() { <-ended }()
	for {
		during = append(during, normal(t, s, 10)...)
		select {
		case <-ended:
			slices.Sort(during)
			return during
		default:
		}
	}
}

// tlsRecords is a TLS connection whose records a test makes itself, with AES-128 and SHA-256.
type tlsRecords struct {
	conn   net.Conn
	secret []byte // of the records that are sent
	sent   uint64 // records with this secret
}

// tlsSecret takes the secret of what a client sends from the lines of a key log.
type tlsSecret []byte

func (s *tlsSecret) Write(line []byte) (int, error) {
	if words := strings.Fields(string(line)); words[0] == "CLIENT_TRAFFIC_SECRET_0" {
		*s, _ = hex.DecodeString(words[2])
	}
	return len(line), nil
}

// openRecords connects. Segments are small, so that the service can leave little with the system
// for a client that reads nothing.
func (s *server) openRecords(t *testing.T) *tlsRecords {
	t.Helper()
	small := func(_, _ string, socket syscall.RawConn) error {
		var segments, buffer error
		err := socket.Control(func(fd uintptr) {
			segments = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536)
			buffer = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
		})
		return errors.Join(err, segments, buffer)
	}
	dialer := &net.Dialer{Control: small}
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(s.address(), "https://"))
	noError(t, err)
	t.Cleanup(func() { conn.Close() })
	var secret tlsSecret
	shaking := tls.Client(conn, &tls.Config{
		RootCAs: testIdentity().roots, ServerName: "127.0.0.1", KeyLogWriter: &secret,
	})
	noError(t, shaking.HandshakeContext(t.Context()))
	if suite := shaking.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Fatalf("the connection uses %s", tls.CipherSuiteName(suite))
	}
	return &tlsRecords{conn: conn, secret: secret}
}

// derive is HKDF-Expand-Label of RFC 8446, section 7.1, without a context.
func (c *tlsRecords) derive(label string, length int) []byte {
	label = "tls13 " + label
	info := "\x00" + string([]byte{byte(length), byte(len(label))}) + label + "\x00"
	key, err := hkdf.Expand(sha256.New, c.secret, info, length)
	if err != nil {
		panic(err)
	}
	return key
}

// record makes a record; its types are 22 for a handshake and 23 for data.
func (c *tlsRecords) record(contentType byte, content string) []byte {
	block, err := aes.NewCipher(c.derive("key", 16))
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	nonce := c.derive("iv", 12)
	subtle.XORBytes(nonce, nonce, bigendian.BigEndian.AppendUint64(make([]byte, 4), c.sent))
	c.sent++
	plain := append([]byte(content), contentType)
	header := bigendian.BigEndian.AppendUint16([]byte{23, 3, 3}, uint16(len(plain)+aead.Overhead()))
	return append(header, aead.Seal(nil, nonce, plain, header)...)
}

// flood sends what a request begins with, and the rest byte by byte; between the bytes it asks
// for new keys (RFC 8446, section 4.6.3), and never reads them. It ends when the service has
// stopped reading.
func (c *tlsRecords) flood(t *testing.T, begin string) {
	message := c.record(23, begin)
	for range 15_000 {
		noError(t, c.conn.SetWriteDeadline(time.Now().Add(time.Second)))
		if _, err := c.conn.Write(message); errors.Is(err, os.ErrDeadlineExceeded) {
			return
		} else if err != nil {
			t.Errorf("the service ends the connection: %v", err)
			return
		}
		message = nil
		for range 15 { // more in a row are refused
			message = append(message, c.record(22, "\x18\x00\x00\x01\x01")...)
			c.secret, c.sent = c.derive("traffic upd", 32), 0
		}
		message = append(message, c.record(23, "a")...)
	}
	t.Error("the service goes on reading")
}

// TestAStopWaitsForNoPeerThatReadsNothing, but ends after 10 seconds, with all usage saved.
func TestAStopWaitsForNoPeerThatReadsNothing(t *testing.T) {
	t.Parallel() // it mostly waits
	s := startTLS(t)
	for _, begin := range []string{
		"GET / HTTP/1.1\r\nX-Slow: ",
		"POST /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: " + s.bearer() +
			"\r\nContent-Length: 60000\r\n\r\n",
	} {
		s.openRecords(t).flood(t, begin)
	}
	key := s.newKey()
	client := &http.Client{Transport: transport()}
	const requests = 7
	for range requests {
		got, err := s.send(t.Context(), client, "GET", "/pets", "", "Authorization: Bearer "+key)
		if err != nil || got.status != http.StatusOK {
			t.Fatalf("%v, %v", got, err)
		}
	}
	client.CloseIdleConnections()
	began := time.Now()
	s.stop()
	took := time.Since(began)
	t.Logf("the stop took %v", took)
	if took > 10*time.Second+delay {
		t.Errorf("the stop took %v, and may take 10 s", took)
	}
	shown := s.command("key", "show", "-db", s.db, "-json", "2")
	saved := decode[struct{ UsedThisMinute int64 }](t, shown)
	if saved.UsedThisMinute != requests {
		t.Errorf("%d requests are saved, want %d", saved.UsedThisMinute, requests)
	}
}
