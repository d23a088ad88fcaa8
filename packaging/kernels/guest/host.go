package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"longhaul/internal/words/ccnames"
	"longhaul/packaging/kernels/result"
)

// checkHost holds what longhaul host check says of this kernel against what the commands
// then do. The check itself must load no module and register no algorithm.
func checkHost(ctx context.Context, _ result.Plan) (outcome, error) {
	before, err := kernelState()
	if err != nil {
		return outcome{}, err
	}
	// It ends with 1, since there is no systemd.
	text, err := exec.CommandContext(ctx, "longhaul", "host", "check", "--json").Output()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		return outcome{}, err
	}
	after, err := kernelState()
	if err != nil {
		return outcome{}, err
	}
	if after != before {
		return outcome{}, fmt.Errorf("the check changed modules and algorithms from %q to %q", before, after)
	}
	var report struct {
		Parts []struct{ Feature, Part, State, Why string }
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return outcome{}, fmt.Errorf("read the check: %w", err)
	}
	var said []string
	for _, p := range report.Parts {
		name := p.Feature + " " + p.Part
		if p.State != "yes" {
			said = append(said, name+": "+p.State)
		}
		does, undo := proofs(p.Feature, p.Part)
		if does == nil {
			continue
		}
		_, err := longhaul(ctx, does...)
		if works := err == nil; works != (p.State == "yes" || p.State == "limited") {
			return outcome{}, fmt.Errorf("%s is %s (%s), but longhaul %s: %w", name, p.State, p.Why, strings.Join(does, " "), err)
		}
		if err == nil {
			if _, err := longhaul(ctx, undo...); err != nil {
				return outcome{}, err
			}
		}
	}
	return outcome{detail: strings.Join(said, ", ")}, nil
}

// proofs returns a command that works where a part does, and the one that undoes it.
func proofs(feature, part string) (does, undo []string) {
	switch {
	case feature == "cc" && slices.Contains(ccnames.Own(), part):
		second := ccnames.Second(part)
		return []string{"cc", "load", second}, []string{"cc", "unload", second}
	case feature == "mss":
		return []string{"mss", "set", "--dev", "lo", "--clamp", "1200"}, []string{"mss", "undo", "--yes"}
	case feature == "route":
		return []string{"route", "set", "--to", "192.0.2.0/24", "--dev", "lo", "--initcwnd", "20"}, []string{"route", "undo", "--yes"}
	}
	return nil, nil
}

// kernelState lists the modules and algorithms of the kernel.
func kernelState() (string, error) {
	modules, err := os.ReadFile("/proc/modules")
	if err != nil {
		return "", err
	}
	var names []string
	for line := range strings.Lines(string(modules)) {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	slices.Sort(names)
	algorithms, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	return strings.Join(names, " ") + "; " + strings.TrimSpace(string(algorithms)), err
}
