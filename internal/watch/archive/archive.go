// Package archive has what leaves a relay: the records of flows as rows of a
// database that many relays share. A [Sink] takes rows, and package ship moves
// them there from the relay's own history, which is the spool. The sinks are in
// the packages below: PostgreSQL, HTTP with JSON rows, IPFIX.
//
//	flow ends ─▶ history (SQLite, the spool) ─▶ ship: a cursor for each sink ─▶ Sink
//
// The key of a row is (relay, epoch, id). A sink may be handed a row twice, and
// has it once.
package archive

import (
	"context"
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
)

// Row is a record with what makes it unique among all relays.
type Row struct {
	monitor.Record
	// Epoch is random and belongs to a stretch of the spool's IDs: where the spool
	// has lost its end with the host's power, IDs come again, in another epoch.
	Epoch int64
	// OwnSite is that of the relay, as its configuration has it; else the relay's host.
	OwnSite string
	// Clients is what the sink may learn of the client's address, the empty one all.
	Clients Clients
}

// Clients is what a sink learns of the addresses of clients.
type Clients string

// What a sink may learn.
const (
	WholeClients     Clients = "whole"
	TruncatedClients Clients = "truncated" // the first 24 bits of IPv4, 48 of IPv6; no port
	NoClients        Clients = "none"
)

// ClientPrefix is what the sink may learn of the client's address; invalid: nothing.
func (r *Row) ClientPrefix() netip.Prefix {
	if !r.Client.IsValid() || r.Clients == NoClients {
		return netip.Prefix{}
	}
	addr := r.Client.Addr().WithZone("").Unmap()
	bits := addr.BitLen()
	if r.Clients == TruncatedClients {
		bits = flow.TruncatedBits(addr)
	}
	p, _ := addr.Prefix(bits) // the bits are within the address
	return p
}

// ClientPort is 0 where the sink may not learn it.
func (r *Row) ClientPort() uint16 {
	if r.Clients == NoClients || r.Clients == TruncatedClients {
		return 0
	}
	return r.Client.Port()
}

// Sink takes rows to a place outside of the relay. It is used by one goroutine.
type Sink interface {
	// Deliver returns when the place has all rows, or with an error and its remedy
	// ([longhaul/internal/words/remedy]); then it is called again with the same rows,
	// and perhaps more. Rows are in the order of their IDs. It does not change them.
	Deliver(ctx context.Context, rows []Row) error
	Close() error
}

// Resumer is a [Sink] whose place says what it has, so that rows which it has lost are shipped again:
// a standby that was promoted may lack the last ones, and so does a backup.
type Resumer interface {
	Sink
	// Last returns the ID of the last row of each epoch; epochs without rows are left out. Rows before
	// that one are there.
	Last(ctx context.Context, epochs []int64) (map[int64]int64, error)
}

// Column is a column of a row. It has the same name in every sink that has names.
type Column struct {
	Name string
	// Value is a string, an int64, a float64, a [time.Time] in UTC of whole
	// milliseconds, a [netip.Prefix] or a [flow.Name]; nil is unknown or none.
	Value func(*Row) any
}

// Columns are all of them, the key first. The view flows of a history has most of them, by the
// same names.
func Columns() []Column { return columns }

var columns = append([]Column{
	{"relay", func(r *Row) any { return r.Relay }},
	{"epoch", func(r *Row) any { return r.Epoch }},
	{"id", func(r *Row) any { return r.ID }},
	{"started", func(r *Row) any { return r.Start.UTC().Truncate(time.Millisecond) }},
	{"ended", func(r *Row) any { return r.End.UTC().Truncate(time.Millisecond) }},
	{"elapsed_us", func(r *Row) any { return max(r.Elapsed.Duration().Microseconds(), 0) }},
	{"name", func(r *Row) any {
		if r.Name.IsZero() {
			return nil
		}
		return r.Name
	}},
	{"relay_site", func(r *Row) any { return r.OwnSite }},
	{"tunnel", func(r *Row) any { return r.Tunnel }},
	{"site", func(r *Row) any { return word(r.Site) }},
	{"peer", func(r *Row) any { return word(r.Peer) }},
	{"hop", func(r *Row) any { return word(r.Hop) }},
	{"client", func(r *Row) any {
		if p := r.ClientPrefix(); p.IsValid() {
			return p
		}
		return nil
	}},
	{"client_port", func(r *Row) any { return above(0, int64(r.ClientPort())) }},
	{"target", func(r *Row) any {
		if !r.Target.IsValid() {
			return nil
		}
		addr := r.Target.Addr().WithZone("").Unmap()
		return netip.PrefixFrom(addr, addr.BitLen())
	}},
	{"target_port", func(r *Row) any { return above(0, int64(r.Target.Port())) }},
	{"bytes_up", func(r *Row) any { return max(r.BytesUp, 0) }},
	{"bytes_down", func(r *Row) any { return max(r.BytesDown, 0) }},
	{"cause", func(r *Row) any { return word(string(r.Cause)) }},
	{"cause_leg", func(r *Row) any { return word(string(r.CauseLeg)) }},
	{"cause_share", func(r *Row) any {
		if r.Cause == "" {
			return nil
		}
		return r.CauseShare
	}},
	{"ended_by", func(r *Row) any { return word(r.EndedBy) }},
	{"reason", func(r *Row) any { return word(string(r.Reason)) }},
	{"error", func(r *Row) any { return word(r.Error) }},
	{"resumes", func(r *Row) any { return outage(r, r.Resumes) }},
	{"outage_us", func(r *Row) any { return outage(r, r.Outage.Duration().Microseconds()) }},
}, append(legColumns("client", func(r *Row) *flow.LegRecord { return &r.ClientLeg }),
	legColumns("target", func(r *Row) *flow.LegRecord { return &r.TargetLeg })...)...)

func legColumns(name string, leg func(*Row) *flow.LegRecord) []Column {
	return []Column{
		{name + "_side", func(r *Row) any { return word(leg(r).Side) }},
		{name + "_congestion_control", func(r *Row) any { return word(leg(r).CongestionControl) }},
		{name + "_rtt_us", func(r *Row) any { return above(0, leg(r).RTT.Duration().Microseconds()) }},
		{name + "_min_rtt_us", func(r *Row) any { return above(0, leg(r).MinRTT.Duration().Microseconds()) }},
		{name + "_bytes_sent", func(r *Row) any { return above(-1, leg(r).BytesSent) }},
		{name + "_bytes_retransmitted", func(r *Row) any { return above(-1, leg(r).BytesRetransmitted) }},
		{name + "_retransmits", func(r *Row) any { return above(-1, leg(r).Retransmits) }},
	}
}

// word is nil for an empty text.
func word(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// above is nil for a number that is not above the bound.
func above(bound, v int64) any {
	if v <= bound {
		return nil
	}
	return v
}

// outage is a figure of a flow that lost its connection between two relays, nil of others.
func outage(r *Row, v int64) any {
	if r.Resumes <= 0 && r.Outage <= 0 {
		return nil
	}
	return max(v, 0)
}
