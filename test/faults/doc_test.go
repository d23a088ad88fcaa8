package faults

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var numbers = regexp.MustCompile(`^TestCase(\d{2,3})`)

// Every case of docs/faults.md has a test by its number here, apart from the timed
// ones, and every test has its case there.
func TestEveryCaseHasATest(t *testing.T) {
	page, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[int]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(string(page), -1) {
		n, err := strconv.Atoi(row[1])
		if err != nil {
			t.Fatal(err)
		}
		listed[n] = true
	}
	tested := map[int]bool{}
	for _, c := range scripted {
		tested[c.number] = true
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), "_test.go") || strings.HasSuffix(entry.Name(), "_timed_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				if m := numbers.FindStringSubmatch(f.Name.Name); m != nil {
					n, _ := strconv.Atoi(m[1])
					tested[n] = true
				}
			}
		}
	}
	for n := range 1000 {
		if listed[n] != tested[n] {
			t.Errorf("case %d: listed %v, tested %v", n, listed[n], tested[n])
		}
	}
}

// Every test that docs/design/bounds.md names exists.
func TestBoundsHaveTheirTests(t *testing.T) {
	page, err := os.ReadFile("../../docs/design/bounds.md")
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, name := range regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(page), -1) {
		missing[name[1]] = true
	}
	if len(missing) < 50 {
		t.Fatalf("the page names only %d tests", len(missing))
	}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]+)\(`)
	err = filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, f := range function.FindAllSubmatch(source, -1) {
			delete(missing, string(f[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range missing {
		t.Errorf("docs/design/bounds.md names %s, which is no test", name)
	}
}
