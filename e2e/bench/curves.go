//go:build linux

package main

// What the plots show beside the peers: growth, clients that add, the loss of a leader, and connections.

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The figures' names for what is measured, which the plots show too.
const (
	onFile, onCluster = "file", "cluster"

	curvePage   = "list of 20, remembered"
	curvePlace  = "page at a random place"
	curveOne    = "fetch, one id"
	curveRandom = "fetch, random id"

	curveBusy, curveIdle = "all send requests", "all are idle"

	lossAdd, lossPage = "add", "page, not remembered"
)

var lossKinds = []string{lossAdd, lossPage, curvePage}

// curves measures all of them and draws their plots.
func (b *bench) curves() {
	r := b.runs("curves", func(r *results) {
		b.curveOfGrowth(r)
		b.curveOfClients(r)
		b.curveOfConnections(r)
	})
	b.tellCurves(r)
	b.drawCurves(r)
	loss := b.runs("loss", b.lossOfLeader)
	b.tellLoss(loss)
	b.drawLoss(loss)
}

// curveOfGrowth measures databases of 10 thousand to 10 million pets, next to each other.
func (b *bench) curveOfGrowth(r *results) {
	sizes := []int{10_000, 100_000, 1_000_000, 10_000_000}
	if b.quick {
		sizes = []int{10_000, 20_000}
	}
	var servers, forgetful []*server
	for _, n := range sizes {
		servers = append(servers, b.fresh(b.database(n, 0), nil).warm())
		forgetful = append(forgetful, b.fresh(b.database(n, 0), nil, "-cache", "0").warm())
	}
	for _, what := range []string{curvePage, curvePlace, curveOne, curveRandom} {
		for i, n := range sizes {
			s := servers[i]
			if what == curvePlace {
				s = forgetful[i] // or it would remember all pages of a small database
			}
			lua := map[string]string{
				curvePage: hot(listHot), curvePlace: somewhere(listHot+"?after=", 1, n-100),
				curveOne: hot(fmt.Sprintf("%s/%d", listHot, n/2)), curveRandom: somewhere(listHot+"/", 1, n),
			}[what]
			l := b.measure(s, fmt.Sprintf("growth: %s, %d pets", what, n), lua, b.connections, b.seconds, false)
			r.addLoad("growth", what, float64(n), l)
		}
	}
	for _, s := range append(servers, forgetful...) {
		s.discard()
	}
}

// curveOfClients measures clients that add pets, each of which waits for its response before its next request.
func (b *bench) curveOfClients(r *results) {
	clients := []int{1, 2, 4, 8, 16, 32, 64, 128, 256}
	if b.quick {
		clients = []int{1, 64}
	}
	d := b.database(10_000, 0)
	c := b.startNodes()
	defer c.stop()
	c.load(d)
	debug := map[string]string{onFile: freeAddress(), onCluster: freeAddress()}
	far, _ := b.serve(c.db(), d.key, b.pinned, nil, "-debug-addr", debug[onCluster])
	near := b.fresh(d, nil, "-debug-addr", debug[onFile])
	servers := map[string]*server{onFile: near.warm(), onCluster: far.warm()}
	for _, n := range clients {
		for _, engine := range []string{onFile, onCluster} {
			before := b.counter(debug[engine], "petstore_commit_requests_count")
			l := b.measure(servers[engine], fmt.Sprintf("%d clients add, %s", n, engine), each(create), n, b.seconds, false)
			commits := b.counter(debug[engine], "petstore_commit_requests_count") - before
			r.addLoad("clients", engine, float64(n), l)["perCommit"] = l.requests / commits
		}
	}
	far.stop()
	near.discard()
}

// counter reads a metric of the service.
func (b *bench) counter(address, name string) float64 {
	for line := range strings.Lines(string(do(must1(http.NewRequestWithContext(b.ctx, "GET", "http://"+address+"/metrics", nil))))) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return must1(strconv.ParseFloat(strings.TrimSpace(value), 64))
		}
	}
	fail("there is no metric %s", name)
	return 0
}

// curveOfConnections measures the memory of a fresh service for each number of connections.
func (b *bench) curveOfConnections(r *results) {
	counts := []int{1, 512, 1024, 2048, 4096}
	if b.quick {
		counts = []int{1, 64}
	}
	d := b.database(10_000, 0)
	for _, n := range counts {
		s := b.fresh(d, nil)
		l := b.measure(s, fmt.Sprintf("%d connections", n), mix(d.animals), n, b.seconds, false)
		r.addLoad("connections", curveBusy, float64(n), l)["rss"] = l.peak // after it, some are closed
		s.discard()
		s = b.fresh(d, nil)
		for _, conn := range s.connect(n) {
			defer conn.Close()
		}
		r.add("connections", curveIdle, float64(n), map[string]float64{"rss": memory(s.pid(), "VmRSS")})
		s.discard()
	}
}

// connect opens so many connections, and sends one request over each.
func (s *server) connect(n int) (all []net.Conn) {
	for range n {
		conn := must1(net.Dial("tcp", s.address)) //nolint:noctx // to this machine
		must1(exchangeOn(conn, bufio.NewReader(conn), s.request("GET", listHot)))
		all = append(all, conn)
	}
	return all
}

// lossOfLeader sends requests at a steady pace, whether or not earlier ones have a response, while the leader of the
// cluster is killed. A request that fails is sent again until it succeeds, as clients do, and its time is the whole.
func (b *bench) lossOfLeader(r *results) {
	const every, before, after = 20 * time.Millisecond, 2 * time.Second, 7 * time.Second
	d := b.database(10_000, 0)
	c := b.startNodes()
	defer c.stop()
	c.load(d)
	s, _ := b.serve(c.db(), d.key, b.pinned, nil)
	s.warm()
	paths := map[string]func() (method, path string){
		lossAdd:   func() (string, string) { return "POST", listHot },
		lossPage:  func() (string, string) { return "GET", fmt.Sprint(listHot, "?after=", 1+rand.IntN(d.animals-100)) },
		curvePage: func() (string, string) { return "GET", listHot },
	}
	leader := c.leader()
	say("the leader is killed in %v", before)
	var mu sync.Mutex // guards r
	var waiting sync.WaitGroup
	kill := time.Now().Add(before)
	time.AfterFunc(before, func() { _ = c.processes[leader].cmd.Process.Kill() })
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for time.Now().Before(kill.Add(after)) {
		<-ticker.C
		for what, request := range paths {
			method, path := request()
			waiting.Go(func() {
				start := time.Now()
				for time.Since(start) < 20*time.Second {
					if a, err := s.fetch(method, path); err == nil && a.Status < 300 {
						break
					}
					time.Sleep(50 * time.Millisecond) // not b.sleep, which may panic
				}
				mu.Lock()
				defer mu.Unlock()
				r.add("loss", what, start.Sub(kill).Seconds(), map[string]float64{"ms": float64(time.Since(start).Microseconds()) / 1000})
			})
		}
	}
	waiting.Wait()
	s.end(syscall.SIGTERM) // it has logged errors
}

// tellCurves makes tables of the medians that the plots show.
func (b *bench) tellCurves(r *results) {
	growth := []string{curvePage, curvePlace, curveOne, curveRandom}
	b.tellCurve(r, "CPU µs of a request, by pets", "growth", "cpu", growth)
	engines := []string{onFile, onCluster}
	b.tellCurve(r, "new pets per second, by clients", "clients", "perSecond", engines)
	b.tellCurve(r, "new pets for each commit, by clients", "clients", "perCommit", engines)
	b.tellCurve(r, "resident MiB, by connections", "connections", "rss", []string{curveBusy, curveIdle})
}

// tellCurve makes a row for each kind, and a column for each place on the axis.
func (b *bench) tellCurve(r *results, title, series, name string, kinds []string) {
	columns := []string{title}
	for _, x := range r.xs(series, kinds[0]) {
		columns = append(columns, count(int(x)))
	}
	t := newTable(title, columns...)
	for _, what := range kinds {
		cells := []any{what}
		for _, at := range r.points(series, what, name) {
			cells = append(cells, at.y)
		}
		t.row(cells...)
	}
	b.tell(series+"-"+name, t, r.footer()+".")
}

// tellLoss makes a table of how long clients waited at the most, in each run.
func (b *bench) tellLoss(r *results) {
	t := newTable("The leader of a cluster is killed", "ms until success", "the longest of each run", "the median of all")
	for _, what := range lossKinds {
		longest, all := make([]float64, r.runs), []float64{}
		for _, f := range r.figures {
			if f.what == what {
				all = append(all, f.values["ms"])
				longest[f.run] = max(longest[f.run], f.values["ms"])
			}
		}
		var texts []string
		for _, v := range longest {
			texts = append(texts, number(v))
		}
		t.row(what, strings.Join(texts, "; "), median(all))
	}
	b.tell("loss", t, "A client sends a request again until it succeeds, and its time is the whole. "+r.lossFooter()+".")
}
