package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"longhaul/packaging/kernels/result"
)

func TestKernels(t *testing.T) {
	var names []string
	for _, k := range kernels {
		if slices.Contains(names, k.name) {
			t.Errorf("two kernels named %s", k.name)
		}
		names = append(names, k.name)
		if _, ok := machines[k.arch]; !ok {
			t.Errorf("%s: no machine for %s", k.name, k.arch)
		}
		for _, c := range slices.Concat(k.lacks, k.only) {
			if !slices.Contains(allChecks, c) && !slices.Contains(slowChecks, c) {
				t.Errorf("%s: no check %s", k.name, c)
			}
		}
	}
	for _, pack := range tested {
		if files, err := filepath.Glob("../../" + pack + "/*_test.go"); err != nil || len(files) == 0 {
			t.Errorf("%s has no tests: %v", pack, err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	tests := []struct{ args, want string }{
		{"--kernels 6.1,sid --checks relay,mss --cache /tmp", ""},
		{"--kernels ci", ""},
		{"--kernels 2.6", `no kernel "2.6"`},
		{"--checks nothing", `no check "nothing"`},
		{"--tests internal/watch/web", `no tests of "internal/watch/web"`},
		{"--jobs 0", "at least 1"},
		{"more", `unexpected "more"`},
	}
	for _, tt := range tests {
		_, _, err := parse(strings.Fields(tt.args))
		if got := sprint(err); tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.args, got, tt.want)
		}
	}
}

func sprint(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestProblems(t *testing.T) {
	k := kernel{name: "old", lacks: []string{"haul"}}
	check := func(name string, status result.Status) result.Check {
		return result.Check{Name: name, Status: status, Detail: "why"}
	}
	tests := []struct {
		name   string
		report report
		want   string
	}{
		{"as expected", report{Checks: []result.Check{check("mss", result.OK), check("haul", result.Unsupported)}}, ""},
		{"failed", report{Checks: []result.Check{check("mss", result.Failed)}}, "mss: why"},
		{"failed, may lack", report{Checks: []result.Check{check("haul", result.Failed)}}, "haul: why"},
		{"lacks more", report{Checks: []result.Check{check("mss", result.Unsupported)}}, "mss should work: why"},
		{"works after all", report{Checks: []result.Check{check("haul", result.OK)}}, "haul works, and is expected not to: correct the list of kernels"},
		{"did not boot", report{Error: "it did not boot"}, "it did not boot"},
	}
	for _, tt := range tests {
		if got := strings.Join(tt.report.problems(k), "; "); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A message survives what the kernel prints around it.
func TestMessages(t *testing.T) {
	var console bytes.Buffer
	console.WriteString("[    0.1] booting\n[    2.0] rando")
	want := result.Check{Name: "mss", Status: result.OK, Seconds: 1, Detail: "fine"}
	for _, m := range []result.Message{{Release: "6.1"}, {Check: &want}, {Done: true}} {
		if err := result.Write(&console, m); err != nil {
			t.Fatal(err)
		}
	}
	console.WriteString("@longhaul {broken\n[    3.0] last line")
	text := console.String()
	var got []result.Message
	var log bytes.Buffer
	if err := result.Read(&console, &log, func(m result.Message) { got = append(got, m) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[0].Release != "6.1" || got[1].Check.Detail != want.Detail || !got[2].Done {
		t.Errorf("read %+v", got)
	}
	if log.String() != text {
		t.Errorf("the log is %q", log.String())
	}
}

func TestArchive(t *testing.T) {
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip("needs cpio: apt-get install cpio")
	}
	dir := t.TempDir()
	part := func(name, text string) string {
		root := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		file := root + ".cpio"
		if err := archive(t.Context(), root, file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	one := part("one", "1")
	joined := filepath.Join(dir, "joined")
	if err := concatenate(joined, one, part("two", "22")); err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile(joined)
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(one)
	if err != nil {
		t.Fatal(err)
	}
	second := all[(len(first)+3)/4*4:]
	if !bytes.HasPrefix(all, first) || !bytes.HasPrefix(second, []byte("070701")) {
		t.Errorf("the second archive does not follow the first on a multiple of 4 bytes")
	}
}
