package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	file := filepath.Join(t.TempDir(), "copy ?#%.db")
	least := int64(cap(started))
	for range 3 {
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

// TestACopyThatIsNotThereIsNotWhole: looking for it must not make it.
func TestACopyThatIsNotThereIsNotWhole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "copy.db")
	if _, _, err := finishCopy(t.Context(), file, 0); err == nil {
		t.Error("a missing copy is taken for a good one")
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the check has made the file: %v", err)
	}
}

func TestBackupsAtOnceAreAllWhole(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	file := filepath.Join(t.TempDir(), "copy.db")
	storeMust(t, sqliteBackup(t.Context(), s, file))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := sqliteBackup(t.Context(), s, file); err != nil && !strings.Contains(err.Error(), ".partial") &&
				!strings.Contains(err.Error(), "another petstore writes it") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if pets, _ := sqliteCopy(t, file); pets != 1 {
		t.Errorf("the copy has %d pets, want 1", pets)
	}
}

func TestABackupReplacesAnOlderOne(t *testing.T) {
	s := storeNew(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "copy.db")
	storeMust(t, os.WriteFile(file, []byte("an older copy"), 0o600))
	for want := range int64(3) {
		if err := sqliteBackup(t.Context(), s, file); err != nil {
			t.Fatal(err)
		}
		if pets, _ := sqliteCopy(t, file); pets != want {
			t.Errorf("the copy has %d pets, want %d", pets, want)
		}
		if tree := sqliteTree(t, dir); len(tree) != 1 {
			t.Errorf("beside the copy there is something: %d files", len(tree))
		}
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
	}
}

// sqliteBackup does what petstore backup does.
func sqliteBackup(ctx context.Context, s *store, file string) error {
	_, err := (&invocation{process: &process{stderr: io.Discard}, store: s}).saveCopy(ctx, file, 0)
	return err
}

// sqliteAtRest makes a database that is closed.
func sqliteAtRest(t testing.TB, path string) {
	t.Helper()
	s := storeOpen(t, path)
	storeCreate(t, s, NewPet{"Tom", 1, Sold})
	storeMust(t, s.Close())
}

func TestAFailedBackupLeavesEverythingAsItWas(t *testing.T) {
	const own, inUse = "belongs to the database", "in use"
	for what, c := range map[string]struct {
		prepare func(t *testing.T, s *store, dir string)
		file    string // in dir
		want    string
	}{
		"onto the database itself":         {nil, "pets.db", inUse},
		"onto its log":                     {nil, "pets.db-wal", own},
		"onto its log's index":             {nil, "pets.db-shm", own},
		"onto its lock":                    {nil, "pets.db-lock", own},
		"onto the journal that it has not": {nil, "pets.db-journal", own},
		"onto a link to its log": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.Symlink("pets.db-wal", filepath.Join(dir, "link")))
		}, "link", own},
		"onto another name of its lock": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.Link(sqliteOf(s).path+"-lock", filepath.Join(dir, "link")))
		}, "link", inUse},
		"onto the place of its lock through a link to the folder": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.Symlink(".", filepath.Join(dir, "link")))
		}, filepath.Join("link", "pets.db-lock"), own},
		"onto a link to it": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.Symlink(sqliteOf(s).path, filepath.Join(dir, "link")))
		}, "link", inUse},
		"onto another name of it": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.Link(sqliteOf(s).path, filepath.Join(dir, "link")))
		}, "link", inUse},
		"into a missing folder": {nil, filepath.Join("no", "copy.db"), "no such file"},
		"onto a folder": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.MkdirAll(filepath.Join(dir, "folder", "in"), 0o700))
		}, "folder", "is not a regular file"},
		"onto a socket": {func(t *testing.T, s *store, dir string) {
			// A socket's path may have some 100 characters only.
			t.Chdir(dir)
			listener, err := net.Listen("unix", "socket")
			storeMust(t, err)
			t.Cleanup(func() { _ = listener.Close() })
		}, "socket", "is not a regular file"},
		"onto a database with a log": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.WriteFile(filepath.Join(dir, "old.db-wal"), []byte("pets"), 0o600))
		}, "old.db", "has a log beside it, old.db-wal"},
		"onto a database with a journal": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.WriteFile(filepath.Join(dir, "old.db-journal"), []byte("pets"), 0o600))
		}, "old.db", "has a log beside it, old.db-journal"},
		"into the place of a database whose log is left": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.WriteFile(filepath.Join(dir, "new.db-wal"), []byte("pets"), 0o600))
		}, "new.db", "has a log beside it, new.db-wal"},
		"the same through a dangling link": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.WriteFile(filepath.Join(dir, "new.db-wal"), []byte("pets"), 0o600))
			storeMust(t, os.Symlink("new.db", filepath.Join(dir, "link")))
		}, "link", "has a log beside it, new.db-wal"},
		"onto the lock of another database": {nil, "old.db-lock", "belongs to the database"},
		"onto the log of another database":  {nil, "old.db-wal", "belongs to the database"},
		"onto a database that is served": {func(t *testing.T, s *store, dir string) {
			sqliteAtRest(t, filepath.Join(dir, "served.db"))
			storeOpenFor(t, filepath.Join(dir, "served.db"), forService)
		}, "served.db", "a petstore serves"},
		"onto a link to a database that is served": {func(t *testing.T, s *store, dir string) {
			sqliteAtRest(t, filepath.Join(dir, "served.db"))
			storeOpenFor(t, filepath.Join(dir, "served.db"), forService)
			storeMust(t, os.Symlink("served.db", filepath.Join(dir, "link")))
		}, "link", "a petstore serves"},
		"onto a database that is open": {func(t *testing.T, s *store, dir string) {
			sqliteAtRest(t, filepath.Join(dir, "open.db"))
			storeOpenFor(t, filepath.Join(dir, "open.db"), forCommand)
		}, "open.db", "is in use"},
		"onto another name of a database that is served": {func(t *testing.T, s *store, dir string) {
			served := storeNew(t)
			storeCreate(t, served, NewPet{"Tom", 1, Sold})
			storeMust(t, os.Link(sqliteOf(served).path, filepath.Join(dir, "link")))
		}, "link", "is in use"},
		"of rows that break a rule": {func(t *testing.T, s *store, _ string) {
			storeRaw(t, sqliteOf(s).path, "PRAGMA ignore_check_constraints=1", "INSERT INTO pets VALUES (2, 1, 9, 'x')")
		}, "old.db", "the copy is damaged"},
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

// TestABackupReplacesAFileAtOnce: who has the older one open reads it to its end,
// and nobody else may read the new one.
func TestABackupReplacesAFileAtOnce(t *testing.T) {
	for what, make := range map[string]func(file string){
		"an older copy": func(file string) {},
		"a copy that anybody may read": func(file string) {
			storeMust(t, os.Chmod(file, 0o644)) //nolint:gosec // that is the point
		},
		"a copy that was served": func(file string) {
			s := storeOpenFor(t, file, forService)
			storeCreate(t, s, NewPet{"Tom", 1, Sold})
			storeMust(t, s.Close())
			if _, err := os.Stat(file + "-lock"); err != nil {
				t.Error(err)
			}
		},
		"a copy with an empty log": func(file string) { storeMust(t, os.WriteFile(file+"-wal", nil, 0o600)) },
		"a copy that was damaged":  func(file string) { sqliteDamage(t, file) },
	} {
		t.Run(what, func(t *testing.T) {
			s := storeNew(t)
			storeCreate(t, s, NewPet{"Rex", 1, Sold})
			file := filepath.Join(t.TempDir(), "copy.db")
			storeMust(t, sqliteBackup(t.Context(), s, file))
			make(file)
			content, err := os.ReadFile(file)
			storeMust(t, err)
			older, err := os.Open(file)
			storeMust(t, err)
			defer older.Close()
			before, err := older.Stat()
			storeMust(t, err)
			storeCreate(t, s, NewPet{"Max", 1, Sold})
			storeMust(t, sqliteBackup(t.Context(), s, file))
			after, err := os.Stat(file)
			storeMust(t, err)
			if os.SameFile(before, after) || after.Mode() != 0o600 {
				t.Errorf("the copy is the older file: %v; its mode is %v", os.SameFile(before, after), after.Mode())
			}
			if still, err := io.ReadAll(older); err != nil || !bytes.Equal(still, content) {
				t.Errorf("who reads the older copy gets %d other bytes, %v", len(still), err)
			}
			if pets, _ := sqliteCopy(t, file); pets != 2 {
				t.Errorf("the copy has %d pets", pets)
			}
		})
	}
}

// TestABackupThroughALinkReplacesWhatItLeadsTo, and leaves the link.
func TestABackupThroughALinkReplacesWhatItLeadsTo(t *testing.T) {
	s := storeNew(t)
	first, target := sqliteLinks(t)
	before := sqliteTree(t, filepath.Dir(first))
	for want := range int64(2) {
		storeMust(t, sqliteBackup(t.Context(), s, first))
		if info, err := os.Lstat(target); err != nil || info.Mode() != 0o600 {
			t.Errorf("the link leads to %v, %v", info, err)
		}
		if pets, _ := sqliteCopy(t, target); pets != want {
			t.Errorf("the copy has %d pets, want %d", pets, want)
		}
		if info, err := os.Lstat(first); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("the link is %v, %v", info, err)
		}
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
	}
	sqliteSame(t, before, sqliteTree(t, filepath.Dir(first)))
	if tree := sqliteTree(t, filepath.Dir(target)); len(tree) != 1 {
		t.Errorf("where the link leads there are %d files", len(tree))
	}
}

// TestABackupRemovesWhatAKillHasLeft, unless somebody is at work there. What is not its
// own stays.
func TestABackupRemovesWhatAKillHasLeft(t *testing.T) {
	for what, c := range map[string]struct{ files, left []string }{
		"nothing yet":          {nil, nil},
		"a lock":               {[]string{"lock"}, nil},
		"half a copy":          {[]string{"lock", "copy/db", "copy/db-journal"}, nil},
		"a file of somebody's": {[]string{"mine"}, []string{"mine"}},
	} {
		t.Run(what, func(t *testing.T) {
			s := storeNew(t)
			dir := t.TempDir()
			file := filepath.Join(dir, "copy.db")
			partial := file + ".partial"
			storeMust(t, os.Mkdir(partial, 0o700))
			for _, name := range c.files {
				storeMust(t, os.MkdirAll(filepath.Dir(filepath.Join(partial, name)), 0o700))
				storeMust(t, os.WriteFile(filepath.Join(partial, name), nil, 0o600))
			}
			storeMust(t, os.WriteFile(filepath.Join(dir, "other.db.partial"), []byte("a file"), 0o600))
			before := sqliteTree(t, dir)
			var lock closers
			_, err := lockFile(filepath.Join(partial, "lock"), errServed, &lock)
			storeMust(t, err)
			sqliteRefusal(t, sqliteBackup(t.Context(), s, file), "", "another petstore writes it")
			sqliteSame(t, before, sqliteTree(t, dir))
			storeMust(t, lock.Close())
			storeMust(t, sqliteBackup(t.Context(), s, file))
			want := []string{"copy.db", "other.db.partial"}
			if c.left != nil {
				want = []string{"copy.db", "copy.db.partial", "other.db.partial"}
				if left := slices.Collect(maps.Keys(sqliteTree(t, partial))); !slices.Equal(left, c.left) {
					t.Errorf("in the folder are %q, want %q", left, c.left)
				}
			}
			if names := sqliteNames(t, dir); !slices.Equal(names, want) {
				t.Errorf("left are %q, want %q", names, want)
			}
		})
	}
}

// TestALockOnAFileThatWasRemovedIsNone: the next one would make the file and lock it too.
func TestALockOnAFileThatWasRemovedIsNone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	var holders atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				var lock closers
				if _, err := lockFile(file, errServed, &lock); err != nil {
					_ = lock.Close()
					continue
				}
				if holders.Add(1) > 1 {
					t.Error("two have the lock")
				}
				holders.Add(-1)
				_ = errors.Join(os.Remove(file), lock.Close())
			}
		})
	}
	wg.Wait()
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
	storeMust(t, sqliteBackup(t.Context(), s, file))
	before := sqliteTree(t, dir)
	storeCreate(t, s, NewPet{"Max", 1, Sold})
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
		sqliteSame(t, before, sqliteTree(t, dir))
	}
	if pets, _ := sqliteCopy(t, file); pets != 2 || len(sqliteTree(t, dir)) != 1 {
		t.Errorf("in the end the copy has %d pets, beside it are %d files", pets, len(sqliteTree(t, dir))-1)
	}
}

func TestACancelledBackupLeavesTheOlderCopy(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	dir := t.TempDir()
	file := filepath.Join(dir, "copy.db")
	storeMust(t, sqliteBackup(t.Context(), s, file))
	before := sqliteTree(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	storeCreate(t, s, NewPet{"Max", 1, Sold})
	if err := sqliteBackup(ctx, s, file); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled backup says %v", err)
	}
	sqliteSame(t, before, sqliteTree(t, dir))
}

// sqliteDamage overwrites the last page of a closed database file.
func sqliteDamage(t testing.TB, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	storeMust(t, err)
	copy(content[len(content)-4096:], make([]byte, 512))
	storeMust(t, os.WriteFile(path, content, 0o600))
}

func TestABackupOfADamagedDatabaseKeepsTheOlderCopy(t *testing.T) {
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
	_, _, err := finishCopy(t.Context(), damaged, 0)
	if err == nil || !strings.Contains(err.Error(), "damaged") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a damaged copy is reported as %q, want one line", err)
	}
	if err := sqliteBackup(t.Context(), storeOpen(t, damaged), file); err == nil {
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

// TestRestoreKeepsOwnerAndMode: root restores, and the service has to read it.
func TestRestoreKeepsOwnerAndMode(t *testing.T) {
	for _, mode := range []os.FileMode{0o600, 0o640, 0o660} {
		sc := sqliteNewScene(t)
		storeMust(t, os.Chmod(sc.db, mode))
		storeMust(t, os.Chmod(sc.copy, 0o644)) //nolint:gosec // it is not taken over
		if os.Getuid() == 0 {
			storeMust(t, os.Chown(sc.db, 12345, 54321))
		}
		owner := sqliteOwner(t, sc.db)
		old, err := sc.restore(t.Context())
		storeMust(t, err)
		for _, file := range []string{sc.db, old} {
			info, err := os.Stat(file)
			storeMust(t, err)
			if got := sqliteOwner(t, file); got != owner || info.Mode() != mode {
				t.Errorf("%s has the owner %s and the mode %v, want %s and %v", file, got, info.Mode(), owner, mode)
			}
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
			storeOpenFor(t, sc.copy, forService)
		}, "a petstore serves"},
		"of a copy that is served, through a link": {func(t *testing.T, sc *sqliteScene) {
			sqliteAtRest(t, filepath.Join(sc.dir, "served.db"))
			storeOpenFor(t, filepath.Join(sc.dir, "served.db"), forService)
			sc.copy = filepath.Join(sc.dir, "link")
			storeMust(t, os.Symlink("served.db", sc.copy))
		}, "a petstore serves"},
		"of a copy that is served under another name": {func(t *testing.T, sc *sqliteScene) {
			served := storeNew(t)
			storeCreate(t, served, NewPet{"Tom", 1, Sold})
			sc.copy = filepath.Join(sc.dir, "link")
			storeMust(t, os.Link(sqliteOf(served).path, sc.copy))
		}, "is in use"},
		"of a copy that a command has open": {func(t *testing.T, sc *sqliteScene) {
			sqliteAtRest(t, filepath.Join(sc.dir, "open.db"))
			sc.copy = filepath.Join(sc.dir, "open.db")
			storeOpenFor(t, sc.copy, forCommand)
		}, "is in use"},
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
		"of a folder":              {func(t *testing.T, sc *sqliteScene) { sc.copy = t.TempDir() }, "is not a regular file"},
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
		"of its log":  {func(t *testing.T, sc *sqliteScene) { sc.copy = sc.db + "-wal" }, "belongs to the database"},
		"of its lock": {func(t *testing.T, sc *sqliteScene) { sc.copy = sc.db + "-lock" }, "belongs to the database"},
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

// TestRestoreWaitsForACommand that has the database open, as long as any command waits.
func TestRestoreWaitsForACommand(t *testing.T) {
	sc := sqliteNewScene(t)
	synctest.Test(t, func(t *testing.T) {
		command, err := openStore(t.Context(), sc.db, forCommand, testLog)
		storeMust(t, err)
		before, start := sqliteTree(t, sc.dir), time.Now()
		_, err = sc.restore(t.Context())
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
		closed := make(chan error, 1)
		time.AfterFunc(time.Second-lockPoll/2, func() { closed <- command.Close() }) // between two tries
		if _, err := sc.restore(t.Context()); err != nil || time.Since(start) != time.Second {
			t.Errorf("after %v restore says %v", time.Since(start), err)
		}
		storeMust(t, <-closed)
	})
	sqliteHolds(t, sc.db, sqliteCopiedPets, sqliteCopiedKeys)
	sqliteHolds(t, sc.db+sqliteOld, sqliteAllPets, sqliteAllKeys)
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

// TestRestoreThroughALinkReplacesWhatItLeadsTo, and leaves the link.
func TestRestoreThroughALinkReplacesWhatItLeadsTo(t *testing.T) {
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

// TestRestoreKeepsADamagedDatabase as it is. What its log still has is folded in.
func TestRestoreKeepsADamagedDatabase(t *testing.T) {
	for what, damage := range map[string]func(t *testing.T, sc sqliteScene){
		"no database at all": func(t *testing.T, sc sqliteScene) {
			storeMust(t, os.WriteFile(sc.db, []byte(strings.Repeat("damaged\n", 1000)), 0o600))
			storeMust(t, os.Remove(sc.db+"-wal"))
		},
		"no database at all, but its log": func(t *testing.T, sc sqliteScene) {
			storeMust(t, os.WriteFile(sc.db, []byte(strings.Repeat("damaged\n", 1000)), 0o600))
		},
		"nothing": func(t *testing.T, sc sqliteScene) {
			storeMust(t, os.Truncate(sc.db, 0))
			storeMust(t, os.Remove(sc.db+"-wal"))
		},
		"cut off": func(t *testing.T, sc sqliteScene) {
			storeMust(t, os.Truncate(sc.db, 50))
			storeMust(t, os.Remove(sc.db+"-wal"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			sc := sqliteNewScene(t)
			damage(t, sc)
			before := sqliteTree(t, sc.dir)
			old, err := sc.restore(t.Context())
			if err != nil || old != sc.db+sqliteOld {
				t.Fatalf("the old database is said to be %q, %v", old, err)
			}
			after := sqliteTree(t, sc.dir)
			if _, logged := before["pets.db-wal"]; logged { // all of it is there, since it was never folded in
				sqliteHolds(t, old, sqliteAllPets, sqliteAllKeys)
			} else if after["pets.db"+sqliteOld] != before["pets.db"] {
				t.Error("the damaged file is not kept as it was")
			}
			if _, left := after["pets.db-wal"]; left || len(after) != 4 {
				t.Errorf("there are %q", slices.Sorted(maps.Keys(after)))
			}
			sqliteHolds(t, sc.db, sqliteCopiedPets, sqliteCopiedKeys)
			if pet, key := sqliteNextIDs(t, sc.db); pet != 1_000_004 || key != 1_000_003 {
				t.Errorf("the next ids are %d and %d", pet, key)
			}
		})
	}
}

// TestRestoreMayBeCancelledAtAnyTime: it is done, or the old database is in its
// place with all that it had, and nothing is beside it that was not there.
func TestRestoreMayBeCancelledAtAnyTime(t *testing.T) {
	for what, prepare := range map[string]func(sc sqliteScene){
		"a database and its log": func(sqliteScene) {},
		"a damaged database and its log": func(sc sqliteScene) {
			storeMust(t, os.WriteFile(sc.db, []byte(strings.Repeat("damaged\n", 1000)), 0o600))
		},
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

// TestARestoreRemovesWhatAKillHasLeft, as a backup does.
func TestARestoreRemovesWhatAKillHasLeft(t *testing.T) {
	sc := sqliteNewScene(t)
	stale := sc.db + ".partial"
	storeMust(t, os.MkdirAll(filepath.Join(stale, "copy"), 0o700))
	storeMust(t, os.WriteFile(filepath.Join(stale, "lock"), nil, 0o600))
	storeMust(t, os.WriteFile(filepath.Join(stale, "copy", "db"), []byte("half"), 0o600))
	_, err := sc.restore(t.Context())
	storeMust(t, err)
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a kill has left is there still: %v", err)
	}
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
