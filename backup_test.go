package main

// Tests of backups, of the copying of pages, of restores, and of progress.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"modernc.org/sqlite"
)

var rex = NewPet{Name: "Rex", CategoryID: 1, Status: Sold}

// TestABackupBesideSteadyWritersIsConsistent: each writer stores a pet and a record in one
// transaction, so that a torn copy has more of one of them.
func TestABackupBesideSteadyWritersIsConsistent(t *testing.T) {
	s := newStore(t)
	ctx, stop := context.WithCancel(t.Context())
	var confirmed atomic.Int64
	var writers sync.WaitGroup
	for worker := range int64(4) {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprint(i)
				_, _, _, err := s.createPetOnce(1, rex, worker, key, nil, testTime)
				if err != nil {
					t.Error(err)
				}
				confirmed.Add(1)
			}
		})
	}
	folder := t.TempDir()
	for i := range 5 {
		least := confirmed.Load()
		file := filepath.Join(folder, fmt.Sprintf("copy ?#%% %d.db", i))
		must(t, backUp(t.Context(), s, file))
		pets, records := copyHolds(t, file)
		if pets != records || pets < least {
			t.Errorf("the copy has %d pets and %d records; %d were confirmed before it began",
				pets, records, least)
		}
	}
	stop()
	writers.Wait()
}

// TestACopyIsFixedWhenItBegins: what others write meanwhile is not in it, and does not make it
// begin again.
func TestACopyIsFixedWhenItBegins(t *testing.T) {
	s := newStore(t)
	mustCreate(t, s, rex)
	from, file := fileAddress(fileEngine(s).path), filepath.Join(t.TempDir(), "copy.db")
	pages, err := beginCopy(t.Context(), from, newFile(t, file), 1, "OFF")
	must(t, err)
	defer pages.end()
	for left := pages.backup.PageCount(); left > 0; {
		mustCreate(t, s, rex)
		_, err = pages.backup.Step(1)
		must(t, err)
		left--
		wantEqual(t, pages.backup.Remaining(), left,
			"the number of pages that are left after one more")
	}
	pets, _ := copyHolds(t, file)
	wantEqual(t, pets, 1, "the number of pets in the copy")
}

// TestACopyThatIsStoppedCopiesNothingMore: all pages of a large database take minutes.
func TestACopyThatIsStoppedCopiesNothingMore(t *testing.T) {
	file := newFile(t, filepath.Join(t.TempDir(), "copy.db"))
	pages, err := beginCopy(t.Context(), fileAddress(fileEngine(newStore(t)).path), file, 1, "OFF")
	must(t, err)
	defer pages.end()
	stopped, stop := context.WithCancel(t.Context())
	stop()
	wantStopped(t, pages.run(stopped, io.Discard, "copying"))
	wantEqual(t, pages.backup.Remaining(), pages.backup.PageCount(),
		"the number of pages that are left")
}

func TestOfBackupsToOneNameAtOnceOneIsMade(t *testing.T) {
	s := newStore(t)
	mustCreate(t, s, rex)
	file := filepath.Join(t.TempDir(), "copy.db")
	var made atomic.Int64
	var backups sync.WaitGroup
	refused := regexp.MustCompile("another copy runs|exists")
	for range 8 {
		backups.Go(func() {
			err := backUp(t.Context(), s, file)
			switch {
			case err == nil:
				made.Add(1)
			case !refused.MatchString(err.Error()):
				t.Error(err)
			}
		})
	}
	backups.Wait()
	if pets, _ := copyHolds(t, file); pets != 1 || made.Load() != 1 {
		t.Errorf("%d copies are made, the last with %d pets", made.Load(), pets)
	}
	wantNames(t, filepath.Dir(file), "copy.db")
	wantMode(t, file, 0o600) // nobody else may read it
}

// newFile makes an empty file, which is open until the test ends.
func newFile(t testing.TB, path string) *os.File {
	t.Helper()
	file, err := os.Create(path)
	must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// writeText makes a file.
func writeText(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// TestABackupThatIsRefusedLeavesEverything as it was.
func TestABackupThatIsRefusedLeavesEverything(t *testing.T) {
	s := newStore(t)
	// A row has a name that is taken, where that leads to if it is a link, and what is said.
	for taken, want := range rowsOf(t, strings.ReplaceAll(`
		copy.db => copy.db exists, and nothing is overwritten
		copy.db to nowhere => copy.db exists
		copy.db to DEVICE => copy.db exists
		copy.db-wal => copy.db-wal exists
		copy.db-journal => copy.db-journal exists
		copy.db.partial => copy.db.partial is there: another copy runs, or was stopped; remove it if
		copy.db.partial to nowhere => another copy runs`, "DEVICE", os.DevNull)) {
		folder := t.TempDir()
		file := filepath.Join(folder, "copy.db")
		name, leadsTo, isLink := strings.Cut(taken, " to ")
		if isLink {
			must(t, os.Symlink(leadsTo, filepath.Join(folder, name)))
		} else {
			writeText(t, filepath.Join(folder, name), "x")
		}
		before := filesIn(t, folder)
		wantRefusal(t, backUp(t.Context(), s, file), folder, want)
		wantSameFiles(t, before, filesIn(t, folder))
	}
	wantRefusal(t, backUp(t.Context(), s, filepath.Join(t.TempDir(), "no", "copy.db")), "copy.db",
		"no such file")
	for _, suffix := range []string{"-wal", "-shm", "-journal", "-lock", "-host", "-failed",
		".partial"} {
		err := backUp(t.Context(), s, databasePath(t)+suffix)
		wantRefusal(t, err, "a name that ends with "+suffix, " is that of a file beside a database")
	}
}

// newPartial begins a file named copy in a new folder.
func newPartial(t *testing.T) (partial *partialFile, folder string) {
	t.Helper()
	folder = t.TempDir()
	partial, err := createFile(filepath.Join(folder, "copy"))
	must(t, err)
	t.Cleanup(partial.discard)
	return partial, folder
}

// TestAFileIsNamedWithoutALink where the file system has none, but not onto another file. Then
// another copy may begin, whose file stays.
func TestAFileIsNamedWithoutALink(t *testing.T) {
	partial, folder := newPartial(t)
	writeText(t, partial.path, "another")
	wantError(t, partial.publish(), fs.ErrExist, "onto another file")
	wantNames(t, folder, "copy", "copy.partial")
	must(t, os.Remove(partial.path))
	must(t, partial.renameUnlessThere())
	wantNames(t, folder, "copy")
	wantError(t, partial.Close(), os.ErrClosed, "a second close") // Windows renames no open file
	writeText(t, partial.Name(), "another's")
	partial.discard()
	wantNames(t, folder, "copy", "copy.partial")
	must(t, os.Remove(partial.Name()))
	must(t, os.Remove(partial.path))
	wantError(t, partial.renameUnlessThere(), fs.ErrNotExist, "a file that has gone")
	wantNames(t, folder)
}

// TestACopyThatWasRemovedGetsNoName: neither an empty file nor another copy's half does, and that
// one stays.
func TestACopyThatWasRemovedGetsNoName(t *testing.T) {
	partial, folder := newPartial(t)
	must(t, os.Remove(partial.Name()))
	wantRefusal(t, partial.publish(), partial.Name(), "was removed or replaced")
	writeText(t, partial.Name(), "half")
	wantRefusal(t, partial.publish(), partial.Name(), "was removed or replaced")
	partial.discard()
	wantNames(t, folder, "copy.partial")
}

// TestAFileIsClosedWhereAnOpenOneIsRefused: Windows removes no open file.
func TestAFileIsClosedWhereAnOpenOneIsRefused(t *testing.T) {
	partial, folder := newPartial(t)
	end := removeOpen(partial.File, func(name string) error {
		if _, err := partial.Stat(); err == nil {
			return errors.New("it is open")
		}
		return os.Remove(name)
	})
	must(t, errorOf(partial.WriteString("it can be used until the end")))
	wantNames(t, folder, "copy.partial")
	end()
	wantNames(t, folder)
}

// TestACopyIsOnDiskBeforeItHasItsName, and its name is before it is said to be made: a power cut
// leaves no half copy under the name, and takes no name away.
func TestACopyIsOnDiskBeforeItHasItsName(t *testing.T) {
	partial, folder := newPartial(t)
	var broken error
	var synced []string
	partial.sync = func(file *os.File) error {
		named := !isMissing(partial.path)
		synced = append(synced, fmt.Sprintf("%s, named: %v", file.Name(), named))
		return broken
	}
	broken = syscall.EIO
	wantError(t, partial.publish(), broken, "a disk that fails")
	wantNames(t, folder, "copy.partial")
	broken = nil
	must(t, partial.publish())
	want := []string{partial.Name() + ", named: false", folder + ", named: true"}
	if runtime.GOOS == "windows" { // where a folder cannot be opened
		want = want[:1]
	}
	wantEqual(t, synced[1:], want, "what is synced")
}

// endingContext ends when it has been asked so often whether it has, by the goroutine that made it:
// those of database/sql may ask when all is done.
type endingContext struct {
	context.Context
	cancel context.CancelFunc
	asker  string // of goroutineID
	left   atomic.Int64
}

func newEndingContext(t testing.TB, looks int64) *endingContext {
	c := &endingContext{asker: goroutineID()}
	c.Context, c.cancel = context.WithCancel(t.Context())
	t.Cleanup(c.cancel)
	c.left.Store(looks)
	return c
}

// stopEverywhere does something with contexts that end at a later and later look, until it is done,
// and checks what each stop leaves.
func stopEverywhere(t testing.TB, do func(context.Context) error, check func()) {
	t.Helper()
	err := context.Canceled
	looks := int64(0)
	for err != nil && !t.Failed() {
		looks++
		err = do(newEndingContext(t, looks))
		if err != nil {
			wantStopped(t, err)
			check()
		}
	}
	if looks < 5 {
		t.Errorf("stopped at the look %d, it is done", looks)
	}
}

func (c *endingContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (c *endingContext) Err() error {
	c.look()
	return c.Context.Err()
}

// goroutineID is that of the caller.
func goroutineID() string {
	stack := make([]byte, 50)
	stack = stack[:runtime.Stack(stack, false)]
	id, _, _ := strings.Cut(string(stack), "[") // "goroutine 7 [running]:"
	return id
}

func (c *endingContext) look() {
	if goroutineID() == c.asker && c.left.Add(-1) == 0 {
		c.cancel()
	}
}

// wantStopped checks that something has ended because its context has.
func wantStopped(t testing.TB, err error) {
	t.Helper()
	isStopped := errors.Is(err, context.Canceled) ||
		err != nil && strings.Contains(err.Error(), "interrupted")
	if !isStopped {
		t.Fatalf("stopped, it ends with %v", err)
	}
}

// TestABackupMayBeStoppedAtAnyTime: it is done, or nothing is.
func TestABackupMayBeStoppedAtAnyTime(t *testing.T) {
	s := newStore(t)
	folder := t.TempDir()
	file := filepath.Join(folder, "copy.db")
	stopEverywhere(t, func(ctx context.Context) error { return backUp(ctx, s, file) }, func() {
		wantNames(t, folder)
	})
	wantNames(t, folder, "copy.db")
}

// damage fills the pages of a closed database file, and overwrites the last one.
func damage(t testing.TB, file string) {
	t.Helper()
	makeOtherDatabase(t, file, manyPets, "PRAGMA wal_checkpoint(TRUNCATE)")
	content := []byte(readText(t, file))
	copy(content[len(content)-4096:], make([]byte, 512))
	writeText(t, file, string(content))
}

// TestABackupOfADamagedDatabaseIsNone, and neither is one of rows that break a rule of the schema.
func TestABackupOfADamagedDatabaseIsNone(t *testing.T) {
	for _, script := range []string{"damage pets.db", "break pets.db"} {
		sc := newScene(t)
		sc.prepare(t, script)
		folder := t.TempDir()
		err := backUp(t.Context(), openDatabase(t, sc.db), filepath.Join(folder, "copy.db"))
		wantRefusal(t, err, "", "the copy is damaged")
		wantNames(t, folder)
	}
}

// manyPets adds pets whose names fill many pages.
const manyPets = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200)
	INSERT INTO pets (category_id, status, name) SELECT i, 4, hex(randomblob(90)) FROM n`

// TestBackupWhileTheServiceRuns is the operator's command. The copy serves as it is.
func TestBackupWhileTheServiceRuns(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	db := databasePath(t)
	s := startServer(t, nil, "-db", db)
	response, body := s.post(`{"name":"Rex","categoryId":7}`)
	wantEqual(t, response.StatusCode, 201, "the status of ", body)
	file := filepath.Join(t.TempDir(), "copy.db")
	want := fmt.Sprintf(`"msg":"backup made","pets":1,"database":%q,"to":%q}`+"\n", db, file)
	wantEqual(t, mustSay(t, db, "backup "+file, want), "", "what backup prints")
	wantNextIDs(t, file, 2, 2)
}

// backupNote is when the last backup of a database ended, in Unix seconds, or 0.
func backupNote(t testing.TB, path string) (at int64) {
	t.Helper()
	s := openDatabase(t, path)
	defer s.Close()
	return readNumber(t, s, "SELECT ifnull(max(value), 0) FROM counters WHERE name = 'backup'")
}

// TestOnlyABackupIsNotedAsOne, in the database, and never in a copy.
func TestOnlyABackupIsNotedAsOne(t *testing.T) {
	db := madeDatabase(t)
	file := filepath.Join(t.TempDir(), "copy.db")
	began := time.Now().Unix()
	for _, file := range []string{file, file + "2"} {
		mustSay(t, db, "backup "+file)
		noted, copied := backupNote(t, db), backupNote(t, file)
		if noted < began || noted > time.Now().Unix() || copied != 0 {
			t.Errorf("a backup after %d is noted at %d, in the copy at %d", began, noted, copied)
		}
	}
	testKeys{t, db}.write(sqlOf("UPDATE counters SET value = 7 WHERE name = 'backup'"))
	mustFail(t, db, "backup "+file, false, "exists")
	wantEqual(t, backupNote(t, db), 7, "the note after a backup that failed")
	testKeys{t, file}.write(sqlOf("REPLACE INTO counters (name, value) VALUES ('backup', 8)"))
	mustSay(t, db, "restore "+file)
	wantEqual(t, backupNote(t, db), 0, "the note in a restored database")
}

// TestABackupIsNotedInNoOtherDatabase that has taken the place of the copied one meanwhile: a
// restored one, or another file.
func TestABackupIsNotedInNoOtherDatabase(t *testing.T) {
	copied, other, restored := madeDatabase(t), madeDatabase(t), madeDatabase(t)
	for db, replace := range map[string]func(){
		copied:   func() { must(t, os.Rename(other, copied)) },
		restored: func() { testKeys{t, restored}.write(sqlOf("UPDATE identity SET value = 7")) },
	} {
		c := &invocation{process: &process{}, log: testLog}
		c.db, c.store = db, openDatabaseFor(t, db, openToCopy)
		identity, err := c.notedIdentity(t.Context())
		must(t, err)
		replace()
		err = c.note(t.Context(), identity)
		wantPart(t, fmt.Sprint(err), "another one was restored", "the error")
		wantEqual(t, backupNote(t, db), 0, "the note")
	}
}

// TestABackupThatCannotBeNotedIsMade, with a warning.
func TestABackupThatCannotBeNotedIsMade(t *testing.T) {
	db := madeDatabase(t)
	makeOtherDatabase(t, db, `CREATE TRIGGER refuse BEFORE INSERT ON counters
		BEGIN SELECT raise(ABORT, 'not now'); END`)
	file := filepath.Join(t.TempDir(), "copy.db")
	mustSay(t, db, "backup "+file, `"level":"WARN"`, "not now", `"msg":"backup made"`)
	wantNames(t, filepath.Dir(file), "copy.db")
}

// scene is a database that a kill has left, so that what was stored last is in its log alone, and
// an older copy of it.
type scene struct{ folder, db, copy string }

// What the two of a scene hold.
const (
	copiedPets, copiedKeys = 3, 2
	allPets, allKeys       = 5, 3
)

// madeScene are the files of the first scene. The others are copies of it.
var madeScene struct {
	sync.Once
	files map[string]string
}

func newScene(t testing.TB) *scene {
	t.Helper()
	folder := t.TempDir()
	sc := &scene{
		folder: folder,
		db:     filepath.Join(folder, "pets.db"),
		copy:   filepath.Join(folder, "copy.db"),
	}
	madeScene.Do(func() {
		sc.make(t)
		madeScene.files = filesIn(t, folder)
	})
	for name, content := range madeScene.files {
		writeText(t, filepath.Join(folder, name), content)
	}
	writeText(t, sc.db+"-shm", "")
	writeText(t, sc.db+"-lock", "")
	return sc
}

func (sc *scene) make(t testing.TB) {
	s := newStore(t)
	grow := func(pets, keys int) {
		for range pets {
			mustCreate(t, s, rex)
		}
		for range keys {
			mustInsertKey(t, s, apiKey{})
		}
	}
	grow(copiedPets, copiedKeys)
	must(t, backUp(t.Context(), s, sc.copy))
	grow(allPets-copiedPets, allKeys-copiedKeys)
	copyDatabase(t, fileEngine(s).path, sc.db)
}

// copyDatabase copies a database file and its log, if it has one, as they are.
func copyDatabase(t testing.TB, from, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal"} {
		if !isMissing(from + suffix) {
			writeText(t, to+suffix, readText(t, from+suffix))
		}
	}
}

// oldSuffix is where the database is kept that a scene restores into.
const oldSuffix = ".20260504T120000.000Z.old"

// restore does what petstore restore does, at testTime.
func (sc *scene) restore(ctx context.Context) (old string, err error) {
	return sc.restoreAt(ctx, testTime, 1_000_000)
}

// restoreAt does what petstore restore -skip-ids does.
func (sc *scene) restoreAt(ctx context.Context, now time.Time, skipIDs int64) (string, error) {
	c := &invocation{
		process: &process{stderr: io.Discard},
		FlagSet: flag.NewFlagSet("", flag.ContinueOnError),
		now:     instantOf(now),
		log:     testLog,
	}
	c.db, c.skipIDs, c.argument = sc.db, skipIDs, sc.copy
	_, old, err := c.restoreCopy(ctx)
	return old, err
}

func (sc *scene) mustRestore(t testing.TB) (old string) {
	t.Helper()
	old, err := sc.restore(t.Context())
	must(t, err)
	return old
}

// wantAll checks that a file holds what the database of a scene does, without changing anything.
func wantAll(t testing.TB, path string) {
	t.Helper()
	wantEqual(t, contentOf(t, path), [2]int64{allPets, allKeys}, "what is in ", path)
}

// wantCopy checks that a file holds what the copy of a scene does.
func wantCopy(t testing.TB, path string) {
	t.Helper()
	wantEqual(t, contentOf(t, path), [2]int64{copiedPets, copiedKeys}, "what is in ", path)
}

// contentOf is how many pets and keys are in a sound database, which may be in use.
func contentOf(t testing.TB, path string) [2]int64 {
	t.Helper()
	alone := databasePath(t)
	copyDatabase(t, path, alone)
	db := soundDatabase(t, alone)
	defer db.Close()
	return [2]int64{
		numberIn(t, db, "SELECT count(*) FROM pets"),
		numberIn(t, db, "SELECT count(*) FROM api_keys"),
	}
}

// wantNames checks which files are in a folder.
func wantNames(t testing.TB, folder string, want ...string) {
	t.Helper()
	names := slices.Sorted(maps.Keys(filesIn(t, folder)))
	wantEqual(t, names, want, "what is in the folder")
}

func wantMode(t testing.TB, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	wantEqual(t, info.Mode(), want, "the mode of ", path)
}

// wantNextIDs checks which ids a pet and a key get next.
func wantNextIDs(t testing.TB, path string, pet, key int64) {
	t.Helper()
	s := openDatabaseFor(t, path, openToServe)
	defer s.Close()
	wantNextID(t, s, pet)
	mustInsertKey(t, s, apiKey{})
	wantEqual(t, readNumber(t, s, "SELECT max(id) FROM api_keys"), key, "the next id of a key")
}

// TestRestoreReplacesWhatIsThere, and keeps it if it holds anything. That is how to go back after
// an upgrade.
func TestRestoreReplacesWhatIsThere(t *testing.T) {
	replace := func(what string, isKept bool, script string) {
		t.Run(what, func(t *testing.T) {
			sc := newScene(t)
			sc.prepare(t, script)
			must(t, os.Chmod(sc.copy, 0o644))
			copied, want := readText(t, sc.copy), ""
			names := []string{"copy.db", "pets.db", "pets.db-lock"}
			if isKept {
				want = sc.db + oldSuffix
				names = append(names, "pets.db"+oldSuffix)
			}
			old := sc.mustRestore(t)
			wantEqual(t, old, want, "what the old database is said to be")
			wantNames(t, sc.folder, names...)
			wantMode(t, sc.db, 0o600)
			wantCopy(t, sc.db)
			wantEqual(t, readText(t, sc.copy), copied, "the copy")
			if isKept {
				wantMode(t, old, 0o600)
				wantAll(t, old)
			}
			wantNextIDs(t, sc.db, 1_000_000+copiedPets+1, 1_000_000+copiedKeys+1)
		})
	}
	replace("a database", true, "")
	replace("one of an older petstore", true, "sql pets.db PRAGMA user_version = 1")
	replace("one of a newer petstore", true, "sql pets.db PRAGMA user_version = 99")
	replace("no file", false, "lose")
	replace("an empty file", false, "lose; write pets.db")
	replace("a database without tables", false, "lose; write pets.db; "+
		"sql pets.db PRAGMA user_version = 1; sql pets.db PRAGMA user_version = 0")
}

// TestRestoreMovesTheIDsOn: clients have seen ids that the copy does not know. It may be one of
// pets that were deleted, or one of no pet and no key yet.
func TestRestoreMovesTheIDsOn(t *testing.T) {
	sc := newScene(t)
	sc.prepare(t, "sql copy.db DELETE FROM pets")
	sc.mustRestore(t)
	wantNextIDs(t, sc.db, 1_000_000+copiedPets+1, 1_000_000+copiedKeys+1)

	sc = newScene(t)
	makeOtherDatabase(t, sc.copy,
		"DELETE FROM pets", "DELETE FROM api_keys", "DELETE FROM sqlite_sequence")
	sc.mustRestore(t)
	wantNextIDs(t, sc.db, 1_000_001, 1_000_001)
}

// TestNoIDIsGivenTwice, however often the same copy is restored, and however many ids were given
// since it was made.
func TestNoIDIsGivenTwice(t *testing.T) {
	for what, skipIDs := range map[string]int64{"more than were given": 1_000_000, "fewer": 1} {
		t.Run(what+" are skipped", func(t *testing.T) {
			sc := newScene(t)
			pet, key := int64(allPets), int64(allKeys)
			for round := range 3 {
				now := testTime.Add(time.Duration(round) * time.Second)
				_, err := sc.restoreAt(t.Context(), now, skipIDs)
				must(t, err)
				// Above what the copy holds, and above what was given before.
				pet = max(pet, copiedPets+skipIDs) + 1
				key = max(key, copiedKeys+skipIDs) + 1
				wantNextIDs(t, sc.db, pet, key)
				makeOtherDatabase(t, sc.db, "DELETE FROM pets", "DELETE FROM api_keys")
			}
		})
	}
}

// TestNoIDOfAnotherProgramIsGivenTwice: an import goes on while restore begins. Each of its pets is
// refused, or its id is known to restore.
func TestNoIDOfAnotherProgramIsGivenTwice(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	for looks := int64(1); ; looks += 5 { // it looks some 130 times
		sc := newScene(t)
		ctx := newEndingContext(t, looks)
		added := int64(allPets)
		tried := make(chan struct{})
		ctx.cancel = func() { // perhaps on a goroutine of database/sql
			defer close(tried)
			db := openPool(sc.db) // it waits for no lock
			defer db.Close()
			done, err := db.Exec("INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'x')")
			if err == nil {
				added, _ = done.LastInsertId()
			}
		}
		_, err := sc.restoreAt(ctx, testTime, 0)
		must(t, err)
		if ctx.left.Swap(0) > 0 { // restore has ended before it looked so often, and nobody will
			return
		}
		<-tried
		wantNextIDs(t, sc.db, added+1, allKeys+1)
	}
}

// TestRestoreKeepsWhatIsMadeMeanwhile: where no database was, a command may make one while the copy
// is checked. Its time passes at once where it waits for a lock of the restore that waits for it.
func TestRestoreKeepsWhatIsMadeMeanwhile(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	isEnd := false
	for looks := int64(1); !isEnd; looks += 7 { // it looks some 70 times
		synctest.Test(t, func(t *testing.T) {
			sc := newScene(t)
			sc.prepare(t, "lose")
			ctx := newEndingContext(t, looks)
			made := make(chan error, 1)
			ctx.cancel = func() { // perhaps on a goroutine of database/sql
				_, _, err := petstore(t, nil, "key", "create", "-db", sc.db)
				made <- err
			}
			old, err := sc.restoreAt(ctx, testTime, 0)
			must(t, err)
			isEnd = ctx.left.Swap(0) > 0 // restore has ended before it looked so often
			if isEnd || <-made != nil {
				return
			}
			// The key is in what is kept, or it came after the restore.
			keys := numberIn(t, soundDatabase(t, sc.db), "SELECT count(*) FROM api_keys")
			if old != "" {
				keys += numberIn(t, soundDatabase(t, old), "SELECT count(*) FROM api_keys")
			}
			wantEqual(t, keys,
				copiedKeys+1, fmt.Sprintf("after the look %d, the number of keys", looks))
		})
	}
}

// TestIDsDoNotWrap: ids end with int64.
func TestIDsDoNotWrap(t *testing.T) {
	sc := newScene(t)
	makeOtherDatabase(t, sc.copy, "UPDATE sqlite_sequence SET seq = 9223372036854775807 - 10")
	before := filesIn(t, sc.folder)
	_, err := sc.restoreAt(t.Context(), testTime, 11)
	wantRefusal(t, err, "its highest id is 9223372036854775797", "11 more cannot be skipped")
	wantSameFiles(t, before, filesIn(t, sc.folder))
	_, err = sc.restoreAt(t.Context(), testTime, 9)
	must(t, err)
	wantNextIDs(t, sc.db, math.MaxInt64, math.MaxInt64)
}

// TestARestoredFileIsTheSameFile: root restores, and the service has to read it; it may be mounted,
// or have other names.
func TestARestoredFileIsTheSameFile(t *testing.T) {
	sc := newScene(t)
	must(t, os.Chmod(sc.db, 0o640))
	must(t, os.Chmod(sc.copy, 0o644))
	if os.Getuid() == 0 {
		must(t, os.Chown(sc.db, 12345, 54321))
	}
	other := sc.db + ".link"
	must(t, os.Link(sc.db, other))
	before, err := os.Stat(sc.db)
	must(t, err)
	sc.mustRestore(t)
	for _, name := range []string{sc.db, other} {
		after, err := os.Stat(name)
		must(t, err)
		if !os.SameFile(before, after) {
			t.Errorf("%s is another file", name)
		}
		wantEqual(t, ownerOf(after), ownerOf(before), "the owner of ", name)
		wantMode(t, name, 0o640)
	}
}

// TestWhatRootMakesBelongsToTheFoldersOwner, as the service has to use it. What root names, and
// what was there, stays root's, and no link is followed that the owner has planted.
func TestWhatRootMakesBelongsToTheFoldersOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	sc := newScene(t)
	lock, elsewhere := sc.db+"-lock", filepath.Join(t.TempDir(), "elsewhere")
	must(t, os.Chown(sc.folder, 12345, 54321))
	must(t, os.Remove(sc.db+"-wal"))
	for _, link := range []string{lock, sc.db} {
		must(t, os.Remove(link))
		must(t, os.Symlink(elsewhere, link))
		if _, err := sc.restore(t.Context()); err == nil || !isMissing(elsewhere) {
			t.Errorf("with a link as %s, restore says %v", link, err)
		}
		must(t, os.Remove(link))
	}
	roots := madeDatabase(t)
	before := readText(t, roots)
	must(t, os.Symlink(roots, sc.db))
	_, err := sc.restore(t.Context())
	wantRefusal(t, err, sc.db, "is no regular file, and a link there is not followed")
	for _, mode := range anyMode {
		wantNotOpened(t, sc.db, mode, "a link there is not followed")
	}
	wantEqual(t, readText(t, roots) == before, true, "that root's database is as it was")
	must(t, os.Remove(sc.db))
	want := func(owner string, paths ...string) {
		t.Helper()
		for _, path := range paths {
			info, err := os.Stat(path)
			must(t, err)
			wantEqual(t, ownerOf(info), owner, "the owner of ", path)
		}
	}
	sc.mustRestore(t)
	want("12345 54321", sc.db, lock)
	must(t, os.Symlink(elsewhere, sc.db+"-failed"))
	must(t, markFailed(sc.db)) // a link is a mark, too
	wantNotOpened(t, sc.db, openToServe, "a sync of its files has failed")
	wantMissing(t, elsewhere)
	must(t, os.Remove(sc.db+"-failed"))
	must(t, markFailed(sc.db))
	want("12345 54321", sc.db+"-failed")
	must(t, os.Remove(sc.db+"-failed"))
	must(t, os.Remove(lock))
	writeText(t, lock, "")
	old := sc.mustRestore(t)
	mustSay(t, sc.db, "backup "+sc.db+".backup")
	mustCreate(t, openDatabase(t, sc.db), rex)
	want("12345 54321", old, sc.db+"-wal", sc.db+"-shm")
	want("0 0", sc.copy, lock, sc.db+".backup")
}

// ownerOf is the numbers of a file's owner, on systems whose files have one.
func ownerOf(info fs.FileInfo) string {
	stat := reflect.Indirect(reflect.ValueOf(info.Sys()))
	return fmt.Sprint(stat.FieldByName("Uid"), stat.FieldByName("Gid"))
}

// prepare does what a script says to the files of a scene, with semicolons between its steps:
//
//	serve                    starts a service on the database
//	lose                     removes the database, and what is beside it but its lock
//	write copy.db pets       makes a file with a text, or an empty one
//	sql copy.db VACUUM       runs a statement on a database
//	damage copy.db           overwrites its last page
//	break copy.db            lets a row break a rule of the schema
//	remove copy.db           removes a file
//	link copy.db             makes a link to it, copy.db.link
//	restore copy.db pets.db  names what is restored from, and into
func (sc *scene) prepare(t testing.TB, script string) {
	t.Helper()
	for step := range strings.SplitSeq(script, "; ") {
		verb, operands, _ := strings.Cut(step, " ")
		name, operand, _ := strings.Cut(operands, " ")
		path := sc.folder + "/" + name
		switch verb {
		case "serve":
			openDatabaseFor(t, sc.db, openToServe)
		case "lose":
			for _, suffix := range []string{"", "-wal", "-shm"} {
				_ = os.Remove(sc.db + suffix)
			}
		case "write":
			writeText(t, path, operand)
		case "sql":
			makeOtherDatabase(t, path, operand)
		case "damage":
			damage(t, path)
		case "break":
			makeOtherDatabase(t, path, "PRAGMA ignore_check_constraints = 1",
				"UPDATE pets SET status = 9 WHERE id = 2")
		case "remove":
			must(t, os.Remove(path))
		case "link":
			must(t, os.Symlink(name, path+".link"))
		case "restore":
			sc.copy = path
			sc.db = sc.folder + "/" + operand
		case "": // nothing is to be done
		default:
			t.Fatalf("what is %q?", step)
		}
	}
}

// TestABackupOfADatabaseAtRestLeavesNoLog: both what it reads with and what it writes its note with
// are closed by then, one after the other.
func TestABackupOfADatabaseAtRestLeavesNoLog(t *testing.T) {
	db := madeDatabase(t)
	mustSay(t, db, "backup "+db+".copy")
	wantNames(t, filepath.Dir(db), "pets.db", "pets.db.copy")
}

// TestRestoreIsRefused, and everything stays as it was.
func TestRestoreIsRefused(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	words := strings.NewReplacer(
		"SERVED", "a petstore serves it, or a restore runs; stop it first",
		"ANOTHER", "it belongs to another program",
		"RECIPES", "sql recipes.db CREATE TABLE recipes (name)",
		"HIGH copy.db", "sql copy.db PRAGMA user_version = 99",
		"HIGH recipes.db", "sql recipes.db PRAGMA user_version = 99",
		"FROMLINK", "restore copy.db.link pets.db",
		"ONTOLINK", "restore copy.db pets.db.link",
		"LOSE", "lose; write pets.db-lock",
		"PARTIAL", "pets.db.partial is there: another copy runs, or was stopped; "+
			"remove it if none runs",
		"LEFT", "it is missing or empty, but its -wal is there",
	)
	for row, want := range rowsOf(t, words.Replace(`
		while a service runs: serve => SERVED
		through a link: serve; link pets.db; ONTOLINK => SERVED
		that has lost its file: serve; lose => SERVED

		a copy with a journal: write copy.db-journal x => has a log beside it, copy.db-journal
		a link to one with a log: write copy.db-wal x; link copy.db; FROMLINK => it, copy.db-wal
		a missing copy: remove copy.db => no such file
		an empty file: write copy.db => it is no petstore's
		another kind of file: write copy.db pets => file is not a database
		a newer petstore's: HIGH copy.db => use a newer petstore
		rows that break a rule: break copy.db => the copy is damaged
		a damaged copy: damage copy.db => damaged

		another program's: RECIPES; restore recipes.db pets.db => ANOTHER
		onto another program's: RECIPES; restore copy.db recipes.db => ANOTHER
		onto one of a high version: RECIPES; HIGH recipes.db; restore copy.db recipes.db => ANOTHER

		beside what a killed restore has left: write pets.db.partial half => PARTIAL
		where all is gone: LOSE; damage copy.db => damaged
		where all but that is gone: LOSE; write pets.db.partial half => PARTIAL
		into a missing folder: restore copy.db no/pets.db => no such file
		where the log of a missing database is left: remove pets.db => LEFT
		through a link to where it is left: remove pets.db; link pets.db; ONTOLINK => LEFT`)) {
		what, script, _ := strings.Cut(row, ": ")
		t.Run(what, func(t *testing.T) {
			sc := newScene(t)
			sc.prepare(t, script)
			before := filesIn(t, sc.folder)
			old, err := sc.restore(t.Context())
			wantRefusal(t, err, "", want)
			wantEqual(t, old, "", "what the old database is said to be")
			wantSameFiles(t, before, filesIn(t, sc.folder))
		})
	}
}

// TestACopyWithPagesOfAnotherSizeIsRefused before the old database is kept, and where none was.
func TestACopyWithPagesOfAnotherSizeIsRefused(t *testing.T) {
	sc := newScene(t)
	makeOtherDatabase(t, sc.copy, "PRAGMA page_size = 8192", "VACUUM")
	_, err := sc.restore(t.Context())
	wantRefusal(t, err, "which is 4096 in a new one", "the copy's pages have another size")
	wantAll(t, sc.db)
	wantNames(t, sc.folder, "copy.db", "pets.db", "pets.db-lock")
	sc.prepare(t, "lose")
	_, err = sc.restore(t.Context())
	wantRefusal(t, err, "which is 4096 in a new one", "the copy's pages have another size")
	wantNames(t, sc.folder, "copy.db", "pets.db-lock") // an empty database would be served
}

// TestARefusedRestoreDisturbsNoService: neither that of the database nor that of the copy.
func TestARefusedRestoreDisturbsNoService(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	sc := newScene(t)
	ofDatabase := openDatabaseFor(t, sc.db, openToServe)
	ofCopy := openDatabaseFor(t, sc.copy, openToServe)
	mustCreate(t, ofDatabase, rex)
	mustCreate(t, ofCopy, rex)
	_, intoDatabase := sc.restore(t.Context())
	sc.prepare(t, "link copy.db; restore copy.db.link new.db")
	_, fromCopy := sc.restore(t.Context())
	if intoDatabase == nil || fromCopy == nil {
		t.Errorf("restore ends with %v and %v", intoDatabase, fromCopy)
	}
	for _, s := range []*store{ofDatabase, ofCopy} {
		mustCreate(t, s, rex)
		wantServed(t, fileEngine(s).path) // its lock is still held
	}
}

// TestRestoreWaitsForALock, until it is stopped or has the lock. No service can start meanwhile.
func TestRestoreWaitsForALock(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	sc := newScene(t)
	synctest.Test(t, func(t *testing.T) {
		other := otherProgram(t, sc.db, "PRAGMA journal_mode=WAL", "BEGIN IMMEDIATE")
		before := filesIn(t, sc.folder)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := sc.restore(ctx)
		wantStopped(t, err)
		wantEqual(t, time.Since(start), time.Second, "the time until it is stopped")
		after := filesIn(t, sc.folder)
		before["pets.db"] = after["pets.db"] // by now, it may hold what the log does
		wantSameFiles(t, before, after)

		start = time.Now()
		// It waits for serviceWait, and ends between two tries of the restore.
		time.AfterFunc(time.Second-serviceWait-lockPoll/2, func() {
			lock, err := holdServiceLock(t.Context(), sc.db)
			wantError(t, err, errServed, "a service that starts meanwhile")
			if err == nil {
				must(t, lock.Close())
			}
			entry := readText(t, sc.db+"-host") // for one of another kernel
			wantEqual(t, isOfBoot(entry, bootID()), true, "that the restore has its entry")
			_, err = other.ExecContext(context.Background(), "COMMIT")
			must(t, err)
		})
		sc.mustRestore(t)
		wantEqual(t, time.Since(start), time.Second, "the time until the lock is gone")
		must(t, other.Close())
	})
	wantCopy(t, sc.db)
	wantAll(t, sc.db+oldSuffix)
}

// TestAKilledRestoreLeavesNothingToServe: no start takes the empty file, which the restore has made
// in the place of a lost database, for its own first.
func TestAKilledRestoreLeavesNothingToServe(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	areHalf := 0
	for looks := int64(1); ; looks++ {
		sc, killed := newScene(t), databasePath(t)
		sc.prepare(t, "lose")
		ctx := newEndingContext(t, looks)
		ctx.cancel = func() {
			for name, content := range filesIn(t, sc.folder) {
				writeText(t, killed+strings.TrimPrefix(name, "pets.db"), content)
			}
		}
		must(t, errorOf(sc.restoreAt(ctx, testTime, 0)))
		if ctx.left.Swap(0) > 0 { // restore has ended before it looked so often
			break
		}
		s, err := openStore(t.Context(), killed, openToServe, testLog)
		switch {
		case err == nil:
			must(t, s.Close())
			wantCopy(t, killed)
		case isMissing(killed):
			wantRefusal(t, err, killed, "it is gone, and was there")
		default:
			wantRefusal(t, err, killed, "a restore into it runs or was stopped")
			areHalf++
		}
	}
	wantEqual(t, areHalf > 0, true, "that some kills leave an empty file")
}

// TestRestoreIntoAFileThatIsMovedAwayFails, whenever that happens: nobody would find what it holds.
func TestRestoreIntoAFileThatIsMovedAwayFails(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	for looks := int64(1); ; looks++ {
		sc := newScene(t)
		ctx := newEndingContext(t, looks)
		ctx.cancel = func() { _ = os.Rename(sc.db, sc.db+".away") }
		_, err := sc.restoreAt(ctx, testTime, 0)
		if ctx.left.Swap(0) > 0 { // restore has ended before it looked so often
			must(t, err)
			return
		}
		if err == nil {
			t.Errorf("moved away at the look %d, it is restored", looks)
		}
	}
}

// TestRestoreIsLedToNoFileElsewhere by a link that takes the place of a file of its own, whenever
// that happens: who owns the folder of the database must not choose what root changes or shows.
func TestRestoreIsLedToNoFileElsewhere(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	elsewhere := madeDatabase(t)
	s := openDatabase(t, elsewhere)
	mustCreate(t, s, NewPet{Name: "Secret", CategoryID: 1, Status: Sold})
	must(t, s.Close())
	before := filesIn(t, filepath.Dir(elsewhere))
	for _, name := range []string{"", ".partial", oldSuffix + ".partial"} {
		for looks, isOver := int64(1), false; !isOver && !t.Failed(); looks++ {
			sc := newScene(t)
			ctx := newEndingContext(t, looks)
			ctx.cancel = func() {
				if isMissing(sc.db + ".partial") {
					return // until it has begun, a link is only not followed as root
				}
				_ = os.Rename(sc.db+name, sc.db+".away")
				must(t, os.Symlink(elsewhere, sc.db+name))
			}
			_, err := sc.restoreAt(ctx, testTime, 0)
			isOver = ctx.left.Swap(0) > 0 // restore has ended before it looked so often
			if isOver {
				must(t, err)
			}
			wantSameFiles(t, before, filesIn(t, filepath.Dir(elsewhere)))
			for file, content := range filesIn(t, sc.folder) {
				if strings.Contains(content, "Secret") {
					t.Errorf("%s shows what is elsewhere after a link at the look %d", file, looks)
				}
			}
		}
	}
}

// TestWhatSQLiteHasOpenedIsKnown, whatever its name leads to by now.
func TestWhatSQLiteHasOpenedIsKnown(t *testing.T) {
	path := databasePath(t)
	file := newFile(t, path)
	must(t, refuseReplaced(file, 1))
	if runtime.GOOS == "linux" {
		wantRefusal(t, refuseReplaced(file, 2), path, "was replaced while it was opened")
	}
	again, err := os.Open(path)
	must(t, err)
	defer again.Close()
	must(t, refuseReplaced(file, 2))
	must(t, os.Rename(path, path+".away"))
	writeText(t, path, "")
	wantRefusal(t, refuseReplaced(file, 1), path, "was replaced while it was opened")

	file = fileEngine(openDatabase(t, madeDatabase(t))).header
	must(t, refuseReplaced(file, opensOfFile))
	if runtime.GOOS == "linux" {
		err := refuseReplaced(file, opensOfFile+1)
		wantRefusal(t, err, file.Name(), "was replaced while it was opened")
	}
}

// whenOpened has what a test does when SQLite has opened a file, by its path.
var whenOpened sync.Map

func init() {
	sqlite.RegisterConnectionHook(func(_ sqlite.ExecQuerierContext, address string) error {
		path, _, _ := strings.Cut(strings.TrimPrefix(address, "file:"), "?")
		if do, ok := whenOpened.Load(path); ok {
			do.(func())()
		}
		return nil
	})
}

// TestAllConnectionsHaveOneFileOpen: a copy of what another one reads would show a file elsewhere.
func TestAllConnectionsHaveOneFileOpen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells what SQLite has opened")
	}
	path, elsewhere := madeDatabase(t), madeDatabase(t)
	e := newSQLiteFile(path, "mode=ro", testLog)
	opened := 0
	whenOpened.Store(path, func() {
		opened++
		switch opened {
		case 1: // conn
			must(t, os.Rename(path, path+".away"))
			must(t, os.Symlink(elsewhere, path))
		case 2: // looker
			must(t, os.Rename(path+".away", path))
		}
	})
	err := e.connect(t.Context(), openExisting)
	wantRefusal(t, err, path, "was replaced while it was opened")
	must(t, e.Close())
}

// misled is a source whose copies SQLite makes in another file, by a link that is there while it
// opens the target.
type misled struct {
	copySource
	target, elsewhere string
}

func (s misled) NewBackup(address string) (*sqlite.Backup, error) {
	_ = os.Rename(s.target, s.target+".away")
	_ = os.Symlink(s.elsewhere, s.target)
	defer func() { _ = os.Rename(s.target+".away", s.target) }()
	return s.copySource.NewBackup(address)
}

// TestACopyIsMadeInTheFileThatWasOpened, and not where its name has led for a moment.
func TestACopyIsMadeInTheFileThatWasOpened(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells what SQLite has opened")
	}
	sc, elsewhere := newScene(t), madeDatabase(t)
	makeOtherDatabase(t, elsewhere, "PRAGMA journal_mode=DELETE")
	before := readText(t, elsewhere)
	for target, times := range map[*os.File]int{
		newFile(t, databasePath(t)):                         1,
		fileEngine(openDatabase(t, madeDatabase(t))).header: opensOfFile,
	} {
		conn, err := new(sqlite.Driver).Open(fileAddress(sc.copy))
		must(t, err)
		source := misled{conn.(copySource), target.Name(), elsewhere}
		_, err = copyFrom(t.Context(), source, target, times, "OFF")
		wantRefusal(t, err, target.Name(), "was replaced while it was opened")
		wantEqual(t, readText(t, elsewhere) == before, true, "that the other file is as it was")
	}
}

// TestRestoreBesideReaders: who reads the old database in a transaction reads it to the end.
func TestRestoreBesideReaders(t *testing.T) {
	sc := newScene(t)
	reader := otherProgram(t, sc.db, "BEGIN")
	wantPets := func(want int64) {
		t.Helper()
		wantEqual(t, numberIn(t, reader, "SELECT count(*) FROM pets"),
			want, "the number of pets for a reader")
	}
	wantPets(allPets)
	sc.mustRestore(t)
	wantPets(allPets)
	_, err := reader.ExecContext(t.Context(), "COMMIT")
	must(t, err)
	wantPets(copiedPets)
}

// TestRestoreFollowsLinks to where the database is, or is to be, and leaves them.
func TestRestoreFollowsLinks(t *testing.T) {
	for _, isThere := range []bool{true, false} {
		sc := newScene(t)
		first, target := linksToDatabase(t)
		want := []string{"pets.db", "pets.db-lock"}
		if isThere {
			copyDatabase(t, sc.db, target)
			want = append(want, "pets.db"+oldSuffix)
		}
		links := filesIn(t, filepath.Dir(first))
		sc.db = first
		sc.mustRestore(t)
		wantCopy(t, target)
		wantNames(t, filepath.Dir(target), want...)
		wantSameFiles(t, links, filesIn(t, filepath.Dir(first)))
	}
}

// TestADamagedDatabaseIsNotRestoredInto, since no copy of it can be kept. The message tells what to
// move away, and then there is no database. It says what is known of the ids that were given.
func TestADamagedDatabaseIsNotRestoredInto(t *testing.T) {
	for known, script := range rowsOf(t, `
		none can be read => lose; write pets.db damaged
		the highest that can be read is 205 => damage pets.db
		the highest that can be read is 5 => break pets.db`) {
		t.Run(known, func(t *testing.T) {
			sc := newScene(t)
			sc.prepare(t, script)
			before := filesIn(t, sc.folder)
			_, err := sc.restore(t.Context())
			wantRefusal(t, err, "the database is damaged", "of those that were given, "+known)
			wantRefusal(t, err, "",
				fmt.Sprintf("move %s, %[1]s-wal and %[1]s-shm away together", sc.db))
			wantSameFiles(t, before, filesIn(t, sc.folder))
			sc.prepare(t, "lose")
			sc.mustRestore(t)
			wantCopy(t, sc.db)
		})
	}
}

// TestRestoreMayBeStoppedAtAnyTime: it is done, or the old database is in its place with all that
// it had, and nothing is beside it that was not there, but perhaps a copy of it.
func TestRestoreMayBeStoppedAtAnyTime(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	sc := newScene(t)
	old, kept := "", sc.db+oldSuffix
	restore := func(ctx context.Context) (err error) {
		old, err = sc.restore(ctx)
		return err
	}
	stopEverywhere(t, restore, func() {
		wantEqual(t, old, "", "what the old database is said to be")
		wantAll(t, sc.db)
		if !isMissing(kept) {
			wantAll(t, kept)
			must(t, os.Remove(kept))
		}
		left := filesIn(t, sc.folder)
		delete(left, "pets.db-wal") // it may be folded in
		wantEqual(t, len(left), 3, "the number of files that are left")
	})
	wantCopy(t, sc.db)
}

// TestRestoreIntoNoDatabaseMayBeStoppedAtAnyTime: the next one finds nothing that it had to keep.
func TestRestoreIntoNoDatabaseMayBeStoppedAtAnyTime(t *testing.T) {
	takesSeconds(t)
	sc := newScene(t)
	sc.prepare(t, "lose")
	restore := func(ctx context.Context) error {
		return errorOf(sc.restore(ctx))
	}
	stopEverywhere(t, restore, func() {})
	wantCopy(t, sc.db)
	wantNames(t, sc.folder, "copy.db", "pets.db", "pets.db-lock")
}

// TestRestoreSaysWhatItDid. What it has kept can be restored in its turn. A lock tells that there
// was a database, but not which ids it has given.
func TestRestoreSaysWhatItDid(t *testing.T) {
	const unknown = "the ids that it gave are unknown"
	sc := newScene(t)
	restore := func(flags ...string) (log string) {
		t.Helper()
		args := append([]string{"restore", "-db", sc.db}, flags...)
		out, log, err := petstore(t, nil, append(args, sc.copy)...)
		must(t, err)
		wantEqual(t, out, "", "what is printed")
		return log
	}
	log := restore("-skip-ids", "7")
	kept, err := filepath.Glob(sc.db + ".*.old")
	must(t, err)
	copied, err := os.Stat(sc.copy)
	must(t, err)
	want := fmt.Sprintf(`"msg":"database restored","pets":3,"keys":2,"database":%q,"from":%q,`+
		`"made":%q,"old":%q,"skippedIDs":7}`, sc.db, sc.copy,
		copied.ModTime().UTC().Format(time.RFC3339Nano), kept[0])
	wantPart(t, log, want, "the log")
	wantCount(t, log, unknown, 0, "the log")
	wantNextIDs(t, sc.db, copiedPets+8, copiedKeys+8)

	sc.copy = kept[0]
	must(t, os.Remove(sc.db))
	log = restore()
	wantPart(t, log, unknown, "the log, where a lock alone is left,")
	wantPart(t, log, `"old":""`, "the log")
	wantAll(t, sc.db)
	wantNextIDs(t, sc.db, allPets+1_000_001, allKeys+1_000_001)

	must(t, os.Remove(sc.db))
	wantCount(t, restore("-skip-ids", "7"), unknown, 0, "the log with -skip-ids")
	wantNextIDs(t, sc.db, allPets+8, allKeys+8)
}

// progressFor shows the progress of work that does so much every second, for so many seconds, and
// returns what was written.
func progressFor(t *testing.T, p *progress, seconds, perSecond int64) (written string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		var out logBuffer
		p.out = &out
		p.start = time.Now()
		p.showLater()
		for range seconds {
			time.Sleep(time.Second - time.Millisecond)
			p.done.Add(perSecond)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		p.end()
		written = out.String()
	})
	return written
}

// TestProgressIsALineEveryFiveSeconds, and on a terminal one line that is taken off.
func TestProgressIsALineEveryFiveSeconds(t *testing.T) {
	for _, c := range []struct {
		total, seconds int64
		isTerminal     bool
		want           string
	}{
		{20_000, 14, false, "importing  25 % of 20000 pets  1000/s  15s left\n" +
			"importing  50 % of 20000 pets  1000/s  10s left\n"},
		{2000, 1, true, "\rimporting  0s\x1b[K" +
			"\rimporting  0s\x1b[K" +
			"\rimporting  1s\x1b[K" +
			"\rimporting  1s\x1b[K" +
			"\rimporting █████░░░░░  50 % of 2000 pets  1000/s  1s left\x1b[K" +
			"\r\x1b[K"},
		{10, 0, false, ""},
		{10, 0, true, ""},
	} {
		p := &progress{doing: "importing", unit: "pets", total: c.total, terminal: c.isTerminal}
		wantEqual(t, progressFor(t, p, c.seconds, 1000),
			c.want, fmt.Sprintf("what is shown in %d s", c.seconds))
	}
}

func TestProgressWithOddNumbers(t *testing.T) {
	// A row has the total, what is done, and for how many seconds.
	for row, want := range rowsOf(t, `
		of an unknown total: 0 5 5 => copying  5s
		that has not got on: 10 0 5 => copying  5s
		that gets on slowly: 1000 1 10 => copying   0 % of 1000 pages  0/s  2h46m30s left
		of more than there was: 10 20 5 => copying 100 % of 10 pages  2/s  0s left`) {
		synctest.Test(t, func(t *testing.T) {
			p := &progress{doing: "copying", unit: "pages", start: time.Now()}
			_, numbers, _ := strings.Cut(row, ": ")
			var done, seconds int64
			must(t, errorOf(fmt.Sscan(numbers, &p.total, &done, &seconds)))
			p.done.Store(done)
			time.Sleep(time.Duration(seconds) * time.Second)
			wantEqual(t, p.line(), want, "the line of work ", row)
		})
	}
}
