package selfconn

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/remedy"
	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.MainWithoutLeaks(m) }

// ends makes a connection whose ends the test closes.
func ends(t *testing.T, c *Connector) (dialed, accepted int) {
	t.Helper()
	dialed, accepted, err := c.Connect(t.Context())
	nettest.Must(t, err)
	t.Cleanup(func() {
		unix.Close(dialed)
		unix.Close(accepted)
	})
	return dialed, accepted
}

func open(t *testing.T) *Connector {
	c := New()
	t.Cleanup(c.Close)
	return c
}

// await waits until the descriptor has something to read, and reads it.
func await(t *testing.T, fd int, b []byte) (int, error) {
	t.Helper()
	look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(look, int(time.Minute/time.Millisecond)); n != 1 {
		t.Fatalf("nothing came: %v", err)
	}
	return unix.Read(fd, b)
}

func TestConnect(t *testing.T) {
	c := open(t)
	b := make([]byte, 16)
	for _, how := range []string{"end", "reset"} {
		dialed, accepted := ends(t, c)
		for _, one := range [][2]int{{dialed, accepted}, {accepted, dialed}} {
			_, err := unix.Write(one[0], []byte("hello"))
			nettest.Must(t, err)
			if n, err := await(t, one[1], b); string(b[:max(n, 0)]) != "hello" || err != nil {
				t.Errorf("got %q, %v", b[:max(n, 0)], err)
			}
			if info, err := tcpinfo.Get(one[0]); err != nil || info.SndMSS > segment || info.State != tcpinfo.Established {
				t.Errorf("the connection is %+v, %v", info, err)
			}
		}
		_, err := unix.Write(dialed, []byte("last"))
		nettest.Must(t, err)
		if how == "end" {
			nettest.Must(t, unix.Shutdown(dialed, unix.SHUT_WR))
		} else {
			nettest.Must(t, unix.SetsockoptLinger(dialed, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
			other, err := unix.FcntlInt(uintptr(accepted), unix.F_DUPFD_CLOEXEC, 0)
			nettest.Must(t, err)
			nettest.Must(t, unix.Dup3(other, dialed, unix.O_CLOEXEC)) // closes it
			unix.Close(other)
		}
		if n, err := await(t, accepted, b); string(b[:max(n, 0)]) != "last" || err != nil {
			t.Errorf("before the %s: %q, %v", how, b[:max(n, 0)], err)
		}
		n, err := await(t, accepted, b)
		if n > 0 || (how == "end") != (err == nil) || how == "reset" && err != unix.ECONNRESET {
			t.Errorf("%s: %d, %v", how, n, err)
		}
	}
}

// TestStrangers holds that a connection of somebody else is none of a Connector's, and that many of them do
// not keep it from connecting.
func TestStrangers(t *testing.T) {
	c := open(t)
	ends(t, c)
	at, err := unix.Getsockname(c.fd)
	nettest.Must(t, err)
	address := netip.AddrPortFrom(netip.AddrFrom4(at.(*unix.SockaddrInet4).Addr), uint16(at.(*unix.SockaddrInet4).Port)).String()
	for _, n := range []int{1, 2 * backlog} {
		var strangers []net.Conn
		for range n {
			if s, err := (&net.Dialer{Timeout: 50 * time.Millisecond}).Dial("tcp", address); err == nil { // else the queue is full
				strangers = append(strangers, s)
			}
		}
		dialed, accepted := ends(t, c)
		_, err := unix.Write(dialed, []byte("mine"))
		nettest.Must(t, err)
		b := make([]byte, 16)
		if n, err := await(t, accepted, b); string(b[:max(n, 0)]) != "mine" || err != nil {
			t.Errorf("beside %d strangers: %q, %v", len(strangers), b[:max(n, 0)], err)
		}
		for _, s := range strangers {
			_ = s.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := s.Read(b); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a stranger got %d bytes, %v", n, err)
			} else if err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("a stranger got %v", err)
			}
			s.Close()
		}
	}
}

func TestClosed(t *testing.T) {
	c := open(t)
	dialed, accepted := ends(t, c)
	c.Close()
	if _, _, err := c.Connect(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	_, err := unix.Write(dialed, []byte("on"))
	nettest.Must(t, err)
	if n, err := await(t, accepted, make([]byte, 2)); n != 2 || err != nil {
		t.Errorf("a connection that stands got %d bytes, %v", n, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	busy := open(t)
	busy.turn <- struct{}{}
	if _, _, err := busy.Connect(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("beside another that takes long: %v", err)
	}
	<-busy.turn
}

// TestHosts holds that each lack of a host is named with its remedy, and that IPv6 alone is enough.
func TestHosts(t *testing.T) {
	nettest.RequireSandbox(t)
	nft := nettest.RequireProgram(t, "nft", "nftables")
	for name, tt := range map[string]struct {
		before func(*hosts.Host) error
		want   error // nil: it connects
		fix    string
	}{
		"IPv6 alone": {func(h *hosts.Host) error { return h.DropAddress("lo", netip.MustParsePrefix("127.0.0.1/8")) }, nil, ""},
		"lo is down": {func(h *hosts.Host) error { return h.Down("lo") }, unix.ETIMEDOUT, "ip link set lo up"},
		"a firewall drops": {func(h *hosts.Host) error {
			return h.Do(func() error {
				return exec.Command(nft, "table ip x { chain y { type filter hook input priority 0; iif lo tcp flags syn drop; }; }").Run()
			})
		}, unix.ETIMEDOUT, "firewall"},
		"no local port": {func(h *hosts.Host) error { return h.Sysctl("net.ipv4.ip_local_port_range", "40000 40000") }, unix.EADDRNOTAVAIL, "ip_local_port_range"},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := hosts.New("h")
			nettest.Must(t, err)
			defer h.Close()
			nettest.Must(t, tt.before(h))
			nettest.Must(t, h.Do(func() error {
				c := New()
				defer c.Close()
				dialed, accepted, err := c.Connect(t.Context())
				if err == nil {
					unix.Close(dialed)
					unix.Close(accepted)
				}
				if !errors.Is(err, tt.want) || tt.want != nil && !strings.Contains(remedy.Of(err), tt.fix) {
					t.Errorf("got %v; %s", err, remedy.Of(err))
				}
				return nil
			}))
		})
	}
}
