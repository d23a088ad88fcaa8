package wire

import (
	"encoding/binary"
	"io"
	"math"
	"net/netip"
	"time"

	"longhaul/internal/words/printable"
)

// maxHello bounds what follows the length of a HELLO.
const maxHello = 1024

// maxText bounds names and texts of the other end, in bytes. They pass package printable
// where they are read.
const maxText = 255

// The types of HELLO's values.
const (
	helloVersions = 1
	helloInstance = 2
	helloSession  = 3
	helloTunnel   = 4
	helloRelease  = 5
	helloFeatures = 6
	helloProblem  = 7
	helloResume   = 8
	helloOrigin   = 9
	helloMore     = 10
	helloBoot     = 11
	helloFollows  = 12
	helloOwed     = 13
	helloAddress  = 14
)

// Features are bits of what an end offers for this connection. Those beyond the first eight have a
// value of their own in HELLO, which older releases ignore.
type Features uint16

// The features.
const (
	FeatureClear    Features = 1 << iota // the lane goes on in clear
	FeaturePad                           // the lane goes to the pool: both ends send PAD
	FeatureNoResume                      // flows of the lane end with it
	FeatureLanes                         // several lanes may carry a flow
	FeatureAhead                         // OPEN may come on the control connection, ahead of the flow's lane
	FeatureCompress                      // either end may send compressed records
	FeatureHeld                          // either end may send HELD
	FeatureSealed                        // lanes in clear carry neither OPEN nor END: both come on the control connection
	FeatureSums                          // frames of lanes in clear have sums, but of a stream's bytes
	FeatureSent                          // either end may send SENT
	FeatureTrouble                       // the far end may send TROUBLE
	FeatureAddress                       // the far end may tell its own address
	FeatureOffset                        // the far end heeds the offset of OPEN
	FeatureTrace                         // either end answers TRACE
)

// Hello is what each end says of itself at first.
type Hello struct {
	Lowest, Highest byte   // versions
	Instance        uint64 // random, of the process
	Session         uint64 // the near relay's number of this relation of two processes
	Tunnel          string
	Release         string
	Features        Features
	Resume          time.Duration // near end: how long flows wait for a lane, in ms; 0: not said
	Origin          string        // near end: the same for each process of one near tunnel
	Boot            uint64        // near end: of the latest start of its host; 0: not said
	// Follows is the instance that the near end has asked for, if the far end's process follows it and
	// it has ended in order; 0: it does not.
	Follows uint64
	Owed    Flows          // of the near end's session: flows that ended in that process, perhaps without its knowledge
	Address netip.AddrPort // far end: where this process takes connections, and no other host does; invalid: not said
	Problem string         // why this end closes the connection now; empty: it does not
}

// Append appends the HELLO: length (2), then type (1), length (2), value for each.
func (h Hello) Append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0)
	dst = appendValue(dst, helloVersions, []byte{h.Lowest, h.Highest})
	dst = appendValue(dst, helloInstance, binary.BigEndian.AppendUint64(nil, h.Instance))
	dst = appendValue(dst, helloSession, binary.BigEndian.AppendUint64(nil, h.Session))
	dst = appendText(dst, helloTunnel, h.Tunnel)
	dst = appendText(dst, helloRelease, h.Release)
	dst = appendValue(dst, helloFeatures, []byte{byte(h.Features)})
	if more := byte(h.Features >> 8); more != 0 {
		dst = appendValue(dst, helloMore, []byte{more})
	}
	dst = appendText(dst, helloProblem, h.Problem)
	if ms := min(h.Resume.Milliseconds(), math.MaxUint32); ms > 0 {
		dst = appendValue(dst, helloResume, binary.BigEndian.AppendUint32(nil, uint32(ms)))
	}
	dst = appendText(dst, helloOrigin, h.Origin)
	if h.Boot != 0 {
		dst = appendValue(dst, helloBoot, binary.BigEndian.AppendUint64(nil, h.Boot))
	}
	switch follows := binary.BigEndian.AppendUint64(nil, h.Follows); {
	case h.Owed != "": // older near ends, which ignore it, are not to begin any flow again
		dst = appendValue(dst, helloOwed, append(follows, h.Owed...))
	case h.Follows != 0:
		dst = appendValue(dst, helloFollows, follows)
	}
	if Tellable(h.Address) {
		a := netip.AddrPortFrom(h.Address.Addr().Unmap(), h.Address.Port())
		dst = appendValue(dst, helloAddress, binary.BigEndian.AppendUint16(a.Addr().AsSlice(), a.Port()))
	}
	binary.BigEndian.PutUint16(dst[start:], uint16(len(dst)-start-2))
	return dst
}

func appendValue(dst []byte, kind byte, value []byte) []byte {
	dst = append(dst, kind)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(value)))
	return append(dst, value...)
}

func appendText(dst []byte, kind byte, text string) []byte {
	if text == "" {
		return dst
	}
	return appendValue(dst, kind, []byte(text[:min(len(text), maxText)]))
}

// ReadHello reads a HELLO and no byte more.
func ReadHello(r io.Reader) (Hello, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return Hello{}, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > maxHello {
		return Hello{}, malformed("HELLO of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return Hello{}, err
	}
	return parseHello(b)
}

func parseHello(b []byte) (h Hello, err error) {
	for len(b) > 0 {
		if len(b) < 3 {
			return h, malformed("HELLO is cut")
		}
		kind, n := b[0], int(binary.BigEndian.Uint16(b[1:]))
		if b = b[3:]; n > len(b) {
			return h, malformed("value %d of HELLO is cut", kind)
		}
		if err := h.set(kind, b[:n]); err != nil {
			return h, err
		}
		b = b[n:]
	}
	if h.Lowest == 0 || h.Highest < h.Lowest {
		return h, malformed("HELLO without versions")
	}
	return h, nil
}

func (h *Hello) set(kind byte, value []byte) error {
	sizes := map[byte]int{helloVersions: 2, helloInstance: 8, helloSession: 8, helloFeatures: 1, helloResume: 4, helloBoot: 8, helloFollows: 8}
	if want, fixed := sizes[kind]; fixed && len(value) != want {
		return malformed("value %d of HELLO has %d bytes", kind, len(value))
	}
	if kind == helloOwed {
		return h.setOwed(value)
	}
	if kind == helloAddress {
		return h.setAddress(value)
	}
	if len(value) > maxText {
		return nil // of an unknown type, or cut by no version of ours
	}
	switch kind {
	case helloVersions:
		h.Lowest, h.Highest = value[0], value[1]
	case helloInstance:
		h.Instance = binary.BigEndian.Uint64(value)
	case helloSession:
		h.Session = binary.BigEndian.Uint64(value)
	case helloTunnel:
		h.Tunnel = printable.String(string(value))
	case helloRelease:
		h.Release = printable.String(string(value))
	case helloFeatures:
		h.Features = h.Features&^0xff | Features(value[0])
	case helloMore:
		if len(value) > 0 { // those behind the first byte are of later releases
			h.Features = h.Features&0xff | Features(value[0])<<8
		}
	case helloResume:
		h.Resume = time.Duration(binary.BigEndian.Uint32(value)) * time.Millisecond
	case helloProblem:
		h.Problem = printable.String(string(value))
	case helloBoot:
		h.Boot = binary.BigEndian.Uint64(value)
	case helloOrigin:
		h.Origin = printable.String(string(value))
	case helloFollows:
		h.Follows = binary.BigEndian.Uint64(value)
	}
	return nil
}

func (h *Hello) setOwed(value []byte) error {
	if len(value) < 8 {
		return malformed("value %d of HELLO has %d bytes", helloOwed, len(value))
	}
	h.Follows, h.Owed = binary.BigEndian.Uint64(value), Flows(value[8:])
	if !h.Owed.valid() {
		return malformed("numbers of flows in HELLO")
	}
	return nil
}

// setAddress takes an address (4 or 16 bytes) and a port (2), in the one form that Append makes.
func (h *Hello) setAddress(value []byte) error {
	n := max(len(value)-2, 0)
	addr, _ := netip.AddrFromSlice(value[:n])
	if addr.Is4In6() {
		return malformed("an IPv4 address as IPv6 in HELLO")
	}
	if addr.IsValid() {
		h.Address = netip.AddrPortFrom(addr, binary.BigEndian.Uint16(value[n:]))
	}
	if !addr.IsValid() || !Tellable(h.Address) {
		return malformed("value %d of HELLO is no address of a host", helloAddress)
	}
	return nil
}

// Tellable reports whether another host can connect to an address that HELLO tells. One of the link
// alone has a zone, which no other host knows.
func Tellable(a netip.AddrPort) bool {
	addr := a.Addr().Unmap()
	return addr.IsValid() && a.Port() != 0 && addr.Zone() == "" && !addr.IsUnspecified() && !addr.IsMulticast() &&
		!addr.IsLinkLocalUnicast()
}

// Speaks reports whether the versions of the sender and of this package overlap.
func (h Hello) Speaks() bool { return h.Lowest <= HighestVersion && h.Highest >= LowestVersion }
