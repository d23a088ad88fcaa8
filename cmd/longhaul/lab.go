//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
	"longhaul/lab"
	"longhaul/lab/calibrate"
	"longhaul/lab/experiment"
	"longhaul/lab/link"
	"longhaul/lab/session"
)

func newLab(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Two sites and a WAN on this machine, with real kernel TCP",
		Long: `lab builds two sites and a WAN out of network namespaces, and an emulator of the
link. lab run repeats published experiments there; lab up keeps the sites up for
programs of your own. When the command ends, everything is gone.`,
		Example: `  longhaul lab run mitre
  longhaul lab up --rtt 300ms --rate 100Mbit --loss 10%
  longhaul lab exec host-a -- longhaul measure host-b`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(
		newLabUp(env),
		newLabExec(env),
		newLabSet(env),
		newLabStatus(env),
		newLabList(env),
		newLabRun(env),
		newLabCalibrate(env),
		newLabTrace(env),
	)
	return cmd
}

func newLabUp(env *env) *cobra.Command {
	conditions := lab.MitreConditions()
	var socket string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Keep the two sites up until interrupted",
		Long: `up builds the two sites and keeps them up until you interrupt it. The same user
runs programs in the hosts with longhaul lab exec, from another shell. The hosts
are host-a, relay-a, relay-b and host-b, and resolve each other's names.`,
		Example: `  longhaul lab up
  longhaul lab up --rtt 300ms --rate 100Mbit --loss 10% --queue 1bdp
  longhaul lab up --mtu 1500 --mtu-back 500 --classic`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if socket == "" {
				// Checked here: inside the sandbox every user looks like root.
				socket = session.SocketPath()
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
	conditions.Flags(flags)
	flags.BoolVar(&conditions.ClassicEndHost, "classic", false, "end hosts with NewReno and 256 KiB windows")
	flags.StringVar(&socket, "socket", "", "`FILE` of the socket for longhaul lab exec (the user's own)")
	return cmd
}

func labUp(ctx context.Context, env *env, conditions lab.Conditions, socket string) error {
	err := session.Up(ctx, conditions, socket, func(state session.State) error {
		fmt.Fprint(env.stdout, labDrawing)
		if err := state.WriteText(env.stdout); err != nil {
			return err
		}
		_, err := fmt.Fprint(env.stdout, labNext)
		return err
	})
	if err == nil {
		fmt.Fprintln(env.stderr, "longhaul: the lab is down")
	}
	return err
}

// labNext has only commands that every host has.
const labNext = `
In another shell:  longhaul lab exec host-b -- longhaul measure --serve
                   longhaul lab exec host-a -- longhaul measure host-b
                   longhaul lab set --loss 1%
                   longhaul lab status
Interrupt to take it down.
`

const labDrawing = `
  host-a ─────── relay-a ═══════ WAN ═══════ relay-b ─────── host-b
  10.10.10.10    10.10.10.20                 10.20.20.20     10.20.20.10
  fd00:10::10    fd00:10::20                 fd00:20::20     fd00:20::10

`

func newLabExec(env *env) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "exec HOST -- COMMAND [ARG...]",
		Short: "Run a program in a host of the running lab",
		Long: `exec runs a program in a host of this user's running lab, with this shell's
environment, directory and standard streams.

Exit codes: those of the program; 1 if no lab is up.`,
		Example: `  longhaul lab exec host-b -- iperf3 -s
  longhaul lab exec host-a -- iperf3 -c host-b
  longhaul lab exec relay-a -- bash`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || len(args) == 2 && args[1] == "--" {
				return usageError(remedy.New(errors.New("missing host or command"),
					"for example: longhaul lab exec host-b -- longhaul measure --serve"))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			host, program := args[0], args[1:]
			if program[0] == "--" {
				program = program[1:]
			}
			status, err := session.Exec(socketOr(socket), host, program)
			if err != nil {
				return err
			}
			if status != exitOK {
				return &exitError{status: status}
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false) // the rest belongs to the command
	cmd.Flags().StringVar(&socket, "socket", "", "`FILE` of the lab's socket (the user's own)")
	return cmd
}

func newLabSet(env *env) *cobra.Command {
	conditions := lab.MitreConditions()
	var socket string
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change the WAN of the running lab",
		Long: `set changes the properties that its flags name and keeps the rest of the WAN.
The sites and the programs in them go on.`,
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
			return session.Set(socketOr(socket), values)
		},
	}
	conditions.Flags(cmd.Flags())
	// Without defaults: one would look like the running lab's value.
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.DefValue = "" })
	cmd.Flags().StringVar(&socket, "socket", "", "`FILE` of the lab's socket (the user's own)")
	return cmd
}

func newLabStatus(env *env) *cobra.Command {
	var (
		socket string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the running lab's WAN and its packet counters",
		Long: `status shows the properties of the running lab's WAN each way, and its counters:
packets sent, lost, dropped by the queue, and late.`,
		Example: `  longhaul lab status
  longhaul lab status --json`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			state, err := session.Status(socketOr(socket))
			if err != nil {
				return err
			}
			if asJSON {
				return display.WriteJSON(env.stdout, state)
			}
			return state.WriteText(env.stdout)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	cmd.Flags().StringVar(&socket, "socket", "", "`FILE` of the lab's socket (the user's own)")
	return cmd
}

// socketOr returns path, or else the socket of this user's lab.
func socketOr(path string) string {
	if path != "" {
		return path
	}
	return session.SocketPath()
}

func newLabCalibrate(env *env) *cobra.Command {
	conditions := lab.MitreConditions()
	conditions.Loss, conditions.LossBA = link.Loss{Probability: 0.01}, link.Loss{Probability: 0.01}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "calibrate",
		Short: "Hold the emulated WAN against what was asked of it",
		Long: `calibrate builds the two sites, sends packets of the hosts' kernels through
the WAN, and prints each property as asked and as measured: idle RTT (within
0.5 ms, and what this machine's timers are late), rate (1 %), loss (3 sigma over
100 000 packets), the same packets lost under the same seed, and TCP at the full
rate. Traces, policers, managed queues, marks, ACK thinning and bursts have rows
of their own if flags ask for them. It takes a minute or more, and fails if a
property does not hold. Run it on an otherwise idle machine.`,
		Example: `  longhaul lab calibrate
  longhaul lab calibrate --rate 20Mbit --aqm pie --ecn on
  longhaul lab calibrate --rtt 300ms --rate 100Mbit --loss 10% --loss-burst 5`,
		Args: noArgs,
		RunE: inLab(env, &asJSON, func(ctx context.Context, o experiment.Environment) (experiment.Result, error) {
			return calibrate.TwoSites(ctx, conditions, o.Report)
		}),
	}
	conditions.Flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the rows as JSON")
	return cmd
}
