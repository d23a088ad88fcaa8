package netfilter

import (
	"bytes"
	"slices"
)

// cell is a byte of a register: of a constant, or of a dimension of the flow.
type cell struct {
	// The bits are those of the source & mask ^ xor. A constant has no source; the bits
	// of its mask are unknown.
	mask, xor byte
	dimension int8 // -1: a constant
	index     int8 // of the dimension's bytes; 0 counts most
	unknown   string
}

const noDimension = -1

func constant(b []byte) []cell {
	c := make([]cell, len(b))
	for i := range b {
		c[i] = cell{dimension: noDimension, xor: b[i]}
	}
	return c
}

func unknown(n int, what string) []cell {
	return slices.Repeat([]cell{{dimension: noDimension, mask: 0xff, unknown: what}}, n)
}

// partly is a constant some of whose bits are unknown.
func partly(b, bits []byte, what string) []cell {
	c := constant(b)
	for i := range c {
		if c[i].mask = bits[i]; bits[i] != 0 {
			c[i].unknown = what
		}
	}
	return c
}

func dimensionCells(dimension, n int) []cell {
	c := make([]cell, n)
	for i := range c {
		c[i] = cell{dimension: int8(dimension), index: int8(i), mask: 0xff}
	}
	return c
}

// registers of nftables, as the kernel has them: 20 words of 4 bytes.
type registers [80]cell

func newRegisters() *registers {
	r := &registers{}
	r.forget("an expression that longhaul does not know")
	return r
}

func (r *registers) forget(what string) { copy(r[:], unknown(len(r), what)) }

// place is the offset of a register.
func place(register uint32) int {
	const first32 = 8 // NFT_REG32_00
	if register >= first32 {
		return 16 + 4*int(min(register-first32, 64))
	}
	return 16 * int(register)
}

// store also clears the rest of the last word, as the kernel does.
func (r *registers) store(register uint32, value []cell) {
	at := place(register)
	end := at + aligned(len(value))
	if end > len(r) {
		return
	}
	copy(r[at:end], constant(make([]byte, end-at)))
	copy(r[at:], value)
}

func (r *registers) load(register uint32, n int) []cell {
	at := place(register)
	if n < 0 || at+n > len(r) {
		return unknown(max(n, 0), "a register that does not exist")
	}
	return r[at : at+n]
}

// constraint is what a term asks of a dimension.
type constraint struct {
	is  ranges
	set bool // is counts; otherwise mask and value do
	// v & mask == value
	mask, value number
}

func (c constraint) isFree() bool { return !c.set && c.mask.isZero() }

// term is a conjunction of constraints.
type term struct {
	of     [dimensions]constraint
	unsure string // what else must hold, which is not known
	data   []byte // what a map has
}

// condition is a disjunction of terms.
type condition struct {
	terms    []term
	inverted bool
}

var (
	always = condition{inverted: true}
	never  = condition{}
)

func maybe(what string) condition { return condition{terms: []term{{unsure: what}}} }

func when(holds bool) condition { return condition{inverted: holds} }

func (c condition) not() condition {
	c.inverted = !c.inverted
	return c
}

func within(dimension int, s ranges) condition {
	var t term
	t.of[dimension] = constraint{is: s, set: true}
	return condition{terms: []term{t}}
}

// equal compares cells with a value; possible is false if they differ for sure.
func (e *evaluation) equal(cells []cell, value []byte) (t term, possible bool) {
	for i, c := range cells {
		wanted := value[i] ^ c.xor
		if c.dimension == noDimension {
			if wanted&^c.mask != 0 {
				return t, false
			}
			if c.mask != 0 {
				t.unsure = c.unknown
			}
			continue
		}
		if wanted&^c.mask != 0 {
			return t, false
		}
		shift := 8 * (e.bytes(int(c.dimension)) - 1 - int(c.index))
		mask, v := small(uint64(c.mask)).left(shift), small(uint64(wanted)).left(shift)
		of := &t.of[c.dimension]
		if !of.value.xor(v).and(of.mask).and(mask).isZero() {
			return t, false
		}
		of.mask, of.value = of.mask.or(mask), of.value.or(v)
	}
	return t, true
}

// between compares cells with two values, which are included.
func (e *evaluation) between(cells []cell, first, last []byte) (t term, possible bool) {
	if bytes.Compare(first, last) > 0 {
		return t, false
	}
	for len(cells) > 0 && first[0] == last[0] && cells[0].dimension == noDimension {
		lead, ok := e.equal(cells[:1], first[:1])
		if !ok {
			return t, false
		}
		if lead.unsure != "" {
			t.unsure = lead.unsure
		}
		cells, first, last = cells[1:], first[1:], last[1:]
	}
	if len(cells) == 0 {
		return t, true
	}
	rest, ok := e.ordered(cells, first, last)
	if !ok {
		return t, false
	}
	return e.both(t, rest)
}

func (e *evaluation) both(a, b term) (term, bool) {
	if a.unsure == "" {
		a.unsure = b.unsure
	}
	for d := range a.of {
		x, y := a.of[d], b.of[d]
		switch {
		case y.isFree():
		case x.isFree():
			a.of[d] = y
		case x.set && y.set:
			a.of[d].is = x.is.intersect(y.is)
		case !x.set && !y.set:
			if !x.value.xor(y.value).and(x.mask).and(y.mask).isZero() {
				return a, false
			}
			a.of[d].mask, a.of[d].value = x.mask.or(y.mask), x.value.or(y.value)
		default:
			if y.set {
				x, y = y, x
			}
			all, ok := masked(y.mask, y.value, interval{x.is[0].first, x.is[len(x.is)-1].last})
			if !ok {
				a.of[d], a.unsure = x, "a mask with many holes"
				continue
			}
			a.of[d] = constraint{is: x.is.intersect(all), set: true}
		}
		if a.of[d].set && len(a.of[d].is) == 0 {
			return a, false
		}
	}
	return a, true
}

// ordered is between for cells whose first byte is not given.
func (e *evaluation) ordered(cells []cell, first, last []byte) (t term, possible bool) {
	if slices.ContainsFunc(cells, func(c cell) bool { return c.dimension != noDimension }) {
		return e.orderedDimension(cells, first, last)
	}
	least, most := make([]byte, len(cells)), make([]byte, len(cells))
	for i, c := range cells {
		if least[i], most[i] = c.xor&^c.mask, c.xor|c.mask; c.mask != 0 {
			t.unsure = c.unknown
		}
	}
	if bytes.Compare(most, first) < 0 || bytes.Compare(least, last) > 0 {
		return t, false
	}
	if bytes.Compare(least, first) >= 0 && bytes.Compare(most, last) <= 0 {
		t.unsure = ""
	}
	return t, true
}

// orderedDimension knows the leading bytes of a dimension, with the mask of a prefix.
func (e *evaluation) orderedDimension(cells []cell, first, last []byte) (t term, possible bool) {
	d, n := int(cells[0].dimension), 0
	mask := make([]byte, 0, len(cells))
	for ; n < len(cells) && int(cells[n].dimension) == d && int(cells[n].index) == n && cells[n].xor == 0; n++ {
		mask = append(mask, cells[n].mask)
	}
	padding := slices.ContainsFunc(cells[n:], func(c cell) bool { return c != (cell{dimension: noDimension}) })
	low := lowBits(min(numberOf(mask).lowest(), 8*n)) // that the mask removes
	if d == noDimension || n == 0 || padding || !isZero(first[n:]) || !isZero(last[n:]) || numberOf(mask).or(low) != lowBits(8*n) {
		t.unsure = "a comparison that longhaul does not know"
		return t, true
	}
	from, to := numberOf(first[:n]), numberOf(last[:n]).or(low)
	if !from.and(low).isZero() {
		from = from.or(low).next()
	}
	if to.less(from) || from.length() > 8*n {
		return t, false
	}
	below := 8 * (e.bytes(d) - n) // bits of the dimension after the cells
	t.of[d] = constraint{is: one(from.left(below), to.left(below).or(lowBits(below))), set: true}
	return t, true
}

func isZero(b []byte) bool { return !slices.ContainsFunc(b, func(v byte) bool { return v != 0 }) }

// compare is the condition of cmp.
func (e *evaluation) compare(op uint32, cells []cell, value []byte) condition {
	if len(value) == 0 {
		return never
	}
	lowest := make([]byte, len(value))
	var t term
	var possible bool
	inverted := false
	switch op {
	case 0, 1: // NFT_CMP_EQ, NFT_CMP_NEQ
		t, possible = e.equal(cells, value)
		inverted = op == 1
	case 2, 5: // NFT_CMP_LT, NFT_CMP_GTE
		inverted = op == 5
		if possible = !isZero(value); possible {
			t, possible = e.between(cells, lowest, decremented(value))
		}
	case 3, 4: // NFT_CMP_LTE, NFT_CMP_GT
		inverted = op == 4
		t, possible = e.between(cells, lowest, value)
	default:
		return maybe("a comparison that longhaul does not know")
	}
	c := condition{inverted: inverted}
	if possible {
		c.terms = []term{t}
	}
	return c
}

// lookup returns a term for each element, or for many of them.
func (e *evaluation) lookup(s *set, cells []cell) (terms []term) {
	if s.unknown != "" {
		return []term{{unsure: s.unknown}}
	}
	whole, isWhole := e.wholeDimension(cells)
	if isWhole {
		for _, r := range s.byValue(len(cells)) {
			t := within(whole, r.ranges).terms[0]
			t.data = r.data
			terms = append(terms, t)
		}
	}
	var fallback *element
	for i, el := range s.elements {
		switch {
		case el.first == nil:
			fallback = &s.elements[i]
		case len(el.first) != len(cells):
			terms = append(terms, term{unsure: "a set whose keys have another length", data: el.data})
		case isWhole && el.unsure == "":
		default:
			t, possible := e.element(s, cells, el)
			if !possible {
				continue
			}
			if _, wanted := e.wanted(t, e.region); wanted == nil {
				continue
			}
			if t.data = el.data; el.unsure != "" {
				t.unsure = el.unsure
			}
			terms = append(terms, t)
		}
	}
	if terms = e.gathered(terms); fallback != nil {
		terms = append(terms, term{data: fallback.data, unsure: fallback.unsure})
	}
	return terms
}

// valueRanges are the keys of a set for which it has the same.
type valueRanges struct {
	ranges
	data []byte
}

// byValue returns the keys of n bytes that are sure, by what the set has for them. It is
// made once: a set may have 100 000 elements, and a relay many tunnels.
func (s *set) byValue(n int) []valueRanges {
	if s.values != nil {
		return s.values
	}
	keys := map[string][]interval{}
	var order []string
	for _, el := range s.elements {
		if el.first == nil || len(el.first) != n || el.unsure != "" {
			continue
		}
		if keys[string(el.data)] == nil {
			order = append(order, string(el.data))
		}
		keys[string(el.data)] = append(keys[string(el.data)], interval{numberOf(el.first), numberOf(el.last)})
	}
	s.values = []valueRanges{}
	for _, data := range order {
		s.values = append(s.values, valueRanges{rangesOf(keys[data]), []byte(data)})
	}
	return s.values
}

func (e *evaluation) wholeDimension(cells []cell) (dimension int, ok bool) {
	if len(cells) == 0 || cells[0].dimension == noDimension || len(cells) != e.bytes(int(cells[0].dimension)) {
		return 0, false
	}
	return int(cells[0].dimension), slices.Equal(cells, dimensionCells(int(cells[0].dimension), len(cells)))
}

// element compares a key with those of an element, part by part if it is concatenated.
func (e *evaluation) element(s *set, cells []cell, el element) (t term, possible bool) {
	if bytes.Equal(el.first, el.last) {
		return e.equal(cells, el.first)
	}
	if len(s.fields) < 2 {
		return e.between(cells, el.first, el.last)
	}
	at := 0
	for _, n := range s.fields {
		if n <= 0 || at+n > len(cells) {
			t.unsure = "a set whose keys have another length"
			return t, true
		}
		part, ok := e.between(cells[at:at+n], el.first[at:at+n], el.last[at:at+n])
		if !ok {
			return t, false
		}
		if t, ok = e.both(t, part); !ok {
			return t, false
		}
		at += aligned(n)
	}
	return t, true
}

// gathered joins terms that differ in one dimension alone.
func (e *evaluation) gathered(terms []term) []term {
	for d := range dimensions {
		if len(terms) < 2 {
			return terms
		}
		groups := map[termKey][]interval{}
		var order []termKey
		var joined []term
		for _, t := range terms {
			key, s, ok := e.except(t, d)
			if !ok {
				joined = append(joined, t)
				continue
			}
			if groups[key] == nil {
				order = append(order, key)
			}
			groups[key] = append(groups[key], s...)
		}
		for _, key := range order {
			t := term{unsure: key.unsure, data: []byte(key.data)}
			for other, of := range key.of {
				if key.asks[other] {
					t.of[other] = constraint{is: ranges{of}, set: true}
				}
			}
			t.of[d] = constraint{is: rangesOf(groups[key]), set: true}
			joined = append(joined, t)
		}
		terms = joined
	}
	return terms
}

// termKey is a term without one of its dimensions.
type termKey struct {
	of           [dimensions]interval
	asks         [dimensions]bool
	unsure, data string
}

// except returns a term without one of its dimensions, and that one. The others must be
// one interval each.
func (e *evaluation) except(t term, but int) (key termKey, s ranges, ok bool) {
	key.unsure, key.data = t.unsure, string(t.data)
	for d, c := range t.of {
		if c.isFree() {
			if d == but {
				return key, nil, false
			}
			continue
		}
		all, ok := e.rangesOf(c, d)
		switch {
		case !ok || d != but && len(all) != 1:
			return key, nil, false
		case d == but:
			s = all
		default:
			key.of[d], key.asks[d] = all[0], true
		}
	}
	return key, s, true
}

// rangesOf returns a constraint as ranges of the whole dimension, if it is a few of them.
func (e *evaluation) rangesOf(c constraint, dimension int) (ranges, bool) {
	if c.set {
		return c.is, true
	}
	all := lowBits(8 * e.bytes(dimension))
	if c.mask == all {
		return one(c.value, c.value), true
	}
	free := c.mask.not().and(all)
	if free.ones() != c.mask.lowest() {
		return nil, false
	}
	return one(c.value, c.value.or(free)), true
}
