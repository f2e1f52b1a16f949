package main

// Tests of the command line: which command runs, what help says, what mistakes are told, and what
// the log looks like.

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sqlite3 "modernc.org/sqlite/lib"
)

func commandNamed(name string) *command {
	isNamed := func(entry command) bool {
		return entry.name == name
	}
	return &commands[slices.IndexFunc(commands, isNamed)]
}

// mustSay runs a command on a database, which must succeed and log the words. It returns what is
// printed.
func mustSay(t testing.TB, db, line string, words ...string) (out string) {
	t.Helper()
	env := map[string]string{"PETSTORE_DB": db}
	out, log, err := petstore(t, env, strings.Fields(line)...)
	must(t, err)
	for _, word := range words {
		wantPart(t, log, word, "the log of petstore ", line)
	}
	return out
}

// mustFail runs a command on a database, which must fail in one line with the words, and print
// nothing else.
func mustFail(t testing.TB, db, line string, isUsage bool, words ...string) {
	t.Helper()
	env := map[string]string{"PETSTORE_DB": db}
	out, log, err := petstore(t, env, strings.Fields(line)...)
	wantOneLine(t, err, isUsage, words...)
	wantEqual(t, out+log, "", "what petstore ", line, " prints and logs beside the error")
}

// mustFailToPrint runs a command whose stdout takes nothing. It must fail in one line with the
// words, and log nothing.
func mustFailToPrint(t testing.TB, db, line string, words ...string) {
	t.Helper()
	var log bytes.Buffer
	args := strings.Fields(line + " -db " + db)
	err := run(t.Context(), args, nil, nil, fullDisk{}, &log)
	wantOneLine(t, err, false, append(words, "no space left on device")...)
	wantEqual(t, log.String(), "", "the log of petstore ", line)
}

// mistakes are lines of commands, and what is said of them. With db in a line the database is
// named, which is missing.
const mistakes = `
Which command is it?
	start => no command "start"; petstore help lists all
	help me => no command "me"; petstore help lists all
	Key create => no command "Key"; petstore help lists all
	key make => no command "key make"; there are KEYS
	key lst => no command "key lst"; there are KEYS
	pet -db x => no command "pet -db"; there are PETS
	help pet me => no command "pet me"; there are PETS

	help pet -db => no command "pet -db"; there are PETS

Is the argument there?
	-db db now => unexpected argument "now"; see petstore serve -h
	backup -db db => backup needs FILE; see petstore backup -h
	restore -db db => restore needs COPY; see petstore restore -h
	pet import -db db => pet import needs FILE; see petstore pet import -h
	pet export -db db a b => unexpected argument "b"; see petstore pet export -h
	pet delete -db db => pet delete needs ID; see petstore pet delete -h
	pet set -status sold => pet set needs ID; see petstore pet set -h
	key create two => unexpected argument "two"; see petstore key create -h
	key show => key show needs ID; see petstore key show -h
	key usage 1 2 => unexpected argument "2"; see petstore key usage -h
	key set -name x => key set needs ID; see petstore key set -h
	key set -db db 1 -name x 2 => unexpected argument "2"; see petstore key set -h
	key rotate => key rotate needs ID; see petstore key rotate -h
	key revoke => key revoke needs ID; see petstore key revoke -h
	key unban => key unban needs ID; see petstore key unban -h

Does the command have this flag?
	-port 80 => -port; see petstore serve -h
	-db => flag needs an argument: -db; see petstore serve -h
	backup -addr localhost:1 a => -addr; see petstore backup -h
	restore -skip 1 a => -skip; see petstore restore -h
	key list -plan pro => -plan; see petstore key list -h
	key show 1 -jso => -jso; see petstore key show -h
	key set 1 -name => flag needs an argument: -name; see petstore key set -h
	key rotate 1 -overlap 1w => -overlap: it must be a number of d, h, m or s
	key revoke 1 -name x => -name; see petstore key revoke -h
	key usage -days 0 => -days: it must be a number from 1 to 400
	key usage -days 401 => -days: it must be a number from 1 to 400
	key usage -days 1d => -days: it must be a number from 1 to 400
	key usage -days 0b1 => -days: it must be a number from 1 to 400
	restore -skip-ids -1 a => -skip-ids: it must be a number from 0 to 999999999999999
	restore -skip-ids 0o7 a => -skip-ids: it must be a number from 0 to 999999999999999
	backup -skip-ids 1e3 a => -skip-ids: it must be a number from 0 to 999999999999999
	pet export -db db -status x => -status: it must be available, pending or sold
	pet set -status= 1 => -status: it must be available, pending or sold
	pet set -status Sold 1 => -status: it must be available, pending or sold
	pet set -category= 1 => -category: it must be a number from -9223372036854775808
	pet set -category 1.5 1 => -category: it must be a number from
	pet set -category 1_0 1 => -category: it must be a number from
	key create -plan gold => -plan: it must be one of
	key create -plan Free => -plan: it must be one of
	key set -plan= 1 => -plan: it must be one of
	key set -per-minute 0x10 1 => -per-minute: it must be a number from 1 to 999999999999999
	key set -per-minute 0 1 => -per-minute: it must be a number from 1 to 999999999999999
	key set -per-day 1_000 1 => -per-day: it must be a number from 1 to 999999999999999
	key set -per-day -1 1 => -per-day: it must be a number from 1 to 999999999999999
	key create -per-day x => -per-day: it must be a number from 1 to 999999999999999
	key set -per-day 1000000000000000 => -per-day: it must be a number from 1 to 999999999999999
	-db= => -db: it must be a file, or addresses like http://

Do the flags go together?
	-db db -tls-cert a.pem => -tls-cert and -tls-key go together; see
	-db db -tls-key a.key => -tls-cert and -tls-key go together; see
	-db db -debug-addr :6060 => :6060 can be reached from other machines
	-db db -debug-addr 10.0.0.1:60 => 10.0.0.1:60 can be reached
	-db db -debug-addr example.com:60 => say 127.0.0.1, or add -debug-allow-remote
	pet set -db db 1 => pet set needs a flag that says what to
	key set -db db 1 => key set needs a flag that says what to
	key create -plan enterprise => needs -per-minute and -per-day; see
	key create -plan pro -per-day 5 => -per-minute and -per-day go with -plan enterprise only; see
	key create -per-minute 5 => -per-minute and -per-day go with -plan enterprise only; see
	key create -plan enterprise -per-minute 5 => needs -per-minute and -per-day; see
	key create -plan enterprise -per-day 5 => needs -per-minute and -per-day; see
`

func TestAMistakeIsOneLineThatSaysWhatIsWrong(t *testing.T) {
	db := databasePath(t)
	names := strings.NewReplacer("-db db", "-db "+db,
		"PETS", "pet import, pet export, pet show, pet set, pet delete",
		"KEYS", "key create, key list, key show, key usage, key set, key rotate, key revoke, "+
			"key unban")
	for line, want := range rowsOf(t, names.Replace(mistakes)) {
		mustFail(t, "", line, true, want)
		wantMissing(t, db)
	}
}

// An empty name is more often an unset variable of a script than a wish.
func TestANameIsCheckedAsThatOfAPet(t *testing.T) {
	const ofPets, ofKeys = "key create, key set 1, pet set 1", "key create, key set 1"
	for _, c := range []struct{ name, commands, want string }{
		{"", ofPets, "it must not be blank"},
		{" ", ofPets, "it must not be blank"},
		{"\x07", ofPets, "it must not hold"},
		{"Z\xfcrich", ofPets, "it must be valid UTF-8"},
		{strings.Repeat("x", 201), ofPets, "it must have at most 200 characters"},
		{"shop \u202efront", ofKeys, "direction"},
		{"\u2066shop\u2069", ofKeys, "direction"},
	} {
		for command := range strings.SplitSeq(c.commands, ", ") {
			_, _, err := petstore(t, nil, append(strings.Fields(command), "-name", c.name)...)
			wantOneLine(t, err, true, "-name", c.want)
		}
	}
}

// helpOf is what a command for help prints. Help needs no sound environment.
func helpOf(t *testing.T, line string) string {
	t.Helper()
	broken := map[string]string{"PETSTORE_LOG": "no such format"}
	out, log, err := petstore(t, broken, strings.Fields(line)...)
	if err != nil || log != "" || out == "" {
		t.Fatalf("petstore %s: %q, %v", line, log, err)
	}
	for row := range strings.Lines(out) {
		if len(row) > 91 {
			t.Errorf("petstore %s: too long for a terminal: %s", line, row)
		}
	}
	return out
}

func TestHelpNamesEveryCommand(t *testing.T) {
	overview := helpOf(t, "help")
	for _, entry := range commands {
		row := `(?m)^  petstore ` + entry.name + ` +[a-z]\S+ `
		wantMatch(t, overview, row, "help")
	}
	wantPart(t, overview, "petstore help serve shows the flags of the service", "help")
	for _, line := range []string{"-h", "-help", "--help", "help -h", "-h -db x"} {
		wantEqual(t, helpOf(t, line), overview, "what petstore ", line, " says")
	}
	for line, command := range map[string]string{ // nothing is done
		"help -db x":        "serve",
		"help key list -db": "key list",
		"help key set 5":    "key set",
	} {
		wantEqual(t, helpOf(t, line), helpOf(t, command+" -h"), "what petstore ", line, " says")
	}
	for group, others := range map[string]string{"key": "pet delete", "pet": "key create"} {
		help := helpOf(t, group)
		for _, line := range []string{group + " -h", group + " --help", "help " + group} {
			wantEqual(t, helpOf(t, line), help, "what petstore ", line, " says")
		}
		wantCount(t, help, others, 0, "petstore ", group)
		for _, entry := range groupOf(group) {
			wantPart(t, help, "  petstore "+entry.name+" ", "petstore ", group)
		}
	}
}

func TestHelpExplainsEveryCommandAndItsFlags(t *testing.T) {
	for _, entry := range commands {
		text := helpOf(t, "help "+entry.name)
		for _, flag := range []string{" -h", " -help", " --help"} {
			wantEqual(t, helpOf(t, entry.name+flag),
				text, "what petstore ", entry.name, flag, " says")
		}
		variables := "Each flag has a variable"
		if entry.onlyDatabase {
			variables = "Only -db has a variable"
		}
		argument := entry.argument
		if entry.optional {
			argument = "[" + argument + "]"
		}
		if entry.repeated {
			argument += "..."
		}
		usage := strings.TrimSpace("petstore " + entry.name + " [flags] " + argument)
		for _, part := range []string{usage + "\n\n", entry.about, variables, "\nExit status: "} {
			wantPart(t, text, part, "help of ", entry.name)
		}
		cmd := entry.newInvocation(&process{})
		cmd.VisitAll(func(f *flag.Flag) {
			value, meaning := flag.UnquoteUsage(f)
			if f.DefValue != "" && f.DefValue != "false" {
				meaning += " (default " + f.DefValue + ")"
			}
			explained := strings.TrimRight("  -"+f.Name+" "+value, " ") + "\n    \t" +
				strings.ReplaceAll(meaning, "\n", "\n    \t") + "\n"
			if !strings.Contains(text, explained) || value == "value" {
				t.Errorf("help of %s does not explain\n%s", entry.name, explained)
			}
		})
		name := strings.TrimSuffix("petstore "+entry.name, " serve")
		_, example, found := strings.Cut(entry.about, "\nExample: "+name)
		example = strings.ReplaceAll(example, `"shop front"`, "shop")
		if err := entry.parse(cmd, strings.Fields(example)); !found || err != nil {
			t.Errorf("the example of %s cannot be run: %v", entry.name, err)
		}
	}
}

func TestFlagsMayStandBeforeAndAfterTheArgument(t *testing.T) {
	for line, want := range rowsOf(t, `
		-overlap 1h 7 => 7, overlap 1h0m0s
		7 -overlap 1h => 7, overlap 1h0m0s
		-db a 7 -overlap=0 => 7, overlap 0s
		-overlap 1h -- 7 => 7, overlap 1h0m0s
		7 -overlap 1h -- => 7, overlap 1h0m0s
		-- -overlap => -overlap, overlap 24h0m0s
		- => -, overlap 24h0m0s`) {
		cmd, err := parseCommand("key rotate", strings.Fields(line))
		must(t, err)
		wantEqual(t, fmt.Sprintf("%s, overlap %s", cmd.argument, cmd.overlap),
			want, "what is read of ", line)
	}
}

func TestVersionNamesTheBuild(t *testing.T) {
	form := `^petstore \S.* ` + runtime.Version() + `.*\n$`
	for _, line := range []string{"version", "-version", "--version"} {
		wantMatch(t, mustSay(t, "", line), form, "petstore ", line)
	}
}

func TestCommandsOtherThanCreateMakeNoDatabase(t *testing.T) {
	db := databasePath(t)
	for line := range strings.SplitSeq("key list, key show 1, key set -plan pro 1, key rotate 1, "+
		"key revoke 1, key unban 1, key usage, key usage 1, pet delete 1, pet show 1, pet export",
		", ") {
		mustFail(t, db, line, false, db)
	}
	wantMissing(t, db)
}

func TestAnUnknownIDIsAnErrorButNoMistakeOfUsage(t *testing.T) {
	db := madeDatabase(t)
	mustCreate(t, openDatabase(t, db), rex)
	for line := range strings.SplitSeq("key show, key show -json, key set -plan pro, key rotate, "+
		"key revoke, key unban, key usage, key usage -json, pet show, pet set -status sold, "+
		"pet delete", ", ") {
		for id := range strings.FieldsSeq("2 0 -1 01 +1 1.0 1e0 abc 9223372036854775808") {
			mustFail(t, db, line+" -- "+id, false, "no "+line[:3]+" has the id "+id)
		}
	}
}

func TestTheLogHasTheFormatAndTheLevelAskedFor(t *testing.T) {
	for set, want := range rowsOf(t, `
		text INFO => ^time=\S+ level=INFO msg=hello key=pet_…\n.* msg=careful\n$
		json INFO => ^\{"time":".*","level":"INFO","msg":"hello","key":"pet_…"\}\n
		auto INFO => ^\{"time":".*","level":"INFO","msg":"hello","key":"pet_…"\}\n
		text DEBUG => (?s)^time=\S+ level=DEBUG msg=details\n.*INFO.*WARN
		text WARN => ^time=\S+ level=WARN msg=careful\n$
		text ERROR => ^$`) {
		format, name, _ := strings.Cut(set, " ")
		var level slog.Level
		must(t, level.UnmarshalText([]byte(name)))
		var out bytes.Buffer
		log := newLogger(&out, format, level)
		log.Debug("details")
		log.Info("hello", "key", "pet_live_secret") // which no format may show
		log.Warn("careful")
		wantMatch(t, out.String(), want, "the log with ", set)
	}
}

// TestNobodyWaitsForWhoeverReadsTheLog: 1 MiB of lines waits for the reader, in their order. What
// comes then is counted, and told when the reader goes on. The end waits half a second for that.
func TestNobodyWaitsForWhoeverReadsTheLog(t *testing.T) {
	for _, goesOn := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			out := &unreadLog{read: make(chan bool)}
			q := newLogQueue(out)
			go q.run(newLogger(out, "json", slog.LevelInfo))
			began := time.Now()
			var want strings.Builder
			for i := range maxLogQueue/1024 + 7 {
				line := fmt.Sprintf("%01023d\n", i)
				must(t, errorOf(io.WriteString(q, line)))
				if i < maxLogQueue/1024 {
					want.WriteString(line)
				}
			}
			wantEqual(t, q.dropped.Load(), 7, "the number of lines that are dropped")
			if !goesOn {
				q.close()
				wantEqual(t, time.Since(began), time.Second/2, "the time that the end waits")
			}
			close(out.read)
			q.close()
			<-q.ended
			if goesOn {
				wantEqual(t, time.Since(began), 0, "the time that all of it takes")
			}
			told := regexp.MustCompile(`(?m)^.*"level":"WARN".*"lines":7}\n`)
			wantEqual(t, len(told.FindAllString(out.String(), -1)), 1, "lines that tell of it")
			wantEqual(t, told.ReplaceAllString(out.String(), ""), want.String(), "the log")
		})
	}
}

func TestTheLogIsTextOnATerminalOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	writeText(t, file, "")
	const device = os.DevNull // a character device, as a terminal is
	for set, want := range rowsOf(t, `
		auto > FILE => *slog.JSONHandler
		> FILE => *slog.JSONHandler
		auto > DEVICE => *slog.TextHandler
		> DEVICE => *slog.TextHandler
		json > DEVICE => *slog.JSONHandler`) {
		format, place, _ := strings.Cut(set, "> ")
		path := strings.NewReplacer("FILE", file, "DEVICE", device).Replace(place)
		stderr, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		log := newLogger(stderr, strings.TrimSpace(format), slog.LevelInfo)
		wantEqual(t, fmt.Sprintf("%T", log.Handler()), want, "the handler of ", set)
		must(t, stderr.Close())
	}
}

// TestACommandMayBeKilledBetweenTwoRequests to a cluster: from one of them on, none arrives. What
// it was to change is changed as a whole or not at all, and a second run changes it, or says that
// this is done.
func TestACommandMayBeKilledBetweenTwoRequests(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	pets := filepath.Join(t.TempDir(), "pets.jsonl")
	line := `{"name":"Ada","categoryId":1}` + "\n"
	writeText(t, pets, line+line+line)
	file := madeDatabase(t)
	s := openDatabase(t, file)
	mustCreate(t, s, rex)
	mustWrite(t, s, saveUsage(1, &usage{bannedAt: 1, bannedUntil: 9000000000000}))
	must(t, s.Close())
	words := strings.NewReplacer(
		"PETS", pets,
		"NONE", "SELECT 0",
		"MORE", "SELECT count(*) - 1 FROM api_keys",
		"NAMED", "SELECT name = 'x' FROM api_keys",
		"ENDING", "SELECT count(*) FROM api_keys WHERE expires_at > 0",
		"REVOKED", "SELECT revoked_at > 0 FROM api_keys",
		"LIFTED", "SELECT unbanned_at > 0 FROM api_keys",
		"PENDING", "SELECT status = 3 FROM pets",
		"DELETED", "SELECT count(*) = 0 FROM pets",
		"IMPORTED", "SELECT CASE count(*) WHEN 1 THEN 0 WHEN 4 THEN 1 ELSE 99 END FROM pets",
	)
	// A row has the command, a query for how often it was done, one for how many edits that is, and
	// what a second run says once it was done.
	for row, again := range rowsOf(t, words.Replace(`
		key create | MORE | NONE => key created
		key set -name x 1 | NAMED | NAMED => key changed
		key rotate 1 | MORE | ENDING => key rotated
		key revoke 1 | REVOKED | REVOKED => was revoked already
		key unban 1 | LIFTED | LIFTED => is not banned
		pet set -status pending 1 | PENDING | PENDING => pet changed
		pet delete 1 | DELETED | DELETED => no pet has the id 1
		pet import PETS | IMPORTED | NONE => was imported before`)) {
		cells := strings.Split(row, " | ")
		command, changedQuery, countedQuery := cells[0], cells[1], cells[2]
		for requests, isKilled := 0, true; isKilled && !t.Failed(); requests++ {
			c := newCluster(t, 1)
			hold(c, file)
			var said string
			isKilled, said = runUntilKilled(t, c, command, requests)
			changed := c.number(changedQuery)
			edits := c.number("SELECT value FROM counters WHERE name = 'edits'")
			isWhole := changed == 1 || changed == 0 && isKilled
			if !isWhole || edits != c.number(countedQuery) {
				t.Errorf("%s, killed after %d requests, has changed %d and counted %d edits: %s",
					command, requests, changed, edits, said)
			}
			_, said = runUntilKilled(t, c, command, 1000)
			if changed == 1 && !strings.Contains(said, again) {
				t.Errorf("%s, done before, says %s", command, said)
			}
			if c.number(changedQuery) == 0 {
				t.Errorf("%s, killed after %d requests, is not done by a second run: %s",
					command, requests, said)
			}
		}
	}
}

// runUntilKilled runs a command on a cluster, to which no more than so many of its requests come.
func runUntilKilled(t *testing.T, c *fakeCluster, command string, requests int) (
	isKilled bool, said string) {
	t.Helper()
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	c.when(func(*fakeNode, http.ResponseWriter, *http.Request) bool {
		requests--
		if requests < 0 {
			isKilled = true
			kill()
			panic(http.ErrAbortHandler)
		}
		return false
	})
	defer c.when(nil)
	args := slices.Insert(strings.Fields(command), 2, "-db", c.addresses())
	var out logBuffer
	err := run(ctx, args, nil, nil, &out, &out)
	return isKilled, fmt.Sprint(out.String(), err)
}

// TestAStopEndsAWriteInTheMiddle of its longest statement, and undoes its transaction. A trigger
// makes that statement one that never ends.
func TestAStopEndsAWriteInTheMiddle(t *testing.T) {
	takesSeconds(t)
	const deleted = `{"id":2,"name":"Tom","categoryId":1}`
	for _, line := range []string{
		"pet import " + petsFile(t, petLines(3)), "pet import -keep-ids " + petsFile(t, deleted),
		"pet set -name Max 1", "pet delete 1",
		"key create", "key set -name shop 1", "key rotate 1", "key revoke 1", "key unban 1",
	} {
		t.Run(line, func(t *testing.T) {
			db := madeDatabase(t)
			s := openDatabase(t, db)
			mustCreate(t, s, rex)
			mustWrite(t, s, sqlOf("UPDATE sqlite_sequence SET seq = 2 WHERE name = 'pets'"))
			later := instantOf(time.Now()) + minuteMillis
			mustWrite(t, s, saveUsage(1, &usage{bannedAt: 1, bannedUntil: later}))
			before := petsAndKeys(t, db)
			other := otherProgram(t, db, "PRAGMA busy_timeout(0)", endlessView)
			for _, event := range []string{
				"INSERT ON pets", "UPDATE ON pets", "DELETE ON pets", "INSERT ON api_keys",
				"UPDATE ON api_keys",
			} {
				must(t, errorOf(other.Exec("CREATE TRIGGER \""+event+"\" BEFORE "+event+
					" BEGIN SELECT count(*) FROM endless; END")))
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			var out bytes.Buffer
			go func() {
				args := strings.Fields(line + " -db " + db)
				ended <- run(ctx, args, nil, nil, &out, io.Discard)
			}()
			for len(ended) == 0 { // until it holds the lock
				if _, err := other.Exec("BEGIN IMMEDIATE"); isCode(err, sqlite3.SQLITE_BUSY) {
					break
				}
				must(t, errorOf(other.Exec("ROLLBACK")))
			}
			stop()
			err := <-ended
			wantOneLine(t, err, false, "stopped by a signal")
			if errors.Is(err, errLeftBehind) {
				t.Error("it was not interrupted")
			}
			wantEqual(t, petsAndKeys(t, db), before, "what is stored")
			if strings.HasPrefix(line, "key") { // no key is shown that is not stored
				wantEqual(t, out.String(), "", "what is printed")
			}
		})
	}
}

// endlessView makes a view whose rows never end.
const endlessView = `CREATE VIEW endless AS
	WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n) SELECT value FROM n`

// petsAndKeys are all pets and keys, as commands show them.
func petsAndKeys(t testing.TB, db string) string {
	t.Helper()
	return exportedPets(t, db) + mustSay(t, db, "key list -json")
}

// TestAStoppedWriteOnAClusterHasAnUnknownOutcome once it was sent, and says so.
func TestAStoppedWriteOnAClusterHasAnUnknownOutcome(t *testing.T) {
	for _, line := range []string{
		"pet import " + petsFile(t, petLines(3)), "pet set -name Max 1", "pet delete 1",
		"key create", "key set -name shop 1", "key rotate 1", "key revoke 1",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3)
			s, _ := openCluster(t, c, openOrMake)
			mustInsertKey(t, s, apiKey{})
			mustCreate(t, s, rex)
			ctx, stop := context.WithCancel(t.Context())
			c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
				if r.URL.RawQuery == "transaction" { // it writes
					_, _ = io.Copy(io.Discard, r.Body) // only then it learns that the client left
					stop()
					<-r.Context().Done()
					return true
				}
				return false
			})
			args := strings.Fields(line + " -db " + c.addresses())
			err := run(ctx, args, nil, nil, io.Discard, io.Discard)
			known := "whether it was stored is unknown"
			if line == "key create" || line == "key rotate 1" {
				known = "a key that was not shown may be stored"
			}
			wantOneLine(t, err, false, "stopped by a signal", known)
		})
	}
}

// TestAWriteThatWasNotSentHasAKnownOutcome on a cluster, too, when a stop came before it.
func TestAWriteThatWasNotSentHasAKnownOutcome(t *testing.T) {
	onStores(t, func(t *testing.T, s *store) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		err := errorOf(s.edit(ctx, setName(1, "x")))
		if !errors.Is(err, context.Canceled) || errors.Is(err, errOutcome) {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestWhatCannotBeInterruptedIsLeftBehind half a second after the signal.
func TestWhatCannotBeInterruptedIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan bool)
		entry := &command{
			name:     "hang",
			database: openNothing,
			run: func(context.Context, *invocation) error {
				<-hangs
				return nil
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, stop)
		start := time.Now()
		err := entry.invoke(ctx, nil, &process{stderr: io.Discard})
		wantOneLine(t, err, false, "stopped by a signal", "could not be interrupted")
		wantWithin(t, time.Since(start)-time.Minute, 0, time.Second/2, "the time to the end")
		close(hangs)
	})
}

// TestAStartThatCannotBeInterruptedIsLeftBehind, which is no failure. A service that has started
// ends by itself.
func TestAStartThatCannotBeInterruptedIsLeftBehind(t *testing.T) {
	const drains = 5 * time.Second
	for what, c := range map[string]struct {
		hasStarted bool
		least      time.Duration // until it ends
	}{
		"a start":   {false, 0},
		"a service": {true, drains},
	} {
		t.Run(what, bubble(func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(time.Minute, stop)
			start := time.Now()
			hangs := func(ctx context.Context, cmd *invocation) error {
				if c.hasStarted {
					close(cmd.started)
				}
				<-ctx.Done()
				time.Sleep(drains)
				return nil
			}
			must(t, runCommand(ctx, []string{"serve"}, &process{stderr: io.Discard}, hangs))
			took := time.Since(start) - time.Minute
			wantWithin(t, took, c.least, c.least+time.Second/2, "the time to the end")
			time.Sleep(drains)
		}))
	}
}
