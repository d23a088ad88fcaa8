package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/watch/archive"
)

// world is a fleet and its database, on the loopback interface of a namespace.
type world struct {
	dir   string
	way   string
	rate  int
	sink  *server
	fleet [processes]*member

	mu      sync.Mutex
	faulty  bool
	since   time.Time     // end of the last fault
	lag     time.Duration // the largest one without a fault
	problem string        // the last one that a relay told of
}

// member is a process of the fleet.
type member struct {
	cmd    *exec.Cmd
	said   *bytes.Buffer // its log; read when it has ended
	last   report
	ended  chan error
	orders orders
}

func newWorld(ctx context.Context, o kit.Options, way string, rate int) (_ *world, err error) {
	w := &world{way: way, rate: rate}
	if w.dir, err = os.MkdirTemp("/run", "records-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if err = errors.Join(os.Chmod(w.dir, 0o755), command(ctx, "ip", "link", "set", "lo", "up")); err != nil {
		return nil, err
	}
	if w.sink, err = newServer(ctx, way, filepath.Join(w.dir, "sink")); err != nil {
		return nil, err
	}
	if err = w.sink.prepare(ctx, o.Program); err != nil {
		return nil, err
	}
	to, err := archive.ParseTarget(w.sink.to)
	if err != nil {
		return nil, err
	}
	for i := range w.fleet {
		if rate == 0 {
			break // no fleet
		}
		w.fleet[i] = &member{orders: orders{Dir: w.dir, First: i * relaysInEach, Rate: rate, To: to}}
		if err = w.start(w.fleet[i]); err != nil {
			return nil, err
		}
	}
	w.since = time.Now()
	return w, nil
}

// start starts a process of the fleet.
func (w *world) start(p *member) error {
	text, err := json.Marshal(p.orders)
	if err != nil {
		return err
	}
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Env = append(os.Environ(), fleetVariable+"="+string(text))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.said = &bytes.Buffer{}
	p.cmd.Stderr = p.said
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.ended = make(chan error, 1)
	go func() {
		for in := json.NewDecoder(out); ; {
			var r report
			if err := in.Decode(&r); err != nil {
				break
			}
			w.heard(p, r)
		}
		_, _ = io.Copy(io.Discard, out)
		p.ended <- p.cmd.Wait()
	}()
	return nil
}

// heard notes a report.
func (w *world) heard(p *member, r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.last = r
	if r.Problem != "" {
		w.problem = r.Problem
	}
	if !w.faulty && time.Since(w.since) > recovery {
		w.lag = max(w.lag, r.Lag)
	}
}

// fault begins or ends one, in which lag does not count.
func (w *world) fault(begins bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faulty, w.since = begins, time.Now()
}

// restart kills a process of the fleet and starts it again after a while.
func (w *world) restart(ctx context.Context, i int, down time.Duration) error {
	p := w.fleet[i]
	_ = p.cmd.Process.Kill()
	<-p.ended
	if err := kit.Pause(ctx, down); err != nil {
		return err
	}
	return w.start(p)
}

// cut has the network drop all packets to and from the database.
func (w *world) cut(ctx context.Context, down time.Duration) error {
	rules := fmt.Sprintf(`table inet cut {
	chain in { type filter hook input priority 0; tcp dport %[1]d drop; tcp sport %[1]d drop; }
}`, w.sink.port)
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = bytes.NewBufferString(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return errors.Join(kit.Pause(ctx, down), command(context.WithoutCancel(ctx), "nft", "delete", "table", "inet", "cut"))
}

// errorf adds what the fleet said.
func (w *world) errorf(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.problem != "" {
		return fmt.Errorf("%w (a relay said: %s)", err, w.problem)
	}
	return err
}

func (w *world) close() {
	for _, p := range w.fleet {
		if p != nil && p.ended != nil {
			_ = p.cmd.Process.Kill()
			<-p.ended
			p.ended <- nil
		}
	}
	if w.sink != nil {
		w.sink.kill()
	}
	os.RemoveAll(w.dir)
}

// command runs a program.
func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
