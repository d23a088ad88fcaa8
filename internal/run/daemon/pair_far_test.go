package daemon

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/relay"
	"longhaul/internal/run/config"
	"longhaul/test/nettest"
)

// TestFarTunnelIsAddedAgain holds that sessions which stand bring flows again to a far tunnel
// that one reload removed and another added.
func TestFarTunnelIsAddedAgain(t *testing.T) {
	p := newPairs(slog.New(slog.DiscardHandler), "test", t.TempDir, nil, nil)
	defer p.close()
	reload := func(tunnels ...config.Tunnel) (servers []relay.PairServer) {
		t.Helper()
		built := make([]relay.Tunnel, len(tunnels))
		for i := range tunnels {
			built[i].Name = tunnels[i].Name
		}
		change, err := p.Prepare(t.Context(), &plan{Config: &config.Config{Tunnels: tunnels}, tunnels: built})
		nettest.Must(t, err)
		change.Commit()
		for _, b := range built {
			servers = append(servers, b.PairServer)
		}
		return servers
	}
	tunnel := config.Tunnel{Name: "from-a", PairFrom: config.PairFrom{Peers: []string{"site-a"}}}
	before := reload(tunnel)
	session := p.current.far[tunnel.Name] // asks it for each flow
	reload()
	if !session.Removed() || !session.Admits("site-a") {
		t.Error("a removed tunnel is not one, or does not keep its peer's flows")
	}
	after := reload(tunnel)
	if session.Removed() || !session.Admits("site-a") {
		t.Error("a tunnel that was added again refuses its peer")
	}
	if before[0] != after[0] {
		t.Error("the tunnel has another server")
	}
	if len(p.removed) > 0 {
		t.Errorf("%d tunnels count as removed", len(p.removed))
	}
}

// TestJoinThatWasReset holds that a connection which its client has reset is no harm, whenever
// that was.
func TestJoinThatWasReset(t *testing.T) {
	p := newPairs(slog.New(slog.DiscardHandler), "test", t.TempDir, nil, nil)
	defer p.close()
	nettest.Must(t, p.start(&config.Config{}, nil))
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	nettest.Must(t, err)
	accepted, err := l.AcceptTCP()
	nettest.Must(t, err)
	file, err := accepted.File()
	nettest.Must(t, err)
	accepted.Close()
	fd, err := unix.Dup(int(file.Fd()))
	nettest.Must(t, err)
	_, err = c.Write(make([]byte, preface.Size))
	nettest.Must(t, err)
	nettest.Must(t, c.(*net.TCPConn).SetLinger(0))
	c.Close()
	nettest.Eventually(t, time.Minute, func() bool {
		_, err := unix.Getpeername(fd)
		return err != nil
	}, func() string { return "the reset does not arrive" })
	file.Close()
	p.join(fd, time.Now().Add(time.Minute))
}

// TestSharer holds that a name in pair_from has a share, however many hosts it has.
func TestSharer(t *testing.T) {
	for _, c := range []struct {
		names      []string
		host, want string
	}{
		{[]string{"site-a"}, "site-a", ""},
		{[]string{"site-a"}, "site-a/h1", ""},
		{[]string{"site-a", "site-b"}, "site-b", "site-b"},
		{[]string{"site-a", "site-b"}, "site-b/h1", "site-b"},
		{[]string{"site-a/h1", "site-a/h2"}, "site-a/h2", "site-a/h2"},
		{[]string{"site-a", "site-b"}, "removed", "removed"},
	} {
		if got := sharer(c.names, c.host); got != c.want {
			t.Errorf("of %v, %s has the share of %q, want %q", c.names, c.host, got, c.want)
		}
	}
}
