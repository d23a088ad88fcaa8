//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"longhaul/internal/display"
	"longhaul/internal/doctor"
	"longhaul/internal/process"
	"longhaul/internal/remedy"
	"longhaul/internal/tcpinfo"
	"longhaul/internal/top"
)

// leastTopInterval is the shortest time between two refreshes: the kernel's
// clocks of limited time tick every 1 to 10 ms.
const leastTopInterval = 100 * time.Millisecond

// topFlags are what top was asked to do.
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
		Short: "Watch TCP connections: what they move, and what limits them",
		Long: `top shows every TCP connection of this host, or those of a running relay, and
what each moved and waited for since the last refresh. It needs no privileges;
the names of other users' processes are for root.

  SENT, RECV  payload acknowledged by the peer, and received; bits per second
  RTT         smoothed round-trip time
  AGN         part of the payload that was sent again
  LIM         part of the time in which the peer's window or the send buffer
              held the sender back
  CAUSE       what limits this end as a sender, in the last seconds

It is sorted by goodput (of both directions together), retransmissions, limited
or rtt, the most first. A filter is words that must all match: an address or a
prefix (10.0.0.0/8), a port (:22), a number (a port or a PID), or a part of an
address, of the process's name or of the cause.`,
		Example: `  longhaul top
  longhaul top --filter ':22 receiver-window' --sort limited
  longhaul top --once --json | jq '.connections[] | {remote, cause}'`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.DurationVar(&f.interval, "interval", time.Second, "time between two refreshes")
	flags.StringVar(&f.order, "sort", string(top.ByGoodput), "an `ORDER`, see above")
	flags.StringVar(&f.filter, "filter", "", "only connections that match `WORDS`")
	flags.BoolVar(&f.once, "once", false, "print one table after one interval, and exit")
	flags.IntVar(&f.count, "count", 0, "print `N` tables, one each interval, and exit")
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
			return usageError(remedy.New(errors.New("what is live needs a terminal"), "use --once, --count N or --json"))
		}
		w, err := f.watch(cmd.Context(), env)
		if err != nil {
			return err
		}
		defer w.close()
		if live {
			return runTopLive(cmd.Context(), env, newTopLive(w, f.interval, order, filter))
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		return f.print(ctx, env, w, order, filter)
	}
	return cmd
}

// check reads the flags that are text, and looks for contradictions.
func (f *topFlags) check(cmd *cobra.Command) (top.Order, top.Filter, error) {
	order, err := top.ParseOrder(f.order)
	if err != nil {
		return "", top.Filter{}, remedy.New(err, "sort by goodput, retransmissions, limited or rtt")
	}
	filter, err := top.ParseFilter(f.filter)
	switch {
	case err != nil:
		return "", top.Filter{}, remedy.New(fmt.Errorf("--filter: %w", err), "filter like 10.0.0.0/8, :22 or scp")
	case f.interval < leastTopInterval:
		return "", top.Filter{}, fmt.Errorf("--interval %v is too short: use 100ms or more", f.interval)
	case f.once && cmd.Flags().Changed("count"):
		return "", top.Filter{}, remedy.New(errors.New("--once is one table, and --count says how many"), "leave one of them out")
	case cmd.Flags().Changed("count") && f.count < 1:
		return "", top.Filter{}, fmt.Errorf("--count %d prints nothing", f.count)
	}
	if f.once {
		f.count = 1
	}
	return order, filter, nil
}

// watcher keeps a table of the connections of a network namespace.
type watcher struct {
	diag    *tcpinfo.Diag
	table   *top.Table
	started time.Time
	owners  process.Owners
	relay   process.Process // only its connections, unless it is zero
}

// watch begins to follow what the flags ask for.
func (f *topFlags) watch(ctx context.Context, env *env) (*watcher, error) {
	w := &watcher{table: top.NewTable(doctor.Glance), started: time.Now()}
	if f.relay || f.chosen.isGiven() {
		body, err := askRelay(ctx, env, f.chosen)
		if err != nil {
			return nil, err
		}
		var status struct{ PID int }
		if err := json.Unmarshal(body, &status); err != nil || status.PID == 0 {
			return nil, remedy.New(errors.New("cannot read the relay's answer"), "the relay may be of another version; see longhaul status")
		}
		w.relay.PID = status.PID
		if w.relay.Command, err = process.Command(status.PID); err != nil {
			return nil, err
		}
	}
	if err := enterNamespace(f.netNamespace); err != nil {
		return nil, err
	}
	var err error
	w.diag, err = tcpinfo.OpenDiag()
	return w, err
}

func (w *watcher) close() { w.diag.Close() }

// refresh reads all connections anew.
func (w *watcher) refresh() error {
	if w.relay.PID != 0 {
		return w.refreshRelay()
	}
	err := w.table.Refresh(time.Since(w.started), func(visit func(*tcpinfo.Connection)) error {
		return w.diag.Each(tcpinfo.Connections, visit)
	})
	if err != nil {
		return err
	}
	w.identify()
	found, err := w.owners.Refresh(time.Now())
	if found {
		w.identify()
	}
	return err
}

// identify gives the connections the processes that are known.
func (w *watcher) identify() {
	for _, c := range w.table.Connections() {
		c.Process, _ = w.owners.Of(c.Inode)
	}
}

// refreshRelay reads the connections of the relay.
func (w *watcher) refreshRelay() error {
	sockets, err := process.Sockets(w.relay.PID)
	switch {
	case errors.Is(err, process.ErrNoProcess):
		return errors.New("the relay has ended")
	case errors.Is(err, process.ErrForbidden):
		return remedy.New(fmt.Errorf("cannot see which connections are the relay's: %w", err), "run this as root")
	case err != nil:
		return err
	}
	err = w.table.Refresh(time.Since(w.started), func(visit func(*tcpinfo.Connection)) error {
		return w.diag.Each(tcpinfo.Connections, func(c *tcpinfo.Connection) {
			if sockets[c.Inode] {
				visit(c)
			}
		})
	})
	for _, c := range w.table.Connections() {
		c.Process = w.relay
	}
	return err
}

// lack is a sentence on what could not be seen, or empty.
func (w *watcher) lack() string {
	if w.owners.Forbidden == 0 {
		return ""
	}
	for _, c := range w.table.Connections() {
		if c.Process.PID == 0 && c.Inode != 0 {
			return "processes of other users have no name here; root sees them"
		}
	}
	return ""
}

// print writes a table or an object for each interval.
func (f *topFlags) print(ctx context.Context, env *env, w *watcher, order top.Order, filter top.Filter) error {
	if err := w.refresh(); err != nil {
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
		if err := w.refresh(); err != nil {
			return err
		}
		selected := w.table.Select(filter, order)
		if f.json {
			if err := json.NewEncoder(env.stdout).Encode(topJSON(w, selected, time.Now())); err != nil {
				return err
			}
			continue
		}
		if n > 0 {
			fmt.Fprintln(env.stdout)
		}
		if err := printTop(env.stdout, selected); err != nil {
			return err
		}
		if lack := w.lack(); lack != "" && n == 0 {
			fmt.Fprintln(env.stderr, "longhaul: "+lack)
		}
	}
	return nil
}

// printTop writes the table, in the terminal's width if there is one.
func printTop(out io.Writer, selected []*top.Connection) error {
	width, _ := display.TerminalWidth(out)
	layout := newTopLayout(selected, width)
	buffered := bufio.NewWriter(out)
	fmt.Fprintln(buffered, layout.header())
	for _, c := range selected {
		fmt.Fprintln(buffered, layout.row(c))
	}
	return buffered.Flush()
}

// runTopLive shows the view until the user or a signal ends it.
func runTopLive(ctx context.Context, env *env, view *topLive) error {
	program := tea.NewProgram(view, tea.WithContext(ctx), tea.WithInput(env.stdin), tea.WithOutput(display.Raw(env.stdout)),
		tea.WithFPS(topFrames), tea.WithoutSignalHandler())
	signalled, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	defer context.AfterFunc(signalled, program.Quit)()
	if _, err := program.Run(); err != nil {
		return err
	}
	return view.err
}
