package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab/progress"
	"longhaul/lab/sandbox"
)

// Stage is a lab of two sites with the programs that an experiment runs in it.
type Stage struct {
	*Lab
	Program string // the longhaul binary
	Report  progress.Reporter

	running []*Daemon
	cpu     time.Duration // of daemons that have ended
}

// Longhaul runs longhaul in a host, to its end. The error contains its output.
func (s *Stage) Longhaul(ctx context.Context, host string, args ...string) error {
	cmd := exec.CommandContext(ctx, s.Program, args...)
	said := &tail{}
	cmd.Stdout, cmd.Stderr = said, said
	err := s.Host(host).Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("longhaul %s on %s: %w\n%s", strings.Join(args, " "), host, CauseOr(ctx, err), said)
	}
	return nil
}

// RelayPort is the port of a stage's relays.
const RelayPort = 6000

// The relays of a stage.
var (
	RelayAListens = netip.AddrPortFrom(RelayA, RelayPort)
	RelayBListens = netip.AddrPortFrom(RelayB, RelayPort)
)

// StartRelays starts longhaul relays at both sites, from site A to target, with
// further arguments. It returns the address of the first relay.
func (s *Stage) StartRelays(ctx context.Context, target netip.AddrPort, args ...string) (netip.AddrPort, error) {
	_, err := s.StartRelay(ctx, "relay-b", RelayBListens, target, args...)
	if err == nil {
		_, err = s.StartRelay(ctx, "relay-a", RelayAListens, RelayBListens, args...)
	}
	return RelayAListens, err
}

// StartRelaysBack starts longhaul relays at both sites, from site B to target. It
// returns the address of the first relay.
func (s *Stage) StartRelaysBack(ctx context.Context, target netip.AddrPort) (netip.AddrPort, error) {
	_, err := s.StartRelay(ctx, "relay-a", RelayAListens, target)
	if err == nil {
		_, err = s.StartRelay(ctx, "relay-b", RelayBListens, RelayAListens)
	}
	return RelayBListens, err
}

// StartRelay starts a longhaul relay on a host, with further arguments.
func (s *Stage) StartRelay(ctx context.Context, host string, listen, forward netip.AddrPort, args ...string) (*Daemon, error) {
	dir, err := runDir(host)
	if err != nil {
		return nil, err
	}
	return s.Start(ctx, host, listen.Port(), s.Program, append([]string{
		"relay", "--listen", listen.String(), "--forward", forward.String(),
		"--control-socket", filepath.Join(dir, "control.sock"),
	}, args...)...)
}

// runDir makes a directory for a program of a host. It disappears with the sandbox.
func runDir(host string) (string, error) { return os.MkdirTemp("/run", host+"-") }

// Interception is what an intercepting relay takes out of the routed path.
type Interception struct {
	Device   string // on which the clients' packets arrive
	To       []netip.Prefix
	Ports    []uint16
	Settings []string // of the tunnel, like "source: relay"
}

// StartInterceptor starts an intercepting longhaul relay on a host.
func (s *Stage) StartInterceptor(ctx context.Context, host string, i Interception) (*Daemon, error) {
	dir, err := runDir(host)
	if err != nil {
		return nil, err
	}
	config, socket := filepath.Join(dir, "relay.yaml"), filepath.Join(dir, "control.sock")
	var to, ports []string
	for _, prefix := range i.To {
		to = append(to, fmt.Sprintf("%q", prefix))
	}
	for _, port := range i.Ports {
		ports = append(ports, fmt.Sprint(port))
	}
	text := fmt.Sprintf("control_socket: %s\ntunnels:\n  - name: main\n    intercept: {interface: %s, to: [%s], ports: [%s]}\n",
		socket, i.Device, strings.Join(to, ", "), strings.Join(ports, ", "))
	for _, line := range i.Settings {
		text += "    " + line + "\n"
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	// The control socket comes after the rules.
	intercepts := func() (bool, error) {
		return s.Longhaul(ctx, host, "status", "--control-socket", socket) == nil, nil
	}
	return s.StartUntil(ctx, host, "intercept", intercepts, s.Program, "relay", "--config", config)
}

// AllowBuffers raises the buffer limits of the relays' hosts in a user namespace,
// where the kernel refuses SO_SNDBUFFORCE. The relay's log advises an operator to do
// the same.
func (s *Stage) AllowBuffers() error {
	if !sandbox.UserNamespace() {
		return nil
	}
	for _, name := range []string{"relay-a", "relay-b"} {
		err := errors.Join(
			s.Host(name).Sysctl("net.ipv4.tcp_rmem", "4096 131072 67108864"),
			s.Host(name).Sysctl("net.ipv4.tcp_wmem", "4096 16384 67108864"))
		if err != nil {
			return err
		}
	}
	s.Report.Notef("in a user namespace the relays may not size their buffers: the lab raises tcp_rmem and tcp_wmem of their hosts, as their log advises")
	return nil
}

// Daemon is a program that runs in a host until Stop or End.
type Daemon struct {
	Host   string
	name   string
	cmd    *exec.Cmd
	output *tail
	ended  chan struct{}
}

// PID returns the PID of the program.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Ended returns a channel that is closed when the program has ended.
func (d *Daemon) Ended() <-chan struct{} { return d.ended }

// Start starts a program in a host and waits until it listens on port.
func (s *Stage) Start(ctx context.Context, host string, port uint16, name string, args ...string) (*Daemon, error) {
	return s.StartUntil(ctx, host, fmt.Sprintf("listen on port %d", port),
		func() (bool, error) { return s.Host(host).Listening(port) }, name, args...)
}

// StartUntil starts a program in a host and waits until it is ready. should says in a
// few words what the program then does.
func (s *Stage) StartUntil(ctx context.Context, host, should string, ready func() (bool, error), name string, args ...string) (*Daemon, error) {
	d := &Daemon{Host: host, name: name + " on " + host, cmd: exec.Command(name, args...), output: &tail{}, ended: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = d.output, d.output
	if err := s.Host(host).Start(d.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", d.name, err)
	}
	go func() {
		_ = d.cmd.Wait() // the state is read from cmd
		close(d.ended)
	}()
	s.running = append(s.running, d)

	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s does not %s after %v", d.name, should, patience))
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		is, err := ready()
		if err != nil || is {
			return d, err
		}
		select {
		case <-poll.C:
		case <-d.ended:
			return nil, s.Explain(fmt.Errorf("%s ended at once", d.name))
		case <-ctx.Done():
			return nil, s.Explain(context.Cause(ctx))
		}
	}
}

// Running returns the stage's programs that have not ended, in the order of their
// start.
func (s *Stage) Running() []*Daemon { return slices.Clone(s.running) }

// Stop ends the stage's programs and returns the CPU time of all programs of the
// stage.
func (s *Stage) Stop() time.Duration {
	for _, d := range s.running {
		_ = d.cmd.Process.Signal(unix.SIGTERM)
	}
	for _, d := range s.Running() {
		s.End(d)
	}
	return s.cpu
}

// End ends one of the stage's programs, unless it has already ended.
func (s *Stage) End(d *Daemon) {
	if !slices.Contains(s.running, d) {
		return
	}
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(5 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.ended
	}
	// The CPU time of the process and of its reaped children: socat works in
	// children.
	if usage, ok := d.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		s.cpu += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	s.running = slices.DeleteFunc(s.running, func(other *Daemon) bool { return other == d })
}

// Explain adds the last output of the stage's programs to an error.
func (s *Stage) Explain(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	for _, d := range s.running {
		if said := d.output.String(); said != "" {
			err = fmt.Errorf("%w\n%s said:\n%s", err, d.name, said)
		}
	}
	return err
}

// CauseOr returns the cause of a cancelled context, or else err.
func CauseOr(ctx context.Context, err error) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done() // the timer of a socket may be ahead of the context's
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// FindProgram finds a program in PATH and in the directories of root's PATH. It
// returns an empty string if there is none.
func FindProgram(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// MissingProgram returns a text that names a missing program and its Debian package;
// empty if the program exists.
func MissingProgram(name, debianPackage string) string {
	if FindProgram(name) == "" {
		return "needs " + name + " (Debian package " + debianPackage + ")"
	}
	return ""
}

// tail keeps the end of a program's output.
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
