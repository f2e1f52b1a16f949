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
// Instants are Unix milliseconds throughout, so that what is written to the
// database and read back after a restart is the same number.

import (
	"fmt"
	"net/http"
	"net/netip"
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
type quota struct{ perMinute, perDay int64 }

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
	return []string{fmt.Sprintf(`"minute";q=%d;w=60, "day";q=%d;w=86400`, q.perMinute, q.perDay)}
}

var addressPolicy = []string{fmt.Sprintf(`"address";q=%d;w=60`, addressQuota)}

// bucket counts the requests of one window. The zero bucket is whole. It holds
// what was used rather than what is left, so that a change of the limit
// counts what was used already.
type bucket struct {
	used int64
	ends int64 // when it is whole again
}

// open reports whether a window of the given length is running. One that ends
// more than two lengths from now was opened before the clock was set back, and
// counts as over. It is two and not one because requests do not arrive in the
// order in which they read the clock.
func (b bucket) open(now, length int64) bool {
	return now < b.ends && b.ends <= now+2*length
}

// meter shows a bucket at an instant: a whole one resets now.
func (b bucket) meter(now, length, limit int64) meter {
	if !b.open(now, length) {
		return meter{limit: limit, left: limit, resets: now}
	}
	return meter{limit: limit, left: max(0, limit-b.used), resets: b.ends}
}

// take counts one request, and opens a window if none is running.
func (b *bucket) take(now, length int64) {
	if !b.open(now, length) {
		*b = bucket{ends: now + length}
	}
	b.used++
}

// meter is what a caller is told about one bucket.
type meter struct {
	limit, left int64 // requests
	resets      int64 // Unix milliseconds
}

// standing is where a caller stands after a request was admitted or refused.
type standing struct {
	now         int64
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
	bannedAt    int64 // when the last ban began
	bannedUntil int64 // when it ends or was lifted

	// Not stored: a restart forgives strikes.
	strikes bucket
	retryAt int64 // when the Retry-After of the last refusal has passed

	dirty bool // changed since it was last queued for writing
}

// admit takes one request from both buckets, or from none and tells why.
func (u *usage) admit(now int64, q quota, banFor time.Duration) standing {
	minute := u.minute.meter(now, minuteMillis, q.perMinute)
	day := u.day.meter(now, dayMillis, q.perDay)
	st := standing{now: now, minute: minute, day: day}
	switch {
	case now < u.bannedUntil:
		st.banned(u.bannedUntil)
	case minute.left == 0 || day.left == 0:
		st.refusal, st.shown = CodeRateLimited, minute
		if minute.left > 0 || day.left == 0 && day.resets >= minute.resets {
			st.shown = day
		}
		if u.strike(now, q.perMinute) && banFor > 0 {
			u.bannedAt, u.bannedUntil = now, now+banFor.Milliseconds()
			u.strikes, u.retryAt = bucket{}, 0
			st.banBegins = true
			st.banned(u.bannedUntil)
			break
		}
		u.retryAt = now + 1000*st.retryAfter()
	default:
		u.minute.take(now, minuteMillis)
		u.day.take(now, dayMillis)
		st.minute = u.minute.meter(now, minuteMillis, q.perMinute)
		st.day = u.day.meter(now, dayMillis, q.perDay)
		st.shown = st.minute
		if st.day.left <= st.minute.left {
			st.shown = st.day
		}
	}
	return st
}

// banned makes the standing that of a banned key: nothing is left of its minute until the end.
func (st *standing) banned(until int64) {
	st.refusal = CodeKeyBanned
	st.minute.left, st.minute.resets = 0, until
	st.shown = st.minute
}

// strike notes a refusal and reports whether it is one too many. The first
// refusal is no strike: the caller had not been told to wait yet. Strikes are
// counted in the minute's window, or in one of their own while the minute is
// whole and the day refuses.
func (u *usage) strike(now, perMinute int64) (ban bool) {
	if now >= u.retryAt {
		return false
	}
	if !u.strikes.open(now, minuteMillis) && u.minute.open(now, minuteMillis) {
		u.strikes = bucket{ends: u.minute.ends}
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
func (m meter) seconds(now int64) int64 { return ceilSeconds(m.resets - now) }

func ceilSeconds(millis int64) int64 { return (millis + 999) / 1000 }

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
func (m meter) append(b []byte, name string, now int64) []byte {
	b = strconv.AppendInt(append(b, name...), m.left, 10)
	return strconv.AppendInt(append(b, ";t="...), m.seconds(now), 10)
}

// limiter holds the usage of the keys and the addresses that called lately.
// One lock guards it all: it is held for well under a microsecond, which one
// core can do a million times a second, and it makes "both buckets or none"
// and "unchanged since it was written" plain to see.
type limiter struct {
	store  *store
	banFor time.Duration // 0 turns bans off

	mu         sync.Mutex // guards what follows
	usages     map[int64]*usage
	dirty      []int64         // the ids of the usages with dirty set
	deprecated map[int64]int64 // key id: its last use of the deprecated operation
	addresses  recent[netip.Prefix, *bucket]

	loading sync.Mutex // held while a usage is read, so that it is read once
}

// Bounds of what is remembered. A usage that is forgotten is read again from
// the database; an address that is forgotten starts anew.
const (
	maxUsages    = 1 << 16
	maxAddresses = 1 << 16
)

func newLimiter(s *store, banFor time.Duration) *limiter {
	return &limiter{
		store: s, banFor: banFor,
		usages:     map[int64]*usage{},
		deprecated: map[int64]int64{},
		addresses:  recent[netip.Prefix, *bucket]{max: maxAddresses},
	}
}

// admit charges the key for one request. The error is the store's, when the
// usage has to be read and cannot be.
func (l *limiter) admit(k *apiKey, now time.Time) (standing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.usages[k.usageID] == nil {
		l.mu.Unlock()
		err := l.load(k.usageID)
		l.mu.Lock()
		if err != nil {
			return standing{}, err
		}
	}
	u := l.usages[k.usageID]
	if k.unbannedAt >= u.bannedAt && u.bannedUntil != 0 {
		u.bannedUntil = 0
		l.touch(k.usageID, u)
	}
	st := u.admit(now.UnixMilli(), k.quota, l.banFor)
	st.policy = k.policy
	if st.refusal == "" || st.banBegins {
		l.touch(k.usageID, u)
	}
	return st, nil
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

// touch queues a usage for writing. The caller holds l.mu.
func (l *limiter) touch(id int64, u *usage) {
	if !u.dirty {
		u.dirty = true
		l.dirty = append(l.dirty, id)
	}
}

// noteDeprecated remembers that the key used the deprecated operation.
func (l *limiter) noteDeprecated(k *apiKey, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deprecated[k.id] = now.UnixMilli()
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
	st := standing{now: now.UnixMilli(), policy: addressPolicy}
	st.shown = b.meter(st.now, minuteMillis, addressQuota)
	if charge && st.shown.left == 0 {
		st.refusal = CodeRateLimited
	} else if charge {
		b.take(st.now, minuteMillis)
		st.shown = b.meter(st.now, minuteMillis, addressQuota)
	}
	return st
}

// flush writes what changed since the last flush. What cannot be written stays
// queued for the next one.
func (l *limiter) flush() error {
	const chunk = 500 // statements that one commit takes along, so that creates need not wait long
	l.mu.Lock()
	dirty, deprecated := l.dirty, l.deprecated
	l.dirty, l.deprecated = nil, map[int64]int64{}
	writes := make([]statement, 0, len(dirty)+len(deprecated))
	for _, id := range dirty {
		u := l.usages[id]
		u.dirty = false
		writes = append(writes, saveUsage(id, u))
	}
	l.mu.Unlock()
	for id, at := range deprecated {
		writes = append(writes, saveDeprecatedUse(id, at))
	}
	for done := 0; done < len(writes); done += chunk {
		if _, err := l.store.commit(writes[done:min(done+chunk, len(writes))]...); err != nil {
			l.requeue(dirty[min(done, len(dirty)):], deprecated)
			return err
		}
	}
	l.trim()
	return nil
}

// requeue takes back what a flush could not write.
func (l *limiter) requeue(dirty []int64, deprecated map[int64]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range dirty {
		l.touch(id, l.usages[id])
	}
	for id, at := range deprecated {
		l.deprecated[id] = max(at, l.deprecated[id])
	}
}

// trim forgets usages that are on disk once there are too many. Only flush
// calls it, with nothing in flight, so that what is not dirty is written.
func (l *limiter) trim() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.usages) <= maxUsages {
		return
	}
	for id, u := range l.usages {
		if !u.dirty {
			delete(l.usages, id)
		}
	}
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

// callerAddress is the network a request without a valid key is charged to:
// the IPv4 address, or the /64 of the IPv6 address, since a household or a
// server commonly holds a whole one. Behind a proxy it is the rightmost entry
// of the named header, the one that the proxy itself has written.
func callerAddress(r *http.Request, header string) netip.Prefix {
	addr := r.RemoteAddr
	if values := r.Header.Values(header); header != "" && len(values) > 0 {
		last := values[len(values)-1]
		if ip, ok := parseAddress(strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])); ok {
			return network(ip)
		}
	}
	ip, _ := parseAddress(addr)
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
