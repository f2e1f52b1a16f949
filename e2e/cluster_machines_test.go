package e2e

// Proven here, with real nodes of rqlite: what cluster_faults_test.go says holds while disks of
// nodes are full, a majority is away, a leader is frozen, and machines are replaced.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// onSmallDisks gives each node a disk of its own.
func onSmallDisks(c *cluster) {
	for i := range c.nodes {
		c.onSmallDisk(i)
	}
}

func (c *cluster) onSmallDisk(i int) {
	noError(c.t, os.Mkdir(c.nodes[i].folder, 0o700))
	mount(c.t, c.nodes[i].folder, "size=256m")
}

// TestTheClusterOutlivesItsDisksAndMachines among clients. From the second full disk on, there is
// no majority without a machine that has replaced another.
func TestTheClusterOutlivesItsDisksAndMachines(t *testing.T) {
	t.Parallel()
	f := newTrial(t, onSmallDisks)
	c := f.cluster
	f.amid(func() {
		leader := c.leader()
		full := f.fullLeader(leader)
		f.suffer(blow{outage{"the leader's disk is full", true, 3 * time.Second, full}, false,
			isReady, "a node is not used any more", `"Not used".*"ready":true`})
		f.restartServices()
		old := slices.DeleteFunc(c.followers(), func(i int) bool { return i == leader })[0]
		f.suffer(blow{outage{"a follower's disk is full", false, 3 * time.Second,
			f.fullFollower(old)}, false, isReady, "", allServe})
		f.restartServices()
		f.suffer(blow{outage{"the majority is frozen for a moment", true, 0, f.freezeMajority},
			true, "", "store unavailable|leadership lost", someFailed})
		const leaderless = "leader|refused|deadline|EOF"
		f.suffer(blow{outage{"the majority is away", true, soak(3 * time.Second),
			f.loseMajority}, true, leaderless, `"not ready".*(` + leaderless + ")", nobodyServes})
		f.suffer(blow{outage{"the leader is frozen, and believes then that it leads", true,
			7 * time.Second, f.freezeLeader}, false, isReady, "another node is in use", oneIsLost})
	})
	f.compareNodes()
}

// fullLeader fills the disk of the leader, whose log still finds room: the service that meets this
// has another node lead. Before the node is replaced, there is room again, as if an operator had
// not known what to do: but no service uses it any more. The other services stand still meanwhile,
// since what they were told between the write that fails and its service's answer could have other
// ids: see "What happens when" in docs/cluster.md.
func (f *trial) fullLeader(i int) (begin func() func()) {
	signalOthers := func(signal syscall.Signal) {
		for _, s := range f.services[1:] {
			noError(f.T, s.cmd.Process.Signal(signal))
		}
	}
	return func() (end func()) {
		folder := f.cluster.nodes[i].folder
		tool(f.T, "fallocate", "--keep-size", "--length", "64m", filepath.Join(folder, "raft.db"))
		signalOthers(syscall.SIGSTOP)
		defer signalOthers(syscall.SIGCONT)
		time.Sleep(200 * time.Millisecond) // for what they have sent
		makeRoom := fillDisk(f.T, &server{db: filepath.Join(folder, "db.sqlite")})
		eventually(f.T, longEnough, func() error {
			if !strings.Contains(f.services[0].log.String(), "a node is not used any more") {
				return errors.New("the first service uses the leader still")
			}
			return nil
		})
		return func() {
			makeRoom()
			time.Sleep(2 * time.Second)
			f.replace(i)
		}
	}
}

// fullFollower fills the disk of a node, which is stopped before there is room.
func (f *trial) fullFollower(i int) (begin func() func()) {
	return func() (end func()) {
		db := filepath.Join(f.cluster.nodes[i].folder, "db.sqlite")
		makeRoom := fillDisk(f.T, &server{db: db})
		return func() {
			f.replace(i)
			makeRoom()
		}
	}
}

// replace puts a machine of another address in the place of one, as docs/cluster.md says.
func (f *trial) replace(lost int) {
	c := f.cluster
	name := c.nodes[lost].namespace
	c.kill(lost)
	tool(f.T, "curl", "-fsS", "-X", "DELETE", c.url(c.leader())+"/remove",
		"-d", fmt.Sprintf(`{"id": %q}`, name))
	c.nodes[lost] = c.plug(lost + 1 + clusterSize)
	c.onSmallDisk(lost)
	c.restart(lost)
}

// restartServices has them use the nodes that there are now, one after the other.
func (f *trial) restartServices() {
	for _, s := range f.services {
		s.stop()
		s.db = f.cluster.addresses()
		s.again(debugFlags...)
		s.awaitReady()
	}
}

// freezeMajority makes the leader step down before it knows what becomes of the last creates, and
// another lead before services give them up.
func (f *trial) freezeMajority() (end func()) {
	followers := f.cluster.followers()
	for _, i := range followers {
		f.cluster.pause(i)
	}
	time.Sleep(1500 * time.Millisecond)
	for _, i := range followers {
		f.cluster.resume(i)
	}
	return func() {}
}

func (f *trial) loseMajority() (end func()) {
	away := f.cluster.followers()
	for _, i := range away {
		f.cluster.kill(i)
	}
	return func() {
		for _, i := range away {
			f.cluster.start(i)
		}
	}
}

// freezeLeader has clients of a service that knows no other node wait when it goes on.
func (f *trial) freezeLeader() (end func()) {
	leader := f.cluster.leader()
	lonely := &server{t: f.T, db: f.cluster.url(leader)}
	lonely.run()
	f.cluster.pause(leader)
	var goesOn atomic.Bool
	var creating sync.WaitGroup
	for i := range readers {
		creating.Go(func() {
			for n := 0; !goesOn.Load(); n++ {
				name := fmt.Sprintf("lonely-%d-pet-%d", i, n)
				f.create(lonely.url, repeatable{f.keys[i], name}, false)
				f.list(lonely.url, f.keys[i], pageSize, max(0, f.last.Load()-pageSize/2))
			}
		})
	}
	return func() {
		f.cluster.resume(leader)
		time.Sleep(2 * time.Second)
		goesOn.Store(true)
		creating.Wait()
		lonely.stop()
	}
}
