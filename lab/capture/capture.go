// Package capture reads the packets of a host's device: the MSS that the two ends of a
// connection announced, and the real sizes of the segments.
package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Seen is the result of a capture of the IPv4 connections to one port.
type Seen struct {
	MSSOfClient int // in the SYN to the port; 0 if there was none
	MSSOfServer int // in the answer
	// Segments counts the segments with data towards the port, by their bytes of
	// data. A super-packet of segmentation offload counts as its segments.
	Segments map[int]uint64
	Missed   uint64 // packets that came too fast for the capture
}

// Usual returns the size that carried most of the data, 0 without data.
func (s Seen) Usual() (bytes int) {
	for size, n := range s.Segments {
		if uint64(size)*n > uint64(bytes)*s.Segments[bytes] {
			bytes = size
		}
	}
	return bytes
}

// Capture is a running capture.
type Capture struct {
	fd      int
	port    uint16
	seen    Seen
	stopped atomic.Bool
	done    chan struct{}
}

// headBytes is the length that is read of a packet: all headers with options.
const headBytes = 256

// Start begins a capture on a device of the calling thread's network namespace. It
// needs CAP_NET_RAW.
func Start(index int, port uint16) (*Capture, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	c := &Capture{fd: fd, port: port, seen: Seen{Segments: map[int]uint64{}}, done: make(chan struct{})}
	err = errors.Join(
		// A virtio_net_hdr with the segmentation offload precedes each packet.
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: index}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("capture: %w", err)
	}
	go c.run()
	return c, nil
}

func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Stop ends the capture and returns its result.
func (c *Capture) Stop() Seen {
	c.stopped.Store(true)
	<-c.done
	if stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		c.seen.Missed = uint64(stats.Drops)
	}
	unix.Close(c.fd)
	return c.seen
}

func (c *Capture) run() {
	defer close(c.done)
	b := make([]byte, vnetHeaderBytes+headBytes)
	for {
		n, from, err := unix.Recvfrom(c.fd, b, unix.MSG_TRUNC) // n includes the truncated bytes
		switch {
		case err == nil:
			linkHeader := 0
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && (ll.Hatype == unix.ARPHRD_ETHER || ll.Hatype == unix.ARPHRD_LOOPBACK) {
				linkHeader = 14
			}
			c.seen.packet(b[:min(n, len(b))], n, linkHeader, c.port)
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return // the device is gone
		case c.stopped.Load():
			return
		}
	}
}

// vnetHeaderBytes is the length of struct virtio_net_hdr: flags, gso_type,
// hdr_len, gso_size, csum_start, csum_offset.
const vnetHeaderBytes = 10

// packet counts a packet by its head. total is its length with the virtio_net_hdr.
func (s *Seen) packet(head []byte, total, linkHeader int, port uint16) {
	if len(head) < vnetHeaderBytes+linkHeader+20 {
		return
	}
	gso := 0
	if head[1] != 0 {
		gso = int(binary.NativeEndian.Uint16(head[4:]))
	}
	ip := head[vnetHeaderBytes+linkHeader:]
	ipHeader := int(ip[0]&15) * 4
	if ip[0]>>4 != 4 || ip[9] != unix.IPPROTO_TCP || ipHeader < 20 || len(ip) < ipHeader+20 {
		return
	}
	tcp := ip[ipHeader:]
	tcpHeader := int(tcp[12]>>4) * 4
	if tcpHeader < 20 || len(tcp) < tcpHeader {
		return
	}
	const syn = 0x02
	toPort, fromPort := binary.BigEndian.Uint16(tcp[2:]) == port, binary.BigEndian.Uint16(tcp) == port
	switch {
	case tcp[13]&syn != 0 && toPort:
		s.MSSOfClient = mss(tcp[20:tcpHeader])
	case tcp[13]&syn != 0 && fromPort:
		s.MSSOfServer = mss(tcp[20:tcpHeader])
	case toPort:
		length := int(binary.BigEndian.Uint16(ip[2:]))
		if length == 0 { // longer than the field can express
			length = total - vnetHeaderBytes - linkHeader
		}
		s.data(length-ipHeader-tcpHeader, gso)
	}
}

// data counts the segments of a packet.
func (s *Seen) data(bytes, gso int) {
	if gso > 0 && bytes > gso {
		s.Segments[gso] += uint64(bytes / gso)
		bytes %= gso
	}
	if bytes > 0 {
		s.Segments[bytes]++
	}
}

// mss returns the value of the option, 0 if it is missing.
func mss(options []byte) int {
	for len(options) > 0 {
		switch {
		case options[0] == 0:
			return 0
		case options[0] == 1:
			options = options[1:]
			continue
		case len(options) < 2 || options[1] < 2 || int(options[1]) > len(options):
			return 0
		case options[0] == 2 && options[1] == 4:
			return int(binary.BigEndian.Uint16(options[2:]))
		}
		options = options[options[1]:]
	}
	return 0
}
