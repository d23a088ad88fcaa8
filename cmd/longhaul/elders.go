//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/control"
	"longhaul/internal/display"
)

// elder is a process that this one has followed and that still has flows.
type elder struct {
	PID           int    `json:"pid"`
	ControlSocket string `json:"control_socket"`
}

// elderFact is what status says of one. What it did not answer is null.
type elderFact struct {
	elder
	Version     string   `json:"version,omitempty"`
	ReplacedFor *float64 `json:"replaced_seconds"` // how long ago
	FlowsNow    *int64   `json:"flows_now"`
	SecondsLeft *float64 `json:"seconds_left,omitempty"` // until flows are reset
	counts      flowCounts
}

// elderSummary is what an older process answers to the one that followed it.
type elderSummary struct {
	Version     string     `json:"version"`
	ReplacedFor float64    `json:"replaced_seconds"`
	FlowsNow    int64      `json:"flows_now"`
	SecondsLeft *float64   `json:"seconds_left,omitempty"`
	Flows       flowCounts `json:"flows"`
}

// elderPatience is how long an older process may take to say how it is.
const elderPatience = time.Second

// elders are the older processes.
type elders struct {
	mu  sync.Mutex
	all []elder
}

// living returns those that are still there, the oldest first.
func (e *elders) living() []elder {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(one elder) bool { return !one.exists() })
	return slices.Clone(e.all)
}

// forget drops one that does not answer because it has ended, and removes what
// a violent end left of it.
func (e *elders) forget(gone elder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(one elder) bool { return one == gone })
	_ = os.Remove(gone.ControlSocket)
}

// exists says whether the process is there. Its socket goes with it, and its
// number may be another's by now: both have to be there.
func (e elder) exists() bool {
	if _, err := os.Lstat(e.ControlSocket); errors.Is(err, os.ErrNotExist) {
		return false
	}
	return !errors.Is(unix.Kill(e.PID, 0), unix.ESRCH)
}

// ask asks all of them how they are, at the same time.
func (e *elders) ask(ctx context.Context) []elderFact {
	ctx, cancel := context.WithTimeout(ctx, elderPatience)
	defer cancel()
	all := e.living()
	facts := make([]elderFact, len(all))
	var asking sync.WaitGroup
	for i, one := range all {
		asking.Go(func() {
			facts[i] = elderFact{elder: one}
			var s elderSummary
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
	return slices.DeleteFunc(facts, func(f elderFact) bool { return f.PID == 0 || f.FlowsNow == nil && !f.exists() })
}

// finish has all of them let their flows end within a time, negative for as
// long as they need, and returns what had not ended.
func (e *elders) finish(ctx context.Context, within time.Duration) (left leftovers, err error) {
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

func (e elder) finish(ctx context.Context, within time.Duration) (left leftovers, err error) {
	body, err := control.Do(ctx, e.ControlSocket, "finish", url.Values{"within": {within.String()}})
	if err == nil {
		err = json.Unmarshal(body, &left)
	}
	if err != nil {
		// Its flows may just have ended, and so may it.
		soon, cancel := context.WithTimeout(ctx, elderPatience)
		defer cancel()
		if e.wait(soon) == nil {
			return leftovers{}, nil
		}
		return leftovers{}, fmt.Errorf("older process %d: %w", e.PID, err)
	}
	return left, e.wait(ctx)
}

// wait waits until the process has ended: what started this one may kill what
// is left when this one ends.
func (e elder) wait(ctx context.Context) error {
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

// writeElders prints the older processes for longhaul status.
func writeElders(w io.Writer, facts []elderFact) {
	for _, f := range facts {
		flows, since := "-", ""
		if f.FlowsNow != nil {
			flows = display.Plural(int(*f.FlowsNow), "flow")
		}
		if f.ReplacedFor != nil {
			since = ", replaced " + display.Age(*f.ReplacedFor) + " ago"
		}
		if f.SecondsLeft != nil {
			since += ", " + display.Age(*f.SecondsLeft) + " left"
		}
		fmt.Fprintf(w, "older process %d: %s%s\n  longhaul status --control-socket %s\n", f.PID, flows, since, f.ControlSocket)
	}
}
