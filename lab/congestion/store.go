package congestion

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
)

// Store saves runs in a directory, a file for each, so that an interrupted grid can
// continue. A nil Store saves nothing.
type Store struct{ dir string }

// NewStore makes the directory if it is missing.
func NewStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("store results: %w", err)
	}
	return &Store{dir}, nil
}

// stored is a run with its conditions.
type stored struct {
	Algorithm  string         `json:"algorithm"`
	Conditions map[string]any `json:"conditions"`
	Run        Run            `json:"run"`
}

// file names a run by the values that a grid varies.
func (s *Store) file(p Path, algorithm string) string {
	return filepath.Join(s.dir, fmt.Sprintf("%gMbit-%gms-%gpct-%s-%gbdp-%s-seed%d.json",
		float64(p.RateBps)/1e6, milliseconds(p.RTT), 100*p.Loss.Probability, p.LossPlace, p.QueueBDP, algorithm, p.Seed))
}

// load returns a saved run, or nil. It refuses a run under other conditions, which
// would not be comparable.
func (s *Store) load(p Path, algorithm string, o Options) (*Run, error) {
	if s == nil {
		return nil, nil
	}
	file := s.file(p, algorithm)
	var kept stored
	if found, err := LoadResult(file, &kept); err != nil || !found {
		return nil, err
	}
	want, err := asJSON(p.conditions(o))
	if err != nil {
		return nil, err
	}
	names := []string{}
	for name := range want {
		names = append(names, name)
	}
	for name := range kept.Conditions {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !reflect.DeepEqual(want[name], kept.Conditions[name]) {
			return nil, fmt.Errorf("%s was measured with %s %v, not %v: choose another directory", file, name, kept.Conditions[name], want[name])
		}
	}
	return &kept.Run, nil
}

// asJSON makes values comparable with stored ones.
func asJSON(conditions map[string]any) (out map[string]any, err error) {
	data, err := json.Marshal(conditions)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	return out, err
}

// save saves a run in one step.
func (s *Store) save(p Path, algorithm string, o Options, r Run) error {
	if s == nil {
		return nil
	}
	data, err := json.Marshal(stored{algorithm, p.conditions(o), r})
	if err != nil {
		return err
	}
	if err := WriteFile(s.file(p, algorithm), data); err != nil {
		return fmt.Errorf("store a result: %w", err)
	}
	return nil
}
