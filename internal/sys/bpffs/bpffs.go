// Package bpffs manages pins on the BPF filesystem, which outlive the command
// that made them, in one directory per feature:
//
//	/sys/fs/bpf/longhaul/cc
//	/sys/fs/bpf/longhaul/mss
//
// A process holds a lock for every change; the kernel releases the lock when
// the process ends.
package bpffs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/dirlock"
	"longhaul/internal/sys/kernel"
)

// DefaultRoot is the mount point that systemd uses, or longhaul without it.
const DefaultRoot = "/sys/fs/bpf"

// ErrNone means that no BPF filesystem is mounted.
var ErrNone = errors.New("no BPF filesystem")

// Dir is a feature's directory of pins.
type Dir struct {
	Root    string // mount point of the BPF filesystem
	Feature string
}

// Path is the path of an entry, or of the directory itself.
func (d Dir) Path(parts ...string) string {
	return filepath.Join(append([]string{d.Root, "longhaul", d.Feature}, parts...)...)
}

// Mounted reports whether a BPF filesystem is mounted.
func (d Dir) Mounted() bool { return kernel.IsBPFFS(d.Root) }

// Mount mounts a BPF filesystem unless there is one. It never does so in a
// private mount namespace. The pins, and the programs they hold, could end
// before the machine does. The error then contains help.
func (d Dir) Mount(help string) error {
	if d.Mounted() {
		return nil
	}
	if kernel.PrivateMounts() {
		return fmt.Errorf("%w at %s in this mount namespace: run the command outside it, or mount the host's there: %s",
			ErrNone, d.Root, help)
	}
	if err := unix.Mount("bpf", d.Root, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700"); err != nil {
		return fmt.Errorf("%w at %s, and mounting one fails: %w", ErrNone, d.Root, err)
	}
	return nil
}

// lockTimeout bounds the wait for another longhaul process, which holds the
// lock well under a second.
const lockTimeout = 30 * time.Second

// Lock gives the caller the exclusive right to change pins. It locks the
// directory of the feature; unlock removes the directory if it is empty.
func (d Dir) Lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	release, err := dirlock.Make(ctx, d.Path(), 0o700)
	if err != nil {
		return nil, d.lockError(err)
	}
	return func() {
		// Fails if pins are left, as intended.
		if os.Remove(d.Path()) == nil {
			_ = os.Remove(filepath.Dir(d.Path()))
		}
		release()
	}, nil
}

func (d Dir) lockError(err error) error {
	failed, ok := errors.AsType[*fs.PathError](err)
	switch {
	case errors.Is(err, dirlock.ErrHeld):
		return fmt.Errorf("another process holds the lock on %s: try again, or find it with fuser", d.Path())
	case ok && failed.Op == "open":
		return fmt.Errorf("open the directory of pins: %w", err)
	case ok:
		return fmt.Errorf("make the directory of pins: %w", err)
	}
	return err
}

// Names lists the entries of the directory in alphabetical order; none if it
// does not exist.
func (d Dir) Names() ([]string, error) {
	entries, err := os.ReadDir(d.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, nil
}

// Exists reports whether an entry exists.
func (d Dir) Exists(parts ...string) (bool, error) {
	_, err := os.Lstat(d.Path(parts...))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
