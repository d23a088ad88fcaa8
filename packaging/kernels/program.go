package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"longhaul/packaging/kernels/result"
)

// tested are the packages that touch the kernel. Their tests run in the guests.
var tested = []string{"internal/tune/cc", "internal/tune/mss", "internal/tune/route", "internal/carry/transport", "internal/sys/tcpinfo", "internal/carry/relay",
	"lab/link", "lab/hosts", "internal/sys/pathmtu", "internal/carry/handover", "internal/carry/intercept", "internal/carry/intercept/hold"}

// buildOurs builds longhaul, the benches of doctor's verdicts and of relays that fail, the guest's first program and the test binaries of
// packages for an architecture, and packs them.
func buildOurs(ctx context.Context, dir, arch string, tests []string) (file string, err error) {
	root := filepath.Join(dir, "ours-"+arch)
	build := func(to, verb string, args ...string) error {
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", append([]string{verb, "-ldflags=-s -w", "-o", to}, args...)...)
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+machines[arch].goarch, "CGO_ENABLED=0")
		_, err := output(cmd)
		return err
	}
	if err := build("usr/bin/longhaul", "build", "./cmd/longhaul"); err != nil {
		return "", err
	}
	if err := build("usr/bin/diagnosis", "build", "./bench/diagnosis"); err != nil {
		return "", err
	}
	if err := build("usr/bin/failover", "build", "./bench/failover"); err != nil {
		return "", err
	}
	if err := build("init", "build", "./packaging/kernels/guest"); err != nil {
		return "", err
	}
	for _, pack := range tests {
		to := filepath.Join("src", pack)
		if err := build(filepath.Join(to, "test"), "test", "-c", "./"+pack); err != nil {
			return "", err
		}
		// Tests read files of their folder.
		if _, err := output(exec.CommandContext(ctx, "cp", "-r", pack+"/.", filepath.Join(root, to))); err != nil {
			return "", err
		}
	}
	file = filepath.Join(dir, "ours-"+arch+".cpio")
	return file, archive(ctx, root, file)
}

// packPlan packs what the guest is to do, and a script that it runs in place of the
// checks.
func packPlan(ctx context.Context, dir, name string, plan result.Plan, script string) (file string, err error) {
	root := filepath.Join(dir, "plan-"+name)
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		return "", err
	}
	b, err := json.Marshal(plan)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(root, result.PlanFile), b, 0o644); err != nil {
		return "", err
	}
	if script != "" {
		if b, err = os.ReadFile(script); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(root, result.ScriptFile), b, 0o755); err != nil {
			return "", err
		}
	}
	file = filepath.Join(dir, "plan-"+name+".cpio")
	if err := archive(ctx, root, file); err != nil {
		return "", fmt.Errorf("pack the plan: %w", err)
	}
	return file, nil
}
