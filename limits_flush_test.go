package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

func TestUsageSurvivesARestart(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{60, 1000}, 1)
		w.play(`
			0.123s: 7 admitted
			5s: flush
			6s: 1 admitted
			6s: flush
			7s: restart
			60.122s: 1 admitted, minute 51 until 1m0.123s, day 991 until 24h0m0.123s`)
		k := w.shown("10s")
		if k.UsedThisMinute != 8 || k.UsedToday != 8 || k.LastUsedAt != clock("0.123s") {
			t.Errorf("the key is shown as %+v", k)
		}
	})
}

func TestAFlushWritesOnlyWhatChanged(t *testing.T) {
	w := newLimitsOnFile(t, quota{2, 5})
	for _, c := range []struct {
		policy string
		script string
		want   int64
	}{
		{"it has just begun", "", 0},
		{"requests were admitted", "0s: 2 admitted", 1},
		{"nothing happened", "", 0},
		{"a request was refused, which counts in its day", "0s: 1 rate_limited", 1},
		{"the key was banned, which waits for no flush", "0s: 2 rate_limited\n0s: 1 key_banned", 2},
		{"many requests came during the ban", "0s: 1000 key_banned", 1},
		{"nothing happened since", "", 0},
	} {
		before := commitsOf(w.store())
		w.play(c.script)
		w.play("0s: flush")
		if got := commitsOf(w.store()) - before; got != c.want {
			t.Errorf("%s: %d commits, want %d", c.policy, got, c.want)
		}
	}
}

// TestEveryRequestIsCountedInItsDay once: admitted, or refused for whatever reason.
func TestEveryRequestIsCountedInItsDay(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{2, 5}, 1) // 0s is 8 o'clock on 15 January 2027
		for _, step := range []struct{ script, want string }{
			{"0s: 2 admitted", "2027-01-15: 2 admitted, 0 refused, 0 errors"},
			{"1s: 3 rate_limited", "2027-01-15: 2 admitted, 3 refused, 0 errors"},
			{"2s: 1 key_banned", "2027-01-15: 2 admitted, 4 refused, 0 errors"},
			{"70s: 4 key_banned", "2027-01-15: 2 admitted, 8 refused, 0 errors"},
			{"11m: 2 admitted", "2027-01-15: 4 admitted, 8 refused, 0 errors"},
			{"15h59m59.999s: 1 admitted", "2027-01-15: 5 admitted, 8 refused, 0 errors"},
			{"16h: 1 rate_limited", "2027-01-16: 0 admitted, 1 refused, 0 errors"},
		} {
			w.play(step.script)
			w.play("0s: flush")
			days := storedDays(t, w.store())
			if got := days[len(days)-1]; got != step.want {
				t.Errorf("%s: stored is %q, want %q", step.script, got, step.want)
			}
		}
		w.limiter().usages = map[int64]*usage{} // as if it was forgotten meanwhile
		w.limiter().countError(1, clock("15h59m59s"))
		w.limiter().countError(1, clock("24h"))
		w.play("24h: flush")
		want := []string{
			"2027-01-15: 5 admitted, 8 refused, 1 errors",
			"2027-01-16: 0 admitted, 1 refused, 1 errors",
		}
		if days := storedDays(t, w.store()); !slices.Equal(days, want) {
			t.Errorf("in the end %q is stored", days)
		}
	})
}

// useMany lets each of many usages have one request on the Free plan.
func useMany(t testing.TB, l *ledger, usages int64) {
	t.Helper()
	for id := range usages {
		l.usages[id+1] = &usage{}
		a := &account{quota: planQuota("free"), usageID: id + 1}
		_, err := l.admit(a, testStart.time())
		must(t, err)
	}
}

func TestAFailedFlushLosesNothing(t *testing.T) {
	const usages = 1200 // two transactions
	path := databasePath(t)
	w := newLimits(t, path, quota{60, 1000}, 1)
	useMany(t, w.limiter(), usages)
	const full = `CREATE TRIGGER full BEFORE INSERT ON usage WHEN NEW.id = 700
		BEGIN SELECT RAISE(ABORT, 'the disk is full'); END`
	outside := otherProgram(t, path, full)
	err := w.limiter().flush(t.Context(), testStart.time)
	if !errors.Is(err, errUnavailable) {
		t.Fatalf("the flush does not report that it failed: %v", err)
	}
	w.play("0s: 1 admitted")
	_, err = outside.Exec("DROP TRIGGER full")
	must(t, err)
	w.play("0s: flush")
	for query, want := range map[string]int64{
		"SELECT count(*) FROM usage":                                      usages,
		"SELECT sum(minute_used) FROM usage WHERE minute_used = day_used": usages + 1,
	} {
		if got := numberIn(t, outside, query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
}

// TestManyUsagesAreWrittenInTransactionsOfABoundedSize, each once.
func TestManyUsagesAreWrittenInTransactionsOfABoundedSize(t *testing.T) {
	const usages = 2*maxBatch + 500
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{60, 1000}, 2)
		for i, l := range w.services {
			useMany(t, l, usages)
			before := commitsOf(l.store)
			mustFlush(t, l)
			if n := commitsOf(l.store) - before; n != 3 {
				t.Errorf("service %d has written %d transactions", i, n)
			}
		}
		for query, want := range map[string]int64{
			"SELECT sum(admitted) FROM usage_days": 2 * usages,
			"SELECT sum(minute_used) FROM usage":   2 * usages,
			"SELECT max(day_used) FROM usage":      2,
		} {
			if got := readNumber(t, w.store(), query); got != want {
				t.Errorf("%s: %d, want %d", query, got, want)
			}
		}
	})
}

// TestAFlushEndsUnderSteadyTraffic: what comes while it writes is left for the next.
func TestAFlushEndsUnderSteadyTraffic(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{200, 1000}, 1)
		w.play("0s: 1 admitted")
		writes := 0
		w.disturb(w.limiter(), func() limitsFate {
			writes++
			if writes < 100 {
				w.play("0s: 1 admitted")
			}
			return arrives
		})
		w.play(`
			0s: flush
			stored: minute 1 until 1m0s
			A: minute 2 until 1m0s`)
		if writes != 1 {
			t.Errorf("one flush is %d transactions", writes)
		}
	})
}

// TestAWindowThatEndsDuringAFlushLosesNothing of what is admitted in the next one meanwhile.
func TestAWindowThatEndsDuringAFlushLosesNothing(t *testing.T) {
	for _, c := range []struct{ policy, begins, meanwhile, next, want string }{
		{"a minute", "59.9s", "60.5s", "61s", "minute 61 until 2m0.5s, day 62 until 24h0m0s"},
		{"a minute, and the next begins as it ends", "59.9s", "60s", "61s",
			"minute 61 until 2m0s, day 62 until 24h0m0s"},
		{"a day", "23h59m59.9s", "24h0m0.5s", "24h0m1s",
			"minute 61 until 24h1m0.5s, day 61 until 48h0m0.5s"},
		{"a day, and the next begins as it ends", "23h59m59.9s", "24h", "24h0m1s",
			"minute 61 until 24h1m0s, day 61 until 48h0m0s"},
	} {
		t.Run(c.policy, func(t *testing.T) {
			w := newLimitsOnFile(t, quota{100, 1000})
			admit := sync.OnceFunc(func() { w.play(c.meanwhile + ": 60 admitted") })
			w.play("0s: 1 admitted")
			w.disturb(w.limiter(), func() limitsFate {
				admit()
				return arrives
			})
			w.play(strings.NewReplacer(
				"BEGINS", c.begins, "NEXT", c.next, "WANT", c.want,
			).Replace(`
				BEGINS: flush
				NEXT: 1 admitted
				A: WANT
				NEXT: flush
				stored: WANT`))
		})
	}
}

// TestWhatIsCountedDuringAFlushIsKept, also where the flush reads nothing of the key back.
func TestWhatIsCountedDuringAFlushIsKept(t *testing.T) {
	w := newLimits(t, newCluster(t, 3).addresses(), quota{100, 1000}, 1)
	w.play(`
		0s: 1 admitted
		0.5s: flush`)
	admit := sync.OnceFunc(func() { w.play("1s: 60 admitted") })
	w.disturb(w.limiter(), func() limitsFate {
		admit()
		return arrives
	})
	w.play(`
		1s: flush
		1.1s: 1 admitted, minute 38 until 1m0s`)
}

// TestUsagesRememberedAreBounded: those that are stored are forgotten, but for keys that were asked
// to wait.
func TestUsagesRememberedAreBounded(t *testing.T) {
	const bound = 32_768 // "about 32,000" in the README
	w := newLimitsOnFile(t, quota{60, 1000})
	l := w.limiter()
	w.play("0s: 5 admitted")
	for id := range int64(bound - 1) {
		l.usages[-id-1] = &usage{}
	}
	w.play("0s: flush")
	if len(l.usages) != bound {
		t.Errorf("%d usages are remembered, want all while they are not too many", len(l.usages))
	}
	kept := map[int64]*usage{
		100: {retryAt: clock("9h"), retryOf: dayMillis},
		101: nearlyBanned(),
		102: {day: bucket{used: 1, unsent: 1, ends: clock("24h")}}, // not stored yet
	}
	maps.Copy(l.usages, kept)
	l.usages[103] = &usage{bannedAt: clock("-1s"), bannedUntil: clock("599s")} // stored
	// This refusal came before the clock was set back.
	l.usages[104] = &usage{retryAt: clock("24h1m0.001s"), retryOf: dayMillis}
	l.countError(1, testStart)
	w.play("0s: flush")
	if !maps.Equal(l.usages, kept) {
		t.Errorf("%d usages are remembered, want %d", len(l.usages), len(kept))
	}
	w.play("1s: 1 admitted, minute 54 until 1m0s, day 994 until 24h0m0s") // read again
}

func TestWhatChangesDuringAFlushIsWrittenByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLimitsOnFile(t, quota{60, 1000})
		w.play("0s: 1 admitted")
		for id := range int64(maxUsages) { // so many that this flush forgets them too
			w.limiter().usages[-id-1] = &usage{}
		}
		flush := func(ctx context.Context) error { return w.limiter().flush(ctx, testStart.time) }
		duringFlush(t, w.store(), flush, func() { w.play("0s: 1 admitted") })
		if n := len(w.limiter().usages); n != 1 {
			t.Errorf("%d usages are remembered, want the changed one", n)
		}
		w.play(`
			stored: minute 1 until 1m0s
			0s: 1 admitted, minute 57 until 1m0s
			0s: flush
			stored: minute 3 until 1m0s`)
	})
}

func TestAUsageThatIsReadTwiceLosesNothing(t *testing.T) {
	w := newLimitsOnFile(t, quota{60, 1000})
	w.play("0s: 1 admitted")
	must(t, w.limiter().recall(1)) // for a second request that came at once with the first
	w.play("0s: 1 admitted, minute 58 until 1m0s")
}

func TestAUsageThatCannotBeReadIsAnErrorAndNoNewUsage(t *testing.T) {
	db := databasePath(t)
	w := newLimits(t, db, quota{60, 1000}, 1)
	w.play(`
		0s: 1 admitted
		0s: flush
		0s: restart`)
	_ = w.store().Close()
	for range 2 {
		_, err := w.limiter().admit(&w.key.account, testStart.time())
		_, isReported := errors.AsType[*Error](err)
		if err == nil || isReported {
			t.Errorf("admit = %v, want the store's error", err)
		}
	}
	w.limiter().store = openDatabase(t, db)
	w.play("0s: 1 admitted, minute 58 until 1m0s")
}

// TestTheStatementsOfAFlushAreShort: a node of rqlite compresses a request, the numbers of all keys
// in it, that has a statement of 1,024 bytes.
func TestTheStatementsOfAFlushAreShort(t *testing.T) {
	used := &batch{counts: counts{deprecated: map[int64]int64{1: 1}}}
	for _, st := range used.statements("", testStart, nil) {
		if len(st.query) >= 1024 {
			t.Errorf("a statement has %d bytes: %s", len(st.query), st.query)
		}
	}
}
