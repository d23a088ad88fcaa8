package dirlock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestMakeAgain has the holder remove the directory: the next one makes it anew.
func TestMakeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "one", "two")
	for range 2 {
		unlock, err := Make(t.Context(), dir, 0o700)
		nettest.Must(t, err)
		nettest.Must(t, os.Remove(dir))
		unlock()
	}
}

// TestHeld holds that nobody else gets the lock, and that it is free after unlock.
func TestHeld(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(dir)
	nettest.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Make(ctx, dir, 0o700); !errors.Is(err, ErrHeld) {
		t.Errorf("a second holder: %v", err)
	}
	unlock()
	unlock, err = Make(t.Context(), dir, 0o700)
	nettest.Must(t, err)
	unlock()
}

// TestNoDirectory holds what is said where there can be no directory.
func TestNoDirectory(t *testing.T) {
	dir := t.TempDir()
	if _, err := Lock(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	file := filepath.Join(dir, "file")
	nettest.Must(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if _, err := Make(t.Context(), path, 0o700); err == nil {
			t.Errorf("%s is a directory", path)
		}
	}
}
