package flow

import (
	"bytes"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func relayNamed(name string) TraceRelay {
	return TraceRelay{Relay: name, Tunnel: "t", State: StateOpen, Client: Address{netip.MustParseAddrPort("[2001:db8::1]:40000")},
		Legs: [2]TraceLeg{UnknownTraceLeg(), {Lane: true, CongestionControl: "cubic", BytesSent: 1 << 40, Cause: "loss"}}, Pair: &Figures{Lanes: 2}}
}

func TestTracePasses(t *testing.T) {
	want := Trace{Here: 1, Relays: []TraceRelay{relayNamed("a"), relayNamed("")}, Missing: []string{"b does not answer"}}
	named := want
	named.Name = NewName()
	got, err := ParseTrace(named.AppendTrace(nil, 4<<10))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// TestTraceFits holds that a trace of as many relays as a flow may pass is cut at its far end, and says so.
func TestTraceFits(t *testing.T) {
	for _, here := range []int{0, MaxVia - 1} {
		trace := Trace{Here: here}
		for range MaxVia {
			trace.Relays = append(trace.Relays, relayNamed(strings.Repeat("x", 200)))
		}
		trace.Relays[here].Relay = "me"
		const most = 4 << 10
		b := trace.AppendTrace(nil, most)
		got, err := ParseTrace(b)
		if err != nil || len(b) > most || len(got.Relays) < 2 || got.Relays[got.Here].Relay != "me" || len(got.Missing) != 1 {
			t.Errorf("%d bytes are %+v, %v", len(b), got, err)
		}
	}
	if b := (Trace{}).AppendTrace(nil, 100); len(b) > 0 {
		t.Errorf("a trace without relays is %s", b)
	}
	if b := (Trace{Relays: []TraceRelay{relayNamed("a")}}).AppendTrace(nil, 100); len(b) > 0 {
		t.Errorf("%d bytes, 100 may be", len(b))
	}
}

// TestTraceOfOthers holds that no text of another relay commands a terminal, and that what is no trace is
// refused.
func TestTraceOfOthers(t *testing.T) {
	const bad, shown = "a\u202eb\x1b[2J\n", "a?b?[2J?"
	r := TraceRelay{Relay: bad, Tunnel: bad, State: bad, Listen: Address{netip.MustParseAddrPort("[fe80::1%eth\u202e]:1")}}
	for i := range r.Legs {
		r.Legs[i] = TraceLeg{Side: bad, CongestionControl: bad, Cause: bad}
	}
	got, err := ParseTrace(Trace{Relays: []TraceRelay{r}, Missing: []string{bad}}.AppendTrace(nil, 1<<20))
	if err != nil || got.Missing[0] != shown {
		t.Fatalf("got %+v, %v", got, err)
	}
	one := got.Relays[0]
	for _, s := range []string{one.Relay, one.Tunnel, one.State, one.Legs[0].Side, one.Legs[1].CongestionControl, one.Legs[1].Cause} {
		if s != shown {
			t.Errorf("a text is shown as %q", s)
		}
	}
	if got := one.Listen.String(); got != "[fe80::1]:1" {
		t.Errorf("an address is shown as %q", got)
	}
	many := `{"relays":[` + strings.Repeat("{},", MaxVia) + `{}]}`
	for _, b := range []string{"", "{", "null", "[]", `{"relays":[]}`, `{"relays":[{}],"here":1}`, `{"relays":[{}],"here":-1}`, many,
		`{"relays":[{"legs":"x"}]}`, `{"relays":[{"client":"<b>"}]}`, `{"relays":[{}],"missing":["","",""]}`} {
		if got, err := ParseTrace([]byte(b)); err == nil {
			t.Errorf("%s was read as %+v", b, got)
		}
	}
	if _, err := ParseTrace([]byte(`{"relays":[{"later":1,"legs":[{},{"later":{}}]}],"later":[]}`)); err != nil {
		t.Errorf("members of a later release: %v", err)
	}
}

func TestNamePrefix(t *testing.T) {
	n := Name{0x5f, 0x3a, 0x0b, 0xc1, 0x22, 0x33, 0x44, 0x55, 0x86, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd}
	for s, want := range map[string]bool{
		n.String(): true, n.String()[:8]: true, n.String()[:11]: true, "5F3A0BC1": true, "5f3a0bc12233445586778899aabbccdd": true,
		"5f3a0bc2": false, "5f3a0bc12": true, "5f3a0bc13": false, n.String()[:35] + "e": false,
	} {
		p, err := ParseNamePrefix(s)
		if err != nil || p.Matches(n) != want {
			t.Errorf("%s: %v, %v", s, p.Matches(n), err)
		}
	}
	if p, _ := ParseNamePrefix("00000000"); p.Matches(Name{}) {
		t.Error("a flow without a name was found")
	}
	for _, bad := range []string{"", "5f3a", "5f3a0bc", n.String() + "0", "5f3a0bc1 ", "5f3a0bcg", "\x1b[2J0000", "--------"} {
		if p, err := ParseNamePrefix(bad); err == nil || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q was read as %q, %v", bad, p, err)
		}
	}
}

func FuzzTrace(f *testing.F) {
	f.Add(Trace{Relays: []TraceRelay{relayNamed("a"), relayNamed("b")}, Missing: []string{"x"}}.AppendTrace(nil, 1<<20))
	f.Add([]byte(`{"relays":[{"age_seconds":1e300,"client":"[fe80::1%x]:1"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		trace, err := ParseTrace(b)
		if err != nil {
			return
		}
		again := trace.AppendTrace(nil, 1<<20)
		back, err := ParseTrace(again)
		if err != nil || !bytes.Equal(again, back.AppendTrace(nil, 1<<20)) {
			t.Errorf("%s again is %+v, %v", again, back, err)
		}
	})
}
