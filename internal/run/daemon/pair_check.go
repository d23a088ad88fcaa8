package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/run/config"
)

// pairCheckTime bounds a check of a pair: what a session needs to stand, or to
// fail, over a long path.
const pairCheckTime = 15 * time.Second

// check reports on the session of a near tunnel, and on the target behind the far
// relay. Sessions measure their path all the time, so a check sends no bytes.
func (p *pairs) check(ctx context.Context, tunnel, forward string) (*integrity.Report, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, pairCheckTime)
	defer cancel()
	s, err := p.problemOf(ctx, tunnel)
	if err != nil {
		return nil, err
	}
	chain := pairChain(s, forward)
	if s.Up {
		p.mu.Lock()
		near := p.current.near[tunnel]
		p.mu.Unlock()
		if near != nil && !near.original {
			target, end, err := near.probe(ctx, pairCheckTime/2)
			addTarget(&chain, s.Peer, target, end, err)
		}
	}
	r := integrity.NewReport(tunnel, began, []integrity.Chain{chain})
	if r.State == integrity.Accepts { // no bytes of a check pass a pair
		r.Summary = fmt.Sprintf("the pair with %s stands, %.1f ms away, and ", s.Peer, s.RTT.Seconds()*1e3)
		if len(chain.Hops) > 1 {
			r.Summary += chain.Hops[1].Address.String() + " accepts"
		} else {
			r.Summary += "each flow has a target of its own"
		}
		for _, path := range s.Paths {
			if !path.Up && path.Error != "" {
				r.Summary += "; the path " + path.Path + " is down: " + path.Error
			}
		}
		if !s.Encrypted {
			r.Summary += "; " + flow.ClearWarning
		}
		if s.EndsInClear {
			r.Summary += "; " + flow.ClearEndsWarning
		}
		if s.HeadsUnchecked {
			r.Summary += "; " + flow.ClearHeadsWarning
		}
	}
	return &r, nil
}

// addTarget adds what a probe found behind the far relay.
func addTarget(c *integrity.Chain, peer string, target netip.AddrPort, end flow.EndReason, err error) {
	hop := integrity.Hop{Kind: integrity.KindTarget, Address: target, State: integrity.Whole}
	if !target.IsValid() {
		reason := integrityReason(end, err)
		hop.Kind, hop.State, c.State = integrity.KindUnknown, integrity.Broken, integrity.Broken
		detail := string(end)
		if err != nil {
			detail = err.Error()
		}
		c.Fault = &integrity.Fault{Reason: reason, Hop: 2, From: peer, To: "the target", Detail: detail,
			Text: fmt.Sprintf("the pair with %s stands, but no target is reached from there: %s", peer, detail),
			Hint: "check forward of the far tunnel, and what listens there"}
		switch end {
		case flow.EndPairDown, flow.EndNoLocalPort:
			c.Fault.Text = fmt.Sprintf("the session with %s stands, but no flow reaches it: %s", peer, detail)
			c.Fault.Hint = "check the way from this host to the far relay: each of paths, local ports, firewalls"
		case flow.EndNoHop:
			c.Fault.Hint = "look at the far tunnel with longhaul status there: is it drained, or is its target down?"
		}
	}
	c.Hops = append(c.Hops, hop)
}

// pairedTo returns where a tunnel leads if it is the near end of a pair.
func pairedTo(c *config.Config, tunnel string) (forward string, paired bool) {
	for _, t := range c.Tunnels {
		if t.Name == tunnel && t.Pair.Paired() {
			return t.Forward[0].String(), true
		}
	}
	return "", false
}

// pairChain describes a session as a chain of one hop.
func pairChain(s flow.Session, forward string) integrity.Chain {
	hop := integrity.Hop{Kind: integrity.KindUnknown, Host: s.Peer, Address: s.Remote.AddrPort, Version: s.Release, State: integrity.Whole}
	if s.Up {
		hop.Kind, hop.RTT = integrity.KindRelay, &s.RTT
		return integrity.Chain{Forward: forward, State: integrity.Whole, Hops: []integrity.Hop{hop}}
	}
	hop.State = integrity.Broken
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
