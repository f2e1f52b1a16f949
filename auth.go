package main

// The keys: their form, how a request is matched with one, and the commands
// that make and change them.
//
// A key reads pet_live_ or pet_test_, then 32 random base-62 characters (190
// bits from the operating system), then a checksum: the CRC-32 (IEEE) of all
// that stands before it, as 6 base-62 digits. The prefix lets secret scanners
// find a leaked key; the checksum lets the service refuse a mistyped one
// without asking the database.
//
// The database holds only the SHA-256 of a key. A slow password hash would add
// nothing, since 190 random bits cannot be guessed, and a lookup by digest
// takes the same time whatever prefix of a real key was guessed right.

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

const (
	livePrefix = "pet_live_"
	testPrefix = "pet_test_"

	randomLen   = 32
	checksumLen = 6

	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// secret is a whole key. It redacts itself wherever it is logged or printed
// without being asked for by conversion to string.
type secret string

func (s secret) String() string               { return "pet_…" + s.lastFour() }
func (s secret) LogValue() slog.Value         { return slog.StringValue(s.String()) }
func (s secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// lastFour are the characters people tell keys apart by.
func (s secret) lastFour() string { return string(s[max(0, len(s)-4):]) }

// digest is the SHA-256 of a key: what is stored and looked up.
type digest [sha256.Size]byte

func (s secret) digest() digest { return sha256.Sum256([]byte(s)) }

// newSecret makes a key for production or, with test, for staging.
func newSecret(test bool) secret {
	key := []byte(livePrefix)
	if test {
		key = []byte(testPrefix)
	}
	var random [1]byte
	for len(key) < len(livePrefix)+randomLen {
		_, _ = rand.Read(random[:]) // never fails: crypto/rand ends the process first
		// 248 is the largest multiple of 62 in a byte; taking the remainder of
		// more would make some characters likelier than others.
		if random[0] < 248 {
			key = append(key, base62[random[0]%62])
		}
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
	body := len(token) - checksumLen
	return body == len(prefix)+randomLen && strings.HasPrefix(token, prefix) &&
		strings.Trim(token[len(prefix):], base62) == "" && checksum(token[:body]) == token[body:]
}

// bearer takes the token from the Authorization headers of a request (RFC 6750
// section 2.1). It is "" when no bearer token was sent, be it that another
// scheme was used (RFC 6750 section 3.1 wants that treated as no credentials).
func bearer(headers []string) (token string) {
	if len(headers) == 0 {
		return ""
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	if len(headers) > 1 {
		return "more than one" // not a well-formed key
	}
	return strings.TrimLeft(token, " ")
}

// apiKey is what is known of a key. Instants are Unix milliseconds, 0 for none.
type apiKey struct {
	id              int64
	usageID         int64 // whose usage it is charged to: its own, or its predecessor's
	name, plan      string
	quota           quota
	policy          []string // the RateLimit-Policy header of its quota
	lastFour        string
	test            bool
	createdAt       int64
	expiresAt       int64
	revokedAt       int64
	unbannedAt      int64 // bans that began before are lifted
	deprecatedUseAt int64
}

// usable reports whether the key opens the service at an instant.
func (k *apiKey) usable(now int64) bool {
	return k.revokedAt == 0 && (k.expiresAt == 0 || now < k.expiresAt)
}

// keyring authenticates, and remembers the keys it has met.
type keyring struct {
	store  *store
	prefix string // the only one it takes

	mu         sync.Mutex // guards what follows
	known      recent[digest, *apiKey]
	generation uint64 // of the store, when known was last emptied
}

// maxKnownKeys bounds how many keys are remembered; others are read when they call.
const maxKnownKeys = 1 << 16

func newKeyring(s *store, staging bool) *keyring {
	k := &keyring{store: s, prefix: livePrefix, known: recent[digest, *apiKey]{max: maxKnownKeys}}
	if staging {
		k.prefix = testPrefix
	}
	return k
}

// authenticate finds the key that a request carries. The error is an *Error
// missing_key or invalid_key, or the store's. All unusable keys look alike.
func (k *keyring) authenticate(headers []string, now time.Time) (*apiKey, error) {
	token := bearer(headers)
	if token == "" {
		return nil, newError(CodeMissingKey, "an API key is required: Authorization: Bearer <API_KEY>")
	}
	if wellFormed(token, k.prefix) {
		key, err := k.lookup(secret(token).digest())
		if err != nil {
			return nil, err
		}
		if key != nil && key.usable(now.UnixMilli()) {
			return key, nil
		}
	}
	return nil, newError(CodeInvalidKey, "the API key is not valid")
}

// lookup returns the key of a digest, or nil. A key that was not met since
// another process last wrote to the database is read; unknown ones are not
// remembered, so that guessing fills no memory.
func (k *keyring) lookup(d digest) (*apiKey, error) {
	k.mu.Lock()
	generation := k.store.foreign.Load()
	if k.generation != generation {
		k.known = recent[digest, *apiKey]{max: maxKnownKeys}
		k.generation = generation
	}
	key, ok := k.known.get(d)
	k.mu.Unlock()
	if ok {
		return key, nil
	}
	key, err := k.store.keyByDigest(d)
	if err != nil || key == nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.generation == generation { // else what was read may be outdated by now
		k.known.put(d, key)
	}
	return key, nil
}

// firstKey makes a Free key in a database that has none; otherwise it returns "".
func firstKey(s *store, test bool, now time.Time) (secret, error) {
	token := newSecret(test)
	key := &apiKey{name: "first key", plan: "free", quota: plans["free"], test: test, createdAt: now.UnixMilli()}
	made, err := s.insertFirstKey(key, token)
	if err != nil || !made {
		return "", err
	}
	return token, nil
}

// keyCommands is the "petstore key" family, in the order that help shows.
var keyCommands = []struct {
	verb, flags, does string
	run               func(c *keyCommand) error
}{
	{"create", "-plan PLAN -name NAME [-expires 2160h] [-test] [-per-minute N -per-day N]", "make a key and print it, once", (*keyCommand).create},
	{"list", "[-json]", "show all keys", (*keyCommand).list},
	{"show", "[-json] ID", "show one key", (*keyCommand).show},
	{"set", "-plan PLAN [-per-minute N -per-day N] ID", "change the plan or the limits", (*keyCommand).set},
	{"rotate", "[-overlap 24h] ID", "make a successor; the old key lives on for the overlap", (*keyCommand).rotate},
	{"revoke", "ID", "end a key for good", (*keyCommand).revoke},
	{"unban", "ID", "lift a ban", (*keyCommand).unban},
}

// keyCommand is one run of "petstore key VERB": its flags, and where it writes.
type keyCommand struct {
	*flag.FlagSet
	plan, name        string
	perMinute, perDay int64
	expires, overlap  time.Duration
	test, json        bool

	store  *store
	now    time.Time
	stdout io.Writer
	log    *slog.Logger // stderr; every change of a key is logged
}

// runKey parses "key VERB [flags] [ID]", opens the database and runs the verb.
func runKey(args []string, env environment) error {
	verb := "none"
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	for _, cmd := range keyCommands {
		if cmd.verb != verb {
			continue
		}
		c := &keyCommand{FlagSet: newFlags("petstore key " + verb), now: time.Now(), stdout: env.stdout}
		c.log = newLogger(env.stderr, "auto", slog.LevelInfo)
		db := c.String("db", defaultDB, "")
		c.define(cmd.flags)
		if err := parse(c.FlagSet, args, env.getenv); err != nil {
			return err
		}
		wantArgs := 0
		if strings.HasSuffix(cmd.flags, "ID") {
			wantArgs = 1
		}
		if c.NArg() != wantArgs {
			return usageErrorf("usage: petstore key %s [-db FILE] %s", verb, cmd.flags)
		}
		var err error
		if c.store, err = openDatabase(*db, verb == "create"); err != nil {
			return err
		}
		defer c.store.Close()
		return cmd.run(c)
	}
	return usageErrorf("no key command %q; there are create, list, show, set, rotate, revoke, unban", verb)
}

// define declares the flags that the verb's synopsis names.
func (c *keyCommand) define(synopsis string) {
	has := func(flag string) bool { return strings.Contains(synopsis, flag) }
	if has("-plan") {
		c.StringVar(&c.plan, "plan", "", "")
		c.Int64Var(&c.perMinute, "per-minute", 0, "")
		c.Int64Var(&c.perDay, "per-day", 0, "")
	}
	if has("-name") {
		c.StringVar(&c.name, "name", "", "")
		c.DurationVar(&c.expires, "expires", 0, "")
		c.BoolVar(&c.test, "test", false, "")
	}
	if has("-json") {
		c.BoolVar(&c.json, "json", false, "")
	}
	if has("-overlap") {
		c.DurationVar(&c.overlap, "overlap", 24*time.Hour, "")
	}
}

// quota is what -plan, -per-minute and -per-day ask for.
func (c *keyCommand) quota() (quota, error) {
	q, ok := plans[c.plan]
	own := quota{c.perMinute, c.perDay}
	switch {
	case !ok:
		return q, usageErrorf("-plan must be free, pro, business or enterprise, not %q", c.plan)
	case c.plan != "enterprise" && own != quota{}:
		return q, usageErrorf("-per-minute and -per-day go with -plan enterprise only")
	case c.plan == "enterprise" && (own.perMinute < 1 || own.perDay < 1):
		return q, usageErrorf("-plan enterprise needs -per-minute and -per-day, each at least 1")
	case c.plan == "enterprise":
		return own, nil
	}
	return q, nil
}

func (c *keyCommand) create() error {
	if c.plan == "" {
		c.plan = "free"
	}
	q, err := c.quota()
	if err != nil {
		return err
	}
	if problem := checkName(c.name); c.name != "" && problem != "" {
		return usageErrorf("-name %s", problem)
	}
	if c.expires < 0 {
		return usageErrorf("-expires must not be negative")
	}
	key := &apiKey{name: c.name, plan: c.plan, quota: q, test: c.test, createdAt: c.now.UnixMilli()}
	if c.expires > 0 {
		key.expiresAt = c.now.Add(c.expires).UnixMilli()
	}
	token := newSecret(c.test)
	id, err := c.store.insertKey(key, token)
	if err != nil {
		return err
	}
	c.log.Info("key created", "id", id, "name", c.name, "plan", c.plan)
	_, err = fmt.Fprintln(c.stdout, string(token))
	return err
}

// key reads the key that the command line names.
func (c *keyCommand) key() (keyUsage, error) {
	unknown := fmt.Errorf("no key has the id %s", c.Arg(0))
	id, err := strconv.ParseInt(c.Arg(0), 10, 64)
	if err != nil || id < 1 {
		return keyUsage{}, unknown
	}
	keys, err := c.store.keys(id)
	if err != nil {
		return keyUsage{}, err
	}
	if len(keys) == 0 {
		return keyUsage{}, unknown
	}
	return keys[0], nil
}

func (c *keyCommand) set() error {
	q, err := c.quota()
	if err != nil {
		return err
	}
	key, err := c.key()
	if err != nil {
		return err
	}
	if err := c.store.setPlan(key.id, c.plan, q); err != nil {
		return err
	}
	c.log.Info("key changed", "id", key.id, "plan", c.plan, "perMinute", q.perMinute, "perDay", q.perDay)
	return nil
}

// rotate makes a successor that is charged to the same usage, so that two keys
// in the overlap do not double the quota. It lives as long as its predecessor
// was made for, counted anew.
func (c *keyCommand) rotate() error {
	if c.overlap < 0 {
		return usageErrorf("-overlap must not be negative")
	}
	old, err := c.key()
	if err != nil {
		return err
	}
	successor := old.apiKey
	successor.createdAt = c.now.UnixMilli()
	if old.expiresAt != 0 {
		successor.expiresAt = successor.createdAt + old.expiresAt - old.createdAt
	}
	token := newSecret(old.test)
	id, err := c.store.rotateKey(&successor, token, c.now.Add(c.overlap).UnixMilli())
	if errors.Is(err, errKeyEnded) {
		return fmt.Errorf("key %d is revoked or expired; make a new one with petstore key create", old.id)
	}
	if err != nil {
		return err
	}
	c.log.Info("key rotated", "id", old.id, "successor", id, "overlap", c.overlap)
	_, err = fmt.Fprintln(c.stdout, string(token))
	return err
}

func (c *keyCommand) revoke() error { return c.stamp("key revoked", c.store.revokeKey) }

func (c *keyCommand) unban() error { return c.stamp("key unbanned", c.store.unbanKey) }

// stamp runs a change that notes when it was made.
func (c *keyCommand) stamp(message string, change func(id, now int64) error) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	if err := change(key.id, c.now.UnixMilli()); err != nil {
		return err
	}
	c.log.Info(message, "id", key.id)
	return nil
}

// keyView is a key as list and show print it; what does not apply is null.
type keyView struct {
	ID              int64      `json:"id"`
	Name            string     `json:"name"`
	Plan            string     `json:"plan"`
	LastFour        string     `json:"lastFour"`
	CreatedAt       *time.Time `json:"createdAt"`
	ExpiresAt       *time.Time `json:"expiresAt"`
	RevokedAt       *time.Time `json:"revokedAt"`
	PerMinute       int64      `json:"perMinute"`
	PerDay          int64      `json:"perDay"`
	UsedThisMinute  int64      `json:"usedThisMinute"`
	UsedToday       int64      `json:"usedToday"`
	BannedUntil     *time.Time `json:"bannedUntil"`
	DeprecatedUseAt *time.Time `json:"deprecatedUseAt"`
}

// keyUsage is a key with what it has used.
type keyUsage struct {
	apiKey
	usage usage
}

// view shows the key at an instant.
func (k keyUsage) view(now int64) keyView {
	instant := func(millis int64) *time.Time {
		if millis == 0 {
			return nil
		}
		t := time.UnixMilli(millis).UTC()
		return &t
	}
	v := keyView{
		ID: k.id, Name: k.name, Plan: k.plan, LastFour: k.lastFour,
		CreatedAt: instant(k.createdAt), ExpiresAt: instant(k.expiresAt), RevokedAt: instant(k.revokedAt),
		PerMinute: k.quota.perMinute, PerDay: k.quota.perDay, DeprecatedUseAt: instant(k.deprecatedUseAt),
	}
	if k.usage.minute.open(now, minuteMillis) {
		v.UsedThisMinute = k.usage.minute.used
	}
	if k.usage.day.open(now, dayMillis) {
		v.UsedToday = k.usage.day.used
	}
	if now < k.usage.bannedUntil && k.unbannedAt < k.usage.bannedAt {
		v.BannedUntil = instant(k.usage.bannedUntil)
	}
	return v
}

// state sums a key up in a word or two.
func (k keyUsage) state(now int64) string {
	v := k.view(now)
	switch {
	case k.revokedAt != 0:
		return "revoked"
	case !k.usable(now):
		return "expired"
	case v.BannedUntil != nil:
		return "banned until " + v.BannedUntil.Format(time.TimeOnly) + "Z"
	case k.expiresAt != 0:
		return "until " + v.ExpiresAt.Format(time.DateOnly)
	}
	return "active"
}

func (c *keyCommand) list() error {
	keys, err := c.store.keys(0)
	if err != nil {
		return err
	}
	now := c.now.UnixMilli()
	if c.json {
		views := []keyView{}
		for _, k := range keys {
			views = append(views, k.view(now))
		}
		return c.printJSON(views)
	}
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tKEY\tPLAN\tMINUTE\tDAY\tSTATE\tNAME")
	for _, k := range keys {
		v := k.view(now)
		fmt.Fprintf(table, "%d\t…%s\t%s\t%d/%d\t%d/%d\t%s\t%s\n", v.ID, v.LastFour, v.Plan,
			v.UsedThisMinute, v.PerMinute, v.UsedToday, v.PerDay, k.state(now), v.Name)
	}
	return table.Flush()
}

func (c *keyCommand) show() error {
	k, err := c.key()
	if err != nil {
		return err
	}
	v := k.view(c.now.UnixMilli())
	if c.json {
		return c.printJSON(v)
	}
	instant := func(t *time.Time) string {
		if t == nil {
			return "–"
		}
		return t.Format(time.RFC3339)
	}
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "id\t%d\nname\t%s\nplan\t%s\nkey\t%s…%s\nstate\t%s\n", v.ID, v.Name, v.Plan,
		map[bool]string{false: livePrefix, true: testPrefix}[k.test], v.LastFour, k.state(c.now.UnixMilli()))
	fmt.Fprintf(table, "created\t%s\nexpires\t%s\nrevoked\t%s\nbanned until\t%s\n",
		instant(v.CreatedAt), instant(v.ExpiresAt), instant(v.RevokedAt), instant(v.BannedUntil))
	fmt.Fprintf(table, "this minute\t%d of %d\ntoday\t%d of %d\ndeprecated use\t%s\n",
		v.UsedThisMinute, v.PerMinute, v.UsedToday, v.PerDay, instant(v.DeprecatedUseAt))
	return table.Flush()
}

func (c *keyCommand) printJSON(v any) error {
	enc := json.NewEncoder(c.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
