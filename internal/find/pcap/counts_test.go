package pcap

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/layers"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/tcpinfo"
)

// flight is a number of full segments, one after the other within a millisecond.
func flight(ms float64, seq uint32, segments int) (all []seg) {
	for i := range segments {
		all = append(all, seg{ms: ms + float64(i)*0.01, from: client, flags: "A", seq: seq + uint32(i)*1448, ack: 1, bytes: 1448})
	}
	return all
}

// ms is a time in milliseconds.
func ms(n float64) time.Duration { return time.Duration(n * 1e6) }

// TestCounts has the counts of the client's data after a handshake of 100 ms at the
// client. The server's window is 4 times the field, and 4000 in what a case leaves out.
func TestCounts(t *testing.T) {
	acknowledged := func(at float64, ack uint32, options ...layers.TCPOption) seg {
		return seg{ms: at, from: server, flags: "A", seq: 1, ack: ack, window: 5000, options: options}
	}
	open := doctor.Counts{WindowMin: 20000, WindowMedian: 20000, WindowMax: 20000, MinRTT: ms(100), MedianRTT: ms(100), P95RTT: ms(100)}
	for name, test := range map[string]struct {
		segs func(c *capture) []seg
		want func(w *doctor.Counts)
	}{
		"two flights": {func(*capture) []seg {
			all := append(flight(110, 1, 2), seg{ms: 110.03, from: client, flags: "PA", seq: 2897, ack: 1, bytes: 100})
			all = append(all, acknowledged(210.03, 2997))
			all = append(all, seg{ms: 500, from: client, flags: "A", seq: 2997, ack: 1, bytes: 1448}, acknowledged(600, 4445))
			return all
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered = 4, 3, 4444, 4444
			w.MaxFlight, w.Pauses, w.PauseTime = 2996, 1, ms(289.87)
		}},
		"fast retransmit": {func(c *capture) []seg {
			all := flight(110, 1, 5)
			for i := range uint32(4) {
				all = append(all, acknowledged(210+float64(i), 1, c.sackOption(server, 1449, 2897+1448*i)))
			}
			return append(all, flight(214, 1, 1)[0], acknowledged(314, 7241))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered = 6, 6, 7240, 7240
			w.Retransmitted, w.Fast, w.MaxFlight = 1, 1, 7240
			w.Stall = doctor.Stall{Time: ms(101), Retransmissions: 1, SegmentBytes: 1448, AnsweredBytes: 1448}
		}},
		"timeout, and the rest after it": {func(*capture) []seg {
			all := append(flight(110, 1, 4), flight(510, 1, 1)...)
			all = append(all, acknowledged(610, 1449))
			all = append(all, flight(610.1, 1449, 2)...)
			return append(all, acknowledged(710.2, 5793))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered = 7, 7, 5792, 5792
			w.Retransmitted, w.AfterTimeout, w.MaxFlight = 3, 3, 5792
			w.Stall = doctor.Stall{Time: ms(500), Retransmissions: 1, SegmentBytes: 1448}
		}},
		"tail probe": {func(c *capture) []seg {
			all := append(flight(110, 1, 3), flight(320, 2897, 1)...)
			return append(all, acknowledged(420, 2897, c.sackOption(server, 2897, 4345)), acknowledged(421, 4345))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered = 4, 4, 4344, 4344
			w.Retransmitted, w.TailProbes, w.MaxFlight = 1, 1, 4344
			w.Stall = doctor.Stall{Time: ms(310), Retransmissions: 1, SegmentBytes: 1448}
		}},
		"overtaken behind the capture": {func(c *capture) []seg {
			all := append(flight(110, 1, 4), acknowledged(210, 1, c.sackOption(server, 1449, 4345)))
			return append(all, acknowledged(211, 5793))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered = 4, 4, 5792, 5792
			w.MaxFlight, w.Overtaken, w.Extent = 5792, 1, 2
		}},
		"the capture lacks the retransmission's neighbour": {func(c *capture) []seg {
			all := append(flight(110, 1, 4), acknowledged(210, 1, c.sackOption(server, 1449, 4345)))
			return append(all, acknowledged(211, 5793+1448))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered = 4, 4, 5792, 7240
			w.MaxFlight, w.Extent, w.Missing = 5792, 0, 1448
		}},
		"acknowledged before it is in the file": {func(*capture) []seg {
			all := append(flight(110, 1, 2), acknowledged(210, 2897+1448))
			all = append(all, flight(210.1, 2897, 1)...)
			return append(all, acknowledged(310, 2897+1448))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight = 3, 3, 4344, 4344, 2896
			w.MinRTT, w.MedianRTT, w.P95RTT = ms(99.99), ms(99.99), ms(99.99)
		}},
		"missing, and needlessly sent again": {func(*capture) []seg {
			all := append(flight(110, 1, 2), acknowledged(210, 2897+1448))
			all = append(all, flight(410, 2897, 1)...)
			return append(all, acknowledged(510, 2897+1448))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight = 3, 3, 2896, 4344, 2896
			w.MinRTT, w.MedianRTT, w.P95RTT = ms(99.99), ms(99.99), ms(99.99)
			w.Retransmitted, w.TailProbes, w.Spurious, w.Missing = 1, 1, 1, 1448
		}},
		"closed window": {func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 0},
				{ms: 510, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1},
				{ms: 610, from: server, flags: "A", seq: 1, ack: 1001, window: 0},
				acknowledged(710, 1001),
				{ms: 711, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1448},
				{ms: 811, from: server, flags: "A", seq: 1, ack: 2449, window: 0},
				{ms: 1811, from: client, flags: "A", seq: 2448, ack: 1},
			}
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight = 2, 1, 2448, 2448, 1448
			w.ZeroWindows, w.ZeroWindowTime, w.LongestZeroWindow, w.ZeroWindowAtEnd = 2, ms(1500), ms(1000), true
			w.Probes, w.WindowMin, w.WindowMedian = 2, 0, 0
		}},
		"probe taken after the window opened": {func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 0},
				{ms: 510, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1},
				acknowledged(600, 1001),
				{ms: 600, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1448},
				acknowledged(610, 1002),
				acknowledged(700, 2449),
			}
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight = 2, 1, 2448, 2448, 1448
			w.ZeroWindows, w.ZeroWindowTime, w.LongestZeroWindow, w.Probes, w.WindowMin, w.WindowMedian = 1, ms(390), ms(390), 1, 0, 20000
		}},
		"window filled": {func(*capture) []seg {
			return append(flight(110, 1, 1), seg{ms: 210, from: server, flags: "A", seq: 1, ack: 1449, window: 2 * 1448 / 4},
				flight(210, 1449, 1)[0], flight(260, 2897, 1)[0], acknowledged(360, 4345))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight = 3, 3, 4344, 4344, 2896
			w.WindowFull, w.WindowMin, w.WindowMedian = 1, 2896, 2912
		}},
		"keepalives": {func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 10}, acknowledged(210, 11),
				{ms: 9000, from: client, flags: "A", seq: 10, ack: 1}, acknowledged(9100, 11),
				{ms: 18000, from: client, flags: "A", seq: 10, ack: 1, bytes: 1}, acknowledged(18100, 11),
			}
		}, func(w *doctor.Counts) {
			w.Segments, w.Bytes, w.Delivered, w.MaxFlight, w.KeepAlives = 1, 10, 10, 10, 2
		}},
		"requests and answers": {func(*capture) []seg {
			var all []seg
			for i := range uint32(3) {
				at := 110 + 400*float64(i)
				all = append(all,
					seg{ms: at, from: client, flags: "PA", seq: 1 + 10*i, ack: 1 + 20*i, bytes: 10},
					seg{ms: at + 100, from: server, flags: "A", seq: 1 + 20*i, ack: 11 + 10*i, window: 5000},
					seg{ms: at + 350, from: server, flags: "PA", seq: 1 + 20*i, ack: 11 + 10*i, bytes: 20, window: 5000})
			}
			return all
		}, func(w *doctor.Counts) {
			w.Segments, w.Bytes, w.Delivered, w.MaxFlight = 3, 30, 30, 10
			w.Turns, w.Pauses, w.PauseTime, w.WaitedForPeer = 2, 2, ms(599.8), ms(599.8)
		}},
		"reset by the receiver": {func(*capture) []seg {
			return append(flight(110, 1, 3), acknowledged(210, 1449), seg{ms: 220, from: server, flags: "RA", seq: 1, ack: 1})
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight = 3, 3, 4344, 1448, 4344
			w.Reset, w.ResetOutstanding = doctor.ResetByReceiver, 2896
		}},
		"stall to the end": {func(*capture) []seg {
			all := []seg{{ms: 110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 100}, acknowledged(210, 101)}
			all = append(all, flight(300, 101, 2)...)
			for _, at := range []float64{700, 1500, 3100} {
				all = append(all, flight(at, 101, 1)...)
			}
			return append(all, acknowledged(3200, 101))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight = 6, 5, 2996, 100, 2896
			w.Retransmitted, w.AfterTimeout = 3, 3
			w.Stall = doctor.Stall{Time: ms(2900), Retransmissions: 3, AtEnd: true, SegmentBytes: 1448, AnsweredBytes: 100, Heard: 1}
		}},
		"needless retransmission": {func(c *capture) []seg {
			all := append(flight(110, 1, 2), acknowledged(210, 2897))
			all = append(all, flight(220, 1, 1)...)
			return append(all, acknowledged(320, 2897, c.sackOption(server, 1, 1449)))
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight = 3, 3, 2896, 2896, 2896
			w.Retransmitted, w.Spurious = 1, 1
			w.MinRTT, w.MedianRTT, w.P95RTT = ms(99.99), ms(99.99), ms(99.99)
		}},
		"SYN and FIN are no segments": {func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "FPA", seq: 1, ack: 1, bytes: 10},
				{ms: 510, from: client, flags: "FPA", seq: 1, ack: 1, bytes: 10},
				acknowledged(610, 11),
				{ms: 1110, from: client, flags: "FA", seq: 11, ack: 1},
				acknowledged(1210, 12),
			}
		}, func(w *doctor.Counts) {
			w.Segments, w.Bytes, w.Delivered, w.MaxFlight, w.Retransmitted, w.TailProbes = 2, 10, 10, 10, 1, 1
			w.Stall = doctor.Stall{Time: ms(500), Retransmissions: 1, SegmentBytes: 10}
		}},
		"in super-packets": {func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 10*1448 + 100},
				{ms: 111, from: client, flags: "PA", seq: 1, ack: 1, bytes: 2 * 1448},
				acknowledged(210, 14581),
			}
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight, w.Retransmitted = 13, 12, 14580, 14580, 14580, 2
			w.Stall = doctor.Stall{Time: ms(100), Retransmissions: 2, SegmentBytes: 1448}
		}},
		"captured twice": {func(*capture) []seg {
			data := flight(110, 1, 1)[0]
			again := data
			again.ms, again.sameID = 110.2, true
			return []seg{data, again, acknowledged(210, 1449)}
		}, func(w *doctor.Counts) {
			w.Segments, w.FullSegments, w.Bytes, w.Delivered, w.MaxFlight, w.Copies = 1, 1, 1448, 1448, 1448, 1
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want := open
			test.want(&want)
			c := newCapture(t).handshake()
			got := c.add(test.segs(c)...).read().Directions[client].Observation.Capture.Counts
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestCountsAtReceiver has the counts of the client's data at the server.
func TestCountsAtReceiver(t *testing.T) {
	stamp := func(v uint32) []layers.TCPOption { return []layers.TCPOption{stampOption(v, 9001)} }
	options := []layers.TCPOption{mssOption(1460), sackPermitted(), stampOption(1, 0), scaleOption(7)}
	c := newCapture(t).add(
		seg{ms: 0, from: client, flags: "S", window: 64000, options: options},
		seg{ms: 0.5, from: server, flags: "SA", ack: 1, window: 64000, options: options},
		seg{ms: 100, from: client, flags: "A", seq: 1, ack: 1, window: 500},
		seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448, options: stamp(110)},
		seg{ms: 111, from: client, flags: "A", seq: 2897, ack: 1, bytes: 1448, options: stamp(110)},
		seg{ms: 112, from: client, flags: "A", seq: 4345, ack: 1, bytes: 1448, options: stamp(110)},
		seg{ms: 113, from: client, flags: "A", seq: 1449, ack: 1, bytes: 1448, options: stamp(110)}, // overtaken by two
		seg{ms: 113.5, from: server, flags: "A", seq: 1, ack: 5793, window: 500, options: stamp(120)},
		seg{ms: 120, from: client, flags: "A", seq: 7241, ack: 1, bytes: 1448, options: stamp(112)},
		seg{ms: 120.5, from: server, flags: "A", seq: 1, ack: 5793, window: 500, options: []layers.TCPOption{stampOption(120, 110), newCapture(t).sackOption(server, 7241, 8689)}},
		seg{ms: 221, from: client, flags: "A", seq: 5793, ack: 1, bytes: 1448, options: stamp(221)}, // lost, sent again
		seg{ms: 221.5, from: server, flags: "A", seq: 1, ack: 8689, window: 500, options: stamp(221)},
		seg{ms: 600, from: client, flags: "A", seq: 7241, ack: 1, bytes: 1448, options: stamp(600)}, // needlessly
		seg{ms: 600.5, from: server, flags: "A", seq: 1, ack: 8689, window: 500, options: stamp(600)},
	).read()
	want := doctor.Counts{
		Segments: 7, FullSegments: 7, Bytes: 6 * 1448, Delivered: 6 * 1448,
		Retransmitted: 2, Fast: 1, TailProbes: 1, Spurious: 1, OutOfOrder: 1, Extent: 2,
		WindowMin: 64000, WindowMedian: 64000, WindowMax: 64000, MinRTT: ms(0.5), MedianRTT: ms(0.503808), P95RTT: ms(0.503808),
		MaxFlight: 5792, Stall: doctor.Stall{Time: ms(101), Retransmissions: 1, SegmentBytes: 1448, AnsweredBytes: 1448},
	}
	if diff := cmp.Diff(want, c.Directions[client].Observation.Capture.Counts); diff != "" {
		t.Error(diff)
	}
}

// TestLargerSegments sends segments that exceed what the handshake allows.
func TestLargerSegments(t *testing.T) {
	for name, test := range map[string]struct {
		options [2][]layers.TCPOption // of the SYN and its answer
		bytes   int
		agreed  int // size of a segment by the handshake; 0: unknown
	}{
		"no MSS":                     {bytes: 1360},
		"no MSS of the receiver":     {options: [2][]layers.TCPOption{{mssOption(1460)}}, bytes: 1360},
		"no room for the timestamps": {options: [2][]layers.TCPOption{{mssOption(1392), stampOption(1, 0)}, {mssOption(1392), stampOption(1, 1)}}, bytes: 1392, agreed: 1392},
		"sender announces less":      {options: [2][]layers.TCPOption{{mssOption(1000)}, {mssOption(1460)}}, bytes: 1460, agreed: 1460},
		"as large as they announce":  {options: [2][]layers.TCPOption{{mssOption(1360)}, {mssOption(1460)}}, bytes: 1360, agreed: 1360},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCapture(t).add(
				seg{ms: 0, from: client, flags: "S", options: test.options[client]},
				seg{ms: 100, from: server, flags: "SA", ack: 1, window: 60000, options: test.options[server]},
				seg{ms: 100.1, from: client, flags: "A", seq: 1, ack: 1},
			)
			for i := range uint32(30) {
				data := seg{ms: 110 + float64(i), from: client, flags: "A", seq: 1 + i*uint32(test.bytes), ack: 1, bytes: test.bytes}
				c.add(data)
				if i%3 == 2 {
					data.ms += 0.5
					c.add(data)
				}
			}
			d := c.add(seg{ms: 250, from: server, flags: "A", seq: 1, ack: 1 + 30*uint32(test.bytes), window: 60000}).read().Directions[client]
			n := d.Observation.Capture.Counts
			// Until three packets disprove what the ends announce, two may count twice.
			if n.Segments < 40 || n.Segments > 42 || n.Retransmitted != 10 || n.FullSegments != 40 || d.SuperPackets > 2 || d.Observation.Capture.AgreedMSS != test.agreed {
				t.Errorf("%d super-packets, %+v", d.SuperPackets, d.Observation.Capture)
			}
		})
	}
}

// TestShares has no share above 1: of a connection whose window was closed in a pause,
// and of one whose SYN and FIN were sent again.
func TestShares(t *testing.T) {
	closed := newCapture(t).handshake().add(
		seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
		seg{ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 0},
		seg{ms: 9210, from: server, flags: "A", seq: 1, ack: 1001, window: 1000},
		seg{ms: 9250, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1448},
		seg{ms: 9350, from: server, flags: "A", seq: 1, ack: 2449, window: 1000},
	).read().Directions[client].Observation
	if last := closed.Samples[len(closed.Samples)-1].Info; last.BusyTime < 9*time.Second {
		t.Errorf("busy for %v", last.BusyTime)
	}
	flags := newCapture(t).add(
		seg{ms: 0, from: client, flags: "S", options: []layers.TCPOption{mssOption(1460)}},
		seg{ms: 1000, from: client, flags: "S", options: []layers.TCPOption{mssOption(1460)}},
		seg{ms: 3000, from: client, flags: "S", options: []layers.TCPOption{mssOption(1460)}},
		seg{ms: 3100, from: server, flags: "SA", ack: 1, window: 60000, options: []layers.TCPOption{mssOption(1460)}},
		seg{ms: 3110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 10},
		seg{ms: 3510, from: client, flags: "PA", seq: 1, ack: 1, bytes: 10},
		seg{ms: 3610, from: server, flags: "A", seq: 1, ack: 11, window: 60000},
		seg{ms: 3700, from: client, flags: "FA", seq: 11, ack: 1},
		seg{ms: 4700, from: client, flags: "FA", seq: 11, ack: 1},
		seg{ms: 6700, from: client, flags: "FA", seq: 11, ack: 1},
	).read().Directions[client].Observation
	for _, o := range []doctor.Observation{closed, flags} {
		for i := range o.Samples {
			some := o
			some.Samples = o.Samples[i:]
			f := some.Figures()
			if f.Busy > 1 || f.Rwnd > 1 || f.LossShare > 1 || f.SpuriousShare > 1 {
				t.Errorf("from sample %d: busy %.2f, limited by the window %.2f, lost %.2f", i, f.Busy, f.Rwnd, f.LossShare)
			}
			for k := 1; k < len(some.Samples); k++ {
				a, b := &some.Samples[k-1], &some.Samples[k]
				if passed := b.At - a.At; b.Info.BusyTime-a.Info.BusyTime > passed || b.Info.RwndLimited-a.Info.RwndLimited > passed || b.Info.BusyTime < a.Info.BusyTime {
					t.Errorf("in %v, busy for %v, limited by the window for %v", passed, b.Info.BusyTime-a.Info.BusyTime, b.Info.RwndLimited-a.Info.RwndLimited)
				}
			}
		}
	}
	if n := flags.Capture.Counts; n.Retransmitted != 1 || n.Segments != 2 {
		t.Errorf("%d of %d segments retransmitted", n.Retransmitted, n.Segments)
	}
}

// TestWithoutHandshake has zero windows at the receiver, whose scale is unknown, and
// probes by a timer of the sender.
func TestWithoutHandshake(t *testing.T) {
	stamp := func(value, echo uint32) []layers.TCPOption { return []layers.TCPOption{stampOption(value, echo)} }
	c := newCapture(t).add(
		seg{ms: 0, from: client, flags: "PA", seq: 1, ack: 1, bytes: 1344, window: 108, options: stamp(100, 50)},
		seg{ms: 0.5, from: server, flags: "A", seq: 1, ack: 1345, options: stamp(1000, 100)},
	)
	at := 0.5
	for i, after := range []float64{3410, 6780, 13500} {
		at += after
		c.add(
			seg{ms: at, from: client, flags: "A", seq: 1344, ack: 1, window: 108, options: stamp(100+uint32(at), 1000+uint32(i))},
			seg{ms: at + 0.5, from: server, flags: "A", seq: 1, ack: 1345, options: stamp(1001+uint32(i), 100+uint32(at))},
		)
	}
	d := c.read().Directions[client]
	want := doctor.Counts{
		Segments: 1, Bytes: 1344, Delivered: 1344, MaxFlight: 1344, ZeroWindows: 1, ZeroWindowAtEnd: true, Probes: 3,
		ZeroWindowTime: ms(23690.5), LongestZeroWindow: ms(23690.5), MinRTT: ms(0.5), MedianRTT: ms(0.5), P95RTT: ms(0.5),
	}
	if diff := cmp.Diff(want, d.Observation.Capture.Counts); diff != "" {
		t.Error(diff)
	}
	for _, s := range d.Observation.Samples {
		if s.Info.Has(tcpinfo.FieldMinRTT) && s.Info.MinRTT > ms(1) {
			t.Errorf("the lowest round trip is %v, which is the time between two probes", s.Info.MinRTT)
		}
	}
}

// TestHistogram compares quantiles with those of the values.
func TestHistogram(t *testing.T) {
	var h histogram
	if h.quantile(0.5) != 0 {
		t.Error("a quantile without values")
	}
	for v := int64(99_999); v >= 0; v-- { // each of them the least so far
		h.add(v * v)
	}
	for _, q := range []float64{0, 0.01, 0.5, 0.95, 1} {
		v := q * 99_999
		want, got := v*v, float64(h.quantile(q))
		if got < 0.98*want-1 || got > 1.02*want+1 {
			t.Errorf("quantile %.2f is %.0f, want %.0f", q, got, want)
		}
	}
	h.add(1 << 62)
	if h.quantile(1) != 1<<62 || len(h.buckets) > 2000 {
		t.Errorf("%d in %d buckets", h.quantile(1), len(h.buckets))
	}
}
