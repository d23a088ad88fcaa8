// Package relays runs real longhaul relays on the hosts of a lab.
package relays

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/run/control"
	"longhaul/lab/hosts"
)

// Patience bounds every wait for an action that a relay takes at once.
const Patience = time.Minute

// Process is one `longhaul relay` on a host of the lab, with its successors from
// upgrades.
type Process struct {
	Name    string
	Host    *hosts.Host
	Program string   // the longhaul binary
	Dir     string   // of its configuration and its control socket
	Env     []string // NAME=VALUE, in addition to this process's environment

	// Line, unless nil, is called with every line of the log.
	Line func(string)

	cmd       *exec.Cmd
	log       *log
	exited    chan struct{} // closed when all processes have ended: all write to the log
	followers []*follower
}

func (r *Process) configFile() string { return filepath.Join(r.Dir, r.Name+".yaml") }

// Socket returns the control socket, which the relay's configuration must name.
func (r *Process) Socket() string { return filepath.Join(r.Dir, r.Name+".sock") }

// PID returns the PID of the newest process, 0 before the start.
func (r *Process) PID() int {
	if p := r.newest(); p != nil {
		return p.Pid
	}
	return 0
}

func (r *Process) newest() *os.Process {
	if n := len(r.followers); n > 0 {
		return r.followers[n-1].process
	}
	if r.cmd == nil {
		return nil
	}
	return r.cmd.Process
}

// Start starts the relay with a configuration and waits until it listens.
func (r *Process) Start(ctx context.Context, config string) error {
	if err := os.WriteFile(r.configFile(), []byte(config), 0o600); err != nil {
		return err
	}
	r.cmd = exec.Command(r.Program, "relay", "--config", r.configFile())
	r.cmd.Env = append(os.Environ(), r.Env...)
	r.log = &log{line: r.Line}
	r.cmd.Stderr = r.log
	if err := r.Host.Start(r.cmd); err != nil {
		return fmt.Errorf("start %s: %w", r.Name, err)
	}
	cmd, exited := r.cmd, make(chan struct{})
	r.exited, r.followers = exited, nil
	go func() {
		_ = cmd.Wait() // cmd has the outcome
		close(exited)
	}()
	return r.until(ctx, func() (bool, error) { return r.log.count(logStarted) > 0, nil }, "does not start")
}

// until polls a condition that the relay should fulfil.
func (r *Process) until(ctx context.Context, cond func() (bool, error), otherwise string) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		ok, err := cond()
		if ok || err != nil {
			return err
		}
		select {
		case <-poll.C:
		case <-r.exited:
			return fmt.Errorf("%s %s: it ended (%v)\n%s", r.Name, otherwise, r.cmd.ProcessState, r.log)
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w\n%s", r.Name, otherwise, ctx.Err(), r.log)
		}
	}
}

// Reload writes another configuration and waits until the relay has it in force.
func (r *Process) Reload(ctx context.Context, config string) error {
	if err := os.WriteFile(r.configFile(), []byte(config), 0o600); err != nil {
		return err
	}
	before := r.log.count(logReloaded)
	if err := r.newest().Signal(syscall.SIGHUP); err != nil {
		return err
	}
	return r.until(ctx, func() (bool, error) {
		if r.log.count(logReloadFailed) > 0 {
			return false, fmt.Errorf("%s refused a configuration\n%s", r.Name, r.log)
		}
		return r.log.count(logReloaded) > before, nil
	}, "does not reload")
}

// Drain takes a tunnel or hop out of service, by name.
func (r *Process) Drain(ctx context.Context, name string) error { return r.tell(ctx, "drain", name) }

// Resume undoes Drain.
func (r *Process) Resume(ctx context.Context, name string) error { return r.tell(ctx, "resume", name) }

func (r *Process) tell(ctx context.Context, verb, name string) error {
	if _, err := control.Do(ctx, r.Socket(), verb, url.Values{"name": {name}}); err != nil {
		return fmt.Errorf("%s %s of %s: %w", verb, name, r.Name, err)
	}
	return nil
}

// Kill ends the relay and all of its older processes by SIGKILL.
func (r *Process) Kill() error {
	err := r.newest().Kill()
	_ = r.cmd.Process.Kill() // it may have ended
	for _, f := range r.followers {
		_ = f.process.Kill()
	}
	<-r.exited
	return err
}

// Running reports whether the relay was started and has not ended.
func (r *Process) Running() bool {
	if r.exited == nil {
		return false
	}
	select {
	case <-r.exited:
		return false
	default:
		return true
	}
}

// Log returns the end of the relay's log.
func (r *Process) Log() string {
	if r.log == nil {
		return ""
	}
	return r.log.String()
}

// Stop ends the relay by SIGTERM and returns its exit status. Its older
// processes end with it.
func (r *Process) Stop(ctx context.Context) (int, error) {
	if err := r.newest().Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	select {
	case <-r.exited:
		if n := len(r.followers); n > 0 {
			<-r.followers[n-1].ended
			return r.followers[n-1].state.ExitCode(), nil
		}
		return r.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, errors.Join(fmt.Errorf("%s does not stop: %w\n%s", r.Name, ctx.Err(), r.log), r.Kill())
	}
}

// Status is the part of `longhaul status --json` with resources that must not
// accumulate.
type Status struct {
	Process struct {
		Goroutines    int   `json:"goroutines"`
		Threads       int   `json:"threads"`
		Descriptors   int   `json:"descriptors"`
		ResidentBytes int64 `json:"resident_bytes"`
	} `json:"process"`
	PipesOpen int   `json:"pipes_open"`
	FlowsNow  int64 `json:"flows_now"`
	Memory    struct {
		UsedBytes int64 `json:"used_bytes"`
	} `json:"memory"`
	Tunnels []TunnelStatus `json:"tunnels"`
	Pairs   *flow.Pairs    `json:"pairs"`
	Older   []struct {
		ControlSocket string `json:"control_socket"`
	} `json:"older_processes"` // that still have flows
}

// TunnelStatus is a tunnel's part of Status.
type TunnelStatus struct {
	Name         string `json:"name"`
	State        string `json:"state"`
	FlowsNow     int64  `json:"flows_now"`
	FlowsTotal   int64  `json:"flows_total"`
	BytesUp      int64  `json:"bytes_up"`
	BytesDown    int64  `json:"bytes_down"`
	Refused      int64  `json:"refused_total"`
	Errors       int64  `json:"errors_total"`
	AcceptQueues []struct {
		Waiting int64 `json:"waiting"`
	} `json:"accept_queues"`
	Hops    []flow.Hop    `json:"hops"`
	Service *flow.Service `json:"service"`
}

// Waiting counts the connections that wait to be accepted.
func (t TunnelStatus) Waiting() (n int64) {
	for _, q := range t.AcceptQueues {
		n += q.Waiting
	}
	return n
}

// FlowsTotal returns the number of a tunnel's flows since its start, -1 without such
// a tunnel.
func (s Status) FlowsTotal(tunnel string) int64 {
	for _, t := range s.Tunnels {
		if t.Name == tunnel {
			return t.FlowsTotal
		}
	}
	return -1
}

// Status returns that of the newest process.
func (r *Process) Status(ctx context.Context) (Status, error) { return statusAt(ctx, r.Socket()) }

// StatusOfAll returns that of the newest process, then those of its predecessors that still
// have flows.
func (r *Process) StatusOfAll(ctx context.Context) ([]Status, error) {
	newest, err := r.Status(ctx)
	all := []Status{newest}
	for _, older := range newest.Older {
		s, olderErr := statusAt(ctx, older.ControlSocket)
		if errors.Is(olderErr, control.ErrNotRunning) {
			continue // it has ended since
		}
		all, err = append(all, s), errors.Join(err, olderErr)
	}
	return all, err
}

func statusAt(ctx context.Context, socket string) (s Status, err error) {
	body, err := control.Status(ctx, socket)
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}

// Settled waits until the relay has no flow and no more goroutines and descriptors
// than before, with the same configuration. It returns the last status.
func (r *Process) Settled(ctx context.Context, before Status, within time.Duration) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	allowed := before.OpenBeyondPipes()
	if len(r.followers) > 0 {
		allowed++ // it has its own descriptor of the log
	}
	var last Status
	for {
		now, err := r.Status(ctx)
		if err == nil {
			last = now
			if now.FlowsNow == 0 && now.Process.Goroutines <= before.Process.Goroutines && now.OpenBeyondPipes() <= allowed {
				return now, nil
			}
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return last, fmt.Errorf("%s holds %d flows, %d goroutines (%d before) and %d descriptors besides pipes (%d before)", r.Name,
				last.FlowsNow, last.Process.Goroutines, before.Process.Goroutines, last.OpenBeyondPipes(), allowed)
		}
	}
}

// OpenBeyondPipes counts descriptors without those of spare pipes, two for each.
func (s Status) OpenBeyondPipes() int { return s.Process.Descriptors - 2*s.PipesOpen }

// log keeps the end of a relay's log and counts some lines.
type log struct {
	mu      sync.Mutex
	line    func(string)
	partial []byte
	tail    []byte
	counts  map[string]int
}

const logTailBytes = 4000

// The texts of the counted lines.
const (
	logStarted      = "relay started"
	logReloaded     = "msg=reloaded"
	logReloadFailed = "reload failed"
)

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	for {
		line, rest, whole := bytes.Cut(l.partial, []byte{'\n'})
		if !whole {
			break
		}
		l.take(string(line))
		l.partial = append(l.partial[:0], rest...)
	}
	l.tail = append(l.tail, p...)
	if extra := len(l.tail) - logTailBytes; extra > 0 {
		l.tail = l.tail[:copy(l.tail, l.tail[extra:])]
	}
	return len(p), nil
}

func (l *log) take(line string) {
	if l.counts == nil {
		l.counts = map[string]int{}
	}
	for _, text := range []string{logStarted, logReloaded, logReloadFailed} {
		if strings.Contains(line, text) {
			l.counts[text]++
		}
	}
	if l.line != nil {
		l.line(line)
	}
}

func (l *log) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[text]
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.tail)
}
