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
	"strings"
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

// sizes are the numbers that are measured: with -quick only the first ones, and with -short none
// above a million.
func (b *bench) sizes(quick int, all ...int) []int {
	switch {
	case b.quick:
		return all[:quick]
	case b.short:
		return slices.DeleteFunc(all, func(n int) bool { return n > 1_000_000 })
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
		own := target{s, kind.script(s)}
		other := target{ceiling, kind.script(ceiling)}
		measured := b.inTurns(connections, own, other)
		ours, bare := measured[0], measured[1]
		compare("req/s", ours, bare)
		for i, f := range ours {
			top := bare[i]
			f["p99-ratio"] = f["p99-ms"] / top["p99-ms"]
			f["ceiling-req/s"] = top["req/s"]
			f["ceiling-µs"] = top["CPU-µs"]
			f["ceiling-p99-ms"] = top["p99-ms"]
		}
		b.record(kind.name, pets, ours...)
		s.discard()
		ceiling.kill()
	}
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
	writer := *s // which counts for itself
	var alone, beside, writers []figures
	for range b.rounds {
		alone = append(alone, b.load(s, reads, 32, 1))
		wrote := make(chan figures)
		go func() { wrote <- b.load(&writer, adds, 8, 1) }()
		beside = append(beside, b.load(s, reads, 32, 1))
		writers = append(writers, <-wrote)
	}
	compare("req/s", beside, alone)
	b.record("32 readers alone", d.pets, alone...)
	b.record("32 readers beside writers", d.pets, beside...)
	b.record("8 writers beside readers", d.pets, writers...)
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
		var firsts, others []figures
		for range b.rounds {
			first, again := b.startTimes(d)
			firsts = append(firsts, figures{"value": first})
			others = append(others, figures{"value": again})
		}
		b.record("ms from start to the first response", pets, firsts...)
		b.record("ms, the same after a kill under load", pets, others...)
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

// growth measures some scenarios in databases of other sizes too, in turns.
func (b *bench) growth() {
	sizes := b.sizes(2, 10_000, 100_000, 1_000_000, 10_000_000)
	for i, kind := range scenarios(sizes[0]) {
		if !kind.growth {
			continue
		}
		var targets []target
		for _, pets := range sizes {
			s := b.fresh(b.database(pets, 0), kind.flags...)
			targets = append(targets, target{s, scenarios(pets)[i].script(s)})
		}
		measured := b.inTurns(clients, targets...)
		for n, pets := range sizes {
			compare("CPU-µs", measured[n], measured[0])
			b.record(kind.name, pets, measured[n]...)
			targets[n].discard()
		}
	}
}

// keys measures requests each of which carries any of so many keys, and what their usage, which is
// stored every 750 ms, leaves to writers.
func (b *bench) keys() {
	b.writersBesideKeys()
	numbers := b.sizes(1, 10, 10_000, 1_000_000)
	var targets []target
	for _, n := range numbers {
		s := b.fresh(b.database(10_000, n))
		targets = append(targets, target{s, s.withKeys(b.keyFile(n))})
	}
	measured := b.inTurns(clients, targets...)
	for i, n := range numbers {
		b.record(fmt.Sprint(n, " keys"), 10_000, measured[i]...)
		targets[i].discard()
	}
}

// writersBesideKeys lets 8 clients add pets beside lists with any of so many keys.
func (b *bench) writersBesideKeys() {
	numbers := b.sizes(2, 10, 1_000, 10_000)
	adds := make([][]figures, len(numbers))
	var targets []target
	for _, n := range numbers {
		s := b.fresh(b.database(10_000, n))
		targets = append(targets, target{s, s.withKeys(b.keyFile(n))})
	}
	for range b.rounds {
		for i, t := range targets {
			adds[i] = append(adds[i], b.addsBeside(t))
		}
	}
	for i, n := range numbers {
		compare("req/s", adds[i], adds[0])
		for round, f := range adds[i] {
			f["p99-ratio"] = f["p99-ms"] / adds[0][round]["p99-ms"]
		}
		b.record(fmt.Sprint("adds beside ", n, " keys in use"), 10_000, adds[i]...)
		targets[i].discard()
	}
}

// addsBeside measures adds beside the load of a target, which begins a second before.
func (b *bench) addsBeside(t target) figures {
	reader := *t.server // which counts for itself
	read := make(chan figures)
	go func() { read <- b.load(&reader, t.script, 32, 4) }()
	time.Sleep(time.Second)
	f := b.load(t.server, always(t.add()), 8, 2)
	delete(f, "CPU-µs") // which includes the lists
	<-read
	return f
}

// costly compares what a stranger can make costly with an add. Nearly all of it is refused.
func (b *bench) costly() {
	d := b.database(10_000, 0)
	s := b.fresh(d)
	s.mayFail = true
	fill := func(unit string) string { return strings.Repeat(unit, 65_000/len(unit)) }
	post := func(body string) string { return s.send("POST", list, body) }
	var query strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&query, "&%x", i)
	}
	requests := []struct{ name, request string }{
		{"an add, plain", s.add()},
		{"a body of escaped names", post(`{` + fill(`"\u0061":0,`) + `"b":0}`)},
		{"a name of combining marks", post(`{"name":"` + fill("\u0300") + `","categoryId":1}`)},
		{"a query of 3,000 names", s.get(list + "?" + query.String()[1:])},
	}
	var targets []target
	for _, r := range requests {
		targets = append(targets, target{s, always(r.request)})
	}
	measured := b.inTurns(1, targets...)
	for i, r := range requests {
		compare("CPU-µs", measured[i], measured[0])
		b.record(r.name, d.pets, measured[i]...)
	}
	s.discard()
}

// The control groups, of version 1 or 2, of what small measures, as commands of a shell. They are
// deleted once they are empty.
const (
	makeGroups = `
cd /sys/fs/cgroup
if [ -d memory ]; then
	mkdir -p memory/petstore-bench cpu/petstore-bench
	echo 134217728 >memory/petstore-bench/memory.limit_in_bytes
	echo 100000 >cpu/petstore-bench/cpu.cfs_period_us
	echo 50000 >cpu/petstore-bench/cpu.cfs_quota_us
else
	echo "+cpu +memory" >cgroup.subtree_control
	mkdir -p petstore-bench
	echo 134217728 >petstore-bench/memory.max
	echo "50000 100000" >petstore-bench/cpu.max
fi`
	// joinGroups becomes a command in the groups.
	joinGroups = `
cd /sys/fs/cgroup
for group in memory/petstore-bench cpu/petstore-bench petstore-bench; do
	[ ! -d $group ] || echo $$ >$group/cgroup.procs
done
exec "$@"`
	deleteGroups = `
cd /sys/fs/cgroup
for group in memory/petstore-bench cpu/petstore-bench petstore-bench; do
	[ ! -d $group ] || rmdir $group
done`
)

// small runs the service and its commands in 128 MiB and on half a core, while somebody looks at
// the operator's page. 100 keys have been used for 400 days.
func (b *bench) small() {
	pets := slices.Max(b.sizes(1, 10_000, 1_000_000))
	d := b.database(pets, 0)
	path := b.copy(d.path)
	history := open(path)
	run(history, `WITH RECURSIVE
		days (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM days WHERE n < 399),
		usages (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM usages WHERE n < 100)
		INSERT INTO usage_days
		SELECT usages.n, unixepoch() / 86400 - 1 - days.n, 1000, 10, 1 FROM days, usages`)
	must(history.Close())
	lines := filepath.Join(b.work, "pets.jsonl")
	command(b.petstore, "pet", "export", "-db", d.path, lines)

	command("sh", "-ec", makeGroups)
	defer command("sh", "-ec", deleteGroups)
	command(b.petstore, "key", "create", "-db", path+"-imported") // which makes the database
	b.record("an import", pets, b.timeCommand("pet", "import", "-db", path+"-imported", lines))
	began := time.Now()
	s := b.serveSmall(path, d)
	b.record("a start", pets, seconds(began))
	mix := s.mix(pets)
	long := 3 * b.rounds
	for _, n := range []int{64, 512} {
		what := fmt.Sprint(n, " connections")
		b.record(what, pets, b.load(s, mix, n, long))
	}
	loaded := make(chan figures, 1)
	go func() { loaded <- b.load(s, mix, 64, long) }()
	var backups []figures
	for len(loaded) == 0 {
		to := fmt.Sprint(path, "-backup-", len(backups))
		backups = append(backups, b.timeCommand("backup", "-db", path, to))
	}
	b.record("a backup beside load", pets, backups...)
	b.record("64 connections beside backups", pets, <-loaded)
	s.discard()

	cert := filepath.Join(b.work, "cert.pem")
	key := filepath.Join(b.work, "key.pem")
	command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
		"-nodes", "-subj", "/CN=localhost", "-keyout", key, "-out", cert)
	s = b.serveSmall(b.copy(d.path), d, "-tls-cert", cert, "-tls-key", key)
	s.tls = true
	b.record("64 connections, TLS", pets, b.load(s, s.mix(pets), 64, long))
	b.record("64 connections, TLS and h2, lists", pets, b.h2load(s, 64, long))
	s.discard()
}

// inGroups is a command that becomes another one, in the groups.
var inGroups = append(slices.Clone(serverCore), "sh", "-ec", joinGroups, "sh")

// serveSmall starts a service in the groups, whose operator's page is read every second.
func (b *bench) serveSmall(path string, d *database, flags ...string) *server {
	debug := &server{address: freeAddress()}
	env := []string{"GOMEMLIMIT=96MiB"}
	s := b.serve(path, d.key, inGroups, env, append(flags, "-debug-addr", debug.address)...)
	s.mayFail = true
	debug.ask(debug.get("/stats.json"))
	go func() {
		for range time.Tick(time.Second) {
			if _, err := debug.exchange(debug.get("/stats.json")); err != nil {
				return // the service has ended
			}
		}
	}()
	return s
}

// timeCommand has the groups run a command of the program.
func (b *bench) timeCommand(args ...string) figures {
	all := slices.Concat(inGroups, []string{b.petstore}, args)
	began := time.Now()
	command(all[0], all[1:]...)
	return seconds(began)
}

func seconds(since time.Time) figures {
	return figures{"seconds": time.Since(since).Seconds()}
}
