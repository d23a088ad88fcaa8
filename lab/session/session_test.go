package session

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.MainWithoutLeaks(m) }

func TestProgramsReachHostsByName(t *testing.T) {
	ping := nettest.RequireProgram(t, "ping", "iputils-ping")
	built := linktest.TwoSites(t, linktest.Fast())
	for range 2 { // like a second lab of the same sandbox
		if err := built.NameHosts(); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range built.HostNames() {
		status, out := execute(t, built, "host-a", ping, "-c", "1", "-W", "60", to)
		if status != 0 {
			t.Errorf("ping %s: status %d: %s", to, status, out)
		}
	}
}

// serve serves the lab on a socket of its own until the test ends.
func serve(t *testing.T, built *lab.Lab) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "l", "lab.sock")
	listener, err := listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	s := &server{lab: built, conditions: linktest.Fast()}
	go func() { served <- s.serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// execute runs a program through a socket and returns its status and output.
func execute(t *testing.T, built *lab.Lab, host string, args ...string) (int, string) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	answer, err := call(serve(t, built), request{Exec: &execRequest{Host: host, Args: args, Env: os.Environ(), Dir: "/"}}, []*os.File{in, out, out}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status, string(said)
}

func TestExec(t *testing.T) {
	built := linktest.TwoSites(t, linktest.Fast())
	for _, test := range []struct {
		args   []string
		status int
		output string
	}{
		{[]string{"sh", "-c", "echo hello; exit 5"}, 5, "hello\n"},
		{[]string{"sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{[]string{"cat", "/proc/sys/net/ipv4/ip_forward"}, 0, "1\n"}, // on at relay-a, off at host-a
	} {
		if status, output := execute(t, built, "relay-a", test.args...); status != test.status || output != test.output {
			t.Errorf("%q: status %d and %q, want %d and %q", test.args, status, output, test.status, test.output)
		}
	}
}

func TestExecErrors(t *testing.T) {
	built := linktest.TwoSites(t, linktest.Fast())
	socket := serve(t, built)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	streams := []*os.File{null, null, null}
	for _, test := range []struct {
		asked request
		want  string
	}{
		{request{Exec: &execRequest{Host: "host-c", Args: []string{"true"}}}, `no host "host-c"`},
		{request{Exec: &execRequest{Host: "host-a", Args: []string{"no-such-program"}}}, "executable file not found"},
		{request{Exec: &execRequest{Host: "host-a"}}, "missing program"},
		{request{Set: map[string]string{"loss": "2"}}, `invalid share "2"`},
		{request{Set: map[string]string{"police": "50Mbit", "police-burst": "100"}}, "Policer.BurstBytes is 100"},
		{request{}, "empty request"},
	} {
		if _, err := call(socket, test.asked, streams, nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: error %v, want %q", test.asked, err, test.want)
		}
	}
	if _, err := listen(socket); err == nil || !strings.Contains(err.Error(), "a lab is up already") {
		t.Errorf("a second lab on the socket: error %v", err)
	}
	if _, err := call(filepath.Join(t.TempDir(), "none"), request{Status: true}, nil, nil); !errors.Is(err, ErrNoLab) {
		t.Errorf("without a lab: error %v, want %v", err, ErrNoLab)
	}
}

// The lab ends the program of a client that disconnects.
func TestExecEndsWithItsClient(t *testing.T) {
	built := linktest.TwoSites(t, linktest.Fast())
	socket := serve(t, built)
	mark := filepath.Join(t.TempDir(), "pid")
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	signals := make(chan os.Signal, 1)
	gone := make(chan reply, 1)
	go func() {
		answer, _ := call(socket, request{Exec: &execRequest{
			Host: "host-a", Dir: "/", Env: os.Environ(),
			Args: []string{"sh", "-c", "echo $$ > " + mark + "; exec sleep 1000"},
		}}, []*os.File{null, null, null}, signals)
		gone <- answer
	}()
	var pid string
	nettest.Eventually(t, time.Minute, func() bool {
		data, _ := os.ReadFile(mark)
		pid = strings.TrimSpace(string(data))
		return pid != ""
	}, func() string { return "the program did not start" })
	signals <- os.Interrupt
	if answer := <-gone; answer.Status != 128+2 {
		t.Errorf("an interrupted program's status is %d, want %d", answer.Status, 128+2)
	}
	if _, err := os.Stat("/proc/" + pid); err == nil {
		t.Errorf("process %s is still there", pid)
	}
}

// settings is a direction without its counters.
func settings(d Direction) Direction {
	d.PacketsIn, d.Delivered, d.BytesDelivered, d.Lost, d.Thinned, d.Policed, d.QueueDrops, d.AQMDrops, d.Marked = 0, 0, 0, 0, 0, 0, 0, 0, 0
	d.TooBig, d.Outage, d.Reordered, d.LostByMachine = 0, 0, 0, 0
	d.QueueP50Ms, d.QueueP95Ms, d.QueueP99Ms, d.QueueMaxMs = 0, 0, 0, 0
	return d
}

// TestSetAndStatus holds that Status reports the changed settings, and no other change.
func TestSetAndStatus(t *testing.T) {
	built := linktest.TwoSites(t, linktest.Fast())
	socket := serve(t, built)
	want, err := Status(socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := Set(socket, map[string]string{"rtt": "10ms", "loss-back": "5%", "down": "a-to-b"}); err != nil {
		t.Fatal(err)
	}
	got, err := Status(socket)
	if err != nil {
		t.Fatal(err)
	}
	ab, ba := &want.Directions[0], &want.Directions[1]
	ab.DelayMs, ba.DelayMs = 5, 5
	ba.LossProbability, ab.Down = 0.05, true
	ab.QueueBytes, ba.QueueBytes = got.Directions[0].QueueBytes, got.Directions[1].QueueBytes // 1 BDP
	for i := range 2 {
		got, want := settings(got.Directions[i]), settings(want.Directions[i])
		if got.QueueBytes != 250_000 || got != want {
			t.Errorf("a direction is %+v, want %+v", got, want)
		}
	}
	var b strings.Builder
	if err := got.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"delay        5 ms        5 ms", "outage        true       false"} {
		if !strings.Contains(b.String(), row) {
			t.Errorf("%q is not in\n%s", row, &b)
		}
	}
}
