package main

// An engine: one SQLite file. Here are its opening and checking, its locks, its connections and
// transactions, and the copies that every engine's backups are. It takes the schema from
// store.go, and knows of the tables only, in finishCopy, which of them assign ids.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
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
	lockPoll    = time.Millisecond       // between two tries of a write to get the lock
)

// sqliteFile is an engine.
type sqliteFile struct {
	path string        // with symbolic links resolved: SQLite names the log after the real file
	wait time.Duration // for another program's lock, unless a context has a deadline

	mu       sync.Mutex // guards the next four
	conn     *sql.Conn  // for writing
	written  preparedSet
	version  int64 // data_version as it was seen last
	panicked bool  // the driver has, on conn

	reader  *sql.DB // a pool
	queries preparedSet

	files   map[string]os.FileInfo // the database, its log and the log's index, by path, as they were opened
	closers []func() error         // what Close calls, last first
}

// preparedSet holds statements, which are prepared when they are first used.
type preparedSet struct {
	on    func(ctx context.Context, query string) (*sql.Stmt, error)
	mu    sync.Mutex // guards known
	known map[string]*sql.Stmt
}

func (s *preparedSet) prepare(query string) (stmt *sql.Stmt, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stmt = s.known[query]; stmt != nil {
		return stmt, nil
	}
	if stmt, err = s.on(context.Background(), query); err == nil {
		s.known[query] = stmt
	}
	return stmt, err
}

// openSQLite opens or, for some purposes, makes the database file and brings its schema up to date. A file that is no
// database, another program's, or of a newer schema is refused and left as it was. It waits for locks as write does.
func openSQLite(ctx context.Context, path string, p purpose) (*sqliteFile, error) {
	e := &sqliteFile{wait: commandWait, files: map[string]os.FileInfo{}}
	err := e.prepareFile(ctx, path, p)
	if err == nil && p == forService { // two would count a key's requests separately
		e.wait = serviceWait
		var lock io.Closer
		if lock, err = lockFile(e.path+"-lock", errors.New("another petstore serves it")); err == nil {
			e.closers = append(e.closers, lock.Close)
		}
	}
	if err == nil {
		err = e.connect(ctx)
	}
	if err == nil {
		err = updateSchema(ctx, e, true)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %s: %w", path, errors.Join(err, e.Close()))
	}
	return e, nil
}

// prepareFile makes the file if it may and must, and refuses one that is not ours.
func (e *sqliteFile) prepareFile(ctx context.Context, path string, p purpose) (err error) {
	if e.path, err = resolve(path); err != nil {
		return err
	}
	info, err := os.Stat(e.path)
	if errors.Is(err, os.ErrNotExist) && p == forCommand {
		return errMissing
	}
	if err != nil || info.Size() == 0 {
		if err := refuseOrphanedLog(e.path, "-wal"); err != nil {
			return err
		}
	}
	if info, err = ensureFile(e.path); err == nil && info.Size() > 0 {
		_, err = checkOwner(ctx, e.path)
	}
	return err
}

// refuseOrphanedLog is for a database that is missing or empty: SQLite would delete a log of it that is still there, or
// apply it to a file that takes its place. A -journal may be that of another program that makes the database just now.
func refuseOrphanedLog(path string, suffixes ...string) error {
	for _, suffix := range suffixes {
		if _, err := os.Stat(path + suffix); err == nil {
			return fmt.Errorf("it is missing or empty, but its %s is there; put the file back, or move the %[1]s away", suffix)
		}
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

// ensureFile makes the file unless it is there, and returns the operating system's
// error if it cannot be written: SQLite's would not say why. It comes before SQLite
// has the file open, since closing a file ends the locks that the process has on it.
func ensureFile(path string) (os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	return info, errors.Join(err, f.Close())
}

// checkOwner looks at an existing file without changing it, and returns the version of its schema. If there is
// no log, the file is opened as immutable, because otherwise SQLite would make one.
func checkOwner(ctx context.Context, path string) (version int, err error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() < 100 { // less than a header, and to SQLite an empty one
		err = errors.New("file is not a database")
	}
	if err != nil {
		return 0, err
	}
	mode := "mode=ro"
	if wal, err := os.Stat(path + "-wal"); err != nil || wal.Size() == 0 { //nolint:gosec // the operator names the file
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

// openPool is a pool of connections to a file by its absolute path, with options of the driver; wait is their
// lock timeout. Pragmas stand in the address because only there they reach every connection of the pool.
func openPool(path string, wait time.Duration, options ...string) *sql.DB {
	path = "/" + strings.TrimPrefix(filepath.ToSlash(path), "/") // also before a drive letter
	options = append(options, fmt.Sprintf("_pragma=busy_timeout(%d)", wait.Milliseconds()))
	db, err := sql.Open("sqlite", "file://"+(&url.URL{Path: path}).EscapedPath()+"?"+strings.Join(options, "&"))
	if err != nil {
		panic(err) // the driver is unknown: files are opened by the connections
	}
	return db
}

// connect opens all connections.
func (e *sqliteFile) connect(ctx context.Context) error {
	writer := openPool(e.path, 0, "_pragma=journal_mode(WAL)", "_pragma=synchronous(FULL)", "_pragma=fullfsync(1)")
	e.closers = append(e.closers, writer.Close)
	err := untilUnlocked(ctx, e.wait, func() (err error) {
		if e.files[e.path], err = os.Stat(e.path); err == nil { // it may be replaced while this waits
			e.conn, err = writer.Conn(context.Background())
		}
		return err
	})
	if err != nil {
		return err
	}
	e.written.on, e.written.known = e.conn.PrepareContext, map[string]*sql.Stmt{}
	e.closers = append(e.closers, e.closeConn)
	e.reader = openPool(e.path, serviceWait, "mode=rw", "_pragma=query_only(1)")
	e.closers = append(e.closers, e.reader.Close)
	e.queries.on, e.queries.known = e.reader.PrepareContext, map[string]*sql.Stmt{}
	e.reader.SetMaxOpenConns(readers)
	e.reader.SetMaxIdleConns(readers)
	if err := untilUnlocked(ctx, e.wait, e.connectReaders); err != nil {
		return err
	}
	for _, file := range []string{e.path + "-wal", e.path + "-shm"} {
		if e.files[file], err = os.Stat(file); err != nil {
			return err
		}
	}
	if _, err := e.changed(ctx); err != nil { // from here on, what others write is news
		return err
	}
	return e.checkFiles() // another file may have taken the place of the first
}

// lockFile makes a file unless it is there, and locks it until the lock is closed; the
// error is busy if somebody else has it. The lock is SQLite's on a file that stays empty,
// for it is the one kind that every system offers; the kernel frees it even after a kill.
func lockFile(file string, busy error) (io.Closer, error) {
	opened, err := ensureFile(file)
	if err != nil {
		return nil, err
	}
	lock := openPool(file, 0, "_pragma=journal_mode(OFF)")
	lock.SetMaxOpenConns(1) // which stays, and keeps the transaction open
	_, err = lock.Exec("BEGIN EXCLUSIVE")
	now, _ := os.Stat(file)
	if isBusy(err) || err == nil && !os.SameFile(opened, now) { // who had it last may have removed it
		err = busy
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// connectReaders opens all reading connections, and their files with a first query: one that was opened later
// would miss a file that was removed meanwhile, or read another one that took its place.
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

// closeConn does not close a connection in which the driver has panicked: that may
// hold a lock of database/sql for ever.
func (e *sqliteFile) closeConn() (err error) {
	for _, stmt := range e.written.known { // an open one would keep the connection alive
		err = errors.Join(err, stmt.Close())
	}
	if e.panicked {
		return errors.Join(err, errors.New("a connection stays open in which the driver has panicked"))
	}
	return errors.Join(err, e.conn.Close())
}

// Close ends all connections.
func (e *sqliteFile) Close() (err error) {
	e.mu.Lock() // requests that were cut off may still write
	defer e.mu.Unlock()
	for _, closer := range slices.Backward(e.closers) {
		err = errors.Join(err, closer())
	}
	return err
}

// isCode reports whether an error is SQLite's, with one of these primary result codes.
func isCode(err error, codes ...int) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code()&0xff)
}

// isBusy reports whether SQLite found a lock of another program in its way.
func isBusy(err error) bool { return isCode(err, sqlite3.SQLITE_BUSY) }

// untilUnlocked calls do again and again as long as another program's lock is in its way. SQLite's own wait sleeps up
// to 100 ms at a time, and would starve beside a service whose pauses between two transactions are shorter than that.
func untilUnlocked(ctx context.Context, wait time.Duration, do func() error) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(wait)
	}
	for {
		err := do()
		if !isBusy(err) || !time.Now().Before(deadline) {
			return err
		}
		if pause(ctx, lockPoll); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (e *sqliteFile) write(ctx context.Context, statements []statement) (results []result, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	panicking := true
	defer func() {
		e.panicked = e.panicked || panicking
		if panicking || err != nil {
			_ = e.exec("ROLLBACK") // its error says that SQLite has done so itself
		}
	}()
	err = untilUnlocked(ctx, e.wait, func() error { return e.exec("BEGIN IMMEDIATE") })
	if err == nil {
		err = e.checkFiles()
	}
	results = make([]result, len(statements))
	for i := 0; i < len(statements) && err == nil; i++ {
		results[i], err = e.run(statements[i])
	}
	if err == nil {
		err = e.exec("COMMIT") // and sync
	}
	panicking = false
	return results, err
}

func (e *sqliteFile) exec(query string) error {
	_, err := e.run(statement{query: query})
	return err
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
	if err == nil {
		r.lastID, _ = done.LastInsertId() // the driver has both numbers at hand
		r.affected, _ = done.RowsAffected()
	}
	return r, err
}

// changed compares data_version, which moves, on one connection, when another
// one has written, be it another program that counts nothing.
func (e *sqliteFile) changed(context.Context) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.version
	_, err := e.run(statement{query: "PRAGMA data_version", into: []any{&e.version}})
	return e.version != before, err
}

func (e *sqliteFile) shared() bool                    { return false } // a second one is kept out
func (e *sqliteFile) describe() (engine, node string) { return "sqlite", e.path }
func (e *sqliteFile) measure(*exposition)             {}

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

// backup copies the database while others read and write. The connection is its
// own because SQLite does not copy while another statement runs on the same one.
func (e *sqliteFile) backup(ctx context.Context, file string) error {
	db := openPool(e.path, commandWait)
	defer db.Close()
	_, err := db.ExecContext(ctx, "VACUUM INTO ?", file)
	return err
}

// saveCopy puts a file that fill writes in the place of target, after reading it
// whole. In it, new ids start skipIDs above those that it holds.
func saveCopy(ctx context.Context, target string, skipIDs int64, fill func(temp string) error) error {
	file, lock, err := claim(target)
	if err != nil {
		return err
	}
	defer lock.Close()
	return replaceFile(file, func(temp string) error {
		if err := fill(temp); err != nil {
			return err
		}
		return finishCopy(ctx, temp, skipIDs)
	})
}

// openCopy makes sure that a copy is a petstore's and is not in use, and keeps
// services off it until the lock is closed.
func openCopy(ctx context.Context, source string) (file string, lock io.Closer, err error) {
	if file, lock, err = claim(source); err != nil {
		return "", nil, err
	}
	version, err := checkOwner(ctx, file)
	if err == nil && version == 0 {
		err = errors.New("it is no petstore's")
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("the copy cannot be used: %w", err), lock.Close())
	}
	return file, lock, nil
}

// finishCopy reads a copy whole, moves its ids on in all tables that assign them, and brings it to disk. With
// mode=ro SQLite would not look at the CHECK constraints; without a mode it would make the file.
func finishCopy(ctx context.Context, file string, skipIDs int64) error {
	db := openPool(file, 0, "mode=rw", "_pragma=journal_mode(DELETE)", "_pragma=synchronous(FULL)")
	defer db.Close()
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("the copy is damaged: %s", strings.Join(strings.Fields(verdict), " "))
	}
	_, err := db.ExecContext(ctx, `WITH used (name, seq) AS (SELECT 'pets', ifnull(max(id), 0) FROM pets
		UNION ALL SELECT 'api_keys', ifnull(max(id), 0) FROM api_keys)
		INSERT INTO sqlite_sequence (name, seq) SELECT name, seq FROM used
		WHERE name NOT IN (SELECT name FROM sqlite_sequence);
		UPDATE sqlite_sequence SET seq = seq + ?`, skipIDs)
	return errors.Join(err, syncFile(file), context.Cause(ctx))
}

// restoreSQLite puts a copy in the place of the database, which it keeps under the name that it returns, or "" if
// there was none. New ids start skipIDs above the copy's, so that no id that a client has seen is used again.
// Whenever it is stopped, by a kill or a power cut too, the old database is in its place, or the new one.
func restoreSQLite(ctx context.Context, path, source string, skipIDs int64, now time.Time) (old string, err error) {
	target, err := resolve(path)
	if err != nil {
		return "", err
	}
	copied, _ := os.Stat(source)
	if replaced, _ := os.Stat(target); os.SameFile(copied, replaced) { // false for what is not there
		return "", errors.New("they are the same file")
	}
	from, copyLock, err := openCopy(ctx, source)
	if err != nil {
		return "", err
	}
	defer copyLock.Close()
	if _, err := checkOwner(ctx, target); errors.Is(err, errForeign) {
		return "", err
	}
	lock, err := lockFile(target+"-lock", errServed)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	before := openPool(target, 0, "mode=rw", "_pragma=synchronous(FULL)")
	defer before.Close()
	err = replaceFile(target, func(temp string) error {
		if err := copyFile(ctx, from, temp); err != nil {
			return err
		}
		if err := finishCopy(ctx, temp, skipIDs); err != nil {
			return err
		}
		old, err = keepOld(ctx, before, target, temp, now)
		return err
	})
	return old, err
}

// claim refuses a file that cannot be a database, or one that is in use, and keeps services off it, if it was
// ever served, until the lock is closed. A file that is not there may be claimed too.
func claim(name string) (path string, lock io.Closer, err error) {
	if path, err = resolve(name); err != nil {
		return "", nil, err
	}
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		return "", nil, fmt.Errorf("%s is not a regular file", path)
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal", "-lock"} {
		database, is := strings.CutSuffix(path, suffix)
		if _, err := os.Stat(database); is && err == nil {
			return "", nil, fmt.Errorf("%s belongs to the database %s", path, database)
		}
		log, err := os.Stat(path + suffix)
		if err == nil && log.Size() > 0 && suffix != "-shm" {
			return "", nil, fmt.Errorf("%s has a log beside it, %s: it is in use, or was not closed", path, log.Name())
		}
	}
	lock = io.NopCloser(nil)
	if _, err := os.Stat(path + "-lock"); err == nil { // it was served
		if lock, err = lockFile(path+"-lock", fmt.Errorf("a petstore serves %s", path)); err != nil {
			return "", nil, err
		}
	}
	if info != nil && isBusy(lockOnce(path)) {
		return "", nil, errors.Join(fmt.Errorf("%s is in use", path), lock.Close())
	}
	return path, lock, nil
}

// lockOnce takes all of a database for a moment: isBusy tells that somebody has
// it open, be it under another name. Nothing may read the file before the lock.
func lockOnce(path string) error {
	db := openPool(path, 0, "mode=rw", "_pragma=locking_mode(EXCLUSIVE)")
	defer db.Close()
	_, err := db.Exec("SELECT 1 FROM sqlite_schema")
	return err
}

// replaceFile lets fill write and sync an empty file in a folder beside target, and only
// then gives it target's name, so that an older file is never lost to a failed attempt.
// What a kill leaves of the folder is used, and removed, by the next attempt.
func replaceFile(target string, fill func(temp string) error) error {
	folder := target + ".partial"
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	file := filepath.Join(folder, "lock")
	lock, err := lockFile(file, errors.New("another petstore writes it"))
	if err != nil {
		return err
	}
	defer lock.Close()
	inner := filepath.Join(folder, "copy")
	defer func() { // before the lock ends, or another attempt would lose its files
		_ = errors.Join(os.RemoveAll(inner), os.Remove(file), os.Remove(folder))
	}()
	temp := filepath.Join(inner, "db") // beside which SQLite may have a journal
	err = errors.Join(os.RemoveAll(inner), os.Mkdir(inner, 0o700))
	if err == nil {
		_, err = ensureFile(temp)
	}
	if err == nil {
		err = fill(temp)
	}
	if err == nil {
		err = os.Rename(temp, target)
	}
	if err == nil {
		err = syncFile(filepath.Dir(target))
	}
	return err
}

// copyFile copies until ctx ends.
func copyFile(ctx context.Context, from, to string) error {
	source, err := os.Open(from) //nolint:gosec // the operator names the file
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o600) //nolint:gosec // likewise
	if err != nil {
		return err
	}
	for err == nil && ctx.Err() == nil {
		_, err = io.CopyN(target, source, 1<<20)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, context.Cause(ctx), target.Close())
}

// keepOld gives the database a second name, and its owner and mode to the file
// that will take its place. Its log is folded in or, where that cannot be done because
// the database is damaged, kept beside it. Nobody can open it until db is closed.
func keepOld(ctx context.Context, db *sql.DB, path, successor string, now time.Time) (old string, err error) {
	info, err := os.Stat(path)
	missing := errors.Is(err, os.ErrNotExist)
	if missing || err == nil && info.Size() == 0 {
		err = refuseOrphanedLog(path, "-wal", "-journal")
	}
	if missing || err != nil {
		return "", err
	}
	if info.Size() > 0 {
		db.SetMaxOpenConns(1)                                // which stays, and keeps the transaction open
		err = untilUnlocked(ctx, commandWait, func() error { // until everybody else has closed it
			_, err := db.Exec("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE")
			return err
		})
	}
	if err != nil && !isCode(err, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) {
		return "", err
	}
	if err := inherit(info, successor); err != nil {
		return "", err
	}
	if ctx.Err() != nil { // for the last time: from here on nothing stops the restore
		return "", context.Cause(ctx)
	}
	old = oldName(path, now)
	if err := os.Link(path, old); err != nil {
		return "", err
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		if err := os.Rename(path+suffix, old+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	if runtime.GOOS == "windows" { // where no open file can be replaced
		_ = db.Close()
	}
	return old, syncFile(filepath.Dir(path))
}

// oldName is where a database is kept that another one replaces.
func oldName(path string, now time.Time) string {
	return path + "." + now.UTC().Format("20060102T150405.000Z") + ".old"
}

// inherit gives a file the mode and, on systems whose files have one, the owner of another.
func inherit(from os.FileInfo, file string) error {
	if stat := reflect.Indirect(reflect.ValueOf(from.Sys())); stat.Kind() == reflect.Struct {
		uid, gid := stat.FieldByName("Uid"), stat.FieldByName("Gid")
		if uid.CanUint() && gid.CanUint() {
			if err := os.Chown(file, int(uid.Uint()), int(gid.Uint())); err != nil { //nolint:gosec // as the system gave them
				return err
			}
		}
	}
	return os.Chmod(file, from.Mode())
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
