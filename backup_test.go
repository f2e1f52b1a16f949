package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
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

// TestABackupIsConsistentWhileOthersWrite: every writer stores a record and an
// pet in one transaction, so that a torn copy has more of one. The backup
// is a process of its own, as petstore backup is.
func TestABackupIsConsistentWhileOthersWrite(t *testing.T) {
	s := storeNew(t)
	command := storeOpen(t, sqliteOf(s).path)
	stop := make(chan bool)
	started := make(chan bool, 4)
	var wg sync.WaitGroup
	for worker := range cap(started) {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				_, _, _, err := s.createPetOnce(NewPet{"Rex", 1, Sold}, int64(worker), fmt.Sprint(i), nil, storeNow)
				if err != nil {
					t.Error(err)
					return
				}
				if i == 0 {
					started <- true
				}
			}
		})
	}
	for range cap(started) {
		<-started
	}
	file, folder := "", t.TempDir()
	least := int64(cap(started))
	for i := range 3 {
		file = filepath.Join(folder, fmt.Sprintf("copy ?#%% %d.db", i))
		if err := sqliteBackup(t.Context(), command, file); err != nil {
			t.Error(err)
			break
		}
		pets, records := sqliteCopy(t, file)
		if pets != records || pets < least {
			t.Errorf("the copy has %d pets and %d records, want equally many and at least %d", pets, records, least)
		}
		least = pets
	}
	close(stop)
	wg.Wait()
	if t.Failed() {
		return
	}
	restored := storeOpen(t, file)
	if id := storeCreate(t, restored, NewPet{"Max", 1, Sold}); id != least+1 {
		t.Errorf("a restored copy goes on with id %d, want %d", id, least+1)
	}
}

// TestOfBackupsToOneNameAtOnceOneIsMade, and it is whole.
func TestOfBackupsToOneNameAtOnceOneIsMade(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	file := filepath.Join(t.TempDir(), "copy.db")
	var made atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			err := sqliteBackup(t.Context(), s, file)
			if err == nil {
				made.Add(1)
				return
			}
			running := strings.Contains(err.Error(), "another copy runs, or was stopped; remove it")
			if !running && !strings.Contains(err.Error(), "nothing is overwritten") && !errors.Is(err, fs.ErrExist) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if pets, _ := sqliteCopy(t, file); pets != 1 || made.Load() != 1 {
		t.Errorf("%d copies are made, with %d pets", made.Load(), pets)
	}
	if tree := sqliteTree(t, filepath.Dir(file)); len(tree) != 1 {
		t.Errorf("there are %d files", len(tree))
	}
}

// sqliteBackup does what petstore backup does.
func sqliteBackup(ctx context.Context, s *store, file string) error {
	_, err := sqliteCommand(s).saveCopy(ctx, file)
	return err
}

// sqliteCommand is a command whose progress nobody sees.
func sqliteCommand(s *store) *invocation {
	return &invocation{process: &process{stderr: io.Discard}, store: s}
}

// sqliteAtRest makes a database that is closed.
func sqliteAtRest(t testing.TB, path string) {
	t.Helper()
	s := storeOpen(t, path)
	storeCreate(t, s, NewPet{"Tom", 1, Sold})
	storeMust(t, s.Close())
}

func TestAFailedBackupLeavesEverythingAsItWas(t *testing.T) {
	const exists = "exists, and nothing is overwritten"
	type prepared func(t *testing.T, s *store, dir string)
	write := func(name string) prepared {
		return func(t *testing.T, _ *store, dir string) {
			storeMust(t, os.WriteFile(filepath.Join(dir, name), []byte("pets"), 0o600))
		}
	}
	link := func(to string) prepared {
		return func(t *testing.T, _ *store, dir string) {
			storeMust(t, os.Symlink(to, filepath.Join(dir, "link")))
		}
	}
	for what, c := range map[string]struct {
		prepare prepared
		file    string // in dir
		want    string
	}{
		"onto an older copy":             {nil, "old.db", "old.db " + exists},
		"onto the database itself":       {nil, "pets.db", "pets.db " + exists},
		"onto its log":                   {nil, "pets.db-wal", "pets.db-wal " + exists},
		"onto its lock":                  {nil, "pets.db-lock", "pets.db-lock " + exists},
		"onto a link to it":              {link("pets.db"), "link", "link " + exists},
		"onto a link that leads nowhere": {link("nowhere"), "link", "link " + exists},
		"onto another name of it": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.Link(sqliteOf(s).path, filepath.Join(dir, "link")))
		}, "link", "link " + exists},
		"onto a link to a device": {link(os.DevNull), "link", "link " + exists},
		"onto a folder": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.MkdirAll(filepath.Join(dir, "folder", "in"), 0o700))
		}, "folder", "folder " + exists},
		"onto a socket": {func(t *testing.T, s *store, dir string) {
			// A socket's path may have some 100 characters only.
			t.Chdir(dir)
			listener, err := net.Listen("unix", "socket")
			storeMust(t, err)
			t.Cleanup(func() { _ = listener.Close() })
		}, "socket", "socket " + exists},
		"into the place of a database whose log is left":     {write("new.db-wal"), "new.db", "new.db-wal " + exists},
		"into the place of a database whose journal is left": {write("new.db-journal"), "new.db", "new.db-journal " + exists},
		"while another copy runs":                            {write("new.db.partial"), "new.db", "new.db.partial is there: another copy runs, or was stopped; remove it"},
		"where a link stands for it": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.Symlink("old.db", filepath.Join(dir, "new.db.partial")))
		}, "new.db", "new.db.partial is there: another copy runs, or was stopped; remove it"},
		"into a missing folder": {nil, filepath.Join("no", "copy.db"), "no such file"},
		"of rows that break a rule": {func(t *testing.T, s *store, _ string) {
			storeRaw(t, sqliteOf(s).path, "PRAGMA ignore_check_constraints=1", "INSERT INTO pets VALUES (2, 1, 9, 'x')")
		}, "new.db", "the copy is damaged"},
	} {
		t.Run(what, func(t *testing.T) {
			s := storeNew(t)
			dir := filepath.Dir(sqliteOf(s).path)
			storeCreate(t, s, NewPet{"Rex", 1, Sold})
			storeMust(t, os.WriteFile(filepath.Join(dir, "old.db"), []byte("an older copy"), 0o600))
			if c.prepare != nil {
				c.prepare(t, s, dir)
			}
			before := sqliteTree(t, dir)
			err := sqliteBackup(t.Context(), s, filepath.Join(dir, c.file))
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want one line with %q", err, c.want)
			}
			sqliteSame(t, before, sqliteTree(t, dir))
			if pet, err := s.pet(1); err != nil || pet == nil {
				t.Errorf("the database has lost its pet: %v", err)
			}
			if id := storeCreate(t, s, NewPet{"Max", 1, Sold}); id < 2 {
				t.Errorf("the database goes on with the id %d", id)
			}
		})
	}
}

// TestANewCopyIsOnesOwn: nobody else may read it, and what is beside it stays.
func TestANewCopyIsOnesOwn(t *testing.T) {
	s := storeNew(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "copy.db")
	for _, suffix := range []string{"-lock", "-shm", ".old", "2"} {
		storeMust(t, os.WriteFile(file+suffix, []byte("not of the copy"), 0o600))
	}
	before := sqliteTree(t, dir)
	storeMust(t, sqliteBackup(t.Context(), s, file))
	info, err := os.Lstat(file)
	storeMust(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("the copy has %v", info.Mode())
	}
	after := sqliteTree(t, dir)
	delete(after, "copy.db")
	sqliteSame(t, before, after)
}

// sqliteCountdown is a context that ends when it has been asked for so often.
type sqliteCountdown struct {
	context.Context
	cancel func()
	left   atomic.Int64
}

func sqliteCancelledAt(ctx context.Context, n int) *sqliteCountdown {
	c := &sqliteCountdown{}
	c.Context, c.cancel = context.WithCancel(ctx)
	c.left.Store(int64(n))
	return c
}

func (c *sqliteCountdown) Done() <-chan struct{} {
	c.count()
	return c.Context.Done()
}

func (c *sqliteCountdown) Err() error {
	c.count()
	return c.Context.Err()
}

func (c *sqliteCountdown) count() {
	if c.left.Add(-1) == 0 {
		c.cancel()
	}
}

// TestABackupMayBeCancelledAtAnyTime: it is done, or nothing is.
func TestABackupMayBeCancelledAtAnyTime(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	dir := t.TempDir()
	file := filepath.Join(dir, "copy.db")
	for n := 1; ; n++ {
		ctx := sqliteCancelledAt(t.Context(), n)
		err := sqliteBackup(ctx, s, file)
		ctx.cancel()
		if err == nil {
			if n < 5 {
				t.Errorf("cancelled at the look %d, the backup is made", n)
			}
			break
		}
		if !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "interrupted") {
			t.Errorf("cancelled at the look %d: %v", n, err)
		}
		sqliteSame(t, nil, sqliteTree(t, dir))
	}
	if pets, _ := sqliteCopy(t, file); pets != 1 || len(sqliteTree(t, dir)) != 1 {
		t.Errorf("in the end the copy has %d pets, beside it are %d files", pets, len(sqliteTree(t, dir))-1)
	}
}

// sqliteDamage overwrites the last page of a closed database file.
func sqliteDamage(t testing.TB, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	storeMust(t, err)
	copy(content[len(content)-4096:], make([]byte, 512))
	storeMust(t, os.WriteFile(path, content, 0o600))
}

func TestABackupOfADamagedDatabaseIsNone(t *testing.T) {
	source := storePath(t)
	s := storeOpen(t, source)
	for range 100 {
		storeCreate(t, s, NewPet{strings.Repeat("x", maxName), 1, Sold})
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "copy.db")
	storeMust(t, sqliteBackup(t.Context(), s, file))
	before := sqliteTree(t, dir)
	// A copy is one file without a log, and so easy to damage.
	damaged := filepath.Join(t.TempDir(), "damaged.db")
	storeMust(t, os.WriteFile(damaged, []byte(before["copy.db"]), 0o600))
	sqliteDamage(t, damaged)
	partial, err := os.Open(damaged)
	storeMust(t, err)
	defer partial.Close()
	_, err = sqliteCommand(nil).finish(t.Context(), partial, 0)
	if err == nil || !strings.Contains(err.Error(), "damaged") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a damaged copy is reported as %q, want one line", err)
	}
	if err := sqliteBackup(t.Context(), storeOpen(t, damaged), file+".damaged"); err == nil {
		t.Error("a damaged database is backed up")
	}
	sqliteSame(t, before, sqliteTree(t, dir))
}

// sqliteScene is a database that a kill has left, so that what was stored last is
// in its log alone, and an older copy of it.
type sqliteScene struct{ dir, db, copy string }

// What the two of a scene hold.
const (
	sqliteCopiedPets, sqliteCopiedKeys = 3, 2
	sqliteAllPets, sqliteAllKeys       = 5, 3
)

// sqliteOld is where a database is kept that is restored at storeNow.
const sqliteOld = ".20260504T120000.000Z.old"

func sqliteNewScene(t testing.TB) sqliteScene {
	t.Helper()
	dir := t.TempDir()
	sc := sqliteScene{dir, filepath.Join(dir, "pets.db"), filepath.Join(dir, "copy.db")}
	s := storeNew(t)
	grow := func(pets, keys int) {
		for range pets {
			storeCreate(t, s, NewPet{"Rex", 1, Sold})
		}
		for range keys {
			_, err := insertKey(context.Background(), s, &apiKey{Plan: "free"}, newSecret(false), false)
			storeMust(t, err)
		}
	}
	grow(sqliteCopiedPets, sqliteCopiedKeys)
	storeMust(t, sqliteBackup(t.Context(), s, sc.copy))
	grow(sqliteAllPets-sqliteCopiedPets, sqliteAllKeys-sqliteCopiedKeys)
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(sqliteOf(s).path + suffix)
		storeMust(t, err)
		storeMust(t, os.WriteFile(sc.db+suffix, content, 0o600))
	}
	storeMust(t, os.WriteFile(sc.db+"-lock", nil, 0o600))
	storeMust(t, s.Close())
	return sc
}

// restore restores the scene at storeNow.
func (sc sqliteScene) restore(ctx context.Context) (old string, err error) {
	return sqliteRestore(ctx, sc.db, sc.copy, 1_000_000, storeNow)
}

// sqliteRestore does what petstore restore does.
func sqliteRestore(ctx context.Context, db, file string, skipIDs int64, now time.Time) (old string, err error) {
	c := &invocation{process: &process{stderr: io.Discard}, FlagSet: flag.NewFlagSet("", flag.ContinueOnError), now: instantOf(now)}
	c.db, c.skipIDs = db, skipIDs
	if err := c.Parse([]string{file}); err != nil {
		return "", err
	}
	_, old, err = c.restoreCopy(ctx)
	return old, err
}

// sqliteHolds checks what a database that lies alone holds, without a trace.
func sqliteHolds(t testing.TB, path string, pets, keys int64) {
	t.Helper()
	alone := filepath.Join(t.TempDir(), "alone.db")
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + suffix)
		if err != nil {
			content = nil
		}
		storeMust(t, os.WriteFile(alone+suffix, content, 0o600))
	}
	db := storeRaw(t, alone)
	defer db.Close()
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("%s is %s, %v", path, verdict, err)
	}
	gotPets, gotKeys := storeNumber(t, db, "SELECT count(*) FROM pets"), storeNumber(t, db, "SELECT count(*) FROM api_keys")
	if gotPets != pets || gotKeys != keys {
		t.Errorf("%s holds %d pets and %d keys, want %d and %d", path, gotPets, gotKeys, pets, keys)
	}
}

// sqliteNextIDs opens a database and returns the ids that a pet and a key get.
func sqliteNextIDs(t testing.TB, path string) (pet, key int64) {
	t.Helper()
	s := storeOpenFor(t, path, forService)
	defer s.Close()
	key, err := insertKey(context.Background(), s, &apiKey{Plan: "free"}, newSecret(false), false)
	storeMust(t, err)
	return storeCreate(t, s, NewPet{"Rex", 1, Sold}), key
}

func sqliteNames(t testing.TB, dir string) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(sqliteTree(t, dir)))
}

func TestRestore(t *testing.T) {
	sc := sqliteNewScene(t)
	copied := sqliteTree(t, sc.dir)["copy.db"]
	sqliteHolds(t, sc.db, sqliteAllPets, sqliteAllKeys)
	old, err := sc.restore(t.Context())
	storeMust(t, err)
	if old != sc.db+sqliteOld {
		t.Errorf("the old database is said to be %s", old)
	}
	if got, want := sqliteNames(t, sc.dir), []string{"copy.db", "pets.db", "pets.db-lock", "pets.db" + sqliteOld}; !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
	if after := sqliteTree(t, sc.dir)["copy.db"]; after != copied {
		t.Error("the copy was changed")
	}
	sqliteHolds(t, old, sqliteAllPets, sqliteAllKeys)
	sqliteHolds(t, sc.db, sqliteCopiedPets, sqliteCopiedKeys)
	pet, key := sqliteNextIDs(t, sc.db)
	if pet != 1_000_000+sqliteCopiedPets+1 || key != 1_000_000+sqliteCopiedKeys+1 {
		t.Errorf("the next ids are %d and %d", pet, key)
	}
	// What was kept can be restored in its turn.
	if _, err := sqliteRestore(t.Context(), sc.db, old, 10, storeNow.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	sqliteHolds(t, sc.db, sqliteAllPets, sqliteAllKeys)
	if pet, key := sqliteNextIDs(t, sc.db); pet != sqliteAllPets+11 || key != sqliteAllKeys+11 {
		t.Errorf("the next ids are %d and %d", pet, key)
	}
}

// TestRestoreMovesTheIDsOn: clients have seen ids that the copy does not know.
func TestRestoreMovesTheIDsOn(t *testing.T) {
	for what, c := range map[string]struct {
		change []string // of the copy
		skip   int64
		pet    int64
		key    int64
	}{
		"by the usual gap":          {nil, 1_000_000, 1_000_004, 1_000_003},
		"by another":                {nil, 7, 11, 10},
		"by none":                   {nil, 0, 4, 3},
		"by the largest":            {nil, maxQuota, maxQuota + 4, maxQuota + 3},
		"of pets that were deleted": {[]string{"DELETE FROM pets"}, 7, 11, 10},
		"of no pet yet":             {[]string{"DELETE FROM pets", "DELETE FROM sqlite_sequence WHERE name = 'pets'"}, 7, 8, 10},
		"of no key yet":             {[]string{"DELETE FROM api_keys", "DELETE FROM sqlite_sequence WHERE name = 'api_keys'"}, 1_000_000, 1_000_004, 1_000_001},
		"of neither":                {[]string{"DELETE FROM pets", "DELETE FROM api_keys", "DELETE FROM sqlite_sequence"}, 7, 8, 8},
		"of pets and keys without their sequences": {[]string{"DELETE FROM sqlite_sequence"}, 7, 11, 10},
		"of a table of another name":               {[]string{"INSERT INTO sqlite_sequence VALUES ('others', 5)"}, 7, 11, 10},
	} {
		t.Run(what, func(t *testing.T) {
			sc := sqliteNewScene(t)
			sqliteMake(t, sc.copy, c.change...)
			if _, err := sqliteRestore(t.Context(), sc.db, sc.copy, c.skip, storeNow); err != nil {
				t.Fatal(err)
			}
			if pet, key := sqliteNextIDs(t, sc.db); pet != c.pet || key != c.key {
				t.Errorf("the next ids are %d and %d, want %d and %d", pet, key, c.pet, c.key)
			}
		})
	}
}

// sqliteOwner is the numbers of a file's owner, on systems whose files have one.
func sqliteOwner(t testing.TB, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	storeMust(t, err)
	stat := reflect.Indirect(reflect.ValueOf(info.Sys()))
	return fmt.Sprint(stat.FieldByName("Uid"), stat.FieldByName("Gid"))
}

// TestARestoredFileIsTheSameFile: root restores, and the service has to read it; it may be mounted, or have other names.
// What is kept is the operator's, as a backup is.
func TestARestoredFileIsTheSameFile(t *testing.T) {
	for _, mode := range []os.FileMode{0o600, 0o640, 0o660} {
		sc := sqliteNewScene(t)
		storeMust(t, os.Chmod(sc.db, mode))
		storeMust(t, os.Chmod(sc.copy, 0o644)) //nolint:gosec // it is not taken over
		if os.Getuid() == 0 {
			storeMust(t, os.Chown(sc.db, 12345, 54321))
		}
		storeMust(t, os.Link(sc.db, sc.db+".link"))
		owner := sqliteOwner(t, sc.db)
		before, err := os.Stat(sc.db)
		storeMust(t, err)
		old, err := sc.restore(t.Context())
		storeMust(t, err)
		for _, name := range []string{sc.db, sc.db + ".link"} {
			after, err := os.Stat(name)
			storeMust(t, err)
			if got := sqliteOwner(t, name); got != owner || after.Mode() != mode || !os.SameFile(before, after) {
				t.Errorf("%s has the owner %s and the mode %v, want %s and %v", name, got, after.Mode(), owner, mode)
			}
		}
		if info, err := os.Stat(old); err != nil || info.Mode() != 0o600 {
			t.Errorf("what is kept has %v, %v", info.Mode(), err)
		}
	}
}

// TestRestoreIsRefused, and everything stays as it was.
func TestRestoreIsRefused(t *testing.T) {
	overwrite := func(t *testing.T, path, content string) {
		storeMust(t, os.Remove(path))
		storeMust(t, os.WriteFile(path, []byte(content), 0o600))
	}
	for what, c := range map[string]struct {
		prepare func(t *testing.T, sc *sqliteScene)
		want    string
	}{
		"while a service runs": {func(t *testing.T, sc *sqliteScene) { storeOpenFor(t, sc.db, forService) }, "a petstore serves it; stop it first"},
		"while a service runs, through a link": {func(t *testing.T, sc *sqliteScene) {
			storeOpenFor(t, sc.db, forService)
			storeMust(t, os.Symlink("pets.db", filepath.Join(sc.dir, "link")))
			sc.db = filepath.Join(sc.dir, "link")
		}, "a petstore serves it; stop it first"},
		"while a service runs on no file any more": {func(t *testing.T, sc *sqliteScene) {
			storeOpenFor(t, sc.db, forService)
			storeMust(t, os.Rename(sc.db, sc.db+".away"))
		}, "a petstore serves it; stop it first"},
		"of a copy that is served": {func(t *testing.T, sc *sqliteScene) {
			sqliteAtRest(t, filepath.Join(sc.dir, "served.db"))
			sc.copy = filepath.Join(sc.dir, "served.db")
			storeCreate(t, storeOpenFor(t, sc.copy, forService), NewPet{"Tom", 1, Sold})
		}, "has a log beside it, served.db-wal"},
		"of a copy that is served, through a link": {func(t *testing.T, sc *sqliteScene) {
			sqliteAtRest(t, filepath.Join(sc.dir, "served.db"))
			storeCreate(t, storeOpenFor(t, filepath.Join(sc.dir, "served.db"), forService), NewPet{"Tom", 1, Sold})
			sc.copy = filepath.Join(sc.dir, "link")
			storeMust(t, os.Symlink("served.db", sc.copy))
		}, "has a log beside it, served.db-wal"},
		"of a copy with a log": {func(t *testing.T, sc *sqliteScene) {
			storeMust(t, os.WriteFile(sc.copy+"-wal", []byte("pets"), 0o600))
		}, "has a log beside it, copy.db-wal"},
		"of a copy with a journal": {func(t *testing.T, sc *sqliteScene) {
			storeMust(t, os.WriteFile(sc.copy+"-journal", []byte("pets"), 0o600))
		}, "has a log beside it, copy.db-journal"},
		"of a link to a copy with a log": {func(t *testing.T, sc *sqliteScene) {
			storeMust(t, os.WriteFile(sc.copy+"-wal", []byte("pets"), 0o600))
			storeMust(t, os.Symlink("copy.db", filepath.Join(sc.dir, "link")))
			sc.copy = filepath.Join(sc.dir, "link")
		}, "has a log beside it, copy.db-wal"},
		"of a missing copy":        {func(t *testing.T, sc *sqliteScene) { storeMust(t, os.Remove(sc.copy)) }, "no such file"},
		"of a missing folder":      {func(t *testing.T, sc *sqliteScene) { sc.copy = filepath.Join(sc.dir, "no", "copy.db") }, "no such file"},
		"of a folder":              {func(t *testing.T, sc *sqliteScene) { sc.copy = t.TempDir() }, ""},
		"of an empty file":         {func(t *testing.T, sc *sqliteScene) { overwrite(t, sc.copy, "") }, "file is not a database"},
		"of a short file":          {func(t *testing.T, sc *sqliteScene) { overwrite(t, sc.copy, "SQLite format 3\x00") }, "file is not a database"},
		"of another kind of file":  {func(t *testing.T, sc *sqliteScene) { overwrite(t, sc.copy, strings.Repeat("pets\n", 2000)) }, "file is not a database"},
		"of a compressed database": {func(t *testing.T, sc *sqliteScene) { overwrite(t, sc.copy, "\x1f\x8b"+strings.Repeat("x", 5000)) }, "file is not a database"},
		"of another program's database": {func(t *testing.T, sc *sqliteScene) {
			storeMust(t, os.Remove(sc.copy))
			sqliteMake(t, sc.copy, "CREATE TABLE recipes (name)")
		}, "it belongs to another program"},
		"of tables of the same names": {func(t *testing.T, sc *sqliteScene) {
			sqliteMake(t, sc.copy, "PRAGMA application_id = 5")
		}, "it belongs to another program"},
		"of an SQLite database with nothing in it": {func(t *testing.T, sc *sqliteScene) {
			storeMust(t, os.Remove(sc.copy))
			sqliteMake(t, sc.copy, "PRAGMA user_version = 1", "PRAGMA user_version = 0")
		}, ""},
		"of a newer petstore's database": {func(t *testing.T, sc *sqliteScene) {
			sqliteMake(t, sc.copy, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)+1))
		}, "use a newer petstore"},
		"of a damaged copy": {func(t *testing.T, sc *sqliteScene) {
			sqliteMake(t, sc.copy, "INSERT INTO pets (category_id, status, name) SELECT 1, 4, hex(randomblob(900)) FROM pets, pets, pets")
			sqliteDamage(t, sc.copy)
		}, ""},
		"of a copy that was cut off": {func(t *testing.T, sc *sqliteScene) {
			info, err := os.Stat(sc.copy)
			storeMust(t, err)
			storeMust(t, os.Truncate(sc.copy, info.Size()-4096))
		}, ""},
		"of rows that break a rule": {func(t *testing.T, sc *sqliteScene) {
			sqliteMake(t, sc.copy, "PRAGMA ignore_check_constraints = 1", "UPDATE pets SET status = 9 WHERE id = 2")
		}, "the copy is damaged"},
		"of the database itself": {func(t *testing.T, sc *sqliteScene) { sc.copy = sc.db }, "they are the same file"},
		"of a link to it": {func(t *testing.T, sc *sqliteScene) {
			sc.copy = filepath.Join(sc.dir, "link")
			storeMust(t, os.Symlink("pets.db", sc.copy))
		}, "they are the same file"},
		"of another name of it": {func(t *testing.T, sc *sqliteScene) {
			sc.copy = filepath.Join(sc.dir, "link")
			storeMust(t, os.Link(sc.db, sc.copy))
		}, "they are the same file"},
		"of its lock": {func(t *testing.T, sc *sqliteScene) { sc.copy = sc.db + "-lock" }, "file is not a database"},
		"where another restore runs, or was killed": {func(t *testing.T, sc *sqliteScene) {
			storeMust(t, os.WriteFile(sc.db+".partial", []byte("half"), 0o600))
		}, "pets.db.partial is there: another copy runs, or was stopped; remove it"},
		"onto another program's database": {func(t *testing.T, sc *sqliteScene) {
			sc.db = filepath.Join(sc.dir, "recipes.db")
			sqliteMake(t, sc.db, "CREATE TABLE recipes (name)")
		}, "it belongs to another program"},
		"onto another program's database in WAL mode": {func(t *testing.T, sc *sqliteScene) {
			sc.db = filepath.Join(sc.dir, "recipes.db")
			storeRaw(t, sc.db, "PRAGMA journal_mode=WAL", "CREATE TABLE recipes (name)")
		}, "it belongs to another program"},
		"onto a folder": {func(t *testing.T, sc *sqliteScene) {
			sc.db = filepath.Join(sc.dir, "folder")
			storeMust(t, os.MkdirAll(filepath.Join(sc.db, "in"), 0o700))
			storeMust(t, os.WriteFile(sc.db+"-lock", nil, 0o600))
		}, ""},
		"into a missing folder": {func(t *testing.T, sc *sqliteScene) { sc.db = filepath.Join(sc.dir, "no", "pets.db") }, "no such file"},
		"into the place of a database whose log is left": {func(t *testing.T, sc *sqliteScene) {
			storeMust(t, os.Remove(sc.db))
		}, "it is missing or empty, but its -wal is there; put the file back, or move the -wal away"},
		"into the place of one through a dangling link": {func(t *testing.T, sc *sqliteScene) {
			storeMust(t, os.Remove(sc.db))
			storeMust(t, os.Symlink("pets.db", filepath.Join(sc.dir, "link")))
			sc.db = filepath.Join(sc.dir, "link")
		}, "it is missing or empty, but its -wal is there; put the file back, or move the -wal away"},
	} {
		t.Run(what, func(t *testing.T) {
			sc := sqliteNewScene(t)
			c.prepare(t, &sc)
			before := sqliteTree(t, sc.dir)
			old, err := sc.restore(t.Context())
			sqliteRefusal(t, err, c.want, "")
			if old != "" {
				t.Errorf("the old database is said to be %s", old)
			}
			sqliteSame(t, before, sqliteTree(t, sc.dir))
		})
	}
}

// TestARefusedRestoreDisturbsNoService: neither the one of the database nor that of the copy.
func TestARefusedRestoreDisturbsNoService(t *testing.T) {
	sc := sqliteNewScene(t)
	s := storeOpenFor(t, sc.db, forService)
	sqliteAtRest(t, filepath.Join(sc.dir, "other.db"))
	other := storeOpenFor(t, filepath.Join(sc.dir, "other.db"), forService)
	storeCreate(t, other, NewPet{"Rex", 1, Sold})
	for range 2 {
		for _, from := range []string{sc.copy, sqliteOf(other).path} {
			if _, err := sqliteRestore(t.Context(), sc.db, from, 1, storeNow); err == nil {
				t.Error("it is not refused")
			}
		}
		if _, err := sqliteRestore(t.Context(), filepath.Join(sc.dir, "new.db"), sqliteOf(other).path, 1, storeNow); err == nil {
			t.Error("it is not refused")
		}
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
		storeCreate(t, other, NewPet{"Rex", 1, Sold})
		for _, path := range []string{sc.db, sqliteOf(other).path} { // their locks are held still
			_, err := openStore(context.Background(), path, forService, testLog)
			sqliteRefusal(t, err, path, "another petstore serves it")
		}
	}
	if n := storeCount(t, s); n != sqliteAllPets+2 {
		t.Errorf("the service has %d pets", n)
	}
}

// TestACopyWithPagesOfAnotherSizeIsRefused before the old database is kept, but for a file that is made.
func TestACopyWithPagesOfAnotherSizeIsRefused(t *testing.T) {
	sc := sqliteNewScene(t)
	sqliteMake(t, sc.copy, "PRAGMA page_size = 8192", "VACUUM")
	_, err := sc.restore(t.Context())
	sqliteRefusal(t, err, "", "the copy's pages have another size than the database's")
	sqliteHolds(t, sc.db, sqliteAllPets, sqliteAllKeys)
	if names := sqliteNames(t, sc.dir); !slices.Equal(names, []string{"copy.db", "pets.db", "pets.db-lock"}) {
		t.Errorf("there are %q", names)
	}
	empty := filepath.Join(t.TempDir(), "empty.db")
	storeMust(t, os.WriteFile(empty, nil, 0o600))
	for _, file := range []string{filepath.Join(t.TempDir(), "new.db"), empty} {
		sc.db = file
		_, err = sc.restore(t.Context())
		storeMust(t, err)
		sqliteHolds(t, sc.db, sqliteCopiedPets, sqliteCopiedKeys)
	}
}

// TestACopyWhosePartialIsRemovedIsNone: neither an empty file nor another copy's half gets the name.
func TestACopyWhosePartialIsRemovedIsNone(t *testing.T) {
	for what, another := range map[string]bool{"it is removed": false, "another copy has begun": true} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "copy.db")
			err := makeFile(file, func(partial *os.File) error {
				storeMust(t, os.Remove(partial.Name()))
				if another {
					storeMust(t, os.WriteFile(partial.Name(), []byte("half"), 0o600))
				}
				return nil
			})
			sqliteRefusal(t, err, "", "copy.db.partial was removed or replaced")
			var want []string
			if another {
				want = []string{"copy.db.partial"}
			}
			if names := sqliteNames(t, dir); !slices.Equal(names, want) {
				t.Errorf("there are %q, want %q", names, want)
			}
		})
	}
}

// TestRestoreWaitsForALock as long as any command waits.
func TestRestoreWaitsForALock(t *testing.T) {
	sc := sqliteNewScene(t)
	synctest.Test(t, func(t *testing.T) {
		other := storeRaw(t, sc.db, "PRAGMA journal_mode=WAL")
		other.SetMaxOpenConns(1)
		exec := func(query string) {
			_, err := other.ExecContext(context.Background(), query)
			storeMust(t, err)
		}
		exec("BEGIN IMMEDIATE")
		before, start := sqliteTree(t, sc.dir), time.Now()
		_, err := sc.restore(t.Context())
		sqliteRefusal(t, err, "", "database is locked")
		if took := time.Since(start); took != commandWait {
			t.Errorf("it waits %v, want %v", took, commandWait)
		}
		sqliteSame(t, before, sqliteTree(t, sc.dir))
		start = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err = sc.restore(ctx); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("stopped after %v, restore says %v", time.Since(start), err)
		}
		sqliteSame(t, before, sqliteTree(t, sc.dir))
		start = time.Now()
		time.AfterFunc(time.Second-lockPoll/2, func() { exec("COMMIT") }) // between two tries
		if _, err := sc.restore(t.Context()); err != nil || time.Since(start) != time.Second {
			t.Errorf("after %v restore says %v", time.Since(start), err)
		}
		storeMust(t, other.Close())
	})
	sqliteHolds(t, sc.db, sqliteCopiedPets, sqliteCopiedKeys)
	sqliteHolds(t, sc.db+sqliteOld, sqliteAllPets, sqliteAllKeys)
}

// TestRestoreBesideReaders: who reads the old database in a transaction reads it to the end.
func TestRestoreBesideReaders(t *testing.T) {
	sc := sqliteNewScene(t)
	reader := storeRaw(t, sc.db)
	reader.SetMaxOpenConns(1)
	_, err := reader.ExecContext(t.Context(), "BEGIN")
	storeMust(t, err)
	for _, pets := range []int64{sqliteAllPets, sqliteAllPets, sqliteCopiedPets} {
		if n := storeNumber(t, reader, "SELECT count(*) FROM pets"); n != pets {
			t.Errorf("a reader finds %d pets, want %d", n, pets)
		}
		if _, err := os.Stat(sc.db + sqliteOld); errors.Is(err, fs.ErrNotExist) {
			_, err := sc.restore(t.Context())
			storeMust(t, err)
			continue
		}
		_, _ = reader.ExecContext(t.Context(), "COMMIT")
	}
}

// TestNothingIsWrittenBetweenTheOldCopyAndTheNewContent: it would be in neither.
func TestNothingIsWrittenBetweenTheOldCopyAndTheNewContent(t *testing.T) {
	sc := sqliteNewScene(t)
	writer := storeRaw(t, sc.db, "PRAGMA journal_mode=WAL")
	locked := false
	storeMust(t, sqliteCommand(nil).copyPages(t.Context(), "restoring", sc.copy, sc.db, "WAL", func() error {
		_, err := writer.ExecContext(t.Context(), "DELETE FROM pets")
		locked = isCode(err, sqlite3.SQLITE_BUSY)
		return nil
	}))
	if !locked {
		t.Error("others can write while the old database is kept")
	}
}

// TestRestoreIntoNoDatabase: the disk was lost, and what is left is the copy.
func TestRestoreIntoNoDatabase(t *testing.T) {
	for what, make := range map[string]func(t *testing.T, sc *sqliteScene) string{
		"missing": func(_ *testing.T, sc *sqliteScene) string { return sc.db },
		"missing where links lead": func(t *testing.T, sc *sqliteScene) string {
			first, target := sqliteLinks(t)
			sc.db = first
			return target
		},
	} {
		t.Run(what, func(t *testing.T) {
			sc := sqliteNewScene(t)
			for _, suffix := range []string{"", "-wal", "-lock"} {
				storeMust(t, os.Remove(sc.db+suffix))
			}
			target := make(t, &sc)
			storeMust(t, os.Chmod(sc.copy, 0o644)) //nolint:gosec // it is not taken over
			old, err := sc.restore(t.Context())
			if err != nil || old != "" {
				t.Errorf("the old database is said to be %q, %v", old, err)
			}
			if info, err := os.Lstat(target); err != nil || info.Mode() != 0o600 {
				t.Errorf("the database is %v, %v", info, err)
			}
			sqliteHolds(t, target, sqliteCopiedPets, sqliteCopiedKeys)
			if names := sqliteNames(t, filepath.Dir(target)); len(names) > 3 || !slices.Contains(names, "pets.db-lock") {
				t.Errorf("beside it there are %q", names)
			}
			if pet, key := sqliteNextIDs(t, sc.db); pet != 1_000_004 || key != 1_000_003 {
				t.Errorf("the next ids are %d and %d", pet, key)
			}
		})
	}
}

// TestRestoreThroughALinkChangesWhatItLeadsTo, and leaves the link.
func TestRestoreThroughALinkChangesWhatItLeadsTo(t *testing.T) {
	sc := sqliteNewScene(t)
	first, target := sqliteLinks(t)
	for _, suffix := range []string{"", "-wal"} {
		storeMust(t, os.Rename(sc.db+suffix, target+suffix))
	}
	links := sqliteTree(t, filepath.Dir(first))
	sc.db = first
	old, err := sc.restore(t.Context())
	storeMust(t, err)
	if filepath.Base(old) != "pets.db"+sqliteOld {
		t.Errorf("the old database is said to be %s", old)
	}
	sqliteHolds(t, target, sqliteCopiedPets, sqliteCopiedKeys)
	sqliteHolds(t, target+sqliteOld, sqliteAllPets, sqliteAllKeys)
	sqliteSame(t, links, sqliteTree(t, filepath.Dir(first)))
}

// TestADamagedDatabaseIsNotRestoredInto, since no copy of it can be kept. The message tells what to move away, and then
// there is no database.
func TestADamagedDatabaseIsNotRestoredInto(t *testing.T) {
	damaged := []byte(strings.Repeat("damaged\n", 1000))
	for what, damage := range map[string]func(t *testing.T, sc sqliteScene){
		"no database at all": func(t *testing.T, sc sqliteScene) {
			storeMust(t, os.WriteFile(sc.db, damaged, 0o600))
			storeMust(t, os.Remove(sc.db+"-wal"))
		},
		"no database at all, and its log": func(t *testing.T, sc sqliteScene) {
			storeMust(t, os.WriteFile(sc.db, damaged, 0o600))
			storeMust(t, os.WriteFile(sc.db+"-wal", damaged, 0o600))
		},
		"cut off in the first page": func(t *testing.T, sc sqliteScene) {
			storeMust(t, os.Truncate(sc.db, 50))
			storeMust(t, os.Remove(sc.db+"-wal"))
		},
		"a damaged page": func(t *testing.T, sc sqliteScene) {
			sqliteMake(t, sc.db, "INSERT INTO pets (category_id, status, name) SELECT 1, 3, hex(randomblob(90)) FROM pets, pets AS p, pets AS q",
				"PRAGMA wal_checkpoint(TRUNCATE)")
			sqliteDamage(t, sc.db)
		},
		"rows that break a rule": func(t *testing.T, sc sqliteScene) {
			sqliteMake(t, sc.db, "PRAGMA ignore_check_constraints = 1", "UPDATE pets SET status = 9 WHERE id = 2")
		},
	} {
		t.Run(what, func(t *testing.T) {
			sc := sqliteNewScene(t)
			damage(t, sc)
			before := sqliteTree(t, sc.dir)
			old, err := sc.restore(t.Context())
			if old != "" {
				t.Errorf("the old database is said to be %s", old)
			}
			sqliteRefusal(t, err, "the database is damaged", fmt.Sprintf("move %s, %[1]s-wal and %[1]s-shm away together", sc.db))
			sqliteSame(t, before, sqliteTree(t, sc.dir))
			for _, suffix := range []string{"", "-wal", "-shm"} {
				if err := os.Rename(sc.db+suffix, sc.db+".away"+suffix); !errors.Is(err, fs.ErrNotExist) {
					storeMust(t, err)
				}
			}
			old, err = sc.restore(t.Context())
			if err != nil || old != "" {
				t.Errorf("then it says %v, kept is %q", err, old)
			}
			sqliteHolds(t, sc.db, sqliteCopiedPets, sqliteCopiedKeys)
		})
	}
}

// TestRestoreIntoAnEmptyDatabase keeps nothing: there is nothing to be kept.
func TestRestoreIntoAnEmptyDatabase(t *testing.T) {
	for what, prepare := range map[string]func(t *testing.T, sc sqliteScene){
		"an empty file": func(t *testing.T, sc sqliteScene) {
			storeMust(t, os.WriteFile(sc.db, nil, 0o600))
		},
		"a database without tables": func(t *testing.T, sc sqliteScene) {
			sqliteMake(t, sc.db, "PRAGMA user_version = 1", "PRAGMA user_version = 0")
		},
	} {
		t.Run(what, func(t *testing.T) {
			sc := sqliteNewScene(t)
			storeMust(t, os.Remove(sc.db))
			storeMust(t, os.Remove(sc.db+"-wal"))
			prepare(t, sc)
			old, err := sc.restore(t.Context())
			if err != nil || old != "" {
				t.Errorf("the old database is said to be %q, %v", old, err)
			}
			if names := sqliteNames(t, sc.dir); !slices.Equal(names, []string{"copy.db", "pets.db", "pets.db-lock"}) {
				t.Errorf("there are %q", names)
			}
			sqliteHolds(t, sc.db, sqliteCopiedPets, sqliteCopiedKeys)
		})
	}
}

// TestRestoreReplacesANewerPetstoresDatabase: that is how to go back after an upgrade.
func TestRestoreReplacesANewerPetstoresDatabase(t *testing.T) {
	sc := sqliteNewScene(t)
	sqliteMake(t, sc.db, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)+1))
	old, err := sc.restore(t.Context())
	storeMust(t, err)
	sqliteHolds(t, old, sqliteAllPets, sqliteAllKeys)
	if pet, _ := sqliteNextIDs(t, sc.db); pet != 1_000_004 {
		t.Errorf("the next id is %d", pet)
	}
}

// TestARestoreThatFailsInTheMiddleLeavesTheOldDatabase with all that it had.
func TestARestoreThatFailsInTheMiddleLeavesTheOldDatabase(t *testing.T) {
	sc := sqliteNewScene(t)
	before := sqliteTree(t, sc.dir)
	problem := errors.New("it fails")
	err := sqliteCommand(nil).copyPages(t.Context(), "restoring", sc.copy, sc.db, "WAL", func() error { return problem })
	if !errors.Is(err, problem) {
		t.Error(err)
	}
	sqliteHolds(t, sc.db, sqliteAllPets, sqliteAllKeys)
	delete(before, "pets.db")
	delete(before, "pets.db-wal")
	after := sqliteTree(t, sc.dir)
	delete(after, "pets.db")
	sqliteSame(t, before, after)
}

// TestRestoreMayBeCancelledAtAnyTime: it is done, or the old database is in its
// place with all that it had, and nothing is beside it that was not there.
func TestRestoreMayBeCancelledAtAnyTime(t *testing.T) {
	for what, prepare := range map[string]func(sc sqliteScene){
		"a database and its log": func(sqliteScene) {},
		"none": func(sc sqliteScene) {
			storeMust(t, errors.Join(os.Remove(sc.db), os.Remove(sc.db+"-wal")))
		},
	} {
		t.Run(what, func(t *testing.T) {
			sc := sqliteNewScene(t)
			prepare(sc)
			before := sqliteTree(t, sc.dir)
			for n := 1; ; n++ {
				ctx := sqliteCancelledAt(t.Context(), n)
				old, err := sc.restore(ctx)
				ctx.cancel()
				if err == nil {
					if n < 5 {
						t.Errorf("cancelled at the look %d, it is done", n)
					}
					return
				}
				if !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "interrupted") || old != "" {
					t.Errorf("cancelled at the look %d: the old database is said to be %q, %v", n, old, err)
				}
				after := sqliteTree(t, sc.dir)
				if what != "none" { // the log may be folded in: nothing is lost by that
					sqliteHolds(t, sc.db, sqliteAllPets, sqliteAllKeys)
					for _, tree := range []map[string]string{before, after} {
						tree["pets.db"] = ""
						delete(tree, "pets.db-wal")
					}
				}
				if sqliteSame(t, before, after); t.Failed() {
					t.Fatalf("that was after it was cancelled at the look %d", n)
				}
			}
		})
	}
}

// TestRestoreSaysWhatItDid, moves the ids on as -skip-ids says, and heeds no variable for that.
func TestRestoreSaysWhatItDid(t *testing.T) {
	for what, c := range map[string]struct {
		env   map[string]string
		args  []string
		next  int64 // the id of the next key
		warns bool
	}{
		"as it is":                     {nil, nil, 1_000_002, false},
		"with -skip-ids":               {nil, []string{"-skip-ids", "7"}, 9, false},
		"without a gap":                {nil, []string{"-skip-ids", "0"}, 2, false},
		"with PETSTORE_SKIP_IDS":       {map[string]string{"PETSTORE_SKIP_IDS": "7"}, nil, 1_000_002, true},
		"with both, and the flag wins": {map[string]string{"PETSTORE_SKIP_IDS": "7"}, []string{"-skip-ids", "8"}, 10, true},
	} {
		t.Run(what, func(t *testing.T) {
			k := commandsKeys{t, mainMade(t)}
			copied := filepath.Join(t.TempDir(), "copy.db")
			_, _, err := mainRun(t, nil, "backup", "-db", k.db, copied)
			mainMust(t, err)
			out, log, err := mainRun(t, c.env, append(append([]string{"restore", "-db", k.db}, c.args...), copied)...)
			if err != nil || out != "" || strings.Contains(log, `"level":"WARN"`) != c.warns || c.warns && !strings.Contains(log, `"variable":"PETSTORE_SKIP_IDS"`) {
				t.Errorf("restore says %q %q, %v", out, log, err)
			}
			old, err := filepath.Glob(k.db + ".*.old")
			if err != nil || len(old) != 1 || !strings.Contains(log, `"msg":"database restored","copied":"0 pets, 1 MB, checked","database":"`+k.db+`","from":"`+copied+`","old":"`+old[0]+`","skippedIDs":`) {
				t.Errorf("beside the database there is %v; stderr says %s", old, log)
			}
			k.mint("create")
			if got := k.show(fmt.Sprint(c.next)); got.ID != c.next {
				t.Errorf("the next key is %+v", got)
			}
		})
	}
}

func TestRestoreIsRefusedInOneLine(t *testing.T) {
	db := mainMade(t)
	missing := filepath.Join(t.TempDir(), "missing.db")
	_, log, err := mainRun(t, nil, "restore", "-db", db, missing)
	mainOneLine(t, err, false, "cannot restore "+db+" from "+missing, "no such file")
	if log != "" {
		t.Errorf("beside the error stderr says %s", log)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	_, _, err = mainRun(t, nil, "backup", "-db", db, copied)
	mainMust(t, err)
	s := mainStart(t, nil, "-db", db)
	_, _, err = mainRun(t, nil, "restore", "-db", db, copied)
	mainOneLine(t, err, false, "a petstore serves it; stop it first")
	if response, _ := s.get("/pets", ""); response.StatusCode != 401 {
		t.Errorf("the service gives %d", response.StatusCode)
	}
}

// TestBackupAndRestoreHeedASignal: they leave nothing, and say why.
func TestBackupAndRestoreHeedASignal(t *testing.T) {
	db := mainMade(t)
	folder := t.TempDir()
	copied := filepath.Join(folder, "copy.db")
	_, _, err := mainRun(t, nil, "backup", "-db", db, copied)
	mainMust(t, err)
	before := []map[string]string{sqliteTree(t, folder), sqliteTree(t, filepath.Dir(db))}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"backup", "-db", db, copied}, {"restore", "-db", db, copied}} {
		err := run(ctx, args, nil, nil, io.Discard, io.Discard)
		mainOneLine(t, err, false, "stopped by a signal")
	}
	sqliteSame(t, before[0], sqliteTree(t, folder))
	after := sqliteTree(t, filepath.Dir(db))
	delete(after, filepath.Base(db)+"-lock") // which is empty
	sqliteSame(t, before[1], after)
}

// TestACopyShowsItsProgress: this one takes 20 seconds.
func TestACopyShowsItsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logBuffer
		c := &invocation{process: &process{stderr: &out}}
		partial, err := os.Create(filepath.Join(t.TempDir(), "copy"))
		mainMust(t, err)
		defer partial.Close()
		stop := c.watch(t.Context(), "copying", 200_000_000, partial)
		time.Sleep(time.Second / 2)
		for size := int64(10_000_000); size < 200_000_000; size += 10_000_000 {
			mainMust(t, partial.Truncate(size))
			time.Sleep(time.Second)
		}
		stop()
		want := "copying  25 %  50 of 200 MB  10 MB/s  15s left\n" +
			"copying  50 %  100 of 200 MB  10 MB/s  10s left\n" +
			"copying  75 %  150 of 200 MB  10 MB/s  5s left\n"
		if got := out.String(); got != want {
			t.Errorf("the progress is\n%s, want\n%s", got, want)
		}
	})
}

// TestBackupWhileTheServiceRuns is the operator's command, beside a server.
func TestBackupWhileTheServiceRuns(t *testing.T) {
	db := mainDB(t)
	s := mainStart(t, nil, "-db", db)
	for i := range 3 {
		if response, body := s.post(`{"name":"pet ` + strconv.Itoa(i) + `","categoryId":7}`); response.StatusCode != 201 {
			t.Fatalf("%d %s", response.StatusCode, body)
		}
	}
	file := filepath.Join(t.TempDir(), "copy.db")
	out, log, err := mainRun(t, map[string]string{"PETSTORE_DB": db}, "backup", file)
	want := `"msg":"backup made","copied":"3 pets, 1 MB, checked","database":"` + db + `","to":"` + file + `"}` + "\n"
	if err != nil || out != "" || !strings.HasSuffix(log, want) || strings.Count(log, "\n") != 1 {
		t.Fatalf("backup says %q %q, %v", out, log, err)
	}
	_, want = s.get("/pets", s.key)
	restored := mainStart(t, nil, "-db", file)
	if response, body := restored.get("/pets", s.key); response.StatusCode != 200 || body != want || restored.key != "" {
		t.Errorf("the copy serves %d %s, want %s", response.StatusCode, body, want)
	}
}
