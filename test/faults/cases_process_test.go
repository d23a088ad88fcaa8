package faults

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"longhaul/lab/pattern"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// Case 30: reloads under load. No connection fails, no byte is wrong, and the
// process holds afterwards what it held before. For 1000 reloads see
// `go run ./bench/soak --case churn`.
func TestCase30ReloadsUnderLoad(t *testing.T) {
	t.Parallel()
	const reloads = 100
	listen, target := nettest.FreeAddress(t, "127.0.0.1"), hashTarget(t)
	var extra []string
	for range 4 {
		extra = append(extra, nettest.FreeAddress(t, "127.0.0.1"))
	}
	// Variants differ in limits, timeouts and buffers of the tunnel in use,
	// and in tunnels that come, go and change places.
	config := func(i int) string {
		text := fmt.Sprintf("control_socket: SOCKET\nlog: {level: %s}\nmemory_limit: %dMiB\ntunnels:\n", []string{"info", "debug"}[i%2], 256+i%3)
		for n := range i % 4 {
			text += fmt.Sprintf("  - {name: extra-%d, listen: %q, forward: %q}\n", n, extra[(n+i)%4], target)
		}
		return text + fmt.Sprintf("  - {name: main, listen: %q, forward: [%q%s], max_flows: %d, connect_timeout: %ds, lan: {receive_buffer: %dKiB}}\n",
			listen, target, []string{"", `, "127.0.0.1:9"`}[i/2%2], 100+i, 10+i%5, 128+64*(i%2))
	}
	relay := startDaemon(t, nil, unsupervised, config(0))
	dial := tcpscript.DialTo(listen)
	if err := exchangeHash(t.Context(), dial, 1); err != nil {
		t.Fatal(err)
	}
	nettest.Eventually(t, patience, func() bool { return relay.status().FlowsNow == 0 }, func() string { return "a flow is left" })
	before := relay.status()

	var clients sync.WaitGroup
	var connections, failed atomic.Int64
	done := make(chan struct{})
	for worker := range 3 {
		clients.Go(func() {
			pace := time.NewTicker(2 * time.Millisecond) // 1500 connections a second, all of them together
			defer pace.Stop()
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				case <-pace.C:
				}
				connections.Add(1)
				if err := exchangeHash(t.Context(), dial, uint64(worker)<<32|uint64(i)); err != nil && failed.Add(1) <= 3 {
					t.Error(err)
				}
			}
		})
	}
	for i := range reloads {
		relay.reload(config(i + 1))
	}
	close(done)
	clients.Wait()
	relay.reload(config(0))
	nettest.Eventually(t, patience, func() bool {
		now := relay.status()
		return now.FlowsNow == 0 && now.Process.Goroutines <= before.Process.Goroutines &&
			now.Process.Descriptors-2*now.PipesOpen <= before.Process.Descriptors-2*before.PipesOpen
	}, func() string {
		return fmt.Sprintf("before: %+v, pipes %d; after: %+v", before.Process, before.PipesOpen, relay.status())
	})
	t.Logf("%d reloads, %d connections, %d failed", reloads, connections.Load(), failed.Load())
	if s := relay.status(); s.tunnel("main").FlowsTotal != connections.Load()+1 || s.tunnel("main").Limited+s.tunnel("main").Refused+s.tunnel("main").Errors > 0 {
		t.Errorf("the tunnel has %+v, and there were %d connections, none of which may fail", s.tunnel("main"), connections.Load()+1)
	}
	if n := relay.log.count("msg=reloaded"); n != reloads+1 {
		t.Errorf("%d reloads are in the log, want %d", n, reloads+1)
	}
}

// hashTarget starts a target that reads to the end and replies with the hash.
func hashTarget(t *testing.T) string {
	t.Helper()
	return serve(t, "127.0.0.1:0", func(c net.Conn) {
		hash := sha256.New()
		if _, err := io.Copy(hash, c); err == nil {
			_, _ = c.Write(hash.Sum(nil))
		}
	})
}

// exchangeHash sends some bytes, ends, and compares the reply with their hash.
func exchangeHash(ctx context.Context, dial dialFunc, seed uint64) error {
	c, err := dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	r := rand.New(rand.NewPCG(seed, 30))
	data := make([]byte, 1+r.IntN(32<<10))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	if _, err := c.Write(data); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	reply, err := io.ReadAll(c)
	if want := sha256.Sum256(data); err == nil && !bytes.Equal(reply, want[:]) {
		return fmt.Errorf("a reply of %d bytes is not the hash of %d", len(reply), len(data))
	}
	return err
}

// Case 31: a broken new configuration. The old one stays, flows and listeners
// included; the log and status say what is wrong and where; the command that
// checks says the same and ends with 2.
func TestCase31BrokenConfiguration(t *testing.T) {
	t.Parallel()
	listen, other, target := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1"), echo(t, "127.0.0.1:0")
	good := single(listen, target, "")
	relay := startDaemon(t, nil, unsupervised, good)
	dial := tcpscript.DialTo(listen)
	running := hold(t, dial)
	for _, tt := range []struct {
		name, config string
		log          string // what the log must say
		check        string // what the check must say; empty where it cannot know
	}{
		{"no YAML", "tunnels: [", "reload failed, the old configuration stays", "longhaul.yaml:1:"},
		{"unknown key", strings.Replace(good, "forward:", "forwart:", 1), `hint="did you mean forward\?"`, "unknown key forwart in a tunnel"},
		{"empty", "", "reload failed, the old configuration stays", "the file is empty"},
		{"an address that is taken", good + fmt.Sprintf("  - {name: taken, listen: %q, forward: \"127.0.0.1:9\"}\n", target), "listen on " + target + ": address already in use", ""},
		{"one tunnel good, one not", good + fmt.Sprintf("  - {name: new, listen: %q, forward: %q}\n  - {name: bad, listen: nowhere, forward: %q}\n", other, target, target),
			"reload failed, the old configuration stays", "longhaul.yaml:"},
	} {
		before := relay.log.count("reload failed, the old configuration stays")
		relay.write(tt.config)
		output, status := command(t, "config", "check", relay.file())
		if tt.check != "" && (status != 2 || !strings.Contains(output, tt.check) || !strings.Contains(output, "hint: ")) {
			t.Errorf("%s: config check ends with %d and says %s", tt.name, status, output)
		}
		relay.signal(syscall.SIGHUP)
		nettest.Eventually(t, patience, func() bool { return relay.log.count("reload failed, the old configuration stays") > before },
			func() string { return tt.name + ": the log does not say that the reload failed\n" + relay.log.String() })
		relay.expectLog(tt.log)
		if s := relay.status(); s.LastReload == nil || s.LastReload.OK || s.LastReload.Error == "" || len(s.Tunnels) != 1 {
			t.Errorf("%s: the last reload is %+v and the tunnels are %+v; want a failure, its error, and one tunnel", tt.name, s.LastReload, s.Tunnels)
		}
		running.alive(t, tt.name)
		hold(t, dial).release(t)
		if c, err := net.Dial("tcp", other); err == nil {
			c.Close()
			t.Errorf("%s: a tunnel of the broken configuration listens", tt.name)
		}
	}
	relay.reload(good)
	if s := relay.status(); !s.LastReload.OK {
		t.Errorf("after a good one: %+v", s.LastReload)
	}
	running.release(t)
	relay.signal(syscall.SIGTERM)
	relay.expectExit(0)

	// A relay that starts with a broken one does not run at all.
	bad := startBroken(t, strings.Replace(good, "forward:", "forwart:", 1))
	if !strings.Contains(bad, "unknown key forwart in a tunnel") {
		t.Errorf("a relay that starts with a broken file says %s", bad)
	}
}

// startBroken runs a relay that must refuse its configuration with status 2.
func startBroken(t *testing.T, config string) string {
	t.Helper()
	file := t.TempDir() + "/longhaul.yaml"
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(config, "SOCKET", "off")), 0o600); err != nil {
		t.Fatal(err)
	}
	output, status := command(t, "relay", "--config", file)
	if status != 2 {
		t.Errorf("exit status %d, want 2", status)
	}
	return output
}

// Case 32: two upgrades one after the other while a flow of the first process
// stays open. Neither waits for it, the flow goes on, no connection is refused,
// and when the service is stopped, all of its processes are.
func TestCase32UpgradesDoNotWaitForFlows(t *testing.T) {
	t.Parallel()
	listen := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, "drain_timeout: 1s\n"+single(listen, echo(t, "127.0.0.1:0"), ""))
	dial := tcpscript.DialTo(listen)
	var flows []held
	processes := []int{relay.cmd.Process.Pid}
	done := make(chan struct{})
	var clients sync.WaitGroup
	var connections atomic.Int64
	for range 2 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				h, err := tryHold(t.Context(), dial, patience)
				if err != nil {
					t.Errorf("connection %d: %v", connections.Load(), err)
					return
				}
				h.CloseWrite()
				_, _ = io.Copy(io.Discard, h)
				h.Close()
				connections.Add(1)
			}
		})
	}
	for range 2 {
		flows = append(flows, hold(t, dial))
		pid, err := relay.upgrade("")
		if err != nil {
			t.Fatal(err)
		}
		processes = append(processes, pid)
		for _, f := range flows {
			f.alive(t, "after an upgrade")
		}
	}
	flows = append(flows, hold(t, dial))
	close(done)
	clients.Wait()
	t.Logf("%d connections meanwhile", connections.Load())
	var s daemonStatus
	nettest.Eventually(t, patience, func() bool {
		s = relay.status()
		return s.PID == processes[2] && s.FlowsNow == 1 && len(s.Older) == 2 &&
			s.Older[0].FlowsNow != nil && *s.Older[0].FlowsNow == 1 && s.Older[1].FlowsNow != nil && *s.Older[1].FlowsNow == 1
	}, func() string { return fmt.Sprintf("%v: %+v", processes, s) })
	for i, older := range s.Older {
		if older.PID != processes[i] {
			t.Errorf("older processes %+v, want %v", s.Older, processes[:2])
		}
	}
	// The first one's flow ends, and so does it. The others are reset at the
	// deadline of the last.
	flows[0].release(t)
	relay.expectExit(0)
	_ = syscall.Kill(processes[2], syscall.SIGTERM)
	for _, f := range flows[1:] {
		f.SetReadDeadline(time.Now().Add(patience))
		if n, err := f.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a flow at the deadline got %d bytes, %v; want a reset", n, err)
		}
	}
	nettest.Eventually(t, patience, func() bool { return relay.log.count(`msg="stopped, flows were reset" flows=2`) == 1 },
		func() string {
			return "the last process does not count the flows of the one before\n" + relay.log.String()
		})
}

// Case 33: the new program crashes, or is none; its configuration is bad. The
// old process goes on, with what it had.
func TestCase33UpgradeToWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	u := newUpgraded(t)
	good := u.config
	before := u.relay.status()
	for _, tt := range []struct {
		name, program, config string
		want                  string // in the message
	}{
		{"it crashes", u.install("crash", "#!/bin/sh\necho oh no >&2; kill -SEGV $$\n"), good,
			"ended before it was ready; its last output:\noh no"},
		{"it ends without a word", u.install("silent", "#!/bin/sh\nexit 0\n"), good, "ended before it was ready"},
		{"it is another program", "/bin/cat", good, "ended before it was ready; its last output:\n/bin/cat: "},
		{"it is no program", u.install("text", "hello"), good, "not a program for this machine's architecture"},
		{"it is not there", filepath.Join(u.relay.dir, "absent"), good, "no such file or directory"},
		{"the configuration is bad", "", strings.Replace(good, "forward:", "forwart:", 1), "unknown key forwart in a tunnel"},
		{"an address is taken",
			"", good + fmt.Sprintf("  - {name: taken, listen: %q, forward: \"127.0.0.1:9\"}\n", u.target),
			"ended before it was ready; its last output:\nlonghaul: listen on " + u.target + ": address already in use"},
	} {
		u.relay.write(tt.config)
		u.expectRefused(tt.name, tt.program, tt.want)
	}
	nettest.Eventually(t, patience, func() bool {
		now := u.relay.status()
		return now.PID == before.PID && now.Process.Goroutines <= before.Process.Goroutines &&
			now.Process.Descriptors-2*now.PipesOpen <= before.Process.Descriptors-2*before.PipesOpen
	}, func() string { return fmt.Sprintf("before: %+v, after: %+v", before.Process, u.relay.status().Process) })
	// And one that runs follows all the same.
	u.relay.write(good)
	pid, err := u.relay.upgrade("")
	if err != nil || u.relay.status().PID != pid {
		t.Fatalf("an upgrade to a program that runs: process %d, %v", pid, err)
	}
	u.running.alive(t, "after an upgrade that succeeded")
	u.running.release(t)
	u.relay.expectExit(0)

	// The first process of a container takes all others with it.
	first := startDaemon(t, nil, firstProcess, single(nettest.FreeAddress(t, "127.0.0.1"), u.target, ""))
	if _, err := first.upgrade(""); err == nil || !strings.Contains(err.Error(), "the first process of its container") {
		t.Errorf("the first process of a container answers %v, want a refusal", err)
	}
}

// Case 33: the new program hangs. The old process waits for it for 30 s, serves
// meanwhile, and goes on.
func TestCase33UpgradeToWhatHangs(t *testing.T) {
	t.Parallel()
	u := newUpgraded(t)
	u.expectRefused("it hangs", u.install("hang", "#!/bin/sh\nexec sleep 1000\n"), "was not ready in time")
}

// upgraded is a relay that is to be replaced while a flow runs.
type upgraded struct {
	t              *testing.T
	relay          *daemon
	config         string
	listen, target string
	running        held
}

func newUpgraded(t *testing.T) *upgraded {
	t.Helper()
	u := &upgraded{t: t, listen: nettest.FreeAddress(t, "127.0.0.1"), target: echo(t, "127.0.0.1:0")}
	u.config = single(u.listen, u.target, "")
	u.relay = startDaemon(t, nil, unsupervised, u.config)
	u.running = hold(t, tcpscript.DialTo(u.listen))
	return u
}

// install writes a program.
func (u *upgraded) install(name, script string) (path string) {
	u.t.Helper()
	path = filepath.Join(u.relay.dir, name)
	nettest.WriteProgram(u.t, path, []byte(script))
	return path
}

// expectRefused upgrades to a program that does not run. The relay must say why, and
// serve its flow and new ones.
func (u *upgraded) expectRefused(name, program, why string) {
	u.t.Helper()
	pid := u.relay.status().PID
	_, err := u.relay.upgrade(program)
	if want := fmt.Sprintf("process %d serves on: ", pid); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), why) {
		u.t.Errorf("%s: the relay answers %v, want %s", name, err, why)
	}
	u.running.alive(u.t, name)
	hold(u.t, tcpscript.DialTo(u.listen)).release(u.t)
}

// Case 34: the drain deadline passes. What is left is reset, no sooner, and the exit
// status tells it from a stop in which every flow had ended.
func TestCase34DrainDeadline(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, drain time.Duration) (*daemon, dialFunc) {
		listen := nettest.FreeAddress(t, "127.0.0.1")
		return startDaemon(t, nil, unsupervised, fmt.Sprintf("drain_timeout: %v\n", drain)+single(listen, echo(t, "127.0.0.1:0"), "")), tcpscript.DialTo(listen)
	}
	t.Run("a flow is left", func(t *testing.T) {
		t.Parallel()
		const drain = 2 * time.Second
		relay, dial := start(t, drain)
		ends, stays := hold(t, dial), hold(t, dial)
		ends.release(t)
		began := time.Now()
		relay.signal(syscall.SIGTERM)
		stays.SetReadDeadline(time.Now().Add(patience))
		if n, err := stays.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the flow that is left got %d bytes, %v; want a reset", n, err)
		}
		if took := time.Since(began); took < drain {
			t.Errorf("the flow that is left was reset after %v, before the deadline", took)
		}
		relay.expectExit(3)
		relay.expectLog(`msg=flow .*end=drain-timeout ended_by=relay`)
		relay.expectLog(`1 flow did not end in time and was reset`)
	})
	// Both ends have ended their streams and the client has yet to read: at
	// 1818be3 the relay ended at once, with status 0 and "every flow had ended".
	t.Run("a reply is on its way", func(t *testing.T) {
		t.Parallel()
		relay, dial := start(t, time.Second)
		h := hold(t, dial)
		if err := h.SetReadBuffer(32 << 10); err != nil {
			t.Fatal(err)
		}
		sent := pattern.At(0, 300_000)
		if _, err := h.Write(sent); err != nil {
			t.Fatal(err)
		}
		h.CloseWrite()
		nettest.Eventually(t, patience, func() bool { s := relay.status(); return len(s.Flows) == 1 && s.Flows[0].State == "delivering" },
			func() string { return fmt.Sprintf("%+v; want a flow that is delivering", relay.status().Flows) })
		relay.signal(syscall.SIGTERM)
		relay.expectExit(3)
		relay.expectLog(`msg="a flow had not ended" tunnel=main .* undelivered_to_client_bytes=[1-9]\d+ undelivered_to_target_bytes=0 outcome="left to the kernel"`)
		relay.expectLog(fmt.Sprintf(`1 flow did not end in time, left to the kernel to deliver; [1-9]\d+ bytes had not arrived, the most of them for %s of tunnel main`, h.LocalAddr()))
		if got, err := io.ReadAll(h); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
		}
	})
	t.Run("every flow ends", func(t *testing.T) {
		t.Parallel()
		relay, dial := start(t, 2*patience)
		flows := []held{hold(t, dial), hold(t, dial)}
		relay.signal(syscall.SIGTERM)
		nettest.Eventually(t, patience, func() bool {
			h, err := tryHold(t.Context(), dial, patience)
			if err == nil { // it came before the signal had its effect
				h.release(t)
			}
			return errors.Is(err, syscall.ECONNREFUSED)
		}, func() string { return "the relay still accepts" })
		for _, h := range flows {
			h.alive(t, "while the relay drains")
			h.release(t)
		}
		relay.expectExit(0)
	})
}

// Case 35: the wall clock jumps by an hour, forwards and back. Nothing times
// out because of it, nothing lives longer, and nothing is refused.
//
// The clock that jumps is the one that this relay sees: whenever it reads
// CLOCK_REALTIME it gets another time (see supervisor), and a timer that it
// would arm on that clock is noticed. The machine's clock stays as it is, and
// the kernel's own timers of TCP do not run on it.
func TestCase35ClockJumps(t *testing.T) {
	t.Parallel()
	const idle, halfClosed = time.Second, 1500 * time.Millisecond
	listen, quick, target := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1"), echo(t, "127.0.0.1:0")
	silent := silentTarget(t)
	half := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, clockSupervised, fmt.Sprintf(`control_socket: SOCKET
half_close_timeout: %v
drain_timeout: 30m
tunnels:
  - {name: main, listen: %q, forward: %q, idle_timeout: 30m, new_flows_per_second: 100}
  - {name: quick, listen: %q, forward: %q, idle_timeout: %v}
  - {name: half, listen: %q, forward: %q, new_flows_per_second: 1}
`, halfClosed, listen, target, quick, target, idle, half, silent))
	main, quickly, toSilent := tcpscript.DialTo(listen), tcpscript.DialTo(quick), tcpscript.DialTo(half)
	var running []held
	for range 30 {
		running = append(running, hold(t, main))
	}
	allAlive := func(when string) {
		t.Helper()
		for _, h := range running {
			h.alive(t, when)
		}
		hold(t, main).release(t) // and new ones come in
		if s := relay.status(); s.tunnel("main").FlowsNow < int64(len(running)) || s.tunnel("main").Errors > 0 || s.tunnel("main").Limited > 0 {
			t.Errorf("%s: the tunnel has %+v; want %d flows, none limited, no errors", when, s.tunnel("main"), len(running))
		}
	}
	allAlive("before")
	for _, jump := range []struct {
		when  string
		ahead time.Duration
	}{{"an hour ahead", time.Hour}, {"back again", 0}, {"an hour behind", -time.Hour}} {
		// Timers that are running take their own time, jump or not.
		began := time.Now()
		idler, err := quickly(t.Context())
		nettest.Must(t, err)
		defer idler.Close()
		ended, err := toSilent(t.Context())
		nettest.Must(t, err)
		defer ended.Close()
		ended.(*net.TCPConn).CloseWrite()
		reads := relay.supervisor.wallReads.Load()
		relay.supervisor.jump(jump.ahead)
		allAlive(jump.when)
		for _, timer := range []struct {
			what string
			c    net.Conn
			time time.Duration
		}{{"idle timeout", idler, idle}, {"half-close timeout", ended, halfClosed}} {
			timer.c.SetReadDeadline(time.Now().Add(patience))
			_, err := timer.c.Read(make([]byte, 1))
			took := time.Since(began)
			if !errors.Is(err, syscall.ECONNRESET) || took < timer.time {
				t.Errorf("%s: the %s of %v ends a flow with %v after %v", jump.when, timer.what, timer.time, err, took)
			}
		}
		// The relay did see that clock: its log has it.
		if relay.supervisor.wallReads.Load() == reads {
			t.Errorf("%s: the relay never read the wall clock", jump.when)
		}
		hour := func(at time.Time) string { return at.Add(jump.ahead).UTC().Format("time=2006-01-02T15:") }
		relay.expectLog(`(` + hour(began) + `|` + hour(time.Now()) + `).*end=half-close-timeout`)
		allAlive(jump.when + ", a while later")
	}
	// A running drain also keeps its own deadline.
	relay.signal(syscall.SIGTERM)
	relay.expectLog(`msg=stopping`)
	relay.supervisor.jump(time.Hour)
	for _, h := range running {
		h.alive(t, "draining, an hour ahead")
		h.release(t)
	}
	relay.expectExit(0)
	if n := relay.supervisor.wallWaits.Load(); n > 0 {
		t.Errorf("the relay asked %d times for a timer of the wall clock", n)
	}
}

// silentTarget starts a target that reads and never answers, nor ends.
func silentTarget(t *testing.T) string {
	t.Helper()
	return serve(t, "127.0.0.1:0", func(c net.Conn) {
		tcpserver.Discard(c)
		<-t.Context().Done()
	})
}
