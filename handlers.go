package main

// The HTTP side: the routes, what stands before each of them, the operations,
// and the one place where an error becomes an answer.

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// service answers all requests.
type service struct {
	store  *store
	keys   *keyring
	limits *limiter
	log    *slog.Logger

	base           string   // the address of /v1 in Location and Link, without a final slash
	successor      []string // the Link of the deprecated operation
	corsOrigins    []string // none turns CORS off; "*" allows all
	clientIPHeader string   // the header a proxy names the caller in; "" for none
	description    document // what /openapi.json answers

	routes    *http.ServeMux
	requestID atomic.Uint64 // the last one; the first is random

	operations []*operationCounts           // what /metrics tells
	other      *operationCounts             // that of them which takes what is no operation
	errors     map[ErrorCode]*atomic.Uint64 // answers by the code of their Error
	bans       atomic.Uint64                // that began
}

func newService(s *store, cfg config, log *slog.Logger) *service {
	srv := &service{
		store: s, keys: newKeyring(s, cfg.staging), limits: newLimiter(s, cfg.banFor), log: log,
		base: "/v1", corsOrigins: cfg.corsOrigins, clientIPHeader: cfg.clientIPHeader,
		description: newDescription(cfg), routes: http.NewServeMux(), errors: map[ErrorCode]*atomic.Uint64{},
	}
	for code := range statusOfCode {
		srv.errors[code] = &atomic.Uint64{}
	}
	if cfg.baseURL != "" {
		srv.base = cfg.baseURL
	}
	srv.successor = []string{"<" + srv.base + `/pets>; rel="successor-version"`}
	var first [8]byte
	_, _ = rand.Read(first[:]) // never fails: crypto/rand ends the process first
	srv.requestID.Store(binary.BigEndian.Uint64(first[:]))
	srv.addRoutes()
	srv.other = srv.counts("other")
	return srv
}

// addRoutes is the whole surface. Everything under /v1 goes through api, the
// answers to unknown paths and methods included, so that nothing there is
// told to a caller without a key and every answer says where the caller stands.
// The names are those under which /metrics counts.
func (s *service) addRoutes() {
	s.routes.Handle("GET /v1/pets", s.api("listPets", s.listPets))
	s.routes.Handle("POST /v1/pets", s.api("createPet", s.createPet))
	s.routes.Handle("GET /v1/pets/{petId}", s.api("getPet", s.getPet)) // deprecated

	s.routes.Handle("/v1/pets", s.api("other", allow("GET, HEAD, POST")))
	s.routes.Handle("/v1/pets/{petId}", s.api("other", allow("GET, HEAD")))
	s.routes.Handle("/v1", s.api("other", notFound))
	s.routes.Handle("/v1/", s.api("other", notFound))

	s.routes.Handle("GET /openapi.json", s.open("openapi", s.describe))
	s.routes.Handle("/openapi.json", s.open("other", allow("GET, HEAD")))
	for _, f := range pageFiles {
		s.routes.Handle("GET "+f.path, s.open("page", f.serve()))
		s.routes.Handle(f.path, s.open("other", allow("GET, HEAD")))
	}
	s.routes.HandleFunc("/", s.elsewhere)
}

// caller is whose request it is, and when it came.
type caller struct {
	key *apiKey
	now time.Time
}

// operation answers a request that was let in. It writes a success itself; an
// error it returns is written by fail.
type operation func(w http.ResponseWriter, r *http.Request, c caller) error

// api stands before every operation: it authenticates, charges the limits, sets
// their headers, and writes the error if there is one.
func (s *service) api(name string, op operation) http.Handler {
	counts := s.counts(name)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := rw.(*response)
		w.counts = counts
		c := caller{now: w.start}
		var err error
		if c.key, err = s.keys.authenticate(r.Header["Authorization"], c.now); err == nil {
			err = s.admit(w, c)
		} else {
			err = s.refuse(w, r, err, c.now)
		}
		if err == nil {
			err = op(w, r, c)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	})
}

// open stands before what needs no key and is not limited.
func (s *service) open(name string, op operation) http.Handler {
	counts := s.counts(name)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(*response).counts = counts
		if err := op(w, r, caller{}); err != nil {
			s.fail(w, r, err)
		}
	})
}

// admit charges the caller's key.
func (s *service) admit(w http.ResponseWriter, c caller) error {
	st, err := s.limits.admit(c.key, c.now)
	if err != nil {
		return err
	}
	st.setHeaders(w.Header())
	if st.banBegins {
		s.bans.Add(1)
		s.log.Warn("key banned", "key", c.key.ID, "for", s.limits.banFor, "request", requestID(w))
	}
	return st.err()
}

// refuse charges the address of a caller without a valid key, and returns the
// reason unless that limit is used up too.
func (s *service) refuse(w http.ResponseWriter, r *http.Request, reason error, now time.Time) error {
	var unauthorized *Error
	if !errors.As(reason, &unauthorized) {
		return reason // the store failed; nobody is to blame
	}
	st := s.limits.address(callerAddress(r, s.clientIPHeader), now, true)
	st.setHeaders(w.Header())
	if err := st.err(); err != nil {
		return err
	}
	challenge := "Bearer"
	if unauthorized.Code == CodeInvalidKey {
		challenge = `Bearer error="invalid_token"` // RFC 6750 section 3.1
	}
	w.Header()["WWW-Authenticate"] = []string{challenge}
	return reason
}

// response knows when its request came, and remembers what became of it.
type response struct {
	http.ResponseWriter
	start  time.Time
	status int              // 0 until it is sent
	counts *operationCounts // of the operation that answers
}

func (w *response) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// ServeHTTP gives the request its id, answers CORS preflights, turns a panic
// into a 500 and counts the answer, around the routes.
func (s *service) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &response{ResponseWriter: rw, start: time.Now(), counts: s.other}
	w.Header()["X-Request-Id"] = []string{s.newRequestID()}
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
		// RFC 9112 section 6.1 wants the connection ended after a request with both a
		// Content-Length and chunks, and after chunks in HTTP/1.0: a proxy may have seen
		// its end elsewhere. net/http hides both cases, so any chunks and any HTTP/1.0 count.
		w.Header()["Connection"] = []string{"close"}
	}
	defer s.answered(w, r)
	defer func() {
		if v := recover(); v != nil {
			s.panicked(w, r, v)
		}
	}()
	switch {
	case len(s.corsOrigins) > 0 && s.cors(w, r):
	case !canonical(r.URL): // the router would redirect, before any key was seen
		s.elsewhere(w, r)
	default:
		s.routes.ServeHTTP(w, r)
	}
}

// answered counts a request, and logs it at debug level.
func (s *service) answered(w *response, r *http.Request) {
	duration := time.Since(w.start)
	w.counts.answers[w.status].Add(1)
	w.counts.durations.observe(int64(duration))
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		// The pattern, not the path or method: a key may have been put there.
		s.log.Debug("request", "request", requestID(w), "route", r.Pattern, "status", w.status, "duration", duration)
	}
}

// operationCounts is what /metrics tells of an operation. An answer that was
// never begun has the status 0.
type operationCounts struct {
	name      string
	answers   [600]atomic.Uint64 // by status
	durations histogram          // nanoseconds
}

// counts are those of the operation with the name, which are made when it is
// first asked for: all are, while the routes are added.
func (s *service) counts(name string) *operationCounts {
	for _, counts := range s.operations {
		if counts.name == name {
			return counts
		}
	}
	counts := &operationCounts{name: name, durations: histogram{bounds: durationBounds}}
	s.operations = append(s.operations, counts)
	return counts
}

// histogram counts observations by their size. A reader may find an
// observation in one of its numbers and not yet in another.
type histogram struct {
	bounds []int64           // the largest value that each bucket takes, ascending
	counts [16]atomic.Uint64 // one for each bound, and one for what is larger
	sum    atomic.Int64
}

// durationBounds are nanoseconds, from 50 microseconds to 10 seconds.
var durationBounds = []int64{50e3, 100e3, 250e3, 500e3, 1e6, 2500e3, 5e6, 10e6, 25e6, 50e6, 100e6, 250e6, 1e9, 2500e6, 10e9}

func (h *histogram) observe(value int64) {
	bucket, _ := slices.BinarySearch(h.bounds, value)
	h.counts[bucket].Add(1)
	h.sum.Add(value)
}

// panicked logs a panic and answers it, if nothing was sent yet.
func (s *service) panicked(w *response, r *http.Request, v any) {
	if v == http.ErrAbortHandler { //nolint:errorlint // a panic value, compared as net/http does
		panic(v)
	}
	s.log.Error("panic", "request", requestID(w), "value", fmt.Sprint(v), "stack", string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // all that is left is to cut the answer off
	}
	s.fail(w, r, internalError(w))
}

// internalError tells the client nothing but where to find out more.
func internalError(w http.ResponseWriter) *Error {
	return newError(CodeInternalError, "something went wrong here; the request id is %s", requestID(w))
}

// newRequestID counts on from a random number: unique in this process, and
// most likely everywhere.
func (s *service) newRequestID() string {
	var id [8]byte
	binary.BigEndian.PutUint64(id[:], s.requestID.Add(1))
	var text [2 * len(id)]byte
	hex.Encode(text[:], id[:])
	return string(text[:])
}

func requestID(w http.ResponseWriter) string { return w.Header()["X-Request-Id"][0] }

// canonical reports whether the router takes the path as it is.
func canonical(u *url.URL) bool {
	p := u.EscapedPath()
	clean := path.Clean(p)
	return strings.HasPrefix(p, "/") && (p == clean || p == clean+"/" && clean != "/")
}

func underAPI(r *http.Request) bool {
	return r.URL.Path == "/v1" || strings.HasPrefix(r.URL.Path, "/v1/")
}

// exposed are the headers that scripts of other origins may read.
const exposed = "Allow, Deprecation, ETag, Idempotency-Replayed, Link, Location, RateLimit, RateLimit-Policy, Retry-After, Sunset, WWW-Authenticate, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-Request-Id"

// cors sets the headers of the Fetch standard for an allowed origin, and
// reports whether the request was a preflight and is answered.
func (s *service) cors(w http.ResponseWriter, r *http.Request) bool {
	h := w.Header()
	origin := r.Header.Get("Origin")
	if slices.Contains(s.corsOrigins, "*") {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Vary", "Origin")
		if !slices.Contains(s.corsOrigins, origin) {
			return false
		}
		h.Set("Access-Control-Allow-Origin", origin)
	}
	h.Set("Access-Control-Expose-Headers", exposed)
	if r.Method != http.MethodOptions || origin == "" || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, If-None-Match")
	h.Set("Access-Control-Max-Age", "86400")
	s.showAddress(w, r)
	w.WriteHeader(http.StatusNoContent)
	return true
}

// showAddress sets the limit headers of an answer that nobody is charged for.
func (s *service) showAddress(w http.ResponseWriter, r *http.Request) {
	if underAPI(r) {
		s.limits.address(callerAddress(r, s.clientIPHeader), time.Now(), false).setHeaders(w.Header())
	}
}

// fail writes an error. Only an *Error reaches the client as it is; others are
// logged, and become 503 if the store could not commit and 500 otherwise.
func (s *service) fail(w http.ResponseWriter, r *http.Request, err error) {
	h := w.Header()
	if len(h["X-RateLimit-Limit"]) == 0 { //nolint:staticcheck // SA1008: spelt as in the specification
		s.showAddress(w, r)
	}
	var answer *Error
	switch {
	case errors.As(err, &answer):
	case errors.Is(err, errUnavailable):
		s.log.Error("store unavailable", "request", requestID(w), "error", err)
		h.Set("Retry-After", "1")
		answer = newError(CodeUnavailable, "the request could not be stored now; try again")
	default:
		s.log.Error("internal error", "request", requestID(w), "error", err)
		answer = internalError(w)
	}
	s.errors[answer.Code].Add(1)
	body, err := json.Marshal(answer)
	if err != nil {
		panic(err) // two strings and a number
	}
	writeJSON(w, answer.Status, body)
}

var jsonType = []string{"application/json"}

func writeJSON(w http.ResponseWriter, status int, body []byte) { write(w, status, jsonType, body) }

// write sends an answer. An error in sending means that the client has gone,
// and there is nobody to tell.
func write(w http.ResponseWriter, status int, contentType []string, body []byte) {
	h := w.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // JSON, or a page that is embedded
}

// writeDocument sends a 200, or a 304 if the client has the document already
// (RFC 9110 section 13.1.2).
func writeDocument(w http.ResponseWriter, r *http.Request, contentType []string, d *document) {
	w.Header()["ETag"] = d.etag
	for _, value := range r.Header["If-None-Match"] {
		for tag := range strings.SplitSeq(value, ",") {
			if tag = strings.TrimSpace(tag); tag == "*" || strings.TrimPrefix(tag, "W/") == d.etag[0] {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
	}
	write(w, http.StatusOK, contentType, d.body)
}

func notFound(http.ResponseWriter, *http.Request, caller) error {
	return newError(CodeNotFound, "there is nothing at this address")
}

// elsewhere answers what no other route takes. Only under /v1 a key is asked for.
func (s *service) elsewhere(w http.ResponseWriter, r *http.Request) {
	if underAPI(r) {
		s.api("other", notFound).ServeHTTP(w, r)
	} else {
		s.open("other", notFound).ServeHTTP(w, r)
	}
}

//go:embed web/openapi.json
var openAPI []byte

// ownServer is how web/openapi.json says where the service is: wherever the
// description was fetched from.
const ownServer = `{"url": "/v1", "description": "This instance"}`

// newDescription is the OpenAPI description, with the public addresses as its
// servers where they are known.
func newDescription(cfg config) document {
	servers, name := ownServer, "Production"
	if cfg.staging {
		name = "Staging"
	}
	if cfg.baseURL != "" {
		servers = fmt.Sprintf(`{"url": %q, "description": %q}`, cfg.baseURL, name)
	}
	if cfg.stagingURL != "" && !cfg.staging {
		servers += fmt.Sprintf(`, {"url": %q, "description": "Staging"}`, cfg.stagingURL)
	}
	return newDocument(bytes.Replace(openAPI, []byte(ownServer), []byte(servers), 1), '.')
}

// describe is GET /openapi.json.
func (s *service) describe(w http.ResponseWriter, r *http.Request, _ caller) error {
	writeDocument(w, r, jsonType, &s.description)
	return nil
}

// pageFile is one file of the page for people.
type pageFile struct {
	path, contentType string
	body              []byte
}

var (
	//go:embed web/index.html
	pageHTML []byte
	//go:embed web/page.css
	pageCSS []byte
	//go:embed web/page.js
	pageJS []byte

	pageFiles = []pageFile{
		{"/{$}", "text/html; charset=utf-8", pageHTML},
		{"/page.css", "text/css; charset=utf-8", pageCSS},
		{"/page.js", "text/javascript; charset=utf-8", pageJS},
	}
)

// pagePolicy is what a browser lets the page do, whatever text of a stranger it
// shows: run its own script and wear its own style sheet, nothing inline; call
// this service, and so send the key nowhere else; show its icon, which is part of
// it. It cannot be framed by another page, or have its relative addresses or its
// forms pointed elsewhere.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// serve makes the operation that answers the file.
func (f pageFile) serve() operation {
	d := newDocument(f.body, '.')
	return func(w http.ResponseWriter, r *http.Request, _ caller) error {
		h := w.Header()
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Content-Type-Options", "nosniff") // no file is taken for another type
		h.Set("Referrer-Policy", "no-referrer")    // no other site learns where the service is
		writeDocument(w, r, []string{f.contentType}, &d)
		return nil
	}
}

// allow answers the methods that a path does not have.
func allow(methods string) operation {
	return func(w http.ResponseWriter, r *http.Request, _ caller) error {
		w.Header().Set("Allow", methods)
		return newError(CodeMethodNotAllowed, "this address takes %s", methods)
	}
}

// parseQuery reads a query string as net/url does, but hands the parameters
// over one by one. Names other than the known ones, and names given twice, are
// errors: a misspelt filter must not return everything.
func parseQuery(raw string, known []string, set func(name, value string) error) error {
	var given uint64 // a bit for each of the known
	for pair := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(pair, "=")
		name, nameErr := url.QueryUnescape(name)
		value, valueErr := url.QueryUnescape(value)
		if err := errors.Join(nameErr, valueErr); err != nil || strings.Contains(pair, ";") {
			return newError(CodeInvalidParameter, "the query string cannot be parsed at %q", redact(pair))
		}
		if pair == "" {
			continue
		}
		i := slices.Index(known, name)
		if i < 0 {
			return newError(CodeInvalidParameter, "%q is not a query parameter of this operation", redact(name))
		}
		if given&(1<<i) != 0 {
			return newError(CodeInvalidParameter, "%s is given more than once", name)
		}
		given |= 1 << i
		if err := set(name, value); err != nil {
			return err
		}
	}
	return nil
}

// refuseQuery is for operations without query parameters.
func refuseQuery(r *http.Request) error { return parseQuery(r.URL.RawQuery, nil, nil) }

// pageRequest is the checked query of listPets.
type pageRequest struct {
	limit      int
	limitGiven bool
	status     PetStatus // "" for all
	after      int64     // list ids above this one
}

const defaultLimit = 20

var listParameters = []string{"limit", "status", "after"}

// parsePageRequest checks the query of listPets. Nothing is clamped: a client
// that asks for 1000 and gets 100 would take them for all.
func parsePageRequest(r *http.Request) (pageRequest, error) {
	p := pageRequest{limit: defaultLimit}
	err := parseQuery(r.URL.RawQuery, listParameters, func(name, value string) (err error) {
		switch name {
		case "limit":
			if p.limit, err = strconv.Atoi(value); err != nil || p.limit < 1 || p.limit > maxLimit {
				return newError(CodeInvalidParameter, "limit must be an integer from 1 to %d", maxLimit)
			}
			p.limitGiven = true
		case "status":
			var ok bool
			if p.status, ok = parseStatus(value); !ok {
				return newError(CodeInvalidParameter, "status must be one of available, pending, sold")
			}
		case "after":
			if p.after, err = strconv.ParseInt(value, 10, 64); err != nil || p.after < 0 {
				return newError(CodeInvalidParameter, "after must be an integer of at least 0")
			}
		}
		return nil
	})
	return p, err
}

// next is the Link to the page after last, with the parameters that were given.
func (p pageRequest) next(base string, last int64) []string {
	b := make([]byte, 0, 128)
	b = append(append(append(b, '<'), base...), "/pets?"...)
	if p.limitGiven {
		b = append(strconv.AppendInt(append(b, "limit="...), int64(p.limit), 10), '&')
	}
	if p.status != "" {
		b = append(append(append(b, "status="...), p.status...), '&')
	}
	b = strconv.AppendInt(append(b, "after="...), last, 10)
	return []string{string(append(b, `>; rel="next"`...))}
}

// listPets is GET /v1/pets: a page of animals by ascending id. A Link header
// with rel "next" (RFC 8288) tells that there are more, and where.
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
		w.Header()["Link"] = req.next(s.base, page.last)
	}
	writeDocument(w, r, jsonType, &page.document)
	return nil
}

// createPet is POST /v1/pets. The animal is on disk before the 201 is written.
func (s *service) createPet(w http.ResponseWriter, r *http.Request, c caller) error {
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
		id, replayed, reused, err = s.store.createPetOnce(pet, c.key.ID, idempotencyKey, body, c.now)
	}
	if err != nil {
		return err
	}
	if reused {
		return newError(CodeIdempotencyKeyReused, "the Idempotency-Key was used with another body in the last 24 hours")
	}
	answer := Pet{ID: id, NewPet: pet}.appendJSON(make([]byte, 0, 128))
	h := w.Header()
	if replayed {
		h["Idempotency-Replayed"] = []string{"true"}
	}
	if c.now.Before(sunset) {
		h["Location"] = []string{s.base + "/pets/" + strconv.FormatInt(id, 10)}
	}
	writeJSON(w, http.StatusCreated, answer)
	return nil
}

// readBody reads a JSON body of at most maxBody bytes.
func readBody(r *http.Request) ([]byte, error) {
	if value := r.Header.Get("Content-Type"); value != "" {
		if mediaType, _, err := mime.ParseMediaType(value); err != nil || mediaType != "application/json" {
			return nil, newError(CodeUnsupportedMediaType, "the body must be application/json")
		}
	}
	var body []byte
	var err error
	if r.ContentLength <= maxBody {
		body, err = io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	}
	if r.ContentLength > maxBody || len(body) > maxBody {
		return nil, newError(CodeBodyTooLarge, "the body must have at most %d bytes", maxBody)
	}
	if err != nil {
		return nil, newError(CodeInvalidBody, "the body did not arrive whole and in time")
	}
	return body, nil
}

// parseIdempotencyKey returns the header, or "" if there is none.
func parseIdempotencyKey(r *http.Request) (string, error) {
	values := r.Header["Idempotency-Key"]
	if len(values) == 0 {
		return "", nil
	}
	invisible := func(c rune) bool { return c <= ' ' || c > '~' }
	if len(values) > 1 || values[0] == "" || len(values[0]) > 255 || strings.ContainsFunc(values[0], invisible) {
		return "", newError(CodeInvalidParameter, "Idempotency-Key must be one value of 1 to 255 visible ASCII characters")
	}
	return values[0], nil
}

// The dates of the deprecated operation. The specification gives that of its
// removal only.
var (
	deprecated = time.Date(2026, time.November, 20, 0, 0, 0, 0, time.UTC)
	sunset     = time.Date(2030, time.December, 5, 0, 0, 0, 0, time.UTC)

	deprecationHeader = []string{"@" + strconv.FormatInt(deprecated.Unix(), 10)} // RFC 9745
	sunsetHeader      = []string{sunset.Format(http.TimeFormat)}                 // RFC 8594
)

// getPet is GET /v1/pets/{petId}.
//
// Deprecated: clients use GET /v1/pets with the status filter. From 5 December
// 2030 it answers 410, by the clock, without a new release.
func (s *service) getPet(w http.ResponseWriter, r *http.Request, c caller) error {
	s.limits.noteDeprecated(c.key, c.now)
	removed := !c.now.Before(sunset)
	if err := refuseQuery(r); err != nil && !removed {
		return err
	}
	var pet *document
	if id, ok := parseID(r.PathValue("petId")); ok && !removed {
		var err error
		if pet, err = s.store.pet(id); err != nil {
			return err
		}
	}
	h := w.Header()
	h["Deprecation"] = deprecationHeader
	h["Sunset"] = sunsetHeader
	h["Link"] = s.successor
	if removed {
		return newError(CodeOperationRemoved, "this operation was removed on %s; use GET /v1/pets", sunset.Format("2 January 2006"))
	}
	if pet == nil {
		return newError(CodeNotFound, "there is no animal with this id")
	}
	writeDocument(w, r, jsonType, pet)
	return nil
}

// parseID takes a positive int64 in its one canonical spelling.
func parseID(s string) (id int64, ok bool) {
	id, err := strconv.ParseInt(s, 10, 64)
	return id, err == nil && id > 0 && s[0] != '0' && s[0] != '+'
}
