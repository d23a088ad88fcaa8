//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/hosts"
)

// packets are packets that do not concern the relay: TCP for another port, or UDP.
type packets struct {
	protocol string
	ipv6     bool
	bytes    int // of payload
}

func (p packets) family() int {
	if p.ipv6 {
		return 1
	}
	return 0
}

func (p packets) name() string {
	return fmt.Sprintf("%s%d-%d", p.protocol, [2]int{4, 6}[p.family()], p.bytes)
}

func (p packets) about() string {
	return fmt.Sprintf("%s over IPv%d with %d bytes", map[string]string{"udp": "UDP", "tcp": "TCP for another port"}[p.protocol], [2]int{4, 6}[p.family()], p.bytes)
}

// stream sends packets through a router to a target that drops them: they are for an
// address behind it, and it does not forward.
type stream struct {
	*lab.Stage
	packets
	way  string
	fd   int
	data []byte
	sent uint64
	came uint64 // before the first
}

// behindTarget are networks behind the target, among those that the relay intercepts.
var behindTarget = [2]netip.Prefix{netip.MustParsePrefix("10.40.3.0/24"), netip.MustParsePrefix("fd00:40:3::/64")}

const (
	otherPort   = 5002
	turnPackets = 20_000
	tcpHeader   = 20
)

func startPackets(ctx context.Context, o kit.Options, way string, p packets) (m meter, err error) {
	built, err := lab.Build(lab.OneRouter())
	if err != nil {
		return nil, err
	}
	s := &stream{Stage: &lab.Stage{Lab: built, Program: o.Program, Report: o.Report}, packets: p, way: way, fd: -1}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", way, s.Explain(err))
			s.end()
		}
	}()
	router := built.Host("router")
	for i, to := range behindTarget {
		if err := router.Route(hosts.Route{To: to, Via: lab.RoutedTarget[i].Addr()}); err != nil {
			return nil, err
		}
	}
	switch way {
	case wayDropped:
		for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
			if err := router.Sysctl(name, "0"); err != nil {
				return nil, err
			}
		}
	case wayIntercept, wayEnded:
		i := interception()
		i.To = append(i.To, behindTarget[:]...)
		relay, err := s.StartInterceptor(ctx, "router", i)
		if err != nil {
			return nil, err
		}
		if way == wayEnded {
			s.End(relay)
		}
	}
	if err := built.Host("client").Do(s.open); err != nil {
		return nil, err
	}
	s.came, err = s.received()
	return s, err
}

// open makes the socket. A raw one sends TCP packets of no connection.
func (s *stream) open() (err error) {
	family, kind, protocol := unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP
	s.data = make([]byte, s.bytes)
	if s.protocol == "tcp" {
		kind, protocol = unix.SOCK_RAW, unix.IPPROTO_TCP
		s.data = append(tcpACK(), s.data...)
	}
	to := behindTarget[s.family()].Addr().Next()
	var address unix.Sockaddr = &unix.SockaddrInet4{Port: otherPort, Addr: [4]byte(to.AsSlice()[:4])}
	if s.ipv6 {
		family = unix.AF_INET6
		in6 := &unix.SockaddrInet6{Addr: to.As16()}
		if kind == unix.SOCK_DGRAM {
			in6.Port = otherPort
		}
		address = in6
	}
	if s.fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol); err != nil {
		return err
	}
	return unix.Connect(s.fd, address)
}

// tcpACK is the header of an acknowledgement from port 40000.
func tcpACK() []byte {
	h := make([]byte, tcpHeader)
	h[0], h[1] = 40000>>8, 40000&0xff
	h[2], h[3] = otherPort>>8, otherPort&0xff
	h[12], h[13] = tcpHeader/4<<4, 0x10
	return h
}

// turn sends packets. All that the kernel does with them on all three hosts, it does on the
// sending thread.
func (s *stream) turn(context.Context) (cpu time.Duration, amount float64, err error) {
	err = s.Host("client").Do(func() error {
		var before, after unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before); err != nil {
			return err
		}
		for range turnPackets {
			if _, err := unix.Write(s.fd, s.data); err != nil {
				return err
			}
		}
		err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
		cpu = time.Duration(after.Nano() - before.Nano())
		return err
	})
	s.sent += turnPackets
	return cpu, turnPackets / 1e9, err
}

// received counts the packets that reached the target.
func (s *stream) received() (n uint64, err error) {
	return s.Host("target").Received("lan")
}

func (s *stream) end() {
	if s.fd >= 0 {
		unix.Close(s.fd)
	}
	s.Stop()
	_ = s.Close()
}

// close checks that all packets reached the target, or none.
func (s *stream) close() error {
	defer s.end()
	now, err := s.received()
	if err != nil {
		return err
	}
	came := now - s.came
	const others = 100 // neighbour discovery, multicast
	if s.way == wayDropped && came > others || s.way != wayDropped && came < s.sent {
		return fmt.Errorf("%s, %s: %d of %d packets reached the target", s.name(), s.way, came, s.sent)
	}
	return nil
}
