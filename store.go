package main

// The store: one SQLite file. Animals, keys, usage and idempotency records live
// in it; what is read often is remembered here as encoded JSON.
//
// Writing is done by leader and followers. A request queues its statements;
// the one that finds no commit under way becomes the leader, commits all that
// is queued in one transaction and wakes the others. So 64 clients share one
// fsync, and nobody is answered before the disk has the data. A goroutine that
// owns the writing connection would do the same, but on a single core it starves
// the network poller: reads then wait for hundreds of milliseconds.
//
// What a batch does depends on its SQL alone and never on Go code in the middle
// of it, so that another engine with the same SQL could take the file's place.

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// applicationID marks a database file as this program's ("pets" in ASCII).
const applicationID = 0x70657473

// migrations take the schema from one user_version to the next. Instants are
// Unix milliseconds; 0 stands for never.
var migrations = []string{`
CREATE TABLE pets (
	id          INTEGER PRIMARY KEY AUTOINCREMENT, -- from 1 upward; AUTOINCREMENT never reuses one
	category_id INTEGER NOT NULL,
	status      INTEGER NOT NULL CHECK (status BETWEEN 2 AND 4), -- available, pending, sold
	name        TEXT NOT NULL                      -- exactly as sent
) STRICT;
CREATE INDEX pets_status ON pets (status);             -- every index holds the rowid too, so this pages by id

CREATE TABLE api_keys (
	id                INTEGER PRIMARY KEY AUTOINCREMENT,
	digest            BLOB NOT NULL UNIQUE,      -- SHA-256 of the key, which itself is nowhere
	last_four         TEXT NOT NULL,             -- of the key, for people
	test              INTEGER NOT NULL,          -- 1 for pet_test_, 0 for pet_live_
	name              TEXT NOT NULL,
	plan              TEXT NOT NULL,             -- free, pro, business, enterprise
	per_minute        INTEGER NOT NULL,          -- requests; heeded on the enterprise plan only
	per_day           INTEGER NOT NULL,
	created_at        INTEGER NOT NULL,
	lifetime          INTEGER NOT NULL,          -- milliseconds that it was made for; 0: for ever
	expires_at        INTEGER NOT NULL,          -- 0: never
	revoked_at        INTEGER NOT NULL DEFAULT 0,
	unbanned_at       INTEGER NOT NULL,          -- bans that began before are lifted
	deprecated_use_at INTEGER NOT NULL DEFAULT 0, -- last use of the deprecated operation
	usage_id          INTEGER                    -- the first key of a line of rotations; NULL: this one
) STRICT;

CREATE TABLE usage (
	id           INTEGER PRIMARY KEY, -- of the key, or of the first in its line of rotations
	minute_used  INTEGER NOT NULL,    -- requests counted in the minute's window
	minute_ends  INTEGER NOT NULL,
	day_used     INTEGER NOT NULL,
	day_ends     INTEGER NOT NULL,
	banned_at    INTEGER NOT NULL,
	banned_until INTEGER NOT NULL
) STRICT;

CREATE TABLE idempotency (
	key_id          INTEGER NOT NULL,
	idempotency_key TEXT NOT NULL,    -- as the client sent it
	body_digest     BLOB NOT NULL,    -- SHA-256 of the request body
	pet_id          INTEGER NOT NULL, -- the animal it made
	created_at      INTEGER NOT NULL,
	PRIMARY KEY (key_id, idempotency_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_created_at ON idempotency (created_at);
`}

// errUnavailable means that a commit did not happen: nothing of it is stored,
// and the same request may succeed later.
var errUnavailable = errors.New("the store cannot commit now")

// errKeyEnded means that a key is revoked or expired and cannot be rotated.
var errKeyEnded = errors.New("the key is revoked or expired")

// Sizes and waits of the store.
const (
	maxQueue     = 4096      // commits that may wait; more are refused
	readers      = 4         // reading connections
	cachedPets   = 1 << 13   // animals remembered, about 300 bytes each
	maxLimit     = 100       // animals on a page
	serviceBusy  = 500       // milliseconds that the service waits for another process's write lock
	commandBusy  = 10_000    // the same for the commands, which have nobody waiting behind them
	cacheKiB     = 2 * 1024  // SQLite's page cache, for each connection
	recordMillis = dayMillis // how long an Idempotency-Key is remembered
	headerSize   = 100       // bytes that every SQLite file starts with
)

// store is safe for concurrent use.
type store struct {
	path    string
	named   string  // the same without links: what SQLite names the other files after
	writer  *sql.DB // one connection, used by the leader only
	reader  *sql.DB
	conn    *sql.Conn            // the writer's connection
	prepare map[string]*sql.Stmt // the leader's prepared statements
	version int64                // data_version as the leader last saw it
	writing sync.Mutex           // held by the leader while it uses these, and by Close

	opened map[string]os.FileInfo // the database, its log and the log's index, by path, as they were opened
	lock   *sql.DB                // keeps a second service out; nil for commands

	mu      sync.Mutex // guards the next two
	queue   []*commit
	leading bool // a leader is at work, or has been woken to be

	// writes counts commits of this process and of others; foreign those of
	// others only. What is remembered holds the count from before it was read
	// and is good while that has not moved.
	writes, foreign atomic.Uint64

	pages [5][maxLimit + 1]atomic.Pointer[page] // first pages, by status code (0: all) and limit
	pets  [cachedPets]atomic.Pointer[cachedPet] // by id modulo the size

	readPage, readPageOf, readPet, readKey, readUsage, readRecord *sql.Stmt

	// What /metrics tells.
	commitSizes   histogram // calls of commit that shared a transaction
	commitTimes   histogram // nanoseconds, of the transactions that succeeded
	commitsFailed atomic.Uint64
	pageReads     cacheCounts
	petReads      cacheCounts
}

// cacheCounts tells how often what was asked for was remembered.
type cacheCounts struct{ hits, misses atomic.Uint64 }

// commitSizeBounds are requests; the queue takes no more than the last.
var commitSizeBounds = []int64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, maxQueue}

// statement is one SQL statement of a commit.
type statement struct {
	query string
	args  []any
}

// commit is the list of statements of one request, and what became of it.
type commit struct {
	statements []statement
	results    []sql.Result
	err        error
	wake       chan bool // true: lead the next commit; false: it is done
}

// purpose is what a database is opened for.
type purpose int

const (
	forCommand    purpose = iota // the file has to be there
	forNewKey                    // a command that makes the file if there is none
	forTheService                // the same, and there must be no other service on it
)

// openDatabase opens or, for some purposes, makes the database file and brings
// its schema up to date. A file that is no database, another program's, or of
// a newer schema is refused and left as it was.
func openDatabase(path string, why purpose) (*store, error) {
	fail := func(err error) (*store, error) {
		return nil, fmt.Errorf("cannot open the database %s: %w", path, err)
	}
	if path == "" {
		return nil, usageErrorf("-db must name a file")
	}
	info, err := os.Stat(path) //nolint:gosec // the operator names the file
	if errors.Is(err, os.ErrNotExist) && why == forCommand {
		return nil, fmt.Errorf("there is no database %s; petstore makes it at its first start", path)
	}
	if err != nil || info.Size() == 0 {
		// SQLite would delete the log of a database that is new to it.
		if _, err := os.Stat(path + "-wal"); err == nil { //nolint:gosec // the operator names the file
			return fail(errors.New("it is missing or empty, but its -wal is there; put the file back, or move the -wal away"))
		}
	}
	size, err := touch(path)
	if err != nil {
		return fail(err)
	}
	named, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fail(err)
	}
	if size > 0 && size < headerSize { // SQLite would take it for an empty one
		return fail(errors.New("file is not a database"))
	}
	if size > 0 {
		if err := checkFile(named); err != nil {
			return fail(err)
		}
	}
	s := &store{path: path, named: named, prepare: map[string]*sql.Stmt{},
		commitSizes: histogram{bounds: commitSizeBounds}, commitTimes: histogram{bounds: durationBounds}}
	if err := s.open(why); err != nil {
		return fail(errors.Join(err, s.Close()))
	}
	return s, nil
}

// lockOut keeps other services off the database as long as this process lives,
// since two of them would each count the requests of a key alone. The lock is
// SQLite's on an empty file beside the database, for it is the one kind of lock
// that is at hand on every system; the kernel frees it even after a kill.
func (s *store) lockOut() (err error) {
	file := s.named + "-lock"
	if _, err := touch(file); err != nil {
		return err
	}
	if s.lock, err = openFile(file, 0, "_pragma=journal_mode(OFF)"); err != nil {
		return err
	}
	s.lock.SetMaxOpenConns(1) // which stays, and keeps the transaction open
	if _, err = s.lock.Exec("BEGIN EXCLUSIVE"); isBusy(err) {
		return errors.New("another petstore serves it")
	}
	return err
}

// touch makes the file unless it is there, and tells in the system's words if it
// cannot be written: SQLite would only say that it cannot. It comes before
// SQLite has the file open, since closing a file ends the locks that the process has on it.
func touch(path string) (size int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return 0, err
	}
	size, err = f.Seek(0, io.SeekEnd)
	return size, errors.Join(err, f.Close())
}

// isBusy reports whether SQLite found a lock of another process in its way.
func isBusy(err error) bool {
	var sqliteErr *sqlite.Error
	return errors.As(err, &sqliteErr) && sqliteErr.Code()&0xff == sqlite3.SQLITE_BUSY
}

// openFile opens a database file with options of the driver, and lets it wait
// for a lock for so many milliseconds. Pragmas stand in the address because only
// there they reach every connection of the pool.
func openFile(path string, busy int, options ...string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	abs = filepath.ToSlash(abs)
	if !strings.HasPrefix(abs, "/") {
		abs = "/" + abs // a drive letter
	}
	options = append(options, fmt.Sprintf("_pragma=busy_timeout(%d)", busy), fmt.Sprintf("_pragma=cache_size(-%d)", cacheKiB))
	return sql.Open("sqlite", "file://"+(&url.URL{Path: abs}).EscapedPath()+"?"+strings.Join(options, "&"))
}

// checkFile looks at an existing file without changing it. Where no log stands
// beside it, SQLite is told that nobody writes, or it would leave one there.
func checkFile(path string) error {
	mode := "mode=ro"
	if wal, err := os.Stat(path + "-wal"); err != nil || wal.Size() == 0 { //nolint:gosec // the operator names the file
		mode = "mode=ro&immutable=1"
	}
	db, err := openFile(path, commandBusy, mode)
	if err != nil {
		return err
	}
	defer db.Close()
	var application, version, tables int
	row := db.QueryRow("SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)")
	if err := row.Scan(&application, &version, &tables); err != nil {
		return err
	}
	switch {
	case application != applicationID && (application != 0 || tables > 0):
		return errors.New("it belongs to another program")
	case version > len(migrations):
		return fmt.Errorf("its schema is version %d and this petstore knows only %d; use a newer petstore", version, len(migrations))
	}
	return nil
}

func (s *store) open(why purpose) (err error) {
	busy := commandBusy
	if why == forTheService {
		busy = serviceBusy
		if err := s.lockOut(); err != nil {
			return err
		}
	}
	if s.writer, err = openFile(s.path, busy, "_txlock=immediate", "_pragma=journal_mode(WAL)",
		"_pragma=synchronous(FULL)", "_pragma=fullfsync(1)"); err != nil {
		return err
	}
	if s.conn, err = s.writer.Conn(context.Background()); err != nil {
		return err
	}
	if err := s.migrate(); err != nil {
		return err
	}
	if s.reader, err = openFile(s.path, busy, "mode=rw", "_pragma=query_only(1)"); err != nil {
		return err
	}
	s.reader.SetMaxOpenConns(readers)
	s.reader.SetMaxIdleConns(readers)
	if err := s.connectReaders(); err != nil {
		return err
	}
	s.opened = map[string]os.FileInfo{}
	for _, file := range []string{s.path, s.named + "-wal", s.named + "-shm"} {
		if s.opened[file], err = os.Stat(file); err != nil {
			return err
		}
	}
	for stmt, query := range map[**sql.Stmt]string{
		&s.readPage: pageQuery(""), &s.readPageOf: pageQuery("status = ?3 AND "), &s.readPet: petQuery,
		&s.readKey: keyQuery + "WHERE digest = ?", &s.readUsage: usageQuery, &s.readRecord: recordQuery,
	} {
		if *stmt, err = s.reader.Prepare(query); err != nil {
			return err
		}
	}
	return nil
}

// connectReaders opens all reading connections, and their files with a first
// query: one that was opened later would miss a file that was removed
// meanwhile, or read another one that took its place.
func (s *store) connectReaders() error {
	for range readers {
		conn, err := s.reader.Conn(context.Background())
		if err != nil {
			return err
		}
		defer conn.Close() // back to the pool, when all are open
		if _, err := conn.ExecContext(context.Background(), "SELECT 1 FROM sqlite_schema"); err != nil {
			return err
		}
	}
	return nil
}

// checkOpened is an error if one of the database's files is no longer the one that
// was opened: what is committed to a file without a name is lost.
func (s *store) checkOpened() error {
	for path, opened := range s.opened {
		now, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !os.SameFile(opened, now) {
			return fmt.Errorf("%s is not the file that was opened", path)
		}
	}
	return nil
}

// migrate runs the migrations that the file has not seen, in one transaction.
func (s *store) migrate() error {
	ctx := context.Background()
	tx, err := s.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	var version int
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version >= len(migrations) {
		return nil
	}
	for _, migration := range migrations[version:] {
		if _, err := tx.ExecContext(ctx, migration); err != nil {
			return err
		}
	}
	marks := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, len(migrations))
	if _, err := tx.ExecContext(ctx, marks); err != nil {
		return err
	}
	return tx.Commit()
}

// Close ends all connections; what was committed is on disk already.
func (s *store) Close() error {
	s.writing.Lock() // requests that were cut off may still commit
	defer s.writing.Unlock()
	var errs []error
	for _, stmt := range s.prepare { // an open one would keep the connection, and the WAL, alive
		errs = append(errs, stmt.Close())
	}
	if s.reader != nil {
		errs = append(errs, s.reader.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// commit runs the statements in one transaction, perhaps together with those of
// other requests, and returns when they are on disk. The error is
// errUnavailable or wraps it. A commit of no statements only looks whether
// another process has written.
func (s *store) commit(statements ...statement) ([]sql.Result, error) {
	c := &commit{statements: statements, wake: make(chan bool, 1)}
	s.mu.Lock()
	if len(s.queue) >= maxQueue {
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: %d commits wait already", errUnavailable, maxQueue)
	}
	s.queue = append(s.queue, c)
	lead := !s.leading
	s.leading = true
	s.mu.Unlock()
	if lead || <-c.wake {
		s.lead()
	}
	return c.results, c.err
}

// lead commits what is queued, passes the lead on and wakes the followers.
func (s *store) lead() {
	runtime.Gosched() // lets the requests that are ready queue their statements too
	s.mu.Lock()
	batch := s.queue
	s.queue = nil
	s.mu.Unlock()
	err := errUnavailable
	defer func() { // also if the driver panics, or no commit would ever run again
		// The next leader is woken first, so that the disk does not wait for
		// the followers to write their answers.
		s.mu.Lock()
		if s.leading = len(s.queue) > 0; s.leading {
			s.queue[0].wake <- true
		}
		s.mu.Unlock()
		for _, c := range batch {
			if c.err = err; err != nil {
				c.results = nil
			}
			c.wake <- false
		}
	}()
	if err = s.run(batch); err != nil {
		s.commitsFailed.Add(1)
		err = fmt.Errorf("%w: %w", errUnavailable, err)
	}
}

// run executes a batch on the writing connection.
func (s *store) run(batch []*commit) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.look(); err != nil {
		return err
	}
	writers := int64(0)
	for _, c := range batch {
		if len(c.statements) > 0 {
			writers++
		}
	}
	if writers == 0 {
		return nil
	}
	start := time.Now()
	if err := s.checkOpened(); err != nil {
		return err
	}
	if _, err := s.exec(statement{query: "BEGIN IMMEDIATE"}); err != nil {
		s.rollback() // what a driver's panic may have left open
		return err
	}
	for _, c := range batch {
		for _, st := range c.statements {
			result, err := s.exec(st)
			if err != nil {
				s.rollback()
				return err
			}
			c.results = append(c.results, result)
		}
	}
	if _, err := s.exec(statement{query: "COMMIT"}); err != nil {
		s.rollback()
		return err
	}
	s.commitSizes.observe(writers)
	s.commitTimes.observe(int64(time.Since(start)))
	s.writes.Add(1)
	return nil
}

// probe is an error if nothing can be read or nothing be committed. It marks the
// file once more as ours, since an empty commit would touch no disk.
func (s *store) probe() error {
	if _, err := s.usage(0); err != nil {
		return err
	}
	_, err := s.commit(statement{query: fmt.Sprintf("PRAGMA application_id = %d", applicationID)})
	return err
}

// queued is how many commits wait for the next transaction.
func (s *store) queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// rollback ends a failed transaction, unless SQLite has done so itself.
func (s *store) rollback() { _, _ = s.exec(statement{query: "ROLLBACK"}) }

// look notices commits of other processes: data_version moves, on one
// connection, when another one has written.
func (s *store) look() error {
	stmt, err := s.prepared("PRAGMA data_version")
	if err != nil {
		return err
	}
	var version int64
	if err := stmt.QueryRow().Scan(&version); err != nil {
		return err
	}
	if version != s.version {
		s.version = version
		s.foreign.Add(1)
		s.writes.Add(1)
	}
	return nil
}

// exec runs a statement on the writing connection.
func (s *store) exec(st statement) (sql.Result, error) {
	stmt, err := s.prepared(st.query)
	if err != nil {
		return nil, err
	}
	return stmt.Exec(st.args...)
}

func (s *store) prepared(query string) (*sql.Stmt, error) {
	if stmt := s.prepare[query]; stmt != nil {
		return stmt, nil
	}
	stmt, err := s.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	s.prepare[query] = stmt
	return stmt, nil
}

// document is a body ready to be sent, with the value of its ETag header.
type document struct {
	body []byte
	etag []string
}

// newDocument makes a strong validator from the content (RFC 9110 section
// 8.8.3), so that it survives a restart. A page that gets a next one changes
// in its Link header only, which marker brings in.
func newDocument(body []byte, marker byte) document {
	sum := sha256.Sum256(append(body, marker))
	return document{body, []string{`"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}}
}

// page is one page of the list.
type page struct {
	document
	last            int64 // the id of its last animal
	more            bool  // there are animals behind it
	writes, foreign uint64
}

// cachedPet is an animal as remembered. Animals never change, so that only
// another process's commit makes it doubtful.
type cachedPet struct {
	document
	id      int64
	foreign uint64
}

// statusCodes are the stored forms of the states. They start at 2 because
// SQLite prepares a statement anew when a bound value becomes, or ceases to
// be, 0 or 1.
var statusCodes = map[PetStatus]int{Available: 2, Pending: 3, Sold: 4}

// petJSON builds an animal inside SQLite, as Pet.appendJSON does in Go. For 20
// animals it takes half the time of scanning rows.
const petJSON = `json_object('id', id, 'name', name, 'categoryId', category_id, 'status',
	CASE status WHEN 2 THEN 'available' WHEN 3 THEN 'pending' ELSE 'sold' END)`

const petQuery = "SELECT " + petJSON + " FROM pets WHERE id = ?"

// pageQuery is keyset paging: ?1 is the id to start after and ?2 the limit.
func pageQuery(filter string) string {
	return `SELECT body, ifnull(last, 0), EXISTS (SELECT 1 FROM pets WHERE ` + filter + `id > last)
		FROM (SELECT json_group_array(` + petJSON + `) AS body, max(id) AS last
		FROM (SELECT * FROM pets WHERE ` + filter + `id > ?1 ORDER BY id LIMIT ?2))`
}

// page returns the animals with ids above after, in ascending order; status ""
// stands for all. First pages are remembered, 4 x 100 at the most; those with
// more behind them outlast this process's own commits, which only add ids above.
func (s *store) page(status PetStatus, limit int, after int64) (*page, error) {
	code, writes, foreign := statusCodes[status], s.writes.Load(), s.foreign.Load()
	slot := &s.pages[code][limit]
	if after == 0 {
		if known := slot.Load(); known != nil && (known.writes == writes || known.more && known.foreign == foreign) {
			s.pageReads.hits.Add(1)
			return known, nil
		}
	}
	s.pageReads.misses.Add(1)
	p := &page{writes: writes, foreign: foreign}
	stmt, args := s.readPage, []any{after, limit}
	if code != 0 {
		stmt, args = s.readPageOf, append(args, code)
	}
	var body []byte
	if err := stmt.QueryRow(args...).Scan(&body, &p.last, &p.more); err != nil {
		return nil, err
	}
	marker := byte('.')
	if p.more {
		marker = '+'
	}
	p.document = newDocument(body, marker)
	if after == 0 {
		slot.Store(p)
	}
	return p, nil
}

// pet returns the animal, or nil if there is none.
func (s *store) pet(id int64) (*document, error) {
	foreign := s.foreign.Load()
	slot := &s.pets[uint64(id)%cachedPets] //nolint:gosec // any remainder does
	if known := slot.Load(); known != nil && known.id == id && known.foreign == foreign {
		s.petReads.hits.Add(1)
		return &known.document, nil
	}
	s.petReads.misses.Add(1)
	var body []byte
	err := s.readPet.QueryRow(id).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := &cachedPet{document: newDocument(body, '.'), id: id, foreign: foreign}
	slot.Store(p)
	return &p.document, nil
}

// createPet stores an animal and returns its id.
func (s *store) createPet(p NewPet) (id int64, err error) {
	return inserted(s.commit(statement{"INSERT INTO pets (category_id, status, name) VALUES (?, ?, ?)",
		[]any{p.CategoryID, statusCodes[p.Status], p.Name}}))
}

// inserted is the id that the first statement of a commit has assigned, or 0
// if its condition did not hold.
func inserted(results []sql.Result, err error) (id int64, _ error) {
	if err != nil {
		return 0, err
	}
	if n, err := results[0].RowsAffected(); err != nil || n == 0 {
		return 0, err
	}
	return results[0].LastInsertId()
}

const recordQuery = "SELECT pet_id, body_digest FROM idempotency WHERE key_id = ? AND idempotency_key = ?"

// createPetOnce stores an animal under an Idempotency-Key, or finds the one
// that was stored under it: replayed tells which. reused means that the first
// body was another one. The record and the animal are one transaction, and
// which of several parallel requests is the first is decided inside it.
func (s *store) createPetOnce(p NewPet, keyID int64, idempotencyKey string, body []byte, now time.Time) (id int64, replayed, reused bool, err error) {
	sum := sha256.Sum256(body)
	id, err = inserted(s.commit(
		statement{`INSERT INTO pets (category_id, status, name) SELECT ?, ?, ? WHERE NOT EXISTS
			(SELECT 1 FROM idempotency WHERE key_id = ? AND idempotency_key = ? AND created_at > ?)`,
			[]any{p.CategoryID, statusCodes[p.Status], p.Name, keyID, idempotencyKey, at(now) - recordMillis}},
		statement{"INSERT OR REPLACE INTO idempotency SELECT ?, ?, ?, last_insert_rowid(), ? WHERE changes() = 1",
			[]any{keyID, idempotencyKey, sum[:], at(now)}},
	))
	if err != nil || id != 0 {
		return id, false, false, err
	}
	var first []byte
	if err := s.readRecord.QueryRow(keyID, idempotencyKey).Scan(&id, &first); err != nil {
		return 0, false, false, err
	}
	return id, true, string(first) != string(sum[:]), nil
}

// purge deletes idempotency records that have served their time, and a minute
// more, so that none goes while a request is about to read it.
func (s *store) purge(now time.Time) error {
	for {
		results, err := s.commit(statement{`DELETE FROM idempotency WHERE (key_id, idempotency_key) IN
			(SELECT key_id, idempotency_key FROM idempotency WHERE created_at <= ? ORDER BY created_at LIMIT 1000)`,
			[]any{at(now) - recordMillis - minuteMillis}})
		if err != nil {
			return err
		}
		if deleted, err := results[0].RowsAffected(); err != nil || deleted < 1000 {
			return err
		}
	}
}

const keyQuery = `SELECT k.id, coalesce(k.usage_id, k.id), k.name, k.plan, k.per_minute, k.per_day, k.last_four, k.test,
	k.lifetime, k.created_at, k.expires_at, k.revoked_at, k.unbanned_at, k.deprecated_use_at, ifnull(minute_used, 0), ifnull(minute_ends, 0),
	ifnull(day_used, 0), ifnull(day_ends, 0), ifnull(banned_at, 0), ifnull(banned_until, 0)
	FROM api_keys k LEFT JOIN usage u ON u.id = coalesce(k.usage_id, k.id) `

// scan reads a row of keyQuery; the usage is shown as it stands at now.
func (k *apiKey) scan(scan func(...any) error, now instant) error {
	var u usage
	if err := scan(append([]any{&k.ID, &k.usageID, &k.Name, &k.Plan, &k.PerMinute, &k.PerDay, &k.LastFour, &k.test,
		&k.lifetime, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt, &k.unbannedAt, &k.DeprecatedUseAt}, u.fields()...)...); err != nil {
		return err
	}
	if q := plans[k.Plan]; q != (quota{}) {
		k.quota = q
	}
	k.policy = k.quota.policy()
	if u.minute.open(now, minuteMillis) {
		k.UsedThisMinute = u.minute.used
	}
	if u.day.open(now, dayMillis) {
		k.UsedToday = u.day.used
	}
	if now < u.bannedUntil && k.unbannedAt < u.bannedAt {
		k.BannedUntil = u.bannedUntil
	}
	return nil
}

// keyByDigest returns the key with the digest, or nil if there is none.
func (s *store) keyByDigest(d digest) (*apiKey, error) {
	k := &apiKey{}
	err := k.scan(s.readKey.QueryRow(d[:]).Scan, 0)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return k, err
}

// keysByID returns the key with the id, if there is one, or for id 0 all keys.
func (s *store) keysByID(id int64, now instant) ([]*apiKey, error) {
	rows, err := s.reader.Query(keyQuery+"WHERE ?1 IN (0, k.id) ORDER BY k.id", id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	keys := []*apiKey{}
	for rows.Next() {
		k := &apiKey{}
		if err := k.scan(rows.Scan, now); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, rows.Err()
}

// keyInsertion is the statement that stores a key if the SQL condition holds.
func keyInsertion(k *apiKey, token secret, condition string, args ...any) statement {
	sum := token.digest()
	var usageID any // NULL: its own
	if k.usageID != 0 {
		usageID = k.usageID
	}
	var expiresAt instant
	if k.lifetime != 0 {
		expiresAt = k.CreatedAt + k.lifetime
	}
	return statement{`INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day, created_at, lifetime, expires_at, unbanned_at, usage_id)
		SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ifnull((SELECT max(unbanned_at) FROM api_keys WHERE coalesce(usage_id, id) = ?), 0), ? WHERE ` + condition,
		append([]any{sum[:], token.lastFour(), k.test, k.Name, k.Plan, k.PerMinute, k.PerDay,
			k.CreatedAt, k.lifetime, expiresAt, usageID, usageID}, args...)}
}

// insertKey stores a new key and returns its id.
func (s *store) insertKey(k *apiKey, token secret) (id int64, err error) {
	return inserted(s.commit(keyInsertion(k, token, "1")))
}

// insertFirstKey stores the key unless the database has one already; then the
// id is 0.
func (s *store) insertFirstKey(k *apiKey, token secret) (id int64, err error) {
	return inserted(s.commit(keyInsertion(k, token, "NOT EXISTS (SELECT 1 FROM api_keys)")))
}

// hasKey reports whether there is a key for staging or, without test, for production.
func (s *store) hasKey(test bool) (has bool, err error) {
	err = s.reader.QueryRow("SELECT EXISTS (SELECT 1 FROM api_keys WHERE test = ?)", test).Scan(&has)
	return has, err
}

// rotateKey stores the successor of the key whose id k still has, and lets the
// key itself expire at the end of the overlap. A key that has ended meanwhile is
// errKeyEnded.
func (s *store) rotateKey(k *apiKey, token secret, overlapEnds instant) (id int64, err error) {
	id, err = inserted(s.commit(
		keyInsertion(k, token, "EXISTS (SELECT 1 FROM api_keys WHERE id = ? AND revoked_at = 0 AND expires_at NOT BETWEEN 1 AND ?)",
			k.ID, k.CreatedAt),
		statement{`UPDATE api_keys SET expires_at = CASE expires_at WHEN 0 THEN ?1 ELSE min(expires_at, ?1) END
			WHERE id = ?2 AND changes() = 1`, []any{overlapEnds, k.ID}},
	))
	if err == nil && id == 0 {
		err = errKeyEnded
	}
	return id, err
}

// setPlan changes the plan of a key; scan heeds the quota on the enterprise plan only.
func (s *store) setPlan(id int64, plan string, q quota) error {
	_, err := s.commit(statement{"UPDATE api_keys SET plan = ?, per_minute = ?, per_day = ? WHERE id = ?",
		[]any{plan, q.PerMinute, q.PerDay, id}})
	return err
}

// revokeKey ends a key; the first revocation keeps its time.
func (s *store) revokeKey(id int64, now instant) error {
	_, err := s.commit(statement{"UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at = 0", []any{now, id}})
	return err
}

// unbanKey lifts the ban of all keys that share the key's usage.
func (s *store) unbanKey(id int64, now instant) error {
	_, err := s.commit(statement{`UPDATE api_keys SET unbanned_at = ?1 WHERE coalesce(usage_id, id) =
		(SELECT coalesce(usage_id, id) FROM api_keys WHERE id = ?2)`, []any{now, id}})
	return err
}

const usageQuery = "SELECT minute_used, minute_ends, day_used, day_ends, banned_at, banned_until FROM usage WHERE id = ?"

// fields are the stored columns of a usage, in the order of usageQuery.
func (u *usage) fields() []any {
	return []any{&u.minute.used, &u.minute.ends, &u.day.used, &u.day.ends, &u.bannedAt, &u.bannedUntil}
}

// usage reads a usage; one that was never written is new.
func (s *store) usage(id int64) (*usage, error) {
	u := &usage{}
	err := s.readUsage.QueryRow(id).Scan(u.fields()...)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return u, err
}

// saveUsage is the statement that writes a usage.
func saveUsage(id int64, u *usage) statement {
	return statement{"INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?, ?)",
		[]any{id, u.minute.used, u.minute.ends, u.day.used, u.day.ends, u.bannedAt, u.bannedUntil}}
}

// saveDeprecatedUse is the statement that notes when a key last used the deprecated operation.
func saveDeprecatedUse(keyID int64, when instant) statement {
	return statement{"UPDATE api_keys SET deprecated_use_at = ? WHERE id = ?", []any{when, keyID}}
}

// backup writes a consistent copy while others read and write: beside its final
// place, checked, and only then renamed to it, so that an older copy is
// never lost to a failed attempt. The connection is its own because SQLite does
// not copy while another statement runs on the same one.
func (s *store) backup(file string) (err error) {
	source, err := os.Stat(s.path)
	if err != nil {
		return err
	}
	if target, err := os.Stat(file); err == nil && os.SameFile(source, target) {
		return errors.New("a database cannot be backed up onto itself")
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*.partial") // two backups may run at once
	if err != nil {
		return err
	}
	temp := f.Name()
	_ = f.Close()         // nothing was written
	defer os.Remove(temp) //nolint:errcheck // gone already unless something failed
	db, err := openFile(s.path, commandBusy)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec("VACUUM INTO ?", temp); err != nil {
		return err
	}
	if err := checkCopy(temp); err != nil {
		return err
	}
	if err := os.Rename(temp, file); err != nil {
		return err
	}
	return syncFile(filepath.Dir(file))
}

// checkCopy reads the copy whole and brings it to disk. With mode=ro SQLite
// would leave out the CHECK constraints; without a mode it would make the file.
func checkCopy(path string) error {
	db, err := openFile(path, commandBusy, "mode=rw", "_pragma=query_only(1)")
	if err != nil {
		return err
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("the copy is damaged: %s", strings.Join(strings.Fields(verdict), " "))
	}
	return syncFile(path)
}

// syncFile brings a file or folder to disk, where the system can open folders.
func syncFile(path string) error {
	f, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && runtime.GOOS != "windows" {
		return err
	}
	return nil
}
