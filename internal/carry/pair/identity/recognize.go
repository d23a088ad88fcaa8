package identity

import (
	"errors"
	"slices"
	"sync"
	"time"

	"longhaul/internal/carry/pair/preface"
)

const prefaceSize = preface.Size

// maxPrefaces bounds the prefaces of joins that a process remembers. No invitation needs
// that many; beyond it joins are refused until some of their invitations have expired.
const maxPrefaces = 1024

// errNoJoin is the error of a connection that answers no invitation of this host that can
// be used, or repeats the preface of another connection.
var errNoJoin = errors.New("this is no join of an invitation of this host")

// joinKey is an invitation as prefaces show it.
type joinKey struct {
	key  preface.Key
	kept *kept
}

// joinKeys derives the keys of all invitations.
func (l invitationList) joinKeys() []joinKey {
	keys := make([]joinKey, len(l))
	for i := range l {
		keys[i] = joinKey{preface.JoinKey(l[i].verifier[:]), &l[i]}
	}
	return keys
}

// usable reports whether a join may succeed with an invitation. One that a peer has used
// serves this peer again, whose answer may have been lost.
func (c *content) usable(k *kept, now time.Time) bool {
	return !k.expired(now) && (k.used.IsZero() || c.joined(k))
}

// joined reports whether the host that has used an invitation is the peer that it became.
func (c *content) joined(k *kept) bool {
	p := c.peers.named(k.name)
	return p != nil && slices.Contains(p.Keys, k.used)
}

// Recognize decides what the first bytes of a connection are. A join is one only for an
// invitation that can be used, and with a preface that this process has not taken yet;
// otherwise its connection is as any stranger's. It reads files at most once a second.
func (s *Store) Recognize(first []byte) (preface.Preface, preface.Verdict) {
	p, verdict, _ := s.recognize(first, time.Now())
	if verdict == preface.Yes && p.Kind == preface.Join && s.joins.refuses(preface.TagOf(first), time.Now()) {
		return preface.Preface{}, preface.No
	}
	return p, verdict
}

// recognize also returns when the invitation of a join expires.
func (s *Store) recognize(first []byte, now time.Time) (p preface.Preface, verdict preface.Verdict, until time.Time) {
	c, err := s.load()
	if err != nil {
		return p, preface.No, until
	}
	k := preface.Keys{Hosts: c.hostKeys}
	var own [4]preface.Key
	k.Joins = own[:0]
	for _, one := range c.joinKeys {
		if c.usable(one.kept, now) {
			k.Joins = append(k.Joins, one.key)
			if end := one.kept.made.Add(InvitationLife); end.After(until) {
				until = end
			}
		}
	}
	p, verdict = k.Recognize(first)
	return p, verdict, until
}

// take accepts the preface of a join, once.
func (s *Store) take(first []byte) error {
	now := time.Now()
	p, verdict, until := s.recognize(first, now)
	if verdict != preface.Yes || p.Kind != preface.Join || !s.joins.take(preface.TagOf(first), until, now) {
		return errNoJoin
	}
	return nil
}

// takenPrefaces are the prefaces of joins that were accepted, each until the invitations
// of that moment have expired.
type takenPrefaces struct {
	mu  sync.Mutex
	all map[preface.Tag]time.Time
}

// refuses reports whether a preface cannot be taken.
func (t *takenPrefaces) refuses(tag preface.Tag, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, taken := t.all[tag]
	return taken || !t.room(now)
}

// take takes a preface. It returns false if it was taken before or there is no room.
func (t *takenPrefaces) take(tag preface.Tag, until, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taken := t.all[tag]; taken || !t.room(now) {
		return false
	}
	if t.all == nil {
		t.all = map[preface.Tag]time.Time{}
	}
	t.all[tag] = until
	return true
}

// room makes room for another preface. The caller holds mu.
func (t *takenPrefaces) room(now time.Time) bool {
	if len(t.all) < maxPrefaces {
		return true
	}
	for tag, until := range t.all {
		if now.After(until) {
			delete(t.all, tag)
		}
	}
	return len(t.all) < maxPrefaces
}
