//go:build linux

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/docs"
	"longhaul/internal/manpage"
	"longhaul/packaging"
)

// newGenDocs makes what packaging/build puts into the packages.
func newGenDocs(env *env) *cobra.Command {
	return &cobra.Command{
		Use:   "gen-docs DIR",
		Short: "Write manual pages, completion and examples below a directory",
		Long: `gen-docs writes what belongs into share/ of an installation: manual pages,
completion for shells, example configurations and the schema.`,
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

// manPages are the pages of all commands, by their file names.
func manPages(root *cobra.Command) map[string][]byte {
	pages := map[string][]byte{}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		pages[pageName(cmd)+".1"] = manPage(cmd).Roff()
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	return pages
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func pageTitle(name string, section int, summary string) manpage.Title {
	return manpage.Title{Name: name, Section: section, Date: releaseDate(), Source: "longhaul " + releaseName(), Summary: summary}
}

func manPage(cmd *cobra.Command) manpage.Page {
	p := manpage.Page{Title: pageTitle(pageName(cmd), 1, lowerFirst(cmd.Short)), Description: cmd.Long, Examples: cmd.Example}
	if cmd.HasSubCommands() {
		p.Synopsis = append(p.Synopsis, cmd.CommandPath()+" COMMAND [FLAGS]")
	} else {
		p.Synopsis = append(p.Synopsis, cmd.UseLine())
	}
	cmd.InitDefaultHelpFlag()
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		o := manpage.Option{Name: "--" + f.Name}
		if f.Shorthand != "" {
			o.Name = "-" + f.Shorthand + ", " + o.Name
		}
		o.Value, o.Text = pflag.UnquoteUsage(f)
		switch f.DefValue {
		case "", "false", "0", "0s", "[]":
		default:
			o.Text += " (default " + f.DefValue + ")"
		}
		p.Options = append(p.Options, o)
	})
	for _, sub := range cmd.Commands() {
		if sub.Hidden || sub.Name() == "help" {
			continue
		}
		p.Commands = append(p.Commands, manpage.Option{Name: sub.Name(), Text: sub.Short})
		p.SeeAlso = append(p.SeeAlso, pageName(sub)+"(1)")
	}
	if cmd.HasParent() {
		p.SeeAlso = append([]string{pageName(cmd.Parent()) + "(1)"}, p.SeeAlso...)
	}
	if cmd.Flags().Lookup("config") != nil || strings.HasPrefix(pageName(cmd), "longhaul-config") {
		p.SeeAlso = append(p.SeeAlso, "longhaul.yaml(5)")
	}
	return p
}

func lowerFirst(s string) string {
	if len(s) > 1 && strings.ToLower(s[1:2]) == s[1:2] {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s // an abbreviation
}

// completionScripts are those of every shell, by their paths below share/.
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

// sharedFiles are the files of share/, by their paths there.
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
	all["man/man5/longhaul.yaml.5"] = manpage.FromMarkdown(pageTitle("longhaul.yaml", 5, "configuration of longhaul relay"), docs.Configuration)
	return all, nil
}
