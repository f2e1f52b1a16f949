package histories

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"petstore/e2e/planted"
)

// recordCallsFor is longer than two windows of a minute, so that every key sees the next one.
const recordCallsFor = 28 * time.Second

// shortMinute has a service count minutes of minuteLength. The root's tests hold them to 60 s.
var shortMinute = []string{
	"minuteMillis instant = 60 * 1000", fmt.Sprint("minuteMillis instant = ", minuteLength),
}

// TestCallersAreLimitedAsTheModelSays has callers use up small limits, while the service is killed
// and stopped and quotas change. Then the calls of each key are replayed in the model:
// every response must be what the model says at an instant between the call and the response.
func TestCallersAreLimitedAsTheModelSays(t *testing.T) {
	t.Parallel()
	changes := planted.Changes{"model.go": shortMinute} // and no fault
	program, err := planted.BuildAhead("../..", t.TempDir(), 0, changes)
	if err != nil {
		t.Fatal(err)
	}
	calls, admitted := 0, 0
	began := time.Now()
	for again := true; again; again = planted.Again(began) {
		r := recordCalls(t, program, recordCallsFor)
		if err := r.replay(); err != nil {
			t.Fatal(err)
		}
		for _, c := range r.callers {
			calls += len(c.calls)
			admitted += c.admitted()
		}
	}
	t.Logf("%d calls, of which %d were admitted, follow the model of the limits", calls, admitted)
}

// process is one of the service, from start to end.
type process struct {
	number   int
	url      string
	isKilled bool
	ended    int64        // the moment before its end
	slowest  atomic.Int64 // of the calls, in milliseconds
}

// recording is a service and its callers.
type recording struct {
	*service
	client  http.Client
	callers []*caller
	life    atomic.Pointer[process]
	lives   []*process
	over    atomic.Bool
}

// caller uses a key, and makes one call after the other.
type caller struct {
	name    string // what it does
	key, id string
	quotas  []change
	calls   []call
}

// change is a quota of a key, and the moments around the command that sets it.
type change struct {
	quota
	from, to int64
}

// call is a request, with the moments around it.
type call struct {
	life      *process
	from, to  int64
	isReplied bool // otherwise the service may not have seen it
	reply
}

func (c *caller) admitted() (calls int) {
	for _, made := range c.calls {
		if made.isReplied && made.code == "" {
			calls++
		}
	}
	return calls
}

func nowMillis() int64 { return time.Now().UnixMilli() }

// recordCalls lets callers work while the service ends and starts again, and quotas change.
func recordCalls(t *testing.T, program string, lasts time.Duration) *recording {
	t.Helper()
	r := &recording{service: newService(t, program)}
	r.client.Transport = &http.Transport{DisableKeepAlives: true} // so that no call is repeated
	for range 2 {
		r.newCaller("insists", quota{20, 1_000_000})
		r.newCaller("waits", quota{30, 1_000_000})
		r.newCaller("uses its day", quota{50, 90})
		r.newCaller("changes", quota{40, 300})
		r.newCaller("writes", quota{1000, 100_000})
	}
	r.begin()
	var working sync.WaitGroup
	for _, c := range r.callers {
		working.Go(func() { r.work(c) })
	}
	working.Go(r.changeQuotas)
	for began := time.Now(); time.Since(began) < lasts; {
		time.Sleep(time.Second/2 + rand.N(4*time.Second))
		r.end(rand.N(3) > 0)
		r.begin()
	}
	r.over.Store(true)
	working.Wait()
	r.end(false)
	return r
}

func (r *recording) newCaller(name string, q quota) {
	r.t.Helper()
	perMinute := strconv.FormatInt(q.minute, 10)
	perDay := strconv.FormatInt(q.day, 10)
	key, err := r.command("key", "create",
		"-plan", "enterprise", "-per-minute", perMinute, "-per-day", perDay)
	if err != nil {
		r.t.Fatal(err)
	}
	r.callers = append(r.callers, &caller{
		name:   name,
		key:    strings.TrimSpace(key),
		id:     strconv.Itoa(len(r.callers) + 1),
		quotas: []change{{quota: q}},
	})
}

func (r *recording) begin() {
	r.run("-ban-for", fmt.Sprint(banLength, "ms"))
	number := len(r.lives) + 1
	url := *r.url.Load()
	l := &process{number: number, url: url}
	r.lives = append(r.lives, l)
	r.life.Store(l)
}

// end ends the service without a warning, or as an operator does.
func (r *recording) end(kills bool) {
	l := r.life.Load()
	l.isKilled = kills
	l.ended = nowMillis()
	if kills {
		r.kill()
		return
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.t.Error(err)
	}
	if err := r.cmd.Wait(); err != nil {
		r.t.Errorf("after SIGTERM the service ends with %v", err)
	}
}

// changeQuotas changes those of the callers that are called so.
func (r *recording) changeQuotas() {
	quotas := []quota{{20, 150}, {40, 300}, {60, 150}, {300, 10_000}}
	for !r.over.Load() {
		time.Sleep(rand.N(4 * time.Second))
		for _, c := range r.callers {
			if c.name == "changes" {
				r.changeQuota(c, quotas[rand.N(len(quotas))])
			}
		}
	}
}

func (r *recording) changeQuota(c *caller, q quota) {
	made := change{quota: q, from: nowMillis()}
	perMinute := strconv.FormatInt(q.minute, 10)
	perDay := strconv.FormatInt(q.day, 10)
	_, err := r.command("key", "set", "-per-minute", perMinute, "-per-day", perDay, c.id)
	if err != nil {
		r.t.Error(err)
		return
	}
	made.to = nowMillis()
	c.quotas = append(c.quotas, made)
}

func (r *recording) work(c *caller) {
	time.Sleep(rand.N(4 * time.Second))
	for !r.over.Load() {
		made := r.call(c)
		longest := 150 * time.Millisecond
		if c.name == "writes" {
			longest /= 5
		}
		pause := rand.N(longest)
		if c.name == "waits" && made.code != "" { // until Retry-After has passed, or nearly so
			pause += time.Duration(made.retryAfter)*time.Second - longest/2
		}
		for slept := time.Now(); time.Since(slept) < pause && !r.over.Load(); {
			time.Sleep(min(pause, 20*time.Millisecond))
		}
	}
}

// call makes a call and records it, unless it surely did not reach the service.
func (r *recording) call(c *caller) (made call) {
	made.life = r.life.Load()
	method, body := "GET", ""
	if c.name == "writes" {
		method, body = "POST", `{"name":"Rex","categoryId":1}`
	}
	request, err := http.NewRequest(method, made.life.url+"/pets", strings.NewReader(body))
	if err != nil {
		r.t.Error(err)
		return made
	}
	request.Header.Set("Authorization", "Bearer "+c.key)
	made.from = nowMillis()
	response, err := r.client.Do(request)
	made.to = nowMillis()
	made.life.noteDuration(made.to - made.from)
	if refusedConnection(err) {
		return made
	}
	if err == nil {
		made.reply, err = r.read(response)
		made.isReplied = err == nil
	}
	c.calls = append(c.calls, made)
	return made
}

// read returns an error if the response is cut off.
func (r *recording) read(response *http.Response) (reply, error) {
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, err
	}
	var refusal struct{ Code string }
	switch response.StatusCode {
	case 200, 201:
	case 429:
		if err := json.Unmarshal(content, &refusal); err != nil {
			r.t.Errorf("a refusal is %s", content)
		}
	default:
		r.t.Errorf("a call gets %d %s", response.StatusCode, content)
	}
	got, err := replyOf(response.Header, refusal.Code)
	if err != nil {
		r.t.Error(err)
	}
	return got, nil
}

func (l *process) noteDuration(millis int64) {
	for slowest := l.slowest.Load(); millis > slowest; slowest = l.slowest.Load() {
		l.slowest.CompareAndSwap(slowest, millis)
	}
}

// accounts are all ways in which a key may stand, given what its caller has seen.
type accounts map[account]bool

// replay has the model explain all calls.
func (r *recording) replay() error {
	for _, c := range r.callers {
		if err := c.replay(r.lives); err != nil {
			return err
		}
	}
	return nil
}

// replay has the model explain the calls of a caller. It does not know at which instants the
// service has read its clock, how much of the last second a kill has made it forget, and when
// within a second a change of the quota was noticed. It tries all there is.
func (c *caller) replay(lives []*process) error {
	may := accounts{{}: true}
	next := 0
	for _, l := range lives {
		for {
			isOver := next == len(c.calls) || c.calls[next].life != l
			if isOver || c.calls[next].to > l.surelyKept() {
				may.choose()
			}
			if isOver {
				break
			}
			explained := c.explain(may, c.calls[next])
			if len(explained) == 0 {
				return c.unexplained(may, next)
			}
			may = explained
			next++
		}
		may = may.after(l)
	}
	return nil
}

// surelyKept is the moment until which usage must outlive the end of a life. A kill may forget a
// second; or, if a commit takes more than a quarter of one, 0.75 s and the commit.
func (l *process) surelyKept() int64 {
	if !l.isKilled {
		return math.MaxInt64
	}
	return l.ended - max(1000, 750+l.slowest.Load())
}

// choose adds the accounts of which a kill leaves just this usage.
func (may accounts) choose() {
	for a := range may {
		if !a.isChosen {
			a.isChosen = true
			a.stored = a.usage
			may[a] = true
		}
	}
}

// after is how the key may stand in the next life, which forgives strikes and forgets no ban.
func (may accounts) after(l *process) accounts {
	next := accounts{}
	for a := range may {
		later := account{usage: a.usage, bannedUntil: a.bannedUntil, plan: a.plan}
		if l.isKilled {
			later.usage = a.stored
		}
		if a.isChosen {
			next[later] = true
		}
	}
	return next
}

// explain returns the accounts after a call that explain its response.
func (c *caller) explain(may accounts, made call) accounts {
	explained := accounts{}
	for a := range may {
		a = a.without(made.from)
		if !made.isReplied {
			explained[a] = true // it did not get there
		}
		for now := made.from; now <= made.to; now++ {
			for plan := a.plan; plan < len(c.quotas); plan++ {
				if !c.mayHold(plan, a.plan, now) {
					continue
				}
				after, says := a.answer(now, c.quotas[plan].quota)
				after.plan = plan
				if !made.isReplied || says == made.reply {
					explained[after] = true
				}
			}
		}
	}
	return explained
}

// mayHold reports whether a quota may hold at an instant: not before the command that sets it, and
// no longer than a second after one that sets the next.
func (c *caller) mayHold(plan, known int, now int64) bool {
	if plan > known && now < c.quotas[plan].from {
		return false
	}
	next := plan + 1
	if next == len(c.quotas) {
		return true
	}
	return now <= c.quotas[next].to+1000
}

// unexplained tells of the first call that no account explains, and of those before.
func (c *caller) unexplained(may accounts, at int) error {
	var text strings.Builder
	fmt.Fprintf(&text, "no account explains the last call of the key that %s:", c.name)
	for _, made := range c.calls[max(0, at-4) : at+1] {
		fmt.Fprintf(&text, "\nlife %d, %d to %d: %+v",
			made.life.number, made.from, made.to, made.reply)
	}
	for a := range may {
		q := c.quotas[a.plan].quota
		_, says := a.answer(c.calls[at].from, q)
		fmt.Fprintf(&text, "\nan account is %+v and says %+v", a, says)
		break // one of many is enough
	}
	return errors.New(text.String())
}
