package jsonrows

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
)

// maxLine bounds what is repeated of a server's answer.
const maxLine = 200

// refusal is what a server says that has not taken the rows.
type refusal struct {
	host   string
	status int
	code   int    // of an exception of ClickHouse; 0: none
	kind   string // of an error of OpenSearch; empty: none
	line   string // the server's own, bounded and printable
	target string // where a redirect leads, a host
	place  archive.Place
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%s does not take the records: %s", r.host, quoted(r.status, r.line))
}

// explained is the refusal with its remedy.
func (r *refusal) explained() error { return remedy.New(r, r.remedy()) }

func (r *refusal) remedy() string {
	return strings.ReplaceAll(r.fix(), "the sink's URL", r.place.URL()) // the tables' words
}

func (r *refusal) fix() string {
	if fix := exceptionRemedies[r.code]; fix != "" {
		return fix
	}
	if fix := bulkRemedies[r.kind]; fix != "" {
		return fix
	}
	switch {
	case r.code != 0:
		return "see code " + strconv.Itoa(r.code) + " in the log of ClickHouse"
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden:
		return remedyCredentials
	case r.status == http.StatusNotFound, r.status == http.StatusMethodNotAllowed:
		return "compare the path of the sink's URL with the server's manual"
	case r.status == http.StatusRequestEntityTooLarge:
		return "raise the server's limit of a request's size: it refuses a single record"
	case r.status == http.StatusUnsupportedMediaType:
		return "name a URL that takes JSON, one object a line"
	case r.status == http.StatusTooManyRequests, r.status >= http.StatusBadGateway && r.status <= http.StatusGatewayTimeout:
		return "see why the server is busy or away; the records are sent again"
	case r.target != "":
		return "name the place itself in the sink's URL: it is at " + r.target
	case r.status < http.StatusInternalServerError:
		return "compare the sink's URL with the server's manual"
	}
	return "see the server's log"
}

const (
	remedyCredentials = "set the user in the sink's URL and the password in its file to those of the server"
	remedySchema      = "make or migrate the tables with longhaul history schema --to URL"
	remedyRights      = "grant the user INSERT on the table"
	remedySpace       = "free space on the server's disk"
	remedyLoad        = "see why the server is overloaded; the records are sent again"
)

// exceptionRemedies are those of ClickHouse's codes (src/Common/ErrorCodes.cpp).
var exceptionRemedies = map[int]string{
	16: remedySchema, 47: remedySchema, 60: remedySchema, 81: remedySchema, 117: remedySchema,
	26: remedySchema, 27: remedySchema, 41: remedySchema, 53: remedySchema, // values of other types
	62:  "end the sink's URL with ?query=INSERT INTO flows FORMAT JSONEachRow",
	73:  "end the sink's URL with ?query=INSERT INTO flows FORMAT JSONEachRow",
	115: "take the setting that the server does not have out of the sink's URL",
	164: "set readonly to 0 in the profile of the user",
	192: remedyCredentials, 193: remedyCredentials, 194: remedyCredentials, 516: remedyCredentials,
	195: "allow the relay's address in the user's networks",
	201: "raise the user's quota",
	202: remedyLoad, 209: remedyLoad, 159: remedyLoad,
	241: "raise max_memory_usage or free memory on the server",
	242: "see why the replica is read-only, most often its Keeper is away",
	243: remedySpace, 74: remedySpace, 75: remedySpace,
	252: "add &async_insert=1 to the sink's URL, so that the server joins the rows of many relays",
	291: "allow the user this database", 497: remedyRights,
}

// bulkRemedies are those of OpenSearch's types of errors.
var bulkRemedies = map[string]string{
	"mapper_parsing_exception":         "make an index whose fields take the records, or delete the one that does not",
	"document_parsing_exception":       "make an index whose fields take the records, or delete the one that does not",
	"strict_dynamic_mapping_exception": "add the field to the index, or let it be dynamic",
	"illegal_argument_exception":       "compare the index and its mapping with the records",
	"cluster_block_exception":          "free space on the server's disk, then take the block off the index",
	"index_not_found_exception":        "make the index, or allow that it is made",
	"index_closed_exception":           "open the index",
	"security_exception":               remedyCredentials,
	"rejected_execution_exception":     remedyLoad,
}

// exceptionCode is how ClickHouse begins an error's text.
var exceptionCode = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|\n)Code: (\d{1,9})[.,] .*Exception`)
})

// read reads an answer. Nil: the server has the rows.
func (e *endpoint) read(response *http.Response) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, e.failed(err)
	}
	r := e.refusal(response, text)
	// ClickHouse may fail after it has begun to answer with status 200.
	exception := response.Header.Get("X-ClickHouse-Exception-Code")
	if found := exceptionCode().FindSubmatch(text); exception == "" && found != nil {
		exception = string(found[1])
	}
	r.code, _ = strconv.Atoi(exception)
	if response.StatusCode/100 == 2 && r.code == 0 {
		return text, nil
	}
	return nil, r
}

// refusal is that of a response with a text.
func (e *endpoint) refusal(response *http.Response, text []byte) *refusal {
	r := &refusal{host: e.url.Host, status: response.StatusCode, line: e.line(string(text)), place: e.target.Place}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/html") {
		r.line = "" // a page, for eyes
	}
	if location, err := response.Location(); err == nil && response.StatusCode/100 == 3 {
		r.target = e.line(location.Scheme + "://" + location.Host + location.Path)
	}
	return r
}

// line is the first line of a server's text that says something, without the secret that it was sent.
func (e *endpoint) line(text string) string {
	text = strings.TrimSpace(text)
	line, _, _ := strings.Cut(text, "\n")
	if e.secret != "" {
		line = strings.ReplaceAll(line, e.secret, "***")
		line = strings.ReplaceAll(line, base64.StdEncoding.EncodeToString([]byte(e.user.Username()+":"+e.secret)), "***")
	}
	line = strings.TrimSuffix(printable.String(strings.TrimSpace(line)), ", e.what() = DB::Exception")
	if len(line) > maxLine {
		cut := maxLine
		for !utf8.RuneStart(line[cut]) {
			cut--
		}
		line = line[:cut] + "…"
	}
	return line
}

// failed is why a request has no answer, with the remedy.
func (e *endpoint) failed(err error) error {
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // without the URL, which may be long
	}
	fix := "see whether the server is up and reachable"
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	var lookup *net.DNSError
	var wait net.Error
	switch {
	case remedy.Of(err) != "":
		fix = remedy.Of(err)
	case errors.As(err, &unknown):
		if fix = "name the file with the server's authority as ca"; e.target.Place != archive.ShipKey {
			fix = "add the server's authority to those of this host"
		}
	case errors.As(err, &hostname):
		fix = "name the server in " + e.target.Place.URL() + " as its certificate does"
	case errors.As(err, &invalid):
		fix = "renew the server's certificate, or set the clock"
	case errors.Is(err, http.ErrSchemeMismatch):
		fix = "use http:// or the port for TLS: the server does not speak TLS there"
	case errors.As(err, &alert):
		fix = "name a certificate and key that the server accepts"
	case errors.As(err, &lookup):
		fix = "correct the name in " + e.target.Place.URL() + ", or the resolver"
	case errors.Is(err, syscall.ECONNREFUSED):
		fix = "start the server, or correct the port in " + e.target.Place.URL()
	case e.url.Scheme == "https" && errors.As(err, &wait) && wait.Timeout():
		fix += ", and takes HTTPS there, not http://" // which may wait for the end of a line
	}
	failure := fmt.Errorf("send records to %s: %s", e.url.Host, e.line(err.Error()))
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		if err == end { // not that of a connection, which has a shorter time
			failure = fmt.Errorf("send records to %s: %w", e.url.Host, end)
		}
	}
	return remedy.New(failure, fix)
}
