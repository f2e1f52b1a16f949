package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// fileCalls are the system calls with which a process may change what is on the disk.
var fileCalls = []string{
	"open", "openat", "write", "pwrite64", "copy_file_range", "sendfile", "ftruncate", "fallocate",
	"fchmod", "fchmodat", "fchown", "fchownat", "fsync", "fdatasync", "link", "linkat",
	"rename", "renameat", "renameat2", "unlink", "unlinkat",
}

// operation is what changes a database, or makes one, and may be killed meanwhile.
type operation struct {
	name      string
	begin     func(t *testing.T, stock *scene) *scene // what it finds; nil: the stock
	args      func(sc *scene) []string
	meanwhile func(r *run) // what others do while it runs; nil: nothing
	only      string       // it is killed before calls whose names begin so; "": before all
	check     func(r *run) // what has to hold when it has ended, or was killed
}

// importedPets is how many pets the import adds, in three transactions.
const importedPets = 1200

// TestAKillAtAnyMomentLeavesNothingHalfDone kills each operation before the system calls that
// change a file, opens what is left, and lets the operation be done once more. .ci/run takes only
// some of the calls, evenly spread.
func TestAKillAtAnyMomentLeavesNothingHalfDone(t *testing.T) {
	t.Parallel()
	stock, pets := newScene(t), petFile(t, importedPets)
	operations := []operation{
		{
			name: "a service that creates pets",
			args: func(sc *scene) []string {
				return []string{"-db", sc.db, "-addr", "127.0.0.1:0"}
			},
			meanwhile: (*run).createPets,
			check:     (*run).checkCreates,
		},
		{
			name: "an import",
			args: func(sc *scene) []string {
				return []string{"pet", "import", "-db", sc.db, pets}
			},
			check: func(r *run) { r.checkImport(pets) },
		},
		{
			name: "a backup",
			args: func(sc *scene) []string {
				return []string{"backup", "-db", sc.db, sc.db + ".backup"}
			},
			check: (*run).checkBackup,
		},
		{
			name: "a restore",
			args: func(sc *scene) []string {
				return []string{"restore", "-db", sc.db, sc.copy}
			},
			check: (*run).checkRestore,
		},
		{
			name: "a rotation",
			args: func(sc *scene) []string {
				return []string{"key", "rotate", "-db", sc.db, "-overlap", "0s", "1"}
			},
			check: (*run).checkRotation,
		},
	}
	service := operations[0]
	service.name = "a checkpoint"
	service.only = "pwrite64 petstore.db "
	operations = append(operations, service, operation{
		name: "an export",
		args: func(sc *scene) []string {
			return []string{"pet", "export", "-db", sc.db, sc.db + ".jsonl"}
		},
		check: (*run).checkExport,
	})
	for _, change := range []struct{ command, query, again string }{
		{"key create", "SELECT count(*) - 3 FROM api_keys", ""},
		{"key set -name x 1", "SELECT count(*) FROM api_keys WHERE name = 'x'", ""},
		{"key revoke 1", "SELECT count(*) FROM api_keys WHERE revoked_at > 0", "revoked already"},
		{"key unban 1", "SELECT count(*) FROM api_keys WHERE unbanned_at > 0", "is not banned"},
		{"pet set -name x 1", "SELECT count(*) FROM pets WHERE name = 'x'", ""},
		{
			"pet delete 1 2 3 4 5",
			"SELECT CASE count(*) WHEN 5 THEN 0 WHEN 0 THEN 1 ELSE 9 END FROM pets",
			"no pets have the ids 1, 2",
		},
	} {
		operations = append(operations, operation{
			name:  change.command,
			begin: withBan,
			args: func(sc *scene) []string {
				return slices.Insert(strings.Fields(change.command), 2, "-db", sc.db)
			},
			check: func(r *run) { r.checkChange(change.command, change.query, change.again) },
		})
	}
	for version := 1; version < len(readSchema(t).migrations); version++ {
		operations = append(operations, operation{
			name: fmt.Sprintf("a migration from version %d", version),
			begin: func(t *testing.T, stock *scene) *scene {
				return stock.ofVersion(t, version)
			},
			args: func(sc *scene) []string {
				return []string{"key", "list", "-db", sc.db}
			},
			check: (*run).checkMigration,
		})
	}
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			op.killAtEachCall(t, stock)
		})
	}
}

// withBan is a database in which the first key is banned.
func withBan(t *testing.T, stock *scene) *scene {
	t.Helper()
	banned := stock.again(t)
	database(t, banned.db, `REPLACE INTO usage
		(id, minute_used, minute_ends, day_used, day_ends, banned_at, banned_until)
		VALUES (1, 0, 0, 0, 0, 1, 9000000000000)`).Close()
	return banned
}

// ofVersion is the database as an older version of the program has left it. It has a key that was
// rotated into another one.
func (sc *scene) ofVersion(t *testing.T, version int) *scene {
	t.Helper()
	present := sc.again(t).db
	succeeds(t, program("key", "rotate", "-db", present, "2"))
	file := readSchema(t).older(t, present, version)
	database(t, file, "PRAGMA journal_mode = WAL").Close()
	return &scene{t: t, db: file}
}

// run is one run of an operation, on a database of its own.
type run struct {
	*scene
	stock         *scene // what the run began with
	p             *process
	calls         string           // the file to which strace writes the calls
	before, after string           // the contents of the database, if nobody kills the operation
	answered      map[string]int64 // the ids of created pets, by name
	sent          int64            // requests to the service
}

// sweep is an operation that is killed again and again.
type sweep struct {
	operation
	stock    *scene
	whole    *run            // nobody killed it
	inThread map[string]int  // the numbers of calls in their threads, by name, as in the last run
	killed   map[string]bool // the names of the calls before which a run was killed
	runs     int
}

// killAtEachCall kills the operation before each call that it makes when nobody kills it; without
// SOAK, before every nth. Where a kill really came, the calls of the killed run tell.
//
// Strace counts the calls of each thread by themselves, and Go may go on in another thread at any
// time. So a kill may come before another call, or not at all. Then it is tried again: with the
// number that the call had in its thread the last time, and as if one thread made all calls, which
// is more likely with one processor.
func (op operation) killAtEachCall(t *testing.T, stock *scene) {
	if op.begin != nil {
		stock = op.begin(t, stock)
	}
	s := &sweep{
		operation: op,
		stock:     stock,
		whole:     op.run(t, stock),
		inThread:  map[string]int{},
		killed:    map[string]bool{},
	}
	if s.whole.p.status() != 0 {
		t.Fatalf("without a kill: %s", s.whole.p.told())
	}
	s.whole.before = contents(t, stock.again(t).db)
	s.whole.after = s.whole.found()
	op.check(s.whole)

	calls := slices.DeleteFunc(s.whole.changes(), func(c change) bool {
		return !strings.HasPrefix(c.name, op.only)
	})
	every := max(1, len(calls)/soak(t, 15))
	tries := soak(t, 2)
	for i := every - 1; i < len(calls); i += every {
		at := calls[i]
		for try := 0; try < tries && !s.killed[at.name]; try++ {
			inOneThread := try%2 == 1
			if !t.Run(at.name, func(t *testing.T) { s.kill(t, at, inOneThread) }) {
				return // The other calls would say it all again.
			}
		}
	}
	var missed []string
	for _, at := range calls {
		if !s.killed[at.name] {
			missed = append(missed, at.name)
		}
	}
	hit := len(calls) - len(missed)
	t.Logf("%s was killed before %d of its %d calls that change a file, in %d runs",
		op.name, hit, len(calls), s.runs)
	if every == 1 && len(missed) > 0 {
		t.Logf("not before %s", strings.Join(missed, ", "))
	}
	if wanted := len(calls) / every; hit < wanted/2 {
		t.Errorf("it was to be killed before %d calls", wanted)
	}
}

// kill kills one run, if possible before a call.
func (s *sweep) kill(t *testing.T, at change, inOneThread bool) {
	s.runs++
	at.inThread = cmp.Or(s.inThread[at.name], at.inThread)
	r := s.run(t, s.stock, at.kill(inOneThread)...)
	made := r.changes()
	for _, change := range made {
		if change.file == at.file { // Of the others, calls may be missing.
			s.inThread[change.name] = change.inThread
		}
	}
	last := len(made) - 1
	if r.p.status() != 0 && last >= 0 && !made[last].returned {
		s.killed[made[last].name] = true
	}
	r.before, r.after = s.whole.before, s.whole.after
	s.check(r)
}

// run runs the operation under strace, which gets more options. They may name the folder of the
// database as FOLDER.
func (op operation) run(t *testing.T, stock *scene, options ...string) *run {
	t.Helper()
	r := &run{scene: stock.again(t), stock: stock, answered: map[string]int64{}}
	r.calls = filepath.Join(t.TempDir(), "calls")
	cmd := program(op.args(r.scene)...)
	// With -D the process is the program's own. With --seccomp-bpf strace would kill nothing.
	strace := []string{"-D", "-f", "-q", "-y", "-o", r.calls}
	strace = append(strace, "-e", "trace="+strings.Join(fileCalls, ","))
	for _, option := range options {
		strace = append(strace, strings.ReplaceAll(option, "FOLDER", filepath.Dir(r.db)))
	}
	traced := exec.Command("strace", append(strace, cmd.Args...)...)
	traced.Env = cmd.Env
	r.p = launch(t, traced)
	if op.meanwhile != nil {
		op.meanwhile(r)
	}
	r.p.status()
	// Strace stands aside, and writes the end of the process last.
	end := fmt.Sprintf(`(?m)^%d +\+\+\+ (exited|killed)`, traced.Process.Pid)
	hasEnded := regexp.MustCompile(end)
	eventually(t, longEnough, func() error {
		log, err := os.ReadFile(r.calls)
		if err == nil && !hasEnded.Match(log) {
			err = errors.New("strace has not written the end of the process")
		}
		return err
	})
	return r
}

// change is a system call that changes a file in the folder of the database.
type change struct {
	name string // the call, its file, and how many of these the process makes
	call string

	// Strace looks at this file alone, and counts the calls on it. If the file has another name in
	// each run, this is empty, and strace counts all calls of the kind.
	file            string
	inThread, inAll int // the number of the call among those of its thread, and of all threads

	returned bool
}

// kill returns options of strace with which it kills a process before the call.
func (c change) kill(inOneThread bool) (options []string) {
	number := c.inThread
	if inOneThread {
		number = c.inAll
		options = []string{"-E", "GOMAXPROCS=1"}
	}
	if c.file != "" {
		options = append(options, "-P", filepath.Join("FOLDER", c.file))
	}
	kill := fmt.Sprintf("inject=%s:signal=KILL:when=%d", c.call, number)
	return append(options, "-e", kill)
}

var (
	callLine = regexp.MustCompile(`(?m)^(\d+) +(\w+)\((.*?)(?:\) += (.*))?$`)
	keptTime = regexp.MustCompile(`\.\d{8}T[\d.]+Z`) // in the name of an old database
)

// changes are the calls of the run, in their order.
func (r *run) changes() (all []change) {
	r.t.Helper()
	log, err := os.ReadFile(r.calls)
	noError(r.t, err)
	folder := filepath.Dir(r.db)
	path := regexp.MustCompile(regexp.QuoteMeta(folder) + `(?:/[^">]*)?`)
	counts := map[string]int{}
	count := func(what string) int {
		counts[what]++
		return counts[what]
	}
	for _, line := range callLine.FindAllStringSubmatch(string(log), -1) {
		thread, call, args, result := line[1], line[2], line[3], line[4]
		at := change{call: call, inThread: count(thread + call), inAll: count(call)}
		at.returned = result != "" && result != "?"
		found := path.FindString(args)
		if found == "" {
			continue
		}
		file, err := filepath.Rel(folder, found)
		noError(r.t, err)
		known := keptTime.ReplaceAllString(file, "")
		if known == file {
			at.file = file
			at.inThread = count(thread + call + " " + file)
			at.inAll = count(call + " " + file)
		}
		if strings.HasPrefix(call, "open") && !strings.Contains(args, "O_CREAT") {
			continue
		}
		at.name = fmt.Sprintf("%s %s %d", call, known, count("change "+call+" "+known))
		all = append(all, at)
	}
	return all
}

// contents is all that SQL can see of a database.
func contents(t *testing.T, file string) string {
	t.Helper()
	checkIntegrity(t, file)
	db := database(t, file)
	defer db.Close()
	var text strings.Builder
	read := func(query string) (first []string) {
		rows, err := db.Query(query)
		noError(t, err)
		defer rows.Close()
		columns, err := rows.Columns()
		noError(t, err)
		values, pointers := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			pointers[i] = &values[i]
		}
		for rows.Next() {
			noError(t, rows.Scan(pointers...))
			fmt.Fprintln(&text, values...)
			first = append(first, fmt.Sprint(values[0]))
		}
		noError(t, rows.Err())
		return first
	}
	read("PRAGMA user_version")
	read("SELECT sql FROM sqlite_schema ORDER BY name")
	for _, table := range read(
		"SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name") {
		if table == "identity" { // every migration and every restore draws another one
			read("SELECT id, value > 0 FROM identity")
			continue
		}
		if table == "counters" { // a backup notes itself, and may be killed before or after
			read("SELECT * FROM counters WHERE name <> 'backup'")
			continue
		}
		read("SELECT * FROM " + table)
	}
	return text.String()
}

// found is what the run has left. It is read from a copy, so that who opens the database next finds
// the log as it was left.
func (r *run) found() string {
	r.t.Helper()
	return contents(r.t, r.again(r.t).db)
}

// isThere reports whether there is a file.
func isThere(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// number reads one number from what the run has left.
func (r *run) number(query string) int64 {
	r.t.Helper()
	return numberIn(r.t, r.again(r.t).db, query)
}

// grown is how much a number has grown.
func (r *run) grown(query string) int64 {
	r.t.Helper()
	return r.number(query) - numberIn(r.t, r.stock.again(r.t).db, query)
}

// said reports whether the operation has logged a message.
func (r *run) said(message string) bool { return strings.Contains(r.p.log.String(), message) }

// newPets are the names of the pets that are created, one after the other.
var newPets = []string{"Ada", "Bob", "Eve"}

// createPets creates pets while the service runs, and then stops it.
func (r *run) createPets() {
	r.t.Helper()
	var url string
	eventually(r.t, longEnough, func() error {
		_, ready, _ := strings.Cut(r.p.log.String(), `"msg":"ready"`)
		url = field(ready, "address")
		if url == "" && !r.p.within(0) {
			return fmt.Errorf("the service is not ready: %s", r.p.log.String())
		}
		return nil
	})
	if url == "" {
		return // It was killed before.
	}
	for _, name := range newPets {
		r.sent++
		answer, err := call(url, r.key, "POST", "/pets", animalJSON(name), name)
		if err != nil {
			return // It is killed now.
		}
		if answer.status != http.StatusCreated {
			r.t.Errorf("the create of %s is answered %d %s", name, answer.status, answer.body)
			return
		}
		r.answered[name] = decode[pet](r.t, answer.body).ID
	}
	_ = r.p.cmd.Process.Signal(syscall.SIGTERM) // It may have been killed already.
}

// checkCreates repeats each create. A pet that was answered is there, and no pet is there twice.
func (r *run) checkCreates() {
	r.found()
	counted := r.grown("SELECT total(day_used) FROM usage")
	wasStopped := r.p.status() == 0
	if counted > r.sent || wasStopped && counted != r.sent {
		r.t.Errorf("of %d requests %d are counted", r.sent, counted)
	}
	s := &server{t: r.t, db: r.db, key: r.key}
	s.run()
	defer s.kill()
	for _, name := range newPets {
		answer, err := call(s.url, s.key, "POST", "/pets", animalJSON(name), name)
		noError(r.t, err)
		if answer.status != http.StatusCreated {
			r.t.Fatalf("the repeated create of %s is answered %s", name, answer.body)
		}
		wasReplayed := answer.header.Get("Idempotency-Replayed") == "true"
		repeated := decode[pet](r.t, answer.body).ID
		id, wasAnswered := r.answered[name]
		if wasAnswered && (!wasReplayed || repeated != id) {
			r.t.Errorf("%s had the id %d, and gets %d", name, id, repeated)
		}
	}
	stored := s.everyAnimal(r.t)
	for _, name := range newPets {
		if len(stored[name]) != 1 {
			r.t.Errorf("%s has the ids %d", name, stored[name])
		}
	}
	if len(stored["Rex"]) != allPets {
		r.t.Errorf("of %d older pets %d are left", allPets, len(stored["Rex"]))
	}
}

// checkImport wants whole transactions stored, and their number with them, and imports again.
func (r *run) checkImport(pets string) {
	r.found()
	stored := r.number("SELECT total(value) FROM counters WHERE name GLOB 'import *'")
	all := r.number("SELECT count(*) FROM pets")
	if all != allPets+stored || stored%500 != 0 && stored != importedPets {
		r.t.Errorf("%d pets are stored, and %d by the number of the import", all, stored)
	}
	if r.said("pets imported") && stored != importedPets {
		r.t.Errorf("%d pets of an import that has ended are stored", stored)
	}
	again := program("pet", "import", "-db", r.db, pets)
	if stored == importedPets {
		fails(r.t, again, "it was imported before")
	} else {
		p := succeeds(r.t, again)
		alreadyStored := fmt.Sprintf(`"alreadyStored":%d}`, stored)
		if !strings.Contains(p.log.String(), alreadyStored) {
			r.t.Errorf("after %d pets: %s", stored, p.told())
		}
	}
	s := &server{t: r.t, db: r.db}
	if others := s.checkImported(r.t, pets); others != allPets {
		r.t.Errorf("of %d older pets %d are left", allPets, others)
	}
}

// checkBackup wants the copy whole if it has its name, and backs up to that name again.
func (r *run) checkBackup() {
	if r.found() != r.before {
		r.t.Error("the database has changed")
	}
	file := r.db + ".backup"
	again := func() *exec.Cmd { return program("backup", "-db", r.db, file) }
	if r.said("backup made") && !isThere(file) {
		r.t.Error("the backup that was made is not there")
	}
	if isThere(file) {
		fails(r.t, again(), file+" exists, and nothing is overwritten")
	} else {
		if isThere(file + ".partial") {
			fails(r.t, again(), "another copy runs, or was stopped; remove it")
			noError(r.t, os.Remove(file+".partial"))
		}
		succeeds(r.t, again())
	}
	if contents(r.t, file) != r.before {
		r.t.Error("the backup is not what the database holds")
	}
}

// checkRestore wants the old or the restored content, and the old one kept, and restores again.
func (r *run) checkRestore() {
	found := r.found()
	if found != r.before && found != r.after {
		r.t.Errorf("the database is neither the old nor the restored one:\n%s", found)
	}
	if r.said("database restored") && found != r.after {
		r.t.Error("the database was not restored")
	}
	if found == r.after && (r.kept() == "" || contents(r.t, r.kept()) != r.before) {
		r.t.Errorf("the old database is lost: kept is %q", r.kept())
	}
	succeeds(r.t, program("key", "list", "-db", r.db))
	if found == r.after {
		return
	}
	if partial := r.db + ".partial"; isThere(partial) {
		fails(r.t, r.restore(), partial+" is there: another copy runs, or was stopped; remove it")
		noError(r.t, os.Remove(partial))
	}
	succeeds(r.t, r.restore())
	if r.found() != r.after {
		r.t.Error("the next restore does not restore the copy")
	}
	if left, _ := filepath.Glob(r.db + ".partial*"); len(left) > 0 {
		r.t.Errorf("after the next restore %q are left", left)
	}
}

// checkRotation wants that exactly one of both keys opens the service.
func (r *run) checkRotation() {
	found := r.found()
	successors := r.number("SELECT count(*) FROM api_keys WHERE succeeds = 1")
	if successors == 0 && found != r.before {
		r.t.Errorf("without a successor the database is\n%s", found)
	}
	edits := r.grown("SELECT value FROM counters WHERE name = 'edits'")
	if edits != successors {
		r.t.Errorf("with %d successors %d edits are counted", successors, edits)
	}
	if r.said("key rotated") && successors != 1 {
		r.t.Errorf("a key that was rotated has %d successors", successors)
	}
	token := keyForm.FindString(r.p.out.String())
	if successors == 0 && token != "" {
		r.t.Error("a key is shown that is not stored")
	}
	s := &server{t: r.t, db: r.db}
	s.run()
	defer s.kill()
	const opens, refused = "200 of 1000000000", "401 invalid_key"
	if successors == 0 {
		s.expect(r.t, r.key, opens)
		return
	}
	s.expect(r.t, r.key, refused)
	if token == "" { // after a kill, whoever finds a key that nobody has seen replaces it
		unseen := fmt.Sprint(r.number("SELECT max(id) FROM api_keys"))
		token = strings.TrimSpace(s.command("key", "rotate", "-overlap", "0s", "-db", r.db, unseen))
	}
	s.expect(r.t, token, opens)
}

// checkChange wants that one transaction was made or not, and that the command can be run again.
func (r *run) checkChange(command, query, again string) {
	r.found()
	changed := r.number(query)
	edits := r.grown("SELECT value FROM counters WHERE name = 'edits'")
	isWhole := changed == 1 || changed == 0 && r.p.status() != 0
	if !isWhole || edits != changed && command != "key create" {
		r.t.Errorf("%s has changed %d, and counted %d edits", command, changed, edits)
	}
	repeated := launch(r.t, program(slices.Insert(strings.Fields(command), 2, "-db", r.db)...))
	repeated.status()
	if changed == 1 && !strings.Contains(repeated.log.String(), again) {
		r.t.Errorf("%s was done before: %s", command, repeated.told())
	}
	if r.number(query) == 0 {
		r.t.Errorf("%s is not done by a second run: %s", command, repeated.told())
	}
}

// checkExport wants a whole file or none, and exports again.
func (r *run) checkExport() {
	r.found()
	file := r.db + ".jsonl"
	if isThere(file) {
		text, err := os.ReadFile(file)
		noError(r.t, err)
		if strings.Count(string(text), "\n") != allPets {
			r.t.Errorf("the export is not whole: %q", text)
		}
		return
	}
	if r.said("pets exported") {
		r.t.Error("the export that was made is not there")
	}
	again := func() *exec.Cmd { return program("pet", "export", "-db", r.db, file) }
	if partial := file + ".partial"; isThere(partial) {
		fails(r.t, again(), "another copy runs, or was stopped; remove it")
		noError(r.t, os.Remove(partial))
	}
	succeeds(r.t, again())
}

// checkMigration wants the old or the new version, whole, and opens the database again.
func (r *run) checkMigration() {
	found := r.found()
	if found != r.before && found != r.after {
		r.t.Errorf("the database is of no version:\n%s", found)
	}
	if r.p.out.String() != "" && found != r.after {
		r.t.Error("the keys were listed before the migration was made")
	}
	succeeds(r.t, program("key", "list", "-db", r.db))
	if r.found() != r.after {
		r.t.Error("the database is not migrated when it is opened again")
	}
}
