package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// figures are one of each kind, for the golden files and for everyone who
// wants to look at them.
func figures() map[string]Figure {
	wave := func(name string, top float64, n int, spread float64) Series {
		s := Series{Name: name}
		for i := range n {
			x := float64(i) / float64(n-1) * 60
			y := top * (1 - math.Exp(-x/8))
			p := Point{X: x, Y: y}
			if spread > 0 {
				p.Lo, p.Hi = y*(1-spread), y*(1+spread)
			}
			s.Points = append(s.Points, p)
		}
		return s
	}
	x, y := Axis{Label: "time", Unit: "s"}, Axis{Label: "goodput", Unit: "Mb/s"}
	over := Panel{X: x, Y: y,
		Series: []Series{wave("haul", 94, 61, 0.05), wave("bbr", 91, 61, 0), wave("cubic", 12, 61, 0.3), wave("reno", 11.5, 61, 0)},
		Levels: []Level{{"limit", 96.5}}, Spans: []Span{{"outage", 20, 25}, {"joins", 40, 40}},
	}
	over.Series[1].Points[30].Y = math.NaN()

	against := func(title string, names ...string) Panel {
		p := Panel{Title: title, X: Axis{Label: "loss", Unit: "%", Scale: Steps}, Y: Axis{Label: "goodput ÷ limit", Unit: "%", Max: 100}}
		for i, name := range names {
			s := Series{Name: name}
			for j, loss := range []float64{0, 0.1, 1, 3, 5, 10, 15, 20} {
				v := 98 / (1 + float64(j*j*(i+1))/10)
				s.Points = append(s.Points, Point{X: loss, Y: v, Lo: v - 2, Hi: v + 1})
			}
			p.Series = append(p.Series, s)
		}
		return p
	}
	growth := Series{Name: "longhaul <relay> & co"}
	for i := range 6 {
		flows := math.Pow(10, float64(i))
		growth.Points = append(growth.Points, Point{X: flows, Y: 0.4 * math.Pow(flows, 0.7)})
	}
	return map[string]Figure{
		"lines": {Title: "goodput over time", Note: "100 Mb/s, 300 ms, 10 % random loss before the bottleneck; medians of 5 runs with their range", Panels: []Panel{over}},
		"panels": {Title: "goodput against loss", Columns: 2, Panels: []Panel{
			against("100 Mb/s, 20 ms", "haul", "bbr", "cubic"), against("100 Mb/s, 300 ms", "haul", "cubic", "hybla", "illinois", "reno", "brutal"), against("100 Mb/s, 600 ms", "bbr"),
		}},
		"log":   Lines("CPU against flows", "", Axis{Label: "flows", Scale: Log10}, Axis{Label: "CPU", Unit: "s", Scale: Log10}, growth),
		"empty": Lines("nothing was measured", "", x, y),
	}
}

func TestGolden(t *testing.T) {
	for name, f := range figures() {
		t.Run(name, func(t *testing.T) {
			var got, again bytes.Buffer
			if err := errors.Join(f.SVG(&got), figures()[name].SVG(&again)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), again.Bytes()) {
				t.Error("the same figure gives other bytes")
			}
			wellFormed(t, got.Bytes())
			file := "testdata/" + name + ".svg"
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s is no longer what is drawn: look at it, then run go test -update", file)
			}
		})
	}
}

// wellFormed parses XML and looks for coordinates that are no numbers.
func wellFormed(t *testing.T, svg []byte) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if element, ok := token.(xml.StartElement); ok {
			for _, a := range element.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("<%s %s=%q>", element.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	log, linear := Axis{Scale: Log10}, Axis{}
	at := func(x, y float64) Series { return Series{Name: "s", Points: []Point{{X: x, Y: y}}} }
	for _, test := range []struct {
		figure Figure
		want   string
	}{
		{Figure{}, "no panel"},
		{Lines("", "", log, linear, at(0, 1)), "x = 0 on a logarithmic axis"},
		{Lines("", "", linear, log, at(1, -1)), "y = -1 on a logarithmic axis"},
		{Lines("", "", linear, linear, at(1, math.Inf(1))), "leave it out"},
		{Lines("", "", linear, linear, at(math.NaN(), 1)), "leave it out"},
		{Lines("", "", linear, Axis{Scale: Steps}, at(1, 1)), "y axis cannot be one of steps"},
		{Figure{Panels: []Panel{{Levels: []Level{{"l", math.NaN()}}}}}, `level "l"`},
	} {
		if err := test.figure.SVG(io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWriteErrorIsReturned(t *testing.T) {
	if err := figures()["lines"].SVG(broken{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("got %v", err)
	}
}

func labels(s scale) string {
	var out []string
	for _, t := range s.ticks {
		if t.label != "" {
			out = append(out, t.label)
		}
	}
	return strings.Join(out, " ")
}

func TestTicks(t *testing.T) {
	for _, test := range []struct {
		axis   Axis
		values []float64
		want   string
	}{
		{Axis{}, []float64{3, 96.5}, "0 20 40 60 80 100"},
		{Axis{}, []float64{0.02, 0.07}, "0 0.02 0.04 0.06 0.08"},
		{Axis{}, []float64{-3, 7}, "-4 -2 0 2 4 6 8"},
		{Axis{}, []float64{0, 0}, "0 0.2 0.4 0.6 0.8 1"},
		{Axis{}, nil, "0 0.2 0.4 0.6 0.8 1"},
		{Axis{Max: 1}, []float64{0.5}, "0 0.2 0.4 0.6 0.8 1"},
		{Axis{Min: 10, Max: 30}, []float64{0.5}, "10 15 20 25 30"},
		{Axis{Scale: Log10}, []float64{1, 1e5}, "1 10 100 1000 10k 100k"},
		{Axis{Scale: Log10}, []float64{3, 40}, "1 2 5 10 20 50 100"},
		{Axis{Scale: Log10}, []float64{10}, "10 20 50 100"},
		{Axis{Scale: Steps}, []float64{10, 0, 0.1, 10}, "0 0.1 10"},
		{Axis{}, []float64{2.5e9}, "0 500M 1G 1.5G 2G 2.5G"},
	} {
		if got := labels(newScale(test.axis, test.values, 5)); got != test.want {
			t.Errorf("%+v over %v: ticks %s, want %s", test.axis, test.values, got, test.want)
		}
	}
}

func TestScalesKeepOrderAndBounds(t *testing.T) {
	for _, kind := range []Scale{Linear, Log10, Steps} {
		values := []float64{0.5, 1, 2, 70, 100}
		s := newScale(Axis{Scale: kind}, values, 5)
		last := -1.0
		for _, v := range values {
			at := s.at(v)
			if !s.within(v) || at <= last {
				t.Errorf("scale %d: %v lies at %v, after %v", kind, v, at, last)
			}
			last = at
		}
	}
}

func TestLabelsAreMovedApart(t *testing.T) {
	for _, test := range []struct{ at, want []float64 }{
		{[]float64{50, 100}, []float64{50, 100}},
		{[]float64{100, 100}, []float64{93.5, 106.5}},
		{[]float64{100, 101, 99}, []float64{87, 100, 113}},
		{[]float64{0, 0, 30}, []float64{10, 23, 36}},
		{[]float64{198, 199}, []float64{177, 190}},
	} {
		var in []label
		for _, at := range test.at {
			in = append(in, label{at: at})
		}
		var got []float64
		for _, l := range place(in, 10, 190) {
			got = append(got, l.y)
		}
		if !slices.EqualFunc(got, test.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
			t.Errorf("labels at %v stand at %v, want %v", test.at, got, test.want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.1 + 0.2: "0.3", 12.5: "12.5", 9999: "9999", 10000: "10k", 100000: "100k", -2e6: "-2M", 1e-5: "1e-05", 0.004: "0.004"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
}

func ExampleFigure_SVG() {
	goodput := Series{Name: "bbr", Points: []Point{{X: 0, Y: 0}, {X: 10, Y: 12}, {X: 20, Y: 31}}}
	figure := Lines("goodput over time", "one run",
		Axis{Label: "time", Unit: "s"}, Axis{Label: "goodput", Unit: "Mb/s"}, goodput)
	var b strings.Builder
	if err := figure.SVG(&b); err != nil {
		fmt.Println(err)
	}
	fmt.Println(b.String()[:42])
	// Output: <svg xmlns="http://www.w3.org/2000/svg" wi
}
