// Package experiments lists the lab's experiments.
package experiments

import (
	"longhaul/lab/chain"
	"longhaul/lab/congestion"
	"longhaul/lab/congestion/dossier"
	"longhaul/lab/diagnosis"
	"longhaul/lab/ends"
	"longhaul/lab/experiment"
	"longhaul/lab/failover"
	"longhaul/lab/interception"
	"longhaul/lab/pairs"
	"longhaul/lab/soak"
	"longhaul/lab/transfers"
	"longhaul/lab/upgrade"
	"longhaul/lab/zonetransfer"
)

// All returns the experiments in the order of lab list: those of the published
// reports first. Lists, commands, help and completion use it.
func All() []experiment.Experiment {
	var all []experiment.Experiment
	for _, e := range transfers.Experiments() {
		all = append(all, e.Entry())
	}
	all = append(all,
		congestion.Experiment(),
		dossier.Experiment(),
		zonetransfer.Experiment(),
		diagnosis.Experiment(),
		chain.Experiment(),
		failover.Experiment(),
		upgrade.Experiment(),
	)
	all = append(all, pairs.Experiments()...)
	return append(all,
		interception.Experiment(),
		soak.Experiment(),
		ends.Experiment(),
	)
}
