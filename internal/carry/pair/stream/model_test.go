package stream

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The model: two ends, lanes and a control connection as queues, and everything that
// may happen next. The test visits the states that sequences of events reach: at most
// -states of each case, all of them with -states 0.

const maxLanes = 2

var maxStates = flag.Int("states", 2_000, "how many states of each case of the model to visit; 0: all")

// script is what one end's own socket does: n bytes, then the finish.
type script struct {
	n      int
	finish byte // 'e': end; 'r': reset
}

type packet struct {
	held   []Span // of a report
	kind   byte   // lane: 'a' ATTACH, 'j' the same for one more lane, 'd' DATA, 'e' END, 'x' RELEASE. Control: 'k' ACK, 'h' HELD, 'e' END, 'r' RESET, 'g' GONE, 'w' WAKE, 'l' LATE, 's' SENT
	offset uint64
	flag   bool
	bytes  string
	crc    uint32
}

// strand is one end's view of a lane.
type strand struct {
	has   bool // the flow has it
	ready bool // the end may send on it
	sent  Lane
	queue []packet // what is under way to this end
	asks  bool     // the near end's first packet on it has no answer yet
}

type end struct {
	flow   Flow
	script script
	read   int
	fin    bool // the script's finish happened
	reset  bool // this end's socket is reset
	got    string
	shown  bool // an end was shown to this end's socket
	gone   bool // the flow is forgotten
	told   bool // the other end knows what went out
	lanes  [maxLanes]strand
	ctl    []packet // what is under way to this end
}

type world struct {
	ends     [2]end
	laneUp   [maxLanes]bool
	joins    int // that may still happen
	laneLoss int
	leaves   int
	ctlLoss  int
	doubles  int
	aheads   int // bytes that go ahead of a lane
	aborts   int
	aborted  bool
	silences int            // of lanes, that may still happen
	silent   [maxLanes]bool // nothing comes out of the lane any more
	noResume bool
	sealed   bool // lanes are in clear: ends go on the control connection
	tampers  int  // with what lanes carry, that may still happen
	trace    *history
}

type noBudget struct{}

var plain Budget = noBudget{}

func (noBudget) Take(int, int) bool { return true }
func (noBudget) Give(int)           {}
func (noBudget) Force(int)          {}

func content(side, i int) byte { return byte('a' + side*13 + i) }

func newWorld(a, b script, noResume bool, laneLoss, ctlLoss, doubles, aborts int) *world {
	w := &world{noResume: noResume, laneLoss: laneLoss, ctlLoss: ctlLoss, doubles: doubles, aborts: aborts}
	for i, s := range []script{a, b} {
		w.ends[i] = end{script: s}
		w.ends[i].flow.Init(&plain, 1<<20)
		if noResume {
			w.ends[i].flow.NoResume()
		}
	}
	return w
}

// seal has ends go on the control connection, and what lanes carry changed so many times.
func (w *world) seal(tampers int) *world {
	w.sealed, w.tampers = true, tampers
	for i := range w.ends {
		w.ends[i].flow.Seal(true)
	}
	return w
}

func (w *world) clone(step string) *world {
	c := *w
	c.trace = &history{step, w.trace}
	for i := range c.ends {
		e := &c.ends[i]
		e.ctl = slices.Clone(e.ctl)
		for k := range e.lanes {
			e.lanes[k].queue = slices.Clone(e.lanes[k].queue)
			e.lanes[k].sent.sent = slices.Clone(e.lanes[k].sent.sent)
		}
		if g := e.flow.Out.gaps; g != nil {
			e.flow.Out.gaps = &gaps{slices.Clone(g.again), slices.Clone(g.held)}
		}
		e.flow.Out.store.chunks = cloneChunks(e.flow.Out.store.chunks)
		if e.flow.In.early != nil {
			early := *e.flow.In.early
			early.chunks = cloneChunks(early.chunks)
			e.flow.In.early = &early
		}
	}
	return &c
}

func cloneChunks(chunks []*chunk) (all []*chunk) {
	for _, k := range chunks {
		k := *k
		k.buf = slices.Clone(k.buf[:min(len(k.buf), k.n+4)])
		all = append(all, &k)
	}
	return all
}

// key holds everything in which two worlds may differ.
func (w *world) key() string {
	b := encode(nil, w.joins, w.laneLoss, w.leaves, w.ctlLoss, w.doubles, w.aheads, w.aborts, w.aborted, w.tampers, w.silences)
	for i := range w.ends {
		e := &w.ends[i]
		f := &e.flow
		o, in := &f.Out, &f.In
		b = encode(b, e.read, e.fin, e.reset, e.got, e.shown, e.gone,
			o.base, o.acked, o.next, o.sent, o.length, o.attached, o.from, o.ended, o.endSent, o.endDue, o.endAcked, o.dropped,
			in.pos, in.endAt, in.toldEnd, e.told, in.merge, in.sawEnd, in.ending, in.ended, in.cut, in.cutAt, in.cutEnd, in.dead,
			f.dead, f.cause().Code, f.byPeer, f.peerDead, f.resetDue, f.ackDue, f.ackFirst, f.acked, f.hurry)
		b = encodeSpans(encodeSpans(b, o.again()), o.held())
		b = encode(b, f.HeldWaiting() > 0)
		early := in.early
		if early == nil {
			early = &spill{}
		}
		b = encode(b, len(early.chunks))
		for _, c := range early.chunks {
			b = encode(b, c.start, c.n)
		}
		b = encodePackets(b, e.ctl)
		for k := range e.lanes {
			l := &e.lanes[k]
			if !w.laneUp[k] {
				b = encode(b, false)
				continue
			}
			b = encode(b, w.laneUp[k], w.silent[k], l.has, l.ready, l.asks, l.sent.end)
			b = encodeSpans(b, l.sent.sent.after(o.base))
			b = encodePackets(b, l.queue)
		}
	}
	return string(b)
}

func encodePackets(b []byte, queue []packet) []byte {
	b = encode(b, len(queue))
	for _, p := range queue {
		b = encode(b, p.kind, p.offset, p.flag, p.bytes)
	}
	return b
}

func encodeSpans(b []byte, s spans) []byte {
	b = encode(b, len(s))
	for _, p := range s {
		b = encode(b, p.from, p.to)
	}
	return b
}

// encode appends small values, a byte each, and texts with their length.
func encode(b []byte, values ...any) []byte {
	for _, v := range values {
		switch v := v.(type) {
		case bool:
			if v {
				b = append(b, 1)
			} else {
				b = append(b, 0)
			}
		case int:
			b = append(b, byte(v))
		case byte:
			b = append(b, v)
		case uint64:
			b = append(b, byte(v))
		case string:
			b = append(append(b, byte(len(v))), v...)
		default:
			panic(fmt.Sprintf("%T", v))
		}
	}
	return b
}

// history is the steps to a world, the latest first.
type history struct {
	step   string
	before *history
}

func (h *history) String() string {
	if h == nil {
		return ""
	}
	return h.before.String() + h.step + "; "
}

// step is one event; apply changes a clone.
type step struct {
	name  string
	apply func(w *world)
}

var names = [][2]string{{"read 0", "read 1"}, {"finish 0", "finish 1"}, {"send 0", "send 1"}, {"lane to 0", "lane to 1"},
	{"lane twice to 0", "lane twice to 1"}, {"control to 0", "control to 1"}, {"flush 0", "flush 1"}, {"abort 0", "abort 1"},
	{"tell 0", "tell 1"}, {"ahead 0", "ahead 1"},
	{"late 0", "late 1"}, {"keep back from 0", "keep back from 1"}, {"another position to 0", "another position to 1"}}

var onLane = [maxLanes]string{"", " on the second"}

// free is a lane that does not exist; -1: none.
func (w *world) free() int { return slices.Index(w.laneUp[:], false) }

func (e *end) any(is func(l *strand) bool) bool {
	for k := range e.lanes {
		if is(&e.lanes[k]) {
			return true
		}
	}
	return false
}

func (e *end) hasLane() bool { return e.any(func(l *strand) bool { return l.has }) }

// steps lists what may happen next without a loss, and the losses.
func (w *world) steps() (steps, losses []step) {
	for i := range w.ends {
		steps = append(steps, w.stepsOf(i)...)
	}
	near, far, k := &w.ends[0], &w.ends[1], w.free()
	if k >= 0 && !near.hasLane() && !near.gone && (near.flow.NeedsLane() || far.flow.NeedsLane() && !far.gone) {
		steps = append(steps, step{"attach" + onLane[k], func(w *world) {
			w.laneUp[k] = true
			near := &w.ends[0]
			near.lanes[k] = strand{has: true, ready: true, asks: true}
			if f := &near.flow; !f.Out.InFlight() {
				_ = f.Attach(f.Out.base)
			}
			w.ends[1].lanes[k].queue = []packet{{kind: 'a', offset: near.flow.In.pos}}
		}})
	}
	if k >= 0 && w.joins > 0 && !near.gone && near.flow.Out.attached && near.any(func(l *strand) bool { return l.ready }) {
		losses = append(losses, step{"join" + onLane[k], func(w *world) {
			w.joins--
			w.laneUp[k] = true
			near := &w.ends[0]
			near.flow.In.Merge()
			near.lanes[k] = strand{has: true, asks: true}
			w.ends[1].lanes[k].queue = []packet{{kind: 'j', offset: near.flow.In.pos}}
		}})
	}
	for k := range w.laneUp {
		if w.laneUp[k] && !w.silent[k] && w.silences > 0 {
			losses = append(losses, step{"silence" + onLane[k], func(w *world) {
				w.silences--
				w.silent[k] = true
				w.ends[0].lanes[k].queue, w.ends[1].lanes[k].queue = nil, nil
			}})
		}
		if near.lanes[k].has && near.lanes[k].asks && w.quiet() {
			steps = append(steps, step{"no answer" + onLane[k], func(w *world) { w.dropLane(k) }})
		}
		if w.laneUp[k] && w.laneLoss > 0 {
			losses = append(losses, step{"lose lane" + onLane[k], func(w *world) { w.laneLoss--; w.dropLane(k) }})
		}
		if w.leaves > 0 && near.lanes[k].ready && near.any(func(l *strand) bool { return l.has && l != &near.lanes[k] }) {
			losses = append(losses, step{"leave" + onLane[k], func(w *world) {
				w.leaves--
				w.leave(0, k)
				w.put(1, k, packet{kind: 'x'})
			}})
		}
	}
	if w.ctlLoss > 0 && len(w.ends[0].ctl)+len(w.ends[1].ctl) > 0 {
		losses = append(losses, step{"lose control", func(w *world) {
			w.ctlLoss--
			for i := range w.ends {
				w.ends[i].ctl, w.ends[i].told = nil, false
				w.ends[i].flow.Resync()
			}
		}})
	}
	for i := range w.ends {
		losses = append(losses, w.chancesOf(i)...)
		if w.aborts > 0 && !w.ends[i].gone {
			losses = append(losses, step{names[7][i], func(w *world) {
				w.aborts--
				w.abort(i)
			}})
		}
	}
	return steps, losses
}

// chancesOf are steps that one end may take to be faster, and need not.
func (w *world) chancesOf(i int) (all []step) {
	e := &w.ends[i]
	if e.gone {
		return nil
	}
	if offset, b := e.flow.Out.Peek(1); w.aheads > 0 && len(b) > 0 && (i == 0 || !e.hasLane()) {
		p := packet{kind: 'w', offset: offset, bytes: string(b)}
		all = append(all, step{names[9][i], func(w *world) {
			w.aheads--
			w.ends[1-i].ctl = append(w.ends[1-i].ctl, p)
		}})
	}
	return all
}

// put has a packet under way on a lane.
func (w *world) put(to, k int, p packet) {
	if !w.silent[k] {
		w.ends[to].lanes[k].queue = append(w.ends[to].lanes[k].queue, p)
	}
}

func (w *world) dropLane(k int) {
	w.laneUp[k], w.silent[k] = false, false
	for i := range w.ends {
		w.leave(i, k)
		w.ends[i].lanes[k] = strand{}
	}
}

// leave takes a lane from one end's flow.
func (w *world) leave(i, k int) {
	e := &w.ends[i]
	l := &e.lanes[k]
	if !l.has {
		return
	}
	l.has, l.ready = false, false
	f := &e.flow
	if e.hasLane() {
		f.Out.Lost(&l.sent)
		return
	}
	lost := f.Out.AtRisk()
	l.sent = Lane{}
	if f.Detach(); lost {
		w.abort(i)
	}
}

func (w *world) abort(i int) {
	w.aborted = true
	w.ends[i].flow.Abort(Cause{Code: 9})
}

func (w *world) stepsOf(i int) (all []step) {
	e := &w.ends[i]
	if !e.gone && e.flow.Hungry() && !e.reset && e.read < e.script.n {
		all = append(all, step{names[0][i], func(w *world) {
			e := &w.ends[i]
			// Chunks of a byte: Trim frees each at its time, and states, which are copied, are small.
			store := &e.flow.Out.store
			store.chunks = append(store.chunks, &chunk{buf: make([]byte, 1), start: e.flow.Out.length})
			e.flow.Out.Space()[0] = content(i, e.read)
			e.flow.Out.Commit(1)
			e.read++
		}})
	}
	if !e.gone && !e.reset && !e.fin && (e.read == e.script.n && e.flow.Hungry() || e.script.finish == 'r' && !e.flow.Dead()) {
		all = append(all, step{names[1][i], func(w *world) {
			e := &w.ends[i]
			if e.fin = true; e.script.finish == 'e' {
				e.flow.Out.End()
			} else {
				e.reset = true
				e.flow.LocalReset(Cause{Code: 1})
			}
		}})
	}
	for k := range e.lanes {
		all = append(all, w.stepsOn(i, k)...)
	}
	if len(e.ctl) > 0 {
		all = append(all, step{names[5][i], func(w *world) {
			p := w.ends[i].ctl[0]
			w.ends[i].ctl = w.ends[i].ctl[1:]
			w.arriveControl(i, p)
		}})
	}
	if to, end, some := e.flow.Out.OnTheWay(); some && !e.told && !e.gone && w.quiet() {
		all = append(all, step{names[8][i], func(w *world) {
			w.ends[i].told = true
			w.ends[1-i].ctl = append(w.ends[1-i].ctl, packet{kind: 's', offset: to, flag: end})
		}})
	}
	if w.late(i) {
		all = append(all, step{names[10][i], func(w *world) {
			w.ends[1-i].ctl = append(w.ends[1-i].ctl, packet{kind: 'l', offset: w.ends[i].flow.In.pos})
		}})
	}
	if e.flushes() {
		all = append(all, step{names[6][i], func(w *world) { w.flush(i) }})
	}
	return all
}

// late reports that an end has said what one end lacks, and nothing more comes.
func (w *world) late(i int) bool {
	e := &w.ends[i]
	return !e.gone && e.flow.In.Lacks() && e.hasLane() && w.quiet()
}

// quiet reports that nothing is under way, and nothing is to be sent.
func (w *world) quiet() bool {
	for i := range w.ends {
		e := &w.ends[i]
		if len(e.ctl) > 0 || e.flushes() || e.any(func(l *strand) bool {
			return len(l.queue) > 0 || l.ready && !e.gone && e.flow.Out.Pending()
		}) {
			return false
		}
	}
	return true
}

// flushes reports that the end has something for the control connection, or is over.
func (e *end) flushes() bool {
	return !e.gone && (e.flow.EndWaiting() || e.flow.ackDue || e.flow.HeldWaiting() > 0 || e.flow.resetDue || e.flow.Over())
}

// takeLate takes the news that bytes are missing at the other end.
func (w *world) takeLate(i int, offset uint64) {
	e := &w.ends[i]
	if e.flow.Out.AtRisk() {
		w.abort(i)
		return
	}
	if e.flow.Out.WillSend(offset) {
		if w.quiet() && e.hasLane() && !w.ends[0].any(func(l *strand) bool { return l.asks }) {
			panic(fmt.Sprintf("a LATE of %d at %d changes nothing after %v", offset, i, w.trace))
		}
		return
	}
	some := false
	for k := range e.lanes {
		if e.lanes[k].has && e.flow.Out.CarriesAt(&e.lanes[k].sent, offset) {
			some = true
			w.dropLane(k)
		}
	}
	for k := range e.lanes {
		if !some && e.lanes[k].has {
			w.dropLane(k)
		}
	}
}

// tampersOn is what somebody on the path may do with what comes next on a lane.
func (w *world) tampersOn(i, k int) (all []step) {
	queue := w.ends[i].lanes[k].queue
	if w.tampers == 0 || len(queue) == 0 {
		return nil
	}
	switch queue[0].kind {
	case 'd':
		all = append(all, step{names[11][i] + onLane[k], func(w *world) {
			w.tampers--
			w.ends[i].lanes[k].queue = w.ends[i].lanes[k].queue[1:]
		}})
	case 'a', 'j':
		all = append(all, step{names[12][i] + onLane[k], func(w *world) {
			w.tampers--
			w.ends[i].lanes[k].queue[0].offset++
		}})
	}
	return all
}

// stepsOn are the steps of one end with one lane.
func (w *world) stepsOn(i, k int) (all []step) {
	e, peer := &w.ends[i], 1-i
	if l := &e.lanes[k]; l.ready && !e.gone && e.flow.Out.Pending() {
		all = append(all, step{names[2][i] + onLane[k], func(w *world) {
			e := &w.ends[i]
			item, _ := e.flow.Out.Next(&e.lanes[k].sent, 1)
			p := packet{kind: 'e', offset: item.Offset, crc: item.CRC}
			if !item.End {
				p = packet{kind: 'd', offset: item.Offset, bytes: string(item.Bytes)}
			}
			e.flow.Out.Sent(item)
			e.told = false
			w.put(peer, k, p)
		}})
	}
	if len(e.lanes[k].queue) > 0 {
		all = append(all, step{names[3][i] + onLane[k], func(w *world) {
			p := w.ends[i].lanes[k].queue[0]
			w.ends[i].lanes[k].queue = w.ends[i].lanes[k].queue[1:]
			w.arriveLane(i, k, p)
		}})
		all = append(all, w.tampersOn(i, k)...)
		if w.doubles > 0 {
			all = append(all, step{names[4][i] + onLane[k], func(w *world) {
				w.doubles--
				w.arriveLane(i, k, w.ends[i].lanes[k].queue[0])
			}})
			// An older release sends what a lane carries on the other one too.
			if kind := e.lanes[k].queue[0].kind; w.ends[peer].lanes[1-k].ready && (kind == 'd' || kind == 'e') {
				all = append(all, step{names[4][i] + onLane[k] + ", by the other", func(w *world) {
					w.doubles--
					w.put(i, 1-k, w.ends[i].lanes[k].queue[0])
				}})
			}
		}
	}
	return all
}

func (w *world) flush(i int) {
	e, peer := &w.ends[i], &w.ends[1-i]
	if a, ok := e.flow.TakeAck(); ok {
		peer.ctl = append(peer.ctl, packet{kind: 'k', offset: a.Received, flag: a.End})
	}
	if held := e.flow.TakeHeld(); len(held) > 0 {
		peer.ctl = append(peer.ctl, packet{kind: 'h', held: held, bytes: fmt.Sprint(held)})
	}
	if end, ok := e.flow.TakeEnd(); ok {
		peer.ctl = append(peer.ctl, packet{kind: 'e', offset: end.Length, crc: end.CRC})
	}
	if r, ok := e.flow.TakeReset(); ok {
		e.reset = true
		peer.ctl = append(peer.ctl, packet{kind: 'r', offset: r.Length, flag: r.End})
	}
	e.gone = e.flow.Over()
}

func (w *world) arriveLane(i, k int, p packet) {
	e := &w.ends[i]
	switch {
	case e.gone && (p.kind == 'a' || p.kind == 'j'):
		w.ends[1-i].ctl = append(w.ends[1-i].ctl, packet{kind: 'g'})
		return
	case p.kind == 'x': // the lane goes back to the pool; what comes to the other end is dropped
		w.leave(i, k)
		w.dropLane(k)
		return
	case e.gone, p.kind != 'a' && p.kind != 'j' && !e.lanes[k].has:
		return
	}
	err := w.take(i, k, p)
	if w.noResume && p.kind == 'a' && err != nil {
		w.abort(i) // what the other end lacks is not kept
		err = nil
	}
	switch {
	case w.sealed && errors.Is(err, ErrGap):
		w.dropLane(k)
		err = nil
	case w.sealed && err != nil:
		w.abort(i)
		err = nil
	}
	if err != nil {
		panic(fmt.Sprintf("%v of %+v at %d after %v", err, p, i, w.trace))
	}
	w.turn(i)
	e.flow.ResetLocal()
}

func (w *world) take(i, k int, p packet) error {
	e := &w.ends[i]
	if i == 0 && (p.kind == 'a' || p.kind == 'j') {
		e.lanes[k].asks = false
	}
	switch {
	case i == 0 && !e.lanes[k].has:
	case i == 0 && p.kind == 'a' && !e.flow.Out.attached:
		return e.flow.Attach(p.offset)
	case i == 0 && (p.kind == 'a' || p.kind == 'j'):
		e.lanes[k].ready = true
		return e.flow.Arrived(p.offset)
	case p.kind == 'a' || p.kind == 'j':
		if p.kind == 'a' { // it may come late, on a lane that was given up
			w.leaveAll(1, k)
		} else {
			e.flow.In.Merge()
		}
		first := !e.hasLane()
		e.lanes[k].has, e.lanes[k].ready = true, true
		w.put(0, k, packet{kind: p.kind, offset: e.flow.In.pos})
		if first {
			return e.flow.Attach(p.offset)
		}
		return e.flow.Arrived(p.offset)
	case p.kind == 'd' && e.flow.In.IsEarly(p.offset):
		m, _, err := e.flow.Early(p.offset, len(p.bytes))
		if m != nil {
			e.flow.Spilled(m, copy(m.Space(), p.bytes))
		}
		return err
	case p.kind == 'd':
		b, err := e.flow.In.Data(p.offset, []byte(p.bytes))
		w.write(i, b)
		return err
	case p.kind == 'e':
		return e.flow.In.End(p.offset, p.crc)
	}
	return nil
}

// leaveAll takes all lanes from one end's flow, and closes those but one.
func (w *world) leaveAll(i, but int) {
	for k := range w.laneUp {
		if w.ends[i].lanes[k].has {
			w.leave(i, k)
			if k != but {
				w.dropLane(k)
			}
		}
	}
}

func (w *world) write(i int, b []byte) {
	if e := &w.ends[i]; len(b) > 0 && !e.reset {
		e.got += string(b)
		e.flow.Wrote(b)
	}
}

// turn delivers what came before its turn, and the end.
func (w *world) turn(i int) {
	e := &w.ends[i]
	for b, m := e.flow.Turn(); m != nil; b, m = e.flow.Turn() {
		w.write(i, b)
		e.flow.Turned(m)
	}
	pass, err := e.flow.In.EndDue()
	if err != nil && w.sealed {
		w.abort(i)
		return
	}
	if err != nil {
		panic(fmt.Sprint(err, w.trace))
	}
	if pass {
		e.shown = true
		e.flow.EndPassed()
	}
}

func (w *world) arriveControl(i int, p packet) {
	e, peer := &w.ends[i], &w.ends[1-i]
	switch {
	case e.gone && p.kind != 'g':
		peer.ctl = append(peer.ctl, packet{kind: 'g'})
	case e.gone:
	case p.kind == 'k':
		if err := e.flow.Ack(p.offset, p.flag); err != nil {
			panic(fmt.Sprint(err, w.trace))
		}
	case p.kind == 'h':
		if err := e.flow.Held(p.held); err != nil {
			panic(fmt.Sprint(err, w.trace))
		}
	case p.kind == 'e':
		if err := e.flow.In.End(p.offset, p.crc); err != nil {
			panic(fmt.Sprint(err, w.trace))
		}
		w.turn(i)
	case p.kind == 's':
		e.flow.Told(p.offset, p.flag)
	case p.kind == 'l':
		w.takeLate(i, p.offset)
	case p.kind == 'r':
		e.flow.PeerReset(p.offset, p.flag, Cause{Code: 2})
		e.flow.ResetLocal()
	case p.kind == 'g':
		e.flow.PeerGone(Cause{Code: 3})
	case p.kind == 'w' && !(w.noResume && e.hasLane()) && !e.reset:
		if b, err := e.flow.In.Data(p.offset, []byte(p.bytes)); err == nil {
			w.write(i, b)
			w.turn(i)
			e.flow.ResetLocal()
		}
	}
}

// check holds the world against the rule.
func (w *world) check(t *testing.T) {
	t.Helper()
	for i := range w.ends {
		e, peer := &w.ends[i], &w.ends[1-i]
		want := ""
		for k := range peer.read {
			want += string(content(1-i, k))
		}
		if len(e.got) > len(want) || e.got != want[:len(e.got)] {
			t.Fatalf("end %d got %q of %q after %v", i, e.got, want, w.trace)
		}
		if e.shown && (!peer.flow.Out.ended || len(e.got) != peer.script.n) {
			t.Fatalf("end %d was shown an end after %q of %d bytes: %v", i, e.got, peer.script.n, w.trace)
		}
	}
}

// checkFinal holds a world in which nothing more happens against what must be reached.
func (w *world) checkFinal(t *testing.T) {
	t.Helper()
	anyReset := w.ends[0].reset || w.ends[1].reset
	for i := range w.ends {
		e, peer := &w.ends[i], &w.ends[1-i]
		if !e.gone {
			t.Fatalf("end %d hangs after %v: %+v", i, w.trace, e.flow)
		}
		if !anyReset && (!e.shown || len(e.got) != peer.script.n) {
			t.Fatalf("end %d got %q, end %v, without a reset: %v", i, e.got, e.shown, w.trace)
		}
		// Only the peer's own socket was reset: what it sent before comes first.
		if !w.aborted && e.script.finish != 'r' && peer.script.finish == 'r' && len(e.got) != peer.read {
			t.Fatalf("end %d got %q, %d bytes were read before the reset: %v", i, e.got, peer.read, w.trace)
		}
	}
}

// explore visits states and returns how many. If it may not visit all, it follows random
// sequences of events to their ends, each from a random state with events that are left.
func explore(t *testing.T, start *world) int {
	seen := map[string]bool{start.key(): true}
	queue := []*world{start}
	random := rand.New(rand.NewPCG(1, 1))
	for len(queue) > 0 && (*maxStates == 0 || len(seen) < *maxStates) {
		w := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		steps, losses := w.steps()
		if len(steps) == 0 {
			w.checkFinal(t)
		}
		from := len(queue)
		for _, s := range append(steps, losses...) {
			next := w.clone(s.name)
			s.apply(next)
			for i := range next.ends {
				next.ends[i].flow.Out.Trim()
			}
			next.check(t)
			if k := next.key(); !seen[k] {
				seen[k] = true
				queue = append(queue, next)
			}
		}
		if n := len(queue); *maxStates > 0 && n > 0 { // the one to visit next
			if from == n {
				from = 0
			}
			i := from + random.IntN(n-from)
			queue[i], queue[n-1] = queue[n-1], queue[i]
		}
	}
	return len(seen)
}

func TestModel(t *testing.T) {
	for _, c := range []struct {
		a, b                               script
		laneLoss, ctlLoss, doubles, aborts int
	}{
		{script{1, 'e'}, script{1, 'e'}, 1, 1, 0, 0},
		{script{2, 'e'}, script{0, 'e'}, 2, 0, 1, 0},
		{script{0, 'e'}, script{2, 'e'}, 1, 0, 1, 0}, // an ATTACH comes late
		{script{2, 'e'}, script{0, 'r'}, 1, 1, 0, 0},
		{script{1, 'r'}, script{1, 'e'}, 1, 1, 0, 0},
		{script{1, 'r'}, script{1, 'r'}, 1, 1, 0, 0},
		{script{1, 'e'}, script{0, 'e'}, 0, 1, 0, 1},
		{script{1, 'r'}, script{0, 'e'}, 1, 0, 0, 1},
	} {
		for _, noResume := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v, no resume %v", c, noResume), func(t *testing.T) {
				t.Logf("%d states", explore(t, newWorld(c.a, c.b, noResume, c.laneLoss, c.ctlLoss, c.doubles, c.aborts)))
			})
		}
	}
}

// TestModelSealed has lanes in clear: ends go on the control connection, and what lanes carry may
// be kept back or changed. No end is shown before its time, and none waits for ever.
func TestModelSealed(t *testing.T) {
	for _, c := range []struct {
		a, b                                               script
		laneLoss, ctlLoss, doubles, aborts, tampers, joins int
	}{
		{script{1, 'e'}, script{1, 'e'}, 1, 0, 0, 0, 0, 0},
		{script{1, 'e'}, script{0, 'e'}, 1, 1, 0, 0, 0, 0},
		{script{2, 'e'}, script{0, 'e'}, 2, 0, 1, 0, 0, 0},
		{script{0, 'e'}, script{2, 'e'}, 1, 0, 1, 0, 0, 0},
		{script{2, 'e'}, script{0, 'r'}, 1, 1, 0, 0, 0, 0},
		{script{1, 'r'}, script{0, 'e'}, 1, 1, 0, 0, 0, 0},
		{script{1, 'e'}, script{0, 'e'}, 0, 2, 0, 1, 0, 0},
		{script{1, 'e'}, script{1, 'e'}, 0, 0, 0, 0, 1, 0},
		{script{2, 'e'}, script{0, 'e'}, 1, 0, 0, 0, 2, 0},
		{script{0, 'e'}, script{2, 'e'}, 1, 0, 0, 0, 2, 0},
		{script{1, 'e'}, script{0, 'e'}, 0, 1, 0, 0, 1, 0},
		{script{2, 'e'}, script{0, 'r'}, 1, 0, 0, 0, 1, 0},
		{script{2, 'e'}, script{0, 'e'}, 0, 0, 0, 0, 1, 1},
		{script{0, 'e'}, script{2, 'e'}, 1, 0, 0, 0, 0, 1},
	} {
		for _, noResume := range []bool{false, true} {
			if noResume && c.joins > 0 {
				continue
			}
			t.Run(fmt.Sprintf("%+v, no resume %v", c, noResume), func(t *testing.T) {
				w := newWorld(c.a, c.b, noResume, c.laneLoss, c.ctlLoss, c.doubles, c.aborts).seal(c.tampers)
				w.joins = c.joins
				t.Logf("%d states", explore(t, w))
			})
		}
	}
}

// TestModelAhead lets bytes go ahead of a lane over the control connection.
func TestModelAhead(t *testing.T) {
	for _, c := range []struct {
		a, b              script
		laneLoss, ctlLoss int
		noResume          bool
	}{
		{script{2, 'e'}, script{0, 'e'}, 1, 0, false},
		{script{0, 'e'}, script{2, 'e'}, 1, 0, false},
		{script{1, 'e'}, script{0, 'e'}, 1, 1, false},
		{script{2, 'r'}, script{0, 'e'}, 1, 0, false},
		{script{1, 'e'}, script{1, 'e'}, 1, 0, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			w := newWorld(c.a, c.b, c.noResume, c.laneLoss, c.ctlLoss, 0, 0)
			w.aheads = 2
			t.Logf("%d states", explore(t, w))
		})
	}
}

// TestModelSilence has lanes fall silent: the other end's kernel acknowledges what goes out on them,
// and nothing of it arrives. Each flow goes on or ends by what the ends tell each other.
func TestModelSilence(t *testing.T) {
	for _, c := range []struct {
		a, b                               script
		silences, joins, laneLoss, ctlLoss int
		noResume, sealed                   bool
	}{
		{script{1, 'e'}, script{1, 'e'}, 1, 0, 0, 0, false, false},
		{script{2, 'e'}, script{0, 'e'}, 2, 0, 0, 0, false, false},
		{script{0, 'e'}, script{2, 'e'}, 2, 0, 0, 0, false, false},
		{script{1, 'e'}, script{0, 'r'}, 1, 0, 1, 0, false, false},
		{script{1, 'r'}, script{1, 'e'}, 1, 0, 0, 1, false, false},
		{script{1, 'e'}, script{1, 'e'}, 1, 0, 0, 0, true, false},
		{script{1, 'e'}, script{1, 'e'}, 1, 0, 0, 0, false, true},
		{script{2, 'e'}, script{0, 'e'}, 2, 0, 0, 1, false, true},
		{script{1, 'e'}, script{1, 'e'}, 1, 0, 0, 0, true, true},
		{script{2, 'e'}, script{0, 'e'}, 1, 1, 0, 0, false, false},
		{script{0, 'e'}, script{2, 'e'}, 1, 1, 0, 0, false, false},
		{script{1, 'e'}, script{1, 'e'}, 2, 1, 0, 0, false, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			w := newWorld(c.a, c.b, c.noResume, c.laneLoss, c.ctlLoss, 0, 0)
			if c.sealed {
				w.seal(0)
			}
			w.silences, w.joins = c.silences, c.joins
			t.Logf("%d states", explore(t, w))
		})
	}
}

// TestModelLanes lets a second lane join, leave and be lost.
func TestModelLanes(t *testing.T) {
	for _, c := range []struct {
		a, b                                              script
		joins, leaves, laneLoss, ctlLoss, doubles, aborts int
	}{
		{script{2, 'e'}, script{0, 'e'}, 1, 0, 1, 0, 0, 0},
		{script{0, 'e'}, script{2, 'e'}, 1, 0, 1, 0, 0, 0},
		{script{2, 'e'}, script{0, 'e'}, 1, 1, 0, 0, 0, 0},
		{script{0, 'e'}, script{2, 'e'}, 1, 1, 0, 0, 0, 0},
		{script{2, 'e'}, script{0, 'e'}, 1, 0, 0, 0, 1, 0},
		{script{2, 'r'}, script{0, 'e'}, 1, 0, 1, 0, 0, 0},
		{script{2, 'e'}, script{0, 'r'}, 1, 0, 1, 0, 0, 0},
		{script{2, 'e'}, script{0, 'e'}, 1, 0, 0, 0, 0, 1},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			w := newWorld(c.a, c.b, false, c.laneLoss, c.ctlLoss, c.doubles, c.aborts)
			w.joins, w.leaves = c.joins, c.leaves
			t.Logf("%d states", explore(t, w))
		})
	}
}
