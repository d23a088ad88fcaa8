package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
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
	var events []string
	for _, k := range eventKinds {
		events = append(events, fmt.Sprintf("%s %d", k.kind, p.events[k.kind]))
	}
	return fmt.Sprintf("%4.0fs  %d flows, %d open, %.2f GB; %s", p.since.Seconds(), p.flows, p.open, float64(p.bytes)/1e9, strings.Join(events, ", "))
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

// mixedResult is what came of a mixed run.
type mixedResult struct {
	Seed       uint64            `json:"seed"`
	Seconds    float64           `json:"seconds"`
	Flows      int               `json:"flows"`
	Bytes      int64             `json:"bytes"` // read by clients and targets
	Events     map[eventKind]int `json:"events"`
	Endings    []endingRow       `json:"endings"`
	Violations []string          `json:"violations"`
}

// endingRow counts the flows of one ending.
type endingRow struct {
	Ending     ending `json:"ending"`
	Flows      int    `json:"flows"`
	Whole      int    `json:"whole"` // every byte of both streams arrived, with its end
	Cut        int    `json:"cut"`   // touched by the death of a relay, and not whole
	Reset      int    `json:"reset"` // reset or refused by a peer as planned
	Bytes      int64  `json:"bytes"` // read by both sides
	Violations int    `json:"violations"`
}

// result judges every flow.
func (m *mixedRun) result(d *director, took time.Duration) mixedResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := mixedResult{Seed: m.seed, Seconds: took.Seconds(), Bytes: m.moved.Load(), Events: d.count(), Violations: slices.Clone(m.strange)}
	rows := map[ending]*endingRow{}
	for _, e := range endings {
		rows[e.ending] = &endingRow{Ending: e.ending}
	}
	flows := m.finished
	for _, f := range m.open {
		flows = append(flows, &f.flow)
	}
	ended := 0 // clients that ended without a byte
	for _, f := range flows {
		row := rows[f.plan.ending]
		row.Flows++
		row.Bytes += f.client.read + f.target.read
		found, cut := f.judge(d.faults)
		if f.plan.ending == noByte && f.client.ended {
			ended++
		}
		switch {
		case len(found) > 0:
			row.Violations += len(found)
			r.Violations = append(r.Violations, fmt.Sprintf("%s\n  %s", strings.Join(found, "; "), f.plan))
		case f.whole():
			row.Whole++
		case cut:
			row.Cut++
		default:
			row.Reset++
		}
	}
	if m.nothing > ended {
		r.Violations = append(r.Violations, fmt.Sprintf("%d connections ended cleanly without a byte, and %d clients did so", m.nothing, ended))
	}
	for _, e := range endings {
		r.Flows += rows[e.ending].Flows
		r.Endings = append(r.Endings, *rows[e.ending])
	}
	return r
}

// write prints the table.
func (r mixedResult) write(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "ending\tflows\twhole\tcut by kill\treset by peer\tMB\tviolations\t\n")
	total := endingRow{Ending: "all"}
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
	fmt.Fprintf(w, "%.0f s, %s, seed %d\n", r.Seconds, strings.Join(events, ", "), r.Seed)
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
