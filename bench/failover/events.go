package main

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

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
		return unix.Kill(r.PID(), unix.SIGSTOP)
	case drained:
		return errors.Join(r.Drain(ctx, tunnelMain), r.Drain(ctx, tunnelGreets))
	}
	_, err := r.Upgrade(ctx)
	return err
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
