package config

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// History configures the storage of records of ended flows.
type History struct {
	File    string // empty: the default file; [Off]: no history
	MaxSize units.Size
	MaxAge  time.Duration // negative: no bound

	Site string           `json:",omitzero"`  // of this relay, in what is shipped; empty: its host
	Ship []archive.Target `json:",omitempty"` // where records go
}

// DefaultHistory has room for a month or more of a busy relay.
func DefaultHistory() History {
	return History{MaxSize: 300 << 20, MaxAge: 90 * 24 * time.Hour}
}

// Bounds of a history.
const (
	minHistory    = 16 << 20
	minHistoryAge = time.Hour
	maxHistoryAge = 10 * 365 * 24 * time.Hour

	// historySuffix is the required suffix of the file, so that the file cannot
	// belong to another program.
	historySuffix = ".db"
)

// history decodes the `history` mapping.
func (d *decoder) history(n *node, h *History) {
	if n.kind == scalar && n.text == Off {
		*h = DefaultHistory()
		h.File = Off
		return
	}
	if n.kind == scalar {
		d.errorf(n, "write off, or a mapping such as {file: /var/lib/longhaul/history.db}", "history cannot be %q", n.text)
		return
	}
	off := forever
	d.mapping(n, "history",
		into("file", &h.File, d.historyFile),
		into("max_size", &h.MaxSize, d.size(minHistory, maxMemory)),
		into("max_age", &h.MaxAge, d.duration(minHistoryAge, maxHistoryAge, &off)),
		into("site", &h.Site, d.tunnelName),
		field{"ship", func(n *node) { h.Ship = d.sinks(n) }},
	)
	v := n.lookup("ship")
	switch {
	case v == nil:
	case h.File == Off:
		d.errorf(v, "remove ship, or give history a file", "ship has no effect: with file: off there are no records")
	case h.File == "" && d.onHost && d.loader.KeepsState != nil && !d.loader.KeepsState(v.at.File):
		d.warn(v, "add file: /var/lib/longhaul/history.db to history, or run the relay as a service (longhaul service install)",
			"ship has no effect: a relay that is no service keeps no history unless that has a file")
	}
}

// sinks decodes the list of `ship`.
func (d *decoder) sinks(n *node) (all []archive.Target) {
	if n.kind != list || len(n.items) == 0 {
		d.errorf(n, "write a dash before each sink, such as - to: postgres://longhaul@db.example.net/longhaul", "ship must be a list of sinks")
		return nil
	}
	if len(n.items) > ship.MaxSinks {
		d.errorf(n.items[ship.MaxSinks], "remove some", "ship has %d sinks, and at most %d are allowed", len(n.items), ship.MaxSinks)
		return nil
	}
	labels := map[string]Position{}
	for _, item := range n.items {
		t, ok := d.sink(item)
		if !ok {
			continue
		}
		if at, again := labels[t.Label()]; again {
			d.errorf(item, "give each its own name", "the sink %s is taken by the one on line %d", t.Label(), at.Line)
			continue
		}
		labels[t.Label()] = item.at
		all = append(all, t)
	}
	return all
}

// sink decodes one sink.
func (d *decoder) sink(n *node) (t archive.Target, ok bool) {
	before := len(d.errs)
	var name, password, ca, cert, key, biflow string
	clients := archive.WholeClients
	file := d.secretFile("ship", "/etc/longhaul/sink.password")
	d.mapping(n, "a sink of ship",
		field{"to", func(n *node) {
			to, ok := d.text(n, "to")
			if !ok {
				return
			}
			var err error
			if t, err = archive.ParseTarget(to); err != nil {
				d.mistake(n, &mistake{err.Error(), remedy.Of(err)})
			}
		}},
		into("name", &name, d.tunnelName),
		into("password_file", &password, file),
		into("ca", &ca, file),
		into("cert", &cert, file),
		into("key", &key, file),
		into("clients", &clients, oneOf(d, archive.WholeClients, archive.TruncatedClients, archive.NoClients)),
		into("biflow", &biflow, oneOf(d, "on", Off)),
	)
	if n.kind == mapping && n.lookup("to") == nil {
		d.errorf(n, "add to: with its URL, such as postgres://longhaul@db.example.net/longhaul", "the sink has no to")
	}
	if len(d.errs) > before {
		return t, false
	}
	t.Name, t.PasswordFile, t.CA, t.Certificate, t.Key, t.Clients = name, password, ca, cert, key, clients
	if t.Kind == archive.IPFIX {
		t.Biflow = biflow != Off
	}
	d.checkSink(n, &t)
	return t, len(d.errs) == before
}

// checkSink finds keys of a sink that its URL has no use for.
func (d *decoder) checkSink(n *node, t *archive.Target) {
	scheme, rest, _ := strings.Cut(t.To, "://")
	useless := map[string]string{}
	if t.Kind == archive.IPFIX {
		useless["password_file"] = "remove it: a collector asks for no password"
	} else {
		useless["biflow"] = "remove it: only ipfix:// has one or two records for the directions of a flow"
	}
	for _, key := range []string{"ca", "cert", "key"} {
		switch scheme {
		case "http":
			useless[key] = "remove it, or write https://" + rest
		case "ipfix+udp":
			useless[key] = "remove it, or write ipfix://" + rest
		}
	}
	for _, e := range n.entries {
		if fix, no := useless[e.key.text]; no {
			d.errorf(e.key, fix, "%s has no effect with %s://", e.key.text, scheme)
		}
	}
	if (t.Certificate == "") != (t.Key == "") {
		d.errorf(n, "add the other one, or remove it", "cert and key of a sink go together")
	}
	if u, err := url.Parse(t.To); err == nil && scheme == "http" && t.PasswordFile != "" {
		if addr, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !addr.IsLoopback()) {
			d.warn(n, "write https://, unless the network up to there is trusted", "the password of the sink %s crosses the network in clear", t.Label())
		}
	}
}

func (d *decoder) historyFile(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	switch {
	case !ok:
		return "", false
	case s == Off:
	case !filepath.IsAbs(s), filepath.Ext(s) != historySuffix, filepath.Base(s) == historySuffix, filepath.Clean(s) != s:
		d.errorf(n, "use an absolute path that ends in .db, such as /var/lib/longhaul/history.db, or off", "%s cannot be %q", key, s)
		return "", false
	}
	return s, true
}
