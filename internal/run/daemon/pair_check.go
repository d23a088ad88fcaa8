package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
)

// pairCheckTime bounds a check of a pair: what a session needs to stand, or to
// fail, over a long path.
const pairCheckTime = 15 * time.Second

// check reports on the sessions of a near tunnel, and on the target behind each far relay. Sessions
// measure their path all the time, so a check sends no bytes.
func (p *pairs) check(ctx context.Context, tunnel string) (*integrity.Report, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, pairCheckTime)
	defer cancel()
	p.mu.Lock()
	near := p.current.near[tunnel]
	p.mu.Unlock()
	if near == nil {
		return nil, remedy.New(fmt.Errorf("tunnel %s has no pair any more", tunnel), "check again")
	}
	found := make([]hopCheck, len(near.hops))
	var all sync.WaitGroup
	for i := range near.hops {
		all.Go(func() { found[i] = p.checkHop(ctx, tunnel, near, &near.hops[i]) })
	}
	all.Wait()
	var chains []integrity.Chain
	var texts []string
	notes := hopNotes(p.relay.Standing(nil), tunnel)
	for i, one := range found {
		if one.err != nil {
			return nil, one.err
		}
		if note := notes[near.hops[i].name]; note != "" {
			one.chain.Note = note
			one.text += "; this hop is " + note
		}
		chains = append(chains, one.chain)
		texts = append(texts, one.text)
	}
	r := integrity.NewReport(tunnel, began, chains)
	if r.State == integrity.Accepts { // no bytes of a check pass a pair
		r.Summary = strings.Join(texts, "; ")
	}
	return &r, nil
}

// hopNotes says why hops of a tunnel get no new flows though their sessions may stand.
func hopNotes(tunnels []flow.Tunnel, tunnel string) map[string]string {
	notes := map[string]string{}
	for _, t := range tunnels {
		if t.Name != tunnel {
			continue
		}
		for i := range t.Hops {
			switch h := &t.Hops[i]; h.State {
			case flow.HopDrained:
				notes[h.Name] = string(h.State)
			case flow.HopSameHost:
				notes[h.Name] = string(h.State) + ": it " + h.LastError
			}
		}
	}
	return notes
}

// hopCheck is what a check found at a hop.
type hopCheck struct {
	chain integrity.Chain
	text  string // of a chain without a fault
	err   error
}

// checkHop checks the session of a hop, and the target behind its far relay.
func (p *pairs) checkHop(ctx context.Context, tunnel string, near *nearTunnel, hop *nearHop) hopCheck {
	s, err := p.problemOf(ctx, tunnel, hop.options.Hop)
	if err != nil {
		return hopCheck{err: err}
	}
	chain := pairChain(s, hop.name)
	if s.Up && !s.Refused() && !near.original {
		addProbed(&chain, s.Peer, hop.probe(ctx, pairCheckTime/2, 0))
		if chain.Fault == nil && hop.options.Ports > 1 {
			addRange(&chain, s.Peer, hop.probe(ctx, pairCheckTime/2, uint16(hop.options.Ports-1)))
		}
	}
	text := fmt.Sprintf("the pair with %s stands, %.1f ms away, and ", s.Peer, s.RTT.Seconds()*1e3)
	if n := len(chain.Hops); n > 1 {
		for i := range chain.Hops[1 : n-1] {
			text += fmt.Sprintf("that of %s with %s, and ", chain.Hops[i].Host, chain.Hops[i+1].Host)
		}
		text += chain.Hops[n-1].Address.String() + " accepts"
		if hop.options.Ports > 1 {
			text += fmt.Sprintf(", the first of %d ports", hop.options.Ports)
		}
	} else {
		text += "each flow has a target of its own"
	}
	for _, path := range s.Paths {
		if !path.Up && path.Error != "" {
			text += "; the path " + path.Path + " is down: " + path.Error
		}
	}
	if !s.Encrypted {
		text += "; " + flow.ClearWarning
	}
	if s.EndsInClear {
		text += "; " + flow.ClearEndsWarning
	}
	if s.HeadsUnchecked {
		text += "; " + flow.ClearHeadsWarning
	}
	return hopCheck{chain: chain, text: text}
}

// addProbed adds what a probe found behind the far relay: the relays of a chain of pairs, and the target.
func addProbed(c *integrity.Chain, peer string, found probed) {
	for i := 1; i < len(found.relays); i++ {
		before, r := &found.relays[i-1], &found.relays[i]
		next := integrity.Hop{Kind: integrity.KindRelay, Host: r.Relay, Tunnel: r.Tunnel, Address: before.Legs[1].Remote.AddrPort, State: integrity.Whole}
		if before.Pair != nil {
			next.RTT = &before.Pair.RTT
		}
		c.Hops = append(c.Hops, next)
	}
	end, err := found.end, found.err
	hop := integrity.Hop{Kind: integrity.KindTarget, Address: found.target, State: integrity.Whole}
	if !found.target.IsValid() {
		reason := integrityReason(end, err)
		hop.Kind, hop.State, c.State = integrity.KindUnknown, integrity.Broken, integrity.Broken
		detail := string(end)
		if err != nil {
			detail = err.Error()
		}
		c.Fault = &integrity.Fault{Reason: reason, Hop: 2, From: peer, To: "the target", Detail: detail,
			Text: fmt.Sprintf("the pair with %s stands, but no target is reached from there: %s", peer, detail),
			Hint: "check forward of the far tunnel, and what listens there"}
		switch {
		case end == flow.EndPairDown && found.byPeer:
			c.Fault.To = "the next relay"
			c.Fault.Text = fmt.Sprintf("the pair with %s stands, but the next one behind it does not: %s", peer, detail)
			c.Fault.Hint = "run longhaul check at " + peer + ": it says why"
		case end == flow.EndPairDown, end == flow.EndNoLocalPort:
			c.Fault.Text = fmt.Sprintf("the session with %s stands, but no flow reaches it: %s", peer, detail)
			c.Fault.Hint = "check the way from this host to the far relay: each of paths, local ports, firewalls"
		case end == flow.EndLoop && found.byPeer:
			c.Fault.Hint = "correct pair or forward at one of the relays: the chain leads back to a relay that it has passed"
		case end == flow.EndNoHop:
			c.Fault.Hint = "look at the far tunnel with longhaul status there: is it drained, or is its target down?"
		}
	}
	c.Hops = append(c.Hops, hop)
}

// addRange adds that the far relay does not take flows to the last port of the tunnel's range. Whether
// something listens there is not asked, as for a tunnel without a pair.
func addRange(c *integrity.Chain, peer string, found probed) {
	end, err := found.end, found.err
	if end != flow.EndDenied || err == nil {
		return
	}
	c.State = integrity.Broken
	c.Fault = &integrity.Fault{Reason: integrityReason(end, err), Hop: len(c.Hops), From: peer, To: "the last port of the range", Detail: err.Error(),
		Text: fmt.Sprintf("the pair with %s stands, but does not serve the whole range of ports: %s", peer, err),
		Hint: "compare listen of this tunnel with forward of the far one"}
}

// isNear reports whether a tunnel is the near end of a pair.
func isNear(c *config.Config, tunnel string) bool {
	return slices.ContainsFunc(c.Tunnels, func(t config.Tunnel) bool { return t.Name == tunnel && t.Pair.Paired() })
}

// pairChain describes a session as a chain of one hop.
func pairChain(s flow.Session, forward string) integrity.Chain {
	hop := integrity.Hop{Kind: integrity.KindUnknown, Host: s.Peer, Address: s.Remote.AddrPort, Version: s.Release, State: integrity.Whole}
	if s.Up && !s.Refused() {
		hop.Kind, hop.RTT = integrity.KindRelay, &s.RTT
		return integrity.Chain{Forward: forward, State: integrity.Whole, Hops: []integrity.Hop{hop}}
	}
	hop.State = integrity.Broken
	if s.Refused() {
		s.Problem, s.Error = s.LaneProblem, s.LaneError
	}
	return integrity.Chain{Forward: forward, State: integrity.Broken, Hops: []integrity.Hop{hop}, Fault: &integrity.Fault{
		Reason: integrity.Reason(s.Problem),
		Hop:    1,
		From:   "this relay",
		To:     forward,
		Detail: s.Error,
		Text:   pairProblemText(s, forward),
		Hint:   s.Remedy(),
	}}
}

// pairProblemText says in a sentence why a session does not stand.
func pairProblemText(s flow.Session, forward string) string {
	text := string(s.Problem) + ": " + flow.PairProblemText(s.Problem, forward)
	if s.Error != "" {
		text += " (" + s.Error + ")"
	}
	return text
}
