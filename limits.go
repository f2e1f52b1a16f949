package main

// The limits: how many requests a key may make in a minute and in a day, and what happens to one
// that will not stop. This file knows how much an account may do, and nothing else of the key that
// it belongs to.
//
// An account has two token buckets of a special kind: each is refilled at once, with all its
// tokens, when its window ends (tokens_per_fill equals max_tokens). A window begins with the first
// request it counts and lasts 60 seconds or 24 hours. That gives "requests left in the current
// window" and "resets at" an exact meaning. The price: up to twice the limit can pass around a
// window's end, half of it just before and half just after.
//
// A worked example, on the Free plan (60 a minute, 1,000 a day):
//
//	12:00:10.0  the first request begins both windows: 59 and 999 left
//	12:00:40.0  the 60th request: 0 and 940 left; the minute ends at 12:01:10
//	12:00:40.5  refused: Retry-After 30; nothing is taken from either bucket
//	12:00:41.0  refused before its Retry-After has passed: strike one
//	12:01:10.0  the minute's bucket was refilled: 59 and 939 left
//
// A key is banned when its strikes within one minute exceed its limit per minute.
//
// Several services may share the database, and then a key's usage. Each counts for itself, and
// every half second adds what it has counted to what is stored and goes on from there: see flush.
// Strikes are each service's own.
//
// Time is counted in whole milliseconds throughout, so that what is written to
// the database and read back after a restart is the same instant.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxQuota is the largest integer of RFC 9651, in which limits are reported.
const maxQuota = 999_999_999_999_999

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

// policyHeader is the value of RateLimit-Policy for the quota.
func (q quota) policyHeader() []string {
	return []string{fmt.Sprintf(`"minute";q=%d;w=60, "day";q=%d;w=86400`, q.PerMinute, q.PerDay)}
}

var addressPolicy = []string{fmt.Sprintf(`"address";q=%d;w=60`, addressQuota)}

// account is what the limiter needs to know of a key.
type account struct {
	quota
	usageID    int64    // whose usage it is charged to: the key's own, or its predecessor's
	policy     []string // the RateLimit-Policy header of its quota
	unbannedAt instant  // a ban that began at this instant or earlier is lifted
}

// bucket counts the requests of one window. The zero bucket is full. It holds what was used
// rather than what remains, so that a change of the limit counts what was used already.
type bucket struct {
	used  int64
	fresh int64   // of those, the ones that are not stored yet
	ends  instant // of its window: when it is refilled
}

// running reports whether a window of the given length is running.
func (b bucket) running(now, length instant) bool {
	return now < b.ends && b.ends <= latestEnd(now, length)
}

// latestEnd is the latest end that a running window can have. One that ends later began before the
// clock was set back, and counts as over. Two lengths, because requests may read the clock a
// little out of order.
func latestEnd(now, length instant) instant { return now + 2*length }

// level shows a bucket at an instant: a full one resets now.
func (b bucket) level(now, length instant, limit int64) level {
	if !b.running(now, length) {
		return level{limit: limit, remaining: limit, reset: now}
	}
	return level{limit: limit, remaining: max(0, limit-b.used), reset: b.ends}
}

// take counts one request, and begins a window if none is running.
func (b *bucket) take(now, length instant) {
	if !b.running(now, length) {
		*b = bucket{ends: now + length}
	}
	b.used++
	b.fresh++
}

// adopt goes on from what is stored, once it holds what was sent of the bucket: a
// stored window that runs wins, since other services may have begun it and count in it.
func (b *bucket) adopt(stored, sent bucket, now, length instant) {
	sameWindow := b.ends == sent.ends // otherwise a new one has begun meanwhile
	if sameWindow {
		b.fresh -= sent.fresh
	}
	if !stored.running(now, length) {
		return
	}
	overlaps := stored.ends > b.ends-length // otherwise the stored one ended meanwhile
	if sameWindow || overlaps {
		b.used = stored.used + b.fresh
		b.ends = stored.ends
	}
}

// level is what a caller sees of one bucket.
type level struct {
	limit, remaining int64 // requests
	reset            instant
}

// decision is whether a request was admitted, and where its caller stands then.
type decision struct {
	now         instant
	shown       level     // the one that X-RateLimit-* describes
	minute, day level     // RateLimit; a caller without a key has only shown
	refusal     ErrorCode // rate_limited, key_banned, or "" for admitted
	banBegins   bool      // this very refusal bans the key
	banErr      error     // why the ban could not be stored, and so does not begin
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
	banning bool    // a ban is being stored
}

// admit takes one request from both buckets, or from none if it is refused.
func (u *usage) admit(now instant, q quota, banFor time.Duration) decision {
	d := u.levels(now, q)
	if d.shown.remaining == 0 {
		d.refusal = CodeRateLimited
		// Of two that refuse, the one that resets later is shown.
		if d.minute.remaining == 0 && d.minute.reset > d.day.reset {
			d.shown = d.minute
		}
	}
	switch {
	case u.banned(now, banFor):
		d.ban(u.bannedUntil)
	case d.refusal != "":
		d.banBegins = u.strike(now, q.PerMinute) && banFor > 0 && !u.banning
		u.banning = u.banning || d.banBegins
		u.retryAt = max(u.retryAt, now+1000*instant(d.retryAfter()))
	default:
		u.minute.take(now, minuteMillis)
		u.day.take(now, dayMillis)
		return u.levels(now, q)
	}
	return d
}

// levels shows both buckets, and of the two the one with less left, or of equal ones the day.
func (u *usage) levels(now instant, q quota) decision {
	minute := u.minute.level(now, minuteMillis, q.PerMinute)
	day := u.day.level(now, dayMillis, q.PerDay)
	d := decision{now: now, shown: day, minute: minute, day: day}
	if minute.remaining < day.remaining {
		d.shown = minute
	}
	return d
}

// banned reports whether a ban is running. One that ends too late is over for good, and the next
// flush stores that.
func (u *usage) banned(now instant, banFor time.Duration) bool {
	if u.bannedUntil > latestBanEnd(now, banFor) {
		u.bannedUntil = 0
	}
	return now < u.bannedUntil
}

// latestBanEnd is the latest end that a running ban can have. One that ends later was made for
// longer than -ban-for is now, or began before the clock was set back. A minute more, because
// services may read the clock a little out of order.
func latestBanEnd(now instant, banFor time.Duration) instant {
	if banFor == 0 {
		return now // no ban runs
	}
	return now + instant(banFor.Milliseconds()) + minuteMillis
}

// ban makes the decision that of a banned key: nothing remains of its minute until
// the ban ends or the exhausted bucket resets, whichever is later.
func (d *decision) ban(until instant) {
	if d.refusal == CodeRateLimited {
		until = max(until, d.shown.reset)
	}
	d.refusal = CodeKeyBanned
	d.minute.remaining, d.minute.reset = 0, until
	d.shown = d.minute
}

// strike notes a refusal and reports whether it is one too many. The first refusal is no strike:
// the caller had not been asked to wait yet. Strikes are counted in the minute's window, or in
// one of their own while the minute's bucket is full and the day refuses.
func (u *usage) strike(now instant, perMinute int64) (ban bool) {
	if now >= u.retryAt {
		return false
	}
	if !u.strikes.running(now, minuteMillis) && u.minute.running(now, minuteMillis) {
		u.strikes = bucket{ends: u.minute.ends} // a window with none, for take to count in
	}
	u.strikes.take(now, minuteMillis)
	return u.strikes.used > perMinute
}

// retryAfter is whole seconds until the refusing bucket resets, rounded up, at least 1 (RFC 9110
// section 10.2.3).
func (d decision) retryAfter() int64 { return max(1, ceilSeconds(d.shown.reset-d.now)) }

func ceilSeconds(millis instant) int64 { return (int64(millis) + 999) / 1000 }

// err is the refusal as an Error, or nil if the request was admitted.
func (d decision) err() error {
	switch d.refusal {
	case CodeKeyBanned:
		return newError(d.refusal,
			"the key is banned for repeated requests after 429; retry in %d s", d.retryAfter())
	case CodeRateLimited:
		return newError(d.refusal,
			"the limit of %d requests is used up; retry in %d s", d.shown.limit, d.retryAfter())
	}
	return nil
}

// setHeaders sets the limit headers. X-RateLimit-* is spelt as specified, by assigning to the map,
// since Set would write X-Ratelimit. RateLimit and RateLimit-Policy follow
// draft-ietf-httpapi-ratelimit-headers.
func (d decision) setHeaders(h http.Header) {
	h["X-RateLimit-Limit"] = []string{strconv.FormatInt(d.shown.limit, 10)}
	h["X-RateLimit-Remaining"] = []string{strconv.FormatInt(d.shown.remaining, 10)}
	h["X-RateLimit-Reset"] = []string{strconv.FormatInt(ceilSeconds(d.shown.reset), 10)}
	items := make([]byte, 0, 64)
	if d.minute.limit > 0 {
		items = d.minute.append(items, `"minute";r=`, d.now)
		items = d.day.append(items, `, "day";r=`, d.now)
	} else {
		items = d.shown.append(items, `"address";r=`, d.now)
	}
	h["RateLimit"] = []string{string(items)}
	h["RateLimit-Policy"] = d.policy
	if d.refusal != "" {
		h["Retry-After"] = []string{strconv.FormatInt(d.retryAfter(), 10)}
	}
}

// append appends the level as one item of RateLimit.
func (l level) append(b []byte, name string, now instant) []byte {
	b = strconv.AppendInt(append(b, name...), l.remaining, 10)
	return strconv.AppendInt(append(b, ";t="...), ceilSeconds(l.reset-now), 10)
}

// fields are pointers to what is stored of a usage, in the order of the columns of its table.
func (u *usage) fields() []any {
	return []any{
		&u.minute.used, &u.minute.ends, &u.day.used, &u.day.ends, &u.bannedAt, &u.bannedUntil,
	}
}

// usageDate is a day of a usage: whole days since 1970, in UTC.
type usageDate struct{ Usage, Day int64 }

// tally counts requests of one day: those let in, whatever the response, those refused with 429,
// during a ban too, and responses of 5xx.
type tally struct{ Admitted, Refused, Errors int64 }

// dayRow is what a flush adds to a day of a usage.
type dayRow struct {
	usageDate
	tally
}

// usageRow is what a flush adds to a usage, or a usage as it is stored then. Its instants are
// numbers, because an instant is a text in JSON.
type usageRow struct {
	ID                     int64
	MinuteUsed, MinuteEnds int64
	DayUsed, DayEnds       int64
	BannedAt, BannedUntil  int64
}

// increments are what a service has counted since its last flush. Their number grows by
// one from flush to flush; a flush whose outcome is unknown is repeated under its number.
type increments struct {
	number     int64
	firstTried instant
	sent       map[int64]usage // by id; their buckets' fresh requests count
	days       []dayRow
}

// maxRepeat is for how long a flush is repeated. A day after the first try, purge may delete the
// row of services that keeps it from counting twice; a minute less allows for slow writes.
const maxRepeat = recordMillis - minuteMillis

// merge are the statements that add the increments of a service, unless they were added before,
// and read into stored what is stored then, as a JSON array of usageRow: the usages that were
// sent, and all that are banned. A node of rqlite compresses a request that has a statement of
// 1,024 bytes, which would make a flush three times as expensive: all of these are shorter.
func (i *increments) merge(service string, now, latestBan instant, stored *string) []statement {
	rows := make([]usageRow, 0, len(i.sent))
	for id, u := range i.sent {
		rows = append(rows, usageRow{
			ID:         id,
			MinuteUsed: u.minute.fresh, MinuteEnds: int64(u.minute.ends),
			DayUsed: u.day.fresh, DayEnds: int64(u.day.ends),
		})
	}
	sent, _ := json.Marshal(rows) // of numbers
	days, _ := json.Marshal(i.days)
	return []statement{
		sqlOf(mergeUsages, string(sent), service, i.number, int64(now),
			int64(latestEnd(now, minuteMillis)), int64(latestEnd(now, dayMillis))),
		sqlOf(mergeDays, string(days), service, i.number),
		sqlOf(endVoidBans, int64(latestBan), service, i.number),
		sqlOf(noteFlush, int64(now), service, i.number),
		{mergedUsages, []any{string(sent), int64(now)}, []any{stored}},
	}
}

// The statements of a flush. ?2 is the service and ?3 the number of its flush.
const (
	notMerged = "NOT EXISTS (SELECT 1 FROM services WHERE id = ?2 AND flushes >= ?3)"

	// At ?4, a stored window that runs wins: one that ends by ?5, or ?6 for a day. Requests of a
	// window that has ended are dropped if another runs.
	mergeUsages = `INSERT INTO usage
	(id, minute_used, minute_ends, day_used, day_ends, banned_at, banned_until)
SELECT value ->> 'ID', value ->> 'MinuteUsed', value ->> 'MinuteEnds', value ->> 'DayUsed',
	value ->> 'DayEnds', 0, 0
FROM json_each(?1) WHERE ` + notMerged + `
ON CONFLICT (id) DO UPDATE SET
	minute_used = excluded.minute_used * (excluded.minute_ends > ?4)
		+ minute_used * (minute_ends > ?4 AND minute_ends <= ?5),
	minute_ends = iif(minute_ends > ?4 AND minute_ends <= ?5, minute_ends, excluded.minute_ends),
	day_used = excluded.day_used * (excluded.day_ends > ?4)
		+ day_used * (day_ends > ?4 AND day_ends <= ?6),
	day_ends = iif(day_ends > ?4 AND day_ends <= ?6, day_ends, excluded.day_ends)`

	mergeDays = `INSERT INTO usage_days (usage_id, day, admitted, refused, errors)
SELECT value ->> 'Usage', value ->> 'Day', value ->> 'Admitted', value ->> 'Refused',
	value ->> 'Errors'
FROM json_each(?1) WHERE ` + notMerged + `
ON CONFLICT (usage_id, day) DO UPDATE SET admitted = admitted + excluded.admitted,
	refused = refused + excluded.refused, errors = errors + excluded.errors`

	// Bans that end after ?1 count as over, as usage.banned has it.
	endVoidBans = `UPDATE usage SET banned_until = 0
WHERE banned_until > 0 AND banned_until > ?1 AND ` + notMerged

	noteFlush = `INSERT INTO services (id, flushes, seen_at) VALUES (?2, ?3, ?1)
ON CONFLICT (id) DO UPDATE SET flushes = max(flushes, ?3), seen_at = max(seen_at, ?1)`

	mergedUsages = `SELECT json_group_array(json_object('ID', id,
	'MinuteUsed', minute_used, 'MinuteEnds', minute_ends, 'DayUsed', day_used, 'DayEnds', day_ends,
	'BannedAt', banned_at, 'BannedUntil', banned_until))
FROM usage
WHERE id IN (SELECT value ->> 'ID' FROM json_each(?1)) OR banned_until > 0 AND banned_until > ?2`
)

// limiter holds the usage of the accounts and the addresses that called lately. One lock guards it
// all: a request holds it for well under a microsecond, and it makes "both buckets or none" plain
// to see.
type limiter struct {
	store   *store
	log     *slog.Logger
	service string        // names this run of the service in the database
	banFor  time.Duration // 0 turns bans off

	flushing increments // whose outcome is not known yet; only flush uses it

	mu        sync.Mutex // guards what follows
	usages    map[int64]*usage
	tallies   map[usageDate]*tally // what no flush has taken
	addresses cache[netip.Prefix, bucket]
}

// Bounds of what is remembered. A usage that is forgotten is read again from
// the database; an address that is forgotten starts anew.
const (
	maxUsages    = 1 << 15
	maxAddresses = 1 << 16
	maxSent      = 1000 // usages that share a transaction, so that creates need not wait long
)

func newLimiter(s *store, banFor time.Duration, log *slog.Logger) *limiter {
	return &limiter{
		store: s, log: log, banFor: banFor,
		service: strconv.FormatUint(rand.Uint64(), 16), //nolint:gosec // no secret
		usages:  map[int64]*usage{}, tallies: map[usageDate]*tally{},
		addresses: cache[netip.Prefix, bucket]{max: maxAddresses},
	}
}

// admit charges the account for one request. The error is the store's, when the usage has to be
// read and cannot be.
func (l *limiter) admit(a *account, now time.Time) (decision, error) {
	d, known := l.charge(a, instantOf(now))
	for !known {
		if err := l.load(a.usageID); err != nil {
			return d, err
		}
		d, known = l.charge(a, instantOf(now)) // unless a flush has forgotten it already
	}
	if d.banBegins {
		l.ban(a, &d)
	}
	return d, nil
}

// charge takes one request from the usage of the account, if it is in memory.
func (l *limiter) charge(a *account, now instant) (d decision, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.usages[a.usageID]
	if u == nil {
		return d, false
	}
	if a.unbannedAt >= u.bannedAt {
		u.bannedUntil = 0 // the stored value may still be the old one: every reader compares
	}
	d = u.admit(now, a.quota, l.banFor)
	d.policy = a.policy
	t := l.tally(a.usageID, now)
	if d.refusal == "" {
		t.Admitted++
	} else {
		t.Refused++
	}
	return d, true
}

// tally is where to count what happens at an instant. The caller holds the lock.
func (l *limiter) tally(id int64, now instant) *tally {
	today := usageDate{id, int64(now / dayMillis)}
	t := l.tallies[today]
	if t == nil {
		t = &tally{}
		l.tallies[today] = t
	}
	return t
}

// countError counts a response of 5xx to a request that came at now. The usage need not be in
// memory.
func (l *limiter) countError(id int64, now instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tally(id, now).Errors++
}

// ban stores a ban and only then lets it begin, so that a crash undoes no key_banned that was
// sent. If it cannot be stored, the refusal stays rate_limited, and the next one tries again.
func (l *limiter) ban(a *account, d *decision) {
	// An unban that was made while the clock was ahead does not lift it.
	begins := max(d.now, a.unbannedAt+1)
	ends := d.now + instant(l.banFor.Milliseconds())
	d.banErr = errUnavailable
	defer func() { // also if the engine panics
		l.mu.Lock()
		defer l.mu.Unlock()
		u := l.usages[a.usageID] // no flush drops it while a ban is being stored
		u.banning = false
		d.banBegins = d.banErr == nil
		if d.banBegins {
			u.bannedAt = begins
			u.bannedUntil = ends
			// A Retry-After that is later than the ban's end still counts.
			u.strikes = bucket{}
			d.ban(ends)
		}
	}()
	save := sqlOf(saveBan, a.usageID, int64(begins), int64(ends))
	_, d.banErr = l.store.write(context.Background(), save)
}

// saveBan stores a ban of the usage ?1, from ?2 to ?3.
const saveBan = `INSERT INTO usage
	(id, minute_used, minute_ends, day_used, day_ends, banned_at, banned_until)
VALUES (?1, 0, 0, 0, 0, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET banned_at = ?2, banned_until = ?3`

// usageQuery reads the fields of a usage.
const usageQuery = `SELECT minute_used, minute_ends, day_used, day_ends, banned_at, banned_until
FROM usage WHERE id = ?`

// load reads a usage from the database into memory, unless it is there. One that was never written
// is new.
func (l *limiter) load(id int64) error {
	u := &usage{}
	_, err := l.store.readInto(context.Background(), sqlOf(usageQuery, id), u.fields()...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.usages[id] == nil { // another request may have been faster
		l.usages[id] = u
	}
	return err
}

// address charges a caller without a valid key or, with charge false, only shows where it stands.
func (l *limiter) address(caller netip.Prefix, now time.Time, charge bool) decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.addresses.get(caller)
	d := decision{now: instantOf(now), policy: addressPolicy}
	d.shown = b.level(d.now, minuteMillis, addressQuota)
	if !charge {
		return d
	}
	if d.shown.remaining == 0 {
		d.refusal = CodeRateLimited
		return d
	}
	b.take(d.now, minuteMillis)
	l.addresses.put(caller, b, 1)
	d.shown = b.level(d.now, minuteMillis, addressQuota)
	return d
}

// measure adds how many usages and addresses are in memory.
func (l *limiter) measure(e *exposition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.add("petstore_known_usages", "", float64(len(l.usages)))
	e.add("petstore_known_addresses", "", float64(l.addresses.size.Load()))
}

// flush adds what was counted since the last flush to what is stored, and goes on from the sum.
// Increments whose outcome is unknown are repeated until it is known, for at most a day, and only
// then others are taken. Where other services share the database, every flush learns of their bans.
// It must not run twice at once.
func (l *limiter) flush(ctx context.Context, now time.Time) error {
	if l.flushing.sent != nil && instantOf(now) > l.flushing.firstTried+maxRepeat {
		l.giveUp(instantOf(now))
	}
	if l.flushing.sent != nil { // their outcome is unknown
		if err := l.send(ctx, instantOf(now)); err != nil {
			return err
		}
	}
	for l.take(instantOf(now)) {
		if err := l.send(ctx, instantOf(now)); err != nil {
			return err
		}
		if len(l.flushing.days) < maxSent {
			return nil // what was admitted meanwhile is left for the next flush
		}
	}
	return nil
}

// send writes the increments that take has prepared, and goes on from what is stored then.
func (l *limiter) send(ctx context.Context, now instant) error {
	latestBan := latestBanEnd(now, l.banFor)
	var stored string
	_, err := l.store.write(ctx, l.flushing.merge(l.service, now, latestBan, &stored)...)
	if err != nil {
		return err
	}
	var rows []usageRow
	if err := json.Unmarshal([]byte(stored), &rows); err != nil {
		return err
	}
	l.adopt(rows, now)
	return nil
}

// giveUp drops the increments that were sent: whether they were stored cannot be found out any
// more, and to repeat them could count them twice.
func (l *limiter) giveUp(now instant) {
	requests := int64(0)
	for _, day := range l.flushing.days {
		requests += day.Admitted + day.Refused
	}
	l.log.Error("usage that could not be written for a day is dropped",
		"requests", requests, "since", l.flushing.firstTried.time())
	var rows []usageRow // in which no window runs, so that they only end what was sent
	for id := range l.flushing.sent {
		rows = append(rows, usageRow{ID: id})
	}
	l.adopt(rows, now)
}

// take prepares the next increments, unless there are none and no other service shares the
// database. The first flush always happens: it ends the bans that are void since the start.
func (l *limiter) take(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	started := l.flushing.number > 0
	if len(l.tallies) == 0 && started && !l.store.engine.shared() {
		return false
	}
	l.flushing = increments{number: l.flushing.number + 1, firstTried: now,
		sent: map[int64]usage{}, days: []dayRow{}}
	for at, t := range l.tallies {
		if len(l.flushing.days) >= maxSent {
			break
		}
		l.flushing.days = append(l.flushing.days, dayRow{at, *t})
		u := l.usages[at.Usage]
		if u != nil && u.day.fresh > 0 { // refusals and errors change no window
			l.flushing.sent[at.Usage] = *u
		}
		delete(l.tallies, at)
	}
	return true
}

// adopt goes on from what is stored, after a flush, and drops usages that are stored, if there are
// too many.
func (l *limiter) adopt(rows []usageRow, now instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, row := range rows {
		u, sent := l.usages[row.ID], l.flushing.sent[row.ID]
		if u == nil {
			continue
		}
		minute := bucket{used: row.MinuteUsed, ends: instant(row.MinuteEnds)}
		day := bucket{used: row.DayUsed, ends: instant(row.DayEnds)}
		u.minute.adopt(minute, sent.minute, now, minuteMillis)
		u.day.adopt(day, sent.day, now, dayMillis)
		if bannedAt := instant(row.BannedAt); bannedAt > u.bannedAt {
			u.bannedAt, u.bannedUntil = bannedAt, instant(row.BannedUntil)
		}
	}
	l.flushing.sent = nil
	if len(l.usages) > maxUsages {
		stored := func(u *usage) bool { return u.day.fresh == 0 && !u.banning }
		maps.DeleteFunc(l.usages, func(_ int64, u *usage) bool {
			insists := now < u.retryAt || u.strikes.running(now, minuteMillis)
			return stored(u) && !insists
		})
		// Strikes are stored nowhere, so they go last.
		maps.DeleteFunc(l.usages, func(_ int64, u *usage) bool {
			return len(l.usages) > maxUsages && stored(u)
		})
	}
}

// clientNetwork is the network a request without a valid key is charged to: the IPv4 address, or
// the /64 of the IPv6 address, since a household or a server commonly holds a whole one. Behind a
// proxy it is the rightmost entry of the named header, the one that the proxy itself has written.
// If that entry is not an address, it is returned as unread, and the proxy's own address counts.
func clientNetwork(r *http.Request, header string) (network netip.Prefix, unread string) {
	if values := r.Header.Values(header); len(values) > 0 {
		list := strings.Join(values, ",")
		last := strings.TrimSpace(list[strings.LastIndexByte(list, ',')+1:])
		if network, ok := parseNetwork(last); ok {
			return network, ""
		}
		unread = cmp.Or(last, "(empty)")
	}
	network, _ = parseNetwork(r.RemoteAddr)
	return network, unread
}

// parseNetwork takes an IP address with or without a port, and in brackets or not.
func parseNetwork(s string) (netip.Prefix, bool) {
	both, err := netip.ParseAddrPort(s)
	ip := both.Addr()
	if err != nil {
		ip, err = netip.ParseAddr(strings.Trim(s, "[]"))
	}
	ip = ip.Unmap()
	network, _ := ip.Prefix(min(ip.BitLen(), 64))
	return network, err == nil
}
