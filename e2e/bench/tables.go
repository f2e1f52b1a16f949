//go:build linux

package main

// Tables in markdown, printed and put into the document. There, each stands between two comments,
// which hold its name.

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// table has names of rows and of columns, and says what stands where they meet.
type table struct {
	name          string // of its place in the document
	corner        string
	rows, columns []string
	cell          func(row, column int) string
}

func (b *bench) show(t table, footer string) {
	var text strings.Builder
	fmt.Fprintf(&text, "| %s | %s |\n", t.corner, strings.Join(t.columns, " | "))
	fmt.Fprintf(&text, "|---%s|\n", strings.Repeat("|--:", len(t.columns)))
	for i, row := range t.rows {
		fmt.Fprintf(&text, "| %s |", row)
		for n := range t.columns {
			fmt.Fprintf(&text, " %s |", t.cell(i, n))
		}
		fmt.Fprintln(&text)
	}
	fmt.Fprintf(&text, "\n%s\n", footer)
	fmt.Printf("\n## %s\n\n%s", t.name, text.String())
	b.insert(t.name, text.String())
}

// insert replaces what stands at a place of the document, if there is one.
func (b *bench) insert(name, text string) {
	before, _, after, found := b.place(name)
	if !found {
		return
	}
	write(b.document(), []byte(before+"\n"+text+"\n"+after))
}

// place is what stands in the document between <!-- name --> and <!-- /name -->, and around it.
func (b *bench) place(name string) (before, text, after string, found bool) {
	document := string(must1(os.ReadFile(b.document())))
	start := fmt.Sprintf("<!-- %s -->\n", name)
	end := fmt.Sprintf("<!-- /%s -->\n", name)
	before, rest, found := strings.Cut(document, start)
	text, after, closed := strings.Cut(rest, end)
	return before + start, text, end + after, found && closed
}

// tellGoals reads the goals from their table in the document, and puts beside each what was
// reached, and whether the goal holds. With -short, it may be missed by a tenth.
func (b *bench) tellGoals() {
	_, text, _, found := b.place("goals")
	if !found {
		fail("%s has no place for goals", b.document())
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, row := range lines[2:] { // below the head
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		value := b.read(cells[0]).value(cells[1], parse(cells[2]), cells[3])
		if math.IsNaN(value) && !b.short && !b.quick {
			continue // what another run has reached stays
		}
		side, bound, _ := strings.Cut(cells[4], " ")
		limit := parse(bound)
		slack := 0.0
		if b.short {
			slack = limit / 10
		}
		reached, holds := number(value), missing
		if reached != missing {
			holds = "no"
			value = parse(reached) // what is shown counts
		}
		if side == "≥" && value >= limit-slack || side == "≤" && value <= limit+slack {
			holds = "yes"
		}
		cells = append(cells[:5], reached, holds)
		lines[2+i] = "| " + strings.Join(cells, " | ") + " |"
	}
	text = strings.Join(lines, "\n") + "\n"
	fmt.Printf("\n## goals\n\n%s", text)
	b.insert("goals", text)
}

// parse reads a number as number and count write it.
func parse(text string) float64 {
	text = strings.ReplaceAll(text, ",", "")
	return must1(strconv.ParseFloat(text, 64))
}

// grid has a row for each thing that was measured, and a column for each place on the axis.
func (b *bench) grid(r *results, name, corner, unit string) {
	xs, rows := r.xs(), r.rows()
	var columns []string
	for _, x := range xs {
		columns = append(columns, count(x))
	}
	cell := func(row, column int) string {
		return r.cell(rows[row], xs[column], unit)
	}
	t := table{name, corner, rows, columns, cell}
	b.show(t, r.footer())
}

// list has a row for each thing that was measured at one place of the axis, and a column for each
// unit.
func (b *bench) list(r *results, name string, x float64, units ...string) {
	var rows []string
	for _, l := range r.lines {
		if l.x == x {
			rows = append(rows, l.what)
		}
	}
	cell := func(row, column int) string {
		return r.cell(rows[row], x, units[column])
	}
	t := table{name, "", rows, units, cell}
	b.show(t, r.footer())
}

func (b *bench) tellSpeed(r *results) {
	for _, x := range r.xs() {
		name := fmt.Sprintf("speed-%.0f", x)
		b.list(r, name, x, "req/s", "ratio", "CPU-µs", "p99-ms", "ceiling-p99-ms")
	}
}

func (b *bench) tellOneCore(r *results) {
	b.list(r, "onecore", 10_000, "req/s", "ratio", "p50-ms", "p99-ms")
}

func (b *bench) tellClients(r *results) {
	b.grid(r, "clients-perSecond", "new pets per second, by clients", "req/s")
	b.drawClients(r)
}

func (b *bench) tellConnections(r *results) {
	b.grid(r, "connections-rss", "resident MiB, by connections", "MiB")
}

func (b *bench) tellMemory(r *results) {
	b.grid(r, "memory", "by pets", "value")
}

func (b *bench) tellGrowth(r *results) {
	b.grid(r, "growth-cpu", "CPU µs of a request, by pets", "CPU-µs")
	b.drawGrowth(r)
}

func (b *bench) tellKeys(r *results) {
	b.list(r, "keys", 10_000, "req/s", "ratio", "p99-ms", "CPU-µs", "peak-MiB")
}

func (b *bench) tellCostly(r *results) {
	b.list(r, "costly", 10_000, "CPU-µs", "ratio")
}

func (b *bench) tellSmall(r *results) {
	b.list(r, "small", r.xs()[0], "seconds", "req/s", "p99-ms", "failed", "peak-MiB")
}

func (b *bench) tellCluster(r *results) {
	b.list(r, "cluster", 10_000, "req/s", "ratio", "p50-ms", "p99-ms", "CPU-µs",
		"leader-µs", "others-µs")
}

// tellPeers has a row for each system, and a column for each operation.
func (b *bench) tellPeers(r *results) {
	systems := r.systems()
	cell := func(row, column int) string {
		if column == len(operations) {
			return number(r.mostMemory(systems[row]))
		}
		what := systems[row] + ": " + operations[column]
		speed := r.cell(what, peerPets, "req/s")
		if speed == missing {
			return missing
		}
		return speed + "; " + r.cell(what, peerPets, "CPU-µs")
	}
	columns := append(slices.Clone(operations), "MiB")
	t := table{"peers", "requests per second; CPU µs", systems, columns, cell}
	b.show(t, r.footer())
	b.drawPeers(r)
}

// systems are the service, the ceiling, and the others from the fastest on.
func (r *results) systems() []string {
	var others []string
	for _, what := range r.rows() {
		system, operation, _ := strings.Cut(what, ": ")
		known := system == ourName || system == ceilingName
		if operation == opList && !known {
			others = append(others, system)
		}
	}
	slices.SortFunc(others, func(a, b string) int {
		ofA := r.value(a+": "+opList, peerPets, "req/s")
		ofB := r.value(b+": "+opList, peerPets, "req/s")
		return cmp.Compare(ofB, ofA)
	})
	return append([]string{ourName, ceilingName}, others...)
}

func (r *results) mostMemory(system string) (most float64) {
	for _, operation := range operations {
		of := r.value(system+": "+operation, peerPets, "rss-MiB")
		if of > most { // which NaN is not
			most = of
		}
	}
	return most
}

// missing stands in a table where nothing was measured.
const missing = "–"

// number has about three digits that matter.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return missing
	case v >= 100:
		return count(v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func count(v float64) string { return humanize.Comma(int64(math.Round(v))) }
