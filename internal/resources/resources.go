// Package resources watches what a process and its host may run short of, and
// says when limits on them are reached.
//
// A figure that cannot be read is unknown, and never counts as zero or as
// full: what is not known is not limited.
package resources

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"longhaul/internal/display"
)

// Resource names what is watched. The names are those of the configuration.
type Resource string

// The resources.
const (
	Descriptors  Resource = "descriptors"   // of the process, against RLIMIT_NOFILE
	Memory       Resource = "memory"        // resident and the process's own: not the program's file
	CgroupMemory Resource = "cgroup_memory" // of the control group, or one above it, that is nearest to its limit
	TCPMemory    Resource = "tcp_memory"    // of all TCP sockets of the machine, against tcp_mem
	CPU          Resource = "cpu"           // of the process, a mean over some seconds
)

// units are those of the figures.
var units = map[Resource]string{
	Descriptors: "descriptors", Memory: "bytes", CgroupMemory: "bytes", TCPMemory: "bytes", CPU: "cpus",
}

// Amount is a count, a number of bytes or of CPUs. A negative one is unknown,
// and null in JSON.
type Amount float64

// Unknown is an amount that could not be read, or that does not exist.
const Unknown Amount = -1

// Known says whether the amount is known.
func (a Amount) Known() bool { return a >= 0 }

// MarshalJSON writes null for what is unknown.
func (a Amount) MarshalJSON() ([]byte, error) {
	if !a.Known() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(a))
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (a *Amount) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*a = Unknown
		return nil
	}
	return json.Unmarshal(b, (*float64)(a))
}

// Usage is how much of something is used, and how much there is.
type Usage struct{ Used, Capacity Amount }

// Limit is from where on something is short: a share of what there is, or an
// amount. The zero value is no limit.
type Limit struct {
	Share  float64 // 0 to 1
	Amount float64
	Grain  float64 // what comes next takes so much: with less room the limit counts as reached
}

// of is the limit where there is so much; unknown where there is none.
func (l Limit) of(capacity Amount) Amount {
	switch {
	case l.Amount > 0:
		return Amount(l.Amount)
	case l.Share > 0 && capacity.Known():
		return Amount(l.Share) * capacity
	}
	return Unknown
}

// Limits are the limits by resource; what is not in it is not limited.
type Limits map[Resource]Limit

// Figure is one resource at one moment.
type Figure struct {
	Resource      Resource   `json:"resource"`
	Unit          string     `json:"unit"`
	Used          Amount     `json:"used"`
	Limit         Amount     `json:"limit"`    // null: none
	Capacity      Amount     `json:"capacity"` // null: unknown, or without an end
	SheddingSince *time.Time `json:"shedding_since"`
}

// Text writes an amount of the figure in at most five characters; - is unknown.
func (f Figure) Text(a Amount) string {
	switch {
	case !a.Known():
		return "-"
	case f.Resource == CPU:
		return fmt.Sprintf("%.2f", float64(a))
	}
	return display.Quantity(int64(math.Round(float64(a))))
}

// Remedy says what to do about a limit that is reached.
func (r Resource) Remedy() string {
	return map[Resource]string{
		Descriptors:  "raise the limit of open files (LimitNOFILE= in the unit), or lower max_flows",
		Memory:       "raise limits.memory, or lower max_flows",
		CgroupMemory: "raise MemoryMax= of the unit (or the container's limit), or set memory_limit",
		TCPMemory:    "set memory_limit, or raise net.ipv4.tcp_mem",
		CPU:          "give the relay more CPUs, or some of its tunnels to another",
	}[r]
}

// Room is how much more may be used until the limit; unknown without one.
func (f Figure) Room() Amount {
	if !f.Limit.Known() || !f.Used.Known() {
		return Unknown
	}
	return max(0, f.Limit-f.Used)
}

// State is everything that is watched, at one moment.
type State struct {
	At              time.Time  `json:"sampled_at"`
	Shedding        []Resource `json:"shedding"` // whose limits are reached
	Tight           []Resource `json:"tight"`    // whose limits are reached, or all but
	Figures         []Figure   `json:"figures"`
	TCPSockets      Amount     `json:"tcp_sockets"`                // of the network namespace, in use
	TCPOrphans      Amount     `json:"tcp_orphans"`                // of the machine: closed, with bytes still to send
	AcceptOverflows Amount     `json:"tcp_accept_overflows_total"` // of the network namespace: an accept queue was full
	ListenDrops     Amount     `json:"tcp_listen_drops_total"`     // of the network namespace: connections dropped by listeners
	LoopDelay       Amount     `json:"event_loop_delay_seconds"`   // until the slowest event loop answered
	fresh           bool       // the descriptors were counted for this state
}

// Figure returns the figure of a resource.
func (s State) Figure(r Resource) Figure {
	for _, f := range s.Figures {
		if f.Resource == r {
			return f
		}
	}
	return Figure{Resource: r, Unit: units[r], Used: Unknown, Limit: Unknown, Capacity: Unknown}
}

// DescriptorRoom is how many more descriptors may be opened until their limit.
// It is false where that is not known, or where they were not counted anew.
func (s State) DescriptorRoom() (int64, bool) {
	room := s.Figure(Descriptors).Room()
	return int64(room), s.fresh && room.Known()
}
