package main

// Copies: backup, restore, and the import and export of pets. Nothing that exists is ever
// overwritten: a copy is written as FILE.partial, which must not be there before, and gets its name
// once it is whole. Only restore changes a database, and it does that in one transaction.

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// makeFile lets fill write and sync FILE.partial, and gives it the name FILE when it is whole. A
// FILE that exists is refused, be it a link or a device, and so is one that has a log beside it:
// SQLite would apply that to the new file.
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
		return giveName(partial, path)
	})
	if err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// withPartial lets use write FILE.partial, which only one program at a time can make, and removes
// it in the end, unless somebody else has removed it and it is another one's by now.
func withPartial(path string, use func(partial *os.File) error) error {
	name := path + ".partial"
	//nolint:gosec // the operator names the file
	partial, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there: another copy runs, or was stopped; remove it", name)
	}
	if err != nil {
		return err
	}
	defer func() {
		if hasName(partial) {
			_ = os.Remove(name)
		}
		_ = partial.Close()
	}()
	return use(partial)
}

// hasName reports whether a file still has the name under which it was opened.
func hasName(file *os.File) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(file.Name())
	return err == nil && os.SameFile(opened, named)
}

// giveName gives a whole file its name by a link, which fails if somebody else was faster.
func giveName(partial *os.File, path string) error {
	if !hasName(partial) {
		return fmt.Errorf("%s was removed or replaced", partial.Name())
	}
	err := os.Link(partial.Name(), path)
	if err == nil || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// This file system has no links. Here a rename is safe: the file that it replaces is our own.
	//nolint:gosec // the operator names the file
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := os.Rename(partial.Name(), path); err != nil {
		_ = os.Remove(path) // it is empty
		return err
	}
	return nil
}

// backup moves the ids on in the copy of a cluster, which goes on giving out its own.
func backup(ctx context.Context, c *invocation) error {
	if !isCluster(c.db) && !c.given("skip-ids") {
		c.skipIDs = 0
	}
	copied, err := c.saveCopy(ctx, c.Arg(0))
	if err != nil {
		return fmt.Errorf("cannot back up %s to %s: %w", databaseName(c.db), c.Arg(0), err)
	}
	return c.report(nil, "backup made",
		"copied", copied,
		"database", databaseName(c.db),
		"to", c.Arg(0))
}

// saveCopy makes a copy of the database in a new file, and says what was copied.
func (c *invocation) saveCopy(ctx context.Context, to string) (copied string, err error) {
	// That the size can be read shows that the node of a cluster leads, and so has all that was
	// acknowledged.
	var size int64
	if _, err := c.store.readInto(ctx, sqlOf(sizeQuery), &size); err != nil {
		return "", err
	}
	err = makeFile(to, func(partial *os.File) error {
		stop := c.watch(ctx, "copying", size, partial)
		err := c.store.engine.backup(ctx, partial)
		stop()
		if err != nil {
			return err
		}
		copied, err = c.finish(ctx, partial, c.skipIDs)
		return err
	})
	return copied, err
}

// copyFile makes partial a checked copy of a database file. It copies pages: a copy that SQL makes
// of a damaged file may lack rows without an error.
func (c *invocation) copyFile(ctx context.Context, from string, partial *os.File, skipIDs int64) (
	copied string, err error) {
	notLocked := func() error { return nil }
	err = c.copyPages(ctx, "copying", from, partial.Name(), "OFF", notLocked)
	if err != nil {
		return "", err
	}
	return c.finish(ctx, partial, skipIDs)
}

// watch shows the size of a file until stop is called. One that does not grow has no total.
func (c *invocation) watch(ctx context.Context, doing string, total int64, file *os.File) (
	stop func()) {
	p := c.progress(doing, "bytes", total)
	ctx, cancel := context.WithCancel(ctx)
	var shown sync.WaitGroup
	shown.Go(func() {
		for ctx.Err() == nil {
			if info, err := file.Stat(); err == nil {
				p.show(info.Size())
			}
			pause(ctx, 200*time.Millisecond)
		}
	})
	return func() {
		cancel()
		shown.Wait()
		p.end()
	}
}

// moveIDs makes the new ids of all tables that assign them start so many above those that there
// are, or have been.
const moveIDs = `
WITH used (name, seq) AS (
	SELECT 'pets', ifnull(max(id), 0) FROM pets
	UNION ALL SELECT 'api_keys', ifnull(max(id), 0) FROM api_keys)
INSERT INTO sqlite_sequence (name, seq)
SELECT name, seq FROM used WHERE name NOT IN (SELECT name FROM sqlite_sequence);
UPDATE sqlite_sequence SET seq = seq + ?`

var errDamaged = errors.New("the copy is damaged")

// finish reads a copy whole, starts its new ids skipIDs above those that it holds, brings it to
// disk, and says what it holds. With mode=ro SQLite would not look at the CHECK constraints;
// without a mode it would make the file. A journal in memory leaves no file behind after a kill:
// then the copy is not used again.
func (c *invocation) finish(ctx context.Context, partial *os.File, skipIDs int64) (
	copied string, err error) {
	defer c.watch(ctx, "checking", 0, partial)()
	db := openPool(partial.Name(), 0, "mode=rw", "_pragma=journal_mode(MEMORY)",
		"_pragma=synchronous(FULL)")
	defer db.Close()
	var verdict string
	err = db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict)
	if err != nil {
		return "", err
	}
	if verdict != "ok" {
		return "", fmt.Errorf("%w: %s", errDamaged, strings.Join(strings.Fields(verdict), " "))
	}
	if _, err := db.ExecContext(ctx, moveIDs, skipIDs); err != nil {
		return "", err
	}
	var pets, size int64
	counts := db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM pets), ("+sizeQuery+")")
	if err := counts.Scan(&pets, &size); err != nil {
		return "", err
	}
	if err := partial.Sync(); err != nil {
		return "", err
	}
	copied = fmt.Sprintf("%s, %s, checked", amount(pets, "pets"), amount(size, "bytes"))
	return copied, context.Cause(ctx)
}

func restore(ctx context.Context, c *invocation) error {
	copied, old, err := c.restoreCopy(ctx)
	if err != nil {
		return fmt.Errorf("cannot restore %s from %s: %w", databaseName(c.db), c.Arg(0), err)
	}
	return c.report(nil, "database restored",
		"copied", copied,
		"database", databaseName(c.db),
		"from", c.Arg(0),
		"old", old,
		"skippedIDs", c.skipIDs)
}

// restoreCopy puts what a copy holds in the place of what the database holds, which is kept as old,
// or "" if that is nothing. New ids start -skip-ids above the copy's, so that no id that a client
// has seen is used again.
func (c *invocation) restoreCopy(ctx context.Context) (copied, old string, err error) {
	source, err := findCopy(ctx, c.Arg(0), c.db)
	if err != nil {
		return "", "", err
	}
	if isCluster(c.db) {
		copied, err = c.restoreCluster(ctx, source)
		return copied, "", err
	}
	path, err := resolve(c.db)
	if err != nil {
		return "", "", err
	}
	return c.restoreFile(ctx, source, path)
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
	if replaced, err := os.Stat(database); err == nil && os.SameFile(info, replaced) {
		return "", errors.New("they are the same file")
	}
	for _, suffix := range []string{"-wal", "-journal"} { // of another file that had this name?
		log, err := os.Stat(path + suffix)
		if err == nil && log.Size() > 0 {
			return "", fmt.Errorf("%s has a log beside it, %s: it is in use, or was not closed",
				path, log.Name())
		}
	}
	version, err := checkOwner(ctx, path)
	if err == nil && version == 0 {
		err = errors.New("it is no petstore's")
	}
	if err != nil {
		return "", fmt.Errorf("the copy cannot be used: %w", err)
	}
	return path, nil
}

// restoreFile keeps services off a database file, or off the place of one, while it restores it.
func (c *invocation) restoreFile(ctx context.Context, source, path string) (
	copied, old string, err error) {
	info, err := os.Stat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	version := 0
	if err == nil && info.Size() > 0 {
		version, err = checkOwner(ctx, path)
	}
	newer := version > len(migrations) // then it is kept and replaced as any other
	if err != nil && !missing && !newer {
		return "", "", tellDamage(err, path)
	}
	if _, err := ensureFile(path + "-lock"); err != nil {
		return "", "", err
	}
	lock, err := lockFile(path+"-lock", errServed)
	if err != nil {
		return "", "", err
	}
	defer lock.Close()
	if err := refuseOrphanedLog(path); err != nil {
		return "", "", err
	}
	fill := func(partial *os.File) error {
		copied, err = c.copyFile(ctx, source, partial, c.skipIDs)
		return err
	}
	if missing {
		err := makeFile(path, fill)
		return copied, "", err
	}
	err = withPartial(path, func(partial *os.File) error {
		if err := fill(partial); err != nil {
			return err
		}
		old, err = c.replaceContent(ctx, path, partial.Name(), version > 0)
		return err
	})
	return copied, old, err
}

// replaceContent puts the pages of a checked copy in the place of those of a database. If that
// holds anything, it is kept first, once nobody else can write to it any more.
func (c *invocation) replaceContent(ctx context.Context, path, partial string, keep bool) (
	old string, err error) {
	if _, err := ensureFile(path); err != nil { // who may not write to it is told so
		return "", err
	}
	keepOld := func() error {
		if !keep {
			return nil
		}
		name := path + "." + c.now.time().UTC().Format("20060102T150405.000Z") + ".old"
		err := makeFile(name, func(partial *os.File) error {
			_, err := c.copyFile(ctx, path, partial, 0)
			return err
		})
		if err == nil {
			old = name
		}
		return err
	}
	journal := "WAL" // beside which others may read
	if !keep {
		journal = "DELETE" // an empty database in this mode takes pages of any size
	}
	err = c.copyPages(ctx, "restoring", partial, path, journal, keepOld)
	if err == nil {
		return old, nil
	}
	if old == "" {
		return "", tellDamage(err, path)
	}
	if errors.Is(err, context.Cause(ctx)) { // nothing was written
		_ = os.Remove(old)
		return "", err
	}
	return "", fmt.Errorf("%w; a copy of the database is left as %s", err, old)
}

// tellDamage adds to the error of a damaged database how it can be replaced all the same.
func tellDamage(err error, path string) error {
	if !errors.Is(err, errDamaged) && !errors.Is(err, errNoDatabase) &&
		!isCode(err, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) {
		return err
	}
	return fmt.Errorf("the database is damaged, and no copy of it can be kept (%w); to restore in "+
		"its place, move %s, %[2]s-wal and %[2]s-shm away together", err, path)
}

// copyPages puts all pages of one database in the place of those of another, which exists, with
// SQLite's online restore: in one transaction, beside those who read it. It calls locked once
// nobody else can write any more, and before it writes itself.
func (c *invocation) copyPages(ctx context.Context, doing, from, to, journal string,
	locked func() error) error {
	db := openPool(to, 0, "mode=rw", "_pragma=journal_mode("+journal+")",
		"_pragma=synchronous(FULL)", "_pragma=fullfsync(1)")
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
		// Without a mode it would make a missing file, and with mode=ro leave an empty log.
		restore, err := restorer.NewRestore(fileAddress(from, "mode=rw"))
		if err != nil {
			return err
		}
		err = c.stepThrough(ctx, doing, restore, locked)
		finished := restore.Finish() // before the last step is done, this rolls back
		if err != nil {
			return err
		}
		return finished
	})
}

// stepThrough copies few pages at a time, and looks for a signal in between.
func (c *invocation) stepThrough(ctx context.Context, doing string, restore *sqlite.Backup,
	locked func() error) error {
	err := untilUnlocked(ctx, commandWait, func() error {
		_, err := restore.Step(0) // only takes the lock
		return err
	})
	if isCode(err, sqlite3.SQLITE_READONLY) {
		return errors.New("the copy's pages have another size than the database's; bring them to " +
			"that size with PRAGMA page_size and VACUUM")
	}
	if err != nil {
		return err
	}
	if err := locked(); err != nil {
		return err
	}
	p := c.progress(doing, "pages", 0)
	defer p.end()
	for more := true; more; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		more, err = restore.Step(32)
		if err != nil {
			return err
		}
		p.total = int64(restore.PageCount())
		p.show(p.total - int64(restore.Remaining()))
	}
	return nil
}

// restoreCluster loads a checked copy into a cluster that holds nothing that would be lost.
func (c *invocation) restoreCluster(ctx context.Context, source string) (
	copied string, err error) {
	partial, err := os.CreateTemp("", "petstore-")
	if err != nil {
		return "", err
	}
	defer os.Remove(partial.Name())
	defer partial.Close()
	copied, err = c.copyFile(ctx, source, partial, c.skipIDs)
	if err != nil {
		return "", err
	}
	if err := c.refuseData(ctx); err != nil {
		return "", err
	}
	defer c.watch(ctx, "loading", 0, partial)()
	whole := io.NewSectionReader(partial, 0, math.MaxInt64)
	return copied, c.store.engine.(*rqlite).load(ctx, whole)
}

// refuseData refuses a cluster that holds a pet or a key, as each does once a service was started
// on it.
func (c *invocation) refuseData(ctx context.Context) error {
	version, err := schemaVersion(ctx, c.store.engine)
	if err != nil || version == 0 {
		return err
	}
	var pets, keys int64
	count := sqlOf("SELECT (SELECT count(*) FROM pets), (SELECT count(*) FROM api_keys)")
	if _, err := c.store.readInto(ctx, count, &pets, &keys); err != nil {
		return err
	}
	if pets == 0 && keys == 0 {
		return nil
	}
	return fmt.Errorf("it holds %s and %s, and nothing is overwritten; start nodes with empty "+
		"folders, and restore before a service starts on them, which makes a key",
		amount(pets, "pets"), amount(keys, "keys"))
}

// petImport stores nothing before all lines are known to be right. Until then the pets are rows in
// a temporary file, which has no name any more.
func petImport(ctx context.Context, c *invocation) error {
	rows, err := os.CreateTemp("", "petstore-")
	if err != nil {
		return err
	}
	_ = os.Remove(rows.Name())
	defer rows.Close()
	var digest string
	var total int64
	err = untilStopped(ctx, func() (err error) {
		digest, total, err = c.readPets(ctx, rows)
		return err
	})
	if err != nil {
		return err
	}
	start, err := c.importStart(ctx, digest, total)
	if err != nil {
		return err
	}
	stored, err := c.writePets(ctx, rows, digest, start, total)
	if err != nil {
		return fmt.Errorf("%sof %s are stored; the same import goes on after them: %w",
			amount(stored, ""), amount(total, "pets"), err)
	}
	message := amount(total-start, "pets") + " imported"
	if start > 0 {
		message += ", which ends an import that was stopped"
	}
	return c.report(nil, message, "file", c.Arg(0), "sha256", digest,
		"before", start, "database", databaseName(c.db))
}

// importStart is how many pets of an import are stored already. One that has ended begins anew with
// -again: its place is moved to the start before anything is stored, so that every later step can
// tell whether it was made.
func (c *invocation) importStart(ctx context.Context, digest string, total int64) (int64, error) {
	stored, err := c.store.imported(ctx, digest)
	if err != nil || stored < total || total == 0 {
		return stored, err
	}
	if !c.again {
		return 0, fmt.Errorf("it was imported before, all %s; -again adds them once more",
			amount(total, "pets"))
	}
	return 0, c.store.moveImport(ctx, digest, total, 0)
}

// untilStopped returns what do returns, unless ctx ends while do waits for the other end of a pipe.
func untilStopped(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readPets writes the pets of the file as rows, and returns how many there are, and the digest of
// the content. A line is read as strictly as the body of createPet, but for an id, which does not
// count. The first lines that are wrong are shown.
func (c *invocation) readPets(ctx context.Context, rows io.Writer) (digest string, pets int64,
	err error) {
	const maxShown, maxLine = 20, 1 << 20 // no line behind a longer one can be found
	from, size := c.stdin, int64(0)
	if c.Arg(0) != "-" {
		file, err := os.Open(c.Arg(0))
		if err != nil {
			return "", 0, err
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil {
			size = info.Size()
		}
		from = file
	}
	sum, out := sha256.New(), bufio.NewWriter(rows)
	in := bufio.NewScanner(io.TeeReader(from, sum))
	in.Buffer(nil, maxLine)
	p := c.progress("checking", "bytes", size)
	defer p.end()
	var number, read, wrong int64
	for ctx.Err() == nil && in.Scan() {
		line := in.Bytes()
		number++
		read += int64(len(line))
		p.show(read)
		if number == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff")) // a byte order mark
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		pets++
		pet, problem := decodeNewPet(line, "id")
		if len(line) > maxBody {
			problem = newError(CodeInvalidBody, "the line must have at most %d bytes", maxBody)
		}
		if problem == nil {
			_, _ = out.WriteString(pet.row() + "\n") // Flush returns the error
			continue
		}
		wrong++
		if wrong <= maxShown {
			p.end()
			_, text, _ := strings.Cut(problem.Error(), ": ")
			_, _ = fmt.Fprintf(c.stderr, "line %d: %s\n", number, text)
		}
	}
	if in.Err() != nil {
		return "", 0, fmt.Errorf("line %d: %w", number+1, in.Err())
	}
	if wrong > 0 {
		return "", 0, fmt.Errorf("%s has %s; nothing was stored",
			c.Arg(0), amount(wrong, "wrong lines"))
	}
	if err := out.Flush(); err != nil {
		return "", 0, err
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), pets, context.Cause(ctx)
}

// importBatch is how many pets of an import share a transaction. More would be faster, but creates
// wait meanwhile.
const importBatch = 500

// writePets stores the rows behind the first ones, which are stored, and returns how many are
// stored then. After each transaction it pauses for as long as that took, so that others can write
// for half of the time.
func (c *invocation) writePets(ctx context.Context, rows *os.File, digest string,
	stored, total int64) (int64, error) {
	p := c.progress("importing", "pets", total)
	p.from = stored
	defer p.end()
	in := bufio.NewScanner(io.NewSectionReader(rows, 0, math.MaxInt64))
	for range stored {
		in.Scan()
	}
	for stored < total {
		if ctx.Err() != nil { // which comes too late once all are stored
			return stored, context.Cause(ctx)
		}
		var pets []string
		for len(pets) < importBatch && in.Scan() {
			pets = append(pets, in.Text())
		}
		if in.Err() != nil {
			return stored, in.Err()
		}
		begin, next := time.Now(), stored+int64(len(pets))
		if err := c.store.importPets(ctx, digest, pets, stored, next); err != nil {
			return stored, err
		}
		stored = next
		p.show(stored)
		pause(ctx, time.Since(begin))
	}
	return stored, nil
}

// petExport writes to a new file, which is there when it is whole, or to stdout.
func petExport(ctx context.Context, c *invocation) error {
	file := cmp.Or(c.Arg(0), "-")
	var total, done int64
	count := sqlOf("SELECT count(*) FROM pets WHERE ? IN (0, status)",
		storedStatus[PetStatus(c.status)])
	if _, err := c.store.readInto(ctx, count, &total); err != nil {
		return err
	}
	p := c.progress("exporting", "pets", total)
	if file == "-" && isTerminal(c.stdout) { // which shows the pets
		p.w = io.Discard
	}
	write := func(w io.Writer) error {
		out := bufio.NewWriterSize(w, maxBody)
		err := c.store.eachPetJSON(ctx, PetStatus(c.status), func(pet string) error {
			done++
			p.show(done)
			_, err := out.WriteString(pet + "\n")
			return err
		})
		if err != nil {
			return err
		}
		return out.Flush()
	}
	var err error
	if file == "-" {
		err = untilStopped(ctx, func() error { return write(c.stdout) })
	} else {
		err = makeFile(file, func(partial *os.File) error {
			if err := write(partial); err != nil {
				return err
			}
			return partial.Sync()
		})
	}
	p.end()
	if readerLeft(err) {
		return errExportCut
	}
	if err != nil {
		return fmt.Errorf("cannot export the pets of %s: %w", databaseName(c.db), err)
	}
	return c.report(nil, amount(done, "pets")+" exported", "file", file,
		"database", databaseName(c.db))
}

// errExportCut is the error of an export whose reader has left. Nobody needs a message then.
var errExportCut = errors.New("the reader of stdout has left")

// readerLeft reports whether an error is that of a file, such as stdout, whose reader has left, as
// head(1) does.
func readerLeft(err error) bool {
	_, ofFile := errors.AsType[*os.PathError](err) // and not of a connection
	return ofFile && errors.Is(err, syscall.EPIPE)
}
