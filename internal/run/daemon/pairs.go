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

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/carry/relay"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/loglimit"
	"longhaul/internal/sys/resources"
	"longhaul/internal/words/remedy"
)

// pairs is the part of the pairs with other relays: the node in the pair protocol,
// and what connects that to the relay's tunnels.
type pairs struct {
	log     *slog.Logger
	lines   *loglimit.Limiter // those that peers and strangers cause
	release string
	// readablePath is that of Options.
	readablePath func(path string) string
	host         string        // its name; empty: unknown
	keysDir      func() string // the default directory of the keys
	relay        *relay.Relay
	note         func(kind, tunnel, name, state, detail string) // takes a state that may have changed
	trace        func(context.Context, flow.Carried) flow.Trace // see pair.Options
	memory       atomic.Int64                                   // memory_limit in bytes; 0: none
	keys         atomic.Pointer[trust.Identity]                 // stays when a change is aborted; the relay reads it for each connection
	older        olderPairs
	endings      endings

	mu      sync.Mutex // guards the fields below, which status reads from other goroutines
	node    *pair.Node // nil: no tunnel was ever paired
	current tunnelPairs
	removed map[string]*farTunnel // whose sessions may stand
	stood   []linkMemory          // of the process before, until the first commit
	drained bool
	list    string // name of this relay's list of trusted peers; empty: not begun yet
	// succeeded: another process has taken over, and with that the list.
	succeeded bool
	door      *pairDoor // for the successor; nil until there is one

	life    context.Context // of the goroutines below
	end     context.CancelFunc
	running sync.WaitGroup
}

// tunnelPairs are the paired tunnels of a configuration, by name.
type tunnelPairs struct {
	near map[string]*nearTunnel
	far  map[string]*farTunnel
}

func newPairs(log *slog.Logger, release string, keysDir func() string, readablePath func(string) string, relay *relay.Relay) *pairs {
	p := &pairs{log: log, lines: loglimit.New(log), release: release, keysDir: keysDir, readablePath: readablePath, relay: relay, note: func(_, _, _, _, _ string) {}, removed: map[string]*farTunnel{}}
	p.host, _ = os.Hostname() // without it, the listening address alone tells near tunnels apart
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// linkMemory is what a successor needs to know of a near tunnel's pair: in an outage, clients wait for it
// only if it has stood.
type linkMemory struct {
	Tunnel string        `json:"tunnel"`
	Peer   string        `json:"peer"`
	Hop    string        `json:"hop,omitempty"` // of a tunnel with several
	Away   time.Duration `json:"away"`          // for so long it has not stood
	Host   string        `json:"host,omitempty"`
}

// links are those whose pair has stood.
func (p *pairs) links() (all []linkMemory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, t := range p.current.near {
		for _, h := range t.hops {
			if away, stood := h.link.Stood(); stood {
				all = append(all, linkMemory{name, t.peer, h.options.Hop, away, h.link.Taking().Host})
			}
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

// pairsChange is prepared pairs before their commit.
type pairsChange struct {
	of     *pairs
	next   tunnelPairs
	far    map[*farTunnel]*farSettings
	memory int64      // memory_limit in bytes
	begun  *pair.Node // made for this change; nil: there was one, or no tunnel is paired
	was    int64      // memory_limit before
	trust  *trust.Trust
}

// Prepare gives paired tunnels what carries or brings their flows. Links to far
// relays that are new begin to connect.
func (p *pairs) Prepare(_ context.Context, to *plan) (Change, error) {
	if to.dryRun { // it would make the host's key, and connect to far relays
		return setting(func() {}), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	change := &pairsChange{of: p, next: tunnelPairs{near: map[string]*nearTunnel{}, far: map[string]*farTunnel{}},
		far: map[*farTunnel]*farSettings{}, memory: int64(to.MemoryLimit), was: p.memory.Load()}
	var err error
	keys := p.keys.Load()
	if to.onlyHops { // the trust stays, and its files, which may be broken now, are not read
		if keys != nil {
			change.trust = keys.Trust()
		}
	} else if change.trust, err = p.trustOf(to.Config); err != nil {
		return nil, err
	}
	if keys != nil {
		keys.Prepare(change.trust)
	}
	for i := range to.tunnels {
		t, c := &to.tunnels[i], &to.Tunnels[i]
		if !c.Pair.Paired() && !c.PairFrom.Paired() {
			continue
		}
		if p.node == nil { // so there are no links to give up
			p.memory.Store(change.memory) // it bounds the node from the beginning
			if err := p.start(to.Config, change.trust); err != nil {
				p.memory.Store(change.was)
				if keys := p.keys.Load(); keys != nil {
					keys.Prepare(nil)
				}
				return nil, err
			}
			change.begun = p.node
		}
		if c.Pair.Paired() {
			near := p.near(c, t.Transport)
			change.next.near[t.Name] = near
			for k := range near.hops {
				t.Forward[k].Carrier = carrier{near.hops[k].link}
			}
			t.Resume = c.Pair.Resume
		}
		if c.PairFrom.Paired() {
			far, settings := p.far(c)
			change.next.far[t.Name], change.far[far] = far, settings
			t.PairServer = far
		}
	}
	return change, nil
}

// start makes the node. The caller holds mu.
func (p *pairs) start(c *config.Config, t *trust.Trust) error {
	dir := c.PairKeys
	if dir == "" {
		dir = p.keysDir()
	}
	if dir == "" {
		return remedy.New(errors.New("there is no directory for the keys of pairs"), "name one with pair_keys")
	}
	keys := p.keys.Load() // of a change that was aborted, or none
	if keys == nil || keys.Dir() != dir {
		keys = trust.New(identity.New(dir))
	}
	keys.Prepare(t)
	if _, _, _, err := keys.Key(); err != nil { // makes it, the first time
		return fmt.Errorf("read the keys of pairs: %w", err)
	}
	node, err := pair.New(pair.Options{
		Identity:      keys,
		Release:       p.release,
		Boot:          boot(),
		Log:           p.log,
		RetainedLimit: p.retainedLimit,
		Elsewhere:     p.older.take,
		Fate:          p.endings.fate,
		Trace:         p.trace,
	})
	if err != nil {
		return fmt.Errorf("start the pairs: %w", err)
	}
	p.keys.Store(keys)
	p.node = node
	return nil
}

// serve gives the node a connection of a far tunnel.
func (p *pairs) serve(fd int, first []byte, t *farTunnel) {
	p.mu.Lock()
	node := p.node
	p.mu.Unlock()
	if node == nil { // the change that brought the tunnel was aborted
		_ = unix.Close(fd)
		return
	}
	node.Serve(fd, first, t)
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
func (p *pairs) retainedLimit() int64 { return usableMemory(p.memory.Load()) / 4 }

// usableMemory is the memory in bytes that this process may use: memory_limit, or if that is 0, the
// memory of the host or its control group.
func usableMemory(memoryLimit int64) int64 {
	if memoryLimit > 0 {
		return memoryLimit
	}
	if capacity := resources.MemoryCapacity(); capacity.Known() {
		return int64(capacity)
	}
	return unknownMemory
}

// Commit puts the pairs into force.
func (c *pairsChange) Commit() {
	p := c.of
	p.memory.Store(c.memory)
	p.mu.Lock()
	defer p.mu.Unlock()
	if keys := p.keys.Load(); keys != nil {
		keys.Use(c.trust)
	}
	if c.begun != nil {
		p.running.Go(func() { p.watch(c.begun) })
	}
	kept := c.next.links()
	for was := range p.current.links() {
		if !kept[was] {
			was.Close()
		}
	}
	for _, t := range c.next.near {
		for _, h := range t.hops {
			h.link.Update(h.options)
		}
	}
	for t, settings := range c.far {
		t.put(settings)
	}
	for name, was := range p.current.far {
		if c.next.far[name] == nil {
			was.removed.Store(true)
			p.removed[name] = was
		}
	}
	for name := range c.next.far {
		delete(p.removed, name)
	}
	p.current, p.stood = c.next, nil
}

// Abort closes the links that are new, and the node if it is.
func (c *pairsChange) Abort() {
	p := c.of
	p.mu.Lock()
	if keys := p.keys.Load(); keys != nil {
		keys.Prepare(nil)
	}
	was := p.current.links()
	for link := range c.next.links() {
		if !was[link] {
			link.Close()
		}
	}
	if c.begun != nil {
		p.node = nil
		p.memory.Store(c.was)
	}
	p.mu.Unlock()
	if c.begun != nil {
		c.begun.Close()
	}
}

func (p *pairs) hasDrained() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drained
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
	p.clearList()
	p.lines.Close()
}
