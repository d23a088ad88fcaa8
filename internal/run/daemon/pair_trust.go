package daemon

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/run/config"
	"longhaul/internal/run/control"
	"longhaul/internal/words/remedy"
)

// trustOf reads the trust of a configuration, or keeps the one in force if that is the same; nil: the
// configuration has none. The caller holds mu.
func (p *pairs) trustOf(c *config.Config) (*trust.Trust, error) {
	o := c.PairTrust
	if o.CA == "" {
		return nil, nil
	}
	keys := p.keys.Load()
	if keys != nil && keys.Trust() != nil && keys.Trust().Options().Equal(&o) {
		return keys.Trust(), nil
	}
	if keys == nil {
		dir := c.PairKeys
		if dir == "" {
			dir = p.keysDir()
		}
		if dir == "" {
			return nil, remedy.New(errors.New("there is no directory for the keys of pairs"), "name one with pair_keys")
		}
		keys = trust.New(identity.New(dir))
	}
	if err := keys.Clash(&o); err != nil {
		return nil, err
	}
	return trust.Load(o)
}

// Bounds of what renewals cause.
const (
	trustSettles   = 2 * time.Second  // in which the writer of three files may be between two of them
	trustRemembers = 10 * time.Second // between two changes of the file that longhaul pair list reads
)

// trustWatch tells the log and the directory of keys what becomes of certificates.
type trustWatch struct {
	pairs    *pairs
	of       *trust.Trust
	own      *x509.Certificate
	problem  string    // as of now
	since    time.Time // of problem
	told     string
	until    map[string]time.Time // as written down
	written  time.Time
	followed time.Time
}

// look looks at the certificates now and then.
func (w *trustWatch) look(now time.Time) {
	keys, relay := w.pairs.keys.Load(), w.pairs.nameOfList()
	t := keys.Trust()
	if relay == "" {
		return // the relay is about to begin
	}
	if t == nil {
		if w.of != nil || w.written.IsZero() {
			*w = trustWatch{pairs: w.pairs, written: now}
			w.write(keys, relay, nil)
		}
		return
	}
	if w.pairs.hasDrained() {
		w.follow(keys, relay, t, now)
		return
	}
	own := t.Own()
	fresh := t != w.of
	if !fresh && !own.Equal(w.own) {
		w.pairs.log.Info("pair: this host's certificate was renewed", "name", trust.NameOf(own), "until", own.NotAfter)
	}
	w.of, w.own = t, own
	problem, fix := "", ""
	if err := t.Problem(); err != nil {
		problem, fix = err.Error(), remedy.Of(err)
	}
	if problem != w.problem {
		w.problem, w.since = problem, now
	}
	if problem != w.told && (problem == "" || now.Sub(w.since) >= trustSettles) {
		if w.told = problem; problem != "" {
			w.pairs.lines.Log(slog.LevelWarn, "pair: certificate of this host", nil, slog.String("error", problem), slog.String("remedy", fix))
		}
	}
	until := t.Until()
	if fresh || !maps.Equal(until, w.until) && now.Sub(w.written) >= trustRemembers {
		if w.until = until; !fresh {
			w.written = now
		}
		all := make([]identity.Trusted, 0, len(t.Options().Names))
		for _, n := range t.Options().Names {
			all = append(all, identity.Trusted{Name: n.Peer, SAN: n.SAN, Until: until[n.SAN]})
		}
		w.write(keys, relay, all)
	}
}

// follow has a process that has handed over, or ends, trust nobody whom its successor's configuration does not
// have any more.
func (w *trustWatch) follow(keys *trust.Identity, relay string, t *trust.Trust, now time.Time) {
	if now.Sub(w.followed) < time.Second {
		return
	}
	w.followed = now
	all, err := keys.Trusted(relay)
	if err != nil {
		return // the peers of before stay; the successor says so
	}
	o := *t.Options()
	o.Names = slices.DeleteFunc(slices.Clone(o.Names), func(n trust.Name) bool {
		return !slices.ContainsFunc(all, func(one identity.Trusted) bool { return one.SAN == n.SAN && one.Name == n.Peer })
	})
	if !t.Options().Equal(&o) {
		keys.Use(t.With(o.Names))
	}
}

// write writes the trusted peers down for longhaul pair list.
func (w *trustWatch) write(keys *trust.Identity, relay string, all []identity.Trusted) {
	if err := keys.SetTrusted(relay, all); err != nil {
		w.pairs.lines.Log(slog.LevelWarn, "pair: the trusted peers cannot be written down for longhaul pair list", nil, slog.Any("error", err))
	}
}

// listName names the relay's list of trusted peers among those of other relays with the same keys: by its
// control socket, which no other relay has, or if that has no lasting name, by its configuration file.
func listName(socket, file string) string {
	name := socket
	if file != "" && (socket == "" || control.IsOwnName(control.NameIn(filepath.Dir(socket), socket))) {
		name = file
	}
	if name == "" {
		return fmt.Sprintf("process %d", os.Getpid())
	}
	if path, err := filepath.Abs(name); err == nil {
		name = path
	}
	return name
}

// begin gives the list of trusted peers its name, which every process of a relay has. A relay without paired
// tunnels has nobody that looks after the list, and clears it here.
func (p *pairs) begin(relay string, c *config.Config) {
	p.mu.Lock()
	p.list = relay
	idle := p.node == nil
	p.mu.Unlock()
	if !idle {
		return
	}
	dir := c.PairKeys
	if dir == "" {
		dir = p.keysDir()
	}
	if dir != "" {
		_ = identity.New(dir).SetTrusted(relay, nil) // a relay that cannot read the keys has written nothing there
	}
}

func (p *pairs) nameOfList() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list
}

// clearList takes the relay's trusted peers from the list, unless a successor has it.
func (p *pairs) clearList() {
	p.mu.Lock()
	relay, succeeded := p.list, p.succeeded
	p.mu.Unlock()
	keys := p.keys.Load()
	if keys == nil || relay == "" || succeeded {
		return
	}
	if err := keys.SetTrusted(relay, nil); err != nil {
		p.log.Warn("pair: the trusted peers cannot be taken from the list of longhaul pair list", "error", err)
	}
}

// handOver is drain of a process with a successor.
func (p *pairs) handOver() {
	p.mu.Lock()
	p.succeeded = true
	p.mu.Unlock()
	p.drain()
}
