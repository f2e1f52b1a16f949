package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// progressFor shows the progress of work that does so much every second, for so many seconds, and
// returns what was written.
func progressFor(t *testing.T, p *progress, seconds, perSecond int64) (written string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		var out logBuffer
		p.start = time.Now()
		p.ended = make(chan bool)
		go p.show(&out)
		for range seconds {
			time.Sleep(time.Second - time.Millisecond)
			p.done.Add(perSecond)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		p.end()
		written = out.String()
	})
	return written
}

func TestProgressIsALineEveryFiveSeconds(t *testing.T) {
	p := &progress{doing: "importing", unit: "pets", total: 20_000}
	want := "importing  25 % of 20000 pets  1000/s  15s left\n" +
		"importing  50 % of 20000 pets  1000/s  10s left\n"
	if got := progressFor(t, p, 14, 1000); got != want {
		t.Errorf("it shows\n%s, want\n%s", got, want)
	}
}

func TestProgressThatEndsSoonShowsNothing(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		p := &progress{doing: "importing", unit: "pets", total: 10, terminal: terminal}
		if got := progressFor(t, p, 0, 0); got != "" {
			t.Errorf("on a terminal (%v) it shows %q", terminal, got)
		}
	}
}

func TestProgressOnATerminalIsOneLineThatIsTakenOff(t *testing.T) {
	p := &progress{doing: "importing", unit: "pets", total: 2000, terminal: true}
	want := "\rimporting  0s\x1b[K" +
		"\rimporting  0s\x1b[K" +
		"\rimporting  1s\x1b[K" +
		"\rimporting  1s\x1b[K" +
		"\rimporting █████░░░░░  50 % of 2000 pets  1000/s  1s left\x1b[K" +
		"\r\x1b[K"
	if got := progressFor(t, p, 1, 1000); got != want {
		t.Errorf("it shows\n%q, want\n%q", got, want)
	}
}

func TestProgressWithOddNumbers(t *testing.T) {
	for _, c := range []struct {
		what          string
		total, done   int64
		secondsBefore int64
		want          string
	}{
		{"of an unknown total", 0, 5, 5, "copying  5s"},
		{"that has not got on", 10, 0, 5, "copying  5s"},
		{"that gets on slowly", 1000, 1, 10, "copying   0 % of 1000 pages  0/s  2h46m30s left"},
		{"of more than there was", 10, 20, 5, "copying 100 % of 10 pages  2/s  0s left"},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &progress{doing: "copying", unit: "pages", total: c.total, start: time.Now()}
				p.done.Store(c.done)
				time.Sleep(time.Duration(c.secondsBefore) * time.Second)
				if got := p.line(); got != c.want {
					t.Errorf("it shows %q, want %q", got, c.want)
				}
			})
		})
	}
}
