package pair_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

// siteHost is a far host of a site, with an address of its own.
type siteHost struct {
	*stand // for its targets
	node   *pair.Node
	keys   *keyring
	own    *path
	l      *net.TCPListener
	tells  netip.AddrPort
	dialed atomic.Int64
}

// Advertise tells the own address: on loopback the kernel's would be another one.
func (h *siteHost) Advertise() netip.AddrPort { return h.tells }

func (h *siteHost) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	h.dialed.Add(1)
	return h.stand.Dial(ctx, o)
}

// die has nothing answer at the host any more, as if its process were killed.
func (h *siteHost) die() {
	h.own.l.Close()
	h.own.cut(true)
}

// serveOn starts a process of the host.
func (h *siteHost) serveOn(o pair.Options) {
	h.node = h.stand.node(o, h.keys)
	node := h.node
	h.accept(h.l, func(fd int, _ netip.AddrPort) { node.Serve(fd, nil, h) })
}

// site is a far site with several hosts behind one address, at which a box leads each connection to one of
// them.
type site struct {
	*stand
	hosts []*siteHost
	box   *path
	mu    sync.Mutex
	next  func(n int) int // which host gets a connection, the first of which has number 0
	count map[preface.Kind]int
}

func newSite(t *testing.T, hosts int, next func(int) int, options ...standOption) *site {
	return newSiteOf(t, hosts, next, nil, options...)
}

// newSiteOf is newSite with hosts that are changed before they begin.
func newSiteOf(t *testing.T, hosts int, next func(int) int, change func(*siteHost), options ...standOption) *site {
	st := &site{next: next, count: map[preface.Kind]int{}}
	st.box = newPathOf(t, "", func(kind preface.Kind) string {
		st.mu.Lock()
		defer st.mu.Unlock()
		n := st.count[preface.Control] + st.count[preface.Lane]
		st.count[kind]++
		return st.hosts[st.next(n)].own.address.String()
	})
	add := func(s *stand, o *pair.Options, l *pair.LinkOptions) {
		st.stand = s
		l.Peer, l.LanesTo = "site", []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		l.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{st.box.address}, nil }
		for i := range hosts {
			h := &siteHost{stand: s, keys: newKeyring(t), l: nettest.ListenTCP(t, ownLoopback()+":0")}
			s.nearKeys.trust(fmt.Sprintf("site/b%d", i), h.keys)
			h.keys.trust("near", s.nearKeys)
			h.own = newPath(t, h.l.Addr().String())
			h.tells = h.own.address
			if change != nil {
				change(h)
			}
			h.serveOn(*o)
			st.mu.Lock()
			st.hosts = append(st.hosts, h)
			st.mu.Unlock()
		}
	}
	newStand(t, append([]standOption{add}, options...)...)
	t.Cleanup(func() { // before the stand waits for what serves, and for the targets
		for _, h := range st.hosts {
			h.node.Close()
			h.own.close()
			h.l.Close()
		}
		st.box.close()
	})
	return st
}

func (st *site) lead(next func(int) int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.next = next
}

func (st *site) carried(kind preface.Kind) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.count[kind]
}

func (st *site) awaitUp() {
	st.t.Helper()
	nettest.Eventually(st.t, patience, func() bool { return st.session().Up }, st.dump)
}

// awaitHost waits until a host takes the new flows of a link.
func (st *site) awaitHost(l *pair.Link, host string) {
	st.t.Helper()
	nettest.Eventually(st.t, patience, func() bool {
		t := l.Taking()
		return t.Host == host && t.Takes
	}, st.dump)
}

// served begins a flow that is served.
func (st *site) served() *net.TCPConn {
	st.t.Helper()
	st.serve(echo)
	st.awaitUp()
	c := st.dial()
	st.t.Cleanup(func() { c.Close() })
	st.roundTrip(c, "hello")
	return c
}

func inTurn(hosts int) func(int) int { return func(n int) int { return n % hosts } }

func always(host int) func(int) int { return func(int) int { return host } }

// TestBalancer holds that a box which leads each connection to another host of a site sees no lane, so
// that none comes to the wrong one.
func TestBalancer(t *testing.T) {
	t.Parallel()
	for _, hosts := range []int{1, 2, 5} {
		t.Run(fmt.Sprintf("%d hosts", hosts), func(t *testing.T) {
			t.Parallel()
			st := newSite(t, hosts, inTurn(hosts), striped(4))
			st.serve(echo)
			st.awaitUp()
			const flows = 30
			var all sync.WaitGroup
			for i := range flows {
				all.Go(func() {
					c := st.dial()
					defer c.Close()
					st.roundTrip(c, string(pattern(64<<10, byte(i))))
				})
				if i%10 == 9 {
					st.box.cut(false) // the control connection
				}
			}
			all.Wait()
			for range flows {
				if e := <-st.nearEnds; e.Reason != flow.EndClean {
					t.Errorf("a flow ended by %q (%v)", e.Reason, e.Err)
				}
			}
			if n := st.carried(preface.Lane); n > 0 {
				t.Errorf("%d lanes went to the shared address", n)
			}
			for _, s := range st.near.State().Sessions {
				if !s.Own.IsValid() && s.Remote.AddrPort == st.box.address || s.LaneError != "" || !strings.HasPrefix(s.Peer, "site/b") {
					t.Errorf("session %+v", s)
				}
			}
		})
	}
}

// TestOwnAddress holds where lanes go: to the own address of the far process if that is allowed and
// answers, and else where the control connection goes.
func TestOwnAddress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options  standOption
		dead     bool
		used     bool
		told     bool
		mentions string // in the session's notes
	}{
		"allowed": {options: func(*stand, *pair.Options, *pair.LinkOptions) {}, told: true, used: true},
		"not allowed": {options: func(_ *stand, _ *pair.Options, l *pair.LinkOptions) {
			l.LanesTo = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		}, told: true, mentions: "such as lanes_to: [127.0.0.1/32]"},
		"dead":  {options: func(*stand, *pair.Options, *pair.LinkOptions) {}, dead: true, told: true, mentions: "does not answer"},
		"older": {options: func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.Without |= wire.FeatureAddress }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newSiteOf(t, 2, always(0), func(h *siteHost) {
				if c.dead {
					l := nettest.ListenTCP(t, "127.0.0.1:0")
					h.tells = addrOf(l)
					l.Close()
				}
			}, c.options)
			host := st.hosts[0]
			st.serve(echo)
			st.awaitUp()
			if c.dead {
				nettest.Eventually(t, patience, func() bool { return st.session().OwnError != "" }, st.dump)
			}
			client := st.dial()
			defer client.Close()
			st.roundTrip(client, "hello")
			s := st.session()
			if s.Own.IsValid() != c.told || s.OwnUsed != c.used || c.told && s.Own.AddrPort != host.tells {
				t.Errorf("the session is %+v", s)
			}
			if notes := strings.Join(s.Notes(), "; "); !strings.Contains(notes, c.mentions) || c.mentions == "" && strings.Contains(notes, "lanes") {
				t.Errorf("notes are %q", notes)
			}
			if n := st.carried(preface.Lane); c.used && n > 0 || !c.used && !c.dead && n == 0 {
				t.Errorf("%d lanes went to the shared address", n)
			}
		})
	}
}

// TestHostDies holds that another host of a site takes new flows once one has died, and that those of the
// dead one end as soon as its own address says that it is dead, or that another process is there.
func TestHostDies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		again bool
		want  flow.EndReason
	}{"dies": {false, flow.EndPeerRefused}, "begins again": {true, flow.EndPeerRestarted}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newSite(t, 2, always(0), func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.RefusedFor = time.Second })
			st.served()
			if st.session().Peer != "site/b0" || st.link.Taking().Host != "site/b0" || st.link.Taking().Peer != "site" {
				t.Errorf("the session is with %q, %+v", st.session().Peer, st.link.Taking())
			}
			dead := st.hosts[0]
			st.lead(always(1))
			if c.again {
				dead.own.cut(true)
			} else {
				dead.die()
			}
			st.box.cut(false)
			st.awaitHost(st.link, "site/b1")
			second := st.dial()
			defer second.Close()
			st.roundTrip(second, "hello")
			if st.hosts[0].dialed.Load() != 1 || st.hosts[1].dialed.Load() != 1 {
				t.Errorf("%d and %d flows were dialed for", st.hosts[0].dialed.Load(), st.hosts[1].dialed.Load())
			}
			if c.again {
				dead.l.Close()
				dead.node.Close()
				dead.l = nettest.ListenTCP(t, dead.own.to)
				dead.serveOn(pair.Options{})
				dead.own.cut(false)
			}
			if e := <-st.nearEnds; e.Reason != c.want {
				t.Errorf("the dead host's flow ended by %q (%v), want %q", e.Reason, e.Err, c.want)
			}
			st.roundTrip(second, "still here")
		})
	}
}

// TestWaitingFlowsGoAlong holds that a client that came before its session's host was found dead is served by
// another one.
func TestWaitingFlowsGoAlong(t *testing.T) {
	t.Parallel()
	st := newSite(t, 2, always(0))
	st.serve(echo)
	st.awaitUp()
	st.hosts[0].own.cut(true)
	st.box.cut(true)
	nettest.Eventually(t, patience, func() bool { // an OPEN on a lane that is left would bind the flow to the host
		return !st.session().Up && st.session().LanesWarm == 0
	}, st.dump)
	c := st.dial()
	defer c.Close()
	nettest.Eventually(t, patience, func() bool { return st.session().FlowsResuming == 1 }, st.dump)
	st.lead(always(1))
	st.box.cut(false)
	st.roundTrip(c, "hello")
	if st.hosts[1].dialed.Load() != 1 {
		t.Errorf("another host has dialed for %d flows", st.hosts[1].dialed.Load())
	}
}

// TestRename holds that peers that get other names keep their sessions and flows.
func TestRename(t *testing.T) {
	t.Parallel()
	s, c := greeted(t)
	nettest.Eventually(t, patience, func() bool { return s.session().Up }, s.dump)
	before := s.session()
	s.nearKeys.rename("far", "far/b1")
	s.farKeys.rename("near", "near/a1")
	s.path.cut(false)
	s.roundTrip(c, "still here")
	nettest.Eventually(t, patience, func() bool { return s.session().Up }, s.dump)
	if now := s.session(); now.Session != before.Session || now.Peer != "far/b1" || len(s.near.State().Sessions) != 1 {
		t.Errorf("the session is %+v", s.near.State().Sessions)
	}
	if far := s.far.State().Sessions; len(far) != 1 || far[0].Peer != "near/a1" || far[0].FlowsTotal != 1 {
		t.Errorf("the far relay has %+v", far)
	}
	nettest.Must(t, c.CloseWrite())
	s.ends(flow.EndClean)
}

// TestRenameInALook holds that a session stays if its host gets another name between two questions of one look
// at the list of peers, at either relay.
func TestRenameInALook(t *testing.T) {
	t.Parallel()
	for end := range 2 {
		t.Run([]string{"near", "far"}[end], func(t *testing.T) {
			t.Parallel()
			s, c := greeted(t)
			nettest.Eventually(t, patience, func() bool { return s.session().Up }, s.dump)
			keys := []*keyring{s.nearKeys, s.farKeys}[end]
			set := func(restless string) (looks int) {
				keys.mu.Lock()
				defer keys.mu.Unlock()
				keys.restless = restless
				return keys.looks
			}
			looks := set("/b1")
			nettest.Eventually(t, patience, func() bool { return len(s.nearEnds) > 0 || set("/b1") > looks+3 }, s.dump)
			set("")
			s.roundTrip(c, "still here")
		})
	}
}

// TestFirewallRefuses holds that refused connections end no flow whose lane is still acknowledged, though
// nothing is said on it, and end it soon once the lane is gone.
func TestFirewallRefuses(t *testing.T) {
	t.Parallel()
	const refused = 3 * time.Second // the kernel asks each second
	s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.RefusedFor = refused })
	c := s.begin("hello")
	s.path.l.Close()
	s.path.refuse(preface.Control, true)
	nettest.Eventually(t, patience, func() bool { st := s.session(); return !st.Up && time.Since(st.Since) > 3*refused }, s.dump)
	s.roundTrip(c, "still here")
	s.path.cut(true)
	select {
	case e := <-s.nearEnds:
		if e.Reason != flow.EndPeerRefused || !strings.Contains(e.Err.Error(), "refused all connections") {
			t.Errorf("the flow ended by %q (%v)", e.Reason, e.Err)
		}
	case <-time.After(patience):
		t.Errorf("the flow goes on: %s", s.dump())
	}
}

// TestHopsOfOneProcess holds that two hops of a near tunnel may lead to one far host: its relay takes them
// neither for twins, nor one of them for the other's successor.
func TestHopsOfOneProcess(t *testing.T) {
	t.Parallel()
	s := newStand(t, withOrigin)
	c := s.begin("hello")
	first := s.far.State().Sessions[0].Session
	o := s.way
	o.Tunnel = "other" // else the first hop would go where this one has met its host
	direct(s, nil, &o)
	s.near.Link(o)
	s.path.cut(true)
	nettest.Eventually(t, patience, func() bool { // longer than ReplacedAfter, and looked at since
		all := s.far.State().Sessions
		away, other := false, false
		for _, one := range all {
			away = away || one.Session == first && !one.Up && time.Since(one.Since) > 4*time.Second
			other = other || one.Session != first && one.Up && time.Since(one.Since) > 4*time.Second && !one.Twin
		}
		return away && other
	}, s.dump)
	s.path.cut(false)
	s.roundTrip(c, "still here")
}

// TestHostRemoved holds that a host which is taken out of the near relay's list loses its session and flows,
// also one that has got another name and another key before, and that another host of the site takes over.
func TestHostRemoved(t *testing.T) {
	t.Parallel()
	st := newSite(t, 2, always(0))
	st.served()
	was := st.session().Session
	st.nearKeys.rename("site/b0", "site/old")
	nettest.Eventually(t, patience, func() bool { return st.session().Peer == "site/old" }, st.dump)
	st.lead(always(1))
	st.nearKeys.forget("site/old")
	if e := <-st.nearEnds; e.Reason != flow.EndDenied {
		t.Errorf("the flow ended by %q (%v)", e.Reason, e.Err)
	}
	st.awaitHost(st.link, "site/b1")
	other := st.dial()
	defer other.Close()
	st.roundTrip(other, "hello")
	nettest.Eventually(t, patience, func() bool {
		for _, s := range st.near.State().Sessions {
			if s.Session == was {
				return false
			}
		}
		return true
	}, st.dump)
	if st.hosts[0].dialed.Load() != 1 || st.hosts[1].dialed.Load() != 1 {
		t.Errorf("%d and %d flows were dialed for", st.hosts[0].dialed.Load(), st.hosts[1].dialed.Load())
	}
}

// TestKeyReplaced holds that a session stays when its host's key is another one in the list by a rotation, and
// that it goes on with the name that the host gets then. A key that no rotation has replaced is another host's:
// the session ends, at both relays for this reason.
func TestKeyReplaced(t *testing.T) {
	t.Parallel()
	s, c := greeted(t)
	was := s.session().Session
	s.nearKeys.mu.Lock()
	key := newKeyring(t).public()
	s.nearKeys.rotated = map[string]ed25519.PublicKey{string(s.farKeys.public()): key}
	s.nearKeys.peers["far"] = []ed25519.PublicKey{key}
	s.nearKeys.mu.Unlock()
	nettest.Eventually(t, patience, func() bool { return s.link.HostKey().Equal(key) }, s.dump)
	s.nearKeys.rename("far", "far/b1")
	nettest.Eventually(t, patience, func() bool { return s.session().Peer == "far/b1" }, s.dump)
	s.roundTrip(c, "still here")
	if s.session().Session != was {
		t.Errorf("the session is %+v", s.session())
	}
	s.nearKeys.mu.Lock()
	s.nearKeys.peers["far/b1"] = []ed25519.PublicKey{newKeyring(t).public()}
	s.nearKeys.mu.Unlock()
	if e := <-s.nearEnds; e.Reason != flow.EndDenied || e.ByPeer {
		t.Errorf("the near flow ended by %q (%v)", e.Reason, e.Err)
	}
	if e := <-s.farEnds; e.Reason != flow.EndDenied || !e.ByPeer {
		t.Errorf("the far flow ended by %q (%v)", e.Reason, e.Err)
	}
}

// TestNearKeyReplaced holds the same for the near relay's key in the far one's list.
func TestNearKeyReplaced(t *testing.T) {
	t.Parallel()
	s, _ := greeted(t)
	s.farKeys.mu.Lock()
	s.farKeys.peers["near"] = []ed25519.PublicKey{newKeyring(t).public()}
	s.farKeys.mu.Unlock()
	if e := <-s.nearEnds; e.Reason != flow.EndDenied || !e.ByPeer {
		t.Errorf("the near flow ended by %q (%v)", e.Reason, e.Err)
	}
	if e := <-s.farEnds; e.Reason != flow.EndDenied || e.ByPeer {
		t.Errorf("the far flow ended by %q (%v)", e.Reason, e.Err)
	}
}

// TestHostLeavesSite holds that a host that gets a name which the tunnel does not mean keeps its flows, and gets
// no new ones.
func TestHostLeavesSite(t *testing.T) {
	t.Parallel()
	st := newSite(t, 2, always(0))
	c := st.served()
	st.lead(always(1))
	st.nearKeys.rename("site/b0", "elsewhere")
	st.awaitHost(st.link, "site/b1")
	st.roundTrip(c, "still here")
	if len(st.near.State().Sessions) != 2 {
		t.Errorf("the sessions are %+v", st.near.State().Sessions)
	}
}

// TestAddressOfAnotherHost holds that a tunnel that names a host says so if another one of the site is at its
// address.
func TestAddressOfAnotherHost(t *testing.T) {
	t.Parallel()
	st := newSite(t, 3, always(2), func(_ *stand, _ *pair.Options, l *pair.LinkOptions) { l.Peer = "site/b0" })
	nettest.Eventually(t, patience, func() bool { return st.session().Problem == flow.PairKeyUnknown }, st.dump)
	if s := st.session(); !strings.HasSuffix(s.Error, ": site/b2") || !strings.HasSuffix(s.Remedy(), "or write pair: site") {
		t.Errorf("the error is %q, the remedy %q", s.Error, s.Remedy())
	}
	for _, h := range st.hosts {
		if all := h.node.State().Sessions; len(all) > 0 {
			t.Errorf("a host has %+v", all)
		}
	}
	st.lead(always(0))
	st.awaitUp()
}

// TestHopGoesElsewhere holds that a hop which led to the host of another one is found to lead to a host of its
// own by now.
func TestHopGoesElsewhere(t *testing.T) {
	t.Parallel()
	st := newSite(t, 2, always(0))
	st.awaitUp()
	var at atomic.Pointer[netip.AddrPort]
	at.Store(&st.hosts[0].own.address)
	o := st.way
	o.Peer, o.Hop = "site", "second"
	o.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{*at.Load()}, nil }
	second := st.near.Link(o)
	defer second.Close()
	nettest.Eventually(t, patience, func() bool { return second.Taking().Host == "site/b0" }, st.dump)
	at.Store(&st.hosts[1].own.address)
	st.awaitHost(second, "site/b1")
	if first := st.link.Taking(); first.Host != "site/b0" || !first.Takes {
		t.Errorf("the first hop is %+v", first)
	}
}

// TestHopBeforeGoesElsewhere is TestHopGoesElsewhere for hops that a reload has put in another order: the one
// that is not used is the older link.
func TestHopBeforeGoesElsewhere(t *testing.T) {
	t.Parallel()
	st := newSite(t, 2, always(0))
	st.awaitUp()
	o := st.way
	o.Peer, o.Hop, o.Place = "site", "first", 1
	first := st.near.Link(o)
	defer first.Close()
	nettest.Eventually(t, patience, func() bool { return first.Taking().Host == "site/b0" }, st.dump)
	o.Place, o.Hop = 2, "second"
	o.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{st.hosts[1].own.address}, nil }
	st.link.Update(o)
	st.awaitHost(st.link, "site/b1")
	if one := first.Taking(); one.Host != "site/b0" || !one.Takes {
		t.Errorf("the first hop is %+v", one)
	}
}

// TestKeysAway holds that flows go on while the directory of keys is away, with this host's own: nobody was
// taken out of the list.
func TestKeysAway(t *testing.T) {
	t.Parallel()
	s, c := greeted(t)
	key := s.link.HostKey()
	s.nearKeys.mu.Lock()
	was := s.nearKeys.peers
	s.nearKeys.peers, s.nearKeys.away = map[string][]ed25519.PublicKey{}, true
	looks := s.nearKeys.looks
	s.nearKeys.mu.Unlock()
	nettest.Eventually(t, patience, func() bool {
		s.nearKeys.mu.Lock()
		defer s.nearKeys.mu.Unlock()
		return s.nearKeys.looks > looks+3
	}, s.dump)
	s.roundTrip(c, "still here")
	s.nearKeys.mu.Lock()
	s.nearKeys.peers, s.nearKeys.away = was, false
	s.nearKeys.mu.Unlock()
	if s.roundTrip(c, "and now"); !s.link.HostKey().Equal(key) {
		t.Errorf("the session is %+v", s.session())
	}
	s.nearKeys.forget("far")
	if e := <-s.nearEnds; e.Reason != flow.EndDenied {
		t.Errorf("the flow ended by %q (%v)", e.Reason, e.Err)
	}
}

// TestRevokedTwice holds that a flow which begins while its peer is admitted for a moment gets the reason for its
// end, as those before it.
func TestRevokedTwice(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	for range 3 {
		c := s.dial()
		defer c.Close()
		s.roundTrip(c, "hello")
		s.farKeys.forget("near")
		for _, ends := range []struct {
			of     chan flow.End
			byPeer bool
		}{{s.nearEnds, true}, {s.farEnds, false}} {
			if e := <-ends.of; e.Reason != flow.EndDenied || e.ByPeer != ends.byPeer {
				t.Fatalf("the flow ended by %q (%v), by the peer: %v", e.Reason, e.Err, e.ByPeer)
			}
		}
		s.farKeys.mu.Lock()
		s.farKeys.trust("near", s.nearKeys)
		s.farKeys.mu.Unlock()
	}
}
