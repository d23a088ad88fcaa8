package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab"
)

// garbageMark is the first byte of what strangers send, so that the target
// can tell it from the number of a flow.
const garbageMark = 0xff

const (
	halfOpenSYNs   = 3000 // of one flood
	silentStranger = 200  // connections of one flood that never say a word
	garbageEach    = 20   // connections of one spell to each port
)

// spell is how long strangers go on at the most: a relay or a WAN that is dead
// at the moment may hold each of their connections up.
const spell = 3 * time.Second

// strangers are those who want nothing of the relays.
type strangers struct {
	syns, silent, garbled atomic.Int64
}

// ports are all that strangers can reach: those of relay-a from host-a, those
// of the far relays from relay-a's side of the WANs.
func (w *world) ports() (all []struct {
	from string
	to   netip.AddrPort
}) {
	for _, p := range []uint16{mainPort, refusedPort, extraPort, httpPort} {
		for _, one := range []struct {
			from string
			to   netip.Addr
		}{{"host-a", lab.RelayA}, {"relay-a", lab.WANB}, {"relay-a", lab.WANB2}} {
			all = append(all, struct {
				from string
				to   netip.AddrPort
			}{one.from, netip.AddrPortFrom(one.to, p)})
		}
	}
	return all
}

// halfOpen sends SYNs from addresses of which nobody ever answers, and makes
// connections that stay silent and then are gone.
func (s *strangers) halfOpen(ctx context.Context, w *world) error {
	ctx, cancel := context.WithTimeout(ctx, spell)
	defer cancel()
	to := netip.AddrPortFrom(lab.RelayA, mainPort)
	err := w.Host("host-a").Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i := range halfOpenSYNs {
			if ctx.Err() != nil {
				return nil
			}
			// Of the site's network, from addresses that no host has.
			from := netip.AddrFrom4([4]byte{10, 10, 10, byte(100 + rand.IntN(150))})
			syn := synSegment(netip.AddrPortFrom(from, uint16(1024+rand.IntN(60000))), to, rand.Uint32())
			if err := unix.Sendto(fd, syn, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return err
			}
			s.syns.Add(1)
			if i%100 == 99 {
				pause(ctx, 10*time.Millisecond)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var open []interface{ Close() error }
	for range silentStranger {
		// Refused or reset while a relay is dead: then there is nothing to be silent on.
		if conn, err := w.dialTo(ctx, "host-a", to); err == nil {
			_ = conn.SetLinger(0)
			open = append(open, conn)
			s.silent.Add(1)
		}
	}
	pause(ctx, time.Second)
	for _, conn := range open {
		_ = conn.Close()
	}
	return nil
}

// synSegment is an IPv4 packet with the first segment of a connection
// (RFC 791, RFC 9293). The kernel fills in the header's checksum.
func synSegment(from, to netip.AddrPort, sequence uint32) []byte {
	p := make([]byte, 40)
	p[0] = 0x45
	binary.BigEndian.PutUint16(p[2:], 40)
	p[8], p[9] = 64, unix.IPPROTO_TCP
	src, dst := from.Addr().As4(), to.Addr().As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	tcp := p[20:]
	binary.BigEndian.PutUint16(tcp[0:], from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], sequence)
	tcp[12], tcp[13] = 5<<4, 0x02
	binary.BigEndian.PutUint16(tcp[14:], 65535)
	// The checksum covers a pseudo header: both addresses, the protocol and
	// the segment's length.
	sum := uint32(unix.IPPROTO_TCP + len(tcp))
	for i := 12; i < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	return p
}

// garbage sends random bytes to every port, and leaves by an end or a reset.
func (s *strangers) garbage(ctx context.Context, w *world) error {
	ctx, cancel := context.WithTimeout(ctx, spell)
	defer cancel()
	for _, p := range w.ports() {
		for range garbageEach {
			conn, err := w.dialTo(ctx, p.from, p.to)
			if err != nil {
				continue // the tunnel is not there now, or its relay is dead
			}
			bytes := make([]byte, 1+rand.IntN(3000))
			for i := range bytes {
				bytes[i] = byte(rand.Uint32())
			}
			bytes[0] = garbageMark
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			_, _ = conn.Write(bytes)
			if rand.IntN(2) == 0 {
				_ = conn.SetLinger(0)
			}
			_ = conn.Close()
			s.garbled.Add(1)
		}
	}
	return nil
}
