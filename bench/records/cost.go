package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/sys/process"
	"longhaul/internal/words/stats"
	"longhaul/lab/sandbox"
)

// What a relay carries while its CPU time is measured.
const (
	costRate  = 200       // flows a second
	costBytes = 256 << 10 // of each flow, to the target
	costTime  = 15 * time.Second
	costWarm  = 2 * time.Second
	costPairs = 5 // relays without and with shipping, in turn
	maxCost   = 1.03
)

// cost compares a relay that ships with one that does not, in turn.
func cost(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	if err := sandbox.PrivateRun(); err != nil {
		return err
	}
	w, err := newWorld(ctx, o, way, 0)
	if err != nil {
		return err
	}
	defer w.close()
	target, err := net.Listen("tcp", "127.0.0.1:7000")
	if err != nil {
		return err
	}
	defer target.Close()
	go serve(target)
	var ratios, micros []float64
	for i := range kit.Pick(o, costPairs, 1) {
		var each [2]float64 // µs of CPU a flow, without and with
		for k := range each {
			k := k ^ i&1 // who is first changes
			if each[k], err = w.costOf(ctx, o.Program, k == 1); err != nil {
				return w.errorf(err)
			}
		}
		ratios, micros = append(ratios, each[1]/each[0]), append(micros, each[1]-each[0])
	}
	note(kit.Measured{Name: "CPU of a relay that ships ÷ without", Value: stats.Median(ratios, kit.Itself), Bound: kit.AtMost(maxCost)})
	note(kit.Measured{Name: "CPU of shipping, µs a flow", Value: stats.Median(micros, kit.Itself)})
	return nil
}

// serve reads each connection to its end, and ends it.
func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(io.Discard, c) // a failure is the client's too
		}()
	}
}

// costOf is the CPU time of a relay for each flow, in µs.
func (w *world) costOf(ctx context.Context, program string, ships bool) (float64, error) {
	dir, err := os.MkdirTemp(w.dir, "relay-")
	if err != nil {
		return 0, err
	}
	history := "{file: " + filepath.Join(dir, "history.db")
	if ships {
		history += ", ship: [{to: '" + w.sink.to + "'}]"
	}
	file := filepath.Join(dir, "relay.yaml")
	config := fmt.Sprintf("tunnels:\n  - {name: cost, listen: 127.0.0.1:6000, forward: 127.0.0.1:7000}\nhistory: %s}\ncontrol_socket: %s\n",
		history, filepath.Join(dir, "control.sock"))
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return 0, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, program, "relay", "--config", file)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if err := w.flows(ctx, costWarm, true); err != nil {
		said, _ := os.ReadFile(log.Name())
		return 0, fmt.Errorf("%w: %s", err, said)
	}
	before, err := process.CPUTime(cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	if err := w.flows(ctx, costTime, false); err != nil {
		return 0, err
	}
	// The last second's records are shipped too.
	if err := kit.Pause(ctx, 2*time.Second); err != nil {
		return 0, err
	}
	after, err := process.CPUTime(cmd.Process.Pid)
	return float64((after - before).Microseconds()) / (costTime.Seconds() * costRate), err
}

// flows runs flows through the relay at a steady rate. While the relay starts, they may fail.
func (w *world) flows(ctx context.Context, length time.Duration, starting bool) error {
	var failed atomic.Int64
	var all sync.WaitGroup
	defer all.Wait()
	payload := make([]byte, costBytes)
	tick := time.NewTicker(time.Second / costRate)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < length; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		all.Go(func() {
			if err := oneFlow(payload); err != nil {
				failed.Add(1)
			}
		})
	}
	all.Wait()
	if n := failed.Load(); n > 0 && !starting {
		return fmt.Errorf("%d flows failed", n)
	}
	return nil
}

func oneFlow(payload []byte) error {
	c, err := net.Dial("tcp", "127.0.0.1:6000")
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write(payload)
	if err == nil {
		err = c.(*net.TCPConn).CloseWrite()
	}
	_, readErr := io.Copy(io.Discard, c)
	return errors.Join(err, readErr)
}
