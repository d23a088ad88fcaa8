package hostcheck

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/transport"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/resources"
	"longhaul/internal/words/units"
)

// relay checks what the relay and its legs use.
func (c *checker) relay() {
	if err := trySplice(); err != nil {
		c.failed("splice", No, fmt.Errorf("splice between a socket and a pipe: %w", err),
			"allow the system call splice, which a filter of this container or service refuses")
	} else {
		c.yes("splice", "")
	}
	if kernel.HasIPv6() {
		c.yes("IPv6", "")
	} else {
		c.add(Part{Name: "IPv6", State: Limited, Why: "the kernel has no IPv6, or it is turned off",
			Remedy: "boot without ipv6.disable=1, if a tunnel needs it"})
	}
	c.legs()
	c.pacing()
	c.descriptors()
}

// trySplice moves a byte from a socket through a pipe, as the relay does.
func trySplice() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if _, err := unix.Write(pair[0], []byte{1}); err != nil {
		return err
	}
	n, err := unix.Splice(pair[1], nil, pipe[1], nil, 1, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	if err == nil && n != 1 {
		err = errors.New("it moved nothing")
	}
	return err
}

// legs checks the socket options of legs.
func (c *checker) legs() {
	s, err := transport.Probe()
	if err != nil {
		c.failed("legs", No, err, "")
		return
	}
	c.buffers(s)
	if s.SparesReaders {
		c.yes("user timeout", "")
	} else {
		c.add(Part{Name: "user timeout", State: Limited,
			Why:    "user_timeout also resets a peer that lives but does not read: the kernel lacks TCP_RTO_MAX_MS",
			Remedy: "run Linux 6.15 or newer, if a tunnel sets user_timeout"})
	}
	if s.Unlocks {
		c.yes("receive window", "")
	} else {
		c.add(Part{Name: "receive window", State: Limited,
			Why:    "a leg of an unknown side keeps the window of the sysctls: the kernel lacks SO_BUF_LOCK",
			Remedy: "name wan_side in each tunnel, or run Linux 5.14 or newer"})
	}
}

// buffers checks whether the buffers of WAN legs fill the path. A relay of the service
// has no privilege, unless a drop-in gives it.
func (c *checker) buffers(s transport.Support) {
	p := Part{Name: "buffers", State: Yes}
	least := 0
	for _, b := range s.Buffers(int64(c.Path.RateBps), c.Path.RTT.Duration(), "", s.BeyondSysctls, int64(resources.MemoryCapacity())) {
		if !b.Short || least > 0 && b.Bytes >= least {
			continue
		}
		least = b.Bytes
		p.State = Limited
		p.Why = fmt.Sprintf("the %s reaches %s of %s for this path", b.Name, size(b.Bytes), size(b.Wanted))
		p.Remedy = "run the relay as root, or " + b.Remedy
		p.Cost = c.windowCost(b.Bytes)
	}
	if p.State == Yes && s.BeyondSysctls {
		p.Detail = "beyond the sysctls, as root"
	}
	c.add(p)
}

func size(bytes int) string { return units.FormatSize(float64(bytes)) }

// pacing tries SO_MAX_PACING_RATE with 64 bits, which pacing_rate sets.
func (c *checker) pacing() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		c.failed("pacing", No, err, "")
		return
	}
	defer unix.Close(fd)
	const bytesPerSecond = 10e9 // more than 32 bits hold
	err = unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, bytesPerSecond)
	if got, readErr := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE); err == nil {
		if err = readErr; err == nil && got != bytesPerSecond {
			err = errors.New("rates above 34 Gb/s do not fit")
		}
	}
	if err != nil {
		c.failed("pacing", Limited, err, "")
		return
	}
	detail := "by TCP itself"
	if qdisc, ok := c.readSysctl("net.core.default_qdisc"); ok && qdisc == "fq" {
		detail = "by fq, the default_qdisc"
	}
	c.yes("pacing", detail)
}

// A flow has two descriptors, and two more while bytes are in its pipe.
const descriptorsOfFlow, fewFlows = 4, 1000

func (c *checker) descriptors() {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		c.failed("descriptors", Unknown, err, "")
		return
	}
	flows := limit.Max / descriptorsOfFlow
	if flows < fewFlows {
		c.add(Part{Name: "descriptors", State: Limited, Why: fmt.Sprintf("room for %d flows in %d descriptors", flows, limit.Max),
			Remedy: "raise the hard limit: ulimit -Hn, or LimitNOFILE= in a unit"})
		return
	}
	c.yes("descriptors", fmt.Sprintf("%d", limit.Max))
}

// measure tries the sockets of a server.
func (c *checker) measure() {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		c.failed("server", No, err, "bring the loopback device up: ip link set lo up")
		return
	}
	l.Close()
	c.yes("server", "")
}
