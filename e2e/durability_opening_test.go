package e2e

// Proven here alone: what can still be read of a disk that is read-only, or was made so by ext4,
// and that a file that is mounted by itself is refused.

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// readingLines are the commands that only read, on the first key and the first pet.
// FOLDER is where they may write.
var readingLines = []string{
	"key list", "key show 1", "key usage", "pet show 1", "pet export",
	"pet export FOLDER/pets.jsonl", "backup FOLDER/copy.db",
}

// readAll runs the commands that only read on a database with a number of pets.
func readAll(t *testing.T, db string, pets int) {
	t.Helper()
	folder := t.TempDir()
	s := &server{t: t, db: db}
	for _, line := range readingLines {
		args := strings.Fields(strings.Replace(line, "FOLDER", folder, 1))
		out := s.command(append(args, "-db", db)...)
		if line == "pet export" && strings.Count(out, "\n") != pets {
			t.Errorf("of %d pets are exported\n%s", pets, out)
		}
	}
	copied := filepath.Join(folder, "copy.db")
	if n := query[int](t, copied, "SELECT count(*) FROM pets"); n != pets {
		t.Errorf("the copy has %d pets in place of %d", n, pets)
	}
}

// TestADiskThatIsReadOnlyCanBeCopiedFrom, beside a service, whose log holds what is not
// in the file, and without one. No command shows what the file alone holds.
func TestADiskThatIsReadOnlyCanBeCopiedFrom(t *testing.T) {
	t.Parallel()
	disk, same := t.TempDir(), t.TempDir()
	mount(t, disk, "size=64m")
	s := &server{t: t, db: filepath.Join(disk, "petstore.db")}
	s.key = s.newKey(unlimited...)
	s.run()
	for range 3 {
		s.addPet(rex)
	}
	tool(t, "mount", "--bind", disk, same)
	t.Cleanup(func() { tool(t, "umount", "-l", same) })
	tool(t, "mount", "-o", "remount,bind,ro", same)
	readAll(t, filepath.Join(same, "petstore.db"), 3)

	// The file system can still be written to at the other mount.
	closed := filepath.Join(same, "closed.db")
	s.command("restore", "-db", filepath.Join(disk, "closed.db"), s.copyTo(t))
	fails(t, program("key", "list", "-db", closed), "mounted read-only here, and others may write")

	s.kill()
	tool(t, "mount", "-o", "remount,ro", disk)
	readAll(t, s.db, 3)
	readAll(t, closed, 3)
	fails(t, program("key", "create", "-db", s.db), "read-only file system")

	tool(t, "mount", "-o", "remount,rw", disk)
	noError(t, os.Remove(s.db+"-shm"))
	tool(t, "mount", "-o", "remount,ro", disk)
	for _, line := range readingLines {
		args := strings.Fields(strings.Replace(line, "FOLDER", t.TempDir(), 1))
		fails(t, program(append(args, "-db", s.db)...),
			"copy the file and its -wal together to another disk, and use that copy")
	}
	elsewhere := filepath.Join(t.TempDir(), "petstore.db")
	tool(t, "cp", s.db, elsewhere)
	tool(t, "cp", s.db+"-wal", elsewhere+"-wal")
	readAll(t, elsewhere, 3)
}

// copyTo makes a backup in a new folder.
func (s *server) copyTo(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "copy.db")
	s.command("backup", "-db", s.db, file)
	return file
}

// TestADiskThatExt4HasMadeReadOnlyCanBeCopiedFrom after it has failed.
func TestADiskThatExt4HasMadeReadOnlyCanBeCopiedFrom(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("there is no loop device: ", err)
	}
	image, disk := filepath.Join(t.TempDir(), "image"), t.TempDir()
	noError(t, os.WriteFile(image, nil, 0o600))
	noError(t, os.Truncate(image, 64<<20))
	tool(t, "mkfs.ext4", "-q", image)
	tool(t, "mount", "-o", "loop,errors=remount-ro", image, disk)
	t.Cleanup(func() { tool(t, "umount", "-l", disk) })
	for _, name := range []string{"closed.db", "petstore.db"} {
		s := &server{t: t, db: filepath.Join(disk, name)}
		s.key = s.newKey(unlimited...)
		s.run()
		s.addPet(rex)
		if name == "closed.db" {
			s.stop()
			continue
		}
		tool(t, "sync", "-f", disk)
		tool(t, "mount", "-o", "remount,abort", disk)
		readAll(t, s.db, 1)
		s.kill()
		readAll(t, s.db, 1)
	}
	readAll(t, filepath.Join(disk, "closed.db"), 1)
}

// TestADatabaseThatIsMountedByItselfIsNotServed: its log would lie in another folder than
// that of the file. A copy that is mounted so can be restored from.
func TestADatabaseThatIsMountedByItselfIsNotServed(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.addPet(rex)
	copied, other := s.copyTo(t), s.copyTo(t)
	s.stop()
	for _, file := range []string{s.db, copied} {
		alone := filepath.Join(t.TempDir(), "alone.db")
		noError(t, os.WriteFile(alone, nil, 0o600))
		tool(t, "mount", "--bind", file, alone)
		t.Cleanup(func() { tool(t, "umount", "-l", alone) })
		for _, line := range []string{"serve -addr 127.0.0.1:0", "key create", "pet set -name x 1",
			"restore " + other} {
			fails(t, program(append(strings.Fields(line), "-db", alone)...),
				"it is mounted by itself", "mount its folder in its place")
		}
		readAll(t, alone, 1)
		if file == copied {
			s.command("restore", "-db", filepath.Join(t.TempDir(), "petstore.db"), alone)
		}
	}
}

// TestWhatCannotBeOpenedSaysWhyAndIsOpenedLater: a new database lacks descriptors, then inodes, a
// few at first and then one more each time, until it can be made.
func TestWhatCannotBeOpenedSaysWhyAndIsOpenedLater(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"key create", "serve -addr 127.0.0.1:0"} {
		t.Run(line+", descriptors", func(t *testing.T) {
			t.Parallel()
			wantReason(t, 12, "too many open files", func(n int) *exec.Cmd {
				db := filepath.Join(t.TempDir(), "petstore.db")
				cmd := program(append(strings.Fields(line), "-db", db)...)
				limit := fmt.Sprintf("--nofile=%d:%[1]d", n)
				limited := exec.Command("prlimit", append([]string{limit}, cmd.Args...)...)
				limited.Env = cmd.Env
				limited.Dir = filepath.Dir(db)
				return limited
			})
		})
		t.Run(line+", inodes", func(t *testing.T) {
			t.Parallel()
			wantReason(t, 1, "no space left on device", func(n int) *exec.Cmd {
				folder := t.TempDir()
				mount(t, folder, fmt.Sprint("size=16m,nr_inodes=", n))
				db := filepath.Join(folder, "petstore.db")
				cmd := program(append(strings.Fields(line), "-db", db)...)
				cmd.Dir = folder
				return cmd
			})
		})
	}
}

// wantReason runs a command in an empty folder with more and more of something, from so much on,
// until it succeeds. Before that, it must tell the system's own reason, and what it leaves must not
// be in the way of the next command. (It removes nothing: another program may use that by now.)
func wantReason(t *testing.T, least int, reason string, limited func(n int) *exec.Cmd) {
	t.Helper()
	for n := least; n < least+40; n++ {
		p := launch(t, limited(n))
		serves := false
		eventually(t, longEnough, func() error {
			serves = strings.Contains(p.log.String(), `"msg":"ready"`)
			if !serves && !p.within(time.Millisecond) {
				return fmt.Errorf("with %d it neither serves nor ends: %s", n, &p.log)
			}
			return nil
		})
		if serves || p.status() == 0 {
			if n == least {
				t.Errorf("%d are enough", n)
			}
			t.Logf("with %d: %s", n, p.told())
			return
		}
		line := strings.TrimSuffix(p.log.String(), "\n")
		if p.status() != 1 || strings.Contains(line, "\n") || !strings.Contains(line, reason) {
			t.Errorf("with %d: %s; want one line with %q", n, p.told(), reason)
		}
		left, later := files(t, p.cmd.Dir), t.TempDir()
		for name, content := range left {
			noError(t, os.WriteFile(filepath.Join(later, name), []byte(content), 0o600))
		}
		next := launch(t, program("key", "create", "-db", filepath.Join(later, "petstore.db")))
		if !next.within(longEnough) || next.status() != 0 {
			t.Errorf("after %d, with %q: %s", n, slices.Collect(maps.Keys(left)), next.told())
		}
	}
	t.Errorf("with %d more it still fails", 40)
}
