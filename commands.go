package main

// The command line: the table of commands, their help, and how a command reads its flags, logs, and
// opens its database. What they do is in commands_keys.go, commands_pets.go and backup.go. The
// service is in main.go.

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// command is an entry of the table of commands.
type command struct {
	name     string
	about    string   // for help: what it does in one line, then more, and an example
	argument string   // such as FILE or ID, or "" if it takes none
	optional bool     // the argument may be left out
	repeated bool     // the argument may be given several times
	idOf     string   // "key" or "pet" if the argument is the id of one, otherwise ""
	database openMode // openExisting unless it is set
	// onlyDatabase says that only -db has a variable. The other flags say what to change, or which
	// pets to export, or confirm a danger, and a variable could do that by mistake.
	onlyDatabase bool

	flags func(cmd *invocation)       // declares those beside -db, or nil
	check func(cmd *invocation) error // of the flags together, or nil
	run   func(ctx context.Context, cmd *invocation) error
}

// commands are in the order that help shows.
var commands = []command{
	{
		name: "serve",
		about: `serve the API, until SIGINT, SIGTERM or SIGHUP

It finishes the requests that are running, for at most 10 seconds. A database
without any key gets one at the first start, which is printed once.

Example: petstore -addr :8080 -db /var/lib/petstore/petstore.db`,
		// serve opens the database itself, after its sockets. Its run is nil: runCommand sets it.
		database: openNothing, flags: serveFlags, check: checkServe,
	},
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
needs attention. Below a key that was rotated stand its successors, indented.

Example: petstore key list`,
		database: openToRead, flags: showFlags, run: keyList,
	},
	{
		name: "key show", argument: "ID", idOf: "key",
		about: `show one key

With -json it also tells when the key was made and used last, and which keys it
was rotated from and into. Keys that were rotated into one another share their
usage, their limits and the time of last use.

Example: petstore key show -json 7`,
		database: openToRead, flags: showFlags, run: keyShow,
	},
	{
		name: "key usage", argument: "ID", optional: true, idOf: "key",
		about: `show who used the service, and how much

Without an ID it shows all keys, those with the most requests admitted first;
with an ID, each day of that key, in UTC. Refused are responses of 429, errors
those of 5xx. A key and those that it was rotated from are one. What services
have counted in the last second may be missing. Days without requests are left
out.

Example: petstore key usage -days 90 7`,
		database: openToRead, flags: usageFlags, run: keyUsage,
	},
	{
		name: "key set", argument: "ID", idOf: "key",
		about: `change the plan, the limits, the name or the expiry

Services follow within a second. What the key has used already counts. One
limit of an enterprise key can be changed alone. A revoked key stays as it is.

Example: petstore key set -plan enterprise -per-minute 5000 -per-day 2000000 7`,
		onlyDatabase: true, flags: keyFlags, check: checkChange, run: keySet,
	},
	{
		name: "key rotate", argument: "ID", idOf: "key",
		about: `make a successor; the old key ends later

The successor has the same plan, limits and lifetime, and shares the usage of
the old key. It is printed once, alone on stdout.

Example: petstore key rotate -overlap 7d 7`,
		flags: rotateFlags, run: keyRotate,
	},
	{
		name: "key revoke", argument: "ID", idOf: "key",
		about: `end a key for good

Services follow within a second. There is no way back.

Example: petstore key revoke 7`,
		run: keyRevoke,
	},
	{
		name: "key unban", argument: "ID", idOf: "key",
		about: `lift a ban

The ban ends for all keys that share the usage. Services follow within a
second.

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
again, and one that has ended is refused. At the end it says which ids it gave,
as runs: those between two runs belong to pets of clients. One that is refused
prints all of them on stdout, a run a line.

With -keep-ids the pets come back under the ids of their lines, which were given
before, and which no other pet has. What is there already is passed over.

Example: petstore pet import pets.jsonl`,
		onlyDatabase: true, flags: importFlags, run: petImport,
	},
	{
		name: "pet export", argument: "FILE", optional: true,
		about: `write pets to a file or stdout, one JSON object a line

The pets of a database file are as they were at one moment. Those of a cluster
are read 1,000 at a time, each as it was at some moment of the export. FILE
must not exist, and gets its name when it is whole; a FILE of - is stdout, too.
What is damaged is left out: the command names the ids, and exits with 1.

Example: petstore pet export -status sold sold.jsonl`,
		database: openToRead, onlyDatabase: true, flags: statusFlag, run: petExport,
	},
	{
		name: "pet show", argument: "ID", idOf: "pet",
		about: `show a pet as the API does

Example: petstore pet show 7`,
		database: openToRead, run: petShow,
	},
	{
		name: "pet set", argument: "ID", idOf: "pet",
		about: `change the name, the category or the status of a pet

Services follow within a second.

Example: petstore pet set -status sold 7`,
		onlyDatabase: true, flags: petSetFlags, check: checkChange, run: petSet,
	},
	{
		name: "pet delete", argument: "ID", repeated: true,
		about: `delete pets, all that are named or none

First it prints them on stdout, as pet export does: keep that, and pet import
-keep-ids brings them back. If something is edited meanwhile, it deletes none.
An ID of - reads the ids from stdin, one a line. Services follow within a
second. No other pet gets the ids.

Example: petstore pet delete 7 8 9 > deleted.jsonl`,
		run: petDelete,
	},
	{
		name: "backup", argument: "FILE",
		about: `copy the database while it is in use

FILE must not exist. The copy is written as FILE.partial, read in full as a
check, and only then given its name. A copy serves as it is, or can be restored.

Example: petstore backup petstore-2026-11-22.db`,
		database: openToCopy, onlyDatabase: true, flags: copyFlags, run: backup,
	},
	{
		name: "restore", argument: "COPY",
		about: `put a copy in the database's place

No service may run on the database meanwhile. What a database file held is kept
in another copy, whose name is printed on stderr. A restore that is stopped may
leave that one behind. All that was stored since COPY was made is undone, pets
and keys alike. New ids start above all that the database has ever given. A
restore needs free space: up to three times the size of the database or of COPY,
whichever is larger. A cluster must never have held a pet or a key.

Example: petstore restore petstore-2026-11-22.db`,
		database: openNothing, onlyDatabase: true, flags: copyFlags, run: restore,
	},
}

// runCommand runs the command that args begin with, or without a command serve.
func runCommand(ctx context.Context, args []string, p *process,
	serve func(context.Context, *invocation) error) error {
	if len(args) == 0 {
		args = []string{"serve"}
	}
	asksForHelp := args[0] == "help"
	if asksForHelp {
		args = args[1:]
	}
	if len(args) == 0 || isHelp(args[0]) {
		return p.say(overview())
	}
	switch args[0] {
	case "version", "-version", "--version":
		return p.say(version() + "\n")
	}
	if strings.HasPrefix(args[0], "-") {
		args = append([]string{"serve"}, args...)
	}
	for _, entry := range commands {
		// The name of a command, such as "key set", has one word more than it has spaces.
		words := min(len(args), 1+strings.Count(entry.name, " "))
		if strings.Join(args[:words], " ") != entry.name {
			continue
		}
		if asksForHelp {
			return p.say(entry.help(entry.newInvocation(p)))
		}
		if entry.run == nil {
			entry.run = serve
		}
		return entry.invoke(ctx, args[words:], p)
	}
	group := groupOf(args[0])
	if group == nil {
		return usageErrorf("no command %q; petstore help lists all", args[0])
	}
	if len(args) == 1 || isHelp(args[1]) {
		return p.say(summaries(group) + "\npetstore help COMMAND explains a command.\n")
	}
	var names []string
	for _, entry := range group {
		names = append(names, entry.name)
	}
	asked := strings.Join(args[:2], " ")
	return usageErrorf("no command %q; there are %s", asked, strings.Join(names, ", "))
}

func isHelp(arg string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, arg) }

// overview is what petstore help prints.
func overview() string {
	return "A pet store: an API over HTTP with keys and limits, and its database.\n\n" +
		summaries(commands) + `  petstore version      say which build this is

Without a command it serves. petstore help serve shows the flags of the service,
and petstore help COMMAND, or -h after a command, explains that command.
`
}

// summaries are a line for each command.
func summaries(commands []command) (lines string) {
	for _, entry := range commands {
		summary, _, _ := strings.Cut(entry.about, "\n")
		lines += fmt.Sprintf("  petstore %-12s %s\n", entry.name, summary)
	}
	return lines
}

// version names the build and its Go.
func version() string { return "petstore " + build() + " " + runtime.Version() }

// groupOf are the commands whose names begin with a word, such as key.
func groupOf(word string) (group []command) {
	for _, entry := range commands {
		if strings.HasPrefix(entry.name, word+" ") {
			group = append(group, entry)
		}
	}
	return group
}

// invoke reads the flags of a command, and runs it.
func (entry *command) invoke(ctx context.Context, args []string, p *process) error {
	cmd := entry.newInvocation(p)
	err := entry.parse(cmd, args)
	if errors.Is(err, flag.ErrHelp) {
		return p.say(entry.help(cmd))
	}
	if err == nil {
		err = entry.readEnvironment(cmd)
	}
	if err == nil {
		err = cmd.dbError
	}
	if err == nil && entry.check != nil {
		err = entry.check(cmd)
	}
	if err != nil {
		return usageErrorf("%w; see petstore %s -h", err, entry.name)
	}
	cmd.log = newLogger(p.stderr, cmd.logFormat, cmd.logLevel)
	if entry.name != "serve" { // which has a log of its own
		cmd.warnOfUnknownVariables()
	}
	err = entry.runUntilStopped(ctx, cmd)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("stopped by a signal: %w", err)
	}
	return err
}

// newInvocation is a run of the command, with its flags declared.
func (entry *command) newInvocation(p *process) *invocation {
	cmd := &invocation{
		process: p,
		FlagSet: flag.NewFlagSet(entry.name, flag.ContinueOnError),
		idOf:    entry.idOf,
		texts:   map[string]string{},
		now:     instantOf(time.Now()),
		started: make(chan struct{}),
	}
	cmd.SetOutput(io.Discard) // main reports errors
	databaseFlag(cmd)
	if entry.flags != nil {
		entry.flags(cmd)
	}
	return cmd
}

// parse reads the flags and the argument, in any order: petstore key set 5 -name x.
func (entry *command) parse(cmd *invocation, args []string) error {
	if err := cmd.Parse(args); err != nil {
		return err
	}
	mayFollow := entry.argument != ""
	for mayFollow && cmd.NArg() > 0 {
		cmd.arguments = append(cmd.arguments, cmd.Arg(0))
		// Flags may follow it.
		if err := cmd.Parse(cmd.Args()[1:]); err != nil {
			return err
		}
		mayFollow = entry.repeated
	}
	cmd.argument = strings.Join(cmd.arguments, " ")
	if cmd.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", cmd.Arg(0))
	}
	needed := entry.argument != "" && !entry.optional
	if needed && cmd.argument == "" {
		return fmt.Errorf("%s needs %s", entry.name, entry.argument)
	}
	return nil
}

// help explains a command and its flags.
func (entry *command) help(cmd *invocation) string {
	argument := entry.argument
	if entry.optional {
		argument = "[" + argument + "]"
	}
	if entry.repeated {
		argument += "..."
	}
	usage := strings.TrimSpace("petstore " + entry.name + " [flags] " + argument)
	var flags strings.Builder
	cmd.SetOutput(&flags)
	cmd.PrintDefaults()
	variables := "Each flag has a variable in the environment: -db has PETSTORE_DB."
	if entry.onlyDatabase {
		variables = "Only -db has a variable in the environment, PETSTORE_DB."
	}
	return fmt.Sprintf(`%s

%s

%s
%s The flag wins.

Exit status: 0 when it is done, 1 if something failed, 2 for a mistake on the
command line or in the environment. stderr says why, in one line.
`, usage, entry.about, &flags, variables)
}

// readEnvironment sets those flags that the command line does not give and the environment does. An
// empty variable does not count.
func (entry *command) readEnvironment(cmd *invocation) (err error) {
	cmd.VisitAll(func(f *flag.Flag) {
		name := variableOf(f.Name)
		value := cmd.environ[name]
		hasNoVariable := entry.onlyDatabase && f.Name != "db"
		if value == "" || hasNoVariable || cmd.given(f.Name) || err != nil {
			return
		}
		problem := cmd.Set(f.Name, value)
		if problem != nil && isQuoted(value) {
			problem = errors.New("it must stand without the quotes")
		}
		if problem != nil {
			err = fmt.Errorf("invalid value %q for %s: %w", value, name, problem)
		}
	})
	return err
}

// variableOf is the name of a flag's variable: -base-url is PETSTORE_BASE_URL.
func variableOf(flag string) string {
	return "PETSTORE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// newLogger writes to stderr. If the format is auto, or "" as in a command without -log, it writes
// text on a terminal, and JSON elsewhere.
func newLogger(stderr io.Writer, format string, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	redacted := redactor{Writer: stderr}
	isText := format == "text"
	if !isText && format != "json" {
		isText = isTerminal(stderr)
	}
	if isText {
		return slog.New(slog.NewTextHandler(redacted, options))
	}
	return slog.New(slog.NewJSONHandler(redacted, options))
}

// redactor redacts all that is written to a log. Not all of its lines are ours: net/http quotes
// requests that it cannot read.
type redactor struct{ io.Writer }

func (w redactor) Write(p []byte) (int, error) {
	_, err := io.WriteString(w.Writer, redact(string(p)))
	return len(p), err
}

// logQueue stands between the service and its log, so that no request, task or stop waits for
// whoever reads stderr. A line that does not fit is counted, and dropped.
type logQueue struct {
	out     io.Writer
	dropped atomic.Int64  // lines
	ended   chan struct{} // closed when nothing more is written

	mu      sync.Mutex // guards what follows
	changed sync.Cond  // a line has come, or the last one
	lines   [][]byte
	size    int // bytes of the lines, and of the one that is being written
	closed  bool
}

const maxLogQueue = 1 << 20 // bytes

func newLogQueue(out io.Writer) *logQueue {
	q := &logQueue{out: out, ended: make(chan struct{})}
	q.changed.L = &q.mu
	return q
}

// Write takes a line.
func (q *logQueue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.size+len(line) <= maxLogQueue {
		q.size += len(line)
		q.lines = append(q.lines, bytes.Clone(line))
		q.changed.Signal()
	} else {
		q.dropped.Add(1)
	}
	return len(line), nil
}

// run writes the lines until the queue is closed and empty. When it can write again after lines
// were dropped, it says how many, in a log that does not go through the queue.
func (q *logQueue) run(direct *slog.Logger) {
	defer close(q.ended)
	q.mu.Lock()
	defer q.mu.Unlock()
	told := int64(0)
	for {
		for len(q.lines) == 0 {
			if q.closed {
				return
			}
			q.changed.Wait()
		}
		line := q.lines[0]
		q.lines[0] = nil // the array behind the slice lives on
		q.lines = q.lines[1:]
		q.mu.Unlock()
		_, _ = q.out.Write(line) // of an error, nobody could be told
		if dropped := q.dropped.Load(); dropped > told {
			direct.Warn("lines of the log were dropped, since nobody read stderr",
				"lines", dropped-told)
			told = dropped
		}
		q.mu.Lock()
		q.size -= len(line)
	}
}

// close returns when all is written, or after half a second.
func (q *logQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.changed.Signal()
	select {
	case <-q.ended:
	case <-time.After(500 * time.Millisecond):
	}
}

// warnOfUnknownVariables logs the variables that look like ours and that no command has. They are
// probably mistakes. They may also be a newer version's, so they stop nobody.
func (c *invocation) warnOfUnknownVariables() {
	known := map[string]bool{}
	for _, entry := range commands {
		if entry.onlyDatabase {
			continue // the others have -db too
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

// stopWait is how long a command has to end by itself after a signal. It promises half a second.
const stopWait = 450 * time.Millisecond

var errLeftBehind = errors.New("what it did could not be interrupted, and ends with the process " +
	"as at a kill; whether its last change was made is unknown")

// runUntilStopped runs the command. After a signal, most of what it does ends at once, but the
// driver cannot interrupt the search for a query's second row, nor the system a sync. So what has
// not ended after stopWait is left behind. A service that has started has its own ways to stop, and
// a first key that it does not get to show has to be taken back: that is waited for.
func (entry *command) runUntilStopped(ctx context.Context, cmd *invocation) error {
	ended := make(chan error, 1)
	go func() { ended <- entry.openAndRun(ctx, cmd) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-cmd.started:
		return <-ended
	case <-time.After(stopWait):
	}
	if entry.name == "serve" { // to stop a service that starts is no failure
		return nil
	}
	return errLeftBehind
}

// openAndRun opens the database, reads the ID that the argument may be, and runs the command.
func (entry *command) openAndRun(ctx context.Context, cmd *invocation) error {
	// serve opens its database later. What restore replaces may be of a newer petstore, which
	// openStore refuses.
	if entry.database != openNothing {
		store, err := openStore(ctx, cmd.db, entry.database, cmd.log)
		if err != nil {
			return err
		}
		defer store.Close()
		cmd.store = store
	}
	if entry.idOf != "" && cmd.argument != "" {
		if err := cmd.readID(ctx); err != nil {
			return err
		}
	}
	return entry.run(ctx, cmd)
}

// openStore opens the database that -db names.
func openStore(ctx context.Context, db string, mode openMode, log *slog.Logger) (*store, error) {
	e, err := openEngine(ctx, db, mode, log)
	if err != nil {
		name := databaseName(db)
		return nil, fmt.Errorf("cannot open the database %s: %w", name, err)
	}
	return storeOn(e), nil
}

// openEngine opens a file or a cluster for openStore.
func openEngine(ctx context.Context, db string, mode openMode, log *slog.Logger) (
	e engine, err error) {
	if isCluster(db) {
		e, err = openRqlite(ctx, nodeURLs(db), mode, log)
	} else {
		e, err = openSQLite(ctx, db, mode, log)
	}
	if err != nil {
		return nil, err
	}
	isMade, err := prepareSchema(ctx, e, mode)
	if err == nil {
		err = e.bind(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if isMade {
		log.Info(databaseMade, "database", databaseName(db))
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
	if c.idOf != "key" {
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
