package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestPlansHaveTheQuotasOfTheSpecification(t *testing.T) {
	want := []plan{
		{"free", quota{60, 1_000}},
		{"pro", quota{300, 10_000}},
		{"business", quota{1_000, 100_000}},
		{"enterprise", quota{}}, // set for each key
	}
	wantEqual(t, plans, want, "plans")
}

// TestEveryDocumentShowsThePlans: a new plan is told wherever plans are listed.
func TestEveryDocumentShowsThePlans(t *testing.T) {
	for file, row := range map[string]string{
		"README.md":        "| `$name` | $minute | $day |",
		"web/index.html":   `<tr><th scope="row">$Name</th><td>$minute</td><td>$day</td></tr>`,
		"web/openapi.json": "$Name $minute and $day",
	} {
		text := readText(t, file)
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
			wantPart(t, text, want, file)
		}
	}
}

// withCommas writes 1000 as 1,000.
func withCommas(n int64) string {
	return regexp.MustCompile(`(\d)(\d{3})$`).ReplaceAllString(fmt.Sprint(n), "$1,$2")
}

// playEach plays each script in a world of its own; on is engines, onFile or onCluster. A script
// says what becomes of a key's requests, and when. Of three at once, one is refused here:
//
//	quota 2 1000                                the limits of the key, of a minute and of a day
//	0s: 2 admitted                              two requests at the instant 0s
//	0s: 1 rate_limited, minute 0 until 1m0s     a third one, and how many it is told are left
//
// The other lines that there can be:
//
//	B 10s: 2 admitted, day 9 until 24h0m0s      at service B; without a name it is A
//	11s: 1 errors                               counts responses of 5xx
//	11s: flush, 1 transactions                  adds what was counted to the database
//	11s: restart                                after a kill, which flushes nothing
//	11s: forget                                 lets the ledger remember nothing
//	crowd                                       lets it remember as many others as it may
//	11s: ban-for 90s                            sets how long bans are
//	11s: per-day 5                              changes the key's limit
//	11s: nearly-banned                          lets the next refusal ban the key
//	11s: unban                                  as petstore key unban does
//	11s: rotate                                 goes on with a successor of the key
//	11s: shown, used 3 and 3                    what petstore key show says
//	stored: minute 3 until 1m10s                requests that were used, as the database has them
//	B: minute 3 until 1m10s                     and as a service has them
//	days: 2027-01-15: 2 admitted                what is stored of a day
//	meanwhile 12s: 1 admitted                   a line for when a service next asks its engine
func playEach(t *testing.T, on func(*testing.T, func(*testing.T, string)),
	scripts map[string]string) {
	failed := 0
	for policy, script := range scripts {
		var q quota
		first := strings.TrimSpace(script)
		must(t, errorOf(fmt.Sscanf(first, "quota %d %d", &q.PerMinute, &q.PerDay)))
		isPlayed := t.Run(policy, func(t *testing.T) {
			on(t, func(t *testing.T, db string) {
				newLimits(t, db, q).play(script)
			})
		})
		if !isPlayed {
			failed++
		}
		if failed == 3 {
			t.Log("the scripts after this one were not played")
			return
		}
	}
}

func onFile(t *testing.T, test func(*testing.T, string)) {
	test(t, databasePath(t))
}

func onCluster(t *testing.T, test func(*testing.T, string)) {
	test(t, newCluster(t, 3).addresses())
}

// limitsWorld is a key with a quota, and services that share its usage, called A, B and C. They
// have one ledger each, and remember nothing at first.
type limitsWorld struct {
	testing.TB
	db        string
	services  []*ledger
	key       *apiKey
	meanwhile string // a script for the next moment in which a service asks its engine
}

func newLimits(t testing.TB, db string, q quota) *limitsWorld {
	t.Helper()
	w := &limitsWorld{TB: t, db: db}
	w.service('A')
	mustInsertKey(t, w.store(), apiKey{Plan: enterprisePlan, account: account{quota: q}})
	w.key = w.shown("0s")
	return w
}

// service is the one with a name. It begins when it is first asked for.
func (w *limitsWorld) service(name byte) *ledger {
	w.Helper()
	for len(w.services) <= int(name-'A') {
		s := openDatabase(w, w.db)
		s.engine = &hookedEngine{
			engine:      s.engine,
			afterRead:   w.playMeanwhile,
			beforeWrite: w.playMeanwhile,
		}
		w.services = append(w.services, newLedger(s, tenMinutes))
	}
	return w.services[name-'A']
}

func (w *limitsWorld) playMeanwhile() {
	script := w.meanwhile
	if script == "" { // nothing is written beside parallel requests
		return
	}
	w.meanwhile = ""
	w.play(script)
}

func (w *limitsWorld) store() *store {
	return w.services[0].store
}

// shown is the newest key as the commands show it.
func (w *limitsWorld) shown(when string) *apiKey {
	w.Helper()
	keys, err := readKeys(w.Context(), w.store(), clock(when),
		"WHERE k.id = (SELECT max(id) FROM api_keys)")
	must(w, err)
	return keys[0]
}

// ask makes one request, which the store must not fail.
func (w *limitsWorld) ask(l *ledger, when string) decision {
	w.Helper()
	d, err := l.charge(&w.key.account, clock(when))
	must(w, err)
	if d.banBegins {
		must(w, errorOf(l.storeBan(&w.key.account, &d)))
	}
	return d
}

// play does what a script says: see playEach.
func (w *limitsWorld) play(script string) {
	w.Helper()
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if later, found := strings.CutPrefix(line, "meanwhile "); found {
			w.meanwhile += later + "\n"
			continue
		}
		if line == "crowd" {
			for id := range int64(maxEntries) {
				w.service('A').entries[-id-1] = &entry{}
			}
			continue
		}
		who, what, found := strings.Cut(line, ": ")
		if !found {
			continue
		}
		service, fields := w.service('A'), strings.Fields(who)
		if name := fields[0][0]; name >= 'A' && name <= 'C' {
			service, fields = w.service(name), fields[1:]
		}
		switch {
		case who == "stored":
			u, err := readUsage(w.Context(), w.store(), 1)
			must(w, err)
			w.want(line, usedText(*u), what)
		case who == "days":
			w.want(line, strings.Join(storedDays(w, w.store()), "\n"), what)
		case len(fields) == 0:
			w.want(line, usedText(service.entries[1].usage), what)
		default:
			w.step(line, service, fields[0], what)
		}
	}
}

// want checks that a line of a script says what was found.
func (w *limitsWorld) want(line, got, want string) {
	w.Helper()
	wantPart(w, got, want, line)
}

// step does what one line of a script says.
func (w *limitsWorld) step(line string, l *ledger, when, what string) {
	w.Helper()
	action, want, _ := strings.Cut(what, ", ")
	verb, argument, _ := strings.Cut(action, " ")
	switch verb {
	case "flush":
		before := commitsOf(l.store)
		must(w, l.flush(w.Context(), clock(when).time, false))
		w.want(line, fmt.Sprintf("%d transactions", commitsOf(l.store)-before), want)
	case "restart":
		w.services[slices.Index(w.services, l)] = newLedger(l.store, l.banFor)
	case "forget":
		clear(l.entries)
	case "ban-for":
		l.banFor = time.Duration(clock(argument)-testStart) * time.Millisecond
	case "per-day":
		must(w, errorOf(fmt.Sscan(argument, &w.key.PerDay)))
	case "nearly-banned":
		l.entries[1] = &entry{usage: nearlyBanned()}
	case "unban":
		must(w, unbanKey(w.Context(), w.store(), 1, clock(when)))
		w.key = w.shown(when)
	case "rotate":
		d := newSecret(false).digest()
		must(w, errorOf(rotateKey(w.Context(), w.store(), w.key, w.key, d, clock("48h"))))
		w.key = w.shown(when)
	case "shown":
		w.want(line, shownText(w.shown(when)), want)
	default:
		w.requests(line, l, when, action, want)
	}
}

// requests makes what a line of a script says, such as "58 admitted".
func (w *limitsWorld) requests(line string, l *ledger, when, action, want string) {
	w.Helper()
	var times int
	var outcome string
	must(w, errorOf(fmt.Sscan(action, &times, &outcome)))
	if outcome == "errors" {
		for range times {
			l.countError(1, clock(when))
		}
		return
	}
	var d decision
	for i := range times {
		d = w.ask(l, when)
		if got := cmp.Or(string(d.refusal), "admitted"); got != outcome {
			w.Fatalf("%s: request %d is %s", line, i+1, got)
		}
	}
	w.want(line, fmt.Sprintf("minute %s, day %s", levelText(d.minute), levelText(d.day)), want)
}

// usedText reads "minute 3 until 1m10s, day 3 until 24h0m10s": the requests that were used.
func usedText(u usage) string {
	text := func(b bucket) string {
		return levelText(level{remaining: b.used, reset: b.ends})
	}
	return fmt.Sprintf("minute %s, day %s", text(u.minute), text(u.day))
}

// shownText is what the commands show of a key.
func shownText(k *apiKey) string {
	text := fmt.Sprintf("used %d and %d, last at %v", k.UsedThisMinute, k.UsedToday,
		offset(k.LastUsedAt))
	if k.BannedUntil == 0 {
		text += ", not banned"
	} else {
		text += fmt.Sprint(", banned until ", offset(k.BannedUntil))
	}
	return text + fmt.Sprint(", bans until ", offset(k.unbannedAt), " are lifted")
}

// offset is an instant on the clock of these tests.
func offset(at instant) time.Duration {
	return time.Duration(at-testStart) * time.Millisecond
}

// levelText reads "59 until 1m10s": the requests that remain, and when the bucket is full.
func levelText(l level) string {
	return fmt.Sprintf("%d until %v", l.remaining, offset(l.reset))
}

// usedUntil is a bucket of which some requests are used.
func usedUntil(n int64, ends string) bucket {
	return bucket{used: n, ends: clock(ends)}
}

// nearlyBanned is a usage of a key with 2 requests a minute whose next refusal bans it.
func nearlyBanned() usage {
	return usage{
		minute:      usedUntil(2, "60s"),
		day:         usedUntil(2, "24h"),
		strikes:     usedUntil(2, "60s"),
		retryAt:     clock("60s"),
		retryLength: minuteMillis,
	}
}

func TestLimitWindows(t *testing.T) {
	playEach(t, onFile, map[string]string{
		"the worked example of limits.go holds": `
			quota 60 1000
			10s: 1 admitted, minute 59 until 1m10s, day 999 until 24h0m10s
			40s: 59 admitted, minute 0 until 1m10s, day 940 until 24h0m10s
			40.5s: 1 rate_limited, minute 0 until 1m10s, day 940 until 24h0m10s
			41s: 1 rate_limited, minute 0 until 1m10s, day 940 until 24h0m10s
			70s: 1 admitted, minute 59 until 2m10s, day 939 until 24h0m10s`,
		"a window begins with the first request after the last window, not with its end": `
			quota 2 3
			0s: 1 admitted, minute 1 until 1m0s, day 2 until 24h0m0s
			3h: 1 admitted, minute 1 until 3h1m0s, day 1 until 24h0m0s
			30h: 1 admitted, minute 1 until 30h1m0s, day 2 until 54h0m0s`,
		"a bucket is full at its end and not a millisecond earlier": `
			quota 2 3
			0s: 2 admitted, minute 0 until 1m0s, day 1 until 24h0m0s
			59.999s: 1 rate_limited, minute 0 until 1m0s
			60s: 1 admitted, minute 1 until 2m0s, day 0 until 24h0m0s
			23h59m59.999s: 1 rate_limited, minute 2 until 23h59m59.999s, day 0 until 24h0m0s
			24h: 1 admitted, minute 1 until 24h1m0s, day 2 until 48h0m0s`,
		"nothing trickles back while a window runs": `
			quota 2 3
			0s: 1 admitted, minute 1 until 1m0s
			59s: 1 admitted, minute 0 until 1m0s
			59.5s: 1 rate_limited, minute 0 until 1m0s`,
		"up to twice the limit passes around the end of a window": `
			quota 2 9
			0s: 1 admitted
			59s: 1 admitted, minute 0 until 1m0s
			60s: 2 admitted, minute 0 until 2m0s
			60s: 1 rate_limited`,
		"what the minute refuses is not taken from the day": `
			quota 1 3
			0s: 1 admitted, minute 0 until 1m0s, day 2 until 24h0m0s
			1s: 2 rate_limited, minute 0 until 1m0s, day 2 until 24h0m0s
			60s: 1 admitted, minute 0 until 2m0s, day 1 until 24h0m0s`,
		"what the day refuses is not taken from the minute, and begins none": `
			quota 9 2
			0s: 2 admitted, minute 7 until 1m0s, day 0 until 24h0m0s
			1s: 3 rate_limited, minute 7 until 1m0s, day 0 until 24h0m0s
			90s: 1 rate_limited, minute 9 until 1m30s, day 0 until 24h0m0s`,
		"requests may arrive in another order than they read the clock": `
			quota 2 3
			10s: 1 admitted, minute 1 until 1m10s, day 2 until 24h0m10s
			9.999s: 1 admitted, minute 0 until 1m10s, day 1 until 24h0m10s
			9.998s: 1 rate_limited, minute 0 until 1m10s, day 1 until 24h0m10s`,
		"a clock set back by up to a minute keeps the windows": `
			quota 2 3
			0s: 1 admitted, minute 1 until 1m0s
			-60s: 1 admitted, minute 0 until 1m0s, day 1 until 24h0m0s`,
		"a clock set back further begins new windows, so that nobody waits for long": `
			quota 2 3
			0s: 2 admitted, minute 0 until 1m0s, day 1 until 24h0m0s
			-60.001s: 1 admitted, minute 1 until -1ms, day 2 until 23h58m59.999s`,
		"a window that ends in its length and a minute runs on": `
			quota 2 2
			0s: 2 admitted, minute 0 until 1m0s, day 0 until 24h0m0s
			23h: 1 rate_limited, minute 2 until 23h0m0s, day 0 until 24h0m0s
			-60s: 1 rate_limited, minute 0 until 1m0s, day 0 until 24h0m0s`,
	})
}

// TestOfTwoBucketsThatRefuseTheOneThatResetsLaterIsShown. The message names it too. If both reset
// at once, it is the day.
func TestOfTwoBucketsThatRefuseTheOneThatResetsLaterIsShown(t *testing.T) {
	for _, c := range []struct {
		used    int64 // of the minute, which ends at 40 s
		dayEnds string
		want    string
	}{
		{60, "9h", "0 until 9h0m0s: the limit of 1000 requests a day is used up; retry in 32400"},
		{60, "40.1s", "0 until 40.1s: the limit of 1000 requests a day is used up; retry in 41"},
		{60, "40s", "0 until 40s: the limit of 1000 requests a day is used up; retry in 40"},
		{60, "39.999s", "0 until 40s: the limit of 60 requests a minute is used up; retry in 40"},
		{59, "10s", "0 until 10s: the limit of 1000 requests a day is used up; retry in 10"},
	} {
		u := &usage{minute: usedUntil(c.used, "40s"), day: usedUntil(1000, c.dayEnds)}
		d := u.admit(&account{quota: quota{60, 1000}}, clock("0s"), true)
		refusal, _ := errors.AsType[*Error](d.err())
		shown := levelText(d.described()) + ": " + refusal.Message
		wantEqual(t, shown, c.want+" s", "what is shown of ", c)
	}
}

// TestOfParallelRequestsExactlyTheLimitIsAdmitted, and each is told what the others have left. They
// are so many that without the ledger's lock some are lost, and no race detector has to look.
func TestOfParallelRequestsExactlyTheLimitIsAdmitted(t *testing.T) {
	const callers, limit = 8, 200_000
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(callers))
	w := newLimits(t, databasePath(t), quota{limit, 10 * limit})
	l := w.service('A')
	var told [callers][]int64
	var wg sync.WaitGroup
	for i := range told {
		wg.Go(func() {
			for range 2 * limit / callers {
				d, err := l.charge(&w.key.account, testStart)
				must(t, err)
				if d.refusal == "" {
					told[i] = append(told[i], d.minute.remaining)
				}
			}
		})
	}
	wg.Wait()
	left := slices.Sorted(slices.Values(slices.Concat(told[:]...)))
	if len(left) != limit || left[0] != 0 || len(slices.Compact(left)) != limit {
		t.Errorf("%d requests are admitted, of a limit of %d", len(left), limit)
	}
	w.play("60s: 1 admitted, minute 199999 until 2m0s, day 1799999 until 24h0m0s")
}

// TestTheNetworkOfACaller: a row has the address of the connection, or the lines of the header that
// is named, with bars between them, and what is charged.
func TestTheNetworkOfACaller(t *testing.T) {
	const proxy = "10.0.0.1:443"
	network := func(remote, named string, lines ...string) string {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{}}
		r.Header.Set("X-Forwarded-For", "198.51.100.9") // not believed, because it is not named
		if lines != nil {
			r.Header["X-Real-Ip"] = lines
		}
		return clientNetwork(r, named).String()
	}
	for row, want := range rowsOf(t, `
		an IPv4 address counts alone: 203.0.113.9:5000 => 203.0.113.9/32
		its port does not matter: 203.0.113.9:5001 => 203.0.113.9/32
		of IPv6 the /64 counts: [2001:db8:1:2:3:4:5:6]:5000 => 2001:db8:1:2::/64
		a neighbour is the same client: [2001:db8:1:2:ffff::1]:5000 => 2001:db8:1:2::/64
		what is outside the /64 is another: [2001:db8:1:3::1]:5000 => 2001:db8:1:3::/64
		a zone does not matter: [fe80::1%eth0]:5000 => fe80::/64
		a mapped address is IPv4: [::ffff:203.0.113.9]:5000 => 203.0.113.9/32
		callers that nothing tells apart share one bucket: @ => invalid Prefix`) {
		policy, remote, _ := strings.Cut(row, ": ")
		wantEqual(t, network(remote, "", ""), want, policy, ": the network")
	}
	for row, want := range rowsOf(t, `
		the header counts: 198.51.100.7 => 198.51.100.7/32
		its rightmost entry counts: 192.0.2.66, 192.0.2.67 , 198.51.100.7 => 198.51.100.7/32
		spaces do not matter: 192.0.2.66,198.51.100.7 => 198.51.100.7/32
		of lines the last counts: 192.0.2.66|192.0.2.68, 198.51.100.7 => 198.51.100.7/32
		an entry may have a port: 198.51.100.7:8080 => 198.51.100.7/32
		of an IPv6 entry the /64 counts: 2001:db8:1:2::9 => 2001:db8:1:2::/64
		IPv6 may have a port: [2001:db8:1:2::9]:8080 => 2001:db8:1:2::/64
		brackets need no port: [2001:db8:1:2::9] => 2001:db8:1:2::/64
		a mapped entry is IPv4: ::ffff:198.51.100.7 => 198.51.100.7/32
		garbage falls back to the proxy: 192.0.2.66, unknown => 10.0.0.1/32
		so does the syntax of Forwarded: for=198.51.100.7 => 10.0.0.1/32
		so does a name: localhost:80 => 10.0.0.1/32
		so does an empty entry: 192.0.2.66,  => 10.0.0.1/32
		so does an empty last line: 192.0.2.66| => 10.0.0.1/32`) {
		policy, lines, _ := strings.Cut(row, ": ")
		got := network(proxy, "x-real-ip", strings.Split(lines, "|")...)
		wantEqual(t, got, want, policy, ": the network")
	}
	wantEqual(t, network(proxy, "x-real-ip"), "10.0.0.1/32", "without the header, the network")
}

// TestAddressesRememberedAreBounded, and who goes round with more addresses than that does not
// escape.
func TestAddressesRememberedAreBounded(t *testing.T) {
	a := &addresses{buckets: map[netip.Prefix]bucket{}}
	const addresses = maxAddresses * 9 / 8
	prefix := func(i int) netip.Prefix {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		return netip.PrefixFrom(ip, 32)
	}
	ask := func(i int) decision {
		return a.admit(prefix(i), testStart, true)
	}
	most := 0
	for i := range addresses {
		ask(i)
		a.buckets[prefix(i)] = bucket{used: addressQuota, ends: clock("60s")}
		most = max(most, len(a.buckets))
	}
	refused := 0
	for i := range addresses {
		if ask(i).refusal != "" {
			refused++
		}
	}
	wantEqual(t, most, 65_536, "how many addresses were remembered") // the README's number
	if refused < addresses/2 {
		t.Errorf("of %d addresses that were spent %d are refused", addresses, refused)
	}
}

func TestBans(t *testing.T) {
	playEach(t, onFile, map[string]string{
		"a burst of twice the limit and one more does not ban; the next refusal does": `
			quota 3 100
			0s: 3 admitted
			0s: 1 rate_limited
			0s: 3 rate_limited, minute 0 until 1m0s, day 97 until 24h0m0s
			0s: 1 key_banned, minute 0 until 10m0s, day 97 until 24h0m0s`,
		"on the Free plan that is the 61st strike": `
			quota 60 1000
			0s: 60 admitted
			0.5s: 1 rate_limited
			1s: 60 rate_limited
			59s: 1 key_banned, minute 0 until 10m59s`,
		"requests during a ban take nothing and do not lengthen it": `
			quota 1 100
			0s: 1 admitted
			0s: 2 rate_limited
			0s: 1 key_banned, minute 0 until 10m0s, day 99 until 24h0m0s
			5m: 500 key_banned, minute 0 until 10m0s, day 99 until 24h0m0s
			9m59.999s: 500 key_banned, minute 0 until 10m0s, day 99 until 24h0m0s
			10m: 1 admitted, minute 0 until 11m0s, day 98 until 24h0m0s`,
		"requests during a ban are no strikes either": `
			quota 1 1
			0s: 1 admitted
			0s: 2 rate_limited
			0s: 1 key_banned
			9m59.999s: 50 key_banned
			10m: 1 rate_limited, minute 1 until 10m0s, day 0 until 24h0m0s
			10m: 1 key_banned, minute 0 until 24h0m0s, day 0 until 24h0m0s
			19m59.999s: 1 key_banned, minute 0 until 24h0m0s
			20m: 1 rate_limited, minute 1 until 20m0s`,
		"a refusal when Retry-After has passed is no strike, though others were faster": `
			quota 1 100
			0s: 1 admitted
			0s: 1 rate_limited
			60s: 1 admitted
			60s: 1 rate_limited
			60s: 1 rate_limited
			60s: 1 key_banned, minute 0 until 11m0s`,
		"a refusal just before Retry-After has passed is a strike": `
			quota 1 100
			0s: 1 admitted
			0.5s: 1 rate_limited
			60s: 1 admitted
			60.499s: 1 rate_limited
			60.499s: 1 key_banned`,
		"strikes are counted within one minute's window": `
			quota 2 100
			0s: 2 admitted
			1s: 1 rate_limited
			50s: 2 rate_limited
			60s: 2 admitted
			60s: 1 rate_limited
			61s: 2 rate_limited
			61s: 1 key_banned`,
		"the minute's window counts while it is the day that refuses": `
			quota 3 3
			0s: 3 admitted
			50s: 1 rate_limited
			50s: 3 rate_limited
			60s: 3 rate_limited, minute 3 until 1m0s, day 0 until 24h0m0s
			61s: 1 key_banned`,
		"a minute is counted also while the day refuses and the minute is full": `
			quota 3 1
			0s: 1 admitted
			2h: 1 rate_limited, minute 3 until 2h0m0s, day 0 until 24h0m0s
			2h0m10s: 3 rate_limited
			2h1m10s: 3 rate_limited
			2h2m9.999s: 1 key_banned`,
		"of two refusals, the one that asks to wait longer counts": `
			quota 2 1000
			0s: 2 admitted
			1s: 1 rate_limited
			30s: per-day 2
			30s: 1 rate_limited
			61s: 2 rate_limited
			61s: 1 key_banned`,
		"so it does if it came first": `
			quota 2 2
			0s: 2 admitted
			1s: 1 rate_limited
			2s: per-day 1000
			2s: 1 rate_limited
			61s: 2 admitted
			62s: 2 rate_limited
			62s: 1 key_banned`,
		"a ban is as long as -ban-for says": `
			quota 1 100
			0s: ban-for 90s
			0s: 1 admitted
			0s: 2 rate_limited
			10s: 1 key_banned, minute 0 until 1m40s
			99.999s: 1 key_banned, minute 0 until 1m40s
			100s: 1 admitted`,
		"after a ban strikes are counted anew, also within the same minute": `
			quota 2 100
			0s: ban-for 10s
			0s: 2 admitted
			0s: 3 rate_limited
			0s: 1 key_banned, minute 0 until 1m0s
			10s: 2 rate_limited
			10s: 1 key_banned, minute 0 until 1m0s
			19.999s: 1 key_banned, minute 0 until 1m0s
			20s: 1 rate_limited, minute 0 until 1m0s`,
		"of a ban and the bucket that refuses, the one that ends later is reported": `
			quota 2 100
			0s: ban-for 50s
			0s: 2 admitted
			5s: 3 rate_limited
			5s: 1 key_banned, minute 0 until 1m0s, day 98 until 24h0m0s
			54.999s: 1 key_banned, minute 0 until 1m0s
			60s: 2 admitted
			80s: 3 rate_limited, minute 0 until 2m0s
			80s: 1 key_banned, minute 0 until 2m10s
			2m0.001s: 1 key_banned, minute 0 until 2m10s`,
		"-ban-for 0 turns bans off": `
			quota 1 100
			0s: ban-for 0s
			0s: 1 admitted
			0s: 5000 rate_limited, minute 0 until 1m0s, day 99 until 24h0m0s
			60s: 1 admitted, minute 0 until 2m0s, day 98 until 24h0m0s`,
		"with -ban-for 0 a ban that was made before does not run either": "quota 2 50" + banned + `
			2s: ban-for 0s
			61s: 1 admitted`,
		// Before the clock was set back: a refusal makes the next one a strike only while its
		// Retry-After lasts no longer than the window that refused, and a minute.
		"a refusal of the minute, set back by a minute": `
			quota 1 9
			0s: 1 admitted
			0s: 1 rate_limited
			-60s: 1 rate_limited, minute 0 until 1m0s
			-60s: 1 key_banned, minute 0 until 9m0s`,
		"a refusal of the minute, set back further": `
			quota 1 9
			0s: 1 admitted
			0s: 1 rate_limited
			-60.001s: 1 admitted, minute 0 until -1ms
			-60.001s: 2 rate_limited
			-60.001s: 1 key_banned`,
		"a refusal of the day, set back by a minute": `
			quota 1 1
			0s: 1 admitted
			5m: 1 rate_limited, minute 1 until 5m0s, day 0 until 24h0m0s
			-60s: 1 rate_limited, minute 0 until 1m0s, day 0 until 24h0m0s
			-60s: 1 key_banned`,
		"a refusal of the day, set back by 23 hours": `
			quota 1 1
			0s: 1 admitted
			0s: 1 rate_limited, minute 0 until 1m0s, day 0 until 24h0m0s
			-23h: 1 admitted, minute 0 until -22h59m0s, day 0 until 1h0m0s
			-23h: 2 rate_limited, minute 0 until -22h59m0s, day 0 until 1h0m0s
			-23h: 1 key_banned`,
	})
}

// banned is a script after which a key with 2 requests a minute is banned from 1s on.
const banned = `
	0s: 2 admitted
	1s: 3 rate_limited
	1s: 1 key_banned, minute 0 until 10m1s`

// TestBansAreStored, and lifted, for every service and every key of a line.
func TestBansAreStored(t *testing.T) {
	playEach(t, engines, map[string]string{
		"a ban is durable before its first key_banned, also in a kill": "quota 2 50" + banned + `
			2s: shown, banned until 10m1s
			600.999s: 1 key_banned, minute 0 until 10m1s
			600s: restart
			600.999s: 1 key_banned, minute 0 until 10m1s
			601s: 1 admitted
			601s: shown, not banned`,
		"an unban lifts a ban, and not the next one": "quota 2 50" + banned + `
			2s: flush
			61s: unban
			61s: 1 admitted, minute 1 until 2m1s
			62s: restart
			62s: 2 admitted
			61s: shown, not banned
			62s: 3 rate_limited
			62s: 1 key_banned, minute 0 until 11m2s
			62s: flush
			600s: 1 key_banned, minute 0 until 11m2s
			600s: restart
			600s: 1 key_banned, minute 0 until 11m2s
			600s: shown, banned until 11m2s
			62s: unban
			601s: 1 admitted`, // in the very millisecond in which the ban began
		"an unban holds for a successor that is made after it": "quota 2 50" + banned + `
			60s: unban
			60s: rotate
			62s: 1 admitted`,
		"an unban lifts a ban that began before the clock was set back": `
			quota 2 50
			1h: 2 admitted
			1h: 3 rate_limited
			1h: 1 key_banned
			0s: unban
			1h1m: 1 admitted
			1h1m: restart
			1h1m: 1 admitted
			1h1m: shown, not banned, bans until 1h0m0s are lifted`,
		"an unban in the future lifts no later ban": `
			quota 2 50
			1h: unban` + banned + `
			2s: shown, banned until 10m1s
			600s: 1 key_banned, minute 0 until 10m1s
			600s: restart
			600s: 1 key_banned, minute 0 until 10m1s
			2s: unban
			61s: 1 admitted`, // still in the past of the first
		"a flush does not overwrite the ban of another service": `
			quota 2 50
			0s: 1 admitted
			meanwhile B 0s: 2 admitted
			meanwhile B 1s: 3 rate_limited
			meanwhile B 1s: 1 key_banned
			1s: flush
			stored: minute 1 until
			2s: 1 key_banned, minute 0 until 10m1s
			2s: shown, banned until 10m1s`,
		"a late ban replaces no other, of which its service learns": `
			quota 2 50
			A 0s: nearly-banned
			B 0s: nearly-banned
			B 5s: 1 key_banned, minute 0 until 10m5s
			A 1s: 1 key_banned, minute 0 until 10m5s
			6s: shown, banned until 10m5s`,
		"nobody waits for a ban that is being stored, nor is told of it, but who began it": `
			quota 2 50
			0s: nearly-banned
			meanwhile 2s: 2 rate_limited, minute 0 until 1m0s
			1s: 1 key_banned
			2s: 1 key_banned, minute 0 until 10m1s`,
		"the keys of one line share their usage": `
			quota 4 50
			0s: 2 admitted, minute 2 until
			0s: rotate
			0s: 2 admitted, minute 0 until
			0s: 1 rate_limited`,
	})
}
