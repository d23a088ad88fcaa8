package commandpage

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestAll(t *testing.T) {
	root := &cobra.Command{Use: "program", Short: "Do things"}
	move := &cobra.Command{Use: "move FILE", Short: "Move a file", Run: func(*cobra.Command, []string) {}}
	move.Flags().StringP("to", "t", "here", "a `PLACE`")
	secret := &cobra.Command{Use: "secret", Hidden: true, Run: move.Run}
	root.AddCommand(move, secret)
	pages := All(root, Options{Date: "2026-11-21", Source: "program 1.0", SeeAlso: func(cmd *cobra.Command) []string {
		if cmd == move {
			return []string{"mv(1)"}
		}
		return nil
	}})
	if got := slices.Sorted(maps.Keys(pages)); !slices.Equal(got, []string{"program-move.1", "program.1"}) {
		t.Fatalf("pages %v", got)
	}
	for name, parts := range map[string][]string{
		"program.1":      {"2026-11-21", "do things", "program COMMAND [FLAGS]", "program\\-move"},
		"program-move.1": {"move a file", "program move FILE [flags]", "\\-t, \\-\\-to", "PLACE", "(default here)", "mv"},
	} {
		for _, part := range parts {
			if !strings.Contains(string(pages[name]), part) {
				t.Errorf("%s lacks %q:\n%s", name, part, pages[name])
			}
		}
	}
}
