package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
)

// A known share is that of a bound which haul does not hold yet: the share of its paths
// that were found to break it.
type known struct {
	Kind  string  `json:"kind"`
	Bound string  `json:"bound"`
	Share float64 `json:"share"`
}

// readKnown reads a file of known shares.
func readKnown(name string) ([]known, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--known: %w", err)
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	list := []known{}
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("--known %s: %w", name, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("--known %s: more than one list", name)
	}
	for _, k := range list {
		if !isBound(k.Kind, k.Bound) {
			return nil, fmt.Errorf("--known %s: unknown bound %q of kind %q", name, k.Bound, k.Kind)
		}
		if k.Share <= 0 || k.Share > 1 {
			return nil, fmt.Errorf("--known %s: share of %s %s is %g, not above 0 and at most 1", name, k.Kind, k.Bound, k.Share)
		}
	}
	return list, nil
}

func isBound(kind, bound string) bool {
	for _, k := range kinds {
		for _, b := range k.bounds {
			if k.name == kind && b.name == bound {
				return true
			}
		}
	}
	return false
}

// worse says whether a bound is exceeded by more than is allowed or known. Beside known
// shares a sample may show more, by three standard deviations of as many paths.
func (t tally) worse(list []known) bool {
	if !t.Exceeded || list == nil {
		return t.Exceeded
	}
	share := t.Allowed
	for _, k := range list {
		if k.Kind == t.Kind && k.Bound == t.Bound {
			share = max(share, k.Share)
		}
	}
	if share == never {
		return true
	}
	n := float64(t.Paths)
	return float64(t.Failures) > n*share+3*math.Sqrt(n*share*(1-share))+1
}
