package identity

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"longhaul/internal/words/remedy"
)

// A relay whose configuration trusts peers by certificates writes them down here, so that the commands on keys
// show them, and give their names to nobody else.

const (
	trustedFile     = "trusted" // for the commands alone: no handshake reads it
	trustedFileHead = "# Peers that pair_trust of the configuration has: name, name in certificates, end of the last one; written by the relay.\n"
	neverSeen       = "-"
)

// Trusted is a peer that proves its name by a certificate.
type Trusted struct {
	Name  string    `json:"name"`
	SAN   string    `json:"certificate_name"` // a SPIFFE ID or a DNS name
	Until time.Time `json:"until,omitzero"`   // end of the certificate that was seen last; zero: none was
}

type trustedList []Trusted

func (l trustedList) format() []byte {
	var b bytes.Buffer
	b.WriteString(trustedFileHead)
	for _, t := range l {
		until := neverSeen
		if !t.Until.IsZero() {
			until = t.Until.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(&b, "%s %s %s\n", t.Name, t.SAN, until)
	}
	return b.Bytes()
}

func parseTrusted(text []byte) (l trustedList, err error) {
	err = eachLine(text, func(line string) error {
		words := strings.Fields(line)
		if len(words) != 3 {
			return fmt.Errorf("%d words, want a name, a name in certificates and a time", len(words))
		}
		t := Trusted{Name: words[0], SAN: words[1]}
		if err := CheckName(t.Name); err != nil {
			return err
		}
		if words[2] != neverSeen {
			if t.Until, err = parseTime(words[2]); err != nil {
				return err
			}
		}
		l = append(l, t)
		return nil
	})
	return l, err
}

// readTrusted reads the file of trusted peers. A missing one is empty.
func readTrusted(d *directory) (trustedList, error) {
	text, _, err := d.read(trustedFile)
	if err != nil {
		return nil, err
	}
	l, err := parseTrusted(text)
	if err != nil {
		return nil, remedy.New(fmt.Errorf("the file %s is damaged: %w", filepath.Join(d.path, trustedFile), err),
			"remove it; the relay writes it anew when it starts")
	}
	return l, nil
}

// Trusted are the peers that [Store.SetTrusted] has written down.
func (s *Store) Trusted() ([]Trusted, error) { return s.trusted() }

func (s *Store) trusted() (trustedList, error) {
	d, err := openDirectory(s.dir)
	if err != nil {
		return nil, nil // a missing directory has none, and others say what is wrong with it
	}
	defer d.Close()
	return readTrusted(d)
}

// SetTrusted writes down the peers that the relay trusts by certificates. One without a time keeps that of
// before. The file is not written if it says so already.
func (s *Store) SetTrusted(all []Trusted) error {
	if was, err := s.trusted(); err == nil && len(was)+len(all) == 0 {
		return nil // the lock would make a missing directory
	}
	return s.locked(func(d *directory, c *changing) error {
		next := trustedList(slices.Clone(all))
		for i := range next {
			next[i].Until = next[i].Until.UTC().Truncate(time.Second)
			was := slices.IndexFunc(c.trusted, func(t Trusted) bool { return t.SAN == next[i].SAN })
			if next[i].Until.IsZero() && was >= 0 {
				next[i].Until = c.trusted[was].Until
			}
		}
		slices.SortFunc(next, func(a, b Trusted) int { return strings.Compare(a.Name, b.Name) })
		if slices.Equal(next, c.trusted) {
			return nil
		}
		if len(next) == 0 {
			return d.root.Remove(trustedFile)
		}
		return d.write(trustedFile, next.format())
	})
}

// clash is the error of a peer or an open invitation with a name that a trusted peer has, or with one of its
// site: one handshake asks for any host of a site.
func (c *changing) clash() error {
	for _, t := range c.trusted {
		same := func(name string) bool { return SameSite(name, t.Name) }
		if slices.ContainsFunc(c.peers, func(p Peer) bool { return same(p.Name) }) ||
			slices.ContainsFunc(c.invitations, func(k kept) bool { return k.used.IsZero() && !k.expired(time.Now()) && same(k.name) }) {
			return t.taken()
		}
	}
	return nil
}

// named returns the trusted peer of a name, or nil.
func (l trustedList) named(name string) *Trusted {
	if i := slices.IndexFunc(l, func(t Trusted) bool { return t.Name == name }); i >= 0 {
		return &l[i]
	}
	return nil
}

// taken is the error of a name that is not for a pinned key.
func (t *Trusted) taken() error {
	return remedy.New(fmt.Errorf("the peer %s proves its name by a certificate, as %s", t.Name, t.SAN),
		"choose another name, or take that one out of names in pair_trust and run longhaul reload")
}
