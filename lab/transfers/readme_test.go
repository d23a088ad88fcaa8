package transfers

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"longhaul/internal/find/measure"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/test/nettest"
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
		"--time 1s --case cubic,reno", []string{`(?m)^ +cubic +\d`, `(?m)^ +reno +\d`},
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
	page := readPage(t, "README.md", "")
	page.configs() // TestInterceptionPages writes it
	page.addInline()
	if lines := strings.Count(page.text, "\n"); lines > maxREADME {
		t.Errorf("README.md has %d lines, more than %d", lines, maxREADME)
	}
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
	s := newPageSites(t, bin)
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
				out, err := s.shell(host, c.line)
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

// withoutC begins the README's build.
const withoutC = "CGO_ENABLED=0 "

// holdInCI fails the test if .ci/run does not execute a command. .ci/run has an ordinary
// user run the demo, and builds the program as root before.
func holdInCI(t *testing.T, checkout string, c pageCommand) {
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
func buildIn(t *testing.T, dir, checkout string, c pageCommand) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.TrimPrefix(c.line, withoutC))
	cmd.Dir = checkout
	// The checkout may be another user's, whose version control the go command rejects.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false -o="+filepath.Join(dir, "longhaul"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", c.line, err, out)
	}
}

// transfer sends data by ssh from host-a to host-b, without a relay, and captures it on
// host-a, until stop.
func (s *pageSites) transfer(capture string) (stop func()) {
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
