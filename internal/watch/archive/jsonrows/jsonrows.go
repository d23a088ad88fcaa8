// Package jsonrows sends rows over HTTP: one JSON object a line, in the body of a
// POST. ClickHouse, VictoriaLogs, Vector and OpenSearch take them.
//
//	{"relay":"relay-a","epoch":7,"id":41,"started":"2026-01-01T00:00:00.000Z","started_ms":1767225600000,…}
//
// The fields are [archive.Columns], the times also in milliseconds. A field that
// is unknown is left out. Two kinds of URL have more to them:
//
//   - A query "INSERT INTO flows FORMAT JSONEachRow" is for ClickHouse, which then
//     answers when the rows are written. [Schema] makes the tables. A row that comes
//     twice is once in the view flows_once.
//   - A path that ends in /_bulk is OpenSearch's. Each row has an ID there, so one
//     that comes twice is refused by itself.
//
// Elsewhere a row that comes twice has the same relay, epoch and id.
package jsonrows

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
)

const (
	// maxBody bounds the rows of one request before compression.
	maxBody = 8 << 20
	// connectPatience bounds the connection and its TLS handshake, each.
	connectPatience = 10 * time.Second
	// maxHeader and maxAnswer bound what is read of an answer, maxBulkAnswer where it speaks of each row.
	maxHeader     = 64 << 10
	maxAnswer     = 64 << 10
	maxBulkAnswer = 16 << 20

	// waitSetting has ClickHouse answer when it has the rows, also where it joins those of several requests.
	waitSetting    = "wait_for_async_insert"
	unknownSetting = 115 // of ClickHouse's codes
)

// Sink posts rows to one URL.
type Sink struct {
	client *endpoint
	bulk   bool // the rows have actions before them, and the answer is read
	most   int  // rows in one request; 0: as many as fit
	plain  bool // the server takes no gzip
	waits  bool // the URL has waitSetting, and the user has not written it

	row  []byte
	body bytes.Buffer
	zip  *gzip.Writer
}

// Open makes the sink of a URL. It does not wait for the network.
func Open(t archive.Target) (*Sink, error) {
	u, query, err := parse(&t)
	if err != nil {
		return nil, err
	}
	waits := false
	if query.Has("query") {
		if _, err := tableOf(query, t.Place); err != nil {
			return nil, err
		}
		if waits = !query.Has(waitSetting); waits {
			query.Set(waitSetting, "1") // a profile of the server may say otherwise
		}
		for name, value := range map[string]string{
			"wait_end_of_query":                "1", // else an error may come after status 200
			"input_format_skip_unknown_fields": "1", // a newer relay may send more than the table has
		} {
			if !query.Has(name) {
				query.Set(name, value)
			}
		}
		if query.Get(waitSetting) == "0" {
			return nil, remedy.New(errors.New("with wait_for_async_insert=0, ClickHouse answers before it has the rows"),
				"take it out of "+t.Place.URL())
		}
	}
	bulk := strings.HasSuffix(u.Path, "/_bulk")
	if bulk && !query.Has("filter_path") {
		query.Set("filter_path", "errors,items.*.status,items.*.error.type,items.*.error.reason")
	}
	u.RawQuery = query.Encode() // also what was written with spaces
	client, err := newEndpoint(t, u)
	if err != nil {
		return nil, err
	}
	return &Sink{client: client, bulk: bulk, waits: waits, zip: newGzip()}, nil
}

// parse reads a URL. The errors are of this package: those of net/url repeat what may be secret.
func parse(t *archive.Target) (*url.URL, url.Values, error) {
	u, err := url.Parse(t.To)
	if err != nil {
		return nil, nil, remedy.New(errors.New(t.Place.URL()+" cannot be read"), "write it like https://vector.example.net/")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, remedy.New(errors.New("invalid query in "+t.Place.URL()), "write ; as %3B and % as %25")
	}
	return u, query, nil
}

// newGzip makes a writer of the fastest level. It leaves a seventh of the rows' size, and the best one an eighth.
func newGzip() *gzip.Writer {
	w, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // the level is one that there is
	return w
}

// Close closes the connection.
func (s *Sink) Close() error {
	s.client.close()
	return nil
}

// Deliver posts rows, in several requests if the server does not take all at once.
func (s *Sink) Deliver(ctx context.Context, rows []archive.Row) error {
	for len(rows) > 0 {
		n, err := s.encode(rows)
		if err != nil {
			return err
		}
		err = s.post(ctx, n)
		refusal := (*refusal)(nil)
		switch {
		case err == nil:
			rows = rows[n:]
		case !errors.As(err, &refusal):
			return err
		case refusal.status == http.StatusRequestEntityTooLarge && n > 1:
			s.most = n / 2
		case refusal.code == unknownSetting && s.waits:
			s.waits = false // a server before version 21 joins no rows of several requests
			query := s.client.url.Query()
			query.Del(waitSetting)
			s.client.url.RawQuery = query.Encode()
		case refusal.status == http.StatusUnsupportedMediaType && !s.plain:
			s.plain = true // RFC 7694, section 3
		default:
			return refusal.explained()
		}
	}
	return nil
}

// encode makes the body of a request of the first n rows.
func (s *Sink) encode(rows []archive.Row) (n int, err error) {
	s.body.Reset()
	s.zip.Reset(&s.body)
	to := io.Writer(s.zip)
	if s.plain {
		to = &s.body
	}
	for size := 0; n < len(rows) && (s.most == 0 || n < s.most); n++ {
		s.row = s.row[:0]
		if s.bulk {
			s.row = appendAction(s.row, &rows[n])
		}
		s.row = appendRow(s.row, &rows[n])
		if size += len(s.row); size > maxBody && n > 0 {
			break
		}
		if _, err := to.Write(s.row); err != nil {
			return 0, err
		}
	}
	if s.plain {
		return n, nil
	}
	return n, s.zip.Close()
}

// post sends the body, of n rows.
func (s *Sink) post(ctx context.Context, n int) error {
	header := http.Header{"Content-Type": {"application/x-ndjson"}}
	if !s.plain {
		header.Set("Content-Encoding", "gzip")
	}
	response, err := s.client.post(ctx, header, s.body.Bytes())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if s.bulk && response.StatusCode/100 == 2 {
		return s.client.readBulk(response, n)
	}
	_, err = s.client.read(response)
	return err
}

// endpoint is a server that is asked by POST.
type endpoint struct {
	target archive.Target
	url    *url.URL // without a user
	user   *url.Userinfo
	client *http.Client
	secret string // of the last request; it is taken out of what the server answers
}

func newEndpoint(t archive.Target, u *url.URL) (*endpoint, error) {
	e := &endpoint{target: t, user: u.User}
	address := *u
	address.User, address.Fragment = nil, ""
	e.url = &address
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if config.RootCAs, err = t.Authorities(); err != nil {
		return nil, err
	}
	if t.Certificate != "" {
		// At each handshake, so that the files can be renewed.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
			if err != nil {
				return nil, remedy.New(fmt.Errorf("load the certificate for the sink: %w", err), "name a certificate and its key in PEM")
			}
			return &pair, nil
		}
	}
	dialer := &net.Dialer{Timeout: connectPatience}
	dialer.SetMultipathTCP(false)
	e.client = &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: connectPatience,
			MaxConnsPerHost: 1, MaxResponseHeaderBytes: maxHeader, DisableCompression: true,
		},
		// No other server gets the rows, or the password.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return e, nil
}

func (e *endpoint) close() { e.client.CloseIdleConnections() }

// post sends one request. The answer's body is the caller's to close.
func (e *endpoint) post(ctx context.Context, header http.Header, body []byte) (*http.Response, error) {
	for {
		var kept bool
		trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { kept = c.Reused }}
		request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, e.url.String(), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		request.Header = header
		if e.secret, err = e.target.Password(); err != nil {
			return nil, err
		}
		if strings.ContainsFunc(e.secret, func(r rune) bool { return r < ' ' || r == 0x7f }) { // no header takes it
			return nil, remedy.New(fmt.Errorf("no password in %s: its first line is no text", e.target.PasswordFile), "write it on the first line of the file, as text")
		}
		switch {
		case e.user != nil:
			request.SetBasicAuth(e.user.Username(), e.secret)
		case e.secret != "":
			request.Header.Set("Authorization", "Bearer "+e.secret)
		}
		response, err := e.client.Do(request)
		switch {
		case err == nil:
			return response, nil
		case !kept || ctx.Err() != nil:
			return nil, e.failed(err)
		}
		// Servers close connections that were idle; the next attempt makes one.
	}
}

// quoted is a server's word as part of a sentence.
func quoted(status int, line string) string {
	text := strconv.Itoa(status)
	if word := http.StatusText(status); word != "" {
		text += " " + word
	}
	if line != "" {
		text += ": " + line
	}
	return text
}
