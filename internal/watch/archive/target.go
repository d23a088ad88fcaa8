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

// Place is where a URL was given. Errors name what can be changed there.
type Place string

// The places.
const (
	ShipKey     Place = ""                   // the configuration's history.ship
	DatabaseKey Place = "dashboard.database" // likewise
	DBFlag      Place = "--db"
	ToFlag      Place = "--to"
)

// name is how a sentence names what was given.
func (p Place) name() string {
	if p == ShipKey {
		return "the sink"
	}
	return string(p)
}

// URL is how a sentence names the URL.
func (p Place) URL() string {
	if p == ShipKey {
		return "the sink's URL"
	}
	return "the URL of " + string(p)
}

// Password is what gives the file of a password.
func (p Place) Password() string {
	switch p {
	case ShipKey:
		return "password_file"
	case DatabaseKey:
		return "dashboard.password_file"
	}
	return "--password-file"
}

// Authorities is what gives the file of the authorities.
func (p Place) Authorities() string {
	if p == ShipKey {
		return "ca"
	}
	return "sslrootcert in " + p.URL()
}

// Certificate is what gives the own certificate and its key.
func (p Place) Certificate() string {
	if p == ShipKey {
		return "cert and key"
	}
	return "sslcert and sslkey in " + p.URL()
}

// Target is a sink, or a database that is read, as a configuration or a command names it.
type Target struct {
	Place Place  `json:"-"`
	Name  string // the sink's in status, metrics and the spool; empty: To
	Kind  Kind
	To    string // a URL without secrets

	// PasswordFile has the password of the user in To; without a user in an HTTP URL, a bearer token.
	// It is read for each connection, so that it can be changed. Empty: none.
	PasswordFile     string
	CA               string // file of the authorities that a server's certificate is held against; empty: the system's
	Certificate, Key string // files, for mutual TLS
	Clients          Clients
	Biflow           bool // IPFIX: both directions in one record (RFC 5103)
}

// ParseTarget reads the URL of a sink, see [Place.Parse].
func ParseTarget(to string) (Target, error) { return ShipKey.Parse(to) }

// Parse reads a URL and finds the kind of its sink. A secret in it is an error.
func (p Place) Parse(to string) (Target, error) {
	t := Target{Place: p, To: to, Clients: WholeClients, Biflow: true}
	u, err := url.Parse(to)
	if err != nil || u.Scheme == "" {
		return t, remedy.New(errors.New(p.name()+" is not a URL"), // the error would repeat a password
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
		if p != ShipKey {
			return t, remedy.New(fmt.Errorf("%s has no database of longhaul's: %q", p.name(), u.Scheme+"://"), "write it like postgres://reader@db.example.net/longhaul")
		}
		return t, remedy.New(fmt.Errorf("unknown kind of sink %q", u.Scheme+"://"),
			"use postgres://, https://, http://, ipfix:// or ipfix+udp://")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil { // the error would repeat what may be a secret
		return t, remedy.New(errors.New("the query of "+p.URL()+" cannot be read"), "write & between its parts, %3B for a semicolon")
	}
	for key := range query {
		for _, secret := range []string{"password", "token", "api_key", "apikey", "secret"} {
			if strings.Contains(strings.ToLower(key), secret) {
				return t, p.secretError()
			}
		}
	}
	if _, has := u.User.Password(); has {
		return t, p.secretError()
	}
	if u.Hostname() == "" && !(t.Kind == Postgres && query.Get("host") != "") {
		return t, remedy.New(errors.New(p.URL()+" has no host"), "write it like "+u.Scheme+"://db.example.net/")
	}
	if t.Kind == Postgres {
		switch socket := query.Get("host") != ""; {
		case strings.Trim(u.Path, "/") == "" && !query.Has("dbname"):
			return t, remedy.New(errors.New(p.URL()+" names no database"), "write it like postgres://relays@db.example.net/longhaul")
		case u.User.Username() == "" && !query.Has("user") && !socket: // over a socket it is the system's user
			return t, remedy.New(errors.New(p.URL()+" names no user"), "write it like postgres://relays@db.example.net/longhaul")
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

func (p Place) secretError() error {
	fix := "leave it out and name a file: " + p.Password() + " FILE"
	switch p {
	case ShipKey:
		fix = "leave it out and name a file: password_file: /etc/longhaul/sink.password"
	case DatabaseKey:
		fix = "leave it out and name a file: password_file: /etc/longhaul/reader.password"
	}
	return remedy.New(errors.New(p.URL()+" has a password in it"), fix)
}

// Label is the sink's name where people read it.
func (t *Target) Label() string {
	if t.Name != "" {
		return t.Name
	}
	return t.To
}
