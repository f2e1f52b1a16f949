package main

// The limits: how many requests a key may make in a minute and in a day, and what happens to one
// that will not stop. This file knows how much an account may do, and nothing else of the key that
// it belongs to. It is arithmetic in memory: what is counted here is stored by usage.go.
//
// An account has two token buckets of a special kind: each is refilled at once, with all its
// tokens, when its window ends. A window begins with the first request it counts and lasts 60
// seconds or 24 hours. That gives "requests left in the current window" and "resets at" an exact
// meaning. The price: up to twice the limit can pass around a window's end, half of it just before
// and half just after.
//
// A worked example, on the Free plan (60 a minute, 1,000 a day):
//
//	12:00:10.0  the first request begins both windows: 59 and 999 left
//	12:00:40.0  the 60th request: 0 and 940 left; the minute ends at 12:01:10
//	12:00:40.5  refused: Retry-After 30; nothing is taken from either bucket
//	12:00:41.0  refused before its Retry-After has passed: strike one
//	12:01:10.0  a request is admitted, since the minute's bucket is full again: 59 and 939 left
//
// A key is banned when its strikes within one minute exceed its limit per minute.
//
// Time is counted in whole milliseconds throughout, so that an instant is the same when it is read
// back from the database after a restart.

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
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
	freePlan       = "free" // of a key that is made without a plan
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

// account is what the limiter needs to know of a key.
type account struct {
	quota
	usageID    int64    // the first key in its line of rotations, whose usage it is charged to
	policy     []string // the RateLimit-Policy header of its quota
	unbannedAt instant  // a ban that began at this instant or earlier is lifted
}

// bucket counts the requests of one window. The zero bucket is full: nothing was used. It holds
// what was used rather than what remains, so that a change of the limit counts what was used
// already.
type bucket struct {
	used   int64
	unsent int64     // of those, the ones that no finished flush has stored
	ends   instant   // when the window ends, and the bucket is full again
	read   bucketRow // what was stored when it was read last
}

// running reports whether a window of the given length is running.
func (b bucket) running(now, length instant) bool { return runs(b.ends, now, length) }

// runs reports whether a window of the given length that ends at an instant is running. A window
// that has just begun ends one length from now, and none can end later. If one does, by more than a
// minute, the clock was set back since it began, and it counts as over. The minute leaves room for
// requests that read the clock a little out of order, and for the clocks of services, which differ
// a little.
func runs(ends, now, length instant) bool { return now < ends && ends <= now+length+minuteMillis }

// take counts one request, and begins a window if none is running.
func (b *bucket) take(now, length instant) {
	if !b.running(now, length) {
		*b = bucket{ends: now + length, read: b.read}
	}
	b.used++
	b.unsent++
}

// levelAt shows a bucket at an instant. For a full bucket, the reset is that instant.
func (b bucket) levelAt(now, length instant, limit int64) level {
	v := level{limit: limit, remaining: limit, reset: now}
	if b.running(now, length) {
		v.remaining = max(0, limit-b.used)
		v.reset = b.ends
	}
	return v
}

// level is what a caller sees of one bucket.
type level struct {
	limit, remaining int64 // requests
	reset            instant
}

// window names one of the windows of a caller, in messages and in RateLimit.
type window string

const (
	minuteWindow  window = "minute"
	dayWindow     window = "day"
	addressWindow window = "address" // a minute: the only window of a caller without a valid key
)

// decision is whether a request was admitted, and where its caller stands then.
type decision struct {
	now         instant
	minute, day level     // RateLimit; minute is that of an address too, which has no day
	shown       window    // the one that X-RateLimit-* describes, and that refuses if one does
	refusal     ErrorCode // rate_limited, key_banned, or "" for admitted
	banBegins   bool      // this very refusal bans the key, once storeBan has stored the ban
	lastBan     instant   // when the last ban known here began; storeBan replaces no other
	banErr      error     // why the ban could not be stored, and so does not begin
	policy      []string  // RateLimit-Policy
}

// level is that of the window which is shown.
func (d decision) level() level {
	if d.shown == dayWindow {
		return d.day
	}
	return d.minute
}

// usage is what the keys of one line of rotations have used together. Only the limiter changes it,
// under its lock.
type usage struct {
	minute, day bucket
	bannedAt    instant // when the last ban began
	bannedUntil instant // when it ends, unless it is lifted

	// Not stored: a restart forgives strikes.
	strikes bucket
	retryAt instant // when the latest Retry-After has passed
	retryOf instant // the length of the window that retryAt is the end of

	readMerge int64 // what limiter.merges was when the buckets were last read; see isOld
}

// levels shows both buckets, and of the two the one with less left, or of equal ones the day.
func (u *usage) levels(now instant, q quota) decision {
	d := decision{
		now:    now,
		minute: u.minute.levelAt(now, minuteMillis, q.PerMinute),
		day:    u.day.levelAt(now, dayMillis, q.PerDay),
		shown:  dayWindow,
	}
	if d.minute.remaining < d.day.remaining {
		d.shown = minuteWindow
	}
	return d
}

// admit takes one request from both buckets, or from none if it is refused.
func (u *usage) admit(a *account, now instant, banFor time.Duration) decision {
	d := u.levels(now, a.quota)
	if d.level().remaining == 0 {
		d.refusal = CodeRateLimited
		// If both refuse, levels shows the day. The one that resets later must be shown.
		bothRefuse := d.minute.remaining == 0 && d.day.remaining == 0
		if bothRefuse && d.minute.reset > d.day.reset {
			d.shown = minuteWindow
		}
	}
	if banFor > 0 && u.isBanned(a, now) {
		d.showBan(u.bannedUntil)
		return d
	}
	if d.refusal != "" {
		isOneTooMany := u.strike(now, a.PerMinute)
		d.banBegins = isOneTooMany && banFor > 0 // once storeBan has stored it
		d.lastBan = u.bannedAt
		u.askToWait(d)
		return d
	}
	u.minute.take(now, minuteMillis)
	u.day.take(now, dayMillis)
	return u.levels(now, a.quota)
}

// isBanned reports whether the ban runs for a key, and was not lifted since it began.
func (u *usage) isBanned(a *account, now instant) bool {
	return now < u.bannedUntil && a.unbannedAt < u.bannedAt
}

// showBan turns the decision into the refusal of a banned key. It shows a minute of which nothing
// remains until the ban ends or the exhausted bucket resets, whichever is later. The day stays.
func (d *decision) showBan(until instant) {
	if d.refusal == CodeRateLimited {
		until = max(until, d.level().reset)
	}
	d.refusal = CodeKeyBanned
	d.minute.remaining = 0
	d.minute.reset = until
	d.shown = minuteWindow
}

// strike notes a refusal and reports whether it is one strike too many. The first refusal is no
// strike: the caller had not been asked to wait yet. Strikes are counted until the window of the
// minute's bucket ends. If only the day refuses, that bucket may have no window. Then the strikes
// have a minute of their own.
func (u *usage) strike(now instant, perMinute int64) (isOneTooMany bool) {
	if !u.isAskedToWait(now) {
		return false
	}
	if !u.strikes.running(now, minuteMillis) && u.minute.running(now, minuteMillis) {
		u.strikes = bucket{ends: u.minute.ends} // they end with it
	}
	u.strikes.take(now, minuteMillis)
	if u.strikes.used <= perMinute {
		return false
	}
	u.strikes = bucket{} // they are counted anew, even if the ban cannot be stored
	return true
}

// isAskedToWait reports whether the Retry-After of a refusal has not passed. As a window does, it
// counts as over if it began before the clock was set back.
func (u *usage) isAskedToWait(now instant) bool { return runs(u.retryAt, now, u.retryOf) }

// askToWait notes the Retry-After of a refusal. The latest counts, unless the clock was set back.
func (u *usage) askToWait(d decision) {
	length := minuteMillis
	if d.shown == dayWindow {
		length = dayMillis
	}
	retryAt := d.now + 1000*instant(d.retryAfter())
	if retryAt > u.retryAt || !u.isAskedToWait(d.now) {
		u.retryAt = retryAt
		u.retryOf = length
	}
}

// retryAfter is whole seconds until the refusing bucket resets, rounded up, at least 1 (RFC 9110
// section 10.2.3).
func (d decision) retryAfter() int64 { return max(1, ceilSeconds(d.level().reset-d.now)) }

// ceilSeconds rounds milliseconds up to whole seconds. They are a length, or an instant.
func ceilSeconds(millis instant) int64 { return (int64(millis) + 999) / 1000 }

// err is the refusal as an Error, or nil if the request was admitted.
func (d decision) err() error {
	switch d.refusal {
	case CodeKeyBanned:
		return newError(d.refusal,
			"the key is banned for repeated requests after 429; retry in %d s", d.retryAfter())
	case CodeRateLimited:
		unit := d.shown
		if unit == addressWindow {
			unit = minuteWindow
		}
		return newError(d.refusal, "the limit of %d requests a %s is used up; retry in %d s",
			d.level().limit, unit, d.retryAfter())
	}
	return nil
}

// setHeaders sets the limit headers. X-RateLimit-* is spelt as specified, by assigning to the map,
// since Set would write X-Ratelimit. RateLimit and RateLimit-Policy follow
// draft-ietf-httpapi-ratelimit-headers.
func (d decision) setHeaders(h http.Header) {
	limits := make([]byte, 0, 64)
	if d.shown == addressWindow {
		limits = d.minute.appendItem(limits, addressWindow, d.now)
	} else {
		limits = d.minute.appendItem(limits, minuteWindow, d.now)
		limits = append(limits, ", "...)
		limits = d.day.appendItem(limits, dayWindow, d.now)
	}
	shown := d.level()
	values := []string{ // one slice for all, since this runs for every request
		strconv.FormatInt(shown.limit, 10),
		strconv.FormatInt(shown.remaining, 10),
		strconv.FormatInt(ceilSeconds(shown.reset), 10),
		string(limits),
	}
	h["X-RateLimit-Limit"] = values[0:1]
	h["X-RateLimit-Remaining"] = values[1:2]
	h["X-RateLimit-Reset"] = values[2:3]
	h["RateLimit"] = values[3:4]
	h["RateLimit-Policy"] = d.policy
	if d.refusal != "" {
		h["Retry-After"] = []string{strconv.FormatInt(d.retryAfter(), 10)}
	}
}

// appendItem appends an element of RateLimit: the requests left, and the seconds to the reset.
func (v level) appendItem(text []byte, w window, now instant) []byte {
	text = append(text, '"')
	text = append(text, w...)
	text = append(text, `";r=`...)
	text = strconv.AppendInt(text, v.remaining, 10)
	text = append(text, ";t="...)
	return strconv.AppendInt(text, ceilSeconds(v.reset-now), 10)
}

// usageDate is a day of a usage: whole days since 1970, in UTC.
type usageDate struct{ Usage, Day int64 }

// tally counts requests of one day: those let in (whatever the response), those refused with 429
// (also during a ban), and responses of 5xx.
type tally struct {
	Admitted int64 `json:"admitted"`
	Refused  int64 `json:"refused"`
	Errors   int64 `json:"errors"`
}

// plus is the sum of two tallies.
func (t tally) plus(more tally) tally {
	return tally{t.Admitted + more.Admitted, t.Refused + more.Refused, t.Errors + more.Errors}
}

// lastMinutes counts what callers have done in the minute that runs and in the five before it, each
// in a place of its own. It is for operators, who ask who is busy in an outage too: so it counts
// with the request, and not with a flush, which may fail then.
type lastMinutes [6]struct {
	minute  instant         // minutes since 1970
	tallies map[int64]tally // by usage; 0 has the sum of those that found no room
}

// maxRecent is how many usages are counted apart in a minute.
const maxRecent = 4096

// count counts what a usage has done at an instant.
func (r *lastMinutes) count(id int64, now instant, done tally) {
	minute := now / minuteMillis
	m := &r[minute%6]
	if m.minute != minute {
		m.minute = minute
		m.tallies = map[int64]tally{}
	}
	if _, known := m.tallies[id]; !known && len(m.tallies) >= maxRecent {
		id = 0
	}
	m.tallies[id] = m.tallies[id].plus(done)
}

// sums adds the minutes up, by usage.
func (r *lastMinutes) sums(now instant) map[int64]tally {
	sums := map[int64]tally{}
	for _, m := range r {
		if m.minute <= now/minuteMillis-6 { // nothing was counted in its place since
			continue
		}
		for id, t := range m.tallies {
			sums[id] = sums[id].plus(t)
		}
	}
	return sums
}

// spentAddress is an address that has used up its minute.
type spentAddress struct {
	Address netip.Prefix `json:"address"`
	Until   instant      `json:"until"`
}

// counts are what was counted since the last take.
type counts struct {
	usages     map[int64]usageIncrement // by id
	days       []dayRow
	deprecated map[int64]int64 // Unix milliseconds of the last deprecated use, by the id of the key
}

// usageIncrement is what is added to a usage that is stored.
type usageIncrement struct {
	ID     int64
	Minute increment `json:"minute"`
	Day    increment `json:"day"`
}

// increment is what is added to a bucket that is stored: Used requests of the window that ends at
// Ends. If another window is stored, this one replaces it, but only if the other is still as it was
// read last: a flush that arrives late must not replace a window that its service never saw. See
// mergeDays. The ends are numbers, because an instant becomes a string in JSON.
type increment struct{ Used, Ends, ReadUsed, ReadEnds int64 }

// dayRow is what is added to a day of a usage.
type dayRow struct {
	usageDate
	tally
}

// usageRow is a usage as it is stored.
type usageRow struct {
	ID                    int64
	Minute, Day           bucketRow
	BannedAt, BannedUntil instant
}

// bucketRow is a bucket as it is stored.
type bucketRow struct {
	Used int64
	Ends instant
}

// limiter holds the usage of the accounts and the addresses that called lately. One lock guards it
// all: a request holds it for well under a microsecond, and it makes "both buckets or none" plain
// to see.
type limiter struct {
	banFor time.Duration // 0 turns bans off
	shared bool          // other services count the same usages

	mu         sync.Mutex // guards what follows, also in usage.go
	usages     map[int64]*usage
	merges     int64                // how often merge was called
	trimmedAt  int64                // what merges was when trim last dropped usages; see recall
	tallies    map[usageDate]*tally // not yet taken
	deprecated map[int64]int64      // as in counts
	recent     lastMinutes
	addresses  map[netip.Prefix]bucket
	strangers  lastMinutes    // all as usage 0: 401 counts as admitted, and 429 as refused
	spent      []spentAddress // the last 10 that have used up their minute
	// mostAhead is how far in the future the end of a stored minute was, at most, since the last
	// takeMostAhead.
	mostAhead instant
}

// Bounds of what is remembered. A usage that is forgotten is read again from the store. An address
// that is forgotten starts anew.
const (
	maxUsages    = 1 << 15
	maxAddresses = 1 << 16
)

func newLimiter(banFor time.Duration, shared bool) limiter {
	return limiter{
		banFor:     banFor,
		shared:     shared,
		usages:     map[int64]*usage{},
		tallies:    map[usageDate]*tally{},
		deprecated: map[int64]int64{},
		addresses:  map[netip.Prefix]bucket{},
	}
}

// charge takes one request from the usage of the account. known is false if the usage has to be
// read first.
func (l *limiter) charge(a *account, now instant) (d decision, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.usages[a.usageID]
	if u == nil || l.isOld(u) {
		return d, false
	}
	d = u.admit(a, now, l.banFor)
	d.policy = a.policy
	if d.refusal == "" {
		l.count(a.usageID, now, tally{Admitted: 1})
	} else {
		l.count(a.usageID, now, tally{Refused: 1})
	}
	return d, true
}

// isOld reports whether a usage must be read again, because other services may have counted
// requests since it was read. After each merge, this holds for every usage that was not part of it.
// A usage with unsent requests is not old, since reading it would lose them. The next take sends
// them, and the merge after that brings the usage. The caller holds the lock.
func (l *limiter) isOld(u *usage) bool {
	return l.shared && u.readMerge != l.merges && !u.hasUnsent()
}

// hasUnsent reports whether the usage has requests for the next take.
func (u *usage) hasUnsent() bool { return u.minute.unsent > 0 || u.day.unsent > 0 }

// tally is where to count what happens at an instant. The caller holds the lock.
func (l *limiter) tally(id int64, now instant) *tally {
	today := usageDate{Usage: id, Day: int64(now / dayMillis)}
	t := l.tallies[today]
	if t == nil {
		t = &tally{}
		l.tallies[today] = t
	}
	return t
}

// count counts what a usage has done at an instant: for the day, which is stored, and for the
// minute. The caller holds the lock.
func (l *limiter) count(id int64, now instant, done tally) {
	t := l.tally(id, now)
	*t = t.plus(done)
	l.recent.count(id, now, done)
}

// countError counts a response of 5xx to a request that came at now. The usage need not be in
// memory.
func (l *limiter) countError(id int64, now instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(id, now, tally{Errors: 1})
}

// noteDeprecatedUse notes that a key used the deprecated operation.
func (l *limiter) noteDeprecatedUse(keyID int64, now instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deprecated[keyID] = int64(now)
}

// address shows where a caller without a valid key stands and, with charge, charges it first.
func (l *limiter) address(caller netip.Prefix, now time.Time, charge bool) decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.addresses[caller]
	d := decision{now: instantOf(now), shown: addressWindow, policy: addressPolicy}
	d.minute = b.levelAt(d.now, minuteMillis, addressQuota)
	if !charge {
		return d
	}
	if d.minute.remaining == 0 {
		d.refusal = CodeRateLimited
		l.strangers.count(0, d.now, tally{Refused: 1})
		return d
	}
	l.strangers.count(0, d.now, tally{Admitted: 1})
	b.take(d.now, minuteMillis)
	l.makeRoomFor(caller)
	l.addresses[caller] = b
	d.minute = b.levelAt(d.now, minuteMillis, addressQuota)
	if d.minute.remaining == 0 {
		l.spent = append(l.spent, spentAddress{caller, b.ends})
		l.spent = l.spent[max(0, len(l.spent)-10):]
	}
	return d
}

// busy is what usages, and callers without a valid key, have done in the last minutes, and which
// addresses have used up their minute last.
func (l *limiter) busy(now instant) (
	usages map[int64]tally, strangers tally, spent []spentAddress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recent.sums(now), l.strangers.sums(now)[0], slices.Clone(l.spent)
}

// makeRoomFor forgets another address at random, if the caller's is one too many. The caller holds
// the lock.
func (l *limiter) makeRoomFor(address netip.Prefix) {
	if _, known := l.addresses[address]; known || len(l.addresses) < maxAddresses {
		return
	}
	for other := range l.addresses { // Go's order of a map is random
		delete(l.addresses, other)
		return
	}
}

// takeMostAhead returns mostAhead, and begins anew. If it is more than a minute, the clocks of two
// services differ by the rest.
func (l *limiter) takeMostAhead() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	mostAhead := time.Duration(l.mostAhead) * time.Millisecond
	l.mostAhead = 0
	return mostAhead
}

// take hands over what was counted since the last take: at most mostDays tallies, and the unsent
// requests of their usages. The rest is for the next take.
//
// take leaves unsent as it is, since the send may fail: while a window runs, only adopt lowers it,
// once the store has the requests. So the caller has to merge before it takes again, or they would
// be sent twice.
//
// It finds the usages by their tallies. Whatever has unsent requests has one, since charge counts
// in both, and merge makes one for what was kept out.
func (l *limiter) take(mostDays int) counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := counts{
		usages:     map[int64]usageIncrement{},
		days:       []dayRow{}, // nil would be null in JSON
		deprecated: l.deprecated,
	}
	l.deprecated = map[int64]int64{}
	for date, t := range l.tallies {
		if len(taken.days) == mostDays {
			break
		}
		taken.days = append(taken.days, dayRow{usageDate: date, tally: *t})
		delete(l.tallies, date)
		u := l.usages[date.Usage]
		if u != nil && u.hasUnsent() {
			taken.usages[date.Usage] = usageIncrement{
				ID:     date.Usage,
				Minute: u.minute.increment(),
				Day:    u.day.increment(),
			}
		}
	}
	return taken
}

// increment is what to send of the bucket.
func (b bucket) increment() increment {
	return increment{
		Used:     b.unsent,
		Ends:     int64(b.ends),
		ReadUsed: b.read.Used,
		ReadEnds: int64(b.read.Ends),
	}
}

// merge goes on from what is stored after the taken counts were sent. It reads the clock under the
// lock, and so after every request that has been counted. again reports that some of the counts
// were not added, and still count.
func (l *limiter) merge(stored []usageRow, taken counts, clock func() time.Time) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := instantOf(clock())
	l.merges++
	for _, row := range stored {
		u := l.usages[row.ID]
		if u == nil {
			continue
		}
		sent := taken.usages[row.ID]
		// A stored minute that ended too far ahead counted as over when it was read (see runs), and
		// what was sent has replaced it. Then row no longer shows its end, but ReadEnds does.
		minuteEnds := max(row.Minute.Ends, instant(sent.Minute.ReadEnds))
		l.mostAhead = max(l.mostAhead, minuteEnds-now)
		if u.adopt(row, sent, now) {
			l.tally(row.ID, now) // so that the next take finds the usage
			again = true
		}
		u.readMerge = l.merges
	}
	if len(l.usages) > maxUsages {
		l.trim(now)
	}
	return again
}

// adopt goes on from a usage as it is stored. See bucket.adopt.
func (u *usage) adopt(stored usageRow, sent usageIncrement, now instant) (again bool) {
	if stored.BannedAt > u.bannedAt {
		u.bannedAt = stored.BannedAt
		u.bannedUntil = stored.BannedUntil
	}
	minuteAgain := u.minute.adopt(stored.Minute, sent.Minute, now, minuteMillis)
	dayAgain := u.day.adopt(stored.Day, sent.Day, now, dayMillis)
	return minuteAgain || dayAgain
}

// adopt goes on from a bucket as it is stored after an increment was sent to it, or none, which is
// the zero increment. The caller reads now after that, since the stored window may have ended
// meanwhile. again reports that the increment was kept out, and that b has something to send. What
// is stored is one of three:
//
//   - isAdded: the window of the increment. If b still has that window, what was sent is taken off
//     what is unsent.
//   - isOthers: a window that another service has changed, which has kept the increment out.
//   - Neither: what was read last. Nothing was sent then, since mergeDays would have replaced it.
//
// If the stored window runs, b has that window from now on, and counts what is unsent beside what
// is stored. The exception is hasLeft: b knew the stored window, and has begun a newer one when it
// was over. That window only seems to run, because the clock was set back.
func (b *bucket) adopt(stored bucketRow, sent increment, now, length instant) (again bool) {
	isAdded := stored.Ends == instant(sent.Ends)
	isOthers := !isAdded && stored != b.read
	isRunning := b.running(now, length)
	b.read = stored
	if !isRunning {
		b.unsent = 0 // these requests say nothing of the window that runs
	} else if isAdded && stored.Ends == b.ends {
		b.unsent -= sent.Used
	}
	hasLeft := !isOthers && stored.Ends != b.ends && isRunning
	if !hasLeft && runs(stored.Ends, now, length) {
		b.used = stored.Used + b.unsent
		b.ends = stored.Ends
	}
	return sent.Used > 0 && !isAdded && b.unsent > 0
}

// trim drops the usages that are stored and whose last Retry-After has passed. The caller holds the
// lock.
func (l *limiter) trim(now instant) {
	l.trimmedAt = l.merges
	maps.DeleteFunc(l.usages, func(_ int64, u *usage) bool {
		return !u.hasUnsent() && !u.isAskedToWait(now)
	})
}
