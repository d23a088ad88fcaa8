package identity

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A rotation has three steps. Each peer learns the new key over a session that the old
// one authenticates. This host authenticates itself with the old key until every peer
// has the new one. Then it drops the old key, and a peer drops it when it sees the new
// one in use.

// Rotation is the state of a rotation.
type Rotation struct {
	Old, New PublicKey // Old is zero once it is dropped
	Waiting  []string  // peers that do not have the new key
	Started  bool      // by this call
}

// Rotate makes a second key, unless a rotation goes on. Without peers the new key takes
// the place of the old one at once.
func (s *Store) Rotate() (r Rotation, err error) {
	err = s.change(func(c *changing) error {
		c.needKey()
		if r.Started = len(c.keys) < MaxKeys; r.Started {
			c.keys = slices.Insert(slices.Clone(c.keys), 0, newPrivateKey())
		}
		r.New, r.Old = c.keys[0].public(), c.keys[c.inUse()].public()
		if r.Waiting = c.waiting(); len(r.Waiting) == 0 {
			r.Old = PublicKey{}
		}
		return nil
	})
	return r, err
}

// RotateNow drops the old key at once. It makes a second key first, unless a rotation
// goes on. Peers that do not have the new key need a new pairing.
func (s *Store) RotateNow() (r Rotation, err error) {
	err = s.change(func(c *changing) error {
		if r.Started = len(c.keys) < MaxKeys; r.Started {
			c.keys = slices.Insert(slices.Clone(c.keys), 0, newPrivateKey())
		}
		c.keys = c.keys[:1:1]
		r.New, r.Waiting = c.keys[0].public(), c.waiting()
		return nil
	})
	return r, err
}

// waiting lists the peers that are not known to have the newest key.
func (c *content) waiting() (names []string) {
	for _, p := range c.peers {
		if p.Holds != c.keys[0].public() {
			names = append(names, p.Name)
		}
	}
	return names
}

// finishRotation drops the old key if every peer has the new one.
func (c *changing) finishRotation() {
	if len(c.keys) == MaxKeys && len(c.waiting()) == 0 {
		c.keys = c.keys[:1:1]
	}
}

// Announced returns the key that a rotation made and that this peer is not known to
// have; nil: none.
func (s *Store) Announced(peer string) ed25519.PublicKey {
	c, err := s.load()
	if err != nil || len(c.keys) < MaxKeys {
		return nil
	}
	key := c.keys[0].public()
	if p := c.peers.only(peer); p == nil || p.Holds == key {
		return nil
	}
	return key[:]
}

// Taken reports that a peer has stored the announced key. The last peer's ends the
// rotation. A key that this host has not announced is refused without a look at the
// files.
func (s *Store) Taken(peer string, key ed25519.PublicKey) error {
	taken, err := toKey(key)
	if err != nil {
		return err
	}
	c, err := s.load()
	if err != nil {
		return err
	}
	if p, err := c.taken(peer, taken); err != nil || p.Holds == taken {
		return err
	}
	return s.change(func(c *changing) error {
		p, err := c.taken(peer, taken)
		if err == nil {
			p.Holds = taken
		}
		return err
	})
}

// taken returns the peer that has stored a key, if this host has announced that key.
func (c *content) taken(peer string, key PublicKey) (*Peer, error) {
	p := c.peers.only(peer)
	switch {
	case p == nil:
		return nil, fmt.Errorf("%w: %s", ErrNoPeer, peer)
	case len(c.keys) == 0 || c.keys[0].public() != key:
		return nil, fmt.Errorf("peer %s has taken the key %s, which this host has not announced", peer, key.Short())
	}
	return p, nil
}

// LearnPause is the time between two changes of one peer's keys. A peer announces a key
// again each 10 s until it is stored.
const LearnPause = 10 * time.Second

// ErrTooSoon is the error of a key that a peer announced within [LearnPause] of another.
// It is no trouble: the peer announces it again.
var ErrTooSoon = errors.New("the peer announces keys too fast")

// Learn stores a key that a peer announced over a session that one of its keys
// authenticates, beside the newest that it has. A key that is refused costs no look at
// the files.
func (s *Store) Learn(peer string, key ed25519.PublicKey) error {
	learnt, err := toKey(key)
	if err != nil {
		return err
	}
	c, err := s.load()
	if err != nil {
		return err
	}
	if p, err := c.announcing(peer, learnt); err != nil || slices.Contains(p.Keys, learnt) {
		return err
	}
	if !s.mayLearn(peer, time.Now()) {
		return ErrTooSoon
	}
	return s.change(func(c *changing) error {
		p, err := c.announcing(peer, learnt)
		if err == nil && !slices.Contains(p.Keys, learnt) {
			if len(p.Keys) == MaxKeys {
				c.former = c.former.replaced(p.Keys[1], learnt)
			}
			c.former = c.former.without(learnt)
			p.Keys = []PublicKey{learnt, p.Keys[0]}
		}
		return err
	})
}

// announcing returns the peer that announces a key, if the key can be its own.
func (c *content) announcing(peer string, key PublicKey) (*Peer, error) {
	p := c.peers.only(peer)
	if p == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoPeer, peer)
	}
	if other := c.peers.ofKey(key); other != nil && other != p {
		return nil, fmt.Errorf("peer %s announces the key %s: %w", peer, key.Short(), &TakenError{Name: other.Name, Key: key})
	}
	if slices.Contains(c.keys.public(), key) {
		return nil, fmt.Errorf("peer %s announces the key of this host", peer)
	}
	return p, nil
}

// mayLearn reports whether a peer may change its keys now, and counts it.
func (s *Store) mayLearn(peer string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if since := now.Sub(s.learnt[peer]); since >= 0 && since < LearnPause {
		return false
	}
	if s.learnt == nil {
		s.learnt = map[string]time.Time{}
	}
	for name := range s.learnt { // peers that were removed
		if s.current.peers.only(name) == nil {
			delete(s.learnt, name)
		}
	}
	s.learnt[peer] = now
	return true
}

// settle drops the old key of a peer that uses its new one.
func (s *Store) settle(peer string, used PublicKey) error {
	return s.change(func(c *changing) error {
		if p := c.peers.named(peer); p != nil && p.Keys[0] == used {
			for _, old := range p.Keys[1:] {
				c.former = c.former.replaced(old, used)
			}
			p.Keys = p.Keys[:1:1]
		}
		return nil
	})
}

func toKey(key ed25519.PublicKey) (PublicKey, error) {
	if len(key) != keyBytes || PublicKey(key).IsZero() {
		return PublicKey{}, fmt.Errorf("a public key of %d bytes is invalid", len(key))
	}
	return PublicKey(key), nil
}
