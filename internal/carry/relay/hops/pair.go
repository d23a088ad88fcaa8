package hops

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/display"
)

// The hop of a near tunnel is a far relay. Its carrier says whether that takes flows. New flows
// follow what it says at once; screens show that a session does not stand once it is away for longer
// than a moment. Of several far relays, those that lose flows are ejected as other hops.

const (
	// settles is how long a pair that has stood is away until its hop is down: a control
	// connection that breaks is replaced in less time.
	settles = 500 * time.Millisecond
	// firstSettles is the same for a session whose relays have not met yet, as at the start or
	// after an upgrade: a handshake over a long path.
	firstSettles = 2 * time.Second
)

// maxCause bounds the cause that a hop's last error shows.
const maxCause = 200

// ofPair decides how a pair is on screens. relay is its far relay's name.
func ofPair(p flow.Taking, relay string, now time.Time) flow.PairHop {
	within := settles
	if !p.Met {
		within = firstSettles
	}
	h := flow.PairHop{Taking: p, State: flow.HopDown}
	switch settling := now.Sub(p.Since) < within; {
	case p.Trouble != "" && (p.Takes || p.Stood && settling):
		h.Reason, h.Why = flow.ReasonHopsDown, fmt.Sprintf("the tunnel of %s %s", relay, p.Trouble)
	case p.Takes, p.Stood && settling:
		h.State = flow.HopUp
	case settling:
		h.State = flow.HopUntried
	default:
		h.Reason, h.Why = flow.ReasonPairDown, flow.PairProblemText(p.Problem, relay)
	}
	return h
}

// Paired reports whether the hops are far relays.
func (s *Set) Paired() bool { return len(s.forward) > 0 && s.forward[0].Carrier != nil }

// Carrier returns the carrier of a hop of an index that Order has returned.
func (s *Set) Carrier(i uint16) flow.Carrier { return s.forward[i].Carrier }

// AllDrained reports whether the operator has taken every hop out of service.
func (s *Set) AllDrained() bool {
	return !slices.ContainsFunc(s.hops, func(h *Hop) bool { return !h.Drained() })
}

// Serves reports whether one of the hops takes flows now.
func (s *Set) Serves(now time.Duration) bool {
	var few [Few]bool
	return slices.Contains(s.serving(few[:0], now), true)
}

// Answers reports whether the far relay of a hop takes flows now, as far as it is known.
func (s *Set) Answers(i uint16, now time.Duration) bool {
	var few [Few]bool
	return s.answering(few[:0], now, refusing)[i]
}

// Stood reports whether a pair of the hops has ever stood.
func (s *Set) Stood() bool {
	return slices.ContainsFunc(s.forward, func(t Target) bool { return t.Carrier != nil && t.Carrier.Taking().Stood })
}

// answer is how a far relay would serve a new flow.
type answer uint8

const (
	atOnce   answer = iota
	crowded         // behind standing flows that wait for lanes
	refusing        // not, since its tunnel has a trouble
)

func answerOf(p *flow.Taking) answer {
	switch {
	case p.Trouble != "":
		return refusing
	case p.Crowded:
		return crowded
	}
	return atOnce
}

// serving returns for each hop, in the room of few, whether it is not drained, and as a far relay takes
// flows now. If none does, those count that have others to serve first. Where none of these does either,
// those that would refuse a client count: it learns that at once, as from one far relay.
func (s *Set) serving(few []bool, now time.Duration) []bool {
	all := s.answering(few, now, atOnce)
	for worst := crowded; s.Paired() && worst <= refusing && !slices.Contains(all, true); worst++ {
		all = s.answering(few, now, worst)
	}
	return all
}

// answering appends for each hop whether it answers, a far relay no worse than so. A far relay to which an
// earlier hop leads as well is used by that one alone.
func (s *Set) answering(into []bool, now time.Duration, worst answer) []bool {
	var few [Few]string
	hosts := few[:0]
	for i, h := range s.hops {
		serves, host := !h.drained.Load(), ""
		if c := s.forward[i].Carrier; c != nil {
			p := c.Taking()
			h.note(&p, now)
			if serves = serves && p.Takes && !p.Suspect && answerOf(&p) <= worst; serves {
				host = p.Host
			}
			if host != "" && slices.Contains(hosts, host) {
				serves, host = false, ""
			}
		}
		into, hosts = append(into, serves), append(hosts, host)
	}
	return into
}

// note takes note of what a hop's carrier says: since when it is suspect, and that its session has
// returned, after which its share grows little by little. A suspicion lasts until a session stands
// that is not suspect: the loss of the suspect one does not end it.
func (h *Hop) note(p *flow.Taking, now time.Duration) {
	switch since := h.suspect.Load(); {
	case p.Suspect && since == 0:
		h.suspect.Store(now)
	case p.Takes && !p.Suspect && since != 0:
		h.suspect.Store(0)
		if now-since >= settles {
			h.changed.Store(now)
		}
	}
	switch {
	case !p.Takes && time.Since(p.Since) >= settles:
		h.away.Store(true)
	case p.Takes && h.away.Swap(false):
		h.back.Store(now)
	}
}

// addPairs fills in what the pairs of hops are like, and with it the hops' states.
func (s *Set) addPairs(all []flow.Hop, now time.Duration) {
	wall := time.Now()
	for i := range all {
		hop := &all[i]
		taking := s.forward[i].Carrier.Taking()
		s.hops[i].note(&taking, now)
		several := len(all) > 1
		relay := cmp.Or(taking.Host, taking.Peer)
		if several && taking.Host == "" {
			relay = hop.Name // the peer may be a site, with other hosts
		}
		p := ofPair(taking, relay, wall)
		why, began := p.Why, p.Since
		if several && p.Reason == flow.ReasonPairDown && p.Error != "" {
			why += ": " + display.Shorten(p.Error, maxCause)
		}
		if since := s.hops[i].suspect.Load(); several && since != 0 && now-since >= settles {
			began = wall.Add(since - now)
			if p.State != flow.HopDown {
				p.State, p.Reason, p.Why = flow.HopDown, flow.ReasonHopsDown, relay+" owes an answer"
				why = p.Why
			}
		} else if changed := s.hops[i].changed.Load(); p.State == flow.HopUp && changed != 0 {
			if at := wall.Add(changed - now); at.After(began) {
				began = at
			}
		}
		hop.Pair = &p
		if p.Host != p.Peer {
			hop.Host = p.Host
		}
		flows := hop.State == flow.HopEjected || hop.State == flow.HopReturning // what they have seen
		if hop.State == flow.HopDrained || several && flows && p.State == flow.HopUp {
			continue
		}
		hop.State, hop.Usable, hop.Since, hop.LastError = p.State, p.State != flow.HopDown, began, why
	}
	markSameHosts(all)
}

// markSameHosts marks the hops whose far relay is that of an earlier one that is in use.
func markSameHosts(all []flow.Hop) {
	for i := range all {
		for k := range i {
			one, hop := &all[k], &all[i]
			if hop.Pair.Host != "" && one.Pair.Host == hop.Pair.Host && inUse(one) && inUse(hop) {
				hop.State, hop.Usable, hop.LastError = flow.HopSameHost, false, "leads to the same relay as "+one.Name
				if a, b := one.Pair.Instance, hop.Pair.Instance; a != 0 && b != 0 && a != b {
					hop.LastError = "has the same key as " + one.Name // a copied key directory
				}
			}
		}
	}
}

// inUse reports whether the session of a hop stands, and flows may have it.
func inUse(h *flow.Hop) bool {
	return h.Pair.State == flow.HopUp && h.State != flow.HopDrained && h.State != flow.HopSameHost
}
