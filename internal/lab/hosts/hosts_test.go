package hosts

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"longhaul/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// TestAddressFound checks that neighbours find a host's new IPv6 address with their
// first solicitation.
func TestAddressFound(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	for range 20 {
		var ends [2]*Host
		for i, name := range []string{"a", "b"} {
			host, err := New(name)
			must(t, err)
			t.Cleanup(host.Close)
			ends[i] = host
		}
		must(t, Cable(ends[0], "eth0", ends[1], "eth0", 1500))
		for _, address := range []string{"10.9.0.1/24", "fd09::7:1234/64"} {
			must(t, ends[0].Address("eth0", netip.MustParsePrefix(address)))
		}
		must(t, ends[0].Address("lo", netip.MustParsePrefix("fd09::8/128")))
		var groups []byte
		must(t, ends[0].Do(func() (err error) {
			groups, err = os.ReadFile("/proc/thread-self/net/igmp6")
			return err
		}))
		if !strings.Contains(string(groups), "ff0200000000000000000001ff071234") {
			t.Fatalf("the host does not listen for neighbours that look for it, only at:\n%s", groups)
		}
	}
}
