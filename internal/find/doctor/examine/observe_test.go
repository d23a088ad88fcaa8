package examine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/remedy"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// TestObserve watches connections of this process: one that sends all the time, and
// some short ones. They act between two samples, so their speed does not matter.
func TestObserve(t *testing.T) {
	nettest.CheckLeaks(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	nettest.Must(t, err)
	t.Cleanup(tcpserver.Serve(l, tcpserver.Echo))
	server := l.Addr().(*net.TCPAddr).AddrPort()
	diag, err := tcpinfo.OpenDiag()
	nettest.Must(t, err)
	defer diag.Close()
	each := func(visit func(*tcpinfo.Connection)) error {
		return diag.Each(tcpinfo.States(tcpinfo.Established), visit)
	}
	watch := sampling{wanted: between(End{}, EndOf(server)), during: 50 * time.Millisecond, every: 10 * time.Millisecond, each: each}
	if _, err := observe(t.Context(), watch); !errors.Is(err, errNothingSeen) {
		t.Fatalf("without a connection: %v", err)
	}

	dial := func() net.Conn {
		conn, err := net.Dial("tcp4", server.String())
		nettest.Must(t, err)
		return conn
	}
	move := func(conn net.Conn, n int) { // there and back, so acknowledged
		b := make([]byte, n)
		_, err := conn.Write(b)
		nettest.Must(t, err)
		_, err = io.ReadFull(conn, b)
		nettest.Must(t, err)
	}
	bulk, other := dial(), dial()
	defer bulk.Close()
	defer func() { other.Close() }()
	watch.each = func(visit func(*tcpinfo.Connection)) error {
		move(bulk, 10_000)
		other.Close()
		other = dial() // open for this sample
		move(other, 100)
		return each(visit)
	}
	o, err := observe(t.Context(), watch)
	nettest.Must(t, err)
	if o.Local.String() != bulk.LocalAddr().String() || o.Remote != server || o.Ended || o.FromStart || o.CongestionControl == "" {
		t.Errorf("observed %v to %v, ended %v, from the start %v, %q", o.Local, o.Remote, o.Ended, o.FromStart, o.CongestionControl)
	}
	if f := o.Figures(); !(f.GoodputBps > 0) || o.Connections < 2 || o.TotalBytes < f.Bytes/2 {
		t.Errorf("%d connections with %d bytes, %v b/s in %d samples", o.Connections, o.TotalBytes, f.GoodputBps, f.Samples)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := observe(ctx, watch); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancellation: %v", err)
	}
}

func TestBetween(t *testing.T) {
	c := tcpinfo.Connection{Local: netip.MustParseAddrPort("192.0.2.1:4000"), Remote: netip.MustParseAddrPort("203.0.113.9:5432")}
	six := tcpinfo.Connection{Local: netip.MustParseAddrPort("[2001:db8::1]:4000"), Remote: netip.MustParseAddrPort("[2001:db8::9]:5432")}
	home := tcpinfo.Connection{Local: netip.MustParseAddrPort("127.0.0.1:4000"), Remote: netip.MustParseAddrPort("127.0.0.1:5432")}
	for _, test := range []struct {
		of            tcpinfo.Connection
		local, remote string
		want          bool
	}{
		{c, "", "", true},
		{c, "", "203.0.113.9:5432", true},
		{c, "", "203.0.113.9", true},
		{c, "", "::ffff:203.0.113.9", true},
		{c, "", "[::ffff:203.0.113.9]:5432", true},
		{c, "", "0.0.0.0:5432", true},
		{c, "", ":5432", true},
		{c, "4000", "5432", true},
		{c, "4001", "5432", false},
		{c, "", "203.0.113.9:5433", false},
		{c, "", "203.0.113.8:5432", false},
		{c, "192.0.2.1:4000", "203.0.113.9:5432", true},
		{c, "192.0.2.1:4001", "203.0.113.9:5432", false},
		{six, "2001:db8::1", "[2001:db8::9]:5432", true},
		{six, "[2001:db8::1]", "[2001:db8::8]:5432", false},
		{home, "", "localhost:5432", true},
		{home, "localhost", "localhost", true},
		{c, "", "localhost", false},
	} {
		var ends [2]End
		for i, text := range []string{test.local, test.remote} {
			if text == "" {
				continue
			}
			var err error
			if ends[i], err = ParseEnd(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		if got := between(ends[0], ends[1])(&test.of); got != test.want {
			t.Errorf("from %q to %q: %v", test.local, test.remote, got)
		}
	}
	for _, text := range []string{"", ":", "0", ":0", "70000", "203.0.113.9:http", "203.0.113", "a:b:c", "2001:db8::9:5432:1:2:3:4:5", "host name", "[::1]x"} {
		if end, err := ParseEnd(t.Context(), text); remedy.Of(err) == "" {
			t.Errorf("%q is %v, %v", text, end, err)
		}
	}
}
