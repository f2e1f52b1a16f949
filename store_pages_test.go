package main

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestIDsStartAtOneAndAreNeverReused(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		wantNextID(t, s, 1)
		wantNextID(t, s, 2)
		editAsCommand(t, db, "DELETE FROM pets WHERE id = 2")
		wantNextID(t, s, 3)
		editAsCommand(t, db, "DELETE FROM pets")
		must(t, s.Close())
		s = openDatabase(t, db)
		wantNextID(t, s, 4)
	})
}

// TestPages compares every page of a small list with one made by hand.
func TestPages(t *testing.T) {
	all := []PetStatus{Available, Sold, Pending, Available, Available, Sold, Available, Sold}
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		for _, status := range all {
			mustCreate(t, s, NewPet{Name: "Rex", CategoryID: 1, Status: status})
		}
		for _, status := range []PetStatus{"", Available, Pending, Sold} {
			var matching []int64
			for i, is := range all {
				if status == "" || is == status {
					matching = append(matching, int64(i+1))
				}
			}
			for after := range int64(len(all)) + 2 {
				seen := func(id int64) bool { return id <= after }
				behind := slices.DeleteFunc(slices.Clone(matching), seen)
				for limit := 1; limit <= len(all)+1; limit++ {
					want := behind[:min(limit, len(behind))]
					got, p := pageIDs(t, s, status, limit, after)
					if !slices.Equal(got, want) || p.more != (len(behind) > limit) ||
						len(want) > 0 && p.last != want[len(want)-1] {
						t.Errorf("%d %s after %d are %v, last %d, more %v; want %v of %v",
							limit, status, after, got, p.last, p.more, want, behind)
					}
				}
			}
		}
		if _, p := pageIDs(t, s, "", maxLimit, math.MaxInt64); p.more || string(p.body) != "[]" {
			t.Errorf("after the largest id there is %s", p.body)
		}
	})
}

// TestPagesAreReadByIndex: a page costs the same at any depth.
func TestPagesAreReadByIndex(t *testing.T) {
	s := newStore(t)
	for status, index := range map[PetStatus]string{
		"":   "SEARCH pets USING INTEGER PRIMARY KEY (rowid>?)",
		Sold: "SEARCH pets USING INDEX pets_status (status=? AND rowid>?)",
	} {
		query := listOf(status.stored())
		query.args = append(query.args, int64(5), int64(20))
		plan := planOf(t, fileEngine(s).path, query)
		isSorted := strings.Contains(plan, "TEMP B-TREE")
		if !strings.Contains(plan, index) || isSorted || strings.Contains(plan, "SCAN pets") {
			t.Errorf("with status %q the plan is\n%s", status, plan)
		}
	}
}

func TestAnETagStandsForTheContentAndTheNextPage(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		known := map[string]string{}
		wantNew := func(what string, d document) {
			tag := d.etag[0]
			if known[tag] != "" || len(tag) < 10 || tag[0] != '"' || tag[len(tag)-1] != '"' {
				t.Errorf("the ETag of %s is %s, which %q has", what, tag, known[tag])
			}
			known[tag] = what
		}
		read := func(limit int) document {
			_, p := pageIDs(t, s, "", limit, 0)
			return p.document
		}
		wantNew("the empty list", read(1))
		mustCreate(t, s, rex)
		alone := read(1)
		wantNew("one pet", alone)
		mustCreate(t, s, rex)
		followed := read(1)
		wantNew("one pet with more behind it", followed)
		if !bytes.Equal(followed.body, alone.body) {
			t.Errorf("the first page is %s and was %s", followed.body, alone.body)
		}
		pet, err := s.pet(1)
		must(t, err)
		wantNew("the pet itself", pet.document)
		editAsCommand(t, db, "UPDATE pets SET name = 'Tom'")
		must(t, s.refresh(t.Context()))
		wantNew("one pet with another name", read(1))
	})
}
