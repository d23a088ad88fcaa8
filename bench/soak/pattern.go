package main

import "encoding/binary"

// pattern is the content of one direction of a flow: at every position the
// byte is determined, so that a lost, doubled, displaced or foreign byte shows.
type pattern struct {
	header  []byte // in place of the first bytes
	start   uint64
	scratch []byte
}

// newPattern is the content that the client, or the target, of a flow sends.
func newPattern(seed, number uint64, fromClient bool) *pattern {
	p := &pattern{start: mix(seed) ^ mix(2*number)}
	if fromClient {
		p.start = mix(seed) ^ mix(2*number+1)
		p.header = binary.BigEndian.AppendUint64(nil, number)
	}
	return p
}

// at returns n bytes of the content, from a position on. They are valid until
// the next call.
func (p *pattern) at(position int64, n int) []byte {
	skip := int(position % 8)
	words := (skip + n + 7) / 8
	if cap(p.scratch) < 8*words {
		p.scratch = make([]byte, 8*words)
	}
	buf := p.scratch[:8*words]
	for i := range words {
		binary.LittleEndian.PutUint64(buf[8*i:], mix(p.start+uint64(position/8)+uint64(i)))
	}
	buf = buf[skip : skip+n]
	if position < int64(len(p.header)) {
		copy(buf, p.header[position:])
	}
	return buf
}

// mix is the output function of SplitMix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", OOPSLA 2014), on the n-th state.
func mix(n uint64) uint64 {
	z := (n + 1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
