package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version says which build this is: the module's version or the commit, the
// compiler and the platform.
func version() string {
	release, commit, dirty := "unknown", "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		release = info.Main.Version
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && len(s.Value) >= 12:
				commit = " " + s.Value[:12]
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+changes"
			}
		}
	}
	return fmt.Sprintf("longhaul %s%s%s %s %s/%s", release, commit, dirty, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersion(env *env) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Say which build this is",
		Example: "  longhaul version",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(env.stdout, version())
			return err
		},
	}
}
