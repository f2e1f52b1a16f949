//go:build linux

package main

// Plots as SVG, each in a light and in a dark form.

import (
	"bytes"
	"image/color"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// scheme is the colours of a plot. The first of its series is the service's.
type scheme struct {
	name              string
	paper, ink, faint color.Color
	series            []color.Color
}

var schemes = []scheme{
	{
		name:   "light",
		paper:  rgb(0xffffff),
		ink:    rgb(0x1f2933),
		faint:  rgb(0xa8b3bd),
		series: []color.Color{rgb(0x0f766e), rgb(0xb45309), rgb(0x6d4bb4), rgb(0x57606a)},
	},
	{
		name:   "dark",
		paper:  rgb(0x14191d),
		ink:    rgb(0xe4e9ed),
		faint:  rgb(0x56636d),
		series: []color.Color{rgb(0x4fb8ad), rgb(0xf0a860), rgb(0xb79df0), rgb(0x9aa7b0)},
	},
}

func rgb(v uint32) color.Color {
	return color.RGBA{uint8(v >> 16), uint8(v >> 8), uint8(v), 0xff} //nolint:gosec // a byte each
}

// save draws panels below and beside each other in both schemes.
func (b *bench) save(name, title string, height vg.Length, panels func(s scheme) [][]*plot.Plot) {
	const margin = 12
	for _, s := range schemes {
		all := panels(s)
		canvas := vgsvg.New(645, height)
		page := draw.New(canvas)
		page.SetColor(s.paper)
		page.Fill(page.Rectangle.Path())
		top := vg.Point{X: margin, Y: height - 2*margin}
		page.FillText(s.text(13), top, title)
		page = draw.Crop(page, margin, -margin, margin, -4*margin)
		tiles := draw.Tiles{
			Rows: len(all),
			Cols: len(all[0]),
			PadX: margin,
			PadY: margin,
		}
		for row, canvases := range plot.Align(all, tiles, page) {
			for column, area := range canvases {
				all[row][column].Draw(area)
			}
		}
		var svg bytes.Buffer
		must1(canvas.WriteTo(&svg))
		// Arial and Helvetica are as wide as Liberation Sans, which not everybody has.
		family := []byte("font-family:Liberation Sans")
		families := []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")
		text := bytes.ReplaceAll(svg.Bytes(), family, families)
		write(filepath.Join(b.docs, "plots", name+"-"+s.name+".svg"), text)
	}
}

func (s scheme) text(size vg.Length) draw.TextStyle {
	font := plot.DefaultFont
	font.Variant = "Sans"
	font.Size = size
	return draw.TextStyle{
		Color:   s.ink,
		Font:    font,
		Handler: plot.DefaultTextHandler,
	}
}

// panel is an empty plot with lines across it.
func (s scheme) panel(title string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = s.paper
	p.Title.Text = title
	p.Title.TextStyle.Color = s.ink
	p.Title.TextStyle.Font = s.text(10).Font
	p.Title.Padding = 6
	p.Legend.Top = true
	p.Legend.Left = true
	p.Legend.Padding = 3
	p.Legend.TextStyle = s.text(9)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color = s.faint
		axis.Tick.Color = s.faint
		axis.Label.TextStyle.Color = s.ink
		axis.Label.TextStyle.Font = s.text(9).Font
		axis.Tick.Label.Color = s.ink
		axis.Tick.Label.Font = s.text(9).Font
	}
	return p
}

func (s scheme) addGrid(p *plot.Plot) {
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color = s.faint
	p.Add(grid)
}

// curves draws a line for each kind.
func (s scheme) curves(title, below string, r *results, unit string) *plot.Plot {
	p := s.panel(title)
	s.addGrid(p)
	p.X.Label.Text = below
	p.X.Tick.Marker = ticks(r.xs()...)
	for i, what := range r.rows() {
		var points plotter.XYs
		for _, x := range r.xs() {
			points = append(points, plotter.XY{X: x, Y: r.value(what, x, unit)})
		}
		line, dots, err := plotter.NewLinePoints(points)
		must(err)
		line.Color = s.series[i]
		line.Width = 1.5
		dots.Color = s.series[i]
		dots.Radius = 1.5
		dots.Shape = draw.CircleGlyph{}
		p.Add(line, dots)
		last := points[len(points)-1]
		p.Legend.Add(what+": "+number(last.Y), line)
	}
	return p
}

// ticks are at these places only.
func ticks(places ...float64) (all plot.ConstantTicks) {
	for _, v := range places {
		tick := plot.Tick{Value: v, Label: count(v)}
		all = append(all, tick)
	}
	return all
}

func (b *bench) drawGrowth(r *results) {
	title := "CPU time of a page and of a fetch, in µs, among 10 thousand to 10 million pets"
	b.save("growth", title, 290, func(s scheme) [][]*plot.Plot {
		p := s.curves("", "pets in the database", r, "CPU-µs")
		p.X.Scale = plot.LogScale{}
		p.Y.Min = 0
		p.Y.Max *= 1.5 // for the legend
		return [][]*plot.Plot{{p}}
	})
}

func (b *bench) drawClients(r *results) {
	title := "New pets, by the number of clients that add them"
	b.save("clients", title, 290, func(s scheme) [][]*plot.Plot {
		speed := s.curves("new pets per second", "clients", r, "req/s")
		perCommit := s.curves("new pets for each commit", "clients", r, "adds/commit")
		row := []*plot.Plot{speed, perCommit}
		for _, p := range row {
			p.X.Scale = plot.LogScale{}
			p.Y.Scale = plot.LogScale{}
			p.Y.Tick.Marker = ticks(1, 10, 100, 1000, 10_000)
			p.Y.Max *= 2 // for the legend
		}
		return [][]*plot.Plot{row}
	})
}

// drawPeers draws a panel for each operation, and in it a bar for each system.
func (b *bench) drawPeers(r *results) {
	title := "Requests per second, beside what people would pick instead"
	systems := r.systems()
	slices.Reverse(systems) // the first is drawn at the top
	b.save("peers", title, 320, func(s scheme) [][]*plot.Plot {
		var all []*plot.Plot
		most := 0.0
		for _, operation := range operations {
			p := s.panel(operation)
			for i, system := range systems {
				what := system + ": " + operation
				s.bar(p, i, r.value(what, peerPets, "req/s"), system == ourName)
			}
			p.HideAxes()
			most = max(most, p.X.Max)
			all = append(all, p)
		}
		for _, p := range all {
			p.X.Max = most * 1.4 // for the numbers
		}
		all[0].NominalY(systems...)
		all[3].NominalY(systems...)
		return [][]*plot.Plot{all[:3], all[3:]}
	})
}

// bar draws the speed of one system, or that it was not measured.
func (s scheme) bar(p *plot.Plot, place int, speed float64, own bool) {
	at := plotter.XY{Y: float64(place)}
	if speed > 0 { // which NaN is not
		at.X = speed
	}
	bar := must1(plotter.NewBarChart(plotter.Values{at.X}, 12))
	bar.Horizontal = true
	bar.XMin = at.Y
	bar.LineStyle.Width = 0
	bar.Color = s.faint
	if own {
		bar.Color = s.series[0]
	}
	label := must1(plotter.NewLabels(plotter.XYLabels{
		XYs:    plotter.XYs{at},
		Labels: []string{number(speed)},
	}))
	label.TextStyle[0] = s.text(9)
	label.TextStyle[0].YAlign = draw.YCenter
	label.Offset.X = 4
	p.Add(bar, label)
}
