//go:build linux

package main

// Raw figures: what was measured, in files from which tables and plots are made.

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// figure is one measurement. Its values have names such as perSecond.
type figure struct {
	series, what string  // who was measured, doing what
	x            float64 // on the plot's axis: pets, clients, connections, seconds
	values       map[string]float64
	run          int // which file it was read from
}

// results are the figures of one run, or of several that were read from their files.
type results struct {
	about   []string // what they depend on: program, machine, date
	figures []figure
	runs    int
}

func (r *results) add(series, what string, x float64, values map[string]float64) {
	r.figures = append(r.figures, figure{series: series, what: what, x: x, values: values})
}

// addLoad adds what wrk and the server's process have told.
func (r *results) addLoad(series, what string, x float64, l *load) map[string]float64 {
	values := map[string]float64{"perSecond": l.perSecond, "cpu": l.cpu, "p50": l.p50, "p99": l.p99, "rss": l.rss, "bytes": l.size}
	r.add(series, what, x, values)
	return values
}

// median is the median over rounds and runs, and whether there is any figure.
func (r *results) median(series, what string, x float64, name string) (float64, bool) {
	values := r.all(series, what, x, name)
	if len(values) == 0 {
		return 0, false
	}
	return median(values), true
}

// all are the values of every round and run.
func (r *results) all(series, what string, x float64, name string) (values []float64) {
	for _, f := range r.figures {
		if v, ok := f.values[name]; ok && f.series == series && f.what == what && f.x == x {
			values = append(values, v)
		}
	}
	return values
}

// xs are the places on the axis at which a series was measured, in order.
func (r *results) xs(series, what string) (xs []float64) {
	for _, f := range r.figures {
		if f.series == series && f.what == what {
			xs = append(xs, f.x)
		}
	}
	slices.Sort(xs)
	return slices.Compact(xs)
}

// runs measures several times, each time with everything started anew, and keeps the raw figures of each run in a file.
func (b *bench) runs(name string, measure func(r *results)) *results {
	must(os.MkdirAll(b.results, 0o755))
	for _, old := range must1(filepath.Glob(filepath.Join(b.results, name+"-*.csv"))) {
		must(os.Remove(old))
	}
	for i := range b.runCount {
		say("-- %s, run %d of %d", name, i+1, b.runCount)
		r := &results{about: append([]string{fmt.Sprintf("%s, run %d of %d", name, i+1, b.runCount)}, b.about...)}
		others := othersCPU()
		measure(r)
		r.about = append(r.about, fmt.Sprintf("others used %.0f %% of the CPU time of the machine meanwhile", others()))
		say("%s", r.about[len(r.about)-1])
		r.write(filepath.Join(b.results, fmt.Sprintf("%s-%d.csv", name, i+1)))
	}
	return readResults(b.results, name)
}

// write makes a CSV file: a comment, a line of names, and a line for each figure.
func (r *results) write(path string) {
	var names []string
	for _, f := range r.figures {
		for name := range f.values {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	var text strings.Builder
	for _, line := range r.about {
		text.WriteString("# " + line + "\n")
	}
	w := csv.NewWriter(&text)
	must(w.Write(append([]string{"series", "what", "x"}, names...)))
	for _, f := range r.figures {
		line := []string{f.series, f.what, short(f.x)}
		for _, name := range names {
			if v, ok := f.values[name]; ok {
				line = append(line, short(v))
			} else {
				line = append(line, "")
			}
		}
		must(w.Write(line))
	}
	w.Flush()
	must(w.Error())
	must(os.WriteFile(path, []byte(text.String()), 0o644)) //nolint:gosec // to be read by anybody
}

// short has five digits: more than a measurement is good for.
func short(v float64) string {
	return strconv.FormatFloat(must1(strconv.ParseFloat(strconv.FormatFloat(v, 'g', 5, 64), 64)), 'f', -1, 64)
}

// readResults puts the files of all runs together; about is that of the last. It returns nil if there is no file.
func readResults(folder, name string) *results {
	files := must1(filepath.Glob(filepath.Join(folder, name+"-*.csv")))
	if len(files) == 0 {
		return nil
	}
	all := &results{runs: len(files)}
	for i, path := range files {
		r := &results{}
		r.read(path)
		for n := range r.figures {
			r.figures[n].run = i
		}
		all.about = r.about
		all.figures = append(all.figures, r.figures...)
	}
	return all
}

func (r *results) read(path string) {
	text := string(must1(os.ReadFile(path)))
	for line := range strings.Lines(text) {
		if about, ok := strings.CutPrefix(line, "# "); ok {
			r.about = append(r.about, strings.TrimSpace(about))
		}
	}
	reader := csv.NewReader(strings.NewReader(text))
	reader.Comment = '#'
	lines := must1(reader.ReadAll())
	if len(lines) == 0 || len(lines[0]) < 3 {
		fail("%s holds no figures", path)
	}
	for _, line := range lines[1:] {
		values := map[string]float64{}
		for i, cell := range line[3:] {
			if cell != "" {
				values[lines[0][i+3]] = must1(strconv.ParseFloat(cell, 64))
			}
		}
		r.add(line[0], line[1], must1(strconv.ParseFloat(line[2], 64)), values)
	}
}
