package e2e

// The operator's page, in Chromium without its window, while clients call the service.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// startOperatorsPage starts a service, and opens the page of its debug address.
func startOperatorsPage(t *testing.T) (s *server, b *tab) {
	t.Helper()
	s = start(t, debugFlags...)
	b = openTab(t, s.debug+"/")
	b.shows("#state", "Updating")
	return s, b
}

// crew are clients that call at a steady pace until they are stopped.
type crew struct {
	stop context.CancelFunc
	done sync.WaitGroup
}

// work starts clients that do all that the page tells apart: pets are listed, listed again with the
// ETag, added and fetched, some that are not there; and the key of the Free plan is soon refused.
func (s *server) work(t *testing.T, perSecond int, limited string) *crew {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &crew{stop: stop}
	client := newHTTPClient(8)
	t.Cleanup(client.CloseIdleConnections)
	send := func(method, target, body string, headers ...string) {
		if _, err := s.send(context.WithoutCancel(ctx), client, method, target, body,
			headers...); err != nil {
			t.Error(err)
		}
	}
	for range 6 { // a page of 5 stays as it is
		s.addPet(rex)
	}
	list, err := s.send(ctx, client, "GET", "/pets?limit=5", "")
	noError(t, err)
	c.done.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			c.done.Go(func() {
				switch i % 10 {
				case 0, 1, 2:
					send("POST", "/pets", animalJSON(fmt.Sprint("Pet ", i)))
				case 3, 4:
					send("GET", "/pets?limit=100&after="+fmt.Sprint(rand.IntN(i+1)), "")
				case 5, 6:
					send("GET", fmt.Sprint("/pets/", 1+rand.IntN(i/3+1)), "")
				case 7:
					send("GET", "/pets?limit=5", "", "If-None-Match: "+list.header.Get("ETag"))
				case 8:
					send("GET", "/pets?limit=0", "")
				default:
					send("GET", "/pets", "", "Authorization: Bearer "+limited)
				}
			})
		}
	})
	t.Cleanup(c.end)
	return c
}

// end stops the clients and waits for their last responses.
func (c *crew) end() {
	c.stop()
	c.done.Wait()
}

// operatorState checks how the operator's page looks now.
func (b *tab) operatorState(name string) {
	b.t.Helper()
	b.looks("operator-"+name, faultsOfTheOperatorsPage, 320, 390, 768, 1280)
}

// faultsOfTheOperatorsPage are: what is wider than the window, or cut off; titles that do not stand
// on a line; and on a phone what a finger misses.
const faultsOfTheOperatorsPage = `(() => {
	const all = (selectors) => [...document.querySelectorAll(selectors)];
	const tell = (elements, what) => elements.map((e) => e.textContent + what);
	const width = document.documentElement.scrollWidth;
	const cells = all("th, td").filter((e) => e.checkVisibility());
	const cut = cells.filter((e) => e.getBoundingClientRect().right > innerWidth);
	const titles = all("h2").filter((e) =>
		e.getClientRects()[0].height > 30 || e.scrollWidth > e.clientWidth);
	const touched = innerWidth === 390 ? all("button, nav a, label.moment") : [];
	const small = touched.filter((e) => e.getBoundingClientRect().height < 44);
	const heads = innerWidth === 1280 ? all(".quarter > header") : [];
	const folded = heads.filter((e) => e.getBoundingClientRect().height > 40);
	return [
		...(width > innerWidth ? ["the page is " + width + " pixels wide"] : []),
		...tell(cut, " is cut off"), ...tell(titles, " does not stand on a line"),
		...tell(small, " is too small for a finger"),
		...tell(folded, " takes two lines, so that charts side by side are not level"),
	];
})()`

// value is what the page shows under a name.
func (b *tab) value(name string) string {
	b.t.Helper()
	return eval[string](b, contentOf(fmt.Sprintf("[data-value=%q]", name)))
}

// number is the value as a number, in the unit without a prefix: seconds, bytes, or none. After a
// reading that was missed, as on a busy machine, it waits for two others.
func (b *tab) number(name string) float64 {
	b.t.Helper()
	var text string
	eventually(b.t, longEnough, func() error {
		if text = b.value(name); text == "–" {
			return fmt.Errorf("there is no %s", name)
		}
		return nil
	})
	return shownNumber(b.t, text)
}

// hasSeen waits until the page shows so many successes.
func (b *tab) hasSeen(successes float64) {
	b.t.Helper()
	eventually(b.t, longEnough, func() error {
		if got := b.number("total.success"); got < successes {
			return fmt.Errorf("there were %v successes, want %v", got, successes)
		}
		return nil
	})
}

func shownNumber(t *testing.T, text string) float64 {
	t.Helper()
	text, _, _ = strings.Cut(text, " of ") // of so many requests
	digits, unit, _ := strings.Cut(strings.TrimSpace(text), " ")
	n, err := strconv.ParseFloat(strings.ReplaceAll(digits, ",", ""), 64)
	factor, known := map[string]float64{"": 1, "µs": 1e-6, "ms": 1e-3, "s": 1, "%": 1,
		"MiB": 1 << 20, "GiB": 1 << 30}[unit]
	if err != nil || !known {
		t.Fatalf("%q is no number", text)
	}
	return n * factor
}

// mostSuccesses is the largest number of successes a second that the summary of the chart names.
func (b *tab) mostSuccesses() float64 {
	b.t.Helper()
	label := eval[string](b,
		"document.querySelector('[data-chart=requests] svg').getAttribute('aria-label')")
	match := regexp.MustCompile(`2xx now [^;]*, at most ([^;]*)`).FindStringSubmatch(label)
	if match == nil {
		b.t.Fatalf("the chart of requests says %q, and nothing of 2xx", label)
	}
	return shownNumber(b.t, match[1])
}

// quantile is Prometheus' histogram_quantile, which the page must agree with.
func quantile(q float64, h *dto.Histogram) float64 {
	rank := q * float64(h.GetSampleCount())
	low, before := 0.0, 0.0
	for _, bucket := range h.GetBucket() {
		bound, count := bucket.GetUpperBound(), float64(bucket.GetCumulativeCount())
		if count >= rank {
			if math.IsInf(bound, 1) {
				return low
			}
			return low + (bound-low)*(rank-before)/(count-before)
		}
		low, before = bound, count
	}
	return low
}

// pageOutcomes are the outcomes that the page tells apart, by the status.
func pageOutcome(status string) string {
	switch {
	case status == "304":
		return "same"
	case status == "429":
		return "refused"
	}
	return map[byte]string{'2': "success", '4': "mistake", '5': "failure"}[status[0]]
}

// counted are the responses by outcome, as the metrics count them.
func (s *server) counted(t *testing.T) map[string]float64 {
	t.Helper()
	counted := map[string]float64{"success": 0, "same": 0, "mistake": 0, "refused": 0, "failure": 0}
	for _, m := range scrape(t, s)["petstore_requests_total"].GetMetric() {
		counted[pageOutcome(labels(m)["status"])] += m.GetCounter().GetValue()
	}
	return counted
}

// hasServed waits until the service has counted so many requests.
func (s *server) hasServed(t *testing.T, requests float64) {
	t.Helper()
	eventually(t, longEnough, func() error {
		if got := total(s.counted(t)); got < requests {
			return fmt.Errorf("there were %v requests", got)
		}
		return nil
	})
}

func labels(m *dto.Metric) map[string]string {
	all := map[string]string{}
	for _, l := range m.GetLabel() {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

func total(counted map[string]float64) (sum float64) {
	for n := range maps.Values(counted) {
		sum += n
	}
	return sum
}

// near reports whether two numbers differ by no more than a part of the larger.
func near(a, b, part float64) bool { return math.Abs(a-b) <= part*max(math.Abs(a), math.Abs(b)) }

// markup is a name that would be dangerous as HTML.
const markup = `<img src=x onerror=alert(1)>`

func TestTheOperatorsPageShowsWhatTheServiceDoes(t *testing.T) {
	t.Parallel()
	s := start(t, debugFlags...)
	limited := s.newKey("-plan", "free", "-name", markup)
	db := database(t, s.db, "PRAGMA busy_timeout = 10000",
		"INSERT INTO usage_days (usage_id, day, admitted, refused, errors) VALUES (2, "+
			"unixepoch() / 86400 - 3, 1000000, 77, 5)")
	noError(t, db.Close())
	b := openTab(t, s.debug+"/")
	b.shows("#state", "Updating")
	b.shows("[data-chart=listPets]", "No requests in this time")
	b.shows("[data-value='fact.engine']", "SQLite")
	b.shows("[data-value='fact.node']", s.db)
	b.shows("[data-value='well.failures']", "0 responses of 5xx")
	b.shows("[data-value='well.bans']", "no key banned")
	// so that two tabs differ
	for _, where := range []string{eval[string](b, "document.title"), b.text("h1")} {
		if !strings.Contains(where, strings.TrimPrefix(s.debug, "http://")) ||
			!strings.Contains(where, filepath.Base(s.db)) {
			t.Errorf("%q does not name the host and the database", where)
		}
	}
	b.operatorState("idle")

	crew := s.work(t, 100, limited)
	began, before := time.Now(), s.counted(t)
	b.shows("#near", markup)
	b.shows("#near", "60 of 60")
	b.shows("#usage", "1,000,0")
	b.shows("#usage", markup)
	wants(b, "document.querySelectorAll('img').length", 0)
	// a bdi keeps the direction of the name to itself
	wants(b, contentOf("#near bdi.name"), markup)
	wants(b, contentOf("#usage bdi.name"), markup)
	time.Sleep(time.Until(began.Add(12 * time.Second))) // what is shown is of the last 10
	rate := (total(s.counted(t)) - total(before)) / time.Since(began).Seconds()
	if got := b.number("requests.total"); !near(got, rate, 0.3) {
		t.Errorf("the page shows %v requests a second, and the metrics %v", got, rate)
	}
	if got := b.number("memory.resident"); !near(got, s.metric("process_resident_memory_bytes"),
		0.3) {
		t.Errorf("the page shows %v bytes of memory", got)
	}
	for _, name := range []string{"creates.creates", "creates.commits", "cpu.used", "sizes.mean",
		"commit.p99", "createPet.p50"} {
		if b.number(name) <= 0 {
			t.Errorf("the page shows %s as %s", name, b.value(name))
		}
	}
	b.operatorState("busy")
	crew.end()
	b.agreesWithTheMetrics(s)
	if got, want := b.number("bans.total"), s.metric("petstore_bans_total"); got != want {
		t.Errorf("the page shows %v bans, and the metrics %v", got, want)
	}

	// A page that is opened because something broke has a past.
	later := openTab(t, s.debug+"/")
	later.shows("#state", "Updating")
	if got := later.mostSuccesses(); got < 20 {
		t.Errorf("the chart shows at most %v requests a second before the page was opened", got)
	}
	for _, chart := range []string{"listPets", "createPet", "getPet", "memory", "cpu"} {
		if text := later.text("[data-chart=" + chart + "]"); strings.Contains(text, "No data") ||
			strings.Contains(text, "No requests") {
			t.Errorf("the chart %s shows %q", chart, text)
		}
	}
}

// showsTotals waits until the page shows so many requests of each outcome.
func (b *tab) showsTotals(counted map[string]float64) {
	b.t.Helper()
	eventually(b.t, longEnough, func() error {
		for outcome, want := range counted {
			if got := b.number("total." + outcome); got != want {
				return fmt.Errorf("the page has %v of %s, and the metrics %v", got, outcome, want)
			}
		}
		return nil
	})
}

// agreesWithTheMetrics compares, when no more requests come, what the page counts since the start,
// and the percentiles since it was opened, which was before the first request.
func (b *tab) agreesWithTheMetrics(s *server) {
	b.t.Helper()
	b.showsTotals(s.counted(b.t))
	families := scrape(b.t, s)
	requests := map[string]float64{}
	for _, m := range families["petstore_requests_total"].GetMetric() {
		requests[labels(m)["operation"]] += m.GetCounter().GetValue()
	}
	rows := map[string][]string{}
	for _, row := range eval[[][]string](b,
		`[...document.querySelectorAll("#operations tbody tr")]
		.map((row) => [...row.cells].map((c) => c.textContent))`) {
		rows[row[0]] = row
	}
	for _, m := range families["petstore_request_duration_seconds"].GetMetric() {
		name := labels(m)["operation"]
		row := rows[name]
		if requests[name] == 0 { // it is folded
			continue
		}
		if row == nil || shownNumber(b.t, row[1]) != requests[name] {
			b.t.Fatalf("the page shows %q of %s, and the metrics %v requests", row, name,
				requests[name])
		}
		for i, q := range []float64{0.5, 0.95, 0.99} {
			got, want := shownNumber(b.t, row[3+i]), quantile(q, m.GetHistogram())
			// whole microseconds, or three digits
			if math.Abs(got-want) > 0.5e-6 && !near(got, want, 0.006) {
				b.t.Errorf("the percentile %v of %s is %s, want %v s", q, name, row[3+i], want)
			}
		}
	}
}

func TestTheOperatorsPageSurvivesARestart(t *testing.T) {
	t.Parallel()
	s, b := startOperatorsPage(t)
	again := []string{"-debug-addr", strings.TrimPrefix(s.debug, "http://")}
	limited := s.newKey("-plan", "free")
	crew := s.work(t, 100, limited)
	b.hasSeen(300)
	crew.end()
	before := s.counted(t)
	b.showsTotals(before) // it looks once a second, and cannot once the service has stopped
	highest := b.mostSuccesses()
	s.stop()
	silent := time.Now()
	b.shows("#state", "Not responding since")
	b.shows("[data-value='requests.total']", "–")
	b.operatorState("away")

	locked := database(t, s.db, "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE")
	awaitReady := s.launch(again...)
	time.Sleep(time.Until(silent.Add(aColumn)))
	noError(t, locked.Close())
	awaitReady()
	b.shows("#state", "Updating, restarted at")
	if got := b.number("total.success"); got > 10 {
		t.Errorf("after the restart there are %v successes", got)
	}
	crew = s.work(t, 50, limited)
	b.hasSeen(100)
	crew.end()
	if got := b.mostSuccesses(); got > 1.5*highest {
		t.Errorf("the restart made a peak of %v requests a second, above %v", got, highest)
	}
	if text := b.text("main"); regexp.MustCompile(`(^|[^\w.])[-−]\d`).MatchString(text) {
		t.Errorf("something is negative: %s", text)
	}
	wants(b, hasGap, true)
	after := s.counted(t)
	eventually(t, longEnough, func() error { // what was shown of the first run and of the second
		got := eval[string](b,
			"[...document.querySelectorAll('#operations tbody td:nth-child(2)')].map((c) => "+
				"c.textContent).join(' ')")
		sum := 0.0
		for _, n := range strings.Fields(got) {
			sum += shownNumber(t, n)
		}
		if want := total(before) + total(after); sum < want-20 || sum > want {
			return fmt.Errorf("the page shows %v requests in the time shown, of %v", sum, want)
		}
		return nil
	})
	wants(b, "document.querySelectorAll('[data-chart=requests] .restart').length", 1)
	b.operatorState("restarted")
}

// aColumn is how long the service has to be silent for a gap: less is not seen.
const aColumn = 5 * time.Second

// hasGap is an expression for whether a time without responses is seen as that.
const hasGap = "document.querySelector('[data-chart=requests] .gap') !== null"

func TestATabThatSleptShowsNoPeak(t *testing.T) {
	t.Parallel()
	s, b := startOperatorsPage(t)
	began := time.Now()
	s.work(t, 100, s.newKey("-plan", "free"))
	s.hasServed(t, 300)
	// it sleeps
	eval[bool](b,
		`(() => { for (const end = Date.now() + 6000; Date.now() < end;); return true; })()`)
	b.shows("#state", "Updating")
	seen := b.number("total.success")
	b.hasSeen(seen + 1)
	mean := s.counted(t)["success"] / time.Since(began).Seconds()
	if got := b.mostSuccesses(); got > 2*mean {
		t.Errorf("the page shows a peak of %v a second, where there were %v", got, mean)
	}

	hidden := func(is bool) {
		t.Helper()
		eval[bool](b, fmt.Sprintf(`(() => {
			Object.defineProperty(document, "hidden", {value: %t, configurable: true});
			return document.dispatchEvent(new Event("visibilitychange"));
		})()`, is))
	}
	hidden(true)
	seen = b.number("total.success")
	s.hasServed(t, total(s.counted(t))+150)
	if got := b.number("total.success"); got != seen {
		t.Errorf("a tab that nobody sees is drawn: %v successes after %v", got, seen)
	}
	hidden(false)
	b.hasSeen(seen + 50)
}

func TestAFrozenServiceIsAGapOnTheOperatorsPage(t *testing.T) {
	t.Parallel()
	s, b := startOperatorsPage(t)
	s.addPet(rex) // most often after the last reading
	noError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	b.shows("#state", "Not responding since")
	time.Sleep(time.Until(stopped.Add(aColumn)))
	noError(t, s.cmd.Process.Signal(syscall.SIGCONT))
	b.shows("#state", "Updating")
	if got := b.number("requests.total"); got != 0 {
		t.Errorf("the pet is shown as %v requests a second of now", got)
	}
	wants(b, hasGap, true)
	b.shows("#operations td:nth-child(2)", "1")
	if got := b.text("#state"); strings.Contains(got, "restarted") {
		t.Errorf("what was frozen is shown as %q", got)
	}
}

func TestTheOperatorsPageCanBeUsedFromTheKeyboard(t *testing.T) {
	_, b := startOperatorsPage(t)
	b.press("\t")
	wants(b, "document.activeElement.textContent", "Skip to the content")
	b.tabTo(`nav a[href="metrics"]`)
	b.tabTo("[data-minutes='60']")
	b.press("\r")
	b.shows("[data-minutes='60'][aria-pressed=true]", "1 hour")
	b.tabTo("#pause")
	b.press(" ")
	b.shows(".when", "paused at")
	b.press(" ")
	b.shows(".when", "last 10 s")
	b.tabTo("#moment")
	b.press(kb.ArrowLeft)
	b.shows(".when", "at ")
	wants(b, `/^\d\d:\d\d:\d\d UTC$/.test(document.activeElement.ariaValueText)`, true)
	b.press(kb.End)
	b.shows("#moment-text", "now")
	b.tabTo("[aria-label='Table of all operations']") // to scroll in it

	// A pointer over a chart shows the numbers of that time.
	b.point("pointermove", 12)
	b.shows(".when", "at ")
	b.operatorState("moment")
	b.point("pointerleave", 12)
	b.shows(".when", "last 10 s")
}

// point moves the pointer over a chart, so many pixels before its end, or away.
func (b *tab) point(event string, before int) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`(() => {
		const chart = document.querySelector("[data-chart=memory]");
		const {right, top} = chart.getBoundingClientRect();
		const place = {clientX: right - %d, clientY: top + 5};
		return chart.dispatchEvent(new PointerEvent(%q, place));
	})()`, before, event))
}

func TestTheOperatorsPageKeepsTheTimeThatIsLookedAt(t *testing.T) {
	t.Parallel()
	s := start(t, debugFlags...)
	s.work(t, 100, s.newKey("-plan", "free"))
	b := openTab(t, s.debug+"/")
	b.shows("#state", "Updating")
	nextColumn := func() { // of five minutes: each is 5/3 s
		t.Helper()
		b.hasSeen(b.number("total.success") + 150)
	}
	nextColumn()
	slide := func(to int) {
		t.Helper()
		eval[bool](b, fmt.Sprintf(`(() => {
			const slider = document.querySelector("#moment");
			slider.value = %d;
			return slider.dispatchEvent(new Event("input"));
		})()`, to))
	}
	slide(177)
	chosen := b.text("#moment-text")
	for range 2 {
		if got := b.text("#moment-text"); got != chosen || chosen == "now" {
			t.Fatalf("%s became %s while time went on", chosen, got)
		}
		nextColumn()
		b.point("pointermove", 90)
		if got := b.text("#moment-text"); got == chosen {
			t.Errorf("the pointer shows %s", got)
		}
		b.point("pointerleave", 90)
	}

	slide(179)
	b.click("#pause")
	paused := b.text(".when")
	requests := `[...document.querySelectorAll("#operations td:nth-child(2)")]
		.map((cell) => cell.textContent).join(" ")`
	counted := eval[string](b, requests)
	s.hasServed(t, total(s.counted(t))+250)
	b.click("[data-minutes='60']")
	b.shows("[data-minutes='60'][aria-pressed=true]", "1 hour")
	if got := b.text(".when"); !strings.HasPrefix(paused, "paused at ") || got != paused {
		t.Errorf("%q became %q", paused, got)
	}
	wants(b, requests, counted)
	b.click("#pause")
	b.shows(".when", "last 10 s")
}

// What a stranger or a later version could send must not end the reading.
func TestTheOperatorsPageGoesOnAfterAReadingThatItCannotShow(t *testing.T) {
	s, b := startOperatorsPage(t)
	b.shows("#near-nothing", "No key is banned")
	eval[bool](b, `(() => {
		const real = window.fetch;
		window.fetch = async (...request) => {
			const response = await real(...request);
			if (!String(request[0]).includes("stats")) return response;
			window.fetch = real;
			return Response.json({...await response.json(), report: {at: 1}});
		};
		return new Promise((shown) => addEventListener("unhandledrejection", () => shown(true)));
	})()`)
	for range 5 { // which the next reading counts
		s.addPet(rex)
	}
	b.hasSeen(5)
	wants(b, contentOf("[data-value='total.success']"), "5")
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) != 1 {
		t.Errorf("the browser says %q", b.problems)
	}
	b.problems = nil
}

func TestTheOperatorsPageWithoutJavaScriptLeadsToTheMetrics(t *testing.T) {
	s := start(t, debugFlags...)
	b := openWithoutScripts(t, s.debug)
	b.shows("main", "needs JavaScript")
	if got := b.text("body"); strings.Contains(got, "Waiting") || strings.Contains(got, "–") ||
		strings.Contains(got, "Pause") {
		t.Errorf("what does nothing is shown: %q", got)
	}
}

func TestTheOperatorsPageSaysThatTheStoreIsNotReady(t *testing.T) {
	t.Parallel()
	s, b := startOperatorsPage(t)
	b.shows("[data-value='well.ready']", "Ready since the start at")
	unlock := lock(t, s.db)
	b.shows("#verdict", "Not ready:")
	b.shows("#verdict", "locked")
	b.shows("#verdict", "End the other program that holds the lock")
	b.shows("#verdict", "See “When another program holds the lock” in docs/operating.md.")
	b.shows("[data-value='well.ready']", "Not ready since")
	wants(b, "document.title.startsWith('Not ready – ')", true)
	created, err := s.send(t.Context(), http.DefaultClient, "POST", "/pets", rex)
	noError(t, err)
	if created.status != http.StatusServiceUnavailable {
		t.Errorf("while it is locked, a create is %d", created.status)
	}
	b.shows("[data-value='well.failures']", "1 response of 5xx")
	wants(b, heightOf("[data-chart=requests] .failed")+" >= 8", true)
	b.operatorState("not-ready")
	unlock()
	b.shows("[data-value='well.ready']", "Ready since")
	// What has happened is still told, and readiness is not that of the start.
	b.shows("#verdict", "Failed:")
	b.shows("#verdict", "100 % of creates failed: 1 in 5 minutes, with status 503, since")
	b.shows("#verdict", "as seen since the start at")
	b.shows("[data-value='well.ready']", "Ready since") // again, if it has asked a busy service
	if got := b.value("well.ready"); strings.Contains(got, "start") {
		t.Errorf("after an outage it says %q", got)
	}
}

// TestTheOperatorsPageSaysSinceWhenTheStoreIsSilent: since it was asked in vain, while the service
// still counts as ready, as it has since its start.
func TestTheOperatorsPageSaysSinceWhenTheStoreIsSilent(t *testing.T) {
	t.Parallel()
	_, b := startOperatorsPage(t)
	b.shows("[data-value='well.ready']", "Ready since the start at")
	eval[bool](b, `(() => {
		const real = window.fetch;
		window.fetch = (...request) => String(request[0]).includes("readyz") ?
			Promise.reject(new Error("silent")) : real(...request);
		return true;
	})()`)
	b.shows("#verdict", "the store does not respond, since")
	b.shows("[data-value='well.ready']", "Not ready since")
	if got := b.value("well.ready"); strings.Contains(got, "start") {
		t.Errorf("since it does not respond it says %q", got)
	}
}

// TestTheOperatorsPageSaysPausedAndKilledInOneSentence, and says nothing else anywhere.
func TestTheOperatorsPageSaysPausedAndKilledInOneSentence(t *testing.T) {
	t.Parallel()
	s, b := startOperatorsPage(t)
	b.shows("[data-value='well.ready']", "Ready since")
	b.click("#pause")
	b.shows("#state", "Paused")
	s.kill()
	b.shows("#state", "Paused; not responding since ")
	b.shows("#verdict", "the service does not respond, since")
	wants(b, contentOf("[data-value='well.ready']"), b.text("#state"))
	for _, other := range []string{"Updating", "Ready since", "All is well", "Watch:",
		"Failed:"} {
		if text := b.text("body"); strings.Contains(text, other) {
			t.Errorf("it says %q as well:\n%s", other, text)
		}
	}
	b.operatorState("paused-away")
	b.click("#pause")
	b.shows("#state", "Not responding since")
}

// TestTheOperatorsPageLeadsToTheHeadingOfAFault: of a damaged file, and of a lost majority. The
// file is damaged where the service writes to find out whether it is ready; the numbers of nodes
// are fed.
func TestTheOperatorsPageLeadsToTheHeadingOfAFault(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.stop()
	page := query[int64](t, s.db, "SELECT rootpage FROM sqlite_schema WHERE name = 'services'")
	file, err := os.OpenFile(s.db, os.O_WRONLY, 0)
	noError(t, err)
	_, err = file.WriteAt(bytes.Repeat([]byte{0xff}, 4096), (page-1)*4096)
	noError(t, errors.Join(err, file.Close()))
	s.run(debugFlags...)
	b := openTab(t, s.debug+"/")
	b.shows("#verdict", "database disk image is malformed")
	b.shows("#verdict", "Damage: export first, then restore. "+
		"See “A damaged database” in docs/operating.md.")
	b.operatorState("damaged")

	b.feed(`Object.assign(stats.metrics,
			{petstore_nodes: 3, petstore_nodes_serving: window.serving});
		const words = "none of its nodes says that it leads";
		stats.verdict = {ready: false, readySince: 1e12, reasons: [{words, since: 1e12}]}`)
	for serving, heading := range map[int]string{1: "A lost majority", 2: "What happens when"} {
		eval[bool](b, fmt.Sprintf("(window.serving = %d, true)", serving))
		b.shows("#verdict", "See “"+heading+"” in docs/cluster.md.")
		b.operatorState(fmt.Sprint("majority-", serving))
	}
}

// heightOf is an expression for the height of an element.
func heightOf(selector string) string {
	return fmt.Sprintf("document.querySelector(%q).getBoundingClientRect().height", selector)
}

// feed changes what the page reads by a script, in which stats is that.
func (b *tab) feed(script string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`(() => {
		const real = window.fetch;
		window.fetch = async (...request) => {
			const response = await real(...request);
			if (!String(request[0]).includes("stats")) return response;
			const stats = await response.json();
			%s;
			return Response.json(stats);
		};
		return true;
	})()`, script))
}

// TestTheOperatorsPageBeginsWithAVerdict, and what needs nobody is not red.
func TestTheOperatorsPageBeginsWithAVerdict(t *testing.T) {
	t.Parallel()
	s, b := startOperatorsPage(t)
	b.feed(`stats.verdict = { ready: true, readySince: 1e12, reasons: window.reasons };
		stats.members = [{ node: "http://a", state: "Leader" }, { node: "http://b", state: "" }];
		stats.report.nearLimits = [{ id: 7, name: "Nora", perMinute: 1, usedThisMinute: 1,
			perDay: 1, usedToday: 1, bannedUntil: "2030-01-01T00:00:00Z" }]`)
	for _, test := range []struct{ reasons, want, title string }{
		{"null", "All is well", ""},
		{`[{alert: "PetstoreCommitsFail", words: "commits failed in 5 minutes: {number}",
			number: 1204, since: 1e12, fails: true}]`, "Failed:", "Failed – "},
		{`[{alert: "PetstoreDiskFills", words: "{share} of the disk is used", share: 0.912,
			number: 1, since: Date.now()},
			{alert: "PetstoreNodeLost", words: "nodes that do not serve: {number}", number: 1},
			{alert: "PetstoreBans", words: "banned keys: {number}", number: 1},
			{alert: "PetstoreSlow", words: "{share} of lists took long: {number} in 5 minutes",
			share: 0.02, number: 20, since: 1e12}]`, "Watch:", "Watch – "},
	} {
		eval[bool](b, "(window.reasons = "+test.reasons+", true)")
		b.shows("#verdict", test.want)
		title := test.title + strings.TrimPrefix(s.debug, "http://")
		wants(b, fmt.Sprintf("document.title.startsWith(%q)", title), true)
		wants(b, `[...document.querySelectorAll("body *")].filter((e) => e.checkVisibility())
			.find((e) => e.childElementCount === 0 && e.textContent.trim() && !e.matches(".skip"))
			.textContent`, test.want)
		b.operatorState("verdict-" + strings.Trim(strings.ToLower(test.want), ":"))
	}
	wants(b, textOf("#said"), "Watch: the disk is used, nodes that do not serve, banned keys, "+
		"lists took long in 5 minutes")
	b.shows("#verdict", "91 % of the disk is used ("+s.db+"), since ")
	b.shows("#verdict", "nodes that do not serve: 1 (http://b)")
	b.shows("#verdict", "banned keys: 1 (#7 Nora)")
	b.shows("#verdict", "2.0 % of lists took long: 20 in 5 minutes, since 9 Sept 2001")
	b.shows("#verdict", "See “When the disk fails” in docs/operating.md.")
	noError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	b.shows("#verdict", "Not ready:")
	b.shows("#verdict", "the service does not respond, since")
	noError(t, s.cmd.Process.Signal(syscall.SIGCONT))
	b.shows("#verdict", "Watch:")
}

// TestTheOperatorsPageShowsTheData, how much of it there is, and how it is kept.
func TestTheOperatorsPageShowsTheData(t *testing.T) {
	t.Parallel()
	s := startTLS(t, debugFlags...)
	s.command("pet", "import", "-db", s.db, petFile(t, 1))
	b := openTab(t, s.debug+"/")
	b.shows("[data-value='fact.pets']", "1")
	b.shows("[data-value='fact.backup']", "none known")
	for _, theme := range []string{"light", "dark"} {
		b.theme(theme)
		wants(b, "getComputedStyle(document.querySelector(`[data-value='fact.backup']`)).color",
			map[string]string{"light": "rgb(138, 83, 0)", "dark": "rgb(240, 185, 91)"}[theme])
	}
	if verdict := b.text("#verdict"); strings.Contains(verdict, "backup") { // some copy otherwise
		t.Errorf("without a backup, the verdict is %q", verdict)
	}
	b.shows("[data-value='fact.size']", "KiB of -wal")
	b.shows("[data-value='fact.disk']", "free, ")
	b.shows("[data-value='fact.certificate']", "ends ")
	if b.text("[data-value='fact.members']") != "" {
		t.Error("a file has nodes")
	}
	b.operatorState("data")
	s.copyTo(t)
	ended := time.Now().Unix()
	b.feed(fmt.Sprintf(`
		delete stats.metrics.petstore_disk_size_bytes;
		stats.metrics.petstore_last_backup_timestamp_seconds = %d;
		stats.metrics.petstore_certificate_expiry_timestamp_seconds = 1e9;
		const reason = {words: "of the certificate", since: 1, heading: "Flags"};
		stats.verdict.reasons = ["PetstoreOwnCertificateEnds", "PetstoreNodeLost"].map(
			(alert) => ({...reason, alert}));
		stats.members = [
			{node: "http://n1:4001", state: "Leader"}, {node: "http://n2:4001", state: ""}]`,
		ended))
	b.shows("[data-value='fact.backup']:not(.warn)", " ago")
	b.shows("[data-value='fact.certificate'].bad", "ended 9 Sept 2001, 01:46:40 UTC")
	b.shows("[data-value='fact.members']",
		"http://n1:4001 leader\nhttp://n2:4001 does not respond")
	if b.text("[data-value='fact.disk']") != "" {
		t.Error("an unknown disk is shown")
	}
	if pets := s.metric("petstore_pets"); pets != 1 {
		t.Errorf("/metrics has %v pets", pets)
	}
}

// TestTheOperatorsPageOfAYoungProcess says so, and tells bans that run from those that it has seen.
func TestTheOperatorsPageOfAYoungProcess(t *testing.T) {
	t.Parallel()
	s := start(t, debugFlags...)
	for range 20 {
		s.newKey("-plan", "free", "-name", "A key with a name of some length")
	}
	s.stop()
	db := database(t, s.db, "PRAGMA busy_timeout = 10000", `
		REPLACE INTO usage (id, minute_used, minute_ends,
			day_used, day_ends, banned_at, banned_until)
		SELECT id, 60, unixepoch() * 1000 + 60000,
			1000, unixepoch() * 1000 + 3600000, unixepoch() * 1000 - 1000,
		iif(id > 20, unixepoch() * 1000 + 600000, 0) FROM api_keys WHERE id > 1`)
	noError(t, db.Close())
	s.launch("-debug-addr", strings.TrimPrefix(s.debug, "http://"))()
	b := openTab(t, s.debug+"/")
	b.shows("[data-value='bans.running']", "1")
	if begun := b.number("bans.total"); begun != 0 {
		t.Errorf("it says that %v bans have begun", begun)
	}
	b.shows("[data-value='well.bans']", "1 key banned: #21 ")
	b.shows("#near", "60 of 60\nnothing left until ")
	b.shows("#near", "1,000 of 1,000\nnothing left until ")
	b.shows("#near", "banned until ")
	b.shows(".well", "since the start at ")
	b.shows("#operations caption", "since the start at ")
	past := `document.querySelector("[data-chart=%s] .past")?.getBoundingClientRect().width ?? 0`
	for _, chart := range []string{"requests", "memory"} {
		if width := eval[float64](b, fmt.Sprintf(past, chart)); width < 50 {
			t.Errorf("the chart %s has shaded %v pixels of the time before the start", chart, width)
		}
	}
	red := eval[[]string](b, `(() => {
		const bad = document.body.appendChild(document.createElement("b"));
		bad.className = "bad";
		const color = getComputedStyle(bad).color;
		bad.remove();
		return [...document.querySelectorAll("main *, #verdict")]
			.filter((e) => e.checkVisibility() && e.children.length === 0)
			.filter((e) => getComputedStyle(e).color === color)
			.map((e) => e.textContent)
			.filter((text) => !text.includes(" free, ")); // of the machine's own disk
	})()`)
	if len(red) > 0 {
		t.Errorf("with a ban, these are red: %q", red)
	}
	b.do(chromedp.EmulateViewport(390, 900))
	wants(b, heightOf("#near")+" <= 20 * 150", true)
	b.shows("#near", "This minute")
	s.addPet(rex)
	b.shows("#operations [data-label=p99]", " of 1")
	b.operatorState("young")
}

// TestTheOperatorsPageSaysWhoCallsNow, with which errors, and keeps the focus and what is selected.
func TestTheOperatorsPageSaysWhoCallsNow(t *testing.T) {
	t.Parallel()
	s := start(t, debugFlags...)
	wild := s.newKey("-plan", "free", "-name", markup)
	for range 70 {
		s.ask(t, wild)
	}
	s.ask(t, s.key)
	for range 61 {
		s.ask(t, "pet_live_nothing")
	}
	b := openTab(t, s.debug+"/")
	b.shows("#busy tbody tr:first-child", markup)
	b.shows("#busy tbody tr:first-child", "60")
	wants(b, `[...document.querySelectorAll("#busy tbody tr:first-child td")]
		.map((e) => e.textContent).join()`, "60,10,0")
	b.shows("[data-value='busy.count']", "2")
	b.shows("#strangers", "Without a valid key: 60 of 401 and 1 of 429.")
	b.shows("#strangers", "Addresses that have used up their minute: 127.0.0.1 until ")
	wants(b, `[...document.querySelectorAll("#codes tbody tr")]
		.map((row) => [...row.cells].map((e) => e.textContent).join()).sort().join(" ")`,
		"invalid_key,60,60 rate_limited,11,11")
	b.shows("#near", markup)
	b.operatorState("who")

	eval[bool](b, `(document.querySelector("#near .name").focus(),
		getSelection().selectAllChildren(document.querySelector("#near td:last-child")), true)`)
	at := b.text("[aria-labelledby=near-title] .as-of")
	eventually(t, longEnough, func() error {
		if got := b.text("[aria-labelledby=near-title] .as-of"); got == at {
			return fmt.Errorf("there is no report after that %s", got)
		}
		return nil
	})
	wants(b, `document.activeElement.matches("#near .name")`, true)
	wants(b, "getSelection().toString().trim()", "free")
}

// TestTheOperatorsPageTellsNoDurationsOfATimeThatItDoesNotKnow: the service remembers those of the
// operations with a chart. Of others, the page must not take all since the start for what was new.
func TestTheOperatorsPageTellsNoDurationsOfATimeThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	s, b := startOperatorsPage(t)
	for range 3 {
		s.ask(t, s.key)
		response, err := http.Get(s.address() + "/")
		noError(t, err)
		noError(t, response.Body.Close())
	}
	time.Sleep(16 * time.Second) // until the page has a sample older than the start, with them
	_, err := chromedp.Call(b.ctx, page.AddScriptToEvaluateOnNewDocument,
		page.AddScriptToEvaluateOnNewDocumentParams{Source: `
			const real = window.fetch;
			window.fetch = async (...request) => {
				const response = await real(...request);
				if (!String(request[0]).includes("history")) return response;
				const history = await response.json();
				history.samples = history.samples.slice(-1);
				return Response.json(history);
			}`})
	noError(t, err)
	b.do(chromedp.Navigate(s.debug + "/"))
	b.shows("#state", "Updating")
	b.shows("#operations", "page")
	row := `[...document.querySelectorAll("#operations tbody tr")].find((row) =>
		row.cells[0].textContent === "page").innerText`
	wants(b, row, "page\t0\t0\t–\t–\t–\t0\t0")
}

// TestTheOperatorsPageHasOneClock, that of the service, and tells if this machine's is another.
func TestTheOperatorsPageHasOneClock(t *testing.T) {
	_, b := startOperatorsPage(t)
	b.shows(".well", "all times are UTC")
	wants(b, contentOf("#clock"), "")
	b.feed(`stats.now += 180e3; stats.report = {at: stats.now, near: 25, banned: 25, usage: [],
		nearLimits: stats.report?.nearLimits ?? []}`)
	b.shows("#clock", ", by the service’s clock: this machine’s is 3 min")
	b.shows("#clock", " behind")
	b.shows("[data-value='well.bans']", "25 keys banned")
	b.shows("[data-value='bans.running']", "25")
}

// TestPagesOfOtherOriginsOnlyLeadToTheOperatorsPage: they are of another port, which is the same
// site, and of another site.
func TestPagesOfOtherOriginsOnlyLeadToTheOperatorsPage(t *testing.T) {
	s := start(t, debugFlags...)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<link rel=icon href=data:,><a href="%s/">the operator's page</a>`, s.debug)
	}))
	defer other.Close()
	for _, address := range []string{
		other.URL, strings.Replace(other.URL, "127.0.0.1", "localhost", 1),
	} {
		b := openTab(t, address)
		b.host = strings.TrimPrefix(s.debug, "http://")
		got := eval[string](b, fmt.Sprintf(`new Promise((ended) => {
			const link = document.createElement("link");
			Object.assign(link, {rel: "stylesheet", href: %q});
			link.onload = () => ended("loaded");
			link.onerror = () => ended("refused");
			document.head.append(link);
		})`, s.debug+"/operator.css"))
		if got != "refused" {
			t.Errorf("on %s a file of the debug address is %s", address, got)
		}
		b.click("a")
		b.shows("#state", "Updating")
	}
}

// TestThePicturesOfTheOperatorsPage makes the pictures of docs/operating.md, in the folder that
// PICTURES names. It takes the five and a half minutes that the page then shows.
func TestThePicturesOfTheOperatorsPage(t *testing.T) {
	folder := os.Getenv("PICTURES")
	if folder == "" {
		t.Skip("PICTURES names no folder")
	}
	s := start(t, debugFlags...)
	limited := s.newKey("-plan", "free", "-name", "A student's project")
	for _, name := range []string{"Shop front", "Mobile app", "Nightly report",
		"Partner: Oak & Sons"} {
		s.newKey("-plan", "business", "-name", name)
	}
	s.command("key", "set", "-db", s.db, "-name", "Price comparison", "1")
	db := database(t, s.db, "PRAGMA busy_timeout = 10000")
	for id, busy := range []int{9000, 60, 5200, 3100, 700, 1900} {
		for ago := range 30 {
			n := busy * (8 - 3*((ago+4)%7/5)) / 8 * (40 - ago) / 40 * (90 + rand.IntN(20)) / 100
			_, err := db.Exec("INSERT OR IGNORE INTO usage_days (usage_id, day, admitted, "+
				"refused, errors) VALUES (?, unixepoch() / 86400 - ?, ?, ?, 0)",
				id+1, ago, n, n*(id%3)/40)
			noError(t, err)
		}
	}
	noError(t, db.Close())
	s.copyTo(t)
	for range 6 {
		crews := []*crew{s.work(t, 5+rand.IntN(20), limited), s.work(t, 20, s.key)}
		time.Sleep(55 * time.Second)
		for _, c := range crews {
			c.end()
		}
	}
	crew := s.work(t, 30, s.key)
	b := openTab(t, s.debug+"/")
	b.do(chromedp.EmulateViewport(1200, 900))
	b.shows("#usage", "Price comparison")
	b.shows("#verdict", "All is well")
	b.click("#pause")
	crew.end()
	b.writePictures(filepath.Join(folder, "operator-"), 1640)
}
