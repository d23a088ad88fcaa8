package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/control"
)

// olderProcess is a process that this one has followed and that still has flows.
type olderProcess struct {
	PID           int    `json:"pid"`
	ControlSocket string `json:"control_socket"`
}

// OlderProcess is what status says of one. What it did not answer is null.
type OlderProcess struct {
	olderProcess
	Version     string   `json:"version,omitempty"`
	ReplacedFor *float64 `json:"replaced_seconds"` // how long ago
	FlowsNow    *int64   `json:"flows_now"`
	SecondsLeft *float64 `json:"seconds_left,omitempty"` // until flows are reset
	counts      flowCounts
}

// summary is what an older process answers to the one that followed it.
type summary struct {
	Version     string     `json:"version"`
	ReplacedFor float64    `json:"replaced_seconds"`
	FlowsNow    int64      `json:"flows_now"`
	SecondsLeft *float64   `json:"seconds_left,omitempty"`
	Flows       flowCounts `json:"flows"`
}

// olderPatience is how long an older process may take to say how it is.
const olderPatience = time.Second

// olderProcesses are the older processes.
type olderProcesses struct {
	mu  sync.Mutex
	all []olderProcess
}

// living returns those that are still there, the oldest first.
func (e *olderProcesses) living() []olderProcess {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(one olderProcess) bool { return !one.exists() })
	return slices.Clone(e.all)
}

// forget drops one that does not answer because it has ended, and removes what
// a violent end left of it.
func (e *olderProcesses) forget(gone olderProcess) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(one olderProcess) bool { return one == gone })
	_ = os.Remove(gone.ControlSocket)
}

// exists says whether the process is there. Its socket goes with it, and its
// number may be another's by now: both have to be there.
func (e olderProcess) exists() bool {
	if _, err := os.Lstat(e.ControlSocket); errors.Is(err, os.ErrNotExist) {
		return false
	}
	return !errors.Is(unix.Kill(e.PID, 0), unix.ESRCH)
}

// ask asks all of them how they are, at the same time.
func (e *olderProcesses) ask(ctx context.Context) []OlderProcess {
	ctx, cancel := context.WithTimeout(ctx, olderPatience)
	defer cancel()
	all := e.living()
	facts := make([]OlderProcess, len(all))
	var asking sync.WaitGroup
	for i, one := range all {
		asking.Go(func() {
			facts[i] = OlderProcess{olderProcess: one}
			var s summary
			body, err := control.Do(ctx, one.ControlSocket, "summary", nil)
			if err == nil {
				err = json.Unmarshal(body, &s)
			}
			switch {
			case errors.Is(err, control.ErrNotRunning):
				e.forget(one)
				facts[i].PID = 0
				return
			case err != nil:
				return // it is shown with what is known
			}
			facts[i].Version, facts[i].SecondsLeft, facts[i].counts = s.Version, s.SecondsLeft, s.Flows
			facts[i].ReplacedFor, facts[i].FlowsNow = &s.ReplacedFor, &s.FlowsNow
		})
	}
	asking.Wait()
	return slices.DeleteFunc(facts, func(f OlderProcess) bool { return f.PID == 0 || f.FlowsNow == nil && !f.exists() })
}

// finish has all of them let their flows end within a time, negative for as
// long as they need, and returns what had not ended.
func (e *olderProcesses) finish(ctx context.Context, within time.Duration) (left Leftovers, err error) {
	var asking sync.WaitGroup
	var mu sync.Mutex
	for _, one := range e.living() {
		asking.Go(func() {
			n, err2 := one.finish(ctx, within)
			mu.Lock()
			defer mu.Unlock()
			left, err = left.and(n), errors.Join(err, err2)
		})
	}
	asking.Wait()
	return left, err
}

func (e olderProcess) finish(ctx context.Context, within time.Duration) (left Leftovers, err error) {
	body, err := control.Do(ctx, e.ControlSocket, "finish", url.Values{"within": {within.String()}})
	if err == nil {
		err = json.Unmarshal(body, &left)
	}
	if err != nil {
		// Its flows may just have ended, and so may it.
		soon, cancel := context.WithTimeout(ctx, olderPatience)
		defer cancel()
		if e.wait(soon) == nil {
			return Leftovers{}, nil
		}
		return Leftovers{}, fmt.Errorf("older process %d: %w", e.PID, err)
	}
	return left, e.wait(ctx)
}

// wait waits until the process has ended: what started this one may kill what
// is left when this one ends.
func (e olderProcess) wait(ctx context.Context) error {
	fd, err := unix.PidfdOpen(e.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil // it has gone; or the kernel cannot say, and it has no flows any more
	}
	defer unix.Close(fd)
	for ctx.Err() == nil {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 100)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return nil
		}
	}
	return context.Cause(ctx)
}
