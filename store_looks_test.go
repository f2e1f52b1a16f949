package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// lookingService is a service in fake time with a key that it remembers. Nothing looks for edits
// beside the requests unless a test starts that: so is a service in the first moment after a pause.
type lookingService struct {
	*service
	t     *testing.T
	token secret
}

func newLookingService(t *testing.T, s *store) *lookingService {
	token := mustInsertKey(t, s, apiKey{
		Plan: enterprisePlan, account: account{quota: quota{1_000_000, 1_000_000}},
	})
	l := &lookingService{newService(s, settings{}, testLog), t, token}
	l.want(http.StatusOK, 0)
	return l
}

// want sends a request and checks its status, and how long it takes.
func (l *lookingService) want(status int, takes time.Duration) {
	l.t.Helper()
	r := httptest.NewRequestWithContext(l.t.Context(), "GET", "/v1/unknown", nil)
	if status == http.StatusOK { // a path that needs no store tells the same as any
		status = http.StatusNotFound
	}
	r.Header["Authorization"] = bearerHeader(l.token)
	w := httptest.NewRecorder()
	began := time.Now()
	l.ServeHTTP(w, r)
	if took := time.Since(began); w.Code != status || took != takes {
		l.t.Errorf("the status is %d after %v, want %d after %v", w.Code, took, status, takes)
	}
}

// onLookingCluster runs a test with such a service on imitated nodes, and what revokes its key.
func onLookingCluster(t *testing.T,
	test func(t *testing.T, c *fakeCluster, l *lookingService, revoke func())) {
	t.Helper()
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		l := newLookingService(t, s)
		c.arrived()
		test(t, c, l, func() {
			c.exec("UPDATE api_keys SET revoked_at = 1",
				"UPDATE counters SET value = value + 1 WHERE name = 'edits'")
		})
		must(t, s.Close())
	})
}

const lookAtCluster = "0 POST /db/query?level=linearizable"

// TestWhatIsOldIsLookedUpBeforeItIsTrusted, once for all that wait.
func TestWhatIsOldIsLookedUpBeforeItIsTrusted(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s, other := openDatabase(t, path), openDatabase(t, path)
		l := newLookingService(t, s)
		must(t, revokeNow(t.Context(), other, 1, 1))
		time.Sleep(lookCount + 1)
		l.want(http.StatusUnauthorized, 0)
	})
	onLookingCluster(t, func(t *testing.T, c *fakeCluster, l *lookingService, revoke func()) {
		time.Sleep(lookCount)
		l.want(http.StatusOK, 0)
		c.wantArrived()
		time.Sleep(time.Nanosecond)
		c.when(func(*fakeNode, http.ResponseWriter, *http.Request) bool {
			time.Sleep(lookWait / 4)
			return false
		})
		var clients sync.WaitGroup
		for range 20 {
			clients.Go(func() { l.want(http.StatusOK, lookWait/4) })
		}
		clients.Wait()
		c.when(nil)
		c.wantArrived(lookAtCluster)
		revoke()
		time.Sleep(lookCount + 1)
		l.want(http.StatusUnauthorized, 0)
	})
}

func TestALookCountsByBothClocks(t *testing.T) {
	for _, c := range []struct {
		what         string
		age, wallAge time.Duration
		want         bool
	}{
		{"a look a second ago", time.Second, time.Second, true},
		{"a look longer ago", time.Second + 1, time.Second + 1, false},
		{"a machine that was suspended", time.Millisecond, time.Hour, false},
		{"a clock that was set back", time.Millisecond, -1, false},
		{"a clock that was set back in a pause", time.Hour, time.Millisecond, false},
	} {
		if got := isRecent(c.age, c.wallAge); got != c.want {
			t.Errorf("%s: recent is %v", c.what, got)
		}
	}
}

// TestALookFromBeforeAPauseTellsNothing of now: not with an answer that arrives late, nor by being
// lost.
func TestALookFromBeforeAPauseTellsNothing(t *testing.T) {
	for what, late := range map[string]fakeAnswer{
		"an answer that arrives late": func(n *fakeNode, w http.ResponseWriter, r *http.Request) {
			n.fake.mu.Lock()
			n.serve(w, r)
			n.fake.mu.Unlock()
			time.Sleep(1500 * time.Millisecond)
		},
		"an answer that never arrives": func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		},
	} {
		t.Run(what, func(t *testing.T) {
			onLookingCluster(t, func(t *testing.T, c *fakeCluster, l *lookingService, revoke func()) {
				var asked atomic.Bool
				c.when(func(n *fakeNode, w http.ResponseWriter, r *http.Request) bool {
					if asked.Swap(true) {
						return false
					}
					late(n, w, r)
					return true
				})
				l.store.joinLook(t.Context())
				synctest.Wait()
				revoke()
				time.Sleep(1500 * time.Millisecond)
				synctest.Wait()
				l.want(http.StatusUnauthorized, 0)
			})
		})
	}
}

// TestALookThatHangsIsWaitedForOnce: while looks fail, what is remembered is served at once, and the
// log says so once. After that, edits hold again.
func TestALookThatHangsIsWaitedForOnce(t *testing.T) {
	onLookingCluster(t, func(t *testing.T, c *fakeCluster, l *lookingService, revoke func()) {
		c.freeze(0, 1, 2)
		time.Sleep(lookCount + 1)
		l.want(http.StatusOK, lookWait)
		l.want(http.StatusOK, 0)
		log := newServerLog()
		l.log = newLogger(log, "json", 0)
		b := &background{service: l.service, t: t, log: log, stop: runBackground(l.service, nil, nil)}
		for range 2000 {
			time.Sleep(10 * time.Millisecond)
			l.want(http.StatusOK, 0)
		}
		b.wantLog(`"ERROR","msg":"cannot look for edits`, `"ERROR","msg":"cannot write usage`)
		c.when(nil)
		revoke()
		time.Sleep(5 * time.Second)
		l.want(http.StatusUnauthorized, 0)
		must(t, b.stop())
	})
}

// onLostLook runs a test with a look that gets no answer, as if it had been lost in a pause. It is
// young enough to be joined when the one before it is old.
func onLostLook(t *testing.T, test func(l *lookingService, c *fakeCluster, revoke func())) {
	t.Helper()
	onLookingCluster(t, func(t *testing.T, c *fakeCluster, l *lookingService, revoke func()) {
		time.Sleep(lookCount)
		var isLost atomic.Bool
		c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
			if isLost.Swap(true) {
				return false
			}
			<-r.Context().Done()
			return true
		})
		l.store.joinLook(t.Context())
		synctest.Wait()
		test(l, c, revoke)
	})
}

// TestALookThatIsJoinedIsWaitedForNoLonger than one that is begun, by however many.
func TestALookThatIsJoinedIsWaitedForNoLonger(t *testing.T) {
	onLostLook(t, func(l *lookingService, c *fakeCluster, _ func()) {
		time.Sleep(lookCount)
		var clients sync.WaitGroup
		for range 20 {
			clients.Go(func() { l.want(http.StatusOK, lookWait) })
		}
		clients.Wait()
		c.wantArrived(lookAtCluster)
	})
}

// TestALookThatIsReplacedTellsNothing: whoever waits for it waits for the other one.
func TestALookThatIsReplacedTellsNothing(t *testing.T) {
	onLostLook(t, func(l *lookingService, _ *fakeCluster, revoke func()) {
		revoke()
		time.Sleep(lookCount - lookEvery)
		var client sync.WaitGroup
		client.Go(func() { l.want(http.StatusUnauthorized, lookEvery+1) })
		synctest.Wait()
		time.Sleep(lookEvery + 1)
		l.want(http.StatusUnauthorized, 0)
		client.Wait()
	})
}

// TestALookThatIsSlowIsNoError: services that start together may wait for each other so long.
func TestALookThatIsSlowIsNoError(t *testing.T) {
	onLookingCluster(t, func(t *testing.T, c *fakeCluster, l *lookingService, _ func()) {
		c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
			pause(r.Context(), 700*time.Millisecond)
			return false
		})
		log := newServerLog()
		l.log = newLogger(log, "json", 0)
		b := &background{service: l.service, t: t, log: log, stop: runBackground(l.service, nil, nil)}
		time.Sleep(time.Minute)
		must(t, b.stop())
		b.wantLog()
	})
}

// TestASlowLookAfterAPauseIsMadeUpFor by those that follow.
func TestASlowLookAfterAPauseIsMadeUpFor(t *testing.T) {
	onLookingCluster(t, func(t *testing.T, c *fakeCluster, l *lookingService, revoke func()) {
		revoke()
		c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
			pause(r.Context(), 700*time.Millisecond)
			return false
		})
		time.Sleep(lookCount + 1)
		l.want(http.StatusOK, lookWait)
		stop := runBackground(l.service, nil, nil)
		time.Sleep(time.Second)
		c.when(nil)
		l.want(http.StatusUnauthorized, 0)
		must(t, stop())
	})
}

// TestACloseStopsTheLookThatRuns, also one that hangs.
func TestACloseStopsTheLookThatRuns(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.freeze(0, 1, 2)
		l := s.joinLook(t.Context())
		synctest.Wait()
		wantTime(t, "the end", 0, 0, nil, s.Close)
		if l.err == nil {
			t.Error("the look has succeeded")
		}
	})
}

// TestLooksThatOverlapReportAChange, each of them.
func TestLooksThatOverlapReportAChange(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s, other := openDatabase(t, path), openDatabase(t, path)
		must(t, s.refresh(t.Context()))
		mustCreate(t, other, rex)
		busy := fileEngine(s).busy
		busy <- struct{}{}
		var looks sync.WaitGroup
		for range 2 {
			looks.Go(func() {
				if changed, err := s.engine.changed(t.Context()); !changed || err != nil {
					t.Errorf("a look reports %v, %v", changed, err)
				}
			})
			synctest.Wait()
		}
		looks.Wait()
		<-busy
	})
}

// TestALookAtAFileWaitsForNoWriter: a sync hangs, while another program revokes the key.
func TestALookAtAFileWaitsForNoWriter(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s, other := openDatabase(t, path), openDatabase(t, path)
		l := newLookingService(t, s)
		busy := fileEngine(s).busy
		busy <- struct{}{}
		must(t, writing(other, revokeKey(1, 1))()) // which counts no edit
		time.Sleep(lookCount + 1)
		l.want(http.StatusUnauthorized, writerWait)
		time.Sleep(lookCount + 1)
		l.want(http.StatusUnauthorized, 0)
		<-busy
	})
}
