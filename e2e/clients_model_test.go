package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestModel does at random what callers do, and compares every answer with a
// model of a few slices. Each run has a server of its own, so that a failure
// shrinks to the few steps that bring it about; rapid prints them, and the
// flag that repeats them.
func TestModel(t *testing.T) {
	t.Parallel()
	// 20 runs instead of rapid's 100 take some seconds; -rapid.checks asks for more.
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		noError(t, checks.Value.Set(strconv.Itoa(soak(20))))
	}
	onBothEngines(t, func(t *testing.T, on engine) {
		rapid.Check(t, func(r *rapid.T) {
			s := on.start(t)
			defer s.stop()
			m := &model{server: s, contract: newContract(t, s), once: map[string]created{}}
			r.Repeat(rapid.StateMachineActions(m))
			if log := s.log.String(); strings.Contains(log, `"ERROR"`) {
				r.Fatalf("the service logs an error:\n%s", log)
			}
		})
	})
}

// pet is the test's own copy of the wire's Pet.
type pet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

// model is what the service should hold. Its exported methods are the actions.
type model struct {
	server   *server
	contract *contract
	pets     []pet              // by id, which is the index plus 1
	once     map[string]created // by Idempotency-Key
	keys     []string           // of once, in order of use
	pages    []page             // all 200s to lists, for conditional requests
	full     page               // the list as of the last Check
}

// created is what must come again for the same Idempotency-Key.
type created struct{ request, answer, location string }

// page is a list as it was, at its query. What makes it another page is its
// body or its Link: a client that is told 304 would not look for the next page.
type page struct{ query, etag, body, link string }

func (p page) alike(other page) bool { return p.body == other.body && p.link == other.link }

func (m *model) get(t *rapid.T, ctx context.Context, want, target string,
	headers ...string) *answer {
	t.Helper()
	return m.contract.mustSend(t, ctx, want, http.MethodGet, target, "", headers...)
}

var (
	statuses = []string{"available", "pending", "sold"}

	// Characters that JSON, HTML, SQL, JavaScript or a terminal treat in a way of their own.
	odd = []rune("\"\\/<>&'%_;\u00a0\u00ad\u0301\u115f\u200d\u202e\u2028\u2029\u2800\u3000" +
		"\ufeff\ufffd\uffff🐈\U0010ffff")
	names = rapid.OneOf(
		rapid.StringMatching(`[A-Za-z]{1,8}`),
		rapid.StringOfN(rapid.RuneFrom(odd, unicode.Latin, unicode.Han, unicode.Zs), 1, 12, -1),
		rapid.StringOfN(rapid.SampledFrom([]rune("aé猫🐈")), 199, 201, -1),
		rapid.SampledFrom([]string{"\u200b\u0301", "\u3164"}),
		rapid.SampledFrom([]string{"", " ", "\u3000\u2003", " x ", "tab\t", "\x00", "\x7f",
			"\u0085", "null", "1", "`; DROP TABLE pets"}),
	)
	categories = rapid.OneOf(rapid.Int64(),
		rapid.SampledFrom([]int64{0, -1, math.MaxInt64, math.MinInt64, 1<<53 + 1}))
)

// acceptable is the decision about names: 1 to 200 characters, one of which shows, and no control
// characters.
func acceptable(name string) bool {
	shows := func(c rune) bool {
		hidden := unicode.In(c, unicode.Z, unicode.Cf, unicode.Mn)
		return !hidden && !strings.ContainsRune("\u115f\u1160\u2800\u3164\uffa0", c)
	}
	return strings.ContainsFunc(name, shows) && utf8.RuneCountInString(name) <= 200 &&
		!strings.ContainsFunc(name, unicode.IsControl)
}

// jsonString writes the string as people do, or with escapes only.
func jsonString(s string, escapes bool) string {
	if !escapes {
		b, _ := json.Marshal(s)
		return string(b)
	}
	b := []byte{'"'}
	for _, unit := range utf16.Encode([]rune(s)) {
		b = fmt.Appendf(b, `\u%04x`, unit)
	}
	return string(append(b, '"'))
}

// Create adds an animal, at times with an Idempotency-Key, new or used, or with a name that is
// refused.
func (m *model) Create(t *rapid.T) {
	p := pet{Name: names.Draw(t, "name"), CategoryID: categories.Draw(t, "categoryId"),
		Status: rapid.SampledFrom(append(statuses, "")).Draw(t, "status")}
	body := `{"name":` + jsonString(p.Name, rapid.Bool().Draw(t, "escapes")) + `,"categoryId":` +
		strconv.FormatInt(p.CategoryID, 10)
	if p.Status == "" {
		p.Status = "available"
		body += "}"
	} else {
		body += `,"status":"` + p.Status + `"}`
	}
	key := rapid.SampledFrom([]string{"", "", "order-1", "~", strings.Repeat("k", 255)}).Draw(t,
		"Idempotency-Key")
	if !acceptable(p.Name) {
		if _, err := m.contract.send(t.Context(), "POST", "/pets", body); err == nil {
			t.Fatalf("the description allows the name %q, which is refused", p.Name)
		}
		m.contract.mustSend(t, misused, "400 invalid_body", "POST", "/pets", body,
			"Idempotency-Key:"+key)
		return
	}
	if first, used := m.once[key]; used {
		if first.request == body {
			m.replay(t, key)
			return
		}
		m.contract.mustSend(t, t.Context(), "422 idempotency_key_reused", "POST", "/pets", body,
			"Idempotency-Key:"+key)
		return
	}
	got := m.contract.mustSend(t, t.Context(), "201", "POST", "/pets", body, "Idempotency-Key:"+key)
	p.ID = int64(len(m.pets)) + 1
	if is := decode[pet](t, got.body); is != p {
		t.Fatalf("created %+v, want %+v", is, p)
	}
	location := got.header.Get("Location")
	if location != fmt.Sprint("/v1/pets/", p.ID) || got.header.Get("Idempotency-Replayed") != "" {
		t.Fatalf("the answer to a first request has the headers %v", got.header)
	}
	m.pets = append(m.pets, p)
	if key != "" {
		m.once[key] = created{body, got.body, location}
		m.keys = append(m.keys, key)
	}
}

// Replay repeats a request with an Idempotency-Key; nothing may be added, which Check sees.
func (m *model) Replay(t *rapid.T) {
	if len(m.keys) == 0 {
		t.Skip("no key is used yet")
	}
	m.replay(t, rapid.SampledFrom(m.keys).Draw(t, "Idempotency-Key"))
}

// replay does so with one key.
func (m *model) replay(t *rapid.T, key string) {
	t.Helper()
	first := m.once[key]
	got := m.contract.mustSend(t, t.Context(), "201", "POST", "/pets", first.request,
		"Idempotency-Key:"+key)
	if got.body != first.answer || got.header.Get("Location") != first.location ||
		got.header.Get("Idempotency-Replayed") != "true" {
		t.Fatalf("replayed %s %v, want %+v", got.body, got.header, first)
	}
}

// CreateWrong sends what is no new animal.
func (m *model) CreateWrong(t *rapid.T) {
	body := rapid.SampledFrom([]string{
		"", "null", "7", "[]", "{", "{}", `{"name":"Rex"}`, `{"categoryId":7}`, rex + rex, rex +
			"x",
		`{"name":"Rex","name":"Rex","categoryId":7}`, `{"Name":"Rex","categoryId":7}`,
		`{"name":"Rex","categoryId":7,"id":1}`,
		`{"name":null,"categoryId":7}`, `{"name":7,"categoryId":7}`,
		`{"name":"Rex","categoryId":null}`,
		`{"name":"Rex","categoryId":"7"}`, `{"name":"Rex","categoryId":1.0}`,
		`{"name":"Rex","categoryId":1e2}`,
		`{"name":"Rex","categoryId":9223372036854775808}`,
		`{"name":"Rex","categoryId":7,"status":null}`,
		`{"name":"Rex","categoryId":7,"status":"Sold"}`, "{\"name\":\"\xff\",\"categoryId\":7}",
		`{"name":"\ud83d","categoryId":7}`,
	}).Draw(t, "body")
	m.contract.mustSend(t, misused, "400 invalid_body", "POST", "/pets", body)
}

// List asks for any page.
func (m *model) List(t *rapid.T) {
	q := drawQuery(t)
	if rapid.Bool().Draw(t, "with after") {
		q.Set("after", fmt.Sprint(rapid.OneOf(rapid.Int64Range(0, int64(len(m.pets))+1),
			rapid.Just[int64](math.MaxInt64)).Draw(t, "after")))
	}
	m.list(t, "?"+q.Encode())
}

// Walk follows the Links from the first page to the end.
func (m *model) Walk(t *rapid.T) {
	query := "?" + drawQuery(t).Encode()
	for seen := 0; query != ""; seen++ {
		if seen > len(m.pets) {
			t.Fatalf("the Links do not end")
		}
		query = m.list(t, query)
	}
}

func drawQuery(t *rapid.T) url.Values {
	q := url.Values{}
	if limit := rapid.OneOf(rapid.IntRange(0, 5), rapid.SampledFrom([]int{19, 20, 21, 100})).Draw(t,
		"limit (0 for none)"); limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	if status := rapid.SampledFrom(append(statuses, "")).Draw(t, "status"); status != "" {
		q.Set("status", status)
	}
	return q
}

var nextLink = regexp.MustCompile(`^</v1/pets(\?[^>]*)>; rel="next"$`)

// list compares a page with the model's, and returns the query of the next one, or "".
func (m *model) list(t *rapid.T, query string) (next string) {
	t.Helper()
	got := m.get(t, t.Context(), "200", "/pets"+query)
	m.pages = append(m.pages, page{query, got.header.Get("ETag"), got.body, got.header.Get("Link")})

	q, err := url.ParseQuery(query[1:])
	if err != nil {
		t.Fatalf("%v", err)
	}
	limit, after := 20, int64(0)
	if q.Has("limit") {
		limit, _ = strconv.Atoi(q.Get("limit"))
	}
	if q.Has("after") {
		after, _ = strconv.ParseInt(q.Get("after"), 10, 64)
	}
	want := slices.DeleteFunc(slices.Clone(m.pets), func(p pet) bool {
		return p.ID <= after || q.Has("status") && p.Status != q.Get("status")
	})
	more := len(want) > limit
	want = want[:min(limit, len(want))]
	if is := decode[[]pet](t, got.body); !slices.Equal(is, want) {
		t.Fatalf("%s lists %+v, want %+v", query, is, want)
	}

	link := got.header.Get("Link")
	if !more {
		if link != "" {
			t.Fatalf("%s is the last page, but has the Link %s", query, link)
		}
		return ""
	}
	q.Set("after", fmt.Sprint(want[len(want)-1].ID)) // limit and status stay
	match := nextLink.FindStringSubmatch(link)
	if match == nil {
		t.Fatalf("%s has more behind it, but the Link %q", query, link)
	}
	if is, err := url.ParseQuery(match[1][1:]); err != nil || !reflect.DeepEqual(is, q) {
		t.Fatalf("%s has the Link %s (%v), want %v", query, link, err, q)
	}
	return match[1]
}

// ListWrong sends queries that must not be answered with just anything.
func (m *model) ListWrong(t *rapid.T) {
	q := rapid.SampledFrom([]string{
		"limit=0", "limit=101", "limit=-1", "limit=", "limit=1.0", "limit=x", "limit=1&limit=1",
		"status=", "status=Sold", "status=available,sold",
		"status=sold&status=sold", "after=-1", "after=", "after=x", "after=9223372036854775808",
		"Limit=1", "page=2", "limit=%zz", "limit=1;after=2",
	}).Draw(t, "query")
	m.get(t, misused, "400 invalid_parameter", "/pets?"+q)
}

// Get fetches an animal that there is.
func (m *model) Get(t *rapid.T) {
	if len(m.pets) == 0 {
		t.Skip("no animal yet")
	}
	want := rapid.SampledFrom(m.pets).Draw(t, "pet")
	target := fmt.Sprint("/pets/", want.ID)
	got := m.get(t, t.Context(), "200", target)
	if is := decode[pet](t, got.body); is != want {
		t.Fatalf("%s is %+v, want %+v", target, is, want)
	}
	// An animal never changes, so its ETag is good for ever.
	m.get(t, t.Context(), "304", target, "If-None-Match: "+got.header.Get("ETag"))
}

// GetUnknown asks for an animal that there is not.
func (m *model) GetUnknown(t *rapid.T) {
	unknown := []string{fmt.Sprint(len(m.pets) + 1), "0", "-1", "+1", "01", "1.0", "abc",
		"9223372036854775807", "9223372036854775808"}
	m.get(t, misused, "404 not_found", "/pets/"+rapid.SampledFrom(unknown).Draw(t, "id"))
}

// Revalidate sends a stored ETag: 304 if, and only if, the page is still the same.
func (m *model) Revalidate(t *rapid.T) {
	if len(m.pages) == 0 {
		t.Skip("nothing is stored yet")
	}
	stored := rapid.SampledFrom(m.pages).Draw(t, "stored")
	current := m.reload(t, stored)
	want := "200"
	if stored.alike(current) {
		want = "304"
	}
	form := rapid.SampledFrom([]string{"%s", "W/%s", `"other", %s`}).Draw(t, "form")
	got := m.get(t, t.Context(), want, "/pets"+stored.query, "If-None-Match: "+fmt.Sprintf(form,
		stored.etag))
	if got.header.Get("ETag") != current.etag || want == "200" && got.body != current.body {
		t.Fatalf("revalidated as %v %s, want %q", got.header, got.body, current)
	}
	m.get(t, t.Context(), "304", "/pets"+stored.query, "If-None-Match: *")
}

// reload lists a page anew. Its ETag must have changed if, and only if, the page has.
func (m *model) reload(t *rapid.T, stored page) (current page) {
	t.Helper()
	m.list(t, stored.query)
	current = m.pages[len(m.pages)-1]
	if stored.alike(current) != (stored.etag == current.etag) {
		t.Fatalf("of these, only the pages or only the ETags are alike: %q, %q", stored, current)
	}
	return current
}

// Restart stops the service and starts it on the same database: everything must still hold.
func (m *model) Restart(t *rapid.T) {
	m.server.stop()
	m.server.run()
}

// Check runs after every action: a new animal is there at once. The page asked
// for is just full, so that the next animal changes nothing of it but the Link.
func (m *model) Check(t *rapid.T) {
	choice := m.pages
	if m.full.query != "" {
		m.reload(t, m.full)
	}
	m.list(t, fmt.Sprint("?limit=", min(100, max(1, len(m.pets)))))
	m.full = m.pages[len(m.pages)-1]
	m.pages = choice // these two are not for Revalidate
}
