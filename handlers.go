package main

// The HTTP side: the routes, what stands before each of them, the operations, and the one place
// where an error becomes a response; then the description, the page, and /readyz. This file parses
// no flags and opens no files.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// settings are what the operator decides about the HTTP side.
type settings struct {
	baseURL, stagingURL string        // public addresses that end in /v1, or ""
	staging             bool          // take test keys instead of live ones
	banFor              time.Duration // 0 turns bans off
	clientIPHeader      string        // the header in which a proxy names the client, or ""
	corsOrigins         []string      // none turns CORS off; "*" allows all
}

// environment is what the specification calls the place where a service runs.
func (set settings) environment() string {
	if set.staging {
		return "Staging"
	}
	return "Production"
}

// service handles all requests.
type service struct {
	store     *store
	keys      *keyring
	ledger    *ledger
	addresses addresses
	log       *slog.Logger

	settings
	base      string   // of Location and Link: baseURL, or a path
	successor []string // the Link of the deprecated operation
	routes    *http.ServeMux

	operations map[string]*operationCounts // what /metrics shows, by the name
	errors     map[ErrorCode]*atomic.Int64 // responses by the code of their Error
	bans       atomic.Int64                // those that have begun

	stopping  atomic.Bool // a stop has begun; responses end their connections
	strangers boundedLog  // takes the lines that callers without a valid key cause

	probing sync.Mutex // guards the next two
	probed  time.Time  // when the store was last asked whether it is ready
	unready error      // what was found then
}

func newService(store *store, settings settings, log *slog.Logger) *service {
	srv := &service{
		store:      store,
		keys:       newKeyring(store, settings.staging),
		ledger:     newLedger(store, settings.banFor),
		addresses:  addresses{buckets: map[netip.Prefix]bucket{}},
		log:        log,
		settings:   settings,
		base:       cmp.Or(settings.baseURL, "/v1"),
		routes:     http.NewServeMux(),
		operations: map[string]*operationCounts{},
		// Codes of the API, and these two, which clients never see. (queueFull is counted by the
		// store: see writeError.)
		errors:    map[ErrorCode]*atomic.Int64{lookupRefused: {}, notReady: {}},
		strangers: boundedLog{log: log},
	}
	for code := range statusOfCode {
		srv.errors[code] = &atomic.Int64{}
	}
	srv.successor = []string{"<" + srv.base + `/pets>; rel="successor-version"`}
	srv.addRoutes()
	return srv
}

// addRoutes registers every route. The names are those under which /metrics counts.
func (s *service) addRoutes() {
	s.add("GET /v1/pets", "listPets", s.listPets)
	s.add("POST /v1/pets", "createPet", s.createPet)
	s.add("GET /v1/pets/{petId}", "getPet", s.getPet) // deprecated
	s.refuseOtherMethods("/v1/pets", "GET, HEAD, POST")
	s.refuseOtherMethods("/v1/pets/{petId}", "GET, HEAD")

	s.addPublic("/readyz", "readyz", s.publicReadyz)
	s.addPublic("/openapi.json", "openapi", fixed(jsonType, describe(s.settings)))
	// The page is written for Production, which it names once.
	page := strings.Replace(webFile("index.html"), "Production", s.environment(), 1)
	s.addPublic("/{$}", "page", fixed(htmlType, page))
	s.addPublic("/page.css", "page", fixed(styleType, webFile("page.css")))
	s.addPublic("/page.js", "page", fixed(scriptType, webFile("page.js")))
	s.add("/", other, missing)
}

// other is the name of requests that match no operation.
const other = "other"

func (s *service) add(pattern, name string, op operation) {
	if s.operations[name] == nil { // this is the first route of the name
		s.operations[name] = &operationCounts{durations: histogram{bounds: durationBounds}}
	}
	s.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		s.handle(w.(*response), r, name, op) // ServeHTTP made the response
	})
}

// addPublic adds a route outside the API, which needs no key.
func (s *service) addPublic(path, name string, op operation) {
	s.add("GET "+path, name, op)
	s.refuseOtherMethods(path, "GET, HEAD")
}

// refuseOtherMethods refuses all methods of a path but those that have a route of their own.
func (s *service) refuseOtherMethods(path, methods string) {
	refuse := func(w http.ResponseWriter, _ *http.Request, _ caller) error {
		w.Header().Set("Allow", methods)
		return newError(CodeMethodNotAllowed, "this address takes %s", methods)
	}
	s.add(path, other, refuse)
}

// caller is whose request it is, and when it came.
type caller struct {
	key *apiKey // nil outside of /v1
	now time.Time
}

// operation handles a request that was admitted. It writes a success itself; an error it returns is
// written by fail.
type operation func(w http.ResponseWriter, r *http.Request, c caller) error

// handle handles a request, to be counted under the name. It writes the error if there is one.
func (s *service) handle(w *response, r *http.Request, name string, op operation) {
	w.operation = name
	c, err := s.authorize(w, r)
	if err == nil {
		err = op(w, r, c)
	}
	if err != nil {
		s.fail(w, r, err)
	}
}

// authorize authenticates a request under /v1, charges the limits of its key, and sets the headers
// of the limits. Unknown paths and methods need a key too, so that a caller without one learns
// nothing there. If no key is known, or its usage cannot be read, fail shows the limit of the
// address.
func (s *service) authorize(w *response, r *http.Request) (caller, error) {
	if !underAPI(r.URL.Path) {
		return caller{now: w.start}, nil
	}
	// The key, and the pets to be sent, may come from memory. If what is there may be old, catchUp
	// waits for at most half a second until the store has looked for edits by others. If the look
	// fails or takes longer, what is remembered is used on: see memory.go.
	s.store.catchUp(w.start)
	// A spent address is not refused here, since its requests may have valid keys. But of all keys
	// that authenticate does not remember, it looks up those from spent addresses one at a time. It
	// calls isSpent only for such a key.
	isSpent := func() bool {
		const charge = false
		network := clientNetwork(r, s.clientIPHeader)
		return s.addresses.admit(network, instantOf(w.start), charge).minute.remaining == 0
	}
	key, err := s.keys.authenticate(r.Header["Authorization"], w.start, isSpent)
	if errors.Is(err, errUnavailable) || errors.Is(err, errNoLookup) {
		// The store is away, or too many lookups wait. The key is neither accepted nor refused. The
		// error is logged here, within bounds. Both become errNoLookup, an *Error, which fail does
		// not log again.
		w.code = lookupRefused // writeError keeps it, and counts it in place of unavailable
		s.strangers.warn("a request gets 503, since its key cannot be looked up",
			"address", clientNetwork(r, s.clientIPHeader), "request", w.id[0], "error", err)
		return caller{}, errNoLookup
	}
	if err != nil {
		return caller{}, err
	}
	w.keyID = key.ID
	w.usageID = key.usageID
	decision, err := s.ledger.charge(&key.account, instantOf(w.start))
	if err != nil {
		return caller{}, err
	}
	if decision.banBegins {
		s.ban(w, key, &decision)
	}
	decision.setHeaders(w.Header())
	return caller{key: key, now: w.start}, decision.err()
}

// ban stores the ban that a decision begins. If it is stored, storeBan makes a key_banned of the
// decision's rate_limited. If another service has stored one first, that one counts: isOurs is
// false, and the decision becomes a key_banned only if that ban still runs.
func (s *service) ban(w *response, key *apiKey, d *decision) {
	isOurs, err := s.ledger.storeBan(&key.account, d)
	if err != nil {
		s.log.Error("cannot ban a key", "key", key.ID, "request", w.id[0], "error", err)
	}
	if isOurs {
		s.bans.Add(1)
		s.log.Warn("key banned",
			"key", key.ID,
			"for", s.banFor.String(),
			"until", w.start.Add(s.banFor).UTC(),
			"request", w.id[0])
	}
}

// response knows when its request came, and remembers what became of it.
type response struct {
	http.ResponseWriter
	service   *service
	request   *http.Request
	id        [1]string // X-Request-Id: an array, so that its slice in http.Header costs no memory
	start     time.Time
	bodyBegun bool          // somebody has begun to read the body
	waited    time.Duration // since start, for the client to send its body
	took      time.Duration // the service's own time, until the status was sent
	status    int           // 0 until it is sent
	code      ErrorCode     // under which it is counted, if it is an Error: see writeError
	operation string        // the name under which it is counted

	keyID, usageID int64        // the caller's key, and what it is charged to, once they are known
	network        netip.Prefix // clientNetwork, if the response is logged at debug level
}

// WriteHeader also stops the clock: from here on, the client decides how long the response takes.
// Meanwhile the map of the request's header, which may take four times the bytes of the header
// itself, is freed. So nothing may read it after this; net/http does not.
func (w *response) WriteHeader(status int) {
	w.status = status
	w.took = time.Since(w.start) - w.waited
	w.request.Header = nil
	if w.service.stopping.Load() { // the next request would find nobody here
		w.Header()["Connection"] = []string{"close"}
	}
	w.ResponseWriter.WriteHeader(status)
}

// ServeHTTP stands around the routes. It gives the request its id, turns a panic into a 500, and
// counts the response.
func (s *service) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 && len(r.Trailer) > 20 { // more than any client needs
		// Until a stream ends, net/http keeps a map of the trailers that are announced. It may take
		// 25 times their bytes, and a connection has up to 100 streams (with HTTP/1.1, it has one
		// request at a time). So the stream ends now. Nothing was answered, so nothing is counted.
		panic(http.ErrAbortHandler)
	}
	w := &response{
		ResponseWriter: rw, service: s, request: r, start: time.Now(), operation: other,
	}
	if s.log.Enabled(r.Context(), slog.LevelDebug) { // now, since WriteHeader lets go of the header
		w.network = clientNetwork(r, s.clientIPHeader)
	}
	w.id[0] = newRequestID()
	w.Header()["X-Request-Id"] = w.id[:]
	w.Header()["Cache-Control"] = cachePolicy(r.URL.Path)
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
		// The connection ends after every request with chunks, or in HTTP/1.0. RFC 9112 section 6.1
		// wants that after one with chunks and a Content-Length, or with chunks in HTTP/1.0: a
		// proxy may see another end of it, and take the rest for a request of its own. net/http
		// does not show whether a request is one of these.
		w.Header()["Connection"] = []string{"close"}
	}
	defer s.count(w, r)
	// The error can only be a panic: handle has written all errors of operations.
	err := panicAsError(func() error {
		s.route(w, r)
		return nil
	})
	if err != nil && w.status != 0 { // it is too late for a 500
		s.log.Error("a response is cut off", "request", w.id[0], "error", err)
		panic(http.ErrAbortHandler) // net/http then ends the connection
	}
	if err != nil {
		s.fail(w, r, err)
	}
}

// route answers preflights itself, and gives other requests to the routes.
func (s *service) route(w *response, r *http.Request) {
	if len(s.corsOrigins) > 0 && s.cors(w, r) {
		return
	}
	if !canonical(r.URL) { // the router would redirect before any key was seen
		s.handle(w, r, other, missing)
		return
	}
	s.routes.ServeHTTP(w, r)
}

// count counts a response, and logs it at debug level.
func (s *service) count(w *response, r *http.Request) {
	switch w.code {
	case lookupRefused, notReady, queueFull:
		// Clients can cause these without end. Counted here, they would hide how the other requests
		// of the operation fare: see lookupRefused.
	default:
		s.operations[w.operation].add(w.status, w.took)
	}
	if w.status >= 500 && w.usageID != 0 { // also with queueFull
		s.ledger.countError(w.usageID, instantOf(w.start))
	}
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		// The pattern, not the path or method: a key may have been put there.
		s.log.Debug("request",
			"request", w.id[0],
			"route", r.Pattern,
			"status", w.status,
			"code", w.code,
			"duration", w.took.String(),
			"key", w.keyID,
			"address", w.network)
	}
}

// newRequestID is 16 hexadecimal digits: random, so that they tell nothing of how many requests
// there are.
func newRequestID() string {
	const top = 1 << 63 // with this bit, all numbers have 16 digits
	return strconv.FormatUint(rand.Uint64()|top, 16)
}

// canonical reports whether the router takes the path as it is: one that path.Clean leaves alone,
// but for a slash at the end.
func canonical(u *url.URL) bool {
	p := u.EscapedPath()
	if !strings.HasPrefix(p, "/") { // such as *
		return false
	}
	clean := path.Clean(p)
	if clean == "/" {
		return p == "/" // and not "//", which the router would redirect
	}
	return p == clean || p == clean+"/"
}

// underAPI reports whether a decoded path belongs to the API, and so needs a key. So does each path
// that matches a route under /v1, however it was encoded, and some that match none: /v1%2Fx is
// decoded to /v1/x.
func underAPI(path string) bool { return path == "/v1" || strings.HasPrefix(path, "/v1/") }

// The values of Cache-Control, each as http.Header holds it.
var (
	ofOneCaller = []string{"private, no-cache"}
	neverStored = []string{"no-store"}
	askedAgain  = []string{"no-cache"}
)

// cachePolicy is the Cache-Control of all responses of an address (RFC 9111 section 5.2.2). A proxy
// that caches may not heed Authorization, and would give one key's response to another. The files
// of the page may be kept, but are asked for again, and mostly get a 304: so after an upgrade a
// browser has all of them from one version.
func cachePolicy(path string) []string {
	switch {
	case underAPI(path):
		return ofOneCaller
	case path == "/readyz":
		return neverStored
	}
	return askedAgain
}

// exposed are the headers of responses that scripts of other origins may read. A 415 has
// Accept-Encoding (RFC 7694).
const exposed = "Accept-Encoding, Allow, Cache-Control, Deprecation, ETag, " +
	"Idempotency-Replayed, Link, Location, RateLimit, RateLimit-Policy, Retry-After, Sunset, " +
	"WWW-Authenticate, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-Request-Id"

// cors sets the headers of the Fetch standard for an allowed origin. It reports whether the request
// is a preflight of such an origin, which it has answered then.
func (s *service) cors(w *response, r *http.Request) (isPreflight bool) {
	h := w.Header()
	origin := r.Header.Get("Origin")
	allowed := "*"
	if !slices.Contains(s.corsOrigins, "*") {
		h.Set("Vary", "Origin")
		if !slices.Contains(s.corsOrigins, origin) {
			return false
		}
		allowed = origin
	}
	h.Set("Access-Control-Allow-Origin", allowed)
	h.Set("Access-Control-Expose-Headers", exposed)
	asked := r.Header.Get("Access-Control-Request-Method")
	if r.Method != http.MethodOptions || origin == "" || asked == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST")
	// The asterisk lets in what tools for tracing add to a page's requests. It does not stand for
	// Authorization, and some browsers do not know it, so the names are given, too.
	h.Set("Access-Control-Allow-Headers",
		"Authorization, Content-Type, Idempotency-Key, If-None-Match, *")
	h.Set("Access-Control-Max-Age", "86400")
	// Every response under /v1 shows limits. A preflight has no key, so it shows the address's.
	if underAPI(r.URL.Path) {
		_ = s.showAddress(w, r, false) // which refuses nothing, since it does not charge
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}

// fail writes an error. If the limits of a key are not known, the response shows the limit of the
// caller's address. A 401 is charged to the address, and becomes a 429 if nothing was left.
func (s *service) fail(w *response, r *http.Request, err error) {
	w.discardBody(r)
	shown := s.shownError(w, err)
	limits := w.Header()["RateLimit"] //nolint:staticcheck // it is spelt so where it is set
	hasLimits := limits != nil        // those of a key, which authorize has set
	if underAPI(r.URL.Path) && !hasLimits {
		refusal := s.showAddress(w, r, shown.Status == http.StatusUnauthorized)
		if refusal != nil {
			shown = s.shownError(w, refusal)
		}
	}
	s.writeError(w, shown)
}

// shownError is the Error that the client gets. Errors of other types are logged, and become 503
// if the store is not available and 500 otherwise.
func (s *service) shownError(w *response, err error) *Error {
	if shown, ok := errors.AsType[*Error](err); ok {
		return shown
	}
	if !errors.Is(err, errUnavailable) {
		s.log.Error("internal error", "request", w.id[0], "error", err)
		return newError(CodeInternalError, "something went wrong here; the request id is %s",
			w.id[0])
	}
	s.log.Error("store unavailable", "request", w.id[0], "error", err)
	if errors.Is(err, errOutcome) { // it wraps errUnavailable too; createPet has sent a write
		return newError(CodeUnavailable, "whether the pet was stored is unknown; "+
			"a request with an Idempotency-Key can be repeated safely")
	}
	return newError(CodeUnavailable, "the store is not available now; try again")
}

// showAddress sets the headers of the limit of the caller's address. With charge, it charges the
// address first, and returns an error if nothing was left.
func (s *service) showAddress(w *response, r *http.Request, charge bool) error {
	network := clientNetwork(r, s.clientIPHeader)
	// The clock is read anew: to look a key up, or to read a body, may have taken seconds.
	decision := s.addresses.admit(network, instantOf(time.Now()), charge)
	if charge {
		s.ledger.countStranger(network, decision)
	}
	decision.setHeaders(w.Header())
	// One request takes the last of a window, so there is at most one line for each window.
	tookLast := charge && decision.refusal == "" && decision.minute.remaining == 0
	if tookLast {
		s.strangers.warn("an address has used up its limit of requests without a valid key",
			"address", network,
			"requests", decision.minute.limit,
			"request", w.id[0])
	}
	return decision.err()
}

// Clients see "unavailable" in place of these codes, and can cause them as often as they like. So
// /metrics does not count them among the responses of an operation. It counts the first two as
// errors, under these codes, and the third by the store's queueRefusals.
const (
	lookupRefused ErrorCode = "lookup_refused" // a key cannot be looked up
	notReady      ErrorCode = "not_ready"      // /readyz says so
	queueFull     ErrorCode = "queue_full"     // errQueueFull
)

// writeError sends an Error, with the headers that its code wants.
func (s *service) writeError(w *response, apiErr *Error) {
	h := w.Header()
	switch apiErr.Code {
	case CodeMissingKey: // RFC 6750 section 3 wants a parameter
		h["WWW-Authenticate"] = []string{`Bearer realm="petstore"`}
	case CodeInvalidKey:
		h["WWW-Authenticate"] = []string{`Bearer realm="petstore", error="invalid_token"`}
	case CodeUnavailable:
		h.Set("Retry-After", "1")
	}
	if apiErr == errQueueFull {
		w.code = queueFull // the store has counted it
	} else {
		// authorize may have set lookupRefused, and publicReadyz notReady.
		w.code = cmp.Or(w.code, apiErr.Code)
		s.errors[w.code].Add(1)
	}
	body, _ := json.Marshal(apiErr) // cannot fail: two strings and a number
	write(w, apiErr.Status, jsonType, body)
}

// The values of Content-Type, each as http.Header holds it, so that no request makes one anew.
var (
	jsonType   = []string{"application/json"}
	textType   = []string{"text/plain; charset=utf-8"}
	htmlType   = []string{"text/html; charset=utf-8"}
	styleType  = []string{"text/css; charset=utf-8"}
	scriptType = []string{"text/javascript; charset=utf-8"}
)

// write sends a response. An error in sending means that the client has gone, and there is nobody
// to tell.
func write(w http.ResponseWriter, status int, contentType []string, body []byte) {
	h := w.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// boundedLog takes lines that strangers can cause, who could fill the log with them. It drops a
// line that comes less than 100 ms after the last one that was logged.
type boundedLog struct {
	log *slog.Logger

	mu   sync.Mutex // guards last
	last time.Time  // when a line was logged
}

func (l *boundedLog) warn(message string, attributes ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) < 100*time.Millisecond {
		return
	}
	l.last = time.Now()
	l.log.Warn(message, attributes...)
}

// Write implements io.Writer for net/http's own log, whose lines quote strangers.
func (l *boundedLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	text = redact(text) // before it is cut: a secret without its end may not be recognised
	l.warn(text[:min(len(text), 1000)])
	return len(line), nil
}

// writeDocument sends a 200, or a 304 if the client has the document already (RFC 9110 section
// 13.1.2).
func writeDocument(w http.ResponseWriter, r *http.Request, contentType []string, doc *document) {
	w.Header()["ETag"] = doc.etag
	known := strings.Join(r.Header["If-None-Match"], ",")
	for tag := range strings.SplitSeq(known, ",") {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
		if tag == doc.etag[0] || tag == "*" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	write(w, http.StatusOK, contentType, doc.body)
}

// missing answers requests that match no route.
func missing(http.ResponseWriter, *http.Request, caller) error {
	return newError(CodeNotFound, "there is nothing at this address")
}

// listPets is GET /v1/pets: a page of pets by ascending id. A Link header
// with rel "next" (RFC 8288) says that there are more, and where.
func (s *service) listPets(w http.ResponseWriter, r *http.Request, _ caller) error {
	req, err := parsePageRequest(r)
	if err != nil {
		return err
	}
	page, err := s.store.page(req.status, req.limit, req.after)
	if err != nil {
		return err
	}
	if page.more {
		last := strconv.FormatInt(page.last, 10)
		// keptQuery is "", or ends in &.
		next := "<" + s.base + "/pets?" + req.keptQuery + "after=" + last + `>; rel="next"`
		w.Header()["Link"] = []string{next}
	}
	writeDocument(w, r, jsonType, &page.document)
	return nil
}

// createPet is POST /v1/pets. The pet is durable before the 201 is written. If several things are
// wrong, 415 comes before 413, and 413 before 400: a body is kept only if its type is right, and
// its content is judged only if it is small enough.
func (s *service) createPet(w http.ResponseWriter, r *http.Request, c caller) error {
	if err := checkMediaType(w, r); err != nil {
		return err
	}
	body, err := readBody(w.(*response), r)
	if err != nil {
		return err
	}
	if err := refuseQuery(r); err != nil {
		return err
	}
	idempotencyKey, err := parseIdempotencyKey(r)
	if err != nil {
		return err
	}
	pet, err := decodeNewPet(body)
	if err != nil {
		return err
	}
	// The usage has a share of the places in the queue of writes: see maxOfOne in store.go. An
	// Idempotency-Key belongs to the key itself.
	var id int64
	var replayed, reused bool
	if idempotencyKey == "" {
		id, err = s.store.createPet(c.key.usageID, pet)
	} else {
		id, replayed, reused, err = s.store.createPetOnce(
			c.key.usageID, pet, c.key.ID, idempotencyKey, body, c.now)
	}
	if err != nil {
		return err
	}
	if reused {
		return newError(CodeIdempotencyKeyReused,
			"the Idempotency-Key was used with another body in the last 24 hours")
	}
	h := w.Header()
	if replayed {
		h["Idempotency-Replayed"] = []string{"true"}
	}
	if c.now.Before(sunset) { // later, a GET of this address is 410
		h["Location"] = []string{s.base + "/pets/" + strconv.FormatInt(id, 10)}
	}
	created := Pet{ID: id, NewPet: pet} // a replay shows the pet as it was created
	write(w, http.StatusCreated, jsonType, created.appendJSON(nil))
	return nil
}

// readBody reads a body of at most maxBody bytes.
func readBody(w *response, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, errTooLarge
	}
	w.bodyBegun = true
	begun := time.Now()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	w.waited += time.Since(begun)
	if len(body) > maxBody {
		return nil, errTooLarge
	}
	if err != nil {
		return nil, newError(CodeInvalidBody, "the body did not arrive completely, or not in time")
	}
	return body, nil
}

// maxDiscarded is how many bytes discardBody reads at most: as many as net/http would. Of a body
// that is announced as longer, nothing is read: its client may not see the error.
const maxDiscarded = 256 << 10

// discardBody reads, before an error is sent, a body that nobody wants. If the connection were
// closed while the body is on its way, TCP would reset it, and many clients would not see the
// error. It is needed only where the request asks for its connection to be closed and has a
// Content-Length: net/http itself reads the rest of a body in chunks, and of one whose connection
// is closed only by the response, as in ServeHTTP and WriteHeader. (With HTTP/2, no request asks
// for that.) This takes at most the server's ReadTimeout.
func (w *response) discardBody(r *http.Request) {
	// To read would send the 100 (Continue) for which a client with an Expect waits, and so ask for
	// the body that nobody wants.
	waitsFor100 := r.Header["Expect"] != nil && !w.bodyBegun
	hasLength := r.ContentLength > 0 // of chunks, it is -1
	isLeftUnread := r.Close && hasLength
	if !isLeftUnread || waitsFor100 || r.ContentLength > maxDiscarded {
		return
	}
	begun := time.Now()
	_, _ = io.Copy(io.Discard, r.Body) // what does not come is the client's fault
	w.waited += time.Since(begun)
}

// The dates of the deprecated operation. The specification gives only the date of its removal.
var (
	deprecationHeader = []string{"@1795132800"} // RFC 9745: since 20 November 2026
	sunset            = time.Date(2030, 12, 5, 0, 0, 0, 0, time.UTC)
	sunsetHeader      = []string{sunset.Format(http.TimeFormat)} // RFC 8594
)

// getPet is GET /v1/pets/{petId}.
//
// Deprecated: clients use GET /v1/pets with the status filter. From 5 December
// 2030 the response is 410, by the clock, without a new release.
func (s *service) getPet(w http.ResponseWriter, r *http.Request, c caller) error {
	s.ledger.noteDeprecatedUse(c.key.ID, instantOf(c.now))
	if !c.now.Before(sunset) {
		s.setDeprecation(w.Header())
		return newError(CodeOperationRemoved, "this operation was removed on %s; use GET /v1/pets",
			sunset.Format("2 January 2006"))
	}
	if err := refuseQuery(r); err != nil {
		return err
	}
	var pet *cachedPet
	if id, ok := parseID(r.PathValue("petId")); ok {
		var err error
		pet, err = s.store.pet(id)
		if err != nil {
			return err
		}
	}
	s.setDeprecation(w.Header())
	if pet == nil { // the id is unknown, or cannot be one
		return newError(CodeNotFound, "there is no pet with this id")
	}
	writeDocument(w, r, jsonType, &pet.document)
	return nil
}

// setDeprecation is for responses that tell something of a pet or of the operation: 200, 304, 404
// and 410. All others, such as 400 and 503, have none of these headers.
func (s *service) setDeprecation(h http.Header) {
	h["Deprecation"] = deprecationHeader
	h["Sunset"] = sunsetHeader
	h["Link"] = s.successor
}

// ownServer is the only server in web/openapi.json. Its address is relative, so it stands for the
// service that the description was fetched from.
const ownServer = `{"url": "/v1", "description": "This instance"}`

// describe is the OpenAPI description. Its servers are this service, by its public address or else
// by ownServer, and the one for staging. A service that is itself for staging lists only itself:
// its stagingURL is not used.
func describe(settings settings) string {
	servers := ownServer
	if settings.baseURL != "" {
		servers = fmt.Sprintf(`{"url": %q, "description": %q}`,
			settings.baseURL, settings.environment())
	}
	if settings.stagingURL != "" && !settings.staging {
		servers += fmt.Sprintf(`, {"url": %q, "description": "Staging"}`, settings.stagingURL)
	}
	return strings.Replace(webFile("openapi.json"), ownServer, servers, 1)
}

// pagePolicy is what a browser lets a page do, whatever text of a stranger it shows:
//   - script-src, style-src: its own script and style sheet, nothing inline;
//   - connect-src: calls of this service, so that the key is sent nowhere else;
//   - img-src: its icon, which is part of it;
//   - base-uri, form-action, frame-ancestors: no relative link or form that points to
//     another site, and no other page around it.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; " +
	"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// fixed serves a body that stays the same, under pagePolicy, and compressed to whoever takes that.
func fixed(contentType []string, body string) operation {
	const hasLink = false // none is sent with it
	plain := newDocument([]byte(body), hasLink)
	compressed := sync.OnceValue(func() document { // once somebody takes that
		return newDocument(gzipped(body), hasLink)
	})
	return func(w http.ResponseWriter, r *http.Request, _ caller) error {
		h := w.Header()
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Content-Type-Options", "nosniff") // no file is taken for another type
		h.Set("Referrer-Policy", "no-referrer")    // no other site learns where the service is
		h.Add("Vary", "Accept-Encoding")           // cors may have set another
		doc := plain
		if acceptsGzip(r) {
			h.Set("Content-Encoding", "gzip")
			doc = compressed()
		}
		writeDocument(w, r, contentType, &doc)
		return nil
	}
}

// publicReadyz is GET /readyz, for load balancers: it needs no key and gives no detail.
func (s *service) publicReadyz(w http.ResponseWriter, r *http.Request, c caller) error {
	if s.showReady(w, r, c) != nil {
		w.(*response).code = notReady
		return newError(CodeUnavailable, "unavailable")
	}
	return nil
}

// showReady writes nothing if the service is not ready, and returns why. It is GET /readyz on the
// debug address, where operator.go writes the error as it is. publicReadyz hides it.
func (s *service) showReady(w http.ResponseWriter, _ *http.Request, _ caller) error {
	if err := s.checkReady(); err != nil {
		return err
	}
	write(w, http.StatusOK, textType, []byte("ok\n"))
	return nil
}

// checkReady returns an error if the service is stopping, or if the store cannot read or write.
// Strangers may ask, and a write syncs the disk. So however many ask, the store is asked at most
// once every two seconds, even while it fails.
func (s *service) checkReady() error {
	if s.stopping.Load() {
		return errors.New("stopping")
	}
	s.probing.Lock()
	defer s.probing.Unlock()
	if time.Since(s.probed) < 2*time.Second {
		return s.unready
	}
	// All who ask meanwhile wait for this. So it does not end with the request that has begun it;
	// the engine bounds how long it takes.
	err := s.store.readable(context.Background())
	if err == nil {
		err = s.store.probe(context.Background())
	}
	if err != nil && s.unready == nil {
		s.log.Error("not ready", "error", err)
	}
	if err == nil && s.unready != nil {
		s.log.Info("ready again")
	}
	s.unready = err
	s.probed = time.Now()
	return err
}
