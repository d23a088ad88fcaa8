package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// An outcome is what haulsim says of a path.
type outcome struct {
	over []windowFigures // in the order asked for
}

type windowFigures struct {
	queueP95Ms, capacityBps float64
	flows                   []flowFigures // in the order of the path
}

type flowFigures struct {
	goodputBps, arrivedBps float64 // in order, in any order
	sent, delivered        float64 // packets
}

// parseOutcome reads haulsim's JSON, which must be of this path and these
// windows.
func parseOutcome(text []byte, p path, over []window) (outcome, error) {
	var read struct {
		Flows []struct {
			Control string `json:"control"`
		} `json:"flows"`
		Over []struct {
			FromS       *float64 `json:"from_s"`
			ToS         *float64 `json:"to_s"`
			QueueP95Ms  *float64 `json:"queue_p95_ms"`
			CapacityBps *float64 `json:"capacity_bps"`
			Flows       []struct {
				GoodputBps *float64 `json:"goodput_bps"`
				ArrivedBps *float64 `json:"arrived_bps"`
				Sent       *float64 `json:"sent"`
				Delivered  *float64 `json:"delivered"`
			} `json:"flows"`
		} `json:"over"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&read); err != nil {
		return outcome{}, fmt.Errorf("read JSON: %w", err)
	}
	if decoder.More() {
		return outcome{}, errors.New("more than one JSON object")
	}
	if len(read.Flows) != len(p.flows) {
		return outcome{}, fmt.Errorf("figures of %d flows for a path of %d", len(read.Flows), len(p.flows))
	}
	for i, f := range read.Flows {
		if f.Control != p.flows[i].control {
			return outcome{}, fmt.Errorf("flow %d is %q and not %q", i+1, f.Control, p.flows[i].control)
		}
	}
	if len(read.Over) != len(over) {
		return outcome{}, fmt.Errorf("figures over %d windows and not %d", len(read.Over), len(over))
	}
	var o outcome
	var wrong error
	figure := func(name string, v *float64) float64 {
		switch {
		case v == nil:
			wrong = errors.Join(wrong, fmt.Errorf("missing %s", name))
			return 0
		case *v < 0:
			wrong = errors.Join(wrong, fmt.Errorf("negative %s", name))
			return 0
		}
		return *v
	}
	for i, w := range read.Over {
		from, to := figure("from_s", w.FromS), figure("to_s", w.ToS)
		if wrong == nil && math.Abs(from-over[i].fromS) > 0.01 || math.Abs(to-over[i].toS) > 0.01 {
			return outcome{}, fmt.Errorf("figures over %s to %s s and not %s to %s s", number(from), number(to), number(over[i].fromS), number(over[i].toS))
		}
		if len(w.Flows) != len(p.flows) {
			return outcome{}, fmt.Errorf("window %d has figures of %d flows for a path of %d", i+1, len(w.Flows), len(p.flows))
		}
		figures := windowFigures{queueP95Ms: figure("queue_p95_ms", w.QueueP95Ms), capacityBps: figure("capacity_bps", w.CapacityBps)}
		for _, f := range w.Flows {
			figures.flows = append(figures.flows, flowFigures{
				goodputBps: figure("goodput_bps", f.GoodputBps), arrivedBps: figure("arrived_bps", f.ArrivedBps),
				sent: figure("sent", f.Sent), delivered: figure("delivered", f.Delivered)})
		}
		if wrong != nil {
			first, _, _ := strings.Cut(wrong.Error(), "\n")
			return outcome{}, fmt.Errorf("window %d: %s", i+1, first)
		}
		o.over = append(o.over, figures)
	}
	return o, nil
}

// A simulator is haulsim, built.
type simulator struct {
	binary string
	extra  []string // words of the command line before the path's
	rest   string   // hash of the sources of all but haul
}

const simulatorSource = "sim/haulsim.c" // in bpf/hosttest

// buildSimulator builds haulsim of this tree in a directory.
func buildSimulator(ctx context.Context, dir string) (*simulator, error) {
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		return nil, errors.New("build haulsim: gcc is missing; install it (Debian: apt-get install gcc libc6-dev)")
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "longhaul/bpf/hosttest").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("find bpf/hosttest: %w: %s; run this in longhaul's source", err, bytes.TrimSpace(out))
	}
	source := string(bytes.TrimSpace(out))
	s := &simulator{binary: filepath.Join(dir, "haulsim")}
	if s.rest, err = hashRest(source); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, compiler, "-O2", "-w", "-o", s.binary, filepath.Join(source, simulatorSource), "-lm")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build haulsim: %w\n%s", err, out)
	}
	return s, nil
}

// hashRest hashes what haulsim is built from, but for haul and the command line: the figures
// of other controls depend on nothing else.
func hashRest(source string) (string, error) {
	h := sha256.New()
	for _, pattern := range []string{"*.h", "../bbr3.h", "../window.h"} {
		names, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil {
			return "", err
		}
		for _, name := range names {
			if strings.HasPrefix(filepath.Base(name), "haul") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%s %d\n%s", filepath.Base(name), len(text), text)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// instead simulates another control in place of haul.
func instead(control string, run runner) runner {
	return func(ctx context.Context, p path, over ...window) (outcome, error) {
		p = p.clone()
		for i := range p.flows {
			if p.flows[i].control == "haul" {
				p.flows[i].control = control
			}
		}
		return run(ctx, p, over...)
	}
}

// without switches a rule of haul off; none if it has no name.
func (s *simulator) without(rule string) runner {
	off := *s
	if rule != "" {
		off.extra = []string{"off=" + rule}
	}
	return off.run
}

// longestRun is what one path may take: some thousand times the usual.
const longestRun = 2 * time.Minute

// run simulates a path.
func (s *simulator) run(ctx context.Context, p path, over ...window) (outcome, error) {
	limited, cancel := context.WithTimeout(ctx, longestRun)
	defer cancel()
	cmd := exec.CommandContext(limited, s.binary, slices.Concat(s.extra, p.args(over...), []string{"json=1"})...)
	// An interrupt on the terminal is for us alone: we end what runs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return outcome{}, ctx.Err()
	case limited.Err() != nil:
		return outcome{}, fmt.Errorf("%s: has not ended after %v", p.command(over...), longestRun)
	case err != nil:
		return outcome{}, fmt.Errorf("%s: %w %s", p.command(over...), err, bytes.TrimSpace(append(stderr.Bytes(), out...)))
	}
	o, err := parseOutcome(out, p, over)
	if err != nil {
		return outcome{}, fmt.Errorf("%s json=1: %w", p.command(over...), err)
	}
	return o, nil
}
