package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"longhaul/bench/kit/congestion"
)

// store keeps the runs in a directory, a file for each, so that a run can be interrupted,
// and made in parts.
type store struct {
	dir       string
	maxLateMs congestion.Value // of a run that counts; None counts all
}

// record is a run with its conditions.
type record struct {
	Trial       json.RawMessage  `json:"trial"`
	Seed        uint64           `json:"seed"`
	Kernel      string           `json:"kernel"`
	At          time.Time        `json:"at"`
	Parallel    int              `json:"parallel"`            // trials that could run at once
	MachineBusy float64          `json:"machine_busy"`        // share of the CPU time of all CPUs, by anything
	LateP99Ms   congestion.Value `json:"machine_late_p99_ms"` // of a thread of this process that sleeps, while the run lasted
	Measured    measured         `json:"measured"`
}

// identity is the same text for equal trials. Fields that are not set are left out, so
// that a new field of a path does not make old results strangers.
func (t trial) identity() ([]byte, error) {
	t = t.withSeed(0) // each run has its own
	named := struct {
		trial
		Trace, TraceBack string // a trace is known by its name
	}{trial: t}
	if t.Path.Trace != nil {
		named.Trace = t.Path.Trace.Name()
	}
	if t.Path.TraceBack != nil {
		named.TraceBack = t.Path.TraceBack.Name()
	}
	data, err := json.Marshal(named)
	if err != nil {
		return nil, err
	}
	var fields any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	return json.Marshal(withoutZeros(fields))
}

// withSeed returns the trial with another seed.
func (t trial) withSeed(seed uint64) trial {
	t.Path.Seed = seed
	t.Changes = slices.Clone(t.Changes)
	for i := range t.Changes {
		t.Changes[i].To.Seed = seed
	}
	return t
}

// withoutZeros removes the fields of objects that have their zero value.
func withoutZeros(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, field := range v {
			if field = withoutZeros(field); field == nil {
				delete(v, name)
			} else {
				v[name] = field
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = withoutZeros(v[i])
		}
		if len(v) == 0 {
			return nil
		}
	case json.Number:
		if v == "0" {
			return nil
		}
	case string:
		if v == "" {
			return nil
		}
	case bool:
		if !v {
			return nil
		}
	}
	return v
}

// file is the file of a run. Its name has the algorithms, so that the runs of one can be
// removed when it changes.
func (s store) file(t trial, identity []byte, seed uint64) string {
	var algorithms []string
	for _, g := range t.Groups {
		if !slices.Contains(algorithms, g.Algorithm) {
			algorithms = append(algorithms, g.Algorithm)
		}
	}
	sum := sha256.Sum256(identity)
	return filepath.Join(s.dir, fmt.Sprintf("%s-%s-%d.json", strings.Join(algorithms, "+"), hex.EncodeToString(sum[:8]), seed))
}

// load returns a stored run, or nil.
func (s store) load(file string) (*record, error) {
	var r record
	if found, err := congestion.LoadResult(file, &r); err != nil || !found {
		return nil, err
	}
	return &r, nil
}

// notes returns what whoever measured wrote into notes.md of the directory: what the
// records do not know, such as the version of an algorithm.
func (s store) notes() (string, error) {
	text, err := os.ReadFile(filepath.Join(s.dir, "notes.md"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the notes: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// save stores a run in one step.
func (s store) save(file string, r record) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("store a result: %w", err)
	}
	if err := congestion.WriteFile(file, data); err != nil {
		return fmt.Errorf("store a result: %w", err)
	}
	return nil
}
