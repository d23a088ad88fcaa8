package identity

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestTrustedOfSeveralRelays: each relay writes its own list, and the commands see all of them.
func TestTrustedOfSeveralRelays(t *testing.T) {
	s := newStore(t)
	b, c := Trusted{Name: "site-b", SAN: "spiffe://x/b"}, Trusted{Name: "site-c", SAN: "spiffe://x/c"}
	later := b
	later.Until = noon
	set := func(relay string, all ...Trusted) {
		t.Helper()
		nettest.Must(t, s.SetTrusted(relay, all))
	}
	is := func(want ...Trusted) {
		t.Helper()
		l, err := s.List()
		if err != nil || !slices.EqualFunc(l.Trusted, want, func(a, b Trusted) bool { return a == b || a.Name == b.Name && a.SAN == b.SAN && a.Until.Equal(b.Until) }) {
			t.Errorf("listed are %v, %v, want %v", l.Trusted, err, want)
		}
	}
	taken := func(name string) {
		t.Helper()
		if _, err := s.Pin(name, testKey(7).public()); err == nil {
			t.Errorf("%s is a pinned peer, too", name)
		}
	}
	nettest.Must(t, os.WriteFile(filepath.Join(s.Dir(), trustedFile), []byte("site-b spiffe://x/b "+noon.Format(time.RFC3339)+"\n"), 0o600))
	is(later) // as written before lines had a relay
	const odd = "/run/an odd #name\n%.sock"
	set(odd, b)
	is(later)
	set("/run/b.sock", c, b)
	is(later, c)
	taken("site-b")
	taken("site-c")
	set("/run/c.sock")
	is(later, c)
	set("/run/b.sock")
	is(later)
	set("/run/b.sock", c)
	set(odd)
	is(c)
	taken("site-c")
	set("/run/b.sock")
	is()
	if _, err := os.Stat(filepath.Join(s.Dir(), trustedFile)); err == nil {
		t.Error("an empty list stands")
	}
}

// TestTrustedUnknown: a directory that cannot be used does not say that nobody is trusted; a missing one does.
func TestTrustedUnknown(t *testing.T) {
	s := newStore(t)
	nettest.Must(t, s.SetTrusted("a", []Trusted{{Name: "site-b", SAN: "spiffe://x/b"}}))
	nettest.Must(t, os.Chmod(s.Dir(), 0o777))
	if l, err := s.Trusted("a"); err == nil {
		t.Errorf("read are %v", l)
	}
	if l, err := New(filepath.Join(s.Dir(), "missing")).Trusted("a"); err != nil || l != nil {
		t.Errorf("a missing directory has %v, %v", l, err)
	}
}

// TestTrustedClash: a name that a relay has come to trust beside a pinned peer, or an open invitation, of that
// name keeps others from neither changes nor joins, and nobody gets such a name anew.
func TestTrustedClash(t *testing.T) {
	s := newStore(t)
	pin(t, s, "site-p", testKey(2).public())
	_, err := s.Invite("site-b", "site-a", []string{"a:6000"})
	nettest.Must(t, err)
	nettest.Must(t, s.SetTrusted("/run/a.sock", []Trusted{{Name: "site-b", SAN: "spiffe://x/b"}, {Name: "site-p", SAN: "spiffe://x/p"}}))
	pin(t, s, "site-c", testKey(3).public())
	nettest.Must(t, s.Rename("site-c", "site-d"))
	nettest.Must(t, s.Learn("site-p", bare([]PublicKey{testKey(4).public()})[0]))
	_, err = s.Apply(declare("site-p=4,2 site-d=3"), false)
	nettest.Must(t, err)
	const taken = "the peer site-b proves its name by a certificate, as spiffe://x/b"
	_, err = s.Pin("site-b", testKey(5).public())
	checkMistake(t, err, taken)
	checkMistake(t, s.Rename("site-d", "site-b/b1"), taken)
	_, err = s.Invite("site-b", "site-a", []string{"a:6000"})
	checkMistake(t, err, taken)
	_, err = s.Apply(declare("site-p=4,2 site-b=3"), true)
	checkMistake(t, err, taken)
}
