package e2e

// Proven here alone: a service that is killed at any time, among 64 clients, loses nothing that was
// answered, gives no id twice, and forgets a second of usage at most; on a cluster also beside a
// node that dies.

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var crashSeed = flag.Uint64("crash.seed", uint64(time.Now().UnixNano()),
	"what the moments of the kills are drawn from")

const creators = 64

// TestAKillLosesNothingThatWasAnswered kills the service again and again among 64
// clients that create animals, each under an Idempotency-Key, and one that
// lists them. Then the database is whole, every animal that was answered or listed
// is there once, under its id, and an unanswered create that is repeated makes
// one animal. Usage is at most a second behind and never ahead, and no id comes a
// second time.
//
// On a cluster every other round has a node killed first, each in turn. What the
// clients are then told to be unknown, they repeat until they know it.
//
// SIGKILL takes what the process has not handed to the system. What the system
// has and the disk has not, only a power cut takes: a service that does not
// sync passes.
func TestAKillLosesNothingThatWasAnswered(t *testing.T) {
	t.Parallel()
	t.Logf("-crash.seed=%d", *crashSeed)
	onBothEngines(t, func(t *testing.T, on engine) {
		random := rand.New(rand.NewPCG(*crashSeed, 0))
		rounds := 10
		if on.cluster != nil {
			rounds = 4
		}
		for i := range soak(1) {
			t.Run(fmt.Sprintf("database %d", i+1), func(t *testing.T) {
				c := &crash{T: t, engine: on, s: on.start(t), client: newHTTPClient(creators + 1),
					animals: newCensus(t)}
				for n := range rounds {
					c.round(n+1, time.Duration(random.Int64N(int64(2*time.Second))))
					if t.Failed() {
						return // the other rounds would say it all again
					}
				}
				c.compare(0)
			})
		}
	})
}

// census is every animal that was answered or listed. It is safe for
// concurrent use.
type census struct {
	t     *testing.T
	mu    sync.Mutex // guards what follows
	names map[int64]string
	ids   map[string]int64
}

func newCensus(t *testing.T) *census {
	return &census{t: t, names: map[int64]string{}, ids: map[string]int64{}}
}

// note holds an animal against all that are known: an id belongs to one animal
// for ever, and an animal, named apart by these tests, has one id. It reports whether that is so.
func (c *census) note(id int64, name string) (sound bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sound = true
	if known, ok := c.names[id]; ok && known != name {
		sound = false
		c.t.Errorf("the id %d of %s is that of %s too", id, known, name)
	}
	if known, ok := c.ids[name]; ok && known != id {
		sound = false
		c.t.Errorf("%s has the ids %d and %d", name, known, id)
	}
	c.names[id], c.ids[name] = name, id
	return sound
}

// crash is a service that is killed again and again, and what its clients know.
type crash struct {
	*testing.T
	engine
	s       *server
	client  *http.Client
	animals *census

	listed     int64       // the highest id that was listed
	removed    []int64     // animals that an operator has removed
	used       int64       // requests that the database held when it was last looked at
	dying      atomic.Bool // a request may stay without an answer
	leaderless atomic.Bool // or be answered 503: a node has died, perhaps the leader

	mu       sync.Mutex    // guards what follows
	sent     int64         // requests since used was read
	answered []time.Time   // when the answers to them came, in order
	slowest  time.Duration // of them, answered or not
}

// round lets the clients work for a while, kills the service and looks at what
// is left. It starts the service again twice: after the kill and after a stop.
func (c *crash) round(n int, life time.Duration) {
	unanswered, killed := c.workUntilKilled(n, life)
	answered, slowest := len(c.answered), c.slowest
	left := c.s.db
	if c.cluster == nil {
		left = c.copyFiles()
		defer os.RemoveAll(filepath.Dir(left))
		checkIntegrity(c.T, left)
	}
	behind := c.checkUsage(left, killed)

	c.s.run()
	c.compare(c.listed)
	stored := c.repeat(unanswered)
	c.Logf("round %d, killed after %d ms: %d requests answered, the slowest in %d ms; %d of %d "+
		"unanswered creates "+
		"stored; usage %d ms behind", n, life.Milliseconds(), answered, slowest.Milliseconds(),
		stored, len(unanswered),
		behind.Milliseconds())
	c.compare(c.listed)

	c.s.stop()
	c.checkUsageAfterStop()
	c.removeNewest()
	c.s.run()
}

// losesNode reports whether a round kills a node before the service.
func (c *crash) losesNode(round int) bool { return c.cluster != nil && round%2 == 0 }

// workUntilKilled returns the creates that were not answered, and the moment
// before the kill.
func (c *crash) workUntilKilled(round int, life time.Duration) (unanswered []string,
	killed time.Time) {
	unanswered = make([]string, creators)
	var clients sync.WaitGroup
	for client := range creators {
		clients.Go(func() {
			for i, err := 0, error(nil); err == nil; i++ {
				unanswered[client] = fmt.Sprintf("round-%d-client-%d-animal-%d", round, client, i)
				_, err = c.create(unanswered[client])
			}
		})
	}
	clients.Go(func() {
		after := c.listed
		for {
			page, err := c.list(after)
			if err != nil {
				return
			}
			if len(page) > 0 {
				after = page[len(page)-1].ID
			}
		}
	})
	time.Sleep(life)
	node := -1
	if c.losesNode(round) {
		node = round / 2 % clusterSize
		c.leaderless.Store(true)
		c.cluster.kill(node)
		time.Sleep(2*time.Second + life) // some time for another leader, and some with it
	}
	c.dying.Store(true)
	killed = time.Now()
	c.s.kill()
	clients.Wait()
	if node >= 0 {
		c.cluster.restart(node)
	}
	if c.cluster != nil { // what the service had sent may be on its way still
		c.cluster.awaitReady(c.cluster.leader())
	}
	c.dying.Store(false)
	c.leaderless.Store(false)
	return unanswered, killed
}

// create adds an animal under an Idempotency-Key, both called by one name, and
// tells whether the answer was a replay. It is repeated while it is refused for
// want of a leader.
func (c *crash) create(name string) (replayed bool, err error) {
	var made pet
	send := func() (http.Header, error) {
		return c.send(http.StatusCreated, &made, "POST", "/pets", animalJSON(name),
			"Idempotency-Key: "+name)
	}
	header, err := send()
	for errors.Is(err, errLeaderless) {
		header, err = send()
	}
	if err == nil {
		c.animals.note(made.ID, made.Name)
	}
	if err == nil && made.Name != name {
		c.Errorf("%s is answered with %s", name, made.Name)
	}
	return header.Get("Idempotency-Replayed") == "true", err
}

// list notes a page of animals.
func (c *crash) list(after int64) (page []pet, err error) {
	target := fmt.Sprintf("/pets?limit=100&after=%d", after)
	for err = errLeaderless; errors.Is(err, errLeaderless); {
		_, err = c.send(http.StatusOK, &page, "GET", target, "")
	}
	for _, p := range page {
		if p.ID <= after {
			c.Errorf("%s, which has the id %d, is listed after %d", p.Name, p.ID, after)
		}
		after = p.ID
		c.animals.note(p.ID, p.Name)
	}
	return page, err
}

// errLeaderless is a 503 of a service whose cluster has lost a node.
var errLeaderless = errors.New("there is no leader")

// send counts a request, and its answer when that is there. Having none, or
// another than expected, is the error; it fails the test unless the service is dying.
func (c *crash) send(status int, into any, method, target, body string,
	headers ...string) (http.Header, error) {
	c.mu.Lock()
	c.sent++
	c.mu.Unlock()
	began := time.Now()
	got, err := c.s.send(context.Background(), c.client, method, target, body, headers...)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.slowest = max(c.slowest, now.Sub(began))
	switch {
	case err != nil && c.dying.Load():
		return nil, err
	case err == nil && got.status == http.StatusServiceUnavailable && c.leaderless.Load():
		return nil, errLeaderless
	case err == nil && got.status != status:
		err = fmt.Errorf("status %d: %s", got.status, got.body)
	case err == nil:
		err = json.Unmarshal([]byte(got.body), into)
	}
	if err != nil {
		c.Errorf("%s %s: %v", method, target, err)
		return nil, err
	}
	c.answered = append(c.answered, now)
	return got.header, nil
}

// copyFiles copies what a kill has left, so that looking at it changes nothing
// for the next start. It returns the copy of the database.
func (c *crash) copyFiles() string {
	copied := filepath.Join(c.TempDir(), "copy.db")
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(c.s.db + suffix)
		noError(c, err)
		noError(c, os.WriteFile(copied+suffix, data, 0o600))
	}
	return copied
}

// checkUsage holds what is stored after a kill against what was sent. It
// returns how long before the kill the first answer came that is forgotten.
//
// The service waits 750 ms, or half a second on a cluster, and then for its commit,
// as every create does. So the second is kept as long as the disk takes no more
// than the rest; where the slowest request tells that it does, the kill may
// forget as much more.
func (c *crash) checkUsage(file string, killed time.Time) (behind time.Duration) {
	stored := c.storedUsage(file)
	counted := stored - c.used
	if counted < 0 || counted > c.sent {
		c.Errorf("of %d requests before and %d since, %d are stored after the kill", c.used, c.sent,
			stored)
	} else if counted < int64(len(c.answered)) {
		behind = max(0, killed.Sub(c.answered[counted]))
	}
	waits := 750 * time.Millisecond
	if c.cluster != nil {
		waits = 500 * time.Millisecond
	}
	if allowed := max(time.Second, waits+c.slowest); behind > allowed {
		c.Errorf("a kill forgets %v of counting, more than %v", behind, allowed)
	}
	c.used, c.sent, c.answered, c.slowest = stored, 0, nil, 0
	return behind
}

// checkUsageAfterStop wants every request counted, on top of what the kill left.
func (c *crash) checkUsageAfterStop() {
	stored := c.storedUsage(c.s.db)
	if stored != c.used+c.sent {
		c.Errorf("%d requests were stored after the kill and %d sent since; after a stop %d are "+
			"stored", c.used, c.sent, stored)
	}
	c.used, c.sent, c.answered, c.slowest = stored, 0, nil, 0
}

// storedUsage is how many requests of the server's key a database has counted. The days have the
// same number, since they are stored in the same transaction.
func (c *crash) storedUsage(file string) int64 {
	c.Helper()
	key := decode[struct{ UsedToday int64 }](c, c.s.command("key", "show", "-json", "-db", file,
		"1"))
	admitted := int64(0)
	for _, day := range decode[[]usedKey](c, c.s.command("key", "usage", "-json", "-days", "2",
		"-db", file, "1"))[0].Days {
		admitted += day.Admitted
	}
	if admitted != key.UsedToday {
		c.Errorf("of %d requests %d are counted in their days", key.UsedToday, admitted)
	}
	return key.UsedToday
}

// usedKey is what key usage -json prints of a key.
type usedKey struct {
	ID   int64
	Days []usedDay
}

type usedDay struct {
	Day                       string
	Admitted, Refused, Errors int64
}

// compare lists all animals above an id and wants those there that were
// answered or listed before.
func (c *crash) compare(above int64) {
	listed := map[int64]bool{}
	for after := above; ; {
		page, err := c.list(after)
		if err != nil {
			c.FailNow()
		}
		if len(page) == 0 {
			c.listed = after
			break
		}
		for _, p := range page {
			listed[p.ID] = true
			after = p.ID
		}
	}
	for id, name := range c.animals.names {
		if id > above && !listed[id] && !slices.Contains(c.removed, id) {
			c.Errorf("%s, which has the id %d, is gone", name, id)
		}
	}
}

// repeat sends the creates that were not answered, twice each, and returns how
// many of them had been stored. Those are replayed; the others are made now.
func (c *crash) repeat(unanswered []string) (stored int) {
	for _, name := range unanswered {
		_, known := c.animals.ids[name]
		if known {
			stored++
		}
		for _, expected := range []bool{known, true} {
			if replayed, err := c.create(name); err == nil && replayed != expected {
				c.Errorf("%s is answered as a replay: %t, expected %t", name, replayed, expected)
			}
		}
	}
	return stored
}

// removeNewest takes the newest animal out of the database, as only an operator
// can. What was its id then stands nowhere but in the count of ids given.
func (c *crash) removeNewest() {
	id := c.listed
	remove := fmt.Sprint("DELETE FROM pets WHERE id = ", id)
	if c.cluster == nil {
		query[int64](c.T, c.s.db, remove+" RETURNING id")
	} else {
		c.cluster.execute(remove)
	}
	c.removed = append(c.removed, id)
}
