package main

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// Bytes in the hands of a stopped process stay there, and nobody is told; new connections
// go by the box.
func TestBoxStops(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	w, err := buildWorld(t.Context(), o, lab.TwoSites(conditions(2*time.Millisecond, 1e9)), WayPlain, tcpserver.Echo, settings{box: boxPort})
	nettest.Must(t, err)
	defer w.close()
	all, err := w.open(t.Context(), 3)
	nettest.Must(t, err)
	defer all.close()
	if lanes, controls := w.boxed.stopSome(rand.New(rand.NewPCG(1, 1)), 1); lanes != 3 || controls != 0 {
		t.Errorf("stopped %d lanes and %d control connections, want 3 and 0", lanes, controls)
	}
	nettest.Must(t, write(all[0], []byte{1}))
	nettest.Must(t, all[0].SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	if _, err := all[0].Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a flow behind a stopped process gets %v", err)
	}
	fresh, err := w.open(t.Context(), 1)
	nettest.Must(t, err)
	fresh.close()
}

// A pair's control connection is told from its lanes, and requests are answered through the
// box.
func TestStoppedBox(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	c := CaseResult{}
	got, err := boxTrial{lanes: 2, stops: 1, between: 200 * time.Millisecond, minLife: 100 * time.Millisecond, maxLife: time.Second, hang: time.Second}.run(
		t.Context(), o, WayPair, 1, func(m measured) { c.add(WayPair, m) })
	nettest.Must(t, err)
	if got.flows == 0 || got.refused+got.wrong > 0 || got.lost > 0 {
		t.Errorf("%+v", got)
	}
}

// Flows whose readers pause in an outage lose nothing.
func TestPausedReaders(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	p := &pausedTrial{fault: pausedOutage(pausedEarly + time.Second/2), lanes: 1, flows: 4}
	nettest.Must(t, atOnce(1, func(_ int, filling *sync.Mutex) error { return p.run(t.Context(), o, WayPair, 1, filling) }))
	if p.slow[0].flows != 2 || p.slow[1].flows != 2 {
		t.Errorf("%d flows up and %d down, want 2 and 2", p.slow[0].flows, p.slow[1].flows)
	}
	if got := p.outcome; got.flows != 4 || got.refused+got.cut+got.hung+got.wrong > 0 || got.lost > 0 {
		t.Errorf("%+v", got)
	}
}

// A connection that a firewall has forgotten carries nothing; its successor has a port
// that no forgotten one has.
func TestForgetConnections(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	w, err := newWorld(t.Context(), o, conditions(2*time.Millisecond, 1e9), WayPlain, tcpserver.Echo)
	nettest.Must(t, err)
	defer w.close()
	nettest.Must(t, w.ports(32768, 45000))
	all, err := w.open(t.Context(), 1)
	nettest.Must(t, err)
	defer all.close()
	nettest.Must(t, w.forgetConnections())
	nettest.Must(t, write(all[0], []byte{1}))
	nettest.Must(t, all[0].SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	if _, err := all[0].Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a forgotten flow gets %v", err)
	}
	fresh, err := w.open(t.Context(), 20)
	nettest.Must(t, err)
	fresh.close()
}

// After a NAT has given the near site another address, the far host does not know the
// connections that stood.
func TestRebind(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	nettest.RequireProgram(t, "nft", "nftables")
	w, err := newWorld(t.Context(), o, conditions(2*time.Millisecond, 1e9), WayPlain, tcpserver.Echo)
	nettest.Must(t, err)
	defer w.close()
	nettest.Must(t, w.translate(t.Context(), natAddresses[0]))
	all, err := w.open(t.Context(), 2)
	nettest.Must(t, err)
	defer all.close()
	nettest.Must(t, w.rebind(t.Context()))
	nettest.Must(t, write(all[0], []byte{1}))
	nettest.Must(t, all[0].SetReadDeadline(time.Now().Add(patience)))
	if n, err := io.ReadFull(all[0], make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes and %v over a connection that the far host does not know", n, err)
	}
	fresh, err := w.open(t.Context(), 1)
	nettest.Must(t, err)
	fresh.close()
}

// Relays are upgraded under short flows, and in an outage, and no byte is wrong.
func TestUpgradesUnderShortFlows(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	trial := &churnTrial{name: "20 ms", rtt: 20 * time.Millisecond, every: 50 * time.Millisecond, script: func(ctx context.Context, w *world, upgrade func(upgraded) error) error {
		for _, u := range upgradedRelays {
			if err := upgrade(u); err != nil {
				return err
			}
		}
		return w.upgradeInOutage(ctx, 0, time.Second, func() error { return upgrade(upgradedRelays[0]) })
	}}
	nettest.Must(t, runChurn(t.Context(), o, WayPair, 1, []*churnTrial{trial}))
	if got := trial.outcome; got.flows == 0 || got.refused+got.hung+got.wrong > 0 || got.lost > 0 {
		t.Errorf("%+v", got)
	}
	if len(trial.upgrades) != 4 {
		t.Errorf("upgrades: %v", trial.upgrades)
	}
}

func TestUpgradeBefore(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(1000+int64(seconds), 0) }
	trial := churnTrial{upgrades: []upgradeAt{{"far", at(1)}, {"near", at(5)}}}
	for seconds, want := range map[int]string{0: "none", 2: "far", 5: "far", 6: "near"} {
		if got := trial.before(at(seconds)); got != want {
			t.Errorf("after %d s: %s, want %s", seconds, got, want)
		}
	}
}

func TestSilence(t *testing.T) {
	at := func(seconds float64) time.Time { return time.Unix(1000, int64(seconds*1e9)) }
	for _, tt := range []struct {
		name     string
		arrivals []time.Time
		from, to float64
		want     float64
	}{
		{"no bytes", nil, 1, 5, 4},
		{"the last byte before", []time.Time{at(0), at(0.25), at(0.5), at(0.75)}, 1, 5, 0},
		{"the last byte before the last pause", []time.Time{at(0), at(1), at(2), at(3), at(9)}, 1, 10, 1},
		{"bytes before", []time.Time{at(0), at(0.5)}, 1, 5, 4},
		{"the first pause", []time.Time{at(0.5), at(4), at(5)}, 1, 6, 3},
		{"a pause between", []time.Time{at(1), at(2), at(5)}, 1, 6, 3},
		{"the last pause", []time.Time{at(1), at(2)}, 1, 6, 4},
	} {
		s := side{account: account{arrivals: tt.arrivals, gotAt: []int64{1, 2, 3, 4, 5}, readTo: at(tt.to)}}
		if got := s.silence(at(tt.from), 4); got != time.Duration(tt.want*1e9) {
			t.Errorf("%s: %v, want %v s", tt.name, got, tt.want)
		}
	}
}

// The messages of a flow that asks and answers take turns.
func TestMayWrite(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for _, tt := range []struct {
		name    string
		m       manner
		message int64
		got     int64
		want    bool
	}{
		{"streams", manner{}, 7, 0, true},
		{"the first question", manner{awaits: 10, asks: true}, 0, 0, true},
		{"the second question, without an answer", manner{awaits: 10, asks: true}, 1, 9, false},
		{"the second question", manner{awaits: 10, asks: true}, 1, 10, true},
		{"the first answer, to half a question", manner{awaits: 10}, 0, 5, false},
		{"the first answer", manner{awaits: 10}, 0, 10, true},
	} {
		s := side{account: account{got: tt.got}, came: make(chan struct{})}
		until := t.Context()
		if !tt.want {
			until = ended
		}
		if got := s.mayWrite(until, tt.m, tt.message); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
