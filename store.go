package main

// The store: pets, pages and Idempotency-Keys. It speaks SQL to an engine (sqlite.go, rqlite.go)
// and knows nothing of connections. The SQL of keys stands in keys.go, that of usage in usage.go,
// and that of imports in commands_pets.go. Pages and pets that are read often stay in memory as
// encoded JSON.
//
// Many callers share a commit. Writes join the next transaction until it begins. The caller whose
// write came first is its leader: it waits until the transaction before has ended, commits, and
// wakes the others, its followers. So 64 clients share one sync of the disk, and nobody gets a
// response before the disk has the data. We rejected one goroutine that does all writing. It would
// share commits too, but on a single core the reads beside it waited for hundreds of milliseconds.
//
// A transaction is SQL alone, without Go code between its statements. So an engine may be far away
// and speak JSON.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// statement is one SQL statement, or several that have no arguments, such as a migration. The
// arguments are int64, string or nil, which every engine can carry. Digests are bound as hex, for
// unhex(?). Text that a client or an operator has chosen is bound as a JSON string, which the SQL
// decodes with ? ->> '$'. A JSON string begins with a quote. Without the quote, rqlite would take a
// text such as x'41' for a BLOB.
type statement struct {
	query string
	args  []any
	into  []any // for a SELECT inside a write: pointers to the columns of the one row it must find
}

func sqlOf(query string, args ...any) statement { return statement{query: query, args: args} }

// result is what a statement of a write did.
type result struct {
	lastID   int64 // the id of the row inserted last; meaningless if affected is 0
	affected int64 // rows inserted, updated or deleted
}

// scanner copies the columns of a row to pointers to integers, booleans or strings.
type scanner = func(columns ...any) error

// engine keeps the tables and runs SQLite's SQL on them. It is safe for concurrent use, but the
// store writes one transaction at a time.
type engine interface {
	// write runs the statements in one transaction and returns a result for each, once all are
	// durable. SQL's changes() and last_insert_rowid() tell of the statement before. An error means
	// that nothing was written, unless it wraps errOutcome.
	//
	// The end of ctx ends a wait for other programs. What it does to a transaction that has begun:
	//   - on a file that was opened to serve, from bind on: nothing, the transaction finishes;
	//   - on another file: the transaction is undone, unless its COMMIT has begun;
	//   - on a cluster: the outcome of what was sent is unknown.
	write(ctx context.Context, statements []statement) ([]result, error)
	// read calls row for each row of the query's result. The query sees every write that has
	// returned before. A ctx that can be cancelled costs 2 µs and a goroutine. An error wraps
	// errUnavailable if a read may succeed later. Most errors of a file do not wrap it.
	read(ctx context.Context, query statement, row func(scan scanner) error) error
	// changed is a part of each look for edits (see refresh). If rows may differ from what is
	// remembered although no edit was counted, it calls forget, which makes all of that old. On a
	// file: if another program has written anything since the last call. On a cluster: if another
	// node responds than before, which may lack what the last one has shown. When one of several
	// calls at once has noticed this, none of them returns before forget has returned.
	changed(ctx context.Context, forget func()) error
	// bind is the last step of each opening, once the schema is right. From then on a cluster's
	// engine refuses a node with another database, and on a file that was opened to serve, the end
	// of ctx undoes no transaction any more.
	bind(ctx context.Context) error
	// shared reports whether several services can use the database at once.
	shared() bool
	// describe names the engine, and the file or the node that it uses now.
	describe() (engine, node string)
	// measure adds the engine's own metrics.
	measure(e *exposition)
	// members asks all nodes of a cluster how they are. A file has none.
	members(ctx context.Context) []member
	Close() error
}

// member is a node of a cluster, and what it says that it is.
type member struct {
	Node  string `json:"node"`
	State string `json:"state"` // such as Leader, Follower or Not used; "" if it does not respond

	serves bool // it leads or follows, and is used
}

var (
	// errUnavailable means that the store cannot be read or written now, and that the client may
	// try again. Each write that fails wraps it, unless errQueueFull has refused it, and also if
	// the reason will last: see lastingErrors in main.go. Nothing of a write is stored, unless the
	// error wraps errOutcome too.
	errUnavailable = errors.New("the store is not available now")
	// errOutcome means that a write was sent, and that it may or may not be stored.
	errOutcome = errors.New("whether it was stored is unknown")
	// errOtherDatabase means that an engine has met another database than the one that it has
	// opened. From then on it does nothing, even if the first one comes back.
	errOtherDatabase = errors.New("the nodes of -db hold, or held, another database than the one " +
		"that was opened; a service must be restarted")
)

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

const (
	entryBytes   = 256            // memory for a cached page or pet, beside its body
	maxCallers   = 4096           // callers of one transaction; more creates are refused
	maxOfOne     = maxCallers / 4 // creates of one usage among them: no burst takes all places
	recordMillis = dayMillis      // for how long an Idempotency-Key is kept

	// For so long a command, and a service that starts or stops, wait for a lock of the file or for
	// the leader of a cluster.
	commandWait = 10 * time.Second
)

// store is safe for concurrent use.
type store struct {
	engine engine

	mu   sync.Mutex   // guards next, and what callers add to it
	next *transaction // takes in writes until it begins

	// committing holds an element while a transaction runs. It is a channel in place of a mutex,
	// because testing/synctest does not see that a goroutine waits for a mutex.
	committing chan struct{}

	// What is remembered. It has a lock of its own. The callers of page and pet have to call
	// catchUp of it first.
	memory

	// These are for /metrics.
	queueRefusals atomic.Int64
	commitSizes   histogram // writes that shared a transaction
	commitTimes   histogram // nanoseconds of the transactions that succeeded
	commitsFailed atomic.Int64
	idsGivenAgain atomic.Int64
}

// transaction is what many callers commit together.
type transaction struct {
	callers    int
	creates    map[int64]int // how many of the callers are creates, by the usage of their key
	statements []statement
	// pets are rows (see NewPet.row) of plain creates, those without an Idempotency-Key. commit
	// inserts them by one statement more.
	pets [][]byte

	// shownBefore is the store's highestShown when the transaction began. A new id that is not
	// above it was given before: see noteGivenAgain.
	shownBefore int64

	ended   chan struct{} // closed when the fields below are known
	err     error
	results []result // of the statements
}

func newTransaction() *transaction {
	return &transaction{creates: map[int64]int{}, ended: make(chan struct{})}
}

// storeOn returns a store that keeps everything in an engine. It remembers no pages and pets until
// documents.max is set.
func storeOn(e engine) *store {
	s := &store{
		engine:     e,
		next:       newTransaction(),
		committing: make(chan struct{}, 1),
	}
	s.ready.since = processStart
	s.commitSizes.bounds = []float64{1, 4, 16, 64, 256, 1024, maxCallers}
	s.commitTimes.bounds = durationBounds
	s.memory.begin(s.refresh)
	return s
}

// Close ends the engine. That of a file waits for the transaction that runs.
func (s *store) Close() error {
	s.memory.end()
	return s.engine.Close()
}

// write runs the statements in one transaction, perhaps together with the writes of other callers,
// and returns their results when they are durable. Its errors wrap errUnavailable. ctx is heeded
// only if nobody else has joined, and only after the wait for the transaction before. None of the
// statements may fail by its data: all who have joined would fail.
func (s *store) write(ctx context.Context, statements ...statement) ([]result, error) {
	_, results, err := s.writeFor(ctx, ownUsage, statements...)
	return results, err
}

// writeFor is write for a create. usageID is that of the key, which may have maxOfOne creates in a
// transaction: one more is refused with errQueueFull. With ownUsage, it is for any other write. It
// also returns the transaction, for its shownBefore.
func (s *store) writeFor(ctx context.Context, usageID int64, statements ...statement) (
	t *transaction, results []result, err error) {
	var begin int
	t, err = s.join(ctx, usageID, func(t *transaction) {
		begin = len(t.statements)
		t.statements = append(t.statements, statements...)
	})
	if err != nil {
		return nil, nil, err
	}
	return t, t.results[begin : begin+len(statements)], nil
}

// ownUsage stands for the writes of the service itself, and of commands. The ids of usages start
// at 1.
const ownUsage = 0

// errQueueFull is the error of a create that comes when too many writes wait, or too many creates
// of the same usage. It says nothing about the engine.
var errQueueFull = newError(CodeUnavailable, "too many writes wait already; try again")

// join lets a caller add to the next transaction, and returns it when it is durable. The writes of
// the service are few and are never refused: without them no usage, no ban and no probe is stored.
func (s *store) join(ctx context.Context, usageID int64, add func(t *transaction)) (
	*transaction, error) {
	s.mu.Lock()
	t := s.next
	if usageID != ownUsage {
		if t.callers >= maxCallers || t.creates[usageID] >= maxOfOne {
			s.mu.Unlock()
			s.queueRefusals.Add(1)
			return nil, errQueueFull
		}
		t.creates[usageID]++
	}
	t.callers++
	leads := t.callers == 1
	add(t)
	s.mu.Unlock()

	if leads {
		s.lead(ctx, t)
	}
	<-t.ended
	if t.err != nil {
		return nil, fmt.Errorf("%w: %w", errUnavailable, t.err)
	}
	return t, nil
}

// lead commits a transaction as soon as the one before it has ended. Then it wakes first the next
// leader and then the followers, so that the disk does not wait until these have written their
// responses. Both are woken even if the engine panics.
func (s *store) lead(ctx context.Context, t *transaction) {
	defer close(t.ended) // wakes the followers, after commitInTurn has woken the next leader
	runtime.Gosched()    // requests that are ready to run join first
	s.commitInTurn(ctx, t)
}

// commitInTurn commits a transaction. Its beginning waits until no other transaction runs, and its
// end wakes the next leader.
func (s *store) commitInTurn(ctx context.Context, t *transaction) {
	s.committing <- struct{}{}
	defer func() { <-s.committing }()
	// If the engine panics, commit does not return, and the followers get this.
	t.err = fmt.Errorf("%w: the engine has panicked", errOutcome)
	// Callers that come from here on join the next transaction.
	s.mu.Lock()
	s.next = newTransaction()
	s.mu.Unlock()
	t.err = s.commit(ctx, t)
	// commit heeds ctx only for a single caller. Then it may have failed by that alone, which tells
	// nothing of the database, and is not counted.
	if t.err != nil && t.callers == 1 && ctx.Err() != nil {
		return
	}
	if t.err != nil {
		s.commitsFailed.Add(1)
	}
	s.noteReady(&s.ready.committing, t.err)
}

func (s *store) commit(ctx context.Context, t *transaction) error {
	if t.callers > 1 {
		ctx = context.WithoutCancel(ctx) // nobody may cancel the writes of others
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // before it is sent, so that its outcome is known
	}
	if len(t.pets) > 0 {
		rows := bytes.Join(t.pets, []byte(","))
		t.statements = append(t.statements, sqlOf(insertCreated, "["+string(rows)+"]"))
	}
	// Before the write: until that returns here, others may already read and show its pets, by
	// which highestShown rises.
	t.shownBefore = s.highestShown.Load()
	start := time.Now()
	results, err := s.engine.write(ctx, t.statements)
	if err != nil {
		s.forgetIfLost(err)
		return err
	}
	s.commitSizes.observe(int64(t.callers))
	s.commitTimes.observe(int64(time.Since(start)))
	t.results = results
	return nil
}

// edit is write for changes of pets and keys that are stored already. Only commands make them. It
// counts the edit in the database, where all services see it: see refresh. A new pet or key is no
// edit, since no service remembers that there was none. Only the last page of a list may lack a
// new pet: see fresh.
func (s *store) edit(ctx context.Context, statements ...statement) ([]result, error) {
	count := sqlOf("UPDATE counters SET value = value + 1 WHERE name = 'edits'")
	return s.write(ctx, append(statements, count)...)
}

// editsQuery reads how many edits there were.
const editsQuery = "SELECT value FROM counters WHERE name = 'edits'"

// refresh is a look for edits by others. If there are any, noteEdits makes everything cached old.
// changed does the same for what is not counted as an edit. If the database cannot be read, neither
// is called, and what is cached is used on (but see read).
func (s *store) refresh(ctx context.Context) error {
	var edits int64
	_, err := s.readInto(ctx, sqlOf(editsQuery), &edits)
	if err != nil {
		return err
	}
	s.noteEdits(edits)
	// After the read: on a cluster, this notices whether another node has answered that.
	return s.engine.changed(ctx, s.forget)
}

// read is engine.read. After errOtherDatabase, what is cached is forgotten.
func (s *store) read(ctx context.Context, query statement, row func(scan scanner) error) error {
	err := s.engine.read(ctx, query, row)
	s.forgetIfLost(err)
	return err
}

// forgetIfLost forgets what is cached if the engine has met another database: none of it may be
// shown any more, even if nothing can be read in its place.
func (s *store) forgetIfLost(err error) {
	if errors.Is(err, errOtherDatabase) {
		s.forget()
	}
}

// readInto copies the columns of the query's one row; found is false if there is none.
func (s *store) readInto(ctx context.Context, query statement, columns ...any) (
	found bool, err error) {
	err = s.read(ctx, query, func(scan scanner) error {
		found = true
		return scan(columns...)
	})
	return found, err
}

// readable is an error if nothing can be read. In every database, its query finds a row. Only this
// notes whether reading works: others may fail because a pet is damaged.
func (s *store) readable(ctx context.Context) error {
	_, err := s.readInto(ctx, sqlOf(editsQuery), new(int64))
	s.noteReady(&s.ready.reading, err)
	return err
}

// probe is an error if nothing can be committed. It stores the time, because a transaction that
// changes nothing would not touch the disk. The time goes to a row of its own in the table
// services, whose other ids are numbers.
func (s *store) probe(ctx context.Context) error {
	_, err := s.write(ctx, sqlOf(`REPLACE INTO services (id, flushes, seen_at)
		VALUES ('probe', 0, ?)`, time.Now().UnixMilli()))
	return err
}

// storedStatuses has each status at the number that stands for it in the tables: from 2 on, because
// SQLite may take a 0 or 1 that is bound to a query for a truth value, and guess that most rows
// have it. It would plan anew whenever pages of that status and of another came in turn, and a page
// would take 18 µs in place of 10.
var storedStatuses = []PetStatus{2: Available, 3: Pending, 4: Sold}

// stored is the number of a status. For "" it is 0: the elements 0 and 1 above are "". In a place,
// 0 stands for all pets.
func (s PetStatus) stored() int64 { return int64(slices.Index(storedStatuses, s)) }

// The queries of pets, for petReader. Those that begin with readPets have one more row, with the id
// 0, which is no pet: its category_id is the number of edits. That number and the pets come from
// one state of the database, so no pet shows an edit that is not counted. WHERE counts for pets
// alone, ORDER BY and LIMIT for all rows together: the row that is no pet comes first, and LIMIT
// counts it. An OFFSET would cost more with each page. INDEXED BY keeps the index in use after an
// ANALYZE by another program, whose numbers may say that all pets have one status.
const (
	selectPets = `SELECT id, category_id, status, name FROM pets `
	readPets   = `SELECT 0 AS id, value AS category_id, 0, '' FROM counters WHERE name = 'edits'
		UNION ALL ` + selectPets
	petQuery        = readPets + `WHERE id = ?`
	listQuery       = readPets + `WHERE id > ? ORDER BY id LIMIT ?`
	statusListQuery = readPets + `INDEXED BY pets_status
		WHERE status = ? AND id > ? ORDER BY id LIMIT ?`
)

// petReader returns a function that takes the rows of these queries, and notes that a response may
// show its rows from now on. The function returns the pet of a row, which its next call overwrites,
// or nil for the row that is no pet. With an error, the pet has what could be read, such as the id
// that an export then names.
func (s *store) petReader() func(scan scanner) (*Pet, error) {
	var pet Pet
	var status int64 // the number of its Status
	columns := []any{&pet.ID, &pet.CategoryID, &status, &pet.Name}
	return func(scan scanner) (*Pet, error) {
		if err := scan(columns...); err != nil {
			return &pet, err
		}
		if pet.ID == 0 {
			s.noteEdits(pet.CategoryID) // their number: see readPets
			return nil, nil
		}
		if status < 2 || status >= int64(len(storedStatuses)) { // no number of a status
			return &pet, fmt.Errorf("pet %d has the status %d", pet.ID, status)
		}
		pet.Status = storedStatuses[status]
		s.noteShown(pet.ID)
		return &pet, nil
	}
}

// insertPets returns the statement that adds pets if a condition holds. Its first argument is a
// JSON array of rows, as NewPet.row makes them. SQLite inserts them in the order of the ORDER BY,
// and AUTOINCREMENT gives them consecutive ids; createPet relies on both. RETURNING would cost
// twice as much.
func insertPets(condition string) string {
	return `INSERT INTO pets (category_id, status, name)
		SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?)
		WHERE ` + condition + ` ORDER BY key`
}

// row is the columns of a pet as a JSON array.
func (p NewPet) row() []byte {
	to := []byte{'['}
	to = strconv.AppendInt(to, p.CategoryID, 10)
	to = append(to, ',')
	to = strconv.AppendInt(to, p.Status.stored(), 10)
	to = append(to, ',')
	to = appendQuoted(to, p.Name)
	return append(to, ']')
}

// listPage is a page of the list.
type listPage struct {
	document
	last int64 // the id of its last pet
	more bool  // a later page has pets

	// What the store had noted before the page was read, which tells whether it is fresh.
	generation   uint64
	highestShown int64
}

// place is where a page stands in the list.
type place struct {
	status       int64 // its number; 0 for all
	limit, after int64
}

// query reads the page, and one more pet if there are more.
func (at place) query() statement {
	rows := 1 + at.limit + 1 // the first row is no pet, the last one says that there are more
	if at.status == 0 {
		return sqlOf(listQuery, at.after, rows)
	}
	return sqlOf(statusListQuery, at.status, at.after, rows)
}

// fresh reports whether a cached page is as good as one that was read at the last look for edits.
func (s *store) fresh(p *listPage) bool {
	if p.generation != s.generation.Load() {
		return false
	}
	if p.more { // new pets get higher ids, and stand on later pages
		return true
	}
	if s.engine.shared() { // another service may have added pets to this page
		return false
	}
	// On a file, only commands add pets beside this service, and the next look notices those by
	// engine.changed. But the page may lack a pet of this service that was shown since. (It keeps
	// highestShown as it was before its query. If its own query was the first to show a new pet, it
	// is old at once, and read once more.)
	return p.highestShown == s.highestShown.Load()
}

// page returns the pets with ids above after, in ascending order. Status "" stands for all. The
// caller has called catchUp.
func (s *store) page(status PetStatus, limit int, after int64) (*listPage, error) {
	at := place{status: status.stored(), limit: int64(limit), after: after}
	// The keys of documents are the place of a page, and the id of a pet.
	if page, ok := s.documents.get(at).(*listPage); ok && s.fresh(page) {
		return page, nil
	}
	page, err := s.readPage(at)
	if err != nil {
		return nil, err
	}
	s.documents.put(at, page, entryBytes+int64(len(page.body)))
	return page, nil
}

func (s *store) readPage(at place) (*listPage, error) {
	// Both come before the query. So a page that was read before an edit, or before a new pet was
	// shown, and cached after it, is not fresh.
	page := &listPage{generation: s.generation.Load(), highestShown: s.highestShown.Load()}
	body := append(make([]byte, 0, 100*at.limit), '[')
	count := int64(0)
	err := s.showPets(at.query(), func(pet *Pet) {
		if count == at.limit {
			page.more = true
			return
		}
		if count > 0 {
			body = append(body, ',')
		}
		count++
		body = pet.appendJSON(body)
		page.last = pet.ID
	})
	if err != nil {
		return nil, err
	}
	page.document = newDocument(append(body, ']'), page.more) // if there are more, with a Link
	return page, nil
}

// showPets calls show with each pet of a query that begins with readPets.
func (s *store) showPets(query statement, show func(pet *Pet)) error {
	isAnswered := false
	readPet := s.petReader()
	err := s.read(context.Background(), query, func(scan scanner) error {
		isAnswered = true
		pet, err := readPet(scan)
		if err == nil && pet != nil {
			show(pet)
		}
		return err
	})
	if err == nil && !isAnswered {
		return errors.New("the engine has returned nothing, not even the row that is no pet")
	}
	return err
}

// cachedPet is the document of one pet.
type cachedPet struct {
	document
	generation uint64 // of the store, before the pet was read; only an edit changes a pet
}

// pet returns the pet, or nil if there is none. The caller has called catchUp.
func (s *store) pet(id int64) (*cachedPet, error) {
	generation := s.generation.Load() // before the query
	if pet, ok := s.documents.get(id).(*cachedPet); ok && pet.generation == generation {
		return pet, nil
	}
	var pet *cachedPet
	err := s.showPets(sqlOf(petQuery, id), func(found *Pet) {
		document := newDocument(found.appendJSON(nil), false)
		pet = &cachedPet{document: document, generation: generation}
	})
	if err != nil || pet == nil {
		return nil, err
	}
	s.documents.put(id, pet, entryBytes+int64(len(pet.body)))
	return pet, nil
}

// insertCreated adds the pets of all plain creates of a transaction.
var insertCreated = insertPets("true")

// createPet stores a pet for a key with a usage, and returns its id. The error may be errQueueFull.
func (s *store) createPet(usageID int64, p NewPet) (id int64, err error) {
	row := p.row()
	var before int // pets of the transaction that come before this one
	t, err := s.join(context.Background(), usageID, func(t *transaction) {
		before = len(t.pets)
		t.pets = append(t.pets, row)
	})
	if err != nil {
		return 0, err
	}
	pets := int64(len(t.pets))
	// commit has appended insertCreated as the last statement. Its ids are consecutive: see
	// insertPets.
	inserted := t.results[len(t.results)-1]
	first := inserted.lastID - pets + 1
	if inserted.affected != pets || first < 1 {
		// An engine that reports another number is broken: this pet may be stored or not.
		return 0, fmt.Errorf("%w: %w: the engine has stored %d pets in place of %d, the last as %d",
			errUnavailable, errOutcome, inserted.affected, pets, inserted.lastID)
	}
	id = first + int64(before)
	if id <= t.shownBefore {
		return 0, s.noteGivenAgain(id)
	}
	s.noteShown(id)
	return id, nil
}

// noteGivenAgain returns the error of a create that got an id that was given before. The engine has
// lost pets, as happens to a node whose disk was full, and on a cluster of which two nodes have led
// at once. Whether it keeps the new pet is unknown, too; if that was created with an
// Idempotency-Key, a repeat may find it, under this id.
//
// What is remembered may be of pets that are lost, so it is forgotten. highestShown stays, so that
// this heals: each create that fails uses up an id, until the ids are above all that were shown.
func (s *store) noteGivenAgain(id int64) error {
	s.idsGivenAgain.Add(1)
	s.forget()
	return fmt.Errorf("%w: %w: the engine has given the id %d again, so it has lost pets: read "+
		"\"When an id is given again\" in docs/operating.md", errUnavailable, errOutcome, id)
}

// insertOnce adds a pet unless it was added under an Idempotency-Key since an instant.
var insertOnce = insertPets(`NOT EXISTS (SELECT 1 FROM idempotency
	WHERE key_id = ? AND idempotency_key = ? ->> '$' AND created_at > ?)`)

// createPetOnce stores a pet under an Idempotency-Key, or finds the one that was stored under it:
// then replayed is true, and reused as well if the first request had another body. The record and
// the pet are one transaction, whose SQL decides which of several parallel requests is the first.
// usageID is only for the share of places in a transaction. keyID is whose record it is: a key and
// its successor share the usage, but not the records. The error may be errQueueFull.
func (s *store) createPetOnce(usageID int64, p NewPet, keyID int64, idempotencyKey string,
	body []byte, now time.Time) (id int64, replayed, reused bool, err error) {
	digest := fmt.Sprintf("%x", sha256.Sum256(body))
	created := int64(instantOf(now))
	idempotencyKey = quote(idempotencyKey)
	insertPet := sqlOf(insertOnce, "["+string(p.row())+"]",
		keyID, idempotencyKey, created-int64(recordMillis))
	// If the statement before has inserted a pet, changes() is 1, and last_insert_rowid() its id.
	// REPLACE: a record of the same key that has served its time may still be there.
	insertRecord := sqlOf(`REPLACE INTO idempotency
			(key_id, idempotency_key, body_digest, pet_id, created_at)
		SELECT ?, ? ->> '$', unhex(?), last_insert_rowid(), ? WHERE changes() = 1`,
		keyID, idempotencyKey, digest, created)
	readRecord := statement{query: `SELECT pet_id, body_digest <> unhex(?) FROM idempotency
		WHERE key_id = ? AND idempotency_key = ? ->> '$'`,
		args: []any{digest, keyID, idempotencyKey},
		// Before writeFor returns, the engine sets these two results of createPetOnce.
		into: []any{&id, &reused}}
	t, results, err := s.writeFor(
		context.Background(), usageID, insertPet, insertRecord, readRecord)
	if err != nil {
		return 0, false, false, err
	}
	replayed = results[0].affected == 0 // insertPet has inserted none
	// The id of a replay was given before, of course.
	if !replayed && id <= t.shownBefore {
		return 0, false, false, s.noteGivenAgain(id)
	}
	s.noteShown(id)
	return id, replayed, reused, nil
}

// purge deletes Idempotency-Keys that have served their time, until ctx ends.
func (s *store) purge(ctx context.Context, now time.Time) error {
	expired := int64(instantOf(now) - recordMillis)
	return s.purgeRows(ctx, `DELETE FROM idempotency WHERE (key_id, idempotency_key) IN
		(SELECT key_id, idempotency_key FROM idempotency WHERE created_at <= ?
			ORDER BY created_at LIMIT ?)`, expired)
}

// purgeRows repeats a statement until no rows are left, or until ctx ends, which may also be the
// error of a write. The statement has two arguments: upTo, the last instant or day whose rows it
// deletes, and how many rows it deletes at most. After each time it leaves the database to creates
// for as long as that took.
func (s *store) purgeRows(ctx context.Context, query string, upTo int64) error {
	const chunk int64 = 100 // rows in one transaction, so that creates need not wait long
	for ctx.Err() == nil {
		begin := time.Now()
		results, err := s.write(ctx, sqlOf(query, upTo, chunk))
		if err != nil {
			return err
		}
		if results[0].affected < chunk {
			return nil
		}
		pause(ctx, time.Since(begin))
	}
	return nil
}
