package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/carry/integrity"
	"longhaul/lab"
	"longhaul/lab/experiment"
	"longhaul/lab/link"
)

// within is the maximum duration of a check.
const within = 5 * time.Second

func main() { kit.Main(suite().Entry()) }

func suite() kit.Suite {
	s := kit.Suite{Usual: kit.Options{Repeat: 1, Seed: 1}, Experiment: experiment.Experiment{
		Name:    "check",
		Summary: "longhaul check on a chain of relays with known faults",
		Source:  "no report: each fault is known",
		Short:   "Run longhaul check on a chain of relays with known faults",
		Long: `check builds a chain of three relays and a target, each on its own host: 20 and
30 ms apart, at 500 and 200 Mb/s. Each case has another fault, or none: a relay
or the target is down, a link is cut or loses packets, a program between two
relays alters bytes. The table shows whether longhaul check names the fault and
its place, and the duration.

Exit codes: 0 each case is right and took at most 5 s, 1 otherwise.`,
		Example: `  go run ./bench/check
  go run ./bench/check --case altered-bc-data --json`,
	}, Missing: func(way string) string {
		if way == withSocat {
			return lab.MissingProgram("socat", "socat")
		}
		return ""
	}}
	for _, c := range Cases() {
		way := "relays"
		if c.socat != "" {
			way = withSocat
		}
		s.Trials = append(s.Trials, kit.Trial{Name: c.Name, About: c.want.String(), Ways: []string{way}, Run: c.run})
	}
	return s
}

const withSocat = "socat"

// The hosts and their addresses.
var (
	aOnAB    = netip.MustParseAddr("10.51.0.1")
	bOnAB    = netip.MustParseAddr("10.51.0.2")
	bOnBC    = netip.MustParseAddr("10.52.0.1")
	cOnBC    = netip.MustParseAddr("10.52.0.2")
	cOnCT    = netip.MustParseAddr("10.53.0.1")
	targetAt = netip.MustParseAddr("10.53.0.2")

	hostOf = map[netip.Addr]string{
		aOnAB: "relay-a", bOnAB: "relay-b", bOnBC: "relay-b", cOnBC: "relay-c", cOnCT: "relay-c", targetAt: "target",
	}
)

const (
	relayPort  = 6000
	middlePort = 6001
	targetPort = 5000
)

func (c Case) run(ctx context.Context, o kit.Options, _ string, run int, note func(kit.Measured)) error {
	w, err := c.build(ctx, o, o.Seed+uint64(run)-1)
	if err != nil {
		return err
	}
	defer w.Close()
	got, took, err := w.check(ctx)
	if err != nil {
		return w.Explain(err)
	}
	wrong := kit.Measured{Name: "wrong", Bound: kit.AtMost(0), Exact: true}
	if got != c.want {
		wrong.Value, wrong.Example = 1, fmt.Sprintf("%s, and not %s", got, c.want)
	}
	note(wrong)
	note(kit.Measured{Name: "took", Unit: "s", Value: took.Seconds(), Bound: kit.AtMost(within.Seconds()), Exact: true})
	return nil
}

// world is a built chain.
type world struct {
	*kit.World
	Case
}

func (c Case) build(ctx context.Context, o kit.Options, seed uint64) (*world, error) {
	built, err := kit.NewWorld(c.topology(seed), o.Program, o.Report)
	if err != nil {
		return nil, err
	}
	w := &world{World: built, Case: c}
	if err := w.start(ctx, seed); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (c Case) topology(seed uint64) lab.Topology {
	end := func(host, device string, a netip.Addr) lab.Endpoint {
		return lab.Endpoint{Host: host, Device: device, Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}}
	}
	each := func(name string, s link.Settings, place uint64) (ab, ba link.Settings) {
		ab, ba = s, s
		ab.Loss, ba.Loss = c.loss[name][0], c.loss[name][1]
		ab.Seed, ba.Seed = seed+place, seed+place+1
		return ab, ba
	}
	t := lab.Topology{
		Hosts: []lab.HostSpec{
			{Name: "relay-a", Address: aOnAB}, {Name: "relay-b", Address: bOnAB}, {Name: "relay-c", Address: cOnBC}, {Name: "target", Address: targetAt},
		},
		Links: []lab.LinkSpec{
			{Name: "ab", A: end("relay-a", "ab", aOnAB), B: end("relay-b", "ab", bOnAB)},
			{Name: "bc", A: end("relay-b", "bc", bOnBC), B: end("relay-c", "bc", cOnBC)},
			{Name: "ct", A: end("relay-c", "ct", cOnCT), B: end("target", "ct", targetAt)},
		},
	}
	for i, s := range []link.Settings{pathAB, pathBC, pathCT} {
		l := &t.Links[i]
		if l.Name == "bc" && c.narrow {
			s = narrow
		}
		l.AB, l.BA = each(l.Name, s, uint64(10*i))
	}
	return t
}

// start starts the target, the relays, and the programs between them.
func (w *world) start(ctx context.Context, seed uint64) error {
	key := filepath.Join(w.Dir, "key")
	if err := integrity.NewKey().Create(key); err != nil {
		return err
	}
	if w.down != "target" {
		if err := w.serveTarget(ctx); err != nil {
			return err
		}
	}
	to := netip.AddrPortFrom
	toB, toC := to(bOnAB, relayPort), to(cOnBC, relayPort)
	if w.alter.leg != "" {
		host, at, lead := "relay-b", bOnAB, &toB
		if w.alter.leg == "bc" {
			host, at, lead = "relay-c", cOnBC, &toC
		}
		m, err := startMiddle(ctx, w.Host(host), to(at, middlePort).String(), lead.String(), w.alter, seed)
		if err != nil {
			return err
		}
		w.AtClose(m.close)
		*lead = to(at, middlePort)
	}
	if w.socat != "" {
		toC = to(cOnBC, middlePort)
		if err := w.startSocat(ctx, toC, to(cOnBC, relayPort)); err != nil {
			return err
		}
	}
	headers := [3]string{}
	if w.proxy {
		headers = [3]string{"proxy_protocol: {out: v2}", "proxy_protocol: {in: {trusted: any}, out: v1}", "proxy_protocol: {in: {trusted: any}}"}
	}
	for _, r := range []struct {
		name     string
		listen   netip.Addr
		to       netip.AddrPort
		next, on string
	}{
		{"relay-a", aOnAB, toB, "relay", headers[0]},
		{"relay-b", bOnAB, toC, "relay", headers[1]},
		{"relay-c", cOnBC, to(targetAt, targetPort), "target", headers[2]},
	} {
		if w.down == r.name {
			continue
		}
		p := w.Relay(r.name, r.name)
		config := fmt.Sprintf("control_socket: %s\nworkers: 1\ntunnels:\n  - name: main\n    listen: %v\n    forward: %v\n    check: {key_file: %s, next: %s}\n    %s\n",
			p.Socket(), to(r.listen, relayPort), r.to, key, r.next, r.on)
		if err := p.Start(ctx, config); err != nil {
			return err
		}
	}
	if w.cut != "" {
		return w.Link(w.cut).Change(func(s *link.Settings) { s.Down = true })
	}
	return nil
}

// serveTarget accepts connections, and sends and expects nothing.
func (w *world) serveTarget(ctx context.Context) error {
	return w.Serve(ctx, "target", targetPort, func(conn net.Conn) {
		if w.resets {
			_ = conn.(*net.TCPConn).SetLinger(0)
			return
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, _ = conn.Write([]byte("220 ready\r\n"))
		_, _ = io.Copy(io.Discard, conn)
	})
}

func (w *world) startSocat(ctx context.Context, at, to netip.AddrPort) error {
	cmd := exec.Command("socat", fmt.Sprintf("TCP4-LISTEN:%d,bind=%s,reuseaddr,fork", at.Port(), at.Addr()), "TCP4:"+to.String())
	host := w.Host("relay-c")
	if err := host.Start(cmd); err != nil {
		return err
	}
	w.AtClose(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return until(ctx, "socat does not listen", func() (bool, error) { return host.Listening(at.Port()) })
}

// check has relay-a check its tunnel.
func (w *world) check(ctx context.Context) (v Verdict, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, w.Program, "check", "main", "--json", "--control-socket", w.Relays[0].Socket())
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	err = w.Host("relay-a").Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	took = time.Since(begin)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return v, took, err
	}
	var report integrity.Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		return v, took, fmt.Errorf("longhaul check: %v: %s", cmd.ProcessState, strings.TrimSpace(stderr.String()))
	}
	if want := map[integrity.State]int{integrity.Whole: 0, integrity.Broken: 1, integrity.Lossy: 3}[report.State]; cmd.ProcessState.ExitCode() != want {
		return v, took, fmt.Errorf("longhaul check ends with %d for a tunnel that is %s", cmd.ProcessState.ExitCode(), report.State)
	}
	if w.socat != "" && (len(report.Chains[0].Hops) != 4 || report.Chains[0].Hops[1].Kind != integrity.KindOther) {
		return v, took, errors.New("longhaul check does not report the socat")
	}
	return verdictOf(report), took, nil
}

// verdictOf returns the hosts on either side of a report's fault.
func verdictOf(r integrity.Report) Verdict {
	v := Verdict{State: r.State}
	c := r.Chains[0]
	if c.Fault == nil {
		return v
	}
	v.Reason, v.From, v.Direction = c.Fault.Reason, "relay-a", c.Fault.Direction
	v.To = hostOf[c.Hops[c.Fault.Hop-1].Address.Addr()]
	for _, h := range c.Hops[:c.Fault.Hop-1] {
		if h.Kind == integrity.KindRelay {
			v.From = hostOf[h.Address.Addr()]
		}
	}
	return v
}

// until polls a condition until a timeout.
func until(ctx context.Context, otherwise string, cond func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		if ok, err := cond(); ok || err != nil {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return errors.New(otherwise)
		}
	}
}
