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
	// linkHeader is the length of the link header of packets at the device's hooks,
	// in bytes: Ethernet's, or 0.
	linkHeader uint32
}

const ethernetHeader = 14

// linkHeaders are the kinds of device that the program supports, by "link/" of ip
// link.
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
