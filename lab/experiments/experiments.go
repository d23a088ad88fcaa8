// Package experiments lists the lab's experiments.
package experiments

import (
	"longhaul/lab/experiment"
	"longhaul/lab/transfers"
	"longhaul/lab/zonetransfer"
)

// All returns the experiments in the order of lab list: those of the published
// reports first. Lists, commands, help and completion use it.
func All() []experiment.Experiment {
	var all []experiment.Experiment
	for _, e := range transfers.Experiments() {
		all = append(all, e.Entry())
	}
	return append(all, zonetransfer.Experiment())
}
