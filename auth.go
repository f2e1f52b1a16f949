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
	"regexp"
	"slices"
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
func (s secret) GoString() string             { return s.String() }
func (s secret) LogValue() slog.Value         { return slog.StringValue(s.String()) }
func (s secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil } //nolint:unparam // encoding.TextMarshaler

// lastFour are the characters people tell keys apart by.
func (s secret) lastFour() string { return string(s[max(0, len(s)-4):]) }

// keyText matches a key, or the beginning of one, that was put into another text.
var keyText = regexp.MustCompile(`(?i)pet_(live|test)_[0-9A-Za-z]+`)

// redact takes keys out of a text that quotes what somebody has sent or typed.
func redact(text string) string { return keyText.ReplaceAllString(text, "pet_…") }

// redactor does so with all that is written to a log, whose lines are not all
// ours: net/http quotes what it cannot read.
type redactor struct{ io.Writer }

func (w redactor) Write(p []byte) (int, error) {
	_, err := w.Writer.Write(keyText.ReplaceAll(p, []byte("pet_…")))
	return len(p), err
}

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

// apiKey is what is known of a key; the members that are exported are those
// that list and show print with -json.
type apiKey struct {
	ID              int64   `json:"id"`
	Name            string  `json:"name"`
	Plan            string  `json:"plan"`
	LastFour        string  `json:"lastFour"`
	CreatedAt       instant `json:"createdAt"`
	ExpiresAt       instant `json:"expiresAt"`
	RevokedAt       instant `json:"revokedAt"`
	quota                   // as perMinute and perDay
	UsedThisMinute  int64   `json:"usedThisMinute"` // this and the next two are filled in for
	UsedToday       int64   `json:"usedToday"`      // the commands only, as the service last
	BannedUntil     instant `json:"bannedUntil"`    // wrote them
	DeprecatedUseAt instant `json:"deprecatedUseAt"`

	usageID    int64    // whose usage it is charged to: its own, or its predecessor's
	policy     []string // the RateLimit-Policy header of its quota
	test       bool
	lifetime   instant // how long it was made for, in milliseconds; 0 for ever
	unbannedAt instant // bans that began before are lifted
}

// usable reports whether the key opens the service at an instant.
func (k *apiKey) usable(now instant) bool {
	return k.RevokedAt == 0 && (k.ExpiresAt == 0 || now < k.ExpiresAt)
}

// keyring authenticates, and remembers the keys it has met.
type keyring struct {
	store  *store
	prefix string // the only one it takes

	mu         sync.Mutex // guards what follows
	known      recent[digest, *apiKey]
	generation uint64 // of the store, when known was last emptied

	reads cacheCounts
}

// remembered is how many keys are.
func (k *keyring) remembered() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known.len()
}

// maxKnownKeys bounds how many keys are remembered; others are read when they call.
const maxKnownKeys = 1 << 15

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
		return nil, newError(CodeMissingKey, "an API key is required, as Authorization: Bearer API_KEY")
	}
	key, err := k.lookup(secret(token))
	if err != nil {
		return nil, err
	}
	if key == nil || !key.usable(at(now)) {
		return nil, newError(CodeInvalidKey, "the API key is not valid")
	}
	return key, nil
}

// lookup returns the key that a token is, or nil. One that was not met since
// another process last wrote to the database is read, if its checksum is right;
// unknown ones are not remembered, so that guessing fills no memory.
func (k *keyring) lookup(token secret) (*apiKey, error) {
	if !strings.HasPrefix(string(token), k.prefix) {
		return nil, nil
	}
	d := token.digest()
	k.mu.Lock()
	generation := k.store.foreign.Load()
	if k.generation != generation {
		k.known = recent[digest, *apiKey]{max: maxKnownKeys}
		k.generation = generation
	}
	key, ok := k.known.get(d)
	k.mu.Unlock()
	if ok {
		k.reads.hits.Add(1)
		return key, nil
	}
	if !wellFormed(string(token), k.prefix) {
		return nil, nil
	}
	k.reads.misses.Add(1)
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

// keyCommands is the "petstore key" family, in the order that help shows.
var keyCommands = []struct {
	verb, synopsis, does string
	flags                func(c *keyCommand)
	run                  func(c *keyCommand) error
}{
	{"create", "[-plan PLAN] [-name NAME] [-expires 2160h] [-test] [-per-minute N -per-day N]", "make a key and print it, once",
		func(c *keyCommand) {
			c.planFlags("free")
			c.StringVar(&c.name, "name", "", "")
			c.DurationVar(&c.expires, "expires", 0, "")
			c.BoolVar(&c.test, "test", false, "")
		}, (*keyCommand).create},
	{"list", "[-json]", "show all keys", (*keyCommand).jsonFlag, (*keyCommand).list},
	{"show", "[-json] ID", "show one key", (*keyCommand).jsonFlag, (*keyCommand).show},
	{"set", "-plan PLAN [-per-minute N -per-day N] ID", "change the plan or the limits",
		func(c *keyCommand) { c.planFlags("") }, (*keyCommand).set},
	{"rotate", "[-overlap 24h] ID", "make a successor; the old key ends later",
		func(c *keyCommand) { c.DurationVar(&c.overlap, "overlap", 24*time.Hour, "") }, (*keyCommand).rotate},
	{"revoke", "ID", "end a key for good", func(*keyCommand) {}, (*keyCommand).revoke},
	{"unban", "ID", "lift a ban", func(*keyCommand) {}, (*keyCommand).unban},
}

func (c *keyCommand) jsonFlag() { c.BoolVar(&c.json, "json", false, "") }

func (c *keyCommand) planFlags(plan string) {
	c.StringVar(&c.plan, "plan", plan, "")
	c.Int64Var(&c.perMinute, "per-minute", 0, "")
	c.Int64Var(&c.perDay, "per-day", 0, "")
}

// keyCommand is one run of "petstore key VERB": its flags, and where it writes.
type keyCommand struct {
	*flag.FlagSet
	plan, name        string
	perMinute, perDay int64
	quota             quota // what these three ask for
	expires, overlap  time.Duration
	test, json        bool

	store  *store
	now    instant
	stdout io.Writer
	log    *slog.Logger // stderr; every change of a key is logged
}

// runKey parses "key VERB [flags] [ID]", opens the database and runs the verb.
func runKey(args []string, env environment) error {
	var verbs []string
	for _, cmd := range keyCommands {
		verbs = append(verbs, cmd.verb)
	}
	if len(args) == 0 {
		return usageErrorf("petstore key needs a command: %s", strings.Join(verbs, ", "))
	}
	verb, args := args[0], args[1:]
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, verb) {
		return flag.ErrHelp
	}
	for _, cmd := range keyCommands {
		if cmd.verb != verb {
			continue
		}
		c := &keyCommand{FlagSet: newFlags("petstore key " + verb), now: at(time.Now()), stdout: env.stdout}
		c.log = newLogger(env.stderr, "auto", slog.LevelInfo)
		db := c.String("db", defaultDB, "")
		cmd.flags(c)
		if err := parse(c.FlagSet, args, env.getenv); err != nil {
			return err
		}
		if takesID := strings.HasSuffix(cmd.synopsis, "ID"); c.NArg() > 1 || takesID != (c.NArg() == 1) {
			return usageErrorf("usage: petstore key %s [-db FILE] %s", verb, cmd.synopsis)
		}
		err := c.check()
		if err != nil {
			return err
		}
		why := forCommand
		if verb == "create" {
			why = forNewKey
		}
		if c.store, err = openDatabase(*db, why); err != nil {
			return err
		}
		defer c.store.Close()
		return cmd.run(c)
	}
	return usageErrorf("no key command %q%s; there are %s", verb, didYouMean("", verb, verbs), strings.Join(verbs, ", "))
}

// check looks at the flags before the database is opened, or made.
func (c *keyCommand) check() error {
	var ok bool
	if c.quota, ok = plans[c.plan]; !ok && c.Lookup("plan") != nil {
		return usageErrorf("-plan must be free, pro, business or enterprise, not %q", c.plan)
	}
	own := quota{c.perMinute, c.perDay}
	problem := checkName(c.name)
	switch {
	case c.plan != "enterprise" && own != quota{}:
		return usageErrorf("-per-minute and -per-day go with -plan enterprise only")
	case c.plan == "enterprise" && (own.PerMinute < 1 || own.PerDay < 1):
		return usageErrorf("-plan enterprise needs -per-minute and -per-day, each at least 1")
	case c.name != "" && problem != "":
		return usageErrorf("-name %s", problem)
	case c.overlap < 0:
		return usageErrorf("-overlap must not be negative")
	case c.expires != 0 && c.expires < time.Second:
		return usageErrorf("-expires must be at least 1s")
	case c.plan == "enterprise":
		c.quota = own
	}
	return nil
}

func (c *keyCommand) create() error {
	key := &apiKey{Name: c.name, Plan: c.plan, quota: c.quota, test: c.test, CreatedAt: c.now, lifetime: instant(c.expires.Milliseconds())}
	token := newSecret(c.test)
	same, err := c.store.hasKey(c.test)
	other := false
	if err == nil && !same { // else all keys would be read, to find none commonly
		other, err = c.store.hasKey(!c.test)
	}
	if err != nil {
		return err
	}
	id, err := c.store.insertKey(key, token)
	if err != nil {
		return err
	}
	c.log.Info("key created", "id", id, "name", c.name, "plan", c.plan)
	if other {
		c.log.Warn("all other keys of this database are of the other environment; is -test right?", "test", c.test)
	}
	_, err = fmt.Fprintln(c.stdout, string(token))
	return err
}

// key reads the key that the command line names.
func (c *keyCommand) key() (*apiKey, error) {
	unknown := fmt.Errorf("no key has the id %s", c.Arg(0))
	id, err := strconv.ParseInt(c.Arg(0), 10, 64)
	if err != nil || id < 1 {
		return nil, unknown
	}
	keys, err := c.store.keysByID(id, c.now)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, unknown
	}
	return keys[0], nil
}

func (c *keyCommand) set() error {
	key, err := c.key()
	if err != nil {
		return err
	}
	if err := c.store.setPlan(key.ID, c.plan, c.quota); err != nil {
		return err
	}
	c.log.Info("key changed", "id", key.ID, "plan", c.plan, "perMinute", c.quota.PerMinute, "perDay", c.quota.PerDay)
	return nil
}

// rotate makes a successor that is charged to the same usage, so that two keys
// in the overlap do not double the quota. It lives as long as its predecessor
// was made for, counted anew.
func (c *keyCommand) rotate() error {
	old, err := c.key()
	if err != nil {
		return err
	}
	successor := *old
	successor.CreatedAt = c.now
	token := newSecret(old.test)
	id, err := c.store.rotateKey(&successor, token, c.now+instant(c.overlap.Milliseconds()))
	if errors.Is(err, errKeyEnded) {
		return fmt.Errorf("key %d is revoked or expired; make a new one with petstore key create", old.ID)
	}
	if err != nil {
		return err
	}
	c.log.Info("key rotated", "id", old.ID, "successor", id, "overlap", c.overlap)
	_, err = fmt.Fprintln(c.stdout, string(token))
	return err
}

func (c *keyCommand) revoke() error { return c.stamp("key revoked", c.store.revokeKey) }

func (c *keyCommand) unban() error { return c.stamp("key unbanned", c.store.unbanKey) }

// stamp runs a change that notes when it was made.
func (c *keyCommand) stamp(message string, change func(id int64, now instant) error) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	if err := change(key.ID, c.now); err != nil {
		return err
	}
	c.log.Info(message, "id", key.ID)
	return nil
}

// state sums the key up, and tells what about it needs attention.
func (k *apiKey) state(now instant) string {
	const soon = 14 * dayMillis
	parts := []string{"active"}
	switch {
	case k.RevokedAt != 0:
		return "revoked"
	case !k.usable(now):
		return "expired"
	case k.BannedUntil != 0:
		layout := time.TimeOnly
		if k.BannedUntil/dayMillis != now/dayMillis { // ends on another day, in UTC
			layout = time.DateTime
		}
		parts[0] = "banned to " + k.BannedUntil.time().Format(layout) + "Z"
	}
	if k.ExpiresAt != 0 {
		ends := "ends "
		if k.ExpiresAt < now+soon {
			ends = "ends soon, "
		}
		parts = append(parts, ends+k.ExpiresAt.time().Format(time.DateOnly))
	}
	for _, window := range []struct {
		name        string
		used, limit int64
	}{{"minute", k.UsedThisMinute, k.PerMinute}, {"day", k.UsedToday, k.PerDay}} {
		if percent := 100 * float64(window.used) / float64(window.limit); percent >= 80 {
			parts = append(parts, fmt.Sprintf("%s %.0f %%", window.name, min(percent, 100)))
		}
	}
	if k.DeprecatedUseAt != 0 {
		parts = append(parts, "getPet "+k.DeprecatedUseAt.time().Format(time.DateOnly))
	}
	return strings.Join(parts, "; ")
}

func (c *keyCommand) list() error {
	keys, err := c.store.keysByID(0, c.now)
	if err != nil {
		return err
	}
	return c.print(keys, keys)
}

func (c *keyCommand) show() error {
	key, err := c.key()
	if err != nil {
		return err
	}
	return c.print([]*apiKey{key}, key)
}

// print shows the keys in a table, which fits a terminal of 80 columns unless
// names are long or much needs attention, or, with -json, the value asJSON.
func (c *keyCommand) print(keys []*apiKey, asJSON any) error {
	if c.json {
		enc := json.NewEncoder(c.stdout)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(asJSON)
	}
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tKEY\tPLAN\tMINUTE\tDAY\tSTATE\tNAME")
	for _, k := range keys {
		kind := "live"
		if k.test {
			kind = "test"
		}
		fmt.Fprintf(table, "%d\t%s %s\t%s\t%d/%d\t%d/%d\t%s\t%s\n", k.ID, kind, k.LastFour, k.Plan, k.UsedThisMinute, k.PerMinute,
			k.UsedToday, k.PerDay, k.state(c.now), k.Name)
	}
	return table.Flush()
}
