package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"longhaul/internal/kernel"
)

// Use is a congestion control that a prefix was given.
type Use struct {
	Prefix    netip.Prefix `json:"prefix"`
	Algorithm string       `json:"algorithm"`
	Priority  uint32       `json:"priority"` // the route's metric
	// Made: the route was made for this, a copy of the one that covered the
	// prefix. Else it was there, with the former settings.
	Made            bool   `json:"made"`
	FormerAlgorithm string `json:"former_algorithm,omitempty"`
	FormerLocked    bool   `json:"former_locked,omitempty"`
	// Replaces is what the prefix was given before Algorithm, in case that the
	// change to it was interrupted.
	Replaces string `json:"replaces,omitempty"`
}

// records is the file that remembers what was changed in a network namespace.
type records struct {
	path string
	lock *os.File
	uses []Use
}

// open reads the records of the calling thread's namespace and keeps other
// processes from changing any until close.
func (t *Table) open() (*records, error) {
	path, err := t.path()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(t.Undo, 0o755); err != nil {
		return nil, fmt.Errorf("cannot remember the routes: %w", err)
	}
	lock, err := os.Open(t.Undo)
	if err != nil {
		return nil, fmt.Errorf("cannot remember the routes: %w", err)
	}
	for {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	r := &records{path: path, lock: lock}
	if err == nil {
		r.uses, err = readUses(r.path)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// path is the file of the calling thread's namespace.
func (t *Table) path() (string, error) {
	cookie, err := kernel.NetNSCookie()
	if err != nil {
		return "", err
	}
	return filepath.Join(t.Undo, fmt.Sprintf("routes-%d.json", cookie)), nil
}

func (r *records) close() { r.lock.Close() }

func readUses(path string) ([]Use, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var uses []Use
	if err := json.Unmarshal(b, &uses); err != nil {
		return nil, fmt.Errorf("%s is damaged: remove it: %w", path, err)
	}
	return uses, nil
}

// write replaces the file in one step, and removes it if nothing is left to
// remember.
func (r *records) write() error {
	if len(r.uses) == 0 {
		if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	b, err := json.MarshalIndent(r.uses, "", "  ")
	if err != nil {
		return err
	}
	fresh := r.path + ".new" // one writer at a time, by the lock
	err = os.WriteFile(fresh, append(b, '\n'), 0o644)
	if err == nil {
		err = os.Rename(fresh, r.path)
	}
	if err != nil {
		return fmt.Errorf("cannot remember the routes: %w", err)
	}
	return nil
}
