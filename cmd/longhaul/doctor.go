//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/doctor"
	"longhaul/internal/measure"
	"longhaul/internal/remedy"
)

// doctorFlags are what the doctor was asked to look at.
type doctorFlags struct {
	local, remote string
	pid           int
	replay, pcap  string
	record        string
	during        time.Duration
	test          bool
	testPort      uint16
	tokenFile     string
	token         measure.Token
	noProbe       bool
	receive       bool
	apply, yes    bool
	undo          bool
	json          bool
}

func newDoctor(env *env) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [HOST[:PORT]]",
		Short: "Name what limits a connection, and what would help",
		Long: `doctor watches TCP connections that are there, or makes one of its own to a
longhaul measure --serve or iperf3 -s at the far end, and says what limits them:
the program, a window or buffer, loss, segment sizes, the path, or nothing. It
names the figures by which it knows, and the remedies with what each would
bring.

With --remote, --local or --pid it only looks, and changes nothing about the
connections. It sends some packets of its own to find out what sizes the path
carries (--no-probe: none), and with --test data, to find out how much.`,
		Example: `  longhaul doctor far.example.net
  longhaul doctor --remote 203.0.113.9:5432 --test
  longhaul doctor --pid 4711 --for 20s
  longhaul doctor --pcap sender.pcap`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.undo {
				if cmd.Flags().NFlag() > 1 || len(args) > 0 {
					return usageError(errors.New("--undo goes alone: it takes back what --apply has done"))
				}
				return undoApplied(env)
			}
			var err error
			if f.token, err = readToken(f.tokenFile); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			observation, err := f.observe(ctx, env, args)
			if err != nil {
				if ctx.Err() != nil {
					return errors.New("interrupted before there was a verdict")
				}
				return err
			}
			if f.record != "" {
				if err := writeObservation(f.record, observation); err != nil {
					return err
				}
			}
			return f.tell(env, observation)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.remote, "remote", "", "watch connections to this far end, `ADDRESS`[:PORT]")
	flags.StringVar(&f.local, "local", "", "watch connections of this near end, [ADDRESS]:`PORT`")
	flags.IntVar(&f.pid, "pid", 0, "watch connections of this process")
	flags.DurationVar(&f.during, "for", 5*time.Second, "how long to watch")
	flags.BoolVar(&f.receive, "receive", false, "with HOST: have that host send")
	flags.BoolVar(&f.test, "test", false, "send data, too, to a longhaul measure there")
	flags.Uint16Var(&f.testPort, "test-port", measure.DefaultPort, "the port of that")
	flags.StringVar(&f.tokenFile, "token", "", "`FILE` with the token that it asks for")
	flags.BoolVar(&f.noProbe, "no-probe", false, "do not find out what sizes get through")
	flags.StringVar(&f.pcap, "pcap", "", "look at a capture in this `FILE`, taken elsewhere")
	flags.StringVar(&f.record, "record", "", "keep what was seen in this `FILE`")
	flags.StringVar(&f.replay, "replay", "", "look at what --record kept in this `FILE`")
	flags.BoolVar(&f.apply, "apply", false, "perform the remedies for this host, after asking")
	flags.BoolVar(&f.yes, "yes", false, "with --apply: do not ask")
	flags.BoolVar(&f.undo, "undo", false, "take back what --apply has done")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
	return cmd
}

// observe looks at what the user named.
func (f *doctorFlags) observe(ctx context.Context, env *env, args []string) (doctor.Observation, error) {
	passive := f.pcap == "" && (f.remote != "" || f.local != "" || f.pid != 0)
	ways := 0
	for _, chosen := range []bool{len(args) > 0, passive, f.replay != "", f.pcap != ""} {
		if chosen {
			ways++
		}
	}
	if ways != 1 || len(args) > 1 {
		return doctor.Observation{}, usageError(remedy.New(errors.New("longhaul doctor wants one host, or connections to watch"), "see longhaul doctor --help"))
	}
	switch {
	case f.pcap != "":
		return f.fromCapture(ctx, env)
	case f.replay != "":
		return readObservation(f.replay)
	case passive:
		return f.watch(ctx, env)
	}
	return f.active(ctx, env, args[0])
}

func writeObservation(path string, o doctor.Observation) error {
	b, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(path, append(b, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("cannot keep what was seen: %w", err)
	}
	return nil
}

func readObservation(path string) (o doctor.Observation, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(b, &o); err != nil || len(o.Samples) == 0 {
		return o, remedy.New(fmt.Errorf("%s is no record of longhaul doctor", path), "longhaul doctor --record FILE makes one")
	}
	return o, nil
}

// endpoint reads an address, a port, or both.
func endpoint(flag, text string) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, nil
	}
	if address, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(address, 0), nil
	}
	if both, err := netip.ParseAddrPort(text); err == nil {
		return both, nil
	}
	bad := usageError(remedy.New(fmt.Errorf("--%s %q is neither an address nor an address and a port", flag, text), "write it like 203.0.113.9:5432, [2001:db8::9]:5432 or :5432"))
	host, portText, err := net.SplitHostPort(text)
	if err != nil {
		return netip.AddrPort{}, bad
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || host != "" {
		return netip.AddrPort{}, bad
	}
	return netip.AddrPortFrom(netip.Addr{}, uint16(port)), nil
}
