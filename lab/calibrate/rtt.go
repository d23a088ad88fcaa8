package calibrate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/checksum"
	"longhaul/internal/words/stats"
	"longhaul/lab/link"
)

const (
	rttProbes     = 25
	rttProbeGap   = 10 * time.Millisecond
	rttProbeBytes = 64 // ICMP header and payload
)

// IdleRTT sends echo requests from A and takes the median of the round trips.
// The other kernel answers and this one stamps the replies, so no process adds
// its own delay. Asked is both delays and the time the packets take at the
// links' rates.
func (p Path) IdleRTT(ctx context.Context) (Row, error) {
	ab, ba := p.Link.Settings(link.AToB), p.Link.Settings(link.BToA)
	size := rttProbeBytes + 20
	if p.A.Addr.Is6() {
		size += 20
	}
	asked := ab.Delay + ba.Delay
	// A packet waits twice for a timer. One that fires late on an idle machine,
	// as many a virtual one's does, is no fault of the link's.
	tolerance := RTTTolerance + 2*timerLateness() + ab.Jitter + ba.Jitter
	for _, s := range []link.Settings{ab, ba} {
		if s.RateBps > 0 {
			asked += time.Duration(math.Round(float64(size) * 8e9 / s.CarriesBps(size)))
		}
	}
	var trips []time.Duration
	err := p.A.Run(func() (err error) {
		patience := asked + ab.Jitter + ba.Jitter + ab.Reorder.Hold + ba.Reorder.Hold + time.Second
		trips, err = echo(ctx, p.A.Addr, p.B.Addr, max(rttProbeGap, 2*(asked-ab.Delay-ba.Delay)), patience)
		return err
	})
	if err != nil {
		return Row{}, fmt.Errorf("idle RTT: %w", err)
	}
	if len(trips) == 0 {
		return Row{}, fmt.Errorf("idle RTT: none of %d echo requests to %v was answered, look at the link's counters", rttProbes, p.B.Addr)
	}
	slices.Sort(trips)
	got := stats.At(trips, 0.5)
	return Row{
		What:  "idle RTT",
		Asked: fmt.Sprintf("%.3f ms", asked.Seconds()*1e3),
		Got:   fmt.Sprintf("%.3f ms (%+.3f ms)", got.Seconds()*1e3, (got-asked).Seconds()*1e3),
		OK:    (got - asked).Abs() <= tolerance,
	}, nil
}

// timerLateness is by how much the machine's timers are late now, the median of
// a few, and at most half of RTTTolerance.
func timerLateness() time.Duration {
	const sleep = 40 * time.Millisecond
	var late []time.Duration
	for range 5 {
		began, timeout := time.Now(), unix.NsecToTimespec(int64(sleep))
		// A signal that interrupts it makes it early, which the median forgives.
		_, _ = unix.Ppoll(nil, &timeout, nil)
		late = append(late, time.Since(began)-sleep)
	}
	slices.Sort(late)
	return min(max(0, stats.At(late, 0.5)), RTTTolerance/2)
}

// echo runs in the namespace of the calling thread. Times are those of the
// wall clock, because the kernel stamps packets with it.
func echo(ctx context.Context, from, to netip.Addr, gap, patience time.Duration) ([]time.Duration, error) {
	family, protocol, request, reply := unix.AF_INET, unix.IPPROTO_ICMP, byte(8), byte(0)
	if to.Is6() {
		family, protocol, request, reply = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128, 129
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open a raw ICMP socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return nil, fmt.Errorf("set SO_TIMESTAMPNS: %w", err)
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return nil, fmt.Errorf("connect to %v: %w", to, err)
	}
	id := uint16(fd) + uint16(unix.Getpid())
	var trips []time.Duration
	var sentAt [rttProbes]time.Time
	packet, buffer, oob := make([]byte, rttProbeBytes), make([]byte, 2048), make([]byte, 128)
	next, sent := time.Now(), 0
	for len(trips) < rttProbes && ctx.Err() == nil {
		wait := time.Until(next)
		if sent < rttProbes && wait <= 0 {
			packet[0], packet[2], packet[3] = request, 0, 0
			binary.BigEndian.PutUint16(packet[4:], id)
			binary.BigEndian.PutUint16(packet[6:], uint16(sent))
			if protocol == unix.IPPROTO_ICMP { // the kernel does it for ICMPv6
				binary.BigEndian.PutUint16(packet[2:], checksum.Of(packet))
			}
			sentAt[sent] = time.Now()
			if _, err := unix.Write(fd, packet); err != nil {
				return nil, fmt.Errorf("send an echo request: %w", err)
			}
			sent++
			next = next.Add(gap)
			if sent == rttProbes {
				next = time.Now().Add(patience)
			}
			continue
		}
		if wait <= 0 {
			break // some were lost
		}
		timeout := unix.NsecToTimespec(int64(min(wait, 100*time.Millisecond)))
		if n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("wait for an echo reply: %w", err)
		} else if n <= 0 {
			continue
		}
		n, oobn, _, _, err := unix.Recvmsg(fd, buffer, oob, 0)
		if err != nil {
			continue // an ICMP error about the destination: keep waiting
		}
		message := buffer[:n]
		if protocol == unix.IPPROTO_ICMP && n > 0 { // comes with the IP header
			message = message[min(int(message[0]&0xf)*4, n):]
		}
		at, _ := control(oob[:oobn])
		if len(message) < 8 || message[0] != reply || binary.BigEndian.Uint16(message[4:]) != id || at.IsZero() {
			continue
		}
		if number := int(binary.BigEndian.Uint16(message[6:])); number < sent {
			trips = append(trips, at.Sub(sentAt[number].Round(0)))
		}
	}
	return trips, ctx.Err()
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}
