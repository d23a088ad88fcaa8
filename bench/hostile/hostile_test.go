package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/test/hostile"
	"longhaul/test/nettest"
)

// The test binary is the attacker too.
func TestMain(m *testing.M) {
	if os.Getenv("HOSTILE_TEST_ROLE") != "" {
		main()
		return
	}
	nettest.Main(m)
}

// TestRelayHoldsItsBounds attacks a relay for a second each, with all that this machine has.
// It judges counts and memory; the program judges times as well, and all attacks.
func TestRelayHoldsItsBounds(t *testing.T) {
	b := bench{binary: nettest.Longhaul(t), dir: t.TempDir(), time: time.Second, memoryLimit: "256MB", seed: 1, progress: io.Discard, unleashed: true}
	t.Setenv("HOSTILE_TEST_ROLE", "attacker")
	nettest.Must(t, prepareHost())
	nettest.Must(t, b.prepare(t.Context()))
	const chosen = " ping-flood opens joins aborts key-taken far-pings "
	ran := 0
	for _, s := range scenarios() {
		if !strings.Contains(chosen, " "+s.name+" ") {
			continue
		}
		ran++
		t.Run(s.name, func(t *testing.T) {
			o, err := b.run(t.Context(), s)
			nettest.Must(t, err)
			t.Logf("sent %+v", o.Sent)
			d := o.During
			if growth := max(d.Unpaid, o.After.Unpaid) - o.Before.Unpaid; growth > maxGrowth || o.Cut {
				t.Errorf("%s of memory that is no payload", mib(growth))
			}
			if d.Payload > d.Budget {
				t.Errorf("%s of payload, with a budget of %s", mib(d.Payload), mib(d.Budget))
			}
			if d.Descriptors > o.Before.Descriptors+maxDescriptors {
				t.Errorf("%d descriptors, %d before", d.Descriptors, o.Before.Descriptors)
			}
			if d.LogLines > maxLines {
				t.Errorf("the log says %q %d times in a second", d.LogMessage, d.LogLines)
			}
			if h := d.Honest; h.Broken > 0 || h.Ended > 0 {
				t.Errorf("the honest flow: %+v", h)
			}
			if o.Died != "" {
				t.Errorf("the relay has ended: %s", o.Died)
			}
			if o.Before.Honest.Bytes == 0 || o.Before.Resident == 0 || o.Before.Status.Asked == 0 {
				t.Errorf("nothing was observed: %+v", o.Before)
			}
		})
	}
	if want := len(strings.Fields(chosen)); ran != want {
		t.Errorf("%d attacks ran, want %d", ran, want)
	}
}

// good is an outcome within all bounds.
func good() *outcome {
	p := func() *phase { return &phase{Resident: 50 << 20, Unpaid: 40 << 20, Budget: 1 << 20, Descriptors: 30} }
	return &outcome{Role: hostile.NearPeer, Before: p(), During: p(), After: p()}
}

// TestEachBoundCanFail holds that an outcome beyond one bound breaks this one alone.
func TestEachBoundCanFail(t *testing.T) {
	if o := good(); o.verdicts(t) != "" {
		t.Fatalf("the good outcome breaks %q", o.verdicts(t))
	}
	for want, spoil := range map[string]func(o *outcome){
		"not payload":       func(o *outcome) { o.During.Unpaid += 65 << 20 },
		"payload within":    func(o *outcome) { o.During.Payload = 2 << 20 },
		"payload back":      func(o *outcome) { o.Back.Payload = -1 },
		"descriptors:":      func(o *outcome) { o.During.Descriptors += 5000 },
		"descriptors back":  func(o *outcome) { o.Back.Descriptors = -1 },
		"plain echo":        func(o *outcome) { o.During.EchoP99 = 0.2 },
		"plain connections": func(o *outcome) { o.During.Plain = opened{Tried: 3, Failed: 1} },
		"status":            func(o *outcome) { o.After.Status.Longest = 1.5 },
		"/healthz":          func(o *outcome) { o.During.Health.Failed = 1 },
		"honest flow":       func(o *outcome) { o.During.Honest.Broken = 1 },
		"honest new flows":  func(o *outcome) { o.During.HonestNew.Longest = 3 },
		"new pair":          func(o *outcome) { o.During.Join = 5 },
		"log":               func(o *outcome) { o.During.LogLines = 11 },
		"the relay lives":   func(o *outcome) { o.Died = "exit status 2" },
	} {
		o := good()
		spoil(o)
		if got := o.verdicts(t); !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%s: broken are %q", want, got)
		}
	}
}

// verdicts judges and returns the broken bounds.
func (o *outcome) verdicts(t *testing.T) string {
	t.Helper()
	o.judge()
	var broken []string
	for _, v := range o.Verdicts {
		if !v.Holds {
			broken = append(broken, v.Bound)
		}
	}
	if o.ok() != (len(broken) == 0) {
		t.Errorf("ok is %v, broken are %q", o.ok(), broken)
	}
	o.Verdicts = nil
	return strings.Join(broken, "\n")
}

// TestLogIsCounted holds that lines count by message, and records of flows do not.
func TestLogIsCounted(t *testing.T) {
	r := &relay{lines: map[string]map[int64]int{}}
	text := strings.Repeat(`{"msg":"refused"}`+"\n", 3) + strings.Repeat(`{"msg":"flow"}`+"\n", 9) + "panic: at the disco\n"
	begun := time.Now()
	r.readLog(strings.NewReader(text + text))
	seconds := int(time.Since(begun)/time.Second) + 2 // in which the lines may be
	if message, n := r.busiest(begun, time.Now()); message != "refused" || n > 6 || n*seconds < 6 {
		t.Errorf("%d lines of %q", n, message)
	}
	if len(r.dying) != 2 {
		t.Errorf("lines that are no records: %q", r.dying)
	}
	if message, n := r.busiest(begun.Add(-time.Hour), begun.Add(-time.Minute)); n != 0 {
		t.Errorf("%d lines of %q before the log began", n, message)
	}
}

// TestLeash holds that a process is held, goes on once it is released, and that no group is
// left behind.
func TestLeash(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	nettest.Must(t, cmd.Start())
	l := newLeash(cmd.Process)
	l.release()
	if l.group != "" {
		members, err := os.ReadFile(filepath.Join(l.group, members))
		nettest.Must(t, err)
		if len(strings.Fields(string(members))) != 1 {
			t.Errorf("members are %q", members)
		}
	}
	nettest.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	l.remove()
	if _, err := os.Stat(l.group); l.group != "" && !os.IsNotExist(err) {
		t.Errorf("the group is left: %v", err)
	}
}

func TestMetric(t *testing.T) {
	text := "# HELP a b\na_b 5\na 1.5e+06\n"
	if got := metric(text, "a"); got != 1_500_000 {
		t.Errorf("a is %d", got)
	}
	if got := metric(text, "c"); got != 0 {
		t.Errorf("c is %d", got)
	}
}
