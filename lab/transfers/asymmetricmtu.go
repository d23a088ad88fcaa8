package transfers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/bpffs"
	"longhaul/internal/sys/kernel"
	"longhaul/lab"
)

// asymmetricMTU is the experiment on a path that carries large packets one way
// and small ones the other. The receiver, who knows its own way out, asks for
// small segments; raising its MSS on the way lets large ones through.
//
// The hosts of the report are at the ends of the path itself, so relay-a and
// relay-b play them; with relays, host-a and host-b send and receive.
func asymmetricMTU() Experiment {
	const (
		MiB    = 1 << 20
		raised = 1460
	)
	conditions := lab.Conditions{RateBps: 100e6, QueueBytes: 256 << 10, MTUAB: 1500, MTUBA: 500, LANMTU: 1500, Seed: 1}
	e := Experiment{
		Name:       "asymmetric-mtu",
		Summary:    "a path that carries 1500 bytes one way and 500 the other: raising the MSS",
		Source:     "a field report: raising the MSS where one way carries 1500 bytes and the other 500, with a patched kernel module",
		Conditions: conditions,
	}
	toB := netip.AddrPortFrom(lab.WANB, bulkPort)
	hostOfA, hostOfB := netip.PrefixFrom(lab.WANA, 32).String(), netip.PrefixFrom(lab.WANB, 32).String()
	value := fmt.Sprint(raised)
	direct := func(ctx context.Context, s *lab.Stage, host string, args ...string) (netip.AddrPort, error) {
		if len(args) == 0 {
			return toB, nil
		}
		return toB, s.Longhaul(ctx, host, args...)
	}
	// What the report took for 200 MiB, in seconds, at each delay.
	for _, at := range []struct {
		delay              time.Duration
		negotiated, raised float64
	}{{0, 27, 18}, {5 * time.Millisecond, 40, 19}, {10 * time.Millisecond, 79, 23}} {
		for _, c := range []struct {
			name, about string
			seconds     float64
			needsBPF    bool
			relayed     bool
			setup       func(context.Context, *lab.Stage) (netip.AddrPort, error)
		}{
			{"negotiated", "MSS as the ends agree on it", at.negotiated, false, false, func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
				return direct(ctx, s, "")
			}},
			{"ebpf-sender", "raised by longhaul mss at the sender", at.raised, true, false, func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
				return direct(ctx, s, "relay-a", "mss", "set", "--dev", "wan", "--to", hostOfB, "--raise", value)
			}},
			{"ebpf-receiver", "raised by longhaul mss at the receiver", at.raised, true, false, func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
				return direct(ctx, s, "relay-b", "mss", "set", "--dev", "wan", "--from", hostOfA, "--raise", value)
			}},
			{"advmss", "raised by longhaul route at the receiver", at.raised, false, false, func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
				return direct(ctx, s, "relay-b", "route", "set", "--to", hostOfA, "--advmss", value)
			}},
			{"relay", "longhaul pair, with that route", 0, false, true, func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
				if err := s.AllowBuffers(); err != nil {
					return netip.AddrPort{}, err
				}
				if err := s.Longhaul(ctx, "relay-b", "route", "set", "--to", hostOfA, "--advmss", value); err != nil {
					return netip.AddrPort{}, err
				}
				return s.StartRelays(ctx, atHostB)
			}},
		} {
			added := Case{
				Name:  fmt.Sprintf("%s@%dms", c.name, at.delay.Milliseconds()),
				About: c.about,
				Bytes: 200 * MiB, QuickBytes: 25 * MiB,
				Adjust:  func(to *lab.Conditions) { to.RTT = 2 * at.delay },
				Capture: true,
				Setup:   c.setup,
			}
			if c.seconds > 0 {
				bps := 200 * MiB * 8 / c.seconds
				added.Reference, added.ReferenceBps = fmt.Sprintf("%.0f s", c.seconds), &[2]float64{bps, bps}
			}
			if !c.relayed {
				added.From, added.To = "relay-a", "relay-b"
			}
			switch {
			case c.needsBPF:
				added.Missing = func() string { return cmp.Or(needsTUN(), needsBPF()) }
			case c.name != "negotiated":
				added.Missing = needsTUN
			}
			e.Cases = append(e.Cases, added)
		}
	}
	return e
}

// needsTUN says why large packets cannot arrive at a device with a small MTU:
// an Ethernet pair, which stands in for TUN devices, drops them.
func needsTUN() string {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return "needs /dev/net/tun, which this user may not open"
	}
	f.Close()
	return ""
}

// needsBPF says what it takes to attach programs to the lab's devices. Where
// nothing is missing it gives the sandbox a BPF filesystem of its own, with
// which their pins go.
var needsBPF = sync.OnceValue(func() string {
	if err := kernel.CheckBPF("longhaul mss", kernel.BPF, kernel.NetAdmin, kernel.SysAdmin); err != nil {
		return err.Error()
	}
	if err := unix.Mount("bpf", bpffs.DefaultRoot, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return "needs a BPF filesystem at " + bpffs.DefaultRoot + ": " + err.Error()
	}
	return ""
})
