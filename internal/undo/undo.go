// Package undo keeps the files that remember what a command has changed on this
// host, so that another one can put it back.
package undo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Lock makes the caller the only one to change files in the directory, which it
// makes if need be. The kernel releases the lock with its holder.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot remember what to undo: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot remember what to undo: %w", err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot lock %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// fresh is where a file is written before it takes its place. There is one
// writer at a time, by the lock.
func fresh(path string) string { return path + ".new" }

// Write replaces a file in one step. The caller holds the lock.
func Write(path string, b []byte) error {
	err := os.WriteFile(fresh(path), b, 0o644)
	if err == nil {
		err = os.Rename(fresh(path), path)
	}
	if err != nil {
		return fmt.Errorf("cannot remember what to undo: %w", err)
	}
	return nil
}

// Remove removes a file, and what an interrupted Write has left of another. The
// caller holds the lock.
func Remove(path string) error {
	for _, p := range []string{path, fresh(path)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
