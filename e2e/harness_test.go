// Package e2e tests the built program with tools from outside: real clients,
// validators and generators. Nothing here reaches the service's go.mod. The first comment of a file
// says what only it proves: a test stays as long as that is worth its seconds. What would only do
// the same more often is left to SOAK, or drawn by planted.Some.
package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"petstore/e2e/planted"
)

// binary is the program under test, built once for the whole run.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "petstore-e2e-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "petstore")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = ".."
	build.Stderr = os.Stderr
	status := 1
	if build.Run() == nil {
		status = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// soak multiplies how often, or how long, a test does what it does: SOAK=20
// in the environment makes it twenty times what .ci/run takes.
func soak[T int | time.Duration](n T) T { return n * T(planted.Soak()) }

// metric reads a sample from the debug address, named as on its line, labels
// included; one that is not there is an error.
func (s *server) metric(name string) float64 {
	s.t.Helper()
	for line := range strings.Lines(s.get(s.t, "/metrics")) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			noError(s.t, err)
			return number
		}
	}
	s.t.Fatalf("there is no metric %s", name)
	return 0
}

// server is a running petstore.
type server struct {
	t     *testing.T
	db    string
	url   string // up to and including /v1
	debug string // URL of the debug address, when there is one
	key   string // of the Enterprise plan, with limits no test reaches
	cmd   *exec.Cmd
	out   *logBuffer // all of stdout
	log   *logBuffer // all of stderr

	socket *os.File // that it gets from its parent, or nil

	// Programs of other versions, which serve and run the commands in the place of
	// the one under test; empty for that.
	serves, commands string
}

// logBuffer collects what a process writes while others read it.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// start runs the program on a free port, with a new database and a key of
// 1,000,000,000 requests a minute. It is stopped, and must exit with 0, when
// the test ends.
func start(t *testing.T, flags ...string) *server {
	t.Helper()
	s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
	s.key = s.newKey(unlimited...)
	s.run(flags...)
	return s
}

// newKey makes a key with the flags of petstore key create.
func (s *server) newKey(flags ...string) string {
	s.t.Helper()
	return strings.TrimSpace(s.command(append([]string{"key", "create", "-db", s.db}, flags...)...))
}

// program is the program with arguments, and without the settings that happen
// to be in this process's environment.
func program(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(),
		func(v string) bool { return strings.HasPrefix(v, "PETSTORE_") })
	return cmd
}

// program is a command of the version that runs the commands.
func (s *server) program(args ...string) *exec.Cmd {
	cmd := program(args...)
	cmd.Path = cmp.Or(s.commands, cmd.Path)
	return cmd
}

// command runs a command of the program and returns its stdout.
func (s *server) command(args ...string) string {
	s.t.Helper()
	cmd := s.program(args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("petstore %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// run starts the program on the server's database and waits until it is ready.
func (s *server) run(flags ...string) {
	s.t.Helper()
	s.launch(flags...)()
}

// launch is run without the wait, which is what it returns.
func (s *server) launch(flags ...string) (awaitReady func()) {
	s.t.Helper()
	s.out, s.log = &logBuffer{}, &logBuffer{}
	s.cmd = program(append([]string{"-addr", "127.0.0.1:0", "-db", s.db}, flags...)...)
	s.cmd.Path = cmp.Or(s.serves, s.cmd.Path)
	if s.socket != nil {
		s.cmd = inheriting(s.cmd, s.socket)
	}
	reader, writer := io.Pipe()
	s.cmd.Stdout, s.cmd.Stderr = s.out, io.MultiWriter(s.log, writer)
	noError(s.t, s.cmd.Start())
	s.t.Cleanup(func() { s.stop() })
	ready := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(reader)
		for lines.Scan() {
			if field(lines.Text(), "msg") == "ready" {
				ready <- lines.Text()
				break
			}
		}
		_, _ = io.Copy(io.Discard, reader) // the program must not block
	}()
	return func() {
		s.t.Helper()
		select {
		case line := <-ready:
			s.url, s.debug = field(line, "address"), field(line, "debug")
		case <-time.After(20 * time.Second):
			s.t.Fatalf("petstore is not ready:\n%s", s.log)
		}
	}
}

// field is a value without spaces in a line of the log, be it text or JSON.
func field(line, name string) string {
	match := regexp.MustCompile(`\b` + name + `"?[=:]"?([^ "]*)`).FindStringSubmatch(line)
	if match == nil {
		return ""
	}
	return match[1]
}

// stop ends the program as an operator would; doing so twice does nothing.
func (s *server) stop() {
	s.t.Helper()
	if s.cmd.ProcessState != nil {
		return
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Error(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("petstore ended with %v:\n%s", err, s.log)
	}
}

// address is the server's URL without /v1.
func (s *server) address() string { return strings.TrimSuffix(s.url, "/v1") }

// bearer is the value of Authorization.
func (s *server) bearer() string { return fmt.Sprint("Bearer ", s.key) }

// answer is a response that was read whole.
type answer struct {
	status int
	code   string // of an Error
	header http.Header
	body   string
}

// send sends a request under /v1, with the server's key unless the headers
// ("Name: value") hold another; "Authorization:" sends none.
func (s *server) send(ctx context.Context, client *http.Client, method, target, body string,
	headers ...string) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+target, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", s.bearer())
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	setHeaders(req, headers)
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	return readAnswer(res)
}

// setHeaders sets those with a value, and takes the others away.
func setHeaders(r *http.Request, headers []string) {
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		if value = strings.TrimSpace(value); value == "" {
			r.Header.Del(name)
		} else {
			r.Header.Set(name, value)
		}
	}
}

func readAnswer(res *http.Response) (*answer, error) {
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	var e struct{ Code string }
	if res.StatusCode >= 400 {
		_ = json.Unmarshal(data, &e) // a HEAD has none
	}
	return &answer{res.StatusCode, e.Code, res.Header, string(data)}, err
}

// newHTTPClient keeps as many connections as it is told.
func newHTTPClient(connections int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections},
		Timeout: 30 * time.Second}
}

// pet is the test's own copy of the wire's Pet.
type pet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

// rex is the body that adds a pet.
const rex = `{"name":"Rex","categoryId":7}`

// animalJSON is the body that adds an animal with a name.
func animalJSON(name string) string { return fmt.Sprintf(`{"name":%q,"categoryId":1}`, name) }

// keyForm is the form of a key.
var keyForm = regexp.MustCompile(`\bpet_(live|test)_[0-9A-Za-z]{38}\b`)

// Flags of the service that several tests need.
var (
	debugFlags = []string{"-debug-addr", "127.0.0.1:0"}

	// behindProxy lets every call come from an address of its own, so that the
	// limit of addresses is in no refusal's way.
	behindProxy = []string{"-client-ip-header", "X-Forwarded-For"}
)

// kill ends the program without a warning.
func (s *server) kill() {
	s.t.Helper()
	kill(s.t, s.cmd)
}

// kill ends a process at once, as the loss of its machine would.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	noError(t, cmd.Process.Kill())
	_ = cmd.Wait() // says that it was killed
}

// everyAnimal pages through the service: the ids under each name.
func (s *server) everyAnimal(t *testing.T) map[string][]int64 {
	t.Helper()
	return everyPet(t, func(target string) string {
		got, err := call(s.url, s.key, "GET", target, "", "")
		noError(t, err)
		return got.body
	})
}

// everyPet follows the pages that get returns, which must ascend: the ids under
// each name.
func everyPet(t *testing.T, get func(target string) (body string)) map[string][]int64 {
	t.Helper()
	stored := map[string][]int64{}
	for after := int64(0); ; {
		page := decode[[]pet](t, get(fmt.Sprintf("/pets?limit=100&after=%d", after)))
		if len(page) == 0 {
			return stored
		}
		for _, p := range page {
			if p.ID <= after {
				t.Errorf("%s, which has the id %d, is listed after %d", p.Name, p.ID, after)
			}
			stored[p.Name] = append(stored[p.Name], p.ID)
			after = p.ID
		}
	}
}

// checkStored wants each of the pets stored once, under its id, and of others only those that may
// be there, once.
func checkStored(t *testing.T, stored map[string][]int64, must map[string]int64,
	may func(name string, id int64) bool) {
	t.Helper()
	for name, id := range must {
		if ids := stored[name]; len(ids) != 1 || ids[0] != id {
			t.Errorf("%s was answered with id %d and is stored as %v", name, id, ids)
		}
	}
	for name, ids := range stored {
		if _, isKnown := must[name]; !isKnown && (len(ids) != 1 || !may(name, ids[0])) {
			t.Errorf("%s, which was not confirmed like that, is stored as %v", name, ids)
		}
	}
}

func decode[V any](t testing.TB, data string) (v V) {
	t.Helper()
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return v
}

// database makes a database with the driver alone.
func database(t *testing.T, path string, statements ...string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	noError(t, err)
	db.SetMaxOpenConns(1)
	for _, statement := range statements {
		_, err := db.Exec(statement)
		noError(t, err)
	}
	return db
}

// query returns the one value that a statement on a database file yields.
func query[V any](t *testing.T, file, statement string) (value V) {
	t.Helper()
	db := database(t, file, "PRAGMA busy_timeout = 10000")
	defer db.Close()
	if err := db.QueryRow(statement).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

// checkIntegrity has SQLite look for damage in a database.
func checkIntegrity(t *testing.T, file string) {
	t.Helper()
	if verdict := query[string](t, file, "PRAGMA integrity_check"); verdict != "ok" {
		t.Errorf("the database is damaged: %s", verdict)
	}
}

// runs wants a command of the machine to succeed.
func runs(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// build builds the program of a folder into a file.
func build(t *testing.T, folder, file string, flags ...string) {
	t.Helper()
	cmd := exec.Command("go", slices.Concat([]string{"build", "-o", file}, flags, []string{"."})...)
	cmd.Dir = folder
	runs(t, cmd)
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// tail is the end of a log.
func tail(log string) string { return log[max(0, len(log)-2000):] }
