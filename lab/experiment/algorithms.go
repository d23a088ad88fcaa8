package experiment

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/lab/progress"
	"longhaul/lab/sandbox"
)

// LoadAlgorithms loads longhaul's congestion controls that an experiment uses. The
// returned function unloads those that it loaded. It must run outside the sandbox:
// the kernel has one table of algorithms for the whole machine. If an algorithm does
// not load, it reports that, or fails if the algorithm is required.
func LoadAlgorithms(ctx context.Context, wanted Algorithms, report progress.Reporter) (unload func() error, err error) {
	nothing := func() error { return nil }
	if sandbox.Inside() || !wanted.All && len(wanted.Names) == 0 {
		return nothing, nil
	}
	by := ledger.Caller(os.Getenv, "longhaul lab")
	by.Means, by.Process = ledger.Lab, ledger.ThisProcess()
	host := cc.NewHost(by)
	own, err := host.Names()
	if err != nil {
		return nothing, err
	}
	var refused []string
	var why error
	unload = func() error {
		// Without the context: an interrupt must not leave an algorithm loaded.
		_, err := host.Undo(context.WithoutCancel(ctx), func(_ ledger.Key, c ledger.Claim) bool { return c.Same(by) })
		return err
	}
	names := slices.DeleteFunc(slices.Clone(wanted.Names), func(name string) bool { return !host.IsOwn(name) })
	if wanted.All {
		names = own
	}
	for _, name := range names {
		_, loadErr := host.Load(ctx, name, name)
		switch {
		case errors.Is(loadErr, cc.ErrTaken): // by a kernel module: the runs use that
		case loadErr != nil && wanted.Required:
			return nothing, errors.Join(loadErr, unload())
		case loadErr != nil:
			refused, why = append(refused, name), loadErr
		}
	}
	if len(refused) > 0 {
		report.Notef("%s: not run: %v", strings.Join(refused, ", "), why)
	}
	return unload, nil
}
