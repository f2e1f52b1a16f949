package main

import (
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestAMetricIsShownWithItsHelpAndKind(t *testing.T) {
	e := newExposition()
	e.add("petstore_requests_total", `{x="1"}`, 0)
	e.addFloat("petstore_build_info", "", 1.5) // it stands before the other in the table
	e.add("petstore_requests_total", `{x="2"}`, 1e6)
	const want = `# HELP petstore_build_info The build that is running.
# TYPE petstore_build_info gauge
petstore_build_info 1.5
# HELP petstore_requests_total Responses, by operation and status.
# TYPE petstore_requests_total counter
petstore_requests_total{x="1"} 0
petstore_requests_total{x="2"} 1e+06
`
	if got := e.String(); got != want {
		t.Errorf("the page is\n%s\nwant\n%s", got, want)
	}
	numbers := map[string]float64{
		"petstore_build_info":            1.5,
		`petstore_requests_total{x="1"}`: 0,
		`petstore_requests_total{x="2"}`: 1e6,
	}
	if !maps.Equal(e.numbers, numbers) {
		t.Errorf("the numbers are %v, want %v", e.numbers, numbers)
	}
}

func TestAHistogramCountsUpToAndWithItsBounds(t *testing.T) {
	h := histogram{bounds: []float64{1e9, 2250e6}}
	for _, value := range []int64{0, 1e9, 1e9 + 1, 2e9, 5e9} {
		h.observe(value)
	}
	for label, want := range map[string]string{
		`a="b"`: `h_bucket{a="b",le="1"} 2
h_bucket{a="b",le="2.25"} 4
h_bucket{a="b",le="+Inf"} 5
h_sum{a="b"} 9.000000001
h_count{a="b"} 5
`,
		"": `h_bucket{le="1"} 2
h_bucket{le="2.25"} 4
h_bucket{le="+Inf"} 5
h_sum 9.000000001
h_count 5
`,
	} {
		e := newExposition()
		e.addHistogram("h", label, &h, 1e9)
		if got := e.lines["h"]; got != want {
			t.Errorf("the histogram is\n%s\nwant\n%s", got, want)
		}
	}
}

func TestTheBoundsOfHistogramsAscendAndHaveRoom(t *testing.T) {
	commits := storeOn(nil).commitSizes.bounds
	for _, bounds := range [][]float64{durationBounds, commits} {
		if !slices.IsSorted(bounds) || len(bounds) >= len(histogram{}.counts) {
			t.Errorf("the bounds are %v", bounds)
		}
	}
}

func TestTheMetricsCountTheResponses(t *testing.T) {
	s := startServer(t, nil, "-db", databasePath(t), "-debug-addr", "127.0.0.1:0")
	s.post(`{"name":"Rex","categoryId":7}`)
	for _, path := range []string{"/pets?limit=0", "/pets/1", "/pets/1", "/nothing"} {
		s.get(path, s.key)
	}
	s.get("/pets", "")
	for range 60 - 5 + 1 { // the rest of the minute, and a refusal
		s.get("/pets", s.key)
	}
	response, text := send(t, "GET", s.debug+"/metrics", "", "")
	contentType := response.Header.Get("Content-Type")
	if contentType != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("the metrics are %s", contentType)
	}
	for _, line := range []string{
		`petstore_build_info{version=".+",goversion="go1\..+"} 1`,
		`petstore_requests_total{operation="listPets",status="200"} 55`,
		`petstore_requests_total{operation="listPets",status="400"} 1`,
		`petstore_requests_total{operation="listPets",status="401"} 1`,
		`petstore_requests_total{operation="listPets",status="429"} 1`,
		`petstore_requests_total{operation="createPet",status="201"} 1`,
		`petstore_requests_total{operation="getPet",status="200"} 2`,
		`petstore_requests_total{operation="other",status="404"} 1`,
		`petstore_request_duration_seconds_count{operation="listPets"} 56`, // no refusal is timed
		`petstore_errors_total{code="rate_limited"} 1`,
		`petstore_errors_total{code="key_banned"} 0`,
		`petstore_bans_total 0`,
		`petstore_commit_requests_bucket{le="64"} [2-9]`,
		`petstore_commit_requests_sum [2-9]`,
		`petstore_commit_duration_seconds_bucket{le="10"} [2-9]`,
		`petstore_commit_duration_seconds_count [2-9]`,
		`petstore_commit_failures_total 0`,
	} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(text) {
			t.Errorf("the metrics lack %s", line)
		}
	}
	if strings.Contains(text, `status="500"`) {
		t.Error("the metrics name a status that was not sent")
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestEveryMetricOfTheDocumentsIsKnown: the alerts ask for some of them.
func TestEveryMetricOfTheDocumentsIsKnown(t *testing.T) {
	known := map[string]bool{}
	for _, m := range metrics {
		known[m.name] = true
		if m.kind == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[m.name+suffix] = true
			}
		}
	}
	named := regexp.MustCompile(`\b(petstore|process)_[a-z_]+`)
	for _, path := range []string{
		"docs/operating.md", "docs/cluster.md", "docs/deploy/alerts.yml",
	} {
		names := named.FindAllString(readText(t, path), -1)
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s names %s, which is no metric", path, name)
			}
		}
		if names == nil {
			t.Errorf("%s names no metric", path)
		}
	}
}

// TestTheProcessIsMeasured holds the metrics against what the system and the clock say a moment
// later.
func TestTheProcessIsMeasured(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc")
	}
	e := newExposition()
	e.addProcess()
	wantWithin := func(name string, atLeast, atMost float64) {
		t.Helper()
		if got := e.numbers[name]; got < atLeast || got > atMost {
			t.Errorf("%s is %v, want %v to %v", name, got, atLeast, atMost)
		}
	}
	cpu := processorTime(t).Seconds()
	wantWithin("process_cpu_seconds_total", cpu-0.1, cpu+0.02)
	now := float64(time.Now().Unix() + 1)
	wantWithin("process_start_time_seconds", now-3600, now)
	status := readText(t, "/proc/self/status")
	resident := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindStringSubmatch(status)[1]
	kib, err := strconv.ParseFloat(resident, 64)
	must(t, err)
	wantWithin("process_resident_memory_bytes", 512*kib, 2048*kib)
}
