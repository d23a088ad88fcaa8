package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/find/doctor"
	"longhaul/lab"
	"longhaul/lab/progress"
)

// Options are the options of a run.
type Options struct {
	Program  string // the longhaul binary
	Parallel int    // scenarios at once
	// Tolerant is the congestion control of the remedy of losses.
	Tolerant string
	Keep     string // directory for the doctor's observations, created if missing; empty keeps none
	Report   progress.Reporter

	tcpdump string // the program; empty: no captures
}

// Result is the result of a scenario.
type Result struct {
	Name       string         `json:"name"`
	Setup      string         `json:"setup"`
	Hindrances []doctor.Cause `json:"hindrances"`
	GoodputBps float64        `json:"goodput_bps"`
	// Without is the goodput without a hindrance.
	Without map[doctor.Cause]float64 `json:"without_bps,omitempty"`
	// Causes are the hindrances whose removal brings at least a fifth more, most
	// effective first. None: a healthy scenario.
	Causes []doctor.Cause `json:"causes"`
	// Verdict is the doctor's verdict. Predicted is its prediction for the first
	// remedy; 0 without one.
	Verdict      doctor.Cause `json:"verdict"`
	PredictedBps float64      `json:"predicted_bps,omitempty"`
	AchievedBps  float64      `json:"achieved_bps,omitempty"`
	Right        bool         `json:"right"`
	// Pairs has the predictions of a relay pair; none if it changes nothing.
	Pairs []Pair `json:"relay_pair,omitempty"`
	Error string `json:"error,omitempty"`
}

// Ports of the hosts' programs.
const (
	trafficPort = 5001
	othersPort  = 5002
)

// watched is the duration of the doctor's observation.
const watched = 5 * time.Second

// warmUp is the duration of a connection before the observation.
func (s setup) warmUp() time.Duration {
	return max(2500*time.Millisecond, 25*s.conditions.RTT)
}

// Run runs scenarios. The process must be inside a sandbox.
func Run(ctx context.Context, scenarios []Scenario, o Options) (Outcome, error) {
	if o.Keep == "" {
		dir, err := os.MkdirTemp("", "longhaul-diagnosis-")
		if err != nil {
			return Outcome{}, err
		}
		defer os.RemoveAll(dir)
		o.Keep = dir
	}
	if err := os.MkdirAll(o.Keep, 0o755); err != nil {
		return Outcome{}, err
	}
	o.tcpdump = lab.FindProgram("tcpdump")
	if o.tcpdump == "" {
		o.Report.Notef("no verdicts on captures: %s", lab.MissingProgram("tcpdump", "tcpdump"))
	}
	results := make([]Result, len(scenarios))
	next := make(chan int)
	var workers sync.WaitGroup
	var mu sync.Mutex // of done
	done := 0
	var processor sync.Mutex
	for i := range scenarios {
		scenarios[i].tolerant, scenarios[i].program = o.Tolerant, o.Program
	}
	for range max(o.Parallel, 1) {
		workers.Go(func() {
			for i := range next {
				if slices.Contains(scenarios[i].Hindrances, doctor.CPU) {
					processor.Lock() // one of these at a time leaves the others a CPU
				}
				results[i] = run(ctx, scenarios[i], o)
				if slices.Contains(scenarios[i].Hindrances, doctor.CPU) {
					processor.Unlock()
				}
				mu.Lock()
				if ctx.Err() == nil {
					done++
					results[i].report(o.Report, done, len(scenarios))
				}
				mu.Unlock()
			}
		})
	}
	for i := range scenarios {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
	if ctx.Err() != nil {
		return Outcome{}, context.Cause(ctx)
	}
	outcome := summarize(results)
	outcome.Tolerant = o.Tolerant
	return outcome, nil
}

// report reports the result of the last completed scenario.
func (r Result) report(to progress.Reporter, done, of int) {
	said := "right"
	switch {
	case r.Error != "":
		said = r.Error
	case !r.Right:
		said = "wrong"
	}
	to.Step(done, of, "%4d/%d  %-22s %-16s %s", done, of, r.Name, r.Verdict, said)
}

// run has the doctor diagnose a scenario, and measures the goodput without each
// hindrance and with the doctor's remedy.
func run(ctx context.Context, s Scenario, o Options) Result {
	r := Result{Name: s.Name, Setup: s.String(), Hindrances: s.Hindrances, Without: map[doctor.Cause]float64{}}
	report, goodput, err := s.examine(ctx, o)
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.GoodputBps, r.Verdict = goodput, report.Cause
	if len(report.Findings) > 0 {
		r.PredictedBps = report.Findings[0].PredictedBps
	}
	removed := s.Hindrances
	if first := report.Cause; !slices.Contains(removed, first) && !first.IsNone() {
		removed = append(slices.Clone(removed), first)
	}
	for _, cause := range removed {
		if cause.IsNone() {
			continue // no remedy
		}
		without, err := s.without(cause).goodput(ctx)
		if gain := without / r.GoodputBps; err == nil && gain > 0.7 && gain < 1.4 {
			// Near the bound between a cause and none, or worse than before:
			// one run more, and the mean of both.
			var again float64
			again, err = s.without(cause).goodput(ctx)
			without = (without + again) / 2
		}
		if err != nil {
			r.Error = fmt.Sprintf("without %s: %v", cause, err)
			return r
		}
		r.Without[cause] = without
	}
	r.judge()
	if s.relayed() {
		if r.Pairs, err = s.pairs(ctx, o, report, s.fileNames(o.Keep)); err != nil {
			r.Error = err.Error()
		}
	}
	return r
}

// stage is a scenario's lab with its traffic.
type stage struct {
	*lab.Lab
	setup
	received atomic.Int64
	closers  []func()

	stopCapture func()
}

// capturing is a capture of a stage's connection.
type capturing struct{ program, file string }

// open builds the lab and starts the traffic, and a capture before if it has a program.
func (s setup) open(ctx context.Context, c capturing) (st *stage, err error) {
	st = &stage{setup: s}
	st.Lab, err = lab.Build(s.topology())
	if err != nil {
		return nil, err
	}
	st.closers = append(st.closers, func() { st.Lab.Close() })
	if s.blockICMP {
		err = errors.Join(st.Host("relay-a").BlockICMP(), st.Host("relay-b").BlockICMP())
	}
	if err == nil && c.program != "" {
		err = st.startCapture(ctx, c.program, c.file)
	}
	if err == nil {
		err = st.start(ctx)
	}
	if err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

func (st *stage) close() {
	for _, c := range slices.Backward(st.closers) {
		c()
	}
}

// far returns the host of the receiving end.
func (s setup) far() netip.Addr {
	if s.betweenRouter {
		return lab.WANB
	}
	return lab.HostB
}

// start starts the receiver, the others, and the sender, which is a separate program.
func (st *stage) start(ctx context.Context) error {
	from, to := st.ends()
	listen := func(port uint16, options setup, readBps int64, count func(int)) error {
		var l net.Listener
		err := st.Host(to).Do(func() (err error) {
			l, err = options.listen(ctx, port)
			return err
		})
		if err != nil {
			return err
		}
		st.closers = append(st.closers, receive(l, readBps, count).close)
		return nil
	}
	if err := listen(trafficPort, st.setup, st.readBps, func(n int) { st.received.Add(int64(n)) }); err != nil {
		return err
	}
	if st.others > 0 {
		if err := listen(othersPort, setup{}, 0, func(int) {}); err != nil {
			return err
		}
		for range st.others {
			if err := st.send(ctx, from, Traffic{To: netip.AddrPortFrom(st.far(), othersPort)}, false); err != nil {
				return err
			}
		}
	}
	traffic := st.traffic
	traffic.To = netip.AddrPortFrom(st.far(), trafficPort)
	if st.relays {
		var err error
		if traffic.To, err = st.startRelays(ctx); err != nil {
			return err
		}
	}
	return st.send(ctx, from, traffic, true)
}

// send starts a sending program, or sends from this one.
func (st *stage) send(ctx context.Context, from string, t Traffic, asProgram bool) error {
	if !asProgram {
		ctx, cancel := context.WithCancel(ctx)
		st.closers = append(st.closers, cancel)
		go func() { _ = st.Host(from).Do(func() error { return t.Send(ctx) }) }()
		return nil
	}
	what, err := json.Marshal(t)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", sender)
	cmd.Stdin = bytes.NewReader(what)
	if err := st.Host(from).Start(cmd); err != nil {
		return err
	}
	st.closers = append(st.closers, func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return nil
}

// listen listens like the receiving program.
func (s setup) listen(ctx context.Context, port uint16) (net.Listener, error) {
	config := net.ListenConfig{Control: func(network, address string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) {
			if s.receiveBufferBytes > 0 {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, s.receiveBufferBytes)
			} else {
				err = lab.Sockets{WindowBytes: s.windowBytes}.Receiver(int(fd))
			}
		})
		return errors.Join(controlErr, err)
	}}
	config.SetMultipathTCP(false)
	return config.Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
}

// goodput returns the receiver's goodput in the time of the doctor's observation, in
// bits per second.
func (s setup) goodput(ctx context.Context) (float64, error) {
	st, err := s.open(ctx, capturing{})
	if err != nil {
		return 0, err
	}
	defer st.close()
	if err := sleepUntil(ctx, time.Now().Add(s.warmUp())); err != nil {
		return 0, err
	}
	return st.during(ctx, watched)
}

// during returns the goodput over a time.
func (st *stage) during(ctx context.Context, d time.Duration) (float64, error) {
	begin, before := time.Now(), st.received.Load()
	if err := sleepUntil(ctx, begin.Add(d)); err != nil {
		return 0, err
	}
	return float64(st.received.Load()-before) * 8 / time.Since(begin).Seconds(), nil
}

// examine has the doctor diagnose the scenario's connection. It keeps the observation
// and a capture.
func (s Scenario) examine(ctx context.Context, o Options) (report doctor.Report, goodput float64, err error) {
	kept := s.fileNames(o.Keep)
	c := capturing{file: kept.capture}
	if s.relayed() {
		c.program = o.tcpdump
	}
	st, err := s.open(ctx, c)
	if err != nil {
		return report, 0, err
	}
	defer st.close()
	from, to := s.ends()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	if err := serve(serving, st.Host(to)); err != nil {
		return report, 0, err
	}
	if err := sleepUntil(ctx, time.Now().Add(s.warmUp())); err != nil {
		return report, 0, err
	}
	done := make(chan error, 1)
	go func() {
		done <- runDoctor(ctx, st.Host(from), o.Program, &report, "--remote", netip.AddrPortFrom(s.far(), trafficPort).String(),
			"--time", watched.String(), "--test", "--record", kept.record)
	}()
	goodput, err = st.during(ctx, watched)
	if st.stopCapture != nil {
		st.stopCapture()
	}
	return report, goodput, errors.Join(err, <-done)
}
