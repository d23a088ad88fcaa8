package doctor

import "fmt"

// pairDownCause is named before any rule: no connection shows it.
var pairDownCause = causeEntry{
	cause: PairDown,
	sentence: func(r *Report) string {
		p := r.Observation.Pair
		return fmt.Sprintf("The pair of tunnel %s with %s has no session: %s.", p.Tunnel, p.Peer, p.Text)
	},
}
