package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestCommandsOutliveAFrozenLeader starts commands, and a service, right after the leader was
// frozen. Each command finds the next leader within its 10 seconds, or says that the outcome of its
// write is unknown. And each ends at once when it is told to while it waits for a node.
func TestCommandsOutliveAFrozenLeader(t *testing.T) {
	t.Parallel()
	c, folder := startCluster(t), t.TempDir()
	s := &server{t: t, db: c.addresses()}
	s.newKey()
	pets := filepath.Join(folder, "pets.jsonl")
	noError(t, os.WriteFile(pets, []byte(animalJSON("Rex")), 0o600))
	s.command("pet", "import", "-db", s.db, pets)
	commands := func(backup string) (running []*process) {
		for _, line := range []string{"key list", "pet set -name Tom 1", "key create", "pet export",
			"backup " + filepath.Join(folder, backup)} {
			running = append(running,
				launch(t, program(append(strings.Fields(line), "-db", s.db)...)))
		}
		return running
	}

	c.pause(c.leader())
	began := time.Now()
	finished := commands("finished.db")
	stopped := append(commands("stopped.db"),
		launch(t, program("-addr", ownAddress(t), "-db", s.db)))
	var all sync.WaitGroup
	for _, p := range finished {
		all.Go(func() {
			if !p.within(2 * longEnough) {
				t.Errorf("%s runs on", p)
				return
			}
			took, status := time.Since(began), p.status()
			t.Logf("after %v: %s", took.Round(time.Millisecond), p.told())
			unknown := strings.Contains(p.log.String(), "unknown") ||
				strings.Contains(p.log.String(), "may be stored")
			if took > 12*time.Second || status != 0 && !unknown {
				t.Errorf("after %v: %s", took, p.told())
			}
		})
	}
	// they have found a node that passes requests on to the frozen one
	time.Sleep(1500 * time.Millisecond)
	for _, p := range stopped {
		all.Go(func() {
			began := time.Now()
			noError(t, p.cmd.Process.Signal(syscall.SIGTERM))
			if !p.within(longEnough) {
				t.Errorf("%s runs on", p)
				return
			}
			took := time.Since(began)
			t.Logf("%v after SIGTERM: %s", took.Round(time.Millisecond), p.told())
			if took > 2*time.Second {
				t.Errorf("%v after SIGTERM: %s", took, p.told())
			}
		})
	}
	all.Wait()
}
