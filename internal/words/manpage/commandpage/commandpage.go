// Package commandpage makes manual pages of a program's commands.
package commandpage

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/words/manpage"
)

// Options are what pages have in common.
type Options struct {
	Date   string // of the release: "2026-11-21"
	Source string // the program with its version

	// ExitStatus is the meaning of the statuses of a command that has none of its own.
	ExitStatus string
	Files      func(*cobra.Command) []manpage.Option
	// Related are pages beside those of the parent, the siblings and the subcommands.
	Related func(*cobra.Command) []string
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

// exitCodes begins the paragraph of a description that has the exit statuses.
const exitCodes = "Exit codes: "

// splitStatus takes the paragraph of exit statuses out of a description.
func splitStatus(long string) (description, status string) {
	var rest []string
	for paragraph := range strings.SplitSeq(long, "\n\n") {
		if text, found := strings.CutPrefix(paragraph, exitCodes); found {
			status = text
			continue
		}
		rest = append(rest, paragraph)
	}
	return strings.Join(rest, "\n\n"), status
}

func (o Options) page(cmd *cobra.Command) manpage.Page {
	p := manpage.Page{
		Title:      manpage.Title{Name: Name(cmd), Section: 1, Date: o.Date, Source: o.Source, Summary: lowerFirst(cmd.Short)},
		ExitStatus: o.ExitStatus, Examples: cmd.Example,
	}
	description, status := splitStatus(cmd.Long)
	if p.Description = description; status != "" {
		p.ExitStatus = status
	}
	if cmd.HasParent() && (!cmd.HasSubCommands() || cmd.HasLocalFlags()) {
		p.Synopsis = append(p.Synopsis, strings.Replace(cmd.UseLine(), " [flags]", " [FLAGS]", 1))
	}
	if cmd.HasSubCommands() {
		p.Synopsis = append(p.Synopsis, cmd.CommandPath()+" COMMAND [FLAGS]")
	}
	cmd.InitDefaultHelpFlag()
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			p.Options = append(p.Options, option(f))
		}
	})
	for _, sub := range cmd.Commands() {
		if isListed(sub) {
			p.Commands = append(p.Commands, manpage.Option{Name: sub.Name(), Text: sub.Short})
		}
	}
	p.SeeAlso = o.seeAlso(cmd)
	if o.Files != nil {
		p.Files = o.Files(cmd)
	}
	return p
}

// seeAlso returns the pages that a command's page refers to: its parent, its
// subcommands, its siblings unless their parent is the root, and those related.
func (o Options) seeAlso(cmd *cobra.Command) []string {
	var pages []string
	add := func(page string) {
		if !slices.Contains(pages, page) && page != Name(cmd)+"(1)" {
			pages = append(pages, page)
		}
	}
	if cmd.HasParent() {
		add(Name(cmd.Parent()) + "(1)")
	}
	near := cmd.Commands()
	if cmd.HasParent() && cmd.Parent().HasParent() {
		near = append(slices.Clone(near), cmd.Parent().Commands()...)
	}
	for _, other := range near {
		if isListed(other) {
			add(Name(other) + "(1)")
		}
	}
	if o.Related != nil {
		for _, page := range o.Related(cmd) {
			add(page)
		}
	}
	return pages
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
