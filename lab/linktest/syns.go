package linktest

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

// SYN is the first packet of a connection.
type SYN struct{ From, To netip.AddrPort }

// SYNs sends first packets of connections from the left host of a row and watches which
// come out at the right one. Nobody need have their addresses.
type SYNs struct {
	t         testing.TB
	from      Injector // A
	a, r, b   int      // packet sockets of each host
	left, out int      // A's and R's devices towards the right
	marks     uint32
}

// markType is an ethertype for experiments.
const markType = 0x88b5

// NewSYNs opens the sockets. It skips the test where their room cannot be beyond net.core.rmem_max.
func NewSYNs(t testing.TB, row Row) *SYNs {
	t.Helper()
	nettest.RequireRoot(t)
	s := &SYNs{t: t, from: NewInjector(t, row.A, "eth0")}
	open := func(protocol int) (fd int) {
		t.Helper()
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
		s.must(err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	index := func(name string) int {
		device, err := net.InterfaceByName(name)
		s.must(err)
		return device.Index
	}
	s.must(row.A.Do(func() error {
		s.a, s.left = open(0), index("eth0")
		return nil
	}))
	s.must(row.R.Do(func() error {
		s.r, s.out = open(onWire(markType)), index("right")
		return nil
	}))
	s.must(row.B.Do(func() error {
		s.b = open(onWire(unix.ETH_P_ALL))
		return unix.SetsockoptInt(s.b, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	}))
	// The neighbours must be known: packets that wait for one lose their place.
	for _, n := range []struct {
		of, at         *hosts.Host
		device, theirs string
		addresses      []string
	}{
		{row.A, row.R, "eth0", "left", []string{"10.9.1.1", "fd09:1::1"}},
		{row.R, row.A, "left", "eth0", []string{"10.9.1.2", "fd09:1::2"}},
		{row.R, row.B, "right", "eth0", []string{"10.9.2.2", "fd09:2::2"}},
	} {
		var mac net.HardwareAddr
		s.must(n.at.Do(func() error {
			device, err := net.InterfaceByName(n.theirs)
			if err == nil {
				mac = device.HardwareAddr
			}
			return err
		}))
		for _, address := range n.addresses {
			Shell(t, n.of, "ip neigh replace "+address+" lladdr "+mac.String()+" dev "+n.device+" nud permanent")
		}
	}
	return s
}

func (s *SYNs) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// Passing sends the packets and returns those that come out at the right host. Behind them
// go two frames that no rule sees, to the router and from there to the right host, on the
// same CPU: what has not come before the second does not come.
func (s *SYNs) Passing(all []SYN) (passed map[SYN]bool) {
	s.t.Helper()
	passed = map[SYN]bool{}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var former, one unix.CPUSet
	s.must(unix.SchedGetaffinity(0, &former))
	for i := range 1024 {
		if former.IsSet(i) {
			one.Set(i)
			break
		}
	}
	s.must(unix.SchedSetaffinity(0, &one))
	defer func() { s.must(unix.SchedSetaffinity(0, &former)) }()
	for _, c := range all {
		s.must(s.from.Send(SYNPacket(c.From, c.To)))
	}
	s.marks++
	mark := binary.BigEndian.AppendUint32([]byte("mark"), s.marks)
	send := func(fd, device int) {
		s.must(unix.Sendto(fd, mark, 0, &unix.SockaddrLinklayer{
			Protocol: uint16(onWire(markType)), Ifindex: device, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255},
		}))
	}
	b := make([]byte, 1<<16)
	// come passes what comes in until the mark does.
	come := func(fd int, each func([]byte)) {
		for {
			n, from, err := unix.Recvfrom(fd, b, 0)
			s.must(err)
			if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			if bytes.HasPrefix(b[:n], mark) {
				return
			}
			each(b[:n])
		}
	}
	send(s.a, s.left)
	come(s.r, func([]byte) {})
	send(s.r, s.out)
	come(s.b, func(packet []byte) {
		if c, ok := readSYN(packet); ok {
			passed[c] = true
		}
	})
	return passed
}

func onWire(kind uint16) int {
	return int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, kind)))
}

func readSYN(b []byte) (c SYN, ok bool) {
	var from, to netip.Addr
	var tcp []byte
	switch {
	case len(b) >= 40 && b[0] == 0x45 && b[9] == unix.IPPROTO_TCP:
		from, to, tcp = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[20:]
	case len(b) >= 60 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		from, to, tcp = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[40:]
	default:
		return c, false
	}
	c = SYN{netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp)), netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:]))}
	return c, tcp[13] == synFlag
}
