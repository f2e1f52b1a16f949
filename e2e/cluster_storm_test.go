package e2e

// Proven here alone: on real nodes, nothing that was confirmed is lost or missing in a list while
// one thing after the other is killed, frozen, cut off, reloaded, or paused.

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"petstore/e2e/planted"
)

// TestAStormLosesNothing has 64 clients create pets through HAProxy, three
// services and three nodes, of which one after the other is killed, frozen or cut
// off, while others read. Whatever was acknowledged is in every list and
// under its id from that moment on, and in the end every pet is there once.
func TestAStormLosesNothing(t *testing.T) {
	t.Parallel()
	s := newStorm(t, "")
	rounds := soak(1)
	for s.number = range rounds {
		s.round()
		if t.Failed() {
			return // the other rounds would say it all again
		}
	}
	for _, service := range s.services {
		s.audit(service)
	}
	s.compareNodes()
	for what, toll := range s.tolls {
		t.Logf("in %d rounds while %s: %s", rounds, what, toll)
	}
	t.Logf("%d pauses; shown or let in late: %d; while the engine was slow, after %d of them",
		s.pauses, s.late, s.excused)
	t.Logf("%d pets stored, %d acknowledged; lost: %d, stored twice: %d", s.stored, s.acknowledged,
		s.lost, s.doubled)
}

// unlimited are the flags of a key with limits that no test reaches.
var unlimited = []string{"-plan", "enterprise", "-per-minute", "1000000000", "-per-day",
	"1000000000000"}

// witness remembers every pet that anybody was told of, and holds lists
// against that. It is safe for concurrent use.
type witness struct {
	*census
	last     atomic.Int64 // the highest id so far
	full     sync.Map     // first pages by their limits, which never change once they are full
	problems atomic.Int32
	watch    *watch // keeps the evidence of a reading that is wrong
}

// newWitness is one of a cluster that is watched.
func newWitness(t *testing.T, watch *watch) *witness {
	return &witness{census: newCensus(t), watch: watch}
}

// note holds a pet against all that are known, until something is wrong: every
// list would tell that again. It reports whether it agrees.
func (w *witness) note(id int64, name string) (sound bool) {
	if w.t.Failed() {
		return true
	}
	sound = w.census.note(id, name)
	for last := w.last.Load(); id > last && !w.last.CompareAndSwap(last, id); last = w.last.Load() {
	}
	return sound
}

// complain reports a mistake, unless there were enough to see what is wrong.
func (w *witness) complain(format string, args ...any) {
	w.t.Helper()
	if w.problems.Add(1) <= 20 {
		w.t.Errorf("%s "+format, append([]any{stamp()}, args...)...)
	}
}

// known are the pets with ids above one, up to a page's worth and more.
func (w *witness) known(after int64) map[int64]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	pets := map[int64]string{}
	for id := after + 1; id <= after+2*pageSize; id++ {
		if name, ok := w.names[id]; ok {
			pets[id] = name
		}
	}
	return pets
}

const pageSize = 100

// unanswered reports whether a response says nothing of what became of the
// request: it did not come, or is a 503 of the service's, or one of HAProxy's.
func unanswered(a *answer, err error) bool {
	return err != nil || a.status == http.StatusBadGateway ||
		a.status == http.StatusServiceUnavailable ||
		a.status == http.StatusGatewayTimeout
}

// list asks for a page, and wants every pet in it that was known before, and in a first
// page that was full before nothing else. It reports whether there was an answer.
func (w *witness) list(url, token string, limit int, after int64) (answered bool) {
	expected, first := w.known(after), after == 0
	fresh := fmt.Sprintf("/pets?limit=%d&after=%d", pageSize-1, after)
	target := fmt.Sprintf("/pets?limit=%d&after=%d", limit, after)
	if first { // as clients do, which is what services remember
		target = fmt.Sprint("/pets?limit=", limit)
	}
	got, err := call(url, token, "GET", target, "", "")
	if unanswered(got, err) {
		return false
	}
	sound := true
	complain := func(format string, args ...any) {
		w.t.Helper()
		sound = false
		w.complain(format, args...)
	}
	defer func() {
		if !sound {
			w.watch.keepReading(reading{url, token, target, got, fresh})
		}
	}()
	var page []pet
	if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != http.StatusOK {
		complain("GET %s%s: %d %s", url, target, got.status, got.body)
		return true
	}
	listed := map[int64]bool{}
	for _, p := range page {
		if p.ID <= after {
			complain("GET %s%s: %s, which has the id %d, comes after %d", url, target, p.Name,
				p.ID, after)
		}
		after = p.ID
		listed[p.ID] = true
		if !w.note(p.ID, p.Name) {
			sound = false
		}
	}
	for id, name := range expected {
		if !listed[id] && (len(page) < limit || id < after) {
			complain("GET %s%s lacks %s, which has the id %d and was known before", url, target,
				name, id)
			break
		}
	}
	if first && len(page) == limit {
		if full, other := w.full.LoadOrStore(limit, got.body); other && full != got.body {
			complain("GET %s%s was %s and is %s", url, target, full, got.body)
		}
	}
	return true
}

// get asks for a pet that is known, and reports whether there was an answer.
func (w *witness) get(url, token string, id int64) (answered bool) {
	w.mu.Lock()
	name, ok := w.names[id]
	w.mu.Unlock()
	if !ok {
		return false
	}
	target := fmt.Sprint("/pets/", id)
	got, err := call(url, token, "GET", target, "", "")
	if unanswered(got, err) {
		return false
	}
	var p pet
	if err := json.Unmarshal([]byte(got.body), &p); err != nil || got.status != http.StatusOK ||
		p.Name != name {
		w.complain("GET %s%s, which is %s: %d %s", url, target, name, got.status, got.body)
		fresh := fmt.Sprintf("/pets?limit=1&after=%d", id-1)
		w.watch.keepReading(reading{url, token, target, got, fresh})
	}
	return true
}

// storm is a cluster, what stands in front of it, and what becomes of it.
type storm struct {
	*testing.T
	*witness
	cluster  *cluster
	services []*server
	balancer *balancer
	keys     []string

	writers int
	number  int         // of the round
	over    atomic.Bool // the round is: clients finish what they are at

	mu           sync.Mutex   // guards what follows
	acks         []time.Time  // when creates were acknowledged since the outage began, in order
	unknown      int          // creates without an answer since then
	acknowledged int          // creates, of all rounds
	pending      []repeatable // whose outcome is unknown in spite of an Idempotency-Key

	// What the rounds and the audits have found.
	tolls                 map[string]*toll
	stored, lost, doubled int
	pauses, late, excused int
}

// repeatable is a create that can be repeated.
type repeatable struct{ token, name string }

// newStorm starts a cluster, three services and HAProxy. The services are of the program under
// test, or of another one.
func newStorm(t *testing.T, program string, options ...func(*cluster)) *storm {
	t.Helper()
	c := startCluster(t, options...)
	c.program = program
	s := &storm{T: t, cluster: c, tolls: map[string]*toll{}, writers: 64}
	for range 3 {
		s.services = append(s.services, c.serve(debugFlags...))
	}
	s.witness = newWitness(t, c.watch(s.services))
	for range 12 { // several, or HAProxy would hash them all to one service
		s.keys = append(s.keys, s.services[0].newKey(unlimited...))
	}
	s.awaitKeys()
	s.balancer = startBalancer(t, s.services)
	return s
}

// toll is what outages of a kind cost in all.
type toll struct {
	acknowledged, unknown int
	longest               time.Duration // between two creates that were acknowledged
}

func (x *toll) String() string {
	return fmt.Sprintf("%d creates acknowledged, %d of unknown outcome, none acknowledged for %d "+
		"ms at the most",
		x.acknowledged, x.unknown, x.longest.Milliseconds())
}

// awaitKeys waits until every service takes every key.
func (s *storm) awaitKeys() {
	s.Helper()
	for _, service := range s.services {
		for _, key := range s.keys {
			eventually(s.T, 10*time.Second, func() error {
				got, err := call(service.url, key, "GET", "/pets?limit=1", "", "")
				if err == nil && got.status != http.StatusOK {
					err = fmt.Errorf("a new key gets %d %s", got.status, got.body)
				}
				return err
			})
		}
	}
}

const readers = 4

// round lets every kind of outage happen once among clients.
func (s *storm) round() {
	outages := s.outages()
	for _, service := range planted.Some(s.Name(), 1, s.services) {
		outages = append(outages, s.pause(service))
	}
	s.amid(func() {
		for _, o := range outages {
			if s.suffer(o); s.Failed() {
				return
			}
		}
	})
}

// amid lets something happen among clients. Then it settles what has no outcome yet, and audits.
func (s *storm) amid(happens func()) {
	s.over.Store(false)
	var clients sync.WaitGroup
	for i := range s.writers {
		clients.Go(func() { s.write(i) })
	}
	for i := range readers {
		clients.Go(func() { s.read(i) })
	}
	func() {
		defer clients.Wait()
		defer s.over.Store(true)
		s.recover()
		happens()
	}()
	if !s.Failed() {
		s.settle()
		s.audit(s.services[s.number%len(s.services)])
	}
}

// write creates pets, every other writer under Idempotency-Keys. Half of
// the writers come to another service each time.
func (s *storm) write(writer int) {
	url := []string{s.balancer.hashing, s.balancer.roundRobin}[writer/2%2]
	for n := 0; !s.over.Load(); n++ {
		o := repeatable{s.keys[writer%len(s.keys)], fmt.Sprintf("round-%d-writer-%d-pet-%d",
			s.number+1, writer, n)}
		once := writer%2 == 0
		if !s.create(url, o, once) && once {
			s.mu.Lock()
			s.pending = append(s.pending, o)
			s.mu.Unlock()
		}
		// the machine must have some time left for elections
		time.Sleep(rand.N(100 * time.Millisecond))
	}
}

// create creates a pet and reports whether that was acknowledged. With an
// Idempotency-Key, which is the name, it is repeated until then, and at times even once more.
func (s *storm) create(url string, o repeatable, once bool) (acknowledged bool) {
	key := ""
	if once {
		key = o.name
	}
	for !acknowledged || once && rand.N(8) == 0 {
		got, err := call(url, o.token, "POST", "/pets", animalJSON(o.name), key)
		var made pet
		switch {
		case unanswered(got, err):
			s.count(false)
			if !once || s.over.Load() {
				return acknowledged
			}
			// as a client should, which knows that something is wrong
			time.Sleep(rand.N(200 * time.Millisecond))
		case got.status != http.StatusCreated || json.Unmarshal([]byte(got.body), &made) != nil ||
			made.Name != o.name:
			s.complain("the create of %s is answered %d %s", o.name, got.status, got.body)
			return acknowledged
		default:
			s.note(made.ID, made.Name)
			if !acknowledged {
				s.count(true)
			}
			acknowledged = true
		}
	}
	return true
}

func (s *storm) count(acknowledged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if acknowledged {
		s.acknowledged++
		s.acks = append(s.acks, time.Now())
	} else {
		s.unknown++
	}
}

// read gets pets and lists them, above all the newest, from HAProxy and from
// every service, and the first ones, which services remember.
func (s *storm) read(reader int) {
	urls := []string{s.balancer.hashing, s.balancer.roundRobin}
	for _, service := range s.services {
		urls = append(urls, service.url)
	}
	for n := reader; !s.over.Load(); n++ {
		url, token, last := urls[n%len(urls)], s.keys[rand.N(len(s.keys))], s.last.Load()
		s.list(url, token, pageSize, max(0, last-rand.Int64N(2*pageSize)))
		s.list(url, token, pageSize, rand.Int64N(last+1))
		s.list(url, token, []int{20, pageSize}[n%2], 0)
		s.get(url, token, max(1, last-rand.Int64N(2*pageSize)))
		time.Sleep(5 * time.Millisecond)
	}
}

// outage is a time during which something does not work.
type outage struct {
	what     string
	ofLeader bool // services may have no leader meanwhile
	lasts    time.Duration
	begin    func() (end func())
}

func (o outage) pass() {
	end := o.begin()
	time.Sleep(o.lasts)
	end()
}

func (s *storm) outages() []outage {
	c := s.cluster
	follower := func() int { return c.followers()[s.number%2] }
	killed := func(i int) func() {
		c.kill(i)
		return func() { c.restart(i) }
	}
	frozen := func(i int) func() {
		c.pause(i)
		return func() { c.resume(i) }
	}
	cut := func(a, b int) func() {
		c.cut(a, b)
		return func() { c.mend(a, b) }
	}
	return []outage{
		{"the leader is killed", true, 3 * time.Second,
			func() func() { return killed(c.leader()) }},
		{"a follower is killed", false, 2 * time.Second,
			func() func() { return killed(follower()) }},
		{"a service is killed", false, 2 * time.Second, func() func() {
			service := s.services[s.number%len(s.services)]
			service.kill()
			return func() { service.again(debugFlags...) }
		}},
		{"the leader is frozen", true, 6 * time.Second,
			func() func() { return frozen(c.leader()) }},
		{"a follower is frozen", false, 4 * time.Second,
			func() func() { return frozen(follower()) }},
		{"the leader is cut off from a follower", true, 5 * time.Second,
			func() func() { return cut(c.leader(), follower()) }},
		{"the leader is cut off from the others", true, 5 * time.Second, func() func() {
			leader := c.leader()
			c.cutOff(leader)
			return func() { c.mendOff(leader) }
		}},
		{"the services are cut off from the leader", true, 6 * time.Second,
			func() func() { return cut(services, c.leader()) }},
		{"HAProxy is reloaded", false, time.Second, func() func() {
			s.balancer.reload()
			return s.balancer.reload
		}},
	}
}

// pause stops a service for 0.5 to 5 s, and the leader stays within reach. Meanwhile a key is
// revoked and a pet is sold, by which the service then goes, from a second after that on.
func (s *storm) pause(service *server) outage {
	lasts := 500*time.Millisecond + rand.N(4500*time.Millisecond)
	return outage{"a service is paused", false, lasts, func() func() {
		key, target := service.keyOf("1000000"), fmt.Sprint("/pets/", s.last.Load())
		for range 3 { // so that both are remembered
			mustCall(s.T, service, key.token, "GET", target, "")
		}
		noError(s.T, service.cmd.Process.Signal(syscall.SIGSTOP))
		service.command("key", "revoke", "-db", service.db, key.id)
		service.command("pet", "set", "-db", service.db, "-status", "sold", path.Base(target))
		holds := time.Now().Add(time.Second)
		return func() {
			noError(s.T, service.cmd.Process.Signal(syscall.SIGCONT))
			time.Sleep(time.Until(holds))
			doubts := &doubts{t: s.T}
			for range 20 {
				doubts.want(service.url+target, key.token, "401 ")
				doubts.want(service.url+target, s.keys[0], `"sold"`)
			}
			s.pauses++
			s.late += len(doubts.old)
			if !doubts.judge(service.url+target, key.token, s.keys[0], `"sold"`) {
				s.excused++
			}
		}
	}}
}

// suffer lets an outage begin, last and end, and tells what it cost until
// everything worked again.
func (s *storm) suffer(o outage) {
	s.Helper()
	s.mu.Lock()
	began := time.Now()
	s.acks, s.unknown = nil, 0
	s.mu.Unlock()
	o.pass()
	s.recover()

	s.mu.Lock()
	defer s.mu.Unlock()
	cost := toll{acknowledged: len(s.acks), unknown: s.unknown, longest: s.silence(began)}
	s.Logf("round %d, %s: %v", s.number+1, o.what, &cost)
	sum := s.tolls[o.what]
	if sum == nil {
		sum = &toll{}
		s.tolls[o.what] = sum
	}
	sum.acknowledged += cost.acknowledged
	sum.unknown += cost.unknown
	sum.longest = max(sum.longest, cost.longest)
}

// silence is the longest time since then in which no create was acknowledged. The caller holds mu.
func (s *storm) silence(since time.Time) (longest time.Duration) {
	for _, at := range append(slices.Clone(s.acks), time.Now()) {
		if at.After(since) {
			longest = max(longest, at.Sub(since))
			since = at
		}
	}
	return longest
}

// recover waits until every node and every service is ready and the writers go on.
func (s *storm) recover() {
	s.Helper()
	s.awaitReady()
	s.mu.Lock()
	before := s.acknowledged
	s.mu.Unlock()
	eventually(s.T, 30*time.Second, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.acknowledged < before+2*s.writers {
			return fmt.Errorf("%d creates were acknowledged since everything is ready",
				s.acknowledged-before)
		}
		return nil
	})
}

// awaitReady waits until every node and every service is ready.
func (s *storm) awaitReady() {
	s.Helper()
	for i := range s.cluster.nodes {
		s.cluster.awaitReady(i)
	}
	for _, service := range s.services {
		service.awaitReady()
	}
}

// awaitReady waits until /readyz tells balancers that they may come.
func (s *server) awaitReady() {
	s.t.Helper()
	client := &http.Client{Timeout: 10 * time.Second}
	eventually(s.t, 30*time.Second, func() error {
		response, err := client.Get(s.address() + "/readyz")
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz is %s:\n%s", response.Status, tail(s.log.String()))
		}
		return nil
	})
}

// settle repeats what has no outcome yet and can be repeated.
func (s *storm) settle() {
	s.Helper()
	for i, o := range s.pending {
		eventually(s.T, 30*time.Second, func() error {
			if !s.create(s.services[i%len(s.services)].url, o, true) {
				return fmt.Errorf("%s is not made", o.name)
			}
			return nil
		})
	}
	s.pending = nil
}

// audit lists all pets through a service, and wants everybody there who is known, once.
func (s *storm) audit(service *server) {
	s.Helper()
	stored := everyPet(s.T, func(target string) string {
		got, err := call(service.url, s.keys[0], "GET", target, "", "")
		noError(s.T, err)
		return got.body
	})
	s.stored = len(stored)
	for name, id := range s.ids {
		if !slices.Contains(stored[name], id) {
			s.lost++
			s.complain("%s, which has the id %d, is listed as %v", name, id, stored[name])
		}
	}
	named := map[int64]string{}
	for name, ids := range stored {
		for _, id := range ids {
			if named[id] != "" || len(ids) > 1 {
				s.doubled++
				s.complain("%s is listed as %v; %d is %s too", name, ids, id, named[id])
			}
			named[id] = name
			s.note(id, name)
		}
	}
}

// compareNodes wants every node's own copy to hold the same rows. After a failure, the watch tells.
func (s *storm) compareNodes() {
	s.Helper()
	if text := s.watch.lastingDifferences(); text != "" {
		s.Errorf("the nodes hold different rows:\n%s", text)
	}
}

// TestAListLacksNothingWhileTheLeaderIsFrozenOrCutOff creates pets through one service
// after the other and lists them through the others as soon as they are acknowledged,
// before, while and after the leader is frozen, or cut off from its followers though
// not from the services, and does not know that another leads. One service knows no
// other node than that: it may refuse, but not tell what was true before.
func TestAListLacksNothingWhileTheLeaderIsFrozenOrCutOff(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	var all []*server
	for range 3 {
		all = append(all, c.serve())
	}
	key := all[0].newKey(unlimited...)
	watch := c.watch(all)
	for _, o := range []struct {
		what       string
		lasts      time.Duration
		begin, end func(leader int)
	}{
		{"frozen", 10 * time.Second, c.pause, c.resume},
		{"cut off", 6 * time.Second, c.cutOff, c.mendOff},
	} {
		t.Run(o.what, func(t *testing.T) {
			leader := c.leader()
			lonely := &server{t: t, db: c.url(leader)}
			lonely.run()
			for _, s := range append(all, lonely) {
				s.awaitReady()
			}
			p := &pursuit{witness: newWitness(t, watch), services: all, key: key}
			stop := p.keepListing(lonely)
			p.during(time.Second)
			o.begin(leader)
			p.during(o.lasts)
			t.Logf("then: %d pets acknowledged, %d lists answered and %d not", p.pets, p.lists,
				p.refused)
			if p.pets == 0 || p.lists == 0 {
				t.Error("while another node leads, nothing works")
			}
			o.end(leader)
			p.during(3 * time.Second)
			t.Logf("after that: %d pets acknowledged, %d lists answered and %d not", p.pets,
				p.lists, p.refused)
			stop()
		})
	}
}

// pursuit is a client whose pets are looked for as soon as they are acknowledged.
type pursuit struct {
	*witness
	services []*server
	key      string
	number   int // of pets that were to be created

	pets, lists, refused int // of the latest time
}

func (p *pursuit) during(lasts time.Duration) {
	p.pets, p.lists, p.refused = 0, 0, 0
	for until := time.Now().Add(lasts); time.Now().Before(until) && !p.t.Failed(); {
		p.number++
		writer := p.services[p.number%len(p.services)]
		got, err := call(writer.url, p.key, "POST", "/pets",
			animalJSON(fmt.Sprint(p.t.Name(), " ", p.number)), "")
		if unanswered(got, err) {
			continue
		}
		var made pet
		if err := json.Unmarshal([]byte(got.body), &made); err != nil ||
			got.status != http.StatusCreated {
			p.complain("a create is answered %d %s", got.status, got.body)
			return
		}
		p.note(made.ID, made.Name)
		p.pets++
		p.listEverywhere()
	}
}

// listEverywhere asks all services at once for the end of the list, for more than
// that, and for the first page, so that the newest pet is on pages of several kinds.
func (p *pursuit) listEverywhere() {
	var mu sync.Mutex
	var asking sync.WaitGroup
	last := p.last.Load()
	for _, s := range p.services {
		for _, after := range []int64{0, max(0, last-30), last - 1} {
			asking.Go(func() {
				answered := p.list(s.url, p.key, pageSize, after) && p.get(s.url, p.key, last)
				mu.Lock()
				defer mu.Unlock()
				if answered {
					p.lists++
				} else {
					p.refused++
				}
			})
		}
	}
	asking.Wait()
}

// keepListing lists the end through a service, so that requests are waiting there
// at any moment, until stop.
func (p *pursuit) keepListing(s *server) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var answered, refused atomic.Int64
	var clients sync.WaitGroup
	for range readers {
		clients.Go(func() {
			for ctx.Err() == nil && !p.t.Failed() {
				if p.list(s.url, p.key, pageSize, max(0, p.last.Load()-30)) {
					answered.Add(1)
				} else {
					refused.Add(1)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	return func() {
		cancel()
		clients.Wait()
		p.t.Logf("the service that knows that node alone answered %d lists and refused %d",
			answered.Load(), refused.Load())
	}
}
