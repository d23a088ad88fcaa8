// Command endings runs the same six ways for a connection to end against
// longhaul and other relays over loopback, and prints which of them reach the
// other side as what they were.
//
//	go run ./bench/endings --markdown
//
// What is not installed is skipped with a line that says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "endings:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 3 && args[0] == copyLoopCommand {
		return copyLoop(ctx, args[1], args[2])
	}
	flags := flag.NewFlagSet("endings", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON")
	asMarkdown := flags.Bool("markdown", false, "print a Markdown table")
	repeat := flags.Int("repeat", 20, "runs of each sequence")
	only := flags.String("relays", "", "comma-separated names of the relays to run (default all)")
	endings := flags.String("endings", "", "comma-separated names of the sequences to run (default all)")
	binary := flags.String("longhaul", "", "longhaul binary to run (default: built from this tree)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *repeat < 1 {
		return fmt.Errorf("--repeat %d: use 1 or more", *repeat)
	}

	dir, err := os.MkdirTemp("", "longhaul-endings-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // nginx's worker is another user
		return err
	}
	relays, err := pick("relay", allRelays(*binary), *only, func(r relay) string { return r.name })
	if err != nil {
		return err
	}
	all, err := sequences()
	if err != nil {
		return err
	}
	picked, err := pick("ending", all, *endings, func(s sequence) string { return s.name })
	if err != nil {
		return err
	}
	result, err := measure(ctx, relays, picked, *repeat, dir, stderr)
	if err != nil {
		return err
	}
	switch {
	case *asJSON:
		return result.writeJSON(stdout)
	case *asMarkdown:
		return result.writeMarkdown(stdout)
	}
	return result.writeText(stdout)
}

// pick returns those of all with the given comma-separated names, all of them
// where there are no names.
func pick[T any](what string, all []T, names string, nameOf func(T) string) ([]T, error) {
	if names == "" {
		return all, nil
	}
	var picked []T
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(all, func(t T) bool { return nameOf(t) == name })
		if i < 0 {
			var have []string
			for _, t := range all {
				have = append(have, nameOf(t))
			}
			return nil, fmt.Errorf("there is no %s %q: use %s", what, name, strings.Join(have, ", "))
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}
