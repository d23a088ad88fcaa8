package screen

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"longhaul/internal/sys/pty"
)

// TestTerminalGivenBack holds that a terminal whose output fails at once is as it was before.
func TestTerminalGivenBack(t *testing.T) {
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer terminal.Close()
	before, err := term.GetState(int(terminal.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	reader, broken, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	reader.Close()
	if err := liveOf(t, 1).Run(t.Context(), terminal, broken); !errors.Is(err, unix.EPIPE) {
		t.Errorf("it ends with %v", err)
	}
	after, err := term.GetState(int(terminal.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if *after != *before {
		t.Errorf("the terminal's settings are %+v, and were %+v", after, before)
	}
}
