package e2e

// Proven here alone: what a service does while its disk is full, takes no writes, or has other
// files in the place of its own, and afterwards. Its ledger of what clients were told is that of
// other tests too.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"petstore/e2e/planted"
)

// fault is something that goes wrong with the storage of a running service.
type fault struct {
	name  string
	begin func(t *testing.T, s *server) (end func())
	cause string // how the log names it
	small bool   // the database lies on a small file system of its own
	some  bool   // some commits fail, and not all
}

// strike lets the fault begin; it ends with the test at the latest.
func (f fault) strike(t *testing.T, s *server) (end func()) {
	t.Helper()
	end = sync.OnceFunc(f.begin(t, s))
	t.Cleanup(end)
	return end
}

// ioError is SQLite's name for what the system refuses, but for a full disk.
const ioError = "disk I/O error"

// The calls with which SQLite changes a file, and brings it to disk.
const (
	writeCalls = "pwrite64,ftruncate,fallocate"
	syncCalls  = "fsync,fdatasync"
)

var faults = []fault{
	{name: "another process holds the write lock", begin: holdLock, cause: "database is locked"},
	{name: "the disk is full", begin: fillDisk, cause: "disk is full", small: true},
	{name: "the file may not grow", begin: limitFileSize, cause: ioError},
	{name: "the quota is used up", begin: inject(writeCalls, "EDQUOT"), cause: ioError},
	{name: "the disk is read-only", begin: inject(writeCalls, "EROFS"), cause: ioError},
	{name: "the disk takes no writes", begin: inject(writeCalls, "EIO"), cause: ioError},
	{name: "every fifth write fails", begin: inject("pwrite64", "EIO:when=1+5"), cause: ioError,
		some: true},
	{name: "the file is moved away", begin: moveAway(""), cause: "no such file"},
	{name: "the -wal is moved away", begin: moveAway("-wal"), cause: "no such file"},
	{name: "the -shm is moved away", begin: moveAway("-shm"), cause: "no such file"},
	{name: "the file and all beside it are moved away", begin: moveAway("", "-wal", "-shm"),
		cause: "no such file"},
	{name: "the file and its -wal are replaced by another program's", begin: replace(inUse),
		cause: "is not the file that was opened"},
	{name: "the file is replaced by an older copy", begin: replace(olderCopy),
		cause: "is not the file that was opened"},
}

// TestStorageFaultsPassAndLeaveNoTrace lets every fault but a failed sync come and go while
// clients create animals. As long as it lasts, creates are refused and reads
// answered; after it the service works again by itself, and holds what was
// answered 201 and nothing that was answered 503.
//
// Then the fault comes again, and the service is killed in the middle of it, or stopped, which is
// drawn.
func TestStorageFaultsPassAndLeaveNoTrace(t *testing.T) {
	t.Parallel()
	stock := newStock(t)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := stock.serve(t, f.small)
			book := newLedger(t, s)
			stopCreating := book.keepCreating()
			book.endure(stock, f)
			stopCreating()
			book.repeatRefused()
			book.audit()
			for _, terminate := range planted.Some(t.Name(), 1, []func(){s.kill, s.interrupt}) {
				stopCreating = book.keepCreating()
				end := f.strike(t, s)
				book.awaitRefusals(f)
				stopCreating()
				terminate()
				end()
				s.run(debugFlags...)
				book.connect()
				book.repeatRefused()
				book.audit()
			}
		})
	}
}

// TestWhatCpWritesOverAServedDatabaseIsNotServed: creates are refused, the start
// as well, and what was confirmed since the copy is in the log that is kept.
func TestWhatCpWritesOverAServedDatabaseIsNotServed(t *testing.T) {
	stock := newStock(t)
	s := stock.serve(t, false)
	book := newLedger(t, s)
	copied := s.db + ".copy"
	s.command("backup", "-db", s.db, copied)
	book.create(book.next())
	succeeds(t, exec.Command("cp", copied, s.db))
	book.awaitReadiness(http.StatusServiceUnavailable)
	book.awaitRefusals(fault{})
	s.interrupt()
	fails(t, program("-addr", "127.0.0.1:0", "-db", s.db), "move "+s.db+", ")
	away := t.TempDir()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		noError(t, os.Rename(s.db+suffix, filepath.Join(away, "petstore.db"+suffix)))
	}
	s.command("restore", "-db", s.db, copied)
	s.run(debugFlags...)
	book.connect()
	book.wantPet(1)
}

// TestALogThatFillsTheDiskIsEmptied fills a small disk with the log, far below
// the size at which the program empties it. The database has free pages inside.
func TestALogThatFillsTheDiskIsEmptied(t *testing.T) {
	dir := t.TempDir()
	mount(t, dir, "size=2560k")
	wantLogEmptied(t, dir, func(*server) {})
}

// TestALogThatMayNotGrowIsEmptied: SQLite calls a limit of file sizes, as it
// calls a quota, an I/O error.
func TestALogThatMayNotGrowIsEmptied(t *testing.T) {
	wantLogEmptied(t, t.TempDir(), func(s *server) { limitFileSizeTo(t, s, "1500000") })
}

// wantLogEmptied creates animals where the log finds little space.
func wantLogEmptied(t *testing.T, dir string, limit func(s *server)) {
	t.Helper()
	s := &server{t: t, db: filepath.Join(dir, "petstore.db")}
	s.key = s.newKey(unlimited...)
	database(t, s.db,
		`WITH RECURSIVE ids (id) AS (VALUES (1) UNION ALL SELECT id + 1 FROM ids LIMIT 2000)
		INSERT INTO pets (category_id, status, name) SELECT 1, 2, hex(randomblob(100)) FROM ids`,
		"DELETE FROM pets").Close()
	s.run(debugFlags...)
	limit(s)
	full, made := 0, 0
	client := newHTTPClient(1)
	for range 1000 {
		a, err := s.send(t.Context(), client, "POST", "/pets", animalJSON(strings.Repeat("x", 200)))
		noError(t, err)
		switch a.status {
		case http.StatusCreated:
			made++
		case http.StatusServiceUnavailable:
			full++
		default:
			t.Fatalf("a create says %d %s", a.status, a.body)
		}
	}
	if full == 0 || made < 800 {
		t.Errorf("of 1000 creates %d are made, and %d find a full disk", made, full)
	}
}

// TestAStartOnAFullDiskSaysSo: there is no space for the files beside the
// database, which a stop has removed.
func TestAStartOnAFullDiskSaysSo(t *testing.T) {
	s := newStock(t).serve(t, true)
	s.stop()
	free := fillDisk(t, s)
	for _, args := range [][]string{
		{"-addr", "127.0.0.1:0", "-db", s.db},
		{"key", "create", "-db", s.db},
		{"key", "list", "-db", s.db},
	} {
		fails(t, program(args...), "disk is full")
	}
	free()
	s.run()
	s.stop()
}

// TestWhatCannotBeReadIsNotTakenForMissing makes reading fail. An animal that
// may be there is then not 404, and a key that may be good not 401; what is
// remembered is answered all the same.
func TestWhatCannotBeReadIsNotTakenForMissing(t *testing.T) {
	stock := newStock(t)
	s := stock.serve(t, false)
	book := newLedger(t, s)
	book.wantPage(0, 20)
	book.wantPet(1)
	book.create(book.next()) // so that no connection takes its own copy of a page for current
	end := fault{begin: inject("pread64", "EIO")}.strike(t, s)
	book.awaitReadiness(http.StatusServiceUnavailable)
	ctx := context.Background()
	for range 3 {
		book.check.mustSend(t, ctx, "500 internal_error", "GET", "/pets/1234", "")
		book.check.mustSend(t, ctx, "500 internal_error", "GET", "/pets?after=1234", "")
		book.check.mustSend(t, ctx, "500 internal_error", "GET", "/pets", "",
			"Authorization: Bearer "+stock.unused[0])
	}
	book.wantPage(0, 20)
	book.wantPet(1)
	// what SQLite takes EIO for
	if log := s.log.String(); !strings.Contains(log, "disk image is malformed") {
		t.Errorf("the log does not name the cause:\n%s", tail(log))
	}
	end()
	book.awaitReadiness(http.StatusOK)
	book.read(stock)
	book.audit()
}

// TestOfServicesStartedAtOnceOneRuns starts several on a database that nobody
// has made yet: all but one must end.
func TestOfServicesStartedAtOnceOneRuns(t *testing.T) {
	db := filepath.Join(t.TempDir(), "petstore.db")
	var running, ended []*process
	for range 4 {
		running = append(running, launch(t, program("-addr", "127.0.0.1:0", "-db", db)))
	}
	eventually(t, longEnough, func() error {
		running = slices.DeleteFunc(running, func(p *process) bool {
			if p.within(0) {
				ended = append(ended, p)
			}
			return p.within(0)
		})
		if len(running) > 1 {
			return fmt.Errorf("%d services are still running", len(running))
		}
		return nil
	})
	for _, p := range ended {
		if p.status() != 1 || !strings.Contains(p.log.String(), "a petstore serves it") {
			t.Error(p.told())
		}
	}
	if len(running) == 1 {
		running[0].url()
		noError(t, running[0].cmd.Process.Signal(os.Interrupt))
		if running[0].status() != 0 {
			t.Error(running[0].told())
		}
	}
}

// files are the contents of a folder's files, by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	noError(t, err)
	contents := map[string]string{}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		noError(t, err)
		contents[entry.Name()] = string(content)
	}
	return contents
}

// stock is a database that holds animals, as every fault finds it.
type stock struct {
	db, key string
	unused  []string // keys that have never called
	foreign string   // a key of another database
}

// stockSize is far more animals than a page holds, so that there are always
// some that nobody has asked for yet.
const stockSize = 2000

func stockName(id int64) string { return fmt.Sprintf("stock %d", id) }

func newStock(t *testing.T) *stock {
	t.Helper()
	s := start(t)
	st := &stock{db: s.db, key: s.key}
	for range 4 {
		st.unused = append(st.unused, s.newKey("-plan", "free"))
	}
	st.foreign = (&server{t: t, db: filepath.Join(t.TempDir(), "foreign.db")}).newKey()
	s.stop()
	database(t, s.db,
		fmt.Sprintf(`WITH RECURSIVE
			ids (id) AS (VALUES (1) UNION ALL SELECT id + 1 FROM ids LIMIT %d)
		INSERT INTO pets (category_id, status, name) SELECT 1, 2, 'stock ' || id FROM ids`,
			stockSize)).Close()
	return st
}

// serve runs the service on a copy of the stock.
func (st *stock) serve(t *testing.T, small bool) *server {
	t.Helper()
	dir := t.TempDir()
	if small {
		mount(t, dir, "size=16m")
	}
	s := &server{t: t, db: filepath.Join(dir, "petstore.db"), key: st.key}
	content, err := os.ReadFile(st.db)
	noError(t, err)
	noError(t, os.WriteFile(s.db, content, 0o600))
	s.run(debugFlags...)
	return s
}

// interrupt stops the program where it may not be able to write the usage.
func (s *server) interrupt() {
	s.t.Helper()
	noError(s.t, s.cmd.Process.Signal(os.Interrupt))
	if err := s.cmd.Wait(); err != nil && !strings.Contains(tail(s.log.String()), "petstore: ") {
		s.t.Errorf("petstore ended with %v and does not say why:\n%s", err, tail(s.log.String()))
	}
}

// longEnough is for what takes no time to speak of.
const longEnough = 10 * time.Second

// order is the wish for an animal; once is its Idempotency-Key, or "".
type order struct{ name, once string }

// ledger is what clients were told about the animals that they ordered.
type ledger struct {
	t      *testing.T
	server *server
	check  *contract    // holds every answer against the description
	orders atomic.Int64 // numbers them
	colds  atomic.Int64 // numbers the reads

	mu       sync.Mutex       // guards the rest
	made     map[string]int64 // name: id of the 201
	refused  []order
	doubtful map[string]bool // names of those refused that may be made all the same
	wrong    []string        // answers that must not be
}

func newLedger(t *testing.T, s *server) *ledger {
	t.Helper()
	l := &ledger{t: t, server: s, made: map[string]int64{}, doubtful: map[string]bool{}}
	l.connect()
	return l
}

// connect is needed again whenever the server has been started anew.
func (l *ledger) connect() {
	l.check = newContract(l.t, l.server)
	l.check.base = &http.Transport{MaxIdleConnsPerHost: 64}
}

// send returns nil if there was no proper answer in time, and notes why.
func (l *ledger) send(method, target, body string, headers ...string) *answer {
	ctx, cancel := context.WithTimeout(context.Background(), longEnough)
	defer cancel()
	a, err := l.check.send(ctx, method, target, body, headers...)
	if err != nil {
		l.note("%s %s: %v", method, target, err)
		return nil
	}
	return a
}

func (l *ledger) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

func (l *ledger) mustBeRight() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.wrong); n > 0 {
		l.t.Fatalf("%d answers are wrong, first of all:\n%s\n%s", n,
			strings.Join(l.wrong[:min(n, 5)], "\n"), tail(l.server.log.String()))
	}
}

// next is a new order; every other one has an Idempotency-Key.
func (l *ledger) next() order {
	n := l.orders.Add(1)
	o := order{name: fmt.Sprintf("animal %d", n)}
	if n%2 == 0 {
		o.once = fmt.Sprintf("order-%d", n)
	}
	return o
}

// create places an order and books the answer, which must be 201 or 503.
func (l *ledger) create(o order) (a *answer) {
	var headers []string
	if o.once != "" {
		headers = append(headers, "Idempotency-Key: "+o.once)
	}
	if a = l.send("POST", "/pets", animalJSON(o.name), headers...); a == nil {
		return nil
	}
	switch {
	case a.status == http.StatusCreated:
		var p pet
		if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Name != o.name {
			l.note("the order of %s is answered with %s", o.name, a.body)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if id, known := l.made[o.name]; known && id != p.ID {
			l.wrong = append(l.wrong, fmt.Sprintf("%s was made as %d, and again as %d", o.name, id,
				p.ID))
		}
		l.made[o.name] = p.ID
	case a.status == http.StatusServiceUnavailable && a.code == "unavailable" &&
		a.header.Get("Retry-After") == "1":
		l.mu.Lock()
		defer l.mu.Unlock()
		l.refused = append(l.refused, o)
	default:
		l.note("the order of %s is answered %d %s, Retry-After %q", o.name, a.status, a.body,
			a.header.Get("Retry-After"))
	}
	return a
}

func (l *ledger) refusals() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.refused)
}

// keepCreating has four clients place 25 orders a second each until stop.
func (l *ledger) keepCreating() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			pace := time.NewTicker(40 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				l.create(l.next())
				<-pace.C
			}
		})
	}
	stop = func() {
		cancel()
		clients.Wait()
	}
	l.t.Cleanup(stop)
	return stop
}

// endure lets a fault begin, last and end.
func (l *ledger) endure(st *stock, f fault) {
	l.t.Helper()
	end := f.strike(l.t, l.server)
	l.awaitRefusals(f)
	if !f.some {
		l.awaitReadiness(http.StatusServiceUnavailable)
	}
	refused, logged, began := l.refusals(), len(l.server.log.String()), time.Now()
	pace := time.NewTicker(50 * time.Millisecond)
	defer pace.Stop()
	for lasts := soak(500 * time.Millisecond); time.Since(began) < lasts; <-pace.C {
		l.read(st)
		for range 2 {
			if a := l.create(l.next()); a != nil && a.status == http.StatusCreated && !f.some {
				l.t.Errorf("during the fault %s is made", a.body)
			}
		}
	}
	l.checkLog(f, l.server.log.String()[logged:], l.refusals()-refused, time.Since(began))
	end()
	ended := time.Now()
	for a := l.create(l.next()); a == nil ||
		a.status != http.StatusCreated; a = l.create(l.next()) {
		if time.Since(ended) > longEnough {
			l.t.Fatalf("%v after the end of the fault no animal can be made:\n%s", longEnough,
				tail(l.server.log.String()))
		}
	}
	l.t.Logf("%d refused; the first 201 comes %v after the end", l.refusals()-refused,
		time.Since(ended))
	l.awaitReadiness(http.StatusOK)
	l.mustBeRight()
}

// awaitRefusals returns when the fault has taken hold: when three creates in
// turn are refused or, if only some are to be, three in all. On a full disk that
// may take a while, since a -wal that was copied into the database is free again.
func (l *ledger) awaitRefusals(f fault) {
	l.t.Helper()
	began := time.Now()
	for refused := 0; refused < 3; {
		if a := l.create(l.next()); a != nil && a.status == http.StatusServiceUnavailable {
			refused++
		} else if !f.some {
			refused = 0
		}
		if lasts := time.Since(began); lasts > 3*longEnough {
			l.mustBeRight()
			l.t.Fatalf("%v after the beginning of the fault animals are still made:\n%s", lasts,
				tail(l.server.log.String()))
		}
	}
}

// awaitReadiness polls /readyz.
func (l *ledger) awaitReadiness(want int) {
	l.t.Helper()
	client := &http.Client{Timeout: longEnough}
	eventually(l.t, longEnough, func() error {
		response, err := client.Get(l.server.debug + "/readyz")
		noError(l.t, err)
		response.Body.Close()
		if response.StatusCode != want {
			return fmt.Errorf("/readyz is %d, want %d", response.StatusCode, want)
		}
		return nil
	})
}

// read asks for what is remembered and for what nobody has asked for yet, many
// at once so that every connection to the database is used.
func (l *ledger) read(st *stock) {
	l.t.Helper()
	l.wantPage(0, 20)
	l.wantPet(1)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			n := l.colds.Add(1)
			l.wantPage(n*337%(stockSize-100), n%100+1)
			l.wantPet(n*373%stockSize + 1)
		})
	}
	clients.Wait()
	if n := int(l.colds.Load()/8) - 1; n < len(st.unused) {
		l.wantStatus(http.StatusOK, st.unused[n])
		l.wantStatus(http.StatusUnauthorized, st.foreign)
	}
	l.mustBeRight()
}

func (l *ledger) wantPage(after, limit int64) {
	want := []pet{}
	for id := after + 1; id <= after+limit; id++ {
		want = append(want, pet{id, stockName(id), 1, "available"})
	}
	l.wantJSON(fmt.Sprintf("/pets?after=%d&limit=%d", after, limit), want)
}

func (l *ledger) wantPet(id int64) {
	l.wantJSON(fmt.Sprintf("/pets/%d", id), pet{id, stockName(id), 1, "available"})
}

func (l *ledger) wantJSON(target string, want any) {
	body, _ := json.Marshal(want) // numbers and strings
	if a := l.send("GET", target, ""); a != nil && (a.status != http.StatusOK ||
		a.body != string(body)) {
		l.note("GET %s is answered %d %.200s, want %.200s", target, a.status, a.body, body)
	}
}

func (l *ledger) wantStatus(want int, key string) {
	if a := l.send("GET", "/pets", "", "Authorization: Bearer "+key); a != nil && a.status != want {
		l.note("a key that calls for the first time is answered %d %s, want %d", a.status, a.body,
			want)
	}
}

// checkLog wants the cause of a fault named, and no more lines than one for
// each refusal and ten a second besides.
func (l *ledger) checkLog(f fault, log string, refusals int, lasted time.Duration) {
	l.t.Helper()
	if !strings.Contains(log, f.cause) {
		l.t.Errorf("the log does not name the cause, %q:\n%s", f.cause, tail(log))
	}
	// requests that were logged and not yet counted, or ticks that fall into the time
	const underWay = 8
	ofRequests := strings.Count(log, `"request":`)
	others := strings.Count(log, "\n") - ofRequests
	if ofRequests > refusals+underWay || others > underWay+int(10*lasted.Seconds()) {
		l.t.Errorf("in %v, with %d requests refused, the log has %d lines for requests and %d "+
			"others:\n%s", lasted, refusals, ofRequests, others, tail(log))
	}
}

// doubtRefused is for a kill after which an animal that was answered 503 may
// come to light.
func (l *ledger) doubtRefused() {
	for _, o := range l.refused {
		l.doubtful[o.name] = true
	}
}

// repeatRefused repeats what was refused under an Idempotency-Key, as clients
// are told to do, and then once more.
func (l *ledger) repeatRefused() {
	l.t.Helper()
	refused := l.refused
	l.refused = nil
	for _, o := range refused {
		if o.once == "" {
			continue
		}
		for i, want := range []string{"", "true"} {
			a := l.create(o)
			if a == nil || a.status != http.StatusCreated {
				l.note("after the fault %s is refused", o.name)
			} else if replayed := a.header.Get("Idempotency-Replayed"); replayed != want &&
				!(i == 0 && l.doubtful[o.name]) {
				l.note("repeat %d of %s has Idempotency-Replayed %q, want %q", i+1, o.name,
					replayed, want)
			}
		}
	}
	l.mustBeRight()
}

// audit holds the books against the database: every animal that was answered
// 201 is there once, under its id, and besides them there is the stock alone.
// A doubtful one may be there too, but once.
func (l *ledger) audit() {
	l.t.Helper()
	stored := everyPet(l.t, func(target string) string {
		got := l.send("GET", target, "")
		l.mustBeRight()
		return got.body
	})
	expected := maps.Clone(l.made)
	for id := range int64(stockSize) {
		expected[stockName(id+1)] = id + 1
	}
	checkStored(l.t, stored, expected, func(name string, _ int64) bool { return l.doubtful[name] })
	checkIntegrity(l.t, l.server.db)
	const strangers = "SELECT count(*) FROM idempotency LEFT JOIN pets ON id = pet_id WHERE name " +
		"IS NOT 'animal ' || substr(idempotency_key, 7)"
	if n := query[int64](l.t, l.server.db, strangers); n != 0 {
		l.t.Errorf("%d idempotency records are of no pet, or of another", n)
	}
}

// mount puts an empty file system into memory, at a folder, until the test ends.
func mount(t *testing.T, dir, options string) {
	t.Helper()
	tool(t, "mount", "-t", "tmpfs", "-o", options, "tmpfs", dir)
	t.Cleanup(func() { tool(t, "umount", "-l", dir) }) // lazily: what uses it is ended later
}

// tool runs what only root may.
func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(name, "needs root")
	}
	runs(t, exec.Command(name, args...))
}

// fillDisk leaves no free block.
func fillDisk(t *testing.T, s *server) (end func()) {
	ballast := filepath.Join(filepath.Dir(s.db), "ballast")
	f, err := os.Create(ballast)
	noError(t, err)
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() { noError(t, os.Remove(ballast)) }
}

// limitFileSize gives the process a limit that the database exceeds already.
func limitFileSize(t *testing.T, s *server) (end func()) {
	return limitFileSizeTo(t, s, "4096")
}

func limitFileSizeTo(t *testing.T, s *server, bytes string) (end func()) {
	t.Helper()
	limit := func(bytes string) error {
		return exec.Command("prlimit", "--pid", fmt.Sprint(s.cmd.Process.Pid),
			"--fsize="+bytes+":").Run()
	}
	noError(t, limit(bytes))
	return func() { _ = limit("unlimited") } // the process may have been killed
}

// inject makes system calls of the process fail.
func inject(calls, how string) func(t *testing.T, s *server) (end func()) {
	return tamper(calls, "error="+how)
}

// tamper changes what system calls of the process do, by strace.
func tamper(calls, how string) func(t *testing.T, s *server) (end func()) {
	return func(t *testing.T, s *server) (end func()) {
		pid := s.cmd.Process.Pid
		strace := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-p", fmt.Sprint(pid),
			"-e", "trace="+calls, "-e", "inject="+calls+":"+how)
		var stderr bytes.Buffer
		strace.Stderr = &stderr
		noError(t, strace.Start())
		end = func() {
			_ = strace.Process.Signal(os.Interrupt) // makes it let go
			_ = strace.Wait()
		}
		for began := time.Now(); !traced(t, pid); time.Sleep(time.Millisecond) {
			if time.Since(began) > longEnough {
				end()
				t.Fatalf("strace cannot attach: %s", stderr.String())
			}
		}
		return end
	}
}

// traced reports whether every thread of the process has a tracer.
func traced(t *testing.T, pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	noError(t, err)
	return !slices.ContainsFunc(threads, func(thread string) bool {
		status, err := os.ReadFile(thread)
		// else the thread has ended
		return err == nil && bytes.Contains(status, []byte("\nTracerPid:\t0\n"))
	})
}

// holdLock takes the write lock, as a process does that writes for a long time.
func holdLock(t *testing.T, s *server) (end func()) { return lock(t, s.db) }

// moveAway moves files of the database; nobody must make new ones meanwhile.
func moveAway(suffixes ...string) func(t *testing.T, s *server) (end func()) {
	return func(t *testing.T, s *server) (end func()) {
		for _, suffix := range suffixes {
			noError(t, os.Rename(s.db+suffix, s.db+suffix+".aside"))
		}
		return func() {
			for _, suffix := range suffixes {
				if _, err := os.Lstat(s.db + suffix); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("petstore.db%s was made anew while it was away: %v", suffix, err)
				}
				noError(t, os.Rename(s.db+suffix+".aside", s.db+suffix))
			}
		}
	}
}

// replace puts other files in the place of the database, and of its -wal if
// there is another; nobody must touch them.
func replace(other func(t *testing.T, path string)) func(t *testing.T, s *server) (end func()) {
	return func(t *testing.T, s *server) (end func()) {
		other(t, s.db+".other")
		contents := map[string][]byte{}
		for _, file := range []string{s.db, s.db + "-wal"} {
			suffix := strings.TrimPrefix(file, s.db)
			content, err := os.ReadFile(s.db + ".other" + suffix)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			noError(t, err)
			contents[file] = content
			noError(t, os.Rename(file, file+".aside"))
			noError(t, os.Rename(s.db+".other"+suffix, file))
		}
		return func() {
			for file, before := range contents {
				after, err := os.ReadFile(file)
				if err != nil || !bytes.Equal(before, after) {
					t.Errorf("what stands in the place of %s was changed, %v", file, err)
				}
				noError(t, os.Rename(file+".aside", file))
			}
		}
	}
}

// inUse makes a database of another program as it lies there after a power
// cut: its table and its mark have come no farther than to the -wal.
func inUse(t *testing.T, path string) {
	source := filepath.Join(t.TempDir(), "source.db")
	db := database(t, source, "PRAGMA journal_mode = WAL", "PRAGMA application_id = 5",
		"CREATE TABLE recipes (name)")
	defer db.Close()
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(source + suffix)
		noError(t, err)
		noError(t, os.WriteFile(path+suffix, content, 0o600))
	}
}

func olderCopy(t *testing.T, path string) {
	s := &server{t: t}
	s.command("backup", "-db", strings.TrimSuffix(path, ".other"), path)
}
