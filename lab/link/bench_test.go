package link

import (
	"testing"
	"time"
)

// BenchmarkPipe carries super-packets of 45 segments through a bottleneck, without
// the system calls.
func BenchmarkPipe(b *testing.B) {
	for _, test := range []struct {
		name string
		s    Settings
	}{
		{"unbounded", Settings{Delay: 10 * time.Millisecond}},
		{"bounded", Settings{Delay: 10 * time.Millisecond, RateBps: 1e9, Loss: Loss{Probability: 0.01}}},
	} {
		b.Run(test.name, func(b *testing.B) {
			packet, h := tcpSuperPacket(4, 45*1448, 1448, 12)
			var super superPacket
			p := newPipe(test.s, test.s.QueueLimitBytes(test.s.Delay), func(*superPacket) {})
			now := int64(0)
			packets := 0
			for b.Loop() {
				super.parse(packet, h)
				now += 45 * 12_000 // ns at 1 Gb/s
				p.arrive(now, &super)
				p.advance(now)
				for {
					next, ok := p.pop(now)
					if !ok {
						break
					}
					p.done(next.super, 1, int(next.size), true)
					packets++
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(max(packets, 1)), "ns/packet")
			if packets == 0 && b.N > 1000 {
				b.Errorf("no packet left: %+v", p.counters)
			}
		})
	}
}
