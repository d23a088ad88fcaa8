package names

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay/monotime"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// nameServer resolves names with answers set by the test.
type nameServer struct {
	mu    sync.Mutex
	asked int
	delay time.Duration
	found Answer
	err   error
}

func (s *nameServer) resolve(ctx context.Context, _ string) (Answer, error) {
	s.mu.Lock()
	s.asked++
	delay, found, err := s.delay, s.found, s.err
	s.mu.Unlock()
	select {
	case <-time.After(delay):
		return found, err
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

func (s *nameServer) set(change func(*nameServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *nameServer) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

var (
	oldAddr = netip.MustParseAddr("192.0.2.1")
	newAddr = netip.MustParseAddr("192.0.2.2")
)

// TestNamesLiveByTheirTTL covers a name's life on synctest's clock.
func TestNamesLiveByTheirTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &nameServer{found: Answer{Addrs: []netip.Addr{oldAddr}, TTL: 100 * time.Second}}
		n := New(s.resolve)
		defer n.Close()
		expect := func(want netip.Addr, questions int) {
			t.Helper()
			began := time.Now()
			addrs, err := n.Wait(t.Context(), "x")
			if err != nil || len(addrs) != 1 || addrs[0] != want {
				t.Fatalf("the addresses are %v (%v), want %v", addrs, err, want)
			}
			if waited := time.Since(began); waited > staleAnswerDelay {
				t.Errorf("it took %v", waited)
			}
			synctest.Wait()
			if got := s.questions(); got != questions {
				t.Errorf("%d questions, want %d", got, questions)
			}
		}
		expect(oldAddr, 1)
		time.Sleep(79 * time.Second)
		expect(oldAddr, 1)
		// In its last fifth it is resolved again and served meanwhile.
		s.set(func(s *nameServer) { s.found.Addrs = []netip.Addr{newAddr} })
		time.Sleep(2 * time.Second)
		expect(oldAddr, 2)
		expect(newAddr, 2)
		// An unused name expires, and the next caller waits for an answer.
		time.Sleep(200 * time.Second)
		s.set(func(s *nameServer) { s.found.Addrs, s.delay = []netip.Addr{oldAddr}, time.Second })
		expect(oldAddr, 3)
		// No server answers: the old answer serves.
		time.Sleep(200 * time.Second)
		s.set(func(s *nameServer) { s.err = errors.New("no server") })
		expect(oldAddr, 4)
		expect(oldAddr, 4) // without a query each time
		time.Sleep(2 * time.Second)
		// The server hangs: a caller waits only a short time.
		s.set(func(s *nameServer) { s.delay = time.Hour })
		expect(oldAddr, 5)
		// Until it is too old.
		s.set(func(s *nameServer) { s.delay = 0 })
		time.Sleep(2*time.Hour + maxStale)
		if addrs, err := n.Wait(t.Context(), "x"); err == nil {
			t.Errorf("a day later the addresses are still %v", addrs)
		}
	})
}

// TestNameIsGone: the answer that a name does not exist drops its addresses at
// once; an expired answer serves only while no server answers. It failed at
// 1818be3.
func TestNameIsGone(t *testing.T) {
	for name, answer := range map[string]error{
		"no such name": &net.DNSError{Err: "no such host", IsNotFound: true},
		"no address":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &nameServer{found: Answer{Addrs: []netip.Addr{oldAddr}, TTL: 10 * time.Second}}
				n := New(s.resolve)
				defer n.Close()
				if _, err := n.Wait(t.Context(), "x"); err != nil {
					t.Fatal(err)
				}
				s.set(func(s *nameServer) { s.found, s.err = Answer{}, answer })
				time.Sleep(9 * time.Second) // it is resolved again before it expires
				_, _ = n.Wait(t.Context(), "x")
				synctest.Wait()
				if addrs, err := n.Wait(t.Context(), "x"); err == nil {
					t.Fatalf("a name that is gone has the addresses %v", addrs)
				}
				s.set(func(s *nameServer) { s.err = errors.New("no server") })
				time.Sleep(10 * time.Second)
				if addrs, err := n.Wait(t.Context(), "x"); err == nil {
					t.Fatalf("a name that was gone when nobody answered any more has the addresses %v", addrs)
				}
			})
		})
	}
}

// TestTTLBounds: answers without a TTL are kept for a default time, and none
// for ever.
func TestTTLBounds(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		0: defaultTTL, time.Millisecond: minTTL, time.Minute: time.Minute, 48 * time.Hour: maxTTL,
	} {
		if a := fresh(Answer{TTL: ttl}, 0); a.until != want || a.refresh >= a.until {
			t.Errorf("a TTL of %v keeps it %v, asks again after %v", ttl, a.until, a.refresh)
		}
	}
}

// TestSystemResolver resolves with a test name server, over UDP and, for large
// answers, over TCP.
func TestSystemResolver(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	const file = "/etc/resolv.conf"
	own := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(own, []byte("nameserver 127.0.0.1\noptions timeout:10 attempts:3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(own, file, "", unix.MS_BIND, ""); err != nil { // the sandbox has private mounts
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	udp, err := net.ListenPacket("udp4", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	tcp, err := net.Listen("tcp4", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	var overTCP atomic.Int32
	defer tcpserver.Serve(tcp, func(c net.Conn) {
		overTCP.Add(1)
		serveTCP(c)
	})()
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := answerTo(buf[:n], false); reply != nil {
				_, _ = udp.WriteTo(reply, from)
			}
		}
	}()
	for name, want := range map[string]time.Duration{
		"alias.test.": 7 * time.Second, // the alias's TTL is lower than the address's
		"plain.test.": 300 * time.Second,
		"large.test.": 60 * time.Second, // over TCP
		"zero.test.":  time.Millisecond,
	} {
		found, err := system(t.Context(), name)
		if err != nil || len(found.Addrs) == 0 || found.Addrs[0] != oldAddr || found.TTL != want {
			t.Errorf("%s: %v for %v, %v; want %v for %v", name, found.Addrs, found.TTL, err, oldAddr, want)
		}
	}
	if overTCP.Load() == 0 {
		t.Error("nothing was asked over TCP")
	}
	if found, err := system(t.Context(), "localhost"); err != nil || found.TTL != 0 {
		t.Errorf("localhost: %v for %v, %v; want a TTL that nobody said", found.Addrs, found.TTL, err)
	}
	testSystemServices(t)
	if found, err := system(t.Context(), "missing.test."); !isNotFound(err) {
		t.Errorf("a name that does not exist: %v, %v; want to know that it does not", found.Addrs, err)
	}
	if found, err := system(t.Context(), "half.test."); err == nil || isNotFound(err) {
		t.Errorf("a name of which half is not answered: %v, %v; want no certainty", found.Addrs, err)
	}
}

func serveTCP(c net.Conn) {
	head := make([]byte, 2)
	for {
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		question := make([]byte, int(head[0])<<8|int(head[1]))
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		reply := answerTo(question, true)
		_, _ = c.Write(append([]byte{byte(len(reply) >> 8), byte(len(reply))}, reply...))
	}
}

// answerTo answers queries for the names of TestSystemResolver.
func answerTo(question []byte, stream bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(question)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: h.ID, Response: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q},
	}
	a := func(ttl uint32) {
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: ttl},
				Body:   &dnsmessage.AResource{A: oldAddr.As4()},
			})
		}
	}
	switch q.Name.String() {
	default:
		if q.Type != dnsmessage.TypeSRV || !srvAnswer(&m, q, stream) {
			m.RCode = dnsmessage.RCodeNameError
		}
	case "alias.test.":
		to := dnsmessage.MustNewName("plain.test.")
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 7},
			Body:   &dnsmessage.CNAMEResource{CNAME: to},
		})
		q.Name = to
		a(300)
	case "plain.test.":
		a(300)
	case "large.test.":
		if stream {
			a(60)
		} else {
			m.Truncated = true
		}
	case "zero.test.":
		a(0)
	case "half.test.": // the server fails for one type of address and has none of the other
		if q.Type == dnsmessage.TypeA {
			m.RCode = dnsmessage.RCodeServerFailure
		}
	}
	reply, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return reply
}

// FuzzTTL parses arbitrary messages of a name server.
func FuzzTTL(f *testing.F) {
	name := dnsmessage.MustNewName("alias.test.")
	question, err := (&dnsmessage.Message{Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}).Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(answerTo(question, false), 1)
	f.Add([]byte("not DNS"), 3)
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		var whole overheard
		whole.message(data)
		if len(data) > 0xffff {
			return
		}
		// As a stream in pieces of any size, the result is the same.
		var pieces overheard
		stream := append([]byte{byte(len(data) >> 8), byte(len(data))}, data...)
		c := &overhearTCP{Conn: &bytesConn{data: stream}, heard: &pieces, stop: func() bool { return true }}
		buf := make([]byte, 1+(piece&0xff))
		for {
			if _, err := c.Read(buf); err != nil {
				break
			}
		}
		if whole.ttl() != pieces.ttl() {
			t.Errorf("a datagram says %v, a stream %v", whole.ttl(), pieces.ttl())
		}
	})
}

// bytesConn is a connection with bytes to read.
type bytesConn struct {
	net.Conn
	data []byte
}

func (c *bytesConn) Read(b []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, os.ErrClosed
	}
	n := copy(b, c.data)
	c.data = c.data[n:]
	return n, nil
}

// TestMemoryOfAnotherProcess: an answer that is too old or empty is ignored, and
// none holds for ever.
func TestMemoryOfAnotherProcess(t *testing.T) {
	n := New(func(context.Context, string) (Answer, error) { return Answer{}, errors.New("no name server answers") })
	defer n.Close()
	addrs := []netip.Addr{oldAddr}
	n.Remember([]Memory{
		{Host: "empty", Until: time.Hour},
		{Host: "old", Addrs: addrs, Until: -time.Second, Stale: -time.Millisecond},
		{Host: "far-fetched", Addrs: addrs, Until: 1 << 62},
	})
	for _, host := range []string{"empty", "old"} {
		if addrs, err := n.Wait(t.Context(), host); err == nil {
			t.Errorf("%s gives %v", host, addrs)
		}
	}
	if until := n.known["far-fetched"].until; until > monotime.Now()+maxTTL {
		t.Errorf("an answer holds for %v", until-monotime.Now())
	}
}
