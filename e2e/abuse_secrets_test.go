package e2e

// Proven here alone: no key stands in anything that the built program writes, and neither a byte
// nor the time of a refusal tells one key that is refused from another.

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestNoKeyIsWrittenAnywhere does with keys all that can be done with them, right
// and wrong, and then looks for them byte by byte in everything that the service
// and its commands have written, at the level of logging that tells most.
//
// Two things cannot be brought about from outside, and are left out: a panic,
// since none is known, in whose place stands the trace of all goroutines that
// the runtime writes when the process is told to quit; and 410
// operation_removed, which waits for the clock.
func TestNoKeyIsWrittenAnywhere(t *testing.T) {
	t.Run("over HTTP, logged as JSON", func(t *testing.T) {
		h := newHunt(t, "-log", "json")
		h.tour()
		h.quit()
	})
	t.Run("over TLS, logged as text", func(t *testing.T) {
		certificate := writeCertificate(t)
		h := newHunt(t, "-log", "text", "-tls-cert", certificate, "-tls-key", certificate)
		h.tour()
		h.tourTLS()
		h.server.stop()
		h.searchEnd()
	})
}

// fragment is how many random characters of a key in a row are taken for a leak.
const fragment = 12

// hunt is a service that is used in every way, and the keys that are looked for.
type hunt struct {
	*testing.T
	server  *server
	printed string            // what the service has printed for its first key
	owners  map[string]string // fragments of keys, in lower case: what the key is called
	caller  string            // a key that opens the service, and is put where no key belongs
	answers []byte            // all of them
}

// newHunt starts the service on a new database, which prints a first key.
func newHunt(t *testing.T, flags ...string) *hunt {
	t.Helper()
	s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
	s.run(append(flags, "-log-level", "debug", "-debug-addr", "127.0.0.1:0", "-cors-origin",
		"https://example.com")...)
	h := &hunt{T: t, server: s, owners: map[string]string{}}
	eventually(t, longEnough, func() error {
		if h.printed = s.out.String(); !strings.HasSuffix(h.printed, "/pets\n\n") {
			return fmt.Errorf("the service prints no first key, but %q", h.printed)
		}
		return nil
	})
	s.key = keyForm.FindString(h.printed)
	h.add("first", s.key)
	return h
}

// add names a key that is looked for from now on.
func (h *hunt) add(name, key string) {
	random := strings.ToLower(key[len("pet_live_"):][:32])
	for i := range len(random) - fragment + 1 {
		h.owners[random[i:i+fragment]] = name
	}
}

// search looks for fragments of all keys but those that are called as allowed.
// The service may have changed the case, as net/http does in the name of a header.
func (h *hunt) search(where string, text []byte, allowed ...string) {
	h.Helper()
	lower := bytes.ToLower(text)
	for i := 0; i+fragment <= len(lower); i++ {
		owner := h.owners[string(lower[i:i+fragment])]
		if owner != "" && !slices.Contains(allowed, owner) {
			h.Errorf("%s: the key %q is in it: …%q…", where, owner,
				lower[max(0, i-60):min(len(lower), i+60)])
			return
		}
	}
}

// command runs a command, be it one that fails, and searches what it writes. A
// new key stands on stdout, alone, and is called by the name.
func (h *hunt) command(name string, args ...string) (key string) {
	h.Helper()
	cmd := program(args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if name != "" {
		if key = strings.TrimSuffix(string(stdout), "\n"); err != nil ||
			keyForm.FindString(key) != key {
			h.Fatalf("petstore %s: want a key on stdout, not %q; %v %s", strings.Join(args, " "),
				stdout, err, stderr.Bytes())
		}
		h.add(name, key)
		stdout = nil
	}
	h.search("stdout of petstore "+args[0], stdout, "written")
	h.search("stderr of petstore "+args[0], stderr.Bytes())
	return key
}

// key runs a command of keys on the database.
func (h *hunt) key(name, verb string, args ...string) string {
	h.Helper()
	return h.command(name, append([]string{"key", verb, "-db", h.server.db}, args...)...)
}

// tour makes and changes keys, brings every operation and error about, and puts
// a key into every place of a request.
func (h *hunt) tour() {
	h.Helper()
	h.caller = h.key("caller", "create", unlimited...)
	// This one is written on purpose: a client names an animal and an
	// Idempotency-Key after it, and an operator another key. So it may be in
	// the database, and in the answers to that client.
	written := h.key("written", "create", unlimited...)
	h.key("named", "create", "-name", written)
	others := []string{
		h.server.key, h.key("revoked", "create"), h.key("banned", "create", "-plan", "enterprise",
			"-per-minute", "5", "-per-day", "9"),
		h.key("rotated", "create"), h.key("short-lived", "create", "-expires", "1s"),
		h.key("other environment", "create", "-test"), forge(randomText(32)),
	}
	h.add("unknown", others[len(others)-1])
	for _, key := range append(others, written, h.caller) {
		for range 14 {
			h.send(key, "GET /v1/pets?limit=1\nAUTH")
		}
	}
	id := func(key string) string { return fmt.Sprint(h.server.listed(key).ID) }
	others = append(others, h.key("successor", "rotate", "-overlap", "0s", id(others[3])))
	h.key("", "revoke", id(others[1]))
	h.key("", "set", "-plan", "pro", id(others[0]))
	h.key("", "unban", id(others[2]))
	h.key("", "list")
	h.key("", "list", "-json")
	h.key("", "show", id(h.caller))
	for _, mistake := range [][]string{
		{"key", "revoke", "-db", h.server.db, h.caller}, {"key", "show", "-db", h.server.db,
			h.caller}, {"key", h.caller}, {h.caller},
		{"key", "set", "-db", h.server.db, "-plan", h.caller, "1"}, {"key", "create", "-db",
			h.server.db, h.caller}, {"-addr", h.caller}, {"-" + h.caller},
	} {
		h.command("", mistake...)
	}
	for _, key := range others {
		h.send(key, "GET /v1/pets?limit=1\nAUTH")
	}
	for _, request := range append(requests, misplaced...) {
		h.send(h.caller, request)
	}
	for _, bytes := range malformed {
		h.exchange(strings.ReplaceAll(bytes, "KEY", h.caller))
	}
	for _, request := range stored {
		h.send(written, request)
	}
	h.breakStore()
	h.checkCodes()
	h.command("", "backup", "-db", h.server.db, filepath.Join(filepath.Dir(h.server.db), "copy.db"))
	for _, file := range []string{"", "-wal", "-shm", "-lock"} { // those of a running service
		if _, err := os.Stat(h.server.db + file); err != nil {
			h.Error(err)
		}
	}
	h.searchDebug()
	h.searchAll()
}

// Requests in which KEY stands for a key, PART for its random characters without
// what tells that they are one, and AUTH for its Authorization. What every
// request needs besides is added when it is sent.
var (
	// requests bring about the answers that the service gives in peace.
	requests = []string{
		"GET /v1/pets", "GET /v1/pets\nAUTH", "GET /v1/pets?limit=1&status=sold&after=1\nAUTH",
		"HEAD /v1/pets\nAUTH",
		"POST /v1/pets\nAUTH\n\n" + rex, "GET /v1/pets/1\nAUTH",
		"GET /v1/pets/1\nAUTH\nIf-None-Match: *", "GET /v1/pets/999999\nAUTH",
		"DELETE /v1/pets\nAUTH", "GET /v1/pets?limit=0\nAUTH", "GET /openapi.json", "GET /",
		"GET /v1/pets\nAuthorization: Bearer unknown",
	}

	// misplaced hold a key where it does not belong.
	misplaced = []string{
		"GET /v1/pets/KEY\nAUTH", "GET /v1/KEY\nAUTH", "GET /v1//KEY\nAUTH", "GET /v1/pets/KEY",
		"GET /KEY", "GET /KEY/../KEY", "GET http://KEY/KEY\nAUTH",
		"GET /v1/pets/PART\nAUTH", "PART /PART\nAUTH\nUser-Agent: PART\nPART: PART",
		"GET /v1/pets\nAuthorization: Bearer PART", "GET /v1/pets?limit=PART\nAUTH",
		"GET /v1/pets?KEY\nAUTH", "GET /v1/pets?key=KEY\nAUTH", "GET /v1/pets?access_token=KEY",
		"GET /v1/pets?limit=KEY\nAUTH", "GET /v1/pets?status=KEY\nAUTH",
		"GET /v1/pets?after=KEY\nAUTH", "GET /v1/pets?%zz=KEY\nAUTH", "GET /v1/pets?KEY;KEY\nAUTH",
		"GET /v1/pets/1?KEY\nAUTH",
		"GET /openapi.json?KEY", "GET /?KEY", "KEY /v1/pets\nAUTH", "KEY /v1/pets", "KEY /KEY",
		"CONNECT KEY:443", "OPTIONS *\nAUTH",
		"GET /v1/pets\nAUTH\nUser-Agent: KEY\nReferer: http://KEY/\nCookie: key=KEY\nAccept: " +
			"KEY\nIf-None-Match: KEY\nRange: KEY\nOrigin: https://KEY\nX-Request-Id: " +
			"KEY\nX-Api-Key: KEY\nX-Forwarded-For: KEY",
		"OPTIONS /v1/pets\nOrigin: https://example.com\nAccess-Control-Request-Method: " +
			"KEY\nAccess-Control-Request-Headers: KEY",
		"GET /v1/pets\nAUTH\nKEY: KEY", "GET /v1/pets\nAUTH\nExpect: KEY",
		"POST /v1/pets?KEY\nAUTH\n\n" + rex,
		"GET /v1/pets\nAuthorization: KEY", "GET /v1/pets\nAuthorization: Basic KEY",
		"GET /v1/pets\nAuthorization: BearerKEY", "GET /v1/pets\nAuthorization: Bearer KEYx",
		"GET /v1/pets\nAuthorization: Bearer KEY KEY", "GET /v1/pets\nAuthorization: Bearer\tKEY",
		"GET /v1/pets\nAuthorization: Bearer xKEY", "GET /v1/pets\nAUTH\nAUTH",
		"POST /v1/pets\nAUTH\nIdempotency-Key: KEY KEY\n\n" + rex,
		"POST /v1/pets\nAUTH\nIdempotency-Key: KEY\n\n{}",
		"POST /v1/pets\nAUTH\nContent-Type: KEY\n\n" + rex,
		"POST /v1/pets\nAUTH\nContent-Type: application/json; charset=KEY\nContent-Encoding: " +
			"KEY\n\n" + rex,
		"POST /v1/pets\nAUTH\n\nKEY", "POST /v1/pets\nAUTH\n\n\"KEY\"", `POST /v1/pets` +
			"\nAUTH\n\n" + `{"KEY":1,"name":"Rex","categoryId":7}`,
		"POST /v1/pets\nAUTH\n\n" + `{"name":"KEY"}`, "POST /v1/pets\nAUTH\n\n" +
			`{"name":"KEY","categoryId":"KEY","status":"KEY"}`,
		"POST /v1/pets\nAUTH\n\n" + `{"name":"Rex","categoryId":7,"status":"KEY` +
			strings.Repeat(" ", 64<<10) + `"}`,
	}

	// stored hold a key that the client wants to be stored.
	stored = []string{
		"POST /v1/pets\nAUTH\nIdempotency-Key: KEY\n\n" + `{"name":"KEY","categoryId":7}`,
		"POST /v1/pets\nAUTH\nIdempotency-Key: KEY\n\n" + `{"name":"KEY","categoryId":7}`,
		"POST /v1/pets\nAUTH\nIdempotency-Key: KEY\n\n" + `{"name":"KEY","categoryId":8}`,
		"GET /v1/pets?limit=100\nAUTH",
	}

	// malformed are no requests that the server can read, and sent as they are.
	malformed = []string{
		"KEY\r\n\r\n", "GET KEY HTTP/1.1\r\nHost: petstore\r\n\r\n", "GET / KEY\r\n\r\n",
		"GET / HTTP/1.1\r\nKEY\r\n\r\n", "GET / HTTP/1.1\r\nHost: KEY/\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: KEY\r\nHost: KEY\r\n\r\n",
		"GET /%zzKEY HTTP/1.1\r\nHost: petstore\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: petstore\r\nKEY : KEY\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: petstore\r\nX: KEY\x00\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: petstore\r\nContent-Length: KEY\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: petstore\r\nTransfer-Encoding: KEY\r\n\r\n",
		"POST /v1/pets HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer " +
			"KEY\r\nTransfer-Encoding: chunked\r\n\r\nKEY\r\n\r\n",
		"POST /v1/pets HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer " +
			"KEY\r\nTransfer-Encoding: chunked\r\nTrailer: KEY\r\n\r\n2\r\n{}\r\n0\r\nKEY: " +
			"KEY\r\n\r\n",
		"POST /v1/pets HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer " +
			"KEY\r\nContent-Length: 100\r\n\r\nKEY",
		"GET / HTTP/1.1\r\nHost: petstore\r\nX: " + strings.Repeat("KEY", 1000) + "\r\n\r\n",
	}
)

// send makes a request of one of the texts above, and keeps the answer.
func (h *hunt) send(key, request string) {
	h.Helper()
	head, body, _ := strings.Cut(request, "\n\n")
	line, headers, _ := strings.Cut(head, "\n")
	headers += fmt.Sprintf("\nHost: petstore\nConnection: close\nContent-Length: %d",
		len(strings.ReplaceAll(body, "KEY", key)))
	head = strings.ReplaceAll(line+" HTTP/1.1\n"+strings.TrimPrefix(headers, "\n"), "\n", "\r\n") +
		"\r\n\r\n"
	h.exchange(strings.NewReplacer("AUTH", "Authorization: Bearer "+key, "KEY", key, "PART",
		key[len("pet_live_"):]).Replace(head + body))
}

// exchange sends bytes and no more, and keeps what comes back until the server closes.
func (h *hunt) exchange(request string) {
	h.Helper()
	conn := h.dial()
	defer conn.Close()
	_, sendErr := io.WriteString(conn, request)
	closeErr := conn.(interface{ CloseWrite() error }).CloseWrite()
	answer, err := io.ReadAll(conn)
	if len(answer) == 0 { // else the server may have heard enough before the end
		h.Fatalf("there is no answer to %.200q: %v", request, errors.Join(sendErr, closeErr, err))
	}
	h.answers = append(h.answers, answer...)
	h.search(fmt.Sprintf("the answer to %.200q", request), answer, "written")
}

// dial connects to the service as it is served, in a way that ends within seconds.
func (h *hunt) dial() net.Conn {
	h.Helper()
	if strings.HasPrefix(h.server.url, "https:") {
		return h.connect(&tls.Config{InsecureSkipVerify: true}) // its own certificate
	}
	return h.connect(nil)
}

// connect does so in TLS, or bare.
func (h *hunt) connect(config *tls.Config) net.Conn {
	h.Helper()
	conn, err := net.Dial("tcp", h.address())
	noError(h, err)
	if config != nil {
		conn = tls.Client(conn, config)
	}
	noError(h, conn.SetDeadline(time.Now().Add(10*time.Second)))
	return conn
}

func (h *hunt) address() string {
	_, address, _ := strings.Cut(h.server.address(), "://")
	return address
}

// breakStore makes the store fail, so that the service logs what it does
// at the time: a create while another process holds the lock for writing, and
// a read while the table is elsewhere.
func (h *hunt) breakStore() {
	h.Helper()
	db := database(h.T, h.server.db, "PRAGMA busy_timeout = 10000")
	defer db.Close()
	for _, step := range []struct{ fault, request, mend string }{
		{"BEGIN IMMEDIATE", "POST /v1/pets\nAUTH\nIdempotency-Key: KEY\n\n" + rex, "ROLLBACK"},
		{"ALTER TABLE pets RENAME TO elsewhere", "GET /v1/pets?after=1\nAUTH\nX: KEY",
			"ALTER TABLE elsewhere RENAME TO pets"},
	} {
		_, err := db.Exec(step.fault)
		noError(h, err)
		h.send(h.caller, step.request)
		_, err = db.Exec(step.mend)
		noError(h, err)
	}
}

// checkCodes makes sure that nothing was left out: there was every error.
func (h *hunt) checkCodes() {
	h.Helper()
	for _, code := range []string{
		"invalid_body", "invalid_parameter", "missing_key", "invalid_key", "not_found",
		"method_not_allowed", "body_too_large", "unsupported_media_type",
		"idempotency_key_reused", "rate_limited", "key_banned", "internal_error", "unavailable",
	} {
		if !bytes.Contains(h.answers, []byte(`"code":"`+code+`"`)) {
			h.Errorf("no answer was %s", code)
		}
	}
}

// searchDebug reads what the debug address tells while a request with a key
// in every part of it waits for its body.
func (h *hunt) searchDebug() {
	h.Helper()
	waiting := h.wait()
	defer waiting.Close()
	for _, target := range []string{
		"/metrics", "/metrics?" + h.caller, "/healthz", "/readyz", "/" + h.caller, "/debug/pprof/",
		"/debug/pprof/" + h.caller, "/debug/pprof/cmdline",
		"/debug/pprof/goroutine?debug=1", "/debug/pprof/goroutine?debug=2",
		"/debug/pprof/heap?debug=1", "/debug/pprof/trace?seconds=0.1",
	} {
		r, err := http.NewRequestWithContext(h.Context(), http.MethodGet, h.server.debug+target,
			nil)
		noError(h, err)
		r.Header.Set("Authorization", "Bearer "+h.caller)
		response, err := http.DefaultClient.Do(r)
		noError(h, err)
		got, err := readAnswer(response)
		if err != nil || got.body == "" {
			h.Fatalf("%s answers %q, %v", target, got.body, err)
		}
		h.search("the debug address at "+target, []byte(got.body))
	}
}

// wait begins a request with a key in every part, whose handler has been
// reached when it returns.
func (h *hunt) wait() net.Conn {
	h.Helper()
	conn := h.dial()
	request := "POST /v1/pets?KEY HTTP/1.1\r\nHost: KEY\r\nAuthorization: Bearer " +
		"KEY\r\nUser-Agent: KEY\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
	if _, err := io.WriteString(conn, strings.ReplaceAll(request, "KEY", h.caller)); err != nil {
		h.Fatal(err)
	}
	const proceed = "HTTP/1.1 100 Continue\r\n\r\n"
	answer := make([]byte, len(proceed))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != proceed {
		h.Fatalf("the answer to a request that waits is %q, %v", answer, err)
	}
	return conn
}

// quit has the runtime write the trace of all goroutines, while a request
// waits, and end the process.
func (h *hunt) quit() {
	h.Helper()
	waiting := h.wait()
	defer waiting.Close()
	noError(h, h.server.cmd.Process.Signal(syscall.SIGQUIT))
	_ = h.server.cmd.Wait() // the exit status is that of a crash
	if trace := h.server.log.String(); !strings.Contains(trace, "SIGQUIT") ||
		!strings.Contains(trace, "createPet") {
		h.Errorf("there is no trace of a request:\n%s", trace)
	}
	h.searchEnd()
}

// searchEnd searches what there is when the process has ended, and the log is
// whole: it must have told what happened.
func (h *hunt) searchEnd() {
	h.Helper()
	h.searchAll()
	for _, logged := range []string{"store unavailable", "internal error", "key banned",
		"GET /v1/pets"} {
		if !strings.Contains(h.server.log.String(), logged) {
			h.Errorf("the log does not say %q", logged)
		}
	}
}

// searchAll searches stdout, stderr, and every file of the database's folder.
func (h *hunt) searchAll() {
	h.Helper()
	if more := h.server.out.String(); more != h.printed || strings.Count(more, h.server.key) != 3 {
		h.Errorf("stdout is %q, want only the first key, and two lines to try it with", more)
	}
	h.search("stderr", []byte(h.server.log.String()))
	folder, err := os.ReadDir(filepath.Dir(h.server.db))
	noError(h, err)
	held := 0
	for _, file := range folder {
		content, err := os.ReadFile(filepath.Join(filepath.Dir(h.server.db), file.Name()))
		noError(h, err)
		h.search(file.Name(), content, "written")
		held += bytes.Count(content, []byte(`pet_live_`))
	}
	// The key that was to be stored tells that the files can be read like this.
	if held == 0 {
		h.Errorf("of %v none holds the key that was stored on purpose", folder)
	}
}

// tourTLS puts keys where only a TLS server finds them.
func (h *hunt) tourTLS() {
	h.Helper()
	for _, config := range []*tls.Config{{ServerName: h.caller}, {ServerName: "localhost",
		NextProtos: []string{h.caller}}} {
		config.InsecureSkipVerify = true
		conn, err := tls.Dial("tcp", h.address(), config)
		if err == nil {
			conn.Close()
		}
	}
	h.speak("GET /"+h.caller+" HTTP/1.1\r\nHost: petstore\r\n\r\n", nil)
	h.speak("\x16\x03\x01\x00\x2f"+h.caller, nil)
	h.speak(h.caller, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	h.speak("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+h.caller, &tls.Config{InsecureSkipVerify: true,
		NextProtos: []string{"h2"}})

	two := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, line := range []string{"GET /v1/pets", "GET /v1/KEY", "GET /v1/pets?KEY", "KEY /v1/pets",
		"POST /v1/pets"} {
		method, target, _ := strings.Cut(strings.ReplaceAll(line, "KEY", h.caller), " ")
		r, err := http.NewRequestWithContext(h.Context(), method, h.server.address()+target,
			strings.NewReader(`{"`+h.caller+`":1}`))
		noError(h, err)
		r.Header = http.Header{"Authorization": {"Bearer " + h.caller}, h.caller: {h.caller},
			"User-Agent": {h.caller}}
		response, err := two.Do(r)
		noError(h, err)
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.ProtoMajor != 2 {
			h.Fatalf("%s is answered by %s, %v", line, response.Proto, err)
		}
		h.search("the answer over HTTP/2 to "+line, fmt.Appendf(answer, "%v", response.Header),
			"written")
	}
}

// speak sends bytes that the server does not expect, in TLS or bare, and reads until it closes.
func (h *hunt) speak(bytes string, config *tls.Config) {
	h.Helper()
	conn := h.connect(config)
	defer conn.Close()
	_, sendErr := io.WriteString(conn, bytes)
	answer, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		h.Fatalf("the server keeps a connection on which it was sent %q: %v", bytes,
			errors.Join(sendErr, err))
	}
	h.search("the answer to unexpected bytes", answer)
}

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// randomText is n characters as a key has them.
func randomText(n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = base62[mathrand.N(62)]
	}
	return string(text)
}

// forge makes a key of 32 characters: what is missing is a database that knows it.
func forge(random string) string {
	key := "pet_live_" + random
	sum, check := crc32.ChecksumIEEE([]byte(key)), [6]byte{}
	for i := range check {
		check[5-i] = base62[sum%62]
		sum /= 62
	}
	return key + string(check[:])
}

// TestAllKeysThatAreRefusedLookAlike compares, byte by byte, what is reported to
// the holder of a key that was good once, or is elsewhere, with what is reported
// to somebody who has made one up.
func TestAllKeysThatAreRefusedLookAlike(t *testing.T) {
	s := start(t, behindProxy...)
	valid, unknown := s.newKey(), forge(randomText(32))
	revoked, rotated, banned, expired := s.keyOf("1000"), s.keyOf("1000"), s.keyOf("1"),
		s.newKey("-expires", "1s")
	for _, key := range []string{expired, valid, revoked.token, rotated.token} {
		if s.ask(t, key) == "401 invalid_key" {
			t.Fatal("a new key is refused")
		}
	}
	s.ban(t, banned)
	s.command("key", "revoke", "-db", s.db, revoked.id)
	s.command("key", "revoke", "-db", s.db, banned.id)
	s.command("key", "rotate", "-db", s.db, "-overlap", "0s", rotated.id)
	neverUsed := s.keyOf("1000")
	s.command("key", "revoke", "-db", s.db, neverUsed.id)
	for _, key := range []string{revoked.token, rotated.token, banned.token, expired} {
		eventually(t, 5*time.Second, func() error {
			if got := s.ask(t, key); got != "401 invalid_key" {
				return fmt.Errorf("a key that has ended is answered %s", got)
			}
			return nil
		})
	}
	headers := map[string]string{
		"revoked": revoked.token, "revoked before its first use": neverUsed.token,
		"revoked and banned": banned.token, "rotated": rotated.token, "expired": expired,
		"with a wrong checksum": unknown[:46] +
			string(base62[(strings.IndexByte(base62, unknown[46])+1)%62]),
		"valid but for its case": strings.ToUpper(valid), "too short": valid[:46],
		"not ASCII": "pet_live_é", "two tokens": valid + " " + valid, "a valid one twice": valid +
			"\r\nAuthorization: Bearer " + valid, "10,000 characters": strings.Repeat("x", 10_000),
	}
	for _, request := range []string{"GET /v1/pets", "POST /v1/pets", "GET /v1/pets/1",
		"DELETE /v1/pets", "GET /v1/nothing"} {
		want := s.refusal(t, request, unknown)
		const body = `{"code":"invalid_key","message":"the API key is not valid","status":401}`
		if !strings.HasSuffix(want, "\r\n\r\n"+body) {
			t.Errorf("%s with an unknown key is answered %q, want %s", request, want, body)
		}
		for name, key := range headers {
			if got := s.refusal(t, request, key); got != want {
				t.Errorf(
					"%s with a key that is %s is answered\n%q, want as one that is unknown\n%q",
					request, name, got, want)
			}
		}
	}
}

// varying is what differs in any two answers. The numbers of the address are
// not in it: every request comes from a new one.
var varying = regexp.MustCompile(`(?m)^(X-Request-Id|Date|X-RateLimit-Reset): .*$`)

// refusal is an answer as it comes over the wire, without what varies.
func (s *server) refusal(t *testing.T, request, key string) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.address(), "http://"))
	noError(t, err)
	defer conn.Close()
	fmt.Fprintf(conn,
		"%s HTTP/1.1\r\nHost: petstore\r\nConnection: close\r\nX-Forwarded-For: "+
			"%s\r\nAuthorization: Bearer %s\r\n\r\n", request, newAddress(), key)
	answer, err := io.ReadAll(conn)
	noError(t, err)
	return varying.ReplaceAllString(string(answer), "$1")
}
