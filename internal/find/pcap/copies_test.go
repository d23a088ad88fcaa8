package pcap

import (
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// TestCopies captures a transfer on both sides of a router, and old stacks that keep the
// identification in retransmissions.
func TestCopies(t *testing.T) {
	for name, test := range map[string]struct {
		six, anonymous bool
		delay          float64 // of the router, ms; 0: no router
		hops           uint8   // between both captures
		burst          uint32  // segments sent at once
		keepsID        bool    // retransmissions have the identification of the first copy
	}{
		"on both sides":                      {delay: 8, hops: 1, burst: 5},
		"with a queue":                       {delay: 120, hops: 1, burst: 200},
		"in a switch":                        {delay: 8, burst: 5},
		"in a switch with a queue":           {delay: 50, burst: 200},
		"without identification":             {delay: 8, hops: 1, burst: 5, anonymous: true},
		"IPv6":                               {delay: 8, hops: 1, burst: 5, six: true},
		"once":                               {burst: 5},
		"once, by a stack that keeps the ID": {burst: 5, keepsID: true},
		"once, without identification":       {burst: 5, anonymous: true},
		"three hops apart":                   {delay: 20, hops: 3, burst: 5},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCapture(t)
			c.six = test.six
			window := uint16(60000)
			c.add(
				seg{ms: 0, from: client, flags: "S", window: window, options: []layers.TCPOption{mssOption(1460), sackPermitted(), scaleOption(4)}},
				seg{ms: 300, from: server, flags: "SA", ack: 1, window: window, options: []layers.TCPOption{mssOption(1460), sackPermitted(), scaleOption(4)}},
				seg{ms: 300.1, from: client, flags: "A", seq: 1, ack: 1, window: window},
			)
			seq := uint32(1)
			const rounds = 6
			for round := range rounds {
				at := 400 + 700*float64(round)
				for i := range test.burst {
					c.add(seg{ms: at + 0.01*float64(i), from: client, flags: "A", seq: seq + 1460*i, ack: 1, bytes: 1460, window: window})
				}
				// The first of each burst is lost behind the capture, and sent again.
				again := seg{ms: at + 340, from: client, flags: "A", seq: seq, ack: 1, bytes: 1460, window: window}
				first := c.records[len(c.records)-int(test.burst)]
				for i := range test.burst - 1 {
					c.add(seg{ms: at + 300 + 0.01*float64(i), from: server, flags: "A", seq: 1, ack: seq, window: window, options: []layers.TCPOption{c.sackOption(server, seq+1460, seq+1460*(i+2))}})
				}
				c.add(again)
				if test.keepsID && !c.six {
					copy(c.records[len(c.records)-1].data[4:6], first.data[4:6])
				}
				seq += 1460 * test.burst
				c.add(seg{ms: at + 640, from: server, flags: "A", seq: 1, ack: seq, window: window})
			}
			var copies int64
			for _, r := range slices.Clone(c.records) {
				if test.anonymous {
					copy(r.data[4:6], []byte{0, 0})
				}
				if test.delay == 0 {
					continue
				}
				far := madeRecord{slices.Clone(r.data), r.wire, r.at.Add(ms(test.delay))}
				if test.six {
					far.data[7] -= test.hops
				} else {
					far.data[8] -= test.hops
				}
				c.records = append(c.records, far)
				copies++
			}
			slices.SortStableFunc(c.records, func(a, b madeRecord) int { return a.at.Compare(b.at) })
			d := c.read().Directions
			n, back := d[client].Observation.Capture.Counts, d[server].Observation.Capture.Counts
			if n.Segments != rounds*(int64(test.burst)+1) || n.Retransmitted != rounds || n.Fast != rounds || n.Copies+back.Copies != copies || n.OutOfOrder != 0 {
				t.Errorf("%d copies, want %d; %+v", n.Copies+back.Copies, copies, n)
			}
		})
	}
}
