package config

import (
	"slices"
	"testing"
)

func TestCongestionControls(t *testing.T) {
	c, err := Loader{}.Parse(t.Context(), "test.yaml", []byte(`
defaults: { lan: { congestion_control: cubic } }
tunnels:
  - { name: a, listen: "127.0.0.1:6000", forward: "a:1", wan: { congestion_control: haul } }
  - { name: b, listen: "127.0.0.1:6001", forward: "a:1", wan: { congestion_control: haul }, lan: { congestion_control: hybla } }
`))
	if err != nil {
		t.Fatal(err)
	}
	plain := c.Tunnels[0]
	plain.Transport, plain.WAN.CongestionControl = TransportKernel, "illinois"
	c.Tunnels = append(c.Tunnels, plain)
	if got, want := c.CongestionControls(), []string{"cubic", "haul", "hybla"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Every name has one address, which no other name has.
func TestPlaceholderResolver(t *testing.T) {
	resolve := PlaceholderResolver()
	owner := map[string]string{}
	for _, name := range []string{"a.example", "b.example", "a.example"} {
		addresses, err := resolve(t.Context(), name)
		if err != nil || len(addresses) != 1 || !addresses[0].IsLoopback() {
			t.Fatalf("%s: %v, %v", name, addresses, err)
		}
		address := addresses[0].String()
		if other, ok := owner[address]; ok && other != name {
			t.Errorf("%s has the address of %s", name, other)
		}
		owner[address] = name
	}
	if len(owner) != 2 {
		t.Errorf("%v", owner)
	}
}
