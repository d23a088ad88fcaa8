//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/display"
	"longhaul/internal/lab"
	"longhaul/internal/lab/link"
	"longhaul/internal/remedy"
	"longhaul/internal/units"
)

func newLabUp(env *env) *cobra.Command {
	conditions := lab.MitreConditions()
	var socket string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Keep the two sites up until interrupted",
		Long: `up builds the two sites and keeps them up until it is interrupted. Programs
are run in their hosts from other shells with longhaul lab exec, as the same
user. The hosts are host-a, relay-a, relay-b and host-b, and know each other
by these names.`,
		Example: `  longhaul lab up
  longhaul lab up --rtt 300ms --rate 100Mbit --loss 10% --queue 1bdp
  longhaul lab up --mtu-ab 1500 --mtu-ba 500 --classic`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if socket == "" {
				// Found out here: inside, every user looks like root.
				socket = lab.SocketPath()
				env.args = append(env.args, "--socket", socket)
			}
			prepare := func() error { return nil }
			return inPreparedSandbox(env, prepare, func(cmd *cobra.Command, _ []string) error {
				ctx, stop := untilSignal(cmd.Context())
				defer stop()
				return labUp(ctx, env, conditions, socket)
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	conditionFlags(flags, &conditions)
	flags.BoolVar(&conditions.ClassicEndHost, "classic", false, "end hosts with NewReno and 256 KiB windows")
	flags.StringVar(&socket, "socket", "", "where to listen for longhaul lab exec")
	return cmd
}

func labUp(ctx context.Context, env *env, conditions lab.Conditions, socket string) error {
	// The socket first: it says so if another lab is up.
	listener, err := lab.Listen(socket)
	if err != nil {
		return err
	}
	defer func() {
		listener.Close()
		_ = os.Remove(filepath.Dir(socket)) // unless something else is in there
	}()
	built, err := lab.Build(lab.TwoSites(conditions))
	if err != nil {
		return err
	}
	defer built.Close()
	if err := built.NameHosts(); err != nil {
		return err
	}
	server := newLabServer(built, conditions)
	fmt.Fprint(env.stdout, labDrawing)
	if err := writeLab(env.stdout, server.describe()); err != nil {
		return err
	}
	fmt.Fprint(env.stdout, `
In another shell:  longhaul lab exec host-a -- ping -c 3 host-b
                   longhaul lab set --loss 1%
                   longhaul lab show
Interrupt to take it down.
`)
	if err := server.Serve(ctx, listener); err != nil {
		return err
	}
	fmt.Fprintln(env.stderr, "longhaul: the lab is down")
	return nil
}

const labDrawing = `
  host-a ─────── relay-a ═══════ WAN ═══════ relay-b ─────── host-b
  10.10.10.10    10.10.10.20                 10.20.20.20     10.20.20.10
  fd00:10::10    fd00:10::20                 fd00:20::20     fd00:20::10

`

// labServer is a running lab with the conditions now in force.
type labServer struct {
	lab.Server
	mu         sync.Mutex
	conditions lab.Conditions
}

func newLabServer(built *lab.Lab, conditions lab.Conditions) *labServer {
	s := &labServer{conditions: conditions}
	s.Server = lab.Server{
		Lab:  built,
		Set:  s.set,
		Show: func() (any, error) { return s.describe(), nil },
	}
	return s
}

// set changes the conditions that flags name, and leaves the others.
func (s *labServer) set(values map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.conditions
	flags := pflag.NewFlagSet("set", pflag.ContinueOnError)
	conditionFlags(flags, &changed)
	for name, value := range values {
		if err := flags.Set(name, value); err != nil {
			return err
		}
	}
	ab, ba := changed.Directions()
	wan := s.Lab.Link(lab.WAN)
	if err := wan.Set(link.AToB, ab); err != nil {
		return err
	}
	if err := wan.Set(link.BToA, ba); err != nil {
		return err
	}
	s.conditions = changed
	return nil
}

// labState is what lab show prints.
type labState struct {
	Directions []directionState `json:"directions"`
}

type directionState struct {
	Direction       string  `json:"direction"`
	DelayMs         float64 `json:"delay_ms"`
	JitterMs        float64 `json:"jitter_ms"`
	RateBps         int64   `json:"rate_bps"`
	ATM             bool    `json:"atm"`
	PacketRate      int64   `json:"packet_rate"` // packets per second, 0 for no bound
	LossProbability float64 `json:"loss_probability"`
	MTU             int     `json:"mtu"`
	QueueBytes      int     `json:"queue_bytes"`
	CoDelTargetMs   float64 `json:"codel_target_ms"` // 0 is no CoDel
	Down            bool    `json:"down"`

	PacketsIn      uint64  `json:"packets_in"`
	Delivered      uint64  `json:"packets_delivered"`
	BytesDelivered uint64  `json:"bytes_delivered"`
	Lost           uint64  `json:"packets_lost"`
	Policed        uint64  `json:"packets_policed"`
	QueueDrops     uint64  `json:"queue_drops"`
	CoDelDrops     uint64  `json:"codel_drops"`
	TooBig         uint64  `json:"packets_too_big"`
	Outage         uint64  `json:"packets_lost_in_outages"`
	Reordered      uint64  `json:"packets_reordered"`
	Unasked        uint64  `json:"packets_lost_unasked"` // outside the emulation; 0 unless the machine is overloaded
	QueueP50Ms     float64 `json:"queue_delay_p50_ms"`
	QueueP95Ms     float64 `json:"queue_delay_p95_ms"`
	QueueP99Ms     float64 `json:"queue_delay_p99_ms"`
	QueueMaxMs     float64 `json:"queue_delay_max_ms"`
}

func (s *labServer) describe() labState {
	wan := s.Lab.Link(lab.WAN)
	var state labState
	for _, dir := range []link.Direction{link.AToB, link.BToA} {
		settings, counters := wan.Settings(dir), wan.Counters(dir)
		state.Directions = append(state.Directions, directionState{
			Direction:       dir.String(),
			DelayMs:         display.Milliseconds(settings.Delay),
			JitterMs:        display.Milliseconds(settings.Jitter),
			RateBps:         settings.RateBps,
			ATM:             settings.ATM,
			PacketRate:      settings.PacketsPerSecond,
			LossProbability: settings.Loss.Share(),
			MTU:             settings.MTU,
			QueueBytes:      settings.QueueLimitBytes(settings.Delay),
			CoDelTargetMs:   display.Milliseconds(settings.CoDel.Target),
			Down:            settings.Down,

			PacketsIn:      counters.PacketsIn,
			Delivered:      counters.PacketsDelivered,
			BytesDelivered: counters.BytesDelivered,
			Lost:           counters.Lost,
			Policed:        counters.Policed,
			QueueDrops:     counters.QueueDrops,
			CoDelDrops:     counters.CoDelDrops,
			TooBig:         counters.TooBig,
			Outage:         counters.Outage,
			Reordered:      counters.Reordered,
			Unasked:        counters.DeviceDrops + counters.WriteErrors,
			QueueP50Ms:     display.Milliseconds(counters.QueueDelayP50),
			QueueP95Ms:     display.Milliseconds(counters.QueueDelayP95),
			QueueP99Ms:     display.Milliseconds(counters.QueueDelayP99),
			QueueMaxMs:     display.Milliseconds(counters.QueueDelayMax),
		})
	}
	return state
}

// writeLab prints the WAN's settings and counters, a column for each way.
func writeLab(w io.Writer, state labState) error {
	if len(state.Directions) != 2 {
		return fmt.Errorf("the lab described %d directions, not 2", len(state.Directions))
	}
	ab, ba := state.Directions[0], state.Directions[1]
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(what, a, b string) { fmt.Fprintf(table, "%s\t%s\t%s\t\n", what, a, b) }
	both := func(what string, figure func(directionState) string) { row(what, figure(ab), figure(ba)) }
	row("", "A to B", "B to A")
	both("delay", func(d directionState) string { return fmt.Sprintf("%g ms", d.DelayMs) })
	if ab.JitterMs+ba.JitterMs > 0 {
		both("jitter", func(d directionState) string { return fmt.Sprintf("±%g ms", d.JitterMs) })
	}
	both("rate", func(d directionState) string {
		if d.RateBps == 0 {
			return "unbounded"
		}
		if d.ATM {
			return display.Rate(float64(d.RateBps)) + " of cells"
		}
		return display.Rate(float64(d.RateBps))
	})
	if ab.PacketRate+ba.PacketRate > 0 {
		both("packet rate", func(d directionState) string { return fmt.Sprintf("%d/s", d.PacketRate) })
	}
	both("loss", func(d directionState) string { return fmt.Sprintf("%g%%", 100*d.LossProbability) })
	both("queue", func(d directionState) string { return units.Size(d.QueueBytes).String() })
	if ab.CoDelTargetMs+ba.CoDelTargetMs > 0 {
		both("CoDel", func(d directionState) string { return fmt.Sprintf("%g ms", d.CoDelTargetMs) })
	}
	both("MTU", func(d directionState) string { return fmt.Sprint(d.MTU) })
	if ab.Down || ba.Down {
		both("outage", func(d directionState) string { return fmt.Sprint(d.Down) })
	}
	if ab.PacketsIn+ba.PacketsIn > 0 {
		count := func(what string, figure func(directionState) uint64) {
			both(what, func(d directionState) string { return fmt.Sprint(figure(d)) })
		}
		count("packets in", func(d directionState) uint64 { return d.PacketsIn })
		count("delivered", func(d directionState) uint64 { return d.Delivered })
		count("lost", func(d directionState) uint64 { return d.Lost })
		if ab.Policed+ba.Policed > 0 {
			count("policed", func(d directionState) uint64 { return d.Policed })
		}
		count("queue drops", func(d directionState) uint64 { return d.QueueDrops })
		if ab.CoDelDrops+ba.CoDelDrops > 0 {
			count("CoDel drops", func(d directionState) uint64 { return d.CoDelDrops })
		}
		count("too big", func(d directionState) uint64 { return d.TooBig })
		count("lost in outages", func(d directionState) uint64 { return d.Outage })
		count("lost unasked", func(d directionState) uint64 { return d.Unasked })
		both("queue delay p50", func(d directionState) string { return fmt.Sprintf("%.2f ms", d.QueueP50Ms) })
		both("queue delay p95", func(d directionState) string { return fmt.Sprintf("%.2f ms", d.QueueP95Ms) })
	}
	return table.Flush()
}

func newLabSet(env *env) *cobra.Command {
	conditions := lab.MitreConditions()
	var socket string
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change the WAN of the running lab",
		Long:  `set changes what its flags name and leaves the rest of the WAN as it is.`,
		Example: `  longhaul lab set --loss 5%
  longhaul lab set --down both`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			values := map[string]string{}
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if f.Name != "socket" {
					values[f.Name] = f.Value.String()
				}
			})
			if len(values) == 0 {
				return usageError(remedy.New(errors.New("nothing to change"), "see longhaul lab set --help"))
			}
			_, err := lab.Call(socketOr(socket), lab.Request{Set: values}, nil, nil)
			return err
		},
	}
	conditionFlags(cmd.Flags(), &conditions)
	// A default would look like the running lab's value.
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.DefValue = "" })
	cmd.Flags().StringVar(&socket, "socket", "", "where the lab listens")
	return cmd
}

func newLabShow(env *env) *cobra.Command {
	var (
		socket string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the running lab's WAN and what it has carried",
		Example: "  longhaul lab show",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			reply, err := lab.Call(socketOr(socket), lab.Request{Show: true}, nil, nil)
			if err != nil {
				return err
			}
			var state labState
			if err := json.Unmarshal(reply.Show, &state); err != nil {
				return fmt.Errorf("cannot read the lab's answer: %w", err)
			}
			if asJSON {
				return display.WriteJSON(env.stdout, state)
			}
			return writeLab(env.stdout, state)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	cmd.Flags().StringVar(&socket, "socket", "", "where the lab listens")
	return cmd
}

func socketOr(path string) string {
	if path != "" {
		return path
	}
	return lab.SocketPath()
}
