package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/find/doctor/examine"
	"longhaul/internal/find/measure"
	"longhaul/lab"
	"longhaul/lab/hosts"
)

// Mode is a way in which doctor looks at a connection.
type Mode string

// The modes.
const (
	Active   Mode = "active"  // doctor HOST
	Tested   Mode = "test"    // doctor --remote with --test
	Watched  Mode = "watch"   // doctor --remote without --test
	Captured Mode = "capture" // doctor --pcap, of the sending host
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{Active, Tested, Watched, Captured} }

// Pair is doctor's prediction of a relay pair, and what it brought.
type Pair struct {
	Mode       Mode         `json:"mode"`
	Verdict    doctor.Cause `json:"verdict,omitempty"`
	GoodputBps float64      `json:"goodput_bps"` // without relays
	// PredictedBps is 0 if doctor names no figure. It is the present goodput if
	// doctor expects no gain.
	PredictedBps float64 `json:"predicted_bps,omitempty"`
	AtLeast      bool    `json:"at_least,omitempty"`
	Next         string  `json:"next_limit,omitempty"`
	AchievedBps  float64 `json:"achieved_bps,omitempty"` // through the relays
	Error        string  `json:"error,omitempty"`        // why doctor has no verdict
}

// within reports whether the prediction held: 0.8 to 1.25 of what the pair brought, or
// no more than that if it was a minimum.
func (p Pair) within() bool {
	ratio := p.PredictedBps / p.AchievedBps
	return ratio <= 1.25 && (ratio >= 0.8 || p.AtLeast)
}

// predicted returns a mode's prediction of a report.
func predicted(mode Mode, r doctor.Report) Pair {
	p := Pair{Mode: mode, Verdict: r.Cause, GoodputBps: r.GoodputBps}
	if r.RelayPair != nil {
		p.PredictedBps, p.AtLeast, p.Next = r.RelayPair.PredictedBps, r.RelayPair.AtLeast, r.RelayPair.Next
	}
	return p
}

// relayed reports whether the lab can put a relay pair into the path, and the
// hindrance limits an end host or its program.
func (s Scenario) relayed() bool {
	path := func(c doctor.Cause) bool {
		return c == doctor.Congestion || c == doctor.BlackHole || c == doctor.AsymmetricMTU
	}
	return len(s.Hindrances) > 0 && !slices.ContainsFunc(s.Hindrances, path)
}

// pairs compares doctor's predictions of a relay pair with its goodput. The report is
// of the connection in seen.
func (s Scenario) pairs(ctx context.Context, o Options, report doctor.Report, seen files) ([]Pair, error) {
	all := []Pair{predicted(Tested, report)}
	observation, err := examine.ReadRecord(seen.record)
	if err != nil {
		return nil, err
	}
	observation.Capacity, observation.SmallSegments = nil, nil
	all = append(all, verdict(Watched, func() (doctor.Report, error) { return doctor.Diagnose(observation) }))
	if o.tcpdump != "" {
		all = append(all, verdict(Captured, func() (report doctor.Report, err error) {
			return report, runDoctor(ctx, nil, o.Program, &report, "--pcap", seen.capture)
		}))
	}
	relays := s.setup
	relays.relays = true
	brought, err := relays.goodput(ctx)
	if err != nil {
		return nil, fmt.Errorf("with a relay pair: %w", err)
	}
	for i := range all {
		all[i].AchievedBps = brought
	}
	hosts, same, ok := s.atHosts()
	if !ok {
		return all, nil
	}
	active := verdict(Active, func() (doctor.Report, error) { return hosts.transfer(ctx, o.Program, seen.active) })
	if active.AchievedBps = brought; !same {
		hosts.relays = true
		if active.AchievedBps, err = hosts.goodput(ctx); err != nil {
			return nil, fmt.Errorf("with a relay pair between limited hosts: %w", err)
		}
	}
	return append(all, active), nil
}

// verdict has doctor predict in one mode.
func verdict(mode Mode, diagnose func() (doctor.Report, error)) Pair {
	r, err := diagnose()
	if err != nil {
		return Pair{Mode: mode, Error: err.Error()}
	}
	return predicted(mode, r)
}

// atHosts returns the setup with the program's limits as limits of its host, which also
// hold for doctor's own connection. It reports whether the two are the same, and
// whether there is such a setup.
func (s Scenario) atHosts() (at setup, same, ok bool) {
	at = s.setup
	if len(s.Hindrances) != 1 {
		return at, false, false
	}
	switch s.Hindrances[0] {
	case doctor.ReceiverWindow:
		at.hostWindowBytes, at.windowBytes, at.receiveBufferBytes = max(s.windowBytes, s.receiveBufferBytes, s.hostWindowBytes), 0, 0
		return at, s.hostWindowBytes > 0, true
	case doctor.SendBuffer:
		at.hostSendBufferBytes, at.traffic.SendBufferBytes = s.traffic.SendBufferBytes, 0
		return at, false, true
	case doctor.WindowScaling, doctor.SegmentSize, doctor.RandomLoss, doctor.Reordering, doctor.Policer:
		return at, true, true
	}
	return at, false, false // a limit of the program, which doctor's own is not
}

// transfer has doctor make a connection of its own.
func (s setup) transfer(ctx context.Context, program, record string) (report doctor.Report, err error) {
	built, err := lab.Build(s.topology())
	if err != nil {
		return report, err
	}
	defer built.Close()
	from, to := s.ends()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	if err := serve(serving, built.Host(to)); err != nil {
		return report, err
	}
	return report, runDoctor(ctx, built.Host(from), program, &report, s.far().String(), "--time", watched.String(), "--record", record)
}

// serve runs a measure server in a host until the context ends.
func serve(ctx context.Context, h *hosts.Host) error {
	return h.Do(func() error {
		l, err := setup{}.listen(ctx, measure.DefaultPort)
		if err == nil {
			go func() { _ = (&measure.Server{}).Serve(ctx, l) }()
		}
		return err
	})
}

// runDoctor runs longhaul doctor in a host, or in this one, and reads its report.
func runDoctor(ctx context.Context, h *hosts.Host, program string, report *doctor.Report, args ...string) error {
	cmd := exec.CommandContext(ctx, program, append([]string{"doctor", "--json"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := cmd.Start
	if h != nil {
		start = func() error { return h.Start(cmd) }
	}
	if err := start(); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil && !doctor.HasVerdict(cmd.ProcessState.ExitCode()) {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return json.Unmarshal(stdout.Bytes(), report)
}

// startRelays starts a relay at each site, and returns the address of the first.
func (st *stage) startRelays(ctx context.Context) (netip.AddrPort, error) {
	relays := &lab.Stage{Lab: st.Lab, Program: st.program}
	st.closers = append(st.closers, func() { relays.Stop() })
	if err := relays.AllowBuffers(); err != nil {
		return netip.AddrPort{}, err
	}
	target := netip.AddrPortFrom(st.far(), trafficPort)
	for _, one := range []struct {
		host            string
		listen, forward netip.AddrPort
	}{
		{"relay-b", lab.RelayBListens, target},
		{"relay-a", lab.RelayAListens, lab.RelayBListens},
	} {
		_, err := relays.Start(ctx, one.host, lab.RelayPort, st.program, "relay",
			"--listen", one.listen.String(), "--forward", one.forward.String(), "--control-socket", "off")
		if err != nil {
			return netip.AddrPort{}, err
		}
	}
	return lab.RelayAListens, nil
}

// files are the files of a scenario.
type files struct{ record, capture, active string }

// fileNames returns the names of a scenario's files in a directory.
func (s Scenario) fileNames(dir string) files {
	return files{filepath.Join(dir, s.Name+".json"), filepath.Join(dir, s.Name+".pcap"), filepath.Join(dir, s.Name+"-active.json")}
}

// startCapture captures the connection at the sending host until the stage closes.
func (st *stage) startCapture(ctx context.Context, program, file string) error {
	from, _ := st.ends()
	device := "lan"
	if st.betweenRouter {
		device = "wan"
	}
	cmd := exec.Command(program, "-i", device, "-s", "128", "-U", "--immediate-mode", "-B", "16384", "-n", "-w", file,
		"tcp", "port", fmt.Sprint(trafficPort))
	if os.Geteuid() == 0 {
		cmd.Args = append(cmd.Args[:1], append([]string{"-Z", "root"}, cmd.Args[1:]...)...)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := st.Host(from).Start(cmd); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	st.stopCapture = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
	}
	st.closers = append(st.closers, st.stopCapture)
	// tcpdump writes the header of the file once it captures.
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	deadline := time.After(20 * time.Second)
	for {
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			return nil
		}
		select {
		case <-poll.C:
		case <-ended:
			return errors.New("tcpdump ended at once: " + strings.TrimSpace(said.String()))
		case <-deadline:
			return errors.New("tcpdump does not capture")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
