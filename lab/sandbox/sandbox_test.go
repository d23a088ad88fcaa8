package sandbox_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"longhaul/internal/words/remedy"
	"longhaul/lab/sandbox"
	"longhaul/test/nettest"
)

// The test binary is also the sandboxed program, selected by this variable.
const behave = "SANDBOX_TEST_PROGRAM"

// unavailable is the caller's exit status if it cannot make a sandbox.
const unavailable = 77

func TestMain(m *testing.M) {
	sandbox.Init()
	if program := os.Getenv(behave); program != "" {
		if program == "say" {
			fmt.Println("inside:", sandbox.Inside())
			os.Exit(0)
		}
		if !sandbox.Inside() {
			code, err := sandbox.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
			if err != nil {
				fmt.Println("unavailable:", remedy.Line(err))
				code = unavailable
			}
			os.Exit(code)
		}
		os.Exit(inside(program))
	}
	os.Exit(m.Run())
}

// inside runs the program in the sandbox.
func inside(program string) int {
	switch program {
	case "exit 7":
		return 7
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "make a namespace":
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	case "orphan":
		// A child that outlives its parent must not outlive the sandbox.
		sleeper := exec.Command("sleep", "1000")
		if err := sleeper.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
		fallthrough
	case "wait":
		fmt.Println("ready")
		_ = unix.Pause() // until a signal ends the program
	}
	return 1
}

func command(t *testing.T, program string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), behave+"="+program)
	return cmd
}

func exitCode(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if cmd.ProcessState.ExitCode() == unavailable {
		skip(t, string(out))
	}
	return cmd.ProcessState.ExitCode()
}

// skip skips the test without a sandbox. Under CI=true it fails instead.
func skip(t *testing.T, said string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("CI must be able to run this: %s", said)
	}
	t.Skip(said)
}

func TestExitStatus(t *testing.T) {
	for program, want := range map[string]int{
		"exit 7":           7,
		"die":              128 + 9,
		"make a namespace": 0,
	} {
		t.Run(program, func(t *testing.T) {
			if got := exitCode(t, command(t, program)); got != want {
				t.Errorf("exit status %d, want %d", got, want)
			}
		})
	}
}

// TestClaims checks that the variable alone gives a process no role in a sandbox: it
// would change the host's network and mounts. It failed at 1818be3.
func TestClaims(t *testing.T) {
	for _, role := range []string{"program", "program-in-user-namespace", "init", "init-in-user-namespace"} {
		cmd := command(t, "say")
		cmd.Env = append(cmd.Env, "LONGHAUL_SANDBOX="+role, "LONGHAUL_SANDBOX_USER=1")
		if os.Geteuid() == 0 { // without privilege, in case the process believes it
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != "inside: false\n" {
			t.Errorf("LONGHAUL_SANDBOX=%s: %v, %q", role, err, out)
		}
	}
}

// startReady starts the program and waits until it reports ready.
func startReady(t *testing.T, program string) *exec.Cmd {
	t.Helper()
	cmd := command(t, program)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 256)
	n, err := io.ReadAtLeast(stdout, line, len("ready\n"))
	if err != nil || !bytes.HasPrefix(line[:n], []byte("ready")) {
		_ = cmd.Wait()
		if said := string(line[:n]); cmd.ProcessState.ExitCode() == unavailable {
			skip(t, said)
		} else {
			t.Fatalf("the program says %q, want that it is ready", said)
		}
	}
	return cmd
}

func TestSignalReachesProgram(t *testing.T) {
	cmd := startReady(t, "wait")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 128+int(syscall.SIGTERM) {
		t.Errorf("exit status %d, want %d", got, 128+int(syscall.SIGTERM))
	}
}

func TestNothingOutlivesAKilledCaller(t *testing.T) {
	cmd := startReady(t, "orphan")
	// Init, the program and its sleep. A process that starts or ends during the
	// read of /proc may hide another.
	var inside []int
	nettest.Eventually(t, time.Minute, func() bool {
		inside = descendants(t, cmd.Process.Pid)
		return len(inside) >= 3
	}, func() string { return fmt.Sprintf("found only %d processes below the caller", len(inside)) })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, pid := range inside {
		nettest.Eventually(t, time.Minute, func() bool { return nettest.Ended(pid) },
			func() string { return fmt.Sprintf("process %d outlived its caller", pid) })
	}
}

// descendants returns the processes below pid.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	parents := map[int]int{}
	all, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	for _, child := range all {
		if stat, err := child.Stat(); err == nil {
			parents[child.PID] = stat.PPID
		}
	}
	var below []int
	for child := range parents {
		for p := parents[child]; p > 1; p = parents[p] {
			if p == pid {
				below = append(below, child)
				break
			}
		}
	}
	return below
}
