package measure

import (
	"net"
	"net/netip"
	"slices"

	"longhaul/internal/sys/connsource"
)

// maxUnplaced bounds the connections that are not known to belong to a test,
// those of sources with a test under way aside.
const maxUnplaced = 256

// places are those of connections that are not known to belong to a test.
// Where there are too many, the source that has most of them loses its oldest.
// So who floods evicts itself, and a source with no more than an equal share of
// the places loses none to others. Of more sources than places, each with one
// connection, the one that came first loses it.
//
// A source with a test under way has places of its own: the streams of a client
// may come all at once, and it has shown its token.
type places struct {
	taken   map[placeKey][]place // the oldest first
	shared  int                  // that are not of a test's source
	entered int
}

type placeKey struct {
	source  netip.Addr
	testing bool // for a source with a test under way
}

type place struct {
	conn net.Conn
	n    int // of all that ever entered
}

// enter gives a connection a place, and returns the one that loses its own for
// it, if there is one.
func (p *places) enter(key placeKey, conn net.Conn) (out net.Conn) {
	if p.taken == nil {
		p.taken = map[placeKey][]place{}
	}
	p.taken[key] = append(p.taken[key], place{conn, p.entered})
	p.entered++
	if key.testing {
		if len(p.taken[key]) > 2*maxStreams {
			return p.remove(key, 0)
		}
		return nil
	}
	p.shared++
	if p.shared <= maxUnplaced {
		return nil
	}
	most := key
	for other, of := range p.taken {
		than := p.taken[most]
		if !other.testing && (len(of) > len(than) || len(of) == len(than) && of[0].n < than[0].n) {
			most = other
		}
	}
	return p.remove(most, 0)
}

// leave takes a connection's place back, and reports whether it had one still.
func (p *places) leave(conn net.Conn) bool {
	for _, testing := range []bool{false, true} {
		key := placeKey{connsource.Of(conn), testing}
		for i, one := range p.taken[key] {
			if one.conn == conn {
				p.remove(key, i)
				return true
			}
		}
	}
	return false
}

func (p *places) remove(key placeKey, i int) net.Conn {
	of := p.taken[key]
	conn := of[i].conn
	p.taken[key] = slices.Delete(of, i, i+1)
	if len(p.taken[key]) == 0 {
		delete(p.taken, key)
	}
	if !key.testing {
		p.shared--
	}
	return conn
}
