package main

// The HTTP side: the routes, what stands before each of them, the operations, and the one place
// where an error becomes a response; then the description, the page, and what the debug address
// shows. This file knows no flags and no files.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"mime"
	"net/http"
	_ "net/http/pprof" //nolint:gosec // on the default mux, which only the debug address serves
	"net/netip"
	"net/url"
	"os"
	"path"
	"runtime"
	"runtime/debug"
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
func (s settings) environment() string {
	if s.staging {
		return "Staging"
	}
	return "Production"
}

// service handles all requests.
type service struct {
	store  *store
	keys   *keyring
	limits *limiter
	log    *slog.Logger

	settings
	base      string   // of Location and Link: baseURL, or a path
	successor []string // the Link of the deprecated operation
	routes    *http.ServeMux
	unmatched http.Handler // of what no other route takes

	operations map[string]*operationCounts  // what /metrics shows, by the name
	errors     map[ErrorCode]*atomic.Uint64 // responses by the code of their Error
	bans       atomic.Uint64                // that began

	inFlight        atomic.Int64 // requests that are being handled
	warnedOfAddress sync.Once    // that clientIPHeader holds no address
	warnedOfHeader  sync.Once    // that a request lacks clientIPHeader
	stopping        atomic.Bool  // clients are told to connect anew
	probing         sync.Mutex   // guards the next two
	probed          time.Time    // when the store was last asked whether it is ready
	unready         error        // what it said

	spent   boundedLog // of addresses that send too many requests without a valid key
	refused boundedLog // of keys that are not looked up

	report     atomic.Pointer[report] // what the operator's page shows of the keys
	wanted     atomic.Bool            // somebody has asked for it since it was read last
	nextReport time.Time              // when it may be read next; only updateReport uses it
}

func newService(s *store, set settings, log *slog.Logger) *service {
	srv := &service{
		store:      s,
		keys:       newKeyring(s, set.staging),
		limits:     newLimiter(s, set.banFor, log),
		log:        log,
		settings:   set,
		base:       cmp.Or(set.baseURL, "/v1"),
		routes:     http.NewServeMux(),
		operations: map[string]*operationCounts{},
		errors:     map[ErrorCode]*atomic.Uint64{},
		spent:      boundedLog{log: log, about: "spent addresses", most: 10, period: time.Second},
		refused:    boundedLog{log: log, about: "refused requests", most: 1, period: time.Minute},
	}
	for code := range statusOfCode {
		srv.errors[code] = &atomic.Uint64{}
	}
	srv.successor = []string{"<" + srv.base + `/pets>; rel="successor-version"`}
	srv.unmatched = srv.handle("other", missing)
	srv.addRoutes()
	return srv
}

// addRoutes is the whole surface. The names are those under which /metrics counts.
func (s *service) addRoutes() {
	s.routes.Handle("GET /v1/pets", s.handle("listPets", s.listPets))
	s.routes.Handle("POST /v1/pets", s.handle("createPet", s.createPet))
	s.routes.Handle("GET /v1/pets/{petId}", s.handle("getPet", s.getPet)) // deprecated

	s.routes.Handle("/v1/pets", s.handle("other", allow("GET, HEAD, POST")))
	s.routes.Handle("/v1/pets/{petId}", s.handle("other", allow("GET, HEAD")))

	s.addPublic("/readyz", "readyz", s.reportReadiness)
	s.addPublic("/openapi.json", "openapi", fixed("application/json", describe(s.settings)))
	s.addPublic("/{$}", "page", fixed("text/html; charset=utf-8", webFile("index.html")))
	s.addPublic("/page.css", "page", fixed("text/css; charset=utf-8", webFile("page.css")))
	s.addPublic("/page.js", "page", fixed("text/javascript; charset=utf-8", webFile("page.js")))
	s.routes.Handle("/", s.unmatched)
}

func (s *service) addPublic(path, name string, op operation) {
	s.routes.Handle("GET "+path, s.handle(name, op))
	s.routes.Handle(path, s.handle("other", allow("GET, HEAD")))
}

// caller is whose request it is, and when it came.
type caller struct {
	key *apiKey
	now time.Time
}

// operation handles a request that was admitted. It writes a success itself; an error it returns is
// written by fail.
type operation func(w http.ResponseWriter, r *http.Request, c caller) error

// handle counts an operation under the name, and writes its error if there is one. Everything under
// /v1 is admitted first, unknown paths and methods included, so that a caller without a key learns
// nothing there and every response says where the caller stands.
func (s *service) handle(name string, op operation) http.Handler {
	counts := s.operations[name]
	if counts == nil { // while the routes are added
		counts = &operationCounts{durations: histogram{bounds: durationBounds}}
		s.operations[name] = counts
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := rw.(*response) // ServeHTTP made it
		w.counts = counts
		c := caller{now: w.start}
		var err error
		if underAPI(r.URL.Path) {
			c.key, err = s.admit(w, r)
		}
		if err == nil {
			err = op(w, r, c)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	})
}

// admit authenticates a request, charges the limits of its key and sets their headers. What a
// request without a valid key is charged is up to fail.
func (s *service) admit(w *response, r *http.Request) (*apiKey, error) {
	spent := func() bool {
		return s.limits.address(s.network(r), w.start, false).shown.remaining == 0
	}
	key, err := s.keys.authenticate(r.Header["Authorization"], w.start, spent)
	if err != nil {
		return nil, err
	}
	w.keyID, w.usageID = key.ID, key.usageID
	d, err := s.limits.admit(&key.account, w.start)
	if err != nil {
		return nil, err
	}
	d.setHeaders(w.Header())
	if d.banErr != nil {
		s.log.Error("cannot ban a key", "key", key.ID, "request", requestID(w), "error", d.banErr)
	}
	if d.banBegins {
		s.bans.Add(1)
		s.log.Warn("key banned", "key", key.ID, "for", s.banFor, "request", requestID(w))
	}
	return key, d.err()
}

// response knows when its request came, and remembers what became of it.
type response struct {
	http.ResponseWriter
	service *service
	start   time.Time
	status  int              // 0 until it is sent
	counts  *operationCounts // where it is counted

	keyID, usageID int64 // of the caller, once it is known
}

func (w *response) WriteHeader(status int) {
	w.status = status
	if w.service.stopping.Load() { // the next request would find nobody here
		w.Header()["Connection"] = []string{"close"}
	}
	w.ResponseWriter.WriteHeader(status)
}

// ServeHTTP gives the request its id, handles CORS preflights, turns a panic
// into a 500 and counts the response, around the routes.
func (s *service) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &response{ResponseWriter: rw, service: s, start: time.Now(), counts: s.operations["other"]}
	w.Header()["X-Request-Id"] = []string{newRequestID()}
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
		// RFC 9112 section 6.1 wants the connection ended after a request with both a
		// Content-Length and chunks, and after chunks in HTTP/1.0: a proxy may have seen
		// its end elsewhere. net/http hides both cases, so any chunks and any HTTP/1.0 count.
		w.Header()["Connection"] = []string{"close"}
	}
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	defer s.count(w, r)
	err := calmly(func() error {
		switch {
		case len(s.corsOrigins) > 0 && s.cors(w, r):
		case !canonical(r.URL): // the router would redirect, before any key was seen
			s.unmatched.ServeHTTP(w, r)
		default:
			s.routes.ServeHTTP(w, r)
		}
		return nil
	})
	if err != nil && w.status != 0 {
		s.log.Error("a response is cut off", "request", requestID(w), "error", err)
		panic(http.ErrAbortHandler) // which is all that is left
	} else if err != nil {
		s.fail(w, r, err)
	}
}

// calmly makes an error of a panic, which would end the process, or a connection without a word.
func calmly(do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return do()
}

// count counts a response, and logs it at debug level.
func (s *service) count(w *response, r *http.Request) {
	duration := time.Since(w.start)
	w.counts.responses[w.status].Add(1)
	w.counts.durations.observe(int64(duration))
	if w.status >= 500 && w.usageID != 0 {
		s.limits.countError(w.usageID, instantOf(w.start))
	}
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		// The pattern, not the path or method: a key may have been put there.
		s.log.Debug("request", "request", requestID(w), "route", r.Pattern, "status", w.status,
			"duration", duration, "key", w.keyID)
	}
}

// operationCounts is what /metrics shows of an operation. A response that was never begun has the
// status 0.
type operationCounts struct {
	responses [600]atomic.Uint64 // by status
	durations histogram          // nanoseconds
}

// newRequestID is 16 hexadecimal digits: random, so that they tell nothing of how many requests
// there are.
func newRequestID() string {
	return strconv.FormatUint(rand.Uint64()|1<<63, 16) //nolint:gosec // no secret
}

func requestID(w http.ResponseWriter) string { return w.Header()["X-Request-Id"][0] }

// canonical reports whether the router takes the path as it is.
func canonical(u *url.URL) bool {
	p := u.EscapedPath()
	clean := path.Clean(p)
	return strings.HasPrefix(p, "/") && (p == clean || p == clean+"/" && clean != "/")
}

func underAPI(path string) bool { return path == "/v1" || strings.HasPrefix(path, "/v1/") }

// exposed are the headers that scripts of other origins may read.
const exposed = "Accept-Encoding, Allow, Deprecation, ETag, Idempotency-Replayed, Link, " +
	"Location, RateLimit, RateLimit-Policy, Retry-After, Sunset, WWW-Authenticate, " +
	"X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-Request-Id"

// cors sets the headers of the Fetch standard for an allowed origin, and
// reports whether the request was a preflight and has its response.
func (s *service) cors(w http.ResponseWriter, r *http.Request) bool {
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
	h.Set("Access-Control-Allow-Headers",
		"Authorization, Content-Type, Idempotency-Key, If-None-Match")
	h.Set("Access-Control-Max-Age", "86400")
	if underAPI(r.URL.Path) {
		s.limits.address(s.network(r), time.Now(), false).setHeaders(h)
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}

// network is what a caller without a valid key is limited by.
func (s *service) network(r *http.Request) netip.Prefix {
	network, unread := clientNetwork(r, s.clientIPHeader)
	const shared = "; all clients of this proxy share one limit"
	if unread != "" {
		s.warnedOfAddress.Do(func() {
			s.log.Warn("the client's address cannot be read"+shared,
				"header", s.clientIPHeader, "value", redact(unread), "proxy", r.RemoteAddr)
		})
	}
	if s.clientIPHeader != "" && len(r.Header.Values(s.clientIPHeader)) == 0 {
		s.warnedOfHeader.Do(func() {
			s.log.Warn("a request lacks the header that names the client"+shared,
				"header", s.clientIPHeader, "proxy", r.RemoteAddr)
		})
	}
	return network
}

// chargeAddress shows a caller without a valid key where its address stands. An error that is a
// 401 is charged to it, and becomes a 429 if nothing is left.
func (s *service) chargeAddress(w http.ResponseWriter, r *http.Request, e *Error) *Error {
	network := s.network(r)
	charge := e.Status == http.StatusUnauthorized
	d := s.limits.address(network, time.Now(), charge)
	d.setHeaders(w.Header())
	if charge && d.refusal == "" && d.shown.remaining == 0 { // once a window
		s.spent.warn("an address is spent: it has sent too many requests without a valid key",
			"address", network, "requests", d.shown.limit, "request", requestID(w))
	}
	_ = errors.As(d.err(), &e)
	return e
}

// boundedLog takes lines that strangers can cause, who could fill the log with them.
type boundedLog struct {
	log    *slog.Logger
	about  string
	most   int // lines in a period
	period time.Duration

	mu    sync.Mutex // guards what follows
	lines int        // in this period, which began with the first of them
}

func (l *boundedLog) warn(message string, attributes ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == 0 {
		time.AfterFunc(l.period, l.endPeriod)
	}
	l.lines++
	if l.lines <= l.most {
		l.log.Warn(message, attributes...)
	}
}

// endPeriod tells how many lines were left out of the log.
func (l *boundedLog) endPeriod() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if leftOut := l.lines - l.most; leftOut > 0 {
		l.log.Warn(l.about+" were left out of the log", "lines", leftOut)
	}
	l.lines = 0
}

// fail writes an error. Only an *Error reaches the client as it is; others are logged, and become
// 503 if the store is not available and 500 otherwise. A 401 is charged to the caller's address,
// and becomes 429 if that has none left.
func (s *service) fail(w http.ResponseWriter, r *http.Request, err error) {
	h := w.Header()
	if errors.Is(err, errManySuspects) {
		s.refused.warn("requests get 503: too many unknown keys come from addresses that are spent",
			"address", s.network(r), "request", requestID(w))
	}
	var e *Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, errUnavailable):
		s.log.Error("store unavailable", "request", requestID(w), "error", err)
		e = newError(CodeUnavailable, "the store is not available now; try again")
		if errors.Is(err, errOutcome) {
			e.Message = "whether the pet was stored is unknown; " +
				"a request with an Idempotency-Key can be repeated safely"
		}
	default:
		s.log.Error("internal error", "request", requestID(w), "error", err)
		e = newError(CodeInternalError, "something went wrong here; the request id is %s",
			requestID(w))
	}
	limits := h["X-RateLimit-Limit"] //nolint:staticcheck // SA1008: spelt as specified
	if underAPI(r.URL.Path) && limits == nil {
		e = s.chargeAddress(w, r, e)
	}
	switch e.Code {
	case CodeMissingKey: // RFC 6750 section 3 wants a parameter
		h["WWW-Authenticate"] = []string{`Bearer realm="petstore"`}
	case CodeInvalidKey:
		h["WWW-Authenticate"] = []string{`Bearer realm="petstore", error="invalid_token"`}
	case CodeUnavailable:
		h.Set("Retry-After", "1")
	}
	s.errors[e.Code].Add(1)
	body, _ := json.Marshal(e) // two strings and a number
	write(w, e.Status, jsonType, body)
}

const jsonType = "application/json"

// write sends a response. An error in sending means that the client has gone, and there is nobody
// to tell.
func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // JSON, or a page that is embedded
}

// writeDocument sends a 200, or a 304 if the client has the document already (RFC 9110 section
// 13.1.2).
func writeDocument(w http.ResponseWriter, r *http.Request, contentType string, d *document) {
	w.Header()["ETag"] = []string{d.etag}
	for tag := range strings.SplitSeq(strings.Join(r.Header["If-None-Match"], ","), ",") {
		if tag = strings.TrimSpace(tag); tag == "*" || strings.TrimPrefix(tag, "W/") == d.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	write(w, http.StatusOK, contentType, d.body)
}

// missing handles what no other route takes.
func missing(http.ResponseWriter, *http.Request, caller) error {
	return newError(CodeNotFound, "there is nothing at this address")
}

// allow handles the methods that a path does not have.
func allow(methods string) operation {
	return func(w http.ResponseWriter, r *http.Request, _ caller) error {
		w.Header().Set("Allow", methods)
		return newError(CodeMethodNotAllowed, "this address takes %s", methods)
	}
}

// parseQuery reads a query string. Names other than the known ones, and names given twice, are
// problems: a misspelt filter must not return everything.
func parseQuery(r *http.Request, known ...string) (query url.Values, wrong problems) {
	if r.URL.RawQuery == "" {
		return nil, wrong
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		wrong.add("the query string cannot be parsed: %v", err)
	}
	names := make([]string, 0, len(query)) // slices.Sorted costs a tenth of a list
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !slices.Contains(known, name) {
			wrong.add("%s is not a query parameter of this operation", sentText(name))
			continue
		}
		if len(query[name]) > 1 {
			wrong.add("%s is given more than once", name)
		}
	}
	return query, wrong
}

// refuseQuery is for operations without query parameters.
func refuseQuery(r *http.Request) error {
	_, wrong := parseQuery(r)
	return wrong.err(CodeInvalidParameter)
}

// pageRequest is the checked query of listPets.
type pageRequest struct {
	limit  int
	status PetStatus // "" for all
	after  int64     // list ids above this one
	filter string    // the limit and status that were given, as the query of the next page has them
}

// parsePageRequest checks the query of listPets. Nothing is clamped: a client
// that asks for 1000 and gets 100 would take them for all.
func parsePageRequest(r *http.Request) (pageRequest, error) {
	p := pageRequest{limit: defaultLimit}
	query, wrong := parseQuery(r, "limit", "status", "after")
	if given := query["limit"]; given != nil {
		limit, err := strconv.Atoi(given[0])
		if err != nil || limit < 1 || limit > maxLimit {
			wrong.add("limit must be an integer from 1 to %d", maxLimit)
		}
		p.limit = limit
		p.filter = "limit=" + strconv.Itoa(limit) + "&"
	}
	if given := query["status"]; given != nil {
		p.status = PetStatus(given[0])
		if !p.status.known() {
			wrong.add("status must be one of available, pending, sold")
		}
		p.filter += "status=" + given[0] + "&"
	}
	if given := query["after"]; given != nil {
		after, err := strconv.ParseInt(given[0], 10, 64)
		if err != nil || after < 0 {
			wrong.add("after must be an integer of at least 0")
		}
		p.after = after
	}
	return p, wrong.err(CodeInvalidParameter)
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
		next := s.base + "/pets?" + req.filter + "after=" + strconv.FormatInt(page.last, 10)
		w.Header()["Link"] = []string{"<" + next + `>; rel="next"`}
	}
	writeDocument(w, r, jsonType, &page.document)
	return nil
}

// createPet is POST /v1/pets. The pet is durable before the 201 is written.
func (s *service) createPet(w http.ResponseWriter, r *http.Request, c caller) error {
	if err := checkMediaType(w, r); err != nil {
		return err
	}
	body, err := readBody(r)
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
	var id int64
	var replayed, reused bool
	if idempotencyKey == "" {
		id, err = s.store.createPet(pet)
	} else {
		id, replayed, reused, err = s.store.createPetOnce(
			pet, c.key.ID, idempotencyKey, body, c.now)
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
	if c.now.Before(sunset) {
		h["Location"] = []string{s.base + "/pets/" + strconv.FormatInt(id, 10)}
	}
	write(w, http.StatusCreated, jsonType, []byte(Pet{ID: id, NewPet: pet}.json()))
	return nil
}

// checkMediaType refuses a body that is not plain JSON. A type that is missing counts as JSON.
func checkMediaType(w http.ResponseWriter, r *http.Request) error {
	if len(r.Header["Content-Type"]) > 1 {
		return newError(CodeUnsupportedMediaType, "Content-Type is given more than once")
	}
	if given := r.Header.Get("Content-Type"); given != "" {
		mediaType, _, err := mime.ParseMediaType(given)
		if err != nil || mediaType != "application/json" {
			return newError(CodeUnsupportedMediaType, "the body must be application/json")
		}
	}
	coding := strings.Join(r.Header["Content-Encoding"], ",")
	if coding != "" && !strings.EqualFold(coding, "identity") {
		// RFC 9110 section 15.5.16 wants this header, and section 12.5.3 wants it only here.
		w.Header().Set("Accept-Encoding", "identity")
		return newError(CodeUnsupportedMediaType, "the body must have no Content-Encoding")
	}
	return nil
}

var errTooLarge = newError(CodeBodyTooLarge, "the body must have at most %d bytes", maxBody)

// readBody reads a body of at most maxBody bytes.
func readBody(r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, errTooLarge
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if len(body) > maxBody {
		return nil, errTooLarge
	}
	if err != nil {
		return nil, newError(CodeInvalidBody, "the body did not arrive whole and in time")
	}
	return body, nil
}

// parseIdempotencyKey returns the header, or "" if there is none.
func parseIdempotencyKey(r *http.Request) (string, error) {
	values := r.Header["Idempotency-Key"]
	if values == nil {
		return "", nil
	}
	key := strings.Join(values, " ") // the space between several is refused
	invisible := func(c rune) bool { return c <= ' ' || c > '~' }
	if key == "" || len(key) > 255 || strings.ContainsFunc(key, invisible) {
		return "", newError(CodeInvalidParameter,
			"Idempotency-Key must be one value of 1 to 255 visible ASCII characters")
	}
	return key, nil
}

// The dates of the deprecated operation. The specification gives that of its removal only.
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
	s.keys.noteDeprecatedUse(c.key, c.now)
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
	if pet == nil {
		return newError(CodeNotFound, "there is no animal with this id")
	}
	writeDocument(w, r, jsonType, &pet.document)
	return nil
}

func (s *service) setDeprecation(h http.Header) {
	h["Deprecation"] = deprecationHeader
	h["Sunset"] = sunsetHeader
	h["Link"] = s.successor
}

// parseID takes a positive int64 in its one canonical spelling.
func parseID(s string) (id int64, ok bool) {
	id, err := strconv.ParseInt(s, 10, 64)
	return id, err == nil && id > 0 && strconv.FormatInt(id, 10) == s
}

// ownServer is how web/openapi.json says where the service is: wherever the description was fetched
// from.
const ownServer = `{"url": "/v1", "description": "This instance"}`

// describe is the OpenAPI description, with the public addresses as its servers where they are
// known.
func describe(set settings) string {
	servers := ownServer
	if set.baseURL != "" {
		servers = fmt.Sprintf(`{"url": %q, "description": %q}`, set.baseURL, set.environment())
	}
	if set.stagingURL != "" && !set.staging {
		servers += fmt.Sprintf(`, {"url": %q, "description": "Staging"}`, set.stagingURL)
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

// fixed serves a body that stays the same, under the policy.
func fixed(contentType, body string) operation {
	d := newDocument(body, ".")
	return func(w http.ResponseWriter, r *http.Request, _ caller) error {
		h := w.Header()
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Content-Type-Options", "nosniff") // no file is taken for another type
		h.Set("Referrer-Policy", "no-referrer")    // no other site learns where the service is
		writeDocument(w, r, contentType, &d)
		return nil
	}
}

// ready is an error if the service stops, or if the store cannot read or write, as of a quarter
// second ago at the most: the store is probed no oftener, however many ask.
func (s *service) ready() error {
	if s.stopping.Load() {
		return errors.New("stopping")
	}
	s.probing.Lock()
	defer s.probing.Unlock()
	if time.Since(s.probed) < 250*time.Millisecond {
		return s.unready
	}
	before := s.unready
	s.unready = s.store.probe(context.Background())
	s.probed = time.Now()
	if before == nil && s.unready != nil {
		s.log.Error("not ready", "error", s.unready)
	}
	if before != nil && s.unready == nil {
		s.log.Info("ready again")
	}
	return s.unready
}

// reportReadiness is GET /readyz, for load balancers: it needs no key and gives no detail.
func (s *service) reportReadiness(w http.ResponseWriter, _ *http.Request, _ caller) error {
	if s.ready() != nil {
		return newError(CodeUnavailable, "unavailable")
	}
	write(w, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
	return nil
}

// debugRoutes are what the debug address serves to those whom refuseWebPages does not refuse.
func debugRoutes(running *atomic.Pointer[service], name string, anyHost bool) http.Handler {
	const plain = "text/plain; version=0.0.4; charset=utf-8"
	mux := http.NewServeMux()
	static := func(path, contentType, body string) {
		op := fixed(contentType, body)
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			_ = op(w, r, caller{}) // it always succeeds
		})
	}
	live := func(path, contentType string, body func(s *service) (string, error)) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			text, err := "", errors.New("starting")
			if s := running.Load(); s != nil {
				text, err = body(s)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			write(w, http.StatusOK, contentType, []byte(text))
		})
	}
	static("/{$}", "text/html; charset=utf-8", webFile("operator.html"))
	static("/operator.css", "text/css; charset=utf-8", webFile("operator.css"))
	static("/operator.js", "text/javascript; charset=utf-8", webFile("operator.js"))
	static("/healthz", plain, "ok\n")
	// Instead of pprof.Cmdline, which shows the passwords in URLs.
	static("/debug/pprof/cmdline", plain, redact(strings.Join(os.Args, "\x00")))
	live("/stats.json", jsonType, (*service).stats)
	live("/metrics", plain, func(s *service) (string, error) { return s.metrics().String(), nil })
	live("/readyz", plain, func(s *service) (string, error) { return "ok\n", s.ready() })
	mux.HandleFunc("GET /debug/pprof/", serveProfile)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff") // no file is taken for another type
		if err := refuseWebPages(r, name, anyHost); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// refuseWebPages is an error if a request to the debug address may come from a page of another
// site, which somebody who can reach the address has open. Such a page could start profiles, even
// if it cannot read them. It could read everything if the name of its site were made to lead here
// (DNS rebinding), so the Host has to be an IP address, localhost, or the given name, unless the
// operator allows any.
func refuseWebPages(r *http.Request, name string, anyHost bool) error {
	asPost := r.WithContext(r.Context()) // a copy, since net/http would let any GET pass
	asPost.Method = http.MethodPost
	if http.NewCrossOriginProtection().Check(asPost) != nil {
		return errors.New("a page of another site asks for this; enter the address yourself")
	}
	if anyHost {
		return nil
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	if host == "" || strings.EqualFold(host, "localhost") || strings.EqualFold(host, name) {
		return nil
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return errors.New("use an IP address, localhost, or the name in -debug-addr")
	}
	return nil
}

// serveProfile serves what net/http/pprof does, for a minute at most: a profile slows the service.
func serveProfile(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.ParseFloat(r.FormValue("seconds"), 64)
	if err == nil && seconds > 60 {
		http.Error(w, "a profile takes at most 60 seconds", http.StatusBadRequest)
		return
	}
	http.DefaultServeMux.ServeHTTP(w, r)
}

// metrics is what GET /metrics shows.
func (s *service) metrics() *exposition {
	e := newExposition()
	release, revision := build()
	e.add("petstore_build_info", fmt.Sprintf("{version=%q,revision=%q,goversion=%q}",
		release, revision, runtime.Version()), 1)
	engine, node := s.store.engine.describe()
	e.add("petstore_engine_info", fmt.Sprintf("{engine=%q,node=%q}", engine, node), 1)
	for _, name := range slices.Sorted(maps.Keys(s.operations)) {
		op := s.operations[name]
		for status := range op.responses {
			if n := op.responses[status].Load(); n > 0 {
				labels := fmt.Sprintf("{operation=%q,status=\"%d\"}", name, status)
				e.add("petstore_requests_total", labels, float64(n))
			}
		}
		label := fmt.Sprintf("operation=%q,", name)
		e.addHistogram("petstore_request_duration_seconds", label, &op.durations, 1e9)
	}
	for _, code := range slices.Sorted(maps.Keys(s.errors)) {
		n := s.errors[code].Load()
		e.add("petstore_errors_total", fmt.Sprintf("{code=%q}", code), float64(n))
	}
	e.add("petstore_bans_total", "", float64(s.bans.Load()))

	e.add("petstore_known_keys", "", float64(s.keys.known.size.Load()))
	s.limits.measure(e)
	s.keys.known.measure(e, "keys")
	s.store.measure(e)
	e.addProcess()
	return e
}

// stats is the body of GET /stats.json, all that the operator's page shows. It does not ask the
// store, which may hang.
func (s *service) stats() (string, error) {
	s.wanted.Store(true)
	body, err := json.Marshal(map[string]any{
		"uptime":      time.Since(processStart).Seconds(),
		"environment": s.environment(),
		"metrics":     s.metrics().numbers,
		"report":      s.report.Load(),
	})
	return redact(string(body)), err
}

// updateReport reads the report anew, if somebody has asked for it. Much data makes that rarer, so
// that it takes at most a twentieth of the time.
func (s *service) updateReport(ctx context.Context, now time.Time) error {
	if now.Before(s.nextReport) || !s.wanted.Swap(false) {
		return nil
	}
	defer func() { s.nextReport = now.Add(20 * time.Since(now)) }() // also if it fails or panics
	report, err := readReport(ctx, s.store, instantOf(now))
	if err != nil {
		return err
	}
	s.report.Store(report)
	return nil
}
