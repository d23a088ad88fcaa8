package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// packaging/build sets these through the linker; they are empty in other builds.
var release, commit, date string

// version describes this build: the release or the module's version, the commit, the
// compiler and the platform.
func version() string {
	release, commit, dirty := release, commit, ""
	if commit != "" {
		commit = " " + commit
	}
	if info, ok := debug.ReadBuildInfo(); ok && release == "" {
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
	if release == "" {
		release = "unknown"
	}
	return fmt.Sprintf("longhaul %s%s%s %s %s/%s", release, commit, dirty, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// releaseName is the release alone.
func releaseName() string { return strings.Fields(version())[1] }

// releaseDate is the day of the commit; empty if unknown.
func releaseDate() string {
	day := date
	if info, ok := debug.ReadBuildInfo(); ok && day == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" {
				day, _, _ = strings.Cut(s.Value, "T")
			}
		}
	}
	return day
}

func newVersion(env *env) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this build",
		Example: "  longhaul version",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(env.stdout, version())
			return err
		},
	}
}
