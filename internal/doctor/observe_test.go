//go:build linux

package doctor_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/nettest"
	"longhaul/internal/tcpinfo"
)

// TestObserve watches connections of this process: one that sends all the time,
// and some that come and go.
func TestObserve(t *testing.T) {
	nettest.CheckLeaks(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	server := l.Addr().(*net.TCPAddr).AddrPort()
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		t.Fatal(err)
	}
	defer diag.Close()
	watch := doctor.Watch{
		Wanted: doctor.Between(netip.AddrPort{}, server), For: 500 * time.Millisecond, Every: 10 * time.Millisecond,
		Each: func(visit func(*tcpinfo.Connection)) error {
			return diag.Each(tcpinfo.States(tcpinfo.Established), visit)
		},
	}
	if _, err := doctor.Observe(t.Context(), watch); !errors.Is(err, doctor.ErrNothingSeen) {
		t.Fatalf("without a connection: %v", err)
	}

	bulk, err := net.Dial("tcp4", server.String())
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer bulk.Close()
		b := make([]byte, 10_000)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := bulk.Write(b); err != nil {
				return
			}
			other, err := net.Dial("tcp4", server.String())
			if err != nil {
				return
			}
			_, _ = other.Write(b[:100])
			time.Sleep(15 * time.Millisecond) // there for a sample
			other.Close()
		}
	}()
	watch.For = 3 * time.Second // time enough on a busy machine
	o, err := doctor.Observe(t.Context(), watch)
	close(stop)
	<-done
	if err != nil {
		t.Fatal(err)
	}
	if o.Local.String() != bulk.LocalAddr().String() || o.Remote != server || o.Ended || o.FromStart || o.CongestionControl == "" {
		t.Errorf("observed %v to %v, ended %v, from the start %v, %q", o.Local, o.Remote, o.Ended, o.FromStart, o.CongestionControl)
	}
	if f := o.Figures(); !(f.GoodputBps > 0) || o.Connections < 2 || o.TotalBytes < f.Bytes/2 {
		t.Errorf("%d connections with %d bytes, %v b/s in %d samples", o.Connections, o.TotalBytes, f.GoodputBps, f.Samples)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := doctor.Observe(ctx, watch); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancellation: %v", err)
	}
}

func TestBetween(t *testing.T) {
	c := tcpinfo.Connection{Local: netip.MustParseAddrPort("192.0.2.1:4000"), Remote: netip.MustParseAddrPort("203.0.113.9:5432")}
	for _, test := range []struct {
		local, remote string
		want          bool
	}{
		{"", "", true},
		{"", "203.0.113.9:5432", true},
		{"", "203.0.113.9:0", true},
		{"", "[::ffff:203.0.113.9]:5432", true},
		{"", "0.0.0.0:5432", true},
		{"", "203.0.113.9:5433", false},
		{"", "203.0.113.8:5432", false},
		{"192.0.2.1:4000", "203.0.113.9:5432", true},
		{"192.0.2.1:4001", "203.0.113.9:5432", false},
	} {
		var ends [2]netip.AddrPort
		for i, text := range []string{test.local, test.remote} {
			if text != "" {
				ends[i] = netip.MustParseAddrPort(text)
			}
		}
		if got := doctor.Between(ends[0], ends[1])(&c); got != test.want {
			t.Errorf("from %q to %q: %v", test.local, test.remote, got)
		}
	}
}
