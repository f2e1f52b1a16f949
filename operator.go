package main

// The debug address: its routes, the metrics, an hour of their history, and the report on the keys
// that the operator's page shows. Without -debug-addr nothing of it is made.

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	_ "net/http/pprof" // on the default mux, which only the debug address serves
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// operator shows whoever runs a service how it is doing.
type operator struct {
	service *service

	report  atomic.Pointer[report]     // what the page shows of the keys
	members atomic.Pointer[[]member]   // what the nodes of a cluster have said last
	stored  atomic.Pointer[exposition] // what the database says of itself
	history history                    // what charts of the page draw, and judge reads

	reportReading, storedReading reading

	judging sync.Mutex          // guards holding
	holding [len(watches)]int64 // since when each watch has held, in Unix milliseconds, or 0

	certificate         *atomic.Pointer[tls.Certificate] // what is served now; nil without TLS
	certificateUnusable *atomic.Bool                     // the last renew could not use the files
	networkDisk         string                           // a file system that may not pass locks on
	droppedLines        *atomic.Int64                    // of the log
}

// reading reads what takes long: while somebody asks for it, and not too often.
type reading struct {
	wanted atomic.Bool // somebody has asked since it was read last

	// Only the task that reads uses these.
	next time.Time // when it may be read again
	err  error     // of the last time
}

// do reads if that is wanted, unless the last time was too short a while ago: less than often, or
// than twenty times what it took, so that it takes at most a twentieth of a core. After an error, 5
// seconds take the place of often. It returns the error of the last time.
func (r *reading) do(often time.Duration, read func() error) error {
	if time.Now().Before(r.next) || !r.wanted.Swap(false) {
		return r.err
	}
	start := time.Now()
	r.err = read()
	if r.err != nil {
		often = 5 * time.Second
	}
	took := time.Since(start)
	r.next = time.Now().Add(max(often, 20*took))
	return r.err
}

func newOperator(s *service) *operator {
	return &operator{service: s, droppedLines: &atomic.Int64{}}
}

// routes are what the debug address serves. Without anyHost, requests have to name it by an IP
// address or as localhost.
func (o *operator) routes(anyHost bool) http.Handler {
	mux := http.NewServeMux()
	add := func(path string, op operation) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if err := op(w, r, caller{}); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			}
		})
	}
	add("/{$}", fixed(htmlType, webFile("operator.html")))
	add("/operator.css", fixed(styleType, webFile("operator.css")))
	add("/operator.js", fixed(scriptType, webFile("operator.js")))
	add("/stats.json", o.showStats)
	add("/history.json", o.showHistory)
	add("/metrics", o.showMetrics)
	add("/healthz", fixed(textType, "ok\n"))
	add("/readyz", o.service.showReady)
	mux.Handle("GET /debug/pprof/", http.DefaultServeMux) // of net/http/pprof
	// Instead of pprof.Cmdline, which shows the passwords in URLs.
	commandLine := strings.Join(os.Args, "\x00")
	add("/debug/pprof/cmdline", fixed(textType, redact(commandLine)))

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff") // no file is taken for another type
		if !anyHost && !isOwnHost(r) {
			http.Error(w, "use an IP address or localhost", http.StatusForbidden)
			return
		}
		if fromOtherOrigin(r) {
			http.Error(w, "pages of other origins may only link to /", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// isOwnHost reports whether a request to the debug address has an IP address or localhost as its
// Host. A page of another site could read everything if the name of its site were made to lead here
// (DNS rebinding).
func isOwnHost(r *http.Request) bool {
	address := url.URL{Host: r.Host}
	host := address.Hostname()
	if strings.EqualFold(host, "localhost") {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

// fromOtherOrigin reports whether a browser says that a page of another origin makes the request.
// All that such a page may do is open / in a tab, as a link does. It could not read the response to
// anything else, but a profile costs time. Other programs do not send these headers, nor do
// browsers to an address that is neither https nor this machine.
func fromOtherOrigin(r *http.Request) bool {
	sites, sent := r.Header["Sec-Fetch-Site"]
	site := strings.Join(sites, ",")
	if !sent || site == "same-origin" || site == "none" {
		return false
	}
	fillsTab := r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document"
	opensPage := fillsTab && r.Method == http.MethodGet && r.URL.Path == "/"
	return !opensPage
}

var metricsType = []string{"text/plain; version=0.0.4; charset=utf-8"} // of Prometheus

// showMetrics is GET /metrics, in the text format of Prometheus. It asks the store whether it is
// ready. If the store hangs, so does this, and Prometheus considers the service down.
func (o *operator) showMetrics(w http.ResponseWriter, _ *http.Request, _ caller) error {
	o.storedReading.wanted.Store(true)
	values := o.currentMetrics()
	ready := int64(0)
	if o.service.checkReady() == nil {
		ready = 1
	}
	values.add("petstore_ready", "", ready)
	write(w, http.StatusOK, metricsType, []byte(values.String()))
	return nil
}

// currentMetrics are the values of all metrics now, but for petstore_ready: to know that one, the
// store must be asked.
func (o *operator) currentMetrics() *exposition {
	values := newExposition()
	labels := fmt.Sprintf("{version=%q,goversion=%q}", build(), runtime.Version())
	values.add("petstore_build_info", labels, 1)
	store := o.service.store
	engine, node := store.engine.describe()
	labels = fmt.Sprintf("{engine=%q,node=%q}", engine, node)
	values.add("petstore_engine_info", labels, 1)
	operations := o.service.operations
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		operations[name].measure(values, name)
	}
	errorCounts := o.service.errors
	for _, code := range slices.Sorted(maps.Keys(errorCounts)) {
		labels = fmt.Sprintf("{code=%q}", code)
		values.add("petstore_errors_total", labels, errorCounts[code].Load())
	}
	bans := o.service.bans.Load()
	values.add("petstore_bans_total", "", bans)
	refused := store.queueRefusals.Load()
	values.add("petstore_queue_refusals_total", "", refused)
	values.addHistogram("petstore_commit_requests", "", &store.commitSizes, 1)
	values.addHistogram("petstore_commit_duration_seconds", "", &store.commitTimes, 1e9)
	failed := store.commitsFailed.Load()
	values.add("petstore_commit_failures_total", "", failed)
	givenAgain := store.idsGivenAgain.Load()
	values.add("petstore_ids_given_again_total", "", givenAgain)
	store.engine.measure(values)
	if members := o.members.Load(); members != nil && len(*members) > 0 {
		serving := int64(0)
		for _, m := range *members {
			if m.serves {
				serving++
			}
		}
		values.add("petstore_nodes", "", int64(len(*members)))
		values.add("petstore_nodes_serving", "", serving)
	}
	values.addRecent(o.stored.Load(), 10*time.Minute)
	if o.certificate != nil {
		end := o.certificate.Load().Leaf.NotAfter.Unix()
		values.add("petstore_certificate_expiry_timestamp_seconds", "", end)
		unusable := int64(0)
		if o.certificateUnusable.Load() {
			unusable = 1
		}
		values.add("petstore_certificate_files_unusable", "", unusable)
	}
	values.add("petstore_log_lines_dropped_total", "", o.droppedLines.Load())
	values.addProcess()
	return values
}

// showStats is GET /stats.json: the numbers that the operator's page shows of this moment. It sends
// nothing to the database, which may hang: what the page shows of the keys is the last report.
func (o *operator) showStats(w http.ResponseWriter, _ *http.Request, _ caller) error {
	o.reportReading.wanted.Store(true)
	o.storedReading.wanted.Store(true)
	numbers := o.currentMetrics().numbers
	stats := map[string]any{
		"now":         time.Now().UnixMilli(),
		"uptime":      time.Since(processStart).Seconds(),
		"environment": o.service.environment(),
		"networkDisk": o.networkDisk,
		"metrics":     numbers,
		"verdict":     o.judge(time.Now(), numbers),
		"report":      o.report.Load(),
		"busy":        o.busy(instantOf(time.Now())),
		"members":     o.members.Load(),
	}
	body, err := json.Marshal(stats)
	if err != nil { // a hand has stored an instant after the year 9999
		return err
	}
	shown := redact(string(body))
	write(w, http.StatusOK, jsonType, []byte(shown))
	return nil
}

// busyKey is what the keys of a line of rotations have done in the last minutes.
type busyKey struct {
	ID   int64  `json:"id"` // of the newest that is remembered; 0 stands for many, see lastMinutes
	Name string `json:"name"`
	tally
}

// busy tells who calls this service now: how many keys, and the 10 that call most; callers without
// a valid key; and the addresses that have used up their minute last. It asks no database.
func (o *operator) busy(now instant) map[string]any {
	usages, strangers, spent := o.service.ledger.busy(now)
	newest := o.service.keys.newest()
	var keys []busyKey
	for id, done := range usages {
		k := busyKey{ID: id, tally: done}
		if known := newest[id]; known != nil {
			k.ID = known.ID
			k.Name = known.Name
		}
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b busyKey) int {
		return cmp.Or(cmp.Compare(b.Admitted+b.Refused, a.Admitted+a.Refused),
			cmp.Compare(a.ID, b.ID))
	})
	return map[string]any{
		"count":     len(keys),
		"keys":      keys[:min(len(keys), 10)],
		"strangers": strangers,
		"spent":     spent,
	}
}

// showHistory is GET /history.json, with which the operator's page begins.
func (o *operator) showHistory(w http.ResponseWriter, _ *http.Request, _ caller) error {
	write(w, http.StatusOK, jsonType, o.history.json())
	return nil
}

// sample takes a sample of the metrics, and judges them: so the verdict knows since when a reason
// has held, even if nobody has the page open.
func (o *operator) sample(context.Context) error {
	now, numbers := time.Now(), o.currentMetrics().numbers
	o.judge(now, numbers)
	o.history.add(now, numbers)
	return nil
}

// drawnNumbers matches the numbers that the charts of the operator's page draw.
var drawnNumbers = regexp.MustCompile(
	`^(petstore_(requests|commit|errors)_|process_|` +
		`petstore_request_duration_seconds_bucket{operation="(listPets|createPet|getPet)")`)

// history is what happened in the last hour. Its numbers take at most 1 MiB.
type history struct {
	mu      sync.Mutex     // guards what follows
	places  map[string]int // the index of each number in Values, by its name
	samples []sample
}

// sample holds the numbers of one moment. A number that first appears later gets a place at the
// end, so earlier samples have fewer Values.
type sample struct {
	Time   int64     `json:"time"` // Unix milliseconds
	Values []float64 `json:"values"`
}

const (
	maxSamples = 720 // one every 5 seconds
	maxNumbers = 160 // of a sample
)

// add keeps the numbers of a moment, and forgets those of an hour ago.
func (h *history) add(now time.Time, numbers map[string]float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.places == nil {
		h.places = map[string]int{}
	}
	// Of the names that are new, those that the verdict reads come first: there may not be a place
	// for all.
	for _, isKept := range []func(name string) bool{isJudged, drawnNumbers.MatchString} {
		for name := range numbers {
			_, known := h.places[name]
			if !known && len(h.places) < maxNumbers && isKept(name) {
				h.places[name] = len(h.places)
			}
		}
	}
	values := make([]float64, len(h.places))
	for name, place := range h.places {
		values[place] = numbers[name]
	}
	if len(h.samples) == maxSamples {
		h.samples = slices.Delete(h.samples, 0, 1)
	}
	h.samples = append(h.samples, sample{Time: now.UnixMilli(), Values: values})
}

// before returns the numbers at a moment. A process that is younger has none.
func (h *history) before(moment time.Time) map[string]float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var values []float64
	for _, s := range h.samples {
		if s.Time <= moment.UnixMilli() {
			values = s.Values
		}
	}
	numbers := map[string]float64{}
	for name, place := range h.places {
		if place < len(values) {
			numbers[name] = values[place]
		}
	}
	return numbers
}

// json is what the page reads. It has the time of the service, so that the page can tell by how
// much its own clock differs.
func (h *history) json() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	body, _ := json.Marshal(map[string]any{ // numbers and texts
		"now":     time.Now().UnixMilli(),
		"places":  h.places,
		"samples": h.samples,
	})
	return body
}

// verdict is the first line of the operator's page: not ready, with the first reason why; something
// to watch, if there are reasons; or all is well.
type verdict struct {
	Ready      bool     `json:"ready"`
	ReadySince int64    `json:"readySince"` // when that last changed, in Unix milliseconds
	Reasons    []reason `json:"reasons"`    // what a person must hear first comes first
}

// reason is what is wrong, and how bad it is. What to do about it, the page knows: see remedies in
// web/operator.js.
type reason struct {
	Alert  string  `json:"alert"`  // the name of the watch, or "" if the store is not ready
	Words  string  `json:"words"`  // in which {number}, {share}, and {age} stand for what follows
	Number float64 `json:"number"` // how many; or, of an age, how many seconds
	Share  float64 `json:"share"`  // a part of all, from 0 to 1
	Since  int64   `json:"since"`  // Unix milliseconds, or 0 if that is not known
	Fails  bool    `json:"fails"`  // something fails or is lost now, which is worse than a warning
}

// watch is a reason to watch: a value is above a limit. docs/deploy/alerts.yml has an alert of the
// same name, with the same limit, and with watchWindow where it compares counters.
type watch struct {
	alert, words string
	kind         watchKind
	of, among    string  // names of metrics
	limit        float64 // 0 unless it is set
	passed       string  // the words for an age, once the time "of" has passed, and it fails
	fails        bool    // see reason
}

// watchKind is how the value of a watch is made.
type watchKind int

const (
	growth  watchKind = iota // by how much the counter "of" has grown within watchWindow
	lacking                  // 1 - the growth of "of" / the growth of "among"
	used                     // 1 - "of" / "among"
	age                      // the seconds since the time "of"; negative if that is ahead
	present                  // "of" itself
)

const (
	watchWindow = 5 * time.Minute
	minRequests = 100 // a part of fewer requests says nothing
)

const (
	durations = "petstore_request_duration_seconds_"
	bansNow   = "bans that run" // in the place of a metric's name: the report tells it
)

// watches are in the order in which a person should hear of them: what is lost or fails, who is
// banned, the disk, and the rest.
var watches = [...]watch{
	{
		alert: "PetstoreSyncFailed", words: "a sync has failed, and nothing is written any more",
		kind: present, fails: true,
		of: "petstore_sync_failed",
	},
	{
		alert: "PetstoreIDsGivenAgain", words: "ids of pets given again in 5 minutes: {number}",
		kind: growth, fails: true,
		of: "petstore_ids_given_again_total",
	},
	{
		alert: "PetstoreServerErrors", words: "responses of 500 in 5 minutes: {number}",
		kind: growth, fails: true,
		of: `petstore_errors_total{code="internal_error"}`,
	},
	{
		alert: "PetstoreServerErrors", words: "responses of 503 in 5 minutes: {number}",
		kind: growth, fails: true,
		of: `petstore_errors_total{code="unavailable"}`,
	},
	{
		alert: "PetstoreCommitsFail", words: "commits failed in 5 minutes: {number}",
		kind: growth, fails: true,
		of: "petstore_commit_failures_total",
	},
	{
		alert: "PetstoreForeignKeys",
		words: "keys are all of the other environment, and get 401: {number}",
		kind:  present, fails: true,
		of: "petstore_foreign_keys",
	},
	{
		alert: "PetstoreBans", words: "banned keys: {number}",
		kind: present,
		of:   bansNow,
	},
	{
		alert: "PetstoreDiskFills", words: "{share} of the disk is used",
		kind: used, limit: 0.8,
		of:    "petstore_disk_free_bytes",
		among: "petstore_disk_size_bytes",
	},
	{
		alert: "PetstoreNodeLost", words: "nodes of the cluster that do not serve: {number}",
		kind:  used,
		of:    "petstore_nodes_serving",
		among: "petstore_nodes",
	},
	{
		// The sum counts writes and the count commits: 1 - commits/writes is above 0.999.
		alert: "PetstoreWritesQueue", words: "more than 1,000 writes share a commit",
		kind: lacking, limit: 0.999,
		of:    "petstore_commit_requests_count",
		among: "petstore_commit_requests_sum",
	},
	slowWatch("listPets", "lists"),
	slowWatch("createPet", "creates"),
	slowWatch("getPet", "fetches"),
	{
		alert: "PetstoreUnknownOutcomes", words: "writes of unknown outcome in 5 minutes: {number}",
		kind: growth,
		of:   "petstore_unknown_outcomes_total",
	},
	{
		alert: "PetstoreBackupIsOld", words: "the last backup is {age} old",
		kind: age, limit: 26 * 3600,
		of: "petstore_last_backup_timestamp_seconds",
	},
	{
		alert: "PetstoreOwnCertificateEnds", words: "less than a week is left of the certificate",
		kind: age, limit: -7 * 24 * 3600,
		passed: "the certificate has ended",
		of:     "petstore_certificate_expiry_timestamp_seconds",
	},
	{
		alert: "PetstoreCertificateUnusable",
		words: "the files of the certificate cannot be used: " +
			"the old one is served until it ends, and the next start fails",
		kind: present,
		of:   "petstore_certificate_files_unusable",
	},
}

// slowWatch watches the p99 of an operation: a hundredth of its requests took longer than 0.25 s.
func slowWatch(operation, requests string) watch {
	return watch{
		alert: "PetstoreSlow",
		words: "{share} of " + requests + " took longer than 0.25 s: {number} in 5 minutes",
		kind:  lacking, limit: 0.01,
		of:    durations + `bucket{operation="` + operation + `",le="0.25"}`,
		among: durations + `count{operation="` + operation + `"}`,
	}
}

// isJudged reports whether the verdict reads a number.
func isJudged(name string) bool {
	return slices.ContainsFunc(watches[:], func(w watch) bool {
		return name == w.of || name == w.among
	})
}

// judge returns the reason that a watch gives, and whether it holds now. What was before is 0 in a
// younger process.
func (w watch) judge(now time.Time, numbers, before map[string]float64) (r reason, holds bool) {
	value, known := numbers[w.of]
	if !known {
		return r, false
	}
	r = reason{Alert: w.alert, Words: w.words, Number: value, Fails: w.fails}
	switch w.kind {
	case growth:
		r.Number -= before[w.of]
	case lacking:
		all := numbers[w.among] - before[w.among]
		if all < minRequests {
			return r, false
		}
		r.Number = all - (value - before[w.of])
		r.Share = r.Number / all
		return r, r.Share > w.limit
	case used:
		r.Number = numbers[w.among] - value
		r.Share = r.Number / numbers[w.among]
		return r, r.Share > w.limit
	case age:
		r.Number = float64(now.Unix()) - value
		if w.passed != "" && r.Number >= 0 {
			r.Words = w.passed
			r.Fails = true
		}
	}
	return r, r.Number > w.limit
}

// judge says how the service is, by what is known: it asks nobody.
func (o *operator) judge(now time.Time, numbers map[string]float64) verdict {
	o.judging.Lock()
	defer o.judging.Unlock()
	ready := o.service.store.readySoFar()
	v := verdict{Ready: ready.err() == nil, ReadySince: ready.since.UnixMilli()}
	if !v.Ready {
		v.Reasons = append(v.Reasons, reason{Words: ready.err().Error(), Since: v.ReadySince})
	}
	if r := o.report.Load(); r != nil && now.UnixMilli() < r.At+60_000 {
		numbers = maps.Clone(numbers)
		numbers[bansNow] = float64(r.Banned)
	}
	before := o.history.before(now.Add(-watchWindow))
	for i, w := range watches {
		found, holds := w.judge(now, numbers, before)
		if !holds {
			o.holding[i] = 0
			continue
		}
		since := now.UnixMilli()
		switch {
		case w.kind == age: // it has reached the limit at the time "of" + limit
			since = int64(numbers[w.of]+w.limit) * 1000
		case w.of == bansNow: // nobody may have asked for a report when it began
			since = 0
		}
		o.holding[i] = cmp.Or(o.holding[i], since) // what holds already keeps its time
		found.Since = o.holding[i]
		v.Reasons = append(v.Reasons, found)
	}
	return v
}

// report is what the operator's page shows of the keys.
type report struct {
	At         int64        `json:"at"`         // Unix milliseconds
	Near       int          `json:"near"`       // usable keys that are banned or near a limit
	Banned     int          `json:"banned"`     // of these
	NearLimits []nearKey    `json:"nearLimits"` // the first of these
	Usage      []*lineUsage `json:"usage"`      // the busiest of the last 30 days
}

// nearKey also has the end of the day's window: until then, a key is refused if its day is used up.
type nearKey struct {
	*apiKey
	DayEnds instant `json:"dayEnds"`
}

// updateNodes asks the nodes of a cluster how they are.
func (o *operator) updateNodes(ctx context.Context) error {
	members := o.service.store.engine.members(ctx)
	o.members.Store(&members)
	return nil
}

// updateReport reads the report anew while somebody has the operator's page open, at most every 5
// seconds. With a million keys it takes seconds.
func (o *operator) updateReport(ctx context.Context) error {
	return o.reportReading.do(5*time.Second, func() error {
		report, err := readReport(ctx, o.service.store, instantOf(time.Now()))
		if err != nil {
			return err
		}
		o.report.Store(report)
		return nil
	})
}

// readReport reads the report. It names the 20 keys near a limit that need attention most, and the
// 15 lines of rotations that were used most. All keys of a line share its usage, so that several of
// them may be among the 20.
func readReport(ctx context.Context, s *store, now instant) (*report, error) {
	r := &report{At: int64(now), NearLimits: []nearKey{}, Usage: []*lineUsage{}}
	keepNear := func(k *apiKey) error {
		if k.need() >= nearLimit {
			r.NearLimits = append(r.NearLimits, nearKey{k, k.dayEnds})
		}
		if k.State == "banned" {
			r.Banned++
		}
		return nil
	}
	err := eachKey(ctx, s, now, keepNear,
		"WHERE (minute_ends > ?1 OR day_ends > ?1 OR banned_until > ?1)", int64(now))
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(r.NearLimits, func(a, b nearKey) int {
		return cmp.Compare(b.need(), a.need())
	})
	r.Near = len(r.NearLimits)
	r.NearLimits = r.NearLimits[:min(r.Near, 20)]

	since := int64(now/dayMillis) - 29
	err = eachLine(ctx, s, since, 0, 15, func(use *lineUsage) error {
		r.Usage = append(r.Usage, use)
		return nil
	})
	return r, err
}

// updateStored reads what the database says of itself, at most once a minute, since counting pets
// takes long, and only if somebody has asked meanwhile.
func (o *operator) updateStored(ctx context.Context) error {
	return o.storedReading.do(time.Minute, func() error {
		stored := newExposition()
		var pets, backup int64
		_, err := o.service.store.readInto(ctx, sqlOf(
			"SELECT ifnull(max(value), 0) FROM counters WHERE name = 'backup'"), &backup)
		if err != nil {
			return err
		}
		foreign, err := foreignKeys(ctx, o.service.store, o.service.staging)
		if err != nil {
			return err
		}
		stored.add("petstore_foreign_keys", "", foreign)
		if backup > 0 {
			stored.add("petstore_last_backup_timestamp_seconds", "", backup)
		}
		// Where pets cannot be counted because the file is damaged, a person needs the backup.
		_, err = o.service.store.readInto(ctx, sqlOf("SELECT count(*) FROM pets"), &pets)
		if errors.Is(err, errUnavailable) || ctx.Err() != nil {
			return err // the numbers from before stay
		}
		if err == nil {
			stored.add("petstore_pets", "", pets)
		}
		o.stored.Store(stored)
		return err
	})
}

// nearLimit is the part of a limit that a key must have used for operators to be told of it.
const nearLimit = 0.8

// need is how much a key needs the operator's attention: the part of a limit that it has used, or
// more than any part if it is banned.
func (k *apiKey) need() float64 {
	switch k.State {
	case "banned":
		return math.Inf(1)
	case "active":
		minute := float64(k.UsedThisMinute) / float64(k.PerMinute)
		day := float64(k.UsedToday) / float64(k.PerDay)
		return max(minute, day)
	}
	return 0
}
