// Command haulsearch searches random paths for those on which haul breaks a
// promise: it draws paths, has haulsim (bpf/hosttest/sim) simulate them, holds the
// figures against bounds, and shrinks each path that fails to the simplest one that
// still does.
//
//	go run ./bench/haulsearch
//	go run ./bench/haulsearch --time 10m --paths 20000
//	go run ./bench/haulsearch --seed 7 --kind alone,cubic
//	go run ./bench/haulsearch --like users
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/term"

	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
)

const usage = `usage: haulsearch [flags]

haulsearch draws random paths, simulates haul on each and holds the figures
against haul's bounds. Each path that breaks one is shrunk to the simplest that
still does, and printed as a haulsim command. It needs gcc.

  --paths N      how many paths (default 1000)
  --time D       stop after that long, such as 10m (default: after all paths)
  --seed N       makes the paths; the same in every run (default: drawn)
  --workers N    simulations at the same time (default: one for each CPU)
  --kind LIST    kinds of paths, with commas between (default: all)
  --keep N       failures to show and to shrink (default 10)
  --no-shrink    show failures as they were found
  --control NAME simulate this in place of haul: bbr, bbr3, cubic or reno, to
                 see how hard the same paths are for it (commands show haul)
  --known FILE   shares that are known to be above what is allowed, as JSON:
                 fail only where one is larger than the file says
  --json         print the result as JSON
  --like users   draw paths as users have them, by class of access, and compare
                 haul with bbr, bbr3, CUBIC and Reno on each, and what a CUBIC
                 beside it keeps; --keep is how many of the worst to show
  --rules        switch each rule of haul off in turn: which paths break a bound
                 only without it, or only with it, and its effect on some cells.
                 It searches as often as there are rules, and says how long;
                 Ctrl+C prints the rules that are done
  --rivals FILE  with --like users: take the rivals' figures from this output of
                 an earlier run (--json, same seed), and simulate haul alone

kinds:
%s
example, some minutes of all and then one kind again:
  go run ./bench/haulsearch --time 5m --paths 100000
  go run ./bench/haulsearch --seed 7 --kind alone,slow --paths 500
a change of haul on users' paths, before and after:
  go run ./bench/haulsearch --like users --seed 7 --json >before.json
  go run ./bench/haulsearch --like users --seed 7 --rivals before.json
what CI runs:
  go run ./bench/haulsearch --seed 1 --paths 1800 \
    --known bench/haulsearch/known.json

Exit status: 0 all shares within what is allowed or known, 1 a share above it or
the search failed or was interrupted, 2 a wrong command line.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "haulsearch:", err)
	var wrong usageError
	if errors.As(err, &wrong) {
		os.Exit(2)
	}
	os.Exit(1)
}

// A usageError is a wrong command line.
type usageError struct{ error }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseArgs(args)
	if errors.Is(err, flag.ErrHelp) {
		var list strings.Builder
		for _, k := range kinds {
			fmt.Fprintf(&list, "  %-10s %s\n", k.name, k.says)
		}
		_, err := fmt.Fprintf(stdout, usage, list.String())
		return err
	}
	if err != nil {
		return usageError{err}
	}
	dir, err := os.MkdirTemp("", "longhaul-haulsearch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	simulator, err := buildSimulator(ctx, dir)
	if err != nil {
		return cmp.Or(whole(ctx.Err() != nil), err) // an interrupt kills the compiler
	}
	o.run, o.notes = simulator.run, stderr
	total := o.paths
	if o.rules {
		if o.list, err = simulator.rules(ctx); err != nil {
			return err
		}
		total *= 1 + len(o.list)
	}
	fmt.Fprintf(stderr, "seed %d, %d paths\n", o.seed, total)
	failing := "break a bound"
	if o.users {
		failing = "below 0.9 of the best"
	}
	end := o.showProgress(stderr, failing, total)
	found, err := o.find(ctx, simulator)
	end()
	if err != nil {
		return err
	}
	if o.asJSON {
		err = writeJSON(stdout, found)
	} else {
		err = found.writeText(stdout)
	}
	if err != nil {
		return err
	}
	return found.verdict()
}

// findings are what a search found.
type findings interface {
	writeText(io.Writer) error
	verdict() error // nil: the search is complete, and nothing is above what is allowed
}

func (o *options) find(ctx context.Context, simulator *simulator) (findings, error) {
	switch {
	case o.users:
		s := usersSearch{search: o.search, simulator: simulator.rest, stored: o.stored}
		return s.do(ctx)
	case o.rules:
		return o.searchRules(ctx, o.list, simulator.without)
	}
	o.run = instead(o.control, o.run)
	return o.do(ctx)
}

// whole is an error if a search was interrupted.
func whole(interrupted bool) error {
	if interrupted {
		return errors.New("interrupted before the end")
	}
	return nil
}

// options are a command line.
type options struct {
	search
	asJSON bool
	users  bool
	rules  bool
	list   []rule       // with rules: those of haul
	stored *usersResult // with users: the rivals' figures
}

// parseArgs reads a command line.
func parseArgs(args []string) (s *options, err error) {
	s = &options{search: search{progress: func(int, int) {}}}
	flags := flag.NewFlagSet("haulsearch", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&s.paths, "paths", 1000, "")
	flags.DurationVar(&s.time, "time", 0, "")
	flags.Uint64Var(&s.seed, "seed", 0, "")
	flags.IntVar(&s.workers, "workers", runtime.NumCPU(), "")
	names := flags.String("kind", "", "")
	flags.IntVar(&s.keep, "keep", 10, "")
	noShrink := flags.Bool("no-shrink", false, "")
	knownFile := flags.String("known", "", "")
	flags.StringVar(&s.control, "control", "haul", "")
	flags.BoolVar(&s.asJSON, "json", false, "")
	like := flags.String("like", "", "")
	rivalsFile := flags.String("rivals", "", "")
	flags.BoolVar(&s.rules, "rules", false, "")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, fmt.Errorf("%w; see --help", err)
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q; see --help", flags.Arg(0))
	case s.paths < 1 || s.workers < 1:
		return nil, errors.New("--paths and --workers take 1 or more")
	case s.keep < 0 || s.time < 0:
		return nil, errors.New("--keep and --time take 0 or more")
	}
	if !slices.Contains(append([]string{"haul"}, rivals...), s.control) {
		return nil, fmt.Errorf("unknown control %q: use haul, bbr, bbr3, cubic or reno", s.control)
	}
	if s.kinds, err = flagvalue.Choose("kind", kinds, flagvalue.Names(*names), func(k kind) string { return k.name }); err != nil {
		return nil, err
	}
	if s.users = *like == "users"; !s.users && *like != "" {
		return nil, fmt.Errorf("unknown --like %q: use users", *like)
	}
	if *rivalsFile != "" {
		if !s.users {
			return nil, errors.New("--rivals needs --like users")
		}
		if s.stored, err = readRivals(*rivalsFile); err != nil {
			return nil, err
		}
	}
	if *knownFile != "" {
		if s.known, err = readKnown(*knownFile); err != nil {
			return nil, err
		}
	}
	seeded := false
	var not []string
	flags.Visit(func(f *flag.Flag) {
		seeded = seeded || f.Name == "seed"
		if s.users && slices.Contains([]string{"kind", "no-shrink", "control", "known", "rules"}, f.Name) ||
			s.rules && slices.Contains([]string{"no-shrink", "control", "known", "keep", "time"}, f.Name) {
			not = append(not, "--"+f.Name)
		}
	})
	if len(not) > 0 {
		mode := "--rules"
		if s.users {
			mode = "--like users"
		}
		return nil, fmt.Errorf("%s has no %s", mode, strings.Join(not, ", "))
	}
	if !seeded {
		s.seed = rand.Uint64N(1e9)
	}
	s.shrink = !*noShrink && !s.users
	return s, nil
}

// overLine writes each line over the one with the progress.
type overLine struct{ io.Writer }

func (o overLine) Write(line []byte) (int, error) {
	if _, err := o.Writer.Write(append([]byte("\r\x1b[K"), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// left says how long a search that ran for a time and has some of all paths goes on, if it ends
// after a time at most; 0: only with the last path.
func left(ran time.Duration, done, all int, end time.Duration) string {
	if done == 0 || done >= all {
		return ""
	}
	more := time.Duration(float64(ran) / float64(done) * float64(all-done))
	if end > 0 {
		more = min(more, max(0, end-ran))
	}
	return ", about " + display.Span(more) + " left"
}

// showProgress shows each second how many paths of all are done and how many fail. The
// function that it returns ends that and clears the line.
func (s *search) showProgress(stderr io.Writer, failing string, all int) (end func()) {
	f, isFile := stderr.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	s.notes = overLine{stderr}
	var paths, failed atomic.Int64
	s.progress = func(p, n int) {
		paths.Store(int64(p))
		failed.Store(int64(n))
	}
	began, stop, stopped := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				_, _ = s.notes.Write(nil)
				return
			case <-tick.C:
				done, ran := int(paths.Load()), time.Since(began)
				doing := left(ran, done, all, s.time)
				if done == all && s.shrink {
					doing = ", shrinking"
				}
				fmt.Fprintf(s.notes, "%d of %d paths, %d %s, %.0f s%s", done, all, failed.Load(), failing, ran.Seconds(), doing)
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}
