package main

import "testing"

func TestReadThenWriteAdmitsTwiceTheLimit(t *testing.T) {
	c, place := &counter{}, make(chan bool)
	if admitted := two(func() bool { return c.naive(func() { meet(place) }) }); admitted != 2*limit || c.get() != limit {
		t.Errorf("%d are admitted and %d counted, want %d and %d", admitted, c.get(), 2*limit, limit)
	}
	c = &counter{}
	if admitted := two(c.admit); admitted != limit || c.get() != limit {
		t.Errorf("under one lock %d are admitted and %d counted, want %d", admitted, c.get(), limit)
	}
}
