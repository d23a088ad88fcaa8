// Package nettest provides sandboxes, the program under test, peer programs and
// leak checks to tests.
package nettest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/words/remedy"
	"longhaul/lab/sandbox"
)

// unavailable is the reason why there is no sandbox, for RequireSandbox.
var unavailable error

// Main is a TestMain that runs the package's tests inside a sandbox. There they
// may make devices, namespaces and routes, as root or as an ordinary user.
// Without a sandbox, the tests run outside, and RequireSandbox skips.
func Main(m *testing.M) { inSandbox(m, m.Run) }

// MainWithoutLeaks is Main with [RunWithoutLeaks], for a package with parallel tests.
func MainWithoutLeaks(m *testing.M) { inSandbox(m, func() int { return RunWithoutLeaks(m) }) }

func inSandbox(m *testing.M, run func() int) {
	sandbox.Init()
	if slices.ContainsFunc(os.Args, isFuzzing) {
		os.Exit(m.Run()) // which leaves a goroutine of its own
	}
	if !sandbox.Inside() {
		code, err := sandbox.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
		if err == nil {
			os.Exit(code)
		}
		unavailable = err
		os.Exit(run())
	}
	if err := loopbackUp(); err != nil {
		fmt.Fprintln(os.Stderr, "nettest: cannot bring the loopback device up:", err)
		os.Exit(1)
	}
	os.Exit(run())
}

// AtOnce has so many parallel tests run at the same time, unless -parallel says otherwise: for a
// package whose tests wait more than they compute. TestMain calls it before anything parses the
// command line.
func AtOnce(tests int) {
	if err := flag.Set("test.parallel", strconv.Itoa(tests)); err != nil {
		panic(err)
	}
}

// isFuzzing reports whether an argument starts fuzzing. Fuzzing workers use
// descriptors that a sandbox does not pass on, and fuzz targets need no
// sandbox.
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

// RequireSandbox skips the test, with the reason, if there is no sandbox. With
// CI=true it fails the test.
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

// RequireRoot skips the test unless its process is root over the whole machine.
// With CI=true it fails the test.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 || sandbox.UserNamespace() {
		skip(t, "needs root outside a user namespace")
	}
}

// AsUser runs f as another user, on a separate thread that ends with f. It
// needs [RequireRoot].
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

// OpenTempDir returns a temporary directory of the test that every user may
// enter.
func OpenTempDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != filepath.Clean(os.TempDir()); d = filepath.Dir(d) {
		Must(t, os.Chmod(d, 0o755))
	}
	return dir
}

// WriteProgram writes a program that the test runs. Another process writes it: a descriptor of this
// one, open for writing, would for a moment be also in each process that a parallel test starts, and
// the kernel runs no file that somebody may write ("text file busy").
func WriteProgram(t testing.TB, path string, content []byte) {
	t.Helper()
	from := path + ".content"
	Must(t, os.WriteFile(from, content, 0o600))
	defer os.Remove(from)
	if said, err := exec.Command("cp", from, path).CombinedOutput(); err != nil {
		t.Fatalf("cp %s %s: %v: %s", from, path, err, said)
	}
	Must(t, os.Chmod(path, 0o755))
}

// RequireProgram returns the path of a program. Without the program it skips
// the test and names the Debian package; with CI=true it fails the test.
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
