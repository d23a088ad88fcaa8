package identity

import (
	"cmp"
	"slices"
	"time"

	"longhaul/internal/words/sorted"
)

// Wanted is a host in a declared list of peers.
type Wanted struct {
	Name string
	Keys []PublicKey // the newest first: one, or two while the host rotates its key
}

// ChangeKind is how a peer differs from what the list of peers had.
type ChangeKind string

// The kinds of changes.
const (
	PeerAdded   ChangeKind = "added"
	PeerRemoved ChangeKind = "removed"
	PeerRenamed ChangeKind = "renamed" // its keys may be others too
	PeerChanged ChangeKind = "changed" // its keys are others
)

// Change is a peer that a declared list changes.
type Change struct {
	Kind       ChangeKind  `json:"change"`
	Peer       string      `json:"peer"`
	Keys       []PublicKey `json:"keys"`
	FormerName string      `json:"former_name"` // empty: it had this one
	FormerKeys []PublicKey `json:"former_keys"` // empty: it had these
}

// Applied is what a declared list changes.
type Applied struct {
	ThisHost  string   `json:"this_host"` // the name of this host in the list; empty: it is not there
	Changes   []Change `json:"changes"`   // by name
	Unchanged int      `json:"unchanged"`
	Outdated  []string `json:"outdated"` // hosts of which the list has a former key
}

// Apply makes the list of peers as declared, all of it or nothing, and returns the difference. This
// host's own entry, which one of its keys marks, is no peer. check changes nothing.
//
// A host that has rotated its key since the list was written keeps its new key: it has told that
// over a session which the old one authenticated.
func (s *Store) Apply(wanted []Wanted, check bool) (a Applied, err error) {
	// Without a key, this host could not find its own entry.
	if _, err := s.withKey(); err != nil {
		return a, err
	}
	apply := func(c *changing) error {
		before := c.content
		if a, err = c.apply(wanted, time.Now().UTC().Truncate(time.Second)); err == nil {
			err = c.clash(&before)
		}
		return err
	}
	if check {
		return a, s.locked(func(_ *directory, c *changing) error { return apply(c) })
	}
	return a, s.change(apply)
}

// apply replaces the peers by the declared ones.
func (c *changing) apply(wanted []Wanted, now time.Time) (a Applied, err error) {
	a = Applied{Changes: []Change{}, Outdated: []string{}}
	var hosts []Wanted
	own, successors, declared := c.keys.public(), c.former.successors(), map[PublicKey]bool{}
	for _, w := range wanted {
		host := Wanted{Name: w.Name}
		for _, key := range w.Keys {
			if newest := successors.newest(key); !slices.Contains(host.Keys, newest) {
				host.Keys = append(host.Keys, newest)
			}
		}
		if slices.ContainsFunc(host.Keys, func(key PublicKey) bool { return slices.Contains(own, key) }) {
			a.ThisHost = w.Name
			continue
		}
		if !slices.ContainsFunc(w.Keys, func(key PublicKey) bool { return slices.Contains(host.Keys, key) }) {
			a.Outdated = append(a.Outdated, w.Name)
		}
		hosts = append(hosts, host)
		for _, key := range host.Keys {
			declared[key] = true
		}
	}
	had := c.peers.match(hosts)
	stays := map[*Peer]bool{}
	peers := newListing()
	for i, host := range hosts {
		p := Peer{Name: host.Name, Since: now, Keys: host.Keys}
		old := had[i]
		if old != nil && old.sharesKey(host.Keys) {
			p.Since, p.Holds = old.Since, old.Holds
			p.Keys = old.declared(host.Keys, func(key PublicKey) bool { return declared[key] })
			// Sessions that the old key of a rotation has proved are its host's still.
			if len(old.Keys) == MaxKeys && slices.Contains(p.Keys, old.Keys[0]) && !declared[old.Keys[1]] && !slices.Contains(p.Keys, old.Keys[1]) {
				c.former = c.former.replaced(old.Keys[1], old.Keys[0])
			}
		}
		if err := peers.add(p); err != nil {
			return a, takenRemedy(err)
		}
		stays[old] = true
		a.add(old, &p)
	}
	for i := range c.peers {
		if p := &c.peers[i]; !stays[p] {
			a.Changes = append(a.Changes, Change{Kind: PeerRemoved, Peer: p.Name, Keys: p.Keys, FormerKeys: []PublicKey{}})
		}
	}
	sorted.By(a.Changes, func(x, y Change) int { return cmp.Or(cmp.Compare(x.Peer, y.Peer), cmp.Compare(y.Kind, x.Kind)) })
	c.peers = peers.list()
	return a, nil
}

// add takes a peer into the difference. old is what it was; nil: no peer.
func (a *Applied) add(old, p *Peer) {
	change := Change{Kind: PeerAdded, Peer: p.Name, Keys: p.Keys, FormerKeys: []PublicKey{}}
	if old != nil {
		keys, name := !slices.Equal(old.Keys, p.Keys), old.Name != p.Name
		if keys {
			change.Kind, change.FormerKeys = PeerChanged, old.Keys
		}
		if name {
			change.Kind, change.FormerName = PeerRenamed, old.Name
		}
		if !keys && !name {
			a.Unchanged++
			return
		}
	}
	a.Changes = append(a.Changes, change)
}

// match finds the peer that each declared host is, or nil: by name and key, then by key, then by
// name. Each peer is one host.
func (l peerList) match(hosts []Wanted) []*Peer {
	byName, byKey, taken := map[string]*Peer{}, map[PublicKey]int{}, make([]bool, len(l))
	for i := range l {
		byName[l[i].Name] = &l[i]
		for _, key := range l[i].Keys {
			byKey[key] = i
		}
	}
	place := func(p *Peer) int { return byKey[p.Keys[0]] }
	found := make([]*Peer, len(hosts))
	take := func(i int, p *Peer) {
		if p != nil && found[i] == nil && !taken[place(p)] {
			found[i], taken[place(p)] = p, true
		}
	}
	for i := range hosts {
		if p := byName[hosts[i].Name]; p != nil && p.sharesKey(hosts[i].Keys) {
			take(i, p)
		}
	}
	for i := range hosts {
		first := len(l)
		for _, key := range hosts[i].Keys {
			if at, known := byKey[key]; known && !taken[at] {
				first = min(first, at)
			}
		}
		if first < len(l) {
			take(i, &l[first])
		}
	}
	for i := range hosts {
		take(i, byName[hosts[i].Name])
	}
	return found
}

func (p *Peer) sharesKey(keys []PublicKey) bool {
	return slices.ContainsFunc(p.Keys, func(key PublicKey) bool { return slices.Contains(keys, key) })
}

// declared returns the keys that a peer has by a declared list. The peer may be in a rotation that
// the list does not know: then it keeps the newer key, unless the list gives that to somebody.
func (p *Peer) declared(keys []PublicKey, elsewhere func(PublicKey) bool) []PublicKey {
	same := len(keys) == len(p.Keys) && !slices.ContainsFunc(keys, func(key PublicKey) bool { return !slices.Contains(p.Keys, key) })
	rotates := len(keys) == 1 && len(p.Keys) == MaxKeys && keys[0] == p.Keys[1] && !elsewhere(p.Keys[0])
	if same || rotates {
		return p.Keys
	}
	return keys
}
