package pair

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"

	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// errRecordUnasked is the error of a record on a lane whose near end wanted none.
var errRecordUnasked = errors.New("a compressed record, which nobody asked for")

var errUnsealed = errors.New("a beginning or an end on a lane in clear, where none may be")

var errMissing = errors.New("bytes are missing at the other relay, which a lane has not brought")

// Whoever is on the path of lanes in clear may read and change what they carry. So where both
// ends know how, a session in clear is sealed: OPEN and END go on the control connection, which
// has TLS. A lane begins with an ATTACH that names its flow, and carries bytes. What it brings may
// come before the OPEN, and behind the END.

// relation is what the lanes and flows of a session know of it.
type relation struct {
	node       *process
	near       bool
	peer       string               // in Identity: of the host, or of the site that the tunnel names
	proved     atomic.Pointer[host] // that has proved its key last; nil: none yet
	tunnel     string               // of this host
	id         uint64
	mode       // of its lanes
	agreed     atomic.Uint32
	timing     // of answers
	compressed compressed
	idle       *atomic.Int64 // far relay: the peer's lanes that carry no flow
	closed     atomic.Bool
}

// agree takes the features that both ends have named.
func (r *relation) agree(both wire.Features) { r.agreed.Store(uint32(r.mode.uses(both))) }

// knows reports whether both ends know a feature, and the session's mode has a use for it.
func (r *relation) knows(f wire.Features) bool { return wire.Features(r.agreed.Load())&f != 0 }

// sealed reports that lanes are in clear, and that neither OPEN nor END comes on them.
func (r *relation) sealed() bool { return r.knows(wire.FeatureSealed) }

// host is the other end's, with the name that it has now; without a key: it is not known yet.
func (r *relation) host() host {
	if h := r.proved.Load(); h != nil {
		return r.node.renamed(*h)
	}
	return host{}
}

// peerNow is the other end's name: that of its host, where it is known.
func (r *relation) peerNow() string { return cmp.Or(r.host().name, r.peer) }

// peerSeen is peerNow as of the latest look at the list of peers, within a second: it looks at nothing.
func (r *relation) peerSeen() string {
	if h := r.proved.Load(); h != nil {
		return h.name
	}
	return r.peer
}

// tell writes a line about the session's peer, unless one like it was written just now. err may be
// nil.
func (r *relation) tell(level slog.Level, message string, err error) {
	attrs := []slog.Attr{slog.String("peer", r.peerNow()), slog.String("tunnel", r.tunnel)}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	r.node.limited.Log(level, message, []string{"peer", "tunnel"}, attrs...)
}

// debug writes a line about the session's peer for debugging.
func (r *relation) debug(message string, err any) {
	r.node.log.Debug(message, "peer", r.peerNow(), "tunnel", r.tunnel, "error", err)
}

// violations are the errors of connections whose other end breaks the protocol.
var violations = []error{wire.ErrMalformed, errWrongEnd, errRecordUnasked, errUnsealed, compress.ErrRecord, stream.ErrGap}

var errWrongEnd = errors.New("a frame that only a near relay sends")

// blame tells which rule of the protocol the peer has broken, if err says so.
func (r *relation) blame(err error) {
	if slices.ContainsFunc(violations, func(v error) bool { return errors.Is(err, v) }) {
		r.tell(slog.LevelWarn, "peer breaks the pair protocol: its connection is closed", err)
	}
}

// compressed is how many bytes of a session went in compressed records, both ways.
type compressed struct{ plain, packed atomic.Int64 }

func (c *compressed) add(plain, packed int) {
	c.plain.Add(int64(plain))
	c.packed.Add(int64(packed))
}
