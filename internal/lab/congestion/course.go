package congestion

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"longhaul/internal/lab"
	"longhaul/internal/lab/hosts"
	"longhaul/internal/lab/link"
)

// course is the schedule of a run of one flow: its path, the path's changes, and cross
// traffic.
type course struct {
	path    Path
	changes []pathChange // ascending
	lasts   time.Duration

	cross              crossTraffic
	idleFrom, idleTill time.Duration // while the flow's program has no data
}

// pathChange changes a path at a time after the run's start.
type pathChange struct {
	at time.Duration
	to Path
}

// crossTraffic is a UDP stream of a constant rate beside the flow, without congestion
// control.
type crossTraffic struct {
	rateBps     int64 // of whole IP packets; 0 means none
	begins, end time.Duration
}

// run makes one run of the course. queue is the delay in the bottleneck's
// queue, sampled every SeriesSeconds, in ms.
func (c course) run(ctx context.Context, name, algorithm string, o Options, run, runs int) (f flow, queue curve, err error) {
	window := c.path // for the buffers
	for _, change := range c.changes {
		window.RTT = max(window.RTT, change.to.RTT)
	}
	n, err := build(window, lab.TwoSites(c.path.Conditions))
	if err != nil {
		return flow{}, curve{}, err
	}
	defer n.Close()

	// The schedule and the cross traffic begin with the flow: its first sample
	// is at 100 ms.
	besideCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	scheduled := make(chan error, 1)
	go func() { scheduled <- n.Link(lab.WAN).Follow(besideCtx, begin, c.schedule()) }()
	crossed := make(chan error, 1)
	go func() {
		crossed <- c.cross.send(besideCtx, begin, n.Host("host-a"), n.Host("host-b"), lab.HostB)
	}()

	spec := n.flow(algorithm)
	spec.idleFrom, spec.idleTill = c.idleFrom, c.idleTill
	progress := o.progressOf(name, run, runs, c.lasts)
	flows, err := runFlows(ctx, []flowSpec{spec}, c.lasts, func(at time.Duration, all []*running) {
		n.sampleQueue(&queue, at)
		progress(at, all)
	})
	if err != nil {
		cancel()
	}
	// All changes are due at the end of the flow; on a busy machine the last may
	// still be running.
	scheduleErr := <-scheduled
	cancel()
	crossErr := <-crossed
	if err == nil { // otherwise cancel ended the others
		err = errors.Join(scheduleErr, crossErr)
	}
	if err != nil {
		return flow{}, curve{}, err
	}
	if lost := n.LostByMachine(); lost > 0 {
		o.Report.Notef("%s: %d packets were lost beside the link's settings: the machine is too busy for this rate", name, lost)
	}
	return flows[0], queue, nil
}

// schedule returns the schedule of the link.
func (c course) schedule() []link.Change {
	var schedule []link.Change
	for _, change := range c.changes {
		ab, ba := change.to.Directions()
		schedule = append(schedule, link.Change{At: change.at, AB: &ab, BA: &ba})
	}
	return schedule
}

// crossPacketBytes is the size of an IP packet of cross traffic.
const crossPacketBytes = 1500

const udpOverIPv4Bytes = 28 // both headers

// send sends until the traffic's end or the context's.
func (c crossTraffic) send(ctx context.Context, begin time.Time, from, to *hosts.Host, address netip.Addr) error {
	if c.rateBps == 0 {
		return nil
	}
	var sink, source *net.UDPConn
	err := to.Do(func() (err error) {
		// Nobody reads: the kernel drops packets beyond the buffer.
		sink, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
		return err
	})
	if err != nil {
		return fmt.Errorf("receive cross traffic: %w", err)
	}
	defer sink.Close()
	err = from.Do(func() (err error) {
		source, err = net.DialUDP("udp", nil, sink.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		return fmt.Errorf("send cross traffic: %w", err)
	}
	defer source.Close()
	payload := make([]byte, crossPacketBytes-udpOverIPv4Bytes)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for packets := int64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		at := time.Since(begin)
		for due := c.packetsBy(at); packets < due; packets++ {
			if _, err := source.Write(payload); err != nil {
				return fmt.Errorf("send cross traffic: %w", err)
			}
		}
		if at >= c.end {
			return nil
		}
	}
}

// packetsBy returns the number of packets due until a time.
func (c crossTraffic) packetsBy(at time.Duration) int64 {
	sending := min(at, c.end) - c.begins
	return int64(max(sending.Seconds(), 0) * float64(c.rateBps) / 8 / crossPacketBytes)
}
