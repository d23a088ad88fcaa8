//go:build timed

package main

import "testing"

// TestTimedScripts runs the specs of testdata/timed: experiments whose verdicts take a
// machine that does nothing else.
func TestTimedScripts(t *testing.T) {
	runScripts(t, "testdata/timed")
}
