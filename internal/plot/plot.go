// Package plot draws line charts as SVG: axes with units, a legend, labels at
// the ends of the lines, colours that colour-blind readers can tell apart.
// The same figure always gives the same bytes.
//
//	figure := plot.Figure{
//		Title: "goodput over time",
//		Panels: []plot.Panel{{
//			X:      plot.Axis{Label: "time", Unit: "s"},
//			Y:      plot.Axis{Label: "goodput", Unit: "Mb/s"},
//			Series: []plot.Series{{Name: "cubic", Points: points}},
//		}},
//	}
//	err := figure.SVG(w)
package plot

import (
	"errors"
	"fmt"
	"math"
)

// Figure is one or more panels under a common title and legend. A series of
// the same name looks the same in all of them.
type Figure struct {
	Title   string
	Note    string // what the reader must know, such as the conditions; wrapped below the title
	Columns int    // panels beside each other; 0 means up to 3
	Panels  []Panel
}

// Panel is one pair of axes with what is drawn between them.
type Panel struct {
	Title  string
	X, Y   Axis
	Series []Series
	Levels []Level // horizontal lines, such as a limit
	Spans  []Span  // stretches of x, such as an outage
}

// Axis describes an axis. Without bounds it covers the data, and a linear axis
// begins at 0 unless a value lies below.
type Axis struct {
	Label, Unit string
	Scale       Scale
	// Min and Max, if they differ, replace the bounds that the data give. On an
	// axis of steps they are not used.
	Min, Max float64
}

// Scale is how an axis spreads its values.
type Scale uint8

// The scales of an axis.
const (
	Linear Scale = iota
	// Log10 spreads powers of ten evenly; every value must be above 0.
	Log10
	// Steps gives every value that occurs in the panel the same distance from
	// the next: for a list of settings such as 0, 0.1, 1 and 10 %.
	Steps
)

// Series is one line.
type Series struct {
	Name   string
	Points []Point // in ascending order of X; a point whose Y is NaN is a gap
}

// Point is one value, with its spread where Lo and Hi differ.
type Point struct {
	X, Y   float64
	Lo, Hi float64
}

// Level is a horizontal line across the panel.
type Level struct {
	Name string
	Y    float64
}

// Span is a stretch of the x axis that is shaded, or a vertical line if From
// and To are equal.
type Span struct {
	Name     string
	From, To float64
}

// Lines draws a figure of a single panel.
func Lines(title, note string, x, y Axis, series ...Series) Figure {
	return Figure{Title: title, Note: note, Panels: []Panel{{X: x, Y: y, Series: series}}}
}

// check refuses what cannot be drawn.
func (f Figure) check() error {
	if len(f.Panels) == 0 {
		return errors.New("the figure has no panel: give it one")
	}
	for _, p := range f.Panels {
		if err := p.check(); err != nil {
			return err
		}
	}
	return nil
}

func (p Panel) check() error {
	if p.Y.Scale == Steps {
		return errors.New("the y axis cannot be one of steps: make it linear or logarithmic")
	}
	for _, s := range p.Series {
		for _, point := range s.Points {
			switch {
			case math.IsNaN(point.X) || math.IsInf(point.X, 0) || math.IsInf(point.Y, 0):
				return fmt.Errorf("series %q has a point at (%v, %v): leave it out", s.Name, point.X, point.Y)
			case p.X.Scale == Log10 && point.X <= 0:
				return fmt.Errorf("series %q has x = %v on a logarithmic axis: leave it out, or use steps", s.Name, point.X)
			case p.Y.Scale == Log10 && point.Y <= 0:
				return fmt.Errorf("series %q has y = %v on a logarithmic axis: leave it out", s.Name, point.Y)
			}
		}
	}
	for _, l := range p.Levels {
		if math.IsNaN(l.Y) || math.IsInf(l.Y, 0) || p.Y.Scale == Log10 && l.Y <= 0 {
			return fmt.Errorf("level %q is at %v: leave it out", l.Name, l.Y)
		}
	}
	return nil
}

// hasSpread says whether a point has a spread to draw.
func (p Point) hasSpread() bool {
	return p.Lo != p.Hi && !math.IsNaN(p.Lo) && !math.IsNaN(p.Hi) && !math.IsInf(p.Lo, 0) && !math.IsInf(p.Hi, 0)
}
