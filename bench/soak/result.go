package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"longhaul/internal/words/stats"
)

const (
	progressEvery   = 10 * time.Second
	shownViolations = 20
)

// mixedProgress is how a mixed run stands.
type mixedProgress struct {
	since  time.Duration
	flows  int
	open   int
	bytes  int64
	events map[eventKind]int
}

func (p mixedProgress) String() string {
	events := 0
	for _, n := range p.events {
		events += n
	}
	return fmt.Sprintf("%4.0fs  %d flows, %d open, %.2f GB, %d events", p.since.Seconds(), p.flows, p.open, float64(p.bytes)/1e9, events)
}

func (m *mixedRun) progress(began time.Time, d *director) mixedProgress {
	m.mu.Lock()
	defer m.mu.Unlock()
	return mixedProgress{since: time.Since(began), flows: int(m.next.Load()), open: m.running(), bytes: m.moved.Load(), events: d.count()}
}

func (d *director) count() map[eventKind]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := map[eventKind]int{}
	for k, n := range d.counts {
		counts[k] = n
	}
	return counts
}

// MixedResult is what came of a mixed run.
type MixedResult struct {
	Seed       uint64            `json:"seed"`
	Seconds    float64           `json:"seconds"`
	Flows      int               `json:"flows"`
	Bytes      int64             `json:"bytes"` // read by clients and targets
	Events     map[eventKind]int `json:"events"`
	Strangers  StrangerCounts    `json:"strangers"`
	Endings    []EndingRow       `json:"endings"`
	CutOff     int               `json:"cut_off"`        // clients that relay-a reset and that had not reset
	CutLogged  int               `json:"cut_off_logged"` // of them, those of which its log has a line
	Samples    []Sample          `json:"samples"`        // of relay-a, from a quarter of the time on
	Violations []string          `json:"violations"`
}

// StrangerCounts are the connections of those who want nothing of the relays.
type StrangerCounts struct {
	SYNs    int64 `json:"syns"`    // that nobody ever follows up
	Silent  int64 `json:"silent"`  // connections without a byte
	Garbled int64 `json:"garbled"` // connections with random bytes
}

// Sample is what a relay held at one moment.
type Sample struct {
	Seconds       float64 `json:"seconds"`
	Flows         int64   `json:"flows"`
	ResidentBytes int64   `json:"resident_bytes"`
	Descriptors   int     `json:"descriptors"` // without pipes kept for later
	Goroutines    int     `json:"goroutines"`
}

// What counts as growth, from the median of the first half of the samples to
// that of the second. Descriptors go with the flows of the moment, two each.
const (
	grownResident    = 0.15 // and
	grownBytes       = 4 << 20
	grownDescriptors = 20
	grownGoroutines  = 3

	// A process fills its heap, its caches and its kept pipes at first: samples
	// over less than this say nothing about its memory.
	memoryTime = time.Minute

	// Over less than this the flows of the moment decide how much else it holds.
	growthTime = 10 * time.Second
)

// growth says what of the samples has grown.
func growth(samples []Sample) (grown []string) {
	if len(samples) < 4 {
		return nil
	}
	span := samples[len(samples)-1].Seconds - samples[0].Seconds
	if span < growthTime.Seconds() {
		return nil
	}
	median := func(of []Sample, what func(Sample) float64) float64 {
		values := make([]float64, len(of))
		for i, s := range of {
			values[i] = what(s)
		}
		slices.Sort(values)
		return stats.At(values, 0.5)
	}
	early, late := samples[:len(samples)/2], samples[len(samples)/2:]
	short := span < memoryTime.Seconds()
	for _, c := range []struct {
		name   string
		what   func(Sample) float64
		beyond func(early float64) float64
	}{
		{"its resident memory", func(s Sample) float64 { return float64(s.ResidentBytes) },
			func(e float64) float64 {
				if short {
					return math.Inf(1)
				}
				return max(grownBytes, grownResident*e)
			}},
		{"the number of its descriptors beside those of flows", func(s Sample) float64 { return float64(s.Descriptors) - 2*float64(s.Flows) },
			func(float64) float64 { return grownDescriptors }},
		{"the number of its goroutines", func(s Sample) float64 { return float64(s.Goroutines) },
			func(float64) float64 { return grownGoroutines }},
	} {
		if e, l := median(early, c.what), median(late, c.what); l > e+c.beyond(e) {
			grown = append(grown, fmt.Sprintf("relay-a: %s has grown from %.0f to %.0f", c.name, e, l))
		}
	}
	return grown
}

// EndingRow counts the flows of one ending.
type EndingRow struct {
	Ending     ending `json:"ending"`
	Flows      int    `json:"flows"`
	Whole      int    `json:"whole"` // every byte of both streams arrived, with its end
	Cut        int    `json:"cut"`   // touched by the death of a relay or of the target, and not whole
	Reset      int    `json:"reset"` // reset or refused by a peer as planned
	Bytes      int64  `json:"bytes"` // read by both sides
	Violations int    `json:"violations"`
}

// result judges every flow.
func (m *mixedRun) result(d *director, took time.Duration) MixedResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := MixedResult{
		Seed: m.seed, Seconds: took.Seconds(), Bytes: m.moved.Load(), Events: d.count(), Samples: m.samples,
		Strangers:  StrangerCounts{SYNs: d.strangers.syns.Load(), Silent: d.strangers.silent.Load(), Garbled: d.strangers.garbled.Load()},
		Violations: append([]string{}, m.strange...),
	}
	r.Violations = append(r.Violations, growth(m.samples)...)
	rows := map[ending]*EndingRow{}
	for _, e := range endings {
		rows[e.ending] = &EndingRow{Ending: e.ending}
	}
	flows := m.finished
	for _, f := range m.open {
		flows = append(flows, &f.flow)
	}
	faults := slices.Concat(d.faults, noWay(d.all))
	forUnseen := slices.Concat(faults, lateHandshakes(d.all)) // by the target, as far as is known
	ended := 0                                                // clients that ended without a byte
	for _, f := range flows {
		row := rows[f.plan.ending]
		row.Flows++
		row.Bytes += f.client.read + f.target.read
		met := faults
		if f.target.saw == sawNothing {
			met = forUnseen
		}
		found, cut := f.judge(met)
		if f.plan.ending == noByte && f.client.ended {
			ended++
		}
		if f.mustBeLogged(d.faults) {
			r.CutOff++
			why, ok := m.world.logged(f.from)
			switch {
			case !ok:
				found = append(found, fmt.Sprintf("relay-a cut off the client %v and its log does not say why", f.from))
			case len(found) > 0:
				found = append(found, "relay-a says "+why)
			}
			if ok {
				r.CutLogged++
			}
		}
		switch {
		case len(found) > 0:
			row.Violations += len(found)
			r.Violations = append(r.Violations, fmt.Sprintf("%s\n  %s\n  %s", strings.Join(found, "; "), f.plan, d.met(f)))
		case f.whole():
			row.Whole++
		case cut:
			row.Cut++
		default:
			row.Reset++
		}
	}
	// An integrity check connects to the target through each far relay, and ends
	// without a byte. A process that begins makes one at once, and a reload may
	// begin the interval anew.
	begun := 1 + r.Events[killNearEvent] + r.Events[upgradeNear] + r.Events[reloadEvent]
	checks := len(m.world.far) * (int(took/checkInterval) + begun)
	if m.nothing > ended+checks {
		r.Violations = append(r.Violations, fmt.Sprintf("%d connections ended cleanly without a byte, %d clients and at most %d checks did so", m.nothing, ended, checks))
	}
	for _, e := range endings {
		r.Flows += rows[e.ending].Flows
		r.Endings = append(r.Endings, *rows[e.ending])
	}
	return r
}

// writeSamples prints what relay-a held in the first and in the last sample,
// and the most of each.
func writeSamples(w io.Writer, samples []Sample) {
	if len(samples) == 0 {
		return
	}
	most := Sample{}
	for _, s := range samples {
		most.Flows, most.ResidentBytes = max(most.Flows, s.Flows), max(most.ResidentBytes, s.ResidentBytes)
		most.Descriptors, most.Goroutines = max(most.Descriptors, s.Descriptors), max(most.Goroutines, s.Goroutines)
	}
	first, last := samples[0], samples[len(samples)-1]
	fmt.Fprintf(w, "relay-a from %.0f s to %.0f s (first, most, last): resident %.1f, %.1f, %.1f MB; descriptors %d, %d, %d; goroutines %d, %d, %d; flows %d, %d, %d\n",
		first.Seconds, last.Seconds, float64(first.ResidentBytes)/1e6, float64(most.ResidentBytes)/1e6, float64(last.ResidentBytes)/1e6,
		first.Descriptors, most.Descriptors, last.Descriptors, first.Goroutines, most.Goroutines, last.Goroutines, first.Flows, most.Flows, last.Flows)
}

// write prints the table.
func (r MixedResult) write(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "ending\tflows\twhole\tcut by a death\treset by peer\tMB\tviolations\t\n")
	total := EndingRow{Ending: "all"}
	for _, e := range append(slices.Clone(r.Endings), total) {
		if e.Ending == "all" {
			e = total
		} else {
			total.Flows += e.Flows
			total.Whole += e.Whole
			total.Cut += e.Cut
			total.Reset += e.Reset
			total.Bytes += e.Bytes
			total.Violations += e.Violations
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.1f\t%d\t\n", e.Ending, e.Flows, e.Whole, e.Cut, e.Reset, float64(e.Bytes)/1e6, e.Violations)
	}
	t.Flush()
	var events []string
	for _, k := range eventKinds {
		events = append(events, fmt.Sprintf("%d × %s", r.Events[k.kind], k.kind))
	}
	fmt.Fprintf(w, "%.0f s, seed %d: %s\n", r.Seconds, r.Seed, strings.Join(events, ", "))
	fmt.Fprintf(w, "strangers: %d SYNs, %d silent connections, %d with garbage\n", r.Strangers.SYNs, r.Strangers.Silent, r.Strangers.Garbled)
	fmt.Fprintf(w, "clients cut off by relay-a: %d, with the reason in its log: %d\n", r.CutOff, r.CutLogged)
	writeSamples(w, r.Samples)
	writeViolations(w, r.Violations)
}

func writeViolations(w io.Writer, all []string) {
	for i, v := range all {
		if i == shownViolations {
			fmt.Fprintf(w, "and %d more; --json lists them\n", len(all)-i)
			return
		}
		fmt.Fprintln(w, "violation:", v)
	}
}
