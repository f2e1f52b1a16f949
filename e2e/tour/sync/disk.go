package main

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// disk is a simulated one. A write ends in the memory of the system. A sync takes a millisecond,
// and brings to the platter what was written before it began.
type disk struct {
	syncing         sync.Mutex // one sync at a time
	mu              sync.Mutex // guards what follows
	memory, platter map[string]bool
	syncs           int
}

func (d *disk) write(pet string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.memory == nil {
		d.memory, d.platter = map[string]bool{}, map[string]bool{}
	}
	d.memory[pet] = true
}

func (d *disk) sync() {
	d.syncing.Lock()
	defer d.syncing.Unlock()
	d.mu.Lock()
	written := maps.Clone(d.memory)
	d.mu.Unlock()
	time.Sleep(time.Millisecond) // a simulated disk is allowed to sleep
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.Copy(d.platter, written)
	d.syncs++
}

// onDisk reports whether a pet outlasts a power cut.
func (d *disk) onDisk(pet string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.platter[pet]
}

// afterPowerCut is how many pets are left then: the memory of the system is gone.
func (d *disk) afterPowerCut() int { return len(d.platter) }

// saveMany lets 64 clients save 1,000 pets, and returns how many were confirmed.
func saveMany(save func(pet string)) int {
	var next, confirmed atomic.Int64
	var clients sync.WaitGroup
	for range 64 {
		clients.Go(func() {
			for id := next.Add(1); id <= 1000; id = next.Add(1) {
				save(fmt.Sprint("pet ", id))
				confirmed.Add(1)
			}
		})
	}
	clients.Wait()
	return int(confirmed.Load())
}
