package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"longhaul/internal/words/remedy"
)

// Peers returns the peers by name.
func (s *Store) Peers() ([]Peer, error) {
	c, err := s.load()
	if err != nil {
		return nil, err
	}
	return clonePeers(c.peers), nil
}

// Pin adds a peer by the key that its host printed. It reports false if this peer has
// the key already.
func (s *Store) Pin(name string, key PublicKey) (added bool, err error) {
	if err := CheckName(name); err != nil {
		return false, err
	}
	err = s.change(func(c *changing) error {
		c.needKey()
		added, err = c.pin(Peer{Name: name, Keys: []PublicKey{key}}, key)
		return err
	})
	return added && err == nil, err
}

// pin adds a peer from now on. It reports false for a peer that is there already. proved
// is the key that the peer has shown to be its own, or that the administrator says it has.
func (c *changing) pin(p Peer, proved PublicKey) (added bool, err error) {
	if slices.ContainsFunc(p.Keys, func(key PublicKey) bool { return slices.Contains(c.keys.public(), key) }) {
		return false, remedy.New(errors.New("this is the key of this host itself"), "run this at the other site")
	}
	there := c.peers.named(p.Name)
	if there != nil && slices.ContainsFunc(p.Keys, func(key PublicKey) bool { return slices.Contains(there.Keys, key) }) {
		return false, nil
	}
	c.peers.disown(proved, p.Name)
	p.Since = time.Now().UTC().Truncate(time.Second)
	peers, err := c.peers.with(p)
	if err != nil {
		return false, takenRemedy(err)
	}
	c.peers = peers
	for _, key := range p.Keys {
		c.former = c.former.without(key)
	}
	return true, nil
}

// pinJoined adds a peer that has authenticated itself with one of its keys, proved, and
// pins all keys of this host. A peer that is there already gets these keys instead of its
// former ones.
func (c *changing) pinJoined(name string, keys []PublicKey, proved PublicKey) (added bool, err error) {
	added, err = c.pin(Peer{Name: name, Keys: keys}, proved)
	if err != nil {
		return false, err
	}
	c.peers.disown(proved, name)
	p := c.peers.named(name)
	for _, key := range keys {
		if other := c.peers.ofKey(key); other != nil && other != p {
			return false, takenRemedy(&TakenError{Name: other.Name, Key: key})
		}
	}
	p.Keys, p.Holds = slices.Clone(keys), c.keys[0].public()
	return added, nil
}

// takenRemedy adds what to do about a [TakenError].
func takenRemedy(err error) error {
	var taken *TakenError
	if !errors.As(err, &taken) {
		return err
	}
	return taken.remedy()
}

// ErrNoPeer is returned for a name that no peer has.
var ErrNoPeer = errors.New("there is no such peer")

// missing is the error of a name that is not that of one peer.
func (l peerList) missing(name string) error {
	if err := l.isSite(name); err != nil {
		return err
	}
	return remedy.New(fmt.Errorf("%w: %s", ErrNoPeer, name), "longhaul pair list prints the peers")
}

// Remove takes a peer out, and makes an unused invitation for this name void. Running
// relays end the peer's sessions. A site's hosts are removed one by one.
func (s *Store) Remove(name string) error {
	if _, err := os.Stat(s.dir); errors.Is(err, fs.ErrNotExist) {
		return peerList(nil).missing(name) // changing it would make the directory
	}
	return s.change(func(c *changing) error {
		invitations := c.invitations.withoutUnused(name)
		if c.peers.named(name) == nil && len(invitations) == len(c.invitations) {
			if t := c.trusted.named(name); t != nil {
				return t.taken()
			}
			return c.peers.missing(name)
		}
		c.peers, c.invitations = c.peers.without(name), invitations
		return nil
	})
}

// Rename gives a peer another name. Its keys stay. Running relays end the sessions that have the
// former name, unless it is now that of the peer's site, and begin those of tunnels that have the
// new one.
func (s *Store) Rename(old, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	peers, err := s.Peers()
	if err != nil {
		return err
	}
	if peerList(peers).named(old) == nil { // changing would make a missing directory
		if trusted, _ := s.trusted(); trusted.named(old) != nil {
			return trusted.named(old).taken()
		}
		return peerList(peers).missing(old)
	}
	return s.change(func(c *changing) error {
		p := c.peers.named(old)
		if p == nil || old == name {
			return nil
		}
		renamed := *p
		renamed.Name = name
		peers, err := c.peers.without(old).with(renamed)
		if err != nil {
			return takenRemedy(err)
		}
		c.peers = peers
		return nil
	})
}

// unknownPeer is the error of a name that no peer has. It says which names there are.
type unknownPeer struct {
	name  string
	peers peerList
}

// maxNamed bounds the names in an error.
const maxNamed = 8

func (e *unknownPeer) Error() string {
	names := make([]string, len(e.peers))
	for i, p := range e.peers {
		names[i] = p.Name
	}
	known := "there is no peer"
	switch more := len(names) - maxNamed; {
	case more > 0:
		known = fmt.Sprintf("the peers here are %s and %d more", strings.Join(names[:maxNamed], ", "), more)
	case len(names) > 1:
		known = "the peers here are " + strings.Join(names, ", ")
	case len(names) == 1:
		known = "the only peer here is " + names[0]
	}
	return fmt.Sprintf("no key of peer %q: %s", e.name, known)
}

func (e *unknownPeer) Is(target error) bool { return target == ErrNoPeer }

// Known returns an error that names the peers if none has this name or is of this site. A directory that cannot be
// read, or is missing, has none.
func (s *Store) Known(name string) error {
	c, err := s.load()
	if err == nil && len(c.peers.meant(name)) == 0 {
		err = &unknownPeer{name, c.peers}
	}
	return err
}
