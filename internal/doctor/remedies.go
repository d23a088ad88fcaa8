package doctor

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"longhaul/internal/units"
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

const unknownCapacity = "the path's capacity"

// outlook returns the expected effect of removing causes.
func (c *patient) outlook(findings []Finding, removed []Cause) Outlook {
	if slices.Contains(removed, Outage) {
		return Outlook{} // a path that is down has no figures
	}
	bps, next := c.without(findings, removed)
	if math.IsInf(bps, 1) {
		return Outlook{Unknown: unknownCapacity}
	}
	o := Outlook{PredictedBps: bps, Next: next, AtLeast: next == trialBound}
	if c.goodput > 0 {
		o.Gain = bps / c.goodput
	}
	return o
}

// remedies returns the remedies of all findings, most effective first. Remedies of
// several causes appear once. It leaves out those that would bring less than a fifth,
// unless the causes must go together.
func (c *patient) remedies(findings []Finding) []Remedy {
	var all []Remedy
	for _, finding := range findings {
		for _, r := range c.against(finding.Cause) {
			r.Causes = []Cause{finding.Cause}
			if c.o.Elsewhere {
				r.Apply, r.Undo = nil, nil
			}
			if k := slices.IndexFunc(all, r.isSame); k >= 0 {
				all[k].Causes = append(all[k].Causes, finding.Cause)
			} else {
				all = append(all, r)
			}
		}
	}
	for k := range all {
		all[k].Outlook = c.outlook(findings, all[k].Causes)
	}
	if pair := c.relayPair(findings); pair != nil {
		k := slices.IndexFunc(all, func(r Remedy) bool { return r.Causes[0] != findings[0].Cause })
		switch {
		case c.gain(findings[0]) == 0 || compareGains(pair.Gain, c.gain(findings[0])) > 0:
			k = 0 // it removes together what others remove alone
		case k < 0:
			k = len(all)
		}
		all = slices.Insert(all, k, *pair)
	}
	if pairing := c.pairing(findings); pairing != nil {
		all = slices.Insert(all, 0, *pairing)
	}
	all = c.o.Pair.ofLane(all)
	if c.gain(findings[0]) > 0 || len(all) > 0 && all[0].Gain >= Worthwhile {
		all = slices.DeleteFunc(all, func(r Remedy) bool { return r.Gain > 0 && r.Gain < Worthwhile })
	}
	return all
}

// isSame reports whether another remedy is the same deed.
func (r Remedy) isSame(other Remedy) bool {
	return r.Action == other.Action && r.Command == other.Command
}

// against returns the remedies of a cause, the usual one first.
func (c *patient) against(cause Cause) []Remedy {
	far := c.o.Remote.Addr()
	host := far.String()
	prefix := netip.PrefixFrom(far, far.BitLen()).String()
	window := c.windowNeeded()
	haul := Remedy{
		Action: "send there with haul, which does not treat every loss as congestion", Place: Sender,
		Command: "longhaul cc use haul --to " + host,
		Apply:   []string{"cc", "use", "haul", "--to", host}, Undo: []string{"cc", "undo", "--to", host},
		Others: []string{"Linux without longhaul: sysctl -w net.ipv4.tcp_congestion_control=bbr"},
	}
	switch cause {
	case ReceiverWindow:
		return []Remedy{{
			Action: fmt.Sprintf("let the receiver's window grow to %s", units.FormatSize(float64(window))), Place: Receiver,
			Command: fmt.Sprintf("sysctl -w net.ipv4.tcp_rmem=\"4096 131072 %d\"", 2*window),
			Others: []string{
				fmt.Sprintf("AIX: no -o rfc1323=1 -o tcp_recvspace=%d -o sb_max=%d", window, 4*window),
				"a program that sets SO_RCVBUF: have it set none, or this size",
			},
		}}
	case WindowScaling:
		return []Remedy{{
			Action: "turn window scaling on, at both hosts", Place: Receiver,
			Command: "sysctl -w net.ipv4.tcp_window_scaling=1",
			Others: []string{"AIX: no -o rfc1323=1",
				"a firewall that strips the option from SYNs: have it pass the option"},
		}}
	case SendBuffer:
		return []Remedy{{
			Action: "let the send buffer grow: have the program set no SO_SNDBUF, or " + units.FormatSize(float64(window)), Place: InProgram,
			Others: []string{
				fmt.Sprintf("Linux's bound on automatic buffers: sysctl -w net.ipv4.tcp_wmem=\"4096 16384 %d\"",
					2*window),
				fmt.Sprintf("AIX: no -o tcp_sendspace=%d -o sb_max=%d", window, 4*window),
			},
		}}
	case RandomLoss:
		return []Remedy{haul}
	case Reordering:
		if !c.looksOld() {
			return []Remedy{haul}
		}
		return []Remedy{haul, {
			Action: "turn TCP's timestamps off, at the receiver too: they can make both ends drop overtaken packets", Place: Sender,
			Command: "sysctl -w net.ipv4.tcp_timestamps=0",
		}}
	case Policer:
		held := math.Round(0.97*zeroIfInf(c.path)*float64(c.f.MSS+c.f.Headers)/float64(max(c.f.MSS, 1))/1e4) / 100
		if held == 0 {
			return []Remedy{haul}
		}
		return []Remedy{haul, {
			Action: fmt.Sprintf("send at %.2f Mb/s, just below the policer's rate", held), Place: Sender,
			Command: fmt.Sprintf("longhaul cc use brutal --to %s --rate %.2fMbit", host, held),
			Apply:   []string{"cc", "use", "brutal", "--to", host, "--rate", fmt.Sprintf("%.2fMbit", held)},
			Undo:    []string{"cc", "undo", "--to", host},
			Others:  []string{"Linux without longhaul: tc qdisc replace dev DEVICE root fq maxrate " + fmt.Sprintf("%.2fmbit", held)},
		}}
	case SegmentSize, AsymmetricMTU:
		mss := c.o.Path.MTU - c.headersOfSYN()
		return []Remedy{{
			Action: fmt.Sprintf("have the receiver announce an MSS of %d", mss), Place: Receiver,
			Command: fmt.Sprintf("longhaul route set --to %s --advmss %d", netip.PrefixFrom(c.o.Local.Addr(), c.o.Local.Addr().BitLen()), mss),
		}, {
			Action: "raise the MSS that the receiver announces, on the path", Place: Sender,
			Command: fmt.Sprintf("longhaul mss set --dev DEVICE --to %s --raise %d", prefix, mss),
			Others:  []string{"AIX, towards other networks: no -o tcp_mssdflt=" + fmt.Sprint(mss)},
		}}
	case BlackHole:
		mss := 1220 // from IPv6's minimum MTU, which every path carries
		if c.o.Path.MTU > 0 {
			mss = c.o.Path.MTU - c.headersOfSYN()
		}
		return []Remedy{{
			Action: fmt.Sprintf("send smaller packets there: %d bytes", mss+c.headersOfSYN()), Place: Sender,
			Command: fmt.Sprintf("longhaul route set --to %s --mtu %d", host, mss+c.headersOfSYN()),
			Apply:   []string{"route", "set", "--to", host, "--mtu", fmt.Sprint(mss + c.headersOfSYN())},
			Undo:    []string{"route", "undo", "--to", host},
			Others: []string{
				"Linux finds the size by itself with: sysctl -w net.ipv4.tcp_mtu_probing=1",
				fmt.Sprintf("for all connections that a router forwards: longhaul mss set --dev DEVICE --to %s --clamp %d", prefix, mss),
			},
		}}
	case Outage:
		if c.o.Path.MTU == 0 {
			return nil // the path is down
		}
		return []Remedy{{Action: "have the program send TCP keepalives more often than a NAT or a firewall on the path forgets connections", Place: InProgram}}
	case Pacing:
		return []Remedy{{Action: "have the program pace higher, or not at all (SO_MAX_PACING_RATE)", Place: InProgram}}
	case Application:
		return []Remedy{{Action: "have the program keep data ready: larger writes, more requests in flight, several connections, reading and writing at once", Place: InProgram}}
	case CPU:
		return []Remedy{{Action: "take work off the program's busy thread: a cheaper cipher or compression, or several threads", Place: InProgram}}
	case ShortFlow:
		return []Remedy{{
			Action: fmt.Sprintf("begin with %d segments", largeInitialWindow), Place: Sender,
			Command: fmt.Sprintf("longhaul route set --to %s --initcwnd %d", host, largeInitialWindow),
			Apply:   []string{"route", "set", "--to", host, "--initcwnd", fmt.Sprint(largeInitialWindow)}, Undo: []string{"route", "undo", "--to", host},
		}, {Action: "have the program keep and reuse its connections", Place: InProgram}}
	}
	return nil
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
