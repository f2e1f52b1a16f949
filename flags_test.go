package main

// Tests of the progress that long work shows.

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressOnATerminalIsOneLineThatIsWrittenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := (&invocation{process: &process{stderr: &out}}).progress("importing", "pets", 2_000_000)
		p.terminal = true
		for done := range int64(1_000) { // in one second
			time.Sleep(time.Millisecond)
			p.show((done + 1) * 1_000)
		}
		lines := strings.Split(out.String(), "\r")[1:]
		if len(lines) != 5 {
			t.Errorf("in a second %d lines are written: %q", len(lines), lines)
		}
		want := "importing █████░░░░░  50 %  1,000,000 of 2,000,000 pets  1,000,000 pets/s  1s left\x1b[K"
		if last := lines[len(lines)-1]; last != want {
			t.Errorf("the last is\n%q, not\n%q", last, want)
		}
		out.Reset()
		p.end()
		if out.String() != "\r\x1b[K" {
			t.Errorf("the end writes %q", out.String())
		}
	})
}

func TestProgressElsewhereIsALineEveryFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		c := &invocation{process: &process{stderr: &out}}
		known, unknown := c.progress("copying", "bytes", 120_000_000), c.progress("checking", "bytes", 0)
		known.from = 20_000_000
		known.show(20_000_000)
		unknown.show(0)
		time.Sleep(4 * time.Second)
		known.show(30_000_000)
		if out.Len() != 0 {
			t.Errorf("after four seconds there is %q", out.String())
		}
		time.Sleep(time.Second)
		known.show(45_000_000)
		unknown.show(5)
		known.show(46_000_000)
		known.end()
		want := "copying  38 %  45 of 120 MB  5 MB/s  15s left\nchecking 1 MB  5s\n"
		if out.String() != want {
			t.Errorf("the lines are\n%q, not\n%q", out.String(), want)
		}
	})
}

func TestProgressThatEndsSoonShowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, terminal := range []bool{true, false} {
			var out strings.Builder
			p := (&invocation{process: &process{stderr: &out}}).progress("importing", "pets", 10)
			p.terminal = terminal
			p.show(10)
			p.end()
			if out.Len() != 0 {
				t.Errorf("on a terminal, %v, there is %q", terminal, out.String())
			}
		}
	})
}

// Work may not get on at all, get further than was known, or hardly get on.
func TestProgressSurvivesOddNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			done, total int64
			want        string
		}{
			{0, 10, "importing ░░░░░░░░░░   0 %  0 of 10 pets  0 pets/s"},
			{20, 10, "importing ██████████ 100 %  20 of 10 pets  20 pets/s  0s left"},
			{1, 1e18, "importing ░░░░░░░░░░   0 %  1 of 1,000,000,000,000,000,000 pets  1 pet/s"},
		} {
			var out strings.Builder
			p := (&invocation{process: &process{stderr: &out}}).progress("importing", "pets", c.total)
			p.terminal = true
			time.Sleep(time.Second)
			p.show(c.done)
			if out.String() != "\r"+c.want+"\x1b[K" {
				t.Errorf("%d of %d shows\n%q, not\n%q", c.done, c.total, out.String(), c.want)
			}
		}
	})
}

func TestAmountsAreForPeople(t *testing.T) {
	for want, got := range map[string]string{
		"0 pets": amount(0, "pets"), "1 pet": amount(1, "pets"), "999 pets": amount(999, "pets"), "1,000 pets": amount(1_000, "pets"),
		"12,345,678 pets": amount(12_345_678, "pets"), "1 MB": amount(1, "bytes"), "188 MB": amount(187_500_000, "bytes"), "1,001 MB": amount(1_000_000_001, "bytes"),
	} {
		if got != want {
			t.Errorf("%q is shown as %q", want, got)
		}
	}
}
