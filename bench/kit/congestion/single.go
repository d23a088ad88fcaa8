package congestion

import (
	"context"
	"fmt"

	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/tcpcc"
)

// Result is the outcome of one path with every algorithm.
type Result struct {
	Experiment string       `json:"experiment"`
	Kernel     string       `json:"kernel"`
	Path       Path         `json:"path"`
	Seconds    float64      `json:"seconds"` // of each run
	Warm       bool         `json:"warm"`
	Cases      []CaseResult `json:"cases"`
}

// CaseResult is the outcome of an algorithm: medians over its runs.
type CaseResult struct {
	Name          string  `json:"name"` // of the algorithm
	LimitBps      float64 `json:"limit_bps"`
	GoodputBps    float64 `json:"goodput_bps"`
	GoodputMinBps float64 `json:"goodput_min_bps"`
	GoodputMaxBps float64 `json:"goodput_max_bps"`
	SteadyBps     float64 `json:"steady_bps"`

	SecondsTo50      Value `json:"seconds_to_50_percent"`
	SecondsTo90      Value `json:"seconds_to_90_percent"`
	QueueP50Ms       Value `json:"queue_delay_p50_ms"`
	QueueP95Ms       Value `json:"queue_delay_p95_ms"`
	SentPerDelivered Value `json:"sent_per_delivered"`
	RetransmitRatio  Value `json:"retransmit_ratio"`
	Timeouts         Value `json:"rto_count"`
	WindowLimited    Value `json:"rwnd_limited_share"`
	BufferLimited    Value `json:"sndbuf_limited_share"`
	SenderCPUPerGB   Value `json:"sender_cpu_seconds_per_gb"`
	LabCPUPerGB      Value `json:"lab_cpu_seconds_per_gb"`

	Reference string `json:"reference,omitempty"` // what the report says, in its own units
	Runs      []Run  `json:"runs"`
}

// references are the report's figures of its algorithms on its path.
var references = map[string]string{"cubic": "10 KB/s", "illinois": "15-20 KB/s", "hybla": "60-80 KB/s"}

// Single runs each algorithm alone on a path. Each repeat runs all algorithms in turn,
// so that a change of the machine's speed affects all. A repeat has the same losses for
// all.
func Single(ctx context.Context, p Path, o Options) (Result, error) {
	result := Result{Experiment: "congestion", Kernel: lab.KernelRelease(), Path: p, Seconds: o.Time.Seconds(), Warm: o.Warm}
	algorithms, err := tcpcc.Choose(o.Algorithms)
	if err != nil {
		return result, err
	}
	runs := make([][]Run, len(algorithms))
	for repeat := range o.Repeat {
		for i, algorithm := range algorithms {
			path := p
			path.Seed += uint64(repeat)
			r, err := oneFlow(ctx, path, algorithm, o, repeat*len(algorithms)+i+1, o.Repeat*len(algorithms))
			if err != nil {
				return result, fmt.Errorf("%s: %w", algorithm, err)
			}
			runs[i] = append(runs[i], r)
		}
	}
	for i, algorithm := range algorithms {
		c := summarize(algorithm, p.LimitBps(), runs[i])
		c.Reference = references[algorithm]
		result.Cases = append(result.Cases, c)
	}
	return result, nil
}

func summarize(name string, limitBps float64, runs []Run) CaseResult {
	of := func(figure func(Run) Value) Value {
		return Value(stats.Median(runs, func(r Run) float64 { return float64(figure(r)) }))
	}
	goodput := func(r Run) float64 { return r.GoodputBps }
	c := CaseResult{
		Name: name, LimitBps: limitBps, Runs: runs,
		GoodputBps:       stats.Median(runs, goodput),
		SteadyBps:        stats.Median(runs, func(r Run) float64 { return r.SteadyBps }),
		SecondsTo50:      of(func(r Run) Value { return r.SecondsTo50 }),
		SecondsTo90:      of(func(r Run) Value { return r.SecondsTo90 }),
		QueueP50Ms:       of(func(r Run) Value { return Value(r.QueueP50Ms) }),
		QueueP95Ms:       of(func(r Run) Value { return Value(r.QueueP95Ms) }),
		SentPerDelivered: of(func(r Run) Value { return r.SentPerDelivered }),
		RetransmitRatio:  of(func(r Run) Value { return r.RetransmitRatio }),
		Timeouts:         of(func(r Run) Value { return r.Timeouts }),
		WindowLimited:    of(func(r Run) Value { return r.WindowLimited }),
		BufferLimited:    of(func(r Run) Value { return r.BufferLimited }),
		SenderCPUPerGB:   of(func(r Run) Value { return r.SenderCPUPerGB }),
		LabCPUPerGB:      of(func(r Run) Value { return r.LabCPUPerGB }),
	}
	c.GoodputMinBps, c.GoodputMaxBps = stats.Spread(runs, goodput)
	return c
}
