package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"longhaul/bench/peers"
)

const (
	warmUp     = 500 * time.Millisecond // before the counting begins, at most the time of the measurement
	settle     = time.Second            // until an idle relay has tidied up
	answerTime = 30 * time.Second       // for all idle flows to get their reply
)

// trial is one measurement.
type trial struct {
	kind  measure
	load  load
	to    peers.Address  // of the relay, or of the target without one
	relay *peers.Process // nil: none
}

// measure starts a target and a relay and puts them under one kind of load.
func (b *bench) measure(ctx context.Context, c contender, p peers.Program, kind measure) (s sample, err error) {
	// Addresses of its own for each measurement: connections of the one before
	// linger in TIME_WAIT.
	b.begun++
	host := func(n int) string { return fmt.Sprintf("127.78.%d.%d", b.begun%256, n) }
	listen, target := peers.Address{Host: host(1), Port: 6000}, peers.Address{Host: host(2), Port: 6000}
	if kind.many != nil {
		dir := filepath.Join(b.dir, c.Name)
		server, err := startTarget(ctx, target)
		if err != nil {
			return s, err
		}
		defer server.stop()
		return b.measureMany(ctx, c, p, dir, peers.Setup{Listen: listen, Target: target, Threads: b.threads}, kind.many)
	}
	unpin, err := kind.place.pinLoad()
	if err != nil {
		return s, err
	}
	defer unpin()
	if kind.starts || kind.command != nil {
		return b.start(ctx, c, p, kind, peers.Setup{Listen: listen, Target: target, Threads: b.threads})
	}
	server, err := startTarget(ctx, target)
	if err != nil {
		return s, err
	}
	defer server.stop()

	t := trial{kind: kind, load: kind.load, to: target}
	if kind.idle {
		t.load.clients = b.idleFlows
	}
	asked := t.load.clients
	if t.load.clients = c.flows(asked); t.load.clients < asked {
		fmt.Fprintf(b.progress, "\r\x1b[Kcost: %s: %d flows in place of %d: raise the limit of open files (ulimit -n)\n", c.Name, t.load.clients, asked)
	}
	defer t.kill()
	if p.Command != nil {
		setup := peers.Setup{Listen: listen, Target: target, Threads: b.threads, MaxFlows: t.load.clients + 16}
		if err := t.startRelay(ctx, p, filepath.Join(b.dir, c.Name), setup); err != nil {
			return s, err
		}
		if c.Watched {
			for _, port := range []int{peers.MetricsPort, peers.DashboardPort} { // it serves these last
				if err := peers.WaitListening(ctx, peers.Address{Host: listen.Host, Port: port}, nil); err != nil {
					return s, t.explain(err)
				}
			}
			stop := watch(ctx, listen)
			defer func() {
				if failed := stop(); failed != nil && err == nil {
					err = fmt.Errorf("what it shows could not be had: %w", failed)
				}
			}()
		}
	}
	if err := t.first(); err != nil {
		return s, t.explain(err)
	}
	if s, err = t.run(ctx, b.time); err != nil {
		return s, t.explain(err)
	}
	return s, ctx.Err()
}

// startRelay starts the relay where it belongs.
func (t *trial) startRelay(ctx context.Context, p peers.Program, dir string, setup peers.Setup) error {
	if t.kind.threads > 0 {
		setup.Threads = t.kind.threads
	}
	argv, err := p.Command(dir, setup)
	if err != nil {
		return err
	}
	if err := t.kind.place.pinRelay(); err != nil {
		return err
	}
	if t.relay, err = peers.Start(ctx, argv, setup.Listen); err != nil {
		return err
	}
	t.to = setup.Listen
	_, err = t.kind.place.pinLoad()
	return err
}

func (t *trial) kill() {
	if t.relay != nil {
		t.relay.Kill()
	}
}

// explain adds to an error that the relay has ended.
func (t *trial) explain(err error) error {
	if t.relay != nil && t.relay.Gone() {
		return fmt.Errorf("%w; the relay has ended: %v", err, t.relay)
	}
	return err
}

func (t *trial) usage() (u peers.Usage, err error) {
	if t.relay != nil {
		u, err = t.relay.Usage()
	}
	return u, err
}

func (t *trial) cpu() (d time.Duration, err error) {
	if t.relay != nil {
		d, err = t.relay.CPU()
	}
	return d, err
}

// first makes one connection, so that what a relay sets up once counts to none.
func (t *trial) first() error {
	l := t.load
	l.clients, l.once, l.renew, l.reply = 1, true, false, requestSize
	one, err := connect(l, t.to)
	if err != nil {
		return err
	}
	defer one.close()
	return one.untilIdle(answerTime)
}

// run puts the relay under the load, for a time unless the flows are idle.
func (t *trial) run(ctx context.Context, during time.Duration) (s sample, err error) {
	s.flows = t.load.clients
	if t.kind.idle { // what the relay does once, after its start, is no flow's
		if err := wait(ctx, settle); err != nil {
			return s, err
		}
	}
	kernel := socketMemory()
	if s.before, err = t.usage(); err != nil {
		return s, err
	}
	all, err := connect(t.load, t.to)
	if err != nil {
		return s, err
	}
	defer all.close()
	if t.kind.idle {
		err = t.idle(ctx, all)
	} else {
		err = t.count(all, during, &s)
	}
	if err == nil {
		s.after, err = t.usage()
		s.kernel = max(0, socketMemory()-kernel)
	}
	return s, err
}

// idle waits until all flows are idle.
func (t *trial) idle(ctx context.Context, all *clients) error {
	if err := all.untilIdle(answerTime); err != nil {
		return err
	}
	return wait(ctx, settle)
}

// count counts what passes in a time.
func (t *trial) count(all *clients, during time.Duration, s *sample) error {
	if err := all.run(min(warmUp, during)); err != nil {
		return err
	}
	before, err := t.cpu()
	if err != nil {
		return err
	}
	echo, err := t.echo(during)
	if err != nil {
		return err
	}
	all.counted = counted{}
	begun := time.Now()
	err = all.run(during)
	beside, echoErr := echo()
	if err = errors.Join(err, echoErr); err != nil {
		return err
	}
	// On a machine so busy that nothing came in that time, for longer.
	for all.bytes == 0 || t.load.reply != endless && all.requests == 0 {
		if time.Since(begun) > during+answerTime {
			return fmt.Errorf("no reply in %v", time.Since(begun))
		}
		if err := all.run(10 * time.Millisecond); err != nil {
			return err
		}
	}
	s.elapsed = time.Since(begun)
	s.counted = all.counted
	if t.kind.echo {
		s.latency = beside.latency
	}
	after, err := t.cpu()
	s.cpu = after - before
	return err
}

// echo has one more client ask and be answered, for a time, beside the others. The function that it
// returns waits for what that counted.
func (t *trial) echo(during time.Duration) (func() (counted, error), error) {
	if !t.kind.echo {
		return func() (counted, error) { return counted{}, nil }, nil
	}
	one, err := connect(load{clients: 1, reply: requestSize}, t.to)
	if err != nil {
		return nil, err
	}
	done := make(chan error)
	go func() {
		err := one.run(during)
		for end := time.Now().Add(answerTime); err == nil && one.requests == 0; {
			if err = one.run(10 * time.Millisecond); err == nil && time.Now().After(end) {
				err = fmt.Errorf("no reply to the flow beside the others in %v", answerTime)
			}
		}
		done <- err
	}()
	return func() (counted, error) {
		defer one.close()
		err := <-done
		return one.counted, err
	}, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// target is this program as a process that answers.
type target struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func startTarget(ctx context.Context, addr peers.Address) (*target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, serveCommand, addr.String())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &target{cmd, stdin}
	if err := peers.WaitListening(ctx, addr, nil); err != nil {
		t.stop()
		return nil, fmt.Errorf("start the target: %w", err)
	}
	return t, nil
}

func (t *target) stop() {
	t.stdin.Close()
	t.cmd.Wait()
}
