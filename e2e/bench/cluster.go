//go:build linux

package main

// The service on an rqlite cluster beside the service on a file.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// nodes is a cluster of three, on this machine's two cores.
type nodes struct {
	b         *bench
	flags     [][]string // of each node
	processes []*process
	http      []string // addresses
}

// startNodes starts an empty cluster and waits for its leader.
func (b *bench) startNodes() *nodes {
	c := &nodes{b: b}
	var raft []string
	for range 3 {
		c.http, raft = append(c.http, freeAddress()), append(raft, freeAddress())
	}
	folder := must1(os.MkdirTemp(b.work, "cluster-"))
	for i := range 3 {
		c.flags = append(c.flags, []string{"rqlited", "-node-id", fmt.Sprint(i + 1), "-http-addr", c.http[i], "-raft-addr", raft[i],
			"-bootstrap-expect", "3", "-join", strings.Join(raft, ","), filepath.Join(folder, fmt.Sprint(i))})
		c.processes = append(c.processes, must1(b.spawn("", nil, nil, c.flags[i]...)))
	}
	c.leader()
	return c
}

func freeAddress() string {
	l := must1(net.Listen("tcp", "127.0.0.1:0")) //nolint:noctx // to this machine
	defer l.Close()
	return l.Addr().String()
}

// db is the -db of a service.
func (c *nodes) db() string { return "http://" + strings.Join(c.http, ",http://") }

// leader waits until a node leads and the others follow it, and returns which.
func (c *nodes) leader() int {
	for range 600 {
		for i, address := range c.http {
			response, err := http.Get("http://" + address + "/status") //nolint:noctx // to this machine
			if err != nil {
				continue
			}
			var s struct {
				Store struct {
					Ready bool
					Nodes []any
					Raft  struct{ State string }
				}
			}
			err = json.NewDecoder(response.Body).Decode(&s)
			_ = response.Body.Close()
			if err == nil && s.Store.Raft.State == "Leader" && s.Store.Ready && len(s.Store.Nodes) == 3 {
				return i
			}
		}
		c.b.sleep(100 * time.Millisecond)
	}
	fail("the cluster has no leader:\n%s", c.processes[0].output())
	return 0
}

// load fills the cluster with a database.
func (c *nodes) load(d *database) {
	c.b.command(c.b.petstore, "restore", "-db", c.db(), "-skip-ids", "0", d.path)
}

func (c *nodes) stop() {
	for _, p := range c.processes {
		p.end(syscall.SIGKILL)
	}
}

// onePost creates with one client and one transaction for each pet, as a program does
// that knows nothing of group commit, and returns how many there were in a second.
func (c *nodes) onePost() float64 {
	url := "http://" + c.http[c.leader()] + "/db/execute?transaction"
	const body = `[["INSERT INTO pets (category_id, status, name) VALUES (?, ?, ?)", 7, 2, "Rex"]]`
	n, start := 0, time.Now()
	for ; time.Since(start) < time.Duration(c.b.seconds)*time.Second; n++ {
		response := must1(http.Post(url, "application/json", strings.NewReader(body))) //nolint:noctx,gosec,bodyclose // closed below
		text := must1(io.ReadAll(response.Body))
		_ = response.Body.Close()
		if !bytes.Contains(text, []byte(`"rows_affected":1`)) {
			fail("the leader responds %s", text)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}

// cpu is the time that the leader, and the other two together, have used, in seconds.
func (c *nodes) cpu() (leader, others float64) {
	first := c.leader()
	for i, p := range c.processes {
		if i == first {
			leader = cpuTime(p.pid())
		} else {
			others += cpuTime(p.pid())
		}
	}
	return leader, others
}

// gap kills the leader under creates of one client, and returns how long none succeeded.
func (c *nodes) gap(s *server) float64 {
	leader := c.leader()
	time.AfterFunc(time.Second, func() { _ = c.processes[leader].cmd.Process.Kill() })
	longest, last := time.Duration(0), time.Now()
	for start := last; time.Since(start) < 8*time.Second; {
		if a, err := s.fetch("POST", "/v1/pets"); err == nil && a.Status == 201 {
			longest, last = max(longest, time.Since(last)), time.Now()
		}
	}
	longest = max(longest, time.Since(last))
	<-c.processes[leader].done
	c.processes[leader] = must1(c.b.spawn("", nil, nil, c.flags[leader]...))
	c.leader()
	return longest.Seconds()
}

// cluster compares the two engines, in turns, both with the same pets.
func (b *bench) cluster() {
	d := b.database(b.animals[0], 0)
	c := b.startNodes()
	defer c.stop()
	c.load(d)
	farRemembers, _ := b.serve(c.db(), d.key, b.pinned, nil)
	farForgets, _ := b.serve(c.db(), d.key, b.pinned, nil, "-cache", "0")
	nearRemembers, nearForgets := b.fresh(d, nil), b.fresh(d, nil, "-cache", "0")
	kinds := []scenario{
		{name: "list of 20", lua: hot(listHot)},
		{name: "the same, filtered", lua: hot("/v1/pets?limit=20&status=sold")},
		{name: "fetch, one id", lua: hot("/v1/pets/5")},
		{name: "page not remembered", lua: somewhere("/v1/pets?after=", 1, d.animals-100), forgetful: true},
		{name: "add", lua: each(create)},
	}
	ours, files := map[string][]*load{}, map[string][]*load{}
	var posts, gaps []float64
	leaderCPU, otherCPU := map[string][]float64{}, map[string][]float64{}
	for round := range b.rounds {
		for _, k := range kinds {
			far, near := farRemembers, nearRemembers
			if k.forgetful {
				far, near = farForgets, nearForgets
			}
			for _, clients := range []int{1, b.connections} {
				what := fmt.Sprintf("%s, %d clients", k.name, clients)
				say("round %d, %s", round+1, what)
				leader, others := c.cpu()
				l := b.measure(far.warm(), what, k.lua, clients, b.seconds, false)
				ours[what] = append(ours[what], l)
				leaderAfter, othersAfter := c.cpu()
				leaderCPU[what] = append(leaderCPU[what], (leaderAfter-leader)*1e6/l.requests)
				otherCPU[what] = append(otherCPU[what], (othersAfter-others)*1e6/l.requests)
				files[what] = append(files[what], b.measure(near.warm(), what+" (file)", k.lua, clients, b.seconds, false))
			}
		}
		say("one post each")
		posts = append(posts, c.onePost())
	}
	t := newTable(fmt.Sprintf("One service on three nodes, %s animals", count(d.animals)), "", "req/s", "p50 µs", "p99 µs", "CPU µs",
		"leader's CPU µs", "the others'", "on a file: req/s", "p50 µs", "p99 µs", "CPU µs", "**req/s ratio**", "**CPU ratio**")
	for _, k := range kinds {
		for _, clients := range []int{1, b.connections} {
			what := fmt.Sprintf("%s, %d clients", k.name, clients)
			t.row(what, medians(ours[what], perSecond, p50, p99, cpu), median(leaderCPU[what]), median(otherCPU[what]), medians(files[what], perSecond, p50, p99, cpu),
				median(ratios(ours[what], files[what], perSecond)), median(ratios(ours[what], files[what], cpu)))
		}
	}
	for range b.rounds {
		say("the leader is killed")
		gaps = append(gaps, c.gap(farRemembers))
	}
	farRemembers.end(syscall.SIGTERM) // it has logged errors
	farForgets.end(syscall.SIGTERM)
	nearRemembers.discard()
	nearForgets.discard()
	creates := median(values(ours[fmt.Sprintf("add, %d clients", b.connections)], perSecond))
	t.print(fmt.Sprintf("One post for each create, with one client, straight to the leader: %s a second; the service's creates are %.1f times as many. "+
		"After a SIGKILL of the leader, creates of one client resume after %.2f s (%d times; all: %.2f). All nodes, the service and wrk share two cores.",
		number(median(posts)), creates/median(posts), median(gaps), len(gaps), gaps))
}
