package pair_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"longhaul/internal/carry/pair"
	"longhaul/test/hostile"
	"longhaul/test/nettest"
)

var noiseCount = flag.Int("noise", 100_000, "frames and messages at random that an authenticated peer sends")

// TestRandomFromPeer holds that no frame or message of an authenticated peer ends the process
// or leaves something behind: the far relay serves another session beside the noise and after
// it, and forgets all flows of the peer.
func TestRandomFromPeer(t *testing.T) {
	t.Parallel()
	count := *noiseCount
	if testing.Short() {
		count /= 10
	}
	s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.Trace = tracedAs("main") })
	s.serve(echo)
	noisy := newKeyring(t)
	s.farKeys.mu.Lock()
	s.farKeys.trust("noisy", noisy)
	s.farKeys.mu.Unlock()
	c := s.dial()
	defer c.Close()
	s.roundTrip(c, "before")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	attacker := &hostile.Attacker{Peer: hostile.NewPeer(addrOf(s.lanes), s.farKeys.public(), noisy.cert), Seed: 1, Count: count}
	done := make(chan hostile.Sent, 1)
	go func() {
		sent, err := attack(t, "random").Run(ctx, attacker)
		if err != nil {
			t.Error(err)
		}
		done <- sent
	}()
	nettest.Eventually(t, 10*time.Minute, func() bool {
		_ = c.SetDeadline(time.Now().Add(patience)) // of each round trip, however long the noise goes on
		s.roundTrip(c, "beside")
		return attacker.Sent().Messages >= int64(count)
	}, func() string { return fmt.Sprintf("sent only %+v", attacker.Sent()) })
	cancel()
	sent := <-done
	t.Logf("sent %+v", sent)
	_ = c.SetDeadline(time.Now().Add(patience))
	s.roundTrip(c, "after")
	nettest.Eventually(t, patience, func() bool { return s.far.Flows() == 1 }, func() string {
		return fmt.Sprintf("the far relay has %d flows, and %d goroutines run: %s", s.far.Flows(), runtime.NumGoroutine(), s.dump())
	})
}

// TestRandomFromFarPeer holds the same of a near relay whose far one sends noise: its clients
// are served or reset, and nothing is left behind.
func TestRandomFromFarPeer(t *testing.T) {
	t.Parallel()
	count := *noiseCount
	if testing.Short() {
		count /= 10
	}
	noisy := newKeyring(t)
	attacker := &hostile.Attacker{Far: hostile.NewFar(nettest.ListenTCP(t, "127.0.0.1:0"), noisy.cert), Seed: 1}
	s := newStand(t, func(s *stand, _ *pair.Options, lo *pair.LinkOptions) {
		s.nearKeys.trust("noisy", noisy)
		lo.Peer = "noisy"
		lo.Addresses = func(context.Context) ([]netip.AddrPort, error) {
			return []netip.AddrPort{addrOf(attacker.Far.Listener)}, nil
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := attack(t, "far-random").Run(ctx, attacker)
		done <- err
	}()
	for deadline := time.Now().Add(10 * time.Minute); attacker.Sent().Messages < int64(count); {
		if time.Now().After(deadline) {
			t.Fatalf("sent only %+v", attacker.Sent())
		}
		c := s.dial()
		_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond)) // the answer is noise, a reset, or nothing
		_, _ = c.Write(pattern(10_000, 1))
		_, _ = io.Copy(io.Discard, onlyReader{c})
		_ = c.SetLinger(0)
		c.Close()
	}
	cancel()
	nettest.Must(t, <-done)
	t.Logf("sent %+v", attacker.Sent())
}

func attack(t testing.TB, name string) hostile.Attack {
	t.Helper()
	for _, k := range hostile.Attacks() {
		if k.Name == name {
			return k
		}
	}
	t.Fatalf("no attack %q", name)
	return hostile.Attack{}
}
