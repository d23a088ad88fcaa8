package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
)

// vethPort is a pair of virtual Ethernet devices, one in the host's namespace
// and one in the emulator's, which has a packet socket.
//
//	host's namespace | emulator's namespace
//	        far ─────┼──── near ── packet socket with a receive ring
//
// The far device does no address resolution. It sends all frames to its own
// hardware address, and the emulator addresses its frames to it. The emulator's
// kernel ignores frames for a foreign address.
type vethPort struct {
	name  string // of the far device
	index int
	near  netlink.Link
	home  *netlink.Handle // of the emulator's namespace

	fd     int
	ring   *packetRing
	writer *frameWriter
	stats  deviceStats

	mu        sync.Mutex // guards ringDrops
	ringDrops uint64
}

const (
	ethernetHeader = 14

	// vethGSOBytes is the largest super-packet of the host, and fits into every
	// slot of the receive ring. With a smaller bound, the kernel would cut
	// larger forwarded packets into single segments. A burst of those, each in
	// a slot, would overrun the ring.
	vethGSOBytes = 64 << 10
	// vethQueueSlots is the number of packets in the ring while the emulator is
	// not scheduled; the kernel drops the excess.
	vethQueueSlots = 1024
)

// OpenVeth creates a pair of Ethernet devices. near is in the network namespace
// of the calling thread, which must be the emulator's own; far is in the
// namespace of the descriptor hostNS. The far device is down and has no
// address. OpenVeth needs no device node, only administration of both
// namespaces, which their creator has.
func OpenVeth(near, far string, hostNS int, mtu int) (Port, error) {
	for _, name := range []string{near, far} {
		if err := checkDevice(name, mtu); err != nil {
			return nil, err
		}
	}
	p := &vethPort{name: far, fd: -1}
	if err := p.setUp(near, hostNS, mtu); err != nil {
		p.Close()
		return nil, fmt.Errorf("veth devices %s and %s: %w", near, far, err)
	}
	return p, nil
}

func (p *vethPort) setUp(near string, hostNS, mtu int) (err error) {
	if p.home, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	host, err := netlink.NewHandleAt(netns.NsHandle(hostNS), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in the host's namespace: %w", err)
	}
	p.stats.sources = []statsSource{{handle: host, dropped: func(s *netlink.LinkStatistics) uint64 {
		return s.TxDropped + s.RxDropped
	}}}

	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = near, mtu
	pair := &netlink.Veth{LinkAttrs: attributes, PeerName: p.name, PeerNamespace: netlink.NsFd(hostNS), PeerMTU: uint32(mtu)}
	if err := p.home.LinkAdd(pair); err != nil {
		return fmt.Errorf("create: %w", kernel.LacksModule(err, "an Ethernet between hosts", "veth", "CONFIG_VETH"))
	}
	if p.near, err = p.home.LinkByName(near); err != nil {
		return fmt.Errorf("look up %s: %w", near, err)
	}
	device, err := host.LinkByName(p.name)
	if err != nil {
		return fmt.Errorf("look up %s: %w", p.name, err)
	}
	p.index = device.Attrs().Index
	p.stats.sources[0].index = p.index
	// The near device counts the packets that the host's backlog refused.
	p.stats.sources = append(p.stats.sources, statsSource{handle: p.home, index: p.near.Attrs().Index,
		dropped: func(s *netlink.LinkStatistics) uint64 { return s.TxDropped + s.RxDropped }})

	for _, end := range []struct {
		handle *netlink.Handle
		device netlink.Link
	}{{p.home, p.near}, {host, device}} {
		silence(end.handle, end.device)
		if err := end.handle.LinkSetARPOff(end.device); err != nil {
			return fmt.Errorf("turn address resolution off: %w", err)
		}
	}
	if err := host.LinkSetGSOMaxSize(device, vethGSOBytes); err != nil {
		return fmt.Errorf("bound super-packets: %w", err)
	}
	if err := keepSegmentation(netns.NsHandle(hostNS), p.name); err != nil {
		return fmt.Errorf("limit offloads: %w", err)
	}
	// A socket bound to a device that is down starts with an error.
	if err := p.home.LinkSetUp(p.near); err != nil {
		return fmt.Errorf("bring %s up: %w", near, err)
	}
	if err := p.openSocket(max(mtu, vethGSOBytes)); err != nil {
		return err
	}
	p.writer = newFrameWriter(p.fd, vnetHeaderLen+ethernetHeader)
	ethernet := p.writer.prefix[vnetHeaderLen:]
	copy(ethernet, hardwareAddr(device))
	copy(ethernet[6:], hardwareAddr(p.near))
	p.stats.start()
	return nil
}

func hardwareAddr(device netlink.Link) net.HardwareAddr { return device.Attrs().HardwareAddr }

// openSocket opens the packet socket with a ring for packets of packetBytes.
func (p *vethPort) openSocket(packetBytes int) (err error) {
	// Protocol 0 receives nothing yet.
	if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open the wire: %w", kernel.LacksModule(err, "a packet socket", "af_packet", "CONFIG_PACKET"))
	}
	for _, option := range []struct {
		what       string
		name, flag int
	}{
		{"PACKET_VERSION", unix.PACKET_VERSION, unix.TPACKET_V2},
		{"PACKET_VNET_HDR", unix.PACKET_VNET_HDR, 1},
		{"PACKET_IGNORE_OUTGOING", unix.PACKET_IGNORE_OUTGOING, 1},
	} {
		if err := unix.SetsockoptInt(p.fd, unix.SOL_PACKET, option.name, option.flag); err != nil {
			return fmt.Errorf("set %s: %w", option.what, err)
		}
	}
	// As much as wmem_max allows: one super-packet must fit, more is better.
	_ = unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20)
	if p.ring, err = newPacketRing(p.fd, packetBytes, vethQueueSlots); err != nil {
		return err
	}
	address := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: p.near.Attrs().Index}
	if err := unix.Bind(p.fd, address); err != nil {
		return fmt.Errorf("bind the packet socket: %w", err)
	}
	return nil
}

func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func (p *vethPort) Name() string    { return p.name }
func (p *vethPort) Index() int      { return p.index }
func (p *vethPort) descriptor() int { return p.fd }

// Close removes both devices; the kernel has removed them if a namespace is
// gone.
func (p *vethPort) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	if p.ring != nil {
		errs = append(errs, p.ring.close())
	}
	if p.fd >= 0 {
		errs = append(errs, unix.Close(p.fd))
		p.fd = -1
	}
	if p.near != nil {
		if err := p.home.LinkDel(p.near); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove %s: %w", p.near.Attrs().Name, err))
		}
		p.near = nil
	}
	p.stats.close()
	if p.home != nil {
		p.home.Close()
	}
	return errors.Join(errs...)
}

func (p *vethPort) receive(buffer []byte) (h vnetHeader, skip, n int, err error) {
	for {
		frame, err := p.ring.next()
		if err != nil {
			return h, 0, 0, err
		}
		if frame == nil {
			return h, 0, 0, errAgain
		}
		if len(frame) <= vnetHeaderLen+ethernetHeader || !isIP(frame[vnetHeaderLen:]) {
			p.ring.release() // the link carries only IP
			continue
		}
		h.decode(frame)
		h.shift(-ethernetHeader)
		n = copy(buffer, frame[vnetHeaderLen+ethernetHeader:])
		p.ring.release()
		return h, 0, n, nil
	}
}

func isIP(ethernet []byte) bool {
	kind := binary.BigEndian.Uint16(ethernet[12:])
	return kind == unix.ETH_P_IP || kind == unix.ETH_P_IPV6
}

func (p *vethPort) send(h vnetHeader, head, body []byte) error {
	first := body
	if len(head) > 0 {
		first = head
	}
	kind := uint16(unix.ETH_P_IP)
	if first[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	binary.BigEndian.PutUint16(p.writer.prefix[vnetHeaderLen+12:], kind)
	h.shift(ethernetHeader)
	h.encode(p.writer.prefix)
	return p.writer.send(head, body)
}

func (p *vethPort) drops() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		// Reading these counters resets them.
		if s, err := unix.GetsockoptTpacketStats(p.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			p.ringDrops += uint64(s.Drops)
		}
	}
	return p.ringDrops + p.ring.truncated.Load() + p.stats.drops()
}
