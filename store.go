package main

// The store: pets, pages, Idempotency-Keys, and the schema of everything that is kept. It speaks SQL to an
// engine (sqlite.go, rqlite.go) and knows nothing of connections and transactions, nor what the other tables
// mean: auth.go and limits.go hold the SQL of theirs. What is read often is remembered here as encoded JSON.
//
// Writing is done by leader and followers. A caller queues its statements; the one that finds no transaction under
// way becomes the leader, commits all that is queued in one transaction and wakes the others. So 64 clients share one
// sync, and nobody gets a response before the disk has the data. A goroutine that owns the engine would do the same,
// but on a single core it starves the network poller: reads then wait for hundreds of milliseconds.
//
// What a batch does depends on its SQL alone and never on Go code in the middle
// of it, so that an engine may be far away and speak JSON.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// statement is one SQL statement. Its arguments are int64, string or nil, which every engine can carry: digests
// are hex, for unhex(?) and hex(). A text that somebody else has chosen is bound as a JSON string, which the
// SQL takes apart with ? ->> '$': rqlite makes a BLOB of a string that reads x'41'.
type statement struct {
	query string
	args  []any
	into  []any // of a SELECT inside a write: pointers to the columns of its one row
}

func sqlOf(query string, args ...any) statement { return statement{query: query, args: args} }

// result is what a statement of a write did.
type result struct {
	lastID   int64 // of the row that was inserted last; stale unless affected is more than 0
	affected int64 // rows inserted, updated or deleted
}

// scanner copies the columns of a row to pointers to integers, booleans or strings.
type scanner = func(columns ...any) error

// engine keeps the tables and runs SQLite's SQL on them. Opening one brings the schema up to date, by
// migrations. It is safe for concurrent use, but the store writes one transaction at a time.
type engine interface {
	// write runs the statements in one transaction, and returns a result for each when all of it is durable. While it
	// waits for another program, it heeds ctx. An error means that nothing was written, unless it wraps errOutcome.
	write(ctx context.Context, statements []statement) ([]result, error)
	// read calls row for each row of the query's result, which holds all that any write has
	// returned for. A ctx that can be cancelled costs a query 2 µs and a goroutine.
	read(ctx context.Context, query statement, row func(scan scanner) error) error
	// changed reports whether others may have edited what services remember since it was last called. A file
	// tells of every write by somebody else, a cluster only of those that were counted (edit).
	changed(ctx context.Context) (bool, error)
	// shared reports whether other services add pets at the same time.
	shared() bool
	// backup writes a consistent copy of everything to an empty file. A cluster's holds all that the last read saw.
	backup(ctx context.Context, to *os.File) error
	// describe names the engine, and the file or the node that it uses now.
	describe() (engine, node string)
	// measure adds what the engine has counted.
	measure(e *exposition)
	Close() error
}

// purpose is what a database is opened for.
type purpose int

const (
	forNothing purpose = iota // the command opens none
	forCommand                // the file has to be there
	forNewKey                 // a command that makes the file if there is none
	forService                // the same, and there must be no other service on it
)

// applicationID marks a database as this program's ("pets" in ASCII), restoringID one that is being replaced.
const applicationID, restoringID = 0x70657473, 0x70657474

// sqlFile is the text of one with SQL, by its name without the ending, from behind the comment at its head: a node of
// rqlite compresses what comes with a statement of 1,024 bytes, which would make a flush three times as expensive.
func sqlFile(name string) string {
	text := webFile(name + ".sql")
	for strings.HasPrefix(text, "--") {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}

//go:embed schema
var schemaFiles embed.FS

// migrations take the schema from one version to the next: schema/1.sql makes version 1, and so on. A change of the
// schema is a new file, which only adds: databases have run the others, and older services may run beside newer ones.
var migrations = readMigrations()

func readMigrations() (texts []string) {
	for version := 1; ; version++ {
		text, err := schemaFiles.ReadFile(fmt.Sprintf("schema/%d.sql", version))
		if err != nil { // there are no more
			return texts
		}
		texts = append(texts, string(text))
	}
}

var (
	// errUnavailable means that the store cannot be read or written now, and that the same
	// request may succeed later. Nothing of a write is stored, unless the error wraps
	// errOutcome too: that a write was sent, and that nobody knows what became of it.
	errUnavailable = errors.New("the store is not available now")
	errOutcome     = errors.New("whether it was stored is unknown")

	errForeign   = errors.New("it belongs to another program")
	errMissing   = errors.New("there is none; petstore makes it at its first start") // for most commands
	errRestoring = errors.New("a restore into it has not ended; run it again")
	errServed    = errors.New("a petstore serves it; stop it first") // for restore
)

// ownerQuery reads the marks of a database: the application's, the version of the
// schema, and how many tables and indexes there are.
const ownerQuery = `SELECT (SELECT application_id FROM pragma_application_id),
	(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`

// checkMarks takes a row of ownerQuery and returns the version of the schema, 0 for none.
// It refuses a database that is another program's, or of a newer schema.
func checkMarks(scan scanner) (version int, err error) {
	var application, tables int
	err = scan(&application, &version, &tables)
	switch {
	case err != nil:
	case application == restoringID:
		err = errRestoring
	case application != applicationID && (application != 0 || tables > 0):
		err = errForeign
	case version > len(migrations):
		err = fmt.Errorf("its schema is version %d and this petstore knows only %d; use a newer petstore",
			version, len(migrations))
	}
	return version, err
}

func markOf(id int) statement { return sqlOf(fmt.Sprintf("PRAGMA application_id = %d", id)) }

// schemaVersion is what checkMarks says of an engine.
func schemaVersion(ctx context.Context, e engine) (version int, err error) {
	err = e.read(ctx, sqlOf(ownerQuery), func(scan scanner) error {
		version, err = checkMarks(scan)
		return err
	})
	return version, err
}

// updateSchema runs the migrations that an engine has not seen, in one
// transaction, and all of them only if it may make a database.
func updateSchema(ctx context.Context, e engine, mayMake bool) error {
	version, err := schemaVersion(context.WithoutCancel(ctx), e) // which does not take long
	if err != nil || version == len(migrations) {
		return err
	}
	if version == 0 && !mayMake {
		return errMissing
	}
	_, failed := e.write(ctx, []statement{sqlOf(strings.Join(migrations[version:], "")), markOf(applicationID),
		sqlOf(fmt.Sprintf("PRAGMA user_version = %d", len(migrations)))})
	if version, err = schemaVersion(ctx, e); err == nil && version == len(migrations) { // perhaps somebody was faster
		return nil
	}
	return failed
}

// pause waits for things to change, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Sizes of the store, and a wait.
const (
	defaultCache = 16 << 20         // bytes of pages and pets remembered
	pageBytes    = 176              // that a page takes in memory beside its body
	blockPets    = 64               // ids in a block
	maxQueue     = 4096             // writes of requests that may wait, and then share a transaction; more are refused
	recordMillis = dayMillis        // how long an Idempotency-Key is remembered
	maxDays      = 400              // days of usage that are kept
	commandWait  = 10 * time.Second // how long a command, or a start, waits for a lock or a leader
)

// store is safe for concurrent use.
type store struct {
	engine engine

	mu      sync.Mutex // guards the next two
	queue   []*queued
	leading bool // a leader is working, or one was just woken

	// commits counts all commits, as far as they are known. editsSeen counts the looks that found edits of others. What
	// is remembered keeps the counts from before it was read: they tell whether it is still good.
	commits, editsSeen atomic.Uint64

	pages memory[place, *page] // of the list, and blocks
	pets  memory[int64, *page] // single ones, by their ids

	// What /metrics shows.
	commitSizes   histogram // writes that shared a transaction
	commitTimes   histogram // nanoseconds, of the transactions that succeeded
	commitsFailed atomic.Uint64
}

// queued is one caller's write, and what became of it.
type queued struct {
	pets       []string // rows for insertPets
	lastID     int64    // of its last pet
	statements []statement
	results    []result
	err        error
	wake       chan bool // true: lead the next transaction; false: this one is done
}

func newStore(e engine) *store {
	s := &store{engine: e}
	s.remember(defaultCache)
	s.commitSizes.bounds = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, maxQueue}
	s.commitTimes.bounds = durationBounds
	return s
}

// remember bounds what pages and pets may take in memory, in bytes; 0 is nothing. Pets get an
// eighth: among many, few are asked for twice, and each costs as much as a page beside its body.
func (s *store) remember(most int64) {
	s.pages.max, s.pages.oneOf = most-most/8, 8
	s.pets.max, s.pets.oneOf = most/8, 8
}

// Close ends the engine after the transaction under way; what was committed is durable already.
func (s *store) Close() error { return s.engine.Close() }

// write runs the statements in one transaction, perhaps together with those of other callers, and
// returns when they are durable. The error is errUnavailable or wraps it. ctx counts for a write
// that is alone in its transaction, since nobody may cancel what others share.
func (s *store) write(ctx context.Context, statements ...statement) ([]result, error) {
	return s.enqueue(ctx, math.MaxInt, &queued{statements: statements})
}

// enqueue is write, unless so many writes wait already.
func (s *store) enqueue(ctx context.Context, most int, q *queued) ([]result, error) {
	q.wake = make(chan bool, 1)
	s.mu.Lock()
	if len(s.queue) >= most {
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: %d writes wait already", errUnavailable, most)
	}
	s.queue = append(s.queue, q)
	lead := !s.leading
	s.leading = true
	s.mu.Unlock()
	if lead {
		runtime.Gosched() // lets the requests that are ready queue their statements too
	}
	if lead || <-q.wake {
		s.lead(ctx)
	}
	return q.results, q.err
}

// lead commits what is queued, passes the lead on and wakes the followers.
func (s *store) lead(ctx context.Context) {
	s.mu.Lock()
	batch := s.queue
	s.queue = nil
	s.mu.Unlock()
	if len(batch) > 1 {
		ctx = context.WithoutCancel(ctx) // nobody may cancel what others share
	}
	err := errUnavailable
	defer func() { // also if the engine panics, or nothing would ever be written again
		// The next leader is woken first, so that the disk does not wait for the followers to write their responses.
		s.mu.Lock()
		if s.leading = len(s.queue) > 0; s.leading {
			s.queue[0].wake <- true
		}
		s.mu.Unlock()
		for _, q := range batch {
			q.err = err
			q.wake <- false
		}
	}()
	if err = s.commit(ctx, batch); err != nil {
		s.commitsFailed.Add(1)
		err = fmt.Errorf("%w: %w", errUnavailable, err)
	}
}

// commit writes a batch in one transaction. All pets are one statement, which takes
// less time than one for each, and their ids follow one another.
func (s *store) commit(ctx context.Context, batch []*queued) error {
	var statements []statement
	var pets []string
	for _, q := range batch {
		statements, pets = append(statements, q.statements...), append(pets, q.pets...)
	}
	n := int64(len(pets))
	if n > 0 {
		statements = append(statements, sqlOf(insertPets+"ORDER BY key", "["+strings.Join(pets, ",")+"]"))
	}
	start := time.Now()
	results, err := s.engine.write(ctx, statements)
	if err != nil {
		return err
	}
	s.commitSizes.observe(int64(len(batch)))
	s.commitTimes.observe(int64(time.Since(start)))
	s.commits.Add(1)
	var lastID int64 // of the pets that were there before
	if n > 0 {
		inserted := results[len(results)-1]
		if lastID = inserted.lastID - n; inserted.affected != n || lastID < 0 {
			return fmt.Errorf("%w: the engine knows of %d pets in place of %d", errOutcome, inserted.affected, n)
		}
	}
	for _, q := range batch {
		q.results, results = results[:len(q.statements)], results[len(q.statements):]
		lastID += int64(len(q.pets))
		q.lastID = lastID
	}
	return nil
}

// edit is write for a change of what services may remember: it is counted, so that they read it anew. Who only adds
// pets or keys uses write, since nobody remembers what is not there yet.
func (s *store) edit(ctx context.Context, statements ...statement) ([]result, error) {
	return s.write(ctx, append(statements, sqlOf("UPDATE counters SET value = value + 1 WHERE name = 'edits'"))...)
}

// editsQuery reads how many edits there were.
const editsQuery = "SELECT value FROM counters WHERE name = 'edits'"

// refresh looks whether others have edited anything: then all that is remembered is read anew.
func (s *store) refresh(ctx context.Context) error {
	changed, err := s.engine.changed(ctx)
	if changed {
		s.commits.Add(1)
		s.editsSeen.Add(1)
	}
	return err
}

// readInto copies the columns of the query's first row; found is false if there is none.
func (s *store) readInto(ctx context.Context, query statement, columns ...any) (found bool, err error) {
	err = s.engine.read(ctx, query, func(scan scanner) error {
		found = true
		return scan(columns...)
	})
	return found, err
}

// probe is an error if nothing can be read or nothing be committed. It stores and
// removes a service that there is not, since an empty transaction would touch no disk.
func (s *store) probe(ctx context.Context) error {
	_, err := s.readInto(ctx, sqlOf(editsQuery), new(int64))
	if err == nil {
		_, err = s.write(ctx, sqlOf("INSERT OR REPLACE INTO services (id, flushes, seen_at) VALUES ('probe', 0, 0)"),
			sqlOf("DELETE FROM services WHERE id = 'probe'"))
	}
	return err
}

// measure adds what the store and its engine have counted.
func (s *store) measure(e *exposition) {
	s.pages.measure(e, "pages")
	s.pets.measure(e, "pets")
	e.add("petstore_cache_bytes", "", float64(s.pages.size.Load()+s.pets.size.Load()))
	e.addHistogram("petstore_commit_requests", "", &s.commitSizes, 1)
	e.addHistogram("petstore_commit_duration_seconds", "", &s.commitTimes, 1e9)
	e.add("petstore_commit_failures_total", "", float64(s.commitsFailed.Load()))
	s.mu.Lock()
	e.add("petstore_commit_queue_length", "", float64(len(s.queue)))
	s.mu.Unlock()
	s.engine.measure(e)
}

// page is one page of the list, one pet or, not as JSON, a block of pets.
type page struct {
	document
	last int64  // the id of its last pet
	more bool   // there are pets behind it
	asOf uint64 // what the store had counted before it was read: edits if there is more, else commits
}

// place says which page it is: status is a code, 0 for all. With limit 0 it is the block whose number is the id: the
// pets whose id / blockPets it is.
type place struct{ status, limit, id int64 }

// storedStatus are the stored forms of the states. They start at 2 because SQLite prepares a
// statement anew when a bound value becomes, or ceases to be, 0 or 1.
var storedStatus = map[PetStatus]int64{Available: 2, Pending: 3, Sold: 4}
var statusOfDigit = map[byte]PetStatus{'2': Available, '3': Pending, '4': Sold} // the reverse, for blocks

var (
	petJSON         = sqlFile("pet")
	petQuery        = "SELECT " + petJSON + " AS body FROM pets WHERE id = ?1"
	blockQuery      = sqlFile("block")
	pageQuery       = keysetQuery("")
	statusPageQuery = keysetQuery("status = ?3 AND")

	createOnce, recordOnce = sqlFile("create-once"), sqlFile("record-once")
)

func keysetQuery(filter string) string {
	return strings.NewReplacer("$FILTER", filter, "$PET", petJSON).Replace(sqlFile("page"))
}

// page returns the pets with ids above after, in ascending order; status "" stands for all.
func (s *store) page(status PetStatus, limit int, after int64) (*page, error) {
	return s.recall(place{storedStatus[status], int64(limit), after}, true)
}

// pet returns the pet, or nil if there is none. One that was not asked for lately is made from its block, if that is
// remembered. A block takes five times as long to read as a pet, and is read in place of one in eight.
func (s *store) pet(id int64) (*page, error) {
	editsSeen := s.editsSeen.Load() // before any query
	if old := s.pets.get(id); old != nil && old.asOf == editsSeen {
		s.pets.hits.Add(1)
		return old, nil
	}
	read := s.pages.max > 0 && rand.IntN(8) == 0 //nolint:gosec // no secret
	block, err := s.recall(place{id: id / blockPets}, read)
	var body string
	if block != nil {
		body = block.pet(id)
	}
	if err == nil && body == "" && (block == nil || !block.more) { // it may be newer than its block
		_, err = s.readInto(context.Background(), sqlOf(petQuery, id), &body)
	}
	if err != nil || body == "" {
		return nil, err
	}
	p := &page{document: newDocument(body, '.'), asOf: editsSeen}
	s.pets.put(id, p, pageBytes+int64(len(body)*33/32))
	return p, nil
}

// pet is one of a block, in the form of petJSON, or "" if it is not there.
func (p *page) pet(id int64) string {
	_, rest, _ := bytes.Cut(p.body, []byte("\n"+strconv.FormatInt(id%blockPets, 10)+","))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	code, rest, _ := bytes.Cut(line, []byte(","))
	category, name, found := bytes.Cut(rest, []byte(","))
	if !found {
		return ""
	}
	return petText(id, string(name), string(category), statusOfDigit[code[0]])
}

// recall returns what is at a place, from memory where that is as good as new. Without read it is nil if it is not
// remembered. What has more pets after it stays good after commits that only add higher ids. The rest is read again
// after any commit, or whenever other services may have written.
func (s *store) recall(at place, read bool) (*page, error) {
	commits, editsSeen := s.commits.Load(), s.editsSeen.Load() // before the query
	counters := &s.pages.counters
	if at.limit == 0 {
		counters = &s.pets.counters
	}
	old := s.pages.get(at)
	if old != nil && (old.more && old.asOf == editsSeen || !old.more && old.asOf == commits && !s.engine.shared()) {
		counters.hits.Add(1)
		return old, nil
	}
	counters.misses.Add(1)
	if !read {
		return nil, nil
	}
	query := sqlOf(pageQuery, at.id, at.limit)
	if at.limit == 0 {
		query = sqlOf(blockQuery, at.id*blockPets, at.id*blockPets+blockPets-1)
	} else if at.status != 0 {
		query = sqlOf(statusPageQuery, at.id, at.limit, at.status)
	}
	p, marker := &page{asOf: commits}, byte('.')
	var body string
	if found, err := s.readInto(context.Background(), query, &body, &p.last, &p.more); err != nil || !found {
		return nil, cmp.Or(err, errors.New("there is no row in place of a page"))
	}
	if p.more {
		marker, p.asOf = '+', editsSeen
	}
	p.document = newDocument(body, marker)
	if at.limit > 0 || p.more || body != "" && !s.engine.shared() { // no other block is ever used again
		s.pages.put(at, p, pageBytes+int64(len(body)*33/32))
	}
	return p, nil
}

// eachPetJSON calls do for each pet, or for those of one status, by id. On one machine it shows all of them as they are
// at one moment; from a cluster, whose responses are kept in memory, it gets some thousands at a time.
func (s *store) eachPetJSON(ctx context.Context, status PetStatus, do func(pet string) error) (err error) {
	limit := int64(-1) // none
	if s.engine.shared() {
		limit = 10_000
	}
	for after, seen := int64(0), limit; seen == limit && err == nil; {
		seen = 0
		query := sqlOf("SELECT id, "+petJSON+" FROM pets WHERE id > ? AND ? IN (0, status) ORDER BY id LIMIT ?",
			after, storedStatus[status], limit)
		err = s.engine.read(ctx, query, func(scan scanner) error {
			seen++
			var pet string
			if err := scan(&after, &pet); err != nil {
				return err
			}
			return do(pet)
		})
	}
	return err
}

// imported returns how many pets of an import are stored. It is known by the digest of its content.
func (s *store) imported(ctx context.Context, digest string) (n int64, err error) {
	_, err = s.readInto(ctx, sqlOf("SELECT value FROM counters WHERE name = ?", "import "+digest), &n)
	return n, err
}

// moveImport changes the number of an import's pets that are stored from one to another, and runs
// more statements in the same transaction. It fails, and changes nothing, if that number is a third
// one. So it is safe to repeat it while its outcome is unknown.
func (s *store) moveImport(ctx context.Context, digest string, from, to int64,
	more ...statement) error {
	var stored int64
	name := "import " + digest
	move := sqlOf(`INSERT OR REPLACE INTO counters (name, value) SELECT ?1, ?2
		WHERE ifnull((SELECT value FROM counters WHERE name = ?1), 0) = ?3`, name, to, from)
	read := statement{"SELECT value FROM counters WHERE name = ?", []any{name}, []any{&stored}}
	statements := slices.Concat([]statement{move}, more, []statement{read})
	var err error
	for try := range 5 {
		var results []result
		results, err = s.write(ctx, statements...)
		if errors.Is(err, errOutcome) {
			continue
		}
		if err != nil {
			return err
		}
		moved := results[0].affected == 1
		movedBefore := try > 0 && stored == to // by a try whose outcome was unknown
		if moved || movedBefore {
			return nil
		}
		return errors.New("another import of the same content is under way")
	}
	return err
}

// importPets stores the pets of an import from one number to another, in their order.
func (s *store) importPets(ctx context.Context, digest string, pets []string,
	from, to int64) error {
	// The move comes before this statement, and changes() is 1 only if it was made.
	insert := sqlOf(insertPets+"WHERE changes() = 1 ORDER BY key", "["+strings.Join(pets, ",")+"]")
	return s.moveImport(ctx, digest, from, to, insert)
}

// insertPets adds pets, each a JSON array of category, status code and name, in this order.
const insertPets = `INSERT INTO pets (category_id, status, name)
	SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) `

// row is what insertPets takes.
func (p NewPet) row() string {
	return "[" + strconv.FormatInt(p.CategoryID, 10) + "," + strconv.FormatInt(storedStatus[p.Status], 10) + "," +
		quote(p.Name) + "]"
}

// createPet stores a pet and returns its id.
func (s *store) createPet(p NewPet) (id int64, err error) {
	q := &queued{pets: []string{p.row()}}
	_, err = s.enqueue(context.Background(), maxQueue, q)
	return q.lastID, err
}

// insertedID is the id that the first statement of a write has assigned, or 0 if its condition did not hold.
func insertedID(results []result, err error) (int64, error) {
	if err != nil || results[0].affected == 0 {
		return 0, err
	}
	return results[0].lastID, nil
}

// createPetOnce stores a pet under an Idempotency-Key, or finds the one that was stored under it, which
// replayed reports. reused means that the same key came before with another body. The record and the pet are
// one transaction, and which of several parallel requests is the first is decided inside it.
func (s *store) createPetOnce(p NewPet, keyID int64, idempotencyKey string, body []byte, now time.Time) (
	id int64, replayed, reused bool, err error) {
	digest, created := fmt.Sprintf("%x", sha256.Sum256(body)), int64(instantOf(now))
	idempotencyKey = quote(idempotencyKey)
	results, err := s.enqueue(context.Background(), maxQueue, &queued{statements: []statement{
		sqlOf(createOnce, p.CategoryID, storedStatus[p.Status], quote(p.Name), keyID, idempotencyKey,
			created-int64(recordMillis)),
		sqlOf(recordOnce, keyID, idempotencyKey, digest, created),
		{"SELECT pet_id, body_digest <> unhex(?) FROM idempotency WHERE key_id = ? AND idempotency_key = ? ->> '$'",
			[]any{digest, keyID, idempotencyKey}, []any{&id, &reused}},
	}})
	return id, err == nil && results[0].affected == 0, reused, err
}

// purge deletes Idempotency-Keys and days of usage that have served their time, and services that have ended, until
// ctx ends.
func (s *store) purge(ctx context.Context, now time.Time) error {
	today, ended := int64(instantOf(now)/dayMillis), int64(instantOf(now)-recordMillis)
	const chunk = int64(1000) // rows in one transaction, so that creates need not wait long
	for _, old := range []statement{
		sqlOf(sqlFile("purge-keys"), ended, chunk),
		sqlOf(sqlFile("purge-days"), today-maxDays, chunk),
		sqlOf("DELETE FROM services WHERE seen_at <= ?", ended),
	} {
		for deleted := chunk; deleted == chunk && ctx.Err() == nil; {
			results, err := s.write(context.WithoutCancel(ctx), old)
			if err != nil {
				return err
			}
			deleted = results[0].affected
		}
	}
	return nil
}

// memory is a map for concurrent use that forgets: entries that are picked at random make room for new ones. To drop
// the oldest would leave nothing to find when clients read in turn more than fits.
type memory[K comparable, V any] struct {
	max      int64        // of size
	oneOf    int          // of so many new entries that find no room, one gets in; 0 for all
	size     atomic.Int64 // of all entries
	counters              // counted by whoever reads

	mu      sync.RWMutex // guards entries
	entries map[K]sized[V]
}

// counters are of what was found, and of what was not.
type counters struct{ hits, misses atomic.Uint64 }

type sized[V any] struct {
	value V
	size  int64
}

// get returns the zero value if there is none.
func (m *memory[K, V]) get(k K) V {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.entries[k].value
}

// put keeps a value of a size, unless there is no room.
func (m *memory[K, V]) put(k K, v V, size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, known := m.entries[k]
	full := m.size.Load()+size > m.max
	if size > m.max || full && !known && m.oneOf > 0 && rand.IntN(m.oneOf) > 0 { //nolint:gosec // no secret
		return
	}
	if m.entries == nil {
		m.entries = map[K]sized[V]{}
	}
	m.entries[k] = sized[V]{v, size}
	m.size.Add(size - old.size)
	for other, e := range m.entries { // Go begins anywhere
		if m.size.Load() <= m.max {
			break
		}
		if other != k {
			delete(m.entries, other)
			m.size.Add(-e.size)
		}
	}
}

// measure adds how often it had what was asked for, and how often not.
func (m *memory[K, V]) measure(e *exposition, name string) {
	e.add("petstore_cache_reads_total", fmt.Sprintf(`{cache=%q,result="hit"}`, name), float64(m.hits.Load()))
	e.add("petstore_cache_reads_total", fmt.Sprintf(`{cache=%q,result="miss"}`, name), float64(m.misses.Load()))
}
