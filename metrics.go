package main

// The instruments, and the forms in which Prometheus and the operator's page read them. What is
// counted is counted where it happens; names and help texts stand in the table below. This file
// uses no other.

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// histogram counts observations by their size. A reader may find one that is just being counted in
// some of the numbers and not yet in the others.
type histogram struct {
	bounds []float64        // the largest value that each bucket takes, ascending
	counts [16]atomic.Int64 // one for each of at most 15 bounds, and one for the rest
	sum    atomic.Int64
}

// durationBounds are nanoseconds, from 50 microseconds to 10 seconds.
var durationBounds = []float64{
	50e3, 100e3, 250e3, 500e3, 1e6, 2.5e6, 5e6, 10e6, 25e6, 50e6, 100e6, 250e6, 1e9, 2.5e9, 10e9,
}

func (h *histogram) observe(value int64) {
	bucket, _ := slices.BinarySearch(h.bounds, float64(value))
	h.counts[bucket].Add(1)
	h.sum.Add(value)
}

// operationCounts is what /metrics shows of an operation. A response that was never begun has the
// status 0.
type operationCounts struct {
	responses [600]atomic.Int64 // by status
	durations histogram         // nanoseconds of the service's own time
}

func (c *operationCounts) add(status int, took time.Duration) {
	c.responses[status].Add(1)
	switch status {
	case 0: // it took no time that is known
	case http.StatusUnauthorized, http.StatusTooManyRequests:
		// Refusals take next to no time. Timed, they would hide how long handled requests take.
	default:
		c.durations.observe(int64(took))
	}
}

func (c *operationCounts) measure(e *exposition, name string) {
	for status := range c.responses {
		if n := c.responses[status].Load(); n > 0 {
			labels := fmt.Sprintf("{operation=%q,status=\"%d\"}", name, status)
			e.add("petstore_requests_total", labels, n)
		}
	}
	// addHistogram sets the braces itself, because it adds a label of its own.
	label := fmt.Sprintf("operation=%q", name)
	e.addHistogram("petstore_request_duration_seconds", label, &c.durations, 1e9)
}

// metrics are all that /metrics shows, in this order.
var metrics = []struct{ name, kind, help string }{
	{"petstore_build_info", "gauge", "The build that is running."},
	{"petstore_engine_info", "gauge",
		"What keeps the data: a file, or the node of a cluster that is in use."},
	{"petstore_ready", "gauge", "1 if the store can be read and written, or 0."},
	{"petstore_requests_total", "counter", "Responses, by operation and status."},
	{"petstore_request_duration_seconds", "histogram",
		"The service's own time for a request, but for refusals (401 and 429)."},
	{"petstore_errors_total", "counter",
		"Responses that were errors, by code; lookup_refused and not_ready are codes of this " +
			"metric alone."},
	{"petstore_bans_total", "counter", "Bans of keys that began."},
	{"petstore_queue_refusals_total", "counter",
		"Creates that got 503 because too many writes waited, or too many of their key."},
	{"petstore_commit_requests", "histogram", "Writes, mostly of requests, that shared a commit."},
	{"petstore_commit_duration_seconds", "histogram",
		"From a commit's start to its sync, if it succeeded."},
	{"petstore_commit_failures_total", "counter", "Commits that failed."},
	{"petstore_ids_given_again_total", "counter",
		"Pets whose id had been given before: the database has lost pets."},
	{"petstore_sync_failed", "gauge",
		"1 if a sync of the database file has failed, so that nothing is written any more, or 0."},
	{"petstore_database_bytes", "gauge", "Bytes of the database file and of its log."},
	{"petstore_disk_free_bytes", "gauge", "Bytes that the disk of the database has left."},
	{"petstore_disk_size_bytes", "gauge", "Bytes that the disk of the database has."},
	{"petstore_nodes", "gauge", "Nodes of the cluster that are listed with -db."},
	{"petstore_nodes_serving", "gauge", "Nodes that said last that they lead or follow."},
	{"petstore_pets", "gauge", "Pets, as they were counted last, once a minute at most."},
	{"petstore_foreign_keys", "gauge",
		"Keys of the other environment, if none is of this one; or 0."},
	{"petstore_last_backup_timestamp_seconds", "gauge",
		"End of the last petstore backup that succeeded, in Unix time."},
	{"petstore_certificate_expiry_timestamp_seconds", "gauge",
		"End of the certificate that is served, in Unix time."},
	{"petstore_certificate_files_unusable", "gauge",
		"1 if the files of -tls-cert and -tls-key cannot be used any more, 0 if they can."},
	{"petstore_node_requests_total", "counter",
		"Requests to the nodes of the cluster, by outcome."},
	{"petstore_unknown_outcomes_total", "counter", "Transactions whose outcome is unknown."},
	{"petstore_log_lines_dropped_total", "counter",
		"Lines of the log that were dropped, since nobody read stderr."},
	{"process_start_time_seconds", "gauge", "Start of the process, in Unix time."},
	{"process_cpu_seconds_total", "counter", "CPU time spent."},
	{"process_resident_memory_bytes", "gauge", "Resident memory."},
}

// exposition holds the values of all metrics at one moment.
type exposition struct {
	lines   map[string]string  // of each metric, in Prometheus' text format, version 0.0.4
	numbers map[string]float64 // by name and suffix, as add has them
	made    time.Time
}

func newExposition() *exposition {
	return &exposition{
		lines:   map[string]string{},
		numbers: map[string]float64{},
		made:    time.Now(),
	}
}

// addRecent adds the metrics of another exposition, which may be nil, unless it is older than age.
func (e *exposition) addRecent(other *exposition, age time.Duration) {
	if other != nil && time.Since(other.made) <= age {
		maps.Copy(e.lines, other.lines)
		maps.Copy(e.numbers, other.numbers)
	}
}

// add adds a value to a metric. suffix is "" or labels in braces. For a part of a histogram, the
// suffix of its name comes before the labels: _bucket{le="1"}.
func (e *exposition) add(metric, suffix string, value int64) {
	e.addFloat(metric, suffix, float64(value))
}

// addFloat does what add does, for a value that is no integer.
func (e *exposition) addFloat(metric, suffix string, value float64) {
	e.numbers[metric+suffix] = value
	e.lines[metric] += metric + suffix + " " + formatFloat(value) + "\n"
}

func formatFloat(value float64) string { return strconv.FormatFloat(value, 'g', -1, 64) }

// addHistogram adds what a histogram has counted. label is one label without braces, or "". Values
// are divided by scale: 1e9 makes seconds of nanoseconds.
func (e *exposition) addHistogram(metric, label string, h *histogram, scale float64) {
	braces := ""
	prefix := ""
	if label != "" {
		braces = "{" + label + "}"
		prefix = label + ","
	}
	var total int64
	for i, bound := range append(slices.Clone(h.bounds), math.Inf(1)) {
		total += h.counts[i].Load()
		le := formatFloat(bound / scale)
		e.add(metric, fmt.Sprintf("_bucket{%sle=%q}", prefix, le), total)
	}
	e.addFloat(metric, "_sum"+braces, float64(h.sum.Load())/scale)
	e.add(metric, "_count"+braces, total)
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

// build names what the program was built from, as the toolchain recorded it: a tag or a commit.
func build() string {
	info, _ := debug.ReadBuildInfo() // every build of a module has it
	return info.Main.Version
}

var processStart = time.Now()

// addProcess adds what Prometheus' own clients report of every Go program. Where there is no
// /proc, the CPU time and the resident memory are left out.
func (e *exposition) addProcess() {
	e.add("process_start_time_seconds", "", processStart.Unix())
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return
	}
	// The second field is the name of the program, in brackets, and may hold spaces. So fields[0]
	// is field 3 of proc_pid_stat(5). The times are its fields 14 and 15, in ticks of 10 ms. The
	// resident memory is its field 24, in pages.
	nameEnd := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[nameEnd+1:]))
	number := func(index int) int64 {
		n, _ := strconv.ParseInt(fields[index], 10, 64)
		return n
	}
	userTicks := number(11)
	kernelTicks := number(12)
	e.addFloat("process_cpu_seconds_total", "", float64(userTicks+kernelTicks)/100)
	pages := number(21)
	e.add("process_resident_memory_bytes", "", pages*int64(os.Getpagesize()))
}
