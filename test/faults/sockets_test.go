package faults

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/test/nettest"
)

// The programs below take the place of a firewall, which tests could not have on every
// kernel: the kernel runs them for each packet that comes for a socket, from its TCP
// header on, and drops the packet at 0.
var (
	dropAll = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}

	// dropPayload drops what is longer than the TCP header: handshakes go through.
	dropPayload = []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
		{Code: unix.BPF_ST, K: 0},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 12}, // the data offset
		{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 4},
		{Code: unix.BPF_ALU | unix.BPF_LSH | unix.BPF_K, K: 2},
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_MEM, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_X, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 18},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
)

// filterSocket has the kernel run a program for what comes for a socket, and for the
// connections that a listening one accepts from then on. Nil: none any more.
func filterSocket(t *testing.T, fd int, program []unix.SockFilter) {
	t.Helper()
	if program == nil {
		nettest.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0))
		return
	}
	nettest.Must(t, unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}))
}

// filterListener is filterSocket for a listener of this process.
func filterListener(t *testing.T, l net.Listener, program []unix.SockFilter) {
	t.Helper()
	raw, err := l.(*net.TCPListener).SyscallConn()
	nettest.Must(t, err)
	nettest.Must(t, raw.Control(func(fd uintptr) { filterSocket(t, int(fd), program) }))
}

// filter is filterSocket for TCP sockets of the relay that match wants, of which there
// must be some.
func (d *daemon) filter(program []unix.SockFilter, match func(socketOf) bool) {
	d.t.Helper()
	n := 0
	d.eachSocket(func(s socketOf) {
		if match(s) {
			filterSocket(d.t, s.fd, program)
			n++
		}
	})
	if n == 0 {
		d.t.Fatal("the relay has no such socket")
	}
}

// socketOf is a TCP socket of another process.
type socketOf struct {
	fd    int // a copy, for the time of a call
	local netip.AddrPort
	info  tcpinfo.Info
}

// eachSocket calls look with each TCP socket of the relay.
func (d *daemon) eachSocket(look func(socketOf)) {
	d.t.Helper()
	pid := d.cmd.Process.Pid
	process, err := unix.PidfdOpen(pid, 0)
	nettest.Must(d.t, err)
	defer unix.Close(process)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	nettest.Must(d.t, err)
	for _, e := range entries {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || !strings.HasPrefix(link, "socket:") {
			continue // of those that were closed meanwhile, too
		}
		n, err := strconv.Atoi(e.Name())
		nettest.Must(d.t, err)
		fd, err := unix.PidfdGetfd(process, n, 0)
		if err != nil {
			continue
		}
		if s, is := lookAtSocket(fd); is {
			look(s)
		}
		unix.Close(fd)
	}
}

func lookAtSocket(fd int) (s socketOf, is bool) {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_TCP {
		return s, false
	}
	s.fd = fd
	if s.info, err = tcpinfo.Get(fd); err != nil {
		return s, false
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return s, false
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		s.local = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		s.local = netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return s, true
}
