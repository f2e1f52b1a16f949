package main

// The limits: how many requests a key may make in a minute and in a day, and what happens to one
// that will not stop. This file knows how much an account may do, and nothing else of the key that
// it belongs to. It is arithmetic: usage.go counts with it, and stores what was counted.
//
// A key and those that it was rotated from are a line of rotations. They share two token buckets of
// a special kind: each is refilled at once, with all its tokens, when its window ends. A window
// begins with the first request it counts and lasts 60 seconds or 24 hours. That gives "requests
// left in the current window" and "resets at" an exact meaning. The price: up to twice the limit
// can pass around the end of a window.
//
// A worked example, on the Free plan (60 a minute, 1,000 a day):
//
//	12:00:10.0  the first request begins both windows: 59 and 999 left
//	12:00:40.0  the 60th request: 0 and 940 left; the minute ends at 12:01:10
//	12:00:40.5  refused: Retry-After 30 (29.5 rounded up); nothing is taken from either bucket
//	12:00:41.0  refused before its Retry-After has passed: strike one
//	12:01:10.0  a request is admitted, since the minute's bucket is full again: 59 and 939 left
//	            (It comes before the first Retry-After has passed, which was rounded up to end at
//	            12:01:10.5. That would be a strike only if it were refused.)
//
// A key is banned when its strikes within a minute's window exceed its limit per minute. (If no
// such window is running, see noteStrike.) usage.go decides how long a ban is, and stores it before
// it begins. Time is counted in whole milliseconds throughout, so that an instant is the same when
// it is read back from the database.

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
)

// quota is how many requests are admitted in each window.
type quota struct {
	PerMinute int64 `json:"perMinute"`
	PerDay    int64 `json:"perDay"`
}

// plan is a name and the quota of the keys that have it.
type plan struct {
	name string
	quota
}

// plans are in the order in which they are shown. An Enterprise key has a quota of its own.
var plans = []plan{
	{name: freePlan, quota: quota{PerMinute: 60, PerDay: 1_000}},
	{name: "pro", quota: quota{PerMinute: 300, PerDay: 10_000}},
	{name: "business", quota: quota{PerMinute: 1_000, PerDay: 100_000}},
	{name: enterprisePlan},
}

const (
	freePlan       = "free" // the plan of a key unless another is named
	enterprisePlan = "enterprise"
)

// planQuota returns the quota of a plan, or the zero quota if each key of it has its own.
func planQuota(name string) quota {
	for _, p := range plans {
		if p.name == name {
			return p.quota
		}
	}
	return quota{}
}

// addressQuota is the limit of a caller without a valid key. It has no day.
const addressQuota = 60

// policyHeader is the value of RateLimit-Policy for the quota.
func (q quota) policyHeader() []string {
	return []string{fmt.Sprintf(`"minute";q=%d;w=60, "day";q=%d;w=86400`, q.PerMinute, q.PerDay)}
}

var addressPolicy = []string{fmt.Sprintf(`"address";q=%d;w=60`, addressQuota)}

// account is what has to be known of a key to limit it.
type account struct {
	quota
	usageID int64    // the first key in its line of rotations, all of which share one usage
	policy  []string // the RateLimit-Policy header of its quota
	// A ban that began at this instant or earlier is lifted. It is the same for all keys of the
	// line.
	unbannedAt instant
}

// bucket counts the requests of one window. The zero bucket is full. It holds what was used rather
// than what remains, so that a change of the limit counts what was used already.
type bucket struct {
	used int64
	ends instant // when the window ends, and the bucket is full again
}

// running reports whether a window of the given length is running.
func (b bucket) running(now, length instant) bool { return isRunning(b.ends, now, length) }

// isRunning reports whether a window of the given length, or a wait of at most that length, is
// running that ends at an instant. If more is left than the length plus a minute, the clock was set
// back since it began, and it counts as over. The minute is there because requests read the clock
// out of order, and the clocks of services differ a little.
func isRunning(ends, now, length instant) bool {
	remaining := ends - now
	wasSetBack := remaining > length+minuteMillis
	return remaining > 0 && !wasSetBack
}

// take counts one request, and begins a window if none is running.
func (b *bucket) take(now, length instant) {
	if !b.running(now, length) {
		*b = bucket{ends: now + length}
	}
	b.used++
}

// level is what a caller sees of one bucket.
type level struct {
	limit, remaining int64 // requests
	reset            instant
}

// level returns what is seen of a bucket. While no window is running, it is full and resets now.
func (b bucket) level(now, length instant, limit int64) level {
	v := level{limit: limit, remaining: limit, reset: now}
	if b.running(now, length) {
		v.remaining = max(0, limit-b.used)
		v.reset = b.ends
	}
	return v
}

// window names one of the two windows of a caller.
type window string

const (
	minuteWindow window = "minute"
	dayWindow    window = "day"
)

// decision is whether a request was admitted, and where its caller stands then.
type decision struct {
	now         instant
	minute, day level // what the RateLimit header shows
	isAddress   bool  // the caller is an address, without a day, and not an account
	// window is the one that X-RateLimit-* describes: of two that refuse, the one that resets
	// later; in a ban, the minute; otherwise, the one with less left, or of equal ones the day.
	window    window
	refusal   ErrorCode // rate_limited, key_banned, or "" for admitted
	banBegins bool      // one strike too many: authorize (handlers.go) calls storeBan (usage.go)
	policy    []string  // RateLimit-Policy
}

// described is the level of the window that X-RateLimit-* describes.
func (d decision) described() level {
	if d.window == dayWindow {
		return d.day
	}
	return d.minute
}

// usage is what the keys of one line of rotations have used together. The ledger's lock guards it.
type usage struct {
	minute, day bucket
	bannedAt    instant // when the last ban began; usage.go sets this and the next
	bannedUntil instant // when that ban ends, unless it is lifted

	// Not stored: a restart forgives strikes.
	strikes     bucket
	retryAt     instant // when the Retry-Afters of all refusals have passed, those of bans aside
	retryLength instant // of the window that has set retryAt: no wait is longer, see isRunning
}

// standing is where an account stands: the levels of both buckets. It describes the one with less
// left, or of equal ones the day.
func (u *usage) standing(a *account, now instant) decision {
	d := decision{
		now:    now,
		minute: u.minute.level(now, minuteMillis, a.PerMinute),
		day:    u.day.level(now, dayMillis, a.PerDay),
		window: dayWindow,
		policy: a.policy,
	}
	if d.minute.remaining < d.day.remaining {
		d.window = minuteWindow
	}
	return d
}

// admit takes one request from both buckets, or from none if it is refused. If withBans is false,
// no ban begins, and one that was stored earlier does not count.
func (u *usage) admit(a *account, now instant, withBans bool) decision {
	d := u.standing(a, now)
	minuteRefuses := d.minute.remaining == 0
	dayRefuses := d.day.remaining == 0
	if minuteRefuses || dayRefuses {
		d.refusal = CodeRateLimited
	}
	// If both refuse, both have 0 left, and standing has chosen the day, as of equal ones. But it
	// is the minute that is described if that resets later.
	if minuteRefuses && dayRefuses && d.minute.reset > d.day.reset {
		d.window = minuteWindow
	}
	if withBans && u.isBanned(a, now) {
		d.showBan(u.bannedUntil)
		return d // a request during a ban is no strike
	}
	if d.refusal != "" {
		if withBans {
			d.banBegins = u.noteStrike(now, a.PerMinute)
		}
		u.askToWait(d) // afterwards, since noteStrike looks only at earlier refusals
		return d
	}
	u.minute.take(now, minuteMillis)
	u.day.take(now, dayMillis)
	return u.standing(a, now)
}

// isBanned reports whether the ban runs for a key, and was not lifted since it began. A clock that
// was set back ends no ban: whoever is banned by mistake can be unbanned.
func (u *usage) isBanned(a *account, now instant) bool {
	return now < u.bannedUntil && a.unbannedAt < u.bannedAt
}

// showBan makes the decision the refusal of a banned key. The headers have no place for a ban, so
// it is shown as a minute of which nothing remains until the ban ends, or until an exhausted bucket
// resets if that is later.
func (d *decision) showBan(until instant) {
	if d.refusal == CodeRateLimited { // a bucket refuses too, and d.window still names it
		until = max(until, d.described().reset)
	}
	d.refusal = CodeKeyBanned
	d.window = minuteWindow
	d.minute.remaining = 0
	d.minute.reset = until
}

// noteStrike notes a refusal and reports whether it is one strike too many. It is a strike if an
// earlier refusal has asked the caller to wait, and that time has not passed. As many strikes as
// the limit per minute do no harm, since a burst of parallel requests is no abuse. They are counted
// until the minute's window ends or, if none is running because the day refuses, for a minute from
// the first strike on.
func (u *usage) noteStrike(now instant, perMinute int64) (isOneTooMany bool) {
	if !u.isAskedToWait(now) {
		return false
	}
	if !u.strikes.running(now, minuteMillis) {
		u.strikes = bucket{ends: now + minuteMillis}
		if u.minute.running(now, minuteMillis) {
			u.strikes.ends = u.minute.ends
		}
	}
	u.strikes.used++
	if u.strikes.used <= perMinute {
		return false
	}
	u.strikes = bucket{} // the next ban needs as many again, also if this one cannot be stored
	return true
}

// isAskedToWait reports whether the Retry-After of a refusal has not passed. A Retry-After is
// rounded up: it ends with the window that refused or within the second after. It counts as over if
// the clock was set back.
func (u *usage) isAskedToWait(now instant) bool { return isRunning(u.retryAt, now, u.retryLength) }

// askToWait notes the Retry-After of a refusal. A caller has to wait until all of them have passed,
// so one that lasts longer stays. In the example, the first Retry-After lasts until 12:01:10.5, and
// the one at 12:00:41.0 until 12:01:10.0.
//
// The Retry-After of a day counts even if the day's limit was raised since, because the caller was
// told to wait. Until it has passed, requests are admitted after such a raise, but each refusal by
// the minute, also the first, is a strike.
func (u *usage) askToWait(d decision) {
	retryAt := d.now + 1000*instant(d.retryAfter())
	if u.isAskedToWait(d.now) && u.retryAt >= retryAt {
		return
	}
	u.retryAt = retryAt
	u.retryLength = minuteMillis
	if d.window == dayWindow {
		u.retryLength = dayMillis
	}
}

// retryAfter is whole seconds (RFC 9110 section 10.2.3). It is at least 1. It would be 0 with a
// limit of 0, which somebody may have written into the database by hand: then no window runs, and
// the reset is now.
func (d decision) retryAfter() int64 { return max(1, ceilSeconds(d.described().reset-d.now)) }

// ceilSeconds rounds milliseconds up to whole seconds: a length, or Unix time.
func ceilSeconds(millis instant) int64 { return (int64(millis) + 999) / 1000 }

// err is the refusal as an Error, or nil if the request was admitted.
func (d decision) err() error {
	switch d.refusal {
	case CodeKeyBanned:
		return newError(d.refusal,
			"the key is banned for repeated requests after 429; retry in %d s", d.retryAfter())
	case CodeRateLimited:
		return newError(d.refusal, "the limit of %d requests a %s is used up; retry in %d s",
			d.described().limit, d.window, d.retryAfter())
	}
	return nil
}

// setHeaders sets the limit headers. RateLimit and RateLimit-Policy follow
// draft-ietf-httpapi-ratelimit-headers. X-RateLimit-Reset is Unix seconds; Header.Set would spell
// it X-Ratelimit-Reset.
func (d decision) setHeaders(h http.Header) {
	limits := make([]byte, 0, 64)
	if d.isAddress {
		limits = d.minute.appendItem(limits, `"address"`, d.now)
	} else {
		limits = d.minute.appendItem(limits, `"minute"`, d.now)
		limits = d.day.appendItem(limits, `, "day"`, d.now)
	}
	v := d.described()
	values := []string{ // one slice for all, since this runs for every request
		strconv.FormatInt(v.limit, 10),
		strconv.FormatInt(v.remaining, 10),
		strconv.FormatInt(ceilSeconds(v.reset), 10),
		string(limits),
	}
	h["X-RateLimit-Limit"] = values[0:1:1]
	h["X-RateLimit-Remaining"] = values[1:2:2]
	h["X-RateLimit-Reset"] = values[2:3:3]
	h["RateLimit"] = values[3:4:4]
	h["RateLimit-Policy"] = d.policy
	if d.refusal != "" {
		h["Retry-After"] = []string{strconv.FormatInt(d.retryAfter(), 10)}
	}
}

// appendItem appends an element of RateLimit: the requests left, and the seconds to the reset.
func (v level) appendItem(text []byte, name string, now instant) []byte {
	text = append(text, name...)
	text = append(text, ";r="...)
	text = strconv.AppendInt(text, v.remaining, 10)
	text = append(text, ";t="...)
	return strconv.AppendInt(text, ceilSeconds(v.reset-now), 10)
}

// addresses limits callers without a valid key. An address is one of IPv4, or a /64 of IPv6, as
// clientNetwork in auth.go makes it. Each has a bucket of its own.
type addresses struct {
	mu      sync.Mutex // guards buckets
	buckets map[netip.Prefix]bucket
}

const maxAddresses = 1 << 16 // so many are remembered; one that is forgotten starts anew

// admit takes one request from the bucket of an address, or refuses it. Without charge, it refuses
// nothing, and only tells where the address stands.
func (a *addresses) admit(address netip.Prefix, now instant, charge bool) decision {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, isKnown := a.buckets[address]
	d := decision{now: now, isAddress: true, window: minuteWindow, policy: addressPolicy}
	d.minute = b.level(now, minuteMillis, addressQuota)
	if !charge {
		return d
	}
	if d.minute.remaining == 0 {
		d.refusal = CodeRateLimited
		return d
	}
	if !isKnown && len(a.buckets) == maxAddresses {
		for other := range a.buckets { // Go's order of a map is random
			delete(a.buckets, other)
			break
		}
	}
	b.take(now, minuteMillis)
	a.buckets[address] = b
	d.minute = b.level(now, minuteMillis, addressQuota)
	return d
}
