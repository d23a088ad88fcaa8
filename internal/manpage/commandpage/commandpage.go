// Package commandpage makes manual pages of a program's commands.
package commandpage

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/manpage"
)

// Options are what pages have in common.
type Options struct {
	Date    string // of the release: "2026-11-21"
	Source  string // the program with its version
	SeeAlso func(*cobra.Command) []string
}

// All are the pages of a command and of all below it, by their file names. Hidden
// commands have none.
func All(root *cobra.Command, o Options) map[string][]byte {
	pages := map[string][]byte{}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if !isListed(cmd) {
			return
		}
		pages[Name(cmd)+".1"] = o.page(cmd).Roff()
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	return pages
}

// Name is the name of a command's page: "longhaul-cc-list".
func Name(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func isListed(cmd *cobra.Command) bool { return !cmd.Hidden && cmd.Name() != "help" }

func (o Options) page(cmd *cobra.Command) manpage.Page {
	p := manpage.Page{
		Title:       manpage.Title{Name: Name(cmd), Section: 1, Date: o.Date, Source: o.Source, Summary: lowerFirst(cmd.Short)},
		Description: cmd.Long, Examples: cmd.Example,
	}
	if cmd.HasSubCommands() {
		p.Synopsis = append(p.Synopsis, cmd.CommandPath()+" COMMAND [FLAGS]")
	} else {
		p.Synopsis = append(p.Synopsis, cmd.UseLine())
	}
	cmd.InitDefaultHelpFlag()
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			p.Options = append(p.Options, option(f))
		}
	})
	if cmd.HasParent() {
		p.SeeAlso = append(p.SeeAlso, Name(cmd.Parent())+"(1)")
	}
	for _, sub := range cmd.Commands() {
		if isListed(sub) {
			p.Commands = append(p.Commands, manpage.Option{Name: sub.Name(), Text: sub.Short})
			p.SeeAlso = append(p.SeeAlso, Name(sub)+"(1)")
		}
	}
	if o.SeeAlso != nil {
		p.SeeAlso = append(p.SeeAlso, o.SeeAlso(cmd)...)
	}
	return p
}

func option(f *pflag.Flag) manpage.Option {
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
	return o
}

func lowerFirst(s string) string {
	if len(s) > 1 && strings.ToLower(s[1:2]) == s[1:2] {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s // an abbreviation
}
