package trust

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/words/remedy"
)

// MaxNames bounds the names of a host's trust.
const MaxNames = 1024

// maxSAN is the greatest length of a name in bytes (SPIFFE-ID, section 2.3).
const maxSAN = 2048

// spiffe begins a SPIFFE ID.
const spiffe = "spiffe://"

// Name is a name in certificates, and the peer that has it. An entry means one host: a site's hosts have
// one each.
type Name struct {
	SAN  string // a SPIFFE ID, or a DNS name in lower case
	Peer string // as pair and pair_from name it
}

// ParseName reads a SPIFFE ID or a DNS name. An empty peer is the path of the SPIFFE ID. The error is a
// [*remedy.Error].
func ParseName(san, peer string) (Name, error) {
	const form = "write a SPIFFE ID such as spiffe://corp/site-b, or a DNS name with its peer"
	path, isID := "", strings.HasPrefix(san, spiffe)
	var err error
	if isID {
		path, err = checkID(san)
	} else {
		san = strings.ToLower(san)
		err = checkDNS(san)
	}
	if err != nil {
		return Name{}, remedy.New(fmt.Errorf("invalid name %q: %w", san, err), form)
	}
	if peer == "" && !isID {
		return Name{}, remedy.New(fmt.Errorf("the DNS name %s has no peer", san), "write {name: "+san+", peer: site-b}")
	}
	n := Name{san, peer}
	if peer == "" {
		n.Peer = path
	}
	if err := identity.CheckName(n.Peer); err != nil {
		if peer == "" {
			return Name{}, remedy.New(fmt.Errorf("the path of %s is no peer's name: %w", san, err), "write {name: "+san+", peer: site-b}")
		}
		return Name{}, err
	}
	return n, nil
}

// checkID checks a SPIFFE ID and returns its path without the first slash (SPIFFE-ID, section 2).
func checkID(id string) (path string, err error) {
	u, err := url.Parse(id)
	switch {
	case len(id) > maxSAN:
		return "", fmt.Errorf("it has more than %d bytes", maxSAN)
	case err != nil || u.String() != id || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "":
		return "", errors.New("a SPIFFE ID has a trust domain and a path, and nothing else")
	case u.Host == "" || !only(u.Host, "abcdefghijklmnopqrstuvwxyz0123456789.-_"):
		return "", errors.New("its trust domain may have lower-case letters, digits, dots, hyphens and underscores")
	}
	path = strings.TrimPrefix(u.Path, "/")
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return "", errors.New("its path has an empty or a relative part")
		}
	}
	return path, nil
}

// checkDNS checks a DNS name, which has no wildcard.
func checkDNS(name string) error {
	if strings.Contains(name, "://") {
		return errors.New("of URIs only SPIFFE IDs are taken")
	}
	if name == "" || len(name) > 253 || !only(name, "abcdefghijklmnopqrstuvwxyz0123456789.-_") || strings.HasPrefix(name, ".") {
		return errors.New("it is no DNS name")
	}
	return nil
}

func only(text, set string) bool { return strings.Trim(text, set) == "" }
