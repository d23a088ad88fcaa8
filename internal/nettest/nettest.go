// Package nettest helps tests that need namespaces, peer programs or proof
// that nothing leaks.
package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/lab/sandbox"
	"longhaul/internal/remedy"
)

// unavailable carries the reason from the outer test process to RequireSandbox.
var unavailable error

// Main is a TestMain that runs the package's tests inside a sandbox, where
// they may make devices, namespaces and routes as root or as an ordinary
// user. Where a sandbox cannot be had the tests run outside it, and those that
// call RequireSandbox skip.
func Main(m *testing.M) {
	sandbox.Init()
	if slices.ContainsFunc(os.Args, isFuzzing) {
		os.Exit(m.Run())
	}
	if !sandbox.Inside() {
		code, err := sandbox.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
		if err == nil {
			os.Exit(code)
		}
		unavailable = err
		os.Exit(m.Run())
	}
	if err := loopbackUp(); err != nil {
		fmt.Fprintln(os.Stderr, "nettest: cannot bring the loopback device up:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// isFuzzing says whether an argument asks for fuzzing. Its workers talk to the
// process that started them over descriptors that a sandbox does not hand on,
// and what they run needs no sandbox.
func isFuzzing(argument string) bool {
	return strings.HasPrefix(argument, "-test.fuzz=") || argument == "-test.fuzzworker"
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// RequireSandbox skips the test with the reason where no sandbox can be had.
// Under CI=true that is a failure.
func RequireSandbox(t testing.TB) {
	t.Helper()
	if sandbox.Inside() {
		return
	}
	if unavailable == nil {
		t.Fatal("the package's TestMain does not call nettest.Main")
	}
	skip(t, remedy.Line(unavailable))
}

// RequireRoot skips the test where its process is not root over the whole
// machine. Under CI=true that is a failure.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 || sandbox.UserNamespace() {
		skip(t, "needs root outside a user namespace")
	}
}

// AsUser runs f as another user, on a thread of its own, which dies with its
// identity. It wants [RequireRoot].
func AsUser(uid int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		id := uintptr(uid)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
			done <- errno
			return
		}
		done <- f()
	}()
	return <-done
}

// OpenTempDir is a temporary directory of the test that every user may enter.
func OpenTempDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != filepath.Clean(os.TempDir()); d = filepath.Dir(d) {
		Must(t, os.Chmod(d, 0o755))
	}
	return dir
}

// RequireProgram returns the path of a program, and skips the test where it
// is not installed, naming the Debian package that has it. Under CI=true that
// is a failure.
func RequireProgram(t testing.TB, name, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
			if _, err := os.Stat(dir + name); err == nil {
				return dir + name
			}
		}
		skip(t, fmt.Sprintf("needs %s (Debian package %s)", name, debianPackage))
	}
	return path
}

func skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("CI must be able to run this: " + reason)
	}
	t.Skip(reason)
}
