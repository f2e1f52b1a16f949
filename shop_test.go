package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The shapes on the wire, spelt out once more: a field that is renamed in the
// service must fail here.
type wirePet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

type wireError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Status  int    `json:"status"`
}

// shop is a service under test, and a client with a key that has plenty left.
type shop struct {
	t        *testing.T
	store    *store
	service  *service
	operator *operator        // nil until debug was called
	server   *httptest.Server // nil in fake time
	key      string

	log       logBuffer
	wantError bool // errors in the log are expected
}

// openShop starts a service on a new database; change adjusts its settings.
func openShop(t *testing.T, change ...func(*settings)) *shop {
	s := openShopInFakeTime(t, change...)
	s.server = httptest.NewServer(s.service)
	t.Cleanup(s.server.Close)
	return s
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newKey issues an Enterprise key with the quota.
func (s *shop) newKey(q quota) string {
	s.t.Helper()
	token := newSecret(s.service.keys.prefix == "pet_test_")
	key := &apiKey{
		Name:      "test",
		Plan:      "enterprise",
		account:   account{quota: q},
		CreatedAt: instantOf(time.Now()),
		Test:      s.service.keys.prefix == "pet_test_",
	}
	_, err := insertKey(context.Background(), s.store, key, token.digest(), "true")
	must(s.t, err)
	return string(token)
}

// reply is a response as the client has it.
type reply struct {
	t      *testing.T
	what   string // the request, for messages
	status int
	header http.Header
	body   string
}

// call sends a request with the shop's key. Further arguments are headers
// ("If-None-Match: *"; one without a value removes the header) and the body, if
// it comes last and starts with "=".
func (s *shop) call(method, target string, more ...string) reply {
	s.t.Helper()
	var body io.Reader
	if n := len(more); n > 0 && strings.HasPrefix(more[n-1], "=") {
		body, more = strings.NewReader(more[n-1][1:]), more[:n-1]
	}
	base := "http://shop.invalid"
	if s.server != nil {
		base = s.server.URL
	}
	r, err := http.NewRequest(method, base+target, body)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.key)
	for _, line := range more {
		name, value, _ := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); value == "" || name == "Authorization" {
			r.Header.Del(name)
		}
		if value != "" {
			r.Header.Add(name, value)
		}
	}
	return s.send(r)
}

// get is call with GET, post creates a pet, and list lists pets.
func (s *shop) get(target string, more ...string) reply {
	s.t.Helper()
	return s.call("GET", target, more...)
}

func (s *shop) post(more ...string) reply {
	s.t.Helper()
	return s.call("POST", "/v1/pets", more...)
}

func (s *shop) list(more ...string) reply {
	s.t.Helper()
	return s.call("GET", "/v1/pets", more...)
}

// noKey and withKey are headers for call: without a key, and with another one.
const noKey = "Authorization:"

func withKey(key string) string { return "Authorization: Bearer " + key }

// send sends a request that is ready, and holds the response against what is
// promised of every response.
func (s *shop) send(r *http.Request) reply {
	s.t.Helper()
	var response *http.Response
	if s.server == nil {
		r.RemoteAddr = "192.0.2.1:1234"
		recorder := httptest.NewRecorder()
		s.service.ServeHTTP(recorder, r)
		response = recorder.Result()
		for name, values := range response.Header { // as a client would see it
			delete(response.Header, name)
			response.Header[http.CanonicalHeaderKey(name)] = values
		}
	} else {
		var err error
		if response, err = http.DefaultTransport.RoundTrip(r); err != nil {
			s.t.Fatal(err)
		}
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	response.Body.Close()
	what := r.Method + " " + r.URL.RequestURI()
	a := reply{s.t, what, response.StatusCode, response.Header, string(body)}
	a.promised(r)
	describedRequest(s.t, r, a.status)
	describedResponse(s.t, r, a)
	return a
}

// promised checks what every response keeps: a request id of the service's own,
// the limit headers under /v1, and the Error shape unless it is a success.
func (a reply) promised(r *http.Request) {
	a.t.Helper()
	if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(a.header.Get("X-Request-Id")) {
		a.t.Errorf("%s: X-Request-Id is %q", a.what, a.header.Get("X-Request-Id"))
	}
	if strings.HasPrefix(r.URL.Path+"/", "/v1/") {
		limit, left := a.number("X-RateLimit-Limit"), a.number("X-RateLimit-Remaining")
		if left < 0 || left > limit || a.number("X-RateLimit-Reset") == 0 {
			a.t.Errorf("%s: the headers are %v", a.what, a.header)
		}
		if a.header.Get("RateLimit") == "" || a.header.Get("RateLimit-Policy") == "" {
			a.t.Errorf("%s: no RateLimit or no RateLimit-Policy", a.what)
		}
	}
	if a.status >= 300 && a.status != http.StatusNotModified {
		if got := a.header.Get("Content-Type"); got != "application/json" {
			a.t.Errorf("%s: status %d with Content-Type %q", a.what, a.status, got)
		}
		if r.Method == http.MethodHead {
			return
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(a.body), &fields); err != nil || len(fields) != 3 {
			a.t.Errorf("%s: status %d with body %q", a.what, a.status, a.body)
		}
		if len(a.body) > 4<<10 {
			a.t.Errorf("%.100s: status %d with an Error of %d bytes", a.what, a.status, len(a.body))
		}
		if e := a.err(); e.Status != a.status || e.Message == "" || wireCodes[e.Code] != a.status {
			a.t.Errorf("%s: status %d with error %+v", a.what, a.status, e)
		}
	}
}

func (a reply) number(header string) int64 {
	a.t.Helper()
	n, err := strconv.ParseInt(a.header.Get(header), 10, 64)
	if err != nil {
		a.t.Errorf("%s: %s is %q", a.what, header, a.header.Get(header))
	}
	return n
}

func (a reply) err() (e wireError) {
	a.t.Helper()
	a.decode(&e)
	return e
}

func (a reply) decode(into any) {
	a.t.Helper()
	decoder := json.NewDecoder(strings.NewReader(a.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		a.t.Fatalf("%s: %v in %q", a.what, err, a.body)
	}
}

// is checks the status and, for an error, the code.
func (a reply) is(status int, code ...ErrorCode) reply {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d; body %s", a.what, a.status, status, a.body)
	}
	if len(code) == 1 && a.err().Code != string(code[0]) {
		a.t.Fatalf("%s: code %s, want %s", a.what, a.err().Code, code[0])
	}
	return a
}

// has checks headers ("Vary: Origin"). One without a value must be absent.
func (a reply) has(lines ...string) reply {
	a.t.Helper()
	for _, line := range lines {
		header, want, _ := strings.Cut(line, ":")
		got := strings.Join(a.header.Values(header), "; ")
		if got != strings.TrimSpace(want) {
			a.t.Errorf("%s: %s is %q, want %q", a.what, header, got, want)
		}
	}
	return a
}

// says checks the body, and tells the message of an error.
func (a reply) says(body string) reply {
	a.t.Helper()
	if a.body != body {
		a.t.Errorf("%s: the body is %s, want %s", a.what, a.body, body)
	}
	return a
}

func (a reply) tells(message string) {
	a.t.Helper()
	if got := a.err().Message; got != message {
		a.t.Errorf("%.100s: the message is %q, want %q", a.what, got, message)
	}
}

// lists checks the ids of a page.
func (a reply) lists(ids ...int64) {
	a.t.Helper()
	if got := a.ids(); !slices.Equal(got, ids) {
		a.t.Errorf("%s: the pets are %v, want %v", a.what, got, ids)
	}
}

// stock creates n pets; every third is sold, every third pending.
func (s *shop) stock(n int) {
	s.t.Helper()
	for i := range n {
		status := []PetStatus{Available, Pending, Sold}[i%3]
		pet := NewPet{Name: fmt.Sprint("pet ", i+1), CategoryID: int64(i), Status: status}
		mustCreate(s.t, s.store, pet)
	}
}

func (a reply) ids() []int64 {
	a.t.Helper()
	var pets []wirePet
	a.is(200).decode(&pets)
	ids := []int64{}
	for _, p := range pets {
		ids = append(ids, p.ID)
	}
	return ids
}

func all(int64) bool { return true }

// readyShop is a service in fake time whose store is asked whether it is ready, and
// how often it was asked.
func readyShop(t *testing.T, path string) (srv *service, probes *atomic.Int64) {
	t.Helper()
	st, err := openStore(t.Context(), path, openToServe, testLog)
	must(t, err)
	t.Cleanup(func() { st.Close() })
	probes = &atomic.Int64{}
	st.engine = &watchedEngine{engine: st.engine, check: func(st statement, _ []any) {
		if strings.Contains(st.query, "'probe'") {
			probes.Add(1)
		}
	}}
	return newService(st, settings{}, slog.New(slog.DiscardHandler)), probes
}

// debugCall sends a request to the debug address.
func debugCall(routes http.Handler, path, host string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", path, nil)
	r.Host = host
	routes.ServeHTTP(w, r)
	return w
}
