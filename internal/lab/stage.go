package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/lab/capture"
)

// stage is a lab with the programs that a case runs in it.
type stage struct {
	*Lab
	program string // the longhaul binary
	notef   func(string, ...any)
	from    string // the host that sends

	daemons []*daemon
	cpu     time.Duration // of daemons that have ended
}

// wanSender is the host whose TCP sends into the WAN: the sender on the direct
// path, relay-a where anything relays.
func (s *stage) wanSender() string {
	if len(s.daemons) > 0 {
		return "relay-a"
	}
	return s.from
}

// wanPort is the port to which the WAN's sender connects.
func (s *stage) wanPort() uint16 {
	if len(s.daemons) > 0 {
		return relayPort
	}
	return bulkPort
}

// run runs longhaul in a host, to its end.
func (s *stage) run(ctx context.Context, host string, args ...string) error {
	cmd := exec.CommandContext(ctx, s.program, args...)
	said := &tail{}
	cmd.Stdout, cmd.Stderr = said, said
	err := s.Host(host).Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("longhaul %s on %s: %w\n%s", strings.Join(args, " "), host, contextOr(ctx, err), said)
	}
	return nil
}

// capture begins to read the WAN at site A.
func (s *stage) capture() (stop func() *Segments, err error) {
	var c *capture.Capture
	err = s.Host("relay-a").Do(func() error {
		device, err := net.InterfaceByName("wan")
		if err == nil {
			c, err = capture.Start(device.Index, s.wanPort())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return func() *Segments {
		seen := c.Stop()
		if seen.Missed > 0 {
			s.notef("the capture missed %d packets", seen.Missed)
		}
		all, usual := uint64(0), seen.Usual()
		for _, n := range seen.Segments {
			all += n
		}
		return &Segments{
			MSSOfA: seen.MSSOfClient, MSSOfB: seen.MSSOfServer,
			Sent: usual, Share: float64(seen.Segments[usual]) / float64(max(all, 1)),
		}
	}, nil
}

// daemon is a program that runs in a host until it is stopped.
type daemon struct {
	name   string
	cmd    *exec.Cmd
	output *tail
	ended  chan struct{}
}

// start starts a program in a host and waits until it listens on port.
func (s *stage) start(ctx context.Context, host string, port uint16, name string, args ...string) error {
	d := &daemon{name: name + " on " + host, cmd: exec.Command(name, args...), output: &tail{}, ended: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = d.output, d.output
	if err := s.Host(host).Start(d.cmd); err != nil {
		return fmt.Errorf("cannot start %s: %w", d.name, err)
	}
	go func() {
		_ = d.cmd.Wait() // the state is read from cmd
		close(d.ended)
	}()
	s.daemons = append(s.daemons, d)

	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s does not listen on port %d after %v", d.name, port, patience))
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		listening, err := s.Host(host).Listening(port)
		if err != nil || listening {
			return err
		}
		select {
		case <-poll.C:
		case <-d.ended:
			return s.explain(fmt.Errorf("%s ended at once", d.name))
		case <-ctx.Done():
			return s.explain(context.Cause(ctx))
		}
	}
}

// stop ends the stage's programs and returns the CPU time that all of them
// have used since the stage began.
func (s *stage) stop() time.Duration {
	for _, d := range s.daemons {
		_ = d.cmd.Process.Signal(unix.SIGTERM)
	}
	for len(s.daemons) > 0 {
		s.end(s.daemons[0])
	}
	return s.cpu
}

// end ends one of the stage's programs.
func (s *stage) end(d *daemon) {
	if !slices.Contains(s.daemons, d) {
		return // it has been ended before
	}
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(5 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.ended
	}
	// The figures of the process and of the children it has waited for,
	// which is where socat does its work.
	if usage, ok := d.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		s.cpu += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	s.daemons = slices.DeleteFunc(s.daemons, func(other *daemon) bool { return other == d })
}

// explain adds to an error what the stage's programs last said.
func (s *stage) explain(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	for _, d := range s.daemons {
		if said := d.output.String(); said != "" {
			err = fmt.Errorf("%w\n%s said:\n%s", err, d.name, said)
		}
	}
	return err
}

// tail keeps the last of what a program writes.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 2000

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailBytes; extra > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[extra:])]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf))
}
