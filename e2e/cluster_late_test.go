package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestWhatComesLateGivesNoLimitAgain: the answer to a reading, what is counted in a time without a
// leader, and the writes of a service that is dead. No minute is waited for: windows are stored as
// if they had begun earlier or later.
func TestWhatComesLateGivesNoLimitAgain(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	t.Run("a reading", c.answersAReadingLate)
	t.Run("a time without a leader", c.losesItsLeaderAtTheEndOfMinutes)
	t.Run("a flush and a ban of the dead", c.hearsOfTheDead)
}

// serveBehind starts a service that reaches the nodes through a relay. The relay hands each request
// to a function, which passes it on when it likes, and whose end lets the service have the answer.
func (c *cluster) serveBehind(t *testing.T, relay func(request string, pass func()),
	flags ...string) *server {
	t.Helper()
	var addresses []string
	for i := range c.nodes {
		node, err := url.Parse(c.url(i))
		noError(t, err)
		toNode := httputil.NewSingleHostReverseProxy(node)
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // of a service that dies, whatever it has sent
			answer := httptest.NewRecorder()
			relay(string(body), func() {
				// Also if the service has given up, or is dead.
				r = r.WithContext(context.Background())
				r.Body = io.NopCloser(bytes.NewReader(body))
				toNode.ServeHTTP(answer, r)
			})
			w.WriteHeader(answer.Code)
			_, _ = answer.Body.WriteTo(w) // the service may be gone
		}))
		t.Cleanup(front.Close)
		addresses = append(addresses, front.URL)
	}
	s := &server{t: t, db: strings.Join(addresses, ",")}
	s.run(flags...)
	return s
}

// What the requests of a service contain.
const (
	flushes = "INTO usage_days"
	bans    = "UPDATE usage SET banned_at"
)

// storeWindow stores what is used of a minute, which ends then, and of a day.
func (c *cluster) storeWindow(key issued, used int, ends time.Time) {
	c.t.Helper()
	c.execute(fmt.Sprintf(`REPLACE INTO usage
		(id, minute_used, minute_ends, day_used, day_ends, banned_at, banned_until)
		VALUES (%s, %d, %d, %[2]d, %d, 0, 0)`,
		key.id, used, ends.UnixMilli(), time.Now().Add(20*time.Hour).UnixMilli()))
}

// admissionsOf sends requests that need no leader, and counts what is admitted.
func (s *server) admissionsOf(t *testing.T, key issued, requests int) (admitted int) {
	t.Helper()
	for range requests {
		got, err := call(s.url, key.token, "GET", "/nothing", "", "")
		if err != nil {
			t.Error(err)
			return admitted
		}
		if got.outcome() == "404 not_found" {
			admitted++
		}
	}
	return admitted
}

// windowsSince is how many minutes of a key can have begun.
func windowsSince(first time.Time) int { return 1 + int(time.Since(first)/time.Minute) }

// answersAReadingLate holds back what a service has read of a usage, until 60 requests are admitted
// and flushed, and flushes that know nothing of the usage have followed.
func (c *cluster) answersAReadingLate(t *testing.T) {
	var query atomic.Value
	query.Store("nothing yet")
	var isRead atomic.Bool
	flushed := make(chan struct{}, 1000)
	held, release := make(chan struct{}), make(chan struct{})
	s := c.serveBehind(t, func(request string, pass func()) {
		pass()
		if strings.Contains(request, flushes) {
			flushed <- struct{}{}
		}
		if strings.Contains(request, query.Load().(string)) && !isRead.Swap(true) {
			close(held)
			<-release
		}
	})
	key := s.keyOf("60")
	query.Store(fmt.Sprintf(`FROM usage WHERE id = ?",%s]`, key.id))
	began := time.Now()
	late := make(chan int)
	go func() { late <- s.admissionsOf(t, key, 1) }()
	<-held
	heldAt := time.Now()
	admitted := s.admissionsOf(t, key, 60)
	drain(flushed)
	// The first may have begun before the last request. A service waits no longer than 2 s for the
	// answer.
	for range 3 {
		<-flushed
	}
	close(release)
	t.Logf("the answer is %v late", time.Since(heldAt))
	admitted += <-late
	admitted += s.admissionsOf(t, key, 59)
	if admitted > 60*windowsSince(began) {
		t.Errorf("of 60 a minute %d are admitted", admitted)
	}
}

// drain takes what has happened so far.
func drain(events chan struct{}) {
	for range len(events) {
		<-events
	}
}

// losesItsLeaderAtTheEndOfMinutes freezes both followers. Minutes of keys end while a flush that is
// repeated waits for the next leader, and some before and after that.
func (c *cluster) losesItsLeaderAtTheEndOfMinutes(t *testing.T) {
	const perMinute, keys = 5, 16
	var mu sync.Mutex // guards last
	last := ""        // flush
	another := make(chan struct{}, 1000)
	var isHeld atomic.Bool
	release := make(chan struct{})
	s := c.serveBehind(t, func(request string, pass func()) {
		if strings.Contains(request, flushes) {
			mu.Lock()
			if request != last { // otherwise it is only tried again
				another <- struct{}{}
			}
			last = request
			mu.Unlock()
			if isHeld.Load() {
				<-release
			}
		}
		pass()
	}, "-ban-for", "0")
	all := make([]issued, keys)
	for i := range all {
		all[i] = s.keyOf(fmt.Sprint(perMinute))
	}
	// Without the leader the service could not read a usage. It need not, before the next flush.
	isHeld.Store(true)
	ended := make(chan struct{}, keys)
	var clients sync.WaitGroup
	began := make([]time.Time, keys)
	admitted := make([]int, keys)
	for i, key := range all {
		ends := time.Now().Add(3*time.Second + time.Duration(i)*300*time.Millisecond)
		c.storeWindow(key, perMinute-1, ends)
		if s.admissionsOf(t, key, 2) != 1 {
			t.Error("the stored window does not count")
		}
		clients.Go(func() {
			time.Sleep(time.Until(ends))
			began[i] = time.Now()
			admitted[i] = s.admissionsOf(t, key, perMinute+1)
			ended <- struct{}{}
		})
	}
	go func() {
		clients.Wait()
		close(ended)
	}()
	followers := c.followers()
	for _, i := range followers {
		c.pause(i)
	}
	drain(another)
	isHeld.Store(false)
	close(release)
	<-another
	drain(ended)
	for range 4 {
		<-ended
	}
	for _, i := range followers {
		c.resume(i)
	}
	clients.Wait()
	drain(another)
	for range 3 { // two that the cluster has taken, since they are not the same
		<-another
	}
	for i, key := range all {
		again := s.admissionsOf(t, key, perMinute)
		if admitted[i]+again > perMinute*windowsSince(began[i]) {
			t.Errorf("of %d a minute %d are admitted, and then %d", perMinute, admitted[i], again)
		}
	}
}

// hearsOfTheDead lets the flush and the ban of a service that was killed arrive after a minute, as
// far as the windows tell. They change neither the minute that runs nor a newer ban.
func (c *cluster) hearsOfTheDead(t *testing.T) {
	var flush atomic.Value // of the key
	flush.Store("nothing yet")
	var areHeld [2]atomic.Bool
	release := make(chan struct{})
	var late sync.WaitGroup
	dead := c.serveBehind(t, func(request string, pass func()) {
		for i, part := range []string{flush.Load().(string), bans} {
			if strings.Contains(request, part) {
				late.Add(1)
				defer late.Done()
				areHeld[i].Store(true)
				<-release
				break
			}
		}
		pass()
	}, "-ban-for", "5m")
	letGo := sync.OnceFunc(func() { close(release) })
	t.Cleanup(letGo) // or the relay could not end
	counted, banned := dead.keyOf("5"), dead.keyOf("1")
	flush.Store(fmt.Sprintf(`\"ID\":%s,`, counted.id))
	dead.expect(t, counted.token, "200 of 5")
	var clients sync.WaitGroup
	clients.Go(func() {
		for !areHeld[1].Load() && t.Context().Err() == nil {
			_, _ = call(dead.url, banned.token, "GET", "/pets?limit=1", "", "")
		}
	})
	eventually(t, longEnough, func() error {
		if !areHeld[0].Load() || !areHeld[1].Load() {
			return fmt.Errorf("the flush is held back: %v, and the ban: %v", areHeld[0].Load(),
				areHeld[1].Load())
		}
		return nil
	})
	dead.kill()
	clients.Wait()

	// A window that begins a minute from now ends then. It counts already.
	c.storeWindow(counted, 5, time.Now().Add(2*time.Minute))
	s := c.serve()
	s.expect(t, counted.token, "429 rate_limited")
	for s.ask(t, banned.token) != "429 key_banned" {
	}
	bannedUntil := s.listed(banned.token).BannedUntil
	letGo()
	late.Wait()
	for _, service := range []*server{s, c.serve()} {
		service.expect(t, counted.token, "429 rate_limited")
		service.expect(t, banned.token, "429 key_banned")
	}
	if got := s.listed(banned.token).BannedUntil; !got.Equal(bannedUntil) {
		t.Errorf("the ban ended at %v, and ends at %v now", bannedUntil, got)
	}
}
