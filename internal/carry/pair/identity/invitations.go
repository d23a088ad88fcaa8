package identity

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"longhaul/internal/words/remedy"
)

const (
	verifierPrefix      = "longhaul-pair-verifier-1:"
	usedWord            = "used="
	invitationsFileHead = "# Invitations of this host: the key that checks the secret, name, when made, the key that used it.\n"
)

// InvitationLife is the time for which an invitation can be used.
const InvitationLife = 10 * time.Minute

const (
	// keptFor is the time after which an invitation is forgotten. Until then a host
	// that joins too late learns that.
	keptFor = 24 * time.Hour
	// maxInvitations bounds the file; the oldest go first.
	maxInvitations = 100
)

// kept is an invitation as this host remembers it, without its secret.
type kept struct {
	verifier PublicKey // of Invitation.signer
	name     string    // for the peer that joins
	made     time.Time // in whole seconds
	used     PublicKey // of the peer that has joined; zero: none
}

// expired reports whether an invitation can no longer be used. One from the future was
// made before somebody set the clock back: nobody knows its age.
func (k *kept) expired(now time.Time) bool {
	age := now.Sub(k.made)
	return age < -time.Second || age > InvitationLife
}

// invitationList are the invitations of this host, the oldest first.
type invitationList []kept

// format is the text that parseInvitations reads.
func (l invitationList) format() []byte {
	var b bytes.Buffer
	b.WriteString(invitationsFileHead)
	for _, k := range l {
		fmt.Fprintf(&b, "%s %s %s", encode(verifierPrefix, k.verifier[:]), k.name, k.made.UTC().Format(time.RFC3339))
		if !k.used.IsZero() {
			b.WriteString(" " + usedWord + k.used.String())
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// parseInvitations reads the file of invitations.
func parseInvitations(text []byte) (l invitationList, err error) {
	err = eachLine(text, func(line string) error {
		words := strings.Fields(line)
		if len(words) < 3 || len(words) > 4 {
			return fmt.Errorf("%d words, want verifier, name, time and used=KEY", len(words))
		}
		verifier, err := decodeKey(verifierPrefix, words[0])
		if err != nil {
			return err
		}
		k := kept{verifier: verifier, name: words[1]}
		if err := CheckName(k.name); err != nil {
			return err
		}
		if k.made, err = parseTime(words[2]); err != nil {
			return err
		}
		if len(words) == 4 {
			word, ok := strings.CutPrefix(words[3], usedWord)
			if !ok {
				return fmt.Errorf("the last word does not begin with %s", usedWord)
			}
			if k.used, err = ParsePublicKey(word); err != nil {
				return err
			}
		}
		l = append(l, k)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// find returns the invitation with a verifier, or nil.
func (l invitationList) find(verifier PublicKey) *kept {
	if i := slices.IndexFunc(l, func(k kept) bool { return k.verifier == verifier }); i >= 0 {
		return &l[i]
	}
	return nil
}

// add appends an invitation. It forgets old ones, and an unused one for the same name.
func (l invitationList) add(k kept) invitationList {
	l = slices.DeleteFunc(l.withoutUnused(k.name), func(old kept) bool {
		age := k.made.Sub(old.made)
		return age > keptFor || age < -keptFor
	})
	l = append(l, k)
	return l[max(0, len(l)-maxInvitations):]
}

// withoutUnused removes the invitations for a name that nobody has used.
func (l invitationList) withoutUnused(name string) invitationList {
	return slices.DeleteFunc(slices.Clone(l), func(k kept) bool { return k.name == name && k.used.IsZero() })
}

// HostName is the name of this host without its domain, if it can be a peer's name.
func HostName() (string, error) {
	name, err := os.Hostname()
	name, _, _ = strings.Cut(name, ".")
	if err == nil {
		err = CheckName(name)
	}
	if err != nil {
		return "", remedy.New(fmt.Errorf("no name for this host: %w", err), "give it one with --as NAME")
	}
	return name, nil
}

// Invite makes an invitation. The host that uses it becomes the peer name, and gets this
// host's own name as a proposal. An earlier, unused invitation for the same name is void.
func (s *Store) Invite(name, own string, addresses []string) (*Invitation, error) {
	for _, err := range []error{CheckName(name), CheckName(own), CheckAddresses(addresses)} {
		if err != nil {
			return nil, err
		}
	}
	var inv Invitation
	err := s.change(func(c *changing) error {
		if err := c.peers.free(name); err != nil {
			return takenRemedy(err)
		}
		c.needKey()
		inv = newInvitation(own, addresses, c.keys[c.inUse()].public())
		k := kept{verifier: inv.signer().public(), name: name, made: time.Now().UTC().Truncate(time.Second)}
		c.invitations = c.invitations.add(k)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &inv, nil
}

// pending lists the invitations that nobody has used and that can be.
func (l invitationList) pending(now time.Time) []ListedInvitation {
	all := []ListedInvitation{}
	for _, k := range l {
		if k.used.IsZero() && !k.expired(now) {
			all = append(all, ListedInvitation{k.name, k.made.Add(InvitationLife)})
		}
	}
	return all
}
