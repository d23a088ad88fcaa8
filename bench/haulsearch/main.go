// Command haulsearch searches random paths for those on which haul breaks a
// promise: it draws paths, has haulsim (bpf/hosttest/sim) simulate them, holds the
// figures against bounds, and shrinks each path that fails to the simplest one that
// still does.
//
//	go run ./bench/haulsearch
//	go run ./bench/haulsearch --time 10m --paths 20000
//	go run ./bench/haulsearch --seed 7 --kind alone,cubic
package main

import (
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
  --control NAME simulate this in place of haul: bbr3 or cubic, to see how
                 hard the same paths are for it (commands are shown with haul)
  --known FILE   shares that are known to be above what is allowed, as JSON:
                 fail only where one is larger than the file says
  --json         print the result as JSON

kinds:
%s
example, some minutes of all and then one kind again:
  go run ./bench/haulsearch --time 5m --paths 100000
  go run ./bench/haulsearch --seed 7 --kind alone,slow --paths 500
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
	s, asJSON, err := parseArgs(args)
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
		return err
	}
	s.run = simulator.run
	if s.control != "haul" {
		s.run = instead(s.control, simulator.run)
	}
	fmt.Fprintf(stderr, "seed %d\n", s.seed)
	end := s.showProgress(stderr)
	r, err := s.do(ctx)
	end()
	if err != nil {
		return err
	}
	if asJSON {
		err = r.writeJSON(stdout)
	} else {
		err = r.writeText(stdout)
	}
	switch {
	case err != nil:
		return err
	case r.exceeded():
		return errors.New("more paths break a bound than are allowed")
	case r.Interrupted:
		return errors.New("interrupted before the end")
	}
	return nil
}

// parseArgs makes a search of a command line.
func parseArgs(args []string) (s *search, asJSON bool, err error) {
	s = &search{progress: func(int, int) {}}
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
	flags.BoolVar(&asJSON, "json", false, "")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, false, err
		}
		return nil, false, fmt.Errorf("%w; see --help", err)
	}
	switch {
	case flags.NArg() > 0:
		return nil, false, fmt.Errorf("unexpected argument %q; see --help", flags.Arg(0))
	case s.paths < 1 || s.workers < 1:
		return nil, false, errors.New("--paths and --workers take 1 or more")
	case s.keep < 0 || s.time < 0:
		return nil, false, errors.New("--keep and --time take 0 or more")
	}
	if !slices.Contains([]string{"haul", "bbr3", "cubic"}, s.control) {
		return nil, false, fmt.Errorf("unknown control %q: use haul, bbr3 or cubic", s.control)
	}
	if s.kinds, err = flagvalue.Choose("kind", kinds, flagvalue.Names(*names), func(k kind) string { return k.name }); err != nil {
		return nil, false, err
	}
	if *knownFile != "" {
		if s.known, err = readKnown(*knownFile); err != nil {
			return nil, false, err
		}
	}
	seeded := false
	flags.Visit(func(f *flag.Flag) { seeded = seeded || f.Name == "seed" })
	if !seeded {
		s.seed = rand.Uint64N(1e9)
	}
	s.shrink = !*noShrink
	return s, asJSON, nil
}

// showProgress shows each second how far the search is, on a terminal. The
// function that it returns ends that and clears the line.
func (s *search) showProgress(stderr io.Writer) (end func()) {
	f, isFile := stderr.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
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
				fmt.Fprint(stderr, "\r\x1b[K")
				return
			case <-tick.C:
				doing := ""
				if paths.Load() == int64(s.paths) {
					doing = ", shrinking"
				}
				fmt.Fprintf(stderr, "\r\x1b[K%d paths, %d break a bound, %.0f s%s", paths.Load(), failed.Load(), time.Since(began).Seconds(), doing)
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}
