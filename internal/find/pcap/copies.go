package pcap

import (
	"slices"
	"time"
)

// copies recognises packets that the capture has twice: on several interfaces, on both
// ways through the loopback device, or on both sides of a router whose port is mirrored.
type copies struct {
	recent  []fingerprint // a ring of the latest packets
	size    int
	next    int   // index of the oldest in it, once it is full
	packets int64 // without copies
	twins   int64 // packets that came again unchanged, later than a device delivers them
	delay   int64 // longest time after which a copy came, ns
}

// fingerprint holds the fields that two captures of one packet share, and the two that
// may differ.
type fingerprint struct {
	same   same
	at     int64
	number int64 // of the packet, from 1
	device int
	ttl    uint8
}

type same struct {
	from         int8
	flags        uint8 // 0: no packet
	window, ipID uint16
	seq, ack     uint32
	tsval, tsecr uint32
	payload      int
}

const (
	// recentPackets is the size of the ring at first, and maxRecent bounds it.
	recentPackets, maxRecent = 32, 2048
	// Bounds of the time between two captures of a packet: on one interface it
	// follows at once; on its way through a host or a router it may wait.
	sameDevice  = int64(time.Millisecond)
	otherDevice = int64(500 * time.Millisecond)
)

// has reports whether a packet of end from is a copy, and notes it if not. room is the
// number of fingerprints that the connections may still have.
func (c *copies) has(p *packet, from int, t int64, room *int) bool {
	f := fingerprint{
		same: same{
			from: int8(from), seq: p.seq, ack: p.ack, tsval: p.tsval, tsecr: p.tsecr, payload: p.payload,
			window: p.window, ipID: p.ipID, flags: p.flags(),
		},
		at: t, device: p.device, ttl: p.ttl, number: c.packets + 1,
	}
	for i := range c.recent { // the latest first
		r := &c.recent[(c.next-1-i+2*len(c.recent))%len(c.recent)]
		if t-r.at > otherDevice {
			break
		}
		if r.same == f.same && c.isTwin(r, &f, p.timestamps) {
			c.delay = max(c.delay, t-r.at)
			return true
		}
	}
	c.packets++
	c.note(f, room)
	return false
}

// isTwin reports whether a packet is the same as one before it, and not sent again with
// the same content. A sender gives each packet another identification, except for stacks
// that give none, and some that keep it in retransmissions. All packets of one sender
// have the same TTL at one place of the path. Without that sign, most packets so far
// must have come twice.
func (c *copies) isTwin(r, f *fingerprint, timestamps bool) bool {
	anonymous := f.same.ipID == 0
	hops := int(r.ttl) - int(f.ttl)
	switch {
	case r.device != f.device:
		return true
	case anonymous && (hops == 1 || hops == -1), !anonymous && hops != 0:
		return true
	case hops != 0, anonymous && (f.same.payload == 0 || !timestamps):
		return false // could be a duplicate acknowledgement or a retransmission
	case f.at-r.at <= sameDevice:
		return true
	case anonymous:
		return false
	}
	c.twins++
	return 2*c.twins >= r.number
}

// note puts a packet into the ring, which grows if copies come later than it reaches.
func (c *copies) note(f fingerprint, room *int) {
	c.size = max(c.size, recentPackets)
	if n := len(c.recent); n == c.size && f.at-c.recent[c.next].at < 2*c.delay && n < maxRecent && *room >= n {
		*room -= n
		c.size = 2 * n
		c.recent = slices.Concat(c.recent[c.next:], c.recent[:c.next])
		c.next = 0
	}
	if len(c.recent) < c.size {
		c.recent = append(c.recent, f)
		return
	}
	c.recent[c.next] = f
	c.next = (c.next + 1) % c.size
}

// extra is the room that the ring takes beyond its first size.
func (c *copies) extra() int { return max(0, c.size-recentPackets) }
