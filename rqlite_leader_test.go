package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhatSurelyDidNothingIsRepeatedAtTheNextLeader, and the log says who leads.
func TestWhatSurelyDidNothingIsRepeatedAtTheNextLeader(t *testing.T) {
	for what, answer := range map[string]fakeAnswer{
		"refused connections":        nil,
		"no leader":                  respond(503, "leader not found\n"),
		"no leader, the other error": respond(500, "leader not found\n"),
	} {
		t.Run(what, func(t *testing.T) {
			onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
				for i, next := range []int{1, 2, 0} {
					lost := c.nodes[c.leader]
					want := []string{writeTo(next)}
					if answer == nil {
						lost.setDown(true)
					} else {
						answerOnce(c, answer)
						want = []string{writeTo(lost.number), writeTo(next)}
					}
					c.lead(next)
					wantNextID(t, s, int64(i+1))
					c.wantArrived(want...)
					c.wantInUse(s, next, lost.number)
					lost.setDown(false)
				}
				e := clusterEngine(s)
				if n := e.unknown.Load(); n != 0 {
					t.Errorf("%d unknown outcomes", n)
				}
			})
		})
	}
}

// wantInUse checks that a store uses one node and that its log says so.
func (c *fakeCluster) wantInUse(s *store, number, before int) {
	c.t.Helper()
	url := func(number int) string { return "http://" + c.nodes[number].host }
	line := fmt.Sprintf(`"msg":"another node is in use","node":%q,"before":%q`,
		url(number), url(before))
	_, node := s.engine.describe()
	if node != url(number) || !strings.Contains(c.log.String(), line) {
		c.t.Errorf("in use is %s, and the log says %s, want %s", node, c.log, line)
	}
}

// TestALeaderThatIsDownAndStillNamed by the others is waited for, or for its successor: through
// them nothing would arrive.
func TestALeaderThatIsDownAndStillNamed(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.nodes[0].setDown(true)
		const election = 2 * time.Second
		time.AfterFunc(election, func() { c.lead(2) })
		c.wantFailover(s, 2, election)
	})
}

// wantFailover checks that a write reaches a node soon after its election.
func (c *fakeCluster) wantFailover(s *store, through int, election time.Duration) {
	c.t.Helper()
	start := time.Now()
	mustCreate(c.t, s, rex)
	if took := time.Since(start); took < election || took > election+2*leaderPoll {
		c.t.Errorf("the write takes %v, and the election %v", took, election)
	}
	c.wantArrived(writeTo(through))
}

// TestAWriteAfterATimeoutGoesToTheNewLeaderAtOnce: the one that timed out on the frozen leader has
// found it.
func TestAWriteAfterATimeoutGoesToTheNewLeaderAtOnce(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.freeze(0)
		c.lead(1)
		_, err := s.createPet(rex)
		if !errors.Is(err, errOutcome) {
			t.Errorf("the write to the frozen leader says %v", err)
		}
		c.arrived()
		c.wantFailover(s, 1, 0)
	})
}

// TestACommandFindsTheNextLeader in the place of one that is frozen. To a command that begins then,
// the other nodes name the frozen one for a while, and would pass requests on to it.
func TestACommandFindsTheNextLeader(t *testing.T) {
	const election = 2 * time.Second
	for what, freezesFirst := range map[string]bool{"one that reads": false, "a start": true} {
		t.Run(what, func(t *testing.T) {
			onFakeCluster(t, func(t *testing.T, c *fakeCluster, _ *store) {
				e := newRqlite(nodeURLs(c.addresses()), openExisting, testLog)
				e.client.Transport = c
				freeze := func() {
					c.freeze(0)
					time.AfterFunc(election, func() { c.lead(1) })
				}
				if freezesFirst {
					freeze()
				}
				wantTime(t, "the start", 0, commandWait-time.Second, nil, func() error {
					if err := e.connect(t.Context()); err != nil {
						return err
					}
					return updateSchema(t.Context(), e, false)
				})
				if !freezesFirst {
					freeze()
				}
				wantTime(t, "a read", 0, commandWait-time.Second, nil, func() error {
					return storeOn(e).readable(t.Context())
				})
			})
		})
	}
}

// TestALookAfterAPauseAsksASecondNode while requests wait for it.
func TestALookAfterAPauseAsksASecondNode(t *testing.T) {
	onLookingCluster(t, func(t *testing.T, c *fakeCluster, l *lookingService, revoke func()) {
		revoke()
		c.freeze(0)
		c.lead(1)
		time.Sleep(lookCount + 1)
		l.want(http.StatusUnauthorized, lookWait/2)
	})
}

// TestNobodyQueuesForTheLeaderForLong: all who wait are told in time, however many they are.
func TestNobodyQueuesForTheLeaderForLong(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.freeze(0, 1, 2)
		const oneWait = leaderWait + statusWait
		var waiting sync.WaitGroup
		for i := range 500 {
			waiting.Go(func() {
				wantTime(t, "a read", 0, oneWait, errUnavailable, func() error {
					return s.readable(t.Context())
				})
			})
			if i%10 == 0 {
				waiting.Go(func() {
					wantTime(t, "a create", 0, 2*oneWait, errUnavailable, creating(s, "Rex"))
				})
			}
			time.Sleep(20 * time.Millisecond)
		}
		waiting.Wait()
	})
}

// TestAStopEndsTheWaitForANode at once, whatever waits. A key that may be stored and was not shown
// is tried to be taken back, for takeBackWait.
func TestAStopEndsTheWaitForANode(t *testing.T) {
	for what, wait := range map[string]struct {
		do   func(ctx context.Context, s *store) error
		most time.Duration
	}{
		"for a leader": {
			func(ctx context.Context, s *store) error { return clusterEngine(s).connect(ctx) }, 0,
		},
		"to read the schema": {
			func(ctx context.Context, s *store) error { return updateSchema(ctx, s.engine, true) }, 0,
		},
		"to look for a first key": {
			func(ctx context.Context, s *store) error {
				_, _, err := firstKey(ctx, s)
				return err
			}, 0,
		},
		"to store a key": {
			func(ctx context.Context, s *store) error {
				process := &process{stdout: io.Discard}
				return keyCreate(ctx, &invocation{process: process, log: testLog, store: s})
			}, takeBackWait,
		},
		"to back up": {
			func(ctx context.Context, s *store) error {
				return clusterEngine(s).backup(ctx, io.Discard)
			}, 0,
		},
		"for another who looks for the leader": {
			func(ctx context.Context, s *store) error {
				clusterEngine(s).locating <- struct{}{}
				return s.readable(ctx)
			}, 0,
		},
	} {
		t.Run(what, func(t *testing.T) {
			onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
				c.freeze(0, 1, 2)
				clusterEngine(s).inUse.Store(clusterEngine(s).nodes[0])
				ctx, stop := context.WithCancel(t.Context())
				const begins = time.Second / 2
				time.AfterFunc(begins, stop)
				start := time.Now()
				_ = wait.do(ctx, s)
				if took := time.Since(start) - begins; took < 0 || took > wait.most {
					t.Errorf("it ends %v after the stop", took)
				}
			})
		})
	}
}

// TestAFailoverWaitsForNoFrozenThirdNode: the next leader is elected a moment later, and is perhaps
// none of the nodes that were named.
func TestAFailoverWaitsForNoFrozenThirdNode(t *testing.T) {
	for what, leader := range map[string]int{
		"a leader that is named":     1,
		"a leader that is not named": 3,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClusterWithoutNetwork(t, 4)
				unnamed := c.nodes[3]
				c.nodes = c.nodes[:3]
				s, _ := newClusterStore(t, c)
				c.nodes = append(c.nodes, unnamed)
				c.freeze(2)
				c.nodes[0].setDown(true)
				c.lead(-1)
				const election = 50 * time.Millisecond
				time.AfterFunc(election, func() { c.lead(leader) })
				c.wantFailover(s, 1, election)
			})
		})
	}
}

// TestWithoutALeader what is remembered is served at once, and the rest fails within five seconds,
// whatever the nodes do meanwhile.
func TestWithoutALeader(t *testing.T) {
	searching := func(d time.Duration) fakeAnswer {
		return func(n *fakeNode, w http.ResponseWriter, r *http.Request) {
			pause(r.Context(), d)
			respond(503, "leader not found\n")(n, w, r)
		}
	}
	for what, answer := range map[string]fakeAnswer{
		"nodes that say so at once":         searching(0),
		"nodes that look for one for three": searching(3 * time.Second),
		"nodes that are frozen":             searching(time.Hour),
		"nodes that are down":               nil,
	} {
		t.Run(what, func(t *testing.T) {
			onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
				for range 3 {
					mustCreate(t, s, rex)
				}
				cached := func() error { _, err := s.page("", 2, 0); return err }
				list := func() error { _, err := s.page("", 20, 0); return err }
				create := func() error { _, err := s.createPet(rex); return err }
				must(t, cached())
				c.lead(-1)
				c.allDown(answer == nil)
				c.always("/db/", answer)
				const least, most = 2 * time.Second, 5 * time.Second
				wantTime(t, "a page that is cached", 0, 0, nil, cached)
				var reading sync.WaitGroup
				for range 4 {
					reading.Go(func() {
						wantTime(t, "a short page", least, most, errUnavailable, list)
					})
				}
				reading.Wait()
				wantTime(t, "a create", least, most, errUnavailable, create)
				time.AfterFunc(time.Second, func() {
					c.when(nil)
					c.allDown(false)
					c.lead(2)
				})
				wantTime(t, "a page that is in time", time.Second, 3*time.Second, nil, list)
			})
		})
	}
}

func (c *fakeCluster) allDown(down bool) {
	for _, n := range c.nodes {
		n.setDown(down)
	}
}

// wantTime checks how long something takes, and its error.
func wantTime(t *testing.T, what string, least, most time.Duration, want error, do func() error) {
	t.Helper()
	start := time.Now()
	err := do()
	took := time.Since(start)
	if took < least || took > most || !errors.Is(err, want) {
		t.Errorf("%s takes %v and says %v", what, took, err)
	}
}

// TestAnUnreachableClusterIsWaitedFor for ten seconds, in which it may come up.
func TestAnUnreachableClusterIsWaitedFor(t *testing.T) {
	for what, prepare := range map[string]func(c *fakeCluster){
		"nodes that are down":       func(c *fakeCluster) { c.allDown(true) },
		"nodes without a leader":    func(c *fakeCluster) { c.lead(-1) },
		"nodes that do not respond": func(c *fakeCluster) { c.freeze(0, 1) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClusterWithoutNetwork(t, 2)
				e := newRqlite(nodeURLs(c.addresses()), openExisting, testLog)
				e.client.Transport = c
				connect := func() error { return e.connect(t.Context()) }
				prepare(c)
				start := time.Now()
				err := connect()
				if took := time.Since(start); err == nil || took != commandWait {
					t.Errorf("after %v: %v", took, err)
				}
				time.AfterFunc(5*time.Second, func() {
					c.when(nil)
					c.allDown(false)
					c.lead(0)
				})
				wantTime(t, "a cluster that comes up", 5*time.Second, 7*time.Second, nil, connect)
			})
		})
	}
}

// TestALeaderThatIsNotNamedIsReachedThroughAFollower, which stays in use until a request to it
// fails: a change would give up requests that run, and fill the log.
func TestALeaderThatIsNotNamedIsReachedThroughAFollower(t *testing.T) {
	c := newCluster(t, 3)
	c.lead(2)
	s, log := openClusterAt(t, c.addresses(0, 1), openToServe)
	mustCreate(t, s, rex)
	_, follower := s.engine.describe()
	c.lead(1)
	must(t, s.refresh(t.Context()))
	wantPets(t, s, 1)
	if _, node := s.engine.describe(); node != follower || log.String() != "" {
		t.Errorf("in use is %s and was %s; the log says %s", node, follower, log)
	}
}

// TestAnOldNodeThatLeadsLaterIsNotReadThrough the others: it would answer with what is out of date.
func TestAnOldNodeThatLeadsLaterIsNotReadThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClusterWithoutNetwork(t, 3)
		c.nodes[2].version = "v8.26.8"
		c.nodes[2].setDown(true)
		s, _ := newClusterStore(t, c)
		c.nodes[2].setDown(false)
		c.nodes[0].setDown(true)
		c.lead(2)
		if _, err := s.page("", 20, 0); !errors.Is(err, errUnavailable) {
			t.Errorf("a read says %v", err)
		}
		c.wantArrived()
	})
}
