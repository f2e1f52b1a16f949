package main

// The instruments, and the forms in which Prometheus and the operator's page read them. This
// file knows nothing of the service: what is counted is declared where it happens.

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// histogram counts observations by their size. A reader may find an
// observation in one of its numbers and not yet in another.
type histogram struct {
	bounds []float64         // the largest value that each bucket takes, ascending
	counts [16]atomic.Uint64 // one for each bound, and one for what is larger
	sum    atomic.Int64
}

// durationBounds are nanoseconds, from 50 microseconds to 10 seconds.
var durationBounds = []float64{
	50e3, 100e3, 250e3, 500e3, 1e6, 2500e3, 5e6, 10e6, 25e6, 50e6, 100e6, 250e6, 1e9, 2500e6, 10e9,
}

func (h *histogram) observe(value int64) {
	bucket, _ := slices.BinarySearch(h.bounds, float64(value))
	h.counts[bucket].Add(1)
	h.sum.Add(value)
}

// metrics are all that /metrics shows, in this order. What a metric counts is declared where it
// happens.
var metrics = []struct{ name, kind, help string }{
	{"petstore_build_info", "gauge", "The build that is running."},
	{"petstore_engine_info", "gauge",
		"What keeps the data: a file, or the node of a cluster that is in use."},
	{"petstore_requests_total", "counter", "Responses, by operation and status."},
	{"petstore_request_duration_seconds", "histogram", "From a request's head to its response."},
	{"petstore_errors_total", "counter",
		"Responses that were errors, refusals among them, by code."},
	{"petstore_bans_total", "counter", "Bans of keys that began."},
	{"petstore_known_keys", "gauge", "Keys remembered."},
	{"petstore_known_usages", "gauge", "Usages of keys remembered."},
	{"petstore_known_addresses", "gauge", "Addresses remembered of callers without a key."},
	{"petstore_cache_reads_total", "counter",
		"Reads of what may be remembered, by whether it was."},
	{"petstore_cache_bytes", "gauge", "Bytes of the pages and pets remembered."},
	{"petstore_commit_requests", "histogram", "Writers that shared a commit, requests above all."},
	{"petstore_commit_duration_seconds", "histogram",
		"From a commit's begin to its sync, if it succeeded."},
	{"petstore_commit_failures_total", "counter", "Commits that failed."},
	{"petstore_commit_queue_length", "gauge", "Writers that wait for a commit."},
	{"petstore_node_requests_total", "counter",
		"Requests to the nodes of the cluster, by outcome."},
	{"petstore_node_request_duration_seconds", "histogram", "Durations of those that succeeded."},
	{"petstore_node_retries_total", "counter", "Requests repeated after a failure."},
	{"petstore_unknown_outcomes_total", "counter", "Transactions whose outcome is unknown."},
	{"go_goroutines", "gauge", "Goroutines."},
	{"go_memstats_heap_alloc_bytes", "gauge", "Bytes of the Go heap in use."},
	{"go_memstats_sys_bytes", "gauge", "Bytes that Go has from the system."},
	{"go_memstats_alloc_bytes_total", "counter", "Bytes allocated on the Go heap."},
	{"go_gc_cycles_total", "counter", "Garbage collections."},
	{"process_start_time_seconds", "gauge", "Start of the process, in Unix time."},
	{"process_cpu_seconds_total", "counter", "CPU time spent."},
	{"process_resident_memory_bytes", "gauge", "Resident memory."},
	{"process_open_fds", "gauge", "Open files."},
}

// exposition is all metrics at one moment.
type exposition struct {
	lines   map[string]string  // of each metric, in Prometheus' text format, version 0.0.4
	numbers map[string]float64 // by name and labels
}

func newExposition() *exposition { return &exposition{map[string]string{}, map[string]float64{}} }

// add adds a number to a metric. labels stand in braces; before them is the suffix of a part of a
// histogram.
func (e *exposition) add(metric, labels string, value float64) {
	e.lines[metric] += metric + labels + " " + strconv.FormatFloat(value, 'g', -1, 64) + "\n"
	e.numbers[metric+labels] = value
}

// addHistogram adds what a histogram has counted, with the label in front of each bound. unit is
// how many of the histogram's units make one of the metric's.
func (e *exposition) addHistogram(metric, label string, h *histogram, unit float64) {
	total := 0.0
	for i, bound := range append(slices.Clone(h.bounds), math.Inf(1)) {
		total += float64(h.counts[i].Load())
		le := strconv.FormatFloat(bound/unit, 'g', -1, 64)
		e.add(metric, fmt.Sprintf("_bucket{%sle=%q}", label, le), total)
	}
	labels := ""
	if label != "" {
		labels = "{" + strings.TrimSuffix(label, ",") + "}"
	}
	e.add(metric, "_sum"+labels, float64(h.sum.Load())/unit)
	e.add(metric, "_count"+labels, total)
}

// String is the text for Prometheus. A metric without a number is left out.
func (e *exposition) String() string {
	b := &strings.Builder{}
	for _, m := range metrics {
		if lines := e.lines[m.name]; lines != "" {
			fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n%s", m.name, m.help, m.name, m.kind, lines)
		}
	}
	return b.String()
}

// build is the version and the commit that the toolchain recorded.
func build() (release, revision string) {
	info, _ := debug.ReadBuildInfo() // which every build of a module has
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			revision = setting.Value
		}
	}
	return info.Main.Version, revision
}

var processStart = time.Now()

// addProcess adds what Prometheus' own clients report of every Go program; what
// comes from /proc is left out where there is none.
func (e *exposition) addProcess() {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	e.add("go_goroutines", "", float64(runtime.NumGoroutine()))
	e.add("go_memstats_heap_alloc_bytes", "", float64(memory.HeapAlloc))
	e.add("go_memstats_sys_bytes", "", float64(memory.Sys))
	e.add("go_memstats_alloc_bytes_total", "", float64(memory.TotalAlloc))
	e.add("go_gc_cycles_total", "", float64(memory.NumGC))
	e.add("process_start_time_seconds", "", float64(processStart.UnixMilli())/1000)
	if stat, err := os.ReadFile("/proc/self/stat"); err == nil {
		// The name, in brackets, may hold spaces. After it, fields[11] is ticks of 10 ms
		// in user mode, and fields[12] those in the kernel (proc_pid_stat(5)).
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		user, _ := strconv.ParseFloat(fields[11], 64)
		kernel, _ := strconv.ParseFloat(fields[12], 64)
		e.add("process_cpu_seconds_total", "", (user+kernel)/100)
		pages, _ := strconv.ParseFloat(fields[21], 64)
		e.add("process_resident_memory_bytes", "", pages*float64(os.Getpagesize()))
	}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		e.add("process_open_fds", "", float64(len(files)))
	}
}
