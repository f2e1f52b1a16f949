package main

// An engine: one SQLite file. Here are its opening and checking, its locks, its connections and its
// transactions. It takes the schema from store.go, and knows no table of it.

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
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

	mu       sync.Mutex           // guards the next four
	conn     *sql.Conn            // for writing
	written  map[string]*sql.Stmt // by query
	version  int64                // data_version, as it was at the last look
	panicked bool                 // the driver has, on conn

	reader  *sql.DB  // a pool
	queries sync.Map // from query to *sql.Stmt

	writer, lock *sql.DB // the pool of conn and, of a service, what holds its lock

	// files are those that must stay in their places: the database, its log, the log's index and,
	// of a service, its lock, by path, as they were opened; nil until then.
	files map[string]os.FileInfo
}

// openSQLite opens or, for some purposes, makes the database file. A file that is no database,
// another program's, or of a newer schema is refused and left as it was. It waits for locks as
// write does. Also after an error, close it.
func openSQLite(ctx context.Context, path string, p purpose) (e *sqliteFile, err error) {
	e = &sqliteFile{
		wait: commandWait, written: map[string]*sql.Stmt{}, files: map[string]os.FileInfo{},
	}
	e.path, err = resolve(path)
	if err != nil {
		return e, err
	}
	if _, err := os.Stat(e.path); errors.Is(err, os.ErrNotExist) && p == forCommand {
		return e, errMissing
	}
	if err := refuseOrphanedLog(e.path); err != nil {
		return e, err
	}
	info, err := ensureFile(e.path)
	if err != nil {
		return e, err
	}
	if info.Size() > 0 {
		if _, err := checkOwner(ctx, e.path); err != nil {
			return e, err
		}
	}
	if p == forService { // two would count a key's requests separately
		e.wait = serviceWait
		file := e.path + "-lock"
		// A service whose lock is gone must not go on, since another one can start.
		if e.files[file], err = ensureFile(file); err != nil {
			return e, err
		}
		if e.lock, err = lockFile(file, errors.New("another petstore serves it")); err != nil {
			return e, err
		}
	}
	return e, e.connect(ctx)
}

// refuseOrphanedLog is for a database that is missing or empty: SQLite would delete a log of it
// that is still there, or apply it to a file that takes its place. A -journal may be that of
// another program that makes the database just now.
func refuseOrphanedLog(path string) error {
	if info, err := os.Stat(path); err == nil && info.Size() > 0 {
		return nil
	}
	if _, err := os.Stat(path + "-wal"); err == nil {
		return errors.New("it is missing or empty, but its -wal is there; " +
			"put the file back, or move the -wal away")
	}
	return nil
}

// resolve follows symbolic links, also to a file that is not there, as SQLite does.
func resolve(path string) (string, error) {
	for range 40 { // more are a circle, as for the kernel
		target, err := os.Readlink(path)
		if err != nil {
			break // no link, or nothing there
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Abs(filepath.Join(folder, filepath.Base(path)))
}

// ensureFile makes the file unless it is there, and returns the operating system's error if it
// cannot be written: SQLite's would not say why. It comes before SQLite has the file open, since
// closing a file ends the locks that the process has on it.
func ensureFile(path string) (os.FileInfo, error) {
	//nolint:gosec // the operator names the file
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	return info, errors.Join(err, f.Close())
}

var errNoDatabase = errors.New("file is not a database") // in SQLite's words

// checkOwner looks at an existing file without changing it, and returns the version of its schema.
// If there is no log, the file is opened as immutable, because otherwise SQLite would make one.
func checkOwner(ctx context.Context, path string) (version int, err error) {
	info, err := os.Stat(path)
	if err != nil || info.Size() < 100 { // less than a header, and to SQLite an empty one
		return 0, cmp.Or(err, errNoDatabase)
	}
	mode := "mode=ro"
	wal, err := os.Stat(path + "-wal") //nolint:gosec // the operator names the file
	if err != nil || wal.Size() == 0 {
		mode = "mode=ro&immutable=1"
	}
	db := openPool(path, 0, mode)
	defer db.Close()
	err = untilUnlocked(ctx, commandWait, func() (err error) {
		version, err = checkMarks(db.QueryRow(ownerQuery).Scan)
		return err
	})
	return version, err
}

// openPool is a pool of connections to a file by its absolute path, with options of the driver;
// wait is their lock timeout. Pragmas stand in the address because only there they reach every
// connection of the pool.
func openPool(path string, wait time.Duration, options ...string) *sql.DB {
	options = append(options, fmt.Sprintf("_pragma=busy_timeout(%d)", wait.Milliseconds()))
	db, _ := sql.Open("sqlite", fileAddress(path, options...))
	return db // without an error, since the driver is known: files are opened by the connections
}

// fileAddress is the driver's address of a file by its absolute path.
func fileAddress(path string, options ...string) string {
	path = "/" + strings.TrimPrefix(filepath.ToSlash(path), "/") // also before a drive letter
	return "file://" + (&url.URL{Path: path}).EscapedPath() + "?" + strings.Join(options, "&")
}

// connect opens all connections. The reading ones open their files too, with schema_version: one
// that was opened later would miss a file that was removed meanwhile, or read another one that took
// its place.
func (e *sqliteFile) connect(ctx context.Context) error {
	e.writer = openPool(e.path, 0,
		"_pragma=journal_mode(WAL)", "_pragma=synchronous(FULL)", "_pragma=fullfsync(1)")
	e.reader = openPool(e.path, serviceWait,
		"mode=rw", "_pragma=query_only(1)", "_pragma=schema_version")
	e.reader.SetMaxOpenConns(readers)
	e.reader.SetMaxIdleConns(readers)
	err := untilUnlocked(ctx, e.wait, func() error {
		opened, err := os.Stat(e.path) // it may be replaced while this waits
		if err != nil {
			return err
		}
		e.files[e.path], e.files[e.path+"-wal"], e.files[e.path+"-shm"] = opened, nil, nil
		e.conn, err = e.writer.Conn(context.Background())
		return err
	})
	if err != nil {
		return err
	}
	for range readers {
		// The connection of the writer lets nobody lock these out.
		conn, err := e.reader.Conn(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		defer conn.Close() // back to the pool, when all are open
	}
	return e.checkFiles() // another file may have taken the place of the first
}

// lockFile locks a file until lock is closed; the error is busy if somebody else has it. The lock
// is SQLite's on a file that stays empty, for it is the one kind that every system offers; the
// kernel frees it even after a kill. It is worth nothing if the file loses its name.
func lockFile(file string, busy error) (lock *sql.DB, err error) {
	lock = openPool(file, 0, "_pragma=journal_mode(OFF)")
	lock.SetMaxOpenConns(1) // which stays, and keeps the transaction open
	_, err = lock.Exec("BEGIN EXCLUSIVE")
	if err == nil {
		return lock, nil
	}
	_ = lock.Close()
	if isCode(err, sqlite3.SQLITE_BUSY) {
		return nil, busy
	}
	return nil, err
}

// Close ends all connections but one in which the driver has panicked: that may hold a lock of
// database/sql for ever.
func (e *sqliteFile) Close() (err error) {
	e.mu.Lock() // requests that were cut off may still write
	defer e.mu.Unlock()
	for _, stmt := range e.written { // an open one would keep the connection alive
		err = errors.Join(err, stmt.Close())
	}
	if e.conn != nil && !e.panicked {
		err = errors.Join(err, e.conn.Close())
	}
	for _, pool := range []*sql.DB{e.reader, e.writer, e.lock} {
		if pool != nil {
			err = errors.Join(err, pool.Close())
		}
	}
	return err
}

// isCode reports whether an error is SQLite's, with one of these primary result codes.
func isCode(err error, codes ...int) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && slices.Contains(codes, e.Code()&0xff)
}

// untilUnlocked calls do again and again as long as another program's lock is in its way. SQLite's
// own wait sleeps up to 100 ms at a time, and would starve beside a service whose pauses between
// two transactions are shorter than that.
func untilUnlocked(ctx context.Context, wait time.Duration, do func() error) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(wait)
	}
	err := do()
	for ; isCode(err, sqlite3.SQLITE_BUSY) && time.Now().Before(deadline); err = do() {
		if pause(ctx, lockPoll); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return err
}

func (e *sqliteFile) write(ctx context.Context, statements []statement) (results []result,
	err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	panicking := true
	defer func() {
		e.panicked = e.panicked || panicking
		if panicking || err != nil {
			_, _ = e.run(sqlOf("ROLLBACK")) // its error says that SQLite has done so itself
		}
	}()
	results, err = e.transact(ctx, statements)
	panicking = false
	return results, err
}

// transact is write without a rollback. mu is held.
func (e *sqliteFile) transact(ctx context.Context, statements []statement) ([]result, error) {
	err := untilUnlocked(ctx, e.wait, func() error {
		_, err := e.run(sqlOf("BEGIN IMMEDIATE"))
		return err
	})
	if err != nil {
		return nil, err
	}
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
	return results, err
}

// checkFiles is an error if one of the database's files is no longer the one that
// was opened: what is committed to a file without a name is lost.
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

// run executes one statement, which is prepared when it is first used. mu is held.
func (e *sqliteFile) run(st statement) (r result, err error) {
	stmt := e.written[st.query]
	if stmt == nil {
		stmt, err = e.conn.PrepareContext(context.Background(), st.query)
		if err != nil {
			return r, err
		}
		e.written[st.query] = stmt
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

// changed compares data_version, which moves on one connection when another one has written: also
// that of a program that counts nothing. So an import is a change too.
func (e *sqliteFile) changed(context.Context) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.version
	_, err := e.run(statement{"PRAGMA data_version", nil, []any{&e.version}})
	return e.version != before, err
}

func (e *sqliteFile) shared() bool                    { return false } // a second one is kept out
func (e *sqliteFile) describe() (engine, node string) { return "sqlite", e.path }
func (e *sqliteFile) measure(*exposition)             {}

func (e *sqliteFile) read(ctx context.Context, query statement,
	row func(scan scanner) error) error {
	known, ok := e.queries.Load(query.query)
	if !ok {
		stmt, err := e.reader.PrepareContext(context.WithoutCancel(ctx), query.query)
		if err != nil {
			return err
		}
		known = stmt
		e.queries.Store(query.query, stmt) // of two at once, one is closed with its connections
	}
	rows, err := known.(*sql.Stmt).QueryContext(ctx, query.args...)
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

// sizeQuery reads how many bytes a database has.
const sizeQuery = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"

// backup copies the database while others read and write. The connection is its
// own because SQLite does not copy while another statement runs on the same one.
func (e *sqliteFile) backup(ctx context.Context, to *os.File) error {
	db := openPool(e.path, commandWait)
	defer db.Close()
	_, err := db.ExecContext(ctx, "VACUUM INTO ?", to.Name())
	return err
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
