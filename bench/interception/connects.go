//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/stats"
	"longhaul/lab/tcpserver"
)

const (
	connectCase = "connect"
	connectRTT  = 20 * time.Millisecond // between router and target; the client is next to the router
	runConnects = 200                   // of each way in a run

	// mostOfConnect bounds the median with refuse: mirror, over that of direct connects:
	// both take one round trip to the target.
	mostOfConnect = 1.1
)

// Connect is how long clients wait for their connect.
type Connect struct {
	RTTMilliseconds float64       `json:"rtt_ms"`
	Connects        int           `json:"connects"` // of each way in a run
	Ways            []ConnectTime `json:"ways"`
}

// ConnectTime is that of one way: the median and the 99th percentile, over the runs.
type ConnectTime struct {
	Way      string   `json:"way"`
	MedianMS Spread   `json:"median_ms"`
	P99MS    Spread   `json:"p99_ms"`
	Ratio    *float64 `json:"ratio,omitempty"` // of the medians, over that of direct connects
	AtMost   *float64 `json:"at_most,omitempty"`
	OK       *bool    `json:"ok,omitempty"`
}

// connects is a client whose connects take one way.
type connects struct {
	*lab.Stage
	to   netip.AddrPort
	stop func() // of the target
}

func startConnects(ctx context.Context, o Options, way string) (c *connects, err error) {
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

// measureConnects has the ways take turns, a connect each.
func measureConnects(ctx context.Context, o Options) (c Connect, err error) {
	c = Connect{RTTMilliseconds: milliseconds(connectRTT), Connects: runConnects}
	if o.Quick {
		c.Connects /= 10
	}
	ways := []string{wayPlain, wayIntercept, wayMirror}
	clients := make([]*connects, len(ways))
	for i, way := range ways {
		if clients[i], err = startConnects(ctx, o, way); err != nil {
			return c, err
		}
		defer clients[i].close()
		if _, err = clients[i].connect(); err != nil { // neighbours become known
			return c, fmt.Errorf("%s: connect: %w", way, err)
		}
	}
	medians, slowest := make([][]float64, len(ways)), make([][]float64, len(ways))
	itself := func(v float64) float64 { return v }
	for run := range o.Repeat {
		o.Report.Linef("%s, %d of %d", connectCase, run+1, o.Repeat)
		times := make([][]float64, len(ways))
		for range c.Connects {
			for i, way := range ways {
				if err := ctx.Err(); err != nil {
					return c, err
				}
				took, err := clients[i].connect()
				if err != nil {
					return c, fmt.Errorf("%s: connect: %w", way, err)
				}
				times[i] = append(times[i], milliseconds(took))
			}
		}
		for i := range ways {
			medians[i] = append(medians[i], stats.Median(times[i], itself))
			slowest[i] = append(slowest[i], stats.Quantile(times[i], 0.99, itself))
		}
	}
	c.judge(ways, medians, slowest)
	return c, nil
}

// judge compares the ways with the first one, which has no relay.
func (c *Connect) judge(ways []string, medians, slowest [][]float64) {
	for i, way := range ways {
		t := ConnectTime{Way: way, MedianMS: spreadOf(medians[i]), P99MS: spreadOf(slowest[i])}
		if i > 0 {
			ratio := t.MedianMS.Median / c.Ways[0].MedianMS.Median
			t.Ratio = &ratio
		}
		if way == wayMirror {
			atMost, held := mostOfConnect, *t.Ratio <= mostOfConnect
			t.AtMost, t.OK = &atMost, &held
		}
		c.Ways = append(c.Ways, t)
	}
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// held reports whether every bound was kept.
func (c *Connect) held() bool {
	for _, t := range c.Ways {
		if t.OK != nil && !*t.OK {
			return false
		}
	}
	return true
}

func (c *Connect) writeText(w io.Writer, repeat int) error {
	fmt.Fprintf(w, "%s: time of a connect, the target %g ms away\n", connectCase, c.RTTMilliseconds)
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprint(t, "\tway\tmedian, ms\t\t99 %, ms\t\tratio\tbound\n")
	for _, f := range c.Ways {
		mark, ratio, bound := "", "", ""
		if f.Ratio != nil {
			ratio = fmt.Sprintf("%.3f", *f.Ratio)
		}
		if f.OK != nil {
			mark, bound = "NO", fmt.Sprintf("≤ %.2f", *f.AtMost)
			if *f.OK {
				mark = "ok"
			}
		}
		span := func(s Spread) string { return fmt.Sprintf("%.2f-%.2f", s.Min, s.Max) }
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", mark, f.Way, fmt.Sprintf("%.2f", f.MedianMS.Median), span(f.MedianMS),
			fmt.Sprintf("%.2f", f.P99MS.Median), span(f.P99MS), ratio, bound)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nMedians of %d runs of %d connects each, and their range.\n", repeat, c.Connects)
	return err
}
