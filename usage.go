package main

// What services share: usage that lasts. The ledger counts in memory what limits.go decides,
// flushes what it has counted more than once a second, and reads what it does not remember. It
// keeps the usage of each day, which is reported and, when it is old, deleted.
//
// Several services may share the database, and with it the usage of a key. Each counts for itself,
// and every half second adds what it has counted to what is stored and goes on from there: see
// flush. To ask a cluster for each request would cost a round trip. Strikes are each service's own.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// ledger holds the usages of the accounts that called lately. One lock guards them all: a request
// holds it for well under a microsecond, and it makes "both buckets or none" plain to see.
type ledger struct {
	store   *store
	service string        // names this run of the service in the database
	banFor  time.Duration // 0 turns bans off
	shared  bool          // other services count the same usages
	batch   batch         // only flush uses this and the next
	due     []usageDate   // the days of tallies that the flush has still to send

	// Only flushInTime uses these, which are of the last flush.
	flushBegan time.Time
	flushTook  time.Duration
	flushErr   error

	mu           sync.Mutex // guards what follows
	entries      map[int64]*entry
	adoptions    int64               // how often adopt was called: once for each stored batch
	trimmedAfter int64               // what adoptions was when trim last ran; see recall
	tallies      map[usageDate]tally // that are in no batch yet
	deprecated   map[int64]int64     // as in batch
	recent       lastMinutes
	strangers    lastMinutes    // all as usage 0: 401 counts as admitted, and 429 as refused
	spent        []spentAddress // the last 10 that have used up their minute
	// mostAhead is how far in the future the end of a stored minute was, at most, since the last
	// takeMostAhead.
	mostAhead instant
}

// maxEntries bounds what is remembered. A usage that is forgotten is read again from the store.
const maxEntries = 1 << 15

// entry is a usage in memory, and how far it is stored.
type entry struct {
	usage
	minuteStored, dayStored storedPart
	readAfter               int64 // what ledger.adoptions was when this was last read; see isOld
}

// storedPart is how far a bucket is stored.
type storedPart struct {
	read   bucket // what was stored when it was read last
	unsent int64  // of the requests in memory, those that no finished flush has stored
}

// count counts a request that the bucket has admitted.
func (s *storedPart) count(b bucket) {
	if b.used == 1 { // it is the first of its window
		s.unsent = 0
	}
	s.unsent++
}

func newLedger(s *store, banFor time.Duration) *ledger {
	return &ledger{
		store:      s,
		service:    strconv.FormatUint(rand.Uint64(), 16),
		banFor:     banFor,
		shared:     s.engine.shared(),
		entries:    map[int64]*entry{},
		tallies:    map[usageDate]tally{},
		deprecated: map[int64]int64{},
	}
}

// charge takes one request from the account, or refuses it. The error is the store's, when the
// usage has to be read and cannot be. If the decision says banBegins, the caller has to call
// storeBan.
func (l *ledger) charge(a *account, now instant) (decision, error) {
	for { // again if a flush has made the usage old, or dropped it, just after recall
		d, known := l.chargeKnown(a, now)
		if known {
			return d, nil
		}
		if err := l.recall(a.usageID); err != nil {
			return d, err
		}
	}
}

// chargeKnown is charge for a usage in memory. known is false if the usage has to be read first.
func (l *ledger) chargeKnown(a *account, now instant) (d decision, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[a.usageID]
	if e == nil || l.isOld(e) {
		return d, false
	}
	d = e.admit(a, now, l.banFor > 0)
	l.count(a.usageID, now, tallyOf(d))
	if d.refusal == "" {
		e.minuteStored.count(e.minute)
		e.dayStored.count(e.day)
	}
	return d, true
}

// isOld reports whether a usage must be read again, because other services may have counted
// requests since it was read. After each batch, this holds for every usage that was not part of it.
// A usage with unsent requests is not old, since reading it would lose them. The next flush sends
// them, and brings the usage. The caller holds the lock.
func (l *ledger) isOld(e *entry) bool {
	return l.shared && e.readAfter != l.adoptions && !e.hasUnsent()
}

// hasUnsent reports whether the usage has requests for the next batch.
func (e *entry) hasUnsent() bool { return e.minuteStored.unsent > 0 || e.dayStored.unsent > 0 }

// recall reads a usage that is old or not in memory. If the store fails, the usage in memory counts
// as read until the next flush succeeds; if there is none, the error is returned. While recall
// reads, it does not hold the lock. If a flush has brought the usage meanwhile, or a trim has
// dropped it, what was read may be older than that: then recall changes nothing, and the caller has
// to look again.
func (l *ledger) recall(id int64) error {
	l.mu.Lock()
	began := l.adoptions
	l.mu.Unlock()
	stored := &entry{} // it stays so if the usage was never stored
	query := sqlOf(usageQuery, id)
	_, err := l.store.readInto(context.Background(), query, stored.columns()...)
	stored.minuteStored.read = stored.minute
	stored.dayStored.read = stored.day
	l.mu.Lock()
	defer l.mu.Unlock()
	// This is the present number, and not began: flushes that did not bring this usage do not make
	// the reading old. If they did, and a reading took longer than the pause between two flushes,
	// charge would read for ever.
	stored.readAfter = l.adoptions
	e := l.entries[id]
	if e == nil {
		wasTrimmed := l.trimmedAfter > began // perhaps after it was brought
		if err == nil && !wasTrimmed {
			l.entries[id] = stored
		}
		return err
	}
	if !l.isOld(e) {
		return nil // another recall, or the last flush, has brought it
	}
	if e.readAfter > began {
		return nil // it is old again, but what brought it may have been read later than this
	}
	if err == nil {
		// The ban in memory stays: every flush reads the bans, and a newer one may have begun here.
		e.minute = stored.minute
		e.minuteStored = stored.minuteStored
		e.day = stored.day
		e.dayStored = stored.dayStored
	}
	e.readAfter = stored.readAfter
	return nil
}

// usageQuery reads the fields of a usage.
const usageQuery = `SELECT minute_used, minute_ends, day_used, day_ends, banned_at, banned_until
FROM usage WHERE id = ?`

// columns are pointers to what is stored of a usage, in the order of the columns of its table.
func (u *usage) columns() []any {
	return []any{
		&u.minute.used,
		&u.minute.ends,
		&u.day.used,
		&u.day.ends,
		&u.bannedAt,
		&u.bannedUntil,
	}
}

// storeBan stores a ban and only then lets it begin, so that a crash undoes no key_banned that was
// sent. If it cannot be stored, the refusal stays rate_limited, and strikes are counted anew. If
// another ban is stored that this service did not know, that one counts in its place, and this one
// is not stored.
func (l *ledger) storeBan(a *account, d *decision) (isStored bool, err error) {
	l.mu.Lock()
	var lastBan instant
	if e := l.entries[a.usageID]; e != nil {
		lastBan = e.bannedAt
	}
	l.mu.Unlock()
	// An unban that was made while the clock was ahead must not lift this ban.
	begins := max(d.now, a.unbannedAt+1)
	ends := d.now + instant(l.banFor.Milliseconds())
	var stored usage
	_, err = l.store.write(context.Background(),
		sqlOf(insertUsages, fmt.Sprintf("[[%d]]", a.usageID)),
		sqlOf(updateBan, a.usageID, int64(begins), int64(ends), int64(lastBan)),
		statement{
			query: usageQuery,
			args:  []any{a.usageID},
			into:  stored.columns(),
		})
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[a.usageID]; e != nil { // otherwise it is read anew, with the ban
		e.bannedAt = stored.bannedAt
		e.bannedUntil = stored.bannedUntil
	}
	if stored.isBanned(a, d.now) { // another ban may have ended, or have been lifted
		d.showBan(stored.bannedUntil)
	}
	return stored.bannedAt == begins, nil
}

// updateBan stores a ban of the usage ?1, from ?2 to ?3, unless another ban is stored than ?4, the
// one that this service knows. So a ban that arrives late replaces none.
const updateBan = `UPDATE usage SET banned_at = ?2, banned_until = ?3
WHERE id = ?1 AND banned_at = ?4`

// usageDate is a day of a usage: whole days since 1970, in UTC.
type usageDate struct{ usage, day int64 }

func dateOf(id int64, now instant) usageDate { return usageDate{id, int64(now / dayMillis)} }

// tally counts requests of one day: those let in (whatever the response), those refused with 429
// (also during a ban), and responses of 5xx.
type tally struct {
	Admitted int64 `json:"admitted"`
	Refused  int64 `json:"refused"`
	Errors   int64 `json:"errors"`
}

// tallyOf is what the request of a decision adds to a tally.
func tallyOf(d decision) tally {
	if d.refusal != "" {
		return tally{Refused: 1}
	}
	return tally{Admitted: 1}
}

// plus is the sum of two tallies.
func (t tally) plus(more tally) tally {
	return tally{t.Admitted + more.Admitted, t.Refused + more.Refused, t.Errors + more.Errors}
}

// count counts what a usage has done at an instant: for the day, which is stored, and for the
// minute. The caller holds the lock.
func (l *ledger) count(id int64, now instant, done tally) {
	today := dateOf(id, now)
	sum := l.tallies[today].plus(done)
	l.tallies[today] = sum
	l.recent.count(id, now, done)
}

// countError counts a response of 5xx to a request that came at now. The usage need not be in
// memory.
func (l *ledger) countError(id int64, now instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(id, now, tally{Errors: 1})
}

// noteDeprecatedUse notes that a key used the deprecated operation.
func (l *ledger) noteDeprecatedUse(keyID int64, now instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deprecated[keyID] = int64(now)
}

// batch is what one transaction of a flush adds to the database. The numbers of a service's batches
// ascend. A batch whose outcome is unknown is sent again under its number, so that the database
// adds it once.
type batch struct {
	number         int64
	outcomeUnknown bool // from its beginning until a send of it has succeeded

	usages     map[int64]usageIncrement // by id
	days       []dayRow
	deprecated map[int64]int64 // Unix milliseconds of the last deprecated use, by the id of the key
}

// Each of these bounds the days of a batch. A usage takes a file 0.06 ms, for which creates wait. A
// cluster takes its time for each batch, whatever its size.
const (
	maxBatch   = 1000
	smallBatch = 100 // of a flush that leaves room, on a file
)

// flushTick is how often flushInTime is called.
const flushTick = 250 * time.Millisecond

// flushInTime flushes at some of the ticks. The error is that of the last flush. Services that
// share usage merge it twice a second. On a file, each flush takes time from creates, so there are
// as few as the promise allows: a kill loses a second of counting at most, and what is counted just
// after one flush has begun is stored when the next one ends.
func (l *ledger) flushInTime(ctx context.Context) error {
	interval := 2 * flushTick
	if !l.shared {
		interval = 3*flushTick - l.flushTook
	}
	if time.Since(l.flushBegan) < interval-flushTick/4 { // ticks are not that exact
		return l.flushErr
	}
	l.flushBegan = time.Now()
	l.flushErr = panicAsError(func() error { return l.flush(ctx, time.Now, true) })
	l.flushTook = time.Since(l.flushBegan)
	return l.flushErr
}

// flush adds what was counted until now to what is stored, and goes on from the sum. Where other
// services share the database, every flush learns of their bans. Requests that were not added,
// because another service has begun a window, still count: they are in a later batch of the same
// flush. Two flushes must not run at the same time.
//
// With pausesForCreates, a file is left to creates between two batches, for as long as the last one
// took. So the flush takes twice as long, and a kill loses more of what was counted.
func (l *ledger) flush(ctx context.Context, now func() time.Time, pausesForCreates bool) error {
	pausesForCreates = pausesForCreates && !l.shared
	most := maxBatch
	if pausesForCreates {
		most = smallBatch
	}
	if l.batch.outcomeUnknown {
		if err := l.send(ctx, now); err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.due = slices.Collect(maps.Keys(l.tallies)) // what comes later is left for the next flush
	l.mu.Unlock()
	// Neighbours in the tables share pages, and a batch writes each of its pages once.
	slices.SortFunc(l.due, func(a, b usageDate) int { return cmp.Compare(a.usage, b.usage) })
	for l.beginBatch(most) {
		begin := time.Now()
		if err := l.send(ctx, now); err != nil {
			return err
		}
		if len(l.due) == 0 {
			return nil
		}
		if pausesForCreates {
			pause(ctx, time.Since(begin))
		}
	}
	return nil
}

// send writes the batch, and goes on from what is stored then.
func (l *ledger) send(ctx context.Context, now func() time.Time) error {
	var stored string
	statements := l.batch.statements(l.service, instantOf(now()), &stored)
	if _, err := l.store.write(ctx, statements...); err != nil {
		return err
	}
	var rows []usageRow
	if err := json.Unmarshal([]byte(stored), &rows); err != nil {
		return err
	}
	l.adopt(rows, now)
	l.batch.outcomeUnknown = false
	return nil
}

// usageIncrement is what is added to a usage that is stored.
type usageIncrement struct{ minute, day increment }

// increment is what is added to a bucket that is stored: requests of the window that ends at ends.
// If another window is stored, this one replaces it, but only if the other is still as it was read
// last: a flush that arrives late must not replace a window that its service never saw. See
// mergeUsages.
type increment struct {
	requests int64
	ends     instant
	read     bucket
}

// row is the increment of a usage as mergeUsages takes it. An instant would be a string in JSON.
func (u usageIncrement) row(id int64) []int64 {
	row := []int64{id}
	for _, of := range [...]increment{u.minute, u.day} {
		row = append(row, of.requests, int64(of.ends), of.read.used, int64(of.read.ends))
	}
	return row
}

// dayRow is what is added to a day of a usage.
type dayRow struct {
	usageDate
	tally
}

// row is the dayRow as addTallies takes it.
func (d dayRow) row() []int64 {
	return []int64{d.usage, d.day, d.Admitted, d.Refused, d.Errors}
}

// beginBatch moves what is due to a new batch: at most mostDays tallies, and the unsent requests of
// their usages. On a file it returns false if there is nothing. On a cluster it always returns
// true: an empty batch, too, is sent to read the bans of other services.
//
// It leaves unsent as it is, since the send may fail: while a window runs, only adopt lowers it,
// once the store has the requests. So a batch must be adopted before the next one begins, or they
// would be sent twice.
//
// It finds the usages by their tallies. Whatever has unsent requests has one, since chargeKnown
// counts in both, and adopt makes one for what was kept out.
func (l *ledger) beginBatch(mostDays int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := batch{
		number:         l.batch.number + 1,
		outcomeUnknown: true,
		usages:         map[int64]usageIncrement{},
		deprecated:     l.deprecated,
	}
	for len(l.due) > 0 && len(next.days) < mostDays {
		date := l.due[0]
		l.due = l.due[1:]
		t, isThere := l.tallies[date]
		if !isThere {
			continue // it was due twice
		}
		next.days = append(next.days, dayRow{usageDate: date, tally: t})
		delete(l.tallies, date)
		e := l.entries[date.usage]
		if e != nil && e.hasUnsent() {
			next.usages[date.usage] = usageIncrement{
				minute: increment{e.minuteStored.unsent, e.minute.ends, e.minuteStored.read},
				day:    increment{e.dayStored.unsent, e.day.ends, e.dayStored.read},
			}
		}
	}
	if len(next.days)+len(next.deprecated) == 0 && !l.shared {
		return false
	}
	l.deprecated = map[int64]int64{}
	l.batch = next
	return true
}

// statements add the batch of a service, unless it was added before. Then they read the usages of
// the batch, and all that are banned, as a JSON array of usageRow into stored.
//
// The SQL of each statement is shorter than 1,024 bytes, without its arguments. If one were longer,
// a node of rqlite would compress the request, and a flush would be three times as expensive.
func (b *batch) statements(service string, now instant, stored *string) []statement {
	usageRows, tallyRows := [][]int64{}, [][]int64{} // nil would be null in JSON
	for _, id := range slices.Sorted(maps.Keys(b.usages)) {
		usageRows = append(usageRows, b.usages[id].row(id))
	}
	for _, day := range b.days {
		tallyRows = append(tallyRows, day.row())
	}
	usages, _ := json.Marshal(usageRows) // numbers cannot fail
	tallies, _ := json.Marshal(tallyRows)
	deprecated, _ := json.Marshal(b.deprecated)
	at := int64(now)
	return []statement{
		sqlOf(insertUsages, string(usages)),
		sqlOf(mergeUsages, string(usages), service, b.number),
		sqlOf(addTallies, string(tallies), service, b.number),
		sqlOf(noteFlush, at, service, b.number),
		sqlOf(mergeDeprecated, string(deprecated)),
		{
			query: readUsages,
			args:  []any{string(usages), at},
			into:  []any{stored},
		},
	}
}

// The statements of a flush. Where a comment says nothing else, ?2 is the service, and ?3 the
// number of the batch.
const (
	notMerged = "NOT EXISTS (SELECT 1 FROM services WHERE id = ?2 AND flushes >= ?3)"

	// Without notMerged: an empty usage may be stored again, since the one that is there stays.
	insertUsages = `INSERT INTO usage
	(id, minute_used, minute_ends, day_used, day_ends, banned_at, banned_until)
SELECT value ->> 0, 0, 0, 0, 0, 0, 0 FROM json_each(?1) WHERE true
ON CONFLICT DO NOTHING`

	// Requests are added to a window of the same end. Otherwise they begin one, but only if what is
	// stored is what the service has read last. So a flush that arrives late replaces no window
	// that its service did not know, whatever the clocks say. What is not added here still counts:
	// storedPart.adopt finds it out from the stored window. MATERIALIZED: each number is taken out
	// of the JSON once.
	mergeUsages = `WITH increment AS MATERIALIZED (SELECT value ->> 0 AS sent_id,
	value ->> 1 AS m_sent, value ->> 2 AS m_ends, value ->> 3 AS m_read, value ->> 4 AS m_read_ends,
	value ->> 5 AS d_sent, value ->> 6 AS d_ends, value ->> 7 AS d_read, value ->> 8 AS d_read_ends
	FROM json_each(?1))
UPDATE usage SET
minute_used = CASE WHEN m_sent > 0 AND minute_ends = m_ends THEN minute_used + m_sent
	WHEN m_sent > 0 AND (minute_used, minute_ends) = (m_read, m_read_ends) THEN m_sent
	ELSE minute_used END,
minute_ends = iif(m_sent > 0 AND (minute_used, minute_ends) = (m_read, m_read_ends),
	m_ends, minute_ends),
day_used = CASE WHEN d_sent > 0 AND day_ends = d_ends THEN day_used + d_sent
	WHEN d_sent > 0 AND (day_used, day_ends) = (d_read, d_read_ends) THEN d_sent
	ELSE day_used END,
day_ends = iif(d_sent > 0 AND (day_used, day_ends) = (d_read, d_read_ends), d_ends, day_ends)
FROM increment WHERE id = sent_id AND ` + notMerged

	addTallies = `INSERT INTO usage_days (usage_id, day, admitted, refused, errors)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
FROM json_each(?1) WHERE ` + notMerged + `
ON CONFLICT (usage_id, day) DO UPDATE SET admitted = admitted + excluded.admitted,
	refused = refused + excluded.refused, errors = errors + excluded.errors`

	// seen_at stays that of the first batch.
	noteFlush = `INSERT INTO services (id, flushes, seen_at) VALUES (?2, ?3, ?1)
ON CONFLICT (id) DO UPDATE SET flushes = max(flushes, ?3)`

	// Without notMerged: the highest stays the same if it is stored twice.
	mergeDeprecated = `UPDATE api_keys SET deprecated_use_at = max(deprecated_use_at, used.value)
FROM json_each(?) AS used WHERE api_keys.id = CAST(used.key AS INTEGER)`

	// ?2 is now. "banned_until > 0" lets SQLite use the index usage_banned_until. If there are more
	// bans than a response can hold, those that end first are left out: earlier flushes have read
	// them.
	readUsages = `SELECT json_group_array(json_object('ID', id,
	'MinuteUsed', minute_used, 'MinuteEnds', minute_ends,
	'DayUsed', day_used, 'DayEnds', day_ends,
	'BannedAt', banned_at, 'BannedUntil', banned_until))
FROM usage
WHERE id IN (SELECT value ->> 0 FROM json_each(?1)) OR id IN (SELECT id FROM usage
	WHERE banned_until > 0 AND banned_until > ?2 ORDER BY banned_until DESC LIMIT 10000)`
)

// usageRow is a usage as readUsages reads it.
type usageRow struct {
	ID, MinuteUsed, DayUsed int64
	MinuteEnds, DayEnds     instant
	BannedAt, BannedUntil   instant
}

// adopt goes on from what is stored after the batch was sent. It reads the clock under the lock,
// and so after every request that has been counted. Requests that were not added are due again.
func (l *ledger) adopt(stored []usageRow, clock func() time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := instantOf(clock())
	l.adoptions++
	for _, row := range stored {
		e := l.entries[row.ID]
		if e == nil {
			continue
		}
		sent := l.batch.usages[row.ID]
		// A stored minute that ended too far ahead counted as over when it was read (see running),
		// and what was sent has replaced it. Then row no longer shows its end, but sent does.
		minuteEnds := max(row.MinuteEnds, sent.minute.read.ends)
		l.mostAhead = max(l.mostAhead, minuteEnds-now)
		if e.adopt(row, sent, now) {
			today := dateOf(row.ID, now)
			l.tallies[today] = l.tallies[today].plus(tally{}) // so that beginBatch finds the usage
			l.due = append(l.due, today)
		}
		e.readAfter = l.adoptions
	}
	if len(l.due) == 0 && len(l.entries) > maxEntries {
		l.trim(now)
	}
}

// adopt lets a usage in memory go on from the stored one, after an increment was sent to that, or
// none, which is the zero increment. again reports that requests were kept out, and are to be sent
// again.
func (e *entry) adopt(row usageRow, sent usageIncrement, now instant) (again bool) {
	if row.BannedAt > e.bannedAt {
		e.bannedAt = row.BannedAt
		e.bannedUntil = row.BannedUntil
	}
	minute := bucket{used: row.MinuteUsed, ends: row.MinuteEnds}
	day := bucket{used: row.DayUsed, ends: row.DayEnds}
	minuteAgain := e.minuteStored.adopt(
		&e.minute, minute, sent.minute, now, minuteMillis)
	dayAgain := e.dayStored.adopt(
		&e.day, day, sent.day, now, dayMillis)
	return minuteAgain || dayAgain
}

// adopt does the same for b, one of the buckets of the usage. now is read after the increment was
// sent, since a window may have ended meanwhile.
func (s *storedPart) adopt(b *bucket, stored bucket, sent increment, now, length instant) (
	again bool) {
	isAdded := stored.ends == sent.ends
	isOthers := !isAdded && stored != s.read
	s.read = stored
	switch {
	case !b.running(now, length):
		// What is unsent says nothing of the window that runs now, if one does.
		s.unsent = 0
		if stored.running(now, length) {
			*b = stored
		}
	case isAdded && stored.ends == b.ends:
		// The increment was added to the window of b.
		s.unsent -= sent.requests
		b.used = stored.used + s.unsent
	case isOthers && stored.running(now, length):
		// Another service has begun this window, which has kept the increment out, or has added to
		// it. What is unsent counts in it.
		b.used = stored.used + s.unsent
		b.ends = stored.ends
	default:
		// What is stored is as it was read last, or older than b: b has begun a newer window when
		// that one was over. If it seems to run, the clock was set back.
	}
	return sent.requests > 0 && !isAdded && s.unsent > 0
}

// trim drops the entries that are stored and whose last Retry-After has passed. The caller holds
// the lock.
func (l *ledger) trim(now instant) {
	l.trimmedAfter = l.adoptions
	maps.DeleteFunc(l.entries, func(_ int64, e *entry) bool {
		return !e.hasUnsent() && !e.isAskedToWait(now)
	})
}

// takeMostAhead returns mostAhead, and begins anew. If it is more than a minute, the clocks of two
// services differ by the rest.
func (l *ledger) takeMostAhead() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	mostAhead := time.Duration(l.mostAhead) * time.Millisecond
	l.mostAhead = 0
	return mostAhead
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

// countStranger counts a request without a valid key, once its address was charged.
func (l *ledger) countStranger(address netip.Prefix, d decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strangers.count(0, d.now, tallyOf(d))
	isLast := d.refusal == "" && d.minute.remaining == 0
	if !isLast {
		return
	}
	l.spent = append(l.spent, spentAddress{address, d.minute.reset})
	if len(l.spent) > 10 {
		l.spent = l.spent[1:]
	}
}

// busy is what usages, and callers without a valid key, have done in the last minutes, and which
// addresses have used up their minute last.
func (l *ledger) busy(now instant) (
	usages map[int64]tally, strangers tally, spent []spentAddress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	usages = l.recent.sums(now)
	strangers = l.strangers.sums(now)[0]
	spent = slices.Clone(l.spent)
	return usages, strangers, spent
}

// lineUsage tells how much the keys of one line of rotations were used, under the name of the
// newest.
type lineUsage struct {
	ID   int64      `json:"id"`
	Name string     `json:"name"`
	Plan string     `json:"plan"`
	Days []dayUsage `json:"days"` // those with requests, ascending
}

// dayUsage is a day of a lineUsage.
type dayUsage struct {
	Day string `json:"day"` // such as 2026-11-20, in UTC
	tally
}

// total is the sum of all days.
func (line *lineUsage) total() (sum tally) {
	for _, day := range line.Days {
		sum = sum.plus(day.tally)
	}
	return sum
}

// eachLine calls do with how much each line of rotations was used. since is the first day, as a
// number of days from 1970. The line with the most admitted requests comes first. A usageID selects
// one line, and 0 selects all. At most limit lines are taken, and all if limit is -1.
//
// The order is read first, as ids alone. Then 50 lines at a time are read, which take 2 MB if their
// names are the longest and each has 400 days: a cluster's response is kept in memory.
func eachLine(ctx context.Context, s *store, since, usageID, limit int64,
	do func(*lineUsage) error) error {
	// ?2 is usageID: 0 is in the list for every key.
	order := sqlOf(`SELECT json_group_array(line ORDER BY total DESC, newest) FROM (
		SELECT coalesce(k.usage_id, k.id) AS line, max(k.id) AS newest,
			(SELECT sum(admitted) FROM usage_days
				WHERE usage_id = coalesce(k.usage_id, k.id) AND day >= ?1) AS total
		FROM api_keys AS k WHERE ?2 IN (0, k.id, k.usage_id)
		GROUP BY line ORDER BY total DESC, newest LIMIT ?3)`, since, usageID, limit)
	var text string
	if _, err := s.readInto(ctx, order, &text); err != nil {
		return err
	}
	var lines []int64
	if err := json.Unmarshal([]byte(text), &lines); err != nil {
		return err
	}
	for part := range slices.Chunk(lines, 50) {
		if err := eachLineOf(ctx, s, part, since, do); err != nil {
			return err
		}
	}
	return nil
}

// eachLineOf is eachLine for some lines, in their order. In a query with max(id), SQLite takes
// the name and the plan from the row with that id.
func eachLineOf(ctx context.Context, s *store, lines []int64, since int64,
	do func(*lineUsage) error) error {
	ids, _ := json.Marshal(lines) // of numbers
	query := sqlOf(`SELECT max(k.id), name, plan,
			(SELECT json_group_array(json_object('day', date(day * 86400, 'unixepoch'),
					'admitted', admitted, 'refused', refused, 'errors', errors) ORDER BY day)
				FROM usage_days WHERE usage_id = line.value AND day >= ?2)
		FROM json_each(?1) AS line
			JOIN api_keys AS k ON k.id = line.value OR k.usage_id = line.value
		GROUP BY line.key ORDER BY line.key`, string(ids), since)
	return s.read(ctx, query, func(scan scanner) error {
		line := &lineUsage{}
		var days string
		if err := scan(&line.ID, &line.Name, &line.Plan, &days); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(days), &line.Days); err != nil {
			return err
		}
		return do(line)
	})
}

// maxDays is how many days of usage are kept.
const maxDays = 400

// purge deletes days of usage that are older than maxDays, until ctx ends.
func (l *ledger) purge(ctx context.Context, now time.Time) error {
	today := int64(instantOf(now) / dayMillis)
	return l.store.purgeRows(ctx, `DELETE FROM usage_days WHERE (usage_id, day) IN
		(SELECT usage_id, day FROM usage_days WHERE day <= ? ORDER BY day LIMIT ?)`, today-maxDays)
}
