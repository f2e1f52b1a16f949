package main

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
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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

// TestWhatRootMakesBelongsToTheFoldersOwner, as the service has to use it. What root names, and what
// was there, stays root's, and no link is followed that the owner has planted.
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
