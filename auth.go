package main

// The keys: their form, how a request is matched with one, and the SQL that makes and changes them.
// This file does not know who asks: handlers.go does for requests, commands.go for the operator.
//
// A key reads pet_live_ or pet_test_, then 32 random base-62 characters (190 bits from the
// operating system), then a checksum: the CRC-32 (IEEE) of all that stands before it, as 6 base-62
// digits. The prefix lets secret scanners find a leaked key; the checksum lets the service refuse a
// mistyped one without asking the database.
//
// The database holds only the SHA-256 of a key. A slow password hash would add nothing, since 190
// random bits cannot be guessed, and a lookup by digest takes the same time whatever prefix of a
// real key was guessed right.

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	randomLen, checksumLen = 32, 6

	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// keyPrefix is that of the keys for production or, with test, for staging.
func keyPrefix(test bool) string {
	if test {
		return "pet_test_"
	}
	return "pet_live_"
}

// secret is a whole key. It shows only its end when it is logged or printed; string(s) is the
// whole.
type secret string

func (s secret) String() string   { return "pet_…" + s.lastFour() }
func (s secret) GoString() string { return s.String() }

// MarshalText implements encoding.TextMarshaler, for JSON and for logs.
func (s secret) MarshalText() ([]byte, error) { //nolint:unparam // the interface
	return []byte(s.String()), nil
}

// lastFour are the characters people tell keys apart by.
func (s secret) lastFour() string { return string(s[max(0, len(s)-4):]) }

// digest is the SHA-256 of a key: what is stored and looked up.
type digest [sha256.Size]byte

func (s secret) digest() digest { return sha256.Sum256([]byte(s)) }

// newSecret makes a key for production or, with test, for staging.
func newSecret(test bool) secret {
	key := []byte(keyPrefix(test))
	for range randomLen {
		n, _ := rand.Int(rand.Reader, big.NewInt(62)) // crypto/rand ends the process if it fails
		key = append(key, base62[n.Int64()])
	}
	return secret(append(key, checksum(string(key))...))
}

// checksum is the CRC-32 of text as base-62 digits, most significant first.
func checksum(text string) string {
	var digits [checksumLen]byte
	sum := crc32.ChecksumIEEE([]byte(text))
	for i := checksumLen - 1; i >= 0; i-- {
		digits[i] = base62[sum%62]
		sum /= 62
	}
	return string(digits[:])
}

// wellFormed reports whether token has the form of a key with the prefix.
func wellFormed(token, prefix string) bool {
	checked := len(prefix) + randomLen // what the checksum is made of
	if len(token) != checked+checksumLen || !strings.HasPrefix(token, prefix) {
		return false
	}
	return checksum(token[:checked]) == token[checked:]
}

// bearer takes the token from an Authorization header (RFC 6750 section 2.1). It is "" when no
// bearer token was sent, also if another scheme was used: RFC 6750 section 3.1 wants that treated
// as no credentials.
func bearer(header string) (token string) {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimLeft(token, " ")
}

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

	// These, and the State below, are as they were at the instant for which the key was read. In a
	// key of the keyring, which reads for the instant 0, the numbers of used requests, BannedUntil
	// and State mean nothing.
	UsedThisMinute  int64   `json:"usedThisMinute"`
	UsedToday       int64   `json:"usedToday"`
	BannedUntil     instant `json:"bannedUntil"` // 0 unless it is banned
	DeprecatedUseAt instant `json:"deprecatedUseAt"`
	LastUsedAt      instant `json:"lastUsedAt"` // the begin of its last minute's window

	Test        bool   `json:"test"`
	State       string `json:"state"`       // active, banned, expired or revoked
	Succeeds    keyID  `json:"succeeds"`    // the key that it was rotated from
	SucceededBy keyID  `json:"succeededBy"` // the key that it was last rotated into

	lifetime  instant // a length in milliseconds: how long the key is made for; 0 for ever
	editsSeen uint64  // what store.editsSeen was before the key was read; see keyring.fresh
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

// keyring authenticates, and remembers the keys it has met.
type keyring struct {
	store         *store
	prefix, other string // of the keys that it takes, and of the other environment's

	known cache[digest, *apiKey] // a key that is not here is read when it is used

	// Somebody who guesses keys may not keep the database busy. An address is spent when its
	// requests without a valid key have used up addressQuota. A lookup is suspect if its key is not
	// in memory and its request came from a spent address. Suspect lookups run one at a time.
	suspects atomic.Int64  // how many suspect lookups run or wait now
	turn     chan struct{} // holds one element while a suspect lookup runs

	// The Unix milliseconds at which keys, by their ids, used the deprecated operation last. They
	// are here until they are written.
	deprecatedUses sync.Map
}

// maxSuspects is how many suspect lookups may run or wait. While a cluster has no leader, each may
// take some seconds. The last one has to end within 30 seconds, in which a response must be sent.
const maxSuspects = 4

// errNoLookup means that the store is not available, or that maxSuspects suspect lookups run or
// wait already.
var errNoLookup = newError(CodeUnavailable, "the API key cannot be looked up now; try again")

// errInvalidKey is the same for all keys that cannot be used, so that nobody learns why.
var errInvalidKey = newError(CodeInvalidKey, "the API key is not valid")

func newKeyring(s *store, staging bool) *keyring {
	return &keyring{
		store:  s,
		prefix: keyPrefix(staging),
		other:  keyPrefix(!staging),
		known:  cache[digest, *apiKey]{max: 1 << 15},
		turn:   make(chan struct{}, 1),
	}
}

// authenticate finds the key that a request carries in its Authorization headers, of which there
// may be one. The error is an *Error missing_key or invalid_key, errNoLookup, or the store's.
// All unusable keys get the same message, except a key of the other environment, which its prefix
// shows anyway. spent reports whether the caller's address is spent, and is asked only if a key is
// not known.
func (k *keyring) authenticate(headers []string, now time.Time, spent func() bool) (
	*apiKey, error) {
	if len(headers) > 1 {
		return nil, errInvalidKey // also if only one has a key: to choose it would be to guess
	}
	token := bearer(strings.Join(headers, "")) // of the only header, or of none
	if token == "" {
		return nil, newError(CodeMissingKey,
			"an API key is required, as Authorization: Bearer API_KEY")
	}
	if strings.HasPrefix(token, k.other) {
		return nil, newError(CodeInvalidKey,
			"this service takes only API keys that begin with %s", k.prefix)
	}
	key, err := k.lookup(secret(token), spent)
	if err != nil {
		return nil, err
	}
	if key == nil || !key.usable(instantOf(now)) {
		return nil, errInvalidKey
	}
	return key, nil
}

// lookup returns the key that a token is, or nil. A key that is not in memory, or was read before
// another program has written, is read from the database if its checksum is right.
func (k *keyring) lookup(token secret, spent func() bool) (*apiKey, error) {
	d := token.digest()
	key := k.known.get(d)
	if k.fresh(key) {
		return key, nil
	}
	if !wellFormed(string(token), k.prefix) {
		return nil, nil
	}
	if key == nil && spent() { // a key that is known is no guess
		return k.readInTurn(d)
	}
	return k.read(d)
}

// readInTurn reads a key when no other suspect lookup reads one.
func (k *keyring) readInTurn(d digest) (*apiKey, error) {
	waiting := k.suspects.Add(1)
	defer k.suspects.Add(-1)
	if waiting > maxSuspects {
		return nil, errNoLookup
	}
	k.turn <- struct{}{}
	defer func() { <-k.turn }()
	if key := k.known.get(d); k.fresh(key) { // another request with this key was faster
		return key, nil
	}
	return k.read(d)
}

// fresh reports whether a key from memory is there, and as good as in the database.
func (k *keyring) fresh(key *apiKey) bool {
	return key != nil && key.editsSeen == k.store.editsSeen.Load()
}

// read reads a key from the database, or returns nil. Unknown keys are not remembered, so that
// guessing fills no memory.
func (k *keyring) read(d digest) (*apiKey, error) {
	editsSeen := k.store.editsSeen.Load() // before the query
	// The instant is 0, because no request needs what depends on it (see apiKey).
	keys, err := readKeys(context.Background(), k.store, 0,
		"WHERE k.digest = unhex(?)", fmt.Sprintf("%x", d))
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	keys[0].editsSeen = editsSeen
	k.known.put(d, keys[0], 1)
	return keys[0], nil
}

// noteDeprecatedUse remembers that the key used the deprecated operation.
func (k *keyring) noteDeprecatedUse(key *apiKey, now time.Time) {
	k.deprecatedUses.Store(key.ID, now.UnixMilli())
}

// flush writes when keys last used the deprecated operation. What cannot be written, or changes
// meanwhile, is left for the next flush. It must not run twice at once.
func (k *keyring) flush(ctx context.Context) error {
	saved := map[int64]int64{}
	for id, used := range k.deprecatedUses.Range {
		saved[id.(int64)] = used.(int64)
	}
	if len(saved) == 0 {
		return nil
	}
	uses, _ := json.Marshal(saved) // numbers by numbers
	_, err := k.store.write(ctx, sqlOf(`UPDATE api_keys
		SET deprecated_use_at = max(deprecated_use_at, used.value)
		FROM json_each(?) AS used WHERE api_keys.id = CAST(used.key AS INTEGER)`, string(uses)))
	if err != nil {
		return err
	}
	for id, used := range saved {
		k.deprecatedUses.CompareAndDelete(id, used)
	}
	return nil
}

// keysQuery reads keys, each with its usage. The subquery finds the key that it was last rotated
// into. eachKey adds which keys, and their order.
const keysQuery = `
SELECT k.id, k.name, k.plan, k.last_four, k.test, k.per_minute, k.per_day, k.lifetime,
	k.created_at, k.expires_at, k.revoked_at, k.unbanned_at, k.deprecated_use_at,
	coalesce(k.usage_id, k.id),
	ifnull(k.succeeds, 0), (SELECT ifnull(max(id), 0) FROM api_keys
		WHERE usage_id = coalesce(k.usage_id, k.id) AND succeeds = k.id),
	ifnull(minute_used, 0), ifnull(minute_ends, 0), ifnull(day_used, 0), ifnull(day_ends, 0),
	ifnull(banned_at, 0), ifnull(banned_until, 0)
FROM api_keys k LEFT JOIN usage u ON u.id = coalesce(k.usage_id, k.id)
`

// eachKey calls do with each key that a clause selects, by id, with its usage as it is at now. The
// clause begins with WHERE. eachKey adds another condition with AND, so that an OR in the clause
// needs brackets.
//
// A new column of a key needs a migration: a file in schema and its line in store.go. The column
// also stands in keysQuery, apiKey, columns, insertKeyIf and insertion, and in changeKey if a
// command may change it.
func eachKey(ctx context.Context, s *store, now instant, do func(*apiKey) error,
	where string, args ...any) error {
	query := sqlOf(keysQuery+where+" AND k.id > ? ORDER BY k.id LIMIT ?", args...)
	return s.eachRow(ctx, query, func(scan scanner) (int64, error) {
		k, u := &apiKey{}, &usage{}
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

// columns are pointers to what keysQuery reads of a key, beside its usage.
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
	if u.minute.ends > 0 {
		k.LastUsedAt = u.minute.ends - minuteMillis
	}
	if now < u.bannedUntil && k.unbannedAt < u.bannedAt {
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

// keyUse tells how much the keys of one line of rotations were used, under the name of the newest.
type keyUse struct {
	ID   int64    `json:"id"`
	Name string   `json:"name"`
	Plan string   `json:"plan"`
	Days []dayUse `json:"days"` // those with requests, ascending
}

// dayUse is a day of a keyUse.
type dayUse struct {
	Day string `json:"day"` // such as 2026-11-20, in UTC
	tally
}

// total is the sum of all days.
func (u *keyUse) total() (sum tally) {
	for _, day := range u.Days {
		sum.Admitted += day.Admitted
		sum.Refused += day.Refused
		sum.Errors += day.Errors
	}
	return sum
}

// eachUse calls do with how much each line of rotations was used, beginning with the day "since",
// which is counted from 1970. The line with the most admitted requests comes first. A usageID
// selects one line, and 0 selects all. At most limit lines are taken, and all if limit is -1.
//
// The order is read first, as ids alone. Then 50 lines at a time are read, which take 2 MB if their
// names are the longest and each has 400 days: a cluster's response is kept in memory.
func eachUse(ctx context.Context, s *store, since, usageID, limit int64,
	do func(*keyUse) error) error {
	order := sqlOf(`SELECT json_group_array(line) FROM (
		SELECT coalesce(usage_id, id) AS line FROM api_keys WHERE ?2 IN (0, id, usage_id)
		GROUP BY line ORDER BY
			(SELECT sum(admitted) FROM usage_days WHERE usage_id = line AND day >= ?1) DESC, max(id)
		LIMIT ?3)`, since, usageID, limit)
	var text string
	if _, err := s.readInto(ctx, order, &text); err != nil {
		return err
	}
	var lines []int64
	if err := json.Unmarshal([]byte(text), &lines); err != nil {
		return err
	}
	for part := range slices.Chunk(lines, 50) {
		if err := eachUseOf(ctx, s, part, since, do); err != nil {
			return err
		}
	}
	return nil
}

// eachUseOf is eachUse for some lines, in their order. In a query with max(id), SQLite takes the
// name and the plan from the row with that id.
func eachUseOf(ctx context.Context, s *store, lines []int64, since int64,
	do func(*keyUse) error) error {
	ids, _ := json.Marshal(lines) // of numbers
	query := sqlOf(`SELECT max(k.id), name, plan,
			(SELECT json_group_array(json_object('day', date(day * 86400, 'unixepoch'),
					'admitted', admitted, 'refused', refused, 'errors', errors) ORDER BY day)
				FROM usage_days WHERE usage_id = line.value AND day >= ?2)
		FROM json_each(?1) AS line
			JOIN api_keys AS k ON k.id = line.value OR k.usage_id = line.value
		GROUP BY line.key ORDER BY line.key`, string(ids), since)
	return s.read(ctx, query, func(scan scanner) error {
		use := &keyUse{}
		var days string
		if err := scan(&use.ID, &use.Name, &use.Plan, &days); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(days), &use.Days); err != nil {
			return err
		}
		return do(use)
	})
}

// report is what the operator's page shows of the keys.
type report struct {
	At         int64     `json:"at"`         // Unix milliseconds
	NearLimits []*apiKey `json:"nearLimits"` // usable keys that are banned or near a limit
	Usage      []*keyUse `json:"usage"`      // the busiest of the last 30 days
}

// readReport reads the report. It names the 20 keys near a limit that need attention most, and the
// 15 lines of rotations that were used most. All keys of a line share its usage, so that several of
// them may be among the 20.
func readReport(ctx context.Context, s *store, now instant) (*report, error) {
	r := &report{At: int64(now), NearLimits: []*apiKey{}, Usage: []*keyUse{}}
	keepNear := func(k *apiKey) error {
		if k.need() >= nearLimit {
			r.NearLimits = append(r.NearLimits, k)
		}
		return nil
	}
	err := eachKey(ctx, s, now, keepNear,
		"WHERE (minute_ends > ?1 OR day_ends > ?1 OR banned_until > ?1)", int64(now))
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(r.NearLimits, func(a, b *apiKey) int {
		return cmp.Compare(b.need(), a.need())
	})
	r.NearLimits = r.NearLimits[:min(len(r.NearLimits), 20)]

	since := int64(now/dayMillis) - 29
	err = eachUse(ctx, s, since, 0, 15, func(use *keyUse) error {
		r.Usage = append(r.Usage, use)
		return nil
	})
	return r, err
}

// nearLimit is the part of a limit from which on operators are told that a key has used it.
const nearLimit = 0.8

// need is how much a key needs the operator's attention: the part of a limit that it has used, or
// more than any part if it is banned.
func (k *apiKey) need() float64 {
	switch k.State {
	case "banned":
		return math.Inf(1)
	case "active":
		minute := float64(k.UsedThisMinute) / float64(k.PerMinute)
		day := float64(k.UsedToday) / float64(k.PerDay)
		return max(minute, day)
	}
	return 0
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
func (k *apiKey) insertion(token secret, condition string, args ...any) statement {
	var test int64
	if k.Test {
		test = 1
	}
	// These are ?1 to ?11. The first ? of the condition is ?12.
	values := []any{
		fmt.Sprintf("%x", token.digest()),
		token.lastFour(),
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

// noKeys is the condition that there is no key, be it of another environment, expired or revoked.
const noKeys = "NOT EXISTS (SELECT 1 FROM api_keys)"

// insertKey stores a new key if the SQL condition holds. It returns its id, or 0.
func insertKey(ctx context.Context, s *store, k *apiKey, token secret, condition string) (
	id int64, err error) {
	return insertedID(s.write(ctx, k.insertion(token, condition)))
}

// rotateKey stores the successor k, and lets the old key expire at the end of the overlap. k is a
// copy of the old key with the fields of the successor. Only its ID and its expiry are still those
// of the old key. If the old key was changed meanwhile, that is an error.
func rotateKey(ctx context.Context, s *store, k *apiKey, token secret, overlapEnds instant) (
	id int64, err error) {
	const unchanged = `EXISTS (SELECT 1 FROM api_keys
		WHERE id = ? AND revoked_at = 0 AND expires_at = ?)`
	insert := k.insertion(token, unchanged, k.ID, int64(k.ExpiresAt))
	// changes() is the number of rows that the insertion has stored. If it is 0, there is no
	// successor, and the old key does not end.
	end := sqlOf("UPDATE api_keys SET expires_at = ? WHERE id = ? AND changes() = 1",
		int64(overlapEnds), k.ID)
	id, err = insertedID(s.edit(ctx, insert, end))
	if err == nil && id == 0 {
		return 0, errors.New("the key was revoked, rotated or given another expiry meanwhile")
	}
	return id, err
}

// takeBack deletes a new key, and runs undo in the same transaction. A key that is not there is an
// error.
func takeBack(ctx context.Context, s *store, token secret, undo ...statement) error {
	remove := sqlOf("DELETE FROM api_keys WHERE digest = unhex(?)",
		fmt.Sprintf("%x", token.digest()))
	results, err := s.edit(ctx, append([]statement{remove}, undo...)...)
	if err == nil && results[0].affected == 0 {
		return errors.New("it is not there")
	}
	return err
}

// restoreExpiry is the statement that takes the end of an overlap back, unless another program has
// changed it since. old is the key as it was before the rotation.
func restoreExpiry(old *apiKey, overlapEnds instant) statement {
	return sqlOf("UPDATE api_keys SET expires_at = ? WHERE id = ? AND expires_at = ?",
		int64(old.ExpiresAt), old.ID, int64(overlapEnds))
}

// changeKey is the statement that changes a key, unless the key is revoked. An empty plan or name,
// or a 0 in the quota, leaves the stored one. The quota counts on the enterprise plan only. A
// lifetime begins at now. The lifetime 0 is for ever. A negative one leaves the stored lifetime and
// expiry.
func changeKey(id int64, now instant, plan, name string, q quota, lifetime instant) statement {
	return sqlOf(`UPDATE api_keys SET
		plan = ifnull(nullif(?2, ''), plan),
		name = ifnull(nullif(?3 ->> '$', ''), name),
		per_minute = ifnull(nullif(?4, 0), per_minute),
		per_day = ifnull(nullif(?5, 0), per_day),
		lifetime = iif(?6 < 0, lifetime, ?6),
		expires_at = CASE WHEN ?6 < 0 THEN expires_at WHEN ?6 > 0 THEN ?7 + ?6 ELSE 0 END
		WHERE id = ?1 AND revoked_at = 0`,
		id, plan, quote(name), q.PerMinute, q.PerDay, int64(lifetime), int64(now))
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
