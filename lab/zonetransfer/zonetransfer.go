// Package zonetransfer times zone transfers between two name servers over a lossy
// long path, and compares the zones of both.
package zonetransfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/progress"
	"longhaul/lab/sandbox"
)

// Options say what is run: the experiment of the report on far name servers, with a
// primary at site A and a secondary at site B, and a lossy long path between them.
type Options struct {
	Conditions lab.Conditions
	Names      int // hosts in the zone: about 276 bytes of a transfer each, signed
	Changes    int // incremental ones, of changedNames addresses each
	// Patience is how long a transfer may take before it counts as unfinished.
	Patience time.Duration
	// Algorithms are the congestion controls of the primary that are run
	// without relays.
	Algorithms []string
	// WindowBDP, if above 0, gives the name servers' hosts buffers for a window
	// of so many bandwidth-delay products; else they have the kernel's own.
	WindowBDP float64
	Cases     []string // names of those to run; empty means all
	Repeat    int
	Program   string // the longhaul binary
	Report    progress.Reporter
}

// changedNames is how many names get another address by an incremental change.
const changedNames = 100

// FullNames makes a signed zone of 50 MB; QuickNames one of 5 MB.
const (
	FullNames  = 182_000
	QuickNames = 18_200
)

// Result is the outcome. Its JSON form is documented in docs/lab.md.
type Result struct {
	Experiment string         `json:"experiment"`
	Conditions map[string]any `json:"conditions"`
	Zone       Size           `json:"zone"`
	Cases      []Case         `json:"cases"`
}

// Size describes the zone.
type Size struct {
	Names          int     `json:"names"`
	TransferBytes  int64   `json:"transfer_bytes"` // of a full transfer; 0 if none was finished
	Changes        int     `json:"changes"`
	ChangedNames   int     `json:"changed_names_each"`
	SigningSeconds float64 `json:"signing_seconds"`
}

// Case is the outcome of a way across: medians over its runs.
type Case struct {
	Name  string `json:"name"`
	About string `json:"about"`

	// Full transfer (RFC 5936).
	AXFRFinished     bool     `json:"axfr_finished"` // in every run
	AXFRSeconds      *float64 `json:"axfr_seconds"`  // from the first packet until the secondary serves the zone
	AXFRMinSeconds   *float64 `json:"axfr_min_seconds"`
	AXFRMaxSeconds   *float64 `json:"axfr_max_seconds"`
	AXFRWireSeconds  *float64 `json:"axfr_wire_seconds"`      // the transfer alone, as the secondary logs it
	AXFRBps          float64  `json:"axfr_bps"`               // while it lasted; of what had come in if it was not finished
	AXFRSecondsTotal *float64 `json:"axfr_seconds_estimated"` // for the whole zone at that rate

	// Incremental transfers (RFC 1995), one for each change: from the moment the
	// secondary is told to refresh until it serves the change.
	IXFRSecondsP50 *float64 `json:"ixfr_seconds_p50"`
	IXFRSecondsMax *float64 `json:"ixfr_seconds_max"`
	IXFRUnfinished int      `json:"ixfr_unfinished"` // changes that took longer than the patience
	IXFRBytes      int64    `json:"ixfr_bytes"`      // of one change, median
	IXFRFull       int      `json:"ixfr_full"`       // changes that came as a full transfer

	Identical bool `json:"identical"` // the secondary's zone is the primary's, after each kind of transfer
	Runs      int  `json:"runs"`
}

// run is one run of a case.
type run struct {
	axfrSeconds, axfrWire float64 // 0 if unfinished
	axfrBps               float64
	axfrBytes             int64 // 0 if unfinished
	ixfrSeconds           []float64
	ixfrBytes             []int64
	ixfrUnfinished        int
	ixfrFull              int
	identical             bool
}

// way is a way across.
type way struct {
	name, about string
	congctl     string // of host-a's routes; empty: stock
	viaRelays   bool
}

func (z Options) cases() []way {
	var all []way
	for _, name := range z.Algorithms {
		all = append(all, way{name: "direct-" + name, about: "host to host, " + name + " on the primary", congctl: name})
	}
	return append(all, way{name: "relay", about: "through a longhaul pair as it sets itself up", viaRelays: true})
}

// CaseNames are all that there are.
func (z Options) CaseNames() []string {
	var names []string
	for _, c := range z.cases() {
		names = append(names, c.name)
	}
	return names
}

// Check names what makes no sense, or what the machine lacks.
func (z Options) Check() error {
	for _, name := range z.Cases {
		if !slices.Contains(z.CaseNames(), name) {
			return fmt.Errorf("zone-transfer has no case %q: it has %s", name, strings.Join(z.CaseNames(), ", "))
		}
	}
	switch {
	case z.Names < 1 || z.Names > 5_000_000:
		return fmt.Errorf("a zone of %d names: choose 1 to 5000000", z.Names)
	case z.Changes < 0 || z.Changes > 1000:
		return fmt.Errorf("%d changes: choose 0 to 1000", z.Changes)
	case z.Repeat < 1:
		return fmt.Errorf("%d runs: choose 1 or more", z.Repeat)
	case z.Patience < time.Second:
		return fmt.Errorf("a patience of %v: choose 1s or more", z.Patience)
	case z.Conditions.RateBps == 0 || z.Conditions.RTT <= 0:
		return errors.New("the path has no rate or no delay: choose both")
	}
	ab, ba := z.Conditions.Directions()
	return errors.Join(ab.Validate(), ba.Validate())
}

// Missing says why the experiment cannot run here; empty if it can.
func (z Options) Missing() string {
	for _, name := range []string{"knotd", "knotc"} {
		if reason := lab.MissingProgram(name, "knot"); reason != "" {
			return reason
		}
	}
	return ""
}

// Run runs the experiment. The process must be inside a sandbox. A repeat has
// sites and a primary of its own, through which its cases go in turn, each with
// a secondary of its own and the same sequence of losses.
func (z Options) Run(ctx context.Context) (Result, error) {
	result := Result{Experiment: "zone-transfer", Conditions: z.describe(), Zone: Size{Names: z.Names, Changes: z.Changes, ChangedNames: min(changedNames, z.Names)}}
	if err := z.Check(); err != nil {
		return result, err
	}
	if reason := z.Missing(); reason != "" {
		return result, errors.New(reason)
	}
	cases := slices.DeleteFunc(z.cases(), func(c way) bool { return len(z.Cases) > 0 && !slices.Contains(z.Cases, c.name) })
	runs := make([][]run, len(cases))
	for repeat := range z.Repeat {
		if err := z.round(ctx, repeat, cases, runs, &result.Zone); err != nil {
			return result, err
		}
	}
	for i, c := range cases {
		result.Cases = append(result.Cases, summarize(c, runs[i], result.Zone.TransferBytes))
	}
	return result, nil
}

// round makes one run of each case.
func (z Options) round(ctx context.Context, repeat int, cases []way, runs [][]run, size *Size) error {
	conditions := z.Conditions
	conditions.Seed += uint64(repeat)
	built, err := lab.Build(lab.TwoSites(conditions))
	if err != nil {
		return err
	}
	defer built.Close()
	if err := built.NameHosts(); err != nil {
		return err
	}
	if z.WindowBDP > 0 {
		// The kernel charges packets' overhead to the buffers: behind gaps, a
		// quarter of them holds data.
		bytes := min(int(4*z.WindowBDP*float64(conditions.RateBps)/8*conditions.RTT.Seconds()), 1<<30)
		for _, name := range []string{"host-a", "host-b"} {
			err := errors.Join(
				built.Host(name).Sysctl("net.ipv4.tcp_rmem", fmt.Sprintf("4096 131072 %d", max(bytes, 6<<20))),
				built.Host(name).Sysctl("net.ipv4.tcp_wmem", fmt.Sprintf("4096 16384 %d", max(bytes, 4<<20))))
			if err != nil {
				return err
			}
		}
	}
	st := &lab.Stage{Lab: built, Program: z.Program, Report: z.Report}
	defer st.Stop()
	if repeat == 0 {
		z.Report.Notef("signing a zone of %d names", z.Names)
	}
	rng := rand.New(rand.NewPCG(conditions.Seed, 0x7a6f6e65))
	begin := time.Now()
	primary, err := startServer(ctx, st, "host-a", lab.HostA, primaryConfig, func(dir string) error {
		f, err := os.Create(filepath.Join(dir, "zone"))
		if err != nil {
			return err
		}
		return errors.Join(writeZone(f, z.Names, rng), f.Close())
	})
	if err != nil {
		return err
	}
	serial, _, err := primary.await(ctx, func(uint32) bool { return true })
	if err != nil {
		return err
	}
	size.SigningSeconds = time.Since(begin).Seconds()
	for i, c := range cases {
		t := &runner{Options: z, stage: st, primary: primary, serial: serial, rng: rng, conditions: conditions, way: c}
		r, err := t.run(ctx)
		if err != nil {
			return fmt.Errorf("zone-transfer, case %s: %w", c.name, err)
		}
		serial = t.serial
		if r.axfrBytes > 0 {
			size.TransferBytes = r.axfrBytes
		}
		runs[i] = append(runs[i], r)
	}
	if lost := built.LostByMachine(); lost > 0 {
		z.Report.Notef("%d packets were lost beside the link's settings: the machine is too busy for this rate", lost)
	}
	return nil
}

// runner makes one run of a case.
type runner struct {
	Options
	way
	stage      *lab.Stage
	primary    *nameServer
	serial     uint32 // of the primary's zone
	rng        *rand.Rand
	conditions lab.Conditions
}

func (t *runner) run(ctx context.Context) (r run, err error) {
	if err := t.stage.SetCongestionControl("host-a", t.congctl); err != nil {
		return r, err
	}
	remote := netip.AddrPortFrom(lab.HostA, dnsPort)
	if t.viaRelays {
		if err := t.stage.AllowBuffers(); err != nil {
			return r, err
		}
		before := len(t.stage.Running())
		if remote, err = t.stage.StartRelaysBack(ctx, remote); err != nil {
			return r, err
		}
		defer func() {
			for _, relay := range slices.Backward(t.stage.Running()[before:]) {
				t.stage.End(relay)
			}
		}()
	}
	// The same losses for every case.
	ab, ba := t.conditions.Directions()
	for dir, s := range map[link.Direction]link.Settings{link.AToB: ab, link.BToA: ba} {
		other := s
		other.Seed += 1000
		if err := errors.Join(t.stage.Link(lab.WAN).Set(dir, other), t.stage.Link(lab.WAN).Set(dir, s)); err != nil {
			return r, err
		}
	}
	config := strings.ReplaceAll(secondaryConfig, "PRIMARY", fmt.Sprintf("%s@%d", remote.Addr(), remote.Port()))
	secondary, err := t.full(ctx, config, &r)
	if err != nil {
		return r, err
	}
	defer func() { secondary.stop() }()
	if r.axfrSeconds == 0 {
		// The secondary gets the zone by hand, so that it can be kept current.
		secondary.stop()
		zone, err := t.primary.dump(ctx)
		if err != nil {
			return r, err
		}
		secondary, err = startServer(ctx, t.stage, "host-b", lab.HostB, config, func(dir string) error {
			return os.Link(zone, filepath.Join(dir, "zone"))
		})
		if err != nil {
			return r, err
		}
		if _, _, err := secondary.await(ctx, t.isCurrent); err != nil {
			return r, err
		}
		r.identical = true // so far: the copy was not transferred
	} else if r.identical, err = t.same(ctx, secondary); err != nil {
		return r, err
	}
	if err := t.incremental(ctx, secondary, &r); err != nil {
		return r, err
	}
	if t.Changes > 0 && r.ixfrUnfinished == 0 {
		same, err := t.same(ctx, secondary)
		if err != nil {
			return r, err
		}
		r.identical = r.identical && same
	}
	return r, nil
}

// isCurrent says whether a serial number is that of the primary.
func (t *runner) isCurrent(serial uint32) bool { return serial == t.serial }

// full starts an empty secondary and times how it gets the zone.
func (t *runner) full(ctx context.Context, config string, r *run) (*nameServer, error) {
	wan := t.stage.Link(lab.WAN)
	asked := wan.Counters(link.BToA).PacketsIn
	secondary, err := startServer(ctx, t.stage, "host-b", lab.HostB, config, func(string) error { return nil })
	if err != nil {
		return nil, err
	}
	begin, err := firstPacket(ctx, wan, asked)
	if err != nil {
		return secondary, secondary.explain(err)
	}
	patient, cancel := context.WithTimeoutCause(ctx, t.Patience, errImpatient)
	defer cancel()
	before := wan.Counters(link.AToB).BytesDelivered
	stop := t.watch("AXFR", begin, before)
	_, at, err := secondary.await(patient, t.isCurrent)
	stop()
	carried := wan.Counters(link.AToB).BytesDelivered - before
	switch {
	case errors.Is(err, errImpatient):
		// About: retransmissions that were not needed are in it too.
		r.axfrBps = float64(carried) * t.conditions.PayloadShare() * 8 / time.Since(begin).Seconds()
		return secondary, nil
	case err != nil:
		return secondary, err
	}
	transfers, err := secondary.transfers()
	if err != nil {
		return secondary, err
	}
	if len(transfers) == 0 || transfers[len(transfers)-1].kind != "AXFR" {
		return secondary, secondary.explain(errors.New("the secondary serves the zone but logged no full transfer"))
	}
	last := transfers[len(transfers)-1]
	r.axfrSeconds, r.axfrWire, r.axfrBytes = at.Sub(begin).Seconds(), last.duration.Seconds(), last.bytes
	r.axfrBps = float64(last.bytes) * 8 / last.duration.Seconds()
	return secondary, nil
}

// errImpatient is why a transfer that takes too long is given up.
var errImpatient = errors.New("the transfer takes too long")

// firstPacket waits until site B sends into the WAN, and returns when it did.
func firstPacket(ctx context.Context, wan *link.Link, before uint64) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the secondary does not ask for the zone"))
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for wan.Counters(link.BToA).PacketsIn == before {
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-poll.C:
		}
	}
	return time.Now(), nil
}

// incremental changes the zone over and over, and times how the secondary
// gets each change.
func (t *runner) incremental(ctx context.Context, secondary *nameServer, r *run) error {
	known, err := secondary.transfers()
	if err != nil {
		return err
	}
	for change := range t.Changes {
		if err := t.change(ctx); err != nil {
			return err
		}
		before := t.stage.Link(lab.WAN).Counters(link.AToB).BytesDelivered
		begin := time.Now()
		if err := secondary.control(ctx, "zone-refresh", zoneOrigin); err != nil {
			return err
		}
		patient, cancel := context.WithTimeoutCause(ctx, t.Patience, errImpatient)
		stop := t.watch(fmt.Sprintf("IXFR %d/%d", change+1, t.Changes), begin, before)
		_, at, err := secondary.await(patient, t.isCurrent)
		stop()
		cancel()
		if errors.Is(err, errImpatient) {
			// The rest would take as long.
			r.ixfrUnfinished = t.Changes - change
			break
		}
		if err != nil {
			return err
		}
		r.ixfrSeconds = append(r.ixfrSeconds, at.Sub(begin).Seconds())
	}
	all, err := secondary.transfers()
	if err != nil {
		return err
	}
	for _, transfer := range all[min(len(known), len(all)):] {
		if transfer.kind == "AXFR" {
			r.ixfrFull++
			continue
		}
		r.ixfrBytes = append(r.ixfrBytes, transfer.bytes)
	}
	return nil
}

// change gives some names of the zone other addresses, and waits until the
// primary has signed them.
func (t *runner) change(ctx context.Context) error {
	var changes []addressChange
	for range min(changedNames, t.Names) {
		changes = append(changes, addressChange{hostName(t.rng.IntN(t.Names)), randomAddress(t.rng)})
	}
	message, err := updateMessage(zoneName, changes)
	if err != nil {
		return err
	}
	if err := dynamicUpdate(ctx, t.stage.Host("host-a"), lab.HostA, message); err != nil {
		return t.primary.explain(err)
	}
	was := t.serial
	t.serial, _, err = t.primary.await(ctx, func(serial uint32) bool { return serial != was })
	return err
}

// same compares the zones of both servers.
func (t *runner) same(ctx context.Context, secondary *nameServer) (bool, error) {
	left, err := t.primary.dump(ctx)
	if err != nil {
		return false, err
	}
	right, err := secondary.dump(ctx)
	if err != nil {
		return false, err
	}
	difference, err := firstDifference(left, right)
	if difference != "" {
		t.Report.Notef("%s: the secondary's zone is not the primary's: %s", t.name, difference)
	}
	return difference == "", err
}

// watch reports progress until the returned function is called.
func (t *runner) watch(what string, begin time.Time, before uint64) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(250 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case now := <-ticker.C:
				carried := t.stage.Link(lab.WAN).Counters(link.AToB).BytesDelivered - before
				t.Report.Passing(0, 0, "%-16s %-10s %6.1f MB  %3.0f s", t.name, what, float64(carried)/1e6, now.Sub(begin).Seconds())
			}
		}
	}()
	return func() { close(done); <-ended }
}

func (z Options) describe() map[string]any {
	c := z.Conditions
	return map[string]any{
		"source":         "DNS zone transfers to far name servers over a path of 300 ms and 10 % loss",
		"rtt_ms":         float64(c.RTT) / float64(time.Millisecond),
		"rate_bps":       c.RateBps,
		"loss_ab":        c.Loss.Probability,
		"loss_ba":        c.LossBA.Probability,
		"loss_place":     c.LossPlace.String(),
		"queue_bdp":      c.QueueBDP,
		"limit_bps":      c.LimitBps(),
		"window_bdp":     z.WindowBDP,
		"patience_s":     z.Patience.Seconds(),
		"seed":           c.Seed,
		"kernel":         lab.KernelRelease(),
		"user_namespace": sandbox.UserNamespace(),
	}
}

func summarize(c way, runs []run, zoneBytes int64) Case {
	z := Case{Name: c.name, About: c.about, Runs: len(runs), AXFRFinished: true, Identical: true}
	var axfr, wire, bps, ixfr, bytes []float64
	for _, r := range runs {
		z.AXFRFinished = z.AXFRFinished && r.axfrSeconds > 0
		z.Identical = z.Identical && r.identical
		axfr, wire, bps = append(axfr, r.axfrSeconds), append(wire, r.axfrWire), append(bps, r.axfrBps)
		ixfr = append(ixfr, r.ixfrSeconds...)
		for _, b := range r.ixfrBytes {
			bytes = append(bytes, float64(b))
		}
		z.IXFRUnfinished += r.ixfrUnfinished
		z.IXFRFull += r.ixfrFull
	}
	itself := func(v float64) float64 { return v }
	median := func(values []float64) float64 { return stats.Median(values, itself) }
	z.AXFRBps = median(bps)
	if z.AXFRFinished {
		mid, wireMid := median(axfr), median(wire)
		lo, hi := stats.Spread(axfr, itself)
		z.AXFRSeconds, z.AXFRMinSeconds, z.AXFRMaxSeconds, z.AXFRWireSeconds = &mid, &lo, &hi, &wireMid
	} else if zoneBytes > 0 && z.AXFRBps > 0 {
		estimate := float64(zoneBytes) * 8 / z.AXFRBps
		z.AXFRSecondsTotal = &estimate
	}
	if len(ixfr) > 0 {
		mid, most := median(ixfr), slices.Max(ixfr)
		z.IXFRSecondsP50, z.IXFRSecondsMax = &mid, &most
	}
	if len(bytes) > 0 {
		z.IXFRBytes = int64(median(bytes))
	}
	return z
}
