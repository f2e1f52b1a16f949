package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sqlite3 "modernc.org/sqlite/lib"
)

// waitingContext calls a function when somebody first waits for its end: here, a write that has
// found another program's lock.
type waitingContext struct {
	context.Context
	waits func()
}

func (c waitingContext) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// whenWaiting is a context in which the first wait calls do.
func whenWaiting(ctx context.Context, do func()) context.Context {
	return waitingContext{ctx, sync.OnceFunc(do)}
}

// TestOpeningWaitsForALock: to change the journal's mode, or the schema.
func TestOpeningWaitsForALock(t *testing.T) {
	for what, mode := range map[string]string{
		"of a file not in WAL mode":    "DELETE",
		"of a file without our tables": "WAL",
	} {
		t.Run(what, func(t *testing.T) {
			path := databasePath(t)
			other := otherProgram(t, path, "PRAGMA journal_mode="+mode, "PRAGMA user_version=0",
				"BEGIN IMMEDIATE")
			ctx, cancel := context.WithCancel(t.Context())
			_, err := openStore(whenWaiting(ctx, cancel), path, openOrMake, testLog)
			wantRefusal(t, err, path, "context canceled")
			s, err := openStore(whenWaiting(t.Context(), func() {
				_, err := other.Exec("ROLLBACK")
				must(t, err)
			}), path, openOrMake, testLog)
			must(t, err)
			defer s.Close()
			mustCreate(t, s, rex)
		})
	}
}

// TestOpeningWaitsForALockOnAFileThatIsReplaced, as by a restore: it goes on with the new one, and
// migrates that.
func TestOpeningWaitsForALockOnAFileThatIsReplaced(t *testing.T) {
	for version := 1; version <= len(migrations); version++ {
		t.Run(fmt.Sprint("by one of version ", version), func(t *testing.T) {
			path, copied := databasePath(t), databasePath(t)
			must(t, openDatabase(t, path).Close())
			makeOtherDatabase(t, copied, slices.Concat(migrations[:version], []string{
				applicationMark, fmt.Sprint("PRAGMA user_version = ", version),
				"INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Rex')",
			})...)
			other := otherProgram(t, path, "PRAGMA journal_mode=DELETE", "BEGIN IMMEDIATE")
			s, err := openStore(whenWaiting(t.Context(), func() {
				must(t, other.Close())
				must(t, os.Rename(copied, path))
			}), path, openExisting, testLog)
			must(t, err)
			defer s.Close()
			wantNextID(t, s, 2)
			version := readNumber(t, s, "SELECT user_version FROM pragma_user_version")
			if version != int64(len(migrations)) {
				t.Errorf("the schema is version %d", version)
			}
		})
	}
}

// TestOpeningNeedsNoLock: a service that writes all the time keeps no command out.
func TestOpeningNeedsNoLock(t *testing.T) {
	s := newStore(t)
	mustCreate(t, s, rex)
	defer lockDatabase(t, s)()
	stuck := func() { t.Fatal("it waits for the lock") }
	command, err := openStore(whenWaiting(t.Context(), stuck), fileEngine(s).path, openExisting,
		testLog)
	must(t, err)
	defer command.Close()
	wantPets(t, command, 1)
}

// lockedError is SQLite's error of a database that another program has locked.
func lockedError(t *testing.T) error {
	t.Helper()
	path := databasePath(t)
	otherProgram(t, path, "BEGIN IMMEDIATE")
	other := openPool(path)
	defer other.Close()
	_, err := other.Exec("BEGIN IMMEDIATE")
	if !isCode(err, sqlite3.SQLITE_BUSY) || isCode(errors.New("database is locked")) {
		t.Fatalf("a locked database is not told from others: %v", err)
	}
	return err
}

// TestTheWaitForALock is by a clock of its own: how long, how often, and what ends it.
func TestTheWaitForALock(t *testing.T) {
	const never = time.Hour
	busy := lockedError(t)
	broken := errors.New("broken")
	stopped := errors.New("stopped")
	for what, wait := range map[string]struct {
		freed    time.Duration
		then     error         // when the lock is free
		stopped  time.Duration // by the caller; 0: never
		deadline time.Duration // of the caller, in the place of the usual wait; 0: none
		takes    time.Duration
		want     error
	}{
		"a lock that nobody has":         {},
		"a lock freed between two tries": {freed: 5*lockPoll + 1, takes: 6 * lockPoll},
		"a lock freed at the last try":   {freed: serviceWait, takes: serviceWait},
		"a lock freed too late":          {freed: serviceWait + 1, takes: serviceWait, want: busy},
		"another error behind a lock": {
			freed: 3 * lockPoll, then: broken, takes: 3 * lockPoll, want: broken,
		},
		"a caller that gives up": {
			freed: never, stopped: 20*lockPoll + 1, takes: 20*lockPoll + 1, want: stopped,
		},
		"a caller with more time": {
			freed: 3 * serviceWait, deadline: 4 * serviceWait, takes: 3 * serviceWait,
		},
		"a caller with less time": {
			freed: serviceWait, deadline: 7*lockPoll + 1, takes: 7*lockPoll + 1,
			want: context.DeadlineExceeded,
		},
		"a caller with time that gives up": {
			freed: never, stopped: 20*lockPoll + 1, deadline: 4 * serviceWait,
			takes: 20*lockPoll + 1, want: stopped,
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				if wait.deadline != 0 {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, wait.deadline)
					defer cancel()
				}
				if wait.stopped != 0 {
					time.AfterFunc(wait.stopped, func() { stop(stopped) })
				}
				start := time.Now()
				tries := time.Duration(0)
				err := untilUnlocked(ctx, serviceWait, func() error {
					tries++
					if time.Since(start) < wait.freed {
						return busy
					}
					return wait.then
				})
				took := time.Since(start)
				if !errors.Is(err, wait.want) || took != wait.takes {
					t.Errorf("it returns %v after %v, want %v after %v", err, took,
						wait.want, wait.takes)
				}
				if want := wait.takes/lockPoll + 1; tries != want {
					t.Errorf("it tries %d times, want %d", tries, want)
				}
			})
		})
	}
}

// TestCommandsRefuseADatabaseThatHasLostItsLog under a running service. They would make another
// log, report success, and damage the database. The service loses nothing that it has confirmed.
func TestCommandsRefuseADatabaseThatHasLostItsLog(t *testing.T) {
	for _, removed := range [][]string{
		{"-wal"}, {"-shm"}, {"-wal", "-shm"}, {"-wal", "-shm", "-lock"},
	} {
		for _, checkpointed := range []bool{false, true} {
			t.Run(fmt.Sprint(removed, checkpointed), func(t *testing.T) {
				t.Parallel()
				p := startProcess(t)
				path := p.Args[len(p.Args)-1]
				post := func(status int) {
					t.Helper()
					response, body := send(t, "POST", p.address+"/pets", p.key,
						`{"name":"Rex","categoryId":1}`)
					if response.StatusCode != status {
						t.Errorf("a create says %s %s", response.Status, body)
					}
				}
				for range 3 {
					post(201)
				}
				if checkpointed {
					must(t, otherProgram(t, path, "PRAGMA wal_checkpoint(TRUNCATE)").Close())
				}
				for _, suffix := range removed {
					must(t, os.Remove(path+suffix))
				}
				post(503) // and has the log brought into the database
				before := filesIn(t, filepath.Dir(path))
				copied := filepath.Join(t.TempDir(), "copy.db")
				const gone = "a program has it open, and its -wal or -shm is gone"
				var running sync.WaitGroup
				for _, args := range [][]string{
					{"key", "list"}, {"key", "create"}, {"pet", "export", "-"}, {"backup", copied},
					{"pet", "set", "1", "-name", "x"}, {"restore", madeDatabase(t)},
				} {
					running.Go(func() {
						_, _, err := petstore(t, nil, append(args, "-db", path)...)
						wantRefusal(t, err, path, gone)
					})
				}
				running.Wait()
				_, err := openStore(t.Context(), path, openToServe, testLog)
				wantRefusal(t, err, path, gone)
				wantSameFiles(t, before, filesIn(t, filepath.Dir(path)))
				must(t, p.Process.Signal(os.Interrupt))
				last := ""
				for p.log.Scan() {
					last = p.log.Text()
				}
				for _, says := range []string{"the usage counted last is not stored",
					"all that was confirmed is in the database"} {
					if !strings.Contains(last, says) {
						t.Errorf("at the end it says %q, want %q", last, says)
					}
				}
				if err := p.Wait(); p.ProcessState.ExitCode() != 1 {
					t.Errorf("it ends with %v", err)
				}
				db := soundDatabase(t, path)
				if pets := numberIn(t, db, "SELECT count(*) FROM pets"); pets != 3 {
					t.Errorf("%d pets are left", pets)
				}
			})
		}
	}
}

// TestAnotherIndexOfTheLogLosesNothing: where a program has made another -shm under a running
// service, the service leaves the log alone, which holds what both have stored.
func TestAnotherIndexOfTheLogLosesNothing(t *testing.T) {
	p := startProcess(t)
	path := p.Args[len(p.Args)-1]
	post := func() (status int) {
		response, _ := send(t, "POST", p.address+"/pets", p.key, `{"name":"Rex","categoryId":1}`)
		return response.StatusCode
	}
	if status := post(); status != 201 {
		t.Fatalf("the first create has the status %d", status)
	}
	must(t, os.Remove(path+"-shm"))
	other := otherProgram(t, path,
		"INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'x')")
	must(t, other.Close())
	if status := post(); status != 503 {
		t.Errorf("a create beside another index has the status %d", status)
	}
	must(t, p.Process.Signal(os.Interrupt))
	for p.log.Scan() { // to its end
	}
	_ = p.Wait()
	if pets := numberIn(t, soundDatabase(t, path), "SELECT count(*) FROM pets"); pets != 2 {
		t.Errorf("%d pets are left", pets)
	}
}

// TestCommandsMeetWithoutALog: where no service runs, each of many that begin at once finds no log,
// and may look for one that another has lost. A file that is not in WAL mode has none.
func TestCommandsMeetWithoutALog(t *testing.T) {
	path := madeDatabase(t)
	var running sync.WaitGroup
	for range 6 {
		running.Go(func() {
			for range 8 {
				wantExit(t, program(t, "key", "list", "-db", path), 0, "^$")
			}
		})
	}
	running.Wait()
	locked := otherProgram(t, path, "PRAGMA journal_mode=DELETE", "BEGIN EXCLUSIVE")
	must(t, refuseLostLog(t.Context(), path))
	must(t, locked.Close())
}
