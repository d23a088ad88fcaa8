package pair

import (
	"net/netip"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// LaneFigures are a lane of a flow at one moment. Its counters are those of its connection,
// for all flows that had it.
type LaneFigures struct {
	Local    netip.AddrPort
	Sent     int64 // bytes that the other host has acknowledged
	Received int64
	RTT      time.Duration
	Leaving  bool // another takes its place
}

// EachLane returns the lanes of a flow that has several.
func (f *Flow) EachLane() (all []LaneFigures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.strands) < 2 {
		return nil
	}
	for _, st := range f.strands {
		one := LaneFigures{Local: localAddress(st.l.bulk), Leaving: st.leaving}
		kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool {
			one.Sent, one.Received, one.RTT = int64(i.BytesAcked), int64(i.BytesReceived), i.RTT
			return true
		})
		all = append(all, one)
	}
	return all
}
