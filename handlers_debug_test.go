package main

// Readiness, and the debug address.

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadinessIsThatOfTheStore(t *testing.T) {
	path := databasePath(t) // outside: its folder outlives the bubble
	synctest.Test(t, func(t *testing.T) {
		srv, _ := readyShop(t, path)
		routes := newOperator(srv).routes(false)
		ready := func(status int, want, metric string) {
			t.Helper()
			time.Sleep(2 * time.Second) // or it would say what it said before
			w := debugCall(routes, "/metrics", "localhost:6060")
			if !strings.Contains(w.Body.String(), metric) {
				t.Errorf("the metrics lack %q", metric)
			}
			w = debugCall(routes, "/readyz", "localhost:6060")
			if w.Code != status || !strings.Contains(w.Body.String(), want) {
				t.Errorf("it is %d %q, want %d %q", w.Code, w.Body, status, want)
			}
			if w = debugCall(routes, "/healthz", "localhost:6060"); w.Code != 200 {
				t.Errorf("alive, it is %d", w.Code)
			}
		}
		before, err := os.Stat(path + "-wal")
		must(t, err)
		ready(200, "ok", "\npetstore_ready 1\n")
		after, err := os.Stat(path + "-wal")
		must(t, err)
		if after.Size() <= before.Size() {
			t.Errorf("nothing was written to find out")
		}
		must(t, srv.store.engine.(*watchedEngine).engine.(*sqliteFile).reader.Close())
		ready(503, "closed", "\npetstore_ready 0\n")
		srv.stopping.Store(true)
		ready(503, "stopping", "\npetstore_ready 0\n")
	})
}

// TestReadinessNeedsNoKeyAndGivesNoDetail: load balancers ask on the service's own address, and so
// may anybody else.
func TestReadinessNeedsNoKeyAndGivesNoDetail(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		srv, _ := readyShop(t, path)
		s := &shop{t: t, service: srv, key: "none"}
		srv.log = slog.New(slog.NewJSONHandler(&s.log, nil))
		ready := func(status int, body string) {
			t.Helper()
			time.Sleep(2 * time.Second) // when a write is tried again
			for _, key := range []string{noKey, withKey("nonsense")} {
				s.get("/readyz", key).is(status).has("X-RateLimit-Limit:").says(body)
				s.call("HEAD", "/readyz", key).is(status)
			}
		}
		ready(200, "ok\n")
		s.get("/readyz").has("Content-Type: text/plain; charset=utf-8", "Content-Length: 3")
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
			s.call(method, "/readyz").is(405).has("Allow: GET, HEAD")
		}
		for _, target := range []string{
			"/readyz/", "/healthz", "/metrics", "/debug/pprof/", "/stats.json", "/operator.js",
		} {
			s.get(target).is(404)
		}
		for range 100 { // it is not limited
			s.get("/readyz").is(200)
		}

		must(t, os.Rename(path, path+".away"))
		for range 2 {
			ready(503, `{"code":"unavailable","message":"unavailable","status":503}`)
		}
		s.get("/readyz").has("Retry-After: 1")
		must(t, os.Rename(path+".away", path))
		for range 2 {
			ready(200, "ok\n")
		}
		s.wantLog(`"level":"ERROR","msg":"not ready"`)
		s.wantLog(`"level":"INFO","msg":"ready again"`)
		if strings.Count(s.log.String(), "\n") != 2 {
			t.Errorf("the log is %s", s.log.String())
		}
	})
}

// TestStrangersCauseOneCommitInTwoSecondsAtMost, however often they ask whether the service is
// ready, and wherever.
func TestStrangersCauseOneCommitInTwoSecondsAtMost(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		srv, probes := readyShop(t, path)
		routes := newOperator(srv).routes(false)
		ask := func(after time.Duration, status int, want int64) {
			t.Helper()
			time.Sleep(after)
			for range 50 {
				w := httptest.NewRecorder()
				srv.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
				debug := debugCall(routes, "/readyz", "localhost")
				if w.Code != status || debug.Code != status {
					t.Fatalf("it is %d and %d, want %d", w.Code, debug.Code, status)
				}
			}
			if n := probes.Load(); n != want {
				t.Errorf("%d writes were tried, want %d", n, want)
			}
		}
		ask(0, 200, 1)
		for range 7 {
			ask(250*time.Millisecond, 200, 1)
		}
		ask(249*time.Millisecond, 200, 1)
		ask(time.Millisecond, 200, 2)
		ask(time.Hour, 200, 3) // nobody has asked meanwhile

		must(t, os.Rename(path, path+".away")) // a write fails from now on
		ask(1999*time.Millisecond, 200, 3)
		ask(250*time.Millisecond, 503, 4)
		must(t, os.Rename(path+".away", path))
		ask(1999*time.Millisecond, 503, 4) // a write that fails is one too
		ask(250*time.Millisecond, 200, 5)
	})
}

// TestEveryProbeWrites to the disk, not only the first one: the disk may have failed since.
func TestEveryProbeWrites(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		srv, _ := readyShop(t, path)
		for i := range 5 {
			time.Sleep(time.Minute) // or it would say what it said before
			before := readText(t, path+"-wal")
			w := debugCall(newOperator(srv).routes(false), "/readyz", "localhost")
			if w.Code != 200 || readText(t, path+"-wal") == before {
				t.Errorf("the probe %d says %d, or has written nothing", i+1, w.Code)
			}
		}
	})
}

// TestTheDebugAddressIsOnlyForThoseWhoNameIt: a page of another site can have its own name point to
// this machine, and would then be of the same origin (DNS rebinding).
func TestTheDebugAddressIsOnlyForThoseWhoNameIt(t *testing.T) {
	for _, host := range []string{
		"localhost", "localhost:6060", "LocalHost:6060",
		"127.0.0.1:6060", "127.0.0.1", "10.1.2.3:6060", "[::1]:6060", "[::1]",
		"[2001:DB8::1]:6060", // no address can point elsewhere
	} {
		wantDebug(t, 200, false, host)
	}
	for _, host := range []string{
		"evil.example", "evil.example:6060", "localhost.evil.example:6060",
		"evil.example:localhost", "127.0.0.1.evil.example:6060", "pets.internal",
	} {
		wantDebug(t, 403, false, host)
		wantDebug(t, 200, true, host) // with -debug-allow-remote
	}
}

// wantDebug checks the status of what is asked for under the name of a host.
func wantDebug(t *testing.T, want int, anyHost bool, host string) {
	t.Helper()
	routes := newOperator(nil).routes(anyHost)
	for _, path := range []string{"/", "/healthz", "/debug/pprof/"} {
		if w := debugCall(routes, path, host); w.Code != want {
			t.Errorf("%s on %s is %d, want %d", path, host, w.Code, want)
		}
	}
}

// TestTheDebugAddressIsNotForPagesOfOtherOrigins, which could not read it and yet make it work. A
// link, such as one in a message, leads to the operator's page and to nothing else.
func TestTheDebugAddressIsNotForPagesOfOtherOrigins(t *testing.T) {
	const link = "navigate document"
	for _, test := range []struct {
		site, how, request string // how: the mode and the destination
		want               int
	}{
		{"", "", "GET /healthz", 200}, // no browser
		{"same-origin", "cors empty", "GET /healthz", 200},
		{"none", link, "GET /healthz", 200}, // an address that somebody has typed
		{"same-site", "no-cors image", "GET /healthz", 403},
		{"cross-site", "no-cors image", "GET /healthz", 403},
		{"cross-site", "no-cors script", "GET /debug/pprof/trace", 403},
		{"cross-site", link, "GET /debug/pprof/", 403},
		{"cross-site", link, "GET /nothing", 403},
		{"cross-site", link, "GET /", 200},
		{"same-site", link, "GET /", 200},
		{"cross-site", link, "POST /", 403},
		{"cross-site", "navigate iframe", "GET /", 403},
		{"cross-site", "no-cors document", "GET /", 403},
		{"cross-site", "", "GET /", 403},
		{"same-origin,cross-site", "cors empty", "GET /healthz", 403},
		{"Same-Origin", "cors empty", "GET /healthz", 403},
		{" ", "cors empty", "GET /healthz", 403},
	} {
		method, path, _ := strings.Cut(test.request, " ")
		r := httptest.NewRequest(method, path, nil)
		r.Host = "localhost"
		for site := range strings.SplitSeq(test.site, ",") {
			if site != "" {
				r.Header.Add("Sec-Fetch-Site", strings.TrimSpace(site))
			}
		}
		mode, dest, _ := strings.Cut(test.how, " ")
		r.Header.Set("Sec-Fetch-Mode", mode)
		r.Header.Set("Sec-Fetch-Dest", dest)
		w := httptest.NewRecorder()
		newOperator(nil).routes(false).ServeHTTP(w, r)
		if w.Code != test.want {
			t.Errorf("%+v is %d", test, w.Code)
		}
	}
}

// TestNothingOfTheDebugAddressIsTakenForAnotherType, whatever it holds.
func TestNothingOfTheDebugAddressIsTakenForAnotherType(t *testing.T) {
	routes := operatorRoutes(openShop(t))
	for _, path := range []string{
		"/", "/operator.css", "/operator.js", "/healthz", "/readyz", "/metrics", "/stats.json",
		"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=1",
		"/debug/pprof/nothing", "/nothing", "/debug/pprof",
	} {
		for _, host := range []string{"localhost", "evil.example"} {
			w := debugCall(routes, path, host)
			if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
				t.Errorf("%s on %s has the X-Content-Type-Options %q", path, host, got)
			}
		}
	}
}

func TestTheDebugAddressShowsNoPassword(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = []string{"petstore", "-db", "http://anna:t@p@n1,https://bert:secret@n2", "-log"}
	w := debugCall(newOperator(nil).routes(false), "/debug/pprof/cmdline", "localhost")
	if got := w.Body.String(); got != "petstore\x00-db\x00http://…n2\x00-log" {
		t.Errorf("it shows %q", got)
	}
}
