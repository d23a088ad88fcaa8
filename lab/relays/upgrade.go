package relays

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// follower is a process that an upgrade started. This process is its parent, as of the
// first one.
type follower struct {
	process *os.Process
	state   *os.ProcessState // after its end
	ended   chan struct{}
}

// Upgrade is the output of `longhaul upgrade --json`.
type Upgrade struct {
	OldPID    int     `json:"old_pid"`
	NewPID    int     `json:"new_pid"`
	Seconds   float64 `json:"seconds"`
	FlowsLeft int64   `json:"flows_left"`
}

// Upgrade replaces the relay by the program at its path, like an operator. It
// completes a begun upgrade even if the context ends: the relay continues it, and
// the successor must be known.
func (r *Process) Upgrade(ctx context.Context) (Upgrade, error) {
	var u Upgrade
	if err := ctx.Err(); err != nil {
		return u, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, r.Program, "upgrade", "--json", "--control-socket", r.Socket()).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return u, fmt.Errorf("%s: %w: %s", r.Name, err, exit.Stderr)
	}
	if err == nil {
		err = json.Unmarshal(out, &u)
	}
	if err != nil {
		return u, fmt.Errorf("upgrade %s: %w", r.Name, err)
	}
	f := &follower{ended: make(chan struct{})}
	if f.process, err = os.FindProcess(u.NewPID); err != nil {
		return u, err
	}
	go func() {
		f.state, _ = f.process.Wait()
		close(f.ended)
	}()
	r.followers = append(r.followers, f)
	return u, nil
}

// FailUpgrade asks the relay to upgrade to a file that is not longhaul. It returns an error
// if the upgrade succeeds.
func (r *Process) FailUpgrade(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, r.Program, "upgrade", "--binary", program, "--control-socket", r.Socket()).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return fmt.Errorf("%s takes %s in its place", r.Name, program)
	case !errors.As(err, &exit) || exit.ExitCode() != 1:
		return fmt.Errorf("%s: upgrade to %s: %w: %s", r.Name, program, err, out)
	}
	return nil
}
