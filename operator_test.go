package main

// The operator's page, as far as it can be checked without a browser, and what it is fed with.

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var operatorHTML, operatorCSS, operatorJS = webFile("operator.html"), webFile("operator.css"), webFile("operator.js")

// operatorRoutes are the debug routes of a shop.
func operatorRoutes(s *shop) http.Handler {
	var running atomic.Pointer[service]
	running.Store(s.service)
	return debugRoutes(&running, "localhost", false)
}

var operatorFiles = map[string]string{
	"/":             "text/html; charset=utf-8",
	"/operator.css": "text/css; charset=utf-8",
	"/operator.js":  "text/javascript; charset=utf-8",
}

func TestTheOperatorsPageIsServedUnderThePolicyOfThePublicPage(t *testing.T) {
	s := openShop(t)
	routes := operatorRoutes(s)
	policy := s.call("GET", "/").is(200).header.Get("Content-Security-Policy")
	for path, contentType := range operatorFiles {
		get := func(method, host, etag string, status int) *httptest.ResponseRecorder {
			t.Helper()
			w, r := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
			r.Host = host
			r.Header.Set("If-None-Match", etag)
			if routes.ServeHTTP(w, r); w.Code != status {
				t.Errorf("%s %s of the host %s with the ETag %s is %d, want %d", method, path, host, etag, w.Code, status)
			}
			return w
		}
		whole := get("GET", "localhost", "", 200)
		etag := whole.Header()["ETag"][0] //nolint:staticcheck // SA1008: as it is set
		for _, w := range []*httptest.ResponseRecorder{whole, get("HEAD", "localhost", "", 200), get("GET", "localhost", etag, 304)} {
			for name, want := range map[string]string{
				"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			} {
				if got := w.Header().Get(name); got != want || got == "" {
					t.Errorf("%s has the %s %q, want %q", path, name, got, want)
				}
			}
			if got := w.Header()["ETag"]; len(got) != 1 || got[0] != etag { //nolint:staticcheck // SA1008
				t.Errorf("%s has the ETag %q, want %q", path, got, etag)
			}
			if got := w.Header().Get("Content-Type"); w.Code == 200 && got != contentType {
				t.Errorf("%s is %s", path, got)
			}
		}
		if w := get("GET", "evil.example", "", 403); w.Body.Len() > 100 {
			t.Errorf("%s is shown to another site's page", path)
		}
		get("POST", "localhost", "", 405)
		if path != "/" {
			s.call("GET", path).is(404, CodeNotFound) // on the service's own address
		}
	}
	s.call("GET", "/stats.json").is(404, CodeNotFound)
	if w := debugCall(routes, "/stats.json", "evil.example"); w.Code != 403 {
		t.Errorf("the numbers are %d to another site's page", w.Code)
	}
}

// What the policy forbids would be silently ignored by a browser.
func TestTheOperatorsPageHasNothingInlineAndNothingOfAnotherHost(t *testing.T) {
	if found := regexp.MustCompile(`<[^>]*\s(style|on\w+)=|<style|<script(?:\s+(?:type|async|defer)(?:="[^"]*")?)*>`).FindString(operatorHTML); found != "" {
		t.Errorf("the page has %s", found)
	}
	routes := operatorRoutes(openShop(t))
	for _, match := range regexp.MustCompile(`(?:src|href|action)="([^"]*)"`).FindAllStringSubmatch(operatorHTML, -1) {
		switch target := match[1]; {
		case strings.HasPrefix(target, "data:image/"),
			strings.HasPrefix(target, "#") && strings.Contains(operatorHTML, `id="`+target[1:]+`"`):
		case strings.HasPrefix(target, "/"), strings.Contains(target, ":"):
			t.Errorf("%s is not relative: behind a prefix it would be missed", target)
		default:
			if w := debugCall(routes, "/"+target, "localhost"); w.Code != 200 {
				t.Errorf("%s is %d", target, w.Code)
			}
		}
	}
	for name, text := range map[string]string{"operator.css": operatorCSS, "operator.js": operatorJS} {
		text = strings.ReplaceAll(text, "http://www.w3.org/2000/svg", "") // a name, which nobody fetches
		if found := regexp.MustCompile(`https?://|\burl\(|@import|(inner|outer)HTML|insertAdjacentHTML`).FindString(text); found != "" {
			t.Errorf("%s has %s", name, found)
		}
	}
	if total := len(operatorHTML) + len(operatorCSS) + len(operatorJS); total >= 60_000 {
		t.Errorf("the page has %d bytes", total)
	}
}

// operatorStats are what the page reads.
type operatorStats struct {
	Uptime      float64
	Environment string
	Metrics     map[string]float64
	Report      *struct {
		At         int64
		NearLimits []struct {
			ID, UsedThisMinute, UsedToday, PerMinute, PerDay int64
			Name, Plan                                       string
			BannedUntil                                      *time.Time
		}
		Usage []struct {
			ID   int64
			Name string
			Days []struct {
				Day                       string
				Admitted, Refused, Errors int64
			}
		}
	}
}

func (s *shop) stats() (stats operatorStats, body string) {
	s.t.Helper()
	w := debugCall(operatorRoutes(s), "/stats.json", "localhost")
	if got := w.Header().Get("Content-Type"); w.Code != 200 || got != "application/json" {
		s.t.Fatalf("the numbers are %d, %s", w.Code, got)
	}
	mainMust(s.t, json.Unmarshal(w.Body.Bytes(), &stats))
	return stats, w.Body.String()
}

func TestTheNumbersOfThePageAreThoseOfTheMetrics(t *testing.T) {
	s := openShop(t)
	s.stock(3)
	for range 5 {
		s.call("GET", "/v1/pets").is(200)
	}
	s.call("GET", "/v1/pets?limit=0").is(400)
	stats, _ := s.stats()
	names := map[string]bool{}
	for line := range strings.Lines(debugCall(operatorRoutes(s), "/metrics", "localhost").Body.String()) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		names[name] = true
		want, err := strconv.ParseFloat(number, 64)
		mainMust(t, err)
		got, known := stats.Metrics[name]
		if !known || strings.HasPrefix(name, "petstore_") && got != want {
			t.Errorf("%s is %v (there: %t), and in the metrics %v", name, got, known, want)
		}
	}
	for name := range stats.Metrics {
		if !names[name] {
			t.Errorf("%s is not in the metrics", name)
		}
	}
	if got := stats.Metrics[`petstore_requests_total{operation="listPets",status="200"}`]; got != 5 {
		t.Errorf("5 lists are counted as %v", got)
	}
	if most := time.Since(processStart).Seconds(); stats.Uptime <= 0 || stats.Uptime > most || stats.Environment != "Production" {
		t.Errorf("it says %v s in %s, after %v s", stats.Uptime, stats.Environment, most)
	}
}

func TestThePageIsToldThatTheServiceStarts(t *testing.T) {
	var running atomic.Pointer[service]
	routes := debugRoutes(&running, "", false)
	if w := debugCall(routes, "/stats.json", "localhost"); w.Code != 503 || w.Body.String() != "starting\n" {
		t.Errorf("it is %d %q", w.Code, w.Body)
	}
	if w := debugCall(routes, "/", "localhost"); w.Code != 200 {
		t.Errorf("the page is %d", w.Code)
	}
}

// operatorKey makes a key of a usage that is as the SQL says, in which now is the time in milliseconds.
func (s *shop) operatorKey(name, plan string, q quota, usage string) int64 {
	s.t.Helper()
	k := &apiKey{Name: name, Plan: plan, CreatedAt: instantOf(time.Now())}
	k.quota = q
	id, err := insertKey(s.t.Context(), s.store, k, newSecret(false), false)
	mainMust(s.t, err)
	usage = strings.ReplaceAll(usage, "now", fmt.Sprint(time.Now().UnixMilli()))
	_, err = s.store.write(s.t.Context(), sqlOf("INSERT INTO usage (id, "+usageColumns+") SELECT ?, "+usage, id))
	mainMust(s.t, err)
	return id
}

// report reads the report as the page gets it.
func (s *shop) report() (stats operatorStats, body string) {
	s.t.Helper()
	s.stats()
	mainMust(s.t, s.service.updateReport(s.t.Context(), time.Now()))
	s.service.nextReport = time.Time{}
	return s.stats()
}

func TestThePageShowsWhoIsBannedOrNearALimit(t *testing.T) {
	s := openShop(t)
	if stats, body := s.stats(); stats.Report != nil || !strings.Contains(body, `"report":null`) {
		t.Errorf("before it was read the report is %v", stats.Report)
	}
	none := quota{}
	s.operatorKey("79 %", "free", none, "47, now+50000, 799, now+5000000, 0, 0")
	s.operatorKey("80 % of the minute", "free", none, "48, now+50000, 48, now+5000000, 0, 0")
	s.operatorKey("81 % of the day", "pro", none, "0, now-50000, 8100, now+5000000, 0, 0")
	s.operatorKey("90 % of its own", "enterprise", quota{10, 1000}, "9, now+50000, 9, now+5000000, 0, 0")
	s.operatorKey("windows that have ended", "free", none, "60, now-1, 1000, now-1, 0, 0")
	s.operatorKey("windows of a clock that was set back", "free", none, "60, now+200000, 1000, now+200000000, 0, 0")
	s.operatorKey("all, but of a greater plan", "business", none, "60, now+50000, 1000, now+5000000, 0, 0")
	s.operatorKey("banned", "free", none, "0, 0, 70, now+5000000, now-1000, now+500000")
	s.operatorKey("banned before", "free", none, "0, 0, 0, 0, now-600000, now-1")
	ended := s.operatorKey("revoked", "free", none, "60, now+50000, 1000, now+5000000, now-1000, now+500000")
	mainMust(t, authRevoke(t.Context(), s.store, ended, instantOf(time.Now())))
	lifted := s.operatorKey("unbanned", "free", none, "0, 0, 0, 0, now-1000, now+500000")
	mainMust(t, unbanKey(t.Context(), s.store, lifted, instantOf(time.Now())))

	old := s.operatorKey("rotated", "free", none, "54, now+50000, 54, now+5000000, 0, 0")
	keys, err := readKeys(t.Context(), s.store, instantOf(time.Now()), "WHERE k.id = ?", old)
	mainMust(t, err)
	heir := *keys[0]
	heir.Succeeds, heir.Name = keyID(old), "its successor"
	_, err = rotateKey(t.Context(), s.store, &heir, newSecret(false), instantOf(time.Now()))
	mainMust(t, err)

	stats, _ := s.report()
	var got []string
	for _, k := range stats.Report.NearLimits {
		got = append(got, k.Name)
	}
	want := []string{"banned", "90 % of its own", "its successor", "81 % of the day", "80 % of the minute"}
	if !slices.Equal(got, want) {
		t.Errorf("it shows %q, want %q", got, want)
	}
	if k := stats.Report.NearLimits[1]; k.PerMinute != 10 || k.PerDay != 1000 || k.UsedThisMinute != 9 || k.BannedUntil != nil || k.Plan != "enterprise" {
		t.Errorf("the Enterprise key is %+v", k)
	}
	if k := stats.Report.NearLimits[0]; k.PerMinute != 60 || k.UsedToday != 70 || k.BannedUntil == nil || k.BannedUntil.UnixMilli() <= stats.Report.At {
		t.Errorf("the banned key is %+v", k)
	}
	for i := range 30 {
		s.operatorKey(fmt.Sprint("more ", i), "free", none, "60, now+50000, 60, now+5000000, 0, 0")
	}
	if stats, _ = s.report(); len(stats.Report.NearLimits) != 20 || stats.Report.NearLimits[0].Name != "banned" {
		t.Errorf("of many, it shows %d, and %s first", len(stats.Report.NearLimits), stats.Report.NearLimits[0].Name)
	}
}

func TestThePageShowsTheBusiestKeysOf30Days(t *testing.T) {
	s := openShop(t)
	today := time.Now().Unix() / 86400
	for i := range 20 {
		id := s.operatorKey(fmt.Sprint("key ", i), "free", quota{}, "0, 0, 0, 0, 0, 0")
		for _, day := range []struct{ ago, admitted int64 }{{0, int64(10 * i)}, {29, 1}, {30, 100_000 * int64(20-i)}} {
			_, err := s.store.write(t.Context(), sqlOf("INSERT INTO usage_days (usage_id, day, admitted, refused, errors) VALUES (?, ?, ?, 3, 2)",
				id, today-day.ago, day.admitted))
			mainMust(t, err)
		}
	}
	stats, _ := s.report()
	if len(stats.Report.Usage) != 15 {
		t.Fatalf("it shows %d keys", len(stats.Report.Usage))
	}
	for i, key := range stats.Report.Usage {
		want := fmt.Sprint("key ", 19-i)
		if key.Name != want || len(key.Days) != 2 || key.Days[1].Admitted != int64(10*(19-i)) || key.Days[1].Refused != 3 || key.Days[1].Errors != 2 {
			t.Errorf("key %d is %+v, want %s with two days", i, key, want)
		}
		if got, want := key.Days[0].Day, time.Unix((today-29)*86400, 0).UTC().Format("2006-01-02"); got != want {
			t.Errorf("the first day is %s, want %s", got, want)
		}
	}
}

// A name is whatever somebody has chosen, even what looks like HTML or holds a key.
func TestNamesOfKeysAreNoMarkupAndNoSecretInWhatThePageReads(t *testing.T) {
	s := openShop(t)
	token := newSecret(false)
	s.operatorKey("</script><img src=x onerror=alert(1)>", "free", quota{}, "60, now+50000, 60, now+5000000, 0, 0")
	s.operatorKey("mine is "+string(token), "free", quota{}, "60, now+50000, 60, now+5000000, 0, 0")
	stats, body := s.report()
	if strings.ContainsAny(body, "<>") {
		t.Errorf("there is markup in it: %s", body)
	}
	if strings.Contains(body, string(token)[9:]) || strings.Contains(body, s.key[9:]) || !strings.Contains(body, "mine is pet_…") {
		t.Error("there is a key in it")
	}
	if got := stats.Report.NearLimits[0].Name; got != "</script><img src=x onerror=alert(1)>" {
		t.Errorf("the name is %s", got)
	}
}

// operatorReads counts how often the report was read, and lets do happen before.
func operatorReads(srv *service, do func()) *atomic.Int64 {
	var reads atomic.Int64
	srv.store.engine = &storeEngine{engine: srv.store.engine, check: func(st statement, columns []any) {
		if strings.Contains(st.query, "minute_ends > ?1") && columns == nil {
			reads.Add(1)
			do()
		}
	}}
	return &reads
}

func TestTheStoreIsAskedForTheReportEvery3SecondsWhileAPageIsOpen(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		srv, _ := readyShop(t, path)
		var slow atomic.Int64 // nanoseconds
		reads := operatorReads(srv, func() { time.Sleep(time.Duration(slow.Load())) })
		stop := runBackground(srv, nil)
		minute := func(watch bool, want ...int64) {
			t.Helper()
			before := reads.Load()
			for range 240 {
				if time.Sleep(250 * time.Millisecond); watch {
					_, err := srv.stats()
					mainMust(t, err)
				}
			}
			if got := reads.Load() - before; !slices.Contains(want, got) {
				t.Errorf("in a minute it was read %d times, want %v", got, want)
			}
		}
		minute(false, 0)
		minute(true, 19, 20)
		minute(false, 0, 1)
		slow.Store(450e6) // as with very many keys: then it takes a twentieth of the time
		minute(true, 5, 6, 7)
		mainMust(t, stop(t.Context()))
	})
}

// A report that takes long and then fails is read no oftener than one that succeeds.
func TestAReportThatFailsTakesATwentiethOfTheTime(t *testing.T) {
	for what, fail := range map[string]func(cancel func()){
		"an error": func(cancel func()) { cancel() },
		"a panic":  func(func()) { panic("the report is broken") },
	} {
		path := mainDB(t)
		synctest.Test(t, func(t *testing.T) {
			srv, _ := readyShop(t, path)
			ctx, cancel := context.WithCancel(t.Context())
			reads := operatorReads(srv, func() {
				time.Sleep(450 * time.Millisecond)
				fail(cancel)
			})
			for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(3 * time.Second) {
				srv.wanted.Store(true)
				before := reads.Load()
				err := calmly(func() error { return srv.updateReport(ctx, time.Now()) })
				if (err != nil) != (reads.Load() > before) {
					t.Errorf("%s: it was read %d times, with %v", what, reads.Load()-before, err)
				}
			}
			if n := reads.Load(); n < 5 || n > 7 {
				t.Errorf("%s: in a minute it was read %d times, want 5 to 7", what, n)
			}
		})
	}
}

// A store that hangs holds up the report alone, and not the end of the service.
func TestTheNumbersDoNotWaitForAStoreThatHangs(t *testing.T) {
	path := mainDB(t)
	synctest.Test(t, func(t *testing.T) {
		srv, _ := readyShop(t, path)
		hang := make(chan struct{})
		reads := operatorReads(srv, func() { <-hang })
		stop := runBackground(srv, nil)
		s := &shop{t: t, service: srv}
		s.stats()
		time.Sleep(3 * time.Second)
		for synctest.Wait(); reads.Load() == 0; synctest.Wait() {
			t.Fatal("the report was not asked for")
		}
		start := time.Now()
		for range 100 {
			if stats, _ := s.stats(); stats.Report != nil || len(stats.Metrics) == 0 {
				t.Fatalf("the report is %v, and there are %d numbers", stats.Report, len(stats.Metrics))
			}
		}
		if waited := time.Since(start); waited != 0 || reads.Load() != 1 {
			t.Errorf("it took %v, and the store was asked %d times", waited, reads.Load())
		}
		close(hang)
		synctest.Wait()
		if stats, _ := s.stats(); stats.Report == nil {
			t.Error("there is no report after the store has responded")
		}
		mainMust(t, stop(t.Context()))
	})
}

// The end of the service ends a reading of the report, however long it would take.
func TestTheReportEndsWithTheService(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.stats()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.service.updateReport(ctx, time.Now()); err == nil || s.service.report.Load() != nil {
		t.Errorf("after the end it was read: %v", err)
	}
}

func TestTheDebugAddressListsItsPaths(t *testing.T) {
	routes := operatorRoutes(openShop(t))
	list := regexp.MustCompile(`<a href="([^"#]*)">(/[^<]*)</a>`).FindAllStringSubmatch(debugCall(routes, "/", "localhost").Body.String(), -1)
	links := map[string]string{}
	for _, link := range list {
		if links[link[2]] = link[1]; "/"+link[1] != link[2] {
			t.Errorf("%s leads to %s", link[2], link[1])
		}
	}
	for _, path := range []string{"/metrics", "/healthz", "/readyz", "/debug/pprof/"} {
		if _, listed := links[path]; !listed {
			t.Errorf("%s is not listed in %v", path, slices.Sorted(maps.Keys(links)))
		}
	}
	for path := range links {
		if w := debugCall(routes, path, "localhost"); w.Code != 200 {
			t.Errorf("%s is listed and is %d", path, w.Code)
		}
	}
	if w := debugCall(routes, "/nothing", "localhost"); w.Code != 404 {
		t.Errorf("what is not listed is %d", w.Code)
	}
}
