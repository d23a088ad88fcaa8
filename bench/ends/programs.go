//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"longhaul/bench/peers"
)

// programs are what scripts can be run through besides relays in this process.
var programs = map[string]func(binary string) peers.Relay{
	"longhaul":         peers.Longhaul,
	"haproxy":          func(string) peers.Relay { return peers.HAProxy },
	"haproxy-nolinger": func(string) peers.Relay { return peers.HAProxyNolinger },
	"nginx":            func(string) peers.Relay { return peers.Nginx },
	"nginx-half-close": func(string) peers.Relay { return peers.NginxHalfClose },
	"socat":            func(string) peers.Relay { return peers.Socat },
	"socat-t":          func(string) peers.Relay { return peers.SocatT },
}

// ProgramNames lists what Options.Through can name.
func ProgramNames() string { return strings.Join(programNames(), ", ") }

func programNames() []string {
	return slices.Concat(slices.Sorted(maps.Keys(programs)), slices.Sorted(maps.Keys(pairModes)), slices.Sorted(maps.Keys(interceptModes)))
}

// silence is for how long nothing must have come of a connection through another
// program until it is given up: nothing tells when that program is done with it.
const silence = 300 * time.Millisecond

// running is a program that runs for each lane twice: towards the target, and
// towards what refuses. All of it is IPv4.
type running struct {
	name, version string
	dir           string
	processes     []*peers.Process
	at            map[bool][]netip.AddrPort // by refused, of each lane
	stop          chan struct{}
	stopped       chan struct{}
}

func startPrograms(ctx context.Context, name, binary string, lanes []*lane) (*running, error) {
	dir, err := os.MkdirTemp("", "longhaul-ends-")
	if err != nil {
		return nil, err
	}
	p := &running{name: name, dir: dir, at: map[bool][]netip.AddrPort{}, stop: make(chan struct{}), stopped: make(chan struct{})}
	err = os.Chmod(dir, 0o755) // nginx's worker is another user
	var program peers.Program
	if err == nil {
		program, err = programs[name](binary).Prepare(ctx, dir)
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.version = program.Version
	ready := make(chan error)
	go func() { // the processes die with this thread
		runtime.LockOSThread()
		defer close(p.stopped)
		ready <- p.start(ctx, program, lanes)
		<-p.stop
		for _, process := range p.processes {
			_ = process.Kill()
		}
	}()
	if err := <-ready; err != nil {
		p.close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func (p *running) start(ctx context.Context, program peers.Program, lanes []*lane) error {
	for i, l := range lanes {
		for _, refused := range []bool{false, true} {
			// A host of its own, for longhaul's port for metrics.
			listen, err := peers.FreeAddress(ctx, fmt.Sprintf("127.78.%d.%d", i, 1+flag(refused)))
			if err != nil {
				return err
			}
			dir := filepath.Join(p.dir, fmt.Sprintf("%d-%t", i, refused))
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
			target := l.target(IPv4, refused)
			argv, err := program.Command(dir, peers.Setup{Listen: listen, Target: peers.Address{Host: target.Addr().String(), Port: int(target.Port())}})
			if err != nil {
				return err
			}
			process, err := peers.Start(ctx, argv, listen)
			if err != nil {
				return err
			}
			p.processes = append(p.processes, process)
			at, err := netip.ParseAddrPort(listen.String())
			if err != nil {
				return err
			}
			p.at[refused] = append(p.at[refused], at)
		}
	}
	return nil
}

func (p *running) close() {
	close(p.stop)
	<-p.stopped
	os.RemoveAll(p.dir)
}

func (p *running) way() *way {
	w := local(way{name: p.name + " " + p.version, flag: "--through " + p.name, foreign: p.name != "longhaul",
		route: func(l *lane, i int, s *Script) (route, func(), error) {
			plain := *s
			plain.Family = IPv4
			r := l.direct(&plain)
			r.dial = p.at[s.Refused][i]
			if s.Family == Mapped {
				r.dial = netip.AddrPortFrom(netip.AddrFrom16(r.dial.Addr().As16()), r.dial.Port())
			}
			var asked time.Time
			r.quiet = func() bool {
				if asked.IsZero() {
					asked = time.Now()
				}
				return time.Since(asked) > silence
			}
			return r, func() {}, nil
		}})
	if w.foreign {
		w.within = foreignTime
	}
	return w
}
