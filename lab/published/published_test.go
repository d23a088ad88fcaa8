package published

import (
	"errors"
	"testing"

	"github.com/spf13/pflag"

	"longhaul/lab/experiment"
)

// Each experiment has an entry and help, and its default options are valid.
func TestExperimentsAreWellFormed(t *testing.T) {
	names := map[string]bool{}
	for _, e := range All() {
		if names[e.Name] {
			t.Errorf("two experiments are named %s", e.Name)
		}
		names[e.Name] = true
		if e.Summary == "" || e.Source == "" || len(e.Cases) == 0 || e.Short == "" || e.Long == "" || e.Example == "" {
			t.Errorf("%s is incomplete: %+v", e.Name, e)
		}
		run := e.New()
		flags := pflag.NewFlagSet(e.Name, pflag.ContinueOnError)
		run.Flags(flags)
		if flags.Lookup("json") != nil {
			t.Errorf("%s has a flag --json, which lab run adds", e.Name)
		}
		if err := run.Check(flags); err != nil && !errors.As(err, new(experiment.Lack)) {
			t.Errorf("%s refuses its usual options: %v", e.Name, err)
		}
	}
}
