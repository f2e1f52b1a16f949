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
		routes := debugRoutes(srv, false)
		ready := func(status int, want, metric string) {
			t.Helper()
			time.Sleep(250 * time.Millisecond) // or it would say what it said before
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
			time.Sleep(250 * time.Millisecond)
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

// TestTheStoreIsProbedAtMostFourTimesASecond, however many ask, and wherever: a probe is a write.
func TestTheStoreIsProbedAtMostFourTimesASecond(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		srv, probes := readyShop(t, path)
		routes := debugRoutes(srv, false)
		ask := func(want int64) {
			t.Helper()
			for range 50 {
				srv.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/readyz", nil))
				debugCall(routes, "/readyz", "localhost")
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

		must(t, os.Rename(path, path+".away")) // a probe fails now, and is a try to write all the same
		time.Sleep(250 * time.Millisecond)
		ask(4)
		time.Sleep(249 * time.Millisecond)
		ask(4)
		must(t, os.Rename(path+".away", path))
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
	routes := debugRoutes(nil, anyHost)
	for _, path := range []string{"/", "/healthz", "/debug/pprof/"} {
		if w := debugCall(routes, path, host); w.Code != want {
			t.Errorf("%s on %s is %d, want %d", path, host, w.Code, want)
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
	w := debugCall(debugRoutes(nil, false), "/debug/pprof/cmdline", "localhost")
	if got := w.Body.String(); got != "petstore\x00-db\x00http://…n2\x00-log" {
		t.Errorf("it shows %q", got)
	}
}
