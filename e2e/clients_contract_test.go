package e2e

// Proven here alone: responses of the built program fit its description as kin-openapi reads it, on
// a file and on a cluster; and what does not fit is noticed.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

// contract is a transport that holds every request and its answer against the
// description which the server under test serves. What does not fit is an
// error of the round trip, so that no caller can overlook it.
type contract struct {
	server *server
	doc    *openapi3.T
	router routers.Router
	base   http.RoundTripper // what carries the requests; a test may put a forger here

	mu   sync.Mutex
	seen map[string]bool // the answers so far, as named by outcome
}

func newContract(t testing.TB, s *server) *contract {
	t.Helper()
	res, err := http.Get(s.address() + "/openapi.json")
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET /openapi.json: %d, %v", res.StatusCode, err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		t.Fatalf("the description does not load: %v", err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatalf("the description is not valid: %v", err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &contract{server: s, doc: doc, router: router, base: &http.Transport{},
		seen: map[string]bool{}}
}

// misuse marks the context of a request that breaks the description on
// purpose: only its answer is checked, and it must be a refusal.
type misuse struct{}

var misused = context.WithValue(context.Background(), misuse{}, true)

// RoundTrip is http.RoundTripper.
func (c *contract) RoundTrip(req *http.Request) (*http.Response, error) {
	var sent []byte
	if req.Body != nil {
		var err error
		if sent, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(bytes.NewReader(sent))
	}
	res, err := c.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	for _, in := range c.operations(req) {
		in.Request.Body = io.NopCloser(bytes.NewReader(sent))
		if err := c.check(req.Context(), in, res, body); err != nil {
			return nil, fmt.Errorf("%s %s → %d %q breaks the contract of %s: %w", req.Method,
				req.URL, res.StatusCode, body, in.Route.Operation.OperationID, err)
		}
	}
	return res, nil
}

// operations are those that describe the answer to the request. HEAD is
// described by GET, and another unknown method's answer by all of the path.
func (c *contract) operations(req *http.Request) (all []*openapi3filter.RequestValidationInput) {
	method := req.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for _, candidates := range [][]string{{method}, {http.MethodGet, http.MethodPost}} {
		for _, m := range candidates {
			as := req.Clone(req.Context())
			as.Method = m
			if route, params, err := c.router.FindRoute(as); err == nil {
				all = append(all, &openapi3filter.RequestValidationInput{Request: as,
					PathParams: params, Route: route, Options: &strict})
			}
		}
		if len(all) > 0 {
			break
		}
	}
	return all
}

var strict = openapi3filter.Options{
	IncludeResponseStatus:             true,
	RejectWhenRequestBodyNotSpecified: true,
	SkipSettingDefaults:               true,
	AuthenticationFunc: func(_ context.Context, in *openapi3filter.AuthenticationInput) error {
		if !strings.HasPrefix(in.RequestValidationInput.Request.Header.Get("Authorization"),
			"Bearer ") {
			return errors.New("the request has no bearer key")
		}
		return nil
	},
}

// check holds one answer against one operation.
func (c *contract) check(ctx context.Context, in *openapi3filter.RequestValidationInput,
	res *http.Response, body []byte) error {
	if ctx.Value(misuse{}) == nil {
		if err := openapi3filter.ValidateRequest(ctx, in); err != nil {
			return err
		}
	} else if res.StatusCode < 400 {
		return errors.New("a misuse was not refused")
	}
	described := in.Route.Operation.Responses.Status(res.StatusCode)
	if described == nil {
		return errors.New("the status is not described")
	}
	bodiless := len(described.Value.Content) == 0 || res.Request.Method == http.MethodHead
	if bodiless != (len(body) == 0) {
		return errors.New("there is a body where none is described, or none where one is")
	}
	if err := onlyDescribed(described.Value, res.Header); err != nil {
		return err
	}
	// kin-openapi waves every 304 through. So it is shown a 200 described by the 304's headers.
	status := res.StatusCode
	if status == http.StatusNotModified {
		status = http.StatusOK
		operation := *in.Route.Operation
		operation.Responses = openapi3.NewResponses(openapi3.WithStatus(status, described))
		in.Route.Operation = &operation
	}
	options := strict
	options.ExcludeResponseBody = bodiless
	answer := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: status,
		Header: res.Header, Options: &options}
	if err := openapi3filter.ValidateResponse(ctx, answer.SetBodyBytes(body)); err != nil {
		return err
	}
	code, err := errorCode(described.Value, res.StatusCode, body)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[outcome(in.Route.Operation, res.StatusCode, code)] = true
	return nil
}

// onlyDescribed refuses headers that the description leaves out, which
// kin-openapi lets pass. Those of HTTP itself need no description.
func onlyDescribed(described *openapi3.Response, h http.Header) error {
	known := map[string]bool{"Content-Length": true, "Content-Type": len(described.Content) > 0,
		"Date": true}
	for name := range described.Headers {
		known[http.CanonicalHeaderKey(name)] = true
	}
	for name := range h {
		if !known[name] {
			return fmt.Errorf("the header %s is not described", name)
		}
	}
	if contentType := h.Get("Content-Type"); len(described.Content) > 0 &&
		described.Content[contentType] == nil {
		return fmt.Errorf("the Content-Type %q is not described", contentType)
	}
	return nil
}

// errorCode returns the code of an Error, "" for a success or a HEAD. The
// examples of an answer are named after its codes, so others are wrong there.
func errorCode(described *openapi3.Response, status int, body []byte) (string, error) {
	if status < 400 || len(body) == 0 {
		return "", nil
	}
	var e struct {
		Code   string
		Status int
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return "", err
	}
	if e.Status != status {
		return "", fmt.Errorf("the body's status is %d", e.Status)
	}
	if described.Content["application/json"].Examples[e.Code] == nil {
		return "", fmt.Errorf("the code %s is not among the examples", e.Code)
	}
	return e.Code, nil
}

func outcome(operation *openapi3.Operation, status int, code string) string {
	return strings.TrimSpace(fmt.Sprint(operation.OperationID, " ", status, " ", code))
}

// outcomes lists everything that the description says can happen.
func (c *contract) outcomes() (all []string) {
	for _, path := range c.doc.Paths.Map() {
		for _, operation := range path.Operations() {
			for status, response := range operation.Responses.Map() {
				if status < "400" {
					all = append(all, operation.OperationID+" "+status)
					continue
				}
				for code := range response.Value.Content["application/json"].Examples {
					all = append(all, operation.OperationID+" "+status+" "+code)
				}
			}
		}
	}
	return all
}

// send sends a request as the server's own send does; its answer fits the description.
func (c *contract) send(ctx context.Context, method, target, body string,
	headers ...string) (*answer, error) {
	return c.server.send(ctx, &http.Client{Transport: c}, method, target, body, headers...)
}

// mustSend sends, and wants an answer with this status and code, as in "404 not_found".
func (c *contract) mustSend(t testing.TB, ctx context.Context, want, method, target, body string,
	headers ...string) *answer {
	t.Helper()
	got, err := c.send(ctx, method, target, body, headers...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if is := strings.TrimSpace(fmt.Sprint(got.status, " ", got.code)); is != want {
		t.Fatalf("%s %s %.200q is answered %s %q, want %s", method, target, body, is, got.body,
			want)
	}
	return got
}

// TestContract provokes all that the description says can happen and that a
// caller can bring about; each answer must fit the description.
func TestContract(t *testing.T) {
	t.Parallel()
	onBothEngines(t, testContract)
}

func testContract(t *testing.T, on engine) {
	c := newContract(t, on.start(t))
	valid := func(want, method, target, body string, headers ...string) *answer {
		t.Helper()
		return c.mustSend(t, t.Context(), want, method, target, body, headers...)
	}
	invalid := func(want, method, target, body string, headers ...string) *answer {
		t.Helper()
		return c.mustSend(t, misused, want, method, target, body, headers...)
	}
	large := strings.Repeat(" ", 64<<10) + rex

	valid("200", "GET", "/pets", "")
	valid("201", "POST", "/pets", rex)
	valid("201", "POST", "/pets", `{"name":"Tom","categoryId":-3,"status":"sold"}`,
		"Idempotency-Key: tom")
	valid("201", "POST", "/pets", `{"name":"Tom","categoryId":-3,"status":"sold"}`,
		"Idempotency-Key: tom")
	valid("422 idempotency_key_reused", "POST", "/pets", rex, "Idempotency-Key: tom")
	page := valid("200", "GET", "/pets?limit=1&after=0", "")
	valid("200", "GET", "/pets?limit=100&status=sold", "")
	valid("304", "GET", "/pets?limit=1&after=0", "", "If-None-Match: "+page.header.Get("ETag"))
	pet := valid("200", "GET", "/pets/1", "")
	valid("304", "GET", "/pets/1", "", "If-None-Match: "+pet.header.Get("ETag"))
	valid("404 not_found", "GET", "/pets/999", "")
	valid("200", "HEAD", "/pets?limit=1", "")
	valid("200", "HEAD", "/pets/1", "")
	valid("404", "HEAD", "/pets/999", "")

	invalid("400 invalid_parameter", "GET", "/pets?limit=101", "")
	invalid("400 invalid_body", "POST", "/pets", `{"name":"Rex"}`)
	invalid("400 invalid_parameter", "POST", "/pets", rex, "Idempotency-Key: two words")
	invalid("400 invalid_parameter", "GET", "/pets/1?limit=1", "")
	invalid("404 not_found", "GET", "/pets/01", "")
	invalid("405 method_not_allowed", "DELETE", "/pets", "")
	invalid("405 method_not_allowed", "PUT", "/pets/1", rex)
	invalid("413 body_too_large", "POST", "/pets", large)
	invalid("415 unsupported_media_type", "POST", "/pets", large, "Content-Type: text/plain")

	// Three operations are let in, the next four (one, and a strike for each of
	// the limit's three) are refused, and one more strike bans the key.
	limited := "Authorization: Bearer " + c.server.newKey("-plan", "enterprise", "-per-minute", "3",
		"-per-day", "99")
	for range 3 {
		valid("200", "GET", "/pets", "", limited)
	}
	for _, want := range []string{"429 rate_limited", "429 key_banned"} {
		valid(want, "GET", "/pets", "", limited)
		valid(want, "POST", "/pets", rex, limited)
		valid(want, "GET", "/pets/1", "", limited)
		if want == "429 rate_limited" {
			valid(want, "GET", "/pets", "", limited)
		}
	}

	for range 10 { // twice three, and so all of the 60 that an address has
		for _, to := range []string{"GET /pets", "POST /pets", "GET /pets/1"} {
			method, target, _ := strings.Cut(to, " ")
			body := ""
			if method == http.MethodPost {
				body = rex
			}
			valid("401 invalid_key", method, target, body, "Authorization: Bearer pet_live_x")
			invalid("401 missing_key", method, target, body, "Authorization:")
		}
	}
	spent := invalid("429 rate_limited", "GET", "/pets", "", "Authorization:")
	if got := spent.header.Get("RateLimit-Policy"); got != `"address";q=60;w=60` {
		t.Errorf("without a key the policy is %s", got)
	}

	want := slices.DeleteFunc(c.outcomes(), func(outcome string) bool {
		// These need a broken disk, a defect, or the year 2030.
		code := outcome[strings.LastIndexByte(outcome, ' ')+1:]
		return slices.Contains([]string{"unavailable", "internal_error", "operation_removed"}, code)
	})
	for _, outcome := range want {
		if !c.seen[outcome] {
			t.Errorf("%s is described, but was not brought about", outcome)
		}
	}
	if len(want) < 28 { // a guard against finding nothing to check
		t.Errorf("only %d outcomes are described: %q", len(want), slices.Sorted(maps.Keys(c.seen)))
	}
}

// forger is a transport that spoils true answers on their way.
type forger struct {
	base  http.RoundTripper
	spoil func(*http.Response)
}

func (f forger) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := f.base.RoundTrip(req)
	if err == nil {
		f.spoil(res)
	}
	return res, err
}

// TestContractRefusesForgeries is the test of the test: a true answer passes
// and, after one change, does not, for the reason expected.
func TestContractRefusesForgeries(t *testing.T) {
	c := newContract(t, start(t))
	genuine := c.base
	c.mustSend(t, t.Context(), "201", "POST", "/pets", rex)
	etag := c.mustSend(t, t.Context(), "200", "GET", "/pets/1", "").header.Get("ETag")

	without := func(name string) func(*http.Response) {
		return func(res *http.Response) { res.Header.Del(name) }
	}
	with := func(name, value string) func(*http.Response) {
		return func(res *http.Response) { res.Header.Set(name, value) }
	}
	body := func(old, new string) func(*http.Response) {
		return func(res *http.Response) {
			data, _ := io.ReadAll(res.Body)
			res.Body = io.NopCloser(strings.NewReader(strings.Replace(string(data), old, new, 1)))
		}
	}
	const list, create, get, missing = "GET /pets", "POST /pets", "GET /pets/1", "GET /pets/999"
	for _, test := range []struct {
		name, request, header string
		spoil                 func(*http.Response)
		want                  string
	}{
		{"a required header is dropped", list, "", without("X-RateLimit-Reset"),
			`header "X-RateLimit-Reset" missing`},
		{"a header is not described", list, "", with("X-Powered-By", "Go"),
			"X-Powered-By is not described"},
		{"a 304 forgets the ETag", get, "If-None-Match: " + etag, without("ETag"),
			`"ETag" missing`},
		{"a 304 has a body", get, "If-None-Match: " + etag,
			func(res *http.Response) { res.Body = io.NopCloser(strings.NewReader("x")) },
			"there is a body"},
		{"200 for a 201", create, "", func(res *http.Response) { res.StatusCode = 200 },
			"the status is not described"},
		{"the content is of another type", list, "", with("Content-Type", "text/plain"),
			"not described"},
		{"a member is added", get, "", body(`{`, `{"colour":"red",`), "doesn't match schema"},
		{"an error's code belongs to another status", missing, "",
			body("not_found", "invalid_body"), "not among the examples"},
		{"an error's status is another", missing, "", body("404", "400"),
			"the body's status is 400"},
	} {
		t.Run(test.name, func(t *testing.T) {
			method, target, _ := strings.Cut(test.request, " ")
			send := func() error {
				data := ""
				if method == http.MethodPost {
					data = rex
				}
				_, err := c.send(t.Context(), method, target, data, test.header)
				return err
			}
			c.base = genuine
			if err := send(); err != nil {
				t.Fatalf("the true answer is refused: %v", err)
			}
			c.base = forger{genuine, test.spoil}
			if err := send(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("the forgery gives the error %v, want one about %q", err, test.want)
			}
		})
	}
	c.base = genuine
	if _, err := c.send(t.Context(), "GET", "/pets?limit=101", ""); err == nil {
		t.Error("a request outside the description passes without being marked as misuse")
	}
	if _, err := c.send(misused, "GET", "/pets", ""); err == nil {
		t.Error("a request marked as misuse passes although it succeeds")
	}
}
