package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestUsageLasts plays scripts: of each line, what was done or asked stands before the comma, and
// what is found then behind it. The lines that there are stand above playEach.
func TestUsageLasts(t *testing.T) {
	playEach(t, engines, map[string]string{
		"usage survives a restart": `
			quota 60 1000
			0.123s: 7 admitted
			5s: flush
			6s: 1 admitted
			6s: flush
			7s: restart
			60.122s: 1 admitted, minute 51 until 1m0.123s, day 991 until 24h0m0.123s
			10s: shown, used 8 and 8, last at 123ms`,
		"two requests that find no usage in memory are both counted": `
			quota 60 1000
			meanwhile 0s: 1 admitted
			0s: 1 admitted, minute 58 until 1m0s`,
		"what comes while a flush writes is left for the next": `
			quota 200 1000
			0s: 1 admitted
			meanwhile 0s: 1 admitted
			0s: flush, 1 transactions
			stored: minute 1 until 1m0s
			0s: 1 admitted, minute 197 until 1m0s
			0s: flush
			stored: minute 3 until 1m0s`,
		"so it is when many usages are forgotten after the flush": `
			quota 60 1000
			0s: 1 admitted
			crowd
			meanwhile 0s: 1 admitted
			0s: flush
			0s: 1 admitted, minute 57 until 1m0s`,
		"a minute ends during a flush": `
			quota 100 1000
			0s: 1 admitted
			meanwhile 60.5s: 60 admitted
			59.9s: flush
			61s: 1 admitted
			A: minute 61 until 2m0.5s, day 62 until 24h0m0s
			61s: flush
			stored: minute 61 until 2m0.5s, day 62 until 24h0m0s`,
		"a minute ends during a flush, and the next begins as it ends": `
			quota 100 1000
			0s: 1 admitted
			meanwhile 60s: 60 admitted
			59.9s: flush
			61s: 1 admitted
			A: minute 61 until 2m0s, day 62 until 24h0m0s
			61s: flush
			stored: minute 61 until 2m0s, day 62 until 24h0m0s`,
		"a day ends during a flush": `
			quota 100 1000
			0s: 1 admitted
			meanwhile 24h0m0.5s: 60 admitted
			23h59m59.9s: flush
			24h0m1s: 1 admitted
			A: minute 61 until 24h1m0.5s, day 61 until 48h0m0.5s
			24h0m1s: flush
			stored: minute 61 until 24h1m0.5s, day 61 until 48h0m0.5s`,
		"a day ends during a flush, and the next begins as it ends": `
			quota 100 1000
			0s: 1 admitted
			meanwhile 24h: 60 admitted
			23h59m59.9s: flush
			24h0m1s: 1 admitted
			A: minute 61 until 24h1m0s, day 61 until 48h0m0s
			24h0m1s: flush
			stored: minute 61 until 24h1m0s, day 61 until 48h0m0s`,
	})
}

// TestEveryRequestIsCountedInItsDay once: admitted, or refused for whatever reason.
func TestEveryRequestIsCountedInItsDay(t *testing.T) {
	playEach(t, engines, map[string]string{"0s is 8 o'clock on 15 January 2027": `
			quota 2 5
		0s: 2 admitted
		0s: flush
		days: 2027-01-15: 2 admitted, 0 refused, 0 errors
		1s: 3 rate_limited
		0s: flush
		days: 2027-01-15: 2 admitted, 3 refused, 0 errors
		2s: 1 key_banned
		70s: 4 key_banned
		0s: flush
		days: 2027-01-15: 2 admitted, 8 refused, 0 errors
		11m: 2 admitted
		15h59m59.999s: 1 admitted
		0s: flush
		days: 2027-01-15: 5 admitted, 8 refused, 0 errors
		16h: 1 rate_limited
		0s: flush
		days: 2027-01-16: 0 admitted, 1 refused, 0 errors
		16h: forget
		15h59m59s: 1 errors
		24h: 1 errors
		24h: flush
		days: 2027-01-15: 5 admitted, 8 refused, 1 errors
		days: 2027-01-16: 0 admitted, 1 refused, 1 errors`,
	})
}

func TestAFlushWritesOnlyWhatChanged(t *testing.T) {
	playEach(t, onFile, map[string]string{"on a file": `
			quota 2 5
		0s: flush, 0 transactions
		0s: 2 admitted
		0s: flush, 1 transactions
		0s: flush, 0 transactions
		0s: 1 rate_limited
		0s: flush, 1 transactions
		0s: 2 rate_limited
		0s: 1 key_banned
		0s: flush, 1 transactions
		0s: 1000 key_banned
		0s: flush, 1 transactions
		0s: flush, 0 transactions`})
	playEach(t, onCluster, map[string]string{"a cluster is asked for bans also": `
			quota 2 5
		0s: flush, 1 transactions
		1s: flush, 1 transactions`})
}

// useMany lets each of many usages have one request on the Free plan.
func useMany(t testing.TB, l *ledger, usages int64) {
	t.Helper()
	for id := range usages {
		l.mu.Lock()
		l.entries[id+1] = &entry{}
		l.mu.Unlock()
		a := &account{quota: quota{60, 1000}, usageID: id + 1}
		must(t, errorOf(l.charge(a, testStart)))
	}
}

// TestManyUsagesAreWrittenInTransactionsOfABoundedSize, each once, also if one of them fails.
func TestManyUsagesAreWrittenInTransactionsOfABoundedSize(t *testing.T) {
	takesSeconds(t)
	const usages = 2*maxBatch + 500
	engines(t, func(t *testing.T, db string) {
		w := newLimits(t, db, quota{60, 1000})
		for _, l := range []*ledger{w.service('A'), w.service('B')} {
			useMany(t, l, usages)
			before := commitsOf(l.store)
			writes := 0
			repair := w.disturb(l, func() limitsFate {
				if writes++; writes == 2 {
					return neverArrives
				}
				return arrives
			})
			err := l.flush(t.Context(), testStart.time, false)
			wantError(t, err, errUnavailable, "a flush of which half is stored")
			repair()
			mustFlush(t, l)
			wantEqual(t, commitsOf(l.store)-before, 3, "the number of transactions")
		}
		for query, want := range map[string]int64{
			"SELECT sum(admitted) FROM usage_days": 2 * usages,
			"SELECT sum(minute_used) FROM usage":   2 * usages,
			"SELECT max(day_used) FROM usage":      2,
		} {
			wantEqual(t, readNumber(t, w.store(), query), want, query)
		}
	})
}

// TestAFlushLeavesRoomForCreates on a file, between two batches, but not in a stop, nor on a
// cluster, which takes its time for each transaction. A batch has neighbours in the tables.
func TestAFlushLeavesRoomForCreates(t *testing.T) {
	const usages = 2*smallBatch + 1
	const each = 20 * time.Millisecond
	flush := func(t *testing.T, s *store, pausesForCreates bool, transactions int64,
		takes time.Duration) {
		t.Helper()
		l := newLedger(s, tenMinutes)
		useMany(t, l, usages)
		before, began := commitsOf(s), time.Now()
		must(t, l.flush(t.Context(), testStart.time, pausesForCreates))
		wantEqual(t, commitsOf(s)-before, transactions, "the number of transactions")
		wantEqual(t, time.Since(began), takes, "the time that they take, and the pauses")
		slices.SortFunc(l.batch.days, func(a, b dayRow) int { return int(a.usage - b.usage) })
		first := (transactions-1)*smallBatch + 1
		wantEqual(t, l.batch.days[0].usage, first, "the first usage of the last batch")
	}
	slowly := func(s *store) {
		s.engine = &hookedEngine{engine: s.engine, beforeWrite: func() { time.Sleep(each) }}
	}
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDatabase(t, path)
		slowly(s)
		flush(t, s, true, 3, 5*each)
		flush(t, s, false, 1, each)
	})
	onFakeCluster(t, func(t *testing.T, _ *fakeCluster, s *store) {
		slowly(s)
		flush(t, s, true, 1, each)
	})
	withBackground(t, nil, func(b *background) {
		before := commitsOf(b.store)
		useMany(b, b.ledger, usages)
		time.Sleep(1100 * time.Millisecond) // to between two flushes
		wantEqual(b, commitsOf(b.store)-before, 3, "the transactions of a service")
		before = commitsOf(b.store)
		useMany(b, b.ledger, usages)
		must(b, b.stop())
		wantEqual(b, commitsOf(b.store)-before, 1, "the transactions of a stop")
	})
}

// TestAKillLosesASecondOfCounting at most, however long a flush takes up to half of one, and no
// flush comes earlier than it has to.
func TestAKillLosesASecondOfCounting(t *testing.T) {
	for takes, want := range map[time.Duration]int{
		0: 14, 180 * time.Millisecond: 14, 200 * time.Millisecond: 20, 500 * time.Millisecond: 20,
	} {
		path := databasePath(t)
		t.Run(fmt.Sprint(takes), bubble(func(t *testing.T) {
			s := openDatabase(t, path)
			var began []time.Time
			s.engine = &hookedEngine{engine: s.engine, beforeWrite: func() {
				began = append(began, time.Now())
				time.Sleep(takes)
			}}
			l := newLedger(s, tenMinutes)
			end := time.Now().Add(10 * time.Second)
			for ticks := time.Tick(flushTick); time.Now().Before(end); <-ticks {
				useMany(t, l, 1)
				must(t, l.flushInTime(t.Context()))
			}
			for i := range began[1:] {
				loses := began[i+1].Add(takes).Sub(began[i])
				wantWithin(t, loses, 0, time.Second, "what a kill loses")
			}
			wantEqual(t, len(began), want, "the flushes in ten seconds")
		}))
	}
}

// TestTheLastMinutesAreCountedByUsage: the one that runs and the five before, whatever the clock
// does, and in bounded memory.
func TestTheLastMinutesAreCountedByUsage(t *testing.T) {
	var r lastMinutes
	const start = 1_800_000_000_000 // a whole minute
	is := func(after instant, want map[int64]tally) {
		t.Helper()
		wantEqual(t, r.sums(start+after), want, "what is counted after ", after, " ms")
	}
	is(0, map[int64]tally{})
	r.count(1, start, tally{Admitted: 1})
	r.count(1, start+minuteMillis-1, tally{Refused: 1})
	r.count(2, start+5*minuteMillis, tally{Errors: 1})
	is(6*minuteMillis-1, map[int64]tally{1: {1, 1, 0}, 2: {0, 0, 1}})
	is(6*minuteMillis, map[int64]tally{2: {0, 0, 1}})
	r.count(3, start+6*minuteMillis, tally{Admitted: 5}) // in the place of the first
	is(6*minuteMillis, map[int64]tally{2: {0, 0, 1}, 3: {5, 0, 0}})
	is(12*minuteMillis, map[int64]tally{})

	r.count(3, start, tally{Admitted: 1}) // the clock was set back
	is(0, map[int64]tally{2: {0, 0, 1}, 3: {1, 0, 0}})

	for id := range int64(2 * maxRecent) {
		r.count(id+1, start+20*minuteMillis, tally{Admitted: 1})
		r.count(id+1, start+20*minuteMillis, tally{Refused: 1})
	}
	sums := r.sums(start + 20*minuteMillis)
	if len(sums) != maxRecent+1 {
		t.Errorf("of %d usages, %d are counted apart", 2*maxRecent, len(sums)-1)
	}
	wantEqual(t, sums[0], tally{maxRecent, maxRecent, 0}, "the sum of the others")
	wantEqual(t, sums[maxRecent], tally{1, 1, 0}, "one that found room")

	var l ledger
	for i := range byte(12) { // each has just used up its minute
		address := netip.AddrFrom4([4]byte{192, 0, 2, i})
		l.countStranger(netip.PrefixFrom(address, 32), decision{now: start})
	}
	_, _, spent := l.busy(start)
	wantEqual(t, fmt.Sprint(len(spent), " from ", spent[0].Address), "10 from 192.0.2.2/32",
		"the addresses that are spent")
}

func TestTheLedgerIsUsedUnderItsLock(t *testing.T) {
	l := newLedger(newStore(t), tenMinutes)
	a, d := &account{usageID: 1}, decision{now: testStart}
	wantLocked(t, &l.mu, map[string]func(){
		"(*ledger).chargeKnown":       func() { l.chargeKnown(a, testStart) },
		"(*ledger).recall":            func() { must(t, l.recall(1)) },
		"(*ledger).countError":        func() { l.countError(1, testStart) },
		"(*ledger).noteDeprecatedUse": func() { l.noteDeprecatedUse(1, testStart) },
		"(*ledger).beginBatch":        func() { l.beginBatch(1) },
		"(*ledger).takeMostAhead":     func() { l.takeMostAhead() },
		"(*ledger).countStranger":     func() { l.countStranger(netip.Prefix{}, d) },
		"(*ledger).busy":              func() { l.busy(testStart) },
	})
}

// TestUsagesRememberedAreBounded: those that are stored are forgotten, but for keys that were asked
// to wait.
func TestUsagesRememberedAreBounded(t *testing.T) {
	const bound = 32_768 // "about 32,000" in the README
	w := newLimits(t, databasePath(t), quota{60, 1000})
	l := w.service('A')
	w.play(`
		0s: 5 admitted
		crowd`)
	delete(l.entries, -1)
	w.play("0s: flush")
	wantEqual(t, len(l.entries), bound, "the number of usages, while they are not too many,")
	kept := map[int64]*entry{
		100: {usage: usage{retryAt: clock("9h"), retryLength: dayMillis}},
		101: {usage: nearlyBanned()},
		102: {dayStored: storedPart{unsent: 1}},
	}
	maps.Copy(l.entries, kept)
	stored := usage{bannedAt: clock("-1s"), bannedUntil: clock("599s")}
	l.entries[103] = &entry{usage: stored}
	// This refusal came before the clock was set back.
	l.entries[104] = &entry{usage: usage{retryAt: clock("24h1m0.001s"), retryLength: dayMillis}}
	l.countError(1, testStart)
	w.play("0s: flush")
	if !maps.Equal(l.entries, kept) {
		t.Errorf("%d usages are remembered, want %d", len(l.entries), len(kept))
	}
	w.play("1s: 1 admitted, minute 54 until 1m0s, day 994 until 24h0m0s") // read again
}

func TestAUsageThatCannotBeReadIsAnErrorAndNoNewUsage(t *testing.T) {
	db := databasePath(t)
	w := newLimits(t, db, quota{60, 1000})
	w.play(`
		0s: 1 admitted
		0s: flush
		0s: restart`)
	_ = w.store().Close()
	for range 2 {
		_, err := w.service('A').charge(&w.key.account, testStart)
		_, isReported := errors.AsType[*Error](err)
		if err == nil || isReported {
			t.Errorf("admit = %v, want the store's error", err)
		}
	}
	w.service('A').store = openDatabase(t, db)
	w.play("0s: 1 admitted, minute 58 until 1m0s")
}

// TestTheStatementsOfAFlushAreShort: a node of rqlite compresses a request, the numbers of all keys
// in it, that has a statement of 1,024 bytes.
func TestTheStatementsOfAFlushAreShort(t *testing.T) {
	used := &batch{deprecated: map[int64]int64{1: 1}}
	for _, st := range used.statements("", testStart, nil) {
		if len(st.query) >= 1024 {
			t.Errorf("a statement has %d bytes: %s", len(st.query), st.query)
		}
	}
}

// lateWorld is a service behind a slow and unreliable network, with a key that no other service
// sees. Whatever happens there, the service must say what one says that keeps everything in memory.
type lateWorld struct {
	*limitsWorld
	random *rand.Rand
	now    instant // by the clock of the service
	ideal  usage   // of the service that keeps everything in memory
	depth  int     // of what happens while something is on its way
	isBusy bool    // a flush runs
	late   []lateFlush
	seen   map[string]int
}

// lateFlush is a flush that is on its way, or a copy of one.
type lateFlush struct {
	statements []statement
	service    string
	minute     bucket // that it adds to
}

// slowNetwork is an engine at the other end of that network, as another service could use it.
type slowNetwork struct {
	engine
	w *lateWorld
}

func (e *slowNetwork) shared() bool { return true }

func (e *slowNetwork) read(ctx context.Context, q statement, row func(scanner) error) error {
	e.w.meanwhile()
	err := e.engine.read(ctx, q, row)
	e.w.meanwhile()
	return err
}

func (e *slowNetwork) write(ctx context.Context, statements []statement) ([]result, error) {
	l := e.w.service('A')
	minute := bucket{ends: l.batch.usages[1].minute.ends}
	e.w.meanwhile()
	fate := e.w.random.IntN(6)
	if fate < 2 {
		e.w.late = append(e.w.late, lateFlush{statements, l.service, minute})
	}
	if fate == 0 {
		e.w.meanwhile()
		return nil, errOutcome
	}
	results, err := e.engine.write(ctx, statements)
	must(e.w, err)
	e.w.meanwhile()
	if fate == 2 {
		return nil, errOutcome
	}
	return results, nil
}

// meanwhile lets something happen while a message is on its way.
func (w *lateWorld) meanwhile() {
	w.depth++
	defer func() { w.depth-- }()
	for w.depth < 4 && w.random.IntN(3) == 0 {
		if w.random.IntN(2) == 0 {
			w.flush()
		} else {
			w.request()
		}
	}
}

// pass lets time pass: mostly little, sometimes until about the end of the minute.
func (w *lateWorld) pass() {
	w.now += instant(w.random.IntN(700))
	left := w.ideal.minute.ends - w.now
	if w.random.IntN(12) == 0 && left > 0 {
		w.now += left - 300 + instant(w.random.IntN(600))
	}
}

func (w *lateWorld) request() {
	w.pass()
	now := w.now
	got, err := w.service('A').charge(&w.key.account, now)
	must(w, err)
	want := w.ideal.admit(&w.key.account, now, false)
	if got.refusal != want.refusal || got.minute != want.minute {
		w.Fatalf("at %v: %q, minute %v, want %q, minute %v", levelText(level{reset: now}),
			got.refusal, levelText(got.minute), want.refusal, levelText(want.minute))
	}
	w.seen["answers "+string(want.refusal)]++
}

func (w *lateWorld) flush() {
	if w.isBusy {
		return // two flushes never run at once
	}
	w.isBusy = true
	defer func() { w.isBusy = false }()
	w.pass()
	clock := func() time.Time {
		return w.now.time()
	}
	if err := w.service('A').flush(w.Context(), clock, false); err != nil {
		w.seen["flushes without an answer"]++
	}
}

// deliver lets a late flush arrive. Those of a service that was killed count in the minute, if they
// come before its end. Here they come later, and must do nothing to the minute that runs.
func (w *lateWorld) deliver(engine engine) {
	if len(w.late) == 0 {
		return
	}
	late := w.late[len(w.late)-1-w.random.IntN(min(30, len(w.late)))]
	isDead := late.service != w.service('A').service
	if isDead && late.minute.running(w.now, minuteMillis) {
		return
	}
	must(w, errorOf(engine.write(w.Context(), late.statements)))
	w.seen[fmt.Sprintf("late flushes, of the dead %v", isDead)]++
}

// restart kills the service. What it has not stored is forgotten.
func (w *lateWorld) restart() {
	w.services[0] = newLedger(w.store(), 0)
	stored := &usage{}
	row := func(scan scanner) error {
		return scan(stored.columns()...)
	}
	e := w.store().engine.(*slowNetwork)
	must(w, e.engine.read(w.Context(), sqlOf(usageQuery, int64(1)), row))
	w.ideal = usage{minute: bucket{used: stored.minute.used, ends: stored.minute.ends}}
	w.ideal.day = stored.day
}

// TestAServiceIsExactWhateverIsLate, lost, repeated or in another order, also when its clock is
// changed and when it is killed.
func TestAServiceIsExactWhateverIsLate(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := &lateWorld{
				limitsWorld: newLimits(t, databasePath(t), quota{9, 1_000_000}),
				random:      rand.New(rand.NewPCG(seed, 0)),
				now:         testStart,
				seen:        map[string]int{},
			}
			healthy := w.store().engine
			w.store().engine = &slowNetwork{healthy, w}
			w.restart()
			for range 3000 {
				switch w.random.IntN(30) {
				case 0:
					w.deliver(healthy)
				case 1:
					w.restart()
				case 2:
					w.now += instant(w.random.IntN(200_000))
				case 3:
					jumps := []instant{-7_200_000, -45_000, -500, 500, 45_000, 7_200_000}
					w.now += jumps[w.random.IntN(len(jumps))]
				case 4, 5, 6, 7, 8, 9:
					w.flush()
				default:
					w.request()
				}
			}
			t.Log(w.seen)
		})
	}
}

// TestAUsageThatIsReadLateIsReadAgain, if others have used and stored it since the reading began.
func TestAUsageThatIsReadLateIsReadAgain(t *testing.T) {
	playEach(t, onCluster, map[string]string{"the last flush had nothing to send": `
			quota 60 1000
		meanwhile 0.1s: 60 admitted
		meanwhile 0.5s: flush
		meanwhile 1s: flush
		0.1s: 1 rate_limited, minute 0 until 1m0.1s`})
	playEach(t, onFile, map[string]string{"the flush has forgotten the usage": `
			quota 60 1000
		meanwhile 0.1s: 60 admitted
		meanwhile crowd
		meanwhile 0.5s: flush
		0.1s: 1 rate_limited, minute 0 until 1m0.1s`})
}

// TestAReadingThatTakesLongerThanFlushesEnds: flushes that do not know the usage leave it new.
func TestAReadingThatTakesLongerThanFlushesEnds(t *testing.T) {
	w := newLimits(t, newCluster(t, 3).addresses(), quota{60, 1000})
	readings := 0
	w.store().engine = &hookedEngine{engine: w.store().engine, afterRead: func() {
		if readings++; readings > 3 {
			t.Fatal("the usage is read again and again")
		}
		w.play("0.5s: flush")
	}}
	w.play(`
		0s: 1 admitted, minute 59 until 1m0s
		0.6s: flush
		1.2s: flush
		1.3s: 1 admitted, minute 58 until 1m0s`)
}

// TestServicesShareUsage: the window that is stored counts, if it runs.
func TestServicesShareUsage(t *testing.T) {
	playEach(t, engines, map[string]string{
		"the stored window wins, wherever it began": `
			quota 100 1000
			B 0s: 2 admitted
			A 10s: 3 admitted
			A 11s: flush
			stored: minute 3 until 1m10s, day 3 until 24h0m10s
			B: minute 2 until 1m0s, day 2 until 24h0m0s
			meanwhile meanwhile B: minute 5 until 1m10s, day 5 until 24h0m10s
			B 12s: flush, 2 transactions
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
			B: minute 7 until 1m10s, day 7 until 24h0m10s`,
		"increments of a window that has ended say nothing of the one that runs": `
			quota 100 1000
			A 0s: 3 admitted
			B 30s: 2 admitted
			B 31s: flush
			A 60s: flush
			stored: minute 2 until 1m30s, day 5 until 24h0m30s
			A: minute 2 until 1m30s, day 5 until 24h0m30s
			A 89.999s: 1 admitted
			B 91s: 4 admitted
			B 92s: flush
			A 92s: flush, 1 transactions
			stored: minute 4 until 2m31s, day 10 until 24h0m30s
			A: minute 4 until 2m31s, day 10 until 24h0m30s
			B 93s: 1 admitted
			B 151s: flush
			stored: minute 5 until 2m31s, day 11 until 24h0m30s
			B 151s: 1 admitted, minute 99 until 3m31s`,
		"a window that began before the clock was set back, by more than a minute, is replaced": `
			quota 100 1000
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
			stored: minute 1 until -22h59m0s, day 1 until 1h0m0s`,
		"a window that lies too far ahead, by a wrong clock, is not taken over": `
			quota 100 1000
			B 0s: 2 admitted
			A 10m: 1 admitted
			A 10m: flush
			B 1s: flush
			B: minute 2 until 1m0s, day 2 until 24h0m0s
			stored: minute 2 until 1m0s, day 2 until 24h0m0s
			B 2s: 1 admitted, minute 97 until 1m0s, day 997 until 24h0m0s`,
		"a refusal moves no window that another service has begun": `
			quota 100 1000
			A 0s: 1 admitted
			A 0s: flush
			B 5m: 1 admitted
			B 5m: flush
			9m: per-day 1
			A 10m: 1 rate_limited
			10m: 1 errors
			A 10m: flush
			stored: minute 1 until 6m0s, day 2 until 24h0m0s`,
	})
	playEach(t, onCluster, map[string]string{
		"what is counted during a flush that reads nothing of the key is kept": `
			quota 100 1000
			0s: 1 admitted
			0.5s: flush
			meanwhile 1s: 60 admitted
			1s: flush
			1.1s: 1 admitted, minute 38 until 1m0s`,
		"a service that was not asked knows what others have counted": `
			quota 100 1000
			A 0s: 1 admitted
			B 0s: 1 admitted
			A 0.5s: flush
			B 0.5s: flush
			A 0.9s: 98 admitted
			A 1s: flush
			B 1s: flush
			B 20.1s: 1 rate_limited`,
		"a ban is everyone's after a flush, in which they hear of it, until it is lifted": `
			quota 2 50
			B 0s: 1 admitted
			C 0s: 1 admitted
			B 0s: flush
			C 0s: flush
			A 1s: 3 rate_limited
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
			C 70s: 1 admitted
			A 71s: flush
			meanwhile A 72s: 1 admitted
			A 72s: flush, 1 transactions`,
	})
}

// TestABanIsHeardOfBesideOthers, of keys that this service has not met.
func TestABanIsHeardOfBesideOthers(t *testing.T) {
	w := newLimits(t, newCluster(t, 3).addresses(), quota{2, 1000})
	other := &usage{bannedAt: testStart, bannedUntil: clock("1h")}
	mustWrite(t, w.store(), saveUsage(-1, other)) // it is read first
	w.play(`
		A 0s: 1 admitted
		A 0s: flush
		B 0s: nearly-banned
		B 1s: 1 key_banned
		A 2s: flush
		A 2s: 1 key_banned`)
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

// modelWindow is a window of a key, as simple as can be.
type modelWindow struct {
	ends instant
	n    int64
}

func (w modelWindow) runs(now instant) bool { return now < w.ends }

// modelLengths are those of the two windows. A minute comes before a day throughout.
var modelLengths = [2]instant{60_000, 24 * 60 * 60_000}

type modelBan struct{ begins, ends instant }

// modelService is what a service knows of a key.
type modelService struct {
	ahead instant // its clock, of the true time
	knows bool    // it has read what is stored
	isOld bool    // since then, others may have counted
	shown [2]modelWindow
	read  [2]modelWindow  // what was stored when it has read that last
	fresh [2]modelWindow  // what it has not sent, of the windows that it shows
	sent  *[2]modelWindow // what it has sent, until it knows the outcome
	base  [2]modelWindow  // what it had read then

	admitted     int64 // requests that it has not sent
	sentAdmitted int64
	isStored     bool // what it has sent is stored
	ban          modelBan
	strikes      modelWindow
	retryAt      instant
}

// limitsModel is a key and what is stored of it.
type limitsModel struct {
	limits   [2]int64
	stored   [2]modelWindow
	admitted int64 // in all days
	ban      modelBan
}

// modelLevel is a bucket as a response shows it.
type modelLevel struct {
	limit, left int64
	resets      instant
}

func (m *limitsModel) level(s *modelService, i int, now instant) modelLevel {
	limit, window := m.limits[i], s.shown[i]
	if !window.runs(now) {
		return modelLevel{limit, limit, now}
	}
	left := max(0, limit-window.n)
	return modelLevel{limit, left, window.ends}
}

// ask is what a service has to say to a request: a code and the headers.
func (m *limitsModel) ask(s *modelService, now instant) string {
	if !s.knows {
		s.knows = true
		s.shown, s.read = m.stored, m.stored
		s.ban = m.ban
	}
	if s.isOld {
		s.isOld = false
		s.shown, s.read = m.stored, m.stored
	}
	minute, day := m.level(s, 0, now), m.level(s, 1, now)
	isRefused := minute.left == 0 || day.left == 0
	refusing := day
	if day.left > 0 || minute.left == 0 && minute.resets > day.resets {
		refusing = minute
	}
	if isRefused && now >= s.ban.ends {
		m.strike(s, now)
		s.retryAt = max(s.retryAt, now+1000*max(1, modelSeconds(refusing.resets-now)))
	}
	if now < s.ban.ends {
		minute.left = 0
		minute.resets = s.ban.ends
		if isRefused {
			minute.resets = max(minute.resets, refusing.resets)
		}
		return modelText("key_banned", now, minute, minute, day)
	}
	if isRefused {
		return modelText("rate_limited", now, refusing, minute, day)
	}
	m.take(s, now)
	minute, day = m.level(s, 0, now), m.level(s, 1, now)
	if minute.left < day.left {
		return modelText("", now, minute, minute, day)
	}
	return modelText("", now, day, minute, day)
}

// take counts a request in both windows.
func (m *limitsModel) take(s *modelService, now instant) {
	s.admitted++
	for i, length := range modelLengths {
		if !s.shown[i].runs(now) {
			s.shown[i] = modelWindow{ends: now + length}
			s.fresh[i] = modelWindow{}
		}
		s.shown[i].n++
		s.fresh[i].n++
		s.fresh[i].ends = s.shown[i].ends
	}
}

// strike counts a refusal that came before the Retry-After of another, and bans the key if there
// are too many in a minute. A ban that it does not know is not replaced.
func (m *limitsModel) strike(s *modelService, now instant) {
	if now >= s.retryAt {
		return
	}
	if !s.strikes.runs(now) {
		s.strikes = modelWindow{ends: now + modelLengths[0]}
		if s.shown[0].runs(now) {
			s.strikes.ends = s.shown[0].ends
		}
	}
	s.strikes.n++
	if s.strikes.n > m.limits[0] {
		s.strikes = modelWindow{}
		if m.ban.begins == s.ban.begins {
			m.ban = modelBan{now, now + 10*modelLengths[0]}
		}
		s.ban = m.ban
	}
}

// modelSeconds are rounded up.
func modelSeconds(millis instant) instant {
	if millis%1000 > 0 {
		return millis/1000 + 1
	}
	return millis / 1000
}

func modelText(code string, now instant, shown, minute, day modelLevel) string {
	text := fmt.Sprintf("%s\nRateLimit: \"minute\";r=%d;t=%d, \"day\";r=%d;t=%d\n", code,
		minute.left, modelSeconds(minute.resets-now), day.left, modelSeconds(day.resets-now))
	text += fmt.Sprintf("RateLimit-Policy: \"minute\";q=%d;w=60, \"day\";q=%d;w=86400\n",
		minute.limit, day.limit)
	if code != "" {
		text += fmt.Sprintf("Retry-After: %d\n", max(1, modelSeconds(shown.resets-now)))
	}
	return text + fmt.Sprintf(
		"X-RateLimit-Limit: %d\nX-RateLimit-Remaining: %d\nX-RateLimit-Reset: %d\n",
		shown.limit, shown.left, modelSeconds(shown.resets))
}

// flush sends what is fresh, or again what was sent. It reports whether the service is told what is
// stored, and whether it sends again what could not be added.
func (m *limitsModel) flush(s *modelService, now instant, fate limitsFate) (isTold, again bool) {
	if s.sent == nil {
		fresh := s.fresh
		s.sent = &fresh
		s.base = s.read
		s.sentAdmitted = s.admitted
		s.admitted = 0
		s.isStored = false
	}
	hasSent := s.sent[0].n > 0 || s.sent[1].n > 0
	if fate != neverArrives && !s.isStored {
		s.isStored = true
		m.admitted += s.sentAdmitted
		m.add(*s.sent, s.base)
	}
	if fate != arrives {
		return false, false
	}
	isTold = hasSent || now < m.ban.ends
	if isTold && s.knows {
		again = m.tell(s, now)
	}
	s.sent = nil
	return isTold, again
}

// add merges windows into those that are stored. A window begins only if the service has known what
// it replaces.
func (m *limitsModel) add(sent, base [2]modelWindow) {
	for i, window := range sent {
		switch {
		case window.n == 0:
		case m.stored[i].ends == window.ends:
			m.stored[i].n += window.n
		case m.stored[i] == base[i]:
			m.stored[i] = window
		}
	}
}

// tell lets a service go on from what is stored. What was not added, and is not over, is sent
// again.
func (m *limitsModel) tell(s *modelService, now instant) (again bool) {
	for i, stored := range m.stored {
		sent := s.sent[i]
		if stored.ends == sent.ends && s.fresh[i].ends == sent.ends {
			s.fresh[i].n -= sent.n
		}
		if !s.shown[i].runs(now) {
			s.fresh[i].n = 0
		}
		if stored.runs(now) {
			s.fresh[i].ends = stored.ends
			s.shown[i] = modelWindow{stored.ends, stored.n + s.fresh[i].n}
		}
		again = again || sent.n > 0 && stored.ends != sent.ends && s.fresh[i].n > 0
	}
	s.read = m.stored
	if m.ban.begins > s.ban.begins {
		s.ban = m.ban
	}
	return again
}

// limitsReplay is a long run of services that share a key, with the model of it.
type limitsReplay struct {
	*limitsWorld
	random *rand.Rand
	outage bool // flushes fail in all ways
	model  limitsModel
	models []modelService
	now    instant // the true time

	arrivals   []int // in each tick
	admissions []*limitsAdmission
	pending    [][]*limitsAdmission // at each service, until its next flush
	outcomes   map[string]int
}

type limitsAdmission struct {
	tick   int
	limits [2]int64
	ends   [2]instant // of the windows in which it counts
	isLost bool       // a kill came before its flush
}

// A tick is a twentieth of a second. Each service flushes at every tenth.
const (
	replayTick  = 50
	replayFlush = 10
)

// TestLimitsFollowTheirModel replays long runs, in which services are killed and the plan changes,
// in a model that was written from what is promised: it must know what each request is told, and
// what is stored. Admissions are counted beside it. One service admits exactly the limit. Several,
// whose clocks differ, and some of which are not asked for a while, admit at most what arrives
// within a flush more.
func TestLimitsFollowTheirModel(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	for _, services := range []int{1, 3} {
		on := onFile
		if services > 1 {
			on = onCluster
		}
		for seed := range uint64(4) {
			outage := seed%2 == 1 // flushes fail
			t.Run(fmt.Sprintf("%d services, outage %v, seed %d", services, outage, seed),
				func(t *testing.T) {
					on(t, func(t *testing.T, db string) {
						r := newLimitsReplay(newLimits(t, db, quota{}), services, seed/2)
						r.outage = outage
						for range 20 {
							r.burst()
							r.pause()
						}
						r.checkAdmissions()
						t.Logf("%v in %d hours", r.outcomes, (r.now-testStart)/3_600_000)
					})
				})
		}
	}
}

func newLimitsReplay(w *limitsWorld, services int, seed uint64) *limitsReplay {
	w.service(byte('A' + services - 1))
	r := &limitsReplay{
		limitsWorld: w,
		random:      rand.New(rand.NewPCG(seed, 0)),
		models:      make([]modelService, services),
		now:         testStart,
		pending:     make([][]*limitsAdmission, services),
		outcomes:    map[string]int{},
	}
	r.changePlan()
	return r
}

// burst is some seconds of requests, and a while until everything is flushed.
func (r *limitsReplay) burst() {
	rate := 1 + r.random.IntN(3)
	isAsked := make([]bool, len(r.services))
	for tick := range 50 {
		r.arrivals = append(r.arrivals, 0)
		for i := range isAsked {
			if tick%4 == 0 {
				isAsked[i] = len(isAsked) == 1 || r.random.IntN(2) == 0
			}
		}
		for range rate {
			i := r.random.IntN(len(r.services))
			if tick < 40 && isAsked[i] {
				r.request(i)
			}
		}
		for i := range r.services {
			if (tick+3*i)%replayFlush == 0 {
				r.flush(i)
			}
			if r.random.IntN(150) == 0 {
				r.kill(i)
			}
		}
		if r.random.IntN(100) == 0 {
			r.changePlan()
		}
		r.now += replayTick
	}
}

// pause lets time pass, often until just before a window ends.
func (r *limitsReplay) pause() {
	longest := int64(70_000)
	switch r.random.IntN(6) {
	case 0:
		longest = 900_000
	case 1:
		longest = 36_000_000
	}
	length := instant(r.random.Int64N(longest))
	window := r.model.stored[r.random.IntN(2)]
	nearEnd := window.ends - r.now - replayTick*instant(r.random.IntN(20))
	if nearEnd > 0 && r.random.IntN(2) == 0 {
		length = nearEnd
	}
	r.now += length
}

var replayQuotas = []quota{
	{20, 150},
	{40, 300},
	{60, 1000},
}

func (r *limitsReplay) changePlan() {
	q := replayQuotas[r.random.IntN(len(replayQuotas))]
	r.key.quota = q
	r.key.policy = q.policyHeader()
	r.model.limits = [2]int64{q.PerMinute, q.PerDay}
}

func (r *limitsReplay) request(i int) {
	r.Helper()
	tick := len(r.arrivals) - 1
	r.arrivals[tick]++
	s := &r.models[i]
	now := r.now + s.ahead
	d, err := r.services[i].charge(&r.key.account, now)
	must(r, err)
	if d.banBegins {
		must(r, errorOf(r.services[i].storeBan(&r.key.account, &d)))
	}
	got := string(d.refusal) + "\n" + headersOf(d)
	if want := r.model.ask(s, now); got != want {
		r.Fatalf("at %v service %d says %s, want %s", levelText(level{reset: now}), i, got, want)
	}
	r.outcomes[string(d.refusal)]++
	if d.refusal == "" {
		a := &limitsAdmission{
			tick:   tick,
			limits: r.model.limits,
			ends:   [2]instant{d.minute.reset, d.day.reset},
		}
		r.admissions = append(r.admissions, a)
		r.pending[i] = append(r.pending[i], a)
	}
}

// flush adds what a service has counted, unless it fails.
func (r *limitsReplay) flush(i int) {
	r.Helper()
	l, s := r.services[i], &r.models[i]
	now := r.now + s.ahead
	fate := arrives
	hasSomething := len(r.services) > 1 || s.sent != nil || len(l.tallies) > 0
	if r.outage && hasSomething {
		fate = limitsFate(r.random.IntN(3))
	}
	repair := r.disturb(l, func() limitsFate { return fate })
	err := l.flush(r.Context(), now.time, false)
	repair()
	if (err == nil) != (fate == arrives) {
		r.Fatalf("the flush says %v", err)
	}
	repeats := s.sent != nil
	isTold, again := r.model.flush(s, now, fate)
	for again = again || repeats && fate == arrives; again; { // what came meanwhile follows
		isTold, again = r.model.flush(s, now, fate)
	}
	if len(r.services) > 1 && fate == arrives {
		s.isOld = s.fresh[0].n == 0 && s.fresh[1].n == 0 && !isTold
	}
	r.checkStored()
	for _, a := range r.pending[i] {
		for window, stored := range r.model.stored {
			if a.ends[window] > now {
				a.ends[window] = stored.ends
			}
		}
	}
	r.pending[i] = nil
}

func (r *limitsReplay) checkStored() {
	r.Helper()
	u, err := readUsage(r.Context(), r.store(), 1)
	must(r, err)
	minute := modelWindow{u.minute.ends, u.minute.used}
	day := modelWindow{u.day.ends, u.day.used}
	if stored := [2]modelWindow{minute, day}; stored != r.model.stored {
		r.Fatalf("stored is %v, want %v", stored, r.model.stored)
	}
	admitted := readNumber(r, r.store(), "SELECT ifnull(sum(admitted), 0) FROM usage_days")
	if admitted != r.model.admitted {
		r.Fatalf("%d are counted in their days, want %d", admitted, r.model.admitted)
	}
}

// kill ends a service and starts it again, with a clock that is up to a second ahead.
func (r *limitsReplay) kill(i int) {
	r.services[i] = newLedger(r.services[i].store, tenMinutes)
	r.models[i] = modelService{ahead: instant(r.random.Int64N(1000))}
	for _, a := range r.pending[i] {
		a.isLost = true
	}
	r.pending[i] = nil
	r.outcomes["killed"]++
}

// checkAdmissions counts them in their windows.
func (r *limitsReplay) checkAdmissions() {
	r.Helper()
	if r.outage {
		return // usage is merged later than it is promised
	}
	for window := range modelLengths {
		counted := map[instant][]int{} // the ticks, by the window's end
		for _, a := range r.admissions {
			if a.isLost {
				continue
			}
			ends := a.ends[window]
			counted[ends] = append(counted[ends], a.tick)
			excess := int64(len(counted[ends])) - a.limits[window]
			most := int64(r.busiest(counted[ends][0], a.tick))
			if excess > most {
				r.Errorf("%d too many are admitted, while %d arrive in half a second",
					excess, most)
			}
			r.outcomes["excess"] = max(r.outcomes["excess"], int(excess))
		}
	}
}

// busiest is how many requests have arrived in half a second between two ticks, at most. One
// service knows of all of them at once.
func (r *limitsReplay) busiest(first, last int) int {
	if len(r.services) == 1 {
		return 0
	}
	most := 0
	for tick := first; tick <= last; tick++ {
		sum := 0
		for _, n := range r.arrivals[max(0, tick-replayFlush+1) : tick+1] {
			sum += n
		}
		most = max(most, sum)
	}
	return most
}
