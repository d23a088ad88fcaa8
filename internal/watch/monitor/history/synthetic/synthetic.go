// Package synthetic makes records such as a relay's flows would leave, for
// tests and measurements of the history.
package synthetic

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
)

// Maker makes records one after the other, the same ones for the same seed.
type Maker struct {
	random *rand.Rand
	names  *rand.Rand
	flow   flow.ID
}

// NewMaker begins with a seed.
func NewMaker(seed uint64) *Maker {
	return &Maker{random: rand.New(rand.NewPCG(seed, 1)), names: rand.New(rand.NewPCG(seed, 2))}
}

// Tunnels is how many tunnels the records are of: tunnel-0 has half of them,
// tunnel-1 a quarter, and so on.
const Tunnels = 8

// Tunnel is the name of one of them.
func Tunnel(i int) string { return "tunnel-" + strconv.Itoa(i) }

var causes = []doctor.Cause{doctor.ReceiverWindow, doctor.RandomLoss, doctor.Application, doctor.Congestion, doctor.SendBuffer, doctor.Policer}

// Record is of a flow that ended then: mostly short, sometimes hours long, with
// a course of its goodput, every tenth over IPv6, one of fifty a failure, each with a
// name, half of them through a pair.
func (m *Maker) Record(end time.Time) monitor.Record {
	r := m.random
	m.flow++
	tunnel := min(int(-math.Log2(1-r.Float64())), Tunnels-1)
	bps := math.Exp(r.NormFloat64()*1.2 + math.Log(4e7))
	size := math.Min(math.Exp(r.NormFloat64()*2.5+math.Log(1e7)), 1e12)
	elapsed := time.Duration((size*8/bps + 0.07 + r.ExpFloat64()) * float64(time.Second)).Round(time.Microsecond)
	rec := monitor.Record{
		Record: flow.Record{
			Flow: m.flow, Tunnel: Tunnel(tunnel), Hop: "relay-b.example.net:6000",
			Client: m.address(10, tunnel), Target: m.address(20, tunnel),
			Start: end.Add(-elapsed), Elapsed: units.Seconds(elapsed), Reason: flow.EndClean,
		},
		End: end, EndedBy: flow.EndClean.EndedBy(), Relay: "relay-a.example.net",
	}
	binary.BigEndian.PutUint64(rec.Name[:], m.names.Uint64())
	binary.BigEndian.PutUint64(rec.Name[8:], m.names.Uint64())
	if tunnel == 0 {
		rec.Peer, rec.Site = "site-b/b"+strconv.Itoa(int(rec.Name[0])%2), "site-b"
	}
	up, down := size, size*0.01*r.Float64()
	if r.IntN(4) == 0 {
		up, down = down, up
	}
	rec.BytesUp, rec.BytesDown = int64(up), int64(down)
	rtt := time.Duration(60+20*r.Float64()*r.Float64()) * time.Millisecond
	rec.ClientLeg = flow.LegRecord{Side: "lan", CongestionControl: "cubic", RTT: units.Seconds(300 * time.Microsecond), MinRTT: units.Seconds(200 * time.Microsecond), BytesSent: rec.BytesDown}
	rec.TargetLeg = flow.LegRecord{Side: "wan", CongestionControl: "bbr", RTT: units.Seconds(rtt), MinRTT: units.Seconds(60 * time.Millisecond), BytesSent: rec.BytesUp}
	if r.IntN(3) == 0 {
		again := int64(up * 0.02 * r.ExpFloat64())
		rec.TargetLeg.BytesSent += again
		rec.TargetLeg.BytesRetransmitted, rec.TargetLeg.Retransmits = again, again/1448+1
	}
	switch r.IntN(50) {
	case 0:
		rec.Reason, rec.EndedBy, rec.Error = "target-refused", "target", "connection refused"
		rec.BytesUp, rec.BytesDown = 0, 0
	case 1, 2:
		rec.Reason, rec.EndedBy = "client-reset", "client"
	}
	if elapsed > 2*time.Second {
		rec.Goodput = m.series(elapsed, up*8/elapsed.Seconds(), down*8/elapsed.Seconds())
		if r.IntN(10) < 8 {
			rec.Cause = causes[min(int(r.ExpFloat64()*1.5), len(causes)-1)]
			rec.CauseLeg, rec.CauseShare = flow.TargetLeg, 0.5+r.Float64()/2
		}
	}
	return rec
}

func (m *Maker) address(site byte, tunnel int) flow.Address {
	if m.random.IntN(10) == 0 {
		a := netip.MustParseAddr("fd00::").As16()
		a[1], a[14], a[15] = site, byte(tunnel), byte(m.random.IntN(250))
		return flow.Address{AddrPort: netip.AddrPortFrom(netip.AddrFrom16(a), uint16(1024+m.random.IntN(60000)))}
	}
	return flow.Address{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, site, byte(tunnel), byte(m.random.IntN(250))}), uint16(1024+m.random.IntN(60000)))}
}

func (m *Maker) series(elapsed time.Duration, up, down float64) monitor.Series {
	step := time.Second
	for elapsed > step*monitor.SeriesLen {
		step *= 2
	}
	n := int((elapsed + step - 1) / step)
	s := monitor.Series{Step: units.Seconds(step), UpBps: make([]float32, n), DownBps: make([]float32, n)}
	for i := range n {
		wave := 0.6 + 0.8*m.random.Float64()
		s.UpBps[i], s.DownBps[i] = float32(up*wave), float32(down*wave)
	}
	return s
}
