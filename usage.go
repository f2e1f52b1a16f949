package main

// What makes usage last. A ledger is a limiter whose usage is stored: what it has counted is
// flushed every half second, and what it does not remember is read. It keeps the usage of each day,
// which is reported and, when it is old, deleted.
//
// Several services may share the database, and with it the usage of a key. Each counts for itself,
// and every half second adds what it has counted to what is stored and goes on from there: see
// flush. Strikes are each service's own.

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ledger is a limiter whose usage lasts.
type ledger struct {
	limiter
	store   *store
	service string // names this run of the service in the database
	batch   batch  // only flush uses it
}

func newLedger(s *store, banFor time.Duration) *ledger {
	return &ledger{
		limiter: newLimiter(banFor, s.engine.shared()),
		store:   s,
		service: strconv.FormatUint(rand.Uint64(), 16),
	}
}

// admit charges the account for one request. The error is the store's, when the usage has to be
// read and cannot be.
func (l *ledger) admit(a *account, now time.Time) (decision, error) {
	d, known := l.charge(a, instantOf(now))
	for !known {
		if err := l.recall(a.usageID); err != nil {
			return d, err
		}
		// A flush between recall and charge may make the usage old, or drop it.
		d, known = l.charge(a, instantOf(now))
	}
	if d.banBegins {
		l.storeBan(a, &d)
	}
	return d, nil
}

// recall reads a usage that is old or not in memory. If the store fails, the usage in memory counts
// as read until the next flush succeeds; if there is none, the error is returned. While recall
// reads, it does not hold the lock. If a merge has brought the usage meanwhile, or a trim has
// dropped it, what was read may be older than that: then recall changes nothing, and the caller has
// to look again.
func (l *ledger) recall(id int64) error {
	l.mu.Lock()
	began := l.merges
	l.mu.Unlock()
	stored := &usage{} // it stays so if the usage was never stored
	query := sqlOf(usageQuery, id)
	_, err := l.store.readInto(context.Background(), query, stored.columns()...)
	stored.minute.read = stored.minute.row()
	stored.day.read = stored.day.row()
	l.mu.Lock()
	defer l.mu.Unlock()
	// This is merges, and not began: merges that did not bring this usage do not make the reading
	// old. If they did, and a reading took longer than the pause between two flushes, admit would
	// read for ever.
	stored.readMerge = l.merges
	u := l.usages[id]
	if u == nil {
		// merge counts up merges before it trims, so that each trim since has a number above began.
		mayBeTrimmed := l.trimmedAt > began
		if err == nil && !mayBeTrimmed {
			l.usages[id] = stored
		}
		return err
	}
	// isOld compares readMerge with the present merges.
	if !l.isOld(u) {
		return nil // another recall, or the last merge, has brought it
	}
	if u.readMerge > began {
		return nil // it is old again, but what brought it may have been read later than this
	}
	if err == nil {
		// The ban in memory stays: every flush reads the bans, and a newer one may have begun here.
		u.minute = stored.minute
		u.day = stored.day
	}
	u.readMerge = stored.readMerge
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

// row is the bucket as it is stored.
func (b *bucket) row() bucketRow { return bucketRow{Used: b.used, Ends: b.ends} }

// storeBan stores a ban and only then lets it begin, so that a crash undoes no key_banned that was
// sent. If it cannot be stored, the refusal stays rate_limited, and strikes are counted anew. If
// another ban is stored that this service did not know, that one counts in its place. Afterwards
// banBegins says whether it is this service's own ban that was stored.
func (l *ledger) storeBan(a *account, d *decision) {
	// An unban that was made while the clock was ahead must not lift this ban.
	begins := max(d.now, a.unbannedAt+1)
	ends := d.now + instant(l.banFor.Milliseconds())
	var stored usage
	_, d.banErr = l.store.write(context.Background(),
		sqlOf(insertUsages, fmt.Sprintf(`[{"ID":%d}]`, a.usageID)),
		sqlOf(updateBan, a.usageID, int64(begins), int64(ends), int64(d.lastBan)),
		statement{
			query: usageQuery,
			args:  []any{a.usageID},
			into:  stored.columns(),
		})
	d.banBegins = d.banErr == nil && stored.bannedAt == begins
	if d.banErr != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.usages[a.usageID]; u != nil { // otherwise it is read anew, with the ban
		u.bannedAt = stored.bannedAt
		u.bannedUntil = stored.bannedUntil
	}
	if stored.isBanned(a, d.now) { // another ban may have ended, or have been lifted
		d.showBan(stored.bannedUntil)
	}
}

// updateBan stores a ban of the usage ?1, from ?2 to ?3, unless another ban is stored than ?4, the
// one that this service knows. So a ban that arrives late replaces none.
const updateBan = `UPDATE usage SET banned_at = ?2, banned_until = ?3
WHERE id = ?1 AND banned_at = ?4`

// batch is what one transaction of a flush adds to the database. The numbers of a service's batches
// ascend. A batch whose outcome is unknown is sent again under its number, so that the database
// adds it once.
type batch struct {
	counts
	number         int64
	outcomeUnknown bool // from when it was taken until a send of it has succeeded
}

// maxBatch bounds the days of a batch, so that creates need not wait long.
const maxBatch = 1000

// flush adds what was counted since the last flush to what is stored, and goes on from the sum.
// Where other services share the database, every flush learns of their bans. Requests that were not
// added, because another service has begun a window, still count: they are in the batch that is
// taken next, which follows immediately. Two flushes must not run at the same time.
func (l *ledger) flush(ctx context.Context, now func() time.Time) error {
	if l.batch.outcomeUnknown {
		if _, err := l.send(ctx, now); err != nil {
			return err
		}
	}
	for l.takeBatch() {
		again, err := l.send(ctx, now)
		if err != nil {
			return err
		}
		tookAll := len(l.batch.days) < maxBatch
		if tookAll && !again {
			return nil // what was admitted meanwhile is left for the next flush
		}
	}
	return nil
}

// takeBatch moves what was counted to a new batch. On a file it returns false if nothing was
// counted. On a cluster it always returns true: an empty batch, too, is sent to read the bans of
// other services. take gives no usage without a day, so usages need not be looked at.
func (l *ledger) takeBatch() bool {
	taken := l.take(maxBatch)
	if len(taken.days)+len(taken.deprecated) == 0 && !l.shared {
		return false
	}
	l.batch = batch{
		counts:         taken,
		number:         l.batch.number + 1,
		outcomeUnknown: true,
	}
	return true
}

// send writes the batch, and goes on from what is stored then. again reports that some of the batch
// was not added, and still counts.
func (l *ledger) send(ctx context.Context, now func() time.Time) (again bool, err error) {
	var stored string
	statements := l.batch.statements(l.service, instantOf(now()), &stored)
	if _, err := l.store.write(ctx, statements...); err != nil {
		return false, err
	}
	var rows []usageRow
	if err := json.Unmarshal([]byte(stored), &rows); err != nil {
		return false, err
	}
	again = l.merge(rows, l.batch.counts, now)
	l.batch.outcomeUnknown = false
	return again, nil
}

// statements add the batch of a service, unless it was added before. Then they read the usages of
// the batch, and all that are banned, as a JSON array of usageRow into stored.
//
// The SQL of each statement is shorter than 1,024 bytes, without its arguments. If one were longer,
// a node of rqlite would compress the request, and a flush would be three times as expensive.
func (b *batch) statements(service string, now instant, stored *string) []statement {
	usages, _ := json.Marshal(b.usages) // numbers cannot fail
	days, _ := json.Marshal(b.days)
	deprecated, _ := json.Marshal(b.deprecated)
	at := int64(now)
	return []statement{
		sqlOf(insertUsages, string(usages)),
		sqlOf(mergeMinutes, string(usages), service, b.number),
		sqlOf(mergeDays, string(usages), service, b.number),
		sqlOf(addTallies, string(days), service, b.number),
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
SELECT value ->> 'ID', 0, 0, 0, 0, 0, 0 FROM json_each(?1) WHERE true
ON CONFLICT DO NOTHING`

	// Requests are added to a window of the same end. Otherwise they begin one, but only if what is
	// stored is what the service has read last. So a flush that arrives late replaces no window
	// that its service did not know, whatever the clocks say. What is not added here still counts:
	// bucket.adopt finds it out from the stored window.
	mergeDays = `UPDATE usage
SET day_ends = sent_ends, day_used = sent_used + iif(day_ends = sent_ends, day_used, 0)
FROM (SELECT value ->> 'ID' AS sent_id,
	value ->> '$.day.Used' AS sent_used, value ->> '$.day.ReadUsed' AS read_used,
	value ->> '$.day.Ends' AS sent_ends, value ->> '$.day.ReadEnds' AS read_ends FROM json_each(?1))
WHERE id = sent_id AND sent_used > 0
	AND (day_ends = sent_ends OR (day_used, day_ends) = (read_used, read_ends)) AND ` + notMerged

	addTallies = `INSERT INTO usage_days (usage_id, day, admitted, refused, errors)
SELECT value ->> 'Usage', value ->> 'Day', value ->> 'admitted', value ->> 'refused',
	value ->> 'errors'
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
	'Minute', json_object('Used', minute_used, 'Ends', minute_ends),
	'Day', json_object('Used', day_used, 'Ends', day_ends),
	'BannedAt', banned_at, 'BannedUntil', banned_until))
FROM usage
WHERE id IN (SELECT value ->> 'ID' FROM json_each(?1)) OR id IN (SELECT id FROM usage
	WHERE banned_until > 0 AND banned_until > ?2 ORDER BY banned_until DESC LIMIT 10000)`
)

// mergeMinutes does for minutes what mergeDays does for days. Every "day" of the text is replaced.
var mergeMinutes = strings.ReplaceAll(mergeDays, "day", "minute")

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

// eachUsage calls do with how much each line of rotations was used. since is the first day, as a
// number of days from 1970. The line with the most admitted requests comes first. A usageID selects
// one line, and 0 selects all. At most limit lines are taken, and all if limit is -1.
//
// The order is read first, as ids alone. Then 50 lines at a time are read, which take 2 MB if their
// names are the longest and each has 400 days: a cluster's response is kept in memory.
func eachUsage(ctx context.Context, s *store, since, usageID, limit int64,
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
		if err := eachUsageOf(ctx, s, part, since, do); err != nil {
			return err
		}
	}
	return nil
}

// eachUsageOf is eachUsage for some lines, in their order. In a query with max(id), SQLite takes
// the name and the plan from the row with that id.
func eachUsageOf(ctx context.Context, s *store, lines []int64, since int64,
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
