package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/remedy"
)

// shells are the shells with completion, each with the script's path below share/
// and its writer.
var shells = []struct {
	name, path string
	write      func(root *cobra.Command, w io.Writer) error
}{
	{"bash", "bash-completion/completions/longhaul", func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) }},
	{"zsh", "zsh/site-functions/_longhaul", func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) }},
	{"fish", "fish/vendor_completions.d/longhaul.fish", func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) }},
}

func newCompletion(env *env) *cobra.Command {
	names := make([]string, len(shells))
	for i, s := range shells {
		names[i] = s.name
	}
	return &cobra.Command{
		Use:   "completion (bash | zsh | fish)",
		Short: "Print the script that completes commands in a shell",
		Long: `completion prints the script that lets the Tab key complete commands, flags and
their values. The packages and longhaul service install put it where the shells
look for it.`,
		Example: `  source <(longhaul completion bash)
  longhaul completion zsh > "${fpath[1]}/_longhaul"
  longhaul completion fish > ~/.config/fish/completions/longhaul.fish`,
		Args:      exactArgs(1, "the name of a shell"),
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			i := slices.Index(names, args[0])
			if i < 0 {
				return usageError(remedy.New(fmt.Errorf("no completion for shell %q", args[0]),
					"choose from "+strings.Join(names, ", ")))
			}
			return shells[i].write(cmd.Root(), env.stdout)
		},
	}
}
