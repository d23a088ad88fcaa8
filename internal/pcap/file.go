package pcap

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// ErrNotCapture is the error of input that is no capture file at all.
var ErrNotCapture = errors.New("this is not a pcap or pcapng file")

// ErrNoTCP is the error of a capture in which no TCP packet is, or none that
// the filter lets through.
var ErrNoTCP = errors.New("no TCP packet is in the capture")

// TruncatedError is the error of a capture that breaks off or is damaged. What
// was read until there stands in the Result beside it.
type TruncatedError struct {
	Packets int64 // that were read
	Bytes   int64 // of the file, uncompressed, that were read
	Err     error // what the reader met
}

// Error says how far the capture goes.
func (e *TruncatedError) Error() string {
	if errors.Is(e.Err, io.ErrUnexpectedEOF) {
		return fmt.Sprintf("the capture breaks off after %d packets (%d bytes)", e.Packets, e.Bytes)
	}
	return fmt.Sprintf("the capture cannot be read any further after %d packets (%d bytes): %v", e.Packets, e.Bytes, e.Err)
}

// Unwrap gives what the reader met.
func (e *TruncatedError) Unwrap() error { return e.Err }

// LinkTypeError is the error of a capture whose packets have headers of a kind
// that is not read.
type LinkTypeError struct {
	Number int    // LINKTYPE_ value
	Name   string // empty where it has none here
}

// Error names the link type.
func (e *LinkTypeError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("packets of link type %d cannot be read", e.Number)
	}
	return fmt.Sprintf("packets of link type %s (%d) cannot be read", e.Name, e.Number)
}

// The numbers of raw IP: 12 and 14 are those of BSD and OpenBSD, which stand in
// files as well.
const (
	linkRawBSD     layers.LinkType = 12
	linkRawOpenBSD layers.LinkType = 14
)

// readable are the link types whose packets are decoded.
var readable = map[layers.LinkType]bool{
	layers.LinkTypeNull: true, layers.LinkTypeLoop: true,
	layers.LinkTypeEthernet: true,
	layers.LinkTypeLinuxSLL: true, layers.LinkTypeLinuxSLL2: true,
	layers.LinkTypeRaw: true, linkRawBSD: true, linkRawOpenBSD: true,
	layers.LinkTypeIPv4: true, layers.LinkTypeIPv6: true,
}

// linkTypeError names a link type that is not in readable.
func linkTypeError(t layers.LinkType) *LinkTypeError {
	name := map[layers.LinkType]string{
		layers.LinkTypePPP: "PPP", layers.LinkTypePPP_HDLC: "PPP over HDLC", layers.LinkTypePPPEthernet: "PPP over Ethernet",
		layers.LinkTypeTokenRing: "Token Ring", layers.LinkTypeFDDI: "FDDI", layers.LinkTypeATM_RFC1483: "ATM",
		layers.LinkTypeIEEE802_11: "802.11", layers.LinkTypeIEEE80211Radio: "802.11 with radiotap", layers.LinkTypePrismHeader: "802.11 with Prism",
		layers.LinkTypeFRelay: "Frame Relay", layers.LinkTypePFLog: "pflog", layers.LinkTypeLinuxUSB: "USB",
		187: "Bluetooth", 195: "802.15.4", 227: "SocketCAN", 239: "NFLOG", 247: "InfiniBand", 253: "netlink",
	}[t]
	return &LinkTypeError{Number: int(t), Name: name}
}

// record is a packet as it stands in the file.
type record struct {
	data []byte // valid until the next record
	wire int    // bytes that it had on the wire
	at   time.Time
	link layers.LinkType
	// device tells the interfaces of a file with several apart.
	device int
}

// file reads the records of a capture of either format.
type file struct {
	counted *counter
	classic *pcapgo.Reader
	ng      *pcapgo.NgReader
}

// counter counts the bytes of what is read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// The first four bytes of the formats: those of pcap are in either byte order.
const (
	magicMicroseconds = 0xa1b2c3d4
	magicNanoseconds  = 0xa1b23c4d
	magicNg           = 0x0a0d0d0a
	magicGzip         = 0x1f8b // two bytes
)

// open finds out the format. Compression by gzip is undone.
func open(r io.Reader) (*file, error) {
	head := bufio.NewReader(r)
	if b, err := head.Peek(2); err == nil && binary.BigEndian.Uint16(b) == magicGzip {
		unzipped, err := gzip.NewReader(head)
		if err != nil {
			return nil, ErrNotCapture
		}
		head = bufio.NewReader(unzipped)
	}
	b, err := head.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	if len(b) < 4 {
		return nil, ErrNotCapture
	}
	f := &file{counted: &counter{r: head}}
	switch big, little := binary.BigEndian.Uint32(b), binary.LittleEndian.Uint32(b); {
	case big == magicNg:
		f.ng, err = pcapgo.NewNgReader(f.counted, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
	case big == magicMicroseconds, big == magicNanoseconds, little == magicMicroseconds, little == magicNanoseconds:
		f.classic, err = pcapgo.NewReader(f.counted)
	default:
		return nil, ErrNotCapture
	}
	if err != nil {
		return nil, &TruncatedError{Bytes: f.counted.n, Err: unexpected(err)}
	}
	return f, nil
}

// unexpected makes an end of the input that is not one of the capture
// recognisable.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next reads a record. The error is io.EOF at the capture's proper end.
func (f *file) next() (record, error) {
	var (
		data []byte
		ci   gopacket.CaptureInfo
		err  error
		link layers.LinkType
	)
	if f.ng != nil {
		data, ci, err = f.ng.ZeroCopyReadPacketData()
		if err == nil {
			link, _ = ci.AncillaryData[0].(layers.LinkType)
		}
	} else {
		link = f.classic.LinkType()
		data, ci, err = f.classic.ZeroCopyReadPacketData()
		if err == io.EOF && ci.CaptureLength > 0 {
			err = io.ErrUnexpectedEOF // after the record's header
		}
	}
	if err != nil {
		return record{}, err
	}
	return record{data: data, wire: max(min(ci.Length, math.MaxInt32), len(data)), at: ci.Timestamp, link: link, device: ci.InterfaceIndex}, nil
}
