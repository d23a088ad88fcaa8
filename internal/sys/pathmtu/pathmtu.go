// Package pathmtu determines by probing whether packets of a size cross a path.
// It accepts only answers that prove that their sender has seen a probe, and
// queries no router.
//
// Toward an address it sends unfragmentable datagrams, to a closed UDP port and
// as ICMP echo requests. A host answers each in a short packet, so the way back
// may have any MTU. For the way back it requests long echo replies and checks
// whether they arrive in fragments. If small packets are answered and large
// ones never, the path does not carry the large ones.
package pathmtu

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
)

// Verdict is the result of probing a path.
type Verdict string

// The verdicts.
const (
	Carries Verdict = "carries"
	TooBig  Verdict = "too big"
	// Silent: small packets were not answered.
	Silent Verdict = "silent"
)

// Result is the outcome of a probe.
type Result struct {
	Verdict Verdict
	// MTU is the path's MTU in bytes of an IP packet, from a router, the
	// device, or received fragments. Zero means unknown.
	MTU int
}

// Options bound the effort. The zero value suits a path with some loss and a
// round trip below a second.
type Options struct {
	Tries int           // 4 if zero
	Wait  time.Duration // for an answer to each try; a second if zero
}

func (o Options) withDefaults() Options {
	if o.Tries == 0 {
		o.Tries = 4
	}
	if o.Wait == 0 {
		o.Wait = time.Second
	}
	return o
}

// minSize is the size in bytes of the packets that test whether the host
// answers.
const minSize = 100

// Toward probes whether IP packets of a size in bytes, including headers, reach
// an address. It needs CAP_NET_RAW.
func Toward(ctx context.Context, to netip.Addr, size int, o Options) (Result, error) {
	return probe(ctx, to, size, o, false)
}

// From probes whether IP packets of a size arrive here from an address. The
// requests may be fragmented by this host and by routers.
func From(ctx context.Context, from netip.Addr, size int, o Options) (Result, error) {
	return probe(ctx, from, size, o, true)
}

func probe(ctx context.Context, address netip.Addr, size int, o Options, back bool) (Result, error) {
	o = o.withDefaults()
	address = address.Unmap()
	if size < minSize || size > 0xffff {
		return Result{}, fmt.Errorf("invalid packet size of %d bytes: use %d to 65535", size, minSize)
	}
	p := &prober{address: address}
	rand.Read(p.secret[:])
	defer p.close()
	if err := p.open(back); err != nil {
		return Result{}, err
	}
	for range o.Tries {
		if err := ctx.Err(); err != nil {
			return Result{}, err
		}
		p.send(size)
		if err := p.wait(ctx, o.Wait); err != nil {
			return Result{}, err
		}
		if p.large {
			return Result{Verdict: Carries}, nil
		}
	}
	switch {
	case p.small || p.mtu > 0:
		return Result{TooBig, p.mtu}, nil
	}
	return Result{Verdict: Silent}, nil
}

// prober is a set of sockets to one address.
type prober struct {
	address  netip.Addr
	back     bool
	sockets  []*socket
	sequence uint16
	secret   [nonceSize]byte

	small, large bool // answered sizes
	mtu          int  // lowest reported MTU
}

// socket sends packets of one size class.
type socket struct {
	fd    int
	large bool
	udp   bool
}

// firstPort is the first port that traceroute uses; hardly any service listens
// there.
const firstPort = 33434

func (p *prober) is4() bool { return p.address.Is4() }

func (p *prober) headers() int {
	if p.is4() {
		return 20
	}
	return 40
}

func (p *prober) open(back bool) error {
	p.back = back
	family, protocol := unix.AF_INET6, unix.IPPROTO_ICMPV6
	if p.is4() {
		family, protocol = unix.AF_INET, unix.IPPROTO_ICMP
	}
	for _, large := range []bool{false, true} {
		if err := p.add(family, unix.SOCK_RAW, protocol, &socket{large: large}); err != nil {
			return err
		}
		if !back {
			if err := p.add(family, unix.SOCK_DGRAM, unix.IPPROTO_UDP, &socket{large: large, udp: true}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *prober) add(family, kind, protocol int, s *socket) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if errors.Is(err, unix.EPERM) {
		return &kernel.ErrUnsupported{Feature: "probing a path", Needs: "CAP_NET_RAW: run it as root, or grant it"}
	}
	if err != nil {
		return fmt.Errorf("open a probe socket: %w", err)
	}
	s.fd = fd
	p.sockets = append(p.sockets, s)
	port := uint16(0)
	if s.udp {
		port = firstPort
		if s.large {
			port++ // some hosts answer each port only once
		}
	}
	discover := unix.IP_PMTUDISC_PROBE // set DF and ignore the cached path MTU
	if p.back {
		discover = unix.IP_PMTUDISC_DONT
	}
	level, options := unix.IPPROTO_IPV6, map[int]int{unix.IPV6_MTU_DISCOVER: discover, unix.IPV6_RECVERR: 1, unix.IPV6_RECVFRAGSIZE: 1}
	var address unix.Sockaddr = &unix.SockaddrInet6{Port: int(port), Addr: p.address.As16(), ZoneId: zoneID(p.address)}
	if p.is4() {
		level, options = unix.IPPROTO_IP, map[int]int{unix.IP_MTU_DISCOVER: discover, unix.IP_RECVERR: 1, unix.IP_RECVFRAGSIZE: 1}
		address = &unix.SockaddrInet4{Port: int(port), Addr: p.address.As4()}
	}
	for option, value := range options {
		if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
			return fmt.Errorf("set up a probe socket: %w", err)
		}
	}
	// Room for fragments' overhead.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20)
	if err := unix.Connect(fd, address); err != nil {
		return fmt.Errorf("probe %s: %w", p.address, err)
	}
	return nil
}

func (p *prober) close() {
	for _, s := range p.sockets {
		unix.Close(s.fd)
	}
}

// send sends one packet with every socket.
func (p *prober) send(size int) {
	p.sequence++
	for _, s := range p.sockets {
		bytes := minSize
		if s.large {
			bytes = size
		}
		b := make([]byte, bytes-p.headers())
		if s.udp {
			b = b[8:] // the UDP header
			copy(b, p.nonce(s.large))
		} else {
			p.fillEcho(b, s.large)
		}
		// The next call returns a pending error of the socket: retry.
		for range 4 {
			_, err := unix.Write(s.fd, b)
			if err == nil {
				break
			}
			if errors.Is(err, unix.EMSGSIZE) && s.large {
				p.tooBig(s)
			}
		}
	}
}

// tooBig records the kernel's path MTU of a socket.
func (p *prober) tooBig(s *socket) {
	level, option := unix.IPPROTO_IPV6, unix.IPV6_MTU
	if p.is4() {
		level, option = unix.IPPROTO_IP, unix.IP_MTU
	}
	if mtu, err := unix.GetsockoptInt(s.fd, level, option); err == nil {
		p.noteMTU(mtu)
	}
}

func (p *prober) noteMTU(mtu int) {
	if mtu > 0 && (p.mtu == 0 || mtu < p.mtu) {
		p.mtu = mtu
	}
}

// wait handles answers until the timeout, or until the large packet is
// answered.
func (p *prober) wait(ctx context.Context, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	polls := make([]unix.PollFd, len(p.sockets))
	for over := false; !p.large && !over; {
		// Poll once more after the deadline: the process may not have run for a
		// while.
		left := time.Until(deadline)
		over = left <= 0
		if err := ctx.Err(); err != nil {
			return err
		}
		for i, s := range p.sockets {
			polls[i] = unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN}
		}
		// Short enough to notice an interruption.
		pause := unix.NsecToTimespec(int64(min(max(left, 0), 50*time.Millisecond)))
		n, err := unix.Ppoll(polls, &pause, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for answers of %s: %w", p.address, err)
		}
		if n <= 0 {
			continue
		}
		for i, s := range p.sockets {
			if polls[i].Revents != 0 {
				p.receive(s)
			}
		}
	}
	return nil
}

// receive handles one pending error and one pending packet.
func (p *prober) receive(s *socket) {
	b, control := make([]byte, 1<<16), make([]byte, 512)
	if quoted, n, _, _, err := unix.Recvmsg(s.fd, b, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT); err == nil {
		p.takeError(s, b[:quoted], control[:n])
	}
	n, controlBytes, _, _, err := unix.Recvmsg(s.fd, b, control, unix.MSG_DONTWAIT)
	switch {
	case err != nil: // a pending error; the error queue has its details
		return
	case s.udp:
		if p.isOurs(b[:n], s.large, nonceSize) { // from an echo service
			p.answered(s.large)
		}
		return
	}
	large, ok := p.parseEcho(b[:n])
	if !ok {
		return
	}
	if fragment := fragmentSize(control[:controlBytes]); fragment > 0 && large && p.back {
		p.small = true
		p.noteMTU(fragment)
		return
	}
	p.answered(large)
}

func (p *prober) answered(large bool) {
	if large {
		p.large = true
	} else {
		p.small = true
	}
}
