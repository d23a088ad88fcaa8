// Package hosttest runs the algorithms' arithmetic on the host: the very
// headers that the BPF programs are compiled from, under the sanitizers for
// undefined behaviour and memory, against the formulas of their papers.
package hosttest

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// TestHaulSize: haul stays small enough to be read in one go. Whoever adds a rule removes
// one. And each rule that the simulator can switch off is in the program.
func TestHaulSize(t *testing.T) {
	files, err := filepath.Glob("../haul/*.h")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	var code strings.Builder
	for _, file := range append(files, "../haul.h") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(regexp.MustCompile(`//[^\n]*`).ReplaceAll(text, nil))
	}
	haul := code.String()
	state := regexp.MustCompile(`(?s)\nstruct haul \{(.*?)\n\};`).FindStringSubmatch(haul)
	if state == nil {
		t.Fatal("no struct haul")
	}
	members := regexp.MustCompile(`[,;]`)
	for _, count := range []struct {
		what      string
		got, most int
	}{
		{"if", len(regexp.MustCompile(`\bif \(`).FindAllString(haul, -1)), 119},
		{"members of struct haul", len(members.FindAllString(state[1], -1)), 76},
		{"constants", len(regexp.MustCompile(`(?m)^#define HAUL_[A-Z0-9_]+ `).FindAllString(haul, -1)), 29},
	} {
		t.Logf("%s: %d", count.what, count.got)
		if count.got > count.most {
			t.Errorf("%s: %d, at most %d", count.what, count.got, count.most)
		}
	}
	rules, err := os.ReadFile("haulrules.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range regexp.MustCompile(`\bX\((\w+), "`).FindAllSubmatch(rules, -1) {
		if !strings.Contains(haul, "HAUL_RULE("+string(rule[1])+")") {
			t.Errorf("rule %s is in haulrules.h and not in haul", rule[1])
		}
	}
}
