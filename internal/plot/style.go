package plot

import (
	"fmt"
	"math"
)

// style is how a series is drawn: colour, dashes and marker all tell it apart,
// so that no reader depends on colour.
type style struct {
	colour string
	dash   string
	marker func(x, y float64) string // SVG path around a point
}

// palette is that of Okabe and Ito, "Color universal design" (2008), without
// its yellow, which is too pale for lines on white, and with a grey.
var palette = []string{"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#777777"}

var dashes = []string{"", "7 3", "2 2", "9 3 2 3"}

var markers = []func(x, y float64) string{circle, square, triangle, diamond, cross, flipped}

// styleOf is the style of the figure's nth series.
func styleOf(n int) style {
	return style{
		colour: palette[n%len(palette)],
		// Colours come first: dashes only where they begin again, or where
		// two of the colours are close.
		dash:   dashes[(n/4)%len(dashes)],
		marker: markers[n%len(markers)],
	}
}

// styles gives every name of series in the figure a style, by first appearance.
func (f Figure) styles() (names []string, byName map[string]style) {
	byName = map[string]style{}
	for _, p := range f.Panels {
		for _, s := range p.Series {
			if _, known := byName[s.Name]; !known {
				byName[s.Name] = styleOf(len(names))
				names = append(names, s.Name)
			}
		}
	}
	return names, byName
}

const markerRadius = 3.2

func circle(x, y float64) string {
	const r = markerRadius
	return fmt.Sprintf("M%s %sa%[3]g %[3]g 0 1 0 %[4]g 0a%[3]g %[3]g 0 1 0 -%[4]g 0z", coord(x-r), coord(y), r, 2*r)
}

func square(x, y float64) string {
	const r = markerRadius * 0.9
	return fmt.Sprintf("M%s %sh%[3]gv%[3]gh-%[3]gz", coord(x-r), coord(y-r), 2*r)
}

func triangle(x, y float64) string { return polygon(x, y, 3, -math.Pi/2) }
func flipped(x, y float64) string  { return polygon(x, y, 3, math.Pi/2) }
func diamond(x, y float64) string  { return polygon(x, y, 4, 0) }

func polygon(x, y float64, corners int, first float64) string {
	const r = markerRadius * 1.25
	path := ""
	for i := range corners {
		angle := first + 2*math.Pi*float64(i)/float64(corners)
		path += fmt.Sprintf("%c%s %s", "ML"[min(i, 1)], coord(x+r*math.Cos(angle)), coord(y+r*math.Sin(angle)))
	}
	return path + "z"
}

func cross(x, y float64) string {
	const r, t = markerRadius * 1.2, markerRadius * 0.4
	return fmt.Sprintf("M%s %sh%[4]gv-%[3]gh%[5]gv%[3]gh%[3]gv%[5]gh-%[3]gv%[3]gh-%[5]gv-%[3]gh-%[3]gz",
		coord(x-r), coord(y+t), r-t, r-t, 2*t)
}
