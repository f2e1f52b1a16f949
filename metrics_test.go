package main

import (
	"maps"
	"os"
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
	e.add("petstore_build_info", "", 1.5) // which the table has before it
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
	if want := map[string]float64{"petstore_build_info": 1.5, `petstore_requests_total{x="1"}`: 0, `petstore_requests_total{x="2"}`: 1e6}; !maps.Equal(e.numbers, want) {
		t.Errorf("the numbers are %v, want %v", e.numbers, want)
	}
}

// metricsOf are the lines of a histogram that is called h.
func metricsOf(h *histogram, label string, unit float64) string {
	e := newExposition()
	e.addHistogram("h", label, h, unit)
	return e.lines["h"]
}

// TestAHistogramWithoutALabelHasNoEmptyBraces: its sum and its count bear no labels.
func TestAHistogramWithoutALabelHasNoEmptyBraces(t *testing.T) {
	h := histogram{bounds: []float64{1, 2}}
	want := "h_bucket{le=\"1\"} 0\nh_bucket{le=\"2\"} 0\nh_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\n"
	if got := metricsOf(&h, "", 1); got != want {
		t.Errorf("the empty histogram is\n%s\nwant\n%s", got, want)
	}
	for _, value := range []int64{2, 2, 3} {
		h.observe(value)
	}
	want = "h_bucket{le=\"1\"} 0\nh_bucket{le=\"2\"} 2\nh_bucket{le=\"+Inf\"} 3\nh_sum 7\nh_count 3\n"
	if got := metricsOf(&h, "", 1); got != want {
		t.Errorf("the histogram is\n%s\nwant\n%s", got, want)
	}
}

func TestAHistogramsBoundsAreInclusive(t *testing.T) {
	h := histogram{bounds: []float64{1e9, 2250e6}}
	for _, value := range []int64{0, 1e9, 1e9 + 1, 2e9, 5e9} {
		h.observe(value)
	}
	want := "h_bucket{a=\"b\",le=\"1\"} 2\nh_bucket{a=\"b\",le=\"2.25\"} 4\nh_bucket{a=\"b\",le=\"+Inf\"} 5\n" +
		"h_sum{a=\"b\"} 9.000000001\nh_count{a=\"b\"} 5\n"
	if got := metricsOf(&h, `a="b",`, 1e9); got != want {
		t.Errorf("the histogram is\n%s\nwant\n%s", got, want)
	}
	for what, bounds := range map[string][]float64{"durations": durationBounds, "commits": newStore(nil).commitSizes.bounds} {
		if !slices.IsSorted(bounds) || len(bounds) >= len(h.counts) {
			t.Errorf("the bounds of %s are %v, for %d counts", what, bounds, len(h.counts))
		}
	}
}

func TestTheMetricsCountTheResponses(t *testing.T) {
	s := mainStart(t, nil, "-db", mainDB(t), "-debug-addr", "127.0.0.1:0")
	s.get("/pets", s.key)
	s.get("/pets", s.key)
	s.get("/pets?limit=0", s.key)
	s.post(`{"name":"Rex","categoryId":7}`)
	s.get("/pets/1", s.key)
	s.get("/pets/1", s.key)
	s.get("/pets", "")
	s.get("/nothing", s.key)
	s.get("/../openapi.json", "")
	mainDo(t, "GET", strings.TrimSuffix(s.address, "/v1")+"/openapi.json", "", "")
	for range 60 - 7 + 1 { // the rest of the minute, and a refusal
		s.get("/pets", s.key)
	}
	response, text := mainDo(t, "GET", s.debug+"/metrics", "", "")
	if got := response.Header.Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("the metrics are %s", got)
	}
	for _, want := range []string{
		`petstore_requests_total{operation="listPets",status="200"} 55`,
		`petstore_requests_total{operation="listPets",status="400"} 1`,
		`petstore_requests_total{operation="listPets",status="401"} 1`,
		`petstore_requests_total{operation="listPets",status="429"} 1`,
		`petstore_requests_total{operation="createPet",status="201"} 1`,
		`petstore_requests_total{operation="getPet",status="200"} 2`,
		`petstore_requests_total{operation="other",status="404"} 1`,
		`petstore_requests_total{operation="other",status="401"} 1`,
		`petstore_requests_total{operation="openapi",status="200"} 1`,
		`petstore_request_duration_seconds_bucket{operation="getPet",le="+Inf"} 2`,
		`petstore_request_duration_seconds_count{operation="getPet"} 2`,
		`petstore_errors_total{code="rate_limited"} 1`,
		`petstore_errors_total{code="key_banned"} 0`,
		`petstore_errors_total{code="missing_key"} 2`,
		`petstore_errors_total{code="internal_error"} 0`,
		`petstore_bans_total 0`,
		`petstore_known_keys 1`,
		`petstore_known_usages 1`,
		`petstore_known_addresses 1`,
		`petstore_cache_reads_total{cache="keys",result="miss"} 1`,
		`petstore_cache_reads_total{cache="pages",result="miss"} 2`,
		`petstore_cache_reads_total{cache="pages",result="hit"} 53`,
		`petstore_cache_reads_total{cache="pets",result="miss"} 1`,
		`petstore_cache_reads_total{cache="pets",result="hit"} 1`,
		`petstore_commit_failures_total 0`,
		`petstore_commit_queue_length 0`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	for _, pattern := range []string{`go_goroutines [1-9]`, `petstore_build_info\{version=".+",revision=".*",goversion="go1\..+"\} 1`,
		`petstore_commit_requests_sum [2-9]`, `petstore_commit_duration_seconds_count [2-9]`, `process_start_time_seconds [1-9]`} {
		if !regexp.MustCompile("(?m)^" + pattern).MatchString(text) {
			t.Errorf("the metrics lack %s", pattern)
		}
	}
	if strings.Contains(text, `status="500"`) {
		t.Error("the metrics name a status that was not sent")
	}
	if runtime.GOOS == "linux" {
		metricsOfTheProcess(t, text)
	}
	if t.Failed() {
		t.Log(text)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n", "/debug/pprof/cmdline": os.Args[0], "/debug/pprof/goroutine?debug=1": "goroutine profile"} {
		if response, text := mainDo(t, "GET", s.debug+path, "", ""); response.StatusCode != 200 || !strings.HasPrefix(text, want) {
			t.Errorf("%s is %d, %.40q", path, response.StatusCode, text)
		}
	}
	if response, _ := mainDo(t, "GET", strings.TrimSuffix(s.address, "/v1")+"/metrics", "", ""); response.StatusCode != 404 {
		t.Errorf("the service's own address has metrics: %d", response.StatusCode)
	}
}

// metricsOfTheProcess holds what the metrics report of the process against what
// the system and the clock say a moment later.
func metricsOfTheProcess(t *testing.T, text string) {
	t.Helper()
	number := func(name string) float64 {
		match := regexp.MustCompile("(?m)^" + name + " (.+)$").FindStringSubmatch(text)
		if match == nil {
			t.Fatalf("the metrics lack %s", name)
		}
		n, err := strconv.ParseFloat(match[1], 64)
		mainMust(t, err)
		return n
	}
	most := 0.05 + time.Since(processStart).Seconds()*float64(runtime.NumCPU())
	if got := number("process_cpu_seconds_total"); got <= 0 || got > most {
		t.Errorf("at most %v s of CPU time can have been spent, and the metrics say %v", most, got)
	}
	status, err := os.ReadFile("/proc/self/status")
	mainMust(t, err)
	kib, err := strconv.ParseFloat(regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindStringSubmatch(string(status))[1], 64)
	mainMust(t, err)
	if got := number("process_resident_memory_bytes"); got < 512*kib || got > 2048*kib {
		t.Errorf("%v KiB are resident, and the metrics say %v", kib, got)
	}
	if age := time.Since(time.UnixMilli(int64(1000 * number("process_start_time_seconds")))); age < 0 || age > time.Hour {
		t.Errorf("the process started %v ago", age)
	}
	if got := number("process_open_fds"); got < 5 {
		t.Errorf("%v files are open", got)
	}
}
