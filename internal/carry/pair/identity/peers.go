package identity

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

const peersFileHead = "# Peers of this host's relays: name, since when, keys (the newest first), and which key of this host\n" +
	"# the peer has. longhaul pair list prints them.\n"

// holdsWord begins the last word of a peer's line.
const holdsWord = "has="

// Peer is another host with its pinned keys.
type Peer struct {
	Name  string
	Since time.Time   // when it was pinned, in whole seconds
	Keys  []PublicKey // the newest first: one, or two while the peer rotates its key

	// Holds is the newest of this host's keys that the peer is known to have pinned;
	// zero if the peer has not said.
	Holds PublicKey
}

// format is the line of a peer.
func (p *Peer) format() string {
	keys := make([]string, len(p.Keys))
	for i, key := range p.Keys {
		keys[i] = key.String()
	}
	line := p.Name + " " + p.Since.UTC().Format(time.RFC3339) + " " + strings.Join(keys, ",")
	if !p.Holds.IsZero() {
		line += " " + holdsWord + p.Holds.String()
	}
	return line
}

// parsePeer reads the line of a peer.
func parsePeer(line string) (p Peer, err error) {
	words := strings.Fields(line)
	if len(words) < 3 || len(words) > 4 {
		return p, fmt.Errorf("%d words, want name, time, keys and has=KEY", len(words))
	}
	if err := CheckName(words[0]); err != nil {
		return p, err
	}
	p.Name = words[0]
	if p.Since, err = parseTime(words[1]); err != nil {
		return p, err
	}
	for word := range strings.SplitSeq(words[2], ",") {
		key, err := ParsePublicKey(word)
		switch {
		case err != nil:
			return p, err
		case slices.Contains(p.Keys, key):
			return p, errors.New("the same key twice")
		case len(p.Keys) == MaxKeys:
			return p, errors.New("more than two keys")
		}
		p.Keys = append(p.Keys, key)
	}
	if len(words) == 4 {
		word, ok := strings.CutPrefix(words[3], holdsWord)
		if !ok {
			return p, fmt.Errorf("the last word does not begin with %s", holdsWord)
		}
		p.Holds, err = ParsePublicKey(word)
	}
	return p, err
}

// parseTime reads a time in UTC and whole seconds.
func parseTime(word string) (time.Time, error) {
	t, err := time.Parse("2006-01-02T15:04:05Z", word)
	if err != nil || t.Format(time.RFC3339) != word {
		return time.Time{}, fmt.Errorf("invalid time %q, want one like 2026-11-20T14:30:00Z", word)
	}
	return t, nil
}

// peerList are the peers of this host by name.
type peerList []Peer

// format is the text that parsePeers reads.
func (l peerList) format() []byte {
	var b bytes.Buffer
	b.WriteString(peersFileHead)
	for i := range l {
		b.WriteString(l[i].format() + "\n")
	}
	return b.Bytes()
}

// parsePeers reads the file of peers.
func parsePeers(text []byte) (peerList, error) {
	l := newListing()
	err := eachLine(text, func(line string) error {
		p, err := parsePeer(line)
		if err != nil {
			return err
		}
		return l.add(p)
	})
	if err != nil {
		return nil, err
	}
	return l.list(), nil
}

// with adds a peer. It refuses a name or key that another one has.
func (l peerList) with(p Peer) (peerList, error) {
	next := newListing()
	for _, one := range append(slices.Clone(l), p) {
		if err := next.add(one); err != nil {
			return nil, err
		}
	}
	return next.list(), nil
}

// listing is a list that is made: it may have thousands of peers, so that each is looked up, and not
// compared with all others.
type listing struct {
	peers peerList
	names map[string]bool
	sites map[string]string    // with the first of its hosts
	keys  map[PublicKey]string // with the peer's name
}

func newListing() *listing {
	return &listing{names: map[string]bool{}, sites: map[string]string{}, keys: map[PublicKey]string{}}
}

// add refuses a name or key that another one has.
func (l *listing) add(p Peer) error {
	site, _, isHost := strings.Cut(p.Name, siteEnd)
	switch host, isSite := l.sites[p.Name]; {
	case l.names[p.Name]:
		return &TakenError{Name: p.Name, wanted: p.Name}
	case isSite:
		return &TakenError{Name: host, wanted: p.Name}
	case isHost && l.names[site]:
		return &TakenError{Name: site, wanted: p.Name}
	}
	for _, key := range p.Keys {
		if other, taken := l.keys[key]; taken {
			return &TakenError{Name: other, Key: key}
		}
	}
	l.peers, l.names[p.Name] = append(l.peers, p), true
	if first, known := l.sites[site]; isHost && (!known || p.Name < first) {
		l.sites[site] = p.Name
	}
	for _, key := range p.Keys {
		l.keys[key] = p.Name
	}
	return nil
}

// list returns the peers by name.
func (l *listing) list() peerList {
	sorted.By(l.peers, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	return l.peers
}

// without removes a peer.
func (l peerList) without(name string) peerList {
	return slices.DeleteFunc(slices.Clone(l), func(p Peer) bool { return p.Name == name })
}

// named returns the peer of a name, or nil.
func (l peerList) named(name string) *Peer {
	if i := slices.IndexFunc(l, func(p Peer) bool { return p.Name == name }); i >= 0 {
		return &l[i]
	}
	return nil
}

// free reports which peer keeps a name from being another one's, or nil. A name is that of one peer
// or of a site, so that it never means more hosts than its peer.
func (l peerList) free(name string) error {
	for i := range l {
		if other := l[i].Name; IsOf(other, name) || IsOf(name, other) {
			return &TakenError{Name: other, wanted: name}
		}
	}
	return nil
}

// only returns the one peer that a name means, or nil. A session that began under the name of a
// peer goes on under it when the peer has become the first host of a site of that name.
func (l peerList) only(name string) *Peer {
	if all := l.meant(name); len(all) == 1 {
		return all[0]
	}
	return nil
}

// meant returns the peers that a name means: one, or the hosts of a site.
func (l peerList) meant(name string) (all []*Peer) {
	for i := range l {
		if IsOf(l[i].Name, name) {
			all = append(all, &l[i])
		}
	}
	return all
}

// ofKey returns the peer that has a key, or nil.
func (l peerList) ofKey(key PublicKey) *Peer {
	if i := slices.IndexFunc(l, func(p Peer) bool { return slices.Contains(p.Keys, key) }); i >= 0 {
		return &l[i]
	}
	return nil
}

// claim is the key that a peer has announced and that nobody has seen in use; zero: none.
// Once the peer uses it, its former key goes. So it is only the peer's word, which counts
// less than who proves to have the key.
func (p *Peer) claim() PublicKey {
	if len(p.Keys) < MaxKeys {
		return PublicKey{}
	}
	return p.Keys[0]
}

// disown takes a key away from peers of other names that have only announced it.
func (l peerList) disown(key PublicKey, name string) {
	for i := range l {
		if p := &l[i]; p.Name != name && p.claim() == key {
			p.Keys = p.Keys[1:]
		}
	}
}

// TakenError is returned if a peer has the name already, or the key.
type TakenError struct {
	Name string    // of the peer
	Key  PublicKey // zero: the name is taken

	wanted string // the name that is taken, unless it is the peer's
}

func (e *TakenError) Error() string {
	switch {
	case !e.Key.IsZero():
		return fmt.Sprintf("the peer %s has the key %s already", e.Name, e.Key.Short())
	case e.wanted == "" || e.wanted == e.Name:
		return "there is a peer " + e.Name + " already"
	case IsOf(e.Name, e.wanted):
		return fmt.Sprintf("%s is a site here, with the host %s", e.wanted, e.Name)
	}
	return fmt.Sprintf("%s is one peer here, and no site that %s could be a host of", e.Name, e.wanted)
}

// remedy adds what to do.
func (e *TakenError) remedy() error {
	fix := "choose another name, or take that peer out first with longhaul pair remove " + e.Name
	switch {
	case !e.Key.IsZero() || e.wanted == "" || e.wanted == e.Name:
	case IsOf(e.Name, e.wanted):
		fix = "choose a name for one host of it, such as " + e.wanted + siteEnd + "NAME, or another name"
	default:
		fix = "make that peer a host of the site first: longhaul pair rename " + e.Name + " " + e.Name + siteEnd + "NAME"
	}
	return remedy.New(e, fix)
}

// clonePeers copies peers with their keys.
func clonePeers(l peerList) peerList {
	copied := slices.Clone(l)
	for i := range copied {
		copied[i].Keys = slices.Clone(copied[i].Keys)
	}
	return copied
}
