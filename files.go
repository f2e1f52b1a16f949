package main

// Files. In this order: how one is made, and where; what is refused as a database; how one is read
// without a change; the marks F-failed and F-host; and files that are published whole. No file that
// exists is ever overwritten, since no rule tells for sure what nobody needs any more: one is
// written as FILE.partial, which must not be there before, and gets its name once it is whole.

import (
	"archive/tar"
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// --- How a file is made, and where ---

// ensureFile makes the file unless it is there, and returns its placeOf. The error is the
// operating system's if the file cannot be written: SQLite's would not say why. Call it before
// SQLite has the file open, since closing a file ends the locks that the process has on it.
func ensureFile(path string) (string, error) {
	if err := refuseIrregular(path); err != nil {
		return "", err
	}
	path = placeOf(path)
	f, err := makeFile(path)
	if errors.Is(err, os.ErrExist) {
		f, err = openRegular(path, os.O_RDWR)
	}
	if err != nil {
		return "", err
	}
	_ = f.Close() // nothing was written
	return path, nil
}

// makeFile makes a file that is not there, and follows no link. If root runs this, the owner of the
// folder gets it, or else a service that runs as that owner could not open it. SQLite gives the log
// and its index to the owner of the database in the same way, and heeds no error either.
func makeFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		giveToFolder(file)
	}
	return file, err
}

func giveToFolder(made *os.File) {
	if uid, gid, isOther := folderOwner(made.Name()); isOther {
		_ = made.Chown(uid, gid)
	}
}

// folderOwner returns the owner and the group of a file's folder, and whether root runs this in a
// folder of somebody else's.
func folderOwner(path string) (uid, gid int, isOther bool) {
	folder, err := os.Stat(folderOf(path))
	if err != nil || os.Geteuid() != 0 { // -1 on Windows
		return 0, 0, false
	}
	// The header of an archive tells the owner, and compiles on every system.
	header, err := tar.FileInfoHeader(folder, "")
	if err != nil {
		return 0, 0, false
	}
	return header.Uid, header.Gid, header.Uid != 0
}

// refuseIrregular refuses what is there and is no regular file. Opening a pipe may block for ever.
func refuseIrregular(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return nil //nolint:nilerr // it shows when the file is opened
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory", path)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is a pipe, a device or a socket, and no regular file", path)
	}
	return nil
}

// openRegular opens a regular file, and follows no link: who owns the folder must not choose what
// root opens.
func openRegular(path string, flag int) (*os.File, error) {
	found, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !found.Mode().IsRegular() {
		return nil, errIrregular(path)
	}
	file, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, err
	}
	opened, err := file.Stat()
	if err != nil || !os.SameFile(found, opened) {
		_ = file.Close()
		return nil, errReplaced(path)
	}
	return file, nil
}

func errIrregular(path string) error {
	return fmt.Errorf("%s is no regular file, and a link there is not followed", path)
}

func errReplaced(path string) error {
	return fmt.Errorf("%s was replaced while it was opened; see who writes to its folder", path)
}

// refuseReplaced is an error unless a file is still what its name leads to, and this process has it
// open so many times. SQLite opens a file by its name, and follows links. Who owns the folder can
// have it open a file elsewhere, as root, and put the name back before anybody looks; what it has
// open, Linux tells all the same. So this comes before a connection writes, and before what it
// reads is copied. What is left: who owns the folder can spoil what is in it; a database elsewhere
// that nobody uses may have its log moved into it and get another journal mode, which changes
// nothing of what it holds; and the folders above are taken for root's own.
func refuseReplaced(file *os.File, times int) error {
	opened, err := file.Stat()
	if err != nil {
		return err
	}
	named, err := os.Lstat(file.Name())
	if err != nil || !os.SameFile(opened, named) {
		return errReplaced(file.Name())
	}
	const descriptors = "/proc/self/fd/"
	entries, err := os.ReadDir(descriptors)
	if err != nil {
		return nil //nolint:nilerr // other systems do not tell
	}
	for _, entry := range entries {
		found, err := os.Stat(descriptors + entry.Name())
		if err == nil && os.SameFile(opened, found) {
			times--
		}
	}
	if times > 0 {
		return errReplaced(file.Name())
	}
	return nil
}

// realPath is the absolute path of a file that is there, with symbolic links resolved.
func realPath(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil || filepath.IsAbs(path) {
		return path, err
	}
	if runtime.GOOS == "windows" {
		return filepath.Abs(path)
	}
	folder, err := os.Getwd() // by $PWD, which may lead through links
	if err == nil {
		folder, err = filepath.EvalSymlinks(folder)
	}
	return filepath.Join(folder, path), err
}

// folderOf is the folder in a path, with a separator at its end. A .. stays: the kernel takes it
// for the folder above the one that a link leads to, and filepath.Dir for the one with the link.
func folderOf(path string) string {
	folder, _ := filepath.Split(path)
	return cmp.Or(folder, "."+string(filepath.Separator))
}

// followLinks returns where a path leads, also if nothing is there. Root follows no link that the
// owner of its folder may have made.
func followLinks(path string) string {
	for range 40 { // as many as Linux follows
		target, err := os.Readlink(path)
		if err != nil {
			break // it is no link
		}
		if _, _, isOther := folderOwner(path); isOther {
			break
		}
		if !filepath.IsAbs(target) {
			target = folderOf(path) + target
		}
		path = target
	}
	return path
}

// placeOf is the absolute path of a file, whether it is there or not: realPath if it is.
func placeOf(path string) string { return inRealFolder(followLinks(path)) }

// inRealFolder is a path by the realPath of its folder.
func inRealFolder(path string) string {
	folder, err := realPath(folderOf(path))
	if err != nil {
		return path // there can be no file
	}
	_, name := filepath.Split(path) // "" if path is that of a folder, with a separator at its end
	return filepath.Join(folder, name)
}

func isMissing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}

// --- What is refused as a database ---

// A file's name and path, in bytes, leave room for those of the files beside it. SQLite takes paths
// of 504 bytes.
const (
	maxFileName = 255 - len("-journal")
	maxFilePath = 504 - len("-lock")
)

var (
	errOrphanedLog = errors.New("it is missing or empty, but its -wal is there; if a service " +
		"runs, do not stop it before its log names a copy; otherwise put the file back, or move " +
		"the -wal away")
	errNoIndex = errors.New("its disk is read-only, and its -wal cannot be read there without a " +
		"-shm; copy the file and its -wal together to another disk, and use that copy")
	errMountedReadOnly = errors.New("its file system is mounted read-only here, and others may " +
		"write to it; run the command where they do, or mount it for writing")
	errMountedAlone = errors.New("it is mounted by itself, so that its -wal would lie apart from " +
		"it, and be lost with the container; mount its folder in its place")
	errElsewhere = errors.New("a petstore on another machine serves it, as the count in its " +
		"-host file tells; stop that one first, or do this there: the locks of the two do not " +
		"reach each other")
)

// refuseUnfit refuses what cannot be a database file, a place where one cannot be, and a log that
// is another file's: SQLite would apply it all the same.
func refuseUnfit(path string) error {
	if err := refuseIrregular(path); err != nil {
		return err
	}
	path = placeOf(path)
	if found, err := os.Lstat(path); err == nil && !found.Mode().IsRegular() {
		return errIrregular(path)
	}
	if length := len(filepath.Base(path)); length > maxFileName {
		return fmt.Errorf("its name has %d bytes, and at most %d are possible: files beside it "+
			"have longer ones", length, maxFileName)
	}
	if length := len(path); length > maxFilePath {
		return fmt.Errorf("its path has %d bytes, and at most %d are possible", length, maxFilePath)
	}
	if hasLog(path) && isMissing(path) {
		return errOrphanedLog
	}
	if hasLog(path) && journalMode(path) == rollbackMode {
		return fmt.Errorf("it is not in WAL mode, as a copy is not, and has a -wal beside it, "+
			"which a copy has not; stop the service if one runs, and %s", putBack(path))
	}
	return nil
}

// putBack is the remedy where somebody has put a copy in the place of a database, whose log may
// have all that was confirmed since.
func putBack(path string) string {
	return fmt.Sprintf("do what \"A damaged database\" in docs/operating.md says, which saves "+
		"what the -wal has; or, to have the copy alone, move %s, %[1]s-wal and %[1]s-shm away "+
		"together, keep them, and put the copy back with petstore restore", path)
}

// refuseGone refuses a database that was there, in whose place an empty one would be made: it would
// know no key. The lock of a service stays when the file is deleted.
func refuseGone(path string) error {
	path = placeOf(path)
	if isMissing(path) && !isMissing(path+"-lock") {
		return fmt.Errorf("it is gone, and was there, as its -lock shows; if a service runs, do "+
			"not stop it before its log names a copy; otherwise put the file back, or restore a "+
			"copy; to begin anew with an empty one, delete %s-lock too", path)
	}
	return nil
}

// refuseHalf refuses a database without tables that a restore was to fill.
func refuseHalf(path string) error {
	if !isMissing(path + ".partial") {
		return fmt.Errorf("it is empty, and a restore into it runs or was stopped: delete "+
			"%s.partial if none runs, and restore again", path)
	}
	return nil
}

// ensureWritable makes a database file unless it is there, as ensureFile does. One that
// isMarkedFailed or is mounted by itself is refused.
func ensureWritable(path string) (real string, err error) {
	place := placeOf(path)
	if err := refuseFailed(place); err != nil {
		return "", err
	}
	if isMountedAlone(place, readMounts()) {
		return "", errMountedAlone
	}
	return ensureFile(path)
}

// tryFolder makes a file beside a file, and removes it: its error is the system's own.
func tryFolder(path string) error {
	probe, err := os.CreateTemp(filepath.Dir(path), "petstore-")
	if err == nil {
		removeOpen(probe, os.Remove)()
	}
	return err
}

// whyNotOpened is the system's own reason why SQLite has not opened a database, or a file beside
// it, or nil if none is found. It opens the files, which ends the locks on them: see ensureFile.
func whyNotOpened(path string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		file, err := os.OpenFile(path+suffix, os.O_RDWR, 0)
		if err == nil {
			_ = file.Close() // nothing was written
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for range 20 { // more descriptors than a database that is open has
		folder, err := os.Open(filepath.Dir(path))
		if err != nil {
			return err
		}
		defer folder.Close()
	}
	return tryFolder(path)
}

// --- How a database is read without a change ---

// readMode is SQLite's mode for reading a database that keeps all its bytes. With mode=rw, the last
// connection would empty the log. In WAL mode, mode=ro makes a log and its index where they are
// missing, empty ones, and cannot remove them. On a read-only disk it cannot make them either.
// immutable=1 reads a file without a log, and needs neither. It ignores a log, and changes by
// others. So it is used only where no service can start: on a read-only disk, or beside a mark.
func readMode(path string) (string, error) {
	hasBoth := !isMissing(path+"-wal") && !isMissing(path+"-shm")
	// If this process has the file open, both are there, and the file is not opened by inWALMode,
	// which would end the locks on it (see ensureFile).
	if hasBoth || !inWALMode(path) {
		return "mode=ro", nil
	}
	isReadOnly := errors.Is(tryFolder(path), syscall.EROFS)
	switch {
	case hasLog(path) && isReadOnly:
		return "", errNoIndex
	case isReadOnly && othersMayWrite(path, readMounts()):
		return "", errMountedReadOnly
	case !hasLog(path) && (isReadOnly || isMarkedFailed(path)):
		return "mode=ro&immutable=1", nil
	}
	return "mode=ro", nil
}

// hasLog reports whether anything is in the log beside a database.
func hasLog(path string) bool {
	log, err := os.Stat(path + "-wal")
	return err == nil && log.Size() > 0
}

// isEmpty reports whether a file is there, and nothing in it.
func isEmpty(path string) bool {
	file, err := os.Stat(path)
	return err == nil && file.Size() == 0
}

const walMode, rollbackMode = 2, 1 // whether a database has a log while it is open

// journalMode is that of a database, or 0 if the file has none, as where it is empty.
func journalMode(path string) byte {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close()
	mode, _ := readJournalMode(file) // 0 after an error
	return mode
}

// readJournalMode is the journalMode of a file that is open. The error is that of the disk. See
// https://sqlite.org/fileformat.html, sections 1.3.1 and 1.3.3.
func readJournalMode(file io.ReaderAt) (mode byte, err error) {
	var header [20]byte
	_, err = file.ReadAt(header[:], 0)
	if errors.Is(err, io.EOF) {
		return 0, nil // it is shorter than any database
	}
	if string(header[:16]) == "SQLite format 3\x00" {
		mode = header[19]
	}
	return mode, err
}

// isLogSpoiled reports whether a log was cut or overwritten in place: it is shorter than the frames
// that its index counts, or has other salts. To begin a log anew, SQLite changes the index first.
// So what does not fit counts if the index is the same afterwards. The index must be read as it
// stands in memory, as Linux does it. See https://sqlite.org/walformat.html, section 2.1.
func isLogSpoiled(index, log *os.File) bool {
	if runtime.GOOS != "linux" {
		return false
	}
	var before, after [40]byte
	for range 3 {
		_, err := index.ReadAt(before[:], 0)
		frames := int64(binary.NativeEndian.Uint32(before[16:]))
		if err != nil || frames == 0 {
			return false
		}
		found, err := log.Stat()
		if err != nil {
			return false
		}
		var head [32]byte
		_, _ = log.ReadAt(head[:], 0)                          // what is missing stays 0
		page := int64(binary.NativeEndian.Uint16(before[14:])) // 1 is 65,536, and no more here
		isWhole := found.Size() >= 32+frames*(24+page)
		if isWhole && string(head[16:24]) == string(before[32:]) {
			return false
		}
		_, err = index.ReadAt(after[:], 0)
		if err != nil || after == before {
			return err == nil
		}
	}
	return false
}

// inWALMode reports whether a database has a log while it is open; others may have a journal.
func inWALMode(path string) bool { return journalMode(path) == walMode }

// openToLook opens a database for reading, and leaves all files as they are.
func openToLook(path string) *sql.DB {
	mode := "mode=ro&immutable=1" // otherwise SQLite would make a log
	if hasLog(path) {
		mode = "mode=ro"
	}
	return openPool(path, mode)
}

// openPool is a pool of connections to a file by its absolute path, with options of the driver.
// Pragmas stand in the address because only there they reach every connection of the pool.
func openPool(path string, options ...string) *sql.DB {
	db, _ := sql.Open("sqlite", fileAddress(path, options...))
	return db // without an error, since the driver is known: files are opened by the connections
}

// fileAddress is the driver's address of a file by its absolute path. With _error_rc, an error of
// the driver tells no older error of its connection.
func fileAddress(path string, options ...string) string {
	address := url.URL{
		Scheme:   "file",
		OmitHost: true, // else a drive letter would be taken for a host
		Path:     filepath.ToSlash(path),
		RawQuery: strings.Join(append(options, "_error_rc=1"), "&"),
	}
	return address.String()
}

// --- F-failed, the mark of a sync that has failed ---

// readMark reads a file beside a database. It opens the file anew, since a network's file system
// asks then what others have written.
func readMark(path string) (string, error) {
	file, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer file.Close()
	return startOf(file), nil
}

// startOf is what can be read of the first 100 bytes of a file.
func startOf(file *os.File) string {
	text := make([]byte, 100)
	n, _ := file.ReadAt(text, 0)
	return string(text[:n])
}

// markFailed makes F-failed, which says that a sync of a database has failed in this run of the
// machine. It only has to outlive the process, so it is not synced. path is a realPath, below too.
func markFailed(path string) error {
	mark, err := makeFile(path + "-failed")
	if errors.Is(err, os.ErrExist) && isMarkedFailed(path) {
		return nil // by another program
	}
	if err != nil {
		return err
	}
	_, _ = mark.WriteString(bootID()) // an empty mark keeps everybody off as well
	return mark.Close()
}

// isMarkedFailed reports whether a database has the mark of this run of the machine, or one that
// cannot be compared. A command that only reads goes on: see readMode.
func isMarkedFailed(path string) bool {
	mark, err := readMark(path + "-failed")
	return !errors.Is(err, os.ErrNotExist) && !isOtherBoot(mark)
}

// isOtherBoot reports whether a mark is of another run of the machine, whose file systems were all
// mounted anew. There may be no ids to compare, and a full disk may have left the mark empty.
func isOtherBoot(mark string) bool {
	now := bootID()
	return now != "" && len(mark) == len(now) && mark != now
}

// refuseFailed refuses a database that isMarkedFailed, and removes another run's mark.
func refuseFailed(path string) error {
	mark, err := readMark(path + "-failed")
	if errors.Is(err, os.ErrNotExist) {
		return nil // a service may make one now, which has to stay
	}
	if isOtherBoot(mark) {
		err := os.Remove(path + "-failed")
		if errors.Is(err, os.ErrNotExist) { // another program was first
			return nil
		}
		return err // where it stays, no later one could be made
	}
	return fmt.Errorf("a sync of its files has failed, so that what was stored may be in memory "+
		"alone: copy it to another disk with petstore backup, unmount its file system and mount "+
		"it again, and then delete %s-failed", path)
}

// --- F-host, the presence of a service ---

// presence is the file F-host, which a service writes every second while it serves F, and a restore
// while it runs. Where a file system passes no locks on, this tells the programs of another kernel,
// which do not see the lock.
type presence struct {
	path        string
	boot        string // bootID
	passesLocks bool   // the disk does, as far as is known: the entry is only a precaution
	stop        func() // ends the renewing; nil before keep
	renewing    sync.WaitGroup

	mu          sync.Mutex // guards what follows, and is held while the file is renewed
	first, last int64      // counts that this service has written
	renewed     time.Time  // when the entry was last looked at
	lost        bool       // another kernel's service uses the database
}

const hostWatch = 3 * time.Second // of an entry that is to be renewed every second

// refuseElsewhere refuses a database that a service of another kernel uses. An entry of this kernel
// was left behind by a kill, or belongs to the service of this kernel that runs: that one has asked
// this itself. isServed reports whether one runs. This comes before anything of the database is
// read, also by a command that only reads: where locks are not passed on, SQLite may make the index
// of the log anew while it is in use. Who may only read the database may not read the entry, and
// leaves it where it is. Others remove an old one, so that nobody need watch it again.
func refuseElsewhere(ctx context.Context, path string, onlyReads bool,
	isServed func(path string) bool) error {
	entry, err := readMark(path + "-host")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		if onlyReads {
			return nil
		}
		return err
	}
	if isOfThisKernel(entry) || isServed(path) {
		return nil
	}
	err = watchHost(ctx, path+"-host", entry)
	if err != nil || onlyReads {
		return err
	}
	// If it is gone, another service of another kernel may be about to make its own.
	if now, err := readMark(path + "-host"); err == nil && now == entry {
		_ = os.Remove(path + "-host")
	}
	return nil
}

// watchHost is an errElsewhere if an entry is renewed while it watches. If it cannot be read at the
// end, the error says why.
func watchHost(ctx context.Context, path, entry string) (err error) {
	const looks = 30
	ticks := time.NewTicker(hostWatch / looks)
	defer ticks.Stop()
	for range looks {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticks.C:
		}
		var now string
		now, err = readMark(path)
		if errors.Is(err, os.ErrNotExist) { // that service has stopped
			return nil
		}
		if err == nil && now != entry {
			if isOfThisKernel(now) { // a service of this kernel begins meanwhile
				return nil
			}
			return errElsewhere
		}
	}
	return err
}

// claimHost makes the entry of a service that begins, after refuseElsewhere. If two begin at once,
// only one can make the file. Where it cannot be made for other reasons, the service serves without
// one, and tries on.
func claimHost(path string, passesLocks bool) (*presence, error) {
	first := rand.Int64N(math.MaxInt64/2) + 1
	p := &presence{path: path + "-host", boot: bootID(), passesLocks: passesLocks,
		first: first, last: first, renewed: time.Now()}
	// What a kill has left behind here, no other kernel takes for its own.
	if entry, err := readMark(p.path); err == nil && isOfBoot(entry, p.boot) {
		if err := os.Remove(p.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	file, err := makeFile(p.path)
	if errors.Is(err, os.ErrExist) {
		return nil, errElsewhere
	}
	if err == nil {
		defer file.Close()
		_ = p.write(file)
	}
	return p, nil
}

// keep renews the entry every second, until leave.
func (p *presence) keep() {
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.renewing.Go(func() {
		ticks := time.NewTicker(time.Second)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
				_ = p.renew(true)
			}
		}
	})
}

// refuse is an errElsewhere if another kernel's service uses the database. Where locks may not be
// passed on, it is another error if one may use it, since the entry was not renewed in time: no
// file can be opened, for instance. A command is not present.
func (p *presence) refuse() error {
	if p == nil {
		return nil
	}
	err := p.renew(false)
	if err != nil && p.passesLocks && !errors.Is(err, errElsewhere) {
		return nil
	}
	return err
}

// renew writes the next entry when that is due. Otherwise it does so only after a pause, in which
// others may have taken the service for ended: that is told by two clocks, since one stops with the
// machine. Another service's entry stays, and is errElsewhere for good. So is it if the own one was
// removed in a pause: that was another kernel's command.
func (p *presence) renew(isDue bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		return errElsewhere
	}
	now := time.Now()
	age := max(now.Sub(p.renewed), now.Round(0).Sub(p.renewed.Round(0)))
	wasPaused := age > hostWatch-time.Second
	if !isDue && !wasPaused {
		return nil
	}
	file, err := openRegular(p.path, os.O_RDWR)
	isGone := errors.Is(err, os.ErrNotExist)
	if err == nil || isGone { // otherwise the entry may be another's by now
		p.renewed = now
	}
	p.lost = isGone && wasPaused && p.last > p.first
	if isGone && !p.lost {
		file, err = makeFile(p.path)
	}
	if err == nil {
		defer file.Close()
		p.lost = !p.isOwn(startOf(file))
	}
	if p.lost {
		return errElsewhere
	}
	if err != nil {
		return err
	}
	return p.write(file)
}

// write writes the next entry over the one before: a count that begins anywhere, and the bootID.
// All have one length.
func (p *presence) write(file *os.File) error {
	p.last++
	_, err := file.WriteAt(fmt.Appendf(nil, "%019d %s\n", p.last, p.boot), 0)
	return err
}

// isOwn reports whether an entry is this service's, or none. A network may show an old one, and a
// power cut may leave anything.
func (p *presence) isOwn(entry string) bool {
	text, _, _ := strings.Cut(entry, " ")
	count, _ := strconv.ParseInt(text, 10, 64) // 0 after an error
	isOurs := isOfBoot(entry, p.boot) && p.first <= count && count <= p.last
	return isOurs || count == 0
}

// isOfBoot reports whether an entry is of the run of a machine with an id. What a hand has left
// behind its first line counts for nothing.
func isOfBoot(entry, boot string) bool {
	line, _, isWhole := strings.Cut(entry, "\n")
	return isWhole && strings.HasSuffix(line, " "+boot)
}

// isOfThisKernel reports whether an entry is of this run of the machine. Where that has no id, none
// is known to be.
func isOfThisKernel(entry string) bool {
	boot := bootID()
	return boot != "" && isOfBoot(entry, boot)
}

// leave removes the entry, unless it is another service's, and ends its renewing.
func (p *presence) leave() {
	if p.stop != nil {
		p.stop()
		p.renewing.Wait()
	}
	if entry, err := readMark(p.path); err == nil && p.isOwn(entry) {
		_ = os.Remove(p.path)
	}
}

// --- Files that are published whole ---

// partialFile is a file that is written as FILE.partial and named FILE once it is whole.
type partialFile struct {
	*os.File
	path    string               // of FILE, absolute
	created os.FileInfo          // tells whether FILE.partial is still this file
	sync    func(*os.File) error // brings a file, or a folder's names, to disk; tests replace it
}

// createFile begins a file. One that exists is refused, be it a link or a device, and so is one
// that has a log beside it: SQLite would apply that to the new file.
func createFile(name string) (*partialFile, error) {
	path := inRealFolder(name)
	for _, suffix := range []string{"", "-wal", "-journal"} {
		if _, err := os.Lstat(path + suffix); err == nil {
			return nil, fmt.Errorf("%s exists, and nothing is overwritten", path+suffix)
		}
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal", "-lock", "-host", "-failed",
		".partial"} {
		if strings.HasSuffix(path, suffix) {
			return nil, fmt.Errorf("a name that ends with %s is that of a file beside a database",
				suffix)
		}
	}
	return createPartial(path)
}

// createPartial makes FILE.partial, which only one program at a time can do. Discard it in the end.
func createPartial(path string) (*partialFile, error) {
	name := path + ".partial"
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s is there: another copy runs, or was stopped; remove it if none "+
			"runs", name)
	}
	if err != nil {
		return nil, err
	}
	created, _ := file.Stat() // after an error it is nil, and isThere finds no such file
	return &partialFile{file, path, created, (*os.File).Sync}, nil
}

// isThere reports whether FILE.partial has not been removed, nor replaced by another copy's.
func (f *partialFile) isThere() bool {
	found, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(f.created, found)
}

// discard removes FILE.partial, unless it is another copy's by now.
func (f *partialFile) discard() {
	if f.isThere() {
		removeOpen(f.File, os.Remove)()
	}
	_ = f.Close() // a second Close has no effect
}

// removeOpen removes a file that is open. Its content stays until end closes it, and a kill leaves
// nothing. Windows removes no open file: there, end removes it once it is closed. remove is
// os.Remove, but in a test.
func removeOpen(file *os.File, remove func(name string) error) (end func()) {
	err := remove(file.Name())
	return func() {
		_ = file.Close()
		if err != nil {
			_ = remove(file.Name())
		}
	}
}

// publish brings a whole file to disk and then names it FILE, unless there is one by now.
func (f *partialFile) publish() error {
	if err := f.sync(f.File); err != nil {
		return err
	}
	if !f.isThere() {
		return fmt.Errorf("%s was removed or replaced", f.Name())
	}
	// Link fails if FILE exists, which renameUnlessThere refuses as well, or if the file system has
	// no links. After a Link the file has two names, and discard removes FILE.partial.
	if os.Link(f.Name(), f.path) != nil {
		if err := f.renameUnlessThere(); err != nil {
			return err
		}
	}
	return syncFolder(filepath.Dir(f.path), f.sync)
}

// renameUnlessThere names the file without a link. An empty file takes the name first, so that the
// rename replaces no file but our own.
func (f *partialFile) renameUnlessThere() error {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_ = file.Close() // nothing was written
	_ = f.Close()    // it is on disk, and Windows renames no open file
	err = os.Rename(f.Name(), f.path)
	if err != nil {
		_ = os.Remove(f.path)
	}
	return err
}

// syncFolder brings the names in a folder to disk, where the system can open folders.
func syncFolder(path string, sync func(*os.File) error) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	return sync(folder)
}
