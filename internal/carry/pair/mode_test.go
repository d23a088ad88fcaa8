package pair_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

var modes = []mode{
	{name: "tls"},
	{name: "clear", clear: true},
	{name: "tls, resume off", noResume: true},
	{name: "clear, resume off", clear: true, noResume: true},
	{name: "tls, lanes", lanes: 5},
	{name: "clear, lanes", clear: true, lanes: 5},
	{name: "clear, lanes, compressed", clear: true, compress: true, lanes: 5},
	{name: "clear, older", clear: true, older: true},
	{name: "clear, resume off, older", clear: true, noResume: true, older: true},
	{name: "clear, lanes, older", clear: true, lanes: 5, older: true},
}

// in makes both ends want the mode, and the near one many lanes early.
func (m mode) in() standOption {
	return func(s *stand, o *pair.Options, l *pair.LinkOptions) {
		s.clear, l.Clear, l.NoResume = m.clear, m.clear, m.noResume
		o.CompressAlways, l.Compress = m.compress, m.compress
		if m.older {
			o.Without = wire.FeatureSealed | wire.FeatureSums | wire.FeatureSent
		}
		if l.Lanes = max(m.lanes, 1); m.lanes > 1 {
			o.StripeAfter = 1
		}
	}
}

func eachMode(t *testing.T, test func(*testing.T, standOption)) {
	t.Parallel()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { test(t, m.in()) })
	}
}

// eachWithoutResume runs a test with lanes that are copied and with spliced ones.
func eachWithoutResume(t *testing.T, test func(*testing.T, standOption)) {
	t.Parallel()
	for _, m := range modes {
		if m.noResume {
			t.Run(m.name, func(t *testing.T) { test(t, m.in()) })
		}
	}
}

// TestBulk moves many bytes both ways at the same time, and uses lanes again.
func TestBulk(t *testing.T) {
	eachMode(t, func(t *testing.T, in standOption) {
		t.Parallel()
		s := newStand(t, in)
		s.serve(echo)
		for round := range 3 {
			c := s.dial()
			s.roundTrip(c, "hello")
			want := pattern(12<<20, byte(round))
			go func() {
				_, _ = c.Write(want)
				_ = c.CloseWrite()
			}()
			got, err := io.ReadAll(c)
			nettest.Must(t, err)
			checkEqual(t, got, want)
			c.Close()
			s.ends(flow.EndClean)
		}
		if st := s.near.State(); st.RetainedBytes != 0 {
			t.Errorf("%d bytes are kept after the last flow", st.RetainedBytes)
		}
	})
}

// TestUrgentByte sends an urgent byte behind bulk. It arrives, although splice stops before
// an urgent byte as if nothing had come.
func TestUrgentByte(t *testing.T) {
	eachMode(t, func(t *testing.T, in standOption) {
		t.Parallel()
		s := newStand(t, in)
		s.serve(echo)
		c := s.dial()
		defer c.Close()
		raw, err := c.SyscallConn()
		nettest.Must(t, err)
		for range 4 {
			s.roundTrip(c, string(pattern(64<<10, 1))) // by splice, if the mode has it
			nettest.Must(t, raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil) }))
			nettest.Must(t, err)
			got := make([]byte, 1)
			if _, err := io.ReadFull(c, got); err != nil || got[0] != '!' {
				t.Fatalf("%q, %v in place of the urgent byte", got, err)
			}
		}
	})
}

// TestLaneIsCut holds that a flow that does not resume ends with its lane by a reset at both
// peers, whether the lane was reset or ended in good order: never by an end.
func TestLaneIsCut(t *testing.T) {
	eachWithoutResume(t, func(t *testing.T, in standOption) {
		for name, break_ := range map[string]func(*path){"reset": func(p *path) { p.cut(false) }, "ended": (*path).end} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newStand(t, in)
				saw := make(chan error, 2)
				s.serve(func(c *net.TCPConn) { saw <- bothWays(c, nil) })
				c := s.dial()
				defer c.Close()
				broke := false
				breaks := func() {
					s.awaitProven()
					break_(s.path)
					broke = true
				}
				switch err := bothWays(c, breaks); {
				case !broke: // the target may never have been dialed
					t.Fatalf("%v, %s", err, s.dump())
				case err == nil:
					t.Error("the client sees an end")
				}
				if <-saw == nil {
					t.Error("the target sees an end")
				}
				s.ends(flow.EndWANLost)
				fresh := s.dial()
				defer fresh.Close()
				_, err := io.ReadFull(fresh, make([]byte, 1<<20))
				nettest.Must(t, err)
			})
		}
	})
}

// awaitProven waits until both ends of the flow keep nothing any more.
func (s *stand) awaitProven() {
	s.t.Helper()
	near, far := s.flow(0), s.dialedFor(0)
	nettest.Eventually(s.t, patience, func() bool {
		return near.Figures().BytesUp > 0 && far.Figures().BytesDown > 0 // acknowledged
	}, s.dump)
}

// bothWays sends and receives many bytes, and calls then after some of them. It returns the
// reset that either direction meets: the kernel tells it once.
func bothWays(c *net.TCPConn, then func()) error {
	sent := make(chan error, 1)
	go func() {
		var err error
		for chunk, n := pattern(256<<10, 1), 0; n < 1024 && err == nil; n++ {
			_, err = c.Write(chunk)
		}
		sent <- err
	}()
	if then != nil {
		if _, err := io.ReadFull(c, make([]byte, 4<<20)); err != nil {
			return fmt.Errorf("before the break: %w", err)
		}
		then()
	}
	_, received := io.Copy(io.Discard, onlyReader{c})
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second)) // behind an end
	if err := <-sent; !errors.Is(err, os.ErrDeadlineExceeded) {
		return cmp.Or(received, err)
	}
	return received
}

// TestOpenOnDeadLane holds that a flow that does not resume begins although the pool's lanes
// are dead: nothing is lost before the first acknowledgement.
func TestOpenOnDeadLane(t *testing.T) {
	needsDeaf(t)
	eachWithoutResume(t, func(t *testing.T, in standOption) {
		s := newStand(t, in)
		s.serve(echo)
		s.awaitWarm(2)
		s.path.deafen(preface.Lane)
		c := s.dial()
		defer c.Close()
		s.roundTrip(c, "hello")
	})
}

// TestEncryptDiffers holds that ends with different encrypt carry nothing and say why, and
// that a flow is carried once they agree.
func TestEncryptDiffers(t *testing.T) {
	t.Parallel()
	for name, clear := range map[string]bool{"near in clear": true, "far in clear": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var options pair.LinkOptions
			s := newStand(t, func(s *stand, _ *pair.Options, o *pair.LinkOptions) { s.clear, o.Clear, options = !clear, clear, *o }, direct,
				func(s *stand, _ *pair.Options, o *pair.LinkOptions) { options = *o; s.deadline = time.Second })
			s.serve(echo)
			nettest.Eventually(t, patience, func() bool { return s.near.State().Sessions[0].Problem == flow.PairEncrypt }, s.dump)
			c := s.dial()
			defer c.Close()
			if n, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
				t.Errorf("the client gets %d bytes, %v", n, err)
			}
			if e := <-s.nearEnds; e.Reason != flow.EndPairDown {
				t.Errorf("ended by %q", e.Reason)
			}
			if n := s.far.State().Strangers[flow.PairEncrypt]; n == 0 {
				t.Error("the far relay does not count it")
			}
			options.Clear = !clear
			s.link.Update(options)
			ready := func() bool { // within the client's second no handshake may be needed
				all := s.near.State().Sessions
				return all[len(all)-1].Up && all[len(all)-1].LanesWarm > 0
			}
			nettest.Eventually(t, patience, ready, s.dump)
			fresh := s.dial()
			defer fresh.Close()
			s.roundTrip(fresh, "hello")
		})
	}
}

// TestEncryptChanges holds that flows go on when first the far end and then the near one
// change encrypt, and that new ones wait for the second change.
func TestEncryptChanges(t *testing.T) {
	t.Parallel()
	var options pair.LinkOptions
	s := newStand(t, func(_ *stand, _ *pair.Options, o *pair.LinkOptions) { options = *o })
	c := s.begin("encrypted")
	s.setClear(true)
	problems := func() (all []flow.PairProblem) {
		for _, one := range s.near.State().Sessions {
			all = append(all, one.Problem)
		}
		return all
	}
	nettest.Eventually(t, patience, func() bool {
		p := problems()
		return len(p) == 2 && p[0] == "" && p[1] == flow.PairEncrypt
	}, s.dump)
	s.roundTrip(c, "still encrypted")
	s.path.refuse(preface.Control, false) // the older session gets another
	options.Clear = true
	s.link.Update(options)
	fresh := s.dial()
	defer fresh.Close()
	s.roundTrip(fresh, "in clear")
	nettest.Eventually(t, patience, func() bool {
		now := s.near.State().Sessions
		return len(now) == 2 && now[0].Up && now[0].Encrypted && now[1].Up && !now[1].Encrypted
	}, s.dump)
	s.roundTrip(c, "goes on")
}

// TestSealed holds that both ends say whether beginnings and ends of flows go in clear, and heads
// of frames without sums.
func TestSealed(t *testing.T) {
	eachMode(t, func(t *testing.T, in standOption) {
		t.Parallel()
		want := false
		s := newStand(t, in, func(_ *stand, o *pair.Options, l *pair.LinkOptions) { want = l.Clear && o.Without != 0 })
		s.awaitWarm(1)
		for _, n := range []*pair.Node{s.near, s.far} {
			if got := n.State().Sessions[0]; !got.Up || got.EndsInClear != want || got.HeadsUnchecked != want {
				t.Errorf("%+v, want ends in clear and heads unchecked: %v", got, want)
			}
		}
	})
}

// mode is how both ends carry flows.
type mode struct {
	name                      string
	clear, noResume, compress bool
	lanes                     int
	older                     bool // a release that has beginnings and ends on lanes in clear
}

// TestWithoutControl holds that a flow that does not resume goes on without a control connection, as a TCP
// connection does, and that one whose end lacks it for as long as flows wait is reset, although its lane
// stands.
func TestWithoutControl(t *testing.T) {
	t.Parallel()
	s := newStand(t, modes[3].in())
	s.serve(echo)
	goesOn, ends := s.dial(), s.dial()
	defer goesOn.Close()
	defer ends.Close()
	s.roundTrip(goesOn, "hello")
	s.roundTrip(ends, "hello")
	s.path.refuse(preface.Control, true)
	nettest.Eventually(t, patience, func() bool { return !s.session().Up }, s.dump)
	nettest.Must(t, ends.CloseWrite())
	if b, err := io.ReadAll(ends); err == nil || isTimeout(err) {
		t.Errorf("the client that has ended sees %q, %v", b, err)
	}
	s.roundTrip(goesOn, "still here")
	s.path.refuse(preface.Control, false)
	nettest.Eventually(t, patience, func() bool { return s.session().Up }, s.dump)
	nettest.Must(t, goesOn.CloseWrite())
	if b, err := io.ReadAll(goesOn); err != nil || len(b) > 0 {
		t.Errorf("the client that goes on sees %q, %v", b, err)
	}
}
