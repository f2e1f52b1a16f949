package main

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math/bits"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestFollowingAllPagesAgainReadsTheLastOneOnly, and that only after a pet was added. On a cluster
// the last page is always read, since another service may have added pets.
func TestFollowingAllPagesAgainReadsTheLastOneOnly(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		for range 7 {
			mustCreate(t, s, rex)
		}
		reads := int64(0)
		s.engine = &watchedEngine{engine: s.engine, check: func(st statement, columns []any) {
			if columns == nil && (st.query == listQuery || st.query == statusListQuery) {
				reads++
			}
		}}
		// The 7 pets are 4 pages of the list of all, and 4 of the list of the sold.
		wantReads := func(what string, want int64) {
			t.Helper()
			pages := 0
			reads = 0
			for _, status := range []PetStatus{"", Sold} {
				for after, more := int64(0), true; more; pages++ {
					_, p := pageIDs(t, s, status, 2, after)
					after, more = p.last, p.more
				}
			}
			if pages != 8 || reads != want {
				t.Errorf("%s, %d of %d pages are read, want %d of 8", what, reads, pages, want)
			}
		}
		last := int64(0)
		if s.engine.shared() {
			last = 2
		}
		wantReads("at first", 8)
		wantReads("again", last)
		mustCreate(t, s, NewPet{Name: "Max", CategoryID: 1, Status: Sold})
		wantReads("with a new pet on the last page", 2)
		wantReads("after that", last)
		editAsCommand(t, db, "UPDATE pets SET name = 'Tom' WHERE id = 3")
		must(t, s.refresh(t.Context()))
		wantReads("after an edit", 8)
	})
}

// TestEditsOfOtherProgramsAreFollowed: on a file, everything is read anew after any write of
// others. On a cluster this is so for counted edits only, since a row that is added was not cached.
func TestEditsOfOtherProgramsAreFollowed(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s, other := openDatabase(t, db), openDatabase(t, db)
		var stored int64
		imports := func() error {
			stored += 2
			pets := []string{rowOf(rex), rowOf(rex)}
			return other.importPets(t.Context(), "digest", pets, stored-2, stored)
		}
		edit := func(name string) error {
			return errorOf(other.edit(t.Context(), sqlOf("UPDATE pets SET name = ? WHERE id = 1", name)))
		}
		olderEdit := writing(other,
			sqlOf("UPDATE counters SET value = value + 1 WHERE name = 'edits'"))
		uncounted := writing(other, sqlOf("UPDATE pets SET name = 'Ada' WHERE id = 1"))
		must(t, imports())
		must(t, imports())
		for _, c := range []struct {
			what               string
			change             func() error
			onAFile, onCluster bool // what was cached is read anew
		}{
			{"an import goes on", imports, true, false},
			{"another service adds a pet", creating(other, "Rex"), true, false},
			{"another program writes", uncounted, true, false},
			{"we write ourselves", creating(s, "Rex"), false, false},
			{"nothing happens", func() error { return nil }, false, false},
			{"a pet is edited", func() error { return edit("Tom") }, true, true},
			{"a pet is edited during an import", func() error {
				must(t, imports())
				must(t, edit("Kim"))
				return imports()
			}, true, true},
			{"an older petstore edits", olderEdit, true, true},
		} {
			must(t, s.refresh(t.Context()))
			_, page := pageIDs(t, s, "", 2, 0)
			pageIDs(t, s, "", maxLimit, 0)
			pet, err := s.pet(1)
			must(t, err)
			must(t, c.change())
			must(t, s.refresh(t.Context()))
			_, pageNow := pageIDs(t, s, "", 2, 0)
			petNow, err := s.pet(1)
			must(t, err)
			want := c.onAFile
			if s.engine.shared() {
				want = c.onCluster
			}
			if (pageNow != page) != want || (petNow != pet) != want {
				t.Errorf("when %s, the page with more is read anew: %v, the pet: %v; want %v",
					c.what, pageNow != page, petNow != pet, want)
			}
			if want && !bytes.Contains(pageNow.body, petNow.body) {
				t.Errorf("when %s, the page is %s, the pet %s", c.what, pageNow.body, petNow.body)
			}
			if ids, _ := pageIDs(t, s, "", maxLimit, 0); int64(len(ids)) != countPets(t, s) {
				t.Errorf("when %s, %d pets are listed", c.what, len(ids))
			}
		}
	})
}

// lateEngine lets something happen between a query and its return.
type lateEngine struct {
	engine
	meanwhile func()
}

func (e *lateEngine) read(ctx context.Context, query statement,
	row func(scan scanner) error) error {
	err := e.engine.read(ctx, query, row)
	e.meanwhile()
	return err
}

// TestWhatWasReadBeforeAChangeIsNotFreshAfterIt, although it is cached later.
func TestWhatWasReadBeforeAChangeIsNotFreshAfterIt(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		mustCreate(t, s, rex)
		page := func(limit int) func() string {
			return func() string {
				_, p := pageIDs(t, s, "", limit, 0)
				return string(p.body)
			}
		}
		pet := func() string {
			pet, err := s.pet(1)
			must(t, err)
			return string(pet.body)
		}
		create := func(name string) { mustCreate(t, s, NewPet{Name: name, CategoryID: 1, Status: Sold}) }
		edit := func(name string) {
			editAsCommand(t, db, "UPDATE pets SET name = '"+name+"' WHERE id = 1")
			must(t, s.refresh(t.Context()))
		}
		for i, c := range []struct {
			what   string
			read   func() string
			change func(name string)
		}{
			{"the last page, and a new pet", page(20), create},
			{"a page with more behind it, and an edit", page(1), edit},
			{"a pet, and an edit", pet, edit},
		} {
			name := fmt.Sprint("Tom ", i)
			honest := s.engine
			s.engine = &lateEngine{honest, func() {
				s.engine = honest
				c.change(name)
			}}
			if text := c.read(); strings.Contains(text, name) {
				t.Errorf("%s: before the change it is %s", c.what, text)
			}
			if text := c.read(); !strings.Contains(text, name) {
				t.Errorf("%s: after the change it is %s", c.what, text)
			}
		}
	})
}

// steppedEngine stops a read and a write before and after the database does it.
type steppedEngine struct {
	engine
	stopRead, stopWrite func()
}

func (e *steppedEngine) read(ctx context.Context, query statement,
	row func(scan scanner) error) error {
	e.stopRead()
	defer e.stopRead()
	return e.engine.read(ctx, query, row)
}

func (e *steppedEngine) write(ctx context.Context, statements []statement) ([]result, error) {
	e.stopWrite()
	defer e.stopWrite()
	return e.engine.write(ctx, statements)
}

// inSteps runs do up to its first stop, then to the next, and then to its end.
func inSteps(do func(), stop *func()) (step func()) {
	next, end := iter.Pull(func(yield func(bool) bool) {
		*stop = func() { yield(true) }
		do()
	})
	steps := 0
	return func() {
		steps++
		if steps == 3 {
			end()
			return
		}
		next()
	}
}

// TestNoPageIsRememberedAsNewerThanItIs, in each of the 20 orders in which the steps of its read
// and those of a create can come. When both have ended, the page has the new pet.
func TestNoPageIsRememberedAsNewerThanItIs(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		stepped := &steppedEngine{engine: s.engine}
		s.engine = stepped
		pets := 0
		for order := range uint(1 << 6) { // a bit that is set is a step of the create
			if bits.OnesCount(order) != 3 {
				continue
			}
			pets++
			limit := maxLimit - pets // no such page is cached yet
			read := inSteps(func() { pageIDs(t, s, "", limit, 0) }, &stepped.stopRead)
			create := inSteps(func() { mustCreate(t, s, rex) }, &stepped.stopWrite)
			steps := ""
			for turn := range 6 {
				if order>>turn&1 == 1 {
					steps += " create"
					create()
				} else {
					steps += " read"
					read()
				}
			}
			if ids, _ := pageIDs(t, s, "", limit, 0); len(ids) != pets {
				t.Errorf("after%s the page has %d of %d pets", steps, len(ids), pets)
			}
		}
	})
}

// TestAPetWithAnIdempotencyKeyIsListedAtOnce, although the page that it belongs on is cached.
func TestAPetWithAnIdempotencyKeyIsListedAtOnce(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		pageIDs(t, s, "", 20, 0)
		id, _ := createOnce(t, s, 1, "Rex", testTime)
		if ids, _ := pageIDs(t, s, "", 20, 0); !slices.Equal(ids, []int64{id}) {
			t.Errorf("after pet %d was created, the list has %v", id, ids)
		}
	})
}

// ada is an import of one pet.
var ada = []string{rowOf(NewPet{Name: "Ada", CategoryID: 1, Status: Available})}

// TestAPetThatWasShownOnceIsShownFromThenOn: a page or a single pet shows what an import, another
// program, or a commit that has not returned yet has added. From then on, no last page that was
// cached lacks it.
func TestAPetThatWasShownOnceIsShownFromThenOn(t *testing.T) {
	s := newStore(t)
	other := openDatabase(t, fileEngine(s).path)
	honest := s.engine
	mustCreate(t, s, rex)
	lists := func(id int64, limit int, after int64) bool {
		ids, _ := pageIDs(t, s, Available, limit, after)
		return slices.Contains(ids, id)
	}
	check := func(who string, id int64) {
		// Neither the pet nor a page that begins with it is cached.
		pet, err := s.pet(id * (id % 2)) // 0 is no pet's
		must(t, err)
		isShown := pet != nil || lists(id, 1, id-1)
		if !isShown || !lists(id, 99, 0) || !lists(id, 98, 0) {
			t.Errorf("%s has added pet %d, which is shown once (%v), but not by all pages",
				who, id, isShown)
		}
	}
	for id := int64(2); id < 90; id++ {
		lists(id, 99, 0)
		lists(id, 98, 0)
		switch id / 2 % 4 {
		case 0:
			must(t, other.importPets(t.Context(), fmt.Sprint(id), ada, 0, 1))
			check("an import", id)
		case 1:
			must(t, writing(other, sqlOf("INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Eve')"))())
			check("another program", id)
		default:
			s.engine = &slowEngine{honest, func() { check("a commit that goes on", id) }}
			mustCreate(t, s, NewPet{Name: "Tom", CategoryID: 1, Status: Available})
			s.engine = honest
		}
	}
}

// slowEngine lets something happen between a commit and its return.
type slowEngine struct {
	engine
	meanwhile func()
}

func (e *slowEngine) write(ctx context.Context, statements []statement) ([]result, error) {
	results, err := e.engine.write(ctx, statements)
	e.meanwhile()
	return results, err
}

// TestAnImportIsNeverSeenAndThenMissing, nor are creates, whatever pages are asked for at once.
func TestAnImportIsNeverSeenAndThenMissing(t *testing.T) {
	s := newStore(t)
	other := openDatabase(t, fileEngine(s).path)
	var writers, readers sync.WaitGroup
	var ended atomic.Bool
	writers.Go(func() {
		for i := range 200 {
			digest := fmt.Sprint(i)
			err := other.importPets(context.Background(), digest, ada, 0, 1)
			if err != nil {
				t.Error(err)
			}
		}
	})
	writers.Go(func() {
		for range 200 {
			mustCreate(t, s, NewPet{Name: "Tom", CategoryID: 1, Status: Available})
		}
	})
	var seen atomic.Int64 // the highest id that a response has shown
	for limit := range 3 {
		readers.Go(func() {
			for !ended.Load() {
				atLeast := seen.Load()
				page, err := s.page(Available, maxLimit-limit, max(0, atLeast-1)/50*50)
				if err != nil || page.last < atLeast {
					t.Errorf("pet %d was seen; then a last page ends with %d, %v",
						atLeast, page.last, err)
					return
				}
				for highest := atLeast; highest < page.last; highest = seen.Load() {
					seen.CompareAndSwap(highest, page.last)
				}
			}
		})
	}
	writers.Wait()
	ended.Store(true)
	readers.Wait()
}

// TestAnEditThatWasShownOnceIsShownFromThenOn: pages and pets that are read show an edit before the
// service looks for edits. From then on, no page that was cached shows what was before.
func TestAnEditThatWasShownOnceIsShownFromThenOn(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		for _, name := range []string{"Rex", "Max", "Tom", "Kim"} {
			mustCreate(t, s, NewPet{Name: name, CategoryID: 1, Status: Sold})
		}
		cached := func() string {
			_, p := pageIDs(t, s, "", 3, 0)
			return string(p.body)
		}
		readPage := func() string {
			_, p := pageIDs(t, s, Sold, 3, 0)
			return string(p.body)
		}
		readPet := func() string {
			pet, err := s.pet(2)
			must(t, err)
			if pet == nil {
				return ""
			}
			return string(pet.body)
		}
		for _, c := range []struct {
			what, edit string
			read       func() string
			gone       string // what the edit takes away
		}{
			{"a page", "UPDATE pets SET name = 'Ada' WHERE id = 1", readPage, "Rex"},
			{"a pet", "UPDATE pets SET name = 'Eve' WHERE id = 2", readPet, "Max"},
			{"a pet that is deleted", "DELETE FROM pets WHERE id = 2", readPet, "Eve"},
		} {
			must(t, s.refresh(t.Context()))
			cached()
			if text := cached(); !strings.Contains(text, c.gone) {
				t.Fatalf("before the edit, a page without %s is cached: %s", c.gone, text)
			}
			editAsCommand(t, db, c.edit)
			if text := c.read(); strings.Contains(text, c.gone) {
				t.Fatalf("%s is not read, but cached: %s", c.what, text)
			}
			if text := cached(); strings.Contains(text, c.gone) {
				t.Errorf("after %s has shown the edit, a page still has %s: %s", c.what, c.gone, text)
			}
			s.pages, s.pets = cache[place, *listPage]{}, cache[int64, *cachedPet]{}
			s.limitCache(16 << 20)
		}
	})
}

// TestTheCacheIsBounded by the memory that it really takes, also while many read.
func TestTheCacheIsBounded(t *testing.T) {
	const most = 1 << 20
	s := newStore(t)
	must(t, writing(s, sqlOf(`
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000)
		INSERT INTO pets (category_id, status, name) SELECT i, 2 + i % 3, 'Bella' FROM n`))())
	s.limitCache(most)
	size := func() int64 {
		s.pages.mu.Lock()
		defer s.pages.mu.Unlock()
		s.pets.mu.Lock()
		defer s.pets.mu.Unlock()
		return s.pages.size + s.pets.size
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var wg sync.WaitGroup
	for worker := range int64(4) {
		wg.Go(func() {
			for i := worker; i < 4000; i += 4 {
				_, err := s.pet(i + 1)
				must(t, err)
				p, err := s.page("", 1+int(i)%5, i)
				must(t, err)
				if !bytes.HasPrefix(p.body, fmt.Appendf(nil, `[{"id":%d,`, i+1)) {
					t.Errorf("the page after %d is %s", i, p.body)
				}
				if n := size(); n > most+4<<13 { // each worker may be about to make room
					t.Errorf("%d bytes are cached", n)
				}
			}
		})
	}
	wg.Wait()
	if taken := heap() - before; size() < most*3/4 || size() > most || taken > most*12/10 {
		t.Errorf("%d bytes are counted, which take %d, of %d", size(), taken, most)
	}

	s.limitCache(0)
	first, err := s.page("", 7, 0)
	must(t, err)
	second, err := s.page("", 7, 0)
	must(t, err)
	if first == second {
		t.Error("a page is cached in no memory")
	}
}

// TestACacheThatIsTooSmallKeepsSomeEntries of those that are read in turn, and none for ever.
func TestACacheThatIsTooSmallKeepsSomeEntries(t *testing.T) {
	const size, items = 1000, 1500
	c := cache[int, int]{max: size}
	found := func() (n int) {
		for i := range items {
			if c.get(i) != 0 {
				n++
			}
			c.put(i, i+1, 1)
		}
		return n
	}
	for range 50 {
		found()
	}
	if n := found(); n < items/3 {
		t.Errorf("a pass of %d finds %d", items, n)
	}
	if n := c.size; n > size || int(n) != len(c.entries) {
		t.Errorf("the size is %d, and there are %d entries", n, len(c.entries))
	}
	for i := range 100 * size {
		c.put(-i-1, i, 1)
	}
	if n := found(); n > items/2 {
		t.Errorf("%d entries that nobody has read any more are left", n)
	}
}

func TestALargeEntryTakesThePlaceOfOthers(t *testing.T) {
	c := cache[string, string]{max: 10}
	c.put("a", "a1", 5)
	c.put("b", "b1", 5)
	c.put("a", "a2", 6)
	if c.get("a") != "a2" || c.get("b") != "" || c.size != 6 {
		t.Errorf("there are %v, of size %d", c.entries, c.size)
	}
	c.put("a", "a3", 11)
	if c.get("a") == "a3" || c.size > 10 {
		t.Errorf("an entry without room is kept: %v, of size %d", c.entries, c.size)
	}
}
