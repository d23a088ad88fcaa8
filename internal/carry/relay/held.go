package relay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
)

// A client's first SYN may be held outside of the relay until its target has answered.
// Its flow begins without a client:
//
//	dialing ─ connected ─> held ─ accepted ─> moving
//	   └──── no target ──> gone         the client is answered as the target answered
//
// A connection that the relay accepts continues the flow of its SYN.

const (
	maxHeld     = 4096             // SYNs whose clients are not connected yet
	heldTimeout = 10 * time.Second // for a client to connect once its target has

	// joinedFor is how long after the answer to a SYN the relay may see a copy of it: one
	// that crossed the answer, and waited for a busy machine.
	joinedFor = 5 * time.Second

	// maxJoined bounds the connections remembered for that. Beyond it, a copy of a forgotten SYN
	// begins a flow, whose client does not connect again.
	maxJoined = 1 << 16
)

// HeldSYN is a first SYN to a transparent tunnel that is held.
type HeldSYN struct {
	Tunnel   string
	From, To netip.AddrPort // as the client sent it
	Sequence uint32         // copies have that of the first

	// Answer gets nil if the client is to connect, or why it must not. It may run
	// on an event loop: it must not block. It is not called if the answer to an
	// earlier copy of the SYN is still to come.
	Answer func(*report.Refusal)
}

// held is the state of a flow whose client has not connected.
type held struct {
	syn    heldKey
	answer func(*report.Refusal) // nil once it was called
}

type heldKey struct{ from, to netip.AddrPort }

// heldFlows finds the flow of a SYN, or of the connection that it becomes.
type heldFlows struct {
	mu     sync.Mutex
	all    map[heldKey]heldPlace
	joined map[heldKey]joinedSYN // connections
	oldest []heldKey             // of joined
}

type heldPlace struct {
	worker    *worker
	slot, gen uint32
	dialed    bool
	sequence  uint32 // of the client's latest SYN
}

type joinedSYN struct {
	sequence uint32
	at       time.Time
}

// begin notes a SYN before its flow exists. It returns how far an earlier one of the same
// client got.
func (h *heldFlows) begin(syn heldKey, sequence uint32) (known, dialed, full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if place, ok := h.all[syn]; ok {
		place.sequence = sequence
		h.all[syn] = place
		return true, place.dialed, false
	}
	if was, ok := h.joined[syn]; ok && was.sequence == sequence && time.Since(was.at) < joinedFor {
		return true, false, false // its client needs no answer
	}
	if len(h.all) >= maxHeld {
		return false, false, true
	}
	if h.all == nil {
		h.all = map[heldKey]heldPlace{}
	}
	h.all[syn] = heldPlace{sequence: sequence}
	return false, false, false
}

func (h *heldFlows) set(syn heldKey, place heldPlace) {
	h.mu.Lock()
	defer h.mu.Unlock()
	place.sequence = h.all[syn].sequence
	h.all[syn] = place
}

func (h *heldFlows) end(syn heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, syn)
}

// join notes that a SYN has become a connection.
func (h *heldFlows) join(syn heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := joinedSYN{h.all[syn].sequence, time.Now()}
	delete(h.all, syn)
	if h.joined == nil {
		h.joined = map[heldKey]joinedSYN{}
	}
	for len(h.oldest) > 0 {
		first := h.oldest[0]
		if joined, ok := h.joined[first]; ok && time.Since(joined.at) < joinedFor && len(h.oldest) < maxJoined {
			break
		}
		delete(h.joined, first)
		h.oldest = h.oldest[1:]
	}
	h.joined[syn] = was
	h.oldest = append(h.oldest, syn)
}

// find returns the place of a connection's flow, if it has one.
func (h *heldFlows) find(syn heldKey) (place heldPlace, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	place, ok = h.all[syn]
	return place, ok && place.worker != nil
}

// errHeldTimeout is why a dialed target is reset.
var errHeldTimeout = fmt.Errorf("the client did not connect within %v after its target had", heldTimeout)

// OpenHeld admits the flow of a held SYN, under the limits of its tunnel, and dials its
// target as for any other flow. It does not block. Beyond maxHeld the client connects
// before its target is dialed.
func (r *Relay) OpenHeld(s HeldSYN) {
	rt := r.heldRoute(s)
	loops := r.loops.Load()
	if rt == nil || loops == nil {
		s.Answer(r.released())
		return
	}
	syn := heldKey{s.From, s.To}
	switch known, dialed, full := r.held.begin(syn, s.Sequence); {
	case known && dialed, full: // known: what the kernel answered was lost
		s.Answer(nil)
		return
	case known:
		return
	}
	w := slices.MinFunc(*loops, func(a, b *worker) int { return cmp.Compare(a.load.Load(), b.load.Load()) })
	if !w.post(func() { w.openHeld(rt, s, syn) }) {
		r.held.end(syn)
		s.Answer(r.released())
	}
}

// released is the answer to a SYN whose target this process does not dial.
func (r *Relay) released() *report.Refusal {
	if r.relinquished.Load() {
		return nil // the process that accepts the client dials
	}
	return &report.Refusal{Reason: report.EndDrain, Err: errReleased}
}

// heldRoute is the route of the tunnel's listener for the SYN's family; nil if the tunnel
// takes no new flows.
func (r *Relay) heldRoute(s HeldSYN) *route {
	if r.draining.Load() {
		return nil
	}
	for _, in := range r.table.Load().tunnels {
		if in.tunnel.Name != s.Tunnel || in.state.drained.Load() {
			continue
		}
		for _, l := range in.listeners {
			if family(l.bound.Addr()) == family(s.To.Addr()) && in.tunnel.Transparent {
				return l.route.Load()
			}
		}
	}
	return nil
}

// openHeld begins a flow without a client's leg.
func (w *worker) openHeld(rt *route, s HeldSYN, syn heldKey) {
	src, refused := w.mayOpen(rt, s)
	if refused != nil {
		w.recordRefusal(rt, report.Record{Client: report.Address{AddrPort: s.From}, Listen: report.Address{AddrPort: s.To}, Reason: refused.Reason, Err: refused.Err})
		w.relay.held.end(syn)
		s.Answer(refused)
		return
	}
	f := w.begin(rt, src, s.From)
	f.setListen(s.To)
	f.held = &held{syn, s.Answer}
	w.relay.held.set(syn, heldPlace{worker: w, slot: f.slot, gen: f.gen})
	w.dialTarget(f)
}

func (w *worker) mayOpen(rt *route, s HeldSYN) (*source, *report.Refusal) {
	if !contains(rt.tunnel.Allow, s.From.Addr()) {
		rt.state.denied.Add(1)
		return nil, &report.Refusal{Reason: report.EndDenied}
	}
	if w.relay.starved.Load() > 0 {
		return nil, &report.Refusal{Reason: report.EndNoResources, Err: unix.EMFILE}
	}
	return w.enter(rt, s.From.Addr())
}

// targetAccepted has the client of a held SYN connect.
func (w *worker) targetAccepted(f *flow, events uint32) {
	f.phase = phaseHeld
	f.legs[target].note(events)
	w.timers.schedule(f, w.now+heldTimeout)
	w.relay.held.set(f.held.syn, heldPlace{worker: w, slot: f.slot, gen: f.gen, dialed: true})
	answer := f.held.answer
	f.held.answer = nil
	answer(nil)
}

// joinHeld gives an accepted connection to the flow of its SYN, wherever that is. It
// returns false if no flow waits for it.
func (w *worker) joinHeld(l *listener, fd int, from, dialed netip.AddrPort) bool {
	place, ok := w.relay.held.find(heldKey{from, dialed})
	if !ok {
		return false
	}
	if place.worker == w {
		return w.join(place, fd)
	}
	return place.worker.post(func() {
		if !place.worker.join(place, fd) {
			place.worker.admit(l, fd, from) // without a flow to join
		}
	})
}

// join continues a held flow with its client. It returns false if the flow has ended.
func (w *worker) join(place heldPlace, fd int) bool {
	f := w.lookup(place.slot, place.gen)
	if f == nil || f.held == nil {
		return false
	}
	w.relay.held.join(f.held.syn)
	f.held = nil
	f.legs[client].fd = int32(fd)
	if errno := w.watch(fd, f, client); errno != 0 {
		w.abort(f, report.EndNoResources, errno)
		return true
	}
	if t := f.route.tunnel; t.Transport != nil {
		w.setUp(f, client, t.Transport, netip.Prefix{})
	}
	if f.phase == phaseHeld { // otherwise it came by a SYN that another process held
		w.timers.remove(f)
		w.established(f, 0)
	}
	return true
}

// endHeld answers the client of a held flow that the relay ends.
func (w *worker) endHeld(f *flow) {
	h := f.held
	if h == nil {
		return
	}
	f.held = nil
	w.relay.held.end(h.syn)
	switch {
	case h.answer == nil:
	case f.closing.err == errReleased:
		h.answer(w.relay.released())
	default:
		h.answer(&report.Refusal{Reason: f.closing.reason, Err: f.closing.err})
	}
}

// ReleaseHeld ends the flows of a tunnel, or with an empty name all, whose targets are
// being dialed for a held SYN. Their clients get no answer, and try again.
func (r *Relay) ReleaseHeld(tunnel string) { r.releaseHeld(tunnel, phaseDialing) }

func (r *Relay) releaseHeld(tunnel string, in phase) {
	loops := r.loops.Load()
	if loops == nil {
		return
	}
	for _, w := range *loops {
		w.do(func() {
			w.eachFlow(func(f *flow) {
				if f.held != nil && f.phase == in && (tunnel == "" || f.route.tunnel.Name == tunnel) {
					w.abort(f, report.EndDrain, errReleased)
				}
			})
		})
	}
}

var errReleased = errors.New("the tunnel takes no new flows")
