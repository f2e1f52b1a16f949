package main

// The store: pets, pages, Idempotency-Keys, and the schema of everything that is kept. It speaks
// SQL to an engine (sqlite.go, rqlite.go) and knows nothing of connections and transactions, nor
// what the other tables mean: auth.go and limits.go hold the SQL of theirs. What is read often is
// remembered here as encoded JSON.
//
// Writing is done by leader and followers. A caller queues its statements; the one that finds no
// transaction under way becomes the leader, commits all that is queued in one transaction and wakes
// the others. So 64 clients share one sync, and nobody gets a response before the disk has the
// data. A goroutine that owns the engine would do the same, but on a single core it starves the
// network poller: reads then wait for hundreds of milliseconds.
//
// What a batch does depends on its SQL alone and never on Go code in the middle
// of it, so that an engine may be far away and speak JSON.

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// statement is one SQL statement. Its arguments are int64, string or nil, which every engine can
// carry: digests are hex, for unhex(?) and hex(). A text that somebody else has chosen is bound as
// a JSON string, which the SQL takes apart with ? ->> '$': rqlite makes a BLOB of a string that
// reads x'41'.
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

// engine keeps the tables and runs SQLite's SQL on them. Opening one brings the schema up to date,
// by migrations. It is safe for concurrent use, but the store writes one transaction at a time.
type engine interface {
	// write runs the statements in one transaction, and returns a result for each when all of it is
	// durable. While it waits for another program, it heeds ctx. An error means that nothing was
	// written, unless it wraps errOutcome.
	write(ctx context.Context, statements []statement) ([]result, error)
	// read calls row for each row of the query's result, which holds all that any write has
	// returned for. A ctx that can be cancelled costs a query 2 µs and a goroutine.
	read(ctx context.Context, query statement, row func(scan scanner) error) error
	// changed reports whether others may have edited what services remember since it was last
	// called. A file tells of every write by somebody else, a cluster only of those that were
	// counted (edit).
	changed(ctx context.Context) (bool, error)
	// shared reports whether other services add pets at the same time.
	shared() bool
	// backup writes a consistent copy of everything to an empty file. A cluster's holds all that
	// the last read saw.
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
	forCommand purpose = iota // the file has to be there
	forNewKey                 // a command that makes the file if there is none
	forService                // the same, and there must be no other service on it
	forNothing                // the command opens none
)

// applicationID marks a database as this program's ("pets" in ASCII).
const applicationID = 0x70657473

//go:embed schema
var schemaFiles embed.FS

// migrations take the schema from one version to the next: schema/1.sql makes version 1, and so on.
// A change of the schema is a new file, which only adds: databases have run the others, and older
// services may run beside newer ones.
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

	errForeign = errors.New("it belongs to another program")
	errMissing = errors.New("there is none; petstore makes it at its first start")
	errServed  = errors.New("a petstore serves it; stop it first") // for restore
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
	case application != applicationID && (application != 0 || tables > 0):
		err = errForeign
	case version > len(migrations):
		err = fmt.Errorf(
			"its schema is version %d and this petstore knows only %d; use a newer petstore",
			version, len(migrations))
	}
	return version, err
}

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
	_, failed := e.write(ctx, []statement{sqlOf(strings.Join(migrations[version:], "")),
		sqlOf(fmt.Sprintf("PRAGMA application_id = %d", applicationID)),
		sqlOf(fmt.Sprintf("PRAGMA user_version = %d", len(migrations)))})
	version, err = schemaVersion(ctx, e)
	if err == nil && version == len(migrations) { // perhaps somebody was faster
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
	entryBytes   = 192              // that a page or a pet takes in memory beside its body
	maxQueue     = 4096             // writes of requests that may wait and then share a transaction
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

	// commits counts those of this service. editsSeen counts the looks that found edits of others.
	// What is remembered keeps the counts from before it was read: they tell whether it is still
	// good.
	commits, editsSeen atomic.Uint64

	pages cache[place, *listPage]
	pets  cache[int64, *cachedPet] // by their ids

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

// remember bounds what pages and pets may take in memory together; 0 is nothing. Pets get an
// eighth: the operation is deprecated, and among many pets few are asked for twice.
func (s *store) remember(bytes int64) {
	s.pets.max = bytes / 8
	s.pages.max = bytes - s.pets.max
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
		// The next leader is woken first, so that the disk does not wait for the followers to write
		// their responses.
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
		statements = append(statements, q.statements...)
		pets = append(pets, q.pets...)
	}
	n := int64(len(pets))
	if n > 0 {
		rows := "[" + strings.Join(pets, ",") + "]"
		statements = append(statements, sqlOf(insertPets+"ORDER BY key", rows))
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
		lastID = inserted.lastID - n
		if inserted.affected != n || lastID < 0 {
			return fmt.Errorf("%w: the engine knows of %d pets in place of %d",
				errOutcome, inserted.affected, n)
		}
	}
	for _, q := range batch {
		q.results = results[:len(q.statements)]
		results = results[len(q.statements):]
		lastID += int64(len(q.pets))
		q.lastID = lastID
	}
	return nil
}

// edit is write for a change of what services may remember: it is counted, so that they read it
// anew. Who only adds pets or keys uses write, since nobody remembers what is not there yet.
func (s *store) edit(ctx context.Context, statements ...statement) ([]result, error) {
	count := sqlOf("UPDATE counters SET value = value + 1 WHERE name = 'edits'")
	return s.write(ctx, append(statements, count)...)
}

// editsQuery reads how many edits there were.
const editsQuery = "SELECT value FROM counters WHERE name = 'edits'"

// refresh looks whether others have edited anything: then all that is remembered is read anew.
func (s *store) refresh(ctx context.Context) error {
	changed, err := s.engine.changed(ctx)
	if changed {
		s.editsSeen.Add(1)
	}
	return err
}

// readInto copies the columns of the query's first row; found is false if there is none.
func (s *store) readInto(ctx context.Context, query statement, columns ...any) (
	found bool, err error) {
	err = s.engine.read(ctx, query, func(scan scanner) error {
		found = true
		return scan(columns...)
	})
	return found, err
}

// probe is an error if nothing can be read or nothing be committed. It stores and
// removes a service that there is not, since an empty transaction would touch no disk.
func (s *store) probe(ctx context.Context) error {
	if _, err := s.readInto(ctx, sqlOf(editsQuery), new(int64)); err != nil {
		return err
	}
	_, err := s.write(ctx,
		sqlOf("INSERT OR REPLACE INTO services (id, flushes, seen_at) VALUES ('probe', 0, 0)"),
		sqlOf("DELETE FROM services WHERE id = 'probe'"))
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

// petJSON builds a pet inside SQLite, as Pet.json does in Go. For 20 pets it takes half the time of
// scanning rows.
const petJSON = `json_object('id', id, 'name', name, 'categoryId', category_id, 'status',
	CASE status WHEN 2 THEN 'available' WHEN 3 THEN 'pending' ELSE 'sold' END)`

// storedStatus are the stored forms of the states. They start at 2 because SQLite prepares a
// statement anew when a bound value becomes, or ceases to be, 0 or 1.
var storedStatus = map[PetStatus]int64{Available: 2, Pending: 3, Sold: 4}

// listPage is a page of the list.
type listPage struct {
	document
	last int64 // the id of its last pet
	more bool  // there are pets behind it

	commits, editsSeen uint64 // of the store, before the page was read
}

// place says which page of the list it is.
type place struct {
	status       int64 // as it is stored; 0 for all
	limit, after int64
}

// fresh reports whether a remembered page is as good as one that is read now.
func (s *store) fresh(p *listPage) bool {
	if p.editsSeen != s.editsSeen.Load() {
		return false
	}
	if p.more { // what is added gets higher ids, and comes on later pages
		return true
	}
	if s.engine.shared() { // another service may have added pets at its end
		return false
	}
	return p.commits == s.commits.Load()
}

// page returns the pets with ids above after, in ascending order; status "" stands for all.
func (s *store) page(status PetStatus, limit int, after int64) (*listPage, error) {
	at := place{storedStatus[status], int64(limit), after}
	if page := s.pages.get(at); page != nil && s.fresh(page) {
		s.pages.hits.Add(1)
		return page, nil
	}
	s.pages.misses.Add(1)
	page, err := s.readPage(at)
	if err != nil {
		return nil, err
	}
	s.pages.put(at, page, page.memory())
	return page, nil
}

func (s *store) readPage(at place) (*listPage, error) {
	// The counts come before the query: what is read before a change and kept after it is not
	// fresh.
	page := &listPage{commits: s.commits.Load(), editsSeen: s.editsSeen.Load()}
	query := sqlOf(pageQuery, at.after, at.limit)
	if at.status != 0 {
		query = sqlOf(statusPageQuery, at.after, at.limit, at.status)
	}
	var body string
	found, err := s.readInto(context.Background(), query, &body, &page.last, &page.more)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, errors.New("there is no row in place of a page")
	}
	marker := "."
	if page.more {
		marker = "+" // the response has a Link
	}
	page.document = newDocument(body, marker)
	return page, nil
}

var pageQuery, statusPageQuery = keysetQuery(""), keysetQuery("status = ?3 AND")

// keysetQuery reads a page as one row: of the pets for which the filter holds, ?2 with ids above
// ?1. Its columns have short names because the driver copies the names for every query.
func keysetQuery(filter string) string {
	return `SELECT body, ifnull(last, 0) AS last,
			EXISTS (SELECT 1 FROM pets WHERE ` + filter + ` id > last) AS more
		FROM (SELECT json_group_array(` + petJSON + ` ORDER BY id) AS body, max(id) AS last
			FROM (SELECT id, name, category_id, status FROM pets WHERE ` + filter + ` id > ?1
				ORDER BY id LIMIT ?2))`
}

// cachedPet is a single pet.
type cachedPet struct {
	document
	editsSeen uint64 // of the store, before the pet was read; commits of this service change no pet
}

const petQuery = "SELECT " + petJSON + " AS body FROM pets WHERE id = ?"

// pet returns the pet, or nil if there is none.
func (s *store) pet(id int64) (*cachedPet, error) {
	editsSeen := s.editsSeen.Load() // before the query
	if pet := s.pets.get(id); pet != nil && pet.editsSeen == editsSeen {
		s.pets.hits.Add(1)
		return pet, nil
	}
	s.pets.misses.Add(1)
	var body string
	found, err := s.readInto(context.Background(), sqlOf(petQuery, id), &body)
	if err != nil || !found {
		return nil, err
	}
	pet := &cachedPet{newDocument(body, "."), editsSeen}
	s.pets.put(id, pet, pet.memory())
	return pet, nil
}

// memory is how many bytes a remembered document takes, with what stands beside its body.
func (d *document) memory() int64 { return entryBytes + int64(len(d.body)*33/32) }

// eachPetJSON calls do for each pet, or for those of one status, by id.
func (s *store) eachPetJSON(ctx context.Context, status PetStatus,
	do func(pet string) error) error {
	page := func(after, limit int64) statement {
		return sqlOf("SELECT id, "+petJSON+` FROM pets WHERE id > ? AND ? IN (0, status)
			ORDER BY id LIMIT ?`, after, storedStatus[status], limit)
	}
	return s.eachRow(ctx, page, func(scan scanner) (id int64, err error) {
		var pet string
		if err := scan(&id, &pet); err != nil {
			return 0, err
		}
		return id, do(pet)
	})
}

// eachRow calls row for all rows of a query by id, which page makes. On one machine they are as
// they are at one moment; from a cluster, whose responses are kept in memory, it gets some
// thousands at a time.
func (s *store) eachRow(ctx context.Context, page func(after, limit int64) statement,
	row func(scan scanner) (id int64, err error)) error {
	limit := int64(-1) // none
	if s.engine.shared() {
		limit = 10_000
	}
	after, read := int64(0), limit
	for read == limit {
		read = 0
		err := s.engine.read(ctx, page(after, limit), func(scan scanner) (err error) {
			read++
			after, err = row(scan)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// imported returns how many pets of an import are stored. It is known by the digest of its content.
func (s *store) imported(ctx context.Context, digest string) (n int64, err error) {
	query := sqlOf("SELECT value FROM counters WHERE name = ?", "import "+digest)
	_, err = s.readInto(ctx, query, &n)
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
	category := strconv.FormatInt(p.CategoryID, 10)
	status := strconv.FormatInt(storedStatus[p.Status], 10)
	return "[" + category + "," + status + "," + quote(p.Name) + "]"
}

// createPet stores a pet and returns its id.
func (s *store) createPet(p NewPet) (id int64, err error) {
	q := &queued{pets: []string{p.row()}}
	_, err = s.enqueue(context.Background(), maxQueue, q)
	return q.lastID, err
}

// insertedID is the id that the first statement of a write has assigned, or 0 if its condition did
// not hold.
func insertedID(results []result, err error) (int64, error) {
	if err != nil || results[0].affected == 0 {
		return 0, err
	}
	return results[0].lastID, nil
}

// createPetOnce stores a pet under an Idempotency-Key, or finds the one that was stored under it,
// which replayed reports. reused means that the same key came before with another body. The record
// and the pet are one transaction, and which of several parallel requests is the first is decided
// inside it.
func (s *store) createPetOnce(p NewPet, keyID int64, idempotencyKey string, body []byte,
	now time.Time) (id int64, replayed, reused bool, err error) {
	digest := fmt.Sprintf("%x", sha256.Sum256(body))
	created := int64(instantOf(now))
	idempotencyKey = quote(idempotencyKey)
	create := sqlOf(`INSERT INTO pets (category_id, status, name) SELECT ?, ?, ? ->> '$'
		WHERE NOT EXISTS (SELECT 1 FROM idempotency
			WHERE key_id = ? AND idempotency_key = ? ->> '$' AND created_at > ?)`,
		p.CategoryID, storedStatus[p.Status], quote(p.Name),
		keyID, idempotencyKey, created-int64(recordMillis))
	// changes() and last_insert_rowid() are those of the statement before.
	record := sqlOf(`INSERT OR REPLACE INTO idempotency
			(key_id, idempotency_key, body_digest, pet_id, created_at)
		SELECT ?, ? ->> '$', unhex(?), last_insert_rowid(), ? WHERE changes() = 1`,
		keyID, idempotencyKey, digest, created)
	find := statement{`SELECT pet_id, body_digest <> unhex(?) FROM idempotency
		WHERE key_id = ? AND idempotency_key = ? ->> '$'`,
		[]any{digest, keyID, idempotencyKey}, []any{&id, &reused}}
	write := &queued{statements: []statement{create, record, find}}
	results, err := s.enqueue(context.Background(), maxQueue, write)
	if err != nil {
		return 0, false, false, err
	}
	replayed = results[0].affected == 0
	return id, replayed, reused, nil
}

// purge deletes Idempotency-Keys and days of usage that have served their time, and services that
// have ended, until ctx ends.
func (s *store) purge(ctx context.Context, now time.Time) error {
	const chunk = int64(1000) // rows in one transaction, so that creates need not wait long
	today := int64(instantOf(now) / dayMillis)
	ended := int64(instantOf(now) - recordMillis)
	oldRecords := sqlOf(`DELETE FROM idempotency WHERE (key_id, idempotency_key) IN
		(SELECT key_id, idempotency_key FROM idempotency WHERE created_at <= ?
			ORDER BY created_at LIMIT ?)`, ended, chunk)
	oldDays := sqlOf(`DELETE FROM usage_days WHERE (usage_id, day) IN
		(SELECT usage_id, day FROM usage_days WHERE day <= ? ORDER BY day LIMIT ?)`,
		today-maxDays, chunk)
	endedServices := sqlOf("DELETE FROM services WHERE seen_at <= ?", ended)
	for _, old := range []statement{oldRecords, oldDays, endedServices} {
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

// cache is a map for concurrent use that forgets: entries that are picked at random make room for
// new ones. To drop the oldest would leave nothing to find when clients read in turn more than
// fits.
type cache[K comparable, V any] struct {
	max  int64        // of size
	size atomic.Int64 // of all entries

	hits, misses atomic.Uint64 // counted by the reader, who knows whether an entry is still good

	mu      sync.RWMutex // guards entries
	entries map[K]sized[V]
}

type sized[V any] struct {
	value V
	size  int64
}

// get returns the zero value if there is none.
func (c *cache[K, V]) get(key K) V {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.entries[key].value
}

// put keeps a value of a size, unless it is larger than all may be together.
func (c *cache[K, V]) put(key K, value V, size int64) {
	if size > c.max {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[K]sized[V]{}
	}
	c.size.Add(size - c.entries[key].size)
	c.entries[key] = sized[V]{value, size}
	for other, entry := range c.entries { // Go begins anywhere
		if c.size.Load() <= c.max {
			return
		}
		if other != key {
			delete(c.entries, other)
			c.size.Add(-entry.size)
		}
	}
}

// measure adds how often it had what was asked for, and how often not.
func (c *cache[K, V]) measure(e *exposition, name string) {
	hit := fmt.Sprintf(`{cache=%q,result="hit"}`, name)
	miss := fmt.Sprintf(`{cache=%q,result="miss"}`, name)
	e.add("petstore_cache_reads_total", hit, float64(c.hits.Load()))
	e.add("petstore_cache_reads_total", miss, float64(c.misses.Load()))
}
