package main

import (
	"context"
	"testing"
)

// TestServicesThatShareAUsageConverge: the stored window wins, wherever it began.
func TestServicesThatShareAUsageConverge(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		newLimits(t, db, quota{100, 1000}, 2).play(`
			B 0s: 2 admitted
			A 10s: 3 admitted
			A 11s: flush
			stored: minute 3 until 1m10s, day 3 until 24h0m10s
			B: minute 2 until 1m0s, day 2 until 24h0m0s
			B 12s: flush
			stored: minute 5 until 1m10s, day 5 until 24h0m10s
			B: minute 5 until 1m10s, day 5 until 24h0m10s
			A: minute 3 until 1m10s, day 3 until 24h0m10s
			A 13s: 1 admitted
			A 13s: flush
			A: minute 6 until 1m10s, day 6 until 24h0m10s
			B 14s: 1 admitted
			B 14s: flush
			A 15s: flush
			B 15s: flush
			stored: minute 7 until 1m10s, day 7 until 24h0m10s
			B: minute 7 until 1m10s, day 7 until 24h0m10s`)
	})
}

// TestAServiceThatWasNotAskedKnowsWhatOthersHaveCounted, also if it has met the key before.
func TestAServiceThatWasNotAskedKnowsWhatOthersHaveCounted(t *testing.T) {
	newLimits(t, newCluster(t, 3).addresses(), quota{100, 1000}, 2).play(`
		A 0s: 1 admitted
		B 0s: 1 admitted
		A 0.5s: flush
		B 0.5s: flush
		A 0.9s: 98 admitted
		A 1s: flush
		B 1s: flush
		B 20.1s: 1 rate_limited`)
}

// TestWithoutALeaderAServiceLimitsWithWhatItKnows of a key that had paused. It looks for more only
// once.
func TestWithoutALeaderAServiceLimitsWithWhatItKnows(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		w := &limitsWorld{TB: t, services: []*ledger{newLedger(s, tenMinutes)}}
		w.key = &apiKey{account: account{usageID: 1, quota: quota{5, 1000}}}
		w.play(`
			0s: 3 admitted
			0.5s: flush
			1s: flush`)
		c.lead(-1)
		c.always("/db/", respond(503, "leader not found\n"))
		w.play("2s: 1 admitted, minute 1 until 1m0s")
		wantTime(t, "the next requests", 0, 0, nil, func() error {
			w.play(`
				3s: 1 admitted
				3s: 1 rate_limited`)
			return nil
		})
		c.when(nil)
		c.lead(1)
		c.mustExec("UPDATE usage SET minute_used = 0, day_used = 17")
		w.play(`
			4s: flush
			4.5s: flush
			5s: 1 admitted, day 980 until 24h0m0s`)
	})
}

// TestIncrementsOfAnEndedWindow are dropped, since they say nothing of the one that runs.
func TestIncrementsOfAnEndedWindow(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		newLimits(t, db, quota{100, 1000}, 2).play(`
			A 0s: 3 admitted
			B 30s: 2 admitted
			B 31s: flush
			A 60s: flush
			stored: minute 2 until 1m30s, day 5 until 24h0m30s
			A: minute 2 until 1m30s, day 5 until 24h0m30s
			A 89.999s: 1 admitted
			B 91s: 4 admitted
			B 92s: flush
			A 92s: flush
			stored: minute 4 until 2m31s, day 10 until 24h0m30s
			A: minute 4 until 2m31s, day 10 until 24h0m30s
			B 93s: 1 admitted
			B 151s: flush
			stored: minute 5 until 2m31s, day 11 until 24h0m30s
			B 151s: 1 admitted, minute 99 until 3m31s`)
	})
}

// TestAWindowThatIsFarAheadIsReplaced: it began before the clock was set back. One that ends within
// its length and a minute counts on.
func TestAWindowThatIsFarAheadIsReplaced(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		newLimits(t, db, quota{100, 1000}, 2).play(`
			A 60s: 3 admitted
			A 60s: flush
			B 0s: 2 admitted
			B 0s: flush
			stored: minute 5 until 2m0s, day 5 until 24h1m0s
			B -1ms: 1 admitted
			B -1ms: flush
			stored: minute 1 until 59.999s, day 1 until 23h59m59.999s
			A 1s: 1 admitted
			A 1s: flush
			A: minute 2 until 59.999s, day 2 until 23h59m59.999s
			A -23h: 1 admitted
			A -23h: flush
			stored: minute 1 until -22h59m0s, day 1 until 1h0m0s`)
	})
}

// TestARefusalMovesNoWindow that another service has begun meanwhile: the window tells when the key
// was used last.
func TestARefusalMovesNoWindow(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{100, 1000}, 2)
		w.play(`
			A 0s: 1 admitted
			A 0s: flush
			B 5m: 1 admitted
			B 5m: flush`)
		w.key.PerDay = 1
		w.play("A 10m: 1 rate_limited")
		w.limiter().countError(1, clock("10m"))
		w.play(`
			A 10m: flush
			stored: minute 1 until 6m0s, day 2 until 24h0m0s`)
	})
}

// TestABanAnywhereBansEverywhere after a flush, in which a service hears of it, until it is lifted.
func TestABanAnywhereBansEverywhere(t *testing.T) {
	w := newLimits(t, newCluster(t, 3).addresses(), quota{2, 50}, 3)
	w.play(`
		B 0s: 1 admitted
		C 0s: 1 admitted
		B 0s: flush
		C 0s: flush
		A 1s: 1 rate_limited
		A 1s: 2 rate_limited
		A 1s: 1 key_banned
		B 2s: flush
		B 2s: 1 key_banned, minute 0 until 10m1s
		C 2s: 1 rate_limited
		B 3s: restart
		B 3s: 1 key_banned
		70s: unban
		A 70s: flush
		B 70s: flush
		C 70s: flush
		A 70s: 1 admitted
		B 70s: 1 admitted
		C 70s: 1 admitted`)
}

// TestAServiceOfAClusterAsksForBans also while it has nothing to write. A file, which no other
// service can share, is not written to then.
func TestAServiceOfAClusterAsksForBans(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{60, 1000}, 1)
		writes := commitsOf(w.store())
		w.play("0s: flush\n1s: flush")
		writes = commitsOf(w.store()) - writes
		if asks := w.store().engine.shared(); asks != (writes == 2) || asks == (writes == 0) {
			t.Errorf("two flushes of nothing are %d transactions", writes)
		}
	})
}

// limitsFate is what becomes of a write.
type limitsFate int

const (
	arrives       limitsFate = iota
	neverArrives             // it is lost
	arrivesUnseen            // it is stored, and nobody hears of it
)

type limitsEngine struct {
	engine
	fate func() limitsFate
}

func (e *limitsEngine) write(ctx context.Context, statements []statement) ([]result, error) {
	fate := e.fate()
	if fate == neverArrives {
		return nil, errOutcome
	}
	results, err := e.engine.write(ctx, statements)
	if fate == arrivesUnseen && err == nil {
		return nil, errOutcome
	}
	return results, err
}

// disturb lets fate say what becomes of the writes of a service, until it is repaired.
func (w *limitsWorld) disturb(l *ledger, fate func() limitsFate) (repair func()) {
	healthy := l.store.engine
	l.store.engine = &limitsEngine{healthy, fate}
	return func() { l.store.engine = healthy }
}

// TestALateCopyOfAFlushAddsNothing: a node that was frozen runs what was repeated elsewhere
// meanwhile.
func TestALateCopyOfAFlushAddsNothing(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{100, 1000}, 1)
		var copies [][]statement
		var stored string
		for _, when := range []string{"0s", "1s"} {
			w.play(when + ": 1 admitted")
			w.limiter().takeBatch()
			l := w.limiter()
			copies = append(copies, l.batch.statements(l.service, clock(when), &stored))
			w.play(when + ": flush")
		}
		for _, late := range copies { // the first must not let the others in again
			must(t, errorOf(w.store().write(t.Context(), late...)))
			w.play("stored: minute 2 until 1m0s, day 2 until 24h0m0s")
			if n := readNumber(t, w.store(), "SELECT sum(admitted) FROM usage_days"); n != 2 {
				t.Errorf("of 2 requests %d are counted in their day", n)
			}
		}
	})
}
