package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

var quiet = slog.New(slog.DiscardHandler)

// listen makes a control socket in a directory of the test.
func listen(t *testing.T) (path string, l net.Listener) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "control.sock")
	l, err := Listen(t.Context(), path)
	nettest.Must(t, err)
	return path, l
}

func TestStatusTravels(t *testing.T) {
	nettest.CheckLeaks(t)
	path := filepath.Join(t.TempDir(), "run", "control.sock")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, quiet, Handlers{Status: func() any { return map[string]int{"flows": 3} }})
	defer s.Close()

	for file, want := range map[string]os.FileMode{path: os.ModeSocket | 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", file, info.Mode(), want)
		}
	}
	body, err := Status(t.Context(), path)
	if err != nil || strings.TrimSpace(string(body)) != `{"flows":3}` {
		t.Errorf("got %q, %v", body, err)
	}
	s.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if _, err := Status(t.Context(), path); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a closed server gives %v", err)
	}
}

// TestPeer: a verb gets the process that sent it. At 1818be3 it did not.
func TestPeer(t *testing.T) {
	nettest.CheckLeaks(t)
	path, l := listen(t)
	s := Serve(l, quiet, Handlers{Do: func(ctx context.Context, _ string, _ url.Values) (any, error) { return PeerOf(ctx), nil }})
	defer s.Close()
	body, err := Do(t.Context(), path, "whoami", nil)
	nettest.Must(t, err)
	if want := fmt.Sprintf(`{"UID":%d,"PID":%d}`, os.Getuid(), os.Getpid()); strings.TrimSpace(string(body)) != want {
		t.Errorf("asked by %s, want %s", body, want)
	}
}

// TestSilentRelay: a relay that takes connections and never answers is given up early. One that works on a
// status says so at once.
func TestSilentRelay(t *testing.T) {
	t.Parallel()
	path, l := listen(t)
	defer l.Close()
	var silent *SilentError
	if _, err := Status(t.Context(), path); !errors.As(err, &silent) || silent.PID != os.Getpid() || silent.Stopped {
		t.Errorf("got %v", err)
	}
	working, at := listen(t)
	asked, goOn := make(chan struct{}), make(chan struct{})
	s := Serve(at, quiet, Handlers{Status: func() any { close(asked); <-goOn; return "well" }})
	defer s.Close()
	signs := make(chan int, 1)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		signs <- code
		return nil
	}})
	go func() { <-asked; <-signs; close(goOn) }()
	if body, err := Status(ctx, working); err != nil || strings.TrimSpace(string(body)) != `"well"` {
		t.Errorf("got %s, %v", body, err)
	}
}

func TestVerbs(t *testing.T) {
	nettest.CheckLeaks(t)
	path, l := listen(t)
	waiting, told := make(chan struct{}, 1), make(chan error, 2)
	s := serve(l, quiet, Handlers{Do: func(ctx context.Context, verb string, arguments url.Values) (any, error) {
		switch verb {
		case "repeat":
			return arguments, nil
		case "refuse":
			return nil, fmt.Errorf("wrapped: %w", &Refusal{"there is no tunnel x", "choose from a, b"})
		case "fail":
			return nil, errors.New("it broke")
		case "wait":
			waiting <- struct{}{}
			<-ctx.Done()
			told <- ctx.Err()
			return "told", nil
		}
		return nil, ErrUnknownVerb
	}}, defaultLimits)
	defer s.Close()

	body, err := Do(t.Context(), path, "repeat", url.Values{"name": {"to b&c"}, "wait": {""}})
	if want := `{"name":["to b\u0026c"],"wait":[""]}`; err != nil || strings.TrimSpace(string(body)) != want {
		t.Errorf("got %s, %v, want %s", body, err, want)
	}
	for verb, want := range map[string]Refusal{
		"refuse": {"there is no tunnel x", "choose from a, b"},
		"fail":   {"it broke", ""},
		"dance":  {"the running relay does not know dance", "it has an older version: restart it with this one"},
		"status": {"the running relay does not know status", "it has an older version: restart it with this one"},
	} {
		_, err := Do(t.Context(), path, verb, nil)
		var got *Refusal
		if !errors.As(err, &got) || *got != want {
			t.Errorf("%s: got %v, want %+v", verb, err, want)
		}
	}
	if _, err := Do(t.Context(), path, "repeat", url.Values{"name": {strings.Repeat("x", maxArgumentBytes)}}); err == nil {
		t.Error("arguments without bound are taken")
	}

	// A verb notices that its client goes away, and that the server ends.
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-waiting; cancel() }()
	if _, err := Do(ctx, path, "wait", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that gives up gets %v", err)
	}
	if err := <-told; !errors.Is(err, context.Canceled) {
		t.Errorf("the relay is told %v", err)
	}
	go func() { <-waiting; s.Close() }()
	if body, err := Do(t.Context(), path, "wait", nil); err != nil || strings.TrimSpace(string(body)) != `"told"` {
		t.Errorf("the last words of a server that closes: %s, %v", body, err)
	}
}

// A verb may take longer than the limits of a request or a reply.
func TestVerbsTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers, l := answersInBubble(t, Handlers{Do: func(ctx context.Context, _ string, _ url.Values) (any, error) {
			time.Sleep(time.Hour) // on synctest's clock
			return "rested", ctx.Err()
		}})
		defer answers.http.Close()
		conn, err := l.Dial()
		nettest.Must(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "POST /v1/rest HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
		nettest.Must(t, err)
		if reply, err := io.ReadAll(conn); err != nil || !strings.Contains(string(reply), "200 OK") || !strings.HasSuffix(string(reply), "\"rested\"\n") {
			t.Errorf("got %q, %v", reply, err)
		}
	})
}

// A silent client holds its place for the time of a request.
func TestIdleClientsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers, l := answersInBubble(t, Handlers{})
		defer answers.http.Close()
		begin := time.Now()
		conn, err := l.Dial()
		nettest.Must(t, err)
		defer conn.Close()
		_, _ = io.Copy(io.Discard, conn) // possibly an HTTP error
		if took := time.Since(begin); took != defaultLimits.request {
			t.Errorf("a silent client is dropped after %v, want %v", took, defaultLimits.request)
		}
	})
}

// answersInBubble starts a server on a listener in memory.
func answersInBubble(t *testing.T, handlers Handlers) (*Server, *nettest.PipeListener) {
	t.Helper()
	s, l := newServer(quiet, handlers, defaultLimits), nettest.ListenPipe()
	go s.http.Serve(l)
	return s, l
}

// Waiting verbs leave room for other requests.
func TestVerbsHaveABound(t *testing.T) {
	nettest.CheckLeaks(t)
	path, l := listen(t)
	begun := make(chan struct{})
	s := Serve(l, quiet, Handlers{
		Status: func() any { return "well" },
		Do: func(ctx context.Context, _ string, _ url.Values) (any, error) {
			begun <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range maxVerbs {
		waiting.Go(func() { _, _ = Do(ctx, path, "wait", nil) })
		<-begun
	}
	var busy *Refusal
	if _, err := Do(t.Context(), path, "wait", nil); !errors.As(err, &busy) || !strings.Contains(busy.Problem, "busy") {
		t.Errorf("one more gets %v", err)
	}
	if _, err := Status(t.Context(), path); err != nil {
		t.Errorf("status beside them: %v", err)
	}
	cancel()
	waiting.Wait()
}

func TestStaleSocketIsTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if _, err := Status(t.Context(), path); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a dead socket gives %v", err)
	}
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	if _, err := Listen(t.Context(), path); !errors.Is(err, ErrInUse) {
		t.Errorf("a second relay gets %v", err)
	}
}

// TestRunning: living relays are listed by name, the default one first; other
// files and dead relays are not.
func TestRunning(t *testing.T) {
	dir := t.TempDir()
	living := func(path string) {
		l, err := Listen(t.Context(), path)
		nettest.Must(t, err)
		t.Cleanup(func() { l.Close() })
	}
	dead := func(path string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		nettest.Must(t, err)
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	running := func(want ...string) {
		t.Helper()
		names, err := Running(t.Context(), dir)
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("running are %q, %v, want %q", names, err, want)
		}
	}
	running()
	dead(PathIn(dir, ownPrefix+"99999999"))
	dead(PathIn(dir, "killed"))
	living(PathIn(dir, OwnName()))
	living(PathIn(dir, "a"))
	living(PathIn(dir, DefaultName))
	living(PathIn(dir, LabName))
	living(PathOf(PathIn(dir, DefaultName), 4711))
	nettest.Must(t, os.WriteFile(PathIn(dir, "file"), nil, 0o600))
	running(DefaultName, "a", OwnName())
	// The next relay removes the socket with a dead process's own name.
	for name, want := range map[string]bool{ownPrefix + "99999999": false, "killed": true} {
		if _, err := os.Lstat(PathIn(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPlacesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, path, want string }{
		{"a file", file, "is not a socket"},
		{"a directory for everybody", filepath.Join(open, "s"), "can be written by others"},
		{"below a file", filepath.Join(file, "s"), "make the directory"},
	}
	for _, tt := range tests {
		if _, err := Listen(t.Context(), tt.path); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s gives %v", tt.name, err)
		}
	}
}

func TestOtherUsersAreTurnedAway(t *testing.T) {
	nettest.RequireRoot(t)
	dir := nettest.OpenTempDir(t)
	path := filepath.Join(dir, "control.sock")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, quiet, Handlers{Status: func() any { return "secret" }})
	defer s.Close()

	ask := func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return err
		}
		unix.Write(fd, []byte("GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"))
		if n, _ := unix.Read(fd, make([]byte, 4096)); n > 0 {
			return errors.New("answered")
		}
		return io.EOF
	}
	if err := nettest.AsUser(65534, ask); !errors.Is(err, unix.EACCES) {
		t.Errorf("the socket's mode lets others in: %v", err)
	}
	// Even with a file mode that admits everybody.
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := nettest.AsUser(65534, ask); err != io.EOF {
		t.Errorf("another user gets %v", err)
	}
	if _, err := Status(t.Context(), path); err != nil {
		t.Errorf("the owner gets %v", err)
	}
}

// Clients that do not end keep no other out, whatever they wait for: the request, or the
// reading of the answer. A verb keeps its place. At 071f4916 sixteen of them kept all others out.
func TestClientsGiveWay(t *testing.T) {
	nettest.CheckLeaks(t)
	path, l := listen(t)
	begun := make(chan struct{})
	s := serve(l, quiet, Handlers{
		Status: func() any { return strings.Repeat("long", 1<<20) },
		Do: func(ctx context.Context, _ string, _ url.Values) (any, error) {
			close(begun)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}, limits{time.Hour, time.Hour, time.Hour})
	defer s.Close()
	verb := make(chan error, 1)
	go func() {
		_, err := Do(t.Context(), path, "wait", nil)
		verb <- err
	}()
	<-begun
	for name, request := range map[string]string{
		"silent":   "",
		"slow":     "GET /v1/status HTTP/1.1\r\n",
		"unread":   "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
		"unposted": "POST /v1/wait HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
	} {
		var last net.Conn
		for range 4 * maxClients {
			conn, err := net.Dial("unix", path)
			nettest.Must(t, err)
			defer conn.Close()
			_, _ = io.WriteString(conn, request)
			last = conn
		}
		if _, err := Status(t.Context(), path); err != nil {
			t.Errorf("%d %s clients keep others out: %v", 4*maxClients, name, err)
		}
		s.socket.mu.Lock()
		if n := len(s.socket.open); n > maxClients {
			t.Errorf("%d clients have a place", n)
		}
		s.socket.mu.Unlock()
		last.Close()
	}
	select {
	case err := <-verb:
		t.Errorf("a verb loses its place: %v", err)
	default:
	}
}

// Of two processes, that with more connections loses one, though the other's is older.
func TestClientsGiveWayByProcess(t *testing.T) {
	open := map[*client]struct{}{}
	add := func(pid int, number uint64, state int32) *client {
		c := &client{peer: Peer{PID: pid}, number: number}
		c.state.Store(state)
		open[c] = struct{}{}
		return c
	}
	verb, one := add(2, 1, waiting), add(1, 2, silent)
	read, late := add(2, 3, reading), add(2, 5, silent)
	early := add(2, 4, silent)
	for i, want := range []*client{early, late, read, one, verb} {
		if got := chooseVictim(open); got != want {
			t.Fatalf("victim %d has number %d, want %d", i+1, got.number, want.number)
		}
		delete(open, want)
	}
	if chooseVictim(open) != nil {
		t.Error("a victim among none")
	}
}

// A client that goes while it waits for its turn leaves nothing behind.
func TestStatusOfAClientThatGoes(t *testing.T) {
	nettest.CheckLeaks(t)
	path, l := listen(t)
	stuck := make(chan struct{})
	s := serve(l, quiet, Handlers{Status: func() any { <-stuck; return 1 }}, limits{time.Hour, time.Hour, time.Hour})
	defer s.Close()
	defer close(stuck)
	waits := func() int {
		all := make([]byte, 1<<20)
		return strings.Count(string(all[:runtime.Stack(all, true)]), "(*Server).status(")
	}
	for range 4 * maxClients {
		conn, err := net.Dial("unix", path)
		nettest.Must(t, err)
		_, err = io.WriteString(conn, "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
		nettest.Must(t, err)
		defer conn.Close()
	}
	nettest.Eventually(t, time.Minute, func() bool { return waits() > 0 && waits() <= maxClients },
		func() string { return fmt.Sprintf("%d requests wait for a status", waits()) })
}

func TestStuckRelayIsReported(t *testing.T) {
	nettest.CheckLeaks(t)
	path, l := listen(t)
	stuck := make(chan struct{})
	s := serve(l, quiet, Handlers{Status: func() any { <-stuck; return 1 }}, limits{time.Minute, 50 * time.Millisecond, time.Minute})
	defer s.Close()
	defer close(stuck)
	for range maxStatusCalls + 2 {
		_, err := Status(t.Context(), path)
		if err == nil || !strings.Contains(err.Error(), "does not answer in time") {
			t.Errorf("got %v", err)
		}
	}
}

func TestOtherRequestsAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	l, err := Listen(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, quiet, Handlers{Status: func() any { return 1 }})
	defer s.Close()
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n":               "404",
		"POST /v1/status HTTP/1.1\r\nHost: x\r\n\r\n":     "405",
		"garbage\r\n\r\n":                                 "400",
		"GET /" + strings.Repeat("a", 20000) + "\r\n\r\n": "431",
	} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(conn, request)
		reply := make([]byte, 256)
		n, _ := conn.Read(reply)
		conn.Close()
		if !strings.Contains(string(reply[:n]), " "+want+" ") {
			t.Errorf("%.20q gives %q, want %s", request, reply[:n], want)
		}
	}
}

func TestDirectory(t *testing.T) {
	env := map[string]string{"RUNTIME_DIRECTORY": "/run/a:/run/b", "XDG_RUNTIME_DIR": "/run/user/7"}
	if got := Directory(func(k string) string { return env[k] }); got != "/run/a" {
		t.Errorf("under systemd: %s", got)
	}
	delete(env, "RUNTIME_DIRECTORY")
	want := "/run/user/7/longhaul"
	if os.Geteuid() == 0 {
		want = "/run/longhaul"
	}
	if got := Directory(func(k string) string { return env[k] }); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
