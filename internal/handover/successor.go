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

// Program is what is started to follow this process.
type Program struct {
	Path string
	Args []string // the first is the program's name, as ever
	Env  []string
	Log  *os.File // its standard error once it serves
}

// Successor is a process that is to follow this one.
type Successor struct {
	process *os.Process
	channel channel
	said    *lastWords
}

// Start starts a program and hands it what is offered. The process is not a
// child but a sibling of this one: its parent is whoever started this process,
// who sees its end even after this process has gone. Its standard error is
// passed on to log until it serves.
func Start(ctx context.Context, p Program, offer Offer, log io.Writer) (*Successor, error) {
	if err := Executable(p.Path); err != nil {
		return nil, err
	}
	ours, theirs, err := newChannels()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	said, stderr, err := newLastWords(log)
	if err != nil {
		ours.Close()
		return nil, err
	}
	// The two extra descriptors get the numbers 3 and 4 there.
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
	// From here on the other end is the process's alone: its end is seen.
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
		return fmt.Errorf("%s cannot be started: it is no program of this machine's architecture", path)
	case syscall.ETXTBSY:
		return fmt.Errorf("%s cannot be started: it is still being written", path)
	case syscall.ENOENT: // the file is there: it is what would run it that is not
		return fmt.Errorf("%s cannot be started: the interpreter that it names is missing", path)
	}
	return fmt.Errorf("%s cannot be started: %w", path, number)
}

// PID is the process's number.
func (s *Successor) PID() int { return s.process.Pid }

// Ready waits until the process is ready to serve, and returns what it says of
// itself. When it is not, or ctx ends first, it is killed, and the error is a
// [*Failure].
func (s *Successor) Ready(ctx context.Context) (state []byte, err error) {
	lift := s.channel.within(ctx)
	state, err = s.channel.expect(kindReady)
	if cause := lift(); err != nil || cause != nil {
		return nil, s.fail("was not ready", "it was ready", errors.Join(cause, err))
	}
	return state, nil
}

// Serve tells the process to begin and waits until it has. Errors are as those
// of Ready.
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

// Leave tells the process that it is alone now, and lets go of it.
func (s *Successor) Leave() error {
	err := s.channel.send(message{Kind: kindYours})
	_ = s.channel.Close()
	_ = s.process.Release()
	return err
}

// Kill ends the process, and returns when it has gone.
func (s *Successor) Kill() {
	_ = s.process.Kill()
	_ = s.channel.SetDeadline(time.Now().Add(killPatience))
	_, _ = io.Copy(io.Discard, s.channel) // until the kernel closes the other end
	_ = s.channel.Close()
	s.said.wait(time.Second)
	_ = s.process.Release()
}

// killPatience is how long a killed process may take to go. It goes at once
// unless a disk or a file server holds it.
const killPatience = 5 * time.Second

// wordsPatience is how long a process whose end of the channel is closed may take to
// say why. Tests wait longer where it says something.
var wordsPatience = 2 * time.Second

// fail ends the process, and says what it did not, and before what it ended.
func (s *Successor) fail(didNot, before string, err error) error {
	pid := s.PID()
	if gone(err) {
		s.said.wait(wordsPatience)
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

// lastWords passes on what a process writes, and keeps the end of it.
type lastWords struct {
	mu   sync.Mutex
	kept []byte
	done chan struct{}
}

const lastWordsBytes = 4096

// newLastWords returns the end to write to, too.
func newLastWords(log io.Writer) (*lastWords, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	l := &lastWords{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		defer r.Close()
		_, _ = io.Copy(io.MultiWriter(l, log), r)
	}()
	return l, w, nil
}

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, p...)
	if extra := len(l.kept) - lastWordsBytes; extra > 0 {
		l.kept = l.kept[extra:]
	}
	return len(p), nil
}

// wait waits until nothing more can be written, but not for longer than within:
// a process that was started in turn may hold the pipe.
func (l *lastWords) wait(within time.Duration) {
	select {
	case <-l.done:
	case <-time.After(within):
	}
}

// String returns whole lines.
func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.kept
	if len(text) == lastWordsBytes {
		if _, rest, found := bytes.Cut(text, []byte("\n")); found {
			text = rest
		}
	}
	return strings.TrimSpace(string(text))
}
