package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/usable"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/resources"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// beating is a service manager that counts its beats, in a synctest bubble.
func beating(interval time.Duration, line func() string) (beats *atomic.Int64, stop func()) {
	beats = new(atomic.Int64)
	m := &serviceManager{log: slog.New(slog.DiscardHandler), watchdog: interval, notify: func(state string) error {
		if state == "WATCHDOG=1" {
			beats.Add(1)
		}
		return nil
	}}
	return beats, m.heartbeat(line)
}

func TestWatchdogBeatsAtHalfTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 400 * time.Millisecond
		beats, stop := beating(interval, func() string { return "1 tunnel, 0 flows" })
		defer stop()
		for want := range int64(6) {
			synctest.Wait()
			if got := beats.Load(); got != want {
				t.Errorf("%d beats after %d half intervals", got, want)
			}
			time.Sleep(interval / 2)
		}
	})
}

func TestWatchdogIsSilentWhileTheStatusIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 100 * time.Millisecond
		release := make(chan struct{})
		beats, stop := beating(interval, func() string {
			<-release
			return ""
		})
		defer stop()
		time.Sleep(10 * interval)
		synctest.Wait()
		if got := beats.Load(); got != 0 {
			t.Errorf("%d beats while an event loop is stuck, want none", got)
		}
		close(release)
		time.Sleep(interval)
		synctest.Wait()
		if beats.Load() == 0 {
			t.Error("no beat after the event loop went on")
		}
	})
}

// TestStartWithManyTunnels counts the allocations of what the start and the status line do for each tunnel.
// At e814c144 the start listed all tunnels for each of them.
func TestStartWithManyTunnels(t *testing.T) {
	allocations := func(n int) (start, line float64) {
		var tunnels []relay.Tunnel
		c := &config.Config{}
		for i := range n {
			name := fmt.Sprint("t", i)
			tunnels = append(tunnels, relay.Tunnel{Name: name, Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")},
				Forward: []hops.Target{{Host: "127.0.0.1", Port: 9}}})
			c.Tunnels = append(c.Tunnels, config.Tunnel{Name: name})
		}
		r, err := relay.Start(relay.Options{Workers: 1}, tunnels)
		nettest.Must(t, err)
		defer r.Close()
		d := &daemon{relay: r, life: life{config: c}, log: slog.New(slog.DiscardHandler)}
		return testing.AllocsPerRun(5, d.logListening), testing.AllocsPerRun(5, func() { d.statusLine() })
	}
	const few, many = 4, 128
	startFew, lineFew := allocations(few)
	startMany, lineMany := allocations(many)
	if startMany > 2*startFew*many/few {
		t.Errorf("the start makes %.0f allocations for %d tunnels and %.0f for %d", startMany, many, startFew, few)
	}
	if lineMany > lineFew+2 {
		t.Errorf("the status line makes %.0f allocations with %d tunnels and %.0f with %d", lineMany, many, lineFew, few)
	}
}

// TestStatusLineWaitsForAStuckLoop blocks the relay's only event loop, which sends the
// next beat. The status answers without the flows meanwhile. At 071f4916 it did not.
func TestStatusLineWaitsForAStuckLoop(t *testing.T) {
	listen := netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1"))
	target := netip.MustParseAddrPort(echoes(t))
	stuck, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r, err := relay.Start(relay.Options{
		Workers: 1,
		OnFlows: func([]flow.Record) {
			once.Do(func() { close(stuck) })
			<-release
		},
	}, []relay.Tunnel{{Name: "a", Listen: []netip.AddrPort{listen}, Forward: []hops.Target{{Host: target.Addr().String(), Port: target.Port()}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo() // before the relay's Close, which waits for its loop
	quiet := slog.New(slog.DiscardHandler)
	monitor := resources.Start(resources.Options{})
	defer monitor.Close()
	d := &daemon{
		shedder: &shedder{monitor: monitor},
		relay:   r, life: life{config: &config.Config{}}, output: &logOutput{asyncWriter: &asyncWriter{}}, control: &controlSocket{getenv: os.Getenv, past: &past{}}, legs: &transports{}, integrity: &integrityChecks{},
		history: newHistoryKeeper(historyOptions{log: quiet, getenv: os.Getenv}), pairs: newPairs(quiet, "", nil, nil, nil), rules: &interception{},
		keeper: &hostKeeper{}, http: &metricsSite{httpSite: &httpSite{}}, pages: &dashboard{httpSite: &httpSite{}}, Options: Options{Getenv: os.Getenv},
	}
	d.states = &states{relay: r, discovery: &discovery{}, rules: d.rules, pairs: d.pairs, judge: usable.New(unpaired)}

	talked := make(chan struct{})
	go func() { // the flow's last step waits for the loop
		defer close(talked)
		c, err := net.Dial("tcp", listen.String())
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "x")
		c.(*net.TCPConn).CloseWrite()
		if _, err := io.ReadAll(c); err != nil {
			t.Error(err)
		}
	}()
	defer func() { <-talked }()
	defer letGo()
	<-stuck
	line := make(chan string, 1)
	go func() { line <- d.statusLine() }()
	within, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := r.Responsive(within); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a stuck loop answers: %v", err)
	}
	select {
	case got := <-line:
		t.Errorf("the status line of a stuck loop is %q, want none", got)
	default:
	}
	for range 3 {
		if s := d.status(); !slices.Contains(s.Missing, partFlows) || len(s.Tunnels) != 1 {
			t.Errorf("the status of a stuck loop lacks %q and has %d tunnels", s.Missing, len(s.Tunnels))
		}
	}
	letGo()
	var s Status
	nettest.Eventually(t, time.Minute, func() bool { s = d.status(); return len(s.Missing) == 0 },
		func() string { return fmt.Sprintf("the status goes on to lack %q", s.Missing) })
	if got, want := <-line, "1 tunnel, "; !strings.HasPrefix(got, want) {
		t.Errorf("the status line is %q, want %q and flows", got, want)
	}
}

// echoes starts a target that echoes until the test ends, and returns its address.
func echoes(t *testing.T) string {
	t.Helper()
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	t.Cleanup(tcpserver.Serve(l, tcpserver.Echo))
	return l.Addr().String()
}
