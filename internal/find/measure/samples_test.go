package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// TestSamples: the caller sees what the kernels of both sides say of what they
// sent.
func TestSamples(t *testing.T) {
	address, ended := serve(t)
	runSampled(t, address, ended)
}

// runSampled runs a test of a second with samples.
func runSampled(t *testing.T, address string, ended <-chan error) Summary {
	t.Helper()
	var dialed atomic.Int32
	s, err := Run(t.Context(), address, Options{
		Direction: Both, Streams: 2, Duration: time.Second, PacingBps: testRate, SampleEvery: 50 * time.Millisecond, CongestionControl: "reno",
		Dialer: func(ctx context.Context, network, address string, control Control) (net.Conn, error) {
			dialed.Add(1)
			return dialDirectly(ctx, network, address, control)
		},
	})
	must(t, err)
	must(t, <-ended)
	if n := dialed.Load(); n != 5 {
		t.Errorf("the caller's dialer made %d connections, want 5", n)
	}
	if s.LocalCPUTime <= 0 || s.RemoteCPUTime <= 0 {
		t.Errorf("processor time: %v here, %v there", s.LocalCPUTime, s.RemoteCPUTime)
	}
	for _, st := range s.Streams {
		if len(st.Samples) == 0 {
			t.Fatalf("stream %d: no samples", st.ID)
		}
		last := st.Samples[len(st.Samples)-1]
		if last.SendBuffer <= 0 || last.CPU <= 0 || !last.Info.Has(tcpinfo.FieldBusyTime) || last.Bytes > st.SentBytes {
			t.Errorf("stream %d: %d bytes were sent, and the last sample is %+v", st.ID, st.SentBytes, last)
		}
		if st.CongestionControl != "reno" {
			t.Errorf("stream %d: congestion control %q", st.ID, st.CongestionControl)
		}
		if st.Receiver == nil || st.Receiver.Info.BytesReceived < uint64(st.ReceivedBytes) {
			t.Errorf("stream %d: the receiver is %+v", st.ID, st.Receiver)
		}
	}
	return s
}

// A test of any length has few samples, evenly apart, and the last.
func TestSeries(t *testing.T) {
	for _, room := range []int{23, 24, maxSamples} {
		for _, n := range []int{1, 2, room - 1, room, room + 1, 10*room + 3} {
			s := &series{room: room, stride: 1}
			for i := range n {
				s.add(Timed{At: time.Duration(i)})
			}
			s.end(Timed{At: time.Duration(n)})
			if len(s.kept) > room || n >= room && len(s.kept) < room/2 || s.kept[len(s.kept)-1].At != time.Duration(n) {
				t.Errorf("room for %d, %d samples: %d are kept, the last of %v", room, n, len(s.kept), s.kept[len(s.kept)-1].At)
			}
			for i, one := range s.kept[:len(s.kept)-1] {
				if one.At != time.Duration(i*s.stride) {
					t.Fatalf("room for %d, %d samples: kept %d is that of %v, and one of %d is to be", room, n, i, one.At, s.stride)
				}
			}
		}
	}
}

// As many samples as there can be fit into a message, with figures that change
// all the time.
func TestSamplesFitIntoAMessage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := results{Longhaul: &longhaulResults{}}
	for id := range 5 {
		st := longhaulStream{ID: id}
		for range maxAllSamples / 5 {
			st.Samples = append(st.Samples, busySample(random, len(st.Samples)))
		}
		r.Longhaul.Streams = append(r.Longhaul.Streams, st)
	}
	var b bytes.Buffer
	must(t, writeMessage(&b, r))
	t.Logf("%d bytes", b.Len())
	var got results
	must(t, readMessage(&b, maxResults, &got))
	if !reflect.DeepEqual(got, r) {
		t.Error("what arrived is not what was sent")
	}
}

// busySample has every field known, and those that change on a busy connection
// random.
func busySample(random *rand.Rand, i int) Timed {
	changing := func() uint32 { return random.Uint32N(10_000_000) }
	duration := func() time.Duration { return time.Duration(random.Uint32N(10_000_000)) * time.Microsecond }
	t := Timed{At: time.Duration(i) * 100 * time.Millisecond, Bytes: int64(random.Uint64N(1 << 40)), SendBuffer: int64(changing()), SendQueued: int64(changing()), CPU: duration()}
	t.Info = tcpinfo.Info{
		RTO: duration(), RTT: duration(), RTTVar: duration(), RcvRTT: duration(), MinRTT: duration(), SndMSS: 1448, PMTU: 1500,
		Unacked: changing(), Sacked: changing(), Lost: changing(), Retrans: changing(), SndCwnd: changing(), SndSSThresh: changing(),
		SndWnd: changing(), TotalRetrans: changing(), PacingRateBps: int64(random.Uint64N(1 << 34)), BytesAcked: random.Uint64N(1 << 40),
		SegsOut: changing(), SegsIn: changing(), NotsentBytes: changing(), DataSegsOut: changing(), DeliveryRateBps: int64(random.Uint64N(1 << 34)),
		BusyTime: duration(), RwndLimited: duration(), SndbufLimited: duration(), Delivered: changing(), BytesSent: random.Uint64N(1 << 40), BytesRetrans: random.Uint64N(1 << 30),
	}
	for f := tcpinfo.FieldState; f <= tcpinfo.FieldTotalRTOTime; f++ {
		t.Info.Know(f)
	}
	return t
}

// FuzzPacked: samples come from a host that may be anybody's.
func FuzzPacked(f *testing.F) {
	for _, p := range []packed{nil, {{At: 1000}, {At: 2000, Bytes: 5}}} {
		b, err := json.Marshal(p)
		must(f, err)
		f.Add(b)
	}
	f.Add([]byte(`"aGVsbG8="`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p packed
		if json.Unmarshal(b, &p) != nil {
			return
		}
		if len(p) > maxSamples {
			t.Errorf("%d samples", len(p))
		}
		for i := range p {
			if i > 0 && p[i].At < p[i-1].At {
				t.Errorf("sample %d goes back in time", i)
			}
		}
	})
}
