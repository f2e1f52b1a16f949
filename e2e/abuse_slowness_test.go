package e2e

// What every attack is measured with: normal requests beside it, which must not
// notice, and what it leaves behind in the service, which must be nothing.

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
	text := s.get(s.t, "/debug/pprof/"+profile)
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
	noError(s.t, err)
	return len(files)
}

// memory is a figure from the kernel's account of the service, in KiB: VmRSS is
// what it takes, VmHWM the most that it ever took since forgetPeak.
func (s *server) memory(name string) (kib int64) {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	noError(s.t, err)
	_, rest, _ := strings.Cut(string(status), name+":")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		s.t.Fatal(err)
	}
	return kib
}

// forgetPeak makes VmHWM begin anew (proc(5), clear_refs).
func (s *server) forgetPeak() {
	s.t.Helper()
	noError(s.t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"),
		0))
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
