// Command ends compares a relay with direct TCP. It makes random scripts of socket
// calls at both ends of a connection, and runs each over a direct connection and
// through relays. A rule decides whether direct TCP allows the outcome. A script that
// breaks the rule is shortened as long as it still breaks it.
//
// docs/design/endings.md explains the rule.
package main

import (
	"fmt"
	"strings"
)

// Op is what a step does.
type Op uint8

// The steps of an end.
const (
	OpSend      Op = iota // write Bytes, Chunk with each call
	OpUrgent              // write one urgent byte (MSG_OOB)
	OpRead                // read until Bytes more have come, Chunk with each call, or the end
	OpReadEnd             // read to the end of the peer's stream
	OpSwap                // write Bytes, and read Take meanwhile
	OpShutWrite           // shutdown(SHUT_WR)
	OpShutRead            // shutdown(SHUT_RD)
	OpAwait               // wait until the peer has done its first Until steps
	OpStall               // wait until the peer waits for something, or has done all
	OpClose               // close
	OpReset               // close with zero linger
)

// Step is one step of an end.
type Step struct {
	Op    Op
	Bytes int
	Chunk int
	Take  int
	Until int
	More  bool // with MSG_MORE
}

// End is what one end of the connection does. It closes after its last step.
type End struct {
	SendBuffer    int // SO_SNDBUF; 0: the kernel's choice
	ReceiveBuffer int
	NoDelay       bool
	InLine        bool // SO_OOBINLINE
	TakesUrgent   bool // reads urgent bytes with MSG_OOB, where they are not in line
	Steps         []Step
}

// Family is how the client addresses its peer.
type Family uint8

// The families.
const (
	IPv4 Family = iota
	IPv6
	Mapped // an IPv6 socket to an IPv4-mapped address
	families
)

var familyNames = [families]string{"IPv4", "IPv6", "IPv4-mapped IPv6"}

// Script is what both ends of a connection do.
type Script struct {
	Family     Family
	FastOpen   bool
	Refused    bool // nobody listens at the target
	LateAccept bool // the target accepts only once the client waits, or has done all
	Activated  bool // the client connects before the relay has the listener (socket activation)
	Client     End
	Target     End
}

// ends returns both ends, the client first.
func (s *Script) ends() [2]*End { return [2]*End{&s.Client, &s.Target} }

// opensWith says how many bytes the first call writes if it connects; 0: it does not.
func (s *Script) opensWith() int {
	if !s.FastOpen || s.Activated || len(s.Client.Steps) == 0 || s.Client.Steps[0].Op != OpSend {
		return 0
	}
	first := s.Client.Steps[0]
	return min(first.Bytes, max(first.Chunk, 1))
}

// writes says how many bytes of the stream a step writes.
func (s Step) writes() int {
	switch s.Op {
	case OpSend, OpSwap:
		return s.Bytes
	case OpUrgent:
		return 1
	}
	return 0
}

// reads says how many bytes of the peer's stream a step reads at the most.
func (s Step) reads() int {
	switch s.Op {
	case OpRead:
		return s.Bytes
	case OpSwap:
		return s.Take
	}
	return 0
}

// total is how many bytes an end writes.
func (e *End) total() (n int64) {
	for _, s := range e.Steps {
		n += int64(s.writes())
	}
	return n
}

// urgents are the places of an end's urgent bytes in the stream that it writes.
func (e *End) urgents() (at []int64) {
	var n int64
	for _, s := range e.Steps {
		if s.Op == OpUrgent {
			at = append(at, n)
		}
		n += int64(s.writes())
	}
	return at
}

func (e *End) has(ops ...Op) bool {
	for _, s := range e.Steps {
		for _, op := range ops {
			if s.Op == op {
				return true
			}
		}
	}
	return false
}

// wholeRead is as much as one call reads.
const wholeRead = 256 << 10

// takesAll says whether an end reads all that its peer writes, under any
// schedule in which nothing is cut.
func (e *End) takesAll(peer *End) bool {
	if e.has(OpReadEnd) {
		return true
	}
	var n int64
	for _, s := range e.Steps {
		n += int64(s.reads())
	}
	// What is out of line is passed over only by the read behind it.
	return n >= peer.total() && (e.InLine || !peer.has(OpUrgent))
}

// whole says for each end whether it must see all of its peer's stream and a
// clean end, under every schedule: nothing in the script can cut it.
func (s *Script) whole() (must [2]bool) {
	if s.Refused {
		return must
	}
	ends := s.ends()
	for i, e := range ends {
		peer := ends[1-i]
		if e.has(OpReset, OpShutRead) || peer.has(OpReset, OpShutRead) {
			return [2]bool{}
		}
		must[i] = e.has(OpReadEnd) && peer.takesAll(e)
	}
	return must
}

// steps counts the steps of both ends.
func (s *Script) steps() int { return len(s.Client.Steps) + len(s.Target.Steps) }

func (s Step) String() string {
	var b strings.Builder
	switch s.Op {
	case OpSend:
		fmt.Fprintf(&b, "send %d", s.Bytes)
	case OpUrgent:
		b.WriteString("send 1 urgent byte")
	case OpRead:
		fmt.Fprintf(&b, "read %d", s.Bytes)
	case OpReadEnd:
		b.WriteString("read to the end")
	case OpSwap:
		fmt.Fprintf(&b, "send %d while reading %d", s.Bytes, s.Take)
	case OpShutWrite:
		b.WriteString("shut down writing")
	case OpShutRead:
		b.WriteString("shut down reading")
	case OpAwait:
		fmt.Fprintf(&b, "wait until the peer has done step %d", s.Until)
	case OpStall:
		b.WriteString("wait until the peer waits")
	case OpClose:
		b.WriteString("close")
	case OpReset:
		b.WriteString("close with zero linger")
	}
	if s.Chunk > 0 && (s.Op == OpSend || s.Op == OpRead) && s.Chunk < s.Bytes || s.Chunk > 0 && s.Chunk < wholeRead && (s.Op == OpReadEnd || s.Op == OpSwap) {
		fmt.Fprintf(&b, ", %d at a time", s.Chunk)
	}
	if s.More {
		b.WriteString(", with MSG_MORE")
	}
	return b.String()
}

// String is the script for people, a line for each step.
func (s *Script) String() string {
	var b strings.Builder
	b.WriteString(familyNames[s.Family])
	for _, o := range []struct {
		set  bool
		text string
	}{
		{s.FastOpen, "Fast Open"},
		{s.Refused, "nobody listens at the target"},
		{s.LateAccept, "the target accepts once the client waits"},
		{s.Activated, "the client connects before the relay has the listener"},
	} {
		if o.set {
			b.WriteString(", " + o.text)
		}
	}
	b.WriteString("\n")
	for i, e := range s.ends() {
		if i == 1 && s.Refused {
			break
		}
		b.WriteString([2]string{"client", "target"}[i])
		sep := ": "
		for _, o := range []struct {
			set  bool
			text string
		}{
			{e.SendBuffer > 0, fmt.Sprintf("SO_SNDBUF %d", e.SendBuffer)},
			{e.ReceiveBuffer > 0, fmt.Sprintf("SO_RCVBUF %d", e.ReceiveBuffer)},
			{e.NoDelay, "TCP_NODELAY"},
			{e.InLine, "SO_OOBINLINE"},
			{e.TakesUrgent && !e.InLine, "takes urgent bytes"},
		} {
			if o.set {
				b.WriteString(sep + o.text)
				sep = ", "
			}
		}
		b.WriteString("\n")
		for n, step := range e.Steps {
			fmt.Fprintf(&b, "  %d  %s\n", n+1, step)
		}
		if !e.has(OpClose, OpReset) {
			fmt.Fprintf(&b, "  %d  close\n", len(e.Steps)+1)
		}
	}
	return b.String()
}
