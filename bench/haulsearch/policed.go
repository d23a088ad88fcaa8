package main

import (
	"math"
	"math/rand/v2"
)

var (
	boundPolicedNeedless = &bound{name: "needless", says: "sent × (1 − loss) ÷ delivered of all flows, worst 10 s after the first 10 s", allowed: seldom}
	boundPolicedGets     = &bound{name: "goodput", says: "goodput of one flow ÷ the policer's rate, second half", atLeast: true, allowed: seldom}
)

// policed is one to four hauls that a policer drops packets of.
var policed = kind{
	name:   "policed",
	says:   "1 to 4 hauls through a policer",
	bounds: []*bound{boundPolicedNeedless, boundPolicedGets},
	draw:   drawPoliced,
	holds: func(p path) error {
		policer, bucket := p.settings.or("policer", 0), p.settings.or("bucket", 64)
		return all(haulFirst(p), checkFlows(p, "haul", 1, 4), checkFlows(p, "cubic", 0, 0), checkFlows(p, "cbr", 0, 0),
			within("rate", p.rateMbps(), 1, 1000), within("rtt", p.rttMs(), 5, 300), checkQueue(p, 0.03, 4, 4),
			within("share of the policer", policer/p.rateMbps(), 0.0999, 0.9001), within("bucket", bucket, 10, 4000),
			within("packets that the policer lets pass in a round trip, for a flow", policedPackets(p), leastPolicedPackets, math.MaxInt32),
			within("loss", p.loss(), 0, 0.02), checkBegins(p, 0), checkTime(p, 60))
	},
	judge: func(p path, run simulate) ([]figure, error) {
		const length = 10
		over := []window{secondHalf(p)}
		for from := 10.0; from+length <= p.timeS(); from += length {
			over = append(over, window{from, from + length})
		}
		o, err := run(p, over...)
		if err != nil {
			return nil, err
		}
		worst := figure{bound: boundPolicedNeedless, limit: 1.15}
		for i, w := range o.over[1:] {
			var sent, delivered float64
			for _, f := range w.flows {
				sent, delivered = sent+f.sent, delivered+f.delivered
			}
			if value := needless(sent, delivered, p.loss()); value > worst.value || i == 0 {
				worst.value, worst.over = value, over[1+i]
			}
		}
		figures := []figure{worst}
		if len(p.flows) == 1 {
			figures = append(figures, figure{bound: boundPolicedGets,
				value: shareOf(totalGoodput(o.over[0].flows), o.over[0].capacityBps), limit: 0.8, over: over[0]})
		}
		return figures, nil
	},
}

// leastPolicedPackets is what the policer lets pass in a round trip for each flow. With
// fewer no window is small enough: CUBIC breaks the bound there as well.
const leastPolicedPackets = 4

func policedPackets(p path) float64 {
	return p.settings.or("policer", 0) * p.rttMs() * 1e3 / packetBytes / 8 / float64(len(p.flows))
}

func drawPoliced(r *rand.Rand) path {
	for {
		var p path
		p.settings.set("rate", drawRate(r, 1, 100, 500))
		p.settings.set("rtt", logUniform(r, 5, 300))
		p.settings.set("queue", drawQueue(r, p, 0.03, 4, 4))
		p.settings.set("policer", significant(p.rateMbps()*uniform(r, 0.101, 0.899), 3))
		p.settings.set("bucket", logUniform(r, 10, 4000))
		if r.IntN(3) == 0 {
			p.settings.set("loss", logUniform(r, 1e-4, 0.02))
		}
		p.settings.set("time", 60)
		p.withSeed(r)
		for range []int{1, 1, 2, 4}[r.IntN(4)] {
			p.flows = append(p.flows, flow{control: "haul"})
		}
		if policedPackets(p) >= leastPolicedPackets {
			return p
		}
	}
}
