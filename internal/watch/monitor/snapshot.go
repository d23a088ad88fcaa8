package monitor

import (
	"strings"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/words/units"
)

// Record is the account of a flow that has ended.
type Record struct {
	ID int64 `json:"id"` // of the history; 0: not stored yet
	flow.Record
	Relay string `json:"relay,omitempty"` // that carried the flow, by its host's name
	// RelaySite is the site of Relay, as a database of many relays has it.
	RelaySite string `json:"relay_site,omitempty"`
	Site      string `json:"site,omitempty"` // of Peer, if it is one of its hosts
	// End and Start are the wall clock's, so End − Start may differ from Elapsed.
	End     time.Time `json:"end"`
	Goodput Series    `json:"goodput"`

	// Cause limited the flow for the largest part, CauseShare, of the time in
	// which it moved data, on the leg CauseLeg. Empty: no cause stood out, or
	// the flow was too short.
	Cause      doctor.Cause `json:"cause,omitempty"`
	CauseLeg   flow.Leg     `json:"cause_leg,omitempty"`
	CauseShare float64      `json:"cause_share,omitempty"`

	EndedBy string `json:"ended_by"`        // client, target, both, relay or peer
	Error   string `json:"error,omitempty"` // the text of Err
}

// RelayName tells the record's relay from all others: SITE/RELAY, as for peers, or RELAY without a site
// of another name than its host's.
func (r *Record) RelayName() string {
	_, host, named := strings.Cut(r.Relay, "@")
	if !named {
		host = r.Relay
	}
	if r.RelaySite == "" || r.RelaySite == host {
		return r.Relay
	}
	return r.RelaySite + "/" + r.Relay
}

// NewRecord begins the record of a flow that has ended.
func NewRecord(f *flow.Record) Record {
	r := Record{Record: *f, Site: flow.SiteOf(f.Peer), EndedBy: f.EndedBy()}
	if f.Err != nil {
		r.Error = f.Err.Error()
	}
	return r
}

// Series is the goodput of a flow over its life. It has at most [SeriesLen]
// values per direction, one per step, in bits per second. A longer life has
// longer steps.
type Series struct {
	Step    units.Seconds `json:"step_seconds"`
	UpBps   []float32     `json:"up_bps"`
	DownBps []float32     `json:"down_bps"`
}

// SeriesLen is the maximum number of values per direction in a Series.
const SeriesLen = 60

// Snapshot is the state of the monitor at one moment, without its flows (see
// [Monitor.Flows]). It never changes once
// published, so any number of goroutines may read it.
type Snapshot struct {
	At       time.Time     `json:"at"`
	Interval units.Seconds `json:"interval_seconds"` // of the rates
	Sequence uint64        `json:"sequence"`         // of samples
	Took     units.Seconds `json:"took_seconds"`     // to sample flows
	// Lag is how old the figures of the flow are whose sample is due for longest, because too
	// many flows move data; 0: none is due. Sums of tunnels have no lag.
	Lag units.Seconds `json:"lag_seconds"`

	Process  Process  `json:"process"`
	FlowsNow int64    `json:"flows_now"`
	Tunnels  []Tunnel `json:"tunnels"`

	Pairs      *flow.Pairs `json:"pairs,omitempty"`       // nil: no tunnel is paired
	PairTotals []Pair      `json:"pair_totals,omitempty"` // sums of the sessions of Pairs
}

// Process is the relay's process.
type Process struct {
	Version         string    `json:"version"`
	PID             int       `json:"pid"`
	StartedAt       time.Time `json:"started_at"`
	Draining        bool      `json:"draining"`
	OlderProcesses  int       `json:"older_processes"`    // predecessors that finish their flows
	Shedding        string    `json:"shedding,omitempty"` // why new flows are refused
	ResidentBytes   int64     `json:"resident_bytes"`
	Descriptors     int       `json:"descriptors"`
	DescriptorLimit int       `json:"descriptor_limit"`
	CPUSeconds      float64   `json:"cpu_seconds"`
	MemoryUsed      int64     `json:"memory_used_bytes"`  // by sockets and pipes; negative: not measured
	MemoryLimit     int64     `json:"memory_limit_bytes"` // 0: no limit

	// Certificates are those of the servers that have one: dashboard and http (http_listen).
	Certificates map[string]flow.Certificate `json:"certificates,omitempty"`

	LastReload *Reload `json:"last_reload"` // nil: never
	// RollbackAt is when the relay goes back, unless its configuration is confirmed; zero: never.
	RollbackAt time.Time `json:"rollback_at,omitzero"`
	// Restored are parts of this host's state, by kind, that were set again after another
	// program removed them. Fights counts those who kept removing them.
	Restored        map[string]int64 `json:"restored_total,omitempty"`
	Fights          int64            `json:"fights_total"`
	LogLinesDropped uint64           `json:"log_lines_dropped"`
	RecordsDropped  uint64           `json:"records_dropped"` // flows without a record, because too many ended at once

	// AcceptErrors counts failed accepts since the start by errno (EMFILE, …).
	AcceptErrors map[string]int64 `json:"accept_errors"`
	// CongestionControl maps each configured algorithm to whether it is in use;
	// false: a fallback is.
	CongestionControl map[string]bool `json:"congestion_control"`
}

// Reload is the result of the latest reload of the configuration.
type Reload struct {
	At    time.Time `json:"at"`
	OK    bool      `json:"ok"`
	Error string    `json:"error,omitempty"`
}

// Tunnel is the present state of a tunnel with its totals since the start.
// BytesUp and BytesDown include running flows.
type Tunnel struct {
	flow.Tunnel
	Since time.Time `json:"since"` // of State
	Hops  []Hop     `json:"hops"`  // those of the relay, with what was measured

	UpBps   float64 `json:"up_bps"`
	DownBps float64 `json:"down_bps"`
	// Legs are the sums over the legs of all its flows: client, target.
	Legs [2]LegTotals `json:"legs"`
	// Causes counts its flows that moved data in the last interval, by limiting
	// cause; the empty cause is omitted.
	Causes map[doctor.Cause]int `json:"causes"`

	Distributions `json:"-"`

	LastCheck *Check `json:"last_check"` // nil: no check yet
}

// LegTotals sums all legs of one kind of a tunnel, including ended ones.
type LegTotals struct {
	Leg                flow.Leg `json:"leg"`
	BytesSent          int64    `json:"bytes_sent"` // data, retransmissions included
	BytesRetransmitted int64    `json:"bytes_retransmitted"`
	// RetransmittedShare covers the last minute, as single seconds say little;
	// negative: nothing was sent.
	RetransmittedShare float64    `json:"retransmitted_share"`
	RetransmittedLevel flow.Level `json:"retransmitted_level,omitempty"` // in the last minute
	Recent             flow.Sent  `json:"-"`                             // in the last minute
	// RTTs over the present flows; 0: no flow.
	MinRTT    units.Seconds `json:"min_rtt_seconds"`
	MedianRTT units.Seconds `json:"median_rtt_seconds"`
	P99RTT    units.Seconds `json:"p99_rtt_seconds"`
	// LimitedSeconds is the time in which flows were limited, by cause.
	LimitedSeconds map[doctor.Cause]float64 `json:"limited_seconds"`
}

// Hop is a next hop of a tunnel, with figures of the target legs to it.
type Hop struct {
	flow.Hop
	// RetransmittedShare is the share of retransmitted data in the last
	// minute; negative: nothing was sent.
	RetransmittedShare float64    `json:"retransmitted_share"`
	RetransmittedLevel flow.Level `json:"retransmitted_level,omitempty"` // in the last minute
	// Since the start; negative: unknown.
	BytesSent          int64 `json:"bytes_sent"`
	BytesRetransmitted int64 `json:"bytes_retransmitted"`

	Connect *Distribution `json:"-"` // empty for a far relay, which connects to targets itself
}

// Check is the latest integrity check of a tunnel.
type Check struct {
	At      time.Time  `json:"at"`
	OK      bool       `json:"ok"`
	Verdict string     `json:"verdict"`
	Hops    []CheckHop `json:"hops"` // of the chain, nearest first
}

// CheckHop is a check's result for one leg of a chain.
type CheckHop struct {
	From      string        `json:"from"`
	To        string        `json:"to"`
	State     string        `json:"state"`
	RTT       units.Seconds `json:"rtt_seconds,omitempty"`
	LossShare float64       `json:"loss_share"` // negative: not measured
	UpBps     float64       `json:"up_bps,omitempty"`
	DownBps   float64       `json:"down_bps,omitempty"`
}

// Flow is a running flow.
type Flow struct {
	ID        flow.ID      `json:"id"`
	Name      flow.Name    `json:"name,omitzero"`  // the same in every relay that carries the flow
	Site      string       `json:"site,omitempty"` // of Peer, if it is one of its hosts
	Peer      string       `json:"peer,omitempty"` // the other relay of the pair that brings the flow or takes it on
	Tunnel    string       `json:"tunnel"`
	State     string       `json:"state"`
	Client    flow.Address `json:"client"`
	Listen    flow.Address `json:"listen"`
	Target    flow.Address `json:"target"`
	Hop       string       `json:"hop,omitempty"`
	Start     time.Time    `json:"start"`
	BytesUp   int64        `json:"bytes_up"`
	BytesDown int64        `json:"bytes_down"`
	UpBps     float64      `json:"up_bps"`
	DownBps   float64      `json:"down_bps"`
	Legs      [2]FlowLeg   `json:"legs"` // client, target
	// SampledAgo is how old its figures may be at the latest sample of flows; 0: they are of that.
	SampledAgo units.Seconds `json:"sampled_ago_seconds,omitempty"`

	Cause    doctor.Cause `json:"cause,omitempty"`
	CauseLeg flow.Leg     `json:"cause_leg,omitempty"`
	Lanes    []flow.Lane  `json:"lanes,omitempty"` // of a flow of a pair that has several
}

// FlowLeg is a leg of a running flow. Unknown counts are negative, unknown
// times zero.
type FlowLeg struct {
	Side               string        `json:"side,omitempty"`
	CongestionControl  string        `json:"congestion_control,omitempty"`
	RTT                units.Seconds `json:"rtt_seconds,omitempty"`
	MinRTT             units.Seconds `json:"min_rtt_seconds,omitempty"`
	BytesSent          int64         `json:"bytes_sent"`
	BytesRetransmitted int64         `json:"bytes_retransmitted"`
	// Retransmits counts segments, without those that the peer had already (DSACK).
	Retransmits        int64        `json:"retransmits"`
	RetransmittedLevel flow.Level   `json:"retransmitted_level,omitempty"` // over its life
	Cause              doctor.Cause `json:"cause,omitempty"`
}

// Point is a tunnel's goodput and retransmissions over one step, for charts.
type Point struct {
	At                 time.Time `json:"at"` // end of the step
	Tunnel             string    `json:"tunnel"`
	UpBps              float64   `json:"up_bps"`
	DownBps            float64   `json:"down_bps"`
	RetransmittedShare float64   `json:"retransmitted_share"` // of both legs together; negative: nothing was sent
	Flows              int64     `json:"flows"`
}
