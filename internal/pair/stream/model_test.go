package stream

import (
	"fmt"
	"slices"
	"testing"
)

// The model: two ends, a lane and a control connection as queues, and everything that
// may happen next. The test visits every state that a sequence of events reaches.

// script is what one end's own socket does: n bytes, then the finish.
type script struct {
	n      int
	finish byte // 'e': end; 'r': reset
}

type packet struct {
	kind   byte // lane: 'a' ATTACH, 'd' DATA, 'e' END. Control: 'k' ACK, 'r' RESET, 'g' GONE
	offset uint64
	flag   bool
	bytes  string
	crc    uint32
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
	lane   []packet
	ctl    []packet // what is under way to this end
}

type world struct {
	ends     [2]end
	laneUp   bool
	laneLoss int // that may still happen
	ctlLoss  int
	doubles  int
	aborts   int
	aborted  bool
	noResume bool
	trace    *history
}

type noBudget struct{}

func (noBudget) Take(int) bool { return true }
func (noBudget) Give(int)      {}
func (noBudget) Force(int)     {}

func content(side, i int) byte { return byte('a' + side*13 + i) }

func newWorld(a, b script, noResume bool, laneLoss, ctlLoss, doubles, aborts int) *world {
	w := &world{noResume: noResume, laneLoss: laneLoss, ctlLoss: ctlLoss, doubles: doubles, aborts: aborts}
	for i, s := range []script{a, b} {
		w.ends[i] = end{script: s}
		w.ends[i].flow.Init(noBudget{}, 1<<20)
		if noResume {
			w.ends[i].flow.NoResume()
		}
	}
	return w
}

func (w *world) clone(step string) *world {
	c := *w
	c.trace = &history{step, w.trace}
	for i := range c.ends {
		e := &c.ends[i]
		e.lane, e.ctl = slices.Clone(e.lane), slices.Clone(e.ctl)
		e.flow.Out.store.chunks = nil
		for _, k := range w.ends[i].flow.Out.store.chunks {
			k := *k
			k.buf = slices.Clone(k.buf)
			e.flow.Out.store.chunks = append(e.flow.Out.store.chunks, &k)
		}
	}
	return &c
}

// key holds everything in which two worlds may differ.
func (w *world) key() string {
	b := encode(nil, w.laneUp, w.laneLoss, w.ctlLoss, w.doubles, w.aborts, w.aborted)
	for i := range w.ends {
		e := &w.ends[i]
		f := &e.flow
		o, in := &f.Out, &f.In
		b = encode(b, e.read, e.fin, e.reset, e.got, e.shown, e.gone,
			o.base, o.acked, o.next, o.sent, o.length, o.attached, o.from, o.ended, o.endSent, o.endAcked, o.dropped,
			in.pos, in.ending, in.ended, in.cut, in.cutAt, in.cutEnd, in.dead,
			f.dead, f.cutBy.Code, f.byPeer, f.peerDead, f.resetDue, f.ackDue, f.ackFirst, f.acked, f.hurry)
		for _, queue := range [][]packet{e.lane, e.ctl} {
			b = encode(b, len(queue))
			for _, p := range queue {
				b = encode(b, p.kind, p.offset, p.flag, p.bytes)
			}
		}
	}
	return string(b)
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
	{"lane twice to 0", "lane twice to 1"}, {"control to 0", "control to 1"}, {"flush 0", "flush 1"}, {"abort 0", "abort 1"}}

// steps lists what may happen next without a loss, and the losses.
func (w *world) steps() (steps, losses []step) {
	for i := range w.ends {
		steps = append(steps, w.stepsOf(i)...)
	}
	if !w.laneUp && !w.ends[0].gone && (w.ends[0].flow.NeedsLane() || w.ends[1].flow.NeedsLane() && !w.ends[1].gone) {
		steps = append(steps, step{"attach", func(w *world) {
			w.laneUp = true
			if f := &w.ends[0].flow; !f.Out.InFlight() {
				_ = f.Attach(f.Out.base)
			}
			w.ends[1].lane = append(w.ends[1].lane, packet{kind: 'a', offset: w.ends[0].flow.In.pos})
		}})
	}
	if w.laneUp && w.laneLoss > 0 {
		losses = append(losses, step{"lose lane", func(w *world) { w.laneLoss--; w.dropLane() }})
	}
	if w.ctlLoss > 0 && len(w.ends[0].ctl)+len(w.ends[1].ctl) > 0 {
		losses = append(losses, step{"lose control", func(w *world) {
			w.ctlLoss--
			for i := range w.ends {
				w.ends[i].ctl = nil
				w.ends[i].flow.Resync()
			}
		}})
	}
	for i := range w.ends {
		if w.aborts > 0 && !w.ends[i].gone {
			losses = append(losses, step{names[7][i], func(w *world) {
				w.aborts--
				w.abort(i)
			}})
		}
	}
	return steps, losses
}

func (w *world) dropLane() {
	w.laneUp = false
	for i := range w.ends {
		f := &w.ends[i].flow
		w.ends[i].lane = nil
		lost := f.Out.AtRisk()
		if f.Detach(); lost {
			w.abort(i)
		}
	}
}

func (w *world) abort(i int) {
	w.aborted = true
	w.ends[i].flow.Abort(Cause{Code: 9})
}

func (w *world) stepsOf(i int) (all []step) {
	e, peer := &w.ends[i], 1-i
	if !e.gone && e.flow.Hungry() && !e.reset && e.read < e.script.n {
		all = append(all, step{names[0][i], func(w *world) {
			e := &w.ends[i]
			if len(e.flow.Out.store.chunks) == 0 { // a small one, since states are copied
				e.flow.Out.store.chunks = []*chunk{{buf: make([]byte, Headroom+8)}}
			}
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
	if item, ok := e.flow.Out.Item(); ok && !e.gone && w.laneUp {
		all = append(all, step{names[2][i], func(w *world) {
			item := item
			p := packet{kind: 'e', offset: item.Offset, crc: item.CRC}
			if !item.End {
				item.Bytes = item.Bytes[:1]
				p = packet{kind: 'd', offset: item.Offset, bytes: string(item.Bytes)}
			}
			w.ends[i].flow.Out.Sent(item)
			w.ends[peer].lane = append(w.ends[peer].lane, p)
		}})
	}
	if len(e.lane) > 0 {
		all = append(all, step{names[3][i], func(w *world) {
			p := w.ends[i].lane[0]
			w.ends[i].lane = w.ends[i].lane[1:]
			w.arriveLane(i, p)
		}})
		if w.doubles > 0 {
			all = append(all, step{names[4][i], func(w *world) {
				w.doubles--
				w.arriveLane(i, w.ends[i].lane[0])
			}})
		}
	}
	if len(e.ctl) > 0 {
		all = append(all, step{names[5][i], func(w *world) {
			p := w.ends[i].ctl[0]
			w.ends[i].ctl = w.ends[i].ctl[1:]
			w.arriveControl(i, p)
		}})
	}
	if !e.gone && (e.flow.ackDue || e.flow.resetDue || e.flow.Over()) {
		all = append(all, step{names[6][i], func(w *world) { w.flush(i) }})
	}
	return all
}

func (w *world) flush(i int) {
	e, peer := &w.ends[i], &w.ends[1-i]
	if a, ok := e.flow.TakeAck(); ok {
		peer.ctl = append(peer.ctl, packet{kind: 'k', offset: a.Received, flag: a.End})
	}
	if r, ok := e.flow.TakeReset(); ok {
		e.reset = true
		peer.ctl = append(peer.ctl, packet{kind: 'r', offset: r.Length, flag: r.End})
	}
	e.gone = e.flow.Over()
}

func (w *world) arriveLane(i int, p packet) {
	e := &w.ends[i]
	if e.gone {
		if p.kind == 'a' {
			w.ends[1-i].ctl = append(w.ends[1-i].ctl, packet{kind: 'g'})
		}
		return
	}
	var err error
	switch p.kind {
	case 'a':
		if i == 1 {
			e.flow.Detach() // it may come late, on a lane that was given up
		}
		if e.flow.Out.attached {
			err = e.flow.Ack(p.offset, false)
		} else if err = e.flow.Attach(p.offset); err == nil && i == 1 {
			w.ends[0].lane = append(w.ends[0].lane, packet{kind: 'a', offset: e.flow.In.pos})
		}
	case 'd':
		var b []byte
		if b, err = e.flow.In.Data(p.offset, []byte(p.bytes)); err == nil && len(b) > 0 && !e.reset {
			e.got += string(b)
			e.flow.Wrote(b)
		}
	case 'e':
		var pass bool
		if pass, err = e.flow.In.End(p.offset, p.crc); pass {
			e.shown = true
			e.flow.EndPassed()
		}
	}
	if w.noResume && p.kind == 'a' && err != nil {
		w.abort(i) // what the other end lacks is not kept
		err = nil
	}
	if err != nil {
		panic(fmt.Sprintf("%v of %+v at %d after %v", err, p, i, w.trace))
	}
	e.flow.ResetLocal()
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
	case p.kind == 'r':
		e.flow.PeerReset(p.offset, p.flag, Cause{Code: 2})
		e.flow.ResetLocal()
	case p.kind == 'g':
		e.flow.PeerGone(Cause{Code: 3})
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

func explore(t *testing.T, start *world) int {
	seen := map[string]bool{start.key(): true}
	queue := []*world{start}
	for len(queue) > 0 {
		w := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		steps, losses := w.steps()
		if len(steps) == 0 {
			w.checkFinal(t)
		}
		for _, s := range append(steps, losses...) {
			next := w.clone(s.name)
			s.apply(next)
			next.check(t)
			if k := next.key(); !seen[k] {
				seen[k] = true
				queue = append(queue, next)
			}
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
