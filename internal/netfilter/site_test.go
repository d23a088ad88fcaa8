package netfilter

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/checksum"
	"longhaul/internal/lab/linktest"
	"longhaul/internal/nettest"
	"longhaul/internal/portrange"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// site is three hosts in a row, see [linktest.Row]. Behind the left one are clients in
// 10.10.0.0/16 and fd10::/16, behind the right one targets in 10.20.0.0/16 and fd20::/16.
type site struct {
	linktest.Row
	t testing.TB

	v4, v6    int // raw sockets of A
	a, r, b   int // packet sockets of each host
	left, out int // A's and R's devices towards the right
	marks     uint32
}

func newSite(t testing.TB) *site {
	t.Helper()
	nettest.RequireSandbox(t)
	for program, of := range map[string]string{"nft": "nftables", "iptables-legacy": "iptables", "ip": "iproute2"} {
		nettest.RequireProgram(t, program, of)
	}
	s := &site{Row: linktest.NewRow(t, 1500), t: t}
	s.run(`ip route add 10.10.0.0/16 via 10.9.1.2; ip route add 10.20.0.0/16 via 10.9.2.2
		ip -6 route add fd10::/16 via fd09:1::2; ip -6 route add fd20::/16 via fd09:2::2`)
	open := func(domain, kind, protocol int) (fd int) {
		t.Helper()
		fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
		must(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	index := func(name string) int {
		device, err := net.InterfaceByName(name)
		must(t, err)
		return device.Index
	}
	const all, markers = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8, markType<<8&0xff00 | markType>>8
	must(t, s.A.Do(func() error {
		s.v4, s.v6 = open(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW), open(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW)
		s.a, s.left = open(unix.AF_PACKET, unix.SOCK_DGRAM, 0), index("eth0")
		return nil
	}))
	must(t, s.R.Do(func() error {
		s.r, s.out = open(unix.AF_PACKET, unix.SOCK_DGRAM, markers), index("right")
		return nil
	}))
	must(t, s.B.Do(func() error {
		s.b = open(unix.AF_PACKET, unix.SOCK_DGRAM, all)
		return unix.SetsockoptInt(s.b, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	}))
	// The neighbours must be known: packets that wait for one lose their place.
	neighbour := func(of func(string, ...string) string, dev, mac string, addresses ...string) {
		for _, a := range addresses {
			of("ip neigh replace " + a + " lladdr " + mac + " dev " + dev + " nud permanent")
		}
	}
	link := func(of func(string, ...string) string, dev string) string {
		return string(bytes.TrimSpace([]byte(of("ip -br link show " + dev + " | awk '{print $3}'"))))
	}
	onA := func(c string, a ...string) string { return s.runOn(s.A.Start, c, a...) }
	onB := func(c string, a ...string) string { return s.runOn(s.B.Start, c, a...) }
	neighbour(onA, "eth0", link(s.run, "left"), "10.9.1.1", "fd09:1::1")
	neighbour(s.run, "left", link(onA, "eth0"), "10.9.1.2", "fd09:1::2")
	neighbour(s.run, "right", link(onB, "eth0"), "10.9.2.2", "fd09:2::2")
	neighbour(onB, "eth0", link(s.run, "right"), "10.9.2.1", "fd09:2::1")
	return s
}

// markType is an ethertype for experiments.
const markType = 0x88b5

// run runs a shell command on the router and returns its output.
func (s *site) run(command string, arguments ...string) string {
	s.t.Helper()
	return s.runOn(s.R.Start, command, arguments...)
}

func (s *site) runOn(start func(*exec.Cmd) error, command string, arguments ...string) string {
	s.t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-ec", command, "sh"}, arguments...)...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		s.t.Fatalf("%s %q: %v\n%s", command, arguments, err, out.String())
	}
	return out.String()
}

// passing sends the first SYN of each connection from the left host and returns which come
// out at the right host. Behind them go two frames that no rule sees, to the router and from
// there to the right host, on the same CPU: what has not come before the second does not
// come.
func (s *site) passing(all []Connection) (passed map[Connection]bool) {
	s.t.Helper()
	passed = map[Connection]bool{}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var former, one unix.CPUSet
	must(s.t, unix.SchedGetaffinity(0, &former))
	for i := range 1024 {
		if former.IsSet(i) {
			one.Set(i)
			break
		}
	}
	must(s.t, unix.SchedSetaffinity(0, &one))
	defer func() { must(s.t, unix.SchedSetaffinity(0, &former)) }()
	for _, c := range all {
		if c.From.Is4() {
			must(s.t, unix.Sendto(s.v4, syn(c), 0, &unix.SockaddrInet4{Addr: c.To.As4()}))
		} else {
			must(s.t, unix.Sendto(s.v6, syn(c), 0, &unix.SockaddrInet6{Addr: c.To.As16()}))
		}
	}
	s.marks++
	mark := binary.BigEndian.AppendUint32([]byte("mark"), s.marks)
	send := func(fd, device int) {
		to := &unix.SockaddrLinklayer{Protocol: markType<<8&0xff00 | markType>>8, Ifindex: device, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
		must(s.t, unix.Sendto(fd, mark, 0, to))
	}
	b := make([]byte, 1<<16)
	// come passes what comes in until the mark does.
	come := func(fd int, each func([]byte)) {
		for {
			n, from, err := unix.Recvfrom(fd, b, 0)
			must(s.t, err)
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

// syn is the first SYN of a connection with its IP header.
func syn(c Connection) []byte {
	tcp := binary.BigEndian.AppendUint16(nil, c.FromPort)
	tcp = binary.BigEndian.AppendUint16(tcp, c.ToPort)
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, synFlag, 0xff, 0xff, 0, 0, 0, 0)
	pseudo := append(append(c.From.AsSlice(), c.To.AsSlice()...), 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
	sum := checksum.Of(append(pseudo, tcp...))
	binary.BigEndian.PutUint16(tcp[16:], sum)
	if c.From.Is4() {
		return append(v4Header(c.From, c.To, unix.IPPROTO_TCP, len(tcp)), tcp...)
	}
	ip := append([]byte{0x60, 0, 0, 0, 0, byte(len(tcp)), unix.IPPROTO_TCP, 64}, c.From.AsSlice()...)
	return append(append(ip, c.To.AsSlice()...), tcp...)
}

func v4Header(from, to netip.Addr, protocol byte, length int) []byte {
	ip := []byte{0x45, 0, 0, byte(20 + length), 0, 1, 0x40, 0, 64, protocol, 0, 0}
	return append(append(ip, from.AsSlice()...), to.AsSlice()...)
}

func readSYN(b []byte) (c Connection, ok bool) {
	var tcp []byte
	switch {
	case len(b) >= 40 && b[0] == 0x45 && b[9] == unix.IPPROTO_TCP:
		c.From, c.To, tcp = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[20:]
	case len(b) >= 60 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		c.From, c.To, tcp = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[40:]
	default:
		return c, false
	}
	c.FromPort, c.ToPort = binary.BigEndian.Uint16(tcp), binary.BigEndian.Uint16(tcp[2:])
	return c, tcp[13] == synFlag
}

func connection(from string, fromPort uint16, to string, toPort uint16) Connection {
	return Connection{netip.MustParseAddr(from), fromPort, netip.MustParseAddr(to), toPort}
}

// flows are those of the one connection, of any port of its client.
func (c Connection) flows() Flows {
	single := func(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())} }
	return Flows{Interface: "left", From: single(c.From), To: single(c.To), Ports: []portrange.Range{{First: c.ToPort, Last: c.ToPort}}}
}

func (c Connection) family() byte {
	if c.From.Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// forward returns the verdict for flows on the router.
func (s *site) forward(family byte, f Flows) (v Verdict) {
	s.t.Helper()
	must(s.t, s.R.Do(func() error {
		r, err := Read()
		if err != nil {
			return err
		}
		v, err = r.Forward(family, f)
		return err
	}))
	return v
}
