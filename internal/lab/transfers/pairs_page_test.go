package transfers

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"longhaul/internal/lab"
	"longhaul/internal/lab/tcpserver"
	"longhaul/internal/nettest"
)

// TestPairsPage executes "Set it up" of docs/pairs.md on two hosts that have no keys yet, as it is
// written: each command at the host that the comment above it names. The invitation's line goes
// into the file line. Each host has a directory of state of its own.
func TestPairsPage(t *testing.T) {
	nettest.RequireRoot(t)
	text, err := os.ReadFile("../../../docs/pairs.md")
	nettest.Must(t, err)
	_, setUp, _ := strings.Cut(string(text), "\n## Set it up\n")
	setUp, _, _ = strings.Cut(setUp, "\n## ")
	configs := pageConfig.FindAllStringSubmatch(setUp, -1)
	if len(configs) != 2 {
		t.Fatalf("the page has %d configurations, want b.yaml and a.yaml", len(configs))
	}
	s := newSites(t)
	nettest.Must(t, s.NameHosts())
	names, err := os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY, 0)
	nettest.Must(t, err)
	_, err = fmt.Fprintf(names, "%s relay-b.example.net\n%s server\n", lab.RelayB, lab.HostB)
	nettest.Must(t, err)
	nettest.Must(t, names.Close())
	p := &pairsPage{sites: s, bin: t.TempDir(), state: t.TempDir()}
	nettest.Must(t, os.Symlink(s.Program, filepath.Join(p.bin, "longhaul")))
	dir := t.TempDir()
	t.Chdir(dir)
	nettest.Must(t, os.WriteFile("b.yaml", []byte(configs[0][1]), 0o600))
	nettest.Must(t, os.WriteFile("a.yaml", []byte(configs[1][1]), 0o600))
	for _, host := range []string{"relay-a", "relay-b"} {
		nettest.Must(t, s.Host(host).OwnRuntime())
	}
	target, err := s.Host("host-b").ListenTCP(s.ctx, 22)
	nettest.Must(t, err)
	t.Cleanup(tcpserver.Serve(target, tcpserver.Echo))

	said := p.follow(setUp)
	for command, pattern := range map[string]string{
		"longhaul pair invite": `^longhaul-pair-invite-\S+\n$`,
		"longhaul pair join":   `^site-b is a peer now, and has the key of this host\n$`,
		"longhaul check":       `^files: accepts: the pair with site-b stands, .* accepts`,
	} {
		out := strings.Join(strings.Fields(said[command]), " ") + "\n"
		if !regexp.MustCompile(pattern).MatchString(out) {
			t.Errorf("%s prints %q, want %s", command, said[command], pattern)
		}
	}
	conn, err := s.Host("host-a").DialTCP(s.ctx, netip.MustParseAddrPort("10.10.10.20:9000"), time.Minute)
	nettest.Must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("through the pair"))
	nettest.Must(t, err)
	nettest.Must(t, conn.CloseWrite())
	if got, err := io.ReadAll(conn); string(got) != "through the pair" {
		t.Errorf("the server echoes %q, %v", got, err)
	}
}

// pairsPage are the sites of the page.
type pairsPage struct {
	*sites
	bin, state string
}

// follow executes the commands of a section, and returns what each prints, by its first words.
func (p *pairsPage) follow(section string) map[string]string {
	p.t.Helper()
	said := map[string]string{}
	host := ""
	for line := range strings.Lines(section) {
		command, indented := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		switch {
		case !indented:
		case strings.HasPrefix(command, "# at A"):
			host = "relay-a"
		case strings.HasPrefix(command, "# at B"):
			host = "relay-b"
		case !strings.HasPrefix(command, "longhaul "): // a line of a configuration
		case strings.HasPrefix(command, "longhaul relay "):
			port := uint16(6000)
			if host == "relay-a" {
				port = 9000
			}
			args := p.shell(host, "exec "+command)
			p.spawn(host, port, args[0], args[1:]...)
		default:
			words := strings.Fields(command)
			key := strings.Join(words[:2], " ")
			if words[1] == "pair" {
				key = strings.Join(words[:3], " ")
			}
			said[key] = p.execute(host, command)
			if key == "longhaul pair invite" {
				nettest.Must(p.t, os.WriteFile("line", []byte(said[key]), 0o600))
			}
		}
	}
	return said
}

func (p *pairsPage) shell(host, line string) []string {
	return []string{"env", "PATH=" + p.bin + ":" + os.Getenv("PATH"), "STATE_DIRECTORY=" + filepath.Join(p.state, host), "sh", "-c", line}
}

// execute runs a command to its end in a host, and returns what it prints.
func (p *pairsPage) execute(host, line string) string {
	p.t.Helper()
	var out, errs bytes.Buffer
	args := p.shell(host, line)
	cmd := exec.CommandContext(p.ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	nettest.Must(p.t, p.Host(host).Start(cmd))
	if err := cmd.Wait(); err != nil {
		p.t.Errorf("%s: %s: %v\n%s%s", host, line, err, &out, &errs)
	}
	return out.String()
}
