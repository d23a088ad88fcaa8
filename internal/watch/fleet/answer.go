package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/display"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// Bounds of what is kept of an answer.
const (
	maxText   = 300 // characters
	maxAlerts = 100
	maxShown  = 100 // pairs that are down, and sinks
)

// overview is what is read of the answer of /api/v1/overview. A relay of another version may lack a part.
type overview struct {
	Head struct {
		Version  string  `json:"version"`
		FlowsNow int64   `json:"flows_now"`
		UpBps    float64 `json:"up_bps"`
		DownBps  float64 `json:"down_bps"`
		Alerts   []Alert `json:"alerts"`
	} `json:"head"`
	Process struct {
		Draining bool `json:"draining"`
	} `json:"process"`
	Tunnels []struct {
		State     string         `json:"state"`
		Usability flow.Usability `json:"usability"`
	} `json:"tunnels"`
	Pairs []struct {
		Tunnel  string `json:"tunnel"`
		Peer    string `json:"peer"`
		Up      bool   `json:"up"`
		State   string `json:"state"`
		Problem string `json:"problem_text"`
	} `json:"pairs"`
	History *struct {
		Problem string `json:"problem"`
		Remedy  string `json:"remedy"`
		Ship    []Ship `json:"ship"`
	} `json:"history"`
}

// read reads the answer of a relay.
func read(body []byte) Answer {
	var o overview
	if err := json.Unmarshal(body, &o); err != nil || o.Head.Version == "" {
		return failed(Refused, remedy.New(fmt.Errorf("what answers there is no relay of longhaul, or one of another version"), noRelay))
	}
	f := &Figures{
		Version: clean(flow.ReleaseOf(o.Head.Version)), FlowsNow: count(o.Head.FlowsNow), UpBps: rate(o.Head.UpBps), DownBps: rate(o.Head.DownBps),
		Tunnels: len(o.Tunnels), Pairs: len(o.Pairs), PairsDown: []Pair{}, Alerts: []Alert{},
	}
	for _, t := range o.Tunnels {
		// Relays before usability had states alone.
		if t.Usability.Usable || t.Usability.State == "" && t.State == "listening" {
			f.TunnelsUsable++
		}
	}
	for _, p := range o.Pairs {
		if p.Up {
			f.PairsUp++
		} else if len(f.PairsDown) < maxShown {
			f.PairsDown = append(f.PairsDown, Pair{clean(p.Tunnel), clean(p.Peer), clean(p.State), clean(p.Problem)})
		}
	}
	for _, a := range o.Head.Alerts[:min(len(o.Head.Alerts), maxAlerts)] {
		f.Alerts = append(f.Alerts, Alert{clean(a.Level), clean(a.Text)})
	}
	if h := o.History; h != nil {
		if h.Problem != "" {
			f.alert(warning, withRemedy("The history is not written: "+display.FirstLine(h.Problem), h.Remedy))
		}
		f.ships(h.Ship)
	}
	sorted.By(f.Alerts, func(a, b Alert) int { return cmp.Compare(rank(a.Level), rank(b.Level)) })
	return Answer{State: f.state(o.Process.Draining), Figures: f}
}

// ships takes over how records leave the relay, and what is wrong with it.
func (f *Figures) ships(all []Ship) {
	for _, s := range all[:min(len(all), maxShown)] {
		s.Sink, s.Problem, s.Remedy = clean(s.Sink), clean(s.Problem), clean(s.Remedy)
		s.Waiting, s.Lost, s.Lag = count(s.Waiting), count(s.Lost), min(max(s.Lag, 0), maxLag)
		f.Ship = append(f.Ship, s)
		if s.Problem != "" && !f.names(s.Sink) {
			f.alert(warning, withRemedy(fmt.Sprintf("Records do not reach %s, %d wait: %s", s.Sink, s.Waiting, s.Problem), s.Remedy))
		}
		if s.Lost > 0 {
			f.alert(notice, fmt.Sprintf("%s lacks %s that the relay could not keep for it", s.Sink, display.Plural(int(s.Lost), "record")))
		}
	}
}

func withRemedy(problem, fix string) string {
	if fix == "" {
		return problem
	}
	return problem + "; " + fix
}

// names reports whether an alert names a sink.
func (f *Figures) names(sink string) bool {
	for _, a := range f.Alerts {
		if strings.Contains(a.Text, sink) {
			return true
		}
	}
	return false
}

func (f *Figures) alert(level, text string) { f.Alerts = append(f.Alerts, Alert{level, clean(text)}) }

func (f *Figures) state(draining bool) State {
	if draining {
		return Draining
	}
	if f.TunnelsUsable < f.Tunnels || f.PairsUp < f.Pairs {
		return Degraded
	}
	for _, a := range f.Alerts {
		if a.Level != notice {
			return Degraded
		}
	}
	return OK
}

// Levels of alerts.
const (
	critical = "critical"
	warning  = "warning"
	notice   = "notice"
)

// rank orders levels, the worst first. Unknown ones are warnings.
func rank(level string) int {
	switch level {
	case critical:
		return 0
	case notice:
		return 2
	}
	return 1
}

// Bounds of figures, so that none is too wide for its column.
const (
	maxRate  = 1e18
	maxCount = 1e18
	maxLag   = 1e9 // seconds
)

func count(n int64) int64 { return min(max(n, 0), maxCount) }

func rate(bps float64) float64 { return math.Min(math.Max(bps, 0), maxRate) }

// clean is a text of a relay as one bounded line that is harmless to a terminal.
func clean(s string) string {
	if len(s) > maxText { // fewer characters than bytes
		s = display.Truncate(s[:min(len(s), 4*maxText)], maxText)
	}
	return printable.String(s)
}
