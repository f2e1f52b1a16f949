//go:build linux

package main

// What is measured of one service on a file.

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// clients is the number of wrk's connections where nothing else is said.
const clients = 64

// Paths that end in a number.
const (
	pageAfter = list + "?after="
	onePet    = list + "/"
)

// noCache makes a service that remembers nothing, so that each request reads the database.
var noCache = []string{"-cache", "0"}

// scenario is one kind of load. Requests for a list are sent to the path list.
type scenario struct {
	name            string
	list            string
	script          func(s *server) string
	flags           []string // of the service
	growth, cluster bool     // whether these sections have it too
}

func scenarios(pets int) []scenario {
	filtered := list + "?limit=20&status=sold"
	hundred := list + "?limit=100"
	middle := strconv.Itoa(pets / 2)
	return []scenario{
		{
			name:    "list of 20",
			list:    list,
			script:  fixed(list),
			growth:  true,
			cluster: true,
		},
		{
			name:    "the same, filtered",
			list:    filtered,
			script:  fixed(filtered),
			cluster: true,
		},
		{
			name:   "list of 100",
			list:   hundred,
			script: fixed(hundred),
		},
		{
			name:   "list of 20, not in memory",
			list:   pageAfter + "50",
			script: anyOf(pageAfter, 100),
			flags:  noCache,
		},
		{
			name:    "page at a random place",
			list:    pageAfter + middle,
			script:  anyOf(pageAfter, pets-100),
			flags:   noCache,
			growth:  true,
			cluster: true,
		},
		{
			name:    "fetch, one id",
			list:    list,
			script:  fixed(onePet + middle),
			growth:  true,
			cluster: true,
		},
		{
			name:   "fetch, random id",
			list:   list,
			script: anyOf(onePet, pets),
			growth: true,
		},
		{
			name:    "add, on disk",
			list:    list,
			script:  func(s *server) string { return always(s.add()) },
			cluster: true,
		},
		{
			name:   "90 % reads, 10 % adds",
			list:   list,
			script: func(s *server) string { return s.mix(pets) },
		},
	}
}

func fixed(path string) func(*server) string {
	return func(s *server) string { return always(s.get(path)) }
}

// anyOf puts a random number behind a path.
func anyOf(path string, most int) func(*server) string {
	return func(s *server) string {
		request := s.get(path + "{id}")
		return vary(request, 1, most)
	}
}

// follows are clients that follow all pages, from the second pass on.
func follows(pets int) (all []scenario) {
	for _, limit := range []int{20, 100} {
		remembered := scenario{
			name:   fmt.Sprintf("8 clients follow all pages of %d", limit),
			list:   fmt.Sprintf("%s?limit=%d&after=%d", list, limit, pets/2),
			script: func(s *server) string { return s.follow(pets, limit, 8) },
		}
		read := remembered
		read.name += ", not in memory"
		read.flags = noCache
		all = append(all, remembered, read)
	}
	return all
}

// speed compares the service with the ceiling.
func (b *bench) speed() {
	for _, pets := range b.sizes(1, 10_000, 1_000_000) {
		b.besideCeiling(pets, scenarios(pets), clients)
	}
	const many = 200_000
	b.besideCeiling(many, follows(many), 8)
}

// sizes are the numbers that are measured; with -quick only the first ones.
func (b *bench) sizes(quick int, all ...int) []int {
	if b.quick {
		return all[:quick]
	}
	return all
}

func (b *bench) besideCeiling(pets int, all []scenario, connections int) {
	d := b.database(pets, 0)
	for _, kind := range all {
		s := b.fresh(d, kind.flags...)
		page := s.get(kind.list)
		one := s.get(fmt.Sprint(onePet, pets/2))
		ceiling := b.startCeiling(s, page, one)
		f, top := b.inTurns(s, ceiling, kind.script, connections)
		speed := top["req/s"]
		f["ratio"] = f["req/s"] / speed
		f["ceiling-req/s"] = speed
		f["ceiling-µs"] = top["CPU-µs"]
		f["ceiling-p99-ms"] = top["p99-ms"]
		b.record(kind.name, pets, f)
		s.discard()
		ceiling.kill()
	}
}

// inTurns measures two servers with the same script, in turns of a second, because the speed of a
// shared machine changes within seconds. Each figure is the median of the turns, without the first,
// until which heaps grow and caches fill.
func (b *bench) inTurns(
	ours, theirs *server,
	script func(*server) string,
	connections int,
) (f, other figures) {
	warm := 1
	if b.quick {
		warm = 0
	}
	turns := map[*server][]figures{}
	for range warm + b.seconds {
		for _, s := range []*server{ours, theirs} {
			turns[s] = append(turns[s], b.load(s, script(s), connections, 1))
		}
	}
	return medians(turns[ours][warm:]), medians(turns[theirs][warm:])
}

func medians(turns []figures) figures {
	f := figures{}
	for unit := range turns[0] {
		var all []float64
		for _, turn := range turns {
			all = append(all, turn[unit])
		}
		f[unit] = summary(all).Center
	}
	return f
}

// startCeiling starts the ceiling, which sends what the service has sent, and makes sure that it
// does. A request for a random place gets the response for the middle.
func (b *bench) startCeiling(s *server, page, one string) *server {
	c := &server{address: freeAddress(), auth: s.auth}
	requests := map[string]string{
		"list":  page,
		"fetch": one,
		"add":   s.add(),
	}
	responses := map[string]*answer{}
	for kind, request := range requests {
		a := s.ask(request)
		a.Header.Del("Date")
		responses[kind] = a
	}
	file := filepath.Join(b.work, "ceiling.json")
	write(file, must1(json.Marshal(responses)))
	args := append(slices.Clone(serverCore), b.ceiling, c.address, file)
	c.start(b, nil, args...)
	c.await(requests["list"])
	for kind, request := range requests {
		got := c.ask(request)
		got.Header.Del("Date")
		if !reflect.DeepEqual(got, responses[kind]) {
			fail("the ceiling does not send what the service has sent, but %v", got)
		}
	}
	return c
}

// oneCore shows what writers do to readers when there is only one core.
func (b *bench) oneCore() {
	d := b.database(10_000, 0)
	env := []string{"GOMAXPROCS=1"}
	s := b.serve(b.copy(d.path), d.key, serverCore, env)
	reads := always(s.get(list))
	adds := always(s.add())
	alone := b.measure(s, reads, 32)
	writers := make(chan figures)
	go func() { writers <- b.measure(s, adds, 8) }()
	beside := b.measure(s, reads, 32)
	b.record("32 readers alone", d.pets, alone)
	b.record("32 readers beside writers", d.pets, beside)
	b.record("8 writers beside readers", d.pets, <-writers)
	s.discard()
}

// connections measures the memory of a fresh service for each number of connections.
func (b *bench) connections() {
	d := b.database(10_000, 0)
	for _, n := range b.sizes(2, 1, 512, 1024, 2048, 4096) {
		s := b.fresh(d)
		f := b.measure(s, s.mix(d.pets), n)
		s.discard()
		most := figures{"MiB": f["peak-MiB"]} // after the load, some connections are closed
		b.record("all send requests", n, most)
		s = b.fresh(d)
		var idle []net.Conn
		for range n {
			conn := must1(net.Dial("tcp", s.address))
			must1(exchange(conn, s.get(list)))
			idle = append(idle, conn)
		}
		now, _ := resident(s.cmd)
		b.record("all are idle", n, figures{"MiB": now})
		for _, conn := range idle {
			_ = conn.Close()
		}
		s.discard()
	}
}

// memory tells sizes of the process, of the program, and of the file, and how long a start takes.
func (b *bench) memory() {
	for _, pets := range b.sizes(1, 10_000, 1_000_000) {
		d := b.database(pets, 0)
		tell := func(what string, value float64) {
			b.record(what, pets, figures{"value": value})
		}
		s := b.fresh(d)
		time.Sleep(time.Second)
		idle, _ := resident(s.cmd)
		tell("resident MiB, idle", idle)
		at64 := b.measure(s, s.mix(pets), 64)
		tell("MiB after 64 connections", at64["rss-MiB"])
		at512 := b.measure(s, s.mix(pets), 512)
		tell("MiB after 512 connections", at512["rss-MiB"])
		s.discard()
		first, again := b.startTimes(d)
		tell("ms from start to the first response", first)
		tell("ms, the same after a kill under load", again)
		tell("bytes on disk for each pet", size(d.path)/float64(pets))
		tell("MB of the stripped program", size(b.petstore)/1e6)
	}
}

func size(path string) float64 {
	info := must1(os.Stat(path))
	return float64(info.Size())
}

// startTimes are in ms: of a start, and of one after a kill under load. Nothing is pinned: a
// service that starts has all cores.
func (b *bench) startTimes(d *database) (first, again float64) {
	file := b.copy(d.path)
	defer remove(file)
	timed := func() (*server, float64) {
		start := time.Now()
		s := b.serve(file, d.key, nil, nil)
		took := time.Since(start)
		return s, 1000 * took.Seconds()
	}
	s, first := timed()
	broken := make(chan error)
	go func() {
		_, err := b.wrk(s, always(s.add()), clients, 2)
		broken <- err
	}()
	time.Sleep(time.Second)
	s.kill()
	if err := <-broken; err == nil {
		fail("the service was killed, but not under load")
	}
	s, again = timed()
	s.ask(s.get(fmt.Sprint(onePet, d.pets+1))) // it was added
	must(s.stop())
	return first, again
}

// growth measures some scenarios in databases of other sizes too.
func (b *bench) growth() {
	for _, pets := range b.sizes(2, 10_000, 100_000, 1_000_000, 10_000_000) {
		d := b.database(pets, 0)
		for _, kind := range scenarios(pets) {
			if !kind.growth {
				continue
			}
			s := b.fresh(d, kind.flags...)
			b.record(kind.name, pets, b.measure(s, kind.script(s), clients))
			s.discard()
		}
	}
}

// keys measures requests each of which carries any of so many keys.
func (b *bench) keys() {
	for _, n := range b.sizes(1, 10, 10_000, 1_000_000) {
		d := b.database(10_000, n)
		s := b.fresh(d)
		file := b.keyFile("known", n)
		f := b.measure(s, s.withKeys(file, `""`), clients)
		cost := figures{"value": f["CPU-µs"]}
		most := figures{"value": f["peak-MiB"]}
		b.record("CPU µs, list of 20", n, cost)
		b.record("resident MiB, peak", n, most)
		s.discard()
	}
}

// hostile is what no cache helps against, and what should give little to anybody.
func (b *bench) hostile() {
	pets := slices.Max(b.sizes(1, 10_000, 10_000_000))
	keys := slices.Max(b.sizes(1, 10, 1_000_000))
	d := b.database(pets, keys)
	guesses := b.keyFile("unknown", 100_000)
	const anyAddress = `"\r\nX-Forwarded-For: 10." .. random(0, 255) .. "." .. random(0, 65535)`
	all := []scenario{
		{
			name:   "scanning all pages",
			script: func(s *server) string { return s.follow(pets, 20, 1) },
		},
		{
			name:   "pages at random places",
			script: anyOf(pageAfter, pets),
		},
		{
			name:   "ids of which half are unknown",
			script: anyOf(onePet, 2*pets),
		},
		{
			name:   "unknown keys from one address",
			script: func(s *server) string { return s.withKeys(guesses, `""`) },
		},
		{
			name:   "unknown keys from millions of addresses",
			script: func(s *server) string { return s.withKeys(guesses, anyAddress) },
		},
	}
	for _, kind := range all {
		s := b.fresh(d, "-client-ip-header", "X-Forwarded-For")
		s.mayFail = true
		f := b.measure(s, kind.script(s), clients)
		b.record(kind.name, pets, f)
		s.discard()
	}
}

// inGroup becomes a command, in a control group of version 1 or 2 with 128 MiB, so that all of its
// memory counts. Where none can be made, only its data are limited.
const inGroup = `
cd /sys/fs/cgroup/memory || cd /sys/fs/cgroup
if mkdir -p petstore-bench && cd petstore-bench &&
	{ echo 134217728 >memory.limit_in_bytes || echo 134217728 >memory.max; } &&
	echo $$ >cgroup.procs
then echo in "$PWD"
else ulimit -d 131072
fi
exec "$@"`

// small runs the service in little memory, on one core, at full load, while somebody looks at the
// operator's page. 100 keys have been used for 400 days.
func (b *bench) small() {
	pets := slices.Max(b.sizes(1, 10_000, 10_000_000))
	d := b.database(pets, 0)
	path := b.copy(d.path)
	history := open(path)
	run(history, `WITH RECURSIVE
		days (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM days WHERE n < 399),
		usages (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM usages WHERE n < 100)
		INSERT INTO usage_days
		SELECT usages.n, unixepoch() / 86400 - 1 - days.n, 1000, 10, 1 FROM days, usages`)
	must(history.Close())
	join := append(slices.Clone(serverCore), "sh", "-c", inGroup, "sh")
	env := []string{"GOMAXPROCS=1", "GOMEMLIMIT=96MiB"}
	debug := &server{address: freeAddress()}
	s := b.serve(path, d.key, join, env, "-debug-addr", debug.address)
	go func() {
		for range time.Tick(time.Second) {
			_, _ = debug.exchange(debug.get("/stats.json"))
		}
	}()
	seconds := 600
	if b.quick {
		seconds = 1
	}
	s.mayFail = true
	f := b.load(s, s.mix(pets), clients, seconds)
	b.record("one core and 128 MiB", pets, f)
	s.discard()
	// A group can be removed only when it is empty.
	_ = os.Remove("/sys/fs/cgroup/memory/petstore-bench")
	_ = os.Remove("/sys/fs/cgroup/petstore-bench")
}
