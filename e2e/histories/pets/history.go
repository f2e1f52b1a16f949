// Package pets records what clients ask of a store and what it responds, with times, and has
// porcupine prove that one store, doing one thing after the other, could have responded so.
package pets

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Services is how many services a history may have.
const Services = 3

// Visible is the time by which every service shows an edit.
const Visible = time.Second

// NewPet is what a client sends. No two have the same name.
type NewPet struct {
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

// Pet is what a client gets.
type Pet struct {
	ID int64 `json:"id"`
	NewPet
}

// Key is an Idempotency-Key, which is its caller's own.
type Key struct {
	Caller      int
	Idempotency string // "" for none
}

// What is asked. Each service is a number.
type (
	Create struct {
		NewPet
		Key
		before int64 // the next lower id in the history, which explained sets
	}
	List struct {
		Service int
		Status  string // "" for all
		Limit   int
		After   int64
	}
	Get struct {
		Service int
		ID      int64
	}
	// Edit is what one service makes of petstore pet set or delete. A command is an edit for each
	// service, because services remember pages, and look for edits a few times per second.
	Edit struct {
		Service int
		ID      int64
		Was     NewPet
		Becomes *NewPet // nil: it is deleted
	}
)

// Created is the response to a Create.
type Created struct {
	Pet
	Replayed bool // Idempotency-Replayed
	Reused   bool // 422 idempotency_key_reused
	Unknown  bool // there was no response, or one that says so
}

// isNew reports whether a create was the first under its key, or may have been.
func (c Created) isNew() bool { return !c.Replayed && !c.Reused }

// Page is the response to a List or a Get.
type Page struct {
	Pets []Pet
	More bool // there is a Link to the next page
}

// equals reports whether the model's page is one that a client got.
func (p Page) equals(got Page) bool {
	return slices.Equal(p.Pets, got.Pets) && p.More == got.More
}

// History is what happened, as its clients saw it. It is safe for concurrent use.
type History struct {
	mu         sync.Mutex // guards what follows, but for began
	operations []porcupine.Operation
	late       []int // indexes of what services may show later
	outages    []outage
	began      time.Time
}

// outage is a time in which services may find no leader.
type outage struct{ from, to int64 }

// New begins a history.
func New() *History { return &History{began: time.Now()} }

// Now is the time in the history.
func (h *History) Now() int64 { return int64(time.Since(h.began)) }

// Add records an operation that was called at a time and has returned now.
func (h *History) Add(client int, in any, called int64, out any) {
	h.addAt(client, in, called, out, h.Now(), false)
}

// AddLate records what a command has done, which services show a while after its end. One whose
// outcome is unknown may still be done at any time.
func (h *History) AddLate(client int, in any, called int64, out any, known bool) {
	returned := int64(math.MaxInt64)
	if known {
		returned = h.Now() + int64(Visible)
	}
	h.addAt(client, in, called, out, returned, true)
}

// AddOutage records a time from then to now.
func (h *History) AddOutage(from int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outages = append(h.outages, outage{from, h.Now()})
}

func (h *History) addAt(client int, in any, called int64, out any, returned int64, late bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if late {
		h.late = append(h.late, len(h.operations))
	}
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: client,
		Input:    in,
		Call:     called,
		Output:   out,
		Return:   returned,
	})
}

// Operations are all of the history. What comes late in an outage comes as long after its end.
func (h *History) Operations() []porcupine.Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	operations := slices.Clone(h.operations)
	for _, i := range h.late {
		for _, x := range h.outages { // which follow one another
			last := &operations[i].Return
			ended := *last - int64(Visible)
			if *last > x.from && ended < x.to {
				*last = x.to + int64(Visible)
			}
		}
	}
	return operations
}

// explained is a history with what only the whole of it tells, so that porcupine has less to try.
// It is legal if, and only if, the history itself is. It reports whether that is possible.
func explained(operations []porcupine.Operation) (whole []porcupine.Operation, possible bool) {
	whole = withIDs(operations)
	return whole, setOrder(whole) && narrow(whole)
}

// withIDs tells what became of creates without a response. One gets the id under which anybody has
// seen its pet, and may be done until the end. If nobody has seen the pet, not even the lists of
// all pets at the end, or somebody else was told that it is new, then this create did nothing.
func withIDs(operations []porcupine.Operation) (whole []porcupine.Operation) {
	seen := map[string]int64{} // the ids of pets by their names
	told := map[string]bool{}  // whether somebody was told that it is new
	for _, o := range operations {
		for _, p := range shown(o) {
			seen[p.Name] = p.ID
		}
		out, isCreate := o.Output.(Created)
		if isCreate && !out.Unknown && out.isNew() {
			told[out.Name] = true
		}
	}
	for _, o := range operations {
		out, isCreate := o.Output.(Created)
		if !isCreate || !out.Unknown {
			whole = append(whole, o)
			continue
		}
		in := o.Input.(Create)
		if seen[in.Name] == 0 || told[in.Name] {
			continue
		}
		out.Pet = Pet{seen[in.Name], in.NewPet}
		o.Output = out
		o.Return = math.MaxInt64
		whole = append(whole, o)
	}
	return whole
}

// shown are the pets in a response.
func shown(o porcupine.Operation) []Pet {
	switch out := o.Output.(type) {
	case Page:
		return out.Pets
	case Created:
		if !out.Unknown && !out.Reused {
			return []Pet{out.Pet}
		}
	}
	return nil
}

// setOrder tells each create which id comes before its own. It reports whether each is one that a
// store may give.
func setOrder(whole []porcupine.Operation) (possible bool) {
	ids := []int64{0}
	for _, o := range whole {
		out, isCreate := o.Output.(Created)
		if !isCreate || !out.isNew() {
			continue
		}
		if out.ID < 1 {
			return false
		}
		ids = append(ids, out.ID)
	}
	slices.Sort(ids)
	for i, o := range whole {
		out, isCreate := o.Output.(Created)
		if isCreate && out.isNew() {
			in := o.Input.(Create)
			own, _ := slices.BinarySearch(ids, out.ID)
			in.before = ids[own-1]
			whole[i].Input = in
		}
	}
	return true
}

// reads reports whether an operation is a read, and of which service.
func reads(o porcupine.Operation) (service int, isRead bool) {
	switch in := o.Input.(type) {
	case List:
		return in.Service, true
	case Get:
		return in.Service, true
	}
	return 0, false
}
