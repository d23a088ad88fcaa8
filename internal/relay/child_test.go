package relay

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
)

// childRole names the environment variable that makes the test binary run as
// a child of a test: a process that can be killed, or limited.
const childRole = "LONGHAUL_RELAY_TEST_CHILD"

// child is the child's main. It relays to its first argument, says where it
// listens, and ends when its standard input does. A second argument is the
// address to listen on.
func child(role string) int {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: TARGET [LISTEN]")
		return 2
	}
	to, err := netip.ParseAddrPort(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	opts := Options{Tunnels: []Tunnel{{
		Listen:  []netip.AddrPort{freePort},
		Forward: []Target{{Host: to.Addr().String(), Port: to.Port()}},
	}}}
	if len(os.Args) > 2 {
		opts.Tunnels[0].Listen[0] = netip.MustParseAddrPort(os.Args[2])
	}
	if n, err := strconv.Atoi(role); err == nil {
		opts.Workers = n
	}
	r, err := New(opts)
	if err == nil {
		err = r.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(r.Snapshot().Tunnels[0].Listen[0])
	_, _ = io.Copy(io.Discard, os.Stdin)
	r.Close()
	return 0
}
