package main

import (
	"fmt"
	"os"
	"path/filepath"

	"longhaul/internal/words/plot"
)

// growthReply is the reply of the growth measures: large enough that moving
// it is most of the work, small enough that 10 000 of them fit the machine.
const growthReply = 64 << 10

var (
	growthFlows   = []int{100, 1000, 10_000}
	growthThreads = []int{1, 2}
)

// growthMeasures put more and more busy flows on one and two threads.
var growthMeasures = func() (list []measure) {
	for _, threads := range growthThreads {
		for _, flows := range growthFlows {
			list = append(list, measure{
				name:    fmt.Sprintf("%d-flows-%d-threads", flows, threads),
				title:   fmt.Sprintf("%d busy flows, threads: %d", flows, threads),
				threads: threads,
				load:    load{clients: flows, reply: growthReply},
				metrics: []metric{goodput, cpuPerGB, p99, memory},
			})
		}
	}
	return list
}()

// growthSeries are the figures, one file each.
var growthSeries = []struct {
	metric   metric
	file     string
	y        plot.Axis
	perScale float64
}{
	{goodput, "growth-throughput.csv", plot.Axis{Label: "throughput", Unit: "GB/s"}, 1e-9},
	{cpuPerGB, "growth-cpu.csv", plot.Axis{Label: "processor time of the relay", Unit: "s/GB"}, 1},
	{p99, "growth-p99.csv", plot.Axis{Label: "99th percentile of a reply", Unit: "ms", Scale: plot.Log10}, 1e3},
	{memory, "growth-memory.csv", plot.Axis{Label: "resident memory of the relay", Unit: "MB"}, 1e-6},
}

// writeGrowth writes each metric against the flows, a line for each relay and
// number of threads.
func writeGrowth(dir string, r *result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range growthSeries {
		var lines []plot.Series
		for _, relay := range r.Relays {
			for _, threads := range growthThreads {
				s := plot.Series{Name: fmt.Sprintf("%s, %d threads", relay.Name, threads)}
				if threads == 1 {
					s.Name = relay.Name + ", 1 thread"
				}
				for _, m := range r.Measures {
					if m.Threads != threads {
						continue
					}
					mid, least, most := median(m.valuesOf(relay.Name, p.metric.Name))
					s.Points = append(s.Points, plot.Point{X: float64(m.Flows), Y: mid * p.perScale, Lo: least * p.perScale, Hi: most * p.perScale})
				}
				lines = append(lines, s)
			}
		}
		figure := plot.Figure{
			Title: "Growth: requests for 64 KiB on every flow, all the time", Note: r.conditions(),
			Panels: []plot.Panel{{X: plot.Axis{Label: "busy flows", Scale: plot.Log10}, Y: p.y, Series: lines}},
		}
		if err := figure.WriteFile(filepath.Join(dir, p.file)); err != nil {
			return err
		}
	}
	return nil
}
