package histories

import (
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"
)

// store is the model of the service, without time, processes, and disks: every pet that was ever
// created, by ascending id.
type store []*record

// record is a pet, with the Idempotency-Key under which it was created.
type record struct {
	pet
	key      string
	versions []version // any of which may be shown
}

type version struct {
	number int     // of the edit that has made it, 0 for the create
	shows  *newPet // nil: it is deleted
}

var model = porcupine.Model{
	Init: func() any { return store(nil) },
	Step: func(state, input, output any) (bool, any) {
		s := state.(store)
		switch in := input.(type) {
		case create:
			return s.create(in, output.(created))
		case list:
			return s.lists(in, output.(page)), s
		case get:
			return s.gets(in, output.(page)), s
		case edit:
			return s.edit(in)
		default:
			return true, s.settle(input.(settle))
		}
	},
	// Porcupine compares the stores that the same operations lead to in two orders. Creates can only
	// be done in the order of their ids, and edits at their moments, so the stores are the same.
	Equal: func(a, b any) bool { return len(a.(store)) == len(b.(store)) },
}

// create stores a pet, unless there is one under its Idempotency-Key.
func (s store) create(in create, out created) (bool, store) {
	first := slices.IndexFunc(s, func(r *record) bool { return in.key != "" && r.key == in.key })
	if first >= 0 {
		same := s[first].newPet == in.newPet
		repeated := same && out.replayed && out.pet == s[first].pet
		return out.unknown || repeated || !same && out.reused, s
	}
	last := int64(0)
	if len(s) > 0 {
		last = s[len(s)-1].ID
	}
	isNext := last == in.before && last < out.ID
	made := &record{out.pet, in.key, []version{{0, &out.newPet}}}
	return isNext && out.isNew() && out.newPet == in.newPet, append(slices.Clip(s), made)
}

// lists reports whether a page may be the answer.
func (s store) lists(in list, out page) bool {
	shown, behind, maybeBehind := 0, false, false
	for _, r := range s[s.place(in.after+1):] {
		switch {
		case shown == int(in.limit): // the page is full
			behind = !r.mayLack(in.status)
			maybeBehind = maybeBehind || r.mayMatch(in.status)
		case shown < len(out.pets) && r.mayShow(out.pets[shown], in.status):
			shown++
		case !r.mayLack(in.status):
			return false
		}
		if behind {
			break
		}
	}
	if out.more {
		return shown == len(out.pets) && maybeBehind
	}
	return shown == len(out.pets) && !behind
}

func (s store) gets(in get, out page) bool {
	r := s.find(in.id)
	if len(out.pets) == 0 {
		return r == nil || r.mayLack("")
	}
	return r != nil && r.mayShow(out.pets[0], "")
}

// place is the index of the first pet whose id is at least this one.
func (s store) place(id int64) int {
	return sort.Search(len(s), func(i int) bool { return s[i].ID >= id })
}

// find returns nil if no pet ever had the id.
func (s store) find(id int64) *record {
	if i := s.place(id); i < len(s) && s[i].ID == id {
		return s[i]
	}
	return nil
}

// matches reports whether a list of the pets of a status has it; "" stands for all.
func (v version) matches(status string) bool {
	return v.shows != nil && (status == "" || v.shows.Status == status)
}

// What a record may do is what one of its versions does.
func (r *record) mayMatch(status string) bool {
	return slices.ContainsFunc(r.versions, func(v version) bool { return v.matches(status) })
}

func (r *record) mayLack(status string) bool {
	return slices.ContainsFunc(r.versions, func(v version) bool { return !v.matches(status) })
}

func (r *record) mayShow(p pet, status string) bool {
	return p.ID == r.ID && slices.ContainsFunc(r.versions, func(v version) bool {
		return v.matches(status) && *v.shows == p.newPet
	})
}

func (s store) edit(in edit) (bool, store) {
	r := s.find(in.id)
	if r == nil || r.versions[len(r.versions)-1].shows == nil {
		return false, s
	}
	return true, s.with(r, append(slices.Clip(r.versions), version{in.number, in.becomes}))
}

// settle forgets what a pet was before an edit.
func (s store) settle(in settle) store {
	r := s.find(in.id)
	settled := func(v version) bool { return v.number >= in.number }
	return s.with(r, r.versions[slices.IndexFunc(r.versions, settled):])
}

// with replaces the versions of a pet.
func (s store) with(r *record, versions []version) store {
	changed := slices.Clone(s)
	changed[s.place(r.ID)] = &record{r.pet, r.key, versions}
	return changed
}
