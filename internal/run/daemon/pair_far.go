package daemon

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/relay"
	"longhaul/internal/run/config"
)

// farTunnel is a tunnel that takes the flows of paired relays. There is one for each name,
// also if a reload removes the tunnel and another adds it: sessions that stand ask it for
// each flow.
type farTunnel struct {
	name    string
	pairs   *pairs
	admits  atomic.Pointer[farSettings]
	removed atomic.Bool // by a reload
	trouble atomic.Pointer[string]
}

// farSettings are what a reload may change of a far tunnel.
type farSettings struct {
	peers  []string
	listen []config.Listen
	clear  bool // lanes in clear
	// advertise is config.PairFrom.Advertise.
	advertise netip.AddrPort
}

// far returns the far tunnel of a configuration, and what to put into force of it. The caller holds mu.
func (p *pairs) far(c *config.Tunnel) (*farTunnel, *farSettings) {
	t := cmp.Or(p.current.far[c.Name], p.removed[c.Name])
	if t == nil {
		t = &farTunnel{name: c.Name, pairs: p}
		t.admits.Store(&farSettings{})
	}
	return t, &farSettings{peers: slices.Clone(c.PairFrom.Peers), listen: slices.Clone(c.Listen),
		clear: c.PairFrom.Encrypt == config.EncryptOff, advertise: c.PairFrom.Advertise}
}

func (t *farTunnel) put(s *farSettings) {
	t.admits.Store(s)
	if t.removed.Swap(false) {
		t.trouble.Store(nil) // nobody has looked meanwhile
	}
}

// Recognize implements relay.PairServer.
func (t *farTunnel) Recognize(first []byte) relay.Recognition {
	switch _, verdict := t.pairs.keys.Load().Recognize(first); verdict {
	case preface.Yes:
		return relay.IsHello
	case preface.Maybe:
		return relay.MaybeHello
	}
	return relay.NoHello
}

// Serve implements relay.PairServer: it gives a connection to the node, or to the keys if it is
// for an invitation.
func (t *farTunnel) Serve(fd int, waited time.Duration) {
	first := make([]byte, preface.Size)
	n, _, err := unix.Recvfrom(fd, first, unix.MSG_PEEK)
	if err == nil && n == len(first) {
		if p, verdict := t.pairs.keys.Load().Recognize(first); verdict == preface.Yes && p.Kind == preface.Join {
			until := time.Now().Add(identity.JoinTimeout - waited)
			t.pairs.running.Go(func() { t.pairs.join(fd, until) })
			return
		}
	}
	t.pairs.serve(fd, nil, t)
}

// join serves a host that answers an invitation, until a time at most.
func (p *pairs) join(fd int, until time.Time) {
	const refused = "an answer to an invitation was refused"
	file := os.NewFile(uintptr(fd), "join")
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		p.lines.Log(slog.LevelWarn, refused, nil, slog.Any("error", err))
		return
	}
	defer conn.Close()
	remote := conn.RemoteAddr()
	if remote == nil { // it was reset since it was accepted
		return
	}
	ctx, cancel := context.WithDeadlineCause(p.life, until, os.ErrDeadlineExceeded)
	defer cancel()
	first := make([]byte, preface.Size) // it has arrived: serve saw it
	if _, err := io.ReadFull(conn, first); err != nil {
		return
	}
	from := slog.String("from", remote.String())
	peer, err := p.keys.Load().ServeJoin(ctx, conn, first)
	if err != nil {
		p.lines.Log(slog.LevelWarn, refused, nil, from, slog.Any("error", err))
		return
	}
	p.lines.Log(slog.LevelInfo, "paired with a host that answered an invitation", []string{"peer"}, slog.String("peer", peer), from)
}

// Tunnel implements pair.Acceptor.
func (t *farTunnel) Tunnel() string { return t.name }

// Admits implements pair.Acceptor.
func (t *farTunnel) Admits(peer string) bool {
	return slices.ContainsFunc(t.admits.Load().peers, func(name string) bool { return identity.IsOf(peer, name) })
}

// Advertise implements pair.Acceptor.
func (t *farTunnel) Advertise() netip.AddrPort { return t.admits.Load().advertise }

// Removed implements pair.Acceptor.
func (t *farTunnel) Removed() bool { return t.removed.Load() }

// Trouble implements pair.Acceptor.
func (t *farTunnel) Trouble() (text string, known bool) {
	if now := t.trouble.Load(); now != nil {
		return *now, true
	}
	return "", false
}

// isTrouble are the reasons for which each client of a far tunnel is reset. One that is at a limit, or
// near it, still serves some.
var isTrouble = map[flow.Reason]bool{flow.ReasonDrained: true, flow.ReasonHopsDown: true, flow.ReasonHopsDrained: true, flow.ReasonPairDown: true}

// noteTroubles has near relays know what is decided of the far tunnels.
func (p *pairs) noteTroubles(tunnels []flow.Tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.current.far) == 0 {
		return
	}
	for i := range tunnels {
		far := p.current.far[tunnels[i].Name]
		if far == nil {
			continue
		}
		text := ""
		for _, problem := range tunnels[i].Usability.Problems {
			if isTrouble[problem.Reason] {
				text = problem.Detail
				break
			}
		}
		if was, known := far.Trouble(); !known || was != text {
			far.trouble.Store(&text)
		}
	}
}

// Clear implements pair.Acceptor.
func (t *farTunnel) Clear() bool { return t.admits.Load().clear }

// Dial implements pair.Acceptor.
func (t *farTunnel) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	o.Share = sharer(t.admits.Load().peers, o.Peer)
	return t.pairs.relay.OpenPaired(ctx, o)
}

// sharer is who has a share of a far tunnel for the flows of a host: the name in pair_from that admits
// it, so all hosts of a site have one together. Of one name all flows are its own, and clients share.
func sharer(names []string, host string) string {
	if len(names) == 1 {
		return ""
	}
	for _, name := range names {
		if identity.IsOf(host, name) {
			return name
		}
	}
	return host
}

var (
	_ relay.PairServer = (*farTunnel)(nil)
	_ pair.Acceptor    = (*farTunnel)(nil)
)
