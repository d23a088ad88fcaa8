// Package undo stores the files that record a command's changes to this host,
// so that another command can revert them. The caller holds the lock of their directory
// (dirlock).
package undo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

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
