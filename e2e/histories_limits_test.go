package e2e

// Proven here: services share the limits of a key as they promise, though their clocks are half a
// second apart. What a response tells of a window must include all that its service has admitted,
// and all that another has admitted two merges before: one stores it, and the next reads it. It
// includes nothing twice. How much passes beyond a limit, TestLimitsHoldBehindEveryBalancer shows.

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"petstore/e2e/planted"
)

const (
	clockAhead = 500 * time.Millisecond // within the second that is promised
	mergeEvery = 500 * time.Millisecond
	// A minute lasts so many seconds, so that several end in a test.
	sharedMinute = 6
)

// counted is a request with a key, and what its response tells of the window that it shows.
type counted struct {
	service      int
	from, to     time.Time
	isRefused    bool
	left, resets int64
}

// shares reports whether two responses show one window. Services that begin it at once do not agree
// about its end until they have merged.
func (c *counted) shares(other *counted) bool {
	return max(c.resets-other.resets, other.resets-c.resets) <= sharedMinute/2
}

// sharer is a key whose limit is used at several services: by one client in turn, or by a client of
// each service at once.
type sharer struct {
	issued
	limit   int64 // of the window that is shown
	clients int

	mu    sync.Mutex // guards calls
	calls []*counted
}

func (s *sharer) use(t *testing.T, services []*server, client int, lasts time.Duration) {
	began := time.Now()
	for n := client; time.Since(began) < lasts; n += s.clients {
		made := &counted{service: n % len(services), from: time.Now()}
		method, body := "GET", ""
		if rand.N(8) == 0 {
			method, body = "POST", `{"name":"Rex","categoryId":1}`
		}
		got, err := call(services[made.service].url, s.token, method, "/pets", body, "")
		made.to = time.Now()
		if err == nil {
			made.isRefused = got.status == http.StatusTooManyRequests
			told := got.header.Get("X-RateLimit-Remaining") + " " +
				got.header.Get("X-RateLimit-Reset")
			_, err = fmt.Sscan(told, &made.left, &made.resets)
		}
		if err != nil {
			t.Errorf("a response does not tell of the limits: %v", err)
			return
		}
		s.mu.Lock()
		s.calls = append(s.calls, made)
		s.mu.Unlock()
		pause := 40 * time.Millisecond
		if rand.N(30) == 0 { // so that services must read what others have stored
			pause = time.Second
		}
		time.Sleep(rand.N(pause))
	}
}

// used is how much of the window that a response shows was used, at least and at most. mergesTake
// is the time after which a service knows what another has admitted.
func (s *sharer) used(at *counted, mergesTake time.Duration) (least, most int64) {
	begins := at.from
	for _, c := range s.calls {
		if c.shares(at) && c.from.Before(begins) {
			begins = c.from
		}
	}
	// Where a clock is ahead, the window ends early, and what was not merged then is dropped. A
	// reset is rounded up.
	ends := time.Unix(at.resets-1, 0).Add(-clockAhead)
	for _, c := range s.calls {
		if c.isRefused {
			continue
		}
		merged := c.to.Add(mergesTake)
		isOwn := c == at || c.service == at.service && c.to.Before(at.from)
		isKnown := isOwn || merged.Before(at.from) && merged.Before(ends)
		if c.shares(at) && isKnown {
			least++
		}
		// A service whose clock is behind counts requests in the next window when it learns of it.
		isMoved := c.resets < at.resets && merged.After(begins)
		if c.from.Before(at.to) && (c.shares(at) || isMoved) {
			most++
		}
	}
	return least, most
}

// check returns an error if a response tells what cannot be.
func (s *sharer) check(mergesTake time.Duration) error {
	for _, c := range s.calls {
		least, most := s.used(c, mergesTake)
		if c.isRefused {
			least = s.limit
		}
		told := s.limit - c.left
		if told < least || told > most {
			return fmt.Errorf("of %d requests %d to %d were used when service %d responds at %v "+
				"(refusing: %v) that %d are left until %d",
				s.limit, least, most, c.service, c.from, c.isRefused, c.left, c.resets)
		}
	}
	return nil
}

// recordSharers has callers use keys at the services of some programs, and checks what they get.
func recordSharers(t *testing.T, c *cluster, programs []string, lasts time.Duration) error {
	t.Helper()
	p := &parish{cluster: c}
	for _, c.program = range programs {
		s := c.serve("-ban-for", "0")
		defer s.kill()
		p.services = append(p.services, s)
	}
	var all []*sharer
	var using sync.WaitGroup
	for _, limits := range [][2]int{{100, 1_000_000}, {1_000_000, 300}} {
		for clients := range len(programs) {
			key := p.newKey(t, limits[0], limits[1])
			all = append(all, &sharer{
				issued: key, limit: int64(min(limits[0], limits[1])), clients: clients + 1,
			})
		}
	}
	for _, s := range all {
		for client := range s.clients {
			using.Go(func() { s.use(t, p.services, client, lasts) })
		}
	}
	using.Wait()
	// The slowest response tells how long a merge may take. There may be no client that has waited
	// for the slowest merge, so a tenth of a second is always allowed.
	slowest := 100 * time.Millisecond
	for _, s := range all {
		for _, made := range s.calls {
			slowest = max(slowest, made.to.Sub(made.from))
		}
	}
	if slowest > time.Second {
		t.Skipf("a response takes %v here, for which a window of the test is too short", slowest)
	}
	for _, s := range all {
		// A flush that finds another window sends twice.
		if err := s.check(2 * (mergeEvery + 2*slowest)); err != nil {
			return err
		}
		t.Logf("%d clients: %d requests, none slower than %v", s.clients, len(s.calls), slowest)
	}
	return nil
}

// sharingFaults are changes of usage.go, of the service whose clock is not ahead.
var sharingFaults = []struct {
	name    string
	changes []string
}{
	{"usage is flushed without being added", []string{
		"THEN minute_used + m_sent", "THEN m_sent", "THEN day_used + d_sent", "THEN d_sent",
	}},
	{"what others have used is not learned", []string{
		"\t\ts.unsent -= sent.requests\n\t\tb.used = stored.used + s.unsent\n",
		"\t\ts.unsent -= sent.requests\n",
		"\t\tb.used = stored.used + s.unsent\n\t\tb.ends = stored.ends\n",
		"\t\tb.ends = stored.ends\n",
		"\t\t\t*b = stored\n", "\t\t\tb.ends = stored.ends\n",
	}},
}

// TestHistoriesOfLimitsThatAreShared has callers use two services whose clocks differ, and looks
// whether a fault of one of them is found, which is drawn.
func TestHistoriesOfLimitsThatAreShared(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	build := func(t *testing.T, by time.Duration, ofUsage []string) (program string) {
		t.Helper()
		program, err := planted.BuildAhead("..", t.TempDir(), by, planted.Changes{
			"usage.go": ofUsage,
			"model.go": {
				"minuteMillis instant = 60 *",
				fmt.Sprintf("minuteMillis instant = %d *", sharedMinute),
			},
		})
		noError(t, err)
		return program
	}
	ahead := build(t, clockAhead, nil)
	t.Run("no fault", func(t *testing.T) {
		noError(t, recordSharers(t, c, []string{build(t, 0, nil), ahead}, soak(20*time.Second)))
	})
	for _, f := range sharingFaults {
		noError(t, planted.Check("..", "usage.go", f.changes))
	}
	for _, f := range planted.Some(t.Name(), 1, sharingFaults) {
		t.Run(f.name, func(t *testing.T) {
			programs := []string{build(t, 0, f.changes), ahead}
			for range 5 {
				if err := recordSharers(t, c, programs, 13*time.Second); err != nil {
					t.Log(err)
					return
				}
			}
			t.Error("five recordings do not show the fault")
		})
	}
}
