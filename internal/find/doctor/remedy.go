package doctor

import (
	"math"
	"net/netip"
)

// Place is where a remedy is applied.
type Place string

// The places.
const (
	Sender    Place = "sender"   // the host that sends
	Receiver  Place = "receiver" // the host that receives
	InProgram Place = "program"  // that sends
	BothSites Place = "sites"
	Relay     Place = "relay" // the host of this relay
)

// Remedy is a way to remove causes.
type Remedy struct {
	// Causes are the found causes that it removes, the most important first.
	Causes []Cause `json:"causes"`
	Action string  `json:"action"` // what it does, a clause
	Place  Place   `json:"place"`
	// Command is the command to run there; empty if a person has to do it.
	Command string `json:"command,omitempty"`
	// Apply are the arguments of the longhaul command that applies the remedy on
	// this host, and Undo those of the command that undoes it. They are empty if
	// this host does not send, or if longhaul cannot apply the remedy.
	Apply []string `json:"apply,omitempty"`
	Undo  []string `json:"undo,omitempty"`
	// Others are commands with the same effect on other systems.
	Others []string `json:"others,omitempty"`
	// Notes are conditions of the prediction, a sentence each.
	Notes []string `json:"notes,omitempty"`
	Outlook
}

// Outlook is the expected effect of a remedy.
type Outlook struct {
	// PredictedBps is the expected goodput, Gain its factor over the present one,
	// and Next its limit then. 0 is unknown.
	PredictedBps float64 `json:"predicted_bps,omitempty"`
	Gain         float64 `json:"gain,omitempty"`
	Next         string  `json:"next_limit,omitempty"`
	// AtLeast: the path may carry more than PredictedBps.
	AtLeast bool `json:"at_least,omitempty"`
	// Unknown is the missing figure of an unknown prediction.
	Unknown string `json:"unknown,omitempty"`
}

// far returns the receiving host, and the prefix of it alone.
func (c *patient) far() (host, prefix string) {
	far := c.o.Remote.Addr()
	return far.String(), netip.PrefixFrom(far, far.BitLen()).String()
}

// haul is the remedy of a sender that takes losses for congestion.
func (c *patient) haul() Remedy {
	host, _ := c.far()
	return Remedy{
		Action: "send there with haul, which does not treat every loss as congestion", Place: Sender,
		Command: "longhaul cc use haul --to " + host,
		Apply:   []string{"cc", "use", "haul", "--to", host}, Undo: []string{"cc", "undo", "--to", host},
		Others: []string{"Linux without longhaul: sysctl -w net.ipv4.tcp_congestion_control=bbr"},
	}
}

// headersOfSYN returns the size of the headers without options, which an MSS does not
// count (RFC 6691).
func (c *patient) headersOfSYN() int {
	if c.f.Timestamps {
		return c.f.Headers - 12
	}
	return c.f.Headers
}

// windowNeeded returns twice the bandwidth-delay product, in whole MiB.
func (c *patient) windowNeeded() int64 {
	const MiB = 1 << 20
	capacity := c.path
	if math.IsInf(capacity, 1) {
		capacity = 4 * c.goodput // unknown, but more than the present goodput
	}
	return max(int64(math.Ceil(2*capacity/8*c.f.RTT.Seconds()/MiB)), 1) * MiB
}
