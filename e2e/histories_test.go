package e2e

// Proven here alone, with porcupine: what clients and an operator are told, through kills and
// outages, could have come from one store.

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"petstore/e2e/histories/pets"
	"petstore/e2e/planted"
)

// recordTime is how long the clients of a store on a file work. A history of this size is checked
// in seconds; SOAK makes more of them, each of a new store.
const recordTime = 12 * time.Second

// TestHistoriesOfOneService has clients and an operator use a service at once.
func TestHistoriesOfOneService(t *testing.T) {
	t.Parallel()
	checkHistories(t, func(t *testing.T) *recording {
		s := serveFile(t, "")
		return s.record(func() { time.Sleep(recordTime) })
	})
}

// TestHistoriesOfAKilledService kills the service meanwhile, and starts it again.
func TestHistoriesOfAKilledService(t *testing.T) {
	t.Parallel()
	checkHistories(t, func(t *testing.T) *recording {
		s := serveFile(t, "")
		return s.record(func() { s.dieAgainAndAgain(recordTime) })
	})
}

// TestHistoriesOfACluster has clients use three services, behind HAProxy or not, while every kind
// of outage happens once. The clock of one service, and of the commands, is half a second ahead.
func TestHistoriesOfACluster(t *testing.T) {
	t.Parallel()
	checkHistories(t, func(t *testing.T) *recording {
		s := newStorm(t, "")
		s.setOneAhead()
		s.number = rand.N(6) // whom the outages hit
		return s.record(s.sufferEverything)
	})
}

// checkHistories wants all histories to be linearizable: one in .ci/run, and with SOAK=n as many as
// take n minutes.
func checkHistories(t *testing.T, next func(t *testing.T) *recording) {
	checked, edits := 0, int64(0)
	began := time.Now()
	for number := 1; ; number++ {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			r := next(t)
			checkHistory(t, r)
			checked += len(r.Operations())
			edits += r.edits.Load()
		})
		if t.Failed() {
			return
		}
		if !planted.Again(began) {
			t.Logf("%d operations and %d edits in %d histories are linearizable", checked, edits,
				number)
			return
		}
	}
}

func checkHistory(t *testing.T, r *recording) {
	t.Helper()
	operations := r.Operations()
	if r.edits.Load() == 0 || r.unread.Load() == 0 {
		t.Fatalf("%d edits succeed, and there are %d responses of 304", r.edits.Load(),
			r.unread.Load())
	}
	uses := r.keys.Operations()
	if !pets.CheckKeys(uses) {
		t.Errorf("in %d uses of keys, a service goes by a key that it should know as revoked, or "+
			"refuses one that is not", len(uses))
	}
	began := time.Now()
	verdict, err := pets.Check(operations)
	if err != nil || !verdict.Legal {
		page := filepath.Join(os.TempDir(), fmt.Sprintf("history-%d.html", began.UnixNano()))
		noError(t, pets.Draw(operations, page))
		t.Fatalf("%s shows a history that is not linearizable, or not known to be: %v", page, err)
	}
	t.Logf("%d operations, checked in %v, in %d parts, and %d uses of keys", len(operations),
		time.Since(began).Round(time.Millisecond), verdict.Parts, len(uses))
}

// serveFile starts a service on a new file: of the program under test, or of another one.
func serveFile(t *testing.T, program string) *server {
	t.Helper()
	db := filepath.Join(t.TempDir(), "petstore.db")
	s := &server{t: t, db: db, serves: program, commands: program}
	s.key = s.newKey(unlimited...)
	s.run("-addr", ownAddress(t))
	return s
}

// record returns what clients see while something happens.
func (s *server) record(happens func()) *recording {
	s.t.Helper()
	r := newRecording(s.t, []*server{s}, []string{s.key})
	r.while(happens)
	return r
}

// dieAgainAndAgain kills the service and starts it again, for a time.
func (s *server) dieAgainAndAgain(lasts time.Duration) {
	for ends := time.Now().Add(lasts); time.Now().Before(ends); {
		time.Sleep(rand.N(time.Second))
		s.kill()
		s.again()
	}
}

func (s *storm) record(happens func(r *recording)) *recording {
	s.Helper()
	r := newRecording(s.T, s.services, s.keys, s.balancer.hashing, s.balancer.roundRobin)
	r.while(func() { happens(r) })
	return r
}

// early is the program under test with a clock that is ahead.
var early = sync.OnceValues(func() (program string, err error) {
	folder := filepath.Join(filepath.Dir(binary), "early")
	return planted.BuildAhead("..", folder, clockAhead, nil)
})

// setOneAhead sets the clock of a service, and of the commands.
func (s *storm) setOneAhead() {
	s.Helper()
	program, err := early()
	noError(s.T, err)
	first := s.services[0]
	first.stop()
	first.serves, first.commands = program, program
	first.again(debugFlags...)
}

// sufferEverything has one outage after the other happen, with time in between. In
// .ci/run they are short, and only those that concern the leader, a service, or HAProxy.
func (s *storm) sufferEverything(r *recording) {
	soaking := os.Getenv("SOAK") != ""
	for _, o := range s.outages() {
		if !soaking {
			o.lasts = min(o.lasts, 3*time.Second)
		}
		if !soaking && strings.Contains(o.what, "follower") {
			continue
		}
		time.Sleep(2 * pets.Visible)
		pass := func() {
			o.pass()
			s.awaitReady()
		}
		if o.ofLeader {
			r.outage(pass)
		} else {
			pass()
		}
	}
	time.Sleep(2 * pets.Visible)
}
