package kit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"longhaul/lab/sandbox"
)

// ErrReported is a failure that the run inside the namespace has told.
var ErrReported = errors.New("failed")

// Command runs a benchmark with flags of its own until it ends or is interrupted, and
// prints its failure on standard error.
func Command(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	sandbox.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	if !errors.Is(err, ErrReported) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	os.Exit(1)
}

// InSandbox runs the benchmark again in namespaces of its own, to its end.
func InSandbox(args []string, stdout, stderr io.Writer) error {
	status, err := sandbox.Run(args, os.Stdin, stdout, stderr)
	if err != nil {
		return fmt.Errorf("make a network namespace to measure in: %w", err)
	}
	if status != 0 {
		return ErrReported
	}
	return nil
}
