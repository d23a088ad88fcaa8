package nettest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const manyPorts = 250 // more than a block has

// TestFreePort holds that two processes get no port both, and none that has a listener.
func TestFreePort(t *testing.T) {
	const child = "LONGHAUL_TEST_PORTS"
	host := netip.MustParseAddr("127.0.0.1")
	var got []string
	for range manyPorts {
		port, err := FreePort(host)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(host, port)))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(port))
		if err := l.Close(); err != nil { // the other process may not get it all the same
			t.Fatal(err)
		}
	}
	if os.Getenv(child) != "" {
		fmt.Println("ports", strings.Join(got, " "))
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFreePort$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	mine := map[string]bool{}
	for _, port := range got {
		mine[port] = true
	}
	line, _, _ := strings.Cut(string(out), "\n")
	others := strings.Fields(strings.TrimPrefix(line, "ports "))
	if len(others) != manyPorts {
		t.Fatalf("the other process got %d ports: %s", len(others), out)
	}
	for _, port := range others {
		if mine[port] {
			t.Errorf("both have port %s", port)
		}
	}
}
