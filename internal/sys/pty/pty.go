// Package pty opens pseudo terminals (pty(7)), for programs under test that
// need a terminal.
package pty

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Open returns the two ends of a new pseudo terminal: screen belongs to the
// user, terminal to the program.
func Open() (screen, terminal *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	screen = os.NewFile(uintptr(fd), "/dev/ptmx")
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		screen.Close()
		return nil, nil, fmt.Errorf("make a pseudo terminal: %w", err)
	}
	return screen, terminal, nil
}

// Resize changes the size of the terminal, in characters; the kernel signals
// the program.
func Resize(terminal *os.File, columns, rows uint16) error {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	controlled := raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	})
	if controlled != nil {
		return controlled
	}
	return err
}
