package identity

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/words/remedy"
)

// InvitationPrefix begins the line of an invitation of this release.
const InvitationPrefix = "longhaul-pair-invite-2:"

const (
	anyPrefix = "longhaul-pair-invite-" // of a form of any release
	// formerPrefix begins a line that an older release has made. Its relay takes a join
	// whose preface is made for the host's public key.
	formerPrefix = "longhaul-pair-invite-1:"
)

const (
	secretBytes  = 16
	maxAddresses = 8
	maxAddress   = 255 // bytes
)

// Invitation is what one host needs to join another: the line of longhaul pair invite.
// Whoever has it within [InvitationLife] may become a peer.
type Invitation struct {
	Name      string    // of the inviting host, as a proposal
	Addresses []string  // HOST:PORT, where it takes a join, the one to try first first
	Key       PublicKey // of the inviting host, in use
	secret    [secretBytes]byte
	former    bool // the line is of the older form
}

// newInvitation makes an invitation with a new secret.
func newInvitation(name string, addresses []string, key PublicKey) Invitation {
	inv := Invitation{Name: name, Addresses: addresses, Key: key}
	_, _ = rand.Read(inv.secret[:]) // never fails (crypto/rand)
	return inv
}

// signer is the key that the secret gives. Who has the secret signs with it; who keeps
// only the public key can check the signature and not make one.
func (inv *Invitation) signer() privateKey {
	seed, err := hkdf.Key(sha256.New, inv.secret[:], nil, "longhaul pair invitation 1", keyBytes)
	if err != nil {
		panic("identity: " + err.Error()) // only for excessive lengths
	}
	return privateKey{ed25519.NewKeyFromSeed(seed)}
}

// String keeps the secret out of logs.
func (inv Invitation) String() string { return "invitation of " + inv.Name }

// GoString does the same for %#v.
func (inv Invitation) GoString() string { return inv.String() }

// Line is the invitation in the form that ParseInvitation reads. It has the secret.
func (inv *Invitation) Line() string {
	b := append(inv.Key[:], inv.secret[:]...)
	b = append(append(b, byte(len(inv.Name))), inv.Name...)
	b = append(b, byte(len(inv.Addresses)))
	for _, address := range inv.Addresses {
		b = append(append(b, byte(len(address))), address...)
	}
	return encode(inv.prefix(), b)
}

func (inv *Invitation) prefix() string {
	if inv.former {
		return formerPrefix
	}
	return InvitationPrefix
}

// preface makes the first bytes of a connection for the join.
func (inv *Invitation) preface() []byte {
	key := preface.HostKey(inv.Key[:])
	if !inv.former {
		verifier := inv.signer().public()
		key = preface.JoinKey(verifier[:])
	}
	return preface.Preface{Kind: preface.Join}.AppendFor(nil, key)
}

// ParseInvitation reads a line of longhaul pair invite, which may have been folded. The
// error is a [*remedy.Error].
func ParseInvitation(line string) (*Invitation, error) {
	inv, err := parseInvitation(strings.Join(strings.Fields(line), ""))
	if errors.Is(err, errOtherForm) {
		return nil, remedy.New(fmt.Errorf("invalid invitation: %w", err), "bring both hosts to the same version of longhaul")
	}
	if err != nil {
		return nil, remedy.New(fmt.Errorf("invalid invitation: %w", err),
			"copy the whole line that longhaul pair invite prints at the other site")
	}
	return inv, nil
}

// errOtherForm is the error of a line of a form that this release does not know.
var errOtherForm = errors.New("the line is of a newer release of longhaul")

func parseInvitation(word string) (*Invitation, error) {
	if formOf(anyPrefix, word) > 2 { // this release knows forms 1 and 2
		return nil, errOtherForm
	}
	inv := &Invitation{former: strings.HasPrefix(word, formerPrefix)}
	b, err := decode(inv.prefix(), word)
	if err != nil {
		return nil, err
	}
	if len(b) < keyBytes+secretBytes {
		return nil, errCutShort
	}
	inv.Key, inv.secret = PublicKey(b[:keyBytes]), [secretBytes]byte(b[keyBytes:])
	b = b[keyBytes+secretBytes:]
	name, b, ok := cutText(b)
	if !ok || len(b) == 0 || inv.Key.IsZero() {
		return nil, errCutShort
	}
	if err := CheckName(name); err != nil {
		return nil, err
	}
	inv.Name = name
	n := int(b[0])
	b = b[1:]
	for range n {
		var address string
		if address, b, ok = cutText(b); !ok {
			return nil, errCutShort
		}
		inv.Addresses = append(inv.Addresses, address)
	}
	if len(b) > 0 {
		return nil, errCutShort
	}
	return inv, CheckAddresses(inv.Addresses)
}

// cutText takes a text with its length in front off the bytes.
func cutText(b []byte) (text string, rest []byte, ok bool) {
	if len(b) == 0 || len(b)-1 < int(b[0]) {
		return "", nil, false
	}
	end := 1 + int(b[0])
	return string(b[1:end]), b[end:], true
}

// CheckAddresses checks that a list has 1 to maxAddresses addresses, each HOST:PORT. The error is a [*remedy.Error].
func CheckAddresses(addresses []string) error {
	if len(addresses) == 0 || len(addresses) > maxAddresses {
		return remedy.New(fmt.Errorf("%d addresses", len(addresses)), fmt.Sprintf("name 1 to %d", maxAddresses))
	}
	for _, address := range addresses {
		if err := checkAddress(address); err != nil {
			return remedy.New(fmt.Errorf("invalid address %q: %w", address, err),
				"write it like relay-b.example.net:6000, 203.0.113.9:6000 or [2001:db8::9]:6000")
		}
	}
	return nil
}

func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		var bad *net.AddrError
		if errors.As(err, &bad) {
			err = errors.New(bad.Err)
		}
		return err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || n == 0:
		return fmt.Errorf("the port is not 1 to 65535")
	case host == "":
		return errors.New("no host")
	case len(address) > maxAddress:
		return fmt.Errorf("more than %d bytes", maxAddress)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return errors.New("this is no address of one host")
	}
	for _, c := range []byte(host) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && strings.IndexByte(".-_:%", c) < 0 {
			return errors.New("neither a host name nor an address")
		}
	}
	return nil
}
