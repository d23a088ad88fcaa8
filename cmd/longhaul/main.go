// Longhaul finds out why bulk TCP between far sites is slow, and fixes it
// without touching the endpoints.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
)

func main() {
	prepare()
	os.Exit(run(&env{
		ctx:    context.Background(),
		args:   os.Args[1:],
		stdin:  os.Stdin,
		stdout: os.Stdout,
		stderr: os.Stderr,
		getenv: os.Getenv,
	}))
}

// env holds a command's inputs and outputs, so that tests can run the whole program
// in their own process.
type env struct {
	ctx            context.Context
	args           []string // without the program's name
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string

	// appliedBy is the command that runs this one to apply a remedy, empty for none.
	appliedBy string

	// accepted is set when the command line is valid and the command's own code
	// runs.
	accepted bool
}

// run executes one command line and returns its exit code. Output contains names and
// errors of others: run escapes control characters in it.
func run(env *env) int {
	own := *env
	env = &own
	env.stdout, env.stderr = printable.NewWriter(env.stdout), printable.NewWriter(env.stderr)
	root := newRoot(env)
	root.SetArgs(env.args)
	cmd, err := root.ExecuteContextC(env.ctx)
	if err == nil {
		return exitOK
	}
	code := exitCode(err)
	if code == exitFailure && !env.accepted {
		code = exitUsage // cobra found the mistake
	}
	if code == exitUsage && remedy.Of(err) == "" {
		err = remedy.New(err, "see "+cmd.CommandPath()+" --help")
	}
	printError(env.stderr, err)
	return code
}

// untilSignal ends the context at the first SIGINT or SIGTERM.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}
