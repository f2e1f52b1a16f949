package main

// The operator's page, as far as it can be checked without a browser, and what it is fed with.

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheOperatorsPageIsServedUnderThePolicyOfThePublicPage(t *testing.T) {
	s := openShop(t)
	for path, contentType := range map[string]string{
		"/":             "text/html; charset=utf-8",
		"/operator.css": "text/css; charset=utf-8",
		"/operator.js":  "text/javascript; charset=utf-8",
	} {
		w := s.onDebug(path)
		wantEqual(t, w.Code, 200, "the status of ", path)
		for name, want := range map[string]string{
			"Content-Type":            contentType,
			"Content-Security-Policy": pagePolicy,
			"Referrer-Policy":         "no-referrer",
		} {
			wantEqual(t, w.Header().Get(name), want, "the ", name, " of ", path)
		}
	}
}

// operatorStats are what the page reads.
type operatorStats struct {
	Uptime      float64
	Environment string
	Metrics     map[string]float64
	Members     []struct{ Node, State string }
	Verdict     struct {
		Ready      bool
		ReadySince int64
		Reasons    []struct {
			Words  string
			Number float64
			Since  int64
		}
	}
	Busy struct {
		Count int
		Keys  []struct {
			ID                        int64
			Name                      string
			Admitted, Refused, Errors int64
		}
		Strangers struct{ Admitted, Refused int64 }
		Spent     []struct {
			Address string
			Until   time.Time
		}
	}
	Report *struct {
		At         int64
		NearLimits []struct {
			ID, UsedThisMinute, UsedToday, PerMinute, PerDay int64
			Name, Plan                                       string
			BannedUntil, DayEnds                             *time.Time
		}
		Near, Banned int
		Usage        []struct {
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
	metrics := s.onDebug("/metrics").Body.String()
	// The page asks /readyz itself, so that its numbers do not wait for a store that hangs.
	metrics = strings.Replace(metrics, "\npetstore_ready 1\n", "\n", 1)
	stats, _ := s.stats()
	const lists = `petstore_requests_total{operation="listPets",status="200"}`
	wantEqual(t, stats.Metrics[lists], 2, "the number of lists")
	names := allMatches(`(?m)^([^# ]+) \S+$`, metrics)
	slices.Sort(names)
	wantEqual(t, slices.Sorted(maps.Keys(stats.Metrics)), names,
		"what the page has of the metrics")
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
	free := func(name, usage string) int64 {
		return s.operatorKey(name, "free", quota{}, usage)
	}
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
	wantEqual(t, stats.nearLimits(), want, "who is shown")
	own := stats.Report.NearLimits[1]
	dayLeft := time.Until(*own.DayEnds)
	if own.PerMinute != 10 || own.UsedThisMinute != 9 || own.BannedUntil != nil ||
		dayLeft > 5000*time.Second || dayLeft < 4000*time.Second {
		t.Errorf("the Enterprise key is %+v", own)
	}
	banned := stats.Report.NearLimits[0]
	if banned.UsedToday != 70 || banned.BannedUntil.UnixMilli() <= stats.Report.At {
		t.Errorf("the banned key is %+v", banned)
	}

	for i := range 30 {
		free(fmt.Sprint(i), "60, now+50000, 60, now+5000000, 0, 0")
	}
	many, _ := s.report()
	if r := many.Report; len(r.NearLimits) != 20 || r.Near != 34 || r.Banned != 1 {
		t.Errorf("of 34, it shows %d, and says %d, of which %d are banned", len(r.NearLimits),
			r.Near, r.Banned)
	}
	banned1 := fmt.Sprint(many.Verdict.Reasons)
	wantEqual(t, banned1, "[{banned keys: {number} 1 0}]", "the reasons")
}

// TestThePageShowsWhoIsBusyNow, also while nothing can be read or written, and whose requests have
// no valid key.
func TestThePageShowsWhoIsBusyNow(t *testing.T) {
	inReadyShop(t, func(t *testing.T, s *readyShop) {
		s.service.clientIPHeader = "X-Forwarded-For"
		busy, calm := s.newKey(quota{3, 1000}), s.newKey(quota{60, 1000})
		for _, key := range []string{busy, busy, busy, calm} {
			s.list(withKey(key)).is(200)
		}
		s.list(withKey(busy)).is(429)
		for range addressQuota + 2 {
			s.list(noKey, from("192.0.2.9"))
		}
		s.list(withKey("nonsense"), from("192.0.2.8")).is(401)
		is := func(when, keys, strangers string) {
			t.Helper()
			stats, _ := s.stats()
			wantEqual(t, fmt.Sprint(stats.Busy.Keys), keys, "the busy keys ", when)
			others := fmt.Sprint(stats.Busy.Strangers)
			wantEqual(t, others, strangers, "callers without a key ", when)
		}
		is("now", "[{1 test 3 1 0} {2 test 1 0 0}]", "{61 2}")
		stats, _ := s.stats()
		if spent := stats.Busy.Spent; len(spent) != 1 || spent[0].Address != "192.0.2.9/32" ||
			time.Until(spent[0].Until) > time.Minute {
			t.Errorf("the addresses that are spent are %v", spent)
		}

		putBack := moveAway(t, s.path)
		s.post(withKey(calm), `={"name":"Rex","categoryId":7}`).is(503)
		is("in an outage", "[{1 test 3 1 0} {2 test 2 0 1}]", "{61 2}")
		putBack()
		time.Sleep(6 * time.Minute)
		is("later", "[]", "{0 0}")

		for range 12 {
			s.list(withKey(s.newKey(quota{60, 1000}))).is(200)
		}
		stats, _ = s.stats()
		if len(stats.Busy.Keys) != 10 || stats.Busy.Count != 12 {
			t.Errorf("of %d keys it shows %d", stats.Busy.Count, len(stats.Busy.Keys))
		}
	})
}

func TestThePageShowsTheBusiestKeysOf30Days(t *testing.T) {
	s := openShop(t)
	today := time.Now().Unix() / 86400
	for i := range 20 {
		s.operatorKey(fmt.Sprint("key ", i), "free", quota{}, "0, 0, 0, 0, 0, 0")
	}
	for _, usage := range []string{"?1, 10 * id", "?1 - 29, 1", "?1 - 30, 100000 * (30 - id)"} {
		mustWrite(t, s.store, sqlOf(`INSERT INTO usage_days
			(usage_id, day, admitted, refused, errors)
			SELECT id, `+usage+`, 3, 2 FROM api_keys WHERE name LIKE 'key %'`, today))
	}
	stats, _ := s.report()
	wantEqual(t, len(stats.Report.Usage), 15, "the number of keys")
	for place, key := range stats.Report.Usage {
		if want := fmt.Sprint("key ", 19-place); key.Name != want || len(key.Days) != 2 {
			t.Errorf("place %d has %s with %d days, want %s", place, key.Name, len(key.Days), want)
		}
	}
	firstDay := time.Unix((today-29)*86400, 0).UTC().Format(time.DateOnly)
	wantEqual(t, fmt.Sprint(stats.Report.Usage[0].Days[0]), "{"+firstDay+" 1 3 2}",
		"the first day, with what was admitted and refused, and the errors,")
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
	wantEqual(t, stats.nearLimits(), want, "who is shown")
}

// TestThePageKnowsThatAllKeysAreOfTheOtherEnvironment, and ceases to say so once one is of this.
func TestThePageKnowsThatAllKeysAreOfTheOtherEnvironment(t *testing.T) {
	s := openShop(t)
	ask := func() string {
		s.stats()
		s.debug().storedReading.next = time.Time{}
		must(t, s.debug().updateStored(t.Context()))
		stats, _ := s.stats()
		if len(stats.Verdict.Reasons) == 0 {
			return ""
		}
		return stats.Verdict.Reasons[0].Words
	}
	wantEqual(t, ask(), "", "the reason of a shop with a key")
	mustWrite(t, s.store, sqlOf("UPDATE api_keys SET test = 1"))
	wantPart(t, ask(), "keys are all of the other environment", "the reason")
	mustInsertKey(t, s.store, apiKey{})
	wantEqual(t, ask(), "", "the reason, once there is a key of production")
}

// TestThePageShowsTheNodesOfACluster, also while none leads.
func TestThePageShowsTheNodesOfACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClusterWithoutNetwork(t, 3)
		st, _ := newClusterStore(t, c)
		s := newClusterShop(t, c, st)
		shows := func(want string) {
			t.Helper()
			must(t, s.debug().updateNodes(t.Context()))
			stats, _ := s.stats()
			wantEqual(t, fmt.Sprint(stats.Members), want, "the nodes")
			wantEqual(t, stats.Metrics["petstore_nodes_serving"], 2, "how many serve")
		}
		c.nodes[2].down = true
		shows("[{http://node0:4001 Leader} {http://node1:4001 Follower} {http://node2:4001 }]")
		c.lead(-1)
		shows("[{http://node0:4001 Follower} {http://node1:4001 Follower} {http://node2:4001 }]")
	})
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

// TestTheStoreIsAskedForTheReportEvery5SecondsWhileAPageIsOpen, or, where that takes long, after a
// pause of twenty times that. Pets are counted once a minute, for the metrics too, and shown for
// ten.
func TestTheStoreIsAskedForTheReportEvery5SecondsWhileAPageIsOpen(t *testing.T) {
	inReadyShop(t, func(t *testing.T, s *readyShop) {
		mustCreate(t, s.store, rex)
		var takes time.Duration
		reports, counts := 0, 0
		check := func(st statement, columns []any) {
			switch {
			case columns != nil:
			case strings.Contains(st.query, "minute_ends > ?1"):
				reports++
				time.Sleep(takes)
			case strings.Contains(st.query, "FROM pets"):
				counts++
			}
		}
		s.store.engine = &watchedEngine{engine: s.store.engine, check: check}
		o := s.debug()
		ask := func(path string, minutes, wantReports, wantCounts int) {
			t.Helper()
			reports, counts = 0, 0
			for range 24 * minutes {
				time.Sleep(2500 * time.Millisecond)
				if path != "" {
					s.onDebug(path)
				}
				must(t, o.updateReport(t.Context()))
				must(t, o.updateStored(t.Context()))
			}
			wantEqual(t, reports, wantReports, "the readings of the report, with ", path)
			wantEqual(t, counts, wantCounts, "the countings of pets, with ", path)
		}
		ask("", 1, 0, 0)
		ask("/stats.json", 2, 24, 2)
		takes = time.Second
		ask("/stats.json", 1, 3, 1) // at 0, 21 and 42 s
		takes = 0
		ask("/metrics", 2, 1, 2) // the report for who has asked before
		wantEqual(t, o.currentMetrics().numbers["petstore_pets"], 1, "the number of pets")
		time.Sleep(11 * time.Minute)
		if pets, isShown := o.currentMetrics().numbers["petstore_pets"]; isShown {
			t.Errorf("%v pets are shown, long after they were counted", pets)
		}
	})
}

// A person who meets a damaged file must know of which time the last backup is.
func TestTheLastBackupIsToldWherePetsCannotBeCounted(t *testing.T) {
	s := openShop(t)
	mustNoteBackup(t, s.service.store)
	mustWrite(t, s.service.store, sqlOf("DROP TABLE pets"))
	o := s.debug()
	s.stats()
	if err := o.updateStored(t.Context()); err == nil {
		t.Error("pets that are not there were counted")
	}
	numbers := o.currentMetrics().numbers
	wantEqual(t, numbers["petstore_last_backup_timestamp_seconds"], 7, "the time of the backup")
	if pets, isShown := numbers["petstore_pets"]; isShown {
		t.Errorf("%v pets are shown", pets)
	}
}

// A store that hangs holds up the report alone, and not the end of the service.
func TestTheNumbersDoNotWaitForAStoreThatHangs(t *testing.T) {
	inReadyShop(t, func(t *testing.T, s *readyShop) {
		hang := make(chan struct{})
		reads := operatorReads(s.service, func() { <-hang })
		stop := runBackground(s.service, s.debug(), nil)
		s.stats()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		began := time.Now()
		for range 10 {
			if stats, _ := s.stats(); stats.Report != nil || len(stats.Metrics) == 0 {
				t.Fatalf("it shows the report %v", stats.Report)
			}
		}
		wantEqual(t, time.Since(began), 0, "the time that it takes")
		wantEqual(t, reads.Load(), 1, "how often the store is asked")
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

// The verdict: whether all is well.

// TestTheVerdictIsThatOfTheAlerts: the same names, limits and windows, and what the page does not
// have is marked.
func TestTheVerdictIsThatOfTheAlerts(t *testing.T) {
	missing := map[string]bool{}
	for _, w := range watches {
		missing[w.alert] = true
	}
	for block := range strings.SplitSeq(readText(t, "docs/deploy/alerts.yml"), "\n\n") {
		_, rule, _ := strings.Cut(block, "- alert: ")
		name, _, _ := strings.Cut(rule, "\n")
		marked := strings.Contains(block, "# not on the page: ")
		if missing[name] == marked {
			t.Errorf("%s is on the page: %v, and marked as missing there: %v", name,
				missing[name], marked)
		}
		delete(missing, name)
		_, expr, _ := strings.Cut(rule, "expr:")
		expr, _, _ = strings.Cut(expr, "annotations:")
		for _, w := range watches {
			if w.alert == name && w.of != bansNow { // the alert counts bans that began
				compareAlert(t, w, expr)
			}
		}
	}
	for name := range missing {
		t.Errorf("docs/deploy/alerts.yml has no %s", name)
	}
}

// TestThePageHasARemedyForEveryReason, and each is under a heading of the document that it names.
func TestThePageHasARemedyForEveryReason(t *testing.T) {
	lines := regexp.MustCompile(`(?m)^  \[/(.+)/, "[^"]+", "([^"]+)"(?:, "([^"]+)")?\],$`)
	reasons := []string{
		": the service does not respond",
		": the store does not respond",
		": database disk image is malformed (11)",
		": database is locked (5) (SQLITE_BUSY)",
		": a file of the database was removed or replaced",
		": the database's files are gone",
	}
	for _, w := range watches {
		reasons = append(reasons, w.alert+": "+w.words)
	}
	script := readText(t, "web/operator.js")
	for _, line := range lines.FindAllStringSubmatch(script, -1) {
		document := readText(t, cmp.Or(line[3], "docs/operating.md"))
		wantMatch(t, document, `(?m)^##+ `+line[2]+`$`, "what the page names for "+line[1])
		treats := regexp.MustCompile(line[1]).MatchString
		if !slices.ContainsFunc(reasons, treats) {
			t.Errorf("no reason is like %s", line[1])
		}
		reasons = slices.DeleteFunc(reasons, treats)
	}
	wantEqual(t, reasons, []string{}, "the reasons without a remedy")
}

// compareAlert compares a line of the page with the expression of its alert.
func compareAlert(t *testing.T, w watch, expr string) {
	t.Helper()
	for _, part := range allMatches(`(petstore_\w+|[a-zA-Z_]+_error|unavailable|\w+Pets?\b)`,
		w.of+" "+w.among) {
		wantPart(t, expr, part, "the alert ", w.alert)
	}
	comparison := regexp.MustCompile(`> (-?[\d.]+)(?: \* (\d+))?(?:\s|$)`)
	limits := comparison.FindAllStringSubmatch(expr, -1)
	for _, limit := range limits {
		n, err := strconv.ParseFloat(limit[1], 64)
		must(t, err)
		if factor, err := strconv.ParseFloat(limit[2], 64); err == nil {
			n *= factor
		}
		wantEqual(t, n, w.limit, "the limit of the alert ", w.alert)
	}
	if limits == nil {
		t.Errorf("the alert %s has no limit", w.alert)
	}
	for _, window := range allMatches(`\[(\w+)\]`, expr) {
		if d, err := time.ParseDuration(window); err != nil || d != watchWindow {
			t.Errorf("the alert %s looks back %s, and the page 5m", w.alert, window)
		}
	}
	fewest := fmt.Sprint(">= ", minRequests)
	if w.alert == "PetstoreSlow" && !strings.Contains(expr, fewest) {
		t.Errorf("the alert %s lacks %s", w.alert, fewest)
	}
}

func TestWhatIsToBeWatched(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	names := strings.NewReplacer(
		"ERRORS", `petstore_errors_total{code=`,
		"FAST", `petstore_request_duration_seconds_bucket{operation="createPet",le="0.25"}`,
		"ALL", `petstore_request_duration_seconds_count{operation="createPet"}`,
		"COMMITS", "petstore_commit_requests_count",
		"WRITES", "petstore_commit_requests_sum",
		"FAILURES", "petstore_commit_failures_total",
		"FREE", "petstore_disk_free_bytes",
		"SIZE", "petstore_disk_size_bytes",
		"BACKUP", "petstore_last_backup_timestamp_seconds",
		"EXPIRY", "petstore_certificate_expiry_timestamp_seconds",
		"UNUSABLE", "petstore_certificate_files_unusable",
	)
	// numbers are those of a text. One with a unit is an instant, so long after now.
	numbers := func(text string) map[string]float64 {
		found := map[string]float64{}
		for field := range strings.FieldsSeq(names.Replace(text)) {
			at := strings.LastIndexByte(field, '=')
			value, err := strconv.ParseFloat(field[at+1:], 64)
			if err != nil {
				later, err := time.ParseDuration(field[at+1:])
				must(t, err)
				value = float64(now.Add(later).Unix())
			}
			found[field[:at]] = value
		}
		return found
	}
	before := numbers("ALL=1000 FAST=900 WRITES=5000 COMMITS=10 FAILURES=3")
	for text, want := range rowsOf(t, `
		ALL=1000 => nothing
		ERRORS"internal_error"}=1 => responses of 500 in 5 minutes: {number} (1, 0)
		ERRORS"unavailable"}=1 => responses of 503
		ERRORS"lookup_refused"}=99 => nothing
		petstore_bans_total=99 => nothing
		petstore_nodes=3 petstore_nodes_serving=3 => nothing
		petstore_nodes=3 petstore_nodes_serving=2 => do not serve: {number} (1, 0.333)
		FAILURES=3 => nothing
		petstore_sync_failed=0 => nothing
		petstore_sync_failed=1 => nothing is written any more
		FAILURES=4 => commits failed in 5 minutes: {number} (1, 0)
		petstore_unknown_outcomes_total=1 => unknown outcome
		petstore_ids_given_again_total=1 => ids of pets given again in 5 minutes: {number} (1, 0)
		petstore_foreign_keys=0 => nothing
		petstore_foreign_keys=3 => all of the other environment, and get 401: {number} (3, 0)
		COMMITS=20 WRITES=15000 => nothing
		COMMITS=20 WRITES=15011 => more than 1,000 writes
		ALL=1200 FAST=1099 => nothing
		ALL=1200 FAST=1097 => of creates took longer than 0.25 s: {number} in 5 minutes (3, 0.015)
		ALL=1099 FAST=900 => nothing
		FREE=20e9 SIZE=100e9 => nothing
		FREE=19.9e9 SIZE=100e9 => {share} of the disk is used (8.01e+10, 0.801)
		BACKUP=-26h => nothing
		BACKUP=-26h0m1s => the last backup is {age} old (93601, 0)
		EXPIRY=168h => nothing
		EXPIRY=167h59m59s => less than a week is left of the certificate (-604799, 0)
		EXPIRY=1s => less than a week is left of the certificate
		EXPIRY=0s => the certificate has ended
		EXPIRY=-1h => the certificate has ended
		UNUSABLE=0 => nothing
		UNUSABLE=1 => the files of the certificate cannot be used`) {
		after := numbers(text)
		reasons := ""
		for _, w := range watches {
			if r, holds := w.judge(now, after, before); holds {
				reasons += fmt.Sprintf("%s (%v, %.3g); ", r.Words, r.Number, r.Share)
			}
		}
		reasons = cmp.Or(reasons, "nothing; ")
		wantPart(t, reasons, want, "with ", text, " the reasons")
		wantCount(t, reasons, ";", 1, "with ", text, " the reasons")
	}
}

// TestTheVerdictKnowsSinceWhen a reason holds, also if nobody has looked, and forgets what happened
// more than five minutes ago. A process that is younger judges by what it has seen.
func TestTheVerdictKnowsSinceWhen(t *testing.T) {
	takesSeconds(t)
	inReadyShop(t, func(t *testing.T, s *readyShop) {
		srv := s.service
		stop := runBackground(srv, s.debug(), nil)
		judged := func(want string, since time.Time) {
			t.Helper()
			stats, _ := s.stats()
			v := stats.Verdict
			switch {
			case want == "":
				if len(v.Reasons) != 0 || !v.Ready {
					t.Errorf("at %v the verdict is %+v", time.Now(), v)
				}
			case len(v.Reasons) != 1 || !strings.Contains(v.Reasons[0].Words, want):
				t.Errorf("at %v the verdict is %+v, want %q", time.Now(), v, want)
			default:
				from := time.UnixMilli(v.Reasons[0].Since)
				if late := from.Sub(since); late < 0 || late > 5*time.Second {
					t.Errorf("%q holds since %v, want %v", want, from, since)
				}
			}
		}
		judged("", time.Time{})
		srv.errors[CodeInternalError].Add(1)
		begun := time.Now()
		judged("responses of 500", begun)
		for range 3 {
			time.Sleep(4 * time.Minute)
			judged("responses of 500", begun)
			srv.errors[CodeInternalError].Add(1) // before the last one is five minutes old
		}
		time.Sleep(6 * time.Minute)
		judged("", time.Time{})
		srv.errors[CodeUnavailable].Add(1)
		begun = time.Now()
		time.Sleep(3 * time.Minute) // nobody looks
		judged("responses of 503", begun)
		// What has an age has held since it passed the limit, also if nobody looked then.
		backup := float64(time.Now().Add(-27 * time.Hour).Unix())
		numbers := map[string]float64{"petstore_last_backup_timestamp_seconds": backup}
		old := s.debug().judge(time.Now(), numbers).Reasons
		wantEqual(t, old[len(old)-1].Since, time.Now().Add(-time.Hour).UnixMilli(), "since")
		must(t, stop())
	})
}

// TestReadySinceIsWhenSomebodyHasSeenIt: a commit that failed, or who asked.
func TestReadySinceIsWhenSomebodyHasSeenIt(t *testing.T) {
	inReadyShop(t, func(t *testing.T, s *readyShop) {
		is := func(ready bool, since time.Time) {
			t.Helper()
			stats, _ := s.stats()
			v := stats.Verdict
			if v.Ready != ready || v.ReadySince != since.UnixMilli() {
				t.Errorf("ready is %v since %v, want %v since %v", v.Ready,
					time.UnixMilli(v.ReadySince), ready, since)
			}
			if !ready && (len(v.Reasons) == 0 || v.Reasons[0].Since != v.ReadySince ||
				v.Reasons[0].Words == "") {
				t.Errorf("the reasons are %+v", v.Reasons)
			}
		}
		is(true, processStart)
		putBack := moveAway(t, s.path)
		time.Sleep(time.Minute)
		is(true, processStart) // nothing probes by itself
		_, err := s.store.createPet(1, NewPet{Name: "Rex", Status: Sold})
		failed := time.Now()
		time.Sleep(time.Minute)
		is(false, failed)
		s.onDebug("/readyz")
		is(false, failed)
		putBack()
		time.Sleep(time.Minute)
		is(false, failed)
		s.onDebug("/metrics")
		back := time.Now()
		time.Sleep(time.Minute)
		is(true, back)
		if err == nil || s.probes != 2 {
			t.Errorf("%d probes, and the commit is %v", s.probes, err)
		}

		// What a commit has shown, the next one takes back.
		putBack = moveAway(t, s.path)
		_, _ = s.store.createPet(1, rex)
		is(false, time.Now())
		putBack()
		time.Sleep(time.Minute)
		_, err = s.store.createPet(1, rex)
		must(t, err)
		is(true, time.Now())
	})
}

// Readiness, and the debug address.

// readyShop is a service in fake time that is asked whether it is ready.
type readyShop struct {
	*shop
	path   string // of its database
	probes int    // how often its store was asked
}

// inReadyShop runs a test with such a service.
func inReadyShop(t *testing.T, test func(t *testing.T, s *readyShop)) {
	t.Helper()
	t.Parallel()
	path := databasePath(t) // outside, since its folder outlives the fake time
	synctest.Test(t, func(t *testing.T) {
		s := &readyShop{shop: &shop{t: t, key: "none"}, path: path}
		s.store = openDatabaseFor(t, path, openToServe)
		haveRoom(s.store)
		s.store.engine = &watchedEngine{s.store.engine, func(st statement, _ []any) {
			if strings.Contains(st.query, "'probe'") {
				s.probes++
			}
		}}
		s.service = newService(s.store, settings{}, slog.New(slog.NewJSONHandler(&s.log, nil)))
		test(t, s)
	})
}

// TestReadinessIsThatOfTheStore. Every probe writes to the disk, which may have failed since the
// last one.
func TestReadinessIsThatOfTheStore(t *testing.T) {
	inReadyShop(t, func(t *testing.T, s *readyShop) {
		ready := func(status int, want, metric string) {
			t.Helper()
			time.Sleep(2 * time.Second) // or it would say what it said before
			wantPart(t, s.onDebug("/metrics").Body.String(), metric, "/metrics")
			w := s.onDebug("/readyz")
			if w.Code != status || !strings.Contains(w.Body.String(), want) {
				t.Errorf("it is %d %q, want %d %q", w.Code, w.Body, status, want)
			}
			wantEqual(t, s.onDebug("/healthz").Code, 200, "the status of /healthz")
		}
		for range 5 {
			before := readText(t, s.path+"-wal")
			ready(200, "ok", "\npetstore_ready 1\n")
			if readText(t, s.path+"-wal") == before {
				t.Error("nothing was written to find out")
			}
		}
		wantRows(t, s.store, "services", 1)
		must(t, s.store.engine.(*watchedEngine).engine.(*sqliteFile).reader.Close())
		ready(503, "closed", "\npetstore_ready 0\n")
		s.service.stopping.Store(true)
		ready(503, "stopping", "\npetstore_ready 0\n")
	})
}

// TestReadinessNeedsNoKeyAndGivesNoDetail: load balancers ask on the service's own address, and so
// may anybody else.
func TestReadinessNeedsNoKeyAndGivesNoDetail(t *testing.T) {
	inReadyShop(t, func(t *testing.T, s *readyShop) {
		// A write is tried again after 2 seconds.
		isReady := `

			wait 2s

			GET /readyz
			Authorization:
			200
			X-RateLimit-Limit:
			=ok

			HEAD /readyz
			Authorization:
			200

			GET /readyz
			Authorization: Bearer nonsense
			200
			X-RateLimit-Limit:
			=ok

			HEAD /readyz
			Authorization: Bearer nonsense
			200`
		s.talk(isReady + `
			Content-Type: text/plain; charset=utf-8
			Content-Length: 3

			100 GET /readyz
			200`) // it is not limited
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
			s.call(method, "/readyz").is(405).has("Allow: GET, HEAD")
		}
		for _, target := range []string{
			"/readyz/", "/healthz", "/metrics", "/debug/pprof/", "/stats.json", "/operator.js",
		} {
			s.get(target).is(404)
		}

		putBack := moveAway(t, s.path)
		const unavailable = `{"code":"unavailable","message":"unavailable","status":503}`
		isUnready := strings.NewReplacer("200", "503", "ok", unavailable).Replace(isReady)
		s.talk(isUnready + isUnready + `
			Retry-After: 1`)
		putBack()
		s.talk(isReady + isReady)
		s.wantLog(`"level":"ERROR","msg":"not ready"`)
		s.wantLog(`"level":"INFO","msg":"ready again"`)
		wantCount(t, s.log.String(), "\n", 2, "the log")
	})
}

// TestStrangersCauseOneCommitInTwoSecondsAtMost, however often they ask whether the service is
// ready, and wherever.
func TestStrangersCauseOneCommitInTwoSecondsAtMost(t *testing.T) {
	inReadyShop(t, func(t *testing.T, s *readyShop) {
		ask := func(after time.Duration, status, want int) {
			t.Helper()
			time.Sleep(after)
			for range 5 {
				s.get("/readyz").is(status)
				wantEqual(t, s.onDebug("/readyz").Code, status, "the status")
			}
			wantEqual(t, s.probes, want, "the number of writes that were tried")
		}
		ask(0, 200, 1)
		for range 7 {
			ask(250*time.Millisecond, 200, 1)
		}
		ask(249*time.Millisecond, 200, 1)
		ask(time.Millisecond, 200, 2)
		ask(time.Hour, 200, 3) // nobody has asked meanwhile

		putBack := moveAway(t, s.path) // a write fails from now on
		ask(1999*time.Millisecond, 200, 3)
		ask(250*time.Millisecond, 503, 4)
		putBack()
		ask(1999*time.Millisecond, 503, 4) // a write that fails is one too
		ask(250*time.Millisecond, 200, 5)
	})
}

// TestTheDebugAddressIsOnlyForThoseWhoNameIt: a page of another site can have its own name point to
// this machine, and would then be of the same origin (DNS rebinding).
func TestTheDebugAddressIsOnlyForThoseWhoNameIt(t *testing.T) {
	ours, anyHost := newOperator(nil).routes(false), newOperator(nil).routes(true)
	for status, hosts := range map[int]string{
		// No address can point elsewhere.
		200: `localhost localhost:6060 LocalHost:6060 127.0.0.1:6060 127.0.0.1 10.1.2.3:6060
			[::1]:6060 [::1] [2001:DB8::1]:6060`,
		403: `evil.example evil.example:6060 localhost.evil.example:6060 evil.example:localhost
			127.0.0.1.evil.example:6060 pets.internal`,
	} {
		for _, host := range strings.Fields(hosts) {
			for _, path := range []string{"/", "/healthz", "/debug/pprof/"} {
				wantEqual(t, debugCall(ours, path, host).Code, status,
					"the status of ", path, " on ", host)
				wantEqual(t, debugCall(anyHost, path, host).Code, 200,
					"with -debug-allow-remote, the status of ", path, " on ", host)
			}
		}
	}
}

// TestTheDebugAddressIsNotForPagesOfOtherOrigins, which could not read it and yet make it work. A
// link, such as one in a message, leads to the operator's page and to nothing else. A row has the
// site, mode and dest of Sec-Fetch, and a request. What is no browser sends none of them, and the
// site of an address that somebody has typed is none.
func TestTheDebugAddressIsNotForPagesOfOtherOrigins(t *testing.T) {
	routes := newOperator(nil).routes(false)
	for row, want := range rowsOf(t, `
		-                       -         -        GET /healthz            => 200
		same-origin             cors      empty    GET /healthz            => 200
		none                    navigate  document GET /healthz            => 200
		same-site               no-cors   image    GET /healthz            => 403
		cross-site              no-cors   image    GET /healthz            => 403
		cross-site              no-cors   script   GET /debug/pprof/trace  => 403
		cross-site              navigate  document GET /debug/pprof/       => 403
		cross-site              navigate  document GET /nothing            => 403
		cross-site              navigate  document GET /                   => 200
		same-site               navigate  document GET /                   => 200
		cross-site              navigate  document POST /                  => 403
		cross-site              navigate  iframe   GET /                   => 403
		cross-site              no-cors   document GET /                   => 403
		cross-site              -         -        GET /                   => 403
		same-origin,cross-site  cors      empty    GET /healthz            => 403
		Same-Origin             cors      empty    GET /healthz            => 403
		EMPTY                   cors      empty    GET /healthz            => 403`) {
		words := strings.Fields(row)
		r := httptest.NewRequest(words[3], words[4], nil)
		r.Host = "localhost"
		for i, name := range []string{"Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"} {
			for value := range strings.SplitSeq(words[i], ",") {
				if value != "-" {
					r.Header.Add(name, strings.TrimPrefix(value, "EMPTY"))
				}
			}
		}
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, r)
		wantEqual(t, fmt.Sprint(w.Code), want, "the status of ", row)
	}
}

// TestNothingOfTheDebugAddressIsTakenForAnotherType, whatever it holds.
func TestNothingOfTheDebugAddressIsTakenForAnotherType(t *testing.T) {
	s := openShop(t)
	s.debug()
	for path := range strings.FieldsSeq(`/ /operator.css /operator.js /healthz /readyz /metrics
		/stats.json /debug/pprof/ /debug/pprof/cmdline /debug/pprof/goroutine?debug=1
		/debug/pprof/nothing /nothing /debug/pprof`) {
		for _, host := range []string{"localhost", "evil.example"} {
			w := debugCall(s.routes, path, host)
			wantEqual(t, w.Header().Get("X-Content-Type-Options"), "nosniff",
				"the X-Content-Type-Options of ", path, " on ", host)
		}
	}
}

func TestTheDebugAddressShowsNoPassword(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = []string{"petstore", "-db", "http://anna:t@p@n1,https://bert:secret@n2", "-log"}
	w := debugCall(newOperator(nil).routes(false), "/debug/pprof/cmdline", "localhost")
	wantEqual(t, w.Body.String(), "petstore\x00-db\x00http://…n2\x00-log",
		"what is shown")
}

// TestTheHistoryHoldsAnHourInAMebibyte: the page begins with it, and a busy service must not grow.
func TestTheHistoryHoldsAnHourInAMebibyte(t *testing.T) {
	h := &history{}
	numbers := map[string]float64{"petstore_bans_total": 7, "process_cpu_seconds_total": 1.5,
		"petstore_unknown_outcomes_total": 5}
	for i := range 3 * maxNumbers {
		numbers[fmt.Sprintf(`petstore_requests_total{operation="listPets",status="%d"}`, i)] = 1e6
	}
	for i := range 2 * maxSamples {
		h.add(processStart.Add(time.Duration(i)*5*time.Second), numbers)
	}
	wantEqual(t, len(h.samples), maxSamples, "the number of samples")
	oldest := time.UnixMilli(h.samples[0].Time).Sub(processStart)
	wantEqual(t, oldest.Round(time.Second), time.Hour,
		"the time from the start to the oldest sample")
	bytes := 0
	for _, s := range h.samples {
		bytes += 8 * cap(s.Values)
	}
	if bytes > 1<<20 {
		t.Errorf("the values take %d bytes", bytes)
	}
	if _, drawn := h.places["petstore_bans_total"]; drawn {
		t.Error("a number that no chart draws is kept")
	}
	kept := h.before(processStart.Add(time.Hour))
	wantEqual(t, kept["petstore_unknown_outcomes_total"], 5,
		"what the verdict reads, and is kept before all else,")
}

// TestTheHistoryTellsItsNumbersByName: a number that comes later is not in the samples before it.
func TestTheHistoryTellsItsNumbersByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{}
		h.add(time.Now(), map[string]float64{"process_cpu_seconds_total": 1})
		time.Sleep(5 * time.Second)
		h.add(time.Now(), map[string]float64{
			"process_cpu_seconds_total":    2,
			"petstore_commit_requests_sum": 3,
		})
		time.Sleep(time.Second)
		const want = `{"now":946684806000,` +
			`"places":{"petstore_commit_requests_sum":1,"process_cpu_seconds_total":0},` +
			`"samples":[{"time":946684800000,"values":[1]},{"time":946684805000,"values":[2,3]}]}`
		wantEqual(t, string(h.json()), want, "the history")
	})
}

// TestTheHistoryHasWhatTheChartsDraw: these names are copied from charts in web/operator.js.
func TestTheHistoryHasWhatTheChartsDraw(t *testing.T) {
	numbers := map[string]float64{}
	for name := range linesOf(`
		petstore_requests_total{operation="other",status="404"}
		petstore_request_duration_seconds_bucket{operation="listPets",le="1"}
		petstore_request_duration_seconds_bucket{operation="createPet",le="1"}
		petstore_request_duration_seconds_bucket{operation="getPet",le="1"}
		petstore_commit_requests_sum
		petstore_commit_requests_count
		petstore_commit_requests_bucket{le="4"}
		process_resident_memory_bytes
		process_cpu_seconds_total`) {
		numbers[name] = 1
	}
	for _, w := range watches { // and what the verdict compares with what was before
		if w.kind == growth || w.kind == lacking {
			numbers[w.of] = 1
		}
	}
	h := &history{}
	h.add(processStart, numbers)
	for name := range numbers {
		if _, drawn := h.places[name]; !drawn {
			t.Errorf("the history lacks %s", name)
		}
	}
}

func TestTheHistoryIsUsedUnderItsLock(t *testing.T) {
	h := &history{}
	wantLocked(t, &h.mu, map[string]func(){
		"(*history).json":   func() { h.json() },
		"(*history).before": func() { h.before(processStart) },
		"(*history).add":    func() { h.add(processStart, nil) },
	})
}
