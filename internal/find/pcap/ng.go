package pcap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"time"
)

// ngFile reads the packets of a pcapng file. A compressed file can have millions of blocks
// in a few kilobytes, so it keeps of each only what packets need: it passes over all
// options but two, and over all blocks but those of sections, interfaces and packets.
type ngFile struct {
	in      *counter
	order   binary.ByteOrder
	rest    uint32     // bytes of the current block that were not read
	devices []ngDevice // of the section
	unread  bool       // the section is of a version that has other blocks
	skipped error      // the first such section
	buf     [24]byte
	packet  []byte // reused
}

// ngDevice is an interface of a section.
type ngDevice struct {
	link    linkType
	snaplen uint32
	unit    uint64 // of its timestamps, per second
	offset  int64  // of its timestamps, seconds
}

// maxDevices bounds the interfaces of a section. Hosts with many containers have hundreds.
const maxDevices = 4096

// ErrManyInterfaces is returned for a capture with a section of more interfaces than are
// read.
var ErrManyInterfaces = fmt.Errorf("more than %d interfaces are in the capture", maxDevices)

// Types of blocks, and codes of options of an interface.
const (
	ngSection   = 0x0a0d0d0a // the same in both byte orders
	ngInterface = 1
	ngOldPacket = 2
	ngSimple    = 3
	ngPacket    = 6

	ngOrder = 0x1a2b3c4d // as a section's writer has it

	ngEndOfOptions = 0
	ngResolution   = 9
	ngOffset       = 14
)

// The smallest blocks: with the type, and the length at both ends.
const (
	ngBlockBytes     = 12
	ngSectionBytes   = 28
	ngInterfaceBytes = 20
	ngPacketBytes    = 32
	ngSimpleBytes    = 16
)

var errBlockLength = errors.New("a block's length does not match its content")

// next reads a packet. The error is io.EOF at the regular end, and a *versionError at that
// of a file with sections that were passed over.
func (f *ngFile) next() (record, error) {
	for {
		kind, err := f.block()
		if err == io.EOF && f.skipped != nil {
			return record{}, f.skipped
		}
		if err != nil {
			return record{}, err
		}
		var r record
		found := false
		switch {
		case f.unread:
		case kind == ngInterface:
			err = f.device()
		case kind == ngPacket, kind == ngOldPacket:
			r, err = f.fullPacket(kind)
			found = true
		case kind == ngSimple:
			r, err = f.simplePacket()
			found = true
		}
		if err == nil {
			err = f.skip(f.rest)
		}
		if err != nil {
			return record{}, unexpected(err)
		}
		if found {
			return r, nil
		}
	}
}

// block reads the head of a block, and that of a section whole. It returns the type.
func (f *ngFile) block() (uint32, error) {
	if _, err := io.ReadFull(f.in, f.buf[:8]); err != nil {
		return 0, err
	}
	if binary.BigEndian.Uint32(f.buf[:]) == ngSection {
		return ngSection, unexpected(f.beginSection())
	}
	kind, length := f.order.Uint32(f.buf[:]), f.order.Uint32(f.buf[4:])
	least := uint32(ngBlockBytes)
	if !f.unread {
		switch kind {
		case ngInterface:
			least = ngInterfaceBytes
		case ngPacket, ngOldPacket:
			least = ngPacketBytes
		case ngSimple:
			least = ngSimpleBytes
		}
	}
	if length < least {
		return 0, errBlockLength
	}
	f.rest = length - 8
	return kind, nil
}

// beginSection reads the rest of a section's head after its type and length.
func (f *ngFile) beginSection() error {
	if _, err := io.ReadFull(f.in, f.buf[8:24]); err != nil {
		return err
	}
	switch magic := f.buf[8:12]; uint32(ngOrder) {
	case binary.BigEndian.Uint32(magic):
		f.order = binary.BigEndian
	case binary.LittleEndian.Uint32(magic):
		f.order = binary.LittleEndian
	default:
		return errors.New("a section has no byte order")
	}
	length := f.order.Uint32(f.buf[4:])
	if length < ngSectionBytes {
		return errBlockLength
	}
	f.rest = length - 24
	f.devices = f.devices[:0]
	major, minor := f.order.Uint16(f.buf[12:]), f.order.Uint16(f.buf[14:])
	f.unread = major != 1 || minor != 0 && minor != 2 // both are the same
	if f.unread && f.skipped == nil {
		f.skipped = &versionError{major, minor}
	}
	return nil
}

// versionError reports a section of another version, which was passed over.
type versionError struct{ major, minor uint16 }

func (e *versionError) Error() string {
	return fmt.Sprintf("a section of version %d.%d of pcapng, which is not read", e.major, e.minor)
}

// device reads a description of an interface.
func (f *ngFile) device() error {
	if len(f.devices) >= maxDevices {
		return ErrManyInterfaces
	}
	if err := f.read(8); err != nil {
		return err
	}
	d := ngDevice{link: linkType(f.order.Uint16(f.buf[:])), snaplen: f.order.Uint32(f.buf[4:]), unit: 1e6}
	for f.rest >= 8 { // an option's head, and the length at the end
		if err := f.read(4); err != nil {
			return err
		}
		code, length := f.order.Uint16(f.buf[:]), uint32(f.order.Uint16(f.buf[2:]))
		padded := (length + 3) &^ 3
		if code == ngEndOfOptions {
			break
		}
		if padded > f.rest-4 {
			return errBlockLength
		}
		used := uint32(0)
		switch {
		case code == ngResolution && length >= 1:
			used = 4
		case code == ngOffset && length >= 8:
			used = 8
		}
		if err := f.read(used); err != nil {
			return err
		}
		switch {
		case used == 4:
			unit, err := ngUnit(f.buf[0])
			if err != nil {
				return err
			}
			d.unit = unit
		case used == 8:
			d.offset = int64(f.order.Uint64(f.buf[:]))
		}
		if err := f.skip(padded - used); err != nil {
			return err
		}
	}
	f.devices = append(f.devices, d)
	return nil
}

// ngUnit returns how many units of a resolution a second has: a power of 10, or of 2 with
// the highest bit set.
func ngUnit(resolution byte) (uint64, error) {
	exponent := resolution &^ 0x80
	if resolution&0x80 != 0 {
		if exponent > 63 {
			return 0, fmt.Errorf("timestamps of 2^-%d s are too fine", exponent)
		}
		return 1 << exponent, nil
	}
	if exponent > 19 {
		return 0, fmt.Errorf("timestamps of 10^-%d s are too fine", exponent)
	}
	unit := uint64(1)
	for range exponent {
		unit *= 10
	}
	return unit, nil
}

// time returns the time of a timestamp.
func (d *ngDevice) time(stamp uint64) time.Time {
	high, low := bits.Mul64(stamp%d.unit, 1e9)
	ns, _ := bits.Div64(high, low, d.unit)
	return time.Unix(int64(stamp/d.unit)+d.offset, int64(ns)).UTC()
}

// fullPacket reads a packet with its interface and time.
func (f *ngFile) fullPacket(kind uint32) (record, error) {
	if err := f.read(20); err != nil {
		return record{}, err
	}
	index := f.order.Uint32(f.buf[:])
	if kind == ngOldPacket {
		index = uint32(f.order.Uint16(f.buf[:]))
	}
	if index >= uint32(len(f.devices)) {
		return record{}, fmt.Errorf("a packet is of interface %d, and the section has %d", index, len(f.devices))
	}
	d := &f.devices[index]
	stamp := uint64(f.order.Uint32(f.buf[4:]))<<32 | uint64(f.order.Uint32(f.buf[8:]))
	captured, wire := f.order.Uint32(f.buf[12:]), f.order.Uint32(f.buf[16:])
	r := record{at: d.time(stamp), link: d.link, device: int(index)}
	return r, f.content(&r, captured, wire)
}

// simplePacket reads a packet of the first interface, without a time.
func (f *ngFile) simplePacket() (record, error) {
	if err := f.read(4); err != nil {
		return record{}, err
	}
	if len(f.devices) == 0 {
		return record{}, errors.New("a packet is of interface 0, and the section has 0")
	}
	d := &f.devices[0]
	wire := f.order.Uint32(f.buf[:])
	captured := wire
	if d.snaplen != 0 {
		captured = min(captured, d.snaplen)
	}
	r := record{link: d.link}
	return r, f.content(&r, captured, wire)
}

// content reads the content of a packet, up to a bound: its headers are at the beginning.
func (f *ngFile) content(r *record, captured, wire uint32) error {
	if captured > f.rest-4 {
		return errBlockLength
	}
	n := int(min(captured, maxPacketBytes))
	if cap(f.packet) < n {
		f.packet = make([]byte, n)
	}
	r.data = f.packet[:n]
	r.wire = wireLength(int64(wire), n)
	f.rest -= uint32(n)
	_, err := io.ReadFull(f.in, r.data)
	return err
}

// read reads n bytes of the block into buf.
func (f *ngFile) read(n uint32) error {
	f.rest -= n
	_, err := io.ReadFull(f.in, f.buf[:n])
	return err
}

// skip passes over n bytes of the block.
func (f *ngFile) skip(n uint32) error {
	f.rest -= n
	return f.in.skip(int(n))
}
