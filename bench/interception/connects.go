//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit"
	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/tcpserver"
)

const (
	connectRTT  = 20 * time.Millisecond // between router and target; the client is next to the router
	runConnects = 200                   // of each way in a run

	// mostOfConnect bounds the median with refuse: mirror, over that of direct connects:
	// both take one round trip to the target.
	mostOfConnect = 1.1
)

// connects is a client whose connects take one way.
type connects struct {
	*lab.Stage
	to   netip.AddrPort
	stop func() // of the target
}

func startConnects(ctx context.Context, o kit.Options, way string) (c *connects, err error) {
	built, err := lab.Build(lab.OneFarRouter(link.Settings{Delay: connectRTT / 2, MTU: 1500}))
	if err != nil {
		return nil, err
	}
	c = &connects{
		Stage: &lab.Stage{Lab: built, Program: o.Program, Report: o.Report},
		to:    netip.AddrPortFrom(lab.RoutedTarget[0].Addr(), targetPort),
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", way, c.Explain(err))
			c.close()
		}
	}()
	l, err := built.Host("target").ListenTCP(ctx, targetPort)
	if err != nil {
		return c, err
	}
	c.stop = tcpserver.Serve(l, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	switch way {
	case wayIntercept:
		_, err = c.StartInterceptor(ctx, "router", interception())
	case wayMirror:
		_, err = c.StartInterceptor(ctx, "router", interception("refuse: mirror"))
	}
	return c, err
}

// connect connects once and returns how long that took.
func (c *connects) connect() (took time.Duration, err error) {
	err = c.Host("client").Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		began := time.Now()
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(c.to.Port()), Addr: c.to.Addr().As4()})
		took = time.Since(began)
		return err
	})
	return took, err
}

func (c *connects) close() {
	if c.stop != nil {
		c.stop()
	}
	c.Stop()
	_ = c.Close()
}

var connectWays = []string{wayPlain, wayIntercept, wayMirror}

// measureConnects has the ways take turns, a connect each.
func measureConnects(ctx context.Context, o kit.Options, _ int, note func(string, kit.Measured)) (err error) {
	clients := make([]*connects, len(connectWays))
	for i, way := range connectWays {
		if clients[i], err = startConnects(ctx, o, way); err != nil {
			return err
		}
		defer clients[i].close()
		if _, err = clients[i].connect(); err != nil { // neighbours become known
			return fmt.Errorf("%s: connect: %w", way, err)
		}
	}
	times := make([][]float64, len(connectWays))
	for range kit.Pick(o, runConnects, runConnects/10) {
		for i, way := range connectWays {
			if err := ctx.Err(); err != nil {
				return err
			}
			took, err := clients[i].connect()
			if err != nil {
				return fmt.Errorf("%s: connect: %w", way, err)
			}
			times[i] = append(times[i], took.Seconds()*1e3)
		}
	}
	direct := stats.Median(times[0], kit.Itself)
	for i, way := range connectWays {
		median := stats.Median(times[i], kit.Itself)
		note(way, kit.Measured{Name: "median", Unit: "ms", Value: median})
		note(way, kit.Measured{Name: "99th percentile", Unit: "ms", Value: stats.Quantile(times[i], 0.99, kit.Itself)})
		if i > 0 {
			ratio := kit.Measured{Name: "ratio of the medians", Value: median / direct}
			if way == wayMirror {
				ratio.Bound = kit.AtMost(mostOfConnect)
			}
			note(way, ratio)
		}
	}
	return nil
}
