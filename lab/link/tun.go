package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	tunDevice = "/dev/net/tun"
	// tunQueuePackets is the kernel's queue in packets while the emulator is
	// not scheduled; the kernel drops the excess. Kernels released since 2026
	// refuse a tx_queue_len above 32767.
	tunQueuePackets = 32767
)

// tunPort is a TUN device. The kernel exchanges whole super-packets with it,
// without checksums.
type tunPort struct {
	name   string
	index  int
	fd     int
	writer *frameWriter
	stats  deviceStats
}

// OpenTUN creates a TUN device in the network namespace of the calling thread.
// It is down and has no address. The error wraps os.ErrPermission or
// os.ErrNotExist if this process may not use TUN devices; then try OpenVeth.
func OpenTUN(name string, mtu int) (Port, error) {
	if err := checkDevice(name, mtu); err != nil {
		return nil, err
	}
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV):
		return nil, fmt.Errorf("open %s: %w, load the kernel module tun (CONFIG_TUN) or use veth ports", tunDevice, err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w, give this user read and write access to it or use veth ports", tunDevice, err)
	}
	p := &tunPort{name: name, fd: fd, writer: newFrameWriter(fd, vnetHeaderLen)}
	if err := p.setUp(mtu); err != nil {
		p.Close()
		return nil, fmt.Errorf("tun device %s: %w", name, err)
	}
	return p, nil
}

func (p *tunPort) setUp(mtu int) error {
	request, err := unix.NewIfreq(p.name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
	if err := unix.IoctlIfreq(p.fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	// Without USO, so that a UDP datagram stays as the application sent it.
	offload := unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
	if err := unix.IoctlSetInt(p.fd, unix.TUNSETOFFLOAD, offload); err != nil {
		return fmt.Errorf("set offload: %w", err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	p.stats.sources = []statsSource{{handle: handle, dropped: func(s *netlink.LinkStatistics) uint64 {
		return s.TxDropped
	}}}
	device, err := handle.LinkByName(p.name)
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	p.index = device.Attrs().Index
	p.stats.sources[0].index = p.index
	if err := handle.LinkSetMTU(device, mtu); err != nil {
		return fmt.Errorf("set MTU: %w", err)
	}
	if err := handle.LinkSetTxQLen(device, tunQueuePackets); err != nil {
		return fmt.Errorf("set queue length: %w", err)
	}
	silence(handle, device)
	p.stats.start()
	return nil
}

func (p *tunPort) Name() string    { return p.name }
func (p *tunPort) Index() int      { return p.index }
func (p *tunPort) descriptor() int { return p.fd }
func (p *tunPort) drops() uint64   { return p.stats.drops() }

// Close removes the device by closing its descriptor.
func (p *tunPort) Close() error {
	p.stats.close()
	return unix.Close(p.fd)
}

func (p *tunPort) receive(buffer []byte) (h vnetHeader, skip, n int, err error) {
	n, err = readRaw(p.fd, buffer[:receiveRoom])
	if err != nil {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			err = errAgain
		}
		return h, 0, 0, err
	}
	if n <= vnetHeaderLen {
		return h, 0, 0, fmt.Errorf("tun device %s: read %d bytes, too short for a packet", p.name, n)
	}
	h.decode(buffer)
	return h, vnetHeaderLen, n, nil
}

func (p *tunPort) send(h vnetHeader, head, body []byte) error {
	h.encode(p.writer.prefix)
	return p.writer.send(head, body)
}
