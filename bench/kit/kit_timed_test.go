//go:build timed

package kit

import "testing"

// TestTimedScripts runs the specs of testdata/timed: experiments whose verdicts take a
// machine that does nothing else.
func TestTimedScripts(t *testing.T) {
	runScripts(t, "testdata/timed", "check", "diagnosis")
}
