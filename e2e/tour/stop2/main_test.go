package main

import "testing"

func TestAStolenDatabaseShowsKeysButNoDigests(t *testing.T) {
	for value, want := range map[any]bool{key: true, "a digest": false} {
		if found, err := inFile(value); err != nil || found != want {
			t.Errorf("with %v in the database, the key is in its file: %t, %v", value, found, err)
		}
	}
}

func TestAComparisonByteByByteGivesTheKeyAway(t *testing.T) {
	if found, guesses := guess(); found != key || guesses > len(key)*len(base62) {
		t.Errorf("%d guesses find %q", guesses, found)
	}
	// The clock shows what the steps say: the medians differ by far more than a busy machine moves them.
	if early, late := median("_"+key[1:]), median(key[:len(key)-1]+"_"); late < 2*early {
		t.Errorf("a comparison that ends at once takes %v, and one that ends at the last byte %v", early, late)
	}
}
