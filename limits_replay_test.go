package main

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

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

// tell lets a service go on from what is stored. What was not added, and is not over, is sent again.
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
	one := func(t *testing.T) *limitsWorld {
		return newLimits(t, databasePath(t), quota{}, 1)
	}
	three := func(t *testing.T) *limitsWorld {
		return newLimits(t, newCluster(t, 3).addresses(), quota{}, 3)
	}
	for _, c := range []struct {
		name   string
		world  func(*testing.T) *limitsWorld
		outage bool
	}{
		{"one service", one, false},
		{"one service, while flushes fail", one, true},
		{"three services", three, false},
		{"three services, while flushes fail", three, true},
	} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s, seed %d", c.name, seed), func(t *testing.T) {
				r := &limitsReplay{limitsWorld: c.world(t), outage: c.outage, now: testStart}
				r.random = rand.New(rand.NewPCG(seed, 0))
				r.models = make([]modelService, len(r.services))
				r.pending = make([][]*limitsAdmission, len(r.services))
				r.outcomes = map[string]int{}
				r.changePlan()
				for range 40 {
					r.burst()
					r.pause()
				}
				r.checkAdmissions()
				t.Logf("%v in %d hours", r.outcomes, (r.now-testStart)/3_600_000)
			})
		}
	}
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
	d, err := r.services[i].admit(&r.key.account, now.time())
	must(r, err)
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
	err := l.flush(r.Context(), now.time)
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
