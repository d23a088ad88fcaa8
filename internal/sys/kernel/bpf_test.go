package kernel_test

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	if os.Getenv(printPrivate) != "" {
		os.Stdout.WriteString(map[bool]string{true: "private", false: "shared"}[kernel.PrivateMounts()])
		return
	}
	nettest.Main(m)
}

// TestFilteredBPF: a seccomp filter that denies bpf is named, and not the privilege.
func TestFilteredBPF(t *testing.T) {
	nettest.RequireRoot(t)
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, and its filter with it
		if err := denyBPF(); err != nil {
			result <- err
			return
		}
		result <- kernel.CheckBPF("a test", kernel.BPF)
	}()
	err := <-result
	if err == nil || err.Error() != "a test needs the system call bpf, which a seccomp filter denies to this process: allow it there" {
		t.Error(err)
	}
	if err := kernel.CheckBPF("a test", kernel.BPF); err != nil {
		t.Errorf("without the filter: %v", err)
	}
}

// denyBPF makes the calling thread's system call bpf fail as container runtimes do.
func denyBPF() error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER,
		uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return errno
	}
	return nil
}

// printPrivate names the environment variable that makes the test binary print the
// result of PrivateMounts.
const printPrivate = "LONGHAUL_KERNEL_TEST_PRIVATE"

// TestPrivateMounts: mounts of process 1 of a PID namespace end with it, as those of a
// mount namespace that only this process has. It failed for process 1 at 0a798e0.
func TestPrivateMounts(t *testing.T) {
	nettest.RequireRoot(t)
	for _, test := range []struct {
		name  string
		flags uintptr
		want  string
	}{
		{"of the test", 0, "shared"},
		{"of a mount namespace", unix.CLONE_NEWNS, "private"},
		{"of a container", unix.CLONE_NEWNS | unix.CLONE_NEWPID, "private"},
	} {
		t.Run(test.name, func(t *testing.T) {
			command := exec.Command(os.Args[0])
			command.Env = append(os.Environ(), printPrivate+"=1")
			command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: test.flags}
			out, err := command.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != test.want {
				t.Errorf("%s, %v; want %s", got, err, test.want)
			}
		})
	}
}
