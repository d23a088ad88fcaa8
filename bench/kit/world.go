package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"longhaul/lab"
	"longhaul/lab/progress"
	"longhaul/lab/relays"
	"longhaul/lab/sandbox"
	"longhaul/lab/tcpserver"
)

// World is a lab with real relays on its hosts, and what serves there.
type World struct {
	*lab.Stage
	Dir    string // of the relays' configurations and sockets
	Relays []*relays.Process

	closers []func()
}

// NewWorld builds a topology. The process must be inside a sandbox: the directory is in its
// own /run, which disappears with it, however that ends.
func NewWorld(t lab.Topology, program string, report progress.Reporter) (*World, error) {
	if err := sandbox.PrivateRun(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/run", "world-")
	if err != nil {
		return nil, err
	}
	built, err := lab.Build(t)
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return &World{Stage: &lab.Stage{Lab: built, Program: program, Report: report}, Dir: dir}, nil
}

// Relay adds a relay on a host, which is still to be started.
func (w *World) Relay(name, host string) *relays.Process {
	r := &relays.Process{Name: name, Host: w.Host(host), Program: w.Program, Dir: w.Dir}
	w.Relays = append(w.Relays, r)
	return r
}

// Serve serves connections to a port of a host.
func (w *World) Serve(ctx context.Context, host string, port uint16, serve func(net.Conn)) error {
	l, err := w.Host(host).ListenTCP(ctx, port)
	if err == nil {
		w.AtClose(tcpserver.Serve(l, serve))
	}
	return err
}

// AtClose has Close call a function once the relays have ended.
func (w *World) AtClose(do func()) { w.closers = append(w.closers, do) }

// Kill ends the relays.
func (w *World) Kill() {
	for _, r := range w.Relays {
		if r.Running() {
			_ = r.Kill() // no failure leaves it running
		}
	}
}

// Close ends all that runs, and takes the lab down.
func (w *World) Close() {
	w.Kill()
	w.Stop()
	for _, do := range slices.Backward(w.closers) {
		do()
	}
	w.Lab.Close()
	os.RemoveAll(w.Dir)
}

// Explain adds the ends of all logs to an error.
func (w *World) Explain(err error) error {
	err = w.Stage.Explain(err)
	for _, r := range w.Relays {
		if said := r.Log(); said != "" && !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), said) {
			err = fmt.Errorf("%w\n%s said:\n%s", err, r.Name, said)
		}
	}
	return err
}

// Pause waits, unless the context ends first.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
