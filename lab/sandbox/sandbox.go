// Package sandbox runs the current program again inside new namespaces: network,
// mount, PID, IPC and UTS, and a user namespace if the caller is not root. When the
// program ends, in any way, the kernel removes its devices, namespaces, processes and
// mounts.
//
//	caller ── init (PID 1 inside) ── program
//
// The caller waits and forwards signals. Init reaps orphans and ends when the
// program ends or when the caller dies, and its end makes the kernel kill
// everything else in the PID namespace.
package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/remedy"
)

// role is the environment variable with the role of a process. The variable alone is
// no proof: a process outside a sandbox would change the host's network. See isInit
// and startedByInit.
const role = "LONGHAUL_SANDBOX"

const (
	roleInit     = "init"
	roleInitUser = "init-in-user-namespace"
	roleProgram  = "program"
	roleUser     = "program-in-user-namespace"
)

const (
	// lifeline is the descriptor of init that reaches end of file when the caller
	// ends.
	lifeline = 3
	// origin is the descriptor that proves the program's parent: one end of a
	// socket pair of init.
	origin = 3
)

// forwarded are the signals that the caller forwards to the program.
var forwarded = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// own is the verified role of this process. Init removes it from the environment, so
// that child processes do not claim it.
var own string

// Inside reports whether this process is the program inside a sandbox.
func Inside() bool { return own == roleProgram || own == roleUser }

// UserNamespace reports whether the sandbox has its own user namespace, in which root
// has no privilege over the machine.
func UserNamespace() bool { return own == roleUser }

// Every program that uses Run must call Init first. Init does not return in the
// sandbox's init process.
func Init() {
	claimed := os.Getenv(role)
	os.Unsetenv(role)
	switch claimed {
	case roleProgram, roleUser:
		if startedByInit() {
			own = claimed
		}
		return
	case roleInit, roleInitUser:
		if !isInit() {
			return
		}
	default:
		return
	}
	next := roleProgram
	if claimed == roleInitUser {
		next = roleUser
	}
	code, err := initMain(next)
	if err != nil {
		fmt.Fprintln(os.Stderr, "longhaul: sandbox:", err)
		code = 1
	}
	os.Exit(code)
}

// isInit reports whether this process can be a sandbox's init: the first of a PID
// namespace, with a lifeline.
func isInit() bool {
	var st unix.Stat_t
	return os.Getpid() == 1 && unix.Fstat(lifeline, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// startedByInit reports whether process 1 started this process and made its socket.
func startedByInit() bool {
	if os.Getppid() != 1 {
		return false
	}
	maker, err := unix.GetsockoptUcred(origin, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || maker.Pid != 1 {
		return false
	}
	unix.Close(origin)
	return true
}

// Run runs this program with args inside a new sandbox and returns its exit status,
// 128 plus the signal's number if a signal ended it. The error is a *[remedy.Error]
// if the namespaces cannot be made.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	var (
		process *exec.Cmd
		hold    *os.File
		err     error
	)
	if os.Geteuid() == 0 {
		process, hold, err = start(args, stdin, stdout, stderr, false)
	}
	if process == nil { // an ordinary user, or root without the capability
		process, hold, err = start(args, stdin, stdout, stderr, true)
	}
	if err != nil {
		return 0, remedy.New(fmt.Errorf("make namespaces: %w", err), fix())
	}
	defer hold.Close()

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	for {
		select {
		case sig := <-signals:
			// An error means that the program has ended meanwhile.
			_ = process.Process.Signal(sig)
		case err := <-ended:
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				return exitStatus(exit.Sys().(syscall.WaitStatus)), nil
			}
			return 0, err
		}
	}
}

// start starts init. The returned file is the write end of its lifeline.
func start(args []string, stdin io.Reader, stdout, stderr io.Writer, userNamespace bool) (*exec.Cmd, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.ExtraFiles = []*os.File{r}
	next := roleInit
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		// Its own group: a terminal's interrupt then reaches the program once,
		// through the caller.
		Setpgid: true,
	}
	if userNamespace {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		next = roleInitUser
	}
	cmd.Env = append(os.Environ(), role+"="+next)
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, nil, err
	}
	return cmd, w, nil
}

// initMain is the sandbox's PID 1. It starts the program in a role.
func initMain(next string) (int, error) {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, append([]os.Signal{unix.SIGCHLD}, forwarded...)...)

	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 0, fmt.Errorf("make mounts private: %w", err)
	}
	// Refused if parts of the outer /proc are hidden, as in many containers.
	// Tools inside then see outer process numbers, which is harmless.
	_ = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err := unix.Sethostname([]byte("longhaul-lab")); err != nil {
		return 0, fmt.Errorf("set the host name: %w", err)
	}

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make a pair of sockets: %w", err)
	}
	made := os.NewFile(uintptr(pair[1]), "origin")
	os.Setenv(role, next)
	program, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, made},
	})
	unix.Close(pair[0])
	made.Close()
	if err != nil {
		return 0, fmt.Errorf("start the program: %w", err)
	}

	orphaned := make(chan struct{})
	go func() {
		// The caller never writes: a read returns when it ends.
		_, _ = os.NewFile(lifeline, "lifeline").Read(make([]byte, 1))
		close(orphaned)
	}()
	for {
		select {
		case <-orphaned:
			return 1, nil
		case sig := <-signals:
			if sig != unix.SIGCHLD {
				_ = program.Signal(sig)
				continue
			}
			for {
				var status syscall.WaitStatus
				pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil || pid <= 0 {
					break
				}
				if pid == program.Pid {
					return exitStatus(status), nil
				}
			}
		}
	}
}

// exitStatus returns the status that a shell would report.
func exitStatus(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// fix names the setting that forbids user namespaces here.
func fix() string {
	if b, ok := kernel.UserNamespaceBarrier(""); ok {
		return "user namespaces are off here (" + b.Sysctl + " is " + strconv.Quote(b.Value) +
			"): run as root, or allow them with: " + b.Remedy()
	}
	return "run as root, or where user namespaces are allowed (in a container: with --privileged or --security-opt seccomp=unconfined)"
}
