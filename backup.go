package main

// Copies of a database. In this order: the copying of pages, backup, the check of a copy, restore,
// the copy of what has lost its name, and ways past damage. Restore changes a database file in one
// transaction, and puts no other file in its place: what links to it or mounts it goes on.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// --- The copying of pages ---

// pageCopy copies all pages of a source into a target. Both are database files, and both are in a
// transaction until the end: others can write to the source meanwhile, and read the target as it
// was.
type pageCopy struct {
	source copySource
	backup *sqlite.Backup // nil until open has made it
}

// copySource is a connection of the driver.
type copySource interface {
	driver.Conn
	driver.ExecerContext
	NewBackup(target string) (*sqlite.Backup, error)
}

// beginCopy begins both transactions. What is copied is fixed then, and nobody else can write to
// the target, which this process has open so many times. It waits for the locks of other programs.
func beginCopy(ctx context.Context, sourceAddress string, target *os.File, times int,
	journal string) (*pageCopy, error) {
	conn, err := new(sqlite.Driver).Open(sourceAddress)
	if err != nil {
		return nil, err
	}
	return copyFrom(ctx, conn.(copySource), target, times, journal)
}

// copyFrom does the same from a connection, which end closes.
func copyFrom(ctx context.Context, source copySource, target *os.File, times int,
	journal string) (*pageCopy, error) {
	c := &pageCopy{source: source}
	_, err := c.source.ExecContext(ctx, "BEGIN", nil)
	if err == nil {
		err = c.open(target, times, journal)
	}
	if err == nil {
		err = untilUnlocked(ctx, commandWait, func() error { return c.lock(ctx) })
	}
	if err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// open opens the target, once: refuseReplaced would count what an error has left open.
func (c *pageCopy) open(target *os.File, times int, journal string) error {
	err := refuseReplaced(target, times)
	if err != nil {
		return err
	}
	c.backup, err = c.source.NewBackup(fileAddress(target.Name(), "mode=rw",
		"_pragma=journal_mode("+journal+")", "_pragma=synchronous(FULL)",
		"_pragma=fullfsync(1)", "_pragma=wal_autocheckpoint(0)"))
	if err != nil {
		return err
	}
	return refuseReplaced(target, times+1)
}

// lock fixes what is copied, and locks the target. It can be called again after an error.
func (c *pageCopy) lock(ctx context.Context) error {
	// BEGIN alone reads nothing. Without a transaction that reads, every write of somebody else
	// would make the copy begin again.
	_, err := c.source.ExecContext(ctx, "SELECT count(*) FROM sqlite_schema", nil)
	if err != nil {
		return err
	}
	_, err = c.backup.Step(0)                 // copies no page, but takes the lock
	if isCode(err, sqlite3.SQLITE_READONLY) { // the size of pages cannot change in WAL mode
		return errors.New("the copy's pages have another size than the database's, which is " +
			"4096 in a new one; bring them to that size with PRAGMA page_size and VACUUM")
	}
	return err
}

// run copies few pages at a time, and looks for a signal in between. The last step commits.
func (c *pageCopy) run(ctx context.Context, stderr io.Writer, doing string) error {
	p := startProgress(stderr, doing, "pages", int64(c.backup.PageCount()))
	defer p.end()
	for ctx.Err() == nil {
		more, err := c.backup.Step(32)
		if err != nil || !more {
			return err
		}
		p.done.Store(p.total - int64(c.backup.Remaining()))
	}
	return context.Cause(ctx)
}

// end ends both transactions. If run has not committed, a target with a journal is as it was. One
// without a journal holds a part of the pages, and has to be discarded.
func (c *pageCopy) end() {
	if c.backup != nil {
		_ = c.backup.Finish()
	}
	_ = c.source.Close()
}

// --- Backup ---

// backup makes a copy of the database. A copy of a cluster skips ids, since it may serve while the
// cluster goes on giving out ids of its own. A copy of a file skips none unless -skip-ids asks for
// it: restore skips them later.
func backup(ctx context.Context, cmd *invocation) error {
	if !isCluster(cmd.db) && !cmd.given("skip-ids") {
		cmd.skipIDs = 0
	}
	from := databaseName(cmd.db)
	pets, identity, err := cmd.makeCopy(ctx, from)
	if err != nil {
		return fmt.Errorf("cannot back up %s to %s: %w", from, cmd.argument, explained(err))
	}
	// The copy is made, whatever becomes of the note. A backup waits for no lock for long.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := cmd.note(ctx, identity); err != nil {
		cmd.log.Warn("the operator's page does not learn of this backup", "error", err)
	}
	cmd.log.Info("backup made",
		"pets", pets,
		"database", from,
		"to", cmd.argument)
	return nil
}

// makeCopy makes the copy, and returns how many pets it holds and what note takes.
func (c *invocation) makeCopy(ctx context.Context, from string) (pets, identity int64, err error) {
	identity, err = c.notedIdentity(ctx)
	if err != nil {
		return 0, 0, err
	}
	partial, err := createFile(c.argument)
	if err != nil {
		return 0, 0, err
	}
	pets, err = c.saveCopy(ctx, from, partial, c.skipIDs)
	return pets, identity, err
}

// noteBackup stores when the last backup of a database ended, in Unix seconds, unless the database
// has another identity by now. The copy itself has no such note: see checkedCopy.
const noteBackup = `REPLACE INTO counters (name, value)
	SELECT 'backup', ? FROM identity WHERE value = ?`

// notedIdentity is the identity of the database that is to be copied, or 0 for one of an older
// schema, in which nothing is noted.
func (c *invocation) notedIdentity(ctx context.Context) (identity int64, err error) {
	version, err := schemaVersion(ctx, c.store.engine)
	if err != nil || version < len(migrations) {
		return 0, err
	}
	return c.store.identity(ctx)
}

// note stores in the database that a backup was made, if it still has the identity that it had
// before the backup: a restore may have given it other contents meanwhile.
func (c *invocation) note(ctx context.Context, identity int64) error {
	if identity == 0 {
		return nil
	}
	note := sqlOf(noteBackup, time.Now().Unix(), identity)
	if isCluster(c.db) {
		_, err := c.store.write(ctx, note)
		return err
	}
	// What backup has open is for reading alone. Opening the file once more would end its locks
	// (see ensureFile), and two that are open at the end would leave the log behind.
	if err := c.store.Close(); err != nil {
		return err
	}
	file, err := openSQLite(ctx, c.db, openExisting, c.log)
	if err != nil {
		return err
	}
	noted, err := file.write(ctx, []statement{note})
	if err == nil && noted[0].affected == 0 {
		err = errors.New("another one was restored, or put in its place, meanwhile")
	}
	return errors.Join(err, file.Close())
}

// saveCopy makes a checked copy in a new file, and returns how many pets it holds.
func (c *invocation) saveCopy(ctx context.Context, from string, to *partialFile, skipIDs int64) (
	pets int64, err error) {
	defer to.discard()
	pets, err = c.checkedCopy(ctx, from, to.File, skipIDs, 0)
	if err != nil {
		return 0, err
	}
	return pets, to.publish()
}

// checkedCopy copies a database into an empty file, reads the copy whole, starts its new ids
// skipIDs above those that it holds, and returns how many pets it holds. An identity that is not 0
// takes the place of the copy's own. The copy loses the note of the database's last backup, since
// that is not true of itself.
func (c *invocation) checkedCopy(ctx context.Context, from string, to *os.File,
	skipIDs, identity int64) (pets int64, err error) {
	if isCluster(from) {
		err = c.copyCluster(ctx, to)
	} else {
		err = c.copyFile(ctx, from, to)
	}
	if err != nil {
		return 0, err
	}
	return checkCopy(ctx, c.stderr, to, skipIDs, identity)
}

// copyFile copies a database file. It copies pages: a copy that SQL makes of a damaged file may
// lack rows without an error.
func (c *invocation) copyFile(ctx context.Context, from string, to *os.File) error {
	from, err := realPath(from)
	if err != nil {
		return err
	}
	mode, err := readMode(from)
	if err != nil {
		return err
	}
	pages, err := beginCopy(ctx, fileAddress(from, mode), to, 1, "OFF")
	if err != nil {
		return err
	}
	defer pages.end()
	return pages.run(ctx, c.stderr, "copying")
}

// copyCluster copies all that the cluster has acknowledged.
func (c *invocation) copyCluster(ctx context.Context, to io.Writer) error {
	// This is the linearizable read that rqlite.backup wants to follow.
	_, err := schemaVersion(ctx, c.store.engine)
	if err != nil {
		return err
	}
	defer startProgress(c.stderr, "copying", "", 0).end() // only end is deferred
	return c.store.engine.(*rqlite).backup(ctx, to)
}

// --- The check of a copy ---

var errDamaged = errors.New("the copy is damaged")

// moveIDs makes new ids start ? above the highest that each table has ever given out. A table
// without a row in sqlite_sequence has given out none.
const moveIDs = `
INSERT INTO sqlite_sequence (name, seq)
SELECT value, 0 FROM json_each('["pets", "api_keys"]')
WHERE value NOT IN (SELECT name FROM sqlite_sequence);
UPDATE sqlite_sequence SET seq = seq + ?`

// highestID reads the highest id that was given to a pet or a key, deleted ones included.
const highestID = "SELECT ifnull(max(seq), 0) FROM sqlite_sequence"

// checkCopy is checkedCopy for a copy that is made.
func checkCopy(ctx context.Context, stderr io.Writer, to *os.File, skipIDs, identity int64) (
	pets int64, err error) {
	defer startProgress(stderr, "checking", "", 0).end() // only end is deferred
	// With mode=ro SQLite would not look at the CHECK constraints.
	db := openPool(to.Name(), "mode=rw")
	defer db.Close()
	db.SetMaxOpenConns(1) // it stays
	// Ping opens the file.
	if err := db.PingContext(ctx); err != nil {
		return 0, err
	}
	err = refuseReplaced(to, 2)
	if ctx.Err() != nil { // then the connection may have been closed already
		return 0, context.Cause(ctx)
	}
	if err != nil {
		return 0, err
	}
	// A journal in memory leaves no file behind after a kill.
	if _, err := db.ExecContext(ctx, "PRAGMA journal_mode(MEMORY)"); err != nil {
		return 0, err
	}
	var verdict string
	err = db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict)
	if err != nil {
		return 0, err
	}
	if verdict != "ok" {
		return 0, fmt.Errorf("%w: %s", errDamaged, strings.Join(strings.Fields(verdict), " "))
	}
	var highest int64
	var hasCounters bool // not in an old schema
	err = db.QueryRowContext(ctx, "SELECT count(*), ("+highestID+`),
		EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'counters') FROM pets`).
		Scan(&pets, &highest, &hasCounters)
	if err != nil {
		return 0, err
	}
	if highest > math.MaxInt64-skipIDs {
		return 0, fmt.Errorf("its highest id is %d, and %d more cannot be skipped",
			highest, skipIDs)
	}
	_, err = db.ExecContext(ctx, moveIDs, skipIDs)
	if err == nil && hasCounters {
		_, err = db.ExecContext(ctx, "DELETE FROM counters WHERE name = 'backup'")
	}
	if err == nil && identity != 0 {
		err = renewIdentity(ctx, db, identity)
	}
	return pets, err
}

// renewIdentity makes a copy another database than the one that it was made of, and gives it the
// present schema, which has a place for the identity. So a service that runs on a cluster does not
// take what is restored there for the database that it has opened.
func renewIdentity(ctx context.Context, db *sql.DB, identity int64) error {
	version, err := checkMarks(db.QueryRowContext(ctx, ownerQuery).Scan)
	if err != nil {
		return err
	}
	renew := sqlOf("UPDATE identity SET value = ?", identity)
	for _, st := range append(upgrade(version, identity), renew) {
		if _, err := db.ExecContext(ctx, st.query, st.args...); err != nil {
			return err
		}
	}
	return nil
}

// --- Restore ---

// restore puts what a copy holds in the place of what the database holds. New ids start -skip-ids
// above the copy's, and above all that the database has given, so that no id that a client has seen
// is used again.
func restore(ctx context.Context, cmd *invocation) error {
	database := databaseName(cmd.db)
	pets, old, err := cmd.restoreCopy(ctx)
	if err != nil {
		return fmt.Errorf("cannot restore %s from %s: %w", database, cmd.argument, explained(err))
	}
	made, keys, isStaging := lookAtCopy(ctx, cmd.argument)
	cmd.log.Info("database restored",
		"pets", pets,
		"keys", keys,
		"database", database,
		"from", cmd.argument,
		"made", made,
		"old", old,
		"skippedIDs", cmd.skipIDs)
	if inWALMode(cmd.argument) {
		cmd.log.Warn("the copy was not made by petstore backup; if it was copied while a program "+
			"had it open, it lacks what its -wal held", "copy", cmd.argument)
	}
	if isStaging {
		cmd.log.Warn("all keys of the copy are pet_test_ keys, and get 401 but of a service with "+
			"-staging", "copy", cmd.argument)
	}
	if old == "" && !isCluster(cmd.db) {
		cmd.log.Info(databaseMade, "database", database)
	}
	return nil
}

// databaseMade is logged where there was none: -db may have named another one by mistake.
const databaseMade = "a new database was made"

// copyTime is the time in the names of copies that nobody has named: F.TIME.old and F.TIME.saved.
const copyTime = "20060102T150405.000Z"

// lookAtCopy tells when the file of a copy was written last, how many keys the copy has, and
// whether it has some and all are of staging. What cannot be read is left out.
func lookAtCopy(ctx context.Context, name string) (made time.Time, keys int64, isStaging bool) {
	path, err := realPath(name)
	if err != nil {
		return made, 0, false
	}
	if file, err := os.Stat(path); err == nil {
		made = file.ModTime().UTC()
	}
	db := openToLook(path)
	defer db.Close()
	_ = db.QueryRowContext(ctx, "SELECT count(*), ifnull(min(test), 0) FROM api_keys").
		Scan(&keys, &isStaging)
	return made, keys, isStaging
}

// restoreCopy returns how many pets it has restored, and where the old database is kept: "" if that
// held nothing.
func (c *invocation) restoreCopy(ctx context.Context) (pets int64, old string, err error) {
	source, err := findCopy(ctx, c.argument, c.db)
	if err != nil {
		return 0, "", err
	}
	if isCluster(c.db) {
		pets, err = c.restoreCluster(ctx, source)
		return pets, "", err
	}
	return c.restoreFile(ctx, source)
}

// findCopy returns the path of the copy that is to be restored, unless it cannot be used.
func findCopy(ctx context.Context, name, database string) (path string, err error) {
	if err := refuseIrregular(name); err != nil {
		return "", err
	}
	path, err = realPath(name)
	if err != nil {
		return "", err
	}
	copied, _ := os.Stat(path)
	replaced, _ := os.Stat(database)
	if os.SameFile(copied, replaced) {
		return "", errors.New("they are the same file")
	}
	for _, suffix := range []string{"-wal", "-journal"} {
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

// restoreCluster loads a checked copy into a cluster that holds nothing that would be lost.
func (c *invocation) restoreCluster(ctx context.Context, source string) (
	pets int64, err error) {
	cluster, err := openRqlite(ctx, nodeURLs(c.db), openExisting, c.log)
	if err != nil {
		return 0, err
	}
	defer cluster.Close()
	temporary, err := os.CreateTemp("", "petstore-")
	if err != nil {
		return 0, err
	}
	identity := newIdentity()
	pets, err = c.checkedCopy(ctx, source, temporary, c.skipIDs, identity)
	// From here on the copy needs no name. Loading it takes the longest, and a kill during that
	// leaves nothing behind. It is removed now, and closed at the end.
	defer removeOpen(temporary, os.Remove)()
	if err != nil {
		return 0, err
	}
	defer startProgress(c.stderr, "loading", "", 0).end() // only end is deferred
	// SQLite has written to the file by its name: what is read here still begins at its beginning.
	return pets, cluster.load(ctx, temporary, identity)
}

// restoreFile restores into a database file, which is made if there is none.
func (c *invocation) restoreFile(ctx context.Context, source string) (
	pets int64, old string, err error) {
	if err := refuseUnfit(c.db); err != nil {
		return 0, "", err
	}
	// This comes first: what another machine restores into has a partial file too, which stays.
	if err := refuseElsewhere(ctx, placeOf(c.db), false, isServed); err != nil {
		return 0, "", err
	}
	// The ids are moved on in a temporary copy: the operator's stays as it is. It is begun first:
	// beside it, no start takes the file that a killed restore has made for its own first, and no
	// other restore makes, or removes, the file.
	partial, err := createPartial(placeOf(c.db))
	if err != nil {
		return 0, "", err
	}
	defer partial.discard()
	giveToFolder(partial.File)
	isNew := isMissing(c.db)
	path, err := ensureWritable(c.db)
	if err != nil {
		return 0, "", err
	}
	defer func() {
		if isNew && err != nil && !errors.Is(err, errElsewhere) { // else it is another service's
			removeUnused(context.WithoutCancel(ctx), path)
		}
	}()
	target := newSQLiteFile(path, "mode=ro", c.log)
	defer target.Close() // before removeUnused, which may need its descriptors
	version, err := replacedVersion(ctx, path)
	if err != nil {
		return 0, "", err
	}
	// A lock beside nothing may be left of a database that was lost, or moved away.
	if version == 0 && !isMissing(path+"-lock") && !c.given("skip-ids") {
		c.log.Warn("if there was a database here, the ids that it gave are unknown; new ones "+
			"start above those of the copy; if more were given since it was made, restore again "+
			"with a larger -skip-ids",
			"database", path,
			"skippedIDs", c.skipIDs)
	}
	if err := target.keepServicesOff(ctx); err != nil {
		return 0, "", err
	}
	pets, err = c.checkedCopy(ctx, source, partial.File, c.skipIDs, newIdentity())
	if err != nil {
		return 0, "", err
	}
	old, err = c.replaceContent(ctx, target, partial.File)
	return pets, old, err
}

// removeUnused removes a database file that a restore has made in vain. The next start would take
// it for its first, and make a database that knows no key. Beside nothing, the file of its lock
// keeps it from that. Nobody makes a database of it meanwhile: the partial file is still there.
func removeUnused(ctx context.Context, path string) {
	if version, err := checkOwner(ctx, path); err == nil && version == 0 {
		_ = os.Remove(path)
	}
}

// replacedVersion returns the version of the schema of a database that can be replaced, 0 for none.
// A newer petstore's is kept and replaced as any other.
func replacedVersion(ctx context.Context, path string) (version int, err error) {
	version, err = checkOwner(ctx, path)
	if version > len(migrations) {
		return version, nil
	}
	return version, tellDamage(ctx, err, path)
}

// replaceContent puts the pages of a checked copy in the place of those of a database. The order
// counts: beginCopy locks the database, keepOld keeps what it holds, and run replaces its pages.
func (c *invocation) replaceContent(ctx context.Context, target *sqliteFile, checked *os.File) (
	old string, err error) {
	// While target has the database open, no other connection of the restore is the last to close
	// the log, which would move it and drop an error.
	var pages *pageCopy
	err = target.connect(ctx, openExisting)
	if err == nil {
		from := fileAddress(checked.Name(), "mode=rw")
		pages, err = beginCopy(ctx, from, target.header, opensOfFile, "WAL")
	}
	target.heed(err)
	if err != nil {
		return "", tellDamage(ctx, err, target.path)
	}
	defer pages.end()
	err = refuseReplaced(checked, 2)
	if err == nil {
		old, err = c.keepOld(ctx, target, pages)
	}
	if err == nil {
		err = target.checkFiles()
	}
	if err == nil {
		err = pages.run(ctx, c.stderr, "restoring")
		target.heed(err)
	}
	if err == nil {
		err = target.checkFiles() // what was restored into a file without a name is lost
	}
	if err != nil && old != "" {
		return "", fmt.Errorf("%w; a copy of the database is left as %s", err, old)
	}
	return old, err
}

// keepOld keeps what a database holds in a copy, and makes new ids of what is restored start above
// its own. Nobody else can write to the database now, so that all that it holds is kept, and all
// ids that it has given are known. Everybody, saveOpen too, can still read it as it was. Where
// nothing was, a command may have made a database meanwhile.
func (c *invocation) keepOld(ctx context.Context, target *sqliteFile, pages *pageCopy) (
	old string, err error) {
	version, err := replacedVersion(ctx, target.path)
	if err != nil || version == 0 {
		return "", err
	}
	old, _, err = target.saveOpen(ctx, c.stderr, c.now.time(), "old")
	if err != nil {
		return "", tellDamage(ctx, err, target.path)
	}
	return old, pages.raiseIDs(ctx, old)
}

// raiseIDs makes new ids of the source, the checked copy that is restored, start above all that the
// target, the database, has ever given. It reads those in kept, a checked copy of the target.
//
// The source may change although the copying has begun, because its own connection changes it: what
// that writes is copied as well (https://sqlite.org/c3ref/backup_finish.html, sqlite3_backup_step).
// Nobody else uses the source of a restore. Both copies have a row for each table: see moveIDs.
func (c *pageCopy) raiseIDs(ctx context.Context, kept string) error {
	// COMMIT ends the transaction on the source, which has only read, so that the source can
	// change. That of the target goes on. A journal in memory leaves no file behind after a kill.
	_, err := c.source.ExecContext(ctx, `COMMIT;
PRAGMA journal_mode(MEMORY);
ATTACH ? AS kept;
UPDATE sqlite_sequence SET seq = max(sqlite_sequence.seq, given.seq)
FROM kept.sqlite_sequence AS given WHERE given.name = sqlite_sequence.name`,
		[]driver.NamedValue{{Ordinal: 1, Value: fileAddress(kept, "mode=ro&immutable=1")}})
	return err
}

// --- The copy of what has lost its name ---

// rescue saves what a service has open in a copy, F.TIME.saved, if that would be lost with the
// process: once, and after an error again in a minute, or at once at the service's end. The error
// says why there is no copy. At the end, it is also an error that a file has lost its name: it says
// where all is. Nobody has busy while the copy is made, so that writes are answered.
func rescue(ctx context.Context, file *sqliteFile, log *slog.Logger, isEnd bool) error {
	isDue, err := file.beginRescue(log, isEnd)
	if !isDue {
		return err
	}
	log.Error("a file of the database was removed or replaced; do not stop the service before "+
		"what was confirmed is saved", "database", file.path)
	path, pets, err := file.saveOpen(ctx, io.Discard, time.Now(), "saved")
	if err == nil {
		log.Error("what was confirmed is saved; stop the service, and restore this copy",
			"copy", path, "pets", pets)
	}
	return file.endRescue(isEnd, path, err)
}

// beginRescue reports whether a copy is to be made now. If not, the error is that of rescue.
func (e *sqliteFile) beginRescue(log *slog.Logger, isEnd bool) (isDue bool, err error) {
	e.busy <- struct{}{}
	defer func() { <-e.busy }()
	if err := e.refuseOthers(); err != nil {
		return false, err // a copy could hold pages of two databases
	}
	r := &e.rescued
	hasLost, isLosing := e.lookForLost()
	if !isLosing {
		if r.path != "" {
			log.Warn("the files of the database are back; what is stored from now on is not in "+
				"the copy: delete it", "copy", r.path)
		}
		*r = rescued{where: r.where}
		if !hasLost {
			return false, nil
		}
		return false, r.verdict(isEnd)
	}
	hasAll := r.path != "" && r.commits == e.commits
	isDue = !hasAll && (isEnd || !time.Now().Before(r.next))
	if isDue {
		*r = rescued{where: toBeSaved, commits: e.commits, next: time.Now().Add(time.Minute)}
	}
	return isDue, r.verdict(isEnd)
}

// endRescue takes what became of the copy.
func (e *sqliteFile) endRescue(isEnd bool, path string, err error) error {
	e.busy <- struct{}{}
	defer func() { <-e.busy }()
	e.rescued.path, e.rescued.err = path, err
	e.rescued.where = "all that was confirmed is saved in " + path
	if err != nil {
		e.rescued.where = fmt.Sprintf("do not stop the service before what was confirmed is "+
			"saved, which is tried each minute: %v", err)
	}
	return e.rescued.verdict(isEnd)
}

// verdict is the error of rescue.
func (r *rescued) verdict(isEnd bool) error {
	if isEnd || r.err != nil {
		return fmt.Errorf("%w; %s", errLostFile, r.where)
	}
	return nil
}

// lookForLost reports whether a file has lost its name, and whether what was confirmed would be
// lost with the process: the database has lost its name, or its log has and cannot be emptied. If
// not, it notes where that is. busy is held.
func (e *sqliteFile) lookForLost() (hasLost, isLosing bool) {
	if !errors.Is(e.checkFiles(), errLostFile) {
		e.rescued.where = toBeSaved
		return false, false
	}
	_, areMoved := e.checkpoint("PASSIVE")
	if !e.hasName("") || !areMoved && !e.hasName("-wal") {
		return true, true
	}
	e.rescued.where = "all that was confirmed is in the database"
	if !areMoved {
		e.rescued.where += " and its log"
	}
	return true, false
}

// hasName reports whether a file is the one that was opened.
func (e *sqliteFile) hasName(suffix string) bool {
	now, err := os.Stat(e.path + suffix)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	return err != nil || os.SameFile(e.files[e.path+suffix], now)
}

// saveOpen copies a database as a reading connection has it open, whatever became of its name, to
// F.TIME.suffix.
func (e *sqliteFile) saveOpen(ctx context.Context, stderr io.Writer, now time.Time,
	suffix string) (path string, pets int64, err error) {
	partial, err := createFile(e.path + "." + now.UTC().Format(copyTime) + "." + suffix)
	if err != nil {
		return "", 0, err
	}
	defer partial.discard()
	giveToFolder(partial.File)
	conn, err := e.reader.Conn(ctx)
	if err != nil {
		return "", 0, err
	}
	defer conn.Close()
	err = conn.Raw(func(driver any) error {
		pages, err := copyFrom(ctx, lentSource{driver.(copySource)}, partial.File, 1, "OFF")
		if err != nil {
			return err
		}
		defer pages.end()
		return pages.run(ctx, stderr, "saving")
	})
	if err == nil {
		pets, err = checkCopy(ctx, stderr, partial.File, 0, 0)
	}
	if err == nil {
		err = partial.publish()
	}
	if err != nil {
		return "", 0, err
	}
	return partial.path, pets, nil
}

// lentSource is a connection of a pool: its transaction ends, and it stays open.
type lentSource struct{ copySource }

func (s lentSource) Close() error {
	_, err := s.ExecContext(context.Background(), "ROLLBACK", nil)
	return err
}

// --- Ways past damage ---

// tellDamage adds to the error of a damaged database how it can be replaced all the same.
func tellDamage(ctx context.Context, err error, path string) error {
	isDamaged := errors.Is(err, errDamaged) ||
		isCode(err, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
	if !isDamaged {
		return err
	}
	knownIDs := "none can be read"
	db := openToLook(path)
	defer db.Close()
	var highest int64
	if db.QueryRowContext(ctx, highestID).Scan(&highest) == nil {
		knownIDs = fmt.Sprintf("the highest that can be read is %d", highest)
	}
	// %[2]s is the path again.
	return fmt.Errorf("the database is damaged, and no copy of it can be kept (%w); to restore "+
		"in its place, move %s, %[2]s-wal and %[2]s-shm away together, as far as they are there; "+
		"new ids start -skip-ids above those of the copy; of those that were given, %s", err, path,
		knownIDs)
}

// isDamage reports whether an error of a read is that of a file with damage, or of a disk that
// cannot read some of it. A damaged node of a cluster is replaced instead.
func isDamage(err error) bool {
	return isCode(err, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR)
}

// damageAfter returns the last id, of those above after, at which a query cannot be read. isEnd
// says that it cannot be read from there on. It tries ids at distances of a thousandth of what it
// has passed, so that a page between two damaged ones is found, and the end soon even if a million
// million ids were skipped. Then it goes back to the first id that can be read, halving the
// distance.
func (s *store) damageAfter(ctx context.Context, after int64, query statement) (
	last int64, isEnd bool, err error) {
	isDamaged := func(id int64) (bool, error) {
		first := sqlOf(query.query, slices.Concat(query.args, []any{id - 1, int64(1)})...)
		err := s.read(ctx, first, func(scanner) error { return nil })
		if isDamage(err) {
			return true, nil
		}
		return false, err
	}
	end := int64(math.MaxInt64)
	const highest = "SELECT seq FROM sqlite_sequence WHERE name = 'pets'"
	if _, err := s.readInto(ctx, sqlOf(highest), &end); err != nil || end <= after {
		end = math.MaxInt64 // that table is damaged, too
	}
	last = after + 1
	next := last
	for next == last {
		step := 1 + (last-after)/1000
		if last > end-step {
			return end, true, nil
		}
		next += step
		if damaged, err := isDamaged(next); err != nil {
			return 0, false, err
		} else if damaged {
			last = next
		}
	}
	for next-last > 1 {
		middle := last + (next-last)/2
		if damaged, err := isDamaged(middle); err != nil {
			return 0, false, err
		} else if damaged {
			last = middle
		} else {
			next = middle
		}
	}
	return last, false, nil
}
