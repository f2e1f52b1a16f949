package main

// The command line: the table of commands, their help, and what those commands do that are about
// keys and single pets. The service is in main.go, and copies are in backup.go.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// command is an entry of the table of commands.
type command struct {
	name     string
	argument string   // such as ID, or [ID] if it may be left out
	about    string   // a line of what it does, then more, and an example
	database openMode // openExisting unless it is set
	// onlyDatabase says that only -db has a variable. The other flags say what to change, or which
	// pets to export, or confirm a danger, and a variable could do that by mistake.
	onlyDatabase bool

	flags func(cmd *invocation)       // declares those beside -db, or nil
	check func(cmd *invocation) error // of the flags together, or nil
	run   func(ctx context.Context, cmd *invocation) error
}

// commands are the operator's commands, in the order that help shows.
var commands = []command{
	{
		name: "key create",
		about: `make a key and print it, once

Nobody can show the key again: only its digest is stored. It is alone on
stdout, and what else there is to say is on stderr.

Example: petstore key create -plan pro -name "shop front" -expires 90d`,
		database: openOrMake, flags: keyCreateFlags, check: checkLimits, run: keyCreate,
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

With -json it also tells when the key was made and used last, and which keys it
was rotated from and into. Keys that were rotated into one another share their
usage, their limits and the time of last use.

Example: petstore key show -json 7`,
		flags: showFlags, run: keyShow,
	},
	{
		name: "key usage", argument: "[ID]",
		about: `show who used the service, and how much

For all keys, those with the most requests admitted first; for one, each of its
days, in UTC. Refused are responses of 429, errors those of 5xx. A key and those
that it was rotated from are one. Services write what they count every half
second. Days without requests are left out.

Example: petstore key usage -days 90 7`,
		flags: usageFlags, run: keyUsage,
	},
	{
		name: "key set", argument: "ID",
		about: `change the plan, the limits, the name or the expiry

Services follow within a second. What the key has used already counts. One
limit of an enterprise key can be changed alone. A revoked key stays as it is.

Example: petstore key set -plan enterprise -per-minute 5000 -per-day 2000000 7`,
		onlyDatabase: true, flags: keyFlags, check: checkChange, run: keySet,
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
larger of the two. A cluster may hold no pet and no key.

Example: petstore restore petstore-2026-11-22.db`,
		database: openNothing, onlyDatabase: true, flags: copyFlags, run: restore,
	},
}

// runCommand runs the command that args begin with. Without a command it runs serving.
func runCommand(ctx context.Context, args []string, p *process, serving command) error {
	all := append([]command{serving}, commands...)
	if len(args) == 0 {
		args = []string{serving.name}
	}
	if args[0] == "help" {
		args = append(slices.Clone(args[1:]), "-h") // help key set is key set -h
	}
	switch args[0] {
	case "-h", "-help", "--help":
		return p.say(overview(all))
	case "version", "-version", "--version":
		return p.say(version() + "\n")
	}
	if strings.HasPrefix(args[0], "-") {
		args = append([]string{serving.name}, args...)
	}
	for _, entry := range all {
		words := min(len(args), 1+strings.Count(entry.name, " "))
		if strings.Join(args[:words], " ") == entry.name {
			return entry.invoke(ctx, args[words:], p, all)
		}
	}
	return unknownCommand(args)
}

// unknownCommand is the error of args that begin with no command. If the first word is that of some
// commands, such as key, it names them.
func unknownCommand(args []string) error {
	var group []string
	for _, entry := range commands {
		if strings.HasPrefix(entry.name, args[0]+" ") {
			group = append(group, entry.name)
		}
	}
	if group == nil {
		return usageErrorf("no command %q; petstore help lists all", args[0])
	}
	return usageErrorf("no command %q; there are %s", args[0], strings.Join(group, ", "))
}

// overview is a line for each command.
func overview(all []command) string {
	text := "A pet store: an API over HTTP with keys and limits, and its database.\n\n"
	for _, entry := range all {
		summary, _, _ := strings.Cut(entry.about, "\n")
		text += fmt.Sprintf("  petstore %-12s %s\n", entry.name, summary)
	}
	return text + `  petstore version      say which build this is

Without a command it serves. petstore help serve shows the flags of the service,
and petstore help COMMAND, or -h after a command, explains that command.
`
}

// help explains a command and its flags.
func (c *command) help(cmd *invocation) string {
	var flags strings.Builder
	cmd.SetOutput(&flags)
	cmd.PrintDefaults()
	variables := "Each flag has a variable in the environment: -db has PETSTORE_DB."
	if c.onlyDatabase {
		variables = "Only -db has a variable in the environment, PETSTORE_DB."
	}
	usage := strings.TrimSpace("petstore " + c.name + " [flags] " + c.argument)
	return fmt.Sprintf(`%s

%s

%s
%s The flag wins.

Exit status: 0 when it is done, 1 if something failed, 2 for a mistake on the
command line or in the environment. stderr says why, in one line.
`, usage, c.about, &flags, variables)
}

// newInvocation is a run of the command, with its flags declared.
func (c *command) newInvocation(p *process) *invocation {
	cmd := &invocation{
		process: p,
		FlagSet: flag.NewFlagSet(c.name, flag.ContinueOnError),
		now:     instantOf(time.Now()),
	}
	cmd.SetOutput(io.Discard) // main reports errors
	databaseFlag(cmd)
	if c.flags != nil {
		c.flags(cmd)
	}
	return cmd
}

// readFlags reads the command line and the environment, and checks what they say. An error is a
// mistake of the person who runs the command.
func (c *command) readFlags(cmd *invocation, args []string) error {
	if err := cmd.parse(args, c.argument); err != nil {
		return err
	}
	if err := cmd.readEnvironment(c.onlyDatabase); err != nil {
		return err
	}
	if c.check == nil {
		return nil
	}
	return c.check(cmd)
}

// invoke reads the flags of a command, and runs it.
func (c *command) invoke(ctx context.Context, args []string, p *process, all []command) error {
	cmd := c.newInvocation(p)
	err := c.readFlags(cmd, args)
	if errors.Is(err, flag.ErrHelp) {
		return p.say(c.help(cmd))
	}
	if err != nil {
		return usageErrorf("%w; see petstore %s -h", err, c.name)
	}
	cmd.log = newLogger(p.stderr, cmd.logFormat, cmd.logLevel)
	cmd.warnOfUnknownVariables(all)
	err = c.openAndRun(ctx, cmd)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("stopped by a signal: %w", err)
	}
	return err
}

// openAndRun opens the database, finds the key or the pet that the argument names, and runs the
// command.
func (c *command) openAndRun(ctx context.Context, cmd *invocation) error {
	// A file is put in its place without being opened. A cluster is asked what it holds.
	restoresCluster := c.name == "restore" && isCluster(cmd.db)
	if c.database != openNothing || restoresCluster {
		store, err := openStore(ctx, cmd.db, c.database, cmd.log)
		if err != nil {
			return err
		}
		defer store.Close()
		cmd.store = store
	}
	if strings.Contains(c.argument, "ID") && cmd.argument != "" {
		if err := cmd.readID(ctx); err != nil {
			return err
		}
	}
	return c.run(ctx, cmd)
}

// warnOfUnknownVariables logs the variables that look like ours and that no command has. They are
// probably mistakes.
func (c *invocation) warnOfUnknownVariables(all []command) {
	known := map[string]bool{variableOf("db"): true}
	for _, entry := range all {
		if entry.onlyDatabase {
			continue
		}
		entry.newInvocation(c.process).VisitAll(func(f *flag.Flag) {
			known[variableOf(f.Name)] = true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(c.environ)) {
		if strings.HasPrefix(name, "PETSTORE_") && !known[name] {
			c.log.Warn("unknown environment variable; "+
				"petstore help COMMAND tells which flags have one", "variable", name)
		}
	}
}

// openStore opens the database that -db names, and brings its schema up to date.
func openStore(ctx context.Context, db string, mode openMode, log *slog.Logger) (*store, error) {
	e, err := openEngine(ctx, db, mode, log)
	if err != nil {
		name := databaseName(db)
		return nil, fmt.Errorf("cannot open the database %s: %w", name, err)
	}
	return storeOn(e), nil
}

// openEngine opens a file or a cluster and, unless mode is openNothing, its database.
func openEngine(ctx context.Context, db string, mode openMode, log *slog.Logger) (
	e engine, err error) {
	if isCluster(db) {
		e, err = openRqlite(ctx, nodeURLs(db), mode, log)
	} else {
		e, err = openSQLite(ctx, db, mode)
	}
	if err != nil || mode == openNothing {
		return e, err
	}
	// A cluster is always there, also if it holds no database. A file was looked for.
	mayMake := mode != openExisting || !e.shared()
	if err := updateSchema(ctx, e, mayMake); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// readID reads the id that the argument is and, for a command about a key, the key. From then on,
// log lines tell the id.
func (c *invocation) readID(ctx context.Context) error {
	id, ok := parseID(c.argument)
	if !ok {
		return c.unknownID()
	}
	c.id = id
	c.log = c.log.With("id", id)
	if strings.HasPrefix(c.Name(), "pet ") {
		return nil
	}
	keys, err := readKeys(ctx, c.store, c.now, "WHERE k.id = ?", id)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return c.unknownID()
	}
	c.key = *keys[0]
	return nil
}

// unknownID is the error of an argument that is the id of no key, or of no pet.
func (c *invocation) unknownID() error {
	kind, _, _ := strings.Cut(c.Name(), " ")
	return fmt.Errorf("no %s has the id %s", kind, c.argument)
}

// issue makes a new key, prints it in the place of $KEY in the text, and then stores it. A key that
// cannot be printed is not stored, since nobody could use it.
func issue(stdout io.Writer, text string, test bool,
	store func(secret) (id int64, err error)) (id int64, err error) {
	token := newSecret(test)
	_, err = io.WriteString(stdout, strings.ReplaceAll(text, "$KEY", string(token)))
	if err != nil {
		// The error is not wrapped: main says nothing of a reader of stdout who has left.
		return 0, errors.New("no key was made, since it cannot be shown: " + err.Error())
	}
	id, err = store(token)
	if err != nil {
		err = fmt.Errorf("the key that was printed may not be stored; "+
			"petstore key list tells: %w", err)
	}
	return id, err
}

func keyCreate(ctx context.Context, cmd *invocation) error {
	key := &apiKey{
		Name:      cmd.name,
		Plan:      cmp.Or(cmd.plan, freePlan),
		account:   account{quota: cmd.quota},
		Test:      cmd.test,
		CreatedAt: cmd.now,
		lifetime:  instant(cmd.expires.Milliseconds()),
	}
	limits := cmp.Or(planQuota(key.Plan), cmd.quota)
	expires := "never"
	if cmd.expires > 0 {
		expires = inUTC(cmd.now + key.lifetime)
	}
	id, err := issue(cmd.stdout, "$KEY\n", cmd.test, func(token secret) (int64, error) {
		return insertKey(ctx, cmd.store, key, token, "true")
	})
	if err != nil {
		return err
	}
	cmd.log.Info("key created",
		"id", id,
		"name", key.Name,
		"plan", key.Plan,
		"perMinute", limits.PerMinute,
		"perDay", limits.PerDay,
		"expires", expires,
		"test", cmd.test,
		"database", databaseName(cmd.db))
	return nil
}

// keySet changes what the flags say, and leaves the rest.
func keySet(ctx context.Context, cmd *invocation) error {
	// Only now the plan of the key is known.
	if err := checkLimits(cmd); err != nil {
		return usageErrorf("%w; key %d has the plan %s", err, cmd.id, cmd.key.Plan)
	}
	lifetime := instant(-1) // which leaves the expiry as it is
	if cmd.given("expires") {
		lifetime = instant(cmd.expires.Milliseconds())
	}
	change := changeKey(cmd.id, cmd.now, cmd.plan, cmd.name, cmd.quota, lifetime)
	results, err := cmd.store.edit(ctx, change)
	if err != nil {
		return err
	}
	if results[0].affected == 0 {
		return fmt.Errorf("key %d is revoked; make a new one with petstore key create", cmd.id)
	}
	cmd.log.Info("key changed", cmd.changes()...)
	return nil
}

func keyRevoke(ctx context.Context, cmd *invocation) error {
	results, err := cmd.store.edit(ctx, revokeKey(cmd.id, cmd.now))
	if err != nil {
		return err
	}
	message := "key revoked"
	if results[0].affected == 0 {
		message = "key was revoked already"
	}
	cmd.log.Info(message)
	return nil
}

func keyUnban(ctx context.Context, cmd *invocation) error {
	if cmd.key.BannedUntil == 0 {
		cmd.log.Info("key is not banned")
		return nil
	}
	if _, err := cmd.store.edit(ctx, unban(cmd.key.usageID, cmd.now)); err != nil {
		return err
	}
	cmd.log.Info("key unbanned")
	return nil
}

// keyRotate makes a successor. It is charged to the same usage, so that two keys in the overlap do
// not double the quota, and it gets the same lifetime, which starts now.
func keyRotate(ctx context.Context, cmd *invocation) error {
	if !cmd.key.usable(cmd.now) {
		return fmt.Errorf("key %d is revoked or expired; make a new one with petstore key create",
			cmd.id)
	}
	successor := cmd.key
	successor.CreatedAt = cmd.now
	successor.Succeeds = keyID(cmd.id)
	overlapEnds := cmd.now + instant(cmd.overlap.Milliseconds())
	id, err := issue(cmd.stdout, "$KEY\n", cmd.key.Test, func(token secret) (int64, error) {
		return rotateKey(ctx, cmd.store, &successor, token, overlapEnds)
	})
	if err != nil {
		return err
	}
	cmd.log.Info("key rotated", "successor", id, "overlap", cmd.overlap.String())
	return nil
}

const keyHeading = "ID\tKEY\tPLAN\tMINUTE\tDAY\tSTATE\tNAME"

// keyList shows all keys.
func keyList(ctx context.Context, cmd *invocation) error {
	list := cmd.newListing(keyHeading)
	addRow := func(key *apiKey) error {
		return list.add(key, keyRow(key))
	}
	err := eachKey(ctx, cmd.store, cmd.now, addRow, "WHERE true")
	return list.end(err)
}

// keyRow is the row of a key in the table.
func keyRow(key *apiKey) string {
	environment := "live"
	if key.Test {
		environment = "test"
	}
	return fmt.Sprintf("%d\t%s %s\t%s\t%d/%d\t%d/%d\t%s\t%s",
		key.ID, environment, key.LastFour, key.Plan,
		key.UsedThisMinute, key.PerMinute, key.UsedToday, key.PerDay, keyState(key), key.Name)
}

// keyState says whether a key can be used, until when, and whether it uses what is deprecated.
func keyState(key *apiKey) string {
	text := key.State
	if text == "revoked" || text == "expired" {
		return text
	}
	if text == "banned" {
		text += " to " + inUTC(key.BannedUntil)
	}
	if key.ExpiresAt != 0 {
		text += "; ends " + inUTC(key.ExpiresAt)
	}
	if key.DeprecatedUseAt != 0 {
		text += "; deprecated call " + key.DeprecatedUseAt.time().Format(time.DateOnly)
	}
	return text
}

// inUTC is an instant for people, to the second.
func inUTC(at instant) string { return at.time().Format("2006-01-02 15:04:05Z") }

// keyShow shows one key.
func keyShow(_ context.Context, cmd *invocation) error {
	key := &cmd.key
	if cmd.json {
		text, _ := json.MarshalIndent(key, "", "  ") // of numbers and texts
		return cmd.say(string(text) + "\n")
	}
	list := cmd.newListing(keyHeading)
	return list.end(list.add(key, keyRow(key)))
}

const usageHeading = " ADMITTED\t  REFUSED\t  ERRORS"

// columns are those of a table below usageHeading.
func (t tally) columns() string {
	return fmt.Sprintf("%9d\t%9d\t%8d", t.Admitted, t.Refused, t.Errors)
}

// keyUsage shows a row for each key, the busiest first, or for one key a row for each day with
// requests.
func keyUsage(ctx context.Context, cmd *invocation) error {
	since := int64(cmd.now/dayMillis) - cmd.days + 1 // the first day, counted from 1 January 1970
	byDay := cmd.id != 0 && !cmd.json
	heading := "ID\t" + usageHeading + "\tPLAN\tNAME"
	if byDay {
		heading = "DAY\t" + usageHeading
	}
	list := cmd.newListing(heading)
	err := eachUse(ctx, cmd.store, since, cmd.key.usageID, -1, func(use *keyUse) error {
		if byDay {
			for _, day := range use.Days {
				if err := list.add(nil, day.Day+"\t"+day.columns()); err != nil {
					return err
				}
			}
			return nil
		}
		row := fmt.Sprintf("%d\t%s\t%s\t%s", use.ID, use.total().columns(), use.Plan, use.Name)
		return list.add(use, row)
	})
	return list.end(err)
}

// listing writes the rows of a report as they are read: with -json as an array, otherwise a table.
type listing struct {
	*invocation
	table *tabwriter.Writer
	rows  int
}

// newListing begins a report. Tabs stand between the columns of the heading, and of the rows.
func (c *invocation) newListing(heading string) *listing {
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, heading) // The table keeps it in memory, with -json for ever.
	return &listing{
		invocation: c,
		table:      table,
	}
}

// add writes an element of the array, or a row of the table. Rows are aligned 10,000 at a time, so
// that the memory of a table is bounded.
func (l *listing) add(element any, row string) error {
	l.rows++
	if l.json {
		separator := ","
		if l.rows == 1 {
			separator = "["
		}
		text, _ := json.MarshalIndent(element, "  ", "  ") // of numbers and texts
		return l.say(separator + "\n  " + string(text))
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
	if l.rows == 0 {
		return l.say("[]\n")
	}
	return l.say("\n]\n")
}

// petSet changes what the flags say, and leaves the rest.
func petSet(ctx context.Context, cmd *invocation) error {
	var category any // NULL
	if cmd.given("category") {
		category = cmd.category
	}
	change := setPet(cmd.id, cmd.name, category, PetStatus(cmd.status))
	return cmd.editPet(ctx, change, "pet changed")
}

// setPet is the statement that changes a pet, but not what is empty. The category is an int64, or
// nil.
func setPet(id int64, name string, category any, status PetStatus) statement {
	return sqlOf(`UPDATE pets SET
		name = ifnull(nullif(? ->> '$', ''), name),
		category_id = ifnull(?, category_id),
		status = ifnull(nullif(?, 0), status)
		WHERE id = ?`, quote(name), category, storedStatus[status], id)
}

func petDelete(ctx context.Context, cmd *invocation) error {
	change := sqlOf("DELETE FROM pets WHERE id = ?", cmd.id)
	return cmd.editPet(ctx, change, "pet deleted")
}

// editPet changes the pet that the argument names, and logs what it did.
func (c *invocation) editPet(ctx context.Context, change statement, message string) error {
	results, err := c.store.edit(ctx, change)
	if err != nil {
		return err
	}
	if results[0].affected == 0 {
		return c.unknownID()
	}
	c.log.Info(message, c.changes()...)
	return nil
}

// version names the build and its Go.
func version() string { return "petstore " + build() + " " + runtime.Version() }
