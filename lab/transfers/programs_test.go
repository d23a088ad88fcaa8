package transfers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/linktest"
	"longhaul/lab/pattern"
	"longhaul/lab/progress"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// These tests run real programs through a pair of real relays, over a WAN of
// 20 ms and 1 Gb/s.

// sites are two sites with programs in them, whose relays the test starts.
type sites struct {
	*lab.Stage
	t   *testing.T
	ctx context.Context
}

func newSites(t *testing.T) *sites {
	t.Helper()
	return newSitesOver(t, 20*time.Millisecond)
}

// newSitesOver is newSites over a WAN of another round trip.
func newSitesOver(t *testing.T, rtt time.Duration) *sites {
	t.Helper()
	linktest.PrivateRun(t)
	t.TempDir() // removed after Stop: programs write to directories of the test until they have ended
	binary := nettest.Longhaul(t)
	c := lab.MitreConditions()
	c.RTT = rtt
	built := linktest.TwoSites(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	s := &sites{Stage: &lab.Stage{Lab: built, Program: binary}, t: t, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		s.Stop()
	})
	return s
}

// relay starts the relays in front of a port of host-b.
func (s *sites) relay(port uint16) {
	s.t.Helper()
	if _, err := s.StartRelays(s.ctx, netip.AddrPortFrom(lab.HostB, port)); err != nil {
		s.t.Fatal(err)
	}
}

// run runs a program to its end in a host, and returns what it printed.
func (s *sites) run(host string, stdin io.Reader, name string, args ...string) (string, error) {
	s.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(s.ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	if err := s.Host(host).Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", filepath.Base(name), err, errs.String())
	}
	return out.String(), nil
}

// must is run for what has to succeed.
func (s *sites) must(host string, stdin io.Reader, name string, args ...string) string {
	s.t.Helper()
	out, err := s.run(host, stdin, name, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// spawn starts a program of its own session, and returns it to be killed.
func (s *sites) spawn(host string, port uint16, name string, args ...string) *lab.Daemon {
	s.t.Helper()
	d, err := s.Start(s.ctx, host, port, name, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// kill kills a program outright.
func (s *sites) kill(d *lab.Daemon) {
	s.t.Helper()
	if err := syscall.Kill(d.PID(), syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	<-d.Ended()
}

// randomFile makes a file that cannot be compressed and returns its path and hash.
func randomFile(t *testing.T, bytes int64) (path string, sum [32]byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "data")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hash := sha256.New()
	source := rand.NewChaCha8([32]byte{byte(bytes)})
	if _, err := io.CopyN(io.MultiWriter(f, hash), source, bytes); err != nil {
		t.Fatal(err)
	}
	return path, [32]byte(hash.Sum(nil))
}

func fileSum(t *testing.T, path string) [32]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		t.Fatal(err)
	}
	return [32]byte(hash.Sum(nil))
}

const (
	kiB = 1 << 10
	miB = 1 << 20
)

func TestSSHPrograms(t *testing.T) {
	t.Parallel()
	nettest.RequireRoot(t)
	for name, debianPackage := range map[string]string{"sshd": "openssh-server", "scp": "openssh-client", "rsync": "rsync"} {
		nettest.RequireProgram(t, name, debianPackage)
	}
	s := newSites(t)
	key, err := startSSHD(s.ctx, s.Stage, "host-b")
	if err != nil {
		t.Fatal(err)
	}
	s.relay(22)
	port := fmt.Sprint(lab.RelayPort)
	there := "root@" + lab.RelayA.String()

	const size = 32 * miB
	data, sum := randomFile(t, size)

	t.Run("scp", func(t *testing.T) {
		s := &sites{s.Stage, t, s.ctx}
		copied := filepath.Join(t.TempDir(), "copied")
		s.must("host-a", nil, lab.FindProgram("scp"), append(sshOptions(key), "-P", port, data, there+":"+copied)...)
		if fileSum(t, copied) != sum {
			t.Error("the copy differs")
		}
	})
	t.Run("cat up", func(t *testing.T) {
		s := &sites{s.Stage, t, s.ctx} // the end of the input must reach the far cat, and its status come back
		copied := filepath.Join(t.TempDir(), "copied")
		f, err := os.Open(data)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s.must("host-a", io.LimitReader(f, 20*miB), lab.FindProgram("ssh"), append(sshOptions(key), "-p", port, there, "cat > "+copied)...)
		if info, err := os.Stat(copied); err != nil || info.Size() != 20*miB {
			t.Errorf("%v, %v", info, err)
		}
	})
	t.Run("cat down", func(t *testing.T) {
		s := &sites{s.Stage, t, s.ctx}
		got := s.must("host-a", nil, lab.FindProgram("ssh"), append(sshOptions(key), "-p", port, there, "head -c 20971520 "+data)...)
		want := make([]byte, 20*miB)
		f, err := os.Open(data)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := io.ReadFull(f, want); err != nil || got != string(want) {
			t.Errorf("%d bytes came, or differ: %v", len(got), err)
		}
	})
	t.Run("rsync", func(t *testing.T) {
		s := &sites{s.Stage, t, s.ctx}
		from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
		for i := range 200 {
			dir := filepath.Join(from, fmt.Sprint(i%20))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), bytes.Repeat([]byte{byte(i)}, i*85), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		shell := strings.Join(append([]string{lab.FindProgram("ssh"), "-p", port}, sshOptions(key)...), " ")
		sync := func() {
			s.must("host-a", nil, lab.FindProgram("rsync"), "-a", "-e", shell, from+"/", there+":"+to)
			s.must("host-a", nil, "diff", "-r", from, to)
		}
		sync()
		if err := os.WriteFile(filepath.Join(from, "3", "3"), []byte("changed"), 0o644); err != nil {
			t.Fatal(err)
		}
		sync()
	})
}

func TestIperf3(t *testing.T) {
	t.Parallel()
	iperf3 := nettest.RequireProgram(t, "iperf3", "iperf3")
	s := newSites(t)
	s.spawn("host-b", 5201, iperf3, "-s")
	s.relay(5201)
	const size = 20 * miB
	for _, direction := range [][]string{nil, {"-R"}} {
		out := s.must("host-a", nil, iperf3, append([]string{"-c", lab.RelayA.String(), "-p", fmt.Sprint(lab.RelayPort), "-n", fmt.Sprint(size), "-J"}, direction...)...)
		var result struct {
			End struct {
				SumSent     struct{ Bytes int64 } `json:"sum_sent"`
				SumReceived struct{ Bytes int64 } `json:"sum_received"`
			}
		}
		if err := json.Unmarshal([]byte(out), &result); err != nil {
			t.Fatalf("iperf3 %v: %v", direction, err)
		}
		// It ends once all is sent, and counts what has come by then.
		if end := result.End; end.SumSent.Bytes < size || end.SumReceived.Bytes == 0 {
			t.Errorf("iperf3 %v: %d bytes were sent and %d received, asked were %d", direction, end.SumSent.Bytes, end.SumReceived.Bytes, size)
		}
	}
}

// nc ends its stream, and the target, which only then knows the sum, replies.
func TestNetcatHalfClose(t *testing.T) {
	t.Parallel()
	nc := nettest.RequireProgram(t, "nc", "netcat-openbsd")
	socat := nettest.RequireProgram(t, "socat", "socat")
	s := newSites(t)
	s.spawn("host-b", 5001, socat, "-t", "60", "TCP4-LISTEN:5001,reuseaddr,fork", "EXEC:sha256sum")
	s.relay(5001)
	data, sum := randomFile(t, 20*miB)
	f, err := os.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	reply := s.must("host-a", f, nc, "-N", lab.RelayA.String(), fmt.Sprint(lab.RelayPort))
	if want := fmt.Sprintf("%x", sum); !strings.HasPrefix(reply, want) {
		t.Errorf("the target read %q, want %s", reply, want)
	}
}

func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	s := newSites(t)
	bin := s.postgres()
	s.relay(5432)

	client := func(name string, stdin io.Reader, args ...string) string {
		t.Helper()
		return s.must("host-a", stdin, bin+"/"+name, append([]string{"-h", lab.RelayA.String(), "-p", fmt.Sprint(lab.RelayPort), "-U", "postgres"}, args...)...)
	}
	nettest.Eventually(t, time.Minute, func() bool {
		_, err := s.run("host-a", nil, bin+"/pg_isready", "-h", lab.RelayA.String(), "-p", fmt.Sprint(lab.RelayPort))
		return err == nil
	}, func() string { return "PostgreSQL does not answer" })
	client("pgbench", nil, "-i", "-s", "1", "postgres")
	out := client("pgbench", nil, "-c", "4", "-t", "5", "postgres")
	if !strings.Contains(out, "number of transactions actually processed: 20/20") {
		t.Errorf("pgbench: %s", out)
	}

	// COPY of 20 MB up, and the same back.
	var rows bytes.Buffer
	line := strings.Repeat("x", 990)
	for i := 0; rows.Len() < 20e6; i++ {
		fmt.Fprintf(&rows, "%d\t%s\n", i, line)
	}
	sum := sha256.Sum256(rows.Bytes())
	client("psql", nil, "-c", "create table t (i int primary key, s text)", "postgres")
	client("psql", &rows, "-c", "copy t from stdin", "postgres")
	if got := sha256.Sum256([]byte(client("psql", nil, "-c", "copy (select * from t order by i) to stdout", "postgres"))); got != sum {
		t.Error("COPY brought other rows back")
	}
}

// postgres starts a server on host-b that trusts everybody, and returns the directory of its
// programs.
func (s *sites) postgres() (bin string) {
	s.t.Helper()
	bin, _ = s.postgresWithLog()
	return bin
}

// postgresWithLog is postgres, and returns the file in which it logs each connection.
func (s *sites) postgresWithLog() (bin, log string) {
	s.t.Helper()
	nettest.RequireRoot(s.t)
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		nettest.RequireProgram(s.t, "initdb", "postgresql")
	}
	bin = filepath.Dir(found[len(found)-1])
	setpriv := nettest.RequireProgram(s.t, "setpriv", "util-linux")
	dir, err := os.MkdirTemp("/run", "pg-")
	if err != nil {
		s.t.Fatal(err)
	}
	s.must("host-b", nil, "chown", "postgres", dir)
	// In its place, not as its child as runuser does, which ends two seconds after it.
	as := func(args ...string) []string {
		return append([]string{"--reuid=postgres", "--regid=postgres", "--clear-groups"}, args...)
	}
	s.must("host-b", nil, setpriv, as(bin+"/initdb", "-D", dir+"/data", "-A", "trust", "-N")...)
	hba := "host all all 0.0.0.0/0 trust\nhost all all ::/0 trust\n"
	if err := os.WriteFile(dir+"/data/pg_hba.conf", []byte(hba), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.must("host-b", nil, "chown", "postgres", dir+"/data/pg_hba.conf")
	s.spawn("host-b", 5432, setpriv, as(bin+"/postgres", "-D", dir+"/data", "-h", "*", "-k", dir, "-c", "fsync=off",
		"-c", "log_connections=on", "-c", "logging_collector=on", "-c", "log_directory="+dir, "-c", "log_filename=log")...)
	return bin, dir + "/log"
}

// A download whose relay is killed fails, and is resumed.
func TestHTTPResume(t *testing.T) {
	t.Parallel()
	nginx := nettest.RequireProgram(t, "nginx", "nginx-light")
	curl := nettest.RequireProgram(t, "curl", "curl")
	s := newSites(t)
	const size = 100 * miB
	data, sum := randomFile(t, size)
	server := s.nginx(nginx, filepath.Dir(data))
	s.relay(8080)
	url := fmt.Sprintf("http://%s/data", lab.RelayAListens)
	copied := filepath.Join(t.TempDir(), "copied")
	grown := func() bool {
		info, err := os.Stat(copied)
		return err == nil && info.Size() > miB/2
	}
	// At 5 MB/s it takes twenty seconds: enough to be killed in.
	download := func(meanwhile func()) error {
		t.Helper()
		ended := make(chan error, 1)
		go func() {
			_, err := s.run("host-a", nil, curl, "-sS", "--limit-rate", "5M", "-C", "-", "-o", copied, url)
			ended <- err
		}()
		nettest.Eventually(t, time.Minute, grown, func() string { return "nothing is downloaded" })
		meanwhile()
		return <-ended
	}
	for _, victim := range []struct {
		name string
		kill func()
	}{
		{"near relay", func() { s.kill(s.daemonOn("relay-a")) }},
		{"far relay", func() { s.kill(s.daemonOn("relay-b")) }},
		{"target", func() {
			_ = syscall.Kill(-server.PID(), syscall.SIGKILL)
			<-server.Ended()
		}},
	} {
		os.Remove(copied)
		err := download(victim.kill)
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%s killed: the client says %v, want an error", victim.name, err)
		}
		if info, err := os.Stat(copied); err != nil || info.Size() >= size {
			t.Fatalf("%s killed: %v, %v", victim.name, info, err)
		}
		t.Logf("%s killed: curl status %d", victim.name, exit.ExitCode())
		s.Stop()
		server = s.nginx(nginx, filepath.Dir(data))
		s.relay(8080)
	}
	if _, err := s.run("host-a", nil, curl, "-sS", "-C", "-", "-o", copied, url); err != nil {
		t.Fatal(err)
	}
	if fileSum(t, copied) != sum {
		t.Error("the resumed file differs")
	}
}

// daemonOn is the relay that runs in a host.
func (s *sites) daemonOn(host string) *lab.Daemon {
	for _, d := range s.Running() {
		if d.Host == host {
			return d
		}
	}
	s.t.Fatalf("nothing runs on %s", host)
	return nil
}

// nginx serves a directory on host-b, in a process group of its own.
func (s *sites) nginx(path, root string) *lab.Daemon {
	s.t.Helper()
	dir := s.t.TempDir()
	config := strings.NewReplacer("DIR", dir, "ROOT", root).Replace(`daemon off;
pid DIR/pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path DIR; proxy_temp_path DIR; fastcgi_temp_path DIR; uwsgi_temp_path DIR; scgi_temp_path DIR;
  server { listen 8080; listen [::]:8080; root ROOT; add_header Seen "$remote_addr"; }
}
`)
	if os.Geteuid() == 0 {
		config = "user root;\n" + config
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return s.spawn("host-b", 8080, "setsid", path, "-c", file, "-e", "stderr")
}

// 500 flows at once, each with a stream of its own.
func TestManyFlows(t *testing.T) {
	t.Parallel()
	s := newSites(t)
	listener := s.listen("host-b", 5001)
	defer tcpserver.Serve(listener, func(conn net.Conn) {
		hash := sha256.New()
		if _, err := io.Copy(hash, conn); err == nil {
			_, _ = conn.Write(hash.Sum(nil))
		}
	})()
	s.relay(5001)

	const flows = 500
	open := make(chan struct{}) // until all are connected
	failed := make(chan error, flows)
	var clients, connected sync.WaitGroup
	for i := range flows {
		connected.Add(1)
		clients.Go(func() {
			failed <- oneOfMany(s, i, &connected, open)
		})
	}
	connected.Wait()
	close(open)
	clients.Wait()
	for range flows {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
}

func oneOfMany(s *sites, i int, connected *sync.WaitGroup, open <-chan struct{}) error {
	conn, err := s.dial("host-a", lab.RelayAListens)
	connected.Done()
	if err != nil {
		return err
	}
	defer conn.Close()
	<-open
	if deadline, ok := s.ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	hash := sha256.New()
	source := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)})
	if _, err := io.CopyN(io.MultiWriter(conn, hash), source, int64(20*kiB+i)); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	reply, err := io.ReadAll(conn)
	if err == nil && !bytes.Equal(reply, hash.Sum(nil)) {
		err = fmt.Errorf("flow %d: %d bytes of another hash came back", i, len(reply))
	}
	return err
}

// Both ends see a reset, never only an end, when a relay is killed while data
// flow both ways.
func TestKilledRelayResets(t *testing.T) {
	t.Parallel()
	for _, victim := range []string{"relay-a", "relay-b"} {
		t.Run(victim, func(t *testing.T) {
			s := newSites(t)
			listener := s.listen("host-b", 5001)
			defer listener.Close()
			s.relay(5001)
			client, err := s.dial("host-a", lab.RelayAListens)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			server, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			var ends sync.WaitGroup
			for name, conn := range map[string]net.Conn{"client": client, "target": server} {
				conn.SetDeadline(time.Now().Add(time.Minute))
				ends.Go(func() {
					if err := talkUntilError(conn); !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("the %s sees %v, want a reset", name, err)
					}
				})
			}
			wan := s.Link(lab.WAN)
			nettest.Eventually(t, time.Minute, func() bool {
				return wan.Counters(link.AToB).BytesDelivered > miB && wan.Counters(link.BToA).BytesDelivered > miB
			}, func() string { return "no data flow" })
			s.kill(s.daemonOn(victim))
			ends.Wait()
		})
	}
}

// talkUntilError sends and receives at once, and returns the first error.
// The kernel tells a reset to whichever of the two calls asks first, and the
// other one an end.
func talkUntilError(conn net.Conn) error {
	wrote := make(chan error, 1)
	go func() {
		for {
			if _, err := conn.Write(pattern.At(0, 64*kiB)); err != nil {
				wrote <- err
				return
			}
		}
	}()
	_, err := io.Copy(io.Discard, conn)
	if err != nil {
		<-wrote
		return err
	}
	err = <-wrote
	if errors.Is(err, syscall.EPIPE) { // a write after the end that was read
		return io.EOF
	}
	return err
}

// listen and dial open sockets of a host.
func (s *sites) listen(host string, port uint16) net.Listener {
	s.t.Helper()
	var listener net.Listener
	err := s.Host(host).Do(func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		listener, err = config.Listen(s.ctx, "tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return listener
}

func (s *sites) dial(host string, addr netip.AddrPort) (net.Conn, error) {
	var conn net.Conn
	err := s.Host(host).Do(func() (err error) {
		var dialer net.Dialer
		dialer.SetMultipathTCP(false)
		conn, err = dialer.DialContext(s.ctx, "tcp", addr.String())
		return err
	})
	return conn, err
}

// The headline's two cases, with little data. What the relays bring is measured
// by `longhaul lab run mitre`, and held under the tag timed.
func TestMitre(t *testing.T) {
	t.Parallel()
	linktest.PrivateRun(t)
	binary := nettest.Longhaul(t)
	mitre := Mitre()
	for i := range mitre.Cases {
		mitre.Cases[i].QuickBytes = 4 * miB
	}
	reports := 0
	result, err := mitre.Run(t.Context(), Options{
		Program: binary, Quick: true, Cases: []string{"direct", "relay"}, Seed: 7,
		Report: func(progress.Report) { reports++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	direct, relay := result.Cases[0], result.Cases[1]
	if direct.GoodputBps > lab.ClassicWindowBytes*8/0.063 {
		t.Errorf("the direct path reaches %.1f Mb/s, more than its window allows", direct.GoodputBps/1e6)
	}
	if relay.GoodputBps > relay.LimitBps || relay.RelayCPUPerGB == nil || result.Conditions["seed"] != uint64(7) {
		t.Errorf("implausible: %+v under %v", relay, result.Conditions)
	}
	if reports == 0 {
		t.Error("no progress was reported")
	}
}
