package link

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tcpACK is a pure acknowledgement of a flow.
func tcpACK(flow, number int) []byte {
	p := make([]byte, 40)
	p[0], p[9] = 0x45, protocolTCP
	binary.BigEndian.PutUint16(p[2:], 40)
	copy(p[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(p[20:], uint16(flow))
	binary.BigEndian.PutUint16(p[22:], 5001)
	binary.BigEndian.PutUint32(p[28:], uint32(number))
	p[32], p[33] = 0x50, 0x10
	binary.BigEndian.PutUint16(p[10:], ^referenceSum(p[:20]))
	return p
}

func (b *bench) sendACK(flow int) {
	b.sendSuper(&superPacket{packet: tcpACK(flow, b.sent), segments: 1})
}

// One of four acknowledgements passes, the latest, and the last of all after 5 ms. What
// is no pure acknowledgement passes at once, after those that it follows.
func TestACKThinning(t *testing.T) {
	b := newBench(Settings{ACKThinning: 4, Delay: 10 * time.Millisecond})
	for range 10 { // 0 to 9, one each 100 µs
		b.sendACK(1)
		b.run(b.now + 100*us)
	}
	b.run(20 * ms)
	b.sendACK(1)        // 10
	b.sendACK(2)        // 11
	b.sendFlow(3, 1500) // 12
	data := tcpACK(1, 0)
	data = append(data, 1, 2, 3)
	binary.BigEndian.PutUint16(data[2:], uint16(len(data)))
	b.sendSuper(&superPacket{packet: data, segments: 1}) // 13: of flow 1, with data
	echo := tcpACK(2, 0)
	echo[33] |= 0x40
	b.run(21 * ms)
	b.sendSuper(&superPacket{packet: echo, segments: 1}) // 14: with another echo of ECN
	b.run(100 * ms)
	want := []arrival{
		{3, 0, 10*ms + 300*us}, {7, 0, 10*ms + 700*us}, // the fourth and the eighth
		{9, 0, 10*ms + 800*us + 5*ms}, // 5 ms after 8 came
		{12, 0, 30 * ms}, {10, 0, 30 * ms}, {13, 0, 30 * ms},
		{11, 0, 31 * ms}, {14, 0, 36 * ms},
	}
	if diff := cmp.Diff(want, b.out); diff != "" {
		t.Error(diff)
	}
	if b.counters.Thinned != 7 || b.live != 0 {
		t.Errorf("%d thinned, want 7; %d packets left over", b.counters.Thinned, b.live)
	}
	// When thinning ends, what is held passes.
	b.sendACK(1)
	b.set(b.now, Settings{}, 0)
	b.run(b.now)
	if got := b.out[len(b.out)-1]; got.At != 100*ms || b.inFlight() != 0 {
		t.Errorf("held after the end of thinning: %+v", got)
	}
}

func TestPureACK(t *testing.T) {
	ack := tcpACK(1, 1)
	v6 := append(make([]byte, 40), ack[20:]...)
	v6[0], v6[5], v6[6] = 0x60, 20, protocolTCP
	change := func(p []byte, at int, value byte) []byte {
		p = slices.Clone(p)
		p[at] = value
		return p
	}
	for name, test := range map[string]struct {
		packet []byte
		want   bool
	}{
		"IPv4": {ack, true}, "IPv6": {v6, true},
		"SYN": {change(ack, 33, 0x12), false}, "FIN": {change(v6, 53, 0x11), false}, "RST": {change(ack, 33, 0x14), false},
		"no ACK": {change(ack, 33, 0), false}, "pushed": {change(ack, 33, 0x18), true},
		"UDP": {change(ack, 9, protocolUDP), false}, "fragment": {change(ack, 7, 1), false},
		"data": {append(change(ack, 3, 41), 0), false}, "padded": {append(slices.Clone(ack), 0, 0), true},
		"header too long": {change(ack, 32, 0xf0), false}, "other version": {change(ack, 0, 0x55), false},
	} {
		if _, got := pureACK(test.packet); got != test.want {
			t.Errorf("%s: pure %v, want %v", name, got, test.want)
		}
		for n := range test.packet {
			pureACK(test.packet[:n]) // no index out of range
		}
	}
}

// Packets leave together, every 4 ms or 6000 bytes.
func TestAggregation(t *testing.T) {
	b := newBench(Settings{RateBps: 12_000_000, Delay: 10 * time.Millisecond, QueueBytes: 1 << 20,
		Aggregate: Aggregation{Every: 4500 * time.Microsecond}})
	for range 12 {
		b.send(1500)
	}
	b.run(100 * ms)
	var got []int64
	for _, a := range b.out {
		got = append(got, a.At)
	}
	first, second, third := 15*ms+500*us, 20*ms+500*us, 25*ms+500*us // from 1, 6 and 11 ms on
	want := []int64{first, first, first, first, first, second, second, second, second, second, third, third}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	b.out = nil
	b.set(b.now, Settings{RateBps: 12_000_000, QueueBytes: 1 << 20, Aggregate: Aggregation{Every: 4500 * time.Microsecond, Bytes: 4500}}, 1<<20)
	for range 4 {
		b.send(1500)
	}
	b.run(200 * ms)
	if got := b.out; got[0].At != 103*ms || got[2].At != 103*ms || got[3].At != 108*ms+500*us {
		t.Errorf("left at %v, want three after 3 ms and one 4.5 ms after it came", got)
	}
	// When aggregation ends, what is gathered leaves.
	b.out = nil
	b.send(1500)
	b.run(202 * ms)
	b.set(b.now, Settings{}, 0)
	b.run(b.now)
	if len(b.out) != 1 || b.out[0].At != 202*ms || b.inFlight() != 0 {
		t.Errorf("left at %v, want 202 ms", b.out)
	}
}

// The share that is lost grows with the rate that arrives, from FromBps to ToBps.
func TestRateLoss(t *testing.T) {
	loss := RateLoss{FromBps: 10_000_000, ToBps: 100_000_000, Share: 0.1}
	for _, test := range []struct {
		bps  int64
		want float64
	}{{8_000_000, 0}, {55_000_000, 0.05}, {100_000_000, 0.1}, {300_000_000, 0.1}} {
		b := newBench(Settings{RateLoss: loss, Seed: 3})
		gap := 1500 * 8e9 / test.bps
		for b.now < 1000*ms { // the meter settles
			b.run(b.now + gap)
			b.send(1500)
		}
		lost, in := b.counters.Lost, b.counters.PacketsIn
		for range 40_000 {
			b.run(b.now + gap)
			b.send(1500)
		}
		share := float64(b.counters.Lost-lost) / float64(b.counters.PacketsIn-in)
		if math.Abs(share-test.want) > 0.005 {
			t.Errorf("at %d b/s %.4f is lost, want %.4f", test.bps, share, test.want)
		}
	}
}

// With a policer for each flow, each gets the rate; with one for all, they share it.
func TestPolicerPerFlow(t *testing.T) {
	for _, perFlow := range []bool{false, true} {
		b := newBench(Settings{Policer: Policer{RateBps: 12_000_000, BurstBytes: 3000, PerFlow: perFlow}})
		for range 1000 {
			b.run(b.now + 500*us) // 24 Mb/s each
			b.sendFlow(1, 1500)
			b.sendFlow(2, 1500)
		}
		want := 500
		if perFlow {
			want *= 2
		}
		if got := int(b.counters.PacketsDelivered); got < want-5 || got > want+5 {
			t.Errorf("per flow %v: %d of 2000 pass, want some %d", perFlow, got, want)
		}
	}
	// Many flows do not use memory forever.
	b := newBench(Settings{Policer: Policer{RateBps: 12_000_000, BurstBytes: 3000, PerFlow: true}})
	for flow := range 30_000 {
		b.sendFlow(flow, 100)
		b.run(b.now + ms)
	}
	if n := len(b.policer.flows); n > maxFlowBuckets {
		t.Errorf("%d buckets", n)
	}
}
