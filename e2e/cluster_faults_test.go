package e2e

// What a fault of a cluster is held against, with real nodes of rqlite and HAProxy: nothing that
// was acknowledged is lost or stored twice, usage is counted once, and creates are acknowledged
// again at most 10 s after there is a majority. Log, /readyz, and the numbers of the operator's
// page say what is wrong, and that nothing is when nothing is.

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// recovery is how long after there is a majority creates may wait for it.
const recovery = 10 * time.Second

// blow is an outage, and what the first service says of it in the end.
type blow struct {
	outage
	isAway bool   // there is no majority
	ready  string // what /readyz of the debug address says, in a regular expression
	logged string // what the log says of it, likewise
	page   string // what the operator's page says, likewise
}

// trial is a storm of blows, in which two keys are used.
type trial struct {
	*storm
	everywhere issued // at all services, with perDay requests a day
	left       int    // of them
	alone      issued // at the first service, with perMinute requests a minute
	began      time.Time
	admitted   int // of alone
}

const perMinute = 60

func newTrial(t *testing.T, options ...func(*cluster)) *trial {
	t.Helper()
	f := &trial{storm: newStorm(t, "", options...), left: perDay}
	f.writers = 12 // what matters here is how things fail, not how much
	first := f.services[0]
	f.everywhere, f.alone = first.keyOfDay(), first.keyOf(fmt.Sprint(perMinute))
	f.left = f.parish().awaitDayLeft(t, f.everywhere, f.left)
	f.began = time.Now()
	return f
}

func (f *trial) parish() *parish { return &parish{cluster: f.cluster, services: f.services} }

// suffer lets a blow begin, last and end among clients, and holds it against what is promised.
func (f *trial) suffer(x blow) {
	f.Helper()
	f.Logf("%s:", x.what)
	s := f.services[0]
	logged := len(s.log.String())
	failures := s.metric("petstore_commit_failures_total")
	since := time.Now()
	stop := sync.OnceFunc(f.meter())
	defer stop()
	begin := x.begin
	x.begin = func() func() {
		end := begin()
		return func() {
			f.compare(s, x, failures)
			if x.isAway {
				since = time.Now()
			}
			end()
		}
	}
	f.storm.suffer(x.outage)
	stop()
	f.mu.Lock()
	silence := f.silence(since)
	f.mu.Unlock()
	f.Logf("no create is acknowledged for %v while there is a majority", silence)
	if silence > recovery {
		f.Errorf("%s: that is too long", x.what)
	}
	log := s.log.String()[logged:]
	if !regexp.MustCompile(x.logged).MatchString(log) {
		f.Errorf("%s: the log does not say %q:\n%s", x.what, x.logged, tail(log))
	}
	if x.logged == "" && strings.Contains(log, `"ERROR"`) {
		f.Errorf("%s: the log tells of an error:\n%s", x.what, tail(log))
	}
	f.left = f.parish().awaitDayLeft(f.T, f.everywhere, f.left)
	if most := perMinute * windowsSince(f.began); f.admitted < perMinute || f.admitted > most {
		f.Errorf("%d requests are admitted, want %d to %d", f.admitted, perMinute, most)
	}
}

// compare wants a service to say what is wrong.
func (f *trial) compare(s *server, x blow, failures float64) {
	f.Helper()
	ready := s.get(f.T, "/readyz")
	f.Logf("/readyz says %q", ready)
	if !regexp.MustCompile(x.ready).MatchString(ready) {
		f.Errorf("%s: /readyz says %q, want %q", x.what, ready, x.ready)
	}
	var page struct{ Metrics map[string]float64 }
	eventually(f.T, longEnough, func() error { // the nodes are asked every 5 s
		text := s.get(f.T, "/stats.json")
		noError(f.T, json.Unmarshal([]byte(text), &page))
		if !regexp.MustCompile(x.page).MatchString(text) {
			return fmt.Errorf("%s: the operator's page says %s", x.what, text)
		}
		return nil
	})
	const failed = "petstore_commit_failures_total"
	if ready != isReady && page.Metrics[failed] <= failures {
		f.Errorf("%s: the operator's page shows %v commits that failed", x.what,
			page.Metrics[failed])
	}
}

const (
	isReady = "ok\n" // is what /readyz says when all is well

	// What the operator's page says.
	allServe     = `"petstore_nodes_serving":3`
	nobodyServes = `"state":"".*"ready":false`
	oneIsLost    = `"state":"".*"petstore_nodes_serving":2.*"PetstoreNodeLost"`
	someFailed   = `"petstore_commit_failures_total":[1-9]`
)

// meter makes requests that need no leader, until stop.
func (f *trial) meter() (stop func()) {
	ended := make(chan struct{})
	var calling sync.WaitGroup
	calling.Go(func() {
		for {
			for _, s := range f.services {
				f.left -= s.admissionsOf(f.T, f.everywhere, 1)
			}
			f.admitted += f.services[0].admissionsOf(f.T, f.alone, 4)
			select {
			case <-ended:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return func() {
		close(ended)
		calling.Wait()
	}
}

// admissionsOf sends requests that need no leader, and counts what is admitted.
func (s *server) admissionsOf(t *testing.T, key issued, requests int) (admitted int) {
	t.Helper()
	for range requests {
		got, err := call(s.url, key.token, "GET", "/nothing", "", "")
		if err != nil {
			t.Error(err)
			return admitted
		}
		if got.outcome() == "404 not_found" {
			admitted++
		}
	}
	return admitted
}

// windowsSince is how many minutes of a key can have begun.
func windowsSince(first time.Time) int { return 1 + int(time.Since(first)/time.Minute) }
