package flow

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestNameOf(t *testing.T) {
	const uuid = "5f3a0000-0001-4002-8003-0000000000ff"
	want := Name{0x5f, 0x3a, 0, 0, 0, 1, 0x40, 2, 0x80, 3, 0, 0, 0, 0, 0, 0xff}
	for name, tt := range map[string]struct {
		id   string
		want string
	}{
		"nothing":      {"", ""},
		"uuid":         {uuid, uuid},
		"capitals":     {strings.ToUpper(uuid), uuid},
		"digits":       {strings.ReplaceAll(uuid, "-", ""), uuid},
		"bytes":        {string(want[:]), uuid},
		"another text": {"C0000201:04D2_C6336402:1770_65A1B2C3_0001:1F40", "11d3151e-24f8-8b3d-aa2e-12f9b1705674"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := NameOf([]byte(tt.id)).String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseName(t *testing.T) {
	n := NewName()
	if n.IsZero() || n[6]>>4 != 4 || n[8]>>6 != 2 {
		t.Errorf("%v is no UUID of version 4", n)
	}
	if got, err := ParseName(n.String()); got != n || err != nil {
		t.Errorf("%v was read as %v, %v", n, got, err)
	}
	for _, bad := range []string{"", "5f3a", n.String() + "0", n.String()[1:], strings.Replace(n.String(), "-", "_", 1), strings.Repeat("g", 32), "\xff"} {
		if got, err := ParseName(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q was read as %v, %v", bad, got, err)
		}
	}
	b, err := json.Marshal([]Name{n, {}})
	var back []Name
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil || back[0] != n || !back[1].IsZero() {
		t.Errorf("%s was read as %v, %v", b, back, err)
	}
}

func TestVia(t *testing.T) {
	a, b := RelayID{1}, RelayID{0, 0, 0, 0, 0, 0, 0, 1}
	v := Via("").Add(a).Add(b)
	if v.Len() != 2 || !v.Has(a) || !v.Has(b) || v.Has(RelayID{}) || v.Has(RelayID{0, 0, 0, 0, 0, 0, 1}) {
		t.Errorf("%q is wrong of its relays", v)
	}
}

func TestJoint(t *testing.T) {
	var none *Joint
	none.Cut(EndClientReset, nil)
	if reason, _ := none.Cause(); reason != "" {
		t.Errorf("a leg that joins nothing has the cause %s", reason)
	}
	j := new(Joint)
	if reason, _ := j.Cause(); reason != "" {
		t.Errorf("the cause is %s before the end", reason)
	}
	j.Cut(EndWANLost, nil)
	j.Cut(EndClientReset, nil)
	if reason, _ := j.Cause(); reason != EndWANLost {
		t.Errorf("the cause is %s, want the first one", reason)
	}
}

func BenchmarkNewName(b *testing.B) {
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			NewName()
		}
	})
}
