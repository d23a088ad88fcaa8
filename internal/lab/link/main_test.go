package link

import (
	"os"
	"slices"
	"strings"
	"testing"

	"longhaul/internal/nettest"
)

func TestMain(m *testing.M) {
	// Fuzzing talks to its workers over descriptors that a sandbox would not
	// pass on, and needs none.
	if slices.ContainsFunc(os.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "-test.fuzz=") || strings.HasPrefix(arg, "-test.fuzzworker")
	}) {
		os.Exit(m.Run())
	}
	nettest.Main(m)
}
