//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"longhaul/internal/lab"
	"longhaul/internal/remedy"
)

func newLabExec(env *env) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "exec HOST -- COMMAND [ARG...]",
		Short: "Run a program in a host of the running lab",
		Long: `exec runs a program in one of the hosts of the lab that this user has up, with
this shell's environment, directory and standard streams, and ends with its
status.`,
		Example: `  longhaul lab exec host-b -- iperf3 -s
  longhaul lab exec host-a -- iperf3 -c host-b
  longhaul lab exec relay-a -- bash`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || len(args) == 2 && args[1] == "--" {
				return usageError(remedy.New(errors.New("a host and a command are needed"), "for example: longhaul lab exec host-a -- ping -c 3 host-b"))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			host, program := args[0], args[1:]
			if program[0] == "--" {
				program = program[1:]
			}
			status, err := labExec(socketOr(socket), host, program)
			if err != nil {
				return err
			}
			if status != exitOK {
				return &exitError{status: status}
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows belongs to the command
	cmd.Flags().StringVar(&socket, "socket", "", "where the lab listens")
	return cmd
}

// labExec uses the process's own streams: the program gets their descriptors.
func labExec(socket, host string, args []string) (int, error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	request := lab.ExecRequest{Host: host, Args: args, Env: os.Environ(), Dir: dir}
	streams := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		terminal, err := newTerminal()
		if err != nil {
			return 0, err
		}
		defer terminal.close()
		streams = []*os.File{terminal.slave, terminal.slave, terminal.slave}
		request.Terminal = true
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	reply, err := lab.Call(socket, lab.Request{Exec: &request}, streams, signals)
	return reply.Status, err
}

// terminal is a pseudo-terminal between this terminal and a program in the
// lab, which needs one of its own for job control.
type terminal struct {
	master, slave *os.File
	before        *term.State
	drained       chan struct{}
	resized       chan os.Signal
}

func newTerminal() (*terminal, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot get a pseudo-terminal: %w", err)
	}
	t := &terminal{master: master, drained: make(chan struct{}), resized: make(chan os.Signal, 1)}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		t.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, fmt.Errorf("cannot open a pseudo-terminal: %w", err)
	}
	t.resize()
	if t.before, err = term.MakeRaw(int(os.Stdin.Fd())); err != nil {
		master.Close()
		t.slave.Close()
		return nil, err
	}
	signal.Notify(t.resized, unix.SIGWINCH)
	go func() {
		for range t.resized {
			t.resize()
		}
	}()
	go io.Copy(t.master, os.Stdin) // ends with the process: a read of a terminal cannot be called off
	go func() {
		defer close(t.drained)
		_, _ = io.Copy(os.Stdout, t.master) // ends once nobody has the slave open
	}()
	return t, nil
}

// resize tells the program how large the window is.
func (t *terminal) resize() {
	if size, err := unix.IoctlGetWinsize(int(os.Stdin.Fd()), unix.TIOCGWINSZ); err == nil {
		_ = unix.IoctlSetWinsize(int(t.master.Fd()), unix.TIOCSWINSZ, size)
	}
}

// close shows what the program last wrote and restores the terminal.
func (t *terminal) close() {
	t.slave.Close()
	<-t.drained
	signal.Stop(t.resized)
	close(t.resized)
	_ = term.Restore(int(os.Stdin.Fd()), t.before)
	t.master.Close()
}
