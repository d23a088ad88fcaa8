package session

import (
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"longhaul/internal/sys/pty"
)

// Exec runs a program in a host of the lab at a socket, with this process's
// environment, directory, standard streams and signals. It returns the status that a
// shell would report. At a terminal the program gets its own terminal.
func Exec(socket, host string, args []string) (status int, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	asked := execRequest{Host: host, Args: args, Env: os.Environ(), Dir: dir}
	streams := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		terminal, err := newTerminal()
		if err != nil {
			return 0, err
		}
		defer terminal.close()
		streams = []*os.File{terminal.own, terminal.own, terminal.own}
		asked.Terminal = true
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	answer, err := call(socket, request{Exec: &asked}, streams, signals)
	return answer.Status, err
}

// terminal is a pseudo-terminal between this terminal and a program in the lab, which
// needs it for job control.
type terminal struct {
	screen, own *os.File // the side of this terminal, and the program's
	before      *term.State
	drained     chan struct{}
	resized     chan os.Signal
}

func newTerminal() (*terminal, error) {
	screen, own, err := pty.Open()
	if err != nil {
		return nil, err
	}
	t := &terminal{screen: screen, own: own, drained: make(chan struct{}), resized: make(chan os.Signal, 1)}
	t.resize()
	if t.before, err = term.MakeRaw(int(os.Stdin.Fd())); err != nil {
		screen.Close()
		own.Close()
		return nil, err
	}
	signal.Notify(t.resized, unix.SIGWINCH)
	go func() {
		for range t.resized {
			t.resize()
		}
	}()
	go io.Copy(t.screen, os.Stdin) // ends with the process: a terminal's read cannot be interrupted
	go func() {
		defer close(t.drained)
		_, _ = io.Copy(os.Stdout, t.screen) // ends when the program's side is closed
	}()
	return t, nil
}

// resize sets the size of the program's window.
func (t *terminal) resize() {
	if size, err := unix.IoctlGetWinsize(int(os.Stdin.Fd()), unix.TIOCGWINSZ); err == nil {
		_ = pty.Resize(t.own, size.Col, size.Row)
	}
}

// close copies the program's last output and restores the terminal.
func (t *terminal) close() {
	t.own.Close()
	<-t.drained
	signal.Stop(t.resized)
	close(t.resized)
	_ = term.Restore(int(os.Stdin.Fd()), t.before)
	t.screen.Close()
}
