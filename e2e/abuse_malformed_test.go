package e2e

// Requests that no honest client sends, written byte by byte: what is
// malformed, too large, broken in the middle, or shaped so that two readers of
// one connection might see different requests in it. The measure is a strict
// reader of RFC 9112. What net/http refuses by itself has an example of each kind.

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// errorStatuses are all codes of the Error body, each with its status.
var errorStatuses = map[string]int{
	"invalid_body": 400, "invalid_parameter": 400, "missing_key": 401, "invalid_key": 401,
	"not_found":          404,
	"method_not_allowed": 405, "operation_removed": 410, "body_too_large": 413,
	"unsupported_media_type": 415,
	"idempotency_key_reused": 422, "rate_limited": 429, "key_banned": 429, "internal_error": 500,
	"unavailable": 503,
}

// reply is one answer that came over a connection.
type reply struct {
	status int
	header http.Header
	body   string
	last   bool // the service says that it ends the connection
}

// toRequest tells an answer to a request from net/http's own refusal of what
// never becomes one.
func (r reply) toRequest() bool { return r.header.Get("X-Request-Id") != "" }

// check holds the answer against the contract: net/http's own refusals end the
// connection, and those of the service are Errors. Nothing is the service's failure.
func (r reply) check() error {
	if !r.toRequest() {
		if !r.last || r.status < 400 || r.status >= 500 && r.status != http.StatusNotImplemented &&
			r.status != http.StatusHTTPVersionNotSupported {
			return fmt.Errorf("%d, %v is no request, and no refusal that ends the connection",
				r.status, r.header)
		}
		return nil
	}
	if r.status < 400 {
		return nil
	}
	var body struct {
		Code, Message *string
		Status        *int
	}
	decoder := json.NewDecoder(strings.NewReader(r.body))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&body)
	if err != nil || body.Code == nil || body.Message == nil || body.Status == nil ||
		r.header.Get("Content-Type") != "application/json" {
		return fmt.Errorf("%d with %q is no Error: %v", r.status, r.body,
			err) //nolint:errorlint // it may be nil
	}
	if want := errorStatuses[*body.Code]; want != r.status || *body.Status != r.status ||
		r.status >= 500 {
		return fmt.Errorf("%d with %q: the code %s is that of %d", r.status, r.body, *body.Code,
			want)
	}
	return nil
}

// dial opens a connection that ends itself when the service is silent for
// longer than any of its own limits allows.
func (s *server) dial() (*net.TCPConn, error) {
	u, err := url.Parse(s.url)
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), conn.SetDeadline(time.Now().Add(45 * time.Second))
}

// replies reads answers, to requests with the methods, or GET after them, until
// the service ends the connection. Its end may be a reset, when more was sent
// than the service cared to read; that it falls silent is an error.
func replies(conn io.Reader, methods ...string) (all []reply, err error) {
	reader := bufio.NewReader(conn)
	for {
		request := &http.Request{Method: "GET"}
		if len(all) < len(methods) {
			request.Method = methods[len(all)]
		}
		if _, err := reader.Peek(1); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return all, nil
		}
		response, err := http.ReadResponse(reader, request)
		if err != nil {
			return all, fmt.Errorf("after %d answers: %w", len(all), err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return all, fmt.Errorf("in answer %d: %w", len(all)+1, err)
		}
		if response.StatusCode >= 200 { // 100 Continue is no answer
			all = append(all, reply{response.StatusCode, response.Header, string(body),
				response.Close})
		}
	}
}

// exchange sends bytes, and then no more, and returns what comes back.
// anyKey in it becomes the server's key.
func (s *server) exchange(send string, methods ...string) ([]reply, error) {
	conn, err := s.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	go func() {
		// The service may end the connection before all is sent.
		_, _ = io.WriteString(conn, strings.ReplaceAll(send, anyKey, s.key))
		_ = conn.CloseWrite()
	}()
	return replies(conn, methods...)
}

// oddity is a row of the corpus.
type oddity struct {
	name     string
	send     string
	statuses []int // of the first answer; 0 is the end of the connection without one
	most     int   // how many requests a strict reader sees at most
}

// The pieces the corpus is made of. anyKey is replaced by a key, and as long as
// one, so that lengths stay right.
const (
	anyKey    = "pet_live_KKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK"
	authority = "Host: petstore\r\nAuthorization: Bearer " + anyKey + "\r\n"
	get       = "GET /v1/pets?limit=1 HTTP/1.1\r\n" + authority + "\r\n"
	smuggled  = "POST /v1/pets HTTP/1.1\r\n" + authority + "Content-Length: 34\r\n\r\n" +
		`{"name":"smuggled","categoryId":1}`
	chunkedTE = "Transfer-Encoding: chunked\r\n"
)

// list is a GET with further header lines.
func list(lines string) string {
	return "GET /v1/pets?limit=1 HTTP/1.1\r\n" + authority + lines + "\r\n"
}

// add is a POST with further header lines, which frame the body.
func add(lines, body string) string {
	return "POST /v1/pets HTTP/1.1\r\n" + authority + lines + "\r\n" + body
}

// sized is a POST with a right Content-Length.
func sized(body string) string {
	return add(fmt.Sprintf("Content-Length: %d\r\n", len(body)),
		body)
}

// chunk is a piece of a chunked body.
func chunk(data string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(data), data) }

// corpusOfHeads are request lines and headers that are wrong, or merely odd.
func corpusOfHeads() []oddity {
	large := func(size int) string { return list("X: " + strings.Repeat("a", size) + "\r\n") }
	return []oddity{
		{"nothing", "", []int{0}, 0},
		{"the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{400, 404, 505}, 1},
		{"a method nobody knows", strings.Replace(get, "GET", "BREW", 1), []int{405}, 1},
		{"OPTIONS of everything", "OPTIONS * HTTP/1.1\r\n" + authority + "\r\n", []int{404}, 1},
		{"a whole address", strings.Replace(get, "/v1/pets", "http://elsewhere/v1/pets", 1),
			[]int{200}, 1},
		{"dots", strings.Replace(get, "/v1/pets", "/x/../v1/pets", 1), []int{400, 404}, 1},
		{"an escaped zero", strings.Replace(get, "/v1/pets", "/v1/pets/%00", 1), []int{400, 404},
			1},
		{"a head that stops", strings.TrimSuffix(get, "\r\n"), []int{400, 0}, 0},
		{"an upgrade nobody offers", list("Connection: Upgrade\r\nUpgrade: h2c\r\n"), []int{200},
			1},
		{"a header of 15 KiB", large(15 << 10), []int{200}, 1},
		{"a header of 32 KiB", large(32 << 10), []int{431}, 1},
		{"ten thousand headers", list(strings.Repeat("X: 1\r\n", 10_000)), []int{431, 0}, 1},
		{"two keys", list("Authorization: Bearer " + anyKey + "\r\n"), []int{401}, 1},
	}
}

// corpusOfBodies are bodies over the limit, cut short, or broken in their framing.
func corpusOfBodies() []oddity {
	refused := []int{400}
	padded := func(size int) string {
		const pet = `{"name":"large","categoryId":1}`
		return pet + strings.Repeat(" ", size-len(pet))
	}
	broken := func(rest string) string { return add(chunkedTE, rest) }
	return []oddity{
		{"64 KiB", sized(padded(64 << 10)), []int{201}, 1},
		{"64 KiB and a byte", sized(padded(64<<10 + 1)), []int{413}, 1},
		{"64 KiB in chunks", broken(chunk(padded(64<<10)) + "0\r\n\r\n"), []int{201}, 1},
		{"64 KiB and a byte in chunks", broken(chunk(padded(64<<10)) + chunk(" ") + "0\r\n\r\n"),
			[]int{413}, 1},
		{"64 MiB in chunks, which would be seen in memory",
			broken(strings.Repeat(chunk(padded(1<<10)), 64<<10)), []int{413}, 1},
		{"65,536 chunks of one byte", broken(strings.Repeat("1\r\n \r\n", 64<<10) + "0\r\n\r\n"),
			refused, 1},
		{"a length of 10 GB", add("Content-Length: 10000000000\r\n", "{"), []int{413}, 1},
		{"another type of 10 GB", add("Content-Length: 10000000000\r\nContent-Type: text/xml\r\n",
			"<"), []int{415}, 1},
		{"a length that is too large", add("Content-Length: 100\r\n",
			`{"name":"cut","categoryId":1}`), refused, 1},
		{"a length that is too small", add("Content-Length: 5\r\n",
			`{"name":"cut","categoryId":1}`), refused, 2},
		{"chunks that stop", broken(chunk(`{"name":"cut",`)), refused, 1},
		{"a chunk size that is none", broken("xyz\r\n{}\r\n0\r\n\r\n"), refused, 1},
		{"a chunk of 2^63 bytes", broken("8000000000000000\r\n{}"), refused, 1},
		{"a trailer of 64 KiB", broken(chunk(`{"name":"cut","categoryId":1}`) + "0\r\nX: " +
			strings.Repeat("a", 64<<10) + "\r\n\r\n"), refused, 1},
		{"a wait for 100 Continue", add("Content-Length: 2\r\nExpect: 100-continue\r\n", "{}"),
			refused, 1},
	}
}

// corpusOfSmuggling hides a request that adds an animal where only a reader
// with the wrong idea of where the request before it ends would find it.
func corpusOfSmuggling() []oddity {
	refused := []int{400, 501}
	hidden := fmt.Sprintf("Content-Length: %d\r\n", len(smuggled))
	zero := "0\r\n\r\n"
	rows := []oddity{
		{"TE.CL", add(chunkedTE+"Content-Length: 4\r\n", chunk(smuggled)+zero), refused, 1},
		{"CL.TE with a good body", add("Content-Length: 3\r\n"+chunkedTE,
			chunk(`{"name":"first","categoryId":1}`)+zero+smuggled), []int{201, 400}, 1},
		{"two lengths", add(hidden+"Content-Length: 0\r\n", smuggled), refused, 1},
		{"a length hidden in a bare CR", list("X: 1\rContent-Length: 0\r\n"+hidden) + smuggled,
			[]int{200, 400}, 1},
		{"a body on a GET", list(hidden) + smuggled, []int{200}, 1},
		{"a body on a HEAD", "HEAD" + strings.TrimPrefix(list(hidden), "GET") + smuggled,
			[]int{200}, 1},
		{"a body without a key", "POST /v1/pets HTTP/1.1\r\nHost: petstore\r\n" + hidden + "\r\n" +
			smuggled, []int{401, 429}, 1},
		{"a body on a path that is not there", "POST /nowhere HTTP/1.1\r\nHost: petstore\r\n" +
			hidden + "\r\n" + smuggled, []int{404}, 1},
		{"a body of another type", add(hidden+"Content-Type: text/xml\r\n", smuggled), []int{415},
			1},
		{"a body that is not waited for",
			add(hidden+"Expect: 100-continue\r\nContent-Type: text/xml\r\n", smuggled), []int{415},
			1},
		{"a body far over the limit", add(fmt.Sprintf("Content-Length: %d\r\n", 9000*len(smuggled)),
			strings.Repeat(smuggled, 9000)), []int{413}, 1},
		{"chunks over the limit",
			add(chunkedTE, strings.Repeat(chunk(strings.Repeat(smuggled, 1000)), 9)+zero),
			[]int{413}, 1},
		{"an extension with a line end", add(chunkedTE, "2;a\n{}\r\n"+zero+smuggled), refused, 1},
		{"a trailer that looks like framing", add(chunkedTE, chunk("{}")+"0\r\n"+hidden+"\r\n") +
			get, refused, 2},
		{"HTTP/1.0 with chunks", "POST /v1/pets HTTP/1.0\r\n" + authority +
			"Connection: keep-alive\r\n" + chunkedTE + "\r\n" + smuggled, refused, 1},
	}
	// Only "chunked", alone, is a coding this service has to know.
	for _, lines := range []string{
		chunkedTE, "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: gzip, chunked\r\n",
		"Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding : chunked\r\n",
		"X: 1\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding:\r\n chunked\r\n",
	} {
		rows = append(rows, oddity{fmt.Sprintf("the lines %q", lines),
			add("Content-Length: 5\r\n"+lines, zero+smuggled), refused, 1})
	}
	return rows
}

// TestMalformedRequestsAreRefusedOneByOne sends the corpus. Whatever is in it,
// the answer is one of those a strict reader allows, within the service's own
// time limits, never the service's own failure, and no more requests
// are answered than a strict reader sees.
func TestMalformedRequestsAreRefusedOneByOne(t *testing.T) {
	s := start(t, debugFlags...)
	leavesNothing(t, s, func() {
		for kind, rows := range map[string][]oddity{"head": corpusOfHeads(),
			"body": corpusOfBodies(), "smuggling": corpusOfSmuggling()} {
			for _, row := range rows {
				t.Run(kind+", "+row.name, func(t *testing.T) { row.check(t, s) })
			}
		}
	})
	stored := s.everyAnimal(t)
	for _, hidden := range []string{"smuggled", "cut"} {
		if ids := stored[hidden]; ids != nil {
			t.Errorf("a strict reader does not see the animals %v, named %s", ids, hidden)
		}
	}
}

func (o oddity) check(t *testing.T, s *server) {
	method, _, _ := strings.Cut(o.send, " ")
	answers, err := s.exchange(o.send, method)
	noError(t, err)
	first, requests := 0, 0
	for i, a := range answers {
		if err := a.check(); err != nil {
			t.Error(err)
		}
		if i == 0 {
			first = a.status
		}
		if a.toRequest() {
			requests++
		}
	}
	if !slices.Contains(o.statuses, first) {
		t.Errorf("the first answer should be one of %v: %v", o.statuses, answers)
	}
	if requests > o.most {
		t.Errorf("%d requests are answered where a strict reader sees %d: %v", requests, o.most,
			answers)
	}
}
