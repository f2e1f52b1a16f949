package main

// An engine: an rqlite cluster, which replicates a SQLite database by Raft and is spoken to over
// HTTP (https://rqlite.io/docs/api/). What is written is on the disks of a majority of its nodes
// before write returns, and what is read holds all that was written before: reads are linearizable.
//
// Requests go to the leader, because other nodes would have to pass them on to it. A node stays in
// use until a request to it fails; then the nodes of -db are asked who leads. A request that surely
// did nothing is repeated. The outcome of a write that may have arrived is unknown.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	leaderWait = 4 * time.Second // for a leader, and for the response to a write
	statusWait = time.Second     // for a connection, and for what a node says of itself
	leaderPoll = 100 * time.Millisecond
	copyWait   = 10 * time.Minute // for a whole database
	silentWait = 15 * time.Second // for the next bytes of a backup
	maxAnswer  = 4 << 20          // bytes of a response
)

// oldestRqlite is the first version that knows linearizable reads: older ones give weaker reads
// without a word.
var oldestRqlite = []int{8, 32, 4}

var (
	errWrongNode   = errors.New("this node cannot be used")
	errNothingDone = errors.New("nothing was done") // the request may be repeated
	errStatement   = errors.New("the statement failed")
	errLacks       = errors.New("it has failed a write that other nodes may have stored; " +
		"if they hold the data, set this node up anew, so that it copies the data, and restart " +
		"the services")
)

// rqlite is an engine.
type rqlite struct {
	nodes      []*node
	responding []*node // those that have responded to connect
	client     *http.Client
	log        *slog.Logger
	wait       time.Duration // for all tries of a request together

	// identity is that of the database that was opened, or 0 until it is known. Each read and each
	// write has a guard, which lets it meet no other database.
	identity int64
	isLost   atomic.Bool // another database was met
	serves   bool

	inUse atomic.Pointer[node] // the leader, or a node that passes requests on to it
	// respondedLast is the node whose database has responded last: the one in use, or the leader
	// to which it has passed the request on. moves counts how often that was another than before.
	respondedLast atomic.Value // of a string
	moves         atomic.Int64
	movesNoted    atomic.Int64  // by changed
	locating      chan struct{} // holds an element while a request looks for the leader
	// raftAddresses has the nodes of -db by the Raft addresses that they have told so far.
	raftAddresses sync.Map

	succeeded, failed, unknown atomic.Int64
}

// node is one member of the cluster.
type node struct {
	url  string // scheme, host and port
	user *url.Userinfo

	// lacks is set once a write has failed at the disk of the leader. The others may have stored
	// it, and the node goes on without it when there is room again: what it shows lacks pets then,
	// and it gives ids that the others have given already. So nothing is asked of the node any
	// more.
	lacks atomic.Bool
	stays atomic.Bool // it cannot be told to lead no more: see depose
}

// openRqlite finds the leader of a cluster. A cluster with a node that cannot be used is refused;
// the error wraps errWrongNode.
func openRqlite(ctx context.Context, urls []*url.URL, mode openMode, log *slog.Logger) (
	*rqlite, error) {
	e := newRqlite(urls, mode, log)
	err := e.connect(ctx)
	if err == nil {
		_, err = e.compare(ctx, false)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func newRqlite(urls []*url.URL, mode openMode, log *slog.Logger) *rqlite {
	e := &rqlite{log: log, wait: commandWait, locating: make(chan struct{}, 1)}
	if mode == openToServe {
		e.serves = true
		e.wait = leaderWait
	}
	for _, u := range urls {
		e.nodes = append(e.nodes, &node{url: u.Scheme + "://" + u.Host, user: u.User})
	}
	e.client = &http.Client{
		Transport: &http.Transport{ // without the proxies of the environment
			DialContext:         (&net.Dialer{Timeout: statusWait}).DialContext,
			TLSHandshakeTimeout: statusWait,
			MaxIdleConnsPerHost: 64,
			MaxConnsPerHost:     256,
			IdleConnTimeout:     time.Minute,
			// What follows bounds the head of a response, and maxAnswer its body.
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	return e
}

// connect refuses nodes that cannot be used, and waits for a leader.
func (e *rqlite) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandWait)
	defer cancel()
	lastErr := errors.New("none of its nodes says that it leads")
	for _, n := range e.nodes {
		_, err := e.status(ctx, n)
		if errors.Is(err, errWrongNode) {
			return err
		}
		if err != nil {
			lastErr = err
		} else {
			e.responding = append(e.responding, n)
		}
	}
	for e.inUse.Load() == nil {
		if ctx.Err() != nil {
			return lastErr
		}
		e.locate(ctx, nil)
	}
	return nil
}

// locate looks for a leader in the place of lost, a node that has failed. Only one request looks at
// a time. The others wait for it, and have nothing to do if it has found one. All nodes are asked
// at once, again and again, until one says that it leads. So a node that hangs hides no leader that
// the others have just elected. Waiting and asking together take no longer than statusWait.
func (e *rqlite) locate(ctx context.Context, lost *node) {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	select {
	case e.locating <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-e.locating }()
	if e.inUse.Load() != lost {
		return
	}
	var asking sync.WaitGroup
	for _, n := range e.nodes {
		asking.Go(func() {
			if e.awaitLeader(ctx, n, lost) {
				cancel() // the others need not be asked any more
			}
		})
	}
	asking.Wait()
}

// awaitLeader asks one node until it leads, or passes requests on to a leader, and then uses it
// in the place of the one that was lost, unless another was found before. It reports whether the
// node can be used.
func (e *rqlite) awaitLeader(ctx context.Context, n, lost *node) bool {
	for waited := false; ctx.Err() == nil; waited = true {
		status, err := e.status(ctx, n)
		isSound := err == nil && !n.lacks.Load()
		leads := status.Store.Raft.State == leaderState
		// passesOn is asked only after a pause, when all nodes of -db had time to tell their
		// addresses.
		isUseful := leads || (waited && e.passesOn(status))
		if isSound && isUseful {
			if e.inUse.CompareAndSwap(lost, n) && lost != nil && lost != n {
				e.log.Info("another node is in use", "node", n.url, "before", lost.url)
			}
			return true
		}
		if leads && n.lacks.Load() && !waited { // once in a search
			e.depose(ctx, n)
		}
		pause(ctx, leaderPoll)
	}
	return false
}

// depose asks a leader that lacks a write to let another node lead, if there is one that can be
// used. Other services may not have met its fault, and what it confirms to them has the ids of
// others. A node that leads no more does nothing. One before v8.40 cannot, or its user may not.
func (e *rqlite) depose(ctx context.Context, n *node) {
	if !slices.ContainsFunc(e.nodes, func(o *node) bool { return !o.lacks.Load() }) {
		return
	}
	response, err := e.do(ctx, n, http.MethodPost, "/leader", nil)
	if err == nil {
		_ = response.Body.Close()
	}
	if errors.Is(err, errWrongNode) && !n.stays.Swap(true) {
		e.log.Error("a node that is not used any more goes on leading, which other services may "+
			"follow: stop it", "node", n.url, "error", err)
	}
}

// leaderState is the state of the node that leads.
const leaderState = "Leader"

// nodeStatus is what GET /status of a node says.
type nodeStatus struct {
	Build struct{ Version string }
	Store struct {
		Addr   string
		Leader struct{ Addr string }
		Raft   struct{ State string }
	}
}

// passesOn reports whether a node knows a leader that is none of the nodes of -db, as far as these
// have told their addresses. A leader that is one of them is asked itself. If it does not say that
// it leads, it is gone, and this node does not know that yet.
func (e *rqlite) passesOn(s nodeStatus) bool {
	leader := s.Store.Leader.Addr
	_, isListed := e.raftAddresses.Load(leader)
	return leader != "" && !isListed
}

// status asks a node for its status. A node that is too old, or no rqlite, is an errWrongNode.
func (e *rqlite) status(ctx context.Context, n *node) (s nodeStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	response, err := e.do(ctx, n, http.MethodGet, "/status", nil)
	if err != nil {
		return s, err
	}
	defer response.Body.Close()
	// Of a response that is no rqlite's, the version is empty.
	_ = json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&s)
	if ctx.Err() != nil {
		return s, ctx.Err() // what was read may be cut off
	}
	if s.Store.Addr != "" { // a node that is starting tells none
		e.raftAddresses.Store(s.Store.Addr, n) // also of a node that is refused
	}
	if isTooOld(s.Build.Version) {
		return s, fmt.Errorf("%w: %s is rqlite %q, and v8.32.4 or newer is needed",
			errWrongNode, n.url, s.Build.Version)
	}
	return s, nil
}

// isTooOld reports whether a version is before oldestRqlite, or is none.
func isTooOld(version string) bool {
	var major, minor, patch int
	_, err := fmt.Sscanf(version, "v%d.%d.%d", &major, &minor, &patch)
	if err != nil {
		return true
	}
	return slices.Compare([]int{major, minor, patch}, oldestRqlite) < 0
}

// do sends one request to one node. The error wraps errNothingDone if there was no connection or
// no leader, and errWrongNode if the node refuses it. The response, of status 200, is to be
// closed.
func (e *rqlite) do(ctx context.Context, n *node, method, path string, body io.Reader) (
	*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, n.url+path, body)
	if err != nil {
		return nil, err
	}
	request.URL.User = n.user
	response, err := e.client.Do(request)
	if broken, ok := errors.AsType[*net.OpError](err); ok && broken.Op == "dial" {
		return nil, fmt.Errorf("%w: %w", errNothingDone, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		// A firewall that was restarted has forgotten all connections, and lets none of them end.
		// The next request does not try them one after the other: it makes a new one.
		e.client.CloseIdleConnections()
	}
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 512))
	reason := strings.TrimSpace(string(text))
	err = fmt.Errorf("%s responds %s: %q", n.url, response.Status, reason)
	if response.StatusCode < 500 {
		return nil, fmt.Errorf("%w: %w", errWrongNode, err)
	}
	if strings.HasSuffix(reason, "leader not found") {
		return nil, fmt.Errorf("%w: %w", errNothingDone, err)
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

	servedBy string // the Raft address of the leader, if the node has passed the request on
}

// problem is the error that an answer tells of, or nil. That of a statement is an errStatement.
func (a answer) problem() error {
	if a.Error != "" {
		return errors.New(a.Error)
	}
	for _, r := range a.Results {
		if r.Error != "" {
			return fmt.Errorf("%w: %s", errStatement, r.Error)
		}
	}
	return nil
}

// post sends something to a node once, and returns its answer. An answer with a problem is an
// error.
func (e *rqlite) post(ctx context.Context, n *node, wait time.Duration, path string,
	body io.Reader) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	response, err := e.do(ctx, n, http.MethodPost, path, body)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(http.MaxBytesReader(nil, response.Body, maxAnswer))
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	a.servedBy = response.Header.Get("X-RQLITE-SERVED-BY")
	if err != nil {
		return a, fmt.Errorf("the response cannot be read: %w", err)
	}
	return a, a.problem()
}

// readPath is where queries go; the other paths are of writes. A weak read would get old answers of
// a leader that has lost its office, and a queued write is confirmed before it is on any disk.
const readPath = "/db/query?level=linearizable"

// firstReadPath is where a start or a command reads first. Once a node was removed or added,
// linearizable reads wait for the next write. This one waits for none, and ends that.
const firstReadPath = "/db/query?level=strong"

func isRead(path string) bool { return path == readPath || path == firstReadPath }

// call tries again and again until there is an answer. It gives up when another try is useless, or
// could do a write twice. All tries together take no longer than e.wait, or than ctx allows.
func (e *rqlite) call(ctx context.Context, path string, statements []statement) (answer, error) {
	allTries, cancel := context.WithTimeout(ctx, e.wait)
	defer cancel()
	for {
		n := e.inUse.Load()
		a, err := e.try(allTries, n, path, statements)
		if !isRead(path) && isOfOneNode(err) && len(e.nodes) > 1 {
			e.leave(allTries, n, a.servedBy, err) // the next call uses another; this one fails
		}
		if err == nil || errors.Is(err, errStatement) {
			return a, err
		}
		mayRepeat := isRead(path) || errors.Is(err, errNothingDone)
		if !mayRepeat {
			// The next write need not wait for this node too. The time of allTries may be over.
			e.locate(ctx, n)
			return a, err
		}
		e.locate(allTries, n)
		if n == e.inUse.Load() {
			pause(allTries, leaderPoll)
		}
		if allTries.Err() != nil {
			return a, err // which says more than that the time is over
		}
	}
}

// isOfOneNode reports whether the error of a write, of a statement or of the commit, is one that
// the other nodes need not have: of the node's own disk or file, or of a lock that somebody holds
// there. They store the write, which this node lacks from then on.
func isOfOneNode(err error) bool {
	return err != nil && slices.ContainsFunc(errorsOfOneNode, func(text string) bool {
		return strings.Contains(err.Error(), text)
	})
}

// errorsOfOneNode are texts of SQLite.
var errorsOfOneNode = []string{"disk is full", "disk I/O", "is locked", "image is malformed",
	"unable to open database", "readonly database"}

// leave stops using the leader after it alone has failed a write: the next try fails, since the
// leader lacks something, and call looks for another one. If n has only passed the write on, n is
// sound. Then the node that has served it leads; one that is not known is left when it fails a
// write of its own.
func (e *rqlite) leave(ctx context.Context, n *node, servedBy string, err error) {
	led := n
	if listed, isListed := e.raftAddresses.Load(servedBy); isListed {
		led = listed.(*node)
	} else if s, err := e.status(ctx, n); err != nil || s.Store.Raft.State != leaderState {
		e.locate(ctx, n)
		return
	}
	if !led.lacks.Swap(true) {
		e.log.Error("a node is not used any more", "node", led.url, "error",
			fmt.Errorf("%w: %w", errLacks, err))
	}
	if led != n {
		e.locate(ctx, n) // which has another one lead
	}
}

// try posts statements to a node once, and counts how that went. Where there are several nodes, a
// read gets at most half of the time that is left, so that there is time to ask another one.
func (e *rqlite) try(ctx context.Context, n *node, path string, statements []statement) (
	answer, error) {
	if n.lacks.Load() {
		e.failed.Add(1)
		return answer{}, fmt.Errorf("%w: %s: %w", errNothingDone, n.url, errLacks)
	}
	wait := leaderWait
	if isRead(path) && len(e.nodes) > 1 {
		end, _ := ctx.Deadline()
		wait = max(time.Until(end)/2, leaderPoll)
	}
	var rows [][]any
	for _, st := range statements {
		row := append([]any{st.query}, st.args...)
		rows = append(rows, row)
	}
	body, _ := json.Marshal(rows) // of texts, integers and nil
	a, err := e.post(ctx, n, wait, path, bytes.NewReader(body))
	if err == nil && len(a.Results) != len(rows) {
		err = fmt.Errorf("there are %d results for %d statements", len(a.Results), len(rows))
	}
	leader, _ := e.raftAddresses.Load(a.servedBy)
	if led, isListed := leader.(*node); err == nil && isListed && led.lacks.Load() {
		err = fmt.Errorf("%s has passed it on to %s: %w", n.url, led.url, errLacks)
	}
	if err != nil {
		e.failed.Add(1)
	} else {
		e.succeeded.Add(1)
		e.noteResponse(cmp.Or(a.servedBy, n.url))
	}
	return a, err
}

// noteResponse takes the address of the node whose database has responded.
func (e *rqlite) noteResponse(node string) {
	before := e.respondedLast.Swap(node)
	if before != nil && before != node {
		e.moves.Add(1)
	}
}

// guard fails, and with it a transaction, unless ? is the identity of the database. SQL has no
// statement for that, but json refuses a text that is no JSON.
const guard = "SELECT json(iif(value = ?, '0', 'another database')) FROM identity"

const identityVersion = 5 // of the schema: the first that has an identity

// heldDatabase is what the nodes say that they hold.
type heldDatabase struct {
	version  int   // of the schema, 0 for none
	identity int64 // 0 for none
	isUsed   bool  // it holds a pet or a key, or has held one
}

// identify asks what database there is, without a guard, since it may be another one. If that
// cannot be read, the error is an errUnavailable. Any other error is that of checkMarks. If the
// schema is newer, held is filled nevertheless.
func (e *rqlite) identify(ctx context.Context) (held heldDatabase, err error) {
	version, marksErr := checkMarks(func(columns ...any) error {
		return e.readRow(ctx, ownerQuery, columns)
	})
	if version == 0 {
		return held, marksErr
	}
	held.version = version
	identity := "0"
	if version >= identityVersion {
		identity = "(" + identityQuery + ")"
	}
	query := "SELECT " + identity + ", EXISTS (SELECT 1 FROM sqlite_sequence WHERE seq > 0)"
	err = e.readRow(ctx, query, []any{&held.identity, &held.isUsed})
	return held, cmp.Or(err, marksErr)
}

// readRow reads one row without a guard.
func (e *rqlite) readRow(ctx context.Context, query string, columns []any) error {
	a, err := e.call(ctx, firstReadPath, []statement{sqlOf(query)})
	if err == nil {
		// All rows are joined into one: assign fails unless there was exactly one.
		err = assign(slices.Concat(a.Results[0].Values...), columns)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return nil
}

// compare returns what the cluster holds, and refuses nodes of two clusters, as far as their
// databases can be told apart. What it asks first is no old answer: a node that only lags behind is
// not refused. A node that cannot say now what it holds is passed over, unless all must answer.
func (e *rqlite) compare(ctx context.Context, allMustAnswer bool) (
	held heldDatabase, err error) {
	end := time.Now().Add(5 * leaderPoll)
	for {
		held, err = e.identify(ctx)
		if err != nil {
			return held, err
		}
		err = e.refuseOthers(ctx, held, allMustAnswer)
		if err == nil || time.Now().After(end) {
			return held, err
		}
		// Another service may make or migrate the database between two answers. If the nodes are of
		// one cluster, their later answers agree. So from now on all must answer.
		allMustAnswer = true
		pause(ctx, leaderPoll)
	}
}

// refuseOthers is the error of a node that holds another database.
func (e *rqlite) refuseOthers(ctx context.Context, held heldDatabase, allMustAnswer bool) error {
	refusals := make([]error, len(e.responding))
	var asking sync.WaitGroup
	for i, n := range e.responding {
		asking.Go(func() {
			other, err := e.only(n).identify(ctx)
			switch {
			case errors.Is(err, errUnavailable) && !allMustAnswer:
				return
			case err != nil:
				err = fmt.Errorf("%s: %w", n.url, err)
			case other != held:
				err = fmt.Errorf("%w: the database of %s is another than that of %s",
					errWrongNode, n.url, e.inUse.Load().url)
			}
			refusals[i] = err
		})
	}
	asking.Wait()
	return cmp.Or(refusals...)
}

// only is an engine that uses one node of the cluster, and is tied to no database.
func (e *rqlite) only(n *node) *rqlite {
	one := &rqlite{
		nodes:    []*node{n},
		client:   e.client,
		log:      e.log,
		wait:     statusWait,
		locating: make(chan struct{}, 1),
	}
	one.inUse.Store(n)
	return one
}

// bind implements engine.
func (e *rqlite) bind(ctx context.Context) error {
	held, err := e.compare(ctx, false)
	e.identity = held.identity
	return err
}

// callGuarded is call with a guard before the statements, whose results it returns. If the guard
// fails at a node, nothing is written there, and nothing that was read is used.
func (e *rqlite) callGuarded(ctx context.Context, path string, statements []statement) (
	answer, error) {
	if e.identity == 0 {
		return e.call(ctx, path, statements)
	}
	if e.isLost.Load() {
		return answer{}, errOtherDatabase
	}
	guarded := append([]statement{sqlOf(guard, e.identity)}, statements...)
	a, err := e.call(ctx, path, guarded)
	guardFailed := len(a.Results) > 0 && a.Results[0].Error != ""
	if guardFailed {
		return answer{}, e.explainGuard(ctx, a.Results[0].Error)
	}
	if err != nil {
		return answer{}, err
	}
	a.Results = a.Results[1:]
	return a, nil
}

// explainGuard tells why a guard has failed. A disk may be the reason. Only if the identity is
// found to be another, it is an errOtherDatabase, which is final.
func (e *rqlite) explainGuard(ctx context.Context, problem string) error {
	held, err := e.identify(ctx)
	if errors.Is(err, errUnavailable) || held.identity == e.identity {
		return fmt.Errorf("the database cannot be identified: %s", problem)
	}
	if !e.isLost.Swap(true) && e.serves {
		e.log.Error("stopped for good", "node", e.inUse.Load().url, "error", errOtherDatabase)
	}
	return errOtherDatabase
}

// write implements engine.
func (e *rqlite) write(ctx context.Context, statements []statement) ([]result, error) {
	path := "/db/execute?transaction"
	if slices.ContainsFunc(statements, func(st statement) bool { return st.into != nil }) {
		path = "/db/request?transaction" // it takes queries too, and prepares everything twice
	}
	a, err := e.callGuarded(ctx, path, statements)
	if errors.Is(err, errNothingDone) || errors.Is(err, errOtherDatabase) {
		return nil, err
	}
	results := make([]result, len(statements))
	if err == nil {
		err = a.copyTo(statements, results)
	}
	// An error of a statement counts as unknown, too: if it is this node's own, such as a full
	// disk, the others may have stored the write. So does a guard that fails for such a reason.
	if err != nil {
		e.unknown.Add(1)
		return nil, fmt.Errorf("%w: %w", errOutcome, err)
	}
	return results, nil
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
		row := slices.Concat(from.Values...) // as in readRow
		if err := assign(row, st.into); err != nil {
			return err
		}
	}
	return nil
}

// read implements engine.
func (e *rqlite) read(ctx context.Context, query statement, row func(scan scanner) error) error {
	a, err := e.callGuarded(ctx, readPath, []statement{query})
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

// assign copies the values of a row. What pages consist of, integers and texts, is copied without
// reflection: a page of 100 pets has 400 values.
func assign(values []json.RawMessage, columns []any) error {
	if len(values) != len(columns) {
		return fmt.Errorf("there are %d values in place of %d", len(values), len(columns))
	}
	for i, value := range values {
		if string(value) == "null" {
			return errors.New("a value is missing")
		}
		var err error
		switch column := columns[i].(type) {
		case *int64:
			*column, err = strconv.ParseInt(string(value), 10, 64)
		case *string:
			*column = unquote(value)
			if value[0] != '"' {
				err = fmt.Errorf("%s stands in place of a text", value)
			}
		case *bool:
			*column = string(value) == "1" // SQLite has numbers in place of booleans
		default:
			err = json.Unmarshal(value, column)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changed calls note after another node than before has responded. Of two nodes that have led at
// once, the first may have shown what the cluster does not keep. Of writes a cluster does not tell,
// and need not. Edits are counted by store.edit. New pets outdate only the last page of a list,
// which store.fresh never takes as fresh on a cluster.
func (e *rqlite) changed(_ context.Context, forget func()) error {
	moves := e.moves.Load()
	if e.movesNoted.Load() != moves {
		forget()
		e.movesNoted.Store(moves)
	}
	return nil
}

// shared is true, because any number of services may use a cluster.
func (e *rqlite) shared() bool { return true }

// describe implements engine.
func (e *rqlite) describe() (engine, node string) { return "rqlite", e.inUse.Load().url }

// Close gives up what is left: connections that wait for requests.
func (e *rqlite) Close() error {
	e.client.CloseIdleConnections()
	return nil
}

// measure implements engine.
func (e *rqlite) measure(x *exposition) {
	const requests = "petstore_node_requests_total"
	succeeded, failed := e.succeeded.Load(), e.failed.Load()
	x.add(requests, `{outcome="success"}`, succeeded)
	x.add(requests, `{outcome="failure"}`, failed)
	unknown := e.unknown.Load()
	x.add("petstore_unknown_outcomes_total", "", unknown)
}

// members implements engine.
func (e *rqlite) members(ctx context.Context) (members []member) {
	for _, n := range e.nodes {
		status, _ := e.status(ctx, n) // empty if it does not respond
		m := member{Node: n.url, State: status.Store.Raft.State}
		m.serves = m.State == leaderState || m.State == "Follower"
		if n.lacks.Load() {
			m.State = "Not used"
			m.serves = false
		}
		members = append(members, m)
	}
	return members
}

// backup writes the database as a SQLite file, which rqlite takes from the node that leads, or
// believes so. The caller reads first: a linearizable read shows that this node leads, and has all
// that was acknowledged before. A node that sends nothing for silentWait is given up.
func (e *rqlite) backup(ctx context.Context, to io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, copyWait)
	defer cancel()
	n := e.inUse.Load()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	silent := time.AfterFunc(silentWait, func() {
		// net/http returns this cause as its error.
		giveUp(fmt.Errorf("%s has sent nothing for %v", n.url, silentWait))
	})
	defer silent.Stop()
	response, err := e.do(ctx, n, http.MethodGet, "/db/backup", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(to, timedReader{response.Body, silent})
	return err
}

// timedReader runs a timer of silentWait while it waits for bytes.
type timedReader struct {
	io.Reader
	silent *time.Timer
}

func (r timedReader) Read(p []byte) (int, error) {
	r.silent.Reset(silentWait)
	defer r.silent.Stop() // a disk that is slow to take the bytes is not the node's fault
	return r.Reader.Read(p)
}

// load puts a file with an identity in the place of the whole database. It refuses a cluster that
// holds a pet or a key, or has held one: its id could be given again. A cluster on which a service
// was ever started holds a key, since the service makes one.
func (e *rqlite) load(ctx context.Context, file io.Reader, identity int64) error {
	// The node in use may be one that passes requests on, and gives up on a large body. So locate
	// takes it for lost, and looks for the leader anew. If that is none of the nodes of -db, locate
	// still takes a node that passes requests on.
	e.locate(ctx, e.inUse.Load())
	// The node that was found may be of another cluster than the one that was in use.
	held, err := e.compare(ctx, true)
	if held.isUsed { // this says more than that the nodes differ, or that the schema is newer
		return errors.New("it holds or held pets or keys, and nothing is overwritten; start " +
			"nodes with empty folders, and restore before a service starts on them, which makes " +
			"a key")
	}
	if err != nil {
		return err
	}
	_, err = e.post(ctx, e.inUse.Load(), copyWait, "/db/load", file)
	if errors.Is(err, errNothingDone) {
		return err
	}
	if err == nil {
		held, err = e.identify(ctx) // a node whose disk is full reports success, too
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errOutcome, err)
	}
	if held.identity != identity {
		return errors.New("the cluster says that it has loaded the copy, but does not hold it")
	}
	return nil
}
