// Exercise merge of docs/tour-limit.md: two services that limit one key, and share a database.
package main

import "fmt"

const limit = 60

var stored int // in the database: what the key has used of its minute

// service counts in memory. To ask the database for each request would take too long.
type service struct {
	used int // of the key's minute, as far as this service knows
}

// admit admits a request, unless the limit is used up.
func (s *service) admit() bool {
	if s.used >= limit {
		return false
	}
	s.used++
	return true
}

// flush brings what was counted to the database. Each service flushes every half second.
func (s *service) flush() {
	stored = s.used
}

func main() {
	services := []*service{{}, {}}
	admitted := 0
	for request := range 200 {
		if services[request%2].admit() {
			admitted++
		}
		if request%10 == 9 {
			services[0].flush()
			services[1].flush()
		}
	}
	fmt.Println("admitted:", admitted, "of", limit, "- stored:", stored)
}
