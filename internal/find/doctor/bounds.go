package doctor

import (
	"fmt"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// Bounds returns the bounds of every connection on a path, a sentence each, from the
// handshake of one connection and some probes. The info may be nil.
func Bounds(path Path, info *tcpinfo.Info) []string {
	bounds := []string{}
	say := func(format string, args ...any) { bounds = append(bounds, fmt.Sprintf(format, args...)) }
	if path.MTU > 0 && path.DeviceMTU > path.MTU {
		say("the path carries less than this host's device (%d bytes): if ICMP is blocked, full packets vanish",
			path.DeviceMTU)
	}
	if path.MTU > 0 && path.ReverseMTU > 0 && path.MTU != path.ReverseMTU {
		say("the two directions carry packets of different sizes: a host that announces its own size gets too small or too large segments")
	}
	if info == nil || !info.Has(tcpinfo.FieldOptions) {
		return bounds
	}
	if info.Options&tcpinfo.OptWScale == 0 && info.RTT > 0 {
		say("without window scaling a connection gets %s at most: 65535 bytes per round trip", units.FormatRate(bps(maxUnscaled, info.RTT)))
	}
	if info.Options&tcpinfo.OptSACK == 0 {
		say("without selective acknowledgements a connection finds one lost segment per round trip")
	}
	// 60 bytes are the headers of IPv4 with timestamps, or IPv6 without.
	if path.MTU > 0 && info.SndMSS > 0 && float64(info.SndMSS+60) < 0.95*float64(path.MTU) {
		say("segments have %d bytes of data, and the path carries packets of %d", info.SndMSS, path.MTU)
	}
	return bounds
}
