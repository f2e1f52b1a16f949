// Stop3 shows what stop 3 of docs/tour.md warns of: a limit that is first read, then compared, then written.
package main

import (
	"fmt"
	"io"
	"os"
	"sync"
)

const limit = 60 // requests

// counter is a number in some store. Each call is safe by itself: the race detector finds nothing to report.
type counter struct {
	mu   sync.Mutex
	used int
}

func (c *counter) get() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

func (c *counter) set(used int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used = used
}

// naive admits a request if the limit is not used up. Whatever runs in between may read the same number.
func (c *counter) naive(between func()) (admitted bool) {
	used := c.get()
	if used >= limit {
		return false
	}
	between()
	c.set(used + 1)
	return true
}

// admit does the same under one lock, so that nothing can come in between.
func (c *counter) admit() (admitted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used >= limit {
		return false
	}
	c.used++
	return true
}

// two lets two clients send 100 requests each, at the same time, and counts those that are admitted.
func two(admit func() bool) (admitted int) {
	var clients sync.WaitGroup
	var of [2]int
	for i := range of {
		clients.Go(func() {
			for range 100 {
				if admit() {
					of[i]++
				}
			}
		})
	}
	clients.Wait()
	return of[0] + of[1]
}

// meet returns when both clients have called it: each has read the number, and neither has written it. On a busy
// machine this happens by chance; here it happens every time.
func meet(place chan bool) {
	select {
	case place <- true:
	case <-place:
	}
}

func show(out io.Writer) {
	c, place := &counter{}, make(chan bool)
	admitted := two(func() bool { return c.naive(func() { meet(place) }) })
	_, _ = fmt.Fprintf(out, "read, compare, write:  %d of %d requests admitted; the counter says %d\n", admitted, limit, c.get())
	c = &counter{}
	admitted = two(c.admit)
	_, _ = fmt.Fprintf(out, "all under one lock:    %d of %d requests admitted; the counter says %d\n", admitted, limit, c.get())
}

func main() { show(os.Stdout) }
