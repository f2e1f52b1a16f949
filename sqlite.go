package main

// An engine: one SQLite file. Here are its opening and checking, its locks, its
// connections and transactions, and its copies. It knows the schema's versions
// from store.go, and nothing of what the tables mean.

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
	cacheKiB    = 2 * 1024               // SQLite's page cache, for each connection
	headerSize  = 100                    // bytes that every SQLite file starts with
	serviceWait = 500 * time.Millisecond // for another program's lock
	commandWait = 10 * time.Second       // the same for the commands, which have nobody waiting behind them
	lockPoll    = time.Millisecond       // between two tries of a write to get the lock
)

// sqliteFile is an engine.
type sqliteFile struct {
	path     string        // as the operator wrote it
	resolved string        // without links: what SQLite names the log and its index after
	wait     time.Duration // for another program's lock

	conn    *sql.Conn // for writing, by one at a time
	written preparedSet
	version int64 // data_version as it was seen last

	reader  *sql.DB // a pool
	queries preparedSet

	files   map[string]os.FileInfo // the database, its log and the log's index, by path, as they were opened
	closers []func() error         // what Close calls, last first
}

// preparedSet holds statements, which are prepared when they are first used.
type preparedSet struct {
	on interface {
		PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	}
	mu    sync.Mutex // guards known
	known map[string]*sql.Stmt
}

func (s *preparedSet) prepare(query string) (stmt *sql.Stmt, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stmt = s.known[query]; stmt == nil {
		if stmt, err = s.on.PrepareContext(context.Background(), query); err == nil {
			s.known[query] = stmt
		}
	}
	return stmt, err
}

func (s *preparedSet) close() (err error) {
	for _, stmt := range s.known {
		err = errors.Join(err, stmt.Close())
	}
	return err
}

// purpose is what a database is opened for.
type purpose int

const (
	forCommand purpose = iota // the file has to be there
	forNewKey                 // a command that makes the file if there is none
	forService                // the same, and there must be no other service on it
)

// openSQLite opens or, for some purposes, makes the database file and brings
// its schema up to date. A file that is no database, another program's, or of
// a newer schema is refused and left as it was. It waits for locks as write does.
func openSQLite(ctx context.Context, path string, p purpose) (*sqliteFile, error) {
	e := &sqliteFile{path: path, wait: commandWait}
	err := e.prepareFile(p)
	if err == nil {
		err = e.connect(ctx, p)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %s: %w", path, errors.Join(err, e.Close()))
	}
	return e, nil
}

// prepareFile makes the file if it may and must, and refuses one that is not ours.
func (e *sqliteFile) prepareFile(p purpose) error {
	info, err := os.Stat(e.path) //nolint:gosec // the operator names the file
	if errors.Is(err, os.ErrNotExist) && p == forCommand {
		return errors.New("there is none; petstore makes it at its first start")
	}
	if err != nil || info.Size() == 0 {
		// SQLite would delete the log of a database that is new to it.
		if _, err := os.Stat(e.path + "-wal"); err == nil { //nolint:gosec // the operator names the file
			return errors.New("it is missing or empty, but its -wal is there; put the file back, or move the -wal away")
		}
	}
	size, err := ensureFile(e.path)
	if err != nil {
		return err
	}
	if e.resolved, err = filepath.EvalSymlinks(e.path); err != nil || size == 0 {
		return err
	}
	if size < headerSize { // SQLite would take it for an empty one
		return errors.New("file is not a database")
	}
	return checkOwner(e.resolved)
}

// ensureFile makes the file unless it is there, and reports in the system's
// words if it cannot be written: SQLite would only say that it cannot. It comes
// before SQLite has the file open, since closing a file ends the locks that the
// process has on it.
func ensureFile(path string) (size int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return 0, err
	}
	size, err = f.Seek(0, io.SeekEnd)
	return size, errors.Join(err, f.Close())
}

// checkOwner looks at an existing file without changing it. Where no log stands
// beside it, SQLite is told that nobody writes, or it would leave one there.
func checkOwner(path string) error {
	mode := "mode=ro"
	if wal, err := os.Stat(path + "-wal"); err != nil || wal.Size() == 0 { //nolint:gosec // the operator names the file
		mode = "mode=ro&immutable=1"
	}
	db, err := openPool(path, commandWait, mode)
	if err != nil {
		return err
	}
	defer db.Close()
	var application, version, tables int
	row := db.QueryRow(`SELECT (SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`)
	if err := row.Scan(&application, &version, &tables); err != nil {
		return err
	}
	switch {
	case application != applicationID && (application != 0 || tables > 0):
		return errors.New("it belongs to another program")
	case version > len(migrations):
		return fmt.Errorf("its schema is version %d and this petstore knows only %d; use a newer petstore",
			version, len(migrations))
	}
	return nil
}

// openPool is a pool of connections to a database file, with options of the
// driver. They wait so long for a lock. Pragmas stand in the address because only
// there they reach every connection of the pool.
func openPool(path string, wait time.Duration, options ...string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	abs = filepath.ToSlash(abs)
	if !strings.HasPrefix(abs, "/") {
		abs = "/" + abs // a drive letter
	}
	pragmas := fmt.Sprintf("_pragma=busy_timeout(%d)&_pragma=cache_size(-%d)", wait.Milliseconds(), cacheKiB)
	options = append(options, pragmas)
	return sql.Open("sqlite", "file://"+(&url.URL{Path: abs}).EscapedPath()+"?"+strings.Join(options, "&"))
}

// connect opens all connections and brings the schema up to date.
func (e *sqliteFile) connect(ctx context.Context, p purpose) (err error) {
	if p == forService {
		e.wait = serviceWait
		if err := e.lockOut(); err != nil {
			return err
		}
	}
	writer, err := openPool(e.path, 0, "_pragma=journal_mode(WAL)", "_pragma=synchronous(FULL)", "_pragma=fullfsync(1)")
	if err != nil {
		return err
	}
	e.closers = append(e.closers, writer.Close)
	if err = e.untilUnlocked(ctx, func() error {
		e.conn, err = writer.Conn(context.Background())
		return err
	}); err != nil {
		return err
	}
	e.written.on, e.written.known = e.conn, map[string]*sql.Stmt{}
	e.closers = append(e.closers, e.conn.Close, e.written.close) // an open statement would keep the connection alive
	if err := e.migrate(ctx); err != nil {
		return err
	}
	if e.reader, err = openPool(e.path, e.wait, "mode=rw", "_pragma=query_only(1)"); err != nil {
		return err
	}
	e.closers = append(e.closers, e.reader.Close)
	e.queries.on, e.queries.known = e.reader, map[string]*sql.Stmt{}
	e.reader.SetMaxOpenConns(readers)
	e.reader.SetMaxIdleConns(readers)
	if err := e.connectReaders(); err != nil {
		return err
	}
	e.files = map[string]os.FileInfo{}
	for _, file := range []string{e.path, e.resolved + "-wal", e.resolved + "-shm"} {
		if e.files[file], err = os.Stat(file); err != nil {
			return err
		}
	}
	return nil
}

// lockOut keeps other services off the database as long as this process lives,
// since two of them would count a key's requests separately. The lock is
// SQLite's on an empty file beside the database, for it is the one kind of lock
// that every system offers; the kernel frees it even after a kill.
func (e *sqliteFile) lockOut() (err error) {
	file := e.resolved + "-lock"
	if _, err := ensureFile(file); err != nil {
		return err
	}
	lock, err := openPool(file, 0, "_pragma=journal_mode(OFF)")
	if err != nil {
		return err
	}
	e.closers = append(e.closers, lock.Close)
	lock.SetMaxOpenConns(1) // which stays, and keeps the transaction open
	if _, err = lock.Exec("BEGIN EXCLUSIVE"); isBusy(err) {
		return errors.New("another petstore serves it")
	}
	return err
}

// connectReaders opens all reading connections, and their files with a first
// query: one that was opened later would miss a file that was removed
// meanwhile, or read another one that took its place.
func (e *sqliteFile) connectReaders() error {
	for range readers {
		conn, err := e.reader.Conn(context.Background())
		if err != nil {
			return err
		}
		defer conn.Close() // back to the pool, when all are open
		if _, err := conn.ExecContext(context.Background(), "SELECT 1 FROM sqlite_schema"); err != nil {
			return err
		}
	}
	return nil
}

// migrate runs the migrations that the file has not seen, in one transaction.
// A file that has seen them all is not locked for it.
func (e *sqliteFile) migrate(ctx context.Context) error {
	var version int
	known := func() error {
		return e.conn.QueryRowContext(context.Background(), "PRAGMA user_version").Scan(&version)
	}
	if err := known(); err != nil || version >= len(migrations) {
		return err
	}
	return e.transaction(ctx, func() error {
		if err := known(); err != nil { // somebody else may have been faster
			return err
		}
		for ; version < len(migrations); version++ {
			if _, err := e.conn.ExecContext(context.Background(), migrations[version]); err != nil {
				return err
			}
		}
		marks := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, version)
		_, err := e.conn.ExecContext(context.Background(), marks)
		return err
	})
}

// Close ends all connections.
func (e *sqliteFile) Close() (err error) {
	for _, closer := range slices.Backward(e.closers) {
		err = errors.Join(err, closer())
	}
	return err
}

// isBusy reports whether SQLite found a lock of another program in its way.
func isBusy(err error) bool {
	var sqliteErr *sqlite.Error
	return errors.As(err, &sqliteErr) && sqliteErr.Code()&0xff == sqlite3.SQLITE_BUSY
}

// untilUnlocked calls do again and again as long as another program's lock is in
// its way. SQLite's own wait sleeps up to 100 ms at a time, and would starve
// beside a service that leaves less than one between two transactions.
func (e *sqliteFile) untilUnlocked(ctx context.Context, do func() error) error {
	for deadline := time.Now().Add(e.wait); ; {
		err := do()
		if !isBusy(err) || !time.Now().Before(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// transaction runs do inside a transaction that is synced when it ends.
func (e *sqliteFile) transaction(ctx context.Context, do func() error) error {
	committed := false
	defer func() { // also after a panic of the driver
		if !committed {
			_ = e.exec("ROLLBACK") // an error says that SQLite has done so itself
		}
	}()
	if err := e.untilUnlocked(ctx, func() error { return e.exec("BEGIN IMMEDIATE") }); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	err := e.exec("COMMIT")
	committed = err == nil
	return err
}

func (e *sqliteFile) exec(query string) error {
	_, err := e.run(statement{query: query})
	return err
}

func (e *sqliteFile) write(ctx context.Context, statements []statement) ([]result, error) {
	if err := e.checkFiles(); err != nil {
		return nil, err
	}
	results := make([]result, len(statements))
	err := e.transaction(ctx, func() (err error) {
		for i, st := range statements {
			if results[i], err = e.run(st); err != nil {
				return err
			}
		}
		return nil
	})
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
		if !os.SameFile(opened, now) {
			return fmt.Errorf("%s is not the file that was opened", path)
		}
	}
	return nil
}

// run executes one statement of a transaction.
func (e *sqliteFile) run(st statement) (r result, err error) {
	stmt, err := e.written.prepare(st.query)
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

// changed compares data_version, which moves, on one connection, when another
// one has written.
func (e *sqliteFile) changed() (bool, error) {
	stmt, err := e.written.prepare("PRAGMA data_version")
	if err != nil {
		return false, err
	}
	before := e.version
	err = stmt.QueryRow().Scan(&e.version)
	return e.version != before, err
}

func (e *sqliteFile) read(ctx context.Context, query statement, row func(scan scanner) error) error {
	stmt, err := e.queries.prepare(query.query)
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

// backup writes the copy beside its final place, checks it, and only then gives
// it its name, so that an older copy is never lost to a failed attempt. The
// connection is its own because SQLite does not copy while another statement
// runs on the same one.
func (e *sqliteFile) backup(ctx context.Context, file string) error {
	source, err := os.Stat(e.path)
	if err != nil {
		return err
	}
	if target, err := os.Stat(file); err == nil && os.SameFile(source, target) {
		return errors.New("a database cannot be backed up onto itself")
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*.partial") // two backups may run at once
	if err != nil {
		return err
	}
	temp := f.Name()
	_ = f.Close()         // nothing was written
	defer os.Remove(temp) //nolint:errcheck // gone already unless something failed
	db, err := openPool(e.path, commandWait)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", temp); err != nil {
		return err
	}
	if err := checkCopy(ctx, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, file); err != nil {
		return err
	}
	return syncFile(filepath.Dir(file))
}

// checkCopy reads the copy whole and brings it to disk. With mode=ro SQLite
// would leave out the CHECK constraints; without a mode it would make the file.
func checkCopy(ctx context.Context, path string) error {
	db, err := openPool(path, commandWait, "mode=rw", "_pragma=query_only(1)")
	if err != nil {
		return err
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("the copy is damaged: %s", strings.Join(strings.Fields(verdict), " "))
	}
	return syncFile(path)
}

// syncFile brings a file or folder to disk, where the system can open folders.
func syncFile(path string) error {
	f, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && runtime.GOOS != "windows" {
		return err
	}
	return nil
}
