package main

// An engine: one SQLite file. It takes the schema from schema.go, and knows no table of it. In this
// order: opening a file, keeping other services off, the connections, transactions, the log, files
// that were removed or overwritten, reading, what the engine tells of itself, and SQLite's errors.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	readers     = 4                      // reading connections
	opensOfFile = readers + 3            // of header, conn, looker, and these
	serviceWait = 500 * time.Millisecond // for another program's lock
	servedWait  = 100 * time.Millisecond // a lock that is held so long is a service's
	writerWait  = 100 * time.Millisecond // of a look for changes, for the writing connection
	lockPoll    = 100 * time.Microsecond // between two tries of a write to get the lock
	logPages    = 1000                   // from which on the log is moved, as by SQLite alone
	askLogEach  = 50                     // commits: to ask how many pages it has costs up to 9 µs

	// toBeSaved ends an errLostFile until rescue has looked where all is that was confirmed.
	toBeSaved = "do not stop the service before what was confirmed is saved, which is being done"
)

// sqliteFile is an engine.
type sqliteFile struct {
	path    string        // with symbolic links resolved: SQLite names the log after the real file
	wait    time.Duration // for another program's lock, unless a context has a deadline
	reading string        // SQLite's mode for the connections for reading
	serves  bool          // a service has started: its stop waits for what is being written

	// busy holds an element while what follows is used. It is a channel in place of a mutex,
	// because changed does not wait for it for long.
	busy    chan struct{}
	conn    *sql.Conn // for writing; several would starve one another; nil if it is only read
	version int64     // data_version on conn, as it was at the last look; 0 before the first
	commits int       // on conn
	// files are the database, its log, the log's index and, of a service, its lock, when they were
	// opened; nil before: see checkFiles.
	files       map[string]os.FileInfo
	header      *os.File // the database, for refuseOverwritten; open as long as conn is
	index, wal  *os.File // of the log, and the log, in the same way
	overwritten bool
	rescued     rescued // the copy of what has lost its name

	failed      atomic.Bool // a sync has failed, and so nothing is written: see errFailedSync
	log         *slog.Logger
	looker      *sql.Conn    // for looking, whatever conn does
	lookVersion atomic.Int64 // data_version on looker, in the same way
	writer      *sql.DB      // the pool of conn
	reader      *sql.DB      // a pool, which looker comes from too
	lock        *sql.DB      // what holds a service's lock; nil in a command
	host        *presence    // what keeps other kernels' services off; nil in a command

	writes, reads sync.Map // from query to *sql.Stmt, on conn and on reader

	// What measure needs. diskSpace is a field so that tests can replace it.
	diskSpace func(path string) (free, size float64, ok bool)
	asking    sync.Mutex                 // held while the file system is asked
	sizes     atomic.Pointer[exposition] // its last answer
}

var (
	errLostLog = errors.New("a program has it open, and its -wal or -shm is gone; " +
		"stop that program without killing it, to save what it has stored")
	// errLostFile lasts until the file is put back, or the service is started again.
	errLostFile = errors.New("a file of the database was removed or replaced")
	// errOverwritten means that nothing is written any more: see refuseOverwritten.
	errOverwritten = errors.New("its file, or its -wal, was overwritten or cut while it is open")
	// After a failed sync, Linux takes what it could not write for written. The next sync succeeds,
	// and what the memory still shows may be gone after the next mount. Until then the log has the
	// only good copy of what was confirmed, so nobody may empty it or begin it anew.
	errFailedSync = errors.New("a sync of the database has failed, and nothing is written any " +
		"more until its file system was mounted anew")
)

// --- Opening a file ---

// openSQLite opens the database file, or makes it if mode allows that. What it refuses it leaves as
// it was: a file that is no database, another program's, of a newer schema, or missing while its
// log or lock is there. It waits for the locks of other programs, but not for that of a service.
func openSQLite(ctx context.Context, path string, mode openMode, log *slog.Logger) (
	*sqliteFile, error) {
	isNew := isMissing(path)
	path, reading, err := findFile(ctx, path, mode)
	if err != nil {
		return nil, err
	}
	e := newSQLiteFile(path, reading, log)
	err = e.open(ctx, mode)
	if err == nil && isNew {
		err = tryFolder(path) // SQLite opens the folder when it first syncs a new log
	}
	if err == nil {
		return e, nil
	}
	e.heed(err)
	if isCode(err, sqlite3.SQLITE_CANTOPEN) {
		if reason := whyNotOpened(path); reason != nil {
			err = fmt.Errorf("%w: %w", err, reason)
		}
	}
	return nil, errors.Join(explained(err), e.Close())
}

// findFile returns the real path of a database file, which it makes if mode allows that, and
// SQLite's mode for reading it.
func findFile(ctx context.Context, path string, mode openMode) (real, reading string, err error) {
	err = refuseUnfit(path)
	if err == nil {
		err = refuseGone(path)
	}
	mayMake := mode == openOrMake || mode == openToServe
	if err == nil && isMissing(path) && !mayMake {
		err = errMissing
	}
	if err == nil {
		err = refuseElsewhere(ctx, placeOf(path), mode.onlyReads(), isServed)
	}
	if err != nil {
		return "", "", err
	}
	if !mode.onlyReads() {
		real, err = ensureWritable(path)
		return real, "mode=ro", err
	}
	real, err = realPath(path)
	if err == nil {
		reading, err = readMode(real)
	}
	return real, reading, err
}

// newSQLiteFile is a file that is not open yet, by its realPath.
func newSQLiteFile(path, reading string, log *slog.Logger) *sqliteFile {
	return &sqliteFile{
		path:    path,
		log:     log,
		wait:    commandWait,
		reading: reading,
		busy:    make(chan struct{}, 1),
		rescued: rescued{where: toBeSaved},
		files:   map[string]os.FileInfo{path: nil, path + "-wal": nil, path + "-shm": nil},

		diskSpace: diskSpace,
	}
}

// open checks the file, keeps services off if it is for one, and connects.
func (e *sqliteFile) open(ctx context.Context, mode openMode) error {
	version, err := checkOwner(ctx, e.path)
	if err == nil && version == 0 {
		err = refuseHalf(e.path)
	}
	if err == nil && mode == openToServe {
		err = e.keepServicesOff(ctx)
		if err == nil && !e.host.passesLocks && hasLog(e.path) {
			err = e.renewLog(ctx)
		}
	}
	if err != nil {
		return err
	}
	return e.connect(ctx, mode)
}

// renewLog moves a log into the database and has SQLite remove it, where the service of another
// kernel may have left it. If that one was only paused, in the middle of a commit, what it writes
// when it wakes goes to a file without a name, and not over what this service confirms meanwhile.
func (e *sqliteFile) renewLog(ctx context.Context) error {
	db := openPool(e.path, "mode=rw", "_pragma=wal_autocheckpoint(0)",
		"_pragma=fullfsync(1)", "_pragma=synchronous(FULL)")
	defer db.Close() // with the last connection, the log goes
	db.SetMaxOpenConns(1)
	err := untilUnlocked(ctx, e.wait, func() error {
		_, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
		return err
	})
	e.heed(err)
	return err
}

// checkOwner looks at an existing file without changing it, and returns the version of its schema:
// 0 for an empty file.
func checkOwner(ctx context.Context, path string) (version int, err error) {
	if hasLog(path) && isEmpty(path) {
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
// stays so for serviceWait is refused. A service that starts meanwhile waits for the lock.
func refuseLostLog(ctx context.Context, path string) error {
	err := retryLocked(ctx, time.Now().Add(serviceWait), func() error {
		switch {
		case isMissing(path+"-wal") && inWALMode(path):
			// Whoever has the database open has made a log. BUSY says that this one is gone.
			return lockWhole(path)
		case isMissing(path+"-shm") && !isMissing(path+"-wal") && !isMissing(path+"-lock"):
			// Other programs may use a log without an index, in SQLite's exclusive mode. A service
			// does not. BUSY says that one runs, and so that its index is gone.
			return tryServiceLock(path)
		}
		return nil
	})
	if isCode(err, sqlite3.SQLITE_BUSY) {
		return errLostLog
	}
	return context.Cause(ctx) // nil without a stop; what else is wrong shows when the file is read
}

// lockWhole locks a database without a log for a moment, before SQLite makes one. In WAL mode,
// whoever has a database open keeps others from that.
func lockWhole(path string) error {
	db := openPool(path, "mode=rw", "_pragma=locking_mode(EXCLUSIVE)")
	defer db.Close()
	_, err := db.Exec("SELECT count(*) FROM sqlite_schema")
	return err
}

// --- Keeping other services off ---

// keepServicesOff keeps services off a database until Close, because two would count a key's
// requests separately: those of this kernel by a lock, those of others by F-host.
func (e *sqliteFile) keepServicesOff(ctx context.Context) (err error) {
	// A service whose lock is gone must not go on, since another one can start.
	e.files[e.path+"-lock"] = nil
	e.lock, err = holdServiceLock(ctx, e.path)
	if err != nil {
		return err
	}
	e.host, err = claimHost(e.path, networkDisk(e.path) == "")
	if err == nil {
		e.host.keep()
	}
	return err
}

// holdServiceLock takes the lock of a service, and waits for it longer than a command holds it.
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

// lockService takes the lock of a service, or is an error with BUSY. The lock is a transaction of
// SQLite on a file that stays empty: SQLite can lock files on every system, and the kernel frees
// such a lock even after a kill. Once the file has lost its name, the lock keeps nobody off, since
// another service makes a new file; so checkFiles looks for that.
func lockService(path string) (lock *sql.DB, err error) {
	found, err := os.Lstat(path + "-lock")
	if err == nil && (!found.Mode().IsRegular() || found.Size() > 0) {
		// Root must not be led to lock and change another file.
		return nil, fmt.Errorf("%s-lock is not the empty file that it has to be; remove it", path)
	}
	file, err := ensureFile(path + "-lock")
	if err != nil {
		return nil, err
	}
	lock = openPool(file, "mode=rw", "_pragma=journal_mode(OFF)")
	lock.SetMaxOpenConns(1) // it stays, and keeps the transaction open
	if _, err := lock.Exec("BEGIN EXCLUSIVE"); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return lock, nil
}

// tryServiceLock is the error of lockService, whose lock it gives back.
func tryServiceLock(path string) error {
	lock, err := lockService(path)
	if err == nil {
		err = lock.Close()
	}
	return err
}

// isServed reports whether a service of this kernel runs. One that starts meanwhile waits. Commands
// hold the lock for a moment only.
func isServed(path string) bool {
	if isMissing(path + "-lock") {
		return false
	}
	err := retryLocked(context.Background(), time.Now().Add(servedWait), func() error {
		return tryServiceLock(path)
	})
	return isCode(err, sqlite3.SQLITE_BUSY)
}

// --- Connections ---

// connect opens all connections, and lets each open its file now. On its own, SQLite opens a file
// only when it first reads it, and by then the file may be gone or another one be in its place. A
// database that is only read gets no connection for writing, and keeps the journal mode it has.
func (e *sqliteFile) connect(ctx context.Context, mode openMode) error {
	if mode.onlyReads() {
		return e.connectReaders(ctx)
	}
	// SQLite's own checkpoints would drop the errors of their syncs. A log that has grown beside a
	// long read is cut to 64 MiB when it begins anew.
	e.writer = openPool(e.path, "mode=rw",
		"_pragma=journal_mode(WAL)", "_pragma=synchronous(FULL)", "_pragma=fullfsync(1)",
		"_pragma=wal_autocheckpoint(0)", "_pragma=journal_size_limit(67108864)")
	err := untilUnlocked(ctx, e.wait, func() error { return e.connectWriter(ctx) })
	if err != nil {
		return err
	}
	// The writer keeps others from locking the file whole, so that no reading connection waits.
	if err := e.connectReaders(ctx); err != nil {
		return err
	}
	// Where SQLite may not write to one of these, it opens that for reading, and refuses all
	// writes.
	e.index, err = os.OpenFile(e.path+"-shm", os.O_RDWR, 0)
	if err == nil {
		e.wal, err = os.OpenFile(e.path+"-wal", os.O_RDWR, 0)
	}
	if err != nil {
		return err
	}
	// SQLite syncs the name of a new log when it first syncs the log, and drops the error. Other
	// errors than EIO may mean that folders cannot be synced, or opened, there.
	err = syncFolder(filepath.Dir(e.path), (*os.File).Sync)
	if errors.Is(err, syscall.EIO) {
		e.fail(err)
		return err
	}
	if e.host != nil {
		// Another service that starts may have removed the entry, taking it for the old one that
		// both had watched. checkFiles heeds what this finds.
		_ = e.host.renew(true)
	}
	if err := e.checkFiles(); err != nil {
		return err
	}
	return refuseReplaced(e.header, opensOfFile)
}

// connectWriter opens the file, and lets SQLite open it. While connect waits, another file may take
// its place, so each try opens the file anew. untilUnlocked heeds ctx.
func (e *sqliteFile) connectWriter(ctx context.Context) (err error) {
	e.header, err = openRegular(e.path, os.O_RDONLY)
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

// connectReaders opens the connections for reading. Each reads something when it is made, and has a
// cache of 1,500 KiB, in place of 2,000, to save memory. That still holds the inner pages of ten
// million pets with short names.
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
// something has to stay in it, SQLite would move that and drop the error. So the connections end
// with the process then, and whoever opens the database next reads the whole log.
func (e *sqliteFile) Close() (err error) {
	e.busy <- struct{}{} // requests that were cut off may still write
	defer func() { <-e.busy }()
	if e.host != nil {
		defer e.host.leave()
	}
	if e.conn != nil {
		if _, areMoved := e.checkpoint("PASSIVE"); !areMoved {
			return nil
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
	// An error without one. This ends locks on the files, but SQLite's have ended.
	_ = e.header.Close()
	_ = e.index.Close()
	_ = e.wal.Close()
	return err
}

// untilUnlocked calls do again and again as long as another program's lock is in its way: until the
// deadline of ctx or, if it has none, for a given time. SQLite's own wait sleeps up to 100 ms at a
// time, and would starve beside a service whose pauses between two transactions are shorter.
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
		if !isCode(err, sqlite3.SQLITE_BUSY) || time.Until(deadline) <= 0 {
			return err
		}
		pause(ctx, lockPoll)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// --- Transactions ---

// write implements engine.
func (e *sqliteFile) write(ctx context.Context, statements []statement) ([]result, error) {
	e.busy <- struct{}{}
	defer func() { <-e.busy }()
	if e.failed.Load() {
		return nil, errFailedSync
	}
	results, err := e.transact(ctx, statements)
	e.heed(err)
	switch {
	case err == nil:
		e.keepLogShort()
	case errors.Is(err, errLostFile), isCode(err, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
		// A log without a name would be lost with the process. In another one, the next writes find
		// space. IOERR_WRITE is a quota, a limit of file sizes, or a disk on which this fails too.
		_, _ = e.checkpoint("PASSIVE")
	}
	return results, explained(err)
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
	isInLog := isFailedSync(err) // and shows when that is read anew
	if committed {
		err = e.refuseOthers() // that have come while it was being committed, as after a pause
	}
	if err != nil && (committed || isInLog) {
		err = fmt.Errorf("%w: %w", errOutcome, err)
	}
	return results, err
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

// --- The log ---

// keepLogShort moves the log into the database when it has become long. The transaction before is
// durable in the log, whatever comes of this. busy is held.
func (e *sqliteFile) keepLogShort() {
	e.commits++
	if e.commits%askLogEach != 0 {
		return
	}
	if inLog, _ := e.checkpoint("NOOP"); inLog >= logPages {
		_, _ = e.checkpoint("PASSIVE")
	}
}

// checkpoint moves what is in the log into the database, with PASSIVE as far as nobody reads it,
// and with NOOP nothing. It returns how many pages the log has, and whether the database is known
// to have all of them: another program may be moving them now. busy is held.
func (e *sqliteFile) checkpoint(mode string) (inLog int, areMoved bool) {
	if !e.mayMoveLog() {
		return 0, false
	}
	var isBusy bool
	var moved int
	_, err := e.run(context.Background(), statement{
		query: "PRAGMA wal_checkpoint(" + mode + ")",
		into:  []any{&isBusy, &inLog, &moved},
	})
	e.heed(err)
	return inLog, err == nil && !isBusy && moved == inLog
}

// mayMoveLog reports whether what is in the log may be moved into the database: not after a failed
// sync, since the log is the only good copy; nor by an index that does not know what others write
// to the log; nor into another database that was written over ours. busy is held.
func (e *sqliteFile) mayMoveLog() bool {
	mark, err := readMark(e.path + "-failed")
	isMarked := err == nil && !isOtherBoot(mark)
	if isMarked && !e.failed.Load() {
		e.fail(errors.New("another program has marked the database"))
	}
	isUnknown := err != nil && !errors.Is(err, os.ErrNotExist) // it may be there, or not
	if isUnknown || e.failed.Load() {
		return false
	}
	index := e.path + "-shm"
	opened := e.files[index]
	now, err := os.Stat(index)
	hasOtherIndex := opened != nil && err == nil && !os.SameFile(opened, now)
	return !hasOtherIndex && e.refuseOthers() == nil
}

// heed ends all writing after the error of a sync. busy is held.
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

// --- Files that were removed or overwritten ---

// checkFiles is an errLostFile if one of the database's files is no longer the one that was opened:
// what is committed to a file without a name is lost. Each write asks, and first connect, when all
// are open. busy is held.
func (e *sqliteFile) checkFiles() error {
	if err := e.refuseOtherKernel(); err != nil {
		return err // that one may have made the files anew
	}
	for path, opened := range e.files {
		now, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w: %w; %s", errLostFile, err, e.rescued.where)
		}
		if err != nil {
			return err
		}
		if opened != nil && !os.SameFile(opened, now) {
			return fmt.Errorf("%w: %s is not the file that was opened; %s", errLostFile, path,
				e.rescued.where)
		}
		e.files[path] = now
	}
	return e.refuseOverwritten()
}

// refuseOthers is an error once others have taken the file over. busy is held.
func (e *sqliteFile) refuseOthers() error {
	if err := e.refuseOtherKernel(); err != nil {
		return err
	}
	return e.refuseOverwritten()
}

// refuseOtherKernel is an error once another kernel's service uses, or may use, the file. busy is
// held.
func (e *sqliteFile) refuseOtherKernel() error {
	if err := e.host.refuse(); errors.Is(err, errElsewhere) {
		if e.lock != nil { // so that commands of this kernel ask who serves now
			_ = e.lock.Close()
			e.lock = nil
		}
		return fmt.Errorf("%w; until this one is started again, it writes nothing more", err)
	} else if err != nil {
		return fmt.Errorf("another machine may serve it, since the -host file could not be "+
			"renewed: %w", err)
	}
	return nil
}

// refuseOverwritten is an errOverwritten if a database in another mode than WAL, as a copy is, was
// written over the file, or if the log isLogSpoiled. SQLite lets no program change the mode of a
// file that is open in WAL mode. What this reads stays open: to close header or index would end
// SQLite's locks, and wal is the log that was opened, whatever has its name now. busy is held.
func (e *sqliteFile) refuseOverwritten() error {
	if e.header != nil && !e.overwritten {
		mode, err := readJournalMode(e.header)
		isOther := err == nil && mode != walMode
		e.overwritten = isOther || isLogSpoiled(e.index, e.wal)
	}
	if e.overwritten {
		return fmt.Errorf("%w; stop the service, and %s", errOverwritten, putBack(e.path))
	}
	return nil
}

// rescued is what became of the copy that a service makes of what has lost its name: see rescue.
type rescued struct {
	where   string    // what was confirmed is: the end of an errLostFile
	path    string    // of the copy, or ""
	commits int       // sqliteFile.commits when it was begun: it has all of these
	err     error     // why there is none
	next    time.Time // when it may be tried again
}

// --- Reading ---

// read implements engine. Its error is mostly no errUnavailable: a file that cannot be read now
// will not be readable when the client tries again.
func (e *sqliteFile) read(ctx context.Context, query statement,
	row func(scan scanner) error) (err error) {
	defer func() {
		if err != nil && isEmpty(e.path+"-shm") { // SQLite finds no table then
			err = fmt.Errorf("%w: its -shm was cut to nothing: %w", errUnavailable, err)
		}
		err = explained(err)
	}()
	stmt, err := prepared(&e.reads, e.reader, query.query)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(ctx, query.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	scan := rows.Scan // here, since a method value takes memory, and once is enough
	for rows.Next() {
		if err := row(scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// changed reads data_version. SQLite changes that number of a connection whenever another
// connection has written, whatever program that belongs to. So edits that nobody counts are
// noticed, and an import is a change too. The first call always notes one. A number that was seen
// is kept only after forget was called, so that no other call takes a change for one that is noted.
func (e *sqliteFile) changed(ctx context.Context, forget func()) error {
	const query = "PRAGMA data_version"
	// For looker, our own writes are those of another connection, too.
	var version int64
	if err := e.looker.QueryRowContext(ctx, query).Scan(&version); err != nil {
		forget()
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
		forget()
		e.lookVersion.Store(version)
		return nil
	}
	defer func() { <-e.busy }()
	before := e.version
	_, err := e.run(context.Background(), statement{query: query, into: []any{&e.version}})
	if err != nil || e.version != before {
		forget()
	}
	e.lookVersion.Store(version)
	return err
}

// --- What the engine tells of itself ---

// shared, describe and members implement engine: a file has one service, and no nodes.
func (e *sqliteFile) shared() bool                     { return false }
func (e *sqliteFile) describe() (engine, node string)  { return "sqlite", e.path }
func (e *sqliteFile) members(context.Context) []member { return nil }

// bind ends the start of a service, which waits for locks as long as a command does. It ties the
// engine to nothing: checkFiles tells whether the file is another one.
func (e *sqliteFile) bind(context.Context) error {
	if e.lock != nil {
		e.serves = true
		e.wait = serviceWait
	}
	return nil
}

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
	var failed int64
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

// --- SQLite's errors ---

// isCode reports whether an error is SQLite's, with one of these codes, primary or extended ones.
func isCode(err error, codes ...int) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (slices.Contains(codes, e.Code()&0xff) || slices.Contains(codes, e.Code()))
}

// isFailedSync reports whether an error is that of a sync, also for want of space.
func isFailedSync(err error) bool {
	return isCode(err, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
}

// explained adds to an error of SQLite's what it may mean.
func explained(err error) error {
	switch {
	case isCode(err, sqlite3.SQLITE_CORRUPT):
		return fmt.Errorf("%w; a disk that fails to read looks like damage: look at the kernel's "+
			"log first", err)
	case isCode(err, sqlite3.SQLITE_IOERR_SHMSIZE):
		return fmt.Errorf("%w; the disk is full, and has no space for the -shm", err)
	}
	return err
}
