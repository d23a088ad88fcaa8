package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"longhaul/internal/kernel"
	"longhaul/internal/undo"
)

// Setting has longhaul's changes of a prefix's route.
type Setting struct {
	Prefix   netip.Prefix `json:"prefix"`
	Priority uint32       `json:"priority"` // the route's metric
	// Made: the route was added for this, from the one that covered the prefix.
	// Otherwise it existed.
	Made    bool             `json:"made"`
	Metrics map[Metric]*Done `json:"metrics"`
}

// Done is the change of one metric.
type Done struct {
	Set    Value `json:"set"`
	Former Value `json:"former"` // value before the first change
	// Replaces is the value set before Set, in case that change was interrupted.
	Replaces *Value `json:"replaces,omitempty"`
}

// Values returns the set values.
func (s Setting) Values() map[Metric]Value {
	values := map[Metric]Value{}
	for name, done := range s.Metrics {
		values[name] = done.Set
	}
	return values
}

// note records the next change of a metric.
func (s *Setting) note(name Metric, value, now Value) {
	if s.Metrics == nil {
		s.Metrics = map[Metric]*Done{}
	}
	done := &Done{Set: value, Former: now}
	if before := s.Metrics[name]; before != nil {
		// Undo restores the value before the first change.
		done.Former = before.Former
		if before.Set != value {
			done.Replaces = &before.Set
		}
	}
	s.Metrics[name] = done
}

func (s Setting) clone() Setting {
	s.Metrics = maps.Clone(s.Metrics)
	return s
}

// split splits a setting into the named metrics, all if none is named, and the rest.
func (s Setting) split(names []Metric) (some, rest Setting) {
	some, rest = s, s
	some.Metrics, rest.Metrics = map[Metric]*Done{}, map[Metric]*Done{}
	for name, done := range s.Metrics {
		if len(names) == 0 || slices.Contains(names, name) {
			some.Metrics[name] = done
		} else {
			rest.Metrics[name] = done
		}
	}
	return some, rest
}

// records is the file with the changes in a network namespace.
type records struct {
	path     string
	close    func() // ends the lock
	settings []Setting
}

// open reads and locks the records of the calling thread's namespace until close.
func (t *Table) open() (*records, error) {
	path, err := t.path()
	if err != nil {
		return nil, err
	}
	unlock, err := undo.Lock(t.Undo)
	if err != nil {
		return nil, err
	}
	settings, err := readSettings(path)
	if err != nil {
		unlock()
		return nil, err
	}
	return &records{path: path, close: unlock, settings: settings}, nil
}

// path returns the file of the calling thread's namespace.
func (t *Table) path() (string, error) {
	cookie, err := kernel.NetNSCookie()
	if err != nil {
		return "", err
	}
	return filepath.Join(t.Undo, fmt.Sprintf("routes-%d.json", cookie)), nil
}

func readSettings(path string) ([]Setting, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var settings []Setting
	if err := json.Unmarshal(b, &settings); err != nil {
		return nil, fmt.Errorf("%s is damaged, remove it: %w", path, err)
	}
	return settings, nil
}

// write replaces the file, and removes it if no record is left.
func (r *records) write() error {
	if len(r.settings) == 0 {
		return undo.Remove(r.path)
	}
	b, err := json.MarshalIndent(r.settings, "", "  ")
	if err != nil {
		return err
	}
	return undo.Write(r.path, append(b, '\n'))
}
