package congestion

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"longhaul/internal/words/stats"
)

// Outcome is the outcome of a trial. Steady figures are of the second half of the run.
type Outcome struct {
	Groups        []GroupOutcome `json:"groups"`
	QueueP50Ms    float64        `json:"queue_delay_p50_ms"` // of the packets through the first bottleneck
	QueueP95Ms    float64        `json:"queue_delay_p95_ms"`
	Marked        float64        `json:"marked_share"` // of the packets that arrived at the first bottleneck, with CE
	Media         MediaOutcome   `json:"media"`
	LabCPUPerGB   Value          `json:"lab_cpu_seconds_per_gb"` // both ends and the emulated links
	LostByMachine uint64         `json:"packets_lost_by_machine"`
	Broken        string         `json:"broken,omitempty"` // why a connection ended early

	QueueSeriesMs []float64 `json:"queue_series_ms,omitempty"` // of the first bottleneck, every OutcomeSeconds
}

// GroupOutcome is the outcome of a group of flows.
type GroupOutcome struct {
	GoodputBps   []float64 `json:"goodput_bps"`   // of each flow, from its start to the run's end
	SteadyBps    []float64 `json:"steady_bps"`    // of each flow
	DeliveredBps float64   `json:"delivered_bps"` // steady, all flows, by the sender's count

	// Sent ÷ delivered × (1 - random loss): of the whole run's worst flow, and of all
	// flows over the second half.
	WorstExcess  Value `json:"sent_per_delivered_worst"`
	SteadyExcess Value `json:"sent_per_delivered_steady"`

	// Seconds of bounded flows, from connect to the receiver's last byte; null if the
	// flow did not end.
	Seconds []Value `json:"seconds,omitempty"`

	SenderCPUPerGB Value `json:"sender_cpu_seconds_per_gb"`

	// All flows together, every OutcomeSeconds.
	SentSeriesBps      []float64 `json:"sent_series_bps,omitempty"`
	DeliveredSeriesBps []float64 `json:"delivered_series_bps,omitempty"`
}

// OutcomeSeconds is the interval of an outcome's series.
const OutcomeSeconds = 1

// Run runs a trial. Options choose neither its algorithms nor its time.
func (t Trial) Run(ctx context.Context, name string, o Options) (Outcome, error) {
	r, err := t.run(ctx, name, o, 1, 1)
	if err != nil {
		return Outcome{}, err
	}
	return t.outcome(r), nil
}

// RunFault runs an algorithm's flow through a fault.
func RunFault(ctx context.Context, p Path, fault, algorithm string, o Options) (FaultResult, error) {
	i := slices.IndexFunc(Faults(), func(f Fault) bool { return f.Name == fault })
	if i < 0 {
		return FaultResult{}, fmt.Errorf("no fault %q", fault)
	}
	return Faults()[i].run(ctx, usualShape, p, algorithm, o, 1, 1)
}

// FaultTime returns the duration of a run with a fault.
func FaultTime(f Fault) time.Duration { return usualShape.time(f) }

func (t Trial) outcome(r ran) Outcome {
	out := Outcome{
		QueueP50Ms: r.queueP50Ms, QueueP95Ms: r.queueP95Ms,
		Media: r.media, LabCPUPerGB: None, LostByMachine: r.lost,
	}
	if r.wan.PacketsIn > 0 {
		out.Marked = float64(r.wan.Marked) / float64(r.wan.PacketsIn)
	}
	for at := OutcomeSeconds * time.Second; at <= t.Time; at += OutcomeSeconds * time.Second {
		out.QueueSeriesMs = append(out.QueueSeriesMs, math.Round(r.queue.when(at)))
	}
	var received float64
	loss := lossOf(t.Path, t.Changes)
	for i, g := range t.Groups {
		var flows []flow
		for k, f := range r.flows {
			if r.groups[k] == i {
				flows = append(flows, f)
			}
		}
		out.Groups = append(out.Groups, t.groupOutcome(g, flows, loss))
		for _, f := range flows {
			if f.err != nil && out.Broken == "" {
				out.Broken = f.algorithm + ": " + f.err.Error()
			}
			if len(f.samples) > 0 {
				received += float64(f.samples[len(f.samples)-1].received)
			}
		}
	}
	if received > 0 {
		out.LabCPUPerGB = Value(r.cpu.Seconds() * 1e9 / received)
	}
	return out
}

func (t Trial) groupOutcome(g Group, flows []flow, loss pathLoss) GroupOutcome {
	out := GroupOutcome{WorstExcess: Value(math.Inf(-1)), SteadyExcess: None, SenderCPUPerGB: None}
	half := t.Time / 2
	series := func(count func(sample) int64) []float64 {
		var sum []float64
		for _, f := range flows {
			for i, v := range curveOf(f, count).series(0, t.Time, OutcomeSeconds*time.Second) {
				if i == len(sum) {
					sum = append(sum, 0)
				}
				sum[i] += math.Round(v)
			}
		}
		return sum
	}
	for _, f := range flows {
		in := curveOf(f, received)
		if g.Bytes > 0 {
			took := None
			if f.finished > 0 {
				took = Value((f.finished - f.start).Seconds())
			}
			out.Seconds = append(out.Seconds, took)
		} else {
			out.GoodputBps = append(out.GoodputBps, in.rateBps(f.start, t.Time))
			out.SteadyBps = append(out.SteadyBps, in.rateBps(max(half, f.start), t.Time))
			out.DeliveredBps += curveOf(f, delivered).rateBps(max(half, f.start), t.Time)
		}
		out.WorstExcess = max(out.WorstExcess, f.wholeExcess(loss))
	}
	if g.Bytes == 0 {
		_, steady := sharedExcess(flows, loss, half)
		if !math.IsNaN(steady) {
			out.SteadyExcess = Value(steady)
		}
		out.SentSeriesBps, out.DeliveredSeriesBps = series(sent), series(delivered)
	}
	out.SenderCPUPerGB = Value(stats.Median(flows, func(f flow) float64 { return float64(perGB(f.cpu, f)) }))
	return out
}
