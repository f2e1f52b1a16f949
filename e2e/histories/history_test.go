// Package histories records what clients ask of the service and what it answers, with times, and
// has porcupine prove that one pet store, doing one thing after the other, could have answered so.
// The limits have a recording and a model of their own, in the files called limits_.
//
//	cd e2e && go test -v ./histories             a minute of each
//	cd e2e && SOAK=60 go test -timeout 5h ./histories   an hour of each
package histories

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// newPet is what a client sends, and pet what it gets.
type newPet struct {
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

type pet struct {
	ID int64 `json:"id"`
	newPet
}

// What is asked. A change by petstore pet set or delete is two operations: an edit at the moment at
// which the command begins, and a settle a second after its end. In between, a response may show
// the pet as it was or as it becomes, since services look for edits a few times a second, and what
// they have not cached they read from the database. That is all in which the model is looser than
// a store that does one thing after the other.
type (
	create struct {
		newPet
		key    string // the Idempotency-Key, or ""
		before int64  // the next lower id in the history, set by explained: ids ascend
	}
	list struct {
		status       string // "" for all
		limit, after int64
	}
	get  struct{ id int64 }
	edit struct {
		number  int // of the edit, from 1
		id      int64
		becomes *newPet // nil: it is deleted
	}
	settle struct {
		number int // of the edit
		id     int64
	}
)

// What is answered. The answer to a get is a page of one pet or, if it is 404, of none.
type (
	created struct {
		pet
		replayed bool // Idempotency-Replayed
		reused   bool // 422 idempotency_key_reused
		unknown  bool // there was no answer, or one that says so
	}
	page struct {
		pets []pet
		more bool // there is a Link to the next page
	}
)

// isNew reports whether a create was the first under its key, or may have been.
func (c created) isNew() bool { return !c.replayed && !c.reused }

// history is what happened, as its clients saw it. It is safe for concurrent use.
type history struct {
	mu         sync.Mutex // guards operations
	operations []porcupine.Operation
	began      time.Time
}

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// add records an operation that was called at a moment and is answered now.
func (h *history) add(client int, in any, called int64, out any) {
	h.addAt(client, in, called, out, h.now())
}

func (h *history) addAt(client int, in any, called int64, out any, returned int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: client, Input: in, Call: called, Output: out, Return: returned,
	})
}

// explained is a history with what only the whole of it tells. A create without an answer gets the
// id under which anybody has seen its pet, and may be done until the end. If nobody has seen the
// pet, not even the lists of all pets at the end, or somebody else was told that it is new, then
// this create has done nothing.
func explained(operations []porcupine.Operation) []porcupine.Operation {
	seen := map[string]int64{} // the ids of pets by their names, of which there are no two alike
	told := map[string]bool{}  // whether somebody was told that it is new
	for _, o := range operations {
		for _, p := range shown(o) {
			seen[p.Name] = p.ID
		}
		if out, ok := o.Output.(created); ok && out.isNew() && !out.unknown {
			told[out.Name] = true
		}
	}
	var whole []porcupine.Operation
	ids := []int64{0}
	for _, o := range operations {
		out, ok := o.Output.(created)
		if ok && out.unknown {
			in := o.Input.(create)
			if seen[in.Name] == 0 || told[in.Name] {
				continue
			}
			out.pet, o.Return = pet{seen[in.Name], in.newPet}, math.MaxInt64
			o.Output = out
		}
		if ok && out.isNew() {
			ids = append(ids, out.ID)
		}
		whole = append(whole, o)
	}
	slices.Sort(ids)
	for i, o := range whole {
		if out, ok := o.Output.(created); ok && out.isNew() {
			in := o.Input.(create)
			own, _ := slices.BinarySearch(ids, out.ID)
			in.before = ids[own-1]
			whole[i].Input = in
		}
	}
	return whole
}

// shown are the pets in a response.
func shown(o porcupine.Operation) []pet {
	switch out := o.Output.(type) {
	case page:
		return out.pets
	case created:
		if !out.unknown && !out.reused {
			return []pet{out.pet}
		}
	}
	return nil
}

// patience is how long porcupine may think about one history.
const patience = 2 * time.Minute

// legal reports whether one store could have answered so.
func legal(t *testing.T, operations []porcupine.Operation) bool {
	t.Helper()
	result := porcupine.CheckOperationsTimeout(model, explained(operations), patience)
	if result == porcupine.Unknown {
		t.Fatalf("%d operations cannot be checked in %v", len(operations), patience)
	}
	return result == porcupine.Ok
}

// shortest leaves operations out of an illegal history, as long as it stays one.
func shortest(t *testing.T, operations []porcupine.Operation) []porcupine.Operation {
	t.Helper()
	slices.SortStableFunc(operations, func(a, b porcupine.Operation) int {
		return cmp.Compare(a.Return, b.Return)
	})
	// The operation after which it is illegal is the last one that is needed.
	size := sort.Search(len(operations), func(n int) bool { return !legal(t, until(operations, n)) })
	operations = until(operations, size)
	var edits []porcupine.Operation
	for _, o := range operations {
		if isEdit(o) {
			edits = append(edits, o)
		}
	}
	for size /= 2; size > 0; size /= 2 {
		for end := len(operations); end > 0; end -= size {
			left := slices.Concat(operations[:max(0, end-size)], operations[min(end, len(operations)):])
			left = withEdits(left, edits)
			if selfContained(left) && !legal(t, left) {
				operations = left
			}
		}
	}
	return operations
}

// withEdits is a history with those edits whose pets it creates, and no others.
func withEdits(operations, edits []porcupine.Operation) []porcupine.Operation {
	ids := map[int64]bool{}
	for _, o := range explained(operations) {
		if out, ok := o.Output.(created); ok && out.isNew() {
			ids[out.ID] = true
		}
	}
	left := slices.DeleteFunc(slices.Clone(operations), isEdit)
	for _, o := range edits {
		if in, ok := o.Input.(edit); ok && ids[in.id] {
			left = append(left, o)
		}
		if in, ok := o.Input.(settle); ok && ids[in.id] {
			left = append(left, o)
		}
	}
	return left
}

func isEdit(o porcupine.Operation) bool {
	switch o.Input.(type) {
	case edit, settle:
		return true
	}
	return false
}

// until is a history as it was known when the first n of its operations had returned: creates that
// were under way then may or may not have been done.
func until(operations []porcupine.Operation, n int) []porcupine.Operation {
	known := slices.Clone(operations[:n])
	for _, o := range operations[n:] {
		if _, ok := o.Input.(create); ok && n > 0 && o.Call < operations[n-1].Return {
			o.Output = created{unknown: true}
			known = append(known, o)
		}
	}
	return known
}

// selfContained reports whether the history has the create and the edits of everything that its
// responses show, so that what is wrong with it is wrong with the whole too.
func selfContained(operations []porcupine.Operation) bool {
	versions, ids, keys := map[newPet]bool{}, map[int64]bool{}, map[string]bool{}
	highest := int64(0)
	for _, o := range explained(operations) {
		switch in := o.Input.(type) {
		case create:
			if out := o.Output.(created); out.isNew() {
				versions[in.newPet], ids[out.ID], keys[in.key] = true, true, true
				highest = max(highest, out.ID)
			}
		case edit:
			if in.becomes != nil {
				versions[*in.becomes] = true
			}
		}
	}
	for _, o := range operations {
		for _, p := range shown(o) {
			if !versions[p.newPet] || !ids[p.ID] {
				return false
			}
		}
		if out, ok := o.Output.(page); ok && out.more && highest <= out.pets[len(out.pets)-1].ID {
			return false
		}
		if out, ok := o.Output.(created); ok && out.reused && !keys[o.Input.(create).key] {
			return false
		}
	}
	return true
}

// describe tells a history in lines, by the times of the calls.
func describe(operations []porcupine.Operation) string {
	slices.SortStableFunc(operations, func(a, b porcupine.Operation) int {
		return cmp.Compare(a.Call, b.Call)
	})
	var lines strings.Builder
	for _, o := range operations {
		in, out := describeValue(o.Input), describeValue(o.Output)
		fmt.Fprintf(&lines, "%9.3f to %9.3f ms, client %2d: %s -> %s\n",
			float64(o.Call)/1e6, float64(o.Return)/1e6, o.ClientId, in, out)
	}
	return lines.String()
}

func describeValue(value any) string {
	switch v := value.(type) {
	case edit:
		if v.becomes == nil {
			return fmt.Sprintf("petstore pet delete %d", v.id)
		}
		return fmt.Sprintf("petstore pet set %d, which becomes %+v", v.id, *v.becomes)
	case settle:
		return fmt.Sprintf("a second after the edit of pet %d", v.id)
	case page:
		text, _ := json.Marshal(v.pets)
		return fmt.Sprintf("%s, more: %v", text, v.more)
	}
	return fmt.Sprintf("%T%+[1]v", value)
}
