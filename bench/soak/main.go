// Soak runs a pair of relays for a long time under everything at once, and
// checks that they never lie about an ending:
//
//	go run ./bench/soak --time 10m
//
// The pair stands in a lab of network namespaces with an emulated WAN; nothing
// of the machine is touched. Needs root, or a user who may make namespaces.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"longhaul/bench/peers"
	"longhaul/internal/lab/sandbox"
)

func main() {
	sandbox.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	status := 0
	switch err := command(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		if !errors.Is(err, errInside) {
			fmt.Fprintln(os.Stderr, "soak:", err)
		}
		status = 1
	}
	stop()
	os.Exit(status)
}

// errInside says that the program inside the sandbox has failed and has said why.
var errInside = errors.New("failed")

// errViolations says that the relays did something wrong.
var errViolations = errors.New("the relays broke a rule")

// The parts of a soak.
const (
	partMixed = "mixed"
	partSlow  = "slow-reader"
	partChurn = "churn"
)

var parts = []string{partMixed, partSlow, partChurn}

// options are the command line.
type options struct {
	parts       []string
	seed        uint64
	time        time.Duration
	flows       int
	slow        time.Duration
	connections int64
	reloads     int
	json        bool
	binary      string
}

// result is what --json prints.
type result struct {
	Mixed *mixedResult `json:"mixed,omitempty"`
	Slow  *slowResult  `json:"slow_reader,omitempty"`
	Churn *churnResult `json:"churn,omitempty"`
}

// violations counts those of all parts.
func (r result) violations() (n int) {
	if r.Mixed != nil {
		n += len(r.Mixed.Violations)
	}
	if r.Slow != nil {
		n += len(r.Slow.Violations)
	}
	if r.Churn != nil {
		n += len(r.Churn.Violations)
	}
	return n
}

// command reads the command line, and runs itself again inside a sandbox.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if !sandbox.Inside() {
		if o.binary == "" {
			if err := peers.Fetch(ctx); err != nil {
				return err
			}
		}
		status, err := sandbox.Run(args, os.Stdin, stdout, stderr)
		if err == nil && status != 0 {
			err = errInside
		}
		return err
	}
	r, err := run(ctx, o, stderr)
	if err != nil {
		return err
	}
	if o.json {
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(r)
	} else {
		r.write(stdout)
	}
	if err == nil && r.violations() > 0 {
		err = errViolations
	}
	return err
}

func (r result) write(w io.Writer) {
	if r.Mixed != nil {
		r.Mixed.write(w)
	}
	if r.Slow != nil {
		r.Slow.write(w)
	}
	if r.Churn != nil {
		r.Churn.write(w)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var chosen string
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&chosen, "parts", partMixed, "what to run, with commas: "+strings.Join(parts, ", ")+", or all")
	flags.Uint64Var(&o.seed, "seed", 0, "of the flows and of what happens to the relays; 0 draws one")
	flags.DurationVar(&o.time, "time", 10*time.Minute, "of mixed: for how long flows are begun")
	flags.IntVar(&o.flows, "flows", 48, "of mixed: at the same time")
	flags.DurationVar(&o.slow, "slow", time.Minute, "of slow-reader: for how long it is slow")
	flags.Int64Var(&o.connections, "connections", 20_000, "of churn")
	flags.IntVar(&o.reloads, "reloads", 1000, "of churn, of both relays together")
	flags.BoolVar(&o.json, "json", false, "print the result as JSON")
	flags.StringVar(&o.binary, "longhaul", "", "`PATH` of the program to test (default: built from this tree)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q is no flag: see --help", flags.Arg(0))
	}
	o.parts = strings.Split(chosen, ",")
	if chosen == "all" {
		o.parts = parts
	}
	for _, p := range o.parts {
		if !slices.Contains(parts, p) {
			return o, fmt.Errorf("there is no part %q: use %s, or all", p, strings.Join(parts, ", "))
		}
	}
	if o.time <= 0 || o.slow <= 0 || o.flows < 1 || o.connections < 1 || o.reloads < 1 {
		return o, errors.New("times and numbers must be above 0")
	}
	return o, nil
}

// run runs the parts, each with a pair of relays of its own. Progress goes to
// stderr.
func run(ctx context.Context, o options, stderr io.Writer) (result, error) {
	var r result
	if o.seed == 0 {
		o.seed = 1 + rand.Uint64()%1_000_000
	}
	for _, part := range o.parts {
		w, err := newWorld(ctx, o.binary, o.seed)
		if err != nil {
			return r, err
		}
		switch part {
		case partMixed:
			fmt.Fprintf(stderr, "%s: %v, %d flows at the same time, seed %d\n", part, o.time, o.flows, o.seed)
			var m mixedResult
			m, err = runMixed(ctx, w, o.seed, o.time, o.flows, func(p mixedProgress) { fmt.Fprintln(stderr, p) })
			r.Mixed = &m
		case partSlow:
			fmt.Fprintf(stderr, "%s: %v\n", part, o.slow)
			var s slowResult
			s, err = runSlow(ctx, w, o.seed, o.slow)
			r.Slow = &s
		case partChurn:
			fmt.Fprintf(stderr, "%s: %d connections, %d reloads\n", part, o.connections, o.reloads)
			var c churnResult
			c, err = runChurn(ctx, w, o.seed, o.connections, o.reloads)
			r.Churn = &c
		}
		if err == nil {
			err = w.stop(ctx)
		}
		w.close()
		if err != nil {
			return r, fmt.Errorf("%s: %w", part, err)
		}
	}
	return r, nil
}
