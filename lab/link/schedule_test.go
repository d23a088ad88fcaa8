package link_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"longhaul/lab/link"
	"longhaul/lab/linktest"
)

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
