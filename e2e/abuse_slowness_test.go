package e2e

// Clients that hold on to connections, slowly or idly, and what every attack is
// measured with: normal requests beside it, which must not notice, and what it
// leaves behind in the service, which must be nothing.

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// footprint is what the service holds of its machine.
type footprint struct {
	goroutines, files int
	heap, resident    int64 // KiB
}

func (f footprint) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %d KiB of heap, %d KiB resident", f.goroutines,
		f.files, f.heap, f.resident)
}

// footprint counts. Garbage is collected first, and again for what is pooled, so
// that the heap is what is in use.
func (s *server) footprint() footprint {
	s.t.Helper()
	const heap, heapInUse = "heap?gc=1&debug=1", `# HeapAlloc = (\d+)`
	s.profiled(heap, heapInUse)
	return footprint{
		goroutines: int(s.profiled("goroutine?debug=1", `goroutine profile: total (\d+)`)),
		files:      s.files(),
		heap:       s.profiled(heap, heapInUse) / 1024,
		resident:   s.memory("VmRSS"),
	}
}

// profiled is a number in a profile.
func (s *server) profiled(profile, pattern string) int64 {
	s.t.Helper()
	_, text := getAs(s.t, s.debug+"/debug/pprof/"+profile, "")
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		s.t.Fatalf("the profile %s has no %s", profile, pattern)
	}
	number, err := strconv.ParseInt(found[1], 10, 64)
	noError(s.t, err)
	return number
}

// atRest is the least of several footprints, since connections that are still
// being closed only add to it.
func (s *server) atRest() footprint {
	s.t.Helper()
	least := s.footprint()
	for range 9 {
		time.Sleep(20 * time.Millisecond)
		f := s.footprint()
		least.goroutines, least.files = min(least.goroutines, f.goroutines), min(least.files,
			f.files)
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
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"),
		0); err != nil {
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
		t.Errorf("at the worst moment the service took %d KiB; before the attack it took %d KiB",
			peak, before.resident)
	}
	var after footprint
	eventually(t, 2*delay, func() error {
		after = s.footprint()
		if after.goroutines > before.goroutines || after.files > before.files ||
			after.heap > before.heap+heapLeft {
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
	return fmt.Sprintf("median %v, p99 %v", d.quantile(0.5).Round(time.Microsecond),
		d.quantile(0.99).Round(time.Microsecond))
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
			t.Errorf("quantile %v of normal requests went from %v to %v", q, before.quantile(q),
				during.quantile(q))
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
		made, err := s.send(t.Context(), http.DefaultClient, "POST", "/pets",
			animalJSON(fmt.Sprintf("%03d%s", i, strings.Repeat("🐕", 197))))
		if err != nil || made.status != http.StatusCreated {
			t.Fatalf("%v, %v", made, err)
		}
	}
	page := "GET /v1/pets?limit=100 HTTP/1.1\r\n" + authority + "\r\n"
	kinds := []slowness{
		{"headers", "GET /v1/pets HTTP/1.1\r\n" + authority + "X-Slow: ", false, 5 * time.Second,
			""},
		{"bodies", add("Content-Length: 1000\r\n", `{"name":"`), false, 15 * time.Second,
			"HTTP/1.1 400 Bad Request\r\n"},
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
					return fmt.Errorf("the service has %d files open, and %d slow clients at "+
						"once should be held", held, 3*slowClients)
				}
				return nil
			})
			unnoticed(t, before, normal(t, s, 200))
			if held, took := s.files(), time.Since(began); held < 2*slowClients &&
				took < 15*time.Second {
				t.Errorf("after %v the service has %d files open; %d clients should still be held",
					took, held, 2*slowClients)
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
	if took := time.Since(began); took < k.within-time.Second || took > k.within+delay ||
		!strings.HasPrefix(string(answer), k.answer) {
		t.Errorf("slow %s end after %v with %.40q, %v; they should after %v, with %q", k.name, took,
			answer, err, k.within, k.answer)
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
	if _, err := io.Copy(io.Discard, response.Body); err != nil ||
		response.StatusCode != http.StatusOK {
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
