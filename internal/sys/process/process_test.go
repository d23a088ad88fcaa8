package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// listen returns a socket of this process, and its inode.
func listen(t *testing.T) (*net.TCPListener, uint32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &stat) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l.(*net.TCPListener), uint32(stat.Ino)
}

// ended starts a process and waits for its end.
func ended(t *testing.T) (pid int) {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// asNobody calls f on a thread of another user, which dies with its identity.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	nettest.RequireRoot(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			done <- errno
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestSockets(t *testing.T) {
	nettest.CheckLeaks(t)
	_, inode := listen(t)
	sockets, err := Sockets(os.Getpid())
	if err != nil || !sockets[inode] {
		t.Errorf("%v, %v, want %d among them", sockets, err, inode)
	}
	if _, err := Sockets(ended(t)); !errors.Is(err, ErrNoProcess) {
		t.Errorf("of a process that has ended: %v", err)
	}
	asNobody(t, func() {
		if _, err := Sockets(os.Getppid()); !errors.Is(err, ErrForbidden) {
			t.Errorf("of another user: %v", err)
		}
	})
}

func TestCommand(t *testing.T) {
	want := filepath.Base(os.Args[0])
	want = want[:min(len(want), 15)]
	if got, err := Command(os.Getpid()); err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := Command(ended(t)); !errors.Is(err, ErrNoProcess) {
		t.Errorf("of a process that has ended: %v", err)
	}
}

func TestStopped(t *testing.T) {
	if Stopped(os.Getpid()) || Stopped(ended(t)) {
		t.Error("a process that runs, or has ended, is stopped")
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	nettest.Eventually(t, time.Minute, func() bool { return Stopped(cmd.Process.Pid) }, func() string { return "it is not stopped" })
}

func TestThreads(t *testing.T) {
	before, err := Threads(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	defer stop.Store(true)
	go func() {
		runtime.LockOSThread()
		for !stop.Load() {
		}
	}()
	const busy = 50 * time.Millisecond
	nettest.Eventually(t, time.Minute, func() bool {
		after, err := Threads(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		most, _ := Busiest(before, after)
		return most >= busy
	}, func() string { return "no thread has been busy" })
	if _, err := Threads(ended(t)); !errors.Is(err, ErrNoProcess) {
		t.Errorf("of a process that has ended: %v", err)
	}
}

func TestCPUTime(t *testing.T) {
	before, err := CPUTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const busy = 20 * time.Millisecond
	nettest.Eventually(t, time.Minute, func() bool {
		after, err := CPUTime(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return after-before >= busy
	}, func() string { return "the process has used no CPU time" })
	if _, err := CPUTime(ended(t)); !errors.Is(err, ErrNoProcess) {
		t.Errorf("of a process that has ended: %v", err)
	}
}

func TestBusiest(t *testing.T) {
	of := func(running, waiting time.Duration) ThreadTime {
		return ThreadTime{running * time.Second, waiting * time.Second}
	}
	before := map[int]ThreadTime{1: of(2, 3), 2: of(1, 0), 3: of(3600, 0)}
	after := map[int]ThreadTime{1: of(2, 5), 2: of(3, 1), 4: of(0, 1)}
	if busy, waiting := Busiest(before, after); busy != 3*time.Second || waiting != 2*time.Second {
		t.Errorf("%v and %v, want 3s and 2s", busy, waiting)
	}
}

// The clocks of a process begin with the first look at it.
func TestClocks(t *testing.T) {
	var c Clocks
	if busy, waiting, ok := c.Of(os.Getpid()); busy != 0 || waiting != 0 || !ok {
		t.Errorf("%v, %v, %v at first", busy, waiting, ok)
	}
	nettest.Eventually(t, time.Minute, func() bool {
		busy, _, ok := c.Of(os.Getpid())
		return ok && busy > 0
	}, func() string { return "no thread has been busy" })
	c.Keep(func(int) bool { return false })
	if busy, _, ok := c.Of(os.Getpid()); busy != 0 || !ok {
		t.Errorf("%v, %v after it was forgotten", busy, ok)
	}
	if _, _, ok := c.Of(ended(t)); ok {
		t.Error("clocks of a process that has ended")
	}
}

func TestCPUPressure(t *testing.T) {
	if _, err := os.Stat("/proc/pressure/cpu"); err != nil {
		t.Skip("this kernel has no pressure stall information (CONFIG_PSI)")
	}
	before, err := CPUPressure()
	if err != nil {
		t.Fatal(err)
	}
	if after, err := CPUPressure(); err != nil || after < before {
		t.Errorf("%v after %v, %v", after, before, err)
	}
}

func TestParseSocketLink(t *testing.T) {
	if inode, ok := parseSocketLink("socket:[4026531840]"); !ok || inode != 4026531840 {
		t.Errorf("%d, %v", inode, ok)
	}
	for _, bad := range []string{"", "socket:[", "socket:[]", "socket:[1", "pipe:[1]", "socket:[x]", "socket:[4294967296]", "/tmp/socket:[1]"} {
		if inode, ok := parseSocketLink(bad); ok {
			t.Errorf("%q is socket %d", bad, inode)
		}
	}
}

func TestOwners(t *testing.T) {
	nettest.CheckLeaks(t)
	var o Owners
	now := time.Now()
	refresh := func(want bool) {
		t.Helper()
		if scanned, err := o.Refresh(now); err != nil || scanned != want {
			t.Fatalf("looked through /proc: %v, %v, want %v", scanned, err, want)
		}
	}
	_, first := listen(t)
	refresh(false) // nothing is asked for
	if p, ok := o.Of(first); ok {
		t.Fatalf("known before it was looked for: %+v", p)
	}
	refresh(true)
	o.rest = now // a slow scan is not to outlast the test's times
	if p, ok := o.Of(first); !ok || p.PID != os.Getpid() || p.Command == "" {
		t.Errorf("%+v, %v", p, ok)
	}
	now = now.Add(time.Minute)
	refresh(false)

	// One that came later, and one that nobody has.
	_, second := listen(t)
	const nobody = 1<<32 - 1
	o.Of(second)
	o.Of(nobody)
	o.Of(0)
	refresh(true)
	o.rest = now
	if p, ok := o.Of(second); !ok || p.PID != os.Getpid() {
		t.Errorf("%+v, %v", p, ok)
	}
	if p, ok := o.Of(nobody); ok {
		t.Errorf("a socket of nobody: %+v", p)
	}
	now = now.Add(retryAfter - time.Second)
	refresh(false)
	now = now.Add(2 * time.Second)
	refresh(false)
	o.Of(nobody)
	refresh(true)

	// Not again at once.
	_, third := listen(t)
	o.Of(third)
	refresh(false)
}

// A child that has inherited a socket has it alone once its parent closed it.
func TestOwnersOfInheritedSocket(t *testing.T) {
	l, inode := listen(t)
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Signal(syscall.SIGKILL)
	var command string
	nettest.Eventually(t, time.Minute, func() bool { // it has its name only after it was started
		command, err = Command(cmd.Process.Pid)
		return err == nil && command == "sleep"
	}, func() string { return fmt.Sprintf("its name is sleep: %q, %v", command, err) })
	var o Owners
	o.Of(inode)
	if _, err := o.Refresh(time.Now()); err != nil {
		t.Fatal(err)
	}
	if p, _ := o.Of(inode); p.PID != min(os.Getpid(), cmd.Process.Pid) {
		t.Errorf("of two it is %+v", p)
	}
	file.Close()
	l.Close()
	o = Owners{}
	o.Of(inode)
	if _, err := o.Refresh(time.Now()); err != nil {
		t.Fatal(err)
	}
	if p, ok := o.Of(inode); !ok || p != (Process{cmd.Process.Pid, "sleep"}) {
		t.Errorf("%+v, %v", p, ok)
	}
	asNobody(t, func() {
		var o Owners
		o.Of(inode)
		if _, err := o.Refresh(time.Now()); err != nil {
			t.Error(err)
		}
		if p, ok := o.Of(inode); ok || o.Forbidden == 0 {
			t.Errorf("another user sees %+v, %v, and %d processes forbidden", p, ok, o.Forbidden)
		}
	})
}
