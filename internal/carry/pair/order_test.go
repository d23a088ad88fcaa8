package pair

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxUpward bounds the references that go upward. It may only fall.
const maxUpward = 10

// TestOrder holds the files to the order in which doc.go lists them: a file that another one can be
// read without comes before it. A reference is a pair of files, one of which uses what the other
// declares.
func TestOrder(t *testing.T) {
	order := orderOf(t)
	up := map[string][]string{}
	count := 0
	for ref, names := range references(t) {
		from, to := slices.Index(order, ref[0]), slices.Index(order, ref[1])
		if from >= 0 && to > from {
			count++
			up[ref[0]] = append(up[ref[0]], fmt.Sprintf("%s (%s)", ref[1], strings.Join(slices.Sorted(maps.Keys(names)), ", ")))
		}
	}
	if count == maxUpward {
		return
	}
	for _, file := range order {
		if refs := slices.Sorted(slices.Values(up[file])); len(refs) > 0 {
			t.Logf("%s: %s", file, strings.Join(refs, "; "))
		}
	}
	if count > maxUpward {
		t.Errorf("%d references between files go upward, at most %d may: declare an interface in the lower file, or move the code", count, maxUpward)
	} else {
		t.Errorf("%d references between files go upward: lower maxUpward from %d", count, maxUpward)
	}
}

// TestSize holds that each type of the package fits a head.
func TestSize(t *testing.T) {
	const maxFields, maxMethods = 25, 40
	pkg, _, _ := check(t)
	for _, name := range pkg.Scope().Names() {
		typ, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok || typ.IsAlias() {
			continue
		}
		if n := typ.Type().(*types.Named).NumMethods(); n > maxMethods {
			t.Errorf("%s has %d methods, at most %d may be: give a part of it a type of its own", name, n, maxMethods)
		}
		if s, ok := typ.Type().Underlying().(*types.Struct); ok && s.NumFields() > maxFields {
			t.Errorf("%s has %d fields, at most %d may be: give a part of it a type of its own", name, s.NumFields(), maxFields)
		}
	}
}

// orderOf lists the files from the bottom up, as the package's doc does.
func orderOf(t *testing.T) (order []string) {
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(f.Doc.Text(), "from the bottom up:\n")
	if !found {
		t.Fatal("doc.go lists no files from the bottom up")
	}
	for line := range strings.Lines(list) {
		if _, files, listed := strings.Cut(line, ":"); listed && strings.HasPrefix(line, "\t") {
			for _, name := range strings.Fields(files) {
				order = append(order, name+".go")
			}
		}
	}
	for _, name := range sources(t) {
		if n := len(slices.DeleteFunc(slices.Clone(order), func(o string) bool { return o != name })); n != 1 {
			t.Errorf("doc.go lists %s %d times, want once", name, n)
		}
	}
	for _, name := range order {
		if !slices.Contains(sources(t), name) {
			t.Errorf("doc.go lists %s, which does not exist", name)
		}
	}
	return order
}

// sources are the package's files without tests and doc.go.
func sources(t *testing.T) []string {
	all, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "doc.go" || strings.HasSuffix(name, "_test.go") })
}

// references finds which file uses which other one, and what of it.
func references(t *testing.T) map[[2]string]map[string]bool {
	pkg, info, fset := check(t)
	refs := map[[2]string]map[string]bool{}
	for id, o := range info.Uses {
		if o.Pkg() != pkg || !isDeclared(o, pkg) {
			continue
		}
		ref := [2]string{fset.Position(id.Pos()).Filename, fset.Position(o.Pos()).Filename}
		if refs[ref] == nil {
			refs[ref] = map[string]bool{}
		}
		refs[ref][o.Name()] = true
	}
	return refs
}

// check finds what the package's names mean.
func check(t *testing.T) (*types.Package, *types.Info, *token.FileSet) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range sources(t) {
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", exports(t))}
	pkg, err := config.Check("longhaul/internal/carry/pair", fset, files, info)
	if err != nil {
		t.Fatal(err)
	}
	return pkg, info, fset
}

// isDeclared reports that an object is a function, a method, or what the package declares outside of
// them; fields come with their types.
func isDeclared(o types.Object, pkg *types.Package) bool {
	if _, function := o.(*types.Func); function {
		return true
	}
	return o.Parent() == pkg.Scope()
}

// exports opens what the compiler has written of the packages that this one imports.
func exports(t *testing.T) func(path string) (io.ReadCloser, error) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".").Output()
	if err != nil {
		t.Fatal("go list: ", err)
	}
	at := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		at[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(at[path]) }
}
