package pets

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"
)

// Porcupine tries the operations that overlap in every order, and a create without a response, or
// an edit, overlaps with thousands. But pages tell when these were done: before a page that shows
// what they made, and after one that lacks it. Here the times of creates and edits are narrowed to
// what the pages leave. One store can have responded so if, and only if, it can at these times.

// change is a create or an edit.
type change struct {
	index        int // of the operation in the history
	id           int64
	service      int     // whose pages tell of it; anyService for a create
	was, becomes *NewPet // nil: no pet

	// What other changes of the same pet leave: an earlier one is surely done after the first of
	// these times, and a later one surely not before the second.
	earlierDone, laterBegins int64
}

const anyService = -1

// narrow changes the times of creates and edits. It reports whether each has a time left: else no
// store can have responded so.
func narrow(whole []porcupine.Operation) (possible bool) {
	var pages []porcupine.Operation
	for _, o := range whole {
		_, isRead := reads(o)
		if isRead {
			pages = append(pages, o)
		}
	}
	slices.SortFunc(pages, func(a, b porcupine.Operation) int {
		return cmp.Compare(a.Call,
			b.Call)
	})
	for _, c := range changesOf(whole) {
		o := &whole[c.index]
		o.Call, o.Return = c.times(*o, pages)
		if o.Call > o.Return {
			return false
		}
	}
	return true
}

// changesOf are the creates and the edits of a history, in their order.
func changesOf(whole []porcupine.Operation) (changes []change) {
	creators := map[int64]int{} // how many creates may have made a pet
	edits := map[int64][]int64{}
	for _, o := range whole {
		out, isCreate := o.Output.(Created)
		if isCreate && out.isNew() {
			creators[out.ID]++
		}
		in, isEdit := o.Input.(Edit)
		if isEdit {
			edits[in.ID] = append(edits[in.ID], o.Call)
		}
	}
	lastEdit := map[Edit]int{} // index of the last change of a pet at a service
	for i, o := range whole {
		c := change{index: i, service: anyService, laterBegins: math.MaxInt64}
		switch in := o.Input.(type) {
		case Create:
			out := o.Output.(Created)
			if !out.isNew() || creators[out.ID] > 1 {
				continue
			}
			c.id, c.becomes = out.ID, &in.NewPet
			if len(edits[c.id]) > 0 {
				c.laterBegins = slices.Min(edits[c.id])
			}
		case Edit:
			c.id, c.service, c.was, c.becomes = in.ID, in.Service, &in.Was, in.Becomes
			key := Edit{Service: in.Service, ID: in.ID}
			before, edited := lastEdit[key]
			if edited {
				c.earlierDone = whole[changes[before].index].Return
				changes[before].laterBegins = o.Call
			}
			lastEdit[key] = len(changes)
		default:
			continue
		}
		changes = append(changes, c)
	}
	return changes
}

// times are those at which a change may have been done, as the pages tell that were asked for
// meanwhile.
func (c change) times(o porcupine.Operation, pages []porcupine.Operation) (called, returned int64) {
	called, returned = o.Call, o.Return
	first := sort.Search(len(pages), func(i int) bool { return pages[i].Call >= called })
	for _, page := range pages[first:] {
		if page.Call >= returned {
			break
		}
		service, _ := reads(page)
		if c.service != anyService && c.service != service {
			continue
		}
		isBefore := c.lists(page, c.was) == isShown ||
			c.lists(page, c.becomes) == isLacking && page.Return < c.laterBegins
		isAfter := c.lists(page, c.becomes) == isShown ||
			c.lists(page, c.was) == isLacking && page.Call > c.earlierDone
		if isBefore {
			called = max(called, page.Call)
		}
		if isAfter {
			returned = min(returned, page.Return)
		}
	}
	return called, returned
}

// listing is what a page tells of a version of a pet.
type listing int

const (
	isUntold listing = iota // the page would not show it anyway
	isShown
	isLacking
)

func (c change) lists(page porcupine.Operation, version *NewPet) listing {
	if version == nil {
		return isUntold
	}
	out := page.Output.(Page)
	if slices.Contains(out.Pets, Pet{c.id, *version}) {
		return isShown
	}
	switch in := page.Input.(type) {
	case Get:
		if in.ID == c.id {
			return isLacking
		}
	case List:
		matches := in.Status == "" || in.Status == version.Status
		isFull := len(out.Pets) == in.Limit
		isBehind := isFull && c.id > out.Pets[len(out.Pets)-1].ID
		if matches && c.id > in.After && !isBehind {
			return isLacking
		}
	}
	return isUntold
}
