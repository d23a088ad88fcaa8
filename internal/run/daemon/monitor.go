package daemon

import (
	"net/http"
	"os"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/sys/resources"
	"longhaul/internal/tune/cc"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/metrics"
)

// monitoring is "off" in the program that bench/cost holds monitoring against: the linker sets it.
var monitoring = "on"

func monitors() bool { return monitoring != "off" }

// newMonitor returns a monitor of the daemon's relay, which may still be nil.
func (d *daemon) newMonitor() *monitor.Monitor {
	return monitor.New(monitor.Options{
		Sample:    func(visit func(*flow.Sample)) error { return d.relay.EachFlow(visit) },
		Overview:  d.overview,
		OnRecords: d.recordsMade,
		Recorded:  func(r *monitor.Record) bool { return r.Reason != flow.EndCheck },
		Log:       d.log,
	})
}

// withMetrics serves /metrics and passes other paths to next.
func (d *daemon) withMetrics(next http.Handler) http.Handler {
	handler := metrics.Handler(metrics.Options{Snapshot: d.monitor.Totals, History: d.history.metrics, Log: d.log})
	mux := http.NewServeMux()
	mux.Handle("GET "+metricsTarget, d.names.guard(handler))
	mux.Handle("/", next)
	return mux
}

const metricsTarget = "/metrics"

// Between two samples the legs' figures of at most this many flows shorter than
// briefly are read for the monitor alone. With thousands of flows a second, reading
// all would take a tenth of their time.
const (
	briefly    = time.Second
	maxGlances = 200
)

// legsWanted implements relay's LegStats.
func (d *daemon) legsWanted(lasted time.Duration) bool {
	return d.flows.wanted() || monitors() && (lasted >= briefly || d.glances.Add(-1) >= 0)
}

// flowsEnded implements relay's OnFlows.
func (d *daemon) flowsEnded(flows []flow.Record) {
	d.flows.add(flows)
	if !monitors() {
		return
	}
	var batch [4]monitor.Record
	n := 0
	for i := range flows {
		if flows[i].Flow == 0 {
			continue // refusals come in floods: only counted
		}
		batch[n] = monitor.NewRecord(&flows[i])
		if n++; n == len(batch) {
			d.monitor.Ended(batch[:n])
			n = 0
		}
	}
	if n > 0 {
		d.monitor.Ended(batch[:n])
	}
}

// overview returns the monitor's input for each sample.
func (d *daemon) overview() monitor.Overview {
	d.glances.Store(maxGlances)
	s := d.overviewNow()
	resident, cpu := resources.Used()
	descriptors := d.shedder.monitor.State().Figure(resources.Descriptors)
	o := monitor.Overview{
		FlowsNow: s.FlowsNow,
		Pairs:    d.pairs.status(),
		Process: monitor.Process{
			Version:           d.Version,
			PID:               os.Getpid(),
			StartedAt:         d.started,
			Draining:          s.Draining,
			OlderProcesses:    len(d.older.living()),
			Shedding:          s.Shedding,
			ResidentBytes:     resident,
			CPUSeconds:        cpu.Seconds(),
			MemoryUsed:        -1,
			LogLinesDropped:   d.writer.total.Load(),
			RecordsDropped:    d.monitor.Dropped(),
			AcceptErrors:      s.AcceptErrors,
			CongestionControl: d.congestionControls(),
		},
	}
	if s.Memory != nil {
		o.Process.MemoryUsed, o.Process.MemoryLimit = s.Memory.UsedBytes, s.Memory.LimitBytes
	}
	if descriptors.Used.Known() && descriptors.Capacity.Known() {
		o.Process.Descriptors, o.Process.DescriptorLimit = int(descriptors.Used), int(descriptors.Capacity)
	}
	if c := d.pages.current.Load().certificate; c != nil {
		o.Process.CertificateUntil = c.Until()
	}
	d.mu.Lock()
	if r := d.lastReload; r != nil {
		o.Process.LastReload = &monitor.Reload{At: r.At, OK: r.OK, Error: r.Error}
	}
	d.mu.Unlock()
	o.Process.Restored, o.Process.Fights = d.rules.view().counts()
	reports := map[string]*monitor.Check{}
	for _, r := range d.integrity.reports() {
		reports[r.Tunnel] = toCheck(&r)
	}
	for i := range s.Tunnels {
		t := &s.Tunnels[i]
		o.Tunnels = append(o.Tunnels, monitor.Tunnel{Tunnel: *t, LastCheck: reports[t.Name]})
	}
	return o
}

// congestionControls returns which of the configured algorithms are usable.
func (d *daemon) congestionControls() map[string]bool {
	d.mu.Lock()
	c := d.config
	d.mu.Unlock()
	usable := map[string]bool{}
	for _, name := range c.CongestionControls() {
		usable[name] = cc.MayUse(name)
	}
	return usable
}

// toCheck returns the worst chain of a report, or else the first.
func toCheck(r *integrity.Report) *monitor.Check {
	c := &monitor.Check{At: r.At, OK: r.State != integrity.Broken, Verdict: r.Summary, Hops: []monitor.CheckHop{}}
	var shown *integrity.Chain
	for i := range r.Chains {
		if shown == nil || r.Chains[i].State == r.State && shown.State != r.State {
			shown = &r.Chains[i]
		}
	}
	if shown == nil {
		return c
	}
	from := "this relay"
	for i := range shown.Hops {
		h := &shown.Hops[i]
		to := h.Host
		if to == "" {
			to = h.Address.String()
		}
		hop := monitor.CheckHop{From: from, To: to, State: string(h.State), LossShare: max(h.Up.LossRatio(), h.Down.LossRatio())}
		if h.RTT != nil {
			hop.RTT = *h.RTT
		}
		if h.Up != nil && h.Up.GoodputBps != nil {
			hop.UpBps = *h.Up.GoodputBps
		}
		if h.Down != nil && h.Down.GoodputBps != nil {
			hop.DownBps = *h.Down.GoodputBps
		}
		c.Hops = append(c.Hops, hop)
		from = to
	}
	return c
}
