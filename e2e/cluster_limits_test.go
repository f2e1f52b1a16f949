package e2e

// Proven here alone: three services behind HAProxy, on real nodes, share limits, bans and windows
// as closely as is promised, and outlive a leader and a service.

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Requests that arrive in a test, and what that means for services that tell
// each other every half second what they have counted.
const (
	arrivals      = 400 // a second, at all services together
	arriveBetween = arrivals / 2
)

// TestLimitsHoldBehindEveryBalancer calls three services on a cluster with one key
// through HAProxy, faster than its plan allows. Where all requests with the key go to the
// same service, exactly the limit is admitted in a window. Where they go to each
// service in turn, no more is admitted beyond it than arrives between two flushes, and while
// they are committed. Bans, and what was used, hold at all services.
func TestLimitsHoldBehindEveryBalancer(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	p := &parish{cluster: c}
	for range 3 {
		p.services = append(p.services, c.serve(slices.Concat(behindProxy, debugFlags)...))
	}
	b := startBalancer(t, p.services)

	for _, balancer := range []struct {
		name, url string
		inTurn    bool
	}{{"hashing", b.hashing, false}, {"round robin", b.roundRobin, true}} {
		t.Run("minute, "+balancer.name, func(t *testing.T) {
			key := p.newKey(t, 2*arrivals, 1_000_000_000)
			p.hammer(t, balancer.url, key.token, 4*arrivals).check(t, 2*arrivals, balancer.inTurn)
		})
		t.Run("day, "+balancer.name, func(t *testing.T) {
			key := p.newKey(t, 1_000_000, 500)
			p.hammer(t, balancer.url, key.token, 3*arrivals).check(t, 500, balancer.inTurn)
		})
	}
	t.Run("windows", p.windowsAgree)
	t.Run("ban", p.banHolds)
	t.Run("deaths", p.countSurvives)
}

// parish is several services on a cluster.
type parish struct {
	*cluster
	services []*server
}

// newKey makes a key and waits until every service knows it.
func (p *parish) newKey(t *testing.T, perMinute, perDay int) issued {
	t.Helper()
	first := p.services[0]
	token := first.newKey("-plan", "enterprise", "-per-minute", strconv.Itoa(perMinute), "-per-day",
		strconv.Itoa(perDay))
	// The key must not be used before the test begins, so another tells when all services have read
	// the list.
	telltale := first.newKey()
	for _, s := range p.services {
		eventually(t, 10*time.Second, func() error {
			if got := s.ask(t, telltale); got != "200 of 60" {
				return fmt.Errorf("a new key gets %s", got)
			}
			return nil
		})
	}
	return issued{token, strconv.FormatInt(first.listed(token).ID, 10)}
}

// admissions is what became of requests that were sent at a steady pace.
type admissions struct {
	sent       int
	outcomes   map[string]int
	admitted   []time.Duration // after the first request
	committing float64         // seconds that all commits of the slowest service took
}

// hammer sends lists with a key, as many a second as arrivals says, whether
// they are answered or not. Meanwhile the services commit little but flushes.
func (p *parish) hammer(t *testing.T, url, token string, requests int) *admissions {
	t.Helper()
	a := &admissions{sent: requests, outcomes: map[string]int{}}
	var before []float64
	for _, s := range p.services {
		before = append(before, s.metric("petstore_commit_duration_seconds_sum"))
	}
	var mu sync.Mutex
	var clients sync.WaitGroup
	began := time.Now()
	for i := range requests {
		time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / arrivals)))
		clients.Go(func() {
			sent := time.Since(began)
			got, err := call(url, token, "GET", "/pets?limit=1", "", "")
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				a.outcomes[err.Error()]++
				return
			}
			a.outcomes[fmt.Sprint(got.status, " ", got.code)]++
			if got.status == http.StatusOK {
				a.admitted = append(a.admitted, sent)
			}
		})
	}
	clients.Wait()
	for i, s := range p.services {
		a.committing = max(a.committing, s.metric("petstore_commit_duration_seconds_sum")-before[i])
	}
	return a
}

// check wants the limit admitted, and nothing beyond it, or with services in turn only what they
// could not know of each other. No flush took longer than all commits of the slowest service.
func (a *admissions) check(t *testing.T, limit int, inTurn bool) {
	t.Helper()
	beyond := 0
	if inTurn {
		beyond = arriveBetween + int(a.committing*arrivals)
	}
	excess := len(a.admitted) - limit
	t.Logf("%d requests at %d a second; commits took %.0f ms; limit %d, "+
		"admitted %d, the last after %d ms; %v",
		a.sent, arrivals, 1000*a.committing, limit, len(a.admitted),
		slices.Max(a.admitted).Milliseconds(), a.outcomes)
	if excess < 0 || excess > beyond {
		t.Errorf("%d are admitted beyond the limit of %d, want 0 to %d", excess, limit, beyond)
	}
	if len(a.admitted)+a.outcomes["429 rate_limited"] != a.sent {
		t.Errorf("of %d requests some are neither admitted nor limited: %v", a.sent, a.outcomes)
	}
}

// windowsAgree begins a window at all services, and wants them to
// count in one soon, which ends at one instant.
func (p *parish) windowsAgree(t *testing.T) {
	key := p.newKey(t, 1000, 1000)
	used := 0
	eventually(t, 3*time.Second, func() error {
		var resets []string
		left := 0
		for _, s := range p.services {
			got, err := call(s.url, key.token, "GET", "/pets?limit=1", "", "")
			noError(t, err)
			used++
			resets = append(resets, got.header.Get("X-RateLimit-Reset"))
			left = dayLeft(t, got)
		}
		if len(slices.Compact(resets)) > 1 || left < 1000-used {
			return fmt.Errorf("windows end at %v, and of 1000 requests %d are left after %d",
				resets, left, used)
		}
		return nil
	})
	p.awaitDayLeft(t, key, 1000-used)
}

var dayLeftHeader = regexp.MustCompile(`"day";r=(\d+)`)

// dayLeft is how much of the day an answer says is left.
func dayLeft(t *testing.T, got *answer) (requests int) {
	t.Helper()
	match := dayLeftHeader.FindStringSubmatch(got.header.Get("RateLimit"))
	if match == nil {
		t.Fatalf("RateLimit is %q in an answer %d %s", got.header.Get("RateLimit"), got.status,
			got.body)
	}
	requests, err := strconv.Atoi(match[1])
	noError(t, err)
	return requests
}

// awaitDayLeft waits until all services have counted everything of a day of which so
// many requests are left. Asking takes from it, too.
func (p *parish) awaitDayLeft(t *testing.T, key issued, left int) (after int) {
	t.Helper()
	for _, s := range p.services {
		eventually(t, 5*time.Second, func() error {
			got, err := call(s.url, key.token, "GET", "/pets?limit=1", "", "")
			if err != nil {
				return err
			}
			left--
			if found := dayLeft(t, got); found != left {
				return fmt.Errorf("at %s %d requests are left of the day, want %d", s.url, found,
					left)
			}
			return nil
		})
	}
	return left
}

// banHolds gets a key banned at one service and lifts the ban, both of which
// must hold at the others within a second.
func (p *parish) banHolds(t *testing.T) {
	key := p.newKey(t, 100, 1_000_000)
	first := p.services[0]
	for _, s := range p.services { // which then remember the key, and must learn of the ban
		s.expect(t, key.token, "200 of 100")
	}
	for requests := 0; first.ask(t, key.token) != "429 key_banned"; requests++ {
		if requests > 300 {
			t.Fatal("a key that insists is not banned")
		}
	}
	p.holdsWithinASecond(t, key, "429 key_banned", time.Now())

	var resets []string
	for _, s := range p.services {
		got, err := call(s.url, key.token, "GET", "/pets?limit=1", "", "")
		noError(t, err)
		resets = append(resets, got.header.Get("X-RateLimit-Reset"))
	}
	if len(slices.Compact(resets)) > 1 {
		t.Errorf("the ban ends at %v", resets)
	}
	first.command("key", "unban", "-db", first.db, key.id)
	p.holdsWithinASecond(t, key, "429 rate_limited", time.Now())
}

// holdsWithinASecond asks all services until they give an answer, and wants
// it from each of them within a second. It asks too seldom to be banned for that.
func (p *parish) holdsWithinASecond(t *testing.T, key issued, want string, since time.Time) {
	t.Helper()
	for i, s := range p.services {
		for {
			began := time.Now()
			got := s.ask(t, key.token)
			if got == want {
				t.Logf("service %d answers %s after %v", i, want,
					began.Sub(since).Round(time.Millisecond))
				break
			}
			if began.Sub(since) > time.Second {
				t.Errorf("service %d answers %s after %v, want %s", i, got, began.Sub(since), want)
				break
			}
			time.Sleep(25 * time.Millisecond)
		}
	}
}

// countSurvives kills the node that leads, and then a service, after both have counted
// requests. A second later at most nothing of that is forgotten.
func (p *parish) countSurvives(t *testing.T) {
	key := p.newKey(t, 1_000_000, 500)
	left := 500
	for range 30 {
		for _, s := range p.services {
			s.expect(t, key.token, "200 of 500")
			left--
		}
	}
	left = p.awaitDayLeft(t, key, left)
	time.Sleep(time.Second) // the promise, which covers the last of the requests
	leader := p.leader()
	p.cluster.kill(leader)
	left = p.awaitDayLeft(t, key, left)
	time.Sleep(time.Second)
	p.services[0].kill()
	p.services[0].again(behindProxy...)
	left = p.awaitDayLeft(t, key, left)
	p.restart(leader)
	p.awaitDayLeft(t, key, left)
}
