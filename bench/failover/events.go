package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/link"
)

// The ways in which a far relay fails, see the experiment's help.
const (
	killed   = "killed"
	gone     = "gone"
	cutOff   = "cut"
	frozen   = "frozen"
	drained  = "drained"
	upgraded = "upgraded"
)

var events = []string{killed, gone, cutOff, frozen, drained, upgraded}

// dies says whether the relay's process ends, and with it its standing flows.
func dies(way string) bool { return way == killed || way == gone }

// planned says whether an operator does it: nobody may notice.
func planned(way string) bool { return way == drained || way == upgraded }

// fail has relay-b fail.
func (w *world) fail(ctx context.Context, way string) error {
	r := w.relay("relay-b")
	switch way {
	case killed, gone:
		return r.Kill()
	case cutOff:
		return w.cut(true)
	case frozen:
		if err := unix.Kill(r.PID(), unix.SIGSTOP); err != nil {
			return err
		}
		return stopped(ctx, r.PID())
	case drained:
		return errors.Join(r.Drain(ctx, tunnelMain), r.Drain(ctx, tunnelGreets))
	}
	_, err := r.Upgrade(ctx)
	return err
}

// stopped waits until each thread of a process is stopped: one that runs goes on for a moment.
func stopped(ctx context.Context, pid int) error {
	for {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		runs := false
		for _, file := range files {
			stat, readErr := os.ReadFile(file)
			_, state, _ := strings.Cut(string(stat), ") ")
			err = errors.Join(err, readErr)
			runs = runs || !strings.HasPrefix(state, "T")
		}
		if err == nil && runs {
			err = kit.Pause(ctx, time.Millisecond)
		}
		if err != nil || !runs {
			return err
		}
	}
}

// mend has it work again.
func (w *world) mend(ctx context.Context, way string) error {
	r := w.relay("relay-b")
	switch way {
	case killed, gone:
		return r.Start(ctx, w.configs[r.Name])
	case cutOff:
		return w.cut(false)
	case frozen:
		return unix.Kill(r.PID(), unix.SIGCONT)
	case drained:
		return errors.Join(r.Resume(ctx, tunnelMain), r.Resume(ctx, tunnelGreets))
	}
	return nil // it works
}

// cut has the WAN to relay-b drop all packets, or pass them again.
func (w *world) cut(down bool) error {
	return w.Link(lab.WAN).Change(func(s *link.Settings) { s.Down = down })
}
