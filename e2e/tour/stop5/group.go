package main

import (
	"runtime"
	"sync"
)

// group lets pets that come at the same time share a sync.
type group struct {
	disk    *disk
	mu      sync.Mutex // guards next, and what callers add to it
	next    *batch     // takes pets in until its turn comes
	syncing sync.Mutex // held by the leader of the batch whose turn it is
}

// batch is pets that share a sync.
type batch struct {
	pets   []string
	onDisk chan bool // closed when they are
}

// store returns when the pet is on disk.
func (g *group) store(pet string) {
	g.mu.Lock()
	if g.next == nil {
		g.next = &batch{onDisk: make(chan bool)}
	}
	b := g.next
	b.pets = append(b.pets, pet)
	leads := len(b.pets) == 1
	g.mu.Unlock()
	if leads {
		g.lead(b)
	}
	<-b.onDisk
}

// lead brings a batch to disk when the one before it is there.
func (g *group) lead(b *batch) {
	runtime.Gosched() // lets those join that are ready
	g.syncing.Lock()
	g.mu.Lock()
	g.next = nil // who comes from now on joins another batch
	g.mu.Unlock()
	for _, pet := range b.pets {
		g.disk.write(pet)
	}
	g.disk.sync() // one for all of them
	close(b.onDisk)
	g.syncing.Unlock()
}
