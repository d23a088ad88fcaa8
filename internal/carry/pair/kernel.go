package pair

import (
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
)

// kernelSays asks the kernel about a connection; one that is closed here says nothing.
func kernelSays(bulk *bulkConn, what func(*tcpinfo.Info) bool) (yes bool) {
	bulk.control(func(fd int) {
		info, err := tcpinfo.Get(fd)
		yes = err == nil && what(&info)
	})
	return yes
}

// stuck reports that the kernel repeats what nobody acknowledges, or that it cannot send at
// all although the other end has room: the connection's address or its route is gone.
func stuck(bulk *bulkConn, within time.Duration) bool {
	return kernelSays(bulk, func(i *tcpinfo.Info) bool {
		repeats := i.Unacked > 0 && i.Retransmits > 0
		cannotSend := i.Unacked == 0 && i.NotsentBytes > 0 && i.SndWnd > 0 && i.Probes > 0
		return (repeats || cannotSend) && i.LastAckRecv > max(within, 4*i.RTT)
	})
}

// isClosed reports that the kernel has closed the connection, by a reset or a timeout. A
// reader that waits for the flow's own socket does not see it.
func isClosed(bulk *bulkConn) bool {
	return kernelSays(bulk, func(i *tcpinfo.Info) bool { return i.State == tcpinfo.Closed })
}

// holds reports that the kernel has bytes that the other end's has not acknowledged.
func holds(bulk *bulkConn) bool {
	return kernelSays(bulk, func(i *tcpinfo.Info) bool { return i.Unacked > 0 || i.NotsentBytes > 0 })
}

// moves reports that the kernel waits for acknowledgements, and gets some.
func moves(bulk *bulkConn) bool {
	return kernelSays(bulk, func(i *tcpinfo.Info) bool {
		return i.Unacked > 0 && i.LastAckRecv < max(suspectAfter, 4*i.RTT)
	})
}

// isShut reports that bytes wait for the other end's window alone, which is closed.
func isShut(bulk *bulkConn) bool {
	return kernelSays(bulk, func(i *tcpinfo.Info) bool {
		return i.Unacked == 0 && i.NotsentBytes > 0 && i.SndWnd == 0
	})
}

// keptShut reports that the other end's kernel has said within this time that its window is closed,
// while bytes wait for it.
func keptShut(bulk *bulkConn, within time.Duration) bool {
	return kernelSays(bulk, func(i *tcpinfo.Info) bool {
		return i.Unacked == 0 && i.NotsentBytes > 0 && i.SndWnd == 0 && i.LastAckRecv < within
	})
}

// readable reports that a reader of a socket that waits is to be woken: a part of what it waits for does
// not do that (SO_RCVLOWAT).
func readable(fd int) bool { return hasEvents(fd, unix.POLLIN, 0) }

// pathOf is the round trip of a connection as the kernel knows it, and how many segments it has
// sent again.
func pathOf(bulk *bulkConn) (rtt time.Duration, repeats uint32) {
	kernelSays(bulk, func(i *tcpinfo.Info) bool {
		rtt, repeats = i.RTT, i.TotalRetrans
		return true
	})
	return rtt, repeats
}

func localAddress(bulk *bulkConn) netip.AddrPort {
	a, _ := netip.ParseAddrPort(bulk.tcp.LocalAddr().String())
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func addressOf(bulk *bulkConn) netip.AddrPort {
	a, err := netip.ParseAddrPort(bulk.RemoteAddr().String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// addressToTell is what a far process tells of where it takes connections: what its configuration says, or
// the address from which the kernel sends to the other end of this connection, with the port to which it
// came. The near end knows whether it has dialed another one: a box on the way may have led it here. The
// zero value: there is nothing to tell.
func addressToTell(bulk *bulkConn, configured netip.AddrPort) netip.AddrPort {
	if configured.IsValid() {
		return configured
	}
	here, there := localAddress(bulk), addressOf(bulk)
	own, ok := sourceTowards(there)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(own, here.Port())
}

// sourceTowards is the address from which the kernel sends to another one. Nothing is sent. It asks for
// one that stays: an address for privacy (RFC 8981) is gone in a day.
func sourceTowards(to netip.AddrPort) (netip.Addr, bool) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_ADDR_PREFERENCES, preferPublic) // not of IPv4
		})
	}}
	conn, err := d.Dial("udp", to.String())
	if err != nil {
		return netip.Addr{}, false
	}
	defer conn.Close()
	at, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return at.Addr().Unmap(), err == nil
}

// preferPublic is IPV6_PREFER_SRC_PUBLIC (RFC 5014).
const preferPublic = 2

// suspectAfter is the shortest time without progress after which a lane is looked at.
const suspectAfter = 500 * time.Millisecond

func keepAlive(fd int) {
	if idle, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE); err == nil && idle < keepIdle {
		return // the tunnel asks for more
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepIdle)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepInterval)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepCount)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
}

// The keepalive probes of idle connections: more often than NATs and firewalls forget
// them, and a lane that is dead does not stay in the pool.
const (
	keepIdle     = 15 // s
	keepInterval = 5  // s
	keepCount    = 4
)

// keepalive is how the kernel asks on a connection that is silent.
type keepalive struct{ idle, interval, count int }

// hasten has the kernel ask on a silent connection each second, and give it up no sooner than before.
func hasten(fd int) (was keepalive) {
	for option, at := range map[int]*int{unix.TCP_KEEPIDLE: &was.idle, unix.TCP_KEEPINTVL: &was.interval, unix.TCP_KEEPCNT: &was.count} {
		*at, _ = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, option)
	}
	const most = 127 // the kernel's
	keepalive{1, 1, min(was.idle+was.interval*was.count, most)}.set(fd)
	return was
}

func (k keepalive) set(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, max(k.count, 1)) // first: else the connection may be given up
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(k.interval, 1))
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, max(k.idle, 1))
}

// ackedAt is when the other end's kernel last acknowledged something on a connection that stands; the zero
// time: it does not stand.
func ackedAt(bulk *bulkConn, now time.Time) (at time.Time) {
	kernelSays(bulk, func(i *tcpinfo.Info) bool {
		if i.State != tcpinfo.Closed {
			at = now.Add(-i.LastAckRecv)
		}
		return true
	})
	return at
}

// readerWait is how long the kernel has waited for the other end's window on a lane, and has
// had something to send, at the last look.
type readerWait struct{ rwndLimited, busyTime time.Duration }

// since reports whether the lane has mostly waited for the other end's window since the last
// look at it.
func (w *readerWait) since(c *bulkConn) bool {
	before := *w
	kernelSays(c, func(i *tcpinfo.Info) bool {
		w.rwndLimited, w.busyTime = i.RwndLimited, i.BusyTime
		return true
	})
	return w.rwndLimited-before.rwndLimited > (w.busyTime-before.busyTime)/2
}
