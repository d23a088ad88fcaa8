package pair

import (
	"net/netip"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

var (
	_ flow.Carrier = (*Link)(nil)
	_ flow.Carried = (*Flow)(nil)
)

// EachLane implements flow.Carried.
func (f *Flow) EachLane() (all []flow.Lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.strands) < 2 {
		return nil
	}
	for _, st := range f.strands {
		one := flow.Lane{Local: flow.Address{AddrPort: localAddress(st.l.bulk)}, Leaving: st.leaving}
		kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool {
			one.BytesSent, one.BytesReceived, one.RTT = int64(i.BytesAcked), int64(i.BytesReceived), units.Seconds(i.RTT)
			return true
		})
		all = append(all, one)
	}
	return all
}

func localAddress(bulk *bulkConn) netip.AddrPort {
	a, _ := netip.ParseAddrPort(bulk.tcp.LocalAddr().String())
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
