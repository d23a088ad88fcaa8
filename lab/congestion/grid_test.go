package congestion

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/lab/progress"
	"longhaul/test/nettest"
)

func smallGrid() Grid {
	return Grid{RatesBps: []int64{10e6}, RTTs: []time.Duration{10 * ms, 20 * ms}, Losses: []float64{0, 0.1}, BuffersBDP: []float64{1}}
}

func TestGridPaths(t *testing.T) {
	if got := len(FullGrid().Paths(LossyLFN())); got != 3*5*8*4 {
		t.Errorf("the full grid has %d paths", got)
	}
	if err := FullGrid().Check(LossyLFN()); err != nil {
		t.Error(err)
	}
	if err := (Grid{}).Check(LossyLFN()); err == nil || !strings.Contains(err.Error(), "the grid is empty") {
		t.Errorf("an empty grid: %v", err)
	}
	g := smallGrid()
	g.Losses = []float64{2}
	if err := g.Check(LossyLFN()); err == nil {
		t.Error("a loss of 200 % is accepted")
	}
}

// An interrupted grid goes on where it was: nothing is run twice, and what was
// kept is what is reported.
func TestGridResumes(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	dir := filepath.Join(t.TempDir(), "grid")
	store, err := NewStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := func() int {
		found, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	why := errors.New("enough for today")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	o := options(500*ms, "reno")
	o.Report = func(r progress.Report) {
		if r.Done == 3 {
			cancel(why)
		}
	}
	g := smallGrid()
	if _, err := RunGrid(ctx, g, quick(), o, store); !errors.Is(err, why) {
		t.Fatalf("interrupted: %v", err)
	}
	if files() != 2 {
		t.Fatalf("%d results were kept, want 2", files())
	}
	kept, err := os.ReadFile(filepath.Join(dir, "10Mbit-10ms-0pct-before-1bdp-reno-seed1.json"))
	if err != nil {
		t.Fatal(err)
	}

	var notes []string
	ran := map[int]bool{}
	o.Report = func(r progress.Report) {
		if r.Kind == progress.Note {
			notes = append(notes, r.Text)
		} else {
			ran[r.Done] = true
		}
	}
	result, err := RunGrid(t.Context(), g, quick(), o, store)
	if err != nil {
		t.Fatal(err)
	}
	if len(ran) != 2 || files() != 4 || len(notes) == 0 {
		t.Errorf("%d runs were made and %d are kept, want 2 and 4", len(ran), files())
	}
	again, err := os.ReadFile(filepath.Join(dir, "10Mbit-10ms-0pct-before-1bdp-reno-seed1.json"))
	if err != nil || !bytes.Equal(kept, again) {
		t.Error("a result that was there has been made anew")
	}
	cells := result.Cases[0].Cells
	if len(cells) != 4 {
		t.Errorf("cells %+v", cells)
	}

	// The same runs under other conditions are others.
	o.Time = time.Second
	if _, err := RunGrid(t.Context(), g, quick(), o, store); err == nil || !strings.Contains(err.Error(), "was measured with seconds 0.5, not 1") {
		t.Errorf("another time: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "10Mbit-10ms-0pct-before-1bdp-reno-seed1.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := RunGrid(t.Context(), g, quick(), o, store); err == nil || !strings.Contains(err.Error(), "or remove it") {
		t.Errorf("a broken file: %v", err)
	}
}

// gridResult is one as the full grid's would be, with made-up figures.
func gridResult() GridResult {
	g := FullGrid()
	g.RatesBps, g.BuffersBDP, g.RTTs = []int64{1000e6}, []float64{0.5}, g.RTTs[:2]
	base := LossyLFN()
	r := GridResult{base: base, grid: g, Conditions: base.conditions(Options{Time: time.Minute})}
	for i, name := range []string{"cubic", "reno", "hybla", "illinois", "bbr", "brutal", "haul"} {
		c := GridCase{Name: name}
		for j, p := range g.Paths(base) {
			cell := Cell{RateBps: p.RateBps, RTTMs: milliseconds(p.RTT), Loss: p.Loss.Probability, QueueBDP: p.QueueBDP, WholeShare: None}
			if i+j != 9 {
				share := 1 / (1 + float64(j%8*(7-i))/5)
				cell.CaseResult = summarize(name, p.LimitBps(), []Run{
					{GoodputBps: share * p.LimitBps(), SteadyBps: share * p.LimitBps(), QueueP95Ms: 299.6},
					{GoodputBps: 0.9 * share * p.LimitBps(), SteadyBps: share * p.LimitBps(), QueueP95Ms: 30},
				})
				cell.WholeShare, cell.SteadyShare = Value(share), Value(share)
			}
			c.Cells = append(c.Cells, cell)
		}
		r.Cases = append(r.Cases, c)
	}
	return r
}

func TestGridTableAndPlot(t *testing.T) {
	r := gridResult()
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "grid.table", b.String())
	f := r.Plot()
	if len(f.Panels) != 2 || len(f.Panels[0].Series) != 7 || len(f.Panels[0].Series[0].Points) != 8 {
		t.Errorf("%d panels", len(f.Panels))
	}
	var table bytes.Buffer
	if err := f.WriteCSV(&table); err != nil {
		t.Fatal(err)
	}
	r.grid.Losses = r.grid.Losses[:1]
	for i := range r.Cases {
		r.Cases[i].Cells = []Cell{r.Cases[i].Cells[0], r.Cases[i].Cells[8]}
	}
	f = r.Plot()
	if len(f.Panels) != 1 || f.Panels[0].X.Label != "RTT" || len(f.Panels[0].Series[0].Points) != 2 {
		t.Errorf("with one loss only: %+v", f.Panels)
	}
}
