package main

// Tests of who brings a schema up to date, and of what commands leave as it is.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lineOf is a command as it is run on the first key or pet. A file that it makes is in a folder.
func lineOf(entry command, folder string) string {
	switch entry.name {
	case "key set", "pet set":
		return entry.name + " -name x 1"
	case "backup":
		return entry.name + " " + filepath.Join(folder, "copy.db")
	case "pet import":
		return entry.name + " " + os.DevNull
	case "key create", "key list", "key usage", "pet export":
		return entry.name
	}
	return entry.name + " 1"
}

// commandsThat are those whose way of opening a database passes a check.
func commandsThat(check func(openMode) bool) (entries []command) {
	for _, entry := range commands {
		if entry.database != openNothing && check(entry.database) {
			entries = append(entries, entry)
		}
	}
	return entries
}

// TestOnlyAServiceBringsASchemaUpToDate: a command refuses an older one, which an older service may
// have in use, and leaves it as it is. A backup copies it as it is.
func TestOnlyAServiceBringsASchemaUpToDate(t *testing.T) {
	takesSeconds(t)
	updates := func(mode openMode) bool { return mode != openToCopy }
	for version := 1; version < len(migrations); version++ {
		statements := append(schemaOf(version),
			"INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Rex')")
		path := databasePath(t)
		makeOtherDatabase(t, path, append([]string{"PRAGMA journal_mode=WAL"}, statements...)...)
		before := filesIn(t, filepath.Dir(path))
		c := newCluster(t, 3)
		c.exec(statements...)
		for db, marks := range map[string]func() string{
			path: func() string {
				wantSameFiles(t, before, filesIn(t, filepath.Dir(path)))
				return ""
			},
			c.addresses(): func() string { return fmt.Sprint(c.marks()) },
		} {
			was := marks()
			for _, entry := range commandsThat(updates) {
				mustFail(t, db, lineOf(entry, ""), false, "cannot open the database", fmt.Sprintf(
					"its schema is version %d, and this petstore's is %d; only the start of a "+
						"service brings it up to date: start the service first",
					version, len(migrations)), "petstore restore -db look.db COPY")
			}
			folder := t.TempDir()
			out := mustSay(t, db, lineOf(*commandNamed("backup"), folder), `"backup made"`)
			wantEqual(t, out, "", "what backup prints")
			copied := soundDatabase(t, filepath.Join(folder, "copy.db"))
			wantEqual(t, numberIn(t, copied, "PRAGMA user_version"), int64(version),
				"the version of the copy")
			wantEqual(t, marks(), was, "the marks")
			s := openDatabaseFor(t, db, openToServe)
			wantPets(t, s, 1)
			now := readNumber(t, s, "SELECT user_version FROM pragma_user_version")
			wantEqual(t, now, int64(len(migrations)), "the version that a service makes")
			must(t, s.Close())
		}
	}
}

// TestACommandThatReadsChangesNoFile, neither of a database that was closed, nor of one that a kill
// has left, whose log stays; nor of a copy, beside which it makes nothing either.
func TestACommandThatReadsChangesNoFile(t *testing.T) {
	closed := newKeys(t)
	closed.mint("create")
	closed.write(sqlOf("INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Rex')"))
	sc := newScene(t)
	copies := databasePath(t)
	writeText(t, copies, readText(t, sc.copy))
	for what, db := range map[string]string{
		"closed": closed.db, "killed": sc.db, "a copy": copies,
	} {
		before := filesIn(t, filepath.Dir(db))
		for _, entry := range commandsThat(openMode.onlyReads) {
			mustSay(t, db, lineOf(entry, t.TempDir()))
			if entry.name != "backup" { // which notes itself, at last
				wantSameFiles(t, before, filesIn(t, filepath.Dir(db)))
			}
		}
		if what == "a copy" {
			continue
		}
		wantEqual(t, backupNote(t, db) > 0, true, "that a backup is noted of ", what)
	}
	beside, err := filepath.Glob(copies + "*")
	must(t, err)
	wantEqual(t, strings.Join(beside, " "), copies, "what is beside a copy")
}
