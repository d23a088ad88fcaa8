package stream

import (
	"errors"
	"testing"
)

// feed reads b as if the flow's own socket had sent it.
func feed(t *testing.T, s *Sender, b string) {
	t.Helper()
	for len(b) > 0 {
		n := copy(s.Space(), b)
		if n == 0 {
			t.Fatalf("no room for %q", b)
		}
		s.Commit(n)
		b = b[n:]
	}
}

func TestSender(t *testing.T) {
	f := New(noBudget{}, 1<<20)
	feed(t, &f.Out, "hello")
	if _, ok := f.Out.Next(new(Lane), ChunkMax); ok {
		t.Error("an item without a lane")
	}
	if err := f.Attach(0); err != nil {
		t.Fatal(err)
	}
	item, ok := f.Out.Next(new(Lane), ChunkMax)
	if !ok || string(item.Bytes) != "hello" || item.Offset != 0 {
		t.Fatalf("%+v, %v", item, ok)
	}
	f.Out.Sent(item)
	if offset, b := f.Out.Peek(10); len(b) > 0 {
		t.Errorf("%q at %d are still to be sent", b, offset)
	}
	f.Detach()
	for _, c := range []struct {
		received uint64
		want     error
	}{{6, ErrDamaged}, {2, nil}, {1, nil}} {
		if err := f.Attach(c.received); !errors.Is(err, c.want) {
			t.Errorf("position %d: %v", c.received, err)
		}
	}
	if item, _ := f.Out.Next(new(Lane), ChunkMax); string(item.Bytes) != "llo" || item.Offset != 2 {
		t.Errorf("sent again: %+v", item)
	}
}

func TestSenderEnd(t *testing.T) {
	f := New(noBudget{}, 1<<20)
	_ = f.Attach(0)
	feed(t, &f.Out, "x")
	f.Out.End()
	if f.Out.Space() != nil {
		t.Error("room behind the end")
	}
	item, _ := f.Out.Next(new(Lane), ChunkMax)
	f.Out.Sent(item)
	end, ok := f.Out.Next(new(Lane), ChunkMax)
	if !ok || !end.End || end.Offset != 1 || end.CRC != sum(0, []byte("x")) {
		t.Fatalf("%+v", end)
	}
	f.Out.Sent(end)
	for _, c := range []struct {
		received uint64
		end      bool
		want     error
	}{{2, false, ErrDamaged}, {0, true, ErrDamaged}, {1, true, nil}} {
		if err := f.Ack(c.received, c.end); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if !f.Out.Done() || f.Out.Unacknowledged() {
		t.Error("not done")
	}
}

func TestReceiver(t *testing.T) {
	for _, c := range []struct {
		name   string
		offset uint64
		bytes  string
		want   string
		err    error
	}{
		{"in order", 3, "def", "def", nil},
		{"seen", 0, "abc", "", nil},
		{"half seen", 1, "bcde", "de", nil},
		{"a gap", 4, "e", "", ErrGap},
	} {
		f := New(noBudget{}, 1)
		f.Wrote([]byte("abc"))
		got, err := f.In.Data(c.offset, []byte(c.bytes))
		if string(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

// takeEnd takes the arrival of an end, and reports whether to pass it on at once.
func takeEnd(f *Flow, length uint64, crc uint32) (pass bool, err error) {
	if err := f.In.End(length, crc); err != nil {
		return false, err
	}
	return f.In.EndDue()
}

func TestReceiverEnd(t *testing.T) {
	right := sum(0, []byte("abc"))
	for _, c := range []struct {
		name   string
		length uint64
		crc    uint32
		before func(*Flow)
		pass   bool
		err    error
	}{
		{"right", 3, right, nil, true, nil},
		{"short", 2, right, nil, false, ErrDamaged},
		{"long", 4, right, nil, false, ErrDamaged},
		{"another sum", 3, right + 1, nil, false, ErrDamaged},
		{"twice", 3, right, func(f *Flow) { _, _ = takeEnd(f, 3, right) }, false, nil},
		{"behind a reset without end", 3, right, func(f *Flow) { f.PeerReset(3, false, Cause{}) }, false, nil},
		{"before a reset", 3, right, func(f *Flow) { f.PeerReset(3, true, Cause{}) }, true, nil},
		{"of a dead socket", 9, 0, func(f *Flow) { f.LocalReset(Cause{}) }, false, nil},
	} {
		f := New(noBudget{}, 1)
		f.Wrote([]byte("abc"))
		if c.before != nil {
			c.before(f)
		}
		if pass, err := takeEnd(f, c.length, c.crc); pass != c.pass || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v", c.name, pass, err)
		}
	}
	f := New(noBudget{}, 1)
	_, _ = takeEnd(f, 0, 0)
	if _, err := f.In.Data(0, []byte("x")); !errors.Is(err, ErrDamaged) {
		t.Errorf("bytes behind the end: %v", err)
	}
}

// TestPeerReset holds that bytes before a RESET are delivered, and none behind it.
func TestPeerReset(t *testing.T) {
	f := New(noBudget{}, 1)
	f.PeerReset(2, false, Cause{Code: 7})
	if f.ResetLocal() {
		t.Error("reset before the bytes")
	}
	b, err := f.In.Data(0, []byte("abc"))
	if string(b) != "ab" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	f.Wrote(b)
	if !f.ResetLocal() || !f.Dead() || f.Over() {
		t.Error("not reset behind the bytes")
	}
	if r, ok := f.TakeReset(); !ok || r.Cause.Code != 7 {
		t.Errorf("answer %+v, %v", r, ok)
	}
	if !f.Over() {
		t.Error("not over behind the answer")
	}
}

// TestFirstCause holds that a flow is cut by the cause that came first.
func TestFirstCause(t *testing.T) {
	a, b := Cause{Code: 1, Text: "a"}, Cause{Code: 2, Text: "b"}
	local := func(f *Flow) { f.LocalReset(a) }
	abort := func(f *Flow) { f.Abort(a) }
	reset := func(f *Flow) { f.PeerReset(0, false, b) }
	gone := func(f *Flow) { f.PeerGone(b) }
	for _, c := range []struct {
		name        string
		first, then func(*Flow)
		want        Cause
		byPeer      bool
	}{
		{"the own socket, then a RESET", local, reset, a, false},
		{"a RESET, then the own socket", reset, local, b, true},
		{"an abort, then a RESET", abort, reset, a, false},
		{"a RESET, then an abort", reset, abort, b, true},
		{"the own socket, then a flow that is not known", local, gone, a, false},
		{"a flow that is not known, then the own socket", gone, local, b, true},
	} {
		f := New(noBudget{}, 1)
		c.first(f)
		c.then(f)
		if got, byPeer := f.Cause(); got != c.want || byPeer != c.byPeer {
			t.Errorf("%s: %+v, by the peer %v", c.name, got, byPeer)
		}
	}
}

// limited is a budget of so many bytes.
type limited struct{ left, forced int }

func (l *limited) Take(n, held int) bool {
	if held+n <= chunkSizes[0] {
		l.forced += n
	} else if n > l.left {
		return false
	}
	l.left -= n
	return true
}
func (l *limited) Give(n int)  { l.left += n }
func (l *limited) Force(n int) { l.left -= n; l.forced += n }

func TestStore(t *testing.T) {
	budget := &limited{left: 1 << 20}
	f := New(budget, 1<<20)
	want := make([]byte, 300<<10)
	for i := range want {
		want[i] = byte(i >> 8)
	}
	for rest := want; len(rest) > 0; {
		n := copy(f.Out.Space(), rest)
		f.Out.Commit(n)
		rest = rest[n:]
	}
	_ = f.Attach(0)
	var got []byte
	for item, ok := f.Out.Next(new(Lane), ChunkMax); ok; item, ok = f.Out.Next(new(Lane), ChunkMax) {
		got = append(got, item.Bytes...)
		f.Out.Sent(item)
	}
	if string(got) != string(want) {
		t.Error("other bytes are sent than were read")
	}
	_ = f.Ack(uint64(len(want)), false)
	f.Out.Trim()
	if budget.left != 1<<20 {
		t.Errorf("%d bytes of the budget are kept", 1<<20-budget.left)
	}
}

// TestStoreWithoutBudget holds that each flow has what the budget gives in any case, and no
// more.
func TestStoreWithoutBudget(t *testing.T) {
	budget := &limited{}
	f := New(budget, 1<<20)
	n := 0
	for b := f.Out.Space(); b != nil; b = f.Out.Space() {
		f.Out.Commit(len(b))
		n += len(b)
	}
	if n != chunkSizes[0] || budget.forced != n {
		t.Errorf("%d bytes kept, %d beyond the budget", n, budget.forced)
	}
	f.Out.Keep(make([]byte, 10000))
	if kept := f.Out.Kept(); kept != int64(n+10000) {
		t.Errorf("%d bytes kept", kept)
	}
	f.Abort(Cause{})
	f.Out.Trim()
	if budget.left != 0 || f.Out.Kept() != 0 {
		t.Errorf("%d bytes are kept after the end", -budget.left)
	}
}

func TestLimit(t *testing.T) {
	f := New(noBudget{}, 10)
	_ = f.Attach(0)
	if n := len(f.Out.Space()); n != 10 {
		t.Errorf("room for %d bytes", n)
	}
	f.Out.Commit(10)
	if f.Out.Starved() || !f.Out.Full() {
		t.Error("starved before anything was sent")
	}
	item, _ := f.Out.Next(new(Lane), ChunkMax)
	f.Out.Sent(item)
	if !f.Out.Starved() {
		t.Error("not starved")
	}
	f.Out.SetLimit(20, endless, 1)
	if n := len(f.Out.Space()); n != 10 {
		t.Errorf("room for %d bytes", n)
	}
}

// TestNoResume follows a flow that does not resume: it keeps its bytes until a lane is
// proven, and nothing after that.
func TestNoResume(t *testing.T) {
	f := New(noBudget{}, 1<<20)
	f.NoResume()
	_ = f.Attach(0)
	send := func() {
		item, _ := f.Out.Next(new(Lane), ChunkMax)
		f.Out.Sent(item)
	}
	feed(t, &f.Out, "open")
	send()
	if f.Out.AtRisk() || f.Out.Passable() || f.Out.Kept() != 4 {
		t.Error("the lane counts as proven before an acknowledgement")
	}
	f.Detach()
	_ = f.Attach(0) // another lane
	send()
	_ = f.Ack(1, false)
	if !f.Out.AtRisk() || !f.Out.Passable() || f.Out.Kept() != 0 {
		t.Error("the lane does not count as proven")
	}
	f.Out.Take(10)
	if f.Out.Passable() || f.Quiet() {
		t.Error("bytes that are on their way do not count")
	}
	f.Out.Passed()
	if f.Out.Length() != 14 || f.Out.Kept() != 0 {
		t.Errorf("%d bytes, %d kept", f.Out.Length(), f.Out.Kept())
	}
	f.Out.End()
	item, _ := f.Out.Next(new(Lane), ChunkMax)
	if f.Out.Sent(item); !item.End || item.Offset != 14 || item.CRC != 0 {
		t.Errorf("the end is %+v", item)
	}
	lost := *f
	lost.Detach()
	if err := lost.Attach(13); !errors.Is(err, ErrDamaged) {
		t.Errorf("attached to lost bytes: %v", err)
	}
	_ = f.Ack(14, true)
	if f.Out.AtRisk() {
		t.Error("an acknowledged end is at risk")
	}
}

// TestNoResumeAcknowledges holds that a receiver acknowledges the first bytes of each lane
// and the end.
func TestNoResumeAcknowledges(t *testing.T) {
	f := New(noBudget{}, 1<<20)
	f.NoResume()
	for range 2 {
		_ = f.Attach(0)
		f.Passed(5)
		if n, urgent := f.AckWaiting(); n != 5 || !urgent {
			t.Errorf("%d bytes to acknowledge, urgent %v", n, urgent)
		}
		_, _ = f.TakeAck()
		f.Wrote([]byte("more"))
		if n, urgent := f.AckWaiting(); n != 0 || urgent {
			t.Errorf("%d bytes to acknowledge behind the first, urgent %v", n, urgent)
		}
		f.Detach()
		f.acked = f.In.pos
	}
	if pass, err := takeEnd(f, 18, 7); !pass || err != nil {
		t.Errorf("end: %v, %v", pass, err)
	}
	f.EndPassed()
	if a, ok := f.TakeAck(); !ok || !a.End || a.Received != 18 {
		t.Errorf("ACK %+v, %v", a, ok)
	}
	if f.In.Passable(18, 1) {
		t.Error("bytes behind the end may pass")
	}
}

// TestTaken: bytes on their way unseen have no copy. No lane gets them, and a lane that begins
// meanwhile cuts the flow.
func TestTaken(t *testing.T) {
	f := New(noBudget{}, 1<<20)
	f.NoResume()
	if err := f.Attach(0); err != nil {
		t.Fatal(err)
	}
	f.Out.Take(100)
	if f.Out.Pending() {
		t.Error("a lane is to carry bytes that nobody has")
	}
	if err := f.Attach(0); !errors.Is(err, ErrDamaged) {
		t.Errorf("another lane begins: %v", err)
	}
}

// TestSealedReceiver: what was announced has to come, and nothing beyond an end.
func TestSealedReceiver(t *testing.T) {
	f := New(noBudget{}, 1<<20)
	f.Seal(true)
	f.Told(10, false)
	if !f.NeedsLane() {
		t.Error("nothing asks for bytes that were announced")
	}
	g := New(noBudget{}, 1<<20)
	g.NoResume()
	g.Seal(true)
	if err := g.In.End(10, 0); err != nil {
		t.Fatal(err)
	}
	g.In.pos = 11 // it was on its way when the end came
	if _, err := g.In.EndDue(); !errors.Is(err, ErrDamaged) {
		t.Errorf("bytes beyond the end: %v", err)
	}
}
