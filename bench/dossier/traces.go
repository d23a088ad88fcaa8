package main

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"longhaul/bench/kit/congestion"
	"longhaul/lab/link"
	"longhaul/lab/tracemodel"
)

// traceTime is the length of the traces, and of the runs over them.
const traceTime = time.Minute

// model makes a trace of a model.
func model(name string, write func(io.Writer, uint64, int64, time.Duration) error, seed uint64, peakBps int64) *link.Trace {
	var text bytes.Buffer
	err := write(&text, seed, peakBps, traceTime)
	var trace *link.Trace
	if err == nil {
		trace, err = link.ParseTrace(fmt.Sprintf("%s-%dMbit-%d", name, peakBps/1e6, seed), &text)
	}
	if err != nil {
		panic(fmt.Sprintf("the model %s writes a trace that the link refuses: %v", name, err))
	}
	return trace
}

// traces: RFC 9743, sections 6.4 and 7.9.
func (s subject) traces() family {
	f := family{
		name: "traces", title: "Links whose rate and delay change all the time", items: []string{"6.4", "7.9", "7.3"},
		about: rivalsAbout + " Goodput is at least 90 % of the trace's mean. The traces are of the models of `longhaul lab trace`: `lte` by K. Winstein et al. " +
			"(NSDI 2013), and `leo`, which changes its delay and rate every 15 s as low satellites do. The queue has 4 BDP of the mean.",
	}
	for _, seed := range []uint64{1, 2} {
		lte := clean(0, 60*time.Millisecond, 4)
		lte.Trace = model("lte", tracemodel.WriteLTE, seed, tracemodel.LTEPeakBps)
		leo := clean(0, 0, 4)
		leo.Trace = model("leo", tracemodel.WriteLEO, seed, usualRate)
		leo.TraceBack = model("leo", tracemodel.WriteLEO, seed, usualRate)
		for _, p := range []congestion.Path{lte, leo} {
			p.Conditions = p.WithTraces()
			f.cells = append(f.cells, s.rivalsOn(p.Trace.Name(), p, traceTime, 0.9, p.LimitBps()))
		}
	}
	return f
}
