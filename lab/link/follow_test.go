package link

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// idlePort is a port of a link without traffic.
type idlePort struct{}

func (idlePort) Name() string                                 { return "idle" }
func (idlePort) Index() int                                   { return 1 }
func (idlePort) Close() error                                 { return nil }
func (idlePort) descriptor() int                              { return -1 }
func (idlePort) receive([]byte) (vnetHeader, int, int, error) { return vnetHeader{}, 0, 0, errAgain }
func (idlePort) send(_ vnetHeader, _, _ []byte) error         { return nil }
func (idlePort) drops() uint64                                { return 0 }

// The changes of a schedule apply exactly when they are due, in any order; past
// ones apply at once. Each affects only its own directions. TestSetWhileRunning
// covers the effect of settings on packets.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := Settings{Delay: time.Millisecond}
		down, slow := up, Settings{Delay: 5 * time.Millisecond}
		down.Down = true
		l, err := New(idlePort{}, idlePort{}, up, slow)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		start := time.Now()
		done := make(chan error, 1)
		go func() {
			done <- l.Follow(t.Context(), start, []Change{
				{At: 3 * time.Second, AB: &up, BA: &slow},
				{At: 100 * time.Millisecond, AB: &down},
				{At: -time.Second, BA: &up},
			})
		}()
		for _, step := range []struct {
			at     time.Duration
			ab, ba Settings
		}{
			{0, up, up},
			{100*time.Millisecond - 1, up, up},
			{100 * time.Millisecond, down, up},
			{3*time.Second - 1, down, up},
			{3 * time.Second, up, slow},
		} {
			time.Sleep(time.Until(start.Add(step.at))) // on synctest's clock
			synctest.Wait()
			if diff := cmp.Diff([]Settings{step.ab, step.ba}, []Settings{l.Settings(AToB), l.Settings(BToA)}); diff != "" {
				t.Errorf("after %v the settings are not those of the schedule:\n%s", step.at, diff)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
