package main

// The limits: how many requests a key may make in a minute and in a day, and
// what happens to one that will not stop.
//
// A key has two token buckets of a special kind: each is refilled whole, once,
// when its window ends (tokens_per_fill equals max_tokens). A window opens with
// the first request it counts and lasts 60 seconds or 24 hours. That gives
// "requests left in the current window" and "resets at" an exact meaning, at
// the price that every such bucket has: up to twice the limit can pass around a
// boundary, half of it just before and half just after.
//
// A worked example, on the Free plan (60 a minute, 1,000 a day):
//
//	12:00:10.0  the first request opens both windows: 59 and 999 left
//	12:00:40.0  the 60th request: 0 and 940 left; the minute ends at 12:01:10
//	12:00:40.5  refused: Retry-After 30; nothing is taken from either bucket
//	12:00:41.0  refused before its Retry-After has passed: strike one
//	12:01:10.0  the minute is whole again: 59 and 939 left
//
// More strikes within one minute than the key has requests a minute ban it.
//
// Time is counted in whole milliseconds throughout, so that what is written to
// the database and read back after a restart is the same instant.

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Lengths of the two windows, in milliseconds.
const (
	minuteMillis = 60 * 1000
	dayMillis    = 24 * 60 * minuteMillis
)

// quota is how many requests are admitted in each window.
type quota struct {
	PerMinute int64 `json:"perMinute"`
	PerDay    int64 `json:"perDay"`
}

// plans holds the quota of each plan. That of an Enterprise key is its own.
var plans = map[string]quota{
	"free":       {60, 1_000},
	"pro":        {300, 10_000},
	"business":   {1_000, 100_000},
	"enterprise": {},
}

// addressQuota is the limit of a caller without a valid key. It has no day.
const addressQuota = 60

// policy is the value of RateLimit-Policy for the quota.
func (q quota) policy() []string {
	return []string{fmt.Sprintf(`"minute";q=%d;w=60, "day";q=%d;w=86400`, q.PerMinute, q.PerDay)}
}

var addressPolicy = []string{fmt.Sprintf(`"address";q=%d;w=60`, addressQuota)}

// bucket counts the requests of one window. The zero bucket is whole. It holds
// what was used rather than what is left, so that a change of the limit
// counts what was used already.
type bucket struct {
	used int64
	ends instant // when it is whole again
}

// instant is Unix milliseconds, 0 for never. As JSON it is RFC 3339, or null.
type instant int64

// at is the instant of a time, rounded down.
func at(t time.Time) instant { return instant(t.UnixMilli()) }

func (i instant) time() time.Time { return time.UnixMilli(int64(i)).UTC() }

func (i instant) MarshalJSON() ([]byte, error) {
	if i == 0 {
		return []byte("null"), nil
	}
	return i.time().MarshalJSON()
}

// open reports whether a window of the given length is running. One that ends
// more than two lengths from now was opened before the clock was set back, and
// counts as over. It is two and not one because requests do not arrive in the
// order in which they read the clock.
func (b bucket) open(now, length instant) bool {
	return now < b.ends && b.ends <= now+2*length
}

// meter shows a bucket at an instant: a whole one resets now.
func (b bucket) meter(now, length instant, limit int64) meter {
	if !b.open(now, length) {
		return meter{limit: limit, left: limit, resets: now}
	}
	return meter{limit: limit, left: max(0, limit-b.used), resets: b.ends}
}

// take counts one request, and opens a window if none is running.
func (b *bucket) take(now, length instant) {
	if !b.open(now, length) {
		*b = bucket{ends: now + length}
	}
	b.used++
}

// meter is what a caller is told about one bucket.
type meter struct {
	limit, left int64 // requests
	resets      instant
}

// standing is where a caller stands after a request was admitted or refused.
type standing struct {
	now         instant
	shown       meter     // the one that X-RateLimit-* describes
	minute, day meter     // RateLimit; a caller without a key has only shown
	refusal     ErrorCode // rate_limited, key_banned, or "" for admitted
	banBegins   bool      // this very refusal has banned the key
	policy      []string  // RateLimit-Policy
}

// usage is what a key, together with the keys that were rotated into it, has
// used. Only the limiter changes it, under its lock.
type usage struct {
	minute, day bucket
	bannedAt    instant // when the last ban began
	bannedUntil instant // when it ends; 0 once it was lifted

	// Not stored: a restart forgives strikes.
	strikes bucket
	retryAt instant // when the Retry-After of the last refusal has passed
}

// admit takes one request from both buckets, or from none and tells why.
func (u *usage) admit(now instant, q quota, banFor time.Duration) standing {
	minute := u.minute.meter(now, minuteMillis, q.PerMinute)
	day := u.day.meter(now, dayMillis, q.PerDay)
	st := standing{now: now, minute: minute, day: day}
	switch {
	case now < u.bannedUntil:
		st.banned(u.bannedUntil)
	case minute.left == 0 || day.left == 0:
		st.refusal, st.shown = CodeRateLimited, refusing(minute, day)
		if u.strike(now, q.PerMinute) && banFor > 0 {
			u.bannedAt, u.bannedUntil = now, now+instant(banFor.Milliseconds())
			u.strikes, u.retryAt = bucket{}, 0
			st.banBegins = true
			st.banned(u.bannedUntil)
		} else {
			u.retryAt = max(u.retryAt, now+1000*instant(st.retryAfter()))
		}
	default:
		u.minute.take(now, minuteMillis)
		u.day.take(now, dayMillis)
		st.minute = u.minute.meter(now, minuteMillis, q.PerMinute)
		st.day = u.day.meter(now, dayMillis, q.PerDay)
		st.shown = st.minute
		if st.day.left <= st.minute.left {
			st.shown = st.day
		}
	}
	return st
}

// refusing is the empty one of two meters or, of two empty ones, the one that
// resets later.
func refusing(minute, day meter) meter {
	if day.left > 0 || minute.left == 0 && minute.resets > day.resets {
		return minute
	}
	return day
}

// banned makes the standing that of a banned key: nothing is left of its minute until the end.
func (st *standing) banned(until instant) {
	st.refusal = CodeKeyBanned
	st.minute.left, st.minute.resets = 0, until
	st.shown = st.minute
}

// strike notes a refusal and reports whether it is one too many. The first
// refusal is no strike: the caller had not been told to wait yet. Strikes are
// counted in the minute's window, or in one of their own while the minute is
// whole and the day refuses.
func (u *usage) strike(now instant, perMinute int64) (ban bool) {
	if now >= u.retryAt {
		return false
	}
	if !u.strikes.open(now, minuteMillis) && u.minute.open(now, minuteMillis) {
		u.strikes = bucket{ends: u.minute.ends} // open with none, for take to count in
	}
	u.strikes.take(now, minuteMillis)
	return u.strikes.used > perMinute
}

// retryAfter is whole seconds until the refusing bucket is whole, rounded up,
// at least 1 (RFC 9110 section 10.2.3).
func (st standing) retryAfter() int64 {
	return max(1, st.shown.seconds(st.now))
}

// seconds until the reset, rounded up.
func (m meter) seconds(now instant) int64 { return ceilSeconds(m.resets - now) }

func ceilSeconds(millis instant) int64 { return (int64(millis) + 999) / 1000 }

// err is the refusal as an Error, or nil if the request was admitted.
func (st standing) err() error {
	switch st.refusal {
	case CodeKeyBanned:
		return newError(st.refusal, "the key is banned for repeated requests after 429; retry in %d s", st.retryAfter())
	case CodeRateLimited:
		return newError(st.refusal, "the limit of %d requests is used up; retry in %d s", st.shown.limit, st.retryAfter())
	}
	return nil
}

// setHeaders sets the limit headers. X-RateLimit-* is spelt as specified, by
// assigning to the map, since Set would write X-Ratelimit. RateLimit and
// RateLimit-Policy follow draft-ietf-httpapi-ratelimit-headers. All values
// share one string and one slice: this runs on every request.
func (st standing) setHeaders(h http.Header) {
	text := make([]byte, 0, 128)
	var ends [4]int
	for i, n := range [...]int64{st.shown.limit, st.shown.left, ceilSeconds(st.shown.resets)} {
		text = strconv.AppendInt(text, n, 10)
		ends[i] = len(text)
	}
	if st.minute.limit > 0 {
		text = st.minute.append(text, `"minute";r=`, st.now)
		text = st.day.append(text, `, "day";r=`, st.now)
	} else {
		text = st.shown.append(text, `"address";r=`, st.now)
	}
	ends[3] = len(text)
	whole, values := string(text), make([]string, 4)
	start := 0
	for i, end := range ends {
		values[i], start = whole[start:end], end
	}
	h["X-RateLimit-Limit"] = values[0:1:1]
	h["X-RateLimit-Remaining"] = values[1:2:2]
	h["X-RateLimit-Reset"] = values[2:3:3]
	h["RateLimit"] = values[3:4:4]
	h["RateLimit-Policy"] = st.policy
	if st.refusal != "" {
		h["Retry-After"] = []string{strconv.FormatInt(st.retryAfter(), 10)}
	}
}

// append appends the meter as one item of RateLimit.
func (m meter) append(b []byte, name string, now instant) []byte {
	b = strconv.AppendInt(append(b, name...), m.left, 10)
	return strconv.AppendInt(append(b, ";t="...), m.seconds(now), 10)
}

// limiter holds the usage of the keys and the addresses that called lately.
// One lock guards it all: a request holds it for well under a microsecond, and
// it makes "both buckets or none" and "unchanged since it was written" plain to see.
type limiter struct {
	store  *store
	banFor time.Duration // 0 turns bans off

	mu         sync.Mutex // guards what follows
	usages     map[int64]*usage
	dirty      map[int64]bool    // the usages that changed since they were written
	deprecated map[int64]instant // key id: its last use of the deprecated operation, until written
	addresses  recent[netip.Prefix, *bucket]

	loading sync.Mutex // held while a usage is read, so that it is read once
}

// Bounds of what is remembered. A usage that is forgotten is read again from
// the database; an address that is forgotten starts anew.
const (
	maxUsages    = 1 << 15
	maxAddresses = 1 << 16
)

func newLimiter(s *store, banFor time.Duration) *limiter {
	return &limiter{
		store: s, banFor: banFor,
		usages:     map[int64]*usage{},
		dirty:      map[int64]bool{},
		deprecated: map[int64]instant{},
		addresses:  recent[netip.Prefix, *bucket]{max: maxAddresses},
	}
}

// admit charges the key for one request. The error is the store's, when the
// usage has to be read and cannot be.
func (l *limiter) admit(k *apiKey, now time.Time) (standing, error) {
	for {
		if st, ok := l.charge(k, now); ok {
			return st, nil
		}
		if err := l.load(k.usageID); err != nil {
			return standing{}, err
		}
	}
}

// charge takes one request from the usage of the key, if it is in memory.
func (l *limiter) charge(k *apiKey, now time.Time) (st standing, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.usages[k.usageID]
	if u == nil {
		return st, false
	}
	if k.unbannedAt >= u.bannedAt {
		u.bannedUntil = 0 // what is stored may say otherwise: whoever reads it compares again
	}
	st = u.admit(at(now), k.quota, l.banFor)
	st.policy = k.policy
	if st.refusal == "" || st.banBegins {
		l.dirty[k.usageID] = true
	}
	return st, true
}

// load reads a usage from the database into memory, unless it is there.
func (l *limiter) load(id int64) error {
	l.loading.Lock()
	defer l.loading.Unlock()
	l.mu.Lock()
	known := l.usages[id] != nil
	l.mu.Unlock()
	if known {
		return nil
	}
	u, err := l.store.usage(id)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usages[id] = u
	return nil
}

// noteDeprecated remembers that the key used the deprecated operation.
func (l *limiter) noteDeprecated(k *apiKey, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deprecated[k.ID] = at(now)
}

// address charges a caller without a valid key, or, with charge false, only
// tells where it stands.
func (l *limiter) address(caller netip.Prefix, now time.Time, charge bool) standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.addresses.get(caller)
	if !known {
		b = &bucket{}
		l.addresses.put(caller, b)
	}
	st := standing{now: at(now), policy: addressPolicy}
	st.shown = b.meter(st.now, minuteMillis, addressQuota)
	if charge && st.shown.left == 0 {
		st.refusal = CodeRateLimited
	} else if charge {
		b.take(st.now, minuteMillis)
		st.shown = b.meter(st.now, minuteMillis, addressQuota)
	}
	return st
}

// remembered is how many usages and addresses are.
func (l *limiter) remembered() (usages, addresses int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.usages), l.addresses.len()
}

// flush writes what changed since the last flush. What cannot be written, or
// changes meanwhile, is left for the next one. It must not run twice at once.
func (l *limiter) flush() error {
	const chunk = 500 // statements in one commit, so that creates need not wait long
	l.mu.Lock()
	saved := make(map[int64]usage, len(l.dirty))
	var writes []statement
	for id := range l.dirty {
		saved[id] = *l.usages[id]
		writes = append(writes, saveUsage(id, l.usages[id]))
	}
	deprecated := maps.Clone(l.deprecated)
	l.mu.Unlock()
	for id, when := range deprecated {
		writes = append(writes, saveDeprecatedUse(id, when))
	}
	for some := range slices.Chunk(writes, chunk) {
		if _, err := l.store.commit(some...); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.dirty, func(id int64, _ bool) bool { return *l.usages[id] == saved[id] })
	maps.DeleteFunc(l.deprecated, func(id int64, when instant) bool { return when == deprecated[id] })
	if len(l.usages) > maxUsages {
		maps.DeleteFunc(l.usages, func(id int64, _ *usage) bool { return !l.dirty[id] })
	}
	return nil
}

// recent is a map that forgets: it holds between max/2 and max of the entries
// used last. When the young half is full it becomes the old half, and the
// old half is dropped. It is not safe for concurrent use.
type recent[K comparable, V any] struct {
	max        int
	young, old map[K]V
}

func (m *recent[K, V]) get(k K) (v V, ok bool) {
	if v, ok = m.young[k]; ok {
		return v, ok
	}
	if v, ok = m.old[k]; ok {
		m.put(k, v)
	}
	return v, ok
}

func (m *recent[K, V]) put(k K, v V) {
	if m.young == nil || len(m.young) >= m.max/2 {
		m.young, m.old = map[K]V{}, m.young
	}
	m.young[k] = v
}

// len is how many entries there are; one that was moved from the old half to
// the young counts twice until the old one goes.
func (m *recent[K, V]) len() int { return len(m.young) + len(m.old) }

// callerAddress is the network a request without a valid key is charged to:
// the IPv4 address, or the /64 of the IPv6 address, since a household or a
// server commonly holds a whole one. Behind a proxy it is the rightmost entry
// of the named header, the one that the proxy itself has written.
func callerAddress(r *http.Request, header string) netip.Prefix {
	if values := r.Header.Values(header); header != "" && len(values) > 0 {
		last := values[len(values)-1]
		if ip, ok := parseAddress(strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])); ok {
			return network(ip)
		}
	}
	ip, _ := parseAddress(r.RemoteAddr)
	return network(ip)
}

// parseAddress takes an address with or without a port.
func parseAddress(s string) (netip.Addr, bool) {
	if ip, err := netip.ParseAddr(s); err == nil {
		return ip, true
	}
	addrPort, err := netip.ParseAddrPort(s)
	return addrPort.Addr(), err == nil
}

func network(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.Prefix(bits)
	return prefix
}
