package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab"
)

// What case paused-readers does.
const (
	pausedRTT     = 20 * time.Millisecond
	pausedRateBps = 1e9
	// pausedBuffer is what a lane's reader takes before its window is closed: less than what
	// a flow keeps for its other end.
	pausedBuffer = "128KiB"
	// pausedWait is how long the case waits for flows once the path and all readers are back.
	pausedWait = time.Minute
	// A reader of the first half is back so long before the path, or so long after a fault
	// that leaves a path; those of the second half are so long behind both.
	pausedEarly = time.Second
	pausedLate  = 10 * time.Second
)

// movesWithin is how long after path and reader are back a flow has to move.
func movesWithin(rtt time.Duration) time.Duration { return max(2*time.Second, 8*rtt) }

// pausedFault is what the WAN does while readers pause.
type pausedFault struct {
	name   string
	outage time.Duration // 0: the path is back at once
	nat    bool          // a NAT is between the relays
	strike func(context.Context, *world) error
}

func pausedOutage(lasts time.Duration) pausedFault {
	return pausedFault{name: fmt.Sprintf("outage of %.0f s", lasts.Seconds()), outage: lasts, strike: func(_ context.Context, w *world) error { return w.cut(true) }}
}

func pausedFaults(o Options) (all []pausedFault) {
	for _, lasts := range pick(o, []time.Duration{100 * time.Second, 72 * time.Second, 32 * time.Second}, []time.Duration{32 * time.Second}) {
		all = append(all, pausedOutage(lasts))
	}
	all = append(all, pausedFault{name: "firewall forgets", strike: func(_ context.Context, w *world) error { return w.forgetConnections() }})
	if reason := missingNAT(); reason != "" {
		o.Report.Notef("paused-readers, NAT rebinds: not run: %s", reason)
		return all
	}
	return append(all, pausedFault{name: "NAT rebinds", nat: true, strike: func(ctx context.Context, w *world) error { return w.rebind(ctx) }})
}

// pausedReaders has the WAN fail under flows whose readers pause, so that their windows are
// closed. All faults happen at the same time, each to a pair of its own.
func pausedReaders(ctx context.Context, o Options, way string, run int, note func(measured)) error {
	var trials []*pausedTrial
	for _, fault := range pausedFaults(o) {
		for _, lanes := range []int{1, 4} {
			trials = append(trials, &pausedTrial{fault: fault, lanes: lanes, flows: pick(o, 40, 12)})
		}
	}
	// One pair after the other fills its flows.
	err := atOnce(len(trials), func(i int, filling *sync.Mutex) error { return trials[i].run(ctx, o, way, run, filling) })
	if err != nil {
		return err
	}
	var t tally
	for _, trial := range trials {
		trial.figures(note)
		t.add(trial.outcome)
	}
	t.figures(note)
	return nil
}

// pausedTrial is one fault under flows with one number of lanes.
type pausedTrial struct {
	fault        pausedFault
	lanes, flows int

	slow    [2]slowest // of flows up, and down
	outcome tally
}

// slowest are the flows of a direction.
type slowest struct {
	flows, late int
	longest     time.Duration
	example     string
}

// sender is the side of a flow that sends all it can.
func (f *flow) sender() *side {
	if _, up, _ := f.reader(); up {
		return &f.client
	}
	return &f.target
}

// reader is the side of a flow that pauses, and the context that ends when it is back.
func (f *flow) reader() (s *side, up bool, back context.Context) {
	if f.manners.target.reads != nil {
		return &f.target, true, f.manners.target.reads
	}
	return &f.client, false, f.manners.client.reads
}

func (p *pausedTrial) run(ctx context.Context, o Options, way string, run int, filling *sync.Mutex) error {
	early, endEarly := context.WithCancel(context.WithoutCancel(ctx))
	late, endLate := context.WithCancel(context.WithoutCancel(ctx))
	unpause := func() { endEarly(); endLate() }
	defer unpause()
	defer context.AfterFunc(ctx, unpause)()
	var begun atomic.Int64
	c := newCrowd(crowdOptions{flows: p.flows, once: true, opening: time.Second / 2, minLife: time.Hour, maxLife: time.Hour, seed: o.seed(run),
		plan: func(*rand.Rand) manners { return pausedPlan(begun.Add(1), early, late) }})
	filling.Lock()
	w, err := p.fill(ctx, o, way, c)
	filling.Unlock()
	if err != nil {
		return err
	}
	defer w.close()
	defer unpause() // before the world waits for the flows
	taken, err := c.taken()
	if err != nil {
		return err
	}
	earlyAt, lateAt, err := p.strike(ctx, w, endEarly, endLate)
	if err != nil {
		return err
	}
	if err := c.awaitEnds(ctx, lateAt.Add(pausedWait)); err != nil {
		return err
	}
	p.judge(c, taken, func(back context.Context) time.Time {
		if back == early {
			return earlyAt
		}
		return lateAt
	})
	c.finishWithin(0)
	p.outcome = c.tally()
	return nil
}

// pausedPlan has one side of the n-th flow send as much as it can, to a reader that pauses.
func pausedPlan(n int64, early, late context.Context) (m manners) {
	reads := [...]context.Context{early, late}[n/2%2]
	sender := manner{pace: pace{every: time.Millisecond, bytes: 32 << 10}}
	reader := manner{pace: pace{every: time.Hour, bytes: 100}, reads: reads, follows: true}
	if n%2 == 0 {
		return manners{client: sender, target: reader}
	}
	return manners{client: reader, target: sender}
}

// fill builds a pair with flows whose senders can send no more.
func (p *pausedTrial) fill(ctx context.Context, o Options, way string, c *crowd) (*world, error) {
	w, err := buildWorld(ctx, o, lab.TwoSites(conditions(pausedRTT, pausedRateBps)), way, c.serve, settings{
		pair: fmt.Sprintf(", lanes: %d", p.lanes), both: ", wan: {receive_buffer: " + pausedBuffer + "}"})
	if err != nil {
		return nil, err
	}
	if p.fault.nat {
		err = w.translate(ctx, natAddresses[0])
	}
	if err == nil {
		err = w.ports(32768, 45000)
	}
	if err == nil {
		err = c.gather(ctx, w)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	err = c.awaitFull(ctx)
	if err != nil {
		w.close()
	}
	c.end() // each sender has a write under way, and ends its stream behind it
	return w, err
}

// strike has the WAN fail. It returns when the readers of both halves and the path are back.
func (p *pausedTrial) strike(ctx context.Context, w *world, endEarly, endLate func()) (earlyAt, lateAt time.Time, err error) {
	up, down, err := w.closedWindows()
	if err != nil {
		return earlyAt, lateAt, err
	}
	w.Report.Linef("  %s: %s, lanes %d; closed windows: %d up, %d down", time.Now().Format(clock), p.fault.name, p.lanes, up, down)
	if err := p.fault.strike(ctx, w); err != nil {
		return earlyAt, lateAt, err
	}
	if p.fault.outage > 0 {
		if err := pause(ctx, p.fault.outage-pausedEarly); err != nil {
			return earlyAt, lateAt, err
		}
		endEarly()
		interrupted := pause(ctx, pausedEarly)
		if err := errors.Join(w.cut(false), interrupted); err != nil {
			return earlyAt, lateAt, err
		}
		earlyAt = time.Now()
		err = pause(ctx, pausedEarly)
	} else {
		if err := pause(ctx, pausedEarly); err != nil {
			return earlyAt, lateAt, err
		}
		endEarly()
		earlyAt = time.Now()
		err = pause(ctx, pausedLate)
	}
	endLate()
	return earlyAt, time.Now(), err
}

// taken is how many bytes of each flow a relay has taken from the sender. For what comes
// behind them, the sender's own kernel answers: it repeats what a full relay has dropped,
// with pauses that double.
func (c *crowd) taken() (map[*flow]int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := map[*flow]int64{}
	for _, f := range c.flows {
		s := f.sender()
		acked, err := s.acked()
		if err != nil {
			return nil, fmt.Errorf("flow of %s: %w", f.local, err)
		}
		if taken[f] = acked; s == &f.client {
			taken[f] -= headerBytes
		}
	}
	return taken, nil
}

// acked is how many bytes of the side the other end of its connection has acknowledged.
func (s *side) acked() (n int64, err error) {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn == nil {
		return 0, errors.New("it has not reached its target")
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
			n = int64(info.Bytes_acked)
		}
	})
	return n, errors.Join(err, controlErr)
}

// judge says how long each flow stood still after its reader and the path were back, with
// bytes in the hands of the relays.
func (p *pausedTrial) judge(c *crowd, taken map[*flow]int64, backAt func(context.Context) time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.flows {
		reader, up, back := f.reader()
		s := &p.slow[1]
		if up {
			s = &p.slow[0]
		}
		silence := reader.silence(backAt(back), taken[f])
		s.flows++
		s.longest = max(s.longest, silence)
		if silence > movesWithin(pausedRTT) {
			if s.late++; s.late == 1 {
				s.example = fmt.Sprintf("flow of %s stands still for %.1f s, its reader is back since %s", f.local, silence.Seconds(), backAt(back).Format(clock))
			}
		}
	}
}

func (p *pausedTrial) figures(note func(measured)) {
	for i, direction := range []string{"up", "down"} {
		s := p.slow[i]
		prefix := fmt.Sprintf("%s, lanes %d %s: ", p.fault.name, p.lanes, direction)
		note(measured{name: prefix + "slowest", unit: "s", value: s.longest.Seconds()})
		note(measured{name: fmt.Sprintf("%sof %d late", prefix, s.flows), value: float64(s.late), bound: atMost(0), exact: true, example: s.example})
	}
}

// awaitFull waits until no side of the crowd has sent a byte for a second.
func (c *crowd) awaitFull(ctx context.Context) error {
	deadline := time.Now().Add(patience)
	for before := int64(-1); ; {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		now := c.sent()
		if now == before {
			return nil
		}
		if before = now; time.Now().After(deadline) {
			return c.w.errorf("after %v senders can still send to readers that pause", patience)
		}
	}
}

// closedWindows counts the connections of the path whose sender may send nothing, up and down.
func (w *world) closedWindows() (up, down int, err error) {
	count := func(host string, ofPath func(*tcpinfo.Connection) bool) (n int, err error) {
		err = w.Host(host).Do(func() error {
			diag, err := tcpinfo.OpenDiag()
			if err != nil {
				return err
			}
			defer diag.Close()
			return diag.Each(tcpinfo.States(tcpinfo.Established), func(c *tcpinfo.Connection) {
				if ofPath(c) && c.Info.SndWnd == 0 {
					n++
				}
			})
		})
		return n, err
	}
	up, err = count("relay-a", func(c *tcpinfo.Connection) bool { return c.Remote.Port() == port })
	if err == nil {
		down, err = count("relay-b", func(c *tcpinfo.Connection) bool { return c.Local.Port() == port })
	}
	return up, down, err
}

// sent counts what the kernels of all sides have taken.
func (c *crowd) sent() (sum int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.flows {
		sum += f.client.position() + f.target.position()
	}
	return sum
}

// awaitEnds waits until both sides of all flows have read everything, or a moment.
func (c *crowd) awaitEnds(ctx context.Context, deadline time.Time) error {
	for time.Now().Before(deadline) {
		if c.reading() == 0 {
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// reading counts the flows that have a side which has not read everything.
func (c *crowd) reading() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.flows {
		if f.client.reads() || f.target.reads() {
			n++
		}
	}
	return n
}

func (s *side) reads() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readTo.IsZero()
}

// ports bounds the near relay's local ports.
func (w *world) ports(least, most int) error {
	return w.Host("relay-a").Sysctl("net.ipv4.ip_local_port_range", fmt.Sprint(least, " ", most))
}

// forgetConnections has a firewall between the relays forget all connections, and drop
// what belongs to none. New connections have other ports, so that they pass.
func (w *world) forgetConnections() error {
	err := w.ports(45001, 60999)
	picked, pickErr := w.path().Connections(everyConnection)
	err = errors.Join(err, pickErr)
	for _, c := range picked {
		err = errors.Join(err, w.path().Forget(c))
	}
	return err
}
