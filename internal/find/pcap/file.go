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

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// ErrNotCapture is returned for input in an unknown format.
var ErrNotCapture = errors.New("this is not a pcap or pcapng file")

// ErrNoTCP is returned for a capture without TCP packets that pass the filter.
var ErrNoTCP = errors.New("no TCP packet is in the capture")

// TruncatedError is returned for an incomplete or damaged capture. The Result
// beside it covers the packets before the damage.
type TruncatedError struct {
	Packets int64 // read
	Bytes   int64 // read of the uncompressed file
	Err     error // the reader's error
}

// Error names the end of the readable part.
func (e *TruncatedError) Error() string {
	if errors.Is(e.Err, io.ErrUnexpectedEOF) {
		return fmt.Sprintf("the capture ends unexpectedly after %d packets (%d bytes)", e.Packets, e.Bytes)
	}
	return fmt.Sprintf("the capture is damaged after %d packets (%d bytes): %v", e.Packets, e.Bytes, e.Err)
}

// Unwrap returns the reader's error.
func (e *TruncatedError) Unwrap() error { return e.Err }

// LinkTypeError is returned for a capture with an unsupported link type.
type LinkTypeError struct {
	Number int    // LINKTYPE_ value
	Name   string // empty: unknown
}

// Error names the link type.
func (e *LinkTypeError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("unsupported link type %d", e.Number)
	}
	return fmt.Sprintf("unsupported link type %s (%d)", e.Name, e.Number)
}

// The numbers of raw IP in files of BSD (12) and OpenBSD (14).
const (
	linkRawBSD     layers.LinkType = 12
	linkRawOpenBSD layers.LinkType = 14
)

// readable lists the supported link types.
var readable = map[layers.LinkType]bool{
	layers.LinkTypeNull: true, layers.LinkTypeLoop: true,
	layers.LinkTypeEthernet: true,
	layers.LinkTypeLinuxSLL: true, layers.LinkTypeLinuxSLL2: true,
	layers.LinkTypeRaw: true, linkRawBSD: true, linkRawOpenBSD: true,
	layers.LinkTypeIPv4: true, layers.LinkTypeIPv6: true,
}

// linkTypeError makes the error for an unsupported link type.
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

// record is a packet in the file.
type record struct {
	data []byte // valid until the next record
	wire int    // length on the wire in bytes
	at   time.Time
	link layers.LinkType
	// device identifies the interface in a file with several.
	device int
}

// file reads the records of a capture in either format.
type file struct {
	counted *counter
	classic *pcapgo.Reader
	ng      *ngFile
}

// counter counts the bytes read.
type counter struct {
	r *bufio.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *counter) skip(n int) error {
	skipped, err := c.r.Discard(n)
	c.n += int64(skipped)
	return err
}

// The first four bytes of the formats; pcap uses either byte order.
const (
	magicMicroseconds = 0xa1b2c3d4
	magicNanoseconds  = 0xa1b23c4d
	magicNg           = 0x0a0d0d0a
	magicGzip         = 0x1f8b // two bytes
)

// open detects the format, and decompresses gzip.
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
		f.ng = &ngFile{in: f.counted}
	case big == magicMicroseconds, big == magicNanoseconds, little == magicMicroseconds, little == magicNanoseconds:
		if f.classic, err = pcapgo.NewReader(f.counted); err != nil {
			return nil, &TruncatedError{Bytes: f.counted.n, Err: unexpected(err)}
		}
		f.classic.SetSnaplen(min(f.classic.Snaplen(), maxPacketBytes))
	default:
		return nil, ErrNotCapture
	}
	return f, nil
}

// maxPacketBytes bounds a captured packet. The kernel's largest have half of it.
const maxPacketBytes = 1 << 20

// unexpected turns io.EOF within a record into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next reads a record. The error is io.EOF at the regular end.
func (f *file) next() (record, error) {
	if f.ng != nil {
		return f.ng.next()
	}
	data, ci, err := f.classic.ZeroCopyReadPacketData()
	if err != nil {
		if err == io.EOF && ci.CaptureLength > 0 {
			err = io.ErrUnexpectedEOF // after the record's header
		}
		return record{}, err
	}
	return record{data: data, wire: wireLength(int64(ci.Length), len(data)), at: ci.Timestamp, link: f.classic.LinkType()}, nil
}

// wireLength is the length of a packet on the wire, of which n bytes were captured.
func wireLength(said int64, n int) int { return max(int(min(said, math.MaxInt32)), n) }
