package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// testTime is the tests' present: any instant does, since the store reads no clock.
var testTime = time.Date(2026, time.May, 4, 12, 0, 0, 0, time.UTC)

// testLog is for those who have nothing to say in a test.
var testLog = slog.New(slog.DiscardHandler)

// openDatabase opens a database beside others that have it open.
func openDatabase(t testing.TB, path string) *store {
	return openDatabaseFor(t, path, openOrMake)
}

func openDatabaseFor(t testing.TB, path string, mode openMode) *store {
	t.Helper()
	s, err := openStore(context.Background(), path, mode, testLog)
	must(t, err)
	s.documents.max = 16 << 20
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newStore(t testing.TB) *store {
	t.Helper()
	return openDatabaseFor(t, databasePath(t), openToServe)
}

// engines runs a test once for each engine. db names a database of it that is new.
func engines(t *testing.T, test func(t *testing.T, db string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, databasePath(t))
	})
	t.Run("rqlite", func(t *testing.T) {
		t.Parallel()
		test(t, newCluster(t, 3).addresses())
	})
}

// onStores runs a test once for each engine, with a store.
func onStores(t *testing.T, test func(t *testing.T, s *store)) {
	t.Helper()
	engines(t, func(t *testing.T, db string) {
		test(t, openDatabase(t, db))
	})
}

// readNumber reads one number by any engine.
func readNumber(t testing.TB, s *store, query string) (n int64) {
	t.Helper()
	must(t, errorOf(s.readInto(context.Background(), sqlOf(query), &n)))
	return n
}

// fileEngine is the engine of a store that openDatabase has opened.
func fileEngine(s *store) *sqliteFile { return s.engine.(*sqliteFile) }

// otherProgram is another program's one connection to a database file.
func otherProgram(t testing.TB, path string, statements ...string) *sql.DB {
	t.Helper()
	db := openPool(path, "_pragma=busy_timeout(10000)")
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	for _, statement := range statements {
		must(t, errorOf(db.Exec(statement)))
	}
	return db
}

func numberIn(t testing.TB, db *sql.DB, query string) (n int64) {
	t.Helper()
	must(t, db.QueryRow(query).Scan(&n))
	return n
}

// commitsOf counts the transactions of a store that have succeeded.
func commitsOf(s *store) (n int64) {
	for i := range s.commitSizes.counts {
		n += s.commitSizes.counts[i].Load()
	}
	return n
}

// mustWrite runs statements in a transaction of their own.
func mustWrite(t testing.TB, s *store, statements ...statement) {
	t.Helper()
	must(t, writing(s, statements...)())
}

// countPets counts the pets.
func countPets(t testing.TB, s *store) int64 {
	t.Helper()
	return readNumber(t, s, "SELECT count(*) FROM pets")
}

// wantRows checks how many rows a table has.
func wantRows(t testing.TB, s *store, table string, want int64) {
	t.Helper()
	n := readNumber(t, s, "SELECT count(*) FROM "+table)
	wantEqual(t, n, want, "the number of ", table)
}

// wantPets checks how many pets are stored.
func wantPets(t testing.TB, s *store, want int64) {
	t.Helper()
	wantRows(t, s, "pets", want)
}

// wantIDs checks which pets are listed first.
func wantIDs(t testing.TB, s *store, want ...int64) {
	t.Helper()
	ids, _ := pageIDs(t, s, "", 20, 0)
	wantEqual(t, ids, want, "what is listed")
}

func mustCreate(t testing.TB, s *store, p NewPet) int64 {
	t.Helper()
	id, err := s.createPet(1, p)
	must(t, err)
	return id
}

// wantNextID creates a pet and checks its id.
func wantNextID(t testing.TB, s *store, want int64) {
	t.Helper()
	wantEqual(t, mustCreate(t, s, rex), want, "the id of the next pet")
}

// pageIDs reads a page, checks its shape, and returns the ids on it.
func pageIDs(t testing.TB, s *store, status PetStatus, limit int, after int64) (ids []int64,
	p *listPage) {
	t.Helper()
	p, err := s.page(status, limit, after)
	must(t, err)
	var pets []struct {
		ID     int64     `json:"id"`
		Status PetStatus `json:"status"`
	}
	if err := json.Unmarshal(p.body, &pets); err != nil || pets == nil {
		t.Fatalf("the page is %s, %v", p.body, err)
	}
	for _, pet := range pets {
		if ids = append(ids, pet.ID); status != "" && pet.Status != status {
			t.Errorf("pet %d on the page of the %s ones is %s", pet.ID, status, pet.Status)
		}
	}
	return ids, p
}

// createOnce creates under the idempotency key "k" of a key at an instant, and tells what becomes
// of it, such as "replayed 1".
func createOnce(t testing.TB, s *store, keyID int64, body string, now time.Time) string {
	t.Helper()
	pet := NewPet{Name: body, CategoryID: 1, Status: Available}
	id, replayed, reused, err := s.createPetOnce(1, pet, keyID, "k", []byte(body), now)
	must(t, err)
	verdict := "created"
	if reused {
		verdict = "reused"
	} else if replayed {
		verdict = "replayed"
	}
	return fmt.Sprint(verdict, " ", id)
}

// lockDatabase takes the write lock as another program would. With the lock held,
// writes queue up behind the one that waits for it.
func lockDatabase(t testing.TB, s *store) (release func()) {
	t.Helper()
	db := otherProgram(t, fileEngine(s).path, "BEGIN IMMEDIATE")
	return func() {
		must(t, errorOf(db.Exec("ROLLBACK")))
	}
}

// errorOf drops the results of a write.
func errorOf[T any](_ T, err error) error { return err }

// watchedEngine shows a test what the store asks its engine for.
type watchedEngine struct {
	engine
	// columns: where a row was read to, of queries that found one
	check func(st statement, columns []any)
}

func (e *watchedEngine) write(ctx context.Context, statements []statement) ([]result, error) {
	for _, st := range statements {
		e.check(st, st.into)
	}
	return e.engine.write(ctx, statements)
}

func (e *watchedEngine) read(ctx context.Context, query statement,
	row func(scan scanner) error) error {
	e.check(query, nil)
	return e.engine.read(ctx, query, func(scan scanner) error {
		return row(func(columns ...any) error {
			e.check(query, columns)
			return scan(columns...)
		})
	})
}

// hookedEngine lets something happen around what a store asks its engine for.
type hookedEngine struct {
	engine
	beforeRead, afterRead, beforeWrite, afterWrite func() // nil: nothing
}

func (e *hookedEngine) read(ctx context.Context, query statement,
	row func(scan scanner) error) error {
	callHook(e.beforeRead)
	defer callHook(e.afterRead)
	return e.engine.read(ctx, query, row)
}

func (e *hookedEngine) write(ctx context.Context, statements []statement) ([]result, error) {
	callHook(e.beforeWrite)
	defer callHook(e.afterWrite)
	return e.engine.write(ctx, statements)
}

func callHook(hook func()) {
	if hook != nil {
		hook()
	}
}

// literalsOf are the beginnings of SQL statements in the source.
func literalsOf(t testing.TB, files ...string) (literals []string) {
	t.Helper()
	begins := regexp.MustCompile(`^\s*(SELECT|INSERT|REPLACE|UPDATE|DELETE|WITH) `)
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		must(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, err := strconv.Unquote(l.Value)
				must(t, err)
				if begins.MatchString(text) {
					literals = append(literals, text)
				}
			}
			return true
		})
	}
	return literals
}

// makeOtherDatabase makes a database by statements and leaves it closed.
func makeOtherDatabase(t testing.TB, path string, statements ...string) {
	t.Helper()
	must(t, otherProgram(t, path, statements...).Close())
}

// filesIn is the content of every file in a folder but SQLite's own shared memory and empty logs,
// which reading a database may leave, and -host, which a service changes each second; of a link,
// where it leads.
func filesIn(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	tree := map[string]string{}
	for _, entry := range entries {
		if to, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil {
			tree[entry.Name()] = "-> " + to
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			tree[entry.Name()] = "(folder)"
			continue
		}
		if strings.HasSuffix(entry.Name(), "-host") {
			continue
		}
		if !strings.HasSuffix(entry.Name(), "-shm") && !(strings.HasSuffix(entry.Name(), "-wal") &&
			len(content) == 0) {
			tree[entry.Name()] = string(content)
		}
	}
	return tree
}

func wantSameFiles(t testing.TB, before, after map[string]string) {
	t.Helper()
	for name, content := range before {
		if now, isThere := after[name]; !isThere || now != content {
			t.Errorf("%s was changed or removed", name)
		}
	}
	for name := range after {
		if _, known := before[name]; !known {
			t.Errorf("%s was left behind", name)
		}
	}
}

// wantRefusal checks that an error is one line that names the file and says what is wrong.
func wantRefusal(t testing.TB, err error, path, want string) {
	t.Helper()
	wantOneLine(t, err, false, path, want)
}

// linksToDatabase makes links in a new folder that lead, over one another and by
// relative and absolute paths, to a place in a second new folder.
func linksToDatabase(t testing.TB) (first, target string) {
	t.Helper()
	dir, targets := t.TempDir(), t.TempDir()
	target = filepath.Join(targets, "pets.db")
	must(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	for link, to := range map[string]string{
		"first.db":     "a/second.db",
		"a/second.db":  "b/../b/third.db",
		"a/b/third.db": filepath.Join(dir, "folder", "pets.db"),
		"folder":       targets,
	} {
		must(t, os.Symlink(filepath.FromSlash(to), filepath.Join(dir, link)))
	}
	return filepath.Join(dir, "first.db"), target
}

// soundDatabase is a connection to a database without damage.
func soundDatabase(t testing.TB, path string) *sql.DB {
	t.Helper()
	db := otherProgram(t, path)
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("%s is %s, %v", path, verdict, err)
	}
	return db
}

// copyHolds opens a backup, checks it, and returns its records and pets.
func copyHolds(t testing.TB, path string) (pets, records int64) {
	t.Helper()
	db := soundDatabase(t, path)
	version := numberIn(t, db, "PRAGMA user_version")
	wantEqual(t, version, int64(len(migrations)), "the version of the copy")
	wantEqual(t, numberIn(t, db, "PRAGMA application_id"), applicationID, "the mark of the copy")
	pets = numberIn(t, db, "SELECT count(*) FROM pets")
	records = numberIn(t, db, "SELECT count(*) FROM idempotency")
	wantEqual(t, numberIn(t, db, "SELECT ifnull(max(id), 0) FROM pets"), pets,
		"the highest id in the copy")
	must(t, db.Close())
	return pets, records
}

// printed writes a number of the description without an exponent.
func printed(value any) any {
	if number, ok := value.(float64); ok {
		return int64(number)
	}
	return value
}

// debug is what shows the operator of a shop how it is doing.
func (s *shop) debug() *operator {
	if s.operator == nil {
		s.operator = newOperator(s.service)
		s.routes = s.operator.routes(false)
	}
	return s.operator
}

// onDebug gets a path of the debug address.
func (s *shop) onDebug(path string) *httptest.ResponseRecorder {
	s.debug()
	return debugCall(s.routes, path, "localhost:6060")
}

func (s *shop) stats() (stats operatorStats, body string) {
	s.t.Helper()
	w := s.onDebug("/stats.json")
	if got := w.Header().Get("Content-Type"); w.Code != 200 || got != "application/json" {
		s.t.Fatalf("the numbers are %d, %s", w.Code, got)
	}
	must(s.t, json.Unmarshal(w.Body.Bytes(), &stats))
	return stats, w.Body.String()
}

// operatorKey makes a key of a usage that is as the SQL says, in which now is the time in
// milliseconds.
func (s *shop) operatorKey(name, plan string, q quota, usage string) int64 {
	s.t.Helper()
	k := &apiKey{Name: name, Plan: plan, CreatedAt: instantOf(time.Now())}
	k.quota = q
	id, err := insertKey(s.t.Context(), s.store, k, newSecret(false).digest(), "true")
	must(s.t, err)
	usage = strings.ReplaceAll(usage, "now", fmt.Sprint(time.Now().UnixMilli()))
	mustWrite(s.t, s.store,
		sqlOf("INSERT INTO usage (id, "+usageColumns+") SELECT ?, "+usage, id))
	return id
}

// report reads the report as the page gets it.
func (s *shop) report() (stats operatorStats, body string) {
	s.t.Helper()
	s.stats()
	s.debug().reportReading.next = time.Time{}
	must(s.t, s.debug().updateReport(s.t.Context()))
	return s.stats()
}

// startServer runs the complete program on a free port. Unless the test stops it, it
// is stopped at the end. An unexpected error in the log fails the test.
func startServer(t testing.TB, env map[string]string, args ...string) *testServer {
	t.Helper()
	s := &testServer{t: t, log: newServerLog(), ended: make(chan error, 1)}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	if !slices.Contains(args, "-addr") && env["PETSTORE_ADDR"] == "" {
		args = append([]string{"-addr", "127.0.0.1:0"}, args...)
	}
	go func() {
		err := run(ctx, args, environOf(env), nil, &s.stdout, s.log)
		s.ended <- err
		close(s.ended)
	}()
	t.Cleanup(s.stop)
	ready := s.await("ready")
	s.address, s.debug = ready.Address, ready.Debug
	s.key = regexp.MustCompile(`pet_(live|test)_\w+`).FindString(s.stdout.String())
	return s
}

// send sends a request with a key and returns the response and its body.
func send(t testing.TB, method, url, key, body string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	must(t, err)
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := testClient.Do(r)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	describedRequest(t, r, response.StatusCode)
	return response, string(text)
}

// petstore runs a command to its end. A server finds that it is asked to stop
// when it has started, be it that it was to be refused.
func petstore(t testing.TB, env map[string]string, args ...string) (stdout, stderr string,
	err error) {
	t.Helper()
	var out, log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	help := []string{"-h", "-help", "--help", "-version", "--version"}
	isFlag := len(args) > 0 && strings.HasPrefix(args[0], "-")
	if len(args) == 0 || isFlag && !slices.Contains(help, args[0]) {
		cancel()
	}
	err = run(ctx, args, environOf(env), nil, &out, &log)
	if err != nil && strings.ContainsRune(err.Error(), '\n') {
		t.Errorf("%v: the reason is more than a line: %v", args, err)
	}
	return out.String(), log.String(), err
}

// readText is the content of a file.
func readText(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// takesSeconds leaves a test out of go test -short, which somebody runs after each change.
func takesSeconds(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes seconds, and -short leaves it out")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// linesOf are the lines of a text, without what is around them. An empty one is left out.
func linesOf(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && !yield(line) {
				return
			}
		}
	}
}

// brief is the beginning of a text: what fails has to fit into a screen.
func brief(text string) string {
	const most = 400
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:most], ""), len(text))
}

// rowsOf are the rows of a table, in their order:
//
//	limit=1: 1..1 => limit=1&after=1
//	after=150: none => none
//
// Before the arrow stands what is done or given, and behind it what must come of it. The comment
// above a table says what the parts of a side are, if they are several. A word in capitals stands
// for a text that is put in its place before. A line without an arrow is a heading. Once a row has
// failed, only some more are tried, so that a table that is wrong everywhere fits into a screen.
func rowsOf(t testing.TB, table string) iter.Seq2[string, string] {
	return func(yield func(left, right string) bool) {
		more := 4
		for line := range linesOf(table) {
			left, right, isRow := strings.Cut(line, " => ")
			if !isRow {
				continue
			}
			if more == 0 {
				t.Log("the rows after this one were not tried")
				return
			}
			if !yield(left, right) {
				return
			}
			if t.Failed() {
				more--
			}
		}
	}
}

// wantEqual compares a value with the one that is wanted. what, in parts, says which it is. Of long
// values it shows where they begin to differ.
func wantEqual[T any](t testing.TB, got, want T, what ...any) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	is, wanted := fmt.Sprint(got), fmt.Sprint(want)
	same := 0
	for same < min(len(is), len(wanted)) && is[same] == wanted[same] {
		same++
	}
	if same > 100 {
		begin := strings.ToValidUTF8(is[same-50:same], "")
		is, wanted = "…"+begin+is[same:], "…"+begin+wanted[same:]
	}
	t.Errorf("%s is\n%s, want\n%s", brief(fmt.Sprint(what...)), brief(is), brief(wanted))
}

// wantError checks that an error is of a kind.
func wantError(t testing.TB, err, want error, what ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s says %v, want %v", fmt.Sprint(what...), err, want)
	}
}

// wantPart checks that a text has a part.
func wantPart(t testing.TB, text, part string, what ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s lacks %s:\n%s", brief(fmt.Sprint(what...)), brief(part), brief(text))
	}
}

// wantCount checks how often a text has a part.
func wantCount(t testing.TB, text, part string, want int, what ...any) {
	t.Helper()
	if n := strings.Count(text, part); n != want {
		t.Errorf("%s has %s %d times, want %d:\n%s", brief(fmt.Sprint(what...)), brief(part), n,
			want, brief(text))
	}
}

// wantMatch checks that a text matches a regular expression.
func wantMatch(t testing.TB, text, pattern string, what ...any) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("%s does not match %s:\n%s", brief(fmt.Sprint(what...)), brief(pattern),
			brief(text))
	}
}

// wantWithin checks that a value is between two others, or one of them.
func wantWithin[T cmp.Ordered](t testing.TB, got, least, most T, what ...any) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s is %v, want %v to %v", fmt.Sprint(what...), got, least, most)
	}
}

// wantLocked checks that functions wait for the lock of what they use: Go ends a process that reads
// a map while it is written to.
func wantLocked(t testing.TB, mu *sync.Mutex, uses map[string]func()) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for function, use := range uses {
		mu.Lock()
		used := make(chan bool, 1)
		go func() {
			use()
			used <- true
		}()
		waits := regexp.MustCompile(`sync\.Mutex\.Lock[^\n]*\n([^\n]+\n)+petstore\.` +
			regexp.QuoteMeta(function))
		for !waits.Match(stacks[:runtime.Stack(stacks, true)]) {
			if len(used) > 0 {
				t.Fatalf("%s does not wait for its lock", function)
			}
			runtime.Gosched()
		}
		mu.Unlock()
		<-used
	}
}

// moveAway moves a file away, and returns what puts it back.
func moveAway(t testing.TB, path string) (putBack func()) {
	t.Helper()
	must(t, os.Rename(path, path+".away"))
	return func() { must(t, os.Rename(path+".away", path)) }
}

// wantMissing checks that there is no file.
func wantMissing(t testing.TB, path string) {
	t.Helper()
	wantEqual(t, isMissing(path), true, "whether there is no ", path)
}

// wantOneLine checks that an error is one line with the words, and of which kind.
func wantOneLine(t testing.TB, err error, isUsage bool, words ...string) {
	t.Helper()
	_, ok := errors.AsType[*usageError](err)
	if err == nil || ok != isUsage || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %q, a usage error: %v; want one line, a usage error: %v", err, ok,
			isUsage)
		return
	}
	for _, word := range words {
		wantPart(t, err.Error(), word, "the error")
	}
}

func databasePath(t testing.TB) string {
	t.Helper()
	t.Cleanup(func() { noteFailure(t) })
	return filepath.Join(t.TempDir(), "pets.db")
}

// mostFailures is how many tests may fail before no other one is begun: without a store, hundreds
// fail for one reason.
const mostFailures = 30

// failures are the tests on databases that have failed.
var failures = struct {
	sync.Mutex
	names map[string]bool
}{names: map[string]bool{}}

func noteFailure(t testing.TB) {
	if !t.Failed() {
		return
	}
	failures.Lock()
	defer failures.Unlock()
	name, _, _ := strings.Cut(t.Name(), "/")
	failures.names[name] = true
	if len(failures.names) == mostFailures {
		_ = flag.Set("test.failfast", "true")
	}
}

// fullDisk is a place that takes nothing, as a full disk or a closed pipe.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, syscall.ENOSPC
}

// madeDatabase is the path of a database with one key.
func madeDatabase(t testing.TB) string {
	t.Helper()
	db := databasePath(t)
	_, _, err := petstore(t, nil, "key", "create", "-db", db)
	must(t, err)
	return db
}

// testStart is 0s on the clock of these tests: a whole second, so that what
// is rounded can be read off.
const testStart instant = 1_800_000_000_000

// clock is an instant of that clock, such as "30.5s" or "24h".
func clock(offset string) instant {
	d, err := time.ParseDuration(offset)
	if err != nil {
		panic(err)
	}
	return testStart + instant(d.Milliseconds())
}

const tenMinutes = 10 * time.Minute

// saveUsage is the statement that stores a usage as if it had been counted and flushed.
func saveUsage(id int64, u *usage) statement {
	return sqlOf("INSERT OR REPLACE INTO usage (id, "+usageColumns+") VALUES (?, ?, ?, ?, ?, ?, ?)",
		id,
		u.minute.used, int64(u.minute.ends), u.day.used, int64(u.day.ends), int64(u.bannedAt),
		int64(u.bannedUntil))
}

// storedDays are the days that are stored of usage 1, as "2027-01-15: 2 admitted, 1 refused, 0
// errors".
func storedDays(t testing.TB, s *store) (days []string) {
	t.Helper()
	must(t, eachLine(context.Background(), s, 0, 1, -1, func(use *lineUsage) error {
		for _, d := range use.Days {
			days = append(days, fmt.Sprintf("%s: %d admitted, %d refused, %d errors", d.Day,
				d.Admitted, d.Refused, d.Errors))
		}
		return nil
	}))
	return days
}

func mustFlush(t testing.TB, l *ledger) {
	t.Helper()
	must(t, l.flush(context.Background(), testStart.time, false))
}

// usageColumns are those of the usage table beside its id, in the order of columns.
const usageColumns = "minute_used, minute_ends, day_used, day_ends, banned_at, banned_until"

// readUsage is what is stored of a usage.
func readUsage(ctx context.Context, s *store, id int64) (*usage, error) {
	u := &usage{}
	_, err := s.readInto(ctx, sqlOf(usageQuery, id), u.columns()...)
	return u, err
}

// parseCommand is a run of a command that has read its arguments and its environment.
func parseCommand(name string, args []string, environ ...string) (*invocation, error) {
	entry := commandNamed(name)
	c := entry.newInvocation(&process{environ: variablesOf(environ)})
	if err := entry.parse(c, args); err != nil {
		return c, err
	}
	return c, entry.readEnvironment(c)
}

// testKeys runs petstore key on one database.
type testKeys struct {
	testing.TB
	db string
}

// newKeys is a database without a key, and without a file yet.
func newKeys(t testing.TB) testKeys {
	return testKeys{t, databasePath(t)}
}

// do runs a key command, which must succeed, and returns what it printed.
func (k testKeys) do(name string, args ...string) string {
	k.Helper()
	out, log, err := petstore(k, nil, append([]string{"key", name, "-db", k.db}, args...)...)
	must(k, err)
	if strings.Contains(log, "pet_live_") || strings.Contains(log, "pet_test_") {
		k.Errorf("key %s %v logs a key: %s", name, args, log)
	}
	return out
}

// mint runs a key command that must print a bare key alone, and returns it.
func (k testKeys) mint(name string, args ...string) string {
	k.Helper()
	out := k.do(name, args...)
	token, isLine := strings.CutSuffix(out, "\n")
	if !isLine || !keyForm.MatchString(token) {
		k.Fatalf("key %s %v prints %q, want a bare key on a line", name, args, out)
	}
	return token
}

// write runs statements on the database, as the service does.
func (k testKeys) write(statements ...statement) {
	k.Helper()
	s := openDatabase(k, k.db)
	defer s.Close()
	mustWrite(k, s, statements...)
}

// backUp does what petstore backup does.
func backUp(ctx context.Context, s *store, file string) error {
	c := &invocation{process: &process{stderr: io.Discard}}
	partial, err := createFile(file)
	if err == nil {
		_, err = c.saveCopy(ctx, fileEngine(s).path, partial, 0)
	}
	return err
}

// exportedPets are all pets of a database, a line each, as export writes them.
func exportedPets(t testing.TB, db string) string {
	t.Helper()
	out, _, err := petstore(t, nil, "pet", "export", "-db", db)
	must(t, err)
	return out
}

var keyForm = regexp.MustCompile(`^pet_(live|test)_[0-9A-Za-z]{32}[0-9A-Za-z]{6}$`)

// mustInsertKey stores a key and returns its token.
func mustInsertKey(t testing.TB, s *store, k apiKey) secret {
	t.Helper()
	if k.Plan == "" {
		k.Plan = "free"
	}
	token := newSecret(k.Test)
	k.LastFour = token.lastFour()
	must(t, errorOf(insertKey(t.Context(), s, &k, token.digest(), "true")))
	return token
}

// addressUnspent says that the caller's address is not spent.
func addressUnspent() bool { return false }

func bearerHeader(token secret) []string {
	return []string{"Bearer " + string(token)}
}

func mustAuthenticate(t testing.TB, k *keyring, token secret, now time.Time) *apiKey {
	t.Helper()
	key, err := k.authenticate(bearerHeader(token), now, addressUnspent)
	must(t, err)
	return key
}

// mustRefuseKey demands an *Error with the code, and no key.
func mustRefuseKey(t testing.TB, k *keyring, headers []string, now time.Time,
	code ErrorCode) Error {
	t.Helper()
	key, err := k.authenticate(headers, now, addressUnspent)
	reported, ok := errors.AsType[*Error](err)
	if key != nil || !ok || reported.Code != code || reported.Status != 401 {
		t.Fatalf("%q: %v, %v, want %s", headers, key, err, code)
	}
	return *reported
}

// deprecatedUseOf is when a key is shown to have used the deprecated operation last.
func deprecatedUseOf(t testing.TB, s *store, id int64) instant {
	t.Helper()
	var used instant
	found, err := s.readInto(t.Context(),
		sqlOf("SELECT deprecated_use_at FROM api_keys WHERE id = ?", id), &used)
	if err != nil || !found {
		t.Fatalf("key %d is not found: %v", id, err)
	}
	return used
}

func setName(id int64, name string) statement {
	return changeKey(id, "", name, quota{})
}

func revokeNow(ctx context.Context, s *store, id int64, now instant) error {
	_, err := s.edit(ctx, revokeKey(id, now))
	return err
}

func unbanKey(ctx context.Context, s *store, usageID int64, now instant) error {
	_, err := s.edit(ctx, unban(usageID, now))
	return err
}

// The shapes on the wire, spelt out once more: a field that is renamed in the
// service must fail here.
type wirePet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

type wireError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Status  int    `json:"status"`
}

// shop is a service under test, and a client with a key that has plenty left.
type shop struct {
	t        *testing.T
	store    *store
	service  *service
	operator *operator        // nil until debug was called
	routes   http.Handler     // of the debug address; nil until then
	server   *httptest.Server // nil in fake time
	key      string

	log       logBuffer
	wantError bool // errors in the log are expected
}

// openShop starts a service on a new database; change adjusts its settings.
func openShop(t *testing.T, change ...func(*settings)) *shop {
	s := openShopInFakeTime(t, change...)
	s.server = httptest.NewServer(s.service)
	t.Cleanup(s.server.Close)
	return s
}

// haveRoom gives a file a disk that is nearly empty. The machine's own may be nearly full.
func haveRoom(s *store) {
	if file, isFile := s.engine.(*sqliteFile); isFile {
		file.diskSpace = func(string) (free, size float64, ok bool) { return 90, 100, true }
	}
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newKey issues an Enterprise key with the quota.
func (s *shop) newKey(q quota) string {
	s.t.Helper()
	token := newSecret(s.service.keys.prefix == "pet_test_")
	key := &apiKey{
		Name:      "test",
		Plan:      "enterprise",
		account:   account{quota: q},
		CreatedAt: instantOf(time.Now()),
		Test:      s.service.keys.prefix == "pet_test_",
	}
	_, err := insertKey(context.Background(), s.store, key, token.digest(), "true")
	must(s.t, err)
	return string(token)
}

// reply is a response as the client has it.
type reply struct {
	t      *testing.T
	what   string // the request, for messages
	status int
	header http.Header
	body   string
}

// call sends a request with the shop's key. Further arguments are headers
// ("If-None-Match: *"; one without a value removes the header) and the body, if
// it comes last and starts with "=".
func (s *shop) call(method, target string, more ...string) reply {
	s.t.Helper()
	var body io.Reader
	if n := len(more); n > 0 && strings.HasPrefix(more[n-1], "=") {
		body, more = strings.NewReader(more[n-1][1:]), more[:n-1]
	}
	r := s.request(method, target, body)
	for _, line := range more {
		name, value, _ := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); value == "" || name == "Authorization" {
			r.Header.Del(name)
		}
		if value != "" {
			r.Header.Add(name, value)
		}
	}
	return s.send(r)
}

// request is a request with the shop's key.
func (s *shop) request(method, target string, body io.Reader) *http.Request {
	s.t.Helper()
	base := "http://shop.invalid"
	if s.server != nil {
		base = s.server.URL
	}
	r, err := http.NewRequest(method, base+target, body)
	must(s.t, err)
	r.Header.Set("Authorization", "Bearer "+s.key)
	return r
}

// get is call with GET, post creates a pet, and list lists pets.
func (s *shop) get(target string, more ...string) reply {
	s.t.Helper()
	return s.call("GET", target, more...)
}

func (s *shop) post(more ...string) reply {
	s.t.Helper()
	return s.call("POST", "/v1/pets", more...)
}

func (s *shop) list(more ...string) reply {
	s.t.Helper()
	return s.call("GET", "/v1/pets", more...)
}

// talk plays a transcript, in paragraphs. Here a pet is added, nothing is found three times, and a
// minute passes:
//
//	POST /v1/pets                   the request; the shop's key goes with it
//	Idempotency-Key: k              a header that is sent; one without a value is left out
//	={"name":"Rex","categoryId":1}  the body that is sent
//	201                             the status, and for an error its code: 400 invalid_body
//	Location: /v1/pets/1            a header of the response; without a value it has none
//	={"id":1,"name":"Rex",…}        the body of the response
//
//	3 GET /v1/pets/2
//	404
//
//	wait 1m
func (s *shop) talk(transcript string) {
	s.t.Helper()
	for paragraph := range strings.SplitSeq(transcript, "\n\n") {
		times := 1
		_, _ = fmt.Sscanf(strings.TrimSpace(paragraph), "%d ", &times) // else it stays 1
		for range times {
			s.exchange(paragraph)
		}
	}
}

var statusLine = regexp.MustCompile(`^\d{3}( [a-z_]+)?$`)

func (s *shop) exchange(paragraph string) {
	s.t.Helper()
	var request []string
	var a reply
	for line := range strings.Lines(paragraph) {
		line = strings.TrimSpace(line)
		first, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "":
		case first == "wait":
			d, err := time.ParseDuration(rest)
			must(s.t, err)
			time.Sleep(d)
		case statusLine.MatchString(line):
			a = s.call(request[0], request[1], request[2:]...)
			status, _ := strconv.Atoi(first)
			if a.is(status); rest != "" {
				a.is(status, ErrorCode(rest))
			}
		case a.status > 0 && first[0] == '=':
			a.body = strings.TrimSpace(a.body)
			a.says(line[1:])
		case a.status > 0:
			a.has(line)
		case request == nil:
			words := strings.Fields(line)
			request = words[len(words)-2:]
		default:
			request = append(request, line)
		}
	}
}

// noKey and withKey are headers for call: without a key, and with another one.
const noKey = "Authorization:"

func withKey(key string) string { return "Authorization: Bearer " + key }

// withUnknownKey is one with a key that nobody has made.
func withUnknownKey() string { return withKey(string(newSecret(false))) }

// send sends a request that is ready, and holds the response against what is promised of every
// response. A test that has failed sends nothing more: some send a thousand requests.
func (s *shop) send(r *http.Request) reply {
	s.t.Helper()
	if s.t.Failed() {
		s.t.FailNow()
	}
	var response *http.Response
	if s.server == nil {
		r.RemoteAddr = "192.0.2.1:1234"
		recorder := httptest.NewRecorder()
		s.service.ServeHTTP(recorder, r)
		response = recorder.Result()
		for name, values := range response.Header { // as a client would see it
			delete(response.Header, name)
			response.Header[http.CanonicalHeaderKey(name)] = values
		}
	} else {
		var err error
		if response, err = http.DefaultTransport.RoundTrip(r); err != nil {
			s.t.Fatal(err)
		}
	}
	body, err := io.ReadAll(response.Body)
	must(s.t, err)
	response.Body.Close()
	what := r.Method + " " + r.URL.RequestURI()
	a := reply{s.t, what, response.StatusCode, response.Header, string(body)}
	a.promised(r)
	describedRequest(s.t, r, a.status)
	describedResponse(s.t, r, a)
	return a
}

// promised checks what every response keeps: a request id of the service's own, what caches may do,
// the limit headers under /v1, and the Error shape unless it is a success.
func (a reply) promised(r *http.Request) {
	a.t.Helper()
	wantMatch(a.t, a.header.Get("X-Request-Id"), `^[0-9a-f]{16}$`,
		a.what, ": X-Request-Id")
	caching := "no-cache"
	if r.URL.Path == "/readyz" {
		caching = "no-store"
	} else if strings.HasPrefix(r.URL.Path+"/", "/v1/") {
		caching = "private, no-cache"
	}
	a.has("Cache-Control: " + caching)
	if strings.HasPrefix(r.URL.Path+"/", "/v1/") {
		limit, left := a.number("X-RateLimit-Limit"), a.number("X-RateLimit-Remaining")
		if left < 0 || left > limit || a.number("X-RateLimit-Reset") == 0 {
			a.t.Errorf("%s: the headers are %v", a.what, a.header)
		}
		if a.header.Get("RateLimit") == "" || a.header.Get("RateLimit-Policy") == "" {
			a.t.Errorf("%s: no RateLimit or no RateLimit-Policy", a.what)
		}
	}
	if a.status >= 300 && a.status != http.StatusNotModified {
		a.has("Content-Type: application/json")
		if r.Method == http.MethodHead {
			return
		}
		if len(a.body) > 4<<10 {
			a.t.Errorf("%.100s: status %d with an Error of %d bytes", a.what, a.status, len(a.body))
		}
		if e := a.err(); e.Status != a.status || e.Message == "" || wireCodes[e.Code] != a.status {
			a.t.Errorf("%s: status %d with error %+v", a.what, a.status, e)
		}
	}
}

func (a reply) number(header string) int64 {
	a.t.Helper()
	n, err := strconv.ParseInt(a.header.Get(header), 10, 64)
	if err != nil {
		a.t.Errorf("%s: %s is %q", a.what, header, a.header.Get(header))
	}
	return n
}

func (a reply) err() (e wireError) {
	a.t.Helper()
	a.decode(&e)
	return e
}

func (a reply) decode(into any) {
	a.t.Helper()
	decoder := json.NewDecoder(strings.NewReader(a.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		a.t.Fatalf("%s: %v in %q", brief(a.what), err, brief(a.body))
	}
}

// is checks the status and, for an error, the code.
func (a reply) is(status int, code ...ErrorCode) reply {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d; body %s", brief(a.what), a.status, status,
			brief(a.body))
	}
	if len(code) == 1 && a.err().Code != string(code[0]) {
		a.t.Fatalf("%s: code %s, want %s", a.what, a.err().Code, code[0])
	}
	return a
}

// has checks headers ("Vary: Origin"). One without a value must be absent.
func (a reply) has(lines ...string) reply {
	a.t.Helper()
	for _, line := range lines {
		header, want, _ := strings.Cut(line, ":")
		got := strings.Join(a.header.Values(header), "; ")
		wantEqual(a.t, got, strings.TrimSpace(want), a.what, ": ", header)
	}
	return a
}

// says checks the body, and tells the message of an error.
func (a reply) says(body string) reply {
	a.t.Helper()
	wantEqual(a.t, a.body, body, a.what, ": the body")
	return a
}

func (a reply) tells(message string) {
	a.t.Helper()
	wantEqual(a.t, a.err().Message, message, a.what, ": the message")
}

// lists checks the ids of a page.
func (a reply) lists(ids ...int64) {
	a.t.Helper()
	if got := a.ids(); !slices.Equal(got, ids) {
		a.t.Errorf("%s: the pets are %v, want %v", a.what, got, ids)
	}
}

// stock creates n pets; every third is sold, every third pending.
func (s *shop) stock(n int) {
	s.t.Helper()
	for i := range n {
		status := []PetStatus{Available, Pending, Sold}[i%3]
		pet := NewPet{Name: fmt.Sprint("pet ", i+1), CategoryID: int64(i), Status: status}
		mustCreate(s.t, s.store, pet)
	}
}

func (a reply) ids() []int64 {
	a.t.Helper()
	var pets []wirePet
	a.is(200).decode(&pets)
	ids := []int64{}
	for _, p := range pets {
		ids = append(ids, p.ID)
	}
	return ids
}

// debugCall sends a request to the debug address.
func debugCall(routes http.Handler, path, host string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", path, nil)
	r.Host = host
	routes.ServeHTTP(w, r)
	return w
}

// mustNoteBackup notes that a backup was made in second 7.
func mustNoteBackup(t testing.TB, s *store) {
	t.Helper()
	mustWrite(t, s, sqlOf("REPLACE INTO counters (name, value) VALUES ('backup', 7)"))
}
