package peers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a running relay.
type Process struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	exited chan struct{}
}

// Forking keeps scripts from running (read lock) while a relay is started
// (write lock). Until the new process has executed its program it holds copies
// of this one's sockets, which would keep a closed socket listening and a
// reset from being sent.
var Forking sync.RWMutex

// startWithin is how long a relay may take until it listens.
const startWithin = 30 * time.Second

// Start runs a relay in a process group of its own and waits until it
// listens. The relay is killed when the calling thread ends, so the caller
// must be locked to one.
func Start(ctx context.Context, argv []string, listen Address) (*Process, error) {
	p := &Process{cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	Forking.Lock()
	err := p.cmd.Start()
	Forking.Unlock()
	if err != nil {
		return nil, err
	}
	go func() {
		p.cmd.Wait()
		close(p.exited)
	}()
	if err := WaitListening(ctx, listen, p.exited); err != nil {
		p.Kill()
		return nil, fmt.Errorf("start %s: %w\n%s", strings.Join(argv, " "), err, &p.output)
	}
	return p, nil
}

// WaitListening waits until somebody listens at an address, or until what was
// to do so has exited.
func WaitListening(ctx context.Context, listen Address, exited <-chan struct{}) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	deadline := time.After(startWithin)
	for {
		up, err := listening(listen)
		if err == nil && up {
			return nil
		}
		select {
		case <-poll.C:
		case <-exited:
			return errors.New("it exited")
		case <-deadline:
			if err == nil {
				err = fmt.Errorf("it does not listen after %v", startWithin)
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// String is how the relay ended, if it has, and what it wrote.
func (p *Process) String() string {
	if !p.Gone() {
		return "running"
	}
	return fmt.Sprintf("%v\n%s", p.cmd.ProcessState, &p.output)
}

// Gone reports whether the relay has ended.
func (p *Process) Gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Pid is the number of the relay's process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Kill ends the relay and its children by SIGKILL and waits until it is gone.
func (p *Process) Kill() error {
	err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.exited
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// End ends the relay as Kill does, and returns the CPU time that it took (getrusage).
func (p *Process) End() (time.Duration, error) {
	if err := p.Kill(); err != nil {
		return 0, err
	}
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(), nil
}

// listening reads from the kernel's table whether somebody listens: a trial
// connection would be forwarded.
func listening(a Address) (bool, error) {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return false, err
	}
	const listenState = "0A"
	ip := netip.MustParseAddr(a.Host).As4()
	local := fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), a.Port)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 3 && f[1] == local && f[3] == listenState {
			return true, nil
		}
	}
	return false, nil
}

// FreeAddress is a loopback address on which nobody listens. Each host is
// used for one purpose alone, and connections to it come from 127.0.0.1, so
// that nothing takes the port in the moments when nobody listens there.
func FreeAddress(ctx context.Context, host string) (Address, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp4", net.JoinHostPort(host, "0"))
	if err != nil {
		return Address{}, err
	}
	defer l.Close()
	return Address{host, l.Addr().(*net.TCPAddr).Port}, nil
}
