package calibrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"longhaul/lab/link"
)

// tcpSettle is how long a connection runs before it is measured, beside 15 round trips.
var tcpSettle = 2 * time.Second

// TCP fills the link with one connection of the hosts' kernels and compares
// its goodput in the steady state with what full segments with timestamps can
// carry. For its time the queue holds whatever the window allows, loss is off,
// and the hosts' largest TCP windows are four bandwidth-delay products.
func (p Path) TCP(ctx context.Context, dir link.Direction, during time.Duration) (Row, error) {
	ab, ba := p.Link.Settings(link.AToB), p.Link.Settings(link.BToA)
	s := p.Link.Settings(dir)
	if s.RateBps == 0 {
		return Row{}, fmt.Errorf("TCP %v: the rate has no bound, so there is no limit to reach", dir)
	}
	rtt := ab.Delay + ba.Delay
	window := max(int(4*rtt.Seconds()*float64(s.RateBps)/8), 4<<20)
	from, to := p.ends(dir)
	limit := payloadBps(s, from)

	var goodput, cpuPerGB float64
	isolate := func(s *link.Settings) {
		steady(s)
		s.QueueBDP = 0
		s.QueueBytes = 2 * window
	}
	err := p.with(dir, isolate, func() error {
		return withWindow(from, window, func() error {
			return withWindow(to, window, func() (err error) {
				goodput, cpuPerGB, err = p.stream(ctx, from, to, tcpSettle+15*rtt, during)
				return err
			})
		})
	})
	if err != nil {
		return Row{}, fmt.Errorf("TCP %v: %w", dir, err)
	}
	return Row{
		What:  fmt.Sprintf("TCP goodput %v", dir),
		Asked: fmt.Sprintf("≥ %.0f %% of %s", TCPShare*100, formatRate(limit)),
		Got:   fmt.Sprintf("%.2f %% (%.2f CPU s/GB)", goodput/limit*100, cpuPerGB),
		OK:    goodput >= TCPShare*limit,
	}, nil
}

// payloadBps is what full segments with timestamps carry of a rate.
func payloadBps(s link.Settings, from Host) float64 {
	mtu := cmp.Or(s.MTU, link.DefaultMTU)
	headers := 20 + 20 + 12
	if from.Addr.Is6() {
		headers += 20
	}
	return s.CarriesBps(mtu) * float64(mtu-headers) / float64(mtu)
}

// withWindow runs f while the host's TCP may use windows that large.
func withWindow(h Host, bytes int, f func() error) error {
	size := fmt.Sprintf("4096 131072 %d", bytes)
	return withSysctl(h, "tcp_rmem", size, func() error { return withSysctl(h, "tcp_wmem", size, f) })
}

// withSysctl runs f under another net.ipv4 setting of the host.
func withSysctl(h Host, name, value string, f func() error) (err error) {
	file := "/proc/sys/net/ipv4/" + name
	var was []byte
	err = h.Run(func() (err error) {
		if was, err = os.ReadFile(file); err == nil {
			err = os.WriteFile(file, []byte(value), 0)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("set the host's %s: %w", name, err)
	}
	defer func() {
		err = errors.Join(err, h.Run(func() error { return os.WriteFile(file, was, 0) }))
	}()
	return f()
}

// stream sends for the time to settle and then measures. Goodput is in bits
// per second at the receiver.
func (p Path) stream(ctx context.Context, from, to Host, settle, during time.Duration) (goodput, cpuPerGB float64, err error) {
	var listener net.Listener
	err = to.Run(func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		listener, err = config.Listen(ctx, "tcp", netip.AddrPortFrom(to.Addr, 0).String())
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	defer listener.Close()
	var sender net.Conn
	err = from.Run(func() (err error) {
		dialer := net.Dialer{Timeout: 30 * time.Second}
		dialer.SetMultipathTCP(false)
		sender, err = dialer.DialContext(ctx, "tcp", listener.Addr().String())
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	defer sender.Close()
	receiver, err := listener.Accept()
	if err != nil {
		return 0, 0, err
	}
	defer receiver.Close()
	stop := context.AfterFunc(ctx, func() { receiver.Close() })
	defer stop()

	sent := make(chan struct{})
	go func() {
		defer close(sent)
		block := make([]byte, 256<<10)
		for {
			if _, err := sender.Write(block); err != nil {
				return
			}
		}
	}()
	defer func() {
		sender.Close()
		<-sent
	}()
	block := make([]byte, 256<<10)
	var from0, cpu0 time.Duration
	var bytes int64
	start := time.Now()
	for {
		n, err := receiver.Read(block)
		if err != nil {
			return 0, 0, errors.Join(ctx.Err(), fmt.Errorf("receive: %w", err))
		}
		now := time.Since(start)
		switch {
		case now < settle:
		case from0 == 0:
			from0, cpu0 = now, p.Link.CPUTime()
		case now > from0+during:
			bytes += int64(n)
			cpu := (p.Link.CPUTime() - cpu0).Seconds()
			return float64(bytes) * 8 / (now - from0).Seconds(), cpu / float64(bytes) * 1e9, nil
		default:
			bytes += int64(n)
		}
	}
}
