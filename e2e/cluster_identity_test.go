package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAServiceShowsAndChangesNoOtherDatabase on nodes of two clusters, and while the nodes
// are replaced and a copy is restored.
func TestAServiceShowsAndChangesNoOtherDatabase(t *testing.T) {
	t.Parallel()
	one, other := startCluster(t), startCluster(t)
	ofOther := other.serve(behindProxy...)
	ofOther.key = ofOther.newKey(unlimited...)
	for range 3 {
		_, err := createNamed(callers, ofOther, "of the other cluster")
		noError(t, err)
	}
	eventually(t, longEnough, func() error {
		if other.number("SELECT count(*) FROM usage") == 0 {
			return errors.New("its service has not written its usage yet")
		}
		return nil
	})
	t.Run("two clusters in one list", func(t *testing.T) { meetsOtherCluster(t, one, other) })
	t.Run("a copy that is restored", func(t *testing.T) { meetsRestoredCopy(t, other, ofOther) })
}

// stopsForGood wants a service to have met another database: it answers 503 and goes on
// with nothing, and a stop is not held up by what cannot be written any more.
func stopsForGood(t *testing.T, s *server, meanwhile func()) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		if got := s.ask(t, s.key); got != "503 unavailable" {
			return fmt.Errorf("a list is %s", got)
		}
		return nil
	})
	meanwhile()
	for range 20 {
		s.expect(t, s.key, "503 unavailable")
		if id, err := createNamed(callers, s, "late"); err == nil {
			t.Errorf("a pet is created, as %d", id)
		}
		time.Sleep(100 * time.Millisecond)
	}
	response, err := http.Get(s.address() + "/readyz")
	noError(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/readyz is %s", response.Status)
	}
	if n := strings.Count(s.log.String(), "stopped for good"); n != 1 {
		t.Errorf("the log says so %d times:\n%s", n, tail(s.log.String()))
	}
	noError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	began := time.Now()
	if err := s.cmd.Wait(); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("the stop takes %v and says %v", time.Since(began), err)
	}
}

// meetsOtherCluster lets the leader of one cluster die under a service that knows nodes of
// another, which did not respond when it started.
func meetsOtherCluster(t *testing.T, one, other *cluster) {
	for i := range other.nodes {
		other.pause(i)
	}
	s := &server{t: t, db: one.addresses() + "," + other.addresses()}
	s.key = s.newKey(unlimited...)
	s.run(behindProxy...)
	for want := int64(1); want <= 3; want++ {
		id, err := createNamed(callers, s, "of this cluster")
		noError(t, err)
		if id != want {
			t.Errorf("pet %d is %d", want, id)
		}
	}
	for i := range other.nodes {
		other.resume(i)
	}
	other.leader()
	content := func() (counts []int) {
		for _, table := range []string{"pets", "api_keys", "usage"} {
			counts = append(counts, other.number("SELECT count(*) FROM "+table))
		}
		return counts
	}
	before := fmt.Sprint(content())
	fails(t, program("key", "list", "-db", s.db), "is another than that of")
	dead := one.leader()
	one.kill(dead)
	stopsForGood(t, s, func() { one.restart(dead) })
	if after := fmt.Sprint(content()); after != before {
		t.Errorf("the other cluster held %s and holds %s", before, after)
	}
	fails(t, program("-addr", "127.0.0.1:0", "-db", s.db), "is another than that of")
	s.db = one.addresses()
	s.run(behindProxy...)
	if id, err := createNamed(callers, s, "after a restart"); err != nil || id != 4 {
		t.Errorf("the next pet is %d, %v", id, err)
	}
	s.stop()
}

// meetsRestoredCopy restores a copy of what a service serves while the service is frozen.
func meetsRestoredCopy(t *testing.T, c *cluster, s *server) {
	copied := filepath.Join(t.TempDir(), "copy.db")
	succeeds(t, program("backup", "-db", c.addresses(), copied))
	noError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	c.clear()
	succeeds(t, program("restore", "-db", c.addresses(), copied))
	noError(t, s.cmd.Process.Signal(syscall.SIGCONT))
	stopsForGood(t, s, func() {})
	if n := c.number("SELECT count(*) FROM pets"); n != 3 {
		t.Errorf("the restored copy holds %d pets", n)
	}
}
