// Package pcap rebuilds from a capture file what the kernels of a TCP
// connection's two ends would have said of it, as samples for package doctor.
//
// A capture shows packets where it was taken, and no kernel's state. What is
// rebuilt of an end that sends is what follows from its packets and the
// acknowledgements of its peer, and is exact only where the capture was taken at
// that end: elsewhere its flight and its round trips cannot be seen, and are not
// marked as known. Counters count from the beginning of the capture.
package pcap

import (
	"cmp"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/gopacket/gopacket/layers"

	"longhaul/internal/doctor"
)

// Options are what a capture is read with. The zero value reads all of it.
type Options struct {
	// Between are the two ends of the connections that are wanted, in either
	// order. A zero End is any.
	Between [2]End
	// MaxConnections bounds those that are kept: when there are more, ended
	// ones that carried little make room, and then new ones are left out. 0
	// means DefaultConnections.
	MaxConnections int
	// Progress is called every few megabytes, if it is set.
	Progress func(Progress)
}

// DefaultConnections is the bound on connections where Options have none.
const DefaultConnections = 1000

// End is an end of a connection. What is zero matches everything.
type End struct {
	Host netip.Prefix
	Port uint16
}

func (e End) matches(a netip.AddrPort) bool {
	return (!e.Host.IsValid() || e.Host.Contains(a.Addr())) && (e.Port == 0 || e.Port == a.Port())
}

func (o *Options) wants(a, b netip.AddrPort) bool {
	x, y := o.Between[0], o.Between[1]
	return x.matches(a) && y.matches(b) || x.matches(b) && y.matches(a)
}

// Progress is how far the reading has come.
type Progress struct {
	Packets int64
	Bytes   int64 // of the file, uncompressed
}

// Result is what a capture shows.
type Result struct {
	Packets     int64         `json:"packets"` // in the file
	Bytes       int64         `json:"bytes"`   // of the file, uncompressed
	Start       time.Time     `json:"start"`   // of the first packet
	End         time.Time     `json:"end"`
	Connections []*Connection `json:"connections"` // those that carried most first
	LeftOut     LeftOut       `json:"left_out"`
}

// LeftOut is what Connections do not account for.
type LeftOut struct {
	Connections       int64    `json:"connections"`         // beyond Options.MaxConnections
	Packets           int64    `json:"packets"`             // of those
	Unwanted          int64    `json:"unwanted"`            // TCP packets of connections that were not asked for
	NotTCP            int64    `json:"not_tcp"`             // packets
	Fragments         int64    `json:"fragments"`           // fragments of IP packets
	HeadersCut        int64    `json:"headers_cut"`         // packets of which too little was captured, or that are malformed
	WithoutTime       int64    `json:"without_time"`        // packets
	Duplicates        int64    `json:"duplicates"`          // packets that were captured twice
	UnreadLinkTypes   []string `json:"unread_link_types"`   // of interfaces whose packets are not read
	UnreadLinkPackets int64    `json:"unread_link_packets"` // their packets
}

// Side is an end of a connection.
type Side string

// The sides.
const (
	Client Side = "client" // the end that connected, or has the higher port where that was not captured
	Server Side = "server"
)

// Place is where a capture was taken.
type Place string

// The places, seen from one direction of data.
const (
	AtSender     Place = "sender"
	AtReceiver   Place = "receiver"
	Between      Place = "between"
	PlaceUnknown Place = ""
)

// Connection is what a capture shows of one connection.
type Connection struct {
	Client    netip.AddrPort `json:"client"`
	Server    netip.AddrPort `json:"server"`
	Start     time.Time      `json:"start"` // of the first packet
	End       time.Time      `json:"end"`   // of the last
	Handshake Handshake      `json:"handshake"`
	ClosedBy  Side           `json:"closed_by,omitempty"` // whose FIN or RST came first
	Reset     bool           `json:"reset,omitempty"`     // it ended by RST
	// Directions are the two directions of data: from the client, and from
	// the server.
	Directions [2]Direction `json:"directions"`
}

// Handshake is what the ends said in their SYNs.
type Handshake struct {
	Client Offer `json:"client"`
	Server Offer `json:"server"`
	// RTT is from the SYN to the acknowledgement of its answer, 0 if it is not
	// known.
	RTT time.Duration `json:"rtt_ns"`
}

// Complete says whether both SYNs were captured whole: only then it is known
// what was agreed on.
func (h *Handshake) Complete() bool { return h.Client.Seen && h.Server.Seen }

// Offer are the options of one end's SYN.
type Offer struct {
	Seen       bool `json:"seen"`   // with all of its options
	MSS        int  `json:"mss"`    // 0: none announced
	WScale     int  `json:"wscale"` // -1: no window scaling
	SACK       bool `json:"sack"`
	Timestamps bool `json:"timestamps"`
	ECN        bool `json:"ecn"`
}

// Direction is what a capture shows of the data from one end to the other.
type Direction struct {
	// Observation holds the samples of the sending end, whose Info has what is
	// known of it.
	Observation doctor.Observation `json:"observation"`
	Place       Place              `json:"place"`   // of the capture
	Packets     int64              `json:"packets"` // captured, acknowledgements included
	Bytes       int64              `json:"bytes"`   // of data captured, what came again included
	// Delivered are the bytes of data that the other end acknowledged.
	Delivered int64 `json:"delivered"`
	// Retransmitted are segments that came again, LostBefore those of them that
	// had been lost before they came to the place of the capture, or were
	// missed by it.
	Retransmitted int64 `json:"retransmitted"`
	LostBefore    int64 `json:"lost_before"`
	Reordered     int64 `json:"reordered"`     // segments that came late, but in their first transmission
	ZeroWindows   int64 `json:"zero_windows"`  // times that the other end closed its window
	Probes        int64 `json:"probes"`        // keepalives, and probes of a closed window
	SuperPackets  int64 `json:"super_packets"` // packets of several segments: captured where these are not yet, or no longer, apart
	// Missing says that data were acknowledged that are not in the capture,
	// MissingBytes how many.
	Missing      bool  `json:"missing"`
	MissingBytes int64 `json:"missing_bytes"`
	// Stray packets have sequence numbers that fit nothing; Merged segments
	// were beyond the bound of those that are kept apart.
	Stray  int64 `json:"stray"`
	Merged int64 `json:"merged"`
}

// Read reads a capture, in memory that is bounded by Options.MaxConnections.
// With a *TruncatedError, the Result holds what was read until then. Other
// errors are ErrNotCapture, ErrNoTCP, and a *LinkTypeError where nothing could be
// read for that.
func Read(r io.Reader, o Options) (Result, error) {
	f, err := open(r)
	if err != nil {
		return Result{}, err
	}
	if o.MaxConnections <= 0 {
		o.MaxConnections = DefaultConnections
	}
	t := &table{options: o, open: map[key]*connection{}, leftOut: map[key]struct{}{}}
	err = t.read(f)
	result := t.result(f.counted.n)
	if len(result.Connections) > 0 {
		return result, err
	}
	switch {
	case t.linkError != nil && result.Packets == result.LeftOut.UnreadLinkPackets:
		return result, t.linkError
	case err != nil:
		return result, err
	}
	return result, ErrNoTCP
}

// table holds the connections of a capture.
type table struct {
	options   Options
	began     time.Time
	last      time.Time
	open      map[key]*connection
	ended     []*connection
	packets   int64
	left      LeftOut
	linkError *LinkTypeError
	// leftOut are the connections that found no room, up to a bound.
	leftOut map[key]struct{}
	pruneAt int64 // not to be tried before, ns since the capture's first packet
}

// key is a connection's two ends, the lesser address first.
type key struct{ a, b netip.AddrPort }

// progressEvery is how much of the file is read between two calls of
// Options.Progress, bytes.
const progressEvery = 4 << 20

// read takes in the records up to the end.
func (t *table) read(f *file) error {
	var d decoder
	var p packet
	var reported int64
	for {
		r, err := f.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return &TruncatedError{Packets: t.packets, Bytes: f.counted.n, Err: err}
		}
		t.packets++
		t.record(r, &d, &p)
		if f.counted.n-reported >= progressEvery {
			reported = f.counted.n
			if t.options.Progress != nil {
				t.options.Progress(Progress{Packets: t.packets, Bytes: reported})
			}
		}
	}
}

// record takes in one.
func (t *table) record(r record, d *decoder, p *packet) {
	if !readable[r.link] {
		t.unread(r.link)
		return
	}
	if r.at.IsZero() {
		t.left.WithoutTime++
		return
	}
	if t.began.IsZero() {
		t.began, t.last = r.at, r.at
	}
	if r.at.After(t.last) {
		t.last = r.at
	}
	switch d.decode(r, p) {
	case notTCP:
		t.left.NotTCP++
		return
	case isFragment:
		t.left.Fragments++
		return
	case headersCut:
		t.left.HeadersCut++
		return
	}
	if !t.options.wants(p.src, p.dst) {
		t.left.Unwanted++
		return
	}
	p.at = max(0, int64(r.at.Sub(t.began)))
	t.packet(p)
}

// unread notes a packet of an interface that cannot be read.
func (t *table) unread(link layers.LinkType) {
	e := linkTypeError(link)
	if t.linkError == nil {
		t.linkError = e
	}
	t.left.UnreadLinkPackets++
	name := cmp.Or(e.Name, e.Error())
	if len(t.left.UnreadLinkTypes) < 16 && !slices.Contains(t.left.UnreadLinkTypes, name) {
		t.left.UnreadLinkTypes = append(t.left.UnreadLinkTypes, name)
	}
}

// packet gives a packet to its connection.
func (t *table) packet(p *packet) {
	k, from := key{p.src, p.dst}, 0
	if p.dst.Compare(p.src) < 0 {
		k, from = key{p.dst, p.src}, 1
	}
	c := t.open[k]
	if c != nil && c.isReuse(p, from) {
		t.ended = append(t.ended, c)
		delete(t.open, k)
		c = nil
	}
	if c == nil {
		if c = t.admit(k, p); c == nil {
			t.left.Packets++
			return
		}
	}
	if !c.packet(p, from) {
		t.left.Duplicates++
	}
}

// admit makes room for a connection, and gives nil where there is none. One
// that found none is left out up to its end.
func (t *table) admit(k key, p *packet) *connection {
	if _, ok := t.leftOut[k]; ok {
		if !p.syn || p.hasAck {
			return nil
		}
		delete(t.leftOut, k)
	}
	if t.full() && p.at >= t.pruneAt {
		t.prune(p.at)
	}
	if t.full() {
		t.left.Connections++
		if len(t.leftOut) < maxLeftOut {
			t.leftOut[k] = struct{}{}
		}
		return nil
	}
	c := newConnection(k, p.at)
	t.open[k] = c
	return c
}

func (t *table) full() bool { return len(t.open)+len(t.ended) >= t.options.MaxConnections }

const (
	// maxLeftOut bounds the connections without room that are told apart: of
	// those beyond, every packet counts as one.
	maxLeftOut = 1 << 16
	// idleAfter is when a connection without FIN or RST is taken for ended,
	// where there is no room.
	idleAfter = int64(time.Minute)
	// pruneAgain is how long prune is not tried again that found nothing.
	pruneAgain = int64(time.Second)
)

// prune removes a quarter of the connections, of those that have ended: the
// ones that carried least.
func (t *table) prune(now int64) {
	all := t.ended
	t.ended = nil
	for k, c := range t.open {
		if c.over() || now-c.last > idleAfter {
			all = append(all, c)
			delete(t.open, k)
		}
	}
	if len(all) == 0 {
		t.pruneAt = now + pruneAgain
		return
	}
	slices.SortFunc(all, func(a, b *connection) int { return cmp.Compare(b.carried(), a.carried()) })
	keep := max(0, len(all)-max(1, t.options.MaxConnections/4))
	for _, c := range all[keep:] {
		t.left.Connections++
		t.left.Packets += c.half[0].count.packets + c.half[1].count.packets
	}
	t.ended = all[:keep:keep]
}

// result ends all connections.
func (t *table) result(bytes int64) Result {
	result := Result{Packets: t.packets, Bytes: bytes, Start: t.began, End: t.last, LeftOut: t.left}
	all := t.ended
	for _, c := range t.open {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *connection) int {
		return cmp.Or(cmp.Compare(b.carried(), a.carried()), cmp.Compare(a.first, b.first), a.key.a.Compare(b.key.a), a.key.b.Compare(b.key.b))
	})
	for _, c := range all {
		result.Connections = append(result.Connections, c.finish(t.began))
	}
	return result
}
