package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestPlansHaveTheQuotasOfTheSpecification(t *testing.T) {
	want := []plan{
		{"free", quota{60, 1_000}},
		{"pro", quota{300, 10_000}},
		{"business", quota{1_000, 100_000}},
		{"enterprise", quota{}}, // set for each key
	}
	if !slices.Equal(plans, want) {
		t.Errorf("plans = %v, want %v", plans, want)
	}
}

// TestEveryDocumentShowsThePlans: a new plan is told wherever plans are listed.
func TestEveryDocumentShowsThePlans(t *testing.T) {
	for file, row := range map[string]string{
		"README.md":         "| `$name` | $minute | $day |",
		"docs/operating.md": "| `$name` | $minute | $day |",
		"web/index.html":    `<tr><th scope="row">$Name</th><td>$minute</td><td>$day</td></tr>`,
		"web/openapi.json":  "$Name $minute and $day",
	} {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, p := range plans {
			want := strings.NewReplacer(
				"$name", p.name,
				"$Name", strings.ToUpper(p.name[:1])+p.name[1:],
				"$minute", withCommas(p.PerMinute),
				"$day", withCommas(p.PerDay),
			).Replace(row)
			if p.quota == (quota{}) {
				want, _, _ = strings.Cut(want, "0")
				want += "its own"
			}
			if !strings.Contains(string(text), want) {
				t.Errorf("%s lacks the plan %s: %q", file, p.name, want)
			}
		}
	}
}

// withCommas writes 1000 as 1,000.
func withCommas(n int64) string {
	return regexp.MustCompile(`(\d)(\d{3})$`).ReplaceAllString(fmt.Sprint(n), "$1,$2")
}

func TestLimitWindows(t *testing.T) {
	free, tiny := quota{60, 1_000}, quota{2, 3}
	for _, c := range []struct {
		policy string
		quota  quota
		script string
	}{
		{"the worked example of limits.go holds", free, `
			10s: 1 admitted, minute 59 until 1m10s, day 999 until 24h0m10s
			40s: 59 admitted, minute 0 until 1m10s, day 940 until 24h0m10s
			40.5s: 1 rate_limited, minute 0 until 1m10s, day 940 until 24h0m10s
			41s: 1 rate_limited, minute 0 until 1m10s, day 940 until 24h0m10s
			70s: 1 admitted, minute 59 until 2m10s, day 939 until 24h0m10s`},
		{"a window begins with the first request after the last window, not with its end", tiny, `
			0s: 1 admitted, minute 1 until 1m0s, day 2 until 24h0m0s
			3h: 1 admitted, minute 1 until 3h1m0s, day 1 until 24h0m0s
			30h: 1 admitted, minute 1 until 30h1m0s, day 2 until 54h0m0s`},
		{"a bucket is full at its end and not a millisecond earlier", tiny, `
			0s: 2 admitted, minute 0 until 1m0s, day 1 until 24h0m0s
			59.999s: 1 rate_limited, minute 0 until 1m0s
			60s: 1 admitted, minute 1 until 2m0s, day 0 until 24h0m0s
			23h59m59.999s: 1 rate_limited, minute 2 until 23h59m59.999s, day 0 until 24h0m0s
			24h: 1 admitted, minute 1 until 24h1m0s, day 2 until 48h0m0s`},
		{"nothing trickles back while a window runs", tiny, `
			0s: 1 admitted, minute 1 until 1m0s
			59s: 1 admitted, minute 0 until 1m0s
			59.5s: 1 rate_limited, minute 0 until 1m0s`},
		{"up to twice the limit passes around the end of a window", quota{2, 9}, `
			0s: 1 admitted
			59s: 1 admitted, minute 0 until 1m0s
			60s: 2 admitted, minute 0 until 2m0s
			60s: 1 rate_limited`},
		{"what the minute refuses is not taken from the day", quota{1, 3}, `
			0s: 1 admitted, minute 0 until 1m0s, day 2 until 24h0m0s
			1s: 2 rate_limited, minute 0 until 1m0s, day 2 until 24h0m0s
			60s: 1 admitted, minute 0 until 2m0s, day 1 until 24h0m0s`},
		{"what the day refuses is not taken from the minute, and begins none", quota{9, 2}, `
			0s: 2 admitted, minute 7 until 1m0s, day 0 until 24h0m0s
			1s: 3 rate_limited, minute 7 until 1m0s, day 0 until 24h0m0s
			90s: 1 rate_limited, minute 9 until 1m30s, day 0 until 24h0m0s`},
		{"requests may arrive in another order than they read the clock", tiny, `
			10s: 1 admitted, minute 1 until 1m10s, day 2 until 24h0m10s
			9.999s: 1 admitted, minute 0 until 1m10s, day 1 until 24h0m10s
			9.998s: 1 rate_limited, minute 0 until 1m10s, day 1 until 24h0m10s`},
		{"a clock set back by up to a minute keeps the windows", tiny, `
			0s: 1 admitted, minute 1 until 1m0s
			-60s: 1 admitted, minute 0 until 1m0s, day 1 until 24h0m0s`},
		{"a clock set back further begins new windows, so that nobody waits for long", tiny, `
			0s: 2 admitted, minute 0 until 1m0s, day 1 until 24h0m0s
			-60.001s: 1 admitted, minute 1 until -1ms, day 2 until 23h58m59.999s`},
		{"a window that ends in its length and a minute runs on", quota{2, 2}, `
			0s: 2 admitted, minute 0 until 1m0s, day 0 until 24h0m0s
			23h: 1 rate_limited, minute 2 until 23h0m0s, day 0 until 24h0m0s
			-60s: 1 rate_limited, minute 0 until 1m0s, day 0 until 24h0m0s`},
	} {
		t.Run(c.policy, func(t *testing.T) { newLimitsOnFile(t, c.quota).play(c.script) })
	}
}

// TestOfTwoBucketsThatRefuseTheOneThatResetsLaterIsShown. The message names it too. If both reset at
// once, it is the day.
func TestOfTwoBucketsThatRefuseTheOneThatResetsLaterIsShown(t *testing.T) {
	for dayEnds, want := range map[string]string{
		"9h":      "0 until 9h0m0s: the limit of 1000 requests a day is used up; retry in 32400 s",
		"40.001s": "0 until 40.001s: the limit of 1000 requests a day is used up; retry in 41 s",
		"40s":     "0 until 40s: the limit of 1000 requests a day is used up; retry in 40 s",
		"39.999s": "0 until 40s: the limit of 60 requests a minute is used up; retry in 40 s",
	} {
		u := &usage{minute: usedUntil(60, "40s"), day: usedUntil(1000, dayEnds)}
		d := u.admit(&account{quota: quota{60, 1000}}, clock("0s"), tenMinutes)
		refusal, _ := errors.AsType[*Error](d.err())
		if got := levelText(d.level()) + ": " + refusal.Message; got != want {
			t.Errorf("with a day until %s, shown is %s, want %s", dayEnds, got, want)
		}
	}
}

func TestLimitHeaders(t *testing.T) {
	for _, c := range []struct {
		policy string
		when   string
		times  int
		before usage // of a key on the Free plan
		want   string
	}{
		{"a first request", "0s", 1, usage{}, `
RateLimit: "minute";r=59;t=60, "day";r=999;t=86400
RateLimit-Policy: "minute";q=60;w=60, "day";q=1000;w=86400
X-RateLimit-Limit: 60
X-RateLimit-Remaining: 59
X-RateLimit-Reset: 1800000060
`},
		{"resets and the seconds to them are rounded up", "0.75s", 1,
			usage{minute: usedUntil(9, "41.25s"), day: usedUntil(9, "100.75s")}, `
RateLimit: "minute";r=50;t=41, "day";r=990;t=100
RateLimit-Policy: "minute";q=60;w=60, "day";q=1000;w=86400
X-RateLimit-Limit: 60
X-RateLimit-Remaining: 50
X-RateLimit-Reset: 1800000042
`},
		{"refused by the minute", "0.5s", 61, usage{}, `
RateLimit: "minute";r=0;t=60, "day";r=940;t=86400
RateLimit-Policy: "minute";q=60;w=60, "day";q=1000;w=86400
Retry-After: 60
X-RateLimit-Limit: 60
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 1800000061
`},
		{"refused by the day, with a full minute that resets now", "0s", 1,
			usage{day: usedUntil(1000, "7200s")}, `
RateLimit: "minute";r=60;t=0, "day";r=0;t=7200
RateLimit-Policy: "minute";q=60;w=60, "day";q=1000;w=86400
Retry-After: 7200
X-RateLimit-Limit: 1000
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 1800007200
`},
		{"banned: the minute's limit, nothing left, and the end of the ban", "0s", 1,
			usage{day: usedUntil(5, "7200s"), bannedAt: 1, bannedUntil: clock("599s")}, `
RateLimit: "minute";r=0;t=599, "day";r=995;t=7200
RateLimit-Policy: "minute";q=60;w=60, "day";q=1000;w=86400
Retry-After: 599
X-RateLimit-Limit: 60
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 1800000599
`},
	} {
		l := limiterWith(&c.before)
		free := planQuota("free")
		a := &account{quota: free, usageID: 1, policy: free.policyHeader()}
		var d decision
		for range c.times {
			d, _ = l.charge(a, clock(c.when))
		}
		if got := "\n" + headersOf(d); got != c.want {
			t.Errorf("%s: the headers are%s, want%s", c.policy, got, c.want)
		}
	}
}

func TestKeysOfOneLineShareTheirUsage(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{4, 50}, 1)
		successor := *w.key
		d := newSecret(false).digest()
		_, err := rotateKey(t.Context(), w.store(), &successor, d, clock("1h"))
		must(t, err)
		other := apiKey{Plan: enterprisePlan, account: account{quota: w.key.quota}}
		mustInsertKey(t, w.store(), other)
		keys, err := readKeys(t.Context(), w.store(), testStart, "WHERE true")
		must(t, err)
		use := func(key *apiKey, script string) {
			w.key = key
			w.play(script)
		}
		use(keys[0], "0s: 2 admitted, minute 2 until")
		use(keys[1], "0s: 2 admitted, minute 0 until")
		use(keys[0], "0s: 1 rate_limited")
		use(keys[1], "0s: 1 rate_limited")
		use(keys[2], "0s: 1 admitted, minute 3 until") // a key of its own
	})
}

func TestOf200ParallelRequestsExactlyTheLimitIsAdmitted(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{100, 10_000}, 1)
		var admitted atomic.Int64
		var left sync.Map  // what the admitted requests were told
		var once sync.Once // one repeat says enough
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 200 {
			wg.Go(func() {
				<-start
				d := w.ask(w.limiter(), "0s")
				if d.refusal != "" {
					return
				}
				admitted.Add(1)
				if _, twice := left.LoadOrStore(d.minute.remaining, true); twice {
					once.Do(func() { t.Errorf("two requests were both told %d left", d.minute.remaining) })
				}
			})
		}
		close(start)
		wg.Wait()
		if n := admitted.Load(); n != 100 {
			t.Errorf("%d requests are admitted", n)
		}
		w.play("60s: 1 admitted, minute 99 until 2m0s, day 9899 until 24h0m0s")
	})
}

func BenchmarkTake(b *testing.B) {
	l := limiterWith(&usage{})
	a := &account{quota: quota{maxQuota, maxQuota}, usageID: 1}
	b.ReportAllocs()
	for b.Loop() {
		if d, known := l.charge(a, testStart); !known || d.refusal != "" {
			b.Fatal(d, known)
		}
	}
}

func BenchmarkTakeParallelManyKeys(b *testing.B) {
	const keys = 10_000
	l := newLimiter(tenMinutes, false)
	accounts := make([]*account, keys)
	for i := range accounts {
		id := int64(i + 1)
		l.usages[id] = &usage{}
		accounts[i] = &account{quota: quota{maxQuota, maxQuota}, usageID: id}
	}
	now := testStart
	var begin atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := int(begin.Add(7919)); pb.Next(); i++ {
			if d, known := l.charge(accounts[i%keys], now); !known || d.refusal != "" {
				b.Error(d, known)
				return
			}
		}
	})
}
