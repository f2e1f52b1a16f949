package main

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/bits"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// editAsCommand changes what is stored as a command does, which the other stores have to notice.
func editAsCommand(t testing.TB, db string, statements ...string) {
	t.Helper()
	s := openDatabase(t, db)
	for _, st := range statements {
		must(t, errorOf(s.edit(context.Background(), sqlOf(st))))
	}
	must(t, s.Close())
}

// TestAReadThatFailsAfterARowIsAnError: half of a page or of an export must not pass for all of it.
func TestAReadThatFailsAfterARowIsAnError(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		query := sqlOf(`SELECT value -> '$' FROM json_each('["1", "no JSON"]')`)
		err := openDatabase(t, db).engine.read(t.Context(), query, func(scan scanner) error {
			return scan(new(string))
		})
		wantPart(t, fmt.Sprint(err), "malformed JSON", "the error")
	})
}

// TestEveryStatementRunsOnEveryEngine sends every statement of the source. Its arguments are
// integers, strings, and NULL; its columns are read to integers, booleans, and strings.
func TestEveryStatementRunsOnEveryEngine(t *testing.T) {
	onStores(t, func(t *testing.T, s *store) {
		var sent strings.Builder
		s.engine = &watchedEngine{engine: s.engine, check: func(st statement, columns []any) {
			sent.WriteString(st.query + "\n")
			for _, arg := range st.args {
				switch arg.(type) {
				case int64, string, nil:
				default:
					t.Errorf("an argument is a %T: %s", arg, st.query)
				}
			}
			for _, column := range columns {
				switch reflect.TypeOf(column).Elem().Kind() {
				case reflect.Int, reflect.Int64, reflect.Bool, reflect.String:
				default:
					t.Errorf("a column is read to a %T: %s", column, st.query)
				}
			}
		}}
		sendStatements(t, s)
		same := petsFile(t, `{"id":1,"name":"Tom","categoryId":2,"status":"sold"}`)
		for line := range linesOf(`
			pet set -name=Tom -category=2 -status=sold 1
			pet export -
			pet export -status sold
			pet import -keep-ids ` + same + `
			pet delete 1
			key create -plan=free
			key list
			key set -name=third -plan=pro -expires=90d 1
			key usage
			key rotate -overlap=1h 1
			key revoke 1`) {
			must(t, onStore(t, s, io.Discard, line))
		}
		if err := onStore(t, s, fullDisk{}, "key rotate -overlap=1h 2"); err == nil {
			t.Error("a key that cannot be shown is made") // it is taken back
		}
		literals := literalsOf(t, "store.go", "keys.go", "usage.go", "commands_pets.go")
		if len(literals) < 15 {
			t.Errorf("the source has %d statements", len(literals))
		}
		for _, literal := range literals {
			wantPart(t, sent.String(), literal, "what was sent")
		}
	})
}

// sendStatements sends those of a service, and of an import.
func sendStatements(t *testing.T, s *store) {
	ctx, now := t.Context(), instantOf(testTime)
	mustCreate(t, s, rex)
	pageIDs(t, s, "", 20, 0)
	pageIDs(t, s, Sold, 20, 0)
	readPet(t, s, 1)
	createOnce(t, s, 1, "Rex", testTime)
	must(t, errorOf(s.importPets(ctx, "digest", []string{rowOf(rex)}, 0, 1)))
	must(t, errorOf(s.imported(ctx, "digest")))
	must(t, errorOf(s.importedIDs(ctx, "digest", 1)))
	must(t, s.restartImport(ctx, "digest", 1))
	must(t, s.purge(ctx, testTime))
	must(t, s.probe(ctx))
	must(t, s.readable(ctx))
	l := newLedger(s, time.Minute)
	must(t, l.purge(ctx, testTime))
	l.noteDeprecatedUse(1, now)
	a := &account{usageID: 1}
	must(t, errorOf(l.charge(a, now)))
	mustFlush(t, l)
	must(t, errorOf(l.storeBan(a, &decision{now: now})))
	must(t, unbanKey(ctx, s, 1, now))
	must(t, errorOf(findKey(ctx, s, digest{})))
	must(t, errorOf(foreignKeys(ctx, s, false)))
	must(t, errorOf(readReport(ctx, s, now)))
	must(t, errorOf(schemaVersion(ctx, s.engine)))
	mustWrite(t, s, upgrade(len(migrations), 1)[1:]...) // [0] is empty
}

// onStore runs a command on a store that is open.
func onStore(t *testing.T, s *store, stdout io.Writer, line string) error {
	t.Helper()
	words := strings.Fields(line)
	entry := commandNamed(words[0] + " " + words[1])
	cmd, err := parseCommand(entry.name, words[2:])
	must(t, err)
	cmd.stdout, cmd.stderr = stdout, io.Discard
	cmd.store = s
	cmd.log = testLog
	if entry.idOf != "" && cmd.argument != "" {
		must(t, cmd.readID(t.Context()))
	}
	return entry.run(t.Context(), cmd)
}

// TestAnEngineThatGivesIDsAgainIsNotBelieved: it has lost pets whose ids others would get. What is
// remembered, which may be lost too, is read anew. Such creates are counted, and apart from those
// of an unknown outcome.
func TestAnEngineThatGivesIDsAgainIsNotBelieved(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		wantNextID(t, s, 1)
		wantNextID(t, s, 2)
		// wantReadAnew has the database lose the second pet, and change the first one.
		wantReadAnew := func(what, name string, create func() error) {
			t.Helper()
			must(t, errorOf(s.pet(1))) // which is remembered
			editAsCommand(t, db, "UPDATE sqlite_sequence SET seq = 1 WHERE name = 'pets'",
				"DELETE FROM pets WHERE id = 2", "UPDATE pets SET name = '"+name+"'")
			wantError(t, create(), errOutcome, what)
			first, err := s.pet(1)
			must(t, err)
			wantPart(t, string(first.body), name, "after ", what, ", the first pet")
		}
		wantReadAnew("a create", "Ada", func() error { return errorOf(s.createPet(1, rex)) })
		wantReadAnew("a create with an Idempotency-Key", "Ida", func() error {
			_, _, _, err := s.createPetOnce(1, rex, 1, "key", []byte("{}"), time.Now())
			return err
		})
		wantNextID(t, s, 3)
		wantEqual(t, s.idsGivenAgain.Load(), 2, "the number of ids that were given again")
		x := newExposition()
		s.engine.measure(x)
		wantEqual(t, x.numbers["petstore_unknown_outcomes_total"], 0,
			"the number of unknown outcomes")
	})
}

// TestAnIDIsGivenAgainAlsoIfItWasShownLate: to a create that waits for its transaction. The engine
// loses the pet that was shown before that begins.
func TestAnIDIsGivenAgainAlsoIfItWasShownLate(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDatabase(t, path)
		s.committing <- struct{}{} // another transaction runs
		created := make(chan error)
		go func() { created <- errorOf(s.createPet(1, rex)) }()
		go func() {
			_, _, _, err := s.createPetOnce(1, rex, 1, "key", []byte("{}"), time.Now())
			created <- err
		}()
		synctest.Wait()
		s.noteShown(2)
		<-s.committing
		for range 2 {
			wantError(t, <-created, errOutcome, "a create that waited meanwhile")
		}
	})
}

// emptyEngine has no rows, and an error or none.
type emptyEngine struct {
	engine
	err error
}

func (e emptyEngine) read(context.Context, statement, func(scanner) error) error { return e.err }

func (e emptyEngine) write(context.Context, []statement) ([]result, error) { return nil, e.err }

// TestWhatIsRememberedOfAnotherDatabaseIsOld, whoever notices that it is another.
func TestWhatIsRememberedOfAnotherDatabaseIsOld(t *testing.T) {
	s := newStore(t)
	s.engine = emptyEngine{s.engine, errOtherDatabase}
	for what, use := range map[string]func(context.Context) error{
		"a read": s.readable, "a write": s.probe,
	} {
		before := s.generation.Load()
		wantError(t, use(t.Context()), errOtherDatabase, what)
		wantEqual(t, s.generation.Load(), before+1, "after ", what, ", the generation")
	}
	wantError(t, s.readySoFar().reading, errOtherDatabase, "readiness")
	wantError(t, s.purge(t.Context(), testTime), errOtherDatabase, "a purge")
	_, err := s.petReader()(func(...any) error { return errUnavailable })
	wantError(t, err, errUnavailable, "a row that cannot be read")
}

// TestAReadWithoutRowsTellsOfNoPet, since the first row of each is no pet.
func TestAReadWithoutRowsTellsOfNoPet(t *testing.T) {
	s := newStore(t)
	s.engine = emptyEngine{engine: s.engine}
	if page, err := s.page("", 20, 0); err == nil {
		t.Errorf("the page is %s", page.body)
	}
	if pet, err := s.pet(1); err == nil {
		t.Errorf("the pet is %v", pet)
	}
}

func TestIDsStartAtOneAndAreNeverReused(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		wantNextID(t, s, 1)
		wantNextID(t, s, 2)
		editAsCommand(t, db, "DELETE FROM pets WHERE id = 2")
		wantNextID(t, s, 3)
		editAsCommand(t, db, "DELETE FROM pets")
		must(t, s.Close())
		s = openDatabase(t, db)
		wantNextID(t, s, 4)
	})
}

// TestPagesAreReadByIndex: a page costs the same at any depth, also after an ANALYZE of a program
// that finds one status in all pets and keeps no samples of them.
func TestPagesAreReadByIndex(t *testing.T) {
	s := newStore(t)
	makeOtherDatabase(t, fileEngine(s).path, "ANALYZE", "DELETE FROM sqlite_stat1",
		"INSERT INTO sqlite_stat1 VALUES ('pets', 'pets_status', '1500000 1500000')")
	for status, index := range map[PetStatus]string{
		"":   "SEARCH pets USING INTEGER PRIMARY KEY (rowid>?)",
		Sold: "SEARCH pets USING INDEX pets_status (status=? AND rowid>?)",
	} {
		at := place{status: status.stored(), limit: 20, after: 5}
		plan := planOf(t, fileEngine(s).path, at.query())
		isSorted := strings.Contains(plan, "TEMP B-TREE")
		if !strings.Contains(plan, index) || isSorted || strings.Contains(plan, "SCAN pets") {
			t.Errorf("with status %q the plan is\n%s", status, plan)
		}
	}
}

func TestAnETagStandsForTheContentAndTheNextPage(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		var tags []string
		read := func() string {
			_, p := pageIDs(t, s, "", 1, 0)
			tags = append(tags, p.etag...)
			return string(p.body)
		}
		read() // the empty list
		mustCreate(t, s, rex)
		alone := read()
		mustCreate(t, s, rex)
		wantEqual(t, read(), alone, "with more behind it, the first page")
		pet, err := s.pet(1)
		must(t, err)
		tags = append(tags, pet.etag...)
		editAsCommand(t, db, "UPDATE pets SET name = 'Tom'")
		must(t, s.refresh(t.Context()))
		read()
		isTag := regexp.MustCompile(`^("\S{8,}" ){5}$`)
		slices.Sort(tags)
		if text := strings.Join(slices.Compact(tags), " ") + " "; !isTag.MatchString(text) {
			t.Errorf("the ETags are %s, want five", text)
		}
	})
}

// TestEditsOfOtherProgramsAreFollowed: on a file, everything is read anew after any write of
// others. On a cluster this is so for counted edits only, since a row that is added was not cached;
// but the last pages are always read, since another service may have added pets.
func TestEditsOfOtherProgramsAreFollowed(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s, other := openDatabase(t, db), openDatabase(t, db)
		queries := []string{petQuery, listQuery, statusListQuery}
		reads := 0
		s.engine = &watchedEngine{s.engine, func(st statement, columns []any) {
			if columns == nil && slices.Contains(queries, st.query) {
				reads++
			}
		}}
		// readAll reads a pet and all pages of two lists, and tells what of these was not cached.
		readAll := func() string {
			must(t, s.refresh(t.Context()))
			pages, listed := 0, 0
			reads = 0
			must(t, errorOf(s.pet(1)))
			for _, status := range []PetStatus{"", Sold} {
				for after, more := int64(0), true; more; pages++ {
					ids, p := pageIDs(t, s, status, 2, after)
					after, more = p.last, p.more
					listed += len(ids)
				}
			}
			// All are sold.
			wantEqual(t, listed, 2*int(countPets(t, s)), "the number of listed pets")
			switch reads {
			case 0:
				return "nothing"
			case 2, 4: // a new pet may begin another page of both lists
				return "the last pages"
			case 1 + pages:
				return "everything"
			}
			return fmt.Sprintf("%d of %d", reads, 1+pages)
		}
		sold := NewPet{Name: "Rex", CategoryID: 1, Status: Sold}
		var stored int64
		imports := func() error {
			stored += 2
			pets := []string{rowOf(sold), rowOf(sold)}
			return errorOf(other.importPets(t.Context(), "digest", pets, stored-2, stored))
		}
		edit := func(name string) error {
			return errorOf(other.edit(t.Context(), sqlOf("UPDATE pets SET name = ? WHERE id = 1",
				name)))
		}
		olderEdit := writing(other,
			sqlOf("UPDATE counters SET value = value + 1 WHERE name = 'edits'"))
		uncounted := writing(other, sqlOf("UPDATE pets SET name = 'Ada' WHERE id = 1"))
		for range 3 {
			must(t, imports())
		}
		readAll()
		for _, c := range []struct {
			what               string
			change             func() error
			onAFile, onCluster string // what is read anew
		}{
			{"an import goes on", imports, "everything", "the last pages"},
			{"another service adds a pet", creating(other, "Rex"), "everything", "the last pages"},
			{"another program writes", uncounted, "everything", "the last pages"},
			{"we write ourselves", creating(s, "Rex"), "the last pages", "the last pages"},
			{"we create under a key", func() error {
				_, _, _, err := s.createPetOnce(1, sold, 1, "k", nil, testTime)
				return err
			}, "the last pages", "the last pages"},
			{"nothing happens", func() error { return nil }, "nothing", "the last pages"},
			{"a pet is edited", func() error { return edit("Tom") }, "everything", "everything"},
			{"a pet is edited during an import", func() error {
				must(t, imports())
				must(t, edit("Kim"))
				return imports()
			}, "everything", "everything"},
			{"an older petstore edits", olderEdit, "everything", "everything"},
			{"nothing happens after edits", func() error { return nil }, "nothing",
				"the last pages"},
		} {
			must(t, c.change())
			want := c.onAFile
			if s.engine.shared() {
				want = c.onCluster
			}
			wantEqual(t, readAll(), want, "when ", c.what, ", what is read anew")
		}
	})
}

// listText is a page of all pets, or of those with a status.
func listText(t *testing.T, s *store, status PetStatus, limit int) string {
	t.Helper()
	_, p := pageIDs(t, s, status, limit, 0)
	return string(p.body)
}

// TestWhatWasReadBeforeAnEditIsNotFreshAfterIt, although it is cached later. For new pets, see
// TestNoPageIsRememberedAsNewerThanItIs.
func TestWhatWasReadBeforeAnEditIsNotFreshAfterIt(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		mustCreate(t, s, rex)
		mustCreate(t, s, rex)
		for name, read := range map[string]func() string{
			"Page": func() string { return listText(t, s, "", 1) },
			"Pet":  func() string { return readPet(t, s, 1).Name },
		} {
			honest := s.engine
			s.engine = &hookedEngine{engine: honest, afterRead: func() {
				s.engine = honest
				editAsCommand(t, db, "UPDATE pets SET name = '"+name+"' WHERE id = 1")
				must(t, s.refresh(t.Context()))
			}}
			before, after := read(), read()
			if strings.Contains(before, name) || !strings.Contains(after, name) {
				t.Errorf("a %s is %s before an edit, and then %s", name, before, after)
			}
		}
	})
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
	onStores(t, func(t *testing.T, s *store) {
		var stopRead, stopWrite func()
		read, write := func() { stopRead() }, func() { stopWrite() }
		s.engine = &hookedEngine{s.engine, read, read, write, write}
		pets := 0
		for order := range uint(1 << 6) { // a bit that is set is a step of the create
			if bits.OnesCount(order) != 3 {
				continue
			}
			pets++
			limit := maxLimit - pets // no such page is cached yet
			read := inSteps(func() { pageIDs(t, s, "", limit, 0) }, &stopRead)
			create := inSteps(func() { mustCreate(t, s, rex) }, &stopWrite)
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
			must(t, errorOf(other.importPets(t.Context(), fmt.Sprint(id), ada, 0, 1)))
			check("an import", id)
		case 1:
			mustWrite(t, other,
				sqlOf("INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Eve')"))
			check("another program", id)
		default:
			s.engine = &hookedEngine{engine: honest, afterWrite: func() {
				check("a commit that goes on", id)
			}}
			mustCreate(t, s, NewPet{Name: "Tom", CategoryID: 1, Status: Available})
			s.engine = honest
		}
	}
}

// TestAnEditThatWasShownOnceIsShownFromThenOn: pages and pets that are read show an edit before the
// service looks for edits. From then on, no page that was cached shows what was before.
func TestAnEditThatWasShownOnceIsShownFromThenOn(t *testing.T) {
	for what, edit := range map[string]string{
		"a page":                "UPDATE pets SET name = 'Ada' WHERE id = 2",
		"a pet":                 "UPDATE pets SET name = 'Eve' WHERE id = 2",
		"a pet that is deleted": "DELETE FROM pets WHERE id = 2",
	} {
		engines(t, func(t *testing.T, db string) {
			s := openDatabase(t, db)
			for _, name := range []string{"Rex", "Max", "Tom", "Kim"} {
				must(t, creating(s, name)())
			}
			must(t, s.refresh(t.Context()))
			listText(t, s, "", 3)
			editAsCommand(t, db, edit)
			wantPart(t, listText(t, s, "", 3), "Max", "before the edit is shown, the page")
			if what == "a page" {
				listText(t, s, Sold, 3)
			} else {
				must(t, errorOf(s.pet(2)))
			}
			wantCount(t, listText(t, s, "", 3), "Max", 0,
				"after ", what, " has shown the edit, the page")
		})
	}
}

// gateWrites holds writes of the store's engine up until open is called, at the end of the test at
// the latest, or the store could not be closed. arrived has an element once a write waits.
func gateWrites(t testing.TB, s *store) (arrived chan bool, open func()) {
	arrived = make(chan bool, 1)
	opened := make(chan bool)
	s.engine = &hookedEngine{engine: s.engine, beforeWrite: func() {
		select {
		case arrived <- true:
		default:
		}
		<-opened
	}}
	open = sync.OnceFunc(func() { close(opened) })
	t.Cleanup(open)
	return arrived, open
}

// writeTogether starts the writes so that all but the first share a transaction: they join it one
// after the other, while the first is held up in the engine.
func writeTogether(t testing.TB, s *store, writes ...func() error) []error {
	t.Helper()
	honest := s.engine
	arrived, open := gateWrites(t, s)
	errs := make([]error, len(writes))
	var wg sync.WaitGroup
	for i, write := range writes {
		before := nextTransaction(s)
		wg.Go(func() { errs[i] = write() })
		if i == 0 {
			<-arrived
			continue
		}
		for nextTransaction(s) == before {
			runtime.Gosched()
		}
	}
	open()
	wg.Wait()
	s.engine = honest
	return errs
}

// nextTransaction changes whenever a caller joins.
func nextTransaction(s *store) (state struct {
	t       *transaction
	callers int
}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state.t, state.callers = s.next, s.next.callers
	return state
}

// creating is a write of one pet.
func creating(s *store, name string) func() error {
	return func() error {
		_, err := s.createPet(1, NewPet{Name: name, CategoryID: 1, Status: Sold})
		return err
	}
}

// writing is a write of statements.
func writing(s *store, statements ...statement) func() error {
	return func() error { return errorOf(s.write(context.Background(), statements...)) }
}

func TestAFailingStatementFailsItsWholeTransactionAndNoOther(t *testing.T) {
	onStores(t, func(t *testing.T, s *store) {
		broken := writing(s, sqlOf("UPDATE usage SET id = 1"),
			sqlOf("INSERT INTO pets (category_id, status, name) VALUES (1, 9, 'x')"))
		errs := writeTogether(t, s,
			creating(s, "before"), creating(s, "with"), broken, creating(s, "with"))
		must(t, errs[0])
		for _, err := range errs[1:] {
			wantError(t, err, errUnavailable, "a write of the failed transaction")
			wantPart(t, fmt.Sprint(err), "CHECK", "the error")
		}
		wantEqual(t, s.commitsFailed.Load(), 1, "the number of failed commits")
		for _, query := range []string{"no SQL", "INSERT INTO usage VALUES (?)"} {
			wantError(t, writing(s, sqlOf(query))(), errUnavailable, query)
		}
		must(t, creating(s, "after")())
		text := listText(t, s, "", 20)
		wantCount(t, text, "with", 0, "the list")
		wantCount(t, text, "name", 2, "the list")
	})
}

// TestAWriteThatWasStoppedIsNoFailedCommit: it tells nothing of the database.
func TestAWriteThatWasStoppedIsNoFailedCommit(t *testing.T) {
	onStores(t, func(t *testing.T, s *store) {
		stopped, stop := context.WithCancel(t.Context())
		stop()
		_, err := s.write(stopped, sqlOf("DELETE FROM usage"))
		wantError(t, err, context.Canceled, "a write that was stopped")
		wantEqual(t, s.commitsFailed.Load(), 0, "the number of failed commits")
		must(t, s.ready.err())
	})
}

// TestPetsOfOneBatchGetTheirOwnIDs, whatever else is in their transaction, and in whatever order
// SQL finds the rows. An import keeps its order in the same way.
func TestPetsOfOneBatchGetTheirOwnIDs(t *testing.T) {
	onStores(t, func(t *testing.T, s *store) {
		const before = int64(1 << 62) // ids of 64 bits arrive exactly
		mustWrite(t, s, sqlOf("INSERT INTO sqlite_sequence (name, seq) VALUES ('pets', ?)",
			before))
		s.engine = shufflingEngine{s.engine}
		pets := make([]NewPet, 25)
		ids := make([]int64, len(pets))
		writes := []func() error{writing(s, sqlOf("DELETE FROM usage"))}
		for i := range pets {
			pets[i] = NewPet{
				Name:       fmt.Sprintf(`%d "[\`+" ؂🐈"+`,null]`, i),
				CategoryID: []int64{math.MinInt64, int64(i), math.MaxInt64}[i%3],
				Status:     []PetStatus{Available, Pending, Sold}[i%3],
			}
			create := func() (err error) {
				ids[i], err = s.createPet(1, pets[i])
				return err
			}
			if i%5 == 4 {
				create = func() (err error) {
					ids[i], _, _, err = s.createPetOnce(1, pets[i], 1, fmt.Sprint(i), nil, testTime)
					return err
				}
			}
			writes = append(writes, create, writing(s, saveUsage(int64(i), &usage{})))
		}
		transactions, counted := commitsOf(s), s.commitSizes.sum.Load()
		for _, err := range writeTogether(t, s, writes...) {
			must(t, err)
		}
		wantEqual(t, commitsOf(s)-transactions, 2, "the number of transactions")
		wantEqual(t, s.commitSizes.sum.Load()-counted, int64(len(writes)),
			"the number of requests in the metrics")
		var rows []string
		for i, id := range ids {
			rows = append(rows, rowOf(pets[i]))
			wantEqual(t, readPet(t, s, id), Pet{ID: id, NewPet: pets[i]}, "pet ", i)
		}
		slices.Sort(ids)
		listed, p := pageIDs(t, s, "", 25, before)
		wantEqual(t, listed, ids, "what is listed")
		wantEqual(t, p.last, before+25, "the last id")
		wantEqual(t, len(slices.Compact(ids)), 25, "the number of ids")
		wantPets(t, s, 25)
		wantRows(t, s, "usage", 25)
		must(t, errorOf(s.importPets(t.Context(), "digest", rows, 0, 25)))
		for i, pet := range pets {
			wantEqual(t, readPet(t, s, before+int64(26+i)).NewPet, pet, "of the import, pet ", i)
		}
	})
}

// shufflingEngine hands the rows of an INSERT to SQL in another order, as SQL may without ORDER BY.
type shufflingEngine struct{ engine }

func (e shufflingEngine) write(ctx context.Context, statements []statement) ([]result, error) {
	shuffled := slices.Clone(statements)
	for i := range shuffled {
		shuffled[i].query = strings.Replace(shuffled[i].query, "FROM json_each(?)",
			"FROM (SELECT * FROM json_each(?) ORDER BY (key * 7 + 3) % 11)", 1)
	}
	return e.engine.write(ctx, shuffled)
}

// lyingEngine says something else of what it has written.
type lyingEngine struct {
	engine
	lie func(results []result)
}

func (l *lyingEngine) write(ctx context.Context, statements []statement) ([]result, error) {
	results, err := l.engine.write(ctx, statements)
	l.lie(results)
	return results, err
}

// TestNoIDIsGuessed: a pet that may be stored under an unknown id is confirmed to nobody, and yet
// listed.
func TestNoIDIsGuessed(t *testing.T) {
	for what, lie := range map[string]func(inserted *result){
		"no row":  func(r *result) { r.affected = 0 },
		"one row": func(r *result) { r.affected = 1 },
		"no id":   func(r *result) { r.lastID = 0 },
		"one id":  func(r *result) { r.lastID = 1 },
	} {
		s := newStore(t)
		wantIDs(t, s)
		s.engine = &lyingEngine{s.engine, func(results []result) {
			if commitsOf(s) == 1 { // the second transaction has two pets
				lie(&results[0])
			}
		}}
		create := creating(s, "Rex")
		for i, err := range writeTogether(t, s, create, create, create) {
			if (i > 0) != errors.Is(err, errOutcome) {
				t.Errorf("%s: create %d says %v", what, i, err)
			}
		}
		wantIDs(t, s, 1, 2, 3)
	}
}

// TestAFullTransactionRefusesCreatesAtOnce: a disk that hangs does not fill the memory with
// requests. One usage has a quarter of the places, and what the service itself writes is never
// refused.
func TestAFullTransactionRefusesCreatesAtOnce(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDatabase(t, path)
		_, open := gateWrites(t, s)
		errs := make(chan error, 2*maxCallers)
		send := func(n int, write func() error) {
			for range n {
				go func() { errs <- write() }()
				synctest.Wait()
			}
		}
		plain := func(usageID int64) func() error {
			return func() error { return errorOf(s.createPet(usageID, rex)) }
		}
		once := func(usageID int64) func() error {
			return func() error {
				_, _, _, err := s.createPetOnce(usageID, rex, 1, "key", nil, testTime)
				return err
			}
		}
		wantRefused := func(want int, what string) {
			t.Helper()
			wantEqual(t, len(errs), want, what)
			for range len(errs) {
				wantEqual(t, <-errs, error(errQueueFull), what)
			}
		}
		send(1, plain(1)) // is in the engine
		send(maxOfOne, plain(1))
		wantRefused(0, "up to a quarter of the places, creates of one usage that are refused")
		send(1, plain(1))
		send(2, once(1))
		wantRefused(3, "after that, creates of the usage that are refused")
		for usageID := range int64(maxCallers/maxOfOne - 1) {
			send(maxOfOne, once(2+usageID))
		}
		wantRefused(0, "up to all places, creates of others that are refused")
		send(1, plain(9))
		send(1, once(9))
		wantRefused(2, "after that, creates that are refused")
		wantEqual(t, s.queueRefusals.Load(), 5, "the metric")
		l := newLedger(s, time.Minute)
		l.noteDeprecatedUse(1, 1)
		own := []func() error{
			writing(s, saveUsage(1, &usage{})),
			func() error { return s.probe(t.Context()) },
			func() error { return s.purge(t.Context(), testTime) },
			func() error { return l.flush(t.Context(), time.Now, false) },
			func() error {
				return errorOf(l.storeBan(&account{usageID: 9}, &decision{now: 1}))
			},
		}
		for _, write := range own {
			send(1, write)
		}
		wantRefused(0, "writes of the service that are refused")
		open()
		for range 1 + maxCallers + len(own) {
			must(t, <-errs)
		}
		wantPets(t, s, 1+maxOfOne+1) // those with one Idempotency-Key are one pet
	})
}

// TestNobodyWaitsForMoreThanTwoTransactions: without a leader of the cluster, a caller waits for
// the transaction that runs, and for the one of all who came meanwhile.
func TestNobodyWaitsForMoreThanTwoTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClusterWithoutNetwork(t, 3)
		s, _ := newClusterStore(t, c)
		c.lead(-1)
		start := time.Now()
		var wg sync.WaitGroup
		for usageID := range int64(4000) {
			wg.Go(func() {
				err := errorOf(s.createPet(1+usageID, rex))
				wantError(t, err, errUnavailable, "a create")
			})
		}
		wg.Wait()
		wantWithin(t, time.Since(start), 0, 2*leaderWait, "the longest wait")
	})
}

// panicValue is an argument that panics when the driver asks for its value.
type panicValue struct{}

func (panicValue) Value() (driver.Value, error) { panic("in the driver") }

// TestAPanicFailsItsTransactionOnly: later writes succeed, the store can be closed, and another
// service can take its place.
func TestAPanicFailsItsTransactionOnly(t *testing.T) {
	s, err := openStore(context.Background(), databasePath(t), openToServe, testLog)
	must(t, err)
	var panicked any
	errs := writeTogether(t, s, creating(s, "Rex"),
		func() error {
			defer func() { panicked = recover() }()
			return writing(s, sqlOf("DELETE FROM usage WHERE id = ?", panicValue{}))()
		},
		writing(s, sqlOf("INSERT INTO usage VALUES (1, 0, 0, 0, 0, 0, 0)")))
	if panicked != "in the driver" || !errors.Is(errs[2], errUnavailable) ||
		!errors.Is(errs[2], errOutcome) {
		t.Errorf("the leader sees the panic %v, and its follower %v", panicked, errs[2])
	}
	must(t, creating(s, "Max")())
	wantRows(t, s, "usage", 0)
	// The connection in which the driver panicked cannot be closed; nobody waits for it.
	must(t, s.Close())
	wantError(t, creating(s, "Tom")(), errUnavailable, "a create on a closed store")
	again := openDatabaseFor(t, fileEngine(s).path, openToServe)
	must(t, creating(again, "Tom")())
	wantPets(t, again, 3)
}

// TestClosingWaitsForTheLeader: a request that a stop has cut off may still commit.
func TestClosingWaitsForTheLeader(t *testing.T) {
	for range 20 {
		s, err := openStore(context.Background(), databasePath(t), openOrMake, testLog)
		must(t, err)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					if err := creating(s, "Rex")(); err != nil && !errors.Is(err, errUnavailable) {
						t.Error(err)
					}
				}
			})
		}
		runtime.Gosched()
		must(t, s.Close())
		wg.Wait()
	}
}

// TestACancelledLeaderCancelsNoFollower: together with others it waits for a lock as long as they.
func TestACancelledLeaderCancelsNoFollower(t *testing.T) {
	s := newStore(t)
	fileEngine(s).wait = 20 * time.Millisecond
	defer lockDatabase(t, s)()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	leader := func() error {
		return errorOf(s.write(cancelled, sqlOf("DELETE FROM usage")))
	}
	for i, err := range writeTogether(t, s, creating(s, "Rex"), leader, creating(s, "Max")) {
		if !errors.Is(err, errUnavailable) || errors.Is(err, context.Canceled) {
			t.Errorf("write %d says %v, want only that the lock was held too long", i, err)
		}
	}
}

// TestAnIdempotencyKeyMakesOnePet, also when repeats reach two programs in turn. A row has an API
// key, a body, when the repeat comes, and what becomes of it.
func TestAnIdempotencyKeyMakesOnePet(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		for policy, script := range map[string]string{
			"another body is refused, and another API key is independent": `
				1 Rex 0s => created 1
				1 Max 0s => reused 1
				2 Rex 0s => created 2
				2 Max 0s => reused 2
				1 Rex 0s => replayed 1`,
			"a repeat that came first is a replay if it is stored second": `
				1 Rex 1s => created 1
				1 Rex 0s => replayed 1`,
			"after 24 hours another body may use it": `
				1 Rex 0s => created 1
				1 Max 24h => created 2
				1 Rex 24h => reused 2`,
			"a repeat does not lengthen the 24 hours, and they begin anew with the second pet": `
				1 Rex 0s => created 1
				1 Rex 23h59m59.999s => replayed 1
				1 Rex 24h => created 2
				1 Rex 47h59m59.999s => replayed 2`,
		} {
			stores := []*store{openDatabase(t, db), openDatabase(t, db)}
			editAsCommand(t, db,
				"DELETE FROM pets", "DELETE FROM idempotency", "DELETE FROM sqlite_sequence")
			turn := 0
			for step, want := range rowsOf(t, script) {
				var keyID int64
				var body, when string
				must(t, errorOf(fmt.Sscan(step, &keyID, &body, &when)))
				got := createOnce(t, stores[turn%2], keyID, body, clock(when).time())
				wantEqual(t, got, want, policy, ": ", step)
				turn++
			}
			wantPets(t, stores[0], int64(strings.Count(script, "created")))
		}
	})
}

// TestRepeatsInOneTransactionMakeOnePet: SQL decides who is first, also between the statements of
// one transaction.
func TestRepeatsInOneTransactionMakeOnePet(t *testing.T) {
	onStores(t, func(t *testing.T, s *store) {
		verdicts := make([]string, 4)
		writes := []func() error{creating(s, "Kim")}
		for i, body := range []string{"Rex", "Rex", "Max", "Rex"} {
			writes = append(writes, func() error {
				verdicts[i] = createOnce(t, s, 1, body, testTime)
				return nil
			})
		}
		writeTogether(t, s, writes...)
		want := []string{"created 2", "replayed 2", "reused 2", "replayed 2"}
		wantEqual(t, verdicts, want, "the verdicts")
		wantPets(t, s, 2)
	})
}

// TestAPurgeLeavesRoomForCreates after each transaction, for as long as that took.
func TestAPurgeLeavesRoomForCreates(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDatabase(t, path)
		mustWrite(t, s, sqlOf(`
			WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 250)
			INSERT INTO idempotency SELECT 1, i, x'00', 1, 0 FROM n`))
		before := commitsOf(s)
		const each = 20 * time.Millisecond
		s.engine = &hookedEngine{engine: s.engine, beforeWrite: func() { time.Sleep(each) }}
		wantTime(t, "the end", 5*each, 5*each, nil, func() error {
			return s.purge(t.Context(), testTime)
		})
		wantEqual(t, commitsOf(s)-before, 3, "the number of transactions")
		wantRows(t, s, "idempotency", 0)
	})
}

func TestPurgeRemovesWhatHasServedItsTimeOnly(t *testing.T) {
	onStores(t, func(t *testing.T, s *store) {
		mustCreate(t, s, rex)
		now := int64(instantOf(testTime))
		today := now / int64(dayMillis)
		const many = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 1200) "
		mustWrite(t, s,
			sqlOf(many+`INSERT INTO idempotency
				SELECT 1, i, x'00', 1, ? - 86400000 - 1000 * i FROM n`, now),
			sqlOf(`INSERT INTO idempotency VALUES (1, 'a', x'00', 1, ?1 - 86399999),
				(1, 'b', x'00', 1, ?1), (1, 'c', x'00', 1, ?1 + 3600000)`, now),
			sqlOf(many+"INSERT INTO usage_days SELECT i, ? - 400 - i % 3, 1, 0, 0 FROM n", today),
			sqlOf("INSERT INTO usage_days VALUES (7, ?1 - 399, 1, 0, 0), (7, ?1, 1, 0, 0)", today),
		)
		must(t, s.purge(t.Context(), testTime))
		must(t, newLedger(s, 0).purge(t.Context(), testTime))
		wantRows(t, s, "idempotency", 3)
		wantRows(t, s, "usage_days", 2)
		wantPets(t, s, 1)
	})
}

// fieldsOfAPet are the fields of NewPet: the column of each, a value, and what the column holds.
var fieldsOfAPet = map[string]struct {
	column        string
	value, stored any
}{
	"Name":       {"name", "Ada", "Ada"},
	"CategoryID": {"category_id", int64(-7), int64(-7)},
	"Status":     {"status", Sold, int64(4)},
}

// TestEveryColumnOfAPetIsWrittenAndRead: a new field needs its column in each statement, in the row
// that is bound, and where a row is read to. What was forgotten is named, with its field.
func TestEveryColumnOfAPetIsWrittenAndRead(t *testing.T) {
	for i := range reflect.TypeFor[NewPet]().NumField() {
		name := reflect.TypeFor[NewPet]().Field(i).Name
		field, isKnown := fieldsOfAPet[name]
		if !isKnown {
			t.Errorf("NewPet.%s has no column in fieldsOfAPet", name)
			continue
		}
		s := newStore(t)
		pet := rex
		reflect.ValueOf(&pet).Elem().Field(i).Set(reflect.ValueOf(field.value))
		_, err := s.createPet(1, pet)
		var n int64
		if err == nil {
			stored := sqlOf("SELECT count(*) FROM pets WHERE "+field.column+" = ?", field.stored)
			_, err = s.readInto(t.Context(), stored, &n)
		}
		if n != 1 {
			t.Errorf("NewPet.%s is missing in insertPets or NewPet.row: %v", name, err)
		}
		mustWrite(t, s, sqlOf("DELETE FROM pets"),
			sqlOf("INSERT INTO pets (name, category_id, status) VALUES ('Rex', 1, 2)"),
			sqlOf("UPDATE pets SET id = 1, "+field.column+" = ?", field.stored))
		readPet := s.petReader()
		var read any
		err = s.read(t.Context(), sqlOf(petQuery, int64(1)), func(scan scanner) error {
			found, err := readPet(scan)
			if found != nil {
				read = reflect.ValueOf(found.NewPet).Field(i).Interface()
			}
			return err
		})
		if read != field.value {
			t.Errorf("NewPet.%s is missing in readPets or petReader: %v", name, err)
		}
	}
}
