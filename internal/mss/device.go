package mss

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// device is a network device of the calling thread's namespace.
type device struct {
	index int
	name  string
	mtu   int
	// linkHeader is what a packet begins with at the device's hooks, bytes:
	// Ethernet's header, or nothing where the device has none.
	linkHeader uint32
}

const ethernetHeader = 14

// linkHeaders are the kinds of device, by their "link/" of ip link, whose
// packets the program understands.
var linkHeaders = map[string]uint32{
	"ether":    ethernetHeader,
	"loopback": ethernetHeader,
	"none":     0, // TUN, WireGuard
	"ppp":      0,
	"ipip":     0,
	"tunnel6":  0,
	"sit":      0,
	"gre":      0,
	"gre6":     0,
}

func findDevice(name string) (device, error) {
	l, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return device{}, fmt.Errorf("%w: %s", ErrNoDevice, name)
	}
	if err != nil {
		return device{}, fmt.Errorf("look up device %s: %w", name, err)
	}
	header, ok := linkHeaders[l.Attrs().EncapType]
	if !ok {
		return device{}, fmt.Errorf("%s is a device of a kind (%s) whose packets longhaul cannot read: use the one below or above it", name, l.Attrs().EncapType)
	}
	return device{l.Attrs().Index, name, l.Attrs().MTU, header}, nil
}
