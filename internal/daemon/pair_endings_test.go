package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/nettest"
	"longhaul/internal/relay"
)

// told is a process that others ask for endings, at a door.
type told struct {
	endings
	olderPair
}

var lastDoor atomic.Int64

func tells(t *testing.T, instance uint64) *told {
	t.Helper()
	name := fmt.Sprintf("@longhaul-test-%s-%d", instanceText(instance), lastDoor.Add(1))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	nettest.Must(t, err)
	one := &told{olderPair: olderPair{instanceText(instance), name, true}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if _, _, err := receivePassed(c); err != nil {
				t.Error(err)
			}
			one.admit(c)
		}
	})
	t.Cleanup(func() {
		l.Close()
		one.close(nil)
		running.Wait()
	})
	return one
}

// TestCloseWithoutPairs holds that a process whose configuration has no pairs, or whose start failed,
// ends before the one that it follows.
func TestCloseWithoutPairs(t *testing.T) {
	older := tells(t, 1)
	p := newPairs(slog.New(slog.DiscardHandler), "test", t.TempDir, func() *relay.Relay { return nil })
	p.follow([]olderPair{older.olderPair}, nil)
	done := make(chan struct{})
	go func() {
		p.close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it waits for the end of the older process")
	}
}
