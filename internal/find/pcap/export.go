package pcap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"longhaul/internal/sys/checksum"
)

// exporter writes the headers of packets to a pcapng file, for others to examine. Addresses
// of IP and Ethernet are replaced, each by the same one everywhere, and times begin at
// exportEpoch. What follows TCP's header is left out, and its length remains. What only says
// where a packet came from is set to zero: options of IP, and those of TCP that a kernel
// does not need to send data. All that Read examines remains: lengths, ports, sequence
// numbers, timestamps, windows, VLANs, and the numbers of tunnels.
type exporter struct {
	out     *bufio.Writer
	devices map[exportDevice]uint32
	four    map[[4]byte]uint32
	six     map[[16]byte]uint32
	mac     map[[6]byte]uint32
	began   time.Time // of the capture
	last    time.Time // of the packets written
	packets int64
	buf     []byte
}

// exportDevice is an interface of the capture.
type exportDevice struct {
	device int
	link   linkType
}

// exportEpoch is the time of the first packet of an export.
var exportEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// maxReplaced bounds the addresses of each kind that are replaced.
const maxReplaced = 1 << 20

// ErrManyAddresses is returned by an export of more addresses than are replaced.
var ErrManyAddresses = fmt.Errorf("more than %d addresses are in the capture", maxReplaced)

func newExporter(w io.Writer) *exporter {
	return &exporter{
		out: bufio.NewWriter(w), devices: map[exportDevice]uint32{},
		four: map[[4]byte]uint32{}, six: map[[16]byte]uint32{}, mac: map[[6]byte]uint32{},
	}
}

// begin writes the head of the file. An empty packet stands for a first one that is not
// exported, so that the capture lasts as long.
func (x *exporter) begin(began time.Time) error {
	x.began, x.last = began, began
	err := x.block(ngSection, func(b []byte) []byte {
		b = binary.LittleEndian.AppendUint32(b, ngOrder)
		b = binary.LittleEndian.AppendUint16(b, 1)
		b = binary.LittleEndian.AppendUint16(b, 0)
		return binary.LittleEndian.AppendUint64(b, 1<<64-1)
	})
	if err != nil {
		return err
	}
	return x.write(exportDevice{link: linkRaw}, began, nil, 0)
}

// end writes an empty packet at the end of the capture.
func (x *exporter) end(last time.Time) error {
	if last.After(x.last) {
		if err := x.write(exportDevice{link: linkRaw}, last, nil, 0); err != nil {
			return err
		}
	}
	return x.out.Flush()
}

// packet writes the headers of a packet that d has decoded.
func (x *exporter) packet(r record, d *decoder) error {
	tcp := d.places[len(d.places)-1].at
	end := min(tcp+int(r.data[tcp+12]>>4)*4, len(r.data))
	data := append([]byte(nil), r.data[:end]...)
	for i, p := range d.places {
		next := end
		if i+1 < len(d.places) {
			next = d.places[i+1].at
		}
		if err := x.hide(p.header, data[p.at:next]); err != nil {
			return err
		}
	}
	x.packets++
	return x.write(exportDevice{r.device, r.link}, r.at, data, r.wire)
}

// write writes a packet, after the description of its interface if that is new.
func (x *exporter) write(device exportDevice, at time.Time, data []byte, wire int) error {
	index, ok := x.devices[device]
	if !ok {
		if len(x.devices) == maxDevices {
			return ErrManyInterfaces
		}
		index = uint32(len(x.devices))
		x.devices[device] = index
		err := x.block(ngInterface, func(b []byte) []byte {
			b = binary.LittleEndian.AppendUint16(b, uint16(device.link))
			b = append(b, 0, 0, 0, 0, 0, 0)
			return append(b, ngResolution, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0)
		})
		if err != nil {
			return err
		}
	}
	if at.After(x.last) {
		x.last = at
	}
	stamp := uint64(max(0, exportEpoch.Add(at.Sub(x.began)).UnixNano()))
	return x.block(ngPacket, func(b []byte) []byte {
		for _, n := range []uint32{index, uint32(stamp >> 32), uint32(stamp), uint32(len(data)), uint32(wire)} {
			b = binary.LittleEndian.AppendUint32(b, n)
		}
		return append(append(b, data...), make([]byte, -len(data)&3)...)
	})
}

// block writes a block.
func (x *exporter) block(kind uint32, body func([]byte) []byte) error {
	b := body(append(x.buf[:0], make([]byte, 8)...))
	length := uint32(len(b) + 4)
	binary.LittleEndian.PutUint32(b, kind)
	binary.LittleEndian.PutUint32(b[4:], length)
	x.buf = binary.LittleEndian.AppendUint32(b, length)
	_, err := x.out.Write(x.buf)
	return err
}

// hide replaces what identifies hosts in a header.
func (x *exporter) hide(h header, b []byte) error {
	switch h {
	case hEthernet:
		return errors.Join(x.hideMAC(b[:6]), x.hideMAC(b[6:12]))
	case hSLL:
		return x.hideAddress(b[6:14], int(binary.BigEndian.Uint16(b[4:])))
	case hSLL2:
		return x.hideAddress(b[12:20], int(b[11]))
	case hIPv4:
		for i := 20; i < len(b); i++ {
			b[i] = 1 // no operation
		}
		if err := errors.Join(x.hide4(b[12:16]), x.hide4(b[16:20])); err != nil {
			return err
		}
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], checksum.Of(b))
	case hIPv6:
		b[1], b[2], b[3] = b[1]&0xf0, 0, 0 // of the flow
		return errors.Join(x.hide6(b[8:24]), x.hide6(b[24:40]))
	case hExtension:
		clearFrom(b, 2)
	case hFragment, hAuthentication:
		clearFrom(b, 4)
	case hGRE:
		hideGRE(b)
	case hERSPAN2:
		clearFrom(b, 4) // a port of the switch
	case hERSPAN3:
		hideERSPAN3(b)
	case hGeneve:
		clearFrom(b, 8)
	case hUDP:
		b[6], b[7] = 0, 0
	case hTCP:
		b[16], b[17] = 0, 0
		hideOptions(b[20:])
	}
	return nil
}

func clearFrom(b []byte, i int) {
	if i < len(b) {
		clear(b[i:])
	}
}

// hideGRE clears the checksum and the addresses of source routes.
func hideGRE(b []byte) {
	checksum, routes, key, sequence := b[0]&0x80 != 0, b[0]&0x40 != 0, b[0]&0x20 != 0, b[0]&0x10 != 0
	at := 4
	if checksum || routes {
		b[4], b[5] = 0, 0
		at += 4
	}
	for _, has := range []bool{key, sequence} {
		if has {
			at += 4
		}
	}
	for routes && at+4 <= len(b) {
		n := min(int(b[at+3]), len(b)-at-4)
		if n == 0 && b[at] == 0 && b[at+1] == 0 { // the end, as the decoder has it
			return
		}
		clear(b[at+4 : at+4+n])
		at += 4 + n
	}
}

// hideERSPAN3 clears what switches say of themselves: times, groups, and what depends on the
// platform. The bit that says whether the latter is there remains.
func hideERSPAN3(b []byte) {
	clear(b[4:10])
	b[10], b[11] = 0, b[11]&1
	clearFrom(b, 12)
}

// isPlain reports whether an option of TCP names no host: by its kind, and by the length
// that this kind has.
func isPlain(kind optionKind, length byte) bool {
	switch kind {
	case optionMSS:
		return length == 4
	case optionWindowScale:
		return length == 3
	case optionSACKPermitted:
		return length == 2
	case optionSACK:
		return length >= 10 && length <= 34 && length%8 == 2
	case optionTimestamps:
		return length == 10
	}
	return false
}

// hideOptions clears the content of TCP's other options: addresses of MPTCP and of proxies,
// cookies, signatures. Of one that is cut off nothing is read.
func hideOptions(b []byte) {
	for len(b) > 0 {
		kind := optionKind(b[0])
		switch {
		case kind == optionEnd:
			clear(b)
			return
		case kind == optionNop:
			b = b[1:]
			continue
		case len(b) < 2, b[1] < 2, int(b[1]) > len(b): // cut off, or invalid
			clearFrom(b, 2)
			return
		}
		if !isPlain(kind, b[1]) {
			clear(b[2:b[1]])
		}
		b = b[b[1]:]
	}
}

// number returns the number of an address, from 1 in the order in which they come.
func number[A comparable](all map[A]uint32, a A) (uint32, error) {
	n, ok := all[a]
	if !ok {
		if len(all) == maxReplaced {
			return 0, ErrManyAddresses
		}
		n = uint32(len(all) + 1)
		all[a] = n
	}
	return n, nil
}

func (x *exporter) hide4(b []byte) error {
	n, err := number(x.four, [4]byte(b))
	binary.BigEndian.PutUint32(b, 10<<24|n)
	return err
}

func (x *exporter) hide6(b []byte) error {
	n, err := number(x.six, [16]byte(b))
	clear(b)
	b[0] = 0xfd
	binary.BigEndian.PutUint32(b[12:], n)
	return err
}

func (x *exporter) hideMAC(b []byte) error {
	n, err := number(x.mac, [6]byte(b))
	b[0], b[1] = 2, 0
	binary.BigEndian.PutUint32(b[2:], n)
	return err
}

// hideAddress replaces an address of n bytes in a field for any device.
func (x *exporter) hideAddress(b []byte, n int) error {
	clearFrom(b, 6)
	if n != 6 {
		clear(b)
		return nil
	}
	return x.hideMAC(b[:6])
}
