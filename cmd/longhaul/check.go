//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/check"
	"longhaul/internal/display"
	"longhaul/internal/remedy"
	"longhaul/internal/units"
)

// exitLossy says that a tunnel is whole and loses segments.
const exitLossy = 3

func newCheck(env *env) *cobra.Command {
	var (
		asJSON      bool
		size, newTo string
		chosen      relayChoice
	)
	cmd := &cobra.Command{
		Use:   "check (TUNNEL | --new-key FILE)",
		Short: "Walk a tunnel's relays to its target: is each up, does data pass whole",
		Long: `check has the running relay walk the chain that begins with TUNNEL: from relay
to relay, as a flow would, to what the last one leads to. It says whether each
hop is up, whether the target accepts, and whether bytes pass every leg and
every relay unaltered in both directions, with round-trip time, goodput and
loss. The target is connected to, and sent nothing.

The relays of a chain share a key (check.key_file in their configuration), which
--new-key makes; nobody else can have them answer. The file may hold two keys, a
line each: a relay asks with the first and answers under both, so that the key
can be changed while checks go on. Clocks that differ by more than 2 minutes
are noted; checks go on all the same.

Exit codes: 0 whole, 1 broken, or it could not be checked, 2 wrong command
line, 3 whole, but a leg loses segments.`,
		Example: `  longhaul check to-site-b
  longhaul check to-site-b --bytes 16MiB --json | jq .summary
  longhaul check --new-key /etc/longhaul/check.key`,
		Args: cobra.MaximumNArgs(1),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&size, "bytes", "", "send `SIZE` each way over every leg (check.bytes)")
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	chosen.register(flags)
	flags.StringVar(&newTo, "new-key", "", "make a key in a new `FILE`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case newTo != "" && len(args) > 0:
			return usageError(remedy.New(errors.New("--new-key checks no tunnel"), "leave out one of the two"))
		case newTo != "":
			return newKey(env, newTo)
		case len(args) != 1:
			return usageError(remedy.New(errors.New("no tunnel is named"), "longhaul status lists the tunnels"))
		}
		arguments := url.Values{"tunnel": args}
		if size != "" {
			bytes, err := units.ParseSize(size)
			if err != nil || bytes < check.MinBytes || bytes > check.MaxBytes {
				return usageError(remedy.New(fmt.Errorf("--bytes cannot be %q", size), "choose 4KiB to 256MiB"))
			}
			arguments.Set("bytes", strconv.FormatInt(int64(bytes), 10))
		}
		body, err := tellRelay(cmd.Context(), env, chosen, "check", arguments)
		if err != nil {
			return err
		}
		var r check.Report
		if err := json.Unmarshal(body, &r); err != nil {
			return remedy.New(fmt.Errorf("cannot read the relay's answer: %w", err), "the relay may be of another version; try --json")
		}
		if asJSON {
			err = display.WriteJSON(env.stdout, r)
		} else {
			writeCheck(env.stdout, r)
		}
		if err != nil {
			return err
		}
		switch r.State {
		case check.Whole:
			return nil
		case check.Lossy:
			return &exitError{status: exitLossy}
		}
		return &exitError{status: exitFailure}
	}
	return cmd
}

func newKey(env *env, path string) error {
	if err := check.NewKey().Create(path); err != nil {
		return err
	}
	_, err := fmt.Fprintf(env.stdout, "%s: a new key; copy it to every relay of the chain, and name it there as check.key_file\n", path)
	return err
}

// writeCheck prints a report in 80 columns.
func writeCheck(w io.Writer, r check.Report) {
	wrap(w, "", fmt.Sprintf("%s: %s: %s", r.Tunnel, r.State, r.Summary))
	if r.Hint != "" {
		wrap(w, "  hint: ", r.Hint)
	}
	for _, c := range r.Chains {
		fmt.Fprintln(w)
		if len(r.Chains) > 1 {
			fmt.Fprintf(w, "by way of %s\n", c.Forward)
			if c.Fault != nil && c.Fault.Text != r.Summary {
				wrap(w, "  ", c.Fault.Text)
			}
		}
		writeChain(w, c)
	}
	fmt.Fprintf(w, "\nchecked in %.2f s\n", r.ElapsedSeconds)
}

func writeChain(w io.Writer, c check.Chain) {
	const row = "%2s  %-32s %-7s %8s %8s %8s %6s\n"
	fmt.Fprintf(w, row, "", "HOP", "STATE", "RTT", "UP", "DOWN", "LOSS")
	for i, h := range c.Hops {
		fmt.Fprintf(w, row, strconv.Itoa(i+1), display.Shorten(hopName(h), 32), hopState(c, i), hopRTT(h), hopRate(h.Up), hopRate(h.Down), hopLoss(h))
	}
	for _, h := range c.Hops {
		if ahead, off := h.ClockIsOff(); off {
			wrap(w, "    ", fmt.Sprintf("the clock of %s is %s; timedatectl there and here tells whether it is kept right (NTP)", cmp.Or(h.Host, h.Address.String()), check.Ahead(ahead, "this relay's")))
		}
	}
	if n := len(c.Hops); n > 1 {
		for _, h := range c.Hops {
			if t := h.Through; t != nil && t.Up.GoodputBps != nil && t.Down.GoodputBps != nil {
				fmt.Fprintf(w, "    through the relays to %s: %s up, %s down\n", h.Host, display.CompactRate(*t.Up.GoodputBps), display.CompactRate(*t.Down.GoodputBps))
			}
		}
	}
}

func hopName(h check.Hop) string {
	address := ""
	if h.Address.IsValid() {
		address = h.Address.String()
	}
	switch {
	case h.Kind == check.KindTarget:
		return "target " + address + unaddressed(h)
	case h.Kind == check.KindOther:
		return "no relay " + address
	case h.Host != "" && address != "":
		return h.Host + " " + address
	}
	return address + h.Host
}

// unaddressed is the name of a target of which no address is known.
func unaddressed(h check.Hop) string {
	if h.Address.IsValid() {
		return ""
	}
	return h.Host
}

// hopState is up, or what is wrong.
func hopState(c check.Chain, i int) string {
	switch f := c.Fault; {
	case f != nil && f.Hop == i+1 && c.Hops[i].State == check.Broken:
		return display.Shorten(string(f.Reason), 7)
	case c.Hops[i].State == check.Lossy:
		return "lossy"
	}
	return "up"
}

func hopRTT(h check.Hop) string {
	if h.RTTMs == nil {
		return "-"
	}
	switch rtt := *h.RTTMs; {
	case rtt < 1:
		return fmt.Sprintf("%.0fµs", 1000*rtt)
	case rtt < 10:
		return fmt.Sprintf("%.2fms", rtt)
	default:
		return fmt.Sprintf("%.1fms", rtt)
	}
}

func hopRate(d *check.Direction) string {
	if d == nil || d.GoodputBps == nil {
		return "-"
	}
	return display.CompactRate(*d.GoodputBps)
}

// hopLoss is that of the lossier direction.
func hopLoss(h check.Hop) string {
	loss := max(h.Up.LossRatio(), h.Down.LossRatio())
	if loss < 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*loss)
}

// writeLastCheck prints a line of status about a tunnel's last check.
func writeLastCheck(w io.Writer, all []check.Report, tunnel string, now time.Time) {
	for _, r := range all {
		if r.Tunnel == tunnel {
			fmt.Fprintln(w, head(fmt.Sprintf("  check %s ago: %s: %s", display.Age(now.Sub(r.At).Seconds()), r.State, r.Summary), 80))
		}
	}
}

// head cuts off what is wider than its line.
func head(s string, width int) string {
	if runes := []rune(s); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return s
}
