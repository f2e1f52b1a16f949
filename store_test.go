package main

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// storeNow is the tests' present: any instant does, since the store reads no clock.
var storeNow = time.Date(2026, time.May, 4, 12, 0, 0, 0, time.UTC)

// storePath is a place for a database in a folder of its own.
func storePath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "pets.db")
}

// storeOpen opens a database beside others that have it open.
func storeOpen(t testing.TB, path string) *store { return storeOpenFor(t, path, forNewKey) }

func storeOpenFor(t testing.TB, path string, why purpose) *store {
	t.Helper()
	s, err := openDatabase(path, why)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func storeNew(t testing.TB) *store {
	t.Helper()
	return storeOpenFor(t, storePath(t), forTheService)
}

// storeRaw is another program's one connection to a database file.
func storeRaw(t testing.TB, path string, statements ...string) *sql.DB {
	t.Helper()
	db, err := openFile(path, commandBusy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return db
}

// storeFile makes a database by statements and leaves it closed.
func storeFile(t testing.TB, path string, statements ...string) {
	t.Helper()
	if err := storeRaw(t, path, statements...).Close(); err != nil {
		t.Fatal(err)
	}
}

func storeNumber(t testing.TB, db *sql.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// storeCount counts the animals.
func storeCount(t testing.TB, s *store) int64 {
	t.Helper()
	return storeNumber(t, s.reader, "SELECT count(*) FROM pets")
}

func storeCreate(t testing.TB, s *store, p NewPet) int64 {
	t.Helper()
	id, err := s.createPet(p)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// storeIDs reads a page, checks its shape, and returns the ids on it.
func storeIDs(t testing.TB, s *store, status PetStatus, limit int, after int64) (ids []int64, p *page) {
	t.Helper()
	p, err := s.page(status, limit, after)
	if err != nil {
		t.Fatal(err)
	}
	var pets []struct {
		ID     int64     `json:"id"`
		Status PetStatus `json:"status"`
	}
	if err := json.Unmarshal(p.body, &pets); err != nil || pets == nil {
		t.Fatalf("the page is %s, %v", p.body, err)
	}
	for _, pet := range pets {
		if ids = append(ids, pet.ID); status != "" && pet.Status != status {
			t.Errorf("pet %d on the page of the %s ones is %s", pet.ID, status, pet.Status)
		}
	}
	return ids, p
}

// storeOnce creates under the idempotency key "k" of a key at an instant.
func storeOnce(t testing.TB, s *store, keyID int64, body string, now time.Time) (id int64, verdict string) {
	t.Helper()
	id, replayed, reused, err := s.createPetOnce(NewPet{body, 1, Available}, keyID, "k", []byte(body), now)
	switch {
	case err != nil:
		t.Fatal(err)
	case reused:
		return id, "reused"
	case replayed:
		return id, "replayed"
	}
	return id, "created"
}

// storeBusy sets how long the writer waits for another process's lock.
func storeBusy(t testing.TB, s *store, d time.Duration) {
	t.Helper()
	if _, err := s.conn.ExecContext(context.Background(), fmt.Sprintf("PRAGMA busy_timeout=%d", d.Milliseconds())); err != nil {
		t.Fatal(err)
	}
}

// storeLock takes the write lock as another process would. With the lock held,
// commits queue up behind the one that waits for it.
func storeLock(t testing.TB, s *store) (release func()) {
	t.Helper()
	db := storeRaw(t, s.path, "BEGIN IMMEDIATE")
	return func() {
		if _, err := db.Exec("ROLLBACK"); err != nil {
			t.Error(err)
		}
	}
}

// storeAwait waits until a commit is under way and n more are queued.
func storeAwait(t testing.TB, s *store, n int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		leading, queued := s.leading, len(s.queue)
		s.mu.Unlock()
		if leading && queued == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d commits are queued, want %d", queued, n)
		}
	}
}

// storeBehindLock starts the commits so that all but the first are one batch:
// the first waits for a lock, which is released when the others are queued.
func storeBehindLock(t testing.TB, s *store, commits ...func() error) []error {
	t.Helper()
	storeBusy(t, s, time.Minute)
	errs := make([]error, len(commits))
	var wg sync.WaitGroup
	release := sync.OnceFunc(storeLock(t, s))
	defer release() // also when the test ends here
	for i, commit := range commits {
		wg.Go(func() { errs[i] = commit() })
		storeAwait(t, s, i)
	}
	release()
	done := make(chan bool)
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the commits do not end")
	}
	return errs
}

// storeTree is the content of every file in a folder but SQLite's own shared
// memory and empty logs, which reading a database may leave.
func storeTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	tree := map[string]string{}
	for _, entry := range entries {
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

func storeSame(t testing.TB, before, after map[string]string) {
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
	if keys, err := s.keysByID(0, at(storeNow)); err != nil || len(keys) != 0 {
		t.Errorf("a new database has keys %v, %v", keys, err)
	}
	if version := storeNumber(t, s.reader, "PRAGMA user_version"); version != int64(len(migrations)) {
		t.Errorf("user_version is %d", version)
	}
	if id := storeNumber(t, s.reader, "PRAGMA application_id"); id != 0x70657473 {
		t.Errorf("application_id is %#x", id)
	}
	for _, table := range []string{"pets", "api_keys", "usage", "idempotency"} {
		if strict := storeNumber(t, s.reader, "SELECT strict FROM pragma_table_list WHERE name = ?", table); strict != 1 {
			t.Errorf("%s is not STRICT", table)
		}
	}
}

func TestReopeningKeepsEverything(t *testing.T) {
	path := storePath(t)
	s := storeOpen(t, path)
	token := newSecret(false)
	keyID, err := s.insertKey(&apiKey{Name: "shop", Plan: "pro", CreatedAt: at(storeNow)}, token)
	if err != nil {
		t.Fatal(err)
	}
	spent := usage{minute: bucket{3, at(storeNow) + 5}, day: bucket{9, at(storeNow) + 7}, bannedAt: 11, bannedUntil: 13}
	if _, err := s.commit(saveUsage(keyID, &spent), saveDeprecatedUse(keyID, 17)); err != nil {
		t.Fatal(err)
	}
	first, _ := storeOnce(t, s, keyID, "Rex", storeNow)
	_, before := storeIDs(t, s, "", 20, 0)
	petBefore, err := s.pet(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = storeOpen(t, path)
	_, after := storeIDs(t, s, "", 20, 0)
	if !bytes.Equal(before.body, after.body) || before.etag[0] != after.etag[0] {
		t.Errorf("the page was %s %s and is %s %s", before.body, before.etag, after.body, after.etag)
	}
	if pet, err := s.pet(first); err != nil || pet == nil || !bytes.Equal(pet.body, petBefore.body) || pet.etag[0] != petBefore.etag[0] {
		t.Errorf("pet %d is %v, %v; was %v", first, pet, err, petBefore)
	}
	if id, verdict := storeOnce(t, s, keyID, "Rex", storeNow); id != first || verdict != "replayed" {
		t.Errorf("the repeat is %d %s", id, verdict)
	}
	if u, err := s.usage(keyID); err != nil || *u != spent {
		t.Errorf("the usage is %+v, %v; want %+v", u, err, spent)
	}
	key, err := s.keyByDigest(token.digest())
	if err != nil || key == nil || key.Name != "shop" || key.Plan != "pro" || key.quota != plans["pro"] || key.DeprecatedUseAt != 17 {
		t.Errorf("the key is %+v, %v", key, err)
	}
	if id := storeCreate(t, s, NewPet{"Max", 1, Sold}); id != first+1 {
		t.Errorf("the next id is %d, want %d", id, first+1)
	}
}

// TestAClosedDatabaseIsOneFile: an operator may copy it when the service has stopped.
func TestAClosedDatabaseIsOneFile(t *testing.T) {
	s := storeNew(t)
	storeOnce(t, s, 1, "Rex", storeNow)
	storeIDs(t, s, "", 20, 0)
	storeMust(t, s.Close())
	entries, err := os.ReadDir(filepath.Dir(s.path))
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.Name() == filepath.Base(s.path)+"-lock" }) // which is empty
	if err != nil || len(entries) != 1 {
		t.Errorf("closed, the database is the files %v, %v", entries, err)
	}
	content, err := os.ReadFile(s.path)
	storeMust(t, err)
	copied := storePath(t)
	storeMust(t, os.WriteFile(copied, content, 0o600))
	if n := storeCount(t, storeOpen(t, copied)); n != 1 {
		t.Errorf("a copy of the file has %d animals", n)
	}
}

func TestAFileThatIsNotOursIsRefusedAndLeftAsItWas(t *testing.T) {
	database := func(statements ...string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { storeFile(t, path, statements...) }
	}
	content := func(text string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	ours := fmt.Sprintf("PRAGMA application_id = %d", applicationID)
	for what, c := range map[string]struct {
		make func(t *testing.T, path string)
		want string
	}{
		"a text file":       {content(strings.Repeat("no database at all\n", 300)), "not a database"},
		"a short text file": {content("hello\n"), "not a database"},
		"a database cut off after its first line": {content("SQLite format 3\x00"), "not a database"},
		"another program's tables":                {database("CREATE TABLE recipes (name)"), "it belongs to another program"},
		"another program's tables, in WAL mode":   {database("PRAGMA journal_mode=WAL", "CREATE TABLE recipes (name)"), "it belongs to another program"},
		"tables that are named as ours":           {database("CREATE TABLE pets (id INTEGER PRIMARY KEY)"), "it belongs to another program"},
		"another application's mark":              {database("PRAGMA application_id = 5"), "it belongs to another program"},
		"another mark over our tables":            {database(append(migrations, "PRAGMA user_version = 1", "PRAGMA application_id = 5")...), "it belongs to another program"},
		"a newer schema":                          {database(ours, "PRAGMA user_version = 99", "CREATE TABLE later (a)"), fmt.Sprintf("its schema is version 99 and this petstore knows only %d; use a newer petstore", len(migrations))},
		"a schema that is newer by one":           {database(ours, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)+1)), "use a newer petstore"},
		"a folder": {func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "is a directory"},
	} {
		t.Run(what, func(t *testing.T) {
			path := storePath(t)
			c.make(t, path)
			before := storeTree(t, filepath.Dir(path))
			for _, why := range []purpose{forCommand, forNewKey, forTheService} {
				s, err := openDatabase(path, why)
				if err == nil {
					_ = s.Close()
					t.Fatal("it is opened")
				}
				storeRefusal(t, err, path, c.want)
			}
			storeSame(t, before, storeTree(t, filepath.Dir(path)))
		})
	}
}

// storeRefusal checks that an error is one line that names the file and says what is wrong.
func storeRefusal(t testing.TB, err error, path, want string) {
	t.Helper()
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %q, want one line with %q and %q", err, path, want)
	}
}

func TestAPlaceWithoutADatabaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	for what, c := range map[string]struct {
		path, want string
		why        purpose
	}{
		"a missing file, not to be made":   {filepath.Join(dir, "pets.db"), "petstore makes it at its first start", forCommand},
		"a missing folder, not to be made": {filepath.Join(dir, "no", "pets.db"), "petstore makes it at its first start", forCommand},
		"a missing folder":                 {filepath.Join(dir, "no", "pets.db"), ": ", forNewKey},
		"a place under a device":           {filepath.FromSlash("/dev/null/pets.db"), ": ", forTheService},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := openDatabase(c.path, c.why)
			storeRefusal(t, err, c.path, c.want)
			storeSame(t, nil, storeTree(t, dir))
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
			storeMust(t, os.WriteFile(path+"-wal", []byte("animals"), 0o600))
			storeMust(t, make(path))
			before := storeTree(t, filepath.Dir(path))
			for _, why := range []purpose{forNewKey, forTheService} {
				_, err := openDatabase(path, why)
				storeRefusal(t, err, path, "put the file back")
			}
			storeSame(t, before, storeTree(t, filepath.Dir(path)))
		})
	}
}

func TestAnotherProgramsLogIsLeftAsItWas(t *testing.T) {
	path := storePath(t)
	storeRaw(t, path, "PRAGMA journal_mode=WAL", "CREATE TABLE recipes (name)") // still open, all of it in the log
	log, err := os.ReadFile(path + "-wal")
	storeMust(t, err)
	_, err = openDatabase(path, forTheService)
	storeRefusal(t, err, path, "it belongs to another program")
	if after, err := os.ReadFile(path + "-wal"); err != nil || !bytes.Equal(after, log) {
		t.Errorf("the log has %d bytes, %v, and had %d", len(after), err, len(log))
	}
}

func TestADatabaseHasOneServiceAndManyCommands(t *testing.T) {
	path := storePath(t)
	first, err := openDatabase(path, forTheService)
	storeMust(t, err)
	_, err = openDatabase(path, forTheService)
	storeRefusal(t, err, path, "another petstore serves it")
	storeCreate(t, storeOpen(t, path), NewPet{"Rex", 1, Sold})
	storeMust(t, first.Close())
	next, err := openDatabase(path, forTheService)
	storeMust(t, err)
	storeMust(t, next.Close())
}

func TestADatabaseBehindALinkIsTheSameDatabase(t *testing.T) {
	s := storeNew(t)
	link := storePath(t)
	storeMust(t, os.Symlink(s.path, link))
	_, err := openDatabase(link, forTheService)
	storeRefusal(t, err, link, "another petstore serves it")
	storeMust(t, s.Close())
	s = storeOpenFor(t, link, forTheService)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	storeMust(t, os.Remove(link))
	if _, err := s.createPet(NewPet{"Tom", 1, Sold}); !errors.Is(err, errUnavailable) {
		t.Errorf("when the link is gone, a creation says %v", err)
	}
}

// TestNothingIsWrittenToAFileThatWasRemovedOrReplaced: what is written there
// would be gone with the process. What can be read is read all the same.
func TestNothingIsWrittenToAFileThatWasRemovedOrReplaced(t *testing.T) {
	for what, suffix := range map[string]string{"the database": "", "its log": "-wal"} {
		t.Run(what, func(t *testing.T) {
			s := storeNew(t)
			first := storeCreate(t, s, NewPet{"Rex", 1, Sold})
			file := s.path + suffix
			refused := func(want string) {
				t.Helper()
				if _, err := s.createPet(NewPet{"Tom", 1, Sold}); !errors.Is(err, errUnavailable) || !strings.Contains(err.Error(), want) {
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
	storeFile(t, path, "PRAGMA journal_mode=WAL")
	storeCreate(t, storeOpen(t, path), NewPet{"Rex", 1, Sold})
}

func TestAPathMayHoldAnyCharacter(t *testing.T) {
	for _, name := range []string{"a b.db", "a?mode=memory.db", "a#b.db", "a%41b.db", "a&b=c;d.db", "a+b.db", "Zoë 🐈.db", "a'b\"c.db", "no extension", "file:x.db", ":memory:", "-wal"} {
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
			tree := storeTree(t, dir)
			delete(tree, name+"-wal")
			if len(tree) != 1 || !strings.HasPrefix(tree[name], "SQLite format 3\x00") {
				t.Errorf("the folder holds %d files; %q among them: %v", len(tree), name, tree[name] != "")
			}
			if n := storeCount(t, storeOpen(t, path)); n != 1 {
				t.Errorf("reopened, it holds %d animals", n)
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
	check("the writer", s.conn, map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "500", "query_only": "0", "cache_size": "-2048"})
	for i := range readers {
		c, err := s.reader.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		name := fmt.Sprint("reader ", i)
		check(name, c, map[string]string{"journal_mode": "wal", "busy_timeout": "500", "query_only": "1", "cache_size": "-2048"})
		if _, err := c.ExecContext(t.Context(), "DELETE FROM pets"); err == nil {
			t.Errorf("%s can write", name)
		}
	}
	check("a command's writer", storeOpen(t, s.path).conn, map[string]string{"synchronous": "2", "busy_timeout": "10000"})
	if open := storeNew(t).reader.Stats().OpenConnections; open != readers {
		t.Errorf("%d of %d reading connections are open from the start", open, readers)
	}
	if most := s.reader.Stats().MaxOpenConnections; most != readers {
		t.Errorf("the readers are %d at the most, and %d were looked at", most, readers)
	}
}

func TestIDsStartAtOneAndAreNeverReused(t *testing.T) {
	path := storePath(t)
	s := storeOpen(t, path)
	for want := range int64(3) {
		if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != want+1 {
			t.Errorf("id %d, want %d", id, want+1)
		}
	}
	storeRaw(t, path, "DELETE FROM pets WHERE id = 3")
	if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != 4 {
		t.Errorf("after the deletion of 3 the next id is %d, want 4", id)
	}
	storeRaw(t, path, "DELETE FROM pets")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if id := storeCreate(t, storeOpen(t, path), NewPet{"Rex", 1, Sold}); id != 5 {
		t.Errorf("after the deletion of all and a restart the next id is %d, want 5", id)
	}
}

// TestPages compares every page of a small list with one made by hand.
func TestPages(t *testing.T) {
	s := storeNew(t)
	all := []PetStatus{Available, Sold, Pending, Available, Available, Sold, Available, Sold}
	for _, status := range all {
		storeCreate(t, s, NewPet{"Rex", 1, status})
	}
	for _, status := range []PetStatus{"", Available, Pending, Sold} {
		for limit := range len(all) + 2 {
			for after := int64(len(all)) + 1; limit > 0 && after >= 0; after-- {
				var want []int64
				more := false
				for i, is := range all {
					if id := int64(i + 1); id > after && (status == "" || is == status) {
						if more = len(want) == limit; more {
							break
						}
						want = append(want, id)
					}
				}
				for _, read := range []string{"first", "second"} {
					got, p := storeIDs(t, s, status, limit, after)
					if !slices.Equal(got, want) || p.more != more || len(want) > 0 && p.last != want[len(want)-1] {
						t.Errorf("the %s %d %s after %d are %v, last %d, more %v; want %v, more %v", read, limit, status, after, got, p.last, p.more, want, more)
					}
				}
			}
		}
	}
	if got, p := storeIDs(t, s, "", maxLimit, math.MaxInt64); len(got) != 0 || p.more || string(p.body) != "[]" {
		t.Errorf("after the largest id there is %s", p.body)
	}
}

// TestAFullLastPageHasNoNext: "full" alone must not promise more.
func TestAFullLastPageHasNoNext(t *testing.T) {
	s := storeNew(t)
	for range maxLimit {
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
	}
	for _, status := range []PetStatus{"", Sold} {
		if ids, p := storeIDs(t, s, status, maxLimit, 0); len(ids) != maxLimit || p.more || p.last != maxLimit {
			t.Errorf("%d animals, last %d, more %v", len(ids), p.last, p.more)
		}
	}
	storeCreate(t, s, NewPet{"Rex", 1, Pending})
	if _, p := storeIDs(t, s, "", maxLimit, 0); !p.more {
		t.Error("the list of all has no next page")
	}
	if _, p := storeIDs(t, s, Sold, maxLimit, 0); p.more {
		t.Error("the list of the sold has a next page, for an animal that is not sold")
	}
}

// TestPagesAreReadByIndex: a page costs the same at any depth.
func TestPagesAreReadByIndex(t *testing.T) {
	s := storeNew(t)
	for filter, want := range map[string]string{"": "INTEGER PRIMARY KEY", "status = ?3 AND ": "INDEX pets_status (status=? AND rowid>?)"} {
		rows, err := s.reader.Query("EXPLAIN QUERY PLAN "+pageQuery(filter), 5, 20, 2)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		found := 0
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(detail, "SCAN pets") || strings.Contains(detail, "TEMP B-TREE") {
				t.Errorf("with filter %q: %s", filter, detail)
			}
			if strings.Contains(detail, want) {
				found++
			}
		}
		if found != 2 { // the page, and whether there is more
			t.Errorf("with filter %q %d of 2 lookups use %s", filter, found, want)
		}
	}
}

func TestAFirstPageIsRememberedUntilACommit(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	for _, status := range []PetStatus{"", Available, Sold} {
		_, first := storeIDs(t, s, status, 20, 0)
		if _, again := storeIDs(t, s, status, 20, 0); again != first {
			t.Errorf("the page of status %q is read again", status)
		}
		storeCreate(t, s, NewPet{"Max", 1, Sold})
		if _, again := storeIDs(t, s, status, 20, 0); again == first {
			t.Errorf("the page of status %q is remembered past a commit", status)
		}
	}
}

// TestAFullPageIsRememberedUntilAnotherProcessWrites: this one only adds ids
// behind it; another might do anything.
func TestAFullPageIsRememberedUntilAnotherProcessWrites(t *testing.T) {
	s := storeNew(t)
	for range 3 {
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
	}
	_, first := storeIDs(t, s, "", 2, 0)
	storeCreate(t, s, NewPet{"Max", 1, Sold})
	if _, again := storeIDs(t, s, "", 2, 0); again != first {
		t.Error("it is read again after a commit of this process")
	}
	storeRaw(t, s.path, "DELETE FROM pets WHERE id = 1")
	if _, err := s.commit(); err != nil {
		t.Fatal(err)
	}
	if ids, _ := storeIDs(t, s, "", 2, 0); !slices.Equal(ids, []int64{2, 3}) {
		t.Errorf("after another process's commit it is %v", ids)
	}
}

// TestACreatorSeesItsAnimal: once createPet has returned, every list has the
// animal, whoever else creates and lists meanwhile.
func TestACreatorSeesItsAnimal(t *testing.T) {
	for range 4 {
		s := storeNew(t)
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := range maxLimit / 8 {
					status := []PetStatus{Available, Pending, Sold}[(worker+i)%3]
					id, err := s.createPet(NewPet{"Rex", 1, status})
					if err != nil {
						t.Error(err)
						return
					}
					for _, filter := range []PetStatus{"", status} {
						p, err := s.page(filter, maxLimit, 0)
						if err != nil || !bytes.Contains(p.body, fmt.Appendf(nil, `{"id":%d,`, id)) {
							t.Errorf("pet %d is not in the list of %q: %v", id, filter, err)
						}
					}
				}
			})
		}
		wg.Wait()
	}
}

// storeReadBefore runs read so that it begins before change and sees the
// database as it was then, but ends after it. There is one reading connection,
// in a transaction; read gets it when change is done.
func storeReadBefore(t testing.TB, s *store, read, change func()) {
	t.Helper()
	s.reader.SetMaxOpenConns(1)
	c, err := s.reader.Conn(t.Context())
	storeMust(t, err)
	_, err = c.ExecContext(t.Context(), "BEGIN; SELECT count(*) FROM pets")
	storeMust(t, err)
	waiting := s.reader.Stats().WaitCount
	done := make(chan bool)
	go func() { read(); close(done) }()
	for deadline := time.Now().Add(30 * time.Second); s.reader.Stats().WaitCount == waiting; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the read does not begin")
		}
	}
	change()
	storeMust(t, c.Close())
	<-done
	_, err = s.reader.Exec("ROLLBACK")
	storeMust(t, err)
}

// TestWhatWasReadBeforeACommitIsNotTakenForNew: it is put away after the commit,
// and yet it is older.
func TestWhatWasReadBeforeACommitIsNotTakenForNew(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	storeReadBefore(t, s, func() {
		if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 1 {
			t.Errorf("the list from before has %d animals", len(ids))
		}
	}, func() { storeCreate(t, s, NewPet{"Max", 1, Sold}) })
	if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 2 {
		t.Errorf("the list has %d animals", len(ids))
	}
	storeReadBefore(t, s, func() {
		if pet, err := s.pet(1); err != nil || !strings.Contains(string(pet.body), "Rex") {
			t.Errorf("pet 1 from before is %v, %v", pet, err)
		}
	}, func() {
		storeRaw(t, s.path, "UPDATE pets SET name = 'Tom' WHERE id = 1")
		storeMust(t, storeErr(s.commit()))
	})
	if pet, err := s.pet(1); err != nil || !strings.Contains(string(pet.body), "Tom") {
		t.Errorf("pet 1 is %s, %v", pet.body, err)
	}
}

func TestAnotherProcessesCommitIsSeenAfterALook(t *testing.T) {
	s := storeNew(t)
	other := storeOpen(t, s.path)
	look := func() (foreign uint64) {
		if _, err := s.commit(); err != nil {
			t.Fatal(err)
		}
		return s.foreign.Load()
	}
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	_, page := storeIDs(t, s, "", 20, 0)
	if pet, err := s.pet(2); pet != nil || err != nil {
		t.Errorf("pet 2, before it is made, is %v, %v", pet, err)
	}
	foreign, writes := look(), s.writes.Load()
	if _, again := storeIDs(t, s, "", 20, 0); look() != foreign || s.writes.Load() != writes || again != page {
		t.Error("a look without a commit of others makes the page doubtful")
	}

	storeCreate(t, other, NewPet{"Max", 1, Sold})
	if pet, err := s.pet(2); pet == nil || err != nil {
		t.Errorf("pet 2, made by another process, is %v, %v", pet, err)
	}
	if look() != foreign+1 {
		t.Errorf("a commit of others is counted as %d", s.foreign.Load()-foreign)
	}
	if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 2 {
		t.Errorf("after a look the list is %v", ids)
	}

	storeCreate(t, other, NewPet{"Tom", 1, Sold})
	storeCreate(t, s, NewPet{"Kim", 1, Sold})
	if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 4 || s.foreign.Load() != foreign+2 {
		t.Errorf("after a commit of our own the list is %v, foreign commits %d", ids, s.foreign.Load()-foreign)
	}
	if look() != foreign+2 {
		t.Error("a commit of our own counts as foreign")
	}
}

func TestAPetIsRememberedUntilAnotherProcessWrites(t *testing.T) {
	s := storeNew(t)
	id := storeCreate(t, s, NewPet{"Rex", 1, Sold})
	read := func(id int64) *document {
		pet, err := s.pet(id)
		if err != nil {
			t.Fatal(err)
		}
		return pet
	}
	first := read(id)
	storeCreate(t, s, NewPet{"Max", 1, Sold})
	if read(id) != first {
		t.Error("the animal is read again after a commit of our own")
	}
	raw := storeRaw(t, s.path, "UPDATE pets SET name = 'Tom' WHERE id = 1", "DELETE FROM pets WHERE id = 2")
	if _, err := s.commit(); err != nil {
		t.Fatal(err)
	}
	if pet := read(id); string(pet.body) != `{"id":1,"name":"Tom","categoryId":1,"status":"sold"}` || pet.etag[0] == first.etag[0] {
		t.Errorf("after another process's change it is %s, ETag %s, before %s", pet.body, pet.etag, first.etag)
	}
	if pet := read(2); pet != nil {
		t.Errorf("the deleted animal is %s", pet.body)
	}

	// Ids that share a place in the cache are not taken for each other.
	if _, err := raw.Exec("INSERT INTO pets (id, category_id, status, name) VALUES (?, 1, 4, 'far')", id+cachedPets); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if near, far := read(id), read(id+cachedPets); !strings.Contains(string(near.body), "Tom") || !strings.Contains(string(far.body), "far") {
			t.Errorf("pets %d and %d are %s and %s", id, id+cachedPets, near.body, far.body)
		}
	}
	for _, none := range []int64{0, -1, math.MinInt64, math.MaxInt64, id + 2*cachedPets} {
		if pet := read(none); pet != nil {
			t.Errorf("pet %d is %s", none, pet.body)
		}
	}
}

func TestAnETagStandsForTheContentAndTheNextPage(t *testing.T) {
	s := storeNew(t)
	etags := map[string]string{}
	note := func(what string, d document) {
		if !strings.HasPrefix(d.etag[0], `"`) || !strings.HasSuffix(d.etag[0], `"`) || len(d.etag[0]) < 10 {
			t.Errorf("the ETag of %s is %s", what, d.etag)
		}
		if other, known := etags[d.etag[0]]; known {
			t.Errorf("%s and %s have one ETag", what, other)
		}
		etags[d.etag[0]] = what
	}
	read := func(limit int) document {
		_, p := storeIDs(t, s, "", limit, 0)
		return p.document
	}
	note("the empty list", read(1))
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	alone := read(1)
	note("one animal", alone)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	note("one animal with more behind it", read(1))
	note("two animals", read(2))
	if again := read(1); !bytes.Equal(again.body, alone.body) {
		t.Errorf("the first page is %s and was %s", again.body, alone.body)
	}
	pet, err := s.pet(1)
	if err != nil {
		t.Fatal(err)
	}
	note("the animal itself", *pet)
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
	if stats := s.reader.Stats(); stats.InUse != 0 || stats.OpenConnections > readers {
		t.Errorf("%d connections are in use, %d open", stats.InUse, stats.OpenConnections)
	}
}

// TestConcurrentCommitsShareTransactions: 64 clients pay for two syncs.
func TestConcurrentCommitsShareTransactions(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"warms up", 1, Sold})
	walSize := func() int64 {
		info, err := os.Stat(s.path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	writes, wal := s.writes.Load(), walSize()
	var commits []func() error
	ids := make([]int64, 64)
	for i := range ids {
		commits = append(commits, func() (err error) {
			ids[i], err = s.createPet(NewPet{fmt.Sprint("pet ", i), 1, Sold})
			return err
		})
	}
	for i, err := range storeBehindLock(t, s, commits...) {
		if err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
	}
	if n := s.writes.Load() - writes; n != 2 {
		t.Errorf("64 commits took %d transactions, want 2", n)
	}
	// A transaction appends every page that it changed: at least the table's.
	if frames := (walSize() - wal) / 4120; frames >= 32 {
		t.Errorf("64 commits wrote %d pages to the log", frames)
	}
	for i, id := range ids {
		if pet, err := s.pet(id); err != nil || pet == nil || !strings.Contains(string(pet.body), fmt.Sprintf(`"pet %d"`, i)) {
			t.Errorf("commit %d was told the id %d, which is %v", i, id, pet)
		}
	}
	if n := storeCount(t, s); n != 65 {
		t.Errorf("there are %d animals, want 65", n)
	}
}

func TestAFailingStatementFailsItsWholeBatchAndNoOther(t *testing.T) {
	s := storeNew(t)
	create := func(name string) func() error {
		return func() error {
			_, err := s.createPet(NewPet{name, 1, Sold})
			return err
		}
	}
	broken := func() error {
		results, err := s.commit(statement{"UPDATE usage SET id = 1", nil}, statement{"INSERT INTO pets (category_id, status, name) VALUES (1, 9, 'x')", nil})
		if results != nil {
			t.Error("a failed commit has results")
		}
		return err
	}
	errs := storeBehindLock(t, s, create("alone before"), create("in the batch"), broken, create("in the batch too"))
	if errs[0] != nil {
		t.Errorf("the commit before the batch: %v", errs[0])
	}
	for _, err := range errs[1:] {
		if !errors.Is(err, errUnavailable) || !strings.Contains(err.Error(), "CHECK") {
			t.Errorf("a commit of the failed batch says %v", err)
		}
	}
	if err := create("after")(); err != nil {
		t.Errorf("the commit after the batch: %v", err)
	}
	if _, p := storeIDs(t, s, "", 20, 0); strings.Contains(string(p.body), "in the batch") || !strings.Contains(string(p.body), "before") || !strings.Contains(string(p.body), "after") {
		t.Errorf("stored are %s", p.body)
	}
	for _, query := range []string{"no SQL", "INSERT INTO nowhere VALUES (1)", "INSERT INTO usage VALUES (?)"} {
		if _, err := s.commit(statement{query, nil}); !errors.Is(err, errUnavailable) {
			t.Errorf("%s: %v", query, err)
		}
	}
	if err := create("in the end")(); err != nil {
		t.Error(err)
	}
}

func TestALockHeldTooLongMakesTheStoreUnavailable(t *testing.T) {
	s := storeNew(t)
	storeBusy(t, s, 20*time.Millisecond)
	release := storeLock(t, s)
	if id, err := s.createPet(NewPet{"Rex", 1, Sold}); !errors.Is(err, errUnavailable) || id != 0 {
		t.Errorf("with the lock held: %d, %v", id, err)
	}
	if _, err := s.commit(); err != nil {
		t.Errorf("a look needs no lock: %v", err)
	}
	if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 0 {
		t.Errorf("stored without the lock: %v", ids)
	}
	release()
	if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != 1 {
		t.Errorf("after the lock was released the first id is %d", id)
	}
}

func TestAFullQueueRefusesAtOnce(t *testing.T) {
	s := storeNew(t)
	storeBusy(t, s, time.Minute)
	release := sync.OnceFunc(storeLock(t, s))
	defer release() // or a store that waits for the lock could not be closed
	errs := make(chan error, maxQueue+1)
	create := func() {
		_, err := s.createPet(NewPet{"Rex", 1, Sold})
		errs <- err
	}
	go create()
	storeAwait(t, s, 0)
	for range maxQueue {
		go create()
	}
	storeAwait(t, s, maxQueue)
	refused := make(chan error, 1)
	go func() { refused <- storeErr(s.commit(statement{"DELETE FROM usage", nil})) }()
	select {
	case err := <-refused:
		if !errors.Is(err, errUnavailable) {
			t.Errorf("the commit after %d others says %v", maxQueue, err)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("the commit after %d others waits", maxQueue)
	}
	release()
	for range maxQueue + 1 {
		if err := <-errs; err != nil {
			t.Fatalf("a commit that was queued: %v", err)
		}
	}
	if n := storeCount(t, s); n != maxQueue+1 {
		t.Errorf("there are %d animals, want %d", n, maxQueue+1)
	}
}

func TestAFullDiskMakesTheStoreUnavailable(t *testing.T) {
	s := storeNew(t)
	pages := storeNumber(t, s.reader, "PRAGMA page_count")
	limit := func(n int64) {
		if _, err := s.conn.ExecContext(t.Context(), fmt.Sprint("PRAGMA max_page_count=", n)); err != nil {
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
		t.Errorf("on a full disk: %v; %d animals, want %d", err, storeCount(t, s), stored)
	}
	limit(1 << 30)
	if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != stored+1 {
		t.Errorf("with space again the id is %d, want %d", id, stored+1)
	}
}

// storePanic is an argument that panics when the driver asks for its value.
type storePanic struct{}

func (storePanic) Value() (driver.Value, error) { panic("in the driver") }

func TestAPanicDoesNotBlockLaterCommits(t *testing.T) {
	s, err := openDatabase(storePath(t), forNewKey)
	if err != nil {
		t.Fatal(err)
	}
	// The store is not closed: database/sql waits there for the call that panicked.
	var panicked any
	follower := make(chan error, 1)
	storeBehindLock(t, s, func() error { return storeErr(s.commit(statement{"DELETE FROM usage", nil})) },
		func() error {
			defer func() { panicked = recover() }()
			return storeErr(s.commit(statement{"DELETE FROM usage WHERE id = ?", []any{storePanic{}}}))
		},
		func() error {
			follower <- storeErr(s.commit(statement{"INSERT INTO usage VALUES (1, 0, 0, 0, 0, 0, 0)", nil}))
			return nil
		})
	if panicked != "in the driver" {
		t.Errorf("the leader's caller sees the panic %v", panicked)
	}
	if err := <-follower; !errors.Is(err, errUnavailable) {
		t.Errorf("a commit of the same batch says %v", err)
	}
	_, err = s.createPet(NewPet{"Rex", 1, Sold})
	if err != nil && !errors.Is(err, errUnavailable) { // the open transaction may cost this one
		t.Error(err)
	}
	if _, err := s.createPet(NewPet{"Max", 1, Sold}); err != nil {
		t.Errorf("the second commit after a panic: %v", err)
	}
	if n := storeNumber(t, s.reader, "SELECT count(*) FROM usage"); n != 0 {
		t.Error("the batch that panicked is stored")
	}
}

// storeErr drops the results of a commit.
func storeErr(_ []sql.Result, err error) error { return err }

func TestAClosedStoreIsUnavailable(t *testing.T) {
	s := storeNew(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.createPet(NewPet{"Rex", 1, Sold}); !errors.Is(err, errUnavailable) {
		t.Errorf("createPet says %v", err)
	}
	if err := s.purge(storeNow); !errors.Is(err, errUnavailable) {
		t.Errorf("purge says %v", err)
	}
	_, pageErr := s.page("", 20, 0)
	_, petErr := s.pet(1)
	_, usageErr := s.usage(1)
	_, keyErr := s.keyByDigest(digest{})
	_, keysErr := s.keysByID(0, 0)
	for what, err := range map[string]error{"page": pageErr, "pet": petErr, "usage": usageErr, "keyByDigest": keyErr, "keysByID": keysErr} {
		if err == nil {
			t.Errorf("%s says nothing", what)
		}
	}
}

func TestAnIdempotencyKeyMakesOneAnimal(t *testing.T) {
	const day = 24 * time.Hour
	type step struct {
		keyID   int64
		body    string
		after   time.Duration
		verdict string
		id      int64
	}
	for what, steps := range map[string][]step{
		"a repeat gets the first animal":                {{1, "Rex", 0, "created", 1}, {1, "Rex", 0, "replayed", 1}, {1, "Rex", time.Hour, "replayed", 1}},
		"another body is refused":                       {{1, "Rex", 0, "created", 1}, {1, "Max", 0, "reused", 1}, {1, "Rex", 0, "replayed", 1}},
		"another API key is independent":                {{1, "Rex", 0, "created", 1}, {2, "Rex", 0, "created", 2}, {2, "Max", 0, "reused", 2}, {1, "Rex", 0, "replayed", 1}},
		"it is remembered up to 24 hours":               {{1, "Rex", 0, "created", 1}, {1, "Rex", day - time.Millisecond, "replayed", 1}},
		"it is forgotten after 24 hours":                {{1, "Rex", 0, "created", 1}, {1, "Rex", day, "created", 2}, {1, "Rex", day, "replayed", 2}},
		"after 24 hours another body may use it":        {{1, "Rex", 0, "created", 1}, {1, "Max", day, "created", 2}, {1, "Rex", day, "reused", 2}},
		"a repeat does not lengthen the 24 hours":       {{1, "Rex", 0, "created", 1}, {1, "Rex", day - 1, "replayed", 1}, {1, "Rex", day, "created", 2}},
		"the 24 hours are counted anew from the second": {{1, "Rex", 0, "created", 1}, {1, "Rex", day, "created", 2}, {1, "Rex", 2*day - time.Millisecond, "replayed", 2}},
	} {
		t.Run(what, func(t *testing.T) {
			s := storeNew(t)
			made := int64(0)
			for i, step := range steps {
				id, verdict := storeOnce(t, s, step.keyID, step.body, storeNow.Add(step.after))
				if verdict != step.verdict || verdict != "reused" && id != step.id {
					t.Errorf("step %d: %s %d, want %s %d", i+1, verdict, id, step.verdict, step.id)
				}
				if verdict == "created" {
					made++
				}
			}
			if n := storeCount(t, s); n != made {
				t.Errorf("there are %d animals, want %d", n, made)
			}
		})
	}
}

func TestIdempotencyKeysAreComparedByteForByte(t *testing.T) {
	s := storeNew(t)
	for i, key := range []string{"k", "K", "k ", "k%", "_", strings.Repeat("k", 255)} {
		id, replayed, reused, err := s.createPetOnce(NewPet{"Rex", 1, Sold}, 1, key, nil, storeNow)
		if id != int64(i+1) || replayed || reused || err != nil {
			t.Errorf("%q: id %d, replayed %v, reused %v, %v", key, id, replayed, reused, err)
		}
	}
}

func TestParallelRepeatsMakeOneAnimal(t *testing.T) {
	s := storeNew(t)
	other := storeOpen(t, s.path) // repeats may reach another process, too
	for round := range 10 {
		key := fmt.Sprint("round ", round)
		ids := make([]int64, 32)
		var created atomic.Int64
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				id, replayed, reused, err := []*store{s, other}[i%2].createPetOnce(NewPet{"Rex", 1, Sold}, 1, key, []byte("Rex"), storeNow)
				if ids[i] = id; err != nil || reused {
					t.Errorf("%s: reused %v, %v", key, reused, err)
				}
				if !replayed {
					created.Add(1)
				}
			})
		}
		wg.Wait()
		slices.Sort(ids)
		if created.Load() != 1 || len(slices.Compact(ids)) != 1 {
			t.Errorf("%s: %d animals were made, the ids are %v", key, created.Load(), ids)
		}
	}
	if n := storeCount(t, s); n != 10 {
		t.Errorf("there are %d animals, want 10", n)
	}
}

// TestRepeatsInOneBatchMakeOneAnimal: who is first is decided by SQL, also
// between the statements of one transaction.
func TestRepeatsInOneBatchMakeOneAnimal(t *testing.T) {
	s := storeNew(t)
	var ids [5]int64
	var replays, reuses atomic.Int64
	once := func(i int, body string) func() error {
		return func() error {
			id, replayed, reused, err := s.createPetOnce(NewPet{body, 1, Sold}, 1, "k", []byte(body), storeNow)
			ids[i] = id
			if reused {
				reuses.Add(1)
			} else if replayed {
				replays.Add(1)
			}
			return err
		}
	}
	create := func() (err error) { ids[0], err = s.createPet(NewPet{"Kim", 1, Sold}); return err }
	for i, err := range storeBehindLock(t, s, create, once(1, "Rex"), once(2, "Rex"), once(3, "Max"), once(4, "Rex")) {
		if err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if ids[0] != 1 || ids[1] != 2 || ids[2] != 2 || ids[4] != 2 || replays.Load() != 2 || reuses.Load() != 1 || storeCount(t, s) != 2 {
		t.Errorf("the ids are %v, %d are replays, %d reuses, %d animals", ids, replays.Load(), reuses.Load(), storeCount(t, s))
	}
}

func TestPurgeRemovesWhatHasServedItsTimeOnly(t *testing.T) {
	s := storeNew(t)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	age := func(key int, d time.Duration) statement {
		return statement{"INSERT INTO idempotency VALUES (1, ?, x'00', 1, ?)", []any{fmt.Sprint(key), at(storeNow.Add(-d))}}
	}
	var records []statement
	for i := range 1200 { // more than one helping
		records = append(records, age(i, 25*time.Hour+time.Duration(i)*time.Second))
	}
	records = append(records, age(-1, 24*time.Hour-time.Millisecond), age(-2, time.Hour), age(-3, 0), age(-4, -time.Hour))
	if _, err := s.commit(records...); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.purge(storeNow); err != nil {
			t.Fatal(err)
		}
		if n := storeNumber(t, s.reader, "SELECT count(*) FROM idempotency"); n != 4 {
			t.Errorf("%d records are left, want the 4 young ones", n)
		}
	}
	if n := storeCount(t, s); n != 1 {
		t.Errorf("%d animals are left", n)
	}
}

// TestARecordOutlivesTheDayBySomeTime: a request that was told "replayed" by
// its commit reads the record a moment later, and must find it.
func TestARecordOutlivesTheDayBySomeTime(t *testing.T) {
	s := storeNew(t)
	storeOnce(t, s, 1, "Rex", storeNow)
	if err := s.purge(storeNow.Add(24*time.Hour + 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if n := storeNumber(t, s.reader, "SELECT count(*) FROM idempotency"); n != 1 {
		t.Error("the record went the moment it had served its time")
	}
}

func TestUsageIsReadAsItWasWritten(t *testing.T) {
	s := storeNew(t)
	if u, err := s.usage(7); err != nil || *u != (usage{}) {
		t.Errorf("a usage that was never written is %+v, %v", u, err)
	}
	for _, want := range []usage{
		{minute: bucket{1, 2}, day: bucket{3, 4}, bannedAt: 5, bannedUntil: 6},
		{minute: bucket{60, at(storeNow)}, day: bucket{math.MaxInt64, math.MaxInt64}},
	} {
		stored := want
		stored.strikes, stored.retryAt = bucket{9, 9}, 9 // these are not stored
		if _, err := s.commit(saveUsage(7, &stored), saveUsage(8, &usage{})); err != nil {
			t.Fatal(err)
		}
		if got, err := s.usage(7); err != nil || *got != want {
			t.Errorf("the usage is %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestOnlyTheFirstKeyIsMadeUnasked(t *testing.T) {
	s := storeNew(t)
	key := &apiKey{Name: "first key", Plan: "free", CreatedAt: at(storeNow)}
	for i, want := range []bool{true, false, false} {
		if id, err := s.insertFirstKey(key, newSecret(false)); (id != 0) != want || err != nil {
			t.Errorf("time %d: made the key %d, %v", i+1, id, err)
		}
	}
	if err := s.revokeKey(1, at(storeNow)); err != nil {
		t.Fatal(err)
	}
	if id, err := s.insertFirstKey(key, newSecret(false)); id != 0 || err != nil {
		t.Errorf("when the only key is revoked: made the key %d, %v", id, err)
	}
}

// storeCopy opens a backup, checks it, and returns its records and animals.
func storeCopy(t testing.TB, path string) (pets, records int64) {
	t.Helper()
	db := storeRaw(t, path)
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("the copy is %s, %v", verdict, err)
	}
	if v, id := storeNumber(t, db, "PRAGMA user_version"), storeNumber(t, db, "PRAGMA application_id"); v != int64(len(migrations)) || id != applicationID {
		t.Errorf("the copy has user_version %d and application_id %#x", v, id)
	}
	pets, records = storeNumber(t, db, "SELECT count(*) FROM pets"), storeNumber(t, db, "SELECT count(*) FROM idempotency")
	if most := storeNumber(t, db, "SELECT ifnull(max(id), 0) FROM pets"); most != pets {
		t.Errorf("the copy has %d animals with ids up to %d", pets, most)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return pets, records
}

// TestABackupIsConsistentWhileOthersWrite: every writer stores a record and an
// animal in one transaction, so that a torn copy has more of one. The backup
// is a process of its own, as petstore backup is.
func TestABackupIsConsistentWhileOthersWrite(t *testing.T) {
	s := storeNew(t)
	command := storeOpen(t, s.path)
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
				if _, _, _, err := s.createPetOnce(NewPet{"Rex", 1, Sold}, int64(worker), fmt.Sprint(i), nil, storeNow); err != nil {
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
		if err := command.backup(file); err != nil {
			t.Error(err)
			break
		}
		pets, records := storeCopy(t, file)
		if pets != records || pets < least {
			t.Errorf("the copy has %d animals and %d records, want equally many and at least %d", pets, records, least)
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
	if err := checkCopy(file); err == nil {
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
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := s.backup(file); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if pets, _ := storeCopy(t, file); pets != 1 {
		t.Errorf("the copy has %d animals, want 1", pets)
	}
}

// TestClosingWaitsForTheLeader: a request that the drain has cut off may still commit.
func TestClosingWaitsForTheLeader(t *testing.T) {
	for range 20 {
		s, err := openDatabase(storePath(t), forNewKey)
		storeMust(t, err)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					if _, err := s.createPet(NewPet{"Rex", 1, Sold}); err != nil && !errors.Is(err, errUnavailable) {
						t.Error(err)
					}
				}
			})
		}
		runtime.Gosched()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

func TestABackupReplacesAnOlderOne(t *testing.T) {
	s := storeNew(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "copy.db")
	storeMust(t, os.WriteFile(file, []byte("an older copy"), 0o600))
	for want := range int64(3) {
		if err := s.backup(file); err != nil {
			t.Fatal(err)
		}
		if pets, _ := storeCopy(t, file); pets != want {
			t.Errorf("the copy has %d animals, want %d", pets, want)
		}
		if tree := storeTree(t, dir); len(tree) != 1 {
			t.Errorf("beside the copy there is something: %d files", len(tree))
		}
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
	}
}

func TestAFailedBackupLeavesEverythingAsItWas(t *testing.T) {
	for what, c := range map[string]struct {
		prepare func(t *testing.T, s *store, dir string)
		file    string // in dir
		want    string
	}{
		"onto the database itself": {nil, "pets.db", "onto itself"},
		"onto a link to it":        {func(t *testing.T, s *store, dir string) { storeMust(t, os.Symlink(s.path, filepath.Join(dir, "link"))) }, "link", "onto itself"},
		"onto another name of it":  {func(t *testing.T, s *store, dir string) { storeMust(t, os.Link(s.path, filepath.Join(dir, "link"))) }, "link", "onto itself"},
		"into a missing folder":    {nil, filepath.Join("no", "copy.db"), ""},
		"onto a folder": {func(t *testing.T, s *store, dir string) {
			storeMust(t, os.MkdirAll(filepath.Join(dir, "folder", "in"), 0o700))
		}, "folder", ""},
		"of rows that break a rule": {func(t *testing.T, s *store, _ string) {
			storeRaw(t, s.path, "PRAGMA ignore_check_constraints=1", "INSERT INTO pets VALUES (2, 1, 9, 'x')")
		}, "old.db", "the copy is damaged"},
	} {
		t.Run(what, func(t *testing.T) {
			s := storeNew(t)
			dir := filepath.Dir(s.path)
			storeCreate(t, s, NewPet{"Rex", 1, Sold})
			storeMust(t, os.WriteFile(filepath.Join(dir, "old.db"), []byte("an older copy"), 0o600))
			if c.prepare != nil {
				c.prepare(t, s, dir)
			}
			before := storeTree(t, dir)
			err := s.backup(filepath.Join(dir, c.file))
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want one line with %q", err, c.want)
			}
			storeSame(t, before, storeTree(t, dir))
			if pet, err := s.pet(1); err != nil || pet == nil {
				t.Errorf("the database has lost its animal: %v", err)
			}
		})
	}
}

// storeDamage overwrites the last page of a closed database file.
func storeDamage(t testing.TB, path string) {
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
	storeMust(t, s.backup(file))
	before := storeTree(t, dir)
	// A copy is one file without a log, and so easy to damage.
	damaged := filepath.Join(t.TempDir(), "damaged.db")
	storeMust(t, os.WriteFile(damaged, []byte(before["copy.db"]), 0o600))
	storeDamage(t, damaged)
	if err := checkCopy(damaged); err == nil || !strings.Contains(err.Error(), "damaged") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a damaged copy is told as %q, want one line", err)
	}
	if err := storeOpen(t, damaged).backup(file); err == nil {
		t.Error("a damaged database is backed up")
	}
	storeSame(t, before, storeTree(t, dir))
}

func storeMust(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// storeFull is a store of n animals, one in three of each status.
func storeFull(b *testing.B, n int) *store {
	b.Helper()
	s := storeNew(b)
	var statements []statement
	for i := range n {
		statements = append(statements, statement{"INSERT INTO pets (category_id, status, name) VALUES (?, ?, ?)", []any{i, 2 + i%3, fmt.Sprint("pet ", i)}})
	}
	if _, err := s.commit(statements...); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	return s
}

func BenchmarkPageHit(b *testing.B) {
	s := storeFull(b, 1000)
	for b.Loop() {
		if _, err := s.page("", 20, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPageMiss(b *testing.B) {
	s := storeFull(b, 10000)
	for _, status := range []PetStatus{"", Sold} {
		b.Run("status="+string(status), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.page(status, 20, 1+rand.Int64N(9000)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCommit(b *testing.B) {
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			s := storeNew(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range clients {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := s.createPet(NewPet{"Rex", 7, Available}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/float64(max(1, s.writes.Load())), "creates/commit")
		})
	}
}
