package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

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
