package hostcheck

import (
	"fmt"

	"longhaul/internal/find/doctor"
	"longhaul/internal/words/units"
)

// Path is the path for which lacks have a cost.
type Path struct {
	Name    string        `json:"name,omitempty"` // of an experiment of the lab
	RateBps float64       `json:"rate_bps"`
	RTT     units.Seconds `json:"rtt_seconds"`
	Loss    float64       `json:"loss"` // share of packets, lost by themselves
	MTU     int           `json:"mtu"`

	// Measured has the goodput of congestion controls on this path, by name.
	Measured map[string]float64 `json:"-"`
	// By is the command that measures them.
	By string `json:"-"`
}

// Paths are the known paths, by name: those of experiments of the lab. Their figures are
// those of docs/records/results.md.
func Paths() map[string]Path {
	return map[string]Path{
		"lossy-lfn": {Name: "lossy-lfn", RateBps: 100e6, RTT: units.Seconds(300e6), Loss: 0.1, MTU: 1500,
			By: "longhaul lab run lossy-lfn",
			Measured: map[string]float64{"cubic": 0.12e6, "illinois": 0.15e6, "hybla": 0.77e6, "bbr": 76e6,
				"brutal": 93.4e6, "haul": 89.7e6}},
		"mitre": {Name: "mitre", RateBps: 1e9, RTT: units.Seconds(63e6), MTU: 1500},
	}
}

func (p Path) way() doctor.Way {
	return doctor.Way{RateBps: p.RateBps, RTT: p.RTT.Duration(), Loss: p.Loss, MTU: p.MTU}
}

// LimitBps is the most data that the path carries.
func (p Path) LimitBps() float64 {
	w := p.way()
	return w.LimitBps(w.MSS())
}

// String describes the path in one line.
func (p Path) String() string {
	text := fmt.Sprintf("%s, %g ms, %g %% lost", units.FormatRate(p.RateBps), 1e3*p.RTT.Seconds(), 100*p.Loss)
	if p.MTU != 1500 {
		text += fmt.Sprintf(", packets of %d bytes", p.MTU)
	}
	if p.Name != "" {
		text = p.Name + ": " + text
	}
	return text
}
