// Package top follows many TCP connections: their goodput, losses and waits between
// two refreshes, and their limits.
package top

import (
	"maps"
	"math"
	"slices"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/process"
	"longhaul/internal/sys/tcpinfo"
)

// Glance names the limit of a connection between two samples; empty if none.
type Glance func(before, after doctor.Sample) doctor.Cause

// Table has the TCP connections of the last refresh.
type Table struct {
	glance      Glance
	byCookie    map[uint64]*Connection
	connections []*Connection
	refreshes   uint64
	at          time.Duration // of the last refresh
	interval    time.Duration // of its figures
}

// NewTable returns an empty table.
func NewTable(glance Glance) *Table {
	return &Table{glance: glance, byCookie: map[uint64]*Connection{}}
}

// Connection is one connection of a table. An unknown figure is NaN.
type Connection struct {
	tcpinfo.Connection                 // at the last refresh
	Process            process.Process // zero if unknown

	// Between the last two refreshes.
	SentBps       float64 // payload that the peer acknowledged, bits per second
	ReceivedBps   float64 // payload received in order, bits per second
	Retransmitted float64 // share of the sent payload that was retransmitted
	WindowLimited float64 // share of the time in which the peer's window limited the sender
	BufferLimited float64 // share of the time in which the send buffer limited it
	Busy          float64 // share of the time with data to send

	History History

	table    *Table
	refresh  uint64 // of the last sight
	last     counters
	measured bool // last is of the previous refresh

	// The samples for the cause: base is between one and two spans old, and next
	// will replace it.
	base, next doctor.Sample
	cause      doctor.Cause
	causeOf    uint64 // refresh of cause

	sortKey float64
}

// counters are the counters whose differences are shown.
type counters struct {
	acked, received, sent, again  uint64
	window, buffer, busy          time.Duration
	segmentsOut, segmentsOutAgain uint32
}

// minSpan is the minimum time for the cause of a connection, and spanRTTs the minimum
// number of round trips.
const (
	minSpan  = 2 * time.Second
	spanRTTs = 20
)

// Refresh replaces the connections by those that each visits, at a time since any
// epoch. After an error the table has the connections visited before it.
func (t *Table) Refresh(at time.Duration, each func(visit func(*tcpinfo.Connection)) error) error {
	t.refreshes++
	t.interval, t.at = at-t.at, at
	t.connections = t.connections[:0]
	err := each(func(seen *tcpinfo.Connection) {
		c := t.byCookie[seen.Cookie]
		switch {
		case c == nil:
			c = &Connection{table: t}
			t.byCookie[seen.Cookie] = c
		case c.refresh == t.refreshes:
			return // the kernel's list may have one twice
		}
		c.Connection = *seen
		c.refresh = t.refreshes
		c.measure(t.interval)
		c.sample(at)
		t.connections = append(t.connections, c)
	})
	if len(t.connections) < len(t.byCookie) {
		maps.DeleteFunc(t.byCookie, func(_ uint64, c *Connection) bool { return c.refresh != t.refreshes })
	}
	return err
}

// Restart makes the next refresh begin an interval instead of ending one, after a
// pause.
func (t *Table) Restart() {
	for _, c := range t.connections {
		c.measured, c.base = false, doctor.Sample{}
	}
}

// Connections returns all connections, unsorted. The slice is valid until the next
// refresh.
func (t *Table) Connections() []*Connection { return t.connections }

// Interval returns the time span of the last refresh's figures.
func (t *Table) Interval() time.Duration { return t.interval }

// Totals returns the sums of all connections' goodputs, in bits per second.
func (t *Table) Totals() (sent, received float64) {
	for _, c := range t.connections {
		if !math.IsNaN(c.SentBps) {
			sent += c.SentBps
		}
		if !math.IsNaN(c.ReceivedBps) {
			received += c.ReceivedBps
		}
	}
	return sent, received
}

// Select returns the connections that a filter selects, sorted.
func (t *Table) Select(f Filter, o Order) []*Connection {
	var selected []*Connection
	for _, c := range t.connections {
		if f.Matches(c) {
			selected = append(selected, c)
		}
	}
	// Keys first: they are compared many times.
	for _, c := range selected {
		c.sortKey = o.key(c)
	}
	slices.SortFunc(selected, compare)
	return selected
}

// Ended reports that a connection was missing at the last refresh.
func (c *Connection) Ended() bool { return c.refresh != c.table.refreshes }

// measure computes the figures of the time since the previous refresh.
func (c *Connection) measure(interval time.Duration) {
	now := countersOf(&c.Info)
	last, measured := c.last, c.measured && interval > 0
	c.last, c.measured = now, true
	if !measured {
		unknown := math.NaN()
		c.SentBps, c.ReceivedBps, c.Retransmitted = unknown, unknown, unknown
		c.WindowLimited, c.BufferLimited, c.Busy = unknown, unknown, unknown
		return
	}
	i := &c.Info
	rate := func(f tcpinfo.Field, bytes uint64) float64 {
		if !i.Has(f) {
			return math.NaN()
		}
		return float64(bytes) * 8 / interval.Seconds()
	}
	part := func(f tcpinfo.Field, of time.Duration) float64 {
		if !i.Has(f) {
			return math.NaN()
		}
		return min(of.Seconds()/interval.Seconds(), 1)
	}
	c.SentBps = rate(tcpinfo.FieldBytesAcked, now.acked-last.acked)
	c.ReceivedBps = rate(tcpinfo.FieldBytesReceived, now.received-last.received)
	c.WindowLimited = part(tcpinfo.FieldRwndLimited, now.window-last.window)
	c.BufferLimited = part(tcpinfo.FieldSndbufLimited, now.buffer-last.buffer)
	c.Busy = part(tcpinfo.FieldBusyTime, now.busy-last.busy)

	// By bytes, or on a kernel before 4.19 by segments; NaN if nothing was sent.
	c.Retransmitted = ratio(now.again-last.again, now.sent-last.sent)
	if !i.Has(tcpinfo.FieldBytesRetrans) {
		c.Retransmitted = ratio(uint64(now.segmentsOutAgain-last.segmentsOutAgain), uint64(now.segmentsOut-last.segmentsOut))
	}
	c.History.add(point{
		sent: float32(c.SentBps), received: float32(c.ReceivedBps),
		rtt: float32(c.RTT()), retransmitted: float32(c.Retransmitted),
	})
}

func ratio(part, whole uint64) float64 {
	if whole == 0 {
		return math.NaN()
	}
	return min(float64(part)/float64(whole), 1)
}

func countersOf(i *tcpinfo.Info) counters {
	return counters{
		acked: i.BytesAcked, received: i.BytesReceived, sent: i.BytesSent, again: i.BytesRetrans,
		window: i.RwndLimited, buffer: i.SndbufLimited, busy: i.BusyTime,
		segmentsOut: i.DataSegsOut, segmentsOutAgain: i.TotalRetrans,
	}
}

// sample keeps the samples for the cause.
func (c *Connection) sample(at time.Duration) {
	if c.base.Info.State == 0 {
		c.base = c.sampleAt(at)
		c.next = c.base
		return
	}
	if at-c.next.At >= max(minSpan, spanRTTs*c.Info.RTT) {
		c.base, c.next = c.next, c.sampleAt(at)
	}
}

func (c *Connection) sampleAt(at time.Duration) doctor.Sample {
	s := doctor.Sample{At: at, Info: c.Info, SendBuffer: -1, SendQueued: -1, CPU: -1}
	if c.Memory.Known {
		s.SendBuffer, s.SendQueued = int64(c.Memory.SndBuf), int64(c.Memory.SndQueued)
	}
	return s
}

// Cause returns the limit of the connection as a sender; empty if unknown or none. It
// uses the last seconds, and is computed on request: a screen shows few of many
// connections.
func (c *Connection) Cause() doctor.Cause {
	if c.causeOf != c.refresh {
		c.cause, c.causeOf = "", c.refresh
		if c.table.at > c.base.At && !c.Ended() {
			c.cause = c.table.glance(c.base, c.sampleAt(c.table.at))
		}
	}
	return c.cause
}

// RTT returns the smoothed round-trip time in seconds.
func (c *Connection) RTT() float64 {
	if !c.Info.Has(tcpinfo.FieldRTT) {
		return math.NaN()
	}
	return c.Info.RTT.Seconds()
}

// Limited returns the share of the time in which the peer's window or the send buffer
// limited the sender.
func (c *Connection) Limited() float64 { return c.WindowLimited + c.BufferLimited }
