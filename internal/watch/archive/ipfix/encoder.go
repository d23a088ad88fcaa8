package ipfix

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"longhaul/internal/watch/archive"
)

// Sizes of messages in octets.
const (
	// maxUDP leaves room for the headers of IPv6 and UDP, and of a tunnel, in a packet of 1500.
	maxUDP = 1400
	maxTCP = 65535 // the most that the header can say
)

const (
	version      = 10 // RFC 7011, section 3.1
	headerLen    = 16
	setHeaderLen = 4

	templateSet        = 2 // RFC 7011, section 3.3.2
	optionsTemplateSet = 3
	// typesTemplate is the ID of the options template for the types of private elements.
	typesTemplate = 256 + uint16(shapes)
)

// encoder makes the messages of one transport session and one observation domain.
// A message has one set: some collectors read only the first.
type encoder struct {
	max      int // octets of a message
	biflow   bool
	domain   uint32
	sequence uint32 // data records sent before the next message
	buf      []byte
	fields   [shapes][]field
}

func newEncoder(relay string, maxLen int, biflow bool) *encoder {
	e := &encoder{max: maxLen, biflow: biflow, domain: domainOf(relay), buf: make([]byte, 0, maxLen+2048)}
	for _, s := range e.shapes() {
		e.fields[s] = s.fields()
	}
	return e
}

// domainOf is the ID of a relay's observation domain: a hash of its name (32-bit FNV-1a), the same after
// each start and on each session. 0 would mean that the records are of no domain.
func domainOf(relay string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(relay)) // never fails
	return max(h.Sum32(), 1)
}

// shapes are those that the records of this encoder may have.
func (e *encoder) shapes() []shape {
	var all []shape
	for s := range shapes {
		if oneWay := s&oneDirection != 0; oneWay == e.biflow || oneWay && s&clientLeg != 0 && s&targetLeg != 0 {
			continue
		}
		all = append(all, s)
	}
	return all
}

// types sends the types of the private elements (RFC 5610), before the templates: a collector looks at
// them when it gets one. A message is valid until send returns.
func (e *encoder) types(now time.Time, send func([]byte) error) error {
	// privateEnterpriseNumber and informationElementId are the scope; then come informationElementDataType,
	// Semantics, Units, RangeBegin, RangeEnd, Name and Description. libfixbuf heeds the types only if all are there.
	e.begin(now, optionsTemplateSet)
	e.buf = appendWords(e.buf, typesTemplate, 9, 2, 346, 4, 303, 2, 339, 1, 344, 1, 345, 2, 342, 8, 343, 8, 341, variable, 340, variable)
	if err := send(e.end(0)); err != nil {
		return err
	}
	e.begin(now, typesTemplate)
	for i := range private {
		p := &private[i]
		e.buf = binary.BigEndian.AppendUint32(e.buf, enterprise)
		e.buf = appendWords(e.buf, p.id)
		e.buf = append(e.buf, byte(p.kind), p.semantics)
		e.buf = appendWords(e.buf, p.units, 0, 0, 0, 0, 0, 0, 0, 0) // the range: any value
		e.buf = putText(putText(e.buf, p.name, maxWord), p.about, maxWord)
	}
	return send(e.end(len(private)))
}

// templates sends the templates of the records. A message is valid until send returns.
func (e *encoder) templates(now time.Time, send func([]byte) error) error {
	e.begin(now, templateSet)
	for _, s := range e.shapes() {
		e.buf = appendWords(e.buf, s.template(), uint16(len(e.fields[s])))
		for i := range e.fields[s] {
			e.buf = appendSpecifier(e.buf, &e.fields[s][i])
		}
	}
	return send(e.end(0))
}

// rows sends the records of rows, those of a shape together. A message is valid until send returns.
func (e *encoder) rows(rows []archive.Row, now func() time.Time, send func([]byte) error) error {
	ways := 2
	if e.biflow {
		ways = 1
	}
	var r record
	of := make([]shape, len(rows)*ways)
	var ends [shapes + 1]int
	for i := range of {
		r.of(&rows[i/ways], e.biflow, i%ways == 1)
		of[i] = r.shape()
		ends[of[i]+1]++
	}
	for s := range shapes {
		ends[s+1] += ends[s]
	}
	// By counting: the records of a shape lie at ends[s−1] to ends[s], where ends[s] moves up to its end.
	sorted := make([]int, len(of))
	for i, s := range of {
		sorted[ends[s]] = i
		ends[s]++
	}
	for first := 0; first < len(sorted); {
		s := of[sorted[first]]
		e.begin(now(), s.template())
		n := 0 // records in the message
		for ; first < ends[s]; first++ {
			i := sorted[first]
			r.of(&rows[i/ways], e.biflow, i%ways == 1)
			before := len(e.buf)
			e.record(s, &r)
			if len(e.buf) > e.max && n > 0 { // one fits always
				e.buf = e.buf[:before]
				break
			}
			n++
		}
		if err := send(e.end(n)); err != nil {
			return err
		}
	}
	return nil
}

func (e *encoder) record(s shape, r *record) {
	fields := e.fields[s]
	for i := range fields {
		e.buf = fields[i].put(e.buf, r)
	}
}

// begin begins a message with a set (RFC 7011, section 3.1); end fills in the lengths.
func (e *encoder) begin(now time.Time, set uint16) {
	e.buf = appendWords(e.buf[:0], version, 0)
	e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(now.Unix()))
	e.buf = binary.BigEndian.AppendUint32(e.buf, e.sequence)
	e.buf = binary.BigEndian.AppendUint32(e.buf, e.domain)
	e.buf = appendWords(e.buf, set, 0)
}

// end returns the message, of so many data records.
func (e *encoder) end(records int) []byte {
	binary.BigEndian.PutUint16(e.buf[2:], uint16(len(e.buf)))
	binary.BigEndian.PutUint16(e.buf[headerLen+2:], uint16(len(e.buf)-headerLen))
	e.sequence += uint32(records)
	return e.buf
}

// appendSpecifier appends a field specifier (RFC 7011, section 3.2).
func appendSpecifier(b []byte, f *field) []byte {
	if f.enterprise == 0 {
		return appendWords(b, f.id, f.length)
	}
	return binary.BigEndian.AppendUint32(appendWords(b, f.id|1<<15, f.length), f.enterprise)
}

func appendWords(b []byte, words ...uint16) []byte {
	for _, w := range words {
		b = binary.BigEndian.AppendUint16(b, w)
	}
	return b
}
