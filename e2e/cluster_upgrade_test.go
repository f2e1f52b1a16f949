package e2e

// Proven here alone: services of an older version go on beside the next one, and are replaced under
// load, on a file and on a cluster.

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestServicesAreReplacedOneByOne runs services of a version under load beside
// commands, and on a cluster beside a service, of the next, which has changed the schema,
// and then replaces them. They go on without an error, changes hold in them
// within a second, and nothing that was stored or counted is lost.
func TestServicesAreReplacedOneByOne(t *testing.T) {
	t.Parallel()
	next := buildNext(t)
	onBothEngines(t, func(t *testing.T, on engine) { newSuccession(t, on, next).take() })
}

// succession is services of the version under test, whose place those of the next take.
type succession struct {
	*testing.T
	parish
	newer    string   // the file of its program
	versions [2]int64 // of the schema, of both
	crowd    *crowd
	metered  issued // perDay requests a day
	left     int    // of them
}

// newSuccession starts the services of the older version: one on a file, two on a cluster.
func newSuccession(t *testing.T, on engine, newer string) *succession {
	t.Helper()
	x := &succession{T: t, parish: parish{cluster: on.cluster}, newer: newer}
	first := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
	if on.cluster != nil {
		first.db = on.cluster.addresses()
	}
	first.key = first.newKey(unlimited...)
	x.versions[0] = x.version(first)
	x.begin(first, "")
	if on.cluster != nil {
		x.begin(&server{t: t, db: first.db, key: first.key}, "")
	}
	return x
}

// version is that of the schema.
func (x *succession) version(s *server) int64 {
	x.Helper()
	if x.cluster == nil {
		return query[int64](x.T, s.db, "PRAGMA user_version")
	}
	return int64(x.cluster.number("PRAGMA user_version"))
}

// begin starts one more service.
func (x *succession) begin(s *server, version string) {
	x.Helper()
	s.serves = version
	s.run(append([]string{"-addr", ownAddress(x.T)}, behindProxy...)...)
	x.services = append(x.services, s)
}

// take is the whole succession.
func (x *succession) take() {
	first := x.services[0]
	x.crowd = gather(x.T, first, 16)
	for _, s := range x.services[1:] {
		x.crowd.note(func() { x.crowd.urls = append(x.crowd.urls, s.url) })
	}
	x.metered, x.left = first.keyOfDay(), perDay
	x.spend(40)

	for _, s := range x.services {
		s.commands = x.newer
	}
	x.look()
	olders := slices.Clone(x.services)
	if x.cluster != nil { // where several may serve
		x.begin(&server{t: x.T, db: first.db, key: first.key, commands: x.newer}, x.newer)
		newest := x.services[len(x.services)-1].url
		x.crowd.note(func() { x.crowd.urls = append(x.crowd.urls, newest) })
	} else {
		x.replace(first)
		olders = nil
	}
	keys := x.command()
	x.hold(keys)
	x.change()
	x.spend(40)
	for _, s := range olders {
		x.replace(s)
		x.spend(10)
	}
	x.refuse()
	x.spend(10)
	x.hold(keys)

	x.crowd.leave()
	x.checkUsage()
	for _, s := range x.services {
		x.crowd.compare(x.T, s, x.crowd.animals)
	}
	x.crowd.repeat(x.T, first, x.crowd.animals)
	if len(x.crowd.animals) < 100 {
		x.Errorf("only %d animals were created meanwhile", len(x.crowd.animals))
	}
	x.complain()
}

// look runs commands of the newer version beside services of the older, which leave the
// schema as it is.
func (x *succession) look() {
	x.Helper()
	first := x.services[0]
	for _, line := range []string{"key list", "key show 1", "pet export", "key create"} {
		fails(x.T, first.program(append(strings.Fields(line), "-db", first.db)...),
			"start the service first")
	}
	copied := first.copyTo(x.T)
	version := query[int64](x.T, copied, "PRAGMA user_version")
	if now := x.version(first); version != x.versions[0] || now != x.versions[0] {
		x.Fatalf("looked at, the schema %d becomes %d, and %d in a copy", x.versions[0], now,
			version)
	}
}

// command runs every command of the newer version, on a cluster beside services of the
// older, once a service of the newer has begun, which changes the schema.
func (x *succession) command() changedKeys {
	x.Helper()
	first := x.services[0]
	if x.versions[1] = x.version(first); x.versions[1] <= x.versions[0] {
		x.Fatalf("the newer version leaves the schema at %d", x.versions[0])
	}
	keys := first.changeKeys(x.T)
	for i, s := range x.services {
		s.awaitReady()
		s.command("key", "set", "-db", s.db, "-name", fmt.Sprint("service ", i), keys.kept.id)
	}
	first.command("key", "show", "-db", first.db, keys.kept.id)
	before := x.crowd.acknowledged()
	copied := first.copyTo(x.T)
	if stored := query[int64](x.T, copied,
		"SELECT count(*) FROM pets"); stored < int64(len(before)) {
		x.Errorf("the backup has %d pets, and %d were answered before", stored, len(before))
	}
	return keys
}

// change changes a key by commands of the newer version, which all services must heed.
func (x *succession) change() {
	x.Helper()
	limit := 1_000_000
	k := x.services[0].keyOf(fmt.Sprint(limit))
	for range 3 {
		for _, s := range x.services { // which then remember the key
			s.expect(x.T, k.token, fmt.Sprint("200 of ", limit))
		}
		limit++
		x.services[0].command("key", "set", "-db", x.services[0].db,
			"-plan", "enterprise", "-per-minute", fmt.Sprint(limit), "-per-day", "1000000000", k.id)
		x.holdsWithinASecond(x.T, k, fmt.Sprint("200 of ", limit), time.Now())
	}
	x.services[0].command("key", "revoke", "-db", x.services[0].db, k.id)
	x.holdsWithinASecond(x.T, k, "401 invalid_key", time.Now())
}

// hold asks every service for the keys that were changed.
func (x *succession) hold(keys changedKeys) {
	x.Helper()
	for _, s := range x.services {
		keys.hold(x.T, s)
	}
}

// spend makes requests with the metered key at each service in turn, and wants all of
// them counted everywhere.
func (x *succession) spend(requests int) {
	x.Helper()
	for i := range requests - len(x.services) {
		x.services[i%len(x.services)].expect(x.T, x.metered.token, fmt.Sprint("200 of ", perDay))
		x.left--
	}
	x.left = x.awaitDayLeft(x.T, x.metered, x.left)
}

// replace puts a service of the newer version in the place of one.
func (x *succession) replace(s *server) {
	x.Helper()
	s.awaitReady()
	log := s.log
	s.stop()
	if strings.Contains(log.String(), `"ERROR"`) {
		x.Errorf("the service of the older version logs an error:\n%s", tail(log.String()))
	}
	s.serves = x.newer
	s.again(behindProxy...)
	s.awaitReady()
}

// refuse starts the older version again, which must not touch what it does not know.
func (x *succession) refuse() {
	x.Helper()
	fails(x.T, program("key", "list", "-db", x.services[0].db), "newer petstore")
}

// checkUsage wants every request of the crowd counted that was answered, and none that
// was not sent.
func (x *succession) checkUsage() {
	x.Helper()
	first := x.services[0]
	least := int64(x.crowd.answered)
	most := least + int64(x.crowd.unanswered+x.crowd.busy)
	eventually(x.T, 3*time.Second, func() error {
		var used int64
		for _, token := range x.crowd.keys {
			id := fmt.Sprint(first.listed(token).ID)
			var key struct{ UsedToday int64 }
			noError(x.T,
				json.Unmarshal([]byte(first.command("key", "show", "-json", "-db", first.db, id)),
					&key))
			used += key.UsedToday
		}
		if used < least || used > most {
			return fmt.Errorf("%d requests are counted, want %d to %d", used, least, most)
		}
		return nil
	})
}

// complain looks for errors in the logs of the services that run now.
func (x *succession) complain() {
	x.Helper()
	for _, s := range x.services {
		if log := s.log.String(); strings.Contains(log, `"ERROR"`) {
			x.Errorf("the service of the newer version logs an error:\n%s", tail(log))
		}
	}
}

// number asks a cluster for a number.
func (c *cluster) number(statement string) (number int) {
	c.t.Helper()
	body, err := json.Marshal([]string{statement})
	noError(c.t, err)
	_, answer, err := c.ask(c.leader(), "/db/query?level=linearizable", string(body))
	var result struct{ Results []struct{ Values [][]int } }
	if err = errors.Join(err, json.Unmarshal([]byte(answer), &result)); err != nil ||
		len(result.Results[0].Values) != 1 {
		c.t.Fatalf("%s: %v, %s", statement, err, answer)
	}
	return result.Results[0].Values[0][0]
}
