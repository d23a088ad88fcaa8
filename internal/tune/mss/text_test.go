package mss

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"longhaul/internal/sys/ledger"
)

func TestTexts(t *testing.T) {
	prefix := netip.MustParsePrefix("203.0.113.0/24")
	s := Status{
		Rule: Rule{Device: "eth0", To: prefix, Port: 22, Action: Raise, MSS: 1460},
		ID:   1, Matched: 2, Rewritten: 1, LastOld: 1000, LastNew: 1460, LastAgo: 5 * time.Second, Problem: "not attached",
	}
	var out bytes.Buffer
	if err := s.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	if err := (Status{Problem: "damaged"}).WriteText(&out); err != nil {
		t.Fatal(err)
	}
	lower := Rule{Device: "eth0", Action: Clamp, MSS: 1200}
	upper := lower
	upper.MSS = 1300
	bob := []ledger.Claim{{By: ledger.By{Owner: "bob"}}}
	for _, u := range []Undone{
		{Rule: Rule{Action: ClampToPMTU}}, {Rule: Rule{Device: "eth0"}},
		{Rule: upper, Now: &lower, Left: bob}, {Rule: upper, Now: &upper, Left: bob},
	} {
		if err := u.WriteText(&out); err != nil {
			t.Fatal(err)
		}
	}
	const want = `eth0  raise to 1460: data to 203.0.113.0/24, port 22
    matched 2 SYNs, changed 1; the last 5s ago: 1000 -> 1460
    not attached
(not here)  damaged
removed (not here)  clamp to the path MTU: data both ways
removed what an interrupted command left of eth0
eth0 has clamp to 1200: data both ways again, set by bob
eth0 keeps clamp to 1300: data both ways, set by bob
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
	b, err := json.Marshal(s)
	const object = `{"device":"eth0","to":"203.0.113.0/24","port":22,"action":"raise","mss":1460,"id":1,"matched":2,"rewritten":1,` +
		`"last_old":1000,"last_new":1460,"problem":"not attached","last_ago_seconds":5}`
	if err != nil || string(b) != object {
		t.Errorf("%s, %v", b, err)
	}
}
