package congestion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"longhaul/bench/kit/congestion/receiver"
	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/link"
)

// Trial is one run of flows over a path, as data: trials with equal fields are
// comparable.
type Trial struct {
	Path    Path
	Time    time.Duration
	Groups  []Group
	Changes []Change // of the path, ascending
	Cross   Cross
	Media   Media

	// SecondLink puts a second link with the same settings behind the first. The flows
	// of each group cross the links of its Leg.
	SecondLink bool

	Warm         bool // another connection of the first group's algorithm has used the path just before
	NoTimestamps bool // of TCP (RFC 7323), at both ends
}

// Group is a number of equal flows of a trial.
type Group struct {
	Algorithm string
	Flows     int
	RTTRatio  float64       // of the flows' round trip to the path's; below 1 means 1
	Start     time.Duration // after the run's beginning
	Leg       Leg
	Receiver  receiver.Behaviour // of the only flow of the group; 0 is the kernel's receiver

	// Bytes bounds each flow; 0 means that it sends until the run ends. With Every, the
	// group begins that many bounded flows again each time, until shortly before the
	// run ends.
	Bytes int64
	Every time.Duration

	IdleFrom, IdleTill time.Duration // of the run: the programs send nothing; equal for never
}

// Leg is the part of a path with a second link that a flow crosses.
type Leg uint8

// The legs.
const (
	FirstLink Leg = iota
	SecondLink
	BothLinks
)

// Change changes a path at a time after the run's start.
type Change struct {
	At time.Duration
	To Path
}

// lastBegins is the time before the run's end after which no bounded flow begins.
const lastBegins = 3 * time.Second

// WarmUp returns the duration of the connection before the run.
func (t Trial) WarmUp() time.Duration {
	if !t.Warm {
		return 0
	}
	return t.Path.warmUp()
}

// starts returns the times at which flows of the group begin.
func (g Group) starts(during time.Duration) []time.Duration {
	starts := []time.Duration{g.Start}
	if g.Every <= 0 {
		return starts
	}
	for at := g.Start + g.Every; at <= during-lastBegins; at += g.Every {
		starts = append(starts, at)
	}
	return starts
}

// ran is a trial's run.
type ran struct {
	flows  []flow // in the order of the groups
	groups []int  // group of each flow
	queue  curve  // delay in the first bottleneck's queue, sampled every SeriesSeconds, ms
	wan    link.Counters
	// Of the packets through the first bottleneck; after a connection before, of samples.
	queueP50Ms, queueP95Ms float64
	media                  MediaOutcome
	cpu                    time.Duration // of both ends and the emulated links
	lost                   uint64        // beside the links' settings
}

// build makes the trial's hosts and links.
func (t Trial) build() (*network, error) {
	window := t.Path // for the buffers
	for _, change := range t.Changes {
		window.RTT = max(window.RTT, change.To.RTT)
	}
	topology := lab.TwoSites(t.Path.Conditions)
	ratio := 1.0
	for _, g := range t.Groups {
		if g.RTTRatio > 1 && ratio > 1 && g.RTTRatio != ratio {
			return nil, fmt.Errorf("groups with %g and %g times the round trip: a trial has one far site", ratio, g.RTTRatio)
		}
		ratio = max(ratio, g.RTTRatio)
	}
	if ratio > 1 {
		topology = withFarHost(topology, t.Path.RTT, ratio)
		window.RTT = time.Duration(ratio * float64(window.RTT))
	}
	if t.SecondLink {
		topology = withSecondLink(topology)
		window.RTT *= 2
	}
	n, err := build(window, topology)
	if err != nil {
		return nil, err
	}
	if t.NoTimestamps {
		for _, name := range n.HostNames() {
			if err := n.Host(name).Sysctl("net.ipv4.tcp_timestamps", "0"); err != nil {
				n.Close()
				return nil, err
			}
		}
	}
	return n, nil
}

// specs returns the flows, and the group of each.
func (t Trial) specs(n *network) (specs []flowSpec, groups []int, err error) {
	for i, g := range t.Groups {
		for _, start := range g.starts(t.Time) {
			for range g.Flows {
				s := n.flow(g.Algorithm)
				s.brutalBps /= int64(g.Flows) // they share one rate
				s.start, s.bytes = start, g.Bytes
				s.idleFrom, s.idleTill = g.IdleFrom, g.IdleTill
				if g.RTTRatio > 1 {
					s.from = n.Host(farHost)
				}
				if g.Leg == SecondLink {
					s.from = n.Host("host-b")
				}
				if g.Leg != FirstLink {
					s.to, s.address = n.Host(beyondHost), beyondAddress
				}
				if g.Receiver != 0 {
					if n.receiver != nil {
						return nil, nil, errors.New("a trial has one flow to a receiver in user space")
					}
					if n.receiver, err = n.startReceiver(g.Receiver); err != nil {
						return nil, nil, err
					}
					s.remote, s.arrived = receiverAddress, n.receiver.received.Load
				}
				specs, groups = append(specs, s), append(groups, i)
			}
		}
	}
	return specs, groups, nil
}

// run makes one run of the trial. name, run and runs are for its progress.
func (t Trial) run(ctx context.Context, name string, o Options, run, runs int) (r ran, err error) {
	n, err := t.build()
	if err != nil {
		return ran{}, err
	}
	defer n.Close()

	if t.Warm {
		if err := n.warm(ctx, t.Groups[0].Algorithm, o, run, runs); err != nil {
			return ran{}, err
		}
	}
	specs, groups, err := t.specs(n)
	if err != nil {
		return ran{}, err
	}
	progress := o.progressOf(name, run, runs, t.Time)

	// The schedule and the other traffic begin with the flows: their first sample is at
	// 100 ms.
	besideCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	from, to := n.Host("host-a"), n.Host("host-b")
	scheduled, crossed, watched := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { scheduled <- n.Link(lab.WAN).Follow(besideCtx, begin, t.schedule()) }()
	go func() { crossed <- t.Cross.send(besideCtx, begin, from, to, lab.HostB) }()
	go func() {
		var err error
		r.media, err = t.Media.run(besideCtx, begin, from, to, lab.HostB)
		watched <- err
	}()

	var queue curve
	cpuBefore := processCPU()
	flows, err := runFlows(ctx, specs, t.Time, func(at time.Duration, all []*running) {
		n.sampleQueue(&queue, at)
		progress(at, all)
	})
	cpu := processCPU() - cpuBefore
	if err != nil {
		cancel()
	}
	// All changes are due at the end of the flows; on a busy machine the last may still
	// be running. A trial of bounded flows may end before its changes.
	if time.Since(begin) < t.Time {
		cancel()
	}
	scheduleErr := <-scheduled
	cancel()
	besideErr := errors.Join(<-crossed, <-watched)
	if errors.Is(scheduleErr, context.Canceled) && ctx.Err() == nil {
		scheduleErr = nil
	}
	if err == nil { // otherwise cancel ended the others
		err = errors.Join(scheduleErr, besideErr)
	}
	if err != nil {
		return ran{}, err
	}
	r.flows, r.groups, r.queue, r.cpu = flows, groups, queue, cpu
	r.wan = n.Link(lab.WAN).Counters(link.AToB)
	r.queueP50Ms, r.queueP95Ms = milliseconds(r.wan.QueueDelayP50), milliseconds(r.wan.QueueDelayP95)
	if t.Warm { // the link has also counted the connection before
		each := func(ms float64) float64 { return ms }
		r.queueP50Ms, r.queueP95Ms = stats.Median(queue.value, each), stats.Quantile(queue.value, 0.95, each)
	}
	if r.lost = n.LostByMachine(); r.lost > 0 {
		o.Report.Notef("%s: %d packets were lost beside the link's settings: the machine is too busy for this rate", name, r.lost)
	}
	return r, nil
}

// schedule returns the schedule of the link.
func (t Trial) schedule() []link.Change {
	var schedule []link.Change
	for _, change := range t.Changes {
		ab, ba := change.To.Directions()
		schedule = append(schedule, link.Change{At: change.At, AB: &ab, BA: &ba})
	}
	return schedule
}
