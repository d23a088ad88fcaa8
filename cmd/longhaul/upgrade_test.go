package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
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

	"longhaul/internal/run/control"
	"longhaul/internal/run/daemon"
	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/resources"
	"longhaul/test/nettest"
)

// watchedMain is the program as systemd starts it with a watchdog, and with
// sockets where LISTEN_FDS says so.
func watchedMain() {
	os.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	activatedMain()
}

// linkedMain is the program with the name that it was started by, which
// testscript shortens.
func linkedMain() {
	line, err := os.ReadFile("/proc/self/cmdline")
	if err != nil {
		panic(err)
	}
	os.Args[0], _, _ = strings.Cut(string(line), "\x00")
	main()
}

// told is a message to systemd and who sent it.
type told struct {
	pid  int
	text string
}

func (m told) has(line string) bool {
	for l := range strings.Lines(m.text) {
		if strings.TrimSpace(l) == line {
			return true
		}
	}
	return false
}

// systemd stands where systemd listens, and knows who speaks. It reads what comes
// at once: the socket has room for few messages, and who finds none waits. next
// waits for one, for no longer than within.
func systemd(t *testing.T) (path string, next func(within time.Duration) (m told, ok bool)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan told, 1<<12)
	t.Cleanup(func() {
		conn.Close()
		for range heard { // until the reader has ended
		}
	})
	go func() {
		defer close(heard)
		for {
			m, err := hear(conn)
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				t.Errorf("cannot read what systemd is told: %v", err)
				return
			}
			heard <- m
		}
	}()
	return path, func(within time.Duration) (told, bool) {
		select {
		case m, ok := <-heard: // what is there counts, however late it is asked for
			return m, ok
		default:
		}
		select {
		case m, ok := <-heard:
			return m, ok
		case <-time.After(within):
			return told{}, false
		}
	}
}

// hear reads a message.
func hear(conn *net.UnixConn) (told, error) {
	text, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, nr, _, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return told{}, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:nr])
	if err == nil && len(messages) != 1 {
		err = fmt.Errorf("%d control messages", len(messages))
	}
	if err != nil {
		return told{}, err
	}
	who, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return told{}, err
	}
	return told{int(who.Pid), string(text[:n])}, nil
}

// upgradeAt has the relay behind a control socket replaced.
func upgradeAt(t *testing.T, socket string) daemon.Upgraded {
	t.Helper()
	body, err := control.Do(t.Context(), socket, "upgrade", nil)
	if err != nil {
		t.Fatal(err)
	}
	var u daemon.Upgraded
	if err := json.Unmarshal(body, &u); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p, err := os.FindProcess(u.NewPID); err == nil { // a child of this process
			p.Kill()
			p.Wait()
		}
	})
	return u
}

// TestSystemdFollowsAnUpgrade: it hears of the new process from the old one,
// then from the new one alone, whose watchdog beats; and the sockets that it
// passed to the first serve the last.
func TestSystemdFollowsAnUpgrade(t *testing.T) {
	t.Parallel()
	path, next := systemd(t)
	socket := filepath.Join(filepath.Dir(path), "s")
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	defer f.Close() // as systemd keeps it
	const interval = 100 * time.Millisecond
	r := startAs(t, "longhaul-watched", []string{"NOTIFY_SOCKET=" + path, fmt.Sprintf("WATCHDOG_USEC=%d", interval.Microseconds()), "LISTEN_FDS=1", "LISTEN_FDNAMES=x"}, []*os.File{f},
		"relay", "--listen", address, "--forward", echoTarget(t), "--control-socket", socket)
	main := r.Process.Pid
	until := func(what string, want func(told) bool) told {
		t.Helper()
		for {
			m, ok := next(patience)
			if !ok {
				t.Fatalf("systemd is not told that %s", what)
			}
			if m.pid != main {
				t.Fatalf("process %d says %q before it is the main one, %d", m.pid, m.text, main)
			}
			if want(m) {
				return m
			}
		}
	}
	says := func(line string) func(told) bool { return func(m told) bool { return m.has(line) } }
	until("it is ready", says("READY=1"))
	until("it beats", says("WATCHDOG=1"))
	held, err := dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for range 3 {
		before := monotonicMicroseconds(t)
		u := upgradeAt(t, socket)
		m := until("it reloads", says("RELOADING=1"))
		stamp := regexp.MustCompile(`(?m)^MONOTONIC_USEC=(\d+)$`).FindStringSubmatch(m.text)
		if stamp == nil || !m.has("STATUS=upgrading") {
			t.Fatalf("reloading says %q", m.text)
		}
		if at, _ := strconv.ParseInt(stamp[1], 10, 64); at < before || at > monotonicMicroseconds(t) {
			t.Errorf("reloading at %d, which is not between the request and now", at)
		}
		until("there is another", func(m told) bool {
			var pid int
			if n, _ := fmt.Sscanf(m.text, "MAINPID=%d", &pid); n == 1 {
				main = pid
				return true
			}
			return false
		})
		if u.NewPID != main {
			t.Fatalf("systemd hears of %d, and %d has taken over", main, u.NewPID)
		}
		// From here on the old one, which still has the flow, is silent.
		until("it is ready", says("READY=1"))
		for range 3 {
			until("it beats", says("WATCHDOG=1"))
		}
		if err := echoes(held); err != nil {
			t.Fatal(err)
		}
		talk(t, address, "the passed socket serves")
	}
	// One that fails is the end of the reload, too.
	if _, err := control.Do(t.Context(), socket, "upgrade", map[string][]string{"binary": {"/nonexistent"}}); err == nil {
		t.Fatal("a program that is not there was started")
	}
	until("it reloads", says("RELOADING=1"))
	until("it is ready", says("READY=1"))

	// systemd stops the main process alone; what is left then it kills.
	syscall.Kill(main, syscall.SIGTERM)
	if m := until("it stops", says("STOPPING=1")); !strings.Contains(m.text, "STATUS=draining, 0 flows left") {
		t.Errorf("stopping says %q", m.text)
	}
	until("it needs time", says("EXTEND_TIMEOUT_USEC=30000000"))
	if err := echoes(held); err != nil {
		t.Errorf("the oldest process's flow: %v", err)
	}
	held.Close()
	if code := r.exitCode(t); code != exitOK {
		t.Errorf("the oldest process ends with %d", code)
	}
	nettest.Eventually(t, patience, func() bool { return nettest.Ended(main) },
		func() string { return "the main process does not end" })
}

// TestUpgradePath: what is started is what lies now where the relay was
// started from, be it by a link.
func TestUpgradePath(t *testing.T) {
	dir, err := os.MkdirTemp("", "lh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	install := func(name string) string {
		path := filepath.Join(dir, name)
		nettest.WriteProgram(t, path+".new", content)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(dir, "longhaul-linked")
	point := func(to string) {
		os.Remove(link)
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	point(install("v1"))
	socket := filepath.Join(dir, "s")
	listen := nettest.FreeAddress(t, "127.0.0.1")
	r := &running{Cmd: exec.Command(link, "relay", "--listen", listen, "--forward", echoTarget(t), "--control-socket", socket)}
	r.start(t)
	r.waitLog(t, "relay started")

	runs := func(pid int) string {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Base(target)
	}
	if got := runs(r.Process.Pid); got != "v1" {
		t.Fatalf("%s runs", got)
	}
	point(install("v2"))
	if got := runs(upgradeAt(t, socket).NewPID); got != "v2" {
		t.Errorf("after the link leads to v2 %s runs", got)
	}
	install("v2") // replaced: the running one's file is deleted
	if got := runs(upgradeAt(t, socket).NewPID); got != "v2" {
		t.Errorf("after v2 was replaced %s runs", got)
	}
	talk(t, listen, "served")
	os.Remove(filepath.Join(dir, "v2"))
	if _, err := control.Do(t.Context(), socket, "upgrade", nil); err == nil || !strings.Contains(err.Error(), link) {
		t.Errorf("without a program: %v", err)
	}
	talk(t, listen, "still served")
}

// relayThatMoves starts a relay with further lines in its configuration, and holds a flow through it. write gives
// the configuration another control socket; one is the first, two another place.
func relayThatMoves(t *testing.T, more string) (r *running, write func(socket string), one, two string, held *net.TCPConn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listen, target := nettest.FreeAddress(t, "127.0.0.1"), echoTarget(t)
	file := filepath.Join(dir, "longhaul.yaml")
	write = func(socket string) {
		text := fmt.Sprintf("control_socket: %q\n%stunnels: [{name: a, listen: %q, forward: %q}]\n", socket, more, listen, target)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one, two = filepath.Join(dir, "one"), filepath.Join(dir, "two")
	write(one)
	r = startAs(t, "longhaul", nil, nil, "relay", "-c", file)
	r.waitLog(t, "relay started")
	if held, err = dial(listen); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() })
	if err := echoes(held); err != nil {
		t.Fatal(err)
	}
	return r, write, one, two, held
}

// TestControlSocketMoves: the control socket's path is another one
// after an upgrade, and then there is none.
func TestControlSocketMoves(t *testing.T) {
	t.Parallel()
	r, write, one, two, held := relayThatMoves(t, "")
	write(two)
	u := upgradeAt(t, one)
	if _, err := os.Lstat(one); !os.IsNotExist(err) {
		t.Errorf("the old place still has a socket: %v", err)
	}
	nettest.Eventually(t, patience, func() bool {
		s := statusAt(t, two)
		if s.PID != u.NewPID || len(s.OlderProcesses) != 1 || s.OlderProcesses[0].PID != r.Process.Pid {
			t.Fatalf("process %d, older ones %+v", s.PID, s.OlderProcesses)
		}
		n := s.OlderProcesses[0].FlowsNow
		if n != nil && *n != 1 {
			t.Errorf("the older process has %d flows", *n)
		}
		return n != nil
	}, func() string { return "the older process does not say how many flows it has" })
	// Without a socket: the older processes end with their flows all the same.
	write("off")
	u = upgradeAt(t, two)
	if _, err := os.Lstat(two); !os.IsNotExist(err) {
		t.Errorf("the old place still has a socket: %v", err)
	}
	talk(t, held.RemoteAddr().String(), "served")
	if err := echoes(held); err != nil {
		t.Fatal(err)
	}
	syscall.Kill(u.NewPID, syscall.SIGTERM)
	held.Close()
	if code := r.exitCode(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestUpgradeLosesNoFlowOfHistograms: a flow of the older process counts in the new one's metrics, once, also where
// the new one has its control socket elsewhere.
func TestUpgradeLosesNoFlowOfHistograms(t *testing.T) {
	t.Parallel()
	page := nettest.FreeAddress(t, "127.0.0.1")
	r, write, one, two, held := relayThatMoves(t, fmt.Sprintf("http_listen: %q\n", page))
	write(two)
	upgradeAt(t, one)
	shows := func(want string) {
		t.Helper()
		want = "\n" + want + "\n"
		var body string
		nettest.Eventually(t, patience, func() bool {
			body = getText("http://" + page + "/metrics")
			return strings.Contains(body, want)
		}, func() string { return "no" + want + "in\n" + body })
	}
	shows(`longhaul_flow_duration_seconds_count{tunnel="a"} 0`)
	held.Close()
	if code := r.exitCode(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	shows(`longhaul_flow_duration_seconds_count{tunnel="a"} 1`)
	talk(t, held.RemoteAddr().String(), "served")
	shows(`longhaul_flow_duration_seconds_count{tunnel="a"} 2`)
	if _, err := control.Do(t.Context(), two, "observed", url.Values{"flows": {"nonsense"}}); err == nil || !strings.Contains(err.Error(), "read what another process observed") {
		t.Errorf("nonsense is answered with %v", err)
	}
}

// statusAt is what the relay behind a control socket says of itself.
func statusAt(t *testing.T, socket string) (s daemon.Status) {
	t.Helper()
	body, err := control.Status(t.Context(), socket)
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// holds is what the process behind a control socket uses.
func holds(t *testing.T, socket string) resources.Process {
	t.Helper()
	return statusAt(t, socket).Process
}

// TestHealthChecksSeeNoUpgrade asks over HTTP, as a load balancer does, while
// relays replace each other.
func TestHealthChecksSeeNoUpgrade(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "lh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "longhaul.yaml")
	pages := []string{nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")}
	health := nettest.FreeAddress(t, "127.0.0.1")
	write := func(pages ...string) {
		t.Helper()
		text := fmt.Sprintf("control_socket: %q\nhttp_listen: [%s]\nhealth_listen: "+health+"\ntunnels: [{name: a, listen: %q, forward: %q}]\n",
			socket, strings.Join(pages, ", "), nettest.FreeAddress(t, "127.0.0.1"), echoTarget(t))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(pages[0])
	r := startAs(t, "longhaul", nil, nil, "relay", "-c", file)
	r.waitLog(t, "relay started")
	ready := func(page string) error {
		for again := false; ; again = true {
			status, body, err := httpd.Get(t.Context(), page, "/readyz", 1000)
			if err == nil && status != 200 {
				err = fmt.Errorf("%d: %s", status, body)
			}
			// A loop may have been kept from running for once.
			if again || status != 503 || !strings.Contains(string(body), "does not answer") {
				return err
			}
		}
	}
	if err := ready(pages[0]); err != nil {
		t.Fatal(err)
	}
	before := holds(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			for _, page := range []string{pages[0], health} {
				if err := ready(page); err != nil {
					t.Errorf("check %d at %s: %v", n, page, err)
				}
			}
		}
		asked <- n
	}()
	for range 5 {
		upgradeAt(t, socket)
	}
	cancel()
	t.Logf("%d checks over 5 upgrades", <-asked)
	// Nothing piles up from process to process. The first has no descriptor of
	// its own for the log.
	var after resources.Process
	nettest.Eventually(t, patience, func() bool {
		after = holds(t, socket)
		return after.Goroutines <= before.Goroutines && after.Descriptors <= before.Descriptors+1
	}, func() string { return fmt.Sprintf("before: %+v, after: %+v", before, after) })
	// Another address comes with an upgrade, and one goes.
	write(pages[1])
	upgradeAt(t, socket)
	if err := ready(pages[1]); err != nil {
		t.Errorf("an address that came with an upgrade is not ready: %v", err)
	}
	if err := ready(pages[0]); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("an address that is gone: %v", err)
	}
}

// TestUpgradeUnderFire opens connections one after the other and many at a
// time while relays replace each other: none is refused, none is reset.
func TestUpgradeUnderFire(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "lh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	listen := netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1"))
	r := startAs(t, "longhaul", nil, nil, "relay", "--listen", listen.String(), "--forward", echoTarget(t), "--control-socket", socket, "--log-level", "warn")
	nettest.Eventually(t, patience, func() bool {
		_, err := control.Status(t.Context(), socket)
		return err == nil
	}, func() string { return "the relay does not start" })
	ctx, cancel := context.WithCancel(t.Context())
	failures := make(chan error, 8)
	count := make(chan int, 8)
	for range cap(count) {
		go func() {
			n := 0
			for ; ctx.Err() == nil; n++ {
				if err := exchangeOnce(listen.String()); err != nil {
					failures <- err
					break
				}
			}
			count <- n
		}()
	}
	upgrades := 20
	if testing.Short() {
		upgrades = 5
	}
	for range upgrades {
		upgradeAt(t, socket)
	}
	cancel()
	all := 0
	for range cap(count) {
		all += <-count
	}
	select {
	case err := <-failures:
		t.Errorf("a connection failed: %v", err)
	default:
	}
	t.Logf("%d connections over %d upgrades", all, upgrades)
	if code := r.exitCode(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func exchangeOnce(address string) error {
	c, err := dial(address)
	if err != nil {
		return err
	}
	defer c.Close()
	text := strings.Repeat("x", 2000)
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && string(got) != text {
		err = fmt.Errorf("got %d bytes", len(got))
	}
	return err
}
