package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// deleted is what is taken away from under a running service.
type deleted struct {
	suffixes []string // of the database's files
	folder   bool     // it gets another name
}

// TestNothingConfirmedIsLostWithFilesThatWereDeleted deletes each subset of a database's files, or
// renames their folder, under a service on which clients create or not, and stops it, at once or
// later. Afterwards, what was confirmed is in the database, or in the copy that the service names.
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
	for _, d := range cases {
		for _, creates := range []bool{false, true} {
			for _, wait := range []time.Duration{0, 2500 * time.Millisecond} {
				t.Run(fmt.Sprintf("%q %v creates %v %v", d.suffixes, d.folder, creates, wait),
					func(t *testing.T) {
						t.Parallel()
						d.test(t, creates, wait)
					})
			}
		}
	}
}

func (d deleted) test(t *testing.T, creates bool, wait time.Duration) {
	folder := filepath.Join(t.TempDir(), "data")
	noError(t, os.Mkdir(folder, 0o700))
	s := &server{t: t, db: filepath.Join(folder, "petstore.db")}
	s.key = s.newKey(unlimited...)
	s.run(debugFlags...)
	var confirmed sync.Map
	client := newHTTPClient(4)
	create := func(name string) (status int) {
		a, err := s.send(t.Context(), client, "POST", "/pets", animalJSON(name))
		if err != nil {
			return 0
		}
		if a.status == http.StatusCreated {
			confirmed.Store(name, true)
		}
		return a.status
	}
	for i := range 20 {
		create(fmt.Sprint("first ", i))
	}
	stop := make(chan bool)
	var creating sync.WaitGroup
	for c := range 3 {
		if !creates {
			break
		}
		creating.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					create(fmt.Sprint("more ", c, " ", i))
				}
			}
		})
	}
	if creates {
		time.Sleep(200 * time.Millisecond)
	}
	for _, suffix := range d.suffixes {
		noError(t, os.Remove(s.db+suffix))
	}
	if d.folder {
		noError(t, os.Rename(folder, folder+".old"))
	}
	time.Sleep(wait)
	lost := len(d.suffixes) > 0 && d.suffixes[0] == ""
	if lost && wait > 0 {
		status, why := s.readiness()
		if status != http.StatusServiceUnavailable || !strings.Contains(why, ".saved") {
			t.Errorf("/readyz is %d and names no copy: %s", status, why)
		}
	}
	noError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	_ = s.cmd.Wait()
	close(stop)
	creating.Wait()
	if status := s.cmd.ProcessState.ExitCode(); lost && status != 1 {
		t.Errorf("it ends with %d", status)
	}
	d.check(t, s, folder, &confirmed)
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
func (d deleted) check(t *testing.T, s *server, folder string, confirmed *sync.Map) {
	t.Helper()
	db := s.db
	if d.folder {
		db = filepath.Join(folder+".old", "petstore.db")
	}
	saved, err := filepath.Glob(s.db + ".*.saved")
	noError(t, err)
	if len(saved) > 0 {
		if info, err := os.Stat(saved[0]); err != nil || info.Mode().Perm() != 0o600 || len(saved) > 1 {
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
	for name := range confirmed.Range {
		if !strings.Contains(have, fmt.Sprintf("%q", name)) {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("%d pets are missing that were confirmed:\n%s", missing, tail(s.log.String()))
	}
}
