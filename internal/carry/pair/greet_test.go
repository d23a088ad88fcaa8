package pair_test

import (
	"io"
	"slices"
	"sync"
	"testing"

	"longhaul/internal/carry/pair/preface"
	"longhaul/test/nettest"
)

// answersLate is a box that keeps back what the far relay answers on control connections, each until it is
// let go.
type answersLate struct {
	over chan struct{} // closed at the end
	mu   sync.Mutex
	all  []*lateAnswer // that something was kept back of, the first to come first
}

type lateAnswer struct {
	box     *answersLate
	hop     *hop
	to      io.Writer
	once    sync.Once
	until   chan struct{}
	release func() // closes it
}

func (b *answersLate) before(h *hop, w io.Writer, toFar bool) io.Writer {
	if toFar || preface.Kind(h.kind.Load()) != preface.Control {
		return w
	}
	until := make(chan struct{})
	return &lateAnswer{box: b, hop: h, to: onlyWriter{w}, until: until, release: sync.OnceFunc(func() { close(until) })}
}

func (a *lateAnswer) Write(b []byte) (int, error) {
	a.once.Do(func() {
		a.box.mu.Lock()
		defer a.box.mu.Unlock()
		a.box.all = append(a.box.all, a)
	})
	select {
	case <-a.until:
	case <-a.box.over:
	}
	return a.to.Write(b)
}

func (b *answersLate) kept() []*lateAnswer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.all)
}

// TestLateAttempt holds that of attempts for a control connection that run side by side the first to get an
// answer stands, and that a later one says nothing to the far relay, which takes the one that greets last.
func TestLateAttempt(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T) (*stand, *path){
		"after one that hangs": func(t *testing.T) (*stand, *path) {
			s := newStand(t)
			return s, s.path
		},
		"of any host of the site": func(t *testing.T) (*stand, *path) {
			st := newSite(t, 2, always(0))
			return st.stand, st.hosts[0].own
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := begin(t)
			s.serve(echo)
			nettest.Eventually(t, patience, func() bool { return s.session().Up }, s.dump)
			b := &answersLate{over: make(chan struct{})}
			t.Cleanup(func() { close(b.over) }) // before the path waits
			p.pass(b)
			nettest.Eventually(t, patience, func() bool { return len(b.kept()) >= 2 }, s.dump)
			late := b.kept()[0]
			nettest.Eventually(t, patience, func() bool {
				for _, a := range b.kept()[1:] {
					a.release()
				}
				return s.session().Up
			}, s.dump)
			carried := late.hop.carried.Load()
			late.release()
			nettest.Eventually(t, patience, func() bool { return !slices.Contains(p.of(preface.Control), late.hop) }, s.dump)
			if more := late.hop.carried.Load() - carried; more > 0 {
				t.Errorf("the late attempt has sent the far relay %d bytes", more)
			}
			c := s.dial()
			defer c.Close()
			s.roundTrip(c, "hello")
		})
	}
}
