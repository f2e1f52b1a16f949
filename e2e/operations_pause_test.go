package e2e

// Proven here alone: a process that was stopped for seconds trusts nothing that it remembers, and
// what is remembered waits for no engine that hangs.

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestAPausedServiceTrustsNothingItRemembers: a service is stopped for seconds, as a machine is
// that moves to another host. Meanwhile a key is revoked and a pet is changed. No request that
// begins afterwards opens the store with the key, or shows the pet as it was, unless the engine
// is slow, which it must not be after every pause.
func TestAPausedServiceTrustsNothingItRemembers(t *testing.T) {
	t.Parallel()
	onBothEngines(t, func(t *testing.T, on engine) {
		s := on.start(t, behindProxy...)
		// so that a page of one pet has a next one, and is remembered on a cluster too
		for range 2 {
			mustCall(t, s, s.key, "POST", "/pets", rex)
		}
		strict := false
		for round := 0; round < 3 && !strict; round++ {
			revoked := s.newKey(unlimited...)
			id := fmt.Sprint(s.listed(revoked).ID)
			for range 3 {
				mustCall(t, s, revoked, "GET", "/pets?limit=1", "")
				mustCall(t, s, s.key, "GET", "/pets/1", "")
			}
			s.freeze(t, on)
			name := fmt.Sprint("Tom ", round)
			s.command("key", "revoke", "-db", s.db, id)
			s.command("pet", "set", "-db", s.db, "-name", name, "1")
			time.Sleep(2 * time.Second) // twice as long as what it has looked at counts
			noError(t, s.cmd.Process.Signal(syscall.SIGCONT))
			doubts := &doubts{t: t}
			var clients sync.WaitGroup
			for _, target := range []string{"/pets?limit=1", "/pets/1"} {
				for range 4 {
					clients.Go(func() {
						for range 5 {
							doubts.want(s.url+target, revoked, "401 ")
							doubts.want(s.url+target, s.key, name)
						}
					})
				}
			}
			clients.Wait()
			strict = doubts.judge(s.url+"/pets/1", revoked, s.key, name)
		}
		if !strict {
			t.Error("the engine was too slow in each round")
		}
	})
}

// freeze stops the process, but not while it has the lock of its file: then no command could write.
func (s *server) freeze(t *testing.T, on engine) {
	t.Helper()
	if on.cluster == nil {
		defer lock(t, s.db)()
	}
	noError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	eventually(t, longEnough, func() error {
		status := readFile(t, fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
		if !strings.Contains(status, "\nState:\tT") {
			return fmt.Errorf("it is not stopped: %s", status)
		}
		return nil
	})
}

// doubts are answers that are old after a pause. They are wrong, unless a request has waited for
// the engine meanwhile so long that the service gave up: then the answers may be old for a while.
type doubts struct {
	t    *testing.T
	mu   sync.Mutex
	old  []string
	slow bool
}

// want sends a request, and notes an answer that does not contain a text.
func (d *doubts) want(url, key, text string) {
	began := time.Now()
	got := answerTo(url, key)
	took := time.Since(began)
	d.mu.Lock()
	defer d.mu.Unlock()
	// The service waits for half a second, perhaps since a moment before the request.
	d.slow = d.slow || took >= 400*time.Millisecond
	if !strings.Contains(got, text) {
		d.old = append(d.old, fmt.Sprintf("after %v %s in place of %s", took, got, text))
	}
}

// judge reports whether no request was slow. In any case, what is wanted comes within seconds.
func (d *doubts) judge(url, revoked, key, text string) (strict bool) {
	d.t.Helper()
	if d.slow {
		d.t.Logf("the engine was slow; %d answers were old: %q", len(d.old), d.old)
	} else if d.old != nil {
		d.t.Errorf("%d answers were old: %q", len(d.old), d.old)
	}
	eventually(d.t, 5*time.Second, func() error {
		last := &doubts{}
		last.want(url, revoked, "401 ")
		last.want(url, key, text)
		if last.old != nil {
			return fmt.Errorf("seconds after the pause: %q", last.old)
		}
		return nil
	})
	return !d.slow
}

// answerTo is the status of a GET and what it returns.
func answerTo(url, key string) string {
	got, err := call(url, key, "GET", "", "", "")
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(got.status, " ", got.body)
}

// mustCall sends a request that must succeed.
func mustCall(t *testing.T, s *server, key, method, target, body string) {
	t.Helper()
	if got, err := call(s.url, key, method, target, body, ""); err != nil || got.status >= 300 {
		t.Fatalf("%s %s: %+v, %v", method, target, got, err)
	}
}

// TestWhatIsRememberedWaitsForNoEngine that hangs: clients send 100 requests a second, whether they
// are answered or not, in turn for what is remembered and for what needs no engine in any case. The
// latter show how busy the machine is.
func TestWhatIsRememberedWaitsForNoEngine(t *testing.T) {
	t.Parallel()
	measure := func(t *testing.T, s *server, during time.Duration) {
		var mu sync.Mutex
		var took [2][]time.Duration
		var clients sync.WaitGroup
		ticks := time.Tick(10 * time.Millisecond)
		for i := range int(during / (10 * time.Millisecond)) {
			<-ticks
			clients.Go(func() {
				began := time.Now()
				url := []string{s.url + "/pets?limit=1", s.address() + "/openapi.json"}[i%2]
				if got := answerTo(url, s.key); !strings.HasPrefix(got, "200 ") {
					t.Errorf("%s gets %s", url, got)
				}
				mu.Lock()
				defer mu.Unlock()
				took[i%2] = append(took[i%2], time.Since(began))
			})
		}
		clients.Wait()
		p99 := func(times []time.Duration) time.Duration {
			slices.Sort(times)
			return times[len(times)*99/100]
		}
		remembered, other := p99(took[0]), p99(took[1])
		t.Logf("99%% of %d requests took %v, and %v without an engine", len(took[0]), remembered,
			other)
		if remembered > 50*time.Millisecond+4*other {
			t.Errorf("99%% of the requests took %v", remembered)
		}
	}
	remember := func(t *testing.T, s *server) {
		for range 2 {
			mustCall(t, s, s.key, "POST", "/pets", rex)
		}
		mustCall(t, s, s.key, "GET", "/pets?limit=1", "")
	}
	t.Run("a majority is frozen", func(t *testing.T) {
		t.Parallel()
		c := startCluster(t)
		s := engine{c}.start(t)
		remember(t, s)
		frozen := []int{c.leader(), c.followers()[0]}
		for _, i := range frozen {
			c.pause(i)
		}
		measure(t, s, soak(6*time.Second)) // longer than any wait for a leader
		for _, i := range frozen {
			c.resume(i)
		}
		s.awaitReady()
	})
	t.Run("a sync hangs for 3 s", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		remember(t, s)
		end := tamper(syncCalls, "delay_exit=3000000")(t, s)
		var writer sync.WaitGroup
		writer.Go(func() {
			if _, err := call(s.url, s.key, "POST", "/pets", rex, ""); err != nil {
				t.Error(err)
			}
		})
		measure(t, s, 4*time.Second)
		end()
		writer.Wait()
	})
}
