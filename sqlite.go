package main

// An engine: one SQLite file. Here are its opening and checking, its locks, its connections and its
// transactions. It takes the schema from store.go, and knows no table of it.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	readers     = 4                      // reading connections
	serviceWait = 500 * time.Millisecond // for another program's lock
	lockPoll    = 100 * time.Microsecond // between two tries of a write to get the lock
)

// sqliteFile is an engine.
type sqliteFile struct {
	path string        // with symbolic links resolved: SQLite names the log after the real file
	wait time.Duration // for another program's lock, unless a context has a deadline

	mu      sync.Mutex // guards conn, version and files
	conn    *sql.Conn  // for writing
	version int64      // data_version, as it was at the last look; 0 before the first

	writer *sql.DB // the pool of conn
	reader *sql.DB // a pool
	lock   *sql.DB // what holds a service's lock; nil in a command

	writes, reads sync.Map // from query to *sql.Stmt, on conn and on reader

	// files are the database, its log, the log's index and, of a service, its lock. Each write
	// checks that these are still the files that were opened. The values are what Stat has said: of
	// the database right before it was opened, of the others once they were open; nil before that.
	files map[string]os.FileInfo
}

// openSQLite opens the database file, or makes it if mode allows that. A file that is no database,
// another program's, or of a newer schema is refused and left as it was. One that is missing while
// its log is there is refused, too. openSQLite waits for locks of other programs (untilUnlocked),
// but not for the one that a service holds.
func openSQLite(ctx context.Context, path string, mode openMode) (*sqliteFile, error) {
	_, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) && mode == openExisting {
		return nil, errMissing
	}
	path, err = ensureFile(path)
	if err != nil {
		return nil, err
	}
	if _, err := checkOwner(ctx, path); err != nil {
		return nil, err
	}
	e := &sqliteFile{
		path:  path,
		wait:  commandWait,
		files: map[string]os.FileInfo{path: nil, path + "-wal": nil, path + "-shm": nil},
	}
	if mode == openToServe {
		// A service whose lock is gone must not go on, since another one can start.
		e.files[path+"-lock"] = nil
		e.wait = serviceWait
		e.lock, err = holdServiceLock(path)
	}
	if err == nil {
		err = e.connect(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// ensureFile makes the file unless it is there, and returns its realPath. The error is the
// operating system's if the file cannot be written: SQLite's would not say why. Call it before
// SQLite has the file open, since closing a file ends the locks that the process has on it.
func ensureFile(path string) (string, error) {
	//nolint:gosec // the operator names the file
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	_ = f.Close() // nothing was written
	return realPath(path)
}

// realPath is the absolute path of a file that is there, with symbolic links resolved.
func realPath(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

var errOrphanedLog = errors.New("it is missing or empty, but its -wal is there; " +
	"put the file back, or move the -wal away")

// checkOwner looks at an existing file without changing it, and returns the version of its schema:
// 0 for an empty file.
func checkOwner(ctx context.Context, path string) (version int, err error) {
	file, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	log, err := os.Stat(path + "-wal") //nolint:gosec // the operator names the file
	hasLog := err == nil && log.Size() > 0
	if hasLog && file.Size() == 0 {
		// SQLite would delete the log, or apply it to a file that takes the place of this one.
		return 0, errOrphanedLog
	}
	mode := "mode=ro"
	if !hasLog {
		mode = "mode=ro&immutable=1" // otherwise SQLite would make a log
	}
	db := openPool(path, mode)
	defer db.Close()
	err = untilUnlocked(ctx, commandWait, func() (err error) {
		version, err = checkMarks(db.QueryRow(ownerQuery).Scan)
		return err
	})
	return version, err
}

// openPool is a pool of connections to a file by its absolute path, with options of the driver.
// Pragmas stand in the address because only there they reach every connection of the pool.
func openPool(path string, options ...string) *sql.DB {
	db, _ := sql.Open("sqlite", fileAddress(path, options...))
	return db // without an error, since the driver is known: files are opened by the connections
}

// fileAddress is the driver's address of a file by its absolute path.
func fileAddress(path string, options ...string) string {
	address := url.URL{
		Scheme:   "file",
		OmitHost: true, // else a drive letter would be taken for a host
		Path:     filepath.ToSlash(path),
		RawQuery: strings.Join(options, "&"),
	}
	return address.String()
}

// holdServiceLock keeps services off a database until lock is closed, because two would count a
// key's requests separately. The error is errServed if another program has the lock. The lock is a
// transaction of SQLite on a file that stays empty: SQLite can lock files on every system, and the
// kernel frees such a lock even after a kill. Once the file has lost its name, the lock keeps
// nobody off, since another service makes a new file; so checkFiles looks for that.
func holdServiceLock(path string) (lock *sql.DB, err error) {
	file, err := ensureFile(path + "-lock")
	if err != nil {
		return nil, err
	}
	lock = openPool(file, "_pragma=journal_mode(OFF)")
	lock.SetMaxOpenConns(1) // it stays, and keeps the transaction open
	_, err = lock.Exec("BEGIN EXCLUSIVE")
	if isCode(err, sqlite3.SQLITE_BUSY) {
		err = errServed
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return lock, nil
}

// connect opens all connections, and lets each open its file now. On its own, SQLite opens a file
// only when it first reads it, and by then the file may be gone or another one be in its place. So
// each reading connection reads something when it is made: PRAGMA schema_version.
func (e *sqliteFile) connect(ctx context.Context) error {
	e.writer = openPool(e.path,
		"_pragma=journal_mode(WAL)", "_pragma=synchronous(FULL)", "_pragma=fullfsync(1)")
	err := untilUnlocked(ctx, e.wait, func() (err error) {
		e.files[e.path], err = os.Stat(e.path) // another file may take its place while this waits
		if err != nil {
			return err
		}
		e.conn, err = e.writer.Conn(context.Background())
		return err
	})
	if err != nil {
		return err
	}
	// While the writer has the file open in WAL mode, nobody else can lock it whole, so that the
	// reading connections need not wait. With mode=rw they make no file that is missing. Each has a
	// cache of 1,500 KiB, in place of 2,000, to save memory. That still holds the inner pages of
	// ten million pets with short names.
	e.reader = openPool(e.path,
		"mode=rw", "_pragma=busy_timeout(500)", "_pragma=query_only(1)", "_pragma=schema_version",
		"_pragma=cache_size(-1500)")
	e.reader.SetMaxOpenConns(readers)
	e.reader.SetMaxIdleConns(readers)
	for range readers {
		conn, err := e.reader.Conn(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		// conn.Close gives a connection back to the pool. It is deferred until all are open, or
		// else the pool would hand out the same one again.
		defer conn.Close()
	}
	return e.checkFiles()
}

// Close ends all connections.
func (e *sqliteFile) Close() (err error) {
	e.mu.Lock() // requests that were cut off may still write
	defer e.mu.Unlock()
	for _, stmt := range e.writes.Range { // an open one would keep the connection alive
		_ = stmt.(*sql.Stmt).Close()
	}
	if e.conn != nil {
		// Raw reaches the driver's own connection. If the driver has panicked in a call, then
		// conn.Close would wait for the end of that call for ever.
		err = e.conn.Raw(func(driver any) error { return driver.(io.Closer).Close() })
	}
	for _, pool := range []*sql.DB{e.reader, e.writer, e.lock} {
		if pool != nil {
			_ = pool.Close()
		}
	}
	return err
}

// isCode reports whether an error is SQLite's, with one of these primary result codes.
func isCode(err error, codes ...int) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && slices.Contains(codes, e.Code()&0xff)
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
	e.mu.Lock()
	defer e.mu.Unlock()
	err := untilUnlocked(ctx, e.wait, func() error {
		_, err := e.run(sqlOf("BEGIN IMMEDIATE"))
		return err
	})
	if err != nil {
		return nil, err
	}
	committed := false
	defer func() {
		if !committed { // also if the driver panics
			_, _ = e.run(sqlOf("ROLLBACK")) // its error says that SQLite has done so itself
		}
	}()
	if err := e.checkFiles(); err != nil {
		return nil, err
	}
	results := make([]result, len(statements))
	for i, st := range statements {
		results[i], err = e.run(st)
		if err != nil {
			return nil, err
		}
	}
	_, err = e.run(sqlOf("COMMIT")) // and sync
	committed = err == nil
	return results, err
}

// checkFiles is an error if one of the database's files is no longer the one that was opened: what
// is committed to a file without a name is lost.
func (e *sqliteFile) checkFiles() error {
	for path, opened := range e.files {
		now, err := os.Stat(path)
		if err != nil {
			return err
		}
		if opened != nil && !os.SameFile(opened, now) {
			return fmt.Errorf("%s is not the file that was opened", path)
		}
		e.files[path] = now
	}
	return nil
}

// run executes one statement on conn. mu is held.
func (e *sqliteFile) run(st statement) (r result, err error) {
	stmt, err := prepared(&e.writes, e.conn, st.query)
	if err != nil {
		return r, err
	}
	if st.into != nil {
		return r, stmt.QueryRow(st.args...).Scan(st.into...)
	}
	done, err := stmt.Exec(st.args...)
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

// changed reads data_version on the writing connection. SQLite changes that number whenever another
// connection has written, whatever program that belongs to. So edits that nobody counts are
// noticed, and an import is a change too. The first call always reports one.
func (e *sqliteFile) changed() (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.version
	_, err := e.run(statement{
		query: "PRAGMA data_version",
		into:  []any{&e.version},
	})
	return e.version != before, err
}

// shared is false, because a second service is kept out.
func (e *sqliteFile) shared() bool { return false }

// describe implements engine.
func (e *sqliteFile) describe() (engine, node string) { return "sqlite", e.path }

// measure implements engine.
func (e *sqliteFile) measure(x *exposition) {
	add := func(labels, path string) {
		if info, err := os.Stat(path); err == nil {
			x.add("petstore_database_bytes", labels, info.Size())
		}
	}
	add(`{file="database"}`, e.path)
	add(`{file="log"}`, e.path+"-wal")
}

// read implements engine.
func (e *sqliteFile) read(ctx context.Context, query statement,
	row func(scan scanner) error) error {
	stmt, err := prepared(&e.reads, e.reader, query.query)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(ctx, query.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// syncFolder brings the names in a folder to disk, where the system can open folders.
func syncFolder(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	folder, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
