//go:build linux

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestSurface holds what scripts and other programs rely on against testdata/surface.txt:
// commands with their flags, exit statuses, targets of HTTP and fields of JSON. (Metrics are
// held against docs/metrics.md.) A name that changes or goes needs a line in CHANGELOG.md; -update writes the file.
func TestSurface(t *testing.T) {
	var b bytes.Buffer
	eachCommand(t, func(cmd *cobra.Command) {
		fmt.Fprint(&b, "command ", cmd.CommandPath())
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { fmt.Fprint(&b, " --", f.Name) })
		fmt.Fprintln(&b)
	})
	code := sourceOf(t, "../..", "cmd", "internal")
	for _, list := range []struct {
		kind    string
		pattern string
	}{
		{"exit status", `\n\t(exit[A-Z]\w* += \d+)`},
		{"target", `"((?:GET |POST )?/(?:api|healthz|readyz|metrics|login|logout)[a-z0-9/{}.]*)"`},
	} {
		names := map[string]bool{}
		for _, m := range regexp.MustCompile(list.pattern).FindAllStringSubmatch(code, -1) {
			names[strings.Join(strings.Fields(m[1]), " ")] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			fmt.Fprintln(&b, list.kind, name)
		}
	}
	for _, line := range jsonFields(t, "../../cmd", "../../internal", "../../lab") {
		fmt.Fprintln(&b, line)
	}
	const golden = "testdata/surface.txt"
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("names that others rely on differ from %s (-want +got): go test ./cmd/longhaul -run TestSurface -update, with a line in CHANGELOG.md\n%s", golden, diff)
	}
}

// eachSource calls a function for each file of Go that is no test.
func eachSource(t *testing.T, folder string, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			visit(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sourceOf returns the text of folders below root.
func sourceOf(t *testing.T, root string, folders ...string) string {
	t.Helper()
	var all strings.Builder
	for _, folder := range folders {
		eachSource(t, filepath.Join(root, folder), func(path string) { all.WriteString(readSource(t, path)) })
	}
	return all.String()
}

// jsonFields returns a line for each struct with fields of JSON: the type's name, and the
// fields' names. The folder of a type may change.
func jsonFields(t *testing.T, folders ...string) []string {
	t.Helper()
	lines := map[string]bool{}
	for _, folder := range folders {
		eachSource(t, folder, func(path string) {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			name := ""
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					name = n.Name.Name
				case *ast.FuncDecl:
					name = n.Name.Name
				case *ast.StructType:
					if fields := namesOfTags(n); len(fields) > 0 {
						lines[fmt.Sprintf("json %s: %s", name, strings.Join(fields, " "))] = true
					}
				}
				return true
			})
		})
	}
	return slices.Sorted(maps.Keys(lines))
}

// namesOfTags returns the names that a struct's tags give its fields in JSON.
func namesOfTags(s *ast.StructType) []string {
	var fields []string
	for _, f := range s.Fields.List {
		if f.Tag == nil {
			continue
		}
		text, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			continue
		}
		name, _, _ := strings.Cut(reflect.StructTag(text).Get("json"), ",")
		if name != "" && name != "-" {
			fields = append(fields, name)
		}
	}
	return fields
}
