package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"longhaul/internal/lab/sandbox"
)

// relayPort is where the relays of the mitre report listen.
const relayPort = 6000

// mitre is the first published experiment: what a pair of relays does for end
// hosts whose TCP cannot be changed.
//
// The report gives 3.6 MB/s for the direct path, 4 to 5 times that through
// SSH, and 7 to 10 times through a socat pair; its rates are over a 100 Gb/s
// WAN between 10 Gb/s hosts, and ours over one of 1 Gb/s.
func mitre() Experiment {
	const (
		directBps = 28.8e6
		MiB       = 1 << 20
	)
	times := func(lo, hi float64) *[2]float64 { return &[2]float64{lo * directBps, hi * directBps} }
	conditions := MitreConditions()
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
				Setup: func(context.Context, *stage) (netip.AddrPort, error) {
					return netip.AddrPortFrom(HostB, bulkPort), nil
				},
			}, {
				Name: "relay-kernel-defaults", About: "longhaul pair, kernel's own TCP settings",
				Reference: "26 MB/s, 7 to 10 times direct (a CUBIC relay pair)", ReferenceBps: times(7, 10),
				Bytes: 1024 * MiB, QuickBytes: 384 * MiB,
				Setup: func(ctx context.Context, s *stage) (netip.AddrPort, error) {
					return s.relays(ctx, "--transport", "kernel")
				},
			}, {
				Name: "relay", About: "longhaul pair, the best of the kernel's own (BBR)",
				Reference: "26 MB/s, 7 to 10 times direct (a CUBIC relay pair)", ReferenceBps: times(7, 10),
				Bytes: 2048 * MiB, QuickBytes: 1024 * MiB,
				Setup: func(ctx context.Context, s *stage) (netip.AddrPort, error) {
					if err := s.allowBuffers(); err != nil {
						return netip.AddrPort{}, err
					}
					// Named, since it would be haul where that is loaded.
					return s.relays(ctx, "--wan-cc", "bbr")
				},
			}, {
				Name: "haul", About: "longhaul pair with congestion control haul",
				Reference: "26 MB/s, 7 to 10 times direct (a CUBIC relay pair)", ReferenceBps: times(7, 10),
				Bytes: 2048 * MiB, QuickBytes: 1024 * MiB,
				Missing: func() string { return needsCC("haul") },
				Setup: func(ctx context.Context, s *stage) (netip.AddrPort, error) {
					if err := s.allowBuffers(); err != nil {
						return netip.AddrPort{}, err
					}
					return s.relays(ctx, "--wan-cc", "haul")
				},
			}, {
				Name: "socat", About: "socat pair, the report's own relays",
				Reference: "26 MB/s, 7 to 10 times direct", ReferenceBps: times(7, 10),
				Bytes: 1024 * MiB, QuickBytes: 384 * MiB,
				Missing: func() string { return needs("socat", "socat") },
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

// The places along the relayed path.
var (
	atRelayA = netip.AddrPortFrom(RelayA, relayPort)
	atRelayB = netip.AddrPortFrom(RelayB, relayPort)
	atHostB  = netip.AddrPortFrom(HostB, bulkPort)
)

// relays starts a longhaul relay at both sites, with further arguments, that
// lead to the receiver of a bulk transfer.
func (s *stage) relays(ctx context.Context, args ...string) (netip.AddrPort, error) {
	return s.relaysTo(ctx, atHostB, args...)
}

// relaysTo starts a longhaul relay at both sites that lead to target, and
// returns where they are entered.
func (s *stage) relaysTo(ctx context.Context, target netip.AddrPort, args ...string) (netip.AddrPort, error) {
	for _, hop := range []struct {
		host            string
		listen, forward netip.AddrPort
	}{
		{"relay-b", atRelayB, target},
		{"relay-a", atRelayA, atRelayB},
	} {
		err := s.start(ctx, hop.host, relayPort, s.program, append([]string{
			"relay", "--listen", hop.listen.String(), "--forward", hop.forward.String(),
			"--control-socket", filepath.Join("/run", hop.host, "control.sock"),
		}, args...)...)
		if err != nil {
			return netip.AddrPort{}, err
		}
	}
	return atRelayA, nil
}

// allowBuffers lets the relays have the buffers they ask for where they have
// no privilege to take them: in a user namespace, the kernel grants none to
// SO_SNDBUFFORCE. It is what the relay's own log line tells an operator to do.
func (s *stage) allowBuffers() error {
	if !sandbox.UserNamespace() {
		return nil
	}
	for _, name := range []string{"relay-a", "relay-b"} {
		err := errors.Join(
			s.Host(name).Sysctl("net.ipv4.tcp_rmem", "4096 131072 67108864"),
			s.Host(name).Sysctl("net.ipv4.tcp_wmem", "4096 16384 67108864"))
		if err != nil {
			return err
		}
	}
	s.notef("in a user namespace the relays may not size their buffers: the lab raises tcp_rmem and tcp_wmem of their hosts, as their log advises")
	return nil
}

// socats starts the relays of the report, with its own command line.
func socats(ctx context.Context, s *stage) (netip.AddrPort, error) {
	socat := program("socat")
	if err := s.start(ctx, "relay-b", relayPort, socat, "TCP4-LISTEN:6000,fork,reuseaddr", "TCP4:"+atHostB.String()); err != nil {
		return netip.AddrPort{}, err
	}
	if err := s.start(ctx, "relay-a", relayPort, socat, "TCP4-LISTEN:6000,fork,reuseaddr", "TCP4:"+atRelayB.String()); err != nil {
		return netip.AddrPort{}, err
	}
	return atRelayA, nil
}

// sshTunnel starts a real sshd at site B and a tunnel to it at site A.
func sshTunnel(ctx context.Context, s *stage) (netip.AddrPort, error) {
	key, err := s.sshd(ctx, "relay-b")
	if err != nil {
		return netip.AddrPort{}, err
	}
	args := append([]string{"-N", "-L", atRelayA.String() + ":" + atHostB.String()}, sshOptions(key)...)
	if err := s.start(ctx, "relay-a", relayPort, program("ssh"), append(args, "root@"+RelayB.String())...); err != nil {
		return netip.AddrPort{}, err
	}
	return atRelayA, nil
}

// sshd starts a real sshd in a host, and returns the file of the private key
// that root may log in with.
func (s *stage) sshd(ctx context.Context, host string) (key string, err error) {
	dir, err := os.MkdirTemp("/run", "ssh-") // gone with the sandbox
	if err != nil {
		return "", err
	}
	// Where sshd wants to lock its unprivileged half in.
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		return "", err
	}
	for _, key := range []string{"host", "user"} {
		out, err := exec.CommandContext(ctx, program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key)).CombinedOutput()
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
	return filepath.Join(dir, "user"), s.start(ctx, host, 22, program("sshd"), "-D", "-e", "-f", filepath.Join(dir, "sshd_config"))
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
		if reason := needs(name, debianPackage); reason != "" {
			return reason
		}
	}
	return ""
}

// needs says that a program is missing, and which Debian package has it.
func needs(name, debianPackage string) string {
	if program(name) == "" {
		return "needs " + name + " (Debian package " + debianPackage + ")"
	}
	return ""
}

// needsCC says what it takes to have a congestion control, nothing if it is
// there.
func needsCC(name string) string {
	names, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err == nil && slices.Contains(strings.Fields(string(names)), name) {
		return ""
	}
	return "needs congestion control " + name + ", which root can load"
}

// program finds a program also where an ordinary user's PATH does not look.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
