package pcap

import (
	"bytes"
	"slices"
	"testing"
)

// late has acknowledgements of data that the capture lacks, before the sender's first
// captured packet.
func late(c *capture, gap uint32) *capture {
	acked := uint32(1)
	for i := range 50 {
		acked += 3000
		c.add(seg{ms: float64(10 * i), from: client, flags: "A", seq: 1, ack: acked, window: 60000})
	}
	next := acked + gap
	for i := range 50 {
		at := 600 + 10*float64(i)
		c.add(seg{ms: at, from: server, flags: "A", seq: next, ack: 1, bytes: 1000})
		next += 1000
		c.add(seg{ms: at + 0.1, from: client, flags: "A", seq: 1, ack: next, window: 60000})
	}
	return c
}

// TestMissing counts acknowledged data that the capture lacks.
func TestMissing(t *testing.T) {
	for name, test := range map[string]struct {
		capture   *capture
		delivered int64
	}{
		"the sender's packets begin late":       {late(newCapture(t), 0), 49*3000 + 50_000},
		"and with others before them in flight": {late(newCapture(t), 3000), 50*3000 + 50_000},
	} {
		d := &test.capture.read().Directions[server]
		n := d.Observation.Capture.Counts
		if d.Delivered != test.delivered || n.Missing != n.Delivered-n.Bytes {
			t.Errorf("%s: %d bytes delivered, want %d; %d captured, %d missing", name, d.Delivered, test.delivered, n.Bytes, n.Missing)
		}
		before := uint64(0)
		for _, s := range d.Observation.Samples {
			if s.Info.BytesAcked < before {
				t.Errorf("%s: %d bytes acknowledged, and %d before", name, s.Info.BytesAcked, before)
			}
			before = s.Info.BytesAcked
		}
	}
}

// TestLostFile has a file of a rotated capture missing. What the others lack of the
// acknowledged data is counted, and is not in flight.
func TestLostFile(t *testing.T) {
	for name, data := range seeds(t) {
		whole := newCapture(t)
		f, err := open(bytes.NewReader(data), maxZstd)
		must(t, err)
		for r, err := f.next(); err == nil; r, err = f.next() {
			whole.link = r.link
			whole.records = append(whole.records, madeRecord{bytes.Clone(r.data), r.wire, r.at})
		}
		want := whole.read()
		for _, lost := range [][2]int{{100, 200}, {200, 300}, {300, 400}, {100, 500}} {
			rest := *whole
			rest.records = slices.Concat(whole.records[:lost[0]], whole.records[lost[1]:])
			got := rest.read()
			for i := range got.Directions {
				n, all := got.Directions[i].Observation.Capture.Counts, want.Directions[i].Observation.Capture.Counts
				if n.Missing < n.Delivered-n.Bytes || n.MaxFlight > all.MaxFlight || n.Delivered != all.Delivered {
					t.Errorf("%s without packets %d: %d bytes delivered of %d, %d captured, %d missing, %d in flight of %d",
						name, lost, n.Delivered, all.Delivered, n.Bytes, n.Missing, n.MaxFlight, all.MaxFlight)
				}
			}
		}
	}
}
