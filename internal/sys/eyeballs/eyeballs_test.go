package eyeballs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// at makes addresses of port 80 from the last number of each: "4.1" of IPv4, "6.1" of IPv6.
func at(names string) (all []netip.AddrPort) {
	for _, n := range strings.Fields(names) {
		last := n[2:]
		a := netip.MustParseAddr("192.0.2." + last)
		if n[0] == '6' {
			a = netip.MustParseAddr("2001:db8::" + last)
		}
		all = append(all, netip.AddrPortFrom(a, 80))
	}
	return all
}

func named(addrs []netip.AddrPort) string {
	var all []string
	for _, a := range addrs {
		s := a.Addr().String()
		name := "4." + s[strings.LastIndexAny(s, ".")+1:]
		if a.Addr().Is6() {
			name = "6." + s[strings.LastIndexAny(s, ":")+1:]
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

func TestOrder(t *testing.T) {
	for _, test := range []struct {
		addrs string
		turn  uint
		want  string
	}{
		{"4.1", 7, "4.1"},
		{"6.1 4.1", 0, "6.1 4.1"},
		{"6.1 4.1", 1, "6.1 4.1"}, // the family that the resolver prefers stays first
		{"4.1 6.1", 1, "4.1 6.1"},
		{"6.1 6.2 6.3 4.1", 0, "6.1 4.1 6.2 6.3"},
		{"6.1 6.2 4.1 4.2", 0, "6.1 4.1 6.2 4.2"},
		{"6.1 6.2 4.1 4.2 4.3", 1, "6.2 4.2 6.1 4.3 4.1"},
		{"4.1 4.2 4.3", 2, "4.3 4.1 4.2"},
		{"", 0, ""},
	} {
		for name, h := range map[string]*Host{"nobody": nil, "a new host": New(Options{})} {
			if got := named(h.Order(nil, at(test.addrs), test.turn)); got != test.want {
				t.Errorf("%s orders %q by turn %d as %q, want %q", name, test.addrs, test.turn, got, test.want)
			}
		}
	}
}

// world has addresses that answer after a time, or not at all, on synctest's clock.
type world struct {
	t     *testing.T
	host  *Host
	addrs []netip.AddrPort
	ended sync.WaitGroup

	within time.Duration // bounds a connect

	mu     sync.Mutex
	rtt    map[netip.AddrPort]time.Duration // missing: no answer; negative: refused
	asked  int                              // checks
	said   []string
	begun  []netip.AddrPort // attempts
	stands int              // connections that stood
	taken  int              // of them were dropped
}

var errRefused = errors.New("refused")

func newWorld(t *testing.T, addrs string) *world {
	w := &world{t: t, addrs: at(addrs), within: 5 * time.Second, rtt: map[netip.AddrPort]time.Duration{}}
	w.host = New(Options{
		Background: func(check func(context.Context)) { w.ended.Go(func() { check(t.Context()) }) },
		Ask: func(ctx context.Context, a netip.AddrPort) error {
			w.mu.Lock()
			w.asked++
			w.mu.Unlock()
			return w.answer(ctx, a)
		},
		Changed: func(f Family) { w.said = append(w.said, fmt.Sprintf("%s %v", f.Name, f.Dead)) },
	})
	return w
}

func (w *world) set(name string, rtt time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if rtt == 0 {
		delete(w.rtt, at(name)[0])
		return
	}
	w.rtt[at(name)[0]] = rtt
}

func (w *world) answer(ctx context.Context, a netip.AddrPort) error {
	w.mu.Lock()
	rtt, ok := w.rtt[a]
	w.mu.Unlock()
	if rtt < 0 {
		return errRefused
	}
	if !ok {
		rtt = time.Hour
	}
	select {
	case <-time.After(rtt):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dial connects, and returns which address it came to and how long that took.
func (w *world) dial() (to string, took time.Duration) {
	w.t.Helper()
	w.begun = nil
	began := time.Now()
	ctx, cancel := context.WithTimeout(w.t.Context(), w.within)
	defer cancel()
	_, a, err := Dial(ctx, w.host, w.host.Order(nil, w.addrs, 0), func(ctx context.Context, a netip.AddrPort) (int, error) {
		w.mu.Lock()
		w.begun = append(w.begun, a)
		w.mu.Unlock()
		err := w.answer(ctx, a)
		if err == nil {
			w.mu.Lock()
			w.stands++
			w.mu.Unlock()
		}
		return 0, err
	}, func(int) {
		w.mu.Lock()
		w.taken++
		w.mu.Unlock()
	})
	if err != nil {
		w.t.Fatal(err)
	}
	took = time.Since(began)
	synctest.Wait()
	return named([]netip.AddrPort{a}), took
}

// TestDeadFamily: only the first connection waits for a family that does not answer. A check in the
// background finds out that it is back.
func TestDeadFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "6.1 4.1")
		w.set("4.1", 20*time.Millisecond)
		expect := func(want string, within time.Duration) {
			t.Helper()
			if to, took := w.dial(); to != want || took != within {
				t.Fatalf("connected to %s after %v, want %s after %v", to, took, want, within)
			}
		}
		expect("4.1", AttemptDelay+20*time.Millisecond)
		for range 5 {
			expect("4.1", 20*time.Millisecond)
			if len(w.begun) != 1 {
				t.Fatalf("attempts at %s, want one", named(w.begun))
			}
		}
		w.ended.Wait()
		expect("4.1", 20*time.Millisecond)
		if want := []string{"IPv6 true"}; !slices.Equal(w.said, want) || len(w.host.Dead()) != 1 || w.host.Dead()[0].To != w.addrs[1] {
			t.Fatalf("said %v, dead %v", w.said, w.host.Dead())
		}
		// However long it is dead and however many connections there are, checks are few.
		for range 1000 {
			time.Sleep(time.Second)
			expect("4.1", 20*time.Millisecond)
		}
		if w.asked > 9 {
			t.Errorf("%d checks in 1000 s", w.asked)
		}
		w.set("6.1", 10*time.Millisecond)
		time.Sleep(maxWait)
		expect("4.1", 20*time.Millisecond) // it begins the check
		w.ended.Wait()
		expect("6.1", 10*time.Millisecond)
		if want := []string{"IPv6 true", "IPv6 false"}; !slices.Equal(w.said, want) || len(w.host.Dead()) != 0 {
			t.Errorf("said %v, dead %v", w.said, w.host.Dead())
		}
		w.ended.Wait()
	})
}

// TestUnusedFamilyIsChecked: a family that no connection uses is known to be dead before the other
// one dies.
func TestUnusedFamilyIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "4.1 6.1")
		w.set("4.1", time.Millisecond)
		w.dial()
		w.ended.Wait()
		if want := []string{"IPv6 true"}; !slices.Equal(w.said, want) || w.asked != 1 {
			t.Errorf("said %v after %d checks", w.said, w.asked)
		}
	})
}

func TestRaces(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		addrs     string
		rtt       map[string]time.Duration
		to        []string // of one connection after another
		took      []time.Duration
		attempts  []int
		connected int
	}{
		"both answer":        {"6.1 4.1", map[string]time.Duration{"6.1": 30 * ms, "4.1": ms}, []string{"6.1", "6.1"}, []time.Duration{30 * ms, 30 * ms}, []int{1, 1}, 2},
		"a long way":         {"6.1 4.1", map[string]time.Duration{"6.1": 600 * ms, "4.1": 600 * ms}, []string{"6.1", "6.1"}, []time.Duration{600 * ms, 600 * ms}, []int{2, 1}, 2},
		"refused":            {"6.1 4.1", map[string]time.Duration{"6.1": -1, "4.1": 5 * ms}, []string{"4.1", "4.1"}, []time.Duration{5 * ms, 5 * ms}, []int{2, 1}, 2},
		"slower by far":      {"6.1 4.1", map[string]time.Duration{"6.1": 500 * ms, "4.1": 5 * ms}, []string{"4.1", "4.1"}, []time.Duration{255 * ms, 5 * ms}, []int{2, 1}, 2},
		"one of many":        {"6.1 6.2 6.3 4.1", map[string]time.Duration{"6.3": 5 * ms}, []string{"6.3", "6.3"}, []time.Duration{755 * ms, 5 * ms}, []int{4, 1}, 2},
		"refused, then dead": {"6.1 4.1 4.2", map[string]time.Duration{"6.1": -1, "4.2": 5 * ms}, []string{"4.2", "4.2"}, []time.Duration{255 * ms, 5 * ms}, []int{3, 1}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, test.addrs)
				for a, rtt := range test.rtt {
					w.set(a, rtt)
				}
				for i := range test.to {
					to, took := w.dial()
					w.ended.Wait()
					if to != test.to[i] || took != test.took[i] || len(w.begun) != test.attempts[i] {
						t.Errorf("connection %d: %s after %v by attempts at %s, want %s after %v by %d", i, to, took, named(w.begun), test.to[i], test.took[i], test.attempts[i])
					}
				}
				if w.stands != test.connected || w.taken != 0 {
					t.Errorf("%d connections stood and %d were taken back, want %d and none", w.stands, w.taken, test.connected)
				}
			})
		})
	}
}

// TestMeasuredDelay: an address that has answered has less time, within bounds, and more if it is far.
func TestMeasuredDelay(t *testing.T) {
	for rtt, want := range map[time.Duration]time.Duration{
		time.Microsecond: minDelay, 40 * time.Millisecond: 80 * time.Millisecond,
		300 * time.Millisecond: 600 * time.Millisecond, time.Minute: maxDelay,
	} {
		h, a := New(Options{}), at("6.1")[0]
		h.Connected(a, rtt)
		if got := h.Delay(a); got != want {
			t.Errorf("with a round trip of %v the delay is %v, want %v", rtt, got, want)
		}
	}
}

// TestNothingAnswers: every address is tried within the time, with a bounded number of attempts at
// once. The error is that of the last address, and the end of the context ends them.
func TestNothingAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "6.1 6.2 6.3 6.4 6.5 4.1 4.2 4.3")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var tried, now, most atomic.Int32
		_, _, err := Dial(ctx, w.host, w.addrs, func(ctx context.Context, a netip.AddrPort) (int, error) {
			tried.Add(1)
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			return 0, w.answer(ctx, a)
		}, func(int) {})
		if !errors.Is(err, context.DeadlineExceeded) || tried.Load() != 8 || most.Load() > MaxBeside {
			t.Errorf("%d attempts, %d at once, %v", tried.Load(), most.Load(), err)
		}
		for a := range 8 {
			w.set(named(w.addrs[a:a+1]), -1)
		}
		if _, to, err := Dial(t.Context(), w.host, w.addrs, func(ctx context.Context, a netip.AddrPort) (int, error) {
			return 0, w.answer(ctx, a)
		}, func(int) {}); !errors.Is(err, errRefused) || to != w.addrs[7] {
			t.Errorf("%v: %v", to, err)
		}
		if _, _, err := Dial(t.Context(), w.host, nil, func(context.Context, netip.AddrPort) (int, error) { return 0, nil }, func(int) {}); err == nil {
			t.Error("connected to nothing")
		}
	})
}

// TestManySilent: whichever of many addresses answers, the first connection finds it in time, and the
// second one at once.
func TestManySilent(t *testing.T) {
	const names = "6.1 6.2 6.3 6.4 6.5 6.6 6.7 6.8"
	for at, name := range strings.Fields(names) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, names)
				w.set(name, 5*time.Millisecond)
				if to, took := w.dial(); to != name || took > w.within || len(w.begun) != at+1 {
					t.Errorf("connected to %s after %v by %d attempts", to, took, len(w.begun))
				}
				w.ended.Wait()
				if to, took := w.dial(); to != name || took != 5*time.Millisecond {
					t.Errorf("then connected to %s after %v", to, took)
				}
				if w.stands != 2 || w.taken != 0 {
					t.Errorf("%d connections stood, %d were taken back", w.stands, w.taken)
				}
				w.ended.Wait()
			})
		})
	}
}
