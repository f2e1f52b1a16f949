package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

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
	ends       instant // of the minute that it adds to
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
	l := e.w.limiter()
	ends := instant(l.batch.usages[1].Minute.Ends)
	e.w.meanwhile()
	fate := e.w.random.IntN(6)
	if fate < 2 {
		e.w.late = append(e.w.late, lateFlush{statements, l.service, ends})
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
	got, err := w.limiter().admit(&w.key.account, now.time())
	must(w, err)
	want := w.ideal.admit(&w.key.account, now, 0)
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
	if err := w.limiter().flush(w.Context(), func() time.Time { return w.now.time() }); err != nil {
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
	isDead := late.service != w.limiter().service
	if isDead && runs(late.ends, w.now, minuteMillis) {
		return
	}
	must(w, errorOf(engine.write(w.Context(), late.statements)))
	w.seen[fmt.Sprintf("late flushes, of the dead %v", isDead)]++
}

// restart kills the service. What it has not stored is forgotten.
func (w *lateWorld) restart() {
	w.services[0] = newLedger(w.store(), 0)
	stored := &usage{}
	row := func(scan scanner) error { return scan(stored.columns()...) }
	e := w.store().engine.(*slowNetwork)
	must(w, e.engine.read(w.Context(), sqlOf(usageQuery, int64(1)), row))
	w.ideal = usage{minute: bucket{used: stored.minute.used, ends: stored.minute.ends}}
	w.ideal.day = stored.day
}

// TestAServiceIsExactWhateverIsLate, lost, repeated or in another order, also when its clock is
// changed and when it is killed.
func TestAServiceIsExactWhateverIsLate(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := &lateWorld{limitsWorld: newLimitsOnFile(t, quota{9, 1_000_000}), now: testStart}
			w.random = rand.New(rand.NewPCG(seed, 0))
			w.seen = map[string]int{}
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

// overtakenEngine answers a reading once something else has happened.
type overtakenEngine struct {
	engine
	meanwhile func()
}

func (e *overtakenEngine) read(ctx context.Context, q statement, row func(scanner) error) error {
	err := e.engine.read(ctx, q, row)
	e.meanwhile()
	return err
}

// TestAUsageThatIsReadLateIsReadAgain: flushes have ended since, of which the last had nothing to
// send.
func TestAUsageThatIsReadLateIsReadAgain(t *testing.T) {
	w := newLimits(t, newCluster(t, 3).addresses(), quota{60, 1000}, 1)
	isFirst := true
	w.store().engine = &overtakenEngine{w.store().engine, func() {
		if isFirst {
			isFirst = false
			w.play(`
				0.1s: 60 admitted
				0.5s: flush
				1s: flush`)
		}
	}}
	w.play("0.1s: 1 rate_limited, minute 0 until 1m0.1s")
}

// TestAUsageThatIsForgottenWhileItIsReadIsReadAgain: others have used it since the reading began,
// and a flush has stored it.
func TestAUsageThatIsForgottenWhileItIsReadIsReadAgain(t *testing.T) {
	w := newLimitsOnFile(t, quota{60, 1000})
	isFirst := true
	w.store().engine = &overtakenEngine{w.store().engine, func() {
		if isFirst {
			isFirst = false
			w.play("0.1s: 60 admitted")
			for id := range int64(maxUsages) {
				w.limiter().usages[-id-1] = &usage{}
			}
			w.play("0.5s: flush")
		}
	}}
	w.play("0.1s: 1 rate_limited, minute 0 until 1m0.1s")
}

// TestAReadingThatTakesLongerThanFlushesEnds: flushes that do not know the usage leave it new.
func TestAReadingThatTakesLongerThanFlushesEnds(t *testing.T) {
	w := newLimits(t, newCluster(t, 3).addresses(), quota{60, 1000}, 1)
	readings := 0
	w.store().engine = &overtakenEngine{w.store().engine, func() {
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
