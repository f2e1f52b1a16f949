package main

// The stored keys, with the SQL that reads, makes, and changes them. A key is known here by its
// digest: this file never sees the text of one.

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// digest is the SHA-256 of a key's text: what is stored and looked up.
type digest [sha256.Size]byte

// apiKey is what is known of a key, and in JSON what operators are shown of it.
type apiKey struct {
	ID        int64   `json:"id"`
	Name      string  `json:"name"`
	Plan      string  `json:"plan"`
	LastFour  string  `json:"lastFour"`
	CreatedAt instant `json:"createdAt"`
	ExpiresAt instant `json:"expiresAt"`
	RevokedAt instant `json:"revokedAt"`
	account           // with perMinute and perDay

	// These three, and State, are as they were at the instant with which the key was read. The
	// keyring reads its keys with the instant 0, and in those they mean nothing.
	UsedThisMinute int64   `json:"usedThisMinute"`
	UsedToday      int64   `json:"usedToday"`
	BannedUntil    instant `json:"bannedUntil"` // 0 unless it is banned

	DeprecatedUseAt instant `json:"deprecatedUseAt"`
	LastUsedAt      instant `json:"lastUsedAt"` // the beginning of its last minute's window

	Test        bool   `json:"test"`
	State       string `json:"state"`       // active, banned, expired or revoked
	Succeeds    keyID  `json:"succeeds"`    // the key that it was rotated from
	SucceededBy keyID  `json:"succeededBy"` // the key that it was last rotated into

	dayEnds  instant // the end of its last day's window
	lifetime instant // a length in milliseconds: how long the key is made for; 0 for ever
}

// keyID is the id of another key, or 0 for none, which is null in JSON.
type keyID int64

// MarshalJSON implements json.Marshaler.
func (id keyID) MarshalJSON() ([]byte, error) {
	if id == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(int64(id))
}

// usable reports whether the key opens the service at an instant.
func (k *apiKey) usable(now instant) bool {
	return k.RevokedAt == 0 && (k.ExpiresAt == 0 || now < k.ExpiresAt)
}

// findKey returns the key with a digest, or nil. It is read with the instant 0, because no request
// needs what depends on the instant (see apiKey).
func findKey(ctx context.Context, s *store, d digest) (*apiKey, error) {
	found, err := readKeys(ctx, s, 0, "WHERE k.digest = unhex(?)", fmt.Sprintf("%x", d))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// readKeys returns the keys that a WHERE clause selects, as eachKey has them.
func readKeys(ctx context.Context, s *store, now instant, where string, args ...any) (
	[]*apiKey, error) {
	var keys []*apiKey
	keep := func(k *apiKey) error {
		keys = append(keys, k)
		return nil
	}
	err := eachKey(ctx, s, now, keep, where, args...)
	return keys, err
}

// eachKey calls do with each key that a clause selects, by id, with its usage as it is at now. The
// clause begins with WHERE. eachKey adds another condition with AND, so that an OR in the clause
// needs brackets. SQLite gives each bare ? the number after the highest so far, so the clause may
// use ?1 several times.
//
// A new column of a key needs a migration, a file in schema. The column also stands in keyColumns,
// apiKey, columns, insertKeyIf and insertion, and in changeKey if a command may change it.
func eachKey(ctx context.Context, s *store, now instant, do func(*apiKey) error,
	where string, args ...any) error {
	// The subquery finds the key that each was last rotated into. It compares usage_id only to use
	// the index api_keys_usage_id.
	const tables = `
FROM (SELECT *, (SELECT max(id) FROM api_keys
		WHERE usage_id = coalesce(line.usage_id, line.id) AND succeeds = line.id) AS successor
	FROM api_keys line) k
LEFT JOIN usage u ON u.id = coalesce(k.usage_id, k.id)
`
	rest := where + " AND k.id > ? ORDER BY k.id LIMIT ?"
	query := sqlOf(keyColumns+tables+rest, args...)
	return eachKeyOf(ctx, s, now, query, do)
}

// eachKeyByLine calls do with all keys, as eachKey has them. The keys of a line of rotations come
// one after the other. The lines are sorted by their first keys.
//
// The subquery of eachKey looks through a whole line of rotations for each of its keys. Here one
// query finds all successors, whose usage_id is not NULL, so that the same index leaves the other
// keys out.
func eachKeyByLine(ctx context.Context, s *store, now instant, do func(*apiKey) error) error {
	// ?1 is the id of the key after which the rows begin, or 0. If there is no such key, as for 0,
	// ?1 stands for its line as well.
	query := sqlOf(keyColumns + `
FROM api_keys k
LEFT JOIN (SELECT succeeds AS predecessor, max(id) AS successor FROM api_keys
	WHERE usage_id > 0 GROUP BY succeeds) ON predecessor = k.id
LEFT JOIN usage u ON u.id = coalesce(k.usage_id, k.id)
WHERE (coalesce(k.usage_id, k.id), k.id) >
	(ifnull((SELECT coalesce(usage_id, id) FROM api_keys WHERE id = ?1), ?1), ?1)
ORDER BY coalesce(k.usage_id, k.id), k.id LIMIT ?2`)
	return eachKeyOf(ctx, s, now, query, do)
}

// eachKeyOf calls do with the keys of a query that begins with keyColumns, and ends as eachRow
// needs it.
func eachKeyOf(ctx context.Context, s *store, now instant, query statement,
	do func(*apiKey) error) error {
	return s.eachRow(ctx, 0, query, func(scan scanner) (id int64, err error) {
		k := &apiKey{}
		u := &usage{}
		columns := append(k.columns(), u.columns()...)
		if err := scan(columns...); err != nil {
			return 0, err
		}
		// The quota of the plan counts. The key's own counts only if the plan has none.
		k.quota = cmp.Or(planQuota(k.Plan), k.quota)
		k.policy = k.policyHeader()
		k.setUsage(u, now)
		return k.ID, do(k)
	})
}

// keyColumns are those of a key, of which successor is joined, and those of its usage.
const keyColumns = `
SELECT k.id, k.name, k.plan, k.last_four, k.test, k.per_minute, k.per_day, k.lifetime,
	k.created_at, k.expires_at, k.revoked_at, k.unbanned_at, k.deprecated_use_at,
	coalesce(k.usage_id, k.id), ifnull(k.succeeds, 0), ifnull(successor, 0),
	ifnull(minute_used, 0), ifnull(minute_ends, 0), ifnull(day_used, 0), ifnull(day_ends, 0),
	ifnull(banned_at, 0), ifnull(banned_until, 0)`

// columns are pointers to what keyColumns reads of a key, beside its usage.
func (k *apiKey) columns() []any {
	return []any{
		&k.ID,
		&k.Name,
		&k.Plan,
		&k.LastFour,
		&k.Test,
		&k.PerMinute,
		&k.PerDay,
		&k.lifetime,
		&k.CreatedAt,
		&k.ExpiresAt,
		&k.RevokedAt,
		&k.unbannedAt,
		&k.DeprecatedUseAt,
		&k.usageID,
		&k.Succeeds,
		&k.SucceededBy,
	}
}

// setUsage sets what depends on the usage of the key, as it is at now.
func (k *apiKey) setUsage(u *usage, now instant) {
	if u.minute.running(now, minuteMillis) {
		k.UsedThisMinute = u.minute.used
	}
	if u.day.running(now, dayMillis) {
		k.UsedToday = u.day.used
	}
	k.dayEnds = u.day.ends
	if u.minute.ends > 0 {
		k.LastUsedAt = u.minute.ends - minuteMillis
	}
	if u.isBanned(&k.account, now) {
		k.BannedUntil = u.bannedUntil
	}
	switch {
	case k.RevokedAt > 0:
		k.State = "revoked"
	case !k.usable(now):
		k.State = "expired"
	case k.BannedUntil > 0:
		k.State = "banned"
	default:
		k.State = "active"
	}
}

// eachRow calls row for the rows of a query whose id is above after. The query ends with "id > ?
// ORDER BY id LIMIT ?", or the like; eachRow binds these two. A file returns its rows as they are
// at one moment. A cluster returns them a thousand at a time, because a response is kept in memory:
// with the longest names it takes 1.5 MB.
func (s *store) eachRow(ctx context.Context, after int64, query statement,
	row func(scan scanner) (id int64, err error)) error {
	limit := int64(-1) // SQLite takes a negative limit for none
	if s.engine.shared() {
		limit = 1000
	}
	for {
		var count int64
		next := sqlOf(query.query, slices.Concat(query.args, []any{after, limit})...)
		err := s.read(ctx, next, func(scan scanner) (err error) {
			count++
			after, err = row(scan)
			return err
		})
		// Fewer rows than the limit are the last ones. Without a limit, all have come at once.
		if err != nil || count != limit {
			return err
		}
	}
}

// insertKeyIf stores a key if the SQL condition that is appended to it holds. A successor starts
// with the last unban of its line of rotations. insertion binds the numbers: ?4 is the name as
// JSON, ?8 the creation, ?9 the lifetime, ?10 the predecessor or 0, ?11 the usage or 0.
const insertKeyIf = `INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day,
	created_at, lifetime, expires_at, succeeds, usage_id, unbanned_at)
SELECT unhex(?1), ?2, ?3, ?4 ->> '$', ?5, ?6, ?7, ?8, ?9, iif(?9 = 0, 0, ?8 + ?9),
	nullif(?10, 0), nullif(?11, 0),
	ifnull((SELECT max(unbanned_at) FROM api_keys WHERE id = ?11 OR usage_id = ?11), 0)
WHERE `

// insertion is the statement that stores a key if the SQL condition holds.
func (k *apiKey) insertion(d digest, condition string, args ...any) statement {
	var test int64
	if k.Test {
		test = 1
	}
	// These are ?1 to ?11. The first ? of the condition is ?12.
	values := []any{
		fmt.Sprintf("%x", d),
		k.LastFour,
		test,
		quote(k.Name),
		k.Plan,
		k.PerMinute,
		k.PerDay,
		int64(k.CreatedAt),
		int64(k.lifetime),
		int64(k.Succeeds),
		k.usageID,
	}
	return sqlOf(insertKeyIf+condition, append(values, args...)...)
}

// noKeys is the condition that there is no key at all, not even one that is expired, revoked or of
// the other environment.
const noKeys = "NOT EXISTS (SELECT 1 FROM api_keys)"

// foreignKeys counts the keys of the other environment if none is of this one. Then nobody can use
// the service, as after a restore of a staging copy into production.
func foreignKeys(ctx context.Context, s *store, staging bool) (keys int64, err error) {
	test := int64(0)
	if staging {
		test = 1
	}
	_, err = s.readInto(ctx, sqlOf(`SELECT count(*) FROM api_keys
		WHERE NOT EXISTS (SELECT 1 FROM api_keys WHERE test = ?)`, test), &keys)
	return keys, err
}

// insertKey stores a new key if the SQL condition holds. It returns its id, or 0.
func insertKey(ctx context.Context, s *store, k *apiKey, d digest, condition string) (
	id int64, err error) {
	return insertedID(s.write(ctx, k.insertion(d, condition)))
}

// insertedID returns the id of the row that the first statement of a write has inserted, or 0 if
// its condition did not hold.
func insertedID(results []result, err error) (int64, error) {
	if err != nil || results[0].affected == 0 {
		return 0, err
	}
	return results[0].lastID, nil
}

// rotateKey stores the successor of a key, and lets the old key expire at the end of the overlap.
// If the old key was changed meanwhile, that is an error.
func rotateKey(ctx context.Context, s *store, old, successor *apiKey, d digest,
	overlapEnds instant) (id int64, err error) {
	const unchanged = `EXISTS (SELECT 1 FROM api_keys
		WHERE id = ? AND revoked_at = 0 AND expires_at = ? AND lifetime = ? AND plan = ?
			AND (plan <> ? OR (per_minute = ? AND per_day = ?)))`
	insert := successor.insertion(d, unchanged, old.ID, int64(old.ExpiresAt), int64(old.lifetime),
		old.Plan, enterprisePlan, old.PerMinute, old.PerDay)
	// changes() is the number of rows that the insertion has stored. If it is 0, there is no
	// successor, and the old key does not end.
	end := sqlOf("UPDATE api_keys SET expires_at = ? WHERE id = ? AND changes() = 1",
		int64(overlapEnds), old.ID)
	id, err = insertedID(s.edit(ctx, insert, end))
	if err == nil && id == 0 {
		return 0, errors.New("the key was changed, revoked or rotated meanwhile")
	}
	return id, err
}

// takeBack deletes a new key, and runs undo in the same transaction. A key that is not there is an
// error.
func takeBack(ctx context.Context, s *store, d digest, undo ...statement) error {
	remove := sqlOf("DELETE FROM api_keys WHERE digest = unhex(?)",
		fmt.Sprintf("%x", d))
	results, err := s.edit(ctx, append([]statement{remove}, undo...)...)
	if err == nil && results[0].affected == 0 {
		return errors.New("it is not there")
	}
	return err
}

// restoreExpiry is the statement that gives the old key the expiry back that it had before the
// overlap, unless another program has changed it since. old is the key as it was then.
func restoreExpiry(old *apiKey, overlapEnds instant) statement {
	return sqlOf("UPDATE api_keys SET expires_at = ? WHERE id = ? AND expires_at = ?",
		int64(old.ExpiresAt), old.ID, int64(overlapEnds))
}

// changeKey is the statement that changes a key, unless the key is revoked. An empty plan or name,
// or a 0 in the quota, leaves the stored one. The quota counts on the enterprise plan only.
func changeKey(id int64, plan, name string, q quota) statement {
	return sqlOf(`UPDATE api_keys SET
		plan = ifnull(nullif(?2, ''), plan),
		name = ifnull(nullif(?3 ->> '$', ''), name),
		per_minute = ifnull(nullif(?4, 0), per_minute),
		per_day = ifnull(nullif(?5, 0), per_day)
		WHERE id = ?1 AND revoked_at = 0`,
		id, plan, quote(name), q.PerMinute, q.PerDay)
}

// changeExpiry is the statement that gives a key another lifetime, which begins now, unless the key
// is revoked. The lifetime 0 is for ever.
func changeExpiry(id int64, now, lifetime instant) statement {
	return sqlOf(`UPDATE api_keys SET lifetime = ?1, expires_at = iif(?1 = 0, 0, ?2 + ?1)
		WHERE id = ?3 AND revoked_at = 0`, int64(lifetime), int64(now), id)
}

// revokeKey is the statement that ends a key. The first revocation keeps its time.
func revokeKey(id int64, now instant) statement {
	return sqlOf("UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at = 0",
		int64(now), id)
}

// unban lifts the ban of all keys that share the usage. A ban that was stored while the clock was
// ahead began later than now. The max makes the unban as late as that ban, which lifts it too.
func unban(usageID int64, now instant) statement {
	return sqlOf(`UPDATE api_keys
		SET unbanned_at = max(?1, ifnull((SELECT banned_at FROM usage WHERE id = ?2), 0))
		WHERE id = ?2 OR usage_id = ?2`, int64(now), usageID)
}
