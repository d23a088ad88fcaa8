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

// verdicts are those that the rule may have.
func (p *program) verdicts() (all []*verdict) {
	if p.verdict != nil {
		all = append(all, p.verdict)
	}
	for _, of := range p.values {
		all = append(all, of.verdicts()...)
	}
	return all
}

func (e *evaluation) program(c *Chain, rule *Rule) *program {
	p := e.programs[rule]
	if p == nil {
		p = e.compile(c, rule.expressions, newRegisters(), nil)
		p.simplify(e)
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
		case "nat", "redir", "masq":
			p.verdict = &verdict{unknown: translated}
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

const translated = "the address that it translates to"

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

// simplify writes masks of prefixes as ranges, once.
func (p *program) simplify(e *evaluation) {
	all := [][]term{p.terms}
	for _, c := range p.conditions {
		all = append(all, c.terms)
	}
	for _, terms := range all {
		for i := range terms {
			for d, c := range terms[i].of {
				if s, ok := e.rangesOf(c, d); ok && !c.isFree() {
					terms[i].of[d] = constraint{is: s, set: true}
				}
			}
		}
	}
	for _, of := range p.values {
		of.simplify(e)
	}
}

// misses reports whether a rule matches nothing of a box. It may not notice.
func (e *evaluation) misses(p *program, b *box) bool {
	const fewTerms = 4
	for _, c := range p.conditions {
		if !c.inverted && len(c.terms) <= fewTerms && !slices.ContainsFunc(c.terms, func(t term) bool { return e.meets(&t, b) }) {
			return true
		}
	}
	return false
}

// meets reports whether a box may have something of a term.
func (e *evaluation) meets(t *term, b *box) bool {
	e.work++
	for d := range t.of {
		if c := &t.of[d]; c.set && !b[d].meets(c.is) {
			return false
		}
	}
	return true
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
		for k := 0; k < len(rest); k++ {
			if len(hits)+len(rest) > maxPieces || e.work > maxWork {
				all := values(terms)
				for _, left := range rest {
					hits = append(hits, hit{left, tooMany, all})
				}
				return hits, nil
			}
			in := rest[k]
			unsure, wanted := e.wanted(t, in)
			if wanted == nil {
				continue
			}
			rest = slices.Delete(rest, k, k+1)
			k--
			for d, s := range wanted {
				if s == nil {
					continue
				}
				kept, out, _, outside := in.split(d, s)
				e.work += len(in[d]) + len(s)
				if outside {
					rest = append(rest, out) // the term has none of it
				}
				in = kept
			}
			h := hit{in, unsure, []string{string(t.data)}}
			if unsure != "" {
				for _, other := range terms[i+1:] {
					if slices.Contains(h.data, string(other.data)) {
						continue
					}
					if _, wanted := e.wanted(other, in); wanted != nil {
						h.data = append(h.data, string(other.data))
					}
				}
			}
			hits = append(hits, h)
		}
		if len(rest) == 0 {
			break
		}
	}
	return hits, rest
}

// values are what the terms of a map have, each once.
func values(terms []term) (all []string) {
	seen := map[string]bool{}
	for _, t := range terms {
		if !seen[string(t.data)] {
			seen[string(t.data)] = true
			all = append(all, string(t.data))
		}
	}
	return all
}

// wanted returns the ranges that a term asks of a box, nil if the box has none of them.
func (e *evaluation) wanted(t term, b box) (unsure string, all *[dimensions]ranges) {
	if !e.meets(&t, &b) {
		return "", nil
	}
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
			if !b[d].meets(s) {
				return "", nil
			}
		}
		all[d] = s
	}
	return unsure, all
}
