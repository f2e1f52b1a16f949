//go:build linux

package main

// The plots of the documentation, each drawn from the raw figures of all runs.

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// draw makes all plots and tables again from what is in the folder of results.
func (b *bench) draw() error {
	if r := readResults(b.results, "peers"); r != nil {
		b.tellPeers(r)
		b.drawPeers(r)
	}
	if r := readResults(b.results, "curves"); r != nil {
		b.tellCurves(r)
		b.drawCurves(r)
	}
	if r := readResults(b.results, "loss"); r != nil {
		b.tellLoss(r)
		b.drawLoss(r)
	}
	return nil
}

func (b *bench) plot(name string) string {
	must(os.MkdirAll(b.plots, 0o755))
	return filepath.Join(b.plots, name+".svg")
}

// footer says on what a plot was measured, how, and when: see environment.
func (r *results) footer() string {
	machine, _, _ := strings.Cut(r.about[3], "; Linux")
	if r.runs > 1 {
		machine += fmt.Sprintf("; medians of %d runs, each started anew", r.runs)
	}
	return machine + "; " + r.date()
}

// date is the day of the last run.
func (r *results) date() string {
	date, _, _ := strings.Cut(r.about[2], "T")
	return date
}

// The heads of the columns, where an operation's name is too long, and what stands where nothing was measured.
var (
	heads = map[string]string{opList: opList, opFiltered: "filtered", opHundred: opHundred, opGet: "fetch",
		opSynced: opSynced, opUnsynced: "add, unsynced"}
	missing = map[string]string{ourName + opUnsynced: "always syncs", "PocketBase" + opSynced: "never syncs", ceilingName + opUnsynced: "–"}
)

// drawPeers draws a table of bars: a row for each system, a column for each operation with a scale of its own.
func (b *bench) drawPeers(r *results) {
	const left, column, barWidth, top, row = 176, 114, 50, 108, 30
	systems, x := r.systems(), r.figures[0].x
	d := newDrawing(left+column*len(operations)+10, top+row*len(systems)+44, "Requests per second, beside what people would pick instead",
		count(int(x))+" pets, 64 clients, one core for the server; each system is set up as its own documentation advises", r.footer())
	for i, operation := range operations {
		most := 0.0
		for _, system := range systems {
			for _, on := range operations { // both kinds of adds have one scale
				if v, ok := r.median(system, on, x, "perSecond"); ok && (on == operation || isAdd(on) && isAdd(operation)) {
					most = max(most, v)
				}
			}
		}
		at := float64(left + column*i)
		d.label(at, 86, "head", "start", heads[operation])
		d.line("axis", at, top-8, at, float64(top+row*len(systems)-6))
		for n, system := range systems {
			y := float64(top + row*n)
			v, ok := r.median(system, operation, x, "perSecond")
			if !ok {
				d.label(at+8, y+14, "small", "start", missing[system+operation])
				continue
			}
			class, text := "other", ""
			switch system {
			case ourName:
				class, text = "fa", "own"
			case ceilingName:
				class = "hollow"
			}
			width := max(1, v/most*barWidth)
			d.bar(class, at+0.5, y, width, 18)
			d.label(at+width+6, y+14, text, "start", count(int(math.Round(v))))
		}
	}
	for n, system := range systems {
		class := ""
		if system == ourName {
			class = "own"
		}
		d.label(24, float64(top+row*n+14), class, "start", system)
	}
	d.save(b.plot("peers"))
}

// points are the medians of a series, and the values behind them.
func (r *results) points(series, what, name string) (points []point) {
	for _, x := range r.xs(series, what) {
		if all := r.all(series, what, x, name); len(all) > 0 {
			points = append(points, point{x, median(all), all})
		}
	}
	return points
}

func (b *bench) drawCurves(r *results) {
	b.drawGrowth(r)
	b.drawClients(r)
	b.drawConnections(r)
}

// roundUp is the next round value.
func roundUp(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10} {
		if m*unit >= v {
			return m * unit
		}
	}
	return v
}

// steps are values from 0 to the highest, about five.
func steps(high float64) (values []float64) {
	step := roundUp(high / 6)
	for v := 0.0; v <= high*1.001; v += step {
		values = append(values, v)
	}
	return values
}

func (b *bench) drawGrowth(r *results) {
	kinds := []string{curvePage, curvePlace, curveOne, curveRandom}
	high := 0.0
	for _, what := range kinds {
		for _, at := range r.points("growth", what, "cpu") {
			high = max(high, slices.Max(at.all))
		}
	}
	xs := r.xs("growth", curvePage)
	d := newDrawing(860, 394, "The time of a page and of a fetch, from 10 thousand to 10 million pets",
		"CPU time of the server for a request, in µs; 64 clients; a page has 20 pets", r.footer())
	p := &panel{drawing: d, left: 64, right: 640, top: 84, bottom: 306}
	p.x, p.y = logarithmic(xs[0], xs[len(xs)-1], p.left+24, p.right), linear(0, roundUp(high), p.bottom, p.top)
	p.rows(steps(roundUp(high)), number0)
	p.columns(xs, inWords)
	p.label((p.left+p.right)/2, p.bottom+40, "small", "middle", "pets in the database")
	for i, what := range kinds {
		points := r.points("growth", what, "cpu")
		p.curve("abcd"[i:i+1], points, fmt.Sprintf("%s: %s", what, number(points[len(points)-1].y)))
	}
	p.finish()
	d.save(b.plot("growth"))
}

func (b *bench) drawClients(r *results) {
	d := newDrawing(860, 394, "New pets, by the number of clients that add them",
		"a client adds its next pet after the response; a commit is synced to the disk before it, on the cluster by two of three nodes", r.footer())
	for i, of := range []struct {
		title, name string
		low         float64
	}{{"new pets per second", "perSecond", 100}, {"new pets for each commit", "perCommit", 1}} {
		xs, high := r.xs("clients", onFile), 0.0
		for _, engine := range []string{onFile, onCluster} {
			for _, at := range r.points("clients", engine, of.name) {
				high = max(high, slices.Max(at.all))
			}
		}
		left := 72 + 424*float64(i)
		p := &panel{drawing: d, left: left, right: left + 250, top: 104, bottom: 306}
		high = roundUp(high)
		p.x, p.y = logarithmic(1, xs[len(xs)-1], p.left+16, p.right), logarithmic(of.low, high, p.bottom, p.top)
		p.label(p.left-40, 86, "head", "start", of.title)
		var rows []float64
		for v := of.low; v <= high; v *= 10 {
			for _, m := range []float64{1, 2, 5} {
				if m*v <= high {
					rows = append(rows, m*v)
				}
			}
		}
		p.rows(rows, number0)
		var columns []float64
		for n, x := range xs {
			if n%2 == 0 {
				columns = append(columns, x)
			}
		}
		p.columns(columns, number0)
		p.label((p.left+p.right)/2, p.bottom+40, "small", "middle", "clients")
		for n, engine := range []string{onFile, onCluster} {
			points := r.points("clients", engine, of.name)
			p.curve("ab"[n:n+1], points, fmt.Sprintf("%s: %s", engine, number(points[len(points)-1].y)))
		}
		p.finish()
	}
	d.save(b.plot("clients"))
}

func (b *bench) drawConnections(r *results) {
	xs, high := r.xs("connections", curveBusy), 0.0
	for _, at := range r.points("connections", curveBusy, "rss") {
		high = max(high, slices.Max(at.all))
	}
	high = roundUp(high)
	d := newDrawing(860, 394, "Memory, by the number of connections", "resident memory of the service, in MiB", r.footer())
	p := &panel{drawing: d, left: 64, right: 640, top: 84, bottom: 306}
	p.x, p.y = linear(0, xs[len(xs)-1], p.left, p.right), linear(0, high, p.bottom, p.top)
	p.rows(steps(high), number0)
	p.columns(xs, number0)
	p.label((p.left+p.right)/2, p.bottom+40, "small", "middle", "connections")
	for i, what := range []string{curveBusy, curveIdle} {
		points := r.points("connections", what, "rss")
		p.curve("ab"[i:i+1], points, fmt.Sprintf("%s: %s", what, number0(points[len(points)-1].y)))
	}
	p.finish()
	d.save(b.plot("connections"))
}

// drawLoss draws every request of all runs: when it was sent, and how long it took.
func (b *bench) drawLoss(r *results) {
	d := newDrawing(860, 520, "What clients see while the leader of a cluster is killed",
		"a dot is a request, sent at this time, and how long its client waited for success, in ms (logarithmic); 50 of each kind per second",
		r.lossFooter())
	for i, what := range lossKinds {
		top := 96 + 124*float64(i)
		p := &panel{drawing: d, left: 64, right: 836, top: top, bottom: top + 92}
		p.x, p.y = linear(-2, 7, p.left, p.right), logarithmic(0.1, 10_000, p.bottom, p.top)
		p.rows([]float64{0.1, 1, 10, 100, 1000, 10_000}, number1)
		var points []point
		longest := 0.0
		for _, f := range r.figures {
			if f.what == what {
				points = append(points, point{x: f.x, y: f.values["ms"]})
				longest = max(longest, f.values["ms"])
			}
		}
		p.line("mark", p.x(0), p.top, p.x(0), p.bottom)
		p.cloud("abc"[i:i+1], points)
		p.label(p.left, p.top-8, "head f"+"abc"[i:i+1], "start", what)
		p.label(p.right, p.top-8, "small", "end", "longest wait "+lasting(longest))
		if i == len(lossKinds)-1 {
			p.columns([]float64{-2, -1, 0, 1, 2, 3, 4, 5, 6, 7}, number0)
			p.label(p.x(0), p.bottom+40, "small", "middle", "the leader is killed")
			p.label(p.right, p.bottom+40, "small", "end", "seconds")
		}
	}
	d.save(b.plot("loss"))
}

// lossFooter is another one: nothing is pinned but the service, and there are no medians.
func (r *results) lossFooter() string {
	machine, _, _ := strings.Cut(r.about[3], ";")
	runs := "one run"
	if r.runs > 1 {
		runs = fmt.Sprintf("all requests of %d runs", r.runs)
	}
	return machine + ", which three nodes, the service, and its clients share; " + runs + "; " + r.date()
}

// lasting is a time in milliseconds, in words.
func lasting(ms float64) string {
	if ms < 1000 {
		return number(ms) + " ms"
	}
	return number(ms/1000) + " s"
}

// number0 is a number without digits behind the point.
func number0(v float64) string {
	if v < 0 {
		return "−" + count(int(math.Round(-v)))
	}
	return count(int(math.Round(v)))
}

// number1 is one that may be below 1.
func number1(v float64) string {
	if v < 1 {
		return short(v)
	}
	return number0(v)
}

// inWords is how people say a number of pets.
func inWords(v float64) string {
	if v >= 1e6 {
		return short(v/1e6) + " million"
	}
	return short(v/1000) + " thousand"
}
