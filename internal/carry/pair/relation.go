package pair

import (
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"

	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// relation is what the lanes and flows of a session know of it.
type relation struct {
	node       *process
	near       bool
	peer       string // name in Identity
	tunnel     string // of this host
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

// tell writes a line about the session's peer, unless one like it was written just now. err may be
// nil.
func (r *relation) tell(level slog.Level, message string, err error) {
	attrs := []slog.Attr{slog.String("peer", r.peer), slog.String("tunnel", r.tunnel)}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	r.node.limited.Log(level, message, []string{"peer", "tunnel"}, attrs...)
}

// debug writes a line about the session's peer for debugging.
func (r *relation) debug(message string, err any) {
	r.node.log.Debug(message, "peer", r.peer, "tunnel", r.tunnel, "error", err)
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
