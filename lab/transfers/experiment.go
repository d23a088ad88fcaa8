// Package transfers repeats the published experiments that send data from one
// site to the other in a few ways.
package transfers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"longhaul/internal/words/display"
	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/hosts"
	"longhaul/lab/progress"
	"longhaul/lab/sandbox"
)

// Experiment is a published measurement that the lab repeats: one bulk
// transfer from host-a to host-b in each of its cases.
type Experiment struct {
	Name       string
	Summary    string // one line
	Source     string // the published report
	Conditions lab.Conditions
	Cases      []Case
}

// Case is one way of getting the data across.
type Case struct {
	Name  string
	About string // what stands between the hosts, in a few words

	// Reference is what the report says of this case, in its own units, and
	// ReferenceBps the same as a range of goodput in bits per second. Both are
	// empty where it says nothing.
	Reference    string
	ReferenceBps *[2]float64

	Bytes, QuickBytes int64 // how much to send

	// Missing says why the case cannot run on this machine; empty if it can.
	// Nil means that it can.
	Missing func() string

	// Adjust makes the experiment's conditions those of the case; nil leaves
	// them.
	Adjust func(*lab.Conditions)
	// From and To are the hosts that send and receive; host-a and host-b if
	// they are empty.
	From, To string
	Sockets  lab.Sockets
	// During ends a case with what has arrived by then, if its data take longer; 0 waits
	// for the end. QuickDuring is that of a first look.
	During, QuickDuring time.Duration
	// GiveUp ends a case that is expected to hang, with what has arrived by
	// then; 0 waits for the end.
	GiveUp time.Duration
	// SameAddress makes it an error if the receiver sees another address or port than
	// the sender's.
	SameAddress bool
	// Capture has the handshake and the segments on the WAN read, at site A.
	Capture bool

	// Setup starts what the data goes through, and returns the address that
	// the sender connects to.
	Setup func(context.Context, *lab.Stage) (netip.AddrPort, error)
}

// conditions are those of the case.
func (c Case) conditions(of lab.Conditions) lab.Conditions {
	if c.Adjust != nil {
		c.Adjust(&of)
	}
	return of
}

func (c Case) hosts() (from, to string) { return cmp.Or(c.From, "host-a"), cmp.Or(c.To, "host-b") }

// Experiments are all of them, in the order of their reports.
func Experiments() []Experiment {
	return []Experiment{Mitre(), asymmetricMTU(), segmentSize(), lossyRelay(), lossyLFN()}
}

// Options say how an experiment is run.
type Options struct {
	Program string   // the longhaul binary that relays run
	Repeat  int      // runs of each case; 0 means 1
	Quick   bool     // less data, for a first look
	Seed    uint64   // of the link's random choices; 0 keeps the experiment's own
	Cases   []string // names of the cases to run; empty means all

	// During replaces that of the cases that have one; 0 keeps theirs.
	During time.Duration
	// MaxTime ends each transfer, with what has arrived by then; 0 waits for the
	// end of the data.
	MaxTime time.Duration

	Report progress.Reporter
}

// Result is an experiment's outcome. Its JSON form is documented in docs/lab.md.
type Result struct {
	Experiment string         `json:"experiment"`
	Conditions map[string]any `json:"conditions"`
	Cases      []CaseResult   `json:"cases"`
	Skipped    []Skipped      `json:"skipped,omitempty"`
}

// Skipped is a case that this machine cannot run.
type Skipped struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// CaseResult is the outcome of a case: medians over its runs.
type CaseResult struct {
	Name  string `json:"name"`
	About string `json:"about"`

	GoodputBps      float64     `json:"goodput_bps"`
	GoodputMinBps   float64     `json:"goodput_min_bps"`
	GoodputMaxBps   float64     `json:"goodput_max_bps"`
	LimitBps        float64     `json:"limit_bps"`
	Seconds         float64     `json:"seconds"`
	Bytes           int64       `json:"bytes"`
	Runs            int         `json:"runs"`
	RetransmitRatio float64     `json:"retransmit_ratio"` // segments sent again ÷ segments sent, by the WAN's sender
	RelayCPUPerGB   *float64    `json:"relay_cpu_seconds_per_gb"`
	ReferenceBps    *[2]float64 `json:"reference_bps"`
	Reference       string      `json:"reference"`
	Segments        *Segments   `json:"segments,omitempty"`
	// What the case adds to the experiment's conditions, or has in their place.
	RTTMs            float64 `json:"rtt_ms"`
	PacketsPerSecond int64   `json:"packet_rate,omitempty"`
	WindowBytes      int     `json:"window_bytes,omitempty"`
	PacingBps        int64   `json:"pacing_bps,omitempty"`
	// Hung is how many of the runs did not come to an end.
	Hung int `json:"hung,omitempty"`
}

// Segments is what a capture on the WAN saw of a case's last run, at site A.
type Segments struct {
	// What the ends announced, as it left or reached site A. A program at that
	// device changes what arrives behind the place where it is captured.
	MSSOfA int `json:"mss_of_a"`
	MSSOfB int `json:"mss_of_b"`
	// Sent is the size of the segments that carried most of the data, bytes of
	// data, and Share the share of all segments that had it.
	Sent  int     `json:"sent"`
	Share float64 `json:"share"`
}

// sample is one run of a case.
type sample struct {
	transfer
	retransmitRatio float64
	relayCPU        time.Duration
	segments        *Segments
}

// Run runs an experiment. The process must be inside a sandbox. The repeats
// go through the cases in turn, so that a change of the machine's speed meets
// all of them.
func (e Experiment) Run(ctx context.Context, o Options) (Result, error) {
	if o.Repeat == 0 {
		o.Repeat = 1
	}
	conditions := e.Conditions
	if o.Seed != 0 {
		conditions.Seed = o.Seed
	}
	result := Result{Experiment: e.Name, Conditions: describe(conditions, e.Source)}
	cases, err := e.choose(o.Cases)
	if err != nil {
		return result, err
	}
	cases = slices.DeleteFunc(cases, func(c Case) bool {
		if c.Missing == nil {
			return false
		}
		reason := c.Missing()
		if reason == "" {
			return false
		}
		o.Report.Notef("%s: not run: %s", c.Name, reason)
		result.Skipped = append(result.Skipped, Skipped{c.Name, reason})
		return true
	})

	samples := make([][]sample, len(cases))
	for run := 1; run <= o.Repeat; run++ {
		for i, c := range cases {
			if o.During > 0 && c.During > 0 {
				c.During, c.QuickDuring = o.During, o.During
			}
			if o.Quick {
				c.Bytes, c.During = c.QuickBytes, c.QuickDuring
			}
			s, err := e.runCase(ctx, c, c.conditions(conditions), run, o)
			if err != nil {
				return result, fmt.Errorf("%s, case %s: %w", e.Name, c.Name, err)
			}
			samples[i] = append(samples[i], s)
		}
	}
	for i, c := range cases {
		result.Cases = append(result.Cases, summarize(c, samples[i], c.conditions(conditions)))
	}
	return result, nil
}

// Check refuses options that name no case of the experiment.
func (e Experiment) Check(o Options) error {
	_, err := e.choose(o.Cases)
	return err
}

// choose returns the cases of the given names, or all.
func (e Experiment) choose(names []string) ([]Case, error) {
	if len(names) == 0 {
		return slices.Clone(e.Cases), nil
	}
	var chosen []Case
	for _, name := range names {
		i := slices.IndexFunc(e.Cases, func(c Case) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("%s has no case %q: it has %s", e.Name, name, strings.Join(e.CaseNames(), ", "))
		}
		chosen = append(chosen, e.Cases[i])
	}
	return chosen, nil
}

// CaseNames are the names of all cases.
func (e Experiment) CaseNames() []string {
	names := make([]string, len(e.Cases))
	for i, c := range e.Cases {
		names[i] = c.Name
	}
	return names
}

// runCase builds a lab of its own for one run, so that no run learns from
// another.
func (e Experiment) runCase(ctx context.Context, c Case, conditions lab.Conditions, run int, o Options) (s sample, err error) {
	topology := lab.TwoSites(conditions)
	if c.Sockets.CongestionControl != "" {
		for i := range topology.Hosts {
			topology.Hosts[i].TCP.CongestionControl = "" // a route's would replace the socket's
		}
	}
	built, err := lab.Build(topology)
	if err != nil {
		return s, err
	}
	defer built.Close()
	from, to := c.hosts()
	st := &stage{&lab.Stage{Lab: built, Program: o.Program, Report: o.Report}, from}
	defer st.Stop()
	addr, err := c.Setup(ctx, st.Stage)
	if err != nil {
		return s, err
	}

	var received atomic.Int64
	watched := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(watched)
		watch(c, run, o, &received, finished)
	}()
	sender := built.Host(st.wanSender())
	before, err := sender.TCPSegments()
	var stopCapture func() *Segments
	if err == nil && c.Capture {
		stopCapture, err = st.capture()
	}
	if err == nil {
		s.transfer, err = c.transfer(ctx, o, built.Host(from), built.Host(to), addr, &received)
	}
	if stopCapture != nil {
		s.segments = stopCapture()
	}
	close(finished)
	<-watched
	if err == nil && c.SameAddress && s.seen != s.sender {
		err = fmt.Errorf("the receiver sees %s, the sender is %s", s.seen, s.sender)
	}
	if err != nil {
		return s, st.Explain(err)
	}
	after, err := sender.TCPSegments()
	if err != nil {
		return s, err
	}
	if sent := after.Sent - before.Sent; sent > 0 {
		s.retransmitRatio = float64(after.Retransmitted-before.Retransmitted) / float64(sent)
	}
	s.relayCPU = st.Stop()
	if lost := built.LostByMachine(); lost > 0 {
		o.Report.Notef("%s: %d packets were lost beside the link's settings: the machine is too busy for this rate", c.Name, lost)
	}
	return s, nil
}

// errTimeUp is why a transfer is ended before all of its data has arrived.
var errTimeUp = errors.New("the transfer's time is up")

// transfer moves the case's data, for as long as the case and the options allow.
func (c Case) transfer(ctx context.Context, o Options, from, to *hosts.Host, addr netip.AddrPort, received *atomic.Int64) (transfer, error) {
	longest := cmp.Or(c.GiveUp, c.During)
	if o.MaxTime > 0 && (longest == 0 || o.MaxTime < longest) {
		longest = o.MaxTime
	}
	if longest > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, longest, errTimeUp)
		defer cancel()
	}
	t, err := bulk(ctx, from, to, addr, c.Bytes, c.Sockets, received)
	if !errors.Is(err, errTimeUp) {
		return t, err
	}
	if longest == o.MaxTime {
		o.Report.Notef("%s: ended after %v with %d %% of the data: this machine is slow or busy", c.Name, longest, received.Load()*100/c.Bytes)
	}
	return transfer{Bytes: received.Load(), Elapsed: longest}, nil
}

// watch reports progress until finished is closed.
func watch(c Case, run int, o Options, received *atomic.Int64, finished <-chan struct{}) {
	name, runs := c.Name, max(o.Repeat, 1)
	if runs > 1 {
		name = fmt.Sprintf("%s %d/%d", name, run, runs)
	}
	const every = 250 * time.Millisecond
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	start, last, lastBytes := time.Now(), time.Now(), int64(0)
	for {
		select {
		case <-finished:
			return
		case now := <-ticker.C:
			n := received.Load()
			share := float64(n) / float64(c.Bytes)
			o.Report.Passing(run, runs, "%-26s %s %3.0f %%  %10s  %3.0f s", name, display.Bar(share), 100*share,
				display.Rate(float64(n-lastBytes)*8/now.Sub(last).Seconds()), now.Sub(start).Seconds())
			last, lastBytes = now, n
		}
	}
}

func summarize(c Case, samples []sample, conditions lab.Conditions) CaseResult {
	of := func(figure func(sample) float64) float64 { return stats.Median(samples, figure) }
	least, most := stats.Spread(samples, sample.goodputBps)
	r := CaseResult{
		Name: c.Name, About: c.About, LimitBps: conditions.LimitBps(),
		GoodputBps: of(sample.goodputBps), GoodputMinBps: least, GoodputMaxBps: most,
		Seconds:         of(func(s sample) float64 { return s.Elapsed.Seconds() }),
		Bytes:           samples[0].Bytes,
		Runs:            len(samples),
		RetransmitRatio: of(func(s sample) float64 { return s.retransmitRatio }),
		ReferenceBps:    c.ReferenceBps, Reference: c.Reference,
		Segments: samples[len(samples)-1].segments,
		RTTMs:    float64(conditions.RTT) / float64(time.Millisecond), PacketsPerSecond: conditions.PacketsPerSecond,
		WindowBytes: c.Sockets.WindowBytes, PacingBps: c.Sockets.PacingBps,
	}
	for _, s := range samples {
		if c.GiveUp > 0 && s.Elapsed == c.GiveUp {
			r.Hung++
		}
	}
	cpu := of(func(s sample) float64 { return s.relayCPU.Seconds() * 1e9 / float64(s.Bytes) })
	if cpu > 0 {
		r.RelayCPUPerGB = &cpu
	}
	return r
}

// describe returns the conditions for a result.
func describe(c lab.Conditions, source string) map[string]any {
	d := map[string]any{
		"source":         source,
		"rtt_ms":         float64(c.RTT) / float64(time.Millisecond),
		"rate_bps":       c.RateBps,
		"loss_ab":        c.Loss.Probability,
		"loss_ba":        c.LossBA.Probability,
		"queue_bdp":      c.QueueBDP,
		"atm":            c.ATM,
		"packet_rate":    c.PacketsPerSecond,
		"mtu_ab":         c.MTUAB,
		"mtu_ba":         c.MTUBA,
		"seed":           c.Seed,
		"relay_hosts":    "Linux's own defaults: cubic, tcp_rmem 4096 131072 6291456, tcp_wmem 4096 16384 4194304",
		"kernel":         lab.KernelRelease(),
		"user_namespace": sandbox.UserNamespace(),
	}
	if c.ClassicEndHost {
		d["end_hosts"] = fmt.Sprintf("NewReno, window %d bytes", lab.ClassicWindowBytes)
		d["window_bytes"] = lab.ClassicWindowBytes
		d["window_over_rtt_bps"] = lab.ClassicWindowBytes * 8 / c.RTT.Seconds()
	}
	return d
}
