package doctor

import (
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/sys/tcpinfo"
)

var update = flag.Bool("update", false, "write the doctor's reports of the records to testdata")

// TestRecords has the doctor diagnose records of real connections with a known cause
// in the lab, which is the file's name.
func TestRecords(t *testing.T) {
	records, err := filepath.Glob("testdata/*.json")
	if err != nil || len(records) == 0 {
		t.Fatalf("no records: %v", err)
	}
	seen := map[Cause]bool{}
	for _, path := range records {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		t.Run(name, func(t *testing.T) {
			r, err := Diagnose(readRecord(t, path))
			if err != nil {
				t.Fatal(err)
			}
			cause, _, _ := strings.Cut(name, "@")
			if r.Cause != Cause(cause) {
				t.Errorf("verdict %s", r.Cause)
			}
			seen[r.Cause] = true
			r.Figures = Figures{} // tested separately
			got, err := json.MarshalIndent(struct {
				Sentence string
				Findings []Finding
				Remedies []Remedy
				Strength Strength
				Doubt    string
			}{r.Sentence(), r.Findings, r.Remedies, r.Strength, r.Doubt}, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(path, ".json") + ".want"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", golden, diff)
			}
		})
	}
	for _, cause := range Causes() {
		if cause != Unexplained && cause != Loss && cause != Stalled && !seen[cause] {
			t.Errorf("there is no record of %s", cause)
		}
	}
}

func readRecord(t *testing.T, path string) (o Observation) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// bulk observes a healthy connection at 10 Mb/s over 50 ms, in the middle of a
// transfer: a sample every 100 ms for 5 s, each modified by change.
func bulk(change func(k int, s *Sample)) Observation {
	o := Observation{CongestionControl: "cubic"}
	const perSample = 125_000 // bytes
	for k := range 51 {
		s := Sample{At: time.Duration(k) * 100 * time.Millisecond, SendBuffer: 1 << 20, SendQueued: 900_000, RecvQueue: 0, CPU: time.Duration(k) * time.Millisecond}
		segments := uint32(k * perSample / 1448)
		s.Info = tcpinfo.Info{
			State: tcpinfo.Established, Options: tcpinfo.OptTimestamps | tcpinfo.OptSACK | tcpinfo.OptWScale,
			SndMSS: 1448, RTT: 60 * time.Millisecond, MinRTT: 50 * time.Millisecond, SndCwnd: 52, SndSSThresh: 40, Unacked: 52,
			SndWnd: 3 << 20, BytesAcked: uint64(k * perSample), BytesSent: uint64(k * perSample), DataSegsOut: segments, Delivered: segments,
			NotsentBytes: 500_000, MaxPacingRateBps: tcpinfo.Unlimited, BusyTime: s.At, Reordering: 3,
		}
		for f := tcpinfo.FieldState; f <= tcpinfo.FieldTotalRTOTime; f++ {
			s.Info.Know(f)
		}
		if change != nil {
			change(k, &s)
		}
		s.Info.BytesRetrans = uint64(s.Info.TotalRetrans) * uint64(s.Info.SndMSS)
		o.Samples = append(o.Samples, s)
	}
	return o
}

// TestShares has no share above 1 where a SYN and a FIN were sent again.
func TestShares(t *testing.T) {
	first, last := Sample{}, Sample{At: time.Second}
	last.Info = tcpinfo.Info{SndMSS: 1448, DataSegsOut: 2, BytesSent: 200, TotalRetrans: 3, DSACKDups: 3, BusyTime: 1010 * time.Millisecond}
	for f := tcpinfo.FieldState; f <= tcpinfo.FieldTotalRTOTime; f++ {
		first.Info.Know(f)
		last.Info.Know(f)
	}
	if f := (Observation{Samples: []Sample{first, last}}).Figures(); f.LossShare != 0 || f.Busy != 1 {
		t.Errorf("without data sent again, %.2f are lost, busy for %.2f", f.LossShare, f.Busy)
	}
	last.Info.BytesRetrans = 100
	if f := (Observation{Samples: []Sample{first, last}}).Figures(); f.LossShare != 1 || f.SpuriousShare > 1 {
		t.Errorf("%.2f are lost, %.2f needlessly", f.LossShare, f.SpuriousShare)
	}
}

// Where segments overtake others by more than the clock of TCP's timestamps shows, the
// remedy is to turn those off.
func TestTimestampsAndReordering(t *testing.T) {
	for _, test := range []struct {
		name       string
		segments   int // of the kernel's estimate; at 10 Mb/s of data each takes 1.2 ms
		timestamps bool
		named      bool
	}{
		{"by 58 ms", 50, true, true},
		{"by 58 ms, without timestamps", 50, false, false},
		{"by 3 ms", 3, true, false},
	} {
		r, err := Diagnose(bulk(func(k int, s *Sample) {
			s.Info.ReordSeen, s.Info.Reordering = uint32(k), uint32(test.segments)
			if !test.timestamps {
				s.Info.Options &^= tcpinfo.OptTimestamps
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		if r.Cause != Reordering {
			t.Errorf("%s: verdict %s", test.name, r.Cause)
		}
		named := slices.ContainsFunc(r.Remedies, func(r Remedy) bool { return strings.Contains(r.Command, "tcp_timestamps=0") })
		said := strings.Contains(strings.Join(r.Findings[0].Evidence, "\n"), "PAWS")
		if named != test.named || said != test.named {
			t.Errorf("%s: remedy %v, evidence %v, want %v", test.name, named, said, test.named)
		}
	}
}

func TestRules(t *testing.T) {
	capacity := func(mbps float64) func(*Observation) {
		return func(o *Observation) {
			o.Capacity = &Trial{Streams: 4, GoodputBps: mbps * 1e6, MinRTT: 50 * time.Millisecond, RTT: 75 * time.Millisecond, SegmentBytes: 1448}
		}
	}
	for _, test := range []struct {
		name      string
		change    func(k int, s *Sample)
		beside    func(*Observation)
		cause     Cause
		predicted float64 // Mb/s; 0 is none
	}{
		{"fills what several fill", nil, capacity(10.5), Healthy, 0},
		{"several get no more, and wait", func(_ int, s *Sample) { s.Info.RTT = 90 * time.Millisecond }, capacity(14), Healthy, 0},
		{"others fill the queue", func(_ int, s *Sample) { s.Info.RTT = 90 * time.Millisecond }, capacity(40), Congestion, 0},
		{"losses without a queue", lose(10), capacity(40), RandomLoss, 40},
		{"losses without a queue, nothing tried", lose(10), nil, RandomLoss, 0},
		{"losses that were none", func(k int, s *Sample) {
			lose(30)(k, s)
			s.Info.DSACKDups, s.Info.ReordSeen = s.Info.TotalRetrans, s.Info.TotalRetrans
		}, capacity(40), Reordering, 40},
		{"losses that were none, and the order did not change", func(k int, s *Sample) { lose(30)(k, s); s.Info.DSACKDups = s.Info.TotalRetrans }, capacity(40), SpuriousRetransmissions, 40},
		{"one loss that was none", func(k int, s *Sample) {
			s.Info.TotalRetrans, s.Info.DSACKDups = uint32(k/50), uint32(k/50)
		}, capacity(10.5), Healthy, 0},
		{"losses that grow with the rate, and no queue", lose(5), func(o *Observation) {
			capacity(14)(o)
			o.Capacity.LossShare, o.Capacity.RTT = 0.08, 52*time.Millisecond
		}, Policer, 14},
		{"window all the time", func(_ int, s *Sample) { s.Info.SndWnd, s.Info.RwndLimited = 62500, s.At }, capacity(40), ReceiverWindow, 40},
		{"window, and losses that bound what comes next", func(k int, s *Sample) {
			s.Info.TotalRetrans, s.Info.RTT = uint32(k/50), 52*time.Millisecond
			s.Info.SndWnd, s.Info.RwndLimited = 62500, s.At
		}, capacity(400), ReceiverWindow, 17.9}, // one segment in 4316, by Mathis
		{"closed window, all the time", stopReading, nil, Reader, 0},
		{"closed window, all the time, and what the path carries", stopReading, capacity(40), Reader, 40},
		{"bursts that fill the buffer at times", func(k int, s *Sample) {
			s.Info.SndCwnd, s.Info.NotsentBytes, s.Info.Unacked, s.Info.SndbufLimited = 200, 0, uint32(k%4)*10, s.At/5
			s.SendBuffer, s.SendQueued = 46_000, int64(k%4)*15_000
		}, capacity(40), Application, 40},
		{"window that closes beside losses", func(k int, s *Sample) {
			lose(40)(k, s)
			s.Info.SndWnd, s.Info.RwndLimited = uint32(k%8)*20_000, s.At
		}, nil, Reader, 10},
		{"Nagle, in an exchange", takeTurns(700), capacity(90), Nagle, 1.37}, // 1200 bytes in 7 ms
		{"no more requests at once", takeTurns(0), capacity(90), Application, 0},
		{"sendfile above the buffer", sendfile, capacity(40), SendBuffer, 40},
		{"jitter, in place of others", func(_ int, s *Sample) {
			s.Info.RTT, s.Info.RTTVar = 70*time.Millisecond, 10*time.Millisecond
		}, capacity(40), Unexplained, 0},
		{"losses, and jitter in place of a queue", func(k int, s *Sample) {
			lose(10)(k, s)
			s.Info.RTT, s.Info.RTTVar = 70*time.Millisecond, 10*time.Millisecond
		}, capacity(40), RandomLoss, 40},
		{"losses, and jitter or a queue, and nobody tried", func(k int, s *Sample) {
			lose(10)(k, s)
			s.Info.RTT, s.Info.RTTVar = 70*time.Millisecond, 10*time.Millisecond
		}, nil, Unexplained, 0},
		{"jitter, and nobody tried", func(_ int, s *Sample) {
			s.Info.RTT, s.Info.RTTVar = 60*time.Millisecond, 5*time.Millisecond
		}, nil, Unexplained, 0},
		{"window that goes up and down", func(k int, s *Sample) {
			s.Info.SndWnd, s.Info.RwndLimited = 100_000+uint32(k%2)*100_000, s.At
		}, capacity(40), Reader, 40},
		{"no window scaling", func(_ int, s *Sample) {
			s.Info.Options &^= tcpinfo.OptWScale
			s.Info.SndWnd, s.Info.RwndLimited = 65535, s.At
		}, capacity(40), WindowScaling, 40},
		{"no window scaling, and no need of it", func(_ int, s *Sample) {
			s.Info.Options &^= tcpinfo.OptWScale
			s.Info.SndWnd = 65535
		}, capacity(10.5), Healthy, 0},
		{"send buffer", func(_ int, s *Sample) {
			s.Info.SndCwnd, s.Info.NotsentBytes, s.SendBuffer = 200, 0, 900_000
		}, capacity(40), SendBuffer, 40},
		{"nothing to send", func(_ int, s *Sample) {
			s.Info.SndCwnd, s.Info.NotsentBytes, s.SendQueued = 200, 0, 100_000
		}, capacity(40), Application, 40},
		{"nothing to send for half of the time", func(_ int, s *Sample) { s.Info.BusyTime /= 2 }, capacity(40), Application, 40},
		{"nothing to send, and no CPU time", func(_ int, s *Sample) {
			s.Info.SndCwnd, s.Info.NotsentBytes, s.SendQueued, s.CPU = 200, 0, 100_000, s.At
		}, capacity(40), CPU, 40},
		{"nothing to send, and no CPU to run on", func(_ int, s *Sample) {
			s.Info.SndCwnd, s.Info.NotsentBytes, s.SendQueued, s.CPU, s.Waited = 200, 0, 100_000, s.At*7/10, s.At*6/10
		}, capacity(40), CPU, 40},
		{"busy, and filling the path", func(_ int, s *Sample) { s.CPU = s.At }, capacity(10.5), Healthy, 0},
		{"paced", func(_ int, s *Sample) { s.Info.MaxPacingRateBps = 10_600_000 }, capacity(40), Pacing, 40},
		{"a pacing rate far above", func(_ int, s *Sample) { s.Info.MaxPacingRateBps = 100_000_000 }, capacity(10.5), Healthy, 0},
		{"small segments, which halved get half", small, segments(5), SegmentSize, 27.2},
		{"small segments, which halved get the same", small, segments(10), Healthy, 0},
		{"small segments as the way back needs them", small, func(o *Observation) { segments(5)(o); o.Path.ReverseMTU = 588 }, AsymmetricMTU, 27.2},
		{"large packets vanish", vanish, func(o *Observation) { o.Path = Path{MTU: 1400, DeviceMTU: 1500} }, BlackHole, 0},
		{"large packets vanish, and nobody says at what size", vanish, func(o *Observation) { o.Path.Answers = true }, BlackHole, 0},
		{"everything vanishes", vanish, nil, Unexplained, 0},
		{"no sign of anything", func(_ int, s *Sample) { s.Info.RTT = 50 * time.Millisecond }, nil, Unexplained, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := bulk(test.change)
			if test.beside != nil {
				test.beside(&o)
			}
			r, err := Diagnose(o)
			if err != nil {
				t.Fatal(err)
			}
			if r.Cause != test.cause {
				t.Fatalf("verdict %s, want %s: %+v", r.Cause, test.cause, r.Findings)
			}
			if predicted := r.Findings[0].PredictedBps / 1e6; math.Abs(predicted-test.predicted) > 0.05*test.predicted+0.01 {
				t.Errorf("predicted %.2f Mb/s, want %.2f", predicted, test.predicted)
			}
			if (len(r.Remedies) > 0) == test.cause.IsNone() {
				t.Errorf("%d remedies", len(r.Remedies))
			}
		})
	}
}

// lose returns a change with one loss per number of segments in each sample, and no
// queue.
func lose(per10000 uint32) func(int, *Sample) {
	return func(k int, s *Sample) {
		s.Info.TotalRetrans = s.Info.DataSegsOut * per10000 / 10000
		s.Info.RTT = 52 * time.Millisecond
	}
}

// small sets segments of 536 bytes.
func small(_ int, s *Sample) {
	s.Info.SndMSS = 536
	s.Info.DataSegsOut = uint32(s.Info.BytesAcked / 536)
}

// segments adds a trial with full segments, and one with half segments.
func segments(halfMbps float64) func(*Observation) {
	return func(o *Observation) {
		o.Path = Path{MTU: 1500, ReverseMTU: 1500, DeviceMTU: 1500}
		o.Capacity = &Trial{GoodputBps: 10e6, SegmentBytes: 536}
		o.SmallSegments = &Trial{GoodputBps: halfMbps * 1e6, SegmentBytes: 268}
	}
}

// stopReading has the receiving program read nothing from some time before the first sample
// on.
func stopReading(_ int, s *Sample) {
	s.Info.SndWnd, s.Info.RwndLimited, s.Info.BytesAcked, s.Info.Unacked, s.Info.Backoff = 0, s.At, 80_000, 0, 5
}

// takeTurns has the program send 1200 bytes for each answer, of which some wait for an
// acknowledgement most of the time.
func takeTurns(held uint32) func(int, *Sample) {
	return func(k int, s *Sample) {
		i := &s.Info
		i.BytesAcked, i.BytesReceived, i.DataSegsIn, i.DataSegsOut = uint64(2400*k), uint64(200*k), uint32(2*k), uint32(4*k)
		i.Unacked, i.SndCwnd, i.NotsentBytes, i.MinRTT, i.RTT, i.RTTVar = 1, 10, held, 7*time.Millisecond, 27*time.Millisecond, 20*time.Millisecond
		if k%10 == 7 {
			i.NotsentBytes = 0
		}
		s.SendQueued = 2000
	}
}

// sendfile exceeds the send buffer at times, and has sent all of it at others.
func sendfile(k int, s *Sample) {
	s.SendBuffer, s.SendQueued = 80_000, 80_000
	s.Info.SndCwnd, s.Info.Unacked, s.Info.NotsentBytes = 150, 60, 0
	if k%3 == 0 {
		s.SendQueued, s.Info.Unacked, s.Info.NotsentBytes = 310_000, 150, 25_000
	}
}

// idle has nothing to send.
func idle(_ int, s *Sample) { s.Info.SndCwnd, s.Info.NotsentBytes, s.SendQueued = 200, 0, 100_000 }

// vanish retransmits all data again and again.
func vanish(k int, s *Sample) {
	s.Info.BytesAcked, s.Info.Delivered, s.Info.DataSegsOut = 1, 0, uint32(10+k/10)
	s.Info.TotalRetrans, s.Info.Backoff = uint32(k/10), uint8(k/10)
}

// TestReceiver diagnoses connections at the receiving end.
func TestReceiver(t *testing.T) {
	receiving := func(change func(*Sample)) Observation {
		return bulk(func(k int, s *Sample) {
			s.Info.BytesReceived, s.Info.BytesAcked = s.Info.BytesAcked, 1
			s.Info.BusyTime, s.Info.Unacked, s.Info.NotsentBytes = 0, 0, 0
			s.Info.RcvWnd = 3 << 20
			change(s)
		})
	}
	for _, test := range []struct {
		name     string
		change   func(*Sample)
		cause    Cause
		strength Strength
		remedies bool
	}{
		{"in time", func(*Sample) {}, Unexplained, NotCertain, false},
		{"read slowly", func(s *Sample) { s.RecvQueue = 1 << 20 }, Reader, Certain, true},
		{"window", func(s *Sample) { s.Info.RcvWnd = 80_000 }, ReceiverWindow, Certain, true},
	} {
		r, err := Diagnose(receiving(test.change))
		if err != nil {
			t.Fatal(err)
		}
		if r.Cause != test.cause || r.Strength != test.strength || (len(r.Remedies) > 0) != test.remedies || math.Abs(r.GoodputBps-10e6) > 1e5 {
			t.Errorf("%s: %s at %.0f b/s, %s, %d remedies", test.name, r.Cause, r.GoodputBps, r.Strength, len(r.Remedies))
		}
	}
}

func TestTooLittle(t *testing.T) {
	for _, test := range []struct {
		name   string
		cut    func(*Observation)
		reason string
	}{
		{"no time", func(o *Observation) { o.Samples = o.Samples[:5] }, "0.40 s of a connection; needed: 1.50 s"},
		{"few samples", func(o *Observation) {
			o.Samples = []Sample{o.Samples[0], o.Samples[20], o.Samples[40]}
		}, "3 samples in 4.0 s; needed: 10 samples"},
		{"few samples of a long capture", func(o *Observation) {
			o.Samples = o.Samples[:3]
			o.Capture = &Capture{Time: 90 * time.Second, Counts: Counts{Segments: 12, Delivered: 17000, MinRTT: time.Millisecond}}
		}, "12 segments in 90.0 s, with long gaps; needed: data in flight for more"},
		{"few segments of a capture", func(o *Observation) {
			o.Samples = o.Samples[:3]
			o.Capture = &Capture{Time: 90 * time.Second, Counts: Counts{Segments: 3, Delivered: 1700, MinRTT: time.Millisecond}}
		}, "3 segments in 90.0 s; needed: 10 segments"},
		{"one direction of a capture", func(o *Observation) {
			o.Capture = &Capture{Time: 90 * time.Second, Counts: Counts{Segments: 3000, Bytes: 4e6, MaxFlight: 4e6}}
		}, "none of 3000 segments has an answer"},
		{"it ended", func(o *Observation) { o.Samples, o.Ended = o.Samples[:5], true }, "ended meanwhile"},
		{"nothing moved", func(o *Observation) {
			for k := range o.Samples {
				o.Samples[k].Info.BytesAcked, o.Samples[k].Info.Unacked = 1000, 0
			}
		}, "no data moved"},
		{"an old kernel", func(o *Observation) {
			for k := range o.Samples {
				b, _ := json.Marshal(o.Samples[k].Info)
				var fields map[string]any
				_ = json.Unmarshal(b, &fields)
				delete(fields, "bytes_acked")
				b, _ = json.Marshal(fields)
				_ = json.Unmarshal(b, &o.Samples[k].Info)
			}
		}, "does not count"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := bulk(nil)
			test.cut(&o)
			_, err := Diagnose(o)
			var little *ErrTooLittle
			if !errors.As(err, &little) || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("%v, want one with %q", err, test.reason)
			}
		})
	}
}

func TestGlance(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(int, *Sample)
		cause  Cause
	}{
		{"at work", nil, ""},
		{"idle", func(_ int, s *Sample) { s.Info.BusyTime, s.Info.BytesAcked, s.Info.Unacked = 0, 1, 0 }, ""},
		{"window", func(_ int, s *Sample) { s.Info.SndWnd, s.Info.RwndLimited = 62500, s.At }, ReceiverWindow},
		{"losses", lose(100), Loss},
		{"losses, and a program that keeps the kernel's queue short", func(k int, s *Sample) { lose(100)(k, s); s.SendQueued = 100_000 }, Loss},
		{"losses, and a queue, which may be the connection's own", func(k int, s *Sample) { lose(100)(k, s); s.Info.RTT = 70 * time.Millisecond }, ""},
		{"a queue, which may be the connection's own", func(_ int, s *Sample) { s.Info.RTT = 90 * time.Millisecond }, ""},
		{"losses, and a time-out", func(k int, s *Sample) { lose(100)(k, s); s.Info.Backoff = 1 }, ""},
		{"losses, and jitter or a queue", func(k int, s *Sample) {
			lose(100)(k, s)
			s.Info.RTT, s.Info.RTTVar = 70*time.Millisecond, 12*time.Millisecond
		}, ""},
		{"closed window", stopReading, Reader},
		{"window that was closed", func(k int, s *Sample) {
			s.Info.SndWnd, s.Info.RwndLimited = uint32(k%20)*10_000, s.At
		}, Reader},
		{"window that was closed between the samples", func(_ int, s *Sample) {
			s.Info.SndWnd, s.Info.RwndLimited = 62500, s.At
			s.PeerWindowLow, s.PeerWindowHigh = 0, 70_000
		}, Reader},
		{"window that moves, and the goodput that it allows", func(k int, s *Sample) {
			s.Info.SndWnd, s.Info.RwndLimited = 60_000+uint32(k)*300, s.At
		}, ""},
		{"window that moves, and far less than it allows", func(k int, s *Sample) {
			s.Info.SndWnd, s.Info.RwndLimited = 200_000+uint32(k)*3000, s.At
		}, Reader},
		{"no data", func(_ int, s *Sample) { s.Info.SndCwnd, s.Info.NotsentBytes, s.SendQueued, s.CPU = 200, 0, 100_000, -1 }, Application},
		{"no data, and perhaps no CPU time", func(_ int, s *Sample) {
			s.Info.SndCwnd, s.Info.NotsentBytes, s.SendQueued, s.CPU = 200, 0, 100_000, s.At*7/10
		}, ""},
		{"no data, and no CPU time", func(_ int, s *Sample) {
			s.Info.SndCwnd, s.Info.NotsentBytes, s.SendQueued, s.CPU = 200, 0, 100_000, s.At
		}, CPU},
		{"less than a segment each time", takeTurns(700), Nagle},
		{"several segments for each answer, none held now", takeTurns(0), ""},
		{"one segment for each answer", func(k int, s *Sample) { takeTurns(0)(k, s); s.Info.DataSegsOut /= 2 }, Application},
		{"sendfile above the buffer", sendfile, SendBuffer},
		{"nothing gets through", vanish, Stalled},
	} {
		o := bulk(test.change)
		if got := Glance(o.Samples[30], o.Samples[40]); got != test.cause {
			t.Errorf("%s: %q, want %q", test.name, got, test.cause)
		}
	}
}

// The figures are those of the papers: Mathis et al. (1997) give 1.22·mss/RTT·
// p^-½, and RFC 9438's table 1 (5.1) has CUBIC's window at an RTT of 0.1 s.
func TestModels(t *testing.T) {
	for _, test := range []struct{ p, segments float64 }{{1e-3, 38}, {1e-4, 187}, {1e-5, 1054}, {1e-6, 5926}} {
		got := cubicBps(1, 100*time.Millisecond, test.p) * 0.1 / 8
		if math.Abs(got-test.segments) > 0.03*test.segments {
			t.Errorf("CUBIC at %g: %.0f segments, want %.0f", test.p, got, test.segments)
		}
	}
	if got := renoBps(1460, 100*time.Millisecond, 0.01); math.Abs(got-1.43e6) > 0.01e6 {
		t.Errorf("Reno: %.0f b/s", got)
	}
	// 10 + 20 segments in two round trips after the handshake's.
	if got := slowStartTime(30*1000, 1000, 10, 100*time.Millisecond, 0); got != 300*time.Millisecond {
		t.Errorf("slow start takes %v", got)
	}
	if !math.IsInf(lossBoundBps("bbr", 1448, 50*time.Millisecond, 0.01), 1) || !math.IsInf(lossBoundBps("cubic", 1448, 50*time.Millisecond, 0), 1) {
		t.Error("a bound where there is none")
	}
}

func TestUnknownFigures(t *testing.T) {
	b, err := json.Marshal(Observation{}.Figures())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "rwnd") {
		t.Errorf("an unknown figure is told: %s", b)
	}
	if _, err := Diagnose(Observation{}); err == nil {
		t.Error("a verdict from nothing")
	}
}

func TestBounds(t *testing.T) {
	info := bulk(nil).Samples[0].Info
	unscaled := info
	unscaled.Options = tcpinfo.OptTimestamps
	for _, test := range []struct {
		name string
		path Path
		info *tcpinfo.Info
		want []string // parts of each
	}{
		{"nothing known", Path{}, nil, nil},
		{"nothing wrong", Path{MTU: 1500, ReverseMTU: 1500, DeviceMTU: 1500}, &info, nil},
		{"a tunnel", Path{MTU: 1400, ReverseMTU: 1400, DeviceMTU: 1500}, nil, []string{"less than this host's device"}},
		{"two ways", Path{MTU: 1500, ReverseMTU: 576, DeviceMTU: 1500}, nil, []string{"different sizes"}},
		{"options", Path{}, &unscaled, []string{"8.74 Mb/s at most", "selective"}},
		{"small segments", Path{MTU: 9000, ReverseMTU: 9000, DeviceMTU: 9000}, &info, []string{"1448 bytes of data"}},
	} {
		got := Bounds(test.path, test.info)
		if len(got) != len(test.want) {
			t.Errorf("%s: %q", test.name, got)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], test.want[i]) {
				t.Errorf("%s: %q, want one with %q", test.name, got[i], test.want[i])
			}
		}
	}
}

// TestWay holds the models of a path against figures worked out by hand.
func TestWay(t *testing.T) {
	lossy := Way{RateBps: 100e6, RTT: 300 * time.Millisecond, Loss: 0.1, MTU: 1500}
	clean := Way{RateBps: 1e9, RTT: 63 * time.Millisecond, MTU: 1500}
	cubic, _ := lossy.GoodputBps("cubic", lossy.MSS())
	small, _ := lossy.GoodputBps("cubic", lossy.MSS()/2)
	for _, test := range []struct {
		what      string
		got, want float64
	}{
		{"the limit", clean.LimitBps(clean.MSS()), 1e9 * 1448 / 1500},
		// Reno's region: 1448 bytes · 8 / 300 ms · sqrt(15).
		{"cubic at 10 % loss", cubic, 1448 * 8 / 0.3 * math.Sqrt(15)},
		{"cubic with half the segment", small, 724 * 8 / 0.3 * math.Sqrt(15)},
		{"a window of 64 KiB", clean.WindowBps(65535), 65535 * 8 / 0.063},
		{"a window above the path", clean.WindowBps(1 << 30), 1e9 * 1448 / 1500},
		{"without SACK", lossy.WithoutSACKBps(), 1448 * 8 / 0.3 * 10},
		{"without SACK and loss", clean.WithoutSACKBps(), 1e9 * 1448 / 1500},
		{"the window needed", float64(clean.WindowNeeded()), 15.75e6},
		{"the window needed with loss", float64(lossy.WindowNeeded()), 22.5e6},
		// 20 kB with a window of 14 480: the handshake and two windows.
		{"a short transfer", clean.TransferBps(20000, 10), 20000 * 8 / (3 * 0.063)},
	} {
		if math.Abs(test.got-test.want) > 1e-6*test.want {
			t.Errorf("%s: %g, want %g", test.what, test.got, test.want)
		}
	}
	if _, known := lossy.GoodputBps("bbr", 1448); known {
		t.Error("a figure for bbr on a lossy path, which no model has")
	}
	if bps, known := clean.GoodputBps("bbr", 1448); !known || bps != clean.LimitBps(1448) {
		t.Errorf("bbr without loss: %g, want the limit", bps)
	}
}

// A host without CPU time to spare makes verdicts on delays and gaps uncertain, and no others.
func TestStarvedHost(t *testing.T) {
	for _, test := range []struct {
		name             string
		change           func(int, *Sample)
		waited, pressure float64
		cause            Cause
		certain          bool
	}{
		{"time to spare", nil, 0.01, 0.4, Healthy, true},
		{"the program waits for a CPU", nil, 0.3, 0.4, Healthy, false},
		{"all programs wait for a CPU", nil, 0.02, 0.95, Healthy, false},
		{"nothing is known", nil, 0, 0, Healthy, true},
		{"no data, and others wait for a CPU", idle, 0.02, 0.95, Application, true},
		{"no data, and the program waits for a CPU", idle, 0.3, 0.95, Application, false},
		{"losses", lose(10), 0.3, 0.9, RandomLoss, false},
		{"window", func(_ int, s *Sample) { s.Info.SndWnd, s.Info.RwndLimited = 62500, s.At }, 0.3, 0.9, ReceiverWindow, true},
		{"no CPU time", func(_ int, s *Sample) {
			s.Info.SndCwnd, s.Info.NotsentBytes, s.SendQueued, s.CPU = 200, 0, 100_000, s.At
		}, 0.9, 0.9, CPU, true},
	} {
		o := bulk(func(k int, s *Sample) {
			if test.change != nil {
				test.change(k, s)
			}
			s.Waited, s.Pressure = time.Duration(test.waited*float64(s.At)), time.Duration(test.pressure*float64(s.At))
		})
		capacity := 10.5e6
		if test.change != nil {
			capacity = 40e6
		}
		o.Capacity = &Trial{Streams: 4, GoodputBps: capacity, MinRTT: 50 * time.Millisecond, RTT: 75 * time.Millisecond, SegmentBytes: 1448}
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Cause != test.cause || (r.Strength == Certain) != test.certain || test.certain != (r.Doubt == "") {
			t.Errorf("%s: %s, %s: %s", test.name, r.Cause, r.Strength, r.Doubt)
		}
	}
}

// The remedies of an exchange promise no more than its round trips allow.
func TestExchange(t *testing.T) {
	for _, held := range []uint32{0, 700} {
		o := bulk(takeTurns(held))
		o.Capacity = &Trial{Streams: 4, GoodputBps: 90e6, MinRTT: 7 * time.Millisecond, RTT: 10 * time.Millisecond, SegmentBytes: 1448}
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, remedy := range r.Remedies {
			if remedy.PredictedBps > 3e6 {
				t.Errorf("%d bytes held: %s: %.1f Mb/s", held, remedy.Action, remedy.PredictedBps/1e6)
			}
		}
		if evidence := strings.Join(r.Findings[0].Evidence, "\n"); held > 0 && strings.Contains(evidence, "nothing waited") {
			t.Errorf("%d bytes held, and the evidence is %s", held, evidence)
		}
	}
}
