package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// limitsStart is 0s on the clock of these tests: a whole second, so that what
// is rounded can be read off.
const limitsStart instant = 1_800_000_000_000

// limitsAt is an instant of that clock, such as "30.5s" or "24h".
func limitsAt(offset string) instant {
	d, err := time.ParseDuration(offset)
	if err != nil {
		panic(err)
	}
	return limitsStart + instant(d.Milliseconds())
}

// limitsLevel reads "59 until 1m0s": what remains, and when the bucket is full.
func limitsLevel(l level) string {
	return fmt.Sprintf("%d until %v", l.remaining, time.Duration(l.reset-limitsStart)*time.Millisecond)
}

// limitsStep is one or more requests at one instant, how they are all refused
// ("" is admitted), and where both buckets stand after the last.
type limitsStep struct {
	when        string
	times       int
	refusal     ErrorCode
	minute, day string // "" is not looked at
}

const limitsBan = 10 * time.Minute

// limitsOf is a limiter that remembers the usage as that of the account with the id 1.
func limitsOf(s *store, banFor time.Duration, u *usage) *limiter {
	l := newLimiter(s, banFor, testLog)
	l.usages[1] = u
	return l
}

// limitsWalk makes the requests of the steps and holds every decision against them.
func limitsWalk(t *testing.T, u *usage, q quota, banFor time.Duration, steps []limitsStep) {
	t.Helper()
	l := limitsOf(storeOpen(t, filepath.Join(t.TempDir(), "pets.db")), banFor, u)
	for _, step := range steps {
		var d decision
		for i := range step.times {
			if d = limitsAdmit(t, l, &account{quota: q, usageID: 1}, limitsAt(step.when)); d.refusal != step.refusal {
				t.Fatalf("at %s, request %d of %d: the refusal is %q, want %q", step.when, i+1, step.times, d.refusal, step.refusal)
			}
		}
		if got := limitsLevel(d.minute); step.minute != "" && got != step.minute {
			t.Errorf("at %s: the minute has %s, want %s", step.when, got, step.minute)
		}
		if got := limitsLevel(d.day); step.day != "" && got != step.day {
			t.Errorf("at %s: the day has %s, want %s", step.when, got, step.day)
		}
	}
}

// limitsHeaders are the headers of a response, names spelt as they go out.
func limitsHeaders(t *testing.T, d decision) map[string]string {
	t.Helper()
	h := http.Header{}
	d.setHeaders(h)
	got := map[string]string{}
	for name, values := range h {
		if len(values) > 1 {
			t.Errorf("%s has %d values", name, len(values))
		}
		if len(values) > 0 {
			got[name] = values[0]
		}
	}
	return got
}

// limitsKey stores a key of a plan and returns it as the service reads it.
func limitsKey(t testing.TB, s *store, plan string, q quota) *apiKey {
	t.Helper()
	token := newSecret(false)
	if _, err := insertKey(context.Background(), s, &apiKey{Plan: plan, account: account{quota: q}, CreatedAt: limitsStart}, token, false); err != nil {
		t.Fatal(err)
	}
	return limitsReread(t, s, token)
}

// limitsSave is the statement that stores a usage as if it had been counted and flushed.
func limitsSave(id int64, u *usage) statement {
	return sqlOf("INSERT OR REPLACE INTO usage (id, "+usageColumns+") VALUES (?, ?, ?, ?, ?, ?, ?)", id,
		u.minute.used, int64(u.minute.ends), u.day.used, int64(u.day.ends), int64(u.bannedAt), int64(u.bannedUntil))
}

func limitsReread(t testing.TB, s *store, token secret) *apiKey {
	t.Helper()
	keys, err := readKeys(context.Background(), s, 0, "WHERE k.digest = unhex(?)", fmt.Sprintf("%x", token.digest()))
	if err != nil || len(keys) != 1 {
		t.Fatalf("the key is not found: %v", err)
	}
	return keys[0]
}

// limitsShown is the key with the id as the commands show it.
func limitsShown(t testing.TB, s *store, id int64, when instant) *apiKey {
	t.Helper()
	keys, err := readKeys(context.Background(), s, when, "WHERE k.id = ?", id)
	if err != nil || len(keys) != 1 {
		t.Fatalf("key %d is not found: %v", id, err)
	}
	return keys[0]
}

// limitsAdmit makes one request that the store must not fail.
func limitsAdmit(t testing.TB, l *limiter, a *account, when instant) decision {
	t.Helper()
	d, err := l.admit(a, when.time())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// limitsDays are the days that are stored of a usage, as "2027-01-15: 2 admitted, 1 refused, 0 errors".
func limitsDays(t testing.TB, s *store, usageID int64) (days []string) {
	t.Helper()
	storeMust(t, eachUseByDay(context.Background(), s, 0, usageID, -1, func(use *keyUse) error {
		for _, d := range use.Days {
			days = append(days, fmt.Sprintf("%s: %d admitted, %d refused, %d errors", d.Day, d.Admitted, d.Refused, d.Errors))
		}
		return nil
	}))
	return days
}

func limitsFlush(t testing.TB, l *limiter) {
	t.Helper()
	if err := l.flush(context.Background(), limitsStart.time()); err != nil {
		t.Fatal(err)
	}
}

// limitsTrim is a flush that has something to write, and so drops usages if there are too many.
func limitsTrim(t testing.TB, l *limiter) {
	t.Helper()
	l.countError(1<<40, limitsStart)
	limitsFlush(t, l)
}

func TestPlansHaveTheQuotasOfTheSpecification(t *testing.T) {
	want := map[string]quota{
		"free":       {60, 1_000},
		"pro":        {300, 10_000},
		"business":   {1_000, 100_000},
		"enterprise": {}, // set for each key
	}
	if !maps.Equal(plans, want) {
		t.Errorf("plans = %v, want %v", plans, want)
	}
}

func TestLimitWindows(t *testing.T) {
	free, tiny := quota{60, 1_000}, quota{2, 3}
	for _, c := range []struct {
		policy string
		quota  quota
		steps  []limitsStep
	}{
		{"the worked example of limits.go holds", free, []limitsStep{
			{"10s", 1, "", "59 until 1m10s", "999 until 24h0m10s"},
			{"25s", 58, "", "1 until 1m10s", "941 until 24h0m10s"},
			{"40s", 1, "", "0 until 1m10s", "940 until 24h0m10s"},
			{"40.5s", 1, CodeRateLimited, "0 until 1m10s", "940 until 24h0m10s"},
			{"41s", 1, CodeRateLimited, "0 until 1m10s", "940 until 24h0m10s"},
			{"70s", 1, "", "59 until 2m10s", "939 until 24h0m10s"},
		}},
		{"a window begins with the first request after the last window, not with its end", tiny, []limitsStep{
			{"0s", 1, "", "1 until 1m0s", "2 until 24h0m0s"},
			{"3h", 1, "", "1 until 3h1m0s", "1 until 24h0m0s"},
			{"30h", 1, "", "1 until 30h1m0s", "2 until 54h0m0s"},
		}},
		{"a bucket is full at its end and not a millisecond earlier", tiny, []limitsStep{
			{"0s", 2, "", "0 until 1m0s", "1 until 24h0m0s"},
			{"59.999s", 1, CodeRateLimited, "0 until 1m0s", "1 until 24h0m0s"},
			{"60s", 1, "", "1 until 2m0s", "0 until 24h0m0s"},
			{"23h59m59.999s", 1, CodeRateLimited, "2 until 23h59m59.999s", "0 until 24h0m0s"},
			{"24h", 1, "", "1 until 24h1m0s", "2 until 48h0m0s"},
		}},
		{"nothing trickles back while a window runs", tiny, []limitsStep{
			{"0s", 1, "", "1 until 1m0s", "2 until 24h0m0s"},
			{"59s", 1, "", "0 until 1m0s", "1 until 24h0m0s"},
			{"59.5s", 1, CodeRateLimited, "0 until 1m0s", "1 until 24h0m0s"},
		}},
		{"up to twice the limit passes around a boundary", tiny, []limitsStep{
			{"0s", 1, "", "1 until 1m0s", ""},
			{"59s", 1, "", "0 until 1m0s", ""},
			{"60s", 1, "", "1 until 2m0s", "0 until 24h0m0s"},
		}},
		{"what the minute refuses is not taken from the day", quota{1, 3}, []limitsStep{
			{"0s", 1, "", "0 until 1m0s", "2 until 24h0m0s"},
			{"1s", 2, CodeRateLimited, "0 until 1m0s", "2 until 24h0m0s"},
			{"60s", 1, "", "0 until 2m0s", "1 until 24h0m0s"},
		}},
		{"what the day refuses is not taken from the minute, and begins none", quota{9, 2}, []limitsStep{
			{"0s", 2, "", "7 until 1m0s", "0 until 24h0m0s"},
			{"1s", 3, CodeRateLimited, "7 until 1m0s", "0 until 24h0m0s"},
			{"90s", 1, CodeRateLimited, "9 until 1m30s", "0 until 24h0m0s"},
		}},
		{"requests may arrive in another order than they read the clock", tiny, []limitsStep{
			{"10s", 1, "", "1 until 1m10s", "2 until 24h0m10s"},
			{"9.999s", 1, "", "0 until 1m10s", "1 until 24h0m10s"},
			{"9.998s", 1, CodeRateLimited, "0 until 1m10s", "1 until 24h0m10s"},
		}},
		{"a clock set back by up to a window's length keeps the window", tiny, []limitsStep{
			{"0s", 1, "", "1 until 1m0s", "2 until 24h0m0s"},
			{"-60s", 1, "", "0 until 1m0s", "1 until 24h0m0s"},
		}},
		{"a clock set back further begins a new window, so that nobody waits for ever", tiny, []limitsStep{
			{"0s", 2, "", "0 until 1m0s", "1 until 24h0m0s"},
			{"-60.001s", 1, "", "1 until -1ms", "0 until 24h0m0s"},
			{"-24h0m0.001s", 1, "", "1 until -23h59m0.001s", "2 until -1ms"},
		}},
	} {
		t.Run(c.policy, func(t *testing.T) { limitsWalk(t, &usage{}, c.quota, limitsBan, c.steps) })
	}
}

func TestARequestTakesFromBothBucketsOrFromNone(t *testing.T) {
	u := &usage{}
	decisions := map[ErrorCode]int{}
	for i := range 600 { // ten minutes, a request each second: 5 a minute and 30 a day pass
		before := *u
		d := u.admit(limitsStart+1000*instant(i), quota{5, 30}, 0)
		decisions[d.refusal]++
		took := func(was, is bucket) int64 {
			if was.ends != is.ends {
				return is.used
			}
			return is.used - was.used
		}
		want := int64(0)
		if d.refusal == "" {
			want = 1
		}
		if minute, day := took(before.minute, u.minute), took(before.day, u.day); minute != want || day != want {
			t.Fatalf("second %d, refusal %q: took %d from the minute and %d from the day", i, d.refusal, minute, day)
		}
	}
	if decisions[""] != 30 || decisions[CodeRateLimited] != 570 {
		t.Errorf("decisions = %v, want 30 admitted", decisions)
	}
}

func TestAChangeOfPlanCountsWhatWasUsed(t *testing.T) {
	free, pro := plans["free"], plans["pro"]
	for _, c := range []struct {
		policy     string
		used       int // on the old plan, all at 0s
		old, new   quota
		refusal    ErrorCode
		minute     string
		day        string
		limitShown int64
	}{
		{"up: remaining is the new limit less what was used", 50, free, pro, "", "249 until 1m0s", "9949 until 24h0m0s", 300},
		{"up: a key that was refused is admitted with its next request", 60, free, pro, "", "239 until 1m0s", "9939 until 24h0m0s", 300},
		{"down: remaining is the new limit less what was used", 50, pro, free, "", "9 until 1m0s", "949 until 24h0m0s", 60},
		{"down: remaining is never below 0", 100, pro, free, CodeRateLimited, "0 until 1m0s", "900 until 24h0m0s", 60},
		{"down: the day is never below 0 either", 100, pro, quota{200, 60}, CodeRateLimited, "100 until 1m0s", "0 until 24h0m0s", 60},
	} {
		t.Run(c.policy, func(t *testing.T) {
			u := &usage{}
			for range c.used {
				u.admit(limitsAt("0s"), c.old, limitsBan)
			}
			limitsWalk(t, u, c.new, limitsBan, []limitsStep{{"1s", 1, c.refusal, c.minute, c.day}})
			if d := u.admit(limitsAt("2s"), c.new, limitsBan); d.shown.limit != c.limitShown {
				t.Errorf("the limit shown is %d, want %d", d.shown.limit, c.limitShown)
			}
		})
	}
	t.Run("down and up again: nothing was forgotten", func(t *testing.T) {
		u := &usage{}
		for range 100 {
			u.admit(limitsAt("0s"), pro, limitsBan)
		}
		limitsWalk(t, u, free, limitsBan, []limitsStep{{"1s", 1, CodeRateLimited, "0 until 1m0s", "900 until 24h0m0s"}})
		limitsWalk(t, u, pro, limitsBan, []limitsStep{{"2s", 1, "", "199 until 1m0s", "9899 until 24h0m0s"}})
	})
}

func TestTheBucketShownInXRateLimit(t *testing.T) {
	// used is a bucket with n requests used that ends at an instant.
	used := func(n int64, ends string) bucket { return bucket{used: n, ends: limitsAt(ends)} }
	for _, c := range []struct {
		policy  string
		quota   quota
		before  usage
		refusal ErrorCode
		shown   string // limit, remaining and reset
	}{
		{"admitted: the minute, when it has fewest left", quota{60, 1000}, usage{minute: used(3, "40s"), day: used(3, "9h")}, "", "60: 56 until 40s"},
		{"admitted: the day, when it has fewest left", quota{60, 1000}, usage{minute: used(3, "40s"), day: used(990, "9h")}, "", "1000: 9 until 9h0m0s"},
		{"admitted: the day, when both have as many left", quota{60, 1000}, usage{minute: used(3, "40s"), day: used(943, "9h")}, "", "1000: 56 until 9h0m0s"},
		{"admitted: the minute, with one fewer left than the day", quota{60, 1000}, usage{minute: used(4, "40s"), day: used(943, "9h")}, "", "60: 55 until 40s"},
		{"refused by the minute: the minute", quota{60, 1000}, usage{minute: used(60, "40s"), day: used(900, "9h")}, CodeRateLimited, "60: 0 until 40s"},
		{"refused by the day: the day", quota{60, 1000}, usage{minute: used(3, "40s"), day: used(1000, "9h")}, CodeRateLimited, "1000: 0 until 9h0m0s"},
		{"refused by the day at its end: the day, though the minute resets later", quota{60, 1000}, usage{minute: used(3, "40s"), day: used(1000, "9s")}, CodeRateLimited, "1000: 0 until 9s"},
		{"refused by both: the day, when it resets later", quota{60, 1000}, usage{minute: used(60, "40s"), day: used(1000, "9h")}, CodeRateLimited, "1000: 0 until 9h0m0s"},
		{"refused by both: the minute, when it resets later", quota{60, 1000}, usage{minute: used(60, "40s"), day: used(1000, "39.999s")}, CodeRateLimited, "60: 0 until 40s"},
		{"refused by both: the day, when they reset at once", quota{60, 1000}, usage{minute: used(60, "40s"), day: used(1000, "40s")}, CodeRateLimited, "1000: 0 until 40s"},
	} {
		t.Run(c.policy, func(t *testing.T) {
			d := c.before.admit(limitsAt("0s"), c.quota, limitsBan)
			if got := fmt.Sprintf("%d: %s", d.shown.limit, limitsLevel(d.shown)); got != c.shown || d.refusal != c.refusal {
				t.Errorf("shown is %s (%q), want %s (%q)", got, d.refusal, c.shown, c.refusal)
			}
		})
	}
}

func TestLimitHeaders(t *testing.T) {
	freePolicy := `"minute";q=60;w=60, "day";q=1000;w=86400`
	key := func(when, plan string, u usage, times int) decision {
		a := &account{quota: plans[plan], usageID: 1, policy: plans[plan].policyHeader()}
		l := newLimiter(nil, limitsBan, testLog)
		l.usages[1] = &u
		var d decision
		for range times {
			d = limitsAdmit(t, l, a, limitsAt(when))
		}
		return d
	}
	address := func(when string, times int) decision {
		l := newLimiter(nil, limitsBan, testLog)
		d := l.address(netip.MustParsePrefix("192.0.2.1/32"), limitsAt("0s").time(), true)
		for range times - 1 {
			d = l.address(netip.MustParsePrefix("192.0.2.1/32"), limitsAt(when).time(), true)
		}
		return d
	}
	full := usage{}
	for _, c := range []struct {
		policy string
		d      decision
		want   map[string]string
	}{
		{"a first request on the Free plan", key("0s", "free", full, 1), map[string]string{
			"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "59", "X-RateLimit-Reset": "1800000060",
			"RateLimit": `"minute";r=59;t=60, "day";r=999;t=86400`, "RateLimit-Policy": freePolicy,
		}},
		{"two buckets partly used", key("0s", "free",
			usage{minute: bucket{used: 0, ends: limitsAt("42s")}, day: bucket{used: 59, ends: limitsAt("30211s")}}, 1), map[string]string{
			"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "59", "X-RateLimit-Reset": "1800000042",
			"RateLimit": `"minute";r=59;t=42, "day";r=940;t=30211`, "RateLimit-Policy": freePolicy,
		}},
		{"the reset and the seconds to it are rounded up", key("0.25s", "business", full, 2), map[string]string{
			"X-RateLimit-Limit": "1000", "X-RateLimit-Remaining": "998", "X-RateLimit-Reset": "1800000061",
			"RateLimit": `"minute";r=998;t=60, "day";r=99998;t=86400`, "RateLimit-Policy": `"minute";q=1000;w=60, "day";q=100000;w=86400`,
		}},
		{"seconds that have only begun are reported as one", key("0.75s", "pro",
			usage{minute: bucket{used: 9, ends: limitsAt("41.25s")}, day: bucket{used: 9, ends: limitsAt("100.75s")}}, 1), map[string]string{
			"X-RateLimit-Limit": "300", "X-RateLimit-Remaining": "290", "X-RateLimit-Reset": "1800000042",
			"RateLimit": `"minute";r=290;t=41, "day";r=9990;t=100`, "RateLimit-Policy": `"minute";q=300;w=60, "day";q=10000;w=86400`,
		}},
		{"refused by the minute", key("0.5s", "free", full, 61), map[string]string{
			"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000061", "Retry-After": "60",
			"RateLimit": `"minute";r=0;t=60, "day";r=940;t=86400`, "RateLimit-Policy": freePolicy,
		}},
		{"refused by the day, with a full minute that resets now", key("0s", "free",
			usage{day: bucket{used: 1000, ends: limitsAt("7200s")}}, 1), map[string]string{
			"X-RateLimit-Limit": "1000", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800007200", "Retry-After": "7200",
			"RateLimit": `"minute";r=60;t=0, "day";r=0;t=7200`, "RateLimit-Policy": freePolicy,
		}},
		{"banned: the minute's limit, nothing left, and the end of the ban", key("0s", "free",
			usage{day: bucket{used: 5, ends: limitsAt("7200s")}, bannedAt: limitsAt("-1s"), bannedUntil: limitsAt("599s")}, 1), map[string]string{
			"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000599", "Retry-After": "599",
			"RateLimit": `"minute";r=0;t=599, "day";r=995;t=7200`, "RateLimit-Policy": freePolicy,
		}},
		{"an address without a key", address("0.5s", 2), map[string]string{
			"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "58", "X-RateLimit-Reset": "1800000060",
			"RateLimit": `"address";r=58;t=60`, "RateLimit-Policy": `"address";q=60;w=60`,
		}},
		{"an address that is refused", address("30.5s", 61), map[string]string{
			"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000060", "Retry-After": "30",
			"RateLimit": `"address";r=0;t=30`, "RateLimit-Policy": `"address";q=60;w=60`,
		}},
	} {
		t.Run(c.policy, func(t *testing.T) {
			if got := limitsHeaders(t, c.d); !maps.Equal(got, c.want) {
				t.Errorf("headers\n got %v\nwant %v", got, c.want)
			}
		})
	}
}

func TestTheResetIsRoundedUp(t *testing.T) {
	for begun, want := range map[string]string{
		"0s": "1800000060", "0.001s": "1800000061", "0.5s": "1800000061", "0.999s": "1800000061", "1s": "1800000061", "1.001s": "1800000062",
	} {
		d := (&usage{}).admit(limitsAt(begun), plans["free"], limitsBan)
		if got := limitsHeaders(t, d)["X-RateLimit-Reset"]; got != want {
			t.Errorf("begun at %s: Reset is %s, want %s", begun, got, want)
		}
	}
}

func TestRetryAfterIsEnoughAndNotMoreThanASecondTooMuch(t *testing.T) {
	for when, want := range map[string]string{
		"0s": "60", "0.001s": "60", "0.999s": "60", "1s": "59", "1.001s": "59", "58.5s": "2", "59s": "1", "59.001s": "1", "59.999s": "1",
	} {
		u := &usage{}
		u.admit(limitsAt("0s"), quota{1, 100}, limitsBan)
		if got := limitsHeaders(t, u.admit(limitsAt(when), quota{1, 100}, limitsBan))["Retry-After"]; got != want {
			t.Errorf("refused at %s: Retry-After is %s, want %s", when, got, want)
		}
	}
	for millis := range instant(minuteMillis) {
		u := &usage{minute: bucket{used: 1, ends: limitsAt("60s")}}
		d := u.admit(limitsStart+millis, quota{1, 100}, limitsBan)
		wait, err := strconv.Atoi(limitsHeaders(t, d)["Retry-After"])
		if err != nil {
			t.Fatal(err)
		}
		retry := limitsStart + millis + 1000*instant(wait)
		if wait < 1 || retry < limitsAt("60s") || retry >= limitsAt("61s") {
			t.Fatalf("refused %d ms after the start, a minute's window before its end: Retry-After is %d", millis, wait)
		}
		if millis%997 == 0 && u.admit(retry, quota{1, 100}, limitsBan).refusal != "" {
			t.Fatalf("refused %d ms after the start: refused again after Retry-After", millis)
		}
	}
	t.Run("it is at least 1, even with nothing to wait for", func(t *testing.T) {
		d := decision{now: limitsStart, refusal: CodeRateLimited, shown: level{limit: 60, reset: limitsStart}}
		if got := limitsHeaders(t, d)["Retry-After"]; got != "1" {
			t.Errorf("Retry-After is %s", got)
		}
	})
}

func TestARefusalIsA429(t *testing.T) {
	for _, code := range []ErrorCode{CodeRateLimited, CodeKeyBanned} {
		var refused *Error
		if err := (decision{refusal: code}).err(); !errors.As(err, &refused) || refused.Code != code || refused.Status != 429 {
			t.Errorf("%s: the error is %v", code, err)
		}
	}
	if err := (decision{}).err(); err != nil {
		t.Errorf("admitted: the error is %v", err)
	}
}

func TestBans(t *testing.T) {
	limited, banned := CodeRateLimited, CodeKeyBanned
	for _, c := range []struct {
		policy string
		quota  quota
		banFor time.Duration
		steps  []limitsStep
	}{
		{"a burst of twice the limit and one more does not ban; the next refusal does", quota{3, 100}, limitsBan, []limitsStep{
			{"0s", 3, "", "", ""},
			{"0s", 1, limited, "", ""}, // had not been asked to wait
			{"0s", 3, limited, "0 until 1m0s", "97 until 24h0m0s"},
			{"0s", 1, banned, "0 until 10m0s", "97 until 24h0m0s"},
		}},
		{"on the Free plan that is the 61st strike", plans["free"], limitsBan, []limitsStep{
			{"0s", 60, "", "", ""},
			{"0.5s", 1, limited, "", ""},
			{"1s", 60, limited, "", ""},
			{"59s", 1, banned, "0 until 10m59s", ""},
		}},
		{"requests during a ban take nothing and do not lengthen it", quota{1, 100}, limitsBan, []limitsStep{
			{"0s", 1, "", "", ""},
			{"0s", 2, limited, "", ""},
			{"0s", 1, banned, "0 until 10m0s", "99 until 24h0m0s"},
			{"5m", 500, banned, "0 until 10m0s", "99 until 24h0m0s"},
			{"9m59.999s", 500, banned, "0 until 10m0s", "99 until 24h0m0s"},
			{"10m", 1, "", "0 until 11m0s", "98 until 24h0m0s"},
		}},
		{"requests during a ban are no strikes either", quota{1, 1}, limitsBan, []limitsStep{
			{"0s", 1, "", "", ""},
			{"0s", 2, limited, "", ""},
			{"0s", 1, banned, "", ""},
			{"9m59.999s", 50, banned, "", ""},
			{"10m", 1, limited, "1 until 10m0s", "0 until 24h0m0s"},  // strike one: it was asked to wait for the day
			{"10m", 1, banned, "0 until 24h0m0s", "0 until 24h0m0s"}, // the day resets later than the ban ends
			{"19m59.999s", 1, banned, "0 until 24h0m0s", "0 until 24h0m0s"},
			{"20m", 1, limited, "1 until 20m0s", "0 until 24h0m0s"},
		}},
		{"a refusal when Retry-After has passed is no strike, though others were faster", quota{1, 100}, limitsBan, []limitsStep{
			{"0s", 1, "", "", ""},
			{"0s", 1, limited, "", ""},
			{"60s", 1, "", "", ""},
			{"60s", 1, limited, "", ""},
			{"60s", 1, limited, "", ""}, // strike one
			{"60s", 1, banned, "0 until 11m0s", ""},
		}},
		{"a refusal just before Retry-After has passed is a strike", quota{1, 100}, limitsBan, []limitsStep{
			{"0s", 1, "", "", ""},
			{"0.5s", 1, limited, "", ""}, // asked to wait 60 seconds
			{"60s", 1, "", "", ""},
			{"60.499s", 1, limited, "", ""}, // strike one
			{"60.499s", 1, banned, "", ""},
		}},
		{"strikes are counted within one minute's window", quota{2, 100}, limitsBan, []limitsStep{
			{"0s", 2, "", "", ""},
			{"1s", 1, limited, "", ""},
			{"50s", 2, limited, "", ""},
			{"60s", 2, "", "", ""},
			{"60s", 1, limited, "", ""}, // Retry-After has passed
			{"61s", 2, limited, "", ""},
			{"61s", 1, banned, "", ""},
		}},
		{"the minute's window counts while it is the day that refuses", quota{3, 3}, limitsBan, []limitsStep{
			{"0s", 3, "", "", ""},
			{"50s", 1, limited, "", ""},
			{"50s", 3, limited, "", ""},
			{"60s", 3, limited, "3 until 1m0s", "0 until 24h0m0s"},
			{"61s", 1, banned, "", ""},
		}},
		{"a minute is counted also while the day refuses and the minute is full", quota{3, 1}, limitsBan, []limitsStep{
			{"0s", 1, "", "", ""},
			{"2h", 1, limited, "3 until 2h0m0s", "0 until 24h0m0s"},
			{"2h0m10s", 3, limited, "", ""},
			{"2h1m10s", 3, limited, "", ""},
			{"2h2m9.999s", 1, banned, "", ""},
		}},
		{"a ban is as long as -ban-for says", quota{1, 100}, 90 * time.Second, []limitsStep{
			{"0s", 1, "", "", ""},
			{"0s", 2, limited, "", ""},
			{"10s", 1, banned, "0 until 1m40s", ""},
			{"99.999s", 1, banned, "0 until 1m40s", ""},
			{"100s", 1, "", "", ""},
		}},
		{"after a ban strikes are counted anew, also within the same minute", quota{2, 100}, 10 * time.Second, []limitsStep{
			{"0s", 2, "", "", ""},
			{"0s", 3, limited, "", ""},
			{"0s", 1, banned, "0 until 1m0s", ""},
			{"10s", 2, limited, "", ""}, // before the Retry-After of the ban has passed
			{"10s", 1, banned, "0 until 1m0s", ""},
			{"19.999s", 1, banned, "0 until 1m0s", ""},
			{"20s", 1, limited, "0 until 1m0s", ""},
		}},
		{"of a ban and the bucket that refuses, the one that ends later is reported", quota{2, 100}, 50 * time.Second, []limitsStep{
			{"0s", 2, "", "", ""},
			{"5s", 3, limited, "0 until 1m0s", ""},
			{"5s", 1, banned, "0 until 1m0s", "98 until 24h0m0s"},
			{"54.999s", 1, banned, "0 until 1m0s", "98 until 24h0m0s"},
			{"60s", 2, "", "0 until 2m0s", "96 until 24h0m0s"},
			{"80s", 3, limited, "0 until 2m0s", ""},
			{"80s", 1, banned, "0 until 2m10s", "96 until 24h0m0s"},
			{"2m0.001s", 1, banned, "0 until 2m10s", "96 until 24h0m0s"}, // its minute is full again, and refuses no more
		}},
		{"-ban-for 0 turns bans off", quota{1, 100}, 0, []limitsStep{
			{"0s", 1, "", "", ""},
			{"0s", 5000, limited, "0 until 1m0s", "99 until 24h0m0s"},
			{"60s", 1, "", "0 until 2m0s", "98 until 24h0m0s"},
		}},
	} {
		t.Run(c.policy, func(t *testing.T) { limitsWalk(t, &usage{}, c.quota, c.banFor, c.steps) })
	}

	t.Run("a strike every 20 seconds for a day bans nobody who has 3 a minute", func(t *testing.T) {
		u := &usage{}
		u.admit(limitsStart, quota{3, 1}, limitsBan)
		for i := range instant(24*180 - 1) {
			if d := u.admit(limitsStart+20_000*(i+1), quota{3, 1}, limitsBan); d.refusal != CodeRateLimited {
				t.Fatalf("request %d: %q", i, d.refusal)
			}
		}
	})
}

func TestABanIsReportedWithItsNumbers(t *testing.T) { engines(t, testABanIsReportedWithItsNumbers) }

func testABanIsReportedWithItsNumbers(t *testing.T, db string) {
	l := limitsOf(storeOpen(t, db), limitsBan, &usage{})
	q := quota{2, 50}
	a := &account{quota: q, usageID: 1, policy: q.policyHeader()}
	var d decision
	for i := range 6 {
		d = limitsAdmit(t, l, a, limitsAt("1.5s"))
		if d.banBegins != (i == 5) {
			t.Fatalf("request %d: the ban begins: %v", i+1, d.banBegins)
		}
	}
	want := map[string]string{
		"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000602", "Retry-After": "600",
		"RateLimit": `"minute";r=0;t=600, "day";r=48;t=86400`, "RateLimit-Policy": `"minute";q=2;w=60, "day";q=50;w=86400`,
	}
	if got := limitsHeaders(t, d); !maps.Equal(got, want) {
		t.Errorf("headers\n got %v\nwant %v", got, want)
	}
	var refused *Error
	if !errors.As(d.err(), &refused) || refused.Code != CodeKeyBanned {
		t.Errorf("the error is %v", d.err())
	}
	if d = limitsAdmit(t, l, a, limitsAt("2s")); d.banBegins || limitsHeaders(t, d)["Retry-After"] != "600" {
		t.Errorf("half a second into the ban: %+v", d)
	}
}

func TestBanForIsTheLimiters(t *testing.T) { engines(t, testBanForIsTheLimiters) }

func testBanForIsTheLimiters(t *testing.T, db string) {
	a := &account{quota: quota{1, 50}, usageID: 1}
	s := storeOpen(t, db)
	// Below 40 seconds, at which the minute resets, Retry-After is that: a client that
	// came back at the end of the ban would only be refused again.
	for banFor, want := range map[time.Duration]string{0: "40", time.Millisecond: "40", 10 * time.Second: "40",
		40 * time.Second: "40", 41 * time.Second: "41", 90 * time.Second: "90", time.Hour: "3600"} {
		l := limitsOf(s, banFor, &usage{})
		limitsAdmit(t, l, a, limitsAt("0s"))
		var d decision
		for range 3 {
			d = limitsAdmit(t, l, a, limitsAt("20s"))
		}
		if got := limitsHeaders(t, d)["Retry-After"]; got != want || d.banBegins != (banFor > 0) {
			t.Errorf("-ban-for %v: Retry-After is %s, want %s", banFor, got, want)
		}
	}
}

// limitsProvoke makes requests at one instant until the key is banned.
func limitsProvoke(t *testing.T, l *limiter, a *account, when instant) {
	t.Helper()
	for range 3 * (a.PerMinute + 1) {
		if limitsAdmit(t, l, a, when).banBegins {
			return
		}
	}
	t.Fatal("the key was never banned")
}

func TestABanSurvivesARestartAndIsShown(t *testing.T) { engines(t, testABanSurvivesARestartAndIsShown) }

func testABanSurvivesARestartAndIsShown(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{2, 50})
	l := newLimiter(s, limitsBan, testLog)
	limitsAdmit(t, l, &k.account, limitsAt("0s"))
	limitsAdmit(t, l, &k.account, limitsAt("0s"))
	limitsFlush(t, l) // nothing but the ban is to be written after this
	limitsProvoke(t, l, &k.account, limitsAt("1s"))
	limitsFlush(t, l)
	_ = s.Close()

	s = storeOpen(t, db)
	if shown := limitsShown(t, s, k.ID, limitsAt("2s")); shown.BannedUntil != limitsAt("601s") {
		t.Errorf("the key is shown as %+v", shown)
	}
	l = newLimiter(s, limitsBan, testLog)
	if d := limitsAdmit(t, l, &k.account, limitsAt("600.999s")); d.refusal != CodeKeyBanned || limitsLevel(d.shown) != "0 until 10m1s" {
		t.Errorf("after the restart: %q, %s", d.refusal, limitsLevel(d.shown))
	}
	if d := limitsAdmit(t, l, &k.account, limitsAt("601s")); d.refusal != "" {
		t.Errorf("at the end of the ban: %q", d.refusal)
	}
	if shown := limitsShown(t, s, k.ID, limitsAt("601s")); shown.BannedUntil != 0 {
		t.Errorf("after the ban the key is shown as %+v", shown)
	}
}

func TestUnban(t *testing.T) { engines(t, testUnban) }

func testUnban(t *testing.T, db string) {
	s := storeOpen(t, db)
	token := newSecret(false)
	if _, err := insertKey(context.Background(), s, &apiKey{Plan: "enterprise", account: account{quota: quota{1, 50}}}, token, false); err != nil {
		t.Fatal(err)
	}
	k := limitsReread(t, s, token)
	l := newLimiter(s, limitsBan, testLog)
	limitsProvoke(t, l, &k.account, limitsAt("0s"))
	limitsFlush(t, l)
	unban := func(when string) {
		t.Helper()
		if err := unbanKey(t.Context(), s, k.ID, limitsAt(when)); err != nil {
			t.Fatal(err)
		}
		k = limitsReread(t, s, token)
	}

	unban("61s")
	if d := limitsAdmit(t, l, &k.account, limitsAt("61s")); d.refusal != "" || limitsLevel(d.minute) != "0 until 2m1s" {
		t.Errorf("after the unban: %q, the minute has %s", d.refusal, limitsLevel(d.minute))
	}
	if shown := limitsShown(t, s, k.ID, limitsAt("61s")); shown.BannedUntil != 0 {
		t.Errorf("after the unban the key is shown as banned until %d", shown.BannedUntil)
	}
	if d := limitsAdmit(t, newLimiter(s, limitsBan, testLog), &k.account, limitsAt("62s")); d.refusal == CodeKeyBanned {
		t.Error("the lifted ban is back after a restart without a flush")
	}

	limitsProvoke(t, l, &k.account, limitsAt("62s"))
	storeMust(t, l.flush(t.Context(), limitsAt("62s").time()))
	for _, l := range []*limiter{l, newLimiter(s, limitsBan, testLog)} {
		if d := limitsAdmit(t, l, &k.account, limitsAt("600s")); d.refusal != CodeKeyBanned || limitsLevel(d.shown) != "0 until 11m2s" {
			t.Errorf("a ban after the unban: %q, %s", d.refusal, limitsLevel(d.shown))
		}
	}
	if shown := limitsShown(t, s, k.ID, limitsAt("600s")); shown.BannedUntil != limitsAt("662s") {
		t.Errorf("the later ban is shown as %d", shown.BannedUntil)
	}
	unban("62s") // in the very millisecond in which the ban began
	if d := limitsAdmit(t, l, &k.account, limitsAt("601s")); d.refusal != "" {
		t.Errorf("after the second unban: %q", d.refusal)
	}
}

// usageColumns are those of the usage table beside its id, in the order of fields.
const usageColumns = "minute_used, minute_ends, day_used, day_ends, banned_at, banned_until"

// readUsage is what is stored of a usage.
func readUsage(ctx context.Context, s *store, id int64) (*usage, error) {
	u := &usage{}
	_, err := s.readInto(ctx, sqlOf(usageQuery, id), u.fields()...)
	return u, err
}

// limitsBrink is a usage of a key with a quota of 2 a minute whose next refusal bans it.
func limitsBrink() *usage {
	return &usage{
		minute:  bucket{used: 2, ends: limitsAt("60s")},
		day:     bucket{used: 2, ends: limitsAt("24h")},
		strikes: bucket{used: 2, ends: limitsAt("60s")},
		retryAt: limitsAt("60s"),
	}
}

// TestABanIsStoredBeforeItsFirstKeyBanned: whoever was told of a ban finds it
// again after a kill, which leaves what is committed and flushes nothing.
func TestABanIsStoredBeforeItsFirstKeyBanned(t *testing.T) {
	engines(t, testABanIsStoredBeforeItsFirstKeyBanned)
}

func testABanIsStoredBeforeItsFirstKeyBanned(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{2, 50})
	l := newLimiter(s, limitsBan, testLog)
	limitsProvoke(t, l, &k.account, limitsAt("1s"))
	if shown := limitsShown(t, s, k.ID, limitsAt("2s")); shown.BannedUntil != limitsAt("601s") {
		t.Errorf("with the first key_banned the key is stored as %+v", shown)
	}
	for what, l := range map[string]*limiter{"the service": l, "the service after a kill": newLimiter(s, limitsBan, testLog)} {
		if d := limitsAdmit(t, l, &k.account, limitsAt("600.999s")); d.refusal != CodeKeyBanned || limitsLevel(d.shown) != "0 until 10m1s" {
			t.Errorf("%s says %q, %s", what, d.refusal, limitsLevel(d.shown))
		}
	}
}

// While a ban is being stored, nobody is told of it yet, and nobody waits for it
// but the request that it begins with.
func TestWhileABanIsBeingStoredOthersAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
		l := limitsOf(s, limitsBan, limitsBrink())
		a := &account{quota: quota{2, 50}, usageID: 1}
		storeMust(t, s.refresh(t.Context()))
		before := s.commits.Load()
		s.mu.Lock()
		s.leading = true // the test leads, so that the ban can only queue
		s.mu.Unlock()
		first := make(chan decision, 1)
		go func() { first <- limitsAdmit(t, l, a, limitsAt("1s")) }()
		synctest.Wait()
		for range 5 {
			if d := limitsAdmit(t, l, a, limitsAt("2s")); d.refusal != CodeRateLimited || d.banBegins || limitsLevel(d.shown) != "0 until 1m0s" {
				t.Errorf("before the ban is stored: %q, %s, it begins: %v", d.refusal, limitsLevel(d.shown), d.banBegins)
			}
		}
		s.lead(t.Context())
		if d := <-first; d.refusal != CodeKeyBanned || !d.banBegins || limitsLevel(d.shown) != "0 until 10m1s" {
			t.Errorf("the request that it begins with: %q, %s, it begins: %v", d.refusal, limitsLevel(d.shown), d.banBegins)
		}
		if d := limitsAdmit(t, l, a, limitsAt("2s")); d.refusal != CodeKeyBanned || d.banBegins || limitsLevel(d.shown) != "0 until 10m1s" {
			t.Errorf("after it: %q, %s, it begins: %v", d.refusal, limitsLevel(d.shown), d.banBegins)
		}
		if n := s.commits.Load() - before; n != 1 {
			t.Errorf("one ban is %d commits", n)
		}
	})
}

func TestABanThatCannotBeStoredIsTriedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pets.db")
	s := storeOpen(t, path)
	l := limitsOf(s, limitsBan, limitsBrink())
	a := &account{quota: quota{2, 50}, usageID: 1}
	outside := storeRaw(t, path, "CREATE TRIGGER full BEFORE INSERT ON usage BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
	for range 3 {
		d := limitsAdmit(t, l, a, limitsAt("1s"))
		if d.refusal != CodeRateLimited || d.banBegins || limitsLevel(d.shown) != "0 until 1m0s" || !errors.Is(d.banErr, errUnavailable) {
			t.Errorf("a ban that cannot be stored: %q, %s, it begins: %v, %v", d.refusal, limitsLevel(d.shown), d.banBegins, d.banErr)
		}
	}
	if _, err := outside.Exec("DROP TRIGGER full"); err != nil {
		t.Fatal(err)
	}
	if d := limitsAdmit(t, l, a, limitsAt("2s")); d.refusal != CodeKeyBanned || !d.banBegins || d.banErr != nil || limitsLevel(d.shown) != "0 until 10m2s" {
		t.Errorf("the next refusal: %q, %s, it begins: %v, %v", d.refusal, limitsLevel(d.shown), d.banBegins, d.banErr)
	}
	if d := limitsAdmit(t, newLimiter(s, limitsBan, testLog), a, limitsAt("3s")); d.refusal != CodeKeyBanned {
		t.Errorf("after a kill: %q", d.refusal)
	}
}

// TestAFlushDoesNotOverwriteABan stores a ban when a flush has copied the usage without
// it, and before that is written.
func TestAFlushDoesNotOverwriteABan(t *testing.T) { engines(t, testAFlushDoesNotOverwriteABan) }

func testAFlushDoesNotOverwriteABan(t *testing.T, db string) {
	s, elsewhere := storeOpen(t, db), storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{2, 50})
	l := newLimiter(s, limitsBan, testLog)
	limitsAdmit(t, l, &k.account, limitsAt("0s"))
	var once sync.Once
	s.engine = &storeEngine{engine: s.engine, check: func(st statement, _ []any) {
		if st.query == mergeUsages {
			once.Do(func() { limitsProvoke(t, newLimiter(elsewhere, limitsBan, testLog), &k.account, limitsAt("1s")) })
		}
	}}
	storeMust(t, l.flush(context.Background(), limitsAt("1s").time()))
	if u, err := readUsage(context.Background(), s, k.ID); err != nil || u.bannedUntil != limitsAt("601s") || u.day.used != 1 {
		t.Errorf("after the flush the usage is stored as %+v, %v", u, err)
	}
	if d := limitsAdmit(t, l, &k.account, limitsAt("2s")); d.refusal != CodeKeyBanned || limitsLevel(d.shown) != "0 until 10m1s" {
		t.Errorf("after the flush the key is %q, %s", d.refusal, limitsLevel(d.shown))
	}
}

// TestAPanicWhileABanIsStoredIsNotForEver: the next refusal tries again.
func TestAPanicWhileABanIsStoredIsNotForEver(t *testing.T) {
	engines(t, testAPanicWhileABanIsStoredIsNotForEver)
}

func testAPanicWhileABanIsStoredIsNotForEver(t *testing.T, db string) {
	s := storeOpen(t, db)
	l := limitsOf(s, limitsBan, limitsBrink())
	a := &account{quota: quota{2, 50}, usageID: 1}
	healthy := s.engine
	s.engine = &storeEngine{engine: healthy, check: func(statement, []any) { panic("boom") }}
	func() {
		defer func() { _ = recover() }()
		limitsAdmit(t, l, a, limitsAt("1s"))
	}()
	s.engine = healthy
	if d := limitsAdmit(t, l, a, limitsAt("2s")); d.refusal != CodeKeyBanned {
		t.Errorf("the next refusal is %q", d.refusal)
	}
}

// TestAUsageIsRememberedWhileItsBanIsStored: whatever room others take, the ban begins.
func TestAUsageIsRememberedWhileItsBanIsStored(t *testing.T) {
	engines(t, testAUsageIsRememberedWhileItsBanIsStored)
}

func testAUsageIsRememberedWhileItsBanIsStored(t *testing.T, db string) {
	l := limitsOf(storeOpen(t, db), limitsBan, limitsBrink())
	a := &account{quota: quota{2, 50}, usageID: 1}
	d, _ := l.charge(a, limitsAt("1s"))
	if !d.banBegins {
		t.Fatalf("the decision is %+v", d)
	}
	for id := range int64(maxUsages + 500) {
		l.usages[-id-1] = &usage{day: bucket{fresh: 1}} // which is stored nowhere
	}
	limitsTrim(t, l)
	if l.ban(a, &d); d.refusal != CodeKeyBanned || !d.banBegins || d.banErr != nil {
		t.Errorf("the decision is %+v", d)
	}
}

// A clock that was an hour ahead must not make a ban an hour longer.
func TestABanThatBeganBeforeTheClockWasSetBackIsOver(t *testing.T) {
	engines(t, testABanThatBeganBeforeTheClockWasSetBackIsOver)
}

func testABanThatBeganBeforeTheClockWasSetBackIsOver(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{2, 50})
	l := newLimiter(s, limitsBan, testLog)
	limitsProvoke(t, l, &k.account, limitsAt("1h"))
	for what, l := range map[string]*limiter{"the service": l, "the service after a restart": newLimiter(s, limitsBan, testLog)} {
		if d := limitsAdmit(t, l, &k.account, limitsAt("1h")); d.refusal != CodeKeyBanned {
			t.Errorf("%s says %q while the clock is ahead", what, d.refusal)
		}
		if d := limitsAdmit(t, l, &k.account, limitsAt("0s")); d.refusal != "" {
			t.Errorf("%s says %q when the clock was set back", what, d.refusal)
		}
	}
	for when, want := range map[string]bool{
		"-60s":     true, // requests may read the clock out of order, though hardly by so much
		"-60.001s": false,
		"0s":       true,
		"599.999s": true,
		"600s":     false,
	} {
		u := &usage{bannedAt: limitsAt("0s"), bannedUntil: limitsAt("600s")}
		if got := u.admit(limitsAt(when), quota{2, 50}, limitsBan).refusal == CodeKeyBanned; got != want {
			t.Errorf("a ban of ten minutes from 0s on, at %s: %v, want %v", when, got, want)
		}
	}
}

// What began while the clock was ahead began in the future, once it was set back.
func TestUnbanLiftsABanThatBeganInTheFuture(t *testing.T) {
	engines(t, testUnbanLiftsABanThatBeganInTheFuture)
}

func testUnbanLiftsABanThatBeganInTheFuture(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{2, 50})
	l := newLimiter(s, limitsBan, testLog)
	limitsProvoke(t, l, &k.account, limitsAt("1h"))
	storeMust(t, unbanKey(t.Context(), s, k.ID, limitsAt("0s")))
	if k = limitsShown(t, s, k.ID, limitsAt("1h1m")); k.unbannedAt != limitsAt("1h") || k.BannedUntil != 0 {
		t.Errorf("after the unban the key is %+v", k)
	}
	for _, l := range []*limiter{l, newLimiter(s, limitsBan, testLog)} {
		if d := limitsAdmit(t, l, &k.account, limitsAt("1h1m")); d.refusal != "" {
			t.Errorf("when the clock is there again: %q", d.refusal)
		}
	}
	storeMust(t, unbanKey(t.Context(), s, k.ID, limitsAt("2h")))
	if k = limitsShown(t, s, k.ID, limitsAt("2h")); k.unbannedAt != limitsAt("2h") {
		t.Errorf("an unban after the ban is of %v", k.unbannedAt.time())
	}
}

func TestAnUnbanInTheFutureLiftsNoLaterBan(t *testing.T) {
	engines(t, testAnUnbanInTheFutureLiftsNoLaterBan)
}

func testAnUnbanInTheFutureLiftsNoLaterBan(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{2, 50})
	storeMust(t, unbanKey(t.Context(), s, k.ID, limitsAt("1h")))
	k = limitsShown(t, s, k.ID, limitsAt("0s"))
	l := newLimiter(s, limitsBan, testLog)
	limitsProvoke(t, l, &k.account, limitsAt("1s"))
	for what, l := range map[string]*limiter{"the service": l, "the service after a restart": newLimiter(s, limitsBan, testLog)} {
		if d := limitsAdmit(t, l, &k.account, limitsAt("600.999s")); d.refusal != CodeKeyBanned || limitsLevel(d.shown) != "0 until 10m1s" {
			t.Errorf("%s says %q, %s", what, d.refusal, limitsLevel(d.shown))
		}
	}
	if shown := limitsShown(t, s, k.ID, limitsAt("2s")); shown.BannedUntil != limitsAt("601s") {
		t.Errorf("the key is shown as %+v", shown)
	}
	storeMust(t, unbanKey(t.Context(), s, k.ID, limitsAt("2s"))) // still in the past of both
	k = limitsShown(t, s, k.ID, limitsAt("2s"))
	if d := limitsAdmit(t, l, &k.account, limitsAt("61s")); d.refusal != "" {
		t.Errorf("after the next unban: %q", d.refusal)
	}
}

// TestStrikesOutlastAFlushOfTooManyUsages: every refusal is followed by a flush
// that has to forget usages, and yet they are counted.
func TestStrikesOutlastAFlushOfTooManyUsages(t *testing.T) {
	engines(t, testStrikesOutlastAFlushOfTooManyUsages)
}

func testStrikesOutlastAFlushOfTooManyUsages(t *testing.T, db string) {
	const others = 33_000
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{2, 50})
	l := newLimiter(s, limitsBan, testLog)
	idle := &usage{}
	for i, want := range []ErrorCode{"", "", CodeRateLimited, CodeRateLimited, CodeRateLimited, CodeKeyBanned} {
		if d := limitsAdmit(t, l, &k.account, limitsAt("1s")); d.refusal != want {
			t.Fatalf("request %d of an insisting key is %q, want %q", i+1, d.refusal, want)
		}
		for id := range int64(others) {
			l.usages[-id-1] = idle
		}
		if err := l.flush(context.Background(), limitsAt("1s").time()); err != nil {
			t.Fatal(err)
		}
		if len(l.usages) > maxUsages {
			t.Fatalf("%d usages are remembered", len(l.usages))
		}
	}
}

func TestUsagesThatAreStoredNowhereAreForgottenLast(t *testing.T) {
	engines(t, testUsagesThatAreStoredNowhereAreForgottenLast)
}

func testUsagesThatAreStoredNowhereAreForgottenLast(t *testing.T, db string) {
	const idle = 33_000
	insisting := map[string]*usage{
		"strikes in the window that runs":              {strikes: bucket{used: 1, ends: limitsAt("60s")}},
		"a Retry-After ahead":                          {retryAt: limitsAt("0.001s")},
		"a Retry-After ahead, the day's":               {day: bucket{used: 50, ends: limitsAt("9h")}, retryAt: limitsAt("9h")},
		"a ban that is being stored":                   {banning: true},
		"both, as a key that has asked again":          limitsBrink(),
		"strikes of a minute before, but a day's wait": {strikes: bucket{used: 1, ends: limitsAt("0s")}, retryAt: limitsAt("9h")},
	}
	over := map[string]*usage{
		"nothing":                        {},
		"strikes in a window that ended": {strikes: bucket{used: 9, ends: limitsAt("0s")}},
		"a Retry-After that has passed":  {retryAt: limitsAt("0s")},
		"a ban, which is stored":         {bannedAt: limitsAt("-1s"), bannedUntil: limitsAt("599s")},
	}
	l := newLimiter(storeOpen(t, db), limitsBan, testLog)
	ids := map[string]int64{}
	for _, some := range []map[string]*usage{insisting, over} {
		for what, u := range some {
			ids[what] = int64(len(ids) + 1)
			l.usages[ids[what]] = u
		}
	}
	for id := range int64(idle) {
		l.usages[-id-1] = &usage{}
	}
	limitsTrim(t, l)
	for what := range insisting {
		if l.usages[ids[what]] == nil {
			t.Errorf("a usage with %s is forgotten", what)
		}
	}
	for what := range over {
		if l.usages[ids[what]] != nil {
			t.Errorf("a usage with %s is remembered", what)
		}
	}
	if len(l.usages) != len(insisting) {
		t.Errorf("%d usages are remembered, want %d", len(l.usages), len(insisting))
	}
	for id := range int64(idle) {
		l.usages[-id-1] = limitsBrink()
	}
	if limitsTrim(t, l); len(l.usages) > maxUsages {
		t.Errorf("%d usages are remembered, all of which may be banned by their next refusal", len(l.usages))
	}
}

func TestAnUnbanHoldsForASuccessorThatIsMadeAfterIt(t *testing.T) {
	engines(t, testAnUnbanHoldsForASuccessorThatIsMadeAfterIt)
}

func testAnUnbanHoldsForASuccessorThatIsMadeAfterIt(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{1, 50})
	l := newLimiter(s, limitsBan, testLog)
	limitsProvoke(t, l, &k.account, limitsAt("0s"))
	limitsFlush(t, l)
	if err := unbanKey(t.Context(), s, k.ID, limitsAt("60s")); err != nil {
		t.Fatal(err)
	}
	successor, token := *k, newSecret(false)
	successor.CreatedAt = limitsAt("61s")
	if _, err := rotateKey(t.Context(), s, &successor, token, limitsAt("1h")); err != nil {
		t.Fatal(err)
	}
	if d := limitsAdmit(t, l, &limitsReread(t, s, token).account, limitsAt("62s")); d.refusal != "" {
		t.Errorf("the successor of an unbanned key is refused: %q", d.refusal)
	}
}

func TestKeysOfOneLineShareTheirUsage(t *testing.T) { engines(t, testKeysOfOneLineShareTheirUsage) }

func testKeysOfOneLineShareTheirUsage(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{4, 50})
	successor, token := *k, newSecret(false)
	if _, err := rotateKey(t.Context(), s, &successor, token, limitsAt("1h")); err != nil {
		t.Fatal(err)
	}
	next, other, l := limitsReread(t, s, token), limitsKey(t, s, "enterprise", quota{4, 50}), newLimiter(s, limitsBan, testLog)
	for i, k := range []*apiKey{k, next, next, k} {
		if d := limitsAdmit(t, l, &k.account, limitsStart); d.refusal != "" || d.minute.remaining != int64(3-i) {
			t.Errorf("request %d: %q with %d left", i+1, d.refusal, d.minute.remaining)
		}
	}
	for _, k := range []*apiKey{k, next} {
		if d := limitsAdmit(t, l, &k.account, limitsStart); d.refusal != CodeRateLimited {
			t.Errorf("key %d has more than the quota of its line", k.ID)
		}
	}
	if d := limitsAdmit(t, l, &other.account, limitsStart); d.refusal != "" || d.minute.remaining != 3 {
		t.Errorf("a key of another line: %q with %d left", d.refusal, d.minute.remaining)
	}
}

func TestOf200ParallelRequestsExactlyTheLimitIsAdmitted(t *testing.T) {
	engines(t, testOf200ParallelRequestsExactlyTheLimitIsAdmitted)
}

func testOf200ParallelRequestsExactlyTheLimitIsAdmitted(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{100, 10_000})
	l := newLimiter(s, limitsBan, testLog)
	var decisions, left sync.Map // counts by refusal; what those admitted were left
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 200 {
		wg.Go(func() {
			<-start
			d, err := l.admit(&k.account, limitsStart.time())
			if err != nil {
				t.Error(err)
			}
			count, _ := decisions.LoadOrStore(d.refusal, new(atomic.Int64))
			count.(*atomic.Int64).Add(1)
			if d.refusal != "" {
				return // 0 are left, as for the last one that is admitted
			}
			if _, twice := left.LoadOrStore(d.minute.remaining, true); twice {
				t.Errorf("two requests were left %d", d.minute.remaining)
			}
		})
	}
	close(start)
	wg.Wait()
	for refusal, want := range map[ErrorCode]int64{"": 100, CodeRateLimited: 100} {
		if got, ok := decisions.Load(refusal); !ok || got.(*atomic.Int64).Load() != want {
			t.Errorf("refused with %q: %v, want %d", refusal, got, want)
		}
	}
	if d := limitsAdmit(t, l, &k.account, limitsAt("60s")); d.minute.remaining != 99 || d.day.remaining != 9_899 {
		t.Errorf("a minute later %d and %d are left", d.minute.remaining, d.day.remaining)
	}
}

// A client that sends a request every 20 seconds and waits as it is asked to, for
// three days, while the service is restarted now and then.
func TestADayAdmitsExactlyItsQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
		k := limitsKey(t, s, "free", quota{})
		l := newLimiter(s, limitsBan, testLog)
		began := time.Now()
		var admitted [3]int
		for requests := 1; time.Since(began) < 72*time.Hour; requests++ {
			day := int(time.Since(began) / (24 * time.Hour))
			d := limitsAdmit(t, l, &k.account, instantOf(time.Now()))
			if d.refusal == "" {
				admitted[day]++
				time.Sleep(20 * time.Second)
			} else {
				h := limitsHeaders(t, d)
				midnight := began.Add(time.Duration(day+1) * 24 * time.Hour)
				if h["X-RateLimit-Limit"] != "1000" || h["X-RateLimit-Reset"] != fmt.Sprint(midnight.Unix()) {
					t.Fatalf("day %d: refused with %v", day+1, h)
				}
				wait, err := time.ParseDuration(h["Retry-After"] + "s")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(wait)
			}
			if requests%450 == 0 {
				storeMust(t, l.flush(t.Context(), time.Now()))
				l = newLimiter(s, limitsBan, testLog)
			}
		}
		if admitted != [3]int{1000, 1000, 1000} {
			t.Errorf("admitted on the three days: %v", admitted)
		}
	})
}

func TestUsageSurvivesARestart(t *testing.T) { engines(t, testUsageSurvivesARestart) }

func testUsageSurvivesARestart(t *testing.T, db string) {
	s := storeOpen(t, db)
	k, other := limitsKey(t, s, "free", quota{}), limitsKey(t, s, "pro", quota{})
	l := newLimiter(s, limitsBan, testLog)
	for range 7 {
		limitsAdmit(t, l, &k.account, limitsAt("0.123s"))
	}
	limitsAdmit(t, l, &other.account, limitsAt("5s"))
	limitsFlush(t, l)
	limitsAdmit(t, l, &k.account, limitsAt("6s")) // changed again, so written again
	limitsFlush(t, l)
	_ = s.Close()

	s = storeOpen(t, db)
	if k := limitsShown(t, s, k.ID, limitsAt("10s")); k.UsedThisMinute != 8 || k.UsedToday != 8 {
		t.Errorf("the first key is shown as %+v", k)
	}
	if k := limitsShown(t, s, other.ID, limitsAt("10s")); k.UsedThisMinute != 1 || k.UsedToday != 1 {
		t.Errorf("the second key is shown as %+v", k)
	}
	l = newLimiter(s, limitsBan, testLog)
	d := limitsAdmit(t, l, &k.account, limitsAt("60.122s"))
	if limitsLevel(d.minute) != "51 until 1m0.123s" || limitsLevel(d.day) != "991 until 24h0m0.123s" {
		t.Errorf("after the restart: %s, %s", limitsLevel(d.minute), limitsLevel(d.day))
	}
	if d = limitsAdmit(t, l, &other.account, limitsAt("10s")); limitsLevel(d.minute) != "298 until 1m5s" {
		t.Errorf("after the restart the other key has %s", limitsLevel(d.minute))
	}
}

func TestAFlushWritesOnlyWhatChanged(t *testing.T) {
	s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
	k := limitsKey(t, s, "enterprise", quota{1, 5})
	l := newLimiter(s, limitsBan, testLog)
	writes := func(do func()) uint64 {
		before := s.commits.Load()
		do()
		limitsFlush(t, l)
		return s.commits.Load() - before
	}
	for _, c := range []struct {
		policy string
		do     func()
		want   uint64
	}{
		{"it has just begun", func() {}, 1},
		{"nothing happened", func() {}, 0},
		{"a request was admitted", func() { limitsAdmit(t, l, &k.account, limitsStart) }, 1},
		{"nothing happened since", func() {}, 0},
		{"a request was refused, which counts in its day", func() { limitsAdmit(t, l, &k.account, limitsStart) }, 1},
		{"nothing happened since", func() {}, 0},
		{"the key was banned, which waits for no flush", func() { limitsProvoke(t, l, &k.account, limitsStart) }, 2},
		{"many requests came during the ban", func() {
			for range 1000 {
				limitsAdmit(t, l, &k.account, limitsStart)
			}
		}, 1},
		{"a response was an error", func() { l.countError(k.usageID, limitsStart) }, 1},
		{"nothing happened since", func() {}, 0},
	} {
		if got := writes(c.do); got != c.want {
			t.Errorf("%s: %d commits, want %d", c.policy, got, c.want)
		}
	}
}

// TestEveryRequestIsCountedInItsDay once: admitted, or refused for whatever reason.
func TestEveryRequestIsCountedInItsDay(t *testing.T) { engines(t, testEveryRequestIsCountedInItsDay) }

func testEveryRequestIsCountedInItsDay(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{2, 5}) // limitsStart is 8 o'clock on 15 January 2027
	l := newLimiter(s, limitsBan, testLog)
	for _, step := range []struct {
		what, when string
		times      int
		refusal    ErrorCode // of the last
		want       string    // of the last day
	}{
		{"two are admitted", "0s", 2, "", "2027-01-15: 2 admitted, 0 refused, 0 errors"},
		{"the minute refuses", "1s", 1, CodeRateLimited, "2027-01-15: 2 admitted, 1 refused, 0 errors"},
		{"of three that are too early the last is banned", "2s", 3, CodeKeyBanned, "2027-01-15: 2 admitted, 4 refused, 0 errors"},
		{"the ban refuses", "70s", 4, CodeKeyBanned, "2027-01-15: 2 admitted, 8 refused, 0 errors"},
		{"the ban is over", "11m", 2, "", "2027-01-15: 4 admitted, 8 refused, 0 errors"},
		{"the last millisecond of the day", "15h59m59.999s", 1, "", "2027-01-15: 5 admitted, 8 refused, 0 errors"},
		{"the first of the next, on which the day refuses still", "16h", 1, CodeRateLimited, "2027-01-16: 0 admitted, 1 refused, 0 errors"},
	} {
		var d decision
		for range step.times {
			d = limitsAdmit(t, l, &k.account, limitsAt(step.when))
		}
		limitsFlush(t, l)
		if days := limitsDays(t, s, k.ID); d.refusal != step.refusal || days[len(days)-1] != step.want {
			t.Errorf("%s: the refusal is %q, and stored is %q", step.what, d.refusal, days)
		}
	}
	for range 2 { // a late response, whose request came before midnight, beside one that comes now
		l.countError(k.usageID, limitsAt("15h59m59s"))
		limitsAdmit(t, l, &k.account, limitsAt("24h"))
	}
	l.usages = map[int64]*usage{} // as if the first of them was forgotten meanwhile
	l.countError(k.usageID, limitsAt("24h"))
	limitsFlush(t, l)
	want := []string{"2027-01-15: 5 admitted, 8 refused, 2 errors", "2027-01-16: 2 admitted, 1 refused, 1 errors"}
	if days := limitsDays(t, s, k.ID); !slices.Equal(days, want) {
		t.Errorf("in the end %q is stored", days)
	}
}

// TestARefusalMovesNoWindow that another service has begun meanwhile: it tells when the key was used last.
func TestARefusalMovesNoWindow(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		sh := limitsShare(t, db, 2)
		sh.admit(0, 1, "0s")
		sh.flush(0, "0s")
		sh.admit(1, 1, "5m")
		sh.flush(1, "5m")
		sh.account.quota.PerDay = 1
		if d := limitsAdmit(t, sh.services[0], sh.account, limitsAt("10m")); d.refusal != CodeRateLimited {
			t.Fatalf("the day does not refuse: %+v", d)
		}
		sh.services[0].countError(1, limitsAt("10m"))
		sh.flush(0, "10m")
		sh.stands(-1, "1 until 6m0s", "2 until 24h0m0s")
	})
}

func TestAFailedFlushLosesNothing(t *testing.T) {
	const usages = 1200 // several transactions
	path := filepath.Join(t.TempDir(), "pets.db")
	s := storeOpen(t, path)
	l := newLimiter(s, limitsBan, testLog)
	for id := range int64(usages) {
		l.usages[id+1] = &usage{}
		limitsAdmit(t, l, &account{quota: plans["free"], usageID: id + 1}, limitsStart)
	}
	outside, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	outsideExec := func(query string) {
		t.Helper()
		if _, err := outside.Exec(query); err != nil {
			t.Fatal(err)
		}
	}

	outsideExec("CREATE TRIGGER full BEFORE INSERT ON usage WHEN NEW.id = 700 BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
	if err := l.flush(context.Background(), limitsStart.time()); !errors.Is(err, errUnavailable) {
		t.Fatalf("the flush does not report that it failed: %v", err)
	}
	limitsAdmit(t, l, &account{quota: plans["free"], usageID: 1}, limitsStart)
	outsideExec("DROP TRIGGER full")
	limitsFlush(t, l)

	var stored, used int
	if err := outside.QueryRow("SELECT count(*), sum(minute_used) FROM usage WHERE day_used = minute_used").Scan(&stored, &used); err != nil {
		t.Fatal(err)
	}
	if stored != usages || used != usages+1 {
		t.Errorf("%d usages with %d requests are stored, want %d and %d", stored, used, usages, usages+1)
	}
}

// limitsDuringFlush runs do while a flush waits for its transaction: the test is the
// store's leader, so that the flush can only queue. Call it inside a synctest bubble.
func limitsDuringFlush(t *testing.T, s *store, flush func(context.Context) error, do func()) {
	t.Helper()
	s.mu.Lock()
	s.leading = true
	s.mu.Unlock()
	flushed := make(chan error, 1)
	go func() { flushed <- flush(t.Context()) }()
	synctest.Wait()
	do()
	s.lead(t.Context())
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
}

func TestWhatChangesDuringAFlushIsWrittenByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
		k := limitsKey(t, s, "free", quota{})
		l := newLimiter(s, limitsBan, testLog)
		limitsAdmit(t, l, &k.account, limitsStart)
		for id := range int64(maxUsages) { // so many that this flush trims them too
			l.usages[-id-1] = &usage{}
		}
		limitsDuringFlush(t, s, func(ctx context.Context) error { return l.flush(ctx, limitsStart.time()) }, func() { limitsAdmit(t, l, &k.account, limitsStart) })
		if len(l.usages) != 1 {
			t.Errorf("%d usages are remembered, want the changed one", len(l.usages))
		}
		if d := limitsAdmit(t, l, &k.account, limitsStart); d.minute.remaining != 57 {
			t.Errorf("%d left after 3 requests", d.minute.remaining)
		}
		limitsFlush(t, l)
		if shown := limitsShown(t, s, k.ID, limitsStart); shown.UsedThisMinute != 3 {
			t.Errorf("the key is shown as %+v", shown)
		}
	})
}

// limitsShared are services that share a database, each of which has one account, whose
// usage has the id 1.
type limitsShared struct {
	t        *testing.T
	account  *account
	services []*limiter
}

func limitsShare(t *testing.T, db string, services int) *limitsShared {
	t.Helper()
	sh := &limitsShared{t: t, account: &account{quota: quota{100, 1000}, usageID: 1}}
	for range services {
		sh.services = append(sh.services, newLimiter(storeOpen(t, db), limitsBan, testLog))
	}
	return sh
}

// admit lets a service admit some requests.
func (sh *limitsShared) admit(service, requests int, when string) {
	sh.t.Helper()
	for range requests {
		if d := limitsAdmit(sh.t, sh.services[service], sh.account, limitsAt(when)); d.refusal != "" {
			sh.t.Fatalf("service %d refuses with %s", service, d.refusal)
		}
	}
}

func (sh *limitsShared) flush(service int, when string) {
	sh.t.Helper()
	storeMust(sh.t, sh.services[service].flush(sh.t.Context(), limitsAt(when).time()))
}

// stands checks where a service stands, or, with -1, what is stored: requests used and
// the ends of the windows.
func (sh *limitsShared) stands(service int, minute, day string) {
	sh.t.Helper()
	u, who := &usage{}, "the database"
	if service < 0 {
		var err error
		u, err = readUsage(sh.t.Context(), sh.services[0].store, 1)
		storeMust(sh.t, err)
	} else {
		u, who = sh.services[service].usages[1], fmt.Sprint("service ", service)
	}
	show := func(b bucket) string {
		return fmt.Sprintf("%d until %v", b.used, time.Duration(b.ends-limitsStart)*time.Millisecond)
	}
	if show(u.minute) != minute || show(u.day) != day {
		sh.t.Errorf("%s has %s, %s; want %s, %s", who, show(u.minute), show(u.day), minute, day)
	}
}

// TestServicesThatShareAUsageConverge: the stored window wins, wherever it began.
func TestServicesThatShareAUsageConverge(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		sh := limitsShare(t, db, 2)
		sh.admit(1, 2, "0s")
		sh.admit(0, 3, "10s")
		sh.flush(0, "11s") // the first to flush stores its own
		sh.stands(-1, "3 until 1m10s", "3 until 24h0m10s")
		sh.stands(1, "2 until 1m0s", "2 until 24h0m0s")
		sh.flush(1, "12s")
		sh.stands(-1, "5 until 1m10s", "5 until 24h0m10s")
		sh.stands(1, "5 until 1m10s", "5 until 24h0m10s")
		sh.stands(0, "3 until 1m10s", "3 until 24h0m10s")
		sh.admit(0, 1, "13s")
		sh.flush(0, "13s")
		for _, service := range []int{-1, 0} {
			sh.stands(service, "6 until 1m10s", "6 until 24h0m10s")
		}
		sh.admit(1, 1, "14s")
		sh.flush(1, "14s")
		for range 2 { // with nothing new, nothing changes
			sh.flush(0, "15s")
			sh.flush(1, "15s")
			sh.stands(-1, "7 until 1m10s", "7 until 24h0m10s")
			sh.stands(1, "7 until 1m10s", "7 until 24h0m10s")
		}
	})
}

// TestIncrementsOfAnEndedWindow are dropped, since they say nothing of the one that runs.
func TestIncrementsOfAnEndedWindow(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		sh := limitsShare(t, db, 2)
		sh.admit(0, 3, "0s")
		sh.admit(1, 2, "30s")
		sh.flush(1, "31s")
		sh.flush(0, "60s") // too late for its minute, not for its day
		sh.stands(-1, "2 until 1m30s", "5 until 24h0m30s")
		sh.stands(0, "2 until 1m30s", "5 until 24h0m30s")
		sh.admit(0, 1, "89.999s")
		sh.admit(1, 4, "91s") // which begins a minute of its own
		sh.flush(1, "92s")
		sh.flush(0, "92s")
		sh.stands(-1, "4 until 2m31s", "10 until 24h0m30s")
		sh.stands(0, "4 until 2m31s", "10 until 24h0m30s")
		sh.admit(1, 1, "93s")
		sh.flush(1, "151s") // where none runs, its own is stored, and has ended
		sh.stands(-1, "0 until 2m31s", "11 until 24h0m30s")
		if d := limitsAdmit(t, sh.services[1], sh.account, limitsAt("151s")); limitsLevel(d.minute) != "99 until 3m31s" {
			t.Errorf("in the next minute there is %s", limitsLevel(d.minute))
		}
	})
}

// TestAWindowThatIsFarAheadIsReplaced: it began before the clock was set back. A day that
// ends within two days counts on.
func TestAWindowThatIsFarAheadIsReplaced(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		sh := limitsShare(t, db, 2)
		sh.admit(0, 3, "1h")
		sh.flush(0, "1h")
		sh.admit(1, 2, "0s")
		sh.flush(1, "0s")
		sh.stands(-1, "2 until 1m0s", "5 until 25h0m0s")
		sh.admit(0, 1, "1s")
		sh.flush(0, "1s")
		sh.stands(0, "3 until 1m0s", "6 until 25h0m0s")
		sh.admit(0, 1, "-25h")
		sh.flush(0, "-25h")
		sh.stands(-1, "1 until -24h59m0s", "1 until -1h0m0s")
	})
	engines(t, func(t *testing.T, db string) { // but two services may read the clock at different times
		sh := limitsShare(t, db, 2)
		sh.admit(0, 3, "59s")
		sh.flush(0, "59s")
		sh.admit(1, 2, "0s")
		sh.flush(1, "0s")
		sh.stands(-1, "5 until 1m59s", "5 until 24h0m59s")
	})
}

// limitsLossy is an engine whose writes fail as fate says.
type limitsLossy struct {
	engine
	fate func() limitsFate
}

type limitsFate int

const (
	limitsArrives limitsFate = iota
	limitsNeverArrives
	limitsArrivesUnseen // it is stored, and nobody hears of it
)

func (e *limitsLossy) write(ctx context.Context, statements []statement) ([]result, error) {
	fate := e.fate()
	if fate == limitsNeverArrives {
		return nil, errOutcome
	}
	results, err := e.engine.write(ctx, statements)
	if fate == limitsArrivesUnseen && err == nil {
		return nil, errOutcome
	}
	return results, err
}

// TestAnOutageOfManyFlushesLosesAndDoublesNothing, whatever became of each.
func TestAnOutageOfManyFlushesLosesAndDoublesNothing(t *testing.T) {
	for what, fates := range map[string][]limitsFate{
		"a response that is lost":         {limitsArrivesUnseen},
		"a request that is lost":          {limitsNeverArrives},
		"many responses that are lost":    slices.Repeat([]limitsFate{limitsArrivesUnseen}, 20),
		"many requests that are lost":     slices.Repeat([]limitsFate{limitsNeverArrives}, 20),
		"first requests, then responses":  append(slices.Repeat([]limitsFate{limitsNeverArrives}, 5), limitsArrivesUnseen, limitsArrivesUnseen),
		"first a response, then requests": append([]limitsFate{limitsArrivesUnseen}, slices.Repeat([]limitsFate{limitsNeverArrives}, 5)...),
		"some that arrive in between":     {limitsArrivesUnseen, limitsArrives, limitsNeverArrives, limitsArrives, limitsArrivesUnseen},
	} {
		t.Run(what, func(t *testing.T) {
			engines(t, func(t *testing.T, db string) {
				sh := limitsShare(t, db, 2)
				sh.admit(0, 1, "0s")
				sh.flush(0, "0s")
				l, left := sh.services[0], fates
				l.store.engine = &limitsLossy{l.store.engine, func() (fate limitsFate) {
					if len(left) > 0 {
						fate, left = left[0], left[1:]
					}
					return fate
				}}
				sh.admit(1, 5, "1s")
				sh.flush(1, "1s")
				admitted := 6
				for i := range fates {
					sh.admit(0, 1+i%2, "2s")
					admitted += 1 + i%2
					_ = l.flush(t.Context(), limitsAt("2s").time())
					if used := l.usages[1].day.used; used < int64(admitted-5) {
						t.Errorf("while writing fails %d of %d requests count", used, admitted)
					}
				}
				sh.flush(0, "3s")
				sh.flush(0, "3s")
				if days := storeRead(t, l.store, "SELECT sum(admitted) FROM usage_days"); days != int64(admitted) {
					t.Errorf("of %d requests %d are counted in their day", admitted, days)
				}
				want := fmt.Sprint(admitted, " until ")
				sh.stands(-1, want+"1m0s", want+"24h0m0s")
				sh.stands(0, want+"1m0s", want+"24h0m0s")
			})
		})
	}
}

// TestALateCopyOfAFlushAddsNothing: a node that was frozen runs what was repeated elsewhere meanwhile.
func TestALateCopyOfAFlushAddsNothing(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		sh := limitsShare(t, db, 1)
		l, copies := sh.services[0], [][]statement{}
		var stored string
		for _, when := range []string{"0s", "1s"} {
			sh.admit(0, 1, when)
			l.take(limitsAt(when))
			copies = append(copies, l.flushing.merge(l.service, limitsAt(when), limitsAt("24h"), &stored))
			sh.flush(0, when)
		}
		for i, late := range copies { // the first of which must not let the others in again
			storeMust(t, storeErr(l.store.write(t.Context(), late...)))
			for _, counted := range []string{"SELECT day_used FROM usage", "SELECT sum(admitted) FROM usage_days"} {
				if n := storeRead(t, l.store, counted); n != 2 {
					t.Errorf("after a copy of flush %d, %d of 2 requests count: %s", i+1, n, counted)
				}
			}
		}
	})
}

// TestAFlushIsNotRepeatedAfterADay: the row of services that tells whether it was stored is purged then.
func TestAFlushIsNotRepeatedAfterADay(t *testing.T) {
	for _, c := range []struct {
		policy  string
		fate    limitsFate // of the first try
		silence string     // until the second
		want    string     // what is stored of the days in the end
		dropped bool
	}{
		{"stored, and repeated within a day", limitsArrivesUnseen, "23h58m", "3 admitted, 0 refused, 2 errors", false},
		{"stored, and repeated after a day", limitsArrivesUnseen, "24h", "3 admitted, 0 refused, 2 errors", true},
		{"stored, and repeated after a week", limitsArrivesUnseen, "168h", "3 admitted, 0 refused, 2 errors", true},
		{"not stored, and repeated within a day", limitsNeverArrives, "23h58m", "3 admitted, 0 refused, 2 errors", false},
		{"not stored, and repeated after a day", limitsNeverArrives, "24h", "1 admitted, 0 refused, 1 errors", true},
	} {
		t.Run(c.policy, func(t *testing.T) {
			engines(t, func(t *testing.T, db string) {
				sh, log := limitsShare(t, db, 1), &logBuffer{}
				l := sh.services[0]
				l.log = slog.New(slog.NewJSONHandler(log, nil))
				healthy := l.store.engine
				l.store.engine = &limitsLossy{healthy, func() limitsFate { return c.fate }}
				sh.admit(0, 2, "0s")
				l.countError(1, limitsAt("0s"))
				if err := l.flush(t.Context(), limitsAt("0s").time()); err == nil {
					t.Fatal("the first try has not failed")
				}
				l.store.engine = healthy
				storeMust(t, l.store.purge(t.Context(), limitsAt(c.silence).time()))
				l.countError(1, limitsAt(c.silence)) // before anything is admitted: it must not send the old window again
				sh.flush(0, c.silence)
				if fresh := l.usages[1].minute.fresh + l.usages[1].day.fresh; fresh != 0 {
					t.Errorf("%d requests wait for the next flush", fresh)
				}
				sh.admit(0, 1, c.silence)
				sh.flush(0, c.silence)
				var admitted, refused, errors int64
				_, err := l.store.readInto(t.Context(), sqlOf("SELECT sum(admitted), sum(refused), sum(errors) FROM usage_days"), &admitted, &refused, &errors)
				storeMust(t, err)
				if got := fmt.Sprintf("%d admitted, %d refused, %d errors", admitted, refused, errors); got != c.want {
					t.Errorf("stored is %s, want %s", got, c.want)
				}
				const line = `"level":"ERROR","msg":"usage that could not be written for a day is dropped","requests":2,"since":"2027-01-15T08:00:00Z"`
				if text := log.String(); strings.Contains(text, line) != c.dropped || c.dropped == (text == "") {
					t.Errorf("the log is %q", text)
				}
			})
		})
	}
}

// TestAVoidBanIsStoredAsOver: what the service does not heed any more is not shown either, and does not come back.
func TestAVoidBanIsStoredAsOver(t *testing.T) { engines(t, testAVoidBanIsStoredAsOver) }

func testAVoidBanIsStoredAsOver(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{1, 50})
	spent := limitsKey(t, s, "enterprise", quota{1, 1}) // whose day refuses from the second request on
	for _, banFor := range []time.Duration{0, time.Second, 8 * time.Minute} {
		shorter := newLimiter(s, banFor, testLog)
		for _, key := range []*apiKey{k, spent} {
			limitsProvoke(t, newLimiter(s, limitsBan, testLog), &key.account, limitsAt("0s"))
			if d := limitsAdmit(t, shorter, &key.account, limitsAt("30s")); d.refusal == CodeKeyBanned {
				t.Errorf("with -ban-for %v key %d is banned", banFor, key.ID)
			}
		}
		storeMust(t, shorter.flush(t.Context(), limitsAt("30s").time()))
		for _, id := range []int64{k.ID, spent.ID} {
			if shown := limitsShown(t, s, id, limitsAt("31s")); shown.BannedUntil != 0 {
				t.Errorf("with -ban-for %v key %d is shown as banned until %v", banFor, id, shown.BannedUntil.time())
			}
		}
		if d := limitsAdmit(t, newLimiter(s, limitsBan, testLog), &k.account, limitsAt("31s")); d.refusal == CodeKeyBanned {
			t.Errorf("the ban is back after -ban-for %v", banFor)
		}
	}
	limitsProvoke(t, newLimiter(s, limitsBan, testLog), &k.account, limitsAt("0s"))
	idle := newLimiter(s, 0, testLog) // which gets no request
	storeMust(t, idle.flush(t.Context(), limitsAt("30s").time()))
	if shown := limitsShown(t, s, k.ID, limitsAt("31s")); shown.BannedUntil != 0 {
		t.Errorf("beside a service without requests the key is shown as banned until %v", shown.BannedUntil.time())
	}
}

// TestWithBanForZeroNoBanRuns: bans are off, also those that would have ended soon.
func TestWithBanForZeroNoBanRuns(t *testing.T) { engines(t, testWithBanForZeroNoBanRuns) }

func testWithBanForZeroNoBanRuns(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{1, 50})
	limitsProvoke(t, newLimiter(s, limitsBan, testLog), &k.account, limitsAt("0s"))
	off := newLimiter(s, 0, testLog)
	if d := limitsAdmit(t, off, &k.account, limitsAt("9m59s")); d.refusal != "" {
		t.Errorf("a second before the end of the ban it says %q", d.refusal)
	}
	storeMust(t, off.flush(t.Context(), limitsAt("9m59s").time()))
	if shown := limitsShown(t, s, k.ID, limitsAt("9m59s")); shown.BannedUntil != 0 {
		t.Errorf("the key is shown as %+v", shown)
	}
}

// TestABanThatRunsIsNotEndedByAFlush of a service with the same -ban-for, or by a late copy of one.
func TestABanThatRunsIsNotEndedByAFlush(t *testing.T) { engines(t, testABanThatRunsIsNotEndedByAFlush) }

func testABanThatRunsIsNotEndedByAFlush(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "enterprise", quota{1, 50})
	l := newLimiter(s, limitsBan, testLog)
	limitsAdmit(t, l, &k.account, limitsAt("0s"))
	l.take(limitsAt("0s"))
	var stored string
	late := l.flushing.merge(l.service, limitsAt("0s"), latestBanEnd(limitsAt("0s"), limitsBan), &stored)
	limitsFlush(t, l)
	limitsProvoke(t, l, &k.account, limitsAt("5m"))
	storeMust(t, l.flush(t.Context(), limitsAt("4m1s").time())) // the clock may be read out of order
	_, err := s.write(t.Context(), late...)
	storeMust(t, err)
	if shown := limitsShown(t, s, k.ID, limitsAt("5m")); shown.BannedUntil != limitsAt("15m") {
		t.Errorf("the key is shown as %+v", shown)
	}
}

// TestAWindowThatEndsDuringAFlushLosesNothing of what is admitted in the next one meanwhile.
func TestAWindowThatEndsDuringAFlushLosesNothing(t *testing.T) {
	for what, w := range map[string]struct{ begins, meanwhile, next, minute, day string }{
		"a minute": {"59.9s", "60.5s", "61s", "61 until 2m0.5s", "62 until 24h0m0s"},
		"a day":    {"23h59m59.9s", "24h0m0.5s", "24h0m1s", "61 until 24h1m0.5s", "61 until 48h0m0.5s"},
		"a minute, and the next begins as it ends": {"59.9s", "60s", "61s", "61 until 2m0s", "62 until 24h0m0s"},
		"a day, and the next begins as it ends":    {"23h59m59.9s", "24h", "24h0m1s", "61 until 24h1m0s", "61 until 48h0m0s"},
	} {
		t.Run(what, func(t *testing.T) {
			engines(t, func(t *testing.T, db string) {
				sh := limitsShare(t, db, 1)
				sh.admit(0, 1, "0s")
				lasts := sync.OnceFunc(func() { sh.admit(0, 60, w.meanwhile) })
				s := sh.services[0].store
				s.engine = &limitsLossy{s.engine, func() limitsFate { lasts(); return limitsArrives }}
				sh.flush(0, w.begins)
				sh.admit(0, 1, w.next)
				sh.stands(0, w.minute, w.day)
				sh.flush(0, w.next)
				sh.stands(-1, w.minute, w.day)
			})
		})
	}
}

// TestUsageFollowsASimpleModel lets three services admit and flush at random, while
// flushes get lost in both ways and the clock moves on, and sometimes back.
func TestUsageFollowsASimpleModel(t *testing.T) {
	lengths := [2]instant{minuteMillis, dayMillis}
	type window struct {
		ends instant
		n    int64
	}
	for range 8 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		sh := limitsShare(t, storePath(t), 3)
		sh.account.quota = quota{maxQuota, maxQuota}
		now := limitsStart
		runs := func(w window, i int) bool { return now < w.ends && w.ends <= now+2*lengths[i] }
		var stored [2]window   // what is stored
		var shown [3][2]window // what a service shows
		var fresh [3][2]window // what it has not sent, of the window that it shows
		var sent [3]*[2]window // what it has sent, until it knows the outcome
		var firstTried [3]instant
		var applied, dirty [3]bool
		var days, sentDays [3]map[[2]int64]int64 // by day, and 0 for what was admitted or 1 for errors; and what was sent of them
		storedDays := map[[2]int64]int64{}
		for i := range days {
			days[i] = map[[2]int64]int64{}
		}
		flush := func(service int, fate limitsFate) {
			if sent[service] != nil && now > firstTried[service]+dayMillis-minuteMillis { // it is given up
				for i, s := range sent[service] {
					if s.n > 0 && fresh[service][i].ends == s.ends {
						fresh[service][i].n -= s.n
					}
				}
				sent[service] = nil
				if !dirty[service] {
					return
				}
			}
			if sent[service] == nil {
				firstTried[service] = now
				copied := fresh[service]
				sent[service], applied[service], dirty[service] = &copied, false, false
				sentDays[service], days[service] = days[service], map[[2]int64]int64{}
			}
			for day, n := range sentDays[service] {
				if fate != limitsNeverArrives && !applied[service] {
					storedDays[day] += n
				}
			}
			for i, s := range sent[service] {
				if fate == limitsNeverArrives || applied[service] || s.n == 0 { // errors alone change no window
					continue
				}
				if stored[i].ends == 0 { // there is no row: an ended window is no harm there
					stored[i] = s
					continue
				}
				if !runs(stored[i], i) {
					stored[i] = window{ends: s.ends}
				}
				if s.ends > now {
					stored[i].n += s.n
				}
			}
			applied[service] = applied[service] || fate != limitsNeverArrives
			if fate != limitsArrives {
				return
			}
			for i, s := range sent[service] {
				if s.n == 0 {
					continue
				}
				if fresh[service][i].ends == s.ends {
					fresh[service][i].n -= s.n
				}
				if runs(stored[i], i) {
					shown[service][i] = window{stored[i].ends, stored[i].n + fresh[service][i].n}
					fresh[service][i].ends = stored[i].ends
				}
			}
			sent[service] = nil
		}
		for step := range 300 {
			service := random.IntN(3)
			l := sh.services[service]
			switch random.IntN(10) {
			case 0, 1:
				now += instant(random.Int64N(40_000))
			case 2:
				if random.IntN(20) == 0 {
					now += instant(random.Int64N(4*int64(dayMillis))) - 2*dayMillis
				}
			case 3, 4, 5:
				repeated, fate := sent[service] != nil, limitsFate(random.IntN(3))
				if !repeated && !dirty[service] {
					continue
				}
				healthy := l.store.engine
				l.store.engine = &limitsLossy{healthy, func() limitsFate { return fate }}
				err := l.flush(t.Context(), now.time())
				l.store.engine = healthy
				givenUp := repeated && now > firstTried[service]+dayMillis-minuteMillis
				if (err == nil) != (fate == limitsArrives || givenUp && !dirty[service]) {
					t.Fatalf("seed %d, step %d: the flush says %v", seed, step, err)
				}
				flush(service, fate)
				if repeated && !givenUp && fate == limitsArrives && dirty[service] { // what came meanwhile follows at once
					flush(service, fate)
				}
			case 6:
				l.countError(1, now)
				dirty[service] = true
				days[service][[2]int64{int64(now) / 86_400_000, 1}]++
			default:
				days[service][[2]int64{int64(now) / 86_400_000, 0}]++
				l.usages[1] = cmp.Or(l.usages[1], &usage{}) // as if it was read before the first flush
				_, err := l.admit(sh.account, now.time())
				storeMust(t, err)
				dirty[service] = true
				for i, length := range lengths {
					if !runs(shown[service][i], i) {
						shown[service][i], fresh[service][i] = window{ends: now + length}, window{ends: now + length}
					}
					shown[service][i].n++
					fresh[service][i].n++
				}
			}
			for day, want := range storedDays {
				got := storeRead(t, sh.services[0].store, fmt.Sprintf("SELECT %s FROM usage_days WHERE day = %d",
					[]string{"admitted", "errors"}[day[1]], day[0]))
				if got != want {
					t.Fatalf("seed %d, step %d: of the day %v %d are stored, want %d", seed, step, day, got, want)
				}
			}
			u, err := readUsage(t.Context(), sh.services[0].store, 1)
			storeMust(t, err)
			for i, b := range []bucket{u.minute, u.day} {
				if b.used != stored[i].n || b.ends != stored[i].ends {
					t.Fatalf("seed %d, step %d: stored is %+v, want %+v", seed, step, b, stored[i])
				}
			}
			if mine := l.usages[1]; mine != nil {
				for i, b := range []bucket{mine.minute, mine.day} {
					if b.used != shown[service][i].n || b.ends != shown[service][i].ends {
						t.Fatalf("seed %d, step %d: service %d shows %+v, want %+v", seed, step, service, b, shown[service][i])
					}
				}
			}
		}
	}
}

// TestABanAnywhereBansEverywhere after a flush, in which a service hears of it, until it
// is lifted.
func TestABanAnywhereBansEverywhere(t *testing.T) {
	c := rqliteNew(t, 3)
	sh := limitsShare(t, c.addresses(), 3)
	k := limitsKey(t, sh.services[0].store, "enterprise", quota{2, 50})
	sh.account = &k.account
	sh.admit(1, 1, "0s")
	sh.admit(2, 1, "0s")
	sh.flush(1, "0s") // so that neither has anything new to write afterwards
	sh.flush(2, "0s")
	limitsProvoke(t, sh.services[0], sh.account, limitsAt("1s"))
	for service, want := range []ErrorCode{CodeKeyBanned, CodeKeyBanned, CodeRateLimited} { // the last has not heard of it
		if want == CodeKeyBanned {
			sh.flush(service, "2s")
		}
		d := limitsAdmit(t, sh.services[service], sh.account, limitsAt("2s"))
		if d.refusal != want || want == CodeKeyBanned && limitsLevel(d.shown) != "0 until 10m1s" {
			t.Errorf("service %d says %q, %s", service, d.refusal, limitsLevel(d.shown))
		}
	}
	if d := limitsAdmit(t, newLimiter(sh.services[1].store, limitsBan, testLog), sh.account, limitsAt("3s")); d.refusal != CodeKeyBanned {
		t.Errorf("a service that starts now says %q", d.refusal)
	}
	storeMust(t, unbanKey(t.Context(), sh.services[0].store, 1, limitsAt("70s")))
	k = limitsShown(t, sh.services[0].store, 1, limitsAt("70s"))
	for service := range sh.services {
		sh.flush(service, "70s") // which must not bring the ban back
		if d := limitsAdmit(t, sh.services[service], &k.account, limitsAt("70s")); d.refusal == CodeKeyBanned {
			t.Errorf("after the unban service %d says %q", service, d.refusal)
		}
	}
}

// TestAServiceShowsThatItRuns again and again only where others share the database: an idle file is
// written to once.
func TestAServiceShowsThatItRuns(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		sh := limitsShare(t, db, 1)
		s := sh.services[0].store
		writes := s.commits.Load()
		for i, when := range []string{"0s", "0.5s", "1s"} {
			sh.flush(0, when)
			want := [2]int64{1, int64(limitsAt("0s"))}
			if s.engine.shared() {
				want = [2]int64{int64(i + 1), int64(limitsAt(when))}
			}
			var got [2]int64
			_, err := s.readInto(t.Context(), sqlOf("SELECT flushes, seen_at FROM services"), &got[0], &got[1])
			if err != nil || got != want || int64(s.commits.Load()-writes) != want[0] {
				t.Errorf("after flush %d there is %v, %v; want %v, after %d commits", i+1, got, err, want, s.commits.Load()-writes)
			}
		}
		storeMust(t, s.purge(t.Context(), limitsAt("23h").time()))
		sh.admit(0, 1, "24h")
		sh.flush(0, "24h")
		storeMust(t, s.purge(t.Context(), limitsAt("25h").time()))
		if n := storeRead(t, s, "SELECT count(*) FROM services"); n != 1 {
			t.Errorf("%d services are kept, want the one that runs", n)
		}
		storeMust(t, s.purge(t.Context(), limitsAt("48h").time()))
		if n := storeRead(t, s, "SELECT count(*) FROM services"); n != 0 {
			t.Errorf("%d services are kept that have ended a day ago", n)
		}
	})
}

// TestManyUsagesAreWrittenInTransactionsOfABoundedSize, each once.
func TestManyUsagesAreWrittenInTransactionsOfABoundedSize(t *testing.T) {
	const usages = 2*maxSent + 500
	engines(t, func(t *testing.T, db string) {
		sh := limitsShare(t, db, 2)
		for _, l := range sh.services {
			for id := range int64(usages) {
				l.usages[id+1] = &usage{}
				limitsAdmit(t, l, &account{quota: plans["free"], usageID: id + 1}, limitsStart)
			}
		}
		for i, l := range sh.services {
			before := l.store.commits.Load()
			limitsFlush(t, l)
			if n := l.store.commits.Load() - before; n != 3 || len(l.tallies) > 0 {
				t.Errorf("service %d has written %d transactions, and %d usages are left", i, n, len(l.tallies))
			}
		}
		for query, want := range map[string]int64{
			"SELECT count(*) FROM usage_days": usages, "SELECT sum(admitted) FROM usage_days": 2 * usages, "SELECT count(*) FROM usage": usages, "SELECT sum(minute_used) FROM usage": 2 * usages, "SELECT max(day_used) FROM usage": 2,
		} {
			if got := storeRead(t, sh.services[0].store, query); got != want {
				t.Errorf("%s: %d, want %d", query, got, want)
			}
		}
	})
}

// TestAFlushEndsUnderSteadyTraffic: what comes while it writes is left for the next.
func TestAFlushEndsUnderSteadyTraffic(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		sh := limitsShare(t, db, 1)
		sh.admit(0, 1, "0s")
		s, writes := sh.services[0].store, 0
		s.engine = &limitsLossy{s.engine, func() limitsFate {
			if writes++; writes < 100 {
				sh.admit(0, 1, "0s")
			}
			return limitsArrives
		}}
		sh.flush(0, "0s")
		if writes != 1 {
			t.Errorf("one flush is %d transactions", writes)
		}
		sh.stands(-1, "1 until 1m0s", "1 until 24h0m0s")
		sh.stands(0, "2 until 1m0s", "2 until 24h0m0s")
	})
}

func TestUsagesRememberedAreBounded(t *testing.T) { engines(t, testUsagesRememberedAreBounded) }

func testUsagesRememberedAreBounded(t *testing.T, db string) {
	const bound = 32_768 // "about 32,000" in the README
	s := storeOpen(t, db)
	k := limitsKey(t, s, "free", quota{})
	l := newLimiter(s, limitsBan, testLog)
	for range 5 {
		limitsAdmit(t, l, &k.account, limitsStart)
	}
	idle := &usage{}
	for id := range int64(bound - 1) {
		l.usages[-id-1] = idle
	}
	limitsFlush(t, l)
	if len(l.usages) != bound {
		t.Errorf("%d usages are remembered, want all while they are not too many", len(l.usages))
	}
	l.usages[-bound] = idle
	limitsTrim(t, l)
	if len(l.usages) > bound {
		t.Errorf("%d usages are remembered", len(l.usages))
	}
	if d := limitsAdmit(t, l, &k.account, limitsStart); d.minute.remaining != 54 || d.day.remaining != 994 {
		t.Errorf("reread, the key has %d and %d left", d.minute.remaining, d.day.remaining)
	}
}

// TestUsagesThatAreNotFlushedAreNotTrimmed, however many: nobody else knows of their requests.
func TestUsagesThatAreNotFlushedAreNotTrimmed(t *testing.T) {
	const usages = maxUsages + 100
	l := newLimiter(storeOpen(t, storePath(t)), limitsBan, testLog)
	for id := range int64(usages) { // as if they were admitted while a flush writes, which none has taken yet
		l.usages[id+1] = &usage{
			minute: bucket{used: 1, fresh: 1, ends: limitsAt("60s")},
			day:    bucket{used: 1, fresh: 1, ends: limitsAt("24h")},
		}
	}
	l.usages[usages+1] = &usage{} // that one may go
	limitsTrim(t, l)
	if len(l.usages) != usages || l.usages[usages+1] != nil {
		t.Errorf("%d usages are remembered, want the %d that are not stored", len(l.usages), usages)
	}
}

func TestAUsageThatIsReadTwiceLosesNothing(t *testing.T) {
	engines(t, testAUsageThatIsReadTwiceLosesNothing)
}

func testAUsageThatIsReadTwiceLosesNothing(t *testing.T, db string) {
	s := storeOpen(t, db)
	k := limitsKey(t, s, "free", quota{})
	l := newLimiter(s, limitsBan, testLog)
	limitsAdmit(t, l, &k.account, limitsStart)
	if err := l.load(k.usageID); err != nil { // as a second request does that came at once with the first
		t.Fatal(err)
	}
	if d := limitsAdmit(t, l, &k.account, limitsStart); d.minute.remaining != 58 {
		t.Errorf("%d left after 2 requests", d.minute.remaining)
	}
}

func TestAUsageThatCannotBeReadIsAnErrorAndNoNewUsage(t *testing.T) {
	db := filepath.Join(t.TempDir(), "pets.db")
	s := storeOpen(t, db)
	k := limitsKey(t, s, "free", quota{})
	l := newLimiter(s, limitsBan, testLog)
	limitsAdmit(t, l, &k.account, limitsStart)
	limitsFlush(t, l)
	_ = s.Close()

	l = newLimiter(s, limitsBan, testLog)
	var reported *Error
	for range 2 {
		if _, err := l.admit(&k.account, limitsStart.time()); err == nil || errors.As(err, &reported) {
			t.Errorf("admit = %v, want the store's error", err)
		}
	}
	l.store = storeOpen(t, db)
	if d := limitsAdmit(t, l, &k.account, limitsStart); d.minute.remaining != 58 {
		t.Errorf("%d left after 2 requests", d.minute.remaining)
	}
}

func TestAddressLimit(t *testing.T) {
	l := newLimiter(nil, limitsBan, testLog)
	one, two := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	for _, c := range []struct {
		policy  string
		who     netip.Prefix
		when    string
		charge  bool
		times   int
		refusal ErrorCode
		shown   string
	}{
		{"looking takes nothing", one, "0s", false, 5, "", "60 until 0s"},
		{"the first request begins a window of a minute", one, "1s", true, 1, "", "59 until 1m1s"},
		{"looking takes nothing from a running window", one, "2s", false, 5, "", "59 until 1m1s"},
		{"60 requests are admitted", one, "30s", true, 59, "", "0 until 1m1s"},
		{"more are refused, and never banned", one, "40s", true, 500, CodeRateLimited, "0 until 1m1s"},
		{"looking at an empty bucket is no refusal", one, "41s", false, 1, "", "0 until 1m1s"},
		{"another address has its own", two, "41s", true, 1, "", "59 until 1m41s"},
		{"refused until the end", one, "60.999s", true, 1, CodeRateLimited, "0 until 1m1s"},
		{"full at the end", one, "61s", true, 1, "", "59 until 2m1s"},
	} {
		for range c.times {
			d := l.address(c.who, limitsAt(c.when).time(), c.charge)
			if d.refusal != c.refusal || d.shown.limit != 60 {
				t.Fatalf("%s: the refusal is %q, limit %d", c.policy, d.refusal, d.shown.limit)
			}
			if got := limitsLevel(d.shown); c.times < 50 && got != c.shown {
				t.Errorf("%s: %s, want %s", c.policy, got, c.shown)
			}
		}
	}
}

func TestClientNetwork(t *testing.T) {
	const proxy = "10.0.0.1:443"
	for _, c := range []struct {
		policy string
		header string // -client-ip-header
		sent   http.Header
		remote string
		want   string
		unread string
	}{
		{"an IPv4 address counts alone", "", nil, "203.0.113.9:5000", "203.0.113.9/32", ""},
		{"its port does not matter", "", nil, "203.0.113.9:5001", "203.0.113.9/32", ""},
		{"of an IPv6 address the /64 counts", "", nil, "[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64", ""},
		{"so a neighbour in the /64 is the same client", "", nil, "[2001:db8:1:2:ffff::1]:5000", "2001:db8:1:2::/64", ""},
		{"and one outside it is not", "", nil, "[2001:db8:1:3:3:4:5:6]:5000", "2001:db8:1:3::/64", ""},
		{"a zone does not matter", "", nil, "[fe80::1%eth0]:5000", "fe80::/64", ""},
		{"an IPv4 address mapped into IPv6 is an IPv4 address", "", nil, "[::ffff:203.0.113.9]:5000", "203.0.113.9/32", ""},
		{"no header is believed unless it was named", "", http.Header{"X-Forwarded-For": {"198.51.100.7"}}, proxy, "10.0.0.1/32", ""},
		{"the named header counts", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"198.51.100.7"}}, proxy, "198.51.100.7/32", ""},
		{"its name may be written in any case", "x-real-ip", http.Header{"X-Real-Ip": {"198.51.100.7"}}, proxy, "198.51.100.7/32", ""},
		{"another header does not", "X-Real-Ip", http.Header{"X-Forwarded-For": {"198.51.100.7"}}, proxy, "10.0.0.1/32", ""},
		{"its rightmost entry counts, the others are the client's word", "X-Forwarded-For",
			http.Header{"X-Forwarded-For": {"192.0.2.66, 192.0.2.67 , 198.51.100.7"}}, proxy, "198.51.100.7/32", ""},
		{"also without spaces", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"192.0.2.66,198.51.100.7"}}, proxy, "198.51.100.7/32", ""},
		{"of several lines the last counts", "X-Forwarded-For",
			http.Header{"X-Forwarded-For": {"192.0.2.66, 192.0.2.67", "192.0.2.68, 198.51.100.7"}}, proxy, "198.51.100.7/32", ""},
		{"an entry may have a port", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"198.51.100.7:8080"}}, proxy, "198.51.100.7/32", ""},
		{"an IPv6 entry counts as its /64", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"192.0.2.66, 2001:db8:1:2::9"}}, proxy, "2001:db8:1:2::/64", ""},
		{"an IPv6 entry may have a port", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"[2001:db8:1:2::9]:8080"}}, proxy, "2001:db8:1:2::/64", ""},
		{"brackets do not need a port", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"[2001:db8:1:2::9]"}}, proxy, "2001:db8:1:2::/64", ""},
		{"a mapped entry is an IPv4 address", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"::ffff:198.51.100.7"}}, proxy, "198.51.100.7/32", ""},
		{"garbage falls back to the connection", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"192.0.2.66, unknown"}}, proxy, "10.0.0.1/32", "unknown"},
		{"so does the syntax of Forwarded", "Forwarded", http.Header{"Forwarded": {"for=192.0.2.66, for=198.51.100.7;proto=https"}},
			proxy, "10.0.0.1/32", "for=198.51.100.7;proto=https"},
		{"also with an IPv6 address", "Forwarded", http.Header{"Forwarded": {`for="[2001:db8:1:2::9]:8080"`}}, proxy, "10.0.0.1/32", `for="[2001:db8:1:2::9]:8080"`},
		{"and a name for an address", "X-Real-Ip", http.Header{"X-Real-Ip": {"localhost:80"}}, proxy, "10.0.0.1/32", "localhost:80"},
		{"so does an empty entry", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"192.0.2.66, "}}, proxy, "10.0.0.1/32", "(empty)"},
		{"and an empty last line", "X-Forwarded-For", http.Header{"X-Forwarded-For": {"192.0.2.66", ""}}, proxy, "10.0.0.1/32", "(empty)"},
		{"a missing header falls back too", "X-Forwarded-For", nil, proxy, "10.0.0.1/32", ""},
		{"callers that nothing tells apart share one bucket", "", nil, "@", "invalid Prefix", ""},
	} {
		t.Run(c.policy, func(t *testing.T) {
			if c.sent == nil {
				c.sent = http.Header{}
			}
			r := &http.Request{RemoteAddr: c.remote, Header: c.sent}
			if got, unread := clientNetwork(r, c.header); got.String() != c.want || unread != c.unread {
				t.Errorf("charged to %s, and %q cannot be read; want %s, %q", got, unread, c.want, c.unread)
			}
		})
	}
}

// TestAddressesRememberedAreBounded: and who goes round with more addresses than that does not escape.
func TestAddressesRememberedAreBounded(t *testing.T) {
	l := newLimiter(nil, limitsBan, testLog)
	const addresses = maxAddresses * 9 / 8
	refused, largest := 0, int64(0)
	for i := range addresses {
		stranger := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		for range addressQuota {
			l.address(stranger, limitsStart.time(), true)
		}
		remembered := l.addresses.size.Load()
		largest = max(largest, remembered)
	}
	for i := range addresses {
		stranger := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		if l.address(stranger, limitsStart.time(), true).refusal != "" {
			refused++
		}
	}
	if largest != 65_536 { // the README's number
		t.Errorf("up to %d addresses were remembered, want 65536", largest)
	}
	if refused < addresses/2 {
		t.Errorf("of %d addresses in turn that had used all their requests %d were refused", addresses, refused)
	}
}

func BenchmarkTake(b *testing.B) {
	l := newLimiter(nil, limitsBan, testLog)
	l.usages[1] = &usage{}
	a := &account{quota: quota{1 << 40, 1 << 40}, usageID: 1}
	now := limitsStart.time()
	b.ReportAllocs()
	for b.Loop() {
		if d, err := l.admit(a, now); err != nil || d.refusal != "" {
			b.Fatal(d, err)
		}
	}
}

func BenchmarkTakeParallelManyKeys(b *testing.B) {
	const keys = 10_000
	l := newLimiter(nil, limitsBan, testLog)
	all := make([]*account, keys)
	for i := range all {
		id := int64(i + 1)
		l.usages[id] = &usage{}
		all[i] = &account{quota: quota{1 << 40, 1 << 40}, usageID: id}
	}
	now := limitsStart.time()
	var begin atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := int(begin.Add(7919)); pb.Next(); i++ {
			if d, err := l.admit(all[i%keys], now); err != nil || d.refusal != "" {
				b.Error(d, err)
				return
			}
		}
	})
}

// TestAnAdmittedRequestShowsTheDayOfEquals: which resets later matters only to a refusal.
func TestAnAdmittedRequestShowsTheDayOfEquals(t *testing.T) {
	const now = instant(1_000_000_000_000)
	u := &usage{day: bucket{used: 1, ends: now + 10_000}}
	d := u.admit(now, quota{PerMinute: 1, PerDay: 2}, 0)
	if want := (level{limit: 2, remaining: 0, reset: now + 10_000}); d.refusal != "" || d.shown != want {
		t.Errorf("the request that empties both is told %q, %+v, want %+v", d.refusal, d.shown, want)
	}
	d = u.admit(now, quota{PerMinute: 1, PerDay: 2}, 0)
	if want := (level{limit: 1, remaining: 0, reset: now + 60_000}); d.refusal != CodeRateLimited || d.shown != want {
		t.Errorf("the next is told %q, %+v, want %+v", d.refusal, d.shown, want)
	}
}

// TestTheStatementsOfAFlushAreShort: a node of rqlite compresses a request, the numbers
// of all keys in it, that has a statement of 1,024 bytes.
func TestTheStatementsOfAFlushAreShort(t *testing.T) {
	for _, st := range (&increments{}).merge("service", limitsStart, limitsStart, nil) {
		if len(st.query) >= 1024 || strings.HasPrefix(st.query, "--") {
			t.Errorf("a statement has %d bytes: %s", len(st.query), st.query)
		}
	}
}
