package link

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// withECN returns a packet with a codepoint of ECN and correct checksums.
func withECN(packet []byte, codepoint byte) []byte {
	packet = slices.Clone(packet)
	if packet[0]>>4 == 6 {
		packet[1] = packet[1]&^0x30 | codepoint<<4
		return packet
	}
	packet[1] = packet[1]&^3 | codepoint
	packet[10], packet[11] = 0, 0
	binary.BigEndian.PutUint16(packet[10:], ^referenceSum(packet[:20]))
	return packet
}

func TestMarkCE(t *testing.T) {
	for _, version := range []int{4, 6} {
		for size := range 200 { // other lengths, other checksums
			base, _ := tcpSuperPacket(version, size, 1448, 0)
			for codepoint := range byte(4) {
				p := withECN(base, codepoint)
				if got, want := ecnCapable(p), codepoint != 0; got != want {
					t.Fatalf("version %d, codepoint %d: capable %v", version, codepoint, got)
				}
				if codepoint == 0 {
					continue
				}
				markCE(p)
				if want := withECN(base, 3); !bytes.Equal(p, want) {
					t.Fatalf("version %d, codepoint %d:\n got %x\nwant %x", version, codepoint, p[:40], want[:40])
				}
			}
		}
	}
	for _, p := range [][]byte{nil, {0x45}, make([]byte, 40), bytes.Repeat([]byte{0x60}, 39)} {
		if ecnCapable(p) {
			t.Errorf("%x is ECN-capable", p)
		}
	}
}

// flood sends packets of 1500 bytes with a codepoint at 5/4 of 12 Mb/s.
func (b *bench) flood(codepoint byte, until int64) {
	packet := withECN(udpPacket(1, 1500), codepoint)
	for b.now < until {
		b.run(b.now + 800*us)
		b.sendSuper(&superPacket{packet: slices.Clone(packet), segments: 1})
	}
}

// An AQM marks where it would drop, and drops what cannot be marked. A flood above the
// rate is then bounded by the queue, or by PIE, which drops from 10 % up.
func TestAQMMarks(t *testing.T) {
	for _, algorithm := range []AQMAlgorithm{CoDel, FQCoDel, PIE} {
		for codepoint := range byte(4) {
			t.Run(fmt.Sprintf("%v/%d", algorithm, codepoint), func(t *testing.T) {
				b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 100 * 1500, AQM: AQM{Algorithm: algorithm, ECN: true}})
				b.flood(codepoint, 10_000*ms)
				c := b.counters
				markable := codepoint != 0
				if markable != (c.Marked > 0) {
					t.Errorf("%d marked", c.Marked)
				}
				if drops := c.AQMDrops > 0; drops != (!markable || algorithm == PIE) {
					t.Errorf("the AQM dropped %d, and marked %d", c.AQMDrops, c.Marked)
				}
			})
		}
	}
}

// With PIE below 10 %, the share that is marked is the one that is dropped without ECN.
func TestPIEMarkShare(t *testing.T) {
	share := func(codepoint byte) (marked, dropped uint64) {
		b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 1000 * 1500, AQM: AQM{Algorithm: PIE, ECN: true}, Seed: 2})
		packet := withECN(udpPacket(1, 1500), codepoint)
		b.pie.probability, b.pie.burst = 0.05, 0
		b.pie.delay, b.pie.delayOld = 15*ms, 15*ms
		for range 10 {
			b.send(1500)
		}
		for range 9000 {
			// The controller stands still: only the decision is tested.
			b.pie.nextUpdate = b.now + int64(time.Hour)
			b.run(b.now + 1000*us)
			b.sendSuper(&superPacket{packet: slices.Clone(packet), segments: 1})
			if b.waiting() < 5 {
				b.send(1500)
			}
		}
		return b.counters.Marked, b.counters.AQMDrops
	}
	marked, dropsBeside := share(2)
	none, dropped := share(0)
	// 16 packets pass, and then each has 5 %: one of 36.
	if marked < 220 || marked > 280 || dropsBeside > 5 || none != 0 || dropped < 220 || dropped > 290 {
		t.Errorf("marked %d and dropped %d of capable packets, %d and %d of others", marked, dropsBeside, none, dropped)
	}
}

// A step threshold marks exactly the packets that have waited so long.
func TestMarkAbove(t *testing.T) {
	b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 100 * 1500, MarkAbove: 5 * time.Millisecond})
	packet := withECN(udpPacket(1, 1500), 1)
	for range 10 { // they wait 0 to 9 ms
		b.sendSuper(&superPacket{packet: slices.Clone(packet), segments: 1})
	}
	b.send(1500)
	b.advance(100 * ms)
	var marked []bool
	for {
		p, some := b.pop(100 * ms)
		if !some {
			break
		}
		marked = append(marked, p.ce)
		b.done(p.super, 1, int(p.size), true)
	}
	want := []bool{false, false, false, false, false, true, true, true, true, true, false}
	if diff := cmp.Diff(want, marked); diff != "" || b.counters.Marked != 5 {
		t.Errorf("%d marked, and these (-want +got):\n%s", b.counters.Marked, diff)
	}
}

// A marked super-packet is split where the marks change.
func TestMarksSplitSuperPackets(t *testing.T) {
	for _, version := range []int{4, 6} {
		packet, h := tcpSuperPacket(version, 10*1000, 1000, 0)
		packet = withECN(packet, 2)
		b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 100 * 1500, MarkAbove: 3 * time.Millisecond})
		super := new(superPacket)
		super.parse(packet, h)
		b.sendSuper(super)
		b.advance(100 * ms)
		sent := &recorder{}
		w := &worker{pipe: b.pipe, to: sent}
		w.deliverAt(100 * ms)
		if len(sent.packets) != 2 || sent.packets[0][1]&0x33 == sent.packets[1][1]&0x33 {
			t.Fatalf("IPv%d: %d packets", version, len(sent.packets))
		}
		total := 0
		for i, p := range sent.packets {
			for j, segment := range finish(t, sent.headers[i], p) {
				want := referenceSegments(packet, int(h.csumStart), 1000)[total]
				if i == 1 {
					referenceMark(want)
				}
				if !bytes.Equal(segment, want) {
					t.Errorf("IPv%d: packet %d, segment %d:\n got %x\nwant %x", version, i, j, segment[:60], want[:60])
				}
				total++
			}
		}
		if total != 10 || b.counters.PacketsDelivered != 10 {
			t.Errorf("IPv%d: %d segments, counters %+v", version, total, b.counters)
		}
	}
}

// recorder is a port that keeps what it sends.
type recorder struct {
	Port
	headers []vnetHeader
	packets [][]byte
}

func (r *recorder) send(h vnetHeader, head, body []byte) error {
	r.headers = append(r.headers, h)
	r.packets = append(r.packets, append(bytes.Clone(head), body...))
	return nil
}
