package main

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	panelWidth  = 12 * vg.Centimeter
	panelHeight = 7.5 * vg.Centimeter
	margin      = 4 * vg.Millimeter

	// fontRoom is for readers whose font is wider than Liberation Sans.
	fontRoom = 1.15

	// markerLimit is how many points of a line still get a marker and a bar each.
	// Beyond, the spread is a band.
	markerLimit = 30
)

// palette is that of Okabe and Ito, "Color universal design" (2008), without
// its yellow, which is too pale for lines on white, and with a grey.
var palette = []color.RGBA{
	{0x00, 0x72, 0xB2, 0xFF}, {0xD5, 0x5E, 0x00, 0xFF}, {0x00, 0x9E, 0x73, 0xFF}, {0xCC, 0x79, 0xA7, 0xFF},
	{0x56, 0xB4, 0xE9, 0xFF}, {0xE6, 0x9F, 0x00, 0xFF}, {0x00, 0x00, 0x00, 0xFF}, {0x77, 0x77, 0x77, 0xFF},
}

var dashes = [][]vg.Length{nil, {7, 3}, {2, 2}, {9, 3, 2, 3}}

var markers = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.SquareGlyph{}, draw.PyramidGlyph{}, draw.CrossGlyph{}, draw.PlusGlyph{}, draw.RingGlyph{},
}

// style is that of the figure's nth line: colour, dashes and marker all tell it
// apart, so that no reader depends on colour.
type style struct {
	line   draw.LineStyle
	marker draw.GlyphStyle
}

func styleOf(n int) style {
	c := palette[n%len(palette)]
	return style{
		line:   draw.LineStyle{Color: c, Width: vg.Points(1.5), Dashes: dashes[n/4%len(dashes)]},
		marker: draw.GlyphStyle{Color: c, Radius: vg.Points(2.5), Shape: markers[n%len(markers)]},
	}
}

// draw puts the panels into rows, the title and the note above them and the
// legend at their right.
func (f *figure) draw() (io.WriterTo, error) {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	if len(f.panels) == 0 {
		return nil, fmt.Errorf("nothing to draw: the table is empty")
	}
	cols := f.columns
	if cols == 0 {
		cols = min(3, len(f.panels))
	}
	rows := (len(f.panels) + cols - 1) / cols
	legend := plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.TextStyle.Font.Size, legend.Padding = vg.Points(10), vg.Points(3)
	var legendWidth vg.Length
	styles := map[string]style{}
	grid := make([][]*plot.Plot, rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, cols)
	}
	for i, p := range f.panels {
		for _, l := range p.lines {
			if _, known := styles[l.name]; !known {
				s := styleOf(len(styles))
				styles[l.name] = s
				legendWidth = max(legendWidth, fontRoom*legend.TextStyle.Width(l.name)+legend.ThumbnailWidth+3*margin)
				legend.Add(l.name, &plotter.Line{LineStyle: s.line}, &plotter.Scatter{GlyphStyle: s.marker})
			}
		}
		drawn, err := p.plot(styles)
		if err != nil {
			return nil, err
		}
		grid[i/cols][i%cols] = drawn
	}

	width := vg.Length(cols)*panelWidth + legendWidth
	title := legend.TextStyle
	title.Font.Size, title.YAlign = vg.Points(13), draw.YTop
	note := legend.TextStyle
	note.Font.Size, note.YAlign = vg.Points(9), draw.YTop
	lines := wrap(f.note, func(s string) bool { return fontRoom*note.Width(s) <= width-2*margin })
	head := vg.Points(22 + 12*float64(len(lines)))
	height := vg.Length(rows)*panelHeight + head + 2*margin

	picture := vgsvg.New(width, height)
	whole := draw.Crop(draw.New(picture), margin, -margin, margin, -margin)
	whole.FillText(title, vg.Point{X: whole.Min.X, Y: whole.Max.Y}, f.title)
	for i, l := range lines {
		whole.FillText(note, vg.Point{X: whole.Min.X, Y: whole.Max.Y - vg.Points(18+12*float64(i))}, l)
	}
	body := draw.Crop(whole, 0, -legendWidth, 0, -head)
	tiles := draw.Tiles{Rows: rows, Cols: cols, PadX: margin, PadY: margin}
	for i, row := range plot.Align(grid, tiles, body) {
		for j, canvas := range row {
			if grid[i][j] != nil {
				grid[i][j].Draw(canvas)
			}
		}
	}
	legend.Draw(draw.Crop(whole, body.Max.X-whole.Min.X+margin, 0, 0, -head))
	return picture, nil
}

// wrap breaks a text into lines that fit.
func wrap(s string, fits func(string) bool) (lines []string) {
	for _, word := range strings.Fields(s) {
		if n := len(lines); n > 0 && fits(lines[n-1]+" "+word) {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

func (p *panel) plot(styles map[string]style) (*plot.Plot, error) {
	out := plot.New()
	out.Title.Text, out.X.Label.Text, out.Y.Label.Text = p.title, p.x.text(), p.y.text()
	out.Title.TextStyle.Font.Size = vg.Points(10)
	out.Add(plotter.NewGrid())
	for _, s := range p.spans {
		out.Add(s)
	}
	steps := p.steps()
	for _, l := range p.lines {
		if err := l.addTo(out, styles[l.name], steps, p.y.scale == "log10"); err != nil {
			return nil, err
		}
	}
	for _, l := range p.levels {
		out.Add(l)
	}
	p.x.setUp(&out.X)
	p.y.setUp(&out.Y)
	if steps != nil {
		var ticks plot.ConstantTicks
		for i, v := range steps {
			ticks = append(ticks, plot.Tick{Value: float64(i), Label: strconv.FormatFloat(v, 'g', -1, 64)})
		}
		out.X.Tick.Marker = ticks
	}
	return out, nil
}

// steps are the values of an axis of steps, in order; nil for any other.
func (p *panel) steps() (steps []float64) {
	if p.x.scale != "steps" {
		return nil
	}
	for _, l := range p.lines {
		for _, at := range l.points {
			steps = append(steps, at.x)
		}
	}
	slices.Sort(steps)
	return slices.Compact(steps)
}

func (a axis) text() string {
	if a.unit == "" {
		return a.label
	}
	return fmt.Sprintf("%s (%s)", a.label, a.unit)
}

// setUp makes an axis cover whole decades, or begin at 0.
func (a axis) setUp(out *plot.Axis) {
	known := out.Min <= out.Max
	switch {
	case a.scale == "log10":
		if !known {
			out.Min, out.Max = 1, 10
		}
		out.Min, out.Max = math.Pow(10, math.Floor(math.Log10(out.Min))), math.Pow(10, math.Ceil(math.Log10(out.Max)))
		out.Scale = plot.LogScale{}
		out.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
			return plot.LogTicks{Prec: -1}.Ticks(low*(1-1e-9), high) // the logarithm of 0.1 is above -1
		})
	case a.scale == "" && known:
		out.Min = min(out.Min, 0)
	}
	if !math.IsNaN(a.max) {
		out.Max = a.max
	}
}

// addTo draws a line with its gaps, markers and spread.
func (l *line) addTo(out *plot.Plot, s style, steps []float64, logarithmic bool) error {
	var runs []plotter.XYs
	var bars errorBars
	inRun := false
	for _, at := range l.points {
		if steps != nil {
			i, _ := slices.BinarySearch(steps, at.x)
			at.x = float64(i)
		}
		if math.IsNaN(at.y) {
			inRun = false
			continue
		}
		if !inRun {
			runs, inRun = append(runs, nil), true
		}
		last := &runs[len(runs)-1]
		*last = append(*last, plotter.XY{X: at.x, Y: at.y})
		if at.low < at.high && (!logarithmic || at.low > 0) {
			bars.XYs = append(bars.XYs, plotter.XY{X: at.x, Y: at.y})
			bars.YErrors = append(bars.YErrors, struct{ Low, High float64 }{at.y - at.low, at.high - at.y})
		}
	}
	few := len(l.points) <= markerLimit
	switch {
	case len(bars.XYs) == 0:
	case few:
		spread, err := plotter.NewYErrorBars(bars)
		if err != nil {
			return err
		}
		spread.LineStyle.Color = s.line.Color
		out.Add(spread)
	default:
		band, err := plotter.NewPolygon(bars.outline())
		if err != nil {
			return err
		}
		band.Color, band.LineStyle.Width = faint(s.line.Color), 0
		out.Add(band)
	}
	for _, run := range runs {
		drawn, marks, err := plotter.NewLinePoints(run)
		if err != nil {
			return err
		}
		drawn.LineStyle, marks.GlyphStyle = s.line, s.marker
		out.Add(drawn)
		if few {
			out.Add(marks)
		}
	}
	return nil
}

type errorBars struct {
	plotter.XYs
	plotter.YErrors
}

// outline goes along the upper ends of the bars and back along the lower ones.
func (b errorBars) outline() (xys plotter.XYs) {
	for i, at := range b.XYs {
		xys = append(xys, plotter.XY{X: at.X, Y: at.Y + b.YErrors[i].High})
	}
	for i, at := range slices.Backward(b.XYs) {
		xys = append(xys, plotter.XY{X: at.X, Y: at.Y - b.YErrors[i].Low})
	}
	return xys
}

func faint(c color.Color) color.Color {
	r, g, b, _ := c.RGBA()
	return color.NRGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 0x30}
}

var grey = color.Gray{0x77}

// label writes the name of a level or a span.
func label(c draw.Canvas, p *plot.Plot, at vg.Point, x text.XAlignment, y text.YAlignment, name string) {
	s := p.X.Tick.Label
	s.Color, s.Font.Size, s.XAlign, s.YAlign = grey, vg.Points(8), x, y
	c.FillText(s, at, name)
}

// Plot draws the level across the panel.
func (l level) Plot(c draw.Canvas, p *plot.Plot) {
	_, toY := p.Transforms(&c)
	y := toY(l.y)
	c.StrokeLine2(draw.LineStyle{Color: grey, Width: vg.Points(1), Dashes: []vg.Length{4, 3}}, c.Min.X, y, c.Max.X, y)
	label(c, p, vg.Point{X: c.Max.X, Y: y}, draw.XRight, draw.YBottom, l.name)
}

// DataRange has the y axis reach the level.
func (l level) DataRange() (xmin, xmax, ymin, ymax float64) {
	return math.Inf(1), math.Inf(-1), l.y, l.y
}

// Plot shades the span, as far as the x axis has it.
func (s span) Plot(c draw.Canvas, p *plot.Plot) {
	toX, _ := p.Transforms(&c)
	from, to := max(toX(s.from), c.Min.X), min(toX(s.to), c.Max.X)
	switch {
	case from > to:
		return
	case s.from == s.to:
		c.StrokeLine2(draw.LineStyle{Color: grey, Width: vg.Points(1), Dashes: []vg.Length{2, 2}}, from, c.Min.Y, from, c.Max.Y)
	default:
		c.FillPolygon(color.Gray{0xE6}, []vg.Point{{X: from, Y: c.Min.Y}, {X: to, Y: c.Min.Y}, {X: to, Y: c.Max.Y}, {X: from, Y: c.Max.Y}})
	}
	label(c, p, vg.Point{X: from, Y: c.Min.Y}, draw.XLeft, draw.YBottom, s.name)
}
