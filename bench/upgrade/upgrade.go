// Command upgrade repeatedly replaces the relays of a pair by new processes under
// thousands of flows, and counts the failures.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"longhaul/lab"
	"longhaul/lab/progress"
	"longhaul/lab/relays"
	"longhaul/lab/sandbox"
	"longhaul/lab/tcpserver"
)

// Options are the options of a run.
type Options struct {
	Program   string        // the longhaul binary
	Flows     int           // open at the same time, beside the bulk ones
	PerSecond int           // new ones
	Bulk      int           // flows that fill the WAN
	Upgrades  int           // of the two relays in turn
	Every     time.Duration // from one upgrade to the next; at least a second

	Report progress.Reporter
}

// Life is the duration of a flow that is not bulk.
func (o Options) Life() time.Duration {
	return time.Duration(float64(o.Flows) / float64(o.PerSecond) * float64(time.Second))
}

// Result is the result of the upgrades.
type Result struct {
	RTTSeconds float64 `json:"rtt_seconds"`
	RateBps    int64   `json:"rate_bps"`
	Flows      int     `json:"flows"`     // without the bulk ones
	OpenMost   int     `json:"open_most"` // at the same time
	BulkFlows  int     `json:"bulk_flows"`

	Refused    int    `json:"refused"` // connects refused or without an answer
	Reset      int    `json:"reset"`   // flows that were reset, or ended early
	Wrong      int    `json:"wrong"`   // flows that received wrong bytes
	FirstError string `json:"first_error,omitempty"`

	// Times from connect to the first echo, for flows begun within a second of an
	// upgrade and for the others.
	FirstEchoNear Spread `json:"first_echo_near"`
	FirstEchoElse Spread `json:"first_echo_else"`

	// Null if the bulk flows did not move before the first upgrade: the machine is
	// too busy.
	GoodputBps *float64 `json:"goodput_bps"` // median of the bins before the first upgrade
	Quiet      *Dip     `json:"quiet"`       // worst dip before the first upgrade
	Worst      *Dip     `json:"worst"`       // worst of the upgrades in each figure
	Upgrades   []Replay `json:"upgrades"`
}

// Spread is the spread of times; 0 without flows.
type Spread struct {
	Flows         int     `json:"flows"`
	MedianSeconds float64 `json:"median_seconds"`
	P99Seconds    float64 `json:"p99_seconds"`
	MaxSeconds    float64 `json:"max_seconds"`
}

func spread(times []time.Duration) Spread {
	if len(times) == 0 {
		return Spread{}
	}
	slices.Sort(times)
	at := func(share float64) float64 { return times[int(share*float64(len(times)-1))].Seconds() }
	return Spread{len(times), at(0.5), at(0.99), at(1)}
}

// Replay is one upgrade.
type Replay struct {
	Relay     string  `json:"relay"`
	AtSeconds float64 `json:"at_seconds"`
	Seconds   float64 `json:"seconds"`    // it took
	FlowsLeft int64   `json:"flows_left"` // to the old process
	Dip       *Dip    `json:"dip"`        // of the goodput from here to the next
}

// The ports, and the path.
const (
	port       = 6000
	targetPort = 5000
	bulkPort   = 6001
	sinkPort   = 5001
	rtt        = 20 * time.Millisecond
	rateBps    = int64(1e9)
)

// patience bounds every step of a flow.
const patience = time.Minute

// quietTimes is the time before the first upgrade, in multiples of Every, with all
// flows open. Its dips are those without an upgrade.
const quietTimes = 3

// Run runs the experiment. The process must be inside a sandbox.
func Run(ctx context.Context, o Options) (r Result, err error) {
	r = Result{RTTSeconds: rtt.Seconds(), RateBps: rateBps, BulkFlows: o.Bulk}
	w, err := newWorld(ctx, o.Program)
	if err != nil {
		return r, err
	}
	defer w.close()

	running, stop := context.WithCancel(ctx)
	defer stop()
	fill := w.startBulk(running, o.Bulk)
	defer fill.wait()
	crowd := w.startCrowd(running, o)
	defer crowd.wait()
	defer stop()

	o.Report.Linef("%d flows come to be open, %d each second", o.Flows, o.PerSecond)
	if err := pause(ctx, o.Life()); err != nil {
		return r, err
	}
	o.Report.Linef("before the first upgrade")
	quiet := time.Now()
	if err := pause(ctx, quietTimes*o.Every); err != nil {
		return r, err
	}
	var began []time.Time
	for n := range o.Upgrades {
		relay := w.relays[(n+1)%len(w.relays)] // the clients' relay first
		at := time.Now()
		u, err := relay.Upgrade(ctx)
		if err != nil {
			return r, err
		}
		began = append(began, at)
		r.Upgrades = append(r.Upgrades, Replay{Relay: relay.Name, AtSeconds: at.Sub(quiet).Seconds(), Seconds: u.Seconds, FlowsLeft: u.FlowsLeft})
		o.Report.Linef("upgrade %d of %d: %s, %d flows stay with process %d", n+1, o.Upgrades, relay.Name, u.FlowsLeft, u.OldPID)
		if err := pause(ctx, time.Until(at.Add(o.Every))); err != nil {
			return r, err
		}
	}
	end := time.Now()
	stop()
	fill.wait()
	crowd.wait()
	r.count(crowd, fill, began)
	r.measure(fill, quiet, began, end, o.Every)
	return r, w.stop(ctx)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(max(0, d)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// world is the lab with its relays and the target.
type world struct {
	lab    *lab.Lab
	dir    string
	relays []*relays.Process // relay-b, relay-a
	stops  []func()          // of the targets
	bulk   *bulk
}

func newWorld(ctx context.Context, program string) (*world, error) {
	// In the sandbox's own /run, which disappears with the sandbox.
	if err := sandbox.PrivateRun(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/run", "upgrade-")
	if err != nil {
		return nil, err
	}
	c := lab.MitreConditions()
	c.RTT, c.RateBps = rtt, rateBps
	built, err := lab.Build(lab.TwoSites(c))
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	w := &world{lab: built, dir: dir, bulk: &bulk{start: time.Now()}}
	if err := w.start(ctx, program); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) start(ctx context.Context, program string) error {
	for p, serve := range map[uint16]func(net.Conn){targetPort: tcpserver.Echo, sinkPort: w.bulk.sink} {
		l, err := w.lab.Host("host-b").ListenTCP(ctx, p)
		if err != nil {
			return err
		}
		w.stops = append(w.stops, tcpserver.Serve(l, serve))
	}
	to := netip.AddrPortFrom
	for _, one := range []struct {
		name   string
		listen netip.Addr
		next   netip.Addr
		ports  [2]int // of the next
	}{
		{"relay-b", lab.WANB, lab.HostB, [2]int{targetPort, sinkPort}},
		{"relay-a", lab.RelayA, lab.WANB, [2]int{port, bulkPort}},
	} {
		r := &relays.Process{Name: one.name, Host: w.lab.Host(one.name), Program: program, Dir: w.dir}
		w.relays = append(w.relays, r)
		// BBR, the default choice, nearly stops for 0.2 s in every 10 s to probe the
		// round-trip time. That would look like a dip.
		text := fmt.Sprintf("control_socket: %s\ndefaults: {wan: {congestion_control: cubic}}\ntunnels:\n  - {name: main, listen: %v, forward: %v}\n  - {name: bulk, listen: %v, forward: %v}\n", r.Socket(),
			to(one.listen, port), to(one.next, uint16(one.ports[0])), to(one.listen, bulkPort), to(one.next, uint16(one.ports[1])))
		if err := r.Start(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the relays like an operator. All of their processes must succeed: no
// flow is left to reset.
func (w *world) stop(ctx context.Context) error {
	var all error
	for i := len(w.relays) - 1; i >= 0; i-- {
		status, err := w.relays[i].Stop(ctx)
		if err == nil && status != 0 {
			err = fmt.Errorf("%s ends with status %d\n%s", w.relays[i].Name, status, w.relays[i].Log())
		}
		all = errors.Join(all, err)
	}
	return all
}

func (w *world) close() {
	for _, r := range w.relays {
		if r.Running() {
			_ = r.Kill()
		}
	}
	for _, stop := range w.stops {
		stop()
	}
	w.lab.Close()
	os.RemoveAll(w.dir)
}
