package main

// The command line: the table of verbs, help, and what the verbs do that are about keys and single
// pets. Serving is main.go's, copies are backup.go's.

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// command is one verb.
type command struct {
	name     string
	argument string  // such as ID, or [ID] if it may be left out
	about    string  // a line of what it does, then more, and an example
	purpose  purpose // of opening the database
	// onlyDatabase says that -db alone has a variable: the other flags say what to change, or which
	// pets to export, or confirm a danger, and nobody shall do that by mistake.
	onlyDatabase bool

	flags func(c *invocation)       // declares those beside -db, or nil
	check func(c *invocation) error // of the flags together, or nil
	run   func(ctx context.Context, c *invocation) error
}

// allVerbs are the commands in the order that help shows; serve is main.go's.
func allVerbs(serve func(context.Context, *invocation) error) []command {
	service := command{
		name: "serve",
		about: `serve the API, until SIGINT, SIGTERM or SIGHUP

It finishes the requests that are running, for at most 10 seconds. A database
without any key gets one at the first start, which is printed once.

Example: petstore -addr :8080 -db /var/lib/petstore/petstore.db`,
		purpose: forNothing, flags: serveFlags, check: checkServe, run: serve,
	}
	return slices.Concat([]command{service}, keyVerbs, petVerbs, copyVerbs)
}

var keyVerbs = []command{
	{
		name: "key create",
		about: `make a key and print it, once

Nobody can show the key again: only its digest is stored. It is alone on
stdout, and what else there is to say is on stderr.

Example: petstore key create -plan pro -name "shop front" -expires 90d`,
		purpose: forNewKey, flags: keyCreateFlags, check: checkPlan, run: keyCreate,
	},
	{
		name: "key list",
		about: `show all keys

Each has a line with its plan, what it has used of its limits, and whether it
needs attention.

Example: petstore key list`,
		flags: showFlags, run: keyList,
	},
	{
		name: "key show", argument: "ID",
		about: `show one key

It also tells when the key was made and used last, and which keys it was
rotated from and into.

Example: petstore key show 7`,
		flags: showFlags, run: keyShow,
	},
	{
		name: "key usage", argument: "[ID]",
		about: `show who used the service, and how much

For all keys, those with the most requests admitted first; for one, each of its
days, in UTC. Refused are responses of 429, errors those of 5xx. A key and those
that it was rotated from are one. Services write what they count every half
second. In JSON, days without requests are left out.

Example: petstore key usage -days 90 7`,
		flags: usageFlags, run: keyUsage,
	},
	{
		name: "key set", argument: "ID",
		about: `change the plan, the limits, the name or the expiry

Services follow within a second. What the key has used already counts. One
limit of an enterprise key can be changed alone. A revoked key stays as it is.

Example: petstore key set -plan enterprise -per-minute 5000 -per-day 2000000 7`,
		onlyDatabase: true, flags: keyFlags, check: checkKeySet, run: keySet,
	},
	{
		name: "key rotate", argument: "ID",
		about: `make a successor; the old key ends later

The successor has the same plan, limits and lifetime, and shares the usage of
the old key. It is printed once, alone on stdout.

Example: petstore key rotate -overlap 7d 7`,
		flags: rotateFlags, run: keyRotate,
	},
	{
		name: "key revoke", argument: "ID",
		about: `end a key for good

Services follow within a second. There is no way back.

Example: petstore key revoke 7`,
		run: keyRevoke,
	},
	{
		name: "key unban", argument: "ID",
		about: `lift a ban

It holds for all keys that share the usage, within a second.

Example: petstore key unban 7`,
		run: keyUnban,
	},
}

var petVerbs = []command{
	{
		name: "pet import", argument: "FILE",
		about: `add pets from a file, one JSON object a line

Each line is like the body of POST /v1/pets, but an id in it is ignored. A FILE
of - is stdin. All lines are checked first: if one is wrong, nothing is stored.
Services can run meanwhile. An import is known by its content: one that was
stopped, even by a kill, goes on where it was when the same content is imported
again, and one that has ended is refused.

Example: petstore pet import pets.jsonl`,
		onlyDatabase: true, flags: importFlags, run: petImport,
	},
	{
		name: "pet export", argument: "[FILE]",
		about: `write pets to a file or stdout, one JSON object a line

The pets of a database file are as they were at one moment. Those of a cluster
are read 10,000 at a time, each as it was at some moment of the export. FILE
must not exist, and gets its name when it is whole; a FILE of - is stdout, too.

Example: petstore pet export -status sold sold.jsonl`,
		onlyDatabase: true, flags: statusFlag, run: petExport,
	},
	{
		name: "pet set", argument: "ID",
		about: `change the name, the category or the status of a pet

Services follow within a second.

Example: petstore pet set -status sold 7`,
		onlyDatabase: true, flags: petSetFlags, check: checkChange, run: petSet,
	},
	{
		name: "pet delete", argument: "ID",
		about: `delete a pet

Services follow within a second. Its id is never used again.

Example: petstore pet delete 7`,
		run: petDelete,
	},
}

// copyVerbs are those of whole databases, and the build's.
var copyVerbs = []command{
	{
		name: "backup", argument: "FILE",
		about: `copy the database while it is in use

FILE must not exist. The copy is written as FILE.partial, read whole, and only
then given its name. A copy serves as it is, or can be restored.

Example: petstore backup petstore-2026-11-22.db`,
		onlyDatabase: true, flags: copyFlags, run: backup,
	},
	{
		name: "restore", argument: "COPY",
		about: `put a copy in the database's place

No service may run on the database meanwhile. What was there is kept in a copy
of its own, whose name is printed. It takes up to three times the space of the
larger one. A cluster may hold no pet and no key.

Example: petstore restore petstore-2026-11-22.db`,
		purpose: forNothing, onlyDatabase: true, flags: copyFlags, run: restore,
	},
	{
		name: "version", about: "say which build this is",
		purpose: forNothing, run: printVersion,
	},
}

func printVersion(_ context.Context, c *invocation) error { return c.say(version() + "\n") }

// asksForHelp reports whether an argument does.
func asksForHelp(arg string) bool {
	return slices.Contains([]string{"help", "-h", "-help", "--help"}, arg)
}

// runCommand runs the verb that args begin with; serve is what the server does.
func runCommand(ctx context.Context, args []string, p *process,
	serve func(context.Context, *invocation) error) error {
	verbs := allVerbs(serve)
	if len(args) == 0 {
		args = []string{"serve"}
	}
	switch first := args[0]; {
	case first == "help" && len(args) > 1 && !asksForHelp(args[1]):
		args = append(slices.Clone(args[1:]), "-h") // petstore help key set is petstore key set -h
	case asksForHelp(first):
		return p.say(overview(verbs))
	case first == "-version" || first == "--version":
		args = append([]string{"version"}, args[1:]...)
	case strings.HasPrefix(first, "-"):
		args = append([]string{"serve"}, args...)
	}
	for _, verb := range verbs {
		words := strings.Fields(verb.name)
		if len(args) >= len(words) && slices.Equal(words, args[:len(words)]) {
			return verb.invoke(ctx, args[len(words):], p, verbs)
		}
	}
	return refuseVerb(verbs, args, p)
}

// refuseVerb tells which verbs there are. The words key and pet are half of one.
func refuseVerb(verbs []command, args []string, p *process) error {
	asked := strings.TrimSuffix(strings.Join(args[:min(2, len(args))], " "), " -h")
	isOther := func(verb command) bool { return !strings.HasPrefix(verb.name, args[0]+" ") }
	if ofGroup := slices.DeleteFunc(slices.Clone(verbs), isOther); len(ofGroup) > 0 {
		verbs = ofGroup
		if len(args) == 2 && asksForHelp(args[1]) {
			return p.say(overview(verbs))
		}
	}
	var names []string
	for _, verb := range verbs {
		names = append(names, verb.name)
	}
	return usageErrorf("no command %q; there are %s; petstore without a command serves", asked,
		strings.Join(names, ", "))
}

// overview is a line for each verb.
func overview(verbs []command) string {
	text := "A pet store: an API over HTTP with keys and limits, and its database.\n\n"
	for _, verb := range verbs {
		line, _, _ := strings.Cut(verb.about, "\n")
		text += fmt.Sprintf("  petstore %-12s %s\n", verb.name, line)
	}
	return text + "\nWithout a verb it serves. " +
		"petstore help VERB, or -h after a verb, tells all of it.\n"
}

// help is all that there is to know of a verb.
func (verb *command) help(c *invocation) string {
	text := "petstore " + verb.name
	if verb.name == "serve" {
		text = "petstore"
	}
	var flags strings.Builder
	c.SetOutput(&flags)
	c.PrintDefaults()
	if flags.Len() > 0 {
		text += " [flags]"
	}
	if verb.argument != "" {
		text += " " + verb.argument
	}
	text += "\n\n" + verb.about + "\n\n" + flags.String() + "\n"
	if verb.onlyDatabase {
		text += "Only -db has a variable in the environment, PETSTORE_DB. The flag wins.\n\n"
	} else if flags.Len() > 0 {
		text += "Each flag has a variable in the environment: -db has PETSTORE_DB.\n" +
			"The flag wins.\n\n"
	}
	return text + `Exit status: 0 when it is done, 1 if something failed, 2 for a mistake on the
command line or in the environment. stderr says why, in one line.
`
}

// newInvocation is a run of the verb, with its flags declared.
func (verb *command) newInvocation(p *process) *invocation {
	c := &invocation{process: p, now: instantOf(time.Now()),
		FlagSet: flag.NewFlagSet("petstore "+verb.name, flag.ContinueOnError)}
	c.SetOutput(io.Discard) // main reports errors
	if verb.name != "version" {
		databaseFlag(c)
	}
	if verb.flags != nil {
		verb.flags(c)
	}
	return c
}

// invoke parses the flags of a verb, opens the database and runs the verb.
func (verb *command) invoke(ctx context.Context, args []string, p *process, verbs []command) error {
	c := verb.newInvocation(p)
	err := c.parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return p.say(verb.help(c))
	}
	if err != nil {
		return usageErrorf("%v; see %s -h", err, c.Name())
	}
	if err := c.readEnvironment(verb.onlyDatabase); err != nil {
		return err
	}
	if err := verb.checkArgument(c); err != nil {
		return err
	}
	if verb.check != nil {
		if err := verb.check(c); err != nil { // before the database is opened, or made
			return err
		}
	}
	c.log = newLogger(p.stderr, c.logFormat, c.logLevel)
	for _, name := range unknownVariables(p.environ, verbs) {
		c.log.Warn("unknown environment variable; petstore help VERB tells which flags have one",
			"variable", name)
	}
	err = verb.runOn(ctx, c)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("stopped by a signal: %w", err)
	}
	return err
}

// runOn opens the database, finds the key that is named, and runs the verb.
func (verb *command) runOn(ctx context.Context, c *invocation) error {
	if verb.purpose != forNothing || isCluster(c.db) && verb.name == "restore" {
		_, missing := os.Stat(c.db)
		c.made = missing != nil && !isCluster(c.db)
		store, err := openStore(ctx, c.db, verb.purpose, c.log)
		if err != nil {
			return err
		}
		defer store.Close()
		c.store = store
	}
	if c.NArg() == 1 && strings.HasPrefix(verb.name, "key ") {
		if err := c.findKey(ctx); err != nil {
			return err
		}
	}
	return verb.run(ctx, c)
}

// checkArgument checks that there is an argument if the verb needs one, and no other.
func (verb *command) checkArgument(c *invocation) error {
	most := 1
	if verb.argument == "" {
		most = 0
	}
	if c.NArg() > most {
		return usageErrorf("unexpected argument %q; see %s -h", c.Arg(most), c.Name())
	}
	if c.NArg() < most && !strings.HasPrefix(verb.argument, "[") {
		return usageErrorf("%s needs %s; see %[1]s -h", c.Name(), verb.argument)
	}
	return nil
}

// unknownVariables are those that look like ours and are no verb's: they are mistakes, probably.
func unknownVariables(environ map[string]string, verbs []command) []string {
	unknown := map[string]bool{}
	for name := range environ {
		if strings.HasPrefix(name, "PETSTORE_") {
			unknown[name] = true
		}
	}
	for _, verb := range verbs {
		verb.newInvocation(nil).VisitAll(func(f *flag.Flag) {
			if f.Name == "db" || !verb.onlyDatabase {
				delete(unknown, variableOf(f.Name))
			}
		})
	}
	return slices.Sorted(maps.Keys(unknown))
}

// openStore opens the database that -db names.
func openStore(ctx context.Context, db string, p purpose, log *slog.Logger) (s *store, err error) {
	var e engine
	if isCluster(db) {
		e, err = openRqlite(ctx, nodesAt(nodeURLs(db)), p, log)
		db = "on " + databaseName(db)
	} else {
		e, err = openSQLite(ctx, db, p)
	}
	if err == nil && p != forNothing {
		if err = updateSchema(ctx, e, p != forCommand || !e.shared()); err == nil {
			_, err = e.changed(ctx) // from here on, what others write is news
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %s: %w", db, errors.Join(err, e.Close()))
	}
	return newStore(e), nil
}

// findKey reads the key that the command line names.
func (c *invocation) findKey(ctx context.Context) error {
	id, _ := strconv.ParseInt(c.Arg(0), 10, 64) // no key has the id 0
	keys, err := readKeys(ctx, c.store, c.now, "WHERE k.id = ?", id)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return fmt.Errorf("no key has the id %s", c.Arg(0))
	}
	c.key = *keys[0]
	return nil
}

// errNotStored is added to an error when a key was printed but could not be stored.
var errNotStored = errors.New("the key that was printed is not stored and opens nothing")

// issue prints a new key in the place of $KEY, and then lets store keep it: one that
// nobody has seen must not stay behind.
func issue(stdout io.Writer, text string, test bool,
	store func(secret) (id int64, err error)) (id int64, err error) {
	token := newSecret(test)
	_, err = io.WriteString(stdout, strings.ReplaceAll(text, "$KEY", string(token)))
	if err != nil {
		// Its text alone, since it is a failure also when the reader of stdout has left.
		return 0, errors.New("no key was made, since it cannot be shown: " + err.Error())
	}
	id, err = store(token)
	if errors.Is(err, errOutcome) {
		return 0, fmt.Errorf("the key that was printed may be stored or not; "+
			"petstore key list tells: %w", err)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotStored, err)
	}
	return id, nil
}

func keyCreate(ctx context.Context, c *invocation) error {
	key := &apiKey{
		Name:      c.name,
		Plan:      c.plan,
		account:   account{quota: c.quota},
		Test:      c.test,
		CreatedAt: c.now,
		lifetime:  instant(c.expires.Milliseconds()),
	}
	id, err := issue(c.stdout, "$KEY\n", c.test, func(token secret) (int64, error) {
		return insertKey(ctx, c.store, key, token, false)
	})
	return c.report(err, "key created",
		"id", id,
		"name", c.name,
		"plan", c.plan,
		"database", databaseName(c.db),
		"newDatabase", c.made)
}

// keySet changes what is given of a key. One limit of an Enterprise key can change alone.
func keySet(ctx context.Context, c *invocation) error {
	revoked := fmt.Errorf("key %d is revoked; make a new one with petstore key create", c.key.ID)
	if c.key.RevokedAt != 0 {
		return revoked
	}
	if c.key.Plan != "enterprise" && c.plan == "" && c.quota != (quota{}) {
		return usageErrorf("-per-minute and -per-day go with -plan enterprise only; "+
			"key %d has the plan %s", c.key.ID, c.key.Plan)
	}
	lifetime := instant(-1) // stays
	expires := slog.Attr{}
	if c.given("expires") {
		lifetime = instant(c.expires.Milliseconds())
		expires = slog.Duration("expires", c.expires)
	}
	change := changeKey(c.key.ID, c.now, c.plan, c.name, c.quota, lifetime)
	results, err := c.store.edit(ctx, change)
	if err == nil && results[0].affected == 0 {
		err = revoked
	}
	return c.report(err, "key changed", "id", c.key.ID,
		unlessEmpty("plan", c.plan),
		unlessEmpty("perMinute", c.quota.PerMinute),
		unlessEmpty("perDay", c.quota.PerDay),
		unlessEmpty("name", c.name),
		expires)
}

// unlessEmpty is an attribute of a log line, or one that the log leaves out.
func unlessEmpty[T comparable](name string, value T) slog.Attr {
	var empty T
	if value == empty {
		return slog.Attr{}
	}
	return slog.Any(name, value)
}

func keyRevoke(ctx context.Context, c *invocation) error {
	if c.key.RevokedAt != 0 {
		at := c.key.RevokedAt.time()
		return c.report(nil, "key was revoked already", "id", c.key.ID, "at", at)
	}
	revoke := revokeKey(c.key.ID, c.now)
	_, err := c.store.edit(ctx, revoke)
	return c.report(err, "key revoked", "id", c.key.ID)
}

func keyUnban(ctx context.Context, c *invocation) error {
	if c.key.BannedUntil == 0 {
		return c.report(nil, "key is not banned", "id", c.key.ID)
	}
	lift := unban(c.key.usageID, c.now)
	_, err := c.store.edit(ctx, lift)
	return c.report(err, "key unbanned", "id", c.key.ID)
}

// keyRotate makes a successor that is charged to the same usage, so that two keys
// in the overlap do not double the quota. It gets the same lifetime, starting now.
func keyRotate(ctx context.Context, c *invocation) error {
	successor := c.key
	successor.CreatedAt = c.now
	successor.Succeeds = keyID(c.key.ID)
	if !c.key.usable(c.now) {
		return fmt.Errorf("key %d is revoked or expired; make a new one with petstore key create",
			c.key.ID)
	}
	overlapEnds := c.now + instant(c.overlap.Milliseconds())
	id, err := issue(c.stdout, "$KEY\n", c.key.Test, func(token secret) (int64, error) {
		return rotateKey(ctx, c.store, &successor, token, overlapEnds)
	})
	return c.report(err, "key rotated",
		"id", c.key.ID,
		"successor", id,
		"overlap", c.overlap)
}

const keyHeading = "ID\tKEY\tPLAN\tMINUTE\tDAY\tSTATE\tNAME"

// keyList shows all keys, in a table that fits a terminal of 80 columns unless names are long or
// much needs attention.
func keyList(ctx context.Context, c *invocation) error {
	list := c.newListing(keyHeading)
	err := eachKey(ctx, c.store, c.now, func(k *apiKey) error {
		return list.add(k, keyRow(k, c.now))
	}, "WHERE true")
	return list.end(err)
}

// keyRow is the row of a key in the table.
func keyRow(k *apiKey, now instant) string {
	environment := "live"
	if k.Test {
		environment = "test"
	}
	return fmt.Sprintf("%d\t%s %s\t%s\t%d/%d\t%d/%d\t%s\t%s", k.ID, environment, k.LastFour, k.Plan,
		k.UsedThisMinute, k.PerMinute, k.UsedToday, k.PerDay, keyState(k, now), k.Name)
}

// keyState says what about a key needs attention.
func keyState(k *apiKey, now instant) string {
	text := k.State
	switch k.State {
	case "revoked", "expired":
		return text
	case "banned":
		layout := "15:04:05Z"
		if k.BannedUntil/dayMillis > now/dayMillis {
			layout = "2006-01-02 15:04:05Z"
		}
		text = "banned to " + k.BannedUntil.time().Format(layout)
	}
	if k.ExpiresAt != 0 {
		text += "; ends "
		if k.ExpiresAt < now+14*dayMillis {
			text += "soon, "
		}
		text += k.ExpiresAt.time().Format(time.DateOnly)
	}
	minute, day := k.usedParts()
	if minute >= nearLimit {
		text += fmt.Sprintf("; minute %.0f %%", math.Round(min(100*minute, 100)))
	}
	if day >= nearLimit {
		text += fmt.Sprintf("; day %.0f %%", math.Round(min(100*day, 100)))
	}
	if k.DeprecatedUseAt != 0 {
		text += "; getPet " + k.DeprecatedUseAt.time().Format(time.DateOnly)
	}
	return text
}

// keyShow shows one key: its row of the table, and below it when it was made and used, and which
// keys it was rotated from and into.
func keyShow(ctx context.Context, c *invocation) error {
	if c.json {
		text, err := indented(&c.key, "")
		if err != nil {
			return err
		}
		return c.say(text + "\n")
	}
	used := "never used"
	if c.key.LastUsedAt != 0 {
		used = "last used " + c.key.LastUsedAt.time().Format("2006-01-02 15:04Z")
	}
	created := c.key.CreatedAt.time().Format("2006-01-02 15:04:05Z")
	history := fmt.Sprintf("created %s, %s\n", created, used)
	if c.key.Succeeds != 0 {
		history += fmt.Sprintf("succeeds key %d\n", c.key.Succeeds)
	}
	successors := sqlOf("SELECT id FROM api_keys WHERE usage_id = ? AND succeeds = ? ORDER BY id",
		c.key.usageID, c.key.ID)
	err := c.store.engine.read(ctx, successors, func(scan scanner) error {
		var id int64
		err := scan(&id)
		history += fmt.Sprintf("succeeded by key %d\n", id)
		return err
	})
	if err != nil {
		return err
	}
	if c.key.Succeeds != 0 || c.key.SucceededBy != 0 {
		history += "keys that succeed one another share their usage, limits and time of last use\n"
	}
	list := c.newListing(keyHeading)
	if err := list.end(list.add(nil, keyRow(&c.key, c.now))); err != nil {
		return err
	}
	return c.say(history)
}

// keyUsage shows a row for each key, the busiest first, or for one key a row for each day.
func keyUsage(ctx context.Context, c *invocation) error {
	since := int64(c.now/dayMillis) - c.days + 1
	bars := isTerminal(c.stdout)
	heading := "\t ADMITTED\t  REFUSED\t  ERRORS"
	if bars {
		heading += "  █ admitted ░ refused "
	}
	if c.key.ID != 0 && !c.json {
		return eachUseByDay(ctx, c.store, since, c.key.usageID, -1, func(use *keyUse) error {
			heading += fmt.Sprintf("\tkey %d, %s, %s", use.ID, use.Plan, use.Name)
			return c.showDays("DAY"+heading, use, since, bars)
		})
	}
	each := eachUse
	if c.json {
		each = eachUseByDay
	}
	list := c.newListing("ID" + heading + "\tPLAN\tNAME")
	err := each(ctx, c.store, since, c.key.usageID, -1, func(use *keyUse) error {
		row := useRow(strconv.FormatInt(use.ID, 10), use.total, use.most, bars)
		return list.add(use, row+"\t"+use.Plan+"\t"+use.Name)
	})
	return list.end(err)
}

// showDays shows a row for each day, those without requests too.
func (c *invocation) showDays(heading string, use *keyUse, since int64, bars bool) error {
	days := map[string]dayUse{}
	most := int64(0)
	for _, d := range use.Days {
		days[d.Day] = d
		most = max(most, d.Admitted+d.Refused)
	}
	list := c.newListing(heading)
	for day := range c.days {
		date := time.Unix((since+day)*86400, 0).UTC().Format(time.DateOnly)
		row := strings.TrimRight(useRow(date, days[date], most, bars), " ")
		if err := list.add(nil, row); err != nil {
			return err
		}
	}
	return list.end(nil)
}

// useRow is the begin of a row of a table of usage. A bar has 20 cells for the most requests, and
// at least one for what is not 0.
func useRow(label string, use dayUse, most int64, bars bool) string {
	row := fmt.Sprintf("%s\t%9d\t%9d\t%8d", label, use.Admitted, use.Refused, use.Errors)
	if !bars {
		return row
	}
	most = max(most, 1)
	admitted := strings.Repeat("█", int((20*use.Admitted+most-1)/most))
	refused := strings.Repeat("░", int((20*use.Refused+most-1)/most))
	return row + fmt.Sprintf("  %-21s", admitted+refused)
}

// listing writes a report as it is read: with -json an array, otherwise a table.
type listing struct {
	json  bool
	out   io.Writer
	table *tabwriter.Writer
	rows  int
}

// newListing begins a report. The columns of the heading, and of the rows, are ended by tabs.
func (c *invocation) newListing(heading string) *listing {
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, heading) // into memory
	return &listing{
		json:  c.json,
		out:   c.stdout,
		table: table,
	}
}

// add writes an element of the array, or a row of the table. Rows are aligned 10,000 at a time, so
// that a longer table takes no more memory.
func (l *listing) add(element any, row string) error {
	l.rows++
	if l.json {
		separator := ",\n  "
		if l.rows == 1 {
			separator = "[\n  "
		}
		text, err := indented(element, "  ")
		if err != nil {
			return err
		}
		_, err = io.WriteString(l.out, separator+text)
		return err
	}
	if _, err := fmt.Fprintln(l.table, row); err != nil {
		return err
	}
	if l.rows%10_000 == 0 {
		return l.table.Flush()
	}
	return nil
}

// end ends the report, unless there was an error.
func (l *listing) end(err error) error {
	if err != nil {
		return err
	}
	if !l.json {
		return l.table.Flush()
	}
	end := "\n]\n"
	if l.rows == 0 {
		end = "[]\n"
	}
	_, err = io.WriteString(l.out, end)
	return err
}

// indented is a value as JSON for people: names in it keep their < and &.
func indented(v any, prefix string) (string, error) {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetIndent(prefix, "  ")
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return strings.TrimSuffix(text.String(), "\n"), err
}

func petSet(ctx context.Context, c *invocation) error {
	change := setPet(c.Arg(0), c.name, c.category, PetStatus(c.status))
	return c.editPet(ctx, change, "pet changed", "id", c.Arg(0),
		unlessEmpty("name", c.name),
		unlessEmpty("category", c.category),
		unlessEmpty("status", c.status))
}

// setPet is the statement that changes what is not empty. Of the ways to write an id, only the
// usual one counts: not 007, nor 7e0.
func setPet(id, name, category string, status PetStatus) statement {
	return sqlOf(`UPDATE pets SET
		name = ifnull(nullif(? ->> '$', ''), name),
		category_id = ifnull(nullif(?, ''), category_id),
		status = ifnull(nullif(?, 0), status)
		WHERE id = ?4 AND CAST(id AS TEXT) = ?4`, quote(name), category, storedStatus[status], id)
}

func petDelete(ctx context.Context, c *invocation) error {
	change := sqlOf("DELETE FROM pets WHERE id = ?1 AND CAST(id AS TEXT) = ?1", c.Arg(0))
	return c.editPet(ctx, change, "pet deleted", "id", c.Arg(0))
}

// editPet changes the pet that the command line names, and logs what it did.
func (c *invocation) editPet(ctx context.Context, change statement, message string,
	attributes ...any) error {
	results, err := c.store.edit(ctx, change)
	if err == nil && results[0].affected == 0 {
		err = fmt.Errorf("no pet has the id %s", c.Arg(0))
	}
	return c.report(err, message, attributes...)
}

// version names the build, as far as the toolchain recorded it.
func version() string {
	release, revision := build()
	return strings.TrimSpace("petstore " + release + " " + runtime.Version() + " " + revision)
}
