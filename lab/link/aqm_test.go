package link

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// udpPacket is an IPv4 packet of UDP with the flow's number as source port.
func udpPacket(flow, size int) []byte {
	p := make([]byte, size)
	p[0], p[9] = 0x45, protocolUDP
	binary.BigEndian.PutUint16(p[2:], uint16(size))
	copy(p[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(p[20:], uint16(flow))
	binary.BigEndian.PutUint16(p[22:], 5001)
	binary.BigEndian.PutUint16(p[10:], ^referenceSum(p[:20]))
	return p
}

func flowOf(p *superPacket) int { return int(binary.BigEndian.Uint16(p.packet[20:])) }

// sendFlow makes a packet of a flow arrive now.
func (b *bench) sendFlow(flow, size int) {
	b.sendSuper(&superPacket{packet: udpPacket(flow, size), segments: 1})
}

// aimd is a sender that adds a packet to its window each round trip and halves it
// after a lost or marked packet, at most once each round trip.
type aimd struct {
	flow     int
	window   float64
	inFlight int
	sent     []int // the bench's numbers of its packets
	acked    int   // of sent
	halvedAt int   // the length of sent at the latest cut
	acks     []ack
}

// ack is a packet's acknowledgement on its way back.
type ack struct {
	at      int64
	packets int // that the sender now knows to be gone from the path
	cut     bool
}

// conversation is of senders over a bottleneck. Acknowledgements take halfRTT; the
// link's delay is the other half of a round trip.
type conversation struct {
	*bench
	senders []*aimd
	halfRTT int64
	owner   map[int]*aimd
	seen    int // of out
}

func converse(b *bench, halfRTT int64, senders ...*aimd) *conversation {
	return &conversation{bench: b, senders: senders, halfRTT: halfRTT, owner: map[int]*aimd{}}
}

// until runs it for a time.
func (b *conversation) until(until int64) {
	for b.now < until {
		for _, s := range b.senders {
			for len(s.acks) > 0 && s.acks[0].at <= b.now {
				a := s.acks[0]
				s.acks = s.acks[1:]
				s.inFlight -= a.packets
				switch {
				case a.cut && s.acked > s.halvedAt:
					s.window = max(s.window/2, 2)
					s.halvedAt = len(s.sent)
				default:
					s.window += float64(a.packets) / s.window
				}
			}
			for s.inFlight < int(s.window) {
				b.owner[b.sent] = s
				s.sent = append(s.sent, b.sent)
				s.inFlight++
				b.sendFlow(s.flow, 1500)
			}
		}
		b.run(b.now + 100*us)
		for ; b.seen < len(b.out); b.seen++ {
			s := b.owner[b.out[b.seen].Packet]
			i, _ := slices.BinarySearch(s.sent, b.out[b.seen].Packet)
			s.acks = append(s.acks, ack{b.now + b.halfRTT, i + 1 - s.acked, i > s.acked})
			s.acked = i + 1
		}
	}
}

// CoDel and FQ-CoDel hold the wait of a standing queue near the target, and the link
// stays busy.
func TestCoDelHoldsTarget(t *testing.T) {
	for _, algorithm := range []AQMAlgorithm{CoDel, FQCoDel} {
		t.Run(algorithm.String(), func(t *testing.T) {
			const rate, half = 24_000_000, 10 * ms // 2000 packets a second
			b := newBench(Settings{RateBps: rate, Delay: 10 * time.Millisecond, QueueBytes: 1000 * 1500, AQM: AQM{Algorithm: algorithm}})
			c := converse(b, half, &aimd{flow: 1, window: 10}, &aimd{flow: 2, window: 10}, &aimd{flow: 3, window: 10}, &aimd{flow: 4, window: 10})
			c.until(10_000 * ms)
			b.queueDelay = new(histogram)
			before := len(b.out)
			c.until(60_000 * ms)
			waits := b.queueDelay.quantiles(0.5, 0.95)
			used := float64(len(b.out)-before) / (50 * 2000)
			if waits[0] < 3*time.Millisecond || waits[0] > 10*time.Millisecond || waits[1] > 15*time.Millisecond || used < 0.98 {
				t.Errorf("waits p50, p95 %v, used %.3f", waits, used)
			}
			if b.counters.AQMDrops == 0 || b.counters.QueueDrops != 0 {
				t.Errorf("counters %+v", b.counters)
			}
		})
	}
}

// Flooding flows get equal shares in bytes with any size of packets, and the packets of a
// sparse one do not wait behind theirs.
func TestFQCoDelIsolates(t *testing.T) {
	b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 400 * 1500, AQM: AQM{Algorithm: FQCoDel}})
	sparseAt := map[int]int64{}
	for tick := range int64(10_000) { // a millisecond each
		b.run(tick * ms)
		b.sendFlow(1, 1500)
		b.sendFlow(2, 500)
		b.sendFlow(2, 500)
		b.sendFlow(2, 500)
		if tick%20 == 10 {
			sparseAt[b.sent] = b.now
			b.sendFlow(3, 200)
		}
	}
	var bytes [4]int
	for super, number := range b.names {
		flow := flowOf(super)
		left := slices.IndexFunc(b.out, func(a arrival) bool { return a.Packet == number })
		if left < 0 {
			if flow == 3 {
				t.Fatalf("packet %d of the sparse flow was lost", number)
			}
			continue
		}
		bytes[flow] += len(super.packet)
		// The packet in service and the first one of a new flow may precede it.
		if at, sparse := sparseAt[number]; sparse && b.out[left].At-at > 3*ms {
			t.Errorf("packet %d of the sparse flow took %v", number, time.Duration(b.out[left].At-at))
		}
	}
	if ratio := float64(bytes[1]) / float64(bytes[2]); math.Abs(ratio-1) > 0.02 {
		t.Errorf("two floods got %d and %d bytes", bytes[1], bytes[2])
	}
	if bytes[3] != 500*200 {
		t.Errorf("the sparse flow got %d bytes, want %d", bytes[3], 500*200)
	}
}

// An overflow takes packets of the longest queue, from its head.
func TestFQCoDelOverflow(t *testing.T) {
	b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 40 * 1500, AQM: AQM{Algorithm: FQCoDel, Target: time.Hour}})
	b.sendFlow(2, 1500) // in service at once
	b.sendFlow(2, 1500)
	for range 38 {
		b.sendFlow(1, 1500)
	}
	if b.counters.QueueDrops != 0 {
		t.Fatalf("%d dropped of a queue that is just full", b.counters.QueueDrops)
	}
	b.sendFlow(2, 1500)
	if b.counters.QueueDrops != 19 {
		t.Errorf("%d dropped, want half of the 38 packets of the longest queue", b.counters.QueueDrops)
	}
	b.run(100 * ms)
	var got []int
	for _, a := range b.out {
		got = append(got, a.Packet)
	}
	// Flow 2 had its turn; then the flows take turns.
	want := []int{0, 21, 1, 22, 40}
	for n := 23; n < 40; n++ {
		want = append(want, n)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Packets that wait stay in the queue, and in order, when its management changes.
func TestAQMChanges(t *testing.T) {
	s := Settings{RateBps: 12_000_000, QueueBytes: 100 * 1500}
	b := newBench(s)
	for i := range 20 {
		b.sendFlow(i%3, 1500)
		b.run(b.now + 1)
	}
	for _, algorithm := range []AQMAlgorithm{FQCoDel, PIE, FQCoDel, CoDel, NoAQM} {
		s.AQM.Algorithm = algorithm
		b.set(b.now, s, s.QueueBytes)
		if got := b.inFlight(); got != 20 {
			t.Fatalf("%d packets with %v, want 20", got, algorithm)
		}
	}
	b.run(100 * ms)
	if len(b.out) != 20 || !slices.IsSortedFunc(b.out, func(a, b arrival) int { return a.Packet - b.Packet }) {
		t.Errorf("left: %v", b.out)
	}
}

// Addresses, protocol and ports decide the flow of a packet. Payload, length and marks do
// not.
func TestFlowHash(t *testing.T) {
	v4, _ := tcpSuperPacket(4, 1000, 1000, 0)
	v6, _ := tcpSuperPacket(6, 1000, 1000, 0)
	for name, base := range map[string][]byte{"v4": v4, "v6": v6} {
		addresses, ports := [2]int{12, 20}, 20
		if name == "v6" {
			addresses, ports = [2]int{8, 40}, 40
		}
		for i := range ports + 8 {
			other := slices.Clone(base)
			other[i] ^= 1
			isFragment := name == "v4" && (i == 6 || i == 7)
			protocol := name == "v4" && i == 9 || name == "v6" && i == 6
			version := i == 0 && name == "v4" // the length of its header
			want := i >= addresses[0] && i < addresses[1] || i >= ports && i < ports+4 || isFragment || protocol || version
			if got := flowHash(other, 1) != flowHash(base, 1); got != want {
				t.Errorf("%s: byte %d changes the flow: %v, want %v", name, i, got, want)
			}
		}
		if flowHash(base, 1) == flowHash(base, 2) {
			t.Errorf("%s: the seed changes nothing", name)
		}
		for n := range base {
			flowHash(base[:n], 1) // no index out of range
		}
	}
	// A thousand flows fill most of the queues: 1024/e stay empty.
	used := map[uint64]bool{}
	for flow := range 1024 {
		used[flowHash(udpPacket(flow, 100), 7)%fairQueues] = true
	}
	if len(used) < 600 || len(used) > 700 {
		t.Errorf("1024 flows use %d queues, want some 647", len(used))
	}
}
