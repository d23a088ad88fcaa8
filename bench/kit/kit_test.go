package kit

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"longhaul/test/nettest"
)

// TestScripts runs the specs of testdata/script: programs of bench/ as they are built. The
// command "code CODE PROGRAM ARG..." runs one to its end, with this exit code; its output
// is in out and err.
func TestScripts(t *testing.T) {
	runScripts(t, "testdata/script", "check", "congestion", "diagnosis", "dossier", "ends", "pairs")
}

func runScripts(t *testing.T, dir string, programs ...string) {
	t.Helper()
	bin := t.TempDir()
	longhaul := filepath.Join(bin, "longhaul")
	build := func(file, path string) {
		out, err := exec.Command("go", "build", "-buildvcs=false", "-o", file, path).CombinedOutput()
		if err != nil {
			t.Fatalf("build %s: %v\n%s", path, err, out)
		}
	}
	build(longhaul, "longhaul/cmd/longhaul")
	for _, name := range programs {
		build(filepath.Join(bin, name), "longhaul/bench/"+name)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Condition: func(name string) (bool, error) {
			if name != "namespaces" {
				return false, errors.New("unknown condition " + name)
			}
			return nettest.CanMakeNamespaces()
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: code CODE PROGRAM ARG...")
				}
				cmd := exec.Command(longhaul, args[2:]...)
				if args[1] != "longhaul" {
					cmd = exec.Command(filepath.Join(bin, args[1]), append(args[2:], "--longhaul", longhaul)...)
				}
				cmd.Dir = ts.Getenv("WORK")
				var stdout, stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				err := cmd.Run()
				ts.Check(os.WriteFile(ts.MkAbs("out"), stdout.Bytes(), 0o644))
				ts.Check(os.WriteFile(ts.MkAbs("err"), stderr.Bytes(), 0o644))
				ts.Logf("%s%s", stdout.Bytes(), stderr.Bytes())
				if got := cmd.ProcessState.ExitCode(); strconv.Itoa(got) != args[0] {
					ts.Fatalf("exit code %d, want %s: %v", got, args[0], err)
				}
			},
		},
	})
}
