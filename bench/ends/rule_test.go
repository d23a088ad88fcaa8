package main

import (
	"errors"
	"net/netip"
	"testing"
)

// What ends do and see, in the order of the shared clock: the target reads what
// the client sends.
func TestAllowed(t *testing.T) {
	send := func(n int, more ...Step) End { return End{Steps: append([]Step{{Op: OpSend, Bytes: n}}, more...)} }
	reader := End{Steps: []Step{{Op: OpReadEnd}}}
	done := Seen{Connected: true, Closed: true, ClosedAt: 90, Ended: true, EndedAt: 90}
	sent := func(n int64, change func(*Seen)) Seen {
		s := done
		s.Sent, s.EndedAt, s.ClosedAt = n, 10, 10
		change(&s)
		return s
	}
	read := func(n int64, end EndKind, change func(*Seen)) Seen {
		s := done
		s.Read, s.End, s.EndAt = n, end, 50
		change(&s)
		return s
	}
	same := func(*Seen) {}
	reset := func(s *Seen) { s.Ended, s.EndedAt = false, 0 }
	graceful := &Script{Client: send(100, Step{Op: OpShutWrite}, Step{Op: OpReadEnd}), Target: reader}
	cut := &Script{Client: send(100, Step{Op: OpReset}), Target: reader}
	stops := &Script{Client: send(100), Target: send(1)}
	urgent := &Script{Client: send(100, Step{Op: OpUrgent}, Step{Op: OpSend, Bytes: 9}, Step{Op: OpReset}), Target: reader}
	last := &Script{Client: send(100, Step{Op: OpUrgent}, Step{Op: OpShutWrite}, Step{Op: OpReadEnd}), Target: reader}
	twice := &Script{Client: send(1, Step{Op: OpUrgent}, Step{Op: OpUrgent}, Step{Op: OpReset}), Target: reader}
	refused := &Script{Client: send(100, Step{Op: OpReadEnd}), Refused: true}
	deaf := &Script{Client: send(100, Step{Op: OpReset}), Target: End{Steps: []Step{{Op: OpShutRead}, {Op: OpReadEnd}}}}
	ended := func(s *Seen) { s.End, s.EndAt = CleanEnd, 95 }
	for _, test := range []struct {
		name           string
		script         *Script
		client, target Seen
		want           Kind // empty: it is allowed
	}{
		{"whole", graceful, sent(100, ended), read(100, CleanEnd, same), ""},
		{"wrong byte", graceful, sent(100, ended), read(100, CleanEnd, func(s *Seen) { s.Wrong = "an ordinary byte" }), KindWrong},
		{"more than was sent", graceful, sent(100, ended), read(101, CleanEnd, same), KindWrong},
		{"end before the last byte", graceful, sent(100, ended), read(99, CleanEnd, same), KindTruncated},
		{"end before the sender's", graceful, sent(100, func(s *Seen) { ended(s); s.EndedAt = 60 }), read(100, CleanEnd, same), KindFalseEnd},
		{"reset of a whole stream", graceful, sent(100, ended), read(100, ResetEnd, same), KindCut},
		{"reset before the sender closes", graceful, sent(100, func(s *Seen) { ended(s); s.ClosedAt = 60 }), read(100, ResetEnd, same), KindReset},
		{"sender of a whole stream is reset", graceful, sent(100, func(s *Seen) { ended(s); s.SendErr, s.SendErrAt = "EPIPE", 95 }), read(100, CleanEnd, same), KindCut},
		{"reset with everything", cut, sent(100, reset), read(100, ResetEnd, same), ""},
		{"reset with a part", cut, sent(100, reset), read(7, ResetEnd, same), ""},
		{"end for a reset", cut, sent(100, reset), read(100, CleanEnd, same), KindFalseEnd},
		{"end for a reset, with a part", cut, sent(100, reset), read(7, CleanEnd, same), KindFalseEnd},
		{"end for a close with bytes unread", stops, sent(100, func(s *Seen) { reset(s); s.Unread = 1 }), read(100, CleanEnd, func(s *Seen) { s.Sent = 1 }), KindFalseEnd},
		{"end of who has shut down reading", deaf, sent(100, reset), read(7, CleanEnd, same), ""},
		{"reset before the target is accepted", cut, sent(100, reset), Seen{}, ""},
		{"never accepted", graceful, sent(100, func(s *Seen) { s.End, s.EndAt, s.ClosedAt = ResetEnd, 5, 6 }), Seen{}, KindNeverCame},
		{"stuck", graceful, sent(100, func(s *Seen) { s.Stuck = "read" }), read(100, CleanEnd, same), KindHang},
		{"urgent byte in line", urgent, sent(110, reset), read(110, ResetEnd, func(s *Seen) { s.Urgent = []UrgentState{UrgentInLine} }), ""},
		{"urgent byte out of line", urgent, sent(110, reset), read(110, ResetEnd, func(s *Seen) { s.Urgent = []UrgentState{UrgentOutside} }), ""},
		{"urgent byte vanished", urgent, sent(110, reset), read(110, ResetEnd, func(s *Seen) { s.Urgent = []UrgentState{UrgentVanished} }), KindUrgent},
		{"urgent byte before the end vanished", last, sent(101, ended), read(100, CleanEnd, same), KindUrgent},
		{"first of two vanished", twice, sent(3, reset), read(3, ResetEnd, func(s *Seen) { s.Urgent = []UrgentState{UrgentVanished, UrgentOutside} }), ""},
		{"second of two vanished", twice, sent(3, reset), read(3, ResetEnd, func(s *Seen) { s.Urgent = []UrgentState{UrgentOutside, UrgentVanished} }), KindUrgent},
		{"refused", refused, Seen{ConnectErr: "ECONNREFUSED", Closed: true}, Seen{}, ""},
		{"reset for refused", refused, sent(100, func(s *Seen) { s.End, s.EndAt = ResetEnd, 20 }), Seen{}, ""},
		{"end for refused", refused, sent(100, func(s *Seen) { s.End, s.EndAt = CleanEnd, 20 }), Seen{}, KindRefusal},
		{"bytes of nobody", refused, sent(100, func(s *Seen) { s.Read, s.End = 1, ResetEnd }), Seen{}, KindWrong},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := Allowed(test.script, nil, &Outcome{test.client, test.target})
			var v *Violation
			errors.As(err, &v)
			if (err == nil) != (test.want == "") || v != nil && v.Kind != test.want {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	stuck := &Outcome{Client: Seen{Stuck: "read"}}
	var v *Violation
	if err := Allowed(graceful, stuck, &Outcome{}); !errors.As(err, &v) || v.Kind != KindScript {
		t.Errorf("a script that does not end without a relay: %v", err)
	}
}

// A stream must be whole where both ends take all that the other sends, and
// neither resets.
func TestWhole(t *testing.T) {
	sends := func(ops ...Op) End {
		e := End{Steps: []Step{{Op: OpSend, Bytes: 10}}}
		for _, op := range ops {
			s := Step{Op: op}
			if op == OpRead {
				s.Bytes = 10
			}
			e.Steps = append(e.Steps, s)
		}
		return e
	}
	for _, test := range []struct {
		name   string
		script Script
		want   [2]bool
	}{
		{"both to the end", Script{Client: sends(OpShutWrite, OpReadEnd), Target: sends(OpReadEnd)}, [2]bool{true, true}},
		{"one reads all, and does not wait for the end", Script{Client: sends(OpRead), Target: sends(OpReadEnd)}, [2]bool{false, true}},
		{"one reads nothing", Script{Client: sends(), Target: sends(OpReadEnd)}, [2]bool{false, false}},
		{"a reset", Script{Client: sends(OpReadEnd, OpReset), Target: sends(OpReadEnd)}, [2]bool{}},
		{"a deaf end", Script{Client: sends(OpShutRead, OpReadEnd), Target: sends(OpReadEnd)}, [2]bool{}},
		{"an urgent byte out of line, behind which nothing comes", Script{Client: sends(OpRead), Target: sends(OpUrgent, OpReadEnd)}, [2]bool{}},
		{"refused", Script{Client: sends(OpReadEnd), Target: sends(OpReadEnd), Refused: true}, [2]bool{}},
	} {
		if got := test.script.whole(); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestSameAddress(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, tt := range []struct {
		own, seen netip.AddrPort
		same      bool
	}{
		{at("10.2.1.2:1000"), at("10.2.1.2:1000"), true},
		{at("10.2.1.2:1000"), at("10.2.1.2:1001"), false},
		{at("10.2.1.2:1000"), at("10.2.2.1:1000"), false},
		{at("10.2.1.2:1000"), netip.AddrPort{}, true}, // the target accepted nothing
		{at("0.0.0.0:0"), at("10.2.1.2:1000"), true},  // the first write connects
	} {
		if err := sameAddress(&Outcome{Client: Seen{Address: tt.own}, Target: Seen{Address: tt.seen}}); (err == nil) != tt.same {
			t.Errorf("client %v, seen %v: %v", tt.own, tt.seen, err)
		}
	}
}

func TestSameRefusal(t *testing.T) {
	seen := func(connect, send string, end EndKind) *Outcome {
		return &Outcome{Client: Seen{ConnectErr: connect, SendErr: send, End: end}}
	}
	refused := seen("ECONNREFUSED", "", NoEnd)
	fastOpen := func(bytes int) *Script {
		return &Script{FastOpen: true, Client: End{Steps: []Step{{Op: OpSend, Bytes: bytes, Chunk: 32 << 10}}}}
	}
	for _, tt := range []struct {
		script          *Script
		direct, relayed *Outcome
		same            bool
	}{
		{&Script{}, refused, refused, true},
		{&Script{}, refused, seen("", "", ResetEnd), false},
		{&Script{}, refused, seen("ETIMEDOUT", "", NoEnd), false},
		{fastOpen(100), seen("", "", OtherEnd), seen("", "", OtherEnd), true}, // the first write connects
		{fastOpen(100), seen("", "", OtherEnd), seen("", "", ResetEnd), false},
		{fastOpen(100), seen("", "", OtherEnd), seen("", "ECONNREFUSED", ResetEnd), false},
		{fastOpen(1421), seen("", "", OtherEnd), seen("", "ECONNREFUSED", ResetEnd), true}, // only a part of it fits into the SYN
		{fastOpen(1421), seen("", "", OtherEnd), seen("", "", ResetEnd), false},
	} {
		if err := sameRefusal(tt.script, tt.direct, tt.relayed); (err == nil) != tt.same {
			t.Errorf("direct %+v, relayed %+v: %v", tt.direct.Client, tt.relayed.Client, err)
		}
	}
}
