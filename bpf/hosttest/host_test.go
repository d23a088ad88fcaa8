// Package hosttest runs the algorithms' arithmetic on the host: the very
// headers that the BPF programs are compiled from, under the sanitizers for
// undefined behaviour and memory, against the formulas of their papers.
package hosttest

import (
	"flag"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"longhaul/test/nettest"
)

var allPaths = flag.Bool("all", false, "simulate all paths, not only a share of them")

func TestArithmetic(t *testing.T) {
	compiler := nettest.RequireProgram(t, "gcc", "gcc")
	programs, err := filepath.Glob("*.c")
	if err != nil || len(programs) == 0 {
		t.Fatalf("no programs: %v", err)
	}
	algorithms, err := filepath.Glob("../*.bpf.c")
	if err != nil {
		t.Fatal(err)
	}
	// Every algorithm has its test. What rewrites packets is tested with them,
	// in internal/tune/mss.
	for _, algorithm := range algorithms {
		name := strings.TrimSuffix(filepath.Base(algorithm), ".bpf.c")
		if name != "mss" && !slices.Contains(programs, name+".c") {
			t.Errorf("bpf/hosttest/%s.c is missing", name)
		}
	}
	for _, program := range programs {
		t.Run(strings.TrimSuffix(program, ".c"), func(t *testing.T) {
			t.Parallel()
			binary := filepath.Join(t.TempDir(), "test")
			// Unsigned arithmetic may wrap in C without a word; the programs
			// compare with wider arithmetic instead.
			compile := exec.Command(compiler, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function",
				"-fsanitize=undefined,address", "-fno-sanitize-recover=all", "-o", binary, program, "-lm")
			if out, err := compile.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var share []string
			if *allPaths {
				share = []string{"all"}
			}
			out, err := exec.Command(binary, share...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}
