package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/relay"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/loglimit"
	"longhaul/internal/sys/resources"
	"longhaul/internal/words/remedy"
)

// pairs are the daemon's pairs with other relays: its node in the pair protocol,
// and what connects that to the relay's tunnels.
type pairs struct {
	log     *slog.Logger
	lines   *loglimit.Limiter // those that peers and strangers cause
	release string
	host    string        // its name; empty: unknown
	keysDir func() string // the default directory of the keys
	relay   func() *relay.Relay
	note    func(kind, tunnel, name, state, detail string) // takes a state that may have changed
	memory  atomic.Int64                                   // memory_limit in bytes; 0: none
	older   olderPairs
	endings endings

	mu      sync.Mutex // guards the fields below, which status reads from other goroutines
	keys    *identity.Store
	node    *pair.Node // nil: no tunnel was ever paired
	current tunnelPairs
	next    tunnelPairs           // of the last equip
	removed map[string]*farTunnel // whose sessions may stand
	stood   []linkMemory          // of the process before, until the first keep
	drained bool
	door    *pairDoor // for the successor; nil until there is one

	life    context.Context // of the goroutines below
	end     context.CancelFunc
	running sync.WaitGroup
}

// tunnelPairs are the paired tunnels of a configuration, by name.
type tunnelPairs struct {
	near map[string]*nearTunnel
	far  map[string]*farTunnel
}

func newPairs(log *slog.Logger, release string, keysDir func() string, relay func() *relay.Relay) *pairs {
	p := &pairs{log: log, lines: loglimit.New(log), release: release, keysDir: keysDir, relay: relay, note: func(_, _, _, _, _ string) {}, removed: map[string]*farTunnel{}}
	p.host, _ = os.Hostname() // without it, the listening address alone tells near tunnels apart
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// linkMemory is what a successor needs to know of a near tunnel's pair: in an outage, clients wait for it
// only if it has stood.
type linkMemory struct {
	Tunnel string        `json:"tunnel"`
	Peer   string        `json:"peer"`
	Away   time.Duration `json:"away"` // for so long it has not stood
}

// links are those whose pair has stood.
func (p *pairs) links() (all []linkMemory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, t := range p.current.near {
		if away, stood := t.link.Stood(); stood {
			all = append(all, linkMemory{name, t.peer, away})
		}
	}
	return all
}

// follow takes over from older processes with flows of pairs, the oldest first, and what the process
// before knows of near tunnels.
func (p *pairs) follow(all []olderPair, stood []linkMemory) {
	p.stood = stood
	p.older.remember(all)
	for _, read := range p.endings.follow(all, p.notPassed) {
		p.running.Go(read)
	}
	p.endings.hear()
}

// equip gives paired tunnels what carries or brings their flows. Links to far
// relays that are new begin to connect. keep or abandon follows.
func (p *pairs) equip(from *config.Config, tunnels []relay.Tunnel) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = tunnelPairs{near: map[string]*nearTunnel{}, far: map[string]*farTunnel{}}
	for i := range tunnels {
		t, c := &tunnels[i], &from.Tunnels[i]
		if !c.Pair.Paired() && !c.PairFrom.Paired() {
			continue
		}
		if err := p.start(from); err != nil {
			return err
		}
		if c.Pair.Paired() {
			near := p.near(c, t.Transport)
			p.next.near[t.Name] = near
			t.Carrier = near.link
		} else {
			far := p.far(c)
			p.next.far[t.Name] = far
			t.PairServer = far
		}
	}
	return nil
}

// start makes the node, the first time. The caller holds mu.
func (p *pairs) start(c *config.Config) error {
	if p.node != nil {
		return nil
	}
	dir := c.PairKeys
	if dir == "" {
		dir = p.keysDir()
	}
	if dir == "" {
		return remedy.New(errors.New("there is no directory for the keys of pairs"), "name one with pair_keys")
	}
	keys := identity.New(dir)
	if _, _, _, err := keys.Key(); err != nil { // makes it, the first time
		return fmt.Errorf("read the keys of pairs: %w", err)
	}
	p.memory.Store(int64(c.MemoryLimit))
	node, err := pair.New(pair.Options{
		Identity:      keys,
		Release:       p.release,
		Boot:          boot(),
		Log:           p.log,
		RetainedLimit: p.retainedLimit,
		Elsewhere:     p.older.take,
		Fate:          p.endings.fate,
	})
	if err != nil {
		return fmt.Errorf("start the pairs: %w", err)
	}
	p.keys, p.node = keys, node
	p.running.Go(func() { p.watch(node) })
	return nil
}

// boot is the same for each process of this host until the host restarts; 0: unknown. Peers get it, and
// the kernel's own number stays here.
func boot() uint64 {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0
	}
	sum := sha256.Sum256(append([]byte("longhaul pair boot "), id...))
	return binary.BigEndian.Uint64(sum[:])
}

// unknownMemory is taken for the memory of a host that does not tell it, in bytes.
const unknownMemory = 1 << 30

// retainedLimit is the payload in bytes that paired flows may keep together: a quarter of
// memory_limit, or else of the memory that this process can use.
func (p *pairs) retainedLimit() int64 {
	memory := p.memory.Load()
	if memory == 0 {
		memory = unknownMemory
		if capacity := resources.MemoryCapacity(); capacity.Known() {
			memory = int64(capacity)
		}
	}
	return memory / 4
}

// keep puts the last equip into force.
func (p *pairs) keep(memoryLimit int64) {
	p.memory.Store(memoryLimit)
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, was := range p.current.near {
		if now := p.next.near[name]; now == nil || now.link != was.link {
			was.link.Close()
		}
	}
	for _, t := range p.next.near {
		t.keep()
	}
	for _, t := range p.next.far {
		t.keep()
	}
	for name, was := range p.current.far {
		if p.next.far[name] == nil {
			was.removed.Store(true)
			p.removed[name] = was
		}
	}
	for name := range p.next.far {
		delete(p.removed, name)
	}
	p.current, p.next, p.stood = p.next, tunnelPairs{}, nil
}

// abandon gives up the last equip.
func (p *pairs) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, t := range p.next.near {
		if was := p.current.near[name]; was == nil || was.link != t.link {
			t.link.Close()
		}
	}
	p.next = tunnelPairs{}
}

// taking is what the pair of a near tunnel is like; nil: it is not one.
func (p *pairs) taking(tunnel string) *flow.Taking {
	p.mu.Lock()
	near := p.current.near[tunnel]
	p.mu.Unlock()
	if near == nil {
		return nil
	}
	t := near.link.Taking()
	return &t
}

// drain has all peers bring their new flows elsewhere. Flows go on.
func (p *pairs) drain() {
	p.mu.Lock()
	node, drained := p.node, p.drained
	p.drained = true
	p.mu.Unlock()
	if node != nil && !drained {
		node.Drain()
	}
}

// close resets what is left, after the relay was closed.
func (p *pairs) close() {
	p.mu.Lock()
	node, door := p.node, p.door
	p.mu.Unlock()
	p.end()
	if node != nil {
		node.Close()
	}
	p.endings.close(node) // without a node too: older processes are followed
	if door != nil {
		door.close() // last: who finds it closed follows a process that has been told
	}
	p.running.Wait()
	p.lines.Close()
}
