package pets

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
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

// Draw has porcupine draw a history as a page for a browser, with the longest orders of its
// operations that it finds in a second.
func Draw(operations []porcupine.Operation, page string) error {
	whole := withIDs(operations)
	setOrder(whole)
	_, info := porcupine.CheckOperationsVerbose(model, whole, time.Second)
	drawn := model
	drawn.DescribeOperation = func(input, output any) string {
		return fmt.Sprintf("%s -> %s", describeInput(input), describeOutput(output))
	}
	return porcupine.VisualizePath(drawn, info, page)
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
