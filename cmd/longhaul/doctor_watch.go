//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/kernel"
	"longhaul/internal/pathmtu"
	proc "longhaul/internal/process"
	"longhaul/internal/remedy"
	"longhaul/internal/tcpinfo"
)

// sampleEvery is short against the connections that come and go within a
// second, and long against what a sample costs.
const sampleEvery = 50 * time.Millisecond

// watch observes connections that are there.
func (f *doctorFlags) watch(ctx context.Context, env *env) (doctor.Observation, error) {
	local, err := endpoint("local", f.local)
	if err != nil {
		return doctor.Observation{}, err
	}
	remote, err := endpoint("remote", f.remote)
	if err != nil {
		return doctor.Observation{}, err
	}
	if f.during < time.Second {
		return doctor.Observation{}, usageError(fmt.Errorf("--for %v is too short: use 1s or more", f.during))
	}
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		return doctor.Observation{}, err
	}
	defer diag.Close()
	wanted, err := f.wanted(local, remote)
	if err != nil {
		return doctor.Observation{}, err
	}
	busy := &busyThreads{}
	progressNote(env, "watching connections %s for %v", f.what(), f.during)
	watch := doctor.Watch{
		Wanted: wanted, For: f.during, Every: sampleEvery, CPU: busy.of,
		Each: func(visit func(*tcpinfo.Connection)) error { return diag.Each(withData, visit) },
	}
	o, err := doctor.Observe(ctx, watch)
	switch {
	case errors.Is(err, doctor.ErrNothingSeen):
		return o, remedy.New(fmt.Errorf("there was no connection %s in %v", f.what(), f.during), "see longhaul top --once for those there are")
	case err != nil:
		return o, err
	}
	if owner, ok := busy.owners.Of(busy.inode); ok {
		o.Program = owner.Command
	}
	if !f.noProbe {
		last := &o.Samples[len(o.Samples)-1].Info
		o.Path, err = probePath(ctx, o.Local.Addr(), o.Remote.Addr(), last.RTT)
		if err != nil {
			note(env, err)
		}
		if last.State == tcpinfo.Established && last.Backoff > 0 {
			o.Path.Answers = answers(ctx, o.Remote)
		}
	}
	if f.test {
		progressNote(env, "trying what the path carries")
		own := func() (bytes, segments float64) {
			c, err := diag.Get(o.Local, o.Remote)
			if err != nil {
				return 0, 0
			}
			return float64(c.Info.Delivered) * float64(c.Info.SndMSS), float64(c.Info.Delivered)
		}
		if err := f.try(ctx, &o, trial{server: f.testServer(o.Remote.Addr().String()), token: f.token, own: own}); err != nil {
			return o, err
		}
	}
	return o, nil
}

// withData are the states in which a connection may have data under way.
var withData = tcpinfo.States(tcpinfo.Established, tcpinfo.FinWait1, tcpinfo.CloseWait, tcpinfo.LastAck, tcpinfo.Closing)

// what names the connections that were asked for.
func (f *doctorFlags) what() string {
	text := ""
	if f.local != "" {
		text += "from " + f.local + " "
	}
	if f.remote != "" {
		text += "to " + f.remote + " "
	}
	if f.pid != 0 {
		text += fmt.Sprintf("of process %d ", f.pid)
	}
	return text[:len(text)-1]
}

// wanted picks the connections to watch.
func (f *doctorFlags) wanted(local, remote netip.AddrPort) (func(*tcpinfo.Connection) bool, error) {
	between := doctor.Between(local, remote)
	if f.pid == 0 {
		return between, nil
	}
	if _, err := proc.Sockets(f.pid); err != nil {
		return nil, remedy.New(fmt.Errorf("process %d: %w", f.pid, err), "run it as root to look at the processes of others")
	}
	// The process may open others meanwhile.
	var sockets map[uint32]bool
	var at time.Time
	return func(c *tcpinfo.Connection) bool {
		if !between(c) {
			return false
		}
		if time.Since(at) > sampleEvery {
			at = time.Now()
			if now, err := proc.Sockets(f.pid); err == nil {
				sockets = now
			}
		}
		return sockets[c.Inode]
	}, nil
}

// busyThreads tells how busy the program is that has a socket.
type busyThreads struct {
	owners proc.Owners
	inode  uint32
	before map[int]time.Duration
	pid    int
}

// of is how long the busiest thread of the connection's program has been running
// since it was first asked, or -1.
func (b *busyThreads) of(c *tcpinfo.Connection) time.Duration {
	if b.pid == 0 {
		owner, ok := b.owners.Of(c.Inode)
		if !ok {
			if _, err := b.owners.Refresh(time.Now()); err != nil {
				return -1
			}
			if owner, ok = b.owners.Of(c.Inode); !ok {
				return -1
			}
		}
		b.pid, b.inode = owner.PID, c.Inode
	}
	now, err := proc.Threads(b.pid)
	if err != nil {
		return -1
	}
	if b.before == nil {
		b.before = now
	}
	return proc.Busiest(b.before, now)
}

// probePath finds out what packets get from this host to the far one, and back.
// The round trip time, if it is known, says how long to wait for answers.
func probePath(ctx context.Context, here, far netip.Addr, rtt time.Duration) (doctor.Path, error) {
	var path doctor.Path
	device, err := deviceMTU(here)
	if err != nil {
		return path, err
	}
	device = min(device, 65535) // the largest packet there is, which a loopback device exceeds
	path.DeviceMTU = device
	patience := time.Second
	if rtt > 0 {
		patience = min(patience, max(300*time.Millisecond, 3*rtt))
	}
	options := pathmtu.Options{Tries: 3, Wait: patience}
	forward, err := pathmtu.Toward(ctx, far, device, options)
	var unsupported *kernel.ErrUnsupported
	if errors.As(err, &unsupported) {
		return path, fmt.Errorf("cannot find out what packets the path carries: it takes %s", unsupported.Needs)
	}
	if err != nil {
		return path, err
	}
	path.MTU = carried(forward, device)
	if forward.Verdict == pathmtu.Silent {
		return path, nil
	}
	back, err := pathmtu.From(ctx, far, device, options)
	if err != nil {
		return path, err
	}
	path.ReverseMTU = carried(back, device)
	return path, nil
}

// carried is the largest packet that a probe says gets through, 0 if unknown.
func carried(r pathmtu.Result, size int) int {
	switch r.Verdict {
	case pathmtu.Carries:
		return size
	case pathmtu.TooBig:
		return r.MTU
	}
	return 0
}

// answers says whether a host answers a SYN: small packets get through then.
func answers(ctx context.Context, to netip.AddrPort) bool {
	dialer := net.Dialer{Timeout: 2 * time.Second}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// deviceMTU is that of the device with an address of this host.
func deviceMTU(local netip.Addr) (int, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	for _, device := range devices {
		addresses, err := device.Addrs()
		if err != nil {
			continue
		}
		for _, address := range addresses {
			if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Unmap() == local {
				return device.MTU, nil
			}
		}
	}
	return 0, fmt.Errorf("no device of this host has the address %s", local)
}
