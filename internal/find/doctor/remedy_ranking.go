package doctor

import (
	"math"
	"slices"
)

const unknownCapacity = "the path's capacity"

// outlook returns the expected effect of removing causes.
func (c *patient) outlook(findings []Finding, removed []Cause) Outlook {
	if slices.ContainsFunc(removed, func(cause Cause) bool { return cause.entry().ends }) {
		return Outlook{} // a path that is down, or a connection that is, has no figures
	}
	bps, next := c.without(findings, removed)
	if math.IsInf(bps, 1) {
		for _, f := range findings {
			if f.unpredicted != "" && slices.Contains(removed, f.Cause) {
				return Outlook{Unknown: f.unpredicted}
			}
		}
		return Outlook{Unknown: unknownCapacity}
	}
	o := Outlook{PredictedBps: bps, Next: next, AtLeast: next == trialBound}
	if c.goodput > 0 {
		o.Gain = bps / c.goodput
	}
	return o
}

// remedies returns the remedies of all findings, most effective first. Remedies of
// several causes appear once. It leaves out those that would bring less than a fifth,
// unless the causes must go together.
func (c *patient) remedies(findings []Finding) []Remedy {
	var all []Remedy
	for _, finding := range findings {
		for _, r := range c.against(finding.Cause) {
			r.Causes = []Cause{finding.Cause}
			if c.o.Elsewhere {
				r.Apply, r.Undo = nil, nil
			}
			if k := slices.IndexFunc(all, r.isSame); k >= 0 {
				all[k].Causes = append(all[k].Causes, finding.Cause)
			} else {
				all = append(all, r)
			}
		}
	}
	for k := range all {
		all[k].Outlook = c.outlook(findings, all[k].Causes)
	}
	if pair := c.relayPair(findings); pair != nil {
		k := slices.IndexFunc(all, func(r Remedy) bool { return r.Causes[0] != findings[0].Cause })
		switch {
		case c.gain(findings[0]) == 0 || compareGains(pair.Gain, c.gain(findings[0])) > 0:
			k = 0 // it removes together what others remove alone
		case k < 0:
			k = len(all)
		}
		all = slices.Insert(all, k, *pair)
	}
	if pairing := c.pairing(findings); pairing != nil {
		all = slices.Insert(all, 0, *pairing)
	}
	all = c.o.Pair.ofLane(all)
	if c.gain(findings[0]) > 0 || len(all) > 0 && all[0].Gain >= Worthwhile {
		all = slices.DeleteFunc(all, func(r Remedy) bool { return r.Gain > 0 && r.Gain < Worthwhile })
	}
	return all
}

// isSame reports whether another remedy is the same deed.
func (r Remedy) isSame(other Remedy) bool {
	return r.Action == other.Action && r.Command == other.Command
}

// against returns the remedies of a cause, the usual one first.
func (c *patient) against(cause Cause) []Remedy {
	if entry := cause.entry(); entry.remedies != nil {
		return entry.remedies(c)
	}
	return nil
}
