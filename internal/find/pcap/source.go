package pcap

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Source is a file of a capture.
type Source struct {
	Name string
	// Open opens it from its beginning. Of several files each is opened twice.
	Open func() (io.ReadCloser, error)
	// Optional: a file that is not a capture is passed over.
	Optional bool
}

// maxTogether bounds the files of the same time.
const maxTogether = 64

// ErrManyTogether is returned for more files of the same time than are read together.
var ErrManyTogether = fmt.Errorf("more than %d files are of the same time", maxTogether)

// ErrNoCapture is returned for optional files of which none is a capture.
var ErrNoCapture = errors.New("none of the files is a pcap or pcapng file")

// part is a file of a capture of several.
type part struct {
	Source
	first time.Time // of its first packet

	body    io.Closer
	file    *file
	head    record // the next one
	packets int64  // read
	lane    int    // apart from the files that are open with it
}

// parts reads several files as one capture, by the times of their packets. Those of
// tcpdump -C follow each other. Those of several devices are of the same time, and count as
// different devices.
type parts struct {
	several bool
	waiting []*part // by the time of their first packet
	open    []*part
	last    *part           // whose head was returned
	bytes   int64           // of those that were closed
	damage  *TruncatedError // the first one
}

// newParts looks at all files, unless there is just one.
func newParts(sources []Source) (*parts, error) {
	p := &parts{several: len(sources) > 1}
	for _, s := range sources {
		part := &part{Source: s}
		if p.several {
			if err := part.look(); err != nil {
				if s.Optional && errors.Is(err, ErrNotCapture) {
					continue
				}
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		p.waiting = append(p.waiting, part)
	}
	if len(p.waiting) == 0 {
		return nil, ErrNoCapture
	}
	slices.SortStableFunc(p.waiting, func(a, b *part) int { return cmp.Or(a.first.Compare(b.first), cmp.Compare(a.Name, b.Name)) })
	return p, nil
}

// look finds the time of the first packet. Damage shows when the file is read.
func (p *part) look() error {
	if err := p.begin(maxZstd); err != nil {
		if truncated := (*TruncatedError)(nil); errors.As(err, &truncated) {
			return nil
		}
		return err
	}
	defer func() {
		p.body.Close()
		p.file = nil
	}()
	for {
		r, err := p.file.next()
		if err != nil {
			return nil
		}
		if !r.at.IsZero() {
			p.first = r.at
			return nil
		}
	}
}

// begin opens the file, with a bound of the window in which a decompressor looks back.
func (p *part) begin(window int) error {
	body, err := p.Open()
	if err != nil {
		return err
	}
	file, err := open(body, window)
	if err != nil {
		body.Close()
		return err
	}
	p.body, p.file = body, file
	return nil
}

// read returns how many bytes were read, uncompressed.
func (p *parts) read() int64 {
	n := p.bytes
	for _, o := range p.open {
		n += o.file.counted.n
	}
	return n
}

// next reads the earliest record of those next in their files. The error is io.EOF at the
// end of all files, of which damaged ones end early.
func (p *parts) next() (record, error) {
	if p.last != nil {
		if err := p.advance(p.last); err != nil {
			return record{}, err
		}
		p.last = nil
	}
	for len(p.waiting) > 0 && (len(p.open) == 0 || !p.waiting[0].first.After(p.earliest().head.at)) {
		if len(p.open) == maxTogether {
			return record{}, ErrManyTogether
		}
		o := p.waiting[0]
		p.waiting = p.waiting[1:]
		if err := p.enter(o); err != nil {
			return record{}, err
		}
	}
	if len(p.open) == 0 {
		return record{}, io.EOF
	}
	p.last = p.earliest()
	r := p.last.head
	r.device |= p.last.lane << laneShift
	return r, nil
}

// laneShift exceeds the bits of an interface's number within a file.
const laneShift = 16

// earliest returns the open file with the earliest record.
func (p *parts) earliest() *part {
	return slices.MinFunc(p.open, func(a, b *part) int { return a.head.at.Compare(b.head.at) })
}

// enter opens a file and reads its first record.
func (p *parts) enter(o *part) error {
	window := maxZstd
	if len(p.open) > 0 {
		window = maxBeside
	}
	if err := o.begin(window); err != nil {
		return p.ended(o, err)
	}
	for slices.ContainsFunc(p.open, func(other *part) bool { return other.lane == o.lane }) {
		o.lane++
	}
	p.open = append(p.open, o)
	return p.advance(o)
}

// advance reads the next record of a file, and closes it at its end.
func (p *parts) advance(o *part) error {
	r, err := o.file.next()
	if err == nil {
		o.head = r
		o.packets++
		return nil
	}
	p.bytes += o.file.counted.n
	o.body.Close()
	p.open = slices.DeleteFunc(p.open, func(other *part) bool { return other == o })
	return p.ended(o, err)
}

// ended handles the end of a file. Damage does not end the others.
func (p *parts) ended(o *part, err error) error {
	damage := (*TruncatedError)(nil)
	switch {
	case err == io.EOF:
		return nil
	case errors.Is(err, ErrManyInterfaces), o.file == nil && !errors.As(err, &damage):
		return err
	case damage == nil:
		damage = &TruncatedError{Packets: o.packets, Bytes: o.file.counted.n, Err: err}
	}
	if p.several {
		damage.File = o.Name
	}
	p.damage = cmp.Or(p.damage, damage)
	return nil
}

// close closes all files.
func (p *parts) close() {
	for _, o := range p.open {
		o.body.Close()
	}
}
