package pair

import (
	"slices"

	"longhaul/internal/carry/flow"
)

// farProblems are those that a far relay may name.
var farProblems = []flow.PairProblem{flow.PairVersion, flow.PairDenied, flow.PairDraining, flow.PairEncrypt, flow.PairBusy}

// toldProblem is the problem that the other relay names; any other one counts as denied.
func toldProblem(text string) flow.PairProblem {
	if p := flow.PairProblem(text); slices.Contains(farProblems, p) {
		return p
	}
	return flow.PairDenied
}

// refuses reports whether somebody answers, and no session will stand until something is
// changed there or here.
func refuses(p flow.PairProblem) bool {
	return p != "" && p != flow.PairPathDown && p != flow.PairPathMTU && p != flow.PairDraining && !waits(p)
}

// waits reports whether the far relay has more work than it does.
func waits(p flow.PairProblem) bool { return p == flow.PairBusy || p == flow.PairOverloaded }
