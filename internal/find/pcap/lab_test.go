package pcap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab"
	"longhaul/lab/hosts"
	"longhaul/lab/link"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// patience bounds every wait.
const patience = time.Minute

// tcpdump captures on a host's device until stop is called.
func tcpdump(t testing.TB, h *hosts.Host, device, file string) (stop func()) {
	t.Helper()
	program := nettest.RequireProgram(t, "tcpdump", "tcpdump")
	cmd := exec.Command(program, "-i", device, "-s", "128", "-U", "--immediate-mode", "-B", "16384", "-n", "-Z", "root", "-w", file, "tcp")
	stderr, err := cmd.StderrPipe()
	must(t, err)
	must(t, h.Start(cmd))
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}
	says := bufio.NewScanner(stderr)
	for says.Scan() {
		if strings.Contains(says.Text(), "listening on") {
			go func() { _, _ = io.Copy(io.Discard, stderr) }()
			return stop
		}
	}
	stop()
	t.Fatal("tcpdump does not capture")
	return nil
}

// transfer is bulk data from one host to another, with the sender's tcp_info
// after all of it was acknowledged.
type transfer struct {
	info       tcpinfo.Info
	client     netip.AddrPort
	atSender   Result
	atReceiver Result
	twice      Result // captured where every packet enters and leaves
	bytes      int64
	pauses     bool // the sending program pauses
}

// trouble disturbs a transfer half-way, and returns when the receiver may go
// on.
type trouble func(built *lab.Lab, sender func() tcpinfo.Info)

// outage takes the WAN down until the sender has had two timeouts.
func outage(built *lab.Lab, sender func() tcpinfo.Info) {
	wan := built.Link(lab.WAN)
	settings := wan.Settings(link.AToB)
	down := settings
	down.Down = true
	_ = wan.Set(link.AToB, down)
	wait(func() bool { return sender().Backoff >= 2 })
	_ = wan.Set(link.AToB, settings)
}

// stop does not read until the sender has waited for the window.
func stop(_ *lab.Lab, sender func() tcpinfo.Info) {
	wait(func() bool { return sender().RwndLimited > 300*time.Millisecond })
}

// wait polls for a condition up to a bound; the test then checks whether it
// holds.
func wait(cond func() bool) {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); !cond() && time.Now().Before(deadline); {
		<-look.C
	}
}

// transferIn moves data from host-a to host-b and captures at both.
func transferIn(t *testing.T, c lab.Conditions, to netip.Addr, bytes int64, pause time.Duration, midway trouble) transfer {
	t.Helper()
	built, err := lab.Build(lab.TwoSites(c))
	must(t, err)
	defer built.Close()
	a, b := built.Host("host-a"), built.Host("host-b")
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "sender.pcap"), filepath.Join(dir, "receiver.pcap"), filepath.Join(dir, "any.pcap")}
	defer tcpdump(t, a, "lan", files[0])()
	defer tcpdump(t, b, "lan", files[1])()
	defer tcpdump(t, built.Host("relay-a"), "any", files[2])()

	var listener net.Listener
	must(t, b.Do(func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		listener, err = lc.Listen(context.Background(), "tcp", netip.AddrPortFrom(to, 0).String())
		return err
	}))
	defer listener.Close()
	sender := make(chan func() tcpinfo.Info, 1)
	defer close(sender)
	var receiver sync.WaitGroup
	receiver.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := io.CopyN(io.Discard, conn, bytes/2); err == nil && midway != nil {
			if info, ok := <-sender; ok {
				midway(built, info)
			}
		}
		_, _ = io.Copy(io.Discard, conn)
	})
	var conn net.Conn
	must(t, a.Do(func() (err error) {
		var d net.Dialer
		d.SetMultipathTCP(false)
		conn, err = d.Dial("tcp", listener.Addr().String())
		return err
	}))
	defer receiver.Wait()
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	must(t, err)
	info := func() (info tcpinfo.Info) {
		_ = raw.Control(func(fd uintptr) { info, _ = tcpinfo.Get(int(fd)) })
		return info
	}
	sender <- info
	out := transfer{bytes: bytes, pauses: pause > 0, client: conn.LocalAddr().(*net.TCPAddr).AddrPort()}
	buf := make([]byte, 64<<10)
	ticker := time.NewTicker(max(pause, 1))
	defer ticker.Stop()
	for sent := int64(0); sent < bytes; {
		n, err := conn.Write(buf[:min(int64(len(buf)), bytes-sent)])
		must(t, err)
		sent += int64(n)
		if pause > 0 {
			<-ticker.C
		}
	}
	nettest.Eventually(t, patience, func() bool {
		out.info = info()
		// The receiver announces windows while it reads, and the pause must
		// contain a sample. Samples come once per round trip, which a busy
		// machine prolongs.
		return out.info.Unacked == 0 && out.info.NotsentBytes == 0 &&
			out.info.LastAckRecv > max(5*c.RTT, 3*minInterval, 3*out.info.RTT)
	}, func() string { return fmt.Sprintf("acknowledged: %+v", out.info) })
	must(t, conn.Close())
	for i, result := range []*Result{&out.atSender, &out.atReceiver, &out.twice} {
		nettest.Eventually(t, patience, func() bool {
			*result = readFile(t, files[i])
			return len(result.Connections) == 1 && closed(result.Connections[0])
		}, func() string {
			return fmt.Sprintf("the end of the connection is in %s: %+v", files[i], result.Connections)
		})
	}
	return out
}

// readFile reads a capture that tcpdump may still be writing.
func readFile(t testing.TB, name string) Result {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	result, err := Read(f, Options{})
	if truncated := (*TruncatedError)(nil); err != nil && !errors.As(err, &truncated) && !errors.Is(err, ErrNoTCP) && !errors.Is(err, ErrNotCapture) {
		t.Fatal(err)
	}
	return result
}

// closed reports whether both ends have closed a connection.
func closed(c *Connection) bool {
	samples := c.Directions[1].Observation.Samples
	return samples[len(samples)-1].Info.State == tcpinfo.Closed
}

// lastInfo is the latest tcp_info of a direction's sender before the connection
// was closed.
func lastInfo(r *Result, direction int) *tcpinfo.Info {
	samples := r.Connections[0].Directions[direction].Observation.Samples
	for i := len(samples) - 1; i >= 0; i-- {
		if samples[i].Info.State == tcpinfo.Established {
			return &samples[i].Info
		}
	}
	return &tcpinfo.Info{}
}

// within compares a value with the kernel's, with a relative tolerance and an
// absolute one.
func within(what string, got, want, share, slack float64) error {
	if math.Abs(got-want) > share*want+slack {
		return fmt.Errorf("%s is %g, the kernel says %g", what, got, want)
	}
	return nil
}

// agrees compares a count with the kernel's.
func agrees(t *testing.T, what string, got, want, share, slack float64) {
	t.Helper()
	if err := within(what, got, want, share, slack); err != nil {
		t.Error(err)
	}
}

// scenario is a transfer to compare with its captures.
type scenario struct {
	conditions lab.Conditions
	to         netip.Addr
	bytes      int64
	pause      time.Duration
	// lostAgain is the share of retransmissions that are lost again, invisible
	// at the receiver.
	lostAgain float64
	midway    trouble
}

func scenarios() map[string]scenario {
	conditions := func(change func(*lab.Conditions)) lab.Conditions {
		c := lab.MitreConditions()
		c.RTT, c.RateBps = 20*time.Millisecond, 100e6
		change(&c)
		return c
	}
	return map[string]scenario{
		"window": {conditions: conditions(func(c *lab.Conditions) { c.ClassicEndHost = true; c.RTT = 60 * time.Millisecond; c.RateBps = 1e9 }), to: lab.HostB, bytes: 3 << 20},
		"loss":   {conditions: conditions(func(c *lab.Conditions) { c.Loss.Probability = 0.01 }), to: lab.HostB, bytes: 2 << 20},
		"queue":  {conditions: conditions(func(c *lab.Conditions) { c.RateBps = 20e6; c.QueueBDP = 2 }), to: lab.HostB6, bytes: 2 << 20},
		// The queue holds the whole transfer: on a busy machine it would drop packets, also those sent again.
		"reordering": {conditions: conditions(func(c *lab.Conditions) {
			c.Reorder, c.QueueBDP = link.Reorder{Probability: 0.01, Hold: 8 * time.Millisecond}, 20
		}), to: lab.HostB, bytes: 4 << 20},
		"application": {conditions: conditions(func(*lab.Conditions) {}), to: lab.HostB6, bytes: 640 << 10, pause: 100 * time.Millisecond},
		"segment":     {conditions: conditions(func(c *lab.Conditions) { c.MTUAB, c.MTUBA = 1400, 1400 }), to: lab.HostB, bytes: 2 << 20, lostAgain: 0.7},
		"outage":      {conditions: conditions(func(*lab.Conditions) {}), to: lab.HostB, bytes: 4 << 20, midway: outage, lostAgain: 1}, // it may lose a whole flight, and the receiver sees none of that
		"reader":      {conditions: conditions(func(c *lab.Conditions) { c.ClassicEndHost = true }), to: lab.HostB, bytes: 2 << 20, midway: stop},
	}
}

// TestAgainstKernel compares captures of real transfers with the sender's
// tcp_info: counts must agree. A capture sees times elsewhere and slightly
// earlier or later than the kernel; tests with the tag timed compare them.
func TestAgainstKernel(t *testing.T) {
	nettest.RequireRoot(t) // tcpdump drops privileges, impossible in a single-user namespace
	nettest.RequireProgram(t, "tcpdump", "tcpdump")
	for name, test := range scenarios() {
		t.Run(name, func(t *testing.T) {
			nettest.RequireSandbox(t)
			nettest.CheckLeaks(t)
			got := transferIn(t, test.conditions, test.to, test.bytes, test.pause, test.midway)
			checkTwice(t, &got)
			checkAtSender(t, &got)
			checkAtReceiver(t, &got, max(0.1, test.lostAgain))
			// Whether a segment is late or lost depends on timing, for the
			// kernel (RFC 8985) and for a capture. That some are late does not.
			for place, result := range map[string]*Result{"sender": &got.atSender, "receiver": &got.atReceiver} {
				if name == "reordering" && lastInfo(result, 0).ReordSeen == 0 {
					t.Errorf("no reordering is seen at the %s where a hundredth of the packets are late", place)
				}
			}
			// A capture counts a retransmission after silence as a timeout. The
			// length of the silence depends on the machine, except during an
			// outage.
			if name == "outage" && lastInfo(&got.atSender, 0).TotalRTO == 0 {
				t.Errorf("no timeout is seen in an outage that the kernel backed off in: %d of its own", got.info.TotalRTO)
			}
		})
	}
}

func checkAtSender(t *testing.T, got *transfer) {
	t.Helper()
	want := &got.info
	c := got.atSender.Connections[0]
	d := &c.Directions[0]
	info := lastInfo(&got.atSender, 0)
	if c.Client != got.client || d.Place != AtSender || c.Directions[1].Place != AtReceiver || d.Missing || d.Delivered != got.bytes || c.ClosedBy != Client || c.Reset || !c.Handshake.Complete() {
		t.Errorf("at the sender: client %v, places %q %q, delivered %d, missing %d, reset %v, handshake %+v",
			c.Client, d.Place, c.Directions[1].Place, d.Delivered, d.MissingBytes, c.Reset, c.Handshake)
	}
	if info.BytesAcked != want.BytesAcked {
		t.Errorf("acknowledged %d, the kernel says %d", info.BytesAcked, want.BytesAcked)
	}
	if info.SndWnd != want.SndWnd || info.SndWScale != want.SndWScale || info.RcvWScale != want.RcvWScale || info.SndMSS != want.SndMSS ||
		info.AdvMSS != want.AdvMSS || info.Options&^tcpinfo.OptECNSeen != want.Options&^tcpinfo.OptECNSeen {
		t.Errorf("window %d, shifts %d %d, MSS %d %d, options %b; the kernel says %d, %d %d, %d %d, %b",
			info.SndWnd, info.SndWScale, info.RcvWScale, info.SndMSS, info.AdvMSS, info.Options,
			want.SndWnd, want.SndWScale, want.RcvWScale, want.SndMSS, want.AdvMSS, want.Options)
	}
	for _, f := range []tcpinfo.Field{tcpinfo.FieldRTT, tcpinfo.FieldSndWnd, tcpinfo.FieldBusyTime, tcpinfo.FieldRwndLimited, tcpinfo.FieldSndCwnd, tcpinfo.FieldTotalRTO} {
		if !info.Has(f) {
			t.Errorf("field %d is not known at the sender", f)
		}
	}
	agrees(t, "bytes sent", float64(info.BytesSent), float64(want.BytesSent), 0.002, 0)
	agrees(t, "bytes sent again", float64(info.BytesRetrans), float64(want.BytesRetrans), 0.02, 1500)
	agrees(t, "segments sent again", float64(info.TotalRetrans), float64(want.TotalRetrans), 0.02, 1)
	agrees(t, "segments of data", float64(info.DataSegsOut), float64(want.DataSegsOut), 0.01, 2)
	agrees(t, "segments", float64(info.SegsOut), float64(want.SegsOut), 0.01, 2)
	agrees(t, "segments in", float64(info.SegsIn), float64(want.SegsIn), 0.01, 2)
	agrees(t, "delivered", float64(info.Delivered), float64(want.Delivered), 0.01, 0)
	agrees(t, "DSACKs", float64(info.DSACKDups), float64(want.DSACKDups), 0.05, 1)
}

func checkAtReceiver(t *testing.T, got *transfer, lostAgain float64) {
	t.Helper()
	want := &got.info
	c := got.atReceiver.Connections[0]
	d := &c.Directions[0]
	info := lastInfo(&got.atReceiver, 0)
	if d.Place != AtReceiver || c.Directions[1].Place != AtSender || d.Missing || d.Delivered != got.bytes {
		t.Errorf("at the receiver: places %q %q, delivered %d, missing %d", d.Place, c.Directions[1].Place, d.Delivered, d.MissingBytes)
	}
	if info.BytesAcked != want.BytesAcked || info.SndWnd != want.SndWnd {
		t.Errorf("acknowledged %d, window %d, the kernel says %d, %d", info.BytesAcked, info.SndWnd, want.BytesAcked, want.SndWnd)
	}
	for _, f := range []tcpinfo.Field{tcpinfo.FieldRTT, tcpinfo.FieldUnacked, tcpinfo.FieldBusyTime, tcpinfo.FieldRwndLimited, tcpinfo.FieldSndCwnd, tcpinfo.FieldTotalRTO} {
		if info.Has(f) {
			t.Errorf("field %d is known at the receiver", f)
		}
	}
	agrees(t, "at the receiver, segments sent again", float64(info.TotalRetrans), float64(want.TotalRetrans), lostAgain, 2)
	agrees(t, "at the receiver, bytes sent", float64(info.BytesSent), float64(want.BytesSent), 0.001, lostAgain*float64(want.BytesRetrans)+3000)
}

// checkTwice checks a capture on all devices of a router near the sender.
func checkTwice(t *testing.T, got *transfer) {
	t.Helper()
	want := &got.info
	d := &got.twice.Connections[0].Directions[0]
	info := lastInfo(&got.twice, 0)
	if got.twice.LeftOut.Duplicates == 0 || d.Missing || d.Delivered != got.bytes || d.Place != AtSender {
		t.Errorf("captured twice: %d duplicates, missing %d, delivered %d, at %q", got.twice.LeftOut.Duplicates, d.MissingBytes, d.Delivered, d.Place)
	}
	agrees(t, "captured twice, bytes sent", float64(info.BytesSent), float64(want.BytesSent), 0.002, 0)
	agrees(t, "captured twice, bytes sent again", float64(info.BytesRetrans), float64(want.BytesRetrans), 0.02, 1500)
}
