package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/transport"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/ccnames"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// ratedCC is the algorithm that needs a rate.
const ratedCC = "brutal"

// sharedRates loads brutal, by one of its names. The returned function translates a configuration with
// shared rates, as at a reload, and returns the legs of the first tunnel.
func sharedRates(t *testing.T, name string) (shared func(rate string) *legs) {
	t.Helper()
	if ok, err := nettest.MachineRoot(); err != nil {
		t.Fatal(err)
	} else if !ok {
		t.Skip("only root over the machine may load BPF")
	}
	host := cc.NewHost(ledger.By{Owner: "test", Means: ledger.Command})
	result, err := host.Load(t.Context(), name, name)
	if errors.Is(err, cc.ErrTaken) {
		t.Skip("another program's brutal is loaded")
	}
	if err != nil {
		t.Fatal(err)
	}
	if result.Outcome == cc.Loaded { // not if it was already loaded
		t.Cleanup(func() {
			if _, err := host.Unload(t.Context(), name); err != nil && !errors.Is(err, cc.ErrUnknown) {
				t.Errorf("unload %s: %v", name, err)
			}
		})
	}

	all := newTransports(host, os.Getenv, slog.New(slog.DiscardHandler))
	t.Cleanup(all.budgets.close)
	return func(rate string) *legs {
		t.Helper()
		change, tunnels, err := all.prepare(budgetConfig(t, rate, name, name))
		nettest.Must(t, err)
		change.Commit()
		if tunnels[0].Transport == tunnels[1].Transport {
			t.Error("two tunnels share one rate")
		}
		return tunnels[0].Transport.(*legs)
	}
}

// TestTunnelSharesARate sends on connections of a tunnel with brutal. They share its
// rate, which a reload changes for all.
func TestTunnelSharesARate(t *testing.T) {
	for _, name := range []string{ratedCC, ccnames.Second(ratedCC)} {
		t.Run(name, func(t *testing.T) { tunnelSharesARate(t, name) })
	}
}

func tunnelSharesARate(t *testing.T, name string) {
	shared := sharedRates(t, name)
	l := shared("80Mbit")
	if again := shared("80Mbit"); again != l {
		t.Error("a reload without a change makes the tunnel another")
	}
	address := discard(t)
	conn := dialLeg(t, l, address)
	defer conn.Close()
	if got := algorithmOf(t, conn); got != name {
		t.Fatalf("a leg uses %s", got)
	}
	pumps := []*net.TCPConn{pumpThrough(t, l, address), pumpThrough(t, l, address)}
	// The kernel paces each with its share of the rate, and leaves some for the third.
	// Without a rate it would be 1 Mb/s.
	pacedWith := func(bps float64) {
		t.Helper()
		var got []float64
		nettest.Eventually(t, patience, func() bool {
			got = nil
			for _, conn := range pumps {
				got = append(got, pacingRate(t, conn)*8)
			}
			return slices.Min(got) >= bps/4 && slices.Max(got) <= 1.1*bps
		}, func() string { return fmt.Sprintf("connections that share %.0f b/s are paced with %.0f b/s", bps, got) })
	}
	pacedWith(80e6)
	shared("8Mbit")
	pacedWith(8e6)
}

// TestSharedRateFromTheFirstByte holds that a leg that may have a shared rate joins it before its first bytes,
// as a flow of a few segments ends before a leg is set up otherwise. A leg that cannot have one does not.
func TestSharedRateFromTheFirstByte(t *testing.T) {
	sharedRates(t, ratedCC)
	for side, want := range map[config.WANSide]struct{ accepted, dialed bool }{
		config.WANAuto: {true, true}, config.WANListen: {true, false}, config.WANForward: {false, true},
		config.WANBoth: {true, true}, config.WANNone: {false, false},
	} {
		t.Run(string(side), func(t *testing.T) {
			all := newTransports(cc.NewHost(ledger.By{}), os.Getenv, slog.New(slog.DiscardHandler))
			t.Cleanup(all.budgets.close)
			c := budgetConfig(t, "80Mbit", ratedCC, ratedCC)
			tunnel := &c.Tunnels[0]
			tunnel.WANSide = side
			there := config.Destination{Prefix: netip.MustParsePrefix("127.0.0.0/8"), WAN: tunnel.WAN}
			for _, of := range []struct {
				what      string
				transport func(relay.Tunnel) relay.Transport
			}{
				{"a tunnel", func(r relay.Tunnel) relay.Transport { return r.Transport }},
				{"a destination", func(r relay.Tunnel) relay.Transport { return r.Destinations[0].Transport }},
			} {
				change, tunnels, err := all.prepare(c)
				nettest.Must(t, err)
				change.Commit()
				if l := of.transport(tunnels[0]); l.Early(false) != want.accepted || l.Early(true) != want.dialed {
					t.Errorf("with the rate of %s, early are accepted legs %v, dialed ones %v, want %v", of.what, l.Early(false), l.Early(true), want)
				}
				tunnel.Destinations, tunnel.WAN = []config.Destination{there}, config.Leg{}
			}
		})
	}
}

func pacingRate(t *testing.T, conn *net.TCPConn) (bytesPerSecond float64) {
	t.Helper()
	withFD(t, conn, func(fd int) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Errorf("read TCP_INFO: %v", err)
			return
		}
		bytesPerSecond = float64(info.Pacing_rate)
	})
	return bytesPerSecond
}

// TestAbortedRates holds that a reload that fails removes the rates that it has made, and no others.
func TestAbortedRates(t *testing.T) {
	sharedRates(t, ratedCC)
	all := newTransports(cc.NewHost(ledger.By{}), os.Getenv, slog.New(slog.DiscardHandler))
	t.Cleanup(all.budgets.close)
	first := budgetConfig(t, "80Mbit", ratedCC, ratedCC)
	both := *first
	first.Tunnels = first.Tunnels[:1]
	change, _, err := all.prepare(first)
	nettest.Must(t, err)
	change.Commit()
	was := maps.Clone(all.budgets.has)
	change, _, err = all.prepare(&both)
	nettest.Must(t, err)
	made := change.budgets.made
	change.Abort()
	if len(made) != 1 || !maps.Equal(all.budgets.has, was) {
		t.Errorf("%d rates are new, and in force are %v in place of %v", len(made), all.budgets.has, was)
	}
	for id, want := range map[uint32]bool{made[0]: false, was[budgetKey{"a", transport.WAN}]: true} {
		if err := all.budgets.rates.SetBudget(id, cc.Rate{BitsPerSecond: 1e6}); (err == nil) != want {
			t.Errorf("rate %d is there: %v, want %v", id, err == nil, want)
		}
	}
}

// TestTunnelWithoutARate checks the status without a brutal whose rate this relay may
// set.
func TestTunnelWithoutARate(t *testing.T) {
	var log bytes.Buffer
	all := newTransports(&cc.Host{BPFFS: t.TempDir()}, os.Getenv, slog.New(slog.NewTextHandler(&log, nil)))
	defer all.budgets.close()
	change, _, err := all.prepare(budgetConfig(t, "80Mbit", ratedCC, ratedCC))
	nettest.Must(t, err)
	change.Commit()
	want := transport.Lack{What: "a rate that the flows of a share with brutal; they use another congestion control", Remedy: "longhaul cc load brutal (as root), then reload the relay"}
	// Without a rate a loaded brutal would send 1 Mb/s.
	for key, l := range all.current {
		conn := dialLeg(t, l, discard(t))
		if name := algorithmOf(t, conn); name == ratedCC {
			t.Errorf("tunnel %s uses %s", key.tunnel, name)
		}
		conn.Close()
	}
	if !slices.Contains(all.lacks(), want) || !strings.Contains(log.String(), want.What) {
		t.Errorf("lacks %v, log %s", all.lacks(), log.String())
	}
}

// TestBothNamesOfBrutal checks a configuration that names brutal twice: as one, it
// would have two sets of rates.
func TestBothNamesOfBrutal(t *testing.T) {
	var log bytes.Buffer
	all := newTransports(&cc.Host{BPFFS: t.TempDir()}, os.Getenv, slog.New(slog.NewTextHandler(&log, nil)))
	defer all.budgets.close()
	change, _, err := all.prepare(budgetConfig(t, "80Mbit", "brutal", "lh_brutal"))
	nettest.Must(t, err)
	change.Commit()
	if want := "name one of brutal or lh_brutal in all tunnels"; !strings.Contains(log.String(), want) {
		t.Errorf("log %s, want %q", log.String(), want)
	}
}

// budgetConfig is a configuration of two tunnels, each with a rate and a name of brutal.
func budgetConfig(t *testing.T, rate string, names ...string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "longhaul.yaml")
	text := "tunnels:\n"
	for i, name := range []string{"a", "b"} {
		text += fmt.Sprintf("  - name: %s\n    listen: 127.0.0.1:%d\n    forward: 127.0.0.1:9\n    wan_side: forward\n    wan: {congestion_control: %s, rate: %s}\n", name, 6000+i, names[i], rate)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Loader{}.Load(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// discard reads and drops everything, until the test ends.
func discard(t *testing.T) string {
	t.Helper()
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	t.Cleanup(tcpserver.Serve(l, tcpserver.Discard))
	return l.Addr().String()
}

// pumpThrough sends on a leg at full speed, until the test ends.
func pumpThrough(t *testing.T, l *legs, address string) *net.TCPConn {
	t.Helper()
	conn := dialLeg(t, l, address)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(conn, endless{}) // until conn is closed
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return conn
}

// dialLeg dials a leg like the relay.
func dialLeg(t *testing.T, l *legs, address string) *net.TCPConn {
	t.Helper()
	var setUp error
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return errors.Join(c.Control(func(fd uintptr) { setUp = l.Prepare(int(fd), true) }), setUp)
	}}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	withFD(t, conn.(*net.TCPConn), func(fd int) {
		if _, degraded := l.Established(fd, true); degraded != "" {
			t.Error(degraded)
		}
	})
	return conn.(*net.TCPConn)
}

func algorithmOf(t *testing.T, conn *net.TCPConn) (name string) {
	t.Helper()
	withFD(t, conn, func(fd int) {
		var err error
		if name, err = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil {
			t.Errorf("read the congestion control: %v", err)
		}
	})
	return name
}

func withFD(t *testing.T, conn *net.TCPConn, f func(fd int)) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { f(int(fd)) }); err != nil {
		t.Fatal(err)
	}
}

// endless is a source without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
