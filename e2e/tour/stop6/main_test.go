package main

import (
	"slices"
	"testing"
)

func TestOffsetIsSlowAndSkips(t *testing.T) {
	dir := t.TempDir()
	db, err := open(dir, 2*depth)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	slow, err := median(db, offset)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := median(db, keyset)
	if err != nil {
		t.Fatal(err)
	}
	if slow < 5*fast {
		t.Errorf("OFFSET %d takes %v, and keyset %v", depth, slow, fast)
	}
	skips, err := follow(dir, offset, func(ids []int64) int64 { return int64(len(ids)) })
	if err != nil || slices.Contains(skips, 21) {
		t.Errorf("by OFFSET the pages are %v, %v", skips, err)
	}
	all, err := follow(dir, keyset, func(ids []int64) int64 { return ids[len(ids)-1] })
	if err != nil || !slices.Contains(all, 21) {
		t.Errorf("by keyset the pages are %v, %v", all, err)
	}
}

func TestARepeatedWriteStoresTwice(t *testing.T) {
	f := &far{}
	if naive(f, "Rex"); len(f.pets) != 2 {
		t.Errorf("there are %q", f.pets)
	}
}
