package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
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
	line := strings.TrimSuffix(p.log.String(), "\n")
	if p.status() <= 0 || strings.Contains(line, "\n") || !regexp.MustCompile(`(?i)stopp|interrupt|terminat|signal|cancel`).MatchString(line) {
		p.t.Errorf("after %v: %s; want a status above 0 and one line that says so", signal, p.told())
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
	for _, args := range [][]string{{"create"}, {"set", "-plan", "pro", k.id}, {"rotate", k.id}, {"unban", k.id}, {"revoke", k.id}} {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(fmt.Sprintf("%s, %v", args[0], signal), func(t *testing.T) {
				before := s.command("key", "list", "-db", s.db)
				unlock := lock(t, s.db)
				p := launch(t, program(slices.Concat([]string{"key", args[0], "-db", s.db}, args[1:])...))
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
	database(t, s.db, `WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 60000)
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
			begun = begun || err == nil && !known && info.Mode().IsRegular() && info.Size() >= 64<<10
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
			t.Run(strings.TrimSpace(fmt.Sprintf("%s %v %s", c.verb, signal, c.older)), func(t *testing.T) {
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
					delete(after, "target.db") // where there was no database, an empty file may be left
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
	if keys, pets := numberIn(t, s.db, "SELECT count(*) FROM api_keys"), numberIn(t, s.db, "SELECT count(*) FROM pets"); keys != 1 || pets != 0 {
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
	if after := files(t, folder); before[filepath.Base(target)+".partial"] == "" || !maps.Equal(before, after) {
		t.Errorf("a kill leaves %d files, and the next backup %d, or others", len(before), len(after))
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
