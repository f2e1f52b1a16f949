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
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	n.server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: n, ReadHeaderTimeout: time.Minute}}
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
		if c.nodes[c.leader].down {
			rqliteSays(200, `{"results":[],"error":"node failed to process Request on remote node: connection refused"}`)(n, w, r)
			return
		}
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
	if !mayQuery || !regexp.MustCompile(`^\s*(SELECT|WITH)\b`).MatchString(query) {
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
func (c *rqliteFake) number(query string) int64 {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	return storeNumber(c.t, c.db, query)
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
func rqliteOpen(t testing.TB, c *rqliteFake, p purpose) (*store, *logBuffer) {
	t.Helper()
	return rqliteOpenAt(t, c.addresses(), p)
}

func rqliteOpenAt(t testing.TB, addresses string, p purpose) (*store, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	s, err := openStore(context.Background(), addresses, p, newLogger(log, "json", slog.LevelDebug))
	storeMust(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, log
}

// rqliteStore opens a store on a cluster without a network, as openRqlite does for a
// service. Call it inside a synctest bubble.
func rqliteStore(t testing.TB, c *rqliteFake) (*store, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	e := &rqlite{nodes: nodesAt(nodeURLs(c.addresses())), log: newLogger(log, "json", slog.LevelDebug), wait: queryWait,
		client:    &http.Client{Transport: c, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		durations: histogram{bounds: durationBounds}}
	storeMust(t, e.connect(t.Context()))
	storeMust(t, updateSchema(t.Context(), e, true))
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
		http.Redirect(w, r, "http://elsewhere:1/", http.StatusTemporaryRedirect)
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

// TestALeaderThatIsDownAndStillNamed by the others is waited for, or for its successor:
// through them nothing would arrive.
func TestALeaderThatIsDownAndStillNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rqliteWithoutNetwork(t, 3)
		s, log := rqliteStore(t, c)
		time.Sleep(time.Second)
		c.nodes[0].setDown(true)
		time.AfterFunc(2*time.Second, func() { c.lead(2) })
		start := time.Now()
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
		if took := time.Since(start); took < 2*time.Second || took > 2*time.Second+2*leaderPoll || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("the write takes %v, and the log says %s", took, log)
		}
		if sent := c.arrived(); !slices.Equal(sent, []string{"2 POST /db/execute?transaction"}) {
			t.Errorf("sent was %q", sent)
		}
	})
}

// rqliteFreeze lets nodes take requests and never respond.
func rqliteFreeze(c *rqliteFake, numbers ...int) {
	c.when(func(n *rqliteNode, _ http.ResponseWriter, r *http.Request) bool {
		frozen := slices.Contains(numbers, n.number)
		if frozen {
			<-r.Context().Done()
		}
		return frozen
	})
}

// TestAWriteAfterATimeoutGoesToTheNewLeaderAtOnce: the one that timed out on the frozen leader has
// found it.
func TestAWriteAfterATimeoutGoesToTheNewLeaderAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rqliteWithoutNetwork(t, 3)
		s, _ := rqliteStore(t, c)
		rqliteFreeze(c, 0)
		c.lead(1)
		_, err := s.createPet(NewPet{"Rex", 1, Sold})
		if !errors.Is(err, errOutcome) {
			t.Errorf("the write to the frozen leader says %v", err)
		}
		c.arrived()
		start := time.Now()
		storeCreate(t, s, NewPet{"Max", 1, Sold})
		took, sent := time.Since(start), c.arrived()
		if took != 0 || !slices.Equal(sent, []string{"1 POST /db/execute?transaction"}) {
			t.Errorf("the next write takes %v and is sent as %q", took, sent)
		}
	})
}

// TestAFailoverWaitsForNoFrozenThirdNode, be the next leader elected a moment later or none of the
// nodes that were named.
func TestAFailoverWaitsForNoFrozenThirdNode(t *testing.T) {
	for what, c := range map[string]struct{ leader, through int }{
		"a leader that is named": {1, 1}, "a leader that is not named": {3, 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := rqliteWithoutNetwork(t, 4)
				s, _ := rqliteStore(t, fake)
				rqliteOf(s).nodes = rqliteOf(s).nodes[:3]
				time.Sleep(time.Second) // since the last look for a leader
				rqliteFreeze(fake, 2)
				fake.nodes[0].setDown(true)
				fake.lead(-1)
				const election = 50 * time.Millisecond
				time.AfterFunc(election, func() { fake.lead(c.leader) })
				start := time.Now()
				storeCreate(t, s, NewPet{"Rex", 1, Sold})
				took, sent := time.Since(start), fake.arrived()
				want := fmt.Sprint(c.through, " POST /db/execute?transaction")
				if took > election+3*leaderPoll || !slices.Equal(sent, []string{want}) {
					t.Errorf("the write takes %v and is sent as %q, want %q", took, sent, want)
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
				http.Error(w, "leader not found", http.StatusServiceUnavailable)
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

// rqliteMarks are what a refusal must not change.
func (c *rqliteFake) marks() [4]int64 {
	return [4]int64{c.number("SELECT application_id FROM pragma_application_id"), c.number("SELECT user_version FROM pragma_user_version"),
		c.number("SELECT count(*) FROM sqlite_schema"), c.number("SELECT count(*) FROM pragma_table_list WHERE name LIKE '%pets%'")}
}

// TestAClusterThatCannotBeUsedIsRefused in one line that says why, and is left as it was.
func TestAClusterThatCannotBeUsedIsRefused(t *testing.T) {
	everywhere := func(c *rqliteFake, path string, answer rqliteAnswer) {
		c.when(func(n *rqliteNode, w http.ResponseWriter, r *http.Request) bool {
			if strings.HasPrefix(r.URL.Path, path) {
				answer(n, w, r)
			}
			return strings.HasPrefix(r.URL.Path, path)
		})
	}
	version := func(version string) func(c *rqliteFake) {
		return func(c *rqliteFake) {
			for _, n := range c.nodes {
				n.version = version
			}
		}
	}
	for what, c := range map[string]struct {
		prepare func(c *rqliteFake)
		want    string
	}{
		"nodes of a version that knows no linearizable reads": {version("v8.26.8"), "is rqlite v8.26.8, and v8.32.4 or newer is needed"},
		"nodes of the last such version":                      {version("v8.32.3"), "v8.32.4 or newer"},
		"nodes of an older major version":                     {version("v7.99.99"), "v8.32.4 or newer"},
		"nodes of a version without its v":                    {version("8.43.4"), "v8.32.4 or newer"},
		"nodes of half a version":                             {version("v8.43"), "v8.32.4 or newer"},
		"nodes of a version that is a word":                   {version("unknown"), "v8.32.4 or newer"},
		"nodes of no version":                                 {version(""), "is no rqlite"},
		"another program, which knows no /status":             {func(c *rqliteFake) { everywhere(c, "/status", rqliteSays(404, "not found")) }, "404"},
		"another program, which shows a page":                 {func(c *rqliteFake) { everywhere(c, "/status", rqliteSays(200, "<html>\n</html>")) }, "is no rqlite"},
		"another program, which speaks JSON":                  {func(c *rqliteFake) { everywhere(c, "/status", rqliteSays(200, `{"status":"up"}`)) }, "is no rqlite"},
		"another program, which sends elsewhere":              {func(c *rqliteFake) { everywhere(c, "/status", rqliteGarbage["a redirect"]) }, "307"},
		"another password":                                    {func(c *rqliteFake) { c.password = "other" }, "wants another user or password"},
		"another user":                                        {func(c *rqliteFake) { c.user = "other" }, "wants another user or password"},
		"tables of another program":                           {func(c *rqliteFake) { c.exec("CREATE TABLE pets (name)") }, "it belongs to another program"},
		"the mark of another program":                         {func(c *rqliteFake) { c.exec("PRAGMA application_id = 7") }, "it belongs to another program"},
		"the schema of a newer petstore": {func(c *rqliteFake) {
			c.exec(fmt.Sprintf("PRAGMA application_id = %d", applicationID), "PRAGMA user_version = 99")
		}, "its schema is version 99"},
		"a database that cannot be read": {func(c *rqliteFake) {
			everywhere(c, "/db/query", rqliteSays(200, `{"results":[{"error":"disk I/O error"}]}`))
		},
			"disk I/O error"},
	} {
		t.Run(what, func(t *testing.T) {
			fake := rqliteNew(t, 3)
			fake.user, fake.password = "anna", "s3cret"
			c.prepare(fake)
			before := fake.marks()
			addresses := strings.ReplaceAll(fake.addresses(), "//", "//anna:s3cret@")
			for _, p := range []purpose{forService, forCommand} {
				s, err := openStore(t.Context(), addresses, p, testLog)
				if err == nil {
					t.Fatal("it is opened", s.Close())
				}
				mainOneLine(t, err, false, "cannot open the database on "+fake.addresses()+": ", c.want)
				if strings.Contains(err.Error(), "s3cret") {
					t.Errorf("the error says the password: %v", err)
				}
			}
			if sent := fake.arrived(); slices.ContainsFunc(sent, func(r string) bool { return !strings.HasSuffix(r, "level=linearizable") }) {
				t.Errorf("more than queries was sent: %q", sent)
			}
			if after := fake.marks(); after != before {
				t.Errorf("the marks were %v and are %v", before, after)
			}
		})
	}
}

// TestACommandMakesNoDatabaseOnACluster that has none: the first service does.
func TestACommandMakesNoDatabaseOnACluster(t *testing.T) {
	c := rqliteNew(t, 1)
	_, _, err := mainRun(t, nil, "key", "list", "-db", c.addresses())
	mainOneLine(t, err, false, "petstore makes it at its first start")
	if c.marks()[2] != 0 {
		t.Error("there are tables")
	}
	if _, _, err := mainRun(t, nil, "key", "create", "-db", c.addresses()); err != nil || c.marks()[1] != int64(len(migrations)) {
		t.Errorf("a first key makes the schema %d, %v", c.marks()[1], err)
	}
}

// TestAnUnreachableClusterIsWaitedFor for ten seconds, in which it may come up.
func TestAnUnreachableClusterIsWaitedFor(t *testing.T) {
	for what, prepare := range map[string]func(c *rqliteFake){
		"nodes that are down":    func(c *rqliteFake) { c.nodes[0].setDown(true); c.nodes[1].setDown(true) },
		"nodes without a leader": func(c *rqliteFake) { c.lead(-1) },
		"nodes that do not respond": func(c *rqliteFake) {
			c.when(func(_ *rqliteNode, _ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := rqliteWithoutNetwork(t, 2)
				e := &rqlite{nodes: nodesAt(nodeURLs(c.addresses())), log: testLog, client: &http.Client{Transport: c}}
				prepare(c)
				start := time.Now()
				err := e.connect(t.Context())
				if took := time.Since(start); err == nil || took < commandWait || took > commandWait+2*statusWait {
					t.Errorf("after %v: %v", took, err)
				}
				time.AfterFunc(5*time.Second, func() {
					c.when(nil)
					c.nodes[0].setDown(false)
					c.lead(0)
				})
				storeMust(t, e.connect(t.Context()))
			})
		})
	}
}

// TestTheLeaderIsUsedThoughItIsNotNamed, through a follower, until a leader is.
func TestTheLeaderIsUsedThoughItIsNotNamed(t *testing.T) {
	c := rqliteNew(t, 3)
	c.lead(2)
	s, _ := rqliteOpenAt(t, c.addresses(0, 1), forService)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	if ids, _ := storeIDs(t, s, "", 20, 0); len(ids) != 1 {
		t.Errorf("through a follower the list is %v", ids)
	}
	_, node := s.engine.describe()
	if !strings.Contains(c.addresses(0, 1), node) {
		t.Errorf("in use is %s", node)
	}
	rqliteOf(s).located = time.Time{} // a moment has passed
	c.lead(1)
	storeMust(t, s.refresh(t.Context()))
	storeMust(t, s.refresh(t.Context()))
	if _, node := s.engine.describe(); node != "http://"+c.nodes[1].host {
		t.Errorf("in use is %s, and the leader is named", node)
	}
}

// TestANodeThatPassesRequestsOnStaysInUse: a change would give up requests that run, and fill the log.
func TestANodeThatPassesRequestsOnStaysInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rqliteWithoutNetwork(t, 3)
		s, log := rqliteStore(t, c)
		rqliteOf(s).nodes = rqliteOf(s).nodes[:2]
		c.lead(2)
		c.when(func(_ *rqliteNode, _ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/db/execute" {
				time.Sleep(2 * time.Second)
			}
			return false
		})
		created := make(chan error, 1)
		for range 5 {
			go func() {
				_, err := s.createPet(NewPet{"Rex", 1, Sold})
				created <- err
			}()
			for range 8 { // as often as a service looks for changes
				time.Sleep(250 * time.Millisecond)
				storeMust(t, s.refresh(t.Context()))
			}
			storeMust(t, <-created)
		}
		if n := strings.Count(log.String(), "another node is in use"); n > 1 {
			t.Errorf("another node is used %d times", n)
		}
	})
}

// TestAnOldNodeThatLeadsLaterIsNotReadThrough the others: it would answer with what is out of date.
func TestAnOldNodeThatLeadsLaterIsNotReadThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rqliteWithoutNetwork(t, 3)
		c.nodes[2].version = "v8.26.8"
		c.nodes[2].setDown(true)
		s, _ := rqliteStore(t, c)
		time.Sleep(time.Second) // since the last look for a leader
		c.nodes[2].setDown(false)
		c.nodes[0].setDown(true)
		c.lead(2)
		if _, err := s.page("", 20, 0); !errors.Is(err, errUnavailable) {
			t.Errorf("a read says %v", err)
		}
		if sent := c.arrived(); len(sent) != 0 {
			t.Errorf("sent was %q", sent)
		}
	})
}

// TestASecretIsShownNowhere: not in errors, logs, /metrics or the name of the engine.
func TestASecretIsShownNowhere(t *testing.T) {
	c := rqliteNew(t, 2)
	c.user, c.password = "anna", "s3cret"
	addresses := strings.ReplaceAll(c.addresses(), "//", "//anna:s3cret@")
	s, log := rqliteOpenAt(t, addresses, forService)
	var said strings.Builder
	note := func(err error) { fmt.Fprintln(&said, err) }
	for _, trouble := range []func(){
		func() {},
		func() { c.lead(1) },
		func() { rqliteOnce(c, rqliteGarbage["a redirect"]) },
		func() { rqliteOnce(c, rqliteGarbage["a reset"]) },
		func() { c.password = "changed" },
		func() { c.nodes[0].stop(); c.nodes[1].stop() },
	} {
		trouble()
		note(storeErr(s.write(t.Context(), sqlOf("DELETE FROM usage"))))
	}
	_, _, err := mainRun(t, nil, "key", "list", "-db", addresses+"/path")
	note(errors.New(redact(fmt.Sprint(err)))) // as main shows it
	engine, node := s.engine.describe()
	metrics := newService(s, settings{}, newLogger(log, "json", slog.LevelDebug)).metrics().String()
	said.WriteString(engine + node + databaseName(addresses) + metrics + log.String())
	for _, secret := range []string{"anna", "s3cret"} {
		if i := strings.Index(said.String(), secret); i >= 0 {
			t.Errorf("%q is shown: …%s", secret, said.String()[max(0, i-100):i+10])
		}
	}
	for _, want := range []string{
		fmt.Sprintf(`petstore_engine_info{engine="rqlite",node=%q} 1`, node), "petstore_node_retries_total ",
		`petstore_node_requests_total{outcome="failure"} `, "petstore_unknown_outcomes_total ", "petstore_node_request_duration_seconds_count ",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
}

// TestAPasswordIsTakenOutOfErrors, as main shows them, also if it has to be quoted there.
func TestAPasswordIsTakenOutOfErrors(t *testing.T) {
	for _, password := range []string{`s3cret`, `s3 cret`, `s3"cret`, `s3\cret`, `s3/cret`, `s3#cret`, `s3?cret`,
		`s3%cret`, `s3@cret`, "s3\tcret", "s3\ncret", "s3'cret", `s3" "cret`} {
		secret := "anna:" + password + "@10.0.0.1:4001"
		for _, address := range []string{"https://" + secret + "/path", "http://10.0.0.2:4001/path,http://" + secret} {
			for what, c := range map[string]struct {
				args []string
				env  map[string]string
			}{
				"-db of the server":  {args: []string{"-db", address}},
				"-db of a command":   {args: []string{"key", "list", "-db", address}},
				"PETSTORE_DB":        {env: map[string]string{"PETSTORE_DB": address}},
				"the same, with key": {args: []string{"key", "list"}, env: map[string]string{"PETSTORE_DB": address}},
			} {
				_, log, err := mainRun(t, c.env, c.args...)
				mainOneLine(t, err, true, "10.0.0.1:4001")
				said := log + redact(fmt.Sprint(err))
				if strings.Contains(said, "cret") || strings.Contains(said, "anna") {
					t.Errorf("%s shows of %q: %s", what, password, said)
				}
			}
		}
	}
}

// TestNothingGoesToAnotherHost by a redirect or by a proxy of the environment.
func TestNothingGoesToAnotherHost(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request went elsewhere") }))
	defer elsewhere.Close()
	c := rqliteNew(t, 1)
	s, _ := rqliteOpen(t, c, forService)
	if rqliteOf(s).client.Transport.(*http.Transport).Proxy != nil {
		t.Error("there may be a proxy")
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		rqliteOnce(c, func(_ *rqliteNode, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.RequestURI(), status) //nolint:gosec // which is not followed
		})
		if _, err := s.createPet(NewPet{"Rex", 1, Sold}); !errors.Is(err, errOutcome) || !strings.Contains(err.Error(), fmt.Sprint(status)) {
			t.Errorf("a write that is sent elsewhere with %d says %v", status, err)
		}
	}
}

// TestAConnectionThatBreaksIsNotUsedForARepeat, over a real network: net/http repeats
// some requests by itself.
func TestAConnectionThatBreaksIsNotUsedForARepeat(t *testing.T) {
	c := rqliteNew(t, 1)
	s, _ := rqliteOpen(t, c, forService)
	for range 3 { // on connections that were used before, and on a new one
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
		c.arrived()
		rqliteOnce(c, rqliteGarbage["a reset"])
		_, err := s.createPet(NewPet{"Max", 1, Sold})
		if sent := c.arrived(); !errors.Is(err, errOutcome) || len(sent) != 1 {
			t.Errorf("the write says %v, and was sent as %q", err, sent)
		}
	}
}

// TestWhatIsReadIsBounded: a node that sends without an end fills no memory.
func TestWhatIsReadIsBounded(t *testing.T) {
	c := rqliteNew(t, 1)
	s, _ := rqliteOpen(t, c, forService)
	megabyte := bytes.Repeat([]byte("x"), 1<<20)
	endless := func(status, most int) func() int64 {
		var sent atomic.Int64
		rqliteOnce(c, func(_ *rqliteNode, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"results":[{"error":"`)
			for range most {
				n, err := w.Write(megabyte)
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		})
		return sent.Load
	}
	for status, most := range map[int]int64{200: maxAnswer, 500: 0} {
		sent := endless(status, 300)
		if _, err := s.createPet(NewPet{"Rex", 1, Sold}); !errors.Is(err, errOutcome) || len(err.Error()) > 2000 {
			t.Errorf("a write with an endless %d says %.200v", status, err)
		}
		if n := sent(); n > most+64<<20 { // and what the buffers of the system hold
			t.Errorf("%d bytes of a %d were read", n, status)
		}
	}
}

// TestWhatCannotBeReadIs503, as it is described.
func TestWhatCannotBeReadIs503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rqliteWithoutNetwork(t, 3)
		s, log := rqliteStore(t, c)
		k := newSecret(false)
		_, err := insertKey(t.Context(), s, &apiKey{Plan: "pro", CreatedAt: instantOf(time.Now())}, k, false)
		storeMust(t, err)
		shop := &shop{t: t, service: newService(s, settings{}, newLogger(log, "json", slog.LevelInfo)), key: string(k)}
		shop.call("GET", "/v1/pets")
		c.when(func(n *rqliteNode, w http.ResponseWriter, r *http.Request) bool {
			http.Error(w, "leader not found", http.StatusServiceUnavailable)
			return true
		})
		for _, path := range []string{"/v1/pets", "/v1/pets/1"} {
			if a := shop.call("GET", path); a.status != 503 {
				t.Errorf("%s is %d %s", path, a.status, a.body)
			}
		}
	})
}

// TestTheServiceOnAGarbledEngine is 503 or 500, and never a success: what is listed in
// the end is what was acknowledged.
func TestTheServiceOnAGarbledEngine(t *testing.T) {
	garbage := maps.Clone(rqliteGarbage)
	garbage["results with nothing in them"] = rqliteSays(200, `{"results":[{}]}`)
	garbage["the same for more statements"] = rqliteSays(200, `{"results":[{},{},{}]}`)
	garbage["values that are null"] = rqliteSays(200, `{"results":[{"values":[[null,null,null]]}]}`)
	garbage["values of the wrong types"] = rqliteSays(200, `{"results":[{"values":[[1,"2",[]]]}]}`)
	garbage["a flag that is a text"] = rqliteSays(200, `{"results":[{"values":[["[]",0,"maybe"]]}]}`)
	garbage["too few values"] = rqliteSays(200, `{"results":[{"values":[["[]"]]}]}`)
	for what, answer := range garbage {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := rqliteWithoutNetwork(t, 3)
				s, log := rqliteStore(t, c)
				k := newSecret(false)
				_, err := insertKey(t.Context(), s, &apiKey{Plan: "pro", CreatedAt: instantOf(time.Now())}, k, false)
				storeMust(t, err)
				srv := newService(s, settings{}, newLogger(log, "json", slog.LevelInfo))
				call := func(method, path, once string) *httptest.ResponseRecorder {
					r := httptest.NewRequest(method, "/v1"+path, strings.NewReader(`{"name":"Rex","categoryId":1}`))
					r.Header.Set("Authorization", "Bearer "+string(k))
					r.Header.Set("Content-Type", "application/json")
					if once != "" {
						r.Header.Set("Idempotency-Key", once)
					}
					w := httptest.NewRecorder()
					srv.ServeHTTP(w, r)
					return w
				}
				if w := call("GET", "/pets", ""); w.Code != 200 || w.Body.String() != "[]" {
					t.Fatalf("at first the list is %d %s", w.Code, w.Body)
				}
				c.when(func(n *rqliteNode, w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != "/status" {
						answer(n, w, r)
					}
					return r.URL.Path != "/status"
				})
				for _, request := range [][3]string{{"GET", "/pets", ""}, {"POST", "/pets", ""}, {"POST", "/pets", "once"}, {"GET", "/pets?status=sold", ""}} {
					if w := call(request[0], request[1], request[2]); w.Code != 503 && w.Code != 500 {
						t.Errorf("%v is %d %s", request, w.Code, w.Body)
					}
				}
				if err := srv.limits.flush(t.Context(), time.Now()); err == nil {
					t.Error("the usage is said to be written")
				}
				if strings.Contains(log.String(), "panic") {
					t.Errorf("the log says %s", log)
				}
				c.when(nil)
				if w := call("GET", "/pets", ""); w.Code != 200 || w.Body.String() != "[]" {
					t.Errorf("in the end the list is %d %s", w.Code, w.Body)
				}
				storeMust(t, srv.limits.flush(t.Context(), time.Now()))
				if n := c.number("SELECT day_used FROM usage"); n != 6 {
					t.Errorf("of 6 requests %d are counted", n)
				}
			})
		})
	}
}

// TestTextsThatLookLikeSomethingElseArriveAsTheyAre: names, Idempotency-Keys and names of keys.
func TestTextsThatLookLikeSomethingElseArriveAsTheyAre(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := storeOpen(t, db)
		for i, text := range []string{
			`x'41'`, `X'41'`, `x''`, ` x'41' `, `x'4'`, `'); DROP TABLE pets; --`, `" OR 1 = 1; --`, `?1`, `:name`, `$.name`, `'$'`,
			`{"name":"Rex"}`, `["Rex"]`, `[]`, `"Rex"`, `"`, `\`, `\u0041`, `\"`, `null`, `true`, `0`, `-1`, `1e3`, `9007199254740993`,
			`<b>&amp;</b>`, "\u2028", "Zoë 🐶", "%", "_", "NULL", "json('1')",
		} {
			id := storeCreate(t, s, NewPet{text, 1, Sold})
			pet, err := s.pet(id)
			storeMust(t, err)
			var got Pet
			if err := json.Unmarshal(pet.body, &got); err != nil || got.Name != text || got.ID != id {
				t.Errorf("%q is %+v, %v", text, got, err)
			}
			for _, want := range []bool{false, true} {
				again, replayed, reused, err := s.createPetOnce(NewPet{text, 1, Sold}, 1, text, []byte(text), storeNow)
				if err != nil || replayed != want || reused || again != id+1 {
					t.Errorf("under the key %q: %d, replayed %v, reused %v, %v", text, again, replayed, reused, err)
				}
			}
			keyID, err := insertKey(t.Context(), s, &apiKey{Name: text, Plan: "free"}, newSecret(false), false)
			storeMust(t, err)
			storeMust(t, storeErr(s.edit(t.Context(), setName(1, text))))
			keys, err := readKeys(t.Context(), s, 0, "WHERE k.id IN (1, ?)", keyID)
			if err != nil || keys[0].Name != text || keys[len(keys)-1].Name != text || len(keys) != 1+min(i, 1) {
				t.Errorf("of a key %q: %v", text, err)
			}
		}
		if n := storeRead(t, s, "SELECT count(*) FROM pets WHERE typeof(name) <> 'text'"); n != 0 {
			t.Errorf("%d names are no texts", n)
		}
	})
}

// TestIntegersOf64BitsArriveExactly on their way in and out.
func TestIntegersOf64BitsArriveExactly(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := storeOpen(t, db)
		const first = 1<<62 + 1
		storeMust(t, storeErr(s.write(t.Context(), sqlOf("INSERT INTO sqlite_sequence (name, seq) VALUES ('pets', ?)", int64(first-1)))))
		for i, category := range []int64{0, 1<<53 + 1, math.MaxInt64, math.MinInt64} {
			id := storeCreate(t, s, NewPet{"Rex", category, Sold})
			pet, err := s.pet(id)
			storeMust(t, err)
			var got Pet
			if err := json.Unmarshal(pet.body, &got); err != nil || id != first+int64(i) || got.ID != id || got.CategoryID != category {
				t.Errorf("pet %d of the category %d is %+v, %v", id, category, got, err)
			}
		}
		if ids, p := storeIDs(t, s, "", 2, first); !slices.Equal(ids, []int64{first + 1, first + 2}) || p.last != first+2 || !p.more {
			t.Errorf("the page is %v, its last %d", ids, p.last)
		}
		u := &usage{day: bucket{used: 1<<60 + 1, fresh: 1<<60 + 1, ends: limitsAt("1h")}, minute: bucket{used: 1, fresh: 1, ends: limitsAt("1s")}}
		l := limitsOf(s, limitsBan, u)
		l.tally(1, limitsStart).Admitted++
		limitsFlush(t, l)
		if stored, err := readUsage(t.Context(), s, 1); err != nil || stored.day.used != 1<<60+1 || u.day.used != 1<<60+1 {
			t.Errorf("the usage is %+v, %v", stored, err)
		}
	})
}

// TestThreeServicesMigrateAtTheSameMoment: the first does it, and all of them run.
func TestThreeServicesMigrateAtTheSameMoment(t *testing.T) {
	for version := range migrations {
		t.Run(fmt.Sprint("from version ", version), func(t *testing.T) {
			c := rqliteNew(t, 3)
			c.exec(migrations[:version]...)
			if version > 0 {
				c.exec(fmt.Sprintf("PRAGMA application_id = %d", applicationID), fmt.Sprintf("PRAGMA user_version = %d", version),
					"INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'Rex')")
			}
			var arrived sync.WaitGroup
			arrived.Add(3)
			c.when(func(_ *rqliteNode, _ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/db/execute" { // three have found the old version
					arrived.Done()
					arrived.Wait()
				}
				return false
			})
			var wg sync.WaitGroup
			stores := make([]*store, 3)
			for i := range stores {
				wg.Go(func() {
					var err error
					if stores[i], err = openStore(t.Context(), c.addresses(), forService, testLog); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			c.when(nil)
			if t.Failed() {
				return
			}
			for _, s := range stores {
				storeCreate(t, s, NewPet{"Max", 1, Sold})
				storeMust(t, s.Close())
			}
			if n := c.number("SELECT count(*) FROM pets"); n != int64(3+min(version, 1)) || c.marks()[1] != int64(len(migrations)) {
				t.Errorf("there are %d pets, and the schema is version %d", n, c.marks()[1])
			}
		})
	}
}

// TestAnotherServicesPetsAreListedAtOnce: only what has more behind it is remembered.
func TestAnotherServicesPetsAreListedAtOnce(t *testing.T) {
	c := rqliteNew(t, 3)
	s, _ := rqliteOpen(t, c, forService)
	other, _ := rqliteOpen(t, c, forService)
	for n := range int64(4) {
		if ids, p := storeIDs(t, s, "", 3, 0); int64(len(ids)) != min(n, 3) || p.more {
			t.Errorf("of %d pets %v are listed, more: %v", n, ids, p.more)
		}
		storeCreate(t, other, NewPet{"Rex", 1, Sold})
	}
	_, first := storeIDs(t, s, "", 3, 0)
	storeCreate(t, other, NewPet{"Rex", 1, Sold})
	if _, again := storeIDs(t, s, "", 3, 0); again != first || !first.more {
		t.Errorf("a page with more behind it is read again")
	}
}

// rqliteCopy is a file with three pets, a key, a usage and an Idempotency-Key.
func rqliteCopy(t testing.TB) (file string, token secret) {
	t.Helper()
	file, token = storePath(t), newSecret(false)
	s := storeOpen(t, file)
	_, err := insertKey(t.Context(), s, &apiKey{Name: "shop", Plan: "pro", CreatedAt: instantOf(storeNow)}, token, false)
	storeMust(t, err)
	storeMust(t, storeErr(s.write(t.Context(), limitsSave(1, &usage{day: bucket{used: 7, ends: instantOf(storeNow) + dayMillis}}))))
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	storeCreate(t, s, NewPet{"Max", 1, Sold})
	storeOnce(t, s, 1, "Tom", storeNow)
	storeMust(t, s.Close())
	return file, token
}

// rqliteHolds checks that a store has what rqliteCopy has made, and where its ids go on.
func rqliteHolds(t testing.TB, s *store, token secret, next int64) {
	t.Helper()
	if ids, _ := storeIDs(t, s, "", 20, 0); !slices.Equal(ids, []int64{1, 2, 3}) {
		t.Errorf("the pets are %v", ids)
	}
	if key, err := newKeyring(s, false).lookup(token, authUnspent); err != nil || key == nil || key.Name != "shop" {
		t.Errorf("the key is %v, %v", key, err)
	}
	if u, err := readUsage(t.Context(), s, 1); err != nil || u.day.used != 7 {
		t.Errorf("the usage is %+v, %v", u, err)
	}
	if id, verdict := storeOnce(t, s, 1, "Tom", storeNow); id != 3 || verdict != "replayed" {
		t.Errorf("a repeat is %s %d", verdict, id)
	}
	if id := storeCreate(t, s, NewPet{"Kim", 1, Sold}); id != next {
		t.Errorf("the next pet has the id %d, want %d", id, next)
	}
}

// TestAFileGrowsIntoAClusterAndBack with all that it holds.
func TestAFileGrowsIntoAClusterAndBack(t *testing.T) {
	c := rqliteNew(t, 3)
	c.lead(1)
	file, token := rqliteCopy(t)
	_, log, err := mainRun(t, nil, "restore", "-db", c.addresses(), "-skip-ids", "1000", file)
	if mainMust(t, err); !strings.Contains(log, `"msg":"database restored"`) || !strings.Contains(log, `"old":""`) {
		t.Errorf("the log says %s", log)
	}
	s, _ := rqliteOpen(t, c, forService)
	rqliteHolds(t, s, token, 1004)
	storeMust(t, storeErr(s.write(t.Context(), sqlOf("DELETE FROM pets WHERE id > 3"))))
	back := filepath.Join(t.TempDir(), "back.db")
	_, _, err = mainRun(t, nil, "backup", "-db", c.addresses(), "-skip-ids", "10", back)
	mainMust(t, err)
	rqliteHolds(t, storeOpenFor(t, back, forService), token, 1015)
	storeCreate(t, s, NewPet{"Kim", 1, Sold}) // where the source lives on
}

// TestTheCopyOfAClusterMovesItsIDsOn, since the cluster goes on giving out its own; that of a file does not.
func TestTheCopyOfAClusterMovesItsIDsOn(t *testing.T) {
	c := rqliteNew(t, 1)
	s, _ := rqliteOpen(t, c, forNewKey)
	storeCreate(t, s, NewPet{"Rex", 1, Sold})
	for what, b := range map[string]struct {
		db    string
		flags []string
		pet   int64
		key   int64
	}{
		"of a cluster":                  {c.addresses(), nil, 1_000_002, 1_000_001},
		"of a cluster that is given up": {c.addresses(), []string{"-skip-ids", "0"}, 2, 1},
		"of a file":                     {mainMade(t), nil, 1, 2},
		"of a file that lives on":       {mainMade(t), []string{"-skip-ids", "7"}, 8, 9},
	} {
		t.Run(what, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "copy.db")
			_, _, err := mainRun(t, nil, slices.Concat([]string{"backup", "-db", b.db}, b.flags, []string{file})...)
			mainMust(t, err)
			if pet, key := sqliteNextIDs(t, file); pet != b.pet || key != b.key {
				t.Errorf("the next ids are %d and %d, want %d and %d", pet, key, b.pet, b.key)
			}
		})
	}
}

// TestRestoreToAClusterIsRefused where it would take something away.
func TestRestoreToAClusterIsRefused(t *testing.T) {
	const goOn = "nothing is overwritten; start nodes with empty folders, and restore before a service starts on them"
	for what, r := range map[string]struct {
		prepare func(c *rqliteFake)
		want    string // "": it is restored
	}{
		"a pet": {func(c *rqliteFake) {
			c.exec("INSERT INTO pets (category_id, status, name) VALUES (1, 2, 'old')")
		}, "it holds 1 pet and 0 keys, and " + goOn},
		"a key, as a service makes it at its first start": {func(c *rqliteFake) {
			s, err := openStore(context.Background(), c.addresses(), forService, testLog)
			storeMust(t, err)
			defer s.Close()
			_, err = insertKey(context.Background(), s, &apiKey{Plan: "free"}, newSecret(false), true)
			storeMust(t, err)
		}, "it holds 0 pets and 1 key, and " + goOn},
		"a pet that comes while the copy is checked": {func(c *rqliteFake) {
			c.when(func(_ *rqliteNode, _ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/db/query" {
					c.exec("INSERT OR REPLACE INTO pets (id, category_id, status, name) VALUES (1, 1, 2, 'old')")
				}
				return false
			})
		}, "it holds 1 pet and 0 keys, and " + goOn},
		"the data of another program":   {func(c *rqliteFake) { c.exec("PRAGMA application_id = 7") }, "another program"},
		"the data of a newer petstore":  {func(c *rqliteFake) { c.exec("PRAGMA user_version = 99") }, "version 99"},
		"a cluster that cannot be read": {func(c *rqliteFake) { c.when(rqliteAt("/db/query", rqliteSays(500, "no"))) }, "500"},
		"tables, and nothing in them":   {func(c *rqliteFake) {}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			c := rqliteNew(t, 3)
			rqliteOpen(t, c, forNewKey)
			r.prepare(c)
			file, _ := rqliteCopy(t)
			tables := "SELECT (SELECT count(*) FROM pets) * 1000 + (SELECT count(*) FROM api_keys)"
			before := c.number(tables)
			_, log, err := mainRun(t, nil, "restore", "-db", c.addresses(), file)
			c.when(nil)
			if r.want == "" {
				mainMust(t, err)
				if n := c.number("SELECT count(*) FROM pets"); n != 3 || !strings.Contains(log, `"msg":"database restored"`) {
					t.Errorf("there are %d pets; the log says %s", n, log)
				}
				return
			}
			mainOneLine(t, err, false, "cannot restore "+c.addresses()+" from "+file, r.want)
			if after := c.number(tables); after != before && !strings.Contains(what, "while") {
				t.Errorf("what it holds has changed from %d to %d", before, after)
			}
			if kept, _ := filepath.Glob(filepath.Dir(file) + "/*"); len(kept) != 1 {
				t.Errorf("beside the copy there are %q", kept)
			}
		})
	}
}

// rqliteAt is a rule for one path.
func rqliteAt(path string, answer rqliteAnswer) func(*rqliteNode, http.ResponseWriter, *http.Request) bool {
	return func(n *rqliteNode, w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == path {
			answer(n, w, r)
		}
		return r.URL.Path == path
	}
}

// TestALoadThatFailsIsNoSuccess, however the node puts it, and can be run again.
func TestALoadThatFailsIsNoSuccess(t *testing.T) {
	for what, answer := range map[string]rqliteAnswer{
		"an error":            rqliteSays(200, `{"error":"leadership lost while committing log"}`),
		"an error of SQL":     rqliteSays(200, `{"results":[{"error":"near \"SQLite\": syntax error"}]}`),
		"a forwarding error":  rqliteSays(500, "node failed to process Load"),
		"HTML":                rqliteSays(200, "<html>"),
		"no leader":           rqliteSays(503, "leader not found\n"),
		"a reset":             rqliteGarbage["a reset"],
		"a cut off response":  rqliteGarbage["JSON that was cut off"],
		"one that is too big": rqliteSays(413, "request too large"),
	} {
		t.Run(what, func(t *testing.T) {
			c := rqliteNew(t, 3)
			file, _ := rqliteCopy(t)
			c.when(rqliteAt("/db/load", answer))
			_, log, err := mainRun(t, nil, "restore", "-db", c.addresses(), file)
			mainOneLine(t, err, false, "cannot restore "+c.addresses()+" from "+file)
			if strings.Contains(log, "restored") {
				t.Errorf("the log says %s", log)
			}
			c.when(nil)
			_, _, err = mainRun(t, nil, "restore", "-db", c.addresses(), file)
			mainMust(t, err)
			rqliteOpen(t, c, forService)
		})
	}
}

// TestALoadShowsHowLongItTakes, since nobody knows how much of it is done.
func TestALoadShowsHowLongItTakes(t *testing.T) {
	file, _ := rqliteCopy(t)
	synctest.Test(t, func(t *testing.T) {
		c := rqliteWithoutNetwork(t, 3)
		s, _ := rqliteStore(t, c)
		c.when(func(_ *rqliteNode, _ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/db/load" {
				time.Sleep(11*time.Second - time.Millisecond)
			}
			return false
		})
		var out logBuffer
		command := &invocation{process: &process{stderr: &out}, store: s, now: instantOf(time.Now())}
		_, err := command.restoreCluster(t.Context(), file)
		storeMust(t, err)
		want := "loading 1 MB  5s\nloading 1 MB  10s\n"
		if got := out.String(); got != want {
			t.Errorf("the progress is\n%s, want\n%s", got, want)
		}
	})
}

// TestRestoreToAClusterMayBeStoppedAtAnyTime: then nothing is loaded, or all of it.
func TestRestoreToAClusterMayBeStoppedAtAnyTime(t *testing.T) {
	for _, done := range []bool{false, true} { // what was under way, all the same
		t.Run(fmt.Sprint("which does what was under way: ", done), func(t *testing.T) {
			for n, stopped := 1, true; stopped; n++ {
				c := rqliteNew(t, 3)
				file, _ := rqliteCopy(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c.arrived()
				asked := 0
				c.when(func(node *rqliteNode, _ http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path == "/status" {
						return false
					}
					c.mu.Lock()
					defer c.mu.Unlock()
					if asked++; asked != n {
						return false
					}
					if done {
						node.serve(httptest.NewRecorder(), r)
					}
					cancel()
					panic(http.ErrAbortHandler)
				})
				args := []string{"restore", "-db", c.addresses(), file}
				err := run(ctx, args, nil, nil, io.Discard, io.Discard)
				stopped = err != nil
				c.when(nil)
				again := run(t.Context(), args, nil, nil, io.Discard, io.Discard)
				// It may have been loaded all the same, and is refused then.
				if c.number("SELECT count(*) FROM pets") != 3 {
					t.Errorf("stopped at request %d it says %v, and run again %v", n, err, again)
				}
			}
		})
	}
}

// TestStatementsNameTheirColumns, so that they run beside a newer schema.
func TestStatementsNameTheirColumns(t *testing.T) {
	blind := regexp.MustCompile(`INSERT (OR REPLACE )?INTO \w+ (VALUES|SELECT)|SELECT \*`)
	for _, literal := range storeLiterals(t, "store.go", "auth.go", "limits.go", "rqlite.go", "sqlite.go", "backup.go") {
		if blind.MatchString(literal) {
			t.Errorf("this statement names no columns: %s", literal)
		}
	}
}
