package main

// Copies of the database. Nothing that exists is ever overwritten: a copy is written as FILE.partial, which must not be
// there before, and gets its name once it is whole. Only restore changes a database, and it does that in one
// transaction.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// makeFile lets fill write and sync FILE.partial, and gives it the name FILE when it is whole. A FILE that exists is
// refused, be it a link or a device, and so is one that has a log beside it: SQLite would apply that to the new file.
func makeFile(name string, fill func(partial *os.File) error) error {
	path, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	for _, suffix := range []string{"", "-wal", "-journal"} {
		_, err := os.Lstat(path + suffix)
		if err == nil {
			return fmt.Errorf("%s exists, and nothing is overwritten", path+suffix)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	err = withPartial(path, func(partial *os.File) error {
		if err := fill(partial); err != nil {
			return err
		}
		return giveName(partial.Name(), path)
	})
	if err != nil {
		return err
	}
	return syncFile(filepath.Dir(path))
}

// withPartial lets use write FILE.partial, which only one program at a time can make, and removes it in the end.
func withPartial(path string, use func(partial *os.File) error) error {
	name := path + ".partial"
	partial, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the operator names it
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there: another copy runs, or was stopped; remove it", name)
	}
	if err != nil {
		return err
	}
	defer os.Remove(name)
	defer partial.Close()
	return use(partial)
}

// giveName gives a file a second name by a link, which fails if somebody else was faster.
func giveName(partial, path string) error {
	err := os.Link(partial, path)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	// This file system has no links. Here a rename is safe, since the file that it replaces is our own.
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the operator names it
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(partial, path)
}

// moveIDs makes the new ids of all tables that assign them start so many above those that there are, or have been.
const moveIDs = `
WITH used (name, seq) AS (
	SELECT 'pets', ifnull(max(id), 0) FROM pets
	UNION ALL SELECT 'api_keys', ifnull(max(id), 0) FROM api_keys)
INSERT INTO sqlite_sequence (name, seq)
SELECT name, seq FROM used WHERE name NOT IN (SELECT name FROM sqlite_sequence);
UPDATE sqlite_sequence SET seq = seq + ?`

var (
	errDamaged  = errors.New("the copy is damaged")
	errPageSize = errors.New("the copy's pages have another size than the database's; bring them to that size with " +
		"PRAGMA page_size and VACUUM")
)

// finishCopy reads a copy whole, counts its pets, moves its ids on, and brings it to disk. With mode=ro SQLite would
// not look at the CHECK constraints; without a mode it would make the file. A journal in memory leaves no file behind
// when it is killed: copies that are not whole are not used again.
func finishCopy(ctx context.Context, file string, skipIDs int64) (pets, bytes int64, err error) {
	db := openPool(file, 0, "mode=rw", "_pragma=journal_mode(MEMORY)", "_pragma=synchronous(FULL)")
	defer db.Close()
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return 0, 0, err
	}
	if verdict != "ok" {
		return 0, 0, fmt.Errorf("%w: %s", errDamaged, strings.Join(strings.Fields(verdict), " "))
	}
	if _, err := db.ExecContext(ctx, moveIDs, skipIDs); err != nil {
		return 0, 0, err
	}
	counts := db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM pets), ("+sizeQuery+")")
	if err := counts.Scan(&pets, &bytes); err != nil {
		return 0, 0, err
	}
	if err := syncFile(file); err != nil {
		return 0, 0, err
	}
	return pets, bytes, context.Cause(ctx)
}

// findCopy returns where the copy lies that is to be restored, unless it cannot be used.
func findCopy(ctx context.Context, name, database string) (path string, err error) {
	path, err = resolve(name)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if replaced, err := os.Stat(database); err == nil && os.SameFile(info, replaced) {
		return "", errors.New("they are the same file")
	}
	for _, suffix := range []string{"-wal", "-journal"} { // it may be of another file that had this name
		log, err := os.Stat(path + suffix)
		if err == nil && log.Size() > 0 {
			return "", fmt.Errorf("%s has a log beside it, %s: it is in use, or was not closed", path, log.Name())
		}
	}
	version, err := checkOwner(ctx, path)
	if err != nil {
		return "", fmt.Errorf("the copy cannot be used: %w", err)
	}
	if version == 0 {
		return "", errors.New("the copy cannot be used: it is no petstore's")
	}
	return path, nil
}

// copyPages puts all pages of one database in the place of those of another, which exists, with SQLite's online
// restore: in one transaction, beside those who read it. It calls locked once nobody else can write any more, and before
// it writes itself, and show after each step.
func copyPages(ctx context.Context, from, to, journal string, locked func() error, show func(done, total int)) error {
	db := openPool(to, 0, "mode=rw", "_pragma=journal_mode("+journal+")", "_pragma=synchronous(FULL)")
	defer db.Close()
	var conn *sql.Conn
	err := untilUnlocked(ctx, commandWait, func() (err error) {
		conn, err = db.Conn(ctx)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(func(driver any) error {
		restorer := driver.(interface {
			NewRestore(source string) (*sqlite.Backup, error)
		})
		// Without a mode it would make a missing file, and with mode=ro leave an empty log beside this one.
		restore, err := restorer.NewRestore(fileAddress(from, "mode=rw"))
		if err != nil {
			return err
		}
		err = stepThrough(ctx, restore, locked, show)
		finished := restore.Finish() // after less than the last step, it rolls back
		if err != nil {
			return err
		}
		return finished
	})
}

// stepThrough copies few pages at a time, and looks for a signal in between.
func stepThrough(ctx context.Context, restore *sqlite.Backup, locked func() error, show func(done, total int)) error {
	err := untilUnlocked(ctx, commandWait, func() error {
		_, err := restore.Step(0) // only takes the lock
		return err
	})
	if isCode(err, sqlite3.SQLITE_READONLY) {
		return errPageSize
	}
	if err != nil {
		return err
	}
	if err := locked(); err != nil {
		return err
	}
	for more := true; more; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		more, err = restore.Step(32)
		if err != nil {
			return err
		}
		total := restore.PageCount()
		show(total-restore.Remaining(), total)
	}
	return nil
}
