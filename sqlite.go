package main

// An engine: one SQLite file. Here are its opening and checking, its locks, its connections and its
// transactions. It takes the schema from schema.go, and knows no table of it.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	readers     = 4                      // reading connections
	serviceWait = 500 * time.Millisecond // for another program's lock
	writerWait  = 100 * time.Millisecond // of a look for changes, for the writing connection
	lockPoll    = 100 * time.Microsecond // between two tries of a write to get the lock

	// The log is moved into the database from so many pages on, as SQLite does on its own. To ask
	// how many there are costs up to 9 µs, so not every commit asks.
	logPages   = 1000
	askLogEach = 50
)

// sqliteFile is an engine.
type sqliteFile struct {
	path    string        // with symbolic links resolved: SQLite names the log after the real file
	wait    time.Duration // for another program's lock, unless a context has a deadline
	reading string        // SQLite's mode for the connections for reading
	// serves is set once a service has started. Its stop waits for what is being written.
	serves bool

	// busy holds an element while conn, version and files are in use. It is a channel in place of a
	// mutex, because changed does not wait for it for long.
	busy    chan struct{}
	conn    *sql.Conn // for writing; several would starve one another; nil if it is only read
	version int64     // data_version on conn, as it was at the last look; 0 before the first
	commits int       // on conn

	failed atomic.Bool // a sync has failed, and so nothing is written: see errFailedSync
	log    *slog.Logger

	looker      *sql.Conn    // for looking, whatever conn does
	lookVersion atomic.Int64 // data_version on looker, in the same way

	writer *sql.DB // the pool of conn
	reader *sql.DB // a pool, which looker comes from too
	lock   *sql.DB // what holds a service's lock; nil in a command

	elsewhere atomic.Bool // another kernel's service uses the file: nothing is written any more
	leave     func()      // ends what keepPresent began; nil in a command

	header      *os.File // the file, for refuseOverwritten; nil in a command that reads
	overwritten bool     // busy guards it

	rescued       rescued  // the copy of what has lost its name; busy guards it
	writes, reads sync.Map // from query to *sql.Stmt, on conn and on reader

	// files are the database, its log, the log's index and, of a service, its lock. Each write
	// checks that these are still the files that were opened. The values are what Stat has said, or
	// nil: connect asks right before the database is opened, and checkFiles first asks about the
	// others when all are open.
	files map[string]os.FileInfo

	// What measure needs. diskSpace is a field so that tests can replace it.
	diskSpace func(path string) (free, size float64, ok bool)
	asking    sync.Mutex                 // held while the file system is asked
	sizes     atomic.Pointer[exposition] // its last answer
}

// openSQLite opens the database file, or makes it if mode allows that. A file that is no database,
// another program's, or of a newer schema is refused and left as it was. One that is missing while
// its log or its lock is there is refused, too. openSQLite waits for locks of other programs
// (untilUnlocked), but not for the one that a service holds. What it cannot open it does not leave.
func openSQLite(ctx context.Context, path string, mode openMode, log *slog.Logger) (
	*sqliteFile, error) {
	isNew := isMissing(path)
	path, reading, err := findFile(path, mode)
	if err != nil {
		return nil, err
	}
	e := newSQLiteFile(path, reading, log)
	err = e.open(ctx, mode)
	if err == nil && isNew {
		err = tryFolder(path) // SQLite opens the folder when it first syncs a new log
	}
	if err != nil {
		e.heed(err)
		var reason error
		isUnopened := isCode(err, sqlite3.SQLITE_CANTOPEN)
		if isUnopened { // before something is removed, which makes room
			reason = tryFolder(path)
		}
		if isNew {
			e.removeEmpty()
		}
		err = errors.Join(explained(err), e.Close())
		if isUnopened && reason == nil {
			reason = whyNotOpened(path)
		}
		if reason != nil {
			err = fmt.Errorf("%w: %w", err, reason)
		}
		return nil, err
	}
	return e, nil
}

// newSQLiteFile is a file that is not open yet, by its realPath.
func newSQLiteFile(path, reading string, log *slog.Logger) *sqliteFile {
	return &sqliteFile{
		path:    path,
		log:     log,
		wait:    commandWait,
		reading: reading,
		busy:    make(chan struct{}, 1),
		files:   map[string]os.FileInfo{path: nil, path + "-wal": nil, path + "-shm": nil},

		diskSpace: diskSpace,
	}
}

// open checks the file, takes the lock of a service, and connects.
func (e *sqliteFile) open(ctx context.Context, mode openMode) (err error) {
	version, err := checkOwner(ctx, e.path)
	if err == nil && version == 0 {
		err = refuseHalf(e.path)
	}
	if err != nil {
		return err
	}
	if mode == openToServe {
		// A service whose lock is gone must not go on, since another one can start.
		e.files[e.path+"-lock"] = nil
		e.lock, err = holdServiceLock(ctx, e.path)
		if err == nil {
			e.leave, err = keepPresent(ctx, e.path, func() { e.elsewhere.Store(true) })
		}
	} else if !mode.onlyReads() {
		err = refuseElsewhere(ctx, e.path, isServed)
	}
	if err != nil {
		return err
	}
	return e.connect(ctx, mode)
}

// removeEmpty removes a file that was made in vain, and the lock of a service, which is held still:
// that lock alone would keep the next start from making the file.
func (e *sqliteFile) removeEmpty() {
	file, err := os.Stat(e.path)
	isEmpty := err == nil && file.Size() <= 4096 && !hasLog(e.path) // it has at most a header
	isOthers := e.lock == nil && !isMissing(e.path+"-lock")
	if !isEmpty || isOthers {
		return
	}
	for _, suffix := range []string{"-lock", "-wal", "-shm", ""} {
		_ = os.Remove(e.path + suffix)
	}
}

// findFile returns the real path of a database file, which it makes if mode allows that, and
// SQLite's mode for reading it.
func findFile(path string, mode openMode) (real, reading string, err error) {
	if err := refuseUnfit(path); err != nil {
		return "", "", err
	}
	if err := refuseGone(path); err != nil {
		return "", "", err
	}
	mayMake := mode == openOrMake || mode == openToServe
	if isMissing(path) && !mayMake {
		return "", "", errMissing
	}
	if !mode.onlyReads() {
		real, err = ensureWritable(path)
		return real, "mode=ro", err
	}
	real, err = realPath(path)
	if err != nil {
		return "", "", err
	}
	reading, err = readMode(real)
	return real, reading, err
}

var (
	errLostLog = errors.New("a program has it open, and its -wal or -shm is gone; " +
		"stop that program without killing it, to save what it has stored")
	// errLostFile means that nothing can be written until the file is put back, or the service is
	// started again.
	errLostFile = errors.New("a file of the database was removed or replaced")
	// errOverwritten means that nothing is written any more: see refuseOverwritten.
	errOverwritten = errors.New("its file was overwritten, as cp does it, while the service has " +
		"it open")
	// errFailedSync means that nothing is written until the file system was mounted anew. After a
	// failed sync, Linux takes what it could not write for written. The next sync succeeds, and
	// what the memory still shows may be gone after the next mount. Until then the log has the
	// only good copy of what was confirmed, so nobody may empty it or begin it anew.
	errFailedSync = errors.New("a sync of the database has failed, and nothing is written any " +
		"more until its file system was mounted anew")
)

// checkOwner looks at an existing file without changing it, and returns the version of its schema:
// 0 for an empty file.
func checkOwner(ctx context.Context, path string) (version int, err error) {
	file, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if hasLog(path) && file.Size() == 0 {
		// SQLite would delete the log, with all that only the log holds.
		return 0, errOrphanedLog
	}
	if err := refuseLostLog(ctx, path); err != nil {
		return 0, err
	}
	db := openToLook(path)
	defer db.Close()
	err = untilUnlocked(ctx, commandWait, func() (err error) {
		version, err = checkMarks(db.QueryRow(ownerQuery).Scan)
		return err
	})
	return version, err
}

// refuseLostLog refuses a database that a program has open, and whose log, or the log's index, is
// gone. SQLite would make another one, and the contents of the two together would damage the
// database. Whether a program has it open is told by a lock: taking it fails with BUSY then.
//
// Programs that open or close the database meanwhile make and remove these files. So only what
// stays so for serviceWait is refused. The lock is held for a moment only. A service that starts
// meanwhile waits for it: see connect and holdServiceLock.
func refuseLostLog(ctx context.Context, path string) error {
	err := retryLocked(ctx, time.Now().Add(serviceWait), func() error {
		switch {
		case isMissing(path+"-wal") && inWALMode(path):
			// Whoever has the database open has made a log. BUSY says that this one is gone.
			return lockWhole(path)
		case isMissing(path+"-shm") && !isMissing(path+"-wal") && !isMissing(path+"-lock"):
			// Other programs may use a log without an index, in SQLite's exclusive mode. A service
			// does not. BUSY says that one runs, and so that its index is gone.
			lock, err := lockService(path)
			if err != nil {
				return err
			}
			return lock.Close()
		}
		return nil
	})
	if isCode(err, sqlite3.SQLITE_BUSY) {
		return errLostLog
	}
	return context.Cause(ctx) // nil without a stop; what else is wrong shows when the file is read
}

// lockWhole locks a database without a log for a moment. In WAL mode, whoever has a database open
// keeps others from locking it whole. SQLite takes the lock before it makes a log.
func lockWhole(path string) error {
	db := openPool(path, "mode=rw", "_pragma=locking_mode(EXCLUSIVE)")
	defer db.Close()
	_, err := db.Exec("SELECT count(*) FROM sqlite_schema")
	return err
}

// holdServiceLock keeps services off a database until lock is closed, because two would count a
// key's requests separately. The error is errServed if another program keeps the lock for longer
// than a command does that only tries it (refuseLostLog).
func holdServiceLock(ctx context.Context, path string) (lock *sql.DB, err error) {
	err = retryLocked(ctx, time.Now().Add(serviceWait), func() (err error) {
		lock, err = lockService(path)
		return err
	})
	if isCode(err, sqlite3.SQLITE_BUSY) {
		err = errServed
	}
	return lock, err
}

// lockService takes the lock of a service. The lock is a transaction of SQLite on a file that stays
// empty: SQLite can lock files on every system, and the kernel frees such a lock even after a kill.
// Once the file has lost its name, the lock keeps nobody off, since another service makes a new
// file; so checkFiles looks for that.
func lockService(path string) (lock *sql.DB, err error) {
	file, err := ensureFile(path + "-lock")
	if err != nil {
		return nil, err
	}
	lock = openPool(file, "_pragma=journal_mode(OFF)")
	lock.SetMaxOpenConns(1) // it stays, and keeps the transaction open
	if _, err := lock.Exec("BEGIN EXCLUSIVE"); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return lock, nil
}

// isServed reports whether a service of this kernel runs. One that starts meanwhile waits.
func isServed(path string) (bool, error) {
	lock, err := lockService(path)
	if isCode(err, sqlite3.SQLITE_BUSY) {
		return true, nil
	}
	if err == nil {
		err = lock.Close()
	}
	return false, err
}

// connect opens all connections, and lets each open its file now. On its own, SQLite opens a file
// only when it first reads it, and by then the file may be gone or another one be in its place. A
// database that is only read gets no connection for writing, and keeps the journal mode it has.
func (e *sqliteFile) connect(ctx context.Context, mode openMode) error {
	if mode.onlyReads() {
		return e.connectReaders(ctx)
	}
	// SQLite's own checkpoints would drop the errors of their syncs. A log that has grown beside a
	// long read is cut to 64 MiB when it begins anew.
	e.writer = openPool(e.path,
		"_pragma=journal_mode(WAL)", "_pragma=synchronous(FULL)", "_pragma=fullfsync(1)",
		"_pragma=wal_autocheckpoint(0)", "_pragma=journal_size_limit(67108864)")
	err := untilUnlocked(ctx, e.wait, func() error { return e.connectWriter(ctx) })
	if err != nil {
		return err
	}
	// While the writer has the file open in WAL mode, nobody else can lock it whole, so that the
	// reading connections need not wait.
	if err := e.connectReaders(ctx); err != nil {
		return err
	}
	return e.checkFiles()
}

// connectWriter opens the file, and lets SQLite open it. While connect waits, another file may take
// its place, so each try opens the file anew. untilUnlocked heeds ctx.
func (e *sqliteFile) connectWriter(ctx context.Context) (err error) {
	e.header, err = os.Open(e.path)
	if err != nil {
		return err
	}
	e.files[e.path], err = e.header.Stat()
	if err == nil {
		e.conn, err = e.writer.Conn(context.WithoutCancel(ctx))
	}
	if err != nil {
		_ = e.header.Close() // SQLite has no lock on the file yet that this could end
	}
	return err
}

// connectReaders opens the connections for reading. Each reads something when it is made: PRAGMA
// schema_version. Each has a cache of 1,500 KiB, in place of 2,000, to save memory. That still
// holds the inner pages of ten million pets with short names.
func (e *sqliteFile) connectReaders(ctx context.Context) (err error) {
	e.reader = openPool(e.path,
		e.reading, "_pragma=busy_timeout(500)", "_pragma=query_only(1)", "_pragma=schema_version",
		"_pragma=cache_size(-1500)")
	e.reader.SetMaxOpenConns(readers + 1) // with looker, which stays
	e.reader.SetMaxIdleConns(readers)
	e.looker, err = e.reader.Conn(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	for range readers {
		conn, err := e.reader.Conn(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		// conn.Close gives a connection back to the pool. It is deferred until all are open, or
		// else the pool would hand out the same one again.
		defer conn.Close()
	}
	return nil
}

// Close moves the log into the database and ends all connections. SQLite then removes the log. If
// that could do damage (hasOtherIndex, errFailedSync), or if something is left in the log, which
// SQLite would move and drop the error, the connections end with the process. Then whoever opens
// the database next reads the whole log.
func (e *sqliteFile) Close() (err error) {
	e.busy <- struct{}{} // requests that were cut off may still write
	defer func() { <-e.busy }()
	if e.leave != nil {
		defer e.leave()
	}
	if e.conn != nil {
		if e.hasOtherIndex() || e.failed.Load() {
			return nil
		}
		inLog, moved, err := e.checkpoint("PASSIVE")
		if err != nil || moved < inLog {
			return nil //nolint:nilerr // all that was confirmed is in the log
		}
	}
	// What a reading connection still does holds nobody up: it cannot change the log.
	if e.looker != nil {
		_ = e.looker.Close()
	}
	if e.reader != nil {
		_ = e.reader.Close()
	}
	// Below, conn is closed without the knowledge of database/sql, which therefore closes none of
	// its statements. An open one would keep the connection alive.
	for _, stmt := range e.writes.Range {
		_ = stmt.(*sql.Stmt).Close()
	}
	if e.conn != nil {
		// Raw reaches the driver's own connection. If the driver has panicked in a call, then
		// conn.Close would wait for the end of that call for ever.
		err = e.conn.Raw(func(driver any) error { return driver.(io.Closer).Close() })
	}
	for _, pool := range []*sql.DB{e.writer, e.lock} {
		if pool != nil {
			_ = pool.Close()
		}
	}
	_ = e.header.Close() // an error without one; the locks on the file, which this ends, have ended
	return err
}

// explained words an error of SQLite's for people.
func explained(err error) error {
	if isCode(err, sqlite3.SQLITE_CORRUPT) {
		return fmt.Errorf("%w; a disk that fails to read looks like damage: look at the kernel's "+
			"log first", err)
	}
	if isCode(err, sqlite3.SQLITE_IOERR_SHMSIZE) {
		return fmt.Errorf("%w; the disk is full, and has no space for the -shm", err)
	}
	if err == nil {
		return nil
	}
	// The driver adds the last error of a connection, and there may be none.
	if text := err.Error(); strings.Contains(text, ": not an error") {
		return reworded{err, strings.Replace(text, ": not an error", "", 1)}
	}
	return err
}

// reworded is an error with another text.
type reworded struct {
	error
	text string
}

func (e reworded) Error() string { return e.text }
func (e reworded) Unwrap() error { return e.error }

// isCode reports whether an error is SQLite's, with one of these result codes, be they primary ones
// or extended ones.
func isCode(err error, codes ...int) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (slices.Contains(codes, e.Code()&0xff) || slices.Contains(codes, e.Code()))
}

// isFailedSync reports whether an error is that of a sync, also for want of space.
func isFailedSync(err error) bool {
	return isCode(err, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
}

// untilUnlocked calls do again and again as long as another program's lock is in its way: until the
// deadline of ctx or, if it has none, for a given time. SQLite's own wait sleeps up to 100 ms at a
// time, and would starve beside a service whose pauses between two transactions are shorter than
// that.
func untilUnlocked(ctx context.Context, wait time.Duration, do func() error) error {
	deadline, hasDeadline := ctx.Deadline()
	if !hasDeadline {
		deadline = time.Now().Add(wait)
	}
	return retryLocked(ctx, deadline, do)
}

// retryLocked does what untilUnlocked does, until a deadline.
func retryLocked(ctx context.Context, deadline time.Time, do func() error) error {
	for {
		err := do()
		isLocked := isCode(err, sqlite3.SQLITE_BUSY)
		if !isLocked || time.Until(deadline) <= 0 {
			return err
		}
		pause(ctx, lockPoll)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// write implements engine.
func (e *sqliteFile) write(ctx context.Context, statements []statement) ([]result, error) {
	e.busy <- struct{}{}
	defer func() { <-e.busy }()
	if e.failed.Load() {
		return nil, errFailedSync
	}
	results, err := e.transact(ctx, statements)
	switch {
	case err == nil:
		e.keepLogShort()
	case isFailedSync(err):
		e.fail(err)
	case errors.Is(err, errLostFile):
		// What is in a log without a name would be lost with the process.
		err = fmt.Errorf("%w; %s", err, e.saveLog())
	case isCode(err, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
		// The next writes then use the log from its beginning again, in the space that it has.
		// IOERR_WRITE is a quota, a limit of file sizes, or a disk on which this fails as well.
		_ = e.saveLog()
	}
	return results, explained(err)
}

// keepLogShort moves the log into the database when it has become long. The transaction before is
// durable in the log, whatever comes of this. busy is held.
func (e *sqliteFile) keepLogShort() {
	e.commits++
	if e.commits%askLogEach != 0 || e.hasOtherIndex() {
		return
	}
	if inLog, _, _ := e.checkpoint("NOOP"); inLog >= logPages {
		_, _, _ = e.checkpoint("PASSIVE")
	}
}

// checkpoint moves what is in the log into the database, with PASSIVE as far as nobody reads it,
// and with NOOP nothing. It returns how many pages the log has, and how many of these are in the
// database. busy is held.
func (e *sqliteFile) checkpoint(mode string) (inLog, moved int, err error) {
	if !e.failed.Load() && !isMissing(e.path+"-failed") {
		e.fail(errors.New("another program has marked the database"))
	}
	if e.failed.Load() {
		return 0, 0, errFailedSync
	}
	var busy int
	_, err = e.run(context.Background(), statement{
		query: "PRAGMA wal_checkpoint(" + mode + ")",
		into:  []any{&busy, &inLog, &moved},
	})
	e.heed(err)
	return inLog, moved, err
}

// heed ends all writing if an error is that of a sync. busy is held.
func (e *sqliteFile) heed(err error) {
	if isFailedSync(err) {
		e.fail(err)
	}
}

// fail ends all writing, here and by all programs that open the database from now on.
func (e *sqliteFile) fail(why error) {
	if err := markFailed(e.path); err != nil {
		e.log.Error("a failed sync cannot be marked; start no service, and no command that "+
			"writes, before the file system was mounted anew", "error", err)
	}
	e.failed.Store(true)
	e.log.Error("nothing is written to the database any more, since a sync of it has failed; "+
		"copy it to another disk with petstore backup, stop the service, unmount the file system "+
		"and mount it again, and then delete the mark", "error", why, "mark", e.path+"-failed")
}

// saveLog brings what is in the log into the database, and says where all that was confirmed is
// now. busy is held.
func (e *sqliteFile) saveLog() string {
	if e.hasOtherIndex() {
		return allInDatabase + " and its log"
	}
	inLog, moved, err := e.checkpoint("PASSIVE")
	now, _ := os.Stat(e.path)
	switch {
	case !os.SameFile(e.files[e.path], now): // the database itself has lost its name
		return e.rescued.String()
	case err != nil || moved < inLog: // somebody who reads may hold it back
		return "some of what was confirmed is in the log only, until the service stops"
	}
	return allInDatabase
}

const allInDatabase = "all that was confirmed is in the database"

// hasOtherIndex reports whether other programs use the log by an index that is not ours. Our index
// does not know what they write to the log, so nothing may be moved into the database by it. Nor
// may it be moved into another database that was written over ours.
func (e *sqliteFile) hasOtherIndex() bool {
	if e.elsewhere.Load() || e.refuseOverwritten() != nil {
		return true
	}
	index := e.path + "-shm"
	opened := e.files[index]
	now, err := os.Stat(index)
	if opened == nil || err != nil {
		return false
	}
	return !os.SameFile(opened, now)
}

// refuseOverwritten is an errOverwritten if a database in another mode than WAL, as a copy is, was
// written over the file. SQLite lets no program change the mode of a file that is open
// in WAL mode. A descriptor that stays open reads it: to close one would end SQLite's locks on the
// file. busy is held.
func (e *sqliteFile) refuseOverwritten() error {
	if e.header != nil && !e.overwritten {
		mode, err := readJournalMode(e.header)
		e.overwritten = err == nil && mode != walMode
	}
	if e.overwritten {
		return fmt.Errorf("%w; stop the service, %s", errOverwritten, putBack(e.path))
	}
	return nil
}

// transact runs the statements in one transaction. busy is held. When ctx ends in a command, or in
// a start, it undoes what the transaction has done, unless all of its statements have run.
func (e *sqliteFile) transact(ctx context.Context, statements []statement) ([]result, error) {
	err := untilUnlocked(ctx, e.wait, func() error {
		_, err := e.run(context.Background(), sqlOf("BEGIN IMMEDIATE"))
		return err
	})
	if err != nil {
		return nil, err
	}
	committed := false
	defer func() {
		if !committed { // also if the driver panics
			// Its error says that SQLite has done so itself.
			_, _ = e.run(context.Background(), sqlOf("ROLLBACK"))
		}
	}()
	if err := e.checkFiles(); err != nil {
		return nil, err
	}
	if e.serves {
		ctx = context.WithoutCancel(ctx)
	}
	results := make([]result, len(statements))
	for i, st := range statements {
		results[i], err = e.run(ctx, st)
		if err != nil {
			return nil, err
		}
	}
	_, err = e.run(context.Background(), sqlOf("COMMIT")) // and sync
	committed = err == nil
	if isFailedSync(err) { // it is in the log, and shows when that is read anew
		err = fmt.Errorf("%w: %w", errOutcome, err)
	}
	return results, err
}

// checkFiles is an errLostFile if one of the database's files is no longer the one that was opened:
// what is committed to a file without a name is lost.
func (e *sqliteFile) checkFiles() error {
	for path, opened := range e.files {
		now, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w: %w", errLostFile, err)
		}
		if err != nil {
			return err
		}
		if opened != nil && !os.SameFile(opened, now) {
			return fmt.Errorf("%w: %s is not the file that was opened", errLostFile, path)
		}
		e.files[path] = now
	}
	if e.elsewhere.Load() {
		return fmt.Errorf("%w; until this one is started again, it writes nothing more",
			errElsewhere)
	}
	return e.refuseOverwritten()
}

// run executes one statement on conn, until ctx ends. busy is held.
func (e *sqliteFile) run(ctx context.Context, st statement) (r result, err error) {
	stmt, err := prepared(&e.writes, e.conn, st.query)
	if err != nil {
		return r, err
	}
	if st.into != nil {
		return r, stmt.QueryRowContext(ctx, st.args...).Scan(st.into...)
	}
	done, err := stmt.ExecContext(ctx, st.args...)
	if err != nil {
		return r, err
	}
	r.lastID, _ = done.LastInsertId() // the driver has both numbers at hand
	r.affected, _ = done.RowsAffected()
	return r, nil
}

// preparer is a connection or a pool of them.
type preparer interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// prepared returns the prepared statement of a query. It prepares one when the query is first used,
// and keeps it in known.
func prepared(known *sync.Map, on preparer, query string) (*sql.Stmt, error) {
	if stmt, ok := known.Load(query); ok {
		return stmt.(*sql.Stmt), nil
	}
	stmt, err := on.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	// If two callers come at once, one statement is not kept; it is closed with its connection.
	known.Store(query, stmt)
	return stmt, nil
}

// changed reads data_version. SQLite changes that number of a connection whenever another
// connection has written, whatever program that belongs to. So edits that nobody counts are
// noticed, and an import is a change too. The first call always notes one. A number that was seen
// is kept only after note was called, so that no other call takes a change for one that is noted.
func (e *sqliteFile) changed(ctx context.Context, note func()) error {
	const query = "PRAGMA data_version"
	// For looker, our own writes are those of another connection, too.
	var version int64
	if err := e.looker.QueryRowContext(ctx, query).Scan(&version); err != nil {
		note()
		return err
	}
	if e.lookVersion.Load() == version {
		return nil // nobody has written
	}
	// For conn, which makes our own writes, only those of others count. But a sync may keep it busy
	// for seconds. Then every write counts.
	select {
	case e.busy <- struct{}{}:
	case <-time.After(writerWait):
		note()
		e.lookVersion.Store(version)
		return nil
	}
	defer func() { <-e.busy }()
	before := e.version
	_, err := e.run(context.Background(), statement{query: query, into: []any{&e.version}})
	if err != nil || e.version != before {
		note()
	}
	e.lookVersion.Store(version)
	return err
}

// shared is false, because a second service is kept out.
func (e *sqliteFile) shared() bool { return false }

// bind ends the start of a service, which waits for locks as long as a command does. It ties the
// engine to nothing: checkFiles tells whether the file is another one.
func (e *sqliteFile) bind(context.Context) error {
	if e.lock != nil {
		e.serves = true
		e.wait = serviceWait
	}
	return nil
}

// describe implements engine.
func (e *sqliteFile) describe() (engine, node string) { return "sqlite", e.path }

// members implements engine: a file has none.
func (e *sqliteFile) members(context.Context) []member { return nil }

// measure implements engine. The file system may hang, so a goroutine asks it, one at a time. A
// caller does not wait for it for long, and shows the last answer while that is fresh.
func (e *sqliteFile) measure(x *exposition) {
	if e.asking.TryLock() {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			defer e.asking.Unlock()
			e.measureFiles()
		}()
		select {
		case <-answered:
		case <-time.After(100 * time.Millisecond):
		}
	}
	x.addRecent(e.sizes.Load(), 10*time.Second)
	failed := int64(0)
	if e.failed.Load() {
		failed = 1
	}
	x.add("petstore_sync_failed", "", failed)
}

// measureFiles asks the file system. What it does not say is left out.
func (e *sqliteFile) measureFiles() {
	x := newExposition()
	add := func(labels, path string) {
		if info, err := os.Stat(path); err == nil {
			x.add("petstore_database_bytes", labels, info.Size())
		}
	}
	add(`{file="database"}`, e.path)
	add(`{file="log"}`, e.path+"-wal")
	if free, size, ok := e.diskSpace(e.path); ok {
		x.addFloat("petstore_disk_free_bytes", "", free)
		x.addFloat("petstore_disk_size_bytes", "", size)
	}
	e.sizes.Store(x)
}

// read implements engine. Its error is mostly no errUnavailable: a file that cannot be read now
// will not be readable when the client tries again.
func (e *sqliteFile) read(ctx context.Context, query statement,
	row func(scan scanner) error) (err error) {
	defer func() {
		if err != nil && isIndexCut(e.path) {
			err = fmt.Errorf("%w: its -shm was cut to nothing: %w", errUnavailable, err)
		}
	}()
	stmt, err := prepared(&e.reads, e.reader, query.query)
	if err != nil {
		return explained(err)
	}
	rows, err := stmt.QueryContext(ctx, query.args...)
	if err != nil {
		return explained(err)
	}
	defer rows.Close()
	scan := rows.Scan // here, since a method value takes memory, and once is enough
	for rows.Next() {
		if err := row(scan); err != nil {
			return err
		}
	}
	return explained(rows.Err())
}
