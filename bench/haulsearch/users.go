package main

import (
	"math"
	"math/rand/v2"
)

// A class is a way in which users are connected, with its share of the paths. The sources
// that each class names measured what it draws; the shares, and the ends of ranges that no
// source names, are a judgement. Round trips reach from a near server to one on another
// continent, since such paths are longhaul's.
type class struct {
	name   string
	weight float64
	draw   func(r *rand.Rand) path
}

// Buffers are drawn in milliseconds of the path's rate. Gettys and Nichols, "Bufferbloat"
// (ACM Queue, 2011) and Kreibich et al., "Netalyzr" (IMC 2010) saw some 100 ms to seconds
// in modems; routers with fq_codel or cake have a target of 5 ms (RFC 8290).
var classes = []class{
	// FCC, "Measuring Broadband America": rates of subscribers, and losses that are mostly
	// well below 1 %. Half of the paths lose nothing.
	{"fibre", 0.30, func(r *rand.Rand) path {
		p := link(r, 50, 500, 10, 200, 5, 200)
		loses(r, &p, 0.5, 1e-5, 1e-3, 0)
		if r.IntN(7) == 0 {
			p.settings.set("codel", 5)
		}
		return p
	}},
	// LTE and 5G: Winstein et al., "Sprout" (NSDI 2013), traces of rates that walk by
	// factors within seconds, with queues of seconds; Jiang et al., "Tackling bufferbloat
	// in 3G/4G networks" (IMC 2012). The link repeats what it loses (HARQ): that adds steps
	// of 8 ms to the delay. Grants come in bunches.
	{"cellular", 0.18, func(r *rand.Rand) path {
		p := link(r, 5, 100, 35, 150, 150, 1000)
		p.settings.set("fade", uniform(r, 0.1, 0.5))
		p.settings.set("fadetau", logUniform(r, 500, 5000))
		wanders(r, &p, 1, 8)
		bunches(r, &p, 1, 10)
		loses(r, &p, 0.5, 1e-4, 2e-3, 0)
		return p
	}},
	// Sundaresan et al., "Broadband Internet performance: a view from the gateway"
	// (SIGCOMM 2011): rates, interleaving, long buffers. Impulse noise loses packets in
	// bursts. A third are of a VPN, whose host adds delay that wanders.
	{"dsl", 0.15, func(r *rand.Rand) path {
		p := link(r, 5, 100, 20, 200, 30, 600)
		loses(r, &p, 0.7, 1e-4, 0.01, 8)
		if r.IntN(3) == 0 {
			wanders(r, &p, 0.3, 3)
		}
		return p
	}},
	// Høiland-Jørgensen et al., "Ending the anomaly" (USENIX ATC 2017): aggregates of up to
	// 4 ms, several stations in turn, hundreds of packets of buffer. Cardwell, "BBR update"
	// (IETF 101): acknowledgements come in bunches of milliseconds.
	{"wifi", 0.15, func(r *rand.Rand) path {
		p := link(r, 15, 200, 10, 150, 20, 250)
		wanders(r, &p, 0.5, 5)
		bunches(r, &p, 1, 10)
		loses(r, &p, 0.6, 1e-4, 3e-3, 0)
		return p
	}},
	// Starlink: Huston, "A transport protocol's view of Starlink" (APNIC, 2024): 15 s from
	// one handover to the next, at which the round trip goes from 30 to 80 ms at worst, and
	// 6.7 ms from one to the next round trip. Michel et al., "A first look at Starlink
	// performance" (IMC 2022): half of the round trips within 40 to 60 ms, up to 300 Mb/s.
	// Lai et al., "LeoCC" (SIGCOMM 2025): 10 to 70 Mb/s within tens of seconds, windows of
	// a second that lose 0.5 to 6 %, so that the mean is less.
	{"leo", 0.08, func(r *rand.Rand) path {
		p := link(r, 30, 200, 30, 150, 30, 200)
		p.settings.set("handover", 15)
		p.settings.set("gap", logUniform(r, 10, 150))
		p.settings.set("shift", uniform(r, 5, 40))
		p.settings.set("fade", uniform(r, 0.05, 0.3))
		p.settings.set("fadetau", logUniform(r, 1000, 10000))
		wanders(r, &p, 1, 7)
		loses(r, &p, 1, 3e-4, 0.01, 4)
		return p
	}},
	// Flach et al., "An Internet-wide analysis of traffic policing" (SIGCOMM 2016): up to
	// 7 % of lossy transfers. Cheng, "RFC 6937 and traffic policers" (IETF 94): buckets of
	// up to megabytes.
	{"policed", 0.06, func(r *rand.Rand) path {
		p := link(r, 20, 300, 15, 150, 20, 200)
		p.settings.set("policer", significant(p.rateMbps()*logUniform(r, 0.1, 0.7), 3))
		p.settings.set("bucket", logUniform(r, 30, 3000))
		loses(r, &p, 0.3, 1e-5, 1e-3, 0)
		return p
	}},
	// RFC 8975 and RFC 2488: round trips of more than 500 ms, long buffers, losses of rain
	// that coding leaves.
	{"geo", 0.04, func(r *rand.Rand) path {
		p := link(r, 5, 50, 550, 680, 200, 1200)
		loses(r, &p, 0.5, 1e-5, 3e-3, 4)
		return p
	}},
	// Data centres of one city.
	{"metro", 0.04, func(r *rand.Rand) path {
		p := link(r, 100, 1000, 1, 8, 3, 30)
		loses(r, &p, 0.2, 1e-6, 1e-4, 0)
		return p
	}},
}

// link draws rate in Mb/s, round trip in ms and buffer in ms.
func link(r *rand.Rand, leastMbps, mostMbps, leastMs, mostMs, leastBufferMs, mostBufferMs float64) path {
	var p path
	p.settings.set("rate", logUniform(r, leastMbps, mostMbps))
	p.settings.set("rtt", logUniform(r, leastMs, mostMs))
	p.settings.set("queue", max(significant(logUniform(r, leastBufferMs, mostBufferMs)/p.rttMs(), 3), roundUp(leastUsersPackets/p.bdpPackets())))
	return p
}

// leastUsersPackets is what a buffer of users holds at least.
const leastUsersPackets = 16

// loses draws whether and how much a path loses, in bursts of up to some packets.
func loses(r *rand.Rand, p *path, chance, least, most, burst float64) {
	if r.Float64() >= chance {
		return
	}
	p.settings.set("loss", logUniform(r, least, most))
	if burst > 0 && r.IntN(2) == 0 {
		p.settings.set("burst", uniform(r, 2, burst))
	}
}

// wanders draws a delay that wanders by some ms, as a standard deviation.
func wanders(r *rand.Rand, p *path, leastMs, mostMs float64) {
	p.settings.set("wander", min(logUniform(r, leastMs, mostMs), significant(p.rttMs()/6, 3)))
	p.settings.set("tau", logUniform(r, 10, 500))
}

// bunches draws acknowledgements in bunches some ms apart.
func bunches(r *rand.Rand, p *path, leastMs, mostMs float64) {
	if r.IntN(3) > 0 {
		p.settings.set("aggregate", logUniform(r, leastMs, mostMs))
	}
}

// A usersPath is a path of users: one flow alone, and the same with a CUBIC beside it. The
// first flow is haul, in whose place others are simulated.
type usersPath struct {
	class        string
	alone, along path
}

// drawUsers draws the path of a number.
func drawUsers(seed uint64, n int) usersPath {
	r := random(seed, "users", n)
	of, c := r.Float64(), 0
	for ; c < len(classes)-1 && of >= classes[c].weight; c++ {
		of -= classes[c].weight
	}
	p := classes[c].draw(r)
	const packets = 250e3 // bounds the time of fast paths
	leastS := math.Max(20, 60*p.rttMs()/1e3)
	switch classes[c].name {
	case "leo": // three handovers
		leastS = 45
	case "metro":
		leastS = 10
	}
	p.settings.set("time", simulatedTime(p, leastS, 60, packets))
	p.withSeed(r)
	p.flows = []flow{{control: "haul"}}
	u := usersPath{class: classes[c].name, alone: p, along: p.clone()}
	u.along.flows = append(u.along.flows, flow{control: "cubic"})
	u.along.flows[r.IntN(2)].beginS = uniform(r, 0.1, 2)
	return u
}
