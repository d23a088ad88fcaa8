package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Program is the program to start as the successor.
type Program struct {
	Path string
	Args []string // including the program's name
	Env  []string
	Log  *os.File // its standard error once it serves
}

// Successor is a process that replaces this one.
type Successor struct {
	process *os.Process
	channel channel
	said    *stderrTail
}

// Start starts a program and hands it the offer. The process is a sibling of
// this one, not a child: its parent is the process that started this one. So
// that parent sees its end even after this process has gone. Its standard error
// goes to log until it serves.
func Start(ctx context.Context, p Program, offer Offer, log io.Writer) (*Successor, error) {
	if err := Executable(p.Path); err != nil {
		return nil, err
	}
	ours, theirs, err := newChannels()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	said, stderr, err := newStderrTail(log)
	if err != nil {
		ours.Close()
		return nil, err
	}
	// The two extra descriptors get the numbers 3 and 4 in the new process.
	process, err := os.StartProcess(p.Path, p.Args, &os.ProcAttr{
		Env:   append(p.Env[:len(p.Env):len(p.Env)], Variable+"=3,4"),
		Files: []*os.File{os.Stdin, os.Stdout, stderr, theirs, p.Log},
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_PARENT},
	})
	stderr.Close()
	if err != nil {
		ours.Close()
		said.wait(time.Second)
		return nil, startError(p.Path, err)
	}
	s := &Successor{process: process, channel: ours, said: said}
	// Only the process holds the other end now, so its exit shows as an end of
	// stream.
	theirs.Close()
	lift := s.channel.within(ctx)
	err = s.channel.sendOffer(offer)
	if cause := lift(); err != nil {
		return nil, s.fail("did not take the sockets", "it was ready", errors.Join(cause, err))
	}
	return s, nil
}

func startError(path string, err error) error {
	var number syscall.Errno
	if !errors.As(err, &number) {
		return err
	}
	switch number {
	case syscall.ENOEXEC:
		return fmt.Errorf("%s cannot be started: it is not a program for this machine's architecture", path)
	case syscall.ETXTBSY:
		return fmt.Errorf("%s cannot be started: it is still being written", path)
	case syscall.ENOENT: // the file exists, but its interpreter does not
		return fmt.Errorf("%s cannot be started: the interpreter that it names is missing", path)
	}
	return fmt.Errorf("%s cannot be started: %w", path, number)
}

// PID is the process ID.
func (s *Successor) PID() int { return s.process.Pid }

// Ready waits until the process is ready to serve, and returns its state. If it
// fails or ctx ends first, Ready kills the process and returns a [*Failure].
func (s *Successor) Ready(ctx context.Context) (state []byte, err error) {
	lift := s.channel.within(ctx)
	state, err = s.channel.expect(kindReady)
	if cause := lift(); err != nil || cause != nil {
		return nil, s.fail("was not ready", "it was ready", errors.Join(cause, err))
	}
	return state, nil
}

// Serve orders the process to begin and waits until it has. Errors are as in
// Ready.
func (s *Successor) Serve(ctx context.Context) error {
	lift := s.channel.within(ctx)
	err := s.channel.send(message{Kind: kindGo})
	if err == nil {
		_, err = s.channel.expect(kindServing)
	}
	if cause := lift(); err != nil {
		return s.fail("did not begin to accept", "it accepted", errors.Join(cause, err))
	}
	return nil
}

// Leave tells the process that it alone accepts now, waits until it has taken what this one leaves, or has
// ended, and releases it.
func (s *Successor) Leave(ctx context.Context) error {
	lift := s.channel.within(ctx)
	err := s.channel.send(message{Kind: kindYours})
	if err == nil {
		_, err = io.Copy(io.Discard, s.channel) // until it closes its end
	}
	if cause := lift(); err != nil {
		err = errors.Join(cause, err)
	}
	_ = s.channel.Close()
	_ = s.process.Release()
	return err
}

// Kill kills the process and returns when it has ended.
func (s *Successor) Kill() {
	_ = s.process.Kill()
	_ = s.channel.SetDeadline(time.Now().Add(killTimeout))
	_, _ = io.Copy(io.Discard, s.channel) // until the kernel closes the other end
	_ = s.channel.Close()
	s.said.wait(time.Second)
	_ = s.process.Release()
}

// killTimeout bounds the exit of a killed process. It exits at once unless a
// disk or a file server blocks it.
const killTimeout = 5 * time.Second

// stderrTimeout bounds the wait for the standard error of a process that closed
// its channel. Tests wait longer for expected output.
var stderrTimeout = 2 * time.Second

// fail kills the process and returns a Failure: didNot is the missing step,
// before the step that its end precedes.
func (s *Successor) fail(didNot, before string, err error) error {
	pid := s.PID()
	if gone(err) {
		s.said.wait(stderrTimeout)
	}
	s.Kill()
	f := &Failure{LastWords: s.said.String()}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		f.Problem = fmt.Sprintf("the new process %d %s in time", pid, didNot)
	case errors.Is(err, context.Canceled):
		f.Problem = fmt.Sprintf("broken off before the new process %d served", pid)
	case gone(err):
		f.Problem = fmt.Sprintf("the new process %d ended before %s", pid, before)
	default:
		f.Problem = fmt.Sprintf("the new process %d %s: %v", pid, didNot, err)
	}
	return f
}

// stderrTail forwards the output of a process, and keeps the end of it.
type stderrTail struct {
	mu   sync.Mutex
	kept []byte
	done chan struct{}
}

const maxStderrTail = 4096

// newStderrTail also returns the end to write to.
func newStderrTail(log io.Writer) (*stderrTail, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	l := &stderrTail{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		defer r.Close()
		_, _ = io.Copy(io.MultiWriter(l, log), r)
	}()
	return l, w, nil
}

func (l *stderrTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, p...)
	if extra := len(l.kept) - maxStderrTail; extra > 0 {
		l.kept = l.kept[extra:]
	}
	return len(p), nil
}

// wait waits until nothing more can be written, at most for within: a child of
// the process may hold the pipe.
func (l *stderrTail) wait(within time.Duration) {
	select {
	case <-l.done:
	case <-time.After(within):
	}
}

// String returns the kept output in whole lines.
func (l *stderrTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.kept
	if len(text) == maxStderrTail {
		if _, rest, found := bytes.Cut(text, []byte("\n")); found {
			text = rest
		}
	}
	return strings.TrimSpace(string(text))
}
