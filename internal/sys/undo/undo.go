// Package undo stores the files that record a command's changes to this host,
// so that another command can revert them.
package undo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Lock gives the caller the exclusive right to change files in the directory,
// and makes the directory if necessary. The holder may remove the directory. The
// kernel releases the lock when the process ends.
func Lock(dir string) (unlock func(), err error) {
	for {
		f, err := lock(dir)
		switch {
		case err != nil:
			return nil, err
		case f != nil:
			return func() { f.Close() }, nil
		}
	}
}

// lock locks the directory. It returns nil if another process removes the directory
// meanwhile.
func lock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) && isGone(dir) {
			return nil, nil // it was there for mkdir, and is not any more
		}
		return nil, fmt.Errorf("record the changes to undo: %w", err)
	}
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("record the changes to undo: %w", err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	locked, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if inPlace, err := os.Stat(dir); err != nil || !os.SameFile(locked, inPlace) {
		f.Close()
		return nil, nil
	}
	return f, nil
}

func isGone(path string) bool {
	info, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir()
}

// tempPath is the path of a file until it replaces the old one. The lock admits
// one writer at a time.
func tempPath(path string) string { return path + ".new" }

// Write atomically replaces a file. The caller holds the lock.
func Write(path string, b []byte) error {
	err := os.WriteFile(tempPath(path), b, 0o644)
	if err == nil {
		err = os.Rename(tempPath(path), path)
	}
	if err != nil {
		return fmt.Errorf("record the changes to undo: %w", err)
	}
	return nil
}

// Remove removes a file and the remains of an interrupted Write. The caller
// holds the lock.
func Remove(path string) error {
	for _, p := range []string{path, tempPath(path)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
