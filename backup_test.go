package main

// Tests of backups, and of the copying of pages. What restore does is in backup_restore_test.go.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	sqlite3 "modernc.org/sqlite/lib"
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
				_, _, _, err := s.createPetOnce(rex, worker, key, nil, testTime)
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
	file := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.WriteFile(file, nil, 0o600))
	pages, err := beginCopy(t.Context(), fileEngine(s).path, file, "OFF")
	must(t, err)
	defer pages.end()
	left := pages.backup.PageCount()
	for more := true; more; {
		mustCreate(t, s, rex)
		more, err = pages.backup.Step(1)
		must(t, err)
		if now := pages.backup.Remaining(); now != left-1 {
			t.Fatalf("of %d pages %d are left after one more", left, now)
		}
		left--
	}
	if pets, _ := copyHolds(t, file); pets != 1 {
		t.Errorf("the copy has %d pets, want 1", pets)
	}
}

// TestNobodyWritesToAFileThatIsCopiedInto until the end. What was not copied to its end is not
// done.
func TestNobodyWritesToAFileThatIsCopiedInto(t *testing.T) {
	sc := newScene(t)
	writer := otherProgram(t, sc.db, "PRAGMA journal_mode=WAL", "PRAGMA busy_timeout=0")
	deletePets := func() error {
		_, err := writer.ExecContext(t.Context(), "DELETE FROM pets")
		return err
	}
	pages, err := beginCopy(t.Context(), sc.copy, sc.db, "WAL")
	must(t, err)
	_, err = pages.backup.Step(1)
	must(t, err)
	if err := deletePets(); !isCode(err, sqlite3.SQLITE_BUSY) {
		t.Errorf("while it is locked, another program's write ends with %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantStopped(t, pages.run(ctx, io.Discard, "restoring"))
	pages.end()
	wantContent(t, sc.db, allPets, allKeys)
	must(t, deletePets())
}

func TestOfBackupsToOneNameAtOnceOneIsMade(t *testing.T) {
	s := newStore(t)
	mustCreate(t, s, rex)
	file := filepath.Join(t.TempDir(), "copy.db")
	var made atomic.Int64
	var backups sync.WaitGroup
	for range 8 {
		backups.Go(func() {
			err := backUp(t.Context(), s, file)
			if err == nil {
				made.Add(1)
				return
			}
			isRunning := strings.Contains(err.Error(), "another copy runs")
			exists := strings.Contains(err.Error(), "exists") || errors.Is(err, fs.ErrExist)
			if !isRunning && !exists {
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

// TestABackupThatIsRefusedLeavesEverything as it was.
func TestABackupThatIsRefusedLeavesEverything(t *testing.T) {
	const isThere = "is there: another copy runs, or was stopped; remove it"
	link := func(to, suffix string) func(file string) error {
		return func(file string) error { return os.Symlink(to, file+suffix) }
	}
	write := func(suffix string) func(file string) error {
		return func(file string) error { return os.WriteFile(file+suffix, []byte("x"), 0o600) }
	}
	for _, c := range []struct {
		what    string
		prepare func(file string) error
		want    string
	}{
		{"onto a file", write(""), "copy.db exists, and nothing is overwritten"},
		{"onto a link to nothing", link("nowhere", ""), "copy.db exists"},
		{"onto a link to a device", link(os.DevNull, ""), "copy.db exists"},
		{"beside a log", write("-wal"), "copy.db-wal exists"},
		{"beside a journal", write("-journal"), "copy.db-journal exists"},
		{"beside another copy", write(".partial"), "copy.db.partial " + isThere},
		{"beside a link", link("nowhere", ".partial"), "copy.db.partial " + isThere},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newStore(t)
			folder := t.TempDir()
			file := filepath.Join(folder, "copy.db")
			must(t, c.prepare(file))
			before := filesIn(t, folder)
			err := backUp(t.Context(), s, file)
			wantRefusal(t, err, folder, c.want)
			wantSameFiles(t, before, filesIn(t, folder))
		})
	}
	err := backUp(t.Context(), newStore(t), filepath.Join(t.TempDir(), "no", "copy.db"))
	wantRefusal(t, err, "copy.db", "no such file")
	for _, suffix := range []string{"-wal", "-shm", "-journal", "-lock", ".partial"} {
		err := backUp(t.Context(), newStore(t), filepath.Join(t.TempDir(), "pets.db"+suffix))
		wantRefusal(t, err, "", "a name that ends with "+suffix+
			" is that of a file beside a database")
	}
}

// TestAFileIsNamedWithoutALink where the file system has none, but not onto another file.
func TestAFileIsNamedWithoutALink(t *testing.T) {
	folder := t.TempDir()
	partial, err := createFile(filepath.Join(folder, "copy"))
	must(t, err)
	defer partial.discard()
	must(t, os.WriteFile(partial.path, []byte("another"), 0o600))
	if err := partial.publish(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("onto another file it ends with %v", err)
	}
	wantNames(t, folder, "copy", "copy.partial")
	must(t, os.Remove(partial.path))
	must(t, partial.rename())
	wantNames(t, folder, "copy")
	must(t, os.Remove(partial.path))
	if err := partial.rename(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a file that has gone it ends with %v", err)
	}
	wantNames(t, folder)
}

// TestACopyThatWasRemovedGetsNoName: neither an empty file nor another copy's half does.
func TestACopyThatWasRemovedGetsNoName(t *testing.T) {
	folder := t.TempDir()
	partial, err := createFile(filepath.Join(folder, "copy"))
	must(t, err)
	must(t, os.Remove(partial.Name()))
	wantRefusal(t, partial.publish(), partial.Name(), "was removed or replaced")
	must(t, os.WriteFile(partial.Name(), []byte("half"), 0o600))
	wantRefusal(t, partial.publish(), partial.Name(), "was removed or replaced")
	wantNames(t, folder, "copy.partial")
}

// TestAnotherCopysPartialIsNotDiscarded: the name is free once a file is renamed or removed.
func TestAnotherCopysPartialIsNotDiscarded(t *testing.T) {
	for what, free := range map[string]func(*partialFile) error{
		"renamed": (*partialFile).rename,
		"removed": func(f *partialFile) error { return os.Remove(f.Name()) },
	} {
		t.Run(what, func(t *testing.T) {
			partial, err := createFile(filepath.Join(t.TempDir(), "copy"))
			must(t, err)
			must(t, free(partial))
			must(t, os.WriteFile(partial.Name(), []byte("another's"), 0o600))
			partial.discard()
			if got := readText(t, partial.Name()); got != "another's" {
				t.Errorf("the other file holds %q", got)
			}
		})
	}
}

// TestAFileIsClosedWhereAnOpenOneIsRefused: Windows neither removes nor renames an open file.
func TestAFileIsClosedWhereAnOpenOneIsRefused(t *testing.T) {
	folder := t.TempDir()
	partial, err := createFile(filepath.Join(folder, "copy"))
	must(t, err)
	end := removeOpen(partial.File, func(name string) error {
		if _, err := partial.Stat(); err == nil {
			return errors.New("it is open")
		}
		return os.Remove(name)
	})
	_, err = partial.WriteString("it can be used until the end")
	must(t, err)
	wantNames(t, folder, "copy.partial")
	end()
	wantNames(t, folder)

	partial, err = createFile(filepath.Join(folder, "copy"))
	must(t, err)
	must(t, partial.rename())
	if err := partial.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a renamed file was left open: %v", err)
	}
}

// TestACopyIsOnDiskBeforeItHasItsName, and its name is before it is said to be made: a power cut
// leaves no half copy under the name, and takes no name away.
func TestACopyIsOnDiskBeforeItHasItsName(t *testing.T) {
	folder := t.TempDir()
	partial, err := createFile(filepath.Join(folder, "copy"))
	must(t, err)
	defer partial.discard()
	var broken error
	var synced []string
	partial.sync = func(file *os.File) error {
		_, err := os.Lstat(partial.path)
		synced = append(synced, fmt.Sprintf("%s, named: %v", file.Name(), err == nil))
		return broken
	}
	broken = syscall.EIO
	if err := partial.publish(); !errors.Is(err, broken) {
		t.Errorf("on a disk that fails it ends with %v", err)
	}
	wantNames(t, folder, "copy.partial")
	broken = nil
	must(t, partial.publish())
	want := []string{partial.Name() + ", named: false", folder + ", named: true"}
	if runtime.GOOS == "windows" { // where a folder cannot be opened
		want = want[:1]
	}
	if !slices.Equal(synced[1:], want) {
		t.Errorf("synced are %q, want %q", synced[1:], want)
	}
}

// endingContext ends when it has been asked for so often whether it has.
type endingContext struct {
	context.Context
	cancel context.CancelFunc
	left   atomic.Int64
}

func newEndingContext(t testing.TB, looks int64) *endingContext {
	t.Helper()
	c := &endingContext{}
	c.Context, c.cancel = context.WithCancel(t.Context())
	t.Cleanup(c.cancel)
	c.left.Store(looks)
	return c
}

func (c *endingContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (c *endingContext) Err() error {
	c.look()
	return c.Context.Err()
}

func (c *endingContext) look() {
	if c.left.Add(-1) == 0 {
		c.cancel()
	}
}

// wantStopped checks that something has ended because its context has.
func wantStopped(t testing.TB, err error) {
	t.Helper()
	isStopped := errors.Is(err, context.Canceled) ||
		err != nil && strings.Contains(err.Error(), "interrupted")
	if !isStopped {
		t.Errorf("stopped, it ends with %v", err)
	}
}

// TestABackupMayBeStoppedAtAnyTime: it is done, or nothing is.
func TestABackupMayBeStoppedAtAnyTime(t *testing.T) {
	s := newStore(t)
	folder := t.TempDir()
	for looks := int64(1); ; looks++ {
		err := backUp(newEndingContext(t, looks), s, filepath.Join(folder, "copy.db"))
		if err == nil {
			if looks < 5 {
				t.Errorf("stopped at the look %d, the backup is made", looks)
			}
			break
		}
		wantStopped(t, err)
		wantNames(t, folder)
	}
	wantNames(t, folder, "copy.db")
}

// damage overwrites the last page of a closed database file.
func damage(t testing.TB, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	must(t, err)
	copy(content[len(content)-4096:], make([]byte, 512))
	must(t, os.WriteFile(file, content, 0o600))
}

// TestABackupOfADamagedDatabaseIsNone, and neither is one of rows that break a rule of the schema.
func TestABackupOfADamagedDatabaseIsNone(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "copy.db")
	for _, c := range []struct {
		change  []string
		damaged bool
	}{
		{change: []string{manyPets}, damaged: true},
		{change: []string{
			"PRAGMA ignore_check_constraints = 1",
			"INSERT INTO pets (id, category_id, status, name) VALUES (2, 1, 9, 'x')",
		}},
	} {
		db := madeDatabase(t)
		makeOtherDatabase(t, db, c.change...)
		if c.damaged {
			damage(t, db)
		}
		err := backUp(t.Context(), openDatabase(t, db), file)
		wantRefusal(t, err, "", "the copy is damaged")
		wantNames(t, folder)
	}
}

// manyPets adds pets whose names fill many pages.
const manyPets = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200)
	INSERT INTO pets (category_id, status, name) SELECT i, 4, hex(randomblob(90)) FROM n`

// TestBackupWhileTheServiceRuns is the operator's command. The copy serves as it is.
func TestBackupWhileTheServiceRuns(t *testing.T) {
	db := databasePath(t)
	s := startServer(t, nil, "-db", db)
	response, body := s.post(`{"name":"Rex","categoryId":7}`)
	if response.StatusCode != 201 {
		t.Fatalf("%d %s", response.StatusCode, body)
	}
	file := filepath.Join(t.TempDir(), "copy.db")
	out, log, err := petstore(t, map[string]string{"PETSTORE_DB": db}, "backup", file)
	must(t, err)
	want := fmt.Sprintf(`"msg":"backup made","pets":1,"database":%q,"to":%q}`+"\n", db, file)
	if out != "" || !strings.HasSuffix(log, want) || strings.Count(log, "\n") != 1 {
		t.Errorf("backup says %q %q", out, log)
	}
	wantNextIDs(t, file, 2, 2)
}

// scene is a database that a kill has left, so that what was stored last is in its log alone, and
// an older copy of it.
type scene struct{ folder, db, copy string }

// What the two of a scene hold.
const (
	copiedPets, copiedKeys = 3, 2
	allPets, allKeys       = 5, 3
)

func newScene(t testing.TB) *scene {
	t.Helper()
	folder := t.TempDir()
	sc := &scene{
		folder: folder,
		db:     filepath.Join(folder, "pets.db"),
		copy:   filepath.Join(folder, "copy.db"),
	}
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
	must(t, os.WriteFile(sc.db+"-shm", nil, 0o600))
	must(t, os.WriteFile(sc.db+"-lock", nil, 0o600))
	return sc
}

// copyDatabase copies a database file and its log as they are.
func copyDatabase(t testing.TB, from, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(from + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		must(t, err)
		must(t, os.WriteFile(to+suffix, content, 0o600))
	}
}

// oldSuffix is where the database is kept that a scene restores into.
const oldSuffix = ".20260504T120000.000Z.old"

// restore does what petstore restore does, at testTime.
func (sc *scene) restore(ctx context.Context) (old string, err error) {
	old, _, err = sc.restoreAt(ctx, testTime, 1_000_000)
	return old, err
}

// restoreAt does what petstore restore -skip-ids does.
func (sc *scene) restoreAt(ctx context.Context, now time.Time, skipIDs int64) (
	old, log string, err error) {
	var lines strings.Builder
	c := &invocation{
		process: &process{stderr: io.Discard},
		FlagSet: flag.NewFlagSet("", flag.ContinueOnError),
		now:     instantOf(now),
		log:     newLogger(&lines, "text", slog.LevelInfo),
	}
	c.db, c.skipIDs, c.argument = sc.db, skipIDs, sc.copy
	_, old, err = c.restoreCopy(ctx)
	return old, lines.String(), err
}

func (sc *scene) mustRestore(t testing.TB) (old string) {
	t.Helper()
	old, err := sc.restore(t.Context())
	must(t, err)
	return old
}

// lose removes the database.
func (sc *scene) lose(t testing.TB) {
	t.Helper()
	must(t, os.Remove(sc.db))
	must(t, os.Remove(sc.db+"-wal"))
}

// wantContent checks what a database holds, without changing anything.
func wantContent(t testing.TB, path string, pets, keys int64) {
	t.Helper()
	alone := filepath.Join(t.TempDir(), "alone.db")
	copyDatabase(t, path, alone)
	db := soundDatabase(t, alone)
	defer db.Close()
	gotPets := numberIn(t, db, "SELECT count(*) FROM pets")
	gotKeys := numberIn(t, db, "SELECT count(*) FROM api_keys")
	if gotPets != pets || gotKeys != keys {
		t.Errorf("%s holds %d pets and %d keys, want %d and %d",
			path, gotPets, gotKeys, pets, keys)
	}
}

// wantNames checks which files are in a folder.
func wantNames(t testing.TB, folder string, want ...string) {
	t.Helper()
	names := slices.Sorted(maps.Keys(filesIn(t, folder)))
	if !slices.Equal(names, want) {
		t.Errorf("in the folder are %q, want %q", names, want)
	}
}

func wantMode(t testing.TB, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	if info.Mode() != want {
		t.Errorf("%s has the mode %v, want %v", path, info.Mode(), want)
	}
}

// wantNextIDs checks which ids a pet and a key get next.
func wantNextIDs(t testing.TB, path string, pet, key int64) {
	t.Helper()
	s := openDatabaseFor(t, path, openToServe)
	defer s.Close()
	wantNextID(t, s, pet)
	mustInsertKey(t, s, apiKey{})
	if got := readNumber(t, s, "SELECT max(id) FROM api_keys"); got != key {
		t.Errorf("the next key has the id %d, want %d", got, key)
	}
}

func TestRestoreKeepsTheOldDatabase(t *testing.T) {
	sc := newScene(t)
	copied := filesIn(t, sc.folder)["copy.db"]
	old := sc.mustRestore(t)
	if old != sc.db+oldSuffix {
		t.Errorf("the old database is said to be %s", old)
	}
	wantNames(t, sc.folder, "copy.db", "pets.db", "pets.db-lock", "pets.db"+oldSuffix)
	wantMode(t, old, 0o600)
	if filesIn(t, sc.folder)["copy.db"] != copied {
		t.Error("the copy was changed")
	}
	wantContent(t, old, allPets, allKeys)
	wantContent(t, sc.db, copiedPets, copiedKeys)
	// What was kept can be restored in its turn.
	sc.copy, sc.db = old, sc.db+"2"
	sc.mustRestore(t)
	wantContent(t, sc.db, allPets, allKeys)
	wantNextIDs(t, sc.db, 1_000_000+allPets+1, 1_000_000+allKeys+1)
}

// TestRestoreMovesTheIDsOn: clients have seen ids that the copy does not know.
func TestRestoreMovesTheIDsOn(t *testing.T) {
	for _, c := range []struct {
		what     string
		change   []string // of the copy
		pet, key int64
	}{
		{
			what:   "of pets that were deleted",
			change: []string{"DELETE FROM pets"},
			pet:    1_000_000 + copiedPets + 1,
			key:    1_000_000 + copiedKeys + 1,
		},
		{
			what: "of no pet and no key yet",
			change: []string{
				"DELETE FROM pets", "DELETE FROM api_keys", "DELETE FROM sqlite_sequence",
			},
			pet: 1_000_001,
			key: 1_000_001,
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			sc := newScene(t)
			makeOtherDatabase(t, sc.copy, c.change...)
			sc.mustRestore(t)
			wantNextIDs(t, sc.db, c.pet, c.key)
		})
	}
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
				_, _, err := sc.restoreAt(t.Context(), now, skipIDs)
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
		_, _, err := sc.restoreAt(ctx, testTime, 0)
		must(t, err)
		if ctx.left.Load() > 0 { // restore has ended before it looked so often
			return
		}
		<-tried
		wantNextIDs(t, sc.db, added+1, allKeys+1)
	}
}

// TestRestoreKeepsWhatIsMadeMeanwhile: where no database was, a command may make one while the copy
// is checked.
func TestRestoreKeepsWhatIsMadeMeanwhile(t *testing.T) {
	t.Parallel()
	for looks := int64(1); ; looks += 7 { // it looks some 70 times
		sc := newScene(t)
		sc.lose(t)
		ctx := newEndingContext(t, looks)
		made := make(chan error, 1)
		ctx.cancel = func() { // perhaps on a goroutine of database/sql
			_, _, err := petstore(t, nil, "key", "create", "-db", sc.db)
			made <- err
		}
		old, _, err := sc.restoreAt(ctx, testTime, 0)
		must(t, err)
		if ctx.left.Load() > 0 { // restore has ended before it looked so often
			return
		}
		if <-made != nil {
			continue
		}
		// The key is in what is kept, or it came after the restore.
		keys := numberIn(t, soundDatabase(t, sc.db), "SELECT count(*) FROM api_keys")
		if old != "" {
			keys += numberIn(t, soundDatabase(t, old), "SELECT count(*) FROM api_keys")
		}
		if keys != copiedKeys+1 {
			t.Errorf("after the look %d, %d keys are left, want %d", looks, keys, copiedKeys+1)
		}
	}
}

// TestRestoreSaysWhatItCannotKnow: a lock tells that there was a database, but not which ids it has
// given.
func TestRestoreSaysWhatItCannotKnow(t *testing.T) {
	const unknown = "the ids that it gave are unknown"
	sc := newScene(t)
	_, log, err := sc.restoreAt(t.Context(), testTime, 0)
	must(t, err)
	if strings.Contains(log, unknown) {
		t.Errorf("with the database in its place, restore says %s", log)
	}
	must(t, os.Remove(sc.db))
	_, log, err = sc.restoreAt(t.Context(), testTime, 0)
	must(t, err)
	if !strings.Contains(log, unknown) || !strings.Contains(log, sc.db) {
		t.Errorf("where a lock alone is left, restore says %q", log)
	}
}

// TestIDsDoNotWrap: ids end with int64.
func TestIDsDoNotWrap(t *testing.T) {
	sc := newScene(t)
	makeOtherDatabase(t, sc.copy, "UPDATE sqlite_sequence SET seq = 9223372036854775807 - 10")
	before := filesIn(t, sc.folder)
	_, _, err := sc.restoreAt(t.Context(), testTime, 11)
	wantRefusal(t, err, "its highest id is 9223372036854775797", "11 more cannot be skipped")
	wantSameFiles(t, before, filesIn(t, sc.folder))
	_, _, err = sc.restoreAt(t.Context(), testTime, 9)
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
		isSame := os.SameFile(before, after) && ownerOf(before) == ownerOf(after)
		if !isSame || after.Mode() != 0o640 {
			t.Errorf("%s is another file, of %s with %v", name, ownerOf(after), after.Mode())
		}
	}
}

// TestWhatRootMakesBelongsToTheFoldersOwner, as the service has to use it. What root names, and
// what was there, stays root's, and no link is followed that the owner has planted.
func TestWhatRootMakesBelongsToTheFoldersOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	sc := newScene(t)
	must(t, os.Chown(sc.folder, 12345, 54321))
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	refuse := func(link string) {
		t.Helper()
		must(t, os.Remove(link))
		must(t, os.Symlink(elsewhere, link))
		if _, err := sc.restore(t.Context()); err == nil || !isMissing(elsewhere) {
			t.Errorf("with a link as %s, restore says %v", link, err)
		}
		must(t, os.Remove(link))
	}
	refuse(sc.db + "-lock")
	must(t, os.Remove(sc.db+"-wal"))
	refuse(sc.db)
	want := func(owner string, paths ...string) {
		t.Helper()
		for _, path := range paths {
			info, err := os.Stat(path)
			must(t, err)
			if ownerOf(info) != owner {
				t.Errorf("%s belongs to %s, not to %s", path, ownerOf(info), owner)
			}
		}
	}
	sc.mustRestore(t)
	want("12345 54321", sc.db, sc.db+"-lock")
	must(t, os.Remove(sc.db+"-lock"))
	must(t, os.WriteFile(sc.db+"-lock", nil, 0o600))
	old := sc.mustRestore(t)
	_, _, err := petstore(t, nil, "backup", "-db", sc.db, sc.db+".backup")
	must(t, err)
	mustCreate(t, openDatabase(t, sc.db), rex)
	want("12345 54321", old, sc.db+"-wal", sc.db+"-shm")
	want("0 0", sc.copy, sc.db+"-lock", sc.db+".backup")
}

// ownerOf is the numbers of a file's owner, on systems whose files have one.
func ownerOf(info fs.FileInfo) string {
	stat := reflect.Indirect(reflect.ValueOf(info.Sys()))
	return fmt.Sprint(stat.FieldByName("Uid"), stat.FieldByName("Gid"))
}

// spoiler prepares a scene for a restore that is refused.
type spoiler func(t *testing.T, sc *scene)

// TestRestoreIsRefused, and everything stays as it was.
func TestRestoreIsRefused(t *testing.T) {
	const another = "it belongs to another program"
	for _, c := range []struct {
		what  string
		spoil spoiler
		want  string
	}{
		{"while a service runs", serveDatabase, "a petstore serves it; stop it first"},
		{"through a link, while a service runs", func(t *testing.T, sc *scene) {
			serveDatabase(t, sc)
			sc.db = linkTo(t, sc.db)
		}, "a petstore serves it; stop it first"},
		{"of a copy with a journal", func(t *testing.T, sc *scene) {
			must(t, os.WriteFile(sc.copy+"-journal", []byte("pets"), 0o600))
		}, "has a log beside it, copy.db-journal"},
		{"of a link to a copy with a log", func(t *testing.T, sc *scene) {
			must(t, os.WriteFile(sc.copy+"-wal", []byte("pets"), 0o600))
			sc.copy = linkTo(t, sc.copy)
		}, "has a log beside it, copy.db-wal"},
		{"of a missing copy", func(t *testing.T, sc *scene) {
			must(t, os.Remove(sc.copy))
		}, "no such file"},
		{"of an empty file", overwriteCopy(""), "it is no petstore's"},
		{"of another kind of file", overwriteCopy("pets"), "file is not a database"},
		{"of another program's database", func(t *testing.T, sc *scene) {
			sc.copy = recipes(t, sc)
		}, another},
		{"of a newer petstore's database", changeCopy(newerSchema), "use a newer petstore"},
		{"of rows that break a rule", changeCopy(brokenRule...), "the copy is damaged"},
		{"of a damaged copy", func(t *testing.T, sc *scene) {
			makeOtherDatabase(t, sc.copy, manyPets)
			damage(t, sc.copy)
		}, "damaged"},
		{"beside what a killed restore has left", func(t *testing.T, sc *scene) {
			must(t, os.WriteFile(sc.db+".partial", []byte("half"), 0o600))
		}, "pets.db.partial is there: another copy runs, or was stopped; remove it"},
		{"onto another program's database", func(t *testing.T, sc *scene) {
			sc.db = recipes(t, sc)
		}, another},
		{"onto another program's database of a high version", func(t *testing.T, sc *scene) {
			sc.db = recipes(t, sc, "PRAGMA user_version=99")
		}, another},
		{"into a missing folder", func(_ *testing.T, sc *scene) {
			sc.db = filepath.Join(sc.folder, "no", "pets.db")
		}, "no such file"},
		{"where the log of a missing database is left", func(t *testing.T, sc *scene) {
			must(t, os.Remove(sc.db))
		}, "it is missing or empty, but its -wal is there"},
	} {
		t.Run(c.what, func(t *testing.T) {
			sc := newScene(t)
			c.spoil(t, sc)
			before := filesIn(t, sc.folder)
			old, err := sc.restore(t.Context())
			wantRefusal(t, err, "", c.want)
			if old != "" {
				t.Errorf("the old database is said to be %s", old)
			}
			wantSameFiles(t, before, filesIn(t, sc.folder))
		})
	}
}

var (
	newerSchema = fmt.Sprintf("PRAGMA user_version = %d", len(migrations)+1)
	brokenRule  = []string{
		"PRAGMA ignore_check_constraints = 1", "UPDATE pets SET status = 9 WHERE id = 2",
	}
)

func serveDatabase(t *testing.T, sc *scene) { openDatabaseFor(t, sc.db, openToServe) }

func overwriteCopy(content string) spoiler {
	return func(t *testing.T, sc *scene) {
		must(t, os.WriteFile(sc.copy, []byte(content), 0o600))
	}
}

func changeCopy(statements ...string) spoiler {
	return func(t *testing.T, sc *scene) { makeOtherDatabase(t, sc.copy, statements...) }
}

func linkTo(t *testing.T, path string) (link string) {
	link = path + ".link"
	must(t, os.Symlink(filepath.Base(path), link))
	return link
}

// recipes makes a database of another program.
func recipes(t *testing.T, sc *scene, statements ...string) (path string) {
	path = filepath.Join(sc.folder, "recipes.db")
	makeOtherDatabase(t, path, append(statements, "CREATE TABLE recipes (name)")...)
	return path
}

// TestACopyWithPagesOfAnotherSizeIsRefused before the old database is kept.
func TestACopyWithPagesOfAnotherSizeIsRefused(t *testing.T) {
	sc := newScene(t)
	makeOtherDatabase(t, sc.copy, "PRAGMA page_size = 8192", "VACUUM")
	_, err := sc.restore(t.Context())
	wantRefusal(t, err, "which is 4096 in a new one", "the copy's pages have another size")
	wantContent(t, sc.db, allPets, allKeys)
	wantNames(t, sc.folder, "copy.db", "pets.db", "pets.db-lock")
}

// TestARefusedRestoreDisturbsNoService: neither that of the database nor that of the copy.
func TestARefusedRestoreDisturbsNoService(t *testing.T) {
	sc := newScene(t)
	services := []*store{
		openDatabaseFor(t, sc.db, openToServe),
		openDatabaseFor(t, sc.copy, openToServe),
	}
	for _, s := range services {
		mustCreate(t, s, rex)
	}
	if _, err := sc.restore(t.Context()); err == nil {
		t.Error("it is not refused")
	}
	sc.copy = linkTo(t, sc.copy)
	sc.db = filepath.Join(sc.folder, "new.db")
	if _, err := sc.restore(t.Context()); err == nil {
		t.Error("it is not refused")
	}
	for _, s := range services {
		mustCreate(t, s, rex)
		path := fileEngine(s).path
		_, err := openStore(context.Background(), path, openToServe, testLog)
		wantRefusal(t, err, path, "a petstore serves it") // its lock is still held
	}
}

// TestRestoreWaitsForALock, until it is stopped or has the lock. No service can start meanwhile.
func TestRestoreWaitsForALock(t *testing.T) {
	sc := newScene(t)
	synctest.Test(t, func(t *testing.T) {
		other := otherProgram(t, sc.db, "PRAGMA journal_mode=WAL", "BEGIN IMMEDIATE")
		before := filesIn(t, sc.folder)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := sc.restore(ctx)
		wantStopped(t, err)
		if took := time.Since(start); took != time.Second {
			t.Errorf("stopped after a second, it ends after %v", took)
		}
		wantSameFiles(t, before, filesIn(t, sc.folder))

		start = time.Now()
		// It waits for serviceWait, and ends between two tries of the restore.
		time.AfterFunc(time.Second-serviceWait-lockPoll/2, func() {
			lock, err := holdServiceLock(t.Context(), sc.db)
			if !errors.Is(err, errServed) {
				t.Errorf("a service that starts meanwhile meets %v", err)
			}
			if err == nil {
				must(t, lock.Close())
			}
			_, err = other.ExecContext(context.Background(), "COMMIT")
			must(t, err)
		})
		sc.mustRestore(t)
		if took := time.Since(start); took != time.Second {
			t.Errorf("once the lock is gone, it ends after %v", took)
		}
		must(t, other.Close())
	})
	wantContent(t, sc.db, copiedPets, copiedKeys)
	wantContent(t, sc.db+oldSuffix, allPets, allKeys)
}

// TestRestoreBesideReaders: who reads the old database in a transaction reads it to the end.
func TestRestoreBesideReaders(t *testing.T) {
	sc := newScene(t)
	reader := otherProgram(t, sc.db, "BEGIN")
	wantPets := func(want int64) {
		t.Helper()
		if pets := numberIn(t, reader, "SELECT count(*) FROM pets"); pets != want {
			t.Errorf("a reader finds %d pets, want %d", pets, want)
		}
	}
	wantPets(allPets)
	sc.mustRestore(t)
	wantPets(allPets)
	_, err := reader.ExecContext(t.Context(), "COMMIT")
	must(t, err)
	wantPets(copiedPets)
}

// TestRestoreIntoNoDatabase keeps nothing: there is nothing to be kept.
func TestRestoreIntoNoDatabase(t *testing.T) {
	for _, c := range []struct {
		what    string
		prepare func(t *testing.T, path string)
	}{
		{"a missing file", func(*testing.T, string) {}},
		{"an empty file", func(t *testing.T, path string) {
			must(t, os.WriteFile(path, nil, 0o600))
		}},
		{"a database without tables", func(t *testing.T, path string) {
			makeOtherDatabase(t, path, "PRAGMA user_version = 1", "PRAGMA user_version = 0")
			must(t, os.Chmod(path, 0o600))
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			sc := newScene(t)
			sc.lose(t)
			c.prepare(t, sc.db)
			must(t, os.Chmod(sc.copy, 0o644))
			if old := sc.mustRestore(t); old != "" {
				t.Errorf("the old database is said to be %q", old)
			}
			wantNames(t, sc.folder, "copy.db", "pets.db", "pets.db-lock")
			wantMode(t, sc.db, 0o600)
			wantContent(t, sc.db, copiedPets, copiedKeys)
		})
	}
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
		wantContent(t, target, copiedPets, copiedKeys)
		wantNames(t, filepath.Dir(target), want...)
		wantSameFiles(t, links, filesIn(t, filepath.Dir(first)))
	}
}

// TestADamagedDatabaseIsNotRestoredInto, since no copy of it can be kept. The message tells what to
// move away, and then there is no database.
func TestADamagedDatabaseIsNotRestoredInto(t *testing.T) {
	for _, c := range []struct {
		what  string
		spoil spoiler
		known string // of the ids that it has given
	}{
		{"no database at all", func(t *testing.T, sc *scene) {
			sc.lose(t)
			must(t, os.WriteFile(sc.db, []byte("damaged\n"), 0o600))
		}, "none of them can be read"},
		{"a damaged page", func(t *testing.T, sc *scene) {
			makeOtherDatabase(t, sc.db, manyPets, "PRAGMA wal_checkpoint(TRUNCATE)")
			damage(t, sc.db)
		}, "the highest that can be read is 205"},
		{"rows that break a rule", func(t *testing.T, sc *scene) {
			makeOtherDatabase(t, sc.db, brokenRule...)
		}, "the highest that can be read is 5"},
	} {
		t.Run(c.what, func(t *testing.T) {
			sc := newScene(t)
			c.spoil(t, sc)
			before := filesIn(t, sc.folder)
			_, err := sc.restore(t.Context())
			wantRefusal(t, err, "the database is damaged", "a -skip-ids above all ids that were "+
				"given since the copy was made: "+c.known)
			wantRefusal(t, err, "",
				fmt.Sprintf("move %s, %[1]s-wal and %[1]s-shm away together", sc.db))
			wantSameFiles(t, before, filesIn(t, sc.folder))
			for _, suffix := range []string{"", "-wal", "-shm"} {
				_ = os.Remove(sc.db + suffix)
			}
			sc.mustRestore(t)
			wantContent(t, sc.db, copiedPets, copiedKeys)
		})
	}
}

// TestRestoreReplacesOlderAndNewerDatabases: that is how to go back after an upgrade.
func TestRestoreReplacesOlderAndNewerDatabases(t *testing.T) {
	for _, schema := range []string{"PRAGMA user_version = 1", newerSchema} {
		sc := newScene(t)
		makeOtherDatabase(t, sc.db, schema)
		old := sc.mustRestore(t)
		if old == "" {
			t.Errorf("after %s nothing is kept", schema)
			continue
		}
		wantContent(t, old, allPets, allKeys)
		wantNextIDs(t, sc.db, 1_000_000+copiedPets+1, 1_000_000+copiedKeys+1)
	}
}

// TestRestoreMayBeStoppedAtAnyTime: it is done, or the old database is in its place with all that
// it had, and nothing is beside it that was not there, but perhaps a copy of it.
func TestRestoreMayBeStoppedAtAnyTime(t *testing.T) {
	sc := newScene(t)
	before := filesIn(t, sc.folder)
	delete(before, "pets.db-wal")
	for looks := int64(1); ; looks++ {
		old, err := sc.restore(newEndingContext(t, looks))
		if err == nil {
			if looks < 5 {
				t.Errorf("stopped at the look %d, it is done", looks)
			}
			break
		}
		wantStopped(t, err)
		if old != "" {
			t.Errorf("the old database is said to be %q", old)
		}
		wantContent(t, sc.db, allPets, allKeys)
		left := filesIn(t, sc.folder)
		delete(left, "pets.db-wal") // it may be folded in
		maps.DeleteFunc(left, func(name, _ string) bool {
			whole := strings.HasSuffix(name, ".old")
			if whole {
				wantContent(t, filepath.Join(sc.folder, name), allPets, allKeys)
				must(t, os.Remove(filepath.Join(sc.folder, name)))
			}
			return whole
		})
		if len(left) != len(before) {
			names := slices.Collect(maps.Keys(left))
			t.Fatalf("stopped at the look %d, it leaves %q", looks, names)
		}
	}
	wantContent(t, sc.db, copiedPets, copiedKeys)
}

// TestRestoreIntoNoDatabaseMayBeStoppedAtAnyTime: the next one finds nothing that it had to keep.
func TestRestoreIntoNoDatabaseMayBeStoppedAtAnyTime(t *testing.T) {
	sc := newScene(t)
	sc.lose(t)
	err := context.Canceled
	for looks := int64(1); err != nil; looks++ {
		_, err = sc.restore(newEndingContext(t, looks))
		if err != nil {
			wantStopped(t, err)
		}
	}
	wantContent(t, sc.db, copiedPets, copiedKeys)
	wantNames(t, sc.folder, "copy.db", "pets.db", "pets.db-lock")
}

func TestRestoreSaysWhatItDid(t *testing.T) {
	sc := newScene(t)
	out, log, err := petstore(t, nil, "restore", "-db", sc.db, "-skip-ids", "7", sc.copy)
	must(t, err)
	old, err := filepath.Glob(sc.db + ".*.old")
	if err != nil || len(old) != 1 {
		t.Fatalf("beside the database are %q, %v", old, err)
	}
	want := fmt.Sprintf(`"msg":"database restored","pets":3,"database":%q,"from":%q,"old":%q,`+
		`"skippedIDs":7}`, sc.db, sc.copy, old[0])
	if out != "" || !strings.Contains(log, want) {
		t.Errorf("restore says %q %q, want %s", out, log, want)
	}
	wantNextIDs(t, sc.db, copiedPets+8, copiedKeys+8)
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

func TestProgressIsALineEveryFiveSeconds(t *testing.T) {
	p := &progress{doing: "importing", unit: "pets", total: 20_000}
	want := "importing  25 % of 20000 pets  1000/s  15s left\n" +
		"importing  50 % of 20000 pets  1000/s  10s left\n"
	if got := progressFor(t, p, 14, 1000); got != want {
		t.Errorf("it shows\n%s, want\n%s", got, want)
	}
}

func TestProgressThatEndsSoonShowsNothing(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		p := &progress{doing: "importing", unit: "pets", total: 10, terminal: terminal}
		if got := progressFor(t, p, 0, 0); got != "" {
			t.Errorf("on a terminal (%v) it shows %q", terminal, got)
		}
	}
}

func TestProgressOnATerminalIsOneLineThatIsTakenOff(t *testing.T) {
	p := &progress{doing: "importing", unit: "pets", total: 2000, terminal: true}
	want := "\rimporting  0s\x1b[K" +
		"\rimporting  0s\x1b[K" +
		"\rimporting  1s\x1b[K" +
		"\rimporting  1s\x1b[K" +
		"\rimporting █████░░░░░  50 % of 2000 pets  1000/s  1s left\x1b[K" +
		"\r\x1b[K"
	if got := progressFor(t, p, 1, 1000); got != want {
		t.Errorf("it shows\n%q, want\n%q", got, want)
	}
}

func TestProgressWithOddNumbers(t *testing.T) {
	for _, c := range []struct {
		what          string
		total, done   int64
		secondsBefore int64
		want          string
	}{
		{"of an unknown total", 0, 5, 5, "copying  5s"},
		{"that has not got on", 10, 0, 5, "copying  5s"},
		{"that gets on slowly", 1000, 1, 10, "copying   0 % of 1000 pages  0/s  2h46m30s left"},
		{"of more than there was", 10, 20, 5, "copying 100 % of 10 pages  2/s  0s left"},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &progress{doing: "copying", unit: "pages", total: c.total, start: time.Now()}
				p.done.Store(c.done)
				time.Sleep(time.Duration(c.secondsBefore) * time.Second)
				if got := p.line(); got != c.want {
					t.Errorf("it shows %q, want %q", got, c.want)
				}
			})
		})
	}
}
