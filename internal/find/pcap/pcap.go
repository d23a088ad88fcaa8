// Package pcap reconstructs the state of a TCP connection's two kernels from a
// capture file, as samples for package doctor.
//
// A capture contains packets at one place, and no kernel state. The state of a
// sending end is inferred from its packets and the peer's acknowledgements. It
// is exact only in a capture at that end. Elsewhere its flight and its round
// trips are invisible, and remain unknown. Counters start with the capture.
package pcap

import (
	"cmp"
	"errors"
	"io"
	"net/netip"
	"slices"
	"time"

	"longhaul/internal/find/doctor"
)

// Options configure the reading of a capture. The zero value reads all of it.
type Options struct {
	// Between selects connections by their two ends, in either order. A zero
	// End matches any.
	Between [2]End
	// MaxConnections bounds the connections kept. At the bound, ended ones with
	// little data are removed, and then new ones are left out. 0 means
	// DefaultConnections.
	MaxConnections int
	// Export, if set, receives the headers of the selected packets as a pcapng file, with
	// other addresses and times.
	Export io.Writer
	// Progress, if set, is called every few megabytes.
	Progress func(Progress)
}

// DefaultConnections is the default of Options.MaxConnections.
const DefaultConnections = 1000

// End selects an end of a connection. Zero fields match everything.
type End struct {
	Hosts []netip.Addr // any of them
	Port  uint16
}

func (e End) matches(a netip.AddrPort) bool {
	return (len(e.Hosts) == 0 || slices.Contains(e.Hosts, a.Addr())) && (e.Port == 0 || e.Port == a.Port())
}

func (o *Options) wants(a, b netip.AddrPort) bool {
	x, y := o.Between[0], o.Between[1]
	return x.matches(a) && y.matches(b) || x.matches(b) && y.matches(a)
}

// Progress is the progress of reading.
type Progress struct {
	Packets int64
	Bytes   int64 // of the file, uncompressed
}

// Result is the content of a capture.
type Result struct {
	Packets     int64         `json:"packets"` // in the file
	Bytes       int64         `json:"bytes"`   // of the file, uncompressed
	Start       time.Time     `json:"start"`   // of the first packet
	End         time.Time     `json:"end"`
	Connections []*Connection `json:"connections"` // largest first
	LeftOut     LeftOut       `json:"left_out"`
	Exported    int64         `json:"exported,omitempty"` // packets, to Options.Export
}

// Side is an end of a connection.
type Side string

// The sides.
const (
	Client Side = "client" // the end that connected; with the higher port if that was not captured
	Server Side = "server"
)

// Place is the position of a capture on the path.
type Place string

// The places, relative to one direction of data.
const (
	AtSender     Place = "sender"
	AtReceiver   Place = "receiver"
	Between      Place = "between"
	PlaceUnknown Place = ""
)

// Connection is the analysis of one connection.
type Connection struct {
	Client    netip.AddrPort `json:"client"`
	Server    netip.AddrPort `json:"server"`
	Start     time.Time      `json:"start"` // of the first packet
	End       time.Time      `json:"end"`   // of the last
	Handshake Handshake      `json:"handshake"`
	ClosedBy  Side           `json:"closed_by,omitempty"` // the side with the first FIN or RST
	Reset     bool           `json:"reset,omitempty"`     // it ended by RST
	// OneWay is the side of which alone packets were captured, although the other
	// one answered.
	OneWay Side `json:"one_way,omitempty"`
	// Network names the VLANs and tunnels of its packets.
	Network string `json:"network,omitempty"`
	// Directions are the two directions of data: from the client, and from
	// the server.
	Directions [2]Direction `json:"directions"`
}

// Handshake holds the offers in both SYNs.
type Handshake struct {
	Client Offer `json:"client"`
	Server Offer `json:"server"`
	// RTT is the time from the SYN to the acknowledgement of its answer; 0:
	// unknown.
	RTT time.Duration `json:"rtt_ns"`
	// OptionsCut: a SYN was captured without all of its options.
	OptionsCut bool `json:"options_cut,omitempty"`
}

// Complete reports whether both SYNs were captured with all options, so that
// the agreed options are known.
func (h *Handshake) Complete() bool { return h.Client.Seen && h.Server.Seen }

// Offer is the set of options in one end's SYN.
type Offer struct {
	Seen       bool `json:"seen"`   // captured with all options
	MSS        int  `json:"mss"`    // 0: not announced
	WScale     int  `json:"wscale"` // -1: no window scaling
	SACK       bool `json:"sack"`
	Timestamps bool `json:"timestamps"`
	ECN        bool `json:"ecn"`
}

// Direction is the analysis of the data from one end to the other.
type Direction struct {
	// Observation holds the samples of the sending end; unknown fields of Info
	// are marked.
	Observation doctor.Observation `json:"observation"`
	Place       Place              `json:"place"`   // of the capture
	Packets     int64              `json:"packets"` // captured, including acknowledgements
	Bytes       int64              `json:"bytes"`   // captured data, including retransmissions
	// Delivered is the number of data bytes acknowledged by the other end.
	Delivered int64 `json:"delivered"`
	// Retransmitted counts retransmitted segments. LostBefore counts those of
	// them that were lost before the capture or missed by it.
	Retransmitted int64 `json:"retransmitted"`
	LostBefore    int64 `json:"lost_before"`
	Reordered     int64 `json:"reordered"`     // first transmissions that arrived late
	ZeroWindows   int64 `json:"zero_windows"`  // times the other end closed its window
	Probes        int64 `json:"probes"`        // keepalives, and probes of a closed window
	SuperPackets  int64 `json:"super_packets"` // packets of several segments, before or after segmentation offload
	// Missing reports acknowledged data outside the capture, and MissingBytes
	// counts it.
	Missing      bool  `json:"missing"`
	MissingBytes int64 `json:"missing_bytes"`
	// Stray counts packets with sequence numbers outside any window. Merged
	// counts segments beyond the bound of separate ones.
	Stray  int64 `json:"stray"`
	Merged int64 `json:"merged"`
}

// Read reads a capture, with memory bounded by Options.MaxConnections. With a
// *TruncatedError, the Result covers the packets before the damage. Other
// errors are ErrNotCapture, ErrNoTCP, ErrManyInterfaces, and a *LinkTypeError if
// every packet has an unsupported link type.
func Read(r io.Reader, o Options) (Result, error) {
	return ReadFiles([]Source{{Open: func() (io.ReadCloser, error) { return io.NopCloser(r), nil }}}, o)
}

// ReadFiles reads several files as one capture. Its errors are those of Read,
// ErrManyTogether and ErrNoCapture.
func ReadFiles(sources []Source, o Options) (Result, error) {
	files, err := newParts(sources)
	if err != nil {
		return Result{}, err
	}
	defer files.close()
	if o.MaxConnections <= 0 {
		o.MaxConnections = DefaultConnections
	}
	t := &table{options: o, open: map[way]*connection{}, lone: map[key]*connection{}, leftOut: map[way]int64{}, room: maxAllSegments}
	t.left.Content = map[string]int64{}
	t.order.pass = t.packet
	if o.Export != nil {
		t.export = newExporter(o.Export)
	}
	err = t.read(files)
	if failed := (*ExportError)(nil); !errors.As(err, &failed) {
		// What was read before an error is exported too.
		if ended := t.endExport(); ended != nil {
			err = ended
		}
	}
	t.order.flush()
	if err == nil && files.damage != nil {
		err = files.damage
	}
	result := t.result(files.read())
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
	began     time.Time // of the first packet
	last      time.Time
	origin    time.Time // of packets' times
	order     order
	open      map[way]*connection // by the ways of both ends, as far as they were heard
	lone      map[key]*connection // the latest of which one end was heard
	count     int                 // open connections
	ended     []*connection
	packets   int64
	left      LeftOut
	linkError *LinkTypeError
	export    *exporter // nil: none
	// leftOut holds the connections without a place, up to a bound, each with the number
	// of its SYN.
	leftOut map[way]int64
	room    int   // segments that the connections may still have
	samples int   // of all connections
	pruneAt int64 // earliest next prune, ns since table.origin
}

// key identifies a connection by its ends, the lower address first.
type key struct{ a, b netip.AddrPort }

// progressEvery is the number of bytes between two calls of Options.Progress.
const progressEvery = 4 << 20

// read processes the records up to the end.
func (t *table) read(files *parts) error {
	var d decoder
	var p packet
	var reported int64
	for {
		r, err := files.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		t.packets++
		if err := t.record(r, &d, &p); err != nil {
			return err
		}
		if read := files.read(); read-reported >= progressEvery {
			reported = read
			if t.options.Progress != nil {
				t.options.Progress(Progress{Packets: t.packets, Bytes: reported})
			}
		}
	}
}

// endExport completes the export, if there is one.
func (t *table) endExport() error {
	if t.export == nil || t.began.IsZero() {
		return nil
	}
	if err := t.export.end(t.last); err != nil {
		return &ExportError{err}
	}
	return nil
}

// ExportError is returned if the export fails.
type ExportError struct{ Err error }

func (e *ExportError) Error() string { return "write the export: " + e.Err.Error() }

// Unwrap returns the writer's error.
func (e *ExportError) Unwrap() error { return e.Err }

// record processes one record.
func (t *table) record(r record, d *decoder, p *packet) error {
	if readable[r.link] == noHeader {
		t.unread(r.link)
		return nil
	}
	if r.at.IsZero() {
		t.left.WithoutTime++
		return nil
	}
	if t.began.IsZero() {
		t.began, t.last = r.at, r.at
		t.origin = r.at.Add(-time.Duration(sortWithin))
		if t.export != nil {
			if err := t.export.begin(r.at); err != nil {
				return &ExportError{err}
			}
		}
	}
	if r.at.After(t.last) {
		t.last = r.at
	}
	if r.at.Before(t.began) {
		t.began = r.at
	}
	switch d.decode(r, p) {
	case notTCP:
		t.left.NotTCP++
		t.left.Content[d.content]++
		return nil
	case isFragment:
		t.left.Fragments++
		return nil
	case headersCut:
		t.left.HeadersCut++
		return nil
	case malformed:
		t.left.Malformed++
		return nil
	}
	if !t.options.wants(p.src, p.dst) {
		t.left.Unwanted++
		return nil
	}
	if t.export != nil {
		if err := t.export.packet(r, d); err != nil {
			return &ExportError{err}
		}
	}
	p.at = int64(r.at.Sub(t.origin))
	t.order.add(p)
	return nil
}

// unread counts a packet with an unsupported link type.
func (t *table) unread(link linkType) {
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

// packet passes a packet to its connection.
func (t *table) packet(p *packet) {
	k, from := key{p.src, p.dst}, 0
	if p.dst.Compare(p.src) < 0 {
		k, from = key{p.dst, p.src}, 1
	}
	c := t.find(k, p, from)
	if c != nil && c.isReuse(p, from) {
		t.ended = append(t.ended, c)
		t.forget(c)
		c = nil
	}
	if c == nil {
		if c = t.admit(way{k, p.network, int8(from)}, p); c == nil {
			t.left.Packets++
			return
		}
	}
	before := c.held()
	if !c.packet(p, from) {
		t.left.Duplicates++
	}
	t.samples += c.held() - before
	if t.samples > t.maxSamples() {
		t.thinOut()
	}
}

// admit makes room for a connection; nil if there is none. A connection without
// a place is left out up to its end.
func (t *table) admit(w way, p *packet) *connection {
	out := w
	out.from = 0
	if isn, ok := t.leftOut[out]; ok {
		if !p.syn || p.hasAck || int64(p.seq) == isn { // the latter is a SYN sent again
			return nil
		}
		delete(t.leftOut, out)
	}
	if t.full() && p.at >= t.pruneAt {
		t.prune(p.at)
	}
	if t.full() {
		t.left.Connections++
		if len(t.leftOut) < maxLeftOut {
			t.leftOut[out] = unknown
			if p.syn && !p.hasAck {
				t.leftOut[out] = int64(p.seq)
			}
		}
		return nil
	}
	c := newConnection(w.key, p.at, &t.room)
	t.count++
	t.join(c, w)
	return c
}

func (t *table) full() bool { return t.count+len(t.ended) >= t.options.MaxConnections }

const (
	// maxLeftOut bounds the left-out connections that are distinguished; beyond
	// it, each packet counts as a connection.
	maxLeftOut = 1 << 16
	// idleAfter is the silence after which a connection without FIN or RST may
	// be pruned.
	idleAfter = int64(time.Minute)
	// pruneRetry is the pause after a prune that removed nothing, or less than a share:
	// each one looks at all connections.
	pruneRetry = int64(time.Second)
	pruneShare = 16
)

// prune removes ended connections with the least data, up to a quarter of all.
func (t *table) prune(now int64) {
	all := t.ended
	t.ended = nil
	for _, c := range t.connections() {
		if c.over() || now-c.ended() > idleAfter {
			all = append(all, c)
			t.forget(c)
		}
	}
	if len(all) <= t.options.MaxConnections/pruneShare {
		t.pruneAt = now + pruneRetry
	}
	slices.SortFunc(all, func(a, b *connection) int { return cmp.Compare(b.carried(), a.carried()) })
	keep := max(0, len(all)-max(1, t.options.MaxConnections/4))
	for _, c := range all[keep:] {
		t.left.Connections++
		t.left.Packets += c.half[0].count.packets + c.half[1].count.packets
		t.room += len(c.half[0].segs) + len(c.half[1].segs) + c.copies.extra()
		t.samples -= c.held()
	}
	t.ended = all[:keep:keep]
}

// result finishes all connections.
func (t *table) result(bytes int64) Result {
	exported := int64(0)
	if t.export != nil {
		exported = t.export.packets
	}
	result := Result{Exported: exported, Packets: t.packets, Bytes: bytes, Start: t.began, End: t.last, LeftOut: t.left}
	all := append(t.ended, t.connections()...)
	slices.SortFunc(all, func(a, b *connection) int {
		return cmp.Or(cmp.Compare(b.carried(), a.carried()), cmp.Compare(a.first, b.first), a.key.a.Compare(b.key.a), a.key.b.Compare(b.key.b))
	})
	for _, c := range all {
		result.Connections = append(result.Connections, c.finish(t.origin))
	}
	return result
}
