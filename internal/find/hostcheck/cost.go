package hostcheck

import (
	"encoding/json"
	"fmt"
	"slices"

	"longhaul/internal/words/ccnames"
)

// Cost is what a lack costs in goodput on the path.
type Cost struct {
	// WithBps is the goodput with the part, WithoutBps without it, and LosesBps the
	// difference.
	WithBps    float64 `json:"with_bps"`
	WithoutBps float64 `json:"without_bps"`
	LosesBps   float64 `json:"loses_bps"` // left out if Unknown
	// AtLeast: WithoutBps is an upper bound.
	AtLeast bool `json:"at_least,omitempty"`
	// Instead is what takes the part's place.
	Instead string `json:"instead,omitempty"`
	// Source says where the figures come from.
	Source string `json:"source,omitempty"`
	// Unknown is the reason for missing figures.
	Unknown string `json:"unknown,omitempty"`
}

// MarshalJSON leaves figures out that nobody knows, and keeps a cost of 0.
func (c Cost) MarshalJSON() ([]byte, error) {
	type plain Cost
	if c.Unknown == "" {
		return json.Marshal(plain(c))
	}
	return json.Marshal(map[string]string{"unknown": c.Unknown, "instead": c.Instead})
}

// lossOf is the cost of what leaves less goodput.
func lossOf(with, without float64, source string) *Cost {
	return &Cost{WithBps: with, WithoutBps: without, LosesBps: max(with-without, 0), Source: source}
}

// bound is the cost of a bound on the goodput. A bound above what the path carries may
// still cost something, of which there is no figure.
func (c *checker) bound(bps float64, source string) *Cost {
	limit := c.Path.LimitBps()
	if bps >= limit {
		return &Cost{Unknown: "no figure: " + source + " is as much as the path carries"}
	}
	cost := lossOf(limit, bps, source)
	cost.AtLeast = true
	return cost
}

// windowCost is the cost of a window or buffer of some bytes.
func (c *checker) windowCost(bytes int) *Cost {
	return c.bound(c.Path.way().WindowBps(bytes), size(bytes)+" per round trip")
}

// sackCost is the cost of selective acknowledgements that are turned off.
func (c *checker) sackCost() *Cost {
	if c.Path.Loss <= 0 {
		return lossOf(c.Path.LimitBps(), c.Path.LimitBps(), "nothing is lost")
	}
	return c.bound(c.Path.way().WithoutSACKBps(), "one lost segment per round trip (RFC 6582)")
}

// addCosts adds the costs that depend on the other parts.
func (c *checker) addCosts() {
	for i := range c.parts {
		p := &c.parts[i]
		if p.State != No && p.State != Limited || p.Cost != nil {
			continue
		}
		switch p.Feature {
		case "cc":
			// What limits one of longhaul's costs no goodput.
			if p.State == No || p.kernels {
				p.Cost = c.algorithmCost(*p)
			}
		case "mss":
			p.Cost = c.segmentCost()
		case "route":
			p.Cost = c.startCost()
		}
	}
}

// goodput is an algorithm's goodput on the path; source is empty if it is not known.
func (c *checker) goodput(algorithm string) (bps float64, source string) {
	if bps, ok := c.Path.Measured[algorithm]; ok {
		return bps, "measured: " + c.Path.By
	}
	way := c.Path.way()
	bps, ok := way.GoodputBps(algorithm, way.MSS())
	switch {
	case !ok:
		return 0, ""
	case c.Path.Loss <= 0:
		return bps, "the path's rate less headers"
	}
	return bps, "the model of " + algorithm + " (RFC 9438, 5.1)"
}

// algorithmCost is the cost of a missing algorithm. In place of one of longhaul's a sender
// can use the best of the others. In place of one of the kernel's the relay takes CUBIC.
func (c *checker) algorithmCost(missing Part) *Cost {
	with, source := c.goodput(missing.Name)
	best, bestSource := c.goodput("cubic")
	instead := "cubic"
	for _, p := range c.parts {
		if p.Feature != "cc" || p.Name == missing.Name || ccnames.NeedsRate(p.Name) || p.State != Yes && p.State != Limited || missing.kernels {
			continue
		}
		bps, from := c.goodput(p.Name)
		if from == "" && slices.Contains([]string{"bbr", "haul"}, p.Name) {
			return &Cost{Instead: p.Name, Unknown: "no figure for " + p.Name + " on this path"}
		}
		if bps > best {
			best, bestSource, instead = bps, from, p.Name
		}
	}
	if source == "" {
		return &Cost{Instead: instead, Unknown: "no figure for " + missing.Name + " on this path"}
	}
	if source != bestSource {
		source += "; " + bestSource
	}
	cost := lossOf(with, best, source)
	cost.Instead = instead
	return cost
}

// defaultMSS is what a sender assumes if the receiver announces no MSS (RFC 9293, 3.7.1).
const defaultMSS = 536

// segmentCost is the cost of segments that cannot be raised, for a far host that announces
// the default MSS, with the algorithm that every host has.
func (c *checker) segmentCost() *Cost {
	way := c.Path.way()
	with, _ := way.GoodputBps("cubic", way.MSS())
	without, _ := way.GoodputBps("cubic", min(defaultMSS, way.MSS()))
	cost := lossOf(with, without, fmt.Sprintf("the model of cubic (RFC 9438, 5.1), for a far host that announces %d where the path carries %d", defaultMSS, way.MTU-40))
	cost.Instead = fmt.Sprintf("MSS %d", defaultMSS)
	return cost
}

// The transfer of startCost, and initial windows in segments: Linux's (RFC 6928) and
// doctor's remedy.
const (
	shortTransfer      = 1e6
	initialWindow      = 10
	largeInitialWindow = 40
)

// startCost is the cost of an initial window that cannot be raised, for a transfer of 1 MB.
func (c *checker) startCost() *Cost {
	way := c.Path.way()
	cost := lossOf(way.TransferBps(shortTransfer, largeInitialWindow), way.TransferBps(shortTransfer, initialWindow),
		fmt.Sprintf("a transfer of 1 MB in slow start (RFC 5681, 3.1) without loss, with initcwnd %d", largeInitialWindow))
	cost.Instead = fmt.Sprintf("initcwnd %d", initialWindow)
	return cost
}
