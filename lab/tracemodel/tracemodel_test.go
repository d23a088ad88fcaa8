package tracemodel

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/lab/link"
)

var update = flag.Bool("update", false, "write the golden files")

type model struct {
	name  string
	write func(w io.Writer, seed uint64, peakBps int64, during time.Duration) error
	peak  int64
}

var models = []model{{"lte", WriteLTE, LTEPeakBps}, {"leo", WriteLEO, LEOPeakBps}}

func (m model) trace(t *testing.T, seed uint64, during time.Duration) *link.Trace {
	t.Helper()
	var b bytes.Buffer
	if err := m.write(&b, seed, m.peak, during); err != nil {
		t.Fatal(err)
	}
	trace, err := link.ParseTrace(m.name, &b)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// A seed makes the same trace on every machine and with every version of Go.
func TestGolden(t *testing.T) {
	for _, m := range models {
		var b bytes.Buffer
		if err := m.write(&b, 1, m.peak/10, 16*time.Second); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", m.name+".trace")
		if *update {
			if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", m.name, diff)
		}
	}
}

// Over an hour the models have the means that their descriptions give them, and the
// length that was asked.
func TestMeans(t *testing.T) {
	for _, m := range models {
		low, high := 0.0, 0.0
		switch m.name {
		case "lte": // outages take their share of a motion that is uniform otherwise
			low, high = 0.3, 0.55
		case "leo":
			low, high = 0.66, 0.72
		}
		for seed := range uint64(3) {
			trace := m.trace(t, seed, time.Hour)
			if share := float64(trace.MeanBps()) / float64(m.peak); share < low || share > high || trace.Period() != time.Hour {
				t.Errorf("%s, seed %d: %.3f of the peak, %v long", m.name, seed, share, trace.Period())
			}
			if m.name == "leo" && (trace.MeanDelay() < 21*time.Millisecond || trace.MeanDelay() > 25*time.Millisecond) {
				t.Errorf("mean delay %v", trace.MeanDelay())
			}
		}
		for _, during := range []time.Duration{MinTime, 15 * time.Second, 15100 * time.Millisecond, 30 * time.Second} {
			if got := m.trace(t, 4, during).Period(); got != during {
				t.Errorf("%s: %v long, want %v", m.name, got, during)
			}
		}
	}
}

// Two ways of one link change together, whatever their rates.
func TestLEOWaysCoincide(t *testing.T) {
	m := models[1]
	down := m.trace(t, 7, time.Minute)
	m.peak /= 10
	up := m.trace(t, 7, time.Minute)
	if down.MeanDelay() != up.MeanDelay() || down.MeanDelay() == 0 {
		t.Errorf("delays of %v and %v", down.MeanDelay(), up.MeanDelay())
	}
	for at := time.Duration(0); at < time.Minute; at += 20 * time.Millisecond {
		d, u := down.Bytes(at, at+20*time.Millisecond), up.Bytes(at, at+20*time.Millisecond)
		if (d == 0) != (u == 0) {
			t.Fatalf("at %v one carries %g bytes, the other %g", at, d, u)
		}
	}
}
