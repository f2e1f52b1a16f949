package main

// The operator's page, as far as it can be checked without a browser, and what it is fed with.

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// operatorFiles are the content types of what the page consists of.
var operatorFiles = map[string]string{
	"operator.html": "text/html; charset=utf-8",
	"operator.css":  "text/css; charset=utf-8",
	"operator.js":   "text/javascript; charset=utf-8",
}

func TestTheOperatorsPageIsServedUnderThePolicyOfThePublicPage(t *testing.T) {
	routes := operatorRoutes(openShop(t))
	for file, contentType := range operatorFiles {
		path := "/" + file
		if file == "operator.html" {
			path = "/"
		}
		w := debugCall(routes, path, "localhost")
		for name, want := range map[string]string{
			"Content-Type":            contentType,
			"Content-Security-Policy": pagePolicy,
			"Referrer-Policy":         "no-referrer",
		} {
			if got := w.Header().Get(name); w.Code != 200 || got != want {
				t.Errorf("%s is %d and has the %s %q, want %q", path, w.Code, name, got, want)
			}
		}
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

func TestTheNumbersOfThePageAreThoseOfTheMetrics(t *testing.T) {
	s := openShop(t)
	s.call("GET", "/v1/pets").is(200)
	s.call("GET", "/v1/pets").is(200)
	metrics := debugCall(operatorRoutes(s), "/metrics", "localhost").Body.String()
	// The page asks /readyz itself, so that its numbers do not wait for a store that hangs.
	metrics = strings.Replace(metrics, "\npetstore_ready 1\n", "\n", 1)
	stats, _ := s.stats()
	const lists = `petstore_requests_total{operation="listPets",status="200"}`
	if got := stats.Metrics[lists]; got != 2 {
		t.Errorf("2 lists are counted as %v", got)
	}
	names := allMatches(`(?m)^([^# ]+) \S+$`, metrics)
	told := slices.Sorted(maps.Keys(stats.Metrics))
	for _, name := range slices.Concat(names, told) {
		if !slices.Contains(names, name) || !slices.Contains(told, name) {
			t.Fatalf("not both of /metrics and the page have %s", name)
		}
	}
	most := time.Since(processStart).Seconds()
	if stats.Uptime <= 0 || stats.Uptime > most || stats.Environment != "Production" {
		t.Errorf("it says %v s in %s, after %v s", stats.Uptime, stats.Environment, most)
	}
}

// nearLimits are the names of the keys that the page shows as banned or near a limit.
func (s operatorStats) nearLimits() (names []string) {
	for _, key := range s.Report.NearLimits {
		names = append(names, key.Name)
	}
	return names
}

func TestThePageShowsWhoIsBannedOrNearALimit(t *testing.T) {
	s := openShop(t)
	if stats, _ := s.stats(); stats.Report != nil {
		t.Errorf("before it was read the report is %v", stats.Report)
	}
	free := func(name, usage string) int64 { return s.operatorKey(name, "free", quota{}, usage) }
	free("79 %", "47, now+50000, 799, now+5000000, 0, 0")
	free("80 % of the minute", "48, now+50000, 48, now+5000000, 0, 0")
	free("windows that have ended", "60, now-1, 1000, now-1, 0, 0")
	free("a clock that was set back", "60, now+200000, 1000, now+200000000, 0, 0")
	free("banned", "0, 0, 70, now+5000000, now-1000, now+500000")
	free("banned before", "0, 0, 0, 0, now-600000, now-1")
	s.operatorKey("81 % of the day", "pro", quota{}, "0, now-50000, 8100, now+5000000, 0, 0")
	s.operatorKey("a greater plan", "business", quota{}, "60, now+50000, 999, now+5000000, 0, 0")
	s.operatorKey("90 % of its own", "enterprise", quota{10, 1000},
		"9, now+50000, 9, now+5000000, 0, 0")
	revoked := free("revoked", "60, now+50000, 1000, now+5000000, now-1000, now+500000")
	must(t, revokeNow(t.Context(), s.store, revoked, instantOf(time.Now())))
	lifted := free("unbanned", "0, 0, 0, 0, now-1000, now+500000")
	must(t, unbanKey(t.Context(), s.store, lifted, instantOf(time.Now())))

	stats, _ := s.report()
	want := []string{"banned", "90 % of its own", "81 % of the day", "80 % of the minute"}
	if got := stats.nearLimits(); !slices.Equal(got, want) {
		t.Errorf("it shows %q, want %q", got, want)
	}
	own := stats.Report.NearLimits[1]
	if own.PerMinute != 10 || own.UsedThisMinute != 9 || own.BannedUntil != nil {
		t.Errorf("the Enterprise key is %+v", own)
	}
	banned := stats.Report.NearLimits[0]
	if banned.UsedToday != 70 || banned.BannedUntil.UnixMilli() <= stats.Report.At {
		t.Errorf("the banned key is %+v", banned)
	}
}

func TestThePageShows20KeysNearALimit(t *testing.T) {
	s := openShop(t)
	for i := range 30 {
		s.operatorKey(fmt.Sprint(i), "free", quota{}, "60, now+50000, 60, now+5000000, 0, 0")
	}
	if stats, _ := s.report(); len(stats.Report.NearLimits) != 20 {
		t.Errorf("of 30, it shows %d", len(stats.Report.NearLimits))
	}
}

func TestThePageShowsTheBusiestKeysOf30Days(t *testing.T) {
	s := openShop(t)
	today := time.Now().Unix() / 86400
	count := func(usageID, day, admitted int64) {
		_, err := s.store.write(t.Context(), sqlOf(`INSERT INTO usage_days
			(usage_id, day, admitted, refused, errors) VALUES (?, ?, ?, 3, 2)`,
			usageID, day, admitted))
		must(t, err)
	}
	for i := range int64(20) {
		id := s.operatorKey(fmt.Sprint("key ", i), "free", quota{}, "0, 0, 0, 0, 0, 0")
		count(id, today, 10*i)
		count(id, today-29, 1)
		count(id, today-30, 100_000*(20-i)) // too old to count
	}
	stats, _ := s.report()
	if len(stats.Report.Usage) != 15 {
		t.Fatalf("it shows %d keys", len(stats.Report.Usage))
	}
	for place, key := range stats.Report.Usage {
		if want := fmt.Sprint("key ", 19-place); key.Name != want || len(key.Days) != 2 {
			t.Errorf("place %d has %s with %d days, want %s", place, key.Name, len(key.Days), want)
		}
	}
	firstDay := time.Unix((today-29)*86400, 0).UTC().Format(time.DateOnly)
	if got := fmt.Sprint(stats.Report.Usage[0].Days[0]); got != "{"+firstDay+" 1 3 2}" {
		t.Errorf("the first day is %s, want %s with 1 admitted, 3 refused, 2 errors", got, firstDay)
	}
}

// A name is whatever somebody has chosen, even what looks like HTML or holds a key.
func TestNamesOfKeysAreNoMarkupAndNoSecretInWhatThePageReads(t *testing.T) {
	s := openShop(t)
	const markup = "</script><img src=x onerror=alert(1)>"
	token := string(newSecret(false))
	for _, name := range []string{markup, "mine is " + token} {
		s.operatorKey(name, "free", quota{}, "60, now+50000, 60, now+5000000, 0, 0")
	}
	stats, body := s.report()
	if strings.ContainsAny(body, "<>") {
		t.Errorf("there is markup in it: %s", body)
	}
	if strings.Contains(body, token[9:]) || strings.Contains(body, s.key[9:]) {
		t.Errorf("there is a key in it: %s", body)
	}
	want := []string{markup, "mine is pet_…"}
	if got := stats.nearLimits(); !slices.Equal(got, want) {
		t.Errorf("the names are %q, want %q", got, want)
	}
}

// operatorReads counts how often the report was read, and lets do happen before.
func operatorReads(srv *service, do func()) *atomic.Int64 {
	var reads atomic.Int64
	check := func(st statement, columns []any) {
		if strings.Contains(st.query, "minute_ends > ?1") && columns == nil {
			reads.Add(1)
			do()
		}
	}
	srv.store.engine = &watchedEngine{engine: srv.store.engine, check: check}
	return &reads
}

func TestTheStoreIsAskedForTheReportEvery5SecondsWhileAPageIsOpen(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		srv, _ := readyShop(t, path)
		reads := operatorReads(srv, func() {})
		o := newOperator(srv)
		stop := runBackground(srv, o, nil)
		wantReads := func(open bool, atLeast, atMost int64) {
			t.Helper()
			before := reads.Load()
			for range 240 { // a minute
				time.Sleep(250 * time.Millisecond)
				if open {
					must(t, o.showStats(httptest.NewRecorder(), nil, caller{}))
				}
			}
			if got := reads.Load() - before; got < atLeast || got > atMost {
				t.Errorf("in a minute it was read %d times, want %d to %d", got, atLeast, atMost)
			}
		}
		time.Sleep(time.Millisecond) // so that no minute ends at a tick
		wantReads(false, 0, 0)
		wantReads(true, 11, 12)
		wantReads(false, 0, 1)
		must(t, stop())
	})
}

// A store that hangs holds up the report alone, and not the end of the service.
func TestTheNumbersDoNotWaitForAStoreThatHangs(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		srv, _ := readyShop(t, path)
		hang := make(chan struct{})
		reads := operatorReads(srv, func() { <-hang })
		o := newOperator(srv)
		stop := runBackground(srv, o, nil)
		s := &shop{t: t, service: srv, operator: o}
		s.stats()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		began := time.Now()
		for range 100 {
			if stats, _ := s.stats(); stats.Report != nil || len(stats.Metrics) == 0 {
				t.Fatalf("it shows the report %v", stats.Report)
			}
		}
		if waited := time.Since(began); waited != 0 || reads.Load() != 1 {
			t.Errorf("it took %v, and the store was asked %d times", waited, reads.Load())
		}
		close(hang)
		synctest.Wait()
		if stats, _ := s.stats(); stats.Report == nil {
			t.Error("there is no report after the store has responded")
		}
		must(t, stop())
	})
}

// The end of the service ends a reading of the report, however long it would take.
func TestTheReportEndsWithTheService(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.stats()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.debug().updateReport(ctx)
	if err == nil || s.debug().report.Load() != nil {
		t.Errorf("after the end it was read: %v", err)
	}
}
