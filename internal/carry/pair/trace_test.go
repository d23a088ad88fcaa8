package pair_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/hostile"
	"longhaul/test/nettest"
)

// tracedAs answers TRACE by a relay with this tunnel.
func tracedAs(tunnel string) func(context.Context, flow.Carried) flow.Trace {
	return func(context.Context, flow.Carried) flow.Trace {
		return flow.Trace{Relays: []flow.TraceRelay{{Tunnel: tunnel}}}
	}
}

// bothEnds opens a flow and returns it as each relay has it.
func (s *stand) bothEnds() (near, far flow.Tracer) {
	s.t.Helper()
	s.roundTrip(s.dial(), "hello")
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flows[len(s.flows)-1], s.opens[len(s.opens)-1].Carried.(flow.Tracer)
}

// TestTrace holds that each relay gets the other one's part of a flow's trace, or a sentence that says why
// not, and that a question harms no flow.
func TestTrace(t *testing.T) {
	t.Parallel()
	late := make(chan struct{})
	release := sync.OnceFunc(func() { close(late) })
	for name, tt := range map[string]struct {
		answer  func(context.Context, flow.Carried) flow.Trace
		without wire.Features
		before  func(*stand)
		within  time.Duration // 0: as long as it takes
		want    string        // in the error; empty without one
	}{
		"answers":        {answer: tracedAs("main")},
		"nothing to say": {answer: func(context.Context, flow.Carried) flow.Trace { return flow.Trace{} }, want: "%s does not have the flow"},
		"nobody answers": {want: "%s does not have the flow"},
		"older relay":    {answer: tracedAs("main"), without: wire.FeatureTrace, want: "%s is of an older release, which answers no trace"},
		"late answer": {answer: func(context.Context, flow.Carried) flow.Trace {
			<-late
			return flow.Trace{}
		}, within: time.Millisecond, want: "%s has not answered in time"},
		"session down": {answer: tracedAs("main"), before: func(s *stand) {
			s.path.refuse(preface.Control, true)
			nettest.Eventually(s.t, patience, func() bool { return !s.session().Up && !s.far.State().Sessions[0].Up }, s.dump)
		}, want: "the session with %s is down: its part is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.Trace, o.Without = tt.answer, tt.without })
			s.serve(echo)
			if tt.within > 0 {
				t.Cleanup(release) // before the nodes close
			}
			near, far := s.bothEnds()
			for _, f := range []flow.Tracer{near, far} { // a lane at once is no outage
				if d := f.(flow.Carried).Figures().Outage.Duration(); d%time.Millisecond != 0 {
					t.Errorf("an outage of %v", d)
				}
			}
			if tt.before != nil {
				tt.before(s)
			}
			for peer, f := range map[string]flow.Tracer{"far": near, "near": far} {
				ctx, cancel := context.WithTimeout(t.Context(), max(tt.within, time.Millisecond))
				if tt.within == 0 {
					cancel()
					ctx, cancel = context.WithCancel(t.Context())
				}
				var trace flow.Trace
				var err error
				nettest.Eventually(t, patience, func() bool { // on a busy machine an answer may be late
					trace, err = f.Trace(ctx)
					return tt.within > 0 || err == nil || !strings.Contains(err.Error(), "in time")
				}, func() string { return "no answer comes in time" })
				cancel()
				want := fmt.Sprintf(tt.want, peer)
				switch {
				case tt.want == "":
					if err != nil || len(trace.Relays) != 1 || trace.Relays[0].Relay != peer || trace.Relays[0].Tunnel != "main" {
						t.Errorf("%s: %+v, %v", peer, trace, err)
					}
				case err == nil || err.Error() != want:
					t.Errorf("%s: %+v, %v, want %q", peer, trace, err, want)
				}
			}
			if tt.within > 0 {
				release()
			}
			s.path.refuse(preface.Control, false)
			s.bothEnds()
		})
	}
}

// TestTraceOfUnknownFlow holds that TRACE of a flow that the far relay has not heard of gets an empty answer,
// and no GONE: its OPEN may be under way.
func TestTraceOfUnknownFlow(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.Trace = tracedAs("main") })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	peer := s.hostilePeer()
	session, err := peer.Begin(ctx, peer.Hello(), hostile.Dialing{})
	nettest.Must(t, err)
	defer session.Control.Close()
	nettest.Must(t, session.Control.Send(wire.Message{Type: wire.MessageTrace, Flow: 7, Within: time.Second}))
	if m := nextOf(t, session, wire.MessageTraced); m.Flow != 7 || len(m.Bytes) > 0 {
		t.Errorf("the answer is %+v", m)
	}
}

// TestTracesAreBounded holds that of a flood of TRACEs one is answered at a time and maxTraces wait, and that
// the control connection is read all the same.
func TestTracesAreBounded(t *testing.T) {
	t.Parallel()
	const flows = 20
	var running, asked atomic.Int64
	release := make(chan struct{})
	s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) {
		o.Trace = func(ctx context.Context, c flow.Carried) flow.Trace {
			if running.Add(1) > 1 {
				t.Error("two traces are answered at the same time")
			}
			defer running.Add(-1)
			asked.Add(1)
			<-release
			return tracedAs("main")(ctx, c)
		}
	})
	s.serve(echo)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	peer := s.hostilePeer()
	session, err := peer.Begin(ctx, peer.Hello(), hostile.Dialing{})
	nettest.Must(t, err)
	defer session.Control.Close()
	for range flows {
		nettest.Must(t, session.Control.Send(session.OpenAhead([]byte("x"))))
	}
	nettest.Eventually(t, patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.opens) == flows
	}, s.dump)
	for range 50 {
		for id := range uint64(flows) {
			nettest.Must(t, session.Control.Send(wire.Message{Type: wire.MessageTrace, Flow: 1 + id, Within: time.Minute}))
		}
	}
	const mark = 4711
	nettest.Must(t, session.Control.Send(wire.Message{Type: wire.MessagePing, Bytes: binary.BigEndian.AppendUint64(nil, mark)}))
	nettest.Eventually(t, patience, func() bool { // all TRACEs were read
		return binary.BigEndian.Uint64(nextOf(t, session, wire.MessagePong).Bytes) == mark
	}, s.dump)
	close(release)
	for range pair.MaxTraces {
		if m := nextOf(t, session, wire.MessageTraced); !strings.Contains(string(m.Bytes), `"main"`) {
			t.Errorf("an answer is %+v", m)
		}
	}
	nettest.Must(t, session.Control.Send(wire.Message{Type: wire.MessageTrace, Flow: mark, Within: time.Second})) // behind all others
	for nextOf(t, session, wire.MessageTraced).Flow != mark {
	}
	if n := asked.Load(); n > pair.MaxTraces+1 {
		t.Errorf("%d traces were answered, at most %d may be", n, pair.MaxTraces+1)
	}
}

// nextOf is the next message of a type that the far relay sends.
func nextOf(t *testing.T, s *hostile.Session, want wire.MessageType) wire.Message {
	t.Helper()
	for {
		m, err := s.Control.NextMessage()
		nettest.Must(t, err)
		if m.Type == want {
			return m
		}
	}
}

// TestAskersAreBounded holds that this end asks for maxTraces flows of a session at most at a time.
func TestAskersAreBounded(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) {
		o.Trace = func(ctx context.Context, _ flow.Carried) flow.Trace {
			<-ctx.Done()
			return flow.Trace{}
		}
	})
	s.serve(echo)
	var flows []flow.Tracer
	for range 2 * pair.MaxTraces {
		near, _ := s.bothEnds()
		flows = append(flows, near)
	}
	var failed [2 * pair.MaxTraces]error
	nettest.Eventually(t, patience, func() bool { // again if the first ones have given up before the others began
		var asking sync.WaitGroup
		for i, f := range flows {
			asking.Go(func() { _, failed[i] = f.Trace(t.Context()) })
		}
		asking.Wait()
		return slices.ContainsFunc(failed[:], func(err error) bool { return err.Error() == "far is not asked: too many traces are under way" })
	}, func() string { return fmt.Sprint(failed) })
}
