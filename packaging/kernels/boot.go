package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"longhaul/packaging/kernels/result"
)

// A report is the outcome of one kernel.
type report struct {
	Kernel  string         `json:"kernel"`
	Arch    string         `json:"arch"`
	Package string         `json:"package"`
	Release string         `json:"release"` // empty: it did not boot
	Boot    float64        `json:"boot_seconds"`
	Seconds float64        `json:"seconds"`
	Checks  []result.Check `json:"checks"`
	Error   string         `json:"error,omitempty"`
}

// boot boots a kernel in qemu without KVM and reads the outcome of its checks. It
// copies the console to log.
func boot(ctx context.Context, b *bootable, dir string, parts []string, memoryMB int, log io.Writer, progress func(result.Message)) report {
	r := report{Kernel: b.name, Arch: b.arch, Package: b.image}
	fail := func(err error) report {
		r.Error = err.Error()
		return r
	}
	machine := machines[b.arch]
	initrd := filepath.Join(dir, "initrd-"+b.name)
	defer os.Remove(initrd)
	if err := concatenate(initrd, append([]string{b.base}, parts...)...); err != nil {
		return fail(err)
	}
	args := append([]string{}, machine.args...)
	// Two processors on one thread: before version 8.1 (commit deba78709ae8), qemu with a
	// thread for each may keep the translation of an instruction that the other processor
	// replaces meanwhile. Then a kernel that patches itself ends in "Oops: int3", once in
	// some hundred boots. Two guests on two cores are no slower for it.
	args = append(args, "-accel", "tcg,thread=single", "-smp", "2", "-m", fmt.Sprint(memoryMB),
		"-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none",
		"-kernel", b.vmlinuz, "-initrd", initrd, "-append", "console="+machine.console+" quiet loglevel=3 panic=-1")
	cmd := exec.CommandContext(ctx, machine.qemu, args...)
	cmd.WaitDelay = 5 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	console, err := cmd.StdoutPipe()
	if err != nil {
		return fail(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return fail(fmt.Errorf("%w (Debian package %s)", err, machine.pack))
	}
	running, done := "", false
	readErr := result.Read(console, log, func(m result.Message) {
		switch {
		case m.Release != "":
			r.Release, r.Boot = m.Release, time.Since(began).Seconds()
		case m.Begins != "":
			running = m.Begins
		case m.Check != nil:
			r.Checks = append(r.Checks, *m.Check)
			running = ""
		}
		done = done || m.Done
		progress(m)
	})
	err = cmd.Wait()
	r.Seconds = time.Since(began).Seconds()
	switch {
	case ctx.Err() != nil:
		return fail(fmt.Errorf("%w, during %s", context.Cause(ctx), cmp.Or(running, "boot")))
	case readErr != nil:
		return fail(readErr)
	case r.Release == "":
		return fail(fmt.Errorf("it did not boot: %s", cmp.Or(strings.TrimSpace(stderr.String()), "see the log")))
	case !done:
		return fail(fmt.Errorf("it ended during %s: see the log", cmp.Or(running, "its checks")))
	case err != nil:
		return fail(fmt.Errorf("%s: %w: %s", machine.qemu, err, strings.TrimSpace(stderr.String())))
	}
	return r
}

// problems are what a report has against expectation, a sentence each.
func (r report) problems(k kernel) (all []string) {
	if r.Error != "" {
		all = append(all, r.Error)
	}
	for _, c := range r.Checks {
		lacking := slices.Contains(k.lacks, c.Name)
		switch {
		case c.Status == result.Failed:
			all = append(all, c.Name+": "+c.Detail)
		case c.Status == result.Unsupported && !lacking:
			all = append(all, c.Name+" should work: "+c.Detail)
		case c.Status == result.OK && lacking:
			all = append(all, c.Name+" works, and is expected not to: correct the list of kernels")
		}
	}
	return all
}
