//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"longhaul/internal/doctor"
	"longhaul/internal/nettest"
	"longhaul/internal/process"
	"longhaul/internal/pty"
	"longhaul/internal/tcpinfo"
	"longhaul/internal/top"
)

// topTableOf is a table of connections with the longest texts that there are.
func topTableOf(t *testing.T, n int) *top.Table {
	t.Helper()
	table := top.NewTable(func(doctor.Sample, doctor.Sample) doctor.Cause { return doctor.ReceiverWindow })
	for second := range 3 {
		err := table.Refresh(time.Duration(second)*time.Second, func(visit func(*tcpinfo.Connection)) error {
			for i := range n {
				c := tcpinfo.Connection{
					Cookie: uint64(i + 1), Inode: uint32(i + 1), CongestionControl: "cubic",
					Local:  netip.MustParseAddrPort(fmt.Sprintf("192.168.100.100:%d", 10000+i)),
					Remote: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:50000"),
				}
				c.Info.State, c.Info.RTT = tcpinfo.Established, 63*time.Millisecond
				c.Info.BytesAcked = uint64(second * 1_000_000 * (n - i))
				c.Info.Know(tcpinfo.FieldState, tcpinfo.FieldRTT, tcpinfo.FieldBytesAcked, tcpinfo.FieldBytesReceived)
				visit(&c)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range table.Connections() {
		c.Process = process.Process{PID: 4194304, Command: "a\x1b[2Jlong-name-"}
	}
	return table
}

func TestTopTableFits(t *testing.T) {
	rows := topTableOf(t, 3).Select(top.Filter{}, top.ByGoodput)
	for _, width := range []int{0, 80, 100, 160, 200} {
		l := newTopLayout(rows, width)
		for _, line := range []string{l.header(), l.row(rows[0])} {
			if n := utf8.RuneCountInString(line); width > 0 && n > width {
				t.Errorf("%d characters in %d: %s", n, width, line)
			}
			if strings.ContainsRune(line, '\x1b') {
				t.Errorf("the name of a process reaches the terminal: %q", line)
			}
		}
	}
	l := newTopLayout(rows, 80)
	const want = ":10000 [2001:db8:…666]:50000 a?[…me-   24M     0  63ms    -    - receiver-window"
	if got := l.row(rows[0]); got != want {
		t.Errorf("80 columns:\n%s\nwant\n%s", got, want)
	}
	for _, width := range []int{0, 200} {
		got := newTopLayout(rows, width).row(rows[0])
		for _, part := range []string{"192.168.100.100:10000 ", "[2001:db8:1111:2222:3333:4444:5555:6666]:50000 ", "/4194304 "} {
			if !strings.Contains(got, part) {
				t.Errorf("%d columns: %s\nlacks %s", width, got, part)
			}
		}
	}
}

func TestTopTexts(t *testing.T) {
	for share, want := range map[float64]string{0: "0%", 0.0001: "<.1%", 0.0123: "1.2%", 0.0994: "9.9%", 0.0996: "10%", 0.996: "100%", 1: "100%", math.NaN(): "-"} {
		if got := shareText(share); got != want {
			t.Errorf("%v: %s, want %s", share, got, want)
		}
	}
	for seconds, want := range map[float64]string{0.000012: "12µs", 0.0009996: "1.0ms", 0.0063: "6.3ms", 0.0631: "63ms", 0.9996: "1.0s", 12: "12s", math.NaN(): "-"} {
		if got := durationText(seconds); got != want {
			t.Errorf("%v: %s, want %s", seconds, got, want)
		}
	}
	for _, tt := range []struct {
		figures []float64
		width   int
		want    string
	}{
		{[]float64{0, 1, 2, 7}, 9, "▁▂▃█"},
		{[]float64{0, 1, 2, 7}, 2, "▃█"},
		{[]float64{0, 0, math.NaN()}, 9, "▁▁ "},
		{[]float64{math.NaN(), 5}, 9, " █"},
		{nil, 9, ""},
	} {
		if got := sparkline(tt.figures, tt.width); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.figures, got, tt.want)
		}
	}
}

var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[a-zA-Z]`)

// screenOf is the view's screen as text.
func screenOf(v *topLive) []string {
	return strings.Split(escapes.ReplaceAllString(v.View().Content, ""), "\n")
}

// press presses keys, each given by its name or as text.
func press(v *topLive, keys ...string) {
	for _, name := range keys {
		key := tea.Key{Text: name, Code: []rune(name)[0]}
		if code, ok := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "space": tea.KeySpace, "backspace": tea.KeyBackspace,
			"up": tea.KeyUp, "down": tea.KeyDown, "pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "home": tea.KeyHome, "end": tea.KeyEnd}[name]; ok {
			key = tea.Key{Code: code}
		}
		v.Update(tea.KeyPressMsg(key))
	}
}

func liveOf(t *testing.T, n int) *topLive {
	t.Helper()
	v := newTopLive(&watcher{table: topTableOf(t, n)}, time.Second, top.ByGoodput, top.Filter{})
	v.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	v.sort()
	return v
}

func TestTopScreenFits(t *testing.T) {
	for _, rows := range []int{0, 3, 100} {
		v := liveOf(t, rows)
		for _, keys := range [][]string{nil, {"/", "x", "y"}, {"enter", "esc", "end"}, {"home", "enter"}} {
			press(v, keys...)
			for _, size := range []tea.WindowSizeMsg{{Width: 80, Height: 24}, {Width: 200, Height: 60}, {Width: 40, Height: 10}, {Width: 7, Height: 3}, {Width: 1, Height: 1}} {
				v.Update(size)
				screen := screenOf(v)
				if len(screen) != size.Height {
					t.Errorf("%d rows, keys %v: %d lines in %+v", rows, keys, len(screen), size)
				}
				for _, line := range screen {
					if n := utf8.RuneCountInString(line); n > size.Width {
						t.Errorf("%d rows, keys %v: %d characters in %+v: %s", rows, keys, n, size, line)
					}
				}
			}
			v.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
			press(v, "esc", "esc")
		}
	}
}

func TestTopCursor(t *testing.T) {
	v := liveOf(t, 100)
	shows := func(port int) bool {
		t.Helper()
		for _, line := range screenOf(v) {
			if strings.HasPrefix(line, fmt.Sprintf(":%d ", port)) {
				return true
			}
		}
		return false
	}
	at := func(port uint16) {
		t.Helper()
		if got := v.rows[v.cursor].Local.Port(); got != port || !shows(int(port)) {
			t.Errorf("the cursor is at %d, want %d\n%s", got, port, strings.Join(screenOf(v), "\n"))
		}
	}
	at(10000)
	press(v, "up")
	at(10000)
	press(v, "down", "j", "down", "k")
	at(10002)
	press(v, "pgdown")
	at(10022)
	press(v, "end")
	at(10099)
	press(v, "down", "pgup")
	at(10079)
	// It stays with its connection in another order, and among fewer.
	press(v, "s")
	at(10079)
	press(v, "/", "1", "0", "0", "7", "9", "enter")
	at(10079)
	if len(v.rows) != 1 {
		t.Errorf("%d rows", len(v.rows))
	}
	press(v, "esc")
	if len(v.rows) != 100 {
		t.Errorf("%d rows without a filter", len(v.rows))
	}
	at(10079)
	press(v, "home")
	at(10000)
}

func TestTopFilterIsEdited(t *testing.T) {
	v := liveOf(t, 10)
	press(v, "/", ":", "1", "0", "0", "0", "3")
	if got := screenOf(v)[1]; got != "filter: :10003█" || len(v.rows) != 1 {
		t.Errorf("%s, %d rows", got, len(v.rows))
	}
	press(v, "9") // a port beyond the last
	if got := screenOf(v)[1]; !strings.Contains(got, `":100039" is not a port`) {
		t.Errorf("a filter of an impossible port shows %q", got)
	}
	press(v, "enter") // not what cannot be read
	if !v.editing {
		t.Error("a filter that cannot be read was taken")
	}
	press(v, "backspace", "enter")
	if v.editing || v.filter.String() != ":10003" {
		t.Errorf("filter %q", v.filter)
	}
	press(v, "/", "q", "esc") // q is a letter here
	if v.filter.String() != ":10003" || len(v.rows) != 1 {
		t.Errorf("filter %q after it was left as it was, %d rows", v.filter, len(v.rows))
	}
	v.Update(tea.KeyPressMsg(tea.Key{Text: "/", Code: '/'}))
	v.Update(tea.PasteMsg{Content: " 10004\n"})
	if v.typed != ":1000310004" {
		t.Errorf("pasted: %q", v.typed)
	}
}

// What ended while it is looked at says so, and the list goes on.
func TestTopDetailsOfWhatHasEnded(t *testing.T) {
	v := liveOf(t, 2)
	press(v, "down", "enter")
	has := func(want string) {
		t.Helper()
		if got := strings.Join(screenOf(v), "\n"); !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	has("192.168.100.100:10001 -> [2001:db8:1111:2222:3333:4444:5555:6666]:50000\nestablished  a?[2Jlong-name-/4194304  uid 0  cubic")
	has("cause     receiver-window")
	has("8.0Mb/s ██")
	if err := v.watcher.table.Refresh(4*time.Second, func(func(*tcpinfo.Connection)) error { return nil }); err != nil {
		t.Fatal(err)
	}
	v.sort()
	has("ended; as it was last seen")
	press(v, "esc", "enter") // there is nothing to look into
	has("0 connections")
}

// Whoever watches a relay is told of its end.
func TestTopOfARelayThatEnds(t *testing.T) {
	cmd := exec.Command("sleep", "60") // a process is all that it takes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{diag: diag, started: time.Now(), table: top.NewTable(doctor.Glance), relay: process.Process{PID: cmd.Process.Pid}}
	defer w.close()
	if err := w.refresh(); err != nil || len(w.table.Connections()) > 0 {
		t.Errorf("%v, %d connections", err, len(w.table.Connections()))
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err := w.refresh(); err == nil || err.Error() != "the relay has ended" {
		t.Errorf("after its end: %v", err)
	}
}

// terminalProgram is longhaul in a terminal.
type terminalProgram struct {
	cmd              *exec.Cmd
	screen, terminal *os.File
	before           unix.Termios
	ended            chan error

	mu     sync.Mutex
	output bytes.Buffer
	wide   bool
}

func openTerminal(t *testing.T) *terminalProgram {
	t.Helper()
	p := &terminalProgram{ended: make(chan error, 1)}
	var err error
	if p.screen, p.terminal, err = pty.Open(); err != nil {
		t.Fatal(err)
	}
	p.before = p.settings(t)
	var reading sync.WaitGroup
	reading.Go(func() {
		b := make([]byte, 4096)
		for {
			n, err := p.screen.Read(b)
			if err != nil {
				return
			}
			p.mu.Lock()
			p.output.Write(b[:n])
			p.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		p.terminal.Close()
		p.screen.Close()
		reading.Wait()
	})
	return p
}

func (p *terminalProgram) settings(t *testing.T) unix.Termios {
	t.Helper()
	raw, err := p.terminal.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var settings *unix.Termios
	if controlled := raw.Control(func(fd uintptr) { settings, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) }); controlled != nil || err != nil {
		t.Fatal(controlled, err)
	}
	return *settings
}

// run starts longhaul in the terminal, or another program of TestMain's.
func (p *terminalProgram) run(t *testing.T, name string, args ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = &exec.Cmd{
		Path: self, Args: append([]string{name}, args...), Env: append(os.Environ(), "TERM=xterm-256color"),
		Stdin: p.terminal, Stdout: p.terminal, Stderr: p.terminal,
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() { p.cmd.Process.Kill() })
}

// shows waits for the whole screen to match. What changes on a screen is sent
// in pieces; all of it comes after a change of its size.
func (p *terminalProgram) shows(t *testing.T, want string) {
	t.Helper()
	re := regexp.MustCompile("(?s)" + want)
	text := ""
	var resized time.Time
	nettest.Eventually(t, patience, func() bool {
		if time.Since(resized) > 500*time.Millisecond {
			p.resize(t)
			resized = time.Now()
		}
		text = escapes.ReplaceAllString(p.text(), "")
		return re.MatchString(text)
	}, func() string { return fmt.Sprintf("the screen matches %q; it shows\n%q", want, text) })
}

// resize has the program send its whole screen anew.
func (p *terminalProgram) resize(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	p.output.Reset()
	p.mu.Unlock()
	p.wide = !p.wide
	columns := uint16(120)
	if p.wide {
		columns++
	}
	nettest.Must(t, pty.Resize(p.terminal, columns, 24))
	// It is not the program's controlling terminal, whose end would hide
	// what state the program left it in.
	if err := p.cmd.Process.Signal(syscall.SIGWINCH); err != nil {
		t.Fatalf("%v\n%s", err, p.text())
	}
}

func (p *terminalProgram) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

func (p *terminalProgram) keys(t *testing.T, keys string) {
	t.Helper()
	if _, err := io.WriteString(p.screen, keys); err != nil {
		t.Fatal(err)
	}
}

// restored expects the terminal to be as it was before.
func (p *terminalProgram) restored(t *testing.T) {
	t.Helper()
	if after := p.settings(t); after != p.before {
		t.Errorf("the terminal's settings are %+v, and were %+v", after, p.before)
	}
	const mainScreen, cursorShown = "\x1b[?1049l", "\x1b[?25h"
	nettest.Eventually(t, patience, func() bool {
		return strings.Contains(p.text(), mainScreen) && strings.Contains(p.text(), cursorShown)
	}, func() string { return fmt.Sprintf("the screen is not given back: %q", p.text()) })
}

func (p *terminalProgram) ends(t *testing.T) {
	t.Helper()
	select {
	case err := <-p.ended:
		if err != nil {
			t.Errorf("%v\n%s", err, p.text())
		}
	case <-time.After(patience):
		t.Fatalf("it does not end: %q", p.text())
	}
	p.restored(t)
}

// connection makes a connection over loopback, and returns its server's port.
func connection(t *testing.T) (port string) {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

func TestTopInTerminal(t *testing.T) {
	t.Parallel()
	port := connection(t)
	p := openTerminal(t)
	p.run(t, "longhaul", "top", "--interval", "100ms", "--filter", ":"+port)
	p.shows(t, `2 (of \d+ )?connections .* by goodput`)
	p.shows(t, `filter: :`+port+`.*LOCAL.*CAUSE`)
	p.shows(t, `127\.0\.0\.1:`+port+` +127\.0\.0\.1:\d+ +\S+/\d+ +0 +0 .* idle`)
	p.keys(t, "s")
	p.shows(t, "by retransmissions")
	p.keys(t, "/ nonesuch")
	p.shows(t, `0 of \d+ connections.*filter: :`+port+` nonesuch█`)
	p.keys(t, "\x1b")
	p.shows(t, `filter: :`+port+`  \(esc: none\)`)
	p.keys(t, " ")
	p.shows(t, "PAUSED")
	p.keys(t, " ")
	p.shows(t, `by retransmissions\s+filter`) // and nothing between
	p.keys(t, "\x1b[B\r")
	p.shows(t, `127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+\s+established.*windows   congestion.*esc back`)
	p.keys(t, "\x1b")
	p.shows(t, `2 (of \d+ )?connections`)
	p.keys(t, "q")
	p.ends(t)
}

func TestTopGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			p := openTerminal(t)
			p.run(t, "longhaul", "top")
			p.shows(t, `\d+ connections?  sent`)
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			p.ends(t)
		})
	}
	t.Run("panic", func(t *testing.T) {
		connection(t) // to be asked for its cause
		p := openTerminal(t)
		if err := pty.Resize(p.terminal, 80, 24); err != nil {
			t.Fatal(err)
		}
		p.run(t, "longhaul-panics")
		select {
		case err := <-p.ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !exit.Exited() {
				t.Errorf("it ends with %v", err)
			}
		case <-time.After(patience):
			t.Fatalf("it does not end: %q", p.text())
		}
		p.restored(t)
	})
}

// topPanicsMain is longhaul top with a mistake in it.
func topPanicsMain() {
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		panic(err)
	}
	w := &watcher{diag: diag, started: time.Now(), table: top.NewTable(func(doctor.Sample, doctor.Sample) doctor.Cause { panic("a mistake") })}
	e := &env{stdin: os.Stdin, stdout: os.Stdout}
	if err := runTopLive(context.Background(), e, newTopLive(w, leastTopInterval, top.ByGoodput, top.Filter{})); err != nil {
		os.Exit(exitFailure)
	}
}
