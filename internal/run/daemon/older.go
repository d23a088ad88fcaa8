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

	"longhaul/internal/run/control"
	"longhaul/internal/sys/process"
)

// olderProcess is a predecessor of this process that still has flows.
type olderProcess struct {
	PID           int    `json:"pid"`
	ControlSocket string `json:"control_socket"`
}

// OlderProcess is an older process in the status. Figures without an answer are null.
type OlderProcess struct {
	olderProcess
	Version     string   `json:"version,omitempty"`
	ReplacedFor *float64 `json:"replaced_seconds"` // how long ago
	FlowsNow    *int64   `json:"flows_now"`
	SecondsLeft *float64 `json:"seconds_left,omitempty"` // until flows are reset
	counts      flowCounts
}

// Summary is the answer of POST /v1/summary: the flows of a process. Its successor
// asks for it, and longhaul stop.
type Summary struct {
	Version        string         `json:"version"`
	ReplacedFor    float64        `json:"replaced_seconds"`
	FlowsNow       int64          `json:"flows_now"`
	SecondsLeft    *float64       `json:"seconds_left,omitempty"`
	Flows          flowCounts     `json:"flows"`
	OlderProcesses []OlderProcess `json:"older_processes,omitempty"` // on request
}

// TotalFlows is the number of flows, those of older processes included.
func (s Summary) TotalFlows() int64 {
	n := s.FlowsNow
	for _, older := range s.OlderProcesses {
		if older.FlowsNow != nil {
			n += *older.FlowsNow
		}
	}
	return n
}

// olderPatience is the timeout for an older process that may have ended.
const olderPatience = time.Second

// summaryPatience is the timeout for the summary of an older process. It ends before that of a
// status, which then has the summaries of the others.
const summaryPatience = 3 * statusPatience / 4

// olderProcesses lists the older processes.
type olderProcesses struct {
	mu  sync.Mutex
	all []olderProcess
}

// living returns the processes that still exist, oldest first.
func (e *olderProcesses) living() []olderProcess {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(one olderProcess) bool { return !one.exists() })
	return slices.Clone(e.all)
}

// forget removes an ended process from the list, and deletes its control socket if a
// violent end left it.
func (e *olderProcesses) forget(gone olderProcess) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(one olderProcess) bool { return one == gone })
	_ = os.Remove(gone.ControlSocket)
}

// exists reports whether the process runs. Another process may have its PID by now,
// so its socket must exist besides.
func (e olderProcess) exists() bool {
	if _, err := os.Lstat(e.ControlSocket); errors.Is(err, os.ErrNotExist) {
		return false
	}
	return !errors.Is(unix.Kill(e.PID, 0), unix.ESRCH)
}

// ask asks all older processes for their summaries, all at the same time.
func (e *olderProcesses) ask(ctx context.Context) []OlderProcess {
	ctx, cancel := context.WithTimeout(ctx, summaryPatience)
	defer cancel()
	all := e.living()
	facts := make([]OlderProcess, len(all))
	var asking sync.WaitGroup
	for i, one := range all {
		asking.Go(func() {
			facts[i] = OlderProcess{olderProcess: one}
			var s Summary
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
				return // status shows it without these figures
			}
			facts[i].Version, facts[i].SecondsLeft, facts[i].counts = s.Version, s.SecondsLeft, s.Flows
			facts[i].ReplacedFor, facts[i].FlowsNow = &s.ReplacedFor, &s.FlowsNow
		})
	}
	asking.Wait()
	return slices.DeleteFunc(facts, func(f OlderProcess) bool { return f.PID == 0 || f.FlowsNow == nil && !f.exists() })
}

// finish has all older processes finish their flows within a time, negative for no
// bound. It returns the flows that had not ended.
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
		// The process may just have ended with its last flow.
		soon, cancel := context.WithTimeout(ctx, olderPatience)
		defer cancel()
		if e.wait(soon) == nil {
			return Leftovers{}, nil
		}
		return Leftovers{}, fmt.Errorf("older process %d: %w", e.PID, err)
	}
	return left, e.wait(ctx)
}

// wait waits until the process has ended. The supervisor of this process may kill
// the remaining ones when this one ends.
func (e olderProcess) wait(ctx context.Context) error {
	h, err := process.Open(e.PID)
	if err != nil {
		return nil // it has ended; or the kernel cannot tell, and it has no flows left
	}
	defer h.Close()
	return h.Wait(ctx)
}
