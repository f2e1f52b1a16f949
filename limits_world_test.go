package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// limitsWorld is a key with a quota, and services that share its usage, called A, B and C. They
// have one limiter each, and remember nothing at first.
type limitsWorld struct {
	testing.TB
	services []*ledger
	key      *apiKey
}

func newLimits(t testing.TB, db string, q quota, services int) *limitsWorld {
	t.Helper()
	w := &limitsWorld{TB: t}
	for range services {
		w.services = append(w.services, newLedger(openDatabase(t, db), tenMinutes))
	}
	mustInsertKey(t, w.store(), apiKey{Plan: enterprisePlan, account: account{quota: q}})
	w.key = w.shown("0s")
	return w
}

// newLimitsOnFile is newLimits with one service.
func newLimitsOnFile(t testing.TB, q quota) *limitsWorld {
	t.Helper()
	return newLimits(t, databasePath(t), q, 1)
}

func (w *limitsWorld) store() *store    { return w.services[0].store }
func (w *limitsWorld) limiter() *ledger { return w.services[0] }

// shown is the key as the commands show it.
func (w *limitsWorld) shown(when string) *apiKey {
	w.Helper()
	keys, err := readKeys(w.Context(), w.store(), clock(when), "WHERE k.id = 1")
	must(w, err)
	return keys[0]
}

// ask makes one request, which the store must not fail.
func (w *limitsWorld) ask(l *ledger, when string) decision {
	w.Helper()
	d, err := l.admit(&w.key.account, clock(when).time())
	must(w, err)
	return d
}

// play does what a script says, in which each line is one of these:
//
//	10s: 58 admitted, minute 1 until 1m10s   58 requests at 10s, and what the last of them is shown
//	B 10s: 2 rate_limited, day 0 until 24h   the same at service B; without a name it is A
//	11s: flush                               adds what was counted to the database
//	11s: restart                             after a kill, which flushes nothing
//	11s: unban                               as petstore key unban does
//	stored: minute 3 until 1m10s             requests that were used, as the database has them
//	B: minute 3 until 1m10s                  and as a service has them
func (w *limitsWorld) play(script string) {
	w.Helper()
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		who, what, found := strings.Cut(line, ": ")
		if !found {
			continue
		}
		if who == "stored" {
			u, err := readUsage(w.Context(), w.store(), 1)
			must(w, err)
			w.wantUsed(line, u, what)
			continue
		}
		service, fields := w.limiter(), strings.Fields(who)
		if name := fields[0][0]; name >= 'A' && name <= 'C' {
			service, fields = w.services[name-'A'], fields[1:]
		}
		if len(fields) == 0 {
			w.wantUsed(line, service.usages[1], what)
			continue
		}
		w.step(line, service, fields[0], what)
	}
}

// step does what one line of a script says.
func (w *limitsWorld) step(line string, service *ledger, when, what string) {
	w.Helper()
	switch what {
	case "flush":
		must(w, service.flush(w.Context(), clock(when).time))
		return
	case "restart":
		restarted := newLedger(service.store, service.banFor)
		w.services[slices.Index(w.services, service)] = restarted
		return
	case "unban":
		must(w, unbanKey(w.Context(), w.store(), 1, clock(when)))
		w.key = w.shown(when)
		return
	}
	requests, want, _ := strings.Cut(what, ", ")
	var times int
	var outcome string
	_, err := fmt.Sscan(requests, &times, &outcome)
	must(w, err)
	var d decision
	for i := range times {
		d = w.ask(service, when)
		got := string(d.refusal)
		if got == "" {
			got = "admitted"
		}
		if got != outcome {
			w.Fatalf("%s: request %d is %s", line, i+1, got)
		}
	}
	got := fmt.Sprintf("minute %s, day %s", levelText(d.minute), levelText(d.day))
	if !strings.Contains(got, want) {
		w.Errorf("%s: the last request is shown %s", line, got)
	}
}

func (w *limitsWorld) wantUsed(line string, u *usage, want string) {
	w.Helper()
	text := func(b bucket) string { return levelText(level{remaining: b.used, reset: b.ends}) }
	got := fmt.Sprintf("minute %s, day %s", text(u.minute), text(u.day))
	if !strings.Contains(got, want) {
		w.Errorf("%s: it is %s", line, got)
	}
}

// levelText reads "59 until 1m10s": the requests that remain, and when the bucket is full.
func levelText(l level) string {
	reset := time.Duration(l.reset-testStart) * time.Millisecond
	return fmt.Sprintf("%d until %v", l.remaining, reset)
}

// headersOf are the headers of a decision, a line each, in the order of their names.
func headersOf(d decision) string {
	h := http.Header{}
	d.setHeaders(h)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		fmt.Fprintf(&text, "%s: %s\n", name, strings.Join(h[name], " AND "))
	}
	return text.String()
}

// usedUntil is a bucket of which some requests are used.
func usedUntil(n int64, ends string) bucket { return bucket{used: n, ends: clock(ends)} }

// nearlyBanned is a usage of a key with 2 requests a minute whose next refusal bans it.
func nearlyBanned() *usage {
	return &usage{
		minute:  usedUntil(2, "60s"),
		day:     usedUntil(2, "24h"),
		strikes: usedUntil(2, "60s"),
		retryAt: clock("60s"),
		retryOf: minuteMillis,
	}
}
