package pathprobe

import (
	"errors"
	"net/netip"
	"testing"

	"longhaul/internal/tune/mss"
)

func TestChoose(t *testing.T) {
	host, prefix := netip.MustParsePrefix("203.0.113.9/32"), netip.MustParsePrefix("203.0.113.0/24")
	host6 := netip.MustParsePrefix("2001:db8::9/128")
	for _, tt := range []struct {
		rule  mss.Rule
		probe string
		want  string // empty: an error
		bytes int
	}{
		{mss.Rule{To: host, MSS: 1460}, "", "to 203.0.113.9", 1500},
		{mss.Rule{From: host, MSS: 1460}, "", "here from 203.0.113.9", 1500},
		{mss.Rule{To: host6, MSS: 1440}, "", "to 2001:db8::9", 1500},
		{mss.Rule{To: prefix, MSS: 1400}, "203.0.113.7", "to 203.0.113.7", 1440},
		{mss.Rule{MSS: 1440}, "2001:db8::9", "to 2001:db8::9", 1500},
		{mss.Rule{To: prefix, MSS: 1400}, "", "", 0},
		{mss.Rule{To: prefix, MSS: 1400}, "198.51.100.1", "", 0},
		{mss.Rule{MSS: 1400}, "127.0.0.1", "", 0},
	} {
		var address netip.Addr
		if tt.probe != "" {
			address = netip.MustParseAddr(tt.probe)
		}
		switch p, err := Choose(tt.rule, address); {
		case tt.want == "" && err == nil:
			t.Errorf("%+v, %q: %v", tt.rule, tt.probe, p)
		case tt.want == "" && tt.probe == "" && !errors.Is(err, ErrNoHost):
			t.Errorf("%+v: %v", tt.rule, err)
		case tt.want != "" && (err != nil || p.String() != tt.want || p.Bytes != tt.bytes):
			t.Errorf("%+v, %q: %v of %d bytes, %v", tt.rule, tt.probe, p, p.Bytes, err)
		}
	}
}
