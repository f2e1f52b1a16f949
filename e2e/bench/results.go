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
	"golang.org/x/perf/benchmath"
)

func (b *bench) resultsOf(section string) string {
	return filepath.Join(b.results, section+".txt")
}

// record adds a measurement to the file of the section, and tells it.
func (b *bench) record(what string, x any, f figures) {
	say("%s, %v: %v", what, x, f)
	what = strings.ReplaceAll(what, " ", "_")
	name := fmt.Sprintf("/%s/%v", what, x)
	r := &benchfmt.Result{
		Config: b.config,
		Name:   benchfmt.Name(name),
		Iters:  1,
	}
	for _, unit := range slices.Sorted(maps.Keys(f)) {
		r.Values = append(r.Values, benchfmt.Value{
			Value: digits(f[unit]),
			Unit:  unit,
		})
	}
	must(b.file.Write(r))
}

// digits leaves five digits: more than a measurement is good for.
func digits(v float64) float64 {
	short := strconv.FormatFloat(v, 'g', 5, 64)
	return must1(strconv.ParseFloat(short, 64))
}

// results are the figures of all runs of a section.
type results struct {
	lines []line // in the order in which they were measured
	date  string
	runs  string
}

// line is one measurement.
type line struct {
	what   string
	x      float64
	values *benchfmt.Result
}

// read reads the file of a section; nil, if it was never measured.
func (b *bench) read(section string) *results {
	path := b.resultsOf(section)
	if _, err := os.Stat(path); err != nil {
		say("%s was not measured yet", section)
		return nil
	}
	r := &results{}
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
		r.runs = result.GetConfig("runs")
	}
	must(files.Err())
	return r
}

// all are the values of every run.
func (r *results) all(what string, x float64, unit string) (values []float64) {
	for _, l := range r.lines {
		v, ok := l.values.Value(unit)
		if ok && l.what == what && l.x == x {
			values = append(values, v)
		}
	}
	return values
}

// summary is the median of all runs, with its interval of 95 %. Nothing is assumed of the values'
// distribution, so it takes six of them until there is an interval.
func summary(values []float64) benchmath.Summary {
	sample := benchmath.NewSample(values, &benchmath.DefaultThresholds)
	return benchmath.AssumeNothing.Summary(sample, 0.95)
}

func (r *results) median(what string, x float64, unit string) float64 {
	return summary(r.all(what, x, unit)).Center
}

// missing stands in a table where nothing was measured.
const missing = "–"

// cell is a median in a table.
func (r *results) cell(what string, x float64, unit string) string {
	values := r.all(what, x, unit)
	if len(values) == 0 {
		return missing
	}
	return number(summary(values).Center)
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

// footer says on what the figures of a unit were measured, how, when, and how far the medians can
// be off.
func (r *results) footer(unit string) string {
	text := fmt.Sprintf("Medians of %s runs; %s.", r.runs, r.date)
	widest := 0.0
	for _, l := range r.lines {
		s := summary(r.all(l.what, l.x, unit))
		off := max(s.Hi-s.Center, s.Center-s.Lo)
		widest = max(widest, off/s.Center)
	}
	if math.IsInf(widest, 0) || math.IsNaN(widest) {
		return text
	}
	const sure = "%s\nWith 95 %% confidence, they are right within %.0f %%."
	return fmt.Sprintf(sure, text, 100*widest)
}
