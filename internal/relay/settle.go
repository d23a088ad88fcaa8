package relay

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/tcpinfo"
)

// settleWithin bounds how long a listener that is to end waits for handshakes.
// One whose last segment was lost takes a second and a round trip more: the
// answer to the SYN is sent again after a second (RFC 6298, 2.1).
const (
	settleWithin = 1400 * time.Millisecond
	settlePoll   = 5 * time.Millisecond
)

// onlySYN is a classic BPF filter (bpf(2), SO_ATTACH_FILTER) for a TCP socket,
// which sees segments from their header on: it drops those with SYN and without
// ACK.
var onlySYN = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},                 // the flags (RFC 9293, 3.1)
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},              // of them, SYN and ACK
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: 0x2}, // SYN alone
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
}

// settle has the handshakes of listeners come to their end before these stop
// listening. A client whose SYN was answered has a connection, as far as it
// knows, and would see it reset. Meanwhile new SYNs are dropped; who sent them
// sends them again after a second, and learns that nobody listens. The workers
// still accept. It returns at once if no handshake is under way, and only after
// settleWithin if the kernel does not say whether one is.
//
// Sockets that another process has as well are left alone.
func (r *Relay) settle(listeners ...*listener) {
	closing := map[netip.AddrPort]bool{}
	for _, l := range listeners {
		if !l.silent && !l.inherited && dropSYNs(l.fd) {
			l.settling.Store(true)
			closing[l.bound] = true
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

// underway says whether a client waits, as far as is known, for a handshake with
// a listener that is bound to one of the addresses.
func underway(diag *tcpinfo.Diag, bound map[netip.AddrPort]bool) (found bool) {
	anyOf := func(a netip.Addr, port uint16) bool { return bound[netip.AddrPortFrom(a, port)] }
	err := diag.Handshakes(func(local netip.AddrPort) {
		found = found || bound[local] || anyOf(netip.IPv6Unspecified(), local.Port()) ||
			local.Addr().Is4() && anyOf(netip.IPv4Unspecified(), local.Port())
	})
	return found || err != nil
}

// dropSYNs has a listener take no new connections. Those it has made inherit the
// filter, see [takeSYNs].
func dropSYNs(fd int) bool {
	program := unix.SockFprog{Len: uint16(len(onlySYN)), Filter: &onlySYN[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program) == nil
}

// takeSYNs undoes dropSYNs.
func takeSYNs(fd int) { setsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) }
