package cc

import "longhaul/internal/sys/tcpinfo"

// SocketCounts returns the number of TCP connections of the calling thread's network
// namespace with each congestion control.
func SocketCounts() (map[string]int, error) {
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		return nil, err
	}
	defer diag.Close()
	counts := map[string]int{}
	err = diag.Each(tcpinfo.Connections, func(c *tcpinfo.Connection) {
		if c.CongestionControl != "" {
			counts[c.CongestionControl]++
		}
	})
	return counts, err
}
