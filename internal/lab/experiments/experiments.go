// Package experiments lists the lab's experiments.
package experiments

import (
	"longhaul/internal/lab/chain"
	"longhaul/internal/lab/congestion"
	"longhaul/internal/lab/congestion/dossier"
	"longhaul/internal/lab/diagnosis"
	"longhaul/internal/lab/ends"
	"longhaul/internal/lab/experiment"
	"longhaul/internal/lab/failover"
	"longhaul/internal/lab/interception"
	"longhaul/internal/lab/pairs"
	"longhaul/internal/lab/soak"
	"longhaul/internal/lab/transfers"
	"longhaul/internal/lab/upgrade"
	"longhaul/internal/lab/zonetransfer"
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
