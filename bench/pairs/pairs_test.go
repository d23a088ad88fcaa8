package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/pattern"
	"longhaul/lab/sandbox"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	nettest.AtOnce(8) // most of them wait
	nettest.MainWithoutLeaks(m)
}

// prepare skips the test outside a sandbox, and returns the options of a run.
func prepare(t *testing.T) kit.Options {
	t.Helper()
	nettest.RequireSandbox(t)
	nettest.Must(t, sandbox.PrivateRun())
	return kit.Options{Program: nettest.Longhaul(t), Quick: true, Repeat: 1}
}

// Bytes pass on every way that this machine has, both ways.
func TestWaysCarryBytes(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	for _, way := range append(pairsSuite().Ways(), stripesSuite().Ways()...) {
		t.Run(way, func(t *testing.T) {
			if reason := missing(way); reason != "" {
				t.Skip(reason)
			}
			t.Parallel()
			w, err := newWorld(t.Context(), o, conditions(2*time.Millisecond, 1e9), way, tcpserver.Echo)
			if err != nil {
				t.Fatal(err)
			}
			defer w.close()
			all, err := w.open(t.Context(), 3)
			if err != nil {
				t.Fatal(err)
			}
			all.close()
			cpu, err := cpuTime(w.pids())
			if err != nil || (cpu > 0) != (way != WayDirect && way != WayMPTCP) {
				t.Errorf("the way has used %v of CPU: %v", cpu, err)
			}
		})
	}
}

// A crowd meets an outage, and every byte of it arrives once.
func TestCrowdThroughAnOutage(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	w, c, err := crowded(t.Context(), o, WayPlain, crowdOptions{flows: 8, opening: 200 * time.Millisecond, minLife: 300 * time.Millisecond, maxLife: 2 * time.Second,
		pace: pace{every: 20 * time.Millisecond, bytes: 3000}, seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	over, err := w.outage(t.Context(), 300*time.Millisecond)
	if err == nil {
		err = w.settle(t.Context(), c, over)
	}
	late := c.laterBy(over)
	c.finish()
	if err != nil {
		t.Fatal(err)
	}
	got := c.tally()
	if got.refused+got.cut+got.wrong > 0 || got.lost > 0 || got.flows < 8 {
		t.Errorf("%+v", got)
	}
	if len(late) == 0 {
		t.Error("no side received anything after the outage")
	}
	up, down := int64(0), int64(0)
	for _, f := range c.flows {
		up, down = up+f.client.sent, down+f.target.sent
	}
	if up == 0 || down == 0 {
		t.Errorf("the flows sent %d bytes up and %d down", up, down)
	}
}

// A crowd whose relay dies does not wait for its flows.
func TestCrowdOfADeadRelay(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	w, c, err := crowded(t.Context(), o, WayPlain, crowdOptions{flows: 5, opening: time.Millisecond, minLife: time.Hour, maxLife: time.Hour, once: true, pace: steady, seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	nettest.Must(t, w.far().Kill())
	nettest.Must(t, w.startRelay(t.Context(), w.far()))
	answers := time.Now()
	served := w.tryNew(t.Context(), c, answers.Add(200*time.Millisecond))
	w.noteResets(c, answers, func(m kit.Measured) {
		if m.Name == "flows not reset" && m.Value != 0 || m.Name == "flows" && m.Value != 5 {
			t.Errorf("%+v", m)
		}
	})
	c.finish()
	if got := c.tally(); got.cut != 5 {
		t.Errorf("%+v, want 5 cut flows", got)
	}
	for _, a := range served {
		if a.err != nil {
			t.Errorf("a new flow failed: %v", a.err)
		}
	}
}

// A NAT that has forgotten a connection drops its packets both ways.
func TestForgottenConnectionIsDead(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	w, err := newWorld(t.Context(), o, conditions(2*time.Millisecond, 1e9), WayPlain, tcpserver.Echo)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	all, err := w.open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer all.close()
	n, err := w.forgetFor(t.Context(), time.Millisecond, everyConnection)
	if err != nil || n != 2 {
		t.Fatalf("%d connections forgotten, want 2: %v", n, err)
	}
	conn := all[0]
	nettest.Must(t, write(conn, []byte{1}))
	nettest.Must(t, conn.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("an echo came over a forgotten connection")
	}
	fresh, err := w.open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	fresh.close()
}

func TestTally(t *testing.T) {
	done := func(sent, got int64) account { return account{sent: sent, got: got, ended: true, sawEnd: true} }
	for _, tt := range []struct {
		name           string
		client, target account
		want           tally
	}{
		{"whole", done(10, 20), done(20, 10), tally{}},
		{"lost", done(10, 20), done(20, 7), tally{lost: 3}},
		{"doubled", done(10, 25), done(20, 10), tally{lost: 5}},
		{"reset", account{sent: 10, err: syscall.ECONNRESET}, account{got: 3, err: syscall.ECONNRESET}, tally{cut: 1}},
		{"wrong", account{sent: 10, err: fmt.Errorf("at 3: %w", errWrong)}, done(20, 10), tally{wrong: 1}},
		{"short, with a clean end", account{sent: 10, err: syscall.EPIPE}, account{got: 3, sawEnd: true, ended: true}, tally{wrong: 1}},
		{"reset that a write was told of", account{sent: 10, err: syscall.ECONNRESET, sawEnd: true}, account{err: syscall.ECONNRESET}, tally{cut: 1}},
		{"hangs", account{sent: 10, err: fmt.Errorf("read: %w", os.ErrDeadlineExceeded)}, account{got: 3}, tally{hung: 1}},
		{"never at the target", account{sent: 10, err: syscall.ECONNRESET}, account{}, tally{cut: 1}},
	} {
		var got tally
		got.count(&flow{client: side{account: tt.client}, target: side{account: tt.target}})
		if (got.example == "") != (fmt.Sprint(tt.want) == fmt.Sprint(tally{})) {
			t.Errorf("%s: the example is %q", tt.name, got.example)
		}
		if got.example = ""; fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestReasons(t *testing.T) {
	got := tally{reasons: []string{
		reasonOf(nil), reasonOf([]string{"msg=flow client=10.0.0.1:5 elapsed_seconds=1 end=peer-restarted ended_by=relay", "msg=flow client=10.0.0.1:5 end=end"}), reasonOf(nil),
		reasonOf([]string{"msg=flow client=10.0.0.1:5 end=end"}),
	}}.said()
	if want := "1 end, 2 nothing, 1 peer-restarted"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestLinesSince(t *testing.T) {
	lines := []string{"msg=x", "msg=flow start=2026-11-27T08:31:59.407Z end=end", "msg=flow start=2026-11-27T08:31:59.408Z end=reset", "msg=flow start=2026-11-27T08:32:00Z end=end"}
	got := linesSince(lines, time.Date(2026, 11, 27, 8, 31, 59, 408_700_000, time.UTC))
	if len(got) != 3 || got[1] != "msg=flow start=2026-11-27T08:31:59.408Z end=reset" {
		t.Errorf("%q", got)
	}
}

func TestLaterBy(t *testing.T) {
	at := func(seconds float64) time.Time { return time.Unix(1000, int64(seconds*1e9)) }
	s := side{account: account{arrivals: []time.Time{at(1), at(2), at(25)}}}
	for _, tt := range []struct {
		moment, late float64
		ok           bool
	}{{0, 1, true}, {2, 0, true}, {2.5, 22.5, true}, {25.1, 0, false}} {
		late, ok := s.laterBy(at(tt.moment))
		if ok != tt.ok || late != time.Duration(tt.late*1e9) {
			t.Errorf("after %v s: %v, %t", tt.moment, late, ok)
		}
	}
	if _, ok := (&side{}).laterBy(at(0)); ok {
		t.Error("a side without bytes went on")
	}
}

func TestReadPattern(t *testing.T) {
	send := func(b []byte) (int64, error) {
		near, far := net.Pipe()
		go func() {
			_ = write(far, b)
			far.Close()
		}()
		defer near.Close()
		return readPattern(near, 100, nil)
	}
	whole := make([]byte, 100)
	copyPattern(whole)
	if n, err := send(whole); n != 100 || err != nil {
		t.Errorf("whole: %d, %v", n, err)
	}
	if n, err := send(whole[:60]); n != 60 || !errors.Is(err, io.EOF) {
		t.Errorf("short: %d, %v", n, err)
	}
	whole[30]++
	if _, err := send(whole); !errors.Is(err, errWrong) {
		t.Errorf("wrong: %v", err)
	}
}

func copyPattern(b []byte) {
	near, far := net.Pipe()
	go func() {
		_ = sendPattern(far, int64(len(b)))
		far.Close()
	}()
	_, _ = io.ReadFull(near, b)
	near.Close()
}

func TestNoteStart(t *testing.T) {
	c := conditions(longRTT, longRateBps)
	second := int64(c.LimitBps() / 8)
	got := []arrival{{300 * time.Millisecond, 1000}, {700 * time.Millisecond, second / 4}, {1300 * time.Millisecond, second / 2}, {1301 * time.Millisecond, second}}
	noteStart(func(m kit.Measured) {
		if m.Name != "up: first second, of the limit" || fmt.Sprintf("%.3f", m.Value) != "0.500" {
			t.Errorf("%+v", m)
		}
	}, "up", got, c)
}

func TestStriped(t *testing.T) {
	var s striped
	for i := range 60 { // 100 bytes a second, 1000 from 2 s on, and a pause of a tick
		at := time.Duration(i) * stripeTick
		total := int64(10 * i)
		if at > 2*time.Second {
			total += int64(90 * (i - 20))
		}
		if i != 40 {
			s.arrived = append(s.arrived, arrival{at, total})
		}
	}
	for rate, want := range map[float64]time.Duration{100: 0, 990: 2 * time.Second, 1010: 5900 * time.Millisecond} {
		if got := s.reached(rate); got != want {
			t.Errorf("%v bytes a second after %v, want %v", rate, got, want)
		}
	}
	if got := s.rateOfLast(3 * time.Second); got != 1000 {
		t.Errorf("%v bytes a second in the last 3 s", got)
	}
}

func TestNoteServed(t *testing.T) {
	answers := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return answers.Add(time.Duration(seconds * 1e9)) }
	values := map[string]float64{}
	noteServed([]attempt{{at(0.1), time.Second, nil}, {at(0.5), time.Second / 10, nil}, {at(0.9), 0, io.EOF}, {at(1.5), 0, io.EOF}}, answers,
		func(m kit.Measured) { values[m.Name] = m.Value })
	if fmt.Sprint(values) != "map[first new flow served, after its answer:0.6 new flows failed, from 1 s after it:1]" {
		t.Error(values)
	}
}

// An interrupt ends a run soon.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if err := outage(ctx, o, WayDirect, 1, func(kit.Measured) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A soak of some seconds breaks no rule.
func TestSoak(t *testing.T) {
	o := prepare(t)
	o.Time = 2 * time.Second // no relay dies so soon
	if reason := missing(WayPair); reason != "" {
		t.Skip(reason)
	}
	c := kit.CaseResult{}
	if err := soak(t.Context(), o, WayPair, 1, func(m kit.Measured) { c.Add(WayPair, m) }); err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Figures {
		if f.OK != nil && !*f.OK {
			t.Errorf("%s: %v, like %s", f.Name, f.Runs, f.First)
		}
	}
	if flows := c.Of(WayPair, "flows"); len(flows) != 1 || flows[0] < 40 {
		t.Errorf("%v flows", flows)
	}
}

// A flow goes on when the near site gets another address, and none of the bytes that the
// path alters reaches it.
func TestFlowsOutlastTheSoaksFaults(t *testing.T) {
	t.Parallel()
	o := prepare(t)
	if reason := missing(WayPair); reason != "" {
		t.Skip(reason)
	}
	w, err := buildWorld(t.Context(), o, lab.TwoSites(conditions(10*time.Millisecond, soakRateBps)), WayPair, tcpserver.Echo, settings{})
	nettest.Must(t, err)
	defer w.close()
	conn, err := w.dial(t.Context())
	nettest.Must(t, err)
	defer conn.Close()
	nettest.Must(t, conn.SetDeadline(time.Now().Add(2*patience)))
	echoes := func(n int64) {
		t.Helper()
		sent := pattern.At(0, n)
		go func() { _, _ = conn.Write(sent) }()
		got := make([]byte, n)
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes did not come back whole: %v", n, w.errorf("%v", err))
		}
	}
	s := &soaking{w: w}
	echoes(1000)
	for range 3 {
		nettest.Must(t, s.readdress(t.Context(), nil))
		echoes(1000)
	}
	l := w.path().Link
	altered := func() uint64 { return l.Counters(link.AToB).Altered }
	was := l.Settings(link.AToB)
	altering := was
	altering.Alter = 0.01
	nettest.Must(t, l.Set(link.AToB, altering))
	for before := altered(); altered() < before+3; {
		echoes(100_000)
	}
	nettest.Must(t, l.Set(link.AToB, was))
	echoes(100_000)
}

func TestJudge(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(1000+int64(seconds), 0) }
	clean := func(sent, got int64) account { return account{sent: sent, got: got, ended: true, sawEnd: true} }
	reset := account{sent: 5, got: 3, err: syscall.ECONNRESET, failedAt: at(10)}
	for _, tt := range []struct {
		name           string
		client, target account
		mayCut         bool
		want           string
	}{
		{"whole", clean(10, 20), clean(20, 10), false, ""},
		{"lost", clean(10, 20), clean(20, 7), true, ruleLost},
		{"doubled", clean(10, 25), clean(20, 10), true, ruleLost},
		{"wrong", account{sent: 10, err: errWrong}, clean(20, 10), true, ruleWrong},
		{"short, with a clean end", account{sent: 10, err: syscall.EPIPE}, account{got: 3, sawEnd: true, ended: true}, true, ruleWrong},
		{"reset by nobody", reset, reset, false, ruleCut},
		{"reset by a death", reset, reset, true, ""},
		{"reset by the client", account{sent: 3, left: at(9)}, reset, false, ""},
		{"reset by the client, later", account{sent: 3, left: at(11)}, reset, false, ruleCut},
		{"reset by the client, as a clean end", account{sent: 3, left: at(9)}, account{got: 3, sawEnd: true}, true, ruleWrong},
		{"hangs", account{err: fmt.Errorf("read: %w", os.ErrDeadlineExceeded)}, account{}, true, ruleHang},
	} {
		rule, _ := judge(&flow{client: side{account: tt.client}, target: side{account: tt.target}}, tt.mayCut)
		if rule != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, rule, tt.want)
		}
	}
}

func TestMayCut(t *testing.T) {
	at := func(seconds float64) time.Time { return time.Unix(1000, int64(seconds*1e9)) }
	spells := []spell{
		{from: at(0), to: at(5)},
		{from: at(10), to: at(11), deadly: true}, // noticed at 15
		{from: at(30), to: at(31), deadly: true}, // in the outage, noticed at 44
		{from: at(29.5), to: at(40)},
		{from: at(60), deadly: true},
	}
	slices.SortFunc(spells, func(a, b spell) int { return a.from.Compare(b.from) })
	for _, tt := range []struct {
		from, to float64
		want     bool
	}{{1, 9, false}, {1, 10.5, true}, {14, 16, true}, {16, 20, false}, {43, 44, true}, {45, 50, false}, {45, 61, true}, {62, 63, true}} {
		if got := mayCut(spells, at(tt.from), at(tt.to)); got != tt.want {
			t.Errorf("%v to %v s: %t", tt.from, tt.to, got)
		}
	}
}

// A goodput that falls for half a second is a dip of that length.
func TestDips(t *testing.T) {
	var seen []arrival
	total := int64(0)
	for at := time.Duration(0); at <= 10*time.Second; at += progressTick {
		if at < 5*time.Second || at >= 5500*time.Millisecond {
			total += 1000
		}
		seen = append(seen, arrival{at, total})
	}
	usual, quiet := dipsOf(seen, 0, 4*time.Second, 0)
	if usual != 5000 || quiet.longest > 0 || quiet.second > 0 {
		t.Errorf("%v bytes in a bin, dips %+v", usual, quiet)
	}
	_, d := dipsOf(seen, 4*time.Second, 9*time.Second, usual)
	if d.longest < 0.39 || d.longest > 0.61 || d.second < 0.45 || d.second > 0.55 {
		t.Errorf("dips %+v, want 0.5 s and half of a second", d)
	}
}
