package main

// An engine: an rqlite cluster, which replicates a SQLite database by Raft and is spoken to over
// HTTP (https://rqlite.io/docs/api/). What is written is on the disks of a majority of its nodes
// before write returns, and what is read holds all that was written before: reads are linearizable.
//
// Requests go to the leader, because other nodes would have to ask it. When it is
// lost, one of the nodes that were named knows the next. A request that surely did nothing
// is repeated then; the outcome of a write that may have arrived is unknown.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	leaderWait = 5 * time.Second // for a leader, and for the response to a write
	queryWait  = 2 * time.Second // for the response to a read of a service
	statusWait = time.Second     // for a connection, and for what a node says of itself
	leaderPoll = 100 * time.Millisecond
	copyWait   = 10 * time.Minute // for a whole database
	maxAnswer  = 64 << 20         // bytes of a response
)

// oldestRqlite is the first version that knows linearizable reads: older ones give weaker reads
// without a word.
var oldestRqlite = [3]int{8, 32, 4}

var (
	errWrongNode   = errors.New("this node cannot be used")
	errNothingDone = errors.New("nothing was done") // surely
	errStatement   = errors.New("the statement failed")
)

// rqlite is an engine.
type rqlite struct {
	nodes  []*node
	client *http.Client
	log    *slog.Logger
	wait   time.Duration // for the response to a read, after which another node may lead

	edits    atomic.Int64 // the counter as it was read last
	inUse    atomic.Pointer[node]
	passedOn atomic.Bool // the node in use has asked the leader, which is another one
	locating sync.Mutex  // guards what follows, and addr of the nodes
	located  time.Time

	succeeded, failed, retried, unknown atomic.Uint64
	durations                           histogram // nanoseconds
}

// node is one member of the cluster.
type node struct {
	url  string // scheme, host and port
	user *url.Userinfo
	addr string // by which the other nodes know it, once it has told
}

func nodesAt(urls []*url.URL) (nodes []*node) {
	for _, u := range urls {
		nodes = append(nodes, &node{url: u.Scheme + "://" + u.Host, user: u.User})
	}
	return nodes
}

// openRqlite finds the leader of a cluster. One with a node that is too old is refused. Also after
// an error, close it.
func openRqlite(ctx context.Context, nodes []*node, p purpose, log *slog.Logger) (*rqlite, error) {
	e := &rqlite{nodes: nodes, log: log, wait: commandWait}
	e.durations.bounds = durationBounds
	if p == forService {
		e.wait = queryWait
	}
	e.client = &http.Client{
		Transport: &http.Transport{ // without the proxies of the environment
			DialContext:         (&net.Dialer{Timeout: statusWait}).DialContext,
			TLSHandshakeTimeout: statusWait,
			MaxIdleConnsPerHost: 64, MaxConnsPerHost: 256, IdleConnTimeout: time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	return e, e.connect(ctx)
}

// connect waits for a leader.
func (e *rqlite) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandWait)
	defer cancel()
	for {
		err := e.locate(ctx, nil, nil)
		if err == nil || errors.Is(err, errWrongNode) {
			return err
		}
		pause(ctx, leaderPoll)
		if ctx.Err() != nil {
			return err // which says more than that the time is over
		}
	}
}

// nodeStatus is what GET /status of a node says, or why it says nothing.
type nodeStatus struct {
	node  *node
	err   error
	Build struct{ Version string }
	Store struct {
		Addr   string
		Leader struct{ Addr string }
		Raft   struct{ State string }
	}
}

// locate looks for the leader, unless another request has found one since lost was in use. keep is
// a node that stays in use if it can pass requests on: those that run on it are given up otherwise.
func (e *rqlite) locate(ctx context.Context, lost, keep *node) error {
	e.locating.Lock()
	defer e.locating.Unlock()
	if lost != e.inUse.Load() || time.Since(e.located) < leaderPoll {
		return nil
	}
	found, err := e.findLeader(ctx, lost == nil, keep)
	e.located = time.Now()
	if err != nil {
		return err
	}
	before := e.inUse.Swap(found)
	if before != nil && before != found {
		e.log.Info("another node is in use", "node", found.url, "before", before.url)
	}
	return nil
}

// findLeader asks all nodes at once, until one says that it leads, or all have said something.
// Those that respond are asked again meanwhile, so that a node that hangs hides no leader that the
// others have just elected. The first time, all are waited for, and all must be usable.
func (e *rqlite) findLeader(ctx context.Context, first bool, keep *node) (*node, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said := make(chan nodeStatus)
	for _, n := range e.nodes {
		go e.keepAsking(ctx, n, said)
	}
	statuses := map[*node]nodeStatus{}
	var failed error
	for {
		var s nodeStatus
		select {
		case s = <-said:
		case <-ctx.Done():
			return nil, cmp.Or(failed, context.Cause(ctx))
		}
		_, again := statuses[s.node]
		statuses[s.node] = s
		all := len(statuses) == len(e.nodes)
		s.node.addr = cmp.Or(s.Store.Addr, s.node.addr) // also of a node that is refused
		failed = cmp.Or(failed, s.err)
		if first && errors.Is(s.err, errWrongNode) {
			return nil, s.err
		}
		if first && !all {
			continue
		}
		for _, s := range statuses {
			if s.err == nil && s.Store.Raft.State == "Leader" {
				return s.node, nil
			}
		}
		relay := e.relay(statuses, keep)
		if relay != nil && (again || all) { // so that the others had time to say that they lead
			return relay, nil
		}
		if all {
			return nil, cmp.Or(failed, errors.New("its nodes have no leader"))
		}
	}
}

// keepAsking passes on what a node says of itself, now and every leaderPoll until ctx ends.
func (e *rqlite) keepAsking(ctx context.Context, n *node, said chan<- nodeStatus) {
	for ctx.Err() == nil {
		status := e.status(ctx, n)
		select {
		case said <- status:
		case <-ctx.Done():
		}
		pause(ctx, leaderPoll)
	}
}

// relay is a node that passes requests on to the leader, where that is none of the nodes that were
// named: keep, if it does. A leader that was named has lost its office, or does not respond.
func (e *rqlite) relay(statuses map[*node]nodeStatus, keep *node) (found *node) {
	for n, s := range statuses {
		leader := s.Store.Leader.Addr
		named := slices.ContainsFunc(e.nodes, func(n *node) bool { return n.addr == leader })
		if s.err == nil && leader != "" && !named && (found == nil || n == keep) {
			found = n
		}
	}
	return found
}

// status asks a node for its status, and refuses one that is too old.
func (e *rqlite) status(ctx context.Context, n *node) nodeStatus {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	response, err := e.do(ctx, n, http.MethodGet, "/status", nil)
	s := nodeStatus{node: n, err: err}
	if err != nil {
		return s
	}
	defer response.Body.Close()
	err = json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&s)
	if err != nil || s.Build.Version == "" {
		s.err = fmt.Errorf("%w: %s is no rqlite", errWrongNode, n.url)
		return s
	}
	var version [3]int
	_, err = fmt.Sscanf(s.Build.Version, "v%d.%d.%d", &version[0], &version[1], &version[2])
	if err != nil || slices.Compare(version[:], oldestRqlite[:]) < 0 {
		s.err = fmt.Errorf("%w: %s is rqlite %s, and v%d.%d.%d or newer is needed", errWrongNode,
			n.url, s.Build.Version, oldestRqlite[0], oldestRqlite[1], oldestRqlite[2])
	}
	return s
}

// do sends one request to one node. The error wraps errNothingDone if it never
// arrived or met no leader. The response, of status 200, is to be closed.
func (e *rqlite) do(ctx context.Context, n *node, method, path string, body io.Reader) (
	*http.Response, error) {
	//nolint:gosec // the operator names the node
	request, err := http.NewRequestWithContext(ctx, method, n.url+path, body)
	if err != nil {
		return nil, err
	}
	if n.user != nil {
		password, _ := n.user.Password()
		request.SetBasicAuth(n.user.Username(), password)
	}
	request.Header.Set("Content-Type", "application/json") // rqlite looks at the content only
	response, err := e.client.Do(request)                  //nolint:gosec // likewise
	if err == nil && response.StatusCode == http.StatusOK {
		if response.Header.Get("X-Rqlite-Served-By") != "" {
			e.passedOn.Store(true)
		}
		return response, nil
	}
	status := 0
	if err == nil {
		defer response.Body.Close()
		status = response.StatusCode
		text, _ := io.ReadAll(io.LimitReader(response.Body, 512))
		oneLine := strings.Join(strings.Fields(string(text)), " ")
		err = fmt.Errorf("%s responds %s %s", n.url, response.Status, oneLine)
	}
	var untrusted *tls.CertificateVerificationError
	var broken *net.OpError
	switch {
	case status == http.StatusUnauthorized:
		err = fmt.Errorf("%w: %s wants another user or password", errWrongNode, n.url)
	case errors.As(err, &untrusted), errors.Is(err, http.ErrSchemeMismatch),
		0 < status && status < 500 && path == "/status":
		err = fmt.Errorf("%w: %w", errWrongNode, err)
	case errors.As(err, &broken) && broken.Op == "dial",
		status >= 500 && strings.HasSuffix(err.Error(), "leader not found"):
		err = fmt.Errorf("%w: %w", errNothingDone, err)
	}
	return nil, err
}

// answer is what rqlite says to statements.
type answer struct {
	Error   string
	Results []struct {
		LastID   int64 `json:"last_insert_id"`
		Affected int64 `json:"rows_affected"`
		Values   [][]json.RawMessage
		Error    string
	}
}

// post sends something to a node once, and returns its answer, or the errors that this reports.
func (e *rqlite) post(ctx context.Context, n *node, wait time.Duration, path string,
	body io.Reader) (answer, error) {
	var a answer
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	go func() { // once another node leads, a frozen one is not waited for any longer
		for ctx.Err() == nil && n == e.inUse.Load() {
			pause(ctx, statusWait/2)
		}
		cancel()
	}()
	response, err := e.do(ctx, n, http.MethodPost, path, body)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if len(text) == maxAnswer {
		return a, fmt.Errorf("%w: its result is larger than %d bytes", errStatement, maxAnswer)
	}
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil {
		return a, fmt.Errorf("the response cannot be read: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	for _, r := range a.Results {
		if r.Error != "" {
			return a, fmt.Errorf("%w: %s", errStatement, r.Error)
		}
	}
	return a, nil
}

// call asks until there is an answer, for leaderWait or longer, or until repeating the request is
// useless or not safe.
func (e *rqlite) call(ctx context.Context, wait time.Duration, safe bool, path string,
	s []statement) (answer, error) {
	rows := make([][]any, len(s))
	for i, st := range s {
		rows[i] = append([]any{st.query}, st.args...)
	}
	body, _ := json.Marshal(rows) // of texts, integers and nil
	ctx, cancel := context.WithTimeout(ctx, max(leaderWait, e.wait))
	defer cancel()
	for {
		n, start := e.inUse.Load(), time.Now()
		a, err := e.post(ctx, n, wait, path, bytes.NewReader(body))
		if err == nil && len(a.Results) != len(s) {
			err = fmt.Errorf("there are %d results for %d statements", len(a.Results), len(s))
		}
		if err == nil {
			e.succeeded.Add(1)
			e.durations.observe(int64(time.Since(start)))
			return a, nil
		}
		e.failed.Add(1)
		if errors.Is(err, errStatement) || errors.Is(ctx.Err(), context.Canceled) {
			return a, err
		}
		_ = e.locate(context.WithoutCancel(ctx), n, nil) // without a leader, the next try says so
		if !safe && !errors.Is(err, errNothingDone) {
			return a, err
		}
		pause(ctx, leaderPoll)
		if ctx.Err() != nil {
			return a, err // which says more than that the time is over
		}
		e.retried.Add(1)
	}
}

func (e *rqlite) write(ctx context.Context, statements []statement) ([]result, error) {
	path := "/db/execute?transaction"
	if slices.ContainsFunc(statements, func(st statement) bool { return st.into != nil }) {
		path = "/db/request?transaction" // which takes queries too, and prepares everything twice
	}
	a, err := e.call(ctx, leaderWait, false, path, statements)
	results := make([]result, len(statements))
	if err == nil {
		err = a.copyTo(statements, results)
	}
	if err != nil && !errors.Is(err, errNothingDone) {
		e.unknown.Add(1)
		err = fmt.Errorf("%w: %w", errOutcome, err)
	}
	return results, err
}

// copyTo takes the results of a write out of an answer. It fails unless there is one row wherever a
// statement wants one.
func (a answer) copyTo(statements []statement, results []result) error {
	for i, st := range statements {
		from := a.Results[i]
		results[i] = result{from.LastID, from.Affected}
		if st.into == nil {
			continue
		}
		if err := assign(slices.Concat(from.Values...), st.into); err != nil {
			return err
		}
	}
	return nil
}

func (e *rqlite) read(ctx context.Context, query statement, row func(scan scanner) error) error {
	a, err := e.call(ctx, e.wait, true, "/db/query?level=linearizable", []statement{query})
	if errors.Is(err, errStatement) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	for _, values := range a.Results[0].Values {
		err := row(func(columns ...any) error { return assign(values, columns) })
		if err != nil {
			return err
		}
	}
	return nil
}

// assign copies the values of a row. JSON numbers keep all digits of 64 bits on their
// way into integers; a bool is the number 0 or 1.
func assign(values []json.RawMessage, columns []any) error {
	if len(values) != len(columns) {
		return fmt.Errorf("there are %d values in place of %d", len(values), len(columns))
	}
	for i, value := range values {
		text := string(value)
		if text == "null" {
			return errors.New("a value is missing")
		}
		flag, ok := columns[i].(*bool)
		if ok && (text == "0" || text == "1") {
			*flag = text == "1"
			continue
		}
		if err := json.Unmarshal(value, columns[i]); err != nil {
			return err
		}
	}
	return nil
}

// changed compares the number of edits that commands have counted. What is only added is never
// missing in what services of a cluster remember.
func (e *rqlite) changed(ctx context.Context) (bool, error) {
	if e.passedOn.Swap(false) {
		n := e.inUse.Load()
		_ = e.locate(ctx, n, n) // the read says it if there is none
	}
	edits := e.edits.Load()
	err := e.read(ctx, sqlOf(editsQuery), func(scan scanner) error { return scan(&edits) })
	return e.edits.Swap(edits) != edits, err
}

func (e *rqlite) shared() bool                    { return true }
func (e *rqlite) describe() (engine, node string) { return "rqlite", e.inUse.Load().url }
func (e *rqlite) Close() error                    { e.client.CloseIdleConnections(); return nil }

func (e *rqlite) measure(x *exposition) {
	x.add("petstore_node_requests_total", `{outcome="success"}`, float64(e.succeeded.Load()))
	x.add("petstore_node_requests_total", `{outcome="failure"}`, float64(e.failed.Load()))
	x.addHistogram("petstore_node_request_duration_seconds", "", &e.durations, 1e9)
	x.add("petstore_node_retries_total", "", float64(e.retried.Load()))
	x.add("petstore_unknown_outcomes_total", "", float64(e.unknown.Load()))
}

func (e *rqlite) backup(ctx context.Context, to *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, copyWait)
	defer cancel()
	response, err := e.do(ctx, e.inUse.Load(), http.MethodGet, "/db/backup", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(to, response.Body)
	return err
}

// load puts a file in the place of the whole database.
func (e *rqlite) load(ctx context.Context, file io.Reader) error {
	_ = e.locate(ctx, e.inUse.Load(), nil) // nodes give up on passing on what is large
	_, err := e.post(ctx, e.inUse.Load(), copyWait, "/db/load", file)
	if errors.Is(err, errNothingDone) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errOutcome, err)
	}
	version, err := schemaVersion(ctx, e) // a node whose disk is full says so too
	if err != nil {
		return fmt.Errorf("%w: %w", errOutcome, err)
	}
	if version == 0 {
		return errors.New("the cluster says that it has loaded the copy, and holds nothing")
	}
	return nil
}
