package pcap

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// classicFile reads the packets of a pcap file, also of old versions and with longer
// headers, or of a snoop file (RFC 1761). It reads what libpcap reads: lengths of a packet
// that contradict each other or the file's header damage nothing.
type classicFile struct {
	in     *counter
	order  binary.ByteOrder
	unit   int64 // of a timestamp's fraction, ns
	link   linkType
	head   int  // length of a packet's header
	old    bool // the lengths of a packet may be in either order
	snoop  bool
	buf    [24]byte
	packet []byte // reused
}

// The first four bytes of pcap files, in either byte order. With the modified header each
// packet has its interface and protocol.
const (
	magicMicroseconds = 0xa1b2c3d4
	magicNanoseconds  = 0xa1b23c4d
	magicModified     = 0xa1b2cd34
)

const magicSnoop = "snoop\x00\x00\x00"

// The lengths of a file's and a packet's header.
const (
	classicFileHead = 24
	classicHead     = 16
	modifiedHead    = 24
	snoopFileHead   = 16
	snoopHead       = 24
)

// snoopLinks maps the link types of snoop.
var snoopLinks = map[uint32]linkType{
	0: linkEthernet, 2: linkTokenRing, 4: linkEthernet, 8: linkFDDI,
}

// unknownLink is a link type that no file has.
const unknownLink linkType = 0xffff

// classicOrder returns the byte order of a pcap file by its first four bytes; nil if it is
// none.
func classicOrder(b []byte) binary.ByteOrder {
	for _, order := range []binary.ByteOrder{binary.BigEndian, binary.LittleEndian} {
		switch order.Uint32(b) {
		case magicMicroseconds, magicNanoseconds, magicModified:
			return order
		}
	}
	return nil
}

// newClassic reads the header of a pcap file.
func newClassic(in *counter, order binary.ByteOrder) (*classicFile, error) {
	f := &classicFile{in: in, order: order, unit: 1000, head: classicHead}
	b := f.buf[:classicFileHead]
	if _, err := io.ReadFull(in, b); err != nil {
		return nil, err
	}
	switch order.Uint32(b) {
	case magicNanoseconds:
		f.unit = 1
	case magicModified:
		f.head = modifiedHead
	}
	// Before 2.3 the captured length came second, and in 2.3 programs differed.
	f.old = order.Uint16(b[4:]) != 2 || order.Uint16(b[6:]) < 4
	f.link = linkType(order.Uint32(b[20:])) // the upper half has flags
	return f, nil
}

// newSnoop reads the header of a snoop file.
func newSnoop(in *counter) (*classicFile, error) {
	f := &classicFile{in: in, order: binary.BigEndian, unit: 1000, head: snoopHead, snoop: true}
	b := f.buf[:snoopFileHead]
	if _, err := io.ReadFull(in, b); err != nil {
		return nil, err
	}
	f.link = unknownLink
	if link, ok := snoopLinks[f.order.Uint32(b[12:])]; ok {
		f.link = link
	}
	return f, nil
}

// next reads a packet. The error is io.EOF at the regular end.
func (f *classicFile) next() (record, error) {
	b := f.buf[:f.head]
	if _, err := io.ReadFull(f.in, b); err != nil {
		return record{}, err
	}
	number := func(i int) uint32 { return f.order.Uint32(b[4*i:]) }
	seconds, fraction, captured, wire, pad := number(0), number(1), number(2), number(3), uint32(0)
	if f.snoop {
		wire, captured, seconds, fraction = number(0), number(1), number(4), number(5)
		all := number(2)
		if captured > maxPacketBytes || all < snoopHead+captured || all > snoopHead+captured+maxPacketBytes {
			return record{}, fmt.Errorf("a packet of %d bytes is in a record of %d", captured, all)
		}
		pad = all - snoopHead - captured
	} else if f.old && captured > wire {
		captured, wire = wire, captured
	}
	if captured > maxPacketBytes {
		return record{}, fmt.Errorf("a packet has %d bytes", captured)
	}
	n := int(captured)
	if cap(f.packet) < n {
		f.packet = make([]byte, n)
	}
	data := f.packet[:n]
	if _, err := io.ReadFull(f.in, data); err != nil {
		return record{}, unexpected(err)
	}
	if err := f.in.skip(int(pad)); err != nil {
		return record{}, unexpected(err)
	}
	at := time.Unix(int64(seconds), int64(fraction)*f.unit).UTC()
	return record{data: data, wire: wireLength(int64(wire), n), at: at, link: f.link}, nil
}
