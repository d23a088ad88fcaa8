package pair

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// openWithin bounds the time for which a lane waits for the OPEN of its flow.
const openWithin = handshakeTimeout

var errNoOpen = errors.New("no OPEN came for the flow that the lane names")

const (
	// minWatched is the capacity of a session's list of flows that it always keeps.
	minWatched = 64
	// maxAsking bounds the OPENs of a far session that are neither admitted nor refused yet.
	maxAsking = 64
)

// registry has a session's flows by their numbers.
type registry struct {
	flowsTotal atomic.Int64
	resumes    atomic.Int64

	mu         sync.Mutex
	flows      map[uint64]*Flow
	watched    []*Flow            // those that do not rest
	held       map[*Flow]struct{} // near relay: those whose client may go to another hop
	emptySince time.Time          // of a session that ends: without flows since
	// The rest is the far relay's.
	asking    chan struct{} // has an element for each OPEN that is not decided
	undecided atomic.Int64  // those, and further ones that wait to be asked for
	buried    dropped
	expects   map[uint64]*expected // by flow
}

func (r *registry) init(near bool) {
	r.flows, r.held = map[uint64]*Flow{}, map[*Flow]struct{}{}
	if !near {
		r.asking = make(chan struct{}, maxAsking)
	}
}

func (r *registry) flow(id uint64) *Flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flows[id]
}

func (r *registry) add(f *Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enroll(f)
}

// enroll is add for a caller that holds r.mu.
func (r *registry) enroll(f *Flow) {
	r.flowsTotal.Add(1)
	r.flows[f.id] = f
	r.watch(f)
	if f.near.held() { // it comes from another session
		r.held[f] = struct{}{}
	}
}

// strike takes a flow out that is over, or has moved on.
func (r *registry) strike(f *Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.flows, f.id)
	r.unwatch(f)
	delete(r.held, f)
}

// setHeld notes whether a flow's client may go to another hop.
func (r *registry) setHeld(f *Flow, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if on {
		r.held[f] = struct{}{}
	} else {
		delete(r.held, f)
	}
}

// heldFlows are those whose client may go to another hop.
func (r *registry) heldFlows() []*Flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.held))
}

// holds reports whether there are any.
func (r *registry) holds() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held) > 0
}

// bury remembers that a flow is over, and the code of its REFUSED; 0: it had none.
func (r *registry) bury(id uint64, code byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buried.add(id, code)
}

func (r *registry) allFlows() []*Flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.flows))
}

// watchedFlows are those that do not rest.
func (r *registry) watchedFlows() []*Flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.watched)
}

// active reports whether a flow does not rest.
func (r *registry) active() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.watched) > 0
}

func (r *registry) flowCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.flows)
}

// setResting has the flow be watched or not.
func (r *registry) setResting(f *Flow, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if on {
		r.unwatch(f)
	} else {
		r.watch(f)
	}
}

// watch has a flow be looked at each tick. The caller holds r.mu.
func (r *registry) watch(f *Flow) {
	if f.watch.place == 0 {
		r.watched = append(r.watched, f)
		f.watch.place = int32(len(r.watched))
	}
}

// unwatch takes watch back, and memory with it that thousands of flows needed which rest now. The caller
// holds r.mu.
func (r *registry) unwatch(f *Flow) {
	at := f.watch.place
	if at == 0 {
		return
	}
	last := len(r.watched) - 1
	r.watched[at-1] = r.watched[last]
	r.watched[at-1].watch.place = at
	r.watched[last] = nil
	r.watched, f.watch.place = r.watched[:last], 0
	if c := cap(r.watched); c > minWatched && last < c/4 {
		r.watched = append(make([]*Flow, 0, c/2), r.watched...)
	}
}

// emptyFor is for how long a session that ends has had no flows, as far as that has been asked.
func (r *registry) emptyFor() (long time.Duration, empty bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.flows) > 0 {
		r.emptySince = time.Time{}
		return 0, false
	}
	if r.emptySince.IsZero() {
		r.emptySince = time.Now()
	}
	return time.Since(r.emptySince), true
}

// dropped are the numbers of flows that are over, of which a late OPEN may still come, each with
// the code of the reason for which it was refused; 0: it was not.
type dropped struct{ now, before map[uint64]byte }

func (d *dropped) add(id uint64, code byte) {
	if was, known := d.has(id); known && was != 0 {
		code = was
	}
	if len(d.now) >= maxBuried {
		d.before, d.now = d.now, nil
	}
	if d.now == nil {
		d.now = map[uint64]byte{}
	}
	d.now[id] = code
}

func (d *dropped) has(id uint64) (code byte, known bool) {
	if code, known = d.now[id]; !known {
		code, known = d.before[id]
	}
	return code, known
}

// expected are the lanes that wait for the OPEN of one flow.
type expected struct {
	come  chan struct{} // closed when it is here
	lanes int
}

// awaitOpen waits until the OPEN of a flow is here; nil: the flow is over.
func (r *registry) awaitOpen(ctx context.Context, id uint64) (*Flow, error) {
	timeout := time.NewTimer(openWithin)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		f := r.flows[id]
		if _, over := r.buried.has(id); f != nil || over {
			r.mu.Unlock()
			return f, nil
		}
		if r.expects == nil {
			r.expects = map[uint64]*expected{}
		}
		e := r.expects[id]
		if e == nil {
			e = &expected{come: make(chan struct{})}
			r.expects[id] = e
		}
		e.lanes++
		r.mu.Unlock()
		var err error
		select {
		case <-e.come:
		case <-timeout.C:
			err = errNoOpen
		case <-ctx.Done():
			err = ctx.Err()
		}
		r.mu.Lock()
		if e.lanes--; e.lanes == 0 && r.expects[id] == e {
			delete(r.expects, id)
		}
		r.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// opened wakes the lanes that wait for the OPEN of a flow.
func (r *registry) opened(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.expects[id]; e != nil {
		close(e.come)
		delete(r.expects, id)
	}
}
