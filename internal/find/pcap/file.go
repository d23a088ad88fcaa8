package pcap

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// ErrNotCapture is returned for input in an unknown format.
var ErrNotCapture = errors.New("this is not a pcap or pcapng file")

// ErrNoTCP is returned for a capture without TCP packets that pass the filter.
var ErrNoTCP = errors.New("no TCP packet is in the capture")

// TruncatedError is returned for an incomplete or damaged capture. The Result
// beside it covers the packets before the damage.
type TruncatedError struct {
	File    string // of several; empty: the only one
	Packets int64  // read
	Bytes   int64  // read of the uncompressed file
	Err     error  // the reader's error
}

// Error names the end of the readable part.
func (e *TruncatedError) Error() string {
	name := cmp.Or(e.File, "the capture")
	if errors.Is(e.Err, io.ErrUnexpectedEOF) {
		return fmt.Sprintf("%s ends unexpectedly after %d packets (%d bytes)", name, e.Packets, e.Bytes)
	}
	if version := (*versionError)(nil); errors.As(e.Err, &version) {
		return fmt.Sprintf("%s has %v", name, version)
	}
	return fmt.Sprintf("%s is damaged after %d packets (%d bytes): %v", name, e.Packets, e.Bytes, e.Err)
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

// linkTypeError makes the error for an unsupported link type.
func linkTypeError(t linkType) *LinkTypeError {
	name := map[linkType]string{
		linkTokenRing: "Token Ring", linkFDDI: "FDDI",
		link80211: "802.11", linkRadiotap: "802.11 with radiotap", linkPrism: "802.11 with Prism",
		linkFrameRelay: "Frame Relay", linkPFLog: "pflog", linkUSB: "USB",
		8: "SLIP", 192: "PPI, mostly of 802.11", 226: "IPNET", 258: "PKTAP", 281: "Broadcom tags", 284: "DSA tags", 285: "EDSA tags",
		187: "Bluetooth", 195: "802.15.4", 227: "SocketCAN", 239: "NFLOG", 247: "InfiniBand", 253: "netlink",
	}[t]
	return &LinkTypeError{Number: int(t), Name: name}
}

// record is a packet in the file.
type record struct {
	data []byte // valid until the next record
	wire int    // length on the wire in bytes
	at   time.Time
	link linkType
	// device identifies the interface in a file with several.
	device int
}

// file reads the records of a capture in any format.
type file struct {
	counted *counter
	// next reads a record. The error is io.EOF at the regular end.
	next func() (record, error)
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

// open detects the format, also behind a compression that looks back by at most a window.
func open(r io.Reader, window int) (*file, error) {
	head, err := decompressed(r, window)
	if err != nil {
		return nil, err
	}
	b, err := head.Peek(len(magicSnoop))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, &TruncatedError{Err: err}
	}
	if len(b) < 4 {
		return nil, ErrNotCapture
	}
	f := &file{counted: &counter{r: head}}
	if binary.BigEndian.Uint32(b) == ngSection {
		f.next = (&ngFile{in: f.counted}).next
		return f, nil
	}
	var classic *classicFile
	if order := classicOrder(b); order != nil {
		classic, err = newClassic(f.counted, order)
	} else if string(b) == magicSnoop {
		classic, err = newSnoop(f.counted)
	} else {
		return nil, ErrNotCapture
	}
	if err != nil {
		return nil, &TruncatedError{Bytes: f.counted.n, Err: unexpected(err)}
	}
	f.next = classic.next
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

// wireLength is the length of a packet on the wire, of which n bytes were captured.
func wireLength(said int64, n int) int { return max(int(min(said, math.MaxInt32)), n) }
