// Package kit makes a program of an experiment: it parses the flags, builds longhaul, runs
// the experiment in a sandbox and prints the result.
package kit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"

	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
	"longhaul/lab/experiment"
	"longhaul/lab/progress"
	"longhaul/lab/sandbox"
)

// Exit statuses, as those of longhaul.
const (
	exitFailure = 1
	exitUsage   = 2
)

// Main runs one of the experiments: the first argument names it, unless there is one
// alone or the usual, the first, is meant.
func Main(experiments ...experiment.Experiment) {
	sandbox.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, experiments, os.Args[1:]))
}

func run(ctx context.Context, experiments []experiment.Experiment, args []string) int {
	e, name := experiments[0], []string(nil)
	if len(experiments) > 1 && len(args) > 0 {
		for _, other := range experiments {
			if other.Name == args[0] {
				e, name, args = other, args[:1:1], args[1:]
				break
			}
		}
	}
	p := &execution{Experiment: e, run: e.New(), name: name, stdout: os.Stdout, stderr: os.Stderr}
	err := p.main(ctx, args)
	var ended statusError
	var usage usageError
	switch {
	case err == nil, errors.Is(err, pflag.ErrHelp):
		return 0
	case errors.As(err, &ended):
		return int(ended)
	}
	fmt.Fprintf(p.stderr, "%s: %v\n", e.Name, err)
	if hint := remedy.Of(err); hint != "" {
		fmt.Fprintln(p.stderr, "hint:", hint)
	}
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

// execution is one run of an experiment.
type execution struct {
	experiment.Experiment
	run            experiment.Run
	name           []string // the argument that names the experiment; none: it is the usual
	stdout, stderr io.Writer
	json           bool
	longhaul       string // the binary
}

// statusError is the status of a run in the sandbox, which has printed its error.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// usageError is a mistake of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func (p *execution) main(ctx context.Context, args []string) (err error) {
	flags := pflag.NewFlagSet(p.Name, pflag.ContinueOnError)
	flags.SetOutput(p.stderr)
	flags.Usage = func() {
		fmt.Fprintf(p.stderr, "%s\n\nExamples:\n%s\n\nFlags:\n%s", p.Long, p.Example, flags.FlagUsages())
	}
	p.run.Flags(flags)
	flags.BoolVar(&p.json, "json", false, "print the result as JSON")
	flags.StringVar(&p.longhaul, "longhaul", "", "longhaul `FILE` to run (default: built from this tree)")
	if err := flags.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	if flags.NArg() > 0 {
		return usageError{fmt.Errorf("unexpected argument %q: see --help", flags.Arg(0))}
	}
	// Refuse a mistake before a sandbox is built.
	if err := p.run.Check(flags); errors.As(err, new(experiment.Lack)) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	if sandbox.Inside() {
		return p.measure(ctx)
	}
	if user, ok := p.run.(experiment.AlgorithmUser); ok {
		unload, err := experiment.LoadAlgorithms(ctx, user.Algorithms(), progress.NewPrinter(p.stderr).Report)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unload()) }()
	}
	if p.longhaul == "" {
		dir, err := os.MkdirTemp("", "longhaul-bench-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		built := filepath.Join(dir, "longhaul")
		if err := Build(ctx, built); err != nil {
			return err
		}
		args = append(args, "--longhaul", built)
	}
	status, err := sandbox.Run(append(p.name, args...), os.Stdin, p.stdout, p.stderr)
	if err == nil && status != 0 {
		err = statusError(status)
	}
	return err
}

// measure runs the experiment in the sandbox.
func (p *execution) measure(ctx context.Context) error {
	if err := errors.Join(sandbox.PrivateRun(), loopbackUp()); err != nil {
		return err
	}
	printer := progress.NewPrinter(p.stderr)
	result, err := p.run.Run(ctx, experiment.Environment{Program: p.longhaul, Report: printer.Report})
	printer.Clear()
	if ctx.Err() != nil {
		return errors.New("interrupted: the lab is removed")
	}
	if err != nil {
		return err
	}
	if p.json {
		err = display.WriteJSON(p.stdout, result)
	} else {
		err = result.WriteText(p.stdout)
	}
	judge, ok := result.(experiment.Judge)
	if err != nil || !ok {
		return err
	}
	if err = judge.Judge(); errors.Is(err, experiment.ErrShown) {
		return statusError(exitFailure)
	}
	return err
}
