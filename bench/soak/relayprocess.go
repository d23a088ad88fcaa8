package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"longhaul/internal/control"
	"longhaul/internal/lab/hosts"
)

// patience bounds every wait for something that a relay does at once.
const patience = 15 * time.Second

// relayProcess is one `longhaul relay` on a host of the lab.
type relayProcess struct {
	name   string
	host   *hosts.Host
	binary string
	dir    string

	cmd    *exec.Cmd
	log    *logTail
	exited chan struct{}
}

func (r *relayProcess) configFile() string { return filepath.Join(r.dir, r.name+".yaml") }
func (r *relayProcess) socket() string     { return filepath.Join(r.dir, r.name+".sock") }

// start starts the relay with a configuration and waits until it listens.
func (r *relayProcess) start(ctx context.Context, config string) error {
	if err := os.WriteFile(r.configFile(), []byte(config), 0o600); err != nil {
		return err
	}
	r.cmd = exec.Command(r.binary, "relay", "--config", r.configFile())
	r.log = &logTail{}
	r.cmd.Stderr = r.log
	if err := r.host.Start(r.cmd); err != nil {
		return fmt.Errorf("cannot start %s: %w", r.name, err)
	}
	cmd, exited := r.cmd, make(chan struct{})
	r.exited = exited
	go func() {
		_ = cmd.Wait() // how it ended is read from cmd
		close(exited)
	}()
	return r.until(ctx, func() (bool, error) { return r.log.count("relay started") > 0, nil }, "does not start")
}

// until polls a condition that the relay is to bring about.
func (r *relayProcess) until(ctx context.Context, cond func() (bool, error), otherwise string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
			return fmt.Errorf("%s %s: it ended (%v)\n%s", r.name, otherwise, r.cmd.ProcessState, r.log)
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w\n%s", r.name, otherwise, ctx.Err(), r.log)
		}
	}
}

// reload gives the relay another configuration and waits until it is in force.
func (r *relayProcess) reload(ctx context.Context, config string) error {
	if err := os.WriteFile(r.configFile(), []byte(config), 0o600); err != nil {
		return err
	}
	before := r.log.count("msg=reloaded")
	if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	return r.until(ctx, func() (bool, error) {
		if r.log.count("reload failed") > 0 {
			return false, fmt.Errorf("%s refused a configuration\n%s", r.name, r.log)
		}
		return r.log.count("msg=reloaded") > before, nil
	}, "does not reload")
}

// kill ends the relay by SIGKILL.
func (r *relayProcess) kill() error {
	err := r.cmd.Process.Kill()
	<-r.exited
	return err
}

// stop ends the relay by SIGTERM and returns its exit status.
func (r *relayProcess) stop(ctx context.Context) (int, error) {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-r.exited:
		return r.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, errors.Join(fmt.Errorf("%s does not stop: %w\n%s", r.name, ctx.Err(), r.log), r.kill())
	}
}

// status is what `longhaul status --json` says of the things that must not
// pile up.
type status struct {
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
	Tunnels []struct {
		Name       string `json:"name"`
		FlowsTotal int64  `json:"flows_total"`
		BytesUp    int64  `json:"bytes_up"`
		BytesDown  int64  `json:"bytes_down"`
		Refused    int64  `json:"refused_total"`
		Errors     int64  `json:"errors_total"`
	} `json:"tunnels"`
}

func (r *relayProcess) status(ctx context.Context) (status, error) {
	var s status
	body, err := control.Status(ctx, r.socket())
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}

// settled waits until the relay has no flow left and holds no more goroutines
// and descriptors than before, with the same configuration, and returns what
// it holds.
func (r *relayProcess) settled(ctx context.Context, before status, within time.Duration) (status, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	var last status
	for {
		now, err := r.status(ctx)
		if err == nil {
			last = now
			if now.FlowsNow == 0 && now.Process.Goroutines <= before.Process.Goroutines && now.openBeyondPipes() <= before.openBeyondPipes() {
				return now, nil
			}
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return last, fmt.Errorf("%s holds %d flows, %d goroutines (%d before) and %d descriptors besides pipes (%d before)", r.name,
				last.FlowsNow, last.Process.Goroutines, before.Process.Goroutines, last.openBeyondPipes(), before.openBeyondPipes())
		}
	}
}

// openBeyondPipes counts descriptors without the pipes that are kept for
// later, two for each.
func (s status) openBeyondPipes() int { return s.Process.Descriptors - 2*s.PipesOpen }

// logTail keeps the last of a log and counts the lines of interest.
type logTail struct {
	mu     sync.Mutex
	tail   []byte
	counts map[string]int
}

const logTailBytes = 4000

// counted are the texts whose lines are counted.
var counted = []string{"relay started", "msg=reloaded", "reload failed"}

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts == nil {
		l.counts = map[string]int{}
	}
	for _, text := range counted {
		l.counts[text] += bytes.Count(p, []byte(text)) // the relay writes whole lines
	}
	l.tail = append(l.tail, p...)
	if extra := len(l.tail) - logTailBytes; extra > 0 {
		l.tail = l.tail[:copy(l.tail, l.tail[extra:])]
	}
	return len(p), nil
}

func (l *logTail) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[text]
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.tail)
}
