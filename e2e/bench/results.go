//go:build linux

package main

// Figures in files, in the format of Go's benchmarks: what was measured, at which place of an axis
// (pets, clients, connections, keys), and values with their units.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"
)

func (b *bench) resultsOf(section string) string {
	return filepath.Join(b.results, section+".txt")
}

// record adds what was measured in so many rounds to the file of the section: the median of each
// unit, and of a ratio the range too.
func (b *bench) record(what string, x any, rounds ...figures) {
	f := figures{}
	for unit := range rounds[0] {
		var all []float64
		for _, round := range rounds {
			all = append(all, round[unit])
		}
		slices.Sort(all)
		f[unit] = (all[(len(all)-1)/2] + all[len(all)/2]) / 2
		if strings.HasSuffix(unit, "ratio") && len(all) > 1 {
			f[unit+least] = all[0]
			f[unit+most] = all[len(all)-1]
		}
	}
	say("%s, %v: %v", what, x, f)
	what = strings.ReplaceAll(what, " ", "_")
	name := fmt.Sprintf("/%s/%v", what, x)
	r := &benchfmt.Result{
		Config: b.config,
		Name:   benchfmt.Name(name),
		Iters:  len(rounds),
	}
	for _, unit := range slices.Sorted(maps.Keys(f)) {
		r.Values = append(r.Values, benchfmt.Value{
			Value: digits(f[unit]),
			Unit:  unit,
		})
	}
	must(b.file.Write(r))
}

// What follows a unit in the names of its range.
const least, most = "-least", "-most"

// digits leaves five digits: more than a measurement is good for.
func digits(v float64) float64 {
	short := strconv.FormatFloat(v, 'g', 5, 64)
	return must1(strconv.ParseFloat(short, 64))
}

// results are the figures of a section.
type results struct {
	lines []line // in the order in which they were measured
	date  string
}

// line is one measurement.
type line struct {
	what   string
	x      float64
	values *benchfmt.Result
}

// read reads the file of a section. If it was not measured yet, there are no lines.
func (b *bench) read(section string) *results {
	r := &results{}
	path := b.resultsOf(section)
	if _, err := os.Stat(path); err != nil {
		return r
	}
	files := benchfmt.Files{Paths: []string{path}}
	for files.Scan() {
		result, ok := files.Result().(*benchfmt.Result)
		if !ok {
			fail("%s: %v", path, files.Result())
		}
		parts := strings.Split(string(result.Name), "/")
		r.lines = append(r.lines, line{
			what:   strings.ReplaceAll(parts[1], "_", " "),
			x:      must1(strconv.ParseFloat(parts[2], 64)),
			values: result.Clone(),
		})
		r.date = result.GetConfig("date")
	}
	must(files.Err())
	return r
}

// value returns NaN for what was not measured.
func (r *results) value(what string, x float64, unit string) float64 {
	for _, l := range r.lines {
		v, ok := l.values.Value(unit)
		if ok && l.what == what && l.x == x {
			return v
		}
	}
	return math.NaN()
}

// cell is a median in a table, with the range of a ratio.
func (r *results) cell(what string, x float64, unit string) string {
	text := number(r.value(what, x, unit))
	lowest := r.value(what, x, unit+least)
	if math.IsNaN(lowest) {
		return text
	}
	highest := r.value(what, x, unit+most)
	return fmt.Sprintf("%s (%s–%s)", text, number(lowest), number(highest))
}

// rows are what was measured, in the order in which it was.
func (r *results) rows() (names []string) {
	for _, l := range r.lines {
		if !slices.Contains(names, l.what) {
			names = append(names, l.what)
		}
	}
	return names
}

// xs are the places of the axis.
func (r *results) xs() (places []float64) {
	for _, l := range r.lines {
		places = append(places, l.x)
	}
	slices.SortFunc(places, cmp.Compare)
	return slices.Compact(places)
}

// footer says how, and when, the figures were measured.
func (r *results) footer() string {
	how := "Measured once"
	if rounds := r.lines[0].values.Iters; rounds > 1 {
		how = fmt.Sprintf("Medians of %d rounds of a second", rounds)
	}
	return fmt.Sprintf("%s; %s.", how, r.date)
}
