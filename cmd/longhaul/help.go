package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/words/display"
)

// helpWidth is the maximum width of help, in columns.
const helpWidth = 80

// verbGroups are the groups of commands in the root's help, in its order.
var verbGroups = []struct {
	title string
	verbs []string
}{
	{"Start here", []string{"doctor", "relay"}},
	{"Find and fix the cause", []string{"measure", "top", "cc", "route", "mss", "host"}},
	{"Run relays", []string{"service", "config", "pair", "intercept", "reload", "upgrade", "drain", "resume", "stop"}},
	{"Watch relays", []string{"status", "fleet", "trace", "events", "history", "check", "ready"}},
	{"Try it on this machine", []string{"demo", "lab"}},
	{"About this program", []string{"help", "version", "completion"}},
}

// usageLine is the line of a command in the synopsis.
func usageLine(cmd *cobra.Command) string {
	return strings.TrimSuffix(cmd.UseLine(), " [flags]")
}

// hasFlags reports whether a command has a flag of its own beside --help.
func hasFlags(cmd *cobra.Command) (has bool) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { has = has || !f.Hidden && f.Name != "help" })
	return has
}

// writeUsage is cobra's usage with groups and folded lines. It is no template: what
// executes templates keeps the linker from dropping unused methods.
func writeUsage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if cmd.Runnable() && (!cmd.HasAvailableSubCommands() || cmd.HasParent() && hasFlags(cmd)) {
		line := usageLine(cmd)
		if hasFlags(cmd) && !cmd.DisableFlagsInUseLine {
			line += " [FLAGS]"
		}
		b.WriteString("\n  " + line)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n  " + cmd.CommandPath() + " COMMAND [FLAGS]")
	}
	if cmd.HasExample() {
		b.WriteString("\n\nExamples:\n" + cmd.Example)
	}
	writeVerbs(&b, cmd)
	for _, part := range []struct {
		title string
		has   bool
		flags *pflag.FlagSet
	}{
		{"Flags", cmd.HasAvailableLocalFlags(), cmd.LocalFlags()},
		{"Global Flags", cmd.HasAvailableInheritedFlags(), cmd.InheritedFlags()},
	} {
		if part.has {
			b.WriteString("\n\n" + part.title + ":\n" + flagUsages(part.flags))
		}
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n\n" + cmd.CommandPath() + " COMMAND --help tells more about a command.")
	}
	_, err := fmt.Fprintln(cmd.OutOrStderr(), b.String())
	return err
}

// quotedDefault is a default as pflag writes that of a plain text.
var quotedDefault = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\(default "([^"]*)"\)`)
})

// flagUsages lists flags, each default as it would be written on the command line.
func flagUsages(flags *pflag.FlagSet) string {
	return strings.TrimRight(quotedDefault().ReplaceAllString(flags.FlagUsagesWrapped(helpWidth), "(default $1)"), " \n")
}

// writeVerbs lists the subcommands of a command, those of the root in groups.
func writeVerbs(b *strings.Builder, cmd *cobra.Command) {
	rest := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool {
		return !c.IsAvailableCommand() && c.Name() != "help"
	})
	if len(rest) == 0 {
		return
	}
	padding := rest[0].NamePadding()
	list := func(title string, verbs []*cobra.Command) {
		b.WriteString("\n\n" + title + ":")
		for _, c := range verbs {
			fmt.Fprintf(b, "\n  %-*s %s", padding, c.Name(), display.Fold(c.Short, helpWidth, len("  ")+padding+len(" ")))
		}
	}
	if !cmd.HasParent() {
		for _, group := range verbGroups {
			var verbs []*cobra.Command
			for _, name := range group.verbs {
				if i := slices.IndexFunc(rest, func(c *cobra.Command) bool { return c.Name() == name }); i >= 0 {
					verbs = append(verbs, rest[i])
					rest = slices.Delete(rest, i, i+1)
				}
			}
			if len(verbs) > 0 {
				list(group.title, verbs)
			}
		}
	}
	if len(rest) > 0 {
		list("Commands", rest)
	}
}

// newHelp prints the help of a command.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND...]",
		Short: "Show the help of a command, with examples",
		Long: `help shows what a command does, with examples and its flags, as COMMAND --help
does. Without a command it lists all.`,
		Example: `  longhaul help doctor
  longhaul help cc use`,
		ValidArgsFunction: completeVerbs,
		RunE: func(cmd *cobra.Command, words []string) error {
			shown := cmd.Root()
			for _, word := range words {
				below := subcommand(shown, word)
				if below == nil {
					return unknownVerb(shown, word)
				}
				shown = below
			}
			shown.InitDefaultHelpFlag()
			return shown.Help()
		},
	}
}

// completeVerbs offers the commands below those that the line names.
func completeVerbs(cmd *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
	at := subcommand(cmd.Root(), strings.Join(words, " "))
	if at == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, sub := range at.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name()+"\t"+sub.Short)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
