package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/run/config"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// Drained is the answer of POST /v1/drain and /v1/resume.
type Drained struct {
	Tunnel   string   `json:"tunnel,omitempty"`
	Hop      string   `json:"hop,omitempty"`
	Tunnels  []string `json:"tunnels,omitempty"` // that have the hop
	Drained  bool     `json:"drained"`
	FlowsNow *int64   `json:"flows_now"`                // null: unknown
	Waited   float64  `json:"waited_seconds"`           // for flows to end
	Silent   []int    `json:"no_answer_from,omitempty"` // older processes whose flows are unknown
	TimedOut bool     `json:"timed_out,omitempty"`
}

// what returns the text of the tunnel or hop.
func (d Drained) what() string {
	if d.Hop != "" {
		return "hop " + d.Hop + " of " + strings.Join(d.Tunnels, ", ")
	}
	return "tunnel " + d.Tunnel
}

// String returns the outcome in a line.
func (d Drained) String() string {
	if !d.Drained {
		return d.what() + " is in service"
	}
	text := d.what() + " is drained, " + d.FlowsText() + " left"
	if len(d.Silent) > 0 {
		text += fmt.Sprintf("; older processes that do not answer: %s", strings.Trim(fmt.Sprint(d.Silent), "[]"))
	}
	return text
}

// FlowsText returns the number of flows left, "- flows" if unknown.
func (d Drained) FlowsText() string {
	if d.FlowsNow == nil {
		return "- flows"
	}
	return display.Plural(int(*d.FlowsNow), "flow")
}

// drains take tunnels and hops out of service, and back.
type drains struct {
	log       *slog.Logger
	discovery *discovery
	relay     *relay.Relay
	rules     *interception
	older     *olderProcesses
	life      *life
	waits     atomic.Int32 // for flows to end
}

func (d *drains) drain(ctx context.Context, arguments url.Values) (any, error) {
	answer, err := d.set(arguments.Get("name"), true)
	if err != nil {
		return nil, err
	}
	switch wait := arguments.Get("wait"); wait {
	case "":
		d.count(ctx, answer)
	case config.Off:
		err = d.await(ctx, answer)
	default:
		within, parseErr := time.ParseDuration(wait)
		if parseErr != nil {
			return nil, parseErr
		}
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		err = d.await(ctx, answer)
	}
	return answer, err
}

func (d *drains) resume(ctx context.Context, arguments url.Values) (any, error) {
	answer, err := d.set(arguments.Get("name"), false)
	if err == nil {
		d.count(ctx, answer)
	}
	return answer, err
}

// set drains or resumes the named tunnel or hop.
func (d *drains) set(name string, out bool) (*Drained, error) {
	// No upgrade begins meanwhile: it would not pass this change on.
	d.life.mu.Lock()
	defer d.life.mu.Unlock()
	if err := d.life.busyLocked(); err != nil {
		return nil, err
	}
	set, word := d.relay.ResumeTunnel, "resumed"
	if out {
		set, word = d.relay.DrainTunnel, "drained"
	}
	answer := &Drained{Drained: out}
	found, err := findNamed(d.discovery.filled(d.life.config.Tunnels), name)
	if err != nil {
		if of, has := findHost(d.relay.Overview().Tunnels, name); has {
			found, err = of, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if found.hop == "" {
		answer.Tunnel = found.tunnel
		was := slices.Contains(d.relay.Drained(), found.tunnel)
		if err := set(found.tunnel); err != nil {
			return nil, err
		}
		d.rules.update()
		if was != out {
			d.log.Info("tunnel "+word, "tunnel", found.tunnel)
		}
		return answer, nil
	}
	hop := found.hop
	tunnels, err := d.relay.DrainHop(found.tunnel, hop, out)
	if err != nil {
		return nil, err
	}
	answer.Hop, answer.Tunnels = hop, tunnels
	d.log.Info("hop "+word, "hop", hop, "tunnels", strings.Join(tunnels, ","))
	return answer, nil
}

// named is a tunnel, or a hop of one tunnel, or of all if tunnel is empty.
type named struct{ tunnel, hop string }

// findNamed finds a tunnel by its name or by an address with ports where it listens, or
// a hop: by its text in the file, in every tunnel, or by TUNNEL/HOP.
func findNamed(tunnels []config.Tunnel, name string) (named, error) {
	var hop named
	for _, t := range tunnels {
		if t.Name == name {
			return named{tunnel: name}, nil
		}
		for _, f := range t.Forward {
			switch name {
			case f.String():
				hop = named{hop: name}
			case t.Name + "/" + f.String():
				return named{t.Name, f.String()}, nil
			}
		}
	}
	for _, t := range tunnels {
		switch {
		case !t.ListensOn(name):
		case hop.hop != "":
			return named{}, remedy.New(fmt.Errorf("%s is where the tunnel %s listens, and a hop", name, t.Name),
				fmt.Sprintf("write %s for the tunnel, or TUNNEL/%s for the hop", t.Name, name))
		default:
			return named{tunnel: t.Name}, nil
		}
	}
	if hop.hop == "" {
		return named{}, unknownName(tunnels, name)
	}
	return hop, nil
}

// findHost finds the hop whose far relay is a host of that name, in every tunnel. Several hops may lead
// there: then it finds none, since one of them alone would leave the host in service.
func findHost(tunnels []flow.Tunnel, name string) (found named, has bool) {
	for i := range tunnels {
		for k := range tunnels[i].Hops {
			h := &tunnels[i].Hops[k]
			if h.Pair == nil || h.Pair.Host == "" || h.Pair.Host != name {
				continue
			}
			if has && found.hop != h.Name {
				return named{}, false
			}
			found, has = named{hop: h.Name}, true
		}
	}
	return found, has
}

// unknownName lists the tunnels and hops for an unknown name.
func unknownName(tunnels []config.Tunnel, name string) error {
	var names, hops []string
	for _, t := range tunnels {
		names = append(names, t.Name)
		for _, f := range t.Forward {
			if !slices.Contains(hops, f.String()) {
				hops = append(hops, f.String())
			}
		}
	}
	const shown = 20
	list := func(all []string) string {
		if len(all) > shown {
			return strings.Join(all[:shown], ", ") + fmt.Sprintf(" and %d more", len(all)-shown)
		}
		return strings.Join(all, ", ")
	}
	return remedy.New(fmt.Errorf("no tunnel and no hop is named %q", name), "tunnels: "+list(names)+"; hops: "+list(hops))
}

// drainPoll is the interval at which a wait counts the flows.
const drainPoll = 100 * time.Millisecond

// maxDrainWaits is the maximum number of waits at the same time: the control socket
// must stay usable beside them.
const maxDrainWaits = 4

// await waits until the flows or ctx have ended.
func (d *drains) await(ctx context.Context, answer *Drained) error {
	if d.waits.Add(1) > maxDrainWaits {
		d.waits.Add(-1)
		return remedy.New(fmt.Errorf("%s is drained; %d commands already wait for flows", answer.what(),
			maxDrainWaits), "watch longhaul status instead")
	}
	defer d.waits.Add(-1)
	began := time.Now()
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		d.count(context.WithoutCancel(ctx), answer)
		answer.Waited = display.Round(time.Since(began).Seconds(), 1e3)
		switch {
		case answer.FlowsNow != nil && *answer.FlowsNow == 0:
			return nil
		case !d.isDrained(answer):
			return remedy.New(fmt.Errorf("%s was resumed or removed during the wait", answer.what()),
				"see longhaul status")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				answer.TimedOut = true
				return nil
			}
			return ctx.Err()
		}
	}
}

// isDrained reports whether the tunnel or hop is still drained.
func (d *drains) isDrained(answer *Drained) bool {
	if answer.Hop == "" {
		return slices.Contains(d.relay.Drained(), answer.Tunnel)
	}
	return !slices.ContainsFunc(answer.Tunnels, func(tunnel string) bool {
		return !d.relay.HopIsDrained(hops.Name{Tunnel: tunnel, Hop: answer.Hop})
	})
}

// count counts the flows of a tunnel or a hop, including those of older processes.
func (d *drains) count(ctx context.Context, answer *Drained) {
	answer.FlowsNow, answer.Silent = nil, nil
	n := answer.flowsIn(flowCountsOf(d.relay))
	for _, older := range d.older.ask(ctx) {
		if older.FlowsNow == nil {
			answer.Silent = append(answer.Silent, older.PID)
			continue
		}
		n += answer.flowsIn(older.counts)
	}
	if len(answer.Silent) == 0 {
		answer.FlowsNow = &n
	}
}

// flowCounts are the flows of a process by tunnel, and by TUNNEL/HOP.
type flowCounts map[string]int64

func flowCountsOf(r *relay.Relay) flowCounts {
	counts := flowCounts(r.FlowsByTunnel())
	for name, n := range r.HopFlows() {
		counts[name.Tunnel+"/"+name.Hop] = n
	}
	return counts
}

func (d *Drained) flowsIn(counts flowCounts) (n int64) {
	if d.Hop == "" {
		return counts[d.Tunnel]
	}
	for _, tunnel := range d.Tunnels {
		n += counts[tunnel+"/"+d.Hop]
	}
	return n
}

// summary answers a process that has taken over from this one, and longhaul stop,
// which also asks for the older processes.
func (d *daemon) summary(ctx context.Context, arguments url.Values) (any, error) {
	s := Summary{Version: d.Version, FlowsNow: d.relay.Flows(), Flows: flowCountsOf(d.relay)}
	if arguments.Has("older") {
		s.OlderProcesses = d.past.older.ask(ctx)
	}
	l := &d.life
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage == replaced {
		s.ReplacedFor = time.Since(l.replacedAt).Seconds()
	}
	if !l.endsAt.IsZero() {
		left := max(0, time.Until(l.endsAt).Seconds())
		s.SecondsLeft = &left
	}
	return s, nil
}
