package main

// Tests of backups, and of the copying of pages. What restore does is in backup_restore_test.go.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

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
		wantRefusal(t, err, "", "a name that ends with "+suffix+" is that of a file beside a database")
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
