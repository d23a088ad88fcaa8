//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/top"
	"longhaul/internal/watch/top/screen"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
)

// minTopInterval is the shortest time between two refreshes. The kernel's clocks of
// limited time tick every 1 to 10 ms.
const minTopInterval = 100 * time.Millisecond

// topFlags are the flags of top.
type topFlags struct {
	interval          time.Duration
	count             int
	once, json, relay bool
	order, filter     string
	netNamespace      string
	chosen            relayChoice
}

func newTop(env *env) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch TCP connections: their rates, and what limits them",
		Long: `top shows every TCP connection of this host, or those of a running relay: the
bytes it moved and its waits since the last refresh. It needs no privileges.
Only root sees the names of other users' processes.

  SENT, RECV  payload acknowledged by the peer, and received; bits per second
  RTT         smoothed round-trip time
  RETR        share of the payload that was retransmitted
  LIM         share of the time in which the peer's window or the send buffer
              limited the sender
  CAUSE       what limits this end as a sender, in the last seconds

The order is goodput (the sum of both directions), retransmissions, limited or
rtt, highest first. All words of a filter must match: an address or a prefix
(10.0.0.0/8), a port (:22), a number (a port or a PID), or a part of an address,
of the process's name or of the cause.`,
		Example: `  longhaul top
  longhaul top --filter ':22 receiver-window' --sort limited
  longhaul top --once --json | jq '.connections[] | {remote, cause}'`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	f.interval = time.Second
	flagvalue.AddDuration(flags, &f.interval, "interval", "time between two refreshes")
	flags.StringVar(&f.order, "sort", string(top.ByGoodput), "an `ORDER`, see above")
	flags.StringVar(&f.filter, "filter", "", "only connections that match `WORDS` (all)")
	flags.BoolVar(&f.once, "once", false, "print one table after one interval, and exit")
	flagvalue.AddCount(flags, &f.count, "count", "print so many tables, one each interval, and exit (0: live)")
	flags.BoolVar(&f.json, "json", false, "print one JSON object each interval")
	flags.BoolVar(&f.relay, "relay", false, "only the connections of the running relay")
	f.chosen.register(flags)
	namespaceFlag(flags, &f.netNamespace)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		order, filter, err := f.check(cmd)
		if err != nil {
			return usageError(err)
		}
		live := !f.json && f.count == 0
		if live && !(display.IsTerminal(env.stdin) && display.IsTerminal(env.stdout)) {
			return usageError(remedy.New(errors.New("the live view needs a terminal"),
				"use --once, --count N or --json"))
		}
		w, err := f.watch(cmd.Context(), env)
		if err != nil {
			return err
		}
		defer w.Close()
		if live {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
			defer stop()
			return screen.New(w, f.interval, order, filter).Run(ctx, env.stdin, env.stdout)
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		return f.print(ctx, env, w, order, filter)
	}
	return cmd
}

// check parses the flags that are text, and refuses contradictions.
func (f *topFlags) check(cmd *cobra.Command) (top.Order, top.Filter, error) {
	order, err := top.ParseOrder(f.order)
	if err != nil {
		return "", top.Filter{}, remedy.New(err, "sort by goodput, retransmissions, limited or rtt")
	}
	filter, err := top.ParseFilter(f.filter)
	switch {
	case err != nil:
		return "", top.Filter{}, remedy.New(fmt.Errorf("--filter: %w", err), "filter like 10.0.0.0/8, :22 or scp")
	case f.interval < minTopInterval:
		return "", top.Filter{}, remedy.New(fmt.Errorf("--interval %v is too short", f.interval), "give 100ms or more")
	case f.once && cmd.Flags().Changed("count"):
		return "", top.Filter{}, remedy.New(errors.New("choose one of --once and --count"), "leave one of them out")
	case cmd.Flags().Changed("count") && f.count < 1:
		return "", top.Filter{}, remedy.New(fmt.Errorf("--count %d prints nothing", f.count), "give 1 or more")
	}
	if f.once {
		f.count = 1
	}
	return order, filter, nil
}

// watch begins to follow the connections that the flags select.
func (f *topFlags) watch(ctx context.Context, env *env) (*top.Watcher, error) {
	var status struct{ PID int }
	if f.relay || f.chosen.isGiven() {
		body, err := askRelay(ctx, env, f.chosen)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(body, &status); err != nil || status.PID == 0 {
			return nil, remedy.New(errors.New("invalid answer of the relay"),
				"the relay may be of another version; see longhaul status")
		}
	}
	if err := enterNamespace(f.netNamespace); err != nil {
		return nil, err
	}
	return top.Watch(doctor.Glance, status.PID)
}

// print writes a table or an object for each interval.
func (f *topFlags) print(ctx context.Context, env *env, w *top.Watcher, order top.Order, filter top.Filter) error {
	if err := w.Refresh(); err != nil {
		return err
	}
	ticker := time.NewTicker(f.interval)
	defer ticker.Stop()
	for n := 0; f.count == 0 || n < f.count; n++ {
		select {
		case <-ctx.Done():
			if f.count == 0 {
				return nil
			}
			return errors.New("interrupted before the end")
		case <-ticker.C:
		}
		if err := w.Refresh(); err != nil {
			return err
		}
		selected := w.Table().Select(filter, order)
		if f.json {
			if err := json.NewEncoder(env.stdout).Encode(w.Table().Report(selected, w.Unseen(), time.Now())); err != nil {
				return err
			}
			continue
		}
		if n > 0 {
			fmt.Fprintln(env.stdout)
		}
		if err := screen.WriteTable(env.stdout, selected); err != nil {
			return err
		}
		if unseen := w.Unseen(); unseen != "" && n == 0 {
			fmt.Fprintln(env.stderr, "longhaul: "+unseen)
		}
	}
	return nil
}
