package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// mainAsProgram in the environment makes the test binary behave as petstore.
const mainAsProgram = "MAIN_TEST_AS_PETSTORE"

// mainSelf as LISTEN_PID stands for the process id of the program, which its parent cannot know.
const mainSelf = "self"

func init() {
	if os.Getenv(mainAsProgram) != "" {
		if os.Getenv("LISTEN_PID") == mainSelf {
			_ = os.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid()))
		}
		main()
		os.Exit(0)
	}
}

// mainWait bounds every wait for another goroutine or process. No test that
// passes comes near it.
const mainWait = 30 * time.Second

// mainLine is a line of the log.
type mainLine struct {
	Level, Msg, Address, Debug, Error string
	Requests                          int64
}

// mainLog takes a JSON log, and hands its lines out as they come.
type mainLog struct {
	logBuffer
	lines chan mainLine
}

func (l *mainLog) Write(p []byte) (int, error) {
	_, _ = l.logBuffer.Write(p)
	var line mainLine
	if err := json.Unmarshal(p, &line); err != nil {
		line = mainLine{Level: "ERROR", Msg: "no JSON: " + string(p)}
	}
	l.lines <- line
	return len(p), nil
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

// mainEnviron is an environment as a process has it.
func mainEnviron(variables map[string]string) (environ []string) {
	for name, value := range variables {
		environ = append(environ, name+"="+value)
	}
	return environ
}

// mainStart runs the complete program on a free port. Unless the test stops it, it
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
		err := run(ctx, args, mainEnviron(env), nil, &s.stdout, s.log)
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

// mainDo sends a request with a key and returns the response and its body.
func mainDo(t testing.TB, method, url, key, body string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := mainClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}

func (s *mainServer) get(path, key string) (*http.Response, string) {
	s.t.Helper()
	return mainDo(s.t, "GET", s.address+path, key, "")
}

func (s *mainServer) post(body string) (*http.Response, string) {
	s.t.Helper()
	return mainDo(s.t, "POST", s.address+"/pets", s.key, body)
}

// mainRun runs a command to its end. A server finds that it is asked to stop
// when it has started, be it that it was to be refused.
func mainRun(t testing.TB, env map[string]string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		cancel()
	}
	err = run(ctx, args, mainEnviron(env), nil, &out, &log)
	if err != nil && strings.ContainsRune(err.Error(), '\n') {
		t.Errorf("%v: the reason is more than a line: %v", args, err)
	}
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
	if !regexp.MustCompile(`^pet_live_[0-9A-Za-z]{38}$`).MatchString(s.key) || strings.Count(s.stdout.String(), "    "+s.key+"\n") != 1 {
		t.Errorf("want the key on a line of its own in %s", &s.stdout)
	}
	requests := mainCurl(t, s.stdout.String())
	if len(requests) != 2 {
		t.Fatalf("want two curl lines in %s", &s.stdout)
	}
	const rex = `{"id":1,"name":"Rex","categoryId":1,"status":"available"}`
	for i, want := range []string{"GET 200 []", "POST 201 " + rex, "GET 200 [" + rex + "]"} {
		request := requests[i%2] // the first once more, after the second
		response, err := mainClient.Do(request)
		mainMust(t, err)
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if got := fmt.Sprintf("%s %d %s", request.Method, response.StatusCode, body); got != want || response.Header.Get("X-RateLimit-Limit") != "60" {
			t.Errorf("the curl line gives %s, limit %s; want %s", got, response.Header.Get("X-RateLimit-Limit"), want)
		}
		if request.URL.String() != s.address+"/pets" {
			t.Errorf("the curl line goes to %s, the log says %s", request.URL, s.address)
		}
	}
	if !regexp.MustCompile(`^http://127\.0\.0\.1:[1-9]\d*/v1$`).MatchString(s.address) {
		t.Errorf("the log says %s", s.address)
	}
	if ready := `"msg":"ready","address":"` + s.address + `","page":"` + strings.TrimSuffix(s.address, "v1") + `"`; !strings.Contains(s.log.String(), ready) {
		t.Errorf("the log does not begin to say where the service is with %s: %s", ready, s.log)
	}
	if strings.Contains(s.log.String(), s.key) {
		t.Errorf("the key is in the log: %s", s.log)
	}
	s.stop()
	if !strings.Contains(s.log.String(), `"msg":"stopping","requests":0}`) {
		t.Errorf("the log is %s", s.log)
	}
	if conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(s.address, "http://"), "/v1")); err == nil {
		conn.Close()
		t.Error("the address is still served")
	}
}

// mainCurl are the requests of the curl lines in a text, read as a shell and curl read
// them; what is not known here is not printed there.
func mainCurl(t testing.TB, text string) (requests []*http.Request) {
	t.Helper()
	for line := range strings.Lines(text) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "curl -i ")
		if !ok {
			continue
		}
		header, method, body, target := http.Header{}, "GET", "", ""
		words := regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`).FindAllString(line, -1)
		for i := range words {
			words[i] = strings.Trim(words[i], `"'`)
		}
		for len(words) > 0 {
			switch words[0] {
			case "-H":
				name, value, _ := strings.Cut(words[1], ": ")
				header.Set(name, value)
				words = words[1:]
			case "-d":
				method, body = "POST", words[1]
				words = words[1:]
			default:
				target = words[0]
			}
			words = words[1:]
		}
		request, err := http.NewRequest(method, target, strings.NewReader(body))
		mainMust(t, err)
		request.Header = header
		requests = append(requests, request)
	}
	return requests
}

// mainFull is a place that takes nothing, as a full disk or a closed pipe.
type mainFull struct{}

func (mainFull) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestAFirstKeyThatCannotBeShownIsNotMade: a stored key that nobody has seen would
// keep every later start from making one.
func TestAFirstKeyThatCannotBeShownIsNotMade(t *testing.T) {
	db := mainDB(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(ctx, []string{"-addr", "127.0.0.1:0", "-db", db}, nil, nil, mainFull{}, io.Discard)
	mainOneLine(t, err, false, "no key was made, since it cannot be shown", "no space left")

	reader, writer, err := os.Pipe()
	mainMust(t, err)
	reader.Close()
	defer writer.Close()
	cmd := mainProgram(t, "-db", db)
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = writer, &stderr
	err = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != 1 || !regexp.MustCompile(`(?m)^petstore: no key was made[^\n]*broken pipe$`).MatchString(stderr.String()) {
		t.Errorf("with a stdout that nobody reads: status %d, %v, %s", got, err, &stderr)
	}

	s := mainStart(t, nil, "-db", db)
	if response, _ := s.get("/pets", s.key); s.key == "" || response.StatusCode != 200 {
		t.Errorf("the next start prints %s", &s.stdout)
	}
}

// TestAFirstKeyThatCannotBeStoredIsTakenBack: it was printed by then.
func TestAFirstKeyThatCannotBeStoredIsTakenBack(t *testing.T) {
	const notStored = "the key that was printed is not stored and opens nothing"
	first := func(s *store) (stdout, log string, err error) {
		var out, lines bytes.Buffer
		err = printFirstKey(t.Context(), s, false, "http://localhost:1", &out, newLogger(&lines, "json", slog.LevelInfo))
		return out.String(), lines.String(), err
	}
	t.Run("the disk is full", func(t *testing.T) {
		path := mainDB(t)
		s := storeOpen(t, path)
		storeRaw(t, path, "CREATE TRIGGER full BEFORE INSERT ON api_keys BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
		out, log, err := first(s)
		mainOneLine(t, err, false, notStored, "the disk is full")
		if !strings.Contains(out, "pet_live_") || strings.Contains(log, "key created") {
			t.Errorf("stdout is %s, the log %s", out, log)
		}
	})
	t.Run("another program was faster", func(t *testing.T) {
		path := mainDB(t)
		s, other := storeOpen(t, path), storeOpen(t, path)
		var once sync.Once
		s.engine = &storeEngine{engine: s.engine, check: func(st statement, _ []any) {
			if strings.HasPrefix(st.query, "INSERT INTO api_keys") {
				once.Do(func() { authInsert(t, other, apiKey{}) })
			}
		}}
		_, log, err := first(s)
		if err != nil || !strings.Contains(log, `"level":"ERROR","msg":"another program has made a key meanwhile","error":"`+notStored) || strings.Contains(log, "key created") {
			t.Errorf("it ends with %v, the log is %s", err, log)
		}
	})
}

func TestAnUnknownVariableIsAWarning(t *testing.T) {
	const warning = `"level":"WARN","msg":"unknown environment variable; petstore help VERB tells which flags have one","variable":`
	env := map[string]string{
		"PETSTORE_ADR": "localhost:1", "PETSTORE_DATABASE": "pet_live_abc", "PETSTORE_": "x", "PETSTORE_SKIP_IDS": "1", // these are not known
		"PETSTORE_base_url": "x", "PETSTORE_BASE-URL": "x", // nor are these, though they look like one
		"PETSTORE_LOG_LEVEL": "info", "PETSTORE_DEBUG_ALLOW_REMOTE": "true", "PETSTORE_PLAN": "pro", "PETSTORE_OVERLAP": "1h", // these are some command's
		"PETSTORE_BASE_URL": "", "XPETSTORE_X": "x", "PETSTOREX": "x", "HOME": "/root", // and these are nobody's
	}
	_, log, err := mainRun(t, env, "-addr", "127.0.0.1:0", "-db", mainMade(t))
	mainMust(t, err)
	for name := range env {
		want := 0
		if slices.Contains([]string{"PETSTORE_ADR", "PETSTORE_DATABASE", "PETSTORE_", "PETSTORE_SKIP_IDS", "PETSTORE_base_url", "PETSTORE_BASE-URL"}, name) {
			want = 1
		}
		if n := strings.Count(log, warning+`"`+name+`"}`); n != want {
			t.Errorf("%s is warned about %d times, want %d", name, n, want)
		}
	}
	if strings.Contains(log, "localhost:1") || strings.Contains(log, "pet_live_") {
		t.Errorf("a value is logged: %s", log)
	}
}

func TestARestartKeepsEverything(t *testing.T) {
	db := mainDB(t)
	s := mainStart(t, nil, "-db", db)
	if response, body := s.post(`{"name":"Rex","categoryId":7}`); response.StatusCode != 201 || body != `{"id":1,"name":"Rex","categoryId":7,"status":"available"}` {
		t.Fatalf("%d %s", response.StatusCode, body)
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
	if response, _ := s.get("/pets", s.key); response.StatusCode != 200 {
		t.Errorf("its own key is %d", response.StatusCode)
	}
	test, _, err := mainRun(t, nil, "key", "create", "-db", db, "-test")
	mainMust(t, err)
	for staging, want := range map[string][2]int{"-staging=false": {200, 401}, "-staging=true": {401, 200}} {
		s := mainStart(t, nil, "-db", db, staging)
		liveResponse, _ := s.get("/pets", strings.TrimSpace(live))
		testResponse, _ := s.get("/pets", strings.TrimSpace(test))
		if liveResponse.StatusCode != want[0] || testResponse.StatusCode != want[1] {
			t.Errorf("%s: a live key is %d, a test key %d; want %v", staging, liveResponse.StatusCode, testResponse.StatusCode, want)
		}
		s.stop()
	}
	for _, c := range []struct{ made, serve, want string }{
		{"-test=false", "-staging", "petstore key create -test"},
		{"-test", "-staging=false", "petstore key create"},
	} {
		otherOnly := mainDB(t)
		_, _, err = mainRun(t, nil, "key", "create", "-db", otherOnly, c.made)
		mainMust(t, err)
		want := `"level":"WARN","msg":"no key in this database opens this environment; make one with ` + c.want + `"`
		out, log, err := mainRun(t, nil, "-addr", "127.0.0.1:0", "-db", otherOnly, c.serve)
		if err != nil || !strings.Contains(log, want) || out != "" {
			t.Errorf("without a key of its own environment an instance says %v, %s, %s; want %s", err, log, out, want)
		}
		made, _, err := mainRun(t, nil, append(strings.Fields(c.want)[1:], "-db", otherOnly)...)
		mainMust(t, err)
		s := mainStart(t, nil, "-db", otherOnly, c.serve) // stop would find the warning
		if response, _ := s.get("/pets", strings.TrimSpace(made)); response.StatusCode != 200 {
			t.Errorf("the key that %s makes is %d", c.want, response.StatusCode)
		}
	}
}

func TestTheBaseURLIsInLinkAndLocation(t *testing.T) {
	for base, want := range map[string]string{"": "/v1", "https://pets.example/shop/v1": "https://pets.example/shop/v1"} {
		t.Run("base "+base, func(t *testing.T) {
			s := mainStart(t, map[string]string{"PETSTORE_BASE_URL": base}, "-db", mainDB(t))
			if response, _ := s.post(`{"name":"Rex","categoryId":7}`); response.Header.Get("Location") != want+"/pets/1" {
				t.Errorf("Location is %q", response.Header.Get("Location"))
			}
			s.post(`{"name":"Max","categoryId":7}`)
			if response, _ := s.get("/pets?limit=1", s.key); response.Header.Get("Link") != "<"+want+`/pets?limit=1&after=1>; rel="next"` {
				t.Errorf("Link is %q", response.Header.Get("Link"))
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
	if response, _ := s.get("/pets", key); response.StatusCode != 200 {
		t.Fatalf("a key made beside the running server is %d", response.StatusCode)
	}
	_, _, err = mainRun(t, nil, "key", "revoke", "-db", db, "2")
	mainMust(t, err)
	status := 0
	for deadline := time.Now().Add(5 * time.Second); status != 401 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		response, _ := s.get("/pets", key)
		status = response.StatusCode
	}
	if status != 401 {
		t.Errorf("a revoked key is %d", status)
	}
	if response, _ := s.get("/pets", s.key); response.StatusCode != 200 {
		t.Errorf("the other key is %d", response.StatusCode)
	}
}

// TestTheBackgroundKeepsItsPromises lets seconds and minutes pass in no time.
func TestTheBackgroundKeepsItsPromises(t *testing.T) {
	path := mainDB(t) // outside: its folder outlives the bubble
	synctest.Test(t, func(t *testing.T) {
		st, err := openStore(t.Context(), path, forNewKey, testLog)
		mainMust(t, err)
		defer st.Close()
		other, err := openStore(t.Context(), path, forCommand, testLog)
		mainMust(t, err)
		defer other.Close()
		var log bytes.Buffer
		srv := newService(st, settings{banFor: time.Minute}, newLogger(&log, "json", slog.LevelInfo))
		token := newSecret(false)
		id, err := insertKey(t.Context(), st, &apiKey{Name: "x", Plan: "free", CreatedAt: instantOf(time.Now())}, token, false)
		mainMust(t, err)
		old := int64(instantOf(time.Now().Add(-25 * time.Hour)))
		_, err = st.write(t.Context(), sqlOf("INSERT INTO idempotency VALUES (1, 'old', x'00', 1, ?)", old))
		mainMust(t, err)
		header := []string{"Bearer " + string(token)}
		authenticate := func() (*apiKey, error) { return srv.keys.authenticate(header, time.Now(), authUnspent) }
		charge := func() {
			key, err := authenticate()
			mainMust(t, err)
			_, err = srv.limits.admit(&key.account, time.Now())
			mainMust(t, err)
		}
		written := func() int64 {
			u, err := readUsage(t.Context(), other, id)
			mainMust(t, err)
			return u.minute.used
		}

		stop := runBackground(srv, nil)
		charge()
		charge()
		time.Sleep(time.Second)
		if written() != 2 {
			t.Errorf("after a second %d of 2 requests are in the database", written())
		}
		key, err := authenticate()
		mainMust(t, err)
		used := instantOf(time.Now())
		srv.keys.noteDeprecatedUse(key, time.Now())
		time.Sleep(time.Second)
		if got := authUsed(t, other, id); got != used {
			t.Errorf("after a second the deprecated use is %v in the database, want %v", got.time(), used.time())
		}
		charge()
		_, err = other.write(t.Context(), setPlan(id, "pro", quota{}))
		mainMust(t, err)
		time.Sleep(time.Second)
		if key, err := authenticate(); err != nil || key.quota != plans["pro"] {
			t.Errorf("a second after the change of plan the key is %+v, %v", key, err)
		}
		mainMust(t, authRevoke(t.Context(), other, id, instantOf(time.Now())))
		time.Sleep(time.Second)
		if _, err := authenticate(); err == nil {
			t.Error("a second after the revocation the key is still good")
		}
		time.Sleep(time.Minute)
		var records int
		if _, err := other.readInto(t.Context(), sqlOf("SELECT count(*) FROM idempotency"), &records); err != nil || records != 0 {
			t.Errorf("after a minute %d old records are left, %v", records, err)
		}
		if log.Len() > 0 {
			t.Errorf("the log says %s", &log)
		}
		if _, err := srv.limits.admit(&account{usageID: 77, quota: quota{1, 1}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		srv.keys.noteDeprecatedUse(key, time.Now())
		mainMust(t, stop(t.Context()))
		if got := authUsed(t, other, id); got != instantOf(time.Now()) {
			t.Errorf("the stop leaves the deprecated use %v", got.time())
		}
		if u, err := readUsage(t.Context(), other, 77); err != nil || u.minute.used != 1 {
			t.Errorf("the stop leaves the usage %+v, %v", u, err)
		}
	})
}

// mainBackground is a service in fake time whose engine shows a test its statements.
func mainBackground(t *testing.T, path string, check func(st statement)) (srv *service, log *mainLog) {
	t.Helper()
	st, err := openStore(t.Context(), path, forService, testLog)
	mainMust(t, err)
	t.Cleanup(func() { st.Close() })
	st.engine = &storeEngine{engine: st.engine, check: func(st statement, _ []any) { check(st) }}
	log = &mainLog{lines: make(chan mainLine, 10000)}
	return newService(st, settings{}, newLogger(log, "json", slog.LevelInfo)), log
}

// mainUse charges the account 1 of a service for one request.
func mainUse(t *testing.T, srv *service) {
	t.Helper()
	if _, err := srv.limits.admit(&account{usageID: 1, quota: quota{10, 10}}, time.Now()); err != nil {
		t.Fatal(err)
	}
}

// mainUsed is what is stored of that.
func mainUsed(t *testing.T, s *store) int64 {
	t.Helper()
	u, err := readUsage(context.Background(), s, 1)
	mainMust(t, err)
	return u.minute.used
}

// TestAPanicInTheBackgroundEndsNothing but the work that it happened in.
func TestAPanicInTheBackgroundEndsNothing(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		srv, log := mainBackground(t, path, func(st statement) {
			if broken.Load() && !strings.HasPrefix(st.query, "SELECT") {
				panic("boom")
			}
		})
		stop := runBackground(srv, nil)
		broken.Store(true)
		mainUse(t, srv)
		time.Sleep(501 * time.Millisecond)
		// The work that leads the transaction panics; what shares it is unavailable.
		if !regexp.MustCompile(`"level":"ERROR","msg":"cannot [^"]*","error":"panic: boom\\n[^"]*main_test\.go`).MatchString(log.String()) ||
			!strings.Contains(log.String(), `"msg":"cannot write usage"`) {
			t.Errorf("the log does not say what panicked, and where: %s", log)
		}
		broken.Store(false)
		time.Sleep(500 * time.Millisecond)
		if n := mainUsed(t, srv.store); n != 1 || !strings.Contains(log.String(), `"msg":"can write usage again"`) {
			t.Errorf("half a second later %d requests are stored, want 1, and the log is %s", n, log)
		}
		mainUse(t, srv)
		broken.Store(true) // for the last writing
		time.AfterFunc(3*time.Second, func() { broken.Store(false) })
		drain, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		mainMust(t, stop(drain))
		if n := mainUsed(t, srv.store); n != 2 {
			t.Errorf("after the stop %d requests are stored, want 2", n)
		}
	})
}

// TestWhatGoesOnFailingIsLoggedOnce, and for itself: the look for changes goes on well
// beside a writing that fails.
func TestWhatGoesOnFailingIsLoggedOnce(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		srv, log := mainBackground(t, path, func(statement) {})
		stop := runBackground(srv, nil)
		mainUse(t, srv)
		outside := storeRaw(t, path, "CREATE TRIGGER full BEFORE INSERT ON usage BEGIN SELECT RAISE(ABORT, 'full'); END")
		time.Sleep(30*time.Second + 100*time.Millisecond) // between two looks, so that none meets the lock below
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), `"msg":"cannot write usage"`) {
			t.Errorf("in half a minute the log says, in %d lines, %s", n, log)
		}
		if _, err := outside.Exec("DROP TRIGGER full"); err != nil {
			t.Error(err)
		}
		mainMust(t, stop(t.Context()))
	})
}

// TestAStopEndsThePurge: with a lot to delete it would hold the stop up.
func TestAStopEndsThePurge(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		deleting, release, chunks := make(chan bool), make(chan bool), 0
		srv, log := mainBackground(t, path, func(st statement) {
			if strings.HasPrefix(st.query, "DELETE FROM idempotency") {
				if chunks++; chunks == 1 {
					deleting <- true
					<-release
				}
			}
		})
		_, err := srv.store.write(t.Context(), sqlOf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
			INSERT INTO idempotency SELECT 1, 'old ' || i, x'00', 1, 1 FROM n`))
		mainMust(t, err)
		stop := runBackground(srv, nil)
		<-deleting // after a minute
		stopped := make(chan error)
		go func() { stopped <- stop(t.Context()) }()
		synctest.Wait()
		close(release)
		mainMust(t, <-stopped)
		var left int
		if _, err := srv.store.readInto(t.Context(), sqlOf("SELECT count(*) FROM idempotency"), &left); err != nil || left != 1500 || chunks != 1 {
			t.Errorf("%d records are left after %d transactions, %v; want 1500 after one", left, chunks, err)
		}
		if log.String() != "" {
			t.Errorf("the log says %s", log)
		}
	})
}

// TestTheLastWritingOfUsageTriesUntilTheDrainEnds: a lock that is held when the
// service stops is commonly let go a moment later.
func TestTheLastWritingOfUsageTriesUntilTheDrainEnds(t *testing.T) {
	const drain = 10 * time.Second
	for _, c := range []struct {
		policy           string
		broken, repaired string // what another program does when the service stops, and later
		after            time.Duration
		stored           int64
		atLeast, atMost  time.Duration // the stop takes
		drained          bool          // by requests, before the writing begins
	}{
		{"nothing is in its way", "SELECT 1", "SELECT 1", time.Second, 1, 0, 0, false},
		{"nothing is in its way, and the time is over", "SELECT 1", "SELECT 1", time.Second, 1, 0, 0, true},
		{"a lock that is let go in time", "BEGIN IMMEDIATE", "ROLLBACK", 9 * time.Second, 1, 9 * time.Second, 9*time.Second + 100*time.Millisecond, false},
		{"a lock that is held for longer", "BEGIN IMMEDIATE", "ROLLBACK", 20 * time.Second, 0, drain, drain + time.Second, false},
		{"a lock, and the time is over", "BEGIN IMMEDIATE", "ROLLBACK", time.Second, 0, 0, serviceWait, true},
		{"a disk that is full for a while", "CREATE TRIGGER full BEFORE INSERT ON usage BEGIN SELECT RAISE(ABORT, 'full'); END",
			"DROP TRIGGER full", 9 * time.Second, 1, 9 * time.Second, 9*time.Second + 100*time.Millisecond, false},
		{"a disk that is full for longer", "CREATE TRIGGER full BEFORE INSERT ON usage BEGIN SELECT RAISE(ABORT, 'full'); END",
			"DROP TRIGGER full", 20 * time.Second, 0, drain, drain + 100*time.Millisecond, false},
	} {
		t.Run(c.policy, func(t *testing.T) {
			path := mainDB(t)
			synctest.Test(t, func(t *testing.T) {
				srv, _ := mainBackground(t, path, func(statement) {})
				stop := runBackground(srv, nil)
				time.Sleep(time.Millisecond) // so that no tick falls on the end of the drain
				mainUse(t, srv)
				outside := storeRaw(t, path, c.broken)
				repaired := time.AfterFunc(c.after, func() {
					if _, err := outside.Exec(c.repaired); err != nil {
						t.Error(err)
					}
				})
				defer repaired.Stop()
				ctx, cancel := context.WithTimeout(t.Context(), drain)
				defer cancel()
				if c.drained {
					cancel()
				}
				began := time.Now()
				err := stop(ctx)
				if took := time.Since(began); took < c.atLeast || took > c.atMost {
					t.Errorf("the stop takes %v, want %v to %v", took, c.atLeast, c.atMost)
				}
				if c.stored == 1 {
					mainMust(t, err)
				} else if !errors.Is(err, errUnavailable) {
					t.Errorf("the stop says %v", err)
				}
				if n := mainUsed(t, srv.store); n != c.stored {
					t.Errorf("%d requests are stored, want %d", n, c.stored)
				}
			})
		})
	}
}

// TestAStopStoresUsageOnAClusterToo, when requests have taken all the time that there is.
func TestAStopStoresUsageOnAClusterToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rqliteWithoutNetwork(t, 3)
		s, _ := rqliteStore(t, c)
		srv := newService(s, settings{}, testLog)
		stop := runBackground(srv, nil)
		time.Sleep(501 * time.Millisecond) // so that it has shown that it runs
		mainUse(t, srv)
		drain, cancel := context.WithCancel(t.Context())
		cancel()
		mainMust(t, stop(drain))
		if n := mainUsed(t, s); n != 1 {
			t.Errorf("%d requests are stored, want 1", n)
		}
		if n := c.number("SELECT count(*) FROM services"); n != 1 {
			t.Errorf("%d services are stored, want 1", n)
		}
	})
}

// TestTheBackgroundSaysWhatFails: a store that cannot write is an operator's business.
func TestTheBackgroundSaysWhatFails(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		st, err := openStore(t.Context(), path, forNewKey, testLog)
		mainMust(t, err)
		var log bytes.Buffer
		srv := newService(st, settings{}, newLogger(&log, "json", slog.LevelInfo))
		if _, err := srv.limits.admit(&account{usageID: 1, quota: quota{1, 1}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		stop := runBackground(srv, nil)
		mainMust(t, st.Close())
		time.Sleep(61 * time.Second)
		drain, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := stop(drain); !errors.Is(err, errUnavailable) {
			t.Errorf("the last writing of usage says %v", err)
		}
		for _, what := range []string{"cannot look for changes of keys", "cannot write usage", "cannot remove idempotency records"} {
			if !strings.Contains(log.String(), `"level":"ERROR","msg":"`+what+`"`) {
				t.Errorf("the log does not say %q", what)
			}
		}
	})
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
		"a backup over its own database": {func() []string { p := mainMade(t); return []string{"backup", "-db", p, p} }(), []string{"cannot back up", "exists, and nothing is overwritten"}},
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
	// A service that cannot have its address has not made a database either.
	for _, name := range []string{"none.db*", "copy*", "pets.db*"} {
		if made, err := filepath.Glob(filepath.Join(dir, name)); err != nil || made != nil {
			t.Errorf("%v was made, %v", made, err)
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

// mainPair writes a self-signed certificate for 127.0.0.1 and localhost, and its key.
func mainPair(t testing.TB, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	mainMust(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
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
		response, err := transport.RoundTrip(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		return response, err
	}
	response, err := get(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true})
	if err != nil || response.StatusCode != 200 || response.ProtoMajor != 2 {
		t.Errorf("over TLS: %v, %v", response, err)
	}
	response, err = get(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}})
	if err != nil || response.StatusCode != 200 || response.ProtoMajor != 1 || response.TLS.Version < tls.VersionTLS12 {
		t.Errorf("over TLS without HTTP/2: %v, %v", response, err)
	}
}

// TestThePrintedLinesNameTheHostOfTheCertificate: the address that the service has
// got is not one that a certificate names.
func TestThePrintedLinesNameTheHostOfTheCertificate(t *testing.T) {
	cert, key := mainPair(t, t.TempDir(), "a")
	s := mainStart(t, nil, "-db", mainDB(t), "-addr", "localhost:0", "-tls-cert", cert, "-tls-key", key)
	text, err := os.ReadFile(cert)
	mainMust(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	requests := mainCurl(t, s.stdout.String())
	for _, r := range requests {
		if r.URL.String() != s.address+"/pets" || !strings.HasPrefix(s.address, "https://localhost:") {
			t.Errorf("the curl line goes to %s, the log says %s", r.URL, s.address)
		}
		response, err := transport.RoundTrip(r)
		mainMust(t, err)
		if response.Body.Close(); response.StatusCode >= 300 {
			t.Errorf("the curl line gives %d", response.StatusCode)
		}
	}
	if len(requests) != 2 {
		t.Errorf("want two curl lines in %s", &s.stdout)
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
		if strings.Contains(line, `"msg":"request"`) && !regexp.MustCompile(`"request":"[0-9a-f]{16}","route":"[^"]*","status":[2-5]\d\d,"duration":\d+,"key":[01]}`).MatchString(line) {
			t.Errorf("a request is logged as %s", line)
		}
	}
}

// TestTheDebugLogNamesTheKey by its id; 0 is a caller without a valid one.
func TestTheDebugLogNamesTheKey(t *testing.T) {
	db := mainMade(t)
	first, _, err := mainRun(t, nil, "key", "create", "-db", db)
	mainMust(t, err)
	second, _, err := mainRun(t, nil, "key", "create", "-db", db)
	mainMust(t, err)
	s := mainStart(t, nil, "-db", db, "-log-level", "debug")
	keys := map[string]string{} // by request
	for _, c := range []struct{ path, key, want string }{
		{"/pets", first, "2"}, {"/pets", second, "3"}, {"/pets?limit=0", first, "2"}, {"/nothing", second, "3"},
		{"/pets", "", "0"}, {"/pets", "nonsense", "0"}, {"/../openapi.json", first, "2"},
	} {
		response, _ := s.get(c.path, strings.TrimSpace(c.key))
		keys[response.Header.Get("X-Request-Id")] = c.want
	}
	s.stop()
	for id, want := range keys {
		if !regexp.MustCompile(`"msg":"request","request":"` + id + `",.*,"key":` + want + `}`).MatchString(s.log.String()) {
			t.Errorf("request %s, by key %s, is not in the log: %s", id, want, s.log)
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
// finish sends that and returns the status of the response.
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
		response, err := mainClient.Do(r)
		if err != nil {
			t.Log(err)
			status <- 0
			return
		}
		defer response.Body.Close()
		status <- response.StatusCode
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
	finishOther := mainSlow(t, s.address, s.key)
	s.cancel()
	if line := s.await("stopping"); line.Requests != 2 {
		t.Errorf("stopping, it says that it waits for %d requests, want 2", line.Requests)
	}
	select {
	case err := <-s.ended:
		t.Fatalf("the server ended, with %v, under running requests", err)
	default:
	}
	for _, finish := range []func() int{finish, finishOther} {
		if status := finish(); status != 201 {
			t.Errorf("a request that was running ends with status %d", status)
		}
	}
	s.stop()
	again := mainStart(t, nil, "-db", db)
	if response, body := again.get("/pets", s.key); strings.Count(body, `"Rex"`) != 2 || response.Header.Get("X-RateLimit-Remaining") != "57" {
		t.Errorf("after the restart there is %s, and %s requests are left", body, response.Header.Get("X-RateLimit-Remaining"))
	}
}

// TestAStopDuringTheStartIsNoFailure: the exit status 0 is for every stop that was asked for.
func TestAStopDuringTheStartIsNoFailure(t *testing.T) {
	for what, db := range map[string]string{"a new database": mainDB(t), "one that has a key": mainMade(t)} {
		_, log, err := mainRun(t, nil, "-addr", "127.0.0.1:0", "-db", db)
		if err != nil || !strings.Contains(log, `"msg":"ready"`) || !strings.Contains(log, `"msg":"stopping"`) {
			t.Errorf("with %s it ends with %v, %s", what, err, log)
		}
	}
}

// TestAStopBesideTheFirstHeartbeatIsNoFailure: a cluster is told that the service runs before it is ready.
func TestAStopBesideTheFirstHeartbeatIsNoFailure(t *testing.T) {
	for what, path := range map[string]string{"before": "/db/execute", "during": "/db/request"} {
		t.Run(what, func(t *testing.T) {
			c := rqliteNew(t, 3)
			rqliteOpen(t, c, forNewKey) // what is executed later is the first key
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c.when(func(_ *rqliteNode, _ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == path {
					cancel()
				}
				return false
			})
			mainMust(t, run(ctx, []string{"-addr", "127.0.0.1:0", "-db", c.addresses()}, nil, nil, io.Discard, io.Discard))
			if ctx.Err() == nil {
				t.Error("it was not stopped")
			}
		})
	}
}

// TestAServerThatCannotServeSaysSo: a failed Serve is not a success.
func TestAServerThatCannotServeSaysSo(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	mainMust(t, err)
	listener.Close()
	s := newServer(slog.New(slog.DiscardHandler), nil, nil)
	s.start(listener)
	<-s.ended
	if s.failure == nil {
		t.Error("it says nothing")
	}
}

// mainPipes is a listener in fake time: a connection for each dial.
type mainPipes struct {
	arriving chan net.Conn
	closing  context.Context
	close    context.CancelFunc
}

func mainListenInFakeTime(t testing.TB) *mainPipes {
	l := &mainPipes{arriving: make(chan net.Conn)}
	l.closing, l.close = context.WithCancel(t.Context())
	return l
}

func (l *mainPipes) Addr() net.Addr { return &net.TCPAddr{} }
func (l *mainPipes) Close() error   { l.close(); return nil }
func (l *mainPipes) Accept() (net.Conn, error) {
	select {
	case conn := <-l.arriving:
		return conn, nil
	case <-l.closing.Done():
		return nil, net.ErrClosed
	}
}

// pipe connects, and returns the client's end.
func (l *mainPipes) pipe() net.Conn {
	ours, theirs := net.Pipe()
	l.arriving <- mainServerEnd{theirs}
	return ours
}

// dial connects, and closes the channel when the server closes the connection.
func (l *mainPipes) dial() (conn *mainPipe) {
	conn = &mainPipe{
		Conn: l.pipe(), responses: make(chan *http.Response, 10), closed: make(chan bool),
	}
	go func() {
		defer close(conn.closed)
		for reader := bufio.NewReader(conn.Conn); ; {
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			conn.responses <- response
		}
	}()
	return conn
}

// mainServerEnd is the server's end of a connection.
type mainServerEnd struct{ net.Conn }

func (mainServerEnd) CloseWrite() error { return nil }

// mainPipe is a client's end of a connection.
type mainPipe struct {
	net.Conn
	responses chan *http.Response
	closed    chan bool // by the server
}

func (c *mainPipe) send(path string) { fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path) }

// open reports whether the server has not closed the connection by now.
func (c *mainPipe) open() bool {
	synctest.Wait()
	select {
	case <-c.closed:
		return false
	default:
		return true
	}
}

// TestAStopDropsNoRequestThatIsOnItsWay: for 0.1 s a stop accepts connections as before, for
// another 0.25 s it reads from those that it has, and then it waits for requests that run.
func TestAStopDropsNoRequestThatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mainListenInFakeTime(t)
		s := newServer(slog.New(slog.DiscardHandler), nil, nil)
		s.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			wait, _ := time.ParseDuration(r.URL.Path[1:])
			time.Sleep(wait)
		})
		s.start(l)
		silent, kept := l.dial(), l.dial()
		kept.send("/")
		time.Sleep(time.Second)
		running, late := l.dial(), l.dial()
		running.send("/3s")
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- s.stop(t.Context()) }()
		time.Sleep(99 * time.Millisecond)
		connected := l.dial()
		time.Sleep(2 * time.Millisecond)
		if l.closing.Err() == nil {
			t.Error("it still accepts connections after 0.1 s")
		}
		time.Sleep(248 * time.Millisecond) // 0.349 s since the stop
		for _, c := range []*mainPipe{connected, late, kept} {
			c.send("/1s")
		}
		if !silent.open() {
			t.Error("a connection is closed while a request may be on its way")
		}
		time.Sleep(10 * time.Millisecond)
		if silent.open() {
			t.Error("a connection on which nothing comes holds the stop up")
		}
		mainMust(t, <-ended)
		// Shutdown looks twice a second at last.
		if took := time.Since(began); took < 3*time.Second || took > 3600*time.Millisecond {
			t.Errorf("the stop takes %v, and the longest request 3 s", took)
		}
		for what, c := range map[string]struct {
			conn *mainPipe
			want int
		}{
			"one that is silent": {silent, 0}, "one with a request that runs": {running, 1},
			"one that was kept": {kept, 2}, "one that connects during the stop": {connected, 1},
			"one that had sent nothing before": {late, 1},
		} {
			if got := len(c.conn.responses); got != c.want || c.conn.open() {
				t.Errorf("%s has got %d responses, want %d; it is open: %v",
					what, got, c.want, c.conn.open())
			}
		}
	})
}

// TestClientsAreToldOfAStop while there still is somebody who tells them.
func TestClientsAreToldOfAStop(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		srv, log := mainBackground(t, path, func(statement) {})
		l := mainListenInFakeTime(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- serveUntil(ctx, newServer(srv.log, nil, srv), srv, l, runBackground(srv, nil))
		}()
		kept := l.dial()
		kept.send("/readyz")
		if got := <-kept.responses; got.StatusCode != 200 || got.Close {
			t.Errorf("before the stop it responds with %s, closing: %v", got.Status, got.Close)
		}
		cancel()
		synctest.Wait()
		fresh := l.dial()
		for path, want := range map[string]int{"/readyz": 503, "/v1/pets": 401} {
			c := kept
			if want == 401 {
				c = fresh
			}
			c.send(path)
			if got := <-c.responses; got.StatusCode != want || !got.Close || c.open() {
				t.Errorf("%s: %s, closing: %v, open: %v", path, got.Status, got.Close, c.open())
			}
		}
		mainMust(t, <-ended)
		if !strings.Contains(log.String(), `"msg":"stopping","requests":0}`) {
			t.Errorf("the log is %s", log)
		}
	})
}

// TestAStopEndsForRequestsThatDoNot when its time is over.
func TestAStopEndsForRequestsThatDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mainListenInFakeTime(t)
		s := newServer(slog.New(slog.DiscardHandler), nil, nil)
		s.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		s.start(l)
		c := l.dial()
		c.send("/")
		stopping, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := s.stop(stopping); !errors.Is(err, context.DeadlineExceeded) || !c.open() {
			t.Errorf("it ends with %v", err)
		}
		mainMust(t, s.Close())
		<-c.closed
	})
}

// mainRecords is a TLS client that makes its records itself, with AES-128 and SHA-256.
type mainRecords struct {
	*tls.Conn // for reading
	raw       net.Conn
	secret    []byte // of the records that it sends
	sent      uint64 // records with this secret
}

// mainKeyLog takes the secrets of a TLS connection.
type mainKeyLog struct{ secret []byte }

func (l *mainKeyLog) Write(line []byte) (int, error) {
	words := strings.Fields(string(line))
	if words[0] == "CLIENT_TRAFFIC_SECRET_0" {
		l.secret, _ = hex.DecodeString(words[2])
	}
	return len(line), nil
}

// mainHandshake shakes hands over a connection.
func mainHandshake(t testing.TB, raw net.Conn, protocol string) *mainRecords {
	t.Helper()
	log := &mainKeyLog{}
	conn := tls.Client(raw, &tls.Config{ //nolint:gosec // whose certificate it is does not matter
		InsecureSkipVerify: true, KeyLogWriter: log, NextProtos: []string{protocol},
	})
	mainMust(t, conn.Handshake())
	state := conn.ConnectionState()
	if state.CipherSuite != tls.TLS_AES_128_GCM_SHA256 || state.NegotiatedProtocol != protocol {
		suite := tls.CipherSuiteName(state.CipherSuite)
		t.Fatalf("the connection uses %s and %q", suite, state.NegotiatedProtocol)
	}
	return &mainRecords{Conn: conn, raw: raw, secret: log.secret}
}

// derive is HKDF-Expand-Label of RFC 8446, section 7.1, without a context.
func (c *mainRecords) derive(label string, length int) []byte {
	label = "tls13 " + label
	info := "\x00" + string([]byte{byte(length), byte(len(label))}) + label + "\x00"
	key, err := hkdf.Expand(sha256.New, c.secret, info, length)
	if err != nil {
		panic(err)
	}
	return key
}

// send sends a record; its types are 22 for a handshake and 23 for data.
func (c *mainRecords) send(t testing.TB, contentType byte, content string) {
	t.Helper()
	block, err := aes.NewCipher(c.derive("key", 16))
	mainMust(t, err)
	aead, err := cipher.NewGCM(block)
	mainMust(t, err)
	nonce := c.derive("iv", 12)
	count := binary.BigEndian.AppendUint64(make([]byte, 4), c.sent)
	subtle.XORBytes(nonce, nonce, count)
	c.sent++
	plain := append([]byte(content), contentType)
	header := binary.BigEndian.AppendUint16([]byte{23, 3, 3}, uint16(len(plain)+aead.Overhead()))
	_, err = c.raw.Write(append(header, aead.Seal(nil, nonce, plain, header)...))
	mainMust(t, err)
}

// askForUpdate sends a KeyUpdate that asks for one in return (RFC 8446, section 4.6.3).
func (c *mainRecords) askForUpdate(t testing.TB) {
	t.Helper()
	c.send(t, 22, "\x18\x00\x00\x01\x01")
	c.secret, c.sent = c.derive("traffic upd", 32), 0
}

// mainPairIn is a pair that has been read from files.
func mainPairIn(t testing.TB, dir string) *tlsPair {
	t.Helper()
	certFile, keyFile := mainPair(t, dir, "a")
	pair, err := openTLSPair(certFile, keyFile)
	mainMust(t, err)
	return pair
}

// mainHTTP2 begins a connection of HTTP/2 with no settings, and asks for / on the first stream.
const (
	mainHTTP2        = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	mainHTTP2Request = "\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x84\x87\x41\x01x"
)

// TestAStopWithoutRequestsTakesLessThanOneAndAHalfSeconds, whatever connections there are.
func TestAStopWithoutRequestsTakesLessThanOneAndAHalfSeconds(t *testing.T) {
	pair := mainPairIn(t, t.TempDir())
	const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	read := func(conn net.Conn) { go func() { _, _ = io.Copy(io.Discard, conn) }() }
	for what, c := range map[string]struct {
		pair    *tlsPair
		connect func(t testing.TB, conn net.Conn)
		atMost  time.Duration
	}{
		"none": {nil, nil, 0},
		"one that sends nothing": {nil, func(_ testing.TB, conn net.Conn) {
			read(conn)
		}, 360 * time.Millisecond},
		"one that sends half a head": {nil, func(t testing.TB, conn net.Conn) {
			read(conn)
			_, err := io.WriteString(conn, get[:20])
			mainMust(t, err)
		}, 360 * time.Millisecond},
		"one that is kept": {nil, func(t testing.TB, conn net.Conn) {
			read(conn)
			_, err := io.WriteString(conn, get)
			mainMust(t, err)
		}, 360 * time.Millisecond},
		"one that does not begin TLS": {pair, func(_ testing.TB, conn net.Conn) {
			read(conn)
		}, 360 * time.Millisecond},
		"one that sends nothing over TLS": {pair, func(t testing.TB, conn net.Conn) {
			read(mainHandshake(t, conn, "http/1.1"))
		}, 360 * time.Millisecond},
		"one that sends nothing, with HTTP/2": {pair, func(t testing.TB, conn net.Conn) {
			read(mainHandshake(t, conn, "h2"))
		}, 360 * time.Millisecond},
		"one that asks for new keys and reads nothing": {pair, func(t testing.TB, conn net.Conn) {
			mainHandshake(t, conn, "http/1.1").askForUpdate(t)
		}, 360 * time.Millisecond},
		"one that is kept, with HTTP/2": {pair, func(t testing.TB, conn net.Conn) {
			c := mainHandshake(t, conn, "h2")
			read(c)
			c.send(t, 23, mainHTTP2)
			c.send(t, 23, mainHTTP2Request)
		}, 1499 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := mainListenInFakeTime(t)
				s := newServer(slog.New(slog.DiscardHandler), c.pair, http.NotFoundHandler())
				s.start(l)
				if c.connect != nil {
					conn := l.pipe()
					defer conn.Close()
					c.connect(t, conn)
				}
				synctest.Wait()
				began := time.Now()
				mainMust(t, s.stop(t.Context()))
				if took := time.Since(began); took > c.atMost {
					t.Errorf("it takes %v, want %v at most", took, c.atMost)
				}
			})
		})
	}
}

// TestAStopWaitsForNoPeer that asks for new keys and reads nothing: the connection cannot be closed
// before it has its response, nor can any other, since net/http closes them under one lock. The
// time is the machine's, since a goroutine that waits for a lock stops the other.
func TestAStopWaitsForNoPeer(t *testing.T) {
	l := mainListenInFakeTime(t)
	pair := mainPairIn(t, t.TempDir())
	s := newServer(slog.New(slog.DiscardHandler), pair, http.NotFoundHandler())
	s.start(l)
	c := mainHandshake(t, l.pipe(), "http/1.1")
	defer c.raw.Close()
	c.send(t, 23, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	mainMust(t, err)
	response.Body.Close()
	c.askForUpdate(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the time is over before it begins
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop(ctx) }()
	select {
	case err := <-stopped:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the stop says %v", err)
		}
	case <-time.After(maxWrite / 2): // the peer itself is cut off after maxWrite
		t.Error("the stop waits for a peer that reads nothing")
	}
}

// mainSocket is a socket as a parent hands it over.
func mainSocket(t testing.TB, socket interface{ File() (*os.File, error) }) *os.File {
	t.Helper()
	file, err := socket.File()
	mainMust(t, err)
	t.Cleanup(func() { file.Close() })
	return file
}

// mainListen listens as a parent does.
func mainListen(t testing.TB) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	mainMust(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// TestTheParentsSocketIsServed, with TLS as without, and stays the parent's.
func TestTheParentsSocketIsServed(t *testing.T) {
	cert, key := mainPair(t, t.TempDir(), "a")
	text, err := os.ReadFile(cert)
	mainMust(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	for what, c := range map[string]struct {
		scheme string
		proto  int
		flags  []string
	}{
		"plain": {"http", 1, nil},
		"TLS":   {"https", 2, []string{"-tls-cert", cert, "-tls-key", key}},
	} {
		t.Run(what, func(t *testing.T) {
			parent := mainListen(t)
			port := parent.Addr().(*net.TCPAddr).Port
			db := mainDB(t)
			for range 2 { // processes
				p := mainStartProcessOn(t, db, mainSocket(t, parent), c.flags...)
				if want := fmt.Sprintf("%s://localhost:%d/v1", c.scheme, port); p.address != want {
					t.Errorf("it is at %s, want the name in -addr and the port of the socket: %s", p.address, want)
				}
				transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
				response, err := (&http.Client{Transport: transport}).Get(p.address + "/pets")
				mainMust(t, err)
				if response.Body.Close(); response.StatusCode != 401 || response.ProtoMajor != c.proto {
					t.Errorf("the response is %s, in %s", response.Status, response.Proto)
				}
				mainMust(t, p.Process.Signal(syscall.SIGTERM))
				mainMust(t, p.Wait())
				transport.CloseIdleConnections()
			}
			mainMust(t, parent.SetDeadline(time.Now().Add(mainWait)))
			waiting, err := net.Dial("tcp", parent.Addr().String())
			mainMust(t, err)
			defer waiting.Close()
			conn, err := parent.Accept()
			mainMust(t, err)
			conn.Close()
		})
	}
}

// TestAWrongSocketOfTheParentIsRefused: the address of -addr would not be what the parent means.
func TestAWrongSocketOfTheParentIsRefused(t *testing.T) {
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	mainMust(t, err)
	defer udp.Close()
	local, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s")})
	mainMust(t, err)
	defer local.Close()
	text, err := os.Open("go.mod")
	mainMust(t, err)
	defer text.Close()
	for what, c := range map[string]struct {
		socket  *os.File
		sockets string // LISTEN_FDS
		stderr  string
	}{
		"two sockets":     {mainSocket(t, mainListen(t)), "2", "LISTEN_FDS must be 1"},
		"no number":       {mainSocket(t, mainListen(t)), "", "LISTEN_FDS must be 1"},
		"a UDP socket":    {mainSocket(t, udp), "1", "no TCP listener"},
		"a Unix listener": {mainSocket(t, local), "1", "no TCP listener"},
		"a file":          {text, "1", "no TCP listener; .*socket"},
	} {
		t.Run(what, func(t *testing.T) {
			db := mainDB(t)
			cmd := mainProgram(t, "-db", db)
			cmd.Env = append(cmd.Env, "LISTEN_PID="+mainSelf, "LISTEN_FDS="+c.sockets)
			cmd.ExtraFiles = []*os.File{c.socket}
			out, err := cmd.CombinedOutput()
			if line := regexp.MustCompile("^petstore: .*" + c.stderr + ".*\n$"); cmd.ProcessState.ExitCode() != 2 || !line.Match(out) {
				t.Errorf("it ends with %v and says %q, want status 2 and %s", err, out, line)
			}
			if _, err := os.Stat(db); err == nil {
				t.Error("a database was made")
			}
		})
	}
	if _, err := os.Stat(local.Addr().String()); err != nil {
		t.Errorf("the parent's socket was removed: %v", err)
	}
}

// TestASocketForAnotherProcessIsLeftAlone: the variables may have come from further up.
func TestASocketForAnotherProcessIsLeftAlone(t *testing.T) {
	s := mainStart(t, map[string]string{"LISTEN_PID": fmt.Sprint(os.Getppid()), "LISTEN_FDS": "1"}, "-db", mainDB(t))
	if response, _ := s.get("/pets", s.key); response.StatusCode != 200 {
		t.Errorf("it responds with %s", response.Status)
	}
}

// TestEveryPhaseOfARequestIsBounded: a client that is slow on purpose holds nothing for long.
func TestEveryPhaseOfARequestIsBounded(t *testing.T) {
	s := newServer(slog.New(slog.DiscardHandler), nil, nil)
	// As the README promises.
	if s.ReadHeaderTimeout != 5*time.Second || s.ReadTimeout != 15*time.Second || s.WriteTimeout != 30*time.Second || s.IdleTimeout != 2*time.Minute || s.MaxHeaderBytes != 16<<10 {
		t.Errorf("the server waits %v, %v, %v, %v for heads of %d bytes", s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout, s.MaxHeaderBytes)
	}
}

// TestSlowClientsAreCutOff when their time is over.
func TestSlowClientsAreCutOff(t *testing.T) {
	const get, post = "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
	for name, c := range map[string]struct {
		sent  string
		reads bool // what is sent back
		after time.Duration
	}{
		"in the middle of a head":         {get[:20], true, 5 * time.Second},
		"in the middle of a body":         {post + "abc", true, 15 * time.Second},
		"that does not read the response": {get, false, 30 * time.Second},
		"after a response":                {get, true, 2 * time.Minute},
		"after a body":                    {post + "abcd", true, 2 * time.Minute},
		"in the middle of a second head":  {get + get[:20], true, 5 * time.Second},
		"in the middle of a second body":  {post + "abcd" + post, true, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := mainListenInFakeTime(t)
				s := newServer(slog.New(slog.DiscardHandler), nil, nil)
				s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(w, r.Body)
				})
				s.start(l)
				begin := time.Now()
				ours := l.pipe()
				if c.reads {
					go func() { _, _ = io.WriteString(ours, c.sent) }()
					_, _ = io.Copy(io.Discard, ours)
				} else {
					for _, sent := range []string{c.sent, "x", "y"} { // the server reads no more than the x meanwhile
						_, _ = io.WriteString(ours, sent)
					}
				}
				if took := time.Since(begin); took != c.after {
					t.Errorf("the connection ends after %v, want %v", took, c.after)
				}
				mainMust(t, s.stop(t.Context()))
			})
		})
	}
}

// TestPeersThatReadNothingAreCutOff, also where net/http has set no deadline for what is sent.
func TestPeersThatReadNothingAreCutOff(t *testing.T) {
	pair := mainPairIn(t, t.TempDir())
	const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, c := range map[string]struct {
		protocol string
		send     func(t testing.TB, c *mainRecords)
		atMost   time.Duration
	}{
		"before a request": {"http/1.1", func(t testing.TB, c *mainRecords) {
			c.askForUpdate(t)
		}, 2 * time.Minute},
		"within a head": {"http/1.1", func(t testing.TB, c *mainRecords) {
			c.send(t, 23, get[:20])
			c.askForUpdate(t)
		}, 2 * time.Minute},
		"after a response": {"http/1.1", func(t testing.TB, c *mainRecords) {
			c.send(t, 23, get)
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			mainMust(t, err)
			response.Body.Close()
			time.Sleep(time.Minute)
			c.askForUpdate(t)
		}, 3 * time.Minute},
		"with HTTP/2, new keys": {"h2", func(t testing.TB, c *mainRecords) {
			c.send(t, 23, mainHTTP2)
			mainMust(t, c.SetReadDeadline(time.Now().Add(time.Second)))
			_, _ = io.Copy(io.Discard, c) // the settings of the service
			c.askForUpdate(t)
		}, 2 * time.Minute},
		"with HTTP/2, responses": {"h2", func(t testing.TB, c *mainRecords) {
			c.send(t, 23, mainHTTP2)
			c.send(t, 23, mainHTTP2Request)
		}, 17 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := mainListenInFakeTime(t)
				s := newServer(slog.New(slog.DiscardHandler), pair, http.NotFoundHandler())
				s.start(l)
				peer := mainHandshake(t, l.pipe(), c.protocol)
				defer peer.raw.Close()
				began := time.Now()
				c.send(t, peer)
				for s.open.Load() > 0 && time.Since(began) <= c.atMost {
					time.Sleep(time.Second)
				}
				took := time.Since(began)
				t.Logf("it was open for %v", took)
				if took > c.atMost {
					t.Errorf("after %v it is still open", took)
				}
				peer.raw.Close()
				mainMust(t, s.stop(t.Context()))
			})
		})
	}
}

// TestTheLogOfConnectionsIsBounded: what net/http logs quotes strangers.
func TestTheLogOfConnectionsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newServer(newLogger(&log, "json", slog.LevelInfo), nil, nil)
		lines := func() (lines []string) {
			time.Sleep(time.Second)
			synctest.Wait()
			for line := range strings.Lines(log.String()) {
				var message struct{ Level, Msg string }
				mainMust(t, json.Unmarshal([]byte(line), &message))
				if message.Level != "WARN" {
					t.Errorf("it is logged as %s", line)
				}
				lines = append(lines, message.Msg)
			}
			return lines
		}

		const short = "http: TLS handshake error from 192.0.2.1:1: EOF"
		s.ErrorLog.Print(short + "\n")
		if got := lines(); len(got) != 1 || got[0] != short {
			t.Errorf("a short line becomes %q", got)
		}
		log.Reset()
		long := strings.Repeat("x", 1000)
		s.ErrorLog.Print(long + "pet_live_" + strings.Repeat("a", 38) + long)
		s.ErrorLog.Print("https://user:" + long + "b@host" + strings.Repeat("ä", 1<<16))
		for _, line := range lines() {
			if len(line) > 1<<10 || !utf8.ValidString(line) || !strings.HasSuffix(line, "…") {
				t.Errorf("a long line has %d bytes: %s", len(line), line)
			}
			if strings.Contains(line, "aaa") || strings.Contains(line, "user") {
				t.Errorf("a secret is logged: %s", line)
			}
		}
		log.Reset()
		for range 300 {
			s.ErrorLog.Print("hello")
		}
		got := lines()
		if len(got) != 11 || got[9] != "hello" || !strings.HasSuffix(log.String(), `,"lines":290}`+"\n") {
			t.Errorf("of 300 lines at once the log gets %q", got)
		}
		log.Reset()
		s.ErrorLog.Print("hello")
		if got := lines(); len(got) != 1 {
			t.Errorf("a second later a line becomes %q", got)
		}
	})
}

// TestARenewedCertificateIsServed to new connections, and a broken one never.
func TestARenewedCertificateIsServed(t *testing.T) {
	path, dir := mainDB(t), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		srv, log := mainBackground(t, path, func(statement) {})
		pair := mainPairIn(t, dir)
		stop := runBackground(srv, pair)
		l := mainListenInFakeTime(t)
		s := newServer(srv.log, pair, http.NotFoundHandler())
		s.start(l)
		use := func(from string) { // what the files of the pair hold from now on
			certFile, keyFile := mainPair(t, t.TempDir(), from)
			mainMust(t, os.Rename(certFile, pair.certFile))
			mainMust(t, os.Rename(keyFile, pair.keyFile))
		}
		serves := func(want string, logged ...string) {
			t.Helper()
			time.Sleep(31 * time.Second)
			conn := mainHandshake(t, l.pipe(), "http/1.1")
			defer conn.Close()
			if got := conn.ConnectionState().PeerCertificates[0].Subject.CommonName; got != want {
				t.Errorf("a new connection gets the certificate %s, want %s", got, want)
			}
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if log.String() == "" {
				lines = nil
			}
			if len(lines) != len(logged) {
				t.Errorf("the log has %d lines, want %d: %s", len(lines), len(logged), log)
				return
			}
			for i, want := range logged {
				if !strings.Contains(lines[i], want) {
					t.Errorf("a line of the log is %s, want %s", lines[i], want)
				}
			}
		}
		const renewed = `"level":"INFO","msg":"TLS certificate renewed"`
		const broken = `"level":"ERROR","msg":"cannot use the files of -tls-cert and -tls-key"`
		const again = `"level":"INFO","msg":"can use the files of -tls-cert and -tls-key again"`
		serves("a")
		use("b")
		serves("b", renewed)
		mainMust(t, os.WriteFile(pair.keyFile, []byte("-----BEGIN PRIV"), 0o600)) // half written
		serves("b", renewed, broken)
		serves("b", renewed, broken) // once
		mainMust(t, os.Remove(pair.keyFile))
		serves("b", renewed, broken)
		use("c")
		serves("c", renewed, broken, renewed, again)
		whole, err := os.ReadFile(pair.certFile)
		mainMust(t, err)
		more, _ := mainPair(t, t.TempDir(), "d")
		chain, err := os.ReadFile(more)
		mainMust(t, err)
		chain = append(whole, chain...)
		mainMust(t, os.WriteFile(pair.certFile, chain[:len(chain)-60], 0o600)) // half written
		serves("c", renewed, broken, renewed, again, broken)
		mainMust(t, os.WriteFile(pair.certFile, chain, 0o600))
		serves("c", renewed, broken, renewed, again, broken, renewed, again)
		mainMust(t, s.stop(t.Context()))
		mainMust(t, stop(t.Context()))
	})
}

// TestAStopWaitsForNoCertificate whose file hangs, as on a file system that is not there any more.
func TestAStopWaitsForNoCertificate(t *testing.T) {
	path, dir := mainDB(t), t.TempDir()
	hangs, stopped, ended := make(chan *os.File, 1), make(chan struct{}), make(chan struct{})
	var late atomic.Bool
	go func() { // in real time
		defer close(ended)
		writer := <-hangs
		select {
		case <-stopped:
		case <-time.After(10 * time.Second):
			late.Store(true)
		}
		_ = writer.Close() // lets the reader go on
	}()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := mainBackground(t, path, func(statement) {})
		pair := mainPairIn(t, dir)
		mainMust(t, os.Remove(pair.certFile))
		mainMust(t, syscall.Mkfifo(pair.certFile, 0o600))
		stop := runBackground(srv, pair)
		time.Sleep(30 * time.Second)
		hangs <- mainWriterOf(pair.certFile)
		mainUse(t, srv)
		mainMust(t, stop(t.Context()))
		close(stopped)
		if late.Load() {
			t.Error("the stop waits for the file")
		}
		if n := mainUsed(t, srv.store); n != 1 {
			t.Errorf("of one request %d are stored", n)
		}
	})
	<-ended
}

// mainWriterOf opens a named pipe for writing, once somebody reads it.
func mainWriterOf(pipe string) *os.File {
	for {
		writer, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			return writer
		}
		runtime.Gosched()
	}
}

// TestWhatIsSlowIsNotRepeatedAfterAStop: it would hold up the stop once more.
func TestWhatIsSlowIsNotRepeatedAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := 0
		for range 30 { // of two channels that are ready, select takes any
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(3*time.Second, cancel)
			work := func() error {
				times++
				time.Sleep(5 * time.Second)
				return nil
			}
			repeat(ctx, time.Second, "work", work, testLog)
		}
		if times != 30 {
			t.Errorf("in 30 stops, slow work is done %d times", times)
		}
	})
}

func TestTheAddressOfAnOpenServerIsOneToConnectTo(t *testing.T) {
	for _, c := range []struct {
		addr, listening string
		secure          bool
		want            string
	}{
		{"0.0.0.0:0", "0.0.0.0:8080", false, "http://localhost:8080"},
		{"[::]:0", "[::]:8080", false, "http://localhost:8080"},
		{":0", "[::]:8080", false, "http://localhost:8080"},
		{"127.0.0.1:0", "127.0.0.1:8080", false, "http://127.0.0.1:8080"},
		{"[::1]:0", "[::1]:8080", false, "http://[::1]:8080"},
		{"localhost:0", "127.0.0.1:8080", false, "http://localhost:8080"},
		{"localhost:0", "127.0.0.1:8443", true, "https://localhost:8443"}, // a certificate names no address, commonly
		{"pets.example:8443", "10.0.0.7:8443", true, "https://pets.example:8443"},
		{"pets.example:https", "10.0.0.7:443", true, "https://pets.example:443"},
	} {
		listening := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.listening))
		if got := localURL(mainListener{listening}, c.addr, c.secure); got != c.want {
			t.Errorf("with -addr %s the address is %s, want %s", c.addr, got, c.want)
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
		"half a verb is 2":          {[]string{"key"}, 2, `^petstore: no command "key"; there are key create, [^\n]*\n$`},
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
	p.start(t)
	out, _, err := mainRun(t, nil, "key", "create", "-db", p.Args[2])
	mainMust(t, err)
	p.key = strings.TrimSpace(out)
	return p
}

// mainStartProcessOn starts one that gets its socket from its parent, this process.
func mainStartProcessOn(t testing.TB, db string, socket *os.File, flags ...string) *mainProcess {
	t.Helper()
	p := &mainProcess{Cmd: mainProgram(t, append(flags, "-db", db, "-addr", "localhost:1")...)}
	p.Env = append(p.Env, "LISTEN_PID="+mainSelf, "LISTEN_FDS=1", "LISTEN_FDNAMES=petstore.socket")
	p.ExtraFiles = []*os.File{socket} // from 3 on
	p.start(t)
	return p
}

// start returns when it is ready.
func (p *mainProcess) start(t testing.TB) {
	t.Helper()
	p.Stdout = &p.stdout
	stderr, err := p.StderrPipe()
	mainMust(t, err)
	mainMust(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	p.log = bufio.NewScanner(stderr)
	p.address = p.await(t, "ready").Address
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
	for _, signal := range []os.Signal{syscall.SIGTERM, os.Interrupt, syscall.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			p := mainStartProcess(t)
			finish := mainSlow(t, p.address, p.key)
			mainMust(t, p.Process.Signal(signal))
			p.await(t, "stopping")
			if status := finish(); status != 201 {
				t.Errorf("the running request ends with status %d", status)
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

// TestAnIgnoredSIGHUPStaysIgnored: nohup(1) starts programs so.
func TestAnIgnoredSIGHUPStaysIgnored(t *testing.T) {
	p := &mainProcess{Cmd: mainProgram(t, "-db", mainMade(t))}
	p.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`, p.Path}, p.Args[1:]...)
	p.Path, p.Err = exec.LookPath("sh")
	p.start(t)
	mainMust(t, p.Process.Signal(syscall.SIGHUP))
	for range 100 { // a stop would begin meanwhile
		response, _ := mainDo(t, "GET", strings.TrimSuffix(p.address, "/v1")+"/readyz", "", "")
		if response.StatusCode != http.StatusOK {
			t.Fatalf("it responds with %s", response.Status)
		}
	}
	mainMust(t, p.Process.Signal(syscall.SIGTERM))
	p.await(t, "stopping")
	mainMust(t, p.Wait())
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

// TestAReaderOfStdoutMayLeaveEarly, as head(1) does. Only a new key, which nobody has seen then, is another matter.
func TestAReaderOfStdoutMayLeaveEarly(t *testing.T) {
	db := mainMade(t)
	storeCreate(t, storeOpen(t, db), NewPet{"Rex", 1, Sold})
	for line, want := range map[string]struct {
		status int
		stderr string // a regular expression
	}{
		"key list":         {0, `^$`},
		"key list -json":   {0, `^$`},
		"key show 1":       {0, `^$`},
		"key show -json 1": {0, `^$`},
		"key usage":        {0, `^$`},
		"key usage -json":  {0, `^$`},
		"help":             {0, `^$`},
		"help key create":  {0, `^$`},
		"version":          {0, `^$`},
		"pet export":       {1, `^$`},
		"key create":       {1, `^petstore: no key was made, since it cannot be shown: [^\n]*broken pipe\n$`},
		"key rotate 1":     {1, `^petstore: no key was made, since it cannot be shown: [^\n]*broken pipe\n$`},
	} {
		t.Run(line, func(t *testing.T) {
			reader, writer, err := os.Pipe()
			mainMust(t, err)
			mainMust(t, reader.Close())
			defer writer.Close()
			cmd := mainProgram(t, strings.Fields(line)...)
			cmd.Env = append(cmd.Env, "PETSTORE_DB="+db)
			var stderr strings.Builder
			cmd.Stdout, cmd.Stderr = writer, &stderr
			err = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != want.status || !regexp.MustCompile(want.stderr).MatchString(stderr.String()) {
				t.Errorf("status %d, %v, stderr %q; want %d", got, err, &stderr, want.status)
			}
		})
	}
	if keys, err := readKeys(t.Context(), storeOpen(t, db), 0, ""); err != nil || len(keys) != 1 {
		t.Errorf("there are %d keys, %v", len(keys), err)
	}
}

// TestDevNullIsAStdoutAsAnyOther, also when it is opened for reading and writing, as Python and Node do.
func TestDevNullIsAStdoutAsAnyOther(t *testing.T) {
	db := mainMade(t)
	for _, mode := range []int{os.O_RDWR, os.O_WRONLY} {
		for _, args := range [][]string{{"key", "list"}, {"key", "create"}, {"version"}} {
			null, err := os.OpenFile(os.DevNull, mode, 0)
			mainMust(t, err)
			cmd := mainProgram(t, args...)
			cmd.Env = append(cmd.Env, "PETSTORE_DB="+db)
			cmd.Stdout = null
			if err := cmd.Run(); err != nil {
				t.Errorf("petstore %v: %v", args, err)
			}
			mainMust(t, null.Close())
		}
	}
}
