package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"longhaul/lab"
	"longhaul/lab/tcpcc"
)

// The bounds of the case fair.
const (
	fairHarm  = 1.1 // of a flow with lanes: auto, against the harm by one with one lane
	fairLanes = 2
)

// The time of a run: neighbours alone, and then beside the flow. What counts of either is
// its later part, when the neighbours have settled and auto has decided.
const (
	fairAlone   = 20 * time.Second
	fairSettled = 10 * time.Second // the first part of fairAlone
)

const fairRateBps = 100e6

// fair is one setting of the case fair.
type fair struct {
	neighbours int
	control    string // congestion control of the lanes
	queueBDP   float64
	policed    bool // each connection has a limit
	jitter     time.Duration
}

func (s fair) name() string {
	name := fmt.Sprintf("%s beside %d", s.control, s.neighbours)
	switch {
	case s.policed:
		name += ", limited"
	case s.jitter > 0:
		name += ", jitter"
	case s.queueBDP != 1:
		name += fmt.Sprintf(", %v BDP", s.queueBDP)
	}
	return name
}

func fairSettings(o Options) []fair {
	settings := []fair{
		{neighbours: 1, control: "cubic", queueBDP: 1},
		{neighbours: 4, control: "cubic", queueBDP: 1},
	}
	if o.Quick {
		return settings
	}
	return append(settings,
		fair{neighbours: 16, control: "cubic", queueBDP: 1},
		fair{neighbours: 4, control: "cubic", queueBDP: 0.25},
		fair{neighbours: 4, control: "bbr", queueBDP: 1},
		fair{neighbours: 4, control: "haul", queueBDP: 1},
		fair{neighbours: 4, control: "cubic", queueBDP: 1, policed: true},
		fair{neighbours: 4, control: "cubic", queueBDP: 1, jitter: 3 * time.Millisecond},
	)
}

// fairness measures what a flow takes from CUBIC flows beside it, which no relay carries, in
// one queue.
func fairness(ctx context.Context, o Options, way string, _ int, note func(measured)) error {
	for _, s := range fairSettings(o) {
		if !tcpcc.IsAvailable(s.control) {
			o.Report.Notef("%s: not run: %s", s.name(), tcpcc.Missing(s.control))
			continue
		}
		var one float64
		for _, lanes := range []string{"1", "auto", "8"} {
			m, err := s.measure(ctx, o, way, lanes)
			if err != nil {
				return fmt.Errorf("%s, lanes %s: %w", s.name(), lanes, err)
			}
			name := fmt.Sprintf("%s, lanes %s: ", s.name(), lanes)
			note(measured{name: name + "goodput", unit: "Mb/s", value: m.flow * 8 / 1e6})
			note(measured{name: name + "harm", value: m.harm})
			note(measured{name: name + "harm before that", value: m.early})
			if lanes == "1" {
				one = m.harm
				continue
			}
			ratio := measured{name: name + "harm ÷ by 1 lane", value: m.harm / one}
			ended := measured{name: name + "lanes at the end", value: float64(m.lanes)}
			if lanes == "auto" && !s.policed {
				ratio.bound, ended.bound = atMost(fairHarm), atMost(fairLanes)
			}
			note(ratio)
			note(ended)
		}
	}
	return nil
}

// beside is what a flow did, and its neighbours' harm by it.
type beside struct {
	flow  float64 // bytes a second
	early float64 // harm in the first half of the time, while auto tries
	harm  float64 // in the second half
	lanes int     // at the end
}

func (s fair) conditions() lab.Conditions {
	c := conditions(stripeRTT, fairRateBps)
	c.QueueBDP, c.Jitter = s.queueBDP, s.jitter
	if s.policed {
		c.Policer = perConnection(fairRateBps / 8)
	}
	return c
}

// measure lets the neighbours send alone, then beside a flow.
func (s fair) measure(ctx context.Context, o Options, way, lanes string) (m beside, err error) {
	var ours, theirs atomic.Int64
	serve := func(conn net.Conn) {
		count := &ours
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok && from.AddrPort().Addr() == lab.HostA {
			count = &theirs
		}
		countAll(conn, count)
	}
	w, err := buildWorld(ctx, o, lab.TwoSites(s.conditions()), way, serve,
		settings{pair: ", lanes: " + lanes, tunnel: ", wan: {congestion_control: " + s.control + "}"})
	if err != nil {
		return m, err
	}
	defer w.close()
	for range s.neighbours {
		end, err := w.sendTo(ctx, netip.AddrPortFrom(lab.HostB, targetPort))
		if err != nil {
			return m, err
		}
		defer end()
	}
	if err := pause(ctx, fairSettled); err != nil {
		return m, err
	}
	from := theirs.Load()
	if err := pause(ctx, fairAlone-fairSettled); err != nil {
		return m, err
	}
	alone := float64(theirs.Load()-from) / (fairAlone - fairSettled).Seconds()
	end, err := w.sendTo(ctx, w.to)
	if err != nil {
		return m, err
	}
	defer end()
	half := pick(o, 30*time.Second, 20*time.Second)
	for _, harm := range []*float64{&m.early, &m.harm} {
		fromOurs, from := ours.Load(), theirs.Load()
		if err := pause(ctx, half); err != nil {
			return m, err
		}
		m.flow = float64(ours.Load()-fromOurs) / half.Seconds()
		*harm = 1 - float64(theirs.Load()-from)/half.Seconds()/alone
	}
	for _, line := range w.heard("lanes of a flow") {
		o.Report.Linef("  %s", line)
	}
	m.lanes, err = w.lanesBusy(ctx)
	return m, err
}

// sendTo sends from host-a until end, which resets the connection.
func (w *world) sendTo(ctx context.Context, to netip.AddrPort) (end func(), err error) {
	conn, err := w.Host("host-a").DialTCP(ctx, to, patience)
	if err != nil {
		return nil, w.errorf("dial: %w", err)
	}
	return sendOn(conn), nil
}

// sendOn sends on a connection until end, which resets it.
func sendOn(conn *net.TCPConn) (end func()) {
	sent := make(chan error, 1)
	go func() { sent <- sendForever(conn) }()
	return func() {
		_ = conn.SetLinger(0)
		conn.Close()
		<-sent
	}
}

// lanesBusy is the number of lanes that carry flows.
func (w *world) lanesBusy(ctx context.Context) (n int, err error) {
	status, err := w.near().Status(ctx)
	if err == nil && status.Pairs != nil && len(status.Pairs.Sessions) > 0 {
		n = status.Pairs.Sessions[0].LanesBusy
	}
	return n, err
}
