package cc

import "longhaul/internal/tcpinfo"

// SocketCounts is how many TCP connections of the calling thread's network
// namespace have each congestion control.
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
