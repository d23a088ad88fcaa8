package service

import (
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

	"longhaul/internal/undo"
)

// Record is what was made on a host.
type Record struct {
	// Program is what the unit starts.
	Program string `json:"program,omitempty"`

	// Version is what installed last.
	Version string    `json:"version"`
	At      time.Time `json:"at"`

	// Complete: nothing interrupted the last change.
	Complete bool    `json:"complete"`
	Entries  []Entry `json:"entries"`

	// Loads lists the congestion controls that the service may have loaded since
	// it was installed.
	Loads []string `json:"loads,omitempty"`

	// Choices are the drop-ins that the last installation asked for.
	Choices []string `json:"choices,omitempty"`
}

// Entry is a file, a symbolic link or a directory that was made.
type Entry struct {
	Path string `json:"path"`
	// Digests of what was put there: of the last, and, while a change is under
	// way, of the one before. None for a directory.
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

// add notes one more content of a path, or a directory.
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

// Has says whether something at the path was made here.
func (r *Record) Has(path string) bool { return r != nil && r.find(path) != nil }

// Load reads what was made; nil if nothing was.
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

// Compare says which of the recorded files are missing, and which somebody has
// changed.
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

// lock makes this process the only one to change the host's installation.
func (h Host) lock() (unlock func(), err error) {
	at, err := h.place(filepath.Join(h.Dir, recordName))
	if err != nil {
		return nil, err
	}
	return undo.Lock(filepath.Dir(at))
}
