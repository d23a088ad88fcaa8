package flow

import (
	"encoding/json"
	"net/netip"
	"testing"
)

// An address has the text of what it is: whole, truncated, or missing; and JSON brings it back.
func TestAddressText(t *testing.T) {
	for from, want := range map[string]string{
		"10.1.2.3:4711": "10.1.2.3:4711", "10.1.2.0:0": "10.1.2.0/24", "10.1.2.3:0": "10.1.2.3:0", "10.1.2.0:80": "10.1.2.0:80",
		"[2001:db8:1::]:0": "2001:db8:1::/48", "[2001:db8:1:2::]:0": "[2001:db8:1:2::]:0", "0.0.0.0:0": "0.0.0.0:0", "[::]:0": "[::]:0", "": "",
	} {
		var a, again Address
		if from != "" {
			a.AddrPort = netip.MustParseAddrPort(from)
			if a.String() != want {
				t.Errorf("%s is %s, want %s", from, a, want)
			}
		}
		text, err := json.Marshal(a)
		if err != nil || string(text) != `"`+want+`"` {
			t.Errorf("%s is %s in JSON, %v", from, text, err)
		}
		if err := json.Unmarshal(text, &again); err != nil || again != a {
			t.Errorf("%s comes back as %v, %v", text, again, err)
		}
	}
	for _, bad := range []string{`"10.1.2.0/33"`, `"here"`} {
		var a Address
		if err := json.Unmarshal([]byte(bad), &a); err == nil {
			t.Errorf("%s is %v", bad, a)
		}
	}
}
