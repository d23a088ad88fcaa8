package transfers

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/find/doctor"
	"longhaul/lab"
	"longhaul/test/nettest"
)

// page is a page, or a section of one, with the commands that no part of the test has taken.
type page struct {
	t        *testing.T
	name     string
	text     string
	commands []pageCommand
}

// pageCommand is an indented line of a page, or a configuration that the reader is to write.
type pageCommand struct {
	line  string
	hosts []string // hosts that the comment above the command names
	shown string   // the block below it: what it prints
	file  string   // not empty: line is the text of this file
}

// with adds flags to a command.
func (c pageCommand) with(flags string) pageCommand {
	c.line += " " + flags
	return c
}

var (
	inlineCommand = regexp.MustCompile("`(longhaul [^`]+)`")
	pageHost      = regexp.MustCompile(`\b(?:(?:host|relay)-[ab]|at [AB]2?)\b`)
	pageFile      = regexp.MustCompile("`([a-z0-9-]+\\.yaml)`")
)

// checkout is known before a test changes its directory.
var checkout, _ = filepath.Abs("../..")

// readPage reads the indented lines of a page below a heading, up to the next one of its level, or
// of all of it. Lines below a comment belong to the hosts that it names, up to the next empty line.
// A block in YAML is a configuration: it belongs into the file whose name stands before it.
func readPage(t *testing.T, name, heading string) *page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(checkout, name))
	nettest.Must(t, err)
	p := &page{t: t, name: name, text: string(text)}
	if heading != "" {
		_, p.text, _ = strings.Cut(p.text, "\n## "+heading+"\n")
		p.text, _, _ = strings.Cut(p.text, "\n## ")
	}
	var hosts []string
	var block *strings.Builder
	file, kind := "", ""
	for line := range strings.Lines(p.text) {
		if fence, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); ok {
			if block == nil {
				block, kind = &strings.Builder{}, fence
				continue
			}
			switch last := len(p.commands) - 1; {
			case kind == "yaml":
				p.commands = append(p.commands, pageCommand{line: block.String(), file: file})
			case last >= 0 && p.commands[last].file == "" && p.commands[last].shown == "":
				p.commands[last].shown = block.String()
			}
			block = nil
			continue
		}
		command, indented := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		switch {
		case block != nil:
			block.WriteString(line)
		case indented && strings.HasPrefix(command, "#"):
			hosts = pageHost.FindAllString(command, -1)
			for i, host := range hosts {
				if site, ok := strings.CutPrefix(host, "at "); ok {
					hosts[i] = "relay-" + strings.ToLower(site)
				}
			}
		case indented:
			p.commands = append(p.commands, pageCommand{line: command, hosts: hosts})
		default:
			hosts = nil
			for _, m := range pageFile.FindAllStringSubmatch(line, -1) {
				file = m[1]
			}
		}
	}
	return p
}

// addInline adds the commands in the text and the tables.
func (p *page) addInline() {
	drawing := false
	for line := range strings.Lines(p.text) {
		if strings.HasPrefix(line, "```") {
			drawing = !drawing
		}
		if drawing || strings.HasPrefix(line, "    ") {
			continue
		}
		for _, m := range inlineCommand.FindAllStringSubmatch(line, -1) {
			p.commands = append(p.commands, pageCommand{line: m[1]})
		}
	}
}

// configs takes the configurations of the page.
func (p *page) configs() []pageCommand {
	return p.remove(func(c pageCommand) bool { return c.file != "" || strings.Contains(c.line, "\n") })
}

// take removes the commands that begin with one of the prefixes and returns them. It fails
// the test if a prefix has no command.
func (p *page) take(prefixes ...string) []pageCommand {
	p.t.Helper()
	var taken []pageCommand
	for _, prefix := range prefixes {
		these := p.remove(func(c pageCommand) bool { return strings.HasPrefix(c.line, prefix) })
		if len(these) == 0 {
			p.t.Errorf("%s has no command that begins with %q", p.name, prefix)
		}
		taken = append(taken, these...)
	}
	return taken
}

func (p *page) remove(which func(pageCommand) bool) (taken []pageCommand) {
	p.commands = slices.DeleteFunc(p.commands, func(c pageCommand) bool {
		if which(c) {
			taken = append(taken, c)
			return true
		}
		return false
	})
	return taken
}

// pageSites are two sites with the names of the pages, sshd on host-b, and my.data in the working
// directory, which all hosts share. Each host has its own directories of sockets and of state.
type pageSites struct {
	*sites
	bin   string // first directory of PATH
	state string
	key   string // logs in to host-b
	sum   [32]byte
}

// newPageSites returns sites whose hosts run the programs of the directory bin.
func newPageSites(t *testing.T, bin string) *pageSites {
	t.Helper()
	for name, debianPackage := range map[string]string{"sshd": "openssh-server", "scp": "openssh-client"} {
		nettest.RequireProgram(t, name, debianPackage)
	}
	s := &pageSites{sites: newSites(t), bin: bin, state: t.TempDir()}
	nettest.Must(t, s.NameHosts())
	names, err := os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY, 0)
	nettest.Must(t, err)
	_, err = fmt.Fprintf(names, "%s relay-b.example.net\n%s server\n", lab.RelayB, lab.HostB)
	nettest.Must(t, err)
	nettest.Must(t, names.Close())
	// Only this sandbox has the mount: nothing is left on the machine.
	nettest.Must(t, unix.Mount("tmpfs", "/srv", "tmpfs", 0, ""))
	t.Cleanup(func() {
		for _, path := range []string{"/srv", "/etc/hosts"} {
			nettest.Must(t, unix.Unmount(path, unix.MNT_DETACH))
		}
	})

	s.key, err = startSSHD(s.ctx, s.Stage, "host-b")
	nettest.Must(t, err)
	// The reader of the pages has a key, and knows the server by its own name alone.
	server, err := os.ReadFile(filepath.Join(filepath.Dir(s.key), "host.pub"))
	nettest.Must(t, err)
	known := filepath.Join(s.bin, "known_hosts")
	nettest.Must(t, os.WriteFile(known, append([]byte("host-b "), server...), 0o600))
	scp := fmt.Sprintf("#!/bin/sh\nexec %s -F none -i %s -o UserKnownHostsFile=%s -o StrictHostKeyChecking=yes \"$@\"\n",
		lab.FindProgram("scp"), s.key, known)
	nettest.WriteProgram(t, filepath.Join(s.bin, "scp"), []byte(scp))
	data, sum := randomFile(t, 8*miB)
	s.sum = sum
	t.Chdir(filepath.Dir(data))
	nettest.Must(t, os.Rename(data, "my.data"))
	for _, host := range []string{"host-a", "relay-a", "relay-b", "host-b"} {
		s.give(host)
	}
	return s
}

// give gives a host directories of its own.
func (s *pageSites) give(host string) {
	s.t.Helper()
	nettest.Must(s.t, s.Host(host).OwnRuntime())
	nettest.Must(s.t, os.Mkdir(filepath.Join(s.state, host), 0o700))
}

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

// useProgram has the hosts find the program under test by its name.
func (s *pageSites) useProgram() {
	s.t.Helper()
	nettest.Must(s.t, os.Symlink(s.Program, filepath.Join(s.bin, "longhaul")))
}

// shellArgs returns the arguments of a shell that runs a line in a host.
func (s *pageSites) shellArgs(host, line string) []string {
	return []string{"env", "PATH=" + s.bin + ":" + os.Getenv("PATH"), "STATE_DIRECTORY=" + filepath.Join(s.state, host), "sh", "-c", line}
}

// shell runs a line to its end in a host, or beside the hosts, and returns what it prints.
func (s *pageSites) shell(host, line string) (string, error) {
	var out, errs bytes.Buffer
	args := s.shellArgs(host, line)
	cmd := exec.CommandContext(s.ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second // after the shell was killed, for what it started
	start := cmd.Start
	if h := s.Host(host); h != nil {
		start = func() error { return h.Start(cmd) }
	}
	err := start()
	if err == nil {
		err = cmd.Wait()
	}
	if strings.HasPrefix(line, "longhaul doctor ") && cmd.ProcessState != nil && doctor.HasVerdict(cmd.ProcessState.ExitCode()) {
		err = nil
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w\n%s%s", host, line, err, &out, &errs)
	}
	s.t.Logf("%s: %s\n%s%s", host, line, &out, &errs)
	return out.String(), nil
}

// daemon starts a command in its hosts, and waits until it listens on port.
func (s *pageSites) daemon(c pageCommand, port uint16) {
	s.t.Helper()
	if len(c.hosts) == 0 {
		s.t.Fatalf("no comment above %q names its host", c.line)
	}
	for _, host := range c.hosts {
		args := s.shellArgs(host, "exec "+c.line) // the signal that ends the shell must end the command
		s.spawn(host, port, args[0], args[1:]...)
	}
}

// execute runs a command to its end in each of its hosts, or beside them if it has none. It
// fails the test on a bad exit status, or if the output lacks a match of a pattern.
func (s *pageSites) execute(c pageCommand, patterns ...string) (said string) {
	s.t.Helper()
	hosts := c.hosts
	if len(hosts) == 0 {
		hosts = []string{"machine"}
	}
	for _, host := range hosts {
		out, err := s.shell(host, c.line)
		if err != nil {
			s.t.Error(err)
			continue
		}
		for _, pattern := range patterns {
			if !regexp.MustCompile(pattern).MatchString(out) {
				s.t.Errorf("%s: %s prints nothing that matches %q:\n%s", host, c.line, pattern, out)
			}
		}
		said = out
	}
	return said
}

// place is what a page's commands of some words must print.
type place struct {
	begins  string              // the commands' first words
	prints  string              // a pattern; or exactly what the page shows, if empty
	instead func(c pageCommand) // runs in place of the command
	then    func(said string)
}

var (
	configOf   = regexp.MustCompile(`--config (\S+)`)
	listenPort = regexp.MustCompile(`listen:? "?[^\s"]*:(\d+)`)
)

// follow does what a page says, in its order: it writes the configurations, starts the relays and
// executes each command in its hosts. A command without a place fails the test.
func (s *pageSites) follow(p *page, places []place) {
	s.t.Helper()
	used := map[string]bool{}
	for _, c := range p.commands {
		if c.file != "" {
			s.write(c)
			continue
		}
		if strings.HasPrefix(c.line, "longhaul relay ") {
			config := c.line
			if m := configOf.FindStringSubmatch(c.line); m != nil {
				text, err := os.ReadFile(m[1])
				nettest.Must(s.t, err)
				config = string(text)
			}
			port, err := strconv.ParseUint(listenPort.FindStringSubmatch(config)[1], 10, 16)
			nettest.Must(s.t, err)
			s.daemon(c, uint16(port))
			continue
		}
		i := slices.IndexFunc(places, func(w place) bool { return strings.HasPrefix(c.line, w.begins) })
		if i < 0 {
			s.t.Errorf("%s: no place in this test executes %q", p.name, c.line)
			continue
		}
		w := places[i]
		used[w.begins] = true
		if w.instead != nil {
			w.instead(c)
			continue
		}
		if len(c.hosts) == 0 {
			s.t.Errorf("%s: no comment above %q names its host", p.name, c.line)
			continue
		}
		if w.prints == "" {
			w.prints = "^" + regexp.QuoteMeta(c.shown) + "$"
		}
		said := s.execute(c, w.prints)
		if w.then != nil {
			w.then(said)
		}
	}
	for _, w := range places {
		if !used[w.begins] {
			s.t.Errorf("%s has no command that begins with %q", p.name, w.begins)
		}
	}
}

// write writes a configuration. One that begins with an indented line is added to its file.
func (s *pageSites) write(c pageCommand) {
	s.t.Helper()
	how := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if strings.HasPrefix(c.line, " ") {
		how = os.O_APPEND | os.O_WRONLY
	}
	f, err := os.OpenFile(c.file, how, 0o600)
	nettest.Must(s.t, err)
	_, err = f.WriteString(c.line)
	nettest.Must(s.t, err)
	nettest.Must(s.t, f.Close())
}

// copied fails the test unless /srv has a copy of my.data.
func (s *pageSites) copied() {
	s.t.Helper()
	if fileSum(s.t, "/srv/my.data") != s.sum {
		s.t.Error("the copy differs")
	}
}
