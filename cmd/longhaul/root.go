package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/display"
	"longhaul/internal/remedy"
)

// newRoot assembles the command line.
func newRoot(env *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "longhaul",
		Short: "Make bulk TCP between far sites fill its link",
		Long: `longhaul makes bulk TCP between far sites fill the link it pays for, without
touching the endpoints.

Exit codes: 0 done, 1 failed, 2 wrong command line or bad configuration,
3 (relay) flows had not ended in time, (check) a leg loses segments.`,
		Example:       rootExample,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          needCommand,
		PersistentPreRun: func(*cobra.Command, []string) {
			env.accepted = true
		},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(remedy.New(err, "see "+cmd.CommandPath()+" --help"))
	})
	root.CompletionOptions.DisableDefaultCmd = true // commands has one that helps as the others do
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))
	root.AddCommand(commands(env)...)
	completeValues(root)
	return root
}

// helpWidth is what the help fits into.
const helpWidth = 80

// usageTemplate is cobra's, with lines that are not too long.
func usageTemplate(cobras string) string {
	cobra.AddTemplateFunc("wrapSummary", func(padding int, text string) string {
		return display.Fold(text, helpWidth, len("  ")+padding+len(" "))
	})
	return strings.NewReplacer(
		".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth),
		"{{rpad .Name .NamePadding }} {{.Short}}", "{{rpad .Name .NamePadding }} {{wrapSummary .NamePadding .Short}}",
	).Replace(cobras)
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(remedy.New(fmt.Errorf("%s takes no argument, and got %q", cmd.CommandPath(), args[0]), "see "+cmd.CommandPath()+" --help"))
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

// exactArgs wants n arguments and says what they are.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError(remedy.New(fmt.Errorf("%s wants %s, and got %d arguments", cmd.CommandPath(), what, len(args)), "see "+cmd.CommandPath()+" --help"))
		}
		return nil
	}
}
