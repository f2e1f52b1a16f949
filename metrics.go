package main

// The instruments, and the forms in which Prometheus and the operator's page read them. This
// file knows nothing of the service: what is counted is declared where it happens.

import (
	"bytes"
	"fmt"
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
	bounds []int64           // the largest value that each bucket takes, ascending
	counts [16]atomic.Uint64 // one for each bound, and one for what is larger
	sum    atomic.Int64
}

// durationBounds are nanoseconds, from 50 microseconds to 10 seconds.
var durationBounds = []int64{
	50e3, 100e3, 250e3, 500e3, 1e6, 2500e3, 5e6, 10e6, 25e6, 50e6, 100e6, 250e6, 1e9, 2500e6, 10e9,
}

func (h *histogram) observe(value int64) {
	bucket, _ := slices.BinarySearch(h.bounds, value)
	h.counts[bucket].Add(1)
	h.sum.Add(value)
}

// exposition is all metrics at one moment: in Prometheus' text format, version 0.0.4, and as numbers by name and labels.
type exposition struct {
	bytes.Buffer
	numbers map[string]float64
}

// sample is one number: labels, and before them the suffix of its name, if its kind has any.
type sample struct {
	labels string
	value  float64
}

// add appends a metric. Its kind is counter, gauge or histogram.
func (e *exposition) add(name, kind, help string, samples ...sample) {
	fmt.Fprintf(&e.Buffer, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	for _, s := range samples {
		fmt.Fprintf(&e.Buffer, "%s%s %s\n", name, s.labels, strconv.FormatFloat(s.value, 'g', -1, 64))
		e.numbers[name+s.labels] = s.value
	}
}

// number appends a metric that is one number without labels.
func (e *exposition) number(name, kind, help string, value float64) {
	e.add(name, kind, help, sample{"", value})
}

// samples are the histogram's, with the label in front of each bound. unit is
// how many of the histogram's units make one of the metric's.
func (h *histogram) samples(label string, unit float64) []sample {
	var samples []sample
	total := 0.0
	for i, bound := range h.bounds {
		total += float64(h.counts[i].Load())
		le := strconv.FormatFloat(float64(bound)/unit, 'g', -1, 64)
		samples = append(samples, sample{fmt.Sprintf("_bucket{%sle=%q}", label, le), total})
	}
	total += float64(h.counts[len(h.bounds)].Load())
	labels := strings.Replace("{"+strings.TrimSuffix(label, ",")+"}", "{}", "", 1) // no empty braces
	return append(samples, sample{fmt.Sprintf("_bucket{%sle=\"+Inf\"}", label), total},
		sample{"_sum" + labels, float64(h.sum.Load()) / unit}, sample{"_count" + labels, total})
}

// build is the version and the commit that the toolchain recorded.
func build() (release, revision string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown build)", ""
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			revision = setting.Value
		}
	}
	return info.Main.Version, revision
}

var processStart = time.Now()

// process appends what Prometheus' own clients report of every Go program; what
// comes from /proc is left out where there is none.
func (e *exposition) process() {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	e.number("go_goroutines", "gauge", "Goroutines.", float64(runtime.NumGoroutine()))
	e.number("go_memstats_heap_alloc_bytes", "gauge", "Bytes of the Go heap in use.", float64(memory.HeapAlloc))
	e.number("go_memstats_sys_bytes", "gauge", "Bytes that Go has from the system.", float64(memory.Sys))
	e.number("go_memstats_alloc_bytes_total", "counter", "Bytes allocated on the Go heap.", float64(memory.TotalAlloc))
	e.number("go_gc_cycles_total", "counter", "Garbage collections.", float64(memory.NumGC))
	start := float64(processStart.UnixMilli()) / 1000
	e.number("process_start_time_seconds", "gauge", "Start of the process, in Unix time.", start)
	if stat, err := os.ReadFile("/proc/self/stat"); err == nil {
		// The name, in brackets, may hold spaces. After it, fields[11] is ticks of 10 ms
		// in user mode, and fields[12] those in the kernel (proc_pid_stat(5)).
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		user, _ := strconv.ParseFloat(fields[11], 64)
		kernel, _ := strconv.ParseFloat(fields[12], 64)
		e.number("process_cpu_seconds_total", "counter", "CPU time spent.", (user+kernel)/100)
		pages, _ := strconv.ParseFloat(fields[21], 64)
		e.number("process_resident_memory_bytes", "gauge", "Resident memory.", pages*float64(os.Getpagesize()))
	}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		e.number("process_open_fds", "gauge", "Open files.", float64(len(files)))
	}
}
