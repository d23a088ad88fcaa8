package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"longhaul/bench/peers"
)

// controlSocket is that of longhaul's relay, in its directory.
const controlSocket = "control.sock"

// start measures the CPU time of a relay until it listens, or that of a command beside
// it. Who has no such command has no value.
func (b *bench) start(ctx context.Context, c contender, p peers.Program, kind measure, setup peers.Setup) (s sample, err error) {
	if p.Command == nil || kind.command != nil && !p.Longhaul {
		return s, nil
	}
	dir := filepath.Join(b.dir, c.Name)
	setup.ControlSocket = filepath.Join(dir, controlSocket)
	argv, err := p.Command(dir, setup)
	if err != nil {
		return s, err
	}
	relay, err := peers.Start(ctx, argv, setup.Listen)
	if err != nil {
		return s, err
	}
	defer relay.Kill()
	if kind.command == nil {
		// It is killed at the next look, 5 ms later at most.
		s.cpu, err = relay.End()
		return s, err
	}
	cmd := exec.CommandContext(ctx, argv[0], kind.command...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err == nil && len(out) == 0 {
		err = errors.New("it prints nothing")
	}
	if err != nil {
		return s, fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	s.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return s, nil
}
