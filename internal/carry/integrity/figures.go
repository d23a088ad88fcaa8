package integrity

import (
	"math"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
)

// maxUnsent bounds the unsent bytes in a socket: after the time for sending,
// everything sent must arrive even on a slow path.
const maxUnsent = 32 << 10

// figures is the kernel's state of a connection at one moment.
type figures struct {
	known bool
	tcpinfo.Info
}

func (s *session) figures() figures { return figuresOf(s.conn) }

func figuresOf(conn Conn) (f figures) {
	onSocket(conn, func(fd int) {
		info, err := tcpinfo.Get(fd)
		f = figures{err == nil, info}
	})
	return f
}

// onSocket runs a function on the descriptor of a connection, if it has one.
func onSocket(conn Conn, do func(fd int)) {
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { do(int(fd)) })
		}
	}
}

func (f figures) has(fields ...tcpinfo.Field) bool {
	for _, field := range fields {
		if !f.Has(field) {
			return false
		}
	}
	return f.known
}

// unacknowledged reports whether a connection that was made has sent SYNs alone: neither data nor the
// handshake's ACK.
func (f figures) unacknowledged() bool {
	return f.has(tcpinfo.FieldSegsOut, tcpinfo.FieldTotalRetrans, tcpinfo.FieldBytesReceived) &&
		f.SegsOut == 1+f.TotalRetrans && f.BytesReceived == 0
}

// acknowledge sends an ACK that the kernel holds back for data that may carry it.
func acknowledge(conn Conn) {
	onSocket(conn, func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
}

// withFirstBytes has a socket that is to connect hold the handshake's ACK back for its first bytes: a
// relay that accepts has them at once.
func withFirstBytes(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) })
}

// lost returns the segments sent and retransmitted between two moments, without
// spurious retransmissions that the receiver reported (RFC 2883).
func lost(before, after figures) sent {
	if !before.has(tcpinfo.FieldDataSegsOut, tcpinfo.FieldTotalRetrans) || !after.has(tcpinfo.FieldDataSegsOut, tcpinfo.FieldTotalRetrans) {
		return sent{-1, -1}
	}
	again := int64(after.TotalRetrans) - int64(before.TotalRetrans)
	if before.has(tcpinfo.FieldDSACKDups) && after.has(tcpinfo.FieldDSACKDups) {
		again -= int64(after.DSACKDups) - int64(before.DSACKDups)
	}
	return sent{int64(after.DataSegsOut) - int64(before.DataSegsOut), max(again, 0)}
}

// receivedSince returns the segments received since an earlier moment, and
// those of them out of order; negative: unknown.
func (f figures) receivedSince(before figures) (segments, outOfOrder int64) {
	if !before.has(tcpinfo.FieldDataSegsIn, tcpinfo.FieldRcvOOOPack) || !f.has(tcpinfo.FieldDataSegsIn, tcpinfo.FieldRcvOOOPack) {
		return -1, -1
	}
	return int64(f.DataSegsIn) - int64(before.DataSegsIn), int64(f.RcvOOOPack) - int64(before.RcvOOOPack)
}

// minRTT is the lowest round-trip time of a connection; 0: unknown.
func (f figures) minRTT() time.Duration {
	switch {
	case f.has(tcpinfo.FieldMinRTT):
		return f.MinRTT
	case f.has(tcpinfo.FieldRTT):
		return f.RTT
	}
	return 0
}

// pace bounds the socket's unsent data, and its sending rate unless bps is 0.
func (s *session) pace(bps int64) (restore func()) {
	was := uint64(math.MaxUint64)
	onSocket(s.conn, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
		if bps > 0 {
			if set, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE); err == nil {
				was = set
			}
			_ = unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, min(was, uint64(bps/8)))
		}
	})
	return func() {
		onSocket(s.conn, func(fd int) {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, 0)
			if bps > 0 {
				_ = unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, was)
			}
		})
	}
}

// localAddr is the local address of a connection; zero if it has none.
func localAddr(conn Conn) (a netip.AddrPort) {
	onSocket(conn, func(fd int) {
		name, err := unix.Getsockname(fd)
		if err != nil {
			return
		}
		switch name := name.(type) {
		case *unix.SockaddrInet4:
			a = netip.AddrPortFrom(netip.AddrFrom4(name.Addr), uint16(name.Port))
		case *unix.SockaddrInet6:
			a = netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), uint16(name.Port))
		}
	})
	return a
}
