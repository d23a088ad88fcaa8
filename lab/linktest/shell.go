package linktest

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"longhaul/lab/hosts"
)

// Output runs a command on a host and returns what it writes. A command that fails ends
// the test.
func Output(t testing.TB, h *hosts.Host, cmd *exec.Cmd) string {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, out.String())
	}
	return out.String()
}

// Shell runs a shell command on a host, which finds the programs of an administrator, and
// returns what it writes.
func Shell(t testing.TB, h *hosts.Host, command string, arguments ...string) string {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-ec", command, "sh"}, arguments...)...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	return Output(t, h, cmd)
}
