package histories

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// budget is how long a test records histories: a minute, or SOAK minutes.
func budget(t *testing.T) time.Duration {
	t.Helper()
	times := 1
	if soak := os.Getenv("SOAK"); soak != "" {
		var err error
		if times, err = strconv.Atoi(soak); err != nil || times < 1 {
			t.Fatalf("SOAK must be a positive integer, not %q", soak)
		}
	}
	return time.Duration(times) * time.Minute
}

// recordTime is how long the clients of one history work. A history of this size is checked in
// seconds, so a longer time makes more of them, each of a new database.
const recordTime = 6 * time.Second

// TestOneServiceIsLinearizable has clients and an operator use a service at once.
func TestOneServiceIsLinearizable(t *testing.T) {
	t.Parallel()
	check(t, func(s *session) { s.work(recordTime) })
}

// TestAServiceThatIsKilledIsLinearizable kills the service meanwhile, and starts it again.
func TestAServiceThatIsKilledIsLinearizable(t *testing.T) {
	t.Parallel()
	check(t, func(s *session) { s.workThroughKills(recordTime) })
}

func check(t *testing.T, work func(*session)) {
	program := build(t, "../..")
	histories, checked := 0, 0
	for began := time.Now(); time.Since(began) < budget(t); histories++ {
		operations := play(t, program, work)
		if !legal(t, operations) {
			t.Fatalf("no store could have answered so:\n%s", describe(shortest(t, operations)))
		}
		checked += len(operations)
	}
	t.Logf("%d operations in %d histories are linearizable", checked, histories)
}

// play returns the history of a new service.
func play(t *testing.T, program string, work func(*session)) []porcupine.Operation {
	t.Helper()
	s := &session{service: start(t, program), history: &history{began: time.Now()}}
	work(s)
	s.listAll()
	s.kill()
	return s.operations
}

// workThroughKills has the clients work while the service is killed again and again.
func (s *session) workThroughKills(lasts time.Duration) {
	done := make(chan struct{})
	go func() {
		s.work(lasts)
		close(done)
	}()
	for {
		select {
		case <-done:
			return
		case <-time.After(rand.N(life)):
			s.service.kill()
			s.run()
		}
	}
}
