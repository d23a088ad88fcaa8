package pair

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
	var near *Flow
	before := [2]map[*lane]uint64{{}, {}}
	moved := func() (main, further [2]bool) {
		near.mu.Lock()
		defer near.mu.Unlock()
		for way, each := range [2][]laneBytes{near.acknowledgedEach(), near.receivedEach()} {
			for i, l := range each {
				// A paused lane still carries small frames.
				if l.bytes-before[way][l.of] > 32<<10 {
					main[way], further[way] = main[way] || i == 0, further[way] || i > 0
				}
				before[way][l.of] = l.bytes
			}
		}
		return main, further
	}
	both, neither := [2]bool{true, true}, [2]bool{}
	several := func() bool {
		main, further := moved()
		return main == both && further == both
	}
	nettest.Eventually(t, 30*time.Second, func() bool {
		flows := s.link.current().allFlows()
		if len(flows) == 0 {
			return false
		}
		near = flows[0]
		return several()
	}, s.dump)

	pausing, stop := context.WithCancel(t.Context())
	defer stop()
	word := func(alone bool) {
		near.mu.Lock()
		defer near.mu.Unlock()
		near.pauseHere(alone, time.Now())
		near.pauseThere(alone)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ticker := time.NewTicker(tickEvery / 2); pausing.Err() == nil; <-ticker.C {
			word(true)
		}
	}()
	nettest.Eventually(t, 30*time.Second, func() bool {
		main, further := moved()
		return main == both && further == neither
	}, s.dump)
	stop()
	<-stopped
	word(false)
	nettest.Eventually(t, 30*time.Second, several, s.dump)
}
