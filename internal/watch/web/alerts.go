package web

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/display"
	"longhaul/internal/words/sorted"
)

// alert is a condition that an operator should look at.
type alert struct {
	Level string `json:"level"` // critical, warning or notice
	Text  string `json:"text"`
	Link  string `json:"link,omitempty"` // the page about it
}

var levels = []string{"critical", "warning", "notice"}

func alerts(s *monitor.Snapshot) []alert {
	all := []alert{}
	add := func(level, link, format string, args ...any) {
		all = append(all, alert{level, fmt.Sprintf(format, args...), link})
	}
	p := &s.Process
	if p.Shedding != "" {
		add("critical", "", "New flows are refused: %s", p.Shedding)
	}
	if p.Draining {
		add("notice", "", "The relay is draining: it accepts no new flows, and ends with those it has")
	}
	if r := p.LastReload; r != nil && !r.OK {
		add("warning", "", "The last reload of the configuration failed, the old one stays: %s", display.FirstLine(r.Error))
	}
	if !p.RollbackAt.IsZero() {
		add("notice", "", "The configuration is rolled back at %s, unless longhaul reload confirms it", p.RollbackAt.Format(time.RFC3339))
	}
	for _, name := range sortedKeys(p.CongestionControl) {
		if !p.CongestionControl[name] {
			add("warning", "", "Congestion control %s is configured, and another takes its place", name)
		}
	}
	if p.DescriptorLimit > 0 && p.Descriptors*10 >= p.DescriptorLimit*9 {
		add("warning", "", "%d of %d file descriptors are in use", p.Descriptors, p.DescriptorLimit)
	}
	if p.MemoryLimit > 0 && p.MemoryUsed*10 >= p.MemoryLimit*9 {
		add("warning", "", "Sockets and pipes hold nine tenths of memory_limit: senders are slowed down")
	}
	for _, errno := range sortedKeys(p.AcceptErrors) {
		if n := p.AcceptErrors[errno]; n > 0 {
			add("notice", "", "Accepting failed %d times since the start: %s", n, errno)
		}
	}
	if p.LogLinesDropped > 0 {
		add("notice", "", "%d log lines were dropped: the log is not read fast enough", p.LogLinesDropped)
	}
	for i := range s.Tunnels {
		tunnelAlerts(&s.Tunnels[i], add)
	}
	pairAlerts(s, add)
	sorted.By(all, func(a, b alert) int {
		return cmp.Compare(slices.Index(levels, a.Level), slices.Index(levels, b.Level))
	})
	return all
}

func tunnelAlerts(t *monitor.Tunnel, add func(level, link, format string, args ...any)) {
	link := "/tunnels/" + url.PathEscape(t.Name)
	levels := map[flow.Reason]string{
		flow.ReasonDraining: "notice", flow.ReasonDrained: "notice", flow.ReasonRemoved: "notice",
		flow.ReasonShedding: "warning", flow.ReasonResources: "warning", flow.ReasonMaxFlows: "warning",
	}
	for _, p := range t.Usability.Problems {
		add(cmp.Or(levels[p.Reason], "critical"), link, "Tunnel %s %s", t.Name, display.FirstLine(p.Detail))
	}
	for _, p := range t.Host {
		if !p.Blocks {
			add("warning", link, "Tunnel %s: %s", t.Name, p.Problem)
		}
	}
	for _, h := range t.Hops {
		if h.State == flow.HopUp || h.State == flow.HopUntried || t.Usability.Has(flow.ReasonHopsDown, flow.ReasonHopsDrained, flow.ReasonPairDown) {
			continue
		}
		why := ""
		if h.LastError != "" && h.State != flow.HopDrained {
			why = ": " + display.FirstLine(h.LastError)
		}
		add("warning", link, "Hop %s of tunnel %s is %s%s", h.Name, t.Name, h.State, why)
	}
	if c := t.LastCheck; c != nil && !c.OK {
		add("critical", link, "The last integrity check of tunnel %s failed: %s", t.Name, display.FirstLine(c.Verdict))
	}
	if sent := t.Legs[0].Recent.Plus(t.Legs[1].Recent); sent.Level() == flow.LevelHigh {
		add("warning", link, "Tunnel %s sends %.1f %% of its data again, over the last minute", t.Name, sent.Share()*100)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
