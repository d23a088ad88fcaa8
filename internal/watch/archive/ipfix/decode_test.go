package ipfix

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// decoder reads messages of one transport session, as RFC 7011 has them: the tests' own reader. Foreign
// ones are in foreign_test.go.
type decoder struct {
	templates map[uint16][]specifier
	scopes    map[uint16]int
	sequence  map[uint32]uint32 // by domain: data records so far
}

type specifier struct {
	enterprise uint32
	id, length uint16
}

// decoded is a data record: the values by their elements.
type decoded struct {
	template uint16
	domain   uint32
	values   map[specifier][]byte // without length
}

func newDecoder() *decoder {
	return &decoder{map[uint16][]specifier{}, map[uint16]int{}, map[uint32]uint32{}}
}

var errShort = errors.New("a message is too short")

// message reads one message and calls each with its data records. The record's values are those of the message.
func (d *decoder) message(b []byte, each func(decoded)) error {
	if len(b) < headerLen || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return errShort
	}
	if v := binary.BigEndian.Uint16(b); v != version {
		return fmt.Errorf("version %d", v)
	}
	domain := binary.BigEndian.Uint32(b[12:])
	if s := binary.BigEndian.Uint32(b[8:]); s != d.sequence[domain] {
		return fmt.Errorf("sequence number %d after %d records", s, d.sequence[domain])
	}
	for b = b[headerLen:]; len(b) > 0; {
		if len(b) < setHeaderLen {
			return errShort
		}
		id, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		if n < setHeaderLen || n > len(b) {
			return errShort
		}
		set := b[setHeaderLen:n]
		b = b[n:]
		for len(set) > 0 {
			var err error
			switch {
			case id == templateSet || id == optionsTemplateSet:
				set, err = d.template(set, id == optionsTemplateSet)
			case id < 256:
				return fmt.Errorf("set %d", id)
			default:
				var r decoded
				if r, set, err = d.record(id, set); err == nil {
					r.domain = domain
					d.sequence[domain]++
					each(r)
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *decoder) template(b []byte, options bool) ([]byte, error) {
	if len(b) < 4 {
		return nil, errShort
	}
	id, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
	b = b[4:]
	if options {
		if len(b) < 2 {
			return nil, errShort
		}
		d.scopes[id] = int(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	var all []specifier
	for range n {
		if len(b) < 4 {
			return nil, errShort
		}
		s := specifier{id: binary.BigEndian.Uint16(b), length: binary.BigEndian.Uint16(b[2:])}
		b = b[4:]
		if s.id >= 1<<15 {
			if len(b) < 4 {
				return nil, errShort
			}
			s.id, s.enterprise = s.id-1<<15, binary.BigEndian.Uint32(b)
			b = b[4:]
		}
		if s.length == 0 {
			return nil, errors.New("an element of no length")
		}
		all = append(all, s)
	}
	d.templates[id] = all
	return b, nil
}

func (d *decoder) record(template uint16, b []byte) (decoded, []byte, error) {
	fields := d.templates[template]
	if len(fields) == 0 {
		return decoded{}, nil, fmt.Errorf("no template %d", template)
	}
	r := decoded{template: template, values: make(map[specifier][]byte, len(fields))}
	for _, f := range fields {
		n := int(f.length)
		if f.length == variable {
			if len(b) < 1 {
				return r, nil, errShort
			}
			n, b = int(b[0]), b[1:]
			if n == 255 {
				if len(b) < 2 {
					return r, nil, errShort
				}
				n, b = int(binary.BigEndian.Uint16(b)), b[2:]
			}
		}
		if n > len(b) {
			return r, nil, errShort
		}
		r.values[specifier{enterprise: f.enterprise, id: f.id}] = b[:n]
		b = b[n:]
	}
	return r, b, nil
}

// number is an unsigned one of any size; missing: there is none.
func (r decoded) number(enterprise uint32, id uint16) (n uint64, has bool) {
	b, has := r.values[specifier{enterprise: enterprise, id: id}]
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return n, has
}

func (r decoded) text(id uint16) string {
	return string(r.values[specifier{enterprise: enterprise, id: id}])
}

// key is that of a record (relay, epoch, flowId), with the direction.
type key struct {
	relay     string
	epoch, id uint64
	direction string
}

func (r decoded) key() key {
	epoch, _ := r.number(enterprise, 1)
	id, _ := r.number(0, 148)
	return key{r.text(3), epoch, id, r.text(9)}
}
