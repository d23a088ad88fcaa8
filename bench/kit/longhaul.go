package kit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"longhaul/bench/peers"
	"longhaul/internal/words/remedy"
	"longhaul/lab/sandbox"
)

// Longhaul is a benchmark of the longhaul binary, in namespaces of its own.
type Longhaul struct {
	Flags  *flag.FlagSet // beside --longhaul
	Check  func() error  // of the flags; nil: all are valid
	Binary string
	Dir    string // of its own, which is removed afterwards
}

// Run parses the arguments and measures in the namespaces, whose loopback device is up.
func (l *Longhaul) Run(ctx context.Context, args []string, stdout, stderr io.Writer, measure func() error) (err error) {
	l.Flags.SetOutput(stderr)
	l.Flags.StringVar(&l.Binary, "longhaul", "", "longhaul binary to run (default: built from this tree)")
	if err := l.Flags.Parse(args); err != nil {
		return err
	}
	if l.Check != nil {
		if err := l.Check(); err != nil {
			return err
		}
	}
	if !sandbox.Inside() {
		if l.Binary == "" {
			if err := peers.Fetch(ctx); err != nil {
				return err
			}
		}
		return InSandbox(args, stdout, stderr)
	}
	if err = loopbackUp(); err != nil {
		return err
	}
	if l.Dir, err = os.MkdirTemp("", "lh"); err != nil { // short: it has sockets
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(l.Dir)) }()
	if l.Binary == "" {
		l.Binary = filepath.Join(l.Dir, "longhaul")
		if err := Build(ctx, l.Binary); err != nil {
			return err
		}
	}
	return measure()
}

// loopbackUp sets the sandbox's loopback device up.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set the loopback device up: %w", err)
	}
	return nil
}

// Build builds longhaul from the checkout around the working directory.
func Build(ctx context.Context, file string) error {
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", file, "longhaul/cmd/longhaul").CombinedOutput(); err != nil {
		return remedy.New(fmt.Errorf("build longhaul: %w\n%s", err, strings.TrimSpace(string(out))), "run it in a checkout, or name a binary with --longhaul")
	}
	return nil
}
