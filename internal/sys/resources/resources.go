// Package resources watches scarce resources of a process and its host, and reports
// limits that are reached.
//
// An unreadable figure is unknown. It never counts as zero or as full: an unknown
// figure reaches no limit.
package resources

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"longhaul/internal/words/display"
)

// Resource is the name of a watched resource, as in the configuration.
type Resource string

// The resources.
const (
	Descriptors  Resource = "descriptors"   // of the process, against RLIMIT_NOFILE
	Memory       Resource = "memory"        // resident memory of the process, without the program's file
	CgroupMemory Resource = "cgroup_memory" // of the control group or ancestor nearest to its limit
	TCPMemory    Resource = "tcp_memory"    // of all TCP sockets of the machine, against tcp_mem
	CPU          Resource = "cpu"           // of the process, a mean over some seconds
)

// units are the units of the figures.
var units = map[Resource]string{
	Descriptors: "descriptors", Memory: "bytes", CgroupMemory: "bytes", TCPMemory: "bytes", CPU: "cpus",
}

// Amount is a count, a number of bytes or of CPUs. A negative one is unknown,
// and null in JSON.
type Amount float64

// Unknown is an unreadable or missing amount.
const Unknown Amount = -1

// Known reports whether the amount is known.
func (a Amount) Known() bool { return a >= 0 }

// MarshalJSON writes null for an unknown amount.
func (a Amount) MarshalJSON() ([]byte, error) {
	if !a.Known() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(a))
}

// UnmarshalJSON reads the output of MarshalJSON.
func (a *Amount) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*a = Unknown
		return nil
	}
	return json.Unmarshal(b, (*float64)(a))
}

// Usage is the used amount of a resource, and its capacity.
type Usage struct{ Used, Capacity Amount }

// Limit is the threshold at or above which a resource is short: a share of its
// capacity, or an amount. The zero value is no limit.
type Limit struct {
	Share  float64 // 0 to 1
	Amount float64
	Grain  float64 // the next use takes this much: with less room the limit counts as reached
}

// of returns the limit for a capacity; unknown without one.
func (l Limit) of(capacity Amount) Amount {
	switch {
	case l.Amount > 0:
		return Amount(l.Amount)
	case l.Share > 0 && capacity.Known():
		return Amount(l.Share) * capacity
	}
	return Unknown
}

// Limits are the limits by resource. A resource without an entry has no limit.
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

// Text formats an amount of the figure in at most five characters; - is unknown.
func (f Figure) Text(a Amount) string {
	switch {
	case !a.Known():
		return "-"
	case f.Resource == CPU:
		return fmt.Sprintf("%.2f", float64(a))
	}
	return display.Quantity(int64(math.Round(float64(a))))
}

// Names joins the names of resources for a sentence.
func Names(all []Resource) string {
	list := make([]string, len(all))
	for i, r := range all {
		list[i] = string(r)
	}
	return strings.Join(list, ", ")
}

// Remedy returns the remedy for a reached limit.
func (r Resource) Remedy() string {
	return map[Resource]string{
		Descriptors:  "raise the limit of open files (LimitNOFILE= in the unit), or lower max_flows",
		Memory:       "raise limits.memory, or lower max_flows",
		CgroupMemory: "raise MemoryMax= of the unit (or the container's limit), or set memory_limit",
		TCPMemory:    "set memory_limit, or raise net.ipv4.tcp_mem",
		CPU:          "give the relay more CPUs, or some of its tunnels to another",
	}[r]
}

// Room returns the amount left until the limit; unknown without one.
func (f Figure) Room() Amount {
	if !f.Limit.Known() || !f.Used.Known() {
		return Unknown
	}
	return max(0, f.Limit-f.Used)
}

// State has the figures of all resources at one moment.
type State struct {
	At              time.Time  `json:"sampled_at"`
	Shedding        []Resource `json:"shedding"` // whose limits are reached
	Tight           []Resource `json:"tight"`    // whose limits are reached or nearly reached
	Figures         []Figure   `json:"figures"`
	TCPSockets      Amount     `json:"tcp_sockets"`                // of the network namespace, in use
	TCPOrphans      Amount     `json:"tcp_orphans"`                // of the machine: closed, with bytes still to send
	AcceptOverflows Amount     `json:"tcp_accept_overflows_total"` // of the network namespace: an accept queue was full
	ListenDrops     Amount     `json:"tcp_listen_drops_total"`     // of the network namespace: connections dropped by listeners
	LoopDelay       Amount     `json:"event_loop_delay_seconds"`   // until the slowest event loop answered
	OrphansMax      Amount     `json:"-"`                          // of the machine; unknown in a network namespace other than its first
	fresh           bool       // the descriptors were counted for this state
}

// ManyOrphans reports whether half of the orphans exist that the machine may have.
func (s State) ManyOrphans() bool {
	return s.TCPOrphans.Known() && s.OrphansMax.Known() && s.TCPOrphans > s.OrphansMax/2
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

// DescriptorRoom returns the number of descriptors left until their limit. ok is
// false if it is unknown, or if the descriptors were not counted for this state.
func (s State) DescriptorRoom() (int64, bool) {
	room := s.Figure(Descriptors).Room()
	return int64(room), s.fresh && room.Known()
}
