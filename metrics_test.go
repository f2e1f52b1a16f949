package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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
	wantEqual(t, e.String(), want, "the page")
	numbers := map[string]float64{
		"petstore_build_info":            1.5,
		`petstore_requests_total{x="1"}`: 0,
		`petstore_requests_total{x="2"}`: 1e6,
	}
	wantEqual(t, e.numbers, numbers, "the numbers")
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
		wantEqual(t, e.lines["h"], want, "the histogram")
	}
}

func TestTheBoundsOfHistogramsAscendAndHaveRoom(t *testing.T) {
	commits := storeOn(&sqliteFile{}).commitSizes.bounds
	for _, bounds := range [][]float64{durationBounds, commits} {
		if !slices.IsSorted(bounds) || len(bounds) >= len(histogram{}.counts) {
			t.Errorf("the bounds are %v", bounds)
		}
	}
}

func TestTheMetricsCountTheResponses(t *testing.T) {
	s := openShop(t)
	s.key = s.newKey(quota{60, 1000})
	s.post(rexBody)
	for _, path := range []string{"/pets?limit=0", "/pets/1", "/pets/1", "/nothing"} {
		s.get("/v1" + path)
	}
	s.list(noKey)
	for range 60 - 5 + 1 { // the rest of the minute, and a refusal
		s.list()
	}
	response := s.onDebug("/metrics")
	contentType := response.Header().Get("Content-Type")
	wantEqual(t, contentType, "text/plain; version=0.0.4; charset=utf-8", "the type of the metrics")
	text := response.Body.String()
	for line := range strings.FieldsFuncSeq(`
petstore_build_info{version=".+",goversion="go1\..+"} 1
petstore_requests_total{operation="listPets",status="200"} 55
petstore_requests_total{operation="listPets",status="400"} 1
petstore_requests_total{operation="listPets",status="401"} 1
petstore_requests_total{operation="listPets",status="429"} 1
petstore_requests_total{operation="createPet",status="201"} 1
petstore_requests_total{operation="getPet",status="200"} 2
petstore_requests_total{operation="other",status="404"} 1
petstore_request_duration_seconds_count{operation="listPets"} 56
petstore_errors_total{code="rate_limited"} 1
petstore_errors_total{code="key_banned"} 0
petstore_bans_total 0
petstore_commit_requests_bucket{le="64"} [2-9]
petstore_commit_requests_sum [2-9]
petstore_commit_duration_seconds_bucket{le="10"} [2-9]
petstore_commit_duration_seconds_count [2-9]
petstore_commit_failures_total 0
`, func(c rune) bool { return c == '\n' }) {
		wantMatch(t, text, `(?m)^`+line+`$`, "the page of the metrics")
	}
	wantCount(t, text, `status="500"`, 0, "the metrics") // which was not sent
}

// TestEveryMetricIsCountedAndDocumented: after what is done here to a service on a file and to one
// on a cluster, /metrics shows each above 0, and docs/operating.md names it. Those of the process
// are measured in TestTheProcessIsMeasured.
func TestEveryMetricIsCountedAndDocumented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		s.wantError = true
		insistent := withKey(s.newKey(quota{1, 100}))
		for range 4 { // the second is refused, and the last one bans the key
			s.list(insistent)
		}
		s.post(rexBody).is(201)
		s.store.next.callers = maxCallers
		s.post(rexBody).is(503)
		s.store.next.callers = 0
		mustWrite(t, s.store, sqlOf("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'pets'"),
			sqlOf("DELETE FROM pets"))
		s.post(rexBody).is(503)
		readOnly(t, s.store, true)
		s.post(rexBody).is(503)
		readOnly(t, s.store, false)

		c := newClusterWithoutNetwork(t, 3)
		var clusterStore *store
		clusterStore, c.log = newClusterStore(t, c)
		onCluster := newClusterShop(t, c, clusterStore)
		onCluster.list().is(200) // looks the key up
		answerOnce(c, lose)
		onCluster.post(rexBody).is(503)

		text := ""
		added := map[string]string{}
		for _, s := range []*shop{s, onCluster} {
			pair := testPair(t)
			pair.unusable.Store(true)
			s.debug().certificate = &pair.certificate
			s.debug().certificateUnusable = &pair.unusable
			s.debug().droppedLines.Store(1)
			mustNoteBackup(t, s.service.store)
			s.stats()
			must(t, s.debug().updateStored(t.Context()))
			must(t, s.debug().updateNodes(t.Context()))
			text += s.onDebug("/metrics").Body.String()
			maps.Copy(added, s.debug().currentMetrics().lines)
		}
		values := map[string]string{
			"petstore_last_backup_timestamp_seconds": " 7$",

			"petstore_bans_total":             " 1$",
			"petstore_commit_failures_total":  " 1$",
			"petstore_node_requests_total":    `{outcome="success"} [1-9].*\n.*"failure"} 1$`,
			"petstore_unknown_outcomes_total": " 1$",
			"petstore_ids_given_again_total":  " 1$",
			"petstore_foreign_keys":           " 0$",
			"petstore_sync_failed":            " 0$",
		}
		const aboveZero = `(_count)?({.*})? \S*[1-9]`
		documented := readText(t, "docs/operating.md")
		for _, m := range metrics {
			delete(added, m.name)
			want := m.name + cmp.Or(values[m.name], aboveZero)
			shown := regexp.MustCompile("(?m)^" + want).MatchString(text)
			if !shown && !strings.HasPrefix(m.name, "process_") {
				t.Errorf("%s does not count what is done here: /metrics lacks %s", m.name, want)
			}
			wantPart(t, documented, "`"+m.name+"`", "docs/operating.md")
		}
		for name := range added {
			t.Errorf("/metrics leaves %s out, which the table metrics lacks", name)
		}
	})
}

// unreadable is an engine without a leader, so to say.
type unreadable struct{ engine }

func (unreadable) read(context.Context, statement, func(scanner) error) error {
	return errUnavailable
}

// TestWhatAnybodyCanCauseIsNoErrorOfTheService: keys that are not looked up since their address is
// spent, or that nobody can look up now, and questions while the service is not ready.
func TestWhatAnybodyCanCauseIsNoErrorOfTheService(t *testing.T) {
	s := openShop(t)
	s.wantError = true // "not ready", once
	s.service.log = newLogger(&s.log, "json", slog.LevelDebug)
	for range 60 {
		s.list(noKey).is(401)
	}
	s.service.keys.suspects.Add(maxSuspects)
	readOnly(t, s.store, true)
	for range 20 {
		forged := withUnknownKey()
		s.list(forged).is(503, CodeUnavailable).has("Retry-After: 1")
		s.call("HEAD", "/v1/pets/1", forged).is(503)
		s.get("/readyz").is(503, CodeUnavailable).has("Retry-After: 1")
	}
	s.service.keys.suspects.Store(0)
	honest := s.store.engine
	s.store.engine = unreadable{honest}
	for range 20 { // keys that are looked up, in vain
		s.list(withUnknownKey()).is(503, CodeUnavailable)
	}
	s.store.engine = honest
	numbers := s.debug().currentMetrics().numbers
	for name, want := range map[string]float64{
		`petstore_errors_total{code="lookup_refused"}`: 60,
		`petstore_errors_total{code="not_ready"}`:      20,
		`petstore_errors_total{code="unavailable"}`:    0,

		`petstore_request_duration_seconds_count{operation="listPets"}`: 0,
	} {
		wantEqual(t, numbers[name], want, name)
	}
	for name := range numbers {
		wantCount(t, name, `status="503"`, 0, "a name")
	}
	wantEqual(t, len(s.service.ledger.tallies), 0, "the number of days that are counted")
	for line, want := range map[string]int{
		`"level":"DEBUG".*"status":503,"code":"lookup_refused"`: 60,
		`"level":"DEBUG".*"status":503,"code":"not_ready"`:      20,
		`"level":"ERROR"`: 1,
	} {
		wantEqual(t, len(regexp.MustCompile(line).FindAllString(s.log.String(), -1)),
			want, "the number of lines with ", line)
	}
}

// slowPeer waits a minute before it sends a part of its body, and another before it takes a part of
// its response.
type slowPeer struct {
	*httptest.ResponseRecorder
	body io.Reader
}

func (p slowPeer) Read(b []byte) (int, error) {
	time.Sleep(time.Minute)
	return p.body.Read(b)
}

func (p slowPeer) Write(b []byte) (int, error) {
	time.Sleep(time.Minute)
	return p.ResponseRecorder.Write(b)
}

// TestTheServiceTimesItself, and not those who call it.
func TestTheServiceTimesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		s.store.engine = &watchedEngine{engine: s.store.engine, check: func(st statement, _ []any) {
			if st.query == insertCreated {
				time.Sleep(2 * time.Second)
			}
		}}
		steps := strings.NewReplacer(
			"REX", rexBody[1:],
			"SECONDS", "petstore_request_duration_seconds",
		)
		// A row has a request and its body, and the status and what a metric is then.
		for row, want := range rowsOf(t, steps.Replace(`
			POST /v1/pets REX => 201 SECONDS_sum{operation="createPet"} 2
			POST /v1/pets { => 400 SECONDS_sum{operation="createPet"} 2
			GET /v1/pets - => 200 SECONDS_sum{operation="listPets"} 0
			GET /page.js - => 200 SECONDS_sum{operation="page"} 0`)) {
			words := strings.Fields(row)
			peer := slowPeer{httptest.NewRecorder(), strings.NewReader(words[2])}
			r := httptest.NewRequest(words[0], words[1], peer)
			r.Header.Set("Authorization", "Bearer "+s.key)
			s.service.ServeHTTP(peer, r)
			metric := strings.Fields(want)[1]
			sum := s.debug().currentMetrics().numbers[metric]
			wantEqual(t, fmt.Sprint(peer.Code, " ", metric, " ", sum), want, "after ", row)
		}
	})
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
	went := regexp.MustCompile(`(?m)^\| .* went.*$`) // rows that say what is no metric any more
	for _, path := range []string{
		"docs/operating.md", "docs/cluster.md", "docs/deploy/alerts.yml",
	} {
		names := named.FindAllString(went.ReplaceAllString(readText(t, path), ""), -1)
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

// TestTheProcessIsMeasured holds the metrics of a service that has just started against what the
// system says when it has ended, and against the clock.
func TestTheProcessIsMeasured(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc")
	}
	before := float64(time.Now().Unix())
	p := startProcess(t, "-debug-addr", "127.0.0.1:0")
	measured := map[string]float64{}
	for asked := 0; asked < 5000 && measured["cpu_seconds_total"] < 0.05; asked++ {
		_, text := send(t, "GET", p.debug+"/metrics", "", "")
		for _, line := range allMatches(`(?m)^process_(\S+) (\S+)$`, text) {
			name, value, _ := strings.Cut(line, " ")
			number, err := strconv.ParseFloat(value, 64)
			must(t, err)
			measured[name] = number
		}
	}
	status := readText(t, fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	p.interrupt()
	wantWithin(t, measured["start_time_seconds"], before, float64(time.Now().Unix()), "the start")
	took := p.ProcessState.UserTime() + p.ProcessState.SystemTime()
	cpu := measured["cpu_seconds_total"] // in ticks of 10 ms
	wantWithin(t, cpu, 0.05, took.Seconds()+0.02, "the time of processors")
	resident := allMatches(`VmRSS:\s+(\d+) kB`, status)[0]
	kib, err := strconv.ParseFloat(resident, 64)
	must(t, err)
	wantWithin(t, measured["resident_memory_bytes"], 512*kib, 2048*kib, "the memory")
	wantEqual(t, len(measured), 3, "the number of metrics of a process")
}
