package cc

import (
	"errors"
	"testing"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/ccnames"
	"longhaul/test/nettest"
)

// requireStructOps skips a test where the kernel takes no congestion control from BPF:
// it has neither BTF nor struct_ops.
func requireStructOps(t testing.TB) {
	t.Helper()
	if err := kernel.CheckBTF("a congestion control"); err != nil {
		t.Skip(err)
	}
	_, err := readKernelTypes()
	if _, lacks := errors.AsType[*kernel.ErrUnsupported](err); lacks {
		t.Skip(err)
	}
	must(t, err)
}

// requirePaced skips a test of bbr3, haul or brutal where they cannot work.
func requirePaced(t testing.TB) {
	t.Helper()
	nettest.RequireRoot(t)
	paces, err := bpfPaces()
	must(t, err)
	if !paces {
		t.Skip("needs BPF that may set a socket's pacing (Linux 6.0)")
	}
}

// mustPace reports whether an algorithm cannot work without setting a socket's pacing.
func mustPace(algorithm string) bool {
	return ccnames.Paces(algorithm)
}

// requireAlgorithm skips a test where this kernel cannot have an algorithm.
func requireAlgorithm(t testing.TB, algorithm string) {
	t.Helper()
	if mustPace(algorithm) {
		requirePaced(t)
	}
}

// wantNotes returns how many notes loading an algorithm gives.
func wantNotes(t testing.TB, algorithm string) int {
	t.Helper()
	paces, err := bpfPaces()
	must(t, err)
	if algorithm == "hybla" && !paces {
		return 1 // it works without pacing
	}
	return 0
}
