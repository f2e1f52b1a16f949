//go:build linux

// Bench measures the service beside a ceiling: a bare net/http server that
// sends the same bytes. It prints tables in markdown on stdout, and what it is
// doing on stderr.
//
//	cd e2e && go run ./bench -quick     all sections in about a minute: does it work? its numbers mean little
//	cd e2e && go run ./bench            -speed -mirror -memory -start -sync -onecore
//	cd e2e && go run ./bench -growth -animals 10000,1000000,10000000
//	cd e2e && go run ./bench -peers -rounds 3    beside other systems, about 15 minutes; rqlited must be on the PATH
//	cd e2e && go run ./bench -curves -seconds 2  what the plots show, about 10 minutes; rqlited must be on the PATH
//	cd e2e && go run ./bench -draw               those tables and plots again, from the raw figures in -results
//
// Requests per second of one machine say little about another, and those of a
// shared machine move from one minute to the next. So the service and the ceiling
// take turns, and what counts is the ratio of two measurements next to each other.
//
// It needs Linux, go, and wrk (on Debian: apt install wrk); strace if it is there.
// All traffic stays on 127.0.0.1. An answer that should not be an error and is
// one ends the run with exit status 1.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	_ "modernc.org/sqlite"
)

// bench is one run.
type bench struct {
	ctx                          context.Context
	dir, work                    string   // databases that are kept; what is removed at the end
	petstore, ceiling            string   // the programs
	pocketbase                   string   // one more, with -peers
	recipe                       string   // a digest of how databases are filled, in their names
	cores                        []string // two that may be used, or fewer
	pinned, pinnedWrk            []string // taskset, or nothing on one core
	connections, seconds, rounds int
	animals                      []int
	quick                        bool
	results, plots, doc          string   // folders of raw figures and of plots; the document with their tables, or ""
	runCount                     int      // of -peers and -curves
	about                        []string // what the numbers depend on

	mu      sync.Mutex // guards running
	running map[*process]bool
}

// failure ends the run: must and fail panic with it, so that what was started is
// stopped on the way out, and main prints it.
type failure struct{ error }

func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must1[T any](v T, err error) T { must(err); return v }

func fail(format string, args ...any) { must(fmt.Errorf(format, args...)) }

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func main() {
	if err := run(); err != nil {
		say("\nbench: FAILED: %v", err)
		os.Exit(1)
	}
}

func run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	b := &bench{ctx: ctx, running: map[*process]bool{}}
	defer func() {
		v := recover()
		b.killAll()
		if b.work != "" {
			_ = os.RemoveAll(b.work)
		}
		if f, ok := v.(failure); ok && ctx.Err() != nil {
			err = errors.New("interrupted")
		} else if ok {
			err = f.error
		} else if v != nil {
			panic(v)
		}
	}()

	sections := []struct {
		name, does string
		standard   bool
		run        func()
		asked      bool
	}{
		{"speed", "requests, latency and CPU beside the ceiling", true, b.speed, false},
		{"mirror", "clients that follow all pages, beside the ceiling", true, b.mirror, false},
		{"memory", "resident memory, binary and file size", true, b.memory, false},
		{"start", "start to first answer, also after a kill", true, b.start, false},
		{"page", "first paint of the page; chromium must be on the PATH", false, b.page, false},
		{"sync", "creates for each commit", true, b.sync, false},
		{"onecore", "readers beside writers on one core", true, b.oneCore, false},
		{"growth", "what more animals and more keys cost", false, b.growth, false},
		{"hostile", "cold caches, guessed ids and keys", false, b.hostile, false},
		{"small", "10 minutes in 128 MiB, the operator's page open", false, b.small, false},
		{"cluster", "one service on three nodes beside one on a file; rqlited must be on the PATH", false, b.cluster, false},
		{"curves", "the plots of growth, clients, a leader's loss, and connections; rqlited must be on the PATH", false, b.curves, false},
		{"peers", "beside PocketBase, Fastify, FastAPI, and rqlite; not with -quick alone", false, b.peers, false},
	}
	any := false
	for i := range sections {
		s := &sections[i]
		flag.BoolFunc(s.name, s.does, func(string) error { s.asked, any = true, true; return nil })
	}
	animals := flag.String("animals", "10000,1000000", "animals in each database, `N,N,…`")
	flag.StringVar(&b.dir, "dir", filepath.Join(os.TempDir(), "petstore-bench"), "`FOLDER` where databases are kept between runs; it must be on a real disk")
	source := flag.String("src", "..", "`FOLDER` of the service's source")
	flag.IntVar(&b.connections, "connections", 64, "connections of wrk")
	flag.IntVar(&b.seconds, "seconds", 3, "length of each measurement")
	flag.IntVar(&b.rounds, "rounds", 5, "rounds, of which medians are shown")
	flag.BoolVar(&b.quick, "quick", false, "all sections with less in them, 1 round of 1 s, 10,000 animals: does the benchmark still work?")
	flag.IntVar(&b.runCount, "runs", 3, "runs of -peers and -curves, each with everything started anew")
	flag.StringVar(&b.results, "results", "bench/results", "`FOLDER` of the raw figures of -peers and -curves")
	flag.StringVar(&b.plots, "plots", "../docs/plots", "`FOLDER` of the plots that are drawn from them")
	flag.StringVar(&b.doc, "doc", "../docs/performance.md", "`FILE` that gets the tables of -peers and -curves; \"\" for none")
	draw := flag.Bool("draw", false, "measure nothing: print the tables and draw the plots of what is in -results")
	flag.Parse()
	if *draw {
		return b.draw()
	}
	if b.quick {
		b.rounds, b.seconds, b.runCount, *animals = 1, 1, 1, "10000"
		b.results, b.plots = filepath.Join(b.dir, "results"), filepath.Join(b.dir, "plots")
		b.doc = ""
	}
	for text := range strings.SplitSeq(*animals, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1000 {
			return fmt.Errorf("-animals: %q is not a number of at least 1000", text)
		}
		b.animals = append(b.animals, n)
	}
	if flag.NArg() > 0 || b.connections < 1 || b.seconds < 1 || b.rounds < 1 || b.runCount < 1 {
		return errors.New("bad arguments; see -help")
	}
	if _, err := exec.LookPath("wrk"); err != nil {
		return errors.New("wrk is missing; on Debian: apt install wrk")
	}
	if b.cores = allowedCores(); len(b.cores) > 1 {
		if _, err := exec.LookPath("taskset"); err != nil {
			return errors.New("taskset is missing; on Debian: apt install util-linux")
		}
		b.pinned, b.pinnedWrk = []string{"taskset", "-c", b.cores[0]}, []string{"taskset", "-c", b.cores[1]}
	}
	must(os.MkdirAll(b.dir, 0o755))
	b.work = must1(os.MkdirTemp(b.dir, "run-"))
	b.build(*source)
	b.environment()
	for _, s := range sections {
		if s.asked || b.quick && !any && s.name != "peers" || !any && s.standard {
			say("== %s", s.name)
			s.run()
			must(ctx.Err())
		}
	}
	return nil
}

// build builds the service as it is released, and the ceiling alike.
func (b *bench) build(source string) {
	b.petstore, b.ceiling = filepath.Join(b.work, "petstore"), filepath.Join(b.work, "ceiling")
	for _, what := range []struct{ dir, out, pkg string }{{source, b.petstore, "."}, {".", b.ceiling, "./bench/ceiling"}} {
		cmd := exec.CommandContext(b.ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", what.out, what.pkg)
		cmd.Dir, cmd.Env = what.dir, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fail("go build in %s: %w\n%s", what.dir, err, out)
		}
	}
	// Databases filled for another schema, or with other animals, must not be used.
	empty := filepath.Join(b.work, "empty.db")
	b.newKey(empty)
	db := open(empty)
	defer db.Close()
	var text string
	must(db.QueryRowContext(b.ctx, "SELECT group_concat(sql, ';') FROM (SELECT sql FROM sqlite_schema ORDER BY name)").Scan(&text))
	b.recipe = fmt.Sprintf("%x", sha256.Sum256([]byte(text+fillPets)))[:8]
}

func (b *bench) command(name string, args ...string) string {
	out, err := exec.CommandContext(b.ctx, name, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		fail("%s: %w\n%s", name, err, exit.Stderr)
	}
	must(err)
	return strings.TrimSpace(string(out))
}

// newKey makes a key with limits that no run reaches, and the database if there is none.
func (b *bench) newKey(db string) string {
	return b.command(b.petstore, "key", "create", "-db", db, "-plan", "enterprise", "-per-minute", "1000000000", "-per-day", "1000000000000")
}

// environment prints what the numbers depend on.
func (b *bench) environment() {
	model := "unknown CPU"
	for line := range strings.Lines(string(must1(os.ReadFile("/proc/cpuinfo")))) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
		}
	}
	driver := "modernc.org/sqlite " + b.moduleOf(b.petstore, "modernc.org/sqlite")
	var sqlite string
	db := open(":memory:")
	defer db.Close()
	must(db.QueryRowContext(b.ctx, "SELECT sqlite_version()").Scan(&sqlite))
	var fs syscall.Statfs_t
	must(syscall.Statfs(b.dir, &fs))
	disk := fmt.Sprintf("file system type %#x", fs.Type)
	if fs.Type == 0x01021994 {
		disk = "**tmpfs: a sync costs nothing here, so creates mean nothing; use -dir**"
	}
	pins := "nothing pinned"
	if b.pinned != nil {
		pins = fmt.Sprintf("server pinned to core %s, wrk to core %s", b.cores[0], b.cores[1])
	}
	kernel := strings.TrimSpace(string(must1(os.ReadFile("/proc/sys/kernel/osrelease"))))
	b.about = []string{
		b.command(b.petstore, "version"), time.Now().UTC().Format(time.RFC3339),
		fmt.Sprintf("%s, %d cores; %s; Linux %s", model, runtime.NumCPU(), pins, kernel),
		fmt.Sprintf("%s, %s (this benchmark fills the databases with SQLite %s)", runtime.Version(), driver, sqlite),
		"databases on a disk with " + disk,
		fmt.Sprintf("%d connections, %d s each, medians of %d rounds; load average before: %s", b.connections, b.seconds, b.rounds,
			strings.Join(strings.Fields(string(must1(os.ReadFile("/proc/loadavg"))))[:3], " ")),
		fmt.Sprintf("`go run ./bench %s`", strings.Join(os.Args[1:], " ")),
	}
	fmt.Printf("# Benchmark of %s\n\n- %s\n", b.about[0], strings.Join(b.about[1:], "\n- "))
	if b.quick {
		fmt.Print("\n**-quick: this shows that the benchmark works. Do not quote its numbers.**\n")
	}
}

// moduleOf is the version of a module in a program.
func (b *bench) moduleOf(program, module string) string {
	for line := range strings.Lines(b.command("go", "version", "-m", program)) {
		if f := strings.Fields(line); len(f) > 2 && (f[0] == "dep" || f[0] == "mod") && f[1] == module {
			return f[2]
		}
	}
	return "of an unknown version"
}

// open opens a database without making the service's choices for it.
func open(path string) *sql.DB {
	db := must1(sql.Open("sqlite", path))
	db.SetMaxOpenConns(1) // one connection, so that pragmas and temporary tables hold
	return db
}

// database is one that no service has opened: services get copies.
type database struct {
	path, key string
	animals   int
}

// The animals: names of 4.1 letters on average, half available, a fifth
// pending, the rest sold. Ids have no gaps.
const fillPets = `
CREATE TEMP TABLE names (k INTEGER PRIMARY KEY, name TEXT);
INSERT INTO names SELECT key, value FROM json_each('["Rex","Bella","Milo","Luna","Tom","Lucy","Max","Daisy","Oscar","Molly","Simba","Nala","Coco","Rocky","Lola","Kim"]');
BEGIN IMMEDIATE;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
INSERT INTO main.pets (category_id, status, name)
	SELECT i %% 100 + 1, CASE WHEN i * 7 %% 10 < 5 THEN 2 WHEN i * 7 %% 10 < 7 THEN 3 ELSE 4 END, (SELECT name FROM names WHERE k = i %% 16) FROM n;
COMMIT;`

// database finds or fills the database with so many animals and, beside the
// one it is used with, so many keys. Its tables are the service's own.
func (b *bench) database(animals, keys int) *database {
	d := &database{animals: animals}
	d.path = filepath.Join(b.dir, fmt.Sprintf("pets-%d-keys-%d-%s.db", animals, keys, b.recipe))
	if key, err := os.ReadFile(d.path + ".key"); err == nil {
		d.key = string(key)
		return d
	}
	say("filling %s", d.path)
	temp := filepath.Join(b.work, "filling.db")
	d.key = b.newKey(temp)
	db := open(temp)
	must1(db.ExecContext(b.ctx, "PRAGMA synchronous = OFF; PRAGMA cache_size = -65536"))
	must1(db.ExecContext(b.ctx, fmt.Sprintf(fillPets, animals)))
	// The other keys are like the one that the service has made, whatever columns it has.
	var columns string
	must(db.QueryRowContext(b.ctx, "SELECT group_concat(name) FROM pragma_table_info('api_keys') WHERE name NOT IN ('id', 'digest', 'last_four')").Scan(&columns))
	tx := must1(db.BeginTx(b.ctx, nil))
	stmt := must1(tx.PrepareContext(b.ctx, fmt.Sprintf("INSERT INTO api_keys (digest, last_four, %[1]s) SELECT ?, ?, %[1]s FROM api_keys WHERE id = 1", columns)))
	for i := range keys {
		token := makeToken("known", i)
		sum := sha256.Sum256([]byte(token))
		must1(stmt.ExecContext(b.ctx, sum[:], token[len(token)-4:]))
	}
	must(tx.Commit())
	must1(db.ExecContext(b.ctx, "PRAGMA wal_checkpoint(TRUNCATE)"))
	must(db.Close()) // the last connection removes the log
	if _, err := os.Stat(temp + "-wal"); err == nil {
		fail("%s-wal is left", temp)
	}
	must(os.Rename(temp, d.path))
	must(os.WriteFile(d.path+".key", []byte(d.key), 0o600)) // last: it says that the database is whole
	return d
}

// makeToken is a well-formed key (auth.go says of what), always the same for a number.
func makeToken(kind string, i int) string {
	const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	token := []byte("pet_live_")
	for _, c := range sha256.Sum256(fmt.Appendf(nil, "%s %d", kind, i)) { // 32 bytes, 32 characters
		token = append(token, base62[c%62])
	}
	sum, digits := crc32.ChecksumIEEE(token), make([]byte, 6)
	for i := 5; i >= 0; i-- {
		digits[i] = base62[sum%62]
		sum /= 62
	}
	return string(token) + string(digits)
}

// tokens writes the first n keys of a kind into a file, one a line, for wrk.
func (b *bench) tokens(kind string, n int) string {
	path := filepath.Join(b.work, fmt.Sprintf("%s-%d.txt", kind, n))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	f := must1(os.Create(path))
	defer f.Close()
	w := bufio.NewWriter(f)
	for i := range n {
		_, _ = w.WriteString(makeToken(kind, i) + "\n") // Flush reports the error
	}
	must(w.Flush())
	return path
}

// copy makes a throw-away copy, synced, so that writing it back to the disk
// does not fall into a measurement.
func (b *bench) copy(d *database) string {
	from := must1(os.Open(d.path))
	defer from.Close()
	to := must1(os.CreateTemp(b.work, "copy-*.db"))
	defer to.Close()
	must1(io.Copy(to, from))
	must(to.Sync())
	return to.Name()
}

// remove deletes a copy with its log.
func remove(path string) {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(path + suffix)
	}
}

func (b *bench) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.ctx.Done():
		must(b.ctx.Err())
	}
}
