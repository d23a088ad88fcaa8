//go:build timed

package nettest

import "testing"

// MostOf makes a measurement up to three times, and fails the test unless it
// holds twice. A bound that holds for most runs holds for their median. Only
// tests with the build tag "timed" measure; they need an otherwise idle machine
// (.ci/full).
func MostOf(t testing.TB, measure func() error) {
	t.Helper()
	const enough = 2
	for held, failed := 0, 0; held < enough; {
		err := measure()
		if err == nil {
			held++
			continue
		}
		t.Log(err)
		if failed++; failed == enough {
			t.Fatalf("%v, in %d of %d runs", err, failed, held+failed)
		}
	}
}
