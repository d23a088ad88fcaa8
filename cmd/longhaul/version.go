package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/words/display"
)

// packaging/build sets these through the linker; they are empty in other builds.
var release, commit, date string

// build describes this build.
type build struct {
	Release  string `json:"release"` // or the module's version
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified"`       // the tree had changes that were not committed
	Date     string `json:"date,omitempty"` // the day of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{
		Release: release, Commit: commit, Date: date,
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if strings.HasSuffix(b.Commit, "+changes") {
		b.Commit, b.Modified = strings.TrimSuffix(b.Commit, "+changes"), true
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		own := b.Release == ""
		if own {
			b.Release = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && own && len(s.Value) >= 12:
				b.Commit = s.Value[:12]
			case s.Key == "vcs.modified" && own && s.Value == "true":
				b.Modified = true
			case s.Key == "vcs.time" && b.Date == "":
				b.Date, _, _ = strings.Cut(s.Value, "T")
			}
		}
	}
	if b.Release == "" {
		b.Release = "unknown"
	}
	return b
}

// version describes this build on one line.
func version() string {
	b := thisBuild()
	commit := b.Commit
	if b.Modified {
		commit += "+changes"
	}
	return strings.Join(slices.DeleteFunc([]string{"longhaul", b.Release, commit, b.Go, b.Platform},
		func(word string) bool { return word == "" }), " ")
}

func newVersion(env *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this build",
		Long: `version prints the release, the commit, the version of Go and the platform of
this build. A build from a tree with changes has +changes at the commit.`,
		Example: `  longhaul version
  longhaul version --json | jq -r .release`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return display.WriteJSON(env.stdout, thisBuild())
			}
			_, err := fmt.Fprintln(env.stdout, version())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}
