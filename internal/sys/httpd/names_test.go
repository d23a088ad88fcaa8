package httpd

import (
	"net/netip"
	"testing"
)

func TestNames(t *testing.T) {
	named := func(name string) bool { return name == "relay.example.net" }
	every := Names{Name: named}
	local := Names{Address: netip.Addr.IsLoopback}
	for host, want := range map[string][2]bool{ // any address valid, only local ones valid
		"127.0.0.1":               {true, true},
		"127.0.0.1:9463":          {true, true},
		"[::1]:9463":              {true, true},
		"[::1]":                   {true, true},
		"localhost":               {true, true},
		"LocalHost.:9463":         {true, true},
		"192.0.2.1:9463":          {true, false},
		"[2001:db8::1]:9463":      {true, false},
		"relay.example.net":       {true, false},
		"Relay.Example.net.:9463": {true, false},
		"attacker.example:9463":   {false, false},
		"127.0.0.1.nip.example":   {false, false},
		"relay.example.net:x:y":   {false, false},
		"localhost.attacker":      {false, false},
		"2130706433":              {false, false},
		"":                        {false, false},
		":9463":                   {false, false},
	} {
		if got := [2]bool{every.Has(host), local.Has(host)}; got != want {
			t.Errorf("%q: %v, want %v", host, got, want)
		}
	}
}
