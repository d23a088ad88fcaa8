package pair_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

// patience bounds each wait of these tests, for which a machine with 30 other processes and the race detector
// may take a hundred times as long as an idle one. One that hangs ends before the 10 minutes of go test.
const patience = 5 * time.Minute

func TestMain(m *testing.M) {
	nettest.AtOnce(8) // most of them wait for timers
	os.Exit(nettest.RunWithoutLeaks(m))
}

// keyring is an Identity in memory.
type keyring struct {
	mu        sync.Mutex
	private   ed25519.PrivateKey
	cert      tls.Certificate
	peers     map[string][]ed25519.PublicKey
	announced ed25519.PublicKey
	taken     []string
	more      ed25519.PublicKey            // that a rotation has left
	away      bool                         // this host's own keys are
	rotated   map[string]ed25519.PublicKey // successors of peers' keys
	ends      [2]time.Time                 // of certificates: this host's, and that of its peers
	renewals  byte                         // of this host's certificate
	refuses   bool                         // accepted connections
	looks     int                          // how often somebody has asked for ends
	restless  string                       // added to a peer's name or taken away after each answer; empty: none
}

func newKeyring(t testing.TB) *keyring {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	nettest.Must(t, err)
	template := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "longhaul"}}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, public, private)
	nettest.Must(t, err)
	return &keyring{private: private, cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private},
		peers: map[string][]ed25519.PublicKey{}}
}

func (k *keyring) public() ed25519.PublicKey { return k.private.Public().(ed25519.PublicKey) }

func (k *keyring) trust(name string, other *keyring) {
	k.peers[name] = append(k.peers[name], other.public())
}

func (k *keyring) forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.peers, name)
}

// rename gives a peer another name.
func (k *keyring) rename(was, now string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.peers[now] = k.peers[was]
	delete(k.peers, was)
}

func (k *keyring) config(check func(ed25519.PublicKey) bool) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{k.cert}, InsecureSkipVerify: true, ClientAuth: tls.RequireAnyClientCert,
		MinVersion: tls.VersionTLS13, NextProtos: []string{preface.ALPN}, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if key, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey); !ok || !check(key) {
				return errors.New("key unknown")
			}
			return nil
		}}
}

func (k *keyring) Recognize(first []byte) (preface.Preface, preface.Verdict) {
	return preface.Recognize(first, k.PublicKeys()...)
}

func (k *keyring) Proved(state tls.ConnectionState) (ed25519.PublicKey, error) {
	return state.PeerCertificates[0].PublicKey.(ed25519.PublicKey), nil
}

func (k *keyring) Admitted(_ []byte, state tls.ConnectionState) (ed25519.PublicKey, error) {
	return k.Proved(state)
}

func (k *keyring) PrefaceKey(peer string) (preface.Key, bool) {
	keys := k.PeerKeys(peer)
	if len(keys) == 0 {
		return preface.Key{}, false
	}
	return preface.HostKey(keys[0]), true
}

func (k *keyring) ServerTLS([]byte) *tls.Config {
	return k.config(func(key ed25519.PublicKey) bool {
		_, known := k.PeerOf(key)
		k.mu.Lock()
		defer k.mu.Unlock()
		return known && !k.refuses
	})
}

func (k *keyring) ClientTLS(peer string) (*tls.Config, error) {
	return k.config(func(key ed25519.PublicKey) bool {
		name, known := k.PeerOf(key)
		return known && identity.IsOf(name, peer)
	}), nil
}

func (k *keyring) Hosts(name string) (hosts []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for peer := range k.peers {
		if identity.IsOf(peer, name) {
			hosts = append(hosts, peer)
		}
	}
	slices.Sort(hosts)
	return hosts
}

func (k *keyring) PeerOf(key ed25519.PublicKey) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, keys := range k.peers {
		if slices.ContainsFunc(keys, func(known ed25519.PublicKey) bool { return known.Equal(key) }) {
			if next, had := strings.CutSuffix(name, k.restless); k.restless != "" {
				if delete(k.peers, name); !had {
					next += k.restless
				}
				k.peers[next] = keys
			}
			return name, true
		}
	}
	return "", false
}

func (k *keyring) PublicKeys() []ed25519.PublicKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away {
		return nil
	}
	keys := []ed25519.PublicKey{k.public()}
	if k.more != nil {
		keys = append(keys, k.more)
	}
	return keys
}

func (k *keyring) PeerKeys(peer string) []ed25519.PublicKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.peers[peer])
}

func (k *keyring) Successor(key ed25519.PublicKey) (ed25519.PublicKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if next := k.rotated[string(key)]; next != nil {
		return next, nil
	}
	return key, nil
}

func (k *keyring) Ends(ed25519.PublicKey) (own, peers time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looks++
	return k.ends[0], k.ends[1]
}

func (k *keyring) Shown(ed25519.PublicKey) [sha256.Size]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ends[0].IsZero() {
		return [sha256.Size]byte{}
	}
	return [sha256.Size]byte{1, k.renewals}
}

func (k *keyring) Announced(string) ed25519.PublicKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.announced
}

func (k *keyring) Taken(peer string, key ed25519.PublicKey) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.taken = append(k.taken, peer+string(key))
	k.announced = nil
	return nil
}

func (k *keyring) Learn(peer string, key ed25519.PublicKey) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.peers[peer] = append(k.peers[peer], key)
	return nil
}

// stand is a near and a far node with a listener each, and a path between them that
// can be cut.
type stand struct {
	t          testing.TB
	near, far  *pair.Node
	nearKeys   *keyring
	farKeys    *keyring
	link       *pair.Link
	way        pair.LinkOptions // of link
	path       *path
	clients    *net.TCPListener // of the near tunnel
	lanes      *net.TCPListener // of the far tunnel
	target     netip.AddrPort
	clear      bool
	tasks      sync.WaitGroup
	nearEnds   chan flow.End
	farEnds    chan flow.End
	host       string // address of its listeners
	mu         sync.Mutex
	admit      bool
	removed    atomic.Bool
	trouble    atomic.Value // a string
	opens      []flow.Open
	resetDrain time.Duration
	deadline   time.Duration
	others     bool                                               // clients have other hops
	early      func() []byte                                      // was read of each client; nil: nothing
	mark       func(*flow.Client)                                 // has more of each client; nil: nothing
	without    wire.Features                                      // that the next far process lacks
	flows      []*pair.Flow                                       // of the near relay
	acceptor   pair.Acceptor                                      // nil: the stand itself
	fate       func(uint64, pair.NearSession) (pair.Fate, []byte) // of the latest far process
	elsewhere  func(uint64, int, []byte) bool                     // of it
	log        *slog.Logger                                       // nil: the test's output
}

type standOption func(*stand, *pair.Options, *pair.LinkOptions)

var stands atomic.Uint32

// ownLoopback is an address for one stand: a port of 127.0.0.1 that a stand has given up may be another
// one's next, and what still dials the former would reach the latter.
func ownLoopback() string {
	n := stands.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%254, byte(n>>8), byte(n))
}

func newStand(t testing.TB, options ...standOption) *stand {
	s := &stand{t: t, admit: true, deadline: patience, nearEnds: make(chan flow.End, 10000), farEnds: make(chan flow.End, 10000),
		nearKeys: newKeyring(t), farKeys: newKeyring(t)}
	s.nearKeys.trust("far", s.farKeys)
	s.farKeys.trust("near", s.nearKeys)
	s.host = ownLoopback()
	s.clients, s.lanes = nettest.ListenTCP(t, s.host+":0"), nettest.ListenTCP(t, s.host+":0")
	s.path = newPath(t, s.lanes.Addr().String())
	var o pair.Options
	lo := pair.LinkOptions{Tunnel: "up", Peer: "far", Resume: patience, Warm: 2, Addresses: func(context.Context) ([]netip.AddrPort, error) {
		return []netip.AddrPort{s.path.address}, nil
	}}
	for _, option := range options {
		option(s, &o, &lo)
	}
	if s.acceptor == nil {
		s.acceptor = s
	}
	s.path.setSums(o.Without&wire.FeatureSums == 0)
	s.far = s.node(o, s.farKeys)
	s.near = s.node(o, s.nearKeys)
	s.link, s.way = s.near.Link(lo), lo
	s.accept(s.clients, func(fd int, from netip.AddrPort) {
		c := flow.Client{FD: fd, From: from, Listen: addrOf(s.clients), Deadline: s.deadline, Others: s.others, Legs: s.legs()}
		if s.early != nil {
			c.Early = s.early()
		}
		s.mu.Lock()
		link := s.link
		if s.mark != nil {
			s.mark(&c)
		}
		s.mu.Unlock()
		f := link.Carry(c, flow.OnEnd(func(e flow.End) { s.nearEnds <- e })).(*pair.Flow)
		s.mu.Lock()
		s.flows = append(s.flows, f)
		s.mu.Unlock()
	})
	s.accept(s.lanes, func(fd int, _ netip.AddrPort) {
		s.mu.Lock()
		n, a := s.far, s.acceptor
		s.mu.Unlock()
		n.Serve(fd, nil, a)
	})
	t.Cleanup(func() {
		s.near.Close()
		s.farNode().Close()
		s.clients.Close()
		s.lanes.Close()
		s.path.close()
		s.tasks.Wait()
		s.checkDials()
	})
	return s
}

// checkDials holds that no attempt for a connection counts any more once none runs: each that did would
// take the place of another for ever.
func (s *stand) checkDials() {
	s.t.Helper()
	for _, left := range s.link.Attempts() {
		s.t.Errorf("at the end count %s", left)
	}
}

func (s *stand) node(o pair.Options, k *keyring) *pair.Node {
	o.Identity, o.Release = k, "test"
	if o.Log = s.log; o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(s.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	n, err := pair.New(o)
	nettest.Must(s.t, err)
	return n
}

func (s *stand) farNode() *pair.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.far
}

func (s *stand) legs() *flow.LegOptions {
	return &flow.LegOptions{ResetDrain: s.resetDrain}
}

func addrOf(l *net.TCPListener) netip.AddrPort { return netip.MustParseAddrPort(l.Addr().String()) }

// accept gives away the descriptors of accepted connections.
func (s *stand) accept(l *net.TCPListener, take func(fd int, from netip.AddrPort)) {
	s.tasks.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			take(fdOf(c), netip.MustParseAddrPort(c.RemoteAddr().String()))
		}
	})
}

// fdOf takes the descriptor out of a connection.
func fdOf(c *net.TCPConn) (fd int) {
	raw, _ := c.SyscallConn()
	_ = raw.Control(func(d uintptr) { fd, _ = unix.FcntlInt(d, unix.F_DUPFD_CLOEXEC, 0) })
	c.Close()
	return fd
}

func (s *stand) Tunnel() string { return "down" }

func (s *stand) Admits(string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admit
}

func (s *stand) Removed() bool { return s.removed.Load() }

func (s *stand) Trouble() (text string, known bool) {
	text, known = s.trouble.Load().(string)
	return text, known
}

func (s *stand) Clear() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clear
}

// Advertise leaves the own address to the kernel, whose word no stand allows.
func (s *stand) Advertise() netip.AddrPort { return netip.AddrPort{} }

func (s *stand) setClear(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear = on
}

func (s *stand) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	s.mu.Lock()
	s.opens = append(s.opens, o)
	target := s.target
	s.mu.Unlock()
	var d net.Dialer
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", target.String())
	if err != nil {
		return flow.Target{}, s.refuse(flow.EndTargetRefused, err)
	}
	return flow.Target{FD: fdOf(c.(*net.TCPConn)), To: target, Legs: s.legs(), Owner: flow.OnEnd(s.ended)}, nil
}

// setMark has the clients to come have more.
func (s *stand) setMark(mark func(*flow.Client)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark = mark
}

func (s *stand) setTarget(a netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = a
}

// serve answers each connection of the target.
func (s *stand) serve(handle func(*net.TCPConn)) {
	l := nettest.ListenTCP(s.t, s.host+":0")
	s.setTarget(addrOf(l))
	s.t.Cleanup(func() { l.Close() })
	s.tasks.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			s.tasks.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
}

func echo(c *net.TCPConn) {
	_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // no splice, whose pipes stay
	_ = c.CloseWrite()
}

// begin has the target echo, and returns a client whose flow has carried some bytes to it and back.
func (s *stand) begin(first string) *net.TCPConn {
	s.t.Helper()
	s.serve(echo)
	c := s.dial()
	s.t.Cleanup(func() { c.Close() })
	s.roundTrip(c, first)
	return c
}

func (s *stand) dial() *net.TCPConn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.clients.Addr().String())
	nettest.Must(s.t, err)
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

// roundTrip sends bytes and reads them back.
func (s *stand) roundTrip(c net.Conn, b string) {
	s.t.Helper()
	_, err := io.WriteString(c, b)
	nettest.Must(s.t, err)
	got := make([]byte, len(b))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != b {
		s.t.Fatalf("got %q, %v, want %q; ends %+v %+v", got, err, b, receive(s.nearEnds), receive(s.farEnds))
	}
}

func (s *stand) ends(reason flow.EndReason) {
	s.t.Helper()
	for name, ends := range map[string]chan flow.End{"near": s.nearEnds, "far": s.farEnds} {
		select {
		case e := <-ends:
			if e.Reason != reason {
				s.t.Errorf("%s relay ended by %q (%v), want %q", name, e.Reason, e.Err, reason)
			}
		case <-time.After(patience):
			s.t.Fatalf("%s relay has no end of the flow: %s", name, s.dump())
		}
	}
}

// receive takes what is there.
func receive(ends chan flow.End) (all []flow.End) {
	for {
		select {
		case e := <-ends:
			all = append(all, e)
		case <-time.After(100 * time.Millisecond):
			return all
		}
	}
}

func (s *stand) dump() string {
	return fmt.Sprintf("near %+v\nfar %+v", s.near.State(), s.farNode().State())
}

// path forwards connections and breaks them on demand.
type path struct {
	t       testing.TB
	address netip.AddrPort
	l       *net.TCPListener
	to      string
	lead    func(preface.Kind) string // to, for each connection; nil: to
	tasks   sync.WaitGroup
	mu      sync.Mutex
	down    bool
	pace    time.Duration // longest pause of a connection between two pieces
	box     box           // on the way of connections that come; nil: none
	sums    bool          // frames of lanes in clear have sums
	delay   time.Duration // of each byte, each way, of connections to come
	pairs   map[*hop]bool
	refuses map[preface.Kind]bool
	keeps   map[preface.Kind]chan struct{} // connections of the kind that come wait until it is closed
}

// box is something on the path that does not pass on all that comes: before gives a writer to have in
// place of one towards the far relay, or the near one.
type box interface {
	before(h *hop, w io.Writer, toFar bool) io.Writer
}

type hop struct {
	a, b     *net.TCPConn
	kind     atomic.Int32  // that its preface says; 0: none has come
	instance atomic.Uint64 // for which it asks
	carried  atomic.Int64  // bytes to b
	stalled  atomic.Bool
	silent   atomic.Bool // by a box, in both directions
	sums     bool
	dead     bool                          // under the path\'s lock
	waits    bool                          // the same: the far relay is not to see it yet
	held     atomic.Pointer[chan struct{}] // until it is closed, nothing more goes to b
}

// toFar writes to the far relay.
type toFar struct{ *hop }

func (h toFar) Write(b []byte) (int, error) {
	if h.stalled.Load() {
		return len(b), nil
	}
	h.carried.Add(int64(len(b)))
	if held := h.held.Load(); held != nil {
		<-*held
	}
	return h.b.Write(b)
}

func newPath(t testing.TB, to string) *path { return newPathOf(t, to, nil) }

// newPathOf is newPath with a choice for each connection; it begins to accept at once.
func newPathOf(t testing.TB, to string, lead func(preface.Kind) string) *path {
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	p := &path{t: t, l: l, to: to, lead: lead, address: addrOf(l), pairs: map[*hop]bool{}, refuses: map[preface.Kind]bool{},
		keeps: map[preface.Kind]chan struct{}{}}
	p.tasks.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			p.tasks.Go(func() { p.carry(c) })
		}
	})
	return p
}

// carry dials the far relay once it knows by the preface what a connection is for.
func (p *path) carry(a *net.TCPConn) {
	defer a.Close()
	h := &hop{a: a}
	p.mu.Lock()
	p.pairs[h] = true
	h.sums = p.sums
	if p.down {
		h.reset()
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.pairs, h)
	}()
	const kindAt, instanceAt, nonceAt = 9, 16, 24 // docs/design/pairs-wire.md
	first := make([]byte, 4<<10)
	n, err := io.ReadAtLeast(a, first, nonceAt)
	if err != nil {
		return
	}
	h.instance.Store(binary.BigEndian.Uint64(first[instanceAt:]))
	if until := p.greeted(h, preface.Kind(first[kindAt])); until != nil {
		<-until
	}
	to := p.to
	if p.lead != nil {
		to = p.lead(preface.Kind(first[kindAt]))
	}
	b, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer b.Close()
	p.mu.Lock()
	if h.b = b.(*net.TCPConn); h.dead {
		h.reset()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	pace := p.paceNow()
	p.mu.Lock()
	box, delay := p.box, p.delay
	p.mu.Unlock()
	toB, toA := io.Writer(toFar{h}), io.Writer(onlyWriter{h.a})
	if box != nil {
		toB, toA = box.before(h, toB, true), box.before(h, toA, false)
	}
	both.Go(func() {
		late(toB, paced{io.MultiReader(bytes.NewReader(first[:n]), h.a), pace}, delay)
		_ = h.b.CloseWrite()
	})
	both.Go(func() { late(toA, paced{h.b, pace}, delay); _ = h.a.CloseWrite() })
	both.Wait()
}

// late copies each piece after a delay, as a long wire does.
func late(w io.Writer, r io.Reader, delay time.Duration) {
	if delay == 0 {
		_, _ = io.Copy(w, r)
		return
	}
	type piece struct {
		b   []byte
		due time.Time
	}
	wire, done := make(chan piece, 1024), make(chan struct{})
	go func() {
		defer close(done)
		var err error
		for p := range wire {
			if time.Sleep(time.Until(p.due)); err == nil {
				_, err = w.Write(p.b)
			}
		}
	}()
	for buf := make([]byte, 64<<10); ; {
		n, err := r.Read(buf)
		if n > 0 {
			wire <- piece{bytes.Clone(buf[:n]), time.Now().Add(delay)}
		}
		if err != nil {
			break
		}
	}
	close(wire)
	<-done
}

// hold keeps back what the connections that are there carry to the far relay, until release.
func (p *path) hold() (release func()) {
	held := make(chan struct{})
	release = sync.OnceFunc(func() { close(held) })
	p.mu.Lock()
	defer p.mu.Unlock()
	for h := range p.pairs {
		h.held.Store(&held)
	}
	p.t.Cleanup(release) // before the path is closed
	return release
}

// No splice, whose pipes outlive a test.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// paced is a reader that pauses now and then, each connection for as long as it likes.
type paced struct {
	io.Reader
	longest time.Duration
}

func (r paced) Read(b []byte) (int, error) {
	if r.longest > 0 {
		time.Sleep(mathrand.N(r.longest))
	}
	return r.Reader.Read(b)
}

func (p *path) setPace(longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace = longest
}

func (p *path) setSums(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sums = on
}

func (p *path) setDelay(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

func (p *path) paceNow() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pace == 0 {
		return 0
	}
	return mathrand.N(p.pace)
}

// stallBusiest has the connection that has carried most pass nothing more on, and take all that
// comes: nobody but the relays can know.
func (p *path) stallBusiest() {
	p.busiest().stalled.Store(true)
}

// cutOne resets one of the connections.
func (p *path) cutOne() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for h := range p.pairs {
		h.reset()
		return
	}
}

func (h *hop) reset() {
	h.dead = true
	for _, c := range []*net.TCPConn{h.a, h.b} {
		if c != nil {
			_ = c.SetLinger(0)
			c.Close()
		}
	}
}

// end ends the connections that are there in good order, as a proxy does.
func (p *path) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for h := range p.pairs {
		for _, c := range []*net.TCPConn{h.a, h.b} {
			if c != nil {
				_ = c.CloseWrite()
			}
		}
	}
}

// cut resets the connections that are there; down also those that come.
func (p *path) cut(down bool) {
	p.mu.Lock()
	p.down = down
	for h := range p.pairs {
		h.reset()
	}
	p.mu.Unlock()
}

func (p *path) close() {
	p.l.Close()
	p.cut(true)
	p.tasks.Wait()
}

// pattern is n bytes that show where they are from.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>16) ^ byte(i>>8) ^ byte(i) ^ seed
	}
	return b
}

// readCounting reads until the end, at most most bytes at once, and counts them as they come.
func readCounting(r io.Reader, most int, received *atomic.Int64) (got []byte, err error) {
	buf := make([]byte, most)
	for {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		received.Add(int64(n))
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}

func checkEqual(t testing.TB, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes differ from the %d sent", len(got), len(want))
	}
}

// flow is the near relay's flow of the client that came so many others after the first.
func (s *stand) flow(i int) (f *pair.Flow) {
	s.t.Helper()
	nettest.Eventually(s.t, patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.flows) > i {
			f = s.flows[i]
		}
		return f != nil
	}, s.dump)
	return f
}

// dialedFor is the far relay's flow for which a target was dialed after so many others.
func (s *stand) dialedFor(i int) (f *pair.Flow) {
	s.t.Helper()
	nettest.Eventually(s.t, patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.opens) > i {
			f = s.opens[i].Carried.(*pair.Flow)
		}
		return f != nil
	}, s.dump)
	return f
}

// session is the near relay's state of the session that takes new flows.
func (s *stand) session() flow.Session {
	all := s.near.State().Sessions
	return all[len(all)-1]
}

// sessionsOf are the far relay's sessions with a peer.
func (s *stand) sessionsOf(peer string) (all []flow.Session) {
	return slices.DeleteFunc(s.farNode().State().Sessions, func(one flow.Session) bool { return one.Peer != peer })
}

// change has the link go on with other options.
func (s *stand) change(to func(*pair.LinkOptions)) {
	to(&s.way)
	s.link.Update(s.way)
}

func (s *stand) ended(e flow.End) { s.farEnds <- e }

// refuse is a refusal of the target, which ends the flow as well.
func (s *stand) refuse(reason flow.EndReason, err error) error {
	s.ended(flow.End{Reason: reason, Err: err})
	return &flow.Refusal{Reason: reason, Err: err}
}

// greeted treats a connection as the path is to treat those of its kind. The far relay is not to see it
// until the channel is closed; nil: at once.
func (p *path) greeted(h *hop, kind preface.Kind) (until chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.kind.Store(int32(kind))
	if p.refuses[kind] {
		h.reset()
	}
	until = p.keeps[kind]
	h.waits = until != nil
	return until
}

// of are the connections of a kind that are there.
func (p *path) of(kind preface.Kind) (all []*hop) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for h := range p.pairs {
		if h.kind.Load() == int32(kind) {
			all = append(all, h)
		}
	}
	return all
}

// keep has connections of a kind that come wait in front of the far relay, until release.
func (p *path) keep(kind preface.Kind) (release func()) {
	until := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keeps[kind] = until
	release = sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(until)
		delete(p.keeps, kind)
	})
	p.t.Cleanup(release) // before the path is closed
	return release
}

// kept are the connections of a kind that wait, and that the near relay has not given up.
func (p *path) kept(kind preface.Kind) []*hop {
	return slices.DeleteFunc(p.of(kind), func(h *hop) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !h.waits || h.dead || !h.wanted()
	})
}

// keepNoMore has connections of a kind that come pass, and keeps those that wait.
func (p *path) keepNoMore(kind preface.Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keeps, kind)
}

// refuse resets the connections of a kind that do not wait; on: also those that come, until it is called
// again.
func (p *path) refuse(kind preface.Kind, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses[kind] = on
	for h := range p.pairs {
		if h.kind.Load() == int32(kind) && !h.waits {
			h.reset()
		}
	}
}

// deafen makes black holes of the present connections of a kind: nobody acknowledges what either relay
// sends, and no relay gets an error.
func (p *path) deafen(kinds ...preface.Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for h := range p.pairs {
		if slices.Contains(kinds, preface.Kind(h.kind.Load())) && h.b != nil {
			deafen(p.t, h.a)
			deafen(p.t, h.b)
		}
	}
}

// busiest is the connection that has carried most.
func (p *path) busiest() (most *hop) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for h := range p.pairs {
		if most == nil || h.carried.Load() > most.carried.Load() {
			most = h
		}
	}
	return most
}

// wanted reports that the near relay has not given the connection up.
func (h *hop) wanted() (yes bool) {
	raw, _ := h.a.SyscallConn()
	_ = raw.Control(func(fd uintptr) {
		look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(look, 0)
		yes = n == 0 && err == nil
	})
	return yes
}
