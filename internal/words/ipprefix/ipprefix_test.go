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
		"here": "write it like 203.0.113.0/24 or 2001:db8::/32", "fe80::1%eth0": "write it like 203.0.113.0/24 or 2001:db8::/32",
		"::ffff:203.0.113.0/120": "write it as IPv4", "203.0.113.9/24": "did you mean 203.0.113.0/24?",
	} {
		if got, err := Parse(text); err == nil || remedy.Of(err) != fix {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}
