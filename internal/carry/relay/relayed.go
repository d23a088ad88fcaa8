package relay

import "golang.org/x/sys/unix"

// A relay that intercepts notices that another one has intercepted the same connections
// before. Its own SYNs have a hop limit from which no other host starts: hosts use 64, 128
// or 255, so that after fewer than 55 routers none arrives in the range below. The network
// leaves the field alone, but for counting it down. From the handshake on the connection
// has the system's own hop limit.
const (
	synHops    = 200
	minSYNHops = 137
)

// marksSYNs reports whether the tunnel's SYNs may pass another relay that intercepts.
func (t *Tunnel) marksSYNs() bool {
	return t.Transparent || len(t.Forward) > 0 && t.Forward[0].Original
}

// setHops sets the hop limit of the packets of a socket; -1 is the system's own.
func setHops(fd, as int, hops int32) {
	if as == unix.AF_INET6 {
		setsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops)
		return
	}
	setsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, hops)
}

// noticeRelayed counts a connection of which another relay made the SYN.
func (w *worker) noticeRelayed(rt *route, fd int) {
	var syn [128]byte // two headers without options are at most 60
	if n := savedSYN(fd, syn[:]); !isRelayed(syn[:n]) {
		return
	}
	rt.state.relayed.Add(1)
	rt.state.warnOnce(w.relay.log, "another relay has intercepted the same connections before", "pair the two relays, or let one of them intercept")
}

// isRelayed reports whether the hop limit of a SYN, with its network header, is a
// relay's.
func isRelayed(syn []byte) bool {
	const ttl, hopLimit = 8, 7 // offsets
	at := ttl
	if len(syn) > 0 && syn[0]>>4 == 6 {
		at = hopLimit
	}
	return len(syn) > at && syn[at] >= minSYNHops && syn[at] <= synHops
}
