package config

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/internal/words/portrange"
)

// hostLoader is of a host with one address, the peer site-b, and outgoing ports from 32768.
func hostLoader() Loader {
	l := testLoader()
	l.HasAddress = func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.1") }
	l.OutgoingPorts = func() []portrange.Range { return []portrange.Range{{First: 32768, Last: 60999}} }
	l.PeerKey = func(_, peer string) error {
		if peer == "site-b" {
			return nil
		}
		return fmt.Errorf("no key of peer %q: the only peer here is site-b", peer)
	}
	l.FindService = func(_ context.Context, name string) error {
		if name == "_x._tcp.site-b" {
			return nil
		}
		return errors.New("no such host")
	}
	l.CongestionControls = func() []string { return []string{"cubic"} }
	return l
}

// TestMistakeInTrust: beside a mistake in pair_trust, a check says nothing of the keys of peers that it may name.
func TestMistakeInTrust(t *testing.T) {
	for trust, want := range map[string]bool{"": true, "pair_trust: {ca: ca.pem}\n": false, "pair_trust: {ca: /c, cert: /c, key: /k, names: [spiffe://x/site-d]}\n": true} {
		path := filepath.Join(t.TempDir(), "x.yaml")
		text := trust + "tunnels: [{name: a, listen: 10.0.0.1:6000, forward: 'relay-a:22', pair: site-c}]\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, warnings, _ := hostLoader().Check(t.Context(), path)
		if got := strings.Contains(fmt.Sprint(warnings), "no key of peer"); got != want {
			t.Errorf("%q: warnings %v", trust, warnings)
		}
	}
}

// TestCheckWarnsOfTheHost holds that a check names what this host lacks, and no more.
func TestCheckWarnsOfTheHost(t *testing.T) {
	for name, c := range map[string]struct {
		tunnel string
		want   []string // beginnings of problems, in the order of the file
	}{
		"nothing":                     {"listen: 10.0.0.1:6000, forward: 'relay-a:22'", nil},
		"an absent address":           {"listen: '10.0.0.9:6000', forward: 'relay-a:22'", []string{"10.0.0.9 is no address of this host"}},
		"one of two":                  {"listen: ['10.0.0.1:6000', '10.0.0.9:6000'], forward: 'relay-a:22'", []string{"10.0.0.9 is no address of this host"}},
		"a name without an address":   {"listen: 10.0.0.1:6000, forward: 'nowhere:22'", []string{"the name nowhere has no address"}},
		"a name twice":                {"listen: 10.0.0.1:6000, forward: ['nowhere:22', 'nowhere:23']", []string{"the name nowhere has no address"}},
		"a service":                   {"listen: 10.0.0.1:6000, forward: {srv: _x._tcp.site-b}", nil},
		"a service without targets":   {"listen: 10.0.0.1:6000, forward: [{srv: _x._tcp.nowhere}]", []string{"the service _x._tcp.nowhere has no targets here, so its hops are not checked: no such host"}},
		"an outgoing port":            {"listen: 10.0.0.1:40000, forward: 'relay-a:22'", []string{"listening on 40000 fails while an outgoing connection"}},
		"a range that reaches in":     {"listen: 10.0.0.1:32760-32770, forward: 'relay-a:10-20'", []string{"listening on 32760-32770 fails while"}},
		"a peer without a key":        {"listen: 10.0.0.1:6000, forward: 'relay-a:22', pair: vm", []string{`no key of peer "vm": the only peer here is site-b`}},
		"a peer with a key":           {"listen: 10.0.0.1:6000, forward: 'relay-a:22', pair: site-b", nil},
		"a near peer without a key":   {"listen: 10.0.0.1:6000, forward: 'relay-a:22', pair_from: [site-b, vm]", []string{`no key of peer "vm"`}},
		"two peers of a chain":        {"listen: 10.0.0.1:6000, forward: 'relay-a:22', pair: vm, pair_from: [site-b, vm2]", []string{`no key of peer "vm"`, `no key of peer "vm2"`}},
		"an unknown algorithm":        {"listen: 10.0.0.1:6000, forward: 'relay-a:22', wan: {congestion_control: vegas3}", []string{"congestion_control is \"vegas3\""}},
		"everything in another order": {"pair: vm, listen: 10.0.0.9:40000, forward: 'nowhere:22'", []string{`no key of peer "vm"`, "10.0.0.9 is no", "listening on 40000", "the name nowhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mistake := range []string{"", ", idle_timout: 5m"} {
				file := filepath.Join(t.TempDir(), "f.yaml")
				if err := os.WriteFile(file, []byte("tunnels:\n- {name: t, "+c.tunnel+mistake+"}\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				_, warnings, err := hostLoader().Check(t.Context(), file)
				var mistakes Errors
				if errors.As(err, &mistakes); len(mistakes) != strings.Count(mistake, ",") {
					t.Errorf("mistakes: %v", err)
				}
				if !begin(warnings, c.want) {
					t.Errorf("with %q: warnings\n%v\nwant %q", mistake, warnings, c.want)
				}
			}
		})
	}
}

func begin(warnings Errors, want []string) bool {
	if len(warnings) != len(want) {
		return false
	}
	for i, w := range warnings {
		if !strings.HasPrefix(w.Problem, want[i]) || w.Fix == "" {
			return false
		}
	}
	return true
}
