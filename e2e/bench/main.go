//go:build linux

// Bench measures how fast the service is, beside a ceiling (a bare net/http server that sends the
// same bytes), on a cluster, and beside other systems. It makes the tables and the plots of
// docs/performance.md.
//
//	cd e2e && go run ./bench              all sections
//	cd e2e && go run ./bench speed peers  these sections
//	cd e2e && go run ./bench -draw        the same tables and plots again; nothing is measured
//	cd e2e && go run ./bench -quick       does it work? all but peers, with short measurements
//	cd e2e && go run ./bench -short       most of the goals, in five minutes, 10 % wider
//
// The sections, in their order:
//
//	speed        requests of every kind, in turn with the ceiling
//	onecore      readers beside writers on one core
//	clients      1 to 256 clients that add pets, on a file and on a cluster
//	connections  memory with 1 to 4,096 connections
//	memory       memory, time to start, and size on disk
//	growth       what a request costs among 10 thousand to 10 million pets
//	keys         what it costs among 10 to 1,000,000 keys, and new pets beside keys in use
//	costly       what the costliest requests cost
//	small        half a core and 128 MiB, with the operator's page open
//	cluster      the service on three nodes, in turn with one on a file
//	peers        the service beside PocketBase, Fastify, FastAPI, and rqlite
//
// What is measured goes into a file of its section in bench/results, in the format of Go's
// benchmarks; those of the plots are kept. Tables and plots are made of these files: tables go to
// stdout, and into docs/performance.md where it has a place for them; plots into docs/plots, each
// in a light and in a dark form. At the end stands which goals hold, of the document's table.
//
// Requests per second of one machine say little about another, and those of a shared machine move
// from one second to the next. So what is compared takes turns of a second, for some rounds
// (-rounds), and what counts are the medians of ratios of two measurements next to each other.
//
// It needs Linux with two cores, Go, and wrk (on Debian: apt install wrk); rqlited on the PATH for
// clients, cluster, and peers; and for peers what peers_setup.go names. All traffic stays on
// 127.0.0.1. A response that should not be an error and is one ends the run with exit status 1.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/perf/benchfmt"
)

// bench is what all sections share.
type bench struct {
	work              string // a folder on a real disk, for this time only
	results, docs     string
	petstore, ceiling string // programs
	rounds            int    // of a second
	quick, short      bool
	databases         map[string]*database
	config            []benchfmt.Config
	file              *benchfmt.Writer // gets the figures of the section
}

type section struct {
	name    string
	measure func(*bench)
	tell    func(*bench, *results)
}

var sections = []section{
	{"speed", (*bench).speed, (*bench).tellSpeed},
	{"onecore", (*bench).oneCore, (*bench).tellOneCore},
	{"clients", (*bench).clients, (*bench).tellClients},
	{"connections", (*bench).connections, (*bench).tellConnections},
	{"memory", (*bench).memory, (*bench).tellMemory},
	{"growth", (*bench).growth, (*bench).tellGrowth},
	{"keys", (*bench).keys, (*bench).tellKeys},
	{"costly", (*bench).costly, (*bench).tellCostly},
	{"small", (*bench).small, (*bench).tellSmall},
	{"cluster", (*bench).cluster, (*bench).tellCluster},
	{"peers", (*bench).peers, (*bench).tellPeers},
}

func main() {
	log.SetFlags(0)
	b := &bench{
		results:   filepath.Join("bench", "results"),
		docs:      filepath.Join("..", "docs"),
		databases: map[string]*database{},
	}
	folder := filepath.Join(os.TempDir(), "petstore-bench")
	flag.StringVar(&folder, "dir", folder, "`FOLDER` for databases; it must be on a real disk")
	flag.IntVar(&b.rounds, "rounds", 10, "how many `SECONDS` each thing is measured")
	flag.BoolVar(&b.quick, "quick", false, "try everything; results and docs stay as they are")
	flag.BoolVar(&b.short, "short", false, "look at the goals; results and docs stay as they are")
	draw := flag.Bool("draw", false, "measure nothing; make tables and plots of what was measured")
	flag.Parse()
	b.work = filepath.Join(folder, "work")
	if b.quick || b.short {
		b.rounds = 1
		b.results = filepath.Join(folder, "results")
		b.copyDocument(filepath.Join(folder, "docs"))
	}
	names := flag.Args()
	if b.short {
		b.rounds = 3
		names = []string{"speed", "onecore", "memory", "growth"}
	}
	asked := chosen(names, b.quick)
	if *draw {
		b.tell(asked)
		return
	}
	// What an earlier run has left is removed only now: it may tell why that failed.
	must(os.RemoveAll(b.work))
	if b.quick || b.short {
		must(os.RemoveAll(b.results))
	}
	must(os.MkdirAll(b.work, 0o755))
	must(os.MkdirAll(b.results, 0o755))
	b.build()
	for _, s := range asked {
		b.measureSection(s)
	}
	b.tell(asked)
	must(os.RemoveAll(b.work))
}

// chosen are the sections that are named, or all of them.
func chosen(names []string, quick bool) []section {
	var asked []section
	for _, s := range sections {
		standard := len(names) == 0 && !(quick && s.name == "peers")
		if standard || slices.Contains(names, s.name) {
			asked = append(asked, s)
		}
	}
	if len(asked) < len(names) {
		fail("not all of %q are sections; see: go doc ./bench", names)
	}
	return asked
}

// copyDocument lets tables and plots go into another folder than docs.
func (b *bench) copyDocument(folder string) {
	must(os.MkdirAll(filepath.Join(folder, "plots"), 0o755))
	command("cp", b.document(), folder)
	b.docs = folder
}

func (b *bench) document() string { return filepath.Join(b.docs, "performance.md") }

func write(path string, text []byte) {
	must(os.WriteFile(path, text, 0o644)) //nolint:gosec // to be read by anybody
}

func (b *bench) measureSection(s section) {
	file := must1(os.Create(b.resultsOf(s.name)))
	b.file = benchfmt.NewWriter(file)
	say("== %s", s.name)
	b.describe()
	s.measure(b)
	must(file.Close())
}

// describe says on what the figures that follow depend.
func (b *bench) describe() {
	proc := must1(procfs.NewDefaultFS())
	cpu := must1(proc.CPUInfo())[0].ModelName
	now := time.Now().UTC()
	b.config = nil
	b.describeAs("program", "%s", command(b.petstore, "version"))
	b.describeAs("machine", "%s, %d cores", cpu, runtime.NumCPU())
	b.describeAs("date", "%s", now.Format(time.DateOnly))
}

func (b *bench) describeAs(key, format string, args ...any) {
	b.config = append(b.config, benchfmt.Config{
		Key:   key,
		Value: fmt.Appendf(nil, format, args...),
		File:  true,
	})
}

func (b *bench) tell(asked []section) {
	for _, s := range asked {
		if r := b.read(s.name); len(r.lines) > 0 {
			s.tell(b, r)
		}
	}
	b.tellGoals()
}

// must ends the program. The system then kills all that it has started: see start.
func must(err error) {
	if err != nil {
		log.Fatalf("bench: FAILED: %v", err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

func fail(format string, args ...any) { must(fmt.Errorf(format, args...)) }

func say(format string, args ...any) { log.Printf(format, args...) }
