package pcap

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"longhaul/internal/words/sorted"
)

// LeftOut counts the packets and connections without a place in Connections.
type LeftOut struct {
	Connections int64 `json:"connections"` // beyond Options.MaxConnections
	Packets     int64 `json:"packets"`     // of those
	Unwanted    int64 `json:"unwanted"`    // TCP packets of connections outside Options.Between
	NotTCP      int64 `json:"not_tcp"`     // packets
	// Content splits NotTCP by what the packets carry.
	Content           map[string]int64 `json:"content"`
	Fragments         int64            `json:"fragments"`           // fragments of IP packets
	HeadersCut        int64            `json:"headers_cut"`         // packets cut off before the end of TCP's header
	Malformed         int64            `json:"malformed"`           // packets with an invalid header
	WithoutTime       int64            `json:"without_time"`        // packets
	Duplicates        int64            `json:"duplicates"`          // packets captured twice
	UnreadLinkTypes   []string         `json:"unread_link_types"`   // unsupported link types of interfaces
	UnreadLinkPackets int64            `json:"unread_link_packets"` // their packets
}

// Part is a part of the packets left out.
type Part struct {
	Reason  Reason
	Content string // with NotTCP, what they carry; with UnreadLink, the link types
	Packets int64
}

// Reason is why packets are left out.
type Reason string

// The reasons.
const (
	NotTCP      Reason = "not TCP"
	Unwanted    Reason = "other ends"
	Fragment    Reason = "fragment"
	HeadersCut  Reason = "headers cut"
	Malformed   Reason = "malformed"
	WithoutTime Reason = "without a time"
	UnreadLink  Reason = "link type"
)

// Parts lists the packets left out by reason, the most first.
func (l *LeftOut) Parts() []Part {
	all := []Part{
		{Reason: Unwanted, Packets: l.Unwanted}, {Reason: Fragment, Packets: l.Fragments}, {Reason: HeadersCut, Packets: l.HeadersCut},
		{Reason: Malformed, Packets: l.Malformed}, {Reason: WithoutTime, Packets: l.WithoutTime},
		{Reason: UnreadLink, Content: strings.Join(l.UnreadLinkTypes, " and "), Packets: l.UnreadLinkPackets},
	}
	for content, n := range l.Content {
		all = append(all, Part{NotTCP, content, n})
	}
	all = slices.DeleteFunc(all, func(p Part) bool { return p.Packets == 0 })
	sorted.By(all, func(a, b Part) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Content, b.Content))
	})
	return all
}

// HidesTCP reports whether the packets may be of TCP.
func (p *Part) HidesTCP() bool {
	switch p.Reason {
	case Unwanted, Malformed:
		return false
	case NotTCP:
		return opaque[p.Content]
	}
	return true
}

// opaque lists contents that may have TCP inside.
var opaque = map[string]bool{
	"WireGuard": true, "IPsec (ESP)": true, "IPsec in UDP": true, "OpenVPN": true, "L2TP": true,
	greUnknown: true, mplsUnknown: true, geneveUnknown: true, tooDeep: true, "PPP with other content": true,
}

// String says how many packets they are.
func (p Part) String() string {
	noun, of := "packet", ""
	switch p.Reason {
	case NotTCP, UnreadLink:
		of = " of " + p.Content
	case Unwanted:
		of = " of TCP between other ends"
	case Fragment:
		noun, of = "fragment", " of IP packets"
	case HeadersCut:
		of = " with headers cut by the snap length"
	case Malformed:
		of = " with an invalid header"
	case WithoutTime:
		of = " without a time (simple packet blocks)"
	}
	if p.Packets != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s%s", p.Packets, noun, of)
}
