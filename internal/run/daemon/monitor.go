package daemon

import (
	"context"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/resources"
	"longhaul/internal/tune/cc"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/metrics"
)

// monitoring is "off" in the program that bench/cost holds monitoring against: the linker sets it.
var monitoring = "on"

func monitors() bool { return monitoring != "off" }

// sampling is the part of the monitor, which samples from the first configuration on.
type sampling struct{ *monitor.Monitor }

func (s sampling) Prepare(context.Context, *plan) (Change, error) {
	return setting(func() {
		if monitors() {
			s.Start()
		}
	}), nil
}

// withMetrics serves /metrics and passes other paths to next.
func (d *daemon) withMetrics(next http.Handler) http.Handler {
	handler := metrics.Handler(metrics.Options{Snapshot: d.ended.monitor.Snapshot, History: d.history.metrics,
		Detail: func() metrics.Detail { return metrics.Detail(d.life.inForce().Metrics.Detail) }})
	mux := http.NewServeMux()
	mux.Handle("GET "+metricsTarget, d.http.names.guard(handler))
	mux.Handle("/", next)
	return mux
}

const metricsTarget = "/metrics"

// Between two samples the legs' figures of at most this many flows shorter than
// briefly are read for the monitor alone. With thousands of flows a second, reading
// all would take a tenth of their time.
const (
	briefly       = time.Second
	maxBriefReads = 200
)

// endedFlows takes from the relay the flows that have ended, for the log and the monitor.
type endedFlows struct {
	log        *flowLog
	monitor    *monitor.Monitor
	relay      string       // in records, by relayName
	briefReads atomic.Int64 // of short flows' legs, left until the next sample
}

// relayName returns the name of a relay in records, which operators may join with those of other hosts:
// its host's, after NAME@ if the relay has a name on its host.
func relayName(name string) string {
	host, _ := os.Hostname() // without it, records have no relay
	if name != "" && host != "" {
		return name + "@" + host
	}
	return host
}

// legsWanted implements relay's LegStats.
func (e *endedFlows) legsWanted(lasted time.Duration) bool {
	return e.log.wanted() || monitors() && (lasted >= briefly || e.briefReads.Add(-1) >= 0)
}

// add implements relay's OnFlows.
func (e *endedFlows) add(flows []flow.Record) {
	e.log.add(flows)
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
		batch[n].Relay = e.relay
		if n++; n == len(batch) {
			e.monitor.Ended(batch[:n])
			n = 0
		}
	}
	if n > 0 {
		e.monitor.Ended(batch[:n])
	}
}

// overview returns the monitor's input for each sample.
func (d *daemon) overview() monitor.Overview {
	d.ended.briefReads.Store(maxBriefReads)
	s, c := d.states.overview(), d.life.inForce()
	resident, cpu := resources.Used()
	descriptors := d.shedder.monitor.State().Figure(resources.Descriptors)
	o := monitor.Overview{
		FlowsNow: s.FlowsNow,
		Removed:  s.Removed,
		Pairs:    d.pairs.status(),
		Process: monitor.Process{
			Version:           d.Version,
			PID:               os.Getpid(),
			StartedAt:         d.started,
			Draining:          s.Draining,
			OlderProcesses:    len(d.past.older.living()),
			Shedding:          s.Shedding,
			ResidentBytes:     resident,
			CPUSeconds:        cpu.Seconds(),
			MemoryUsed:        -1,
			LogLinesDropped:   d.output.total.Load(),
			RecordsDropped:    d.ended.monitor.Dropped(),
			AcceptErrors:      s.AcceptErrors,
			CongestionControl: usableCC(c),
		},
	}
	if s.Memory != nil {
		o.Process.MemoryUsed, o.Process.MemoryLimit = s.Memory.UsedBytes, s.Memory.LimitBytes
	}
	if descriptors.Used.Known() && descriptors.Capacity.Known() {
		o.Process.Descriptors, o.Process.DescriptorLimit = int(descriptors.Used), int(descriptors.Capacity)
	}
	for use, site := range map[string]*httpSite{"dashboard": d.pages.httpSite, "http": d.http.httpSite} {
		if c := site.certificate(); c != nil {
			if o.Process.Certificates == nil {
				o.Process.Certificates = map[string]flow.Certificate{}
			}
			o.Process.Certificates[use] = *c
		}
	}
	if r := d.life.lastReload(); r != nil {
		o.Process.LastReload = &monitor.Reload{At: r.At, OK: r.OK, Error: r.Error}
	}
	o.Process.RollbackAt, _ = d.life.confirmation.pending()
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

// usableCC returns which of the configured congestion controls are usable.
func usableCC(c *config.Config) map[string]bool {
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
