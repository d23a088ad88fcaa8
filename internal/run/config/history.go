package config

import (
	"path/filepath"
	"time"

	"longhaul/internal/words/units"
)

// History configures the storage of records of ended flows.
type History struct {
	File    string // empty: the default file; [Off]: no history
	MaxSize units.Size
	MaxAge  time.Duration // negative: no bound
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
	)
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
