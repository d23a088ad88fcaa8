package examine

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/find/doctor"
	"longhaul/internal/find/measure"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// newExaminer returns an examiner without probes, which need privilege, and its
// notes.
func newExaminer(notes *[]string) *Examiner {
	return &Examiner{
		During: MinWatch, SkipProbe: true,
		Progress: func(string, ...any) {},
		Note:     func(err error) { *notes = append(*notes, err.Error()) },
	}
}

func TestConnectionsAreNamed(t *testing.T) {
	for want, c := range map[string]Connections{
		"to 203.0.113.9:5432":            {Remote: EndOf(netip.MustParseAddrPort("203.0.113.9:5432"))},
		"to 203.0.113.9 of process 4711": {Remote: EndOf(netip.AddrPortFrom(netip.MustParseAddr("203.0.113.9"), 0)), PID: 4711},
		"from :22 to [2001:db8::9]:5432": {Local: End{Port: 22}, Remote: EndOf(netip.MustParseAddrPort("[2001:db8::9]:5432"))},
	} {
		if got := c.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// connect makes a connection of this process to a listener, which send serves.
func connect(t *testing.T, send func(net.Conn)) (near net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialer := net.Dialer{}
	dialer.SetMultipathTCP(false)
	near, err = dialer.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		send(far)
	}()
	t.Cleanup(func() {
		near.Close()
		far.Close()
		<-done
	})
	return near
}

// Watch observes the connection of a process that moves the most.
func TestWatch(t *testing.T) {
	near := connect(t, func(far net.Conn) { _, _ = io.Copy(io.Discard, far) })
	stop := make(chan struct{})
	written := make(chan struct{})
	go func() {
		defer close(written)
		for block := make([]byte, 1000); ; time.Sleep(5 * time.Millisecond) {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := near.Write(block); err != nil {
				return
			}
		}
	}()
	defer func() {
		close(stop)
		<-written
	}()
	var notes []string
	o, err := newExaminer(&notes).Watch(t.Context(), Connections{Remote: EndOf(near.RemoteAddr().(*net.TCPAddr).AddrPort()), PID: os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	if o.Local != near.LocalAddr().(*net.TCPAddr).AddrPort() || len(o.Samples) < 5 || o.TotalBytes == 0 || o.Program == "" || len(notes) > 0 {
		t.Errorf("%d samples of %v, %d bytes, program %q, notes %q", len(o.Samples), o.Local, o.TotalBytes, o.Program, notes)
	}
	var hinted *remedy.Error
	_, err = newExaminer(&notes).Watch(t.Context(), Connections{Remote: EndOf(netip.MustParseAddrPort("192.0.2.1:9"))})
	if !errors.As(err, &hinted) || err.Error() != "no connection to 192.0.2.1:9 in 1s" {
		t.Errorf("got %v", err)
	}
}

// With a server that takes no data, the result is a survey of the path.
func TestTransferWithoutServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	var notes []string
	e := newExaminer(&notes)
	e.During = MinTransfer
	_, err = e.Transfer(t.Context(), l.Addr().String(), measure.Send)
	var none *NoVerdictError
	if !errors.As(err, &none) || none.Survey.Info == nil || remedy.Of(err) == "" {
		t.Fatalf("got %v", err)
	}
	var text strings.Builder
	if err := none.Survey.WriteText(&text); err != nil || !strings.HasPrefix(text.String(), "A connection to "+l.Addr().String()+" takes ") {
		t.Errorf("%v: %s", err, text.String())
	}
	l.Close()
	<-ended
	if _, err = e.Transfer(t.Context(), l.Addr().String(), measure.Send); errors.As(err, &none) || remedy.Of(err) == "" {
		t.Errorf("without a listener: %v", err)
	}
}

func TestCapture(t *testing.T) {
	for name, want := range map[string]string{
		"queue-sender.pcap":  "",
		"loss-receiver.pcap": "the capture is not from the sending host",
	} {
		var notes []string
		o, err := newExaminer(&notes).Capture(t.Context(), filepath.Join("../../pcap/testdata", name), End{}, End{})
		if err == nil && (o.Capture == nil || o.Capture.AtSender != (want == "") || !o.Capture.Handshake || (o.Capture.BurstBps > 0) != (want == "")) {
			t.Errorf("%s: %+v", name, o.Capture)
		}
		if err != nil || !o.Elsewhere || o.Connections == 0 || o.TotalBytes == 0 {
			t.Errorf("%s: %v, %d connections, %d bytes", name, err, o.Connections, o.TotalBytes)
		}
		if text := strings.Join(notes, "\n"); !strings.Contains(text, want) || want == "" && text != "" {
			t.Errorf("%s: notes %q", name, notes)
		}
	}
	var notes []string
	elsewhere := EndOf(netip.MustParseAddrPort("192.0.2.1:9"))
	if _, err := newExaminer(&notes).Capture(t.Context(), "../../pcap/testdata/queue-sender.pcap", End{}, elsewhere); remedy.Of(err) == "" {
		t.Errorf("ends that are not in the capture: %v", err)
	}
}

func TestRecord(t *testing.T) {
	o := doctor.Observation{Program: "p", Samples: []doctor.Sample{{At: time.Second, SendBuffer: 7}}}
	path := filepath.Join(t.TempDir(), "record")
	if err := WriteRecord(path, o); err != nil {
		t.Fatal(err)
	}
	got, err := ReadRecord(path)
	if err != nil || got.Program != "p" || len(got.Samples) != 1 || got.Samples[0].SendBuffer != 7 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRecord(path); remedy.Of(err) == "" {
		t.Errorf("an empty record: %v", err)
	}
}

// A record of more samples than are read is refused before they take memory.
func TestLongRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	text := `{"samples":[{}` + strings.Repeat(",{}", 3_000_000) + "]}"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ReadRecord(path)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, errLongRecord) || remedy.Of(err) == "" {
		t.Errorf("got %v", err)
	}
	if err := WriteRecord(path, doctor.Observation{Samples: make([]doctor.Sample, maxRecordSamples+1)}); !errors.Is(err, errLongRecord) {
		t.Errorf("it is written: %v", err)
	}
	const maxMade = 1 << 30
	if made := after.TotalAlloc - before.TotalAlloc; made > maxMade {
		t.Errorf("%d MiB of memory were made, want at most %d", made>>20, maxMade>>20)
	}
}

// Remedies are applied in order, after the confirmation of each, until one fails.
func TestApply(t *testing.T) {
	var ran []string
	failing := ""
	run := func(args []string) error {
		command := strings.Join(args, " ")
		ran = append(ran, command)
		if command == failing {
			return errors.New("failed")
		}
		return nil
	}
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(ran, want) {
			t.Errorf("apply runs %q, want %q", ran, want)
		}
		ran = nil
	}
	report := doctor.Report{Remedies: []doctor.Remedy{
		{Action: "not for longhaul"},
		{Apply: []string{"apply", "a"}}, {Apply: []string{"apply", "b"}}, {Apply: []string{"apply", "c"}},
	}}
	notB := func(r doctor.Remedy) bool { return r.Apply[1] != "b" }
	if err := Apply(report, notB, run); err != nil {
		t.Fatal(err)
	}
	expect("apply a", "apply c")
	failing = "apply a"
	if err := Apply(report, notB, run); err == nil {
		t.Error("a failed remedy is no error")
	}
	expect("apply a")
	if err := Apply(doctor.Report{Remedies: report.Remedies[:1]}, notB, run); err == nil {
		t.Error("there is nothing to apply")
	}
}

// Without its start, a long capture has the steady part. A short one stays whole.
func TestWithoutStart(t *testing.T) {
	for _, test := range []struct {
		seconds int
		rtt     time.Duration
		first   time.Duration
	}{
		{10, 10 * time.Millisecond, 8 * time.Second},
		{10, 200 * time.Millisecond, 9 * time.Second},
		{3, 10 * time.Millisecond, 7 * time.Second},
	} {
		var samples []doctor.Sample
		for at := 7 * time.Second; at <= time.Duration(7+test.seconds)*time.Second; at += 100 * time.Millisecond {
			samples = append(samples, doctor.Sample{At: at, Info: tcpinfo.Info{RTT: test.rtt}})
		}
		if got := withoutStart(samples); got[0].At != test.first || got[len(got)-1].At != samples[len(samples)-1].At {
			t.Errorf("%d s at %v begin at %v, want %v", test.seconds, test.rtt, got[0].At, test.first)
		}
	}
	if withoutStart(nil) != nil {
		t.Error("samples of nothing")
	}
}

// A sending host's buffers hold a trial as windows do.
func TestBufferLimited(t *testing.T) {
	info := func(unacked, cwnd, notSent uint32) *tcpinfo.Info {
		i := &tcpinfo.Info{SndMSS: 1448, Unacked: unacked, SndCwnd: cwnd, NotsentBytes: notSent}
		i.Know(tcpinfo.FieldNotsentBytes)
		return i
	}
	for _, test := range []struct {
		info *tcpinfo.Info
		want bool
	}{
		{info(20, 100, 0), true},
		{info(20, 100, 100_000), false},
		{info(95, 100, 0), false},
		{&tcpinfo.Info{SndMSS: 1448, Unacked: 20, SndCwnd: 100}, false},
	} {
		if got := isBufferLimited(test.info); got != test.want {
			t.Errorf("%+v: %v", test.info, got)
		}
	}
}

// A trial counts the second half of a test, and the observed connection in it.
func TestTrialFigures(t *testing.T) {
	at := func(seconds, delivered int, rtt time.Duration) measure.Timed {
		info := &tcpinfo.Info{}
		info.Delivered, info.SndMSS, info.RTT, info.DataSegsOut, info.TotalRetrans = uint32(delivered), 1000, rtt, uint32(delivered), uint32(delivered/10)
		return measure.Timed{At: time.Duration(seconds) * time.Second, Info: *info}
	}
	stream := measure.StreamSummary{CongestionControl: "bbr", Samples: []measure.Timed{at(0, 0, 1), at(2, 1000, 2), at(4, 3000, 3)}}
	options := measure.Options{Streams: 2, Duration: 4 * time.Second}
	got, err := trialOf(measure.Summary{Streams: []measure.StreamSummary{stream, stream}}, options, []delivered{{1e6, 1000}, {3e6, 3000}})
	want := doctor.Trial{Streams: 2, CongestionControl: "bbr", SegmentBytes: 1000, GoodputBps: 24e6, PacketsPerSecond: 3000, LossShare: 0.1, RTT: 3}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	stream.Samples = stream.Samples[:2]
	if _, err := trialOf(measure.Summary{Streams: []measure.StreamSummary{stream}}, options, nil); err == nil {
		t.Error("one sample is enough")
	}
}
