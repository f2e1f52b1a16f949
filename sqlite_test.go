package main

import (
	"bytes"
	"context"
	"database/sql"
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

// sqliteMake makes a database by statements and leaves it closed.
func sqliteMake(t testing.TB, path string, statements ...string) {
	t.Helper()
	if err := storeRaw(t, path, statements...).Close(); err != nil {
		t.Fatal(err)
	}
}

// sqliteTree is the content of every file in a folder but SQLite's own shared
// memory and empty logs, which reading a database may leave; of a link, where it leads.
func sqliteTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	tree := map[string]string{}
	for _, entry := range entries {
		if to, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil {
			tree[entry.Name()] = "-> " + to
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			tree[entry.Name()] = "(folder)"
			continue
		}
		if !strings.HasSuffix(entry.Name(), "-shm") && !(strings.HasSuffix(entry.Name(), "-wal") && len(content) == 0) {
			tree[entry.Name()] = string(content)
		}
	}
	return tree
}

func sqliteSame(t testing.TB, before, after map[string]string) {
	t.Helper()
	for name, content := range before {
		if after[name] != content {
			t.Errorf("%s was changed", name)
		}
	}
	for name := range after {
		if _, known := before[name]; !known {
			t.Errorf("%s was left behind", name)
		}
	}
}

func TestANewDatabaseIsMarkedAndEmpty(t *testing.T) {
	s := storeNew(t)
	if ids, p := storeIDs(t, s, "", 20, 0); len(ids) != 0 || p.more || string(p.body) != "[]" {
		t.Errorf("a new database lists %s, more %v", p.body, p.more)
	}
	if keys, err := readKeys(context.Background(), s, instantOf(storeNow), ""); err != nil || len(keys) != 0 {
		t.Errorf("a new database has keys %v, %v", keys, err)
	}
	if version := storeNumber(t, sqliteOf(s).reader, "PRAGMA user_version"); version != int64(len(migrations)) {
		t.Errorf("user_version is %d", version)
	}
	if id := storeNumber(t, sqliteOf(s).reader, "PRAGMA application_id"); id != 0x70657473 {
		t.Errorf("application_id is %#x", id)
	}
	for _, table := range []string{"pets", "api_keys", "usage", "idempotency"} {
		query := "SELECT strict FROM pragma_table_list WHERE name = ?"
		if strict := storeNumber(t, sqliteOf(s).reader, query, table); strict != 1 {
			t.Errorf("%s is not STRICT", table)
		}
	}
}

// TestAClosedDatabaseIsOneFile: an operator may copy it when the service has stopped.
func TestAClosedDatabaseIsOneFile(t *testing.T) {
	s := storeNew(t)
	storeOnce(t, s, 1, "Rex", storeNow)
	storeIDs(t, s, "", 20, 0)
	storeMust(t, s.Close())
	entries, err := os.ReadDir(filepath.Dir(sqliteOf(s).path))
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		return e.Name() == filepath.Base(sqliteOf(s).path)+"-lock" // which is empty
	})
	if err != nil || len(entries) != 1 {
		t.Errorf("closed, the database is the files %v, %v", entries, err)
	}
	content, err := os.ReadFile(sqliteOf(s).path)
	storeMust(t, err)
	copied := storePath(t)
	storeMust(t, os.WriteFile(copied, content, 0o600))
	if n := storeCount(t, storeOpen(t, copied)); n != 1 {
		t.Errorf("a copy of the file has %d pets", n)
	}
}

func TestAFileThatIsNotOursIsRefusedAndLeftAsItWas(t *testing.T) {
	database := func(statements ...string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { sqliteMake(t, path, statements...) }
	}
	content := func(text string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	ours := fmt.Sprintf("PRAGMA application_id = %d", applicationID)
	const others = "it belongs to another program"
	for what, c := range map[string]struct {
		make func(t *testing.T, path string)
		want string
	}{
		"a text file":       {content(strings.Repeat("no database at all\n", 300)), "not a database"},
		"a short text file": {content("hello\n"), "not a database"},
		"a database cut off after its first line": {content("SQLite format 3\x00"), "not a database"},
		"another program's tables":                {database("CREATE TABLE recipes (name)"), others},
		"another program's tables, in WAL mode":   {database("PRAGMA journal_mode=WAL", "CREATE TABLE recipes (name)"), others},
		"tables that are named as ours":           {database("CREATE TABLE pets (id INTEGER PRIMARY KEY)"), others},
		"another application's mark":              {database("PRAGMA application_id = 5"), others},
		"another mark over our tables": {
			database(append(migrations, "PRAGMA user_version = 1", "PRAGMA application_id = 5")...), others},
		"a newer schema": {database(ours, "PRAGMA user_version = 99", "CREATE TABLE later (a)"),
			fmt.Sprintf("its schema is version 99 and this petstore knows only %d; use a newer petstore", len(migrations))},
		"a schema that is newer by one": {
			database(ours, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)+1)), "use a newer petstore"},
		"a folder": {func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "is a directory"},
	} {
		t.Run(what, func(t *testing.T) {
			path := storePath(t)
			c.make(t, path)
			before := sqliteTree(t, filepath.Dir(path))
			for _, p := range []purpose{forCommand, forNewKey, forService} {
				s, err := openStore(context.Background(), path, p, testLog)
				if err == nil {
					_ = s.Close()
					t.Fatal("it is opened")
				}
				sqliteRefusal(t, err, path, c.want)
			}
			sqliteSame(t, before, sqliteTree(t, filepath.Dir(path)))
		})
	}
}

// sqliteRefusal checks that an error is one line that names the file and says what is wrong.
func sqliteRefusal(t testing.TB, err error, path, want string) {
	t.Helper()
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("the error is %q, want one line with %q and %q", err, path, want)
	}
}

func TestAPlaceWithoutADatabaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	const made, missing = "petstore makes it at its first start", "no such file"
	for what, c := range map[string]struct {
		path, want string
		p          purpose
	}{
		"a missing file, not to be made":   {filepath.Join(dir, "pets.db"), made, forCommand},
		"a missing folder, not to be made": {filepath.Join(dir, "no", "pets.db"), missing, forCommand},
		"a missing folder":                 {filepath.Join(dir, "no", "pets.db"), missing, forNewKey},
		"a place under a device":           {filepath.FromSlash("/dev/null/pets.db"), ": ", forService},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := openStore(context.Background(), c.path, c.p, testLog)
			sqliteRefusal(t, err, c.path, c.want)
			sqliteSame(t, nil, sqliteTree(t, dir))
		})
	}
}

// TestALogWithoutItsDatabaseIsKept: it may hold what is nowhere else, when the
// database was moved away under a service or after a kill.
func TestALogWithoutItsDatabaseIsKept(t *testing.T) {
	for what, make := range map[string]func(path string) error{
		"missing": func(string) error { return nil },
		"empty":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			path := storePath(t)
			storeMust(t, os.WriteFile(path+"-wal", []byte("pets"), 0o600))
			storeMust(t, make(path))
			before := sqliteTree(t, filepath.Dir(path))
			for _, p := range []purpose{forNewKey, forService} {
				_, err := openStore(context.Background(), path, p, testLog)
				sqliteRefusal(t, err, path, "put the file back")
			}
			sqliteSame(t, before, sqliteTree(t, filepath.Dir(path)))
		})
	}
}

func TestAnotherProgramsLogIsLeftAsItWas(t *testing.T) {
	path := storePath(t)
	storeRaw(t, path, "PRAGMA journal_mode=WAL", "CREATE TABLE recipes (name)") // still open, all of it in the log
	log, err := os.ReadFile(path + "-wal")
	storeMust(t, err)
	_, err = openStore(context.Background(), path, forService, testLog)
	sqliteRefusal(t, err, path, "it belongs to another program")
	if after, err := os.ReadFile(path + "-wal"); err != nil || !bytes.Equal(after, log) {
		t.Errorf("the log has %d bytes, %v, and had %d", len(after), err, len(log))
	}
}

func TestADatabaseHasOneServiceAndManyCommands(t *testing.T) {
	path := storePath(t)
	first, err := openStore(context.Background(), path, forService, testLog)
	storeMust(t, err)
	_, err = openStore(context.Background(), path, forService, testLog)
	sqliteRefusal(t, err, path, "another petstore serves it")
	storeCreate(t, storeOpen(t, path), NewPet{"Rex", 1, Sold})
	storeMust(t, first.Close())
	next, err := openStore(context.Background(), path, forService, testLog)
	storeMust(t, err)
	storeMust(t, next.Close())
}

func TestADatabaseBehindALinkIsTheSameDatabase(t *testing.T) {
	s := storeNew(t)
	link := storePath(t)
	storeMust(t, os.Symlink(sqliteOf(s).path, link))
	_, err := openStore(context.Background(), link, forService, testLog)
	sqliteRefusal(t, err, link, "another petstore serves it")
	storeMust(t, s.Close())
	s = storeOpenFor(t, link, forService)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	// The link only leads to the file: when it is gone, the file is the same.
	storeMust(t, os.Remove(link))
	storeMust(t, os.WriteFile(link, []byte("another"), 0o600))
	storeCreate(t, s, NewPet{"Tom", 1, Sold})
	path := sqliteOf(s).path
	storeMust(t, s.Close())
	if n := storeCount(t, storeOpen(t, path)); n != 2 {
		t.Errorf("the file that was opened through a link has %d pets, want 2", n)
	}
	storeMust(t, os.Remove(link))
	sqliteSame(t, nil, sqliteTree(t, filepath.Dir(link)))
}

// sqliteLinks makes links in a new folder that lead, over one another and by
// relative and absolute paths, to a place in a second new folder.
func sqliteLinks(t testing.TB) (first, target string) {
	t.Helper()
	dir, targets := t.TempDir(), t.TempDir()
	target = filepath.Join(targets, "pets.db")
	storeMust(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	first = filepath.Join(dir, "first.db")
	storeMust(t, os.Symlink(filepath.Join("a", "second.db"), first))
	storeMust(t, os.Symlink(filepath.Join("b", "..", "b", "third.db"), filepath.Join(dir, "a", "second.db")))
	storeMust(t, os.Symlink(filepath.Join(dir, "folder", "pets.db"), filepath.Join(dir, "a", "b", "third.db")))
	storeMust(t, os.Symlink(targets, filepath.Join(dir, "folder")))
	return first, target
}

// TestALinkMayLeadToNoDatabaseYet: what is made stands where the link leads, its
// log and its lock beside it.
func TestALinkMayLeadToNoDatabaseYet(t *testing.T) {
	first, target := sqliteLinks(t)
	_, err := openStore(context.Background(), first, forCommand, testLog)
	sqliteRefusal(t, err, first, "petstore makes it at its first start")
	before := sqliteTree(t, filepath.Dir(first))
	s := storeOpenFor(t, first, forService)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	if real, err := filepath.EvalSymlinks(target); err != nil || sqliteOf(s).path != real {
		t.Errorf("the database is %s, %v; want %s", sqliteOf(s).path, err, real)
	}
	for _, suffix := range []string{"", "-wal", "-lock"} {
		if _, err := os.Lstat(target + suffix); err != nil {
			t.Error(err)
		}
	}
	sqliteSame(t, before, sqliteTree(t, filepath.Dir(first)))
	_, err = openStore(context.Background(), target, forService, testLog)
	sqliteRefusal(t, err, target, "another petstore serves it")
	if n := storeCount(t, storeOpenFor(t, target, forCommand)); n != 1 {
		t.Errorf("where the link leads there are %d pets", n)
	}
}

// TestALogIsKeptWhereADanglingLinkLeads: SQLite would follow the link and delete it.
func TestALogIsKeptWhereADanglingLinkLeads(t *testing.T) {
	for what, make := range map[string]func(path string) error{
		"missing": func(string) error { return nil },
		"empty":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			first, target := sqliteLinks(t)
			storeMust(t, os.WriteFile(target+"-wal", []byte("pets"), 0o600))
			storeMust(t, make(target))
			links, files := sqliteTree(t, filepath.Dir(first)), sqliteTree(t, filepath.Dir(target))
			for _, p := range []purpose{forNewKey, forService} {
				_, err := openStore(context.Background(), first, p, testLog)
				sqliteRefusal(t, err, first, "put the file back")
			}
			sqliteSame(t, links, sqliteTree(t, filepath.Dir(first)))
			sqliteSame(t, files, sqliteTree(t, filepath.Dir(target)))
		})
	}
}

func TestLinksInACircleAreRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pets.db")
	storeMust(t, os.Symlink("other.db", path))
	storeMust(t, os.Symlink("pets.db", filepath.Join(dir, "other.db")))
	before := sqliteTree(t, dir)
	for _, p := range []purpose{forCommand, forNewKey, forService} {
		_, err := openStore(context.Background(), path, p, testLog)
		sqliteRefusal(t, err, path, ": ")
	}
	sqliteSame(t, before, sqliteTree(t, dir))
	if err := sqliteBackup(t.Context(), storeNew(t), path); err == nil {
		t.Error("a circle of links takes a backup")
	}
	sqliteSame(t, before, sqliteTree(t, dir))
}

// TestNothingIsWrittenToAFileThatWasRemovedOrReplaced: what is written there
// would be gone with the process. What can be read is read all the same.
func TestNothingIsWrittenToAFileThatWasRemovedOrReplaced(t *testing.T) {
	for what, suffix := range map[string]string{"the database": "", "its log": "-wal", "its lock": "-lock"} {
		t.Run(what, func(t *testing.T) {
			s := storeNew(t)
			first := storeCreate(t, s, NewPet{"Rex", 1, Sold})
			file := sqliteOf(s).path + suffix
			refused := func(want string) {
				t.Helper()
				_, err := s.createPet(NewPet{"Tom", 1, Sold})
				if !errors.Is(err, errUnavailable) || !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %v, want errUnavailable with %q", err, want)
				}
				var wg sync.WaitGroup
				for range 8 * readers {
					wg.Go(func() {
						if p, err := s.page(Sold, 20, first-1); err != nil || p.last != first {
							t.Errorf("the list ends with %v, %v", p, err)
						}
					})
				}
				wg.Wait()
			}
			storeMust(t, os.Rename(file, file+".away"))
			refused("no such file")
			storeMust(t, os.WriteFile(file, []byte("another"), 0o600))
			refused(file + " is not the file that was opened")
			if content, err := os.ReadFile(file); err != nil || string(content) != "another" {
				t.Errorf("the other file holds %q, %v", content, err)
			}
			storeMust(t, os.Rename(file+".away", file))
			if id := storeCreate(t, s, NewPet{"Max", 1, Sold}); id != first+1 {
				t.Errorf("when the file is back, the next id is %d, want %d", id, first+1)
			}
		})
	}
}

// TestTheLogOfAReopenedDatabaseMustStay in its place from the start on, and not only from the first write on.
func TestTheLogOfAReopenedDatabaseMustStay(t *testing.T) {
	path := storePath(t)
	storeMust(t, storeOpenFor(t, path, forService).Close())
	s := storeOpenFor(t, path, forService)
	storeMust(t, os.Rename(path+"-wal", path+"-wal.away"))
	storeMust(t, os.WriteFile(path+"-wal", nil, 0o600))
	_, err := s.createPet(NewPet{"Rex", 1, Sold})
	if !errors.Is(err, errUnavailable) || !strings.Contains(err.Error(), path+"-wal is not the file that was opened") {
		t.Errorf("the first write says %v", err)
	}
}

// TestAServiceThatHasLostItsLockWritesNothing, since another one can start on the file.
func TestAServiceThatHasLostItsLockWritesNothing(t *testing.T) {
	path := storePath(t)
	first := storeOpenFor(t, path, forService)
	storeCreate(t, first, NewPet{"Rex", 1, Sold})
	storeMust(t, os.Remove(path+"-lock"))
	refused := func(want string) {
		t.Helper()
		_, err := first.createPet(NewPet{"Tom", 1, Sold})
		if !errors.Is(err, errUnavailable) || !strings.Contains(err.Error(), path+want) {
			t.Errorf("the first service says %v, want errUnavailable with %s", err, want)
		}
	}
	refused("-lock: no such file")
	second := storeOpenFor(t, path, forService)
	refused("-lock is not the file that was opened")
	if id := storeCreate(t, second, NewPet{"Max", 1, Sold}); id != 2 || storeCount(t, second) != 2 {
		t.Errorf("the pet of the second service has the id %d, and there are %d", id, storeCount(t, second))
	}
}

func TestAnEmptyFileBecomesADatabase(t *testing.T) {
	path := storePath(t)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	storeCreate(t, storeOpen(t, path), NewPet{"Rex", 1, Sold})
}

// TestAnUnfinishedDatabaseIsFinished: a kill may leave one with no table and no mark.
func TestAnUnfinishedDatabaseIsFinished(t *testing.T) {
	path := storePath(t)
	sqliteMake(t, path, "PRAGMA journal_mode=WAL")
	storeCreate(t, storeOpen(t, path), NewPet{"Rex", 1, Sold})
}

func TestAPathMayHoldAnyCharacter(t *testing.T) {
	for _, name := range []string{"a b.db", "a?mode=memory.db", "a#b.db", "a%41b.db", "a&b=c;d.db", "a+b.db",
		"Zoë 🐈.db", "a'b\"c.db", "no extension", "file:x.db", ":memory:", "-wal"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "in ?#% 🐕")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name)
			s := storeOpen(t, path)
			storeCreate(t, s, NewPet{"Rex", 1, Sold})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			tree := sqliteTree(t, dir)
			delete(tree, name+"-wal")
			if len(tree) != 1 || !strings.HasPrefix(tree[name], "SQLite format 3\x00") {
				t.Errorf("the folder holds %d files; %q among them: %v", len(tree), name, tree[name] != "")
			}
			if n := storeCount(t, storeOpen(t, path)); n != 1 {
				t.Errorf("reopened, it holds %d pets", n)
			}
		})
	}
}

// TestPragmasAreInForceOnEveryConnection: power cuts are survived by FULL only,
// and one reader without query_only could write past the leader.
func TestPragmasAreInForceOnEveryConnection(t *testing.T) {
	s := storeNew(t)
	check := func(name string, c *sql.Conn, want map[string]string) {
		for pragma, value := range want {
			var got string
			if err := c.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != value {
				t.Errorf("%s: %s is %q, %v; want %q", name, pragma, got, err, value)
			}
		}
	}
	writing := map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "0", "query_only": "0"}
	check("the writer", sqliteOf(s).conn, writing)
	for i := range readers {
		c, err := sqliteOf(s).reader.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		name := fmt.Sprint("reader ", i)
		check(name, c, map[string]string{"journal_mode": "wal", "busy_timeout": "500", "query_only": "1"})
		if _, err := c.ExecContext(t.Context(), "DELETE FROM pets"); err == nil {
			t.Errorf("%s can write", name)
		}
	}
	command := sqliteOf(storeOpen(t, sqliteOf(s).path))
	check("a command's writer", command.conn, writing)
	reader, err := command.reader.Conn(t.Context())
	storeMust(t, err)
	defer reader.Close()
	check("a command's reader", reader, map[string]string{"busy_timeout": "500", "query_only": "1"})
	// A writer waits in Go, and as long as SQLite does for a reader.
	if service := sqliteOf(s).wait; service != 500*time.Millisecond || command.wait != 10*time.Second {
		t.Errorf("a write waits %v in the service and %v in a command", service, command.wait)
	}
	if open := sqliteOf(storeNew(t)).reader.Stats().OpenConnections; open != readers {
		t.Errorf("%d of %d reading connections are open from the start", open, readers)
	}
	if most := sqliteOf(s).reader.Stats().MaxOpenConnections; most != readers {
		t.Errorf("the readers are %d at the most, and %d were looked at", most, readers)
	}
}

// TestPageMissesLeakNoConnection: a filtered and an unfiltered page are two
// statements, prepared on each of four connections that many requests share.
func TestPageMissesLeakNoConnection(t *testing.T) {
	s := storeNew(t)
	for range 30 {
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
	}
	var wg sync.WaitGroup
	for worker := range 32 {
		wg.Go(func() {
			for i := range 20 {
				status := []PetStatus{"", Sold, Available}[(worker+i)%3]
				if _, err := s.page(status, 5, int64(1+i)); err != nil {
					t.Error(err)
				}
				if _, err := s.pet(int64(worker*100 + i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if stats := sqliteOf(s).reader.Stats(); stats.InUse != 0 || stats.OpenConnections > readers {
		t.Errorf("%d connections are in use, %d open", stats.InUse, stats.OpenConnections)
	}
}

func TestALockHeldTooLongMakesTheStoreUnavailable(t *testing.T) {
	s := storeNew(t)
	storeWait(s, 20*time.Millisecond)
	release := storeLock(t, s)
	if id, err := s.createPet(NewPet{"Rex", 1, Sold}); !errors.Is(err, errUnavailable) || id != 0 {
		t.Errorf("with the lock held: %d, %v", id, err)
	}
	if err := s.refresh(context.Background()); err != nil {
		t.Errorf("a refresh needs no lock: %v", err)
	}
	if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 0 {
		t.Errorf("stored without the lock: %v", ids)
	}
	release()
	if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != 1 {
		t.Errorf("after the lock was released the first id is %d", id)
	}
}

// sqliteWaiting is a context that calls a function when somebody first waits for
// its end: here, a write that has found another program's lock.
type sqliteWaiting struct {
	context.Context
	waits func()
}

func (c sqliteWaiting) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// sqliteWhenWaiting is a context in which the first wait calls do.
func sqliteWhenWaiting(ctx context.Context, do func()) context.Context {
	return sqliteWaiting{ctx, sync.OnceFunc(do)}
}

func TestAWriteGetsTheLockThatIsReleasedWithinItsWait(t *testing.T) {
	s := storeNew(t)
	storeWait(s, time.Minute)
	waited := false
	release := storeLock(t, s)
	ctx := sqliteWhenWaiting(t.Context(), func() {
		waited = true
		if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 0 {
			t.Errorf("stored before the lock is released: %v", ids)
		}
		release()
	})
	id, err := insertedID(s.write(ctx, sqlOf("INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Rex')")))
	if id != 1 || err != nil || !waited {
		t.Errorf("the write returns the id %d, %v; it has waited: %v", id, err, waited)
	}
	if n := storeCount(t, s); n != 1 {
		t.Errorf("there are %d pets", n)
	}
}

func TestACancelledContextEndsTheWaitForALock(t *testing.T) {
	s := storeNew(t)
	storeWait(s, time.Minute)
	release := storeLock(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	results, err := s.write(sqliteWhenWaiting(ctx, cancel),
		sqlOf("INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Rex')"))
	if results != nil || !errors.Is(err, errUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled write returns %v, %v", results, err)
	}
	if err := s.refresh(ctx); err != nil {
		t.Errorf("a refresh waits for no lock: %v", err)
	}
	release()
	if n := storeCount(t, s); n != 0 {
		t.Errorf("the cancelled write has stored %d pets", n)
	}
	if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != 1 {
		t.Errorf("after the lock was released the first id is %d", id)
	}
}

// TestOpeningWaitsForALock: to change the journal's mode, or the schema.
func TestOpeningWaitsForALock(t *testing.T) {
	for what, mode := range map[string]string{
		"of a file not in WAL mode":    "DELETE",
		"of a file without our tables": "WAL",
	} {
		t.Run(what, func(t *testing.T) {
			path := storePath(t)
			other := storeRaw(t, path, "PRAGMA journal_mode="+mode, "PRAGMA user_version=0", "BEGIN IMMEDIATE")
			ctx, cancel := context.WithCancel(t.Context())
			_, err := openStore(sqliteWhenWaiting(ctx, cancel), path, forNewKey, testLog)
			if sqliteRefusal(t, err, path, "context canceled"); !errors.Is(err, context.Canceled) {
				t.Errorf("the error is %v", err)
			}
			s, err := openStore(sqliteWhenWaiting(t.Context(), func() {
				_, err := other.Exec("ROLLBACK")
				storeMust(t, err)
			}), path, forNewKey, testLog)
			storeMust(t, err)
			defer s.Close()
			storeCreate(t, s, NewPet{"Rex", 1, Sold})
		})
	}
}

// TestOpeningWaitsForALockOnAFileThatIsReplaced, as by a restore: it goes on with the new one, and migrates that.
func TestOpeningWaitsForALockOnAFileThatIsReplaced(t *testing.T) {
	for version := 1; version <= len(migrations); version++ {
		t.Run(fmt.Sprint("by one of version ", version), func(t *testing.T) {
			path, copied := storePath(t), storePath(t)
			storeMust(t, storeOpen(t, path).Close())
			sqliteMake(t, copied, append(slices.Clone(migrations[:version]),
				fmt.Sprint("PRAGMA application_id = ", applicationID), fmt.Sprint("PRAGMA user_version = ", version),
				"INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Rex')")...)
			other := storeRaw(t, path, "PRAGMA journal_mode=DELETE", "BEGIN IMMEDIATE")
			s, err := openStore(sqliteWhenWaiting(t.Context(), func() {
				storeMust(t, other.Close())
				storeMust(t, os.Rename(copied, path))
			}), path, forCommand, testLog)
			storeMust(t, err)
			defer s.Close()
			if id := storeCreate(t, s, NewPet{"Max", 1, Sold}); id != 2 || sqliteVersion(t, s) != len(migrations) {
				t.Errorf("the next pet has the id %d, and the schema is version %d", id, sqliteVersion(t, s))
			}
		})
	}
}

func sqliteVersion(t testing.TB, s *store) int {
	t.Helper()
	version, err := schemaVersion(t.Context(), s.engine)
	storeMust(t, err)
	return version
}

// TestOpeningNeedsNoLock: a service that writes all the time keeps no command out.
func TestOpeningNeedsNoLock(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	defer storeLock(t, s)()
	hurry, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	command, err := openStore(hurry, sqliteOf(s).path, forCommand, testLog)
	storeMust(t, err)
	defer command.Close()
	if n := storeCount(t, command); n != 1 {
		t.Errorf("the command sees %d pets", n)
	}
}

// TestTheWaitForALock is by a clock of its own: how long, how often, and what ends it.
func TestTheWaitForALock(t *testing.T) {
	path := storePath(t)
	storeRaw(t, path, "BEGIN IMMEDIATE")
	other := openPool(path, 0)
	_, busy := other.Exec("BEGIN IMMEDIATE")
	storeMust(t, other.Close())
	isBusy := func(err error) bool { return isCode(err, sqlite3.SQLITE_BUSY) }
	if !isBusy(busy) || isBusy(nil) || isBusy(errors.New("database is locked")) {
		t.Fatalf("a locked database is not told from others: %v", busy)
	}
	broken := errors.New("broken")
	const never = time.Hour
	stopped := errors.New("stopped")
	for what, c := range map[string]struct {
		freed, cancelled time.Duration
		then             error         // what is returned when the lock is free
		deadline         time.Duration // of the caller, in the place of the usual wait; 0: none
		takes            time.Duration
		want             error
	}{
		"a lock that nobody has":                  {0, never, nil, 0, 0, nil},
		"a lock freed at once":                    {lockPoll, never, nil, 0, lockPoll, nil},
		"a lock freed between two tries":          {5*lockPoll + 1, never, nil, 0, 6 * lockPoll, nil},
		"a lock freed at the last try":            {serviceWait, never, nil, 0, serviceWait, nil},
		"a lock freed too late":                   {serviceWait + 1, never, nil, 0, serviceWait, busy},
		"a caller that gives up":                  {never, 20*lockPoll + 1, nil, 0, 20*lockPoll + 1, stopped},
		"a caller that has given up":              {never, 0, nil, 0, 0, stopped},
		"the same, and no lock":                   {0, 0, nil, 0, 0, nil},
		"another error":                           {0, never, broken, 0, 0, broken},
		"another error behind a lock":             {3 * lockPoll, never, broken, 0, 3 * lockPoll, broken},
		"a caller with more time":                 {3 * serviceWait, never, nil, 4 * serviceWait, 3 * serviceWait, nil},
		"a caller with more time, and not enough": {never, never, nil, 3*serviceWait + 1, 3*serviceWait + 1, context.DeadlineExceeded},
		"a caller with less time":                 {serviceWait, never, nil, 7*lockPoll + 1, 7*lockPoll + 1, context.DeadlineExceeded},
		"a caller with time that gives up":        {never, 20*lockPoll + 1, nil, 4 * serviceWait, 20*lockPoll + 1, stopped},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, tries := time.Now(), time.Duration(0)
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				if c.deadline != 0 {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				if c.cancelled == 0 {
					stop(stopped)
				}
				time.AfterFunc(c.cancelled, func() { stop(stopped) })
				err := untilUnlocked(ctx, serviceWait, func() error {
					tries++
					if time.Since(start) < c.freed {
						return busy
					}
					return c.then
				})
				if took := time.Since(start); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || took != c.takes {
					t.Errorf("it returns %v after %v, want %v after %v", err, took, c.want, c.takes)
				}
				if want := c.takes/lockPoll + 1; tries != want {
					t.Errorf("it tries %d times, want %d", tries, want)
				}
			})
		})
	}
}

// TestACommandWritesBesideABusyService: a command gets its turn
// beside a service that takes the lock again as soon as it has released it.
func TestACommandWritesBesideABusyService(t *testing.T) {
	s := storeNew(t)
	command := storeOpen(t, sqliteOf(s).path)
	stop := make(chan bool)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.createPet(NewPet{"Rex", 1, Sold}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 10 {
		if _, err := command.createPet(NewPet{"Max", 1, Sold}); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

func TestAFullDiskMakesTheStoreUnavailable(t *testing.T) {
	s := storeNew(t)
	pages := storeNumber(t, sqliteOf(s).reader, "PRAGMA page_count")
	limit := func(n int64) {
		if _, err := sqliteOf(s).conn.ExecContext(t.Context(), fmt.Sprint("PRAGMA max_page_count=", n)); err != nil {
			t.Fatal(err)
		}
	}
	limit(pages)
	var stored int64
	var err error
	for ; err == nil && stored < 1000; stored++ {
		_, err = s.createPet(NewPet{strings.Repeat("x", maxName), 1, Sold})
	}
	stored-- // the last one failed
	if !errors.Is(err, errUnavailable) || storeCount(t, s) != stored {
		t.Errorf("on a full disk: %v; %d pets, want %d", err, storeCount(t, s), stored)
	}
	limit(1 << 30)
	if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != stored+1 {
		t.Errorf("with space again the id is %d, want %d", id, stored+1)
	}
}

// sqliteCopy opens a backup, checks it, and returns its records and pets.
func sqliteCopy(t testing.TB, path string) (pets, records int64) {
	t.Helper()
	db := storeRaw(t, path)
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("the copy is %s, %v", verdict, err)
	}
	v, id := storeNumber(t, db, "PRAGMA user_version"), storeNumber(t, db, "PRAGMA application_id")
	if v != int64(len(migrations)) || id != applicationID {
		t.Errorf("the copy has user_version %d and application_id %#x", v, id)
	}
	pets = storeNumber(t, db, "SELECT count(*) FROM pets")
	records = storeNumber(t, db, "SELECT count(*) FROM idempotency")
	if most := storeNumber(t, db, "SELECT ifnull(max(id), 0) FROM pets"); most != pets {
		t.Errorf("the copy has %d pets with ids up to %d", pets, most)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return pets, records
}

// TestWhatStoodInTheFileAtTheStartIsNoNews: what was remembered before the first
// look for other programs' changes stays remembered.
func TestWhatStoodInTheFileAtTheStartIsNoNews(t *testing.T) {
	s := storeNew(t)
	storeMust(t, s.refresh(t.Context()))
	if n := s.editsSeen.Load(); n != 0 {
		t.Errorf("%d changes of others are counted, and nobody else has written", n)
	}
}
