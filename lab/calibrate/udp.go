package calibrate

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"longhaul/lab/link"
)

const (
	// numberedBurst packets go out every numberedPause: slow enough for a
	// receive buffer of the default size.
	numberedBurst = 25
	numberedPause = time.Millisecond
	numberedBytes = 32

	floodExcess   = 1.15 // times the rate that is measured
	floodPackets  = 300  // at least, as long as they take less than floodTimeMax
	floodTimeMax  = 15 * time.Second
	floodSegments = 40
)

// floodTime is how long a rate is measured.
var floodTime = 2 * time.Second

// arrivals are what came in of a numbered sequence.
type arrivals struct {
	seen  []bool
	count atomic.Int64
}

// numbered sends packets with their numbers in them.
func (p Path) numbered(ctx context.Context, dir link.Direction, packets int) (*arrivals, error) {
	got := &arrivals{seen: make([]bool, packets)}
	before := p.Link.Counters(dir)
	rx, tx, err := p.sockets(dir)
	if err != nil {
		return got, err
	}
	defer rx.Close()
	defer tx.Close()

	received := make(chan error, 1)
	go func() {
		received <- receiveAll(rx, func(payloads []ipv4.Message, _ time.Time, overflow uint32) error {
			if overflow > 0 {
				return fmt.Errorf("the receiver's buffer overflowed by %d packets, give this machine more idle CPU and repeat", overflow)
			}
			for i := range payloads {
				if payloads[i].N < 4 {
					continue
				}
				if n := binary.BigEndian.Uint32(payloads[i].Buffers[0]); int(n) < packets && !got.seen[n] {
					got.seen[n] = true
					got.count.Add(1)
				}
			}
			return nil
		})
	}()
	err = paced(ctx, numberedPause, (packets+numberedBurst-1)/numberedBurst, func(burst int) error {
		var payload [numberedBytes]byte
		for n := burst * numberedBurst; n < min((burst+1)*numberedBurst, packets); n++ {
			binary.BigEndian.PutUint32(payload[:], uint32(n))
			if _, err := tx.Write(payload[:]); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Errorf("send packet %d: %w", n, err)
			}
		}
		return nil
	})
	p.lastOnTheWay(rx, dir, 10*time.Second)
	// Once the link has delivered all that it did not lose, and all of that has
	// come, nothing is left to wait for.
	whole := func() bool {
		c := p.Link.Counters(dir)
		return c.PacketsIn-before.PacketsIn >= uint64(packets) && c.InFlight == 0 &&
			uint64(got.count.Load()) == c.PacketsDelivered-before.PacketsDelivered
	}
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for receiving := true; receiving; {
		select {
		case receiveErr := <-received:
			err, receiving = errors.Join(err, receiveErr), false
		case <-look.C:
			if whole() {
				_ = rx.SetReadDeadline(time.Now())
			}
		}
	}
	c := p.Link.Counters(dir)
	if n := c.DeviceDrops - before.DeviceDrops; err == nil && n > 0 {
		err = fmt.Errorf("the kernel dropped %d packets before the emulator read them, give this machine more idle CPU and repeat", n)
	}
	return got, err
}

// flood sends faster than the rate and returns the rate at which the packets
// that arrive do so, in bits per second.
func (p Path) flood(ctx context.Context, dir link.Direction, rate float64) (float64, error) {
	got, err := p.floodFor(ctx, dir, rate, floodTime)
	if err != nil {
		return 0, err
	}
	return got.bytes * 8 / got.last.Sub(got.first).Seconds(), nil
}

// flooded is what arrived of a flood: the bytes of IP packets after the first time, up
// to the last.
type flooded struct {
	first, last time.Time
	bytes       float64
}

// floodFor sends floodExcess times faster than the rate for a time. It goes by the
// kernel's time stamps, and counts what the receiver's buffer could not hold.
func (p Path) floodFor(ctx context.Context, dir link.Direction, rate float64, during time.Duration) (flooded, error) {
	from, _ := p.ends(dir)
	headers := udpHeaders(from)
	var packet int
	var first, last time.Time
	var count, firstOverflow, lastOverflow uint64
	receive := func(messages []ipv4.Message, at time.Time, overflow uint32) error {
		if first.IsZero() {
			// Time and counts of the last message of the first batch.
			first, firstOverflow = at, uint64(overflow)
		} else {
			count += uint64(len(messages))
		}
		last, lastOverflow = at, uint64(overflow)
		return nil
	}
	err := p.exchange(dir, receive, func(tx *net.UDPConn) (err error) {
		if packet, err = pathMTU(tx, from.Addr); err != nil {
			return err
		}
		packet = min(packet, cmp.Or(p.Link.Settings(dir).MTU, link.DefaultMTU))
		segments := max(1, min(floodSegments, 65000/(packet-headers)))
		if err := setSegment(tx, packet-headers); err != nil { // an old kernel
			segments = 1
		}
		perPacket := float64(packet) * 8 / rate
		total := min(max(during, time.Duration(floodPackets*perPacket*1e9)), floodTimeMax)
		pause := max(time.Millisecond, time.Duration(perPacket*1e9/floodExcess))
		payload := make([]byte, segments*(packet-headers))
		sent, start := 0.0, time.Now()
		return paced(ctx, pause, int(total/pause), func(int) error {
			owed := time.Since(start).Seconds()*rate*floodExcess/8/float64(packet) + 1
			for sent < owed {
				n := min(segments, max(1, int(owed-sent)))
				if _, err := tx.Write(payload[:n*(packet-headers)]); err != nil &&
					!errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOBUFS) {
					return fmt.Errorf("send: %w", err)
				}
				sent += float64(n)
			}
			return nil
		})
	})
	if err != nil {
		return flooded{}, err
	}
	if !last.After(first) {
		return flooded{}, errors.New("too few packets arrived to time them, look at the link's counters")
	}
	return flooded{first, last, float64(count+lastOverflow-firstOverflow) * float64(packet)}, nil
}

// exchange has send send over a direction, and hands what arrives to receive until all has
// come that is on the way then.
func (p Path) exchange(dir link.Direction, receive receiver, send func(tx *net.UDPConn) error) error {
	rx, tx, err := p.sockets(dir)
	if err != nil {
		return err
	}
	defer rx.Close()
	defer tx.Close()
	received := make(chan error, 1)
	go func() { received <- receiveAll(rx, receive) }()
	err = send(tx)
	p.lastOnTheWay(rx, dir, 300*time.Millisecond)
	return errors.Join(err, <-received)
}

// udpHeaders is the number of bytes of an IP packet before UDP's payload.
func udpHeaders(from Host) int {
	if from.Addr.Is6() {
		return 48
	}
	return 28
}

// paced calls f times times, pause apart, catching up after a delay.
func paced(ctx context.Context, pause time.Duration, times int, f func(int) error) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	start := time.Now()
	for done := 0; done < times; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		for due := min(int(time.Since(start)/pause), times); done < due; done++ {
			if err := f(done); err != nil {
				return err
			}
		}
	}
	return nil
}

// lastOnTheWay bounds how long the receiver still waits. late is for what a busy
// machine adds.
func (p Path) lastOnTheWay(rx *net.UDPConn, dir link.Direction, late time.Duration) {
	s := p.Link.Settings(dir)
	wait := s.Delay + s.Jitter + s.Reorder.Hold + late
	if rate := s.MeanBps(); rate > 0 {
		wait += time.Duration(float64(s.QueueLimitBytes(p.Link.Settings(1-dir).Delay)) * 8e9 / float64(rate))
	}
	_ = rx.SetReadDeadline(time.Now().Add(wait))
}

// sockets opens a receiving socket at the far end of a direction and one
// connected to it at the near end.
func (p Path) sockets(dir link.Direction) (rx, tx *net.UDPConn, err error) {
	from, to := p.ends(dir)
	err = to.Run(func() error {
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			return onSocket(c, func(fd int) error {
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20) // as much as rmem_max allows
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1); err != nil {
					return os.NewSyscallError("set SO_RXQ_OVFL", err)
				}
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
					return os.NewSyscallError("set SO_TIMESTAMPNS", err)
				}
				return reportTOS(fd, to.Addr.Is6())
			})
		}}
		c, err := config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(to.Addr, 0).String())
		if err == nil {
			rx = c.(*net.UDPConn)
		}
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open the receiving socket: %w", err)
	}
	err = from.Run(func() error {
		dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from.Addr, 0))}
		c, err := dialer.Dial("udp", rx.LocalAddr().String())
		if err == nil {
			tx = c.(*net.UDPConn)
		}
		return err
	})
	if err != nil {
		rx.Close()
		return nil, nil, fmt.Errorf("open the sending socket: %w", err)
	}
	return rx, tx, nil
}

// receiver takes a batch of packets, with the time and the count of overflows of the last.
type receiver func(messages []ipv4.Message, at time.Time, overflow uint32) error

// receiveAll hands over batches of packets until the read deadline.
func receiveAll(c *net.UDPConn, f receiver) error {
	const batch = 64
	conn := ipv4.NewPacketConn(c) // batches are the same for IPv6
	messages := make([]ipv4.Message, batch)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, numberedBytes)} // the rest is cut off
		messages[i].OOB = make([]byte, 128)
	}
	for {
		n, err := conn.ReadBatch(messages, 0)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if n == 0 {
			continue
		}
		at, overflow := control(messages[n-1].OOB[:messages[n-1].NN])
		if at.IsZero() {
			return errors.New("receive: the kernel left out the time stamp that was asked for")
		}
		if err := f(messages[:n], at, overflow); err != nil {
			return err
		}
	}
}

// control reads the time stamp and the count of overflows of a message.
func control(oob []byte) (at time.Time, overflow uint32) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return at, 0
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET {
			continue
		}
		switch {
		case m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16:
			at = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		case m.Header.Type == unix.SO_RXQ_OVFL && len(m.Data) >= 4:
			overflow = binary.NativeEndian.Uint32(m.Data)
		}
	}
	return at, overflow
}

func pathMTU(c *net.UDPConn, a netip.Addr) (mtu int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = onSocket(raw, func(fd int) (err error) {
		if a.Is4() {
			mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
		} else {
			mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
		}
		return os.NewSyscallError("read the path's MTU", err)
	})
	return mtu, err
}

func setSegment(c *net.UDPConn, bytes int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return onSocket(raw, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, bytes)
	})
}

func onSocket(c syscall.RawConn, f func(fd int) error) error {
	var inner error
	err := c.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}
