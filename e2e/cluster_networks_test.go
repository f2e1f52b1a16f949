package e2e

// Proven here, with real nodes of rqlite and a relay of the tests' own before each: what
// cluster_faults_test.go says holds in networks that are slow, that stall, and that cut connections
// in the middle of a response; and nodes with a certificate of a stranger are told, those with a
// renewed one used.

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// relay passes the connections to the nodes of a cluster on, and spoils them.
type relay struct {
	delay atomic.Int64 // of each way, in nanoseconds
	cuts  atomic.Bool  // some responses to services, in their middle
	stall sync.RWMutex // is locked while nothing is passed on
}

// relayed has services and nodes reach each other through a relay.
func (r *relay) relayed(c *cluster) {
	for i, n := range c.nodes {
		n.relayed = fmt.Sprint(c.network, 100+i)
		c.ip("address add " + n.relayed + "/24 dev " + c.bridge)
		for _, port := range []string{rqlitePort, raftPort} {
			listener, err := net.Listen("tcp", n.relayed+":"+port)
			noError(c.t, err)
			c.t.Cleanup(func() { listener.Close() })
			go r.serve(listener, n.address+":"+port, port == rqlitePort)
		}
	}
}

func (r *relay) serve(listener net.Listener, node string, cuttable bool) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return // the test is over
		}
		go func() {
			to, err := net.Dial("tcp", node)
			if err != nil {
				from.Close()
				return
			}
			go r.pass(to, from, false)
			r.pass(from, to, cuttable)
		}()
	}
}

// part is what was read at once, and when it is passed on.
type part struct {
	bytes []byte
	due   time.Time
}

// pass passes on what comes from one end, until it or the other ends.
func (r *relay) pass(to, from net.Conn, cuttable bool) {
	parts := make(chan part, 1000)
	go func() {
		defer close(parts)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			parts <- part{buffer[:n], time.Now().Add(time.Duration(r.delay.Load()))}
			if err != nil {
				return
			}
		}
	}()
	for p := range parts {
		time.Sleep(time.Until(p.due))
		r.stall.RLock()
		r.stall.RUnlock() //nolint:staticcheck // it only waits
		isCut := cuttable && r.cuts.Load() && rand.N(5) == 0
		if isCut {
			p.bytes = p.bytes[:len(p.bytes)/2]
		}
		if _, err := to.Write(p.bytes); err != nil || isCut {
			break
		}
	}
	to.Close()
	from.Close()
	for range parts { // else its reader would wait for ever
	}
}

// TestTheClusterOutlivesItsNetwork among clients.
func TestTheClusterOutlivesItsNetwork(t *testing.T) {
	t.Parallel()
	r := &relay{}
	f := newTrial(t, r.relayed)
	const unavailable = "not available now"
	blows := []blow{
		{outage{"all is 100 ms away", false, 4 * time.Second, func() func() {
			r.delay.Store(int64(100 * time.Millisecond))
			return func() { r.delay.Store(0) }
		}}, false, isReady, "", allServe},
		{outage{"responses are cut", false, 4 * time.Second, func() func() {
			r.cuts.Store(true)
			return func() { r.cuts.Store(false) }
		}}, false, "", "EOF", someFailed},
		{outage{"nothing arrives for seconds", true, soak(5 * time.Second), func() func() {
			r.stall.Lock()
			return r.stall.Unlock
		}}, true, unavailable, `"not ready".*` + unavailable, nobodyServes},
	}
	f.amid(func() {
		for _, x := range blows {
			if f.suffer(x); t.Failed() {
				return
			}
		}
	})
	f.compareNodes()
	if toll := f.tolls[blows[1].what]; toll != nil && toll.unknown == 0 {
		t.Error("no response was cut")
	}
}

// TestRenewedCertificatesOfNodesAreUsed in the place of those of a stranger, which no service
// trusts, and without a restart.
func TestRenewedCertificatesOfNodesAreUsed(t *testing.T) {
	f := newTrial(t, secured)
	c := f.cluster
	strange := filepath.Join(t.TempDir(), "strange.pem")
	c.security.found(t, strange)
	const wrong = "certificate" // perhaps not the first reason that a service is not ready
	f.amid(func() {
		f.suffer(blow{outage{"certificates are strange", true, 3 * time.Second, func() func() {
			c.security.certify(t, strange)
			for i := range c.nodes { // or their connections would live on
				c.kill(i)
				c.start(i)
			}
			return func() { c.security.certify(t, c.security.authority) }
		}}, true, wrong, `(?s)"not ready".*` + wrong, nobodyServes})
	})
	f.compareNodes()
}
