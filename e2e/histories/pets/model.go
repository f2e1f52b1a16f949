package pets

import (
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"
)

// store is the model: the specification with the decisions, without time, processes and disks. It
// holds every pet that was ever created, by ascending id, and does one thing after the other.
type store []*record

// record is a pet, with the key of its create.
type record struct {
	id      int64
	created NewPet
	key     Key
	shown   [Services]*NewPet // by each service; nil once it shows the pet no more
}

var model = porcupine.Model{
	Init: func() any { return store(nil) },
	Step: func(state, input, output any) (legal bool, next any) {
		s := state.(store)
		switch in := input.(type) {
		case Create:
			return s.create(in, output.(Created))
		case List:
			return s.list(in).equals(output.(Page)), s
		case Get:
			return s.get(in).equals(output.(Page)), s
		default:
			return s.edit(input.(Edit))
		}
	},
	// Porcupine compares the stores that the same operations lead to in two orders. Creates have an
	// order, which is that of their ids, and so have the edits of a pet at a service. So the stores
	// are the same.
	Equal: func(a, b any) bool { return len(a.(store)) == len(b.(store)) },
}

// create stores a pet under the next id, unless there is one under its Idempotency-Key.
func (s store) create(in Create, out Created) (legal bool, next store) {
	if first := s.under(in.Key); first != nil {
		if out.Unknown {
			return true, s
		}
		if first.created != in.NewPet {
			return out.Reused, s
		}
		return out.Replayed && out.Pet == Pet{first.id, first.created}, s
	}
	last := int64(0)
	if len(s) > 0 {
		last = s[len(s)-1].id
	}
	// Ids may be left out, but none may come later than a higher one.
	isNext := last == in.before && last < out.ID
	if !out.isNew() || !isNext || out.NewPet != in.NewPet {
		return false, s
	}
	made := &record{id: out.ID, created: in.NewPet, key: in.Key}
	for service := range Services {
		made.shown[service] = &in.NewPet
	}
	return true, append(slices.Clip(s), made)
}

// under finds the pet that was created under an Idempotency-Key, or returns nil.
func (s store) under(key Key) *record {
	if key.Idempotency == "" {
		return nil
	}
	for _, r := range s {
		if r.key == key {
			return r
		}
	}
	return nil
}

// list is the page that a service responds with.
func (s store) list(in List) (out Page) {
	for _, r := range s[s.place(in.After+1):] {
		shown := r.shown[in.Service]
		if shown == nil || in.Status != "" && in.Status != shown.Status {
			continue
		}
		if len(out.Pets) == in.Limit {
			out.More = true
			break
		}
		out.Pets = append(out.Pets, Pet{r.id, *shown})
	}
	return out
}

// get is a page of one pet or, if the response is 404, of none.
func (s store) get(in Get) (out Page) {
	r := s.find(in.ID)
	if r == nil {
		return Page{}
	}
	shown := r.shown[in.Service]
	if shown == nil {
		return Page{}
	}
	return Page{Pets: []Pet{{in.ID, *shown}}}
}

// find returns nil if no pet ever had the id.
func (s store) find(id int64) *record {
	place := s.place(id)
	if place == len(s) || s[place].id != id {
		return nil
	}
	return s[place]
}

// place is the index of the first pet whose id is at least this one.
func (s store) place(id int64) int {
	return sort.Search(len(s), func(i int) bool { return s[i].id >= id })
}

// edit has one service show a pet as a command has changed it, or no more.
func (s store) edit(in Edit) (legal bool, next store) {
	r := s.find(in.ID)
	if r == nil {
		return false, s
	}
	shown := r.shown[in.Service]
	if shown == nil || *shown != in.Was { // an earlier edit comes first
		return false, s
	}
	edited := *r
	edited.shown[in.Service] = in.Becomes
	next = slices.Clone(s)
	next[s.place(in.ID)] = &edited
	return true, next
}
