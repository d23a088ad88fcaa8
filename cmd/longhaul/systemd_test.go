//go:build linux

package main

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// activatedMain is the program as systemd's socket activation starts it:
// LISTEN_PID must be the process's own number, which its parent cannot know.
func activatedMain() {
	os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	main()
}

// running is a longhaul process of a test.
type running struct {
	*exec.Cmd
	stderr logFile
	ended  chan struct{}
}

// logFile is what a process, and those that follow it, write. A pipe would keep
// the first one's end back until all of them have ended.
type logFile string

func (l logFile) String() string {
	text, _ := os.ReadFile(string(l))
	return string(text)
}

// startAs runs this test's binary as one of the programs of TestMain.
func startAs(t *testing.T, program string, environ []string, files []*os.File, args ...string) *running {
	t.Helper()
	return start(t, program, nil, environ, files, args...)
}

// startWithStderr runs longhaul with a stderr of the test's own.
func startWithStderr(t *testing.T, stderr *os.File, environ []string, args ...string) *running {
	t.Helper()
	return start(t, "longhaul", stderr, environ, nil, args...)
}

func start(t *testing.T, program string, stderr *os.File, environ []string, files []*os.File, args ...string) *running {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Cmd: &exec.Cmd{Path: path, Args: append([]string{program}, args...), ExtraFiles: files}}
	r.Env = append(os.Environ(), environ...)
	if stderr != nil {
		r.Cmd.Stderr = stderr
	}
	r.start(t)
	return r
}

// start runs a command until the test ends.
func (r *running) start(t *testing.T) {
	t.Helper()
	r.ended = make(chan struct{})
	if r.Cmd.Stderr == nil {
		f, err := os.CreateTemp(t.TempDir(), "stderr")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r.stderr, r.Cmd.Stderr = logFile(f.Name()), f
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		r.Process.Kill()
		<-r.ended
		if t.Failed() {
			t.Logf("stderr of %s:\n%s", r.Args[0], r.stderr.String())
		}
	})
}

func (r *running) exitCode(t *testing.T) int {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		t.Fatal("the program did not end")
	}
	return r.ProcessState.ExitCode()
}

func (r *running) waitLog(t *testing.T, pattern string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	nettest.Eventually(t, patience, func() bool { return re.MatchString(r.stderr.String()) }, func() string {
		return "the log does not match " + pattern
	})
}

// echoTarget sends back what it gets, until the test ends.
func echoTarget(t *testing.T) string {
	t.Helper()
	return listenEcho(t).Addr().String()
}

// listenEcho is the listener of such a target, which may end before.
func listenEcho(t *testing.T) *net.TCPListener {
	t.Helper()
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	t.Cleanup(tcpserver.Serve(l, tcpserver.Echo))
	return l
}

// talk sends a text and an end, and wants the text back.
func talk(t *testing.T, address, text string) {
	t.Helper()
	c, err := dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, text)
	c.CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != text {
		t.Fatalf("reply %q, %v", got, err)
	}
}

// notifySocket stands where systemd listens.
func notifySocket(t *testing.T) (path string, next func(want string) string) {
	t.Helper()
	path, hears := systemd(t)
	// next skips to the message that has want as one of its lines.
	next = func(want string) string {
		t.Helper()
		for deadline := time.Now().Add(patience); ; {
			m, ok := hears(time.Until(deadline))
			if !ok {
				t.Fatalf("systemd is not told %s", want)
			}
			if m.has(want) {
				return m.text
			}
		}
	}
	return path, next
}

func TestSystemdIsToldEveryState(t *testing.T) {
	path, next := notifySocket(t)
	listen := nettest.FreeAddress(t, "127.0.0.1")
	r := startAs(t, "longhaul", []string{"NOTIFY_SOCKET=" + path}, nil,
		"relay", "--listen", listen, "--forward", echoTarget(t), "--control-socket", "off")
	if msg := next("READY=1"); !strings.Contains(msg, "STATUS=1 tunnel, 0 flows") {
		t.Errorf("ready says %q", msg)
	}
	talk(t, listen, "ready means that connections are accepted")

	before := monotonicMicroseconds(t)
	r.Process.Signal(syscall.SIGHUP)
	msg := next("RELOADING=1")
	stamp := regexp.MustCompile(`(?m)^MONOTONIC_USEC=(\d+)$`).FindStringSubmatch(msg)
	if stamp == nil {
		t.Fatalf("reloading has no time: %q", msg)
	}
	if at, _ := strconv.ParseInt(stamp[1], 10, 64); at < before || at > monotonicMicroseconds(t) {
		t.Errorf("reloading at %d, which is not between the signal and now", at)
	}
	next("READY=1")

	held, err := dial(listen)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := echoes(held); err != nil {
		t.Fatal(err)
	}
	r.Process.Signal(syscall.SIGTERM)
	if msg := next("STOPPING=1"); !strings.Contains(msg, "STATUS=draining, 1 flow left") {
		t.Errorf("stopping says %q", msg)
	}
	next("EXTEND_TIMEOUT_USEC=30000000")
	held.Close()
	if code := r.exitCode(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func monotonicMicroseconds(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano() / 1000
}

func TestFailedReloadIsInTheStatusLine(t *testing.T) {
	path, next := notifySocket(t)
	file := filepath.Join(t.TempDir(), "longhaul.yaml")
	good := "tunnels: [{name: a, listen: '" + nettest.FreeAddress(t, "127.0.0.1") + "', forward: '" + echoTarget(t) + "'}]\n"
	if err := os.WriteFile(file, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startAs(t, "longhaul", []string{"NOTIFY_SOCKET=" + path}, nil, "relay", "-c", file, "--control-socket", "off")
	next("READY=1")
	if err := os.WriteFile(file, []byte("tunnel: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Process.Signal(syscall.SIGHUP)
	next("RELOADING=1")
	if msg := next("READY=1"); !strings.Contains(msg, "STATUS=1 tunnel, 0 flows, last reload: failed: "+file+":1:1: unknown key tunnel") {
		t.Errorf("after a bad reload: %q", msg)
	}
}

func TestSocketActivation(t *testing.T) {
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	// Only the passed descriptor keeps the port: the relay could not bind it.
	defer l.Close()
	defer f.Close()
	r := startAs(t, "longhaul-activated", []string{"LISTEN_FDS=1"}, []*os.File{f},
		"relay", "--listen", address, "--forward", echoTarget(t), "--control-socket", "off")
	talk(t, address, "before the relay is even up")
	// A reload keeps the socket.
	r.Process.Signal(syscall.SIGHUP)
	r.waitLog(t, `msg=reloaded .*unchanged=1`)
	talk(t, address, "after a reload")
	r.Process.Signal(syscall.SIGTERM)
	if code := r.exitCode(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestActivationBySocketsThatCannotServe(t *testing.T) {
	tcp := nettest.ListenTCP(t, "127.0.0.1:0")
	defer tcp.Close()
	stray, err := tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	defer stray.Close()
	var lc net.ListenConfig
	packets, err := lc.ListenPacket(context.Background(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	udp, err := packets.(*net.UDPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()

	tests := []struct {
		name string
		file *os.File
		code int
		want string
	}{
		{"of no tunnel", stray, exitUsage, "longhaul: socket activation passed sockets that no tunnel listens on: " + tcp.Addr().String() +
			"\nlonghaul: hint: give a tunnel the same address in listen, or remove ListenStream= from the socket unit\n"},
		{"of datagrams", udp, exitFailure, "longhaul: use activated socket LISTEN_FD_3: the file is not a listening TCP socket\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := startAs(t, "longhaul-activated", []string{"LISTEN_FDS=1"}, []*os.File{tt.file},
				"relay", "--listen", nettest.FreeAddress(t, "127.0.0.1"), "--forward", "127.0.0.1:9", "--control-socket", "off")
			if code := r.exitCode(t); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if got := r.stderr.String(); !strings.Contains(got, tt.want) {
				t.Errorf("stderr %q", got)
			}
		})
	}
}
