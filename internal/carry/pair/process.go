package pair

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/loglimit"
)

// maxDials bounds the attempts of all links of a node together that nobody waits for:
// further ones for a control connection, and lanes for pools. After an outage hundreds of
// tunnels come back at once, and a far relay that is flooded answers too late for all.
const maxDials = 256

// process is what all parts of a node share.
type process struct {
	options  Options
	identity Identity
	log      *slog.Logger
	limited  *loglimit.Limiter // for lines that another end can cause
	instance uint64
	poller   *poller
	budget   budget
	stores   stream.Budget // budget, as streams have it
	book     book          // of near ends
	pipes    pipes
	linger   linger
	strain   strain          // of this process
	turns    *turns          // of handshakes of lanes
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	tasks    sync.WaitGroup

	flowsNow atomic.Int64
	dials    atomic.Int64 // attempts of near ends for connections
	draining atomic.Bool
	closing  atomic.Bool
}

func (p *process) init(o Options, poller *poller) {
	p.options, p.identity, p.log, p.limited = o, o.Identity, o.Log, loglimit.New(o.Log)
	p.instance, p.poller = randomID(), poller
	p.turns = newTurns(runtime.GOMAXPROCS(0) / 2) // lanes leave half of the processors to everything else
	p.stores = &p.budget
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.boundStores()
}

func (p *process) boundStores() { p.budget.limit.Store(p.options.RetainedLimit()) }

// strained is how late this process is.
func (p *process) strained() time.Duration { return p.strain.now(time.Now()) }

// hello is what this process says of itself in a session.
func (p *process) hello(session uint64, tunnel string) wire.Hello {
	return wire.Hello{Lowest: wire.LowestVersion, Highest: wire.HighestVersion, Instance: p.instance,
		Session: session, Tunnel: tunnel, Release: p.options.Release}
}

// relayIDs are this host's in a flow.Via, the one in use first; none: it has no key.
func (p *process) relayIDs() (ids []flow.RelayID) {
	for _, key := range p.identity.PublicKeys() {
		digest := sha256.Sum256(key)
		ids = append(ids, flow.RelayID(digest[:]))
	}
	return ids
}

// randomID is a random number that is not 0.
func randomID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:]) | 1
}
