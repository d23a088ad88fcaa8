package pair_test

import (
	"context"
	"io"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestLanesPause holds that the main lane alone carries a flow while the others are to pause,
// both ways, and that they carry it again after that.
func TestLanesPause(t *testing.T) {
	t.Parallel()
	s := newStand(t, striped(3))
	s.path.setPace(time.Millisecond)
	s.serve(echo)
	c := s.dial()
	go func() {
		for chunk := make([]byte, 64<<10); ; {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	}()
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, c)
	}()
	defer func() {
		_ = c.SetLinger(0)
		c.Close()
		<-read
	}()
	// moved reports which lanes carry bytes each way, from one call to the next.
	near := s.flow(0)
	before := [2]map[any]uint64{{}, {}}
	moved := func() (main, further [2]bool) {
		for way, each := range near.LaneBytes() {
			for i, l := range each {
				// A paused lane still carries small frames.
				if l.Bytes-before[way][l.Of] > 32<<10 {
					main[way], further[way] = main[way] || i == 0, further[way] || i > 0
				}
				before[way][l.Of] = l.Bytes
			}
		}
		return main, further
	}
	both, neither := [2]bool{true, true}, [2]bool{}
	several := func() bool {
		main, further := moved()
		return main == both && further == both
	}
	nettest.Eventually(t, 30*time.Second, several, s.dump)
	pausing, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ticker := time.NewTicker(50 * time.Millisecond); pausing.Err() == nil; <-ticker.C {
			near.Pause(true)
		}
	}()
	nettest.Eventually(t, 30*time.Second, func() bool {
		main, further := moved()
		return main == both && further == neither
	}, s.dump)
	stop()
	<-stopped
	near.Pause(false)
	nettest.Eventually(t, 30*time.Second, several, s.dump)
}
