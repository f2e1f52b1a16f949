package main

// What a service remembers of the database, and for how long that counts. Others may change the
// database at any time. So a service looks for their edits four times a second, and uses what it
// remembers for a second after a look at most. Each look that finds an edit makes all that was
// remembered before old: see generation.
//
// A process that was paused, with its machine or alone, has looked at nothing meanwhile. So the
// first request after a pause begins a new look, and all requests wait for it: see catchUp. What a
// look from before the pause says is not believed.
//
// If looks fail, as without a leader of a cluster, what is remembered is used on, so that the
// service stays usable. For the operator's page, it is also remembered whether the database could
// be used when somebody tried last.

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// memory is what is remembered. It is safe for concurrent use.
type memory struct {
	// What was asked for is remembered under one bound: a *listPage by its place, a *cachedPet by
	// its id.
	documents cache[any, any]

	// generation counts how often this service has noticed that others may have changed rows. A
	// cached page, pet or key keeps the generation from before it was read, and is fresh while that
	// is the store's.
	generation atomic.Uint64
	edits      atomic.Int64 // the number of edits that was read last
	// highestShown is the highest id of a pet that a response of this service may have shown. A
	// last page that was read before may lack this pet: see fresh.
	highestShown atomic.Int64

	refresh func(ctx context.Context) error // looks for edits by others, and notes them
	// turn holds an element while somebody waits for a look. It is a channel in place of a mutex,
	// because testing/synctest does not see that a goroutine waits for a mutex.
	turn chan struct{}

	// What is remembered may be used until trustFor after trustedAt, which never goes back.
	trustedAt atomic.Pointer[time.Time]

	mu      sync.Mutex     // guards what follows, and changes of trustedAt
	running map[*look]bool // the looks that have begun since the last pause
	lastErr error          // of the last look that has ended
	ready   readiness
}

// readiness is whether the database can be used, as far as somebody has seen it.
type readiness struct {
	reading    error     // of the last check that has read
	committing error     // of the last commit
	since      time.Time // when the service became ready, or ceased to be
}

func (r readiness) err() error { return cmp.Or(r.reading, r.committing) }

// look is one look for edits by others.
type look struct {
	began time.Time
	stop  func()        // cancels it
	ended chan struct{} // closed when err is known
	err   error
}

const (
	lookEvery = 250 * time.Millisecond // how often the service looks for edits
	lookWait  = 500 * time.Millisecond // how long a request waits for a look
	trustFor  = time.Second            // how long what is remembered may be used after a look
	maxLooks  = 4                      // that run at once: each may hang
)

// begin is called once, before anything is remembered that could be old.
func (m *memory) begin(refresh func(ctx context.Context) error) {
	m.refresh = refresh
	m.turn = make(chan struct{}, 1)
	m.running = map[*look]bool{}
	now := time.Now()
	m.trustedAt.Store(&now)
}

// end stops the looks that run. Those that hang are left after lookWait.
func (m *memory) end() {
	m.mu.Lock()
	running := m.stopLooks()
	m.mu.Unlock()
	tooLate := time.After(lookWait)
	for l := range running {
		select {
		case <-l.ended:
		case <-tooLate:
			return
		}
	}
}

// stopLooks cancels the looks that run. From then on they hold no place, and what they say is not
// believed. The caller holds the lock.
func (m *memory) stopLooks() (stopped map[*look]bool) {
	stopped = m.running
	m.running = map[*look]bool{}
	for l := range stopped {
		l.stop()
	}
	return stopped
}

// areRecent reports whether an event is recent, by its ages on the monotonic and on the wall clock.
// The first clock stops while a machine is suspended. The other may be set back. Then the age is
// negative and tells nothing, so the event counts as old.
func areRecent(age, wallAge time.Duration) bool {
	return age <= trustFor && wallAge >= 0 && wallAge <= trustFor
}

// recent reports whether an instant is recent. It may be later than now: a look may have begun
// after the request that asks.
func recent(at, now time.Time) bool {
	age := now.Sub(at)
	wallAge := now.Round(0).Sub(at.Round(0)) // Round leaves only the wall clock
	return age < 0 || areRecent(age, wallAge)
}

// steadyClock tells whether the wall clock may be believed by what deletes for good. A clock that
// is wrong for a moment must not delete what others still need.
type steadyClock struct {
	began    instant       // when the tasks began, by the wall clock when it was last asked
	believed time.Duration // the age of the tasks at which the clock may be believed again
}

// isSteady reports whether the clock was not set in the last hour, or only by a minute. It takes
// the age of the tasks that ask, by the monotonic clock, and the wall clock. It is to be asked
// every minute.
func (c *steadyClock) isSteady(age time.Duration, now instant) bool {
	began := now - instant(age.Milliseconds()) // always the same, while nobody sets the clock
	wasSet := max(began-c.began, c.began-began) > minuteMillis
	c.began = began
	if wasSet {
		c.believed = age + time.Hour
	}
	return age >= c.believed
}

// isTrusted reports whether what is remembered may be used now.
func (m *memory) isTrusted(now time.Time) bool { return recent(*m.trustedAt.Load(), now) }

// trust lets what is remembered count from an instant on. The caller holds the lock.
func (m *memory) trust(at time.Time) {
	if at.After(*m.trustedAt.Load()) {
		m.trustedAt.Store(&at)
	}
}

// catchUp comes before a request that began at now uses what is remembered. If that is old, one
// request looks, and the others wait for their turn. The service looks so often that this happens
// only after a pause of the process or its machine, or when the clock was set.
func (m *memory) catchUp(now time.Time) {
	for !m.isTrusted(now) {
		m.turn <- struct{}{}
		if !m.isTrusted(now) {
			_ = m.waitForLook() // the task that looks logs the error
		}
		<-m.turn
	}
}

// keepUp looks for edits by others. The service calls it every lookEvery.
func (m *memory) keepUp() error {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	return m.waitForLook()
}

// waitForLook begins a look and waits for it, at most for lookWait. If the look fails or is slow,
// what is remembered may be used on, unless the process was paused meanwhile. The error is that of
// the look or, if it is slow, that of the last look that has ended. The caller has the turn.
func (m *memory) waitForLook() error {
	began := time.Now()
	wait := lookWait
	if m.isTrusted(began) {
		wait = lookEvery // the next look is due then, so that nothing gets old while looks hang
	}
	l, err := m.beginLook(began)
	select {
	case <-l.ended:
		if l.err == nil {
			return nil
		}
		err = l.err
	case <-time.After(wait):
	}
	// The clock is read anew, since the wait may have been longer than it should be.
	now := time.Now()
	wasPaused := !recent(began, now) // then the wait says nothing about the database
	if !wasPaused {
		m.mu.Lock()
		m.trust(now)
		m.mu.Unlock()
	}
	return err
}

// beginLook begins a look, and returns it with the error of the last one that has ended. If
// maxLooks hang, it returns a look that never ends.
func (m *memory) beginLook(now time.Time) (l *look, lastErr error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l = &look{began: now, ended: make(chan struct{})}
	ctx := context.Background()
	switch {
	case !m.isTrusted(now):
		// The process was paused, and requests wait for this look. It ends within lookWait, so that
		// the engine leaves a node that hangs, and asks another one in time.
		m.stopLooks()
		ctx, l.stop = context.WithTimeout(ctx, lookWait)
	case len(m.running) == maxLooks:
		return l, m.lastErr
	default:
		ctx, l.stop = context.WithCancel(ctx)
	}
	m.running[l] = true
	go m.runLook(ctx, l)
	return l, m.lastErr
}

func (m *memory) runLook(ctx context.Context, l *look) {
	defer close(l.ended)
	defer l.stop()
	l.err = panicAsError(func() error { return m.refresh(ctx) })
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running[l] { // it is from before a pause
		return
	}
	delete(m.running, l)
	m.lastErr = l.err
	if l.err == nil {
		m.trust(l.began) // its answer may be older than now
	}
}

// readySoFar is what is known of readiness.
func (m *memory) readySoFar() readiness {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ready
}

// noteReady notes one part of readiness: reading or committing of m.ready.
func (m *memory) noteReady(part *error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.ready.err()
	*part = err
	if (before == nil) != (m.ready.err() == nil) {
		m.ready.since = time.Now()
	}
}

// forget makes all that is remembered old.
func (m *memory) forget() { m.generation.Add(1) }

// noteEdits takes the number of edits that a read has returned. A page that shows an edit makes all
// that was cached before the edit stale. Otherwise a client that has seen the edit on one page
// could see another page without it, until the next look.
func (m *memory) noteEdits(edits int64) {
	if m.edits.Load() != edits {
		// First forget: another request that finds the new number in edits shows the edit at once.
		// By then, nothing from before the edit may be fresh.
		m.forget()
		m.edits.Store(edits)
	}
}

// noteShown takes the id of a pet that a response may show from now on.
func (m *memory) noteShown(id int64) {
	for {
		highest := m.highestShown.Load()
		if id <= highest || m.highestShown.CompareAndSwap(highest, id) {
			return
		}
	}
}

// cache is a map for concurrent use whose entries have sizes. To make room for new ones it drops
// entries at random. Clients that read more than fits, in turn, would never find an entry if it
// dropped the oldest.
type cache[K comparable, V any] struct {
	max int64 // of size

	mu      sync.RWMutex // guards what follows
	size    int64        // of all entries together
	entries map[K]sized[V]
}

type sized[V any] struct {
	value V
	size  int64
}

// get returns the zero value if there is none.
func (c *cache[K, V]) get(key K) V {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.entries[key].value
}

// remove drops what is kept under a key, if anything is.
func (c *cache[K, V]) remove(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.size -= c.entries[key].size
	delete(c.entries, key)
}

// put keeps a value, unless it is larger than the whole cache.
func (c *cache[K, V]) put(key K, value V, size int64) {
	if size > c.max {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[K]sized[V]{}
	}
	c.size += size - c.entries[key].size
	c.entries[key] = sized[V]{value: value, size: size}
	// Others make room for the new entry. Go's order of a map is random.
	for other, entry := range c.entries {
		if c.size <= c.max {
			return
		}
		if other != key {
			delete(c.entries, other)
			c.size -= entry.size
		}
	}
}
