package e2e

// Proven here alone: what operators do to a service under load, an upgrade included, costs no
// client a wrong response. Its crowd of clients is that of other tests too.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestAChangeOfAKeyHoldsWithinASecond changes keys while others call, and asks
// with the changed key without a pause: from a second after the command has
// ended at the latest every answer is the new one, and none is anything but the
// old or the new. An expiry needs no command, and holds at its very instant.
func TestAChangeOfAKeyHoldsWithinASecond(t *testing.T) {
	s := start(t, behindProxy...)
	defer gather(t, s, 24).leave()
	for range soak(1) {
		passing := s.newKey("-plan", "enterprise", "-per-minute", "1000000", "-per-day",
			"1000000000", "-expires", "2s")
		s.expect(t, passing, "200 of 1000000")

		k := s.keyOf("1000000")
		s.takesEffect(t, k.token, "200 of 1000000", "200 of 1000001", "key", "set",
			"-plan", "enterprise", "-per-minute", "1000001", "-per-day", "1000000000", k.id)
		s.takesEffect(t, k.token, "200 of 1000001", "401 invalid_key", "key", "rotate",
			"-overlap", "0s", k.id)

		k = s.keyOf("1000000")
		s.takesEffect(t, k.token, "200 of 1000000", "401 invalid_key", "key", "revoke", k.id)

		k = s.keyOf("100")
		s.ban(t, k)
		s.takesEffect(t, k.token, "429 key_banned", "429 rate_limited", "key", "unban", k.id)

		s.expires(t, passing)
	}
}

// issued is a key and the id that the commands know it by.
type issued struct{ token, id string }

// keyOf makes a key with a limit for the minute, and none to speak of for the day.
func (s *server) keyOf(perMinute string) issued {
	s.t.Helper()
	token := s.newKey("-plan", "enterprise", "-per-minute", perMinute, "-per-day", "1000000000")
	return issued{token, strconv.FormatInt(s.listed(token).ID, 10)}
}

// listedKey is what key list tells about a key.
type listedKey struct {
	ID          int64
	LastFour    string
	ExpiresAt   time.Time
	BannedUntil time.Time
}

// listed is the key in the list, which shows its last four characters; of
// several keys that end alike it is the one made last.
func (s *server) listed(token string) listedKey {
	s.t.Helper()
	var keys []listedKey
	noError(s.t, json.Unmarshal([]byte(s.command("key", "list", "-db", s.db, "-json")),
		&keys))
	for _, key := range slices.Backward(keys) {
		if strings.HasSuffix(token, key.LastFour) {
			return key
		}
	}
	s.t.Fatal("a new key is not in the list")
	return listedKey{}
}

// outcome is what a caller makes of the answer: the status, and either the code
// of the error or the limit that holds.
func (a *answer) outcome() string {
	if a.status < 400 {
		return fmt.Sprint(a.status, " of ", a.header.Get("X-RateLimit-Limit"))
	}
	return fmt.Sprint(a.status, " ", a.code)
}

// callers is what the tests call with. An answer takes far less than 10 s: a
// request that is not answered by then is lost without an error.
var callers = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64},
	Timeout: 10 * time.Second}

var addresses atomic.Uint32

// newAddress is one that nobody had before; all have the same length.
func newAddress() string {
	n := addresses.Add(1)
	return fmt.Sprintf("1%02d.1%02d.1%02d.1%02d", n/1_000_000%100, n/10_000%100, n/100%100, n%100)
}

// call sends a request to a service and reads the answer. once is its Idempotency-Key, if it is to
// have one, and headers are as those of send. The transport does not repeat a POST by itself, since
// its body cannot be had again: what fails is seen to fail.
func call(url, token, method, target, body, once string, headers ...string) (*answer, error) {
	var content io.Reader
	if body != "" {
		content = io.MultiReader(strings.NewReader(body))
	}
	r, err := http.NewRequestWithContext(context.Background(), method, url+target, content)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("X-Forwarded-For", newAddress())
	setHeaders(r, append(headers, "Idempotency-Key:"+once))
	response, err := callers.Do(r)
	if err != nil {
		return nil, err
	}
	return readAnswer(response)
}

// ask is a small request with the key, and its outcome.
func (s *server) ask(t *testing.T, token string) string {
	t.Helper()
	r, err := call(s.url, token, "GET", "/pets?limit=1", "", "")
	noError(t, err)
	return r.outcome()
}

// expect asks with the key once.
func (s *server) expect(t *testing.T, token, want string) {
	t.Helper()
	if got := s.ask(t, token); got != want {
		t.Errorf("the answer is %s, want %s", got, want)
	}
}

// takesEffect runs a command that changes a key while it asks with the key. It
// logs how long after the end of the command the first new answer came.
func (s *server) takesEffect(t *testing.T, token, before, after string, verb ...string) {
	t.Helper()
	s.expect(t, token, before)
	command := s.program(slices.Insert(slices.Clone(verb), 2, "-db", s.db)...)
	var ended time.Time
	done := make(chan error, 1)
	go func() {
		err := command.Run()
		ended = time.Now()
		done <- err
	}()
	type sighting struct {
		sent, arrived time.Time
		outcome       string
	}
	var seen []sighting
	fresh := 0 // new answers so far; some more than one show that the old one does not come back
	for until := time.Now().Add(10 * time.Second); fresh < 20 &&
		time.Now().Before(until); time.Sleep(time.Millisecond) {
		a := sighting{sent: time.Now()}
		a.outcome, a.arrived = s.ask(t, token), time.Now()
		seen = append(seen, a)
		if a.outcome == after {
			fresh++
		}
	}
	if err := <-done; err != nil {
		t.Fatalf("petstore %s: %v", strings.Join(verb, " "), err)
	}
	first := slices.IndexFunc(seen, func(a sighting) bool { return a.outcome == after })
	if first < 0 {
		t.Fatalf("key %s has no effect: the last answer is %s", verb[1], seen[len(seen)-1].outcome)
	}
	for i, a := range seen {
		if want := before; i >= first {
			want = after
			if a.outcome != want {
				t.Errorf("key %s: an answer is %s after one was %s", verb[1], a.outcome, want)
			}
		} else if late := a.sent.Sub(ended); a.outcome != want || late > time.Second {
			t.Errorf("key %s: a request sent %v after its end is answered %s, want %s, or %s "+
				"within a second", verb[1], late, a.outcome, before, after)
		}
	}
	t.Logf("key %s: the first new answer came %v after its end", verb[1],
		seen[first].arrived.Sub(ended).Round(time.Millisecond))
}

// ban spends the key's minute and goes on asking until it is banned, and that is
// written, so that a backup has it.
func (s *server) ban(t *testing.T, k issued) {
	t.Helper()
	for range 1000 {
		if s.ask(t, k.token) == "429 key_banned" && !s.listed(k.token).BannedUntil.IsZero() {
			return
		}
	}
	t.Fatal("a key that insists is not banned")
}

// expires asks with a key until it is refused: what was answered before its
// expiry was admitted, and what was sent from then on was not.
func (s *server) expires(t *testing.T, token string) {
	t.Helper()
	end := s.listed(token).ExpiresAt
	for refused := 0; refused < 20; {
		sent := time.Now()
		switch outcome := s.ask(t, token); {
		case outcome == "200 of 1000000" && sent.Before(end):
		case outcome == "401 invalid_key" && !time.Now().Before(end):
			refused++
		default:
			t.Fatalf("a request sent %v after the expiry of its key is answered %s", sent.Sub(end),
				outcome)
		}
	}
}

// crowd is clients that call the service in closed loops, each waiting for its
// answer, and what they know by it. All keep within their limits, so that
// every answer but a success is wrong, or a 503.
type crowd struct {
	server  *server
	urls    []string // of the server and others on its database, before an upgrade and after it
	keys    []string
	leaving chan struct{}
	leave   func() // ends the clients; what they know can be read then without the lock

	mu      sync.Mutex       // guards what follows, and urls
	animals map[string]int64 // name: id, of the creates that were answered 201
	// names of those that were sent with an Idempotency-Key, which is the name
	once       []string
	doubtful   map[string]bool // names of the creates that were not answered: they may be there
	wrong      []string        // what must not be
	answered   int
	unanswered int // failed with an error
	replayed   int // unanswered creates that turned out to be there when they were repeated
	busy       int // 503
}

// gather starts n clients that list, get, and add animals.
func gather(t *testing.T, s *server, n int) *crowd {
	t.Helper()
	c := &crowd{server: s, urls: []string{s.url}, leaving: make(chan struct{}),
		animals: map[string]int64{}, doubtful: map[string]bool{}}
	for range 3 {
		c.keys = append(c.keys, s.newKey(unlimited...))
	}
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() { c.visit(i) })
	}
	c.leave = sync.OnceFunc(func() {
		close(c.leaving)
		clients.Wait()
	})
	t.Cleanup(func() {
		c.leave()
		t.Logf("%d requests were answered, %d failed, %d were answered 503, %d creates were "+
			"found done when they were repeated",
			c.answered, c.unanswered, c.busy, c.replayed)
		for _, wrong := range c.wrong {
			t.Error(wrong)
		}
	})
	return c
}

// note changes what is known.
func (c *crowd) note(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// acknowledged is a copy of the animals that are answered so far.
func (c *crowd) acknowledged() (animals map[string]int64) {
	c.note(func() { animals = maps.Clone(c.animals) })
	return animals
}

// token is the key of a client.
func (c *crowd) token(client int) string { return c.keys[client%len(c.keys)] }

// visit is one client. It thinks a little between its requests: the load is to
// be constant, and to leave the machine some room.
func (c *crowd) visit(client int) {
	token := c.token(client)
	var latest string // its latest animal, as JSON
	var id int64
	for i := 0; ; i++ {
		select {
		case <-c.leaving:
			return
		case <-time.After(5 * time.Millisecond):
		}
		name := fmt.Sprintf("client %d, animal %d", client, i)
		switch {
		case i%4 == 0:
			latest, id = c.create(token, name, "")
		case i%4 == 2:
			latest, id = c.create(token, name, strings.ReplaceAll(name, " ", "-"))
		case id == 0:
			c.read(token, "/pets?status=available", "[")
		case i%4 == 1:
			c.read(token, fmt.Sprint("/pets/", id), latest)
		default:
			c.read(token, fmt.Sprint("/pets?limit=5&after=", id-1), "["+latest)
		}
	}
}

// read gets what must begin with the given bytes. An error needs no second try.
func (c *crowd) read(token, target, want string) {
	if r := c.send(token, "GET", target, "", ""); r != nil && (r.status != http.StatusOK ||
		!strings.HasPrefix(r.body, want)) {
		c.note(func() {
			c.wrong = append(c.wrong, fmt.Sprintf("GET %s: %d %.300s, want %s", target, r.status,
				r.body, want))
		})
	}
}

// create adds an animal, and with an Idempotency-Key tries until it is answered.
func (c *crowd) create(token, name, once string) (animal string, id int64) {
	body := animalJSON(name)
	r := c.send(token, "POST", "/pets", body, once)
	failed := r == nil
	for until := time.Now().Add(20 * time.Second); r == nil && once != "" &&
		time.Now().Before(until); {
		r = c.send(token, "POST", "/pets", body, once)
	}
	var stored pet
	c.note(func() {
		switch {
		case r == nil && once != "":
			c.wrong = append(c.wrong, name+" was repeated for 20 s without an answer")
		case r == nil:
			c.doubtful[name] = true
		case r.status == http.StatusServiceUnavailable: // "nothing was changed"
		case r.status != http.StatusCreated || json.Unmarshal([]byte(r.body), &stored) != nil ||
			stored.Name != name || stored.ID < 1:
			c.wrong = append(c.wrong, fmt.Sprintf("POST %s: %d %s", body, r.status, r.body))
		default:
			animal, id = r.body, stored.ID
			c.animals[name] = id
			if once != "" {
				c.once = append(c.once, name)
			}
			if r.header.Get("Idempotency-Replayed") != "" {
				c.replayed++
				if !failed {
					c.wrong = append(c.wrong,
						name+" is created for the first time and told to be a replay")
				}
			}
		}
	})
	return animal, id
}

// send is one request; nil is an error, after which the client waits a little.
func (c *crowd) send(token, method, target, body, once string) *answer {
	var url string
	c.note(func() { url = c.urls[rand.N(len(c.urls))] })
	r, err := call(url, token, method, target, body, once)
	var failure net.Error
	c.note(func() {
		switch {
		case errors.As(err, &failure) && failure.Timeout():
			c.wrong = append(c.wrong, fmt.Sprintf("%s %s is lost without an error", method, target))
		case err != nil:
			c.unanswered++
		case r.status == http.StatusServiceUnavailable && r.outcome() == "503 unavailable" &&
			r.header.Get("Retry-After") == "1":
			c.busy++
		default:
			c.answered++
		}
	})
	if err != nil {
		time.Sleep(5 * time.Millisecond)
		return nil
	}
	return r
}

// TestTheServiceIsOperatedWhileItIsUsed does to a service under constant load
// all that an operator may do: every command of keys, a backup, an upgrade.
// Nobody is answered wrongly, every animal that was answered 201 is there,
// once, and one that was not answered is there once at the most. The backup
// is a service of its own with all that was answered before it began.
func TestTheServiceIsOperatedWhileItIsUsed(t *testing.T) {
	next := buildAgain(t)
	for range soak(1) {
		s := start(t, behindProxy...)
		crowd := gather(t, s, 32)
		keys := s.changeKeys(t)

		before := crowd.acknowledged()
		copied := s.copyTo(t)
		late := s.keyOf("1000000")

		metered := s.newKey("-plan", "enterprise", "-per-minute", "1000000", "-per-day", "200")
		s.spend(t, metered, 80)
		refused := crowd.upgrade(t, func() { exchange(t, next) })
		t.Logf("for the upgrade, connections were refused for %v", refused.Round(time.Millisecond))
		if refused >= time.Second {
			t.Errorf("connections were refused for %v, want less than a second", refused)
		}
		s.spend(t, metered, 120)
		// the 201st: the upgrade has neither lost nor added one
		s.expect(t, metered, "429 rate_limited")
		keys.hold(t, s)
		s.takesEffect(t, keys.banned.token, "429 key_banned", "429 rate_limited", "key", "unban",
			keys.banned.id)
		s.takesEffect(t, keys.kept.token, "200 of 1000000", "401 invalid_key", "key", "revoke",
			keys.kept.id)

		crowd.leave()
		crowd.compare(t, s, crowd.animals)
		s.stop()

		t.Logf("%d animals were answered before the backup, %d in all", len(before),
			len(crowd.animals))
		restored := &server{t: t, db: copied, key: s.key}
		restored.run(behindProxy...)
		crowd.compare(t, restored, before)
		crowd.repeat(t, restored, before)
		keys.hold(t, restored) // and what was changed later is not
		restored.expect(t, late.token, "401 invalid_key")
		restored.stop()
	}
}

// changedKeys are keys in the states that the commands, and their callers, bring about.
type changedKeys struct {
	kept, revoked, banned issued
	successor             string // of the one that is kept
}

// changeKeys brings the keys into their states.
func (s *server) changeKeys(t *testing.T) changedKeys {
	t.Helper()
	k := changedKeys{kept: s.keyOf("1000000"), revoked: s.keyOf("1000000"), banned: s.keyOf("100")}
	s.takesEffect(t, k.revoked.token, "200 of 1000000", "401 invalid_key", "key", "revoke",
		k.revoked.id)
	k.successor = strings.TrimSpace(s.command("key", "rotate", "-db", s.db, k.kept.id))
	unbanned := s.keyOf("100")
	s.ban(t, unbanned)
	s.takesEffect(t, unbanned.token, "429 key_banned", "429 rate_limited", "key", "unban",
		unbanned.id)
	s.ban(t, k.banned)
	k.hold(t, s)
	return k
}

// hold asks with each key for its state.
func (k changedKeys) hold(t *testing.T, s *server) {
	t.Helper()
	s.expect(t, k.kept.token, "200 of 1000000")
	s.expect(t, k.successor, "200 of 1000000")
	s.expect(t, k.revoked.token, "401 invalid_key")
	s.expect(t, k.banned.token, "429 key_banned")
}

// spend makes requests with a key of 200 a day, which are all admitted.
func (s *server) spend(t *testing.T, token string, requests int) {
	t.Helper()
	for range requests {
		s.expect(t, token, "200 of 200")
	}
}

// compare pages through a service: the animals that must be there are, each
// once and under its id, and no other but those that a client has sent.
func (c *crowd) compare(t *testing.T, s *server, must map[string]int64) {
	t.Helper()
	checkStored(t, s.everyAnimal(t), must, func(name string, id int64) bool {
		known, answered := c.animals[name]
		return id == known || !answered && c.doubtful[name]
	})
}

// repeat sends creates again that were answered before: each is answered with
// the animal it made then.
func (c *crowd) repeat(t *testing.T, s *server, made map[string]int64) {
	t.Helper()
	repeated := 0
	for _, name := range c.once {
		id, ok := made[name]
		if !ok || repeated == 100 {
			continue
		}
		repeated++
		body := animalJSON(name)
		var client, n int
		if _, err := fmt.Sscanf(name, "client %d, animal %d", &client, &n); err != nil {
			t.Fatal(err)
		}
		r, err := call(s.url, c.token(client), "POST", "/pets", body, strings.ReplaceAll(name, " ",
			"-"))
		noError(t, err)
		var again pet
		if err := json.Unmarshal([]byte(r.body), &again); err != nil || again.ID != id ||
			r.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s was answered with id %d, and when it is repeated with %d %s", name, id,
				r.status, r.body)
		}
	}
	if repeated == 0 {
		t.Error("no create with an Idempotency-Key was answered before the backup")
	}
}

// buildAgain builds the next version beside the program: another file of the same source.
func buildAgain(t *testing.T) (file string) {
	t.Helper()
	file = binary + "-next"
	build(t, "..", file, "-ldflags=-s")
	return file
}

// exchange puts a file in the place of the program, and the program in the file's.
func exchange(t *testing.T, file string) {
	t.Helper()
	aside := file + "-aside"
	noError(t, errors.Join(os.Rename(binary, aside), os.Rename(file, binary),
		os.Rename(aside, file)))
}

// upgrade stops the service and starts the next version, which exchange has put in place, on the
// same address and database. It returns for how long no connection could be made. What is in flight
// when the service is told to stop is still answered, and who only holds a connection, as the pools
// of clients do, does not keep it up.
func (c *crowd) upgrade(t *testing.T, exchange func()) (refused time.Duration) {
	t.Helper()
	s := c.server
	address := strings.TrimPrefix(s.address(), "http://")
	var inFlight []*halfSent
	for range 5 {
		silent, err := net.Dial("tcp", address)
		noError(t, err)
		defer silent.Close()
		inFlight = append(inFlight,
			s.begin(t, address, fmt.Sprintf("in flight at the upgrade of %v, %d", time.Now(),
				len(inFlight))))
	}
	began, took := watchOutage(address)
	go func() {
		<-began
		for _, request := range inFlight {
			request.finish()
		}
	}()
	s.stop()
	for _, request := range inFlight {
		if animal, err := request.answer(); err != nil {
			t.Errorf("a request in flight when the service was told to stop: %v", err)
		} else {
			c.note(func() { c.animals[animal.Name] = animal.ID })
		}
	}
	exchange()
	s.run(append([]string{"-addr", address}, behindProxy...)...)
	select {
	case refused = <-took:
	case <-time.After(10 * time.Second):
		t.Fatal("the service is ready, and refuses connections")
	}
	return refused
}

// halfSent is a create whose handler waits for the body.
type halfSent struct {
	conn   net.Conn
	reader *bufio.Reader
	body   string
}

// begin sends the head of a create and waits until the service asks for the body.
func (s *server) begin(t *testing.T, address, name string) *halfSent {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	noError(t, err)
	t.Cleanup(func() { conn.Close() })
	h := &halfSent{conn: conn, reader: bufio.NewReader(conn), body: animalJSON(name)}
	fmt.Fprintf(conn,
		"POST /v1/pets HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\nContent-Length: "+
			"%d\r\nExpect: 100-continue\r\n\r\n",
		address, s.bearer(), len(h.body))
	const proceed = "HTTP/1.1 100 Continue\r\n\r\n"
	line := make([]byte, len(proceed))
	if _, err := io.ReadFull(h.reader, line); err != nil || string(line) != proceed {
		t.Fatalf("the service answers %q, %v, want %q", line, err, proceed)
	}
	return h
}

// finish sends the body. That it cannot be sent is seen when there is no answer.
func (h *halfSent) finish() { _, _ = io.WriteString(h.conn, h.body) }

// answer reads the animal.
func (h *halfSent) answer() (animal pet, err error) {
	response, err := http.ReadResponse(h.reader, nil)
	if err != nil {
		return pet{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		return pet{}, errors.New(response.Status)
	}
	return animal, json.NewDecoder(response.Body).Decode(&animal)
}

// watchOutage tries to connect all the time. began is closed when that fails,
// and took tells, once it works again, how long ago it had worked before.
func watchOutage(address string) (began chan struct{}, took chan time.Duration) {
	began, took = make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		last, failed := time.Now(), false
		for ; ; time.Sleep(time.Millisecond) {
			conn, err := net.Dial("tcp", address)
			switch {
			case err != nil && !failed:
				failed = true
				close(began)
			case err == nil && failed:
				conn.Close()
				took <- time.Since(last)
				return
			case err == nil:
				conn.Close()
				last = time.Now()
			}
		}
	}()
	return began, took
}
