package congestion

import (
	"context"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/ccnames"
	"longhaul/internal/words/display"
	"longhaul/lab"
	"longhaul/lab/link"
)

// Run is one run of one flow.
type Run struct {
	Seed       uint64  `json:"seed"`
	GoodputBps float64 `json:"goodput_bps"` // over the whole run, connecting included
	SteadyBps  float64 `json:"steady_bps"`  // over its second half

	// From the receiver's first byte until the rate of delivery was 50 and 90 % of
	// the limit, as a mean over a second or two round trips. Delivery is the
	// sender's count: the receiving program gets data behind a gap only after the
	// gap is closed.
	SecondsTo50 Value `json:"seconds_to_50_percent"`
	SecondsTo90 Value `json:"seconds_to_90_percent"`

	QueueP50Ms float64 `json:"queue_delay_p50_ms"` // of the packets through the bottleneck, all of the run
	QueueP95Ms float64 `json:"queue_delay_p95_ms"`

	SentPerDelivered Value  `json:"sent_per_delivered"` // bytes, retransmissions included
	RetransmitRatio  Value  `json:"retransmit_ratio"`   // bytes sent again ÷ bytes sent
	Timeouts         Value  `json:"rto_count"`          // null before Linux 6.7
	SenderCPUPerGB   Value  `json:"sender_cpu_seconds_per_gb"`
	LabCPUPerGB      Value  `json:"lab_cpu_seconds_per_gb"`  // sender, receiver and the emulated link
	WindowLimited    Value  `json:"rwnd_limited_share"`      // of the time with data to send, held up by the receiver's window
	BufferLimited    Value  `json:"sndbuf_limited_share"`    // by the send buffer
	LostByMachine    uint64 `json:"packets_lost_by_machine"` // beside the link's settings: 0, or the machine was too busy

	// Every SeriesSeconds: goodput at the receiver, which waits for gaps to close;
	// delivery by the sender's count; sent data with retransmissions; the
	// bottleneck's queue; and the sender's state.
	GoodputSeriesBps  []float64 `json:"goodput_series_bps,omitempty"`
	DeliverySeriesBps []float64 `json:"delivery_series_bps,omitempty"`
	SentSeriesBps     []float64 `json:"sent_series_bps,omitempty"`
	QueueSeriesMs     []float64 `json:"queue_series_ms,omitempty"`
	RTTSeriesMs       []float64 `json:"srtt_series_ms,omitempty"`
	CwndSeries        []float64 `json:"cwnd_series_packets,omitempty"`
}

// SeriesSeconds is the interval of a run's series.
const SeriesSeconds = 0.1

// network is a lab for flows.
type network struct {
	*lab.Lab
	path     Path
	receiver *userReceiver // if a trial has one
}

// Close takes the lab down.
func (n *network) Close() error {
	n.receiver.close()
	return n.Lab.Close()
}

// build makes the sites, with hosts whose buffers hold the path's window.
func build(p Path, topology lab.Topology) (*network, error) {
	for i := range topology.Hosts {
		// A route's congestion control would replace the sockets' own.
		topology.Hosts[i].TCP.CongestionControl = ""
	}
	built, err := lab.Build(topology)
	if err != nil {
		return nil, err
	}
	n := &network{Lab: built, path: p}
	for _, name := range built.HostNames() {
		// Also the initial size of a socket: the window must not wait for
		// autotuning.
		size := fmt.Sprintf("4096 %d %[1]d", p.bufferBytes())
		for _, sysctl := range []string{"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"} {
			if err := built.Host(name).Sysctl(sysctl, size); err != nil {
				built.Close()
				return nil, err
			}
		}
	}
	return n, nil
}

// warm has another connection of the algorithm use the path, and end.
func (n *network) warm(ctx context.Context, algorithm string, o Options, run, runs int) error {
	during := n.path.warmUp()
	flows, err := runFlows(ctx, []flowSpec{n.flow(algorithm)}, during, o.progressOf("before "+algorithm, run, runs, during))
	if err != nil {
		return err
	}
	return flows[0].err
}

// flow returns a flow from host-a to host-b.
func (n *network) flow(algorithm string) flowSpec {
	s := flowSpec{
		algorithm: algorithm, from: n.Host("host-a"), to: n.Host("host-b"), address: lab.HostB,
		unsentBytes: n.path.unsentBytes(),
	}
	if ccnames.NeedsRate(algorithm) {
		s.brutalBps = int64(n.path.lossless().LimitBps())
	}
	return s
}

// lossless returns the path without its random loss.
func (p Path) lossless() Path {
	p.Loss = link.Loss{}
	return p
}

// sampleQueue records the present delay of the bottleneck's queue, in ms.
func (n *network) sampleQueue(q *curve, at time.Duration) {
	wan := n.Link(lab.WAN)
	rate := wan.Settings(link.AToB).MeanBps()
	if rate == 0 {
		return
	}
	q.at = append(q.at, at)
	q.value = append(q.value, float64(wan.Counters(link.AToB).QueuedBytes)*8e3/float64(rate))
}

// stateSeries returns a curve's values every SeriesSeconds.
func stateSeries(c curve, to time.Duration) []float64 {
	var out []float64
	for at := sampleEvery; at <= to; at += sampleEvery {
		out = append(out, math.Round(100*c.when(at))/100)
	}
	return out
}

// progressOf makes a flows' sampling report progress.
func (o Options) progressOf(name string, run, runs int, total time.Duration) func(time.Duration, []*running) {
	var lastAt time.Duration
	var lastBytes int64
	return func(at time.Duration, all []*running) {
		if o.Report == nil || at-lastAt < 250*time.Millisecond {
			return
		}
		var bytes int64
		for _, r := range all {
			bytes += r.received.Load()
		}
		now := float64(bytes-lastBytes) * 8 / (at - lastAt).Seconds()
		o.Report.Passing(run, runs, "%-26s %s %3.0f s  %10s", fmt.Sprintf("%s %d/%d", name, run, runs),
			display.Bar(min(at.Seconds()/total.Seconds(), 1)), at.Seconds(), display.Rate(now))
		lastAt, lastBytes = at, bytes
	}
}

// heldBack is the share of time above which the buffers may limit the flow instead of
// the algorithm.
const heldBack = 0.05

// oneFlow runs one flow alone in a new lab.
func oneFlow(ctx context.Context, p Path, algorithm string, o Options, run, runs int) (Run, error) {
	t := Trial{Path: p, Time: o.Time, Warm: o.Warm, Groups: []Group{{Algorithm: algorithm, Flows: 1}}}
	ran, err := t.run(ctx, algorithm, o, run, runs)
	if err != nil {
		return Run{}, err
	}
	f := ran.flows[0]
	if f.err != nil {
		return Run{}, f.err
	}
	r := p.figures(f, o.Time)
	r.QueueP50Ms, r.QueueP95Ms = ran.queueP50Ms, ran.queueP95Ms
	r.QueueSeriesMs = stateSeries(ran.queue, o.Time)
	srtt, cwnd := curve{}, curve{}
	for _, s := range f.samples {
		srtt.at, srtt.value = append(srtt.at, s.at), append(srtt.value, milliseconds(s.srtt))
		cwnd.at, cwnd.value = append(cwnd.at, s.at), append(cwnd.value, float64(s.cwnd))
	}
	r.RTTSeriesMs, r.CwndSeries = stateSeries(srtt, o.Time), stateSeries(cwnd, o.Time)
	r.LabCPUPerGB, r.LostByMachine = perGB(ran.cpu, f), ran.lost
	if held := max(r.WindowLimited, r.BufferLimited); held.Some() && held > heldBack {
		o.Report.Notef("%s: the buffers held the sender back for %.0f %% of the time: raise --host-buffers", algorithm, 100*float64(held))
	}
	return r, nil
}

// figures returns the figures of a flow over a run.
func (p Path) figures(f flow, during time.Duration) Run {
	in, acked := curveOf(f, received), curveOf(f, delivered)
	limit := p.LimitBps()
	r := Run{
		Seed:              p.Seed,
		GoodputBps:        in.rateBps(f.start, during),
		SteadyBps:         in.rateBps((f.start+during)/2, during),
		SecondsTo50:       None,
		SecondsTo90:       None,
		SentPerDelivered:  sentPerDelivered(f),
		RetransmitRatio:   None,
		Timeouts:          None,
		WindowLimited:     None,
		BufferLimited:     None,
		SenderCPUPerGB:    perGB(f.cpu, f),
		GoodputSeriesBps:  in.series(f.start, during, sampleEvery),
		DeliverySeriesBps: acked.series(f.start, during, sampleEvery),
		SentSeriesBps:     curveOf(f, sent).series(f.start, during, sampleEvery),
	}
	if f.firstByte > 0 {
		// The sender learns of delivery half a round trip later.
		from := f.firstByte + p.RTT/2
		for share, to := range map[float64]*Value{0.5: &r.SecondsTo50, 0.9: &r.SecondsTo90} {
			if at, reached := acked.reaches(share*limit, from, p.RTT); reached {
				*to = Value((at - from).Seconds())
			}
		}
	}
	if len(f.samples) > 0 {
		last := f.samples[len(f.samples)-1]
		if last.sent > 0 {
			r.RetransmitRatio = Value(float64(last.retransmitted) / float64(last.sent))
		}
		if last.busy > 0 {
			r.WindowLimited = Value(last.windowLimited.Seconds() / last.busy.Seconds())
			r.BufferLimited = Value(last.bufferLimited.Seconds() / last.busy.Seconds())
		}
		if last.timeouts >= 0 {
			r.Timeouts = Value(last.timeouts)
		}
	}
	return r
}

func perGB(cpu time.Duration, f flow) Value {
	if len(f.samples) == 0 || f.samples[len(f.samples)-1].received == 0 {
		return None
	}
	return Value(cpu.Seconds() * 1e9 / float64(f.samples[len(f.samples)-1].received))
}

// processCPU returns this process's CPU time: both ends of the flows and the emulated
// link, with the kernel work charged to them.
func processCPU() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
