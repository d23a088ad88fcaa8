package nettest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// The ports are below the kernel's ephemeral range (ip_local_port_range begins
// at 32768). An ephemeral port may be taken again before the test listens on
// it. Neither may one that another process of tests has been given: each process
// claims blocks of ports, by a socket that is bound to the first.
const (
	firstPort, lastPort = 10000, 32000
	blockPorts          = 100
)

// ports are those that this process gives to its tests.
type ports struct {
	next, end uint16 // of the block
	claims    []int  // sockets, for as long as the process lives
}

var given struct {
	sync.Mutex
	shared ports // of the network namespace in which the process began
	own    ports // of others, which only this process uses
}

var firstNamespace = networkNamespace()

func networkNamespace() string {
	name, _ := os.Readlink("/proc/thread-self/ns/net") // but for Linux there is one
	return name
}

// FreePort returns a port of the host's address without a listener. It returns
// each port once, and to one process.
func FreePort(host netip.Addr) (uint16, error) {
	runtime.LockOSThread() // the thread has the network namespace
	defer runtime.UnlockOSThread()
	given.Lock()
	defer given.Unlock()
	syscall.ForkLock.RLock() // else a child has a socket that was closed here, and its port, until its exec
	defer syscall.ForkLock.RUnlock()
	p, others := &given.shared, true
	if networkNamespace() != firstNamespace {
		p, others = &given.own, false
	}
	for range lastPort - firstPort {
		if p.next == p.end {
			if err := p.another(others); err != nil {
				return 0, err
			}
		}
		port := p.next
		p.next++
		fd, err := bind(netip.AddrPortFrom(host, port))
		if err == nil {
			return port, syscall.Close(fd)
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return 0, fmt.Errorf("no port of %v can be had: %w", host, err)
		}
	}
	return 0, fmt.Errorf("no port of %v is free", host)
}

// another takes another block of ports, with a claim if others want some as well.
func (p *ports) another(claim bool) error {
	const blocks = (lastPort - firstPort) / blockPorts
	from := rand.IntN(blocks)
	for i := range blocks {
		first := uint16(firstPort + (from+i)%blocks*blockPorts)
		if claim {
			fd, err := bind(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), first))
			if errors.Is(err, syscall.EADDRINUSE) {
				continue
			}
			if err != nil {
				return fmt.Errorf("no ports for tests: %w", err)
			}
			p.claims = append(p.claims, fd)
		}
		p.next, p.end = first+1, first+blockPorts
		return nil
	}
	return errors.New("other processes of tests have all ports")
}

// claimed reports whether a descriptor is no test's, but a claim of ports.
func claimed(descriptor string) bool {
	given.Lock()
	defer given.Unlock()
	return slices.ContainsFunc(given.shared.claims, func(fd int) bool { return strconv.Itoa(fd) == descriptor })
}

// bind returns a socket that has an address for itself.
func bind(address netip.AddrPort) (fd int, err error) {
	var sa syscall.Sockaddr = &syscall.SockaddrInet4{Port: int(address.Port())}
	family := syscall.AF_INET
	if address.Addr().Is4() {
		sa.(*syscall.SockaddrInet4).Addr = address.Addr().As4()
	} else {
		family = syscall.AF_INET6
		sa = &syscall.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()}
	}
	fd, err = syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := syscall.Bind(fd, sa); err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// FreeAddress is FreePort as "host:port".
func FreeAddress(t testing.TB, host string) string {
	t.Helper()
	addr, err := netip.ParseAddr(host)
	if err != nil {
		t.Fatal(err)
	}
	port, err := FreePort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(addr, port).String()
}
