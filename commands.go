package main

// The command line: one table of all verbs, the declaration of every flag, its twin in the environment, help
// and usage errors; and what each verb does, except for serving, which is main.go's.

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// usageError is a mistake on the command line or in the environment.
type usageError struct{ error }

func usageErrorf(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// process is what a command may use of the process it runs in.
type process struct {
	environ        []string // NAME=value
	stdout, stderr io.Writer
}

// command is one verb. Its synopsis lists its flags except -db, which all have, and then its argument, if it
// takes one. A flag of invocation.declare that stands in a synopsis is declared for that verb.
type command struct {
	name, synopsis, does string
	purpose              purpose // of opening the database
	run                  func(ctx context.Context, c *invocation) error
}

// commands are all verbs, in the order that help shows.
var commands = []command{
	{"key create", "[-plan PLAN] [-name NAME] [-expires 90d] [-test] [-per-minute N -per-day N]",
		"make a key and print it, once", forNewKey, keyCreate},
	{"key list", "[-json]", "show all keys", forCommand, keyList},
	{"key show", "[-json] ID", "show one key", forCommand, keyShow},
	{"key set", "[-plan PLAN [-per-minute N -per-day N]] [-name NAME] [-expires 90d] ID",
		"change the plan, the limits, the name or the expiry", forCommand, keySet},
	{"key rotate", "[-overlap 24h] ID", "make a successor; the old key ends later", forCommand, keyRotate},
	{"key revoke", "ID", "end a key for good", forCommand, keyRevoke},
	{"key unban", "ID", "lift a ban", forCommand, keyUnban},
	{"backup", "[-skip-ids N] FILE", "copy the database while it is in use", forCommand, backup},
	{"restore", "[-skip-ids N] [-replace] COPY", "put a copy in the database's place", forNothing, restore},
}

// invocation is one run of a command.
type invocation struct {
	*process
	*flag.FlagSet
	plan, name       string
	quota            quota // of -per-minute and -per-day; then what the plan admits
	expires, overlap time.Duration
	test, json       bool
	replace          bool
	skipIDs          int64

	db    string
	made  bool // the database was made by this command
	store *store
	key   *apiKey // that ID names
	now   instant
	log   *slog.Logger // on stderr; every change of a key is logged
}

// runCommand finds the verb that args begin with.
func runCommand(ctx context.Context, args []string, p *process) error {
	var names []string
	for _, cmd := range commands {
		words := strings.Fields(cmd.name)
		if slices.Equal(words, args[:min(len(words), len(args))]) {
			return cmd.invoke(ctx, args[len(words):], p)
		}
		names = append(names, cmd.name)
	}
	switch {
	case args[0] == "version":
		_, err := fmt.Fprintln(p.stdout, version())
		return err
	case args[0] == "help" || len(args) > 1 && slices.Contains([]string{"help", "-h", "-help", "--help"}, args[1]):
		return flag.ErrHelp
	case args[0] == "serve":
		return usageErrorf("petstore serves without a verb: petstore [flags]; see petstore help")
	}
	return usageErrorf("no command %q; there are %s, version and help; petstore without a command serves",
		strings.Join(args[:min(2, len(args))], " "), strings.Join(names, ", "))
}

// invoke parses the flags of a verb, opens the database and runs the verb.
func (cmd *command) invoke(ctx context.Context, args []string, p *process) (err error) {
	c := &invocation{process: p, FlagSet: newFlags("petstore " + cmd.name), now: instantOf(time.Now())}
	c.log = newLogger(p.stderr, "auto", slog.LevelInfo)
	declareDB(c.FlagSet, &c.db)
	c.declare(cmd.synopsis)
	if err := parse(c.FlagSet, args, p.environ); err != nil {
		return err
	}
	argument := cmd.synopsis[strings.LastIndexByte(cmd.synopsis, ' ')+1:]
	takesOne := argument != "" && !strings.HasSuffix(argument, "]")
	if c.NArg() > 1 || takesOne != (c.NArg() == 1) {
		return usageErrorf("usage: petstore %s [-db DATABASE] %s", cmd.name, cmd.synopsis)
	}
	if err := c.check(); err != nil { // before the database is opened, or made
		return err
	}
	warnOfUnknownVariables(p.environ, c.log)
	if cmd.purpose != forNothing {
		_, missing := os.Stat(c.db)
		c.made = missing != nil && !isCluster(c.db)
		if c.store, err = openStore(ctx, c.db, cmd.purpose, c.log); err == nil {
			defer c.store.Close()
		}
	}
	if err == nil && argument == "ID" {
		err = c.findKey(ctx)
	}
	if err == nil {
		err = cmd.run(ctx, c)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("stopped by a signal: %w", err)
	}
	return err
}

// declare declares those of all command flags that the synopsis mentions.
func (c *invocation) declare(synopsis string) {
	all := newFlags("")
	all.StringVar(&c.plan, "plan", "", "")
	all.Int64Var(&c.quota.PerMinute, "per-minute", 0, "")
	all.Int64Var(&c.quota.PerDay, "per-day", 0, "")
	all.StringVar(&c.name, "name", "", "")
	durationFlag(all, &c.expires, "expires", 0, "")
	durationFlag(all, &c.overlap, "overlap", 24*time.Hour, "")
	all.Int64Var(&c.skipIDs, "skip-ids", 1_000_000, "")
	all.BoolVar(&c.test, "test", false, "")
	all.BoolVar(&c.json, "json", false, "")
	all.BoolVar(&c.replace, "replace", false, "")
	all.VisitAll(func(f *flag.Flag) {
		if strings.Contains(synopsis, "-"+f.Name) && c.Lookup(f.Name) == nil {
			c.Var(f.Value, f.Name, f.Usage)
		}
	})
}

// durationFlag declares a flag that takes a duration of Go, such as 36h, or whole days,
// such as 90d: a second at least, or 0.
func durationFlag(fs *flag.FlagSet, into *time.Duration, name string, value time.Duration, usage string) {
	*into = value
	fs.Func(name, usage, func(s string) (err error) {
		if days, ok := strings.CutSuffix(s, "d"); ok {
			var n uint64
			n, err = strconv.ParseUint(days, 10, 16)
			*into = time.Duration(n) * 24 * time.Hour //nolint:gosec // 16 bits
		} else {
			*into, err = time.ParseDuration(s)
		}
		if err != nil || *into != 0 && *into < time.Second {
			return errors.New("it must be like 90d, 36h or 10m, at least 1s, or 0")
		}
		return nil
	})
}

// given reports whether a flag was given, or its variable.
func (c *invocation) given(name string) (given bool) {
	c.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// check checks the flags, and derives the quota from them.
func (c *invocation) check() error {
	if c.Name() == "petstore key create" && !c.given("plan") {
		c.plan = "free"
	}
	if value := variables(c.environ)["PETSTORE_STAGING"]; value != "" && c.Lookup("test") != nil && !c.given("test") {
		if c.Set("test", value) != nil {
			return usageErrorf("invalid value %q for PETSTORE_STAGING: it must be true or false", value)
		}
	}
	q, ok := plans[c.plan]
	problem := checkName(c.name)
	least, most := min(c.quota.PerMinute, c.quota.PerDay), max(c.quota.PerMinute, c.quota.PerDay)
	switch {
	case !ok && (c.given("plan") || c.plan != ""):
		return usageErrorf("-plan must be one of %s, not %q", strings.Join(slices.Sorted(maps.Keys(plans)), ", "), c.plan)
	case c.plan != "enterprise" && c.quota != quota{}:
		return usageErrorf("-per-minute and -per-day go with -plan enterprise only")
	case c.plan == "enterprise" && (least < 1 || most > maxQuota):
		return usageErrorf("-plan enterprise needs -per-minute and -per-day, each from 1 to %d", int64(maxQuota))
	case c.name != "" && problem != "":
		return usageErrorf("-name %s", problem)
	case c.skipIDs < 0 || c.skipIDs > maxQuota:
		return usageErrorf("-skip-ids must be from 0 to %d", int64(maxQuota))
	case c.replace && !isCluster(c.db):
		return usageErrorf("-replace goes with a cluster; the old file of a database is always kept")
	case c.plan != "enterprise":
		c.quota = q
	}
	return nil
}

// openStore opens the database that -db names.
func openStore(ctx context.Context, db string, p purpose, log *slog.Logger) (*store, error) {
	var e engine
	var err error
	if nodes, _ := parseCluster(db); nodes != nil {
		e, err = openRqlite(ctx, nodes, p, log)
	} else {
		e, err = openSQLite(ctx, db, p)
	}
	if err != nil {
		return nil, err
	}
	return newStore(e), nil
}

// declareDB declares the flag that names the database.
func declareDB(fs *flag.FlagSet, into *string) {
	*into = "petstore.db"
	textFlag(fs, into, "db", func(db string) error {
		if db == "" {
			return errors.New("it must name a file")
		}
		_, err := parseCluster(db)
		return err
	}, "the `DATABASE`: a file, made if there is none, or the addresses of an rqlite\n"+
		"cluster, like http://10.0.0.1:4001,http://10.0.0.2:4001 (petstore.db)")
}

// databaseName is what -db names, without a password.
func databaseName(db string) string {
	if nodes, _ := parseCluster(db); nodes != nil {
		return nodeNames(nodes)
	}
	path, _ := filepath.Abs(db)
	return cmp.Or(path, db)
}

// findKey reads the key that the command line names.
func (c *invocation) findKey(ctx context.Context) error {
	id, _ := strconv.ParseInt(c.Arg(0), 10, 64) // no key has the id 0
	keys, err := readKeys(ctx, c.store, c.now, "WHERE k.id = ?", id)
	if err == nil && len(keys) == 0 {
		err = fmt.Errorf("no key has the id %s", c.Arg(0))
	}
	if err == nil {
		c.key = keys[0]
	}
	return err
}

// errNotStored is added to an error when a key was printed but could not be stored.
var errNotStored = errors.New("the key that was printed is not stored and opens nothing")

// issue prints a new key in the place of $KEY, and then lets store keep it: one that
// nobody has seen must not stay behind.
func issue(stdout io.Writer, what, text string, test bool, store func(secret) (id int64, err error)) (int64, error) {
	token := newSecret(test)
	if _, err := io.WriteString(stdout, strings.ReplaceAll(text, "$KEY", string(token))); err != nil {
		return 0, fmt.Errorf("no %s was made, since it cannot be shown: %w", what, err)
	}
	id, err := store(token)
	if errors.Is(err, errOutcome) {
		return 0, fmt.Errorf("the key that was printed may be stored or not; petstore key list tells: %w", err)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotStored, err)
	}
	return id, nil
}

func keyCreate(ctx context.Context, c *invocation) error {
	key := &apiKey{Name: c.name, Plan: c.plan, account: account{quota: c.quota}, test: c.test, CreatedAt: c.now,
		lifetime: instant(c.expires.Milliseconds())}
	same, other, err := hasKeys(ctx, c.store, c.test)
	if err != nil {
		return err
	}
	id, err := issue(c.stdout, "key", "$KEY\n", c.test, func(token secret) (int64, error) {
		return insertKey(ctx, c.store, key, token, false)
	})
	if err != nil {
		return err
	}
	if other && !same {
		c.log.Warn("all other keys of this database are of the other environment; is -test right?", "test", c.test)
	}
	return c.report(nil, "key created", "id", id, "name", c.name, "plan", c.plan,
		"database", databaseName(c.db), "newDatabase", c.made)
}

func keySet(ctx context.Context, c *invocation) error {
	var changes []statement
	said := []any{"id", c.key.ID}
	if c.given("plan") {
		changes = append(changes, setPlan(c.key.ID, c.plan, c.quota))
		said = append(said, "plan", c.plan, "perMinute", c.quota.PerMinute, "perDay", c.quota.PerDay)
	}
	if c.given("name") {
		changes = append(changes, setName(c.key.ID, c.name))
		said = append(said, "name", c.name)
	}
	if c.given("expires") {
		changes = append(changes, setLifetime(c.key.ID, c.now, instant(c.expires.Milliseconds())))
		said = append(said, "expires", c.expires)
	}
	if changes == nil {
		return usageErrorf("petstore key set needs -plan, -name or -expires")
	}
	_, err := c.store.edit(ctx, changes...)
	return c.report(err, "key changed", said...)
}

func keyRevoke(ctx context.Context, c *invocation) error {
	if c.key.RevokedAt != 0 {
		return c.report(nil, "key was revoked already", "id", c.key.ID, "at", c.key.RevokedAt.time())
	}
	return c.report(revokeKey(ctx, c.store, c.key.ID, c.now), "key revoked", "id", c.key.ID)
}

func keyUnban(ctx context.Context, c *invocation) error {
	if c.key.BannedUntil == 0 {
		return c.report(nil, "key is not banned", "id", c.key.ID)
	}
	return c.report(unbanKey(ctx, c.store, c.key.usageID, c.now), "key unbanned", "id", c.key.ID)
}

// report logs what a command did, unless it failed.
func (c *invocation) report(err error, message string, attributes ...any) error {
	if err == nil {
		c.log.Info(message, attributes...)
	}
	return err
}

// keyRotate makes a successor that is charged to the same usage, so that two keys
// in the overlap do not double the quota. It gets the same lifetime, starting now.
func keyRotate(ctx context.Context, c *invocation) error {
	successor := *c.key
	successor.CreatedAt, successor.succeeds = c.now, c.key.ID
	if !c.key.usable(c.now) {
		return fmt.Errorf("key %d is revoked or expired; make a new one with petstore key create", c.key.ID)
	}
	id, err := issue(c.stdout, "key", "$KEY\n", c.key.test, func(token secret) (int64, error) {
		return rotateKey(ctx, c.store, &successor, token, c.now+instant(c.overlap.Milliseconds()))
	})
	return c.report(err, "key rotated", "id", c.key.ID, "successor", id, "overlap", c.overlap)
}

func keyList(ctx context.Context, c *invocation) error {
	keys, err := readKeys(ctx, c.store, c.now, "")
	if err != nil {
		return err
	}
	return c.print(keys, keys)
}

func keyShow(ctx context.Context, c *invocation) error {
	if err := c.print([]*apiKey{c.key}, c.key); err != nil || c.json {
		return err
	}
	return c.printHistory(ctx, c.key)
}

// printHistory says when the key was made and used, and which keys it was rotated from and into.
func (c *invocation) printHistory(ctx context.Context, key *apiKey) error {
	chain, err := readKeys(ctx, c.store, c.now, "WHERE k.id = ?1 OR k.usage_id = ?1", key.usageID)
	if err != nil {
		return err
	}
	used := "never used"
	if key.lastUsed != 0 {
		used = "last used " + key.lastUsed.time().Format("2006-01-02 15:04Z")
	}
	text := fmt.Sprintf("created %s, %s\n", key.CreatedAt.time().Format("2006-01-02 15:04:05Z"), used)
	if key.succeeds != 0 {
		text += fmt.Sprintf("succeeds key %d\n", key.succeeds)
	}
	for _, k := range chain {
		if k.succeeds == key.ID {
			text += fmt.Sprintf("succeeded by key %d\n", k.ID)
		}
	}
	if len(chain) > 1 {
		text += "keys that succeed one another share their usage, limits and time of last use\n"
	}
	_, err = io.WriteString(c.stdout, text)
	return err
}

// print shows the keys in a table, which fits a terminal of 80 columns unless
// names are long or much needs attention, or, with -json, the value asJSON.
func (c *invocation) print(keys []*apiKey, asJSON any) error {
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
		fmt.Fprintf(table, "%d\t%s %s\t%s\t%d/%d\t%d/%d\t%s\t%s\n", k.ID, kind, k.LastFour, k.Plan,
			k.UsedThisMinute, k.PerMinute, k.UsedToday, k.PerDay, k.state(c.now), k.Name)
	}
	return table.Flush()
}

// state sums the key up, and says what about it needs attention.
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

// backup moves the ids on in the copy of a cluster, which serves at once and beside it.
func backup(ctx context.Context, c *invocation) error {
	if !isCluster(c.db) && !c.given("skip-ids") {
		c.skipIDs = 0
	}
	err := saveCopy(ctx, c.Arg(0), c.skipIDs, func(temp string) error { return c.store.engine.backup(ctx, temp) })
	if err != nil {
		return fmt.Errorf("cannot back up %s to %s: %w", databaseName(c.db), c.Arg(0), err)
	}
	return nil
}

func restore(ctx context.Context, c *invocation) (err error) {
	var old string
	if isCluster(c.db) {
		old, err = c.restoreCluster(ctx)
	} else {
		old, err = restoreSQLite(ctx, c.db, c.Arg(0), c.skipIDs, c.now.time())
	}
	if err != nil {
		return fmt.Errorf("cannot restore %s from %s: %w", databaseName(c.db), c.Arg(0), err)
	}
	return c.report(nil, "database restored", "database", databaseName(c.db), "from", c.Arg(0), "old", old,
		"skippedIDs", c.skipIDs)
}

// restoreCluster loads a copy, whose ids it moves on, into a cluster. What that holds
// is kept beside the copy, under the name that is returned.
func (c *invocation) restoreCluster(ctx context.Context) (old string, err error) {
	nodes, err := parseCluster(c.db)
	if err != nil {
		return "", err
	}
	from, lock, err := openCopy(ctx, c.Arg(0))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	folder, err := os.MkdirTemp("", "petstore-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "copy")
	if err := saveCopy(ctx, file, c.skipIDs, func(temp string) error { return copyFile(ctx, from, temp) }); err != nil {
		return "", err
	}
	e, err := openRqlite(ctx, nodes, forNothing, c.log)
	if err != nil {
		return "", err
	}
	defer e.Close()
	err = e.load(ctx, file, c.now, func() error {
		if !c.replace {
			return errors.New("it holds a petstore's data; with -replace they are kept beside the copy")
		}
		old = oldName(from, c.now.time())
		return saveCopy(ctx, old, 0, func(temp string) error { return e.backup(ctx, temp) })
	})
	return old, err
}

// version names the build, as far as the toolchain recorded it.
func version() string {
	release, revision := build()
	return strings.TrimSpace("petstore " + release + " " + runtime.Version() + " " + revision)
}

// config is what the flags of the server say.
type config struct {
	settings
	addr, db         string
	debugAddr        string
	debugAllowRemote bool
	tlsCert, tlsKey  string
	tls              *tls.Config // of the two, or nil
	logFormat        string
	logLevel         slog.Level
}

// newFlags is a flag set that prints nothing itself: run reports errors.
func newFlags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// textFlag declares a flag whose text check must accept.
func textFlag(fs *flag.FlagSet, into *string, name string, check func(string) error, usage string) {
	fs.Func(name, usage, func(s string) error {
		*into = s
		return check(s)
	})
}

// serverFlags declares the flags of the server; their texts are the manual.
func serverFlags(c *config) *flag.FlagSet {
	fs := newFlags("petstore")
	c.addr, c.logFormat = "localhost:8080", "auto"
	textFlag(fs, &c.addr, "addr", checkAddr, "`HOST:PORT` to listen on; port 0 takes a free one (localhost:8080)")
	declareDB(fs, &c.db)
	textFlag(fs, &c.baseURL, "base-url", checkBaseURL,
		"public `URL` of the service, ending in /v1, for Location and Link; without\n"+
			"it they are paths, which is right behind any proxy")
	textFlag(fs, &c.stagingURL, "staging-url", checkBaseURL,
		"public `URL` of the staging environment, ending in /v1, for /openapi.json")
	fs.BoolVar(&c.staging, "staging", false, "be a staging instance: issue and take only pet_test_ keys")
	durationFlag(fs, &c.banFor, "ban-for", 10*time.Minute,
		"how long a key is banned for insisting after 429, a `DURATION`; 0 turns\nbans off (10m)")
	textFlag(fs, &c.clientIPHeader, "client-ip-header", oneOf(`[A-Za-z0-9-]+`, "it must be the name of a header"),
		"the `HEADER` in which your proxy names the caller, such as\nX-Forwarded-For; only its rightmost entry counts")
	origins := "`ORIGIN` whose pages may call the service, such as https://example.com, or\n" +
		"*; repeat it for more, or separate them by commas"
	fs.Func("cors-origin", origins, func(s string) error {
		for origin := range strings.SplitSeq(s, ",") {
			if err := checkOrigin(origin); err != nil {
				return err
			}
			c.corsOrigins = append(c.corsOrigins, origin)
		}
		return nil
	})
	fs.StringVar(&c.tlsCert, "tls-cert", "", "certificate `FILE` (PEM); with -tls-key it turns TLS and HTTP/2 on")
	fs.StringVar(&c.tlsKey, "tls-key", "", "private key `FILE` (PEM)")
	textFlag(fs, &c.logFormat, "log", oneOf("text|json|auto", "it must be text, json or auto"),
		"`FORMAT` of the log on stderr: text, json, or auto, which is text on a\nterminal and json elsewhere (auto)")
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo,
		"least `LEVEL` that is logged: debug (a line for every request), info,\nwarn or error (info)")
	textFlag(fs, &c.debugAddr, "debug-addr", checkAddr,
		"`HOST:PORT` for /metrics, /healthz, /readyz and /debug/pprof/, which ask\nfor no key; off without it")
	fs.BoolVar(&c.debugAllowRemote, "debug-allow-remote", false, "let -debug-addr be reached from other machines")
	return fs
}

// oneOf is a check that the whole text matches a pattern.
func oneOf(pattern, message string) func(string) error {
	whole := regexp.MustCompile("^(" + pattern + ")$")
	return func(s string) error {
		if !whole.MatchString(s) {
			return errors.New(message)
		}
		return nil
	}
}

// checkAddr takes a host, which may be empty, and a port.
func checkAddr(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil && port == "" {
		return errors.New("missing port in address")
	}
	if err == nil {
		_, err = net.LookupPort("tcp", port) //nolint:noctx // from a file at the most
	}
	return err
}

// isLoopback reports whether only this machine reaches an address.
func isLoopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// checkBaseURL takes an absolute http or https URL whose path ends in /v1, and
// which needs no escaping, since it is written into headers.
func checkBaseURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.String() != s || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" || !strings.HasSuffix(s, "/v1") {
		return errors.New("it must be an http or https URL ending in /v1")
	}
	return nil
}

// checkOrigin takes * or a serialized origin: scheme, host and perhaps port.
func checkOrigin(s string) error {
	u, err := url.Parse(s)
	if s != "*" && (err != nil || u.Scheme == "" || u.Hostname() == "" || s != strings.ToLower(u.Scheme+"://"+u.Host)) {
		return errors.New("an origin is * or like https://example.com")
	}
	if s != "*" && regexp.MustCompile(`[^!-)+-~]|:$|^https:.*:0*443$|^http:.*:0*80$`).MatchString(s) {
		return errors.New("no browser sends this origin: no default port, no wildcard, and a host in ASCII (punycode)")
	}
	return nil
}

// parse reads the command line of the server, and the certificate that it names.
func (c *config) parse(args, environ []string) error {
	fs := serverFlags(c)
	if err := parse(fs, args, environ); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return usageErrorf("unexpected argument %q; see petstore help", fs.Arg(0))
	case (c.tlsCert == "") != (c.tlsKey == ""):
		return usageErrorf("-tls-cert and -tls-key go together")
	case c.debugAddr != "" && !isLoopback(c.debugAddr) && !c.debugAllowRemote:
		return usageErrorf("-debug-addr %s can be reached from other machines, without a key; say localhost, or add "+
			"-debug-allow-remote", c.debugAddr)
	case c.tlsCert != "":
		cert, err := tls.LoadX509KeyPair(c.tlsCert, c.tlsKey)
		if err != nil {
			return fmt.Errorf("cannot use -tls-cert and -tls-key: %w", err)
		}
		c.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	return nil
}

// parse reads the flags from args and, those that are not given there, from the
// environment: -base-url is PETSTORE_BASE_URL. Empty variables do not count.
func parse(fs *flag.FlagSet, args, environ []string) error {
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return usageErrorf("%v; see petstore help", err)
	}
	given := map[string]bool{"skip-ids": true, "replace": true} // no danger is confirmed in the environment
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	ours := variables(environ)
	var err error
	fs.VisitAll(func(f *flag.Flag) {
		name := twin(f)
		if value := ours[name]; value != "" && !given[f.Name] && err == nil {
			if problem := fs.Set(f.Name, value); problem != nil {
				err = usageErrorf("invalid value %q for %s: %v", value, name, problem)
			}
		}
	})
	return err
}

// twin is the variable that stands for a flag.
func twin(f *flag.Flag) string {
	return "PETSTORE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// variables are those of the environment that look like ours. Of several with one name, the last counts.
func variables(environ []string) map[string]string {
	ours := map[string]string{}
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "PETSTORE_") {
			ours[name] = value
		}
	}
	return ours
}

// warnOfUnknownVariables logs the variables that look like ours and are no flag's.
func warnOfUnknownVariables(environ []string, log *slog.Logger) {
	c := &invocation{FlagSet: serverFlags(&config{})}
	for _, cmd := range commands {
		c.declare(strings.NewReplacer("-skip-ids", "", "-replace", "").Replace(cmd.synopsis))
	}
	unknown := variables(environ)
	c.VisitAll(func(f *flag.Flag) { delete(unknown, twin(f)) })
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		log.Warn("unknown environment variable; petstore help lists the flags, and each has its variable", "variable", name)
	}
}

// help is the text of petstore help.
func help() string {
	var b strings.Builder
	b.WriteString("petstore [flags]                 serve\n")
	for _, cmd := range commands {
		synopsis := strings.Replace(cmd.synopsis, "[-test] ", "[-test]\n    ", 1)
		fmt.Fprintf(&b, "petstore %-23s %s\n    [-db DATABASE] %s\n", cmd.name, cmd.does, synopsis)
	}
	b.WriteString("petstore version\npetstore help\n\nFlags of the server. Each can be set in the environment too: " +
		"-base-url is\nPETSTORE_BASE_URL. The flag wins.\n\n")
	serverFlags(&config{}).VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		usage = strings.ReplaceAll(usage, "\n", "\n        ")
		fmt.Fprintf(&b, "  %s\n        %s\n", strings.TrimSpace("-"+f.Name+" "+value), usage)
	})
	return b.String()
}

// newLogger writes to stderr; format is text, json or auto.
func newLogger(stderr io.Writer, format string, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "text" || format == "auto" && isTerminal(stderr) {
		return slog.New(slog.NewTextHandler(redactor{stderr}, options))
	}
	return slog.New(slog.NewJSONHandler(redactor{stderr}, options))
}

func isTerminal(w io.Writer) bool {
	f, _ := w.(*os.File)
	info, err := f.Stat() // of nil, it is an error
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
