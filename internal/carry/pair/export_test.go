package pair

import (
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
)

// Bounds that tests exceed.
const (
	Crowd          = crowd
	CrowdShare     = crowdShare
	LeastHeld      = leastHeld
	MaxAsking      = maxAsking
	MaxBuried      = maxBuried
	MaxGivenUp     = maxGivenUp
	MaxHandshakes  = maxHandshakes
	MaxIdleLanes   = maxIdleLanes
	MaxOldSessions = maxOldSessions
	MaxQueued      = maxQueued
	MaxSessions    = maxSessions
	MaxTraces      = maxTraces
	PongWithin     = pongWithin
)

// Closing reports that the node has begun to close.
func (n *Node) Closing() bool { return n.closing.Load() }

// HostKey is the key of the current session's host.
func (l *Link) HostKey() ed25519.PublicKey { return l.current().host().key }

// SeesCertificates reports that the link has looked at when this host's certificate ends.
func (l *Link) SeesCertificates() bool {
	v := &l.current().validity
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.shown != [sha256.Size]byte{}
}

// NoteRoundTrip has the current session know a round trip of its path: the least one counts.
func (l *Link) NoteRoundTrip(rtt time.Duration) { l.current().delays.note(time.Now(), rtt) }

// DialLanes dials what lacks now, and counts the handshakes of lanes that run.
func (l *Link) DialLanes() int {
	l.dialLanes(l.current(), time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.laneDials
}

// Looked is the begin of the link's last look at certificates; zero before the first, and while one runs.
func (l *Link) Looked() time.Time {
	v := &l.current().validity
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.looking {
		return time.Time{}
	}
	return v.looked
}

// Attempts lists what counts as an attempt for a connection of the link, or of its node.
func (l *Link) Attempts() (left []string) {
	count := func(what string, n int) {
		if n != 0 {
			left = append(left, fmt.Sprintf("%d %s", n, what))
		}
	}
	count("attempts of the node", int(l.node.dials.Load()))
	count("handshakes of lanes", l.laneDials)
	for _, s := range append(l.old, l.s) {
		count("handshakes for flows", s.laneDials)
		s.closeLanes(func(l *lane) bool { count("lanes for the pool", btoi(l.pads.Load() && !l.isDead())); return false })
		count("attempts that lack HELLO", int(s.proven.Load()))
		count("attempts in their handshake", btoi(!s.greeting.IsZero()))
	}
	for _, p := range l.paths.list() {
		count("handshakes for the pool on a path", p.pools)
		count("attempts on a path", p.redials)
	}
	return left
}

// Kept is how many lanes the pool keeps after the link's flows have ended.
func (l *Link) Kept() (n int) {
	for _, p := range l.paths.list() {
		n += p.poolLimit(1, time.Now())
	}
	return n
}

// Watched is how many flows the node looks at each tick.
func (n *Node) Watched() (all int) {
	for _, s := range n.sessions() {
		all += len(s.watchedFlows())
	}
	return all
}

// Queued is how many bytes of answers wait for the peers that read least.
func (n *Node) Queued() (most int) {
	for _, s := range n.sessions() {
		if ctl := s.control(); ctl != nil {
			ctl.mu.Lock()
			most = max(most, len(ctl.queue))
			ctl.mu.Unlock()
		}
	}
	return most
}

// Begun is how many handshakes are in the middle of TLS.
func (n *Node) Begun() int { return n.begun.Taken() }

// ResumeOf is how long the flows of a session wait for a lane; 0: there is no such session.
func (n *Node) ResumeOf(session uint64) (resume time.Duration) {
	for _, s := range n.sessions() {
		if s.id == session {
			resume, _ = n.rules(s, false)
		}
	}
	return resume
}

// SayReset says of the node's only flow that it has ended, as a node would that means ill.
func (n *Node) SayReset(reason flow.EndReason, text string) {
	s := n.sessions()[0]
	s.message(wire.Message{Type: wire.MessageReset, Flow: s.allFlows()[0].id, Reason: cause(reason, nil).Code, Text: text})
}
