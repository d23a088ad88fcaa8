package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/test/hostile"
)

// attackCommand is the first argument by which this program becomes the attacker: it has a
// processor and memory of its own.
const attackCommand = "attack"

// attack runs one attack until its time is over or it is interrupted, and prints what it has sent.
func attack(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet(attackCommand, flag.ContinueOnError)
	name := flags.String("name", "", "of the attack")
	keys := flags.String("keys", "", "directory of the attacker's keys")
	key := flags.String("key", "", "public key of the victim")
	seed := flags.Uint64("seed", 1, "of what is random")
	within := flags.Duration("time", time.Minute, "until it ends by itself")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *within)
	defer cancel()
	for _, k := range hostile.Attacks() {
		if k.Name != *name {
			continue
		}
		a, err := newAttacker(ctx, k, *keys, *key, *seed)
		if err != nil {
			return err
		}
		sent, err := k.Run(ctx, a)
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(sent)
	}
	return fmt.Errorf("no attack %q", *name)
}

// strangerSources is from how many addresses a stranger comes.
const strangerSources = 8

func newAttacker(ctx context.Context, k hostile.Attack, keys, key string, seed uint64) (a *hostile.Attacker, err error) {
	a = &hostile.Attacker{Seed: seed}
	victim := netip.MustParseAddrPort(fmt.Sprintf("%s:%d", victimHost, pairedPort))
	switch k.Role {
	case hostile.NearPeer:
		a.Peer, err = hostile.PeerOf(victim, keys, "victim")
	case hostile.Stranger:
		var known identity.PublicKey
		if known, err = identity.ParsePublicKey(key); err != nil {
			return nil, err
		}
		a.Peer = hostile.NewStranger(victim, known[:])
		for i := range strangerSources {
			a.Sources = append(a.Sources, netip.AddrFrom4([4]byte{127, 0, 1, byte(1 + i)}))
		}
	case hostile.FarPeer:
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, listenErr := lc.Listen(ctx, "tcp", fmt.Sprintf("%s:%d", evilHost, pairedPort))
		if listenErr != nil {
			return nil, listenErr
		}
		a.Far, err = hostile.FarOf(l.(*net.TCPListener), keys)
	}
	return a, err
}

// running is an attack that goes on.
type running struct {
	cmd    *exec.Cmd
	leash  *leash
	out    bytes.Buffer
	errs   bytes.Buffer
	exited chan struct{}
}

// startAttack starts the attacker, held to half a core.
func (t *site) startAttack(within time.Duration) (*running, error) {
	r := &running{exited: make(chan struct{})}
	r.cmd = exec.Command("/proc/self/exe", attackCommand, "--name", t.s.attack.Name, "--keys", t.evil, "--key", t.key,
		"--seed", strconv.FormatUint(t.b.seed, 10), "--time", within.String())
	if !t.b.unleashed {
		r.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errs
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	if !t.b.unleashed {
		r.leash = newLeash(r.cmd.Process)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.exited)
	}()
	return r, nil
}

// endWithin is how long an attacker may take to print what it has sent.
const endWithin = 2 * time.Second

// end ends the attack and returns what it has sent, as far as it could say so.
func (r *running) end() (sent hostile.Sent, err error) {
	if r.leash != nil {
		r.leash.release()
		defer r.leash.remove()
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // an error: it has ended
	select {
	case <-r.exited:
	case <-time.After(endWithin):
		_ = r.cmd.Process.Kill()
		<-r.exited
	}
	if err := json.Unmarshal(r.out.Bytes(), &sent); err != nil {
		return sent, fmt.Errorf("the attacker: %v: %s", r.cmd.ProcessState, bytes.TrimSpace(r.errs.Bytes()))
	}
	return sent, nil
}

// leash holds a process to half a core: by a control group where that may be made, else by
// stopping it half of the time.
type leash struct {
	process *os.Process
	group   string
	stop    chan struct{}
	stopped chan struct{}
}

const (
	groups  = "/sys/fs/cgroup/cpu" // of version 1
	prefix  = "longhaul-hostile-"
	period  = "cpu.cfs_period_us"
	quota   = "cpu.cfs_quota_us"
	members = "cgroup.procs"
)

// dutyCycle is how long a process without a control group runs, and then is stopped.
const dutyCycle = 10 * time.Millisecond

func newLeash(p *os.Process) *leash {
	l := &leash{process: p, stop: make(chan struct{}), stopped: make(chan struct{})}
	if left, err := filepath.Glob(filepath.Join(groups, prefix+"*")); err == nil {
		for _, dir := range left {
			_ = os.Remove(dir) // of a run that was killed; one that is used stays
		}
	}
	if l.enterGroup() == nil {
		close(l.stopped)
		return l
	}
	go func() {
		defer close(l.stopped)
		for {
			for _, signal := range []os.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
				if p.Signal(signal) != nil {
					return
				}
				select {
				case <-l.stop:
					_ = p.Signal(syscall.SIGCONT)
					return
				case <-time.After(dutyCycle):
				}
			}
		}
	}()
	return l
}

func (l *leash) enterGroup() error {
	group, err := os.MkdirTemp(groups, prefix)
	if err != nil {
		return err
	}
	for _, setting := range [][2]string{{period, "100000"}, {quota, "50000"}, {members, strconv.Itoa(l.process.Pid)}} {
		if err := os.WriteFile(filepath.Join(group, setting[0]), []byte(setting[1]), 0); err != nil {
			return errors.Join(err, os.Remove(group))
		}
	}
	l.group = group
	return nil
}

// release lets the process run.
func (l *leash) release() {
	close(l.stop)
	<-l.stopped
	if l.group != "" {
		_ = os.WriteFile(filepath.Join(l.group, quota), []byte("-1"), 0)
	}
}

// remove removes the group of a process that has ended.
func (l *leash) remove() {
	if l.group != "" {
		_ = os.Remove(l.group)
	}
}
