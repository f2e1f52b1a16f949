//go:build linux

package main

// The service beside what people would pick instead: the same pets, the same operations, a key checked by each.

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The operations. A new pet is synced to the disk before the response, or a power cut can take it back: each
// system is measured with what it offers.
const (
	opList     = "list of 20"
	opFiltered = "the same, filtered"
	opHundred  = "list of 100"
	opGet      = "fetch, random id"
	opSynced   = "add, synced"
	opUnsynced = "add, not synced"
)

var operations = []string{opList, opFiltered, opHundred, opGet, opSynced, opUnsynced}

// fetched is the highest id that is fetched; pets with these ids are in every database.
const fetched = 4096

// peer is a system that is compared, set up and running.
type peer struct {
	name, setup string                           // setup says which version it is, and what it does for each request
	servers     map[string]*server               // by operation; one that is missing is not measured
	lua         map[string]string                // what wrk sends, by operation
	sample      map[string]string                // one such request as it goes over the wire
	pets        func(body []byte) ([]pet, error) // reads a response
	added       map[*server]float64              // responses that say that a pet was added
	size        map[string]float64               // bytes that a response has at least, by operation
}

// pet is one as every system has to return it.
type pet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

// peers compares all of them, in turns.
func (b *bench) peers() {
	b.buildPeers()
	var all []*peer
	r := b.runs("peers", func(r *results) {
		all = b.startPeers()
		for _, p := range all {
			r.about = append(r.about, p.name+": "+p.setup)
		}
		for _, p := range all {
			b.checkPeer(p, all[0])
		}
		for round := range b.rounds {
			for i, operation := range operations {
				for turn := range all { // each goes first at some time
					p := all[(turn+round+i)%len(all)]
					if p.servers[operation] == nil {
						continue
					}
					what := fmt.Sprintf("round %d, %s, %s", round+1, operation, p.name)
					l := b.measure(p.servers[operation], what, p.lua[operation], b.connections, b.seconds, false)
					if l.size < p.size[operation] {
						fail("%s: the responses have %.0f bytes, too few for what was asked", what, l.size)
					}
					r.addLoad(p.name, operation, float64(b.animals[0]), l)
					if isAdd(operation) {
						p.added[p.servers[operation]] += l.requests
					}
				}
			}
		}
		for _, p := range all {
			b.stopPeer(p)
		}
	})
	b.tellPeers(r)
	b.drawPeers(r)
}

// checkPeer makes sure that a system returns the pets that the service returns, and refuses another key.
func (b *bench) checkPeer(p, service *peer) {
	for _, operation := range operations {
		s := p.servers[operation]
		if s == nil {
			continue
		}
		got, want := p.answer(operation), []pet{added}
		if isAdd(operation) {
			p.added[s]++
			got[0].ID = 0
		} else {
			want = service.answer(operation)
		}
		if !reflect.DeepEqual(got, want) {
			fail("%s, %s: the response has the pets\n%v, not\n%v", p.name, operation, got, want)
		}
		if p.setup == ceilingSetup {
			continue
		}
		other := strings.Replace(p.sample[operation], s.key, "x"+s.key[1:], 1)
		a := must1(s.exchange(other))
		if pets, err := p.pets(a.Body); a.Status < 300 && (err != nil || len(pets) > 0) { // PocketBase sends an empty list
			fail("%s, %s: a wrong key gets %d: %s", p.name, operation, a.Status, a.Body)
		}
	}
}

// answer sends the sample of an operation and returns the pets in the response.
func (p *peer) answer(operation string) []pet {
	a := must1(p.servers[operation].exchange(p.sample[operation]))
	if a.Status != 200 && a.Status != 201 {
		fail("%s, %s: the response is %d: %s", p.name, operation, a.Status, a.Body)
	}
	pets, err := p.pets(a.Body)
	if err != nil || len(pets) == 0 {
		fail("%s, %s: no pets (%w) in %s", p.name, operation, err, a.Body)
	}
	// Ids of fewer digits may come under load, but no fewer pets: a digit for each.
	p.size[operation] = float64(len(a.Body) - 3*len(pets))
	return pets
}

// processes are the servers of a system that run in processes of their own, each with the first operation that it has.
func (p *peer) processes() (servers []*server) {
	for _, operation := range operations {
		s := p.servers[operation]
		if s != nil && !slices.ContainsFunc(servers, func(other *server) bool { return other.process == s.process }) {
			servers = append(servers, s)
		}
	}
	return servers
}

// stopPeer ends a system, and looks whether every pet that was added is in its database.
func (b *bench) stopPeer(p *peer) {
	b.sleep(time.Second) // until what may be queued is stored
	for _, s := range p.processes() {
		s.end(syscall.SIGTERM)
		if s.db == "" {
			continue
		}
		db := open(s.db)
		var n float64
		must(db.QueryRowContext(b.ctx, "SELECT count(*) FROM pets").Scan(&n))
		must(db.Close())
		if n < float64(b.animals[0])+p.added[s] {
			fail("%s has %.0f pets, although %d and %.0f were added", p.name, n, b.animals[0], p.added[s])
		}
	}
}

// tellPeers makes the tables of what all runs have measured.
func (b *bench) tellPeers(r *results) {
	systems, x := r.systems(), r.figures[0].x
	t := newTable(fmt.Sprintf("What people would pick instead, %s pets: requests per second; CPU µs for each", count(int(x))),
		slices.Concat([]string{"requests per second; CPU µs"}, operations, []string{"MiB"})...)
	for _, system := range systems {
		cells, memory := []any{system}, 0.0
		for _, operation := range operations {
			cell := "–"
			if v, ok := r.median(system, operation, x, "perSecond"); ok {
				used, _ := r.median(system, operation, x, "cpu")
				resident, _ := r.median(system, operation, x, "rss")
				cell, memory = number(v)+"; "+number(used), max(memory, resident)
			}
			cells = append(cells, cell)
		}
		t.row(append(cells, number(memory))...)
	}
	b.tell("peers", t, "MiB is the resident memory after the load, at most. A response that is an error would have ended the run; "+
		"at its end, all pets that were added were in the database. "+r.footer()+".")
	t = newTable("How many times as many requests Pet Store serves", slices.Concat([]string{""}, operations)...)
	for _, system := range systems[1:] {
		cells := []any{system}
		for _, operation := range operations {
			cell := "–"
			if v, ok := r.median(system, operation, x, "perSecond"); ok {
				ours := operation
				if operation == opUnsynced { // the service always syncs
					ours = opSynced
				}
				own, _ := r.median(ourName, ours, x, "perSecond")
				cell = number(own / v)
			}
			cells = append(cells, cell)
		}
		t.row(cells...)
	}
	b.tell("peers-ratios", t, "In both of the last columns, Pet Store syncs.")
	var setups []string
	for _, system := range systems {
		for _, line := range r.about {
			if setup, ok := strings.CutPrefix(line, system+": "); ok {
				setups = append(setups, wrap("**"+system+"**: "+setup, "- ", "  "))
			}
		}
	}
	list := strings.Join(setups, "\n")
	fmt.Printf("\n%s\n", list)
	b.insert("peers-setups", list)
}

// systems are the names of what was compared: the service, the ceiling, and the others from the fastest on.
func (r *results) systems() (names []string) {
	for _, f := range r.figures {
		if f.series != ourName && f.series != ceilingName && !slices.Contains(names, f.series) {
			names = append(names, f.series)
		}
	}
	at := func(name string) float64 { v, _ := r.median(name, opList, r.figures[0].x, "perSecond"); return v }
	slices.SortFunc(names, func(a, b string) int { return int(at(b) - at(a)) })
	return append([]string{ourName, ceilingName}, names...)
}

func isAdd(operation string) bool { return operation == opSynced || operation == opUnsynced }

// added is the pet that every add makes, without its id.
var added = pet{Name: "Rex", CategoryID: 7, Status: "available"}

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

// everywhere serves some operations from one server.
func everywhere(s *server, operations ...string) map[string]*server {
	servers := map[string]*server{}
	for _, operation := range operations {
		servers[operation] = s
	}
	return servers
}

// theSame is what wrk sends to the service, and to those that have the same paths.
func theSame(s *server) (lua, sample map[string]string) {
	filtered, hundred := listHot+"?limit=20&status=sold", listHot+"?limit=100"
	lua = map[string]string{
		opList: hot(listHot), opFiltered: hot(filtered), opHundred: hot(hundred),
		opGet: somewhere(listHot+"/", 1, fetched), opSynced: each(create), opUnsynced: each(create),
	}
	sample = map[string]string{}
	for operation, path := range map[string]string{opList: listHot, opFiltered: filtered, opHundred: hundred, opGet: listHot + "/5"} {
		sample[operation] = s.request("GET", path)
	}
	sample[opSynced] = s.request("POST", listHot)
	sample[opUnsynced] = sample[opSynced]
	return lua, sample
}
