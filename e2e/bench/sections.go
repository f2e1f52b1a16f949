//go:build linux

package main

// What is measured.

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// scenario is one kind of load. The ceiling gives the service's answers to
// samples; a request for a random place gets the answer for the middle.
type scenario struct {
	name, lua string
	samples   []string // paths, or create
	writes    bool
	quick     bool // run it with -quick too
	forgetful bool // the service remembers nothing, so that each request reads the database
}

const listHot, create = "/v1/pets", "create"

// hot is one request over and over, which wrk sends without asking Lua.
func hot(path string) string {
	return fmt.Sprintf(`wrk.path = %q; wrk.headers["Authorization"] = head:match("Bearer [^\r]+")`, path)
}

// each makes a new request every time, from a Lua expression.
func each(expression string) string { return "function request() return " + expression + " end" }

// somewhere asks for a random number from least to most behind the path.
func somewhere(path string, least, most int) string {
	return each(fmt.Sprintf("get(%q .. random(%d, %d))", path, least, most))
}

// mix is 10 % creates, 45 % lists and 45 % gets of random ids, in turns of 20.
func mix(n int) string {
	return fmt.Sprintf(`local i, list = 0, get("/v1/pets")
function request()
  i = (i + 1) %% 20
  if i %% 10 == 0 then return create end
  if (i < 10) == (i %% 2 == 0) then return list end
  return get("/v1/pets/" .. random(1, %d))
end`, n)
}

func scenarios(n int) []scenario {
	filtered, hundred, middle := "/v1/pets?limit=20&status=sold", "/v1/pets?limit=100", fmt.Sprintf("/v1/pets/%d", n/2)
	return []scenario{
		{"list of 20", hot(listHot), []string{listHot}, false, true, false},
		{"filtered list", hot(filtered), []string{filtered}, false, false, false},
		{"list of 100", hot(hundred), []string{hundred}, false, false, false},
		{"list of 20, read (after 1 to 100)", somewhere("/v1/pets?after=", 1, 100), []string{"/v1/pets?after=50"}, false, false, true},
		{"deep page, read (random after)", somewhere("/v1/pets?after=", 1, n-100), []string{fmt.Sprintf("/v1/pets?after=%d", n/2)}, false, true, true},
		{"get, one id", hot(middle), []string{middle}, false, false, false},
		{"get, random id", somewhere("/v1/pets/", 1, n), []string{middle}, false, false, false},
		{"create", each(create), []string{create}, true, true, false},
		{"90 % list and get, 10 % create", mix(n), []string{listHot, middle, create}, true, true, false},
	}
}

// canned is what one port of the ceiling answers.
type canned struct{ Post, List, Get *answer }

// capture takes answers, the service's for the ceiling or the ceiling's to check them.
func (s *server) capture(samples []string) *canned {
	c := &canned{}
	for _, path := range samples {
		var a *answer
		switch {
		case path == create:
			a = must1(s.fetch("POST", "/v1/pets"))
			c.Post = a
		case strings.HasPrefix(path, "/v1/pets/"):
			a = must1(s.fetch("GET", path))
			c.Get = a
		default:
			a = must1(s.fetch("GET", path))
			c.List = a
		}
		if a.Status != 200 && (a.Status != 201 || path != create) {
			fail("%s is answered %d: %s", path, a.Status, a.Body)
		}
	}
	return c
}

// startCeiling starts the ceiling with a port for each scenario, and makes sure
// that it sends what the service has sent, byte for byte but for the date.
func (b *bench) startCeiling(ports []*canned, all []scenario) []*server {
	p := must1(b.spawn(`ready (\S+)\n`, nil, bytes.NewReader(must1(json.Marshal(ports))), append(slices.Clone(b.pinned), b.ceiling)...))
	var servers []*server
	for i, address := range strings.Split(must1(p.await()), ",") {
		s := &server{process: p, address: address, key: makeToken("ceiling", 0)}
		if got := s.capture(all[i].samples); !reflect.DeepEqual(got, ports[i]) {
			fail("%s: the ceiling's answer differs from the service's:\n%s\n%s", all[i].name, must1(json.Marshal(got)), must1(json.Marshal(ports[i])))
		}
		servers = append(servers, s)
	}
	return servers
}

// speed compares the service with the ceiling, in turns.
func (b *bench) speed() {
	for _, n := range b.animals {
		d, all := b.database(n, 0), scenarios(n)
		if b.quick {
			all = slices.DeleteFunc(all, func(sc scenario) bool { return !sc.quick })
		}
		reader, forgetful := b.fresh(d, nil).warm(), b.fresh(d, nil, "-cache", "0").warm()
		writer := b.fresh(d, nil)
		var ports []*canned
		for _, sc := range all {
			from := reader
			if sc.writes {
				from = writer
			}
			ports = append(ports, from.capture(sc.samples))
		}
		writer.discard()
		ceiling := b.startCeiling(ports, all)
		ceiling[0].warm()
		ours, theirs := make([][]*load, len(all)), make([][]*load, len(all))
		for round := range b.rounds {
			for i, sc := range all {
				what := fmt.Sprintf("round %d, %d animals, %s", round+1, n, sc.name)
				service := func() {
					s := reader
					if sc.forgetful {
						s = forgetful
					}
					if sc.writes { // on a fresh copy each time, so that the size stays as stated
						s = b.fresh(d, nil).warm()
						defer s.discard()
					}
					ours[i] = append(ours[i], b.measure(s, what, sc.lua, b.connections, b.seconds, false))
				}
				bare := func() {
					theirs[i] = append(theirs[i], b.measure(ceiling[i], what+" (ceiling)", sc.lua, b.connections, b.seconds, false))
				}
				if round%2 == 0 { // who goes first changes, too
					service()
					bare()
				} else {
					bare()
					service()
				}
				// Under load too the answers must be as long as the captured ones, but for some digits.
				if r := ours[i][round].size / theirs[i][round].size; math.Abs(r-1) > 0.03 {
					fail("%s: the service's answers are %.2f times as long as the ceiling's", what, r)
				}
			}
		}
		reader.discard()
		forgetful.discard()
		ceiling[0].end(syscall.SIGKILL)
		t := newTable(fmt.Sprintf("Speed with %s animals", count(n)), "", "req/s", "p50 µs", "p99 µs", "CPU µs", "busy %",
			"ceiling req/s", "p50 µs", "p99 µs", "CPU µs", "busy %", "**req/s ratio** (least–most)", "**CPU ratio**", "**p99 ratio**")
		for i, sc := range all {
			r := ratios(ours[i], theirs[i], perSecond)
			t.row(sc.name, medians(ours[i], perSecond, p50, p99, cpu, busy), medians(theirs[i], perSecond, p50, p99, cpu, busy),
				fmt.Sprintf("%.2f (%.2f–%.2f)", median(r), slices.Min(r), slices.Max(r)),
				median(ratios(ours[i], theirs[i], cpu)), median(ratios(ours[i], theirs[i], p99)))
		}
		t.print("Each ratio is service / ceiling: the median of the rounds' own ratios. CPU is the server's, user and system, for each request. " +
			"Where the ceiling is less than about 95 % busy, wrk was its limit and req/s flatters the service: go by CPU (more than 1 is worse). " +
			"A create's 201 follows its sync. What is read comes from the database each time: that service has -cache 0.")
	}
}

// follow is clients that each go from page to page, from different places, until the last page, and then begin again.
func follow(n, limit, clients int) string {
	return fmt.Sprintf(`local after, i = {}, 0
for client = 1, %[3]d do after[client] = math.floor(%[1]d / %[2]d * (client - 1) / %[3]d) * %[2]d end
function request()
  i = i %% %[3]d + 1
  local from = after[i]
  after[i] = (from + %[2]d) %% %[1]d
  return get("/v1/pets?limit=%[2]d&after=" .. string.format("%%d", from))
end`, n, limit, clients)
}

// mirror compares clients that follow all pages, from the second pass on, with the ceiling.
func (b *bench) mirror() {
	const clients = 8
	n := 200_000
	if b.quick {
		n = b.animals[0]
	}
	d := b.database(n, 0)
	t := newTable(fmt.Sprintf("%d clients follow all pages of %s animals, from the second pass on", clients, count(n)), "pets on a page", "req/s", "p99 µs",
		"CPU µs", "ceiling req/s", "p99 µs", "CPU µs", "**req/s ratio** (least–most)", "**CPU ratio**", "resident MiB after", "with -cache 0: req/s", "CPU µs")
	for _, limit := range []int{20, 100} {
		s, forgetful := b.fresh(d, nil).warm(), b.fresh(d, nil, "-cache", "0").warm()
		conn := must1(net.Dial("tcp", s.address))   //nolint:noctx // to this machine
		for after := 0; after < n; after += limit { // the first pass; ids have no gaps
			must1(roundTrip(conn, s.request("GET", fmt.Sprintf("/v1/pets?limit=%d&after=%d", limit, after))))
		}
		_ = conn.Close()
		samples := []string{fmt.Sprintf("/v1/pets?limit=%d&after=%d", limit, n/2)}
		ceiling := b.startCeiling(append([]*canned(nil), s.capture(samples)), append([]scenario(nil), scenario{samples: samples}))[0]
		ceiling.warm()
		var ours, theirs, reads []*load
		for round := range b.rounds {
			what := fmt.Sprintf("round %d, pages of %d", round+1, limit)
			ours = append(ours, b.measure(s, what, follow(n, limit, clients), clients, b.seconds, false))
			theirs = append(theirs, b.measure(ceiling, what+" (ceiling)", follow(n, limit, clients), clients, b.seconds, false))
			reads = append(reads, b.measure(forgetful, what+" (-cache 0)", follow(n, limit, clients), clients, b.seconds, false))
		}
		r := ratios(ours, theirs, perSecond)
		t.row(limit, medians(ours, perSecond, p99, cpu), medians(theirs, perSecond, p99, cpu),
			fmt.Sprintf("%.2f (%.2f–%.2f)", median(r), slices.Min(r), slices.Max(r)), median(ratios(ours, theirs, cpu)), ours[b.rounds-1].rss,
			medians(reads, perSecond, cpu))
		s.discard()
		forgetful.discard()
		ceiling.end(syscall.SIGKILL)
	}
	t.print("Ratios are service / ceiling. The service has its usual -cache; one that remembers nothing reads each page from the database.")
}

// memory tells sizes: of the process, of the binary, of the file.
func (b *bench) memory() {
	t := newTable("Resident memory, MiB", "animals", "idle", "after 64 connections", "peak", "after 512 connections", "peak", "bytes on disk per animal")
	for _, n := range b.animals {
		d := b.database(n, 0)
		s := b.fresh(d, nil)
		b.sleep(time.Second)
		idle := memory(s.pid(), "VmRSS")
		at64 := b.measure(s, "memory at 64", mix(n), 64, b.seconds, false)
		at512 := b.measure(s, "memory at 512", mix(n), 512, b.seconds, false)
		s.discard()
		t.row(n, idle, at64.rss, at64.peak, at512.rss, at512.peak, float64(must1(os.Stat(d.path)).Size())/float64(n))
	}
	t.print(fmt.Sprintf("VmRSS and VmHWM of one process after one load of the 90/10 mix and the next; the pages of the program itself count. Stripped binary: %.2f MB (10⁶ bytes).",
		float64(must1(os.Stat(b.petstore)).Size())/1e6))
}

// start measures from exec to the first 200, not pinned: taskset would take its
// time, and a service that starts has all cores.
func (b *bench) start() {
	times := 10
	if b.quick {
		times = 2
	}
	t := newTable("Start to the first answer, ms", "animals", "median", "longest", "after SIGKILL under creates", "longest")
	for _, n := range b.animals {
		d := b.database(n, 0)
		file := b.copy(d)
		var clean, killed []float64
		again := func(to *[]float64) {
			s, took := b.serve(file, d.key, nil, nil)
			*to = append(*to, took.Seconds()*1000)
			s.stop()
		}
		for range times {
			again(&clean)
		}
		for i := range times {
			say("kill %d", i+1)
			s, _ := b.serve(file, d.key, nil, nil)
			before := commits(file)
			wrk := make(chan error, 1)
			go func() { _, err := b.wrk(s, each(create), b.connections, 1); wrk <- err }()
			for commits(file) < before+10 && len(wrk) == 0 {
				b.sleep(5 * time.Millisecond)
			}
			if len(wrk) > 0 {
				fail("wrk ended (%v) before there were 10 commits", <-wrk)
			}
			s.end(syscall.SIGKILL)
			if err := <-wrk; err == nil { // wrk's connections must have broken
				fail("the service was killed, but not under load")
			}
			again(&killed)
		}
		remove(file)
		t.row(n, median(clean), slices.Max(clean), median(killed), slices.Max(killed))
	}
	t.print(fmt.Sprintf("From before exec to the first 200 of GET /v1/pets, %d times each, not pinned. The kill comes after 10 commits. The file is in the system's page cache.", times))
}

// page measures how long somebody who opens the page waits until something is
// drawn: the first contentful paint of Chromium, on loopback, nothing in its cache.
func (b *bench) page() {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		fail("chromium is missing; on Debian: apt install chromium")
	}
	times := 20
	if b.quick {
		times = 2
	}
	s := b.fresh(b.database(b.animals[0], 0), nil)
	defer s.discard()
	profile := filepath.Join(b.work, "chromium")
	ctx, cancel := chromedp.NewExecAllocator(b.ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium), chromedp.UserDataDir(profile), chromedp.NoSandbox, chromedp.DisableGPU)...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	must1(chromedp.Call(ctx, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true}))
	var paints []float64
	for range times {
		must(chromedp.Do(ctx, chromedp.Navigate("about:blank"), chromedp.Navigate("http://"+s.address+"/")))
		paints = append(paints, must1(chromedp.Run(ctx, chromedp.Evaluate[float64](`new Promise((painted) => {
			new PerformanceObserver((list) => {
				for (const e of list.getEntriesByName("first-contentful-paint")) painted(e.startTime);
			}).observe({type: "paint", buffered: true});
		})`, chromedp.EvalAwaitPromise))))
	}
	t := newTable("First paint of the page, ms", "loads", "median", "longest")
	t.row(times, median(paints), slices.Max(paints))
	t.print("First contentful paint in headless Chromium, which shares the machine with the service; its cache is off.")
}

// commits is how many transactions were committed since the database was
// opened first: the counter iChange in the index of the write-ahead log. SQLite
// keeps that in a mapped file, so it can be read from outside; unlike the log's
// own frames it is not overwritten after a checkpoint.
func commits(db string) float64 {
	for range 1000 {
		head := make([]byte, 96) // two copies of 48 bytes, which differ while they are written
		f := must1(os.Open(db + "-shm"))
		must1(f.ReadAt(head, 0))
		must(f.Close())
		if bytes.Equal(head[:48], head[48:]) {
			return float64(binary.NativeEndian.Uint32(head[8:]))
		}
	}
	fail("the index of %s does not come to rest", db)
	return 0
}

// sync counts how many creates share a commit. With synchronous=FULL, which the
// service sets, each commit syncs the log once; strace, if there is one, says
// whether that is true.
func (b *bench) sync() {
	d, clients := b.database(b.animals[0], 0), []int{1, 8, 64}
	creates := func(connections int, what string) *load {
		s := b.fresh(d, nil).warm()
		defer s.discard()
		var tracer *process
		file := filepath.Join(b.work, "strace.txt")
		if what == "strace" {
			tracer = must1(b.spawn(`(attached)`, nil, nil, "strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", file, "-p", strconv.Itoa(s.pid())))
			if _, err := tracer.await(); err != nil {
				return nil // not permitted here
			}
			b.sleep(200 * time.Millisecond) // until it has all threads
		}
		before := commits(s.db)
		l := b.measure(s, fmt.Sprintf("creates of %d clients %s", connections, what), each(create), connections, b.seconds, false)
		l.commits = commits(s.db) - before
		if tracer != nil {
			tracer.end(syscall.SIGINT)
			l.statuses = string(must1(os.ReadFile(file)))
		}
		return l
	}
	loads := make([][]*load, len(clients))
	for range b.rounds {
		for i, c := range clients {
			loads[i] = append(loads[i], creates(c, ""))
		}
	}
	t := newTable(fmt.Sprintf("Creates for each commit, %s animals", count(d.animals)), "clients", "creates/s", "p50 µs", "p99 µs", "commits/s", "**creates/commit**")
	for i, c := range clients {
		t.row(c, medians(loads[i], perSecond, p50, p99, func(l *load) float64 { return l.commits / l.seconds },
			func(l *load) float64 { return l.requests / l.commits }))
	}
	note := "That each of them syncs was not checked: strace is missing or may not attach."
	if _, err := exec.LookPath("strace"); err == nil {
		if l := creates(64, "strace"); l != nil {
			syncs := 0
			for line := range strings.Lines(l.statuses) { // % time, seconds, usecs/call, calls, errors or nothing, syscall
				if f := strings.Fields(line); len(f) >= 5 && (f[len(f)-1] == "fsync" || f[len(f)-1] == "fdatasync") {
					syncs += must1(strconv.Atoi(f[3]))
				}
			}
			if float64(syncs) < l.commits {
				fail("%.0f commits made only %d syncs: creates are not durable", l.commits, syncs)
			}
			note = fmt.Sprintf("Under strace, which slows everything down, %.0f creates made %.0f commits, and these %d syncs (checkpoints sync too).", l.requests, l.commits, syncs)
		}
	}
	t.print("Commits are counted in the index of SQLite's log, those of usage (every half second) included. " + note)
}

// oneCore shows what writers do to readers when there is only one core.
func (b *bench) oneCore() {
	d := b.database(b.animals[0], 0)
	var alone, both, writers []*load
	for range b.rounds {
		s := b.fresh(d, []string{"GOMAXPROCS=1"}).warm()
		alone = append(alone, b.measure(s, "32 readers", hot(listHot), 32, b.seconds, false))
		var w *load
		var err error
		done := make(chan bool)
		go func() { w, err = b.wrk(s, each(create), 8, b.seconds); close(done) }()
		both = append(both, b.measure(s, "32 readers and 8 writers", hot(listHot), 32, b.seconds, false))
		<-done
		must(err)
		if w.failed > 0 {
			fail("%.0f of %.0f creates beside readers failed", w.failed, w.requests)
		}
		writers = append(writers, w)
		s.discard()
	}
	t := newTable(fmt.Sprintf("One core, %s animals: 32 readers of the list, 8 writers", count(d.animals)), "", "reads/s", "read p50 µs", "read p99 µs", "writes/s", "write p99 µs")
	t.row("readers alone", medians(alone, perSecond, p50, p99), "", "")
	t.row("readers and writers", medians(both, perSecond, p50, p99), medians(writers, perSecond, p99))
	t.row("**ratio**", median(ratios(both, alone, perSecond)), median(ratios(both, alone, p50)), median(ratios(both, alone, p99)), "", "")
	t.print("GOMAXPROCS=1; both wrk share the other core.")
}

// growth shows what a request costs with more animals, and with more keys.
func (b *bench) growth() {
	kinds := []string{"list of 20, hot", "page at 0 %, read", "page at 50 %, read", "page at 99 %, read", "get, one id", "get, random id"}
	loads := make([][][]*load, len(b.animals))
	var servers, forgetful []*server
	for i, n := range b.animals {
		servers = append(servers, b.fresh(b.database(n, 0), nil).warm())
		forgetful = append(forgetful, b.fresh(b.database(n, 0), nil, "-cache", "0").warm())
		loads[i] = make([][]*load, len(kinds))
	}
	for range b.rounds {
		for k, kind := range kinds {
			for i, n := range b.animals { // next to each other, since these are compared
				page := func(at int) string { return somewhere("/v1/pets?after=", at+1, at+min(1000, n/200)) }
				lua := []string{hot(listHot), page(0), page(n / 2), page(n / 100 * 99),
					hot(fmt.Sprintf("/v1/pets/%d", n/2)), somewhere("/v1/pets/", 1, n)}[k]
				s := servers[i]
				if k >= 1 && k <= 3 {
					s = forgetful[i]
				}
				loads[i][k] = append(loads[i][k], b.measure(s, fmt.Sprintf("growth: %s, %d animals", kind, n), lua, b.connections, b.seconds, false))
			}
		}
	}
	t := newTable("More animals", "", "animals", "req/s", "p99 µs", "CPU µs", "CPU ratio", "CPU above the hot list, µs", "its ratio", "resident MiB after")
	for k, kind := range kinds {
		above := func(i int) float64 { return median(values(loads[i][k], cpu)) - median(values(loads[i][0], cpu)) }
		for i, n := range b.animals {
			var query, ratio any = "", ""
			if k >= 1 && k <= 3 { // only a page that is read costs more for its query alone
				query, ratio = above(i), above(i)/above(0)
			}
			t.row(kind, n, medians(loads[i][k], perSecond, p99, cpu), median(ratios(loads[i][k], loads[0][k], cpu)), query, ratio, loads[i][k][b.rounds-1].rss)
		}
	}
	for _, s := range append(servers, forgetful...) {
		s.discard()
	}
	t.print("Ratios are to the first database. A page is taken at a random id in a stretch of 1,000, or 0.5 % of a small database. What it costs above " +
		"the list that is remembered, of the same size, is its query. A database has one server for all its loads, and one with -cache 0 for the pages that are read, " +
		"so what is resident includes what earlier ones left.")
	b.growthOfKeys()
}

func (b *bench) growthOfKeys() {
	counts := slices.Compact([]int{10, 10_000, b.manyKeys()})
	loads, idle := make([][]*load, len(counts)), make([]float64, len(counts))
	var servers []*server
	for i, n := range counts {
		s := b.fresh(b.database(b.animals[0], n), nil)
		idle[i] = memory(s.pid(), "VmRSS")
		servers = append(servers, s.warm())
	}
	for range b.rounds {
		for i, n := range counts {
			lua := withKeys(b.tokens("known", n), servers[i].address, "")
			loads[i] = append(loads[i], b.measure(servers[i], fmt.Sprintf("growth: %d keys", n), lua, b.connections, b.seconds, false))
		}
	}
	t := newTable(fmt.Sprintf("More keys, list of 20, %s animals", count(b.animals[0])), "keys", "req/s", "p99 µs", "CPU µs", "CPU ratio", "resident MiB idle", "after", "peak")
	for i, n := range counts {
		last := loads[i][b.rounds-1]
		t.row(n, medians(loads[i], perSecond, p99, cpu), median(ratios(loads[i], loads[0], cpu)), idle[i], last.rss, last.peak)
		servers[i].discard()
	}
	t.print("Each request carries one of all these keys by chance. The usage of all that called is written every half second. The service remembers some 32,000 keys " +
		"and usages; what it has forgotten it reads again.")
}

// manyKeys are more than the service remembers, but for -quick.
func (b *bench) manyKeys() int {
	if b.quick {
		return 10_000
	}
	return 1_000_000
}

// withKeys lists with any of the keys in a file; header is a Lua expression in
// quotes for one more header, or "".
func withKeys(file, address, header string) string {
	end, request := `\r\n`, "requests[random(1, #requests)]"
	if header != "" {
		end, request = "", request+` .. "`+header+`\r\n"`
	}
	// In init, since wrk runs the rest of a script twice.
	return fmt.Sprintf(`local requests = {}
function init()
  for token in io.lines(%q) do
    requests[#requests+1] = "GET /v1/pets HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer " .. token .. "\r\n%s"
  end
end
`, file, address, end) + each(request)
}

// hostile is what no cache helps against, and what should give little to anybody.
func (b *bench) hostile() {
	n := slices.Max(b.animals)
	d, manyKeys := b.database(n, 0), b.database(b.animals[0], b.manyKeys())
	const guessed = 100_000
	guesses := b.tokens("unknown", guessed)
	scan := fmt.Sprintf(`local after = -20
function request()
  after = after + 20
  if after >= %d then after = 0 end
  return get("/v1/pets?after=" .. after)
end`, n) // Ids have no gaps, so these are the addresses in Link
	anyAddress := `X-Forwarded-For: 10." .. random(0, 255) .. "." .. random(0, 255) .. "." .. random(0, 255) .. "\r\n`
	same := func(lua string) func(string) string { return func(string) string { return lua } }
	cases := []struct {
		name  string
		lua   func(address string) string
		codes []string  // the statuses that may come; none: no error may
		db    *database // what is served
	}{
		{"hot: list of 20", same(hot(listHot)), nil, d},
		{"scan: all pages in turn", same(scan), nil, d},
		{"random after", same(somewhere("/v1/pets?after=", 0, n)), nil, d},
		{"random ids, half unknown", same(somewhere("/v1/pets/", 1, 2*n)), []string{"200", "404"}, d},
		{"unknown keys, one address", func(a string) string { return withKeys(guesses, a, "") }, []string{"401", "429"}, manyKeys},
		{"unknown keys, 2²⁴ addresses", func(a string) string { return withKeys(guesses, a, anyAddress) }, []string{"401", "429"}, manyKeys},
	}
	loads, idle, seen := make([][]*load, len(cases)), make([]float64, len(cases)), make([]string, len(cases))
	for range b.rounds {
		for i, c := range cases {
			s := b.fresh(c.db, nil, "-client-ip-header", "X-Forwarded-For").warm()
			idle[i] = memory(s.pid(), "VmRSS")
			loads[i] = append(loads[i], b.measure(s, "hostile: "+c.name, c.lua(s.address), b.connections, b.seconds, c.codes != nil))
			if c.codes != nil {
				seen[i] = must1(b.wrk(s, c.lua(s.address), b.connections, 1, c.codes...)).statuses
			}
			s.discard()
		}
	}
	t := newTable(fmt.Sprintf("Cold and hostile, %s animals", count(n)), "", "req/s", "p99 µs", "CPU µs", "req/s to hot", "CPU to hot", "p99 to hot",
		"resident MiB before", "after", "peak", "statuses of one second more")
	for i, c := range cases {
		last := loads[i][b.rounds-1]
		t.row(c.name, medians(loads[i], perSecond, p99, cpu), median(ratios(loads[i], loads[0], perSecond)), median(ratios(loads[i], loads[0], cpu)),
			median(ratios(loads[i], loads[0], p99)), idle[i], last.rss, last.peak, seen[i])
	}
	t.print(fmt.Sprintf("Each in a process of its own, with -client-ip-header X-Forwarded-For. The unknown keys are %s, looked for among %s in a database of %s animals.",
		count(guessed), count(b.manyKeys()), count(b.animals[0])))
}

// small runs the service in little memory, on one core, at full load.
func (b *bench) small() {
	const goLimit = "GOMEMLIMIT=96MiB"
	n, seconds := slices.Max(b.animals), 600
	if b.quick {
		seconds = 1
	}
	d := b.database(n, 0)
	bound, how, group, peak := memoryBound(128 << 20)
	if group != "" {
		defer os.Remove(group)
	}
	defer b.killAll() // a group can be removed only when it is empty
	groupPeak := "–"
	path := b.copy(d)
	history := open(path)
	must1(history.ExecContext(b.ctx, `WITH RECURSIVE days (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM days WHERE n < 399),
		usages (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM usages WHERE n < 100)
		INSERT INTO usage_days SELECT usages.n, unixepoch() / 86400 - 1 - days.n, 1000, 10, 1 FROM days, usages`))
	must(history.Close())
	s, _ := b.serve(path, d.key, append(slices.Clone(b.pinned), bound...), []string{"GOMAXPROCS=1", goLimit}, "-debug-addr", "127.0.0.1:0")
	closePage := b.openPage(s)
	l := b.measure(s, "small", mix(n), b.connections, seconds, false)
	reports := closePage()
	if text, err := os.ReadFile(peak); err == nil {
		groupPeak = fmt.Sprintf("%.1f", must1(strconv.ParseFloat(strings.TrimSpace(string(text)), 64))/(1<<20))
	}
	s.discard()
	t := newTable(fmt.Sprintf("One core and 128 MiB, %s animals, %.1f s of the 90/10 mix", count(n), l.seconds), "memory bound by", "req/s", "p99 µs", "answers", "failed", "reports to the operator's page", "peak resident MiB", "peak of the group, MiB")
	t.row(how+" and "+goLimit, l.perSecond, l.p99, l.requests, l.failed, reports, l.peak, groupPeak)
	t.print("100 usages have a history of 400 days. The group's peak counts the system's cache of files that it was first to read or write, which goes when memory is needed; " +
		"the pages of the program that were in that cache before count in the resident memory only.")
}

// openPage asks for what the operator's page shows, once a second like the page, until it is closed. It returns how
// many reports came.
func (b *bench) openPage(s *server) (closePage func() int) {
	found := regexp.MustCompile(`"debug":"([^"]+)"`).FindStringSubmatch(s.output())
	ctx, cancel := context.WithCancel(b.ctx)
	reports := make(chan int)
	go func() {
		n := 0
		for tick := time.Tick(time.Second); ctx.Err() == nil; <-tick {
			request := must1(http.NewRequestWithContext(ctx, http.MethodGet, found[1]+"/stats.json", nil))
			response, err := http.DefaultClient.Do(request)
			if err == nil && response.StatusCode == http.StatusOK {
				_, err = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				n++
			}
			if err != nil && ctx.Err() == nil {
				say("the operator's page: %v", err)
			}
		}
		reports <- n
	}()
	return func() int { cancel(); return <-reports }
}

// What of a load is compared.
func perSecond(l *load) float64 { return l.perSecond }
func p50(l *load) float64       { return l.p50 }
func p99(l *load) float64       { return l.p99 }
func cpu(l *load) float64       { return l.cpu }
func busy(l *load) float64      { return l.busy }

func values(loads []*load, of func(*load) float64) (v []float64) {
	for _, l := range loads {
		v = append(v, of(l))
	}
	return v
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func medians(loads []*load, of ...func(*load) float64) (v []float64) {
	for _, f := range of {
		v = append(v, median(values(loads, f)))
	}
	return v
}

// ratios are those of each round: of what was measured side by side.
func ratios(of, to []*load, value func(*load) float64) (v []float64) {
	for i := range of {
		v = append(v, value(of[i])/value(to[i]))
	}
	return v
}

func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// table is one in markdown, printed when it is complete.
type table struct{ text strings.Builder }

func newTable(title string, columns ...string) *table {
	t := &table{}
	fmt.Fprintf(&t.text, "\n## %s\n\n| %s |\n|---%s|\n", title, strings.Join(columns, " | "), strings.Repeat("|--:", len(columns)-1))
	return t
}

// row adds texts, counts, and numbers with about three digits that matter.
func (t *table) row(cells ...any) {
	for _, cell := range cells {
		switch v := cell.(type) {
		case []float64:
			for _, f := range v {
				t.cell(number(f))
			}
		case float64:
			t.cell(number(v))
		case int:
			t.cell(count(v))
		default:
			t.cell(fmt.Sprint(v))
		}
	}
	t.text.WriteString("|\n")
}

func (t *table) cell(text string) { t.text.WriteString("| " + text + " ") }

func number(f float64) string {
	switch {
	case f >= 100:
		return count(int(math.Round(f)))
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

func (t *table) print(note string) { fmt.Printf("%s\n%s\n", t.text.String(), note) }
