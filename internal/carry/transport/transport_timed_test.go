//go:build timed

package transport

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"longhaul/lab/link"
	"longhaul/test/nettest"
)

// With small sysctls the kernel alone leaves most of a path unused, and the
// tunnel fills it.
func TestFillsPath(t *testing.T) {
	a, b, ta, tb := pathWithSmallSysctls(t)
	const limit = narrowRate * 1448.0 / 1500
	nettest.MostOf(t, func() error {
		from, to := connect(t, a, b, ta, tb)
		defer from.Close()
		defer to.Close()
		with := transfer(t, from, to, 2*time.Second, 2*time.Second) / limit
		from, to = connect(t, a, b, nil, nil)
		defer from.Close()
		defer to.Close()
		without := transfer(t, from, to, time.Second, time.Second) / limit
		t.Logf("%.2f of the limit by the kernel alone, %.2f with the tunnel", without, with)
		if with < 0.85 {
			return fmt.Errorf("the tunnel reaches %.2f of the limit", with)
		}
		if ta.host.canForce && without > 0.5 {
			return fmt.Errorf("the kernel alone reaches %.2f of the limit, so this shows nothing", without)
		}
		return nil
	})
}

// The kernel gives up on a dead peer within the user timeout.
func TestUserTimeoutIsKept(t *testing.T) {
	a, b, l := newPath(t, link.Settings{Delay: time.Millisecond})
	tunnel := tunnelWithUserTimeout(t, a)
	up := l.Settings(link.AToB)
	nettest.MostOf(t, func() error {
		for _, dir := range []link.Direction{link.AToB, link.BToA} {
			if err := l.Set(dir, up); err != nil {
				return err
			}
		}
		quiet, _ := connect(t, a, b, tunnel, nil)
		takeDown(t, l)
		if _, err := quiet.Write([]byte("lost")); err != nil {
			return err
		}
		written := time.Now()
		nettest.Eventually(t, patience, func() bool { return !alive(quiet, t) }, func() string { return "nobody notices the peer that is gone" })
		if d := time.Since(written); d > userTimeout+time.Second/2 {
			return fmt.Errorf("given up after %v, want up to %v", d, userTimeout)
		}
		return nil
	})
}

// transfer sends from one leg to the other and returns the goodput after
// warmup, in bits per second.
func transfer(t *testing.T, from, to leg, warmup, measured time.Duration) float64 {
	t.Helper()
	go func() {
		buf := make([]byte, 256<<10)
		for {
			if _, err := from.Write(buf); err != nil {
				return
			}
		}
	}()
	read := func(d time.Duration) float64 {
		deadline := time.Now().Add(d)
		if err := to.SetReadDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		n, err := io.Copy(io.Discard, onlyReader{to})
		if !os.IsTimeout(err) {
			t.Fatal("the transfer ended:", err)
		}
		return float64(n) * 8 / time.Since(start).Seconds()
	}
	if warmup > 0 {
		read(warmup)
	}
	return read(measured)
}
