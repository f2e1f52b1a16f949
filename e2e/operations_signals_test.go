package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// atOnce is how long a command may take to end after a signal: it promises half
// a second, and the rest is for a busy machine.
const atOnce = time.Second

// stops sends a signal to a command, which must end at once, with a status that
// is not 0 and a line that says why. It reports whether the command has ended.
func (p *process) stops(signal os.Signal) bool {
	p.t.Helper()
	noError(p.t, p.cmd.Process.Signal(signal))
	if !p.within(atOnce) {
		p.t.Errorf("%v after %v %s still runs", atOnce, signal, p)
		return false
	}
	// it may see the end of a thread before its beginning
	ofTracer := regexp.MustCompile(`(?m)^strace: .*\n`)
	line := strings.TrimSuffix(ofTracer.ReplaceAllString(p.log.String(), ""), "\n")
	if p.status() <= 0 || strings.Contains(line, "\n") ||
		!regexp.MustCompile(`(?i)stopp|interrupt|terminat|signal|cancel`).MatchString(line) {
		p.t.Errorf("after %v: %s; want a status above 0 and one line that says so", signal,
			p.told())
	}
	return true
}

// waitsForLock returns once a command has the database open, whose lock it
// cannot get.
func (p *process) waitsForLock(db string) {
	p.t.Helper()
	eventually(p.t, longEnough, func() error {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
		if p.within(0) || slices.ContainsFunc(links, func(link string) bool {
			file, _ := os.Readlink(link) // one that was closed meanwhile is another
			return file == db+"-shm"
		}) {
			return nil
		}
		return fmt.Errorf("%s does not open %s", p, db)
	})
}

// TestASignalStopsACommandThatWaitsForALock stops commands that can do nothing
// while another process holds the write lock. What they were asked for is not
// done then, and not later when the lock is gone.
func TestASignalStopsACommandThatWaitsForALock(t *testing.T) {
	s := start(t)
	k := s.keyOf("3")
	s.ban(t, k)
	s.stop()
	for _, args := range [][]string{{"create"}, {"set", "-plan", "pro", k.id}, {"rotate", k.id},
		{"unban", k.id}, {"revoke", k.id}} {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(fmt.Sprintf("%s, %v", args[0], signal), func(t *testing.T) {
				before := s.command("key", "list", "-db", s.db)
				unlock := lock(t, s.db)
				p := launch(t, program(slices.Concat([]string{"key", args[0], "-db", s.db},
					args[1:])...))
				p.waitsForLock(s.db)
				p.stops(signal)
				unlock()
				if status := p.status(); status == 0 {
					t.Errorf("once the lock is gone: %s", p.told())
				}
				if after := s.command("key", "list", "-db", s.db); after != before {
					t.Errorf("%s was stopped, and has changed the keys to\n%s", p, after)
				}
			})
		}
	}
}

// bulky is a database that takes a slowed command some seconds to copy. It has
// one key, and pets by the thousand.
func bulky(t *testing.T) (db string) {
	t.Helper()
	s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
	s.newKey()
	database(t, s.db,
		`WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 60000)
		INSERT INTO pets (category_id, status, name) SELECT 1, 2, printf('%0180d', i) FROM n`).Close()
	return s.db
}

// copying are the calls with which a file is copied and brought to disk.
const copying = writeCalls + ",write,copy_file_range,sendfile," + syncCalls

// launchSlowly starts a command that copies slowly, and returns once it has
// written the beginning of a file that was not in the folder before.
func launchSlowly(t *testing.T, folder string, args ...string) *process {
	t.Helper()
	before := files(t, folder)
	p := launch(t, slowDown(program(args...), copying))
	eventually(t, longEnough, func() error {
		begun := false
		_ = filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // it has gone meanwhile
			}
			info, err := entry.Info()
			_, known := before[entry.Name()]
			begun = begun || err == nil && !known && info.Mode().IsRegular() &&
				info.Size() >= 64<<10
			return nil
		})
		if begun {
			return nil
		}
		if p.within(0) {
			t.Fatalf("it ends before it could be stopped: %s", p.told())
		}
		return errors.New("the copy has not begun")
	})
	return p
}

// TestASignalStopsACopyAndLeavesNothing stops a backup, and a restore, in the
// middle of the copy: what was there before stays as it was, and nothing new is left but
// empty files.
func TestASignalStopsACopyAndLeavesNothing(t *testing.T) {
	source := bulky(t)
	for _, c := range []struct{ verb, older string }{
		{"backup", ""},
		{"restore", ""},
		{"restore", "an older database"},
	} {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(strings.TrimSpace(fmt.Sprintf("%s %v %s", c.verb, signal, c.older)),
				func(t *testing.T) {
					folder := t.TempDir()
					target := filepath.Join(folder, "target.db")
					args := []string{c.verb, "-db", source, target}
					if c.verb == "restore" {
						args = []string{c.verb, "-db", target, source}
					}
					if c.older != "" {
						(&server{t: t, db: target}).newKey()
					}
					before := files(t, folder)
					p := launchSlowly(t, folder, args...)
					if !p.stops(signal) {
						return
					}
					after := files(t, folder)
					delete(after, "target.db-lock") // an empty file, which keeps services out
					if c.older == "" && after["target.db"] == "" {
						// where there was no database, an empty file may be left
						delete(after, "target.db")
					}
					for name := range after {
						if before[name] != after[name] {
							t.Errorf("%s, stopped by %v, leaves or changes %s", p, signal, name)
						}
					}
					if len(after) != len(before) {
						t.Errorf("of %d files %d are left", len(before), len(after))
					}
				})
		}
	}
}

// TestASignalStopsARestoreWhileItWrites into the database: the old one is whole
// and in its place, and beside it is nothing but the copy that was kept of it.
func TestASignalStopsARestoreWhileItWrites(t *testing.T) {
	source := bulky(t)
	s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
	s.newKey()
	p := launch(t, slowDown(program("restore", "-db", s.db, source), copying, "-P", s.db+"-wal"))
	eventually(t, longEnough, func() error {
		if log, err := os.Stat(s.db + "-wal"); err != nil || log.Size() < 64<<10 {
			return errors.New("nothing is written yet")
		}
		return nil
	})
	if !p.stops(syscall.SIGTERM) {
		return
	}
	if keys, pets := numberIn(t, s.db, "SELECT count(*) FROM api_keys"), numberIn(t, s.db,
		"SELECT count(*) FROM pets"); keys != 1 || pets != 0 {
		t.Errorf("the database holds %d keys and %d pets", keys, pets)
	}
	checkIntegrity(t, s.db)
	kept, err := filepath.Glob(s.db + ".*.old")
	noError(t, err)
	for _, file := range kept {
		if keys := numberIn(t, file, "SELECT count(*) FROM api_keys"); keys != 1 {
			t.Errorf("the copy that is kept holds %d keys", keys)
		}
		noError(t, os.Remove(file))
	}
	left, err := filepath.Glob(s.db + "*")
	noError(t, err)
	if len(kept) != 1 || !slices.Equal(left, []string{s.db, s.db + "-lock"}) {
		t.Errorf("%q are kept and %q left", kept, left)
	}
}

// TestWhatAKillLeavesOfABackupIsNotTouched, nor is a backup that still runs:
// the operator is told what to remove.
func TestWhatAKillLeavesOfABackupIsNotTouched(t *testing.T) {
	source, folder := bulky(t), t.TempDir()
	target := filepath.Join(folder, "copy.db")
	args := []string{"backup", "-db", source, target}
	told := target + ".partial is there: another copy runs, or was stopped; remove it"
	killed := launchSlowly(t, folder, args...)
	noError(t, killed.cmd.Process.Kill())
	killed.status()
	before := files(t, folder)
	fails(t, program(args...), told)
	if after := files(t, folder); before[filepath.Base(target)+".partial"] == "" ||
		!maps.Equal(before, after) {
		t.Errorf("a kill leaves %d files, and the next backup %d, or others", len(before),
			len(after))
	}
	noError(t, os.Remove(target+".partial"))
	running := launchSlowly(t, folder, args...)
	fails(t, program(args...), told)
	if running.within(0) {
		t.Fatalf("the slow backup has ended too soon: %s", running.told())
	}
	running.stops(syscall.SIGTERM)
	succeeds(t, program(args...))
	succeeds(t, program("key", "list", "-db", target))
	for name := range files(t, folder) {
		if strings.Contains(name, ".partial") {
			t.Errorf("%s is left", name)
		}
	}
}

// fullPipe is a pipe that takes nothing more, and that nobody reads.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	var ends [2]int
	noError(t, syscall.Pipe2(ends[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK))
	reader, writer := os.NewFile(uintptr(ends[0]), "reader"), os.NewFile(uintptr(ends[1]), "writer")
	t.Cleanup(func() {
		reader.Close()
		writer.Close()
	})
	for err := error(nil); !errors.Is(err, syscall.EAGAIN); {
		_, err = syscall.Write(ends[1], make([]byte, 4096))
	}
	noError(t, syscall.SetNonblock(ends[1], false))
	return writer
}

// hangs returns once a thread of a command is in a system call, as /proc shows it.
func (p *process) hangs(call string) {
	p.t.Helper()
	eventually(p.t, longEnough, func() error {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", p.cmd.Process.Pid))
		for _, thread := range threads {
			if now, _ := os.ReadFile(thread); strings.HasPrefix(string(now), call) {
				return nil
			}
		}
		if p.within(0) {
			p.t.Fatalf("it ends before it could be stopped: %s", p.told())
		}
		return fmt.Errorf("%s does not hang", p)
	})
}

// TestASignalStopsWhatNobodyTakes stops commands, and a first start, whose stdout
// is a full pipe. They leave no key that was not shown.
func TestASignalStopsWhatNobodyTakes(t *testing.T) {
	pets := filepath.Join(t.TempDir(), "pets.jsonl")
	noError(t, os.WriteFile(pets, []byte(rex), 0o600))
	for _, c := range []struct {
		line string
		keys int // before
	}{
		{"key list", 1},
		{"key usage", 1},
		{"key create", 1},
		{"key create", 0},
		{"key rotate 1", 1},
		{"help", 1},
		{"pet export -", 1},
		{"-addr 127.0.0.1:0", 0}, // the first start
	} {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(fmt.Sprintf("%s, %d keys, %v", c.line, c.keys, signal), func(t *testing.T) {
				s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
				before := "[]\n"
				if c.keys > 0 {
					s.newKey()
					s.command("pet", "import", "-db", s.db, pets)
					before = s.command("key", "list", "-json", "-db", s.db)
				}
				cmd := program(strings.Fields(c.line)...)
				cmd.Env = append(cmd.Env, "PETSTORE_DB="+s.db)
				cmd.Stdout = fullPipe(t)
				p := launch(t, cmd)
				p.hangs(fmt.Sprintf("%d 0x1 ", syscall.SYS_WRITE))
				p.stops(signal)
				if after := s.command("key", "list", "-json", "-db", s.db); after != before {
					t.Errorf("the keys were\n%s\nand are\n%s", before, after)
				}
			})
		}
	}
}

// TestASignalStopsWhatSaysItToNobody: stderr is the same full pipe.
func TestASignalStopsWhatSaysItToNobody(t *testing.T) {
	cmd := program("help")
	cmd.Stdout = fullPipe(t)
	cmd.Stderr = cmd.Stdout
	noError(t, cmd.Start())
	ended := make(chan struct{})
	p := &process{t: t, cmd: cmd, ended: ended}
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	p.hangs(fmt.Sprintf("%d 0x1 ", syscall.SYS_WRITE))
	noError(t, cmd.Process.Signal(syscall.SIGTERM))
	if !p.within(atOnce) || p.status() != 1 {
		_ = cmd.Process.Kill()
		t.Errorf("%v after the signal: %s", atOnce, p.told())
	}
}

// TestAPipeIsImportedAndNothingElse gives commands named pipes in the place of files. An
// import waits for one, and ends at a signal; whatever else is to be read is refused at once.
func TestAPipeIsImportedAndNothingElse(t *testing.T) {
	folder := t.TempDir()
	s := &server{t: t, db: filepath.Join(folder, "petstore.db")}
	s.newKey()
	pipe, link := filepath.Join(folder, "pipe"), filepath.Join(folder, "link")
	certificate := filepath.Join(folder, "certificate.pem")
	noError(t, syscall.Mkfifo(pipe, 0o600))
	noError(t, os.Symlink(pipe, link))
	writeCertificate(t, certificate)
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		p := launch(t, program("pet", "import", "-db", s.db, link))
		p.hangs(fmt.Sprintf("%d ", syscall.SYS_OPENAT))
		p.stops(signal)
	}
	paste := exec.Command("bash", "-c", `"$0" pet import -db "$1" <(echo "$2")`, binary, s.db, rex)
	out, err := paste.CombinedOutput()
	if err != nil || numberIn(t, s.db, "SELECT count(*) FROM pets") != 1 {
		t.Errorf("from a pipe it imports %s, %v", out, err)
	}
	for _, args := range [][]string{
		{"restore", "-db", s.db, link},
		{"restore", "-db", link, s.db},
		{"key", "list", "-db", link},
		{"-addr", "127.0.0.1:0", "-db", link},
		{"-addr", "127.0.0.1:0", "-db", s.db, "-tls-cert", link, "-tls-key", certificate},
		{"-addr", "127.0.0.1:0", "-db", s.db, "-tls-cert", certificate, "-tls-key", link},
	} {
		fails(t, program(args...), link, "no regular file")
	}
}
