// Exercise count of docs/tour-limit.md: a limit that is read, compared, and then written.
package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const limit = 60

var used atomic.Int64 // requests of this minute

// admit admits a request, unless the limit is used up.
func admit() bool {
	before := used.Load()
	if before >= limit {
		return false
	}
	time.Sleep(time.Millisecond) // meanwhile, other requests run
	used.Store(before + 1)
	return true
}

func main() {
	var admitted [2]int // of two clients, which send 100 requests each
	var clients sync.WaitGroup
	for client := range admitted {
		clients.Go(func() {
			for range 100 {
				if admit() {
					admitted[client]++
				}
			}
		})
	}
	clients.Wait()
	fmt.Println("admitted:", admitted[0]+admitted[1], "of", limit, "- counted:", used.Load())
}
