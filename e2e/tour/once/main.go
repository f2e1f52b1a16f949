// Exercise once of docs/tour-store.md: a write that is repeated because its answer was lost.
package main

import (
	"errors"
	"fmt"
)

var (
	pets []string // on a machine far away
	lose int      // how many answers the network loses next
)

// create asks the other machine to store a pet. An error says that no answer has come.
func create(key, name string) error {
	pets = append(pets, name)
	if lose > 0 {
		lose--
		return errors.New("connection reset by peer")
	}
	return nil
}

// add adds a new pet: it asks until there is an answer.
func add(name string) {
	key := ""
	for create(key, name) != nil {
		continue
	}
}

func main() {
	lose = 1
	add("Rex")
	add("Rex") // another one
	fmt.Println("pets added: 2 - pets stored:", len(pets))
}
