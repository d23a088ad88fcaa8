package pair

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
)

var _ flow.Carrier = (*Link)(nil)

// Carry implements flow.Carrier.
func (l *Link) Carry(c flow.Client, o flow.Owner) flow.Carried { return l.carry(c, o) }

func (l *Link) carry(c flow.Client, o flow.Owner) *Flow {
	via := c.Via
	if own := l.node.relayIDs(); len(own) > 0 {
		via = via.Add(own[0])
	}
	l.mu.Lock()
	// A client that another hop gave back, or that comes from another pair, is none of those that the next
	// process takes.
	joint := withDefaults(c.Legs).Joint
	s, refuse := l.s, l.closed || l.node.draining.Load() && !c.Others && joint == nil || l.node.closing.Load()
	f := newFlow(s, l.flowID.Add(1), c.Legs)
	f.mu.Lock()
	defer f.mu.Unlock()
	s.add(f) // while the link keeps the session: replaceDrained closes one without flows
	l.mu.Unlock()
	f.owner = o
	f.opening = &opening{began: stampNow(), opened: c.Opened, Open: wire.Open{Flow: f.id, Deadline: cmp.Or(c.Deadline, handshakeTimeout), Client: c.From, Listen: c.Listen,
		Name: c.Name, Via: via, Offset: c.Offset}}
	if s.noResume {
		f.sf.NoResume()
	}
	if c.Others {
		f.near.hold(c)
	} else {
		f.sf.Out.Keep(c.Early)
	}
	l.node.flowsNow.Add(1)
	err := f.leg.take(c.FD)
	if err != nil {
		joint.Cut(flow.EndNoResources, err)
		unix.Close(c.FD)
		f.leg.num = -1
	}
	switch {
	case err != nil:
		f.sf.LocalReset(cause(flow.EndNoResources, err))
	case refuse:
		c := cause(flow.EndDrain, errors.New("the relay takes no new flows"))
		if !f.near.giveBack(c, false) {
			f.sf.Abort(c)
		}
	case c.Others:
		now := time.Now()
		if why, yes := f.near.adrift(now, false); yes {
			f.near.giveBack(why, false)
		} else if ctl := s.control(); ctl != nil {
			ctl.ask(now) // it may have died since it last said something
		}
	default:
		l.followEnd(f) // the far process may have ended since
	}
	f.wake()
	return f
}

func (l *Link) run() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-l.node.ctx.Done():
			return
		case <-l.kick:
		case <-ticker.C:
		}
		if l.tick() {
			return
		}
	}
}

// tick dials what is missing. It reports true when a closed link has ended.
func (l *Link) tick() (ended bool) {
	now := time.Now()
	l.mu.Lock()
	l.replaceDrained()
	l.waiting = slices.DeleteFunc(l.waiting, func(f *Flow) bool { return f.over.Load() })
	all := append(slices.Clone(l.old), l.s)
	closed, changed := l.closed, l.o.Changed
	l.mu.Unlock()
	l.reported.look(l.Taking(), changed)
	for _, s := range all {
		for _, f := range s.heldFlows() {
			f.mu.Lock()
			if why, yes := f.near.adrift(now, closed); yes {
				f.near.giveBack(why, false)
			}
			f.mu.Unlock()
		}
	}
	l.watchPaths(now)
	for _, s := range all {
		if s.control() == nil {
			redialer{l, s}.redial(now)
		} else {
			redialer{l, s}.moveControl(now)
		}
		if s.reachable() {
			l.dialLanes(s, now)
		}
	}
	if closed && !slices.ContainsFunc(all, func(s *session) bool { return !s.rested() }) {
		for _, s := range all {
			s.close()
		}
		l.drop()
		return true
	}
	return false
}

// replaceDrained begins a session for new flows if the far process takes none, and
// ends drained ones with their last flow. The caller holds l.mu.
func (l *Link) replaceDrained() {
	l.s.mu.Lock()
	draining := l.s.draining
	l.s.mu.Unlock()
	if draining {
		l.replace()
	}
	l.old = slices.DeleteFunc(l.old, func(s *session) bool {
		done := s.rested()
		if done {
			s.close()
		}
		return done
	})
}

// Update changes options; flows go on.
func (l *Link) Update(o LinkOptions) {
	l.mu.Lock()
	o = o.withDefaults()
	if o.Peer != l.o.Peer || o.Tunnel != l.o.Tunnel || o.mode() != l.o.mode() {
		l.old = append(l.old, l.s)
		samePeer := o.Peer == l.o.Peer
		l.o = o
		if l.s = l.newSession(o.Peer); samePeer {
			l.s.goesOnFrom(l.old[len(l.old)-1])
		}
	}
	l.o = o
	l.setPaths(o.Paths)
	l.redialNow() // a reload tries at once
	l.mu.Unlock()
	l.poke()
}
