//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/sys/process"
	"longhaul/lab"
	"longhaul/lab/pattern"
	"longhaul/lab/tcpserver"
)

// flow is one flow through a relay on a router.
type flow struct {
	*lab.Stage
	relay *lab.Daemon
	conn  *net.TCPConn
	sent  int64
	stop  func() // of the target
}

const (
	targetPort = 5001
	turnBytes  = 96 << 20
)

// startFlow starts a relay and opens a flow. mostSegments bounds the segments that the
// kernel handles as one packet; 0 leaves its own bound.
func startFlow(ctx context.Context, o kit.Options, way string, mostSegments int) (m meter, err error) {
	built, err := lab.Build(lab.OneRouter())
	if err != nil {
		return nil, err
	}
	f := &flow{Stage: &lab.Stage{Lab: built, Program: o.Program, Report: o.Report}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", way, f.Explain(err))
			_ = f.close() // the error is known
		}
	}()
	if mostSegments > 0 {
		for host, devices := range map[string][]string{"client": {"lan"}, "router": {lab.ToClient, lab.ToTarget}, "target": {"lan"}} {
			for _, device := range devices {
				if err := built.Host(host).MaxSegments(device, mostSegments); err != nil {
					return nil, err
				}
			}
		}
	}
	target := netip.AddrPortFrom(lab.RoutedTarget[0].Addr(), targetPort)
	l, err := built.Host("target").ListenTCP(ctx, targetPort)
	if err != nil {
		return nil, err
	}
	f.stop = tcpserver.Serve(l, acknowledge)
	to := target
	switch way {
	case wayAddressed, wayControl:
		to = netip.AddrPortFrom(lab.RouterOfClient[0].Addr(), lab.RelayPort)
		f.relay, err = f.StartRelay(ctx, "router", to, target)
	case wayIntercept:
		f.relay, err = f.StartInterceptor(ctx, "router", interception())
	case waySource:
		f.relay, err = f.StartInterceptor(ctx, "router", interception("source: relay"))
	}
	if err == nil {
		f.conn, err = built.Host("client").DialTCP(ctx, to, time.Minute)
	}
	return f, err
}

// interception takes connections to the target.
func interception(settings ...string) lab.Interception {
	return lab.Interception{
		Device: lab.ToClient, To: []netip.Prefix{lab.RoutedTarget[0].Masked(), lab.RoutedTarget[1].Masked()},
		Ports: []uint16{targetPort}, Settings: settings,
	}
}

// acknowledge sends a byte for each turn's bytes.
func acknowledge(conn net.Conn) {
	buffer := make([]byte, 256<<10)
	for got := int64(0); ; {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		if (got+int64(n))/turnBytes > got/turnBytes {
			if _, err := conn.Write(buffer[:1]); err != nil {
				return
			}
		}
		got += int64(n)
	}
}

// turn sends a turn's bytes. The time is that of both ends and of the relay.
func (f *flow) turn(ctx context.Context) (cpu time.Duration, amount float64, err error) {
	defer context.AfterFunc(ctx, func() { f.conn.Close() })()
	before, err := f.cpuTime()
	if err != nil {
		return 0, 0, err
	}
	for until := f.sent + turnBytes; f.sent < until; {
		n, err := f.conn.Write(pattern.At(f.sent, min(256<<10, until-f.sent)))
		if err != nil {
			return 0, 0, err
		}
		f.sent += int64(n)
	}
	if _, err := io.ReadFull(f.conn, make([]byte, 1)); err != nil {
		return 0, 0, err
	}
	after, err := f.cpuTime()
	return after - before, turnBytes / 1e9, err
}

func (f *flow) cpuTime() (sum time.Duration, err error) {
	for _, pid := range []int{os.Getpid(), f.relay.PID()} {
		t, err := process.CPUTime(pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

func (f *flow) close() error {
	if f.conn != nil {
		f.conn.Close()
	}
	if f.stop != nil {
		f.stop()
	}
	f.Stop()
	return f.Close()
}
