package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"longhaul/internal/sys/dirlock"
	"longhaul/internal/sys/undo"
)

// Record lists the files that were made on a host.
type Record struct {
	// Program is the unit's program.
	Program string `json:"program,omitempty"`

	// Version is the version of the last installation.
	Version string    `json:"version"`
	At      time.Time `json:"at"`

	// Complete: nothing interrupted the last change.
	Complete bool    `json:"complete"`
	Entries  []Entry `json:"entries"`

	// Loads lists the congestion controls that the service may have loaded since its
	// installation.
	Loads []string `json:"loads,omitempty"`

	// Choices are the drop-ins that the last installation requested.
	Choices []string `json:"choices,omitempty"`
}

// Entry is a recorded file, symbolic link or directory.
type Entry struct {
	Path string `json:"path"`
	// Digests of the last written content and, during a change, of the previous
	// one. None for a directory.
	Digests []string `json:"digests,omitempty"`
}

func (e Entry) isDir() bool { return len(e.Digests) == 0 }

// recordName is the file in [Host.Dir].
const recordName = "installed.json"

func contentDigest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func linkDigest(to string) string { return "link:" + to }

func (r *Record) find(path string) *Entry {
	for i := range r.Entries {
		if r.Entries[i].Path == path {
			return &r.Entries[i]
		}
	}
	return nil
}

// add records another content of a path, or a directory.
func (r *Record) add(path, digest string) {
	e := r.find(path)
	if e == nil {
		r.Entries = append(r.Entries, Entry{Path: path})
		e = &r.Entries[len(r.Entries)-1]
	}
	if digest != "" && !slices.Contains(e.Digests, digest) {
		e.Digests = append(e.Digests, digest)
	}
}

// Has reports whether the record contains the path.
func (r *Record) Has(path string) bool { return r != nil && r.find(path) != nil }

// Load reads the record; nil without one.
func (h Host) Load() (*Record, error) {
	at, err := h.place(filepath.Join(h.Dir, recordName))
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the installation record: %w", err)
	}
	r, err := parseRecord(b)
	if err != nil {
		return nil, fmt.Errorf("installation record %s is damaged: %w", at, err)
	}
	return r, nil
}

func parseRecord(b []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	for _, e := range r.Entries {
		if !filepath.IsAbs(e.Path) || filepath.Clean(e.Path) != e.Path || e.Path == "/" {
			return nil, fmt.Errorf("invalid file path %q", e.Path)
		}
	}
	return &r, nil
}

func (h Host) save(r *Record) error {
	at, err := h.place(filepath.Join(h.Dir, recordName))
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return undo.Write(at, append(b, '\n'))
}

// forget removes the record with its directory.
func (h Host) forget() error {
	at, err := h.place(filepath.Join(h.Dir, recordName))
	if err != nil {
		return err
	}
	if err := undo.Remove(at); err != nil {
		return err
	}
	return remove(filepath.Dir(at))
}

// Compare returns the recorded files that are missing, and those that changed.
func (h Host) Compare(r *Record) (missing, changed []string, err error) {
	for _, e := range r.Entries {
		digest, _, err := h.look(e.Path)
		switch {
		case err != nil:
			return nil, nil, err
		case digest == "":
			missing = append(missing, e.Path)
		case !e.isDir() && !slices.Contains(e.Digests, digest):
			changed = append(changed, e.Path)
		}
	}
	return missing, changed, nil
}

// lock excludes other processes from changing the host's installation.
func (h Host) lock() (unlock func(), err error) {
	at, err := h.place(filepath.Join(h.Dir, recordName))
	if err != nil {
		return nil, err
	}
	unlock, err = dirlock.Make(context.Background(), filepath.Dir(at), 0o755)
	if err != nil {
		return nil, fmt.Errorf("record the changes to undo: %w", err)
	}
	return unlock, nil
}
