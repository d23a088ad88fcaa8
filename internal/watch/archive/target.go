package archive

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"longhaul/internal/words/remedy"
)

// Kind is a kind of sink.
type Kind string

// The kinds, by the schemes of their URLs.
const (
	Postgres Kind = "postgres"  // postgres://USER@HOST:PORT/DATABASE?sslmode=verify-full
	JSONRows Kind = "json-rows" // http:// or https://, a POST of JSON rows, one a line
	IPFIX    Kind = "ipfix"     // ipfix://HOST:PORT over TCP, ipfix+udp://HOST:PORT
)

// Target is a sink as a configuration or a command names it.
type Target struct {
	Name string // the sink's in status, metrics and the spool; empty: To
	Kind Kind
	To   string // a URL without secrets

	// PasswordFile has the password of the user in To; without a user in an HTTP URL, a bearer token.
	// It is read for each connection, so that it can be changed. Empty: none.
	PasswordFile     string
	CA               string // file of the authorities that a server's certificate is held against; empty: the system's
	Certificate, Key string // files, for mutual TLS
	Clients          Clients
	Biflow           bool // IPFIX: both directions in one record (RFC 5103)
}

// ParseTarget reads a URL and finds the kind of its sink. A secret in it is an error.
func ParseTarget(to string) (Target, error) {
	t := Target{To: to, Clients: WholeClients, Biflow: true}
	u, err := url.Parse(to)
	if err != nil || u.Scheme == "" {
		return t, remedy.New(errors.New("the sink is not a URL"), // the error would repeat a password
			"write it like postgres://longhaul@db.example.net/longhaul")
	}
	switch u.Scheme {
	case "postgres", "postgresql":
		t.Kind = Postgres
	case "http", "https":
		t.Kind = JSONRows
	case "ipfix", "ipfix+udp":
		t.Kind = IPFIX
	default:
		return t, remedy.New(fmt.Errorf("unknown kind of sink %q", u.Scheme+"://"),
			"use postgres://, https://, http://, ipfix:// or ipfix+udp://")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil { // the error would repeat what may be a secret
		return t, remedy.New(errors.New("the query of the sink's URL cannot be read"), "write & between its parts, %3B for a semicolon")
	}
	for key := range query {
		for _, secret := range []string{"password", "token", "api_key", "apikey", "secret"} {
			if strings.Contains(strings.ToLower(key), secret) {
				return t, secretError()
			}
		}
	}
	if _, has := u.User.Password(); has {
		return t, secretError()
	}
	if u.Hostname() == "" && !(t.Kind == Postgres && query.Get("host") != "") {
		return t, remedy.New(errors.New("the sink's URL has no host"), "write it like "+u.Scheme+"://db.example.net/")
	}
	if t.Kind == Postgres {
		switch socket := query.Get("host") != ""; {
		case strings.Trim(u.Path, "/") == "" && !query.Has("dbname"):
			return t, remedy.New(errors.New("the URL names no database"), "write it like postgres://relays@db.example.net/longhaul")
		case u.User.Username() == "" && !query.Has("user") && !socket: // over a socket it is the system's user
			return t, remedy.New(errors.New("the URL names no user"), "write it like postgres://relays@db.example.net/longhaul")
		}
	}
	if t.Kind == IPFIX {
		if u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
			return t, remedy.New(errors.New("a collector's URL has a host and a port only"), "write it like "+u.Scheme+"://10.0.0.9:4739")
		}
		if u.Port() == "" {
			t.To = u.Scheme + "://" + net.JoinHostPort(u.Hostname(), "4739") // RFC 7011, section 10.3.4
		}
	}
	return t, nil
}

func secretError() error {
	return remedy.New(errors.New("the sink's URL has a password in it"),
		"leave it out and name a file: password_file: /etc/longhaul/sink.password")
}

// Label is the sink's name where people read it.
func (t *Target) Label() string {
	if t.Name != "" {
		return t.Name
	}
	return t.To
}
