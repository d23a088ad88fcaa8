package link

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// AQM is the active management of the bottleneck's queue. The zero value only drops
// packets that do not fit into the queue.
type AQM struct {
	Algorithm AQMAlgorithm
	// Target is the acceptable standing wait; 0 means the RFC's: 5 ms with CoDel and
	// FQ-CoDel, 15 ms with PIE.
	Target time.Duration
	// Interval is CoDel's and FQ-CoDel's, about the longest round trip; 0 means
	// 100 ms.
	Interval time.Duration
	// ECN marks packets of ECN-capable transports where the algorithm would drop
	// them (RFC 3168, section 5). PIE drops them too from a probability of 10 % up
	// (RFC 8033, section 5.1).
	ECN bool
}

// AQMAlgorithm is an algorithm of queue management.
type AQMAlgorithm uint8

// The algorithms of queue management.
const (
	NoAQM   AQMAlgorithm = iota
	CoDel                // RFC 8289
	FQCoDel              // RFC 8290
	PIE                  // RFC 8033
)

var aqmNames = []string{NoAQM: "none", CoDel: "codel", FQCoDel: "fq_codel", PIE: "pie"}

// AQMNames returns the names of the algorithms, in lower case, beginning with none.
func AQMNames() []string { return slices.Clone(aqmNames) }

// ParseAQM returns the algorithm of a name.
func ParseAQM(name string) (AQMAlgorithm, error) {
	for i, known := range aqmNames {
		if name == known {
			return AQMAlgorithm(i), nil
		}
	}
	last := len(aqmNames) - 1
	return NoAQM, fmt.Errorf("invalid queue management %q: choose %s or %s", name, strings.Join(aqmNames[:last], ", "), aqmNames[last])
}

// String returns the name, such as fq_codel.
func (a AQMAlgorithm) String() string {
	if int(a) < len(aqmNames) {
		return aqmNames[a]
	}
	return fmt.Sprintf("AQM %d", uint8(a))
}

// TargetOrDefault is the standing wait that the algorithm accepts; 0 without one.
func (a AQM) TargetOrDefault() time.Duration {
	switch {
	case a.Algorithm == NoAQM || a.Target > 0:
		return a.Target
	case a.Algorithm == PIE:
		return pieTarget
	}
	return codelTarget
}

// String describes the management, such as "CoDel of 5 ms and ECN"; empty without
// one.
func (a AQM) String() string {
	if a.Algorithm == NoAQM {
		return ""
	}
	name := map[AQMAlgorithm]string{CoDel: "CoDel", FQCoDel: "FQ-CoDel", PIE: "PIE"}[a.Algorithm]
	text := fmt.Sprintf("%s of %g ms", name, float64(a.TargetOrDefault())/float64(time.Millisecond))
	if a.ECN {
		text += " and ECN"
	}
	return text
}
