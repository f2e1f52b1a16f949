package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// TestTheCacheIsBounded by the memory that it really takes, also while many read.
func TestTheCacheIsBounded(t *testing.T) {
	const most = 1 << 20
	s := newStore(t)
	mustWrite(t, s, sqlOf(`
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000)
		INSERT INTO pets (category_id, status, name) SELECT i, 2 + i % 3, 'Bella' FROM n`))
	s.documents.max = most
	size := func() int64 {
		s.documents.mu.Lock()
		defer s.documents.mu.Unlock()
		return s.documents.size
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	pet, err := s.pet(5000)
	must(t, err)
	wantEqual(t, size(), entryBytes+int64(len(pet.body)), "what one pet counts")
	before := heap()
	var wg sync.WaitGroup
	for worker := range int64(4) {
		wg.Go(func() {
			for i := worker; i < 4000; i += 4 {
				_, err := s.pet(i + 1)
				must(t, err)
				p, err := s.page("", 1+int(i)%5, i)
				must(t, err)
				if !bytes.HasPrefix(p.body, fmt.Appendf(nil, `[{"id":%d,`, i+1)) {
					t.Errorf("the page after %d is %.100s", i, p.body)
					return
				}
				if n := size(); n > most+4<<13 { // each worker may be about to make room
					t.Errorf("%d bytes are cached", n)
					return
				}
			}
		})
	}
	wg.Wait()
	if taken := heap() - before; size() < most*3/4 || size() > most || taken > most*12/10 {
		t.Errorf("%d bytes are counted, which take %d, of %d", size(), taken, most)
	}
}

// TestACacheThatIsTooSmallKeepsSomeEntries of those that are read in turn, and none for ever.
func TestACacheThatIsTooSmallKeepsSomeEntries(t *testing.T) {
	const size, items = 1000, 1500
	c := cache[int, int]{max: size}
	found := func() (n int) {
		for i := range items {
			if c.get(i) != 0 {
				n++
			}
			c.put(i, i+1, 1)
		}
		return n
	}
	for range 50 {
		found()
	}
	if n := found(); n < items/3 {
		t.Errorf("a pass of %d finds %d", items, n)
	}
	if n := c.size; n > size || int(n) != len(c.entries) {
		t.Errorf("the size is %d, and there are %d entries", n, len(c.entries))
	}
	for i := range 100 * size {
		c.put(-i-1, i, 1)
	}
	if n := found(); n > items/2 {
		t.Errorf("%d entries that nobody has read any more are left", n)
	}
}

func TestALargeEntryTakesThePlaceOfOthers(t *testing.T) {
	c := cache[string, string]{max: 10}
	c.put("a", "a1", 5)
	c.put("b", "b1", 5)
	wantEqual(t, c.size, 10, "the size of two that fit together")
	c.put("a", "a2", 6)
	if c.get("a") != "a2" || c.get("b") != "" || c.size != 6 {
		t.Errorf("there are %v, of size %d", c.entries, c.size)
	}
	c.put("b", "b2", 10)
	wantEqual(t, c.get("b"), "b2", "an entry that fills all the room")
	c.put("a", "a3", 11)
	if c.get("a") == "a3" || c.size > 10 {
		t.Errorf("an entry without room is kept: %v, of size %d", c.entries, c.size)
	}
}

func TestARemovedEntryGivesItsSizeBack(t *testing.T) {
	c := cache[string, string]{max: 10}
	c.put("a", "a1", 4)
	c.put("b", "b1", 5)
	c.remove("a")
	c.remove("nothing")
	if c.get("a") != "" || c.get("b") != "b1" || c.size != 5 {
		t.Errorf("there are %v, of size %d", c.entries, c.size)
	}
}

// lookingService is a service in fake time with a key that it remembers. Nothing looks for edits
// beside the requests unless a test starts that: so is a service in the first moment after a pause.
type lookingService struct {
	*service
	t       *testing.T
	cluster *fakeCluster // nil: it is on a file
	token   secret
}

func newLookingService(t *testing.T, s *store) *lookingService {
	token := mustInsertKey(t, s, apiKey{
		Plan: enterprisePlan, account: account{quota: quota{1_000_000, 1_000_000}},
	})
	l := &lookingService{
		service: newService(s, settings{}, testLog),
		t:       t,
		token:   token,
	}
	l.want(http.StatusOK, 0)
	return l
}

// background starts what runs beside the requests.
func (l *lookingService) background() *background {
	log := newServerLog()
	l.log = newLogger(log, "json", 0)
	stop := runBackground(l.service, nil, nil)
	return &background{service: l.service, T: l.t, log: log, stop: stop}
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
	wantEqual(l.t, w.Code, status, "the status")
	wantEqual(l.t, time.Since(began), takes, "the time that it takes")
}

// onLookingCluster runs a test with such a service on imitated nodes.
func onLookingCluster(t *testing.T, test func(t *testing.T, l *lookingService)) {
	t.Helper()
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		l := newLookingService(t, s)
		l.cluster = c
		c.arrived()
		test(t, l)
		must(t, s.Close())
	})
}

// revoke revokes the key elsewhere.
func (l *lookingService) revoke() {
	l.cluster.exec("UPDATE api_keys SET revoked_at = 1",
		"UPDATE counters SET value = value + 1 WHERE name = 'edits'")
}

const lookAtCluster = "0 POST /db/query?level=linearizable"

// begin begins a look that gets an answer of its own, as the task does that looks.
func (l *lookingService) begin(answer fakeAnswer) {
	answerOnce(l.cluster, answer)
	go func() { _ = l.store.keepUp() }()
	synctest.Wait()
}

// answerLate answers with what is true when it is asked, and takes a while for it.
func answerLate(n *fakeNode, w http.ResponseWriter, r *http.Request) {
	n.fake.mu.Lock()
	n.serve(w, r)
	n.fake.mu.Unlock()
	time.Sleep(1500 * time.Millisecond)
}

// play does what the lines of a script say. Here a key is revoked elsewhere, and honoured until the
// service looks again, a second after its last look:
//
//	revoke
//	1 get 200 in 0s
//	wait 1.000000001s
//	1 get 401 in 0s
//
// The lines are:
//
//	wait 1s               lets time pass
//	revoke                revokes the key elsewhere
//	slow 700ms            lets the cluster take so long for each answer
//	frozen                lets the leader respond no more, and another node lead
//	well                  ends both
//	lost                  begins a look whose answer never comes
//	late                  begins one whose answer comes 1.5 s later
//	20 get 200 in 125ms   sends so many requests at once, and checks what becomes of them
//	1 waits 401 in 1ms    does the same, without waiting for them
//	asked 1               checks how often the cluster was asked
//	background quiet      starts what runs beside the requests, which logs nothing if it is quiet
func (l *lookingService) play(script string) {
	l.t.Helper()
	c := l.cluster
	var clients sync.WaitGroup
	for line := range strings.Lines(strings.TrimSpace(script)) {
		words := strings.Fields(line)
		last := words[len(words)-1]
		takes, _ := time.ParseDuration(last)
		times, _ := strconv.Atoi(last)
		switch words[0] {
		case "wait":
			time.Sleep(takes)
			synctest.Wait()
		case "revoke":
			l.revoke()
		case "slow":
			c.before("/", func(r *http.Request) { pause(r.Context(), takes) })
		case "frozen":
			c.freeze(0)
			c.lead(1)
		case "well":
			c.when(nil)
		case "lost":
			l.begin(hang)
		case "late":
			l.begin(answerLate)
		case "asked":
			c.wantArrived(slices.Repeat([]string{lookAtCluster}, times)...)
		case "background":
			b := l.background()
			if last == "quiet" {
				defer b.wantLog()
			}
			defer func() { must(l.t, b.stop()) }()
		default:
			var requests, status int
			var verb string
			must(l.t, errorOf(fmt.Sscan(line, &requests, &verb, &status)))
			for range requests {
				clients.Go(func() { l.want(status, takes) })
			}
			if verb == "get" {
				clients.Wait()
			}
			synctest.Wait()
		}
	}
}

// TestWhatIsOldIsLookedUpBeforeItIsTrusted, as after a pause.
func TestWhatIsOldIsLookedUpBeforeItIsTrusted(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s, other := openDatabase(t, path), openDatabase(t, path)
		l := newLookingService(t, s)
		must(t, revokeNow(t.Context(), other, 1, 1))
		time.Sleep(trustFor + 1)
		l.want(http.StatusUnauthorized, 0)
	})
	for what, script := range map[string]string{
		"a look counts for a second from its beginning, and is made once for all that wait": `
			wait 1s
			1 get 200 in 0s
			asked 0
			wait 1ns
			slow 125ms
			20 get 200 in 125ms
			well
			asked 1
			revoke
			wait 875ms
			1 get 200 in 0s
			wait 1ns
			1 get 401 in 0s`,
		"the late answer to a look from before a pause tells nothing": `
			late
			revoke
			wait 1.5s
			1 get 401 in 0s`,
		"a look from before a pause that was lost tells nothing": `
			lost
			revoke
			wait 1.5s
			1 get 401 in 0s`,
		"four looks that hang do not keep out the one after a pause": `
			lost
			wait 250ms
			lost
			wait 250ms
			lost
			wait 250ms
			lost
			wait 250ms
			revoke
			wait 1.000000001s
			1 get 401 in 0s`,
		"a look that is too slow is waited for half a second, once, by however many": `
			wait 1.000000001s
			slow 700ms
			20 get 200 in 500ms
			asked 1`,
		"after a pause, a second node is asked": `
			revoke
			frozen
			wait 1.000000001s
			1 get 401 in 250ms`,
		"a slow look is no error: services that start together may wait for each other so long": `
			slow 700ms
			background quiet
			wait 1m`,
		"a slow look after a pause is made up for by those that follow": `
			revoke
			slow 700ms
			wait 1.000000001s
			1 get 200 in 500ms
			background
			wait 1s
			well
			1 get 401 in 0s`,
	} {
		t.Run(what, func(t *testing.T) {
			onLookingCluster(t, func(_ *testing.T, l *lookingService) {
				l.play(script)
			})
		})
	}
}

func TestALookCountsByBothClocks(t *testing.T) {
	for what, ages := range rowsOf(t, `
		is recent: a look a second ago => 1s 1s
		is old: a look longer ago => 1.000000001s 1.000000001s
		is old: a machine that was suspended => 1ms 1h
		is old: a clock that was set back => 1ms -1ns
		is old: a clock that was set back in a pause => 1h 1ms`) {
		first, second, _ := strings.Cut(ages, " ")
		age, _ := time.ParseDuration(first)
		wallAge, _ := time.ParseDuration(second)
		wantEqual(t, areRecent(age, wallAge), strings.HasPrefix(what, "is recent"), what)
	}
}

// TestALookThatHangsIsWaitedForOnce: while looks fail, what is remembered is served at once, and
// the log says so once. After that, edits hold again.
func TestALookThatHangsIsWaitedForOnce(t *testing.T) {
	onLookingCluster(t, func(t *testing.T, l *lookingService) {
		l.cluster.freeze(0, 1, 2)
		time.Sleep(trustFor + 1)
		l.want(http.StatusOK, lookWait)
		l.want(http.StatusOK, 0)
		b := l.background()
		for range 2000 {
			time.Sleep(10 * time.Millisecond)
			l.want(http.StatusOK, 0)
		}
		b.wantLog(`"ERROR","msg":"cannot look for edits`, `"ERROR","msg":"cannot write usage`)
		l.cluster.when(nil)
		l.revoke()
		time.Sleep(5 * time.Second)
		l.want(http.StatusUnauthorized, 0)
		must(t, b.stop())
	})
}

// TestACloseStopsTheLooksThatRun, also those that hang.
func TestACloseStopsTheLooksThatRun(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.freeze(0, 1, 2)
		for range 2 {
			_ = s.keepUp()
		}
		wantTime(t, "the end", 0, 0, nil, s.Close)
	})
}

// TestAChangeIsNotedByTheLookThatSeesIt before any other look can see none, also by looks that
// overlap while the writing connection is busy.
func TestAChangeIsNotedByTheLookThatSeesIt(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s, other := openDatabase(t, path), openDatabase(t, path)
		must(t, s.refresh(t.Context()))
		var noted atomic.Int64
		note := func() { noted.Add(1) }
		mustCreate(t, other, rex)
		must(t, s.engine.changed(t.Context(), func() {
			note()
			go func() { must(t, s.engine.changed(t.Context(), note)) }()
			time.Sleep(writerWait + 1)
		}))
		wantEqual(t, noted.Load(), 2, "how many looks have noted the change")
		must(t, s.engine.changed(t.Context(), note))
		wantEqual(t, noted.Load(), 2, "when nothing has changed since, the same number")

		mustCreate(t, other, rex)
		busy := fileEngine(s).busy
		busy <- struct{}{}
		var looks sync.WaitGroup
		for range 2 {
			looks.Go(func() { must(t, s.engine.changed(t.Context(), note)) })
			synctest.Wait()
		}
		looks.Wait()
		<-busy
		wantEqual(t, noted.Load(), 4, "with those that did not wait for a writer, the same number")
	})
}

// TestAFileWhoseOneLookHangsForGood: the others see an edit, and a stop does not wait for long.
func TestAFileWhoseOneLookHangsForGood(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s, other := openDatabase(t, path), openDatabase(t, path)
		l := newLookingService(t, s)
		hangs := make(chan bool)
		defer close(hangs)
		var readings atomic.Int64
		s.engine = &hookedEngine{engine: s.engine, afterRead: func() {
			if readings.Add(1) == 1 {
				<-hangs
			}
		}}
		b := l.background()
		time.Sleep(5 * time.Second)
		l.want(http.StatusOK, 0)
		must(t, revokeNow(t.Context(), other, 1, 1))
		time.Sleep(time.Second)
		l.want(http.StatusUnauthorized, 0)
		b.wantLog()
		must(t, b.stop())
		wantTime(t, "the end", lookWait, lookWait, nil, s.Close)
	})
}

// remembering is a memory whose looks do what a test says.
type remembering struct {
	memory
	looks atomic.Int64
	do    func(look int64) error // called by each look, with its number
}

func newRemembering() *remembering {
	m := &remembering{do: func(int64) error { return nil }}
	m.begin(func(context.Context) error { return m.do(m.looks.Add(1)) })
	return m
}

// wantLooks lets a request begin, and checks how many looks there have been then.
func (m *remembering) wantLooks(t *testing.T, want int64, what ...any) {
	t.Helper()
	m.catchUp(time.Now())
	wantEqual(t, m.looks.Load(), want, append([]any{"the number of looks "}, what...)...)
}

// TestALookThatEndsLateTakesNothingBack: what a newer one has shown counts. That one from before a
// pause has failed is not told.
func TestALookThatEndsLateTakesNothingBack(t *testing.T) {
	for what, isPaused := range map[string]bool{
		"after a newer one":             false,
		"after a pause and a newer one": true,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newRemembering()
				release := make(chan bool)
				m.do = func(look int64) error {
					if look != 1 {
						return nil
					}
					<-release // whatever the context says
					if isPaused {
						return errUnavailable
					}
					return nil
				}
				must(t, m.keepUp())
				if isPaused {
					time.Sleep(2 * time.Second)
				} else {
					must(t, m.keepUp())
				}
				m.wantLooks(t, 2, "with a newer one")
				close(release)
				synctest.Wait()
				time.Sleep(trustFor)
				m.wantLooks(t, 2, "while that is recent")
				m.do = func(int64) error {
					time.Sleep(lookWait)
					return nil
				}
				must(t, m.keepUp())
				time.Sleep(trustFor + 1)
				m.wantLooks(t, 4, "when it is old")
				synctest.Wait() // no look reads m.do now
				m.do = func(int64) error { return errUnavailable }
				wantError(t, m.keepUp(), errUnavailable, "a look that fails")
			})
		})
	}
}

// TestReadinessForgetsNothing: a check and a commit that end at once are both noted.
func TestReadinessForgetsNothing(t *testing.T) {
	m := newRemembering()
	var wg sync.WaitGroup
	for part, noted := range map[*error]func() error{
		&m.ready.reading:    func() error { return m.readySoFar().reading },
		&m.ready.committing: func() error { return m.readySoFar().committing },
	} {
		wg.Go(func() {
			for i := range 100_000 {
				want := []error{nil, errUnavailable}[i%2]
				m.noteReady(part, want)
				if got := noted(); !errors.Is(got, want) {
					t.Errorf("what was noted is %v, want %v", got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestAClockThatWasSetBackMakesALookNew, however short ago the last one was. This is in real time,
// since fake time has no clock beside that of the wall.
func TestAClockThatWasSetBackMakesALookNew(t *testing.T) {
	m := newRemembering()
	// A test cannot set the clock back. So the instant from which on memory is trusted is moved on
	// by an hour, by the wall's clock alone: its seconds begin at bit 30 of the first word.
	ahead := *m.trustedAt.Load()
	*(*uint64)(unsafe.Pointer(&ahead)) += 3600 << 30
	wantWithin(t, time.Until(ahead.Round(0)), 1, time.Hour, "how far that is ahead")
	m.trustedAt.Store(&ahead)
	m.wantLooks(t, 1, "after the clock was set back by an hour")
	if at := *m.trustedAt.Load(); time.Until(at.Round(0)) > 0 {
		t.Errorf("after that look, memory is trusted from %v on", at)
	}
}

// TestALookAtAFileWaitsForNoWriter: a sync hangs, while another program revokes the key.
func TestALookAtAFileWaitsForNoWriter(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s, other := openDatabase(t, path), openDatabase(t, path)
		l := newLookingService(t, s)
		busy := fileEngine(s).busy
		busy <- struct{}{}
		mustWrite(t, other, revokeKey(1, 1)) // which counts no edit
		time.Sleep(trustFor + 1)
		l.want(http.StatusUnauthorized, writerWait)
		time.Sleep(trustFor + 1)
		l.want(http.StatusUnauthorized, 0)
		<-busy
	})
}

// TestNothingIsDeletedByAClockThatWasSet for an hour, by the clock that nobody can set. To that, a
// machine that was suspended looks the same.
func TestNothingIsDeletedByAClockThatWasSet(t *testing.T) {
	clock := steadyClock{began: instantOf(testTime)}
	var age time.Duration
	var offset instant
	ask := func(want bool, what ...any) {
		t.Helper()
		now := instantOf(testTime.Add(age)) + offset
		wantEqual(t, clock.isSteady(age, now), want, what...)
		age += time.Minute
	}
	ask(true, "at the start")
	offset = minuteMillis
	ask(true, "after the clock was put right by a minute")
	for _, offset = range []instant{2 * 365 * dayMillis, 0, -minuteMillis - 1} {
		for minute := range 60 {
			ask(false, "in minute ", minute)
		}
		ask(true, "after an hour")
	}
}
