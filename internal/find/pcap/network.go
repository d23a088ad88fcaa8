package pcap

import (
	"fmt"
	"strings"
)

// network is what a packet is in, outermost first: VLANs and tunnels. The same addresses
// and ports in two of them belong to two connections. It has no labels of MPLS and no
// addresses of tunnels, which differ by hop and direction.
type network [4]wrapping

type wrapping struct {
	kind wrappingKind
	id   uint32
}

type wrappingKind uint8

const (
	inVLAN wrappingKind = 1 + iota
	inMPLS
	inPPPoE
	inIP
	inGRE
	inVXLAN
	inGeneve
	inGTP
	inService
)

var wrappingNames = [...]string{
	inVLAN: "VLAN", inMPLS: "MPLS", inPPPoE: "PPPoE", inIP: "IP in IP", inGRE: "GRE", inVXLAN: "VXLAN", inGeneve: "Geneve", inGTP: "GTP", inService: "service",
}

// within adds a wrapping. More than fit do not tell networks apart.
func (n *network) within(kind wrappingKind, id uint32) {
	for i := range n {
		if n[i].kind == 0 {
			n[i] = wrapping{kind, id}
			return
		}
	}
}

func (n network) String() string {
	var all []string
	for _, w := range n {
		switch {
		case w.kind == 0:
		case w.id == 0:
			all = append(all, wrappingNames[w.kind])
		default:
			all = append(all, fmt.Sprintf("%s %d", wrappingNames[w.kind], w.id))
		}
	}
	return strings.Join(all, ", ")
}

// way is the packets from one end to the other in a network.
type way struct {
	key     key
	network network
	from    int8
}

// find returns the connection of a packet; nil if it has none yet.
//
// The ends of a connection may send in different networks: with VLANs by direction, or a
// tunnel for requests only, as load balancers have. So a packet of an end that was not
// heard yet joins a connection of another network, if its numbers continue that one.
func (t *table) find(k key, p *packet, from int) *connection {
	w := way{k, p.network, int8(from)}
	if c := t.open[w]; c != nil {
		return c
	}
	back := w
	back.from = int8(1 - from)
	c := t.open[back]
	if c == nil || c.heard[from] {
		if c = t.lone[k]; c == nil || c.heard[from] || !c.continues(p, from) {
			return nil
		}
	}
	t.join(c, w)
	return c
}

// join notes that an end of a connection sends in a network.
func (t *table) join(c *connection, w way) {
	t.open[w] = c
	c.heard[w.from], c.networks[w.from] = true, w.network
	if c.heard[0] && c.heard[1] {
		t.unlone(c)
	} else {
		t.lone[w.key] = c
	}
}

func (t *table) unlone(c *connection) {
	if t.lone[c.key] == c {
		delete(t.lone, c.key)
	}
}

// forget removes a connection from the open ones.
func (t *table) forget(c *connection) {
	t.unlone(c)
	t.count--
	for i := range c.heard {
		if c.heard[i] {
			delete(t.open, way{c.key, c.networks[i], int8(i)})
		}
	}
}

// connections returns the open connections.
func (t *table) connections() []*connection {
	all := make([]*connection, 0, t.count)
	for w, c := range t.open {
		if w.from == 0 || !c.heard[0] {
			all = append(all, c)
		}
	}
	return all
}

// continues reports whether the numbers of a packet continue a connection, whose other
// end alone was heard so far.
func (c *connection) continues(p *packet, from int) bool {
	a, b := &c.half[from], &c.half[1-from]
	if !p.hasAck || !b.begun {
		return false
	}
	ack := b.number(p.ack)
	if !a.begun { // the other end has only sent a SYN
		return p.syn && ack == b.nxt
	}
	return near(ack, b.nxt) && near(a.number(p.seq), a.una)
}

// near reports whether two sequence numbers are of one connection. That two of different
// connections are is unlikely.
func near(a, b int64) bool { return a-b < 1<<24 && b-a < 1<<24 }
