package plot

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strings"
)

// Sizes in pixels.
const (
	fontSize   = 12.0
	titleSize  = 16.0
	panelSize  = 13.0
	lineHeight = 16.0
	edge       = 14.0 // free space around everything
	gap        = 18.0 // between panels

	// Of the area between the axes: of a single panel, of those in one column,
	// and of those beside each other.
	wideWidth    = 640.0
	singleHeight = 340.0
	columnHeight = 220.0
	panelWidth   = 300.0
	panelHeight  = 190.0

	maxColumns = 3
	// markerLimit is how many points of a series still get a marker each.
	// Beyond, the spread is a band rather than a bar at every point.
	markerLimit = 30
)

// SVG writes the figure. The error is that of the writer, or names what cannot
// be drawn.
func (f Figure) SVG(w io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	d := drawing{w: bufio.NewWriter(w)}
	d.figure(f)
	return d.w.Flush()
}

type drawing struct{ w *bufio.Writer }

func (d drawing) f(format string, args ...any) {
	fmt.Fprintf(d.w, format+"\n", args...) // bufio keeps the first error for Flush
}

func (d drawing) text(x, y float64, attributes, s string) {
	d.f(`<text x="%s" y="%s"%s>%s</text>`, coord(x), coord(y), attributes, escape(s))
}

func (d drawing) line(x1, y1, x2, y2 float64, attributes string) {
	d.f(`<line x1="%s" y1="%s" x2="%s" y2="%s"%s/>`, coord(x1), coord(y1), coord(x2), coord(y2), attributes)
}

func (d drawing) figure(f Figure) {
	names, styles := f.styles()
	columns := f.Columns
	if columns <= 0 {
		columns = maxColumns
	}
	columns = min(columns, len(f.Panels))
	inner := [2]float64{panelWidth, panelHeight}
	switch {
	case len(f.Panels) == 1:
		inner = [2]float64{wideWidth, singleHeight}
	case columns == 1:
		inner = [2]float64{wideWidth, columnHeight}
	}
	frames := make([]frame, len(f.Panels))
	left, right, top := 0.0, 0.0, 0.0
	for i, p := range f.Panels {
		frames[i] = newFrame(p, inner)
		left, right, top = max(left, frames[i].left), max(right, frames[i].right), max(top, frames[i].top)
	}
	cellWidth := left + inner[0] + right
	cellHeight := top + inner[1] + frames[0].bottom
	rows := (len(f.Panels) + columns - 1) / columns
	width := 2*edge + float64(columns)*cellWidth + float64(columns-1)*gap

	y := edge
	var header []func()
	if f.Title != "" {
		for _, line := range wrap(f.Title, titleSize*1.06, width-2*edge) {
			y += titleSize * 1.25
			at := y - 4
			header = append(header, func() {
				d.text(edge, at, fmt.Sprintf(` font-size="%g" font-weight="bold"`, titleSize), line)
			})
		}
	}
	for _, line := range wrap(f.Note, fontSize, width-2*edge) {
		y += lineHeight
		at := y - 3
		header = append(header, func() { d.text(edge, at, ` fill="#444"`, line) })
	}
	y += 8
	legend, legendHeight := layoutLegend(names, edge, y, width-edge)
	y += legendHeight + 4
	height := y + float64(rows)*cellHeight + float64(rows-1)*gap + edge

	d.f(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]s" height="%[2]s" viewBox="0 0 %[1]s %[2]s" font-family="Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif" font-size="%[3]g" fill="#111">`,
		coord(width), coord(height), fontSize)
	d.f(`<title>%s</title>`, escape(f.Title))
	if f.Note != "" {
		d.f(`<desc>%s</desc>`, escape(f.Note))
	}
	d.f(`<rect width="%s" height="%s" fill="#fff"/>`, coord(width), coord(height))
	for _, draw := range header {
		draw()
	}
	for _, entry := range legend {
		d.sample(entry, styles[entry.name])
	}
	for i, p := range f.Panels {
		frames[i].x = edge + float64(i%columns)*(cellWidth+gap) + left
		frames[i].y = y + float64(i/columns)*(cellHeight+gap) + top
		d.panel(p, frames[i], styles)
	}
	d.f(`</svg>`)
}

// legendEntry is a name of the legend and where its sample line begins.
type legendEntry struct {
	name string
	x, y float64
}

const sampleWidth = 30.0

func layoutLegend(names []string, left, top, right float64) (entries []legendEntry, height float64) {
	if len(names) == 0 {
		return nil, 0
	}
	x, y := left, top+lineHeight/2
	for _, name := range names {
		width := sampleWidth + 6 + textWidth(name, fontSize) + 18
		if x > left && x+width > right {
			x, y = left, y+lineHeight
		}
		entries = append(entries, legendEntry{name, x, y})
		x += width
	}
	return entries, y + lineHeight/2 - top
}

// sample draws an entry of the legend.
func (d drawing) sample(e legendEntry, s style) {
	d.line(e.x, e.y, e.x+sampleWidth, e.y, s.stroke())
	d.f(`<path d="%s" fill="%s"/>`, s.marker(e.x+sampleWidth/2, e.y), s.colour)
	d.text(e.x+sampleWidth+6, e.y+4, "", e.name)
}

func (s style) stroke() string {
	attributes := fmt.Sprintf(` fill="none" stroke="%s" stroke-width="1.8" stroke-linejoin="round"`, s.colour)
	if s.dash != "" {
		attributes += fmt.Sprintf(` stroke-dasharray="%s"`, s.dash)
	}
	return attributes
}

// frame is where a panel's axes are, and what space is needed around them.
type frame struct {
	x, y          float64 // upper left corner between the axes
	width, height float64
	xs, ys        scale

	left, right, top, bottom float64
}

func newFrame(p Panel, inner [2]float64) frame {
	xs, ys := p.values()
	fr := frame{
		width: inner[0], height: inner[1],
		xs: newScale(p.X, xs, max(3, int(inner[0]/70))), ys: newScale(p.Y, ys, max(3, int(inner[1]/36))),
		right: 12, top: lineHeight + 8, bottom: 2*lineHeight + 8,
	}
	if p.Title != "" {
		fr.top += panelSize + 6
	}
	for _, t := range fr.ys.ticks {
		fr.left = max(fr.left, textWidth(t.label, fontSize)+10)
	}
	for _, l := range p.ends(fr) {
		fr.right = max(fr.right, textWidth(l.text, fontSize)+16)
	}
	return fr
}

func (fr frame) px(v float64) float64 { return fr.x + fr.xs.at(v)*fr.width }
func (fr frame) py(v float64) float64 { return fr.y + (1-fr.ys.at(v))*fr.height }

// values are all that must fit on the panel's axes.
func (p Panel) values() (xs, ys []float64) {
	for _, s := range p.Series {
		for _, point := range s.Points {
			xs = append(xs, point.X)
			if !math.IsNaN(point.Y) {
				ys = append(ys, point.Y)
			}
			if point.hasSpread() && (p.Y.Scale != Log10 || point.Lo > 0) {
				ys = append(ys, point.Lo, point.Hi)
			}
		}
	}
	for _, l := range p.Levels {
		ys = append(ys, l.Y)
	}
	if p.X.Scale != Steps {
		for _, s := range p.Spans {
			if p.X.Scale != Log10 || s.From > 0 {
				xs = append(xs, s.From, s.To)
			}
		}
	}
	return xs, ys
}

func (a Axis) title() string {
	if a.Unit == "" {
		return a.Label
	}
	return a.Label + ", " + a.Unit
}

func (d drawing) panel(p Panel, fr frame, styles map[string]style) {
	x1, y1 := fr.x+fr.width, fr.y+fr.height
	above := fr.y - 10
	d.text(fr.x-fr.left+4, above, ` fill="#444"`, p.Y.title())
	if p.Title != "" {
		d.text(fr.x, above-lineHeight-2, fmt.Sprintf(` font-size="%g" font-weight="bold"`, panelSize), p.Title)
	}
	for _, s := range p.Spans {
		d.span(s, fr)
	}
	d.grid(p, fr)
	for _, l := range p.Levels {
		if fr.ys.within(l.Y) {
			d.line(fr.x, fr.py(l.Y), x1, fr.py(l.Y), ` stroke="#555" stroke-dasharray="5 4"`)
		}
	}
	for _, s := range p.Series {
		d.spread(s, fr, styles[s.Name])
	}
	for _, s := range p.Series {
		d.series(s, fr, styles[s.Name])
	}
	d.line(fr.x, y1, x1, y1, ` stroke="#333"`)
	d.line(fr.x, fr.y, fr.x, y1, ` stroke="#333"`)
	d.text(fr.x+fr.width/2, y1+2*lineHeight+2, ` text-anchor="middle" fill="#444"`, p.X.title())

	for _, l := range place(p.ends(fr), fr.y+fontSize/2, y1-2) {
		colour := "#444"
		if s, ok := styles[l.series]; ok {
			colour = s.colour
		}
		if math.Abs(l.at-l.y) > 3 {
			d.line(l.x+3, l.at, x1+9, l.y, fmt.Sprintf(` stroke="%s" stroke-width="0.7"`, colour))
		}
		d.text(x1+11, l.y+4, fmt.Sprintf(` fill="%s"`, colour), l.text)
	}
	if len(p.Series) == 0 {
		d.text(fr.x+fr.width/2, fr.y+fr.height/2, ` text-anchor="middle" fill="#777"`, "no data")
	}
}

func (d drawing) grid(p Panel, fr frame) {
	x1, y1 := fr.x+fr.width, fr.y+fr.height
	for _, t := range fr.ys.ticks {
		y := fr.py(t.value)
		if t.label == "" {
			d.line(fr.x-3, y, fr.x, y, ` stroke="#333" stroke-width="0.7"`)
			continue
		}
		d.line(fr.x, y, x1, y, ` stroke="#ddd"`)
		d.line(fr.x-5, y, fr.x, y, ` stroke="#333"`)
		d.text(fr.x-8, y+4, ` text-anchor="end"`, t.label)
	}
	for _, t := range fr.xs.ticks {
		x := fr.px(t.value)
		if t.label == "" {
			d.line(x, y1, x, y1+3, ` stroke="#333" stroke-width="0.7"`)
			continue
		}
		d.line(x, y1, x, y1+5, ` stroke="#333"`)
		d.text(x, y1+lineHeight+2, ` text-anchor="middle"`, t.label)
	}
}

func (d drawing) span(s Span, fr frame) {
	from, to := fr.px(s.From), fr.px(s.To)
	if s.From == s.To {
		d.line(from, fr.y, from, fr.y+fr.height, ` stroke="#888" stroke-dasharray="2 3"`)
	} else {
		d.f(`<rect x="%s" y="%s" width="%s" height="%s" fill="#f0e6d2"/>`, coord(from), coord(fr.y), coord(to-from), coord(fr.height))
	}
	d.text((from+to)/2, fr.y+fontSize, ` text-anchor="middle" fill="#6b5a33" font-size="11"`, s.Name)
}

// spread draws the spread of a series: bars at its points, or a band behind
// many of them.
func (d drawing) spread(s Series, fr frame, look style) {
	clamp := func(v float64) float64 {
		if fr.ys.kind == Log10 && v <= 0 {
			return fr.y + fr.height
		}
		return min(max(fr.py(v), fr.y), fr.y+fr.height)
	}
	if len(s.Points) <= markerLimit {
		for _, p := range s.Points {
			if !p.hasSpread() || math.IsNaN(p.Y) {
				continue
			}
			x := fr.px(p.X)
			d.f(`<path d="M%[1]s %[2]sH%[3]sM%[4]s %[2]sV%[5]sM%[1]s %[5]sH%[3]s" stroke="%[6]s" fill="none"/>`,
				coord(x-3), coord(clamp(p.Lo)), coord(x+3), coord(x), coord(clamp(p.Hi)), look.colour)
		}
		return
	}
	var there, back strings.Builder
	corners := 0
	for i, p := range s.Points {
		if q := s.Points[len(s.Points)-1-i]; q.hasSpread() {
			fmt.Fprintf(&back, "L%s %s", coord(fr.px(q.X)), coord(clamp(q.Lo)))
		}
		if p.hasSpread() {
			fmt.Fprintf(&there, "%c%s %s", "ML"[min(corners, 1)], coord(fr.px(p.X)), coord(clamp(p.Hi)))
			corners++
		}
	}
	if corners > 1 {
		d.f(`<path d="%s%sz" fill="%s" fill-opacity="0.15"/>`, there.String(), back.String(), look.colour)
	}
}

func (d drawing) series(s Series, fr frame, look style) {
	var path strings.Builder
	pen := byte('M')
	var marks []string
	for _, p := range s.Points {
		if math.IsNaN(p.Y) || !fr.ys.within(p.Y) || !fr.xs.within(p.X) {
			pen = 'M'
			continue
		}
		x, y := fr.px(p.X), fr.py(p.Y)
		fmt.Fprintf(&path, "%c%s %s", pen, coord(x), coord(y))
		pen = 'L'
		if len(s.Points) <= markerLimit {
			marks = append(marks, look.marker(x, y))
		}
	}
	if path.Len() == 0 {
		return
	}
	d.f(`<path d="%s"%s/>`, path.String(), look.stroke())
	if len(marks) > 0 {
		d.f(`<path d="%s" fill="%s"/>`, strings.Join(marks, ""), look.colour)
	}
}
