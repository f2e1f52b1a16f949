package main

// Files: what may be opened, who owns what is made, and files that are published whole. No file that
// exists is ever overwritten: one is written as FILE.partial, which must not be there before, and
// gets its name once it is whole.

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// ensureFile makes a file that is to be written unless it is there, and returns its realPath. One
// that isMarkedFailed is refused. The error is the operating system's if the file cannot be written:
// SQLite's would not say why. Call it before SQLite has the file open, since closing a file ends the
// locks that the process has on it.
func ensureFile(path string) (string, error) {
	if err := refuseIrregular(path); err != nil {
		return "", err
	}
	// Before an empty file is made:
	if err := refuseFailed(followLinks(path)); err != nil {
		return "", err
	}
	if isMissing(path) && hasLog(followLinks(path)) {
		return "", errOrphanedLog
	}
	// Only what this process has surely made is given away. O_EXCL tells, and follows no link.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		giveToFolder(f)
	}
	if errors.Is(err, os.ErrExist) {
		// A file is there, or a link. Where a link leads to nothing, O_CREATE makes the file.
		flags := os.O_RDWR | os.O_CREATE
		if _, _, isOther := folderOwner(path); isOther {
			flags = os.O_RDWR // who owns the folder must not choose where root makes a file
		}
		f, err = os.OpenFile(path, flags, 0o600)
	}
	if err != nil {
		return "", err
	}
	_ = f.Close() // nothing was written
	return realPath(path)
}

// giveToFolder gives a file that this process has made to the owner of its folder if root runs
// this. Otherwise a service that runs as that owner could not open it. SQLite gives the log and its
// index to the owner of the database in the same way, and an error does not matter to it either.
func giveToFolder(made *os.File) {
	if uid, gid, isOther := folderOwner(made.Name()); isOther {
		_ = made.Chown(uid, gid)
	}
}

// folderOwner returns the owner and the group of a file's folder, and whether root runs this in a
// folder of somebody else's.
func folderOwner(path string) (uid, gid int, isOther bool) {
	if os.Geteuid() != 0 { // -1 on Windows
		return 0, 0, false
	}
	folder, err := os.Stat(filepath.Dir(path))
	if err != nil {
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

// realPath is the absolute path of a file that is there, with symbolic links resolved.
func realPath(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// followLinks returns where a path leads, also if nothing is there.
func followLinks(path string) string {
	for range 40 { // as many as Linux follows
		target, err := os.Readlink(path)
		if err != nil {
			break // it is no link
		}
		if !filepath.IsAbs(target) {
			// A .. in the target is that of the real folder.
			folder, err := filepath.EvalSymlinks(filepath.Dir(path))
			if err != nil {
				break
			}
			target = filepath.Join(folder, target)
		}
		path = target
	}
	return path
}

var errOrphanedLog = errors.New("it is missing or empty, but its -wal is there; " +
	"put the file back, or move the -wal away")

func isMissing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}

// hasLog reports whether anything is in the log beside a database.
func hasLog(path string) bool {
	log, err := os.Stat(path + "-wal")
	return err == nil && log.Size() > 0
}

// bootID is what Linux calls this run of the machine, a random id. It is "" where none can be read.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // empty after an error
	return strings.TrimSpace(string(id))
}

// isMarkedFailed reports whether F-failed marks a database: a sync of its files has failed in this
// run of the machine. It does so, too, where the ids of two runs cannot be compared: a full disk may
// have left the mark empty. path is a realPath. A command that only reads goes on: see readMode.
func isMarkedFailed(path string) bool {
	path += "-failed"
	if isMissing(path) {
		return false
	}
	if refuseIrregular(path) != nil {
		return true // and reading a pipe might block for ever
	}
	mark, _ := os.ReadFile(path) // what cannot be read cannot be compared
	now := bootID()
	return now == "" || len(mark) != len(now) || string(mark) == now
}

// refuseFailed refuses a database that isMarkedFailed. The mark of another run of the machine is
// removed: its file systems were mounted anew since.
func refuseFailed(path string) error {
	if !isMarkedFailed(path) {
		_ = os.Remove(path + "-failed") // mostly there is none
		return nil
	}
	return fmt.Errorf("a sync of its files has failed, so that what was stored may be in memory "+
		"alone: copy it to another disk with petstore backup, unmount its file system and mount "+
		"it again, and then delete %s-failed", path)
}

// onReadOnlyDisk reports whether no file can be made beside a file because its disk is read-only.
func onReadOnlyDisk(path string) bool {
	probe, err := os.CreateTemp(filepath.Dir(path), "petstore-")
	if err == nil {
		removeOpen(probe, os.Remove)()
	}
	return errors.Is(err, syscall.EROFS)
}

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
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	for _, suffix := range []string{"", "-wal", "-journal"} {
		if _, err := os.Lstat(path + suffix); err == nil {
			return nil, fmt.Errorf("%s exists, and nothing is overwritten", path+suffix)
		}
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal", "-lock", "-failed", ".partial"} {
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
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s is there: another copy runs, or was stopped; remove it", name)
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
