package relay

import (
	"hash/maphash"
	"sync"
	"unique"

	report "longhaul/internal/carry/flow"
)

// ident is how a flow is found: by id in this process, by name in every relay that carries it.
type ident struct {
	id   uint64
	name report.Name // zero: the client's PROXY header is still to come
}

const (
	// nameShards is the number of locks of flowNames. Event loops that begin flows at the same time rarely meet
	// at one.
	nameShards = 16
	// maxEndedNames bounds the names of ended flows that are remembered: those of 16 s at 2000 flows a second,
	// in at most 1 MB. A proxy that gives one identifier twice does so within moments, or for ever.
	maxEndedNames = 1 << 15
)

// flowNames has the names of the flows of tunnels that take names from others: those that live, and those that
// moved bytes and ended lately. Names that this relay makes need no look: they are random.
type flowNames [nameShards]nameShard

type nameShard struct {
	mu    sync.Mutex
	live  map[nameKey]nameHolder
	ended map[nameKey]struct{}
	ring  []nameKey // ended, in the order in which they are forgotten
	next  int       // of ring, once it is full
}

// nameKey stands for a name in a tunnel, since a flow may pass two tunnels of one process: a hash of both with a
// secret of this process, in a third of their memory. Where two of them met, the later flow would get a new name.
type nameKey uint64

var nameSeed = maphash.MakeSeed()

// nameIn is the key of a name. Its lowest bits are the name's last ones: UUIDs of one moment begin alike (RFC 9562,
// version 7).
func nameIn(tunnel string, name report.Name) nameKey {
	var h maphash.Hash
	h.SetSeed(nameSeed)
	_, _ = h.Write(name[:])
	_, _ = h.WriteString(tunnel)
	return nameKey(h.Sum64())/nameShards*nameShards + nameKey(name[len(name)-1])%nameShards
}

// nameHolder is a flow that has a name. Thousands may be parked, with few origins.
type nameHolder struct {
	flow    uint64                // its id
	from    unique.Handle[origin] // zero: a proxy
	carried report.Carried        // of a flow that a peer asked for
}

// origin is a peer that asks for flows with names.
type origin struct {
	peer  string
	first report.RelayID // that their clients came to; zero: it is not known
}

func fromPeer(o *report.Open) nameHolder {
	return nameHolder{from: unique.Make(origin{o.Peer, o.Via.First()}), carried: o.Carried}
}

func (h *nameHolder) origin() (o origin) {
	if h.from != (unique.Handle[origin]{}) {
		o = h.from.Value()
	}
	return o
}

// offered reports whether the flow may be the same one that its near relay offers once more: a far relay may not
// have heard yet that its client was given back. Nothing of it has passed. It may come by another hub.
func (h *nameHolder) offered(again *nameHolder) bool {
	a, b := h.origin(), again.origin()
	sameRelay := a.first == b.first && a.first != report.RelayID{}
	if h.carried == nil || again.carried == nil || a.peer != b.peer && !sameRelay {
		return false
	}
	now := h.carried.Figures()
	return now.BytesUp == 0 && now.BytesDown == 0
}

func (n *flowNames) shard(k nameKey) *nameShard { return &n[k%nameShards] }

// take gives a name to a flow, unless another one of the tunnel has it, or had it lately.
func (n *flowNames) take(k nameKey, h nameHolder) bool {
	s := n.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ended := s.ended[k]; ended {
		return false
	}
	if was, taken := s.live[k]; taken && !was.offered(&h) {
		return false
	}
	if s.live == nil {
		s.live, s.ended = map[nameKey]nameHolder{}, map[nameKey]struct{}{}
	}
	s.live[k] = h
	return true
}

// leave takes the name from a flow that ends. If it has moved bytes, no other one gets the name soon. Otherwise a
// proxy or a near relay may try again with the same client.
func (n *flowNames) leave(k nameKey, flow uint64, moved bool) {
	s := n.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[k].flow != flow {
		return
	}
	delete(s.live, k)
	switch {
	case !moved:
		return
	case len(s.ring) < maxEndedNames/nameShards:
		s.ring = append(s.ring, k)
	default:
		delete(s.ended, s.ring[s.next])
		s.ring[s.next] = k
		s.next = (s.next + 1) % len(s.ring)
	}
	s.ended[k] = struct{}{}
}

// takesNames reports whether a tunnel's flows come with names: with PROXY headers, or from near relays.
func (t *Tunnel) takesNames() bool { return t.ProxyIn.Required || t.PairServer != nil }

// takeName names a flow as a proxy or a near relay asks; h has who. It gets a new name if they ask for none, or
// for that of another flow.
func (w *worker) takeName(f *flow, wanted report.Name, h nameHolder) {
	names, tunnel := &w.relay.flowNames, f.route.tunnel.Name
	h.flow = f.id
	f.nameTaken = true
	if !wanted.IsZero() && names.take(nameIn(tunnel, wanted), h) {
		f.name = wanted
		return
	}
	if !wanted.IsZero() {
		from := "a PROXY header gives its unique ID"
		if peer := h.origin().peer; peer != "" {
			from = "peer " + peer + " sends it"
		}
		f.route.state.warnOnce(w.log, "flows come with the names of others, and get new ones", from)
	}
	f.name = report.NewName()
	names.take(nameIn(tunnel, f.name), h)
}

// leaveName takes its name from a flow that ends.
func (w *worker) leaveName(f *flow) {
	if f.nameTaken {
		w.relay.flowNames.leave(nameIn(f.route.tunnel.Name, f.name), f.id, f.dirs[up].bytes > 0 || f.dirs[down].bytes > 0)
	}
}
