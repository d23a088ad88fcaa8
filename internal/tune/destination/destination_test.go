package destination

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"longhaul/internal/tune/route"
	"longhaul/internal/words/remedy"
)

func TestParse(t *testing.T) {
	lookup := func(_ context.Context, _, name string) ([]netip.Addr, error) {
		if name != "far.example" {
			return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		}
		var all []netip.Addr
		for _, a := range []string{"2001:db8::9", "::ffff:203.0.113.9", "203.0.113.9"} {
			all = append(all, netip.MustParseAddr(a))
		}
		return all, nil
	}
	for text, want := range map[string]string{
		"default":            "[0.0.0.0/0 ::/0]",
		"203.0.113.9":        "[203.0.113.9/32]",
		"::ffff:203.0.113.9": "[203.0.113.9/32]",
		"2001:db8::/32":      "[2001:db8::/32]",
		"far.example":        "[203.0.113.9/32 2001:db8::9/128]",
	} {
		if got, err := parse(t.Context(), text, lookup); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"203.0.113.9/24":      `"203.0.113.9/24" has bits set after its first 24`,
		"203.0.113":           `invalid destination "203.0.113"`,
		"fe80::1%eth0":        `invalid destination "fe80::1%eth0"`,
		"::ffff:10.0.0.0/120": `"::ffff:10.0.0.0/120" is in IPv4-mapped form, which never matches`,
		"10.0.0.0/x":          `"10.0.0.0/x" is not an address or prefix`,
		"":                    `invalid destination ""`,
	} {
		if got, err := parse(t.Context(), text, lookup); err == nil || err.Error() != want || remedy.Of(err) == "" {
			t.Errorf("%s: %v, %v, want %s with a remedy", text, got, err, want)
		}
	}
	unresolved := (*net.DNSError)(nil)
	if _, err := parse(t.Context(), "nowhere.example", lookup); !errors.As(err, &unresolved) || remedy.Of(err) == "" {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestTexts(t *testing.T) {
	prefix := netip.MustParsePrefix("203.0.113.0/24")
	use := route.Use{Prefix: prefix, Algorithm: "brutal", RateBps: 200e6, Owners: []string{"alice", "bob"}}
	var out bytes.Buffer
	for _, u := range []Used{{Use: use, Changed: true}, {Use: route.Use{Prefix: prefix, Algorithm: "haul"}}} {
		if err := u.WriteText(&out); err != nil {
			t.Fatal(err)
		}
	}
	WriteUses(&out, nil)
	WriteUses(&out, []route.Use{use})
	const want = `new connections to 203.0.113.0/24 use brutal, together at 200Mbit
new connections to 203.0.113.0/24 use haul already

DESTINATIONS                    USE                           SET BY
203.0.113.0/24                  brutal, together at 200Mbit   alice, bob
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}
