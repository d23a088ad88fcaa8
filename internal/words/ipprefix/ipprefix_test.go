package ipprefix

import (
	"testing"

	"longhaul/internal/words/remedy"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"203.0.113.0/24": "203.0.113.0/24", "203.0.113.9": "203.0.113.9/32", "::ffff:203.0.113.9": "203.0.113.9/32", "2001:db8::/32": "2001:db8::/32",
	} {
		if got, err := Parse(text); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v, want %s", text, got, err, want)
		}
	}
	for text, fix := range map[string]string{
		"here": "write it as 10.10.0.0/16, 2001:db8::/32 or 10.10.10.7", "10.0.0.0/33": "write it as 10.10.0.0/16, 2001:db8::/32 or 10.10.10.7",
		"fe80::1%eth0": "write fe80::1", "::ffff:203.0.113.0/120": "write 203.0.113.0/24", "::ffff:0.0.0.0/95": "write it in IPv4 form",
		"203.0.113.9/24": "write 203.0.113.0/24 for the network, or 203.0.113.9 for the one host",
	} {
		if got, err := Parse(text); err == nil || remedy.Of(err) != fix {
			t.Errorf("%s: %v, %v with %q, want %q", text, got, err, remedy.Of(err), fix)
		}
	}
}
