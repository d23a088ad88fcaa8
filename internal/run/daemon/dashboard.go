package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/sys/localsocket"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres"
	"longhaul/internal/watch/monitor/history"
	board "longhaul/internal/watch/web"
)

// dashboard is the part that serves the dashboard on every address of the configuration.
type dashboard struct {
	*httpSite
	history      *historyKeeper
	readablePath func(path string) string
	board        *board.Dashboard
	usesToken    atomic.Bool     // in force
	token        *board.Token    // the one in force, and its sessions
	reader       *history.Reader // nil: records are not kept
	database     databaseChoice
	many         *postgres.Reader // of database; nil: none is configured
}

// databaseChoice is what a configuration says of the database; the zero value is none.
type databaseChoice struct{ url, passwordFile string }

// databasePatience is how long a page waits for the database, its turn included. It is below the
// time for a reply ([board.Limits]).
const databasePatience = 12 * time.Second

// open makes the reader, which connects with the first question; nil: no database.
func (c databaseChoice) open() (*postgres.Reader, error) {
	if c.url == "" {
		return nil, nil
	}
	t, err := archive.DatabaseKey.Parse(c.url)
	if err != nil {
		return nil, err
	}
	t.PasswordFile = c.passwordFile
	return postgres.OpenReader(t, postgres.ReaderOptions{Patience: databasePatience})
}

// readDatabase has the dashboard read another database.
func (d *dashboard) readDatabase(c databaseChoice, r *postgres.Reader) {
	before := d.many
	d.database, d.many = c, r
	if r != nil {
		d.board.SetDatabase(r)
	} else {
		d.board.SetDatabase(nil)
	}
	if before != nil {
		before.Close()
	}
}

// dashboardSecrets are the guard of TLS and a token; the zero value is for addresses that only this host
// reaches.
type dashboardSecrets struct {
	guard *webconfig.Guard
	token string // empty: the guard admits readers
}

// newDashboard returns a dashboard without addresses.
func newDashboard(log *slog.Logger, m board.Monitor, events func(since time.Time) []flow.Event, records *historyKeeper, past *past, readablePath func(string) string) *dashboard {
	d := &dashboard{history: records, readablePath: readablePath, board: board.New(board.Options{
		Monitor: m, Events: events, HistoryState: func() any { return records.status() }, Log: log}), token: board.NewToken("")}
	d.httpSite = &httpSite{log: log, past: past, what: "the dashboard"}
	d.serve = func(l net.Listener) *httpd.Server {
		if d.web.Load() == nil {
			return httpd.Serve(l, d.board.Handler(board.Access{Refusal: refuseOtherUsers}), log, board.Limits)
		}
		access := board.Access{Authenticated: true, Named: d.hasCertificateFor}
		if d.usesToken.Load() {
			access = board.Access{Token: d.token, Named: d.hasCertificateFor}
		}
		// Live updates last: with HTTP/2 a page would need more than one request on a connection.
		return httpd.ServeTLS(l, d.tls("http/1.1"), d.admitted(d.board.Handler(access)), log, board.Limits)
	}
	d.scheme = func() string {
		if d.web.Load() != nil {
			return "https"
		}
		return "http"
	}
	return d
}

// refuseOtherUsers returns why the request's user of this host may not read; "" for
// root and the relay's user. Other users need the token. The control socket has the
// same two users.
func refuseOtherUsers(r *http.Request) string {
	const remedy = "set dashboard.token_file, tls_cert and tls_key, and log in with the token, or web_config"
	uid, err := clientUser(r)
	switch {
	case errors.Is(err, tcpinfo.ErrNoConnection):
		return "the kernel knows no user of this host who sent this request (it may come through a forwarded port): " + remedy
	case err != nil:
		return "without a token the dashboard is for root and the relay's user, and it is unknown who asks: " + err.Error() + "; " + remedy
	case !localsocket.Trusted(uid):
		return fmt.Sprintf("without a token the dashboard is for root and the relay's user (%d), and user %d asks: ask as one of them, or %s",
			os.Geteuid(), uid, remedy)
	}
	return ""
}

// clientUser returns the user of this host who sent a request.
func clientUser(r *http.Request) (uid int, err error) {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return 0, err
	}
	local := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).AddrPort()
	d, err := tcpinfo.OpenDiag()
	if err != nil {
		return 0, err
	}
	defer d.Close()
	return d.PeerOwner(local, remote)
}

// readHistory has the dashboard read the current history file.
func (d *dashboard) readHistory(s *history.State) {
	switch {
	case s == nil && d.reader == nil, s != nil && d.reader != nil && d.reader.Path() == s.File:
		return
	}
	before := d.reader
	d.reader = nil
	d.board.SetHistory(nil)
	if s != nil {
		r, err := history.OpenReader(s.File)
		if err != nil {
			d.log.Error("the dashboard cannot show the history", "file", s.File, "error", err)
		} else {
			d.reader = r
			d.board.SetHistory(r)
		}
	}
	if before != nil {
		before.Close()
	}
}

func (d *dashboard) close() {
	d.httpSite.close()
	d.readHistory(nil)
	d.readDatabase(databaseChoice{}, nil)
}

// dashboardChange is a prepared dashboard before its commit.
type dashboardChange struct {
	*siteChange
	to      *dashboard
	secrets *dashboardSecrets

	database databaseChoice
	many     *postgres.Reader
}

// Prepare reads the files and listens.
func (d *dashboard) Prepare(ctx context.Context, p *plan) (Change, error) {
	c := p.Dashboard
	for _, file := range []*string{&c.TLSCert, &c.TLSKey, &c.TokenFile, &c.PasswordFile} {
		if *file != "" {
			*file = d.readablePath(*file)
		}
	}
	s, err := readDashboardSecrets(c, d.log, d.readablePath)
	if err != nil {
		return nil, err
	}
	change, err := d.prepare(ctx, c.Listen, (s.guard != nil) != (d.web.Load() != nil) || (s.token != "") != d.usesToken.Load())
	if err != nil {
		return nil, err
	}
	prepared := &dashboardChange{siteChange: change, to: d, secrets: s, many: d.many}
	if len(c.Listen) > 0 {
		prepared.database = databaseChoice{c.Database, c.PasswordFile}
	}
	if prepared.database == d.database {
		return prepared, nil
	}
	if prepared.many, err = prepared.database.open(); err != nil {
		change.Abort()
		return nil, err
	}
	return prepared, nil
}

func (c *dashboardChange) Commit() {
	c.to.readHistory(c.to.history.state())
	if c.database != c.to.database {
		c.to.readDatabase(c.database, c.many)
	}
	c.commit(func() {
		c.to.guardWith(c.secrets.guard)
		c.to.usesToken.Store(c.secrets.token != "")
		c.to.token.Set(c.secrets.token)
	})
}

// readDashboardSecrets reads the files of a dashboard. The others than its web configuration have paths
// at which they can be read.
func readDashboardSecrets(c config.Dashboard, log *slog.Logger, readable func(string) string) (s *dashboardSecrets, err error) {
	s = &dashboardSecrets{}
	var read func() (*webconfig.Settings, error)
	switch {
	case len(c.Listen) == 0:
		return s, nil
	case c.WebConfig.File != "":
		token := c.TokenFile != ""
		read = readWebConfig(c.WebConfig.File, readable, func(s *webconfig.Settings) error { return config.CheckDashboardWeb(s, token) })
	case c.TLSCert != "":
		read = webconfig.ReadPair(c.TLSCert, c.TLSKey)
	default:
		return s, nil
	}
	if c.TokenFile != "" {
		if s.token, err = board.ReadToken(c.TokenFile); err != nil {
			return nil, err
		}
	}
	s.guard, err = webconfig.Open("the dashboard", log, read)
	return s, err
}

// CheckDashboard returns the error of the dashboard's files, but those of its web configuration.
func CheckDashboard(c config.Dashboard) error {
	if len(c.Listen) == 0 || c.TokenFile == "" {
		return nil
	}
	if _, err := board.ReadToken(c.TokenFile); err != nil || c.TLSCert == "" {
		return err
	}
	_, err := webconfig.ReadCertificate(c.TLSCert, c.TLSKey)
	return err
}
