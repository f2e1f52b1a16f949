package main

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// storeNow is the tests' present: any instant does, since the store reads no clock.
var storeNow = time.Date(2026, time.May, 4, 12, 0, 0, 0, time.UTC)

// testLog is for those who have nothing to say in a test.
var testLog = slog.New(slog.DiscardHandler)

// storePath is a place for a database in a folder of its own.
func storePath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "pets.db")
}

// storeOpen opens a database beside others that have it open.
func storeOpen(t testing.TB, path string) *store { return storeOpenFor(t, path, forNewKey) }

func storeOpenFor(t testing.TB, path string, p purpose) *store {
	t.Helper()
	s, err := openStore(context.Background(), path, p, testLog)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func storeNew(t testing.TB) *store {
	t.Helper()
	return storeOpenFor(t, storePath(t), forService)
}

// engines runs a test once for each engine. db names a database of it that is new.
func engines(t *testing.T, test func(t *testing.T, db string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, storePath(t)) })
	t.Run("rqlite", func(t *testing.T) { test(t, rqliteNew(t, 3).addresses()) })
}

// storeRead reads one number by any engine.
func storeRead(t testing.TB, s *store, query string) (n int64) {
	t.Helper()
	if _, err := s.readInto(context.Background(), sqlOf(query), &n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// storeEdit changes what is stored as a command does, which the other stores have to notice.
func storeEdit(t testing.TB, db string, statements ...string) {
	t.Helper()
	s := storeOpen(t, db)
	for _, st := range statements {
		storeMust(t, storeErr(s.edit(context.Background(), sqlOf(st))))
	}
	storeMust(t, s.Close())
}

// sqliteOf is the engine of a store that storeOpen has opened.
func sqliteOf(s *store) *sqliteFile { return s.engine.(*sqliteFile) }

// storeRaw is another program's one connection to a database file.
func storeRaw(t testing.TB, path string, statements ...string) *sql.DB {
	t.Helper()
	db := openPool(path, commandWait)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return db
}

func storeNumber(t testing.TB, db *sql.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// storeCount counts the pets.
func storeCount(t testing.TB, s *store) int64 {
	t.Helper()
	return storeRead(t, s, "SELECT count(*) FROM pets")
}

func storeCreate(t testing.TB, s *store, p NewPet) int64 {
	t.Helper()
	id, err := s.createPet(p)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// storeIDs reads a page, checks its shape, and returns the ids on it.
func storeIDs(t testing.TB, s *store, status PetStatus, limit int, after int64) (ids []int64, p *listPage) {
	t.Helper()
	p, err := s.page(status, limit, after)
	if err != nil {
		t.Fatal(err)
	}
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

// storeOnce creates under the idempotency key "k" of a key at an instant.
func storeOnce(t testing.TB, s *store, keyID int64, body string, now time.Time) (id int64, verdict string) {
	t.Helper()
	id, replayed, reused, err := s.createPetOnce(NewPet{body, 1, Available}, keyID, "k", []byte(body), now)
	switch {
	case err != nil:
		t.Fatal(err)
	case reused:
		return id, "reused"
	case replayed:
		return id, "replayed"
	}
	return id, "created"
}

// storeWait sets how long a write waits for another program's lock.
func storeWait(s *store, d time.Duration) { sqliteOf(s).wait = d }

// storeLock takes the write lock as another program would. With the lock held,
// writes queue up behind the one that waits for it.
func storeLock(t testing.TB, s *store) (release func()) {
	t.Helper()
	db := storeRaw(t, sqliteOf(s).path, "BEGIN IMMEDIATE")
	return func() {
		if _, err := db.Exec("ROLLBACK"); err != nil {
			t.Error(err)
		}
	}
}

// storeAwait waits until a transaction is under way and n more writes are queued.
func storeAwait(t testing.TB, s *store, n int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
		s.mu.Lock()
		leading, queued := s.leading, len(s.queue)
		s.mu.Unlock()
		if leading && queued == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d writes are queued, want %d", queued, n)
		}
	}
}

// storeGate is an engine that is busy until it is opened.
type storeGate struct {
	engine
	opened chan bool
}

func (g *storeGate) write(ctx context.Context, statements []statement) ([]result, error) {
	<-g.opened
	return g.engine.write(ctx, statements)
}

// storeBehindLock starts the writes so that all but the first are one batch: the first
// finds the engine busy, until the others are queued.
func storeBehindLock(t testing.TB, s *store, writes ...func() error) []error {
	t.Helper()
	gate := &storeGate{engine: s.engine, opened: make(chan bool)}
	s.engine = gate
	errs := make([]error, len(writes))
	var wg sync.WaitGroup
	release := sync.OnceFunc(func() { close(gate.opened) })
	defer release() // also when the test ends here
	for i, write := range writes {
		wg.Go(func() { errs[i] = write() })
		storeAwait(t, s, i)
	}
	release()
	done := make(chan bool)
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the writes do not end")
	}
	s.engine = gate.engine
	return errs
}

func TestReopeningKeepsEverything(t *testing.T) { engines(t, testReopeningKeepsEverything) }

func testReopeningKeepsEverything(t *testing.T, db string) {
	s := storeOpen(t, db)
	token := newSecret(false)
	keyID, err := insertKey(context.Background(), s,
		&apiKey{Name: "shop", Plan: "pro", CreatedAt: instantOf(storeNow)}, token, false)
	if err != nil {
		t.Fatal(err)
	}
	spent := usage{minute: bucket{used: 3, ends: instantOf(storeNow) + 5}, day: bucket{used: 9, ends: instantOf(storeNow) + 7},
		bannedAt: 11, bannedUntil: 13}
	storeMust(t, storeErr(s.write(context.Background(), limitsSave(keyID, &spent))))
	ring := newKeyring(s, false)
	ring.noteDeprecatedUse(&apiKey{ID: keyID}, time.UnixMilli(17))
	storeMust(t, ring.flush(context.Background()))
	first, _ := storeOnce(t, s, keyID, "Rex", storeNow)
	_, before := storeIDs(t, s, "", 20, 0)
	petBefore, err := s.pet(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = storeOpen(t, db)
	_, after := storeIDs(t, s, "", 20, 0)
	if !bytes.Equal(before.body, after.body) || before.etag != after.etag {
		t.Errorf("the page was %s %s and is %s %s", before.body, before.etag, after.body, after.etag)
	}
	if pet, err := s.pet(first); err != nil || pet == nil || !bytes.Equal(pet.body, petBefore.body) ||
		pet.etag != petBefore.etag {
		t.Errorf("pet %d is %v, %v; was %v", first, pet, err, petBefore)
	}
	if id, verdict := storeOnce(t, s, keyID, "Rex", storeNow); id != first || verdict != "replayed" {
		t.Errorf("the repeat is %d %s", id, verdict)
	}
	if u, err := readUsage(context.Background(), s, keyID); err != nil || *u != spent {
		t.Errorf("the usage is %+v, %v; want %+v", u, err, spent)
	}
	key, err := newKeyring(s, false).lookup(token, authUnspent)
	if err != nil || key == nil || key.Name != "shop" || key.Plan != "pro" ||
		key.quota != plans["pro"] || authUsed(t, s, key.ID) != 17 {
		t.Errorf("the key is %+v, %v", key, err)
	}
	if id := storeCreate(t, s, NewPet{"Max", 1, Sold}); id != first+1 {
		t.Errorf("the next id is %d, want %d", id, first+1)
	}
}

func TestIDsStartAtOneAndAreNeverReused(t *testing.T) { engines(t, testIDsStartAtOneAndAreNeverReused) }

func testIDsStartAtOneAndAreNeverReused(t *testing.T, db string) {
	s := storeOpen(t, db)
	for want := range int64(3) {
		if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != want+1 {
			t.Errorf("id %d, want %d", id, want+1)
		}
	}
	storeEdit(t, db, "DELETE FROM pets WHERE id = 3")
	if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != 4 {
		t.Errorf("after the deletion of 3 the next id is %d, want 4", id)
	}
	storeEdit(t, db, "DELETE FROM pets")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if id := storeCreate(t, storeOpen(t, db), NewPet{"Rex", 1, Sold}); id != 5 {
		t.Errorf("after the deletion of all and a restart the next id is %d, want 5", id)
	}
}

// TestPages compares every page of a small list with one made by hand.
func TestPages(t *testing.T) { engines(t, testPages) }

func testPages(t *testing.T, db string) {
	s := storeOpen(t, db)
	all := []PetStatus{Available, Sold, Pending, Available, Available, Sold, Available, Sold}
	for _, status := range all {
		storeCreate(t, s, NewPet{"Rex", 1, status})
	}
	for _, status := range []PetStatus{"", Available, Pending, Sold} {
		for limit := range len(all) + 2 {
			for after := int64(len(all)) + 1; limit > 0 && after >= 0; after-- {
				var want []int64
				more := false
				for i, is := range all {
					if id := int64(i + 1); id > after && (status == "" || is == status) {
						if more = len(want) == limit; more {
							break
						}
						want = append(want, id)
					}
				}
				for _, read := range []string{"first", "second"} {
					got, p := storeIDs(t, s, status, limit, after)
					if !slices.Equal(got, want) || p.more != more || len(want) > 0 && p.last != want[len(want)-1] {
						t.Errorf("the %s %d %s after %d are %v, last %d, more %v; want %v, more %v",
							read, limit, status, after, got, p.last, p.more, want, more)
					}
				}
			}
		}
	}
	if got, p := storeIDs(t, s, "", maxLimit, math.MaxInt64); len(got) != 0 || p.more || string(p.body) != "[]" {
		t.Errorf("after the largest id there is %s", p.body)
	}
}

// TestAFullLastPageHasNoNext: "full" alone must not promise more.
func TestAFullLastPageHasNoNext(t *testing.T) { engines(t, testAFullLastPageHasNoNext) }

func testAFullLastPageHasNoNext(t *testing.T, db string) {
	s := storeOpen(t, db)
	for range maxLimit {
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
	}
	for _, status := range []PetStatus{"", Sold} {
		if ids, p := storeIDs(t, s, status, maxLimit, 0); len(ids) != maxLimit || p.more || p.last != maxLimit {
			t.Errorf("%d pets, last %d, more %v", len(ids), p.last, p.more)
		}
	}
	storeCreate(t, s, NewPet{"Rex", 1, Pending})
	if _, p := storeIDs(t, s, "", maxLimit, 0); !p.more {
		t.Error("the list of all has no next page")
	}
	if _, p := storeIDs(t, s, Sold, maxLimit, 0); p.more {
		t.Error("the list of the sold has a next page, for a pet that is not sold")
	}
}

// TestPagesAreReadByIndex: a page costs the same at any depth.
func TestPagesAreReadByIndex(t *testing.T) {
	s := storeNew(t)
	for filter, want := range map[string]string{
		"":                "INTEGER PRIMARY KEY",
		"status = ?3 AND": "INDEX pets_status (status=? AND rowid>?)",
	} {
		rows, err := sqliteOf(s).reader.Query("EXPLAIN QUERY PLAN "+keysetQuery(filter), 5, 20, 2)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		found, sorts := 0, 0
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			if detail == "USE TEMP B-TREE FOR json_group_array(ORDER BY)" { // of one page: SQL promises no other order
				sorts++
			} else if strings.Contains(detail, "SCAN pets") || strings.Contains(detail, "TEMP B-TREE") {
				t.Errorf("with filter %q: %s", filter, detail)
			}
			if strings.Contains(detail, want) {
				found++
			}
		}
		if found != 2 { // the page, and whether there is more
			t.Errorf("with filter %q %d of 2 lookups use %s", filter, found, want)
		}
		if sorts != 1 {
			t.Errorf("with filter %q the pets of a page are put in order %d times, want once", filter, sorts)
		}
	}
}

func TestAFirstPageIsRememberedUntilACommit(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	for _, status := range []PetStatus{"", Available, Sold} {
		_, first := storeIDs(t, s, status, 20, 0)
		if _, again := storeIDs(t, s, status, 20, 0); again != first {
			t.Errorf("the page of status %q is read again", status)
		}
		storeCreate(t, s, NewPet{"Max", 1, Sold})
		if _, again := storeIDs(t, s, status, 20, 0); again == first {
			t.Errorf("the page of status %q is remembered past a commit", status)
		}
	}
}

// TestAFullPageIsRememberedUntilAnotherProgramWrites: this one only adds ids
// behind it; another might do anything.
func TestAFullPageIsRememberedUntilAnotherProgramWrites(t *testing.T) {
	engines(t, testAFullPageIsRememberedUntilAnotherProgramWrites)
}

func testAFullPageIsRememberedUntilAnotherProgramWrites(t *testing.T, db string) {
	s := storeOpen(t, db)
	for range 3 {
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
	}
	_, first := storeIDs(t, s, "", 2, 0)
	storeCreate(t, s, NewPet{"Max", 1, Sold})
	if _, again := storeIDs(t, s, "", 2, 0); again != first {
		t.Error("it is read again after a commit of this process")
	}
	storeEdit(t, db, "DELETE FROM pets WHERE id = 1")
	if err := s.refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	if ids, _ := storeIDs(t, s, "", 2, 0); !slices.Equal(ids, []int64{2, 3}) {
		t.Errorf("after another program's commit it is %v", ids)
	}
}

// TestEveryPageWithMoreBehindItIsRemembered: from the second pass on, following all pages
// reads only the last one, and that only after a pet was added.
func TestEveryPageWithMoreBehindItIsRemembered(t *testing.T) {
	engines(t, testEveryPageWithMoreBehindItIsRemembered)
}

func testEveryPageWithMoreBehindItIsRemembered(t *testing.T, db string) {
	s := storeOpen(t, db)
	create := func() { storeCreate(t, s, NewPet{"Rex", 1, Sold}) }
	for range 7 {
		create()
	}
	follow := func() (pages, reads uint64) {
		misses := s.pages.misses.Load()
		for _, status := range []PetStatus{"", Sold} {
			for after, more := int64(0), true; more; pages++ {
				_, p := storeIDs(t, s, status, 2, after)
				after, more = p.last, p.more
			}
		}
		return pages, s.pages.misses.Load() - misses
	}
	last := uint64(0) // how often a pass reads the two last pages though nothing was added
	if s.engine.shared() {
		last = 2
	}
	for i, want := range [][2]uint64{{8, 8}, {8, last}, {8, 2}, {8, last}} {
		if i == 2 {
			create() // it makes the last page full, and no other
		}
		if pages, reads := follow(); [2]uint64{pages, reads} != want {
			t.Errorf("pass %d: %d pages, of which %d were read, want %d", i+1, pages, reads, want)
		}
	}
	storeEdit(t, db, "UPDATE pets SET name = 'Tom' WHERE id = 3")
	storeMust(t, s.refresh(t.Context()))
	if _, reads := follow(); reads != 8 {
		t.Errorf("after an edit %d of 8 pages were read", reads)
	}
	if _, p := storeIDs(t, s, Sold, 2, 2); !strings.Contains(string(p.body), "Tom") {
		t.Errorf("after an edit a page is %s", p.body)
	}
}

// TestWhatIsRememberedIsBounded: by what it really takes, also while many read.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	s := storeNew(t)
	storeMust(t, storeErr(s.write(t.Context(), sqlOf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000)
		INSERT INTO pets (category_id, status, name) SELECT i, 2 + i % 3, 'Bella' FROM n`))))
	const most = 1 << 20
	s.remember(most)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := int64(worker); i < 4000; i += 4 {
				if _, err := s.pet(1 + i); err != nil {
					t.Error(err)
				}
				limit := 1 + int(i)%5
				p, err := s.page("", limit, i)
				if err != nil || !bytes.HasPrefix(p.body, fmt.Appendf(nil, `[{"id":%d,`, i+1)) || p.last != i+int64(limit) {
					t.Errorf("the %d pets after %d are %s, %v", limit, i, p.body, err)
				}
				if n := s.pages.size.Load() + s.pets.size.Load(); n > most+4<<13 { // each may be about to make room
					t.Errorf("%d bytes are remembered", n)
				}
			}
		})
	}
	wg.Wait()
	counted, taken := s.pages.size.Load()+s.pets.size.Load(), heap()-before
	if counted < most*3/4 || counted > most || float64(taken) > 1.2*float64(counted) {
		t.Errorf("%d bytes are counted, which take %d, of %d", counted, taken, most)
	}
}

func TestNothingIsRememberedInNoMemory(t *testing.T) {
	s := storeNew(t)
	s.remember(0)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	for range 2 {
		storeIDs(t, s, "", 1, 0)
		if pet, err := s.pet(1); err != nil || pet == nil {
			t.Errorf("the pet is %v, %v", pet, err)
		}
	}
	if n := s.pages.size.Load() + s.pets.size.Load(); n != 0 || s.pages.hits.Load()+s.pets.hits.Load() != 0 {
		t.Errorf("%d bytes are remembered", n)
	}
}

// TestACacheKeepsSomeOfWhatIsReadInTurn, though it is too small for all of that.
func TestACacheKeepsSomeOfWhatIsReadInTurn(t *testing.T) {
	const size, items = 1000, 1500
	c := cache[int, int]{max: size}
	hits := 0
	for pass := range 100 {
		for i := range items {
			if c.get(i) == i+1 && pass >= 50 {
				hits++
			} else if c.get(i) == 0 {
				c.put(i, i+1, 1)
			}
			if n := c.size.Load(); n > size || int(n) != len(c.entries) {
				t.Fatalf("the size is %d, and there are %d entries", n, len(c.entries))
			}
		}
	}
	if hits/50 < items/3 {
		t.Errorf("a pass of %d finds %d", items, hits/50)
	}
	for i := range 100 * size { // others take their place
		c.put(-i-1, i, 1)
	}
	left := 0
	for i := range items {
		if c.get(i) != 0 {
			left++
		}
	}
	if left > size/10 {
		t.Errorf("%d of what nobody reads any more are left", left)
	}
}

func TestACachePutsALargerOneInThePlaceOfOthers(t *testing.T) {
	c := cache[string, string]{max: 10}
	c.put("a", "a1", 5)
	c.put("b", "b1", 5)
	c.put("a", "a2", 6)
	if c.get("a") != "a2" || c.get("b") != "" || c.size.Load() != 6 {
		t.Errorf("there are %v, of size %d", c.entries, c.size.Load())
	}
	c.put("a", "a3", 11)
	if c.get("a") == "a3" || c.size.Load() > 10 {
		t.Errorf("what has no room is kept: %v, of size %d", c.entries, c.size.Load())
	}
}

// TestACreatorSeesItsPet: once createPet has returned, every list has the
// pet, whoever else creates and lists meanwhile.
func TestACreatorSeesItsPet(t *testing.T) { engines(t, testACreatorSeesItsPet) }

func testACreatorSeesItsPet(t *testing.T, db string) {
	s := storeOpen(t, db)
	for range 4 {
		storeMust(t, storeErr(s.edit(t.Context(), sqlOf("DELETE FROM pets"))))
		storeMust(t, s.refresh(t.Context()))
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := range maxLimit / 8 {
					status := []PetStatus{Available, Pending, Sold}[(worker+i)%3]
					id, err := s.createPet(NewPet{"Rex", 1, status})
					if err != nil {
						t.Error(err)
						return
					}
					for _, filter := range []PetStatus{"", status} {
						p, err := s.page(filter, maxLimit, 0)
						if err != nil || !bytes.Contains(p.body, fmt.Appendf(nil, `{"id":%d,`, id)) {
							t.Errorf("pet %d is not in the list of %q: %v", id, filter, err)
						}
					}
				}
			})
		}
		wg.Wait()
	}
}

// storeReadBefore runs read so that it begins before change and sees the
// database as it was then, but ends after it. There is one reading connection,
// in a transaction; read gets it when change is done.
func storeReadBefore(t testing.TB, s *store, read, change func()) {
	t.Helper()
	sqliteOf(s).reader.SetMaxOpenConns(1)
	c, err := sqliteOf(s).reader.Conn(t.Context())
	storeMust(t, err)
	_, err = c.ExecContext(t.Context(), "BEGIN; SELECT count(*) FROM pets")
	storeMust(t, err)
	waits := func() int64 { return sqliteOf(s).reader.Stats().WaitCount }
	before := waits()
	done := make(chan bool)
	go func() { read(); close(done) }()
	for deadline := time.Now().Add(30 * time.Second); waits() == before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the read does not begin")
		}
	}
	change()
	storeMust(t, c.Close())
	<-done
	_, err = sqliteOf(s).reader.Exec("ROLLBACK")
	storeMust(t, err)
}

// TestWhatWasReadBeforeACommitIsNotTakenForNew: it is put away after the commit,
// and yet it is older.
func TestWhatWasReadBeforeACommitIsNotTakenForNew(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	storeReadBefore(t, s, func() {
		if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 1 {
			t.Errorf("the list from before has %d pets", len(ids))
		}
	}, func() { storeCreate(t, s, NewPet{"Max", 1, Sold}) })
	if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 2 {
		t.Errorf("the list has %d pets", len(ids))
	}
	raw := storeRaw(t, sqliteOf(s).path)
	edit := func(name string) func() {
		return func() {
			_, err := raw.Exec("UPDATE pets SET name = ? WHERE id = 1", name)
			storeMust(t, err)
			storeMust(t, s.refresh(t.Context()))
		}
	}
	pet := func() string {
		pet, err := s.pet(1)
		storeMust(t, err)
		return string(pet.body)
	}
	pageWithMore := func() string {
		_, p := storeIDs(t, s, "", 1, 0)
		if !p.more {
			t.Error("the page has no more behind it")
		}
		return string(p.body)
	}
	for _, c := range []struct {
		what string
		read func() string
	}{{"pet 1", pet}, {"the page with more behind it", pageWithMore}} {
		edit("Rex")()
		storeReadBefore(t, s, func() {
			if text := c.read(); !strings.Contains(text, "Rex") {
				t.Errorf("%s from before is %s", c.what, text)
			}
		}, edit("Tom"))
		if text := c.read(); !strings.Contains(text, "Tom") {
			t.Errorf("%s is %s", c.what, text)
		}
	}
}

func TestAnotherProgramsCommitIsSeenAfterARefresh(t *testing.T) {
	s := storeNew(t)
	other := storeOpen(t, sqliteOf(s).path)
	refresh := func() (foreign uint64) {
		if err := s.refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		return s.editsSeen.Load()
	}
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	_, page := storeIDs(t, s, "", 20, 0)
	if pet, err := s.pet(2); pet != nil || err != nil {
		t.Errorf("pet 2, before it is made, is %v, %v", pet, err)
	}
	foreign, writes := refresh(), s.commits.Load()
	if _, again := storeIDs(t, s, "", 20, 0); refresh() != foreign || s.commits.Load() != writes || again != page {
		t.Error("a refresh without a commit of others makes the page doubtful")
	}

	storeCreate(t, other, NewPet{"Max", 1, Sold})
	if pet, err := s.pet(2); pet == nil || err != nil {
		t.Errorf("pet 2, made by another program, is %v, %v", pet, err)
	}
	if refresh() != foreign+1 {
		t.Errorf("a commit of others is counted as %d", s.editsSeen.Load()-foreign)
	}
	if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 2 {
		t.Errorf("after a refresh the list is %v", ids)
	}

	storeCreate(t, other, NewPet{"Tom", 1, Sold})
	storeCreate(t, s, NewPet{"Kim", 1, Sold})
	if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 4 {
		t.Errorf("after a commit of our own the list is %v", ids)
	}
	for range 2 {
		if refresh() != foreign+2 {
			t.Errorf("%d commits count as foreign, want the 2 of others", s.editsSeen.Load()-foreign)
		}
	}
}

// TestWhatIsRememberedFollowsOtherPrograms: on a file, whatever another program writes makes it all read anew. On a
// cluster only what was counted does, since what is added there is never missing.
func TestWhatIsRememberedFollowsOtherPrograms(t *testing.T) {
	engines(t, testWhatIsRememberedFollowsOtherPrograms)
}

func testWhatIsRememberedFollowsOtherPrograms(t *testing.T, db string) {
	s, other := storeOpen(t, db), storeOpen(t, db)
	program := func(text string) { // counts nothing
		t.Helper()
		storeMust(t, storeErr(other.write(t.Context(), sqlOf(text))))
	}
	var stored int64
	imports := func() {
		t.Helper()
		pets := []string{`[1,4,"Rex"]`, `[1,4,"Max"]`}
		storeMust(t, other.importPets(t.Context(), "digest", pets, stored, stored+2))
		stored += 2
	}
	imports()
	imports()
	for _, c := range []struct {
		what               string
		change             func()
		onAFile, onCluster bool // what was remembered is read anew
	}{
		{"an import goes on", imports, true, false},
		{"a key is made", func() { authInsert(t, other, apiKey{}) }, true, false},
		{"another service adds a pet", func() { storeCreate(t, other, NewPet{"Rex", 1, Sold}) }, true, false},
		{"another program writes", func() { program("UPDATE pets SET name = 'Ada' WHERE id = 1") }, true, false},
		{"we write ourselves", func() { storeCreate(t, s, NewPet{"Rex", 1, Sold}) }, false, false},
		{"nothing happens", func() {}, false, false},
		{"a pet is edited", func() { storeMust(t, storeErr(other.edit(t.Context(), storeSetPet("1", "Tom", "", "")))) }, true, true},
		{"a pet is edited during an import", func() {
			imports()
			storeMust(t, storeErr(other.edit(t.Context(), storeSetPet("1", "Kim", "", ""))))
			imports()
		}, true, true},
		{"an older petstore edits", func() { program("UPDATE counters SET value = value + 1 WHERE name = 'edits'") }, true, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			storeMust(t, s.refresh(t.Context()))
			_, full := storeIDs(t, s, "", 2, 0)
			storeIDs(t, s, "", maxLimit, 0)
			pet, err := s.pet(1)
			storeMust(t, err)
			c.change()
			storeMust(t, s.refresh(t.Context()))
			_, fullNow := storeIDs(t, s, "", 2, 0)
			petNow, err := s.pet(1)
			storeMust(t, err)
			want := c.onAFile
			if s.engine.shared() {
				want = c.onCluster
			}
			if forgotten := fullNow != full; forgotten != want || (petNow != pet) != want {
				t.Errorf("the full page is forgotten: %v, the pet: %v, want both %v", forgotten, petNow != pet, want)
			}
			if ids, _ := storeIDs(t, s, "", maxLimit, 0); int64(len(ids)) != storeCount(t, s) {
				t.Errorf("%d pets are listed, and there are %d", len(ids), storeCount(t, s))
			}
		})
	}
}

// TestAnEditThatNobodyCountedIsNoticedBesideAnImport, though the import is killed and never ends.
func TestAnEditThatNobodyCountedIsNoticedBesideAnImport(t *testing.T) {
	path := storePath(t)
	s, killed := storeOpenFor(t, path, forService), storeOpen(t, path)
	imports := func(from int64) {
		t.Helper()
		storeMust(t, killed.importPets(t.Context(), "digest", []string{`[1,4,"Rex"]`, `[1,4,"Max"]`}, from, from+2))
	}
	keys, now := newKeyring(s, false), time.Now()
	token := authInsert(t, s, apiKey{})
	imports(0)
	storeMust(t, s.refresh(t.Context()))
	authAllow(t, keys, token, now)
	storeIDs(t, s, "", 1, 0)
	_, err := s.pet(1)
	storeMust(t, err)

	imports(2)
	storeRaw(t, path, "UPDATE pets SET name = 'Eva' WHERE id = 1", "UPDATE api_keys SET revoked_at = 1")
	imports(4)
	storeMust(t, s.refresh(t.Context()))
	authDeny(t, keys, authHeader(token), now, CodeInvalidKey)
	if pet, err := s.pet(1); err != nil || !strings.Contains(string(pet.body), "Eva") {
		t.Errorf("pet 1 is %s, %v", pet.body, err)
	}
	if _, page := storeIDs(t, s, "", 1, 0); !strings.Contains(string(page.body), "Eva") {
		t.Errorf("the first page is %s", page.body)
	}
}

func TestAPetIsRememberedUntilAnotherProgramWrites(t *testing.T) {
	engines(t, testAPetIsRememberedUntilAnotherProgramWrites)
}

func testAPetIsRememberedUntilAnotherProgramWrites(t *testing.T, db string) {
	s := storeOpen(t, db)
	id := storeCreate(t, s, NewPet{"Rex", 1, Sold})
	read := func(id int64) *cachedPet {
		pet, err := s.pet(id)
		if err != nil {
			t.Fatal(err)
		}
		return pet
	}
	first := read(id)
	storeCreate(t, s, NewPet{"Max", 1, Sold})
	if read(id) != first {
		t.Error("the pet is read again after a commit of our own")
	}
	storeEdit(t, db, "UPDATE pets SET name = 'Tom' WHERE id = 1", "DELETE FROM pets WHERE id = 2")
	if err := s.refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	if pet := read(id); string(pet.body) != `{"id":1,"name":"Tom","categoryId":1,"status":"sold"}` ||
		pet.etag == first.etag {
		t.Errorf("after another program's change it is %s, ETag %s, before %s", pet.body, pet.etag, first.etag)
	}
	if pet := read(2); pet != nil {
		t.Errorf("the deleted pet is %s", pet.body)
	}

	for _, none := range []int64{0, -1, math.MinInt64, math.MaxInt64, id + 2} {
		if pet := read(none); pet != nil {
			t.Errorf("pet %d is %s", none, pet.body)
		}
	}
}

func TestAnETagStandsForTheContentAndTheNextPage(t *testing.T) {
	engines(t, testAnETagStandsForTheContentAndTheNextPage)
}

func testAnETagStandsForTheContentAndTheNextPage(t *testing.T, db string) {
	s := storeOpen(t, db)
	etags := map[string]string{}
	note := func(what string, d document) {
		if !strings.HasPrefix(d.etag, `"`) || !strings.HasSuffix(d.etag, `"`) || len(d.etag) < 10 {
			t.Errorf("the ETag of %s is %s", what, d.etag)
		}
		if other, known := etags[d.etag]; known {
			t.Errorf("%s and %s have one ETag", what, other)
		}
		etags[d.etag] = what
	}
	read := func(limit int) document {
		_, p := storeIDs(t, s, "", limit, 0)
		return p.document
	}
	note("the empty list", read(1))
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	alone := read(1)
	note("one pet", alone)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	note("one pet with more behind it", read(1))
	note("two pets", read(2))
	if again := read(1); !bytes.Equal(again.body, alone.body) {
		t.Errorf("the first page is %s and was %s", again.body, alone.body)
	}
	pet, err := s.pet(1)
	if err != nil {
		t.Fatal(err)
	}
	note("the pet itself", pet.document)
}

// TestConcurrentCommitsShareTransactions: 64 clients pay for two syncs.
func TestConcurrentCommitsShareTransactions(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"warms up", 1, Sold})
	walSize := func() int64 {
		info, err := os.Stat(sqliteOf(s).path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	writes, wal := s.commits.Load(), walSize()
	var commits []func() error
	ids := make([]int64, 64)
	for i := range ids {
		commits = append(commits, func() (err error) {
			ids[i], err = s.createPet(NewPet{fmt.Sprint("pet ", i), 1, Sold})
			return err
		})
	}
	for i, err := range storeBehindLock(t, s, commits...) {
		if err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
	}
	if n := s.commits.Load() - writes; n != 2 {
		t.Errorf("64 commits took %d transactions, want 2", n)
	}
	// A transaction appends every page that it changed: at least the table's.
	if frames := (walSize() - wal) / 4120; frames >= 32 {
		t.Errorf("64 commits wrote %d pages to the log", frames)
	}
	for i, id := range ids {
		pet, err := s.pet(id)
		if err != nil || pet == nil || !strings.Contains(string(pet.body), fmt.Sprintf(`"pet %d"`, i)) {
			t.Errorf("write %d got the id %d, which is %v", i, id, pet)
		}
	}
	if n := storeCount(t, s); n != 65 {
		t.Errorf("there are %d pets, want 65", n)
	}
}

func TestAFailingStatementFailsItsWholeBatchAndNoOther(t *testing.T) {
	engines(t, testAFailingStatementFailsItsWholeBatchAndNoOther)
}

func testAFailingStatementFailsItsWholeBatchAndNoOther(t *testing.T, db string) {
	s := storeOpen(t, db)
	create := func(name string) func() error {
		return func() error {
			_, err := s.createPet(NewPet{name, 1, Sold})
			return err
		}
	}
	broken := func() error {
		results, err := s.write(context.Background(), sqlOf("UPDATE usage SET id = 1"),
			sqlOf("INSERT INTO pets (category_id, status, name) VALUES (1, 9, 'x')"))
		if results != nil {
			t.Error("a failed commit has results")
		}
		return err
	}
	errs := storeBehindLock(t, s, create("alone before"), create("in the batch"), broken, create("in the batch too"))
	if errs[0] != nil {
		t.Errorf("the commit before the batch: %v", errs[0])
	}
	for _, err := range errs[1:] {
		if !errors.Is(err, errUnavailable) || !strings.Contains(err.Error(), "CHECK") {
			t.Errorf("a commit of the failed batch says %v", err)
		}
	}
	if err := create("after")(); err != nil {
		t.Errorf("the commit after the batch: %v", err)
	}
	_, p := storeIDs(t, s, "", 20, 0)
	has := func(name string) bool { return strings.Contains(string(p.body), name) }
	if has("in the batch") || !has("before") || !has("after") {
		t.Errorf("stored are %s", p.body)
	}
	for _, query := range []string{"no SQL", "INSERT INTO nowhere VALUES (1)", "INSERT INTO usage VALUES (?)"} {
		if _, err := s.write(context.Background(), sqlOf(query)); !errors.Is(err, errUnavailable) {
			t.Errorf("%s: %v", query, err)
		}
	}
	if err := create("in the end")(); err != nil {
		t.Error(err)
	}
}

// TestPetsOfOneBatchGetTheirOwnIDs, whatever else is in it.
func TestPetsOfOneBatchGetTheirOwnIDs(t *testing.T) { engines(t, testPetsOfOneBatchGetTheirOwnIDs) }

func testPetsOfOneBatchGetTheirOwnIDs(t *testing.T, db string) {
	s := storeOpen(t, db)
	names := make([]string, 40)
	ids := make([]int64, len(names))
	writes := []func() error{func() error { return storeErr(s.write(context.Background(), sqlOf("DELETE FROM usage"))) }}
	for i := range names {
		names[i] = fmt.Sprintf(`%d "[\`+" ؂🐈"+`,null]`, i)
		p := NewPet{names[i], []int64{math.MinInt64, int64(i), math.MaxInt64}[i%3], []PetStatus{Available, Pending, Sold}[i%3]}
		writes = append(writes, func() (err error) {
			if i%5 == 4 {
				ids[i], _, _, err = s.createPetOnce(p, 1, fmt.Sprint(i), nil, storeNow)
			} else {
				ids[i], err = s.createPet(p)
			}
			return err
		}, func() error { return storeErr(s.write(context.Background(), limitsSave(int64(i), &usage{}))) })
	}
	transactions := s.commits.Load()
	for i, err := range storeBehindLock(t, s, writes...) {
		if err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if n := s.commits.Load() - transactions; n != 2 {
		t.Errorf("they took %d transactions, want 2", n)
	}
	for i, id := range ids {
		pet, err := s.pet(id)
		var got struct {
			Name       string
			CategoryID int64
			Status     PetStatus
		}
		if err == nil && pet != nil {
			err = json.Unmarshal(pet.body, &got)
		}
		if err != nil || got.Name != names[i] || got.CategoryID != []int64{math.MinInt64, int64(i), math.MaxInt64}[i%3] ||
			got.Status != []PetStatus{Available, Pending, Sold}[i%3] {
			t.Errorf("pet %d has the id %d, which is %+v, %v", i, id, got, err)
		}
	}
	slices.Sort(ids)
	if n := storeCount(t, s); n != int64(len(ids)) || len(slices.Compact(ids)) != len(names) || ids[len(ids)-1] != n {
		t.Errorf("there are %d pets with the ids %v", n, ids)
	}
	if n := storeRead(t, s, "SELECT count(*) FROM usage"); n != int64(len(names)) {
		t.Errorf("there are %d usages, want %d", n, len(names))
	}
}

// storeLiar is an engine that says something else of what it has written.
type storeLiar struct {
	engine
	lie func(results []result)
}

func (l *storeLiar) write(ctx context.Context, statements []statement) ([]result, error) {
	results, err := l.engine.write(ctx, statements)
	l.lie(results)
	return results, err
}

// TestNoIDIsGuessed: pets that may be stored under unknown ids are confirmed to nobody, and yet listed.
func TestNoIDIsGuessed(t *testing.T) {
	s := storeNew(t)
	create := func() error {
		_, err := s.createPet(NewPet{"Rex", 1, Sold})
		return err
	}
	for what, lie := range map[string]func(inserted *result){
		"too few rows": func(r *result) { r.affected = 1 },
		"no id":        func(r *result) { r.lastID = 1 },
	} {
		storeIDs(t, s, "", maxLimit, 0)
		honest, batches, before := s.engine, 0, storeCount(t, s)
		s.engine = &storeLiar{honest, func(results []result) {
			if batches++; batches == 2 { // the first has only one pet
				lie(&results[len(results)-1])
			}
		}}
		for i, err := range storeBehindLock(t, s, create, create, create) {
			if (i > 0) != errors.Is(err, errOutcome) {
				t.Errorf("%s: create %d says %v", what, i, err)
			}
		}
		s.engine = honest
		if ids, _ := storeIDs(t, s, "", maxLimit, 0); int64(len(ids)) != before+3 {
			t.Errorf("%s: %d pets are listed, want %d", what, len(ids), before+3)
		}
	}
}

// TestAFullQueueRefusesRequestsAtOnce: what is written beside the requests waits all the same.
func TestAFullQueueRefusesRequestsAtOnce(t *testing.T) {
	s := storeNew(t)
	storeWait(s, time.Minute)
	release := sync.OnceFunc(storeLock(t, s))
	defer release() // or a store that waits for the lock could not be closed
	errs := make(chan error, maxQueue+2)
	create := func() error {
		_, err := s.createPet(NewPet{"Rex", 1, Sold})
		return err
	}
	go func() { errs <- create() }()
	storeAwait(t, s, 0)
	for range maxQueue {
		go func() { errs <- create() }()
	}
	storeAwait(t, s, maxQueue)
	for what, request := range map[string]func() error{
		"createPet": create,
		"createPetOnce": func() error {
			_, _, _, err := s.createPetOnce(NewPet{"Rex", 1, Sold}, 1, "k", nil, storeNow)
			return err
		},
	} {
		refused := make(chan error, 1)
		go func() { refused <- request() }()
		select {
		case err := <-refused:
			if !errors.Is(err, errUnavailable) || !strings.Contains(err.Error(), fmt.Sprint(maxQueue)) {
				t.Errorf("%s after %d others says %v", what, maxQueue, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s after %d others waits", what, maxQueue)
		}
	}
	go func() { errs <- storeErr(s.write(context.Background(), limitsSave(1, &usage{}))) }()
	storeAwait(t, s, maxQueue+1)
	metrics := newExposition()
	s.measure(metrics)
	if n := metrics.numbers["petstore_commit_queue_length"]; n != maxQueue+1 {
		t.Errorf("the length of the queue is %v, want %d", n, maxQueue+1)
	}
	release()
	for range maxQueue + 2 {
		if err := <-errs; err != nil {
			t.Fatalf("a write that was queued: %v", err)
		}
	}
	if n := storeCount(t, s); n != maxQueue+1 {
		t.Errorf("there are %d pets, want %d", n, maxQueue+1)
	}
	if n := storeNumber(t, sqliteOf(s).reader, "SELECT count(*) FROM usage"); n != 1 {
		t.Errorf("there are %d usages, want 1", n)
	}
}

// TestNobodyWaitsForMoreThanTwoTransactions: without a leader, the one under way and one for all who came meanwhile.
func TestNobodyWaitsForMoreThanTwoTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rqliteWithoutNetwork(t, 3)
		s, _ := rqliteStore(t, c)
		c.lead(-1)
		start, longest := time.Now(), time.Duration(0)
		var wg sync.WaitGroup
		var mu sync.Mutex
		for range 4000 {
			wg.Go(func() {
				_, err := s.createPet(NewPet{"Rex", 1, Sold})
				mu.Lock()
				defer mu.Unlock()
				if longest = time.Since(start); !errors.Is(err, errUnavailable) {
					t.Errorf("a create says %v", err)
				}
			})
		}
		wg.Wait()
		if longest > 2*leaderWait {
			t.Errorf("the last to be told waits %v", longest)
		}
	})
}

// storePanic is an argument that panics when the driver asks for its value.
type storePanic struct{}

func (storePanic) Value() (driver.Value, error) { panic("in the driver") }

func TestAPanicDoesNotBlockLaterCommits(t *testing.T) {
	s, err := openStore(context.Background(), storePath(t), forNewKey, testLog)
	if err != nil {
		t.Fatal(err)
	}
	var panicked any
	follower := make(chan error, 1)
	storeBehindLock(t, s, func() error { return storeErr(s.write(context.Background(), sqlOf("DELETE FROM usage"))) },
		func() error {
			defer func() { panicked = recover() }()
			return storeErr(s.write(context.Background(), sqlOf("DELETE FROM usage WHERE id = ?", storePanic{})))
		},
		func() error {
			follower <- storeErr(s.write(context.Background(), sqlOf("INSERT INTO usage VALUES (1, 0, 0, 0, 0, 0, 0)")))
			return nil
		})
	if panicked != "in the driver" {
		t.Errorf("the leader's caller sees the panic %v", panicked)
	}
	if err := <-follower; !errors.Is(err, errUnavailable) {
		t.Errorf("a commit of the same batch says %v", err)
	}
	for _, name := range []string{"Rex", "Max"} { // the transaction that the panic left open is rolled back
		if _, err := s.createPet(NewPet{name, 1, Sold}); err != nil {
			t.Errorf("%s, created after a panic: %v", name, err)
		}
	}
	if n := storeNumber(t, sqliteOf(s).reader, "SELECT count(*) FROM usage"); n != 0 {
		t.Error("the batch that panicked is stored")
	}
	// The connection in which the driver panicked cannot be closed; nobody waits for it.
	storeCloseAfterPanic(t, s)
	if _, err := s.createPet(NewPet{"Tom", 1, Sold}); !errors.Is(err, errUnavailable) {
		t.Errorf("closed, createPet says %v", err)
	}
	again := storeOpen(t, sqliteOf(s).path)
	if n := storeCount(t, again); n != 2 {
		t.Errorf("opened again, there are %d pets", n)
	}
	storeCreate(t, again, NewPet{"Tom", 1, Sold})
}

// storeCloseAfterPanic closes a store in whose driver was a panic. That may take no time.
func storeCloseAfterPanic(t testing.TB, s *store) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("closing says %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("closing does not end")
	}
}

// TestAServiceThatPanickedCanBeFollowedByAnother: its lock is given back.
func TestAServiceThatPanickedCanBeFollowedByAnother(t *testing.T) {
	s, err := openStore(context.Background(), storePath(t), forService, testLog)
	storeMust(t, err)
	func() {
		defer func() { _ = recover() }()
		_, _ = s.write(context.Background(), sqlOf("DELETE FROM usage WHERE id = ?", storePanic{}))
	}()
	storeCloseAfterPanic(t, s)
	storeCreate(t, storeOpenFor(t, sqliteOf(s).path, forService), NewPet{"Rex", 1, Sold})
}

// storeErr drops the results of a write.
func storeErr(_ []result, err error) error { return err }

func TestAClosedStoreIsUnavailable(t *testing.T) {
	s := storeNew(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.createPet(NewPet{"Rex", 1, Sold}); !errors.Is(err, errUnavailable) {
		t.Errorf("createPet says %v", err)
	}
	if err := s.purge(context.Background(), storeNow); !errors.Is(err, errUnavailable) {
		t.Errorf("purge says %v", err)
	}
	_, pageErr := s.page("", 20, 0)
	_, petErr := s.pet(1)
	usageErr := newLimiter(s, 0, testLog).load(1)
	_, keyErr := newKeyring(s, false).lookup(newSecret(false), authUnspent)
	_, keysErr := readKeys(context.Background(), s, 0, "")
	_, _, hasErr := hasKeys(context.Background(), s, false)
	for what, err := range map[string]error{"page": pageErr, "pet": petErr, "load": usageErr, "lookup": keyErr,
		"readKeys": keysErr, "hasKeys": hasErr, "probe": s.probe(context.Background()),
		"refresh": s.refresh(context.Background())} {
		if err == nil {
			t.Errorf("%s says nothing", what)
		}
	}
}

func TestAnIdempotencyKeyMakesOnePet(t *testing.T) { engines(t, testAnIdempotencyKeyMakesOnePet) }

func testAnIdempotencyKeyMakesOnePet(t *testing.T, db string) {
	const day = 24 * time.Hour
	type step struct {
		keyID   int64
		body    string
		after   time.Duration
		verdict string
		id      int64
	}
	for what, steps := range map[string][]step{
		"a repeat gets the first pet": {
			{1, "Rex", 0, "created", 1}, {1, "Rex", 0, "replayed", 1}, {1, "Rex", time.Hour, "replayed", 1},
		},
		"another body is refused": {
			{1, "Rex", 0, "created", 1}, {1, "Max", 0, "reused", 1}, {1, "Rex", 0, "replayed", 1},
		},
		"another API key is independent": {
			{1, "Rex", 0, "created", 1}, {2, "Rex", 0, "created", 2}, {2, "Max", 0, "reused", 2}, {1, "Rex", 0, "replayed", 1},
		},
		"it is remembered up to 24 hours": {
			{1, "Rex", 0, "created", 1}, {1, "Rex", day - time.Millisecond, "replayed", 1},
		},
		"it is forgotten after 24 hours": {
			{1, "Rex", 0, "created", 1}, {1, "Rex", day, "created", 2}, {1, "Rex", day, "replayed", 2},
		},
		"after 24 hours another body may use it": {
			{1, "Rex", 0, "created", 1}, {1, "Max", day, "created", 2}, {1, "Rex", day, "reused", 2},
		},
		"a repeat does not lengthen the 24 hours": {
			{1, "Rex", 0, "created", 1}, {1, "Rex", day - 1, "replayed", 1}, {1, "Rex", day, "created", 2},
		},
		"the 24 hours are counted anew from the second": {
			{1, "Rex", 0, "created", 1}, {1, "Rex", day, "created", 2}, {1, "Rex", 2*day - time.Millisecond, "replayed", 2},
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := storeOpen(t, db)
			storeEdit(t, db, "DELETE FROM pets", "DELETE FROM idempotency", "DELETE FROM sqlite_sequence")
			made := int64(0)
			for i, step := range steps {
				id, verdict := storeOnce(t, s, step.keyID, step.body, storeNow.Add(step.after))
				if verdict != step.verdict || verdict != "reused" && id != step.id {
					t.Errorf("step %d: %s %d, want %s %d", i+1, verdict, id, step.verdict, step.id)
				}
				if verdict == "created" {
					made++
				}
			}
			if n := storeCount(t, s); n != made {
				t.Errorf("there are %d pets, want %d", n, made)
			}
		})
	}
}

func TestIdempotencyKeysAreComparedByteForByte(t *testing.T) {
	engines(t, testIdempotencyKeysAreComparedByteForByte)
}

func testIdempotencyKeysAreComparedByteForByte(t *testing.T, db string) {
	s := storeOpen(t, db)
	for i, key := range []string{"k", "K", "k ", "k%", "_", strings.Repeat("k", 255)} {
		id, replayed, reused, err := s.createPetOnce(NewPet{"Rex", 1, Sold}, 1, key, nil, storeNow)
		if id != int64(i+1) || replayed || reused || err != nil {
			t.Errorf("%q: id %d, replayed %v, reused %v, %v", key, id, replayed, reused, err)
		}
	}
}

func TestParallelRepeatsMakeOnePet(t *testing.T) { engines(t, testParallelRepeatsMakeOnePet) }

func testParallelRepeatsMakeOnePet(t *testing.T, db string) {
	s := storeOpen(t, db)
	other := storeOpen(t, db) // repeats may reach another program, too
	for round := range 10 {
		key := fmt.Sprint("round ", round)
		ids := make([]int64, 32)
		var created atomic.Int64
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				id, replayed, reused, err := []*store{s, other}[i%2].createPetOnce(NewPet{"Rex", 1, Sold},
					1, key, []byte("Rex"), storeNow)
				if ids[i] = id; err != nil || reused {
					t.Errorf("%s: reused %v, %v", key, reused, err)
				}
				if !replayed {
					created.Add(1)
				}
			})
		}
		wg.Wait()
		slices.Sort(ids)
		if created.Load() != 1 || len(slices.Compact(ids)) != 1 {
			t.Errorf("%s: %d pets were made, the ids are %v", key, created.Load(), ids)
		}
	}
	if n := storeCount(t, s); n != 10 {
		t.Errorf("there are %d pets, want 10", n)
	}
}

// TestRepeatsInOneBatchMakeOnePet: who is first is decided by SQL, also
// between the statements of one transaction.
func TestRepeatsInOneBatchMakeOnePet(t *testing.T) { engines(t, testRepeatsInOneBatchMakeOnePet) }

func testRepeatsInOneBatchMakeOnePet(t *testing.T, db string) {
	s := storeOpen(t, db)
	var ids [5]int64
	var replays, reuses atomic.Int64
	once := func(i int, body string) func() error {
		return func() error {
			id, replayed, reused, err := s.createPetOnce(NewPet{body, 1, Sold}, 1, "k", []byte(body), storeNow)
			ids[i] = id
			if reused {
				reuses.Add(1)
			} else if replayed {
				replays.Add(1)
			}
			return err
		}
	}
	create := func() (err error) { ids[0], err = s.createPet(NewPet{"Kim", 1, Sold}); return err }
	for i, err := range storeBehindLock(t, s, create, once(1, "Rex"), once(2, "Rex"), once(3, "Max"), once(4, "Rex")) {
		if err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if ids[0] != 1 || ids[1] != 2 || ids[2] != 2 || ids[4] != 2 ||
		replays.Load() != 2 || reuses.Load() != 1 || storeCount(t, s) != 2 {
		t.Errorf("the ids are %v, %d are replays, %d reuses, %d pets", ids, replays.Load(), reuses.Load(), storeCount(t, s))
	}
}

func TestPurgeRemovesWhatHasServedItsTimeOnly(t *testing.T) {
	engines(t, testPurgeRemovesWhatHasServedItsTimeOnly)
}

func testPurgeRemovesWhatHasServedItsTimeOnly(t *testing.T, db string) {
	s := storeOpen(t, db)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	age := func(key int, d time.Duration) statement {
		return sqlOf("INSERT INTO idempotency VALUES (1, ?, x'00', 1, ?)",
			fmt.Sprint(key), int64(instantOf(storeNow.Add(-d))))
	}
	var records []statement
	for i := range 1200 { // more than one chunk
		records = append(records, age(i, 25*time.Hour+time.Duration(i)*time.Second))
	}
	today := int64(instantOf(storeNow) / dayMillis)
	for i := range int64(1200) {
		records = append(records, sqlOf("INSERT INTO usage_days VALUES (?, ?, 1, 0, 0)", i, today-400-i%3))
	}
	for i := range int64(400) {
		records = append(records, sqlOf("INSERT INTO usage_days VALUES (7, ?, 1, 0, 0)", today-i))
	}
	records = append(records, age(-1, 24*time.Hour-time.Millisecond),
		age(-2, time.Hour), age(-3, 0), age(-4, -time.Hour))
	if _, err := s.write(context.Background(), records...); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.purge(context.Background(), storeNow); err != nil {
			t.Fatal(err)
		}
		if n := storeRead(t, s, "SELECT count(*) FROM idempotency"); n != 4 {
			t.Errorf("%d records are left, want the 4 young ones", n)
		}
		if n := storeRead(t, s, "SELECT count(*) FROM usage_days"); n != 400 {
			t.Errorf("%d days of usage are left, want 400", n)
		}
	}
	if n := storeCount(t, s); n != 1 {
		t.Errorf("%d pets are left", n)
	}
}

// TestARecordIsRemovedOnceItsDayHasPassed: it serves until then, and no longer,
// since a repeat reads it in its own transaction.
func TestARecordIsRemovedOnceItsDayHasPassed(t *testing.T) {
	engines(t, testARecordIsRemovedOnceItsDayHasPassed)
}

func testARecordIsRemovedOnceItsDayHasPassed(t *testing.T, db string) {
	s := storeOpen(t, db)
	storeOnce(t, s, 1, "Rex", storeNow)
	for _, c := range []struct {
		after time.Duration
		left  int64
	}{{0, 1}, {24*time.Hour - time.Millisecond, 1}, {24 * time.Hour, 0}} {
		storeMust(t, s.purge(context.Background(), storeNow.Add(c.after)))
		if n := storeRead(t, s, "SELECT count(*) FROM idempotency"); n != c.left {
			t.Errorf("after %v there are %d records, want %d", c.after, n, c.left)
		}
	}
}

// TestAPurgeDisturbsNoRepeat: a request may have read the clock before the
// record's day had passed, and be written in one transaction with the purge.
func TestAPurgeDisturbsNoRepeat(t *testing.T) { engines(t, testAPurgeDisturbsNoRepeat) }

func testAPurgeDisturbsNoRepeat(t *testing.T, db string) {
	s := storeOpen(t, db)
	late := storeNow.Add(24 * time.Hour)
	healthy, purge := s.engine, statement{}
	s.engine = &storeEngine{engine: healthy, check: func(st statement, _ []any) {
		if strings.Contains(st.query, "idempotency") {
			purge = st
		}
	}}
	storeMust(t, s.purge(context.Background(), late)) // which shows its statement, and has nothing to do
	s.engine = healthy
	storeOnce(t, s, 1, "Rex", storeNow)
	type outcome struct {
		id               int64
		replayed, reused bool
	}
	var before, after outcome
	repeat := func(o *outcome) func() error {
		return func() (err error) {
			o.id, o.replayed, o.reused, err = s.createPetOnce(NewPet{"Rex", 1, Available}, 1, "k", []byte("Rex"),
				late.Add(-time.Millisecond))
			return err
		}
	}
	for i, err := range storeBehindLock(t, s,
		func() error { return storeErr(s.write(context.Background(), sqlOf("DELETE FROM usage"))) },
		repeat(&before), func() error { return storeErr(s.write(context.Background(), purge)) }, repeat(&after)) {
		if err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if want := (outcome{1, true, false}); before != want {
		t.Errorf("the repeat before the purge is %+v, want %+v", before, want)
	}
	if want := (outcome{2, false, false}); after != want {
		t.Errorf("the repeat after the purge is %+v, want %+v", after, want)
	}
}

// TestAPurgeEndsWithItsContext: one chunk at the most is written after that.
func TestAPurgeEndsWithItsContext(t *testing.T) {
	s := storeNew(t)
	var records []statement
	for i := range 1200 {
		records = append(records, sqlOf("INSERT INTO idempotency VALUES (1, ?, x'00', 1, 0)", fmt.Sprint(i)))
	}
	storeMust(t, storeErr(s.write(context.Background(), records...)))
	reader := sqliteOf(s).reader
	ctx, cancel := context.WithCancel(t.Context())
	s.engine = &storeEngine{engine: s.engine, check: func(st statement, _ []any) {
		if strings.HasPrefix(st.query, "DELETE FROM idempotency") {
			cancel()
		}
	}}
	storeMust(t, s.purge(ctx, storeNow))
	if n := storeNumber(t, reader, "SELECT count(*) FROM idempotency"); n != 200 {
		t.Errorf("%d records are left, want 200", n)
	}
}

func TestUsageIsReadAsItWasWritten(t *testing.T) { engines(t, testUsageIsReadAsItWasWritten) }

func testUsageIsReadAsItWasWritten(t *testing.T, db string) {
	s := storeOpen(t, db)
	if u, err := readUsage(context.Background(), s, 7); err != nil || *u != (usage{}) {
		t.Errorf("a usage that was never written is %+v, %v", u, err)
	}
	for _, want := range []usage{
		{minute: bucket{used: 1, ends: 2}, day: bucket{used: 3, ends: 4}, bannedAt: 5, bannedUntil: 6},
		{minute: bucket{used: 60, ends: instantOf(storeNow)}, day: bucket{used: math.MaxInt64, ends: math.MaxInt64}},
	} {
		stored := want
		stored.strikes, stored.retryAt = bucket{used: 9, ends: 9}, 9 // these are not stored
		if _, err := s.write(context.Background(), limitsSave(7, &stored), limitsSave(8, &usage{})); err != nil {
			t.Fatal(err)
		}
		if got, err := readUsage(context.Background(), s, 7); err != nil || *got != want {
			t.Errorf("the usage is %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestOnlyTheFirstKeyIsMadeUnasked(t *testing.T) { engines(t, testOnlyTheFirstKeyIsMadeUnasked) }

func testOnlyTheFirstKeyIsMadeUnasked(t *testing.T, db string) {
	s := storeOpen(t, db)
	key := &apiKey{Name: "first key", Plan: "free", CreatedAt: instantOf(storeNow)}
	for i, want := range []bool{true, false, false} {
		if id, err := insertKey(context.Background(), s, key, newSecret(false), true); (id != 0) != want || err != nil {
			t.Errorf("time %d: made the key %d, %v", i+1, id, err)
		}
	}
	if err := authRevoke(context.Background(), s, 1, instantOf(storeNow)); err != nil {
		t.Fatal(err)
	}
	if id, err := insertKey(context.Background(), s, key, newSecret(false), true); id != 0 || err != nil {
		t.Errorf("when the only key is revoked: made the key %d, %v", id, err)
	}
}

// TestClosingWaitsForTheLeader: a request that the drain has cut off may still commit.
func TestClosingWaitsForTheLeader(t *testing.T) {
	for range 20 {
		s, err := openStore(context.Background(), storePath(t), forNewKey, testLog)
		storeMust(t, err)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					if _, err := s.createPet(NewPet{"Rex", 1, Sold}); err != nil && !errors.Is(err, errUnavailable) {
						t.Error(err)
					}
				}
			})
		}
		runtime.Gosched()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

func storeMust(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAProbeLeavesNothing: it writes, and what it has written is gone.
func TestAProbeLeavesNothing(t *testing.T) { engines(t, testAProbeLeavesNothing) }

func testAProbeLeavesNothing(t *testing.T, db string) {
	s := storeOpen(t, db)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	writes := s.commits.Load()
	for range 2 {
		storeMust(t, s.probe(context.Background()))
	}
	if n := s.commits.Load() - writes; n != 2 {
		t.Errorf("two probes are %d transactions", n)
	}
	if n := storeRead(t, s, "SELECT count(*) FROM usage"); n != 0 {
		t.Errorf("%d usages are left", n)
	}
}

// storeEngine shows a test what the store asks its engine for.
type storeEngine struct {
	engine
	check func(st statement, columns []any) // columns: where a row was read to, of queries that found one
}

func (e *storeEngine) write(ctx context.Context, statements []statement) ([]result, error) {
	for _, st := range statements {
		e.check(st, st.into)
	}
	return e.engine.write(ctx, statements)
}

func (e *storeEngine) read(ctx context.Context, query statement, row func(scan scanner) error) error {
	e.check(query, nil)
	return e.engine.read(ctx, query, func(scan scanner) error {
		return row(func(columns ...any) error {
			e.check(query, columns)
			return scan(columns...)
		})
	})
}

// storeLiterals are the beginnings of SQL statements in the source.
func storeLiterals(t testing.TB, files ...string) (literals []string) {
	t.Helper()
	begins := regexp.MustCompile(`^\s*(SELECT|INSERT|UPDATE|DELETE) `)
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		storeMust(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, err := strconv.Unquote(l.Value)
				storeMust(t, err)
				if begins.MatchString(text) {
					literals = append(literals, text)
				}
			}
			return true
		})
	}
	return literals
}

// TestStatementsBindWhatEveryEngineCarries: numbers, strings and NULL in, and
// numbers, booleans and strings out. Every statement of the source is sent.
func TestStatementsBindWhatEveryEngineCarries(t *testing.T) {
	engines(t, testStatementsBindWhatEveryEngineCarries)
}

func testStatementsBindWhatEveryEngineCarries(t *testing.T, db string) {
	s := storeOpen(t, db)
	var sent strings.Builder
	scanned := 0
	s.engine = &storeEngine{engine: s.engine, check: func(st statement, columns []any) {
		sent.WriteString(st.query + "\n")
		for i, arg := range st.args {
			switch arg.(type) {
			case int64, string, nil:
			default:
				t.Errorf("argument %d is a %T: %s", i+1, arg, st.query)
			}
		}
		for i, column := range columns {
			scanned++
			to := reflect.TypeOf(column)
			if to.Kind() != reflect.Pointer ||
				!slices.Contains([]reflect.Kind{reflect.Int64, reflect.Bool, reflect.String}, to.Elem().Kind()) {
				t.Errorf("column %d is read to a %v: %s", i+1, to, st.query)
			}
		}
	}}
	ctx, now := context.Background(), instantOf(storeNow)
	must := func(err error) { t.Helper(); storeMust(t, err) }

	for _, status := range []PetStatus{Available, Pending, Sold} {
		storeCreate(t, s, NewPet{"Rex", 1, status})
		storeIDs(t, s, status, 20, 0)
	}
	storeIDs(t, s, "", 20, 1)
	pet, err := s.pet(1)
	if must(err); pet == nil {
		t.Error("pet 1 is not there")
	}
	for _, body := range []string{"Rex", "Rex", "Max"} {
		storeOnce(t, s, 1, body, storeNow)
	}
	must(s.purge(ctx, storeNow))
	must(s.probe(ctx))
	must(s.refresh(ctx))

	first := &apiKey{Name: "first", Plan: "free", CreatedAt: now}
	_, err = insertKey(ctx, s, first, newSecret(false), true)
	must(err)
	token := newSecret(true)
	id, err := insertKey(ctx, s, &apiKey{Name: "second", Plan: "enterprise", Test: true, lifetime: dayMillis,
		account: account{quota: quota{5, 7}}, CreatedAt: now}, token, false)
	must(err)
	for _, test := range []bool{false, true} {
		if own, other, err := hasKeys(ctx, s, test); err != nil || !own || !other {
			t.Errorf("keys with test %v: %v, others: %v, %v", test, own, other, err)
		}
	}
	keys, err := readKeys(ctx, s, now, "WHERE k.id = ?", id)
	if must(err); len(keys) != 1 {
		t.Fatalf("key %d is %v", id, keys)
	}
	_, err = rotateKey(ctx, s, keys[0], newSecret(true), now+1000)
	must(err)
	_, err = s.write(ctx, setPlan(id, "enterprise", quota{6, 8}), setName(id, "third"), setLifetime(id, now, dayMillis))
	must(err)
	must(unbanKey(ctx, s, id, now))
	ring := newKeyring(s, true)
	key, err := ring.authenticate([]string{"Bearer " + string(token)}, storeNow, authUnspent)
	must(err)
	ring.noteDeprecatedUse(key, storeNow)
	must(ring.flush(ctx))
	limits := newLimiter(s, time.Minute, testLog)
	for range 2 {
		_, err = limits.admit(&key.account, storeNow)
		must(err)
		must(limits.flush(ctx, storeNow))
	}
	ban := decision{now: now}
	limits.ban(&key.account, &ban)
	must(ban.banErr)
	u, err := readUsage(ctx, s, key.usageID)
	if must(err); u.day.used != 2 {
		t.Errorf("the usage is %+v", u)
	}
	must(authRevoke(ctx, s, id, now))
	must(eachUse(ctx, s, 0, key.usageID, -1, func(*keyUse) error { return nil }))
	_, err = readReport(ctx, s, now)
	must(err)

	must(s.importPets(ctx, "digest", []string{`[1,4,"Rex"]`, `[2,4,"Max"]`}, 0, 2))
	if n, err := s.imported(ctx, "digest"); n != 2 || err != nil {
		t.Errorf("%d pets of 2 are imported, %v", n, err)
	}
	_, err = s.write(ctx, storeSetPet("1", "Tom", "2", Sold), sqlOf("DELETE FROM pets WHERE id = ?", "2"))
	must(err)
	must(s.eachPetJSON(ctx, Sold, func(string) error { return nil }))

	var marks [3]int64 // the engines read these two themselves
	_, err = s.readInto(ctx, sqlOf(ownerQuery), &marks[0], &marks[1], &marks[2])
	must(err)
	_, err = s.readInto(ctx, sqlOf(editsQuery), &marks[0])
	must(err)

	literals := storeLiterals(t, "store.go", "auth.go", "limits.go")
	if len(literals) < 15 || scanned == 0 {
		t.Errorf("the source has %d statements, and %d columns were read", len(literals), scanned)
	}
	for _, literal := range literals {
		if !strings.Contains(sent.String(), literal) {
			t.Errorf("this statement of the source was not sent:\n%s", literal)
		}
	}
}

// TestACancelledLeaderCancelsNoFollower: behind a lock it waits for them, and not for itself.
func TestACancelledLeaderCancelsNoFollower(t *testing.T) {
	s := storeNew(t)
	storeWait(s, 20*time.Millisecond)
	defer storeLock(t, s)()
	queued := make(chan bool)
	s.engine = &storeEngine{engine: s.engine, check: func(statement, []any) { <-queued }}
	write := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() { done <- storeErr(s.write(ctx, sqlOf("DELETE FROM usage"))) }()
		return done
	}
	write(t.Context())
	storeAwait(t, s, 0)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	leader := write(cancelled)
	storeAwait(t, s, 1)
	follower := write(t.Context())
	storeAwait(t, s, 2)
	close(queued)
	for what, done := range map[string]chan error{"the leader": leader, "its follower": follower} {
		if err := <-done; !errors.Is(err, errUnavailable) || errors.Is(err, context.Canceled) {
			t.Errorf("%s says %v, want only that the lock was held too long", what, err)
		}
	}
}

// storeFull is a store of n pets, one in three of each status.
func storeFull(b *testing.B, n int) *store {
	b.Helper()
	s := storeNew(b)
	var statements []statement
	for i := range n {
		statements = append(statements, sqlOf("INSERT INTO pets (category_id, status, name) VALUES (?, ?, ?)",
			int64(i), int64(2+i%3), fmt.Sprint("pet ", i)))
	}
	if _, err := s.write(context.Background(), statements...); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	return s
}

func BenchmarkPageHit(b *testing.B) {
	s := storeFull(b, 1000)
	for b.Loop() {
		if _, err := s.page("", 20, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPageMiss(b *testing.B) {
	s := storeFull(b, 10000)
	for _, status := range []PetStatus{"", Sold} {
		b.Run("status="+string(status), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.page(status, 20, 1+rand.Int64N(9000)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCommit(b *testing.B) {
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			s := storeNew(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range clients {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := s.createPet(NewPet{"Rex", 7, Available}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/float64(max(1, s.commits.Load())), "creates/commit")
		})
	}
}

// storeSetPet is the statement of petstore pet set.
func storeSetPet(id, name, category string, status PetStatus) statement {
	return setPet(id, name, category, status)
}
