//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/pty"
	"longhaul/internal/watch/top"
	"longhaul/internal/watch/top/screen"
	"longhaul/test/nettest"
)

var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[a-zA-Z]`)

// terminalProgram is longhaul in a terminal.
type terminalProgram struct {
	cmd              *exec.Cmd
	screen, terminal *os.File
	before           unix.Termios
	orphaned         bool // its process group is, so that nothing stops it
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
		SysProcAttr: &syscall.SysProcAttr{Setsid: p.orphaned, Setpgid: !p.orphaned}, // which it stops
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		p.ended <- p.cmd.Wait()
		close(gone)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-gone
	})
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
	p.left(t)
}

// left waits for the program to leave its screen.
func (p *terminalProgram) left(t *testing.T) {
	t.Helper()
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

func TestTopStopsAndContinues(t *testing.T) {
	t.Parallel()
	p := openTerminal(t)
	p.run(t, "longhaul", "top")
	p.shows(t, `\d+ connections?  sent`)
	p.keys(t, "\x1a")
	nettest.Eventually(t, patience, func() bool {
		proc, err := procfs.NewProc(p.cmd.Process.Pid)
		nettest.Must(t, err)
		stat, err := proc.Stat()
		nettest.Must(t, err)
		return stat.State == "T"
	}, func() string { return "it stops" })
	p.restored(t)
	nettest.Must(t, p.cmd.Process.Signal(syscall.SIGCONT))
	p.shows(t, `\d+ connections?  sent`)
	p.keys(t, "q")
	p.ends(t)
}

// TestTopWithoutStop holds that a view that cannot be stopped takes the terminal back.
func TestTopWithoutStop(t *testing.T) {
	t.Parallel()
	p := openTerminal(t)
	p.orphaned = true
	p.run(t, "longhaul", "top")
	p.shows(t, `\d+ connections?  sent`)
	raw := p.settings(t)
	p.keys(t, "\x1a")
	p.left(t)
	p.shows(t, `\d+ connections?  sent`)
	if again := p.settings(t); again != raw {
		t.Errorf("the terminal's settings are %+v, and were %+v", again, raw)
	}
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
	w, err := top.Watch(func(doctor.Sample, doctor.Sample) doctor.Cause { panic("a mistake") }, 0)
	if err != nil {
		panic(err)
	}
	s := screen.New(w, minTopInterval, top.ByGoodput, top.Filter{})
	if err := s.Run(context.Background(), os.Stdin, os.Stdout); err != nil {
		os.Exit(exitFailure)
	}
}
