package screen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"longhaul/internal/words/display"
)

// minFrameTime bounds the rate of the screen's changes, high enough for keys to feel
// immediate.
const minFrameTime = 50 * time.Millisecond

// stopTime is how long the process may take to stop. In an orphaned process group it does not: nobody there could
// continue it.
const stopTime = 100 * time.Millisecond

// What a terminal is sent before and after the view: another screen without a cursor
// and without folded lines, on which pasted text comes in brackets (xterm's control
// sequences).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?2004h"
	leaveScreen = "\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// terminal is the terminal of a view.
type terminal struct {
	in, out *os.File
	before  *term.State
	shown   []string // lines on the screen; nil: unknown
	drawn   time.Time
}

// Run shows the view on a terminal until the user or the context ends it. It returns
// the error of a failed refresh.
func (v *Live) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	t := &terminal{}
	var isIn, isOut bool
	t.in, isIn = in.(*os.File)
	t.out, isOut = display.Raw(out).(*os.File)
	if !isIn || !isOut {
		return errors.New("the live view needs a terminal")
	}
	defer t.leave() // also if only a part of enter succeeds
	if err := t.enter(); err != nil {
		return err
	}
	return v.loop(ctx, t)
}

// enter takes the terminal, at first or after leave.
func (t *terminal) enter() (err error) {
	if t.before, err = term.MakeRaw(int(t.in.Fd())); err != nil {
		return err
	}
	t.shown = nil
	_, err = io.WriteString(t.out, enterScreen)
	return err
}

// leave gives the terminal back as it was.
func (t *terminal) leave() {
	if t.before == nil {
		return
	}
	_, _ = io.WriteString(t.out, leaveScreen) // nobody reads it if this fails
	_ = term.Restore(int(t.in.Fd()), t.before)
	t.before = nil
}

// draw changes the lines of the screen that differ.
func (t *terminal) draw(lines []string) error {
	var b strings.Builder
	if len(t.shown) != len(lines) {
		b.WriteString("\x1b[2J\x1b[H" + strings.Join(lines, "\r\n"))
	} else {
		for i, line := range lines {
			if line != t.shown[i] {
				b.WriteString(moveTo(i+1) + "\x1b[2K" + line)
			}
		}
	}
	t.shown, t.drawn = lines, time.Now()
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(t.out, b.String())
	return err
}

// loop shows the view until it ends.
func (v *Live) loop(ctx context.Context, t *terminal) error {
	resized, continued := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(resized)
	defer signal.Stop(continued)
	input, ended := make(chan []byte), make(chan error, 1)
	go read(t.in, input, ended, ctx.Done())

	var keys keyReader
	refresh, frame, escape := time.NewTimer(0), time.NewTimer(minFrameTime), time.NewTimer(escapeTime)
	unstopped := time.NewTimer(stopTime)
	defer unstopped.Stop()
	defer refresh.Stop()
	defer frame.Stop()
	defer escape.Stop()
	resize := func() error {
		width, height, err := term.GetSize(int(t.out.Fd()))
		v.width, v.height, t.shown = width, height, nil
		return err
	}
	resume := func() error {
		t.leave() // somebody may have changed its settings since
		return errors.Join(t.enter(), resize())
	}
	if err := resize(); err != nil {
		return err
	}
	for {
		var pressed []key
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return fmt.Errorf("read the terminal: %w", err)
		case bytes := <-input:
			pressed = keys.read(bytes)
			escape.Reset(keys.patience())
		case <-escape.C:
			pressed = keys.rest()
		case <-resized:
			if err := resize(); err != nil {
				return err
			}
		case <-continued:
			if err := resume(); err != nil {
				return err
			}
		case <-unstopped.C:
			if t.before != nil {
				continue // it was stopped and continued, or had no reason to
			}
			if err := resume(); err != nil {
				return err
			}
		case <-refresh.C:
			if v.paused {
				break
			}
			after, err := v.refresh()
			if err != nil {
				return err
			}
			refresh.Reset(after)
		case <-frame.C:
			if t.before == nil {
				continue
			}
			if err := t.draw(v.screen()); err != nil {
				return err
			}
			continue
		}
		for _, k := range pressed {
			switch v.press(k) {
			case quit:
				return nil
			case suspend:
				t.leave()
				if err := syscall.Kill(0, unix.SIGTSTP); err != nil {
					return err
				}
				unstopped.Reset(stopTime)
			case restart:
				refresh.Reset(0)
			}
		}
		if t.before != nil {
			frame.Reset(minFrameTime - time.Since(t.drawn))
		}
	}
}

// read reads a terminal. A read cannot be interrupted: the last one ends with the
// process.
func read(from io.Reader, to chan<- []byte, failed chan<- error, done <-chan struct{}) {
	b := make([]byte, 4096)
	for {
		n, err := from.Read(b)
		if n > 0 {
			select {
			case to <- slices.Clone(b[:n]):
			case <-done:
				return
			}
		}
		if err != nil {
			failed <- err
			return
		}
	}
}
