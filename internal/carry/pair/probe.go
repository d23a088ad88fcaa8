package pair

import (
	"errors"
	"slices"
	"time"
)

// Each of several paths has a lane that carries no flow, its probe. A few bytes on it now and
// then, which the far relay skips, tell whether the path stands and how long its round trip is:
// the kernel of the far host acknowledges them.

const (
	// probeBusy is the time between two writes while flows are not parked, probeIdle
	// while they are. A path for standby costs money by the byte, perhaps: probeStandby.
	probeBusy    = tickEvery
	probeIdle    = 2 * time.Second
	probeStandby = 10 * time.Second
	// probeRetry is the time between two attempts to reach a path that is down.
	probeRetry = time.Second
)

var errPathSilent = errors.New("no acknowledgement of anything")

// watchPaths looks after the probes of several paths.
func (l *Link) watchPaths(now time.Time) {
	if !l.paths.several() {
		l.paths.list()[0].closeProbe()
		return
	}
	s := l.current()
	stands := s.control() != nil // else its own attempts try the paths
	every := probeIdle
	if slices.ContainsFunc(l.sessions(), (*session).active) {
		every = probeBusy
	}
	usable := l.paths.usable()
	spare := len(usable) > 0 && !usable[0].options().Standby
	o := l.options()
	for _, p := range l.paths.list() {
		p.tell(l.node, o)
		if len(usable) > 0 && !slices.Contains(usable, p) {
			s.dropWarm(p)
		}
		p.mu.Lock()
		probe := p.probe
		dial := stands && probe == nil && !p.probing && now.Sub(p.tried) >= probeRetry
		if dial {
			p.probing, p.tried = true, now
		}
		wait := every
		if p.o.Standby && spare {
			wait = probeStandby
		}
		write := probe != nil && now.Sub(p.probed) >= wait-tickEvery/4 // ticks are not exact
		if write {
			p.probed = now
			if p.asked.IsZero() {
				p.asked = now
			}
		}
		p.mu.Unlock()
		switch {
		case dial:
			l.node.tasks.Go(func() { l.dialProbe(s, p) })
		case probe != nil && p.lost(probe, now):
			l.leavePath(p, errPathSilent)
		case write:
			probe.pad(0)
		}
	}
}

// dialProbe makes the probe of a path.
func (l *Link) dialProbe(s *session, p *wanPath) {
	lane, err := l.newLane(s, p, forFlow, nil)
	p.mu.Lock()
	p.probing = false
	if err == nil {
		p.probe, p.asked = lane, time.Time{}
	}
	p.mu.Unlock()
	if err != nil {
		l.node.log.Debug("path not reached", "peer", s.peer, "tunnel", s.tunnel, "path", p.options().Name, "error", err)
		return
	}
	lane.flush() // what is left of the handshake
	if lane.isDead() {
		p.probeEnded(lane)
	}
	l.poke() // the pool lacks lanes
}

// tell logs how a path has changed.
func (p *wanPath) tell(n *process, o LinkOptions) {
	p.mu.Lock()
	now, err, name, before := p.told, p.err, p.o.Name, p.told
	switch {
	case p.up:
		now = "up"
	case err != nil:
		now = "down"
	}
	p.told = now
	p.mu.Unlock()
	if now == before {
		return
	}
	about := []any{"peer", o.Peer, "tunnel", o.Tunnel, "path", name}
	if now == "up" {
		n.log.Info("pair: path up", about...)
	} else {
		n.log.Warn("pair: path down", append(about, "error", err)...)
	}
}
