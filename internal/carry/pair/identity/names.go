package identity

import (
	"fmt"
	"strings"

	"longhaul/internal/words/remedy"
)

// maxName is the greatest length of a peer's name in bytes.
const maxName = 64

// A site may have several hosts, each with its own key. Then a host is the peer SITE/HOST, and the
// site's name stands for all of its hosts.
const siteEnd = "/"

// IsOf reports whether a peer is meant by a name, which is its own or that of its site.
func IsOf(peer, name string) bool {
	return peer == name || strings.HasPrefix(peer, name) && strings.HasPrefix(peer[len(name):], siteEnd)
}

// SameSite reports whether two names of peers are one, or those of one site.
func SameSite(a, b string) bool {
	siteA, _, _ := strings.Cut(a, siteEnd)
	siteB, _, _ := strings.Cut(b, siteEnd)
	return siteA == siteB
}

// CheckName refuses names of peers that are not NAME or SITE/HOST, at most 64 bytes together, each
// of letters, digits, dots, hyphens and underscores, beginning with a letter or digit. The error is
// a [*remedy.Error].
func CheckName(name string) error {
	site, host, several := strings.Cut(name, siteEnd)
	if len(name) > maxName || !isWord(site) || several && !isWord(host) {
		return remedy.New(fmt.Errorf("invalid name %q of a peer", name),
			"use up to 64 letters, digits, dots, hyphens and underscores, such as site-b, or site-b/b1 for one host of several")
	}
	return nil
}

// isWord reports whether a name is a site's or a host's.
func isWord(name string) bool {
	for i, c := range []byte(name) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || strings.IndexByte("._-", c) < 0) {
			return false
		}
	}
	return name != ""
}

// isSite is the error of a site's name in place of a host's; nil: the name is of no site.
func (l peerList) isSite(name string) error {
	hosts := l.meant(name)
	if len(hosts) == 0 {
		return nil
	}
	names := make([]string, len(hosts))
	for i, p := range hosts {
		names[i] = p.Name
	}
	return remedy.New(fmt.Errorf("%s is a site, with %s", name, countedHosts(names)), "name one of them, such as "+names[0])
}

// countedHosts lists the hosts of a site.
func countedHosts(names []string) string {
	if len(names) == 1 {
		return "the host " + names[0]
	}
	return "the hosts " + strings.Join(names, ", ")
}
