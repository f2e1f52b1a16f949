package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// mainAsProgram in the environment makes the test binary behave as petstore.
const mainAsProgram = "MAIN_TEST_AS_PETSTORE"

func init() {
	if os.Getenv(mainAsProgram) != "" {
		main()
		os.Exit(0)
	}
}

// mainWait bounds every wait for another goroutine or process. No test that
// passes comes near it.
const mainWait = 30 * time.Second

// mainLine is a line of the log.
type mainLine struct{ Level, Msg, Address, Debug, Error string }

// mainLog takes a JSON log, and hands its lines out as they come.
type mainLog struct {
	mu    sync.Mutex // guards text
	text  bytes.Buffer
	lines chan mainLine
}

func (l *mainLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	var line mainLine
	if err := json.Unmarshal(p, &line); err != nil {
		line = mainLine{Level: "ERROR", Msg: "no JSON: " + string(p)}
	}
	l.lines <- line
	return len(p), nil
}

func (l *mainLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// mainServer is a petstore that runs.
type mainServer struct {
	t       testing.TB
	log     *mainLog
	stdout  bytes.Buffer // to be read once it is ready
	address string       // ends in /v1
	debug   string       // the debug address, if there is one
	key     string       // that it printed, if it did
	cancel  context.CancelFunc
	ended   chan error
}

// mainStart runs the whole program on a free port. Unless the test stops it, it
// is stopped at the end. An unexpected error in the log fails the test.
func mainStart(t testing.TB, env map[string]string, args ...string) *mainServer {
	t.Helper()
	s := &mainServer{t: t, log: &mainLog{lines: make(chan mainLine, 10000)}, ended: make(chan error, 1)}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	if !slices.Contains(args, "-addr") && env["PETSTORE_ADDR"] == "" {
		args = append([]string{"-addr", "127.0.0.1:0"}, args...)
	}
	go func() {
		err := run(ctx, args, func(name string) string { return env[name] }, &s.stdout, s.log)
		s.ended <- err
		close(s.ended)
	}()
	t.Cleanup(s.stop)
	ready := s.await("ready")
	s.address, s.debug = ready.Address, ready.Debug
	s.key = regexp.MustCompile(`pet_(live|test)_\w+`).FindString(s.stdout.String())
	return s
}

// await reads the log up to a message.
func (s *mainServer) await(message string) mainLine {
	s.t.Helper()
	for deadline := time.After(mainWait); ; {
		select {
		case line := <-s.log.lines:
			if line.Msg == message {
				return line
			}
		case err := <-s.ended:
			s.t.Fatalf("the server ended without saying %q: %v\n%s", message, err, s.log)
		case <-deadline:
			s.t.Fatalf("the server does not say %q\n%s", message, s.log)
		}
	}
}

// stop ends the server as a signal does, and checks that it went well.
func (s *mainServer) stop() {
	s.t.Helper()
	s.cancel()
	select {
	case err := <-s.ended: // nil, too, when it was stopped before
		if err != nil {
			s.t.Errorf("the server ended with %v", err)
		}
	case <-time.After(mainWait):
		s.t.Error("the server does not stop")
	}
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, `"level":"ERROR"`) || strings.Contains(line, `"level":"WARN"`) {
			s.t.Errorf("unexpected in the log: %s", line)
		}
	}
}

// mainClient keeps no connection open that a stopping server would wait for.
var mainClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: mainWait}, Timeout: mainWait}

// mainDo sends a request with a key and returns the answer and its body.
func mainDo(t testing.TB, method, url, key, body string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	answer, err := mainClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(text)
}

func (s *mainServer) get(path, key string) (*http.Response, string) {
	s.t.Helper()
	return mainDo(s.t, "GET", s.address+path, key, "")
}

func (s *mainServer) post(body string) (*http.Response, string) {
	s.t.Helper()
	return mainDo(s.t, "POST", s.address+"/pets", s.key, body)
}

// mainRun runs a command to its end.
func mainRun(t testing.TB, env map[string]string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, log bytes.Buffer
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a server that was to be refused, and starts, ends at once
	err = run(ctx, args, func(name string) string { return env[name] }, &out, &log)
	return out.String(), log.String(), err
}

func mainMust(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mainOneLine checks that an error is one line with the words, and of which kind.
func mainOneLine(t testing.TB, err error, isUsage bool, words ...string) {
	t.Helper()
	var usage *usageError
	if err == nil || errors.As(err, &usage) != isUsage || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %q, a usage error: %v; want one line, a usage error: %v", err, errors.As(err, &usage), isUsage)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}

func mainDB(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "pets.db")
}

// TestTheFirstStart does what the page of a newcomer does: start, paste, see.
func TestTheFirstStart(t *testing.T) {
	s := mainStart(t, nil, "-db", mainDB(t))
	curl := regexp.MustCompile(`(?m)^ *curl -i -H "([^":]+): ([^"]+)" (http://\S+)$`).FindStringSubmatch(s.stdout.String())
	if curl == nil {
		t.Fatalf("no curl line in %s", &s.stdout)
	}
	if !regexp.MustCompile(`^pet_live_[0-9A-Za-z]{38}$`).MatchString(s.key) || strings.Count(s.stdout.String(), s.key) != 2 {
		t.Errorf("want the key twice in %s", &s.stdout)
	}
	r, err := http.NewRequest("GET", curl[3], nil)
	mainMust(t, err)
	r.Header.Set(curl[1], curl[2])
	answer, err := mainClient.Do(r)
	mainMust(t, err)
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != 200 || string(body) != "[]" || answer.Header.Get("X-RateLimit-Limit") != "60" {
		t.Errorf("the curl line gives %d %s, limit %s", answer.StatusCode, body, answer.Header.Get("X-RateLimit-Limit"))
	}
	if curl[3] != s.address+"/pets" || !regexp.MustCompile(`^http://127\.0\.0\.1:[1-9]\d*/v1$`).MatchString(s.address) {
		t.Errorf("the curl line goes to %s, the log says %s", curl[3], s.address)
	}
	if strings.Contains(s.log.String(), s.key) {
		t.Errorf("the key is in the log: %s", s.log)
	}
	s.stop()
	if !strings.Contains(s.log.String(), `"msg":"stopping"`) {
		t.Errorf("the log is %s", s.log)
	}
	if conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(s.address, "http://"), "/v1")); err == nil {
		conn.Close()
		t.Error("the address is still served")
	}
}

func TestARestartKeepsEverything(t *testing.T) {
	db := mainDB(t)
	s := mainStart(t, nil, "-db", db)
	if answer, body := s.post(`{"name":"Rex","categoryId":7}`); answer.StatusCode != 201 || body != `{"id":1,"name":"Rex","categoryId":7,"status":"available"}` {
		t.Fatalf("%d %s", answer.StatusCode, body)
	}
	first, list := s.get("/pets", s.key)
	if left := first.Header.Get("X-RateLimit-Remaining"); left != "58" {
		t.Errorf("after two requests %s are left", left)
	}
	s.stop()
	again := mainStart(t, nil, "-db", db)
	if again.key != "" || again.stdout.Len() > 0 {
		t.Errorf("the second start prints %s", &again.stdout)
	}
	second, body := again.get("/pets", s.key)
	if second.StatusCode != 200 || body != list || second.Header.Get("ETag") != first.Header.Get("ETag") {
		t.Errorf("the list is %d %s and was %s", second.StatusCode, body, list)
	}
	if left := second.Header.Get("X-RateLimit-Remaining"); left != "57" {
		t.Errorf("after three requests and a restart %s are left, want 57", left)
	}
	if first.Header.Get("X-RateLimit-Reset") != second.Header.Get("X-RateLimit-Reset") {
		t.Errorf("the minute ended at %v and ends at %v", first.Header.Get("X-RateLimit-Reset"), second.Header.Get("X-RateLimit-Reset"))
	}
}

func TestStagingIssuesAndTakesTestKeysOnly(t *testing.T) {
	db := mainDB(t)
	live, _, err := mainRun(t, nil, "key", "create", "-db", db)
	mainMust(t, err)
	s := mainStart(t, nil, "-db", mainDB(t), "-staging")
	if !strings.HasPrefix(s.key, "pet_test_") {
		t.Errorf("a staging instance prints the key %s", s.key)
	}
	if answer, _ := s.get("/pets", s.key); answer.StatusCode != 200 {
		t.Errorf("its own key is %d", answer.StatusCode)
	}
	test, _, err := mainRun(t, nil, "key", "create", "-db", db, "-test")
	mainMust(t, err)
	for staging, want := range map[string][2]int{"-staging=false": {200, 401}, "-staging=true": {401, 200}} {
		s := mainStart(t, nil, "-db", db, staging)
		liveAnswer, _ := s.get("/pets", strings.TrimSpace(live))
		testAnswer, _ := s.get("/pets", strings.TrimSpace(test))
		if liveAnswer.StatusCode != want[0] || testAnswer.StatusCode != want[1] {
			t.Errorf("%s: a live key is %d, a test key %d; want %v", staging, liveAnswer.StatusCode, testAnswer.StatusCode, want)
		}
		s.stop()
	}
	liveOnly := mainDB(t)
	_, _, err = mainRun(t, nil, "key", "create", "-db", liveOnly)
	mainMust(t, err)
	if _, log, err := mainRun(t, nil, "-addr", "127.0.0.1:0", "-db", liveOnly, "-staging"); err != nil || !strings.Contains(log, "no key in this database opens this environment") {
		t.Errorf("a staging instance without a test key says %v, %s", err, log)
	}
}

func TestTheBaseURLIsInLinkAndLocation(t *testing.T) {
	for base, want := range map[string]string{"": "/v1", "https://pets.example/shop/v1": "https://pets.example/shop/v1"} {
		t.Run("base "+base, func(t *testing.T) {
			s := mainStart(t, map[string]string{"PETSTORE_BASE_URL": base}, "-db", mainDB(t))
			if answer, _ := s.post(`{"name":"Rex","categoryId":7}`); answer.Header.Get("Location") != want+"/pets/1" {
				t.Errorf("Location is %q", answer.Header.Get("Location"))
			}
			s.post(`{"name":"Max","categoryId":7}`)
			if answer, _ := s.get("/pets?limit=1", s.key); answer.Header.Get("Link") != "<"+want+`/pets?limit=1&after=1>; rel="next"` {
				t.Errorf("Link is %q", answer.Header.Get("Link"))
			}
		})
	}
}

// TestARevocationReachesARunningServer runs the command beside the server, as
// an operator does. That it takes less than a second is shown, by a clock that
// is not the machine's, in TestTheBackgroundKeepsItsPromises.
func TestARevocationReachesARunningServer(t *testing.T) {
	db := mainDB(t)
	s := mainStart(t, nil, "-db", db)
	out, _, err := mainRun(t, nil, "key", "create", "-db", db, "-plan", "business")
	mainMust(t, err)
	key := strings.TrimSpace(out)
	if answer, _ := s.get("/pets", key); answer.StatusCode != 200 {
		t.Fatalf("a key made beside the running server is %d", answer.StatusCode)
	}
	_, _, err = mainRun(t, nil, "key", "revoke", "-db", db, "2")
	mainMust(t, err)
	status := 0
	for deadline := time.Now().Add(5 * time.Second); status != 401 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		answer, _ := s.get("/pets", key)
		status = answer.StatusCode
	}
	if status != 401 {
		t.Errorf("a revoked key is %d", status)
	}
	if answer, _ := s.get("/pets", s.key); answer.StatusCode != 200 {
		t.Errorf("the other key is %d", answer.StatusCode)
	}
}

// TestTheBackgroundKeepsItsPromises lets seconds and minutes pass in no time.
func TestTheBackgroundKeepsItsPromises(t *testing.T) {
	path := mainDB(t) // outside: its folder outlives the bubble
	synctest.Test(t, func(t *testing.T) {
		st, err := openDatabase(path, forNewKey)
		mainMust(t, err)
		defer st.Close()
		other, err := openDatabase(path, forCommand)
		mainMust(t, err)
		defer other.Close()
		var log bytes.Buffer
		srv := newService(st, config{banFor: time.Minute}, newLogger(&log, "json", slog.LevelInfo))
		token := newSecret(false)
		id, err := st.insertKey(&apiKey{Name: "x", Plan: "free", CreatedAt: at(time.Now())}, token)
		mainMust(t, err)
		old := statement{"INSERT INTO idempotency VALUES (1, 'old', x'00', 1, ?)", []any{at(time.Now().Add(-25 * time.Hour))}}
		if _, err := st.commit(old); err != nil {
			t.Fatal(err)
		}
		header := []string{"Bearer " + string(token)}
		authenticate := func() (*apiKey, error) { return srv.keys.authenticate(header, time.Now()) }
		charge := func() {
			key, err := authenticate()
			mainMust(t, err)
			_, err = srv.limits.admit(key, time.Now())
			mainMust(t, err)
		}
		written := func() int64 {
			u, err := other.usage(id)
			mainMust(t, err)
			return u.minute.used
		}

		stop := srv.background()
		charge()
		charge()
		time.Sleep(time.Second)
		if written() != 2 {
			t.Errorf("after a second %d of 2 requests are in the database", written())
		}
		charge()
		mainMust(t, other.setPlan(id, "pro", quota{}))
		time.Sleep(time.Second)
		if key, err := authenticate(); err != nil || key.quota != plans["pro"] {
			t.Errorf("a second after the change of plan the key is %+v, %v", key, err)
		}
		mainMust(t, other.revokeKey(id, at(time.Now())))
		time.Sleep(time.Second)
		if _, err := authenticate(); err == nil {
			t.Error("a second after the revocation the key is still good")
		}
		time.Sleep(time.Minute)
		var records int
		if err := other.reader.QueryRow("SELECT count(*) FROM idempotency").Scan(&records); err != nil || records != 0 {
			t.Errorf("after a minute %d old records are left, %v", records, err)
		}
		if log.Len() > 0 {
			t.Errorf("the log says %s", &log)
		}
		if _, err := srv.limits.admit(&apiKey{usageID: 77, quota: quota{1, 1}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		mainMust(t, stop())
		if u, err := other.usage(77); err != nil || u.minute.used != 1 {
			t.Errorf("the stop leaves the usage %+v, %v", u, err)
		}
	})
}

// TestTheBackgroundSaysWhatFails: a store that cannot write is an operator's business.
func TestTheBackgroundSaysWhatFails(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		st, err := openDatabase(path, forNewKey)
		mainMust(t, err)
		var log bytes.Buffer
		srv := newService(st, config{}, newLogger(&log, "json", slog.LevelInfo))
		if _, err := srv.limits.admit(&apiKey{usageID: 1, quota: quota{1, 1}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		stop := srv.background()
		mainMust(t, st.Close())
		time.Sleep(61 * time.Second)
		if err := stop(); !errors.Is(err, errUnavailable) {
			t.Errorf("the last writing of usage says %v", err)
		}
		for _, what := range []string{"cannot look for changes of keys", "cannot write usage", "cannot remove idempotency records"} {
			if !strings.Contains(log.String(), `"level":"ERROR","msg":"`+what+`"`) {
				t.Errorf("the log does not say %q", what)
			}
		}
	})
}

func TestTheMetricsCountWhatWasAnswered(t *testing.T) {
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
	answer, text := mainDo(t, "GET", s.debug+"/metrics", "", "")
	if got := answer.Header.Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
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
		mainProcessMetrics(t, text)
	}
	if t.Failed() {
		t.Log(text)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n", "/debug/pprof/cmdline": os.Args[0], "/debug/pprof/goroutine?debug=1": "goroutine profile"} {
		if answer, text := mainDo(t, "GET", s.debug+path, "", ""); answer.StatusCode != 200 || !strings.HasPrefix(text, want) {
			t.Errorf("%s is %d, %.40q", path, answer.StatusCode, text)
		}
	}
	if answer, _ := mainDo(t, "GET", strings.TrimSuffix(s.address, "/v1")+"/metrics", "", ""); answer.StatusCode != 404 {
		t.Errorf("the service's own address answers metrics with %d", answer.StatusCode)
	}
}

// mainProcessMetrics holds what the metrics tell of the process against what
// the system and the clock say a moment later.
func mainProcessMetrics(t *testing.T, text string) {
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

func TestTheShortestBanIsASecond(t *testing.T) {
	var cfg config
	mainMust(t, cfg.parse([]string{"-ban-for", "1s"}, func(string) string { return "" }))
	if cfg.banFor != time.Second {
		t.Errorf("a ban lasts %v", cfg.banFor)
	}
}

func TestAHistogramsBoundsAreInclusive(t *testing.T) {
	h := histogram{bounds: []int64{1e9, 2250e6}}
	for _, value := range []int64{0, 1e9, 1e9 + 1, 2e9, 5e9} {
		h.observe(value)
	}
	want := []sample{{`_bucket{a="b",le="1"}`, 2}, {`_bucket{a="b",le="2.25"}`, 4}, {`_bucket{a="b",le="+Inf"}`, 5}, {`_sum{a="b"}`, 9.000000001}, {`_count{a="b"}`, 5}}
	if got := h.samples(`a="b",`, 1e9); !slices.Equal(got, want) {
		t.Errorf("the samples are %v, want %v", got, want)
	}
	for what, bounds := range map[string][]int64{"durations": durationBounds, "commits": commitSizeBounds} {
		if !slices.IsSorted(bounds) || len(bounds) >= len(h.counts) {
			t.Errorf("the bounds of %s are %v, for %d counts", what, bounds, len(h.counts))
		}
	}
}

func TestReadinessIsThatOfTheStore(t *testing.T) {
	path := mainDB(t)
	st, err := openDatabase(path, forTheService)
	mainMust(t, err)
	defer st.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var running atomic.Pointer[service]
	routes := debugRoutes(ctx, &running)
	ready := func(status int, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
		if w.Code != status || !strings.Contains(w.Body.String(), want) {
			t.Errorf("it is %d %q, want %d %q", w.Code, w.Body, status, want)
		}
		w = httptest.NewRecorder()
		if routes.ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil)); w.Code != 200 {
			t.Errorf("alive, it is %d", w.Code)
		}
	}
	ready(503, "starting")
	w := httptest.NewRecorder()
	if routes.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil)); w.Code != 503 {
		t.Errorf("before the start, metrics are %d", w.Code)
	}
	running.Store(newService(st, config{}, slog.New(slog.DiscardHandler)))
	before, err := os.Stat(path + "-wal")
	mainMust(t, err)
	ready(200, "ok")
	if after, err := os.Stat(path + "-wal"); err != nil || after.Size() <= before.Size() {
		t.Errorf("nothing was written to find out")
	}
	mainMust(t, os.Rename(path, path+".away"))
	ready(503, "no such file")
	mainMust(t, os.Rename(path+".away", path))
	ready(200, "ok")
	mainMust(t, st.reader.Close())
	ready(503, "closed")
	cancel()
	ready(503, "stopping")
}

// mainFlagCase is a flag of the server: a good value as parse shows it, another, and bad ones.
type mainFlagCase struct {
	good, other string
	shows       string // the good value in the config, as its underlying type is printed
	bad         []string
}

// mainFlags names every flag. One that is missing here fails TestEveryFlag.
var mainFlags = map[string]mainFlagCase{
	"addr":               {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1", []string{"8080", "localhost", "a:b:c", "localhost:99999", "localhost:-1", "localhost:nosuchport"}},
	"db":                 {"a.db", "b.db", "a.db", nil},
	"base-url":           {"https://a.example/v1", "https://b.example/v1", "https://a.example/v1", []string{"a.example/v1", "/v1", "https://a.example", "https://a.example/v1/", "https://a.example/v2", "ftp://a.example/v1", "https:///v1", "https://a.example/?x=/v1", "https://a.example/#/v1", "https://u:p@a.example/v1", "https://a.example/%zz/v1", "http://a.example:x/v1"}},
	"staging":            {"true", "false", "true", []string{"perhaps", "2"}},
	"ban-for":            {"7s", "8s", "7000000000", []string{"10", "soon", "-1s", "10 m", "1ms"}},
	"client-ip-header":   {"X-A", "X-B", "X-A", []string{"X Forwarded-For", "X-Real-IP:", "Ü"}},
	"cors-origin":        {"https://a.example,http://b.example:8080", "*", "[https://a.example http://b.example:8080]", []string{"a.example", "https://A.example", "https://a.example/", "https://a.example/x", "https://", "null", "https://a.example,", "https://u@a.example", "https://a.example?x"}},
	"tls-cert":           {"a.pem", "b.pem", "a.pem", nil},
	"tls-key":            {"a.key", "b.key", "a.key", nil},
	"log":                {"text", "json", "text", []string{"xml", "Text"}},
	"log-level":          {"DEBUG", "ERROR", "-4", []string{"loud", "1"}},
	"debug-addr":         {"127.0.0.1:1", "[::1]:2", "127.0.0.1:1", []string{"6060", "a:b:c", "localhost:99999"}},
	"debug-allow-remote": {"true", "false", "true", []string{"perhaps"}},
	"staging-url":        {"https://a.example/v1", "https://b.example/v1", "https://a.example/v1", []string{"a.example", "https://a.example", "ftp://a.example/v1"}},
}

func TestEveryFlag(t *testing.T) {
	none := func(string) string { return "" }
	var names []string
	serverFlags(&config{}).VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	if len(names) < 11 {
		t.Errorf("the flags are only %v", names)
	}
	for _, name := range names {
		c, known := mainFlags[name]
		if !known {
			t.Errorf("-%s is not tested", name)
			continue
		}
		variable := "PETSTORE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		env := func(value string) func(string) string {
			return func(asked string) string {
				if asked == variable {
					return value
				}
				return ""
			}
		}
		// A config shows the value of one flag by its difference from the default one.
		parsed := func(t *testing.T, getenv func(string) string, args ...string) string {
			t.Helper()
			var cfg, base config
			serverFlags(&base)
			if err := parse(serverFlags(&cfg), args, getenv); err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			return mainDifference(base, cfg)
		}
		t.Run("-"+name+" is heeded", func(t *testing.T) {
			if got := parsed(t, none, "-"+name+"="+c.good); got != c.shows {
				t.Errorf("the flag gives %s, want %s", got, c.shows)
			}
		})
		t.Run(variable+" is its twin", func(t *testing.T) {
			if got := parsed(t, env(c.good)); got != c.shows {
				t.Errorf("the variable gives %s, want %s", got, c.shows)
			}
		})
		t.Run("-"+name+" wins over "+variable, func(t *testing.T) {
			if got := parsed(t, env(c.other), "-"+name+"="+c.good); got != c.shows {
				t.Errorf("both give %s, want %s", got, c.shows)
			}
		})
		for _, bad := range c.bad {
			t.Run(fmt.Sprintf("-%s refuses %q", name, bad), func(t *testing.T) {
				out, log, err := mainRun(t, nil, "-db", mainDB(t), "-"+name+"="+bad)
				mainOneLine(t, err, true, "-"+name, bad)
				_, _, err = mainRun(t, map[string]string{variable: bad}, "-db", mainDB(t))
				mainOneLine(t, err, true, variable, bad)
				if out+log != "" {
					t.Errorf("beside the error there is %q %q", out, log)
				}
			})
		}
	}
}

// mainDifference prints the fields of b that differ from those of a.
func mainDifference(a, b config) string {
	var texts []string
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range va.NumField() {
		if x, y := fmt.Sprint(va.Field(i)), fmt.Sprint(vb.Field(i)); x != y {
			texts = append(texts, y)
		}
	}
	return strings.Join(texts, " ")
}

func TestDefaults(t *testing.T) {
	var cfg config
	if err := parse(serverFlags(&cfg), nil, func(string) string { return "" }); err != nil {
		t.Fatal(err)
	}
	if cfg.addr != "localhost:8080" || cfg.db != "petstore.db" || cfg.banFor != 10*time.Minute || cfg.staging || cfg.baseURL != "" ||
		len(cfg.corsOrigins) != 0 || cfg.clientIPHeader != "" || cfg.logFormat != "auto" || cfg.logLevel != slog.LevelInfo {
		t.Errorf("the defaults are %+v", cfg)
	}
}

func TestACORSOriginMayBeRepeated(t *testing.T) {
	var cfg config
	err := parse(serverFlags(&cfg), []string{"-cors-origin", "https://a.example", "-cors-origin", "https://b.example,*"}, func(string) string { return "" })
	if err != nil || !slices.Equal(cfg.corsOrigins, []string{"https://a.example", "https://b.example", "*"}) {
		t.Errorf("the origins are %q, %v", cfg.corsOrigins, err)
	}
}

func TestMistakesOnTheCommandLine(t *testing.T) {
	db := mainDB(t)
	for what, c := range map[string]struct {
		args  []string
		env   map[string]string
		words []string
	}{
		"an unknown command":               {args: []string{"serve"}, words: []string{`"serve"`, "petstore help"}},
		"a command with a slip":            {args: []string{"bakup", "x"}, words: []string{"did you mean backup?"}},
		"an unknown flag":                  {args: []string{"-port", "80"}, words: []string{"-port", "petstore help"}},
		"a flag with a slip":               {args: []string{"-staging", "-adr=localhost:80"}, words: []string{"-adr; did you mean -addr?"}},
		"a debug address for everybody":    {args: []string{"-db", db, "-debug-addr", ":6060"}, words: []string{":6060", "-debug-allow-remote"}},
		"a debug address on a network":     {args: []string{"-db", db, "-debug-addr", "10.0.0.1:6060"}, words: []string{"10.0.0.1:6060", "-debug-allow-remote"}},
		"a debug address with a name":      {args: []string{"-db", db, "-debug-addr", "example.com:6060"}, words: []string{"-debug-allow-remote"}},
		"an argument after the flags":      {args: []string{"-db", db, "now"}, words: []string{`"now"`}},
		"a flag without its value":         {args: []string{"-db"}, words: []string{"-db"}},
		"an empty -db":                     {args: []string{"-db="}, words: []string{"-db"}},
		"a certificate without its key":    {args: []string{"-db", db, "-tls-cert", "a.pem"}, words: []string{"-tls-cert", "-tls-key"}},
		"a key without its certificate":    {args: []string{"-db", db, "-tls-key", "a.key"}, words: []string{"-tls-cert", "-tls-key"}},
		"the same by the environment":      {env: map[string]string{"PETSTORE_DB": db, "PETSTORE_TLS_KEY": "a.key"}, words: []string{"-tls-cert", "-tls-key"}},
		"key without a verb":               {args: []string{"key"}, words: []string{"create, list, show, set, rotate, revoke, unban"}},
		"key with an unknown verb":         {args: []string{"key", "make"}, words: []string{`"make"; there are create, list`}},
		"key with a slip in the verb":      {args: []string{"key", "rovoke", "1"}, words: []string{`"rovoke"; did you mean revoke?; there are create`}},
		"a flag of a key with a slip":      {args: []string{"key", "create", "-pan", "pro"}, words: []string{"-pan; did you mean -plan?"}},
		"backup without a file":            {args: []string{"backup", "-db", db}, words: []string{"petstore backup [-db FILE] FILE"}},
		"backup with two files":            {args: []string{"backup", "-db", db, "a", "b"}, words: []string{"petstore backup [-db FILE] FILE"}},
		"backup with an unknown flag":      {args: []string{"backup", "-to", "a"}, words: []string{"-to"}},
		"a flag of the server with backup": {args: []string{"backup", "-addr", "localhost:1", "a"}, words: []string{"-addr"}},
	} {
		t.Run(what, func(t *testing.T) {
			out, log, err := mainRun(t, c.env, c.args...)
			mainOneLine(t, err, true, c.words...)
			if out+log != "" {
				t.Errorf("beside the error there is %q %q", out, log)
			}
			if _, err := os.Stat(db); err == nil {
				t.Error("a mistake has made a database")
			}
		})
	}
}

func TestFailuresArePlain(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	mainMust(t, err)
	defer taken.Close()
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	mainMust(t, os.WriteFile(text, []byte("this is a letter to my aunt"), 0o600))
	cert, key := mainPair(t, dir, "a")
	otherCert, _ := mainPair(t, dir, "b")
	db := filepath.Join(dir, "pets.db")
	for what, c := range map[string]struct {
		args  []string
		words []string
	}{
		"a port in use":                  {[]string{"-db", db, "-addr", taken.Addr().String()}, []string{taken.Addr().String(), "in use"}},
		"a place that cannot be written": {[]string{"-db", "/dev/null/pets.db"}, []string{"/dev/null/pets.db"}},
		"a missing folder":               {[]string{"-db", filepath.Join(dir, "no", "pets.db")}, []string{"cannot open the database", "pets.db"}},
		"a file that is no database":     {[]string{"-db", text}, []string{text, "not a database"}},
		"a folder for a database":        {[]string{"-db", dir}, []string{dir, "directory"}},
		"a missing certificate":          {[]string{"-db", db, "-tls-cert", filepath.Join(dir, "no.pem"), "-tls-key", key}, []string{"-tls-cert", "no.pem"}},
		"a certificate that is none":     {[]string{"-db", db, "-tls-cert", text, "-tls-key", key}, []string{"-tls-cert"}},
		"a key of another certificate":   {[]string{"-db", db, "-tls-cert", otherCert, "-tls-key", key}, []string{"-tls-cert", "-tls-key", "match"}},
		"certificate and key changed":    {[]string{"-db", db, "-tls-cert", key, "-tls-key", cert}, []string{"-tls-cert", "-tls-key"}},
		"a backup of no database":        {[]string{"backup", "-db", filepath.Join(dir, "none.db"), filepath.Join(dir, "copy")}, []string{"none.db"}},
		"a backup of a letter":           {[]string{"backup", "-db", text, filepath.Join(dir, "copy")}, []string{text, "not a database"}},
		"a list of keys of no database":  {[]string{"key", "list", "-db", filepath.Join(dir, "none.db")}, []string{"none.db", "first start"}},
		"a backup over a missing folder": {[]string{"backup", "-db", mainMade(t), filepath.Join(dir, "no", "copy")}, []string{"cannot back up", filepath.Join("no", "copy")}},
		"a backup over its own database": {func() []string { p := mainMade(t); return []string{"backup", "-db", p, p} }(), []string{"onto itself"}},
		"a key that does not exist":      {[]string{"key", "show", "-db", mainMade(t), "99"}, []string{"no key has the id 99"}},
		"a key that is no number at all": {[]string{"key", "revoke", "-db", mainMade(t), "first"}, []string{"no key has the id first"}},
	} {
		t.Run(what, func(t *testing.T) {
			out, _, err := mainRun(t, nil, c.args...)
			mainOneLine(t, err, false, c.words...)
			if out != "" {
				t.Errorf("it prints %q", out)
			}
		})
	}
	for _, name := range []string{"none.db", "copy", "copy.partial"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	if s, err := openDatabase(db, forNewKey); err == nil { // the port in use came after it
		defer s.Close()
		if keys, err := s.keysByID(0, 0); err != nil || len(keys) != 0 {
			t.Errorf("a server that could not start has made %d keys, which nobody has seen, %v", len(keys), err)
		}
	}
}

// mainMade is the path of a database with one key.
func mainMade(t testing.TB) string {
	t.Helper()
	db := mainDB(t)
	_, _, err := mainRun(t, nil, "key", "create", "-db", db)
	mainMust(t, err)
	return db
}

// mainPair writes a self-signed certificate for 127.0.0.1 and its key.
func mainPair(t testing.TB, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	mainMust(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	mainMust(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	mainMust(t, err)
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	mainMust(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	mainMust(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return certFile, keyFile
}

func TestTLSBringsHTTP2(t *testing.T) {
	cert, key := mainPair(t, t.TempDir(), "a")
	s := mainStart(t, map[string]string{"PETSTORE_TLS_KEY": key}, "-db", mainDB(t), "-tls-cert", cert)
	if !strings.HasPrefix(s.address, "https://127.0.0.1:") || !strings.Contains(s.stdout.String(), s.address+"/pets") {
		t.Errorf("the log says %s, stdout %s", s.address, &s.stdout)
	}
	text, err := os.ReadFile(cert)
	mainMust(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	get := func(transport *http.Transport) (*http.Response, error) {
		defer transport.CloseIdleConnections()
		r, err := http.NewRequest("GET", s.address+"/pets", nil)
		mainMust(t, err)
		r.Header.Set("Authorization", "Bearer "+s.key)
		answer, err := transport.RoundTrip(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
		return answer, err
	}
	answer, err := get(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true})
	if err != nil || answer.StatusCode != 200 || answer.ProtoMajor != 2 {
		t.Errorf("over TLS: %v, %v", answer, err)
	}
	answer, err = get(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}})
	if err != nil || answer.StatusCode != 200 || answer.ProtoMajor != 1 || answer.TLS.Version < tls.VersionTLS12 {
		t.Errorf("over TLS without HTTP/2: %v, %v", answer, err)
	}
}

func TestHelpNamesEverything(t *testing.T) {
	var first string
	for i, args := range [][]string{{"help"}, {"-h"}, {"-help"}, {"--help"}, {"key", "-h"}, {"key", "help"}, {"backup", "--help"}} {
		out, log, err := mainRun(t, nil, args...)
		if i == 0 {
			first = out
		}
		if err != nil || log != "" || out != first || out == "" {
			t.Errorf("petstore %v: %q, %v", args, log, err)
		}
	}
	serverFlags(&config{}).VisitAll(func(f *flag.Flag) {
		if !regexp.MustCompile(`(?m)^  -` + f.Name + `( [A-Z:]+| ?)\n +\S`).MatchString(first) {
			t.Errorf("help does not explain -%s", f.Name)
		}
	})
	for _, words := range []string{"create", "list", "show", "set", "rotate", "revoke", "unban"} {
		if !regexp.MustCompile(`(?m)^petstore key ` + words + ` +\S`).MatchString(first) {
			t.Errorf("help does not name petstore key %s", words)
		}
	}
	for _, words := range []string{"petstore [flags]", "petstore backup", "petstore version", "petstore help", "PETSTORE_BASE_URL", "-overlap", "-per-minute", "-expires", "-json"} {
		if !strings.Contains(first, words) {
			t.Errorf("help does not say %q", words)
		}
	}
	for line := range strings.Lines(first) {
		if len(strings.TrimSuffix(line, "\n")) > 100 {
			t.Errorf("too long for a terminal: %s", line)
		}
	}
}

func TestVersionNamesTheBuild(t *testing.T) {
	out, log, err := mainRun(t, nil, "version")
	if err != nil || log != "" || !strings.HasPrefix(out, "petstore ") || !strings.Contains(out, runtime.Version()) || strings.Count(out, "\n") != 1 {
		t.Errorf("version is %q, %q, %v", out, log, err)
	}
}

func TestTheLogHasTheFormatAndTheLevelAskedFor(t *testing.T) {
	for what, c := range map[string]struct {
		format string
		level  slog.Level
		want   string // a regular expression for all that is written
	}{
		"text":                               {"text", slog.LevelInfo, `^time=\S+ level=INFO msg=hello key=value\ntime=\S+ level=WARN msg=careful\n$`},
		"json":                               {"json", slog.LevelInfo, `^\{"time":"[^"]+","level":"INFO","msg":"hello","key":"value"\}\n\{.*"WARN","msg":"careful"\}\n$`},
		"auto, which is json elsewhere":      {"auto", slog.LevelInfo, `^\{"time":"[^"]+","level":"INFO","msg":"hello","key":"value"\}\n\{.*\}\n$`},
		"debug, which is more":               {"text", slog.LevelDebug, `(?s)^time=\S+ level=DEBUG msg=details\n.*INFO.*WARN`},
		"warn, which is less":                {"text", slog.LevelWarn, `^time=\S+ level=WARN msg=careful\n$`},
		"error, which is quiet until needed": {"text", slog.LevelError, `^$`},
	} {
		t.Run(what, func(t *testing.T) {
			var out bytes.Buffer
			log := newLogger(&out, c.format, c.level)
			log.Debug("details")
			log.Info("hello", "key", "value")
			log.Warn("careful")
			if !regexp.MustCompile(c.want).MatchString(out.String()) {
				t.Errorf("the log is %q", out.String())
			}
		})
	}
}

func TestTheLogIsTextOnATerminalOnly(t *testing.T) {
	handler := func(w io.Writer, format string) string {
		return fmt.Sprintf("%T", newLogger(w, format, slog.LevelInfo).Handler())
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	mainMust(t, err)
	defer file.Close()
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as a terminal is
	mainMust(t, err)
	defer device.Close()
	for what, got := range map[string][2]string{
		"a file, auto":     {handler(file, "auto"), "*slog.JSONHandler"},
		"a buffer, auto":   {handler(io.Discard, "auto"), "*slog.JSONHandler"},
		"a terminal, auto": {handler(device, "auto"), "*slog.TextHandler"},
		"a terminal, json": {handler(device, "json"), "*slog.JSONHandler"},
		"a file, text":     {handler(file, "text"), "*slog.TextHandler"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %s, want %s", what, got[0], got[1])
		}
	}
}

// TestNoKeyIsEverLogged puts the key where people put keys by mistake.
func TestNoKeyIsEverLogged(t *testing.T) {
	s := mainStart(t, map[string]string{"PETSTORE_LOG_LEVEL": "debug"}, "-db", mainDB(t))
	s.get("/pets", s.key)
	s.get("/pets?key="+s.key, s.key)
	s.get("/pets?"+s.key+"=%zz", s.key)
	s.get("/pets/"+s.key, s.key)
	s.get("/"+s.key+"//x", s.key)
	s.get("/../"+s.key, s.key)
	s.get("/pets?access_token="+s.key, "")
	s.get("/pets", s.key+s.key)
	mainDo(t, "PUT", s.address+"/pets", s.key, "")
	s.post(`{"name":1,"` + s.key + `":2}`)
	s.stop()
	log := s.log.String()
	if n := strings.Count(log, `"level":"DEBUG","msg":"request"`); n != 10 {
		t.Errorf("10 requests are %d lines", n)
	}
	secretPart := s.key[len("pet_live_") : len(s.key)-4]
	for line := range strings.Lines(log) {
		if strings.Contains(line, secretPart) {
			t.Errorf("a key is logged: %s", line)
		}
		if strings.Contains(line, `"msg":"request"`) && !regexp.MustCompile(`"request":"[0-9a-f]{16}","route":"[^"]*","status":[2-5]\d\d,"duration":\d+`).MatchString(line) {
			t.Errorf("a request is logged as %s", line)
		}
	}
}

func TestRequestsAreLoggedAtDebugOnly(t *testing.T) {
	s := mainStart(t, nil, "-db", mainDB(t))
	s.get("/pets", s.key)
	s.get("/pets", "")
	s.stop()
	if strings.Contains(s.log.String(), `"msg":"request"`) {
		t.Errorf("the log is %s", s.log)
	}
}

// mainSlow starts a POST and returns when the server waits for its body;
// finish sends that and returns the status of the answer.
func mainSlow(t testing.TB, address, key string) (finish func() int) {
	t.Helper()
	reading := make(chan bool, 1)
	body, bodyWriter := io.Pipe()
	const text = `{"name":"Rex","categoryId":7}`
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { reading <- true }})
	r, err := http.NewRequestWithContext(ctx, "POST", address+"/pets", body)
	mainMust(t, err)
	r.ContentLength = int64(len(text))
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Expect", "100-continue") // the server says so when the operation reads the body
	status := make(chan int, 1)
	go func() {
		answer, err := mainClient.Do(r)
		if err != nil {
			t.Log(err)
			status <- 0
			return
		}
		defer answer.Body.Close()
		status <- answer.StatusCode
	}()
	select {
	case <-reading:
	case <-time.After(mainWait):
		t.Fatal("the server does not ask for the body")
	}
	return func() int {
		if _, err := io.WriteString(bodyWriter, text); err != nil {
			t.Log(err)
		}
		bodyWriter.Close()
		return <-status
	}
}

func TestAGracefulStopLetsRequestsFinish(t *testing.T) {
	db := mainDB(t)
	s := mainStart(t, nil, "-db", db)
	finish := mainSlow(t, s.address, s.key)
	s.cancel()
	s.await("stopping")
	select {
	case err := <-s.ended:
		t.Fatalf("the server ended, with %v, under a running request", err)
	default:
	}
	if status := finish(); status != 201 {
		t.Errorf("the request that was running is answered with %d", status)
	}
	s.stop()
	again := mainStart(t, nil, "-db", db)
	if answer, body := again.get("/pets", s.key); !strings.Contains(body, `"Rex"`) || answer.Header.Get("X-RateLimit-Remaining") != "58" {
		t.Errorf("after the restart there is %s, and %s requests are left", body, answer.Header.Get("X-RateLimit-Remaining"))
	}
}

// TestAServerThatCannotServeSaysSo: a failed Serve is not a success.
func TestAServerThatCannotServeSaysSo(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	mainMust(t, err)
	listener.Close()
	if err := serveUntil(t.Context(), newServer(slog.New(slog.DiscardHandler)), listener, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("it says nothing")
	}
}

// TestEveryPhaseOfARequestIsBounded: a client that is slow on purpose holds nothing for long.
func TestEveryPhaseOfARequestIsBounded(t *testing.T) {
	s := newServer(slog.New(slog.DiscardHandler))
	// As the README promises.
	if s.ReadHeaderTimeout != 5*time.Second || s.ReadTimeout != 15*time.Second || s.WriteTimeout != 30*time.Second || s.IdleTimeout != 2*time.Minute || s.MaxHeaderBytes != 16<<10 {
		t.Errorf("the server waits %v, %v, %v, %v for heads of %d bytes", s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout, s.MaxHeaderBytes)
	}
}

func TestTheAddressOfAnOpenServerIsOneToConnectTo(t *testing.T) {
	for addr, want := range map[string]string{"0.0.0.0": "http://localhost:", "127.0.0.1": "http://127.0.0.1:", "::": "http://localhost:", "::1": "http://[::1]:"} {
		ip := net.ParseIP(addr)
		got := serviceURL(mainListener{&net.TCPAddr{IP: ip, Port: 8080}}, false)
		if got != want+"8080/v1" {
			t.Errorf("on %s the address is %s", addr, got)
		}
	}
}

// mainListener is only an address.
type mainListener struct{ addr net.Addr }

func (l mainListener) Addr() net.Addr            { return l.addr }
func (l mainListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (l mainListener) Close() error              { return nil }

// mainProgram is this test binary as petstore.
func mainProgram(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), mainWait)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), mainAsProgram+"=1", "PETSTORE_ADDR=127.0.0.1:0")
	return cmd
}

func TestExitStatus(t *testing.T) {
	db := mainMade(t)
	for what, c := range map[string]struct {
		args   []string
		status int
		stderr string // a regular expression
	}{
		"a command that works is 0": {[]string{"version"}, 0, `^$`},
		"a failure is 1":            {[]string{"-db", t.TempDir()}, 1, `^petstore: cannot open the database [^\n]*directory\n$`},
		"an unknown key id is 1":    {[]string{"key", "show", "-db", db, "9"}, 1, `^petstore: no key has the id 9\n$`},
		"an unknown flag is 2":      {[]string{"-port", "80"}, 2, `^petstore: [^\n]*-port[^\n]*\n$`},
		"a bad value is 2":          {[]string{"-addr", "80"}, 2, `^petstore: [^\n]*-addr[^\n]*\n$`},
		"an unknown command is 2":   {[]string{"sell"}, 2, `^petstore: [^\n]*"sell"[^\n]*\n$`},
	} {
		t.Run(what, func(t *testing.T) {
			cmd := mainProgram(t, c.args...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			err := cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != c.status || !regexp.MustCompile(c.stderr).MatchString(stderr.String()) {
				t.Errorf("petstore %v: status %d, %v, stderr %q; want %d", c.args, got, err, &stderr, c.status)
			}
		})
	}
}

// mainProcess is a server in a process of its own.
type mainProcess struct {
	*exec.Cmd
	address, key string
	log          *bufio.Scanner
	stdout       bytes.Buffer
}

func mainStartProcess(t testing.TB) *mainProcess {
	t.Helper()
	p := &mainProcess{Cmd: mainProgram(t, "-db", mainDB(t))}
	p.Stdout = &p.stdout
	stderr, err := p.StderrPipe()
	mainMust(t, err)
	mainMust(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	p.log = bufio.NewScanner(stderr)
	p.address = p.await(t, "ready").Address
	out, _, err := mainRun(t, nil, "key", "create", "-db", p.Args[2])
	mainMust(t, err)
	p.key = strings.TrimSpace(out)
	return p
}

func (p *mainProcess) await(t testing.TB, message string) (line mainLine) {
	t.Helper()
	for p.log.Scan() {
		if err := json.Unmarshal(p.log.Bytes(), &line); err != nil || line.Level == "ERROR" {
			t.Errorf("the log says %s", p.log.Bytes())
		}
		if line.Msg == message {
			return line
		}
	}
	t.Fatalf("the server does not say %q", message)
	return line
}

func TestSIGTERMIsAGracefulStop(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		t.Run(signal.String(), func(t *testing.T) {
			p := mainStartProcess(t)
			finish := mainSlow(t, p.address, p.key)
			mainMust(t, p.Process.Signal(signal))
			p.await(t, "stopping")
			if status := finish(); status != 201 {
				t.Errorf("the running request is answered with %d", status)
			}
			for p.log.Scan() {
				t.Errorf("after stopping the log says %s", p.log.Bytes())
			}
			if err := p.Wait(); err != nil {
				t.Errorf("it ends with %v", err)
			}
		})
	}
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	p := mainStartProcess(t)
	_ = mainSlow(t, p.address, p.key) // holds the graceful stop up
	mainMust(t, p.Process.Signal(syscall.SIGTERM))
	p.await(t, "stopping")
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	for deadline := time.After(8 * time.Second); ; { // less than a graceful stop waits
		_ = p.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if status, ok := p.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
				t.Errorf("it ends with %v", err)
			}
			return
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatal("a second signal does not end the server")
		}
	}
}

// TestBackupWhileTheServiceRuns is the operator's command, beside a server.
func TestBackupWhileTheServiceRuns(t *testing.T) {
	db := mainDB(t)
	s := mainStart(t, nil, "-db", db)
	for i := range 3 {
		if answer, body := s.post(`{"name":"pet ` + strconv.Itoa(i) + `","categoryId":7}`); answer.StatusCode != 201 {
			t.Fatalf("%d %s", answer.StatusCode, body)
		}
	}
	file := filepath.Join(t.TempDir(), "copy.db")
	out, log, err := mainRun(t, map[string]string{"PETSTORE_DB": db}, "backup", file)
	if err != nil || out+log != "" {
		t.Fatalf("backup says %q %q, %v", out, log, err)
	}
	_, want := s.get("/pets", s.key)
	restored := mainStart(t, nil, "-db", file)
	if answer, body := restored.get("/pets", s.key); answer.StatusCode != 200 || body != want || restored.key != "" {
		t.Errorf("the copy serves %d %s, want %s", answer.StatusCode, body, want)
	}
}
