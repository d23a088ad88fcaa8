package halfopen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/link"
	"longhaul/lab/linktest"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// TestNobodyIsAccepted: the program behind a port sees none of 200 connections that ask whether it
// accepts, over paths of every length. A connection that was closed too late, on a busy machine, is
// known by its second segment, the ACK.
func TestNobodyIsAccepted(t *testing.T) {
	for _, delay := range []time.Duration{0, 10 * time.Millisecond, 100 * time.Millisecond} {
		t.Run(fmt.Sprint(2*delay), func(t *testing.T) {
			nettest.CheckLeaks(t)
			from, to, _ := linktest.New(t, linktest.Kinds[1], 1500, link.Settings{Delay: delay}, link.Settings{Delay: delay})
			for _, address := range []netip.Addr{to.V4, to.V6} {
				askMany(t, from, to, address)
			}
		})
	}
}

func askMany(t *testing.T, from, to *linktest.Host, address netip.Addr) {
	t.Helper()
	var l net.Listener
	to.Do(t, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(address, 0).String())
		return err
	})
	var accepted, acknowledged atomic.Int32
	last := make(chan struct{})
	stop := tcpserver.Serve(l, func(c net.Conn) {
		var b [1]byte
		if n, _ := c.Read(b[:]); n == 1 {
			close(last)
			return
		}
		accepted.Add(1)
	})
	const asked = 100
	var asking sync.WaitGroup
	for range asked {
		asking.Go(func() {
			err := from.Run(func() error {
				_, err := Ask(context.Background(), l.Addr().String(), Options{Seen: func(c *net.TCPConn) {
					if segments(c) > 1 {
						acknowledged.Add(1)
					}
				}})
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	var c net.Conn
	from.Do(t, func() (err error) {
		c, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	_, err := c.Write([]byte("x"))
	nettest.Must(t, err)
	<-last // whatever came before it was accepted before
	c.Close()
	stop()
	if accepted.Load() > acknowledged.Load() || acknowledged.Load() > asked/2 {
		t.Errorf("%s accepted %d of %d connections, of which %d were acknowledged", address, accepted.Load(), asked, acknowledged.Load())
	}
}

// segments is the number of segments that a connection has sent.
func segments(c *net.TCPConn) (n uint32) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := tcpinfo.Get(int(fd)); err == nil {
			n = info.SegsOut
		}
	})
	return n
}

func TestNoAnswer(t *testing.T) {
	nettest.CheckLeaks(t)
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	l.Close()
	if _, err := Ask(t.Context(), l.Addr().String(), Options{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port answers %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Ask(over, l.Addr().String(), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled question is answered by %v", err)
	}
	refused := errors.New("no such option")
	if _, err := Ask(t.Context(), l.Addr().String(), Options{Prepare: func(int) error { return refused }}); !errors.Is(err, refused) {
		t.Errorf("a socket that cannot be prepared: %v", err)
	}
}
