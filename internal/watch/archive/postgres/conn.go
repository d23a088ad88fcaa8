package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
)

// session is what a connection must be able to do, by libpq's target_session_attrs.
type session string

const (
	reading session = "any"
	writing session = "read-write" // of several hosts of a URL the one that is no standby
)

const (
	// connectTimeoutS bounds an attempt at one host, in seconds, unless the URL does.
	connectTimeoutS = "10"
	// maxMessage bounds a message of the server, in bytes. The longest answer that longhaul asks for is a record.
	maxMessage = 16 << 20
)

// connect makes a connection. Errors have remedies.
func connect(ctx context.Context, t *archive.Target, config *pgconn.Config) (*pgconn.PgConn, error) {
	conn, err := dial(ctx, t, config)
	if err != nil {
		return nil, err
	}
	if encoding := conn.ParameterStatus("server_encoding"); encoding != "UTF8" {
		closeNow(conn)
		return nil, remedy.New(fmt.Errorf("the database %s has the encoding %s", config.Database, encoding),
			"make one with UTF8: createdb --template template0 --encoding UTF8 "+config.Database)
	}
	return conn, nil
}

// dial makes a connection, whatever the database's encoding. Errors have remedies.
func dial(ctx context.Context, t *archive.Target, config *pgconn.Config) (*pgconn.PgConn, error) {
	conn, err := pgconn.ConnectConfig(ctx, config)
	if sqlState(err) == "28P01" && t.PasswordFile == "" && config.Password != "" { // see configOfUser
		return nil, remedy.New(errors.New("the database refuses the password"), "correct PGPASSWORD or the line in ~/.pgpass, or name a file: "+t.Place.Password())
	}
	return conn, explain(err, t)
}

// closeNow closes a connection without waiting for the server.
func closeNow(conn *pgconn.PgConn) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.Close(ctx) // whatever it says: it is closed
}

// configOf is the configuration of a target's connections. It reads the files that it names.
func configOf(t *archive.Target, s session) (*pgconn.Config, error) {
	to, err := complete(t, s)
	if err != nil {
		return nil, err
	}
	os.Unsetenv("PGSERVICE") // pgconn reads the file of services wherever it is set; nothing else here does
	config, err := pgconn.ParseConfig(to)
	if err != nil {
		if inner := errors.Unwrap(err); inner != nil { // without the URL, and what it has instead of a secret
			err = inner
		}
		return nil, remedy.New(fmt.Errorf("cannot use %s: %w", t.To, err), "correct "+t.Place.URL()+" or its files")
	}
	if t.PasswordFile != "" {
		if config.Password, err = t.Password(); err != nil {
			return nil, err
		}
	}
	config.MaxProtocolMessageBodyLen = maxMessage
	return config, nil
}

// configOfUser is configOf for somebody at a shell: PGPASSWORD, PGPASSFILE and ~/.pgpass give the
// password that no file of the target gives.
func configOfUser(t archive.Target, s session) (*pgconn.Config, error) {
	if t.PasswordFile != "" {
		return configOf(&t, s)
	}
	if home, err := os.UserHomeDir(); err == nil {
		t.To = withPassFile(t.To, cmp.Or(os.Getenv("PGPASSFILE"), filepath.Join(home, ".pgpass")))
	}
	config, err := configOf(&t, s)
	if secret := os.Getenv("PGPASSWORD"); err == nil && secret != "" {
		config.Password = secret
	}
	return config, err
}

// withPassFile names the file that libpq and psql take passwords from.
func withPassFile(to, file string) string {
	separator := "?"
	if strings.Contains(to, "?") {
		separator = "&"
	}
	return to + separator + "passfile=" + url.QueryEscape(file)
}

// complete is a target's URL with everything that pgconn would take from somewhere else: from the
// variables PGHOST, PGSSLMODE and so on of the process, or from files of its user.
func complete(t *archive.Target, s session) (string, error) {
	u, err := url.Parse(t.To)
	if err != nil {
		return "", remedy.New(errors.New(t.Place.URL()+" cannot be read"), "write it like postgres://longhaul@db.example.net/longhaul")
	}
	query := u.Query()
	usual := func(key, value string) {
		if !query.Has(key) {
			query.Set(key, value)
		}
	}
	name := u.User.Username()
	if name == "" {
		name = query.Get("user")
	}
	if name == "" {
		self, err := user.Current()
		if err != nil {
			return "", remedy.New(fmt.Errorf("%s has no user: %w", t.Place.URL(), err), "write it like postgres://longhaul@db.example.net/longhaul")
		}
		name = self.Username
		query.Set("user", name)
	}
	if strings.Trim(u.Path, "/") == "" && !query.Has("dbname") {
		usual("database", name) // as psql has it
	}
	if u.Port() == "" {
		usual("port", "5432")
	}
	hosts := u.Host
	if query.Has("host") {
		hosts = query.Get("host")
	}
	if t.CA != "" {
		if mode := query.Get("sslmode"); mode == "disable" || mode == "allow" || mode == "prefer" {
			return "", remedy.New(fmt.Errorf("with sslmode=%s the server's certificate is not held against %s", mode, t.CA),
				"leave out either sslmode or ca")
		}
		query.Set("sslrootcert", t.CA)
	}
	if t.Certificate != "" {
		query.Set("sslcert", t.Certificate)
		query.Set("sslkey", t.Key)
	}
	mode := "verify-full"
	if onThisHost(hosts) && t.CA == "" {
		mode = "prefer"
	}
	usual("sslmode", mode)
	if mode := query.Get("sslmode"); mode != "verify-full" && mode != "verify-ca" && !onThisHost(hosts) {
		usual("require_auth", "!password") // else whoever poses as the server could ask for it in plain text
	}
	for key, value := range map[string]string{
		"application_name": "longhaul", "connect_timeout": connectTimeoutS, "client_encoding": "UTF8", "timezone": "UTC",
		"target_session_attrs": string(s), "sslrootcert": "", "sslcert": "", "sslkey": "", "sslpassword": "", "sslcertmode": "allow",
		"sslsni": "1", "sslnegotiation": "postgres", "channel_binding": "prefer", "require_auth": "", "passfile": "", "password": "",
		"min_protocol_version": "", "max_protocol_version": "", "options": "",
	} {
		usual(key, value)
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// onThisHost is whether what is sent to hosts leaves this one nowhere.
func onThisHost(hosts string) bool {
	for host := range strings.SplitSeq(hosts, ",") {
		if strings.HasPrefix(host, "/") || host == "localhost" {
			continue
		}
		if h := (&url.URL{Host: host}).Hostname(); h == "localhost" {
			continue
		} else if addr, err := netip.ParseAddr(h); err == nil && addr.IsLoopback() {
			continue
		}
		return false
	}
	return true
}
