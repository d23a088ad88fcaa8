package destination

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"longhaul/internal/cc"
	"longhaul/internal/remedy"
	"longhaul/internal/route"
)

func TestParsePrefixes(t *testing.T) {
	for text, want := range map[string]string{
		"default": "[0.0.0.0/0 ::/0]", "203.0.113.9": "[203.0.113.9/32]", "2001:db8::/32": "[2001:db8::/32]",
	} {
		if got, err := ParsePrefixes(text); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if got, err := ParsePrefixes("203.0.113.9/24"); err == nil || remedy.Of(err) != "did you mean 203.0.113.0/24?" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestTexts(t *testing.T) {
	prefix := netip.MustParsePrefix("203.0.113.0/24")
	use := route.Use{Prefix: prefix, Algorithm: "brutal", FormerAlgorithm: "cubic"}
	var out bytes.Buffer
	for _, u := range []Used{{Use: &use, Changed: true, RateBps: 200e6}, {Use: &use}, {Undone: &use, Changed: true}} {
		if err := u.WriteText(&out); err != nil {
			t.Fatal(err)
		}
	}
	unloaded := Unloaded{Name: "haul", Outcome: cc.Unloaded, Connections: 2, Default: "cubic", Undone: []route.Use{{Prefix: prefix, Made: true}}}
	if err := unloaded.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	WriteUses(&out, nil)
	WriteUses(&out, []Use{{use, 200e6}})
	const want = `new connections to 203.0.113.0/24 use brutal, together at 200Mbit
new connections to 203.0.113.0/24 use brutal already
new connections to 203.0.113.0/24 use cubic again
haul: unloaded, 2 connections keep it, the default is cubic again
the route to 203.0.113.0/24 is gone again

DESTINATIONS                              USE
203.0.113.0/24                            brutal, together at 200Mbit
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}
