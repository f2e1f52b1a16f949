//go:build linux

package main

// Plots as SVG, by hand: they are few, and have to look well in both colour schemes of a page that shows them as images.

import (
	"fmt"
	"html"
	"math"
	"os"
	"slices"
	"strings"
)

// style is that of every plot. A plot's series have the classes a, b, and c.
const style = `
    .paper { fill: #ffffff; stroke: #d0d7de }
    text { font: 13px system-ui, sans-serif; fill: #1f2933 }
    .title { font-weight: 600; font-size: 16px }
    .head { font-weight: 600 }
    .small { font-size: 12px; fill: #57606a }
    .grid { stroke: #d8dee4; stroke-width: 1 }
    .axis { stroke: #8c959f; stroke-width: 1 }
    .mark { stroke: #57606a; stroke-width: 1; stroke-dasharray: 3 3 }
    .curve { fill: none; stroke-width: 2; stroke-linejoin: round }
    .points { fill: none; stroke-linecap: round; stroke-width: 3; opacity: .55 }
    .own { font-weight: 600 }
    .hollow { fill: none; stroke: #8c959f }
    .other { fill: #a8b3bd }
    .sa { stroke: #0f766e } .fa { fill: #0f766e }
    .sb { stroke: #b45309 } .fb { fill: #b45309 }
    .sc { stroke: #6d4bb4 } .fc { fill: #6d4bb4 }
    .sd { stroke: #57606a } .fd { fill: #57606a }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #14191d; stroke: #3b444c }
      text { fill: #e4e9ed }
      .small { fill: #9aa7b0 }
      .grid { stroke: #2b343b }
      .axis { stroke: #66737b }
      .mark { stroke: #9aa7b0 }
      .hollow { stroke: #7d8992 }
      .other { fill: #56636d }
      .sa { stroke: #4fb8ad } .fa { fill: #4fb8ad }
      .sb { stroke: #f0a860 } .fb { fill: #f0a860 }
      .sc { stroke: #b79df0 } .fc { fill: #b79df0 }
      .sd { stroke: #9aa7b0 } .fd { fill: #9aa7b0 }
    }
`

// drawing is one plot on its way to its file.
type drawing struct {
	text          strings.Builder
	width, height int
}

func newDrawing(width, height int, title, subtitle, footer string) *drawing {
	d := &drawing{width: width, height: height}
	d.put(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title">`+"\n",
		width, height, width, height)
	d.put("  <title id=\"title\">%s: %s</title>\n  <style>%s  </style>\n", html.EscapeString(title), html.EscapeString(subtitle), style)
	d.put(`  <rect class="paper" x="0.5" y="0.5" width="%d" height="%d" rx="8"/>`+"\n", width-1, height-1)
	d.label(24, 34, "title", "start", title)
	d.label(24, 55, "small", "start", subtitle)
	d.label(24, float64(height)-16, "small", "start", footer)
	return d
}

func (d *drawing) put(format string, args ...any) { fmt.Fprintf(&d.text, format, args...) }

func (d *drawing) label(x, y float64, class, anchor, text string) {
	d.put("  <text class=\"%s\" x=\"%s\" y=\"%s\" text-anchor=\"%s\">%s</text>\n", class, short(x), short(y), anchor, html.EscapeString(text))
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	d.put("  <path class=\"%s\" d=\"M%s %sL%s %s\"/>\n", class, px(x1), px(y1), px(x2), px(y2))
}

func (d *drawing) bar(class string, x, y, width, height float64) {
	d.put("  <rect class=\"%s\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"/>\n", class, px(x), px(y), px(width), px(height))
}

func (d *drawing) save(path string) {
	d.put("</svg>\n")
	must(os.WriteFile(path, []byte(d.text.String()), 0o644)) //nolint:gosec // to be read by anybody
}

// px is a length with a tenth of a pixel.
func px(v float64) string { return short(math.Round(v*10) / 10) }

// point is a place of a curve: the median, and the values of all runs.
type point struct {
	x, y float64
	all  []float64
}

// panel is an area with two axes; y grows upwards.
type panel struct {
	*drawing
	left, right, top, bottom float64
	x, y                     func(float64) float64 // to pixels
	labels                   []endLabel
}

// endLabel stands behind the end of a curve.
type endLabel struct {
	y           float64
	class, text string
}

func linear(low, high, from, to float64) func(float64) float64 {
	return func(v float64) float64 { return from + (v-low)/(high-low)*(to-from) }
}

func logarithmic(low, high, from, to float64) func(float64) float64 {
	scale := linear(math.Log(low), math.Log(high), from, to)
	return func(v float64) float64 { return scale(math.Log(v)) }
}

// rows draws a line of the grid at each of these values of y.
func (p *panel) rows(values []float64, text func(float64) string) {
	for _, v := range values {
		class := "grid"
		if p.y(v) == p.bottom {
			class = "axis"
		}
		p.line(class, p.left, p.y(v), p.right, p.y(v))
		p.label(p.left-8, p.y(v)+4, "small", "end", text(v))
	}
}

// columns names these values of x below the axis.
func (p *panel) columns(values []float64, text func(float64) string) {
	p.line("axis", p.left, p.bottom, p.right, p.bottom)
	for _, v := range values {
		p.line("axis", p.x(v), p.bottom, p.x(v), p.bottom+4)
		p.label(p.x(v), p.bottom+19, "small", "middle", text(v))
	}
}

// curve draws a line through the medians, and a dot for each run.
func (p *panel) curve(class string, points []point, text string) {
	var path, dots strings.Builder
	for i, at := range points {
		fmt.Fprintf(&path, "%c%s %s", "ML"[min(i, 1)], px(p.x(at.x)), px(p.y(at.y)))
		for _, v := range at.all {
			fmt.Fprintf(&dots, "M%s %sh0", px(p.x(at.x)), px(p.y(v)))
		}
	}
	p.put("  <path class=\"curve s%s\" d=\"%s\"/>\n", class, path.String())
	p.put("  <path class=\"points s%s\" style=\"stroke-width: 5\" d=\"%s\"/>\n", class, dots.String())
	last := points[len(points)-1]
	p.labels = append(p.labels, endLabel{p.y(last.y), "f" + class, text})
}

// cloud draws a dot for each value.
func (p *panel) cloud(class string, points []point) {
	var dots strings.Builder
	for _, at := range points {
		fmt.Fprintf(&dots, "M%s %sh0", px(p.x(at.x)), px(p.y(at.y)))
	}
	p.put("  <path class=\"points s%s\" d=\"%s\"/>\n", class, dots.String())
}

// finish writes the labels of the curves, apart from each other.
func (p *panel) finish() {
	slices.SortFunc(p.labels, func(a, b endLabel) int { return int(100 * (a.y - b.y)) })
	const apart = 17
	for i := 1; i < len(p.labels); i++ {
		p.labels[i].y = max(p.labels[i].y, p.labels[i-1].y+apart)
	}
	for _, l := range p.labels {
		p.label(p.right+10, l.y+4, l.class, "start", l.text)
	}
}
