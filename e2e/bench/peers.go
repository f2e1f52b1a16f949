//go:build linux

package main

// The service beside what people would pick instead: the same pets, the same operations, a key
// checked by each.

import (
	"encoding/json"
	"reflect"
	"strings"
)

// The operations. A new pet is synced to the disk before the response, or a power cut can take it
// back: each system is measured with what it offers.
const (
	opList     = "list of 20"
	opFiltered = "the same, filtered"
	opHundred  = "list of 100"
	opFetch    = "fetch, random id"
	opSynced   = "add, synced"
	opUnsynced = "add, not synced"
)

var operations = []string{opList, opFiltered, opHundred, opFetch, opSynced, opUnsynced}

// Systems that goals and tables name.
const (
	ourName     = "Pet Store"
	fastifyName = "Fastify, better-sqlite3"
	ceilingName = "ceiling"
)

// peerPets is how many pets each system has. Those with ids of four digits are fetched.
const (
	peerPets                  = 10_000
	leastFetched, mostFetched = 1000, 5000
)

// peer is a system that is compared, set up and running.
type peer struct {
	name   string
	calls  map[string]*call                 // by operation; one that is missing is not measured
	petsOf func(body []byte) ([]pet, error) // reads a response
}

// call is how an operation is asked for. In a request, {id} stands for an id of four digits.
type call struct {
	server  *server
	request string
}

func (c *call) script() string {
	if strings.Contains(c.request, "{id}") {
		return vary(c.request, leastFetched, mostFetched)
	}
	return always(c.request)
}

func (c *call) sample() string { return strings.ReplaceAll(c.request, "{id}", "1005") }

// pet is one as every system has to return it.
type pet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

// addedPet is the one that every add makes, without its id.
var addedPet = pet{Name: "Rex", CategoryID: 7, Status: "available"}

// peers compares all of them, in turns.
func (b *bench) peers() {
	all := b.startPeers()
	for _, p := range all {
		for _, operation := range operations {
			p.check(operation, all[0])
		}
	}
	for _, operation := range operations {
		var targets []target
		var names []string
		for _, p := range all {
			if c := p.calls[operation]; c != nil {
				targets = append(targets, target{c.server, c.script()})
				names = append(names, p.name)
			}
		}
		measured := b.inTurns(clients, targets...)
		for i, rounds := range measured {
			for n, f := range rounds {
				f["ratio"] = measured[0][n]["req/s"] / f["req/s"]
			}
			b.record(names[i]+": "+operation, peerPets, rounds...)
		}
	}
}

// check makes sure that a system returns the pets that the service returns, and refuses another
// key.
func (p *peer) check(operation string, service *peer) {
	c := p.calls[operation]
	if c == nil {
		return
	}
	got, want := p.answer(operation), []pet{addedPet}
	if isAdd(operation) {
		got[0].ID = 0
	} else {
		want = service.answer(operation)
	}
	if !reflect.DeepEqual(got, want) {
		fail("%s, %s: the response has the pets\n%v, not\n%v", p.name, operation, got, want)
	}
	if p.name == ceilingName {
		return
	}
	scheme, key, _ := strings.Cut(c.server.auth, " ")
	other := strings.Replace(c.sample(), c.server.auth, scheme+" x"+key[1:], 1)
	a := must1(c.server.exchange(other))
	pets, err := p.petsOf(a.Body) // PocketBase sends an empty list
	if a.Status < 300 && (err != nil || len(pets) > 0) {
		fail("%s, %s: a wrong key gets %d: %s", p.name, operation, a.Status, a.Body)
	}
}

// answer are the pets in the response to an operation.
func (p *peer) answer(operation string) []pet {
	c := p.calls[operation]
	a := c.server.ask(c.sample())
	pets, err := p.petsOf(a.Body)
	if err != nil || len(pets) == 0 {
		fail("%s, %s: no pets (%w) in %s", p.name, operation, err, a.Body)
	}
	return pets
}

func isAdd(operation string) bool { return operation == opSynced || operation == opUnsynced }

// petsOf reads a list of pets, or one.
func petsOf(body []byte) (pets []pet, err error) {
	if len(body) > 0 && body[0] == '[' {
		err = json.Unmarshal(body, &pets)
		return pets, err
	}
	pets = make([]pet, 1)
	err = json.Unmarshal(body, &pets[0])
	return pets, err
}

// readCalls are those of the service, and of systems that have the same paths.
func readCalls(s *server) map[string]*call {
	get := func(path string) *call {
		return &call{server: s, request: s.get(path)}
	}
	return map[string]*call{
		opList:     get(list),
		opFiltered: get(list + "?limit=20&status=sold"),
		opHundred:  get(list + "?limit=100"),
		opFetch:    get(list + "/{id}"),
	}
}

func addCall(s *server) *call { return &call{server: s, request: s.add()} }
