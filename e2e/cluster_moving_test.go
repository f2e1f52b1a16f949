package e2e

// Proven here alone: a store moves from a file into real nodes and back with all that it holds, and
// a service that meets another database stops for good.

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// inventory is what a service has left in a file: pets, with and without Idempotency-Keys,
// and keys of all kinds, with usage and a ban.
type inventory struct {
	db, key string // its own key has no limits
	crowd   *crowd
	keys    changedKeys
	metered issued // perDay requests a day
	left    int    // of them
}

func newInventory(t *testing.T) *inventory {
	t.Helper()
	s := start(t, behindProxy...)
	x := &inventory{db: s.db, key: s.key, crowd: gather(t, s, 16), metered: s.keyOfDay(),
		left: perDay}
	x.keys = s.changeKeys(t)
	for range 80 {
		s.expect(t, x.metered.token, fmt.Sprint("200 of ", perDay))
		x.left--
	}
	x.crowd.leave()
	s.stop()
	return x
}

// perDay is a limit that leaves room for asking until services agree on what is left.
const perDay = 5000

// keyOfDay makes a key with that limit for the day, and none to speak of for the minute.
func (s *server) keyOfDay() issued {
	s.t.Helper()
	token := s.newKey("-plan", "enterprise", "-per-minute", "1000000", "-per-day",
		fmt.Sprint(perDay))
	return issued{token, fmt.Sprint(s.listed(token).ID)}
}

// hold wants everything there through several services. It returns what is left of the
// day after that.
func (x *inventory) hold(t *testing.T, services ...*server) (left int) {
	t.Helper()
	for _, s := range services {
		x.crowd.compare(t, s, x.crowd.animals)
		x.crowd.repeat(t, s, x.crowd.animals)
		x.keys.hold(t, s)
		shown := s.command("key", "show", "-json", "-db", s.db, x.keys.kept.id)
		if strings.Contains(shown, `"succeededBy": null`) {
			t.Errorf("a key that was rotated is shown as\n%s", shown)
		}
	}
	return (&parish{services: services}).awaitDayLeft(t, x.metered, x.left)
}

// add adds a pet and a key, which must get ids that nobody had.
func (x *inventory) add(t *testing.T, s *server, skipped int64) {
	t.Helper()
	name := fmt.Sprint("added to ", s.db)
	lastPet := slices.Max(slices.Collect(maps.Values(x.crowd.animals)))
	lastKey := query[int64](t, x.db, "SELECT max(id) FROM api_keys")
	r, err := call(s.url, s.key, "POST", "/pets", animalJSON(name), "")
	noError(t, err)
	made := decode[pet](t, r.body)
	if want := lastPet + skipped + 1; made.ID != want {
		t.Errorf("the next pet has the id %d, want %d: %s", made.ID, want, r.body)
	}
	if id := s.listed(s.newKey()).ID; id != lastKey+skipped+1 {
		t.Errorf("the next key has the id %d, want %d", id, lastKey+skipped+1)
	}
	x.crowd.note(func() { x.crowd.animals[name] = made.ID })
}

const skippedIDs = 1_000_000

// TestAStoreMovesToAClusterAndBack loads a file into a cluster, which then has all of
// it, and copies a cluster that is in use to a file, which then has all that was
// confirmed before. What a cluster holds is never replaced: to go back
// to an older copy takes new nodes.
func TestAStoreMovesToAClusterAndBack(t *testing.T) {
	t.Parallel()
	c, x := startCluster(t), newInventory(t)
	before, err := os.ReadFile(x.db)
	noError(t, err)
	restore := []string{"restore", "-db", c.addresses(), x.db}
	succeeds(t, program(restore...))
	if after, err := os.ReadFile(x.db); err != nil || string(after) != string(before) {
		t.Errorf("the copy was changed: %v", err)
	}
	services := serveBoth(c, x)
	x.left = x.hold(t, services...)
	x.add(t, services[0], skippedIDs)

	const refused = "nothing is overwritten; start nodes with empty folders"
	fails(t, program(restore...), refused)
	time.Sleep(time.Second) // the promise, by which all usage is stored
	for _, s := range services {
		s.kill()
	}
	fails(t, program(restore...), refused)
	services = serveBoth(c, x)
	x.left = x.hold(t, services...) // nothing of all that has changed anything
	t.Run("brought back", func(t *testing.T) { x.isBroughtBack(t, c, services) })
	t.Run("copied", func(t *testing.T) { isCopiedInUse(t, c) })
}

// serveBoth starts two services on a cluster that has an inventory.
func serveBoth(c *cluster, x *inventory) (services []*server) {
	c.t.Helper()
	for range 2 {
		s := c.serve(behindProxy...)
		s.key = x.key
		services = append(services, s)
	}
	return services
}

// isBroughtBack goes back to an older copy on new nodes, which a service that was started
// too early has made a key on, and then on newer ones. A service that goes on meanwhile meets
// another database.
func (x *inventory) isBroughtBack(t *testing.T, c *cluster, services []*server) {
	abandoned := services[0]
	services[1].stop()
	copied := abandoned.copyTo(t)
	restore := []string{"restore", "-db", c.addresses(), "-skip-ids", "0", copied}
	c.clear()
	early := &server{t: t, db: c.addresses()}
	early.run()
	early.stop()
	fails(t, program(restore...), "it holds or held pets or keys, and nothing is overwritten")
	c.clear()
	succeeds(t, program(restore...))
	services = serveBoth(c, x)
	x.left = x.hold(t, services...)
	for _, s := range services {
		s.stop()
	}
	abandoned.hasStoppedForGood(t)
}

// hasStoppedForGood wants a service to have met another database than its own: it answers 503, and
// its end says why.
func (s *server) hasStoppedForGood(t *testing.T) {
	t.Helper()
	s.expect(t, s.key, "503 unavailable")
	if id, err := createNamed(callers, s, "late"); err == nil {
		t.Errorf("a pet is created, as %d", id)
	}
	s.interrupt()
	if n := strings.Count(s.log.String(), "stopped for good"); n != 1 {
		t.Errorf("the log says so %d times:\n%s", n, tail(s.log.String()))
	}
}

// isCopiedInUse copies a cluster while clients create pets through two services.
func isCopiedInUse(t *testing.T, c *cluster) {
	c.clear()
	services := serveBoth(c, &inventory{})
	s := services[0]
	s.key = s.newKey(unlimited...)
	crowd := gather(t, s, 16)
	crowd.note(func() { crowd.urls = append(crowd.urls, services[1].url) })
	keys, metered := s.changeKeys(t), s.keyOfDay()
	p := &parish{services: services}
	left := p.awaitDayLeft(t, metered, perDay)
	time.Sleep(time.Second) // the promise, by which the last of them are stored
	before := crowd.acknowledged()
	copied := s.copyTo(t)
	late := s.newKey()
	crowd.leave()

	restored := &server{t: t, db: copied, key: s.key}
	restored.run(behindProxy...)
	crowd.compare(t, restored, before)
	crowd.repeat(t, restored, before)
	keys.hold(t, restored)
	restored.expect(t, late, "401 invalid_key")
	(&parish{services: []*server{restored}}).awaitDayLeft(t, metered, left)
	created, err := createNamed(callers, restored, "the first of the copy")
	noError(t, err)
	if last := slices.Max(slices.Collect(maps.Values(before))); created <= last+skippedIDs {
		t.Errorf("the next pet of the copy has the id %d, and %d was given before", created, last)
	}
	t.Logf("%d pets were confirmed before the backup, %d in all", len(before), len(crowd.animals))
	restored.stop()
}
