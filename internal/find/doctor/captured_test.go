package doctor

import (
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// TestCapturedRules has captures with hand-made counts of a transfer at 10 Mb/s over 50 ms.
func TestCapturedRules(t *testing.T) {
	full := Counts{Segments: 4316, FullSegments: 4316, Bytes: 6_250_000, Delivered: 6_250_000, MinRTT: 50 * time.Millisecond, MedianRTT: 60 * time.Millisecond, MaxFlight: 75_000}
	with := func(change func(n *Counts)) Counts {
		n := full
		change(&n)
		return n
	}
	queue := func(int, *Sample) {}
	noQueue := func(_ int, s *Sample) { s.Info.RTT = 51 * time.Millisecond }
	window := func(bytes uint32) func(int, *Sample) {
		return func(_ int, s *Sample) { noQueue(0, s); s.Info.SndWnd, s.Info.RwndLimited = bytes, s.At }
	}
	small := with(func(n *Counts) { n.FullSegments, n.MaxFlight = 0, 300 })
	for _, test := range []struct {
		name     string
		change   func(int, *Sample)
		counts   Counts
		receiver bool // the capture is from there
		cause    Cause
		strength Strength
	}{
		// 1: reordering
		{"one needless retransmission", noQueue, with(func(n *Counts) { n.Retransmitted, n.Spurious = 1, 1 }), false, Unexplained, NotCertain},
		{"some, in order", noQueue, with(func(n *Counts) { n.Retransmitted, n.Spurious = 40, 40 }), false, SpuriousRetransmissions, Likely},
		{"some, in order, at the receiver", noQueue, with(func(n *Counts) { n.Retransmitted, n.Spurious = 40, 40 }), true, SpuriousRetransmissions, Likely},
		{"some, and few overtaken", noQueue, with(func(n *Counts) { n.Retransmitted, n.Spurious, n.Overtaken = 40, 40, 4 }), false, Reordering, Likely},
		{"some, and many out of order", noQueue, with(func(n *Counts) { n.Retransmitted, n.Spurious, n.OutOfOrder = 40, 40, 40 }), true, Reordering, Certain},
		// 3: a full path
		{"a queue", queue, full, false, Healthy, NotCertain},
		{"a queue, but few segments at once", queue, with(func(n *Counts) { n.MaxFlight = 3000 }), false, Unexplained, NotCertain},
		{"a queue of half a millisecond", func(_ int, s *Sample) { s.Info.MinRTT, s.Info.RTT = time.Millisecond, 1500*time.Microsecond }, full, false, Unexplained, NotCertain},
		{"a queue, and closed windows", queue, with(func(n *Counts) { n.ZeroWindows = 2 }), false, Unexplained, NotCertain},
		{"requests and answers", queue, with(func(n *Counts) { n.Segments, n.FullSegments, n.Bytes, n.Turns = 430, 0, 36_000, 429 }), false, Application, Certain},
		{"requests and answers of some segments", queue, with(func(n *Counts) {
			n.Segments, n.FullSegments, n.Bytes, n.Turns, n.MaxFlight = 1200, 900, 1_500_000, 300, 5500
		}), false, Application, Certain},
		{"answers of some segments, at the receiver, where no flight shows", queue, with(func(n *Counts) {
			n.Segments, n.FullSegments, n.Bytes, n.Turns, n.MaxFlight = 1200, 900, 1_500_000, 300, 5500
		}), true, Unexplained, NotCertain},
		{"data in two bursts", queue, with(func(n *Counts) { n.Turns = 2 }), false, Healthy, NotCertain},
		// 4: the window
		{"the window allows as much", window(62_500), with(func(n *Counts) { n.WindowFull = 400 }), false, ReceiverWindow, Certain},
		{"the window allows far more", window(1 << 30), with(func(n *Counts) { n.WindowFull = 400 }), false, Unexplained, NotCertain},
		{"the window was never full", window(62_500), full, false, Unexplained, NotCertain},
		{"window full at the receiver", func(int, *Sample) {}, with(func(n *Counts) { n.WindowFull, n.WindowMedian, n.WindowMax = 2000, 62_500, 90_000 }), true, ReceiverWindow, Likely},
		{"a window per round trip at the receiver", func(int, *Sample) {}, with(func(n *Counts) { n.WindowMedian, n.WindowMax = 65_000, 65_535 }), true, ReceiverWindow, Likely},
		// 5: small segments
		{"small segments of a program", noQueue, small, false, Application, Likely},
		// 6: what was counted
		{"a closed window", noQueue, with(func(n *Counts) { n.ZeroWindows, n.ZeroWindowTime = 20, 2*time.Second }), true, Reader, Certain},
		{"a window closed for a moment", noQueue, with(func(n *Counts) { n.ZeroWindows, n.ZeroWindowTime = 1, 2*time.Millisecond }), true, Unexplained, NotCertain},
		{"windows closed and full", noQueue, with(func(n *Counts) { n.ZeroWindows, n.ZeroWindowTime, n.WindowFull = 15, 90*time.Millisecond, 579 }), true, Reader, Likely},
		{"reset by the receiver, there", noQueue, with(func(n *Counts) { n.Reset, n.ResetOutstanding = ResetByReceiver, 44_000 }), true, Reset, Certain},
		{"reset by the receiver, seen at the sender", noQueue, with(func(n *Counts) { n.Reset, n.ResetOutstanding = ResetByReceiver, 44_000 }), false, Reset, Likely},
		{"reset after the last words", noQueue, with(func(n *Counts) { n.Reset, n.ResetOutstanding = ResetByReceiver, 31 }), true, Unexplained, NotCertain},
		// 2: stalls
		{"nothing heard", noQueue, with(func(n *Counts) {
			n.Stall = Stall{Time: 16 * time.Second, Retransmissions: 6, AtEnd: true, SegmentBytes: 1448, AnsweredBytes: 1448}
		}), false, Outage, Certain},
		{"full segments alone, and the peer is heard", noQueue, with(func(n *Counts) {
			n.Stall = Stall{Time: 16 * time.Second, Retransmissions: 6, AtEnd: true, SegmentBytes: 1448, AnsweredBytes: 200, Heard: 3}
		}), false, BlackHole, Certain},
		{"full segments alone", noQueue, with(func(n *Counts) {
			n.Stall = Stall{Time: 16 * time.Second, Retransmissions: 6, AtEnd: true, SegmentBytes: 1448, AnsweredBytes: 200}
		}), false, BlackHole, Likely},
		{"small segments get no answer, and the peer is heard", noQueue, with(func(n *Counts) {
			n.Stall = Stall{Time: 16 * time.Second, Retransmissions: 6, AtEnd: true, SegmentBytes: 200, AnsweredBytes: 1448, Heard: 3}
		}), false, Unexplained, NotCertain},
		{"the window is closed meanwhile", noQueue, with(func(n *Counts) {
			n.ZeroWindows, n.ZeroWindowTime, n.ZeroWindowAtEnd = 1, 4*time.Second, true
			n.Stall = Stall{Time: 4 * time.Second, Retransmissions: 4, AtEnd: true, SegmentBytes: 1448, AnsweredBytes: 1448, Heard: 4}
		}), false, Reader, Certain},
		{"an interruption", noQueue, with(func(n *Counts) {
			n.Stall = Stall{Time: 4 * time.Second, Retransmissions: 4, SegmentBytes: 1448, AnsweredBytes: 1448}
		}), false, Outage, Likely},
		{"the capture lacks half", noQueue, with(func(n *Counts) { n.Missing, n.Retransmitted, n.Spurious = 3_000_000, 40, 40 }), false, Unexplained, NotCertain},
	} {
		o := bulk(test.change)
		o.Elsewhere = true
		o.Capture = &Capture{AtSender: !test.receiver, Handshake: true, Time: 5 * time.Second, AgreedMSS: 1348, SenderMSS: 1448, Counts: test.counts}
		if test.counts.FullSegments > 0 {
			o.Capture.SenderMSS = o.Capture.AgreedMSS
		}
		for k := range o.Samples {
			o.Samples[k].SendBuffer, o.Samples[k].SendQueued, o.Samples[k].CPU = -1, -1, -1
			info := &o.Samples[k].Info
			known := *info
			if !test.receiver {
				continue
			}
			*info = tcpinfo.Info{SndMSS: known.SndMSS, MinRTT: known.MinRTT, BytesAcked: known.BytesAcked}
			info.Know(tcpinfo.FieldSndMSS, tcpinfo.FieldMinRTT, tcpinfo.FieldBytesAcked)
		}
		r, err := Diagnose(o)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if r.Cause != test.cause || r.Strength != test.strength {
			t.Errorf("%s: %s, %s, want %s, %s: %+v", test.name, r.Cause, r.Strength, test.cause, test.strength, r.Findings)
		}
	}
}
