package link_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"longhaul/internal/lab/link"
	"longhaul/internal/lab/linktest"
	"longhaul/internal/nettest"
)

// Packets sent during a scheduled outage are lost, those before and after it
// are not, and what one direction is told leaves the other alone.
func TestFollow(t *testing.T) {
	nettest.CheckLeaks(t)
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		up := link.Settings{Delay: time.Millisecond}
		down := up
		down.Down = true
		slow := link.Settings{Delay: 5 * time.Millisecond}
		a, b, l := linktest.New(t, kind, 1500, up, up)
		start := time.Now()
		done := make(chan error, 1)
		go func() {
			done <- l.Follow(t.Context(), start, []link.Change{
				{At: 3 * time.Second, AB: &up, BA: &slow},
				{At: 100 * time.Millisecond, AB: &down},
				{At: -time.Second, BA: &up},
			})
		}()
		nettest.Eventually(t, 5*time.Second, func() bool { return l.Settings(link.AToB).Down }, func() string { return "no outage came" })
		if passed := time.Since(start); passed < 100*time.Millisecond {
			t.Errorf("the outage came after %v", passed)
		}
		if l.Settings(link.BToA) != up {
			t.Errorf("b-to-a is %+v during the outage of a-to-b", l.Settings(link.BToA))
		}
		// The SYN and its repetitions are lost until the outage ends.
		linktest.Connect(t, a, b, b.V4)
		if passed := time.Since(start); passed < 3*time.Second {
			t.Errorf("connected during the outage, after %v", passed)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if l.Counters(link.AToB).Outage == 0 || l.Counters(link.BToA).Outage != 0 {
			t.Errorf("lost in outages: %d and %d", l.Counters(link.AToB).Outage, l.Counters(link.BToA).Outage)
		}
		if l.Settings(link.AToB) != up || l.Settings(link.BToA) != slow {
			t.Errorf("the schedule ended with %+v and %+v", l.Settings(link.AToB), l.Settings(link.BToA))
		}
	})
}

func TestFollowRefusesAndEnds(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		_, _, l := linktest.New(t, kind, 1500, link.Settings{}, link.Settings{})
		good, bad := link.Settings{Delay: time.Second}, link.Settings{Delay: -1}
		err := l.Follow(t.Context(), time.Now(), []link.Change{{AB: &good}, {At: time.Hour, BA: &bad}})
		if err == nil || !strings.Contains(err.Error(), "change after 1h0m0s: b-to-a link settings: Delay") {
			t.Errorf("got %v", err)
		}
		if l.Settings(link.AToB) != (link.Settings{}) {
			t.Error("a change was made of a schedule that is refused")
		}
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		if err := l.Follow(ctx, time.Now(), []link.Change{{At: time.Hour, AB: &good}}); !errors.Is(err, why) {
			t.Errorf("after cancellation: %v", err)
		}
	})
}
