package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"longhaul/lab/sandbox"
)

// Longhaul returns the path of the program under test, which the first call
// builds. LONGHAUL_BINARY selects another one. Every user may run it.
func Longhaul(t testing.TB) string {
	t.Helper()
	RequireSandbox(t)
	if path := os.Getenv("LONGHAUL_BINARY"); path != "" {
		return path
	}
	path, err := builtLonghaul()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// builtLonghaul builds into the sandbox's private /run, which ends with the
// sandbox.
var builtLonghaul = sync.OnceValues(func() (string, error) {
	const path = "/run/longhaul-under-test"
	if err := sandbox.PrivateRun(); err != nil {
		return "", err
	}
	// The go command keeps the program that it links to run it: so the tests of all packages
	// link it once, and each copies it. An ordinary user's tests may run in another user's
	// checkout, whose version control the go command rejects.
	out, err := exec.Command("go", "run", "-buildvcs=false", "-exec", "cp", "longhaul/cmd/longhaul", path).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build longhaul: %w\n%s", err, out)
	}
	return path, nil
})
