package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// rqliteFake is a cluster of rqlite nodes in this process, as far as an engine sees
// one: the HTTP API of rqlite 8.43, with its errors, before a real SQLite database.
// It is a http.RoundTripper too, for tests inside synctest, which may use no network.
type rqliteFake struct {
	t     testing.TB
	nodes []*rqliteNode

	mu             sync.Mutex // guards what follows; every request waits for its turn
	path           string
	db             *sql.DB // of one connection
	leader         int     // -1: none
	user, password string
	requests       []string // those that arrived, as "1 POST /db/query?level=linearizable"
	rule           func(n *rqliteNode, w http.ResponseWriter, r *http.Request) (answered bool)
}

// rqliteNode is one node of a fake.
type rqliteNode struct {
	fake    *rqliteFake
	number  int
	addr    string // by which the other nodes know it
	version string
	host    string
	down    bool
	server  *httptest.Server // nil: it is down, or there is no network
}

// rqliteNew makes a cluster, of which the node 0 is the leader.
func rqliteNew(t testing.TB, nodes int) *rqliteFake {
	t.Helper()
	c := rqliteWithoutNetwork(t, nodes)
	for _, n := range c.nodes {
		n.host = "127.0.0.1:0"
		n.start()
		t.Cleanup(n.stop)
	}
	return c
}

// rqliteWithoutNetwork makes a cluster for rqliteStore.
func rqliteWithoutNetwork(t testing.TB, nodes int) *rqliteFake {
	t.Helper()
	c := &rqliteFake{t: t, path: filepath.Join(t.TempDir(), "rqlite.db")}
	c.open()
	t.Cleanup(func() { _ = c.db.Close() })
	for number := range nodes {
		c.nodes = append(c.nodes, &rqliteNode{fake: c, number: number, version: "v8.43.4",
			addr: fmt.Sprintf("raft%d:4002", number), host: fmt.Sprintf("node%d:4001", number)})
	}
	return c
}

func (c *rqliteFake) open() {
	c.db = openPool(c.path, 0, "_pragma=journal_mode(WAL)", "_pragma=synchronous(OFF)")
	c.db.SetMaxOpenConns(1)
}

// start lets a node listen where it has listened before.
func (n *rqliteNode) start() {
	listener, err := net.Listen("tcp", n.host)
	storeMust(n.fake.t, err)
	n.host = listener.Addr().String()
	n.server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: n}}
	n.server.Start()
	n.setDown(false)
}

func (n *rqliteNode) setDown(down bool) {
	n.fake.mu.Lock()
	defer n.fake.mu.Unlock()
	n.down = down
}

// stop lets connections to a node be refused.
func (n *rqliteNode) stop() {
	n.setDown(true)
	if n.server != nil {
		n.server.CloseClientConnections()
		n.server.Close()
		n.server = nil
	}
}

// db is what -db says to use some of the nodes, or all.
func (c *rqliteFake) addresses(numbers ...int) string {
	var addresses []string
	for _, n := range c.nodes {
		if numbers == nil || slices.Contains(numbers, n.number) {
			addresses = append(addresses, "http://"+n.host)
		}
	}
	return strings.Join(addresses, ",")
}

// lead makes another node the leader, or, with -1, none.
func (c *rqliteFake) lead(number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = number
}

// when lets a rule look at every request first; nil ends it.
func (c *rqliteFake) when(rule func(n *rqliteNode, w http.ResponseWriter, r *http.Request) (answered bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rule = rule
}

// arrived returns the requests since it was last called, without those for a status.
func (c *rqliteFake) arrived() (requests []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	requests, c.requests = c.requests, nil
	return slices.DeleteFunc(requests, func(r string) bool { return strings.HasSuffix(r, "/status") })
}

// RoundTrip takes a request to its node without a network.
func (c *rqliteFake) RoundTrip(r *http.Request) (*http.Response, error) {
	n := c.nodes[slices.IndexFunc(c.nodes, func(n *rqliteNode) bool { return n.host == r.URL.Host })]
	c.mu.Lock()
	down := n.down
	c.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	done := make(chan *http.Response, 1)
	go func() {
		defer close(done)
		defer func() { _ = recover() }() // of http.ErrAbortHandler
		w := httptest.NewRecorder()
		n.ServeHTTP(w, r)
		response := w.Result()
		if length, err := strconv.Atoi(response.Header.Get("Content-Length")); err == nil && length > w.Body.Len() {
			response.Body = io.NopCloser(io.MultiReader(response.Body, iotest.ErrReader(io.ErrUnexpectedEOF)))
		}
		done <- response
	}()
	select {
	case response := <-done:
		if response == nil {
			return nil, &net.OpError{Op: "read", Err: syscall.ECONNRESET}
		}
		return response, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// ServeHTTP does what rqlite's http/service.go does.
func (n *rqliteNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := n.fake
	c.mu.Lock()
	c.requests = append(c.requests, fmt.Sprintf("%d %s %s", n.number, r.Method, r.URL.RequestURI()))
	rule := c.rule
	c.mu.Unlock()
	if rule != nil && rule(n, w, r) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.serve(w, r)
}

func (n *rqliteNode) serve(w http.ResponseWriter, r *http.Request) {
	c := n.fake
	if user, password, _ := r.BasicAuth(); user != c.user || password != c.password {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.Header().Set("X-Rqlite-Version", n.version)
	if r.URL.Path == "/status" {
		n.status(w)
		return
	}
	switch r.URL.Path {
	case "/db/query", "/db/execute", "/db/request", "/db/backup", "/db/load":
	default:
		http.NotFound(w, r)
		return
	}
	if c.leader < 0 {
		http.Error(w, "leader not found", http.StatusServiceUnavailable)
		return
	}
	if c.leader != n.number {
		w.Header().Set("X-Rqlite-Served-By", c.nodes[c.leader].addr)
	}
	switch r.URL.Path {
	case "/db/backup":
		c.backup(w)
	case "/db/load":
		c.load(w, r)
	default:
		c.statements(w, r)
	}
}

func (n *rqliteNode) status(w http.ResponseWriter) {
	c, state, leader := n.fake, "Follower", map[string]string{"addr": "", "node_id": ""}
	if c.leader >= 0 {
		leader["addr"] = c.nodes[c.leader].addr
	}
	if c.leader == n.number {
		state = "Leader"
	}
	rqliteJSON(w, map[string]any{
		"build": map[string]string{"version": n.version, "compiler": "gc"},
		"store": map[string]any{"addr": n.addr, "leader": leader, "raft": map[string]any{"state": state, "term": 4}},
	})
}

func rqliteJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(value)
}

// rqliteResult is the answer to one statement.
type rqliteResult struct {
	LastID   int64    `json:"last_insert_id,omitempty"`
	Affected int64    `json:"rows_affected,omitempty"`
	Columns  []string `json:"columns,omitempty"`
	Types    []string `json:"types,omitempty"`
	Values   [][]any  `json:"values,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// statements runs what was posted, like rqlite up to the first error.
func (c *rqliteFake) statements(w http.ResponseWriter, r *http.Request) {
	var posted [][]any
	decoder := json.NewDecoder(r.Body)
	decoder.UseNumber()
	if decoder.Decode(&posted) != nil {
		http.Error(w, "invalid JSON body", http.StatusBadRequest)
		return
	}
	query := r.URL.Path == "/db/query"
	if query && r.URL.RawQuery != "level=linearizable" || !query && r.URL.RawQuery != "transaction" {
		c.t.Errorf("a request to %s is weaker than it may be: %s", r.URL.Path, r.URL.RawQuery)
	}
	begin, end, undo := "BEGIN", "COMMIT", "ROLLBACK"
	if query {
		begin, end, undo = "PRAGMA query_only=1", "PRAGMA query_only=0", "PRAGMA query_only=0"
	}
	_, err := c.db.Exec(begin)
	storeMust(c.t, err)
	results, failed := []rqliteResult{}, false
	for _, st := range posted {
		result := c.run(st[0].(string), rqliteArguments(st[1:]), r.URL.Path != "/db/execute")
		results, failed = append(results, result), result.Error != ""
		if failed {
			end = undo
			break
		}
	}
	_, err = c.db.Exec(end)
	storeMust(c.t, err)
	rqliteJSON(w, map[string]any{"results": results})
}

// rqliteArguments are parameters as rqlite binds them: a string like x'41' as a BLOB.
func rqliteArguments(parameters []any) []any {
	for i, parameter := range parameters {
		switch p := parameter.(type) {
		case json.Number:
			if parameters[i], _ = p.Int64(); p.String() != fmt.Sprint(parameters[i]) {
				parameters[i], _ = p.Float64()
			}
		case string:
			text := strings.TrimSpace(p)
			if len(text) >= 3 && strings.ContainsAny(text[:1], "xX") && text[1] == '\'' && strings.HasSuffix(text[2:], "'") {
				if blob, err := hex.DecodeString(text[2 : len(text)-1]); err == nil {
					parameters[i] = blob
				}
			}
		}
	}
	return parameters
}

func (c *rqliteFake) run(query string, arguments []any, mayQuery bool) (result rqliteResult) {
	if !mayQuery || !strings.HasPrefix(strings.TrimSpace(query), "SELECT") {
		done, err := c.db.Exec(query, arguments...)
		if err != nil {
			return rqliteResult{Error: err.Error()}
		}
		result.LastID, _ = done.LastInsertId()
		result.Affected, _ = done.RowsAffected()
		return result
	}
	rows, err := c.db.Query(query, arguments...)
	if err != nil {
		return rqliteResult{Error: err.Error()}
	}
	defer rows.Close()
	result.Columns, _ = rows.Columns()
	for rows.Next() {
		values, into := make([]any, len(result.Columns)), make([]any, len(result.Columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return rqliteResult{Error: err.Error()}
		}
		result.Values = append(result.Values, values)
	}
	if err := rows.Err(); err != nil {
		return rqliteResult{Error: err.Error()}
	}
	return result
}

func (c *rqliteFake) backup(w http.ResponseWriter) {
	file := filepath.Join(c.t.TempDir(), "backup")
	_, err := c.db.Exec("VACUUM INTO ?", file)
	storeMust(c.t, err)
	content, err := os.ReadFile(file)
	storeMust(c.t, err)
	_, _ = w.Write(content)
}

func (c *rqliteFake) load(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err != nil || !bytes.HasPrefix(content, []byte("SQLite format 3\x00")) {
		rqliteJSON(w, map[string]any{"results": []rqliteResult{{Error: "near \"SQLite\": syntax error"}}})
		return
	}
	storeMust(c.t, c.db.Close())
	c.path = filepath.Join(c.t.TempDir(), "loaded.db")
	storeMust(c.t, os.WriteFile(c.path, content, 0o600))
	c.open()
	rqliteJSON(w, map[string]any{"results": []rqliteResult{}})
}

// number asks the database behind the nodes itself.
func (c *rqliteFake) number(query string, arguments ...any) int64 {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	return storeNumber(c.t, c.db, query, arguments...)
}

// exec changes it behind the nodes' back.
func (c *rqliteFake) exec(statements ...string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range statements {
		_, err := c.db.Exec(st)
		storeMust(c.t, err)
	}
}

// rqliteOf is the engine of a store on a cluster.
func rqliteOf(s *store) *rqlite { return s.engine.(*rqlite) }

// rqliteOpen opens a store on a cluster, all nodes of which it knows, and returns its log.
func rqliteOpen(t testing.TB, c *rqliteFake, p purpose) (*store, *rqliteLog) {
	t.Helper()
	return rqliteOpenAt(t, c.addresses(), p)
}

func rqliteOpenAt(t testing.TB, addresses string, p purpose) (*store, *rqliteLog) {
	t.Helper()
	log := &rqliteLog{}
	s, err := openStore(context.Background(), addresses, p, newLogger(log, "json", slog.LevelDebug))
	storeMust(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, log
}

// rqliteLog is a log that may be read while it is written.
type rqliteLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *rqliteLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *rqliteLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// rqliteStore opens a store on a cluster without a network, as openRqlite does for a
// service. Call it inside a synctest bubble.
func rqliteStore(t testing.TB, c *rqliteFake) (*store, *rqliteLog) {
	t.Helper()
	nodes, err := parseCluster(c.addresses())
	storeMust(t, err)
	log := &rqliteLog{}
	e := &rqlite{nodes: nodes, log: newLogger(log, "json", slog.LevelDebug), wait: queryWait,
		client:    &http.Client{Transport: c, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		durations: histogram{bounds: durationBounds}}
	storeMust(t, e.connect(t.Context()))
	version, err := schemaVersion(t.Context(), e)
	storeMust(t, err)
	storeMust(t, updateSchema(t.Context(), e, version, true))
	c.arrived()
	return newStore(e), log
}

// rqliteAnswer is a way in which a node may answer in place of doing what it is asked.
type rqliteAnswer = func(n *rqliteNode, w http.ResponseWriter, r *http.Request)

func rqliteSays(status int, text string) rqliteAnswer {
	return func(_ *rqliteNode, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// rqliteGarbage are answers after which nobody knows what was done.
var rqliteGarbage = map[string]rqliteAnswer{
	"a reset":                  func(*rqliteNode, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	"a timeout":                func(_ *rqliteNode, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	"leadership that was lost": rqliteSays(200, `{"results":[],"error":"leadership lost while committing log"}`),
	"forwarding that failed":   rqliteSays(200, `{"results":[],"error":"node failed to process Execute on remote node at raft1:4002: EOF"}`),
	"another 503":              rqliteSays(503, "store is not open\n"),
	"another 500":              rqliteSays(500, "leader address: what?\n"),
	"HTML with 500":            rqliteSays(500, "<html>Internal Server Error</html>"),
	"HTML":                     rqliteSays(200, "<html>Welcome to nginx!</html>"),
	"nothing":                  rqliteSays(200, ""),
	"a redirect": func(_ *rqliteNode, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere:1/", 307)
	},
	"a bad request":                    rqliteSays(400, "invalid JSON body\n"),
	"JSON that was cut off":            rqliteSays(200, `{"results":[{"last_insert_id":1,"rows_aff`),
	"JSON of another kind":             rqliteSays(200, `["results"]`),
	"no results":                       rqliteSays(200, `{}`),
	"fewer results than statements":    rqliteSays(200, `{"results":[]}`),
	"more results than statements":     rqliteSays(200, `{"results":[{},{},{},{},{},{},{},{},{}]}`),
	"numbers that are texts":           rqliteSays(200, `{"results":[{"last_insert_id":"1","rows_affected":"1","values":"none"}]}`),
	"a number that is none of 64 bits": rqliteSays(200, `{"results":[{"last_insert_id":9223372036854775808,"rows_affected":1}]}`),
	"half a response": func(_ *rqliteNode, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"results":[{"last_insert_id":1,"rows_affected":1}]}`)
	},
}

// rqliteOnce gives an answer to the first request for the database, and to no other.
func rqliteOnce(c *rqliteFake, answer rqliteAnswer) {
	var once sync.Once
	c.when(func(n *rqliteNode, w http.ResponseWriter, r *http.Request) (answered bool) {
		if r.URL.Path != "/status" {
			once.Do(func() { answered = true; answer(n, w, r) })
		}
		return answered
	})
}

// TestWhatMayHaveBeenDoneIsNotRepeated: nobody knows what became of such a write, and
// that is all that is said. A read may be repeated.
func TestWhatMayHaveBeenDoneIsNotRepeated(t *testing.T) {
	for what, answer := range rqliteGarbage {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := rqliteWithoutNetwork(t, 3)
				s, _ := rqliteStore(t, c)
				start := time.Now()
				rqliteOnce(c, answer)
				_, err := s.createPet(NewPet{"Rex", 1, Sold})
				if !errors.Is(err, errUnavailable) || !errors.Is(err, errOutcome) || strings.Contains(err.Error(), "\n") {
					t.Errorf("the write says %v", err)
				}
				if sent := c.arrived(); len(sent) != 1 {
					t.Errorf("the write was sent as %q, want once", sent)
				}
				if unknown := rqliteOf(s).unknown.Load(); unknown != 1 {
					t.Errorf("%d outcomes are counted as unknown", unknown)
				}
				if took := time.Since(start); took > leaderWait+statusWait {
					t.Errorf("the write takes %v", took)
				}
				rqliteOnce(c, answer)
				if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 0 {
					t.Errorf("the read gives %v", ids)
				}
				if sent := c.arrived(); len(sent) != 2 {
					t.Errorf("the read was sent as %q, want twice", sent)
				}
				if id := storeCreate(t, s, NewPet{"Max", 1, Sold}); id != 1 {
					t.Errorf("the next pet has the id %d", id)
				}
			})
		})
	}
}

// TestWhatSurelyDidNothingIsRepeatedAtTheNextLeader, and the log says who leads.
func TestWhatSurelyDidNothingIsRepeatedAtTheNextLeader(t *testing.T) {
	for what, answer := range map[string]rqliteAnswer{
		"refused connections":        nil,
		"no leader":                  rqliteSays(503, "leader not found\n"),
		"no leader, the other error": rqliteSays(500, "leader not found\n"),
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := rqliteWithoutNetwork(t, 3)
				s, log := rqliteStore(t, c)
				lose := func(n *rqliteNode) {
					if answer == nil {
						n.setDown(true)
					} else {
						rqliteOnce(c, answer)
					}
				}
				for i, next := range []int{1, 2, 0} {
					time.Sleep(time.Second) // since the last look for a leader
					lost := c.nodes[c.leader]
					lose(lost)
					c.lead(next)
					c.arrived()
					if id := storeCreate(t, s, NewPet{"Rex", 1, Sold}); id != int64(i+1) {
						t.Errorf("pet %d has the id %d", i+1, id)
					}
					want := []string{fmt.Sprint(lost.number, " POST /db/execute?transaction"), fmt.Sprint(next, " POST /db/execute?transaction")}
					if answer == nil {
						want = want[1:]
					}
					if got := c.arrived(); !slices.Equal(got, want) {
						t.Errorf("sent was %q, want %q", got, want)
					}
					said := fmt.Sprintf(`"msg":"another node is in use","node":"http://%s","before":"http://%s"`, c.nodes[next].host, lost.host)
					if _, node := s.engine.describe(); !strings.Contains(log.String(), said) || node != "http://"+c.nodes[next].host {
						t.Errorf("in use is %s, and the log says %s, want %s", node, log, said)
					}
					lost.setDown(false)
				}
				if n := rqliteOf(s).unknown.Load(); n != 0 || rqliteOf(s).retried.Load() != 3 || c.number("SELECT count(*) FROM pets") != 3 {
					t.Errorf("%d unknown outcomes, %d repeats, want 0 and 3", n, rqliteOf(s).retried.Load())
				}
			})
		})
	}
}

// TestARepeatAfterAnUnknownOutcomeGetsTheOnePet: it was stored, and the response was lost.
func TestARepeatAfterAnUnknownOutcomeGetsTheOnePet(t *testing.T) {
	c := rqliteNew(t, 3)
	s, _ := rqliteOpen(t, c, forService)
	rqliteOnce(c, func(n *rqliteNode, _ http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		n.serve(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	})
	c.arrived()
	_, _, _, err := s.createPetOnce(NewPet{"Rex", 1, Available}, 1, "k", []byte("Rex"), storeNow)
	if sent := c.arrived(); !errors.Is(err, errOutcome) || len(sent) != 1 {
		t.Errorf("the first time says %v, after %q", err, sent)
	}
	if id, verdict := storeOnce(t, s, 1, "Rex", storeNow); id != 1 || verdict != "replayed" || storeCount(t, s) != 1 {
		t.Errorf("the repeat is %s %d, and there are %d pets", verdict, id, storeCount(t, s))
	}
}

// TestWithoutALeader what is remembered is served at once, and the rest fails after five
// seconds, whatever the nodes do meanwhile.
func TestWithoutALeader(t *testing.T) {
	slow := func(d time.Duration) rqliteAnswer {
		return func(_ *rqliteNode, w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(d):
				http.Error(w, "leader not found", 503)
			case <-r.Context().Done():
			}
		}
	}
	for what, answer := range map[string]rqliteAnswer{
		"nodes that say so at once":               slow(0),
		"nodes that look for one for a second":    slow(time.Second),
		"nodes that look for one for two seconds": slow(1900 * time.Millisecond),
		"nodes that look for one for three":       slow(3 * time.Second),
		"nodes that look for one for almost five": slow(4900 * time.Millisecond),
		"nodes that are frozen":                   rqliteGarbage["a timeout"],
		"nodes that are down":                     nil,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := rqliteWithoutNetwork(t, 3)
				s, _ := rqliteStore(t, c)
				for range 3 {
					storeCreate(t, s, NewPet{"Rex", 1, Sold})
				}
				storeIDs(t, s, "", 2, 0)
				_, err := s.pet(1)
				storeMust(t, err)
				c.lead(-1)
				for _, n := range c.nodes {
					n.setDown(answer == nil)
				}
				c.when(func(n *rqliteNode, w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path == "/status" {
						return false
					}
					answer(n, w, r)
					return true
				})
				start := time.Now()
				if ids, p := storeIDs(t, s, "", 2, 0); len(ids) != 2 || !p.more {
					t.Errorf("the remembered page is %v", ids)
				}
				if pet, err := s.pet(1); err != nil || pet == nil {
					t.Errorf("the remembered pet is %v, %v", pet, err)
				}
				if took := time.Since(start); took != 0 {
					t.Errorf("what is remembered takes %v", took)
				}
				for what, do := range map[string]func() error{
					"a short page": func() error { _, err := s.page("", 20, 0); return err },
					"a pet":        func() error { _, err := s.pet(2); return err },
					"a create":     func() error { _, err := s.createPet(NewPet{"Rex", 1, Sold}); return err },
				} {
					start := time.Now()
					err, took := do(), time.Duration(0)
					if took = time.Since(start); !errors.Is(err, errUnavailable) || took > leaderWait || took < leaderWait/2 {
						t.Errorf("%s takes %v and says %v", what, took, err)
					}
				}
				// A leader that is found in time is one after all.
				done := make(chan error)
				go func() { _, err := s.page("", 20, 0); done <- err }()
				time.Sleep(time.Second)
				c.when(nil)
				for _, n := range c.nodes {
					n.setDown(false)
				}
				c.lead(2)
				storeMust(t, <-done)
				if n := storeCount(t, s); n != 3 {
					t.Errorf("there are %d pets", n)
				}
			})
		})
	}
}
