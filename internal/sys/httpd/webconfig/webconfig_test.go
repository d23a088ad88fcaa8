package webconfig_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"
	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

const (
	patience = time.Minute
	secret   = "longhaul_flows 7"
)

var quiet = slog.New(slog.DiscardHandler)

// served is a server with settings that a test may change.
type served struct {
	dir      string
	issuer   *nettest.Issuer
	address  string
	guard    atomic.Pointer[webconfig.Guard]
	settings func() (*webconfig.Settings, error)
	log      bytes.Buffer // the caller reads it when nothing connects
	asked    atomic.Int32 // requests that reached the handler
}

// serve begins a server whose clients need a certificate of its issuer, if change does not have it otherwise.
func serve(t *testing.T, change func(*served, *webconfig.Settings)) *served {
	t.Helper()
	s := &served{dir: t.TempDir()}
	s.issuer = nettest.NewIssuer(t, s.dir, "ca")
	cert, key := s.issuer.Issue(t, s.dir, "server", "localhost", time.Hour)
	read := func() (*webconfig.Settings, error) {
		settings, err := webconfig.ReadPair(cert, key)()
		if err != nil {
			return nil, err
		}
		authorities, err := os.ReadFile(s.issuer.File)
		if err != nil {
			return nil, err
		}
		settings.ClientAuth = tls.RequireAndVerifyClientCert
		settings.ClientCAs, err = webconfig.ParseAuthorities(authorities, s.issuer.File)
		if change != nil {
			change(s, settings)
		}
		return settings, err
	}
	g, err := webconfig.Open("http_listen", slog.New(slog.NewTextHandler(&s.log, nil)), read)
	nettest.Must(t, err)
	s.settings = read
	s.guard.Store(g)
	l, err := httpd.Listen(t.Context(), netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1")))
	nettest.Must(t, err)
	current := s.guard.Load
	handler := webconfig.Handler(current, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		fmt.Fprintln(w, secret)
		if r.URL.Path == "/live" {
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(patience):
				t.Error("a stream goes on")
			}
		}
	}))
	server := httpd.ServeTLS(l, webconfig.TLS(current, "h2", "http/1.1"), handler, quiet, httpd.DefaultLimits)
	t.Cleanup(server.Close)
	s.address = l.Addr().String()
	return s
}

// client is the configuration of one with a certificate for a name; an empty name has none.
func (s *served) client(t *testing.T, of *nettest.Issuer, name string, until time.Duration) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(s.issuer.File)
	nettest.Must(t, err)
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
	c.RootCAs.AppendCertsFromPEM(text)
	if name == "" {
		return c
	}
	pair, err := tls.LoadX509KeyPair(of.Issue(t, s.dir, "client", name, until))
	nettest.Must(t, err)
	// Also to a server that names other authorities.
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return c
}

// read connects and sends a request, and returns all bytes of the application that come back.
func (s *served) read(t *testing.T, c *tls.Config) (answer string, err error) {
	t.Helper()
	plain, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	nettest.Must(t, err)
	defer plain.Close()
	_ = plain.SetDeadline(time.Now().Add(patience))
	conn := tls.Client(plain, c)
	_, err = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
	all, readErr := io.ReadAll(conn)
	if err == nil {
		err = readErr
	}
	return string(all), err
}

// TestClientCertificates: who has no certificate that the settings admit gets no byte of the application.
func TestClientCertificates(t *testing.T) {
	nettest.CheckLeaks(t)
	s := serve(t, func(_ *served, settings *webconfig.Settings) {
		settings.ClientNames = []string{"prometheus.example.net", "spiffe://corp/prometheus"}
	})
	foreign := nettest.NewIssuer(t, t.TempDir(), "foreign")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for name, c := range map[string]struct {
			of       *nettest.Issuer
			name     string
			until    time.Duration
			admitted bool
		}{
			"its name":             {s.issuer, "prometheus.example.net", time.Hour, true},
			"its URI":              {s.issuer, "spiffe://corp/prometheus", time.Hour, true},
			"no certificate":       {nil, "", 0, false},
			"another name":         {s.issuer, "grafana.example.net", time.Hour, false},
			"a foreign authority":  {foreign, "prometheus.example.net", time.Hour, false},
			"a certificate's past": {s.issuer, "prometheus.example.net", -time.Hour, false},
		} {
			config := s.client(t, c.of, c.name, c.until)
			config.MinVersion, config.MaxVersion = version, version
			answer, err := s.read(t, config)
			if c.admitted != strings.Contains(answer, secret) || !c.admitted && (answer != "" || err == nil) {
				t.Errorf("%s, %s: %q, %v", tls.VersionName(version), name, answer, err)
			}
		}
	}
	if n := s.asked.Load(); n != 4 {
		t.Errorf("%d requests reached the handler, want 4", n)
	}
	// A session does not outlive its certificate: none is resumed.
	config := s.client(t, s.issuer, "prometheus.example.net", time.Hour)
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for range 2 {
		conn, err := tls.Dial("tcp", s.address, config)
		nettest.Must(t, err)
		_, _ = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
		_, err = io.ReadAll(conn)
		nettest.Must(t, err)
		if conn.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		conn.Close()
	}
}

// Of TLS only 1.2 and 1.3 are spoken, without the suites that Go holds for weak, and no plain HTTP.
func TestVersions(t *testing.T) {
	s := serve(t, func(_ *served, settings *webconfig.Settings) { settings.ClientAuth = tls.NoClientCert })
	for version, want := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		c := s.client(t, nil, "", 0)
		c.MinVersion, c.MaxVersion = version, version
		if answer, err := s.read(t, c); (err == nil && strings.Contains(answer, secret)) != want {
			t.Errorf("%s: %q, %v", tls.VersionName(version), answer, err)
		}
	}
	for _, weak := range tls.InsecureCipherSuites() {
		c := s.client(t, nil, "", 0)
		c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{weak.ID}
		if answer, err := s.read(t, c); err == nil {
			t.Errorf("%s: %q", weak.Name, answer)
		}
	}
	if status, body, err := httpd.Get(t.Context(), s.address, "/metrics", 1000); err == nil && (status != http.StatusBadRequest || strings.Contains(string(body), secret)) {
		t.Errorf("plain HTTP: %d %s", status, body)
	}
}

// TestRenewal: a renewed certificate is in force at the next connection, and a mistake leaves the last one.
func TestRenewal(t *testing.T) {
	s := serve(t, nil)
	config := s.client(t, s.issuer, "prometheus", time.Hour)
	serial := func() string {
		t.Helper()
		conn, err := tls.Dial("tcp", s.address, config)
		nettest.Must(t, err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	s.issuer.Issue(t, s.dir, "server", "localhost", 2*time.Hour)
	second := serial()
	if second == first {
		t.Error("a renewed certificate is not taken")
	}
	if p := s.guard.Load().Problem(); p != nil {
		t.Errorf("%+v", p)
	}
	cert := filepath.Join(s.dir, "server.pem")
	good, err := os.ReadFile(cert)
	nettest.Must(t, err)
	nettest.Must(t, os.WriteFile(cert, []byte("broken"), 0o600))
	if got := serial(); got != second {
		t.Errorf("with a broken file: %s, want %s", got, second)
	}
	p := s.guard.Load().Problem()
	if p == nil || !strings.Contains(p.Text, "changed TLS files of http_listen are not in force: "+cert) || p.Fix == "" {
		t.Errorf("with a broken file: %+v", p)
	}
	nettest.Must(t, os.Rename(filepath.Join(s.dir, "server.key"), filepath.Join(s.dir, "away")))
	if got := serial(); got != second {
		t.Errorf("without a key: %s, want %s", got, second)
	}
	nettest.Must(t, os.Rename(filepath.Join(s.dir, "away"), filepath.Join(s.dir, "server.key")))
	nettest.Must(t, os.WriteFile(cert, good, 0o600))
	if got := serial(); got != second || s.guard.Load().Problem() != nil {
		t.Errorf("mended: %s, %+v", got, s.guard.Load().Problem())
	}
	s.issuer.Issue(t, s.dir, "server", "localhost", time.Hour)
	if got := serial(); got == second {
		t.Error("a certificate after a mended one is not taken")
	}
	text := s.log.String()
	if !strings.Contains(text, "changed TLS files cannot be used") || !strings.Contains(text, "certificate_until=") || strings.Contains(text, "PRIVATE") {
		t.Errorf("the log has %s", text)
	}
}

// TestAccessChanges: other users or authorities are in force for connections that had their handshake before, and
// end the streams of those that they do not admit, whether the files change or a reload has another guard.
func TestAccessChanges(t *testing.T) {
	nettest.CheckLeaks(t)
	hash, foreign := hashOf(t, "right"), nettest.NewIssuer(t, t.TempDir(), "foreign")
	text, err := os.ReadFile(foreign.File)
	nettest.Must(t, err)
	other, err := webconfig.ParseAuthorities(text, foreign.File)
	nettest.Must(t, err)
	users := func(s *webconfig.Settings) {
		s.ClientAuth, s.ClientCAs, s.Users = tls.NoClientCert, nil, map[string]string{"grafana": hash}
	}
	certificates := func(*webconfig.Settings) {}
	for name, c := range map[string]struct {
		before, after func(*webconfig.Settings)
		client        string // of its certificate; empty: none
		once, stream  bool   // are admitted
	}{
		"users, then certificates": {users, certificates, "", false, false},
		"certificates, then users": {certificates, users, "prometheus", true, false},
		"another authority":        {certificates, func(s *webconfig.Settings) { s.ClientCAs = other }, "prometheus", false, false},
		"other names":              {certificates, func(s *webconfig.Settings) { s.ClientNames = []string{"grafana"} }, "prometheus", false, false},
		"its name":                 {certificates, func(s *webconfig.Settings) { s.ClientNames = []string{"prometheus"} }, "prometheus", true, true},
		"another password":         {users, func(s *webconfig.Settings) { users(s); s.Users["grafana"] = hashOf(t, "other") }, "", false, false},
		"another user":             {users, func(s *webconfig.Settings) { users(s); s.Users["more"] = hash }, "", true, true},
	} {
		for _, reload := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reload %v", name, reload), func(t *testing.T) {
				var changed atomic.Bool
				s := serve(t, func(_ *served, settings *webconfig.Settings) {
					if changed.Load() {
						c.after(settings)
					} else {
						c.before(settings)
					}
				})
				config := s.client(t, s.issuer, c.client, time.Hour)
				config.NextProtos = []string{"http/1.1"}
				ask := func(path string) (conn *tls.Conn, send func() *http.Response) {
					conn, err := tls.Dial("tcp", s.address, config)
					nettest.Must(t, err)
					t.Cleanup(func() { conn.Close() })
					nettest.Must(t, conn.SetDeadline(time.Now().Add(patience)))
					return conn, func() *http.Response {
						r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://localhost"+path, nil)
						nettest.Must(t, err)
						r.SetBasicAuth("grafana", "right")
						nettest.Must(t, r.Write(conn))
						answer, err := http.ReadResponse(bufio.NewReader(conn), r)
						nettest.Must(t, err)
						return answer
					}
				}
				liveConn, live := ask("/live")
				stream := live()
				_, once := ask("/metrics")
				changed.Store(true)
				if reload {
					before := s.guard.Load()
					next, err := webconfig.Open("http_listen", quiet, s.settings)
					nettest.Must(t, err)
					s.guard.Store(next)
					before.Replace()
				} else {
					s.issuer.Issue(t, s.dir, "server", "localhost", 2*time.Hour)
				}
				answer := once()
				body, err := io.ReadAll(answer.Body)
				nettest.Must(t, err)
				if got := answer.StatusCode == http.StatusOK; got != c.once || got != strings.Contains(string(body), secret) {
					t.Errorf("after the change: %s, %q", answer.Status, body)
				}
				if c.stream {
					liveConn.Close() // nothing ends it
					return
				}
				if _, err := io.Copy(io.Discard, stream.Body); err != nil {
					t.Errorf("the stream does not end: %v", err)
				}
			})
		}
	}
}

// TestNeverOpens: a change of the files does not end TLS. That takes a reload.
func TestNeverOpens(t *testing.T) {
	plain := false
	s := serve(t, func(_ *served, settings *webconfig.Settings) {
		if plain {
			settings.Certificate = nil
		}
	})
	config := s.client(t, s.issuer, "prometheus", time.Hour)
	plain = true
	s.issuer.Issue(t, s.dir, "server", "localhost", 2*time.Hour)
	if answer, err := s.read(t, config); !strings.Contains(answer, secret) {
		t.Errorf("%q, %v", answer, err)
	}
	if p := s.guard.Load().Problem(); p == nil || p.Fix != "longhaul reload" {
		t.Errorf("%+v", p)
	}
}

// TestHTTP2: it is spoken, with one request on a connection.
func TestHTTP2(t *testing.T) {
	nettest.CheckLeaks(t)
	open := true
	s := serve(t, func(_ *served, settings *webconfig.Settings) {
		settings.ClientAuth, settings.HTTP2 = tls.NoClientCert, open
	})
	transport := &http.Transport{TLSClientConfig: s.client(t, nil, "", 0), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	for range 3 {
		r, err := (&http.Client{Transport: transport, Timeout: patience}).Get("https://" + s.address + "/")
		nettest.Must(t, err)
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.ProtoMajor != 2 || !strings.Contains(string(body), secret) {
			t.Errorf("%s %q, %v", r.Proto, body, err)
		}
	}

	// A client that opens many streams at once has few of them answered.
	before := s.asked.Load()
	conn := s.speakHTTP2(t)
	defer conn.Close()
	f := xhttp2.NewFramer(conn, conn)
	for id := uint32(1); id < 2000; id += 2 {
		if f.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: request(), EndHeaders: true, EndStream: true}) != nil ||
			f.WriteRSTStream(id, xhttp2.ErrCodeCancel) != nil {
			break // the server has done with it
		}
	}
	for {
		if _, err := f.ReadFrame(); err != nil {
			break
		}
	}
	if n := s.asked.Load() - before; n > 100 {
		t.Errorf("%d of 1000 requests on one connection reached the handler", n)
	}

	open = false
	s.issuer.Issue(t, s.dir, "server", "localhost", time.Hour)
	c := s.client(t, nil, "", 0)
	c.NextProtos = []string{"h2", "http/1.1"}
	h1, err := tls.Dial("tcp", s.address, c)
	nettest.Must(t, err)
	defer h1.Close()
	if p := h1.ConnectionState().NegotiatedProtocol; p != "http/1.1" {
		t.Errorf("with http2: false it is %s", p)
	}
}

// speakHTTP2 connects, and sends what begins HTTP/2.
func (s *served) speakHTTP2(t *testing.T) *tls.Conn {
	t.Helper()
	c := s.client(t, nil, "", 0)
	c.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", s.address, c)
	nettest.Must(t, err)
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = io.WriteString(conn, xhttp2.ClientPreface)
	nettest.Must(t, err)
	nettest.Must(t, xhttp2.NewFramer(conn, conn).WriteSettings())
	return conn
}

// request are the headers of a request of HTTP/2.
func request() []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":path", "/"}, {":scheme", "https"}, {":authority", "localhost"}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return block.Bytes()
}

// TestCrowd: 10 000 connections that do nothing, or send garbage, or begin handshakes and HTTP/2 without going
// on, keep no more places than the server has, and a client among them is served.
func TestCrowd(t *testing.T) {
	nettest.CheckLeaks(t)
	s := serve(t, nil)
	config := s.client(t, s.issuer, "prometheus", time.Hour)
	hello := firstFlight(t)
	kinds := []string{"", "\x16\x03\x01\xff\xff\x00\x00\xff\xff", "GET / HTTP/1.1\r\n", hello, hello[:len(hello)/2], strings.Repeat("\x00", 1<<14)}
	const crowd, together = 10_000, 500
	var all []net.Conn
	closeAll := func() {
		for _, c := range all {
			c.Close()
		}
		all = nil
	}
	defer closeAll()
	for i := range crowd {
		c, err := net.Dial("tcp", s.address)
		nettest.Must(t, err)
		if all = append(all, c); len(all) > together {
			all[0].Close()
			all = all[1:]
		}
		_, _ = io.WriteString(c, kinds[i%len(kinds)])
	}
	nettest.Eventually(t, patience, func() bool { // its source is theirs, so it may lose its place
		answer, _ := s.read(t, config)
		return strings.Contains(answer, secret)
	}, func() string { return "a client among them is not served" })
	left := func() (n int) {
		for _, c := range all {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			var err error
			for err == nil {
				_, err = c.Read(make([]byte, 1000))
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				n++
			}
		}
		return n
	}
	nettest.Eventually(t, patience, func() bool { return left() <= httpd.DefaultLimits.Connections },
		func() string {
			return fmt.Sprintf("%d of them are left, the server has %d places", left(), httpd.DefaultLimits.Connections)
		})
	closeAll()
	if answer, err := s.read(t, config); !strings.Contains(answer, secret) {
		t.Errorf("after them: %q, %v", answer, err)
	}
}

// firstFlight is what a client of TLS sends first.
func firstFlight(t *testing.T) string {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		_ = tls.Client(near, &tls.Config{ServerName: "localhost"}).Handshake()
		near.Close()
	}()
	b := make([]byte, 4096)
	n, err := far.Read(b)
	nettest.Must(t, err)
	return string(b[:n])
}

// asks sends a request with a user's password from an address to a handler, and returns the status.
func asks(h http.Handler, source, user, password string) int {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.RemoteAddr = source + ":1"
	if user != "" {
		r.SetBasicAuth(user, password)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK && strings.Contains(w.Body.String(), secret) {
		return -1
	}
	return w.Code
}

// guarded is a handler behind settings.
func guarded(t *testing.T, settings *webconfig.Settings) http.Handler {
	t.Helper()
	g, err := webconfig.Open("http_listen", quiet, func() (*webconfig.Settings, error) { return settings, nil })
	nettest.Must(t, err)
	return webconfig.Handler(func() *webconfig.Guard { return g }, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, secret) }))
}

func hashOf(t *testing.T, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	nettest.Must(t, err)
	return string(hash)
}

// TestPasswords: a source that was wrong waits a second for its next check, others do not, nor does a user who
// was right.
func TestPasswords(t *testing.T) {
	settings := webconfig.Default()
	settings.Users = map[string]string{"prometheus": hashOf(t, "right"), "grafana": hashOf(t, "other")}
	settings.Headers = map[string]string{"X-Frame-Options": "deny"}
	synctest.Test(t, func(t *testing.T) {
		h := guarded(t, settings)
		for i, step := range []struct {
			source, user, password string
			waits                  bool
			want                   int
		}{
			{"192.0.2.1", "", "", false, 401},
			{"192.0.2.1", "prometheus", "right", false, 200},
			{"192.0.2.1", "prometheus", "wrong", false, 401},
			{"192.0.2.1", "prometheus", "right", false, 200}, // remembered
			{"192.0.2.1", "grafana", "wrong", true, 401},
			{"192.0.2.1", "grafana", "other", true, 200},
			{"192.0.2.2", "grafana", "right", false, 401},
			{"192.0.2.3", "grafana", "other", false, 200},
			{"192.0.2.2", "nobody", "right", true, 401},
			{"192.0.2.4", "prometheus", "", false, 401},
			{"192.0.2.5", "", "right", false, 401},
			{"2001:db8::1", "prometheus", "guess", false, 401},
			{"2001:db8::2", "prometheus", "guess", true, 401}, // the same network
		} {
			began := time.Now() // on synctest's clock
			source := step.source
			if strings.Contains(source, ":") {
				source = "[" + source + "]"
			}
			if got, waited := asks(h, source, step.user, step.password), time.Since(began); got != step.want || (waited > 0) != step.waits {
				t.Errorf("step %d, %+v: %d after %v", i, step, got, waited)
			}
		}
		// Of many at once from a source some have their turn, and the others end.
		var all sync.WaitGroup
		var checked, refused atomic.Int32
		for range 100 {
			all.Go(func() {
				switch asks(h, "192.0.2.9", "prometheus", "guess") {
				case 401:
					checked.Add(1)
				case 429:
					refused.Add(1)
				}
			})
		}
		all.Wait()
		if n := checked.Load(); n < 2 || n > 11 || n+refused.Load() != 100 {
			t.Errorf("%d passwords of 100 were checked in 10 s, %d refused", n, refused.Load())
		}
	})
	// A password that is changed in the files is not remembered.
	h := guarded(t, settings)
	if got := asks(h, "192.0.2.1", "prometheus", "right"); got != 200 {
		t.Error(got)
	}
	settings.Users = map[string]string{"prometheus": hashOf(t, "new")}
	if got := asks(h, "192.0.2.1", "prometheus", "right"); got != 401 {
		t.Errorf("the password before a change: %d", got)
	}
}

// TestManySources: those that guess keep few entries, and one hash is made at a time.
func TestManySources(t *testing.T) {
	settings := webconfig.Default()
	settings.Users = map[string]string{"prometheus": hashOf(t, "right")}
	h := guarded(t, settings)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for n := range 50 {
				if got := asks(h, netip.AddrFrom4([4]byte{192, 0, byte(i), byte(n)}).String(), "prometheus", "wrong"); got != 401 {
					t.Errorf("a wrong password: %d", got)
				}
			}
		})
	}
	all.Wait()
	if got := asks(h, "198.51.100.1", "prometheus", "right"); got != 200 {
		t.Errorf("after them: %d", got)
	}
	// Who has gone is not waited for.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.SetBasicAuth("prometheus", "not yet known")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 429 {
		t.Errorf("a client that has gone: %d", w.Code)
	}
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings := webconfig.Default()
		settings.Interval, settings.Burst = time.Second, 3
		h := guarded(t, settings)
		for i, step := range []struct {
			after time.Duration
			want  int
		}{{0, 200}, {0, 200}, {0, 200}, {0, 429}, {999 * time.Millisecond, 429}, {time.Millisecond, 200}, {0, 429}, {time.Hour, 200}, {0, 200}, {0, 200}, {0, 429}} {
			time.Sleep(step.after) // on synctest's clock
			if got := asks(h, "192.0.2.1", "", ""); got != step.want {
				t.Errorf("request %d: %d, want %d", i, got, step.want)
			}
		}
	})
}

// BenchmarkRequest is a request with its connection, as a scrape makes one: in clear, over TLS, with a client's
// certificate, and with a password that is known.
func BenchmarkRequest(b *testing.B) {
	dir := b.TempDir()
	issuer := nettest.NewIssuer(b, dir, "ca")
	cert, key := issuer.Issue(b, dir, "server", "localhost", time.Hour)
	text, err := os.ReadFile(issuer.File)
	nettest.Must(b, err)
	pool, err := webconfig.ParseAuthorities(text, issuer.File)
	nettest.Must(b, err)
	own, err := webconfig.ReadCertificate(issuer.Issue(b, dir, "client", "prometheus", time.Hour))
	nettest.Must(b, err)
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), 10)
	nettest.Must(b, err)
	for _, how := range []string{"clear", "TLS", "certificate", "password"} {
		b.Run(how, func(b *testing.B) {
			g, err := webconfig.Open("http_listen", quiet, func() (*webconfig.Settings, error) {
				s, err := webconfig.ReadPair(cert, key)()
				if how == "certificate" {
					s.ClientAuth, s.ClientCAs = tls.RequireAndVerifyClientCert, pool
				}
				if how == "password" {
					s.Users = map[string]string{"prometheus": string(hash)}
				}
				return s, err
			})
			nettest.Must(b, err)
			current := func() *webconfig.Guard { return g }
			l, err := httpd.Listen(b.Context(), netip.MustParseAddrPort(nettest.FreeAddress(b, "127.0.0.1")))
			nettest.Must(b, err)
			handler := webconfig.Handler(current, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, secret) }))
			config, scheme := webconfig.TLS(current, "h2", "http/1.1"), "https://"
			if how == "clear" {
				config, scheme = nil, "http://"
				handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, secret) })
			}
			s := httpd.ServeTLS(l, config, handler, quiet, httpd.DefaultLimits)
			defer s.Close()
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{*own}}}}
			for b.Loop() {
				r, err := http.NewRequest(http.MethodGet, scheme+l.Addr().String()+"/metrics", nil)
				nettest.Must(b, err)
				if how == "password" {
					r.SetBasicAuth("prometheus", "right")
				}
				answer, err := client.Do(r)
				nettest.Must(b, err)
				if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
					b.Fatal(answer.Status, err)
				}
				answer.Body.Close()
			}
		})
	}
}

// TestChangeWhileRead holds that a file that changes right after it was read is read again, at the first reading
// as well, when it is not known yet which files there are.
func TestChangeWhileRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	write := func(text string) { nettest.Must(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("before")
	changes := []string{"meanwhile", "then"} // with readings from the end
	g, err := webconfig.Open("http_listen", quiet, func() (*webconfig.Settings, error) {
		text, err := os.ReadFile(file)
		if len(changes) > 0 {
			write(changes[0] + strings.Repeat(" ", len(changes)))
			changes = changes[1:]
		}
		s := webconfig.Default()
		s.Files, s.Headers = []string{file}, map[string]string{"X": strings.TrimSpace(string(text))}
		return s, err
	})
	nettest.Must(t, err)
	if got := g.Current().Headers["X"]; got != "then" {
		t.Errorf("in force is %q", got)
	}
	write("last")
	if got := g.Current().Headers["X"]; got != "last" {
		t.Errorf("later %q is in force", got)
	}
}
