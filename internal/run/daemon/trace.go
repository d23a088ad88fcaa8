package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
	"longhaul/internal/find/doctor"
	"longhaul/internal/run/control"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/trace"
	"longhaul/internal/words/remedy"
)

// tracer describes one flow from end to end, with the parts of the other relays that carry it.
type tracer struct {
	relay   *relay.Relay
	monitor *monitor.Monitor
	older   *olderProcesses
}

// named is the request "trace": the flow whose name, or its first digits, is given.
func (t *tracer) named(ctx context.Context, arguments url.Values) (any, error) {
	name := arguments.Get("name")
	prefix, err := flow.ParseNamePrefix(name)
	if err != nil {
		return nil, remedy.New(err, "longhaul status --json lists the flows that run, with their names")
	}
	found := t.relay.TraceNamed(prefix, 2)
	switch len(found) {
	case 0:
		if older := t.inOlder(ctx, arguments); older != nil {
			return older, nil
		}
		shown := string(prefix)
		if whole, err := flow.ParseName(shown); err == nil {
			shown = whole.String()
		}
		return nil, remedy.New(fmt.Errorf("no flow %s runs here", shown), "if it has ended, longhaul history show NAME has its record")
	case 1:
		return trace.Assess(t.trace(ctx, found[0], true, true)), nil
	}
	return nil, remedy.New(fmt.Errorf("several flows begin with %s, such as %s and %s", prefix, found[0].Name, found[1].Name), "give more digits")
}

// inOlder asks the older processes, which may still carry the flow; nil: none does.
func (t *tracer) inOlder(ctx context.Context, arguments url.Values) *trace.Report {
	for _, one := range t.older.living() {
		body, err := control.Do(ctx, one.ControlSocket, "trace", arguments)
		var r trace.Report
		if err == nil && json.Unmarshal(body, &r) == nil && len(r.Relays) > 0 {
			return &r
		}
	}
	return nil
}

// forPeer is what another relay of the flow's path gets: this relay's part, and those of the relays on the
// other side of it.
func (t *tracer) forPeer(ctx context.Context, c flow.Carried) flow.Trace {
	one, running := t.relay.TraceCarried(c)
	if !running {
		return flow.Trace{}
	}
	return t.trace(ctx, one, one.Before != c, one.Behind != c)
}

// trace asks the relays before and behind this one for their parts, if it is to, and puts all in order.
func (t *tracer) trace(ctx context.Context, one relay.Traced, before, behind bool) flow.Trace {
	var parts [2]flow.Trace
	var failed [2]error
	var asking sync.WaitGroup
	for i, c := range [2]flow.Carried{one.Before, one.Behind} {
		if other, can := c.(flow.Tracer); can && [2]bool{before, behind}[i] {
			asking.Go(func() { parts[i], failed[i] = other.Trace(ctx) })
		}
	}
	asking.Wait()
	all := flow.Trace{Name: one.Name}
	if len(parts[0].Relays) > 0 {
		all.Relays = parts[0].Relays[:parts[0].Here+1]
	}
	all.Here = len(all.Relays)
	all.Relays = append(all.Relays, t.part(&one))
	if len(parts[1].Relays) > 0 {
		all.Relays = append(all.Relays, parts[1].Relays[parts[1].Here:]...)
	}
	for i := range parts {
		all.Missing = append(all.Missing, parts[i].Missing...)
		if failed[i] != nil {
			here := &all.Relays[all.Here]
			if _, down := errors.AsType[*flow.SessionDownError](failed[i]); down && here.UpBps == 0 && here.DownBps == 0 {
				here.Legs[i].Cause = string(doctor.Outage)
			}
			all.Missing = append(all.Missing, failed[i].Error())
		}
	}
	return all
}

// part is this relay's part, with what the monitor has found.
func (t *tracer) part(one *relay.Traced) flow.TraceRelay {
	r := one.Part
	seen, _, known := t.monitor.Flow(one.ID)
	if !known {
		return r
	}
	r.UpBps, r.DownBps = seen.UpBps, seen.DownBps
	for i := range r.Legs {
		r.Legs[i].Cause = string(seen.Legs[i].Cause)
	}
	return r
}
