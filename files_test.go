package main

// Tests of what may be a database file, and of what is refused before anything is made.

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// anyMode are all ways of opening a database.
var anyMode = append([]openMode{openToRead, openToCopy}, allModes...)

// TestACopyBesideTheLogOfAnotherFileIsRefused: whoever puts a copy back with cp leaves the -wal of
// what was there before, and SQLite would apply that to the copy.
func TestACopyBesideTheLogOfAnotherFileIsRefused(t *testing.T) {
	sc := newScene(t)
	writeText(t, sc.db, readText(t, sc.copy))
	before := filesIn(t, sc.folder)
	want := fmt.Sprintf("it is not in WAL mode, as a copy is not, and has a -wal beside it, which "+
		"a copy has not; stop the service if one runs, and do what \"A damaged database\" in "+
		"docs/operating.md says, which saves what the -wal has; or, to have the copy alone, move "+
		"%s, %[1]s-wal and %[1]s-shm away together, keep them, and put the copy back with "+
		"petstore restore", sc.db)
	for _, mode := range anyMode {
		wantNotOpened(t, sc.db, mode, want)
	}
	_, err := sc.restore(t.Context())
	wantOneLine(t, err, false, want)
	wantSameFiles(t, before, filesIn(t, sc.folder))
	moveAway(t, sc.db+"-wal")
	moveAway(t, sc.db+"-shm")
	s := openDatabaseFor(t, sc.db, openToServe)
	wantPets(t, s, copiedPets)
	must(t, s.Close())
}

// TestADatabaseThatIsGoneIsNotMadeAnew: an empty one would know none of its keys. Its lock tells
// that it was there, and what a restore was writing, that it was to come.
func TestADatabaseThatIsGoneIsNotMadeAnew(t *testing.T) {
	const half = "it is empty, and a restore into it runs or was stopped: " +
		"delete PATH.partial if none runs, and restore again"
	for what, c := range map[string]struct {
		leave func(path string)
		want  string // PATH is that of the database
		clear string // the file that keeps it from being made
	}{
		"all but its lock": {
			func(path string) { writeText(t, path+"-lock", "") },
			"it is gone, and was there, as its -lock shows; if a service runs, do not stop it " +
				"before its log names a copy; otherwise put the file back, or restore a copy; " +
				"to begin anew with an empty one, delete PATH-lock too",
			"-lock",
		},
		"a restore that was killed": {
			func(path string) {
				writeText(t, path, "")
				writeText(t, path+".partial", "half")
			},
			half,
			".partial",
		},
		"one that was killed while it copied": {
			func(path string) {
				makeOtherDatabase(t, path, "PRAGMA journal_mode = WAL")
				writeText(t, path+".partial", "whole")
			},
			half,
			".partial",
		},
	} {
		t.Run(what, func(t *testing.T) {
			link, target := linksToDatabase(t)
			c.leave(target)
			before := filesIn(t, filepath.Dir(target))
			for _, mode := range anyMode {
				wantNotOpened(t, link, mode, strings.Replace(c.want, "PATH", target, 1))
			}
			for _, entry := range commandsThat(func(openMode) bool { return true }) {
				mustFail(t, target, lineOf(entry, t.TempDir()), false, "cannot open the database")
			}
			wantSameFiles(t, before, filesIn(t, filepath.Dir(target)))
			must(t, os.Remove(target+c.clear))
			must(t, openDatabaseFor(t, link, openToServe).Close())
		})
	}
}

// TestARestoreTakesThePlaceOfADatabaseThatIsGone, which is how it is put back.
func TestARestoreTakesThePlaceOfADatabaseThatIsGone(t *testing.T) {
	sc := newScene(t)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		must(t, os.Remove(sc.db+suffix))
	}
	wantNotOpened(t, sc.db, openToServe, "it is gone, and was there")
	sc.mustRestore(t)
	wantPets(t, openDatabaseFor(t, sc.db, openToServe), copiedPets)
}

// TestWhatIsTooLongForItsFilesIsRefused before anything is made: SQLite would say that it is unable
// to open a file, and not why.
func TestWhatIsTooLongForItsFilesIsRefused(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("other systems have other bounds")
	}
	folder := t.TempDir()
	longName := func(length int) string {
		return filepath.Join(folder, strings.Repeat("n", length))
	}
	deep := filepath.Join(folder, strings.Repeat("d", 200))
	longPath := func(length int) string {
		deeper := filepath.Join(deep, strings.Repeat("d", length-len(deep)-len("//name")))
		must(t, os.MkdirAll(deeper, 0o700))
		return filepath.Join(deeper, "name")
	}
	for _, c := range []struct{ longest, longer, want string }{
		{longName(247), longName(248), "its name has 248 bytes, and at most 247 are possible"},
		{longPath(499), longPath(500), "its path has 500 bytes, and at most 499 are possible"},
	} {
		for _, mode := range anyMode {
			wantNotOpened(t, c.longer, mode, c.want)
		}
		mustFail(t, c.longer, "restore "+newScene(t).copy, false, c.want)
		if beside, err := filepath.Glob(c.longer + "*"); err != nil || len(beside) > 0 {
			t.Errorf("%q is left, %v", beside, err)
		}
		s := openDatabaseFor(t, c.longest, openToServe)
		mustCreate(t, s, rex)
		must(t, s.Close())
	}
}

// TestTheSystemsReasonIsTold where SQLite is unable to open a file.
func TestTheSystemsReasonIsTold(t *testing.T) {
	db := madeDatabase(t)
	must(t, os.Mkdir(db+"-wal", 0o700))
	for _, mode := range anyMode {
		wantNotOpened(t, db, mode, "unable to open database file (14): open "+db+"-wal: is a")
	}
	path := databasePath(t)
	wantEqual(t, whyNotOpened(path), nil, "the reason of a folder that takes files")
	folder := filepath.Dir(path)
	must(t, os.Remove(folder))
	wantError(t, whyNotOpened(path), os.ErrNotExist, "a folder that has gone")
}

// TestAStartThatEndsLeavesNothingInTheWayOfTheNext, nor takes anything away: another program may
// have made a database of the empty file meanwhile.
func TestAStartThatEndsLeavesNothingInTheWayOfTheNext(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, first := range []openMode{openOrMake, openToServe} {
		for _, next := range []openMode{openOrMake, openToServe} {
			path := databasePath(t)
			_, err := openStore(stopped, path, first, testLog)
			wantStopped(t, err)
			wantEqual(t, isMissing(path), false, "whether the empty file was removed")
			mustCreate(t, openDatabaseFor(t, path, next), rex)
		}
	}
}

// TestAFullDiskIsSaidToBeFull, without the words that the driver adds where there is no error.
func TestAFullDiskIsSaidToBeFull(t *testing.T) {
	db := madeDatabase(t)
	file := filepath.Join(t.TempDir(), "copy.db")
	pages, err := beginCopy(t.Context(), fileAddress(db), newFile(t, file), 1, "OFF")
	must(t, err)
	defer pages.end()
	must(t, pages.backup.Finish())
	pages.backup, err = pages.source.NewBackup(fileAddress(file, "_pragma=max_page_count(1)"))
	must(t, err)
	err = pages.run(t.Context(), io.Discard, "copying")
	wantEqual(t, fmt.Sprint(err), "database or disk is full (13)", "the error")
}

// TestADiskThatFailsToReadIsNamedBesideDamage: SQLite tells both in the same words.
func TestADiskThatFailsToReadIsNamedBesideDamage(t *testing.T) {
	sc := newScene(t)
	sc.prepare(t, "damage pets.db")
	s := openDatabase(t, sc.db)
	last := readNumber(t, s, "SELECT seq FROM sqlite_sequence WHERE name = 'pets'")
	must(t, s.Close())
	mustFail(t, sc.db, fmt.Sprint("pet show ", last), false, "malformed",
		"a disk that fails to read looks like damage: look at the kernel's log first")
}

// TestWhoeverMakesADatabaseIsTold which one: it may be in the wrong folder.
func TestWhoeverMakesADatabaseIsTold(t *testing.T) {
	const made = `"msg":"a new database was made","database":`
	path := databasePath(t)
	mustFail(t, path, "key list", false,
		"there is none; look whether -db, or PETSTORE_DB, names the right one")
	mustSay(t, path, "key create", made+fmt.Sprintf("%q", path))
	_, log, err := petstore(t, nil, "key", "create", "-db", path)
	must(t, err)
	wantCount(t, log, made, 0, "the log beside a database that is there")
	copied, restored := filepath.Join(t.TempDir(), "copy.db"), databasePath(t)
	mustSay(t, path, "backup "+copied)
	mustSay(t, restored, "restore "+copied, made+fmt.Sprintf("%q", restored))
	_, log, err = petstore(t, nil, "restore", "-db", restored, copied)
	must(t, err)
	wantCount(t, log, made, 0, "the log beside a database that is replaced")
	cluster := newCluster(t, 1).addresses()
	mustSay(t, cluster, "key create", made+fmt.Sprintf("%q", cluster))
}

// TestARawCopyIsRestoredWithAWarning: what was in the log of a file in use is not in the copy. A
// copy of petstore backup is whole.
func TestARawCopyIsRestoredWithAWarning(t *testing.T) {
	const warning = `"level":"WARN","msg":"the copy was not made by petstore backup; if it was ` +
		`copied while a program had it open, it lacks what its -wal held"`
	s := newStore(t)
	otherProgram(t, fileEngine(s).path, "PRAGMA wal_checkpoint")
	mustCreate(t, s, rex)
	raw, copied := databasePath(t), databasePath(t)
	writeText(t, raw, readText(t, fileEngine(s).path))
	must(t, backUp(t.Context(), s, copied))
	mustSay(t, databasePath(t), "restore "+raw, warning)
	_, log, err := petstore(t, nil, "restore", "-db", databasePath(t), copied)
	must(t, err)
	wantCount(t, log, "WARN", 0, "the log of a restore of a backup")
}
