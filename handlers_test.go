package main

// The HTTP contract, as a client sees it. Nearly all tests speak to a real server over loopback;
// those about the calendar call the handler in fake time.

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
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

// wireCodes are the error codes that clients know, with their statuses.
var wireCodes = map[string]int{
	"invalid_body": 400, "invalid_parameter": 400,
	"missing_key": 401, "invalid_key": 401,
	"not_found": 404, "method_not_allowed": 405, "operation_removed": 410,
	"body_too_large": 413, "unsupported_media_type": 415, "idempotency_key_reused": 422,
	"rate_limited": 429, "key_banned": 429,
	"internal_error": 500, "unavailable": 503,
}

// rexBody is the body of a creation.
const rexBody = `={"name":"Rex","categoryId":1}`

// shopDB names a new database for a shop: a file, but for TestTheContractOnACluster.
var shopDB = databasePath

// TestTheContractOnACluster runs what clients rely on, and the store has a part in, again.
func TestTheContractOnACluster(t *testing.T) {
	defer func(before func(testing.TB) string) { shopDB = before }(shopDB)
	shopDB = func(t testing.TB) string {
		return newCluster(t, 3).addresses()
	}
	for what, test := range map[string]func(t *testing.T){
		"pets":           TestAPetIsReturnedAsItWasCreated,
		"lists":          TestListing,
		"conditions":     TestConditionalRequests,
		"unknown pets":   TestUnknownPetsAreNotFound,
		"keys":           TestEveryRequestNeedsAKey,
		"staging":        TestAStagingInstanceTakesOnlyTestKeys,
		"deprecation":    TestTheOperatorSeesWhoUsesTheDeprecatedOperation,
		"repeats":        TestARepeatedCreationIsReplayed,
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
	s := &shop{t: t, store: openDatabase(t, shopDB(t))}
	haveRoom(s.store)
	s.service = newService(s.store, set, slog.New(slog.NewJSONHandler(&s.log, nil)))
	s.key = s.newKey(quota{1_000_000, 1_000_000})
	t.Cleanup(func() {
		_, found, isError := strings.Cut(s.log.String(), `"level":"ERROR"`)
		if isError && !s.wantError {
			t.Errorf("an error in the log: %s", brief(found))
		}
	})
	return s
}

// inFakeTime runs a test with such a shop.
func inFakeTime(t *testing.T, test func(t *testing.T, s *shop), change ...func(*settings)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, openShopInFakeTime(t, change...))
	})
}

func (s *shop) wantLog(want string) {
	s.t.Helper()
	wantPart(s.t, s.log.String(), want, "the log")
}

// Operations

func TestAPetIsReturnedAsItWasCreated(t *testing.T) {
	s := openShop(t)
	const want = `{"id":1,"name":"Rex \"the\" \\dog\\ <&> 🐶",` +
		`"categoryId":-9223372036854775808,"status":"sold"}`
	created := s.post("=" + strings.Replace(want, `"id":1,`, "", 1)).is(201)
	created.has("Location: /v1/pets/1", "Content-Type: application/json")
	created.has(fmt.Sprint("Content-Length: ", len(want)))
	created.says(want)
	s.get("/v1/pets/1").is(200).says(want)
	s.list().is(200).says("[" + want + "]")
}

func TestListing(t *testing.T) {
	s := openShop(t)
	s.stock(150)
	// A row has the query, the ids (from and to, and of them every so many), and the Link's query.
	for row, next := range rowsOf(t, `
		: 1..20 => after=20
		limit=1: 1..1 => limit=1&after=1
		limit=100: 1..100 => limit=100&after=100
		limit=100&after=50: 51..150 => none
		limit=100&after=51: 52..150 => none
		after=0&limit=2: 1..2 => limit=2&after=2
		after=150: none => none
		after=9223372036854775807: none => none
		status=sold: 3..60/3 => status=sold&after=60
		status=sold&limit=50: 3..150/3 => none
		status=sold&limit=49: 3..147/3 => limit=49&status=sold&after=147
		&limit=2&&status=pending&after=3&: 5..8/3 => limit=2&status=pending&after=8
		limit=%32&status=pendin%67&after=3: 5..8/3 => limit=2&status=pending&after=8`) {
		query, listed, _ := strings.Cut(row, ": ")
		first, last, step := int64(1), int64(0), int64(1)
		_, _ = fmt.Sscanf(listed, "%d..%d/%d", &first, &last, &step) // a part may be missing
		var ids []int64
		for id := first; id <= last; id += step {
			ids = append(ids, id)
		}
		link := ""
		if next != "none" {
			link = "</v1/pets?" + next + `>; rel="next"`
		}
		s.get("/v1/pets?" + query).has("Link: " + link).lists(ids...)
	}
}

func TestBaseURLMakesAddressesAbsolute(t *testing.T) {
	s := openShop(t, func(c *settings) { c.baseURL = "https://api.example.com/shop/v1" })
	s.stock(2)
	s.talk(`
		POST /v1/pets
		={"name":"Rex","categoryId":1}
		201
		Location: https://api.example.com/shop/v1/pets/3

		GET /v1/pets?limit=1
		200
		Link: <https://api.example.com/shop/v1/pets?limit=1&after=1>; rel="next"

		GET /v1/pets/1
		Host: evil.example
		200
		Link: <https://api.example.com/shop/v1/pets>; rel="successor-version"`)
}

func TestHEADIsGETWithoutABody(t *testing.T) {
	s := openShop(t)
	s.stock(30)
	for _, target := range []string{
		"/v1/pets?limit=5", "/v1/pets/3", "/v1/pets/99", "/v1/nowhere", "/v1/pets?limit=x",
	} {
		get := s.get(target)
		head := s.call("HEAD", target).is(get.status)
		for _, name := range []string{"Content-Type", "Content-Length", "ETag", "Link", "Sunset"} {
			head.has(name + ": " + get.header.Get(name))
		}
		head.says("")
	}
}

func TestConditionalRequests(t *testing.T) {
	s := openShop(t)
	s.stock(2)
	for _, target := range []string{"/v1/pets", "/v1/pets?limit=1", "/v1/pets/2"} {
		first := s.get(target).is(200)
		etag := first.header.Get("ETag")
		wantMatch(t, etag, `^"[!#-~]+"$`, "the ETag of ", target)
		for _, match := range []string{
			"TAG", "*", "W/TAG", `"other", TAG`, `"a",TAG,"b"`, "\"other\"\nIf-None-Match: TAG",
		} {
			condition := "If-None-Match: " + strings.ReplaceAll(match, "TAG", etag)
			again := s.get(target, strings.Split(condition, "\n")...).is(304).says("")
			again.has("ETag: "+etag, "Link: "+first.header.Get("Link"))
		}
		s.call("HEAD", target, "If-None-Match: "+etag).is(304)
		s.get(target, `If-None-Match: "other"`).is(200)
		s.get(target, "If-None-Match: "+strings.Trim(etag, `"`)).is(200)
	}
}

// What is wrong with a request

func TestListParametersAreRefusedByName(t *testing.T) {
	s := openShop(t)
	const limit = "limit must be an integer from 1 to 100"
	const status = "status must be one of available, pending, sold"
	const after = "after must be an integer of at least 0"
	const unknown = " is not a query parameter of this operation"
	hundred := strings.Repeat("x", 100)
	const unparsed = "the query string cannot be parsed: "
	for want, queries := range map[string]string{
		limit:  "limit=0 limit=101 limit=-1 limit= limit=ten limit=1.0 limit=1e1 limit=+5",
		status: "status= status=Sold status=gone status=sold,pending",
		after:  "after=-1 after=x after= after=9223372036854775808",

		"limit is given more than once":                 "limit=5&after=1&limit=5",
		"status is given more than once":                "status=sold&status=sold",
		"after is given more than once; " + after:       "after=x&after=2",
		`"page"` + unknown:                              "page=2",
		`"Limit"` + unknown:                             "Limit=5 limit=5&Limit=5",
		`""` + unknown:                                  "=",
		`"a"` + unknown + `; "b"` + unknown:             "b=1&a=2",
		limit + "; " + status:                           "limit=0&status=gone",
		status + "; " + after:                           "after=-1&status=gone",
		`"page"` + unknown + "; " + limit:               "limit=0&page=2",
		`"https://…n1"` + unknown:                       "https://a:" + hundred + hundred + "@n1",
		`"` + strings.Repeat("<", 100) + `…"` + unknown: strings.Repeat("%3C", 4000),

		unparsed + "invalid semicolon separator in query; " + status: "a;b&status=gone",
		unparsed + `invalid URL escape "%zz"`:                        "%zz",
	} {
		for query := range strings.FieldsSeq(queries) {
			s.get("/v1/pets?"+query).is(400, CodeInvalidParameter).tells(want)
		}
	}
	s.get("/v1/pets?limit=99999999999999999999").is(400, CodeInvalidParameter).tells(limit)
}

func TestOtherOperationsTakeNoQuery(t *testing.T) {
	s := openShop(t)
	s.stock(1)
	for _, query := range []string{"a=1", "%zz", "x;y", "limit=5"} {
		s.call("POST", "/v1/pets?"+query, rexBody).is(400, CodeInvalidParameter)
		s.get("/v1/pets/1?"+query).is(400, CodeInvalidParameter).has("Sunset:")
	}
	s.list().lists(1) // refused creations have left nothing
}

// TestAMessageIsBounded: it quotes 100 characters of what was sent, names 20 problems, says how
// many more there are, and has less than 4 KB.
func TestAMessageIsBounded(t *testing.T) {
	const required = "name: is required; categoryId: is required"
	for _, c := range []string{"x", "é", "🐈"} {
		hundred := strings.Repeat(c, 100)
		for sent, quoted := range map[string]string{hundred: hundred, hundred + c: hundred + "…"} {
			got := modelRefused(t, `{"`+sent+`":1}`)
			wantEqual(t, got, `"`+quoted+`": is unknown; `+required,
				"the message of ", sent)
		}
	}
	fields := func(n int, name string) string {
		field := `,"` + name + `":1`
		return "{" + strings.Repeat(field, n)[1:] + "}"
	}
	for n, end := range map[int]string{
		18:   "; " + required,
		19:   "; name: is required; and 1 more",
		20:   "; and 2 more",
		5000: "; and 4982 more",
	} {
		if got := modelRefused(t, fields(n, "f")); !strings.HasSuffix(got, end) {
			t.Errorf("of %d unknown fields the message is %q", n, got)
		}
	}
	// These take most room in JSON, where they are escaped, or escaped twice. That no Error is too
	// long is checked of each response.
	s := openShop(t)
	for _, c := range []string{"<", `\u0000`, `\u2028`, "\U0010ffff", `\\`, `\"`} {
		got := s.post("="+fields(30, strings.Repeat(c, 120))).is(400, CodeInvalidBody).err().Message
		named, more, _ := strings.Cut(got, "; and ")
		if n := strings.Count(named, ": is unknown"); more != strconv.Itoa(32-n)+" more" {
			t.Errorf("with fields of %q %d are named, and %q", c, n, more)
		}
	}
	s.post().is(400, CodeInvalidBody)
	s.list().lists()
}

func TestABodyIsPlainJSON(t *testing.T) {
	s := openShop(t)
	for status, headers := range map[int]string{
		201: `
			Content-Type:
			Content-Type: application/json
			Content-Type: application/json; charset=utf-8
			Content-Type: Application/JSON;charset=UTF-8
			Content-Encoding: identity
			Content-Encoding: Identity`,
		415: `
			Content-Type: text/plain
			Content-Type: application/x-www-form-urlencoded
			Content-Type: application/jsonp
			Content-Type: application/json; =
			Content-Type: json
			Content-Type: application/problem+json
			Content-Type: application/json, application/json
			Content-Encoding: gzip
			Content-Encoding: GZIP
			Content-Encoding: unknown
			Content-Encoding: identity, gzip
			Content-Encoding: gzip, identity
			Content-Encoding: identity;q=1`,
	} {
		for header := range linesOf(headers) {
			accepted := ""
			if status == 415 && strings.HasPrefix(header, "Content-Encoding") {
				accepted = "identity"
			}
			a := s.post(header, rexBody).has("Accept-Encoding: " + accepted)
			wantEqual(t, a.status, status, "the status with ", header)
		}
	}
	const json = "Content-Type: application/json"
	s.post(json, json, rexBody).is(415)
	s.post(json+`; a="x`, `Content-Type: y"`, rexBody).is(415) // together they would be one type
	s.post(json, "Content-Type: text/plain", rexBody).is(415)
	s.post("Content-Encoding: identity", "Content-Encoding: gzip", rexBody).is(415)
}

func TestBodiesHaveAtMost64KiB(t *testing.T) {
	s := openShop(t)
	fits := rexBody + strings.Repeat(" ", 64<<10+1-len(rexBody))
	s.post(fits).is(201)
	s.post(fits + " ").is(413)
	inChunks := io.MultiReader(strings.NewReader(fits[1:] + " "))
	s.send(s.request("POST", "/v1/pets", inChunks)).is(413)
}

func TestMediaTypeIsCheckedBeforeSizeAndSizeBeforeContent(t *testing.T) {
	openShop(t).talk(strings.ReplaceAll(`
		POST /v1/pets?bad=1
		Content-Type: text/plain
		=LARGE
		415

		POST /v1/pets?bad=1
		Content-Encoding: gzip
		=LARGE
		415

		POST /v1/pets?bad=1
		Idempotency-Key: a b
		=LARGE
		413

		POST /v1/pets?bad=1
		Idempotency-Key: a b
		=x
		400 invalid_parameter

		POST /v1/pets
		Idempotency-Key: a b
		=x
		400 invalid_parameter`, "LARGE", strings.Repeat("x", 64<<10+1)))
}

// raw sends text as a request of its own connection, and tells whether that ends.
func (s *shop) raw(format string, args ...any) (a reply, ends bool) {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	must(s.t, err)
	defer conn.Close()
	text := fmt.Sprintf(format, args...)
	must(s.t, errorOf(io.WriteString(conn, text)))
	must(s.t, conn.(*net.TCPConn).CloseWrite())
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(s.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(s.t, err)
	return reply{s.t, text, response.StatusCode, response.Header, string(body)}, response.Close
}

// TestAnErrorWaitsForTheBodyThatIsOnItsWay, or it would be lost: a connection that is closed while
// bytes arrive is reset. The wait is not the service's time.
func TestAnErrorWaitsForTheBodyThatIsOnItsWay(t *testing.T) {
	for _, c := range []struct {
		method, head string // the version of HTTP, and headers, one a line
		length, sent int    // KiB, which come after 3 seconds; 0 for a body in chunks
		status       int
		after        time.Duration
	}{
		{"POST", "HTTP/1.1", 30, 30, 415, 3 * time.Second},
		{"POST", "HTTP/1.1\nConnection: close", 30, 30, 415, 3 * time.Second},
		{"POST", "HTTP/1.0", 30, 30, 415, 3 * time.Second},
		{"POST", "HTTP/1.1\nTransfer-Encoding: chunked", 0, 0, 415, 0}, // read after the response
		{"POST", "HTTP/1.1\nConnection: close\nAuthorization: x", 30, 30, 401, 3 * time.Second},
		{"PUT", "HTTP/1.1\nConnection: close", 30, 30, 405, 3 * time.Second},
		{"POST", "HTTP/1.1\nConnection: close", 256, 256, 415, 3 * time.Second},
		{"POST", "HTTP/1.1\nConnection: close", 257, 1, 415, 0},
		{"POST", "HTTP/1.1\nConnection: close\nExpect: 100-continue", 30, 0, 415, 0},
		{"POST", "HTTP/1.1\nConnection: close", 30, 29, 415, 15 * time.Second},
	} {
		what := fmt.Sprintf("%s %q, %d of %d KiB", c.method, c.head, c.sent, c.length)
		inFakeTime(t, func(t *testing.T, s *shop) {
			front, l := startFront(t, nil, s.service.ServeHTTP)
			conn := l.dial()
			began := time.Now()
			if !strings.Contains(c.head, "Authorization") {
				c.head += "\nAuthorization: Bearer " + s.key
			}
			body := strings.Repeat("x", c.sent<<10)
			if c.length > 0 {
				c.head += fmt.Sprint("\nContent-Length: ", c.length<<10)
			} else {
				body = "1\r\nx\r\n0\r\n\r\n"
			}
			fmt.Fprintf(conn, "%s /v1/pets %s\r\nHost: x\r\nContent-Type: text/plain\r\n\r\n",
				c.method, strings.ReplaceAll(c.head, "\n", "\r\n"))
			go func() {
				time.Sleep(3 * time.Second)
				_, _ = io.WriteString(conn, body)
			}()
			response := <-conn.responses
			wantEqual(t, response.StatusCode, c.status, "the status of ", what)
			wantEqual(t, time.Since(began), c.after, "the time of the response to ", what)
			for name, value := range s.debug().currentMetrics().numbers {
				isTime := strings.HasPrefix(name, "petstore_request_duration_seconds_sum")
				if isTime && value > 0 {
					t.Errorf("of %s the service counts %v s as its own", what, value)
				}
			}
			time.Sleep(15 * time.Second) // until the deadline of the body, at most
			must(t, front.stop(t.Context(), l))
		})
	}
}

func TestABodyThatEndsEarlyIsRefused(t *testing.T) {
	s := openShop(t)
	a, _ := s.raw("POST /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
		"Content-Length: 50\r\n\r\n{\"name\":", s.key)
	r := s.request("POST", "/v1/pets", nil)
	a.is(400, CodeInvalidBody).promised(r)
	describedResponse(t, r, a)
}

func TestUnknownPetsAreNotFound(t *testing.T) {
	s := openShop(t)
	s.stock(1)
	s.get("/v1/pets/1").is(200)
	s.get("/v1/pets/%31").is(200) // the same address, RFC 3986 section 6.2.2.2
	for id := range strings.FieldsSeq(`2 abc +1 -1 0 -0 007 01 1.0 1e0 9223372036854775807
		9223372036854775808 18446744073709551617 1%20 1%2F1 %00 ١ 0x1 1_0`) {
		s.get("/v1/pets/" + id).is(404)
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	s := openShop(t)
	for target := range strings.FieldsSeq(`/v1 /v1/ /v1/pet /v1/pets/ /v1/pets/1/ /v1/pets/1/x
		/v1//pets /v1/../v1/pets /v1/./pets /v1/PETS /v1/pets%2F1 /v1%2Fpets`) {
		s.get(target).is(404)
		s.get(target, noKey).is(401, CodeMissingKey)
	}
	for target := range strings.FieldsSeq(
		"/v2/pets /v1pets //v1/pets /x/../v1/pets // /favicon.ico") {
		s.get(target, noKey).is(404).has("X-RateLimit-Limit:")
	}
	for _, method := range []string{"PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
		s.call(method, "/v1/pets").is(405).has("Allow: GET, HEAD, POST")
		s.call(method, "/v1/pets/1").is(405).has("Allow: GET, HEAD", "Sunset:")
		s.call(method, "/v1/pets", noKey).is(401)
	}
	s.call("POST", "/v1/pets/1", "={}").is(405)
}

// TestAConnectionEndsWhereAProxyMayReadItOtherwise: net/http hides whether a body in chunks came
// with a length too, and chunks in HTTP/1.0.
func TestAConnectionEndsWhereAProxyMayReadItOtherwise(t *testing.T) {
	s := openShop(t)
	const chunked = "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
	for head, ends := range map[string]bool{
		"1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}":                false,
		"1.1\r\nHost: x\r\n" + chunked:                                 true,
		"1.1\r\nHost: x\r\nContent-Length: 2\r\n" + chunked:            true,
		"1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}": true,
	} {
		a, got := s.raw("POST /v1/pets HTTP/%s", head)
		a.is(401)
		wantEqual(t, got, ends, "whether the connection ends after ", head)
	}
}

func TestRequestsForTheServerItselfAreAnErrorToo(t *testing.T) {
	s := openShop(t)
	s.server.Config.DisableGeneralOptionsHandler = newServer(s.service.log, nil, nil).
		DisableGeneralOptionsHandler
	for _, line := range []string{"OPTIONS * HTTP/1.1", "CONNECT example.com:443 HTTP/1.1"} {
		a, _ := s.raw("%s\r\nHost: x\r\n\r\n", line)
		a.is(404, CodeNotFound)
	}
}

// The deprecated operation

func TestTheDeprecatedOperationSaysSo(t *testing.T) {
	s := openShop(t)
	s.stock(1)
	s.talk(`
		GET /v1/pets/1
		200` + deprecated + `

		GET /v1/pets/2
		404` + deprecated + `

		GET /v1/pets/1
		If-None-Match: *
		304` + deprecated + `

		GET /v1/pets/1
		Authorization:
		401
		Deprecation:
		Sunset:

		PUT /v1/pets/1
		405
		Deprecation:
		Sunset:

		GET /v1/pets
		200
		Deprecation:
		Sunset:`)
}

// deprecated are the headers of the deprecated operation.
const deprecated = `
		Deprecation: @1795132800
		Sunset: Thu, 05 Dec 2030 00:00:00 GMT
		Link: </v1/pets>; rel="successor-version"`

func TestTheDeprecatedOperationIsRemovedOn5December2030(t *testing.T) {
	inFakeTime(t, func(t *testing.T, s *shop) {
		time.Sleep(time.Until(time.Date(2030, 12, 4, 23, 59, 59, 999e6, time.UTC)))
		s.post("Idempotency-Key: k", rexBody).is(201).has("Location: /v1/pets/1")
		s.talk(`
			GET /v1/pets/1
			200

			wait 1ms

			GET /v1/pets/1
			410` + deprecated + `

			GET /v1/pets/2
			410` + deprecated + `

			GET /v1/pets/abc
			410` + deprecated + `

			GET /v1/pets/1?x=y
			410` + deprecated + `

			GET /v1/pets/1
			Authorization:
			401

			POST /v1/pets
			={"name":"Rex","categoryId":1}
			201
			Location:
			={"id":2,"name":"Rex","categoryId":1,"status":"available"}`)
		s.post("Idempotency-Key: k", rexBody).is(201).has("Idempotency-Replayed: true", "Location:")
	})
}

// TestTheResponsesThatNobodyCanCauseAreDocumented: docs/api.md prints a 410 and a 500 whole, for
// the stubs of clients' tests. The date, the reset and the id of the request differ each time.
func TestTheResponsesThatNobodyCanCauseAreDocumented(t *testing.T) {
	varying := regexp.MustCompile(`(?m)^date: .*\n|\b[0-9a-f]{16}\b|reset: \d+`)
	common := func(text string) string {
		return varying.ReplaceAllString(strings.ToLower(text), "")
	}
	documented := func(name string) string {
		_, block, _ := strings.Cut(readText(t, "docs/api.md"), "`"+name+"`:\n\n```http\n")
		block, _, _ = strings.Cut(block, "\n```\n")
		return common(block)
	}
	whole := func(r reply) string {
		lines := []string{fmt.Sprintf("HTTP/1.1 %d %s", r.status, http.StatusText(r.status))}
		for _, name := range slices.Sorted(maps.Keys(r.header)) {
			for _, value := range r.header[name] {
				lines = append(lines, name+": "+value)
			}
		}
		return common(strings.Join(lines, "\n") + "\n\n" + r.body)
	}
	inFakeTime(t, func(t *testing.T, s *shop) {
		s.key = s.newKey(quota{10000, 10000})
		s.wantError = true
		s.route("/v1/boom", boom)
		wantEqual(t, documented("500.txt"), whole(s.get("/v1/boom").is(500)), "500.txt in api.md")
		time.Sleep(time.Until(time.Date(2030, 12, 5, 0, 0, 0, 0, time.UTC)))
		wantEqual(t, documented("410.txt"), whole(s.get("/v1/pets/1").is(410)), "410.txt in api.md")
	})
}

func TestTheOperatorSeesWhoUsesTheDeprecatedOperation(t *testing.T) {
	s := openShop(t)
	use := func() instant {
		t.Helper()
		mustFlush(t, s.service.ledger)
		return deprecatedUseOf(t, s.store, 1)
	}
	s.list().is(200)
	wantEqual(t, use(), 0, "what is noted after a list")
	before := instantOf(time.Now())
	s.get("/v1/pets/1").is(404)
	wantWithin(t, use(), before, instantOf(time.Now()), "the time that is noted")
}

// Idempotency

func TestARepeatedCreationIsReplayed(t *testing.T) {
	s := openShop(t)
	s.talk(strings.ReplaceAll(`
		POST /v1/pets
		Idempotency-Key: abc
		={"name":"Rex","categoryId":1}
		201
		Idempotency-Replayed:
		={"id":1,"name":"Rex","categoryId":1,"status":"available"}

		3 POST /v1/pets
		Idempotency-Key: abc
		={"name":"Rex","categoryId":1}
		201
		Idempotency-Replayed: true
		Location: /v1/pets/1
		={"id":1,"name":"Rex","categoryId":1,"status":"available"}

		POST /v1/pets
		Idempotency-Key: abc
		={"name": "Rex","categoryId":1}
		422

		POST /v1/pets
		Authorization: Bearer OTHER
		Idempotency-Key: abc
		={"name":"Rex","categoryId":1}
		201
		Idempotency-Replayed:
		Location: /v1/pets/2

		POST /v1/pets
		Idempotency-Key: bad
		=x
		400

		POST /v1/pets
		Idempotency-Key: bad
		={"name":"Rex","categoryId":1}
		201
		Idempotency-Replayed:`, "OTHER", s.newKey(quota{10, 10})))
	s.list().lists(1, 2, 3) // refusals are not remembered
}

func TestARepeatAfter24HoursIsNew(t *testing.T) {
	inFakeTime(t, func(_ *testing.T, s *shop) {
		s.talk(`
			POST /v1/pets
			Idempotency-Key: k
			={"name":"Rex","categoryId":1}
			201
			Location: /v1/pets/1

			wait 23h59m59.999s

			POST /v1/pets
			Idempotency-Key: k
			={"name":"Rex","categoryId":1}
			201
			Location: /v1/pets/1

			wait 1ms

			POST /v1/pets
			Idempotency-Key: k
			={"name":"Rex","categoryId":1}
			201
			Location: /v1/pets/2
			Idempotency-Replayed:`)
	})
}

func TestIdempotencyKeysAre1To255VisibleASCIICharacters(t *testing.T) {
	s := openShop(t)
	for key, status := range map[string]int{
		"a":                      201,
		"!~":                     201,
		strings.Repeat("k", 255): 201,
		"a b":                    400,
		"ü":                      400,
		strings.Repeat("k", 256): 400,
		"a\nIdempotency-Key: b":  400,
	} {
		headers := strings.Split("Idempotency-Key: "+key, "\n")
		a := s.post(append(headers, rexBody)...).is(status)
		if status == 400 {
			a.is(400, CodeInvalidParameter).
				tells("Idempotency-Key must be one value of 1 to 255 visible ASCII characters")
		}
	}
	empty := s.request("POST", "/v1/pets", strings.NewReader(rexBody[1:]))
	empty.Header.Set("Idempotency-Key", "")
	s.send(empty).is(400, CodeInvalidParameter)
}

// When things go wrong here

// route adds an operation to the API.
func (s *shop) route(path string, do func(w http.ResponseWriter) error) {
	op := func(w http.ResponseWriter, _ *http.Request, _ caller) error {
		return do(w)
	}
	s.service.add("GET "+path, "test", op)
}

// boom is what an operation of a shop may do.
func boom(http.ResponseWriter) error { panic("hush") }

func TestAPanicIsA500AndLogged(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.route("/v1/boom", boom)
	s.route("/v1/bug", func(http.ResponseWriter) error { return errors.New("hush") })
	for _, target := range []string{"/v1/boom", "/v1/bug"} {
		a := s.get(target).is(500)
		id := a.header.Get("X-Request-Id")
		wantCount(t, a.body, "hush", 0, "the response to ", target)
		wantPart(t, a.body, id, "the response to ", target)
		s.wantLog(id)
	}
	s.wantLog("hush")
	s.wantLog("handlers_test.go") // the trace
	s.route("/v1/late", func(w http.ResponseWriter) error {
		w.WriteHeader(200)
		panic("late")
	})
	response, err := http.DefaultTransport.RoundTrip(s.request("GET", "/v1/late", nil))
	if err == nil {
		_, err = io.ReadAll(response.Body)
		response.Body.Close()
	}
	if err == nil {
		t.Error("a response that panicked half way looks complete")
	}
}

// readOnly makes every commit fail, or lets commits succeed again.
func readOnly(t testing.TB, s *store, on bool) {
	t.Helper()
	_, err := fileEngine(s).conn.ExecContext(t.Context(), fmt.Sprint("PRAGMA query_only = ", on))
	must(t, err)
}

func TestAStoreThatCannotCommitIs503AndReadsGoOn(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.stock(3)
	readOnly(t, s.store, true)
	for range 2 { // each is logged, however fast they come
		a := s.post(rexBody).is(503).has("Retry-After: 1", "Location:")
		s.wantLog(`"level":"ERROR","msg":"store unavailable","request":"` +
			a.header.Get("X-Request-Id"))
	}
	s.get("/v1/pets?limit=3").is(200)
	s.get("/v1/pets/3").is(200)
	readOnly(t, s.store, false)
	s.post(rexBody).is(201).has("Location: /v1/pets/4")
}

// TestAFullQueueIsNoFaultOfTheStore: the client gets the same 503, and others get their 201. The
// log has no error, and nothing says that commits fail. A key and its successor fill it together.
func TestAFullQueueIsNoFaultOfTheStore(t *testing.T) {
	inReadyShop(t, func(t *testing.T, s *readyShop) {
		s.newKey(quota{10, 100}) // the first, whose usage has the id 1
		s.key = s.newKey(quota{10, 100})
		other := withKey(s.newKey(quota{10, 100}))
		mustWrite(t, s.store, sqlOf("UPDATE api_keys SET usage_id = 1 WHERE id = 2"))
		_, open := gateWrites(t, s.store)
		for range 1 + maxOfOne {
			go func() { must(t, errorOf(s.store.createPet(1, rex))) }()
			synctest.Wait()
		}
		for range 3 {
			a := s.post(rexBody).is(503, CodeUnavailable).has("Retry-After: 1")
			a.tells("too many writes wait already; try again")
		}
		go func() { s.post(other, rexBody).is(201) }()
		synctest.Wait()
		open()
		synctest.Wait()
		wantPets(t, s.store, 1+maxOfOne+1)
		numbers := s.debug().currentMetrics().numbers
		wantEqual(t, numbers["petstore_queue_refusals_total"], 3, "the metric of the queue")
		wantEqual(t, numbers["petstore_commit_failures_total"], 0, "commits that failed")
		for name, value := range numbers {
			isError := strings.HasPrefix(name, "petstore_errors_total") && value > 0
			if isError || strings.Contains(name, `status="503"`) {
				t.Errorf("%s is %v", name, value)
			}
		}
		wantEqual(t, s.log.String(), "", "the log")
		verdict := s.debug().judge(time.Now(), numbers)
		wantEqual(t, fmt.Sprint(verdict.Reasons), "[]", "the reasons of the verdict")
	})
}

func TestAStoreThatCannotBeReadIs500WithTheAddressesNumbers(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	fileEngine(s.store).reader.Close()
	unmet := withUnknownKey() // which has to be looked up
	for _, a := range []reply{
		s.list(unmet),
		s.post(unmet),
		s.get("/v1/pets/1", unmet),
	} {
		a.is(500).has("X-RateLimit-Remaining: 60")
		a.has(`RateLimit-Policy: "address";q=60;w=60`)
	}
}

// Ids that count would show a client how many requests there are in between.
func TestRequestIDsAreTheServicesOwnAndDoNotCount(t *testing.T) {
	s := openShopInFakeTime(t)
	var before uint64
	for range 100 {
		sent := s.list("X-Request-Id: mine").is(200).header.Get("X-Request-Id")
		id, err := strconv.ParseUint(sent, 16, 64)
		must(t, err)
		// By chance they are as near less often than once in 10^10 runs.
		if distance := int64(id - before); -1<<20 < distance && distance < 1<<20 {
			t.Errorf("%x follows %x", id, before)
		}
		before = id
	}
}

// Other origins

func TestCORSIsOffUnlessAskedFor(t *testing.T) {
	openShop(t).talk(`
		GET /v1/pets
		Origin: https://a.example
		200
		Access-Control-Allow-Origin:
		Vary:

		OPTIONS /v1/pets
		Authorization:
		Origin: https://a.example
		Access-Control-Request-Method: GET
		401`)
}

func TestCORSForNamedOrigins(t *testing.T) {
	origins := []string{"https://b.example", "https://a.example"}
	s := openShop(t, func(c *settings) { c.corsOrigins = origins })
	a := s.get("/v1/pets/9", "Origin: https://a.example").is(404)
	exposed := strings.ToLower(a.header.Get("Access-Control-Expose-Headers"))
	for name := range a.header {
		if !undescribed.MatchString(name) && !strings.Contains(exposed, strings.ToLower(name)) {
			t.Errorf("%s is not exposed", name)
		}
	}
	s.talk(`
		GET /v1/pets/9
		Origin: https://a.example
		404
		Access-Control-Allow-Origin: https://a.example
		Vary: Origin

		OPTIONS /v1/pets
		Authorization:
		Origin: https://a.example
		Access-Control-Request-Method: POST
		204
		Access-Control-Allow-Origin: https://a.example
		Access-Control-Allow-Methods: GET, HEAD, POST
		Access-Control-Allow-Headers: Authorization, Content-Type, Idempotency-Key, If-None-Match, *
		Access-Control-Max-Age: 86400
		X-RateLimit-Remaining: 60

		OPTIONS /v1/pets
		Authorization:
		Origin: https://c.example
		Access-Control-Request-Method: POST
		401
		Access-Control-Allow-Origin:

		GET /v1/pets
		Origin: https://c.example
		200
		Access-Control-Allow-Origin:
		Vary: Origin

		OPTIONS /v1/pets
		Origin: https://a.example
		405

		GET /v1/pets
		Authorization:
		Origin: https://a.example
		401
		Access-Control-Allow-Origin: https://a.example`)
}

// TestCORSForAllOrigins, at a service whose base URL is no part of any request.
func TestCORSForAllOrigins(t *testing.T) {
	openShop(t, func(c *settings) {
		c.corsOrigins = []string{"*"}
		c.baseURL = "https://api.example.com/v1"
	}).talk(`
		GET /v1/pets
		Origin: https://any.example
		Access-Control-Request-Method: GET
		200
		Access-Control-Allow-Origin: *

		OPTIONS /v1/pets/1
		Authorization:
		Origin: https://any.example
		Access-Control-Request-Method: GET
		204

		OPTIONS /v1/pets
		Authorization:
		Access-Control-Request-Method: GET
		401`)
}

// Fuzzing

// FuzzQuery holds parsePageRequest against net/url: what is accepted is exactly what the
// specification allows, and asks for what it says.
func FuzzQuery(f *testing.F) {
	for seed := range strings.SplitSeq(" limit=5 limit=100&status=sold&after=7 limit=0 a;b %zz "+
		"after=-1 limit=5&limit=5 status=%73old", " ") {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		page, err := parsePageRequest(&http.Request{URL: &url.URL{RawQuery: raw}})
		if err != nil {
			return
		}
		query, err := url.ParseQuery(raw)
		must(t, err)
		for name, given := range query {
			if !slices.Contains([]string{"limit", "status", "after"}, name) || len(given) > 1 {
				t.Errorf("%q is accepted", raw)
			}
		}
		limit, _ := strconv.Atoi(cmp.Or(query.Get("limit"), "20"))
		after, _ := strconv.ParseInt(query.Get("after"), 10, 64)
		want := pageRequest{limit, PetStatus(query.Get("status")), after, page.keptQuery}
		if page != want || limit < 1 || limit > 100 || after < 0 {
			t.Errorf("%q is read as %+v", raw, page)
		}
	})
}

// What keys and addresses may do, as a client sees it: who is let in, how often, and when a key is
// banned. The arithmetic of it is tested beside limits.go.

// from is the header in which a proxy names its client.
func from(address string) string { return "X-Forwarded-For: " + address }

// behindAProxy is the setting of a shop that believes X-Forwarded-For.
func behindAProxy(c *settings) { c.clientIPHeader = "X-Forwarded-For" }

func TestEveryRequestNeedsAKey(t *testing.T) {
	s := openShop(t)
	for code, credentials := range map[ErrorCode][]string{
		CodeMissingKey: {"", "Bearer", "Basic dXNlcjpwYXNz", "Bearers " + s.key, s.key},
		CodeInvalidKey: {
			"Bearer " + s.key + "x",
			"Bearer " + s.key + " x",
			"Bearer " + s.key[:len(s.key)-1] + "!",
			"Bearer " + string(newSecret(false)),
			"Bearer " + string(newSecret(true)),
		},
	} {
		challenge := `Bearer realm="petstore"`
		if code == CodeInvalidKey {
			challenge += `, error="invalid_token"`
		}
		for _, sent := range credentials {
			header := "Authorization: " + sent
			for _, a := range []reply{
				s.list(header),
				s.post(header),
				s.get("/v1/pets/1", header),
				s.get("/v1/nowhere", header),
			} {
				a.is(401, code).has("WWW-Authenticate: " + challenge)
				a.has(`RateLimit-Policy: "address";q=60;w=60`)
			}
		}
	}
	s.get("/v1/pets?key="+s.key, noKey).is(401, CodeMissingKey)
	twice := s.request("GET", "/v1/pets", nil)
	twice.Header.Add("Authorization", "")
	s.send(twice).is(401, CodeInvalidKey)
	s.list("Authorization: bearer " + s.key).is(200).has("WWW-Authenticate:")
	s.list("Authorization: BEARER   " + s.key).is(200)
}

func TestAStagingInstanceTakesOnlyTestKeys(t *testing.T) {
	s := openShop(t, func(c *settings) { c.staging = true })
	if !strings.HasPrefix(s.key, "pet_test_") {
		t.Fatal("the shop's key is", s.key[:9])
	}
	s.list().is(200)
	live := withUnknownKey()
	s.list(live).is(401, CodeInvalidKey).
		tells("this service takes only API keys that begin with pet_test_")
}

// Limits of keys

func TestEveryResponseSaysWhereTheKeyStands(t *testing.T) {
	inFakeTime(t, func(t *testing.T, s *shop) {
		s.key = s.newKey(quota{3, 100})
		// The window begins at 1.5 s and ends at 61.5, reported as 62.
		transcript := `
			wait 1.5s

			GET /v1/pets
			200
			X-RateLimit-Remaining: 2
			X-RateLimit-Reset: 62
			RateLimit: "minute";r=2;t=60, "day";r=99;t=86400

			wait 20s

			POST /v1/pets
			=x
			400
			X-RateLimit-Remaining: 1
			X-RateLimit-Reset: 62
			RateLimit: "minute";r=1;t=40, "day";r=98;t=86380

			GET /v1/pets
			If-None-Match: *
			304
			X-RateLimit-Remaining: 0
			X-RateLimit-Reset: 62
			RateLimit: "minute";r=0;t=40, "day";r=97;t=86380

			wait 300ms

			GET /v1/pets
			429 rate_limited
			Retry-After: 40
			X-RateLimit-Remaining: 0
			X-RateLimit-Reset: 62
			RateLimit: "minute";r=0;t=40, "day";r=97;t=86380

			wait 40s

			GET /v1/pets
			200
			Retry-After:
			X-RateLimit-Remaining: 2
			X-RateLimit-Reset: 122
			RateLimit: "minute";r=2;t=60, "day";r=96;t=86340`
		reset := regexp.MustCompile(`Reset: (\d+)`)
		began := time.Now().Unix()
		s.talk(reset.ReplaceAllStringFunc(transcript, func(line string) string {
			seconds, err := strconv.ParseInt(line[len("Reset: "):], 10, 64)
			must(t, err)
			return fmt.Sprint("Reset: ", began+seconds, `
				X-RateLimit-Limit: 3
				RateLimit-Policy: "minute";q=3;w=60, "day";q=100;w=86400`)
		}))
	})
}

// Limits of addresses

// TestCallersWithoutAValidKeyAreLimitedByAddress, and never banned. To look takes nothing.
func TestCallersWithoutAValidKeyAreLimitedByAddress(t *testing.T) {
	allOrigins := func(c *settings) {
		c.corsOrigins = []string{"*"}
	}
	inFakeTime(t, func(_ *testing.T, s *shop) {
		s.talk(strings.NewReplacer(
			"RESET", fmt.Sprint(time.Now().Add(time.Minute).Unix()),
			"PREFLIGHT", `OPTIONS /v1/pets
			Authorization:
			Origin: https://a.example
			Access-Control-Request-Method: GET`,
		).Replace(`
			5 PREFLIGHT
			204
			RateLimit: "address";r=60;t=0

			GET /v1/pets
			Authorization:
			401
			RateLimit: "address";r=59;t=60

			wait 30s

			5 PREFLIGHT
			204
			RateLimit: "address";r=59;t=30

			59 GET /v1/pets
			Authorization:
			401
			X-RateLimit-Limit: 60
			X-RateLimit-Reset: RESET

			PREFLIGHT
			204
			RateLimit: "address";r=0;t=30

			500 GET /v1/pets
			Authorization: Bearer nonsense
			429 rate_limited
			Retry-After: 30
			X-RateLimit-Remaining: 0
			X-RateLimit-Reset: RESET
			RateLimit: "address";r=0;t=30
			RateLimit-Policy: "address";q=60;w=60
			WWW-Authenticate:

			GET /v1/pets
			200

			GET /v1/pets
			Authorization:
			X-Forwarded-For: 192.0.2.1, 203.0.113.9
			401
			RateLimit: "address";r=59;t=60

			wait 29.999s

			GET /v1/pets
			Authorization:
			429 rate_limited
			Retry-After: 1

			wait 1ms

			GET /v1/pets
			Authorization:
			401
			RateLimit: "address";r=59;t=60`))
	}, behindAProxy, allOrigins)
}

// TestAnAddressThatIsSpentIsLoggedOnceAWindow: otherwise nobody could tell who floods the service
// with 401s.
func TestAnAddressThatIsSpentIsLoggedOnceAWindow(t *testing.T) {
	inFakeTime(t, func(t *testing.T, s *shop) {
		for window := 1; window <= 2; window++ {
			last := ""
			for i := range 100 {
				a := s.list(noKey, from("2001:db8::1"))
				if i == 59 {
					last = a.header.Get("X-Request-Id")
				}
			}
			s.wantLog(`"msg":"an address has used up its limit of requests without a valid key",` +
				`"address":"2001:db8::/64","requests":60,"request":"` + last)
			wantCount(t, s.log.String(), "used up its limit", window, "the log")
			time.Sleep(time.Minute)
		}
	}, behindAProxy)
}

// TestADebugLineTellsTheCallersAddress: by it one finds who has used a key that leaked.
func TestADebugLineTellsTheCallersAddress(t *testing.T) {
	s := openShop(t, behindAProxy)
	s.service.log = newLogger(&s.log, "json", slog.LevelDebug)
	s.list(from("203.0.113.9")).is(200)
	s.wantLog(`"key":1,"address":"203.0.113.9/32"`)
}

// TestManySpentAddressesFillNoLog: one stranger may have them all.
func TestManySpentAddressesFillNoLog(t *testing.T) {
	inFakeTime(t, func(t *testing.T, s *shop) {
		spend := func(addresses int) {
			for i := range addresses {
				for range addressQuota {
					s.list(noKey, from(fmt.Sprintf("2001:db8:0:%x::1", i)))
				}
			}
		}
		spend(9)
		time.Sleep(time.Minute)
		spend(2)
		wantCount(t, s.log.String(), "\n", 2, "the log") // one for each moment
	}, behindAProxy)
}

// TestGuessesFromASpentAddressAreLookedUpOneAtATime for the whole service, and few wait for their
// turn. A key that the service knows waits for none of them.
func TestGuessesFromASpentAddressAreLookedUpOneAtATime(t *testing.T) {
	inFakeTime(t, func(t *testing.T, s *shop) {
		unmet := s.newKey(quota{10, 100})
		s.list().is(200) // now the service knows the shop's own key
		for range 60 {
			s.list(noKey, from("192.0.2.8")).is(401)
			s.list(noKey, from("192.0.2.9")).is(401)
		}
		var reads atomic.Int64
		held := make(chan struct{}) // holds lookups up
		watch := func(st statement, columns []any) {
			if columns == nil && strings.Contains(st.query, "k.digest = unhex(?)") {
				reads.Add(1)
				<-held
			}
		}
		s.store.engine = &watchedEngine{engine: s.store.engine, check: watch}
		var wg sync.WaitGroup
		start := func(key, address string, status int) {
			wg.Go(func() {
				s.list(withKey(key), from(address)).is(status)
			})
			synctest.Wait()
		}
		guess := func() string { return string(newSecret(false)) }
		wantReads := func(want int64) {
			t.Helper()
			synctest.Wait()
			wantEqual(t, reads.Load(), want, "the number of keys that were looked up")
		}
		time.Sleep(100 * time.Millisecond) // since the last line of the log
		start(guess(), "192.0.2.8", 429)
		start(unmet, "192.0.2.8", 200)
		start(unmet, "192.0.2.8", 200) // of these two one is looked up
		for range maxSuspects - 3 {
			start(guess(), "192.0.2.9", 429)
		}
		for range 20 { // more than may wait
			a := s.list(withKey(guess()), from("192.0.2.9")).is(503)
			a.has("Retry-After: 1", "X-RateLimit-Remaining: 0", "WWW-Authenticate:")
		}
		s.wantLog(`"msg":"a request gets 503, since its key cannot be looked up",` +
			`"address":"192.0.2.9/32",`)
		s.list(from("192.0.2.8")).is(200)
		s.list(withKey("nonsense"), from("192.0.2.8")).is(429, CodeRateLimited)
		wantReads(1)
		start(guess(), "192.0.2.10", 401) // its address is not spent
		wantReads(2)
		held <- struct{}{}
		held <- struct{}{}
		wantReads(3)
		close(held)
		wg.Wait()
		wantReads(maxSuspects)
		start(guess(), "192.0.2.9", 429) // nobody waits any more, so it is looked up
		wg.Wait()
	}, behindAProxy)
}

// TestAKnownKeyThatMayHaveChangedIsNoGuess: it is read anew, and waits for no guesses from its
// address.
func TestAKnownKeyThatMayHaveChangedIsNoGuess(t *testing.T) {
	s := openShop(t)
	s.list().is(200)
	for range 60 {
		s.list(noKey).is(401)
	}
	s.service.keys.suspects.Add(maxSuspects) // as many lookups as may wait
	s.list(withUnknownKey()).is(503)
	s.store.generation.Add(1) // as when another program has written
	s.list().is(200)
}

// Bans

func TestInsistingAfter429BansTheKey(t *testing.T) {
	inFakeTime(t, func(_ *testing.T, s *shop) {
		// The first refusal is no strike, and three strikes are as many as the limit, not more. To
		// ask again does not lengthen the ban.
		s.talk(strings.NewReplacer(
			"KEY", "Authorization: Bearer "+s.newKey(quota{3, 100}),
			"END", fmt.Sprint(time.Now().Add(10*time.Minute).Unix()),
		).Replace(`
			3 GET /v1/pets
			KEY
			200

			4 GET /v1/pets
			KEY
			429 rate_limited

			GET /v1/pets
			KEY
			429 key_banned
			Retry-After: 600
			X-RateLimit-Limit: 3
			X-RateLimit-Remaining: 0
			X-RateLimit-Reset: END

			wait 5m

			GET /v1/pets
			KEY
			429 key_banned
			Retry-After: 300
			X-RateLimit-Reset: END

			GET /v1/pets
			200

			wait 4m59.999s

			GET /v1/pets
			KEY
			429 key_banned
			Retry-After: 1

			wait 1ms

			GET /v1/pets
			KEY
			200
			X-RateLimit-Remaining: 2`))
		s.wantBans(1)
	})
}

// wantBans checks how many bans are counted and logged.
func (s *shop) wantBans(want int) {
	s.t.Helper()
	wantCount(s.t, s.log.String(), `"msg":"key banned"`, want, "the log")
	wantEqual(s.t, s.service.bans.Load(), int64(want),
		"the number of bans that are counted")
}

// TestABanThatCannotBeStoredIsLogged: the key stays rate_limited until the next one is stored, for
// which strikes are counted anew.
func TestABanThatCannotBeStoredIsLogged(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.key = s.newKey(quota{1, 100})
	s.list().is(200)
	s.list().is(429, CodeRateLimited)
	s.list().is(429, CodeRateLimited)
	readOnly(t, s.store, true)
	a := s.list().is(429, CodeRateLimited).has("X-RateLimit-Limit: 1")
	wantWithin(t, a.number("Retry-After"), 1, 60, "Retry-After")
	s.wantLog(`"level":"ERROR","msg":"cannot ban a key","key":2,"request":"` +
		a.header.Get("X-Request-Id"))
	s.wantBans(0)
	readOnly(t, s.store, false)
	s.list().is(429, CodeRateLimited)
	banned := s.list().is(429, CodeKeyBanned)
	s.wantLog(`"level":"WARN","msg":"key banned","key":2`)
	s.wantLog(`"request":"` + banned.header.Get("X-Request-Id"))
	s.wantBans(1)
}

func TestEveryOperationIsLimited(t *testing.T) {
	s := openShop(t)
	for _, target := range []string{
		"GET /v1/pets", "POST /v1/pets", "GET /v1/pets/1", "GET /v1/nowhere", "PUT /v1/pets",
	} {
		s.key = s.newKey(quota{1, 10})
		method, path, _ := strings.Cut(target, " ")
		s.call(method, path).has("X-RateLimit-Remaining: 0")
		s.talk(strings.ReplaceAll(`
			TARGET
			429 rate_limited
			Retry-After: 60

			TARGET
			429 rate_limited

			TARGET
			429 key_banned`, "TARGET", target))
	}
}

// TestTheDayTellsHowEveryRequestOfAKeyEnded: admitted or refused, and an error.
func TestTheDayTellsHowEveryRequestOfAKeyEnded(t *testing.T) {
	inFakeTime(t, func(t *testing.T, s *shop) {
		s.wantError = true
		days := func(what, want string) {
			t.Helper()
			must(t, s.service.ledger.flush(t.Context(), time.Now, false))
			wantEqual(t, fmt.Sprint(storedDays(t, s.store)), "["+want+"]",
				"what is stored after ", what)
		}
		s.talk(`
			GET /v1/pets
			200

			POST /v1/pets
			={}
			400

			GET /v1/pets/7
			404

			GET /v1/pets
			Authorization: Bearer nobody
			401

			GET /nowhere
			404`) // which no key opens
		days("ordinary requests", "2000-01-01: 3 admitted, 0 refused, 0 errors")

		s.route("/v1/slow", func(http.ResponseWriter) error {
			time.Sleep(time.Millisecond)
			return errors.New("slow")
		})
		s.route("/v1/boom", boom)
		readOnly(t, s.store, true)
		s.post(rexBody).is(503)
		s.get("/v1/boom").is(500)
		readOnly(t, s.store, false)
		days("two errors", "2000-01-01: 5 admitted, 0 refused, 2 errors")

		s.service.ledger.entries = map[int64]*entry{}
		fail := func(st statement, columns []any) {
			if strings.Contains(st.query, "FROM usage WHERE id = ?") && columns != nil {
				panic("the usage cannot be read")
			}
		}
		s.service.ledger.store = storeOn(&watchedEngine{engine: s.store.engine, check: fail})
		s.list().is(500)
		s.service.ledger.store = s.store
		days("a request that nobody could admit", "2000-01-01: 5 admitted, 0 refused, 3 errors")

		time.Sleep(24*time.Hour - time.Millisecond)
		s.get("/v1/slow").is(500) // and it is midnight
		s.list().is(200)
		days("midnight", "2000-01-01: 6 admitted, 0 refused, 4 errors "+
			"2000-01-02: 1 admitted, 0 refused, 0 errors")
	})
}
