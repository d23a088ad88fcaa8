package daemon

import (
	"errors"
	"log/slog"
	"maps"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
)

// trustOf reads the trust of a configuration, or keeps the one in force if that is the same; nil: the
// configuration has none. The caller holds mu.
func (p *pairs) trustOf(c *config.Config) (*trust.Trust, error) {
	o := c.PairTrust
	if o.CA == "" {
		return nil, nil
	}
	o.Files = o.ReadAt(p.readablePath)
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
	pairs   *pairs
	of      *trust.Trust
	ends    time.Time // of this host's certificate
	problem string    // as of now
	since   time.Time // of problem
	told    string
	until   map[string]time.Time // as written down
	written time.Time
}

// look looks at the certificates now and then.
func (w *trustWatch) look(now time.Time) {
	keys := w.pairs.keys.Load()
	t := keys.Trust()
	if t == nil {
		if w.of != nil || w.written.IsZero() {
			*w = trustWatch{pairs: w.pairs, written: now}
			w.write(keys, nil)
		}
		return
	}
	name, _, ends := t.Validity()
	fresh := t != w.of
	if !fresh && !ends.Equal(w.ends) {
		w.pairs.log.Info("pair: this host's certificate was renewed", "name", name, "until", ends)
	}
	w.of, w.ends = t, ends
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
		w.until, w.written = until, now
		all := make([]identity.Trusted, 0, len(t.Options().Names))
		for _, n := range t.Options().Names {
			all = append(all, identity.Trusted{Name: n.Peer, SAN: n.SAN, Until: until[n.SAN]})
		}
		w.write(keys, all)
	}
}

// write writes the trusted peers down for longhaul pair list.
func (w *trustWatch) write(keys *trust.Identity, all []identity.Trusted) {
	if err := keys.SetTrusted(all); err != nil {
		w.pairs.lines.Log(slog.LevelWarn, "pair: the trusted peers cannot be written down for longhaul pair list", nil, slog.Any("error", err))
	}
}
