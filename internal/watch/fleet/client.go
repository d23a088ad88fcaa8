package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"

	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/watch/web"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// client asks relays. Several goroutines use it.
type client struct {
	resolver *net.Resolver
	tokens   map[string]fromFile[string]
	pools    map[string]fromFile[*x509.CertPool]
	pairs    map[string]fromFile[*tls.Certificate] // by the file of the certificate
}

// fromFile is what a file has, or why it has none.
type fromFile[T any] struct {
	value T
	err   error
}

func newClient(relays []Relay, o Options) *client {
	c := &client{resolver: o.Resolver, tokens: map[string]fromFile[string]{}, pools: map[string]fromFile[*x509.CertPool]{},
		pairs: map[string]fromFile[*tls.Certificate]{}}
	for i := range relays {
		if path := relays[i].TokenFile; path != "" {
			readOnce(c.tokens, path, web.ReadToken)
		}
		if path := relays[i].CA; path != "" {
			readOnce(c.pools, path, ReadCA)
		}
		if path := relays[i].Cert; path != "" {
			readOnce(c.pairs, path, func(path string) (*tls.Certificate, error) { return webconfig.ReadCertificate(path, relays[i].Key) })
		}
	}
	return c
}

func readOnce[T any](known map[string]fromFile[T], path string, read func(string) (T, error)) {
	if _, is := known[path]; !is {
		v, err := read(path)
		known[path] = fromFile[T]{v, err}
	}
}

// ask asks one relay.
func (c *client) ask(ctx context.Context, r *Relay) Answer {
	token, pool, own := c.tokens[r.TokenFile], c.pools[r.CA], c.pairs[r.Cert]
	if err := firstOf(token.err, pool.err, own.err); err != nil {
		return failed(Refused, err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	var connected atomic.Bool
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{RootCAs: pool.value, MinVersion: tls.VersionTLS12,
			// Without it Go would present none to a server that names another authority, and not say so.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return cmp.Or(own.value, &tls.Certificate{}), nil
			}},
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			d := net.Dialer{Resolver: c.resolver}
			d.SetMultipathTCP(false)
			conn, err := d.DialContext(ctx, "tcp", address)
			connected.Store(err == nil)
			return conn, err
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/api/v1/overview", nil)
	if err != nil {
		return failed(Refused, err)
	}
	if token.value != "" {
		req.Header.Set("Authorization", "Bearer "+token.value)
	}
	// A token goes to no other place than that of the inventory.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := (&http.Client{Transport: transport, CheckRedirect: stay}).Do(req)
	if err != nil {
		return unanswered(ctx, r, connected.Load(), err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return unanswered(ctx, r, true, err)
	case len(body) > maxAnswerBytes:
		return failed(Refused, remedy.New(fmt.Errorf("the answer is longer than %d MiB", maxAnswerBytes>>20), noRelay))
	case resp.StatusCode != http.StatusOK:
		return rejected(r, resp.StatusCode, body)
	}
	return read(body)
}

const noRelay = "see whether the URL is that of a relay's dashboard"

// failed is the answer of a relay without a status.
func failed(s State, err error) Answer {
	return Answer{State: s, Problem: clean(err.Error()), Remedy: clean(remedy.Of(err))}
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// unanswered is the answer of a relay whose connection failed.
func unanswered(ctx context.Context, r *Relay, connected bool, err error) Answer {
	at := hostPort(r.URL)
	var (
		dns         *net.DNSError
		certificate *tls.CertificateVerificationError
		noTLS       tls.RecordHeaderError
		errno       syscall.Errno
		alert       *net.OpError
	)
	within := units.FormatDuration(r.Timeout)
	switch {
	case errors.As(err, &certificate):
		return failed(Refused, remedy.New(fmt.Errorf("the certificate of %s is not trusted: %w", at, certificate.Err),
			"name the file of its authority as ca, or use a name that the certificate has"))
	case errors.As(err, &noTLS), errors.Is(err, http.ErrSchemeMismatch):
		return failed(Refused, remedy.New(fmt.Errorf("%s does not speak TLS", at),
			"give the dashboard tls_cert, tls_key and token_file; without them ask on its own host, by http://127.0.0.1:PORT"))
	case errors.As(err, &alert) && alert.Op == "remote error": // an alert of TLS (RFC 8446, section 6.2)
		return failed(Refused, remedy.New(fmt.Errorf("%s does not take the TLS connection: %w", at, alert.Err),
			"name as cert and key a certificate that its web_config admits"))
	case ctx.Err() != nil && connected:
		return failed(Slow, remedy.New(fmt.Errorf("%s takes connections, and gave no whole answer within %s", at, within),
			"see whether its process is stopped or its host is overloaded; --timeout waits longer"))
	case errors.As(err, &dns) && !connected:
		return failed(Down, remedy.New(fmt.Errorf("no address of %s: %s", dns.Name, dns.Err), "check the name, and the DNS server"))
	case ctx.Err() != nil:
		return failed(Down, remedy.New(fmt.Errorf("no connection to %s within %s", at, within),
			"see whether its host is up, and whether the path lets the port through"))
	case errors.As(err, &errno) && !connected:
		fix := "see whether its host is up, and whether there is a route to it"
		if errno == syscall.ECONNREFUSED {
			fix = "start the relay there, with dashboard in its configuration"
		}
		return failed(Down, remedy.New(fmt.Errorf("no connection to %s: %w", at, errno), fix))
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return failed(Down, remedy.New(fmt.Errorf("the connection to %s ended before the answer: %w", at, err), "see the relay's log; "+noRelay))
}

// rejected is the answer of a relay that gives another status of HTTP.
func rejected(r *Relay, status int, body []byte) Answer {
	var said struct {
		Error string `json:"error"`
	}
	isRelay := json.Unmarshal(body, &said) == nil && said.Error != ""
	text := clean(said.Error)
	switch {
	case !isRelay && status == http.StatusBadRequest && strings.HasPrefix(r.URL, "http://"):
		return failed(Refused, remedy.New(errors.New("it does not take plain HTTP"), "write https://, and name its token_file"))
	case !isRelay && status == http.StatusUnauthorized:
		return failed(Refused, remedy.New(errors.New("it asks for a user and a password"), "give its web_config client certificates instead of basic_auth_users"))
	case !isRelay:
		return failed(Refused, remedy.New(fmt.Errorf("what answers there is no dashboard: status %d", status), noRelay))
	case status == http.StatusUnauthorized && r.TokenFile == "":
		return failed(Refused, remedy.New(errors.New("it asks for a token"), "name the file of its token as token_file"))
	case status == http.StatusUnauthorized:
		return failed(Refused, remedy.New(fmt.Errorf("it does not take the token in %s", r.TokenFile), "copy the file that its dashboard.token_file names"))
	case status == http.StatusServiceUnavailable:
		return failed(Degraded, remedy.New(errors.New(text), "ask again in a second"))
	}
	return failed(Refused, remedy.New(errors.New(text), "see docs/dashboard.md"))
}

// hostPort is a URL's host with its port.
func hostPort(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
