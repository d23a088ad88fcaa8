package transfers

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"longhaul/lab"
	"longhaul/lab/sandbox"
	"longhaul/lab/tcpcc"
)

// Mitre is the first published experiment: what a pair of relays does for end
// hosts whose TCP cannot be changed.
//
// The report gives 3.6 MB/s for the direct path, 4 to 5 times that through
// SSH, and 7 to 10 times through a socat pair; its rates are over a 100 Gb/s
// WAN between 10 Gb/s hosts, and ours over one of 1 Gb/s.
func Mitre() Experiment {
	const (
		directBps = 28.8e6
		MiB       = 1 << 20
	)
	times := func(lo, hi float64) *[2]float64 { return &[2]float64{lo * directBps, hi * directBps} }
	conditions := lab.MitreConditions()
	conditions.ClassicEndHost = true
	return Experiment{
		Name:       "mitre",
		Summary:    "a pair of relays between end hosts with NewReno and 256 KiB windows, 63 ms apart",
		Source:     "Kirr, Nguyen: Improving TCP Throughput for AIX Hosts Communicating Over High Latency Network Connection, MITRE 2021",
		Conditions: conditions,
		Cases: []Case{
			{
				Name: "direct", About: "host to host",
				Reference: "3.6 MB/s", ReferenceBps: times(1, 1),
				Bytes: 32 * MiB, QuickBytes: 12 * MiB,
				Setup: func(context.Context, *lab.Stage) (netip.AddrPort, error) {
					return netip.AddrPortFrom(lab.HostB, bulkPort), nil
				},
			}, {
				Name: "relay-kernel-defaults", About: "longhaul pair, kernel's own TCP settings",
				Reference: "26 MB/s, 7 to 10 times direct (a CUBIC relay pair)", ReferenceBps: times(7, 10),
				Bytes: 1024 * MiB, QuickBytes: 384 * MiB,
				Setup: func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
					return s.StartRelays(ctx, atHostB, "--transport", "kernel")
				},
			}, {
				Name: "relay", About: "longhaul pair, the best of the kernel's own (BBR)",
				Reference: "26 MB/s, 7 to 10 times direct (a CUBIC relay pair)", ReferenceBps: times(7, 10),
				Bytes: 2048 * MiB, QuickBytes: 1024 * MiB,
				Setup: func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
					if err := s.AllowBuffers(); err != nil {
						return netip.AddrPort{}, err
					}
					// Named, since it would be haul where that is loaded.
					return s.StartRelays(ctx, atHostB, "--wan-cc", "bbr")
				},
			}, {
				Name: "haul", About: "longhaul pair with congestion control haul",
				Reference: "26 MB/s, 7 to 10 times direct (a CUBIC relay pair)", ReferenceBps: times(7, 10),
				Bytes: 2048 * MiB, QuickBytes: 1024 * MiB,
				Missing: func() string { return tcpcc.Missing("haul") },
				Setup: func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
					if err := s.AllowBuffers(); err != nil {
						return netip.AddrPort{}, err
					}
					return s.StartRelays(ctx, atHostB, "--wan-cc", "haul")
				},
			},
			intercepting("intercept", "routers that intercept at both sites (BBR)", 2048*MiB, atHostB, "relay-a", "relay-b"),
			intercepting("intercept-ipv6", "the same over IPv6", 2048*MiB, atHostB6, "relay-a", "relay-b"),
			intercepting("intercept-a", "a router that intercepts at the sender's site only", 32*MiB, atHostB, "relay-a"),
			intercepting("intercept-b", "a router that intercepts at the receiver's site only", 512*MiB, atHostB, "relay-b"),
			{
				Name: "socat", About: "socat pair, the report's own relays",
				Reference: "26 MB/s, 7 to 10 times direct", ReferenceBps: times(7, 10),
				Bytes: 1024 * MiB, QuickBytes: 384 * MiB,
				Missing: func() string { return lab.MissingProgram("socat", "socat") },
				Setup:   socats,
			}, {
				Name: "ssh", About: "SSH tunnel between the relay hosts",
				Reference: "4 to 5 times direct", ReferenceBps: times(4, 5),
				Bytes: 512 * MiB, QuickBytes: 128 * MiB,
				Missing: missingSSH,
				Setup:   sshTunnel,
			},
		},
	}
}

// atHostB is where the receiver listens on the relayed path.
var (
	atHostB  = netip.AddrPortFrom(lab.HostB, bulkPort)
	atHostB6 = netip.AddrPortFrom(lab.HostB6, bulkPort)
)

// intercepting is a case in which routers take the connection out of the routed path. The
// hosts know nothing of them.
func intercepting(name, about string, bytes int64, to netip.AddrPort, routers ...string) Case {
	return Case{
		Name: name, About: about, Bytes: bytes, QuickBytes: bytes / 2, SameAddress: true,
		Adjust: func(c *lab.Conditions) { c.IPv6 = to.Addr().Is6() },
		Setup: func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
			if err := s.AllowBuffers(); err != nil {
				return netip.AddrPort{}, err
			}
			i := lab.Interception{Ports: []uint16{to.Port()}, Settings: []string{"wan: {congestion_control: bbr}"}}
			if err := startInterceptors(ctx, s, i, routers...); err != nil {
				return netip.AddrPort{}, err
			}
			return to, nil
		},
	}
}

// startInterceptors has routers of the sites take connections from site A to site B out of
// the routed path.
func startInterceptors(ctx context.Context, s *lab.Stage, i lab.Interception, routers ...string) error {
	i.To = lab.SiteB
	for _, router := range routers {
		i.Device = "lan"
		if router == "relay-b" {
			i.Device = "wan" // where the clients' packets arrive
		}
		if _, err := s.StartInterceptor(ctx, router, i); err != nil {
			return err
		}
	}
	return nil
}

// socats starts the relays of the report, with its own command line.
func socats(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
	socat := lab.FindProgram("socat")
	return startPair(ctx, s, lab.RelayPort,
		[]string{socat, "TCP4-LISTEN:6000,fork,reuseaddr", "TCP4:" + atHostB.String()},
		[]string{socat, "TCP4-LISTEN:6000,fork,reuseaddr", "TCP4:" + lab.RelayBListens.String()})
}

// startPair starts a program at both sites, the far one first, which listens on
// a port of its own. It returns where the pair is entered.
func startPair(ctx context.Context, s *lab.Stage, farPort uint16, far, near []string) (netip.AddrPort, error) {
	_, err := s.Start(ctx, "relay-b", farPort, far[0], far[1:]...)
	if err == nil {
		_, err = s.Start(ctx, "relay-a", lab.RelayPort, near[0], near[1:]...)
	}
	return lab.RelayAListens, err
}

// sshTunnel starts a real sshd at site B and a tunnel to it at site A.
func sshTunnel(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
	key, err := startSSHD(ctx, s, "relay-b")
	if err != nil {
		return netip.AddrPort{}, err
	}
	args := append([]string{"-N", "-L", lab.RelayAListens.String() + ":" + atHostB.String()}, sshOptions(key)...)
	_, err = s.Start(ctx, "relay-a", lab.RelayPort, lab.FindProgram("ssh"), append(args, "root@"+lab.RelayB.String())...)
	return lab.RelayAListens, err
}

// startSSHD starts a real sshd in a host, and returns the file of the private key
// that root may log in with.
func startSSHD(ctx context.Context, s *lab.Stage, host string) (key string, err error) {
	dir, err := os.MkdirTemp("/run", "ssh-") // gone with the sandbox
	if err != nil {
		return "", err
	}
	// Where sshd wants to lock its unprivileged half in.
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		return "", err
	}
	for _, key := range []string{"host", "user"} {
		out, err := exec.CommandContext(ctx, lab.FindProgram("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key)).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("ssh-keygen: %w: %s", err, out)
		}
	}
	config := strings.ReplaceAll(`Port 22
HostKey DIR/host
AuthorizedKeysFile DIR/user.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
PidFile none
`, "DIR", dir)
	if err := os.WriteFile(filepath.Join(dir, "sshd_config"), []byte(config), 0o600); err != nil {
		return "", err
	}
	_, err = s.Start(ctx, host, 22, lab.FindProgram("sshd"), "-D", "-e", "-f", filepath.Join(dir, "sshd_config"))
	return filepath.Join(dir, "user"), err
}

// sshOptions let ssh and scp log in with a key at a server they do not know.
func sshOptions(key string) []string {
	return []string{
		"-F", "none", "-i", key, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-o", "ExitOnForwardFailure=yes", "-o", "LogLevel=ERROR",
	}
}

func missingSSH() string {
	if sandbox.UserNamespace() {
		return "sshd needs root outside a user namespace"
	}
	for _, name := range []string{"ssh", "sshd", "ssh-keygen"} {
		debianPackage := "openssh-client"
		if name == "sshd" {
			debianPackage = "openssh-server"
		}
		if reason := lab.MissingProgram(name, debianPackage); reason != "" {
			return reason
		}
	}
	return ""
}
