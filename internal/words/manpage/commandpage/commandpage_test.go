package commandpage

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"longhaul/internal/words/manpage"
)

func TestAll(t *testing.T) {
	root := &cobra.Command{Use: "program", Short: "Do things"}
	move := &cobra.Command{Use: "move FILE", Short: "Move a file", Run: func(*cobra.Command, []string) {}}
	move.Flags().StringP("to", "t", "here", "a `PLACE`")
	secret := &cobra.Command{Use: "secret", Hidden: true, Run: move.Run}
	root.AddCommand(move, secret)
	group := &cobra.Command{Use: "group", Short: "Group things"}
	one := &cobra.Command{Use: "one", Short: "Do one", Long: "one does it.\n\nExit codes: 0 done, 4 not\ndone.\n\nIt ends.", Run: move.Run}
	group.AddCommand(one, &cobra.Command{Use: "two", Short: "Do two", Run: move.Run})
	root.AddCommand(group)
	pages := All(root, Options{Date: "2026-11-21", Source: "program 1.0", ExitStatus: "0 is good.", Files: func(cmd *cobra.Command) []manpage.Option {
		return []manpage.Option{{Name: "/etc/" + cmd.Name(), Text: "its file"}}
	}, Related: func(cmd *cobra.Command) []string {
		if cmd == move {
			return []string{"mv(1)"}
		}
		return nil
	}})
	if got := slices.Sorted(maps.Keys(pages)); !slices.Equal(got, []string{"program-group-one.1", "program-group-two.1", "program-group.1", "program-move.1", "program.1"}) {
		t.Fatalf("pages %v", got)
	}
	for name, parts := range map[string][]string{
		"program.1":           {"2026-11-21", "do things", "program COMMAND [FLAGS]", "program\\-move"},
		"program-move.1":      {"move a file", "program move FILE [FLAGS]", "\\-t, \\-\\-to", "PLACE", "(default here)", "EXIT STATUS\n0 is good.", "/etc/move", ".BR program (1),\n.BR mv (1)\n"},
		"program-group.1":     {".BR program (1),\n.BR program\\-group\\-one (1),\n.BR program\\-group\\-two (1)\n"},
		"program-group-one.1": {"one does it.\n.PP\nIt ends.\n", "EXIT STATUS\n0 done, 4 not\ndone.\n", ".BR program\\-group (1),\n.BR program\\-group\\-two (1)\n"},
	} {
		for _, part := range parts {
			if !strings.Contains(string(pages[name]), part) {
				t.Errorf("%s lacks %q:\n%s", name, part, pages[name])
			}
		}
	}
}
