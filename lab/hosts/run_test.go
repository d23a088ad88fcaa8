package hosts

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// TestOwnRuntime: programs of each host have an own /run/longhaul, and the machine's
// /run otherwise.
func TestOwnRuntime(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	// The test's own /run, with each kind of entry, in place of the machine's.
	must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount("/run", unix.MNT_DETACH)) })
	must(t, os.Mkdir("/run/longhaul", 0o700))
	must(t, os.WriteFile("/run/longhaul/machine.sock", nil, 0o600))
	must(t, os.Mkdir("/run/dir", 0o755))
	must(t, unix.Mount("tmpfs", "/run/dir", "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount("/run/dir", unix.MNT_DETACH)) })
	must(t, os.WriteFile("/run/dir/file", []byte("mounted\n"), 0o644))
	must(t, os.WriteFile("/run/file", []byte("file\n"), 0o644))
	must(t, os.Symlink("file", "/run/link"))
	must(t, unix.Mkfifo("/run/fifo", 0o600))

	run := func(h *Host, dir, script string) string {
		t.Helper()
		var out bytes.Buffer
		cmd := exec.Command("sh", "-c", script)
		cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &out, dir
		must(t, h.Start(cmd))
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, &out)
		}
		return strings.TrimSpace(out.String())
	}
	var made []*Host
	for _, name := range []string{"a", "b"} {
		h, err := New(name)
		must(t, err)
		t.Cleanup(h.Close)
		must(t, h.OwnRuntime())
		made = append(made, h)
		if got := run(h, "", "ls -A /run/longhaul; cat /run/dir/file /run/link; test -p /run/fifo"); got != "mounted\nfile" {
			t.Errorf("host %s sees in /run %q", name, got)
		}
		run(h, "", "echo > /run/longhaul/"+name)
	}
	for _, h := range made {
		if got := run(h, "", "ls -A /run/longhaul"); got != h.Name {
			t.Errorf("host %s has in its directory %q", h.Name, got)
		}
	}
	entries, err := os.ReadDir("/run/longhaul")
	if err != nil || len(entries) != 1 {
		t.Errorf("the machine's directory has %v, %v", entries, err)
	}
	// Programs start in the directory of this process or their own.
	here, err := filepath.Abs(".")
	must(t, err)
	if got := run(made[0], "", "pwd"); got != here {
		t.Errorf("a program starts in %s, want %s", got, here)
	}
	if got := run(made[0], "/run/dir", "pwd; ls"); got != "/run/dir\nfile" {
		t.Errorf("a program with a directory starts in %q", got)
	}
}
