package link

import (
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func checkDevice(name string, mtu int) error {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return fmt.Errorf("device name %q: give it 1 to %d bytes", name, unix.IFNAMSIZ-1)
	}
	if mtu < minMTU || mtu > maxMTU {
		return fmt.Errorf("device %s: its MTU is %d, set it to between %d and %d", name, mtu, minMTU, maxMTU)
	}
	return nil
}

// silence stops the kernel from sending its own packets (router solicitations,
// multicast reports), which would shift the numbering of lost packets. Errors
// mean that there is no IPv6.
func silence(handle *netlink.Handle, device netlink.Link) {
	const addrGenModeNone = 1
	_ = handle.LinkSetIP6AddrGenMode(device, addrGenModeNone)
	_ = handle.LinkSetMulticastOff(device)
}

// deviceStats sums the dropped packets of devices since start.
type deviceStats struct {
	mu      sync.Mutex
	sources []statsSource
	before  uint64
	last    uint64
}

type statsSource struct {
	handle  *netlink.Handle
	index   int
	dropped func(*netlink.LinkStatistics) uint64
}

func (d *deviceStats) start() { d.before = d.read() }

// drops returns the latest sum that could be read.
func (d *deviceStats) drops() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if sum := d.read(); sum >= d.before+d.last {
		d.last = sum - d.before
	}
	return d.last
}

func (d *deviceStats) read() uint64 {
	var sum uint64
	for _, s := range d.sources {
		device, err := s.handle.LinkByIndex(s.index)
		if err != nil || device.Attrs().Statistics == nil {
			return 0 // the device or its namespace is gone
		}
		sum += s.dropped(device.Attrs().Statistics)
	}
	return sum
}

func (d *deviceStats) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.sources {
		s.handle.Close()
	}
	d.sources = nil
}
