package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"longhaul/internal/words/remedy"
)

// newRoot assembles the command line.
func newRoot(env *env) *cobra.Command {
	var asksVersion bool
	root := &cobra.Command{
		Use:   "longhaul",
		Short: "Make bulk TCP between far sites fill its link",
		Long: `longhaul makes bulk TCP between far sites fill its link, without changes to the
endpoints.

Exit codes: 0 done, or nothing to do; 1 failed, or the answer is no; 2 wrong
command line or bad configuration; 3 done with a loss that the command names.`,
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
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.DisableDefaultCmd = true // commands has its own, with help like the others
	root.Flags().BoolVarP(&asksVersion, "version", "v", false, "print the version, as longhaul version does")
	root.SetUsageFunc(writeUsage)
	root.SetHelpCommand(newHelp())
	root.AddCommand(commands(env)...)
	root.InitDefaultHelpCmd()
	completeValues(root)
	return root
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
	return unknownVerb(cmd, args[0])
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
