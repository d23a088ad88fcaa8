package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/lab"
	"longhaul/lab/link"
)

// kinds are the kinds of scenarios, drawn in turn: every cause, healthy ones twice, and
// two hindrances at once twice.
var kinds = []string{
	"healthy", "application", "receiver-window", "window-scaling", "send-buffer", "random-loss", "congestion", "policer",
	"reordering", "mixed", "segment-size", "black-hole", "asymmetric-mtu", "pacing", "short-flow", "cpu", "healthy", "mixed",
}

// Kinds are the names of the kinds of scenarios.
func Kinds() []string {
	all := slices.Clone(kinds)
	slices.Sort(all)
	return slices.Compact(all)
}

// Draw draws n scenarios. The same seed gives the same ones. With kinds, it draws only
// those.
func Draw(n int, seed uint64, only []string) []Scenario {
	wanted := kinds
	if len(only) > 0 {
		wanted = only
	}
	all := make([]Scenario, n)
	for i := range all {
		d := dice{rand.New(rand.NewPCG(seed, uint64(i)))}
		kind := wanted[i%len(wanted)]
		all[i] = d.scenario(kind)
		all[i].Name = fmt.Sprintf("%s-%d", kind, i)
		all[i].conditions.Seed = d.Uint64()
	}
	return all
}

// dice makes the choices of a scenario.
type dice struct{ *rand.Rand }

// between is uniform, and across is uniform in the logarithm.
func (d dice) between(low, high float64) float64 { return low + (high-low)*d.Float64() }

func (d dice) across(low, high float64) float64 {
	return math.Exp(d.between(math.Log(low), math.Log(high)))
}

func (d dice) oneOf(causes ...doctor.Cause) doctor.Cause { return causes[d.IntN(len(causes))] }

// The bounds of the drawn values. The rates let a small machine run several scenarios
// at once.
const (
	leastBps, mostBps = 5e6, 60e6
	leastRTT, mostRTT = 15 * time.Millisecond, 250 * time.Millisecond
)

// path returns a path without hindrances, with a minimum bandwidth-delay product in
// bytes.
func (d dice) path(leastBDP float64) setup {
	for {
		s := setup{conditions: lab.Conditions{
			RTT:     time.Duration(d.across(float64(leastRTT), float64(mostRTT))),
			RateBps: int64(d.across(leastBps, mostBps)), QueueBDP: d.across(0.6, 2),
			MTUAB: 1500, MTUBA: 1500, LANMTU: 1500,
		}}
		// A product above Linux's own buffers would also be a hindrance.
		if s.bdp() >= leastBDP && s.bdp() <= 1e6 {
			return s
		}
	}
}

func (d dice) scenario(kind string) Scenario {
	cause := doctor.Cause(kind)
	switch kind {
	case "healthy":
		s := Scenario{setup: d.path(40e3)}
		if d.Float64() < 0.25 {
			s.traffic.CongestionControl = "bbr"
		}
		return s
	case "mixed":
		return d.mixed()
	case "congestion":
		s := Scenario{setup: d.path(60e3)}
		s.others = 2 + d.IntN(5)
		s.Hindrances = []doctor.Cause{cause}
		return s
	}
	s := Scenario{Hindrances: []doctor.Cause{cause}}
	s.setup = d.path(minBDPOf(cause))
	d.hinder(&s.setup, cause, 0.08, 0.6)
	s.nameReader()
	return s
}

// minBDPOf is the minimum bandwidth-delay product of a hindrance.
func minBDPOf(cause doctor.Cause) float64 {
	switch cause {
	case doctor.WindowScaling:
		return 140e3
	case doctor.ShortFlow, doctor.RandomLoss, doctor.ReceiverWindow, doctor.Policer, doctor.SendBuffer:
		return 100e3
	}
	return 40e3
}

// hinder adds a hindrance that leaves a share of the path's capacity, between low and
// high.
func (d dice) hinder(s *setup, cause doctor.Cause, low, high float64) {
	share := d.across(low, high)
	c := &s.conditions
	rate := float64(c.RateBps)
	switch cause {
	case doctor.Application:
		switch d.IntN(3) {
		case 0: // small writes
			s.traffic.OfferBps, s.traffic.ChunkBytes = int64(share*rate), int(d.across(1e3, 8e3))
		case 1: // bursts
			s.traffic.OfferBps, s.traffic.ChunkBytes = int64(share*rate), int(d.across(50e3, 400e3))
		default: // the receiving program
			s.readBps = int64(share * rate)
		}
	case doctor.ReceiverWindow:
		switch d.IntN(3) {
		case 0:
			s.windowBytes = int(max(share*s.bdp(), 8e3))
		case 1:
			s.receiveBufferBytes = int(min(max(share*s.bdp(), 8e3), 200e3)) // allowed for any program
		default: // of the host's every program
			s.hostWindowBytes = int(max(share*s.bdp(), 8e3))
		}
	case doctor.WindowScaling:
		s.noScaling = true
	case doctor.SendBuffer:
		// The kernel doubles it, and half of that holds data.
		s.traffic.SendBufferBytes = int(max(share*s.bdp(), 8e3))
	case doctor.RandomLoss:
		// CUBIC gets about that share in the long run (RFC 9438, 5.1), and more
		// in its first seconds.
		segments := 0.6 * share * s.bdp() / 1500
		p := max(c.RTT.Seconds()/math.Pow(segments/1.17, 4./3), 1e-5)
		if reno := 1.5 / (segments * segments); reno > p {
			p = reno // where CUBIC behaves like Reno
		}
		c.Loss = link.Loss{Probability: min(p, 0.08)}
		if d.Float64() < 0.3 {
			c.LossBurstPackets = d.between(1.5, 4)
		}
	case doctor.Policer:
		held := share * rate
		c.Policer = link.Policer{RateBps: int64(held), BurstBytes: int(max(d.across(0.03, 0.3)*held/8*c.RTT.Seconds(), 12e3))}
	case doctor.Reordering:
		c.Reorder = link.Reorder{Probability: d.across(0.02, 0.3), Hold: time.Duration(d.between(0.3, 1.5) * float64(c.RTT))}
	case doctor.SegmentSize, doctor.AsymmetricMTU:
		mss := int(d.between(400, 900))
		c.PacketsPerSecond = int64(rate / 8 / 1500)
		if cause == doctor.SegmentSize {
			s.announcedMSS = mss
		} else {
			c.MTUBA, s.betweenRouter = mss+40, true
		}
	case doctor.BlackHole:
		c.MTUAB, s.blockICMP = 1300+d.IntN(180), true
	case doctor.Pacing:
		s.traffic.PacingBps = int64(share * rate)
	case doctor.ShortFlow:
		s.traffic.TransferBytes = int64(max(d.across(0.2, 0.8)*s.bdp(), 40e3))
	case doctor.CPU:
		s.traffic.WorkPerMB = time.Duration(8e6 / (share * rate) * float64(time.Second))
	}
}

// mixed has two hindrances of different kinds.
func (d dice) mixed() Scenario {
	s := Scenario{setup: d.path(140e3)}
	for len(s.Hindrances) < 2 {
		cause := d.oneOf(doctor.Application, doctor.ReceiverWindow, doctor.SendBuffer, doctor.RandomLoss, doctor.Pacing)
		if slices.Contains(s.Hindrances, cause) {
			continue
		}
		s.Hindrances = append(s.Hindrances, cause)
		d.hinder(&s.setup, cause, 0.1, 0.7)
	}
	s.nameReader()
	return s
}

// nameReader names the program that limits: hinder draws either for doctor.Application.
func (s *Scenario) nameReader() {
	if i := slices.Index(s.Hindrances, doctor.Application); i >= 0 && s.readBps > 0 {
		s.Hindrances[i] = doctor.Reader
	}
}
