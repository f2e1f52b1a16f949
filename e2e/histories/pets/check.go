package pets

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// patience is how long porcupine may think about a history before that is split.
const patience = 10 * time.Second

// Verdict is what was found out of a history.
type Verdict struct {
	Legal bool // one store could have responded so
	Parts int  // that were checked one by one; 1 if it was not split
}

// Check has porcupine look at a history: at what each service responded, and then at the whole. It
// is an error if there is no verdict.
//
// Porcupine finds the order of a legal history at once, but for an illegal one it tries all orders,
// and each edit that may be early or late doubles them. A service's part has a third of the edits.
//
// A part lacks reads, which change nothing, and edits that none of its services shows. So a part of
// a legal history is legal, too. If porcupine finds no order of the whole in time, the parts stand
// for it; creates and edits have the times there that the pages of all services leave.
func Check(operations []porcupine.Operation) (Verdict, error) {
	whole, possible := explained(operations)
	if !possible {
		return Verdict{false, 1}, nil
	}
	parts := 0
	for service := range Services {
		var writes, pages []porcupine.Operation
		for _, o := range whole {
			from, isRead := reads(o)
			in, isEdit := o.Input.(Edit)
			switch {
			case isRead && from == service:
				pages = append(pages, o)
			case !isRead && (!isEdit || in.Service == service):
				writes = append(writes, o)
			}
		}
		verdict, err := checkPart(writes, pages)
		if err != nil || !verdict.Legal {
			return verdict, err
		}
		parts += verdict.Parts
	}
	switch porcupine.CheckOperationsTimeout(model, whole, patience) {
	case porcupine.Ok:
		return Verdict{true, 1}, nil
	case porcupine.Illegal:
		return Verdict{false, 1}, nil
	}
	return Verdict{true, parts}, nil
}

// checkPart looks at creates and edits with some pages. If that takes too long, it looks at the
// pages of half of the clients, or at the first or last of one client.
func checkPart(writes, pages []porcupine.Operation) (Verdict, error) {
	result := porcupine.CheckOperationsTimeout(model, slices.Concat(writes, pages), patience)
	if result != porcupine.Unknown {
		return Verdict{result == porcupine.Ok, 1}, nil
	}
	if len(pages) < 2 {
		return Verdict{}, fmt.Errorf("%d creates and edits cannot be checked in %v",
			len(writes), patience)
	}
	slices.SortStableFunc(pages, func(a, b porcupine.Operation) int {
		return cmp.Or(cmp.Compare(a.ClientId, b.ClientId), cmp.Compare(a.Call, b.Call))
	})
	half := len(pages) / 2
	first, err := checkPart(writes, pages[:half])
	if err != nil || !first.Legal {
		return first, err
	}
	second, err := checkPart(writes, pages[half:])
	return Verdict{second.Legal, first.Parts + second.Parts}, err
}

// Shortest leaves operations out of an illegal history, as long as it stays one. What is wrong with
// the rest is wrong with the whole, too.
func Shortest(operations []porcupine.Operation) []porcupine.Operation {
	slices.SortStableFunc(operations, func(a, b porcupine.Operation) int {
		return cmp.Compare(a.Return, b.Return)
	})
	// The operation after which it is illegal is the last one that is needed.
	size := sort.Search(len(operations), func(n int) bool { return isProof(until(operations, n)) })
	operations = until(operations, size)
	// A page does not tell which pet made it say that there are more. Unless it is this that is
	// wrong, pages need not say so, and then creates can be left out.
	unsure := withoutMore(operations)
	creates := isProof(unsure)
	if creates {
		operations = unsure
	}
	edits := slices.DeleteFunc(slices.Clone(operations), func(o porcupine.Operation) bool {
		return !isEdit(o)
	})
	for size := len(operations) / 2; size > 0; {
		shorter := withoutSome(operations, edits, size, creates)
		if len(shorter) == len(operations) {
			size /= 2
		}
		operations = shorter
	}
	return operations
}

// withoutSome leaves out as many runs of operations, of a size, as it can. Creates stay unless they
// may go too.
func withoutSome(operations, edits []porcupine.Operation, size int,
	creates bool) []porcupine.Operation {
	for end := len(operations); end > 0; end = min(end-size, len(operations)) {
		run := operations[max(0, end-size):end]
		left := withEdits(without(operations, run, creates), edits)
		if len(left) < len(operations) && isProof(left) {
			operations = left
		}
	}
	return operations
}

// without leaves out a run of operations, but creates only if they may go too. With a create go all
// others under its Idempotency-Key: else a repeat could be taken for the first of them.
func without(operations, run []porcupine.Operation, creates bool) (left []porcupine.Operation) {
	keys := map[Key]bool{}
	gone := map[int64]bool{} // by their calls
	for _, o := range run {
		in, isCreate := o.Input.(Create)
		if isCreate && in.Idempotency != "" && o.Output.(Created).isNew() {
			keys[in.Key] = true
		}
		gone[o.Call] = true
	}
	for _, o := range operations {
		in, isCreate := o.Input.(Create)
		goes := gone[o.Call]
		if isCreate {
			goes = creates && (goes || keys[in.Key])
		}
		if !goes {
			left = append(left, o)
		}
	}
	return left
}

// isProof reports whether a history is illegal, and shows that a longer one is.
func isProof(operations []porcupine.Operation) bool {
	if !selfContained(operations) {
		return false
	}
	verdict, err := Check(operations)
	return err == nil && !verdict.Legal
}

// withoutMore is a history whose pages leave open whether there are more.
func withoutMore(operations []porcupine.Operation) []porcupine.Operation {
	left := slices.Clone(operations)
	for i, o := range left {
		page, isPage := o.Output.(Page)
		if isPage && page.More {
			page.unsure = true
			left[i].Output = page
		}
	}
	return left
}

func isEdit(o porcupine.Operation) bool {
	_, ok := o.Input.(Edit)
	return ok
}

// withEdits puts edits back: those of pets that the history creates, at services that it reads
// from.
func withEdits(operations, edits []porcupine.Operation) []porcupine.Operation {
	left := slices.DeleteFunc(slices.Clone(operations), isEdit)
	ids, services := map[int64]bool{}, map[int]bool{}
	for _, o := range withIDs(left) {
		out, isCreate := o.Output.(Created)
		if isCreate && out.isNew() {
			ids[out.ID] = true
		}
		service, isRead := reads(o)
		if isRead {
			services[service] = true
		}
	}
	for _, o := range edits {
		in := o.Input.(Edit)
		if ids[in.ID] && services[in.Service] {
			left = append(left, o)
		}
	}
	return left
}

// until is a history as it was known when the first n of its operations had returned: what was
// under way then may or may not have been done.
func until(operations []porcupine.Operation, n int) []porcupine.Operation {
	known := slices.Clone(operations[:n])
	for _, o := range operations[n:] {
		_, isRead := reads(o)
		if isRead || n == 0 || o.Call >= operations[n-1].Return {
			continue
		}
		if !isEdit(o) {
			o.Output = Created{Unknown: true}
		}
		known = append(known, o)
	}
	return known
}

// selfContained reports whether the history has the create and the edits of everything that its
// responses show, so that what is wrong with it is wrong with the whole too.
func selfContained(operations []porcupine.Operation) bool {
	names, ids, keys := map[string]bool{}, map[int64]bool{}, map[Key]bool{}
	for _, o := range withIDs(operations) {
		switch in := o.Input.(type) {
		case Create:
			out := o.Output.(Created)
			if out.isNew() {
				names[in.Name] = true
				ids[out.ID] = true
				keys[in.Key] = true
			}
		case Edit:
			if in.Becomes != nil {
				names[in.Becomes.Name] = true
			}
		}
	}
	for _, o := range operations {
		for _, p := range shown(o) {
			if !names[p.Name] || !ids[p.ID] {
				return false
			}
		}
		out, isCreate := o.Output.(Created)
		if isCreate && out.Reused && !keys[o.Input.(Create).Key] {
			return false
		}
	}
	return true
}

// Describe tells a history in lines, by the times of the calls.
func Describe(operations []porcupine.Operation) string {
	slices.SortStableFunc(operations, func(a, b porcupine.Operation) int {
		return cmp.Compare(a.Call, b.Call)
	})
	var lines strings.Builder
	for _, o := range operations {
		returned := "the end"
		if o.Return != math.MaxInt64 {
			returned = fmt.Sprintf("%.3f ms", float64(o.Return)/1e6)
		}
		fmt.Fprintf(&lines, "%9.3f to %s, client %2d: %s -> %s\n", float64(o.Call)/1e6,
			returned, o.ClientId, describeInput(o.Input), describeOutput(o.Output))
	}
	return lines.String()
}

func describeInput(input any) string {
	switch in := input.(type) {
	case Create:
		pet, _ := json.Marshal(in.NewPet)
		return fmt.Sprintf("create %s, caller %d, Idempotency-Key %q", pet, in.Caller,
			in.Idempotency)
	case Edit:
		if in.Becomes == nil {
			return fmt.Sprintf("service %d notices the delete of pet %d", in.Service, in.ID)
		}
		becomes, _ := json.Marshal(in.Becomes)
		return fmt.Sprintf("service %d notices that pet %d is %s", in.Service, in.ID, becomes)
	}
	return fmt.Sprintf("%T%+[1]v", input)
}

func describeOutput(output any) string {
	switch out := output.(type) {
	case Page:
		text, _ := json.Marshal(out.Pets)
		if out.unsure {
			return string(text)
		}
		return fmt.Sprintf("%s, more: %v", text, out.More)
	case Created:
		text, _ := json.Marshal(out.Pet)
		switch {
		case out.Unknown:
			return "unknown"
		case out.Reused:
			return "422"
		case out.Replayed:
			return fmt.Sprintf("%s, replayed", text)
		}
		return string(text)
	}
	return "done"
}
