package webconfig

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"longhaul/internal/words/remedy"
)

const http2 = "h2" // of ALPN

// Guard holds the settings in force. It reads them again after a change of their files, at the next
// connection or question, so a renewed certificate needs no reload.
type Guard struct {
	what string // the server, in messages
	log  *slog.Logger
	read func() (*Settings, error)

	passwords passwords
	requests  bucket

	mu      sync.Mutex
	now     *Settings
	stamps  []stamp // of now.Files, when they were last read
	looked  time.Time
	problem *Problem

	changed  chan struct{} // closed when now is no longer in force
	replaced bool
}

// Problem is why changed files are not in force.
type Problem struct {
	Text, Fix string
	Since     time.Time
}

// retryInterval is the time between attempts to read files that have a mistake. What is wrong may be
// elsewhere than in the files, such as a right to a folder.
const retryInterval = 10 * time.Second

// stamp tells versions of a file apart.
type stamp struct {
	modified, changed syscall.Timespec
	inode             uint64
	size              int64
}

func stampsOf(files []string) []stamp {
	all := make([]stamp, len(files))
	for i, path := range files {
		if info, err := os.Stat(path); err == nil {
			if s, ok := info.Sys().(*syscall.Stat_t); ok {
				all[i] = stamp{s.Mtim, s.Ctim, s.Ino, s.Size}
			}
		}
	}
	return all
}

// Open reads the settings of a server, which what names in messages.
func Open(what string, log *slog.Logger, read func() (*Settings, error)) (*Guard, error) {
	g := &Guard{what: what, log: log, read: read, changed: make(chan struct{})}
	return g, g.load()
}

// maxReadings is how often files are read in a row because the list of files is another one.
const maxReadings = 3

// load puts the files' settings into force. The caller holds mu, or nobody else has the guard.
func (g *Guard) load() error {
	g.looked = time.Now()
	var files []string
	if g.now != nil {
		files = g.now.Files
	}
	stamps := stampsOf(files) // before they are read: a change meanwhile is another one
	g.stamps = stamps
	var s *Settings
	for n := 1; ; n++ {
		var err error
		if s, err = g.read(); err != nil {
			return err
		}
		if slices.Equal(s.Files, files) {
			break
		}
		if files, stamps = s.Files, stampsOf(s.Files); n == maxReadings {
			stamps = nil // the next look reads them again
			break
		}
	}
	if g.now != nil && g.now.TLS() != s.TLS() {
		return remedy.New(errors.New("TLS begins or ends with a reload alone"), "longhaul reload")
	}
	if g.now != nil && !g.replaced {
		close(g.changed)
		g.changed = make(chan struct{})
	}
	g.now, g.stamps, g.problem = s, stamps, nil
	return nil
}

// Replace tells the requests that go on that another guard is in force. It may be called on nil.
func (g *Guard) Replace() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.replaced {
		g.replaced = true
		close(g.changed)
	}
}

// state is Current, and closed when that is no longer in force.
func (g *Guard) state() (*Settings, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.current(), g.changed
}

// Current are the settings in the files, or the last good ones.
func (g *Guard) Current() *Settings {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.current()
}

// current is Current for a caller that holds mu.
func (g *Guard) current() *Settings {
	changed := !slices.Equal(stampsOf(g.now.Files), g.stamps)
	if !changed && (g.problem == nil || time.Since(g.looked) < retryInterval) {
		return g.now
	}
	switch err := g.load(); {
	case err == nil:
		attrs := []any{"server", g.what}
		if g.now.TLS() {
			_, until := g.now.Validity()
			attrs = append(attrs, "certificate_until", until)
		}
		g.log.Info("new TLS files are in force", attrs...)
	case changed || g.problem.Text != oneLine(err):
		since := time.Now()
		if g.problem != nil {
			since = g.problem.Since
		}
		g.problem = &Problem{oneLine(err), cmp.Or(remedy.Of(err), "see longhaul config check"), since}
		g.log.Warn("changed TLS files cannot be used, those before stay in force", "server", g.what, "error", g.problem.Text, "remedy", g.problem.Fix)
	}
	return g.now
}

// oneLine is an error of possibly several lines and its remedy, on one.
func oneLine(err error) string {
	return strings.TrimSuffix(strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " "), "; "+remedy.Of(err))
}

// Problem says why the last change of the files is not in force; nil: it is.
func (g *Guard) Problem() *Problem {
	g.Current()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.problem == nil {
		return nil
	}
	p := *g.problem
	p.Text = fmt.Sprintf("changed TLS files of %s are not in force: %s", g.what, p.Text)
	return &p
}

// TLS is the configuration of a server whose guard is the result of current at that moment, and which
// speaks the protocols of ALPN.
func TLS(current func() *Guard, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, // each handshake has its own
		NextProtos: protocols,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			g := current()
			if g == nil {
				return nil, errors.New("no TLS any more")
			}
			return g.Current().forHandshake(hello, protocols), nil
		},
	}
}
