package tcpinfo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// connect returns both ends of a connection over loopback. MPTCP is off: its
// sockets answer TCP_INFO differently.
func connect(t *testing.T, address string) (client, server *net.TCPConn) {
	t.Helper()
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialer := net.Dialer{}
	dialer.SetMultipathTCP(false)
	c, err := dialer.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// withFD calls f with the socket's descriptor.
func withFD(t *testing.T, c syscall.Conn, f func(fd int)) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { f(int(fd)) }); err != nil {
		t.Fatal(err)
	}
}

func mustGet(t *testing.T, c syscall.Conn) (i Info) {
	t.Helper()
	withFD(t, c, func(fd int) {
		var err error
		if i, err = Get(fd); err != nil {
			t.Fatal(err)
		}
	})
	return i
}

// kernelFields returns an Info with the fields that this kernel's tcp_info has.
func kernelFields(t *testing.T, c syscall.Conn) (i Info) {
	t.Helper()
	withFD(t, c, func(fd int) {
		var buf [bufLen]byte
		raw, err := get(fd, &buf)
		if err != nil {
			t.Fatal(err)
		}
		i = parse(bytes.Repeat([]byte{1}, len(raw)), nativeOrder)
	})
	// All kernels from 5.4 have the fields before these.
	for f := range FieldRehash {
		if f != FieldRcvWnd && !i.Has(f) {
			t.Errorf("the kernel lacks field %d", f)
		}
	}
	return i
}

// eventually polls until cond accepts the Info.
func eventually(t *testing.T, c syscall.Conn, cond func(Info) bool) Info {
	t.Helper()
	var i Info
	nettest.Eventually(t, patience, func() bool {
		i = mustGet(t, c)
		return cond(i)
	}, func() string { return fmt.Sprintf("the kernel says %+v", i) })
	return i
}

// patience bounds every wait.
const patience = time.Minute

func TestGet(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			client, server := connect(t, address)
			const size = 100_000
			if _, err := client.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(server, make([]byte, size)); err != nil {
				t.Fatal(err)
			}

			// The SYN counts as one byte acknowledged.
			i := eventually(t, client, func(i Info) bool { return i.BytesAcked == size+1 && i.CAState == CAOpen })
			kernel := kernelFields(t, client)
			for f := range fieldCount {
				if i.Has(f) != kernel.Has(f) && f != FieldRcvRTT {
					t.Errorf("field %d of a connection that has moved data: known is %v", f, i.Has(f))
				}
			}
			if i.State != Established {
				t.Errorf("state %v, want established", i.State)
			}
			if want := OptTimestamps | OptSACK | OptWScale; i.Options&want != want {
				t.Errorf("options %06b, want timestamps, SACK and window scaling", i.Options)
			}
			if i.RTT <= 0 || i.MinRTT > i.RTT+i.RTTVar*8 {
				t.Errorf("RTT %v ± %v, least %v", i.RTT, i.RTTVar, i.MinRTT)
			}
			if i.BytesSent != size+i.BytesRetrans || (i.BytesRetrans > 0) != (i.TotalRetrans > 0) {
				t.Errorf("sent %d bytes, retransmitted %d in %d segments, want %d and what was retransmitted", i.BytesSent, i.BytesRetrans, i.TotalRetrans, size)
			}
			if i.PMTU < 65535 || i.PMTU > 65536 || i.SndMSS < 32768 || i.SndMSS > i.PMTU {
				t.Errorf("path MTU %d and MSS %d on loopback", i.PMTU, i.SndMSS)
			}
			if i.DeliveryRateBps <= 0 || i.PacingRateBps <= 0 || i.MaxPacingRateBps != Unlimited {
				t.Errorf("rates: delivery %d, pacing %d, its maximum %d", i.DeliveryRateBps, i.PacingRateBps, i.MaxPacingRateBps)
			}
			if i.SndCwnd == 0 || i.SndWnd == 0 || i.RcvWnd == 0 && i.Has(FieldRcvWnd) || i.Delivered == 0 || i.DataSegsOut == 0 {
				t.Errorf("zero where it cannot be: %+v", i)
			}

			r := mustGet(t, server)
			if r.BytesReceived != size || r.DataSegsIn == 0 {
				t.Errorf("received %d bytes in %d segments, want %d", r.BytesReceived, r.DataSegsIn, size)
			}
			if r.RcvWScale != i.SndWScale || r.SndWScale != i.RcvWScale || i.RcvWScale == 0 {
				t.Errorf("window scales: client %d/%d, server %d/%d", i.SndWScale, i.RcvWScale, r.SndWScale, r.RcvWScale)
			}
		})
	}
}

// A paused reader: the queued bytes and the cause are reported.
func TestGetStalled(t *testing.T) {
	client, server := connect(t, "127.0.0.1:0")
	if err := server.SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	writeTooMuch(t, client)
	i := eventually(t, client, func(i Info) bool { return i.NotsentBytes > 0 && i.RwndLimited > 50*time.Millisecond })
	if i.NotsentBytes > tooMuch {
		t.Errorf("%d of %d bytes not sent", i.NotsentBytes, tooMuch)
	}
	if i.BusyTime < i.RwndLimited {
		t.Errorf("busy %v, which includes the %v of a closed window", i.BusyTime, i.RwndLimited)
	}
}

// tooMuch exceeds the buffers of a connection.
const tooMuch = 16 << 20

// writeTooMuch begins a write that blocks until the connection is closed.
func writeTooMuch(t *testing.T, c *net.TCPConn) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if n, err := c.Write(make([]byte, tooMuch)); err == nil {
			t.Errorf("a peer that does not read has taken %d bytes", n)
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-ended
	})
}

func TestGetAfterReset(t *testing.T) {
	client, server := connect(t, "127.0.0.1:0")
	if err := server.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	server.Close()
	i := eventually(t, client, func(i Info) bool { return i.State == Closed })
	if !i.Has(FieldRTT) {
		t.Error("the RTT is forgotten with the reset")
	}
}

func TestGetListener(t *testing.T) {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	i := mustGet(t, l.(*net.TCPListener))
	if i.State != Listen {
		t.Errorf("state %v, want listen", i.State)
	}
	if i.Has(FieldUnacked) || i.Has(FieldRTT) || i.Has(FieldSndMSS) {
		t.Error("a listener has no such figures")
	}
}

func TestAcceptQueue(t *testing.T) {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const waits = 3
	var clients []*net.TCPConn
	for range waits {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c.(*net.TCPConn))
	}
	withFD(t, l.(*net.TCPListener), func(fd int) {
		var waiting, limit uint32
		var err error
		nettest.Eventually(t, patience, func() bool { // the server sees a connection later than the client
			waiting, limit, err = AcceptQueue(fd)
			return waiting == waits && limit >= waits && err == nil
		}, func() string { return fmt.Sprintf("%d of %d wait, %v", waiting, limit, err) })
	})
	withFD(t, clients[0], func(fd int) {
		if _, _, err := AcceptQueue(fd); err == nil {
			t.Error("a connection has an accept queue")
		}
	})
}

func TestGetMaxPacingRate(t *testing.T) {
	client, _ := connect(t, "127.0.0.1:0")
	const bytesPerSecond = 10 << 30 / 8 // exceeds 32 bits as bits per second
	withFD(t, client, func(fd int) {
		if err := unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, bytesPerSecond); err != nil {
			t.Fatal(err)
		}
	})
	if i := mustGet(t, client); i.MaxPacingRateBps != 8*bytesPerSecond {
		t.Errorf("maximum pacing rate %d b/s, want %d", i.MaxPacingRateBps, 8*bytesPerSecond)
	}
}

func TestErrors(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := Get(int(r.Fd())); err == nil {
		t.Error("Get of a pipe succeeded")
	}
	if _, err := CongestionControl(int(r.Fd())); err == nil {
		t.Error("CongestionControl of a pipe succeeded")
	}
}

func TestCongestionControl(t *testing.T) {
	client, _ := connect(t, "127.0.0.1:0")
	withFD(t, client, func(fd int) {
		if err := unix.SetsockoptString(fd, unix.SOL_TCP, unix.TCP_CONGESTION, "reno"); err != nil {
			t.Fatal(err)
		}
		if name, err := CongestionControl(fd); err != nil || name != "reno" {
			t.Errorf("congestion control %q, %v, want reno", name, err)
		}
	})
}

// Lengths of tcp_info by the kernel that introduced them, with their new
// fields.
var lengths = []struct {
	kernel string
	length int
	fields []Field
}{
	{"3.14", 104, []Field{FieldState, FieldCAState, FieldOptions, FieldRetransmits, FieldProbes, FieldBackoff,
		FieldSndWScale, FieldRcvWScale, FieldRTO, FieldATO, FieldSndMSS, FieldRcvMSS, FieldAdvMSS, FieldPMTU,
		FieldUnacked, FieldSacked, FieldLost, FieldRetrans, FieldReordering, FieldLastDataSent, FieldLastDataRecv,
		FieldLastAckRecv, FieldRTT, FieldRTTVar, FieldRcvRTT, FieldSndCwnd, FieldSndSSThresh, FieldRcvSSThresh,
		FieldRcvSpace, FieldTotalRetrans}},
	{"3.15", 120, []Field{FieldPacingRateBps, FieldMaxPacingRateBps}},
	{"4.1", 136, []Field{FieldBytesAcked, FieldBytesReceived}},
	{"4.2", 144, []Field{FieldSegsOut, FieldSegsIn}},
	{"4.6", 160, []Field{FieldNotsentBytes, FieldMinRTT, FieldDataSegsIn, FieldDataSegsOut}},
	{"4.9", 168, []Field{FieldDeliveryRateBps, FieldDeliveryRateAppLimited}},
	{"4.10", 192, []Field{FieldBusyTime, FieldRwndLimited, FieldSndbufLimited}},
	{"4.18", 200, []Field{FieldDelivered, FieldDeliveredCE}},
	{"4.19", 224, []Field{FieldBytesSent, FieldBytesRetrans, FieldDSACKDups, FieldReordSeen}},
	{"5.4", 232, []Field{FieldRcvOOOPack, FieldSndWnd}},
	{"6.2", 240, []Field{FieldRcvWnd, FieldRehash}},
	{"6.7", 248, []Field{FieldTotalRTO, FieldTotalRTORecoveries, FieldTotalRTOTime}},
	{"a later one", bufLen, nil},
}

func TestParseByLength(t *testing.T) {
	full := make([]byte, bufLen)
	for i := range full {
		full[i] = 1
	}
	want := uint64(0)
	for _, tt := range lengths {
		for _, f := range tt.fields {
			want |= 1 << f
		}
		t.Run(tt.kernel, func(t *testing.T) {
			for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
				if got := parse(full[:tt.length], order); got.known != want {
					t.Errorf("%v: known %058b, want %058b", order, got.known, want)
				}
			}
		})
	}
	if want != 1<<fieldCount-1 {
		t.Errorf("the table lacks fields: %058b", want)
	}
}

// Every field comes from its own bytes, and is unknown if they are missing.
func TestParseTruncated(t *testing.T) {
	full := make([]byte, bufLen)
	for i := range full {
		full[i] = byte(i)
	}
	whole := parse(full, binary.BigEndian)
	for n := range full {
		part := parse(full[:n], binary.BigEndian)
		if extra := part.known &^ whole.known; extra != 0 {
			t.Fatalf("%d bytes: knows %b that the whole does not", n, extra)
		}
		if part.Has(FieldBytesAcked) != (n >= 128) || part.Has(FieldBytesAcked) && part.BytesAcked != whole.BytesAcked {
			t.Fatalf("%d bytes: acked %d, known %v", n, part.BytesAcked, part.Has(FieldBytesAcked))
		}
	}
}

func TestParseFigures(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			raw := make([]byte, 248)
			raw[0] = byte(CloseWait)
			if order == binary.LittleEndian {
				raw[6], raw[7] = 0x97, 0x01
			} else {
				raw[6], raw[7] = 0x79, 0x80
			}
			order.PutUint32(raw[68:], 63_000)             // rtt
			order.PutUint64(raw[104:], 125_000_000)       // pacing rate
			order.PutUint64(raw[112:], math.MaxUint64)    // maximum
			order.PutUint32(raw[148:], 62_500)            // min rtt
			order.PutUint64(raw[176:], 5_000_000_000_000) // rwnd limited, over 32 bits
			order.PutUint16(raw[240:], 3)                 // timeouts
			order.PutUint16(raw[242:], 2)                 // recoveries
			order.PutUint32(raw[244:], 1500)              // their time
			i := parse(raw, order)
			if i.State != CloseWait || i.SndWScale != 7 || i.RcvWScale != 9 || !i.DeliveryRateAppLimited {
				t.Errorf("state %v, window scales %d and %d, application-limited %v", i.State, i.SndWScale, i.RcvWScale, i.DeliveryRateAppLimited)
			}
			if i.RTT != 63*time.Millisecond || i.MinRTT != 62500*time.Microsecond || i.RwndLimited != 5_000_000*time.Second {
				t.Errorf("RTT %v, least %v, window-limited %v", i.RTT, i.MinRTT, i.RwndLimited)
			}
			if i.PacingRateBps != 1e9 || i.MaxPacingRateBps != Unlimited {
				t.Errorf("pacing %d, maximum %d", i.PacingRateBps, i.MaxPacingRateBps)
			}
			if i.TotalRTO != 3 || i.TotalRTORecoveries != 2 || i.TotalRTOTime != 1500*time.Millisecond {
				t.Errorf("timeouts %d, recoveries %d, time %v", i.TotalRTO, i.TotalRTORecoveries, i.TotalRTOTime)
			}
		})
	}
}

func TestParseNoSample(t *testing.T) {
	raw := make([]byte, 248)
	raw[0] = byte(SynSent)
	binary.LittleEndian.PutUint32(raw[148:], math.MaxUint32)
	i := parse(raw, binary.LittleEndian)
	for _, f := range []Field{FieldRTT, FieldRTTVar, FieldMinRTT, FieldRcvRTT} {
		if i.Has(f) {
			t.Errorf("field %d is known without a sample", f)
		}
	}
	if !i.Has(FieldTotalRetrans) {
		t.Error("no retransmission is a known figure")
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		Established.String(): "established", Closing.String(): "closing", State(0).String(): "state-0", State(99).String(): "state-99",
		CAOpen.String(): "open", CALoss.String(): "loss", CAState(7).String(): "ca-state-7",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(make([]byte, 248), true)
	f.Add([]byte{1}, false)
	f.Fuzz(func(t *testing.T, raw []byte, big bool) {
		var order binary.ByteOrder = binary.LittleEndian
		if big {
			order = binary.BigEndian
		}
		i := parse(raw, order)
		if i.PacingRateBps < 0 || i.DeliveryRateBps < 0 || i.MaxPacingRateBps < 0 {
			t.Fatalf("negative rate: %+v", i)
		}
		if _, _, ok := parseQueue(raw, order); ok && (i.State != Listen || len(raw) < 32) {
			t.Fatal("a queue is read from what has none")
		}
		if len(raw) == 0 && i.known != 0 {
			t.Fatal("something is known from nothing")
		}
		_, _ = i.State.String(), i.CAState.String()
	})
}
