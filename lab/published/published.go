// Package published lists the experiments of the published reports.
package published

import (
	"longhaul/lab/experiment"
	"longhaul/lab/transfers"
	"longhaul/lab/zonetransfer"
)

// All returns them in the order of the help. Commands, help and completion use it.
func All() []experiment.Experiment {
	var all []experiment.Experiment
	for _, e := range transfers.Experiments() {
		all = append(all, e.Entry())
	}
	return append(all, zonetransfer.Experiment())
}
