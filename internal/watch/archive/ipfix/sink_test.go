package ipfix

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/socket"
	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

// patience is for what comes in a moment, on a machine that may be busy.
const patience = 2 * time.Minute

var manyRecords = flag.Int("records", 50_000, "records that are delivered over connections that are cut")

func sinkTo(t testing.TB, to string, change ...func(*archive.Target)) archive.Sink {
	t.Helper()
	target, err := archive.ParseTarget(to)
	nettest.Must(t, err)
	for _, c := range change {
		c(&target)
	}
	s, err := New(target)
	nettest.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// collector reads connections, each to its end, and keeps what it has by key.
type collector struct {
	listener net.Listener

	mu       sync.Mutex
	records  map[key]decoded
	octets   map[uint64][2]uint64 // not nil: the octets by ID, instead of records
	again    int                  // records that it had already
	conns    int                  // connections that have come
	live     net.Conn             // the last of them
	changed  chan struct{}        // has room for one
	problems []error
	cutter   *mathrand.Rand // cuts connections at random; nil: none
	cuts     int
}

func collect(t testing.TB, listener net.Listener) *collector {
	c := &collector{listener: listener, records: map[key]decoded{}, changed: make(chan struct{}, 1)}
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.conns++
			c.live = conn
			c.mu.Unlock()
			readers.Go(func() {
				defer conn.Close()
				c.read(conn)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		c.mu.Lock()
		if c.live != nil {
			c.live.Close()
		}
		c.mu.Unlock()
		readers.Wait()
	})
	return c
}

func (c *collector) read(conn net.Conn) {
	d, r := newDecoder(), bufio.NewReaderSize(conn, 1<<16)
	c.mu.Lock()
	left := -1
	if c.cutter != nil {
		left = c.cutter.IntN(40)
	}
	c.mu.Unlock()
	for ; ; left-- {
		// Of the exporter's end: its socket fails, and the collector gets a reset behind what it has.
		if left == 0 && netlink.SocketDestroy(conn.RemoteAddr(), conn.LocalAddr()) == nil {
			c.mu.Lock()
			c.cuts++
			c.mu.Unlock()
		}
		header, err := r.Peek(4)
		if err != nil {
			return
		}
		message := make([]byte, binary.BigEndian.Uint16(header[2:]))
		if _, err := io.ReadFull(r, message); err != nil {
			return // a cut connection: the rest of the message is missing
		}
		c.mu.Lock()
		err = d.message(message, func(r decoded) {
			if r.template == typesTemplate {
				return
			}
			k := r.key()
			if c.octets != nil {
				if _, has := c.octets[k.id]; has {
					c.again++
				}
				forth, _ := r.number(0, 1)
				back, _ := r.number(reverseEnterprise, 1)
				c.octets[k.id] = [2]uint64{forth, back}
				return
			}
			if _, has := c.records[k]; has {
				c.again++
			}
			c.records[k] = r
		})
		if err != nil {
			c.problems = append(c.problems, err)
		}
		c.mu.Unlock()
		select {
		case c.changed <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// has waits for so many records, and fails if there are others.
func (c *collector) has(t testing.TB, rows []archive.Row, biflow bool) {
	t.Helper()
	want := len(rows) * len(keys(&rows[0], biflow))
	ctx := patient(t)
	for {
		c.mu.Lock()
		n, problems := len(c.records), c.problems
		c.mu.Unlock()
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if n >= want {
			break
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
			t.Fatalf("%d of %d records are here", n, want)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	same(t, c.records, rows, biflow)
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	nettest.CheckLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	nettest.Must(t, err)
	return l
}

func TestTCP(t *testing.T) {
	for _, biflow := range []bool{true, false} {
		c := collect(t, listen(t))
		s := sinkTo(t, "ipfix://"+c.listener.Addr().String(), func(t *archive.Target) { t.Biflow = biflow })
		rows := makeRows(1, 3000)
		nettest.Must(t, s.Deliver(patient(t), rows[:2000]))
		nettest.Must(t, s.Deliver(patient(t), rows[2000:]))
		c.has(t, rows, biflow)
		if c.conns != 1 {
			t.Errorf("%d connections", c.conns)
		}
	}
}

// A relay that gets another name is another observation domain, with sequence numbers of its own.
func TestRelayWithAnotherName(t *testing.T) {
	c := collect(t, listen(t))
	s := sinkTo(t, "ipfix://"+c.listener.Addr().String())
	rows := makeRows(1, 300)
	for i := range rows[100:] {
		rows[100+i].Relay = "relay-z.example.net"
	}
	nettest.Must(t, s.Deliver(patient(t), rows))
	c.has(t, rows, true)
	domains := map[uint32]string{}
	for k, r := range c.records {
		if was := domains[r.domain]; was != "" && was != k.relay {
			t.Errorf("domain %d is that of %s and %s", r.domain, was, k.relay)
		}
		domains[r.domain] = k.relay
	}
	if c.conns != 2 || len(domains) != 2 {
		t.Errorf("%d connections, domains %v", c.conns, domains)
	}
}

// TestCutConnections: connections are cut at any moment, and no record is lost.
// The figures of the documentation are of -records 1000000.
func TestCutConnections(t *testing.T) {
	nettest.RequireRoot(t)
	c := collect(t, listen(t))
	c.cutter = mathrand.New(mathrand.NewPCG(1, 1))
	s := sinkTo(t, "ipfix://"+c.listener.Addr().String())
	c.octets = map[uint64][2]uint64{}
	want := map[uint64][2]uint64{}
	failed := 0
	for len(want) < *manyRecords {
		batch := makeRows(uint64(len(want)), 5000)
		for i := range batch {
			batch[i].ID += int64(len(want))
		}
		for {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			err := s.Deliver(ctx, batch)
			late := ctx.Err() != nil
			cancel()
			if err == nil {
				break
			}
			if failed++; remedy.Of(err) == "" || late {
				t.Fatalf("%v after %d rows", err, len(want))
			}
		}
		for i := range batch {
			want[uint64(batch[i].ID)] = [2]uint64{uint64(batch[i].BytesUp), uint64(batch[i].BytesDown)}
		}
	}
	nettest.Eventually(t, patience, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.octets) >= len(want)
	}, func() string { return fmt.Sprintf("%d of %d records are here", len(c.octets), len(want)) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.Equal(c.octets, want) || len(c.problems) > 0 {
		t.Errorf("%d records, want %d, or other octets; %v", len(c.octets), len(want), c.problems)
	}
	t.Logf("%d records over %d connections, %d of them cut, %d deliveries failed; %d records came again", len(want), c.conns, c.cuts, failed, c.again)
	if c.cuts == 0 {
		t.Error("no connection was cut")
	}
}

// A collector that does not read holds a delivery for its context, and no longer: one that waits for room
// to write, and one that waits for acknowledgements.
func TestCollectorThatDoesNotRead(t *testing.T) {
	for _, n := range []int{100, 50_000} {
		l := listen(t)
		raw, err := l.(*net.TCPListener).SyscallConn()
		nettest.Must(t, err)
		nettest.Must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) }))
		nettest.Must(t, err)
		s := sinkTo(t, "ipfix://"+l.Addr().String())
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { result <- s.Deliver(ctx, makeRows(1, n)) }()
		conn, err := l.Accept()
		nettest.Must(t, err)
		raw, err = conn.(*net.TCPConn).SyscallConn()
		nettest.Must(t, err)
		nettest.Eventually(t, patience, func() (has bool) {
			nettest.Must(t, raw.Control(func(fd uintptr) { has = socket.Unread(int(fd)) > 0 }))
			return has
		}, func() string { return "nothing comes" })
		select {
		case err := <-result:
			t.Errorf("%d rows were delivered to nobody: %v", n, err)
		default:
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("%d rows: %v", n, err)
			}
		}
		cancel()
		conn.Close()
		l.Close()
	}
}

// A collector has nothing to say; one that does holds no delivery, whatever it sends.
func TestCollectorThatTalks(t *testing.T) {
	l := listen(t)
	s := sinkTo(t, "ipfix://"+l.Addr().String())
	rows := makeRows(1, 500)
	wrote := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = conn.Write(make([]byte, 32<<20)) // more than sockets hold
			go func() {
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
		wrote <- err
	}()
	nettest.Must(t, s.Deliver(patient(t), rows))
	nettest.Must(t, <-wrote)
	nettest.Must(t, s.Deliver(patient(t), rows))
	nettest.Must(t, s.Close())
	l.Close()

	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	nettest.Must(t, err)
	var echo sync.WaitGroup
	echo.Go(func() {
		for b := make([]byte, 1<<16); ; {
			n, from, err := conn.ReadFromUDP(b)
			if err != nil {
				return
			}
			for range 100 {
				_, _ = conn.WriteToUDP(b[:n], from)
			}
		}
	})
	nettest.Must(t, sinkTo(t, "ipfix+udp://"+conn.LocalAddr().String()).Deliver(patient(t), rows))
	conn.Close()
	echo.Wait()
}

// A collector that goes away without reading, and comes back.
func TestCollectorThatEnds(t *testing.T) {
	l := listen(t)
	address := l.Addr().String()
	s := sinkTo(t, "ipfix://"+address)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.ReadFull(conn, make([]byte, 100))
		conn.Close() // with a reset: not all was read
	}()
	rows := makeRows(1, 50_000)
	err := s.Deliver(patient(t), rows)
	if err == nil || !strings.Contains(err.Error(), "ended the connection") || remedy.Of(err) == "" {
		t.Errorf("%v", err)
	}
	<-ended
	c := collect(t, l)
	nettest.Must(t, s.Deliver(patient(t), rows))
	c.has(t, rows, true)
	// An end between two deliveries is no trouble.
	c.mu.Lock()
	live, session := c.live, s.(*tcpSink).session
	c.mu.Unlock()
	nettest.Must(t, live.(*net.TCPConn).CloseWrite())
	<-session.ended
	nettest.Must(t, s.Deliver(patient(t), rows))
	c.has(t, rows, true)
}

func TestNothingListens(t *testing.T) {
	l := listen(t)
	address := l.Addr().String()
	l.Close()
	for _, scheme := range []string{"ipfix", "ipfix+udp"} {
		s := sinkTo(t, scheme+"://"+address)
		err := s.Deliver(patient(t), makeRows(1, 3))
		if err == nil || err.Error() != "the collector's host refuses it: nothing listens at its port" || remedy.Of(err) == "" {
			t.Errorf("%s: %v", scheme, err)
		}
	}
	s := sinkTo(t, "ipfix://collector.invalid")
	if err := s.Deliver(patient(t), makeRows(1, 3)); err == nil || remedy.Of(err) == "" {
		t.Errorf("%v", err)
	}
}

// udpCollector reads what comes, and keeps what each source sent.
func udpCollector(t testing.TB) (*net.UDPConn, func(n int) map[string][][]byte) {
	t.Helper()
	nettest.CheckLeaks(t)
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	nettest.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetReadBuffer(1 << 24) // a busy machine may be slow to read
	all := map[string][][]byte{}
	return conn, func(n int) map[string][][]byte {
		b := make([]byte, 1<<16)
		nettest.Must(t, conn.SetReadDeadline(time.Now().Add(patience)))
		for d := map[string]*decoder{}; n > 0; {
			size, from, err := conn.ReadFromUDP(b)
			nettest.Must(t, err)
			m := append([]byte(nil), b[:size]...)
			name := from.String()
			if d[name] == nil {
				d[name] = newDecoder()
				for _, m := range all[name] {
					nettest.Must(t, d[name].message(m, func(decoded) {}))
				}
			}
			nettest.Must(t, d[name].message(m, func(r decoded) {
				if r.template != typesTemplate {
					n--
				}
			}))
			all[name] = append(all[name], m)
		}
		return all
	}
}

func TestUDP(t *testing.T) {
	conn, read := udpCollector(t)
	s := sinkTo(t, "ipfix+udp://"+conn.LocalAddr().String())
	rows := makeRows(1, 200)
	nettest.Must(t, s.Deliver(patient(t), rows[:150]))
	all := read(150)
	templates := func() (n int) {
		for _, messages := range all {
			for _, m := range messages {
				if binary.BigEndian.Uint16(m[headerLen:]) == templateSet {
					n++
				}
			}
		}
		return n
	}
	if len(all) != 1 || templates() != 1 {
		t.Errorf("%d sessions, %d messages of templates", len(all), templates())
	}
	session := s.(*udpSink).session
	session.announced = session.announced.Add(-templateInterval)
	nettest.Must(t, s.Deliver(patient(t), rows[150:151]))
	if all = read(1); templates() != 2 {
		t.Errorf("templates are not sent again after %v", templateInterval)
	}
	session.since = templateMessages
	nettest.Must(t, s.Deliver(patient(t), rows[151:152]))
	if all = read(1); templates() != 3 {
		t.Errorf("templates are not sent again after %d messages", templateMessages)
	}
	nettest.Must(t, s.Deliver(patient(t), rows[152:]))
	all = read(48)
	for _, messages := range all {
		for _, m := range messages {
			if len(m) > maxUDP {
				t.Errorf("a message of %d octets", len(m))
			}
		}
		same(t, decode(t, messages), rows, true)
	}
	// The collector goes: what it did not get is delivered again to the next one.
	address := conn.LocalAddr().(*net.UDPAddr)
	conn.Close()
	if err := s.Deliver(patient(t), rows); err == nil || remedy.Of(err) != "start the collector, or correct its address and port" {
		t.Errorf("%v", err)
	}
	if s.(*udpSink).session != nil {
		t.Errorf("the session with %v has not ended", address)
	}
}

func TestUDPHeedsItsContext(t *testing.T) {
	conn, _ := udpCollector(t)
	s := sinkTo(t, "ipfix+udp://"+conn.LocalAddr().String())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Deliver(ctx, makeRows(1, 3)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestTargetsThatCannotBe(t *testing.T) {
	for _, bad := range []archive.Target{
		{To: "ipfix://c:4739", PasswordFile: "p"}, {To: "ipfix+udp://c:4739", CA: "ca"}, {To: "ipfix+udp://c:4739", Certificate: "c", Key: "k"}, {To: "ipfix://%"},
	} {
		if _, err := New(bad); err == nil || remedy.Of(err) == "" {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca, key := authority(t)
	server := certificate(t, ca, key, dir, "server")
	certificate(t, ca, key, dir, "relay")
	writePEM(t, filepath.Join(dir, "ca.pem"), "CERTIFICATE", ca.Raw)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	l := tls.NewListener(listen(t), &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
	c := collect(t, l)
	to := "ipfix://" + l.Addr().String()
	files := func(t *archive.Target) {
		t.CA, t.Certificate, t.Key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "relay.pem"), filepath.Join(dir, "relay.key")
	}
	rows := makeRows(1, 2000)
	nettest.Must(t, sinkTo(t, to, files).Deliver(patient(t), rows))
	c.has(t, rows, true)

	other, otherKey := authority(t)
	certificate(t, other, otherKey, dir, "stranger")
	writePEM(t, filepath.Join(dir, "other.pem"), "CERTIFICATE", other.Raw)
	for name, wrong := range map[string]func(*archive.Target){
		"no certificate": func(t *archive.Target) { t.CA = filepath.Join(dir, "ca.pem") },
		"a stranger's certificate": func(t *archive.Target) {
			t.CA, t.Certificate, t.Key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "stranger.pem"), filepath.Join(dir, "stranger.key")
		},
		"another authority":      func(t *archive.Target) { t.CA = filepath.Join(dir, "other.pem") },
		"a file that is missing": func(t *archive.Target) { t.CA = filepath.Join(dir, "none.pem") },
		"no PEM":                 func(t *archive.Target) { t.CA = filepath.Join(dir, "empty.pem") },
	} {
		nettest.Must(t, os.WriteFile(filepath.Join(dir, "empty.pem"), nil, 0o600))
		// More than the buffers take: TLS 1.3's client learns of a refusal only after its own end.
		if err := sinkTo(t, to, wrong).Deliver(patient(t), makeRows(1, 50_000)); err == nil || remedy.Of(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func authority(t testing.TB) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	nettest.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	nettest.Must(t, err)
	ca, err := x509.ParseCertificate(der)
	nettest.Must(t, err)
	return ca, key
}

func certificate(t testing.TB, ca *x509.Certificate, caKey *ecdsa.PrivateKey, dir, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	nettest.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	nettest.Must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	nettest.Must(t, err)
	writePEM(t, filepath.Join(dir, name+".pem"), "CERTIFICATE", der)
	writePEM(t, filepath.Join(dir, name+".key"), "PRIVATE KEY", private)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	nettest.Must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
