package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
	x := &inventory{db: s.db, key: s.key, crowd: gather(t, s, 16, true), metered: s.keyOfDay(), left: perDay}
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
	token := s.newKey("-plan", "enterprise", "-per-minute", "1000000", "-per-day", fmt.Sprint(perDay))
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
		if shown := s.command("key", "show", "-db", s.db, x.keys.kept.id); !strings.Contains(shown, "succeeded by key") {
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
// confirmed before. What a cluster holds is not replaced while anybody serves it,
// and by no mistake.
func TestAStoreMovesToAClusterAndBack(t *testing.T) {
	c, x := startCluster(t), newInventory(t)
	before, err := os.ReadFile(x.db)
	noError(t, err)
	restore := func(flags ...string) []string {
		return slices.Concat([]string{"restore", "-db", c.addresses()}, flags, []string{x.db})
	}
	succeeds(t, program(restore()...))
	if after, err := os.ReadFile(x.db); err != nil || string(after) != string(before) {
		t.Errorf("the copy was changed: %v", err)
	}
	services := serveBoth(c, x)
	x.left = x.hold(t, services...)
	x.add(t, services[0], skippedIDs)

	for _, flags := range [][]string{nil, {"-replace"}} {
		fails(t, program(restore(flags...)...), "a petstore serves it")
	}
	time.Sleep(time.Second) // the promise, by which all usage is stored
	for _, s := range services {
		s.kill()
	}
	killed := time.Now()
	fails(t, program(restore("-replace")...), "a petstore serves it")
	refused := refusedAs(t, program(restore()...).Args, "-replace")
	t.Logf("the services were held for alive for %v", refused.Sub(killed).Round(100*time.Millisecond))
	if alive := refused.Sub(killed); alive < 4*time.Second {
		t.Errorf("after %v a service that may run is taken for dead", alive)
	}
	services = serveBoth(c, x)
	x.left = x.hold(t, services...) // nothing of all that has changed anything
	t.Run("replaced", func(t *testing.T) { x.isReplaced(t, c, services) })
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

// refusedAs runs a command until it is refused for a reason, and returns when that was.
func refusedAs(t *testing.T, args []string, reason string) (at time.Time) {
	t.Helper()
	eventually(t, 15*time.Second, func() error {
		at = time.Now()
		p := launch(t, program(args[1:]...))
		if p.status() == 1 && strings.Contains(p.log.String(), reason) {
			return nil
		}
		return fmt.Errorf("%s", p.told())
	})
	return at
}

// isReplaced puts another database in the place of an inventory, which is kept.
func (x *inventory) isReplaced(t *testing.T, c *cluster, services []*server) {
	for _, s := range services {
		s.stop() // says that it is gone
	}
	other := &server{t: t, db: filepath.Join(t.TempDir(), "other.db")}
	other.key = other.newKey(unlimited...)
	succeeds(t, program("restore", "-db", c.addresses(), "-replace", other.db))
	s := c.serve(behindProxy...)
	s.key = other.key
	if pets := s.everyAnimal(t); len(pets) != 0 {
		t.Errorf("%d pets are still there", len(pets))
	}
	s.expect(t, x.key, "401 invalid_key")
	s.stop()
	kept, err := filepath.Glob(other.db + ".*.old")
	noError(t, err)
	if len(kept) != 1 {
		t.Fatalf("what the cluster held is kept as %q", kept)
	}
	old := &server{t: t, db: kept[0], key: x.key}
	old.run(behindProxy...)
	x.hold(t, old)
	old.stop()
}

// isCopiedInUse copies a cluster while clients create pets through two services.
func isCopiedInUse(t *testing.T, c *cluster) {
	c.clear()
	services := serveBoth(c, &inventory{})
	s := services[0]
	s.key = s.newKey(unlimited...)
	crowd := gather(t, s, 16, true)
	crowd.note(func() { crowd.urls = append(crowd.urls, services[1].url) })
	keys, metered := s.changeKeys(t), s.keyOfDay()
	p := &parish{services: services}
	left := p.awaitDayLeft(t, metered, perDay)
	time.Sleep(time.Second) // the promise, by which the last of them are stored
	copied := filepath.Join(t.TempDir(), "copy.db")
	before := crowd.acknowledged()
	succeeds(t, program("backup", "-db", c.addresses(), copied))
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
