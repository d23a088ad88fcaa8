package netfilter

import (
	"slices"

	"golang.org/x/sys/unix"
)

// program is a rule for the packets of an evaluation: what it asks of a flow, in order, and
// what it then does.
type program struct {
	conditions []condition
	verdict    *verdict // nil: the rule only counts or logs
	// A map divides the flows by what it has for them. The rule goes on for each value.
	terms  []term
	values map[string]*program
}

// decides reports whether a rule may change what becomes of a packet.
func (p *program) decides() bool {
	if p.verdict != nil {
		return true
	}
	for _, of := range p.values {
		if of.decides() {
			return true
		}
	}
	return false
}

func (e *evaluation) program(c *Chain, rule *Rule) *program {
	p := e.programs[rule]
	if p == nil {
		p = e.compile(c, rule.expressions, newRegisters(), nil)
		e.programs[rule] = p
	}
	return p
}

func (e *evaluation) compile(c *Chain, all []expression, r *registers, v *verdict) *program {
	p := &program{verdict: v}
	for i, x := range all {
		switch x.name {
		case "lookup":
			terms, isMap := e.lookupTerms(c, x, r)
			if !isMap {
				p.conditions = append(p.conditions, condition{terms, x.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0})
				continue
			}
			p.terms, p.values = terms, map[string]*program{}
			for _, t := range terms {
				if p.values[string(t.data)] != nil {
					continue
				}
				after, then := *r, p.verdict
				if x.number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT {
					then = &verdict{unknown: t.unsure}
					if len(t.data) > 0 {
						then = verdictOf(t.data)
					}
				} else if value := parse(t.data)[unix.NFTA_DATA_VALUE]; len(value) > 0 {
					after.store(x.number(unix.NFTA_LOOKUP_DREG), constant(value))
				} else {
					after.forget(t.unsure)
				}
				p.values[string(t.data)] = e.compile(c, all[i+1:], &after, then)
			}
			p.verdict = nil
			return p
		case "immediate":
			if x.number(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
				p.verdict = verdictOf(x.attributes[unix.NFTA_IMMEDIATE_DATA])
			} else {
				r.store(x.number(unix.NFTA_IMMEDIATE_DREG), constant(x.value(unix.NFTA_IMMEDIATE_DATA)))
			}
		case "verdict":
			p.verdict = x.verdict
		case "reject":
			p.verdict = &verdict{code: drop}
		case "queue":
			p.verdict = &verdict{unknown: "what another program decides"}
		case "synproxy":
			p.verdict = &verdict{unknown: "the SYN proxy"}
		case "target":
			if t := targetVerdict(x.text(unix.NFTA_TARGET_NAME)); t != nil {
				p.verdict = t
			}
		default:
			cond, then := e.expression(x, r)
			if then != nil {
				p.verdict = then
			}
			if len(cond.terms) == 0 && cond.inverted {
				continue
			}
			p.conditions = append(p.conditions, cond)
			if len(cond.terms) == 0 {
				p.verdict = nil
				return p // it never matches
			}
		}
	}
	if p.verdict != nil && (p.verdict.code == unix.NFT_CONTINUE || p.verdict.code == unix.NFT_BREAK) && p.verdict.unknown == "" {
		p.verdict = nil
	}
	return p
}

// lookupTerms is what a set asks of the registers.
func (e *evaluation) lookupTerms(c *Chain, x expression, r *registers) (terms []term, isMap bool) {
	s := e.rules.set(c.Family, c.Table, x.text(unix.NFTA_LOOKUP_SET))
	length := 0
	for _, el := range s.elements {
		if length = len(el.first); length > 0 {
			break
		}
	}
	return e.lookup(s, r.load(x.number(unix.NFTA_LOOKUP_SREG), length)), x.has(unix.NFTA_LOOKUP_DREG)
}

// match is flows that a rule matches, or may match.
type match struct {
	box
	unsure string
	// verdicts has one, or those of which each may apply.
	verdicts []*verdict
}

// run divides flows in those that a rule matches, with its verdict, and the rest.
func (e *evaluation) run(p *program, flows match, matches *[]match, rest *[]box) {
	going := []match{flows}
	for _, c := range p.conditions {
		var next []match
		for _, m := range going {
			hits, misses := e.carve(c.terms, m.box)
			if c.inverted {
				for _, b := range misses {
					next = append(next, match{box: b, unsure: m.unsure})
				}
				misses = nil
				for _, h := range hits {
					if h.unsure == "" {
						misses = append(misses, h.box)
					}
				}
				hits = slices.DeleteFunc(hits, func(h hit) bool { return h.unsure == "" })
			}
			for _, h := range hits {
				next = append(next, match{box: h.box, unsure: first(m.unsure, h.unsure)})
			}
			*rest = append(*rest, misses...)
		}
		going = next
	}
	for _, m := range going {
		if p.values == nil {
			m.verdicts = []*verdict{p.verdict}
			if p.verdict != nil {
				*matches = append(*matches, m)
			} else {
				*rest = append(*rest, m.box)
			}
			continue
		}
		hits, misses := e.carve(p.terms, m.box)
		*rest = append(*rest, misses...)
		for _, h := range hits {
			of := match{box: h.box, unsure: first(m.unsure, h.unsure)}
			if len(h.data) == 1 {
				e.run(p.values[h.data[0]], of, matches, rest)
				continue
			}
			for _, value := range h.data {
				if v := p.values[value]; len(v.conditions) > 0 || v.values != nil || v.verdict == nil {
					of.verdicts = append(of.verdicts, &verdict{unknown: h.unsure})
				} else {
					of.verdicts = append(of.verdicts, v.verdict)
				}
			}
			*matches = append(*matches, of)
		}
	}
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// hit is flows for which a term holds, or may hold.
type hit struct {
	box
	unsure string
	data   []string // of the term, or of all that may hold
}

// carve divides a box in what the terms match, and the rest. A flow belongs to the first
// term that matches it; if that one is not sure, to all that may.
func (e *evaluation) carve(terms []term, b box) (hits []hit, rest []box) {
	rest = []box{b}
	for i, t := range terms {
		var next []box
		for k, b := range rest {
			if len(hits)+len(rest)+len(next) > maxPieces || e.work > maxWork {
				for _, left := range append(next, rest[k:]...) {
					hits = append(hits, hit{left, tooMany, values(terms)})
				}
				return hits, nil
			}
			unsure, wanted := e.wanted(t, b)
			if wanted == nil {
				next = append(next, b)
				continue
			}
			for d, s := range wanted {
				if s == nil {
					continue
				}
				in, out, _, outside := b.split(d, s)
				e.work += len(b[d]) + len(s)
				if outside {
					part := b
					part[d] = out[d]
					next = append(next, part)
				}
				b = in
			}
			h := hit{b, unsure, []string{string(t.data)}}
			if unsure != "" {
				h.data = values(slices.DeleteFunc(slices.Clone(terms[i:]), func(t term) bool {
					_, wanted := e.wanted(t, b)
					return wanted == nil
				}))
			}
			hits = append(hits, h)
		}
		if rest = next; len(rest) == 0 {
			break
		}
	}
	return hits, rest
}

// values are what the terms of a map have, each once.
func values(terms []term) (all []string) {
	for _, t := range terms {
		if !slices.Contains(all, string(t.data)) {
			all = append(all, string(t.data))
		}
	}
	return all
}

// wanted returns the ranges that a term asks of a box, nil if the box has none of them.
func (e *evaluation) wanted(t term, b box) (unsure string, all *[dimensions]ranges) {
	e.work++
	unsure, all = t.unsure, &[dimensions]ranges{}
	for d, c := range t.of {
		if c.isFree() {
			continue
		}
		s := c.is
		if !c.set {
			var ok bool
			if s, ok = masked(c.mask, c.value, interval{b[d][0].first, b[d][len(b[d])-1].last}); !ok {
				unsure = "a mask with many holes"
				continue
			}
		}
		if !b[d].meets(s) {
			return "", nil
		}
		all[d] = s
	}
	return unsure, all
}
