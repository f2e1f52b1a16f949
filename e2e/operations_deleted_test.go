package e2e

// Proven here alone: whichever files are deleted under a running service, what was confirmed is in
// them or in the copy that it saves.

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"petstore/e2e/planted"
)

// deleted is what is taken away from under a running service.
type deleted struct {
	suffixes []string // of the database's files
	folder   bool     // it gets another name
}

// TestNothingConfirmedIsLostWithFilesThatWereDeleted deletes each subset of a database's files, or
// renames their folder, under a service on which clients create or not, and stops it, at once or
// later, which is drawn. Afterwards, what was confirmed is in the database, or in the copy that the
// service names.
func TestNothingConfirmedIsLostWithFilesThatWereDeleted(t *testing.T) {
	t.Parallel()
	all := []string{"", "-wal", "-shm", "-lock"}
	cases := []deleted{{folder: true}}
	for subset := 1; subset < 1<<len(all); subset++ {
		var d deleted
		for i, suffix := range all {
			if subset&(1<<i) != 0 {
				d.suffixes = append(d.suffixes, suffix)
			}
		}
		cases = append(cases, d)
	}
	variants := []variant{{false, 0}, {true, 0}, {false, aWhile}, {true, aWhile}}
	for _, d := range cases {
		name := fmt.Sprintf("%q %v", d.suffixes, d.folder)
		for _, v := range planted.Some(t.Name()+name, 1, variants) {
			t.Run(fmt.Sprintf("%s creates %v %v", name, v.creates, v.wait), func(t *testing.T) {
				t.Parallel()
				d.test(t, v)
			})
		}
	}
}

// variant is what else there is to a loss.
type variant struct {
	creates bool          // clients create meanwhile
	wait    time.Duration // before the stop
}

const aWhile = 2500 * time.Millisecond // in which the service notices, and saves a copy

func (d deleted) test(t *testing.T, v variant) {
	folder := filepath.Join(t.TempDir(), "data")
	noError(t, os.Mkdir(folder, 0o700))
	s := &server{t: t, db: filepath.Join(folder, "petstore.db")}
	s.key = s.newKey(unlimited...)
	s.run(debugFlags...)
	load := startLoad(s, 0)
	for i := range 20 {
		load.create(fmt.Sprint("first ", i))
	}
	if v.creates {
		load.begin(3)
		time.Sleep(200 * time.Millisecond)
	}
	for _, suffix := range d.suffixes {
		noError(t, os.Remove(s.db+suffix))
	}
	if d.folder {
		noError(t, os.Rename(folder, folder+".old"))
	}
	time.Sleep(v.wait)
	lost := len(d.suffixes) > 0 && d.suffixes[0] == ""
	if lost && v.wait > 0 {
		status, why := s.readiness()
		if status != http.StatusServiceUnavailable || !strings.Contains(why, ".saved") {
			t.Errorf("/readyz is %d and names no copy: %s", status, why)
		}
	}
	noError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	_ = s.cmd.Wait()
	load.end()
	if status := s.cmd.ProcessState.ExitCode(); lost && status != 1 {
		t.Errorf("it ends with %d", status)
	}
	d.check(t, s, folder, load.answered)
}

// readiness is /readyz at the debug address.
func (s *server) readiness() (status int, why string) {
	s.t.Helper()
	res, err := http.Get(s.debug + "/readyz")
	noError(s.t, err)
	a, err := readAnswer(res)
	noError(s.t, err)
	return a.status, a.body
}

// check looks for what was confirmed where an operator would.
func (d deleted) check(t *testing.T, s *server, folder string,
	confirmed []acknowledged) {
	t.Helper()
	db := s.db
	if d.folder {
		db = filepath.Join(folder+".old", "petstore.db")
	}
	saved, err := filepath.Glob(s.db + ".*.saved")
	noError(t, err)
	if len(saved) > 0 {
		info, err := os.Stat(saved[0])
		noError(t, err)
		if info.Mode().Perm() != 0o600 || len(saved) > 1 {
			t.Errorf("there are %q, the first with %v", saved, info.Mode())
		}
		db = filepath.Join(t.TempDir(), "restored.db")
		s.command("restore", "-db", db, saved[0])
	}
	left, err := filepath.Glob(s.db + "*.partial*")
	noError(t, err)
	if len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	checkIntegrity(t, db)
	have := s.command("pet", "export", "-db", db)
	missing := 0
	for _, a := range confirmed {
		if !strings.Contains(have, fmt.Sprintf("%q", a.name)) {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("%d pets are missing that were confirmed:\n%s", missing, tail(s.log.String()))
	}
}
