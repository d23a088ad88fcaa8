package handover

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

const patience = time.Minute // bounds every wait

// role is the environment variable that makes the test binary a successor of
// the test. Its value selects the behaviour.
const role = "LONGHAUL_HANDOVER_TEST_ROLE"

func TestMain(m *testing.M) {
	if how := os.Getenv(role); how != "" {
		if err := follow(how); err != nil {
			fmt.Fprintln(os.Stderr, "follow:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	nettest.Main(m)
}

// hang never returns. In select {} the runtime may find a deadlock.
func hang() {
	for {
		_, _ = unix.Poll(nil, -1)
	}
}

// follow is the main function of a successor.
func follow(how string) error {
	switch how {
	case "ends at once":
		return errors.New("the configuration is bad")
	case "panics":
		panic("a bug")
	case "talks too much":
		for i := range 1000 {
			fmt.Fprintf(os.Stderr, "line %d of many\n", i)
		}
		return errors.New("the end")
	case "hangs":
		hang()
	}
	p, err := Receive(context.Background())
	if err != nil {
		return err
	}
	defer p.Close()
	if value, left := os.LookupEnv(Variable); left {
		return fmt.Errorf("%s=%s is still in the environment", Variable, value)
	}
	switch how {
	case "stops short of ready":
		return errors.New("it lost heart")
	case "says something else":
		p.channel.send(message{Kind: kindServing})
		hang()
	case "ends the handover":
		p.channel.Close()
		hang()
	}
	if err := p.Ready(context.Background(), p.State); err != nil {
		return err
	}
	if how == "does not begin" {
		return errors.New("an address is in use")
	}
	var listeners []net.Listener
	for _, s := range p.Sockets {
		l, err := net.FileListener(s.File)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	fmt.Fprintln(os.Stderr, "about to serve")
	if err := p.Serving(context.Background()); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "alone now")
	if how == "does not take over" {
		hang()
	}
	p.Close()
	for _, l := range listeners {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "descriptors: %s", strings.Join(openDescriptors(), " "))
				c.Close()
			}
		}()
	}
	hang() // also without a listener: the test inspects and kills the process
	return nil
}

// openDescriptors lists the numbers and targets of this process's descriptors.
func openDescriptors() []string {
	var all []string
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			all = append(all, e.Name()+"="+target)
		}
	}
	return all
}

// text collects output.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// program is the test binary in a role, with its log in a file.
func program(t *testing.T, how string) (p Program, log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "log")
	f, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Program{Path: path, Args: []string{path}, Env: append(os.Environ(), role+"="+how), Log: f}, log
}

// sockets opens n listeners.
func sockets(t *testing.T, n int) []Socket {
	t.Helper()
	var all []Socket
	t.Cleanup(func() { CloseAll(all) })
	for range n {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.(*net.TCPListener).File()
		l.Close()
		if err != nil {
			t.Fatal(err)
		}
		bound, err := Address(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Socket{Configured: netip.MustParseAddrPort("127.0.0.1:0"), Bound: bound, File: f})
	}
	return all
}

func TestAnotherProcessTakesOver(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, n := range []int{0, 1, 2*socketsInMessage + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p, log := program(t, "serves")
			own, err := os.Create(filepath.Join(t.TempDir(), "of-the-old-process"))
			if err != nil {
				t.Fatal(err)
			}
			defer own.Close()
			offered := sockets(t, n)
			var said text
			state := []byte(`{"what":["is","passed on"]}`)
			s, err := Start(t.Context(), p, Offer{Sockets: offered, State: state}, &said)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Kill(s.PID(), unix.SIGKILL)
			if about, err := s.Ready(t.Context()); err != nil || !bytes.Equal(about, state) {
				t.Fatalf("got %s, %v", about, err)
			}
			if err := s.Serve(t.Context()); err != nil {
				t.Fatal(err)
			}
			CloseAll(offered)
			pid := s.PID()
			if err := s.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			if written, err := os.ReadFile(log); string(written) != "alone now\n" {
				t.Errorf("left before the new process has begun: the log has %q, %v", written, err)
			}
			if got := parentOf(t, pid); got != os.Getppid() {
				t.Errorf("the process is a child of %d, want a sibling of this one, a child of %d", got, os.Getppid())
			}
			for i, socket := range offered {
				c, err := net.DialTimeout("tcp", socket.Bound.String(), patience)
				if err != nil {
					t.Fatal(err)
				}
				c.SetDeadline(time.Now().Add(patience))
				reply, err := io.ReadAll(c)
				c.Close()
				if err != nil {
					t.Fatal(err)
				}
				// The listeners and this connection.
				if got := strings.Count(string(reply), "=socket:"); i == 0 && got != n+1 || strings.Contains(string(reply), own.Name()) {
					t.Errorf("the process has %d sockets, and was given %d: %s", got, n, reply)
				}
			}
			nettest.Eventually(t, patience, func() bool {
				written, _ := os.ReadFile(log)
				return string(written) == "alone now\n"
			}, func() string {
				written, _ := os.ReadFile(log)
				return fmt.Sprintf("the log has %q, and %q was passed on", written, &said)
			})
			nettest.Eventually(t, patience, func() bool { return said.String() == "about to serve\n" },
				func() string { return fmt.Sprintf("before it served it said %q", &said) })
		})
	}
}

// TestLeaveWaits holds that the old process waits for what the new one takes over at last, and not for ever.
func TestLeaveWaits(t *testing.T) {
	nettest.CheckLeaks(t)
	p, log := program(t, "does not take over")
	var said text
	s, err := Start(t.Context(), p, Offer{State: []byte("{}")}, &said)
	nettest.Must(t, err)
	defer unix.Kill(s.PID(), unix.SIGKILL)
	_, err = s.Ready(t.Context())
	nettest.Must(t, err)
	nettest.Must(t, s.Serve(t.Context()))
	ctx, cancel := context.WithCancelCause(t.Context())
	left := make(chan error, 1)
	go func() { left <- s.Leave(ctx) }()
	nettest.Eventually(t, patience, func() bool {
		written, _ := os.ReadFile(log)
		return string(written) == "alone now\n"
	}, func() string { return "the new process has not heard of it" })
	tooLong := errors.New("too long")
	cancel(tooLong)
	if err := <-left; !errors.Is(err, tooLong) {
		t.Errorf("it left a process that has not taken over: %v", err)
	}
}

func parentOf(t *testing.T, pid int) int {
	t.Helper()
	stat, err := nettest.Stat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return stat.PPID
}

func TestProcessesThatDoNotTakeOver(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, tt := range []struct {
		how     string
		problem string // contained in Failure.Problem
		words   string // contained in Failure.LastWords
	}{
		{"ends at once", "ended before", "follow: the configuration is bad"},
		{"panics", "ended before", "panic: a bug"},
		{"talks too much", "ended before", "follow: the end"},
		{"hangs", "was not ready in time", ""},
		{"stops short of ready", "ended before it was ready", "follow: it lost heart"},
		{"says something else", `was not ready: got message "serving" instead of "ready"`, ""},
		{"ends the handover", "ended before it was ready", ""},
		{"does not begin", "ended before it accepted", "follow: an address is in use"},
	} {
		t.Run(tt.how, func(t *testing.T) {
			real := stderrTimeout
			defer func() { stderrTimeout = real }()
			if stderrTimeout = patience; tt.how == "ends the handover" {
				stderrTimeout = 100 * time.Millisecond // no output
			}
			p, _ := program(t, tt.how)
			offered := sockets(t, 3)
			var said text
			s, err := Start(t.Context(), p, Offer{Sockets: offered, State: []byte("{}")}, &said)
			within := patience
			if tt.how == "hangs" {
				within = 500 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			if err == nil {
				_, err = s.Ready(ctx)
			}
			if err == nil {
				err = s.Serve(ctx)
			}
			var failure *Failure
			if !errors.As(err, &failure) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(failure.Problem, tt.problem) || !strings.Contains(failure.LastWords, tt.words) || tt.words == "" && failure.LastWords != "" {
				t.Errorf("got %q and the last words %q", failure.Problem, failure.LastWords)
			}
			if len(failure.LastWords) > maxStderrTail || strings.HasPrefix(failure.LastWords, "ne ") {
				t.Errorf("the last words are %d bytes and begin with %.20q", len(failure.LastWords), failure.LastWords)
			}
			if !strings.Contains(said.String(), tt.words) {
				t.Errorf("only %q was passed on", &said)
			}
			// The sockets are unchanged.
			for _, socket := range offered {
				c, err := net.DialTimeout("tcp", socket.Bound.String(), patience)
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			}
		})
	}
}

// Canceling the wait ends the new process.
func TestBrokenOff(t *testing.T) {
	nettest.CheckLeaks(t)
	p, _ := program(t, "hangs")
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Start(ctx, p, Offer{State: []byte("{}")}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	pid := s.PID()
	cancel()
	if _, err := s.Ready(ctx); err == nil || !strings.Contains(err.Error(), "broken off") {
		t.Errorf("got %v", err)
	}
	nettest.Eventually(t, patience, func() bool { return nettest.Ended(pid) },
		func() string { return "the process is still there" })
}

func TestProgramsThatCannotBeStarted(t *testing.T) {
	nettest.CheckLeaks(t)
	dir := t.TempDir()
	file := func(name string, content []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	foreign := bytes.Clone(self[:4096])
	foreign[18], foreign[19] = byte(elf.EM_VAX), 0 // e_machine, of a little-endian file
	for _, tt := range []struct{ name, path, want string }{
		{"missing", filepath.Join(dir, "missing"), "no such file or directory"},
		{"a directory", dir, "is not a regular file"},
		{"another architecture's", file("vax", foreign, 0o755), "not a program for this machine's architecture"},
		{"no program", file("text", []byte("hello"), 0o755), "not a program for this machine's architecture"},
		{"a script without its interpreter", file("script", []byte("#!/nonexistent\n"), 0o755), "the interpreter that it names is missing"},
		{"not executable", file("plain", self[:4096], 0o644), "cannot be executed: permission denied"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Start(t.Context(), Program{Path: tt.path, Args: []string{"x"}, Log: os.Stderr}, Offer{}, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestReceiveWithoutAnOffer(t *testing.T) {
	nettest.CheckLeaks(t)
	os.Unsetenv(Variable)
	if p, err := Receive(t.Context()); p != nil || err != nil {
		t.Errorf("without the variable: %v, %v", p, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, tt := range []struct{ value, want string }{
		{"", "want two numbers"},
		{"3", "want two numbers"},
		{"x,4", `"x" is not the number of a descriptor`},
		{"2,4", `"2" is not the number of a descriptor`},
		{"-1,4", `"-1" is not the number of a descriptor`},
		{"60001,60002", "descriptor 60001 is not open"},
		{fmt.Sprintf("%d,%[1]d", r.Fd()), "want two different numbers"},
	} {
		t.Setenv(Variable, tt.value)
		p, err := Receive(t.Context())
		if p != nil || err == nil || !strings.Contains(err.Error(), tt.want+"; only longhaul upgrade sets it") {
			t.Errorf("%q gives %v, want %s", tt.value, err, tt.want)
		}
	}
	// Receive refuses a file that is not a socket, and closes both descriptors.
	one, err := unix.Dup(int(r.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	two, err := unix.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(Variable, fmt.Sprintf("%d,%d", one, two))
	if p, err := Receive(t.Context()); p != nil || err == nil {
		t.Errorf("a pipe gives %v, %v", p, err)
	}
}

func TestAddress(t *testing.T) {
	nettest.CheckLeaks(t)
	open := func(kind int) int {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	unbound, datagrams := open(unix.SOCK_STREAM), open(unix.SOCK_DGRAM)
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	connection, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		file *os.File
		want string // in the error
	}{
		{"a listener", listener, ""},
		{"a connection", connection, "the file is not a listening TCP socket"},
		{"an unbound socket", os.NewFile(uintptr(unbound), "unbound"), "the socket is bound to no port"},
		{"a datagram socket", os.NewFile(uintptr(datagrams), "datagrams"), "the file is not a listening TCP socket"},
	} {
		got, err := Address(tt.file)
		switch {
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s gives %v, %v", tt.name, got, err)
		case tt.want == "" && (err != nil || got.String() != l.Addr().String()):
			t.Errorf("%s gives %v, %v, want %v", tt.name, got, err, l.Addr())
		}
		tt.file.Close()
	}
}

// FuzzReceive feeds a receiver with arbitrary messages. It must not panic and
// must close every descriptor.
func FuzzReceive(f *testing.F) {
	frame := func(body string) []byte {
		return append([]byte{0, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	}
	f.Add(frame(`{"kind":"offer","version":1,"state":{"a":1}}`), 0)
	f.Add(frame(`{"kind":"offer","version":2}`), 0)
	f.Add(frame(`{"kind":"offer","version":1,"more":true,"sockets":[{"configured":"127.0.0.1:1","bound":"127.0.0.1:1"}]}`), 1)
	f.Add(append(frame(`{"kind":"offer","version":1,"more":true}`), frame(`{"kind":"offer","version":1}`)...), 0)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'}, 2)
	f.Add([]byte{0, 0}, 3)
	f.Fuzz(func(t *testing.T, sent []byte, files int) {
		ours, theirs, err := newChannels()
		if err != nil {
			t.Skip(err)
		}
		defer ours.Close()
		fd, err := unix.Dup(int(theirs.Fd()))
		theirs.Close()
		if err != nil {
			t.Skip(err)
		}
		other, err := openChannel(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		var rights []byte
		if n := files & 3; n > 0 && len(sent) > 0 {
			rights = unix.UnixRights([]int{1, 1, 1}[:n]...)
		}
		go func() {
			defer ours.Close()
			n := 0
			if rights != nil {
				n, _, _ = ours.WriteMsgUnix(sent[:min(len(sent), 4)], rights, nil)
			}
			_, _ = ours.Write(sent[n:])
		}()
		offer, err := other.receiveOffer()
		if err != nil && (offer.Sockets != nil || offer.State != nil) {
			t.Errorf("an error comes with %+v", offer)
		}
		if err == nil && len(offer.Sockets) > 0 {
			t.Error("descriptors that are no sockets were taken for some")
		}
		CloseAll(offer.Sockets)
	})
}
