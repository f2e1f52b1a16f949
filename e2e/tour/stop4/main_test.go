package main

import "testing"

func TestEncodingJSONAcceptsWhatIsAMistake(t *testing.T) {
	want := []newPet{{"Rex", 1, ""}, {"Rex", 1, ""}, {"Max", 1, ""}, {"Rex", 0, ""}, {"Rex", 0, ""}, {"Rex", 1, ""}, {"\ufffd", 1, ""}, {"R\ufffdx", 1, ""}}
	for i, body := range bodies {
		if pet, err := naive(body); err != nil || pet != want[i] {
			t.Errorf("%q is taken as %+v, %v; want %+v", body, pet, err, want[i])
		}
	}
}
