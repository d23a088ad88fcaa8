package relay

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
)

// settleWithin bounds the time that a closing listener waits for handshakes. A
// handshake whose last segment was lost takes a second and a round trip longer.
// The server repeats the SYN-ACK after one second (RFC 6298, section 2.1).
const (
	settleWithin = 1400 * time.Millisecond
	settlePoll   = 5 * time.Millisecond
)

// onlySYN is a classic BPF filter (bpf(2), SO_ATTACH_FILTER) for a TCP socket,
// which sees segments from the TCP header on. It drops segments with SYN and
// without ACK.
var onlySYN = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},                 // the flags (RFC 9293, section 3.1)
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},              // of them, SYN and ACK
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: 0x2}, // SYN alone
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
}

// settle waits until the pending handshakes of listeners end, before they stop
// listening. A client whose SYN was answered considers itself connected, and
// would see a reset. Meanwhile the kernel drops new SYNs; their senders retry
// after a second and are refused. The workers still accept.
//
// It returns at once if no handshake is pending, and after settleWithin if the
// kernel cannot report handshakes. It skips sockets that another process
// shares.
func (r *Relay) settle(listeners ...*listener) {
	closing := map[netip.AddrPort]bool{}
	for _, l := range listeners {
		if !l.silent && !l.unbound && !l.inherited && dropSYNs(l.fd) {
			l.settling.Store(true)
			closing[netip.AddrPortFrom(l.bound.Addr().WithZone(""), l.bound.Port())] = true // lists have no zone
		}
	}
	if len(closing) == 0 {
		return
	}
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		time.Sleep(settleWithin)
		return
	}
	defer diag.Close()
	deadline := time.Now().Add(settleWithin)
	for underway(diag, closing) && time.Now().Before(deadline) {
		time.Sleep(settlePoll)
	}
}

// underway reports whether a handshake with one of the bound addresses may be
// pending.
func underway(diag *tcpinfo.Diag, bound map[netip.AddrPort]bool) (found bool) {
	anyOf := func(a netip.Addr, port uint16) bool { return bound[netip.AddrPortFrom(a, port)] }
	err := diag.Handshakes(func(local netip.AddrPort) {
		found = found || bound[local] || anyOf(netip.IPv6Unspecified(), local.Port()) ||
			local.Addr().Is4() && anyOf(netip.IPv4Unspecified(), local.Port())
	})
	return found || err != nil
}

// dropSYNs makes a listener refuse new connections silently. Accepted sockets
// inherit the filter, see [acceptSYNs].
func dropSYNs(fd int) bool {
	program := unix.SockFprog{Len: uint16(len(onlySYN)), Filter: &onlySYN[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program) == nil
}

// acceptSYNs undoes dropSYNs.
func acceptSYNs(fd int) { setsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) }
