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
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
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
	server  *httptest.Server // nil: it is down
	host    string
}

// rqliteNew makes a cluster, of which the node 0 is the leader.
func rqliteNew(t testing.TB, nodes int) *rqliteFake {
	t.Helper()
	c := &rqliteFake{t: t, path: filepath.Join(t.TempDir(), "rqlite.db")}
	c.open()
	t.Cleanup(func() { _ = c.db.Close() })
	for number := range nodes {
		n := &rqliteNode{fake: c, number: number, addr: fmt.Sprintf("raft%d:4002", number), version: "v8.43.4"}
		c.nodes = append(c.nodes, n)
		n.host = "127.0.0.1:0"
		n.start()
		t.Cleanup(n.stop)
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
}

// stop lets connections to a node be refused.
func (n *rqliteNode) stop() {
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
	i := slices.IndexFunc(c.nodes, func(n *rqliteNode) bool { return n.host == r.URL.Host })
	if c.nodes[i].server == nil {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	done := make(chan *http.Response, 1)
	go func() {
		w := httptest.NewRecorder()
		c.nodes[i].ServeHTTP(w, r)
		done <- w.Result()
	}()
	select {
	case response := <-done:
		return response, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// ServeHTTP does what rqlite's http/service.go does.
func (n *rqliteNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := n.fake
	c.mu.Lock()
	c.requests = append(c.requests, fmt.Sprintf("%d %s %s", n.number, r.Method, r.URL))
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

var _ = errors.New
var _ = url.Parse
