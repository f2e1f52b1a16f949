package main

import (
	"slices"
	"strings"
	"testing"
)

// TestPetSetAndDelete beside a service, which follows. Repeats of creates get their first responses
// still.
func TestPetSetAndDelete(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		createOnce(t, s, 1, "Rex", testTime)
		createOnce(t, s, 2, "Max", testTime)
		wantReplayed := func(keyID int64, body string) {
			t.Helper()
			id, verdict := createOnce(t, s, keyID, body, testTime)
			if id != keyID || verdict != "replayed" {
				t.Errorf("a repeat of the create of %s is %s %d", body, verdict, id)
			}
		}
		set := func(want string, flags ...string) {
			t.Helper()
			args := slices.Concat([]string{"pet", "set", "-db", db}, flags, []string{"1"})
			_, log, err := petstore(t, nil, args...)
			must(t, err)
			if !strings.Contains(log, `"msg":"pet changed","id":1`) {
				t.Errorf("the change is logged as %s", log)
			}
			must(t, s.refresh(t.Context())) // as the service does four times a second
			pet, err := s.pet(1)
			must(t, err)
			_, page := pageIDs(t, s, "", 1, 0)
			if string(pet.body) != want || string(page.body) != "["+want+"]" {
				t.Errorf("the pet is %s and the page %s, want %s", pet.body, page.body, want)
			}
		}
		set(`{"id":1,"name":"Rex","categoryId":1,"status":"sold"}`, "-status", "sold")
		set(`{"id":1,"name":"x'41' \"","categoryId":1,"status":"sold"}`, "-name", `x'41' "`)
		set(`{"id":1,"name":"x'41' \"","categoryId":0,"status":"sold"}`, "-category", "0")
		set(`{"id":1,"name":"Tom","categoryId":-9223372036854775808,"status":"pending"}`,
			"-category", "-9223372036854775808", "-name", "Tom", "-status", "pending")
		wantReplayed(1, "Rex")

		_, log, err := petstore(t, nil, "pet", "delete", "-db", db, "2")
		must(t, err)
		if !strings.Contains(log, `"msg":"pet deleted","id":2`) {
			t.Errorf("the deletion is logged as %s", log)
		}
		must(t, s.refresh(t.Context()))
		ids, _ := pageIDs(t, s, "", 20, 0)
		if !slices.Equal(ids, []int64{1}) {
			t.Errorf("after the deletion there are %v", ids)
		}
		wantReplayed(2, "Max")
		wantNextID(t, s, 3)
	})
}

func TestAPetThatIsNotThereCannotBeChanged(t *testing.T) {
	db := madeDatabase(t)
	for _, id := range []string{
		"2", "0", "-1", "01", "+1", " 1", "1.0", "1e0", "Rex", "9223372036854775808",
	} {
		_, _, err := petstore(t, nil, "pet", "delete", "-db", db, "--", id)
		wantOneLine(t, err, false, "no pet has the id "+id)
		_, _, err = petstore(t, nil, "pet", "set", "-db", db, "-status", "sold", "--", id)
		wantOneLine(t, err, false, "no pet has the id "+id)
	}
}

// TestANameThatIsRefusedTodayStays, where it is stored already: it is shown and exported, and only
// imported no more.
func TestANameThatIsRefusedTodayStays(t *testing.T) {
	db := databasePath(t)
	s := openDatabase(t, db)
	id := mustCreate(t, s, NewPet{Name: "\u200b\u2800", CategoryID: 1, Status: Sold})
	const line = `{"id":1,"name":"` + "\u200b\u2800" + `","categoryId":1,"status":"sold"}`
	pet, err := s.pet(id)
	must(t, err)
	if got := exportedPets(t, db); got != line+"\n" || string(pet.body) != line {
		t.Errorf("exported is %q, and shown %q", got, pet.body)
	}
	log, err := importContent(t, db, line)
	wantOneLine(t, err, false, "nothing was stored")
	if log != "line 1: name: must not be blank\n" {
		t.Errorf("the import says %q", log)
	}
	mustInsertKey(t, s, apiKey{Name: "till\u200f"})
	k := testKeys{t, db}
	k.mint("rotate", "1")
	for _, id := range []string{"1", "2"} {
		if got := k.show(id).Name; got != "till\u200f" {
			t.Errorf("the name of key %s is %q", id, got)
		}
	}
}
