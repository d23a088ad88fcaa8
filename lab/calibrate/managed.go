package calibrate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"longhaul/internal/words/stats"
	"longhaul/lab/link"
)

// Managed queues are measured on a slow and short path, whatever the conditions: there
// TCP finds its balance with them in seconds, and no algorithm of the host's is to
// blame for a queue that runs empty.
const (
	managedBps     = 20_000_000
	managedDelay   = 10 * time.Millisecond
	managedQueue   = 1 << 20
	managedSenders = 4
	managedUsed    = 0.95 // least share of the rate that they use
)

// managedSettle and managedDuring are how long TCP runs before its queue is looked at,
// and while it is.
var managedSettle, managedDuring = 8 * time.Second, 8 * time.Second

// queueLook is the time between two looks at the queue, and standingTime the time over
// which the least wait is the standing queue: CoDel's interval.
const (
	queueLook    = 5 * time.Millisecond
	standingTime = 100 * time.Millisecond
)

// onManagedPath runs f on the path of managed queues, with the AQM of a direction. s is
// the direction's.
func (p Path) onManagedPath(dir link.Direction, f func(s link.Settings) error) error {
	aqm := p.Link.Settings(dir).AQM
	short := func(s *link.Settings) {
		noBottleneck(s)
		steady(s)
		s.Delay = managedDelay
	}
	return p.withBoth(short, func() error {
		managed := func(s *link.Settings) { s.RateBps, s.QueueBytes, s.AQM = managedBps, managedQueue, aqm }
		return p.with(dir, managed, func() error { return f(p.Link.Settings(dir)) })
	})
}

// load fills a direction with TCP, and returns the goodput of each connection and the
// waits that a packet had ahead of it: the least of each standingTime, and all in the
// median.
func (p Path) load(ctx context.Context, dir link.Direction, senders int) (goodputs []float64, standing, all time.Duration, err error) {
	var waits []time.Duration
	from, to := p.ends(dir)
	goodputs = make([]float64, senders)
	looking, stop := context.WithCancel(ctx)
	defer stop()
	var looked sync.WaitGroup
	looked.Go(func() {
		rate := float64(p.Link.Settings(dir).RateBps)
		ticker := time.NewTicker(queueLook)
		defer ticker.Stop()
		for begin := time.Now(); ; {
			select {
			case <-looking.Done():
				return
			case <-ticker.C:
			}
			if time.Since(begin) > managedSettle {
				waits = append(waits, time.Duration(float64(p.Link.Counters(dir).QueuedBytes)*8e9/rate))
			}
		}
	})
	err = together(senders, func(i int) (err error) {
		goodputs[i], _, err = p.stream(ctx, from, to, managedSettle, managedDuring)
		return err
	})
	stop()
	looked.Wait()
	if err == nil && len(waits) == 0 {
		err = errors.New("nobody looked at the queue")
	}
	if err != nil {
		return goodputs, 0, 0, err
	}
	var least []time.Duration
	for some := range slices.Chunk(waits, int(standingTime/queueLook)) {
		least = append(least, slices.Min(some))
	}
	return goodputs, stats.At(slices.Sorted(slices.Values(least)), 0.5), stats.At(slices.Sorted(slices.Values(waits)), 0.5), nil
}

func total(values []float64) (all float64) {
	for _, v := range values {
		all += v
	}
	return all
}

// Wait fills a managed queue with four TCP connections and looks at its delay. CoDel
// controls the queue that stands for an interval, and holds its target within a factor
// of 2: its drops become more frequent only slowly. PIE controls the delay itself, and
// its median is within a factor of 1.5.
func (p Path) Wait(ctx context.Context, dir link.Direction) (Row, error) {
	aqm := p.Link.Settings(dir).AQM
	factor := 2.0
	if aqm.Algorithm == link.PIE {
		factor = 1.5
	}
	var standing, all time.Duration
	var used float64
	err := p.onManagedPath(dir, func(s link.Settings) (err error) {
		from, _ := p.ends(dir)
		var goodputs []float64
		goodputs, standing, all, err = p.load(ctx, dir, managedSenders)
		used = total(goodputs) / payloadBps(s, from)
		return err
	})
	if err != nil {
		return Row{}, fmt.Errorf("queue with %v %v: %w", aqm.Algorithm, dir, err)
	}
	held := standing
	if aqm.Algorithm == link.PIE {
		held = all
	}
	target := aqm.TargetOrDefault()
	return Row{
		What:  fmt.Sprintf("queue with %v %v", aqm.Algorithm, dir),
		Asked: fmt.Sprintf("%v × %.2f to %g, ≥ %.0f %% used", target, 1/factor, factor, managedUsed*100),
		Got:   fmt.Sprintf("%.1f ms standing, %.1f ms in the median, %.1f %%", standing.Seconds()*1e3, all.Seconds()*1e3, used*100),
		OK:    held.Seconds() >= target.Seconds()/factor && held.Seconds() <= target.Seconds()*factor && used >= managedUsed,
	}, nil
}

// Isolation sends a flood beside one TCP connection through FQ-CoDel. Each gets half.
func (p Path) Isolation(ctx context.Context, dir link.Direction) (Row, error) {
	const tolerance = 0.05
	var share float64
	err := p.onManagedPath(dir, func(s link.Settings) error {
		flooding, stop := context.WithCancel(ctx)
		defer stop()
		flood := make(chan error, 1)
		go func() {
			_, err := p.floodFor(flooding, dir, managedBps, managedSettle+managedDuring+time.Minute)
			flood <- err
		}()
		goodputs, _, _, err := p.load(ctx, dir, 1)
		stop()
		if floodErr := <-flood; !errors.Is(floodErr, context.Canceled) {
			err = errors.Join(err, floodErr)
		}
		from, _ := p.ends(dir)
		share = total(goodputs) / payloadBps(s, from)
		return err
	})
	if err != nil {
		return Row{}, fmt.Errorf("isolation %v: %w", dir, err)
	}
	return Row{
		What:  fmt.Sprintf("TCP beside a flood %v", dir),
		Asked: fmt.Sprintf("50 %% ± %.0f %%", tolerance*100),
		Got:   fmt.Sprintf("%.1f %%", share*100),
		OK:    share >= 0.5-tolerance && share <= 0.5+tolerance,
	}, nil
}

// Marks fills a managed queue with TCP that uses ECN. Packets are marked, and none of
// the connections' is dropped.
func (p Path) Marks(ctx context.Context, dir link.Direction) (Row, error) {
	from, to := p.ends(dir)
	var marked, dropped uint64
	err := p.onManagedPath(dir, func(link.Settings) error {
		const request = "1"
		return withSysctl(from, "tcp_ecn", request, func() error {
			return withSysctl(to, "tcp_ecn", request, func() error {
				before := p.Link.Counters(dir)
				_, _, _, err := p.load(ctx, dir, managedSenders)
				c := p.Link.Counters(dir)
				marked, dropped = c.Marked-before.Marked, c.AQMDrops-before.AQMDrops
				return err
			})
		})
	})
	if err != nil {
		return Row{}, fmt.Errorf("marks %v: %w", dir, err)
	}
	return Row{
		What:  fmt.Sprintf("marks of TCP with ECN %v", dir),
		Asked: "some, < 1 % of them drops",
		Got:   fmt.Sprintf("%d, %d drops", marked, dropped),
		OK:    marked > 0 && dropped*100 < marked,
	}, nil
}

// MarkAbove sends bursts into an empty bottleneck whose rate lets the second half of
// each wait longer than the threshold. The receiver counts the marks.
func (p Path) MarkAbove(ctx context.Context, dir link.Direction) (Row, error) {
	const burst, bursts, bytes = 40, 50, 1000
	threshold := p.Link.Settings(dir).MarkAbove
	// Packet number burst/2, from 0, is the first to wait long enough, by half the time
	// of a packet.
	perPacket := time.Duration(float64(threshold) / (burst/2 - 0.5))
	rate := min(int64(bytes*8e9/float64(perPacket)), 10_000_000_000)
	var marked, arrived int
	isolate := func(s *link.Settings) {
		noBottleneck(s)
		steady(s)
		s.RateBps, s.QueueBytes, s.MarkAbove = rate, 4*burst*bytes, threshold
	}
	receive := func(messages []ipv4.Message, _ time.Time, _ uint32) error {
		for i := range messages {
			arrived++
			if tos(messages[i].OOB[:messages[i].NN])&3 == 3 {
				marked++
			}
		}
		return nil
	}
	from, _ := p.ends(dir)
	size := bytes - udpHeaders(from)
	payload := make([]byte, burst*size)
	err := p.with(dir, isolate, func() error {
		return p.exchange(dir, receive, func(tx *net.UDPConn) error {
			if err := capableOfECN(tx, from.Addr.Is6()); err != nil {
				return err
			}
			// The packets of one write come at once.
			if err := setSegment(tx, size); err != nil {
				return fmt.Errorf("have the kernel cut a burst into packets: %w", err)
			}
			// No burst catches up: it would wait behind the one before.
			pause := time.NewTimer(0)
			defer pause.Stop()
			for range bursts {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-pause.C:
				}
				if _, err := tx.Write(payload); err != nil {
					return fmt.Errorf("send: %w", err)
				}
				pause.Reset(3*burst*perPacket + 2*time.Millisecond)
			}
			return nil
		})
	})
	if err != nil {
		return Row{}, fmt.Errorf("marks above %v %v: %w", threshold, dir, err)
	}
	// The packets of a burst take their time to come: one or two wait less.
	const want, tolerance = 0.5, 0.05
	share := float64(marked) / float64(max(arrived, 1))
	return Row{
		What:  fmt.Sprintf("marks above %v %v", threshold, dir),
		Asked: fmt.Sprintf("%.0f %% ± %.0f %%", want*100, tolerance*100),
		Got:   fmt.Sprintf("%.1f %% of %d", share*100, arrived),
		OK:    share >= want-tolerance && share <= want+tolerance,
	}, nil
}

// capableOfECN makes a socket send packets of an ECN-capable transport.
func capableOfECN(c *net.UDPConn, v6 bool) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return onSocket(raw, func(fd int) error {
		const codepoint = 0b10 // RFC 3168, section 5
		if v6 {
			return os.NewSyscallError("set IPV6_TCLASS", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, codepoint))
		}
		return os.NewSyscallError("set IP_TOS", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, codepoint))
	})
}

// reportTOS makes a socket report the field that has the bits of ECN.
func reportTOS(fd int, v6 bool) error {
	if v6 {
		return os.NewSyscallError("set IPV6_RECVTCLASS", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1))
	}
	return os.NewSyscallError("set IP_RECVTOS", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1))
}

// tos reads the type of service or traffic class of a message.
func tos(oob []byte) byte {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TOS && len(m.Data) > 0:
			return m.Data[0]
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_TCLASS && len(m.Data) >= 4:
			return byte(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}
