package main

// The HTTP contract, as a client sees it. Nearly all tests speak to a real
// server over loopback; those about the calendar call the handler in fake time.

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// wireCodes are the error codes that clients know, with their statuses.
var wireCodes = map[string]int{
	"invalid_body": 400, "invalid_parameter": 400, "missing_key": 401, "invalid_key": 401, "not_found": 404,
	"method_not_allowed": 405, "operation_removed": 410, "body_too_large": 413, "unsupported_media_type": 415,
	"idempotency_key_reused": 422, "rate_limited": 429, "key_banned": 429, "internal_error": 500, "unavailable": 503,
}

// shop is a service under test, and a client with a key that has plenty left.
type shop struct {
	t       *testing.T
	store   *store
	service *service
	server  *httptest.Server // nil in fake time
	key     string

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

// shopDB names a new database for a shop: a file, but for TestTheContractOnACluster.
var shopDB = storePath

// TestTheContractOnACluster runs what clients rely on, and the store has a part in, again.
func TestTheContractOnACluster(t *testing.T) {
	defer func(before func(testing.TB) string) { shopDB = before }(shopDB)
	shopDB = func(t testing.TB) string { return rqliteNew(t, 3).addresses() }
	for what, test := range map[string]func(t *testing.T){
		"pets":           TestAPetIsReturnedAsItWasCreated,
		"ids":            TestIDsCountFromOneAndStatusDefaultsToAvailable,
		"an empty list":  TestAnEmptyShopListsAnEmptyArray,
		"lists":          TestListing,
		"links":          TestFollowingLinkVisitsEveryPetOnce,
		"new pets":       TestAListShowsWhatWasJustCreated,
		"conditions":     TestConditionalRequests,
		"ETags":          TestTheETagChangesWithTheListAndWithItsLink,
		"unknown pets":   TestUnknownPetsAreNotFound,
		"keys":           TestEveryRequestNeedsAKey,
		"staging":        TestAStagingInstanceTakesOnlyTestKeys,
		"parallel use":   TestOf200ParallelRequestsExactly100AreAdmitted,
		"deprecation":    TestTheOperatorSeesWhoUsesTheDeprecatedOperation,
		"repeats":        TestARepeatedCreationIsReplayed,
		"parallel ones":  TestParallelRepeatsGiveOnePet,
		"keys of theirs": TestIdempotencyKeysAre1To255VisibleASCIICharacters,
	} {
		t.Run(what, test)
	}
}

// openShopInFakeTime is for tests inside synctest: requests go to the handler itself.
func openShopInFakeTime(t *testing.T, change ...func(*settings)) *shop {
	t.Helper()
	set := settings{banFor: 10 * time.Minute}
	for _, c := range change {
		c(&set)
	}
	s := &shop{t: t}
	var err error
	if s.store, err = openStore(t.Context(), shopDB(t), forNewKey, testLog); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.store.Close() })
	s.service = newService(s.store, set, slog.New(slog.NewJSONHandler(&s.log, nil)))
	s.key = s.newKey(quota{1_000_000, 1_000_000})
	t.Cleanup(func() {
		if log := s.log.String(); !s.wantError && strings.Contains(log, `"level":"ERROR"`) {
			t.Errorf("errors in the log:\n%s", log)
		}
	})
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
	key := &apiKey{Name: "test", Plan: "enterprise", account: account{quota: q}, CreatedAt: instantOf(time.Now()), Test: s.service.keys.prefix == "pet_test_"}
	if _, err := insertKey(context.Background(), s.store, key, token, false); err != nil {
		s.t.Fatal(err)
	}
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
		if value = strings.TrimSpace(value); value == "" {
			r.Header.Del(name)
		} else {
			r.Header.Add(name, value)
		}
	}
	return s.send(r)
}

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
	a := reply{s.t, r.Method + " " + r.URL.RequestURI(), response.StatusCode, response.Header, string(body)}
	a.promised(r)
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
			a.t.Errorf("%s: %d of %d left until %s", a.what, left, limit, a.header.Get("X-RateLimit-Reset"))
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

// has checks a header; an empty want means that it must be absent.
func (a reply) has(header, want string) reply {
	a.t.Helper()
	if got := strings.Join(a.header.Values(header), "; "); got != want {
		a.t.Errorf("%s: %s is %q, want %q", a.what, header, got, want)
	}
	return a
}

// file is the engine, for faults.
func (s *shop) file() *sqliteFile { return s.store.engine.(*sqliteFile) }

func (s *shop) create(body string, headers ...string) wirePet {
	s.t.Helper()
	var p wirePet
	s.call("POST", "/v1/pets", append(headers, "="+body)...).is(201).decode(&p)
	return p
}

// stock creates n pets; every third is sold, every third pending.
func (s *shop) stock(n int) {
	s.t.Helper()
	for i := range n {
		status := []PetStatus{Available, Pending, Sold}[i%3]
		if _, err := s.store.createPet(NewPet{Name: fmt.Sprint("pet ", i+1), CategoryID: int64(i), Status: status}); err != nil {
			s.t.Fatal(err)
		}
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

func upTo(n int64, keep func(int64) bool) []int64 {
	ids := []int64{}
	for id := int64(1); id <= n; id++ {
		if keep(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func all(int64) bool { return true }

// Operations

func TestAPetIsReturnedAsItWasCreated(t *testing.T) {
	s := openShop(t)
	a := s.call("POST", "/v1/pets", `={"name":"Rex \"the\" \\dog\\ <&> 🐶","categoryId":-9223372036854775808,"status":"sold"}`)
	want := `{"id":1,"name":"Rex \"the\" \\dog\\ <&> 🐶","categoryId":-9223372036854775808,"status":"sold"}`
	if a.is(201).body != want {
		t.Errorf("created %s, want %s", a.body, want)
	}
	a.has("Location", "/v1/pets/1").has("Content-Type", "application/json").has("Content-Length", strconv.Itoa(len(want)))
	if got := s.call("GET", "/v1/pets/1").is(200).body; got != want {
		t.Errorf("fetched %s, want %s", got, want)
	}
	if got := s.call("GET", "/v1/pets").is(200).body; got != "["+want+"]" {
		t.Errorf("listed %s, want %s", got, "["+want+"]")
	}
}

func TestIDsCountFromOneAndStatusDefaultsToAvailable(t *testing.T) {
	s := openShop(t)
	for want := int64(1); want <= 3; want++ {
		if p := s.create(`{"name":"Tom","categoryId":7}`); p != (wirePet{want, "Tom", 7, "available"}) {
			t.Errorf("created %+v", p)
		}
	}
	if ids := s.call("GET", "/v1/pets?status=available").ids(); !slices.Equal(ids, []int64{1, 2, 3}) {
		t.Errorf("the filter finds %v", ids)
	}
}

func TestAnEmptyShopListsAnEmptyArray(t *testing.T) {
	s := openShop(t)
	for _, query := range []string{"", "?status=sold", "?after=5", "?limit=1"} {
		if a := s.call("GET", "/v1/pets"+query).is(200).has("Link", ""); a.body != "[]" {
			t.Errorf("%s: %s", query, a.body)
		}
	}
}

func TestListing(t *testing.T) {
	s := openShop(t)
	s.stock(150)
	sold := func(id int64) bool { return id%3 == 0 }
	for _, test := range []struct {
		query string
		ids   []int64
		next  string // the Link's query, "" for none
	}{
		{"", upTo(20, all), "?after=20"},
		{"?limit=20", upTo(20, all), "?limit=20&after=20"},
		{"?limit=1", upTo(1, all), "?limit=1&after=1"},
		{"?limit=100", upTo(100, all), "?limit=100&after=100"},
		{"?limit=100&after=50", upTo(150, func(id int64) bool { return id > 50 }), ""},
		{"?limit=100&after=51", upTo(150, func(id int64) bool { return id > 51 }), ""},
		{"?after=0&limit=2", []int64{1, 2}, "?limit=2&after=2"},
		{"?after=140", upTo(150, func(id int64) bool { return id > 140 }), ""},
		{"?after=150", []int64{}, ""},
		{"?after=9223372036854775807", []int64{}, ""},
		{"?status=sold", upTo(60, sold), "?status=sold&after=60"},
		{"?status=sold&limit=50", upTo(150, sold), ""},
		{"?status=sold&limit=49", upTo(147, sold), "?limit=49&status=sold&after=147"},
		{"?limit=2&status=pending&after=3", []int64{5, 8}, "?limit=2&status=pending&after=8"},
		{"?status=available&after=146", []int64{148}, ""},
		{"?&limit=2&&status=pending&after=3&", []int64{5, 8}, "?limit=2&status=pending&after=8"},
	} {
		a := s.call("GET", "/v1/pets"+test.query)
		if got := a.ids(); !slices.Equal(got, test.ids) {
			t.Errorf("%s lists %v, want %v", test.query, got, test.ids)
		}
		link := ""
		if test.next != "" {
			link = "</v1/pets" + test.next + `>; rel="next"`
		}
		a.has("Link", link)
	}
}

func TestFollowingLinkVisitsEveryPetOnce(t *testing.T) {
	s := openShop(t)
	s.stock(45)
	next, visited := "/v1/pets?limit=7&status=pending", []int64{}
	for range 10 {
		a := s.call("GET", next)
		visited = append(visited, a.ids()...)
		link := a.header.Get("Link")
		if link == "" {
			break
		}
		next = strings.TrimSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
		s.stock(1) // new pets join at the end and disturb no page
	}
	if want := upTo(47, func(id int64) bool { return id <= 45 && id%3 == 2 }); !slices.Equal(visited, want) {
		t.Errorf("visited %v, want %v", visited, want)
	}
}

func TestAListShowsWhatWasJustCreated(t *testing.T) {
	s := openShop(t)
	for want := int64(1); want <= 5; want++ {
		s.create(`{"name":"new","categoryId":1}`)
		if ids := s.call("GET", "/v1/pets?status=available").ids(); int64(len(ids)) != want {
			t.Fatalf("after %d creations the list has %v", want, ids)
		}
	}
}

func TestBaseURLMakesAddressesAbsolute(t *testing.T) {
	s := openShop(t, func(c *settings) { c.baseURL = "https://api.example.com/shop/v1" })
	s.stock(2)
	s.call("POST", "/v1/pets", `={"name":"x","categoryId":1}`).is(201).has("Location", "https://api.example.com/shop/v1/pets/3")
	s.call("GET", "/v1/pets?limit=1").is(200).has("Link", `<https://api.example.com/shop/v1/pets?limit=1&after=1>; rel="next"`)
	s.call("GET", "/v1/pets/1", "Host: evil.example").is(200).has("Link", `<https://api.example.com/shop/v1/pets>; rel="successor-version"`)
}

func TestHEADIsGETWithoutABody(t *testing.T) {
	s := openShop(t)
	s.stock(30)
	for _, target := range []string{"/v1/pets?limit=5", "/v1/pets/3", "/v1/pets/99", "/v1/nowhere", "/v1/pets?limit=x"} {
		get, head := s.call("GET", target), s.call("HEAD", target)
		head.is(get.status)
		for _, name := range []string{"Content-Type", "Content-Length", "ETag", "Link", "Deprecation", "Sunset"} {
			head.has(name, get.header.Get(name))
		}
		if head.body != "" {
			t.Errorf("HEAD %s has the body %q", target, head.body)
		}
	}
}

func TestConditionalRequests(t *testing.T) {
	s := openShop(t)
	s.stock(2)
	for _, target := range []string{"/v1/pets", "/v1/pets?limit=1", "/v1/pets?after=1", "/v1/pets/2"} {
		first := s.call("GET", target).is(200)
		etag, link := first.header.Get("ETag"), first.header.Get("Link")
		if !regexp.MustCompile(`^"[!#-~]+"$`).MatchString(etag) {
			t.Fatalf("%s: ETag is %s", target, etag)
		}
		for _, match := range []string{etag, "*", "W/" + etag, `"other", ` + etag, `"a"` + "," + etag + `,"b"`} {
			if a := s.call("GET", target, "If-None-Match: "+match).is(304).has("ETag", etag).has("Link", link); a.body != "" {
				t.Errorf("304 with the body %q", a.body)
			}
		}
		s.call("HEAD", target, "If-None-Match: "+etag).is(304)
		s.call("GET", target, `If-None-Match: "other"`, "If-None-Match: "+etag).is(304)
		s.call("GET", target, `If-None-Match: "other"`).is(200)
		s.call("GET", target, "If-None-Match: "+strings.Trim(etag, `"`)).is(200)
	}
}

func TestTheETagChangesWithTheListAndWithItsLink(t *testing.T) {
	s := openShop(t)
	s.stock(2)
	before := s.call("GET", "/v1/pets?limit=2").has("Link", "").header.Get("ETag")
	s.stock(1)
	// The same two pets, but now there is a next page to be reported.
	after := s.call("GET", "/v1/pets?limit=2", "If-None-Match: "+before).is(200).header.Get("ETag")
	if before == after {
		t.Error("a client that keeps the old response never learns of the next page")
	}
}

// What is wrong with a request

func TestListParametersAreRefusedByName(t *testing.T) {
	s := openShop(t)
	for query, names := range map[string]string{
		"limit=0": "limit", "limit=101": "limit", "limit=-1": "limit", "limit=": "limit", "limit=ten": "limit",
		"limit=1.0": "limit", "limit=1e1": "limit", "limit=99999999999999999999": "limit", "limit=5&limit=5": "limit", "limit=5&status=sold&limit=5": "limit",
		"status=": "status", "status=Sold": "status", "status=gone": "status", "status=sold&status=sold": "status",
		"status=sold,pending": "status", "after=-1": "after", "after=x": "after", "after=": "after",
		"after=9223372036854775808": "after", "after=1&after=2": "after",
		"page=2": "page", "Limit=5": "Limit", "limit=5&offset=1": "offset", "=": `""`,
		"%zz": "query", "limit=5;status=sold": "query", "limit=%": "query",
	} {
		e := s.call("GET", "/v1/pets?"+query).is(400, CodeInvalidParameter).err()
		if !strings.Contains(e.Message, names) {
			t.Errorf("%s: the message %q does not name %s", query, e.Message, names)
		}
	}
	for _, query := range []string{"limit=%31%30", "status=s%6Fld", "limit=+5", "limit=005"} {
		status := s.call("GET", "/v1/pets?"+query).status
		if want := map[bool]int{true: 200, false: 400}[!strings.Contains(query, "+")]; status != want {
			t.Errorf("%s: status %d, want %d", query, status, want)
		}
	}
}

// TestOneResponseNamesEveryProblemOfTheQuery, as it does for a body.
func TestOneResponseNamesEveryProblemOfTheQuery(t *testing.T) {
	s := openShop(t)
	const limit, status = "limit must be an integer from 1 to 100", "status must be one of available, pending, sold"
	for query, want := range map[string]string{
		"limit=0&status=gone":   limit + "; " + status,
		"after=-1&status=gone":  status + "; after must be an integer of at least 0",
		"limit=0&page=2&size=3": `"page" is not a query parameter of this operation; "size" is not a query parameter of this operation; ` + limit,
		"limit=0&limit=5":       "limit is given more than once; " + limit,
		"a;b&status=gone":       "the query string cannot be parsed: invalid semicolon separator in query; " + status,
		"%zz&limit=0":           `the query string cannot be parsed: invalid URL escape "%zz"; ` + limit,
	} {
		e := s.call("GET", "/v1/pets?"+query).is(400, CodeInvalidParameter).err()
		if e.Message != want {
			t.Errorf("%s: the message is %q, want %q", query, e.Message, want)
		}
	}
	e := s.call("GET", "/v1/pets/1?a=1&b=2").is(400, CodeInvalidParameter).err()
	if !strings.Contains(e.Message, `"a" is not`) || !strings.Contains(e.Message, `"b" is not`) {
		t.Errorf("the message is %q", e.Message)
	}
}

func TestOtherOperationsTakeNoQuery(t *testing.T) {
	s := openShop(t)
	s.stock(1)
	for _, query := range []string{"a=1", "%zz", "x;y", "limit=5"} {
		s.call("POST", "/v1/pets?"+query, `={"name":"x","categoryId":1}`).is(400, CodeInvalidParameter)
		s.call("GET", "/v1/pets/1?"+query).is(400, CodeInvalidParameter).has("Sunset", "")
	}
	if ids := s.call("GET", "/v1/pets").ids(); len(ids) != 1 {
		t.Errorf("a refused creation has left %v", ids)
	}
}

func TestOneResponseNamesEveryProblemOfTheBody(t *testing.T) {
	s := openShop(t)
	e := s.call("POST", "/v1/pets", `={"name":"","categoryId":1.5,"status":"lost","nmae":"x"}`).is(400, CodeInvalidBody).err()
	for _, want := range []string{"name: must not be blank", "categoryId: must be an integer", "status: must be one of", `"nmae": is unknown`} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("the message %q lacks %q", e.Message, want)
		}
	}
	e = s.call("POST", "/v1/pets", `={}`).is(400, CodeInvalidBody).err()
	if e.Message != "name: is required; categoryId: is required" {
		t.Errorf("the response to an empty object is %q", e.Message)
	}
	s.call("POST", "/v1/pets").is(400, CodeInvalidBody)
	if body := s.call("GET", "/v1/pets").is(200).body; body != "[]" {
		t.Errorf("refused bodies have left %s", body)
	}
}

// TestAMessageIsBounded: it quotes 100 characters of what was sent, names 20 problems and
// says how many more there are. That no Error is longer than 4 KB, promised checks of each.
func TestAMessageIsBounded(t *testing.T) {
	s := openShop(t)
	const required = "name: is required; categoryId: is required"
	message := func(body string) string {
		t.Helper()
		return s.call("POST", "/v1/pets", "="+body).is(400, CodeInvalidBody).err().Message
	}
	for _, c := range []string{"x", "é", "🐈"} {
		for length, quoted := range map[int]string{100: strings.Repeat(c, 100), 101: strings.Repeat(c, 100) + "…", 9000: strings.Repeat(c, 100) + "…"} {
			want := `"` + quoted + `": is unknown; ` + required
			if got := message(`{"` + strings.Repeat(c, length) + `":1}`); got != want {
				t.Errorf("of %d %s the message is %q", length, c, got)
			}
		}
	}
	fields := func(n int, name string) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(`"%s%d":1`, name, i)
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	for n, end := range map[int]string{18: "; " + required, 19: `; name: is required; and 1 more`, 20: "; and 2 more", 5000: "; and 4982 more"} {
		problems := strings.Split(message(fields(n, "f")), "; ")
		if got := strings.Join(problems, "; "); !strings.HasSuffix(got, end) || len(problems) > 21 {
			t.Errorf("of %d unknown fields the message is %q", n, got)
		}
	}
	// What takes most room in JSON: there it is escaped, or escaped twice.
	for _, c := range []string{"<", `\u0000`, `\u2028`, "\U0010ffff", `\\`, `\"`} {
		got := message(fields(30, strings.Repeat(c, 120)))
		named, more, told := strings.Cut(got, "; and ")
		if n := strings.Count(named, ": is unknown"); !told || more != strconv.Itoa(32-n)+" more" {
			t.Errorf("with fields of %q %d are named, and %q", c, n, more)
		}
	}
	quoted := strings.Repeat("<", 100) + "…"
	e := s.call("GET", "/v1/pets?"+strings.Repeat("%3C", 4000)).is(400, CodeInvalidParameter).err()
	if e.Message != `"`+quoted+`" is not a query parameter of this operation` {
		t.Errorf("the message is %q", e.Message)
	}
	// A secret is taken out before the text is cut, or the @ that ends a password would be missing.
	e = s.call("GET", "/v1/pets?"+url.QueryEscape("https://anna:hush"+strings.Repeat("x", 200)+"@n1")).is(400).err()
	if e.Message != `"https://…n1" is not a query parameter of this operation` {
		t.Errorf("the message is %q", e.Message)
	}
}

func TestMediaTypes(t *testing.T) {
	s := openShop(t)
	for contentType, status := range map[string]int{
		"": 201, "application/json": 201, "application/json; charset=utf-8": 201, "Application/JSON;charset=UTF-8": 201,
		"text/plain": 415, "application/xml": 415, "application/x-www-form-urlencoded": 415, "application/jsonp": 415,
		"application/json; =": 415, "json": 415, "application/problem+json": 415,
	} {
		if got := s.call("POST", "/v1/pets", "Content-Type: "+contentType, `={"name":"x","categoryId":1}`).status; got != status {
			t.Errorf("Content-Type %q: status %d, want %d", contentType, got, status)
		}
	}
	const body = `={"name":"x","categoryId":1}`
	for _, second := range []string{"application/json", "text/plain"} {
		s.call("POST", "/v1/pets", "Content-Type: application/json", "Content-Type: "+second, body).
			is(415, CodeUnsupportedMediaType).has("Accept-Encoding", "")
	}
	s.call("POST", "/v1/pets", "Content-Type: application/json, application/json", body).is(415)
}

// TestABodyIsNotEncoded: a body that was packed would be read as what it is not.
func TestABodyIsNotEncoded(t *testing.T) {
	s := openShop(t)
	const body = `={"name":"x","categoryId":1}`
	for _, coding := range []string{"identity", "Identity", " identity "} {
		s.call("POST", "/v1/pets", "Content-Encoding: "+coding, body).is(201).has("Accept-Encoding", "")
	}
	for _, coding := range []string{"gzip", "GZIP", "br", "unknown", "identity, gzip", "gzip, identity", "identity;q=1"} {
		s.call("POST", "/v1/pets", "Content-Encoding: "+coding, body).is(415, CodeUnsupportedMediaType).
			has("Accept-Encoding", "identity")
	}
	s.call("POST", "/v1/pets", "Content-Encoding: identity", "Content-Encoding: gzip", body).is(415)
	large := "=" + strings.Repeat("x", 64<<10+1)
	s.call("POST", "/v1/pets?bad=1", "Content-Encoding: gzip", large).is(415)
}

func TestBodiesHaveAtMost64KiB(t *testing.T) {
	s := openShop(t)
	fits := `{"name":"x","categoryId":1}` + strings.Repeat(" ", 64<<10-27)
	s.call("POST", "/v1/pets", "="+fits).is(201)
	s.call("POST", "/v1/pets", "="+fits+" ").is(413, CodeBodyTooLarge)
	r, _ := http.NewRequest("POST", s.server.URL+"/v1/pets", io.MultiReader(strings.NewReader(fits+" "))) // chunked
	r.Header.Set("Authorization", "Bearer "+s.key)
	s.send(r).is(413, CodeBodyTooLarge)
}

func TestMediaTypeIsCheckedBeforeSizeAndSizeBeforeContent(t *testing.T) {
	s := openShop(t)
	large := "=" + strings.Repeat("x", 64<<10+1)
	s.call("POST", "/v1/pets?bad=1", "Content-Type: text/plain", "Idempotency-Key: a b", large).is(415)
	s.call("POST", "/v1/pets?bad=1", "Idempotency-Key: a b", large).is(413)
	s.call("POST", "/v1/pets?bad=1", "Idempotency-Key: a b", "=x").is(400, CodeInvalidParameter)
	s.call("POST", "/v1/pets", "Idempotency-Key: a b", "=x").is(400, CodeInvalidParameter)
}

func TestABodyThatEndsEarlyIsRefused(t *testing.T) {
	s := openShop(t)
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 50\r\n\r\n{\"name\":", s.key)
	_ = conn.(*net.TCPConn).CloseWrite()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	r, _ := http.NewRequest("POST", s.server.URL+"/v1/pets", nil)
	a := reply{t, "POST cut short", response.StatusCode, response.Header, string(body)}
	a.is(400, CodeInvalidBody).promised(r)
	describedResponse(t, r, a)
}

func TestUnknownPetsAreNotFound(t *testing.T) {
	s := openShop(t)
	s.stock(1)
	s.call("GET", "/v1/pets/1").is(200)
	s.call("GET", "/v1/pets/%31").is(200) // the same address, RFC 3986 section 6.2.2.2
	for _, id := range []string{"2", "abc", "+1", "-1", "0", "-0", "007", "01", "1.0", "1e0", "9223372036854775807",
		"9223372036854775808", "18446744073709551617", "1%20", "1%2F1", "%00", "١", "0x1", "1_0"} {
		s.call("GET", "/v1/pets/"+id).is(404, CodeNotFound)
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	s := openShop(t)
	for _, target := range []string{"/v1", "/v1/", "/v1/pet", "/v1/pets/", "/v1/pets/1/", "/v1/pets/1/x", "/v1//pets",
		"/v1/../v1/pets", "/v1/./pets", "/v1/store/orders", "/v1/PETS", "/v1/pets%2F1", "/v1%2Fpets"} {
		s.call("GET", target).is(404, CodeNotFound)
		s.call("GET", target, "Authorization:").is(401, CodeMissingKey)
	}
	for _, target := range []string{"/v2/pets", "/pets", "/v1pets", "//v1/pets", "/x/../v1/pets", "//", "/favicon.ico"} {
		s.call("GET", target, "Authorization:").is(404, CodeNotFound).has("X-RateLimit-Limit", "")
	}
	for _, method := range []string{"PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
		s.call(method, "/v1/pets").is(405, CodeMethodNotAllowed).has("Allow", "GET, HEAD, POST")
		s.call(method, "/v1/pets/1").is(405, CodeMethodNotAllowed).has("Allow", "GET, HEAD").has("Sunset", "")
		s.call(method, "/v1/pets", "Authorization:").is(401)
	}
	s.call("POST", "/v1/pets/1", `={}`).is(405, CodeMethodNotAllowed)
}

// TestAConnectionEndsWhereAProxyMayReadItOtherwise: net/http hides whether a
// body in chunks came with a length too, and chunks in HTTP/1.0.
func TestAConnectionEndsWhereAProxyMayReadItOtherwise(t *testing.T) {
	s := openShop(t)
	for head, ends := range map[string]bool{
		"HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}":                                                 false,
		"HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n":                      true,
		"HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n": true,
		"HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}":                                  true,
	} {
		conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /v1/pets %s", head)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 401 || response.Close != ends {
			t.Errorf("after %q: status %d, the connection ends: %v; want %v", head, response.StatusCode, response.Close, ends)
		}
	}
}

// TestAStoppingServiceTellsClientsToConnectAnew with every response, so that they send nothing that nobody reads.
func TestAStoppingServiceTellsClientsToConnectAnew(t *testing.T) {
	s := openShopInFakeTime(t) // a client would take the header away
	requests := map[string]func() reply{
		"a success":       func() reply { return s.call("GET", "/v1/pets") },
		"a refusal":       func() reply { return s.call("GET", "/v1/pets", "Authorization: Bearer x") },
		"the description": func() reply { return s.call("GET", "/openapi.json") },
	}
	for connection, stopping := range map[string]bool{"": false, "close": true} {
		s.service.stopping.Store(stopping)
		for what, request := range requests {
			if got := request().header.Get("Connection"); got != connection {
				t.Errorf("stopping: %v; with %s Connection is %q", stopping, what, got)
			}
		}
	}
}

func TestRequestsForTheServerItselfAreAnErrorToo(t *testing.T) {
	s := openShop(t)
	s.server.Config.DisableGeneralOptionsHandler = newServer(s.service.log, nil, nil).DisableGeneralOptionsHandler
	for _, line := range []string{"OPTIONS * HTTP/1.1", "CONNECT example.com:443 HTTP/1.1"} {
		conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%s\r\nHost: x\r\nConnection: close\r\n\r\n", line)
		response, _ := io.ReadAll(conn)
		if !bytes.Contains(response, []byte(`"code":"not_found"`)) {
			t.Errorf("the response to %s is %q", line, response)
		}
	}
}

// Keys

func TestEveryRequestNeedsAKey(t *testing.T) {
	s := openShop(t)
	foreign := string(newSecret(true))
	for _, test := range []struct {
		sent      string // the Authorization header
		code      ErrorCode
		challenge string
	}{
		{"", CodeMissingKey, `Bearer realm="petstore"`},
		{"Bearer", CodeMissingKey, `Bearer realm="petstore"`},
		{"Basic dXNlcjpwYXNz", CodeMissingKey, `Bearer realm="petstore"`},
		{s.key, CodeMissingKey, `Bearer realm="petstore"`},
		{"Bearer " + s.key + "x", CodeInvalidKey, `Bearer realm="petstore", error="invalid_token"`},
		{"Bearer " + s.key + " x", CodeInvalidKey, `Bearer realm="petstore", error="invalid_token"`},
		{"Bearer " + s.key[:len(s.key)-1] + "!", CodeInvalidKey, `Bearer realm="petstore", error="invalid_token"`},
		{"Bearer " + string(newSecret(false)), CodeInvalidKey, `Bearer realm="petstore", error="invalid_token"`},
		{"Bearer " + foreign, CodeInvalidKey, `Bearer realm="petstore", error="invalid_token"`},
	} {
		for _, request := range []string{"GET /v1/pets", "POST /v1/pets", "GET /v1/pets/1", "GET /v1/nowhere"} {
			method, target, _ := strings.Cut(request, " ")
			s.call(method, target, "Authorization:", "Authorization: "+test.sent).is(401, test.code).
				has("WWW-Authenticate", test.challenge).has("RateLimit-Policy", `"address";q=60;w=60`)
		}
	}
	s.call("GET", "/v1/pets?key="+s.key, "Authorization:").is(401, CodeMissingKey)
	for _, sent := range []string{"bearer " + s.key, "BEARER   " + s.key} {
		s.call("GET", "/v1/pets", "Authorization:", "Authorization: "+sent).is(200).has("WWW-Authenticate", "")
	}
}

func TestAStagingInstanceTakesOnlyTestKeys(t *testing.T) {
	s := openShop(t, func(c *settings) { c.staging = true })
	if !strings.HasPrefix(s.key, "pet_test_") {
		t.Fatal("the shop's key is", s.key[:9])
	}
	s.call("GET", "/v1/pets").is(200)
	a := s.call("GET", "/v1/pets", "Authorization:", "Authorization: Bearer "+string(newSecret(false))).is(401, CodeInvalidKey).
		has("WWW-Authenticate", `Bearer realm="petstore", error="invalid_token"`)
	if a.err().Message != "this service takes only API keys that begin with pet_test_" {
		t.Errorf("a live key is told %q", a.err().Message)
	}
}

// Limits

func TestEveryResponseSaysWhereTheKeyStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		key := "Authorization: Bearer " + s.newKey(quota{5, 100})
		start := time.Now().Unix()
		time.Sleep(1500 * time.Millisecond)
		stands := func(a reply, left, reset int, rateLimit string) {
			t.Helper()
			a.has("X-RateLimit-Limit", "5").has("X-RateLimit-Remaining", strconv.Itoa(left)).has("RateLimit", rateLimit).
				has("X-RateLimit-Reset", strconv.FormatInt(start+int64(reset), 10)).has("RateLimit-Policy", `"minute";q=5;w=60, "day";q=100;w=86400`)
		}
		// The window begins at 1.5 s and ends at 61.5, reported as 62.
		stands(s.call("GET", "/v1/pets", "Authorization:", key).is(200), 4, 62, `"minute";r=4;t=60, "day";r=99;t=86400`)
		time.Sleep(20 * time.Second)
		stands(s.call("GET", "/v1/nowhere", "Authorization:", key).is(404), 3, 62, `"minute";r=3;t=40, "day";r=98;t=86380`)
		stands(s.call("POST", "/v1/pets", "Authorization:", key, "=x").is(400), 2, 62, `"minute";r=2;t=40, "day";r=97;t=86380`)
		stands(s.call("PUT", "/v1/pets", "Authorization:", key).is(405), 1, 62, `"minute";r=1;t=40, "day";r=96;t=86380`)
		stands(s.call("GET", "/v1/pets", "Authorization:", key, "If-None-Match: *").is(304), 0, 62, `"minute";r=0;t=40, "day";r=95;t=86380`)
		time.Sleep(300 * time.Millisecond)
		a := s.call("GET", "/v1/pets", "Authorization:", key).is(429, CodeRateLimited).has("Retry-After", "40")
		stands(a, 0, 62, `"minute";r=0;t=40, "day";r=95;t=86380`)
		time.Sleep(40 * time.Second)
		stands(s.call("GET", "/v1/pets", "Authorization:", key).is(200).has("Retry-After", ""), 4, 122, `"minute";r=4;t=60, "day";r=94;t=86340`)
	})
}

func TestTheDayRefusesWhenTheMinuteDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		key := "Authorization: Bearer " + s.newKey(quota{2, 5})
		start := time.Now().Unix()
		for i, left := range []string{"1", "0", "1", "0", "0"} {
			a := s.call("GET", "/v1/pets", "Authorization:", key).is(200).has("X-RateLimit-Remaining", left)
			if i == 4 { // one left of the minute, none of the day
				a.has("X-RateLimit-Limit", "5").has("X-RateLimit-Reset", strconv.FormatInt(start+86400, 10))
			}
			if i%2 == 1 {
				time.Sleep(time.Minute)
			}
		}
		for range 24 * 2 {
			time.Sleep(29 * time.Minute)
			s.call("GET", "/v1/pets", "Authorization:", key).is(429, CodeRateLimited).has("X-RateLimit-Limit", "5")
		}
		time.Sleep(time.Until(time.Unix(start+86400, 0)))
		s.call("GET", "/v1/pets", "Authorization:", key).is(200).has("RateLimit", `"minute";r=1;t=60, "day";r=4;t=86400`)
	})
}

func TestOf200ParallelRequestsExactly100AreAdmitted(t *testing.T) {
	s := openShop(t)
	key := s.newKey(quota{100, 1000})
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			a := s.call("GET", "/v1/pets", "Authorization:", "Authorization: Bearer "+key)
			mu.Lock()
			defer mu.Unlock()
			statuses[a.status]++
		})
	}
	wg.Wait()
	if statuses[200] != 100 || statuses[429] != 100 {
		t.Errorf("statuses %v, want 100 each of 200 and 429", statuses)
	}
}

func TestCallersWithoutAValidKeyAreLimitedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t, func(c *settings) { c.clientIPHeader = "X-Forwarded-For" })
		for i := range 60 {
			a := s.call("GET", "/v1/pets", "Authorization:").is(401).has("X-RateLimit-Limit", "60")
			a.has("X-RateLimit-Remaining", strconv.Itoa(59-i)).has("RateLimit", fmt.Sprintf(`"address";r=%d;t=60`, 59-i))
		}
		a := s.call("GET", "/v1/pets", "Authorization: Bearer nonsense").is(429, CodeRateLimited)
		a.has("Retry-After", "60").has("X-RateLimit-Remaining", "0").has("WWW-Authenticate", "")
		s.call("GET", "/v1/pets").is(200) // a valid key is never refused for its address
		s.call("GET", "/v1/pets", "Authorization:", "X-Forwarded-For: 192.0.2.1, 203.0.113.9").is(401)
		time.Sleep(time.Minute)
		s.call("GET", "/v1/pets", "Authorization:").is(401).has("X-RateLimit-Remaining", "59")
	})
}

// TestAnAddressThatIsSpentIsLoggedOnceAWindow: otherwise nobody could tell who floods the service with 401s.
func TestAnAddressThatIsSpentIsLoggedOnceAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t, func(c *settings) { c.clientIPHeader = "X-Forwarded-For" })
		const line = `"msg":"an address is spent: it has sent too many requests without a valid key","address":"2001:db8::/64","requests":60,"request":"`
		for window := range 2 {
			for i := range 100 {
				a := s.call("GET", "/v1/pets", "Authorization:", "X-Forwarded-For: 2001:db8::1")
				if lines := strings.Count(s.log.String(), line+a.header.Get("X-Request-Id")); (lines == 1) != (i == 59) {
					t.Errorf("%d lines are logged for request %d", lines, i+1)
				}
			}
			if lines := strings.Count(s.log.String(), "an address is spent"); lines != window+1 {
				t.Errorf("%d lines are logged in %d windows: %s", lines, window+1, s.log.String())
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestManySpentAddressesFillNoLog: one stranger may have them all.
func TestManySpentAddressesFillNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t, func(c *settings) { c.clientIPHeader = "X-Forwarded-For" })
		spend := func(addresses int) (lines []string) {
			before := len(s.log.String())
			for i := range addresses {
				address := fmt.Sprintf("X-Forwarded-For: 2001:db8:0:%x::1", i)
				for range addressQuota {
					s.call("GET", "/v1/pets", "Authorization:", address)
				}
			}
			return slices.Collect(strings.Lines(s.log.String()[before:]))
		}
		if lines := spend(50); len(lines) != 10 {
			t.Errorf("of 50 addresses at once %d are logged: %s", len(lines), lines)
		}
		logged := len(s.log.String())
		time.Sleep(time.Minute)
		const leftOut = `"msg":"spent addresses were left out of the log","lines":40}`
		if lines := s.log.String()[logged:]; !strings.Contains(lines, leftOut) ||
			strings.Count(lines, "\n") != 1 {
			t.Errorf("a second later the log says %s", lines)
		}
		if lines := spend(2); len(lines) != 2 {
			t.Errorf("a minute later the log says %s", lines)
		}
	})
}

// TestGuessesFromASpentAddressAreLookedUpOneAtATime for the whole service, and few wait for their turn. A key that the
// service knows waits for none of them.
func TestGuessesFromASpentAddressAreLookedUpOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t, func(c *settings) { c.clientIPHeader = "X-Forwarded-For" })
		valid := s.newKey(quota{10, 100}) // which the service has not met
		s.call("GET", "/v1/pets").is(200) // the shop's own key, which it has
		for _, address := range []string{"192.0.2.8", "192.0.2.9"} {
			for range 60 {
				s.call("GET", "/v1/pets", "Authorization:", "X-Forwarded-For: "+address).is(401)
			}
		}
		var reads atomic.Int64
		next := make(chan struct{}) // lets one lookup end
		s.store.engine = &storeEngine{engine: s.store.engine, check: func(st statement, columns []any) {
			if columns == nil && strings.Contains(st.query, "k.digest = unhex(?)") {
				reads.Add(1)
				<-next
			}
		}}
		var wg sync.WaitGroup
		var mu sync.Mutex // guards statuses
		statuses := map[string]map[int]int{}
		start := func(what, token, address string) {
			wg.Go(func() {
				a := s.call("GET", "/v1/pets", "Authorization:", "Authorization: Bearer "+token, "X-Forwarded-For: "+address)
				mu.Lock()
				defer mu.Unlock()
				if statuses[what] == nil {
					statuses[what] = map[int]int{}
				}
				statuses[what][a.status]++
			})
			synctest.Wait()
		}
		start("guess", string(newSecret(false)), "192.0.2.8")
		for range 2 {
			start("valid", valid, "192.0.2.8")
		}
		for range maxSuspects - 3 {
			start("guess", string(newSecret(false)), "192.0.2.9")
		}
		for range 100 {
			s.call("GET", "/v1/pets", "Authorization:", "Authorization: Bearer "+string(newSecret(false)), "X-Forwarded-For: 192.0.2.9").
				is(503, CodeUnavailable).has("Retry-After", "1").has("X-RateLimit-Remaining", "0").has("WWW-Authenticate", "")
		}
		s.call("GET", "/v1/pets", "X-Forwarded-For: 192.0.2.8").is(200)
		s.call("GET", "/v1/pets", "Authorization:", "Authorization: Bearer nonsense", "X-Forwarded-For: 192.0.2.8").is(429, CodeRateLimited)
		if n := reads.Load(); n != 1 {
			t.Errorf("%d keys are looked up at once", n)
		}
		start("elsewhere", string(newSecret(false)), "192.0.2.10") // its address is not spent
		if n := reads.Load(); n != 2 {
			t.Errorf("%d keys are looked up, want 2: other addresses do not wait", n)
		}
		next <- struct{}{}
		next <- struct{}{}
		for i := range maxSuspects - 2 { // of two with the valid key one is looked up
			if synctest.Wait(); reads.Load() != int64(i+3) {
				t.Errorf("%d keys were looked up, want %d", reads.Load(), i+3)
			}
			next <- struct{}{}
		}
		wg.Wait()
		want := map[string]map[int]int{"guess": {429: maxSuspects - 2}, "valid": {200: 2}, "elsewhere": {401: 1}}
		if !reflect.DeepEqual(statuses, want) {
			t.Errorf("the statuses are %v, want %v", statuses, want)
		}
		if log := s.log.String(); strings.Count(log, `"msg":"requests get 503: too many unknown keys come from addresses that are spent","address":"192.0.2.9/32",`) != 1 ||
			strings.Count(log, "requests get 503") != 1 {
			t.Errorf("the log is %s", log)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if log := s.log.String(); !strings.Contains(log, `"msg":"refused requests were left out of the log","lines":99}`) {
			t.Errorf("a minute later the log is %s", log)
		}
	})
}

// TestAKnownKeyThatMayHaveChangedIsNoGuess: it is read anew, and waits for no guesses from its address.
func TestAKnownKeyThatMayHaveChangedIsNoGuess(t *testing.T) {
	s := openShop(t)
	s.call("GET", "/v1/pets").is(200)
	for range 60 {
		s.call("GET", "/v1/pets", "Authorization:").is(401)
	}
	s.service.keys.suspects.Add(maxSuspects) // as many lookups as may wait
	s.call("GET", "/v1/pets", "Authorization:", "Authorization: Bearer "+string(newSecret(false))).is(503)
	s.store.editsSeen.Add(1) // as when another program has written
	s.call("GET", "/v1/pets").is(200)
}

// TestAProxyThatCannotBeReadIsToldOfOnce: without the warning all clients would share
// one limit, and nobody would know why.
func TestAProxyThatCannotBeReadIsToldOfOnce(t *testing.T) {
	const unread, missing = "the client's address cannot be read", "a request lacks the header that names the client"
	for _, c := range []struct {
		policy, header string
		values         []string
		want           string // in the log; "" for no warning
		spent          bool   // all are charged to one address
	}{
		{"the syntax of Forwarded", "Forwarded", []string{"for=198.51.100.1;proto=https", "for=198.51.100.2;proto=https"},
			`"header":"Forwarded","value":"for=198.51.100.1;proto=https","proxy":"192.0.2.1:1234"`, true},
		{"names instead of addresses", "X-Real-Ip", []string{"localhost", "unknown"}, `"value":"localhost"`, true},
		{"a key, which is not logged", "X-Real-Ip", []string{"pet_live_abc"}, `"value":"pet_…"`, true},
		{"no header, or one that is misspelt", "X-Real-Ip", []string{""}, `"header":"X-Real-Ip","proxy":"192.0.2.1:1234"`, true},
		{"no header, and then one that cannot be read", "X-Real-Ip", []string{"", "localhost"}, `"value":"localhost"`, true},
		{"IPv6 addresses in brackets", "X-Forwarded-For", []string{"[2001:db8:0:1::1]", "[2001:db8:0:2::1]"}, "", false},
		{"IPv6 addresses in brackets with ports", "X-Forwarded-For", []string{"[2001:db8:0:1::1]:80", "[2001:db8:0:2::1]:80"}, "", false},
	} {
		t.Run(c.policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openShopInFakeTime(t, func(set *settings) { set.clientIPHeader = c.header })
				status := 0
				for i := range 61 {
					status = s.call("GET", "/v1/pets", "Authorization:", c.header+": "+c.values[i%len(c.values)]).status
				}
				if want := map[bool]int{true: 429, false: 401}[c.spent]; status != want {
					t.Errorf("the last of 61 requests is %d, want %d", status, want)
				}
				s.call("GET", "/v1/pets", c.header+": "+c.values[0]).is(200) // a key needs no address
				log := s.log.String()
				for warning, wanted := range map[string]bool{
					unread:  strings.Contains(c.want, `"value"`),
					missing: slices.Contains(c.values, ""),
				} {
					if n := strings.Count(log, warning); n > 1 || (n == 1) != wanted {
						t.Errorf("%q is in the log %d times: %s", warning, n, log)
					}
				}
				if !strings.Contains(log, c.want) || strings.Contains(log, "pet_live_abc") {
					t.Errorf("the log is %s", log)
				}
			})
		})
	}
}

func TestInsistingAfter429BansTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		token := s.newKey(quota{3, 100})
		call := func() reply { return s.call("GET", "/v1/pets", "Authorization:", "Authorization: Bearer "+token) }
		for range 3 {
			call().is(200)
		}
		for range 1 + 3 { // the first refusal is no strike; three strikes are as many as the limit, not more
			call().is(429, CodeRateLimited)
		}
		banned := func(retry, reset string) {
			t.Helper()
			call().is(429, CodeKeyBanned).has("Retry-After", retry).has("X-RateLimit-Limit", "3").
				has("X-RateLimit-Remaining", "0").has("X-RateLimit-Reset", reset)
		}
		end := strconv.FormatInt(time.Now().Add(10*time.Minute).Unix(), 10)
		banned("600", end)
		time.Sleep(5 * time.Minute)
		banned("300", end) // asking again does not lengthen it
		s.call("GET", "/v1/pets").is(200)
		time.Sleep(5*time.Minute - time.Millisecond)
		banned("1", end)
		time.Sleep(time.Millisecond)
		call().is(200).has("X-RateLimit-Remaining", "2")
		if n := s.service.bans.Load(); n != 1 {
			t.Errorf("%d bans are counted", n)
		}
		if log := s.log.String(); strings.Count(log, "key banned") != 1 || strings.Contains(log, token) {
			t.Errorf("the log of one ban:\n%s", log)
		}
	})
}

// TestABanThatCannotBeStoredIsLogged: the key stays rate_limited until one can be.
func TestABanThatCannotBeStoredIsLogged(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	key := "Authorization: Bearer " + s.newKey(quota{1, 100})
	s.call("GET", "/v1/pets", "Authorization:", key).is(200)
	s.call("GET", "/v1/pets", "Authorization:", key).is(429, CodeRateLimited)
	s.call("GET", "/v1/pets", "Authorization:", key).is(429, CodeRateLimited)
	readOnly := func(value string) {
		t.Helper()
		if _, err := s.file().conn.ExecContext(t.Context(), "PRAGMA query_only = "+value); err != nil {
			t.Fatal(err)
		}
	}
	readOnly("1")
	a := s.call("GET", "/v1/pets", "Authorization:", key).is(429, CodeRateLimited).has("X-RateLimit-Limit", "1")
	if retry := a.number("Retry-After"); retry < 1 || retry > 60 {
		t.Errorf("Retry-After is %d", retry)
	}
	log := s.log.String()
	if !strings.Contains(log, `"level":"ERROR","msg":"cannot ban a key","key":2,"request":"`+a.header.Get("X-Request-Id")) || strings.Contains(log, "key banned") {
		t.Errorf("the log is %s", log)
	}
	if n := s.service.bans.Load(); n != 0 {
		t.Errorf("%d bans are counted", n)
	}
	readOnly("0")
	s.call("GET", "/v1/pets", "Authorization:", key).is(429, CodeKeyBanned).has("Retry-After", "600")
	if log := s.log.String(); strings.Count(log, `"msg":"key banned"`) != 1 || s.service.bans.Load() != 1 {
		t.Errorf("%d bans are counted, and the log is %s", s.service.bans.Load(), log)
	}
}

func TestEveryOperationIsLimited(t *testing.T) {
	s := openShop(t)
	for _, request := range []string{"GET /v1/pets", "POST /v1/pets", "GET /v1/pets/1", "GET /v1/nowhere", "PUT /v1/pets"} {
		method, target, _ := strings.Cut(request, " ")
		key := "Authorization: Bearer " + s.newKey(quota{1, 10})
		s.call(method, target, "Authorization:", key).has("X-RateLimit-Remaining", "0")
		s.call(method, target, "Authorization:", key).is(429, CodeRateLimited).has("Retry-After", "60")
		s.call(method, target, "Authorization:", key).is(429, CodeRateLimited)
		s.call(method, target, "Authorization:", key).is(429, CodeKeyBanned).has("Retry-After", "600")
	}
}

func TestWithBanForZeroNobodyIsBanned(t *testing.T) {
	s := openShop(t, func(c *settings) { c.banFor = 0 })
	key := "Authorization: Bearer " + s.newKey(quota{1, 100})
	s.call("GET", "/v1/pets", "Authorization:", key).is(200)
	for range 10 {
		s.call("GET", "/v1/pets", "Authorization:", key).is(429, CodeRateLimited)
	}
}

// The deprecated operation

func TestTheDeprecatedOperationSaysSo(t *testing.T) {
	s := openShop(t)
	s.stock(1)
	etag := s.call("GET", "/v1/pets/1").header.Get("ETag")
	for _, a := range []reply{
		s.call("GET", "/v1/pets/1").is(200), s.call("HEAD", "/v1/pets/1").is(200), s.call("GET", "/v1/pets/2").is(404),
		s.call("GET", "/v1/pets/1", "If-None-Match: "+etag).is(304),
	} {
		a.has("Deprecation", "@1795132800").has("Sunset", "Thu, 05 Dec 2030 00:00:00 GMT").has("Link", `</v1/pets>; rel="successor-version"`)
	}
	for _, a := range []reply{
		s.call("GET", "/v1/pets/1", "Authorization:").is(401), s.call("PUT", "/v1/pets/1").is(405), s.call("GET", "/v1/pets").is(200),
	} {
		a.has("Deprecation", "").has("Sunset", "")
	}
}

func TestTheDeprecatedOperationIsRemovedOn5December2030(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		created := s.call("POST", "/v1/pets", `={"name":"x","categoryId":1}`).is(201).has("Location", "/v1/pets/1")
		time.Sleep(time.Until(time.Date(2030, 12, 4, 23, 59, 59, 999e6, time.UTC)))
		s.call("GET", "/v1/pets/1").is(200)
		time.Sleep(time.Millisecond)
		for _, target := range []string{"/v1/pets/1", "/v1/pets/2", "/v1/pets/abc", "/v1/pets/1?x=y"} {
			s.call("GET", target).is(410, CodeOperationRemoved).has("Deprecation", "@1795132800").
				has("Sunset", "Thu, 05 Dec 2030 00:00:00 GMT").has("Link", `</v1/pets>; rel="successor-version"`)
		}
		s.call("GET", "/v1/pets/1", "Authorization:").is(401)
		again := s.call("POST", "/v1/pets", `={"name":"x","categoryId":1}`).is(201).has("Location", "")
		if strings.Replace(created.body, `"id":1`, `"id":2`, 1) != again.body {
			t.Errorf("created %s, later %s", created.body, again.body)
		}
	})
}

func TestTheOperatorSeesWhoUsesTheDeprecatedOperation(t *testing.T) {
	s := openShop(t)
	use := func() instant {
		t.Helper()
		if err := s.service.keys.flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		return authUsed(t, s.store, 1)
	}
	s.call("GET", "/v1/pets").is(200)
	if use() != 0 {
		t.Error("listing counts as use of the deprecated operation")
	}
	before := instantOf(time.Now())
	s.call("GET", "/v1/pets/1").is(404)
	if got := use(); got < before || got > instantOf(time.Now()) {
		t.Errorf("the use is noted at %v", got.time())
	}
}

// Idempotency

func TestARepeatedCreationIsReplayed(t *testing.T) {
	s := openShop(t)
	body := `={"name":"Rex","categoryId":1}`
	first := s.call("POST", "/v1/pets", "Idempotency-Key: abc", body).is(201).has("Idempotency-Replayed", "")
	for range 3 {
		again := s.call("POST", "/v1/pets", "Idempotency-Key: abc", body).is(201).has("Idempotency-Replayed", "true").has("Location", "/v1/pets/1")
		if again.body != first.body {
			t.Errorf("replayed %s, first %s", again.body, first.body)
		}
	}
	s.call("POST", "/v1/pets", "Idempotency-Key: abc", `={"name":"Rex", "categoryId":1}`).is(422, CodeIdempotencyKeyReused)
	other := "Authorization: Bearer " + s.newKey(quota{10, 10})
	s.call("POST", "/v1/pets", "Authorization:", other, "Idempotency-Key: abc", body).is(201).has("Idempotency-Replayed", "").has("Location", "/v1/pets/2")
	s.call("POST", "/v1/pets", "Idempotency-Key: bad", "=x").is(400)
	s.call("POST", "/v1/pets", "Idempotency-Key: bad", body).is(201).has("Idempotency-Replayed", "") // refusals are not remembered
	if ids := s.call("GET", "/v1/pets").ids(); len(ids) != 3 {
		t.Errorf("there are %v, want three pets", ids)
	}
}

func TestARepeatAfter24HoursIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		post := func() reply {
			return s.call("POST", "/v1/pets", "Idempotency-Key: k", `={"name":"Rex","categoryId":1}`).is(201)
		}
		post().has("Location", "/v1/pets/1")
		time.Sleep(24*time.Hour - time.Millisecond)
		post().has("Location", "/v1/pets/1").has("Idempotency-Replayed", "true")
		time.Sleep(time.Millisecond)
		post().has("Location", "/v1/pets/2").has("Idempotency-Replayed", "")
	})
}

func TestParallelRepeatsGiveOnePet(t *testing.T) {
	s := openShop(t)
	var wg sync.WaitGroup
	replies := make([]reply, 32)
	for i := range replies {
		wg.Go(func() {
			replies[i] = s.call("POST", "/v1/pets", "Idempotency-Key: once", `={"name":"Rex","categoryId":1}`)
		})
	}
	wg.Wait()
	originals := 0
	for _, a := range replies {
		if a.is(201).header.Get("Idempotency-Replayed") == "" {
			originals++
		}
		if a.body != replies[0].body {
			t.Errorf("responses %s and %s", a.body, replies[0].body)
		}
	}
	if ids := s.call("GET", "/v1/pets").ids(); originals != 1 || len(ids) != 1 {
		t.Errorf("%d originals and the pets %v, want one of each", originals, ids)
	}
}

func TestIdempotencyKeysAre1To255VisibleASCIICharacters(t *testing.T) {
	s := openShop(t)
	body := `={"name":"Rex","categoryId":1}`
	for _, key := range []string{"a", "!~", strings.Repeat("k", 255)} {
		s.call("POST", "/v1/pets", "Idempotency-Key: "+key, body).is(201)
	}
	for _, key := range []string{"a b", "ü", strings.Repeat("k", 256)} {
		e := s.call("POST", "/v1/pets", "Idempotency-Key: "+key, body).is(400, CodeInvalidParameter).err()
		if !strings.Contains(e.Message, "Idempotency-Key") {
			t.Errorf("the message is %q", e.Message)
		}
	}
	s.call("POST", "/v1/pets", "Idempotency-Key: a", "Idempotency-Key: b", body).is(400, CodeInvalidParameter)
	r, _ := http.NewRequest("POST", s.server.URL+"/v1/pets", strings.NewReader(body[1:]))
	r.Header = http.Header{"Authorization": {"Bearer " + s.key}, "Idempotency-Key": {""}}
	s.send(r).is(400, CodeInvalidParameter)
}

// When things go wrong here

func TestAPanicIsA500AndLogged(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.service.routes.Handle("GET /v1/boom", s.service.handle("test", func(http.ResponseWriter, *http.Request, caller) error { panic("secret detail") }))
	s.service.routes.Handle("GET /v1/late", s.service.handle("test", func(w http.ResponseWriter, _ *http.Request, _ caller) error {
		w.WriteHeader(200)
		panic("late")
	}))
	s.service.routes.Handle("GET /v1/bug", s.service.handle("test", func(http.ResponseWriter, *http.Request, caller) error { return errors.New("secret detail") }))
	for _, target := range []string{"/v1/boom", "/v1/bug"} {
		a := s.call("GET", target).is(500, CodeInternalError)
		if strings.Contains(a.body, "secret") || !strings.Contains(a.body, a.header.Get("X-Request-Id")) {
			t.Errorf("the response to %s is %s", target, a.body)
		}
		if log := s.log.String(); !strings.Contains(log, "secret detail") || !strings.Contains(log, a.header.Get("X-Request-Id")) {
			t.Errorf("%s: the log is %s", target, log)
		}
	}
	if !strings.Contains(s.log.String(), "handlers_test.go") {
		t.Error("the panic is logged without a trace")
	}
	r, _ := http.NewRequest("GET", s.server.URL+"/v1/late", nil)
	r.Header.Set("Authorization", "Bearer "+s.key)
	if response, err := http.DefaultTransport.RoundTrip(r); err == nil {
		_, err = io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil {
			t.Error("a response that panicked half way looks complete")
		}
	}
}

func TestAStoreThatCannotCommitIs503AndReadsGoOn(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.stock(3)
	s.call("GET", "/v1/pets").is(200)
	if _, err := s.file().conn.ExecContext(t.Context(), "PRAGMA query_only = 1"); err != nil {
		t.Fatal(err)
	}
	a := s.call("POST", "/v1/pets", `={"name":"x","categoryId":1}`).is(503, CodeUnavailable).has("Retry-After", "1").has("Location", "")
	if !strings.Contains(s.log.String(), a.header.Get("X-Request-Id")) {
		t.Error("the 503 is not in the log")
	}
	s.call("GET", "/v1/pets?limit=3").is(200)
	s.call("GET", "/v1/pets/3").is(200)
	if _, err := s.file().conn.ExecContext(t.Context(), "PRAGMA query_only = 0"); err != nil {
		t.Fatal(err)
	}
	if p := s.create(`{"name":"x","categoryId":1}`); p.ID != 4 {
		t.Errorf("the next pet has the id %d, want 4", p.ID)
	}
}

// TestTheDayTellsHowEveryRequestOfAKeyEnded: admitted or refused, and an error.
func TestTheDayTellsHowEveryRequestOfAKeyEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		s.wantError = true
		s.service.routes.Handle("GET /v1/boom", s.service.handle("test", func(http.ResponseWriter, *http.Request, caller) error { panic("boom") }))
		s.service.routes.Handle("GET /v1/slow", s.service.handle("test", func(http.ResponseWriter, *http.Request, caller) error {
			time.Sleep(time.Millisecond)
			return errors.New("slow")
		}))
		days := func(what, want string) {
			t.Helper()
			storeMust(t, s.service.limits.flush(t.Context(), time.Now()))
			if got := fmt.Sprint(limitsDays(t, s.store, 1)); got != "["+want+"]" {
				t.Errorf("after %s %s is stored", what, got)
			}
		}
		s.call("GET", "/v1/pets").is(200)
		s.call("POST", "/v1/pets", "={}").is(400)
		s.call("GET", "/v1/pets/7").is(404)
		s.call("GET", "/v1/pets", "Authorization: Bearer nobody").is(401)
		s.call("GET", "/nowhere").is(404) // which no key opens
		days("ordinary requests", "2000-01-01: 3 admitted, 0 refused, 0 errors")
		if _, err := s.file().conn.ExecContext(t.Context(), "PRAGMA query_only = 1"); err != nil {
			t.Fatal(err)
		}
		s.call("POST", "/v1/pets", `={"name":"x","categoryId":1}`).is(503)
		s.call("GET", "/v1/boom").is(500)
		if _, err := s.file().conn.ExecContext(t.Context(), "PRAGMA query_only = 0"); err != nil {
			t.Fatal(err)
		}
		days("two errors", "2000-01-01: 5 admitted, 0 refused, 2 errors")
		s.service.limits.usages = map[int64]*usage{}
		s.service.limits.store = newStore(&storeEngine{engine: s.store.engine, check: func(st statement, columns []any) {
			if strings.Contains(st.query, "FROM usage WHERE id = ?") && columns != nil {
				panic("the usage cannot be read")
			}
		}})
		s.call("GET", "/v1/pets").is(500)
		s.service.limits.store = s.store
		days("a request that nobody could admit", "2000-01-01: 5 admitted, 0 refused, 3 errors")
		time.Sleep(24*time.Hour - time.Millisecond)
		s.call("GET", "/v1/slow").is(500) // and it is midnight
		s.call("GET", "/v1/pets").is(200)
		days("midnight", "2000-01-01: 6 admitted, 0 refused, 4 errors 2000-01-02: 1 admitted, 0 refused, 0 errors")
	})
}

func TestAStoreThatCannotBeReadIs500WithTheAddressesNumbers(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.file().reader.Close()
	key := "Authorization: Bearer " + string(newSecret(false)) // has to be looked up
	for _, request := range []string{"GET /v1/pets", "POST /v1/pets", "GET /v1/pets/1", "GET /v1/nowhere"} {
		method, target, _ := strings.Cut(request, " ")
		s.call(method, target, "Authorization:", key).is(500, CodeInternalError).
			has("RateLimit-Policy", `"address";q=60;w=60`).has("X-RateLimit-Remaining", "60")
	}
}

// Other origins, request ids

func TestCORSIsOffUnlessAskedFor(t *testing.T) {
	s := openShop(t)
	s.call("GET", "/v1/pets", "Origin: https://a.example").is(200).has("Access-Control-Allow-Origin", "").has("Vary", "")
	s.call("OPTIONS", "/v1/pets", "Authorization:", "Origin: https://a.example", "Access-Control-Request-Method: GET").is(401)
}

func TestCORSForNamedOrigins(t *testing.T) {
	s := openShop(t, func(c *settings) { c.corsOrigins = []string{"https://a.example", "https://b.example"} })
	for _, origin := range []string{"https://a.example", "https://b.example"} {
		a := s.call("GET", "/v1/pets/9", "Origin: "+origin).is(404).has("Access-Control-Allow-Origin", origin).has("Vary", "Origin")
		for name := range a.header {
			if !slices.Contains([]string{"Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Content-Length", "Content-Type", "Date", "Vary"}, name) &&
				!strings.Contains(strings.ToLower(a.header.Get("Access-Control-Expose-Headers")), strings.ToLower(name)) {
				t.Errorf("%s is not exposed", name)
			}
		}
		preflight := s.call("OPTIONS", "/v1/pets", "Authorization:", "Origin: "+origin, "Access-Control-Request-Method: POST").is(204)
		preflight.has("Access-Control-Allow-Origin", origin).has("Access-Control-Allow-Methods", "GET, HEAD, POST").
			has("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, If-None-Match").has("X-RateLimit-Remaining", "60")
	}
	s.call("GET", "/v1/pets", "Origin: https://c.example").is(200).has("Access-Control-Allow-Origin", "").has("Vary", "Origin")
	s.call("OPTIONS", "/v1/pets", "Authorization:", "Origin: https://c.example", "Access-Control-Request-Method: GET").is(401)
	s.call("OPTIONS", "/v1/pets", "Origin: https://a.example").is(405) // no preflight
	s.call("GET", "/v1/pets", "Authorization:", "Origin: https://a.example").is(401).has("Access-Control-Allow-Origin", "https://a.example")
}

func TestCORSForAllOrigins(t *testing.T) {
	s := openShop(t, func(c *settings) { c.corsOrigins = []string{"*"} })
	s.call("GET", "/v1/pets", "Origin: https://any.example").is(200).has("Access-Control-Allow-Origin", "*")
	s.call("OPTIONS", "/v1/pets/1", "Authorization:", "Origin: https://any.example", "Access-Control-Request-Method: GET").is(204)
	s.call("GET", "/v1/pets", "Origin: https://any.example", "Access-Control-Request-Method: GET").is(200)
	s.call("OPTIONS", "/v1/pets", "Authorization:", "Access-Control-Request-Method: GET").is(401)
}

func TestRequestIDsAreUniqueAndTheServicesOwn(t *testing.T) {
	s := openShop(t)
	seen := map[string]bool{}
	for range 100 {
		id := s.call("GET", "/v1/pets", "X-Request-Id: mine").is(200).header.Get("X-Request-Id")
		if seen[id] {
			t.Fatalf("%s was given twice", id)
		}
		seen[id] = true
	}
}

// Ids that count would show a client how many requests there are in between.
func TestRequestIDsDoNotCount(t *testing.T) {
	var before uint64
	for range 1000 {
		id, err := strconv.ParseUint(newRequestID(), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if distance := int64(id - before); -1<<20 < distance && distance < 1<<20 { // by chance less often than once in 10^10 runs
			t.Errorf("%x follows %x", id, before)
		}
		before = id
	}
}

// The debug address, and readiness

// readyShop is a service in fake time whose store is asked whether it is ready, and
// how often it was asked.
func readyShop(t *testing.T, path string) (srv *service, probes *atomic.Int64) {
	t.Helper()
	st, err := openStore(t.Context(), path, forService, testLog)
	mainMust(t, err)
	t.Cleanup(func() { st.Close() })
	probes = &atomic.Int64{}
	st.engine = &storeEngine{engine: st.engine, check: func(st statement, _ []any) {
		if st.query == "DELETE FROM services WHERE id = 'probe'" {
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

func TestReadinessIsThatOfTheStore(t *testing.T) {
	path := mainDB(t) // outside: its folder outlives the bubble
	synctest.Test(t, func(t *testing.T) {
		srv, probes := readyShop(t, path)
		var running atomic.Pointer[service]
		routes := debugRoutes(&running, "", false)
		ready := func(status int, want string) {
			t.Helper()
			time.Sleep(250 * time.Millisecond) // or it would say what it said before
			w := debugCall(routes, "/readyz", "localhost:6060")
			if w.Code != status || !strings.Contains(w.Body.String(), want) {
				t.Errorf("it is %d %q, want %d %q", w.Code, w.Body, status, want)
			}
			if w = debugCall(routes, "/healthz", "localhost:6060"); w.Code != 200 {
				t.Errorf("alive, it is %d", w.Code)
			}
		}
		ready(503, "starting")
		if w := debugCall(routes, "/metrics", "localhost:6060"); w.Code != 503 {
			t.Errorf("before the start, metrics are %d", w.Code)
		}
		running.Store(srv)
		before, err := os.Stat(path + "-wal")
		mainMust(t, err)
		ready(200, "ok")
		if after, err := os.Stat(path + "-wal"); err != nil || after.Size() <= before.Size() || probes.Load() != 1 {
			t.Errorf("nothing was written to find out")
		}
		mainMust(t, os.Rename(path, path+".away"))
		ready(503, "no such file")
		mainMust(t, os.Rename(path+".away", path))
		ready(200, "ok")
		mainMust(t, srv.store.engine.(*storeEngine).engine.(*sqliteFile).reader.Close())
		ready(503, "closed")
		srv.stopping.Store(true)
		ready(503, "stopping")
	})
}

// TestReadinessNeedsNoKeyAndGivesNoDetail: load balancers ask on the service's own
// address, and so may anybody else.
func TestReadinessNeedsNoKeyAndGivesNoDetail(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		srv, _ := readyShop(t, path)
		s := &shop{t: t, service: srv, key: "none"}
		srv.log = slog.New(slog.NewJSONHandler(&s.log, nil))
		for _, key := range []string{"Authorization:", "Authorization: Bearer nonsense"} {
			a := s.call("GET", "/readyz", key).is(200).has("Content-Type", "text/plain; charset=utf-8").has("Content-Length", "3").
				has("X-RateLimit-Limit", "").has("ETag", "")
			if a.body != "ok\n" {
				t.Errorf("it says %q", a.body)
			}
		}
		s.call("HEAD", "/readyz", "Authorization:").is(200).has("Content-Length", "3")
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
			s.call(method, "/readyz", "Authorization:").is(405, CodeMethodNotAllowed).has("Allow", "GET, HEAD")
		}
		for _, target := range []string{"/readyz/", "/healthz", "/metrics", "/debug/pprof/"} {
			s.call("GET", target, "Authorization:").is(404, CodeNotFound)
		}
		for range 200 { // it is not limited
			s.call("GET", "/readyz", "Authorization:").is(200)
		}

		mainMust(t, os.Rename(path, path+".away"))
		time.Sleep(250 * time.Millisecond)
		a := s.call("GET", "/readyz", "Authorization:").is(503, CodeUnavailable).has("Retry-After", "1")
		if a.body != `{"code":"unavailable","message":"unavailable","status":503}` {
			t.Errorf("it says %s", a.body)
		}
		s.call("HEAD", "/readyz", "Authorization:").is(503)
		time.Sleep(250 * time.Millisecond)
		s.call("GET", "/readyz", "Authorization:").is(503)
		if log := s.log.String(); strings.Count(log, `"level":"ERROR","msg":"not ready"`) != 1 || strings.Count(log, "\n") != 1 {
			t.Errorf("when it is unavailable, the log is %s", log)
		}
		mainMust(t, os.Rename(path+".away", path))
		for range 2 {
			time.Sleep(250 * time.Millisecond)
			s.call("GET", "/readyz", "Authorization:").is(200)
		}
		if log := s.log.String(); strings.Count(log, `"level":"INFO","msg":"ready again"`) != 1 || strings.Count(log, "\n") != 2 {
			t.Errorf("when it is available again, the log is %s", log)
		}
	})
}

// TestTheStoreIsProbedAtMostFourTimesASecond, however many ask, and wherever: a probe is a write.
func TestTheStoreIsProbedAtMostFourTimesASecond(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		srv, probes := readyShop(t, path)
		var running atomic.Pointer[service]
		running.Store(srv)
		routes := debugRoutes(&running, "", false)
		ask := func(want int64) {
			t.Helper()
			for range 50 {
				w := httptest.NewRecorder()
				if srv.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil)); w.Code != 200 {
					t.Fatalf("it is %d %s", w.Code, w.Body)
				}
				if w := debugCall(routes, "/readyz", "localhost"); w.Code != 200 {
					t.Fatalf("on the debug address it is %d %s", w.Code, w.Body)
				}
			}
			if n := probes.Load(); n != want {
				t.Errorf("the store was probed %d times, want %d", n, want)
			}
		}
		ask(1)
		time.Sleep(249 * time.Millisecond)
		ask(1)
		time.Sleep(time.Millisecond)
		ask(2)
		time.Sleep(time.Hour)
		ask(3) // nobody has asked meanwhile
	})
}

// TestTheDebugAddressIsOnlyForThoseWhoNameIt: a page of another site can have its own
// name point to this machine, and would then be of the same origin (DNS rebinding).
func TestTheDebugAddressIsOnlyForThoseWhoNameIt(t *testing.T) {
	var running atomic.Pointer[service]
	for _, c := range []struct {
		name, host string
		want       int
	}{
		{"localhost", "localhost", 200},
		{"localhost", "localhost:6060", 200},
		{"localhost", "LocalHost:6060", 200},
		{"localhost", "127.0.0.1:6060", 200},
		{"localhost", "127.0.0.1", 200},
		{"localhost", "10.1.2.3:6060", 200}, // an address cannot be made to point elsewhere
		{"localhost", "[::1]:6060", 200},
		{"localhost", "[::1]", 200},
		{"localhost", "[2001:DB8::1]:6060", 200},
		{"::1", "localhost:6060", 200},
		{"127.0.0.1", "LOCALHOST", 200},
		{"pets.internal", "pets.internal:6060", 200},
		{"pets.internal", "PETS.Internal", 200},
		{"Pets.Internal", "pets.internal:6060", 200},
		{"", "localhost:6060", 200},
		{"localhost", "evil.example", 403},
		{"localhost", "evil.example:6060", 403},
		{"localhost", "localhost.evil.example:6060", 403},
		{"localhost", "evil.example:localhost", 403},
		{"localhost", "127.0.0.1.evil.example:6060", 403},
		{"pets.internal", "evil.pets.internal:6060", 403},
		{"", "evil.example:6060", 403},
		{"", "pets.internal", 403},
	} {
		routes := debugRoutes(&running, c.name, false)
		for _, path := range []string{"/", "/healthz", "/debug/pprof/cmdline", "/debug/pprof/"} {
			w := debugCall(routes, path, c.host)
			if w.Code != c.want {
				t.Errorf("-debug-addr %s:6060, Host %s: %s is %d, want %d", c.name, c.host, path, w.Code, c.want)
			}
			if c.want == 403 && w.Body.String() != "use an IP address, localhost, or the name in -debug-addr\n" {
				t.Errorf("Host %s: %s says %q", c.host, path, w.Body)
			}
		}
	}
}

// TestTheDebugAddressIsNotForPagesOfOtherSites: such a page could start profiles, even if it cannot
// read them. With -debug-allow-remote the Host may be any, but not the page.
func TestTheDebugAddressIsNotForPagesOfOtherSites(t *testing.T) {
	var running atomic.Pointer[service]
	for _, c := range []struct {
		policy       string
		host         string
		site, origin string // Sec-Fetch-Site and Origin
		want, remote int    // the status, and that with -debug-allow-remote
	}{
		{"no browser", "localhost:6060", "", "", 200, 200},
		{"an address that somebody enters", "localhost:6060", "none", "", 200, 200},
		{"the operator's page", "localhost:6060", "same-origin", "", 200, 200},
		{"the operator's page, with an Origin", "localhost:6060", "same-origin", "http://localhost:6060", 200, 200},
		{"the operator's page behind a proxy with TLS", "localhost", "same-origin", "https://localhost", 200, 200},
		{"a browser that sends no Sec-Fetch-Site", "localhost:6060", "", "http://localhost:6060", 200, 200},
		{"a page elsewhere", "localhost:6060", "cross-site", "", 403, 403},
		{"a page elsewhere, with an Origin", "localhost:6060", "cross-site", "https://evil.example", 403, 403},
		{"a page elsewhere in a browser without Sec-Fetch-Site", "localhost:6060", "", "https://evil.example", 403, 403},
		{"a page without an origin", "localhost:6060", "", "null", 403, 403},
		{"a page on another port", "localhost:6060", "same-site", "", 403, 403},
		{"a page on another port, by its Origin", "localhost:6060", "", "http://localhost:8080", 403, 403},
		{"a word that no standard has yet", "localhost:6060", "same-planet", "", 403, 403},
		{"a scraper in a container network", "petstore:6060", "", "", 403, 200},
		{"a browser in a private network", "petstore.internal", "none", "", 403, 200},
		{"a page elsewhere in a private network", "petstore.internal", "cross-site", "", 403, 403},
		{"a page elsewhere in it, by its Origin", "petstore.internal", "", "http://wiki.internal", 403, 403},
	} {
		for anyHost, want := range map[bool]int{false: c.want, true: c.remote} {
			routes := debugRoutes(&running, "localhost", anyHost)
			for _, path := range []string{"/", "/healthz", "/debug/pprof/", "/debug/pprof/profile?seconds=1000"} {
				w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
				r.Host = c.host
				if c.site != "" {
					r.Header.Set("Sec-Fetch-Site", c.site)
				}
				if c.origin != "" {
					r.Header.Set("Origin", c.origin)
				}
				routes.ServeHTTP(w, r)
				status := want
				if status == 200 && strings.Contains(path, "seconds") {
					status = 400
				}
				if w.Code != status {
					t.Errorf("%s, any host %v: %s is %d, want %d", c.policy, anyHost, path, w.Code, status)
				}
			}
		}
	}
}

// TestNothingOfTheDebugAddressIsTakenForAnotherType, whatever it holds.
func TestNothingOfTheDebugAddressIsTakenForAnotherType(t *testing.T) {
	s := openShop(t)
	routes := operatorRoutes(s)
	for _, path := range []string{"/", "/operator.css", "/operator.js", "/healthz", "/readyz", "/metrics", "/stats.json",
		"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=1", "/debug/pprof/nothing", "/nothing",
		"/debug/pprof/profile?seconds=61", "/debug/pprof"} {
		for _, host := range []string{"localhost", "evil.example"} {
			if got := debugCall(routes, path, host).Header().Get("X-Content-Type-Options"); got != "nosniff" {
				t.Errorf("%s on %s has the X-Content-Type-Options %q", path, host, got)
			}
		}
	}
}

func TestAProfileTakesAtMostAMinute(t *testing.T) {
	routes := operatorRoutes(openShop(t))
	for _, profile := range []string{"profile", "trace", "heap", "allocs", "goroutine"} {
		for _, seconds := range []string{"61", "60.5", "3600", "Inf", "9223372036854775807"} {
			w := debugCall(routes, "/debug/pprof/"+profile+"?seconds="+seconds, "localhost")
			if w.Code != 400 || w.Body.String() != "a profile takes at most 60 seconds\n" {
				t.Errorf("%s of %s seconds is %d %q", profile, seconds, w.Code, w.Body)
			}
		}
	}
	// The caller of this one has gone, so that it ends at once.
	gone, leave := context.WithCancel(t.Context())
	leave()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(gone, "GET", "/debug/pprof/trace?seconds=60", nil)
	r.Host = "localhost"
	if routes.ServeHTTP(w, r); w.Code != 200 {
		t.Errorf("a trace of 60 seconds is %d %q", w.Code, w.Body)
	}
}

func TestTheDebugAddressShowsNoPassword(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = []string{"petstore", "-db", "http://anna:t@p@n1:4001,https://bert:secret@n2:4001", "-base-url=https://pets.example/v1", "-addr", ":80"}
	var running atomic.Pointer[service]
	got := debugCall(debugRoutes(&running, "", false), "/debug/pprof/cmdline", "localhost").Body.String()
	want := "petstore\x00-db\x00http://…n2:4001\x00-base-url=https://pets.example/v1\x00-addr\x00:80"
	if got != want {
		t.Errorf("it shows %q, want %q", got, want)
	}
}

// Fuzzing and benchmarks

// FuzzQuery holds parsePageRequest against net/url: what is accepted is exactly
// what the specification allows, and asks for what it says.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{"", "limit=5", "limit=100&status=sold&after=7", "limit=0", "a;b", "%zz", "after=-1", "limit=5&limit=5", "status=%73old"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := parsePageRequest(&http.Request{URL: &url.URL{RawQuery: raw}})
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeInvalidParameter {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		values, err := url.ParseQuery(raw)
		if err != nil {
			t.Fatalf("%q is accepted: %v", raw, err)
		}
		for name, given := range values {
			if !slices.Contains([]string{"limit", "status", "after"}, name) || len(given) > 1 {
				t.Errorf("%q is accepted", raw)
			}
		}
		limit, _ := strconv.Atoi(cmp.Or(values.Get("limit"), "20"))
		after, _ := strconv.ParseInt(cmp.Or(values.Get("after"), "0"), 10, 64)
		if p.limit != limit || limit < 1 || limit > 100 || string(p.status) != values.Get("status") || p.after != after || after < 0 {
			t.Errorf("%q is read as %+v", raw, p)
		}
	})
}

// BenchmarkCounting is what /metrics costs every request.
func BenchmarkCounting(b *testing.B) {
	service := newService(nil, settings{}, slog.New(slog.DiscardHandler))
	w := &response{start: time.Now(), status: 200, counts: service.operations["listPets"]}
	r := httptest.NewRequest("GET", "/v1/pets", nil)
	for b.Loop() {
		service.count(w, r)
	}
}

// BenchmarkRequest is one complete request without the network.
func BenchmarkRequest(b *testing.B) {
	for _, test := range []struct {
		name, target string
		status       int
	}{
		{"list", "/v1/pets", 200},
		{"filtered", "/v1/pets?limit=20&status=sold", 200},
		{"get", "/v1/pets/5", 200},
		{"refused", "/v1/pets?limit=x", 400},
	} {
		b.Run(test.name, func(b *testing.B) {
			store, err := openStore(b.Context(), filepath.Join(b.TempDir(), "bench.db"), forNewKey, testLog)
			if err != nil {
				b.Fatal(err)
			}
			defer store.Close()
			token := newSecret(false)
			if _, err := insertKey(context.Background(), store, &apiKey{Plan: "enterprise", account: account{quota: quota{math.MaxInt64, math.MaxInt64}}}, token, false); err != nil {
				b.Fatal(err)
			}
			for range 100 {
				if _, err := store.createPet(NewPet{"Rex", 1, Sold}); err != nil {
					b.Fatal(err)
				}
			}
			service := newService(store, settings{}, slog.New(slog.DiscardHandler))
			r := httptest.NewRequest("GET", test.target, nil)
			r.Header.Set("Authorization", "Bearer "+string(token))
			first := httptest.NewRecorder()
			if service.ServeHTTP(first, r); first.Code != test.status {
				b.Fatalf("status %d, want %d", first.Code, test.status)
			}
			b.ReportAllocs()
			for b.Loop() {
				service.ServeHTTP(discard{http.Header{}}, r)
			}
		})
	}
}

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}
