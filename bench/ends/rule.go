package main

import (
	"fmt"
	"net/netip"
)

// Seen records the actions and observations of one end of a connection. Times are
// numbers of a clock that both ends share: the event with the lower number was first.
type Seen struct {
	Connected  bool   `json:"connected"`
	ConnectErr string `json:"connect_error,omitempty"` // an errno's name
	ConnectAt  int64  `json:"-"`

	Sent      int64  `json:"sent"` // bytes that its kernel took
	SendErr   string `json:"send_error,omitempty"`
	SendErrAt int64  `json:"-"`

	Read   int64         `json:"read"`             // bytes of the peer's stream that it has passed
	Wrong  string        `json:"wrong,omitempty"`  // the first byte that is not what the peer sent there
	Urgent []UrgentState `json:"urgent,omitempty"` // of the peer's urgent bytes up to there

	End   EndKind `json:"end"`
	EndAt int64   `json:"-"`

	Ended    bool  `json:"ended"` // it ended its own stream cleanly
	EndedAt  int64 `json:"-"`     // just before it did
	Closed   bool  `json:"closed"`
	ClosedAt int64 `json:"-"`      // just before
	Unread   int   `json:"unread"` // bytes that had come when it closed, and that it had not read

	Stuck string `json:"stuck,omitempty"` // the step that did not end

	// Address is the client's, as it knows it itself and as the target sees it; it has no
	// port where the client's first write connects.
	Address netip.AddrPort `json:"-"`
}

// EndKind is how the peer's stream ended, as it looked to the reader.
type EndKind string

// The endings.
const (
	NoEnd    EndKind = ""      // it did not read that far
	CleanEnd EndKind = "end"   // read returned 0
	ResetEnd EndKind = "reset" // ECONNRESET, or 0 after another call had taken that error
	OtherEnd EndKind = "error" // any other error
)

// UrgentState is what became of an urgent byte.
type UrgentState string

// What can become of an urgent byte.
const (
	UrgentInLine   UrgentState = "in line"     // it was read at its place
	UrgentOutside  UrgentState = "out of line" // reads passed over it, and it was announced
	UrgentVanished UrgentState = "vanished"    // reads passed over it, and nothing told
)

// Outcome has the observations of both ends of a script.
type Outcome struct {
	Client Seen `json:"client"`
	Target Seen `json:"target"`
}

func (o *Outcome) ends() [2]*Seen { return [2]*Seen{&o.Client, &o.Target} }

func (o *Outcome) stuck() bool { return o.Client.Stuck != "" || o.Target.Stuck != "" }

// Kind names a way to break the rule.
type Kind string

// The ways.
const (
	KindWrong     Kind = "wrong bytes"
	KindUrgent    Kind = "urgent byte lost"
	KindFalseEnd  Kind = "clean end of a cut stream"
	KindTruncated Kind = "clean end before the last byte"
	KindReset     Kind = "reset that nobody sent"
	KindCut       Kind = "whole stream cut"
	KindRefusal   Kind = "refusal hidden"
	KindNeverCame Kind = "connection not passed on"
	KindHang      Kind = "hang"
	KindLate      Kind = "later than the outage"
	KindLeft      Kind = "flow left at a relay"
	KindAddress   Kind = "client's address changed"
	KindTwice     Kind = "bytes to two targets"
	KindScript    Kind = "direct TCP breaks the rule"
)

// Violation is an outcome that direct TCP does not allow.
type Violation struct {
	Kind Kind
	Text string
}

func (v *Violation) Error() string { return string(v.Kind) + ": " + v.Text }

func violation(kind Kind, format string, args ...any) error {
	return &Violation{kind, fmt.Sprintf(format, args...)}
}

// Allowed returns an error unless direct TCP allows the outcome of a script through a
// relay. direct is the outcome without one. The rule:
//
//  1. What an end reads is a beginning of what its peer wrote, in its order.
//     A reader that has urgent data in line gets every byte. To one that has
//     not, an urgent byte is at its place in the stream or out of line; it may
//     vanish only where a later urgent byte has taken its announcement.
//  2. A clean end comes after the peer has ended its stream cleanly, by shutdown
//     or by a close with nothing unread and no zero linger, and only once every
//     byte before has been read.
//  3. A reset comes only after the peer has closed its socket, or was none. What
//     had not been read by then may be lost.
//  4. Where no schedule can cut a stream, its reader gets the whole and a clean
//     end, and its writer no error.
//  5. A refused connection is refused, or is reset before the first byte. With
//     refuse: mirror it is refused as directly, see sameRefusal.
//  6. A connection reaches the target, unless the client has reset it before.
//  7. What ends without a relay ends with one. An outage between relays may delay
//     it for the time it takes, and no more.
func Allowed(s *Script, direct, relayed *Outcome) error {
	return allowed(s, direct, relayed, [2]bool{})
}

// allowed is the rule for a flow that ended with a relay that died: an end that is cut may be reset at
// any moment, and lose what is behind that. No stream may look whole that is not.
func allowed(s *Script, direct, relayed *Outcome, cut [2]bool) error {
	if direct != nil && direct.stuck() {
		return violation(KindScript, "the script does not end: client %q, target %q", direct.Client.Stuck, direct.Target.Stuck)
	}
	if s.Refused {
		return refusedAllowed(&relayed.Client)
	}
	if relayed.stuck() {
		return violation(KindHang, "client %s, target %s", doing(relayed.Client), doing(relayed.Target))
	}
	if !relayed.Target.Connected && !s.Client.has(OpReset) && !cut[1] {
		return violation(KindNeverCame, "the client has connected, and the target has nothing to accept")
	}
	whole := s.whole()
	names := [2]string{"client", "target"}
	for i, e := range relayed.ends() {
		peer, script := relayed.ends()[1-i], s.ends()[i]
		if err := readAllowed(names[i], s.ends()[1-i], e, peer); err != nil {
			return err
		}
		if err := endAllowed(names[i], script, s.ends()[1-i], e, peer); err != nil {
			return err
		}
		if cut[i] {
			continue
		}
		if err := resetAllowed(names[i], e, peer); err != nil {
			return err
		}
		if whole[i] && (e.End != CleanEnd || peer.SendErr != "" || e.Read != s.ends()[1-i].total()) {
			return violation(KindCut, "nothing cuts the stream to the %s, which has %d of %d bytes and sees %s; its sender sees %s",
				names[i], e.Read, s.ends()[1-i].total(), or(string(e.End), "no end"), or(peer.SendErr, "no error"))
		}
	}
	return nil
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func doing(e Seen) string {
	if e.Stuck == "" {
		return "is done"
	}
	return fmt.Sprintf("is stuck at %q after %d bytes read and %d sent", e.Stuck, e.Read, e.Sent)
}

// readAllowed holds what an end has read against what its peer has sent.
func readAllowed(name string, sender *End, e, peer *Seen) error {
	if e.Wrong != "" {
		return violation(KindWrong, "the %s reads %s", name, e.Wrong)
	}
	if e.Read > peer.Sent {
		return violation(KindWrong, "the %s reads %d bytes of %d", name, e.Read, peer.Sent)
	}
	sent := 0 // urgent bytes
	for _, at := range sender.urgents() {
		if at < peer.Sent {
			sent++
		}
	}
	if n := len(e.Urgent); n > 0 && n == sent && e.Urgent[n-1] == UrgentVanished {
		return violation(KindUrgent, "the last of the %d urgent bytes sent to the %s is neither in the stream nor announced", sent, name)
	}
	return nil
}

// endAllowed holds how the peer's stream ended for an end against what the peer
// did.
func endAllowed(name string, script, sender *End, e, peer *Seen) error {
	if e.End == CleanEnd && !script.has(OpShutRead) { // who has shut down reading reads an end in any case
		if !peer.Ended || peer.EndedAt > e.EndAt {
			return violation(KindFalseEnd, "the %s sees an end after %d bytes; its peer %s", name, e.Read, whatPeerDid(peer))
		}
		if lacks := peer.Sent - e.Read; lacks > 0 {
			if at := sender.urgents(); int64(len(at)) >= lacks && at[int64(len(at))-lacks] == e.Read {
				return violation(KindUrgent, "the %s sees an end without the %d urgent bytes before it", name, lacks)
			}
			return violation(KindTruncated, "the %s sees an end after %d bytes of %d", name, e.Read, peer.Sent)
		}
	}
	return nil
}

// resetAllowed holds the errors of an end against when its peer closed.
func resetAllowed(name string, e, peer *Seen) error {
	for _, cut := range []struct {
		is   bool
		at   int64
		what string
	}{
		{e.ConnectErr != "", e.ConnectAt, "cannot connect: " + e.ConnectErr},
		{e.SendErr != "", e.SendErrAt, "cannot send: " + e.SendErr},
		{e.End == ResetEnd || e.End == OtherEnd, e.EndAt, "cannot read: " + string(e.End)},
	} {
		if cut.is && !(peer.Closed && peer.ClosedAt < cut.at) {
			return violation(KindReset, "the %s %s, although its peer has not closed its socket by then", name, cut.what)
		}
	}
	return nil
}

func whatPeerDid(peer *Seen) string {
	switch {
	case !peer.Connected:
		return "was not there"
	case peer.Ended:
		return "ended its stream later"
	case peer.Closed && peer.Unread > 0:
		return fmt.Sprintf("had closed with %d bytes unread", peer.Unread)
	case peer.Closed:
		return "had reset it"
	}
	return "had not ended"
}

// sameAddress returns an error if the target sees another client.
func sameAddress(o *Outcome) error {
	own, seen := o.Client.Address, o.Target.Address
	if own.Port() == 0 || !seen.IsValid() || own == seen {
		return nil
	}
	return violation(KindAddress, "the target sees %s, the client is %s", seen, own)
}

// synRoom is how many bytes of a first write the SYN of Fast Open carries at least, over an
// MTU of 1500.
const synRoom = 1400

// sameRefusal returns an error if the client sees another refusal than without a relay.
func sameRefusal(s *Script, direct, relayed *Outcome) error {
	text := func(s Seen) string {
		return fmt.Sprintf("connect: %s, send: %s, read: %s", or(s.ConnectErr, "ok"), or(s.SendErr, "ok"), or(string(s.End), "no end"))
	}
	want, got := text(direct.Client), text(relayed.Client)
	if want == got {
		return nil
	}
	if s.opensWith() > synRoom && direct.Client.ConnectErr == "" && relayed.Client.ConnectErr == "" && relayed.Client.SendErr == "ECONNREFUSED" {
		// Over loopback the SYN carries all of the write, here a part: its rest is refused.
		return nil
	}
	return violation(KindRefusal, "the client sees %s; without a relay %s", got, want)
}

// refusedAllowed holds what a client sees of a target that refuses. A relay has
// accepted the client before it learns of the refusal, and resets it then.
func refusedAllowed(e *Seen) error {
	switch {
	case e.Stuck != "":
		return violation(KindRefusal, "the client %s", doing(*e))
	case e.Read > 0:
		return violation(KindWrong, "the client reads %d bytes of nobody", e.Read)
	case e.End == CleanEnd:
		return violation(KindRefusal, "the client sees a clean end of what nobody has sent")
	}
	return nil
}
