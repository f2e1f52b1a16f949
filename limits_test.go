package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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
		"README.md":        "| `$name` | $minute | $day |",
		"web/index.html":   `<tr><th scope="row">$Name</th><td>$minute</td><td>$day</td></tr>`,
		"web/openapi.json": "$Name $minute and $day",
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

// TestOfTwoBucketsThatRefuseTheOneThatResetsLaterIsShown. The message names it too. If both reset
// at once, it is the day.
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
					once.Do(func() {
						t.Errorf("two requests were both told %d left",
							d.minute.remaining)
					})
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

func TestAddressLimit(t *testing.T) {
	l := newLimiter(tenMinutes, false)
	one, two := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	for _, c := range []struct {
		policy string
		who    netip.Prefix
		when   string
		charge bool
		times  int
		want   string
	}{
		{"looking takes nothing", one, "0s", false, 5, "60 until 0s"},
		{"the first request begins a window of a minute", one, "1s", true, 1, "59 until 1m1s"},
		{"looking takes nothing from a running window", one, "2s", false, 5, "59 until 1m1s"},
		{"60 requests are admitted", one, "30s", true, 59, "0 until 1m1s"},
		{"more are refused, and never banned", one, "40s", true, 500, "0 until 1m1s, refused"},
		{"looking at an empty bucket is no refusal", one, "41s", false, 1, "0 until 1m1s"},
		{"another address has its own", two, "41s", true, 1, "59 until 1m41s"},
		{"refused until the end", one, "60.999s", true, 1, "0 until 1m1s, refused"},
		{"full at the end", one, "61s", true, 1, "59 until 2m1s"},
	} {
		var d decision
		for range c.times {
			d = l.address(c.who, clock(c.when).time(), c.charge)
		}
		got := levelText(d.level())
		if d.refusal == CodeRateLimited {
			got += ", refused"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.policy, got, c.want)
		}
	}
}

func TestHeadersOfAnAddress(t *testing.T) {
	l := newLimiter(tenMinutes, false)
	address := netip.MustParsePrefix("192.0.2.1/32")
	var d decision
	for range 61 {
		d = l.address(address, clock("0s").time(), true)
	}
	want := `RateLimit: "address";r=0;t=60
RateLimit-Policy: "address";q=60;w=60
Retry-After: 60
X-RateLimit-Limit: 60
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 1800000060
`
	if got := headersOf(d); got != want {
		t.Errorf("the headers are\n%s, want\n%s", got, want)
	}
}

func TestTheNetworkOfAConnection(t *testing.T) {
	for _, c := range []struct{ policy, remote, want string }{
		{"an IPv4 address counts alone", "203.0.113.9:5000", "203.0.113.9/32"},
		{"its port does not matter", "203.0.113.9:5001", "203.0.113.9/32"},
		{"of an IPv6 address the /64 counts", "[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"},
		{"a neighbour is the same client", "[2001:db8:1:2:ffff::1]:5000", "2001:db8:1:2::/64"},
		{"an address outside the /64 is another", "[2001:db8:1:3::1]:5000", "2001:db8:1:3::/64"},
		{"a zone does not matter", "[fe80::1%eth0]:5000", "fe80::/64"},
		{"a mapped address is an IPv4 address", "[::ffff:203.0.113.9]:5000", "203.0.113.9/32"},
		{"callers that nothing tells apart share one bucket", "@", "invalid Prefix"},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{}}
		r.Header.Set("X-Forwarded-For", "198.51.100.7") // not believed, because it is not named
		if got := clientNetwork(r, "").String(); got != c.want {
			t.Errorf("%s: charged to %s, want %s", c.policy, got, c.want)
		}
	}
}

func TestTheNetworkBehindAProxy(t *testing.T) {
	const proxy = "10.0.0.1/32"
	for _, c := range []struct {
		policy string
		lines  []string // of the header that is named
		want   string
	}{
		{"the header counts", []string{"198.51.100.7"}, "198.51.100.7/32"},
		{"its rightmost entry counts, the others are the client's word",
			[]string{"192.0.2.66, 192.0.2.67 , 198.51.100.7"}, "198.51.100.7/32"},
		{"spaces do not matter", []string{"192.0.2.66,198.51.100.7"}, "198.51.100.7/32"},
		{"of several lines the last counts",
			[]string{"192.0.2.66", "192.0.2.68, 198.51.100.7"}, "198.51.100.7/32"},
		{"an entry may have a port", []string{"198.51.100.7:8080"}, "198.51.100.7/32"},
		{"of IPv6 the /64 counts", []string{"2001:db8:1:2::9"}, "2001:db8:1:2::/64"},
		{"IPv6 may have a port", []string{"[2001:db8:1:2::9]:8080"}, "2001:db8:1:2::/64"},
		{"brackets need no port", []string{"[2001:db8:1:2::9]"}, "2001:db8:1:2::/64"},
		{"a mapped entry is IPv4", []string{"::ffff:198.51.100.7"}, "198.51.100.7/32"},
		{"garbage falls back to the proxy", []string{"192.0.2.66, unknown"}, proxy},
		{"so does the syntax of Forwarded", []string{"for=198.51.100.7"}, proxy},
		{"so does a name", []string{"localhost:80"}, proxy},
		{"so does an empty entry", []string{"192.0.2.66, "}, proxy},
		{"so does an empty last line", []string{"192.0.2.66", ""}, proxy},
		{"so does a header that is missing", nil, proxy},
	} {
		r := &http.Request{RemoteAddr: "10.0.0.1:443", Header: http.Header{
			"X-Real-Ip":       c.lines,
			"X-Forwarded-For": {"203.0.113.9"}, // not named
		}}
		if got := clientNetwork(r, "x-real-ip").String(); got != c.want {
			t.Errorf("%s: charged to %s, want %s", c.policy, got, c.want)
		}
	}
}

// TestAddressesRememberedAreBounded, and who goes round with more addresses than that does not
// escape.
func TestAddressesRememberedAreBounded(t *testing.T) {
	l := newLimiter(tenMinutes, false)
	const addresses = maxAddresses * 9 / 8
	ask := func(i int) decision {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		return l.address(netip.PrefixFrom(ip, 32), testStart.time(), true)
	}
	most := 0
	for i := range addresses {
		for range addressQuota {
			ask(i)
		}
		most = max(most, len(l.addresses))
	}
	refused := 0
	for i := range addresses {
		if ask(i).refusal != "" {
			refused++
		}
	}
	if most != 65_536 { // the README's number
		t.Errorf("up to %d addresses were remembered, want 65536", most)
	}
	if refused < addresses/2 {
		t.Errorf("of %d addresses that were spent %d are refused", addresses, refused)
	}
}

// TestARefusalBeforeTheClockWasSetBack makes the next one a strike only while its Retry-After lasts
// no longer than the window that refused, and a minute.
func TestARefusalBeforeTheClockWasSetBack(t *testing.T) {
	for _, c := range []struct {
		policy string
		quota  quota
		script string
	}{
		{"a minute, set back by a minute", quota{1, 9}, `
			0s: 1 admitted
			0s: 1 rate_limited
			-60s: 1 rate_limited, minute 0 until 1m0s
			-60s: 1 key_banned, minute 0 until 9m0s`},
		{"a minute, set back further", quota{1, 9}, `
			0s: 1 admitted
			0s: 1 rate_limited
			-60.001s: 1 admitted, minute 0 until -1ms
			-60.001s: 2 rate_limited
			-60.001s: 1 key_banned`},
		{"a day, set back by a minute", quota{1, 1}, `
			0s: 1 admitted
			5m: 1 rate_limited, minute 1 until 5m0s, day 0 until 24h0m0s
			-60s: 1 rate_limited, minute 0 until 1m0s, day 0 until 24h0m0s
			-60s: 1 key_banned`},
		{"a day, set back by 23 hours", quota{1, 1}, `
			0s: 1 admitted
			0s: 1 rate_limited, minute 0 until 1m0s, day 0 until 24h0m0s
			-23h: 1 admitted, minute 0 until -22h59m0s, day 0 until 1h0m0s
			-23h: 2 rate_limited, minute 0 until -22h59m0s, day 0 until 1h0m0s
			-23h: 1 key_banned`},
	} {
		t.Run(c.policy, func(t *testing.T) { newLimitsOnFile(t, c.quota).play(c.script) })
	}
}

func TestBans(t *testing.T) {
	for _, c := range []struct {
		policy string
		quota  quota
		banFor time.Duration
		script string
	}{
		{"a burst of twice the limit and one more does not ban; the next refusal does",
			quota{3, 100}, tenMinutes, `
			0s: 3 admitted
			0s: 1 rate_limited
			0s: 3 rate_limited, minute 0 until 1m0s, day 97 until 24h0m0s
			0s: 1 key_banned, minute 0 until 10m0s, day 97 until 24h0m0s`},
		{"on the Free plan that is the 61st strike", planQuota("free"), tenMinutes, `
			0s: 60 admitted
			0.5s: 1 rate_limited
			1s: 60 rate_limited
			59s: 1 key_banned, minute 0 until 10m59s`},
		{"requests during a ban take nothing and do not lengthen it",
			quota{1, 100}, tenMinutes, `
			0s: 1 admitted
			0s: 2 rate_limited
			0s: 1 key_banned, minute 0 until 10m0s, day 99 until 24h0m0s
			5m: 500 key_banned, minute 0 until 10m0s, day 99 until 24h0m0s
			9m59.999s: 500 key_banned, minute 0 until 10m0s, day 99 until 24h0m0s
			10m: 1 admitted, minute 0 until 11m0s, day 98 until 24h0m0s`},
		{"requests during a ban are no strikes either", quota{1, 1}, tenMinutes, `
			0s: 1 admitted
			0s: 2 rate_limited
			0s: 1 key_banned
			9m59.999s: 50 key_banned
			10m: 1 rate_limited, minute 1 until 10m0s, day 0 until 24h0m0s
			10m: 1 key_banned, minute 0 until 24h0m0s, day 0 until 24h0m0s
			19m59.999s: 1 key_banned, minute 0 until 24h0m0s
			20m: 1 rate_limited, minute 1 until 20m0s`},
		{"a refusal when Retry-After has passed is no strike, though others were faster",
			quota{1, 100}, tenMinutes, `
			0s: 1 admitted
			0s: 1 rate_limited
			60s: 1 admitted
			60s: 1 rate_limited
			60s: 1 rate_limited
			60s: 1 key_banned, minute 0 until 11m0s`},
		{"a refusal just before Retry-After has passed is a strike",
			quota{1, 100}, tenMinutes, `
			0s: 1 admitted
			0.5s: 1 rate_limited
			60s: 1 admitted
			60.499s: 1 rate_limited
			60.499s: 1 key_banned`},
		{"strikes are counted within one minute's window", quota{2, 100}, tenMinutes, `
			0s: 2 admitted
			1s: 1 rate_limited
			50s: 2 rate_limited
			60s: 2 admitted
			60s: 1 rate_limited
			61s: 2 rate_limited
			61s: 1 key_banned`},
		{"the minute's window counts while it is the day that refuses",
			quota{3, 3}, tenMinutes, `
			0s: 3 admitted
			50s: 1 rate_limited
			50s: 3 rate_limited
			60s: 3 rate_limited, minute 3 until 1m0s, day 0 until 24h0m0s
			61s: 1 key_banned`},
		{"a minute is counted also while the day refuses and the minute is full",
			quota{3, 1}, tenMinutes, `
			0s: 1 admitted
			2h: 1 rate_limited, minute 3 until 2h0m0s, day 0 until 24h0m0s
			2h0m10s: 3 rate_limited
			2h1m10s: 3 rate_limited
			2h2m9.999s: 1 key_banned`},
		{"a ban is as long as -ban-for says", quota{1, 100}, 90 * time.Second, `
			0s: 1 admitted
			0s: 2 rate_limited
			10s: 1 key_banned, minute 0 until 1m40s
			99.999s: 1 key_banned, minute 0 until 1m40s
			100s: 1 admitted`},
		{"after a ban strikes are counted anew, also within the same minute",
			quota{2, 100}, 10 * time.Second, `
			0s: 2 admitted
			0s: 3 rate_limited
			0s: 1 key_banned, minute 0 until 1m0s
			10s: 2 rate_limited
			10s: 1 key_banned, minute 0 until 1m0s
			19.999s: 1 key_banned, minute 0 until 1m0s
			20s: 1 rate_limited, minute 0 until 1m0s`},
		{"of a ban and the bucket that refuses, the one that ends later is reported",
			quota{2, 100}, 50 * time.Second, `
			0s: 2 admitted
			5s: 3 rate_limited
			5s: 1 key_banned, minute 0 until 1m0s, day 98 until 24h0m0s
			54.999s: 1 key_banned, minute 0 until 1m0s
			60s: 2 admitted
			80s: 3 rate_limited, minute 0 until 2m0s
			80s: 1 key_banned, minute 0 until 2m10s
			2m0.001s: 1 key_banned, minute 0 until 2m10s`},
		{"-ban-for 0 turns bans off", quota{1, 100}, 0, `
			0s: 1 admitted
			0s: 5000 rate_limited, minute 0 until 1m0s, day 99 until 24h0m0s
			60s: 1 admitted, minute 0 until 2m0s, day 98 until 24h0m0s`},
	} {
		t.Run(c.policy, func(t *testing.T) {
			w := newLimitsOnFile(t, c.quota)
			w.limiter().banFor = c.banFor
			w.play(c.script)
		})
	}
}

// banned is a script after which a key with 2 requests a minute is banned from 1s on.
const banned = `
	0s: 2 admitted
	1s: 3 rate_limited
	1s: 1 key_banned, minute 0 until 10m1s`

// wantShownBan checks until when the commands show the key as banned.
func (w *limitsWorld) wantShownBan(when string, until instant) {
	w.Helper()
	if shown := w.shown(when); shown.BannedUntil != until {
		w.Errorf("at %s the key is shown as banned until %v", when, shown.BannedUntil.time())
	}
}

// TestABanSurvivesARestartAndIsShown: it is durable before its first key_banned, and the restart is
// a kill that flushes nothing.
func TestABanSurvivesARestartAndIsShown(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{2, 50}, 1)
		w.play(banned)
		w.wantShownBan("2s", clock("601s"))
		w.play(`
			600.999s: 1 key_banned, minute 0 until 10m1s
			600s: restart
			600.999s: 1 key_banned, minute 0 until 10m1s
			601s: 1 admitted`)
		w.wantShownBan("601s", 0)
	})
}

func TestUnban(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{2, 50}, 1)
		w.play(banned)
		w.play(`
			2s: flush
			61s: unban
			61s: 1 admitted, minute 1 until 2m1s
			62s: restart
			62s: 2 admitted`) // the flush had not stored the first
		w.wantShownBan("61s", 0)
		w.play(`
			62s: 3 rate_limited
			62s: 1 key_banned, minute 0 until 11m2s
			62s: flush
			600s: 1 key_banned, minute 0 until 11m2s
			600s: restart
			600s: 1 key_banned, minute 0 until 11m2s`)
		w.wantShownBan("600s", clock("662s"))
		w.play(`
			62s: unban
			601s: 1 admitted`) // in the very millisecond in which the ban began
	})
}

func TestAnUnbanHoldsForASuccessorThatIsMadeAfterIt(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{2, 50}, 1)
		w.play(banned)
		w.play("60s: unban")
		token := newSecret(false)
		successor := *w.key
		_, err := rotateKey(t.Context(), w.store(), &successor, token.digest(), clock("1h"))
		must(t, err)
		w.key = mustAuthenticate(t, newKeyring(w.store(), false), token, clock("61s").time())
		w.play("62s: 1 admitted")
	})
}

// TestUnbanLiftsABanThatBeganInTheFuture, before the clock was set back.
func TestUnbanLiftsABanThatBeganInTheFuture(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{2, 50}, 1)
		w.play(`
			1h: 2 admitted
			1h: 3 rate_limited
			1h: 1 key_banned
			0s: unban
			1h1m: 1 admitted
			1h1m: restart
			1h1m: 1 admitted`)
		w.wantShownBan("1h1m", 0)
		if lifted := w.key.unbannedAt; lifted != clock("1h") {
			t.Errorf("bans until %v are lifted, want those until the ban", lifted.time())
		}
	})
}

func TestAnUnbanInTheFutureLiftsNoLaterBan(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{2, 50}, 1)
		w.play("1h: unban")
		w.play(banned)
		w.wantShownBan("2s", clock("601s"))
		w.play(`
			600s: 1 key_banned, minute 0 until 10m1s
			600s: restart
			600s: 1 key_banned, minute 0 until 10m1s
			2s: unban
			61s: 1 admitted`) // still in the past of the first
	})
}

// TestWithBanForZeroNoBanRuns: bans are off, also those that were made before.
func TestWithBanForZeroNoBanRuns(t *testing.T) {
	w := newLimitsOnFile(t, quota{2, 50})
	w.play(banned)
	w.play("2s: restart")
	w.limiter().banFor = 0
	w.play("61s: 1 admitted")
}

// TestWhileABanIsBeingStoredOthersAreRateLimited: nobody is told of a ban that is not stored yet,
// and nobody waits for it but the request that it begins with.
func TestWhileABanIsBeingStoredOthersAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLimitsOnFile(t, quota{2, 50})
		w.limiter().usages[1] = nearlyBanned()
		before := commitsOf(w.store())
		var first decision
		storeBan := func(context.Context) error {
			first = w.ask(w.limiter(), "1s")
			return nil
		}
		duringFlush(t, w.store(), storeBan, func() {
			w.play("2s: 2 rate_limited, minute 0 until 1m0s")
		})
		if first.refusal != CodeKeyBanned || !first.banBegins {
			t.Errorf("the request that the ban begins with: %+v", first)
		}
		w.play("2s: 1 key_banned, minute 0 until 10m1s")
		if n := commitsOf(w.store()) - before; n != 1 {
			t.Errorf("one ban is %d commits", n)
		}
	})
}

func TestABanThatCannotBeStoredIsTriedAgain(t *testing.T) {
	path := databasePath(t)
	w := newLimits(t, path, quota{2, 50}, 1)
	w.limiter().usages[1] = nearlyBanned()
	const full = `CREATE TRIGGER full BEFORE INSERT ON usage
		BEGIN SELECT RAISE(ABORT, 'the disk is full'); END`
	outside := otherProgram(t, path, full)
	d := w.ask(w.limiter(), "1s")
	if d.refusal != CodeRateLimited || d.banBegins || !errors.Is(d.banErr, errUnavailable) {
		t.Errorf("a ban that cannot be stored: %+v", d)
	}
	_, err := outside.Exec("DROP TRIGGER full")
	must(t, err)
	w.play("2s: 2 rate_limited") // strikes are counted anew
	d = w.ask(w.limiter(), "2s")
	if d.refusal != CodeKeyBanned || !d.banBegins || d.banErr != nil {
		t.Errorf("the next ban: %+v", d)
	}
	w.play(`
		3s: restart
		3s: 1 key_banned`)
}

// TestAFlushDoesNotOverwriteABan that another service stores after the batch was made and before it
// is written.
func TestAFlushDoesNotOverwriteABan(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{2, 50}, 2)
		w.play("0s: 1 admitted")
		banElsewhere := sync.OnceFunc(func() { w.play(strings.ReplaceAll(banned, "\t", "\tB ")) })
		check := func(st statement, _ []any) {
			if st.query == mergeDays {
				banElsewhere()
			}
		}
		w.store().engine = &watchedEngine{engine: w.store().engine, check: check}
		w.play(`
			1s: flush
			stored: minute 1 until
			2s: 1 key_banned, minute 0 until 10m1s`)
		w.wantShownBan("2s", clock("601s"))
	})
}

// TestALateBanReplacesNoOther: its service learns of the other one.
func TestALateBanReplacesNoOther(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{2, 50}, 2)
		for _, l := range w.services {
			l.usages[1] = nearlyBanned()
		}
		w.play(`
			B 5s: 1 key_banned, minute 0 until 10m5s
			A 1s: 1 key_banned, minute 0 until 10m5s`)
		w.wantShownBan("6s", clock("605s"))
	})
}
