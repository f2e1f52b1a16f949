package main

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// gatedEngine is an engine whose writes wait at a gate.
type gatedEngine struct {
	engine
	arrived chan bool // has an element once a write waits
	opened  chan bool // is closed to let all writes pass
}

func (g *gatedEngine) write(ctx context.Context, statements []statement) ([]result, error) {
	select {
	case g.arrived <- true:
	default:
	}
	<-g.opened
	return g.engine.write(ctx, statements)
}

// gateWrites puts a gate before the store's engine. It is opened at the end of the test at the
// latest, or the store could not be closed.
func gateWrites(t testing.TB, s *store) (gate *gatedEngine, open func()) {
	gate = &gatedEngine{s.engine, make(chan bool, 1), make(chan bool)}
	s.engine = gate
	open = sync.OnceFunc(func() { close(gate.opened) })
	t.Cleanup(open)
	return gate, open
}

// writeTogether starts the writes so that all but the first share a transaction: they join it one
// after the other, while the first is held up in the engine.
func writeTogether(t testing.TB, s *store, writes ...func() error) []error {
	t.Helper()
	gate, open := gateWrites(t, s)
	errs := make([]error, len(writes))
	var wg sync.WaitGroup
	for i, write := range writes {
		before := nextTransaction(s)
		wg.Go(func() { errs[i] = write() })
		if i == 0 {
			<-gate.arrived
			continue
		}
		for nextTransaction(s) == before {
			runtime.Gosched()
		}
	}
	open()
	wg.Wait()
	s.engine = gate.engine
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
		_, err := s.createPet(NewPet{Name: name, CategoryID: 1, Status: Sold})
		return err
	}
}

// writing is a write of statements.
func writing(s *store, statements ...statement) func() error {
	return func() error { return errorOf(s.write(context.Background(), statements...)) }
}

func TestAFailingStatementFailsItsWholeTransactionAndNoOther(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		broken := writing(s, sqlOf("UPDATE usage SET id = 1"),
			sqlOf("INSERT INTO pets (category_id, status, name) VALUES (1, 9, 'x')"))
		errs := writeTogether(t, s,
			creating(s, "before"), creating(s, "with"), broken, creating(s, "with"))
		must(t, errs[0])
		for _, err := range errs[1:] {
			if !errors.Is(err, errUnavailable) || !strings.Contains(err.Error(), "CHECK") {
				t.Errorf("a write of the failed transaction says %v", err)
			}
		}
		if n := s.commitsFailed.Load(); n != 1 {
			t.Errorf("%d commits count as failed, want 1", n)
		}
		for _, query := range []string{"no SQL", "INSERT INTO usage VALUES (?)"} {
			if err := writing(s, sqlOf(query))(); !errors.Is(err, errUnavailable) {
				t.Errorf("%s: %v", query, err)
			}
		}
		must(t, creating(s, "after")())
		_, p := pageIDs(t, s, "", 20, 0)
		if got := string(p.body); strings.Contains(got, "with") || strings.Count(got, "name") != 2 {
			t.Errorf("stored are %s", got)
		}
	})
}

// TestPetsOfOneBatchGetTheirOwnIDs, whatever else is in their transaction.
func TestPetsOfOneBatchGetTheirOwnIDs(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
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
				ids[i], err = s.createPet(pets[i])
				return err
			}
			if i%5 == 4 {
				create = func() (err error) {
					ids[i], _, _, err = s.createPetOnce(pets[i], 1, fmt.Sprint(i), nil, testTime)
					return err
				}
			}
			writes = append(writes, create, writing(s, saveUsage(int64(i), &usage{})))
		}
		transactions, counted := commitsOf(s), s.commitSizes.sum.Load()
		for _, err := range writeTogether(t, s, writes...) {
			must(t, err)
		}
		if n := commitsOf(s) - transactions; n != 2 {
			t.Errorf("they took %d transactions, want 2", n)
		}
		if n := s.commitSizes.sum.Load() - counted; n != int64(len(writes)) {
			t.Errorf("the metrics count %d requests, want %d", n, len(writes))
		}
		for i, id := range ids {
			if got := readPet(t, s, id).NewPet; got != pets[i] {
				t.Errorf("pet %d has the id %d, which is %+v", i, id, got)
			}
		}
		slices.Sort(ids)
		usages := readNumber(t, s, "SELECT count(*) FROM usage")
		if n := len(slices.Compact(ids)); n != 25 || countPets(t, s) != 25 || usages != 25 {
			t.Errorf("%d ids, %d pets, and %d usages are stored", n, countPets(t, s), usages)
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

// TestTheOrderOfAnInsertIsPromised, and not only what SQLite happens to do: each caller gets its
// own id, and an import keeps its order, in whatever order SQL finds the rows.
func TestTheOrderOfAnInsertIsPromised(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		s.engine = shufflingEngine{s.engine}
		ids := make([]int64, 20)
		var creates []func() error
		for i := range ids {
			creates = append(creates, func() (err error) {
				ids[i], err = s.createPet(NewPet{Name: fmt.Sprint(i), Status: Sold})
				return err
			})
		}
		for _, err := range writeTogether(t, s, creates...) {
			must(t, err)
		}
		for i, id := range ids {
			if name := readPet(t, s, id).Name; name != fmt.Sprint(i) {
				t.Errorf("pet %d has the id %d, which is pet %s", i, id, name)
			}
		}
		var rows []string
		for i := range ids {
			rows = append(rows, rowOf(NewPet{Name: fmt.Sprint(i), Status: Sold}))
		}
		must(t, s.importPets(t.Context(), "digest", rows, 0, int64(len(rows))))
		for i := range ids {
			if name := readPet(t, s, int64(len(ids)+i+1)).Name; name != fmt.Sprint(i) {
				t.Errorf("of the import, pet %d is pet %s", i, name)
			}
		}
	})
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
		pageIDs(t, s, "", maxLimit, 0)
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
		if ids, _ := pageIDs(t, s, "", maxLimit, 0); len(ids) != 3 {
			t.Errorf("%s: %d pets are listed, want 3", what, len(ids))
		}
	}
}

// TestAFullTransactionRefusesWritesAtOnce: a disk that hangs does not fill the memory with
// requests.
func TestAFullTransactionRefusesWritesAtOnce(t *testing.T) {
	s := newStore(t)
	gate, open := gateWrites(t, s)
	const refused = 3
	errs := make(chan error, maxCallers+1+refused)
	start := func(write func() error) { go func() { errs <- write() }() }
	start(creating(s, "Rex"))
	<-gate.arrived
	for range maxCallers + refused {
		start(creating(s, "Rex"))
	}
	wantRefused := func() {
		t.Helper()
		select {
		case err := <-errs:
			if !errors.Is(err, errUnavailable) {
				t.Errorf("a write after %d others says %v", maxCallers, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("a write after %d others waits", maxCallers)
		}
	}
	for range refused {
		wantRefused()
	}
	start(writing(s, saveUsage(1, &usage{})))
	wantRefused()
	open()
	for range maxCallers + 1 {
		must(t, <-errs)
	}
	wantPets(t, s, maxCallers+1)
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
		for range 4000 {
			wg.Go(func() {
				if err := creating(s, "Rex")(); !errors.Is(err, errUnavailable) {
					t.Errorf("a create says %v", err)
				}
			})
		}
		wg.Wait()
		if longest := time.Since(start); longest > 2*leaderWait {
			t.Errorf("the last to be told waits %v", longest)
		}
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
	if panicked != "in the driver" || !errors.Is(errs[2], errUnavailable) {
		t.Errorf("the leader sees the panic %v, and its follower %v", panicked, errs[2])
	}
	must(t, creating(s, "Max")())
	if n := readNumber(t, s, "SELECT count(*) FROM usage"); n != 0 {
		t.Error("the transaction that panicked is stored")
	}
	// The connection in which the driver panicked cannot be closed; nobody waits for it.
	must(t, s.Close())
	if err := creating(s, "Tom")(); !errors.Is(err, errUnavailable) {
		t.Errorf("closed, createPet says %v", err)
	}
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
	setLockWait(s, 20*time.Millisecond)
	defer lockDatabase(t, s)()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	leader := func() error { return errorOf(s.write(cancelled, sqlOf("DELETE FROM usage"))) }
	for i, err := range writeTogether(t, s, creating(s, "Rex"), leader, creating(s, "Max")) {
		if !errors.Is(err, errUnavailable) || errors.Is(err, context.Canceled) {
			t.Errorf("write %d says %v, want only that the lock was held too long", i, err)
		}
	}
}
