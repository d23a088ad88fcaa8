// Package hosts makes the lab's hosts: network namespaces with their own addresses,
// routes and kernel settings, for sockets and programs. It runs inside a sandbox,
// whose end removes everything.
package hosts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
)

// Host is a network namespace.
type Host struct {
	Name string

	ns     netns.NsHandle
	nl     *netlink.Handle
	mounts int // namespace of the programs' mounts; negative: the sandbox's
}

// New makes a host with only a loopback device, which is up.
func New(name string) (*Host, error) {
	h := &Host{Name: name, ns: netns.None(), mounts: -1}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		h.ns, err = netns.Get()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make host %s: %w", name, err)
	}
	if h.nl, err = netlink.NewHandleAt(h.ns, unix.NETLINK_ROUTE); err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink on host %s: %w", name, err)
	}
	err = h.Up("lo")
	if _, statErr := os.Stat("/proc/sys/net/ipv6"); err == nil && statErr == nil {
		// The lab's wires have no other users: duplicate address detection would only
		// delay the first connections by a second.
		err = errors.Join(
			h.Sysctl("net.ipv6.conf.all.accept_dad", "0"),
			h.Sysctl("net.ipv6.conf.default.accept_dad", "0"),
			h.Sysctl("net.ipv6.conf.default.router_solicitations", "0"))
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Close releases the namespace. The kernel removes it with its devices after its last
// process and socket.
func (h *Host) Close() {
	if h.nl != nil {
		h.nl.Close()
		h.nl = nil
	}
	if h.ns.IsOpen() {
		h.ns.Close()
	}
	if h.mounts >= 0 {
		unix.Close(h.mounts)
		h.mounts = -1
	}
}

// Namespace returns the descriptor of the host's network namespace.
func (h *Host) Namespace() int { return int(h.ns) }

// Do runs fn on a thread inside the host. Sockets that fn opens stay in the host.
func (h *Host) Do(fn func() error) error {
	return onThread(func() error {
		if err := netns.Set(h.ns); err != nil {
			return fmt.Errorf("enter host %s: %w", h.Name, err)
		}
		return fn()
	})
}

// Start starts a program inside the host.
func (h *Host) Start(cmd *exec.Cmd) error {
	return h.Do(func() error {
		if h.mounts >= 0 {
			if err := h.enterMounts(); err != nil {
				return fmt.Errorf("enter the mounts of host %s: %w", h.Name, err)
			}
		}
		return cmd.Start()
	})
}

// Sysctl sets a kernel setting of the host's network namespace, such as
// net.ipv4.tcp_wmem.
func (h *Host) Sysctl(name, value string) error {
	err := h.Do(func() error {
		return os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)
	})
	if err != nil {
		return fmt.Errorf("set %s on host %s: %w", name, h.Name, err)
	}
	return nil
}

// Cable joins two hosts by an Ethernet of the given MTU.
func Cable(a *Host, deviceA string, b *Host, deviceB string, mtu int) error {
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: deviceA, MTU: mtu},
		PeerName:      deviceB,
		PeerNamespace: netlink.NsFd(b.ns),
	}
	if err := a.nl.LinkAdd(veth); err != nil {
		err = kernel.LacksModule(err, "an Ethernet between hosts", "veth", "CONFIG_VETH")
		return fmt.Errorf("join %s and %s: %w", a.Name, b.Name, err)
	}
	if err := b.MTU(deviceB, mtu); err != nil {
		return err
	}
	return errors.Join(a.Up(deviceA), b.Up(deviceB))
}

// Switch joins devices of the host to one Ethernet, like a switch.
func (h *Host) Switch(name string, ports ...string) error {
	err := h.nl.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
	if err != nil {
		err = kernel.LacksModule(err, "a switch", "bridge", "CONFIG_BRIDGE")
		return fmt.Errorf("make switch %s on host %s: %w", name, h.Name, err)
	}
	bridge, err := h.nl.LinkByName(name)
	for _, port := range ports {
		var link netlink.Link
		if err == nil {
			link, err = h.nl.LinkByName(port)
		}
		if err == nil {
			err = h.nl.LinkSetMaster(link, bridge)
		}
	}
	if err != nil {
		return fmt.Errorf("join devices to switch %s on host %s: %w", name, h.Name, err)
	}
	return h.Up(name)
}

// MTU changes the MTU of a device of the host, bytes.
func (h *Host) MTU(device string, mtu int) error {
	link, err := h.nl.LinkByName(device)
	if err == nil {
		err = h.nl.LinkSetMTU(link, mtu)
	}
	if err != nil {
		return fmt.Errorf("set the MTU of %s on host %s: %w", device, h.Name, err)
	}
	return nil
}

// MaxSegments bounds the segments of TCP that a device of the host takes as one packet: 1
// has each go alone.
func (h *Host) MaxSegments(device string, n int) error {
	link, err := h.nl.LinkByName(device)
	if err == nil {
		err = h.nl.LinkSetGSOMaxSegs(link, n)
	}
	if err != nil {
		return fmt.Errorf("bound the segments of %s on host %s: %w", device, h.Name, err)
	}
	return nil
}

// Received counts the packets that a device of the host has received.
func (h *Host) Received(device string) (uint64, error) {
	link, err := h.nl.LinkByName(device)
	if err != nil {
		return 0, fmt.Errorf("count the packets of %s on host %s: %w", device, h.Name, err)
	}
	return link.Attrs().Statistics.RxPackets, nil
}

// Up brings a device of the host up.
func (h *Host) Up(device string) error {
	link, err := h.nl.LinkByName(device)
	if err == nil {
		err = h.nl.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("bring up %s on host %s: %w", device, h.Name, err)
	}
	return nil
}

// Down takes a device of the host down, like a pulled cable.
func (h *Host) Down(device string) error {
	link, err := h.nl.LinkByName(device)
	if err == nil {
		err = h.nl.LinkSetDown(link)
	}
	if err != nil {
		return fmt.Errorf("take down %s on host %s: %w", device, h.Name, err)
	}
	return nil
}

// Address adds an address to a device of the host.
func (h *Host) Address(device string, prefix netip.Prefix) error {
	link, err := h.nl.LinkByName(device)
	if err == nil {
		err = h.nl.AddrAdd(link, &netlink.Addr{
			IPNet: ipNet(prefix),
			// Duplicate address detection would delay the use of an IPv6
			// address by a second, and the wire has no other users.
			Flags: unix.IFA_F_NODAD,
		})
	}
	if err == nil {
		err = h.Do(func() error { return AwaitSolicited(link, prefix.Addr()) })
	}
	if err != nil {
		return fmt.Errorf("add to %s on host %s the address %s: %w", device, h.Name, prefix, err)
	}
	return nil
}

// DropAddress takes an address from a device of the host. Its connections are silent from
// then on.
func (h *Host) DropAddress(device string, prefix netip.Prefix) error {
	link, err := h.nl.LinkByName(device)
	if err == nil {
		err = h.nl.AddrDel(link, &netlink.Addr{IPNet: ipNet(prefix)})
	}
	if err != nil {
		return fmt.Errorf("take from %s on host %s the address %s: %w", device, h.Name, prefix, err)
	}
	return nil
}

// Has says whether a device of the host has an address.
func (h *Host) Has(address netip.Addr) (bool, error) {
	all, err := h.nl.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list the addresses of host %s: %w", h.Name, err)
	}
	return slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.IP.Equal(address.AsSlice()) }), nil
}

// AwaitSolicited returns once the calling thread's network namespace listens at the
// solicited-node multicast address of a device's IPv6 address (RFC 4291, section
// 2.7.1). The kernel joins it some time after the address is added. A neighbour whose
// first solicitation comes too early repeats it after a second. It returns at once
// for other addresses.
func AwaitSolicited(device netlink.Link, address netip.Addr) error {
	const noSolicitations = unix.IFF_LOOPBACK | unix.IFF_NOARP
	if !address.Is6() || device.Attrs().RawFlags&noSolicitations != 0 {
		return nil
	}
	hex := fmt.Sprintf("%x", solicitedNode(address))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		groups, err := os.ReadFile("/proc/thread-self/net/igmp6")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(groups)) {
			// Index, device, group, users, flags, timer.
			fields := strings.Fields(line)
			if len(fields) > 2 && fields[1] == device.Attrs().Name && fields[2] == hex {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return errors.New("the kernel does not listen for neighbours that look for it")
		}
	}
}

func solicitedNode(address netip.Addr) [16]byte {
	group, of := netip.MustParseAddr("ff02::1:ff00:0").As16(), address.As16()
	copy(group[13:], of[13:])
	return group
}

// Route is a route of a host.
type Route struct {
	To     netip.Prefix
	Via    netip.Addr // zero: directly on Device
	Device string     // empty: the device towards Via
	TCP    Metrics

	// Group, in place of Via and Device, spreads connections over several routers by
	// the hash that net.ipv4.fib_multipath_hash_policy chooses.
	Group []netip.Addr
	// From is the source of the host's own packets; zero: that of the device.
	From netip.Addr
}

// Metrics are the settings of a route for its connections. Zero values are not set.
type Metrics struct {
	CongestionControl string // for sockets that choose none themselves
	WindowBytes       int    // bound on the window that local sockets advertise
	AdvMSS            int    // MSS that local sockets advertise, bytes
	MTU               int    // bytes
	InitialWindow     int    // first congestion window, segments
	// LockMTU applies the MTU also to forwarded packets, and keeps path MTU
	// discovery from changing it. Local packets then have no DF.
	LockMTU bool
}

// connectedPriority is the metric of the routes that the kernel adds for a device's
// addresses. A route replaces only a route with the same metric.
const connectedPriority = 256 // IPv6; it is 0 in IPv4

// Route adds a route, or replaces the route to the same prefix.
func (h *Host) Route(r Route) error {
	route := &netlink.Route{
		Dst:      ipNet(r.To),
		Congctl:  r.TCP.CongestionControl,
		Window:   r.TCP.WindowBytes,
		AdvMSS:   r.TCP.AdvMSS,
		MTU:      r.TCP.MTU,
		MTULock:  r.TCP.LockMTU,
		InitCwnd: r.TCP.InitialWindow,
		Protocol: unix.RTPROT_STATIC,
	}
	for _, router := range r.Group {
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{Gw: router.AsSlice()})
	}
	if r.From.IsValid() {
		route.Src = r.From.AsSlice()
	}
	switch {
	case len(r.Group) > 0:
	case r.Via.IsValid():
		route.Gw = r.Via.AsSlice()
	default:
		route.Scope = netlink.SCOPE_LINK
		if r.To.Addr().Is6() {
			route.Priority = connectedPriority
		}
	}
	if r.Device != "" {
		link, err := h.nl.LinkByName(r.Device)
		if err != nil {
			return fmt.Errorf("find %s on host %s: %w", r.Device, h.Name, err)
		}
		route.LinkIndex = link.Attrs().Index
	}
	if err := h.nl.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s on host %s: %w", r.To, h.Name, err)
	}
	return nil
}

// Blackhole has the host drop what it would forward to a prefix, and tell nobody.
func (h *Host) Blackhole(to netip.Prefix) error {
	if err := h.nl.RouteReplace(&netlink.Route{Dst: ipNet(to), Type: unix.RTN_BLACKHOLE}); err != nil {
		return fmt.Errorf("drop what host %s has for %s: %w", h.Name, to, err)
	}
	return nil
}

// BlockICMP has the host send and forward no ICMP over IPv4, like many firewalls.
// Path MTU discovery then learns nothing from it.
func (h *Host) BlockICMP() error {
	rule := netlink.NewRule()
	rule.Family, rule.Priority = unix.AF_INET, 1
	rule.IPProto, rule.Type = unix.IPPROTO_ICMP, unix.FR_ACT_BLACKHOLE
	if err := h.nl.RuleAdd(rule); err != nil {
		return fmt.Errorf("block ICMP on host %s: %w", h.Name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// onThread runs fn on a new thread that ends with fn, because a namespace that fn
// enters stays with the thread. The goroutine never unlocks it.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- fn()
	}()
	return <-done
}
