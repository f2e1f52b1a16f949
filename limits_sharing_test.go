package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
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
			stored: minute 0 until 2m31s, day 11 until 24h0m30s
			B 151s: 1 admitted, minute 99 until 3m31s`)
	})
}

// TestAWindowThatIsFarAheadIsReplaced: it began before the clock was set back. A day that ends
// within two days counts on.
func TestAWindowThatIsFarAheadIsReplaced(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		newLimits(t, db, quota{100, 1000}, 2).play(`
			A 24h: 3 admitted
			A 24h: flush
			B 0s: 2 admitted
			B 0s: flush
			stored: minute 2 until 1m0s, day 5 until 48h0m0s
			A 1s: 1 admitted
			A 1s: flush
			A: minute 3 until 1m0s, day 6 until 48h0m0s
			A -25h: 1 admitted
			A -25h: flush
			stored: minute 1 until -24h59m0s, day 1 until -1h0m0s`)
	})
}

func TestTwoServicesMayReadTheClockAtDifferentTimes(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		newLimits(t, db, quota{100, 1000}, 2).play(`
			A 60s: 3 admitted
			A 60s: flush
			B 0s: 2 admitted
			B 0s: flush
			stored: minute 5 until 2m0s, day 5 until 24h1m0s`)
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

// TestAServiceOfAClusterShowsThatItRuns, also while it has nothing to write. A file, which no other
// service can share, is not written to then.
func TestAServiceOfAClusterShowsThatItRuns(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{60, 1000}, 1)
		writes := w.store().commits.Load()
		w.play("0s: flush\n1s: flush")
		writes = w.store().commits.Load() - writes
		if !w.store().engine.shared() {
			if writes != 0 {
				t.Errorf("two flushes of nothing are %d transactions", writes)
			}
			return
		}
		seen := readNumber(t, w.store(), "SELECT seen_at FROM services")
		if writes != 2 || seen != int64(clock("1s")) {
			t.Errorf("after %d transactions the service was seen at %d", writes, seen)
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
func (w *limitsWorld) disturb(l *limiter, fate func() limitsFate) (repair func()) {
	healthy := l.store.engine
	l.store.engine = &limitsEngine{healthy, fate}
	return func() { l.store.engine = healthy }
}

// TestAnOutageOfManyFlushesLosesAndDoublesNothing, whatever became of each.
func TestAnOutageOfManyFlushesLosesAndDoublesNothing(t *testing.T) {
	lost := func(n int) []limitsFate { return slices.Repeat([]limitsFate{neverArrives}, n) }
	unseen := func(n int) []limitsFate { return slices.Repeat([]limitsFate{arrivesUnseen}, n) }
	for what, fates := range map[string][]limitsFate{
		"a response that is lost":         unseen(1),
		"a request that is lost":          lost(1),
		"many responses that are lost":    unseen(20),
		"many requests that are lost":     lost(20),
		"first requests, then responses":  append(lost(5), unseen(2)...),
		"first a response, then requests": append(unseen(1), lost(5)...),
		"some that arrive in between": {
			arrivesUnseen, arrives, neverArrives, arrives, arrivesUnseen,
		},
	} {
		t.Run(what, func(t *testing.T) {
			engines(t, func(t *testing.T, db string) {
				w := newLimits(t, db, quota{100, 1000}, 2)
				w.play("B 0s: 5 admitted\nB 1s: flush")
				admitted := 5
				for i, fate := range fates {
					w.play(fmt.Sprintf("2s: %d admitted", 1+i%2))
					admitted += 1 + i%2
					repair := w.disturb(w.limiter(), func() limitsFate { return fate })
					_ = w.limiter().flush(t.Context(), clock("2s").time())
					repair()
					if used := w.limiter().usages[1].day.used; used < int64(admitted-5) {
						t.Errorf("while writing fails %d of %d requests count", used, admitted)
					}
				}
				w.play("3s: flush\n3s: flush")
				used := fmt.Sprintf("minute %d until 1m0s, day %[1]d until 24h0m0s", admitted)
				w.play("stored: " + used)
				w.play("A: " + used)
				days := readNumber(t, w.store(), "SELECT sum(admitted) FROM usage_days")
				if days != int64(admitted) {
					t.Errorf("of %d requests %d are counted in their day", admitted, days)
				}
			})
		})
	}
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
			copies = append(copies, w.limiter().merge(clock(when), &stored))
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

// modelWindow is a window of a key, as simple as can be.
type modelWindow struct {
	ends instant
	n    int64
}

// windowsOf are the windows of a usage, which may be nil.
func windowsOf(u *usage) (windows [2]modelWindow) {
	if u == nil {
		return windows
	}
	windows[0] = modelWindow{u.minute.ends, u.minute.used}
	windows[1] = modelWindow{u.day.ends, u.day.used}
	return windows
}

// modelService is what a service knows of a key's minute and day.
type modelService struct {
	shown [2]modelWindow  // what it shows
	fresh [2]modelWindow  // what it has not sent, of the windows that it shows
	sent  *[2]modelWindow // what it has sent, until it knows the outcome

	stored  bool // what it has sent is stored
	counted bool // there is something to send
}

type limitsModel struct {
	now    instant
	stored [2]modelWindow
}

func (m *limitsModel) runs(w modelWindow, i int) bool {
	length := [2]instant{minuteMillis, dayMillis}[i]
	return m.now < w.ends && w.ends <= m.now+2*length
}

// admit counts a request in both windows.
func (m *limitsModel) admit(s *modelService) {
	s.counted = true
	for i, length := range [2]instant{minuteMillis, dayMillis} {
		if !m.runs(s.shown[i], i) {
			s.shown[i] = modelWindow{ends: m.now + length}
			s.fresh[i] = s.shown[i]
		}
		s.shown[i].n++
		s.fresh[i].n++
	}
}

// flush sends what is fresh, or again what was sent.
func (m *limitsModel) flush(s *modelService, fate limitsFate) {
	if s.sent == nil {
		fresh := s.fresh
		s.sent = &fresh
		s.stored = false
		s.counted = false
	}
	if fate != neverArrives && !s.stored {
		s.stored = true
		for i, sent := range s.sent {
			m.add(i, sent)
		}
	}
	if fate != arrives {
		return
	}
	for i, sent := range s.sent {
		if s.fresh[i].ends == sent.ends {
			s.fresh[i].n -= sent.n
		}
		if m.runs(m.stored[i], i) {
			s.shown[i] = modelWindow{m.stored[i].ends, m.stored[i].n + s.fresh[i].n}
			s.fresh[i].ends = m.stored[i].ends
		}
	}
	s.sent = nil
}

// add merges a window into the one that is stored.
func (m *limitsModel) add(i int, sent modelWindow) {
	if m.stored[i].ends == 0 { // there is no row: an ended window is no harm there
		m.stored[i] = sent
		return
	}
	if !m.runs(m.stored[i], i) {
		m.stored[i] = modelWindow{ends: sent.ends}
	}
	if sent.ends > m.now {
		m.stored[i].n += sent.n
	}
}

// TestUsageFollowsASimpleModel lets three services admit and flush at random, while flushes get
// lost in both ways and the clock moves on, by days at times, and sometimes back.
func TestUsageFollowsASimpleModel(t *testing.T) {
	for range 8 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		w := newLimits(t, databasePath(t), quota{maxQuota, maxQuota}, 3)
		m := &limitsModel{now: testStart}
		var services [3]modelService
		for step := range 300 {
			number := random.IntN(3)
			l, s := w.services[number], &services[number]
			switch random.IntN(9) {
			case 0, 1:
				m.now += instant(random.Int64N(40_000))
			case 2:
				if random.IntN(20) == 0 {
					m.now += instant(random.Int64N(4*int64(dayMillis))) - 2*dayMillis
				}
			case 3, 4, 5:
				repeats := s.sent != nil
				if !repeats && !s.counted {
					continue
				}
				fate := limitsFate(random.IntN(3))
				repair := w.disturb(l, func() limitsFate { return fate })
				err := l.flush(t.Context(), m.now.time())
				repair()
				if (err == nil) != (fate == arrives) {
					t.Fatalf("seed %d, step %d: the flush says %v", seed, step, err)
				}
				m.flush(s, fate)
				if repeats && fate == arrives && s.counted { // what came meanwhile follows
					m.flush(s, fate)
				}
			default:
				if l.usages[1] == nil {
					l.usages[1] = &usage{} // as if it was read before the first flush
				}
				_, err := l.admit(&w.key.account, m.now.time())
				must(t, err)
				m.admit(s)
			}
			stored, err := readUsage(t.Context(), w.store(), 1)
			must(t, err)
			if got := windowsOf(stored); got != m.stored {
				t.Fatalf("seed %d, step %d: stored is %v, want %v", seed, step, got, m.stored)
			}
			if got := windowsOf(l.usages[1]); got != s.shown {
				t.Fatalf("seed %d, step %d: service %d has %v, want %v",
					seed, step, number, got, s.shown)
			}
		}
	}
}
