package pair

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

const (
	// padSize is what opens the congestion window of an idle lane, in bytes: beyond it a
	// flow's first 64 kB need no second round trip.
	padSize    = 128 << 10
	renewEvery = time.Hour // of the pool's lanes, one at a time
)

// pool has a session's lanes. Of a near session's some are warm: idle ones that a flow takes without a
// handshake. Each path has a number of its own of them.
type pool struct {
	congestionControl atomic.Pointer[string] // of the latest lane

	mu      sync.Mutex
	lanes   map[*lane]struct{}
	warm    []*lane   // the latest used last
	renewed time.Time // the latest renewal of one of warm
}

// enter takes a lane, unless the session is closed. Its window is to be opened first with pads.
func (p *pool) enter(l *lane, pads bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.s.closed.Load() {
		return false
	}
	p.lanes[l] = struct{}{}
	l.enter(pads)
	l.path.enter(l)
	l.bulk.control(func(fd int) {
		likely := p.laneCongestionControl()
		if name, err := tcpinfo.LikelyCongestionControl(fd, likely); err == nil && name != likely {
			p.congestionControl.Store(&name)
		}
	})
	return true
}

// leave takes a lane out that has ended.
func (p *pool) leave(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.lanes, l)
	p.warm = slices.DeleteFunc(p.warm, func(w *lane) bool { return w == l })
}

// laneCongestionControl names that of the session's lanes; empty: there was none.
func (p *pool) laneCongestionControl() string {
	if name := p.congestionControl.Load(); name != nil {
		return *name
	}
	return ""
}

// takeWarm takes the most recently used lane over a path from the pool; nil: the pool has no such lane.
func (p *pool) takeWarm(over *wanPath) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.warm) - 1; i >= 0; i-- {
		l := p.warm[i]
		if l.path != over {
			continue
		}
		p.warm = slices.Delete(p.warm, i, i+1)
		l.mu.Lock()
		closed := l.closed
		l.warm = false
		l.mu.Unlock()
		if !closed {
			return l
		}
	}
	return nil
}

// putWarm puts a lane into the pool: behind all others, if it has carried no flow. A full pool
// drops its oldest lane of the path in favour of one that has carried a flow, because that one's
// window is open.
func (p *pool) putWarm(l *lane, limit int) {
	p.mu.Lock()
	l.mu.Lock()
	var spare []*lane
	here := p.warmOf(l.path)
	if !l.closed && !l.warm && (here < limit || l.used && limit > 0) {
		l.warm = true
		here++
		if l.used {
			p.warm = append(p.warm, l)
		} else {
			p.warm = slices.Insert(p.warm, 0, l)
		}
	}
	if !l.warm {
		spare = append(spare, l)
	}
	l.mu.Unlock()
	if here > limit {
		i := slices.IndexFunc(p.warm, func(other *lane) bool { return other.path == l.path })
		spare = append(spare, p.warm[i])
		p.warm = slices.Delete(p.warm, i, i+1)
	}
	p.mu.Unlock()
	for _, l := range spare {
		l.close()
	}
}

// trim closes warm lanes that are to be kept no longer, those first that were used longest ago.
func (p *pool) trim(paths []*wanPath, warm int, now time.Time) {
	var spare []*lane
	p.mu.Lock()
	for _, over := range paths {
		excess := p.warmOf(over) - over.poolLimit(warm, now)
		p.warm = slices.DeleteFunc(p.warm, func(l *lane) bool {
			if l.path != over || excess <= 0 {
				return false
			}
			excess--
			spare = append(spare, l)
			return true
		})
	}
	p.mu.Unlock()
	for _, l := range spare {
		l.close()
	}
}

// lacks lists the path of each warm lane that is missing.
func (p *pool) lacks(paths []*wanPath, warm int) (all []*wanPath) {
	for _, over := range paths {
		for n := p.warmOver(over) + over.poolDials(); n < warm; n++ {
			all = append(all, over)
		}
	}
	return all
}

// warmOver is the number of lanes over a path that are warm, or are to be.
func (p *pool) warmOver(over *wanPath) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.lanes {
		n += btoi(l.path == over && l.pads.Load())
	}
	return n + p.warmOf(over)
}

// warmOf is the number of warm lanes over a path. The caller holds p.mu.
func (p *pool) warmOf(over *wanPath) (n int) {
	for _, l := range p.warm {
		n += btoi(l.path == over)
	}
	return n
}

// renew closes the warm lane that was used longest ago, each hour; another is
// dialed. So each end sees the other's new key although no flow needs a lane.
func (p *pool) renew(now time.Time) {
	p.mu.Lock()
	var old *lane
	if now.Sub(p.renewed) > renewEvery {
		p.renewed = now
		if len(p.warm) > 0 {
			old, p.warm = p.warm[0], p.warm[1:]
		}
	}
	p.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// dropWarm closes the warm lanes over a path; others are dialed.
func (p *pool) dropWarm(over *wanPath) {
	for l := p.takeWarm(over); l != nil; l = p.takeWarm(over) {
		l.close()
	}
}

// closeLanes closes the lanes that are meant.
func (p *pool) closeLanes(meant func(*lane) bool) {
	for _, l := range p.all() {
		if meant(l) {
			l.close()
		}
	}
}

// all are the session's lanes.
func (p *pool) all() []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.lanes))
}

// counts are the session's lanes, and those that are warm.
func (p *pool) counts() (lanes, warm int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lanes), len(p.warm)
}
