// Package plot has the points of line charts, with what a reader needs to know
// of them, and writes them as CSV. bench/plot draws such files.
package plot

// Figure is one or more panels under a common title and legend. A series of
// the same name looks the same in all of them.
type Figure struct {
	Title   string
	Note    string // what the reader must know, such as the conditions
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

// Axis describes an axis. It covers the data, and a linear axis begins at 0
// unless a value lies below.
type Axis struct {
	Label, Unit string
	Scale       Scale
	Max         float64 // the axis ends here; 0 means where the data end
}

// Scale is how an axis spreads its values.
type Scale string

// The scales of an axis.
const (
	Linear Scale = ""
	// Log10 spreads powers of ten evenly; every value must be above 0.
	Log10 Scale = "log10"
	// Steps gives every value that occurs in the panel the same distance from
	// the next: for a list of settings such as 0, 0.1, 1 and 10 %.
	Steps Scale = "steps"
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
