// Package bpffs keeps what outlives a command, pins on the BPF filesystem, in
// one directory for each feature:
//
//	/sys/fs/bpf/longhaul/cc
//	/sys/fs/bpf/longhaul/mss
//
// Every change is made under a lock that the kernel releases with its holder.
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

	"longhaul/internal/kernel"
)

// DefaultRoot is where systemd, or else longhaul, mounts the BPF filesystem.
const DefaultRoot = "/sys/fs/bpf"

// ErrNone: there is no place to pin to.
var ErrNone = errors.New("no BPF filesystem")

// Dir is a feature's directory of pins.
type Dir struct {
	Root    string // where the BPF filesystem is, or is to be mounted
	Feature string
}

// Path is the path of something in the directory, or of the directory itself.
func (d Dir) Path(parts ...string) string {
	return filepath.Join(append([]string{d.Root, "longhaul", d.Feature}, parts...)...)
}

// Mounted says whether there is a BPF filesystem.
func (d Dir) Mounted() bool { return kernel.IsBPFFS(d.Root) }

// Mount makes sure that there is a BPF filesystem to pin to. Like other BPF
// tools it mounts one where systemd has not, but never in a mount namespace
// that may end before the machine does: the pins, and so what they hold, would
// end with it. What helps then goes into the error.
func (d Dir) Mount(help string) error {
	if d.Mounted() {
		return nil
	}
	if kernel.PrivateMounts() {
		return fmt.Errorf("%w at %s in this mount namespace: run the command outside it: %s", ErrNone, d.Root, help)
	}
	if err := unix.Mount("bpf", d.Root, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700"); err != nil {
		return fmt.Errorf("%w at %s, and mounting one fails: %w", ErrNone, d.Root, err)
	}
	return nil
}

// lockPatience bounds the wait for another longhaul: what it does takes well
// under a second.
const lockPatience = 30 * time.Second

// Lock makes the caller the only one to change what is pinned. The lock is on
// the directory of all pins, which unlock removes if nothing is left in it.
func (d Dir) Lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		dir, err := d.lock(ctx)
		if err != nil {
			return nil, err
		}
		if dir == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		return func() {
			// Fails where something is pinned, as it should.
			if os.Remove(d.Path()) == nil {
				_ = os.Remove(filepath.Dir(d.Path()))
			}
			dir.Close()
		}, nil
	}
}

// lock locks the directory, or returns nil if its last holder has removed it or
// the one above meanwhile.
func (d Dir) lock(ctx context.Context) (*os.File, error) {
	err := os.MkdirAll(d.Path(), 0o700)
	// Removed between two steps: before the lower one was made in the upper, or
	// after it was there already and before it was looked at.
	removed := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist)
	if removed && ctx.Err() == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the directory of pins: %w", err)
	}
	dir, err := os.Open(d.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the directory of pins: %w", err)
	}
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			dir.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", d.Path(), err)
		}
		select {
		case <-ctx.Done():
			dir.Close()
			return nil, fmt.Errorf("another process holds the lock on %s: try again, or find it with fuser", d.Path())
		case <-time.After(10 * time.Millisecond):
		}
	}
	locked, err := dir.Stat()
	if err != nil {
		dir.Close()
		return nil, err
	}
	if inPlace, err := os.Stat(d.Path()); err != nil || !os.SameFile(locked, inPlace) {
		dir.Close()
		return nil, nil
	}
	return dir, nil
}

// Names are the entries of the directory, in alphabetical order. There are none
// if it is not there.
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

// Exists says whether something is pinned, or a directory made.
func (d Dir) Exists(parts ...string) (bool, error) {
	_, err := os.Lstat(d.Path(parts...))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
