package pair

import (
	"net/netip"
	"slices"
	"time"
)

// Problem is the cause that keeps a session from standing.
type Problem string

// The problems of a session.
const (
	ProblemNone       Problem = ""
	ProblemUnpaired   Problem = "unpaired"    // something answers that speaks no pair protocol
	ProblemKeyUnknown Problem = "key-unknown" // one end does not know the other's key
	ProblemVersion    Problem = "version"     // the versions of both ends do not overlap
	ProblemPathDown   Problem = "path-down"   // nobody answers
	ProblemPathMTU    Problem = "path-mtu"    // small segments cross the path, large ones vanish
	ProblemDenied     Problem = "denied"      // the far tunnel does not admit this peer
	ProblemDraining   Problem = "draining"    // the far process takes no new sessions
	ProblemEncrypt    Problem = "encrypt"     // one end has lanes in clear, the other one encrypts
	ProblemBusy       Problem = "busy"        // the far relay has too many handshakes or sessions
	ProblemOverloaded Problem = "overloaded"  // one end has no processor for its answers
)

// farProblems are those that a far relay may name.
var farProblems = []Problem{ProblemVersion, ProblemDenied, ProblemDraining, ProblemEncrypt, ProblemBusy}

// toldProblem is the problem that the other relay names; any other one counts as denied.
func toldProblem(text string) Problem {
	if p := Problem(text); slices.Contains(farProblems, p) {
		return p
	}
	return ProblemDenied
}

// refuses reports whether somebody answers, and no session will stand until something is
// changed there or here.
func (p Problem) refuses() bool {
	return p != ProblemNone && p != ProblemPathDown && p != ProblemPathMTU && p != ProblemDraining && !p.waits()
}

// waits reports whether the far relay has more work than it does.
func (p Problem) waits() bool { return p == ProblemBusy || p == ProblemOverloaded }

// SessionState is one relation of two processes at one moment.
type SessionState struct {
	Peer          string
	Tunnel        string // of this host
	Near          bool   // this host opens the connections
	Session       uint64
	Instance      uint64 // of the other process; 0: not known yet
	Release       string // of the other process
	Remote        netip.AddrPort
	Up            bool      // the control connection stands and answers
	Since         time.Time // of Up
	Draining      bool      // it takes no new flows
	Clear         bool      // lanes go in clear,
	Sealed        bool      // but for beginnings and ends of flows, since the other end is new enough
	Summed        bool      // frames of these lanes have sums, for the same reason
	Twin          bool      // far relay: another relay with the same key, host name and entrance is connected
	NoResume      bool      // flows end with their lanes
	Compress      bool      // the near end wants compressed records,
	CompressKnown bool      // and both ends know them
	RTT           time.Duration
	Overload      time.Duration // by which answers come late for want of a processor; 0: less than a second

	Flows        int // that have not ended
	LanesWarm    int
	LanesBusy    int
	FlowsLane    int // flows that have a lane
	FlowsStriped int // of these, flows that have several
	FlowsParked  int // silent flows, without lane
	FlowsWaiting int // flows that need a lane and have none
	FlowsTotal   int64
	Retained     int64 // bytes sent and not acknowledged
	Resumes      int64
	Plain        int64         // bytes, both ways, that went in compressed records,
	Packed       int64         // and the length of these
	Outage       time.Duration // together, without a control connection after the first
	Problem      Problem
	ProblemText  string
	LaneProblem  Problem     // of LaneError
	LaneError    string      // why a session that stands cannot make the lanes that it lacks
	Paths        []PathState // near end of a link with configured paths
}

// PathState is one of a link's paths at one moment.
type PathState struct {
	Name     string
	Standby  bool
	Up       bool
	Since    time.Time      // of Up
	Active   bool           // flows may use it now
	Control  bool           // the control connection is on it
	Remote   netip.AddrPort // of the latest connection over it
	RTT      time.Duration
	Lanes    int   // that stand, and are not the path's probe
	Busy     int   // of these, that carry a flow
	Sent     int64 // bytes that the far relay has acknowledged, of all lanes
	Received int64
	Error    string // why it is down; empty: it is not known yet
}

// State is the node at one moment.
type State struct {
	Instance      uint64
	Sessions      []SessionState
	Retained      int64 // bytes of all stores
	RetainedLimit int64 // bytes; 0: unbounded but for the bound of each flow
	// Strangers counts accepted connections that did not become part of a
	// session, by cause.
	Strangers map[Problem]int64
}

// FlowState names what a flow is about.
type FlowState string

// The states of a flow.
const (
	FlowOpening FlowState = "dialing"
	FlowOpen    FlowState = "open"
	FlowParked  FlowState = "parked"
	FlowResumes FlowState = "resuming" // without a lane that it needs
	FlowEnding  FlowState = "delivering"
)

// Figures are a flow at one moment.
type Figures struct {
	State     FlowState
	BytesUp   int64
	BytesDown int64
	Retained  int64 // bytes sent and not acknowledged by the far relay
	Target    string
	Lanes     int
	Resumes   int
	Outage    time.Duration
	RTT       time.Duration // of the session
}
