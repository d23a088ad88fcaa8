package transfers

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/test/nettest"
)

// TestInterceptedPrograms runs real programs between hosts that know nothing of the routers
// that intercept at both sites, by both families. The servers must see the client, or with
// source: relay the router next to them.
func TestInterceptedPrograms(t *testing.T) {
	t.Parallel()
	nettest.RequireRoot(t)
	for name, debianPackage := range map[string]string{
		"sshd": "openssh-server", "scp": "openssh-client", "nginx": "nginx-light", "curl": "curl",
	} {
		nettest.RequireProgram(t, name, debianPackage)
	}
	s := newSites(t)
	key, err := startSSHD(s.ctx, s.Stage, "host-b")
	nettest.Must(t, err)
	bin := s.postgres()
	data, sum := randomFile(t, 8*miB)
	s.nginx(lab.FindProgram("nginx"), filepath.Dir(data))
	servers := s.Running()

	for _, way := range []struct {
		source string
		seen   [2]netip.Addr
	}{
		{"client", [2]netip.Addr{lab.HostA, lab.HostA6}},
		{"relay", [2]netip.Addr{lab.RelayB, lab.RelayB6}},
	} {
		i := lab.Interception{Ports: []uint16{22, 5432, 8080}, Settings: []string{"source: " + way.source}}
		nettest.Must(t, startInterceptors(s.ctx, s.Stage, i, "relay-a", "relay-b"))
		for k, to := range []netip.Addr{lab.HostB, lab.HostB6} {
			t.Run(fmt.Sprintf("source %s to %s", way.source, to), func(t *testing.T) {
				s, want := &sites{s.Stage, t, s.ctx}, way.seen[k].String()
				copied := filepath.Join(t.TempDir(), "copied")
				bracketed := to.String()
				if to.Is6() {
					bracketed = "[" + bracketed + "]"
				}
				headers := s.must("host-a", nil, lab.FindProgram("curl"), "-sS", "-D", "-", "-o", copied, "http://"+bracketed+":8080/"+filepath.Base(data))
				if !strings.Contains(headers, "Seen: "+want+"\r\n") || fileSum(t, copied) != sum {
					t.Errorf("nginx sees another client than %s, or the file differs:\n%s", want, headers)
				}
				nettest.Must(t, os.Remove(copied))
				s.must("host-a", nil, lab.FindProgram("scp"), append(sshOptions(key), data, "root@"+bracketed+":"+copied)...)
				if fileSum(t, copied) != sum {
					t.Error("scp: the copy differs")
				}
				seen := s.must("host-a", nil, lab.FindProgram("ssh"), append(sshOptions(key), "root@"+to.String(), "echo $SSH_CONNECTION")...)
				if !strings.HasPrefix(seen, want+" ") {
					t.Errorf("sshd sees %s, want %s", seen, want)
				}
				psql := []string{"-h", to.String(), "-U", "postgres", "-tA", "-c", "select host(inet_client_addr()), length(repeat('x', 8000000))", "postgres"}
				nettest.Eventually(t, time.Minute, func() bool {
					seen, err = s.run("host-a", nil, bin+"/psql", psql...)
					return err == nil
				}, func() string { return fmt.Sprintf("PostgreSQL does not answer: %v", err) })
				if seen != want+"|8000000\n" {
					t.Errorf("PostgreSQL sees %s, want %s", seen, want)
				}
			})
		}
		for _, router := range []string{"relay-a", "relay-b"} {
			if n := s.intercepted(router); n < 8 {
				t.Errorf("source %s: %s took %d connections, want those of 4 programs by both families", way.source, router, n)
			}
		}
		for _, d := range s.Running()[len(servers):] {
			s.End(d)
		}
	}
}

// intercepted counts the connections that the relay of a host took out of the routed path.
func (s *sites) intercepted(host string) (n uint64) {
	s.t.Helper()
	var shown struct {
		Relays []struct {
			Tunnels []struct {
				Connections uint64 `json:"connections"`
			} `json:"tunnels"`
		} `json:"relays"`
	}
	out := s.must(host, nil, s.Program, "intercept", "show", "--json")
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		s.t.Fatalf("%v in %s", err, out)
	}
	for _, r := range shown.Relays {
		for _, t := range r.Tunnels {
			n += t.Connections
		}
	}
	return n
}

// maxCommands is the most commands that a site's administrator has to type.
const maxCommands = 5

// TestInterceptionPages executes the set-up of the pages that describe it, on the routers
// of both sites, as it is written, with these exceptions: the devices have the lab's names,
// service install installs into an empty directory, and the relay is started by hand, since
// there is no systemd. Of the page on interception it executes all commands: those of "On the host",
// and of "With a pair" the rules of nftables.
func TestInterceptionPages(t *testing.T) {
	nettest.RequireRoot(t)
	for name, debianPackage := range map[string]string{"sshd": "openssh-server", "scp": "openssh-client"} {
		nettest.RequireProgram(t, name, debianPackage)
	}
	for page, section := range map[string]string{
		"README.md":            "Deploy it where no address may change",
		"docs/interception.md": "Set it up",
	} {
		t.Run(page, func(t *testing.T) { followSetUp(t, readPage(t, page, section)) })
	}
}

// onHost executes the commands of a page beside a relay that intercepts on relay-a: each takes back
// nothing of what runs.
func (s *pageSites) onHost(name, config string) {
	s.t.Helper()
	p := readPage(s.t, name, "On the host")
	p.addInline()
	prints := map[string]string{
		"longhaul intercept plan --config FILE":  `(?m)^nft 'add table inet longhaul-site-a'$`,
		"longhaul intercept check --config FILE": `^relay site-a: ok, 1 tunnel may intercept here`,
		"longhaul intercept show":                `(?m)^relay site-a  mark 0x1000, table 1812`,
		"longhaul intercept clear":               `(?m)^intercept relay site-a: stays to-site-b, set by relay site-a; --yes takes it back$`,
		"longhaul host list":                     `(?m)^intercept +relay site-a +to-site-b +relay site-a`,
		"longhaul host undo":                     `(?m)^Dry run: nothing changes`,
	}
	for command, pattern := range prints {
		line := strings.ReplaceAll(p.take(command)[0].line, "FILE", config)
		if command == "longhaul host undo" {
			line += " --dry-run" // it asks, and would take the rules of the relay that runs
		}
		s.execute(pageCommand{line: line, hosts: []string{"relay-a"}}, pattern)
	}
	for _, c := range readPage(s.t, name, "With a pair").take("nft ") {
		s.execute(pageCommand{line: strings.ReplaceAll(c.line, "lan0", "lan"), hosts: []string{"relay-a"}})
	}
	s.execute(pageCommand{line: "nft list chain inet only-by-pair forward", hosts: []string{"relay-a"}}, `iifname "lan" ip daddr 10\.20\.20\.0/24 .*drop`)
}

func followSetUp(t *testing.T, p *page) {
	configs := p.configs()
	if len(configs) != 1 || len(p.commands) > maxCommands {
		t.Fatalf("%d configurations and %d commands: %+v", len(configs), len(p.commands), p.commands)
	}

	s := newPageSites(t, t.TempDir())
	s.useProgram()
	var configOfA string
	for router, device := range map[string]string{"relay-a": "lan", "relay-b": "wan"} {
		path := filepath.Join(t.TempDir(), "longhaul.yaml")
		nettest.Must(t, os.WriteFile(path, []byte(strings.ReplaceAll(configs[0].line, "lan0", device)), 0o600))
		if router == "relay-a" {
			configOfA = path
		}
		for _, c := range p.commands {
			command := c.line
			c := pageCommand{line: strings.ReplaceAll(command, "/etc/longhaul/longhaul.yaml", path), hosts: []string{router}}
			switch {
			case strings.HasPrefix(command, "longhaul intercept check"):
				s.execute(c, `^relay site-a: ok, 1 tunnel may intercept here`)
			case strings.HasPrefix(command, "longhaul service install"):
				s.execute(c.with("--root " + t.TempDir()))
				args := s.shellArgs(router, "exec longhaul relay --config "+path)
				shows := func() (bool, error) {
					_, err := s.run(router, nil, s.Program, "status")
					return err == nil, nil
				}
				_, err := s.StartUntil(s.ctx, router, "intercept", shows, args[0], args[1:]...)
				nettest.Must(t, err)
			default:
				s.execute(c, `(?m)^relay site-a  mark 0x1000, table 1812`)
			}
		}
	}
	s.execute(pageCommand{line: "scp my.data root@host-b:/srv/", hosts: []string{"host-a"}})
	s.copied()
	if p.name != "README.md" {
		s.onHost(p.name, configOfA)
	}
	for _, router := range []string{"relay-a", "relay-b"} {
		if n := s.intercepted(router); n != 1 {
			t.Errorf("%s took %d connections, want 1", router, n)
		}
		s.execute(pageCommand{line: "longhaul stop", hosts: []string{router}})
		s.execute(pageCommand{line: "longhaul intercept show", hosts: []string{router}}, `^no relay intercepts here\n$`)
	}
}
