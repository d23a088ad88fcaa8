// Command dualstack measures what a client waits for a target of two address families, one of which
// does not answer, beside a target of one family. All is on loopback, where the dead address has a
// listener with a full queue.
//
//	go run ./bench/dualstack
//
// It fails if a flow behind the first one waits more than 50 ms longer.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/program"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/lab/tcpserver"
)

// most is how much longer than with one family a flow behind the first one may wait.
const most = 50 * time.Millisecond

func main() { program.Main("dualstack", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("dualstack", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flows := flags.Int("flows", 200, "through each tunnel, one after another")
	if err := flags.Parse(args); err != nil {
		return err
	}
	live, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer tcpserver.Serve(live, func(c net.Conn) { _, _ = c.Write([]byte("x")) })()
	port := live.Addr().(*net.TCPAddr).AddrPort().Port()
	silenced, err := silence(port)
	if err != nil {
		return fmt.Errorf("silence the IPv6 address: %w", err)
	}
	defer silenced()
	known := map[string][]netip.Addr{
		"single.example": {netip.MustParseAddr("127.0.0.1")},
		"dual.example":   {netip.IPv6Loopback(), netip.MustParseAddr("127.0.0.1")},
	}
	waits := map[string][]time.Duration{}
	for name, addrs := range known {
		if waits[name], err = through(ctx, name, addrs, port, *flows, stderr); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "%-16s %10s %10s %10s\n", "target", "first", "median", "longest")
	for _, name := range []string{"single.example", "dual.example"} {
		first, rest := waits[name][0], slices.Sorted(slices.Values(waits[name][1:]))
		fmt.Fprintf(stdout, "%-16s %10s %10s %10s\n", name, ms(first), ms(rest[len(rest)/2]), ms(rest[len(rest)-1]))
	}
	if more := slices.Max(waits["dual.example"][1:]) - slices.Max(waits["single.example"][1:]); more > most {
		return fmt.Errorf("a flow behind the first one waited %s longer, more than %s", ms(more), ms(most))
	}
	return nil
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

// silence gives the IPv6 loopback address a listener with a full queue.
func silence(port uint16) (end func(), err error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = cmp.Or(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
		unix.Bind(fd, &unix.SockaddrInet6{Port: int(port), Addr: netip.IPv6Loopback().As16()}), unix.Listen(fd, 0))
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	c, err := net.Dial("tcp", netip.AddrPortFrom(netip.IPv6Loopback(), port).String())
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return func() { c.Close(); unix.Close(fd) }, nil
}

// through sends flows through a relay to a name, and returns what each waited for the target's byte.
func through(ctx context.Context, name string, addrs []netip.Addr, port uint16, flows int, stderr io.Writer) ([]time.Duration, error) {
	r, err := relay.Start(relay.Options{
		Log:     slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Resolve: func(context.Context, string) (names.Answer, error) { return names.Answer{Addrs: addrs}, nil },
	}, []relay.Tunnel{{Name: "t", Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}, Forward: []hops.Target{{Host: name, Port: port}}}})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	at := r.Overview().Tunnels[0].Listen[0].String()
	var waits []time.Duration
	for range flows {
		began := time.Now()
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", at)
		if err != nil {
			return nil, err
		}
		_, err = io.ReadFull(c, make([]byte, 1))
		c.Close()
		if err != nil {
			return nil, err
		}
		waits = append(waits, time.Since(began))
	}
	return waits, nil
}
