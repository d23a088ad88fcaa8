package plot

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// figures are one of each kind. bench/plot draws their files in its own test.
func figures() map[string]Figure {
	wave := func(name string, top float64, spread float64) Series {
		s := Series{Name: name}
		for x := 0.0; x <= 60; x += 5 {
			y := top * (1 - math.Exp(-x/8))
			p := Point{X: x, Y: y}
			if spread > 0 {
				p.Lo, p.Hi = y*(1-spread), y*(1+spread)
			}
			s.Points = append(s.Points, p)
		}
		return s
	}
	over := Panel{
		X: Axis{Label: "time", Unit: "s"}, Y: Axis{Label: "goodput", Unit: "Mb/s"},
		Series: []Series{wave("haul", 94, 0.05), wave("bbr", 91, 0), wave("cubic", 12, 0.3)},
		Levels: []Level{{"limit", 96.5}}, Spans: []Span{{"outage", 20, 25}, {"joins", 40, 40}},
	}
	over.Series[1].Points[6].Y = math.NaN()

	against := func(title string, names ...string) Panel {
		p := Panel{Title: title, X: Axis{Label: "loss", Unit: "%", Scale: Steps}, Y: Axis{Label: "goodput ÷ limit", Unit: "%", Max: 100}}
		for i, name := range names {
			s := Series{Name: name}
			for j, loss := range []float64{0, 0.1, 1, 20} {
				v := 98 / (1 + float64(j*j*(i+1))/10)
				s.Points = append(s.Points, Point{X: loss, Y: v, Lo: v - 2, Hi: v + 1})
			}
			p.Series = append(p.Series, s)
		}
		return p
	}
	growth := Series{Name: `longhaul <relay> & "co"`}
	for flows := 1.0; flows <= 1e5; flows *= 10 {
		growth.Points = append(growth.Points, Point{X: flows, Y: 0.4 * math.Pow(flows, 0.7)})
	}
	return map[string]Figure{
		"lines": {Title: "goodput over time", Note: "100 Mb/s, 300 ms; medians of 5 runs with their range", Panels: []Panel{over}},
		"panels": {Title: "goodput against loss", Columns: 2, Panels: []Panel{
			against("100 Mb/s, 20 ms", "haul", "bbr", "cubic"), against("100 Mb/s, 300 ms", "haul", "cubic", "hybla"), against("100 Mb/s, 600 ms", "bbr"),
		}},
		"log": {Title: "CPU against flows", Panels: []Panel{{
			X: Axis{Label: "flows", Scale: Log10}, Y: Axis{Label: "CPU", Unit: "s", Scale: Log10}, Series: []Series{growth},
		}}},
		"empty": {Title: "nothing was measured"},
	}
}

func TestWriteCSV(t *testing.T) {
	for name, f := range figures() {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := f.WriteCSV(&got); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".csv")
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", golden, diff)
			}
		})
	}
}

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "series.csv")
	f := figures()["lines"]
	if err := f.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := f.WriteCSV(&want); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%q, %v", got, err)
	}
	if err := f.WriteFile(filepath.Join(t.TempDir(), "absent", "series.csv")); err == nil {
		t.Error("a file in a directory that is missing")
	}
}
