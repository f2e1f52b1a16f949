package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sqlite3 "modernc.org/sqlite/lib"
)

func TestANewDatabaseIsMarked(t *testing.T) {
	db := fileEngine(newStore(t)).reader
	wantEqual(t, numberIn(t, db, "PRAGMA user_version"), int64(len(migrations)), "the version")
	wantEqual(t, numberIn(t, db, "PRAGMA application_id"), 0x70657473, "the mark")
	const loose = "SELECT count(*) FROM pragma_table_list " +
		"WHERE strict = 0 AND name NOT LIKE 'sqlite%'"
	wantEqual(t, numberIn(t, db, loose), 0, "the number of tables that are not STRICT")
}

// TestAClosedDatabaseIsOneFile: an operator may copy it when the service has stopped. Its lock is
// empty.
func TestAClosedDatabaseIsOneFile(t *testing.T) {
	s := newStore(t)
	createOnce(t, s, 1, "Rex", testTime)
	pageIDs(t, s, "", 20, 0)
	must(t, s.Close())
	files := filesIn(t, filepath.Dir(fileEngine(s).path))
	if len(files) != 2 || files["pets.db-lock"] != "" {
		t.Errorf("closed, the database is %d files", len(files))
	}
	copied := databasePath(t)
	writeText(t, copied, files["pets.db"])
	wantPets(t, openDatabase(t, copied), 1)
}

// wantNotOpened checks that a database is not opened, in one line that names it and says why.
func wantNotOpened(t testing.TB, path string, mode openMode, why string) {
	t.Helper()
	_, err := openStore(t.Context(), path, mode, testLog)
	wantRefusal(t, err, path, why)
}

// allModes are those that open a file, or make it.
var allModes = []openMode{openExisting, openOrMake, openToServe}

// wantFileRefused checks that a database is refused in one line, and that its folder is left as it
// was, but for an empty file in the place of a missing one.
func wantFileRefused(t *testing.T, path, want string, modes ...openMode) {
	t.Helper()
	before := filesIn(t, filepath.Dir(path))
	for _, mode := range modes {
		wantNotOpened(t, path, mode, want)
	}
	after := filesIn(t, filepath.Dir(path))
	if after[filepath.Base(path)] == "" {
		before[filepath.Base(path)] = after[filepath.Base(path)]
	}
	wantSameFiles(t, before, after)
}

func TestAFileThatIsNotOursIsRefusedAndLeftAsItWas(t *testing.T) {
	for content, want := range map[string]string{
		strings.Repeat("no database\n", 300): "not a database",
		"hello\n":                            "not a database",
		"SQLite format 3\x00":                "not a database",
	} {
		path := databasePath(t)
		writeText(t, path, content)
		wantFileRefused(t, path, want, allModes...)
	}
	words := strings.NewReplacer(
		"TABLES", strings.Join(migrations, ";"),
		"MARK", applicationMark,
		"NEWER", fmt.Sprint("PRAGMA user_version = ", len(migrations)+1),
		"OTHERS", "it belongs to another program",
		"KNOWN", fmt.Sprintf("knows only %d; use a newer petstore", len(migrations)),
		"ODD", "which no petstore writes",
	)
	for row, want := range rowsOf(t, `
		CREATE TABLE pets (name) => OTHERS
		PRAGMA journal_mode=WAL; CREATE TABLE recipes (name) => OTHERS
		TABLES; PRAGMA application_id = 5 => OTHERS
		PRAGMA user_version = 3 => OTHERS
		PRAGMA user_version = -1 => OTHERS
		MARK; NEWER => KNOWN
		TABLES; MARK => version 0, ODD
		TABLES; MARK; PRAGMA user_version = -1 => version -1, ODD`) {
		statements := words.Replace(row)
		path := databasePath(t)
		makeOtherDatabase(t, path, statements)
		wantFileRefused(t, path, words.Replace(want), allModes...)
	}
}

// TestAServiceThatMayNotWriteToItsLogDoesNotStart: SQLite would open it for reading, and every
// write fail, also when it could be written to again.
func TestAServiceThatMayNotWriteToItsLogDoesNotStart(t *testing.T) {
	killed := newStore(t)
	mustCreate(t, killed, rex)
	path := databasePath(t)
	copyDatabase(t, fileEngine(killed).path, path)
	must(t, os.Mkdir(path+"-shm", 0o700))
	wantNotOpened(t, path, openToServe, path+"-shm")
}

// TestAFileThatIsOnlyLookedAtGetsNothingBesideIt: neither another program's database nor a copy
// that is to be restored, which may stand where nobody can write.
func TestAFileThatIsOnlyLookedAtGetsNothingBesideIt(t *testing.T) {
	path := databasePath(t)
	makeOtherDatabase(t, path, "PRAGMA journal_mode=WAL", "CREATE TABLE recipes (name)")
	wantError(t, errorOf(checkOwner(t.Context(), path)), errForeign,
		"another program's database")
	names, err := filepath.Glob(path + "*")
	must(t, err)
	wantEqual(t, names, []string{path}, "what is there")
}

func TestAPlaceWithoutADatabaseIsRefused(t *testing.T) {
	const made, missing = "petstore makes it at its first start", "no such file"
	dir := t.TempDir()
	wantNotOpened(t, filepath.Join(dir, "pets.db"), openExisting, made)
	wantMissing(t, filepath.Join(dir, "pets.db"))
	wantFileRefused(t, dir, "is a directory", allModes...)
	for mode, want := range map[openMode]string{
		openExisting: made,
		openOrMake:   missing,
		openToServe:  missing,
	} {
		wantNotOpened(t, filepath.Join(dir, "no", "pets.db"), mode, want)
	}
}

// TestALogWithoutItsDatabaseIsKept: it may hold what is nowhere else, when the database was moved
// away under a service or after a kill. SQLite would follow a link and delete the log.
func TestALogWithoutItsDatabaseIsKept(t *testing.T) {
	for _, state := range []string{"missing", "empty"} {
		link, target := linksToDatabase(t)
		writeText(t, target+"-wal", "pets")
		want := map[string]string{"pets.db-wal": "pets"}
		if state == "empty" {
			writeText(t, target, "")
			want["pets.db"] = ""
		}
		for _, mode := range []openMode{openOrMake, openToServe} {
			for _, path := range []string{link, target} {
				wantNotOpened(t, path, mode, "if a service runs, do not stop it before its log "+
					"names a copy; otherwise put the file back")
			}
		}
		wantSameFiles(t, want, filesIn(t, filepath.Dir(target)))
	}
}

// TestADatabaseOfWhichASyncHasFailedIsLeftAlone until its file systems were mounted anew, with the
// machine or by an operator, who then deletes the mark.
func TestADatabaseOfWhichASyncHasFailedIsLeftAlone(t *testing.T) {
	sc := newScene(t)
	boot := bootID()
	wantEqual(t, boot != "", runtime.GOOS == "linux", "whether a boot has an id")
	for _, mark := range []string{boot, "", "another"} {
		writeText(t, sc.db+"-failed", mark)
		wantFileRefused(t, sc.db, "mount it again, and then delete", openOrMake, openToServe)
		_, err := sc.restore(t.Context())
		wantPart(t, fmt.Sprint(err), "copy it to another disk", "the restore")
	}
	writeText(t, sc.db+"-failed", strings.Repeat("0", 36))
	if boot != "" {
		openDatabase(t, sc.db)
		wantMissing(t, sc.db+"-failed")
	}
	// A link is a mark, too, wherever it leads.
	_ = os.Remove(sc.db + "-failed") // if it could not be compared
	must(t, os.Symlink("nowhere", sc.db+"-failed"))
	wantFileRefused(t, sc.db, "mount it again, and then delete", openOrMake, openToServe)
	must(t, markFailed(sc.db))
	wantMissing(t, filepath.Join(sc.folder, "nowhere"))
	// Nothing is made beside a mark.
	lost := databasePath(t)
	writeText(t, lost+"-failed", boot)
	wantNotOpened(t, lost, openOrMake, "mount it again")
	wantMissing(t, lost)
}

// TestAMarkThatCannotBeReadHoldsTheLog where it is, and is not taken for a mark: writing goes on.
func TestAMarkThatCannotBeReadHoldsTheLog(t *testing.T) {
	s := newStore(t)
	mustCreate(t, s, rex)
	e := fileEngine(s)
	moves := func() bool {
		e.busy <- struct{}{}
		defer func() { <-e.busy }()
		_, areMoved := e.checkpoint("PASSIVE")
		return areMoved
	}
	must(t, os.Mkdir(e.path+"-failed", 0o700))
	wantEqual(t, moves(), false, "whether the log is moved beside what may be a mark")
	mustCreate(t, s, rex)
	must(t, os.Remove(e.path+"-failed"))
	wantEqual(t, moves(), true, "whether it is moved afterwards")
}

// TestAFailedSyncEndsAllWriting until the next mount. What can be read is read, and the log, which
// alone is sure to hold what was confirmed, is left as it is.
func TestAFailedSyncEndsAllWriting(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.stock(3)
	e := fileEngine(s.store)
	logged := &logBuffer{}
	e.log = slog.New(slog.NewTextHandler(logged, nil))
	log := readText(t, e.path+"-wal")
	e.fail(errors.New("the disk"))
	wantEqual(t, readText(t, e.path+"-failed"), bootID(), "the mark")
	wantCount(t, logged.String(), "copy it to another disk with petstore backup", 1, "the log")

	s.post(rexBody).is(503, CodeUnavailable)
	wantError(t, creating(s.store, "Rex")(), errFailedSync, "a create")
	wantError(t, s.service.checkReady(), errFailedSync, "the check of readiness")
	wantError(t, s.service.ledger.flush(t.Context(), time.Now, false), errFailedSync, "a flush")
	s.list("?limit=3").lists(1, 2, 3)
	stats, body := s.stats()
	wantEqual(t, stats.Metrics["petstore_sync_failed"], 1, "the metric")
	wantPart(t, body, `"alert":"PetstoreSyncFailed"`, "the verdict")
	wantCount(t, logged.String(), "\n", 1, "the log")

	must(t, s.store.Close())
	wantEqual(t, readText(t, e.path+"-wal"), log, "the log of the database after the stop")
	wantNotOpened(t, e.path, openToServe, "mount it again")
}

// TestTheMarkOfAnotherProgramEndsAllWriting before anything is moved from the log. The transactions
// before are durable.
func TestTheMarkOfAnotherProgramEndsAllWriting(t *testing.T) {
	s := newStore(t)
	e := fileEngine(s)
	must(t, markFailed(e.path))
	e.commits = askLogEach - 1
	mustCreate(t, s, rex)
	wantError(t, creating(s, "Tom")(), errFailedSync, "a create after the look at the log")

	path := databasePath(t)
	s = openDatabase(t, path)
	mustCreate(t, s, rex)
	must(t, markFailed(path))
	log := readText(t, path+"-wal")
	must(t, s.Close())
	wantEqual(t, readText(t, path+"-wal"), log, "the log after a command")
}

// TestTheLogIsMovedByTheProgram from 1,000 pages on, and begins anew then. Beside who reads an
// older state it goes on, and is cut when it begins anew.
func TestTheLogIsMovedByTheProgram(t *testing.T) {
	takesSeconds(t)
	s := newStore(t)
	e := fileEngine(s)
	logSize := func() int64 {
		info, err := os.Stat(e.path + "-wal")
		must(t, err)
		return info.Size()
	}
	grow := sqlOf("INSERT INTO pets (category_id, status, name) VALUES (1, 2, ?)",
		strings.Repeat("x", 100_000))
	for range 4 * askLogEach {
		mustWrite(t, s, grow)
	}
	const page = 4096
	wantWithin(t, logSize(), logPages*page, 3*logPages*page)

	// The first page of the log was read, and stays needed.
	reader := otherProgram(t, e.path, "BEGIN", "SELECT * FROM pets LIMIT 1")
	grow.args[0] = strings.Repeat("x", 20<<20)
	for range 4 {
		mustWrite(t, s, grow)
	}
	wantWithin(t, logSize(), 80<<20, 90<<20)
	must(t, reader.Close())
	for range 2 * askLogEach {
		mustCreate(t, s, rex)
	}
	wantEqual(t, logSize(), 64<<20, "the size of the log")
}

// TestALogThatIsReadIsLeftByAStop: SQLite would move the rest later, and drop the error.
func TestALogThatIsReadIsLeftByAStop(t *testing.T) {
	path := databasePath(t)
	s := openDatabaseFor(t, path, openToServe)
	mustCreate(t, s, rex)
	reader := otherProgram(t, path, "BEGIN", "SELECT * FROM pets")
	mustCreate(t, s, rex)
	log := readText(t, path+"-wal")
	must(t, s.Close())
	must(t, reader.Close())
	wantEqual(t, readText(t, path+"-wal"), log, "the log after a stop")
	wantPets(t, openDatabase(t, path), 2)
}

// wantServed checks that no second service is let onto a database.
func wantServed(t *testing.T, path string) {
	t.Helper()
	wantNotOpened(t, path, openToServe, "a petstore serves it")
}

func TestADatabaseBehindALinkIsTheSameDatabase(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	path, link := databasePath(t), databasePath(t)
	must(t, os.Symlink(path, link))
	s := openDatabaseFor(t, path, openToServe)
	wantServed(t, link)
	must(t, s.Close())
	s = openDatabaseFor(t, link, openToServe)
	mustCreate(t, s, rex)
	// The link only leads to the file: when it is gone, the file is the same.
	must(t, os.Remove(link))
	writeText(t, link, "another")
	mustCreate(t, s, rex)
	must(t, s.Close())
	wantPets(t, openDatabase(t, path), 2)
	wantSameFiles(t, map[string]string{"pets.db": "another"}, filesIn(t, filepath.Dir(link)))
}

// TestTheFolderAboveALinkIsTheOneThatTheKernelFinds: by the words of the path, it would be another.
func TestTheFolderAboveALinkIsTheOneThatTheKernelFinds(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	dir, folder := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(filepath.Join(folder, "in"), 0o700))
	must(t, os.Symlink(filepath.Join(folder, "in"), filepath.Join(dir, "link")))
	above := filepath.Join(dir, "link") + filepath.FromSlash("/../pets.db")
	s := openDatabaseFor(t, above, openToServe)
	mustCreate(t, s, rex)
	wantServed(t, filepath.Join(folder, "pets.db"))
	must(t, s.Close())
	wantPets(t, openDatabase(t, above), 1)
}

// TestTheFolderAboveThatOfTheProcess: it is the one that the kernel finds, too. A shell's $PWD may
// lead through a link.
func TestTheFolderAboveThatOfTheProcess(t *testing.T) {
	dir, folder := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(filepath.Join(folder, "in"), 0o700))
	must(t, os.Symlink(filepath.Join(folder, "in"), filepath.Join(dir, "link")))
	t.Chdir(filepath.Join(dir, "link")) // and $PWD
	s := openDatabaseFor(t, filepath.FromSlash("../pets.db"), openToServe)
	mustCreate(t, s, rex)
	wantServed(t, filepath.Join(folder, "pets.db"))
}

// TestALinkMayLeadToNoDatabaseYet: what is made stands where the link leads, its log and its lock
// beside it.
func TestALinkMayLeadToNoDatabaseYet(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	first, target := linksToDatabase(t)
	wantFileRefused(t, first, "petstore makes it at its first start", openExisting)
	links := filesIn(t, filepath.Dir(first))
	s := openDatabaseFor(t, first, openToServe)
	mustCreate(t, s, rex)
	wantSameFiles(t, links, filesIn(t, filepath.Dir(first)))
	made := filesIn(t, filepath.Dir(target))
	if len(made) != 3 || made["pets.db-wal"] == "" {
		t.Errorf("where the links lead, %d files are made", len(made))
	}
	wantServed(t, target)
	wantPets(t, openDatabase(t, target), 1)
}

// TestALockThatIsNoEmptyFileIsRefused, and the file that a link in its place leads to stays as it
// is: root must not be led to change it.
func TestALockThatIsNoEmptyFileIsRefused(t *testing.T) {
	for what, isLink := range map[string]bool{"a link": true, "a file with content": false} {
		t.Run(what, func(t *testing.T) {
			path, victim := madeDatabase(t), databasePath(t)
			makeOtherDatabase(t, victim, "PRAGMA journal_mode=WAL", "CREATE TABLE t (a)")
			before := readText(t, victim)
			if isLink {
				must(t, os.Symlink(victim, path+"-lock"))
			} else {
				writeText(t, path+"-lock", before)
			}
			wantNotOpened(t, path, openToServe, "-lock is not the empty file")
			wantEqual(t, readText(t, victim) == before, true, "that the other file is as it was")
		})
	}
}

func TestLinksInACircleAreRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pets.db")
	must(t, os.Symlink("other.db", path))
	must(t, os.Symlink("pets.db", filepath.Join(dir, "other.db")))
	wantFileRefused(t, path, "is no regular file, and a link there is not followed", allModes...)
	if err := backUp(t.Context(), newStore(t), path); err == nil {
		t.Error("a circle of links takes a backup")
	}
}

// wantNoCreate checks that nothing can be stored, and why.
func wantNoCreate(t *testing.T, s *store, why string) {
	t.Helper()
	_, err := s.createPet(1, rex)
	wantError(t, err, errUnavailable, "a create")
	wantPart(t, fmt.Sprint(err), why, "the error")
}

// TestNothingIsWrittenToAFileThatWasRemovedOrReplaced: what is written there would be gone with the
// process. What can be read is read all the same.
func TestNothingIsWrittenToAFileThatWasRemovedOrReplaced(t *testing.T) {
	for what, suffix := range map[string]string{
		"the database": "",
		"its log":      "-wal",
		"its lock":     "-lock",
	} {
		t.Run(what, func(t *testing.T) {
			s := newStore(t)
			mustCreate(t, s, rex)
			file := fileEngine(s).path + suffix
			wantReads := func() {
				var reading sync.WaitGroup
				for range 8 * readers {
					reading.Go(func() {
						if p, err := s.page(Sold, 20, 0); err != nil || p.last != 1 {
							t.Errorf("the list ends with %v, %v", p, err)
						}
					})
				}
				reading.Wait()
			}
			putBack := moveAway(t, file)
			wantNoCreate(t, s, "no such file")
			if suffix == "" {
				wantNoCreate(t, s, "do not stop the service before what was confirmed is saved")
			}
			wantReads()
			writeText(t, file, "another")
			wantNoCreate(t, s, file+" is not the file that was opened")
			wantReads()
			wantEqual(t, readText(t, file), "another", "the other file")
			putBack()
			wantNextID(t, s, 2)
		})
	}
}

// TestAFileThatIsMovedAwayWhileAWriteWaitsGetsNothing: the files are checked once the write has the
// lock.
func TestAFileThatIsMovedAwayWhileAWriteWaitsGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		path := fileEngine(s).path
		release := lockDatabase(t, s)
		var wrote sync.WaitGroup
		wrote.Go(func() { wantNoCreate(t, s, "no such file") })
		synctest.Wait()
		putBack := moveAway(t, path)
		release()
		wrote.Wait()
		putBack()
		wantNextID(t, s, 1)
	})
}

// TestTheLogOfAReopenedDatabaseMustStay in its place from the start on, and not only from the first
// write on.
func TestTheLogOfAReopenedDatabaseMustStay(t *testing.T) {
	path := databasePath(t)
	must(t, openDatabaseFor(t, path, openToServe).Close())
	s := openDatabaseFor(t, path, openToServe)
	moveAway(t, path+"-wal")
	writeText(t, path+"-wal", "")
	wantNoCreate(t, s, path+"-wal is not the file that was opened")
}

// TestAfterACommitThatFailsTheNextWriteIsDone: the transaction is rolled back, which SQLite itself
// does after some errors only. Otherwise nothing could be written any more.
func TestAfterACommitThatFailsTheNextWriteIsDone(t *testing.T) {
	s := newStore(t)
	for _, statement := range []string{
		"PRAGMA foreign_keys = 1",
		"CREATE TABLE visits (pet_id INTEGER REFERENCES pets DEFERRABLE INITIALLY DEFERRED)",
	} {
		_, err := fileEngine(s).conn.ExecContext(t.Context(), statement)
		must(t, err)
	}
	err := errorOf(s.write(t.Context(), sqlOf("INSERT INTO visits (pet_id) VALUES (7)")))
	wantError(t, err, errUnavailable, "the commit")
	wantNextID(t, s, 1)
}

// TestAServiceThatHasLostItsLockWritesNothing, since another one can start on the file.
func TestAServiceThatHasLostItsLockWritesNothing(t *testing.T) {
	path := databasePath(t)
	first := openDatabaseFor(t, path, openToServe)
	mustCreate(t, first, rex)
	must(t, os.Remove(path+"-lock"))
	wantNoCreate(t, first, path+"-lock: no such file")
	second := openDatabaseFor(t, path, openToServe)
	wantNoCreate(t, first, path+"-lock is not the file that was opened")
	wantNextID(t, second, 2)
}

// TestAnUnfinishedDatabaseIsFinished: a kill may leave an empty file, or one with no table and no
// mark.
func TestAnUnfinishedDatabaseIsFinished(t *testing.T) {
	empty, unmarked := databasePath(t), databasePath(t)
	writeText(t, empty, "")
	makeOtherDatabase(t, unmarked, "PRAGMA journal_mode=WAL")
	mustCreate(t, openDatabase(t, empty), rex)
	mustCreate(t, openDatabase(t, unmarked), rex)
}

func TestAPathMayHoldAnyCharacter(t *testing.T) {
	for name := range strings.SplitSeq(`a b.db|a?mode=memory.db|a#b.db|a%41b.db|a&b=c;d.db|a+b.db|`+
		`Zoë 🐈.db|a'b"c.db|no extension|file:x.db|:memory:|-wal`, "|") {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "in ?#% 🐕")
			must(t, os.Mkdir(dir, 0o700))
			path := filepath.Join(dir, name)
			s := openDatabase(t, path)
			mustCreate(t, s, rex)
			must(t, s.Close())
			files := filesIn(t, dir)
			if len(files) != 1 || !strings.HasPrefix(files[name], "SQLite format 3\x00") {
				t.Errorf("the folder holds %d files", len(files))
			}
			wantPets(t, openDatabase(t, path), 1)
		})
	}
}

// TestPragmasAreInForceOnEveryConnection: power cuts are survived by FULL only, and one reader
// without query_only could write beside the transactions.
func TestPragmasAreInForceOnEveryConnection(t *testing.T) {
	service := newStore(t)
	command := openDatabase(t, fileEngine(service).path)
	for what, s := range map[string]*store{"service": service, "command": command} {
		e := fileEngine(s)
		pragmas := func(conn *sql.Conn) (text string) {
			must(t, conn.QueryRowContext(t.Context(), `SELECT format('%s %d %d', journal_mode,
				synchronous, timeout)
				FROM pragma_journal_mode, pragma_synchronous, pragma_busy_timeout`).Scan(&text))
			return text
		}
		wantEqual(t, pragmas(e.conn), "wal 2 0", "the writer of a ", what) // it waits in Go
		var checkpoints int
		must(t, e.conn.QueryRowContext(t.Context(), "PRAGMA wal_autocheckpoint").Scan(&checkpoints))
		wantEqual(t, checkpoints, 0, "from how many pages on SQLite moves the log of a ", what)
		stats := e.reader.Stats()
		if stats.OpenConnections != readers+1 || stats.MaxOpenConnections != readers+1 {
			t.Errorf("%d readers are open from the start, %d at the most",
				stats.OpenConnections, stats.MaxOpenConnections)
		}
		for range readers {
			conn, err := e.reader.Conn(t.Context())
			must(t, err)
			defer conn.Close()
			if got := pragmas(conn); !strings.HasSuffix(got, " 500") {
				t.Errorf("a reader of a %s has %s", what, got)
			}
			if _, err := conn.ExecContext(t.Context(), "DELETE FROM pets"); err == nil {
				t.Errorf("a reader of a %s can write", what)
			}
		}
	}
	if fileEngine(service).wait != serviceWait || fileEngine(command).wait != commandWait {
		t.Error("a service waits as long for a lock as a command")
	}
}

func TestTheSizesOfTheFileAndItsLogAreMeasured(t *testing.T) {
	path := databasePath(t)
	check := func(want string) {
		t.Helper()
		x := newExposition()
		(&sqliteFile{path: path, diskSpace: diskSpace}).measure(x)
		wantEqual(t, x.lines["petstore_database_bytes"], want, "the sizes")
	}
	check("") // no file, no size
	writeText(t, path, strings.Repeat("x", 300))
	writeText(t, path+"-wal", strings.Repeat("x", 20))
	check(`petstore_database_bytes{file="database"} 300
petstore_database_bytes{file="log"} 20
`)
}

// diskNumbers are what an engine tells of its disk.
func diskNumbers(e *sqliteFile) string {
	x := newExposition()
	e.measure(x)
	return x.lines["petstore_disk_free_bytes"] + x.lines["petstore_disk_size_bytes"]
}

// TestTheDiskOfTheDatabaseIsMeasured, wherever a link leads to it from. What the system does not
// say is absent.
func TestTheDiskOfTheDatabaseIsMeasured(t *testing.T) {
	path := madeDatabase(t)
	link := databasePath(t)
	must(t, os.Symlink(path, link))
	s := openDatabase(t, link)
	defer s.Close()
	e := fileEngine(s)
	asked := ""
	e.diskSpace = func(path string) (free, size float64, ok bool) {
		asked = path
		return 30, 200, true
	}
	const want = "petstore_disk_free_bytes 30\npetstore_disk_size_bytes 200\n"
	if got := diskNumbers(e); got != want || asked != e.path || e.path == link {
		t.Errorf("of %s it tells %q, want %q", asked, got, want)
	}
	e.diskSpace = func(string) (free, size float64, ok bool) {
		return 0, 0, false
	}
	wantEqual(t, diskNumbers(e), "", "what is told of an unknown disk")
}

// TestAFileSystemThatHangsIsNotWaitedFor: it is asked once, and what it said before is shown while
// that is fresh.
func TestAFileSystemThatHangsIsNotWaitedFor(t *testing.T) {
	path := madeDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var asked atomic.Int64
		e := &sqliteFile{path: path, diskSpace: func(string) (free, size float64, ok bool) {
			n := asked.Add(1)
			if n == 2 {
				<-hang
			}
			return float64(n), 9, true
		}}
		tells := func(want string, most time.Duration) {
			t.Helper()
			began := time.Now()
			got := diskNumbers(e)
			if took := time.Since(began); got != want || took > most {
				t.Errorf("after %v it tells %q, want %q within %v", took, got, want, most)
			}
		}
		const first = "petstore_disk_free_bytes 1\npetstore_disk_size_bytes 9\n"
		tells(first, 0)
		time.Sleep(9 * time.Second)
		tells(first, time.Second)
		tells(first, 0)
		time.Sleep(time.Second)
		tells("", 0)
		wantEqual(t, asked.Load(), 2, "how often it was asked")
		close(hang)
		synctest.Wait()
		tells("petstore_disk_free_bytes 3\npetstore_disk_size_bytes 9\n", 0)
	})
}

// TestTheSystemTellsWhatADiskHas, as df does.
func TestTheSystemTellsWhatADiskHas(t *testing.T) {
	folder := t.TempDir()
	free, size, ok := diskSpace(folder)
	if knows := []string{"linux", "darwin", "freebsd"}; ok != slices.Contains(knows, runtime.GOOS) {
		t.Fatalf("on %s it says %v of %v", runtime.GOOS, free, size)
	}
	if _, _, ok := diskSpace(filepath.Join(folder, "missing")); ok {
		t.Error("it says something of a folder that is missing")
	}
	out, err := exec.Command("df", "-Pk", folder).Output()
	if !ok || err != nil {
		t.Skip("there is no df to compare with")
	}
	fields := strings.Fields(string(out[bytes.IndexByte(out, '\n'):]))
	total, _ := strconv.ParseFloat(fields[1], 64)
	left, _ := strconv.ParseFloat(fields[3], 64)
	if size/1024 != total || math.Abs(free/1024-left) > total/10 {
		t.Errorf("it says %v of %v, and df:\n%s", free, size, out)
	}
}

// openWaiting opens a database in fake time, and calls do when that waits for another program.
func openWaiting(ctx context.Context, path string, mode openMode, do func()) (s *store, err error) {
	var opening sync.WaitGroup
	opening.Go(func() { s, err = openStore(ctx, path, mode, testLog) })
	synctest.Wait()
	do()
	opening.Wait()
	return s, err
}

// TestOpeningWaitsForALock: to change the journal's mode, or the schema.
func TestOpeningWaitsForALock(t *testing.T) {
	for what, mode := range map[string]string{
		"of a file not in WAL mode":    "DELETE",
		"of a file without our tables": "WAL",
	} {
		path := databasePath(t)
		t.Run(what, bubble(func(t *testing.T) {
			other := otherProgram(t, path, "PRAGMA journal_mode="+mode, "PRAGMA user_version=0",
				"BEGIN IMMEDIATE")
			ctx, cancel := context.WithCancel(t.Context())
			_, err := openWaiting(ctx, path, openOrMake, cancel)
			wantRefusal(t, err, path, "context canceled")
			s, err := openWaiting(t.Context(), path, openOrMake, func() {
				must(t, errorOf(other.Exec("ROLLBACK")))
			})
			must(t, err)
			mustCreate(t, s, rex)
			must(t, s.Close())
		}))
	}
}

// TestOpeningWaitsForALockOnAFileThatIsReplaced, as by a restore: it goes on with the new one, and
// migrates that.
func TestOpeningWaitsForALockOnAFileThatIsReplaced(t *testing.T) {
	for version := 1; version <= len(migrations); version++ {
		path, copied := databasePath(t), databasePath(t)
		mode := openToServe
		if version == len(migrations) {
			mode = openExisting
		}
		t.Run(fmt.Sprint("by one of version ", version), bubble(func(t *testing.T) {
			must(t, openDatabase(t, path).Close())
			makeOtherDatabase(t, copied, append(schemaOf(version),
				"INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Rex')")...)
			other := otherProgram(t, path, "PRAGMA journal_mode=DELETE", "BEGIN IMMEDIATE")
			s, err := openWaiting(t.Context(), path, mode, func() {
				must(t, other.Close())
				must(t, os.Rename(copied, path))
			})
			must(t, err)
			wantNextID(t, s, 2)
			now := readNumber(t, s, "SELECT user_version FROM pragma_user_version")
			wantEqual(t, now, int64(len(migrations)), "the version of the schema")
			must(t, s.Close())
		}))
	}
}

// TestAStartThatIsStoppedLeavesNoLock: what it waits for here is a file that is not in WAL mode
// yet.
func TestAStartThatIsStoppedLeavesNoLock(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		other := otherProgram(t, path, "CREATE TABLE t (x)", "DROP TABLE t", "BEGIN IMMEDIATE")
		ctx, cancel := context.WithCancel(t.Context())
		_, err := openWaiting(ctx, path, openToServe, cancel)
		wantRefusal(t, err, path, "context canceled")
		must(t, other.Close())
		s, err := openStore(t.Context(), path, openToServe, testLog)
		must(t, err)
		mustCreate(t, s, rex)
		must(t, s.Close())
	})
}

// TestOpeningNeedsNoLock: a service that writes all the time keeps no command out.
func TestOpeningNeedsNoLock(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDatabase(t, path)
		mustCreate(t, s, rex)
		defer lockDatabase(t, s)()
		wantTime(t, "the opening", 0, 0, nil, func() error {
			command := openDatabase(t, path)
			wantPets(t, command, 1)
			return nil
		})
	})
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

// TestTheWaitForALock is by a clock of its own: how long, how often, and what ends it. A lock is
// freed after a while, and then there may be another error. The caller may stop, or have a deadline
// in the place of the usual wait.
func TestTheWaitForALock(t *testing.T) {
	errs := map[string]error{
		"busy":    lockedError(t),
		"broken":  errors.New("broken"),
		"stopped": errors.New("stopped"),
		"late":    context.DeadlineExceeded,
	}
	for what, script := range map[string]string{
		"a lock that nobody has":         "takes 0s",
		"a lock freed between two tries": "freed 500.001µs takes 600µs",
		"a lock freed at the last try":   "freed 500ms takes 500ms",
		"a lock freed too late":          "freed 500.001ms takes 500ms want busy",
		"another error behind a lock":    "freed 300µs then broken takes 300µs want broken",
		"a caller that gives up":         "freed 1h stopped 2.001ms takes 2.001ms want stopped",
		"a caller with more time":        "freed 1.5s deadline 2s takes 1.5s",
		"a caller with less time":        "freed 1s deadline 700.001µs takes 700.001µs want late",
		"a caller with time that gives up": "freed 1h stopped 2.001ms deadline 2s takes 2.001ms " +
			"want stopped",
	} {
		t.Run(what, bubble(func(t *testing.T) {
			times, says := map[string]time.Duration{}, map[string]error{}
			for pair := range slices.Chunk(strings.Fields(script), 2) {
				says[pair[0]] = errs[pair[1]]
				times[pair[0]], _ = time.ParseDuration(pair[1])
			}
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			if d := times["deadline"]; d > 0 {
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, d)
				defer cancel()
			}
			if d := times["stopped"]; d > 0 {
				time.AfterFunc(d, func() { stop(errs["stopped"]) })
			}
			start := time.Now()
			tries := time.Duration(0)
			takes := times["takes"]
			wantTime(t, "the wait", takes, takes, says["want"], func() error {
				return untilUnlocked(ctx, serviceWait, func() error {
					tries++
					if time.Since(start) < times["freed"] {
						return errs["busy"]
					}
					return says["then"]
				})
			})
			wantEqual(t, tries, takes/lockPoll+1, "the number of tries")
		}))
	}
}

// create creates a pet, and checks the status of the response.
func (p *testProcess) create(status int) {
	p.t.Helper()
	response, body := send(p.t, "POST", p.address+"/pets", p.key, rexBody[1:])
	wantEqual(p.t, response.StatusCode, status,
		"with the response ", body, " the status of a create")
}

// interrupt ends the service, and returns the last line of its log.
func (p *testProcess) interrupt() (last string) {
	must(p.t, p.Process.Signal(os.Interrupt))
	for p.log.Scan() {
		last = p.log.Text()
	}
	_ = p.Wait()
	return last
}

// wantSound checks that a database has no damage, and how many pets it has.
func wantSound(t *testing.T, path string, want int64) {
	t.Helper()
	db := soundDatabase(t, path)
	wantEqual(t, numberIn(t, db, "SELECT count(*) FROM pets"), want, "the number of pets")
}

// TestCommandsRefuseADatabaseThatHasLostItsLog under a running service. They would make another
// log, report success, and damage the database. The service loses nothing that it has confirmed.
func TestCommandsRefuseADatabaseThatHasLostItsLog(t *testing.T) {
	takesSeconds(t)
	for _, removed := range [][]string{
		{"-wal"}, {"-shm"}, {"-wal", "-shm"}, {"-wal", "-shm", "-lock"},
	} {
		for _, checkpointed := range []bool{false, true} {
			t.Run(fmt.Sprint(removed, checkpointed), func(t *testing.T) {
				t.Parallel()
				p := startProcess(t)
				path := p.Args[len(p.Args)-1]
				for range 3 {
					p.create(201)
				}
				if checkpointed {
					must(t, otherProgram(t, path, "PRAGMA wal_checkpoint(TRUNCATE)").Close())
				}
				for _, suffix := range removed {
					must(t, os.Remove(path+suffix))
				}
				p.create(503) // and has the log brought into the database
				before := filesIn(t, filepath.Dir(path))
				copied := filepath.Join(t.TempDir(), "copy.db")
				const gone = "a program has it open, and its -wal or -shm is gone"
				var running sync.WaitGroup
				for _, args := range [][]string{
					{"key", "list"},
					{"key", "create"},
					{"pet", "export", "-"},
					{"backup", copied},
					{"pet", "set", "1", "-name", "x"},
					{"restore", madeDatabase(t)},
				} {
					running.Go(func() {
						_, _, err := petstore(t, nil, append(args, "-db", path)...)
						wantRefusal(t, err, path, gone)
					})
				}
				running.Go(func() { wantNotOpened(t, path, openToServe, gone) })
				running.Wait()
				wantSameFiles(t, before, filesIn(t, filepath.Dir(path)))
				wantOneLine(t, errors.New(p.interrupt()), false,
					"the usage counted last is not stored",
					"all that was confirmed is in the database")
				wantEqual(t, p.ProcessState.ExitCode(), 1, "the exit status")
				wantSound(t, path, 3)
			})
		}
	}
}

// TestAnotherIndexOfTheLogLosesNothing: where a program has made another -shm under a running
// service, the service leaves the log alone, which holds what both have stored.
func TestAnotherIndexOfTheLogLosesNothing(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	p := startProcess(t)
	path := p.Args[len(p.Args)-1]
	p.create(201)
	must(t, os.Remove(path+"-shm"))
	makeOtherDatabase(t, path, "INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'x')")
	p.create(503)
	p.interrupt()
	wantSound(t, path, 2)
}

// TestCommandsMeetWithoutALog: where no service runs, each of many that begin at once finds no log,
// and may look for one that another has lost. A file that is not in WAL mode has none.
func TestCommandsMeetWithoutALog(t *testing.T) {
	takesSeconds(t)
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

// TestOnlyACopyIsTakenForOne that was written over the file: neither what the file was before a
// service started, nor what other programs do to it meanwhile.
func TestOnlyACopyIsTakenForOne(t *testing.T) {
	sc := newScene(t)
	for what, content := range map[string]string{
		"a first start": "", "a copy": readText(t, sc.copy), "a killed one": readText(t, sc.db),
	} {
		t.Run(what, func(t *testing.T) {
			path := databasePath(t)
			writeText(t, path, content)
			s := openDatabaseFor(t, path, openToServe)
			check := func(after string) {
				t.Helper()
				mustWrite(t, s, sqlOf("UPDATE pets SET status = 2"))
				wantEqual(t, fileEngine(s).refuseOverwritten(), nil, "the error after ", after)
			}
			check("the start")
			for _, statement := range []string{"VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)",
				"PRAGMA user_version = 5", "PRAGMA auto_vacuum = 1; VACUUM"} {
				makeOtherDatabase(t, path, statement)
				check(statement)
			}
			other := otherProgram(t, path, "PRAGMA busy_timeout = 0")
			_, err := other.Exec("PRAGMA journal_mode = DELETE")
			if !isCode(err, sqlite3.SQLITE_BUSY) {
				t.Errorf("another program changes the mode of its journal: %v", err)
			}
			from, to := fileAddress(sc.copy), fileEngine(s).header
			pages, err := beginCopy(t.Context(), from, to, 1, "WAL")
			must(t, err)
			must(t, pages.run(t.Context(), io.Discard, ""))
			pages.end()
			check("another program's restore")
			makeOtherDatabase(t, path, "PRAGMA wal_checkpoint(TRUNCATE)")
			check("a checkpoint")
		})
	}
}

// TestAnIndexThatIsCutToNothingIsNoErrorOfTheService, but one of its files: reads get 503.
func TestAnIndexThatIsCutToNothingIsNoErrorOfTheService(t *testing.T) {
	p := startProcess(t)
	p.create(201)
	must(t, os.Truncate(p.Args[len(p.Args)-1]+"-shm", 0))
	for i := range 5 {
		response, body := send(t, "GET", fmt.Sprint(p.address, "/pets?after=", i), p.key, "")
		wantEqual(t, response.StatusCode, 503, body)
	}
}

// TestACopyThatIsWrittenOverAServedDatabaseIsNoticed within a second, without a write: nothing is
// confirmed any more, the copy stays as it is, and so does the log of the database before. A file
// that is being written over is cut to nothing first.
func TestACopyThatIsWrittenOverAServedDatabaseIsNoticed(t *testing.T) {
	for what, isWhole := range map[string]bool{"a whole copy": true, "an empty file": false} {
		t.Run(what, func(t *testing.T) {
			withBackground(t, nil, func(b *background) {
				mustCreate(b, b.store, rex)
				copied := filepath.Join(b.TempDir(), "copy.db")
				must(b, backUp(b.Context(), b.store, copied))
				mustCreate(b, b.store, rex)
				log, over := readText(b, b.path+"-wal"), ""
				if isWhole {
					over = readText(b, copied)
				}
				writeText(b, b.path, over)
				time.Sleep(1001 * time.Millisecond)
				synctest.Wait()
				wantPart(b, b.log.String(), errOverwritten.Error())
				wantNoCreate(b.T, b.store, "move "+b.path)
				wantOneLine(b, b.stop(), false, errOverwritten.Error(), putBack(b.path))
				must(b, b.store.Close())
				isOver := readText(b, b.path) == over
				wantEqual(b, isOver, true, "that the file is as it was written")
				isLog := readText(b, b.path+"-wal") == log
				wantEqual(b, isLog, true, "that the log is as it was")
				wantEqual(b, len(savedCopies(b, b.path)), 0, "the saved copies")
				// Otherwise the connections would end with the process.
				file := fileEngine(b.store)
				file.header, file.overwritten = nil, false
				_ = b.store.Close()
			})
		})
	}
}

// TestALogThatIsSpoiledInPlaceIsNoticed: it is cut, or overwritten by an older one. Nothing is
// confirmed any more, and the file stays as it is. What another program empties is not spoiled.
func TestALogThatIsSpoiledInPlaceIsNoticed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the index of a log is read on Linux alone")
	}
	for what, spoil := range map[string]func(b *background, older string){
		"cut":         func(b *background, _ string) { must(b, os.Truncate(b.path+"-wal", 0)) },
		"overwritten": func(b *background, older string) { writeText(b, b.path+"-wal", older) },
	} {
		t.Run(what, func(t *testing.T) {
			withBackground(t, nil, func(b *background) {
				mustCreate(b, b.store, rex)
				older := readText(b, b.path+"-wal")
				other := otherProgram(b, b.path, "PRAGMA wal_checkpoint(TRUNCATE)")
				must(b, other.Close())
				mustCreate(b, b.store, rex)
				before, log := readText(b, b.path), readText(b, b.path+"-wal")
				spoil(b, older)
				time.Sleep(1001 * time.Millisecond)
				synctest.Wait()
				wantPart(b, b.log.String(), errOverwritten.Error())
				wantNoCreate(b.T, b.store, "move "+b.path)
				wantOneLine(b, b.stop(), false, errOverwritten.Error())
				must(b, b.store.Close())
				wantEqual(b, readText(b, b.path) == before, true, "that the file is as it was")
				writeText(b, b.path+"-wal", log)
				// Otherwise the connections would end with the process.
				file := fileEngine(b.store)
				file.header, file.overwritten = nil, false
				_ = b.store.Close()
			})
		})
	}
}
