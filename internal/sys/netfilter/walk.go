package netfilter

import (
	"slices"

	"golang.org/x/sys/unix"
)

// outcomes are what may become of a flow in a chain.
type outcomes uint8

const (
	passes outcomes = 1 << iota
	drops
	falls // reaches the end of the chain
)

// Bounds of an evaluation: beyond them it is not known what the rules do.
const (
	maxDepth  = 16      // of jumps, as in the kernel
	maxPieces = 1 << 12 // boxes that one chain holds apart
	maxWork   = 1 << 22 // comparisons of boxes with rules
)

const tooMany = "too many ranges of addresses and ports"

// spot is where something was decided: a rule, or the policy of a base chain.
type spot struct {
	chain *Chain
	rule  *Rule // nil: the policy
}

// doubt is a rule and what of it is not known.
type doubt struct {
	spot
	what string
}

// piece is flows with the same fate so far in a chain.
type piece struct {
	box
	may    outcomes // what may have become of them
	by     spot     // what drops them
	unsure doubt
}

// evaluation walks the chains for one family and one way through the host.
type evaluation struct {
	rules  *Ruleset
	packet packet
	region box // all flows
	work   int

	programs map[*Rule]*program
	droppers map[*Chain]int // see mayDrop
}

func newEvaluation(r *Ruleset, p packet, region box) *evaluation {
	return &evaluation{rules: r, packet: p, region: region, programs: map[*Rule]*program{}, droppers: map[*Chain]int{}}
}

// packet is what all flows of an evaluation have in common.
type packet struct {
	family  byte // NFPROTO_IPV4
	hook    uint32
	in, out *device // out is nil if it is not known
	// Bits of the mark and of the state that connection tracking gives to the packet.
	mark, markUnknown   uint32
	state, stateUnknown uint32
	// exact: where packets go is known, and only those that this host forwards are looked at.
	exact bool
}

// Bits of ct state, NF_CT_STATE_BIT.
const (
	stateNew       = 1 << 3
	stateUntracked = 1 << 6
)

func (p packet) isSix() bool { return p.family == unix.NFPROTO_IPV6 }

func (p packet) addressBytes() int {
	if p.isSix() {
		return 16
	}
	return 4
}

// bytes is the width of a dimension.
func (e *evaluation) bytes(dimension int) int {
	if dimension == source || dimension == target {
		return e.packet.addressBytes()
	}
	return 2
}

// judged is flows with their fate after all chains of the hook.
type judged struct {
	piece
	base *Chain // that decided
}

// hook walks all base chains of the packet's hook.
func (e *evaluation) hook(boxes []box) (all []judged) {
	var bases []*Chain
	for _, c := range e.rules.Chains {
		// Of the chains at prerouting only those that translate addresses count, see
		// [Ruleset.Forward]. At input they see no untracked packets.
		isWanted := c.isNAT == (e.packet.hook == unix.NF_INET_PRE_ROUTING)
		if c.IsBase && c.Hook == e.packet.hook && c.seesFamily(e.packet.family) && isWanted {
			bases = append(bases, c)
		}
	}
	slices.SortStableFunc(bases, func(a, b *Chain) int { return int(a.Priority) - int(b.Priority) })
	going := make([]piece, len(boxes))
	for i, b := range boxes {
		going[i] = piece{box: b}
	}
	uncertain := map[int]judged{} // by the index in going
	for _, c := range bases {
		var passed []piece
		doubts := map[int]judged{}
		for i, p := range going {
			for _, q := range e.chain(c, []piece{{box: p.box}}, 0) {
				if q.may&falls != 0 {
					if q.may &^= falls; c.drops {
						q.may |= drops
						q.by = spot{chain: c}
					} else {
						q.may |= passes
					}
				}
				if q.may == drops {
					all = append(all, judged{q, c})
					continue
				}
				earlier, unsure := uncertain[i]
				if q.may&drops != 0 && !unsure {
					earlier, unsure = judged{q, c}, true
				}
				if unsure {
					earlier.box = q.box
					doubts[len(passed)] = earlier
				}
				passed = append(passed, q)
			}
		}
		going, uncertain = passed, doubts
	}
	for i, p := range going {
		if j, unsure := uncertain[i]; unsure {
			all = append(all, j)
			continue
		}
		p.may = passes
		all = append(all, judged{piece: p})
	}
	return all
}

// chain returns what may become of flows in a chain.
func (e *evaluation) chain(c *Chain, going []piece, depth int) (ended []piece) {
	if depth > maxDepth {
		return e.giveUp(c, nil, going, "jumps that are too deep")
	}
	nextMerge := 64
	rules := c.Rules
	if c.IsBase && !c.drops {
		rules = rules[:e.mayDrop(c, 0)] // after these, all pass
	}
	for i := range rules {
		rule := &rules[i]
		if len(going) == 0 {
			return ended
		}
		if len(going)+len(ended) > nextMerge {
			going, ended = merged(going), merged(ended)
			nextMerge = 2 * max(len(going)+len(ended), 64)
		}
		if len(going)+len(ended) > maxPieces || e.work > maxWork {
			return append(ended, e.giveUp(c, rule, going, tooMany)...)
		}
		if len(e.program(c, rule).verdicts()) == 0 {
			continue
		}
		var rest []piece
		for _, p := range going {
			done, on := e.rule(c, rule, p, depth)
			ended, rest = append(ended, done...), append(rest, on...)
		}
		going = rest
	}
	for _, p := range going {
		p.may |= falls
		ended = append(ended, p)
	}
	return merged(ended)
}

// mayDrop returns how many rules of a chain there are up to the last one that may drop a
// packet, whatever it matches.
func (e *evaluation) mayDrop(c *Chain, depth int) int {
	n, known := e.droppers[c]
	if known || depth > maxDepth {
		return max(n, depth-maxDepth)
	}
	for i := len(c.Rules); i > 0 && n == 0; i-- {
		for _, v := range e.program(c, &c.Rules[i-1]).verdicts() {
			to := e.rules.byName[chainKey{c.Program, c.Family, c.Table, v.chain}]
			if v.unknown != "" || v.code == drop || v.chain != "" && (to == nil || e.mayDrop(to, depth+1) > 0) {
				n = i
			}
		}
	}
	e.droppers[c] = n
	return n
}

func (e *evaluation) giveUp(c *Chain, rule *Rule, going []piece, what string) (ended []piece) {
	for _, p := range going {
		p.may |= passes | drops
		p.doubts(spot{c, rule}, what)
		ended = append(ended, p)
	}
	return ended
}

func (p *piece) doubts(at spot, what string) {
	if p.unsure.what == "" {
		p.unsure = doubt{at, what}
	}
}

// merged joins pieces of the same fate whose boxes differ in one dimension alone. It looks
// at neighbours: a rule divides a box, and the parts stay together.
func merged(all []piece) []piece {
	for {
		var kept []piece
		for _, p := range all {
			joined := false
			for i := len(kept) - 1; i >= max(0, len(kept)-8); i-- {
				k := &kept[i]
				if k.may != p.may || k.by != p.by || k.unsure != p.unsure {
					continue
				}
				if b, ok := k.box.joined(p.box); ok {
					k.box, joined = b, true
					break
				}
			}
			if !joined {
				kept = append(kept, p)
			}
		}
		if len(kept) == len(all) {
			return kept
		}
		all = kept
	}
}

// rule returns the flows that end at a rule of a chain, and those that go on.
func (e *evaluation) rule(c *Chain, rule *Rule, p piece, depth int) (ended, going []piece) {
	e.work++
	if e.misses(e.program(c, rule), &p.box) {
		return nil, []piece{p}
	}
	var matches []match
	var rest []box
	e.run(e.program(c, rule), match{box: p.box}, &matches, &rest)
	changes := false
	for _, m := range matches {
		q := p
		q.box = m.box
		on := []piece{q}
		var done []piece
		for _, v := range m.verdicts { // more than one only if none is sure: none ends the flows
			var next []piece
			for _, q := range on {
				ends, goes := e.apply(c, rule, m, v, q, depth)
				done, next = append(done, ends...), append(next, goes...)
			}
			on = next
		}
		ended, going = append(ended, done...), append(going, on...)
		changes = changes || len(done) > 0 || slices.ContainsFunc(on, func(o piece) bool { return o.may != p.may })
	}
	if !changes {
		return nil, []piece{p} // as it was, in one
	}
	for _, b := range rest {
		q := p
		q.box = b
		going = append(going, q)
	}
	return ended, going
}

// apply gives the verdict of a rule to the flows of a match.
func (e *evaluation) apply(c *Chain, rule *Rule, m match, v *verdict, p piece, depth int) (ended, going []piece) {
	at := spot{c, rule}
	m.box = p.box
	finish := func(o outcomes, by spot, unsure doubt) {
		q := p
		q.box = m.box
		if o&drops != 0 && (m.unsure == "" || q.by.chain == nil) {
			q.by = by
		}
		if unsure.what != "" {
			q.doubts(unsure.spot, unsure.what)
		}
		q.may |= o
		if m.unsure == "" {
			ended = append(ended, q)
			return
		}
		q.doubts(at, m.unsure)
		going = append(going, q)
	}
	switch {
	case v.unknown != "":
		finish(passes|drops, at, doubt{at, v.unknown})
		return ended, going
	case v.code == accept:
		finish(passes, at, doubt{})
		return ended, going
	case v.code == drop:
		finish(drops, at, doubt{})
		return ended, going
	case v.code == unix.NFT_RETURN:
		finish(falls, at, doubt{})
		return ended, going
	case v.code != unix.NFT_JUMP && v.code != unix.NFT_GOTO:
		return nil, []piece{p}
	}
	to := e.rules.byName[chainKey{c.Program, c.Family, c.Table, v.chain}]
	if to == nil {
		finish(passes|drops, at, doubt{at, "a chain that is not there"})
		return ended, going
	}
	for _, q := range e.chain(to, []piece{{box: m.box}}, depth+1) {
		m.box = q.box
		if v.code == unix.NFT_GOTO || q.may&falls == 0 {
			finish(q.may, q.by, q.unsure)
			continue
		}
		after := p
		after.box = q.box
		if result := q.may &^ falls; result != 0 {
			after.may |= result
			if after.by.chain == nil {
				after.by = q.by
			}
			after.doubts(q.unsure.spot, q.unsure.what)
			if m.unsure != "" {
				after.doubts(at, m.unsure)
			}
		}
		going = append(going, after)
	}
	return ended, going
}
