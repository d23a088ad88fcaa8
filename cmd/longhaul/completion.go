package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/words/remedy"
)

// shells are the shells with completion, each with the script's path below share/
// and its writer.
var shells = []struct {
	name, path string
	write      func(root *cobra.Command, w io.Writer) error
}{
	{"bash", "bash-completion/completions/longhaul", writeBash},
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
		Long: `completion prints the script that lets the Tab key complete commands, flags,
names and a few values. The packages and longhaul service install put it where
the shells look for it.`,
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

// writeBash writes bash's script. What cobra generates splits the line with a function of the
// package bash-completion, and fails without it: there the script takes the line apart by itself.
func writeBash(root *cobra.Command, w io.Writer) error {
	var b bytes.Buffer
	if err := root.GenBashCompletionV2(&b, true); err != nil {
		return err
	}
	const splits = `_get_comp_words_by_ref "$@" cur prev words cword`
	text := strings.Replace(b.String(), splits, `if declare -F _get_comp_words_by_ref >/dev/null; then
        `+splits+`
    else
        local line="${COMP_LINE:0:COMP_POINT}"
        read -r -a words <<<"$line"
        [[ $line == *[[:space:]] ]] && words+=("")
        cword=$((${#words[@]} - 1))
        cur=${words[cword]}
        prev=${words[cword - 1]}
    fi`, 1)
	_, err := io.WriteString(w, text)
	return err
}
