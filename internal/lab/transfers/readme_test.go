package transfers

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/lab"
	"longhaul/internal/lab/link"
	"longhaul/internal/measure"
	"longhaul/internal/nettest"
)

// maxREADME is the most lines that a newcomer reads.
const maxREADME = 140

// shortened makes the experiments of the README short.
var shortened = map[string]struct {
	flags string
	rows  []string // patterns of the table's rows
}{
	"longhaul lab run mitre --repeat 3": {
		"--repeat 1 --quick --case direct --case relay", []string{`(?m)^ +direct +\d`, `(?m)^ +relay +\d`},
	},
	"longhaul lab run lossy-lfn": {
		// Without haul: tests load nothing under its real name into the kernel's one table.
		"--time 1s --cc cubic,reno", []string{`(?m)^ +cubic +\d`, `(?m)^ +reno +\d`},
	},
	"longhaul lab run asymmetric-mtu": {
		"--quick --case negotiated@0ms --case ebpf-sender@0ms",
		[]string{`(?m)^ +negotiated@0ms +\d`, `(?m)^ +ebpf-sender@0ms +\d`},
	},
}

// TestREADME executes every command of the README in a lab with the README's names and
// addresses. A command without a place in this test fails it. Each command runs as it is
// written, with these exceptions:
//
//   - The experiments of the table get flags that make them short.
//   - service install gets --root, and installs into an empty directory.
//   - .ci/run executes the demo and the test command: this test reads the script.
//   - The build is .ci/run's with CGO_ENABLED=0, which compiles every package once more. This
//     test builds with what go test has compiled.
func TestREADME(t *testing.T) {
	checkout, err := filepath.Abs("../../..")
	nettest.Must(t, err)
	page := readREADME(t, checkout)
	ci := page.take("go run ./cmd/longhaul demo", "go test ./...")
	builds := page.take(withoutC + "go build ")
	experiments := page.take("longhaul lab run ")
	page.take("longhaul intercept ", "longhaul service install --config ") // TestInterceptionPages executes them
	installs := page.take("longhaul service install")
	relays := page.take("longhaul relay ")
	checks := page.take("longhaul check ")
	copies := page.take("scp ")
	status := page.take("longhaul status")
	servers := page.take("longhaul measure --serve")
	trials := page.take("longhaul doctor host-b")
	watches := page.take("longhaul doctor --remote ")
	captures := page.take("longhaul doctor --pcap ")
	for _, c := range page.commands {
		t.Errorf("no place in this test executes %q", c.line)
	}
	for _, c := range slices.Concat(ci, builds) {
		holdInCI(t, checkout, c)
	}
	for _, c := range experiments {
		if _, ok := shortened[c.line]; !ok {
			t.Errorf("no flags here make %q short", c.line)
		}
	}
	if t.Failed() {
		return
	}

	nettest.RequireRoot(t)
	for name, debianPackage := range map[string]string{
		"sshd": "openssh-server", "scp": "openssh-client", "tcpdump": "tcpdump",
	} {
		nettest.RequireProgram(t, name, debianPackage)
	}
	const verdict = `\nEvidence:\n  - `
	bin := t.TempDir()
	for _, c := range builds {
		buildIn(t, bin, checkout, c)
	}
	s := newREADMESites(t, bin)
	for _, c := range installs {
		s.execute(c.with("--root " + t.TempDir()))
	}

	var meanwhile sync.WaitGroup
	defer meanwhile.Wait()
	for _, c := range experiments {
		short := shortened[c.line]
		meanwhile.Go(func() { s.execute(c.with(short.flags), short.rows...) })
	}
	for _, c := range relays {
		s.daemon(c, lab.RelayPort)
	}
	for _, c := range checks {
		s.execute(c, `(?m)^main: accepts: .* accepts`)
	}
	for _, c := range copies {
		s.execute(c)
		if fileSum(t, "/srv/my.data") != s.sum {
			t.Errorf("%s: the copy differs", c.line)
		}
	}
	counted := regexp.MustCompile(`(?m)^main +up +0/- +[1-9]`)
	for _, c := range status { // the flow of each copy, with its bytes
		for _, host := range c.hosts {
			nettest.Eventually(t, 20*time.Second, func() bool { // the copy is done before the relays have counted it
				args := s.shell(c)
				out, err := s.run(host, nil, args[0], args[1:]...)
				return err == nil && counted.MatchString(out)
			}, func() string { return host + " still has the flow" })
		}
		s.execute(c, `(?m)^main +up +\d+/- +[1-9]\d* +[1-9][\d.]*M `, `:6000 -> \S+:`)
	}
	for _, c := range servers {
		s.daemon(c, measure.DefaultPort)
	}
	stop := s.transfer("capture.pcap")
	for _, c := range trials {
		meanwhile.Go(func() { s.execute(c, verdict) })
	}
	for _, c := range watches {
		s.execute(c, verdict)
	}
	stop()
	for _, c := range captures {
		s.execute(c, verdict)
	}
}

// readmeCommand is a command of the README.
type readmeCommand struct {
	line  string
	hosts []string // hosts that the comment above the command names
}

// with adds flags to a command.
func (c readmeCommand) with(flags string) readmeCommand {
	c.line += " " + flags
	return c
}

// readme has the README's commands that no part of the test has taken.
type readme struct {
	t        *testing.T
	commands []readmeCommand
}

var (
	inlineCommand = regexp.MustCompile("`(longhaul [^`]+)`")
	labHost       = regexp.MustCompile(`\b(host|relay)-[ab]\b`)
)

// readREADME reads the indented lines, and the commands in the text and the tables. Lines
// below a comment belong to the hosts that it names, up to the next empty line.
func readREADME(t *testing.T, checkout string) *readme {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(checkout, "README.md"))
	nettest.Must(t, err)
	if lines := bytes.Count(text, []byte("\n")); lines > maxREADME {
		t.Errorf("README.md has %d lines, more than %d", lines, maxREADME)
	}
	page := &readme{t: t}
	var hosts []string
	drawing := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "```") {
			drawing = !drawing
		}
		command, indented := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		switch {
		case drawing:
		case indented && strings.HasPrefix(command, "#"):
			hosts = labHost.FindAllString(command, -1)
		case indented:
			page.commands = append(page.commands, readmeCommand{command, hosts})
		default:
			hosts = nil
			for _, m := range inlineCommand.FindAllStringSubmatch(line, -1) {
				page.commands = append(page.commands, readmeCommand{line: m[1]})
			}
		}
	}
	return page
}

// take removes the commands that begin with one of the prefixes and returns them. It fails
// the test if a prefix has no command.
func (r *readme) take(prefixes ...string) []readmeCommand {
	r.t.Helper()
	var taken []readmeCommand
	for _, prefix := range prefixes {
		before := len(taken)
		r.commands = slices.DeleteFunc(r.commands, func(c readmeCommand) bool {
			has := strings.HasPrefix(c.line, prefix)
			if has {
				taken = append(taken, c)
			}
			return has
		})
		if len(taken) == before {
			r.t.Errorf("README.md has no command that begins with %q", prefix)
		}
	}
	return taken
}

// withoutC begins the README's build.
const withoutC = "CGO_ENABLED=0 "

// holdInCI fails the test if .ci/run does not execute a command. .ci/run has an ordinary
// user run the demo, and builds the program as root before.
func holdInCI(t *testing.T, checkout string, c readmeCommand) {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(checkout, ".ci/run"))
	nettest.Must(t, err)
	steps := strings.Split(string(script), "\n")
	want := []string{c.line}
	if demo, ok := strings.CutPrefix(c.line, "go run ./cmd/longhaul "); ok {
		want = []string{`as_nobody "$dir/longhaul" ` + demo}
	} else if arguments, ok := strings.CutPrefix(c.line, withoutC+"go build "); ok {
		want = []string{withoutC + `go build -o "$dir/longhaul" ` + arguments}
	}
	for _, step := range want {
		if !slices.Contains(steps, step) {
			t.Errorf(".ci/run has no line %q, which stands for %q of the README", step, c.line)
		}
	}
}

// buildIn executes the README's build, with or without C, and has it leave the program in dir.
func buildIn(t *testing.T, dir, checkout string, c readmeCommand) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.TrimPrefix(c.line, withoutC))
	cmd.Dir = checkout
	// The checkout may be another user's, whose version control the go command rejects.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false -o="+filepath.Join(dir, "longhaul"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", c.line, err, out)
	}
}

// readmeSites are two sites with the names of the README, sshd on host-b, and my.data in
// the working directory.
type readmeSites struct {
	*sites
	bin string // first directory of PATH
	key string // logs in to host-b
	sum [32]byte
}

// newREADMESites returns sites whose hosts run the programs of the directory bin.
func newREADMESites(t *testing.T, bin string) *readmeSites {
	t.Helper()
	s := &readmeSites{sites: newSites(t), bin: bin}
	nettest.Must(t, s.NameHosts())
	// Only this sandbox has the mount: nothing is left on the machine.
	nettest.Must(t, unix.Mount("tmpfs", "/srv", "tmpfs", 0, ""))
	t.Cleanup(func() {
		for _, path := range []string{"/srv", "/etc/hosts"} {
			nettest.Must(t, unix.Unmount(path, unix.MNT_DETACH))
		}
	})

	var err error
	s.key, err = startSSHD(s.ctx, s.Stage, "host-b")
	nettest.Must(t, err)
	// The reader of the README has a key, and knows the server by its own name alone.
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
		nettest.Must(t, s.Host(host).OwnRuntime())
	}
	return s
}

// shell returns the arguments of a shell that runs a command.
func (s *readmeSites) shell(c readmeCommand) []string {
	return []string{"env", "PATH=" + s.bin + ":" + os.Getenv("PATH"), "sh", "-c", c.line}
}

// daemon starts a command in its hosts, and waits until it listens on port.
func (s *readmeSites) daemon(c readmeCommand, port uint16) {
	s.t.Helper()
	if len(c.hosts) == 0 {
		s.t.Fatalf("no comment above %q names its host", c.line)
	}
	c.line = "exec " + c.line // the signal that ends the shell must end the command
	for _, host := range c.hosts {
		args := s.shell(c)
		s.spawn(host, port, args[0], args[1:]...)
	}
}

// execute runs a command to its end in each of its hosts, or beside them if it has none. It
// fails the test on a bad exit status, or if the output lacks a match of a pattern.
func (s *readmeSites) execute(c readmeCommand, patterns ...string) {
	s.t.Helper()
	hosts := c.hosts
	if len(hosts) == 0 {
		hosts = []string{"machine"}
	}
	for _, host := range hosts {
		var out, errs bytes.Buffer
		args := s.shell(c)
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
		if err != nil {
			s.t.Errorf("%s: %s: %v\n%s%s", host, c.line, err, &out, &errs)
			continue
		}
		s.t.Logf("%s: %s\n%s%s", host, c.line, &out, &errs)
		for _, pattern := range patterns {
			if !regexp.MustCompile(pattern).Match(out.Bytes()) {
				s.t.Errorf("%s: %s prints nothing that matches %q", host, c.line, pattern)
			}
		}
	}
}

// transfer sends data by ssh from host-a to host-b, without a relay, and captures it on
// host-a, until stop.
func (s *readmeSites) transfer(capture string) (stop func()) {
	s.t.Helper()
	var started []*exec.Cmd
	stop = sync.OnceFunc(func() {
		for _, cmd := range slices.Backward(started) {
			_ = cmd.Process.Signal(os.Interrupt)
			_ = cmd.Wait()
		}
	})
	s.t.Cleanup(stop)
	start := func(cmd *exec.Cmd) {
		nettest.Must(s.t, s.Host("host-a").Start(cmd))
		started = append(started, cmd)
	}
	tcpdump := exec.Command(lab.FindProgram("tcpdump"),
		"-i", "lan", "-s", "96", "-U", "-n", "-Z", "root", "-w", capture, "tcp port 22")
	start(tcpdump)
	// It writes the header once it captures.
	nettest.Eventually(s.t, time.Minute, func() bool {
		info, err := os.Stat(capture)
		return err == nil && info.Size() > 0
	}, func() string { return "tcpdump captures nothing" })

	zero, err := os.Open("/dev/zero")
	nettest.Must(s.t, err)
	defer zero.Close()
	ssh := exec.Command(lab.FindProgram("ssh"),
		append(sshOptions(s.key), "root@"+lab.HostB.String(), "cat > /dev/null")...)
	ssh.Stdin = zero
	wan := s.Link(lab.WAN)
	before := wan.Counters(link.AToB).BytesDelivered
	start(ssh)
	nettest.Eventually(s.t, time.Minute, func() bool {
		return wan.Counters(link.AToB).BytesDelivered > before+miB
	}, func() string { return "ssh sends nothing" })
	return stop
}
