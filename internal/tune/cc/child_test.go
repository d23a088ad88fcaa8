package cc

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/test/nettest"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// childRole names the environment variable that makes the test binary run as a
// child of a test; its arguments are the BPF filesystem, the undo directory
// and a name.
const childRole = "LONGHAUL_CC_TEST_CHILD"

// childUnlinked names the environment variable that makes a child register without
// links.
const childUnlinked = "LONGHAUL_CC_TEST_UNLINKED"

// child is the child's main. Roles: "churn" loads and unloads until it is
// killed, "replace" replaces one build by another until it is killed, "load" loads once and prints the error, "list" prints the list.
func child(role string) int {
	h := NewHost(testBy)
	h.BPFFS, h.Ledger, h.unregisterPatience = os.Args[1], os.Args[2], patience
	h.unlinked = os.Getenv(childUnlinked) != ""
	name := os.Args[3]
	if role == "list" {
		all, err := h.List(true)
		if err != nil {
			fmt.Print(err)
			return 1
		}
		return exitCode(json.NewEncoder(os.Stdout).Encode(all))
	}
	if role == "replace" {
		err := replaceAgainAndAgain(h, name)
		fmt.Println(err)
		return exitCode(err)
	}
	if role == "load" {
		_, err := h.Load(context.Background(), "hybla", name)
		fmt.Print(err)
		var lacking *kernel.ErrUnsupported
		if errors.As(err, &lacking) {
			fmt.Print(" [unsupported]")
		}
		return 0
	}
	for {
		if _, err := h.Load(context.Background(), churned(), name); err != nil {
			fmt.Println(err)
			return 1
		}
		if err := h.SetDefault(context.Background(), name); err != nil {
			fmt.Println(err)
			return 1
		}
		if _, err := h.Unload(context.Background(), name); err != nil {
			fmt.Println(err)
			return 1
		}
	}
}

var kills = flag.Int("kills", 1, "how many times as often processes are killed, or contend")

// rounds is how often a test repeats itself: once where it shall be short.
func rounds(usual int) int {
	if testing.Short() {
		return 1
	}
	return usual * *kills
}

// churned is the algorithm that the children load: the one with the most pins, where
// the kernel can have it.
func churned() string {
	if paces, err := bpfPaces(); err == nil && !paces {
		return "illinois"
	}
	return "brutal"
}

// replaceAgainAndAgain loads two builds in turn.
func replaceAgainAndAgain(h *Host, name string) error {
	for builds := []fs.FS{h.Objects, otherBuild(h)}; ; builds[0], builds[1] = builds[1], builds[0] {
		h.Objects = builds[0]
		if _, err := h.Load(context.Background(), churned(), name); err != nil {
			return err
		}
	}
}

func exitCode(err error) int {
	if err != nil {
		return 1
	}
	return 0
}

func childCommand(h *Host, role, name string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", h.BPFFS, h.Ledger, name)
	cmd.Env = append(os.Environ(), childRole+"="+role)
	if h.unlinked {
		cmd.Env = append(cmd.Env, childUnlinked+"=1")
	}
	return cmd
}

// TestKilled kills a process that loads and unloads, after each of its steps, and
// holds that unload clears whatever is left.
func TestKilled(t *testing.T) { eachWay(t, killed) }

func killed(t *testing.T, h *Host) {
	h.abandonedPatience = patience
	before, err := ReadDefault()
	must(t, err)
	exists := func(path ...string) bool {
		_, err := os.Stat(h.dir(path...))
		return err == nil
	}
	begun := false
	steps := []struct {
		name  string
		taken func(name string) bool
	}{
		{"started", func(string) bool { return true }},
		{"directory", func(name string) bool { return exists(name) }},
		{"build", func(name string) bool { return exists(name, buildPin) }},
		{"registration", func(name string) bool { return exists(name, linkPin) || exists(name, opsPin) }},
		{"default", func(name string) bool { now, err := ReadDefault(); return err == nil && now == name }},
		{"unloaded", func(name string) bool {
			there := exists(name)
			begun = begun || there
			return begun && !there
		}},
	}
	for round := range rounds(1) * len(steps) {
		step := steps[round%len(steps)]
		name := testName()
		cmd := childCommand(h, "churn", name)
		var out strings.Builder
		cmd.Stdout = &out
		must(t, cmd.Start())
		begun = false
		for deadline := time.Now().Add(patience); !step.taken(name); {
			if time.Now().After(deadline) {
				t.Errorf("the step %q is never seen", step.name)
				break
			}
			runtime.Gosched() // a step may be over in less than a millisecond
		}
		must(t, cmd.Process.Signal(syscall.SIGKILL))
		_ = cmd.Wait() // it was killed
		if out.Len() > 0 {
			t.Fatalf("the child fails: %s", out.String())
		}
		if _, err := h.List(false); err != nil {
			t.Error("list:", err)
		}
		result, err := h.Unload(context.Background(), name)
		if errors.Is(err, ErrUnknown) { // killed before it began, or between
			result, err = UnloadResult{Outcome: Nothing}, nil
		}
		if err != nil {
			t.Errorf("killed after the step %q: unload: %v", step.name, err)
		}
		still := func() string {
			return fmt.Sprintf("killed after the step %q, %s is still registered after %+v", step.name, name, result)
		}
		if result.Outcome != Cleared {
			if isRegistered(t, name) {
				t.Error(still())
			}
		} else { // killed behind the removal of its link: the kernel unregisters it later
			nettest.Eventually(t, patience, func() bool { return !isRegistered(t, name) }, still)
		}
		if now, _ := ReadDefault(); now != before {
			t.Errorf("killed after the step %q, the default is %s, want %s", step.name, now, before)
			must(t, writeDefault(before))
		}
		if left, err := filepath.Glob(h.Ledger + "/*"); err != nil || len(left) > 0 {
			t.Errorf("killed after the step %q: left in the ledger: %v, %v", step.name, left, err)
		}
		t.Logf("killed after the step %q: %s", step.name, result.Outcome)
	}
}

// TestKilledReplacing kills a process that replaces one build by another, after some
// of its steps and at moments in between. Load and unload complete what is left.
func TestKilledReplacing(t *testing.T) { eachWayAtOnce(t, killedReplacing) }

func killedReplacing(t *testing.T, h *Host) {
	exists := func(path ...string) bool {
		_, err := os.Stat(h.dir(path...))
		return err == nil
	}
	nextPin, absent := opsPin, func(name string) bool { return !isRegistered(t, name) }
	if h.unlinked {
		nextPin = nextOpsPin
	} else { // a link is replaced in one step
		nextPin, absent = linkPin, func(string) bool { return true }
	}
	steps := []struct {
		name  string
		taken func(name string) bool
	}{
		{"pin", func(name string) bool { return exists(name, nextPin) }},
		{"unregistered", absent},
		{"again", func(string) bool { return true }},
	}
	for round := range rounds(2) * len(steps) {
		step := steps[round%len(steps)]
		name := testName()
		_, err := h.Load(context.Background(), churned(), name)
		must(t, err)
		cmd := childCommand(h, "replace", name)
		var out strings.Builder
		cmd.Stdout = &out
		must(t, cmd.Start())
		nettest.Eventually(t, patience, func() bool { return step.taken(name) },
			func() string { return fmt.Sprintf("the step %q is never seen: %s", step.name, out.String()) })
		must(t, cmd.Process.Signal(syscall.SIGKILL))
		_ = cmd.Wait() // it was killed
		if out.Len() > 0 {
			t.Fatalf("the child fails: %s", out.String())
		}
		wasRegistered := isRegistered(t, name)
		a, ok := describe(t, h, name)
		if !ok || (a.State == Ready) != wasRegistered || (a.State == Incomplete) == wasRegistered {
			t.Errorf("killed after the step %q: registered %v, listed as %+v", step.name, wasRegistered, a)
		}
		t.Logf("killed after the step %q: %s", step.name, a.State)
		if round%2 == 0 {
			if result, err := h.Load(context.Background(), churned(), name); err != nil || !isRegistered(t, name) {
				t.Errorf("killed after the step %q: load: %+v, %v", step.name, result, err)
			}
			if exists(name, nextOpsPin) {
				t.Errorf("killed after the step %q: a pin of the replacement is left", step.name)
			}
		}
		if _, err := h.Unload(context.Background(), name); err != nil || isRegistered(t, name) {
			t.Errorf("killed after the step %q: unload: %v", step.name, err)
		}
	}
}

// TestUnsupported holds that each thing that can be missing is said in one
// sentence of its own.
func TestUnsupported(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, h *Host, cmd *exec.Cmd)
		want    string
	}{
		{"no capabilities", func(t *testing.T, _ *Host, cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}, "loading congestion control hybla needs CAP_BPF and CAP_PERFMON: run it as root, or grant it [unsupported]"},
		{"user namespace", func(t *testing.T, _ *Host, cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  unix.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
			}
		}, "loading congestion control hybla needs privilege over the machine, which this user namespace does not give: run it outside [unsupported]"},
		{"no BTF", func(t *testing.T, _ *Host, _ *exec.Cmd) {
			must(t, unix.Mount("none", "/sys/kernel/btf", "tmpfs", 0, ""))
			t.Cleanup(func() { must(t, unix.Unmount("/sys/kernel/btf", 0)) })
		}, "loading congestion control hybla needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF), but /sys/kernel/btf/vmlinux is missing [unsupported]"},
		{"no BPF filesystem", func(t *testing.T, h *Host, cmd *exec.Cmd) {
			h.BPFFS = t.TempDir()
			cmd.Args[1] = h.BPFFS
			// As "ip netns exec" does.
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		}, "no BPF filesystem at "},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := testHost(t)
			own := *h
			cmd := childCommand(&own, "load", testName())
			cmd.Args[0] = "cc"
			test.prepare(t, &own, cmd)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if !strings.HasPrefix(string(out), test.want) {
				t.Errorf("got  %s\nwant %s", out, test.want)
			}
			if strings.Contains(string(out), "\n") {
				t.Errorf("more than one line: %q", out)
			}
		})
	}
}

// TestMounted holds that a BPF filesystem is mounted where there is none.
func TestMounted(t *testing.T) {
	h := testHost(t)
	own := *h
	own.BPFFS = t.TempDir()
	t.Cleanup(func() { must(t, unix.Unmount(own.BPFFS, 0)) })
	if list, err := own.LoadedNames(); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	load(t, &own, "hybla")
	if !kernel.IsBPFFS(own.BPFFS) {
		t.Error("not mounted")
	}
}

// TestListWithoutPrivilege lists as an ordinary user what root has loaded.
func TestListWithoutPrivilege(t *testing.T) {
	h := testHost(t)
	name := load(t, h, "hybla")
	must(t, os.Chmod(h.BPFFS, 0o700))
	cmd := childCommand(h, "list", name)
	cmd.Args[0] = "cc"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var all []Algorithm
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	seen := false
	for _, a := range all {
		if a.Name == name {
			seen = a.State == Ready && a.LoadedAt == nil
		}
		if a.State == Loadable {
			t.Errorf("an ordinary user is told that he can load %+v", a)
		}
	}
	if !seen {
		t.Errorf("%s is not among %s", name, out)
	}
}
