package congestion

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"longhaul/lab/hosts"
)

// Cross is a UDP stream of a constant rate beside the flows, without congestion
// control.
type Cross struct {
	RateBps    int64 // of whole IP packets; 0 means none
	Begin, End time.Duration
}

// crossPacketBytes is the size of an IP packet of cross traffic.
const crossPacketBytes = 1500

const udpOverIPv4Bytes = 28 // both headers

// send sends until the traffic's end or the context's.
func (c Cross) send(ctx context.Context, begin time.Time, from, to *hosts.Host, address netip.Addr) error {
	if c.RateBps == 0 {
		return nil
	}
	var sink, source *net.UDPConn
	err := to.Do(func() (err error) {
		// Nobody reads: the kernel drops packets beyond the buffer.
		sink, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
		return err
	})
	if err != nil {
		return fmt.Errorf("receive cross traffic: %w", err)
	}
	defer sink.Close()
	err = from.Do(func() (err error) {
		source, err = net.DialUDP("udp", nil, sink.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		return fmt.Errorf("send cross traffic: %w", err)
	}
	defer source.Close()
	payload := make([]byte, crossPacketBytes-udpOverIPv4Bytes)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for packets := int64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		at := time.Since(begin)
		for due := c.packetsBy(at); packets < due; packets++ {
			if _, err := source.Write(payload); err != nil {
				return fmt.Errorf("send cross traffic: %w", err)
			}
		}
		if at >= c.End {
			return nil
		}
	}
}

// packetsBy returns the number of packets due until a time.
func (c Cross) packetsBy(at time.Duration) int64 {
	sending := min(at, c.End) - c.Begin
	return int64(max(sending.Seconds(), 0) * float64(c.RateBps) / 8 / crossPacketBytes)
}
