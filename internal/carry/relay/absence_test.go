package relay

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// Without descriptors nobody can ask for an interface. The listener is then looked at again,
// and not taken for one whose interface is absent.
func TestListenerWithoutDescriptors(t *testing.T) {
	r, err := Start(Options{}, []Tunnel{{
		Name: "t", Listen: []netip.AddrPort{netip.MustParseAddrPort("[fe80::99%absent]:6000")},
		Forward: []hops.Target{{Host: "127.0.0.1", Port: 1}},
	}})
	nettest.Must(t, err)
	defer r.Close()
	if _, again := r.LookAtListeners(); again {
		t.Fatal("an absent interface is looked at again without an event")
	}
	var limit unix.Rlimit
	nettest.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	nettest.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	changes, again := r.LookAtListeners()
	nettest.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if len(changes) > 0 || !again {
		t.Errorf("without descriptors: %v, again %v; want no change and another look", changes, again)
	}
	if changes, again := r.LookAtListeners(); len(changes) > 0 || again {
		t.Errorf("afterwards: %v, again %v", changes, again)
	}
}
