package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/find/doctor"
	"longhaul/lab"
)

// path is a path with programs whose limit is known by construction.
type path struct {
	name, what string
	// truth are the causes that count as right, the plainest first. Empty: nothing moves, and
	// to say nothing is right.
	truth      []doctor.Cause
	needs      []string // programs
	conditions lab.Conditions
	hosts      func(*lab.Topology) // changes the hosts; nil: none
	from       string              // the sending host; empty: host-a
	local      string              // --local and --remote of doctor
	remote     string
	start      func(*scene) error
	warm       time.Duration // before the first look, beside the usual time
	late       func(*scene) error
	// starved: the host has no CPU time to spare, so no verdict is certain.
	starved bool
}

func (p path) truthText() string {
	if len(p.truth) == 0 {
		return "no verdict"
	}
	var words []string
	for _, c := range p.truth {
		words = append(words, string(c))
	}
	return strings.Join(words, ", ")
}

// scene is a path that stands, with its programs.
type scene struct {
	*lab.Lab
	ctx     context.Context
	b       *bench
	dir     string // of its own
	closers []func()
}

// look has doctor and top look at a path.
func (b *bench) look(ctx context.Context, p path, o *outcome) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	t := lab.TwoSites(p.conditions)
	if p.hosts != nil {
		p.hosts(&t)
	}
	s := &scene{ctx: ctx, b: b}
	if s.Lab, err = lab.Build(t); err != nil {
		return err
	}
	defer s.close()
	if s.dir, err = os.MkdirTemp(b.Dir, "path"); err != nil {
		return err
	}
	if err := os.Chmod(s.dir, 0o755); err != nil { // for programs of other users
		return err
	}
	from, to := "host-a", "host-b"
	if p.from != "" {
		from, to = p.from, from
	}
	if err := s.daemon(to, 5201, b.Binary, "measure", "--serve"); err != nil {
		return err
	}
	if err := p.start(s); err != nil {
		return err
	}
	if err := sleep(ctx, 3*time.Second+20*p.conditions.RTT+p.warm); err != nil {
		return err
	}
	if p.late != nil {
		if err := p.late(s); err != nil {
			return err
		}
	}
	var ends []string
	for flag, value := range map[string]string{"--local": p.local, "--remote": p.remote} {
		if value != "" {
			ends = append(ends, flag, value)
		}
	}
	if o.Top, err = s.top(from, p); err != nil {
		return err
	}
	if o.Watched, err = s.doctor(from, b.record(p, o.Round, "watched"), ends...); err != nil {
		return err
	}
	o.Tested, err = s.doctor(from, b.record(p, o.Round, "tested"), append(ends, "--test")...)
	return err
}

// close ends all programs of the scene's hosts, and takes it down.
func (s *scene) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
	for _, name := range s.HostNames() {
		s.killAll(name)
	}
	s.Close()
	os.RemoveAll(s.dir)
}

// killAll kills the processes of a host that left the process groups they began in. It does
// nothing where /proc has the numbers of another PID namespace.
func (s *scene) killAll(host string) {
	if self, err := os.Readlink("/proc/self"); err != nil || self != fmt.Sprint(os.Getpid()) {
		return
	}
	var of unix.Stat_t
	if err := unix.Fstat(s.Host(host).Namespace(), &of); err != nil {
		return
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		var ns unix.Stat_t
		if unix.Stat(proc+"/ns/net", &ns) != nil || ns.Ino != of.Ino || ns.Dev != of.Dev {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(proc), "%d", &pid); err == nil && pid > 1 && pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// spawn starts a program in a host, in a process group of its own that ends with the scene.
func (s *scene) spawn(host, name string, args ...string) (*exec.Cmd, *output, error) {
	if path := lab.FindProgram(name); path != "" {
		name = path
	}
	cmd := exec.Command(name, args...)
	said := &output{}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // its children may have its output open, in other groups
	if err := s.Host(host).Start(cmd); err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", name, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	s.closers = append(s.closers, func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		<-ended
	})
	return cmd, said, nil
}

// daemon starts a program and waits until it listens on a port.
func (s *scene) daemon(host string, port uint16, name string, args ...string) error {
	_, said, err := s.spawn(host, name, args...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	for {
		if is, err := s.Host(host).Listening(port); err != nil || is {
			return err
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%s does not listen on port %d: %s", name, port, said)
		}
	}
}

// client starts a program that uses the path.
func (s *scene) client(host, name string, args ...string) error {
	_, _, err := s.spawn(host, name, args...)
	return err
}

// shell starts a shell of programs.
func (s *scene) shell(host, script string) error { return s.client(host, "/bin/sh", "-c", script) }

// output keeps the beginning of what a program says.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.b.Len() < 4096 {
		o.b.Write(p)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(o.b.String())
}

// file makes a file of zeros in the scene's directory.
func (s *scene) file(name string, bytes int64) (string, error) {
	name = filepath.Join(s.dir, name)
	f, err := os.Create(name)
	if err == nil {
		err = errors.Join(f.Truncate(bytes), f.Close())
	}
	return name, err
}

// write writes a file in the scene's directory.
func (s *scene) write(name, text string) (string, error) {
	name = filepath.Join(s.dir, name)
	return name, os.WriteFile(name, []byte(text), 0o644)
}

// run runs longhaul in a host to its end.
func (s *scene) run(host string, args ...string) (stdout, stderr []byte, err error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(s.ctx, s.b.Binary, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := s.Host(host).Start(cmd); err != nil {
		return nil, nil, err
	}
	err = cmd.Wait()
	if s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	}
	return out.Bytes(), errs.Bytes(), err
}

// doctor has doctor look at the connection. A refusal is a verdict without a cause.
func (s *scene) doctor(host, record string, args ...string) (v verdict, err error) {
	args = append([]string{"doctor", "--json"}, args...)
	if record != "" {
		args = append(args, "--record", record)
	}
	out, errs, err := s.run(host, args...)
	exit := (*exec.ExitError)(nil)
	switch {
	case errors.As(err, &exit) && doctor.HasVerdict(exit.ExitCode()):
	case exit != nil && len(out) == 0:
		v.Refusal, _, _ = strings.Cut(strings.TrimSpace(string(errs)), "\n")
		return v, nil
	case err != nil:
		return v, fmt.Errorf("longhaul %s: %w: %s", strings.Join(args, " "), err, errs)
	}
	var report struct {
		Cause      doctor.Cause
		Strength   doctor.Strength
		GoodputBps float64 `json:"goodput_bps"`
		Remedies   []doctor.Remedy
		Findings   []doctor.Finding
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return v, err
	}
	v = verdict{Cause: report.Cause, Strength: report.Strength, GoodputBps: report.GoodputBps}
	for _, f := range report.Findings {
		v.Evidence = append(v.Evidence, f.Evidence...)
	}
	if len(report.Remedies) > 0 {
		v.PredictedBps = report.Remedies[0].PredictedBps
	}
	return v, nil
}

// looks is how often top looks at a path.
const looks = 4

// top returns the causes that top names for the busiest of the path's connections.
func (s *scene) top(host string, p path) ([]string, error) {
	out, errs, err := s.run(host, "top", "--json", "--count", fmt.Sprint(looks), "--interval", "2500ms")
	if err != nil {
		return nil, fmt.Errorf("longhaul top: %w: %s", err, errs)
	}
	var causes []string
	d := json.NewDecoder(bytes.NewReader(out))
	for d.More() {
		var report struct {
			Connections []struct {
				Local, Remote netip.AddrPort
				Cause         string
				SentBps       float64 `json:"sent_bps"`
			}
		}
		if err := d.Decode(&report); err != nil {
			return nil, err
		}
		cause, best := "-", -1.0
		for _, c := range report.Connections {
			if isEnd(c.Local, p.local) && isEnd(c.Remote, p.remote) && c.SentBps > best {
				cause, best = c.Cause, c.SentBps
			}
		}
		if cause == "" {
			cause = "-"
		}
		causes = append(causes, cause)
	}
	return causes, nil
}

// isEnd reports whether an end is the one of a flag of doctor, which is a port or
// HOST:PORT.
func isEnd(end netip.AddrPort, flag string) bool {
	host, port, _ := strings.Cut(flag, ":")
	return flag == "" || fmt.Sprint(end.Port()) == port && (host == "" || end.Addr().Unmap().String() == host)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
