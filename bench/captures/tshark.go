package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fields are what tshark prints of each TCP packet.
var fields = []string{
	"tcp.stream", "frame.time_epoch", "ip.src", "ipv6.src", "ip.dst", "ipv6.dst", "tcp.srcport", "tcp.dstport",
	"tcp.flags", "tcp.len", "tcp.seq", "tcp.ack", "tcp.hdr_len", "tcp.window_size", "tcp.window_size_scalefactor",
	"tcp.options.mss_val", "tcp.analysis.retransmission", "tcp.analysis.out_of_order", "tcp.analysis.keep_alive",
	"tcp.analysis.zero_window_probe", "tcp.analysis.zero_window", "tcp.options.sack.dsack_le", "tcp.analysis.ack_rtt",
	"tcp.analysis.acks_frame", "frame.number",
}

// The indices of fields.
const (
	fieldStream = iota
	fieldTime
	fieldSrc4
	fieldSrc6
	fieldDst4
	fieldDst6
	fieldSrcPort
	fieldDstPort
	fieldFlags
	fieldLen
	fieldSeq
	fieldAck
	fieldHeader
	fieldWindow
	fieldScale
	fieldMSS
	fieldRetransmission
	fieldOutOfOrder
	fieldKeepAlive
	fieldProbe
	fieldZeroWindow
	fieldDSACK
	fieldRTT
	fieldAcked
	fieldNumber
	fieldCount
)

// TCP header flags.
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	flagPSH
	flagACK
)

// errLate is returned if tshark exceeds the time limit.
var errLate = errors.New("tshark " + timedOut)

// ask runs tshark once on a file. Of a damaged file it has what tshark could read.
func (b *bench) ask(ctx context.Context, path string) ([]direction, error) {
	limit, cancel := context.WithTimeout(ctx, b.within)
	defer cancel()
	// Fragments stay apart, and packets inside ICMP errors are out of the table, as with longhaul.
	args := []string{
		"-n", "-r", path, "-Y", "tcp && !icmp && !icmpv6", "-T", "fields", "-E", "occurrence=l",
		"-o", "tcp.desegment_tcp_streams:FALSE", "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE",
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.CommandContext(limit, b.tshark, args...)
	cmd.Env = append(os.Environ(), "WIRESHARK_CONFIG_DIR="+b.dir, "TZ=UTC", "LC_ALL=C")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	directions, readErr := collect(out)
	if readErr != nil {
		cancel() // it waits for somebody who reads
	}
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case readErr != nil:
		return nil, readErr
	case limit.Err() != nil:
		return nil, errLate
	}
	return directions, err
}

// collect adds up tshark's lines.
func collect(r io.Reader) ([]direction, error) {
	streams := map[int]*stream{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		p, err := parseLine(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("tshark's line %q: %w", lines.Text(), err)
		}
		if p == nil {
			continue
		}
		s := streams[p.stream]
		if s == nil {
			s = &stream{number: p.stream, start: p.at, ends: [2]sender{{addr: p.src}, {addr: p.dst}}}
			streams[p.stream] = s
		}
		s.packet(p)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	var all []direction
	for _, s := range streams {
		all = append(all, s.direction(0), s.direction(1))
	}
	slices.SortFunc(all, func(a, b direction) int { return cmp.Compare(a.Stream, b.Stream) })
	return all, nil
}

// tsharkPacket is a line of tshark.
type tsharkPacket struct {
	stream         int
	at             float64 // s since the epoch
	src, dst       netip.AddrPort
	flags, len     int
	seq, ack       uint32
	options        int // bytes
	window         int64
	windowKnown    bool
	mss            int
	retransmission bool
	outOfOrder     bool
	keepAlive      bool
	probe          bool
	zeroWindow     bool
	dsack          bool
	rtt            float64 // s; negative: none
	acked          int64   // number of the packet that rtt is for
	number         int64
}

// parseLine reads a line; nil if tshark could read only a part of the packet's headers.
func parseLine(line string) (*tsharkPacket, error) {
	f := strings.Split(line, "\t")
	if len(f) != fieldCount {
		return nil, fmt.Errorf("%d fields instead of %d", len(f), fieldCount)
	}
	if f[fieldStream] == "" || f[fieldLen] == "" || f[fieldSeq] == "" || f[fieldFlags] == "" {
		return nil, nil
	}
	var failed error
	number := func(i int) int64 {
		if f[i] == "" {
			return 0
		}
		n, err := strconv.ParseInt(f[i], 0, 64)
		failed = errors.Join(failed, err)
		return n
	}
	address := func(v4, v6, port int) netip.AddrPort {
		a, err := netip.ParseAddr(cmp.Or(f[v4], f[v6]))
		failed = errors.Join(failed, err)
		return netip.AddrPortFrom(a, uint16(number(port)))
	}
	p := &tsharkPacket{
		stream: int(number(fieldStream)), flags: int(number(fieldFlags)), len: int(number(fieldLen)),
		seq: uint32(number(fieldSeq)), ack: uint32(number(fieldAck)), options: int(number(fieldHeader)) - 20,
		window: number(fieldWindow), windowKnown: f[fieldScale] != "-1", mss: int(number(fieldMSS)),
		retransmission: f[fieldRetransmission] != "", outOfOrder: f[fieldOutOfOrder] != "",
		keepAlive: f[fieldKeepAlive] != "", probe: f[fieldProbe] != "", zeroWindow: f[fieldZeroWindow] != "",
		dsack: f[fieldDSACK] != "", rtt: -1, acked: number(fieldAcked), number: number(fieldNumber),
		src: address(fieldSrc4, fieldSrc6, fieldSrcPort), dst: address(fieldDst4, fieldDst6, fieldDstPort),
	}
	if f[fieldTime] != "" {
		at, err := strconv.ParseFloat(f[fieldTime], 64)
		failed, p.at = errors.Join(failed, err), at
	}
	if f[fieldRTT] != "" {
		rtt, err := strconv.ParseFloat(f[fieldRTT], 64)
		failed, p.rtt = errors.Join(failed, err), rtt
	}
	return p, failed
}

// stream is a connection.
type stream struct {
	number int
	start  float64
	ends   [2]sender
}

// sender is an end and what it sent.
type sender struct {
	addr       netip.AddrPort
	sizes      [4]map[int]int64 // numbers of data packets by size: all, retransmitted, out of order, without PSH
	again      map[int64]bool   // numbers of the retransmitted packets, whose round trips are ambiguous
	sent       ranges
	syn        bool
	mss        int
	speaks     bool
	options    int   // least bytes of options in data packets
	filled     int64 // packets that left less than a segment of the window
	keepAlives int64
	probes     int64
	fin        int64 // sequence number of the FIN; 0: none
	reset      bool

	// Of the other end's data.
	acked       int64 // 0: nothing
	window      int64
	windowMax   int64
	windowKnown bool
	zero        bool
	zeroWindows int64
	dsack       int64
	minRTT      float64 // s; 0: unknown

	high uint32 // last number in sequence, for wraps
	wrap int64
}

// The indices of sender.sizes.
const (
	sizesAll = iota
	sizesAgain
	sizesLate
	sizesFull // a program's small write has PSH
)

func (s *stream) packet(p *tsharkPacket) {
	from := 0
	if p.src != s.ends[0].addr {
		from = 1
	}
	me, peer := &s.ends[from], &s.ends[1-from]
	start := me.number(p.seq)
	me.feedback(p, peer)
	switch {
	case p.flags&flagSYN != 0:
		me.syn, me.mss = true, max(me.mss, p.mss)
		start++
	case p.flags&flagRST != 0:
		if over := me.ended(peer) && peer.ended(me); !over && !peer.reset {
			me.reset = true
		}
		return
	}
	if p.flags&flagFIN != 0 {
		me.fin = start + int64(p.len)
	}
	switch {
	case p.keepAlive:
		me.keepAlives++
	case p.probe:
		me.probes++
	case p.len > 0:
		me.data(p, start, peer)
	}
}

// ended reports whether the other end acknowledged this end's FIN.
func (s *sender) ended(peer *sender) bool { return s.fin > 0 && peer.acked > s.fin }

// number extends a sequence number to 64 bits.
func (s *sender) number(seq uint32) int64 {
	n := s.wrap + int64(int32(seq-s.high))
	if n > s.wrap {
		s.wrap, s.high = n, seq
	}
	return n
}

// data notes a data packet.
func (s *sender) data(p *tsharkPacket, start int64, peer *sender) {
	for i, counts := range [...]bool{sizesAll: true, sizesAgain: p.retransmission, sizesLate: p.outOfOrder, sizesFull: p.flags&flagPSH == 0} {
		if !counts {
			continue
		}
		if s.sizes[i] == nil {
			s.sizes[i] = map[int]int64{}
		}
		s.sizes[i][p.len]++
	}
	if !s.speaks || p.options < s.options {
		s.options = p.options
	}
	s.speaks = true
	if p.retransmission {
		if s.again == nil {
			s.again = map[int64]bool{}
		}
		s.again[p.number] = true
	}
	s.sent.add(start, start+int64(p.len))
	if peer.windowKnown && peer.acked > 0 && !p.retransmission {
		left := peer.acked + peer.window - start - int64(p.len)
		if useful := min(int64(s.segment(peer)), peer.windowMax/2); left >= 0 && left < useful {
			s.filled++
		}
	}
}

// feedback notes what a packet says of the other end's data.
func (s *sender) feedback(p *tsharkPacket, peer *sender) {
	if p.flags&flagACK == 0 || p.flags&flagRST != 0 {
		return
	}
	if p.rtt >= 0 && !peer.again[p.acked] && (s.minRTT == 0 || p.rtt < s.minRTT) {
		s.minRTT = max(p.rtt, 1e-9)
	}
	if p.dsack {
		s.dsack++
	}
	if p.flags&(flagSYN|flagFIN) == 0 {
		if p.zeroWindow && !s.zero {
			s.zeroWindows++
		}
		s.zero = p.zeroWindow
	}
	if ack := peer.wrap + int64(int32(p.ack-peer.high)); ack >= s.acked {
		s.acked, s.window, s.windowKnown = ack, p.window, p.windowKnown
		s.windowMax = max(s.windowMax, p.window)
	}
}

// The data of the largest packet on Ethernet.
const ethernetSegment = 1460

// agreed is the segment size by the handshake; 0: unknown. Some senders leave no room for options.
func (s *sender) agreed(peer *sender) int {
	if s.mss == 0 || peer.mss == 0 {
		return 0
	}
	announced := min(s.mss, peer.mss)
	agreed := announced - s.options
	for size, packets := range s.sizes[sizesFull] {
		if size <= announced && packets >= manyFull {
			agreed = max(agreed, size)
		}
	}
	return agreed
}

// manyFull is the number of packets of the largest size that show the segment size.
const manyFull = 10

// full is the data of a full segment as the packets show it; 0: unknown, also if there are packets of
// several segments.
func (s *sender) full(peer *sender) int {
	largest, most := 0, min(cmp.Or(s.mss, ethernetSegment), cmp.Or(peer.mss, ethernetSegment))
	for size := range s.sizes[sizesAll] {
		largest = max(largest, size)
	}
	if largest > most || s.sizes[sizesFull][largest] < manyFull {
		return 0
	}
	return largest
}

// segment is the most data of a packet that is one segment.
func (s *sender) segment(peer *sender) int {
	if agreed := s.agreed(peer); agreed > 0 {
		return agreed
	}
	return ethernetSegment - s.options
}

// segments is the number of segments in the packets of one kind.
func (s *sender) segments(kind int, peer *sender) float64 {
	size, n := int64(s.segment(peer)), int64(0)
	for bytes, packets := range s.sizes[kind] {
		n += packets * ((int64(bytes) + size - 1) / size)
	}
	return float64(n)
}

// direction is what an end sent.
func (s *stream) direction(of int) direction {
	me, peer := &s.ends[of], &s.ends[1-of]
	sec, frac := math.Modf(s.start)
	d := direction{From: me.addr, To: peer.addr, Start: time.Unix(int64(sec), int64(frac*1e9)), Stream: s.number}
	d.Figures = map[string]float64{
		"segments": me.segments(sizesAll, peer), "bytes": float64(me.sent.bytes()),
		"retransmitted": me.segments(sizesAgain, peer), "out_of_order": me.segments(sizesLate, peer),
		"again_or_late": me.segments(sizesAgain, peer) + me.segments(sizesLate, peer),
		"zero_windows":  float64(peer.zeroWindows), "dsack": float64(peer.dsack),
		"keepalives": float64(me.keepAlives), "probes": float64(me.probes), "reset_by": noReset,
	}
	if peer.windowKnown {
		d.Figures["window_full"] = float64(me.filled)
	}
	if me.syn && peer.acked > 0 {
		d.Figures["delivered"] = float64(peer.acked - 1)
		if me.fin > 0 && peer.acked > me.fin {
			d.Figures["delivered"]--
		}
	}
	if agreed := me.agreed(peer); agreed > 0 && me.sent.bytes() > 0 {
		d.Figures["mss"] = float64(agreed)
	}
	if full := me.full(peer); full > 0 {
		d.Figures["segment_bytes"] = float64(full)
	}
	if peer.minRTT > 0 {
		d.Figures["min_rtt_ms"] = peer.minRTT * 1e3
	}
	switch {
	case me.reset:
		d.Figures["reset_by"] = resetBySender
	case peer.reset:
		d.Figures["reset_by"] = resetByReceiver
	}
	return d
}

// ranges is a set of numbers.
type ranges struct {
	all [][2]int64 // sorted up to merged
	n   int64
	ok  bool // n is current
}

// maxRanges is the number of ranges at which they are merged.
const maxRanges = 1 << 12

func (r *ranges) add(start, end int64) {
	r.ok = false
	if n := len(r.all); n > 0 && start >= r.all[n-1][0] && start <= r.all[n-1][1] {
		r.all[n-1][1] = max(r.all[n-1][1], end)
		return
	}
	if r.all = append(r.all, [2]int64{start, end}); len(r.all)%maxRanges == 0 {
		r.merge()
	}
}

func (r *ranges) merge() {
	slices.SortFunc(r.all, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	merged := r.all[:0]
	for _, x := range r.all {
		if n := len(merged); n > 0 && x[0] <= merged[n-1][1] {
			merged[n-1][1] = max(merged[n-1][1], x[1])
			continue
		}
		merged = append(merged, x)
	}
	r.all = merged
}

// bytes is the number of numbers.
func (r *ranges) bytes() int64 {
	if !r.ok {
		r.merge()
		r.n, r.ok = 0, true
		for _, x := range r.all {
			r.n += x[1] - x[0]
		}
	}
	return r.n
}
