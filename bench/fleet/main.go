// Command fleet measures how long longhaul fleet status takes beside many relays,
// of which one is dead and one is stopped.
//
//	go run ./bench/fleet
//	go run ./bench/fleet --relays 200 --repeat 3
//
// It fails if a run takes longer than --most, or does not show every relay.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/internal/watch/fleet"
)

func main() { kit.Command("fleet", run) }

// bench is what to measure.
type bench struct {
	kit.Longhaul
	relays, repeat int
	most           time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	b := bench{Longhaul: kit.Longhaul{Flags: flags}}
	flags.IntVar(&b.relays, "relays", 50, "how many, the dead and the stopped one counted")
	flags.IntVar(&b.repeat, "repeat", 10, "how often to ask")
	flags.DurationVar(&b.most, "most", 2*time.Second, "longest time of a run")
	b.Check = func() error {
		if b.relays < 3 || b.relays > 1000 || b.repeat < 1 {
			return errors.New("--relays takes 3 to 1000, --repeat 1 or more")
		}
		return nil
	}
	return b.Run(ctx, args, stdout, stderr, func() error { return b.run(ctx, stdout) })
}

// The relays that do not answer.
const dead, stopped = 1, 2

func (b *bench) run(ctx context.Context, stdout io.Writer) error {
	var inventory strings.Builder
	var all []*exec.Cmd
	defer func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	for i := range b.relays {
		at := fmt.Sprintf("127.0.0.1:%d", 20_000+i)
		fmt.Fprintf(&inventory, "- {name: relay-%d, url: \"http://%s\"}\n", i, at)
		cmd := exec.CommandContext(ctx, b.Binary, "relay", "--listen", fmt.Sprintf("127.0.0.1:%d", 10_000+i), "--forward", "127.0.0.1:9",
			"--dashboard", at, "--control-socket", "off", "--log-level", "error")
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		all = append(all, cmd)
	}
	file := filepath.Join(b.Dir, "relays.yaml")
	if err := os.WriteFile(file, []byte(inventory.String()), 0o600); err != nil {
		return err
	}
	if err := b.await(ctx, file); err != nil {
		return err
	}
	if err := all[dead].Process.Kill(); err != nil {
		return err
	}
	_ = all[dead].Wait()
	if err := all[stopped].Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var took []time.Duration
	var used time.Duration
	for range b.repeat {
		begun := time.Now()
		r, cpu, err := b.ask(ctx, file)
		if err != nil {
			return err
		}
		took, used = append(took, time.Since(begun)), used+cpu
		if err := b.judge(r); err != nil {
			return err
		}
	}
	slices.Sort(took)
	longest := took[len(took)-1]
	fmt.Fprintf(stdout, "%d relays, one dead, one stopped: %.2f s (%.2f to %.2f, %d runs), %.0f ms of CPU\n", b.relays,
		took[len(took)/2].Seconds(), took[0].Seconds(), longest.Seconds(), b.repeat, used.Seconds()*1e3/float64(b.repeat))
	fmt.Fprintf(stdout, "Linux %s\n", peers.KernelVersion())
	if longest > b.most {
		return fmt.Errorf("a run took %v, more than %v", longest.Round(time.Millisecond), b.most)
	}
	return nil
}

// await returns once every relay is well.
func (b *bench) await(ctx context.Context, file string) error {
	for {
		r, _, err := b.ask(ctx, file)
		if err != nil || r.Well {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ask runs fleet status once.
func (b *bench) ask(ctx context.Context, file string) (r fleet.Report, cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, b.Binary, "fleet", "status", file, "--json")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return r, 0, fmt.Errorf("longhaul fleet status: %w", err)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, 0, fmt.Errorf("read what longhaul fleet status prints: %w", err)
	}
	return r, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// judge holds that the two are marked, and the others are there in full.
func (b *bench) judge(r fleet.Report) error {
	for i, a := range r.Relays {
		want := fleet.OK
		switch i {
		case dead:
			want = fleet.Down
		case stopped:
			want = fleet.Slow
		}
		if a.State != want {
			return fmt.Errorf("%s is %s, want %s: %s", a.Name, a.State, want, a.Problem)
		}
	}
	if len(r.Relays) != b.relays {
		return fmt.Errorf("%d relays of %d are shown", len(r.Relays), b.relays)
	}
	return nil
}
