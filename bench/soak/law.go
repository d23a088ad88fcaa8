package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
)

// flow is one flow of the run, with what both of its sides did and saw.
type flow struct {
	plan    plan
	from    netip.AddrPort // the client's address, zero: it never connected
	began   time.Time
	done    time.Time
	refused error // why the client could not connect

	client, target account
}

// fault is a time in which a relay or the target was dead. Flows that it
// touches may be cut.
type fault struct {
	what     string
	from, to time.Time
}

// touches says whether a flow lived within the time.
func (d fault) touches(f *flow) bool { return f.began.Before(d.to) && f.done.After(d.from) }

// judge checks a flow against the law and returns its violations. cut reports that the
// death of a relay touched the flow.
//
// The law: who saw a clean end has all bytes that the other sent before its
// clean end; whoever saw anything else has a prefix of them; and a stream that
// was not ended cleanly never ends cleanly. A flow in which nobody reset and no
// relay died arrives whole.
func (f *flow) judge(faults []fault) (violations []string, cut bool) {
	for _, d := range faults {
		cut = cut || d.touches(f)
	}
	bad := func(format string, args ...any) {
		violations = append(violations, fmt.Sprintf(format, args...))
	}
	if f.refused != nil {
		if !cut {
			bad("the client could not connect: %v", f.refused)
		}
		return violations, cut
	}
	if f.plan.ending == noByte { // of whose target's side nothing is known but that it is there
		switch {
		case f.client.saw == sawEnd && f.client.read == 0:
		case cut && (f.client.saw == sawReset || f.client.saw == sawTimeout):
		default:
			bad("a client that ended without a byte saw a %s after %d bytes: %v", f.client.saw, f.client.read, f.client.readErr)
		}
		return violations, cut
	}
	for _, d := range []struct {
		from, to string
		sent     account
		received account
	}{{"client", "target", f.client, f.target}, {"target", "client", f.target, f.client}} {
		s, r := d.sent, d.received
		switch {
		case r.differs >= 0:
			bad("byte %d that the %s read is not what the %s sent", r.differs, d.to, d.from)
		case r.read > s.wrote:
			bad("the %s read %d bytes, the %s sent %d", d.to, r.read, d.from, s.wrote)
		}
		if r.saw == sawEnd {
			switch {
			case !s.ended:
				bad("the %s saw a clean end after %d bytes, the %s (%d bytes) made none", d.to, r.read, d.from, s.wrote)
			case r.read != s.wrote:
				bad("the %s saw a clean end after %d of %d bytes", d.to, r.read, s.wrote)
			case r.readSum != s.wroteSum:
				bad("the %s read a stream with another hash", d.to)
			}
		}
		if r.saw == sawStall || errors.Is(r.writeErr, os.ErrDeadlineExceeded) {
			bad("the %s had neither bytes nor an end for %v", d.to, stallLimit)
		}
		if r.saw == sawError {
			bad("the %s got an error: %v", d.to, r.readErr)
		}
		excused := cut || s.reset || r.reset || f.plan.ending == targetRefuses
		if !excused && (r.saw == sawReset || r.saw == sawTimeout) {
			bad("the %s saw a %s after %d of %d bytes, and nobody had reset", d.to, r.saw, r.read, s.wrote)
		}
		if !excused && r.saw == sawNothing {
			bad("the flow never reached the %s", d.to)
		}
	}
	return violations, cut
}

// whole says whether everything that was sent has arrived, both ways, with
// its end.
func (f *flow) whole() bool {
	if f.plan.ending == noByte {
		return f.client.saw == sawEnd
	}
	return f.client.saw == sawEnd && f.target.saw == sawEnd && f.client.read == f.target.wrote && f.target.read == f.client.wrote
}

// unwritten is how long a relay may keep a line of its log back: it writes those
// of some hundredths of a second together, and the machine may be busy.
const unwritten = 200 * time.Millisecond

// mustBeLogged says whether relay-a has to have said why the flow ended: it
// lived all the while and cut the client off, which had not reset, and it did
// not die with the line unwritten.
func (f *flow) mustBeLogged(faults []fault) bool {
	for _, d := range faults {
		d.from = d.from.Add(-unwritten)
		if d.what == "relay-a" && d.touches(f) {
			return false
		}
	}
	return f.from.IsValid() && !f.client.reset && f.client.saw == sawReset
}
