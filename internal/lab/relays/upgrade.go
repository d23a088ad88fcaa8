package relays

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// follower is a process that an upgrade started. Its parent is the first one's:
// this process.
type follower struct {
	process *os.Process
	state   *os.ProcessState // once it has ended
	ended   chan struct{}
}

// Upgrade is what `longhaul upgrade --json` says.
type Upgrade struct {
	OldPID    int     `json:"old_pid"`
	NewPID    int     `json:"new_pid"`
	Seconds   float64 `json:"seconds"`
	FlowsLeft int64   `json:"flows_left"`
}

// Upgrade has the relay replaced by the program that lies at its path, as an
// operator would. It ends an upgrade that has begun even if the context ends
// meanwhile: the relay goes on with it, and the process that follows must be known.
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
