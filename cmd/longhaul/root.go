package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/display"
	"longhaul/internal/remedy"
)

// newRoot assembles the command line.
func newRoot(env *env) *cobra.Command {
	var asksVersion bool
	root := &cobra.Command{
		Use:   "longhaul",
		Short: "Make bulk TCP between far sites fill its link",
		Long: `longhaul makes bulk TCP between far sites fill its link, without changes to the
endpoints.

Exit codes: 0 done, 1 failed, 2 wrong command line or bad configuration,
3 (relay) reset flows at the drain deadline, (check) a leg loses segments.`,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if asksVersion {
				_, err := fmt.Fprintln(env.stdout, version())
				return err
			}
			return needCommand(cmd, args)
		},
		PersistentPreRun: func(*cobra.Command, []string) {
			env.accepted = true
		},
	}
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(remedy.New(err, "see "+cmd.CommandPath()+" --help"))
	})
	root.CompletionOptions.DisableDefaultCmd = true // commands has its own, with help like the others
	root.Flags().BoolVarP(&asksVersion, "version", "v", false, "version for longhaul")
	root.SetUsageFunc(writeUsage)
	root.AddCommand(commands(env)...)
	completeValues(root)
	return root
}

// helpWidth is the maximum width of help, in columns.
const helpWidth = 80

// writeUsage is cobra's usage with folded lines. It is no template: what
// executes templates keeps the linker from dropping unused methods.
func writeUsage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if cmd.Runnable() {
		b.WriteString("\n  " + cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n  " + cmd.CommandPath() + " [command]")
	}
	if cmd.HasExample() {
		b.WriteString("\n\nExamples:\n" + cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n\nAvailable Commands:")
		padding := cmd.Commands()[0].NamePadding()
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				fmt.Fprintf(&b, "\n  %-*s %s", padding, c.Name(), display.Fold(c.Short, helpWidth, len("  ")+padding+len(" ")))
			}
		}
	}
	for _, part := range []struct {
		title string
		has   bool
		flags *pflag.FlagSet
	}{
		{"Flags", cmd.HasAvailableLocalFlags(), cmd.LocalFlags()},
		{"Global Flags", cmd.HasAvailableInheritedFlags(), cmd.InheritedFlags()},
	} {
		if part.has {
			b.WriteString("\n\n" + part.title + ":\n" + strings.TrimRight(part.flags.FlagUsagesWrapped(helpWidth), " \n"))
		}
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n\nUse \"" + cmd.CommandPath() + " [command] --help\" for more information about a command.")
	}
	_, err := fmt.Fprintln(cmd.OutOrStderr(), b.String())
	return err
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(remedy.New(fmt.Errorf("%s takes no argument, got %q", cmd.CommandPath(), args[0]),
			"see "+cmd.CommandPath()+" --help"))
	}
	return nil
}

// needCommand is the RunE of a command that only groups others.
func needCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	hint := "see " + cmd.CommandPath() + " --help"
	cmd.SuggestionsMinimumDistance = 2
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		hint = "did you mean " + cmd.CommandPath() + " " + meant[0] + "?"
	}
	return usageError(remedy.New(fmt.Errorf("unknown command %q", cmd.CommandPath()+" "+args[0]), hint))
}

// exactArgs requires n arguments; what describes them in the error.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError(remedy.New(fmt.Errorf("%s needs %s, got %d arguments", cmd.CommandPath(), what,
				len(args)),
				"see "+cmd.CommandPath()+" --help"))
		}
		return nil
	}
}
