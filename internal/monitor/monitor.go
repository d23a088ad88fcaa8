// Package monitor watches a relay from the outside: once per interval it takes
// a sample of every flow, from which it makes rates, series and limiting
// causes, and of every flow that has ended it makes a [Record].
//
// Others see its [Snapshot] and its records alone: metrics, the history and the
// dashboard are made from them, and none of them can hold up the data path.
package monitor

import (
	"net/netip"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/tcpinfo"
)

// FlowID names a flow of one relay process; it is never used twice.
type FlowID uint64

// FlowSample is what the relay says of a flow at one moment.
type FlowSample struct {
	ID        FlowID
	Tunnel    string
	State     string // header, dialing, open, client-ended, target-ended, delivering or resetting
	Client    netip.AddrPort
	Listen    netip.AddrPort
	Target    netip.AddrPort // zero: not dialed yet
	Hop       string         // what Target belongs to, as it is configured
	Start     time.Time
	BytesUp   int64 // client to target, handed to the target's socket
	BytesDown int64
	// Unchanged: nothing has moved on either leg since the sample before, and
	// nothing was under way. The legs' figures are left out.
	Unchanged bool
	// Skipped: the legs were not looked at this time. Their figures are left out.
	Skipped   bool
	ClientLeg LegSample
	TargetLeg LegSample
}

// LegSample is one connection of a flow, at its end on this host.
type LegSample struct {
	Side              string // lan or wan; empty: not known yet
	CongestionControl string
	Info              *tcpinfo.Info // nil: there is no connection, or the kernel does not say
	SendBuffer        int64         // bytes; negative: not known
	SendQueued        int64
}

// Leg names one of the two legs of a flow.
type Leg string

// The legs.
const (
	ClientLeg Leg = "client"
	TargetLeg Leg = "target"
)

// Record is what stays of a flow that has ended.
type Record struct {
	ID     int64     `json:"id"` // of the history; 0: not stored yet
	Flow   FlowID    `json:"flow"`
	Tunnel string    `json:"tunnel"`
	Client Address   `json:"client"`
	Target Address   `json:"target"`
	Hop    string    `json:"hop,omitempty"`
	Start  time.Time `json:"start"`
	End    time.Time `json:"end"`

	// Elapsed comes from a clock that does not step, so it may differ from End
	// − Start.
	Elapsed   time.Duration `json:"elapsed_ns"`
	BytesUp   int64         `json:"bytes_up"`
	BytesDown int64         `json:"bytes_down"`
	ClientLeg LegRecord     `json:"client_leg"`
	TargetLeg LegRecord     `json:"target_leg"`
	Goodput   Series        `json:"goodput"`

	// Cause is what limited the flow for the most of the time in which it moved
	// data, on the leg CauseLeg, for the share CauseShare of that time. Empty:
	// nothing stood out, or the flow was too short to tell.
	Cause      doctor.Cause `json:"cause,omitempty"`
	CauseLeg   Leg          `json:"cause_leg,omitempty"`
	CauseShare float64      `json:"cause_share,omitempty"`

	Reason  string `json:"reason"`          // why it ended, in the relay's words
	EndedBy string `json:"ended_by"`        // client, target, both or relay
	Error   string `json:"error,omitempty"` // the system's, behind Reason
}

// Address is an address with a port, empty in JSON if there is none.
type Address struct{ netip.AddrPort }

// GoodputBps is the mean of both directions together, in bits per second; 0 for
// a flow without duration.
func (r *Record) GoodputBps() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.BytesUp+r.BytesDown) * 8 / r.Elapsed.Seconds()
}

// LegRecord is a leg at its end. Zero is unknown, but for the counts, which are
// negative then.
type LegRecord struct {
	Side               string        `json:"side,omitempty"`
	CongestionControl  string        `json:"congestion_control,omitempty"`
	RTT                time.Duration `json:"rtt_ns,omitempty"` // smoothed
	MinRTT             time.Duration `json:"min_rtt_ns,omitempty"`
	BytesSent          int64         `json:"bytes_sent"` // data, retransmissions included
	BytesRetransmitted int64         `json:"bytes_retransmitted"`
	Retransmits        int64         `json:"retransmits"` // segments
}

// Series is the goodput of a flow over its life: one value per step for each
// direction, in bits per second, at most [SeriesLen]. A longer life has longer
// steps.
type Series struct {
	Step    time.Duration `json:"step_ns"`
	UpBps   []float32     `json:"up_bps"`
	DownBps []float32     `json:"down_bps"`
}

// SeriesLen is the most values of a direction in a Series.
const SeriesLen = 60

// Snapshot is what the monitor knows at one moment. It is never changed once it
// is published, so many may read it at once.
type Snapshot struct {
	At       time.Time     `json:"at"`
	Interval time.Duration `json:"interval_ns"` // over which rates are taken
	Sequence uint64        `json:"sequence"`    // of samples
	Took     time.Duration `json:"took_ns"`     // to look at all flows

	Process  Process  `json:"process"`
	FlowsNow int64    `json:"flows_now"`
	Tunnels  []Tunnel `json:"tunnels"`
	Flows    []Flow   `json:"flows"` // oldest first
}

// Process is the relay's process.
type Process struct {
	Version         string    `json:"version"`
	PID             int       `json:"pid"`
	StartedAt       time.Time `json:"started_at"`
	Draining        bool      `json:"draining"`
	OlderProcesses  int       `json:"older_processes"`    // that this one has followed, and that finish their flows
	Shedding        string    `json:"shedding,omitempty"` // why new flows are refused
	ResidentBytes   int64     `json:"resident_bytes"`
	Descriptors     int       `json:"descriptors"`
	DescriptorLimit int       `json:"descriptor_limit"`
	CPUSeconds      float64   `json:"cpu_seconds"`
	MemoryUsed      int64     `json:"memory_used_bytes"`  // by sockets and pipes; negative: not measured
	MemoryLimit     int64     `json:"memory_limit_bytes"` // 0: none

	LastReload      *Reload `json:"last_reload"` // nil: never
	LogLinesDropped uint64  `json:"log_lines_dropped"`
	RecordsDropped  uint64  `json:"records_dropped"` // flows that ended so fast that there is no record of them

	// AcceptErrors counts failed accepts since the start by errno (EMFILE, …).
	AcceptErrors map[string]int64 `json:"accept_errors"`
	// CongestionControl is, by name, whether an algorithm that the
	// configuration wants is in use; false: another takes its place.
	CongestionControl map[string]bool `json:"congestion_control"`
}

// Reload is how the last reload of the configuration went.
type Reload struct {
	At    time.Time `json:"at"`
	OK    bool      `json:"ok"`
	Error string    `json:"error,omitempty"`
}

// Tunnel is a tunnel with its totals since the start, and its present.
type Tunnel struct {
	Name    string           `json:"name"`
	State   string           `json:"state"`
	Since   time.Time        `json:"since"` // of State
	Listen  []netip.AddrPort `json:"listen"`
	Balance string           `json:"balance"`
	Hops    []Hop            `json:"hops"`

	FlowsNow   int64 `json:"flows_now"`
	FlowsPeak  int64 `json:"flows_peak"`
	FlowsLimit int   `json:"flows_limit,omitempty"` // 0: none
	FlowsTotal int64 `json:"flows_total"`
	BytesUp    int64 `json:"bytes_up"` // of flows that last, too
	BytesDown  int64 `json:"bytes_down"`
	Denied     int64 `json:"denied_total"`
	Limited    int64 `json:"limited_total"`
	Shed       int64 `json:"shed_total"`
	Refused    int64 `json:"refused_total"`
	Errors     int64 `json:"errors_total"`

	ShedBy map[string]int64 `json:"shed_by_reason"` // Shed, by what was short
	Closed []Closed         `json:"closed"`         // sorted by EndedBy and Reason

	UpBps   float64 `json:"up_bps"`
	DownBps float64 `json:"down_bps"`
	// Legs are the legs of all its flows, client and target, in this order.
	Legs [2]LegTotals `json:"legs"`
	// Causes counts its flows that moved data in the last interval by what
	// limits them; the empty cause is left out.
	Causes map[doctor.Cause]int `json:"causes"`

	LastCheck *Check `json:"last_check"` // nil: there was none
}

// Closed counts flows that ended the same way.
type Closed struct {
	EndedBy string `json:"ended_by"`
	Reason  string `json:"reason"`
	Flows   int64  `json:"flows"`
}

// LegTotals are all legs of one kind of a tunnel together, ended ones included.
type LegTotals struct {
	Leg                Leg   `json:"leg"`
	BytesSent          int64 `json:"bytes_sent"` // data, retransmissions included
	BytesRetransmitted int64 `json:"bytes_retransmitted"`
	// RetransmittedShare is that of the last interval; negative: nothing was sent.
	RetransmittedShare float64 `json:"retransmitted_share"`
	// RTTs over the flows of the moment; 0: there is none.
	MinRTT    time.Duration `json:"min_rtt_ns"` // least
	MedianRTT time.Duration `json:"median_rtt_ns"`
	P99RTT    time.Duration `json:"p99_rtt_ns"`
	// LimitedSeconds is, by cause, the time of flows that were limited so.
	LimitedSeconds map[doctor.Cause]float64 `json:"limited_seconds"`
}

// Hop is a next hop of a tunnel.
type Hop struct {
	Name     string    `json:"name"` // as it is configured
	State    string    `json:"state"`
	Usable   bool      `json:"usable"`
	Since    time.Time `json:"since"` // zero: since the start
	Weight   int       `json:"weight"`
	Priority int       `json:"priority"`
	FlowsNow int64     `json:"flows_now"`
	Flows    int64     `json:"flows_total"`
	Failures int64     `json:"failures_total"`
	Error    string    `json:"error,omitempty"` // the last one
	// RTT is the median of the target legs that go there, or where there are none
	// what the last probe took; RetransmittedShare is what of their data was sent
	// again in the last interval (negative: nothing was sent).
	RTT                time.Duration `json:"rtt_ns,omitempty"`
	RetransmittedShare float64       `json:"retransmitted_share"`
	// Since the start, of the target legs that go there; negative: not known.
	BytesSent          int64 `json:"bytes_sent"`
	BytesRetransmitted int64 `json:"bytes_retransmitted"`
}

// Check is the last integrity check of a tunnel.
type Check struct {
	At      time.Time  `json:"at"`
	OK      bool       `json:"ok"`
	Verdict string     `json:"verdict"`
	Hops    []CheckHop `json:"hops"` // of the chain, the nearest first
}

// CheckHop is one leg of a chain as a check has seen it.
type CheckHop struct {
	From      string        `json:"from"`
	To        string        `json:"to"`
	State     string        `json:"state"`
	RTT       time.Duration `json:"rtt_ns,omitempty"`
	LossShare float64       `json:"loss_share"` // negative: not measured
	UpBps     float64       `json:"up_bps,omitempty"`
	DownBps   float64       `json:"down_bps,omitempty"`
}

// Flow is a flow of the moment.
type Flow struct {
	ID        FlowID       `json:"id"`
	Tunnel    string       `json:"tunnel"`
	State     string       `json:"state"`
	Client    Address      `json:"client"`
	Listen    Address      `json:"listen"`
	Target    Address      `json:"target"`
	Hop       string       `json:"hop,omitempty"`
	Start     time.Time    `json:"start"`
	BytesUp   int64        `json:"bytes_up"`
	BytesDown int64        `json:"bytes_down"`
	UpBps     float64      `json:"up_bps"`
	DownBps   float64      `json:"down_bps"`
	Legs      [2]FlowLeg   `json:"legs"` // client, target
	Cause     doctor.Cause `json:"cause,omitempty"`
	CauseLeg  Leg          `json:"cause_leg,omitempty"`
}

// FlowLeg is a leg of a flow of the moment. Counts are negative and times zero
// where they are not known.
type FlowLeg struct {
	Side               string        `json:"side,omitempty"`
	CongestionControl  string        `json:"congestion_control,omitempty"`
	RTT                time.Duration `json:"rtt_ns,omitempty"`
	MinRTT             time.Duration `json:"min_rtt_ns,omitempty"`
	BytesSent          int64         `json:"bytes_sent"`
	BytesRetransmitted int64         `json:"bytes_retransmitted"`
	Cause              doctor.Cause  `json:"cause,omitempty"`
}

// Point is the relay's goodput and losses over one step, by tunnel, for charts.
type Point struct {
	At                 time.Time `json:"at"` // end of the step
	Tunnel             string    `json:"tunnel"`
	UpBps              float64   `json:"up_bps"`
	DownBps            float64   `json:"down_bps"`
	RetransmittedShare float64   `json:"retransmitted_share"` // of both legs together; negative: nothing was sent
	Flows              int64     `json:"flows"`
}
