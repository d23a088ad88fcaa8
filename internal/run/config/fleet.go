package config

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
)

// Fleet is an inventory: relays that a command asks, and how it reaches them.
type Fleet struct {
	Usual  FleetRelay // what holds for relays without keys of their own
	Relays []FleetRelay
}

// FleetRelay is a relay of an inventory.
type FleetRelay struct {
	Name      string
	URL       string        // of its dashboard: http://HOST:PORT or https://HOST:PORT
	TokenFile string        // empty: no token; always so with http
	CA        string        // file of the authorities of its certificate; empty: the system's
	Cert, Key string        // files of the certificate to present and of its key; empty: none
	Timeout   time.Duration // for its answer
}

// FleetChecks are checks of the files that an inventory names. Nil skips one.
type FleetChecks struct {
	Token, CA func(path string) error
	Pair      func(certFile, keyFile string) error
}

// Bounds of an inventory.
const (
	maxFleet        = 1000
	maxFleetName    = 64 // characters
	usualFleetWait  = 1500 * time.Millisecond
	minFleetTimeout = 50 * time.Millisecond
	maxFleetTimeout = time.Minute

	fleetHint = "list the relays: relays: [{name: relay-a, url: \"https://relay-a.example.net:9464\"}]"
)

// LoadFleet reads an inventory, overridden by flags, or the flags alone if path is empty; then it has no
// relays. The files that it names are below its folder, those of flags below the working directory. The
// error is an [Errors].
func LoadFleet(path string, checks FleetChecks, flags ...Flag) (*Fleet, error) {
	root := fromFlags(flags)
	if path != "" {
		file, err := parseFile(path)
		var errs Errors
		if errors.As(err, &errs) && len(errs) == 1 && errs[0].Problem == emptyFile {
			errs[0].Fix = fleetHint // and not that of a configuration
		}
		if err != nil {
			return nil, err
		}
		if file.kind == list { // of relays alone
			file = &node{kind: mapping, at: file.at, entries: []entry{{&node{kind: scalar, text: "relays", at: file.at}, file}}}
		}
		if file.kind == mapping {
			file.overlay(root)
		}
		root = file
	}
	d := &fleetDecoder{decoder: decoder{keys: map[string][]string{}}, folder: filepath.Dir(path), checks: checks}
	fleet := d.fleet(root, path != "")
	if len(d.errs) > 0 {
		return nil, d.errs
	}
	return fleet, nil
}

// fleetDecoder decodes an inventory.
type fleetDecoder struct {
	decoder
	folder string // of the inventory
	checks FleetChecks
}

func (d *fleetDecoder) fleet(root *node, needsRelays bool) *Fleet {
	f := &Fleet{Usual: FleetRelay{Timeout: usualFleetWait}}
	var relays *node
	d.mapping(root, "an inventory", append(d.access(&f.Usual), field{"relays", func(n *node) { relays = n }})...)
	d.checkPair(root, f.Usual)
	switch {
	case root.kind != mapping || !needsRelays:
		return f
	case relays == nil:
		d.errorf(root, fleetHint, "the inventory has no relays")
		return f
	case relays.kind != list:
		d.errorf(relays, "write a dash before each relay", "relays must be a list, not %s", relays.kind)
		return f
	case len(relays.items) == 0:
		d.errorf(relays, fleetHint, "relays is an empty list")
	case len(relays.items) > maxFleet:
		d.errorf(relays, "make several inventories", "the inventory has %d relays, and at most %d are asked", len(relays.items), maxFleet)
		return f
	}
	names := map[string]int{}
	for _, n := range relays.items {
		r := d.relay(n, f.Usual)
		if line := names[r.Name]; line > 0 && r.Name != "" {
			d.errorf(n, "give each a name: {name: relay-a, url: …}", "two relays have the name %s, the other is on line %d", printable.String(r.Name), line)
		}
		names[r.Name] = n.at.Line
		f.Relays = append(f.Relays, r)
	}
	return f
}

// access are the keys that a relay has, or all of them in common.
func (d *fleetDecoder) access(r *FleetRelay) []field {
	file := func(check func(string) error) func(*node, string) (string, bool) {
		return func(n *node, key string) (string, bool) {
			path, ok := d.text(n, key)
			if !ok || path == "" {
				return path, ok
			}
			if n.at.Flag == "" && !filepath.IsAbs(path) {
				path = filepath.Join(d.folder, path)
			}
			if check != nil {
				if err := check(path); err != nil {
					d.errorf(n, cmp.Or(remedy.Of(err), "check the path"), "%v", err)
					return "", false
				}
			}
			return path, true
		}
	}
	return []field{
		into("token_file", &r.TokenFile, file(d.checks.Token)),
		into("ca", &r.CA, file(d.checks.CA)),
		into("cert", &r.Cert, file(nil)),
		into("key", &r.Key, file(nil)),
		into("timeout", &r.Timeout, d.duration(minFleetTimeout, maxFleetTimeout, nil)),
	}
}

// relay decodes a relay, which may be its URL alone.
func (d *fleetDecoder) relay(n *node, usual FleetRelay) FleetRelay {
	r := FleetRelay{Timeout: usual.Timeout}
	var at *node
	readURL := into("url", &r.URL, func(n *node, key string) (string, bool) {
		at = n
		return d.dashboardURL(n, key)
	})
	if n.kind == scalar {
		readURL.decode(n)
	} else {
		d.mapping(n, "a relay", append(d.access(&r), into("name", &r.Name, d.relayName), readURL)...)
		d.checkPair(n, r)
		if n.kind == mapping && n.lookup("url") == nil {
			d.errorf(n, "add url: https://relay-a.example.net:9464", "the relay has no url")
		}
	}
	u, err := url.Parse(r.URL)
	if r.URL == "" || err != nil {
		return r
	}
	r.Name = cmp.Or(r.Name, u.Hostname())
	if u.Scheme == "http" {
		if r.TokenFile != "" {
			d.errorf(at, "write https://, or leave token_file out", "the token would be sent in clear to %s", r.URL)
		}
		return r
	}
	r.TokenFile, r.CA = cmp.Or(r.TokenFile, usual.TokenFile), cmp.Or(r.CA, usual.CA)
	if r.Cert == "" {
		r.Cert, r.Key = usual.Cert, usual.Key
	}
	return r
}

// checkPair checks the certificate that a relay, or all of them, are shown.
func (d *fleetDecoder) checkPair(n *node, r FleetRelay) {
	switch cert, key := n.lookup("cert"), n.lookup("key"); {
	case cert == nil && key == nil:
	case cert == nil || key == nil:
		d.errorf(cmp.Or(cert, key), "add the other", "cert and key go together")
	case r.Cert != "" && r.Key != "" && d.checks.Pair != nil:
		if err := d.checks.Pair(r.Cert, r.Key); err != nil {
			d.errorf(cert, cmp.Or(remedy.Of(err), "check the path"), "%v", err)
		}
	}
}

func (d *fleetDecoder) relayName(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if ok && (s == "" || utf8.RuneCountInString(s) > maxFleetName || printable.String(s) != s) {
		d.errorf(n, "write up to 64 letters, such as relay-a", "%s cannot be %q", key, s)
		return "", false
	}
	return s, ok
}

// dashboardURL decodes a URL. No message repeats a password in it.
func (d *fleetDecoder) dashboardURL(n *node, key string) (string, bool) {
	const form = "write it like https://relay-a.example.net:9464"
	s, ok := d.text(n, key)
	if !ok {
		return "", false
	}
	u, err := url.Parse(s)
	switch {
	case err == nil && u.User != nil, strings.Contains(s, "@"):
		d.errorf(n, "leave it out, and name the file of the token: token_file: /etc/longhaul/relay-a.token", "%s has a user or a password in it", key)
	case err != nil, u.Hostname() == "", u.Scheme != "http" && u.Scheme != "https", u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		d.errorf(n, form, "%s cannot be %q", key, s)
	case u.Scheme == "http" && !isOwnHost(u.Hostname()):
		d.errorf(n, "write https://; a dashboard without TLS answers only on its own host", "%s %s leads to another host without TLS", key, s)
	default:
		return u.Scheme + "://" + u.Host, true
	}
	return "", false
}

// isOwnHost reports whether a host of a URL is this one.
func isOwnHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
