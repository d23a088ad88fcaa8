package flow

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"longhaul/internal/words/display"
	"longhaul/internal/words/units"
)

// Pairs are the pairs of a relay process at one moment.
type Pairs struct {
	Instance           string                `json:"instance"` // random, of this process
	RetainedBytes      int64                 `json:"retained_bytes"`
	RetainedLimitBytes int64                 `json:"retained_limit_bytes,omitempty"` // a quarter of memory_limit, or of the host's or cgroup's memory
	Sessions           []Session             `json:"sessions"`
	Strangers          map[PairProblem]int64 `json:"strangers_total"`        // connections that became part of no session, by problem
	KeysProblem        string                `json:"keys_problem,omitempty"` // why the files of keys cannot be read; the relay goes on with those it has
	Refused            *RefusedCertificate   `json:"refused_certificate,omitempty"`
	Certificate        *Certificate          `json:"certificate,omitempty"` // this host's, with pair_trust
}

// Certificate is one by which a host proves its name to others.
type Certificate struct {
	Name  string    `json:"name,omitempty"` // with pair_trust
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
}

// RefusedCertificate is the last connection that either end refused because of a certificate.
type RefusedCertificate struct {
	At     time.Time  `json:"at"`
	Source netip.Addr `json:"source"`
	Tunnel string     `json:"tunnel"`
	Error  string     `json:"error"`
}

// SiteOf returns the site of a peer that is one of its hosts, SITE/HOST; empty: the peer's name is not of
// that form.
func SiteOf(peer string) string {
	if site, _, several := strings.Cut(peer, "/"); several {
		return site
	}
	return ""
}

// Session is what relates a tunnel of this relay to one process of a paired
// relay, whether it stands or not.
type Session struct {
	Tunnel   string      `json:"tunnel"`
	Peer     string      `json:"peer"`
	Hop      string      `json:"hop,omitempty"` // of a near tunnel with several, as configured
	Session  string      `json:"session"`       // number, of the near relay
	End      PairRole    `json:"end"`           // this relay's
	Up       bool        `json:"up"`
	Since    time.Time   `json:"since,omitzero"` // of Up, true or false
	Problem  PairProblem `json:"problem,omitempty"`
	Error    string      `json:"error,omitempty"`    // behind Problem
	Remote   Address     `json:"remote,omitzero"`    // of the control connection
	Instance string      `json:"instance,omitempty"` // of the other process
	Release  string      `json:"release,omitempty"`  // of the other process
	// ReleaseHere is this process's, if the other one has another.
	ReleaseHere string `json:"release_here,omitempty"`
	Draining    bool   `json:"draining"` // it takes no new flows
	// Own is where the far process takes connections itself, as it says, if that is another address than
	// Remote and it matters. OwnUsed: lanes go there. If not, OwnError says why it does not answer; empty:
	// the tunnel does not allow it.
	Own      Address `json:"own_address,omitzero"`
	OwnUsed  bool    `json:"own_address_used,omitempty"`
	OwnError string  `json:"own_address_error,omitempty"`

	Encrypted bool `json:"encrypted"` // false: bytes cross the WAN in clear
	// EndsInClear: beginnings and ends of flows cross the WAN in clear as well, since the other
	// relay is of an older release.
	EndsInClear bool `json:"ends_in_clear"`
	// Twin: another relay with the same key, host name and entrance is connected.
	Twin bool `json:"twin"`
	// HeadsUnchecked: nothing finds bytes that are altered in the heads of frames in clear, since
	// the other relay is of an older release.
	HeadsUnchecked bool `json:"heads_unchecked"`
	// OnePort: the near tunnel has a range of ports, and the far relay, which is of an older release, takes
	// flows to the first one alone.
	OnePort   bool `json:"one_port"`
	Resumable bool `json:"resumable"` // false: a flow ends with its connection over the WAN
	// Overload is how late answers come because a relay waits for a processor; 0: less than a second.
	Overload units.Seconds `json:"overload_seconds,omitempty"`
	// Compress is auto if both relays may send compressed records, and unsupported if the
	// near one would, and the far one is of an older release; or off.
	Compress string `json:"compress"`

	RTT           units.Seconds `json:"rtt_seconds,omitempty"`
	LaneError     string        `json:"lane_error,omitempty"`   // why lanes that it lacks cannot be made, though it is up
	LaneProblem   PairProblem   `json:"lane_problem,omitempty"` // of LaneError
	Flows         int           `json:"-"`                      // that have not ended
	LanesWarm     int           `json:"lanes_warm"`
	LanesBusy     int           `json:"lanes_busy"`
	FlowsMoving   int           `json:"flows_moving"`   // with a lane
	FlowsStriped  int           `json:"flows_striped"`  // of these, with several lanes
	FlowsParked   int           `json:"flows_parked"`   // silent, without a lane
	FlowsResuming int           `json:"flows_resuming"` // without a lane that they need
	// FlowsMemoryLimited would keep more, and the relay's memory does not allow it.
	FlowsMemoryLimited int `json:"flows_memory_limited,omitempty"`

	FlowsTotal    int64         `json:"flows_total"`
	RetainedBytes int64         `json:"retained_bytes"` // sent, and not acknowledged by the other relay
	Resumes       int64         `json:"resumes_total"`  // lost lanes that others replaced
	Outage        units.Seconds `json:"outage_seconds"` // together
	// CompressedBytes, both ways, crossed the WAN as CompressedToBytes.
	CompressedBytes   int64 `json:"compressed_bytes"`
	CompressedToBytes int64 `json:"compressed_to_bytes"`

	Paths []Path `json:"paths,omitempty"` // of a near tunnel that configures them
}

// Path is a path from a near tunnel to its far relay.
type Path struct {
	Path     string        `json:"path"`    // as the configuration names it
	Standby  bool          `json:"standby"` // used while all others are lost
	Up       bool          `json:"up"`
	Since    time.Time     `json:"since,omitzero"` // of Up, true or false
	Active   bool          `json:"active"`         // flows may use it now
	Control  bool          `json:"control"`        // the control connection is on it
	Error    string        `json:"error,omitempty"`
	RTT      units.Seconds `json:"rtt_seconds,omitempty"`
	Lanes    int           `json:"lanes"`      // connections for data
	Busy     int           `json:"lanes_busy"` // of these, with a flow
	Sent     int64         `json:"sent_bytes_total"`
	Received int64         `json:"received_bytes_total"`
}

// State names how a path is.
func (p *Path) State() string {
	switch {
	case p.Up && !p.Active:
		return "standby"
	case p.Up:
		return "up"
	case p.Error == "":
		return "connecting"
	}
	return "down"
}

// Lane is a connection over the WAN of a flow that has several. Its bytes are those of its
// connection, for all flows that had it.
type Lane struct {
	Local         Address       `json:"local"`
	BytesSent     int64         `json:"bytes_sent"` // acknowledged by the other host
	BytesReceived int64         `json:"bytes_received"`
	SentBps       float64       `json:"sent_bps"` // since the sample before
	ReceivedBps   float64       `json:"received_bps"`
	RTT           units.Seconds `json:"rtt_seconds,omitempty"`
	Leaving       bool          `json:"leaving,omitempty"` // another takes its place
}

// PairRole is an end of a pair.
type PairRole string

// The ends of a pair.
const (
	NearEnd PairRole = "near" // has the clients, and makes the connections
	FarEnd  PairRole = "far"  // has the targets
)

// PairProblem is the cause that keeps a session from standing.
type PairProblem string

// The problems of a session; none: "".
const (
	PairUnpaired    PairProblem = "unpaired"    // what answers is no paired relay
	PairKeyUnknown  PairProblem = "key-unknown" // one relay does not know the key of the other
	PairCertificate PairProblem = "certificate" // one relay refuses the certificate of the other
	PairVersion     PairProblem = "version"     // the relays have no version of the protocol in common
	PairPathDown    PairProblem = "path-down"   // nothing answers
	PairPathMTU     PairProblem = "path-mtu"    // the path drops large packets
	PairDenied      PairProblem = "denied"      // the far tunnel does not take this relay's flows
	PairDraining    PairProblem = "draining"    // the far process takes no new sessions
	PairEncrypt     PairProblem = "encrypt"     // one relay has encrypt: off, the other has not
	PairBusy        PairProblem = "busy"        // the far relay has too many handshakes or sessions
	PairOverloaded  PairProblem = "overloaded"  // one of the relays has no CPU for its answers
)

// The values of Session.Compress.
const (
	CompressOff         = "off"
	CompressAuto        = "auto"
	CompressUnsupported = "unsupported"
)

// State names how a session is: up, draining, lost (it was up), connecting, or its
// problem.
func (s *Session) State() string {
	switch {
	case s.Refused():
		return string(s.LaneProblem)
	case s.Up && s.Draining:
		return "draining"
	case s.Up:
		return "up"
	case s.Instance != "" && (s.Problem == "" || s.Problem == PairPathDown || s.Problem == PairPathMTU):
		return "lost"
	case s.Problem != "":
		return string(s.Problem)
	}
	return "connecting"
}

// Refused reports that the session only keeps its flows: one of the two relays refuses new connections for a key
// or a certificate.
func (s *Session) Refused() bool {
	return s.Up && (s.LaneProblem == PairCertificate || s.LaneProblem == PairKeyUnknown)
}

// ClearWarning is what users of a pair without encryption must know.
const ClearWarning = "encrypt: off: bytes cross the WAN unprotected and unauthenticated"

// ClearEndsWarning is what they must know of one with a relay that knows no other way.
const ClearEndsWarning = "the other relay is of an older release: clients' addresses, and the beginnings and ends of flows, " +
	"also cross the WAN in clear; upgrade it"

// ClearHeadsWarning is the other thing that they must know of such a relay.
const ClearHeadsWarning = "the other relay is of an older release: a byte that is altered on the way can make a flow stand still; " +
	"upgrade it"

// OnePortWarning is what they must know whose tunnel has a range of ports.
const OnePortWarning = "the far relay is of an older release and takes flows to the first port of a range alone; upgrade it"

// TwinWarning is what the users of relays must know that are copies of one another.
const TwinWarning = "another relay with the same key, host name and listen is connected: each relay needs its own key; " +
	"give one of them an empty key directory, and pair it"

// Notes tells the mode of a session, if it is not the usual one, and what is wrong with it.
func (s *Session) Notes() (notes []string) {
	if !s.Encrypted {
		notes = append(notes, ClearWarning)
	}
	if s.EndsInClear {
		notes = append(notes, ClearEndsWarning)
	}
	if s.HeadsUnchecked {
		notes = append(notes, ClearHeadsWarning)
	}
	if s.OnePort {
		notes = append(notes, OnePortWarning)
	}
	if s.Twin {
		notes = append(notes, TwinWarning)
	}
	if s.Up && s.Overload > 0 {
		notes = append(notes, fmt.Sprintf("overloaded: answers come %.1f s late; this relay or the other one gets too little CPU", float64(s.Overload)))
	}
	switch {
	case !s.Own.IsValid() || s.OwnUsed:
	case s.OwnError == "":
		own := s.Own.Addr()
		notes = append(notes, fmt.Sprintf("lanes go to %v, which may lead to other hosts: the far relay's own address is %v; "+
			"to allow it, add lanes_to to pair, with the far relays' own addresses, such as lanes_to: [%v/%d]", s.Remote, s.Own, own, own.BitLen()))
	default:
		notes = append(notes, fmt.Sprintf("the far relay's own address %v does not answer, so lanes go to %v: %s", s.Own, s.Remote, s.OwnError))
	}
	if !s.Resumable {
		notes = append(notes, "resume: off: a flow ends with its connection over the WAN")
	}
	if n := s.FlowsMemoryLimited; n > 0 {
		notes = append(notes, display.Plural(n, "flow")+" limited by memory: "+MemoryRemedy)
	}
	if s.Up && s.Compress == CompressUnsupported {
		notes = append(notes, "compress: auto has no effect: the other relay is of an older release")
	}
	return notes
}

// MemoryRemedy says how flows of a pair may keep more.
const MemoryRemedy = "raise this relay's memory_limit, or the memory of its host or control group if that is off"

// WaitingFlows is the number of flows that go on when the session is back.
func (s *Session) WaitingFlows() int { return s.FlowsMoving + s.FlowsParked + s.FlowsResuming }

// Add adds the figures of another session of the same pair.
func (s *Session) Add(o *Session) {
	s.Flows += o.Flows
	s.LanesWarm += o.LanesWarm
	s.LanesBusy += o.LanesBusy
	s.FlowsMoving += o.FlowsMoving
	s.FlowsStriped += o.FlowsStriped
	s.FlowsParked += o.FlowsParked
	s.FlowsResuming += o.FlowsResuming
	s.FlowsMemoryLimited += o.FlowsMemoryLimited
	s.RetainedBytes += o.RetainedBytes
	s.AddTotals(o)
}

// AddTotals adds those figures of another session that only grow, so that they count when it has
// ended.
func (s *Session) AddTotals(o *Session) {
	s.FlowsTotal += o.FlowsTotal
	s.Resumes += o.Resumes
	s.Outage += o.Outage
	s.CompressedBytes += o.CompressedBytes
	s.CompressedToBytes += o.CompressedToBytes
}

// ReleaseOf is the release alone in what a program says of itself, such as v1.2.3 of
// "longhaul v1.2.3 go1.26.8 linux/arm64": the platforms of two relays may differ.
func ReleaseOf(version string) string {
	release, _, _ := strings.Cut(strings.TrimPrefix(version, "longhaul "), " ")
	return release
}

// Facts tells the figures in words that few sessions have.
func (s *Session) Facts() (facts []string) {
	if s.ReleaseHere != "" {
		facts = append(facts, "release "+ReleaseOf(s.Release)+" there, "+ReleaseOf(s.ReleaseHere)+" here")
	}
	if s.FlowsStriped > 0 {
		facts = append(facts, display.Plural(s.FlowsStriped, "flow")+" with several lanes")
	}
	if s.CompressedBytes > 0 {
		facts = append(facts, "compressed "+display.Quantity(s.CompressedBytes)+" to "+display.Quantity(s.CompressedToBytes))
	}
	return facts
}

// PairProblemText says in words what keeps a session with a relay from standing.
// The relay is given by its name or its address.
func PairProblemText(problem PairProblem, relay string) string {
	switch problem {
	case PairUnpaired:
		return "what answers at " + relay + " is no paired relay"
	case PairKeyUnknown:
		return relay + " and this relay do not know each other's keys"
	case PairCertificate:
		return relay + " or this relay refuses the other's certificate"
	case PairVersion:
		return relay + " speaks another version of the pair protocol"
	case PairPathDown:
		return relay + " cannot be reached"
	case PairPathMTU:
		return "the path to " + relay + " drops large packets without an ICMP message"
	case PairDenied:
		return relay + " does not take this relay's flows"
	case PairDraining:
		return relay + " takes no new sessions"
	case PairEncrypt:
		return relay + " and this relay differ in encrypt, so they exchange nothing"
	case PairBusy:
		return relay + " has too many connections in their handshakes, or too many sessions of this host"
	case PairOverloaded:
		return relay + " or this relay gets too little CPU for its answers"
	}
	return "no session with " + relay + " stands"
}

// Remedy says what to do about the problem of a session or of its lanes, and at which of the two relays;
// empty: nothing is known.
func (s *Session) Remedy() string {
	other := "far"
	if s.End == FarEnd {
		other = "near"
	}
	problem := s.Problem
	if s.Up { // with a session, only lanes can have one
		problem = s.LaneProblem
	}
	switch problem {
	case PairUnpaired:
		return "check forward: what listens there must be a tunnel with pair_from, of a longhaul that knows pairs"
	case PairKeyUnknown:
		return s.keyRemedy()
	case PairCertificate:
		return "at the relay that refuses, compare ca and names of pair_trust with the certificate; at the other one, renew that. " +
			"longhaul status there has the reason"
	case PairVersion:
		return "upgrade the older of the two relays"
	case PairPathDown:
		return "check that the " + other + " relay runs, and that no firewall stands between"
	case PairPathMTU:
		return "have both relays probe for the size: sysctl -w net.ipv4.tcp_mtu_probing=1, and wan: {mtu_probing: true} in both tunnels; " +
			"or lower the MSS (longhaul mss set). What drops the packets is a tunnel or a firewall on the path with a smaller MTU"
	case PairDenied:
		return "at the far relay, add to pair_from the name that longhaul pair list shows there for this relay"
	case PairEncrypt:
		return "write the same encrypt in pair of the near tunnel and in pair_from of the far one"
	case PairBusy:
		return "see the far relay's log for who floods it; this relay goes on trying"
	case PairOverloaded:
		return "give both relays more CPU, or fewer clients (max_flows, rate); flows wait, and go on by themselves"
	}
	return ""
}

// AnotherHost begins the error of a session whose address leads to another host of the site than the tunnel
// names.
const AnotherHost = "another host of the site answers"

// keyRemedy is how both relays come to know each other's key. The far relay invites, since only
// that one has a port that takes a join.
func (s *Session) keyRemedy() string {
	if s.End == FarEnd {
		return "pair again: here longhaul pair invite " + s.Peer + " --address HOST:PORT, at the near relay longhaul pair join - < line"
	}
	if site, _, host := strings.Cut(s.Peer, "/"); host && strings.HasPrefix(s.Error, AnotherHost) {
		return "correct the address in forward, or write pair: " + site
	}
	return "compare longhaul pair list at both relays. If the peer has another name here: longhaul pair rename OLD " + s.Peer +
		". Otherwise pair: at the far relay longhaul pair invite NAME --address HOST:PORT, here longhaul pair join - --as " + s.Peer + " < line"
}

// Taking says whether the pair of a near tunnel takes new flows.
type Taking struct {
	Peer string // as the tunnel names it: a host, or a site
	Host string // the peer whose key the far relay has proved, also to an earlier session or process; empty: not known yet
	// Instance is of the far process; 0: not known yet. Two that run with one key are two hosts with a copied key.
	Instance uint64
	Takes    bool
	Suspect  bool        // the far relay owes an answer for too long: new flows go to other hops, and standing ones stay
	Crowded  bool        // standing flows wait for lanes, as after an outage: new flows would wait with them, so they go to other hops
	Stood    bool        // the pair has stood, in this process or the one before
	Met      bool        // in this session
	Since    time.Time   // the session has stood, or not, or the far tunnel has had its trouble, or none again
	Problem  PairProblem // of one that does not
	Error    string      // behind Problem
	Trouble  string      // why the far tunnel takes no flows, in its relay's words; empty: it takes them
}

// PairHop is what the pair of a hop is like for new flows, on screens: there a session that is
// replaced within moments does not go down.
type PairHop struct {
	Taking
	State  HopState // up, untried or down
	Reason Reason   // of one that is down
	Why    string   // of one that is down, in words
}
