package main

import (
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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// fakeCluster is a cluster of rqlite nodes in this process, as far as an engine sees one: the HTTP
// API of rqlite 8.43, with its errors, before a real SQLite database. Nodes have the numbers 0 to
// 2, and 0 leads at first. Here the leader's connection breaks, and nobody knows what became of a
// pet; then another node leads, and does the next write:
//
//	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
//		answerOnce(c, reset)
//		wantError(t, errorOf(s.createPet(1, rex)), errOutcome, "the first write")
//		c.lead(1)
//		wantNextID(t, s, 1)
//	})
//
// In place of reset there are lose, hang, redirect and respond(503, "…"); for other requests than
// the next one there are always, answerNth, before and when. wantArrived checks what was sent, and
// where. onFakeCluster has fake time, and no network: the cluster is a http.RoundTripper too.
// newCluster has nodes that listen.
type fakeCluster struct {
	t     testing.TB
	nodes []*fakeNode

	mu             sync.Mutex // guards what follows; every request waits for its turn
	path           string
	db             *sql.DB              // of one connection
	prepared       map[string]*sql.Stmt // what the services send again and again
	leader         int                  // -1: none
	user, password string
	requests       []string // those that arrived, as "1 POST /db/query?level=linearizable"
	rule           fakeRule

	log *logBuffer // of the store that onFakeCluster has opened
}

// fakeNode is one node of a fake.
type fakeNode struct {
	fake    *fakeCluster
	number  int
	addr    string // by which the other nodes know it
	version string
	host    string
	down    bool
	server  *httptest.Server // nil: it is down, or there is no network
}

// fakeAnswer is a way in which a node may answer in place of doing what it is asked.
type fakeAnswer = func(n *fakeNode, w http.ResponseWriter, r *http.Request)

// fakeRule looks at a request before the node does, and may answer it.
type fakeRule = func(n *fakeNode, w http.ResponseWriter, r *http.Request) (answered bool)

// newCluster makes a cluster, of which the node 0 is the leader.
func newCluster(t testing.TB, nodes int) *fakeCluster {
	t.Helper()
	c := newClusterWithoutNetwork(t, nodes)
	for _, n := range c.nodes {
		n.host = "127.0.0.1:0"
		n.start()
		t.Cleanup(n.stop)
	}
	return c
}

// newClusterWithoutNetwork makes a cluster for newClusterStore.
func newClusterWithoutNetwork(t testing.TB, nodes int) *fakeCluster {
	t.Helper()
	c := &fakeCluster{t: t, path: filepath.Join(t.TempDir(), "rqlite.db")}
	c.open()
	t.Cleanup(func() { _ = c.db.Close() })
	for number := range nodes {
		c.nodes = append(c.nodes, &fakeNode{
			fake:    c,
			number:  number,
			version: "v8.43.4",
			addr:    fmt.Sprintf("raft%d:4002", number),
			host:    fmt.Sprintf("node%d:4001", number),
		})
	}
	return c
}

func (c *fakeCluster) open() {
	c.db = openPool(c.path, "_pragma=synchronous(OFF)", "_pragma=journal_mode(WAL)")
	c.db.SetMaxOpenConns(1)
	c.prepared = map[string]*sql.Stmt{}
}

// swap puts another database behind the nodes. The caller holds the lock.
func (c *fakeCluster) swap(path string) {
	must(c.t, c.db.Close())
	c.path = path
	c.open()
}

// openCluster opens a store on a cluster, all nodes of which it knows, and returns its log.
func openCluster(t testing.TB, c *fakeCluster, mode openMode) (*store, *logBuffer) {
	t.Helper()
	return openClusterAt(t, c.addresses(), mode)
}

func openClusterAt(t testing.TB, addresses string, mode openMode) (*store, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	s, err := openStore(t.Context(), addresses, mode, newLogger(log, "json", slog.LevelDebug))
	must(t, err)
	s.documents.max = 16 << 20
	t.Cleanup(func() { _ = s.Close() })
	return s, log
}

// newClusterStore opens a store on a cluster without a network, as openRqlite does for a service.
// Call it inside a synctest bubble.
func newClusterStore(t testing.TB, c *fakeCluster) (*store, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	e := c.engine(openToServe, newLogger(log, "json", slog.LevelDebug))
	must(t, e.connect(t.Context()))
	must(t, errorOf(prepareSchema(t.Context(), e, openToServe)))
	must(t, e.bind(t.Context()))
	c.arrived()
	s := storeOn(e)
	s.documents.max = 16 << 20
	return s, log
}

// engine is one that is not connected yet.
func (c *fakeCluster) engine(mode openMode, log *slog.Logger) *rqlite {
	e := newRqlite(nodeURLs(c.addresses()), mode, log)
	e.client.Transport = c
	return e
}

// bubble is a test that runs in fake time.
func bubble(test func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// clustered is a test that onFakeCluster runs.
func clustered(test func(t *testing.T, c *fakeCluster, s *store)) func(t *testing.T) {
	return func(t *testing.T) { onFakeCluster(t, test) }
}

// onFakeCluster runs a test in fake time, with a store of a service on three nodes.
func onFakeCluster(t *testing.T, test func(t *testing.T, c *fakeCluster, s *store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newClusterWithoutNetwork(t, 3)
		var s *store
		s, c.log = newClusterStore(t, c)
		test(t, c, s)
	})
}

// clusterEngine is the engine of a store on a cluster.
func clusterEngine(s *store) *rqlite { return s.engine.(*rqlite) }

// addresses is what -db says to use some of the nodes, or all.
func (c *fakeCluster) addresses(numbers ...int) string {
	var addresses []string
	for _, n := range c.nodes {
		if numbers == nil || slices.Contains(numbers, n.number) {
			addresses = append(addresses, "http://"+n.host)
		}
	}
	return strings.Join(addresses, ",")
}

// lock guards the cluster until unlock is called.
func (c *fakeCluster) lock() (unlock func()) {
	c.mu.Lock()
	return c.mu.Unlock
}

// lead makes another node the leader, or, with -1, none.
func (c *fakeCluster) lead(number int) {
	defer c.lock()()
	c.leader = number
}

// when lets a rule look at every request first; nil ends it.
func (c *fakeCluster) when(rule fakeRule) {
	defer c.lock()()
	c.rule = rule
}

// always gives an answer to all requests whose path begins with one.
func (c *fakeCluster) always(path string, answer fakeAnswer) {
	c.when(func(n *fakeNode, w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, path) {
			return false
		}
		answer(n, w, r)
		return true
	})
}

// answerOnce gives an answer to the first request for the database, and to no other.
func answerOnce(c *fakeCluster, answer fakeAnswer) { c.answerNth(1, answer) }

// answerNth gives an answer to one request for the database.
func (c *fakeCluster) answerNth(nth int64, answer fakeAnswer) (asked *atomic.Int64) {
	asked = &atomic.Int64{}
	c.when(func(n *fakeNode, w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/status" || asked.Add(1) != nth {
			return false
		}
		answer(n, w, r)
		return true
	})
	return asked
}

// before calls do before a node serves a request whose path begins with one.
func (c *fakeCluster) before(path string, do func(r *http.Request)) {
	c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, path) {
			do(r)
		}
		return false
	})
}

// freeze lets nodes take requests and never respond, and so do those that pass requests on to them.
func (c *fakeCluster) freeze(numbers ...int) {
	c.when(func(n *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
		c.mu.Lock()
		passesOn := r.URL.Path != "/status" && slices.Contains(numbers, c.leader)
		c.mu.Unlock()
		frozen := passesOn || slices.Contains(numbers, n.number)
		if frozen {
			<-r.Context().Done()
		}
		return frozen
	})
}

// arrived returns the requests since it was last called, without those for a status.
func (c *fakeCluster) arrived() []string {
	defer c.lock()()
	requests := c.requests
	c.requests = nil
	isStatus := func(r string) bool {
		return strings.HasSuffix(r, "/status")
	}
	return slices.DeleteFunc(requests, isStatus)
}

// wantArrived checks which requests have arrived since it was last called.
func (c *fakeCluster) wantArrived(want ...string) {
	c.t.Helper()
	if got := c.arrived(); !slices.Equal(got, want) {
		c.t.Errorf("sent was %q, want %q", got, want)
	}
}

// writeTo is a write as arrived has it.
func writeTo(node int) string { return fmt.Sprint(node, " POST /db/execute?transaction") }

// number asks the database behind the nodes itself.
func (c *fakeCluster) number(query string) int64 {
	c.t.Helper()
	defer c.lock()()
	return numberIn(c.t, c.db, query)
}

// exec changes the database behind the nodes' back.
func (c *fakeCluster) exec(statements ...string) {
	c.t.Helper()
	defer c.lock()()
	for _, st := range statements {
		c.mustExec(st)
	}
}

func (c *fakeCluster) mustExec(query string, arguments ...any) {
	_, err := c.db.Exec(query, arguments...)
	must(c.t, err)
}

// start lets a node listen where it has listened before.
func (n *fakeNode) start() {
	listener, err := net.Listen("tcp", n.host)
	must(n.fake.t, err)
	n.host = listener.Addr().String()
	n.server = &httptest.Server{
		Listener: listener,
		Config:   &http.Server{Handler: n, ReadHeaderTimeout: time.Minute},
	}
	n.server.Start()
	n.setDown(false)
}

// stop lets connections to a node be refused.
func (n *fakeNode) stop() {
	n.setDown(true)
	if n.server != nil {
		n.server.CloseClientConnections()
		n.server.Close()
		n.server = nil
	}
}

func (n *fakeNode) setDown(down bool) {
	defer n.fake.lock()()
	n.down = down
}

// RoundTrip takes a request to its node without a network.
func (c *fakeCluster) RoundTrip(r *http.Request) (response *http.Response, err error) {
	isAsked := func(n *fakeNode) bool {
		return n.host == r.URL.Host
	}
	n := c.nodes[slices.IndexFunc(c.nodes, isAsked)]
	c.mu.Lock()
	down := n.down
	c.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	defer func() {
		if recover() != nil { // http.ErrAbortHandler
			err = &net.OpError{Op: "read", Err: syscall.ECONNRESET}
		}
	}()
	w := httptest.NewRecorder()
	n.ServeHTTP(w, r) // to its end, so that no request outlives its test
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	return w.Result(), nil
}

// ServeHTTP does what rqlite's http/service.go does.
func (n *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := n.fake
	c.mu.Lock()
	request := fmt.Sprintf("%d %s %s", n.number, r.Method, r.URL.RequestURI())
	c.requests = append(c.requests, request)
	rule := c.rule
	c.mu.Unlock()
	if rule != nil && rule(n, w, r) {
		return
	}
	defer c.lock()()
	n.serve(w, r)
}

func (n *fakeNode) serve(w http.ResponseWriter, r *http.Request) {
	c := n.fake
	user, password, _ := r.BasicAuth()
	if c.leader >= 0 && c.leader != n.number && r.URL.Path != "/status" {
		w.Header().Set("X-Rqlite-Served-By", c.nodes[c.leader].addr)
	}
	switch {
	case user != c.user || password != c.password:
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/status":
		n.status(w)
	case c.leader < 0:
		http.Error(w, "leader not found", http.StatusServiceUnavailable)
	case c.leader != n.number && c.nodes[c.leader].down:
		respond(200, `{"results":[],"error":"node failed to process Request"}`)(n, w, r)
	case r.URL.Path == "/leader" && n.version < "v8.40":
		w.WriteHeader(http.StatusNotFound)
	case r.URL.Path == "/leader": // it shall lead no more, if it does
		if c.leader == n.number {
			c.leader = slices.IndexFunc(c.nodes,
				func(o *fakeNode) bool { return o != n && !o.down })
		}
	case r.URL.Path == "/db/backup":
		c.backup(w)
	case r.URL.Path == "/db/load":
		c.load(w, r)
	default:
		c.statements(w, r)
	}
}

func (n *fakeNode) status(w http.ResponseWriter) {
	leader := ""
	if n.fake.leader >= 0 {
		leader = n.fake.nodes[n.fake.leader].addr
	}
	state := "Follower"
	if n.fake.leader == n.number {
		state = "Leader"
	}
	writeJSONTo(w, map[string]any{
		"build": map[string]string{"version": n.version},
		"store": map[string]any{
			"addr":   n.addr,
			"leader": map[string]string{"addr": leader},
			"raft":   map[string]string{"state": state},
		},
	})
}

func respond(status int, text string) fakeAnswer {
	return func(_ *fakeNode, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// lose does what it is asked, and breaks the connection off in place of the response.
func lose(n *fakeNode, _ http.ResponseWriter, r *http.Request) {
	defer n.fake.lock()()
	n.serve(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// reset breaks the connection off.
func reset(*fakeNode, http.ResponseWriter, *http.Request) {
	panic(http.ErrAbortHandler)
}

func writeJSONTo(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(value)
}

// fakeResult is the answer to one statement.
type fakeResult struct {
	LastID   int64   `json:"last_insert_id,omitempty"`
	Affected int64   `json:"rows_affected,omitempty"`
	Values   [][]any `json:"values,omitempty"`
	Error    string  `json:"error,omitempty"`
}

// statements runs what was posted, like rqlite: all queries, but writes up to the first error.
func (c *fakeCluster) statements(w http.ResponseWriter, r *http.Request) {
	var posted [][]any
	decoder := json.NewDecoder(r.Body)
	decoder.UseNumber()
	must(c.t, decoder.Decode(&posted))
	level, end := "transaction", "COMMIT"
	if r.URL.Path == "/db/query" {
		level, end = "level=linearizable", "ROLLBACK" // so that it writes nothing
		if r.URL.RawQuery == "level=strong" {         // of a start
			level = "level=strong"
		}
	}
	wantEqual(c.t, r.URL.RawQuery, level, "the parameters of ", r.URL.Path)
	c.mustExec("BEGIN")
	var results []fakeResult
	for _, st := range posted {
		result, err := c.run(r.URL.Path, st[0].(string), c.bound(st[1:]))
		if err != nil {
			result.Error = err.Error()
		}
		results = append(results, result)
		if err != nil && end == "COMMIT" {
			end = "ROLLBACK"
			break
		}
	}
	c.mustExec(end)
	writeJSONTo(w, map[string]any{"results": results})
}

// bound are parameters as rqlite binds them: a string like x'41' as a BLOB.
func (c *fakeCluster) bound(parameters []any) []any {
	for i, parameter := range parameters {
		switch p := parameter.(type) {
		case json.Number:
			number, err := p.Int64()
			must(c.t, err)
			parameters[i] = number
		case string:
			text, isHex := strings.CutPrefix(strings.ToLower(strings.TrimSpace(p)), "x'")
			text, isClosed := strings.CutSuffix(text, "'")
			blob, err := hex.DecodeString(text)
			if isHex && isClosed && err == nil {
				parameters[i] = blob
			}
		}
	}
	return parameters
}

// run executes a statement that was posted to a path, and returns its rows if it is a query, and
// queries are taken there.
func (c *fakeCluster) run(path, query string, arguments []any) (result fakeResult, err error) {
	st := c.prepared[query]
	if st == nil {
		st, err = c.db.Prepare(query)
		if err != nil {
			return result, err
		}
		c.prepared[query] = st
	}
	verb := strings.Fields(query)[0]
	if path == "/db/execute" || verb != "SELECT" && verb != "WITH" {
		if path == "/db/query" {
			return result, errors.New("this may only be queried")
		}
		done, err := st.Exec(arguments...)
		if err != nil {
			return result, err
		}
		result.LastID, _ = done.LastInsertId()
		result.Affected, _ = done.RowsAffected()
		return result, nil
	}
	rows, err := st.Query(arguments...)
	if err != nil {
		return result, err
	}
	defer rows.Close()
	columns, _ := rows.Columns()
	for rows.Next() {
		values := make([]any, len(columns))
		pointers := make([]any, len(values))
		for i := range values {
			pointers[i] = &values[i]
		}
		if err := rows.Scan(pointers...); err != nil {
			return result, err
		}
		result.Values = append(result.Values, values)
	}
	return result, rows.Err()
}

func (c *fakeCluster) backup(w http.ResponseWriter) {
	file := filepath.Join(c.t.TempDir(), "backup")
	c.mustExec("VACUUM INTO ?", file)
	_, _ = io.WriteString(w, readText(c.t, file))
}

func (c *fakeCluster) load(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err != nil { // the client has left
		return
	}
	path := filepath.Join(c.t.TempDir(), "loaded.db")
	must(c.t, os.WriteFile(path, content, 0o600))
	c.swap(path)
	writeJSONTo(w, map[string]any{"results": []fakeResult{}})
}
