// Command captures compares what longhaul counts in captures with what tshark counts in the same
// files, and prints where the two differ:
//
//	go run ./bench/captures DIR...
//	go run ./bench/captures --least 20kB --json DIR FILE...
//
// It reads every file in the folders, equal files once. longhaul doctor --pcap runs on each file, for
// its verdict, exit status, time and memory. tshark reads the files that are large enough for such a
// flow. bench/README.md says what the figures mean.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/words/units"
)

func main() { kit.Command("captures", run) }

// bench is what to compare.
type bench struct {
	paths  []string
	least  int64         // bytes of a direction that is compared
	within time.Duration // for each program and file
	binary string        // of longhaul
	tshark string
	self   string // this program
	dir    string // of its own
	stderr io.Writer
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("captures", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "Usage: go run ./bench/captures [FLAGS] DIR|FILE...")
		flags.PrintDefaults()
	}
	b := bench{least: 100_000, stderr: stderr}
	flags.Func("least", "data of a direction that is compared (default 100kB)", func(s string) error {
		size, err := units.ParseSize(s)
		b.least = int64(size)
		return err
	})
	flags.DurationVar(&b.within, "within", time.Minute, "time limit of each program on each file")
	flags.StringVar(&b.binary, "longhaul", "", "longhaul binary to run (default: built from this tree)")
	asJSON := flags.Bool("json", false, "print everything as JSON")
	read := flags.String("read", "", "print longhaul's counts of this file as JSON; the comparison runs this, so that it survives a crash")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *read != "" {
		return printCounts(stdout, *read)
	}
	if b.paths = flags.Args(); len(b.paths) == 0 {
		return errors.New("name folders or files with captures: go run ./bench/captures DIR")
	}
	if b.within <= 0 {
		return errors.New("--within takes a time above 0")
	}
	if err := b.prepare(ctx); err != nil {
		return errors.Join(err, b.removeDir())
	}
	total, err := b.compareAll(ctx)
	// Before the output, whose reader may end this program.
	if err = errors.Join(err, b.removeDir()); err != nil {
		return err
	}
	if *asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(total)
	} else {
		err = total.print(stdout)
	}
	if crashed := total.Files.Crashed + total.Files.TimedOut; err == nil && crashed > 0 {
		return fmt.Errorf("longhaul crashed or did not end on %d files", crashed)
	}
	return err
}

// prepare finds the programs, and builds longhaul.
func (b *bench) prepare(ctx context.Context) (err error) {
	if b.tshark, err = exec.LookPath("tshark"); err != nil {
		return errors.New("tshark is not installed (Debian package tshark)")
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "captures"); err != nil {
		return err
	}
	if b.binary != "" {
		return nil
	}
	b.binary = filepath.Join(b.dir, "longhaul")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", b.binary, "longhaul/cmd/longhaul").CombinedOutput(); err != nil {
		return fmt.Errorf("build longhaul: %w\n%s", err, out)
	}
	return nil
}

func (b *bench) removeDir() error {
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}
