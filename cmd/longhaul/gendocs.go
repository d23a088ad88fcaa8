//go:build linux

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/docs"
	"longhaul/internal/manpage"
	"longhaul/internal/manpage/commandpage"
	"longhaul/packaging"
)

// newGenDocs writes the files that packaging/build puts into the packages.
func newGenDocs(env *env) *cobra.Command {
	return &cobra.Command{
		Use:   "gen-docs DIR",
		Short: "Write manual pages, completion and examples below a directory",
		Long: `gen-docs writes the files of an installation's share/: manual pages, completion
for shells, example configurations and the schema.`,
		Example: "  longhaul gen-docs /usr/local/share",
		Hidden:  true,
		Args:    exactArgs(1, "one DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			files, err := sharedFiles(env)
			if err != nil {
				return err
			}
			for path, content := range files {
				path = filepath.Join(args[0], path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(path, content, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// manPages returns the pages of all commands by file name.
func manPages(root *cobra.Command) map[string][]byte {
	return commandpage.All(root, commandpage.Options{Date: thisBuild().Date, Source: "longhaul " + thisBuild().Release, SeeAlso: func(cmd *cobra.Command) []string {
		if cmd.Flags().Lookup("config") != nil || strings.HasPrefix(cmd.CommandPath(), "longhaul config") {
			return []string{"longhaul.yaml(5)"}
		}
		return nil
	}})
}

// completionScripts returns the scripts of all shells by path below share/.
func completionScripts(root *cobra.Command) (map[string][]byte, error) {
	scripts := map[string][]byte{}
	for _, s := range shells {
		var b bytes.Buffer
		if err := s.write(root, &b); err != nil {
			return nil, err
		}
		scripts[s.path] = b.Bytes()
	}
	return scripts, nil
}

// sharedFiles returns the files of share/ by path there.
func sharedFiles(outer *env) (map[string][]byte, error) {
	root := newRoot(outer)
	all, err := packaging.Shared()
	if err != nil {
		return nil, err
	}
	scripts, err := completionScripts(root)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, scripts)
	for name, page := range manPages(root) {
		all["man/man1/"+name] = page
	}
	all["man/man5/longhaul.yaml.5"] = manpage.FromMarkdown(manpage.Title{
		Name: "longhaul.yaml", Section: 5, Date: thisBuild().Date, Source: "longhaul " + thisBuild().Release, Summary: "configuration of longhaul relay",
	}, docs.Configuration)
	return all, nil
}
