package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
)

// maxServerText bounds what is repeated of a server's message, in bytes.
const maxServerText = 200

// explain turns an error into one sentence with its remedy. The end of the context stays itself.
func explain(err error, t *archive.Target) error {
	var server *pgconn.PgError
	switch {
	case err == nil || remedy.Of(err) != "":
		return err
	case errors.As(err, &server):
		return explainServer(server, t)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) && !isConnect(err):
		return err
	}
	return explainNetwork(err, t)
}

// isConnect is whether an error is of an attempt to connect, which has a bound of its own.
func isConnect(err error) bool {
	var c *pgconn.ConnectError
	return errors.As(err, &c)
}

// explainServer is for errors that the server names (PostgreSQL's appendix A).
func explainServer(e *pgconn.PgError, t *archive.Target) error {
	said := printable.String(e.Message)
	if len(said) > maxServerText {
		said = strings.ToValidUTF8(said[:maxServerText], "") + "…"
	}
	schema := "run longhaul history schema --to " + t.To
	say := func(fix, format string, args ...any) error { return remedy.New(fmt.Errorf(format, args...), fix) }
	switch e.Code {
	case "28P01":
		if t.PasswordFile == "" {
			return say("put the password into a file and name it: "+t.Place.Password(), "the database asks for a password")
		}
		return say("correct it in "+t.PasswordFile, "the database refuses the password")
	case "28000":
		if strings.Contains(said, "certificate") {
			return say("name one that it trusts: "+t.Place.Certificate(), "the database lets nobody in as that: %s", said)
		}
		return say("make the role, or allow it in the server's pg_hba.conf", "the database lets nobody in as that: %s", said)
	case "3D000":
		return say("make it with createdb, then "+schema, "no such database: %s", said)
	case "42P01", "3F000", "42883":
		return say(schema, "the database lacks longhaul's tables: %s", said)
	case "42501":
		return say("have the owner of its tables run longhaul history schema with --writer ROLE, or --reader ROLE for who only reads",
			"the database's role lacks a right: %s", said)
	case "25006":
		return say("name the primary in "+t.Place.URL()+", or both hosts: postgres://USER@HOST1,HOST2/DATABASE", "the database is read-only: %s", said)
	case "53100":
		return say("make room on the database's disk; longhaul history schema --keep drops old days", "the database's disk is full: %s", said)
	case "53300":
		return say("raise max_connections of the server, or put PgBouncer in front of it", "the database has no connection left: %s", said)
	case "57P01", "57P02", "57P03":
		return say("start it if it does not come back", "the database is going down or coming up: %s", said)
	case "55P03", "57014", "40P01", "25P03":
		return say("see in pg_stat_activity who holds locks for long", "the database is too slow or locked: %s", said)
	}
	return say("see the log of the database", "the database refuses: %s (%s)", said, e.Code)
}

// explainNetwork is for errors on the way to the server.
func explainNetwork(err error, t *archive.Target) error {
	where := t.To
	if u, bad := url.Parse(t.To); bad == nil {
		if where = u.Host; where == "" {
			where = u.Query().Get("host")
		}
	}
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
		verify  *tls.CertificateVerificationError
		alert   tls.AlertError
		dns     *net.DNSError
		timeout net.Error
	)
	text := err.Error()
	say := func(fix, format string, args ...any) error { return remedy.New(fmt.Errorf(format, args...), fix) }
	switch {
	case strings.Contains(text, "server refused TLS connection"):
		return say("set ssl = on there; add sslmode=disable to "+t.Place.URL()+" only where the network is yours", "the database at %s has no TLS", where)
	case strings.Contains(text, "read only connection"):
		return say("name the primary in "+t.Place.URL()+", or both hosts: postgres://USER@HOST1,HOST2/DATABASE", "the database at %s is read-only, such as a standby is", where)
	case errors.As(err, &name):
		return say("name the host as its certificate does", "the database at %s has the certificate of another host: %v", where, name)
	case errors.As(err, &verify), errors.As(err, &unknown), errors.As(err, &invalid):
		return say("name the authority's file: "+t.Place.Authorities(), "the certificate of the database at %s is not trusted: %s", where, innermost(err))
	case errors.As(err, &alert):
		return say("name a certificate that it trusts: "+t.Place.Certificate(), "the database at %s refuses TLS: %v", where, alert)
	case strings.Contains(text, "require_auth"):
		return say("use sslmode=verify-full, or scram-sha-256 in its pg_hba.conf", "the database at %s asks for the password in plain text over a connection that is not verified", where)
	case errors.As(err, &dns):
		return say("correct the host in "+t.Place.URL()+", or the name service", "no address for the database: %v", dns)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return say("start the server, or correct host and port in "+t.Place.URL(), "no database answers at %s: %s", where, innermost(err))
	case isConnect(err) && errors.As(err, &timeout) && timeout.Timeout(), isConnect(err) && errors.Is(err, context.DeadlineExceeded):
		return say("see whether it is up and reachable", "no answer from the database at %s", where)
	case isConnect(err):
		return say("see whether it is up and reachable", "cannot connect to the database at %s: %s", where, innermost(err))
	}
	return say("see whether it is up, and its log", "the connection to the database at %s broke: %s", where, innermost(err))
}

// innermost is the text of the first cause of an error, on one line.
func innermost(err error) string {
	for {
		var several interface{ Unwrap() []error }
		if inner := errors.Unwrap(err); inner != nil {
			err = inner
		} else if errors.As(err, &several) && len(several.Unwrap()) > 0 {
			err = several.Unwrap()[len(several.Unwrap())-1]
		} else {
			return printable.String(err.Error())
		}
	}
}
