package identity

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// A relay whose configuration trusts peers by certificates writes them down here, so that the commands on keys
// show them, and give their names to nobody else. Its process before, which has flows left, reads them here too.

const (
	trustedFile     = "trusted" // no handshake reads it
	trustedFileHead = "# Peers that pair_trust of the configuration has: name, name in certificates, end of the last one, relay; written by the relays.\n"
	neverSeen       = "-"
)

// Trusted is a peer that proves its name by a certificate.
type Trusted struct {
	Name  string    `json:"name"`
	SAN   string    `json:"certificate_name"` // a SPIFFE ID or a DNS name
	Until time.Time `json:"until,omitzero"`   // end of the certificate that was seen last; zero: none was
}

// trustedLine is a trusted peer in the list of one relay. Several relays may use a directory: each writes its
// own lines, and the commands read all.
type trustedLine struct {
	Trusted
	relay string // an absolute path, mostly; empty: written before lines had one
}

type trustedList []trustedLine

func (l trustedList) format() []byte {
	var b bytes.Buffer
	b.WriteString(trustedFileHead)
	for _, t := range l {
		until := neverSeen
		if !t.Until.IsZero() {
			until = t.Until.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(&b, "%s %s %s %s\n", t.Name, t.SAN, until, (&url.URL{Path: t.relay}).EscapedPath())
	}
	return b.Bytes()
}

func parseTrusted(text []byte) (l trustedList, err error) {
	err = eachLine(text, func(line string) error {
		words := strings.Fields(line)
		if len(words) != 3 && len(words) != 4 {
			return fmt.Errorf("%d words, want a name, a name in certificates, a time and a relay", len(words))
		}
		t := trustedLine{Trusted: Trusted{Name: words[0], SAN: words[1]}}
		if err := CheckName(t.Name); err != nil {
			return err
		}
		if words[2] != neverSeen {
			if t.Until, err = parseTime(words[2]); err != nil {
				return err
			}
		}
		if len(words) == 4 {
			if t.relay, err = url.PathUnescape(words[3]); err != nil {
				return err
			}
		}
		l = append(l, t)
		return nil
	})
	return l, err
}

// of are the peers of one relay.
func (l trustedList) of(relay string) (all []Trusted) {
	for _, t := range l {
		if t.relay == relay {
			all = append(all, t.Trusted)
		}
	}
	return all
}

// merged are the peers of all relays, each name in certificates once, by name.
func (l trustedList) merged() (all []Trusted) {
	for _, t := range l {
		same := func(one Trusted) bool { return one.Name == t.Name && one.SAN == t.SAN }
		if i := slices.IndexFunc(all, same); i < 0 {
			all = append(all, t.Trusted)
		} else if t.Until.After(all[i].Until) {
			all[i].Until = t.Until
		}
	}
	sorted.By(all, func(a, b Trusted) int { return strings.Compare(a.Name, b.Name) })
	return all
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
			"remove it; each relay writes its peers anew when it starts")
	}
	return l, nil
}

// Trusted are the peers that [Store.SetTrusted] has written down for a relay.
func (s *Store) Trusted(relay string) ([]Trusted, error) {
	l, err := s.trusted()
	return l.of(relay), err
}

// trusted reads the peers of all relays. A missing directory has none; any other error says nothing of them.
func (s *Store) trusted() (trustedList, error) {
	d, err := openDirectory(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return readTrusted(d)
}

// SetTrusted writes down the peers that a relay trusts by certificates, and leaves those of other relays. One
// without a time keeps that of before. The file is not written if it says so already.
func (s *Store) SetTrusted(relay string, all []Trusted) error {
	if was, err := s.trusted(); err == nil && len(was.of(relay))+len(all) == 0 {
		return nil // the lock would make a missing directory
	}
	return s.locked(func(d *directory, c *changing) error {
		next := slices.DeleteFunc(slices.Clone(c.trusted), func(t trustedLine) bool { return t.relay == relay || t.relay == "" })
		for _, t := range all {
			t.Until = t.Until.UTC().Truncate(time.Second)
			was := slices.IndexFunc(c.trusted, func(was trustedLine) bool {
				return was.SAN == t.SAN && (was.relay == relay || was.relay == "")
			})
			if t.Until.IsZero() && was >= 0 {
				t.Until = c.trusted[was].Until
			}
			next = append(next, trustedLine{t, relay})
		}
		sorted.By(next, func(a, b trustedLine) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.SAN, b.SAN), strings.Compare(a.relay, b.relay))
		})
		if slices.Equal(next, c.trusted) {
			return nil
		}
		if len(next) == 0 {
			return d.root.Remove(trustedFile)
		}
		return d.write(trustedFile, next.format())
	})
}

// clash is the error of a peer or an open invitation that was not there before, with a name that a trusted peer
// has, or with one of its site: one handshake asks for any host of a site.
func (c *changing) clash(before *content) error {
	if len(c.trusted) == 0 {
		return nil
	}
	had := map[string]bool{}
	for i := range before.peers {
		had[before.peers[i].Name] = true
	}
	sites := map[string]bool{}
	note := func(name string) {
		site, _, _ := strings.Cut(name, siteEnd)
		sites[site] = true
	}
	for i := range c.peers {
		if !had[c.peers[i].Name] {
			note(c.peers[i].Name)
		}
	}
	for _, k := range c.invitations {
		if k.used.IsZero() && !k.expired(time.Now()) && before.invitations.find(k.verifier) == nil {
			note(k.name)
		}
	}
	for _, t := range c.trusted {
		if site, _, _ := strings.Cut(t.Name, siteEnd); sites[site] {
			return t.taken()
		}
	}
	return nil
}

// named returns the trusted peer of a name, or nil.
func (l trustedList) named(name string) *Trusted {
	if i := slices.IndexFunc(l, func(t trustedLine) bool { return t.Name == name }); i >= 0 {
		return &l[i].Trusted
	}
	return nil
}

// taken is the error of a name that is not for a pinned key.
func (t *Trusted) taken() error {
	return remedy.New(fmt.Errorf("the peer %s proves its name by a certificate, as %s", t.Name, t.SAN),
		"choose another name, or take that one out of names in pair_trust and run longhaul reload")
}
