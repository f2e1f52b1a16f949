package e2e

// Proven here alone: offered four times what it can serve, the service gets slower, gives no wrong
// response, counts each request, takes no more memory, and is as fast as before seconds later.

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	seeded   = 2000 // animals that are there before the load
	patience = 500  // callers that wait for an answer at a time
)

// TestFourTimesTheLoadSlowsAnswersAndSpoilsNone finds out how many requests a
// second the service answers, and offers it four times as many. Every answer
// is the one that is due, memory stays flat, and once the load is over, answers
// are as fast as before.
//
// The database is in memory where there is a file system for that, so that the
// service is short of processor time and not of a disk that others keep busy.
func TestFourTimesTheLoadSlowsAnswersAndSpoilsNone(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err == nil {
		t.Setenv("TMPDIR", "/dev/shm")
	}
	s := start(t)
	keepApart(t, s)
	o := newOverload(t, s)
	calm := o.latency()
	capacity := o.closedLoop(64, time.Second)
	t.Logf("one caller waits %v for an answer; 64 get %.0f a second", calm, capacity)

	checkMemory := o.watchMemory()
	o.openLoop(4*capacity, soak(4*time.Second))
	checkMemory()
	o.checkLatencies()
	o.checkRecovery(calm)
	o.checkUsage()
	o.made.check(o.callers[0])
}

// caller is one connection to the service. It has less to do for a request than
// an http.Client, so that the service, and not the load, is short of time.
type caller struct {
	s    *server
	conn net.Conn
	in   *bufio.Reader
}

func newCaller(s *server) *caller {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.address(), "http://"))
	noError(s.t, err)
	s.t.Cleanup(func() { conn.Close() })
	return &caller{s, conn, bufio.NewReader(conn)}
}

func (c *caller) write(method, target, body string) error {
	if err := c.conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(c.conn,
		"%s /v1%s HTTP/1.1\r\nHost: petstore\r\nAuthorization: %s\r\nContent-Length: %d\r\n\r\n%s",
		method, target, c.s.bearer(), len(body), body)
	return err
}

func (c *caller) read() (*answer, error) {
	response, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return nil, err
	}
	return readAnswer(response)
}

func (c *caller) send(method, target, body string) (*answer, error) {
	if err := c.write(method, target, body); err != nil {
		return nil, err
	}
	return c.read()
}

// mustGet is send for what must succeed.
func (c *caller) mustGet(target string) *answer {
	c.s.t.Helper()
	got, err := c.send("GET", target, "")
	if err != nil || got.status != http.StatusOK {
		c.s.t.Fatalf("GET %s: %v, %v", target, got, err)
	}
	return got
}

// noteCreate notes an animal that was made. All that may be answered otherwise
// is a correct 503.
func (c *census) noteCreate(name string, got *answer) {
	var p pet
	switch {
	case got.status == http.StatusServiceUnavailable && got.code == "unavailable" &&
		got.header.Get("Retry-After") == "1":
	case got.status == http.StatusCreated && json.Unmarshal([]byte(got.body), &p) == nil &&
		p.Name == name:
		c.note(p.ID, name)
	default:
		c.t.Errorf("adding %s is answered %d %s with Retry-After %q", name, got.status, got.body,
			got.header.Get("Retry-After"))
	}
}

var nextLink = regexp.MustCompile(`^</v1/pets(\?[^>]*)>; rel="next"$`)

// check lists all animals, and wants those of the census and no others.
func (c *census) check(caller *caller) {
	c.t.Helper()
	listed := 0
	for target := "/pets?limit=100"; target != ""; {
		got := caller.mustGet(target)
		for _, p := range decode[[]pet](c.t, got.body) {
			listed++
			if c.names[p.ID] != p.Name {
				c.t.Errorf("%s is stored with the id %d, and was not answered so", p.Name, p.ID)
			}
		}
		target = ""
		if next := nextLink.FindStringSubmatch(got.header.Get("Link")); next != nil {
			target = "/pets" + next[1]
		}
	}
	if listed != len(c.names) {
		c.t.Errorf("%d animals were answered 201, and %d are stored", len(c.names), listed)
	}
}

// overload is a service under load, and what it must answer.
type overload struct {
	*testing.T
	s       *server
	callers []*caller
	gets    [][2]string // targets, and what they were answered in peace
	made    *census

	sent        atomic.Int64    // requests
	unavailable atomic.Int64    // of them, answered 503
	mu          sync.Mutex      // guards what follows
	latencies   []time.Duration // of the others, since it was emptied
}

// newOverload adds animals, and notes what pages and single animals look like
// while nothing else goes on: three pages to an animal, at random places.
func newOverload(t *testing.T, s *server) *overload {
	o := &overload{T: t, s: s, made: newCensus(t)}
	for range patience {
		o.callers = append(o.callers, newCaller(s))
	}
	o.each(func(c *caller) {
		for range seeded / patience {
			o.create(c)
		}
	})
	for range 100 {
		for range 3 {
			after := rand.IntN(seeded - 100)
			o.learn(fmt.Sprintf("/pets?limit=100&status=available&after=%d", after), after+1, 100)
		}
		id := 1 + rand.IntN(seeded)
		o.learn(fmt.Sprintf("/pets/%d", id), id, 1)
	}
	return o
}

// each lets every one of the callers do the same, all at once.
func (o *overload) each(do func(c *caller)) {
	var callers sync.WaitGroup
	for _, c := range o.callers {
		callers.Go(func() { do(c) })
	}
	callers.Wait()
}

// learn notes the answer to a GET, which must hold n animals from an id on.
func (o *overload) learn(target string, first, n int) {
	o.sent.Add(1)
	body := o.callers[0].mustGet(target).body
	list := body
	if !strings.HasPrefix(list, "[") {
		list = "[" + list + "]"
	}
	pets := decode[[]pet](o, list)
	for i, p := range pets {
		if id := int64(first + i); p != (pet{id, o.made.names[id], 1, "available"}) {
			o.Fatalf("GET %s: animal %d is %v", target, i, p)
		}
	}
	if len(pets) != n {
		o.Fatalf("GET %s: %d animals, expected %d", target, len(pets), n)
	}
	o.gets = append(o.gets, [2]string{target, body})
}

// request sends one of a mix, of which a fifth are creates.
func (o *overload) request(c *caller) {
	if rand.IntN(5) == 0 {
		o.create(c)
		return
	}
	get := o.gets[rand.IntN(len(o.gets))]
	if got := o.send(c, "GET", get[0], ""); got != nil && (got.status != http.StatusOK ||
		got.body != get[1]) {
		o.Errorf("GET %s is answered %d %s", get[0], got.status, got.body)
	}
}

func (o *overload) create(c *caller) {
	name := fmt.Sprint("animal ", rand.Uint64())
	if got := o.send(c, "POST", "/pets", animalJSON(name)); got != nil {
		o.made.noteCreate(name, got)
	}
}

// send counts a request and notes how long its answer took, unless it was 503.
func (o *overload) send(c *caller, method, target, body string) *answer {
	o.sent.Add(1)
	began := time.Now()
	got, err := c.send(method, target, body)
	if err != nil {
		o.Errorf("%s %s: %v", method, target, err)
		return nil
	}
	if got.status == http.StatusServiceUnavailable {
		o.unavailable.Add(1)
		return got
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.latencies = append(o.latencies, time.Since(began))
	return got
}

// latency is the median for a caller who is alone.
func (o *overload) latency() time.Duration {
	o.latencies = nil
	for range 100 {
		o.request(o.callers[0])
	}
	slices.Sort(o.latencies)
	return o.latencies[len(o.latencies)/2]
}

// closedLoop lets some callers send one request after the other, and returns
// how many are answered in a second.
func (o *overload) closedLoop(callers int, duration time.Duration) (perSecond float64) {
	o.latencies = nil
	began := time.Now()
	var busy sync.WaitGroup
	for _, c := range o.callers[:callers] {
		busy.Go(func() {
			for time.Since(began) < duration {
				o.request(c)
			}
		})
	}
	busy.Wait()
	return float64(len(o.latencies)) / time.Since(began).Seconds()
}

// openLoop lets requests come at a rate, however fast they are answered. One
// that finds all callers waiting is given up.
func (o *overload) openLoop(perSecond float64, duration time.Duration) {
	o.latencies = nil
	requests := make(chan struct{})
	began := time.Now()
	came, sent := 0, 0
	go func() {
		defer close(requests)
		for time.Since(began) < duration {
			for ; came < int(perSecond*time.Since(began).Seconds()); came++ {
				select {
				case requests <- struct{}{}:
					sent++
				default:
				}
			}
			time.Sleep(time.Millisecond)
		}
	}()
	o.each(func(c *caller) {
		for range requests {
			o.request(c)
		}
	})
	seconds := time.Since(began).Seconds()
	o.Logf("a second, %.0f requests come, %.0f are sent and %.0f answered; in all, %d are "+
		"answered 503",
		float64(came)/seconds, float64(sent)/seconds, float64(len(o.latencies))/seconds,
		o.unavailable.Load())
}

// watchMemory follows the service's resident memory until the check is called.
// It is flat if the second half of the time needs no more than the first, give
// or take what the garbage collector does.
func (o *overload) watchMemory() (check func()) {
	var samples []int
	stop, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		for {
			samples = append(samples, int(o.s.memory("VmRSS")>>10))
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
		half := len(samples) / 2
		first, second := slices.Max(samples[:half]), slices.Max(samples[half:])
		o.Logf("resident memory: %d MiB before, at most %d in the first half, %d in the second",
			samples[0], first, second)
		if second > first+8 || second > 256 {
			o.Errorf("resident memory grows from %d to %d MiB", first, second)
		}
	}
}

// checkLatencies allows 2 s, or eight times the average on a machine so busy
// that this is more: nobody may wait far longer than the others.
func (o *overload) checkLatencies() {
	slices.Sort(o.latencies)
	sum := time.Duration(0)
	for _, l := range o.latencies {
		sum += l
	}
	n := len(o.latencies)
	mean, p99 := sum/time.Duration(n), o.latencies[n*99/100]
	o.Logf("answers take %v on average; 1 %% of them more than %v, at most %v", mean, p99,
		o.latencies[n-1])
	if p99 > max(2*time.Second, 8*mean) {
		o.Errorf("1 %% of the answers take more than %v", p99)
	}
}

// checkRecovery wants the latency of before within five seconds, give or take
// what else the machine does.
func (o *overload) checkRecovery(calm time.Duration) {
	over := time.Now()
	for {
		now := o.latency()
		if now <= 3*calm+time.Millisecond {
			o.Logf("%v later an answer takes %v", time.Since(over), now)
			return
		}
		if time.Since(over) > 5*time.Second {
			o.Fatalf("an answer takes %v before the load, and %v five seconds after it", calm, now)
		}
	}
}

// checkUsage wants each request counted once, whatever its answer.
func (o *overload) checkUsage() {
	o.sent.Add(1)
	var left int64
	_, day, _ := strings.Cut(o.callers[0].mustGet("/pets").header.Get("RateLimit"), `"day";`)
	if _, err := fmt.Sscanf(day, "r=%d;", &left); err != nil {
		o.Fatal(err)
	}
	if used := 1_000_000_000_000 - left; used != o.sent.Load() {
		o.Errorf("%d requests were sent and %d are counted", o.sent.Load(), used)
	}
}

// keepApart gives the service one core and the load another, where there are
// two and taskset.
func keepApart(t *testing.T, s *server) {
	pin := func(pid int, cores string) error {
		return exec.Command("taskset", "-a", "-c", "-p", cores, strconv.Itoa(pid)).Run()
	}
	cores := runtime.NumCPU()
	t.Cleanup(func() { _ = pin(os.Getpid(), fmt.Sprintf("0-%d", cores-1)) })
	if cores < 2 {
		t.Log("there is one core for the service and the load")
	} else if err := errors.Join(pin(s.cmd.Process.Pid, "0"), pin(os.Getpid(), "1")); err != nil {
		t.Logf("the service and the load share the cores: %v", err)
	}
}

// lock takes SQLite's write lock on a database, as another program may.
func lock(t *testing.T, file string) (unlock func()) {
	db := database(t, file, "PRAGMA busy_timeout = 5000", "BEGIN IMMEDIATE")
	return func() { noError(t, db.Close()) } // which rolls back
}
