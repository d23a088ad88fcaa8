package doctor

import (
	"fmt"
	"math"
	"slices"
	"time"

	"longhaul/internal/words/display"
)

// Pair is a pair of longhaul relays, one of which runs on this host. It has the
// connection, or it should have connections to the ends that were asked for.
type Pair struct {
	Tunnel string `json:"tunnel"` // of this host's relay
	Peer   string `json:"peer"`   // the other relay's name
	Up     bool   `json:"up"`     // a session stands
	// Lane: the connection is one on which the pair carries flows.
	Lane bool `json:"lane,omitempty"`
	// MemoryLimited is how many of its flows would keep more, and the relay here has no memory for it;
	// MemoryRemedy says what to do.
	MemoryLimited int    `json:"memory_limited,omitempty"`
	MemoryRemedy  string `json:"memory_remedy,omitempty"`
	// Of a pair without a session. Problem is its short name, Text says it in a
	// clause, Error is the system's, and Remedy what to do. Flows is how many wait.
	Problem string `json:"problem,omitempty"`
	Text    string `json:"text,omitempty"`
	Error   string `json:"error,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	Flows   int    `json:"flows,omitempty"`
}

// isDown reports whether the pair has no session, and why is known.
func (p *Pair) isDown() bool { return p != nil && !p.Up && p.Problem != "" }

// diagnose names the problem of a pair without a session.
func (p *Pair) diagnose(r Report) Report {
	evidence := []string{p.Text + " (" + p.Problem + ")"}
	if p.Error != "" {
		evidence = append(evidence, "the relay's last attempt: "+display.FirstLine(p.Error))
	}
	if p.Flows > 0 {
		evidence = append(evidence, fmt.Sprintf("flows that wait for a session: %d", p.Flows))
	}
	r.Cause, r.Strength = PairDown, Certain
	r.Findings = []Finding{{Cause: PairDown, Evidence: evidence}}
	if p.Remedy != "" {
		r.Remedies = []Remedy{{Causes: []Cause{PairDown}, Action: p.Remedy, Place: Relay, Command: "longhaul check " + p.Tunnel}}
	}
	return r
}

// lacksMemory reports whether the connection is a lane that idles since its relay may keep no more of
// the flows.
func (c *patient) lacksMemory() bool {
	p := c.o.Pair
	return p != nil && p.Lane && p.MemoryLimited > 0 && c.idle() && !c.lacksCPU()
}

// longPath is the least round trip at which a pair's warm connections are worth a
// relay at each site.
const longPath = 20 * time.Millisecond

// pairing returns the remedy of two paired relays; nil if it would not help. A lane of a
// pair has that already, and may lack others beside it.
func (c *patient) pairing(findings []Finding) *Remedy {
	lanes := 0
	if findings[0].Cause == Policer && c.policesConnections() {
		lanes = min(c.o.MoreStreams.Streams, mostLanes)
	}
	if p := c.o.Pair; p != nil && p.Lane && lanes > 0 {
		return &Remedy{
			Causes: []Cause{Policer}, Place: Relay, Outlook: c.onLanes(lanes),
			Action: fmt.Sprintf("give each flow %d lanes: it then has so many connections, and the policer's rate of each", lanes),
			Others: []string{fmt.Sprintf("that is lanes: %d of the near relay's tunnel; here the pair is that of tunnel %s with %s", lanes, p.Tunnel, p.Peer)},
		}
	}
	r := Remedy{
		Causes: []Cause{findings[0].Cause}, Place: BothSites,
		Command: fmt.Sprintf("longhaul relay --listen :6000 --forward %s --pair-from NEAR-SITE", c.service()),
		Others: []string{
			fmt.Sprintf("that is the relay beside the server; beside its clients: longhaul relay --listen :%d --forward FAR-RELAY:6000 --pair FAR-SITE", c.service().Port()),
			"the two relays exchange keys first: longhaul pair invite NEAR-SITE at the far one, longhaul pair join at the near one",
		},
	}
	switch {
	case c.o.Pair != nil:
		return nil
	case findings[0].Cause == Outage:
		r.Action = "pair a longhaul relay at each site: flows go on after an outage, and after a NAT has forgotten their connection"
	case findings[0].Cause == ShortFlow && c.f.MinRTT >= longPath:
		r.Action = "pair a longhaul relay at each site: a new flow begins on a connection that stands, with an open window"
		r.Outlook = c.onWarmLanes()
	case lanes > 0:
		r.Action = fmt.Sprintf("pair a longhaul relay at each site, with %d lanes: a flow then has so many connections, and the policer's rate of each", lanes)
		r.Others = append(r.Others, fmt.Sprintf("the lanes are a setting of the near relay's tunnel: pair: {peer: FAR-SITE, lanes: %d}", lanes))
		r.Outlook = c.onLanes(lanes)
	default:
		return nil
	}
	return &r
}

// onWarmLanes predicts short transfers without handshake and slow start: a round trip
// each, and the time that the path needs for the bytes.
func (c *patient) onWarmLanes() Outlook {
	mean := float64(c.o.TotalBytes) / float64(max(c.o.Connections, 1))
	now := slowStartTime(int64(mean), c.f.MSS, initialWindow, c.f.MinRTT, zeroIfInf(c.capacity))
	then := c.f.MinRTT
	if !math.IsInf(c.capacity, 1) {
		then += time.Duration(mean * 8 / c.capacity * float64(time.Second))
	}
	gain := float64(now) / float64(then)
	return Outlook{PredictedBps: c.goodput * gain, Gain: gain, Next: "one round trip for each transfer"}
}

// mostLanes is the largest number of lanes of a flow.
const mostLanes = 16

// lanesUnknown says how to learn how many lanes help past a policer, where no test has told.
func (c *patient) lanesUnknown() []string {
	if c.o.MoreStreams != nil {
		return nil
	}
	return []string{fmt.Sprintf("If each connection has a rate of its own, several lanes of a pair get it several times. How many help says "+
		"longhaul doctor HOST, with a longhaul measure --serve there that takes %d connections at once.", 2*c.o.Capacity.Streams)}
}

// onLanes predicts the goodput of a flow with several connections, each with a limit of its own.
func (c *patient) onLanes(n int) Outlook {
	o := Outlook{PredictedBps: belowPolicer * float64(n) * c.o.MoreStreams.each(), Next: "the number of lanes"}
	if c.goodput > 0 {
		o.Gain = o.PredictedBps / c.goodput
	}
	return o
}

// ofLane adapts the remedies of a connection that is a lane: its program is a relay.
func (p *Pair) ofLane(all []Remedy) []Remedy {
	if p == nil || !p.Lane {
		return all
	}
	for k := range all {
		r := &all[k]
		if slices.Contains(r.Causes, Application) || slices.Contains(r.Causes, Reader) {
			r.Action = "look at the flows' other connections: a relay sends on a lane what its clients or targets give it"
			r.Place, r.Command = Relay, "longhaul top --relay"
		}
		if len(r.Apply) > 2 && r.Apply[0] == "cc" {
			r.Others = append(r.Others, fmt.Sprintf("for the lanes alone: wan: {congestion_control: %s} of tunnel %s in the relay's configuration", r.Apply[2], p.Tunnel))
		}
	}
	return all
}

// text says which pair has the connection; empty: none.
func (p *Pair) text() string {
	if p == nil || !p.Lane || p.isDown() { // the verdict names one that is down
		return ""
	}
	return fmt.Sprintf("The connection is a lane of the pair of tunnel %s with %s: flows between the two relays take turns on it.", p.Tunnel, p.Peer)
}
