package config

import (
	"path/filepath"
	"time"

	"longhaul/internal/words/units"
)

// Check configures a tunnel's integrity checks.
type Check struct {
	Enabled  bool
	KeyFile  string // empty: the relay neither answers nor asks other relays
	Next     CheckNext
	Interval time.Duration // 0: only on request
	Bytes    units.Size    // exchanged in each direction
}

// CheckNext is the kind of a tunnel's next hop.
type CheckNext string

// The kinds of a next hop.
const (
	CheckNextTarget CheckNext = "target"
	CheckNextRelay  CheckNext = "relay"
)

// Bounds of a check.
const (
	minCheckInterval = time.Second
	maxCheckInterval = 24 * time.Hour
	minCheckBytes    = 4 << 10
	maxCheckBytes    = 256 << 20
)

func defaultCheck() Check { return Check{Next: CheckNextTarget, Bytes: 1 << 20} }

// check decodes the `check` mapping.
func (d *decoder) check(n *node, c *Check) {
	if n.kind == scalar && n.text == Off {
		*c = defaultCheck()
		return
	}
	if n.kind == scalar {
		d.errorf(n, "write off, or a mapping such as {key_file: /etc/longhaul/check.key, next: relay}", "check cannot be %q", n.text)
		return
	}
	off := never
	c.Enabled = true
	d.mapping(n, "check",
		into("key_file", &c.KeyFile, d.keyFile),
		into("next", &c.Next, oneOf(d, CheckNextRelay, CheckNextTarget)),
		into("interval", &c.Interval, d.duration(minCheckInterval, maxCheckInterval, &off)),
		into("bytes", &c.Bytes, d.size(minCheckBytes, maxCheckBytes)),
	)
}

func (d *decoder) keyFile(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return "", false
	}
	if !filepath.IsAbs(s) {
		d.errorf(n, "use an absolute path such as /etc/longhaul/check.key", "%s cannot be %q", key, s)
		return "", false
	}
	if d.loader.CheckKey != nil {
		if problem, fix := d.loader.CheckKey(s); problem != "" {
			d.errorf(n, fix, "%s", problem)
			return "", false
		}
	}
	return s, true
}

// checkSettingsOfCheck finds missing settings of a tunnel's check.
func (d *decoder) checkSettingsOfCheck(n *node, c Check) {
	if !c.Enabled || c.Next != CheckNextRelay || c.KeyFile != "" {
		return
	}
	at := n // check may come from defaults
	if v := n.lookup("check"); v != nil {
		at = v
	}
	d.errorf(at, "add key_file, the same for all relays of the chain; longhaul check --new-key FILE makes one",
		"check with next: relay has no key_file")
}
