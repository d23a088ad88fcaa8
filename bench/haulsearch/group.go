package main

import (
	"errors"
	"math"
	"math/rand/v2"

	"longhaul/internal/words/stats"
)

var (
	boundJain          = &bound{name: "jain", says: "Jain's index of the goodputs, second half", atLeast: true, allowed: seldom}
	boundGroupNeedless = &bound{name: "needless", says: "sent × (1 − loss) ÷ delivered of all flows after 10 s", allowed: seldom}
	boundGroupGets     = &bound{name: "goodput", says: "goodput of all flows ÷ capacity, second half", atLeast: true, allowed: seldom}
)

// group is several hauls of one round trip that share a path, and of one host.
var group = companions{least: 10, most: 100, queued: 2}.kind("group", "2 to 50 hauls of one host and round trip")

// hosts is the same from as many hosts, which can tell each other nothing.
var hosts = companions{least: 10, most: 100, queued: 2, apart: true}.kind("hosts", "2 to 50 hauls of one round trip, each of a host of its own")

// crowd is a group with few packets for each, and with queues of some packets for all.
var crowd = companions{least: 4, most: 10, bunched: true}.kind("crowd", "2 to 50 hauls of one host with 4 to 10 packets of BDP each")

// companions are several hauls that share a path.
type companions struct {
	least, most float64 // packets of BDP for each, drawn
	queued      float64 // packets that the queue holds for each, at least
	apart       bool    // each is of a host of its own
	bunched     bool    // the ACKs of some paths come together; none has more packets than drawn
}

func (c companions) kind(name, says string) kind {
	return kind{
		name:   name,
		says:   says,
		bounds: []*bound{boundJain, boundGroupNeedless, boundGroupGets},
		draw:   c.draw,
		holds: func(p path) error {
			hauls := float64(p.count("haul"))
			most := float64(math.MaxInt32)
			if c.bunched {
				most = c.most * 1.005 // a drawn rate is rounded up
			}
			return all(haulFirst(p), checkFlows(p, "haul", 2, 50), checkFlows(p, "cubic", 0, 0), checkFlows(p, "cbr", 0, 0), checkClocks(p, c.apart),
				within("rate", p.rateMbps(), 0.5, 1000), within("rtt", p.rttMs(), 5, 300),
				within("packets of BDP for a flow", p.bdpPackets()/hauls, c.least, most), checkQueue(p, 0.03, 4, max(4, c.queued*hauls)),
				within("loss", p.loss(), 0, 0.02), within("aggregate", p.settings.or("aggregate", 0), 0, c.mostBunchedMs(p)),
				checkBegins(p, 5), checkTime(p, groupTime(p)))
		},
		judge: judgeGroup,
	}
}

// checkClocks says whether each flow has a host's clock, or none has.
func checkClocks(p path, apart bool) error {
	for _, f := range p.flows {
		if _, own := f.settings.get("clock"); own != apart {
			return errors.New("clocks of some hosts, or of no hosts")
		}
	}
	return nil
}

func judgeGroup(p path, run simulate) ([]figure, error) {
	half, started := secondHalf(p), window{10, p.timeS()}
	o, err := run(p, half, started)
	if err != nil {
		return nil, err
	}
	var sent, delivered float64
	for _, f := range o.over[1].flows {
		sent, delivered = sent+f.sent, delivered+f.delivered
	}
	return []figure{
		{bound: boundJain, value: jain(o.over[0].flows), limit: 0.9, over: half},
		{bound: boundGroupNeedless, value: needless(sent, delivered, p.loss()), limit: 1.10, over: started},
		{bound: boundGroupGets, value: shareOf(totalGoodput(o.over[0].flows), o.over[0].capacityBps), limit: 0.8, over: half},
	}, nil
}

func groupTime(p path) float64 { return max(60, 600*p.rttMs()/1e3) }

// mostBunchedMs is the longest time between ACKs that come together.
func (c companions) mostBunchedMs(p path) float64 {
	if !c.bunched {
		return 0
	}
	return min(5, p.rttMs()/8)
}

func (c companions) draw(r *rand.Rand) path {
	// Many flows with short round trips take too many packets: draw again, and take
	// what is there after some draws.
	const most = 500e3
	var p path
	hauls := 0
	for range 20 {
		p = path{}
		hauls = int(math.Round(logUniform(r, 2, 50)))
		rtt := logUniform(r, 5, 300)
		// In Mb/s, at the least packets of BDP for each flow.
		least := c.least * float64(hauls) * packetBytes * 8 / 1e3 / rtt
		if least > 950 {
			continue
		}
		p.settings.set("rate", min(1000, roundUp(least*logUniform(r, 1, c.most/c.least))))
		p.settings.set("rtt", rtt)
		if p.bdpPackets()*groupTime(p)/rtt*1e3 <= most {
			break
		}
	}
	if len(p.settings) == 0 {
		hauls = 2
		p.settings = settings{{"rate", 20}, {"rtt", 50}}
	}
	if p.rateMbps() < 0.5 {
		p.settings.set("rate", 0.5)
	}
	p.settings.set("queue", drawQueue(r, p, 0.03, 4, max(4, c.queued*float64(hauls))))
	if r.IntN(3) == 0 {
		p.settings.set("loss", logUniform(r, 1e-4, 0.02))
	}
	if c.bunched && r.IntN(2) == 0 {
		p.settings.set("aggregate", uniform(r, 0, c.mostBunchedMs(p)))
	}
	p.settings.set("time", math.Ceil(groupTime(p)))
	p.withSeed(r)
	for i := range hauls {
		f := flow{control: "haul"}
		if i > 0 {
			f.beginS = uniform(r, 0.01, 5)
		}
		p.flows = append(p.flows, f)
	}
	if c.apart {
		for i := range p.flows {
			p.flows[i].settings.set("clock", uniform(r, 1, 7200))
		}
	}
	return p
}

// jain is Jain's index of the flows' goodputs.
func jain(flows []flowFigures) float64 {
	var all []float64
	for _, f := range flows {
		all = append(all, f.goodputBps)
	}
	return stats.Jain(all)
}
