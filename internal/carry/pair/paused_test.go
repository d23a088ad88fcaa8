package pair_test

import (
	"io"
	"net"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

// TestPausedReader holds that a client or a target that reads nothing for long costs no lane, in each
// mode: not what nobody acknowledges meanwhile, nor a lane that is to be given back.
func TestPausedReader(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		if m.older || m.compress {
			continue
		}
		for _, reader := range []string{"client", "target"} {
			t.Run(m.name+"/"+reader, func(t *testing.T) {
				t.Parallel()
				pausedReader(t, m, reader == "target")
			})
		}
	}
}

func pausedReader(t *testing.T, m mode, target bool) {
	s := newStand(t, m.in(), direct, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) {
		o.ParkAfter, o.LateNoResume = 100*time.Millisecond, 500*time.Millisecond
	})
	want := pattern(8<<20, 1)
	reads, got := make(chan struct{}), make(chan []byte, 1)
	send := func(c *net.TCPConn) {
		_, _ = c.Write(want)
		_ = c.CloseWrite()
	}
	receive := func(c *net.TCPConn) {
		<-reads
		b, _ := io.ReadAll(onlyReader{c})
		got <- b
	}
	s.serve(func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 5))
		_, _ = io.WriteString(c, "hello")
		if target {
			receive(c)
			return
		}
		send(c)
		_, _ = io.Copy(io.Discard, onlyReader{c})
	})
	c := s.dial()
	defer c.Close()
	s.roundTrip(c, "hello")
	if target {
		s.tasks.Go(func() { send(c) })
	} else {
		s.tasks.Go(func() { receive(c) })
	}
	f := s.flow(0)
	lasts := pair.PongWithin + pair.PongWithin/2 // longer than any answer
	nettest.Eventually(t, patience, func() bool { return f.Figures().Idle > lasts }, s.dump)
	before := s.session().Resumes + s.farNode().State().Sessions[0].Resumes
	close(reads)
	checkEqual(t, <-got, want)
	_ = c.CloseWrite() // where it has not sent
	s.ends(flow.EndClean)
	if before > 0 {
		t.Errorf("%d lanes were lost while the reader paused", before)
	}
}
