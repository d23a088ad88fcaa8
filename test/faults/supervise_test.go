package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// A supervisor stands between a real longhaul and the kernel for some system
// calls: it can make them fail with an error that is hard to provoke
// otherwise, and it can tell the program another wall clock.
//
// Those calls end in a seccomp filter that asks a user-space process (this
// one) what to do. The clock is usually read without a system call, through
// the vDSO; the program is started such that it does not find it. Between the
// two, not one byte of longhaul is changed.
type supervisor struct {
	listener int // the filter's notifications
	memory   *os.File

	mu     sync.Mutex
	errors map[uintptr]unix.Errno // by system call; what is not here goes on
	hits   map[uintptr]int        // how often one was made to fail

	offset    atomic.Int64  // nanoseconds that the wall clock is ahead
	wallReads atomic.Int64  // how often it was read
	wallWaits atomic.Int64  // how often anything was to wait for the wall clock
	served    chan struct{} // closed when the program is gone
}

// launchRole names the environment variable that makes the test binary install
// the filter and become longhaul.
const launchRole = "LONGHAUL_FAULTS_LAUNCH"

// Descriptors of the launcher.
const launchSocket = 3

// fail makes a system call fail from now on, or work again if errno is 0.
func (s *supervisor) fail(call uintptr, errno unix.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errno == 0 {
		delete(s.errors, call)
	} else {
		s.errors[call] = errno
	}
}

// failures is how often a system call was made to fail.
func (s *supervisor) failures(call uintptr) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hits[call]
}

// jump sets how far the program's wall clock is ahead of the machine's.
func (s *supervisor) jump(ahead time.Duration) { s.offset.Store(int64(ahead)) }

// failable are the calls that a supervisor can make fail.
var failable = []uintptr{unix.SYS_SOCKET, unix.SYS_ACCEPT4, unix.SYS_CONNECT, unix.SYS_SPLICE, unix.SYS_PIPE2, unix.SYS_EPOLL_CTL}

// wallClockWaits are calls that can wait for a time of the wall clock, with
// the argument that names the clock.
var wallClockWaits = []struct {
	call uintptr
	arg  int
}{{unix.SYS_CLOCK_NANOSLEEP, 0}, {unix.SYS_TIMER_CREATE, 0}, {unix.SYS_TIMERFD_CREATE, 0}}

// filter is the seccomp program. withErrors has it ask for every failable call.
func filter(withErrors bool) []unix.SockFilter {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		give  = unix.BPF_RET | unix.BPF_K
	)
	// struct seccomp_data: nr, arch, instruction_pointer, args[6].
	low := func(arg int) uint32 {
		at := uint32(16 + 8*arg)
		if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 { // big-endian
			at += 4
		}
		return at
	}
	f := []unix.SockFilter{{Code: load, K: 0}}
	ask := unix.SockFilter{Code: give, K: unix.SECCOMP_RET_USER_NOTIF}
	ofWallClock := func(call uintptr, arg int) {
		f = append(f,
			unix.SockFilter{Code: equal, K: uint32(call), Jf: 4},
			unix.SockFilter{Code: load, K: low(arg)},
			unix.SockFilter{Code: equal, K: unix.CLOCK_REALTIME, Jf: 1},
			ask,
			unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ALLOW})
	}
	ofWallClock(unix.SYS_CLOCK_GETTIME, 0)
	for _, w := range wallClockWaits {
		ofWallClock(w.call, w.arg)
	}
	asked := []uintptr{unix.SYS_GETTIMEOFDAY}
	if withErrors {
		asked = append(asked, failable...)
	}
	for _, call := range asked {
		f = append(f, unix.SockFilter{Code: equal, K: uint32(call), Jf: 1}, ask)
	}
	return append(f, unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ALLOW})
}

// launch is the launcher's main: it installs the filter, hands its
// notifications over and becomes the program of its arguments.
func launch() error {
	runtime.LockOSThread()
	program := filter(os.Getenv(launchRole) == "errors")
	os.Unsetenv(launchRole)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	argv, env := os.Args[1:], os.Environ()
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if err := unix.Sendmsg(launchSocket, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return err
	}
	unix.CloseOnExec(launchSocket)
	unix.CloseOnExec(int(fd))
	return syscall.Exec(argv[0], argv, env)
}

// supervise starts a program under a supervisor. withErrors makes calls able
// to fail, at the price of asking for each of them.
func supervise(t *testing.T, cmd *exec.Cmd, withErrors bool) *supervisor {
	t.Helper()
	if runtime.GOARCH == "ppc64le" {
		t.Skip("ioctl numbers differ there, and x/sys has them wrong")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	role := "clock"
	if withErrors {
		role = "errors"
	}
	cmd.Args = append([]string{self}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Path = self
	cmd.Env = append(os.Environ(), launchRole+"="+role)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}

	s := &supervisor{errors: map[uintptr]unix.Errno{}, hits: map[uintptr]int{}, served: make(chan struct{})}
	if err := startWithoutVDSO(cmd); err != nil {
		t.Fatal("start a program under a supervisor: ", err)
	}
	if s.listener, err = receiveDescriptor(ours); err == nil {
		s.memory, err = os.OpenFile(fmt.Sprintf("/proc/%d/mem", cmd.Process.Pid), os.O_RDWR, 0)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		t.Fatal("supervise a program: ", err)
	}
	go s.serve()
	return s
}

// startWithoutVDSO starts the launcher and lets it become the program, whose
// table of what the kernel offers it then lacks the vDSO. Ptrace belongs to a
// thread, so all of it is done by one.
func startWithoutVDSO(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			pid := cmd.Process.Pid
			var status syscall.WaitStatus
			wait := func() error {
				if _, err := syscall.Wait4(pid, &status, syscall.WALL, nil); err != nil {
					return err
				}
				if !status.Stopped() {
					return fmt.Errorf("the launcher ended: %v", status)
				}
				return nil
			}
			if err := wait(); err != nil { // its own exec
				return err
			}
			if err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACEEXEC); err != nil {
				return err
			}
			for signal := 0; ; {
				if err := syscall.PtraceCont(pid, signal); err != nil {
					return err
				}
				if err := wait(); err != nil {
					return err
				}
				if status.TrapCause() == syscall.PTRACE_EVENT_EXEC {
					break
				}
				signal = int(status.StopSignal()) // such as SIGURG of the launcher's own runtime
			}
			if err := hideVDSO(pid); err != nil {
				return err
			}
			return syscall.PtraceDetach(pid)
		}()
	}()
	return <-done
}

// Of the auxiliary vector.
const (
	atNull        = 0
	atIgnore      = 1
	atSysinfoEHDR = 33
)

// hideVDSO takes the vDSO's address out of the auxiliary vector of a program
// that has not begun to run.
func hideVDSO(pid int) error {
	stat, err := nettest.Stat(pid)
	if err != nil {
		return err
	}
	at := int64(stat.StartStack)
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	const word = int64(unsafe.Sizeof(uintptr(0)))
	read := func() (uint64, error) {
		var b [word]byte
		_, err := memory.ReadAt(b[:], at)
		at += word
		return binary.NativeEndian.Uint64(b[:]), err
	}
	argc, err := read()
	if err != nil {
		return err
	}
	at += (int64(argc) + 1) * word // the arguments and their end
	for {                          // the environment
		v, err := read()
		if err != nil {
			return err
		}
		if v == 0 {
			break
		}
	}
	for {
		tag, err := read()
		switch {
		case err != nil:
			return err
		case tag == atNull:
			return errors.New("the kernel gave the program no vDSO")
		case tag == atSysinfoEHDR:
			var b [word]byte
			binary.NativeEndian.PutUint64(b[:], atIgnore)
			_, err := memory.WriteAt(b[:], at-word)
			return err
		}
		at += word
	}
}

func receiveDescriptor(from *os.File) (int, error) {
	c, err := net.FileConn(from)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err == nil && len(messages) != 1 {
		err = errors.New("no descriptor came")
	}
	if err != nil {
		return 0, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, err
	}
	unix.CloseOnExec(fds[0])
	return fds[0], nil
}

// notification and response are the kernel's struct seccomp_notif and struct
// seccomp_notif_resp.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	call  int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32 // negative
	flags uint32
}

// serve answers until the program is gone.
func (s *supervisor) serve() {
	defer close(s.served)
	defer unix.Close(s.listener)
	defer s.memory.Close()
	for {
		poll := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err == unix.EINTR {
			continue
		} else if err != nil || poll[0].Revents&unix.POLLIN == 0 {
			return // POLLHUP: nobody has the filter any more
		}
		var n notification
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
		if errno != 0 {
			continue // the call was interrupted before it could be asked about
		}
		r := s.answer(n)
		r.id = n.id
		// It fails where the caller was interrupted, and asks again.
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
	}
}

func (s *supervisor) answer(n notification) response {
	goOn := response{flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	call := uintptr(n.call)
	if call == unix.SYS_CLOCK_GETTIME {
		s.wallReads.Add(1)
		now := time.Now().Add(time.Duration(s.offset.Load()))
		ts := unix.NsecToTimespec(now.UnixNano())
		b := unsafe.Slice((*byte)(unsafe.Pointer(&ts)), unsafe.Sizeof(ts))
		if _, err := s.memory.WriteAt(b, int64(n.args[1])); err != nil {
			return response{errno: -int32(unix.EFAULT)}
		}
		return response{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if errno := s.errors[call]; errno != 0 {
		s.hits[call]++
		return response{errno: -int32(errno)}
	}
	for _, w := range wallClockWaits {
		if call == w.call {
			s.wallWaits.Add(1)
		}
	}
	if call == unix.SYS_GETTIMEOFDAY {
		s.wallWaits.Add(1) // nobody uses it: its answer would be unsupervised
	}
	return goOn
}
