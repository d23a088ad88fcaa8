package config

import (
	"net/netip"
	"path/filepath"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
)

// Dashboard configures the dashboard's addresses and access.
type Dashboard struct {
	Listen []netip.AddrPort // empty: no dashboard

	// All three or none; none only with loopback addresses.
	TLSCert   string
	TLSKey    string
	TokenFile string

	// Database has the records of many relays, for Transfers and History; empty: the relay's own.
	Database     string
	PasswordFile string // of Database; empty: none
}

// dashboard decodes the `dashboard` mapping.
func (d *decoder) dashboard(n *node, c *Dashboard) {
	if n.kind == scalar && n.text == Off {
		return
	}
	if n.kind == scalar {
		d.errorf(n, "write off, or a mapping such as {listen: 127.0.0.1:9464}", "dashboard cannot be %q", n.text)
		return
	}
	before := len(d.errs)
	file := d.secretFile("dashboard", "/etc/longhaul/dashboard.pem")
	d.mapping(n, "dashboard",
		into("listen", &c.Listen, func(n *node, _ string) ([]netip.AddrPort, bool) { return d.httpListen(n, "dashboard.listen") }),
		into("tls_cert", &c.TLSCert, file),
		into("tls_key", &c.TLSKey, file),
		into("token_file", &c.TokenFile, file),
		into("database", &c.Database, d.database),
		into("password_file", &c.PasswordFile, d.secretFile("dashboard", "/etc/longhaul/reader.password")),
	)
	if n.kind != mapping || len(d.errs) > before {
		return
	}
	if c.PasswordFile != "" && c.Database == "" {
		d.errorf(n, "add database: postgres://reader@db.example.net/longhaul, or remove it", "dashboard.password_file belongs to dashboard.database")
		return
	}
	const token = "make a token with: (umask 077; openssl rand -hex 32 > /etc/longhaul/dashboard.token)"
	missing := ""
	for key, value := range map[string]string{"tls_cert": c.TLSCert, "tls_key": c.TLSKey, "token_file": c.TokenFile} {
		if value == "" && (missing == "" || key < missing) {
			missing = key
		}
	}
	some := c.TLSCert != "" || c.TLSKey != "" || c.TokenFile != ""
	switch {
	case missing == "":
	case len(c.Listen) == 0 && !some:
		d.errorf(n, "add listen: 127.0.0.1:9464, or write dashboard: off", "dashboard has no listen")
		return
	case some:
		d.errorf(n, "add "+missing+", or remove the others and listen on a loopback address; "+token,
			"dashboard has no %s: tls_cert, tls_key and token_file go together", missing)
		return
	default:
		for _, at := range c.Listen {
			if !at.Addr().IsLoopback() {
				d.errorf(n, "add tls_cert, tls_key and token_file, "+
					"or listen on 127.0.0.1 and connect with ssh -L as root; "+token,
					"dashboard.listen has %s, which other hosts reach: that takes TLS and a token", at)
				return
			}
		}
	}
	d.checkDashboard(n, c)
}

func (d *decoder) checkDashboard(n *node, c *Dashboard) {
	if len(c.Listen) == 0 {
		d.errorf(n, "add listen: 127.0.0.1:9464, or write dashboard: off", "dashboard has no listen")
		return
	}
	if c.TLSCert == "" || d.loader.CheckDashboard == nil {
		return
	}
	if problem, fix := d.loader.CheckDashboard(*c); problem != "" {
		d.errorf(n, fix, "%s", problem)
	}
}

// database decodes the URL of a database that longhaul reads.
func (d *decoder) database(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return "", false
	}
	t, err := archive.DatabaseKey.Parse(s)
	switch {
	case err != nil:
		d.errorf(n, remedy.Of(err), "dashboard.%s cannot be used: %s", key, err)
		return "", false
	case t.Kind != archive.Postgres:
		d.errorf(n, "name one like postgres://reader@db.example.net/longhaul", "dashboard.%s is no database that longhaul reads", key)
		return "", false
	}
	return s, true
}

// secretFile decodes the path of a file, of which only the relay's user may read some.
func (d *decoder) secretFile(section, example string) func(*node, string) (string, bool) {
	return func(n *node, key string) (string, bool) {
		s, ok := d.text(n, key)
		if ok && !filepath.IsAbs(s) {
			d.errorf(n, "use an absolute path such as "+example, "%s.%s cannot be %q", section, key, s)
			return "", false
		}
		return s, ok
	}
}
